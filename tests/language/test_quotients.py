"""x // C and x % C of flat indices, as Inductor addresses by them: right whatever C and x, and one access a chunk where a chunk's lanes divide C."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings, strategies as st
from triport.backends.cpu.llvm import targets
from triport.checking import checks
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def flat_kernel(x_ptr, w_ptr, out_ptr, too_ptr, n, first, C: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr, INT: tl.constexpr, BEGIN: tl.constexpr):
    i = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(INT)
    inside = (i < n) & (i >= first)
    at = i + BEGIN
    x0, x1, x2 = at % C, (at // C) % R, at // (C * R)
    w = tl.load(w_ptr + x0, mask=inside, other=0.0) + tl.load(w_ptr + x1, mask=inside, other=0.0)
    tl.store(out_ptr + i, tl.load(x_ptr + x2 * C * R + x1 + x0 * R, mask=inside, other=0.0) * 2 + w, mask=inside)
    tl.store(too_ptr + i, x0 + 3 * x1, mask=inside)


def expected(x, w, n, first, c, r, begin):
    at = np.arange(n) + begin
    x0, x1, x2 = at % c, at // c % r, at // (c * r)
    out = x[x2 * c * r + x1 + x0 * r] * 2 + (w[x0] + w[x1])
    inside = np.arange(n) >= first
    return np.where(inside, out, -1).astype(np.float32), np.where(inside, x0 + 3 * x1, -1)


def run(n, first, c, r, block, kind, begin, seed):
    torch.manual_seed(seed)
    x, w = torch.randn((n + begin + c * r) // (c * r) * c * r), torch.randn(max(c, r))
    out, too = torch.full((n + 64,), -1.0), torch.full((n + 64,), -1, dtype=torch.int64)
    flat_kernel[(triton.cdiv(n, block),)](x, w, out, too, n, first, C=c, R=r, BLOCK=block, INT=kind, BEGIN=begin)
    want, numbers = expected(x.numpy(), w.numpy(), n, first, c, r, begin)
    np.testing.assert_allclose(out[:n], want, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(too[:n], numbers)
    assert (out[n:] == -1).all() and (too[n:] == -1).all()


@pytest.mark.parametrize("kind", [tl.int32, tl.int64, tl.uint32, tl.uint64])
@pytest.mark.parametrize("c,r", [(64, 12), (768, 3), (16, 4), (8, 8), (100, 5), (7, 3), (96, 1), (1, 32), (1 << 20, 2)])
def test_flat_indices(c, r, kind, seed):
    for n, first, block, begin in (3000, 0, 256, 0), (2000, 37, 1024, 0), (777, 0, 64, 5), (500, 20, 16, 64):
        run(n, first, c, r, block, kind, begin, seed)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 900), st.integers(0, 40), st.sampled_from((2, 3, 16, 24, 32, 48, 64, 80, 128, 200)), st.integers(1, 9), st.sampled_from((8, 16, 128, 512)),
       st.sampled_from((tl.int32, tl.int64, tl.uint32)), st.sampled_from((0, 1, 16, 40, 64)), st.integers(0, 2**31))
def test_any_flat_indices(n, first, c, r, block, kind, begin, seed):
    run(n, first, c, r, block, kind, begin, seed)


def test_with_every_access_checked(seed):
    with checks("bounds"):
        run(1000, 3, 64, 3, 256, tl.int32, 0, seed)
        with pytest.raises(Exception, match="w_ptr"):
            x, w, out, too = torch.randn(9 * 64), torch.randn(40), torch.empty(256), torch.empty(256, dtype=torch.int64)
            flat_kernel[(1,)](x, w, out, too, 256, 0, C=64, R=3, BLOCK=256, INT=tl.int32, BEGIN=0)


@triton.jit
def loop_kernel(x_ptr, out_ptr, n, BEGIN: tl.constexpr, STEP: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    for start in range(BEGIN, n, STEP):
        i = start + tl.arange(0, BLOCK)
        tl.store(out_ptr + i, tl.load(x_ptr + i % C) + i // C, mask=i < n)


@pytest.mark.parametrize("begin,step", [(0, 64), (3, 64), (0, 24), (0, 33), (32, 48)])
def test_a_loops_counter(begin, step, seed):
    torch.manual_seed(seed)
    n, x = 1000, torch.randn(96)
    out = torch.full((n,), -1.0)
    loop_kernel[(1,)](x, out, n, begin, step, 96, 64)
    i = torch.arange(n)
    written = (i >= begin) & ((i - begin) % step < 64)
    assert torch.equal(out, torch.where(written, x[i % 96] + i // 96, -1.0))


@triton.jit
def signed_kernel(x_ptr, out_ptr, shift, C: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = i - 128
    tl.store(out_ptr + i, tl.load(x_ptr + 64 + at % C) + 100 * (at // C))
    at = i + shift
    tl.store(out_ptr + BLOCK + i, tl.load(x_ptr + 64 + at % C) + 100 * (at // C))


def test_below_zero(seed):
    """C's rules, which Triton has: quotients go towards zero, remainders have the sign of what is divided."""
    torch.manual_seed(seed)
    x, out = torch.randn(128), torch.empty(512)
    signed_kernel[(1,)](x, out, -192, 64, 256)
    for k, shift in enumerate((-128, -192)):
        at = torch.arange(256) + shift
        q = torch.div(at, 64, rounding_mode="trunc")
        torch.testing.assert_close(out[256 * k:256 * (k + 1)], x[64 + at - 64 * q] + 100 * q)


