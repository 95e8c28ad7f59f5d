"""Products of batches of fp32 matrices by the tensor cores of GPUs of compute capability 9.0, each number as three of bf16 (`product_split.py` says why and how exact that is).

A first kernel splits the lines of both factors wherever their matrices lie: a line's three parts stand one behind the other. They are described as batches of matrices of parts, so that nothing has to be
filled up: behind a line's end, and below a matrix's last line, the Tensor Memory Accelerator reads zeros.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..backends import cuda
from ..backends.dispatch.replay import temporary
from ..backends.of_torch import FakeTensor
from . import product_split, tuning
from .batches import Batch, shape_of_product, walked
from .dispatch import launch, traced
from .product_split import BLOCK, FAR, GROUP, LINES, SMALL, SPLITTERS, TensorDescriptor, batched_split_kernel, split_batches_kernel, tile_for
from .product_tma import COUNTED
from .sizes import cdiv, known

#: from which on splitting pays: products that a number of the factors is in, on average; products of all; small tiles. us of an H200, split, by multiply-adds and torch's: 64 of 197x64x197 20.6, 26.6, 17.7,
#: 100 of 300 cubed 186, 256, 151, 16 of 2048x2048x128 410, 433, 332, but 96 of 1024x1024x64 612, 332, 290; 24 of 256x64x256 12.9, 10.9, 9.9; 2 of 512x2048x512 79, 77, 62
SERVES, PRODUCTS, TILES = 96, 1 << 27, 128


class Lines(NamedTuple):
    """A factor whose lines are split: `matrices` of them, `inner` for each index of an outer dimension, of `lines` lines of `length` numbers; steps, in elements: outer, inner, and from line to line. turned:
    are the lines its columns? per: its matrices from one index of the batch's dimensions, outer and inner, to the next."""

    turned: bool
    matrices: int
    inner: int
    lines: int
    length: int
    outer_step: int
    inner_step: int
    step: int
    per: tuple[int, int]

    @property
    def plane(self) -> int:
        """Elements from a line's part to the next: TMA wants steps of 16 bytes."""
        return cdiv(self.length, LINES) * LINES

    @property
    def programs(self) -> int:
        return min(SPLITTERS, cdiv(self.matrices * self.lines, BLOCK[0]) * cdiv(self.plane, BLOCK[1]))

    def numbers(self) -> tuple[int, ...]:
        """What `split_lines` takes of it."""
        return self.matrices, self.inner, self.lines, self.length, self.outer_step, self.inner_step, self.step, self.plane

    def tiles(self, parts: torch.Tensor, tile: tuple[int, int]):
        """The descriptor of tiles, rows x columns, of its parts."""
        bl, bc = tile[::-1] if self.turned else tile
        line = 3 * self.plane
        return TensorDescriptor(parts, [self.matrices, self.lines, 3, self.length], [self.lines * line, line, self.plane, 1], [1, bl, 1, bc])


class Split(NamedTuple):
    """A batch of products, its factors' lines, their parts and flags."""

    batch: Batch
    a: Lines
    b: Lines
    parts_a: torch.Tensor
    parts_b: torch.Tensor
    flags: torch.Tensor


def in_lines(x: torch.Tensor) -> torch.Tensor:
    """x, or a copy where neither its matrices' rows nor their columns are contiguous."""
    return x if 1 in x.stride()[-2:] or 1 in x.shape[-2:] else x.contiguous()


def lines_of(first: torch.Tensor, count: tuple[int, int], steps: tuple[int, int]) -> Lines:
    """Of the factor whose first matrix this is. count, steps: the batch's dimensions, outer and inner; a step of 0 goes to the same matrix."""
    turned = first.stride(1) != 1 and first.shape[1] > 1  # of a line of one number nobody needs to know the steps
    x = first.T if turned else first
    outer, inner = (size if step else 1 for size, step in zip(count, steps))
    return Lines(turned, outer * inner, inner, *x.shape, *steps, x.stride(0), (inner if steps[0] else 0, int(steps[1] != 0)))


def pays(m: int, n: int, k: int, count: int) -> bool:
    """Are so many products of m x k by k x n faster so?"""
    return m * n >= SERVES * (m + n) and m * n * k * count >= PRODUCTS and cdiv(m, SMALL[0]) * cdiv(n, SMALL[1]) * count >= TILES


def way(a: torch.Tensor, b: torch.Tensor) -> Split | None:
    """The batches a and b, split; None where they are not for this file (fp32 on a GPU of compute capability 9.0, so large that it pays), or there is no memory for 6 bytes a number. What is only traced goes by
    pointers, as no descriptor can be made of it."""
    shape = shape_of_product("matmul", a, b)
    if a.device.type != "cuda" or a.dtype != torch.float32 or isinstance(a, FakeTensor) or traced() or not known(*shape, *a.shape, *b.shape):
        return None
    batch = walked(in_lines(a), in_lines(b), tuple(shape[:-2]))
    first_a, first_b = batch.first()
    sizes = shape[-2], shape[-1], a.shape[-1], batch.count
    if not (product_split.suits(a.device.index) and pays(*sizes) and max(*first_a.stride(), *first_b.stride()) < FAR and not tuning.tries("matmul")):
        return None
    return prepared(batch)


def prepared(batch: Batch) -> Split | None:
    """Both factors, split; None where there is no memory, or there are too many lines to count."""
    count = batch.count // batch.inner, batch.inner
    a, b = (lines_of(x, count, steps) for x, steps in zip(batch.first(), batch.steps))
    if max(x.matrices * x.lines for x in (a, b)) >= COUNTED or batch.count >= COUNTED:
        return None
    try:
        x, y, flags = (temporary(torch.empty(size, dtype=dtype, device=batch.a.device)) for size, dtype in ((a.matrices * a.lines * 3 * a.plane, torch.bfloat16), (b.matrices * b.lines * 3 * b.plane, torch.bfloat16),
                                                                                                           (a.programs + b.programs, torch.int32)))
    except torch.OutOfMemoryError:
        return None
    launch(split_batches_kernel, (a.programs + b.programs,), batch.a, batch.b, x, y, flags, a.programs, b.programs, *a.numbers(), *b.numbers(), BL=BLOCK[0], BC=BLOCK[1], num_warps=4)
    return Split(batch, a, b, x, y, flags)


def product(given: Split, c: torch.Tensor, *, tile: tuple = (), programs: int = 0):
    """c = a @ b of what is `prepared`; c: contiguous. On the CPU: the tile, and how many programs."""
    batch, a, b, x, y, flags = given
    (m, n), k = c.shape[-2:], a.lines if a.turned else a.length
    most = programs or cuda.limits(c.device.index)[0]
    bm, bn, bk, warps, stages = tile or tile_for(m, n, None, most, batch.count)
    first_a, first_b = batch.first()
    launch(batched_split_kernel, (min(batch.count * cdiv(m, bm) * cdiv(n, bn), most),), c, flags, batch.a, batch.b, a.tiles(x, (bm, bk)), b.tiles(y, (bk, bn)), batch.count, batch.inner,
           *batch.steps[0], *first_a.stride(), *batch.steps[1], *first_b.stride(), *a.per, *b.per, m, n, k, a.programs + b.programs, A_TURNED=a.turned, B_TURNED=b.turned, FLAGS=2 * SPLITTERS,
           BM=bm, BN=bn, BK=bk, GROUP=GROUP, num_warps=warps, num_stages=stages)
