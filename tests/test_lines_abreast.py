"""Reductions of several lines at once, where what is loaded for one serves the others (`order.lines_abreast`): a matrix times a vector, or times a few."""

import math
import re

import pytest
import torch
import triton
import triton.language as tl
from test_decisions import compiled
from triport.bench import check
from triport.ops.accuracy import error


@triton.jit
def times_kernel(w_ptr, x_ptr, out_ptr, n, k, BN: tl.constexpr, BK: tl.constexpr):
    """out = w @ x."""
    lines, ks = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BN,), tl.float32)
    for start in range(0, k, BK):
        inside = ks < k - start
        w = tl.load(w_ptr + lines[:, None] * k + (start + ks)[None, :], mask=(lines < n)[:, None] & inside[None, :], other=0)
        x = tl.load(x_ptr + start + ks, mask=inside, other=0)
        acc += tl.sum(w.to(tl.float32) * x.to(tl.float32)[None, :], 1)
    tl.store(out_ptr + lines, acc, mask=lines < n)


@triton.jit
def _of_three(a0, a1, a2, b0, b1, b2):
    return a0 + b0, tl.maximum(a1, b1), a2 + b2


@triton.jit
def three_kernel(w_ptr, x_ptr, out_ptr, n, k, BN: tl.constexpr, BK: tl.constexpr):
    """out = the sums, the largest and the sums of squares of each line of w, each element times that of x."""
    lines, ks = tl.arange(0, BN), tl.arange(0, BK)
    there = (lines < n)[:, None] & (ks < k)[None, :]
    v = tl.load(w_ptr + lines[:, None] * k + ks[None, :], mask=there, other=0) * tl.load(x_ptr + ks, mask=ks < k, other=0)[None, :]
    sums, largest, squares = tl.reduce((v, tl.where(there, v, -float("inf")), v * v), 1, _of_three)
    tl.store(out_ptr + lines, sums, mask=lines < n)
    tl.store(out_ptr + n + lines, largest, mask=lines < n)
    tl.store(out_ptr + 2 * n + lines, squares, mask=lines < n)


@triton.jit
def sum_kernel(w_ptr, out_ptr, k, BN: tl.constexpr, BK: tl.constexpr):
    lines, ks = tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BN,), tl.float32)
    for start in range(0, k, BK):
        acc += tl.sum(tl.load(w_ptr + lines[:, None] * k + (start + ks)[None, :], mask=((start + ks) < k)[None, :], other=0), 1)
    tl.store(out_ptr + lines, acc)


@triton.jit
def _of_eight(a0, a1, a2, a3, a4, a5, a6, a7, b0, b1, b2, b3, b4, b5, b6, b7):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4, a5 + b5, a6 + b6, a7 + b7


@triton.jit
def eight_kernel(w_ptr, x_ptr, out_ptr, k, BN: tl.constexpr, BK: tl.constexpr):
    """out[r] = w @ x[r], r < 8."""
    lines, ks = tl.arange(0, BN), tl.arange(0, BK)
    w = tl.load(w_ptr + lines[:, None] * k + ks[None, :], mask=(ks < k)[None, :], other=0)
    inside = ks < k
    sums = tl.reduce((w * tl.load(x_ptr + ks, mask=inside, other=0)[None, :], w * tl.load(x_ptr + k + ks, mask=inside, other=0)[None, :],
                      w * tl.load(x_ptr + 2 * k + ks, mask=inside, other=0)[None, :], w * tl.load(x_ptr + 3 * k + ks, mask=inside, other=0)[None, :],
                      w * tl.load(x_ptr + 4 * k + ks, mask=inside, other=0)[None, :], w * tl.load(x_ptr + 5 * k + ks, mask=inside, other=0)[None, :],
                      w * tl.load(x_ptr + 6 * k + ks, mask=inside, other=0)[None, :], w * tl.load(x_ptr + 7 * k + ks, mask=inside, other=0)[None, :]), 1, _of_eight)
    for r in tl.static_range(8):
        tl.store(out_ptr + r * BN + lines, sums[r])


@triton.jit
def padded_kernel(w_ptr, x_ptr, given_ptr, out_ptr, k, BN: tl.constexpr, BK: tl.constexpr):
    """Sums of w * x, and of a number of each line's in the place of what is missing."""
    lines, ks = tl.arange(0, BN), tl.arange(0, BK)
    inside = (ks < k)[None, :]
    v = tl.load(w_ptr + lines[:, None] * k + ks[None, :], mask=inside, other=0) * tl.load(x_ptr + ks, mask=ks < k, other=0)[None, :]
    tl.store(out_ptr + lines, tl.sum(tl.where(inside, v, tl.load(given_ptr + lines)[:, None]), 1))


