"""x // C and x % C of flat indices, as Inductor addresses by them: right whatever C and x, and one access a chunk where it has one quotient."""

import re

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings, strategies as st
from test_masks import fenced
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
@pytest.mark.parametrize("c,r", [(64, 12), (768, 3), (16, 4), (8, 8), (100, 5), (7, 3), (49, 5), (50, 10), (31, 31), (96, 1), (1, 32), (1 << 20, 2)])
def test_flat_indices(c, r, kind, seed):
    for n, first, block, begin in (3000, 0, 256, 0), (2000, 37, 1024, 0), (777, 0, 64, 5), (500, 20, 16, 64):
        run(n, first, c, r, block, kind, begin, seed)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 900), st.integers(0, 40), st.sampled_from((2, 3, 4, 7, 16, 24, 32, 33, 48, 49, 50, 64, 80, 100, 128, 196, 200)), st.integers(1, 9), st.sampled_from((8, 16, 128, 512)),
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


def gathers(k) -> int:
    return sum("call" in line and "@llvm.masked.gather" in line for line in k.asm["llir"].splitlines())


@pytest.mark.parametrize("target,most", [("x86-64-v4", 16), ("x86-64-v3", 8), ("neoverse-v2", 4), ("x86-64-v2", 4)])
def test_one_access_a_chunk(target, most):
    """By the plan, and by LLVM's IR: the bias is a vector, w[x1] an element. Of a divisor that lanes do not divide in pieces that it does not pass, or, where no instruction stores lanes under a mask, in
    most chunks."""
    k = compiled(48, target)
    assert "remsi@" in (line := next(x for x in k.asm["plan"].splitlines() if "to out_ptr" in x)) and "a chunk at a time," in line and f"{most} lanes" in line
    odd = compiled(50, target)
    assert re.search(r"divsi@\d+, remsi@\d+ a chunk at a time where it has one quotient", odd.asm["plan"]) and "keeps remsi" not in odd.asm["plan"]
    assert gathers(odd) == {"neoverse-v2": 2}.get(target, 0) or target == "x86-64-v2"  # x itself, every third number, of a piece's last chunk, where no instruction loads it under a mask


