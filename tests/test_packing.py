"""B of a matrix product that is fetched ahead while it is packed (the row of AVX2)."""

import dataclasses
import re

import pytest
import torch
import triton
import triton.language as tl
from test_decisions import compiled
from triport.backends.cpu.llvm import targets


@triton.jit
def product_kernel(a_ptr, b_ptr, out_ptr, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows, cols, depth = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + rows[:, None] * k + depth[None, :], mask=(rows[:, None] < m) & (depth[None, :] < k), other=0)
    b = tl.load(b_ptr + depth[:, None] * n + cols[None, :], mask=(depth[:, None] < k) & (cols[None, :] < n), other=0)
    tl.store(out_ptr + rows[:, None] * n + cols[None, :], tl.dot(a, b, input_precision="ieee"), mask=(rows[:, None] < m) & (cols[None, :] < n))


@pytest.mark.parametrize("target,fetches", [("x86-64-v3", True), ("x86-64-v4", False), ("neoverse-v2", False)])
def test_who_fetches(target, fetches):
    """In the loop that loads rows of B and stores them into panels."""
    kernel = compiled(product_kernel, target, M=64, N=64, K=64)
    assert ("B is copied into panels by rows" in kernel.asm["plan"]) == fetches
    loops = [block for block in re.split(r"\n\.LBB", kernel.asm["asm"]) if "prefetch" in block]
    assert bool(loops) == fetches and all(re.search(r"\tv(mov|maskmov)\w+\t.*ymm", block) for block in loops)


@pytest.mark.parametrize("dtype,tolerance", [(torch.float32, 1e-5), (torch.float64, 1e-12), (torch.bfloat16, 1e-2), (torch.float16, 1e-3), (torch.int8, 0)])
@pytest.mark.parametrize("m,n,k", [(64, 64, 64), (64, 63, 33), (3, 1, 1), (20, 40, 7)])
def test_right_whatever_is_left_over(m, n, k, dtype, tolerance, monkeypatch, seed):
    """On this machine, whatever its row: what is fetched behind B's end does no harm."""
    row = dataclasses.replace(targets.native(), ahead=16)
    monkeypatch.setattr(targets, "native", lambda: row)
    make = torch.Generator().manual_seed(seed)
    a, b = (torch.randint(-9, 9, s, generator=make).to(dtype) if dtype == torch.int8 else torch.randn(s, generator=make).to(dtype) for s in ((m, k), (k, n)))
    out = torch.full((m * n + 64,), 7, dtype={torch.int8: torch.int32, torch.float64: torch.float64}.get(dtype, torch.float32))
    product_kernel[(1,)](a, b, out, m, n, k, M=64, N=64, K=64)
    torch.testing.assert_close(out[:m * n].view(m, n).double(), a.double() @ b.double(), rtol=tolerance, atol=tolerance)
    assert (out[m * n:] == 7).all()
