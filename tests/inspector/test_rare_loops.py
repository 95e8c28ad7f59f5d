"""Loops that run for few arguments are not what a kernel is judged by: LLVM's own for a divisor of -1, and what is called beyond a polynomial's range. And causes name their line."""

import json

import pytest
from triport.tools.__main__ import main
from triport.tools.inspector import flow, isa as isas, text

KERNELS = '''
import triton
import triton.language as tl
from triton.language.extra import libdevice

@triton.jit
def quotient_kernel(x_ptr, o_ptr, n, d, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(o_ptr + offs, tl.load(x_ptr + offs, mask=mask) // d, mask=mask)

@triton.jit
def sine_kernel(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(o_ptr + offs, tl.sin(tl.load(x_ptr + offs, mask=mask)), mask=mask)

@triton.jit
def tangent_kernel(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(o_ptr + offs, libdevice.tan(tl.load(x_ptr + offs, mask=mask)), mask=mask)

@triton.jit
def squares_kernel(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    sums = tl.zeros((BLOCK,), tl.float32)
    for at in range(0, n, BLOCK):
        x = tl.load(x_ptr + at + tl.arange(0, BLOCK))
        sums += x * x
    tl.atomic_add(o_ptr, tl.sum(sums))

@triton.jit
def count_kernel(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.atomic_add(o_ptr + tl.load(x_ptr + offs, mask=mask), 1, mask=mask)

@triton.jit
def quotient_in_fp64_kernel(x_ptr, o_ptr, n, d, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(o_ptr + offs, tl.sqrt((tl.load(x_ptr + offs, mask=mask) // d).to(tl.float64)).to(tl.int32), mask=mask)

@triton.jit
def quotient_in_fp32_kernel(x_ptr, o_ptr, n, d, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(o_ptr + offs, tl.sqrt((tl.load(x_ptr + offs, mask=mask) // d).to(tl.float32)).to(tl.int32), mask=mask)

@triton.jit
def quotient_and_fp64_kernel(x_ptr, o_ptr, n, d, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    q = tl.load(x_ptr + offs, mask=mask) // d // (d + 1) // (d + 2)
    tl.store(o_ptr + offs, (q.to(tl.float64) * 0.3).to(tl.int32), mask=mask)
'''


