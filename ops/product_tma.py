"""Products of 16-bit matrices on GPUs whose Tensor Memory Accelerator fetches whole tiles (compute capability 9.0 on). It wants lines that begin at
multiples of 16 bytes: a matrix with others is copied to such first.

One program per multiprocessor walks the tiles, so that the next tile's operands are fetched while the last one's result is
stored. Where even small tiles are too few for that K is shared out: each share is a product of its own, in fp32, and a second
kernel adds them up. A row's statistics lie in one thread's registers and its neighbours'; a column's are spread over all
warps. So the softmax over columns multiplies the transposed matrices, whose accumulators have those columns as rows. So do
tiles of few rows, of which tensor cores take 64 at least.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from ..backends import cuda
from ..backends.dispatch.replay import temporary
from ..backends.of_torch import FakeTensor
from . import tuning
from .dispatch import launch, traced
from .layout import held, row_alignment
from .sizes import cdiv, known, next_power_of_2
from .parts import exp_of, keep_part
from .product import copy_both_kernel, copy_lines_kernel, sum_shares_kernel, tile_of_program

try:
    from triton.tools.tensor_descriptor import TensorDescriptor
except ImportError:  # a Triton that describes no tensors
    TensorDescriptor = None

#: (BM, BN, BK, warps, stages) for no softmax, dim 0 and dim 1; fastest of the shapes that fit a multiprocessor, on an H200
TILES = {None: (128, 256, 64, 8, 3), 0: (256, 128, 64, 8, 3), 1: (128, 256, 64, 8, 3)}
#: those of products of which that makes too few: the tile, us of an H100 from its launch to its end beside pieces of K, and of such a piece where all
#: multiprocessors work, by two to five products each (docs/performance/gpu-products.md)
SMALL = (((128, 128, 64, 4, 4), 3.0, 0.345), ((64, 128, 64, 4, 6), 3.2, 0.22), ((64, 128, 128, 4, 4), 2.6, 0.385), ((64, 128, 128, 4, 3), 2.3, 0.465), ((64, 64, 128, 4, 3), 0.9, 0.95),
         ((64, 64, 128, 4, 4), 2.7, 0.32), ((64, 32, 128, 4, 5), 2.7, 0.24), ((64, 16, 128, 4, 5), 2.6, 0.235), ((32, 128, 128, 4, 4), 2.6, 0.45),
         ((32, 64, 128, 4, 5), 2.6, 0.235), ((16, 128, 128, 4, 4), 2.6, 0.42), ((16, 64, 128, 4, 5), 2.6, 0.235))
#: the same of the large ones
LARGE = 3.5, 0.61
#: us that adding shares up takes, and their bytes a us; bytes that the second cache holds, and of more that are read a us
SUM, SUM_PACE, CACHED, MEMORY_PACE = 2.4, 4e6, 50e6, 3e6
SHARES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)
SUMMED = 2048  # numbers of shares that a program reads together
SHARED = 200 << 10  # bytes of a multiprocessor's shared memory that the tiles above take at most, and some: those of compute capability 12.0 have 99 KiB
#: multiplications from which on a product may be of two bands, and how much faster they are to be
BANDS, BANDED = 1 << 30, 1.05
COUNTED = 1 << 30  # rows, columns, terms: with what tiles and shares have more 32 bits count them
NARROW = 64  # rows of the least that tensor cores take: a tile of fewer is computed transposed
#: multiplications, or terms of a sum, from which on a small product goes this way: 128 x 128 x 128 takes an H100 2.6 us by pointers and 3.1 so, 512 cubed 4.5 and 3.6, 128 x 1024 x 1024 6.6 and
#: 4.4; and with what a launch takes an H200 256 cubed 5.5 and 5.3, 512 x 256 x 256 5.7 and 5.5, 256 x 384 x 256 6.1 and 5.7, 128 x 768 x 128 8.4 and 6.7. With a copy 500 x 257 x 500 10.4 and 8.9,
#: 900 cubed 38 and 20, 63 x 2047 x 129 65 and 14
LEAST, LONG = 1 << 25, 256
GROUP = 8
#: what a program of copy_lines_kernel copies, and the elements that copies' lines are multiples of. us of an H200 with what is behind lines written, too, and without: 4595 x 1741 7.4 and 33, 4323 x 4251 22 and
#: 74, 2000 x 1001 3.2 and 10.5
COPIED, ROOM = (8, 128), 8
#: products that a number is in from which on copying pays that: it reads and writes 4 bytes, at some 2.5 TB/s, and by pointers lines that 16 bytes do not divide
#: take an H100 some 90 TFLOP/s, by TMA 600
SERVES = 128
#: bytes of a matrix that a small product copies, whatever it serves: 16 x 1001 x 1001 29 and 18 us, 16 x 4096 x 4095 72 and 79
CHEAP = 4 << 20


@triton.jit
def keep_product(acc, c_ptr, stats_ptr, m, n, tile_m, tile_n, tiles_m, tiles_n, AXIS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
                 FLIPPED: tl.constexpr):
    """Write a tile of a product, FLIPPED: its transpose, as with AXIS 0; with an AXIS what `product_exp_kernel` writes of it."""
    rows, cols = tile_m * BM + tl.arange(0, BM), tile_n * BN + tl.arange(0, BN)
    if AXIS == 0:
        acc, top, total = exp_of(tl.where((cols[:, None] < n) & (rows[None, :] < m), acc, -float("inf")), 1)
        keep_part(stats_ptr, top, total, tile_m, tiles_m, cols, n)
    elif AXIS == 1:
        acc, top, total = exp_of(tl.where((rows[:, None] < m) & (cols[None, :] < n), acc, -float("inf")), 1)
        keep_part(stats_ptr, top, total, tile_n, tiles_n, rows, m)
    out = acc.to(c_ptr.dtype.element_ty)
    tl.store(c_ptr + rows.to(tl.int64)[:, None] * n + cols[None, :], out.T if FLIPPED else out,
             mask=(rows[:, None] < m) & (cols[None, :] < n))


@triton.jit
def product_tma_kernel(c_ptr, stats_ptr, a, b, m, n, k, shares, top, A_TURNED: tl.constexpr, B_TURNED: tl.constexpr, AXIS: tl.constexpr,
                       BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, ALIGN: tl.constexpr):
    """c = a @ b, or with an AXIS what `product_exp_kernel` writes. a, b: descriptors of the matrices, or of their transposes where
    they are TURNED. ALIGN: of n, as `row_alignment` has it. Of several `shares`, of k terms each, every one is a product of its own, one behind the other in c. top: with one share, the first row
    that is computed, of m. Any number of programs."""
    if ALIGN > 1:
        n = n // ALIGN * ALIGN
    c_ptr += tl.cast(top, tl.int64) * n
    m -= top
    FLIPPED: tl.constexpr = AXIS == 0 or (AXIS != 1 and BM < 64)
    tiles_m, tiles_n = tl.cdiv(m, BM), tl.cdiv(n, BN)
    tiles = tiles_m * tiles_n
    for index in tl.range(tl.program_id(0), tiles * shares, tl.num_programs(0), flatten=True):
        share = index // tiles
        tile_m, tile_n = tile_of_program(index % tiles, m, n, BM, BN, GROUP)
        row, col, first = top + tile_m * BM, tile_n * BN, share * k
        acc = tl.zeros((BN, BM) if FLIPPED else (BM, BN), dtype=tl.float32)
        for at in range(0, k, BK):
            x = a.load([first + at, row]).T if A_TURNED else a.load([row, first + at])
            y = b.load([col, first + at]).T if B_TURNED else b.load([first + at, col])
            acc = tl.dot(y.T, x.T, acc) if FLIPPED else tl.dot(x, y, acc)
        keep_product(acc, c_ptr + tl.cast(share, tl.int64) * m * n, stats_ptr, m, n, tile_m, tile_n, tiles_m, tiles_n, AXIS, BM, BN, FLIPPED)


KERNELS = (copy_lines_kernel, copy_both_kernel, product_tma_kernel, sum_shares_kernel)


@functools.lru_cache(maxsize=None)
def _has_tma(device: int) -> bool:
    _, shared, capability = cuda.limits(device)
    return TensorDescriptor is not None and torch.version.hip is None and capability >= (9, 0) and shared >= SHARED


def turned(shape: tuple, strides: tuple, size: int, aligned: bool) -> bool | None:
    """Are a matrix's columns what lies contiguous in memory? None where it cannot be described: that takes one contiguous dimension, lines that
    begin at multiples of 16 bytes, and memory that does. size: of an element, in bytes."""
    for answer, along, line in ((False, 1, 0), (True, 0, 1)):
        if strides[along] == 1 and strides[line] >= shape[along] and strides[line] * size % 16 == 0 and aligned:
            return answer
    return None


def _turned(x: torch.Tensor) -> bool | None:
    return turned(x.shape, _strides(x), x.element_size(), x.data_ptr() % 16 == 0)


def is_described(x: torch.Tensor) -> bool:
    """Can a matrix be described where it lies?"""
    return _turned(x) is not None


def _strides(x: torch.Tensor) -> tuple:
    """A matrix's strides; of a single line, from which no step leads to another, as if the next began at a multiple of 16 bytes."""
    rows, columns = x.stride()
    if x.shape[0] == 1 and columns == 1:
        return cdiv(x.shape[1], 8) * 8, 1
    return (1, cdiv(x.shape[0], 8) * 8) if x.shape[1] == 1 and rows == 1 else (rows, columns)


