"""Loads, stores and values in scratch that lie along another dimension than the one that goes over lanes (plan/turning.py)."""

import dataclasses
import re

import pytest
import torch
import triton
import triton.language as tl
from test_masks import fenced
from triport.backends.cpu.llvm import targets
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

BLOCKS = "blocks of (\\d+) x \\1 that are transposed"
GUARD = 37


@triton.jit
def copy_kernel(x_ptr, out_ptr, m, k, step, line, BM: tl.constexpr, BK: tl.constexpr):
    """out (m x k, lines `line` apart) = x transposed, whose lines are `step` apart."""
    r, c = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BK + tl.arange(0, BK)
    inside = (r[:, None] < m) & (c[None, :] < k)
    tl.store(out_ptr + r[:, None] * line + c[None, :], tl.load(x_ptr + c[None, :] * step + r[:, None], mask=inside), mask=inside)


@triton.jit
def turn_kernel(x_ptr, out_ptr, m, k, step, line, BM: tl.constexpr, BK: tl.constexpr):
    """The same by tl.trans."""
    r, c = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BK + tl.arange(0, BK)
    x = tl.load(x_ptr + c[:, None] * step + r[None, :], mask=(c[:, None] < k) & (r[None, :] < m))
    tl.store(out_ptr + r[:, None] * line + c[None, :], tl.trans(x), mask=(r[:, None] < m) & (c[None, :] < k))


DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float8_e5m2, torch.bool)


def numbers(shape, dtype, seed):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 50
    return x > 0 if dtype == torch.bool else x.to(dtype)


@pytest.fixture(params=["native", "256 bits, 16 registers", "128 bits, 32 registers", "off"])
def width(request, monkeypatch):
    """Blocks of other sides, and none. What was compiled for another row is not known within it."""
    row, kernels = targets.native(), [f for f in globals().values() if isinstance(f, triton.JITFunction)]
    if request.param != "native":
        bits, registers = (int(n) for n in re.findall(r"\d+", request.param)) if request.param != "off" else (row.vector_bits, row.registers)
        if bits > row.vector_bits:
            pytest.skip(f"vectors here have {row.vector_bits} bits")
        # what the widest registers alone have instructions for
        narrow = {} if bits == row.vector_bits else {"scalef": False, "to_bf16": "", "products": (), "estimate": "", "divides": 0, "gathers": 0}
        made = dataclasses.replace(row, isa=f"turned, {request.param}", vector_bits=bits, registers=registers, turns=request.param != "off", **narrow)
        monkeypatch.setattr(targets, "native", lambda: made)
    for kernel in kernels:
        kernel.device_caches.clear()
    yield request.param
    for kernel in kernels:
        kernel.device_caches.clear()


