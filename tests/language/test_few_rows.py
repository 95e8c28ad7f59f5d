"""Products of few rows, whose right factor is read where it lies, and edge tiles whose store lets nobody see what zeros were multiplied with."""

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings, strategies as st
from test_masks import fenced
from triport.backends.cpu.emit.module import lower_module
from triport.backends.cpu.llvm import compile as llvm, targets
from triport.backends.cpu.plan import show
from triport.backends.cpu.ttir import reader
from triport.bench import check


@triton.jit
def few_rows_kernel(a_ptr, b_ptr, c_ptr, m, n, k, sam, sak, sbk, sbn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SEEN: tl.constexpr):
    rows, cols, ks = tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    ACC: tl.constexpr = tl.float64 if a_ptr.dtype.element_ty == tl.float64 else tl.float32
    acc = tl.zeros((BM, BN), ACC)
    for start in range(0, k, BK):
        a = tl.load(a_ptr + rows[:, None] * sam + (start + ks)[None, :] * sak, mask=(rows < m)[:, None] & (ks < k - start)[None, :], other=0.0)
        b = tl.load(b_ptr + (start + ks)[:, None] * sbk + cols[None, :] * sbn, mask=(ks < k - start)[:, None] & (cols < n)[None, :], other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee", out_dtype=ACC)
    mask = (cols < n)[None, :] if SEEN else (rows < m)[:, None] & (cols < n)[None, :]  # SEEN: rows that are zeros are stored, too
    tl.store(c_ptr + rows[:, None] * n + cols[None, :], acc, mask=mask)


def at_the_end(rows: int, columns: int, pitch: int, dtype) -> torch.Tensor:
    """A matrix whose last element is the last one before a page that nobody may touch."""
    return fenced(torch.zeros((rows - 1) * pitch + columns, dtype=dtype), at_end=True).as_strided((rows, columns), (pitch, 1))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 32), st.integers(1, 150), st.integers(1, 300), st.integers(0, 70), st.sampled_from([32, 64, 128]), st.sampled_from([16, 64]),
       st.sampled_from([torch.float32, torch.float64, torch.bfloat16]), st.booleans(), st.integers(0, 2**31))
def test_any_size(m, k, n, more, bn, bk, dtype, turned, seed):
    """Nothing is read behind the right factor's last element, and nothing written round the result."""
    torch.manual_seed(seed)
    a = torch.randn(m, k).to(dtype) if not turned else torch.randn(k, m).to(dtype).t()
    b = at_the_end(k, n, n + more, dtype)
    b.copy_(torch.randn(k, n))
    out, whole = check.guarded((m, n), torch.float64 if dtype == torch.float64 else torch.float32)
    bm = max(8, triton.next_power_of_2(m))
    few_rows_kernel[(triton.cdiv(n, bn),)](a, b, out, m, n, k, *a.stride(), *b.stride(), BM=bm, BN=bn, BK=bk, SEEN=False)
    assert check.error(out, a.double() @ b.double()) < (1e-12 if dtype == torch.float64 else 1e-5) and check.guards_hold(whole)


