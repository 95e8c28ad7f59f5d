"""Neighbours that change places: sorts of keys and what goes with them, top-k, flips, in every form that they are written in, whatever reads the result."""

import dataclasses
import platform
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings, strategies as st
from spine_boards import BOARDS, on
from triport.backends.cpu.llvm import targets
from triport.backends.spine import bundle, runner, user
from triport.bench import check
from triport.checking import CheckError
from values import random

FLIP, FIRST, SECOND = 0, 1, 2


@triton.jit
def partner(x, S: tl.constexpr):
    """Each element's neighbour S further on or back, as Triton's sort takes it."""
    y = tl.reshape(x, (x.numel // (2 * S), 2, S))
    bits = y.to(tl.core.get_int_dtype(y.dtype.primitive_bitwidth, True), bitcast=True)
    return tl.reshape((bits ^ tl.xor_sum(bits, 1, True)).to(y.dtype, bitcast=True), x.shape)


@triton.jit
def side(x, S: tl.constexpr, SECOND: tl.constexpr):
    """The first, or the second, of each two that are S apart, in both places, as Inductor's sort takes them."""
    shape: tl.constexpr = (x.numel // (2 * S), 2, S)
    second = tl.arange(0, 2)[None, :, None]
    one = tl.reshape(x, shape) * (second if SECOND else 1 - second).to(x.dtype)
    return tl.reshape(tl.broadcast_to(tl.sum(one, 1).to(x.dtype)[:, None, :], shape), x.shape)


@triton.jit
def exchanged(x, WHAT: tl.constexpr, S: tl.constexpr):
    return partner(x, S) if WHAT == 0 else side(x, S, WHAT == 2)


def reference(x: np.ndarray, what: int, s: int) -> np.ndarray:
    y = x.reshape(-1, 2, s)
    return (y[:, ::-1] if what == FLIP else np.repeat(y[:, what - 1:what], 2, 1)).reshape(x.shape)


# --- any network, read in any way ------------------------------------------------------------------------------------------


@triton.jit
def network_kernel(x_ptr, out_ptr, row_ptr, M: tl.constexpr, N: tl.constexpr, STEPS: tl.constexpr, READ: tl.constexpr):
    """A chain of exchanges with arithmetic between them, and a second one beside it that depends on it; then one of the ways to read it."""
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + at)
    other = x * 3
    for n in tl.static_range(len(STEPS) // 2):
        y = exchanged(x, STEPS[2 * n], STEPS[2 * n + 1])
        z = exchanged(other, STEPS[2 * n], STEPS[2 * n + 1])
        take = (x > y) != ((at & (5 * n + 1)) == 0)
        x, other = tl.where(take, y + n, x), tl.where(take, z, other ^ y)
    if READ == "plain":
        tl.store(out_ptr + at, x)
    elif READ == "in place":
        tl.store(x_ptr + at, x)
        tl.store(out_ptr + at, tl.load(x_ptr + at))
    elif READ == "moved":  # what it reads lies under what it writes
        tl.store(x_ptr + 1 + at, x)
        tl.store(out_ptr + at, x)
    elif READ == "turned":
        tl.store(out_ptr + tl.arange(0, N)[:, None] * M + tl.arange(0, M)[None, :], tl.trans(x) + 1)
    elif READ == "both":
        tl.store(out_ptr + at, x + tl.reshape(tl.trans(other), (M, N)))
    elif READ == "masked":
        tl.store(out_ptr + at, x, mask=(at % 3 != 0) & (at < M * N - 2))
    else:
        tl.store(out_ptr + at, x - tl.sum(x, 1)[:, None] + tl.max(x, 0)[None, :] + tl.cumsum(x, 1))
    tl.store(row_ptr + tl.arange(0, M), tl.sum(other, 1))


def network(x: np.ndarray, steps: tuple) -> tuple[np.ndarray, np.ndarray]:
    at, other = np.arange(x.size, dtype=np.int32).reshape(x.shape), x * np.asarray(3, x.dtype)
    for n, (what, s) in enumerate(zip(steps[::2], steps[1::2])):
        y, z = reference(x, what, s), reference(other, what, s)
        take = (x > y) != ((at & (5 * n + 1)) == 0)
        x, other = np.where(take, y + np.asarray(n, x.dtype), x), np.where(take, z, other ^ y)
    return x, other


READS = ("plain", "in place", "moved", "turned", "both", "masked", "sums")


@settings(max_examples=40, deadline=None)
@given(m=st.sampled_from([1, 2, 4, 16]), n=st.sampled_from([1, 2, 8, 32, 256]), read=st.sampled_from(READS), name=st.sampled_from(["int32", "int16", "int64", "int8"]),
       steps=st.lists(st.tuples(st.sampled_from([FLIP, FIRST, SECOND]), st.integers(0, 11)), min_size=1, max_size=9), seed=st.integers(0, 1 << 30))
def test_any_network(m, n, read, name, steps, seed):
    if m * n < 2:
        m = 2
    bits = (m * n).bit_length() - 1
    steps = tuple(v for what, bit in steps for v in (what, 1 << bit % bits))
    x = random(name, m * n, seed, small=True)
    want, other = network(x.numpy().reshape(m, n), steps)
    room, out, rows = torch.cat([x, torch.full((1,), 77, dtype=x.dtype)]), torch.zeros(m * n + 1, dtype=x.dtype), torch.zeros(m, dtype=torch.int64)
    out[-1] = 77
    with np.errstate(over="ignore"):
        network_kernel[(1,)](room, out, rows, m, n, steps, read)
        wide = np.int32 if x.dtype.itemsize < 4 else want.dtype
        if read in ("plain", "in place", "moved"):
            expected = want
        elif read == "turned":
            expected = want.T + np.asarray(1, want.dtype)
        elif read == "both":
            expected = want + other.T.reshape(m, n)
        elif read == "masked":
            at = np.arange(m * n).reshape(m, n)
            expected = np.where((at % 3 != 0) & (at < m * n - 2), want, 0)
        else:
            w = want.astype(wide)
            expected = (w - w.sum(1, dtype=wide)[:, None] + want.max(0)[None, :] + w.cumsum(1, dtype=wide)).astype(want.dtype)
        total = other.astype(wide).sum(1, dtype=wide)
    assert out[:-1].tolist() == np.ascontiguousarray(expected).reshape(-1).tolist()
    assert rows.tolist() == total.tolist() and out[-1] == 77
    assert room[-1] == (want.reshape(-1)[-1] if read == "moved" else 77)


@triton.jit
def rows_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, WHAT: tl.constexpr):
    """Roots that go row by row, and exchanges of what they compute, or of something else between them."""
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + at)
    if WHAT == "between":
        top = tl.max(x, 1)[:, None]
        other = partner(x, N // 2)
        tl.store(out_ptr + at, tl.exp(x - top) / tl.sum(tl.exp(other - top), 1)[:, None] + partner(other, 1))
    else:
        e = tl.exp(x - tl.max(x, 1)[:, None])
        y = e / tl.sum(e, 1)[:, None]
        if WHAT == "sorted":
            y = tl.sort(y)
        elif WHAT == "turned":
            y = tl.flip(y, 0)
        elif WHAT == "added":
            y += 2 * partner(y, N // 2) + partner(y, 1)
        tl.store(out_ptr + at, y)


@pytest.mark.parametrize("what", ["between", "sorted", "turned", "added"])
@pytest.mark.parametrize("m,n", [(2, 16), (16, 64), (4, 512), (8, 2)])
def test_beside_roots_that_go_row_by_row(m, n, what, seed):
    x = torch.randn(m, n, generator=torch.Generator().manual_seed(seed))
    out, d = torch.zeros(m, n), x.double()
    rows_kernel[(1,)](x, out, m, n, what)
    p, swap = torch.softmax(d, 1), lambda v, s: torch.from_numpy(reference(v.numpy(), FLIP, s).copy())
    want = {"sorted": p.sort(1).values, "turned": p.flip(0), "added": p + 2 * swap(p, n // 2) + swap(p, 1),
            "between": torch.exp(d - d.amax(1, True)) / torch.exp(swap(d, n // 2) - d.amax(1, True)).sum(1, True) + swap(swap(d, n // 2), 1)}[what]
    assert check.error(out, want) < 2e-6


@triton.jit
def sums_kernel(x_ptr, out_ptr, N: tl.constexpr, W: tl.constexpr, AXIS: tl.constexpr):
    """One of two, in more places than two: no exchange."""
    if AXIS == 1:
        x = tl.load(x_ptr + tl.arange(0, N)[:, None] * 2 + tl.arange(0, 2)[None, :])
        one = tl.sum(x * tl.arange(0, 2)[None, :], 1)[:, None]
    else:
        x = tl.load(x_ptr + tl.arange(0, 2)[:, None] * W + tl.arange(0, W)[None, :])
        one = tl.sum(x * (1 - tl.arange(0, 2)[:, None]), 0)[None, :]
    at = tl.arange(0, N)[:, None] * W + tl.arange(0, W)[None, :]
    tl.store(out_ptr + at, at + one)


@pytest.mark.parametrize("n,w", [(1, 8), (2, 2), (2, 8), (16, 2), (16, 4), (4, 64)])
@pytest.mark.parametrize("axis", [0, 1])
def test_one_of_two_in_more_places(n, w, axis):
    x, out = torch.arange(100, 100 + (2 * n if axis else 2 * w), dtype=torch.int32), torch.zeros(n, w, dtype=torch.int32)
    sums_kernel[(1,)](x, out, n, w, axis)
    one = x.reshape(n, 2)[:, 1:] if axis else x.reshape(2, w)[:1]
    assert torch.equal(out, torch.arange(n * w, dtype=torch.int32).reshape(n, w) + one)


@triton.jit
def gather_kernel(i_ptr, x_ptr, out_ptr, N: tl.constexpr, D: tl.constexpr):
    i, d = tl.arange(0, N), tl.arange(0, D)
    s = tl.sort(tl.load(i_ptr + i))
    tl.store(out_ptr + i[:, None] * D + d[None, :], tl.load(x_ptr + s[:, None] * D + d[None, :]))


def test_rows_in_sorted_order():
    """What is sorted is a number for each row here: lanes go along the rows, as they would without the sort."""
    i, x, out = torch.randperm(64).to(torch.int32), torch.randn(64, 256), torch.zeros(64, 256)
    plan = gather_kernel[(1,)](i, x, out, 64, 256).asm["plan"]
    assert torch.equal(out, x)
    assert "64x256 f32 at" not in plan and "store x_ptr[]" in plan, "rows went through memory, to be turned"


@triton.jit
def pairs_of_rows_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    """Each two rows, element by element: the smaller ones first."""
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    h = tl.reshape(tl.load(x_ptr + at), (M // 2, 2, N))
    y = h ^ tl.xor_sum(h, 1, True)
    second = tl.arange(0, 2)[None, :, None] == 1
    tl.store(out_ptr + at, tl.reshape(tl.where((h > y) != second, y, h), (M, N)))


@pytest.mark.parametrize("m,n", [(2, 4), (8, 64), (4, 512)])
def test_pairs_of_rows(m, n, seed):
    """Which of both an element is depends on another dimension than lanes go over."""
    x, out = random("int32", m * n, seed, small=True).reshape(m, n), torch.zeros(m, n, dtype=torch.int32)
    pairs_of_rows_kernel[(1,)](x, out, m, n)
    assert torch.equal(out, x.reshape(m // 2, 2, n).sort(1).values.reshape(m, n))


# --- in the shape of a hypercube, with what makes two neighbours one -----------------------------------------------------------


@triton.jit
def cube_kernel(x_ptr, out_ptr, LOG: tl.constexpr, LEFT: tl.constexpr, STEPS: tl.constexpr):
    h = tl.reshape(tl.load(x_ptr + tl.arange(0, 1 << LOG)), [2] * LOG)
    for n in tl.static_range(len(STEPS) // 2):
        if STEPS[2 * n] == 0:
            y = h ^ tl.xor_sum(h, STEPS[2 * n + 1], True)
            h = tl.where(h > y, y + n, h)
        elif STEPS[2 * n] == 1:
            h = tl.max(h, STEPS[2 * n + 1])
        elif STEPS[2 * n] == 2:
            h = tl.min(h, STEPS[2 * n + 1])
        elif STEPS[2 * n] == 3:
            h = tl.sum(h, STEPS[2 * n + 1])
        else:
            h = tl.xor_sum(h, STEPS[2 * n + 1])
    tl.store(out_ptr + tl.arange(0, 1 << LEFT), tl.reshape(h, [1 << LEFT]))


JOIN = {1: np.max, 2: np.min, 3: lambda h, axis: h.sum(axis, dtype=h.dtype), 4: np.bitwise_xor.reduce}


@settings(max_examples=25, deadline=None)
@given(log=st.integers(3, 10), name=st.sampled_from(["int32", "int64"]), steps=st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 2, 3, 4]), st.integers(0, 9)), min_size=1, max_size=12),
       seed=st.integers(0, 1 << 30))
def test_any_cube(log, name, steps, seed):
    x = random(name, 1 << log, seed)
    h, done = x.numpy().reshape([2] * log), []
    for n, (what, axis) in enumerate(steps):
        if what and h.ndim == 1:
            what = 0
        axis %= h.ndim
        done += [what, axis]
        with np.errstate(over="ignore"):
            y = np.flip(h, axis)
            h = JOIN[what](h, axis=axis) if what else np.where(h > y, y + np.asarray(n, h.dtype), h)
    out = torch.full((h.size + 1,), 77, dtype=x.dtype)
    cube_kernel[(1,)](x, out, log, h.ndim, tuple(done))
    assert out.tolist() == [*h.reshape(-1).tolist(), 77]


# --- sorts of keys and what goes with them -----------------------------------------------------------------------------------


@triton.jit
def _sorted(x, i, at, DESCENDING: tl.constexpr, BY_SIDES: tl.constexpr):
    """A bitonic sort of the last dimension's keys and numbers; at: which element of it each one is."""
    N: tl.constexpr = x.shape[len(x.shape) - 1]
    LOG: tl.constexpr = tl.standard._log2(N)
    for stage in tl.static_range(1, LOG + 1):
        for step in tl.static_range(stage):
            if BY_SIDES:
                lx, rx = side(x, 1 << (stage - 1 - step), False), side(x, 1 << (stage - 1 - step), True)
                li, ri = side(i, 1 << (stage - 1 - step), False), side(i, 1 << (stage - 1 - step), True)
                swap = (lx > rx) != ((at & (1 << stage) != 0) != DESCENDING)
                x, i = x ^ tl.where(swap, lx ^ rx, 0), i ^ tl.where(swap, li ^ ri, 0)
            else:
                y, j = partner(x, 1 << (stage - 1 - step)), partner(i, 1 << (stage - 1 - step))
                falls = ((at & (1 << stage) != 0) != (at & (1 << (stage - 1 - step)) != 0)) != DESCENDING
                swap = ((x > y) != falls) & (x != y)
                x, i = tl.where(swap, y, x), tl.where(swap, j, i)
    return x, i


@triton.jit
def pairs_kernel(x_ptr, out_ptr, i_ptr, n, M: tl.constexpr, N: tl.constexpr, DESCENDING: tl.constexpr, BY_SIDES: tl.constexpr):
    row, column = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    at, mask = row * n + column, (column < n) & (row >= 0)
    x = tl.load(x_ptr + at, mask=mask, other=-9999 if DESCENDING else 9999)
    x, i = _sorted(x, tl.broadcast_to(column, (M, N)), column, DESCENDING, BY_SIDES)
    tl.store(out_ptr + at, x, mask=mask)
    tl.store(i_ptr + at, i, mask=mask)


@pytest.fixture(params=["native", "x86-64-v3", "x86-64-v2"])
def x86(request, monkeypatch):
    """This machine's vectors, and shorter ones."""
    if request.param != "native":
        if platform.machine() != "x86_64" or request.param == "x86-64-v3" and targets.native().isa not in ("AVX2", "AVX-512"):
            pytest.skip(f"this machine's CPU is no {request.param}")
        row = dataclasses.replace(targets.get(request.param), name="native")
        monkeypatch.setattr(targets, "native", lambda: row)
    for kernel in (pairs_kernel, standard_kernel):
        monkeypatch.setitem(globals(), kernel.fn.__name__, triton.JITFunction(kernel.fn))  # nothing that is compiled already


@triton.jit
def standard_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, WHAT: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + at)
    if WHAT == "sort":
        tl.store(out_ptr + at, tl.sort(x, descending=True))
    elif WHAT == "flip":
        tl.store(out_ptr + at, tl.flip(x, 1))
    elif WHAT == "flip rows":
        tl.store(out_ptr + at, tl.flip(x, 0))
    else:
        best = tl.topk(x, K) if WHAT == "topk" else tl.standard.sort_impl(x, K, 1, False)
        tl.store(out_ptr + tl.arange(0, M)[:, None] * K + tl.arange(0, K)[None, :], best)


@pytest.mark.parametrize("m,n", [(1, 2), (3, 5), (1, 64), (2, 200), (16, 7), (1, 1000)])
@pytest.mark.parametrize("by_sides", [False, True], ids=["partners", "sides"])
def test_pairs(m, n, by_sides, x86, seed):
    descending = bool((m + n) % 2)
    x = torch.stack([torch.randperm(n, generator=torch.Generator().manual_seed(seed + r)) - n // 2 for r in range(m)]).to(torch.int32)
    padded, rows = 1 << (n - 1).bit_length(), 1 << (m - 1).bit_length()
    out, i, given = (torch.zeros(rows, n, dtype=torch.int32) for _ in range(3))
    given[:m] = x
    pairs_kernel[(1,)](given, out, i, n, rows, padded, descending, by_sides)
    assert torch.equal(out[:m], x.sort(-1, descending=descending).values)
    assert torch.equal(given[:m].gather(1, i[:m].long()), out[:m])  # each number is that of its key
    assert all(row.unique().numel() == n for row in i[:m])


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float64", "int8", "int16", "int64"])
@pytest.mark.parametrize("m,n,k", [(1, 512, 16), (8, 64, 4), (32, 4, 2), (2, 2, 1)])
def test_standard(name, m, n, k, x86, seed):
    x = random(name, m * n, seed, small=True).reshape(m, n)
    want = x.double().sort(-1, descending=True).values
    for what, expected in (("sort", want), ("topk", want[:, :k]), ("least", want.flip(1)[:, :k]), ("flip", x.flip(1)), ("flip rows", x.flip(0))):
        out = torch.zeros(expected.shape, dtype=x.dtype)
        standard_kernel[(1,)](x, out, m, n, k, what)
        assert torch.equal(out.double(), expected.double()), what


# --- where control flow is ---------------------------------------------------------------------------------------------------


@triton.jit
def carried_kernel(x_ptr, out_ptr, i_ptr, blocks, N: tl.constexpr):
    """The N largest of many blocks and where they are: sorts in branches, merges in a loop, as samplers do it."""
    at = tl.arange(0, N)
    best, where = tl.full((N,), -1000, tl.int32), tl.full((N,), -1, tl.int32)
    for n in range(blocks):
        x = tl.load(x_ptr + n * N + at)
        i = n * N + at
        if n % 2 == 0:
            x, i = _sorted(x, i, at, False, False)
        else:
            x, i = _sorted(x, i, at, True, True)
            x, i = tl.flip(x, 0), tl.flip(i, 0)
        larger = x > best  # one falls where the other rises: the larger ones of both are the N largest
        best, where = tl.where(larger, x, best), tl.where(larger, i, where)
        best, where = _sorted(best, where, at, True, False)
    tl.store(out_ptr + at, best)
    tl.store(i_ptr + at, where)


@pytest.mark.parametrize("n,blocks", [(8, 0), (16, 5), (128, 4)])
def test_a_loop_carries_what_branches_sort(n, blocks, seed):
    x = (torch.randperm(max(1, n * blocks), generator=torch.Generator().manual_seed(seed)) - 50).to(torch.int32)
    out, i = torch.zeros(n, dtype=torch.int32), torch.zeros(n, dtype=torch.int32)
    carried_kernel[(1,)](x, out, i, blocks, n)
    if not blocks:
        assert (out == -1000).all() and (i == -1).all()
    else:
        want = x.sort(descending=True)
        assert torch.equal(out, want.values[:n]) and torch.equal(i.long(), want.indices[:n])


@triton.jit
def product_kernel(a_ptr, b_ptr, out_ptr, trips, N: tl.constexpr, S: tl.constexpr, BOTH: tl.constexpr):
    """Each product adds to neighbours of what the one before it made, which it must not have written over by then."""
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    a, b = tl.load(a_ptr + at), tl.load(b_ptr + at)
    acc = tl.load(out_ptr + at)
    for _ in range(trips):
        if BOTH:
            acc = tl.dot(partner(acc, N), b, acc, input_precision="ieee")
        acc = tl.dot(a, b, partner(acc, S), input_precision="ieee")
    tl.store(out_ptr + at, acc)


@pytest.mark.parametrize("n,s", [(16, 1), (64, 1), (64, 32), (64, 64), (64, 1024)])
@pytest.mark.parametrize("both", [False, True], ids=["sum", "factor and sum"])
def test_products_of_neighbours(n, s, both, seed):
    g = torch.Generator().manual_seed(seed)
    a, b, out = (torch.randn(n, n, generator=g) / n for _ in range(3))
    want, da, db = out.double(), a.double(), b.double()
    swap = lambda v, s: torch.from_numpy(reference(v.numpy(), FLIP, s).copy())  # noqa: E731
    for _ in range(3):
        want = swap(want, n) @ db + want if both else want
        want = da @ db + swap(want, s)
    product_kernel[(1,)](a, b, out, 3, n, s, both)
    assert check.error(out, want) < 2e-6


@triton.jit
def kept_kernel(x_ptr, out_ptr, n, N: tl.constexpr, S: tl.constexpr):
    """What a masked store keeps for another one, which reads neighbours that no mask of either lets through."""
    at = tl.arange(0, N)
    y = tl.exp(tl.load(x_ptr + at)) / 3
    tl.store(out_ptr + at, y, mask=at < n)
    tl.store(out_ptr + N + at, partner(y, S), mask=at < n)


@triton.jit
def loop_kernel(x_ptr, out_ptr, trips, N: tl.constexpr, S: tl.constexpr):
    """A trip's values are neighbours of the one's before it."""
    at = tl.arange(0, N)
    y = tl.load(x_ptr + at)
    z = y + 1
    for _ in range(trips):
        y, z = partner(y, S) * 1.5, partner(z, S) + y
    tl.store(out_ptr + at, y)
    tl.store(out_ptr + N + at, z)


@pytest.mark.parametrize("s", [1, 16, 64, 128, 256])
def test_what_is_kept_for_neighbours(s, seed):
    x, out, n = torch.randn(512, generator=torch.Generator().manual_seed(seed)), torch.zeros(2, 512), 100
    swap = lambda v: torch.from_numpy(reference(v.numpy(), FLIP, s).copy())  # noqa: E731
    kept_kernel[(1,)](x, out, n, 512, s)
    y, inside = x.double().exp() / 3, torch.arange(512) < n
    assert check.error(out, torch.stack([y * inside, swap(y) * inside])) < 1e-6
    loop_kernel[(1,)](x, out, 3, 512, s)
    y, z = x.double(), x.double() + 1
    for _ in range(3):
        y, z = swap(y) * 1.5, swap(z) + y
    assert check.error(out, torch.stack([y, z])) < 1e-6


@triton.jit
def chain_kernel(x_ptr, out_ptr, N: tl.constexpr, STEPS: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at)
    for n in tl.static_range(len(STEPS) // 2):
        x = exchanged(x, STEPS[2 * n], STEPS[2 * n + 1])
    tl.store(out_ptr + at, x)


@settings(max_examples=25, deadline=None)
@given(steps=st.lists(st.tuples(st.sampled_from([FLIP, FIRST, SECOND]), st.integers(0, 8)), min_size=2, max_size=6))
def test_any_chain(steps):
    """Exchanges of exchanges."""
    x, steps = torch.arange(512, dtype=torch.int32), tuple(v for what, bit in steps for v in (what, 1 << bit))
    want, out = x.numpy(), torch.zeros_like(x)
    for what, s in zip(steps[::2], steps[1::2]):
        want = reference(want, what, s)
    chain_kernel[(1,)](x, out, 512, steps)
    assert out.tolist() == want.tolist()


@triton.jit
def special_kernel(x_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out_ptr + at, partner(tl.load(x_ptr + at), 4))
    tl.store(out_ptr + N + at, tl.flip(tl.load(x_ptr + at), 0))


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float64"])
def test_bits_are_kept(name, seed):
    """NaN with what is in them, zeros of both signs: exchanges move bits."""
    x = random(name, 64, seed)
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    x[7:9] = torch.tensor([-0.0, float("nan")], dtype=x.dtype)
    y = x.view(bits)
    y[9] = y[8] | 5
    out = torch.zeros(2, 64, dtype=x.dtype)
    special_kernel[(1,)](x, out, 64)
    assert torch.equal(out[0].view(bits), y.reshape(-1, 2, 4).flip(1).reshape(-1)) and torch.equal(out[1].view(bits), y.flip(0))


@triton.jit
def floats_kernel(x_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out_ptr + at, side(tl.load(x_ptr + at), 2, False))


def test_sums_of_floats_stay_sums():
    """x * 1 + y * 0 of floats is no choice: y may be infinite."""
    x = torch.arange(16.0)
    x[2] = float("inf")
    out = torch.zeros(16)
    floats_kernel[(1,)](x, out, 16)
    assert torch.equal(out.isnan(), torch.tensor([True, False, True, False] + [False] * 12)) and out[4:].tolist() == [4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13]


# --- checked kernels -----------------------------------------------------------------------------------------------------------


@triton.jit
def infinite_kernel(x_ptr, out_ptr, N: tl.constexpr, WHAT: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.exp(tl.load(x_ptr + at))
    y = tl.flip(x, 0) if WHAT == "flip" else tl.sort(x) if WHAT == "sort" else partner(x, 1) + partner(x, N // 2)
    tl.store(out_ptr + at, y)


@pytest.mark.parametrize("what", ["flip", "sort", "partners"])
@pytest.mark.parametrize("options", [{"check": "nan"}, {"check": "all", "debugger": True}], ids=["nan", "all, for a debugger"])
def test_what_is_exchanged_is_looked_at(what, options):
    """The bits of a float are an integer's where neighbours change places: what made an infinity of a number is found all the same."""
    x, out = torch.zeros(64), torch.zeros(64)
    infinite_kernel[(1,)](x, out, 64, what, **options)
    assert torch.equal(out, torch.full((64,), 2.0 if what == "partners" else 1.0))
    x[5] = 1000
    with pytest.raises(CheckError, match="math.exp") as e:
        infinite_kernel[(1,)](x, out, 64, what, **options)
    assert "lane 5 of a block of 64" in str(e.value)


# --- elsewhere ---------------------------------------------------------------------------------------------------------------


def ranked(x):
    """Rows in falling order, and which element each one is."""
    out, i = torch.empty_like(x), torch.empty(x.shape, dtype=torch.int32)
    pairs_kernel[(1,)](x, out, i, x.shape[1], 4, 128, True, False)
    return out, i


def reversed_tops(x):
    """The four largest of each 32, the smallest first."""
    out = torch.empty(16, 4)
    tops_kernel[(1,)](x, out)
    return out


@triton.jit
def tops_kernel(x_ptr, out_ptr):
    row = tl.arange(0, 16)[:, None]
    tl.store(out_ptr + row * 4 + tl.arange(0, 4)[None, :], tl.flip(tl.topk(tl.load(x_ptr + row * 32 + tl.arange(0, 32)[None, :]), 4), 1))


@pytest.mark.parametrize("board,row", [on(board, row) for board, rows in BOARDS.items() for row in rows])
def test_on_boards(board, row, seed):
    g = torch.Generator().manual_seed(seed)
    calls = [c for f, example in ((ranked, "x=int32[4,100]"), (reversed_tops, "x=fp32[16,32]")) for c in user.calls(f, Path(__file__), sys.modules[__name__], [example])]
    made, there = bundle.make(calls, targets.get(row), cases=False), runner.get(board)
    x = torch.stack([torch.randperm(100, generator=g) for _ in range(4)]).to(torch.int32)
    (out, i), _ = there.call(made, made.manifest["functions"][0]["name"], [x])
    want = x.sort(-1, descending=True)
    assert torch.equal(out, want.values) and torch.equal(i.long(), want.indices)
    y = torch.randn(16, 32, generator=g)
    (tops,), _ = there.call(made, made.manifest["functions"][1]["name"], [y])
    assert torch.equal(tops, y.sort(-1, descending=True).values[:, :4].flip(1))