@triton.jit
def shuffled_kernel(x_ptr, out_ptr, n, C: tl.constexpr, R: tl.constexpr, S: tl.constexpr, BLOCK: tl.constexpr):
    """Planes of C numbers, R by S of them transposed."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    at = i % C + C * (i // C % R * S + i // (C * R) % S) + C * R * S * (i // (C * R * S))
    tl.store(out_ptr + i, tl.load(x_ptr + at, mask=inside), mask=inside)


@pytest.mark.parametrize("c", [784, 64, 16])
def test_many_quotients_of_whole_chunks(c, seed):
    """Are numbers of a piece."""
    torch.manual_seed(seed)
    x, out = torch.randn(2, 5, 3, c), torch.full((30 * c + 64,), -1.0)
    shuffled_kernel[(triton.cdiv(30 * c, 256),)](x, out, 30 * c, c, 5, 3, 256)
    assert torch.equal(out[:30 * c].view(2, 3, 5, c), x.transpose(1, 2)) and (out[30 * c:] == -1).all()
    signature = {"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32", "C": "constexpr", "R": "constexpr", "S": "constexpr", "BLOCK": "constexpr"}
    made = triton.compile(ASTSource(shuffled_kernel, signature, {"C": c, "R": 5, "S": 3, "BLOCK": 256}), target=GPUTarget("cpu", "x86-64-v4", 1)).asm
    assert ("piece by piece" if c == 784 else f"pieces of {c} written out") in made["plan"]


@triton.jit
def work_kernel(x_ptr, w_ptr, out_ptr, n, C: tl.constexpr, BLOCK: tl.constexpr, HOW: tl.constexpr):
    """Of rows of C: HOW "exp": what takes several chunks side by side; "sum", "max", "argmax": a program's; "atomic": sums of rows; "assert"; "both": two stores of one index."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    x = tl.load(x_ptr + i, mask=inside, other=0.0)
    y = x * tl.load(w_ptr + i % C, mask=inside, other=0.0) + tl.load(w_ptr + (i // C) % 3, mask=inside, other=0.0)
    if HOW == "exp":
        tl.store(out_ptr + i, tl.exp(-tl.abs(y)), mask=inside)
    elif HOW == "sum":
        tl.store(out_ptr + tl.program_id(0), tl.sum(y, 0))
    elif HOW == "max":
        tl.store(out_ptr + tl.program_id(0), tl.max(tl.where(inside, y, -1e30), 0))
    elif HOW == "argmax":
        tl.store(out_ptr + tl.program_id(0), tl.argmax(tl.where(inside, y, -1e30), 0).to(tl.float32))
    elif HOW == "atomic":
        tl.atomic_add(out_ptr + i // C, y, mask=inside)
    elif HOW == "assert":
        tl.device_assert((i % C < C) & (x == x), "no number")
        tl.store(out_ptr + i, y, mask=inside)
    elif HOW == "both":
        tl.store(out_ptr + i, y, mask=inside)
        tl.store(out_ptr + n + i, (i % C + 2 * (i // C)).to(tl.float32), mask=inside)
    elif HOW == "where":  # what is stored where the comparison is false, too
        tl.store(out_ptr + i, tl.where(inside, y, 7.0))


@pytest.mark.parametrize("how", ["exp", "sum", "max", "argmax", "atomic", "assert", "both", "where"])
@pytest.mark.parametrize("c", [3, 7, 10, 17, 49, 50, 100, 196, 1000])
def test_what_is_done_by_pieces(c, how, seed):
    """Blocks that begin within rows, and memory that may not be read behind what is asked for."""
    torch.manual_seed(seed)
    for n, block in ((999, 128), (4 * c, 1024), (50, 64), (2 * c + 1, 16)):
        x, w, programs = torch.randn(n), torch.randn(max(c, 3)), triton.cdiv(n, block)
        i = torch.arange(n)
        y = x.double() * w[i % c] + w[i // c % 3]
        size = {"sum": programs, "max": programs, "argmax": programs, "atomic": -(-n // c), "both": 2 * n, "where": programs * block}.get(how, n)
        out = fenced(torch.zeros(size), True)
        work_kernel[(programs,)](fenced(x, True, writable=False), fenced(w, True, writable=False), out, n, c, block, how)
        parts = [y[k:k + block] for k in range(0, n, block)]
        want = {"exp": lambda: torch.exp(-y.abs()), "sum": lambda: torch.stack([p.sum() for p in parts]), "max": lambda: torch.stack([p.max() for p in parts]),
                "argmax": lambda: torch.stack([p.float().argmax() for p in parts]).double(), "atomic": lambda: torch.zeros(size, dtype=torch.float64).index_add(0, i // c, y),
                "both": lambda: torch.cat((y, (i % c + 2 * (i // c)).double())), "where": lambda: torch.cat((y, torch.full((size - n,), 7.0)))}.get(how, lambda: y)()
        assert (out.double() - want).abs().max() <= 3e-6 * max(1.0, float(want.abs().max())) * (block if how == "sum" else 4)


def test_an_assertion_by_pieces_that_fails():
    x, w, out = torch.zeros(1000), torch.randn(50), torch.zeros(1000)
    for at in (0, 49, 50, 999):
        given = x.clone()
        given[at] = float("nan")
        with pytest.raises(Exception, match="no number"):
            work_kernel[(8,)](given, w, out, 1000, 50, 128, "assert", debug=True)


@triton.jit
def rows_added_kernel(index_ptr, x_ptr, out_ptr, n, c, C: tl.constexpr, BLOCK: tl.constexpr, SOME: tl.constexpr, BACK: tl.constexpr):
    """Rows of C (0: c) are added to rows that indices choose, as gradients of embeddings are. SOME: numbers above 0 alone; BACK: each row from its end."""
    d = C if C else c
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    row, column = tl.load(index_ptr + i // d, mask=inside), i % d
    x = tl.load(x_ptr + i, mask=inside, other=0)
    if SOME:
        inside &= x > 0
    tl.atomic_add(out_ptr + row * d + (d - 1 - column if BACK else column), x, mask=inside, sem="relaxed")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64])
@pytest.mark.parametrize("c", [3, 16, 50, 100])
@pytest.mark.parametrize("alone", [True, False])
def test_rows_added_by_pieces(c, dtype, alone, seed):
    """By a kernel that runs alone and adds vectors, in pieces, and by one that adds atomically; whole numbers, so that no order rounds otherwise."""
    torch.manual_seed(seed)
    for k, (some, back) in enumerate(((False, False), (True, False), (False, True))):
        rows, of = 41, 5  # each row is chosen several times, also one behind the other
        index, x = torch.randint(of, (rows,)), torch.randint(-4, 5, (rows * c,)).to(dtype)
        out = fenced(torch.zeros(of * c, dtype=dtype), True)
        rows_added_kernel[(triton.cdiv(rows * c, 256),)](fenced(index, True, writable=False), fenced(x, True, writable=False), out, rows * c, c, c if k != 1 else 0, 256, some, back, alone=alone)
        y = x.view(rows, c)
        y = (y.clamp(min=0) if some else y).flip(1) if back else y.clamp(min=0) if some else y
        assert torch.equal(out.view(of, c).double(), torch.zeros(of, c, dtype=torch.float64).index_add(0, index, y.double()))


@pytest.mark.parametrize("target", ["x86-64-v4", "x86-64-v3"])
def test_rows_added_alone_are_vectors(target):
    signature, constants = {"index_ptr": "*i64", "x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32", "c": "i32"}, {"C": 100, "BLOCK": 256, "SOME": False, "BACK": False}
    k = triton.compile(ASTSource(rows_added_kernel, {**signature, **dict.fromkeys(constants, "constexpr")}, constants), target=GPUTarget("cpu", targets.get(target).name, 1),
                       options={"alone": True})
    assert gathers(k) <= 2 and k.asm["llir"].count("call void @llvm.masked.store") >= 1  # what masks leave over is gathered


@triton.jit
def rows_kernel(x_ptr, w_ptr, out_ptr, n, C: tl.constexpr, BLOCK: tl.constexpr):
    """A softmax of a row, of which each C numbers have a weight."""
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * n + i, mask=i < n, other=-float("inf")) + tl.load(w_ptr + i // C, mask=i < n, other=0.0)
    e = tl.exp(x - tl.max(x, 0))
    tl.store(out_ptr + tl.program_id(0) * n + i, e / tl.sum(e, 0) * (1 + tl.load(w_ptr + i % C, mask=i < n, other=0.0)), mask=i < n)


@pytest.mark.parametrize("c,n", [(50, 300), (49, 49), (7, 1000), (100, 1024)])
def test_rows_by_pieces(c, n, seed):
    torch.manual_seed(seed)
    x, w = torch.randn(5, n), torch.randn(max(c, -(-n // c)))
    out = torch.empty(5, n)
    rows_kernel[(5,)](x, w, out, n, c, triton.next_power_of_2(n))
    i = torch.arange(n)
    want = torch.softmax(x.double() + w[i // c], 1) * (1 + w[i % c].double())
    assert (out - want).abs().max() < 1e-6


@triton.jit
def argument_kernel(x_ptr, w_ptr, out_ptr, number_ptr, n, c, r, BLOCK: tl.constexpr, HOW: tl.constexpr, WIDE: tl.constexpr):
    """As Inductor's kernels of dynamic sizes: rows of c, r of them in a plane. HOW: "store", "sum", "atomic", "two stores"."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if WIDE:
        i = i.to(tl.int64)
    inside = i < n
    x0, x1, x2 = i % c, (i // c) % r, i // (c * r)
    y = tl.load(x_ptr + x0 + c * x2 + x1 * 0, mask=inside, other=0.0) + tl.load(w_ptr + x1, mask=inside, other=0.0)
    if HOW == "store":
        tl.store(out_ptr + i, y, mask=inside)
    elif HOW == "sum":
        tl.store(out_ptr + tl.program_id(0), tl.sum(y, 0))
    elif HOW == "atomic":
        tl.atomic_add(out_ptr + x2, y, mask=inside)
    else:
        tl.store(out_ptr + i, y, mask=inside)
        tl.store(number_ptr + i, x0 + 10000 * x1, mask=inside)


@pytest.mark.parametrize("how", ["store", "sum", "atomic", "two stores"])
@pytest.mark.parametrize("wide", [False, True])
def test_divisors_that_are_arguments(how, wide, seed):
    """Of 32 bits and of 64, long and short; one kernel for all, whose pieces are looked at as it runs."""
    torch.manual_seed(seed)
    for c, r in ((50, 3), (49, 7), (1, 1), (3, 5), (2, 1), (1000, 2), (17, 100), (128, 4), (5, 31)):
        for n, block in ((999, 128), (c * r, 1024), (4000, 64)):
            planes, programs = -(-n // (c * r)), triton.cdiv(n, block)
            x, w = torch.randint(-9, 10, (planes * c,)).float(), torch.randint(-9, 10, (r,)).float()  # whole numbers, whose sums are exact in any order
            i = torch.arange(n)
            x0, x1, x2 = i % c, i // c % r, i // (c * r)
            y = x.double()[x0 + c * x2] + w[x1]
            size = {"sum": programs, "atomic": planes}.get(how, n)
            out, numbers = fenced(torch.zeros(size), True), fenced(torch.zeros(n, dtype=torch.int64), True)
            argument_kernel[(programs,)](fenced(x, True, writable=False), fenced(w, True, writable=False), out, numbers, n, c, r, block, how, wide)
            want = {"sum": lambda: torch.stack([y[k:k + block].sum() for k in range(0, n, block)]),
                    "atomic": lambda: torch.zeros(planes, dtype=torch.float64).index_add(0, x2, y)}.get(how, lambda: y)()
            assert torch.equal(out, want.float()), (c, r, n, block)
            assert how != "two stores" or torch.equal(numbers, x0 + 10000 * x1)


@triton.jit
def any_divisor_kernel(out_ptr, c, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, i // c)
    tl.store(out_ptr + 1024 + i, i % c)


@pytest.mark.parametrize("c", [1, 2, 3, 4, 7, 16, 100, 5000, -1, -3, -50, -5000, (1 << 31) - 1, -(1 << 31)])
def test_arguments_below_zero(c):
    out, i = torch.zeros(2048, dtype=torch.int64), torch.arange(1024)
    any_divisor_kernel[(4,)](out, c, 256)
    q = torch.div(i, c, rounding_mode="trunc")
    assert torch.equal(out[:1024], q) and torch.equal(out[1024:], i - q * c)


def test_an_argument_of_zero_ends_nothing():
    """Whatever Triton leaves open: no fault of the process."""
    any_divisor_kernel[(4,)](torch.zeros(2048, dtype=torch.int64), 0, 256)


@pytest.mark.parametrize("target", ["x86-64-v4", "x86-64-v3", "neoverse-v2", "spacemit-x60"])
def test_arguments_in_the_plan(target):
    source = ASTSource(argument_kernel, {"x_ptr": "*fp32", "w_ptr": "*fp32", "out_ptr": "*fp32", "number_ptr": "*i64", "n": "i32", "c": "i64", "r": "i64", "BLOCK": "constexpr", "HOW": "constexpr", "WIDE": "constexpr"},
                       {"BLOCK": 256, "HOW": "store", "WIDE": False})
    plan = triton.compile(source, target=GPUTarget("cpu", targets.get(target).name, 1)).asm["plan"]
    assert re.search(r"remsi@\d+.* a chunk at a time where it has one quotient", plan)


@triton.jit
def carried_kernel(x_ptr, out_ptr, n, trips, c, C: tl.constexpr, BLOCK: tl.constexpr):
    """What a loop carries, which is read and written in scratch by each trip; C = 0: c is what is divided by."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    best = tl.full((BLOCK,), -1, tl.int32)
    for j in range(trips):
        by = C if C else c
        x = tl.load(x_ptr + j * by + i % by, mask=i < n, other=0.0) + (i // by) * 1.0
        best = tl.where(x > acc, j, best)
        acc = acc * 0.5 + x
    tl.store(out_ptr + i, acc, mask=i < n)
    tl.store(out_ptr + n + i, best.to(tl.float32), mask=i < n)


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("c", [3, 7, 49, 50, 64, 100])
def test_what_a_loop_carries(c, constant, seed):
    torch.manual_seed(seed)
    for n, trips, block in ((333, 5, 128), (2 * c, 3, 256), (99, 0, 32)):
        x = torch.randn(max(1, trips), c)
        out, i = torch.zeros(2 * n), torch.arange(n)
        carried_kernel[(triton.cdiv(n, block),)](fenced(x.flatten(), True, writable=False), out, n, trips, c, c if constant else 0, block)
        acc, best = torch.zeros(n), torch.full((n,), -1.0)
        for j in range(trips):
            y = x[j][i % c] + (i // c)
            best = torch.where(y > acc, float(j), best)
            acc = acc * 0.5 + y
        assert (out[:n] - acc).abs().max() < 1e-4 and (out[n:] != best).sum() <= 1  # a comparison may hang on fma's rounding


@triton.jit
def neighbours_kernel(x_ptr, out_ptr, C: tl.constexpr, B: tl.constexpr):
    """Pairs change places, and their second ones are multiplied, in a nest whose chunks could begin anywhere else."""
    i = tl.arange(0, B)
    x = tl.reshape(tl.load(x_ptr + i), [B // 2, 2])
    y = x ^ tl.broadcast_to(tl.xor_sum(x, 1, keep_dims=True), [B // 2, 2])
    second = tl.broadcast_to(tl.arange(0, 2)[None, :], [B // 2, 2])
    tl.store(out_ptr + 4 * B, tl.sum(tl.reshape(y, [B]), 0))
    tl.store(out_ptr + i + i // C, tl.reshape(tl.where(second == 1, y * 10, y), [B]))


@pytest.mark.parametrize("c", [5, 7, 33])
@pytest.mark.parametrize("b", [16, 64, 256])
def test_beside_what_counts_lanes(b, c, seed):
    torch.manual_seed(seed)
    x, out, i = torch.randint(0, 100, (b,), dtype=torch.int32), torch.full((4 * b + 1,), -7, dtype=torch.int32), torch.arange(b)
    neighbours_kernel[(1,)](x, out, c, b)
    y = x.view(-1, 2).flip(1)
    want = torch.full_like(out, -7)
    want[4 * b], want[i + i // c] = y.sum(), torch.stack([y[:, 0], y[:, 1] * 10], 1).flatten()
    assert torch.equal(out, want)


@triton.jit
def in_scratch_kernel(x_ptr, out_ptr, C: tl.constexpr, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out_ptr + i + i // C, tl.cumsum(tl.load(x_ptr + i), 0))


def test_nothing_is_read_behind_scratch(seed):
    """A piece's last chunk reads sums that lie in scratch, of which those that are not its own may lie behind all of it."""
    torch.manual_seed(seed)
    x, out, i = torch.randint(0, 9, (64,)), torch.zeros(80, dtype=torch.int64), torch.arange(64)
    in_scratch_kernel[(1,)](x, out, 5, 64)
    assert torch.equal(out[i + i // 5], x.cumsum(0))
    source = ASTSource(in_scratch_kernel, {"x_ptr": "*i64", "out_ptr": "*i64", "C": "constexpr", "B": "constexpr"}, {"C": 5, "B": 64})
    llir = triton.compile(source, target=GPUTarget("cpu", "x86-64-v4", 1)).asm["llir"]
    assert re.search("call.*@llvm.masked.load", llir)  # there is no mask in the kernel


@triton.jit
def permuted_kernel(x_ptr, out_ptr, sum_ptr, n, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, SA: tl.constexpr, SB: tl.constexpr, SC: tl.constexpr, SD: tl.constexpr, BLOCK: tl.constexpr):
    """Numbers of shape (.., C, B, A) with these strides, in a row; and each program's sum."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    at = (i % A) * SA + (i // A % B) * SB + (i // (A * B) % C) * SC + (i // (A * B * C)) * SD
    x = tl.load(x_ptr + at, mask=inside, other=0.0)
    tl.store(out_ptr + i, x, mask=inside)
    tl.store(sum_ptr + tl.program_id(0), tl.sum(x, 0))


@settings(max_examples=60, deadline=None)
@given(st.permutations(range(4)), st.lists(st.sampled_from((1, 2, 3, 6, 7, 16, 17, 32, 48, 50, 64, 100, 128, 130)), min_size=4, max_size=4), st.sampled_from((16, 64, 256, 1024)),
       st.sampled_from((torch.float32, torch.bfloat16, torch.float64)), st.integers(0, 1 << 30))
def test_permuted_dimensions(order, shape, block, dtype, drawn):
    """Quotients of quotients, whose divisors divide each other: pieces within pieces, those of a few chunks written out, up to pages that may not be touched."""
    torch.manual_seed(drawn)
    while (n := np.prod(shape)) > 60_000:
        shape[shape.index(max(shape))] //= 2
    x = torch.randint(-9, 9, tuple(shape)).to(dtype)
    want = x.permute(order).contiguous().flatten()
    (sd, sc, sb, sa), (_, c, b, a) = x.permute(order).stride(), x.permute(order).shape
    programs = triton.cdiv(int(n), block)
    for at_end in (False, True):
        given_, out, sums = fenced(x.flatten(), at_end, writable=False), fenced(torch.zeros(int(n), dtype=dtype), at_end), torch.zeros(programs)
        permuted_kernel[(programs,)](given_, out, sums, int(n), a, b, c, sa, sb, sc, sd, block)
        assert torch.equal(out, want), (order, shape, block)
    parts = torch.nn.functional.pad(want.double(), (0, programs * block - int(n))).view(programs, block).sum(1)
    if dtype != torch.bfloat16:
        assert torch.equal(sums.double(), parts)
