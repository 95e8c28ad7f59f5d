"""What masks keep out of a reduction: taken in once where more of it changes nothing, and as often as it is there where it does."""

import itertools

import pytest
import torch
import triton
import triton.language as tl
from triport.backends.cpu.emit.module import lower_module
from triport.backends.cpu.llvm import targets
from triport.backends.cpu.ttir import reader


@triton.jit
def reduced(x, HOW: tl.constexpr):
    if HOW == "sum":
        y = tl.sum(x, 0)
    elif HOW == "max":
        y = tl.max(x, 0)
    elif HOW == "min":
        y = tl.min(x, 0)
    else:
        y = tl.xor_sum(x, 0)
    return y


@triton.jit
def padded_rows(x_ptr, out_ptr, n, OTHER: tl.constexpr, HOW: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=OTHER)
    if HOW != "exp":
        y = reduced(x, HOW)
    else:  # a softmax's, which keeps its exponentials
        e = tl.exp(x - tl.max(x, 0))
        y = tl.sum(e, 0)
        tl.store(x_ptr + row * n + cols, e / y, mask=cols < n)
    tl.store(out_ptr + row, y)


@triton.jit
def padded_columns(x_ptr, out_ptr, n, m, OTHER: tl.constexpr, HOW: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    rows, cols = tl.arange(0, ROWS), tl.arange(0, COLS)
    x = tl.load(x_ptr + rows[:, None] * m + cols[None, :], mask=(rows < n)[:, None] & (cols < m)[None, :], other=OTHER)
    if HOW != "exp":
        y = reduced(x, HOW)
    else:
        e = tl.exp(x - tl.max(x, 0)[None, :])
        y = tl.sum(e, 0)
        tl.store(x_ptr + rows[:, None] * m + cols[None, :], e / y[None, :], mask=(rows < n)[:, None] & (cols < m)[None, :])
    tl.store(out_ptr + cols, y)


HOW = {"sum": lambda x: x.sum(0), "max": lambda x: x.amax(0), "min": lambda x: x.amin(0), "exp": lambda x: torch.exp(x - x.amax(0)).sum(0)}


ROUNDING = 64 * 2.0**-24  # of a float32 sum of 64 terms, whatever their order, of the sum of their sizes (Higham, Accuracy and Stability, 4.2)


def same(got: torch.Tensor, want: torch.Tensor, room: torch.Tensor | float):
    """`got` is at most `room` from `want` (float64), and the same where that is infinite or no number."""
    finite = want.isfinite()
    torch.testing.assert_close(got.double()[~finite], want[~finite], rtol=0, atol=0, equal_nan=True)
    assert ((got.double() - want).abs() <= room)[finite].all(), (got, want)


def reference(how: str, full: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | float]:
    """What is to come of the columns of `full`, in float64, and how far from it float32 may be."""
    want = HOW[how](full.double())
    return want, {"sum": ROUNDING * full.double().abs().sum(0), "exp": 1e-5 * want.abs()}.get(how, 0.0)


@pytest.mark.parametrize("how,other", [*itertools.product(("sum", "max", "min"), (0.0, -0.0, 1.5, float("inf"), -float("inf"), 1e30)), ("exp", -float("inf")), ("exp", 0.5)])
def test_numbers_outside(how, other, seed):
    """As if what a mask keeps out were there, once for each place; a row of nothing else, too."""
    torch.manual_seed(seed)
    for n in (0, 1, 5, 16, 37, 64):
        x = torch.randn(n, 3)
        full = torch.cat([x, torch.full((64 - n, 3), other)])
        given, out = x.T.contiguous(), torch.empty(3)
        padded_rows[(3,)](given, out, n, other, how, 64)
        same(out, *reference(how, full))
        if how == "exp":
            same(given, torch.softmax(full.double(), 0)[:n].T, 1e-6)
        for m in (3, 20):
            given = torch.cat([x, torch.randn(n, m - 3)], 1)
            kept = given.clone()
            out = torch.empty(32)
            padded_columns[(1,)](given, out, n, m, other, how, 64, 32)
            full = torch.full((64, 32), other)
            full[:n, :m] = kept
            same(out, *reference(how, full))
            if how == "exp":
                same(given, torch.softmax(full.double(), 0)[:n, :m], 1e-6)


@pytest.mark.parametrize("how", ["sum", "max", "min", "xor"])
@pytest.mark.parametrize("other", [0, 1, -7, 2**31 - 1])
def test_integers_outside(how, other, seed):
    torch.manual_seed(seed)
    for n in (0, 3, 16, 33):
        x = torch.randint(-1000, 1000, (n, 5), dtype=torch.int32)
        full = torch.cat([x, torch.full((64 - n, 5), other, dtype=torch.int32)])
        if how == "xor":
            want = torch.zeros(5, dtype=torch.int32)
            for line in full:
                want ^= line
        else:
            want = HOW[how](full).to(torch.int32)
        out = torch.empty(5, dtype=torch.int32)
        padded_rows[(5,)](x.T.contiguous(), out, n, other, how, 64)
        assert torch.equal(out, want)
        out = torch.empty(8, dtype=torch.int32)
        padded_columns[(1,)](x, out, n, 5, other, how, 64, 8)
        assert torch.equal(out[:5], want)


def written(how: str, other) -> str:
    """LLVM IR of `padded_rows`."""
    x = torch.zeros(5)
    compiled = padded_rows.warmup(x, x, 5, other, how, 64, grid=(1,))
    return lower_module(reader.parse(compiled.asm["ttir"]), targets.native()).text


def test_loops_are_left():
    """Of a sum, once adding does nothing; of a maximum, behind its first turn; an exclusive or goes on."""
    assert "forever" in written("sum", 0.0) and "forever" in written("max", 1.0) and "forever" in written("exp", -float("inf"))
    x = torch.zeros(5, dtype=torch.int32)
    compiled = padded_rows.warmup(x, x, 5, 0, "xor", 64, grid=(1,))
    assert "forever" not in lower_module(reader.parse(compiled.asm["ttir"]), targets.native()).text
