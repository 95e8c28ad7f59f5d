"""How CUDA C++ multiplies two matrices: which kernel of matmul.cu and matmul_softmax.cu, with which tiles.

Compute capability 9.0 has wgmma, fed by the Tensor Memory Accelerator (product_tma.cuh) where lines of all three matrices begin at multiples of 16 bytes, else by what
threads read (product_wgmma.cuh); other GPUs of 16-bit numbers have mma (product_mma.cuh); everything else goes by multiply-adds (product_fma.cuh).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from ..backends import cuda
from .product_tma import COUNTED, turned
from .sizes import cdiv

#: (BM, BN, warps along m, along n, speed of a full tile relative to others); pieces of K are BK long
WGMMA = ((128, 256, 8, 1, 1.0), (128, 128, 8, 1, 0.8), (64, 128, 4, 1, 0.6))
MMA = ((128, 256, 2, 4, 1.0), (128, 128, 2, 2, 0.85), (64, 64, 2, 2, 0.5))
BK = 64
#: (BM, BN, slots of shared memory, pieces of 64 columns of the result there, us of a tile beside its terms, us of BK terms where all multiprocessors work) on an
#: H100 (docs/performance.md)
TMA = ((128, 256, 3, 4, 2.5, 0.62), (128, 192, 4, 3, 1.3, 0.47), (128, 128, 5, 2, 0.8, 0.335), (64, 256, 4, 4, 0.8, 0.335), (64, 128, 6, 2, 0.35, 0.215), (64, 64, 8, 1, 0.2, 0.14))
#: the same of a product alone, whose widths no pieces of 64 columns make, for a right factor whose lines are its columns (rows take twice the time): an H100's 132 multiprocessors have
#: one of 1536 x 1536 each
UNEVEN = ((128, 144, 5, 2, 1.2, 0.38),)
#: blocks of a cluster that have a softmax's lines together, at most; multiprocessors among which clusters of more than two are placed, at most
SPAN, NEIGHBOURS = 8, 18
#: us of exchanging statistics within a cluster; us of a second kernel's launch, and bytes a us that it scales
EXCHANGE, SECOND, SECOND_PACE = 1.0, 2.5, 2.5e6
#: (bytes that lines of memory are no multiples of, how many times as long multiplying takes where blocks fetch for themselves: boxes lie across more lines of the second cache). Where two share
#: what they fetch of b it takes so many us more, and so many times as long. An H100, each for itself and two: 3000 cubed 127 us and 94, 2064 (tiles of 192) 41.2 and 39.7, 2080 38.3 and 35.5,
#: 1440 (of 144) 13.1 and 14.1, 1536 12.4 and 13.7
ACROSS, TOGETHER = ((64, 1.5), (128, 1.15)), (1.0, 1.05)


class Way(NamedTuple):
    """A kernel's name behind its op's, its template's arguments, its grid, threads, leading arguments, last ones (rows, columns and terms of the product that it
    computes), bytes of dynamic shared memory; `part`: rows, or columns, of what has statistics of its own in a softmax over columns, or rows; blocks of a cluster."""

    name: str
    template: str
    grid: tuple[int]
    threads: int
    operands: tuple
    sizes: tuple[int, int, int]
    shared: int
    part: int = 0
    cluster: int = 1

    def kernel(self, op: str) -> str:
        """The instance of an op's kernel."""
        return f"{op}_{self.name}<{self.template}>"


