"""What the compiler decides, seen in what it makes: each of these fails when the decision is switched off, which results do not show.

Counts are taken of LLVM IR and scratch for rows of targets.py, so they are the same on every machine."""

import random
import re

import pytest
import triton
import triton.language as tl
from triport.backends.cpu.emit.module import lower_module
from triport.backends.cpu import compiler
from triport.backends.cpu.llvm import targets
from triport.backends.cpu.ttir import reader
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

#: 32 registers of 512 bits, 16 of 256, 32 of 128, and RISC-V's
ROWS = ("x86-64-v4", "x86-64-v3", "neoverse-v2", "spacemit-x60")


def compiled(kernel, target: str, **given):
    """The kernel for a target, its pointers to fp32, its integers of 32 bits, and what is `given` constant."""
    names = list(kernel.arg_names)
    signature = {n: "constexpr" if n in given else "*fp32" if n.endswith("_ptr") else "i32" for n in names}
    source = ASTSource(fn=kernel, signature=signature, constexprs={(names.index(n),): v for n, v in given.items()})
    return triton.compile(source, target=GPUTarget("cpu", target, 0))


@triton.jit
def softmax_kernel(x_ptr, out_ptr, n, BM: tl.constexpr, BN: tl.constexpr):
    r, c = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BN)
    x = tl.load(x_ptr + r[:, None] * n + c[None, :], mask=c[None, :] < n, other=-float("inf"))
    e = tl.exp(x - tl.max(x, 1)[:, None])
    tl.store(out_ptr + r[:, None] * n + c[None, :], e / tl.sum(e, 1)[:, None], mask=c[None, :] < n)


@pytest.mark.parametrize("target", ROWS)
def test_rows_are_carried_out_one_by_one(target):
    """A softmax keeps the exponentials of one row, not of the tile (emit/rows.py)."""
    row = 256 * 4
    for rows in (16, 64):
        scratch = compiled(softmax_kernel, target, BM=rows, BN=256).metadata.scratch_bytes
        assert row <= scratch <= 4 * row, (rows, scratch)


@triton.jit
def pieces_kernel(a_ptr, b_ptr, out_ptr, k, sa, sb, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, READ: tl.constexpr):
    m, n, ks = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a_ptrs, b_ptrs = a_ptr + m[:, None] * sa + ks[None, :], b_ptr + ks[:, None] * sb + n[None, :]
    acc = tl.zeros((M, N), dtype=tl.float32)
    for _ in range(0, k, K):
        acc = tl.dot(tl.load(a_ptrs), tl.load(b_ptrs), acc, input_precision="ieee")
        if READ:  # somebody else reads the accumulators in each trip
            acc += tl.max(acc) * 0
        a_ptrs += K
        b_ptrs += K * sb
    tl.store(out_ptr + m[:, None] * N + n[None, :], acc)


@pytest.mark.parametrize("target", ROWS)
def test_short_pieces_of_k_are_multiplied_at_once(target):
    """A loop over short pieces goes through four at a time, in one micro-kernel, and through what is left in another; through two where four do not fit
    the target's scratch memory."""
    several, single = (compiled(pieces_kernel, target, M=64, N=64, K=32, READ=read) for read in (False, True))

    def products(k) -> int:
        return len(re.findall(r"call .*@llvm\.(?:fma|fmuladd)\.", k.asm["llir"]))

    assert several.asm["ttir"].count("= tt.dot") == (2 if targets.get(target).scratch else compiler.PIECES) + 1 and single.asm["ttir"].count("= tt.dot") == 1
    assert products(single) > 0 and products(several) == 2 * products(single)


@triton.jit
def kept_kernel(x_ptr, out_ptr, n, BM: tl.constexpr, BN: tl.constexpr):
    r, c = tl.arange(0, BM), tl.arange(0, BN)
    e = tl.exp(tl.load(x_ptr + r[:, None] * BN + c[None, :]))
    total = tl.sum(tl.sum(e, 0), 0)
    tl.store(out_ptr + r[:, None] * BN + c[None, :], e / total)


@pytest.mark.parametrize("target", ROWS)
def test_what_is_dear_and_used_twice_is_kept(target):
    """An exponential that a sum and a store need is computed once and kept in scratch, all of it."""
    k = compiled(kept_kernel, target, BM=16, BN=64)
    assert k.metadata.scratch_bytes >= 16 * 64 * 4


PRODUCTS_OF_ARGUMENTS = """module {
  tt.func public @kernel(%p: !tt.ptr<f32>, %a: i32, %b: i32, %c: i32) {
    %x = tt.get_program_id x : i32
    %r = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
    %start = arith.muli %x, %a : i32
    %starts = tt.splat %start : i32 -> tensor<64xi32>
    %bs = tt.splat %b : i32 -> tensor<64xi32>
    %cs = tt.splat %c : i32 -> tensor<64xi32>
    %rb = arith.muli %r, %bs : tensor<64xi32>
    %rbc = arith.muli %rb, %cs : tensor<64xi32>
    %at = arith.addi %rbc, %starts : tensor<64xi32>
    %ps = tt.splat %p : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>
    %q = tt.addptr %ps, %at : tensor<64x!tt.ptr<f32>>, tensor<64xi32>
    %zero = arith.constant dense<0.0> : tensor<64xf32>
    tt.store %q, %zero : tensor<64x!tt.ptr<f32>>
    tt.return
  }
}"""


def test_code_does_not_depend_on_where_python_put_things(seed):
    """An address's coefficient is a product of two arguments: their order is the kernel's, whatever memory they lie in."""
    texts, junk = set(), []
    for _ in range(30):
        junk = [[object() for _ in range(random.randrange(200))] for _ in range(random.randrange(20))]
        random.shuffle(junk)
        del junk[::2]
        texts.add(lower_module(reader.parse(PRODUCTS_OF_ARGUMENTS), targets.get("x86-64-v4")).text)
    assert len(texts) == 1
