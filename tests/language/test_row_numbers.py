"""Dear numbers of each row, made of the row's own reductions, in tiles of many rows: before they are computed, the reductions are."""

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def norm_kernel(x_ptr, out_ptr, rows_ptr, m, n, F: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """(x - mean) f(variance), and f(variance) of each row."""
    rows = (tl.program_id(0) * M + tl.arange(0, M))[:, None]
    cols = tl.arange(0, N)[None, :]
    mask = (rows < m) & (cols < n)
    x = tl.load(x_ptr + rows * n + cols, mask=mask, other=0.0)
    d = x - tl.sum(x, 1)[:, None] / n
    v = tl.sum(tl.where(mask, d * d, 0.0), 1)[:, None] / n + 1e-5
    if F == "rsqrt":
        f = libdevice.rsqrt(v)
    elif F == "pow":
        f = libdevice.pow(v, -0.5)
    elif F == "exp":
        f = tl.exp(-v) / (1 + tl.exp(-v * 0.5))
    elif F == "log":
        f = tl.log(v) * tl.log2(v + 1)
    else:
        f = tl.where(v > 1, tl.sin(v), tl.exp2(-v))
    tl.store(out_ptr + rows * n + cols, d * f, mask=mask)
    tl.store(rows_ptr + rows, f, mask=rows < m)


OF = {"rsqrt": lambda v: v.rsqrt(), "pow": lambda v: v**-0.5, "exp": lambda v: (-v).exp() / (1 + (-v * 0.5).exp()), "log": lambda v: v.log() * (v + 1).log2(),
      "where": lambda v: torch.where(v > 1, v.sin(), (-v).exp2())}


@pytest.mark.parametrize("fn", OF)
@pytest.mark.parametrize("rows", [1, 4, 16, 64])
@pytest.mark.parametrize("columns", [8, 32, 128])
def test_numbers_of_a_rows_own_reductions(fn, rows, columns, seed):
    x = torch.randn(90, columns - 1, generator=torch.Generator().manual_seed(seed))
    out, numbers = torch.full_like(x, float("nan")), torch.full((90,), float("nan"))
    norm_kernel[(triton.cdiv(90, rows),)](x, out, numbers, *x.shape, fn, rows, columns)
    x = x.double()
    d = x - x.mean(1, keepdim=True)
    f = OF[fn]((d * d).mean(1, keepdim=True) + 1e-5)
    torch.testing.assert_close(numbers.double(), f[:, 0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(out.double(), d * f, rtol=1e-5, atol=1e-6)


@triton.jit
def chain_kernel(x_ptr, out_ptr, m, n, M: tl.constexpr, N: tl.constexpr):
    """Sums of what is made of sums, with a dear number between each."""
    rows = (tl.program_id(0) * M + tl.arange(0, M))[:, None]
    cols = tl.arange(0, N)[None, :]
    mask = (rows < m) & (cols < n)
    x = tl.load(x_ptr + rows * n + cols, mask=mask, other=0.0)
    a = tl.exp(-tl.max(tl.where(mask, x, -9.0), 1) * 0.1) * tl.load(x_ptr + rows * n, mask=rows < m, other=0.0).reshape(M) * 0.3
    b = tl.sum(tl.where(mask, tl.exp(x * a[:, None]), 0.0), 1)
    c = tl.log(b) / tl.exp(a)
    e = tl.sum(tl.where(mask, x * c[:, None], 0.0), 1)
    tl.store(out_ptr + rows * n + cols, x * tl.exp(-libdevice.tanh(e) * c)[:, None], mask=mask)


@pytest.mark.parametrize("rows", [1, 4, 16, 64])
def test_a_chain_of_reductions(rows, seed):
    x = torch.randn(50, 30, generator=torch.Generator().manual_seed(seed))
    out = torch.full_like(x, float("nan"))
    chain_kernel[(triton.cdiv(50, rows),)](x, out, *x.shape, rows, 32)
    x = x.double()
    a = (-x.max(1).values * 0.1).exp() * x[:, 0] * 0.3
    c = (x * a[:, None]).exp().sum(1).log() / a.exp()
    e = (x * c[:, None]).sum(1)
    torch.testing.assert_close(out.double(), x * (-e.tanh() * c).exp()[:, None], rtol=1e-4, atol=1e-5)


@triton.jit
def trips_kernel(x_ptr, scale_ptr, out_ptr, m, n, M: tl.constexpr, N: tl.constexpr):
    """Each row times exp of its own number, summed up."""
    rows = tl.program_id(0) * M + tl.arange(0, M)
    by = tl.exp(tl.load(scale_ptr + rows, mask=rows < m, other=0.0))
    by = tl.where(by > 2, 2.0, by)
    acc = tl.zeros((M, N), tl.float32)
    for start in range(0, n, N):
        cols = start + tl.arange(0, N)
        acc += tl.load(x_ptr + rows[:, None] * n + cols[None, :], mask=(rows[:, None] < m) & (cols[None, :] < n), other=0.0) * by[:, None]
    tl.store(out_ptr + rows, tl.sum(acc, 1), mask=rows < m)


def test_what_a_loop_needs_in_every_trip_is_kept_once_for_each_row(seed):
    """Not in all columns, from which rows would be gathered."""
    x, scale = (torch.randn(*s, generator=torch.Generator().manual_seed(seed)) for s in ((90, 100), (90,)))
    out = torch.full((90,), float("nan"))
    compiled = trips_kernel[(2,)](x, scale, out, 90, 100, 64, 32)
    torch.testing.assert_close(out.double(), (x.double() * scale.double().exp().clamp(max=2)[:, None]).sum(1), rtol=1e-5, atol=1e-4)
    kept = [line for line in compiled.asm["plan"].split("\n") if "a loop needs it in every trip" in line]
    assert len(kept) == 1 and ("(64 f32" in kept[0] or "(64x1 f32" in kept[0]), kept


@triton.jit
def divide_kernel(x_ptr, y_ptr, by_rows_ptr, flat_ptr, m, n, M: tl.constexpr, N: tl.constexpr):
    """x / y with a divisor for each row, in tiles and element by element."""
    rows = (tl.program_id(0) * M + tl.arange(0, M))[:, None]
    cols = tl.arange(0, N)[None, :]
    mask = (rows < m) & (cols < n)
    tl.store(by_rows_ptr + rows * n + cols, tl.load(x_ptr + rows * n + cols, mask=mask) / tl.load(y_ptr + rows, mask=rows < m, other=1.0), mask=mask)
    i = tl.program_id(0) * M * N + tl.arange(0, M * N)
    tl.store(flat_ptr + i, tl.load(x_ptr + i, mask=i < m * n) / tl.load(y_ptr + i // n, mask=i < m * n, other=1.0), mask=i < m * n)


@pytest.mark.parametrize("rows", [1, 2, 32])
def test_a_quotient_has_the_same_bits_in_every_kernel(rows, seed):
    x, y = (torch.randn(*s, generator=torch.Generator().manual_seed(seed)) for s in ((90, 20), (90, 1)))
    by_rows, flat = torch.full_like(x, float("nan")), torch.full_like(x, float("nan"))
    divide_kernel[(triton.cdiv(90, rows),)](x, y, by_rows, flat, 90, 20, rows, 32)
    assert torch.equal(by_rows, x / y) and torch.equal(flat, x / y)


@triton.jit
def turned_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    """A store of what a row's sum is spread over, its elements in other places."""
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + at)
    y = x + tl.broadcast_to(tl.exp(tl.sum(x, 1) * 0.1)[:, None], [M, N])
    z = tl.broadcast_to(tl.exp(tl.sum(y, 1) * 0.01)[:, None], [M, N])
    tl.store(out_ptr + at, tl.trans(tl.reshape(z, [N, M])))


@pytest.mark.parametrize("m,n", [(32, 8), (4, 64), (16, 16)])
def test_elements_of_a_rows_numbers_change_places(m, n, seed):
    x = torch.randn(m, n, generator=torch.Generator().manual_seed(seed))
    out = torch.full_like(x, float("nan"))
    turned_kernel[(1,)](x, out, m, n)
    x = x.double()
    y = x + (x.sum(1) * 0.1).exp()[:, None]
    want = (y.sum(1) * 0.01).exp()[:, None].expand(m, n).reshape(n, m).T
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-6)
