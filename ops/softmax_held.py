"""softmax over columns of which a tile holds whole ones: exponentials are computed once and kept until their sum is known, in the second cache of a CPU and in registers of a GPU, where softmax_columns_kernel
computes them twice."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .dispatch import launch, wrap_triton
from .grids import columns_of, grid
from .layout import row_alignment, sums_dtype
from .parts import above, exp_of, normal
from .sizes import cdiv, known, next_power_of_2
from .tuning import plainly_here, workers


@triton.jit
def held_columns_kernel(x_ptr, out_ptr, n, inner, ROWS: tl.constexpr, COLS: tl.constexpr, FOLDED: tl.constexpr, ALIGN: tl.constexpr = 1, NORMAL: tl.constexpr = False):
    """Softmax over the middle of (outer, n, inner), n <= ROWS: COLS neighbouring columns a program."""
    if ALIGN > 1:
        inner = inner // ALIGN * ALIGN
    outer, cols = columns_of(inner, COLS, FOLDED)
    rows = tl.arange(0, ROWS)
    offs = outer.to(tl.int64) * n * inner + rows.to(tl.int64)[:, None] * inner + cols[None, :]
    inside = (rows < n)[:, None] & (cols < inner)[None, :]
    x = tl.load(x_ptr + offs, mask=inside, other=-float("inf"))
    e, _, total = exp_of(x.to(tl.float32) if x.dtype.primitive_bitwidth < 32 else x, 0, NORMAL)
    y = above(e, total[None, :], NORMAL) * (1.0 / total)[None, :]
    tl.store(out_ptr + offs, y.to(x.dtype), mask=inside)


KERNELS = held_columns_kernel,
#: bytes of a tile's exponentials, at most, and columns of a tile, from the widest on. Narrow tiles of 4-byte numbers and more than FEW rows are slower than two passes: microseconds on one
#: thread of a Zen 5, two passes, 256 and 64 columns: 64x8192 fp32 149, 125, 174, bf16 190, 120, 146; 256x4096 299, 255, 357 and 382, 234, 267; 1024x1024 (64) fp32 306, 361, bf16 383, 246
HELD, WIDTHS, NARROW, FEW = 1 << 18, (256, 128, 64), 64, 16
#: columns of a tile, at least: 1000x3x5 takes 66 us by tiles of 8, 30 by 16, whose vectors are whole; columns of one number
LEAST, SINGLE = 16, 1024


def widths(x: torch.Tensor, outer: int, n: int, inner: int) -> tuple[int, int] | None:
    """(ROWS, COLS) of the tile for the softmax of x over the middle of (outer, n, inner), where it goes this way."""
    if not plainly_here(x, "softmax", outer, n, inner) or inner == 1 and n > 1:
        return None
    rows = 4 if n == 2 else next_power_of_2(n)  # two are one expression to the compiler, of which each exponential is a part twice
    if n == 1:
        return 1, min(SINGLE, next_power_of_2(outer * inner))
    fitting = [c for c in WIDTHS if rows * c * sums_dtype(x).itemsize <= HELD and (c > NARROW or rows <= FEW or x.element_size() < 4)]
    busy = [c for c in fitting if cdiv(inner, c) * outer >= 2 * workers()]
    return (rows, min((busy or fitting[-1:])[0], max(LEAST, next_power_of_2(inner)))) if fitting else None


#: the same on a GPU, by rows of a tile up to which it has so many columns and warps; of longer columns, where there are only so FEW_COLUMNS, it has COLUMN. us of an H200 in fp16, piece by piece, so and torch:
#: 2x65536 20, 1.7, 2.6; 8x81862 41, 2.5, 5.2; 22x66115 34, 4.9, 13; 128x65536 22, 11, 69; 455x2 7.4, 1.8, 3.3; 1672x4 7.6, 2.5, 5.9
ON_GPU = {1: (1024, 4), 8: (128, 1), 16: (64, 1), 32: (64, 4), 128: (32, 4)}
FEW_COLUMNS, COLUMN = 4, 4096


def tile_on_gpu(outer: int, n: int, inner: int) -> tuple[int, int, int] | None:
    """(ROWS, COLS, warps) of the tile on a GPU, where a softmax over the middle of (outer, n, inner) goes this way."""
    if not known(outer, n, inner) or inner == 1 and n > 1:
        return None
    if n == 1:
        inner *= outer
    rows = next_power_of_2(n)
    for most, (cols, warps) in ON_GPU.items():
        if rows <= most:
            return rows, min(cols, next_power_of_2(inner)), warps
    return (rows, 2, min(16, rows // 64)) if inner <= FEW_COLUMNS and rows <= COLUMN else None


def softmax(x: torch.Tensor, out: torch.Tensor, outer: int, n: int, inner: int, tile: tuple[int, int], warps: int = 0):
    """out = softmax of x over the middle of (outer, n, inner). Both contiguous; tile: of `widths`, or with `warps` of `tile_on_gpu`."""
    if n == 1:  # all are columns
        outer, inner = 1, outer * inner
    rows, cols = tile
    how = {"FOLDED": True, "ALIGN": row_alignment(x, inner), "num_warps": warps} if warps else {"FOLDED": False, **normal(x)}
    launch(wrap_triton(held_columns_kernel), grid(cdiv(inner, cols), outer, warps > 0), x, out, n, inner, ROWS=rows, COLS=cols, **how)
