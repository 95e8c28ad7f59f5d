"""What is left of a matrix product's last panel of columns: no more than half of it takes a micro-kernel half as wide."""

import re

import pytest
import torch
import triton
import triton.language as tl
from test_decisions import compiled
from test_packing import product_kernel


@triton.jit
def unmasked_kernel(a_ptr, b_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows, cols, depth = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a, b = tl.load(a_ptr + rows[:, None] * K + depth[None, :]), tl.load(b_ptr + depth[:, None] * N + cols[None, :])
    tl.store(out_ptr + rows[:, None] * N + cols[None, :], tl.dot(a, b, input_precision="ieee"))


@pytest.mark.parametrize("target,full,half", [("x86-64-v4", 24, 12), ("x86-64-v3", 12, 6), ("neoverse-v2", 24, 12)])
def test_the_last_panel_may_take_a_micro_kernel_half_as_wide(target, full, half):
    """Sums that a loop along K adds to: of whole micro-kernels, and of half of one, for what masks leave of the last panel. Columns that are all there have none."""
    def sums(masked: bool) -> set[int]:
        kernel = compiled(product_kernel if masked else unmasked_kernel, target, M=64, N=64, K=64)
        return {len(re.findall(r"\tv?fm(?:add\d+ps|la)\t", block)) for block in re.split(r"\n\.LBB", kernel.asm["asm"])}
    assert {4 * full, 4 * half} <= sums(True) or {full, half} <= sums(True)
    assert not {4 * half, half} & sums(False) and {4 * full, full} & sums(False)


@pytest.mark.parametrize("dtype,tolerance", [(torch.float32, 1e-5), (torch.float64, 1e-12), (torch.bfloat16, 1e-2), (torch.int8, 0)])
@pytest.mark.parametrize("n", [1, 7, 8, 9, 16, 17, 31, 32, 33, 48, 63, 64, 65, 72, 97, 127])
def test_any_number_of_columns(n, dtype, tolerance, seed):
    """What is left of the last panel, on either side of half of it; infinities and NaN where they belong."""
    make = torch.Generator().manual_seed(seed)
    m, k = 37, 41
    a, b = (torch.randint(-9, 9, s, generator=make).to(dtype) if dtype == torch.int8 else torch.randn(s, generator=make).to(dtype) for s in ((m, k), (k, n)))
    for bad in (False, True) if dtype.is_floating_point else (False,):
        if bad:
            a[3, 5], b[7, n - 1] = float("inf"), float("nan")
        out = torch.full((m * n + 64,), 7, dtype={torch.int8: torch.int32, torch.float64: torch.float64}.get(dtype, torch.float32))
        product_kernel[(1,)](a, b, out, m, n, k, M=64, N=128, K=64)
        torch.testing.assert_close(out[:m * n].view(m, n).double(), a.double() @ b.double(), rtol=tolerance, atol=tolerance, equal_nan=True)
        assert (out[m * n:] == 7).all()
