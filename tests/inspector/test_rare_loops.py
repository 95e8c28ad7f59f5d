"""Loops that run for few arguments are not what a kernel is judged by: LLVM's own for a divisor of -1, and what is called beyond a polynomial's range. And causes name their line."""

import json

import pytest
from triport.tools.__main__ import main

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
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", "spacemit-x60"])
def test_calls_beyond_a_polynomials_range_are_no_work(target, element, capsys, tmp_path):
    report = judged(capsys, tmp_path, "sine_kernel", target, f"x_ptr={element}[16]", f"o_ptr={element}[16]")
    loops = [loop for loop in report["loops"] if loop["hot"]]
    assert report["verdict"] == "VECTOR" and all(loop["calls"] for loop in loops)
    assert any("only where a vector holds a number beyond" in cause["remedy"] for loop in loops for cause in loop["causes"] if cause["name"] == "scalar call")


@pytest.mark.parametrize("element, verdict", [("fp32", "VECTOR"), ("fp64", "PARTLY")])
def test_what_is_called_for_every_element_is_work(element, verdict, capsys, tmp_path):
    assert judged(capsys, tmp_path, "tangent_kernel", "x86-64-v3", f"x_ptr={element}[16]", f"o_ptr={element}[16]")["verdict"] == verdict


@pytest.mark.parametrize("target", ["x86-64-v3", "aarch64"])
def test_atomic_operations_are_the_cause(target, capsys, tmp_path):
    report = judged(capsys, tmp_path, "count_kernel", target, "x_ptr=i32[16]", "o_ptr=i32[16]")
    causes = [cause for loop in report["loops"] if loop["hot"] for cause in loop["causes"]]
    assert report["verdict"] != "VECTOR" and any("atomic" in cause["text"] and cause["line"] == "ks.py:28" for cause in causes), causes