@triton.jit
def fixed_rows_kernel(a_ptr, b_ptr, c_ptr, m, k, sam, sak, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STRIDE: tl.constexpr, MASK: tl.constexpr):
    """B's rows are a known number of elements apart, as Inductor's templates have them; MASK: columns are masked as well."""
    rows, cols, ks = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    acc = tl.zeros((M, N), tl.float32)
    for start in range(0, k, K):
        inside = start + ks < k
        a = tl.load(a_ptr + rows[:, None] * sam + (start + ks)[None, :] * sak, mask=(rows < m)[:, None] & inside[None, :], other=0.0).to(tl.float32)
        mask = inside[:, None] & (cols < N)[None, :] if MASK else inside[:, None]
        acc = tl.dot(a, tl.load(b_ptr + (start + ks)[:, None] * STRIDE + cols[None, :], mask=mask, other=0.0), acc, input_precision="ieee")
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc, mask=(rows < m)[:, None])


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("stride", [0, 7])
@pytest.mark.parametrize("a", ["in place", "turned", "converted"])
def test_rows_of_a_known_stride(a, stride, mask, seed):
    """What lies behind B's last row, to which a step of four terms would go on, is not read: NaN, or a page that nobody may touch."""
    torch.manual_seed(seed)
    for n in (8, 16, 32, 64):
        for k in (1, 3, 5, 7, 21, 30, 33, 64):
            m, height = 5, 8
            x = torch.randn(m, k)
            given = {"in place": x, "turned": x.T.contiguous().T, "converted": x.half()}[a]
            b = at_the_end(k, n, n + stride, torch.float32)
            b.copy_(torch.randn(k, n))
            out, whole = check.guarded((m, n), torch.float32)
            fixed_rows_kernel[(1,)](given, b, out, m, k, *given.stride(), M=height, N=n, K=16, STRIDE=n + stride, MASK=mask)
            assert check.error(out, given.double() @ b.double()) < 1e-5 and check.guards_hold(whole)
            longer = torch.full((k + 8, n + stride), float("nan"))
            longer[:k, :n] = b
            fixed_rows_kernel[(1,)](given, longer, out, m, k, *given.stride(), M=height, N=n, K=16, STRIDE=n + stride, MASK=mask)
            assert check.error(out, given.double() @ b.double()) < 1e-5


@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("where", ["a", "b", "both"])
@pytest.mark.parametrize("odd", [float("inf"), float("nan")])
@pytest.mark.parametrize("m,n", [(5, 100), (16, 64), (13, 33), (32, 200)])
def test_infinities_and_nan(m, n, odd, where, seen, seed):
    """What is stored has them where float64 has: rows of zeros times an infinity as well, where they are stored."""
    torch.manual_seed(seed)
    k, bm = 70, max(8, triton.next_power_of_2(m))
    a, b = torch.zeros(bm, k), torch.randn(k, n)
    a[:m] = torch.randn(m, k)
    if where != "b":
        a[m // 2, 3] = odd
    if where != "a":
        b[k - 1, n - 1] = odd
    out, whole = check.guarded((bm if seen else m, n), torch.float32)
    few_rows_kernel[(triton.cdiv(n, 64),)](a, b, out, m, n, k, k, 1, n, 1, BM=bm, BN=64, BK=32, SEEN=seen)
    want = (a.double() @ b.double())[:len(out)]
    assert check.guards_hold(whole) and torch.equal(want.isnan(), out.isnan()) and torch.equal(want.isinf(), out.isinf())
    good = want.isfinite()
    assert check.error(out[good], want[good]) < 1e-5


def lowered(bm: int, seen: bool):
    a, b, c = torch.zeros(bm, 100), torch.zeros(100, 100), torch.zeros(bm, 100)
    compiled = few_rows_kernel.warmup(a, b, c, 5, 77, 99, 99, 1, 77, 1, BM=bm, BN=64, BK=64, SEEN=seen, grid=(1,))
    module = reader.parse(compiled.asm["ttir"])
    return lower_module(module, targets.get("x86-64-v4")), module.kernel


def test_few_rows_read_panels_where_they_lie():
    for bm, lies in ((8, True), (32, True), (64, False)):
        found, kernel = lowered(bm, False)
        assert ("whole panels read where they lie" in show.show(found.plan, kernel, "x86-64-v4")) is lies


def test_nobody_looks_for_infinities_where_nobody_sees_them():
    """LLVM finds the store's bounds to be the operands', and drops the look."""
    row = targets.get("x86-64-v4")
    assert "reduce.umax" not in llvm.optimise(lowered(8, False)[0].text, row)
    assert "reduce.umax" in llvm.optimise(lowered(8, True)[0].text, row)