def judged(capsys, tmp_path, kernel, target, *kinds) -> dict:
    """The report of one kernel as --json has it."""
    (tmp_path / "ks.py").write_text(KERNELS)
    arguments = [part for kind in kinds for part in ("--arg", kind)]
    assert main(["asm", f"{tmp_path}/ks.py:{kernel}", "--target", target, *arguments, "--arg", "n=i32", "--const", "BLOCK=1024", "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    return report


@pytest.mark.parametrize("target", ["x86-64-v3", "aarch64"])
def test_the_loop_that_divides_is_judged(target, capsys, tmp_path):
    report = judged(capsys, tmp_path, "quotient_kernel", target, "x_ptr=i64[16]", "o_ptr=i64[16]", "d=i64")
    assert report["verdict"] != "VECTOR" and report["share"] < 0.6
    assert any(cause["name"] == "index by division" for loop in report["loops"] if loop["hot"] for cause in loop["causes"])


@pytest.mark.parametrize("kernel", ["quotient_kernel", "quotient_in_fp64_kernel"])
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", "aarch64"])
def test_integers_that_are_divided_by_way_of_floats_are_no_fault(target, kernel, capsys, tmp_path):
    report = judged(capsys, tmp_path, kernel, target, "x_ptr=i32[16]", "o_ptr=i32[16]", "d=i32")
    hot = [loop for loop in report["loops"] if loop["hot"]]
    asked = kernel == "quotient_in_fp64_kernel"  # in the same line
    assert asked or report["verdict"] == "VECTOR"
    assert all(loop["bound"] is None or (loop["bound"]["flop_per_cycle"] > 0) == asked for loop in hot)
    assert all((loop["f64"] > 0) == asked and (loop["convert"] > 0) == asked for loop in hot)
    assert any(cause["name"] in ("fp64", "type conversion") for loop in hot for cause in loop["causes"]) == asked


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", "aarch64"])
def test_a_conversion_beside_a_division_is_one(target, capsys, tmp_path):
    """And the fp64 in its line divides all the same."""
    report = judged(capsys, tmp_path, "quotient_in_fp32_kernel", target, "x_ptr=i32[16]", "o_ptr=i32[16]", "d=i32")
    hot = [loop for loop in report["loops"] if loop["hot"]]
    assert all(loop["f64"] == 0 and loop["convert"] > 0 for loop in hot)
    assert {cause["name"] for loop in hot for cause in loop["causes"]} & {"fp64", "type conversion"} <= {"type conversion"}


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", "aarch64"])
def test_the_line_that_asks_for_fp64_is_named(target, capsys, tmp_path):
    """And not the line before, whose divisions are more of it."""
    report = judged(capsys, tmp_path, "quotient_and_fp64_kernel", target, "x_ptr=i32[16]", "o_ptr=i32[16]", "d=i32")
    causes = [cause for loop in report["loops"] if loop["hot"] for cause in loop["causes"] if cause["name"] in ("fp64", "type conversion")]
    (line,) = {cause["line"] for cause in causes}
    assert KERNELS.splitlines()[int(line.partition(":")[2]) - 1].strip().startswith("tl.store(o_ptr + offs, (q.to(")


@pytest.mark.parametrize("element", ["fp32", "fp64"])
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", "aarch64", "neoverse-v2", "spacemit-x60"])
def test_calls_beyond_a_polynomials_range_are_no_work(target, element, capsys, tmp_path):
    report = judged(capsys, tmp_path, "sine_kernel", target, f"x_ptr={element}[16]", f"o_ptr={element}[16]")
    loops = [loop for loop in report["loops"] if loop["hot"]]
    assert report["verdict"] == "VECTOR" and all(loop["calls"] for loop in loops)
    assert any("only where a vector holds a number beyond" in cause["remedy"] for loop in loops for cause in loop["causes"] if cause["name"] == "scalar call")


@pytest.mark.parametrize("element, verdict", [("fp32", "VECTOR"), ("fp64", "PARTLY")])
def test_what_is_called_for_every_element_is_work(element, verdict, capsys, tmp_path):
    assert judged(capsys, tmp_path, "tangent_kernel", "x86-64-v3", f"x_ptr={element}[16]", f"o_ptr={element}[16]")["verdict"] == verdict


@pytest.mark.parametrize("target", ["x86-64-v3", "aarch64", "neoverse-v2", "rv64gcv", "spacemit-x60"])
def test_a_store_that_is_tried_again_is_no_loop(target, capsys, tmp_path):
    """One atomic operation for all that a program sums up weighs nothing; one for each element is in the element's loop."""
    report = judged(capsys, tmp_path, "squares_kernel", target, "x_ptr=fp32[16]", "o_ptr=fp32[16]")
    assert report["verdict"] == "VECTOR" and report["share"] > 0.98
    report = judged(capsys, tmp_path, "count_kernel", target, "x_ptr=i32[16]", "o_ptr=i32[16]")
    loops = [loop for loop in report["loops"] if loop["hot"] and loop["verdict"] == "SCALAR"]
    assert loops and all(loop["instructions"] > 3 for loop in loops)
    assert {cause["text"] for loop in loops for cause in loop["causes"] if "atomic" in cause["text"]} == {"1 atomic operation, one element each"}


_EXCLUSIVE = {
    "aarch64": ("f:\n.L1:\n\tldaxr w8, [x0]\n\tadd w9, w8, w1\n\tstlxr w10, w9, [x0]\n\tcbnz {status}, .L1\n\tret\n", "w10", "w2"),
    "riscv64": ("f:\n.L1:\n\tlr.w a4, (a0)\n\tadd a5, a4, a1\n\tsc.w a3, a5, (a0)\n\tbnez {status}, .L1\n\tret\n", "a3", "a2"),
    "x86-64": ("f:\n.L1:\n\tleal (%rax,%rsi), %ecx\n\tlock cmpxchgl %ecx, (%rdi)\n{status}\tjne .L1\n\tretq\n", "", "\tdecq %rdx\n")}


@pytest.mark.parametrize("isa", _EXCLUSIVE)
def test_what_a_loop_asks_decides(isa):
    """Whether its own store came too late, or something else."""
    form, own, other = _EXCLUSIVE[isa]
    for status, loops in ((own, 0), (other, 1)):
        (function,) = text.functions(form.format(status=status), isas.ISAS[isa])
        isas.classify(function, isas.ISAS[isa], isas.Machine(128))
        flow.analyse(function)
        assert len(function.loops) == loops, status


@pytest.mark.parametrize("target", ["x86-64-v3", "aarch64"])
def test_atomic_operations_are_the_cause(target, capsys, tmp_path):
    report = judged(capsys, tmp_path, "count_kernel", target, "x_ptr=i32[16]", "o_ptr=i32[16]")
    causes = [cause for loop in report["loops"] if loop["hot"] for cause in loop["causes"]]
    assert report["verdict"] != "VECTOR" and any("atomic" in cause["text"] and cause["line"] == f"ks.py:{1 + KERNELS[:KERNELS.index('tl.atomic_add(o_ptr + tl.load')].count(chr(10))}" for cause in causes), causes
