"""Two pointers into one memory: what is loaded and what is stored meet as if each statement went over its whole block at once."""

import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def add_one_kernel(x_ptr, y_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y_ptr + i, tl.load(x_ptr + i) + 1)


TYPES = (torch.int8, torch.int16, torch.int32, torch.int64, torch.float32)


@pytest.mark.first(2)
@pytest.mark.parametrize("source", TYPES, ids=str)
def test_elements_of_two_widths(source, seed):
    """Equal addresses are harmless only where the elements are of one width: bytes decide."""
    n, g = 64, torch.Generator().manual_seed(seed)
    for to in TYPES:
        for at_x, at_y in ((0, 0), (0, 8), (8, 0), (64, 0), (0, 64), (8, 16), (0, 256), (256, 0)):
            memory = torch.randint(0, 3, (2048,), dtype=torch.uint8, generator=g)
            if source.is_floating_point:
                memory.zero_()
            piece = lambda m, at, t: m[at:at + n * t.itemsize].view(t)  # noqa: E731
            want, beside = memory.clone(), memory.numpy().copy()
            piece(want, at_y, to).copy_((piece(memory, at_x, source).clone() + 1).to(to))
            add_one_kernel[(1,)](piece(memory, at_x, source), piece(memory, at_y, to), N=n)
            assert torch.equal(memory, want), (to, at_x, at_y)
            # The same through arrays that share no storage object.
            x, y = (torch.from_numpy(beside[at:at + n * t.itemsize]).view(t) for at, t in ((at_x, source), (at_y, to)))
            add_one_kernel[(1,)](x, y, N=n)
            assert torch.equal(torch.from_numpy(beside), want), (to, at_x, at_y)


@triton.jit
def shifted_kernel(x_ptr, y_ptr, d, D: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y_ptr + d + D + i, tl.load(x_ptr + i) + 1)


@triton.jit
def shifted_rows_kernel(x_ptr, y_ptr, d, M: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    v = tl.load(x_ptr + i)
    v = v - tl.max(v, 1)[:, None]
    v = v + tl.sum(v, 1)[:, None]
    tl.store(y_ptr + d + i, v)


@pytest.mark.parametrize("d", [-70, -5, 0, 3, 16, 70])
def test_a_scalar_offset_on_one_side(d, seed):
    """One tensor passed twice: the addresses of the arguments are equal, those of the elements are not."""
    g = torch.Generator().manual_seed(seed)
    for n in (4, 64, 256):
        for run_time in (False, True):
            x = torch.randint(-99, 99, (1000,), dtype=torch.int32, generator=g)
            want = x.clone()
            want[100 + d:100 + d + n] = x[100:100 + n] + 1
            shifted_kernel[(1,)](x[100:], x[100:], d if run_time else 0, D=0 if run_time else d, N=n)
            assert torch.equal(x, want), (n, run_time)
    x = torch.randint(-9, 9, (1200,), dtype=torch.int32, generator=g)
    v = x[500:1012].view(16, 32)
    v = v - v.max(1, keepdim=True)[0]
    want = x.clone()
    want[500 + d:1012 + d] = (v + v.sum(1, keepdim=True).int()).flatten()
    shifted_rows_kernel[(1,)](x[500:], x[500:], d, M=16, N=32)
    assert torch.equal(x, want)


@triton.jit
def forgotten_kernel(x_ptr, y_ptr, z_ptr, c, N: tl.constexpr):
    i = tl.arange(0, N * N)
    x = tl.load(x_ptr + i)
    if c > 0:
        tl.store(y_ptr + i, tl.reshape(tl.trans(tl.reshape(x, (N, N))), (N * N,)))  # x is in memory from here to the end of the branch
        tl.store(y_ptr + N * N + i, x)
    tl.store(x_ptr + i, i)
    tl.store(z_ptr + i, x)


@pytest.mark.parametrize("c", [0, 2])
def test_a_load_that_a_branch_had_in_memory_happens_before_a_later_store(c, seed):
    x = torch.randint(0, 1000, (64,), generator=torch.Generator().manual_seed(seed))
    before, y, z = x.clone(), torch.zeros(128, dtype=torch.int64), torch.zeros_like(x)
    forgotten_kernel[(1,)](x, y, z, c, 8)
    assert torch.equal(z, before) and torch.equal(x, torch.arange(64))
    assert torch.equal(y, torch.cat([before.view(8, 8).T.reshape(-1), before]) * (c > 0))
