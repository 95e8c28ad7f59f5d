"""Matrix products whose micro-kernel walks strips of A along one pointer and multiplies what it widens (the X60's row)."""

import dataclasses
import re

import pytest
import torch
import triton
import triton.language as tl
from spine_boards import on
from test_decisions import compiled
from triport.backends.cpu.llvm import targets
from triport.backends.spine import bundle, runner
from triport.ops import Case, registry


@triton.jit
def product_kernel(a_ptr, b_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, HALF: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a, b = tl.load(a_ptr + m[:, None] * K + k[None, :]), tl.load(b_ptr + k[:, None] * N + n[None, :])
    if HALF:
        a, b = a.to(tl.float16), b.to(tl.float16)
    tl.store(out_ptr + m[:, None] * N + n[None, :], tl.dot(a, b, input_precision="ieee"))


@triton.jit
def masked_kernel(a_ptr, b_ptr, out_ptr, rows, depth, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + m[:, None] * depth + k[None, :], mask=(m[:, None] < rows) & (k[None, :] < depth), other=0.0)
    b = tl.load(b_ptr + k[:, None] * N + n[None, :], mask=k[:, None] < depth, other=0.0)
    tl.store(out_ptr + m[:, None] * N + n[None, :], tl.dot(a, b, input_precision="ieee"), mask=m[:, None] < rows)


def loop_of(kernel, instruction: str) -> str:
    """The block with the most of an instruction, up to its branch."""
    return max(re.split(r"\n\.LBB|\n\tb\w+\t", kernel.asm["asm"]), key=lambda block: len(re.findall(rf"\t{instruction}\b", block)))


@pytest.mark.parametrize("half,instruction,load", [(False, r"vfm(?:acc|add)\.vf", "flw"), (True, r"vfwmacc\.vf", "flh")])
def test_a_is_walked_along_one_pointer(half, instruction, load):
    """Four steps along K, of eight rows of two registers: A's elements lie behind one pointer, where eight rows had one each."""
    kernel = compiled(product_kernel, "spacemit-x60", M=64, N=64, K=64, HALF=half)
    plan = kernel.asm["plan"]
    assert "8 rows x 1 vectors of 2 registers" in plan and "A is put into strips of its rows" in plan
    assert ("f16 widened into f32" in plan) == half
    loop = loop_of(kernel, instruction)
    assert len(re.findall(rf"\t{instruction}\b", loop)) == 32 == len(re.findall(rf"\t{load}\b", loop))
    assert len(set(re.findall(rf"\t{load}\t\w+, -?\d+\((\w+)\)", loop))) == 1
    assert len(re.findall(r"\taddi?\b", loop)) <= 8 and not re.search(r"\tvfw?cvt|\tvs\d?r?\.v", loop)


def test_few_columns_read_a_where_it_lies():
    assert "A is read where it lies" in compiled(product_kernel, "spacemit-x60", M=64, N=32, K=64, HALF=False).asm["plan"]


@pytest.mark.parametrize("other", ["rv64gcv", "spacemit-k3-x100", "neoverse-v2"])
def test_other_rows_do_not(other):
    plan = compiled(product_kernel, other, M=64, N=64, K=64, HALF=False).asm["plan"]
    assert "strips" not in plan and "widened" not in compiled(product_kernel, other, M=64, N=64, K=64, HALF=True).asm["plan"]


@pytest.mark.parametrize("height", [2, 4])
def test_vectors_end_where_strips_do(height, monkeypatch, seed):
    """On this machine, whose vectors have more lanes than these strips rows."""
    row = dataclasses.replace(targets.native(), strips=True, dot=(height, 1))
    monkeypatch.setattr(targets, "native", lambda: row)
    masked_kernel.device_caches.clear()
    a, b, out = (torch.randn(s, generator=torch.Generator().manual_seed(seed)) for s in ((12 * height, 17), (17, 256), (12 * height, 256)))
    a, out = (torch.cat([x, x.new_full((64 - len(x), x.shape[1]), 7.0)]) for x in (a, out))
    kernel = masked_kernel[(1,)](a, b, out, 12 * height, 17, M=64, N=256, K=32)
    masked_kernel.device_caches.clear()
    assert "A is put into strips of its rows" in kernel.asm["plan"]
    exact = a[:12 * height].double() @ b.double()
    torch.testing.assert_close(out[:12 * height].double(), exact, rtol=1e-5, atol=1e-5)
    assert (out[12 * height:] == 7).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("board", [on("qemu:riscv64?vlen=256")])
def test_infinities_and_nan_are_where_they_belong(board, dtype, seed):
    """Of sizes that leave rows, columns and steps along K over: 0 times infinity is NaN there, too, and nothing else is."""
    op, case = registry.get("matmul"), Case(((70, 131), (131, 73)))
    name = {torch.float32: "fp32", torch.float16: "fp16"}[dtype]
    made = bundle.make([(op, case, name)], targets.get("spacemit-x60"), cases=False)
    torch.manual_seed(seed)
    for where in ((), ((0, 69, 130),), ((0, 3, 5), (1, 130, 72)), ((1, 0, 0),)):
        args = [torch.randn(s).to(dtype) for s in case.shapes]
        for value, (matrix, i, j) in zip((float("inf"), float("nan")), where):
            args[matrix][i, j] = value
            args[1 - matrix][0 if matrix else 60, 0] = 0
        (got,), _ = runner.get(board).call(made, f"triport_matmul_{name}", args)
        exact = args[0].double() @ args[1].double()
        assert torch.equal(got.isnan(), exact.isnan()) and torch.equal(got.isinf(), exact.isinf())
        finite = exact.isfinite()
        scale = args[0].double().abs().nan_to_num(0, 0, 0) @ args[1].double().abs().nan_to_num(0, 0, 0)
        assert ((got.double() - exact).abs()[finite] <= (scale * 2e-6 + exact.abs() * (1e-3 if dtype == torch.float16 else 0))[finite]).all()
