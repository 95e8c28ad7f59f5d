"""softmax over columns on a CPU whose tile holds whole columns: exponentials are computed once and kept in the second cache until their sum is known, where softmax_columns_kernel computes them twice."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .dispatch import launch, wrap_triton
from .grids import widened
from .layout import sums_dtype
from .parts import above, exp_of, normal
from .sizes import cdiv, next_power_of_2
from .tuning import plainly_here, workers


@triton.jit
def held_columns_kernel(x_ptr, out_ptr, n, inner, ROWS: tl.constexpr, COLS: tl.constexpr, NORMAL: tl.constexpr = False):
    """Softmax over the middle of (outer, n, inner), n <= ROWS: COLS neighbouring columns a program. Grid: (column tiles, outer)."""
    rows = tl.arange(0, ROWS)
    cols = widened(tl.program_id(0), inner) * COLS + tl.arange(0, COLS)
    offs = tl.program_id(1).to(tl.int64) * n * inner + rows.to(tl.int64)[:, None] * inner + cols[None, :]
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


def softmax(x: torch.Tensor, out: torch.Tensor, outer: int, n: int, inner: int, tile: tuple[int, int]):
    """out = softmax of x over the middle of (outer, n, inner). Both contiguous; tile: of `widths`."""
    if n == 1:  # all are columns
        outer, inner = 1, outer * inner
    rows, cols = tile
    launch(wrap_triton(held_columns_kernel), (cdiv(inner, cols), outer), x, out, n, inner, ROWS=rows, COLS=cols, **normal(x))