def described_here(a: torch.Tensor, *sizes) -> bool:
    """Are matrices of 16 bits as `a`, of a product of such sizes, to be fetched by this GPU's accelerator if they can be described? What is only traced goes by pointers, as no descriptor can be made
    of it."""
    if a.device.type != "cuda" or a.dtype not in (torch.float16, torch.bfloat16) or isinstance(a, FakeTensor) or traced():
        return False
    if tuning.tries("matmul"):  # for the kernel by pointers
        return False
    return known(*sizes) and max(sizes) < COUNTED and _has_tma(a.device.index)


def takes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Is a @ b for this file: both 16 bits wide on a GPU that has what it needs, and large enough for most multiprocessors, or of some size and described as they are?"""
    if not described_here(a, *(sizes := (*a.shape, b.shape[1]))):
        return False
    m, k, n = sizes
    described = is_described(a), is_described(b)
    large = _are_large(m, n, cuda.limits(a.device.index)[0])
    if large or k >= LONG:
        return all(is_one or is_copied(x, serves, cheap=not large) for is_one, x, serves in zip(described, (a, b), (n, m)))
    return all(described) and m * n * k >= LEAST


def is_copied(x: torch.Tensor, serves: int, cheap: bool) -> bool:
    """Does x, whose numbers are in so many products each, pay for a copy that can be described? cheap: if it is small, in any case."""
    return serves >= SERVES or cheap and x.numel() * x.element_size() <= CHEAP


def _are_large(m: int, n: int, count: int) -> bool:
    """Are there large tiles enough for most of `count` multiprocessors?"""
    return 4 * cdiv(m, 128) * cdiv(n, 256) >= 3 * count


def apart(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Is a @ b, of which `takes` is true, in shares, so that it is not known while it is multiplied, or of so few rows that a softmax by itself is as fast?"""
    (m, k), n, count = a.shape, b.shape[1], cuda.limits(a.device.index)[0]
    return not _are_large(m, n, count) and (m <= NARROW or tile_for(m, n, k, None, count)[1] > 1)


