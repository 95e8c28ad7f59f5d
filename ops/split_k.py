"""Products on a CPU of few rows, whose right factor is read where it lies, and of fewer tiles than threads, whose terms are divided (split K): a program sums up a share of the terms, and a
kernel of its own adds the shares up. Where columns are few and it is the left factor that lies transposed, the transposes are multiplied, for its lines run along rows of the result then.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ..backends.cpu.llvm import targets
from ..backends.cpu.run.launch import meeting
from ..backends.dispatch.replay import temporary
from .dispatch import launch, wrap_triton
from .makespan import cost
from .product import product_tile, sum_shares_kernel, tile_of_program
from .sizes import cdiv, next_power_of_2
from .straight import by_tiles, held, straight
from .tuning import plainly_here, workers


@triton.jit
def part_kernel(a_ptr, b_ptr, out_ptr, m, n, k, stride_am, stride_ak, stride_bk, stride_bn, stride_om, stride_on, terms, plane, BM: tl.constexpr, BN: tl.constexpr,
                BK: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr):
    """out[share] = a @ b of the share's `terms`; `plane` elements from one share to the next. ROWS: so many rows are all there are, of one tile (0: any m). Grid: the tiles of every share."""
    tiles = tl.cdiv(m, BM) * tl.cdiv(n, BN)
    share = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    if ROWS:
        m, tile_m, tile_n = ROWS, 0, tile
    else:
        tile_m, tile_n = tile_of_program(tile, m, n, BM, BN, GROUP)
    rows = tile_m * BM + tl.arange(0, BM)
    cols = tile_n * BN + tl.arange(0, BN)
    first = (share * terms).to(tl.int64)
    acc = product_tile(a_ptr + first * stride_ak, b_ptr + first * stride_bk, m, n, min(k - share * terms, terms), stride_am, stride_ak, stride_bk, stride_bn, rows, cols,
                       BK, tl.float32)
    out = out_ptr + share.to(tl.int64) * plane + rows.to(tl.int64)[:, None] * stride_om + cols.to(tl.int64)[None, :] * stride_on
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=(rows[:, None] < m) & (cols[None, :] < n))


KERNELS = part_kernel,  # beside the one that adds shares up, which product_tma.py has as well


class Way(NamedTuple):
    """How a product goes: the transposes multiplied?, shares of K, the tile."""
    exchanged: bool
    shares: int
    bm: int
    bn: int
    bk: int


#: rows up to which a kernel is made for so many and no others, for eight rows may be five: 5x4096x4096 in fp32 9.8 -> 6.6 ms, 3x870x2745 627 -> 502 us (Ice Lake, one thread; of MKL's speed 0.91 -> 1.32,
#: 0.80 -> 0.98)
EXACT = 16
#: terms of a share, at least, and what divides them
LEAST, STEP = 256, 16
#: terms that a tile takes at a time: rows of the right factor lie in few pages then (Emerald Rapids, one thread, 8x4096x1024 in fp32: 1,546 us with all terms, 1,164 to 1,299 with 256)
TERMS = 256
#: tiles, (rows, columns), of which the fastest is taken; of few rows all rows are a tile's
SHAPES, WIDTHS = ((16, 64), (32, 64), (64, 64), (128, 64), (32, 256), (128, 256)), (64, 128, 256)
#: and, where more than two threads are at work, those
NARROW = (16, 32)
#: what a thread does in a microsecond, roughly: multiply-adds of fp32 for each lane of a vector, where two threads are at work and where more are; how many times as many they are in 16 bits
#: (by AMX and by pairs); and bytes that it reads (Emerald Rapids: 72 and 42 GFMA/s, three times that by tiles; 12 to 20 GB/s from the third cache)
PACE, HALVES, BYTES = (4500, 3000), 2, 12_000
#: bytes of a matrix that stay in a core's second cache
CACHED = 1 << 20
#: how much longer the slower of two threads takes, and the slowest of many than most
UNEVEN = 0.2, 0.4
#: numbers that a program sums up the shares of
SUMMED = 1024
#: how much of the time, by what is above, a product of shares is to take at most, so that it goes this way
SAVES = 0.9
#: how many times as long a byte of a share takes, which another core has written, and microseconds that the second launch takes beside its threads' meeting: of two threads, and of more
HANDED, AGAIN = (1, 4), (0, 4)
#: multiply-adds from which on transposes are multiplied, rows of a result, and terms: it is stored element by element (Zen 5, one thread, us: 300x40x30 6.7 -> 7.9, 2000x64x20 45 -> 36,
#: 1000x100x6 32 -> 14, 928x2688x32 1,155 -> 725)
EXCHANGED, TALL, LONG = 1 << 17, 64, 64


def way(a: torch.Tensor, b: torch.Tensor) -> Way | None:
    """How a @ b goes here, if it does."""
    (m, k), n = a.shape, b.shape[1]
    if a.dtype == torch.float64 or not plainly_here(a, "matmul", m, n, k):
        return None
    return _chosen(a.dtype, m, n, k, b.stride(1) == 1, a.stride(0) == 1, workers())


