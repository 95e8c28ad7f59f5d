"""Lines of memory that are fetched for writing before vectors are stored to them, on Intel's CPUs (`Target.written`)."""

import dataclasses
import re

import pytest
import torch
import triton
import triton.language as tl
from test_decisions import compiled
from test_ending import product_kernel
from test_masks import fenced
from triport.backends.cpu.llvm import targets
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

BY_THE_CPU = True  # plain kernels, beside a GPU, too


@triton.jit
def square_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(out_ptr + i, x * x, mask=i < n)


def fetched(asm: str) -> list[int]:
    """How many bytes behind an address that is stored to, of each line that is fetched."""
    return [int(far) for far in re.findall(r"prefetchw\s+(\d+)\(", asm)]


@pytest.mark.parametrize("name,far", [("x86-64-v2", 0), ("x86-64-v3", 0), ("x86-64-v4", 0), ("sapphirerapids", 256), ("graniterapids", 256), ("neoverse-v2", 0)])
def test_who_fetches(name, far):
    """A line for each vector of the loops that have no mask, its bytes behind it. AMD's CPUs were not measured."""
    asm = compiled(square_kernel, name, BLOCK=1024).asm["asm"]
    assert sorted(set(fetched(asm))) == ([far + line for line in range(0, 256, 64)] if far else []) and ("prefetch" in asm) == bool(far)
    stored = re.findall(r"prefetchw\s+\d+(\(.*\))\n\s+vmovups\s+%zmm\d+, \d*(\(.*\))\n", asm)
    assert len(stored) == len(fetched(asm)) and all(x == y for x, y in stored)


def test_lines_that_two_vectors_share_are_not_fetched():
    names = square_kernel.arg_names
    source = ASTSource(fn=square_kernel, signature=dict(zip(names, ("*bf16", "*bf16", "i32", "constexpr"))), constexprs={(names.index("BLOCK"),): 1024})
    assert "prefetch" not in triton.compile(source, target=GPUTarget("cpu", "sapphirerapids", 0)).asm["asm"]


@pytest.mark.parametrize("terms,fetches", [(8, True), (16, True), (32, False), (128, False)])
def test_results_of_few_terms_too(terms, fetches):
    """A line for each vector of accumulators. More terms take longer to multiply than lines to come."""
    assert (len(fetched(compiled(product_kernel, "sapphirerapids", M=64, N=64, K=terms, HOW="").asm["asm"])) >= 24) == fetches


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
@pytest.mark.parametrize("n", [0, 1, 1000, 1024, 4099])
def test_nothing_else_is_written(n, dtype, monkeypatch, seed):
    """On this machine, whatever its row: what is fetched behind the end does no harm."""
    row = dataclasses.replace(targets.native(), written=256)
    monkeypatch.setattr(targets, "native", lambda: row)
    x = torch.randint(-9, 9, (n,), generator=torch.Generator().manual_seed(seed)).to(dtype)
    out = fenced(torch.zeros(n, dtype=dtype), True)
    square_kernel[(max(1, -(-n // 1024)),)](x, out, n, BLOCK=1024)
    assert torch.equal(out, x * x)
