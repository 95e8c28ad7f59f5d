"""Blocks whose rows are shorter than a vector: lanes go along them where gathering would cost more (plan/order.py)."""

import re

import pytest
import torch
import triton
import triton.language as tl
from test_decisions import compiled
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

GUARD = 37


@triton.jit
def rows_kernel(x_ptr, out_ptr, m, width, line, out_line, R: tl.constexpr, C: tl.constexpr, WORK: tl.constexpr):
    """out = x, or a polynomial of it; rows of `width`, `line` and `out_line` apart."""
    r, c = tl.program_id(0) * R + tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
    inside = (r < m) & (c < width)
    x = tl.load(x_ptr + r * line + c, mask=inside)
    if WORK:
        x = tl.exp(x.to(tl.float32) * 0.01)
    tl.store(out_ptr + r * out_line + c, x, mask=inside)


@triton.jit
def columns_kernel(x_ptr, out_ptr, line, R: tl.constexpr, C: tl.constexpr):
    """The same of columns: neighbours lie along the long dimension."""
    r, c = tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
    tl.store(out_ptr + r + c * line, tl.load(x_ptr + r + c * line))


@pytest.mark.parametrize("columns,work,lanes", [(8, False, "8 lanes along 1"), (8, True, "8 lanes along 1"), (4, True, "4 lanes along 1"), (2, False, "2 lanes along 1"),
                                                (2, True, "16 lanes along 0"), (16, True, "16 lanes along 1")])
def test_lanes_lie_side_by_side_where_that_pays(columns, work, lanes):
    """A polynomial of two elements at a time takes longer than to gather sixteen."""
    plan = compiled(rows_kernel, "x86-64-v4", R=64, C=columns, WORK=work).asm["plan"]
    assert re.search(f"store .*{lanes}", plan), plan


@triton.jit
def exp_kernel(x_ptr, out_ptr, m, line, R: tl.constexpr, C: tl.constexpr):
    """exp of full rows."""
    r, c = tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
    tl.store(out_ptr + r * line + c, tl.exp(tl.load(x_ptr + r * line + c, mask=r < m).to(tl.float32)), mask=r < m)


@pytest.mark.parametrize("elements,lanes", [("fp32", "4 lanes along 1"), ("bf16", "16 lanes along 0")])
def test_rounding_counts_as_several_operations(elements, lanes):
    """exp of four numbers of bf16 takes longer than to gather sixteen, of fp32 it does not."""
    names, given = list(exp_kernel.arg_names), {"R": 64, "C": 4}
    signature = {n: "constexpr" if n in given else f"*{elements}" if n.endswith("_ptr") else "i32" for n in names}
    source = ASTSource(fn=exp_kernel, signature=signature, constexprs={(names.index(n),): v for n, v in given.items()})
    assert re.search(f"store .*{lanes}", triton.compile(source, target=GPUTarget("cpu", "x86-64-v4", 0)).asm["plan"])


def test_what_lies_along_the_long_dimension_goes_along_it():
    assert re.search("store .*16 lanes along 0", compiled(columns_kernel, "x86-64-v4", R=64, C=8).asm["plan"])


@pytest.mark.parametrize("dtype,work", [*((dtype, work) for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64) for work in (False, True)), (torch.int8, False), (torch.int64, False)])
def test_rows_of_every_width(dtype, work, seed):
    for columns in (1, 2, 4, 8):
        for width in {columns, max(1, columns - 1)}:
            for m in (1, 63, 130):
                x = (torch.randn(m, width + 3) * 50).to(dtype)[:, 1:width + 1]
                out = torch.full((m + 2, width + GUARD), 7, dtype=dtype)
                rows_kernel[(triton.cdiv(m, 64),)](x, out[1:], m, width, x.stride(0), out.stride(0), R=64, C=columns, WORK=work)
                want = (x.double() * 0.01).exp() if work else x
                got = out[1:-1, :width]
                assert torch.equal(got, want) if not work else torch.allclose(got.double(), want, rtol=8e-3 if dtype.itemsize == 2 else 1e-5)
                assert (out[1:, width:] == 7).all() and (out[0] == 7).all() and (out[-1] == 7).all()
