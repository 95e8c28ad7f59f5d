"""What a loop carries and adds up from memory that is contiguous along another dimension than its last one: kept in that order, and right whatever else reads it."""

import pytest
import torch
import triton
import triton.language as tl
from triport.bench import check

M, N = 64, 8


@triton.jit
def columns_kernel(x_ptr, out_ptr, n, rows, M: tl.constexpr, N: tl.constexpr):
    """As Inductor sums columns up."""
    at = tl.program_id(0) * M + tl.arange(0, M)[:, None]
    acc = tl.full((M, N), 0, out_ptr.dtype.element_ty)
    for start in tl.range(0, rows, N):
        row = start + tl.arange(0, N)[None, :]
        inside = (row < rows) & (at < n)
        x = tl.load(x_ptr + at + n * row, inside, other=0)
        acc = tl.where(inside, acc + x.to(acc.dtype), acc)
    tl.store(out_ptr + at, tl.sum(acc, 1)[:, None], at < n)


@triton.jit
def turned_inside_kernel(x_ptr, out_ptr, rows, S: tl.constexpr):
    """Each trip reads the transpose of what it writes: no element's place may be written before all are read."""
    i, j = tl.arange(0, S)[:, None], tl.arange(0, S)[None, :]
    acc = tl.load(out_ptr + i * S + j)
    for trip in range(rows):
        acc = tl.trans(acc) + tl.load(x_ptr + trip * S * S + i + S * j)
    tl.store(out_ptr + i * S + j, acc)


@triton.jit
def backwards_kernel(x_ptr, out_ptr, rows, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr):
    """Each trip reads backwards what it writes."""
    i, j = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    acc = tl.load(out_ptr + i * N + j)
    for trip in range(rows):
        acc = tl.flip(acc, AXIS) + tl.load(x_ptr + trip * M * N + i + M * j)
    tl.store(out_ptr + i * N + j, acc)


@triton.jit
def swapped_kernel(x_ptr, out_ptr, rows, M: tl.constexpr, N: tl.constexpr):
    """Two that change places."""
    i, j = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    a = tl.load(out_ptr + i * N + j)
    b = a * 2
    for trip in range(rows):
        x = tl.load(x_ptr + trip * M * N + i + M * j)
        a, b = b + x, a - x
    tl.store(out_ptr + i * N + j, a)
    tl.store(out_ptr + M * N + i * N + j, b)


