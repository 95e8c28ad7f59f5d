"""softmax of few long lines: each line is shared out among a CPU's threads, or a row among a GPU's multiprocessors, in two kernels with the statistics of each share between them. Narrow columns go
this way for a thread alone, too, for it fills vectors.

On a CPU memory is taken as rows of W numbers, W the numbers that lie between neighbours of a line, or so many times that as fill vectors: a column of it is a part
of one line.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..backends.dispatch.replay import temporary
from ..backends.cpu.run.launch import meeting
from .dispatch import launch, wrap_triton
from .layout import row_alignment, sums_dtype
from .parts import join_parts, joined, keep_part, least_difference, normal, online_step, share_of
from .sizes import cdiv, known, next_power_of_2
from .tuning import plainly_here, workers


@triton.jit
def share_kernel(x_ptr, stats_ptr, size, wide, step, ROWS: tl.constexpr, COLS: tl.constexpr, ONE: tl.constexpr, NORMAL: tl.constexpr = False):
    """Statistics of the columns of `step` rows of x (so many times ROWS), `size` numbers in rows of `wide`; a share of rows and COLS columns a program. ONE: all columns are one line.
    Grid: (columns, shares, tensors)."""
    share, shares, outer = tl.program_id(1), tl.num_programs(1), tl.program_id(2).to(tl.int64)
    cols = tl.program_id(0) * COLS + tl.arange(0, COLS)
    x_ptr += outer * size
    at = tl.arange(0, ROWS)[:, None].to(tl.int64) * wide + cols[None, :]
    ACC: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    top = tl.full((COLS,), -float("inf"), ACC)
    total = tl.zeros((COLS,), ACC)
    first = share.to(tl.int64) * step * wide
    for row in range(0, step, ROWS):
        begin = first + row.to(tl.int64) * wide
        inside = (at < size - begin) & (cols < wide)[None, :]
        top, total = online_step(top, total, tl.load(x_ptr + begin + at, mask=inside, other=-float("inf")).to(ACC), 0, NORMAL)
    if ONE:
        best, all_of_it = joined(top, total, NORMAL)
        stats_ptr += outer * 2 * shares
        tl.store(stats_ptr + share, best)
        tl.store(stats_ptr + shares + share, all_of_it)
    else:
        keep_part(stats_ptr + outer * 2 * shares * wide, top, total, share, shares, cols, wide)


@triton.jit(do_not_specialize=["parts"])
def shared_scale_kernel(x_ptr, out_ptr, stats_ptr, size, wide, step, inner, parts, ROWS: tl.constexpr, COLS: tl.constexpr, NORMAL: tl.constexpr = False):
    """The result for the rows and columns that `share_kernel` had; a column's line has `parts` statistics, lines lie `inner` to a row."""
    share, outer = tl.program_id(1), tl.program_id(2).to(tl.int64)
    cols = tl.program_id(0) * COLS + tl.arange(0, COLS)
    top, total = join_parts(stats_ptr + outer * 2 * parts * inner, cols % inner, inner, parts, 1, NORMAL)
    scale, least = 1.0 / total, least_difference(total, NORMAL)
    x_ptr += outer * size
    out_ptr += outer * size
    at = tl.arange(0, ROWS)[:, None].to(tl.int64) * wide + cols[None, :]
    first = share.to(tl.int64) * step * wide
    for row in range(0, step, ROWS):
        begin = first + row.to(tl.int64) * wide
        inside = (at < size - begin) & (cols < wide)[None, :]
        x = tl.load(x_ptr + begin + at, mask=inside)
        tl.store(out_ptr + begin + at, share_of(x.to(scale.dtype) - top[None, :], least[None, :], scale[None, :], NORMAL).to(x.dtype), mask=inside)


@triton.jit
def row_share_kernel(x_ptr, stats_ptr, n, step, BLOCK: tl.constexpr, ALIGN: tl.constexpr):
    """For GPUs: statistics of `step` numbers (so many times BLOCK) of a row of n. Each thread keeps its own until the end. Grid: (shares, rows)."""
    if ALIGN > 1:
        n = n // ALIGN * ALIGN
    share, shares, row = tl.program_id(0), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    x_ptr += row * n
    cols = tl.arange(0, BLOCK)
    ACC: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    top = tl.full((BLOCK,), -float("inf"), ACC)
    total = tl.zeros((BLOCK,), ACC)
    begin = share * step
    for at in range(begin, min(n, begin + step), BLOCK):
        x = tl.load(x_ptr + at + cols, mask=cols < n - at, other=-float("inf")).to(ACC)
        best = tl.maximum(top, x)
        base = tl.where(best == -float("inf"), 0.0, best)
        total = total * tl.exp(top - base) + tl.exp(x - base)
        top = best
    best, all_of_it = joined(top, total)
    stats_ptr += row * 2 * shares + share
    tl.store(stats_ptr, best)
    tl.store(stats_ptr + shares, all_of_it)


@triton.jit
def row_scale_kernel(x_ptr, out_ptr, stats_ptr, n, step, PARTS: tl.constexpr, BLOCK: tl.constexpr, ALIGN: tl.constexpr):
    """The result for what `row_share_kernel` had; a row has up to PARTS statistics."""
    if ALIGN > 1:
        n = n // ALIGN * ALIGN
    share, shares, row = tl.program_id(0), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    x_ptr += row * n
    out_ptr += row * n
    stats_ptr += row * 2 * shares
    parts = tl.arange(0, PARTS)
    top, total = joined(tl.load(stats_ptr + parts, mask=parts < shares, other=-float("inf")), tl.load(stats_ptr + shares + parts, mask=parts < shares, other=0.0))
    scale = 1.0 / total
    cols = tl.arange(0, BLOCK)
    begin = share * step
    for at in range(begin, min(n, begin + step), BLOCK):
        x = tl.load(x_ptr + at + cols, mask=cols < n - at)
        tl.store(out_ptr + at + cols, (tl.exp(x.to(scale.dtype) - top) * scale).to(out_ptr.dtype.element_ty), mask=cols < n - at)


