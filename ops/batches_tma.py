"""Products of batches of 16-bit matrices on GPUs whose Tensor Memory Accelerator fetches whole tiles (`product_tma.py` is of two matrices). A factor is described as it lies, up to two dimensions of the batch
in front of its own; one whose lines do not begin at multiples of 16 bytes is copied first, where its matrices lie behind one another.

Programs stay and walk the tiles of all matrices, so that the next tile is fetched while the last one is stored: heads have few terms, and a tile of them little else than its result. The accelerator stores
that, too, where the result's lines begin at multiples of 16 bytes.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ..backends import cuda
from . import product_tma
from .dispatch import launch
from .product import tile_of_program
from .product_tma import COUNTED, GROUP, LEAST, NARROW, TensorDescriptor, along_columns
from .sizes import cdiv


class Factor(NamedTuple):
    """A factor of a batch of products: matrices of `lines` lines of `length` elements, whether those are their columns, and steps, in elements, from line to line and of the batch, outer and inner, 0 where
    one matrix goes with all. memory: a tensor that begins with the first of them."""

    memory: torch.Tensor
    turned: bool
    lines: int
    length: int
    line: int
    outer: int
    inner: int

    def tiles(self, tile: tuple[int, int], count: tuple[int, ...]):
        """The descriptor of tiles, rows x columns, of it; count: the batch's dimensions."""
        steps = (self.outer, self.inner)[-len(count):]
        sizes = [size if step else 1 for size, step in zip(count, steps)]
        steps = [step or 8 for step in steps]  # of a single index, from which no step leads to another
        return TensorDescriptor(self.memory, [*sizes, self.lines, self.length], [*steps, self.line, 1], [*[1] * len(count), *(tile[::-1] if self.turned else tile)])