@functools.lru_cache(maxsize=1024)
def tile_for(m: int, n: int, k: int, axis: int | None, count: int) -> tuple[tuple, int]:
    """((BM, BN, BK, warps, stages), into how many shares K goes) on so many multiprocessors; one share with an axis."""
    if _are_large(m, n, count):
        return TILES[axis], 1
    return _fastest(m, n, k, axis, count)[:2]


def _tiles(axis: int | None) -> list[tuple]:
    """(tile, us from a launch to its end beside pieces of K, us of such a piece) of all tiles for a softmax's axis or none."""
    out = [(TILES[axis], *LARGE)]
    for (bm, bn, *rest), *pace in SMALL:
        if axis is None or min(bm, bn) >= NARROW:
            out.append(((bn, bm, *rest) if axis == 0 else (bm, bn, *rest), *pace))
    return out


def _fastest(m: int, n: int, k: int, axis: int | None, count: int, whole: bool = False) -> tuple[tuple, int, float]:
    """(tile, shares, about how many us) of the tile that is the fastest; whole: in one share. The large tile goes in no more: beside what is fetched for the next one there is no room in shared memory
    for its sums, which are fp32 then."""
    every = _tiles(axis)
    tiles = [t for t in every if _fits(t[0][0], m) and _fits(t[0][1], n)] or every
    us = {(tile, shares): _us(tile, shares, begin, piece, m, n, k, count) for tile, begin, piece in tiles for shares in (SHARES if axis is None and not whole else (1,))
          if shares == 1 or 2 * shares * tile[2] <= k and tile != TILES[axis]}
    tile, shares = min(us, key=us.get)
    return tile, shares, us[tile, shares]


