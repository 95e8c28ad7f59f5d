"""B of a matrix product that is fetched ahead while it is packed (the row of AVX2)."""

import dataclasses
import re

import pytest
import torch
import triton
import triton.language as tl
from test_decisions import compiled
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
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


@triton.jit
def turned_kernel(a_ptr, b_ptr, out_ptr, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """out = a @ b, of which a lies column by column."""
    rows, cols, depth = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + rows[:, None] + depth[None, :] * m, mask=(rows[:, None] < m) & (depth[None, :] < k), other=0)
    b = tl.load(b_ptr + depth[:, None] * n + cols[None, :], mask=(depth[:, None] < k) & (cols[None, :] < n), other=0)
    tl.store(out_ptr + rows[:, None] * n + cols[None, :], tl.dot(a, b, input_precision="ieee"), mask=(rows[:, None] < m) & (cols[None, :] < n))


TURNED = "A lies the other way round: turned in registers"


@pytest.mark.parametrize("dtype,tolerance", [(torch.float32, 1e-5), (torch.float64, 1e-12), (torch.bfloat16, 1e-2), (torch.float16, 1e-3), (torch.int8, 0)])
@pytest.mark.parametrize("m,n,k", [(64, 64, 64), (128, 64, 33), (61, 33, 64), (70, 40, 31), (3, 1, 1), (90, 64, 2), (64, 64, 0), (64, 64, 50)])
def test_columns_of_a_are_turned(m, n, k, dtype, tolerance, seed):
    make = torch.Generator().manual_seed(seed)
    a, b = (torch.randint(-9, 9, s, generator=make).to(dtype) if dtype == torch.int8 else torch.randn(s, generator=make).to(dtype) for s in ((m, k), (k, n)))
    out = torch.full((m * n + 64,), 7, dtype={torch.int8: torch.int32, torch.float64: torch.float64}.get(dtype, torch.float32))
    behind = torch.full((64 * m,), 100 if dtype == torch.int8 else float("nan")).to(dtype)
    kernel = turned_kernel[(-(-m // 64),)](torch.cat([a.T.flatten(), behind]), b, out, m, n, k, M=64, N=64, K=64)
    torch.testing.assert_close(out[:m * n].view(m, n).double(), a.double() @ b.double(), rtol=tolerance, atol=max(tolerance, 1e-4 if dtype == torch.float32 else 0))
    assert (out[m * n:] == 7).all()
    if targets.native().turns and m > 1:
        assert TURNED in kernel.asm["plan"]


@pytest.mark.parametrize("target,elements,turned", [("x86-64-v4", "bf16", True), ("x86-64-v4", "i8", True), ("neoverse-v2", "bf16", True), ("sapphirerapids", "bf16", True)])
def test_who_turns(target, elements, turned):
    """Pairs along K are turned as one number of twice the width, for AMX, too."""
    names, given = turned_kernel.arg_names, {"M": 64, "N": 64, "K": 64}
    signature = {n: "constexpr" if n in given else ("*fp32" if elements == "bf16" else "*i32") if n == "out_ptr" else f"*{elements}" if n.endswith("_ptr") else "i32" for n in names}
    source = ASTSource(fn=turned_kernel, signature=signature, constexprs={(names.index(n),): v for n, v in given.items()})
    assert (TURNED in triton.compile(source, target=GPUTarget("cpu", target, 0)).asm["plan"]) == turned


@triton.jit
def short_kernel(a_ptr, b_ptr, out_ptr, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """out = a @ b, each of which lies column by column."""
    rows, cols, depth = tl.arange(0, M), tl.program_id(0) * N + tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + rows[:, None] + depth[None, :] * m, mask=(rows[:, None] < m) & (depth[None, :] < k), other=0)
    b = tl.load(b_ptr + depth[:, None] + cols[None, :] * k, mask=(depth[:, None] < k) & (cols[None, :] < n), other=0)
    tl.store(out_ptr + rows[:, None] * n + cols[None, :], tl.dot(a, b, input_precision="ieee"), mask=(rows[:, None] < m) & (cols[None, :] < n))


SHORT = [TURNED, "B lies the other way round: turned in registers"]


@pytest.mark.parametrize("dtype,tolerance", [(torch.float32, 1e-5), (torch.float64, 1e-12), (torch.bfloat16, 1e-2), (torch.float16, 1e-3), (torch.int8, 0)])
@pytest.mark.parametrize("m,n,k,tile", [(8, 150, 8, (8, 64, 8)), (5, 64, 7, (8, 64, 8)), (33, 130, 4, (64, 64, 4)), (4, 70, 3, (4, 64, 4)), (7, 100, 16, (8, 64, 16)), (1, 1, 1, (8, 64, 8)), (8, 64, 0, (8, 64, 8)), (16, 33, 2, (16, 64, 2))])
def test_lines_shorter_than_a_vector_are_turned(m, n, k, tile, dtype, tolerance, seed):
    """As those of an adapter of eight ranks are; what lies behind them is not read."""
    make = torch.Generator().manual_seed(seed)
    a, b = (torch.randint(-9, 9, s, generator=make).to(dtype) if dtype == torch.int8 else torch.randn(s, generator=make).to(dtype) for s in ((m, k), (k, n)))
    out = torch.full((m * n + 64,), 7, dtype={torch.int8: torch.int32, torch.float64: torch.float64}.get(dtype, torch.float32))
    behind = torch.full((64,), 100 if dtype == torch.int8 else float("nan")).to(dtype)
    short_kernel[(-(-n // tile[1]),)](torch.cat([a.T.flatten(), behind]), torch.cat([b.T.flatten(), behind]), out, m, n, k, M=tile[0], N=tile[1], K=tile[2])
    torch.testing.assert_close(out[:m * n].view(m, n).double(), a.double() @ b.double(), rtol=tolerance, atol=max(tolerance, 1e-5 if dtype == torch.float32 else 0))
    assert (out[m * n:] == 7).all()


@pytest.mark.parametrize("target", ["x86-64-v4", "x86-64-v3", "neoverse-v2"])
@pytest.mark.parametrize("side", [4, 8])
def test_none_of_them_is_gathered(side, target):
    """Whose elements would be loaded one by one where the condition for it does not hold, and only there."""
    kernel = compiled(short_kernel, target, M=side, N=64, K=64)
    assert SHORT[0] in kernel.asm["plan"]
    kernel = compiled(short_kernel, target, M=64, N=64, K=side)
    assert SHORT[1] in kernel.asm["plan"]
    assert SHORT[1] not in compiled(short_kernel, target, M=64, N=64, K=2).asm["plan"]