@triton.jit
def _tile(x, i, inner, outer_steps, inner_steps, line, at, LINES: tl.constexpr, LENGTH: tl.constexpr, DEEP: tl.constexpr):
    """LINES x LENGTH of the i-th matrix that a descriptor has; DEEP: of a batch of two dimensions."""
    if DEEP:
        return x.load([i // inner * outer_steps, i % inner * inner_steps, line, at]).reshape(LINES, LENGTH)
    else:
        return x.load([i * inner_steps, line, at]).reshape(LINES, LENGTH)


@triton.jit
def batched_tma_kernel(c_ptr, c, a, b, count, inner, a_outer, a_inner, b_outer, b_inner, m, n, k, A_TURNED: tl.constexpr, B_TURNED: tl.constexpr, DEEP: tl.constexpr, STORED: tl.constexpr, BM: tl.constexpr,
                       BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    """c[i] = a[i] @ b[i] of `count` matrices, `inner` of them for each index of the outer dimension, if the batch is DEEP. a, b: descriptors of batches of matrices, or of their transposes where they are TURNED;
    a_outer and the like: 0 where one matrix goes with all indices of that dimension, else 1. c: contiguous, and its descriptor
    where it is STORED by that. Any number of programs."""
    tiles_n = tl.cdiv(n, BN)
    tiles = tl.cdiv(m, BM) * tiles_n
    for index in tl.range(tl.program_id(0), tiles * count, tl.num_programs(0), flatten=True):
        i = index // tiles
        tile_m, tile_n = tile_of_program(index % tiles, m, n, BM, BN, GROUP)
        row, col = tile_m * BM, tile_n * BN
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for at in range(0, k, BK):
            x = _tile(a, i, inner, a_outer, a_inner, at, row, BK, BM, DEEP).T if A_TURNED else _tile(a, i, inner, a_outer, a_inner, row, at, BM, BK, DEEP)
            y = _tile(b, i, inner, b_outer, b_inner, col, at, BN, BK, DEEP).T if B_TURNED else _tile(b, i, inner, b_outer, b_inner, at, col, BK, BN, DEEP)
            acc = tl.dot(x, y, acc)
        if STORED:
            c.store([i, row, col], acc.to(c_ptr.dtype.element_ty).reshape(1, BM, BN))
        else:
            rows, cols = row + tl.arange(0, BM), col + tl.arange(0, BN)
            out = c_ptr + (i.to(tl.int64) * m + rows[:, None]) * n + cols[None, :]
            tl.store(out, acc.to(c_ptr.dtype.element_ty), mask=(rows[:, None] < m) & (cols[None, :] < n))


KERNELS = batched_tma_kernel,
#: (BM, BN, BK, warps, stages, programs of a multiprocessor), us of all multiprocessors for a piece of K and for the rest of a tile, by 27 batches on an H200 (docs/performance/gpu-products.md); what is
#: chosen by them takes 1.02 times as long as the fastest in the geometric mean, at worst 1.11
TILES = (((128, 256, 64, 8, 3, 1), 0.672, 1.66), ((256, 128, 64, 8, 3, 1), 0.765, 1.57), ((128, 128, 64, 8, 2, 2), 0.824, 1.41), ((128, 128, 64, 4, 4, 1), 0.373, 0.778), ((64, 256, 64, 4, 4, 1), 0.377, 0.784),
         ((64, 128, 64, 4, 3, 2), 0.448, 0.58), ((128, 64, 64, 4, 3, 2), 0.468, 0.612), ((64, 64, 128, 4, 3, 2), 0.534, 0.61))
#: us from a launch to the first tile, and bytes of factors and results a us, at most
BEGIN, PACE = 2.1, 4.7e6


def way(a: torch.Tensor, b: torch.Tensor, count: tuple[int, int], steps: tuple[tuple[int, int], tuple[int, int]]) -> tuple[Factor, Factor] | None:
    """The factors of a batch of products, described; None where those are for kernels by pointers, as where there is no memory for a copy. a, b: the first matrices; count: matrices, outer and inner; steps: of
    each factor, in elements, to the next of them."""
    (m, k), n = a.shape, b.shape[1]
    if not product_tma.described_here(a, m, n, k) or min(m, n) <= NARROW // 2 or math.prod(count) * m * n * k < LEAST or math.prod(count) >= COUNTED:
        return None
    found = [described(x, step) for x, step in zip((a, b), steps)]
    lines = [_lines_of_all(x, count, step) if one is None else None for one, x, step in zip(found, (a, b), steps)]
    if any(one is None and (x is None or not product_tma.is_copied(x, serves, cheap=False)) for one, x, serves in zip(found, lines, (n, m))):
        return None
    if (copies := product_tma.copied([x for x in lines if x is not None])) is None:
        return None
    return tuple(_of_lines(copies.pop(0), x, count, step) if one is None else one for one, x, step in zip(found, (a, b), steps))


def described(first: torch.Tensor, steps: tuple[int, int]) -> Factor | None:
    """`first` and those that `steps` lead to, as they lie; None where they cannot be described."""
    turned = product_tma.turned(first.shape, first.stride(), first.element_size(), first.data_ptr() % 16 == 0)
    if turned is None or any(step * first.element_size() % 16 for step in steps):
        return None
    x = first.T if turned else first
    return Factor(first, turned, *x.shape, x.stride(0), *steps)


def _lines_of_all(first: torch.Tensor, count: tuple[int, int], steps: tuple[int, int]) -> torch.Tensor | None:
    """The lines of all matrices, one below the other, as one matrix, or its transpose; None where they are not at one step from each other."""
    x = first.T if along_columns(first) else first
    lines, length = x.shape
    for size, step in zip(count[::-1], steps[::-1]):
        if step:
            if step != lines * x.stride(0):
                return None
            lines *= size
    every = x.as_strided((lines, length), x.stride())
    return every.T if along_columns(first) else every


def _of_lines(copy: torch.Tensor, first: torch.Tensor, count: tuple[int, int], steps: tuple[int, int]) -> Factor:
    """A factor whose matrices lie in `copy`, of what `_lines_of_all` gave."""
    turned = along_columns(first)
    lines, length = first.shape[::-1] if turned else first.shape
    line = copy.stride(1 if turned else 0)
    outer, inner = steps
    return Factor(copy, turned, lines, length, line, lines * (count[1] if inner else 1) * line if outer else 0, lines * line if inner else 0)


def product(a: Factor, b: Factor, c: torch.Tensor, count: tuple[int, int], *, tile: tuple = (), programs: int = 0):
    """c = a @ b of factors that `way` gave; c: contiguous, its last two dimensions a result's. On the CPU: the tile, and how many programs."""
    (m, n), k = c.shape[-2:], a.lines if a.turned else a.length
    outer, inner = count
    bm, bn, bk, warps, stages, together = tile or tile_for(m, n, k, outer * inner, cuda.limits(c.device.index)[0])
    dims = count if outer > 1 else (inner,)
    stored = n % 8 == 0
    to = TensorDescriptor(c, [outer * inner, m, n], [m * n, n, 1], [1, bm, bn]) if stored else c
    programs = programs or together * cuda.limits(c.device.index)[0]
    launch(batched_tma_kernel, (min(outer * inner * cdiv(m, bm) * cdiv(n, bn), programs),), c, to, a.tiles((bm, bk), dims), b.tiles((bk, bn), dims), outer * inner, inner,
           *(int(step > 0) for x in (a, b) for step in (x.outer, x.inner)), m, n, k, A_TURNED=a.turned, B_TURNED=b.turned, DEEP=len(dims) > 1, STORED=stored, BM=bm, BN=bn, BK=bk, GROUP=GROUP,
           num_warps=warps, num_stages=stages)


@functools.lru_cache(maxsize=1024)
def tile_for(m: int, n: int, k: int, count: int, multiprocessors: int) -> tuple[int, ...]:
    """The one of `TILES` that is the fastest for so many products."""
    moved = 2 * count * (m * k + k * n + m * n) / PACE

    def us(tile: tuple, piece: float, rest: float) -> float:
        bm, bn, bk, _, _, together = tile
        turns = cdiv(count * cdiv(m, bm) * cdiv(n, bn), multiprocessors * together)
        return BEGIN + ((turns * (cdiv(k, bk) * piece + rest)) ** 3 + moved ** 3) ** (1 / 3)  # the shorter of both is nearly hidden

    return min(TILES, key=lambda t: us(*t))[0]
