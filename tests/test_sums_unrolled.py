"""Loops that add up tensors element by element take several trips at once (`compiler._trips_together`): accumulators go through memory once for all."""

import re

import pytest
import torch
import triton
import triton.language as tl
from test_decisions import compiled
from triport.bench import check
from triport.ops.accuracy import error


@triton.jit
def sums_kernel(x_ptr, out_ptr, rows, columns, BLOCK: tl.constexpr):
    """out = sums of x's columns, row by row."""
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for r in range(rows):
        acc += tl.load(x_ptr + r * columns + cols, mask=cols < columns, other=0).to(tl.float32)
    tl.store(out_ptr + cols, acc, mask=cols < columns)


@triton.jit
def moments_kernel(x_ptr, out_ptr, first, last, step, columns, BLOCK: tl.constexpr):
    """Sums and largest of every step-th row of x from `first` up to `last`, as Inductor masks them."""
    cols = tl.arange(0, BLOCK)
    sums = tl.full((BLOCK,), 0, tl.float32)
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    for r in tl.range(first, last, step):
        there = (r < last) & (cols < columns)
        x = tl.load(x_ptr + (cols + columns * r), there, eviction_policy="evict_first", other=0)
        sums = tl.where(there, sums + x, sums)
        largest = tl.where(there, tl.maximum(largest, x), largest)
    tl.store(out_ptr + cols, sums, mask=cols < columns)
    tl.store(out_ptr + columns + cols, largest, mask=cols < columns)


@triton.jit
def running_kernel(x_ptr, out_ptr, rows, columns, BLOCK: tl.constexpr):
    """Running sums, which are stored in each trip."""
    cols = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for r in range(rows):
        acc += tl.load(x_ptr + r * columns + cols, mask=cols < columns, other=0)
        tl.store(out_ptr + r * columns + cols, acc, mask=cols < columns)


@triton.jit
def exponentials_kernel(x_ptr, out_ptr, rows, columns, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for r in range(rows):
        acc += tl.exp(tl.load(x_ptr + r * columns + cols, mask=cols < columns, other=0))
    tl.store(out_ptr + cols, acc, mask=cols < columns)


@triton.jit
def asked_kernel(x_ptr, out_ptr, rows, columns, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for r in tl.range(0, rows, loop_unroll_factor=2):
        acc += tl.load(x_ptr + r * columns + cols, mask=cols < columns, other=0)
    tl.store(out_ptr + cols, acc, mask=cols < columns)


@pytest.mark.parametrize("kernel,loads", [(sums_kernel, 5), (moments_kernel, 5), (running_kernel, 1), (exponentials_kernel, 1), (asked_kernel, 3)])
def test_which_take_several_trips(kernel, loads):
    """Four and one for the rest; not where something is stored in between, nor where exponentials take far longer than accumulators, nor otherwise than somebody asks for."""
    made = compiled(kernel, "x86-64-v4", BLOCK=256)
    assert len(re.findall(r"= tt\.load", made.asm["ttir"])) == loads
    into = re.findall(r"for, .*\n((?:    .*\n)*)", made.asm["plan"])
    assert len(into) == 1 + (loads > 1) and all(body.count("because carried on") <= 2 for body in into), "accumulators are written once a trip"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows,columns", [(0, 5), (1, 1), (3, 300), (4, 256), (7, 257), (130, 70), (1001, 33)])
def test_sums_of_columns(rows, columns, dtype, seed):
    torch.manual_seed(seed)
    x = torch.randn(rows, columns).to(dtype)
    out, whole = check.guarded((columns,), torch.float32)
    sums_kernel[(triton.cdiv(columns, 256),)](x, out, rows, columns, BLOCK=256)
    want = torch.zeros(columns)
    for line in x.float():
        want += line
    assert torch.equal(out, want) and check.guards_hold(whole), "added up in order"


@pytest.mark.parametrize("first,last,step", [(0, 9, 1), (5, 5, 1), (7, 2, 3), (1, 30, 4), (0, 29, 7), (3, 12, 1)])
def test_every_range(first, last, step, seed):
    """Also those that make no trip."""
    torch.manual_seed(seed)
    x = torch.randn(30, 100)
    out, whole = check.guarded((2, 100), torch.float32)
    moments_kernel[(1,)](x, out, first, last, step, 100, BLOCK=128)
    lines = x[first:last:step] if last > first else x[:0]
    assert error(out[0] + 1, lines.sum(0) + 1) < 1e-5 and check.guards_hold(whole)
    assert torch.equal(out[1], lines.amax(0) if len(lines) else torch.full((100,), float("-inf")))