@triton.jit
def read_ways_kernel(x_ptr, out_ptr, rows, M: tl.constexpr, N: tl.constexpr):
    """Read in the loop by sums along both dimensions, in another shape, backwards, by halves and by a gather."""
    i, j = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    acc = tl.zeros((M, N), tl.float32)
    total = tl.zeros((M // 2, 2 * N), tl.float32)
    for trip in range(rows):
        x = tl.load(x_ptr + trip * M * N + i + M * j)
        acc += x + tl.sum(acc, 1)[:, None] * 0.25 - tl.max(acc, 0)[None, :] * 0.5 + tl.flip(acc, 1) * 0.125
        total += tl.reshape(acc, (M // 2, 2 * N))
        low, high = tl.split(tl.reshape(acc, (M, N // 2, 2)))
        acc += tl.gather(acc, (j + i * 0 + 1) % N, 1) * 0.1 + tl.reshape(tl.join(high, low), (M, N)) * 0.2
    tl.store(out_ptr + i * N + j, acc)
    tl.store(out_ptr + M * N + tl.arange(0, M // 2)[:, None] * 2 * N + tl.arange(0, 2 * N)[None, :], total)


@triton.jit
def product_kernel(x_ptr, a_ptr, b_ptr, out_ptr, rows, M: tl.constexpr, N: tl.constexpr):
    """A product adds to it; then a sum from memory does."""
    i, j, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, 16)
    a, b = tl.load(a_ptr + i[:, None] * 16 + k[None, :]), tl.load(b_ptr + k[:, None] * N + j[None, :])
    acc = tl.zeros((M, N), tl.float32)
    for trip in range(rows):
        acc = tl.dot(a, b, acc, input_precision="ieee") + tl.load(x_ptr + trip * M * N + i[:, None] + M * j[None, :])
    tl.store(out_ptr + i[:, None] * N + j[None, :], acc)


@triton.jit
def nested_kernel(x_ptr, out_ptr, outer, inner, M: tl.constexpr, N: tl.constexpr):
    """A loop in a loop, and one that goes on while something holds."""
    i, j = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    total = tl.zeros((M, N), tl.float32)
    for o in range(outer):
        acc = tl.full((M, N), 1.0, tl.float32)
        ptrs = x_ptr + o * inner * M * N + i + M * j
        for _ in range(inner):
            acc = acc * 0.5 + tl.load(ptrs)
            ptrs += M * N
        total += acc
    left = outer
    while left > 0:
        total = total * 0.5 + tl.load(x_ptr + (left - 1) * M * N + i + M * j)
        left -= 1
    tl.store(out_ptr + i * N + j, total)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.float16])
@pytest.mark.parametrize("m,width", [(64, 8), (64, 64), (32, 128), (256, 1), (16, 3), (128, 2)])
@pytest.mark.parametrize("rows,n", [(100, 200), (1, 64), (64, 63)])
def test_sums_of_columns(rows, n, m, width, dtype, seed):
    width = triton.next_power_of_2(width)
    x = (torch.randn(rows, n, generator=torch.Generator().manual_seed(seed)) * 50).to(dtype)
    out, whole = check.guarded((n,), torch.float32 if dtype is torch.float16 else dtype)
    columns_kernel[(triton.cdiv(n, m),)](x, out, n, rows, M=m, N=width)
    want = x.double().sum(0)
    bound = 0 if dtype is torch.int32 else 1e-5 if dtype.itemsize < 8 else 1e-13
    assert ((out.double() - want).abs() <= bound * x.double().abs().sum(0)).all() and check.guards_hold(whole)


def test_its_own_transpose(seed):
    x, start = torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(seed)), torch.randn(32, 32, generator=torch.Generator().manual_seed(seed + 1))
    out, want = start.clone(), start.clone()
    turned_inside_kernel[(1,)](x, out, 3, S=32)
    for part in x:
        want = want.T + part.T
    assert torch.equal(out, want)


@pytest.mark.parametrize("axis", [0, 1])
def test_itself_backwards(axis, seed):
    x, start = torch.randn(3, N, M, generator=torch.Generator().manual_seed(seed)), torch.randn(M, N, generator=torch.Generator().manual_seed(seed + 1))
    out, want = start.clone(), start.clone()
    backwards_kernel[(1,)](x, out, 3, M=M, N=N, AXIS=axis)
    for part in x:
        want = want.flip(axis) + part.T
    assert torch.equal(out, want)


def test_two_change_places(seed):
    x = torch.randn(5, N, M, generator=torch.Generator().manual_seed(seed))
    out = torch.randn(2, M, N, generator=torch.Generator().manual_seed(seed + 1))
    a, b = out[0].clone(), out[0] * 2
    swapped_kernel[(1,)](x, out, 5, M=M, N=N)
    for part in x:
        a, b = b + part.T, a - part.T
    assert torch.equal(out[0], a) and torch.equal(out[1], b)


def test_however_it_is_read(seed):
    x, out = torch.randn(4, N, M, generator=torch.Generator().manual_seed(seed)), torch.zeros(2, M, N)
    read_ways_kernel[(1,)](x, out, 4, M=M, N=N)
    acc, total = torch.zeros(M, N, dtype=torch.float64), torch.zeros(M // 2, 2 * N, dtype=torch.float64)
    for part in x.double():
        acc = acc + part.T + acc.sum(1, keepdim=True) * 0.25 - acc.amax(0, keepdim=True) * 0.5 + acc.flip(1) * 0.125
        total = total + acc.reshape(M // 2, 2 * N)
        pairs = acc.reshape(M, N // 2, 2).flip(2).reshape(M, N)
        acc = acc + acc.roll(-1, 1) * 0.1 + pairs * 0.2
    assert check.error(out[0], acc) < 1e-5 and check.error(out[1].reshape(M // 2, 2 * N), total) < 1e-5


def test_a_product_adds_to_it(seed):
    g = torch.Generator().manual_seed(seed)
    x, a, b, out = torch.randn(3, N * 2, M, generator=g), torch.randn(M, 16, generator=g), torch.randn(16, N * 2, generator=g), torch.empty(M, N * 2)
    product_kernel[(1,)](x, a, b, out, 3, M=M, N=N * 2)
    assert check.error(out, 3 * (a.double() @ b.double()) + x.double().sum(0).T) < 1e-6


def test_loops_in_loops(seed):
    x, out = torch.randn(6, N, M, generator=torch.Generator().manual_seed(seed)), torch.empty(M, N)
    nested_kernel[(1,)](x, out, 2, 3, M=M, N=N)
    total, parts = torch.zeros(M, N, dtype=torch.float64), iter(x.double())
    for _ in range(2):
        acc = torch.ones(M, N, dtype=torch.float64)
        for _ in range(3):
            acc = acc * 0.5 + next(parts).T
        total += acc
    for left in (2, 1):
        total = total * 0.5 + x[left - 1].double().T
    assert check.error(out, total) < 1e-6
