"""Maxima and minima as Inductor's helpers write them, `where((a > b) | (a != a), a, b)`: what they choose, bit for bit, and that a reduction by them is taken in several parts at once."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from test_decisions import compiled
from triport.backends.cpu.ttir import extremes


@triton.jit
def _max(a, b):
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def _min(a, b):
    return tl.where((a != a) | (a < b), a, b)


@triton.jit
def _of_b(a, b):
    """The second one's NaN chooses the first: no maximum."""
    return tl.where((a > b) | (b != b), a, b)


@triton.jit
def _at_least(a, b):
    return tl.where((a >= b) | (a != a), a, b)


@triton.jit
def rows_kernel(x_ptr, out_ptr, m, n, HOW: tl.constexpr, AXIS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    r, c = tl.arange(0, BM), tl.arange(0, BN)
    low = float("inf") if HOW == "min" else float("-inf")
    x = tl.load(x_ptr + r[:, None] * n + c[None, :], mask=(r[:, None] < m) & (c[None, :] < n), other=low)
    y = tl.reduce(x, AXIS, _min if HOW == "min" else _max)
    if AXIS == 1:
        tl.store(out_ptr + r, y, mask=r < m)
    else:
        tl.store(out_ptr + c, y, mask=c < n)


@triton.jit
def each_kernel(a_ptr, b_ptr, out_ptr, kept_ptr, n, HOW: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a, b = tl.load(a_ptr + i, mask=i < n), tl.load(b_ptr + i, mask=i < n)
    y = _max(a, b) if HOW == "max" else _min(a, b) if HOW == "min" else _of_b(a, b) if HOW == "of b" else _at_least(a, b)
    tl.store(out_ptr + i, y, mask=i < n)
    tl.store(kept_ptr + i, (a > b).to(tl.int8), mask=i < n)  # a comparison that somebody else asks for, too


SPECIAL = torch.tensor([float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1.5, -2.5, 1e-45])


@pytest.mark.parametrize("how", ["max", "min", "of b", "at least"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_of_two(dtype, how):
    a, b = (x.flatten().to(dtype) for x in torch.meshgrid(SPECIAL, SPECIAL, indexing="ij"))
    out, kept = torch.zeros_like(a), torch.zeros(64, dtype=torch.int8)
    each_kernel[(1,)](a, b, out, kept, 64, HOW=how, BLOCK=64)
    x, y = a.numpy(), b.numpy()
    with np.errstate(invalid="ignore"):
        first = {"max": (x > y) | (x != x), "min": (x < y) | (x != x), "of b": (x > y) | (y != y), "at least": (x >= y) | (x != x)}[how]
        greater = x > y
    want = np.where(first, x, y)
    assert np.array_equal(out.numpy(), want, equal_nan=True) and np.array_equal(np.signbit(out.numpy()) & (want == 0), np.signbit(want) & (want == 0))
    assert np.array_equal(kept.numpy(), greater.astype(np.int8))


@pytest.mark.parametrize("how", ["max", "min"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("m,n,block", [(5, 1000, (8, 1024)), (64, 64, (64, 64)), (1, 3, (1, 4)), (33, 7, (64, 8)), (16, 250, (16, 256)), (2, 1, (2, 2))])
def test_of_rows_and_columns(m, n, block, dtype, axis, how, seed):
    make = torch.Generator().manual_seed(seed)
    x = torch.randn(m, n, generator=make).to(dtype)
    for row, (value, at) in enumerate(zip(SPECIAL[:5].tolist() * 2, torch.randint(0, n, (10,), generator=make).tolist())):
        x[row % m, at] = value
    x[-1] = float("inf") if how == "min" else float("-inf")  # nothing else in a row
    out = torch.full((max(m, n) + 8,), 7.0, dtype=dtype)
    rows_kernel[(1,)](x, out, m, n, HOW=how, AXIS=axis, BM=block[0], BN=block[1])
    want = (torch.amin if how == "min" else torch.amax)(x, axis)  # NaN where one is
    assert torch.equal(out[:len(want)].nan_to_num(nan=1e4), want.nan_to_num(nan=1e4)) and (out[len(want):] == 7).all()


@pytest.mark.parametrize("target", ["x86-64-v4", "x86-64-v3", "neoverse-v2", "spacemit-x60"])
@pytest.mark.parametrize("how", ["max", "min"])
def test_a_reduction_goes_by_parts(how, target, monkeypatch, tmp_cache):
    given = dict(HOW=how, AXIS=1, BM=8, BN=1024)
    assert "chunks side by side" in compiled(rows_kernel, target, **given).asm["plan"]
    monkeypatch.setattr(extremes, "settle", lambda func: None)
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_cache / "other"))
    assert "chunks side by side" not in compiled(rows_kernel, target, **given).asm["plan"]
