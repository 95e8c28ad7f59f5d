"""How CUDA C++ multiplies two matrices: which kernel of matmul.cu and matmul_softmax.cu, with which tiles.

Compute capability 9.0 has wgmma, fed by the Tensor Memory Accelerator (product_tma.cuh) where lines of all three matrices begin at multiples of 16 bytes, else by what
threads read (product_wgmma.cuh); other GPUs of 16-bit numbers have mma (product_mma.cuh); everything else goes by multiply-adds (product_fma.cuh).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from ..backends import cuda
from . import product_tiles
from .product_tiles import BK, EVEN, TILES, Tile
from .product_tma import COUNTED, turned
from .sizes import cdiv

#: (BM, BN, warps along m, along n, speed of a full tile relative to others); pieces of K are BK long
WGMMA = ((128, 256, 8, 1, 1.0), (128, 128, 8, 1, 0.8), (64, 128, 4, 1, 0.6))
MMA = ((128, 256, 2, 4, 1.0), (128, 128, 2, 2, 0.85), (64, 64, 2, 2, 0.5))
#: blocks of a cluster that have a softmax's lines together, at most; multiprocessors among which clusters of more than two are placed, at most
SPAN, NEIGHBOURS = 8, 18
#: products of a batch that a grid counts in its second dimension, others in its third
ACROSS = 65535
#: us of exchanging statistics within a cluster; us of a second kernel's launch, and bytes a us that it scales
EXCHANGE, SECOND, SECOND_PACE = 1.0, 2.5, 2.5e6


class Way(NamedTuple):
    """A kernel's name behind its op's, its template's arguments, its grid, threads, leading arguments, last ones (rows, columns and terms of the product that it
    computes, and of a batch how many and how they lie), bytes of dynamic shared memory; `part`: rows, or columns, of what has statistics of its own in a softmax over columns, or rows; blocks of a cluster."""

    name: str
    template: str
    grid: tuple[int, ...]
    threads: int
    operands: tuple
    sizes: tuple[int, ...]
    shared: int
    part: int = 0
    cluster: int = 1

    def kernel(self, op: str) -> str:
        """The instance of an op's kernel."""
        return f"{op}_{self.name}<{self.template}>"


def fastest(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, axis: int | None = None) -> Way:
    """The kernel for c = a @ b, c contiguous; axis: for the first half of its softmax."""
    if (described := _Described.of(a, b, c, axis)) is not None:
        return _by_tma(described, cuda.element(a), cuda.limits(a.device.index)[0])
    return _by_threads(a, b, c, "" if axis is None else f", {axis}", axis or 0)


def of_batches(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, count: int, inner: int, steps: tuple[tuple[int, int], tuple[int, int]]) -> Way:
    """The kernel for as many products, `inner` of them for each index of an outer dimension, of which a, b and c are the first; steps: outer and inner, of each factor, in elements. Both have a contiguous
    dimension; results are contiguous."""
    (outer_a, inner_a), (outer_b, inner_b) = steps
    way = _by_threads(a, b, c, "", 0, count, all(step * a.element_size() % 16 == 0 for pair in steps for step in pair))
    return way._replace(name=f"batch_{way.name}", grid=(*way.grid, min(count, ACROSS), cdiv(count, ACROSS)), sizes=(*way.sizes, count, inner, outer_a, inner_a, outer_b, inner_b))