def hot_loops(kernel) -> list[tuple[int, int]]:
    """(multiply-adds, operands in memory) of each block of x86 code that loops to its own begin."""
    found = []
    for label, block in re.findall(r"\n(\.LBB\S+):(.*?)(?=\n\.LBB|\Z)", kernel.asm["asm"], re.S):
        body = re.split(rf"\tj\w+\t{re.escape(label)}\b", block)
        if len(body) > 1:
            found.append((body[0].count("vfmadd"), sum("(" in line and "lea" not in line for line in body[0].split("\n"))))
    return found


@pytest.mark.parametrize("kernel,target,lines", [(times_kernel, "x86-64-v4", 4), (times_kernel, "x86-64-v3", 4), (times_kernel, "aarch64", 4), (three_kernel, "x86-64-v4", 4),
                                                 (three_kernel, "x86-64-v3", 4), (eight_kernel, "x86-64-v4", 3), (eight_kernel, "x86-64-v3", 0), (sum_kernel, "x86-64-v4", 0)])
def test_which_go_side_by_side(kernel, target, lines):
    """As many as have accumulators in registers, where a load is shared; by AVX2 eight sums leave no room for two lines."""
    plan = compiled(kernel, target, BN=16, BK=256).asm["plan"]
    assert (f"{lines} lines at a time" in plan) if lines else ("lines at a time" not in plan)


def test_what_is_shared_is_loaded_once():
    """Eight numbers of x and three of w for 24 multiply-adds, where one line after the other loads nine for eight."""
    loops = hot_loops(compiled(eight_kernel, "x86-64-v4", BN=16, BK=256))
    assert any(adds >= 24 and loads <= adds // 24 * 12 + 8 for adds, loads in loops), loops


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n,k", [(1, 1), (3, 7), (4, 16), (7, 300), (33, 257), (64, 512), (130, 1000), (5, 0)])
def test_a_matrix_times_a_vector(n, k, dtype, seed):
    torch.manual_seed(seed)
    w, x = torch.randn(n, k).to(dtype), torch.randn(k).to(dtype)
    out, whole = check.guarded((n,), torch.float32)
    times_kernel[(triton.cdiv(n, 16),)](w, x, out, n, k, BN=16, BK=256)
    want = w.double() @ x.double()
    assert (out.double() - want).abs().le(2e-6 * (w.double().abs() @ x.double().abs())).all() and check.guards_hold(whole)
    if n > 2 and k > 2:
        w[1, 2], w[n - 1, k - 1] = math.nan, math.inf
        times_kernel[(triton.cdiv(n, 16),)](w, x.abs() + 1, out, n, k, BN=16, BK=256)
        assert out.isnan().nonzero().flatten().tolist() == [1] and (out == math.inf).nonzero().flatten().tolist() == [n - 1]


@pytest.mark.parametrize("n,k", [(1, 5), (3, 64), (13, 100), (16, 256), (15, 33)])
def test_several_sums(n, k, seed):
    torch.manual_seed(seed)
    w, x = torch.randn(n, k), torch.randn(k)
    out, whole = check.guarded((3, n), torch.float32)
    three_kernel[(1,)](w, x, out, n, k, BN=16, BK=256)
    v = w.double() * x.double()
    assert error(out[0] - v.sum(1) + 1, torch.ones(n)) < 1e-5 and error(out[2], (v * v).sum(1)) < 1e-6
    assert torch.equal(out[1], (w * x).amax(1)) and check.guards_hold(whole)


@pytest.mark.parametrize("k", [1, 16, 77, 256])
def test_eight_sums(k, seed):
    torch.manual_seed(seed)
    w, x = torch.randn(16, k), torch.randn(8, k)
    out, whole = check.guarded((8, 16), torch.float32)
    eight_kernel[(1,)](w, x, out, k, BN=16, BK=256)
    want = x.double() @ w.double().T
    assert (out.double() - want).abs().le(1e-6 * (x.double().abs() @ w.double().abs().T)).all() and check.guards_hold(whole)


@pytest.mark.parametrize("k", [1, 16, 100, 500])
def test_what_is_missing_counts_for_each_line(k, seed):
    """Behind masks a loop ends once nothing changes any more, in none of the lines that go side by side."""
    torch.manual_seed(seed)
    w, x, given = torch.randn(16, k), torch.randn(k), torch.zeros(16)
    given[::4] = 1.0
    given[5], given[10] = -2.0, 3.0
    out, whole = check.guarded((16,), torch.float32)
    padded_kernel[(1,)](w, x, given, out, k, BN=16, BK=512)
    assert error(out, w.double() @ x.double() + given.double() * (512 - k)) < 1e-6 and check.guards_hold(whole)
