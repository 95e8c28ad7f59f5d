"""Panels of B that one program of a thread leaves to the next: where that is so, and that nothing else is found there."""

import contextlib
import importlib

import pytest
import torch
import triton
import triton.language as tl
from test_decisions import compiled
from triport import backends, ops
from triport.ops import tuning


tiles = importlib.import_module("triport.ops.tiles")
BY_THE_CPU = True  # plain kernels, beside a GPU, too
KEPT = "unless the program before left the same there"
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float64: 1e-13}


@triton.jit
def walk_kernel(a_ptr, b_ptr, c_ptr, m, n, k, stride_k, stride_n, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, HOW: tl.constexpr):
    """c = a @ b; programs go down `ROWS` tiles of a column of tiles, then to the next. HOW: "" that; "steps": K in pieces; "some": tiles of odd rows alone; "into b": something
    is stored into b; "count": tiles are counted by an atomic operation; "two": twice the product, by two; "volatile": b is
    read anew whatever was read before."""
    pid = tl.program_id(0)
    rows = pid % ROWS * M + tl.arange(0, M)
    cols = pid // ROWS * N + tl.arange(0, N)
    acc = tl.zeros((M, N), tl.float64 if a_ptr.dtype.element_ty == tl.float64 else tl.float32)
    if HOW != "some" or pid % 2 == 1:
        for start in range(0, k, K):
            at = start + tl.arange(0, K)
            a = tl.load(a_ptr + rows[:, None] * k + at[None, :], mask=(rows[:, None] < m) & (at[None, :] < k), other=0.0)
            b = tl.load(b_ptr + at[:, None] * stride_k + cols[None, :] * stride_n, mask=(at[:, None] < k) & (cols[None, :] < n), other=0.0, volatile=HOW == "volatile")
            acc = tl.dot(a, b, acc, input_precision="ieee", out_dtype=acc.dtype)
            if HOW == "two":
                acc = tl.dot(a + 0, b, acc, input_precision="ieee", out_dtype=acc.dtype)
    tl.store(c_ptr + rows[:, None] * n + cols[None, :], acc.to(c_ptr.dtype.element_ty), mask=(rows[:, None] < m) & (cols[None, :] < n))
    if HOW == "into b":
        tl.store(b_ptr + pid * 0, 1.0)
    if HOW == "count":
        tl.atomic_add(c_ptr + m * n, 1.0)