def _by_threads(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, ends: str, axis: int, products: int = 1, aligned: bool = True) -> Way:
    """The kernel whose threads read both factors. ends: of its template's arguments; axis: along which a softmax has parts; aligned: 16 bytes divide what leads from product to product."""
    t, (count, most, capability) = cuda.element(a), cuda.limits(a.device.index)
    (a, a_line, a_turned), (b, b_line, b_turned) = lines(a), lines(b)
    whole = aligned and all(line * x.element_size() % 16 == 0 and x.data_ptr() % 16 == 0 for x, line in ((a, a_line), (b, b_line)))
    tail, operands, (m, n) = _flags(a_turned, b_turned, whole) + ends, (a, a_line, b, b_line, c), c.shape
    sizes = m, n, a.shape[1]
    if t in ("half", "bf16") and capability >= (8, 0):
        wgmma = capability == (9, 0)
        bm, bn, wm, wn, _ = tile = min(WGMMA if wgmma else MMA, key=lambda s: cdiv(cdiv(m, s[0]) * cdiv(n, s[1]) * products, count) * s[0] * s[1] / s[4])
        grid, stage, part = (cdiv(m, bm) * cdiv(n, bn),), (bm + bn) * BK * 2, tile[axis]
        if wgmma:
            return Way("wgmma", f"{t}, {bm}, {bn}, 4, {tail}", grid, 2 * bm, operands, sizes, 1024 + 4 * stage, part)
        stages = max(2, min(4, most // stage if bm * bn > 128 * 128 else most // 2 // stage))  # small tiles: two on a multiprocessor
        return Way("mma", f"{t}, {bm}, {bn}, {wm}, {wn}, {BK}, {stages}, {tail}", grid, 32 * wm * wn, operands, sizes, max(stages * stage, bm * (bn + 8) * 2), part)
    groups = 2 if t != "double" and cdiv(m, 128) * cdiv(n, 128) * products >= count else 1
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

    def turned(self) -> _Described:
        """The same of the transposes."""
        return self._replace(a=self.b, b=self.a, a_turned=not self.b_turned, b_turned=not self.a_turned, flipped=not self.flipped)

    def tiles(self) -> tuple[Tile, ...]:
        return TILES if self.b_turned else EVEN

    def sizes(self) -> tuple[int, int, int]:
        """Of the product that is computed: rows, terms, columns."""
        a, b = (x.T if is_turned else x for x, is_turned in ((self.a, self.a_turned), (self.b, self.b_turned)))
        return *a.shape, b.shape[1]

    def across(self) -> float:
        return product_tiles.across(self.a.stride(0), self.b.stride(0))

    def way(self, t: str, tile: Tile, blocks: int, ctas: int, span: int = 0) -> Way:
        (m, k, n), bm, bn = self.sizes(), tile.bm, tile.bn
        boxes = (cuda.Boxes(self.a, (BK if self.a_turned else bm, 64)), cuda.Boxes(self.b, (bn // ctas if self.b_turned else BK // ctas, 64)), cuda.Boxes(self.c, (64, 64)))
        template = f"{t}, {bm}, {bn}, {tile.stages}, {tile.panels}, {span or ctas}, {_flags(self.a_turned, self.b_turned, self.flipped)}"
        return Way("tma", template, (blocks,), 2 * bm + 128, boxes, (m, n, k), tile.shared, bn, span or ctas)


def _by_tma(d: _Described, t: str, count: int) -> Way:
    """By blocks that stay: c, or, where that is faster and no softmax says which, its transpose from the operands' transposes."""
    ways = [(x, *product_tiles.fastest(*x.sizes(), x.across(), count, x.tiles())) for x in ((d, d.turned()) if d.axis is None else (d,))]
    d, tile, ctas, _ = min(ways, key=lambda way: way[3])
    m, _, n = d.sizes()
    return d.way(t, tile, min(cdiv(m, tile.bm * ctas) * cdiv(n, tile.bn), count // ctas) * ctas, ctas)


def spanning(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, axis: int) -> Way | None:
    """The kernel for c = softmax(a @ b, axis) whose clusters have whole rows or columns; None where they are too long, a matrix cannot be described, or two kernels
    are faster."""
    if (d := _Described.of(a, b, c, axis)) is None:
        return None
    (m, k, n), count = d.sizes(), cuda.limits(a.device.index)[0]
    tile, us = _spanning(m, k, n, count, d.tiles())
    if tile is None or us > product_tiles.fastest(m, k, n, d.across(), count, d.tiles())[2] + SECOND + 4 * m * n / SECOND_PACE:
        return None
    span = cdiv(n, tile.bn)
    return d.way(cuda.element(a), tile, min(cdiv(m, tile.bm), _at_once(span, count)) * span, 1, span)


@functools.lru_cache(maxsize=1024)
def _spanning(m: int, k: int, n: int, count: int, tiles: tuple[Tile, ...]) -> tuple[Tile | None, float]:
    """(tile, about how many us) of the fastest for rows of n; (None, 0) where no cluster has them."""
    def takes(tile: Tile) -> float:
        span = cdiv(n, tile.bn)
        return tile.us(cdiv(m, tile.bm) * span, _at_once(span, count) * span, k, count, beside=EXCHANGE if span > 1 else 0)
    tile = min((x for x in tiles if cdiv(n, x.bn) <= SPAN), key=takes, default=None)
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