#: us of a whole call on an H200, of what `_us` has; of a thousand numbers of a tile that is stored where lines of the result are multiples of 16 bytes, and elsewhere, or as shares; of a copy, and of a
#: thousand of its numbers. A fit as product_pace.py's, to 475 products, a tenth from their times
CALLED, OF_US, STORED, COPY, COPIES = 0.51, 0.92, (0.078, 0.24), 1.2, 0.0011


def us(m: int, n: int, k: int, count: int, copied: int) -> float:
    """About how long a product of m x k by k x n takes with so many numbers copied first, beside what product_pace.py says of others."""
    tile, shares = tile_for(m, n, k, None, count)
    begin, piece = dict((tile, pace) for tile, *pace in _tiles(None))[tile]
    turns = cdiv(cdiv(m, tile[0]) * cdiv(n, tile[1]) * shares, count)
    stored = turns * tile[0] * tile[1] / 1e3 * STORED[shares > 1 or n % 8 != 0]
    return CALLED + OF_US * _us(tile, shares, begin, piece, m, n, k, count) + stored + (COPY + copied / 1e3 * COPIES if copied else 0)


@functools.lru_cache(maxsize=1024)
def bands(m: int, n: int, k: int, count: int) -> tuple[tuple[int, tuple, int], ...]:
    """(rows, tile, shares) of the products, one below the other, that m x k by k x n is multiplied as: one, or two without shares, the first of which has tiles for
    all `count` multiprocessors at each turn, where one leaves most without work at its last. Of how many turns the first may be the last two are looked at: of 388
    products of up to 6,000 all of them chose the same 382 times, and take 1.8 s for 65536 x 4096 x 65536."""
    whole = tile_for(m, n, k, None, count)
    begin, piece = dict((tile, pace) for tile, *pace in _tiles(None))[whole[0]]
    best, found = _us(*whole, begin, piece, m, n, k, count) / BANDED, ((m, *whole),)
    if m * n * k < BANDS or whole[1] > 1:
        return found
    for tile, begin, piece in _tiles(None):
        across = cdiv(n, tile[1])
        most = cdiv(m, tile[0]) * across // count
        for turns in range(max(1, most - 1), most + 1):
            rows = turns * count // across * tile[0]
            if 0 < rows < m:
                rest = _fastest(m - rows, n, k, None, count, whole=True)
                us = _us(tile, 1, begin, piece, rows, n, k, count) + rest[2]
                if us < best:
                    best, found = us, ((rows, tile, 1), (m - rows, *rest[:2]))
    return found


def _fits(side: int, size: int) -> bool:
    """Is a tile's side neither twice as long as a dimension, nor shorter than tensor cores like without need?"""
    return side < 2 * max(size, 16) and (side >= NARROW or size <= NARROW)


def _us(tile: tuple, shares: int, begin: float, piece: float, m: int, n: int, k: int, count: int) -> float:
    """About how long a product takes."""
    multiplied = cdiv(cdiv(m, tile[0]) * cdiv(n, tile[1]) * shares, count) * cdiv(k, tile[2] * shares) * piece
    size = 2 * k * (m + n)
    if size > CACHED:
        multiplied = max(multiplied, size / MEMORY_PACE)
    return begin + multiplied + (SUM + shares * m * n * 8 / SUM_PACE if shares > 1 else 0)


def _as_is(x: torch.Tensor) -> torch.Tensor | None:
    """x as it can be described, if it can."""
    return None if not is_described(x) else x if _strides(x) == x.stride() else x.as_strided(x.shape, _strides(x))


def along_columns(x: torch.Tensor) -> bool:
    """Are columns a matrix's lines in memory?"""
    return x.stride(0) == 1 and x.stride(1) != 1


class _Copy:
    """A copy of x that can be described, which lies as x does. lines, length, what leads from one to the next: as `copy_lines` takes them; programs: how many copy."""

    def __init__(self, x: torch.Tensor):
        along = 0 if along_columns(x) else 1
        lines, length = x.shape[1 - along], x.shape[along]
        made = temporary(torch.empty((lines, cdiv(length, ROOM) * ROOM), dtype=x.dtype, device=x.device))
        self.args = x, made, lines, length, x.stride(1 - along), x.stride(along), made.shape[1]
        self.programs = cdiv(lines, COPIED[0]) * cdiv(length, COPIED[1])
        self.made = made[:, :length] if along == 1 else made[:, :length].T