def of_lines(x: torch.Tensor, b: torch.Tensor, programs: int) -> Way | None:
    """How x @ b of one to four rows goes here, where that is faster than by so many `programs` of columns (thin.py). b: lies by rows. Three rows and four are (Emerald Rapids and Zen 5, one
    thread, us: 3x4096x411 in fp32 797 -> 519 and 167 -> 117), two where they are divided among threads that would be idle (sixteen: 2x4096x100 34 -> 21)."""
    (m, k), n, threads = x.shape, b.shape[1], workers()
    if x.dtype != torch.float32 or not targets.native().few_rows:
        return None
    w = _chosen(x.dtype, m, n, k, True, False, threads)
    if m > 2:
        return w
    lines = n * k * x.element_size() / BYTES / min(programs, threads) * (1 + UNEVEN[threads > 2] * threads / max(programs, threads)) + meeting(max(2, min(programs, threads)))
    return w if w.shares > 1 and _taken(w, x.dtype, m, n, k, threads) < SAVES * lines else None


def product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, w: Way):
    """c = a @ b. a: M x K, b: K x N; c: M x N, without gaps, of their dtype or fp32."""
    (m, n), k, strides = c.shape, a.shape[1], c.stride()
    terms = cdiv(cdiv(k, w.shares), STEP) * STEP
    shares = cdiv(k, terms)
    out = room(c, shares)
    if w.exchanged:
        a, b, m, n, strides = b.T, a.T, n, m, strides[::-1]
    else:
        a = straight(a, n, "matmul")
    launch(wrap_triton(part_kernel), (shares * cdiv(m, w.bm) * cdiv(n, w.bn),), a, b, out, m, n, k, *a.stride(), *b.stride(), *strides, terms, m * n,
           BM=w.bm, BN=w.bn, BK=w.bk, GROUP=4, ROWS=m if m <= min(w.bm, EXACT) else 0)
    add_up(out, c, shares)


def room(c: torch.Tensor, shares: int) -> torch.Tensor:
    """Where so many shares of c go, in fp32, one behind the other as c lies: c itself for one."""
    return c if shares == 1 else temporary(torch.empty((shares, *c.shape), dtype=torch.float32, device=c.device))


def add_up(out: torch.Tensor, c: torch.Tensor, shares: int):
    """c, which has no gaps, = the sum of the shares in their `room`."""
    if shares > 1:
        launch(wrap_triton(sum_shares_kernel), (cdiv(c.numel(), SUMMED),), out, c, c.numel(), shares, AT_ONCE=4, BLOCK=SUMMED)


@functools.lru_cache(maxsize=1024)
def _chosen(dtype: torch.dtype, m: int, n: int, k: int, b_lies: bool, a_turned: bool, threads: int) -> Way | None:
    few = targets.native().few_rows if dtype in (torch.float32, torch.float16) and not by_tiles(dtype) else 0
    rows = b_lies and m <= few and dtype == torch.float32
    exchanged = a_turned and not rows and n <= few and m >= TALL and k >= LONG and m * n * k >= EXCHANGED
    if exchanged:
        m, n = n, m
    lies = exchanged or rows
    bk = next_power_of_2(k) if k <= 2 * TERMS else TERMS
    ways = [Way(exchanged, shares, bm, bn, bk)
            for bm, bn in sorted(_shapes(*held(dtype, m, n), lies, threads)) for shares in _divisions(k, cdiv(m, bm) * cdiv(n, bn), threads)]
    taken = {w: _taken(w, dtype, m, n, k, threads) for w in ways}
    whole, best = min((w for w in ways if w.shares == 1), key=taken.get), min(ways, key=taken.get)
    return best if taken[best] < SAVES * taken[whole] else whole if lies else None


def _shapes(m: int, n: int, lies: bool, threads: int) -> set:
    """Tiles to think of, (rows, columns), no larger than the result needs."""
    high, wide = max(8, next_power_of_2(m)), max(8, next_power_of_2(n))
    return {(high if lies else min(bm, high), min(bn, wide)) for bm, bn in ([(high, w) for w in (NARROW if threads > 2 else ()) + WIDTHS] if lies else SHAPES)}


def _divisions(k: int, tiles: int, threads: int):
    """Numbers of shares to think of: 1, and powers of two up to four programs a thread."""
    yield 1
    shares = 2
    while threads > 1 and shares * LEAST <= k and shares * tiles <= 4 * threads:
        yield shares
        shares *= 2


def _taken(w: Way, dtype: torch.dtype, m: int, n: int, k: int, threads: int) -> float:
    """Microseconds, about."""
    size, (down, across), terms = dtype.itemsize, (cdiv(m, w.bm), cdiv(n, w.bn)), cdiv(k, w.shares)
    programs, rows, columns = w.shares * down * across, cdiv(m, 8) * 8 / down, cdiv(n, 16) * 16 / across
    pace = PACE[threads > 2] * targets.native().lanes(32) * (HALVES if size == 2 and (dtype == torch.bfloat16 or by_tiles(dtype)) else 1)
    read = BYTES * (min(1, w.bn / WIDTHS[0]) if n * k * size > CACHED else 1)  # parts of lines are fetched ahead less well
    each = max(rows * columns * terms * cost(w.bm, w.bn, w.bk) / pace, (rows + columns) * terms * size / read)
    taken = math.ceil(programs / threads) * each
    if programs > 1 and threads > 1:
        taken = taken * (1 + UNEVEN[threads > 2] * threads / max(programs, threads)) + meeting(min(programs, threads))
    if w.shares > 1:
        taken += m * n * (4 * w.shares + size) * HANDED[threads > 2] / (BYTES * threads) + meeting(threads) + AGAIN[threads > 2]
    return taken
