"""Operations that move elements: join, split, cat, interleave, reshape, permute, broadcast, map, constants."""

import pytest
import torch
import triton
import triton.language as tl
from values import random, torch_type

TYPES = ("int8", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool")


@triton.jit
def join_kernel(x_ptr, y_ptr, out_ptr, CAT: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    two = tl.arange(0, 2 * N)
    x, y = tl.load(x_ptr + i), tl.load(y_ptr + i)
    tl.store(out_ptr + two, tl.interleave(x, y))
    j = tl.join(x, y)
    tl.store(out_ptr + 2 * N + i[:, None] * 2 + tl.arange(0, 2)[None, :], j)
    a, b = tl.split(j)
    tl.store(out_ptr + 4 * N + i, b)
    tl.store(out_ptr + 5 * N + i, a)
    if CAT:
        tl.store(out_ptr + 6 * N + two, tl.cat(x, y))
    t = tl.permute(tl.reshape(x, (2, N // 2)), (1, 0))
    tl.store(out_ptr + 8 * N + i, tl.reshape(t, (N,)))
    c, d = tl.split(tl.reshape(tl.join(j, j), (N * 2, 2)))
    tl.store(out_ptr + 9 * N + two, c)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("n", [2, 8, 128])
def test_join_split_cat(name, n, seed):
    x, y = random(name, n, seed, small=True), random(name, n, seed + 1, small=True)
    out = torch.zeros(11 * n, dtype=torch_type(name))
    keeps_order = triton.__version__ >= "3.8"  # before, tl.cat promised no order
    join_kernel[(1,)](x, y, out, keeps_order, n)
    mixed = torch.stack([x, y], 1).flatten()
    doubled = torch.stack([mixed, mixed], 1).reshape(n, 2, 2).reshape(2 * n, 2)[:, 0]
    want = torch.cat([mixed, mixed, y, x, x, y, x.reshape(2, n // 2).t().flatten(), doubled])
    if not keeps_order:
        want[6 * n:8 * n] = 0
    torch.testing.assert_close(out, want, rtol=0, atol=0)


@triton.jit
def scalars_kernel(x_ptr, out_ptr):
    a, b = tl.load(x_ptr), tl.load(x_ptr + 1)
    j = tl.join(a, b)
    tl.store(out_ptr + tl.arange(0, 2), j)
    c, d = tl.split(j)
    tl.store(out_ptr + 2, d)
    tl.store(out_ptr + 3, c)


def test_join_and_split_scalars():
    x, out = torch.tensor([3.0, 4.0]), torch.zeros(4)
    scalars_kernel[(1,)](x, out)
    assert out.tolist() == [3, 4, 4, 3]


@triton.jit
def permute_kernel(x_ptr, out_ptr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, P: tl.constexpr, Q: tl.constexpr,
                   R: tl.constexpr):
    i = tl.arange(0, A * B * C)
    x = tl.reshape(tl.load(x_ptr + i), (A, B, C))
    tl.store(out_ptr + i, tl.ravel(tl.permute(x, (P, Q, R))))


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
@pytest.mark.parametrize("shape", [(2, 4, 8), (16, 1, 4), (4, 32, 2)])
def test_permute(order, shape, seed):
    x = random("float32", shape[0] * shape[1] * shape[2], seed, small=True)
    out = torch.zeros_like(x)
    permute_kernel[(1,)](x, out, *shape, *order)
    assert torch.equal(out, x.reshape(shape).permute(order).flatten())


@triton.jit
def add_and_multiply(a, b):
    return a + b, a * b


@triton.jit
def branch(a, b):
    if a > b:
        return a - b
    else:
        return b * 2


@triton.jit
def map_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(x_ptr + i), tl.load(y_ptr + i)
    a, b = tl.map_elementwise(add_and_multiply, x, y)
    tl.store(out_ptr + i, a)
    tl.store(out_ptr + N + i, b)
    tl.store(out_ptr + 2 * N + i, tl.map_elementwise(branch, x, y))


@pytest.mark.skipif(not hasattr(tl, "map_elementwise"), reason="this Triton has no map_elementwise")
def test_map_elementwise(seed):
    x, y = random("float32", 64, seed, small=True), random("float32", 64, seed + 1, small=True)
    out = torch.zeros(3, 64)
    map_kernel[(1,)](x, y, out, 64)
    assert torch.equal(out[0], x + y) and torch.equal(out[1], x * y)
    assert torch.equal(out[2], torch.where(x > y, x - y, y * 2))


@triton.jit
def every_rank(x_ptr, out_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N)).reshape(2, 2, 2, 2, 2, 2, 2, 2)
    x = tl.sum(tl.sum(x, 7), 6)
    x = tl.sum(tl.sum(tl.sum(x, 0), 0), 0)
    x = tl.sum(tl.max(x, 0), 0)
    tl.store(out_ptr + tl.arange(0, 2), x)


def test_many_dimensions(seed):
    """Reductions of two elements, one over another, are not written out as a tree of all elements."""
    x = random("float32", 256, seed, small=True)
    out = torch.zeros(2)
    every_rank[(1,)](x, out, 256)
    want = x.double().reshape([2] * 8).sum((6, 7)).sum((0, 1, 2)).amax(0).sum(0)
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-4)


@triton.jit
def whole_block(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + i, x - tl.max(x, 0))
    tl.store(out_ptr + N + i, tl.cumsum(x.to(tl.float64), 0))


def test_the_largest_block(seed):
    """Triton's own limit: 2^20 elements."""
    n = 1 << 20
    x = random("float32", n, seed, small=True)
    out = torch.zeros(2, n, dtype=torch.float64)
    whole_block[(1,)](x, out, n)
    assert torch.equal(out[0].float(), x - x.max())
    torch.testing.assert_close(out[1], x.double().cumsum(0), rtol=1e-9, atol=1e-6)


@triton.jit
def flips_in_a_loop_kernel(x_ptr, out_ptr, n):
    offs = tl.arange(0, 16)
    for k in range(0, n):
        x = tl.flip(tl.load(x_ptr + offs + k) * tl.load(x_ptr + k), 0)
        tl.store(out_ptr + offs + k * 16, x)
    for k in range(0, n):
        tl.store(x_ptr + offs, tl.load(out_ptr + offs) + k)


def test_what_a_loop_flips_is_not_loaded_behind_it(seed):
    """Half of how Triton spells an exchange of neighbours is not carried out: nobody waits for what it would read."""
    x, n = random("float32", 24, seed, small=True), 3
    out, given = torch.zeros(n, 16), x.clone()
    made = flips_in_a_loop_kernel[(1,)](x, out, n)
    assert torch.equal(out, torch.stack([(given[k:k + 16] * given[k]).flip(0) for k in range(n)]))
    assert torch.equal(x[:16], out[0] + n - 1) and torch.equal(x[16:], given[16:])
    assert "it is loaded before memory" not in made.asm["plan"], made.asm["plan"]