def prepared(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Both, described; None where there is no memory for a copy that it takes."""
    found = [_as_is(a), _as_is(b)]
    copies = copied([x for x, one in zip((a, b), found) if one is None])
    return None if copies is None else tuple(copies.pop(0) if one is None else one for one in found)


def copied(matrices: list[torch.Tensor]) -> list[torch.Tensor] | None:
    """Copies, made by one launch, of up to two matrices that can be described; None where there is no memory for them."""
    try:
        copies = [_Copy(x) for x in matrices]
    except torch.OutOfMemoryError:
        return None
    if len(copies) == 2:
        (x, y), kernel = copies, copy_both_kernel
        args = *x.args, x.programs, *y.args
    elif copies:
        kernel, args = copy_lines_kernel, copies[0].args
    if copies:
        launch(kernel, (sum(c.programs for c in copies),), *args, BL=COPIED[0], BC=COPIED[1], ROOM=ROOM, num_warps=4)
    return [c.made for c in copies]


def product(given: tuple[torch.Tensor, torch.Tensor], c: torch.Tensor, stats: torch.Tensor | None = None, axis: int | None = None, *,
            tile: tuple = (), programs: int = 0, shares: int = 1):
    """c = a @ b of what is `prepared`; with an axis exp(a @ b - tops) and the parts' statistics, `step` rows or columns a part. On the CPU: how many programs,
    and shares; without an axis c may be fp32, too."""
    a, b = given
    (m, k), n = a.shape, b.shape[1]
    count = programs or cuda.limits(a.device.index)[0]
    if tile:
        parts = ((m, tile, shares),)
    else:
        parts = bands(m, n, k, count) if axis is None else ((m, *tile_for(m, n, k, axis, count)),)
    top = 0
    for rows, tile, shares in parts:
        _multiply(a, b, c, stats, axis, tile, shares, top, top + rows, count)
        top += rows


def _multiply(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, stats: torch.Tensor | None, axis: int | None, tile: tuple, shares: int, top: int, m: int, count: int):
    """`product` by one tile, of the rows from `top` to m; of all in shares."""
    k, n = b.shape
    bm, bn, bk, warps, stages = tile
    terms = cdiv(cdiv(k, bk), shares) * bk
    shares = cdiv(k, terms)
    to = in_shares(c, shares)
    if to is c:
        terms, shares = k, 1
    a_turned, b_turned = _turned(a), _turned(b)
    described = (TensorDescriptor.from_tensor(x.T if turned else x, [block[1], block[0]] if turned else list(block))
                 for x, turned, block in ((a, a_turned, (bm, bk)), (b, b_turned, (bk, bn))))
    launch(product_tma_kernel, (min(cdiv(m - top, bm) * cdiv(n, bn) * shares, count),), to, c if stats is None else stats, *described, m, n, terms, shares, top,
           A_TURNED=a_turned, B_TURNED=b_turned, AXIS=axis, BM=bm, BN=bn, BK=bk, GROUP=GROUP, ALIGN=row_alignment(to, n), num_warps=warps, num_stages=stages)
    if shares > 1:
        add_up(to, c, shares)


def in_shares(c: torch.Tensor, shares: int) -> torch.Tensor:
    """Where `shares` products in fp32 are written that are to be added up into c; c itself of one, or where there is no memory for more."""
    made = None if shares == 1 else held((shares, *c.shape), c.device)
    return c if made is None else made


def add_up(shares_of: torch.Tensor, c: torch.Tensor, shares: int):
    """c = the sum of what lies in `shares_of`, as many products as there are shares."""
    once = min(32, next_power_of_2(shares))
    launch(sum_shares_kernel, (cdiv(c.numel(), SUMMED // once),), shares_of, c, c.numel(), shares, AT_ONCE=once, BLOCK=SUMMED // once, num_warps=4)


def step(a: torch.Tensor, b: torch.Tensor, axis: int) -> int:
    """Rows (axis 0) or columns (1) of a tile: what one part of the statistics is of."""
    return tile_for(a.shape[0], b.shape[1], a.shape[1], axis, cuda.limits(a.device.index)[0])[0][axis]