def test_the_widths_of_this_module(width):
    x, out = torch.randn(64, 64), torch.empty(64, 64)
    made = copy_kernel[(1,)](x, out, 64, 64, 64, 64, BM=64, BK=64)
    sides = [int(n) for n in re.findall(BLOCKS, made.asm["plan"])]
    native = targets.native()
    assert sides == ([min(native.vector_bits // 32, native.registers // 2)] if native.turns else []) and torch.equal(out, x.T)
    assert sides == {"256 bits, 16 registers": [8], "128 bits, 32 registers": [4], "off": []}.get(width, sides)


@pytest.mark.parametrize("kernel", [copy_kernel, turn_kernel])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_copies(kernel, dtype, width, seed):
    """Of whole tiles and of parts, from lines with gaps to lines with gaps, whose gaps stay."""
    for m, k, room, tile in ((64, 64, 0, (64, 64)), (67, 41, 3, (32, 32)), (130, 33, 0, (64, 16)), (17, 200, 5, (16, 128)), (5, 3, 0, (32, 64)), (100, 64, 1, (128, 16))):
        x, out = numbers((k, m + room), dtype, seed), numbers((m, k + 2), dtype, seed + 1)
        before = out.clone()
        kernel[(triton.cdiv(m, tile[0]), triton.cdiv(k, tile[1]))](x, out, m, k, m + room, k + 2, BM=tile[0], BK=tile[1])
        as_bytes = (out, x, before) if dtype != torch.float8_e5m2 else (t.view(torch.uint8) for t in (out, x, before))
        got, given, kept = as_bytes
        assert torch.equal(got[:, :k], given[:, :m].T) and torch.equal(got[:, k:], kept[:, k:]), (m, k)


@triton.jit
def mixed_kernel(x_ptr, y_ptr, out_ptr, idx_ptr, m, k, other, BM: tl.constexpr, BK: tl.constexpr):
    """Straight and turned operands, other numbers outside of a mask that is no box, lines by index."""
    r, c = tl.arange(0, BM), tl.arange(0, BK)
    inside = (r[:, None] < m) & (c[None, :] < k)
    y = tl.load(y_ptr + r[:, None] * k + c[None, :], mask=inside, other=0.0)
    x = tl.load(x_ptr + c[None, :] * m + r[:, None], mask=inside & ((r[:, None] + c[None, :]) % 3 != 0), other=other)
    line = tl.load(idx_ptr + c, mask=c < k, other=0)
    z = tl.load(x_ptr + line[None, :] * m + r[:, None], mask=inside, other=0.0)
    tl.store(out_ptr + r[:, None] * k + c[None, :], x * 2 + y * z, mask=inside)


@pytest.mark.parametrize("m, k, tile", [(64, 64, (64, 64)), (61, 47, (64, 64)), (20, 16, (32, 16))])
def test_with_others(m, k, tile, width, seed):
    x, y, out = numbers((k, m), torch.float32, seed), numbers((m, k), torch.float32, seed + 1), torch.empty(m, k)
    idx = torch.randint(k, (k,), generator=torch.Generator().manual_seed(seed))
    mixed_kernel[(1,)](x, y, out, idx, m, k, -7.5, BM=tile[0], BK=tile[1])
    there = (torch.arange(m)[:, None] + torch.arange(k)) % 3 != 0
    assert torch.allclose(out, torch.where(there, x.T, -7.5) * 2 + y * x[idx].T, rtol=1e-6, atol=2e-3), "sums of some thousands"


@triton.jit
def symmetric_kernel(x_ptr, out_ptr, B: tl.constexpr):
    """One load, read along both dimensions."""
    r, c = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    x = tl.load(x_ptr + r * B + c)
    tl.store(out_ptr + r * B + c, x * 2 + tl.trans(x))
    y = x - tl.trans(x) * 3
    tl.store(out_ptr + B * B + r * B + c, y + tl.trans(y))


def test_what_is_read_both_ways(width, seed):
    x, out = numbers((32, 32), torch.float32, seed).round(), torch.empty(2, 32, 32)
    symmetric_kernel[(1,)](x, out, B=32)
    y = x - x.T * 3
    assert torch.equal(out[0], x * 2 + x.T) and torch.equal(out[1], y + y.T)


@triton.jit
def channels_kernel(x_ptr, out_ptr, ynumel, xnumel, PLANE: tl.constexpr, C: tl.constexpr, YBLOCK: tl.constexpr, XBLOCK: tl.constexpr):
    """Channels last -> first, by flat indices as Inductor has them."""
    y, x = (tl.program_id(1) * YBLOCK + tl.arange(0, YBLOCK))[:, None], (tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK))[None, :]
    inside = (y < ynumel) & (x < xnumel)
    tl.store(out_ptr + x + PLANE * y, tl.load(x_ptr + y % C + C * x + PLANE * C * (y // C), inside) * 2, inside)


@triton.jit
def back_kernel(x_ptr, out_ptr, ynumel, xnumel, PLANE: tl.constexpr, C: tl.constexpr, YBLOCK: tl.constexpr, XBLOCK: tl.constexpr):
    """Channels first -> last."""
    y, x = (tl.program_id(1) * YBLOCK + tl.arange(0, YBLOCK))[:, None], (tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK))[None, :]
    inside = (y < ynumel) & (x < xnumel)
    tl.store(out_ptr + y % C + C * x + PLANE * C * (y // C), tl.load(x_ptr + x + PLANE * y, inside) * 2, inside)


@pytest.mark.parametrize("c, dtype", [(64, torch.float32), (50, torch.float32), (100, torch.float32), (33, torch.float32), (31, torch.float32), (7, torch.float32), (1, torch.float32),
                                      (48, torch.bfloat16), (50, torch.bfloat16), (300, torch.float64)], ids=str)
def test_flat_indices(c, dtype, width, seed):
    """Whether or not blocks divide the channels, up to pages that may not be touched."""
    batch, plane = 3, 70
    x = numbers((batch, plane, c), dtype, seed)
    for n, tile in enumerate(((32, 32), (16, 64), (128, 16))):
        grid = (triton.cdiv(plane, tile[1]), triton.cdiv(batch * c, tile[0]))
        out, back = (fenced(torch.zeros(x.numel(), dtype=dtype), n % 2).view(shape) for shape in ((batch, c, plane), (batch, plane, c)))
        channels_kernel[grid](fenced(x.flatten(), n % 2, writable=False), out, batch * c, plane, plane, c, *tile)
        assert torch.equal(out, x.transpose(1, 2) * 2)
        back_kernel[grid](out, back, batch * c, plane, plane, c, *tile)
        assert torch.equal(back, x * 4)


@triton.jit
def gaps_kernel(x_ptr, out_ptr, ynumel, xnumel, most, C: tl.constexpr, GAP: tl.constexpr, STEP: tl.constexpr, YBLOCK: tl.constexpr, XBLOCK: tl.constexpr):
    """The first `most` groups of C, behind each of which there is a gap, transposed: the index itself counts, beside its quotient, which a mask asks for, too."""
    y, x = (tl.program_id(1) * YBLOCK + tl.arange(0, YBLOCK))[:, None], (tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK))[None, :]
    inside = (y < ynumel) & (x < xnumel)
    tl.store(out_ptr + x + xnumel * y, tl.load(x_ptr + y + GAP * (y // C) + STEP * x, inside & (y // C < most), -3), inside)


@pytest.mark.parametrize("c", [64, 50, 33])
def test_groups_with_gaps(c, width, seed):
    groups, lines, gap, most = 5, 40, 3, 3
    x, out = numbers((lines, groups, c + gap), torch.float32, seed), torch.empty(groups, c, lines)
    for tile in ((64, 32), (16, 16)):
        made = gaps_kernel[(triton.cdiv(lines, tile[1]), triton.cdiv(groups * c, tile[0]))](x, out.zero_(), groups * c, lines, most, c, gap, groups * (c + gap), *tile)
        assert torch.equal(out[:most], x[:, :most, :c].permute(1, 2, 0)) and (out[most:] == -3).all()
    if width == "256 bits, 16 registers":
        assert re.search(BLOCKS, made.asm["plan"])


@triton.jit
def asked_kernel(x_ptr, flags_ptr, bias_ptr, out_ptr, n, m, C: tl.constexpr, BY: tl.constexpr, BX: tl.constexpr):
    """A mask asks for a line of C numbers by quotients along the one dimension, what is added for one along the other."""
    y, x = tl.arange(0, BY)[:, None], tl.arange(0, BX)[None, :]
    inside = (y < n) & (x < m)
    flag = tl.load(flags_ptr + y % C, mask=y < n, other=0)
    v = tl.load(x_ptr + y + x * n, mask=inside & (flag > 0), other=0)
    tl.store(out_ptr + y * m + x, v + tl.load(bias_ptr + x % C, mask=x < m, other=0), mask=inside & (y % 3 != 0))


@pytest.mark.parametrize("c", [33, 50])
def test_nothing_is_read_for_the_other_case(c, width, seed):
    """What a chunk of one quotient loads side by side is not loaded where there are two, which would pass the end of a line."""
    n, m = 64, 61
    x, out = numbers((m, n), torch.float32, seed), torch.full((n, m), 7.0)
    flags, bias = (fenced(numbers((c,), torch.float32, seed + k), True, writable=False) for k in (1, 2))
    made = asked_kernel[(1,)](x, flags, bias, out, n, m, c, 64, 64)
    y, k = torch.arange(n), torch.arange(m)
    want = torch.where((flags[y % c] > 0)[:, None], x.T, 0) + bias[k % c]
    assert torch.equal(out, torch.where((y % 3 != 0)[:, None], want, 7.0))
    assert width != "256 bits, 16 registers" or re.search(BLOCKS, made.asm["plan"])


@pytest.mark.parametrize("kernel", [channels_kernel, back_kernel])
@pytest.mark.parametrize("target, side", [("x86-64-v4", 16), ("x86-64-v3", 8), ("neoverse-v2", 4)])
def test_blocks_that_pass_a_multiple(kernel, target, side):
    """Most blocks have one quotient, and those that have two are loaded by halves: nothing is gathered. Of quotients that few blocks have, all is."""
    for c, wanted in ((64, True), (50, True), (2 * side + 1, True), (2 * side - 1, False)):
        asm = compiled(kernel, target, PLANE=70, C=c, YBLOCK=64, XBLOCK=64)
        assert bool(re.search(BLOCKS, asm["plan"])) == wanted, c
        if kernel is channels_kernel:
            assert bool(re.search(r"call .*@llvm.masked.gather", asm["llir"])) == (not wanted), c
            loaded = asm["plan"].partition("is loaded with")[2]
            assert not wanted or ("a chunk at a time where it has one quotient" in loaded) == (c % side != 0)


@triton.jit
def in_place_kernel(x_ptr, n, B: tl.constexpr):
    """All is read before anything is written."""
    r, c = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    inside = (r < n) & (c < n)
    tl.store(x_ptr + r * n + c, tl.load(x_ptr + c * n + r, mask=inside), mask=inside)


@triton.jit
def between_kernel(x_ptr, out_ptr, B: tl.constexpr):
    """A load behind a store to the same memory sees it, one in front of it does not."""
    r, c = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    before = tl.load(x_ptr + c * B + r)
    tl.store(x_ptr + r * B + c, tl.load(x_ptr + r * B + c) + 1)
    behind = tl.load(x_ptr + c * B + r)
    tl.store(out_ptr + r * B + c, before * 1000 + behind)


def test_order_of_memory(width, seed):
    for n in (64, 50):
        x = numbers((n, n), torch.float32, seed)
        want = x.T.clone()
        in_place_kernel[(1,)](x, n, B=64)
        assert torch.equal(x, want)
    x, out = torch.randint(100, (64, 64), generator=torch.Generator().manual_seed(seed)).float(), torch.empty(64, 64)
    old = x.clone()
    between_kernel[(1,)](x, out, B=64)
    assert torch.equal(x, old + 1) and torch.equal(out, old.T * 1000 + old.T + 1)


@triton.jit
def sums_kernel(x_ptr, y_ptr, sums_ptr, out_ptr, n, BM: tl.constexpr, BK: tl.constexpr, TRIPS: tl.constexpr):
    """In a loop, with sums over lines and over columns of what is turned and what is not, and a softmax behind it."""
    r, c = tl.arange(0, BM), tl.arange(0, BK)
    total = tl.zeros((BM, BK), tl.float32)
    for trip in range(TRIPS):
        x = tl.load(x_ptr + (trip * BK + c[None, :]) * n + r[:, None], mask=r[:, None] < n, other=0.0)
        y = tl.load(y_ptr + r[:, None] * BK * TRIPS + trip * BK + c[None, :], mask=r[:, None] < n, other=0.0)
        total += x * y
    tl.store(sums_ptr + c, tl.sum(total, 0))
    e = tl.exp(total - tl.max(total, 1)[:, None])
    tl.store(out_ptr + r[:, None] * BK + c[None, :], e / tl.sum(e, 1)[:, None], mask=r[:, None] < n)


def test_loops_and_sums(width, seed):
    n, bk, trips = 27, 16, 3
    x, y = (numbers(s, torch.float32, seed + i) / 50 for i, s in enumerate(((bk * trips, n), (n, bk * trips))))
    sums, out = torch.empty(bk), torch.empty(n, bk)
    sums_kernel[(1,)](x, y, sums, out, n, BM=32, BK=bk, TRIPS=trips)
    total = (x.T.double() * y.double()).view(n, trips, bk).sum(1)
    assert torch.allclose(sums.double(), total.sum(0), rtol=1e-5, atol=1e-5) and torch.allclose(out.double(), torch.softmax(total, 1), rtol=1e-5)


@triton.jit
def cube_kernel(x_ptr, out_ptr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    """out[c, a, b] = x[a, b, c]."""
    a, b, c = tl.arange(0, A)[None, :, None], tl.arange(0, B)[None, None, :], tl.arange(0, C)[:, None, None]
    tl.store(out_ptr + (c * A + a) * B + b, tl.load(x_ptr + (a * B + b) * C + c) + 1)


def test_three_dimensions(width, seed):
    for a, b, c in ((4, 32, 16), (2, 16, 64), (16, 2, 32)):
        x, out = numbers((a, b, c), torch.float32, seed), torch.empty(c, a, b)
        cube_kernel[(1,)](x, out, a, b, c)
        assert torch.equal(out, x.permute(2, 0, 1) + 1)


@triton.jit
def both_ways_kernel(x_ptr, y_ptr, out_ptr, turned_ptr, m, k, BM: tl.constexpr, BK: tl.constexpr, STRAIGHT: tl.constexpr):
    """What is computed of straight loads is stored turned, and straight before it."""
    r, c = tl.program_id(0) * BM + tl.arange(0, BM)[:, None], tl.program_id(1) * BK + tl.arange(0, BK)[None, :]
    inside = (r < m) & (c < k)
    x, y = tl.load(x_ptr + r * k + c, mask=inside, other=1.0), tl.load(y_ptr + r * k + c, mask=inside, other=1.0)
    z = tl.exp(x * 0.01).to(x.dtype) + y
    if STRAIGHT:
        tl.store(out_ptr + r * k + c, z, mask=inside)
    tl.store(turned_ptr + c * m + r, z, mask=inside)


@pytest.mark.parametrize("straight", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_stores(dtype, straight, width, seed):
    for m, k, tile in ((64, 64, (64, 64)), (130, 41, (32, 64)), (33, 130, (128, 16)), (70, 70, (16, 16))):
        x, y = numbers((m, k), dtype, seed), numbers((m, k), dtype, seed + 1)
        out, turned = torch.full((m, k), 7, dtype=dtype), torch.full((m * k + 2 * GUARD,), 7, dtype=dtype)
        both_ways_kernel[(triton.cdiv(m, tile[0]), triton.cdiv(k, tile[1]))](x, y, out, turned[GUARD:], m, k, BM=tile[0], BK=tile[1], STRAIGHT=straight)
        want = (x * 0.01).exp() + y
        got = turned[GUARD:-GUARD].view(k, m).T
        assert torch.allclose(got, want, rtol=1e-6, atol=1e-5) and (turned[:GUARD] == 7).all() and (turned[-GUARD:] == 7).all()
        assert torch.equal(out, got) if straight else (out == 7).all()


@triton.jit
def with_a_row_kernel(x_ptr, row_ptr, out_ptr, B: tl.constexpr):
    """What is one line, and in scratch, beside what is stored turned: as a matrix of one row, and as a vector."""
    r, c, i = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :], tl.arange(0, B)
    row, column, vector = tl.load(row_ptr + c), tl.load(row_ptr + r), tl.load(row_ptr + i)
    tl.store(row_ptr + i, vector + 1)
    tl.store(out_ptr + r + c * B, tl.load(x_ptr + r * B + c) + row * column + vector[None, :] + vector[:, None])


def test_lines_beside_what_is_turned(width, seed):
    x, row, out = numbers((32, 32), torch.float32, seed).round(), numbers((32,), torch.float32, seed + 1).round(), torch.empty(32, 32)
    old = row.clone()
    with_a_row_kernel[(1,)](x, row, out, B=32)
    assert torch.equal(out.T, x + old * old[:, None] + old + old[:, None]) and torch.equal(row, old + 1)


@triton.jit
def sum_and_copy_kernel(x_ptr, copy_ptr, sums_ptr, m, k, BM: tl.constexpr, BK: tl.constexpr):
    """A loop sums lines along their terms, and copies them to where these lie side by side."""
    r = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    total = tl.full([BM, BK], 0, tl.float32)
    for begin in range(0, k, BK):
        c = begin + tl.arange(0, BK)[None, :]
        inside = (c < k) & (r < m)
        x = tl.load(x_ptr + c * m + r, mask=inside, other=0.0)
        total = tl.where(inside, total + x, total)
        tl.store(copy_ptr + r * k + c, x, mask=inside)
    tl.store(sums_ptr + r, tl.sum(total, 1)[:, None], mask=r < m)


def test_what_others_read_as_it_lies(width, seed):
    """A load that is turned for one root's sake stays as it is for others."""
    for m, k, tile in ((64, 64, (64, 32)), (100, 70, (32, 16)), (30, 130, (32, 64))):
        x, copy, sums = numbers((k, m), torch.float32, seed), torch.empty(m, k), torch.empty(m)
        made = sum_and_copy_kernel[(triton.cdiv(m, tile[0]),)](x, copy, sums, m, k, BM=tile[0], BK=tile[1])
        assert torch.equal(copy, x.T) and torch.allclose(sums.double(), x.double().sum(0), rtol=1e-5, atol=1e-3)
    if width == "native" and targets.native().turns:
        carried, = re.findall(r"put select@.* lanes along 0", made.asm["plan"])
        assert "transposed" not in carried and "masked.gather" not in made.asm["llir"]
        assert re.search(r"put constant into memory .* lanes along 0, because carried", made.asm["plan"]), "as what becomes of it lies"


@triton.jit
def product_kernel(a_ptr, b_ptr, out_ptr, turned_ptr, m, n, k, B: tl.constexpr):
    """c and its transpose, both times by factors of c's lines."""
    r, c, t = tl.program_id(0) * B + tl.arange(0, B), tl.program_id(1) * B + tl.arange(0, B), tl.arange(0, B)
    acc = tl.zeros((B, B), tl.float32)
    for begin in range(0, k, B):
        inside = begin + t < k
        a = tl.load(a_ptr + r[:, None] * k + begin + t[None, :], mask=(r[:, None] < m) & inside[None, :], other=0.0)
        b = tl.load(b_ptr + (begin + t[:, None]) * n + c[None, :], mask=inside[:, None] & (c[None, :] < n), other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    inside = (r[:, None] < m) & (c[None, :] < n)
    acc *= r[:, None] + 1
    tl.store(out_ptr + r[:, None] * n + c[None, :], acc, mask=inside)
    tl.store(turned_ptr + c[None, :] * m + r[:, None], acc, mask=inside)


def test_products(width, seed):
    for m, n, k in ((32, 32, 32), (70, 45, 100), (33, 128, 16)):
        a, b = numbers((m, k), torch.float32, seed) / 50, numbers((k, n), torch.float32, seed + 1) / 50
        out, turned = torch.empty(m, n), torch.empty(n, m)
        product_kernel[(triton.cdiv(m, 32), triton.cdiv(n, 32))](a, b, out, turned, m, n, k, B=32)
        want = a.double() @ b.double() * torch.arange(1, m + 1)[:, None]
        assert torch.equal(out, turned.T) and (out - want).abs().max() < 1e-5 * want.abs().max()


def compiled(kernel, target, elem="fp32", **constants):
    types = {"idx_ptr": "*i64", "other": "fp32"}
    signature = {name: types.get(name, f"*{elem}" if name.endswith("_ptr") else "i32") for name in kernel.arg_names if name not in constants}
    return triton.compile(ASTSource(kernel, {**signature, **dict.fromkeys(constants, "constexpr")}, constants), target=GPUTarget("cpu", target, 1)).asm


@pytest.mark.parametrize("target, elem, side", [("x86-64-v4", "fp32", 16), ("x86-64-v4", "bf16", 16), ("x86-64-v4", "fp64", 8), ("x86-64-v3", "fp32", 8), ("x86-64-v3", "fp16", 8),
                                                ("neoverse-v2", "fp32", 4), ("neoverse-v2", "i8", 16), ("sapphirerapids", "fp32", 16), ("spacemit-x60", "fp32", 0)])
def test_blocks_by_target(target, elem, side):
    """As the plan says, and nothing is gathered; RISC-V has loads with a stride, which are as fast as its shuffles."""
    asm = compiled(copy_kernel, target, elem, BM=64, BK=64)
    assert [int(n) for n in re.findall(BLOCKS, asm["plan"])] == [side] * bool(side)
    assert ("masked.gather" in asm["llir"]) == (not side)


@triton.jit
def made_of_it_kernel(x_ptr, out_ptr, n, B: tl.constexpr, HOW: tl.constexpr):
    """What is stored is a turned load (HOW 0), made of it by an operation or two (1), by many (2), of two of them (3), or the second store of one (4)."""
    r, c = tl.program_id(0) * B + tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    x = tl.load(x_ptr + c * n + r, mask=r < n, other=1.0)
    if HOW == 1:
        x = tl.where(r == c, 0.0, x * 2)
    if HOW == 2:
        x = tl.exp(x * 0.01) + tl.exp(x * 0.02)
    if HOW == 3:
        x += tl.load(x_ptr + c * n + r + B * n, mask=r < n, other=1.0)
    if HOW == 4:
        tl.store(out_ptr + n * B + r * B + c, x + 1, mask=r < n)
    tl.store(out_ptr + r * B + c, x, mask=r < n)


@pytest.mark.parametrize("how", range(5))
def test_what_goes_through_scratch(how, width, seed):
    """Lines of a block are stored as they are transposed, where little is made of them."""
    n, b = 70, 32
    x, out = numbers((2 * b, n), torch.float32, seed), torch.full((2 * n + 1, b), 7.0)
    made = made_of_it_kernel[(triton.cdiv(n, b),)](x, out, n, b, how)
    first = x[:b].T
    want = {1: torch.where(torch.arange(n)[:, None] == torch.arange(b), 0, first * 2), 2: (first * 0.01).exp() + (first * 0.02).exp(), 3: first + x[b:].T}.get(how, first)
    assert torch.allclose(out[:n], want, rtol=1e-6) and (out[n:2 * n] == (first + 1 if how == 4 else 7)).all() and (out[2 * n] == 7).all()
    if width == "256 bits, 16 registers":
        assert made.asm["plan"].count("transposed") == 1 + (how == 4) and ("scratch" in made.asm["plan"]) == (how in (2, 3))


def test_what_is_left_as_it_is():
    """A tile too small for a block, one too large for scratch, loads that lie as they are read, and on Intels floats of few neighbours."""
    for elem, turned in (("fp32", False), ("bf16", True)):
        assert bool(re.search(BLOCKS, compiled(copy_kernel, "sapphirerapids", elem, BM=64, BK=32)["plan"])) == turned
    assert not re.search(BLOCKS, compiled(copy_kernel, "x86-64-v4", BM=8, BK=64)["plan"])
    assert not re.search(BLOCKS, compiled(copy_kernel, "x86-64-v4", BM=256, BK=256)["plan"])
    assert re.search(BLOCKS, compiled(copy_kernel, "x86-64-v4", BM=256, BK=128)["plan"])
    assert len(re.findall(BLOCKS, compiled(mixed_kernel, "x86-64-v4", BM=64, BK=64)["plan"])) == 2, "x twice, y not"


@pytest.mark.parametrize("target", ["x86-64-v4", "neoverse-v2"])
def test_what_is_computed_of_several_loads_is_turned_once(target):
    for straight in (True, False):
        asm = compiled(both_ways_kernel, target, BM=64, BK=64, STRAIGHT=straight)
        assert len(re.findall(BLOCKS, asm["plan"])) == 1 and "masked.scatter" not in asm["llir"] and "masked.gather" not in asm["llir"]
        assert ("stored along another dimension than it is computed" in asm["plan"]) == (not straight), "else it is kept in any case"