@triton.jit
def wraps_kernel(x_ptr, out_ptr, first, K: tl.constexpr, SPLAT: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    p = tl.program_id(0)
    if p >= first:
        i = tl.arange(0, BLOCK)
        at = (tl.full((BLOCK,), 1, tl.int32) * (p * K)).to(tl.int64) + i if SPLAT else (p * K).to(tl.int64) + i
        tl.store(out_ptr + (p - first) * BLOCK + i, tl.load(x_ptr + at % C) * 0 + at % C)
        tl.store(out_ptr + (4 + p - first) * BLOCK + i, at // C)


@pytest.mark.parametrize("splat", [False, True])
@pytest.mark.parametrize("c", [768, 64])
def test_what_wraps_before_it_is_extended(c, splat):
    """A product in 32 bits that is below zero; the launch before, of few programs, is none."""
    for first in (0, 1 << 21):
        out, x = torch.empty(8 * 1024, dtype=torch.int64), torch.zeros(2 * c, dtype=torch.int64)
        wraps_kernel[(first + 4,)](x[c:], out, first, 1024, splat, c, 1024)
        at = ((torch.arange(first, first + 4) * 1024).to(torch.int32).long()[:, None] + torch.arange(1024)).flatten()
        q = torch.div(at, c, rounding_mode="trunc")
        assert torch.equal(out[:4096], at - q * c) and torch.equal(out[4096:], q), first


@triton.jit
def counted_kernel(out_ptr, n, K: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    for j in range(0, n):
        at = (j * K).to(tl.int64) + i
        tl.store(out_ptr + j * BLOCK + i, at % 64)
        tl.store(out_ptr + (n + j) * BLOCK + i, at // 64)


def test_a_counters_product_that_wraps():
    out, n, k = torch.empty(12 * 32, dtype=torch.int64), 6, (1 << 29) + 16
    counted_kernel[(1,)](out, n, k, 32)
    at = ((torch.arange(n) * k).to(torch.int32).long()[:, None] + torch.arange(32)).flatten()
    q = torch.div(at, 64, rounding_mode="trunc")
    assert torch.equal(out[:n * 32], at - 64 * q) and torch.equal(out[n * 32:], q)


@triton.jit
def divisor_kernel(out_ptr, B: tl.constexpr, A: tl.constexpr, D: tl.constexpr):
    i = tl.arange(0, B)
    d = ((i + A) - (i - D)) * 2  # 64, after it wrapped
    at = i.to(tl.int64) + tl.program_id(0) * B
    tl.store(out_ptr + at, at // d.to(tl.int64))
    tl.store(out_ptr + 512 + at, at % d.to(tl.int64))


def test_a_divisor_that_wraps():
    out, at = torch.empty(1024, dtype=torch.int64), torch.arange(512)
    divisor_kernel[(8,)](out, 64, 2147483000, 2**31 + 32 - 2147483000)
    assert torch.equal(out[:512], at // 64) and torch.equal(out[512:], at % 64)


@triton.jit
def apart_kernel(x_ptr, out_ptr, C: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + 2 * i % C) + 1000 * tl.load(x_ptr + (i * i + i) % C) + 3 * i // C)


def test_indices_that_do_not_count_lanes(seed):
    torch.manual_seed(seed)
    x, out, i = torch.randn(64), torch.empty(512), torch.arange(512)
    apart_kernel[(4,)](x, out, 64, 128)
    torch.testing.assert_close(out, x[2 * i % 64] + 1000 * x[(i * i + i) % 64] + 3 * i // 64)


@triton.jit
def tile_kernel(x_ptr, out_ptr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    i = (tl.program_id(0) * M + tl.arange(0, M))[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out_ptr + i, tl.load(x_ptr + i % C) * tl.load(x_ptr + (i // C) % 5))
    tl.atomic_add(out_ptr + 4 * M * N + i // C, 1.0)


@pytest.mark.parametrize("c", [32, 48, 64, 50])
def test_tiles_and_atomics(c, seed):
    torch.manual_seed(seed)
    x, out = torch.randn(64), torch.zeros(4 * 8 * 64 + 128)
    tile_kernel[(4,)](x, out, c, 8, 64)
    i = torch.arange(4 * 8 * 64)
    assert torch.equal(out[:i.numel()], x[i % c] * x[i // c % 5])
    assert torch.equal(out[i.numel():], torch.bincount(i // c, minlength=128).float())


def compiled(c: int, target: str):
    signature = {"x_ptr": "*fp32", "w_ptr": "*fp32", "out_ptr": "*fp32", "too_ptr": "*i64", "n": "i32", "first": "i32"}
    constants = {"C": c, "R": 3, "BLOCK": 256, "INT": tl.int32, "BEGIN": 0}
    return triton.compile(ASTSource(flat_kernel, {**signature, **dict.fromkeys(constants, "constexpr")}, constants), target=GPUTarget("cpu", targets.get(target).name, 1))


@pytest.mark.parametrize("target,most", [("x86-64-v4", 16), ("x86-64-v3", 8), ("neoverse-v2", 4)])
def test_one_access_a_chunk(target, most):
    """By the plan, and by LLVM's IR: the bias is a vector, w[x1] an element; x itself is strided, and gathered. A divisor that lanes do not divide is gathered throughout."""
    k = compiled(48, target)
    assert "remsi@" in (line := next(x for x in k.asm["plan"].splitlines() if "to out_ptr" in x)) and "a chunk at a time" in line and f"{most} lanes" in line
    odd = compiled(50, target)
    assert "a chunk at a time" not in odd.asm["plan"]
    per = [sum("call" in line and "@llvm.masked.gather" in line for line in x.asm["llir"].splitlines()) for x in (k, odd)]
    assert 0 < 3 * per[0] <= per[1], per
