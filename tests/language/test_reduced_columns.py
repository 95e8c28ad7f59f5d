"""Reductions of tiles whose neighbours in memory lie along the other dimension, as Inductor writes sums over columns and softmax over channels: by vectors along memory, not gathered."""

import pytest
import torch
import triton
import triton.language as tl
from test_decisions import compiled
from test_quotients import gathers
from triport.backends.cpu.plan import quotients, rows


@triton.jit
def _greater(a, b):
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def three_kernel(x_ptr, sum_ptr, square_ptr, most_ptr, n, plane, R: tl.constexpr, RB: tl.constexpr, PLANE: tl.constexpr, XB: tl.constexpr):
    """Of R numbers that lie `plane` apart, for each of n: their sum, the sum of their squares, the greatest. PLANE: planes follow each other, as those of a batch's images; 0: there is one of n."""
    x = tl.program_id(0) * XB + tl.arange(0, XB)[:, None]
    r = tl.arange(0, RB)[None, :]
    there = (x < n) & (r < R)
    at = x % PLANE + PLANE * r + PLANE * R * (x // PLANE) if PLANE else x + plane * r
    v = tl.load(x_ptr + at, there, other=0.0).to(tl.float32)
    total = tl.sum(tl.where(there, v, 0), 1)[:, None]
    squares = tl.sum(tl.where(there, v * v, 0), 1)[:, None]
    most = tl.reduce(tl.where(there, v, float("-inf")), 1, _greater)[:, None]
    tl.store(sum_ptr + x, total, x < n)
    tl.store(square_ptr + x, squares, x < n)
    tl.store(most_ptr + x, most, x < n)


@triton.jit
def norm_kernel(x_ptr, out_ptr, n, R: tl.constexpr, PLANE: tl.constexpr, XB: tl.constexpr, TURN: tl.constexpr):
    """A layer norm over channels; TURN: stored with the channels last."""
    x = tl.program_id(0) * XB + tl.arange(0, XB)[:, None]
    r = tl.arange(0, R)[None, :]
    there = x < n
    at = x % PLANE + PLANE * r + PLANE * R * (x // PLANE)
    v = tl.load(x_ptr + at, there, other=0.0).to(tl.float32)
    mean = tl.sum(tl.where(there, v, 0), 1)[:, None] / R
    apart = v - mean
    variance = tl.sum(tl.where(there, apart * apart, 0), 1)[:, None] / R
    tl.store(out_ptr + (r + R * x if TURN else at), (apart * tl.rsqrt(variance + 1e-5)).to(out_ptr.dtype.element_ty), there)


def close(got, want, tolerance):
    assert got.isfinite().all() and ((got.double() - want).abs().max() / want.abs().max()).item() < tolerance


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n,r,rb,plane,xb", [(1000, 64, 64, 0, 32), (1024, 21, 32, 256, 8), (1568, 20, 32, 784, 64), (999, 7, 8, 0, 16), (300, 33, 64, 100, 128), (49 * 6, 16, 16, 49, 32), (5, 3, 4, 0, 2), (2048, 130, 256, 1024, 1)])
def test_several_of_one_load(n, r, rb, plane, xb, dtype, seed):
    torch.manual_seed(seed)
    size = plane or n
    x = torch.randn(n // size, r, size).to(dtype)
    out = torch.full((3, n + 16), 7.0)
    three_kernel[(triton.cdiv(n, xb),)](x, *out, n, n, R=r, RB=rb, PLANE=plane, XB=xb)
    wide = x.double()
    for got, want in zip(out, (wide.sum(1), (wide * wide).sum(1), wide.amax(1))):
        close(got[:n], want.flatten(), 3e-6)
        assert (got[n:] == 7).all()


@pytest.mark.parametrize("turn", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("images,r,plane,xb", [(2, 64, 784, 32), (3, 64, 256, 16), (1, 128, 1000, 8), (4, 32, 49, 64), (2, 16, 33, 32), (2, 64, 784, 128)])
def test_a_norm_over_channels(images, r, plane, xb, dtype, turn, seed):
    torch.manual_seed(seed)
    x, n = torch.randn(images, r, plane).to(dtype), images * plane
    out = torch.full((x.numel() + 64,), 7.0).to(dtype)
    norm_kernel[(triton.cdiv(n, xb),)](x, out, n, R=r, PLANE=plane, XB=xb, TURN=turn)
    want = torch.nn.functional.layer_norm(x.double().movedim(1, 2), (r,))
    got = out[:x.numel()].view(images, plane, r) if turn else out[:x.numel()].view(images, r, plane).movedim(1, 2)
    close(got, want, 1e-5 if dtype == torch.float32 else 1e-2)
    assert (out[x.numel():] == 7).all()


@pytest.mark.parametrize("target", ["x86-64-v4", "x86-64-v3", "neoverse-v2"])
@pytest.mark.parametrize("plane", [0, 784])
def test_none_is_gathered(plane, target, monkeypatch, tmp_cache):
    given = dict(plane=4096, R=64, RB=64, PLANE=plane, XB=32)
    kernel = compiled(three_kernel, target, **given)
    assert not gathers(kernel) and "\n  row by row" not in kernel.asm["plan"] and "transposed" not in kernel.asm["plan"]
    (tmp_cache / "other").mkdir()
    monkeypatch.setattr(rows, "_lies_in_columns", lambda *given: False)
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_cache / "other"))
    assert "\n  row by row" in compiled(three_kernel, target, **given).asm["plan"]


@pytest.mark.parametrize("target", ["x86-64-v4", "x86-64-v3"])
def test_quotients_that_stay_together_are_neighbours(target, monkeypatch, tmp_cache):
    """Of a tile with rows of 21 the vectors go along the planes."""
    given = dict(plane=1, R=21, RB=32, PLANE=4096, XB=32)
    plan = compiled(three_kernel, target, **given).asm["plan"]
    assert "lanes along 0" in plan and "transposed" not in plan and "lanes along 1" not in plan
    (tmp_cache / "other").mkdir()
    monkeypatch.setattr(quotients.Quotient, "pays", lambda self, target, lanes: False)
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_cache / "other"))
    assert "lanes along 1" in compiled(three_kernel, target, **given).asm["plan"]


@pytest.mark.parametrize("target", ["x86-64-v4", "x86-64-v3"])
def test_rows_are_read_from_where_they_were_turned_into(target):
    """And not gathered once more where they were loaded from."""
    kernel = compiled(norm_kernel, target, R=64, PLANE=784, XB=32, TURN=True)
    assert "transposed" in kernel.asm["plan"] and "\n  row by row" in kernel.asm["plan"] and not gathers(kernel)