KERNELS = share_kernel, shared_scale_kernel, row_share_kernel, row_scale_kernel
#: of long rows on a GPU: numbers that a program takes together, warps, programs, and rows that are too few for programs of whole ones. us of an H200 by programs of whole rows, so, and torch: fp32
#: 8 x 62729 32, 4.9, 17; 1 x 1048576 380, 6.4, 238; 86 x 38728 21, 10.7, 12; 256 x 50257 61, 53, 53; 600 x 32000 62, 67, 71
BLOCK, WARPS, PROGRAMS, FEW_ROWS = 2048, 4, 1056, 384
#: rows that are whenever, and bytes up to which more are: the second kernel finds those in the cache that the first read. 256 x 131072 `triport bench` has at 0.99 and 1.09 of torch's speed in fp16 (64 MiB), at
#: 1.21 and 1.18 in fp32
ANY_ROWS, CACHED = 128, 1 << 26
COUNTED = 1 << 30  # numbers of a row, with those of a share behind its end
#: numbers of a share, at least: fewer take less time than two threads to meet
LEAST = 4096
#: microseconds for a number of a line that is one program's, and of one whose exponential is taken twice (Emerald Rapids, bf16, one thread: 10.3 us for a row of 11,605)
ONCE, TWICE = 0.9e-3, 1.5e-3
#: the longest column whose exponentials a program keeps, about (softmax_held.py)
HELD = 512
#: columns so few that most lanes of a vector of them are idle, and how long they are then at least
NARROW, LONG = 8, 512
#: rows and columns of a tile
ROWS, COLS = 16, 64


def takes(x: torch.Tensor, outer: int, n: int, inner: int, columns: int) -> bool:
    """Is the softmax over the middle of (outer, n, inner) to go this way: are programs of `columns` lines too few for the threads?"""
    if not plainly_here(x, "softmax", outer, n, inner):
        return False
    if 1 < inner <= NARROW and n >= LONG:
        return True
    few = 2 * outer if inner == 1 else outer * cdiv(inner, columns)  # a row that is one program's has each of its exponentials taken once, and not twice
    return few < workers() and n * min(inner, columns) >= 2 * LEAST and saves(outer, n, inner, columns, workers())


def saves(outer: int, n: int, inner: int, columns: int, threads: int) -> bool:
    """Do two launches of all threads take less time than programs of whole lines?"""
    programs = outer * cdiv(inner, columns)
    whole = cdiv(programs, threads) * n * min(inner, columns) * (ONCE if inner == 1 or n <= HELD else TWICE)
    shared = outer * n * inner * TWICE / threads
    return whole + (meeting(min(programs, threads)) if programs > 1 else 0) > shared + 2 * meeting(threads)


def softmax(x: torch.Tensor, out: torch.Tensor, outer: int, n: int, inner: int):
    """out = softmax of x over the middle of (outer, n, inner). Both contiguous; of `takes`."""
    size = n * inner
    beside = max(1, COLS // inner) if inner > 1 else COLS  # numbers of a line in a row
    wide = inner * beside
    rows, across = cdiv(size, wide), cdiv(wide, COLS)
    shares = max(1, min(cdiv(2 * workers(), outer * across), rows * min(wide, COLS) // LEAST))
    step = cdiv(cdiv(rows, shares), ROWS) * ROWS
    shares = cdiv(rows, step)
    parts = shares if inner == 1 else shares * beside
    stats = temporary(torch.empty(2 * outer * parts * inner, dtype=sums_dtype(x), device=x.device))
    grid = across, shares, outer
    cols = min(COLS, next_power_of_2(wide))
    launch(wrap_triton(share_kernel), grid, x, stats, size, wide, step, ROWS=ROWS, COLS=cols, ONE=inner == 1, **normal(x))
    launch(wrap_triton(shared_scale_kernel), grid, x, out, stats, size, wide, step, inner, parts, ROWS=ROWS, COLS=cols, **normal(x))


def takes_rows(x: torch.Tensor, rows: int, n: int, inner: int, longest: int) -> bool:
    """Are x's lines few rows on a GPU, longer than what a program keeps of one, with numbers that 32 bits count?"""
    if x.device.type != "cuda" or not known(rows, n, inner) or inner != 1 or not longest < n <= COUNTED:
        return False
    return rows <= ANY_ROWS or rows <= FEW_ROWS and rows * n * x.element_size() <= CACHED


def long_rows(x: torch.Tensor, out: torch.Tensor, rows: int, n: int):
    """out = softmax of x's rows of n on a GPU. Both contiguous; of `takes_rows`."""
    shares = max(1, min(PROGRAMS // rows, cdiv(n, BLOCK)))
    step = cdiv(cdiv(n, BLOCK), shares) * BLOCK
    shares = cdiv(n, step)
    stats = temporary(torch.empty(2 * rows * shares, dtype=sums_dtype(x), device=x.device))
    grid, align = (shares, rows), row_alignment(x, n)
    launch(wrap_triton(row_share_kernel), grid, x, stats, n, step, BLOCK=BLOCK, ALIGN=align, num_warps=WARPS)
    launch(wrap_triton(row_scale_kernel), grid, x, out, stats, n, step, PARTS=next_power_of_2(shares), BLOCK=BLOCK, ALIGN=align, num_warps=WARPS)