def fastest(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, axis: int | None = None) -> Way:
    """The kernel for c = a @ b, c contiguous; axis: for the first half of its softmax."""
    t, (count, most, capability) = cuda.element(a), cuda.limits(a.device.index)
    if (described := _Described.of(a, b, c, axis)) is not None:
        return _by_tma(described, t, count)
    (a, a_line, a_turned), (b, b_line, b_turned) = lines(a), lines(b)
    whole = all(line * x.element_size() % 16 == 0 and x.data_ptr() % 16 == 0 for x, line in ((a, a_line), (b, b_line)))
    tail, operands, (m, n) = _flags(a_turned, b_turned, whole) + ("" if axis is None else f", {axis}"), (a, a_line, b, b_line, c), c.shape
    sizes = m, n, a.shape[1]
    if t in ("half", "bf16") and capability >= (8, 0):
        wgmma = capability == (9, 0)
        bm, bn, wm, wn, _ = tile = min(WGMMA if wgmma else MMA, key=lambda s: cdiv(cdiv(m, s[0]) * cdiv(n, s[1]), count) * s[0] * s[1] / s[4])
        grid, stage, part = (cdiv(m, bm) * cdiv(n, bn),), (bm + bn) * BK * 2, tile[axis or 0]
        if wgmma:
            return Way("wgmma", f"{t}, {bm}, {bn}, 4, {tail}", grid, 2 * bm, operands, sizes, 1024 + 4 * stage, part)
        stages = max(2, min(4, most // stage if bm * bn > 128 * 128 else most // 2 // stage))  # small tiles: two on a multiprocessor
        return Way("mma", f"{t}, {bm}, {bn}, {wm}, {wn}, {BK}, {stages}, {tail}", grid, 32 * wm * wn, operands, sizes, max(stages * stage, bm * (bn + 8) * 2), part)
    groups = 2 if t != "double" and cdiv(m, 128) * cdiv(n, 128) >= count else 1
    side = 64 * groups
    return Way("fma", f"{t}, {groups}, {tail}", (cdiv(m, side) * cdiv(n, side),), 256, operands, sizes, 0, side)


class _Described(NamedTuple):
    """a @ b = c as the Tensor Memory Accelerator has them: matrices as they lie in memory, and whether that is the transpose of the operand. A softmax, along an
    axis or none, is over rows: over columns it is of the transposes, and c is what lies in memory."""

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    a_turned: bool
    b_turned: bool
    axis: int | None
    flipped: bool = False  # c is the transpose of the product

    @classmethod
    def of(cls, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, axis: int | None) -> _Described | None:
        """None where there is no such thing, or it does not take one of them: coordinates have 32 bits."""
        if a.element_size() != 2 or not a.is_floating_point() or cuda.limits(a.device.index)[2] != (9, 0) or not cuda.describes():
            return None
        a, b = (b.T, a.T) if axis == 0 else (a, b)
        laid = [turned(x.shape, x.stride(), 2, x.data_ptr() % 16 == 0) for x in (a, b, c)]
        if None in laid or max(*a.shape, *b.shape) >= COUNTED:
            return None
        return cls(*(x.T if is_turned else x for x, is_turned in zip((a, b), laid)), c, *laid[:2], axis, axis == 0)

    def by_columns(self) -> _Described | None:
        """The same, or of the transposes, such that lines of the right factor are its columns; None where they are so in neither."""
        if self.b_turned:
            return self
        return None if self.a_turned else self._replace(a=self.b, b=self.a, a_turned=True, b_turned=True, flipped=not self.flipped)

    def sizes(self) -> tuple[int, int, int]:
        """Of the product that is computed: rows, terms, columns."""
        a, b = (x.T if is_turned else x for x, is_turned in ((self.a, self.a_turned), (self.b, self.b_turned)))
        return *a.shape, b.shape[1]

    def across(self) -> float:
        """How many times as long it takes because lines of the operands begin within lines of the second cache."""
        return next((slower for line, slower in ACROSS if any(x.stride(0) * 2 % line for x in (self.a, self.b))), 1.0)

    def way(self, t: str, tile: tuple, blocks: int, ctas: int, span: int = 0) -> Way:
        (m, k, n), (bm, bn, stages, panels, *_) = self.sizes(), tile
        uneven = bn % 64 != 0
        boxes = (cuda.Boxes(self.a, (BK if self.a_turned else bm, 64)), cuda.Boxes(self.b, (bn // ctas if self.b_turned else BK // ctas, 64)), cuda.Boxes(self.c, (64, 64)))
        shared = 1024 + stages * ((bm + bn) * BK * 2 + 16) + bm * panels * 128 + (bm * 16 if span else 0)
        flags = _flags(self.a_turned, self.b_turned, *(() if self.axis is None and not uneven else (self.flipped,)))
        return Way("tma_uneven" if uneven else "tma", f"{t}, {bm}, {bn}, {stages}, {panels}, {span or ctas}, {flags}", (blocks,), 2 * bm + 128,
                   (*boxes, self.c) if uneven else boxes, (m, n, k), shared, bn, span or ctas)


def _by_tma(d: _Described, t: str, count: int) -> Way:
    """By blocks that stay."""
    ways = [(d, *_fastest(*d.sizes(), d.across(), count))]
    if d.axis is None and (other := d.by_columns()) is not None:
        ways.append((other, *_fastest(*other.sizes(), d.across(), count, UNEVEN)))
    d, tile, ctas, _ = min(ways, key=lambda way: way[3])
    m, _, n = d.sizes()
    return d.way(t, tile, min(cdiv(m, tile[0] * ctas) * cdiv(n, tile[1]), count // ctas) * ctas, ctas)


@functools.lru_cache(maxsize=1024)
def _fastest(m: int, k: int, n: int, across: float, count: int, tiles: tuple = TMA) -> tuple[tuple, int, float]:
    """(tile, blocks of a cluster, about how many us)."""
    def takes(way: tuple) -> float:
        (bm, bn, _, _, begin, pace), ctas = way
        more, slower = (0, across) if ctas == 1 else TOGETHER
        return cdiv(cdiv(m, bm * ctas) * cdiv(n, bn), count // ctas) * (begin + more + cdiv(k, BK) * pace * slower)
    several = (1, 2) if across > 1 and m > TMA[-1][0] else (1,)
    way = min(((tile, ctas) for tile in tiles for ctas in several), key=takes)
    return *way, takes(way)


def spanning(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, axis: int) -> Way | None:
    """The kernel for c = softmax(a @ b, axis) whose clusters have whole rows or columns; None where they are too long, a matrix cannot be described, or two kernels
    are faster."""
    if (d := _Described.of(a, b, c, axis)) is None:
        return None
    (m, k, n), count = d.sizes(), cuda.limits(a.device.index)[0]
    tile, us = _spanning(m, k, n, count)
    if tile is None or us > _fastest(m, k, n, d.across(), count)[2] + SECOND + 4 * m * n / SECOND_PACE:
        return None
    span = cdiv(n, tile[1])
    return d.way(cuda.element(a), tile, min(cdiv(m, tile[0]), _at_once(span, count)) * span, 1, span)


@functools.lru_cache(maxsize=1024)
def _spanning(m: int, k: int, n: int, count: int) -> tuple[tuple | None, float]:
    """(tile, about how many us) of the fastest for rows of n; (None, 0) where no cluster has them."""
    def takes(tile: tuple) -> float:
        span = cdiv(n, tile[1])
        return cdiv(cdiv(m, tile[0]), _at_once(span, count)) * (tile[4] + cdiv(k, BK) * tile[5] + (EXCHANGE if span > 1 else 0))
    tile = min((x for x in TMA if cdiv(n, x[1]) <= SPAN), key=takes, default=None)
    return tile, 0 if tile is None else takes(tile)


def _at_once(span: int, count: int) -> int:
    """Clusters of so many blocks that are on `count` multiprocessors at once."""
    return count // span if span <= 2 else max(1, count // NEIGHBOURS * (NEIGHBOURS // span))


def _flags(*flags: bool) -> str:
    return ", ".join("true" if f else "false" for f in flags)


def lines(x: torch.Tensor) -> tuple[torch.Tensor, int, bool]:
    """(x or a copy, elements from line to line of memory, whether the lines are its columns) of a matrix with one contiguous dimension."""
    if x.stride(1) == 1 or x.shape[1] == 1:
        return x, x.stride(0), False
    if x.stride(0) == 1 or x.shape[0] == 1:
        return x, x.stride(1), True
    x = x.contiguous()
    return x, x.stride(0), False