@contextlib.contextmanager
def one_thread():
    """One thread takes an eighth of a launch's programs at once, and what one of these kept is there for the next alone."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def run(m, n, k, dtype, seed, how="", tile=(64, 32, 64), turned=False):
    """(what was stored, what should have been in float64, the plan)."""
    make = torch.Generator().manual_seed(seed)
    a, b = torch.randn(m, k, generator=make).to(dtype), torch.randn(k, n, generator=make).to(dtype)
    if turned:
        b = b.T.contiguous().T
    c = torch.full((m + 2, n), 7.0).to(dtype if dtype == torch.float64 else torch.float32)
    height = triton.cdiv(m, tile[0])
    with one_thread():
        kernel = walk_kernel[(height * triton.cdiv(n, tile[1]),)](a, b, c, m, n, k, b.stride(0), b.stride(1), M=tile[0], N=tile[1], K=tile[2], ROWS=height, HOW=how)
    assert (c[m + 1] == 7).all()
    return c[:m].double(), a.double() @ b.double(), kernel.asm["plan"]


def assert_right(got, want, dtype):
    assert got.isfinite().all()
    assert (got - want).abs().max() <= TOLERANCE[dtype] * max(want.abs().max().item(), 1e-30)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("m,n,k", [(2560, 96, 64), (2500, 100, 50), (1500, 33, 64), (900, 70, 200), (2563, 31, 1)])
def test_each_column_of_tiles_has_its_own(m, n, k, turned, dtype, seed):
    got, want, plan = run(m, n, k, dtype, seed, turned=turned)
    assert_right(got, want, dtype)
    assert KEPT in plan


@pytest.mark.parametrize("how,kept", [("", True), ("some", True), ("into b", False), ("count", False), ("two", False), ("volatile", False)])
def test_who_keeps_them(how, kept, seed):
    """No kernel that may change what they were made of, or whose other products want the cache."""
    plan = compiled(walk_kernel, "x86-64-v4", M=64, N=32, K=64, ROWS=4, HOW=how).asm["plan"]
    assert (KEPT in plan) == kept
    got, want, plan = run(200, 70, 64, torch.float32, seed, how)
    assert (KEPT in plan) == kept
    if how == "some":
        height = triton.cdiv(200, 64)
        for column in range(3):  # a program's number is odd, not its row's
            these = (torch.arange(200) // 64 + column * height) % 2 == 1
            assert_right(got[these, column * 32:column * 32 + 32], want[these, column * 32:column * 32 + 32], torch.float32)
            assert (got[~these, column * 32:column * 32 + 32] == 0).all()
    elif how != "into b":
        assert_right(got, want * (2 if how == "two" else 1), torch.float32)


@triton.jit
def other_ends_kernel(a_ptr, b_ptr, c_ptr, sizes_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, WRAPS: tl.constexpr):
    """Programs of one b, each of which has as many of its columns as it is told; WRAPS: these again and again."""
    pid = tl.program_id(0)
    rows, cols, ks = pid * M + tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    size = tl.load(sizes_ptr + pid)
    a = tl.load(a_ptr + rows[:, None] * K + ks[None, :])
    b = tl.load(b_ptr + ks[:, None] * N + (cols % size)[None, :]) if WRAPS else tl.load(b_ptr + ks[:, None] * N + cols[None, :], mask=cols[None, :] < size, other=0.0)
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], tl.dot(a, b, input_precision="ieee"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("wraps", [True, False])
@pytest.mark.parametrize("k", [64, 128])
def test_columns_that_are_others_of_the_same_place(k, wraps, dtype, seed):
    torch.manual_seed(seed)
    sizes = torch.randint(1, 65, (48,), dtype=torch.int32)
    sizes[::3] = 64  # which are all of them, and are kept
    sizes[1::3] = sizes[2::3]
    a, b, c = torch.randn(48 * 64, k).to(dtype), torch.randn(k, 64).to(dtype), torch.full((48 * 64, 64), 7.0).to(dtype if dtype == torch.float64 else torch.float32)
    with one_thread():
        made = other_ends_kernel[(48,)](a, b, c, sizes, M=64, N=64, K=k, WRAPS=wraps)
    assert KEPT in made.asm["plan"]
    for n, size in enumerate(sizes.tolist()):
        used = b.double()[:, torch.arange(64) % size] if wraps else b.double() * (torch.arange(64) < size)
        assert_right(c[64 * n:64 * n + 64].double(), a[64 * n:64 * n + 64].double() @ used, dtype)


def test_the_next_launch_makes_its_own(seed):
    """Other numbers at the same place."""
    make = torch.Generator().manual_seed(seed)
    a, b, c = torch.randn(2560, 64, generator=make), torch.randn(64, 32, generator=make), torch.empty(2560, 32)
    for _ in range(3):
        walk_kernel[(40,)](a, b, c, 2560, 32, 64, 32, 1, M=64, N=32, K=64, ROWS=40, HOW="")
        assert_right(c.double(), a.double() @ b.double(), torch.float32)
        b.mul_(-1.5)


def test_a_result_that_lies_over_b_keeps_nothing(seed):
    """The launch finds that the arguments overlap: each program reads b as those before it left it."""
    make = torch.Generator().manual_seed(seed)
    a, memory = torch.randn(256, 32, generator=make), torch.randn(256 * 32, generator=make)
    b, c = memory[:32 * 32].view(32, 32), memory.view(256, 32)
    first = a.double() @ b.double()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        walk_kernel[(4,)](a, b, c, 256, 32, 32, 32, 1, M=64, N=32, K=32, ROWS=4, HOW="")
    finally:
        torch.set_num_threads(threads)
    assert_right(c[:64].double(), first[:64], torch.float32)
    assert not torch.allclose(c[64:128].double(), first[64:128])  # made of the first program's result


@pytest.mark.parametrize("dtype,bk", [(torch.float32, 1024), (torch.bfloat16, 1024), (torch.float16, None), (torch.float64, None)])
def test_tiles_with_all_terms(dtype, bk, monkeypatch):
    """In dtypes whose rows are read where they lie, where a thread has several programs in a row, or terms are few."""
    monkeypatch.setattr(tiles, "second_cache", lambda: 1 << 20)
    monkeypatch.setattr(tiles, "by_tiles", lambda dtype: False)
    found = tiles.whole(dtype, 2048, 2048, 777, 1, 1.0)
    assert {t[2] for t in found} == ({bk} if bk else set())
    assert all(t[3] > 1.0 and t[1] * t[2] * dtype.itemsize <= 1 << 19 for t in found)
    assert not tiles.whole(dtype, 2048, 2048, 64, 1, 1.0) and not tiles.whole(dtype, 2048, 2048, 4096, 1, 1.0)
    assert bool(tiles.whole(dtype, 300, 300, 512, 2, 1.0)) == bool(bk) and not tiles.whole(dtype, 300, 300, 512, 3, 1.0)
    assert not tiles.whole(dtype, 64, 64, 777, 1, 1.0) and not tiles.whole(dtype, 512, 512, 777, 64, 1.0)
    monkeypatch.setattr(tiles, "second_cache", lambda: 1 << 22)
    for threads, terms, some in ((1, 4096, dtype is torch.float32), (2, 4096, False), (1, 4097, False)):
        assert bool(tiles.whole(dtype, 2048, 2048, terms, threads, 1.0)) == some
    monkeypatch.setattr(tiles, "by_tiles", lambda dtype: dtype == torch.bfloat16)
    assert not tiles.whole(torch.bfloat16, 300, 300, 512, 2, 1.0)
    monkeypatch.setattr(tiles, "second_cache", lambda: 1 << 14)
    assert not tiles.whole(dtype, 2048, 2048, 777, 1, 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("m,n,k", [(512, 640, 600), (300, 1000, 1025), (1111, 333, 777), (64, 2048, 1030)])
@pytest.mark.parametrize("op", ["matmul", "columns", "rows"])
def test_ops(op, m, n, k, dtype, seed):
    make = torch.Generator().manual_seed(seed)
    a, b = torch.randn(m, k, generator=make).to(dtype), (torch.randn(k, n, generator=make) / k**0.5).to(dtype)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so that tiles with all of K are among those to choose from
    try:
        if tuning.workers() == 1:
            assert tiles.whole_tile_for(a, b) is None or tiles.whole_tile_for(a, b)["BK"] >= k
        with backends.use("triton-cpu"):
            out = ops.matmul(a, b) if op == "matmul" else ops.matmul_softmax(a, b, 0 if op == "columns" else 1)
    finally:
        torch.set_num_threads(threads)
    want = a.double() @ b.double()
    want = want if op == "matmul" else torch.softmax(want, 0 if op == "columns" else 1)
    assert out.isfinite().all() and (out.double() - want).abs().max() <= (2e-5 if dtype == torch.float32 else 1e-2) * want.abs().max()
