"""How wide a chunk is and how many go side by side, on a target whose instructions work on groups of registers (plan/pressure.py)."""

import re

import pytest
import triton
import triton.language as tl
from plan_kernels import compiled as planned
from test_decisions import compiled
from test_plans import FOLDER
from triport.backends.cpu.emit.module import lower_module
from triport.backends.cpu.llvm import targets
from triport.backends.cpu.llvm.compile import compile_ir
from triport.backends.cpu.plan import pressure
from triport.backends.cpu.ttir import reader
from triport.tools.inspector import code, report, verdict
from triport.tools.inspector import targets as goals


@triton.jit
def square_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(out_ptr + at, x * x, mask=at < n)


@triton.jit
def exp_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.exp(tl.load(x_ptr + at, mask=at < n)), mask=at < n)


@triton.jit
def strided_kernel(x_ptr, out_ptr, s, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at * s))


@triton.jit
def tanh_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.erf(tl.load(x_ptr + at)))


def groups(kernel) -> set[str]:
    """The groups of registers (LMUL) in which floats are computed."""
    return set(re.findall(r"e32, (m\d)", kernel.asm["asm"]))


def test_a_plain_loop_works_on_as_many_registers_as_the_target_takes():
    kernel = compiled(square_kernel, "spacemit-x60", BLOCK=1024)
    assert "32 lanes along 0 in 4 registers" in kernel.asm["plan"] and groups(kernel) == {"m4"}
    assert "registers" not in compiled(square_kernel, "rv64gcv", BLOCK=1024).asm["plan"]
    assert groups(compiled(square_kernel, "rv64gcv:vlen256", BLOCK=1024)) == {"m1"}


def test_polynomials_go_two_by_two():
    """Half as wide, so that two fit; and both have been loaded before the first is stored, or one would wait for the other."""
    kernel = compiled(exp_kernel, "spacemit-x60", BLOCK=1024)
    assert "16 lanes along 0 in 2 registers" in kernel.asm["plan"] and "2 chunks side by side" in kernel.asm["plan"]
    loop = next(b for b in re.split(r"\n\.LBB", kernel.asm["asm"]) if b.count("vfcvt.x.f.v") == 2)
    order = re.findall(r"\t(vle32|vse32|vfcvt\.x\.f)", loop)
    assert order[:2] == ["vle32", "vle32"] and order[-2:] == ["vse32", "vse32"] and order.count("vfcvt.x.f") == 2


@pytest.mark.parametrize("kernel,given", [(strided_kernel, {"BLOCK": 256})])
def test_lanes_that_are_loaded_one_by_one_stay_few(kernel, given):
    assert "registers" not in compiled(kernel, "spacemit-x60", **given).asm["plan"]


def test_a_polynomial_with_many_coefficients_is_narrower():
    text = compiled(tanh_kernel, "spacemit-x60", BLOCK=256).asm["plan"]
    assert "in 2 registers" in text and "side by side" not in text


@pytest.mark.parametrize("name", ["softmax_tile", "softmax_columns", "layer_norm", "sort"])
def test_nothing_is_spilled(name):
    r = report.of(code.of_compiled(planned(name, "spacemit-x60"), goals.get("spacemit-x60")))
    assert not r.failures(verdict.requirements("spills=0, calls=0"))


def test_twice_as_wide_is_spilled(monkeypatch):
    """So what is counted is not less than what is needed by half."""
    width = pressure.width
    monkeypatch.setattr(pressure, "width", lambda target, needs: 2 * width(target, needs) if needs.heavy else width(target, needs))
    monkeypatch.setattr(pressure, "chunks", lambda target, needs, registers: 2)
    row = targets.get("spacemit-x60")
    made = lower_module(reader.parse((FOLDER / "softmax_tile.ttir").read_text()), row)
    assert re.search(r"\tvs[248]r\.v", compile_ir(made.text, row)[1])
