"""Lanes that change places between a masked load and a choice by the same mask. LLVM's X86 backend (seen with 22) folds the load into the masked shuffle as if each lane stayed where it is: lanes that the mask
keeps out come back with what lies in memory, and pages beside a tensor are touched."""

import pytest
import torch
import triton
import triton.language as tl
from test_decisions import compiled
from test_masks import fenced


@triton.jit
def moved_kernel(x_ptr, m_ptr, out_ptr, HOW: tl.constexpr, LOAD: tl.constexpr, B: tl.constexpr):
    i = tl.arange(0, B)
    m = tl.load(m_ptr + i) != 0
    if LOAD == "masked":
        x = tl.load(x_ptr + i, mask=m, other=0)
    else:
        x = tl.where(m, tl.load(x_ptr + i), 0)
    if HOW == "flip":
        y = tl.flip(x, 0)
    elif HOW == "pairs":
        a, b = tl.split(tl.reshape(x, (B // 2, 2)))
        y = tl.reshape(tl.join(b, a), (B,))
    else:
        y = tl.gather(x, (i * 5 + 3) % B, 0)
    tl.store(out_ptr + i, tl.where(m, y, 0))


@pytest.mark.parametrize("how", ["flip", "pairs", "gather"])
@pytest.mark.parametrize("load", ["masked", "chosen"])
@pytest.mark.parametrize("block", [2, 4, 8, 16, 32, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.float64, torch.int64, torch.bfloat16, torch.int8])
def test_what_the_mask_keeps_out_stays_out(dtype, block, load, how, seed):
    torch.manual_seed(seed)
    i = torch.arange(block)
    to = {"flip": block - 1 - i, "pairs": i ^ 1, "gather": (i * 5 + 3) % block}[how]
    for _ in range(3):
        x, m, out = torch.randint(1, 99, (block,)).to(dtype), torch.randint(0, 2, (block,), dtype=torch.int32), torch.empty(block, dtype=dtype)
        moved_kernel[(1,)](x, m, out, how, load, block)
        kept = torch.where(m != 0, x, torch.zeros_like(x))
        assert torch.equal(out, torch.where(m != 0, kept[to], torch.zeros_like(x))), (x, m, out)


@triton.jit
def strided_kernel(x_ptr, out_ptr, n: tl.constexpr, STEP: tl.constexpr, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out_ptr + i, tl.load(x_ptr + i * STEP, mask=i < n, other=0))


@pytest.mark.parametrize("step", [-3, 2, 3, 4])
@pytest.mark.parametrize("block", [4, 16, 64])
def test_lanes_apart_of_which_few_are_there(block, step, seed):
    """How many is known: one, all but one, and all between, up to a page that may not be touched."""
    for n in {1, 2, block // 2, block - 1}:
        size = (n - 1) * abs(step) + 1
        x = torch.randint(1, 99, (size,), dtype=torch.int32)
        for at_end in (False, True):
            out = torch.full((block,), -1, dtype=torch.int32)
            given = fenced(x, at_end, writable=False)
            strided_kernel[(1,)](given[-1:] if step < 0 else given, out, n, step, block)
            want = torch.zeros(block, dtype=torch.int32)
            want[:n] = (x.flip(0) if step < 0 else x)[::abs(step)]
            assert torch.equal(out, want), (n, at_end)


def test_no_shuffle_reads_memory_under_a_mask():
    for load in ("masked", "chosen"):
        for how in ("flip", "pairs"):
            asm = compiled(moved_kernel, "x86-64-v4", HOW=how, LOAD=load, B=16).asm["asm"]
            moves = [line for line in asm.splitlines() if line.startswith(("\tvperm", "\tvpshuf", "\tvshuf", "\tvpunpck", "\tvalign"))]
            assert not any("(" in line and "{%k" in line for line in moves), moves
