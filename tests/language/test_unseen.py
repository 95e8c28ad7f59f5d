"""Accumulators of a product that masks leave out: nothing is put where nobody sees them, and what stood there before is not seen."""

import pytest
import torch
import triton
import triton.language as tl
from triport.bench import check


@triton.jit
def edge_kernel(a_ptr, b_ptr, out_ptr, sums_ptr, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, HOW: tl.constexpr):
    rows, cols, ks = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        a = tl.load(a_ptr + rows[:, None] * k + start + ks[None, :], mask=(rows < m)[:, None] & (ks < k - start)[None, :], other=0.0)
        b = tl.load(b_ptr + (start + ks)[:, None] * n + cols[None, :], mask=(ks < k - start)[:, None] & (cols < n)[None, :], other=0.0)
        acc = tl.dot(a, b, acc)
    mask = (rows < m)[:, None] & (cols < n)[None, :]
    if HOW == "more rows":  # more of them are seen than there are of A, which are zeros
        mask = (rows < m + 3)[:, None] & (cols < n)[None, :]
    if HOW == "sums":  # the store is not all that sees them
        tl.store(sums_ptr + rows, tl.sum(acc, 1))
    if HOW == "exponentials":
        acc = tl.exp(acc * 0.05)
    tl.store(out_ptr + rows[:, None] * n + cols[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask)


@pytest.mark.parametrize("how", ["", "more rows", "sums", "exponentials"])
@pytest.mark.parametrize("dtype,out", [(torch.float32, torch.float32), (torch.float32, torch.bfloat16), (torch.bfloat16, torch.float16), (torch.float16, torch.float32)])
@pytest.mark.parametrize("m,n,k", [(5, 300, 9), (60, 33, 32), (64, 100, 70), (1, 1, 1), (29, 512, 64)])
def test_what_stood_there_before_is_not_seen(m, n, k, dtype, out, how, seed):
    torch.manual_seed(seed)

    def run(m, n, k, fill=None):
        a, b = (torch.randn(shape).to(dtype) if fill is None else torch.full(shape, fill, dtype=dtype) for shape in ((m, k), (k, n)))
        got, whole = check.guarded((min(m + 3 * (how == "more rows"), 64), n), out)
        sums = torch.zeros(64)
        edge_kernel[(1,)](a, b, got, sums, m, n, k, 64, 512, 32, how)
        assert check.guards_hold(whole)
        return got, sums, a.double() @ b.double()

    run(64, 512, 64, float("nan"))  # a thread keeps the memory of its accumulators
    got, sums, want = run(m, n, k)
    assert check.error(got[:m], (want * 0.05).exp() if how == "exponentials" else want) < (2e-6 if out is torch.float32 and dtype is torch.float32 else 2e-2)
    assert not got[m:].any()
    if how == "sums":
        torch.testing.assert_close(sums.double(), torch.nn.functional.pad(want.sum(1), (0, 64 - m)), rtol=1e-4, atol=2e-2)
