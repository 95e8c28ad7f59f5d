"""Which tile is a program's. On the CPU grids have two dimensions; on a GPU all tiles stand in the first one (FOLDED), of which there may be 2**31 - 1 where
the second one ends at 65,535, and tiles that are neighbours along `columns` follow each other."""

from __future__ import annotations

import triton
import triton.language as tl


def grid(first, second, folds: bool) -> tuple:
    """The grid of `first` times `second` programs; folds: in one dimension."""
    return (first * second,) if folds else (first, second)


@triton.jit
def widened(number, size):
    """A program's number, or a tile's, with as many bits as `size` has: 64 where the value of an argument needs them. So do a tile's indices, below the next multiple of its side, which is a power of two:
    what 32 bits count they count to the end."""
    return number + 0 * size


@triton.jit
def tiles_along(size, SIDE: tl.constexpr):
    """cdiv of a size that is 1 at least; tl.cdiv's is wrong for the last ones that 32 bits count."""
    return (size - 1) // SIDE + 1


@triton.jit
def folded(columns, COLS: tl.constexpr):
    """(number of the line, of the tile along it) of a program, in a folded grid of lines of `columns`, COLS a tile."""
    tiles = tiles_along(columns, COLS)
    return tl.program_id(0) // tiles, tl.program_id(0) % tiles


@triton.jit
def columns_of(inner, COLS: tl.constexpr, FOLDED: tl.constexpr):
    """(outer, columns) of a program on (outer, n, inner): grid (tiles, outer), or folded."""
    if FOLDED:
        outer, tile = folded(inner, COLS)
    else:
        tile, outer = widened(tl.program_id(0), inner), tl.program_id(1)
    return outer, tile * COLS + tl.arange(0, COLS)


@triton.jit
def elements_of(m, n, ROWS: tl.constexpr, COLS: tl.constexpr, FOLDED: tl.constexpr, FLAT: tl.constexpr):
    """(columns, offsets, mask) of a program's tile of m rows of n: grid (row tiles, column tiles), or folded. FLAT: COLS elements of all rows in a row, in one dimension;
    they are up to 2**31 - 1."""
    if FLAT:
        offs = tl.program_id(0) * COLS + tl.arange(0, COLS)
        cols, mask = offs % n, offs < m * n
    else:
        if FOLDED:
            row, col = folded(n, COLS)
        else:
            row, col = tl.program_id(0), tl.program_id(1)
        rows = widened(row, m) * ROWS + tl.arange(0, ROWS)
        cols = widened(col, n) * COLS + tl.arange(0, COLS)
        offs, mask = rows.to(tl.int64)[:, None] * n + cols[None, :], (rows[:, None] < m) & (cols[None, :] < n)
    return cols, offs, mask


@triton.jit
def lines_at(pid, lines, length, stride_line, stride_at, step, BL: tl.constexpr, BC: tl.constexpr):
    """(columns, offsets, offsets in lines `step` apart, mask) of the pid-th tile, BL lines x BC elements, of a matrix of any strides."""
    across = tiles_along(length, BC)
    line, cols = widened(pid // across, lines) * BL + tl.arange(0, BL), pid % across * BC + tl.arange(0, BC)
    rows, at = line.to(tl.int64)[:, None], cols[None, :]
    return cols, rows * stride_line + at.to(tl.int64) * stride_at, rows * step + at, (line[:, None] < lines) & (at < length)


@triton.jit
def row_at(row_ptr, cols, n, DTYPE: tl.constexpr, FLAT: tl.constexpr):
    """What a row of n has for each element of a tile of `elements_of`, as DTYPE."""
    if FLAT:
        row = tl.load(row_ptr + cols, eviction_policy="evict_last").to(DTYPE)
    else:
        row = tl.load(row_ptr + cols, mask=cols < n).to(DTYPE)[None, :]
    return row
