"""Matrices that are copied on a CPU so that their lines lie one behind the other: a transposed first factor of a product, for a micro-kernel wants K's terms side by side and would turn them
for every tile of columns again, and what the kernels of rows take."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from ..backends.context import call
from ..backends.cpu.llvm import targets
from ..backends.dispatch.replay import temporary
from .dispatch import launch, wrap_triton
from .grids import widened
from .layout import roomy
from .product import copy_lines_kernel
from .sizes import cdiv, known, next_power_of_2
from .tuning import plainly_here, workers

TILE = 64, 32  # lines, terms: the fastest of ten on a Zen 5 in fp32 and bf16, or near it
#: columns of the product from which on copying pays, by AMX too; not in fp16 by others, of which everything is packed in any case. Time as it lies over time copied, one thread of a
#: Zen 5, fp32 and bf16: 1024 x 1024 x 256 1.03, 1.02; 512 cubed 1.11, 1.07; 1024 cubed 1.14, 1.12; 768 x 256 x 3072 1.22, 1.24; 768 x 394 x 768 1.34, 1.13; 333 x 257 x 511 1.38, 1.35.
#: Two of an Emerald Rapids, whose caches give less for more: fp32 512 cubed 0.99, 1024 cubed 1.07, 768 x 256 x 768 1.05; bf16 by AMX 512 cubed 0.84, 1024 1.14, 768 x 256 x 3072 1.07
COLUMNS, BY_TILES = 448, 1024
#: numbers of the factor for one or two threads, and for each two of more: every launch wakes all
NUMBERS = 1 << 16


@triton.jit
def turn_kernel(x_ptr, out_ptr, m, k, step, BM: tl.constexpr, BK: tl.constexpr):
    """out = x, m x k, of which terms lie `step` apart, with terms side by side. Grid: tiles of lines, of terms."""
    rows = widened(tl.program_id(0), m) * BM + tl.arange(0, BM)
    ks = widened(tl.program_id(1), k) * BK + tl.arange(0, BK)
    x = tl.load(x_ptr + ks.to(tl.int64)[:, None] * step + rows[None, :], mask=(ks[:, None] < k) & (rows[None, :] < m))
    tl.store(out_ptr + rows.to(tl.int64)[:, None] * k + ks[None, :], tl.trans(x), mask=(rows[:, None] < m) & (ks[None, :] < k))


def by_tiles(dtype: torch.dtype) -> bool:
    """Does this CPU, or that code is made for, multiply floats of a dtype by AMX?"""
    name = {torch.bfloat16: "bf16", torch.float16: "f16"}.get(dtype)
    return name is not None and any(p.tiles and p.takes == name for p in (call.row or targets.native()).products)


@functools.lru_cache(maxsize=1)
def by_pairs() -> bool:
    """Does this machine's CPU multiply bf16 as it is?"""
    return any(p.takes == "bf16" for p in targets.native().products)


#: rows that AMX multiplies at a time: of eight it makes nothing, and they went by vectors (8x1024 by 1024x1024 transposed in bf16 on an Emerald Rapids, one thread: 318 us, of sixteen rows 168)
ROWS_OF_TILES = 16


def held(dtype: torch.dtype, m: int, n: int) -> tuple[int, int]:
    """Rows and columns of a product of m x n on this CPU, or that code is made for, as tiles are chosen for them: no fewer than instructions take, rows of AMX and columns of a vector of sums (a
    board's are as its tables have them). A tile of columns that fill no vector is stored across its rows, after it went through memory (us on one thread of a Zen 5, tiles 8 and 16 columns wide:
    360x13x6 in fp32 6.7 and 1.9, in bf16 7.2 and 1.8; 500x300x6 31 and 23)."""
    columns = targets.native().lanes(64 if dtype == torch.float64 else 32) if call.row is None else 1
    return max(m, ROWS_OF_TILES) if by_tiles(dtype) else m, max(n, columns)


def pays(dtype: torch.dtype, m: int, k: int, n: int) -> bool:
    """Is a transposed first factor, M x K, of a product with n columns better copied?"""
    tiles = by_tiles(dtype)
    return (tiles or dtype != torch.float16) and n >= (BY_TILES if tiles else COLUMNS) and m * k >= NUMBERS * max(1, workers() // 2)


def straight(a: torch.Tensor, n: int, op: str) -> torch.Tensor:
    """a, M x K, or where that pays for its product with n columns a copy that is contiguous."""
    (m, k), (line, term) = a.shape, a.stride()
    if line != 1 or not plainly_here(a, op, m, n, k) or term < m or not pays(a.dtype, m, k, n):
        return a
    return _turned(a)


def _turned(a: torch.Tensor) -> torch.Tensor:
    """A contiguous copy of a matrix whose columns are contiguous."""
    (m, k), term = a.shape, a.stride(1)
    made = temporary(torch.empty((m, k), dtype=a.dtype, device=a.device))
    launch(wrap_triton(turn_kernel), (cdiv(m, TILE[0]), cdiv(k, TILE[1])), a, made, m, k, term, BM=TILE[0], BK=TILE[1])
    return made


#: of what `contiguous` launches
KERNELS = turn_kernel, copy_lines_kernel
#: elements that a program takes of a matrix whose lines have gaps, and of a line at most. Squares of 2048 x 2048 of 4096 columns on a Zen 5 in us, 1024 of four lines, of eight, 2048 of four, 4096
#: of two: fp32 1270, 1490, 680, 870, bf16 450, 370, 220, 240; 4096 x 3000 of 6000 4600, 4300, 3200, 2500 and 4400, 2500, 2600, 2000
TAKEN, LINE = 8192, 4096
#: steps from element to element that kernels are made for: loads and shuffles take them (emit/near.py), where a step that is only known as a kernel runs is gathered
STEPS = range(2, 9)


def contiguous(x: torch.Tensor) -> torch.Tensor:
    """x, or a copy that is contiguous: of a matrix on a CPU by a kernel, which a call like this one launches again, where torch's would be a call of its own (Zen 5, two threads, us: softmax
    of 23x16 transposed in bf16 33 -> 2)."""
    if x.is_contiguous():
        return x
    lines = gapped(x)
    if lines is None:
        if x.dim() != 2 or not plainly_here(x, "contiguous", *x.shape, *x.stride()) or not x.numel():
            return x.contiguous()
        if x.stride(0) == 1:
            return _turned(x)
        lines = x
    return copied(lines, **_tile(lines)).view(x.shape)


def gapped(x: torch.Tensor) -> torch.Tensor | None:
    """x as a matrix of the lines of its last dimension, for kernels on a CPU that read it where it lies: lines one as far from the next, with gaps between them or between their elements. None for
    what is contiguous or lies otherwise."""
    if x.is_contiguous() or not plainly_here(x, "contiguous", *x.shape, *x.stride()) or not x.numel():
        return None
    if x.dim() == 1:
        return x[None]
    if x.dim() == 2:
        return x if not x.stride(-1) > x.stride(-2) > 0 else None
    # The dimensions before the last one that are walked: what the stride is of one of size 1 says nothing of those round it.
    lead = [(size, step) for size, step in zip(x.shape[:-1], x.stride()[:-1]) if size > 1] or [(1, x.stride(-2))]
    step = lead[-1][1]
    if x.stride(-1) > step > 0 or any(outer != size * inner for (_, outer), (size, inner) in zip(lead, lead[1:])):
        return None
    return x.as_strided((x.numel() // x.shape[-1], x.shape[-1]), (step, x.stride(-1)))


def _tile(lines: torch.Tensor) -> dict[str, int]:
    """Lines and elements of them that a program takes of such a matrix."""
    across = min(LINE, next_power_of_2(lines.shape[1]))
    return {"BL": min(TAKEN // across, next_power_of_2(lines.shape[0])), "BC": across}


def _step(lines: torch.Tensor) -> dict[str, int]:
    """AT of a kernel on a matrix: the step from element to element, 0 where no kernel is made for it."""
    step = lines.stride(1)
    return {"AT": step if known(step) and step in STEPS else 0}


def over_lines(kernel, lines: torch.Tensor, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
    """A contiguous result like x, whose elements a kernel makes of those of x, that are `lines`, and of `more`."""
    (m, k), tile = lines.shape, _tile(lines)
    out = roomy(torch.empty(x.shape, dtype=x.dtype, device=x.device))
    launch(wrap_triton(kernel), (cdiv(m, tile["BL"]) * cdiv(k, tile["BC"]),), lines, *more, out, m, k, *lines.stride(), **tile, **_step(lines))
    return out


def copied(x: torch.Tensor, BL: int, BC: int) -> torch.Tensor:
    """A contiguous copy of a matrix of any strides; a program copies BC elements of BL lines, powers of two."""
    m, k = x.shape
    made = temporary(torch.empty((m, k), dtype=x.dtype, device=x.device))
    launch(wrap_triton(copy_lines_kernel), (cdiv(m, BL) * cdiv(k, BC),), x, made, m, k, *x.stride(), k, BL=BL, BC=BC, **_step(x), ROOM=1)
    return made


def dense(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(x, out): two tensors of one layout whose elements fill memory without gaps or overlap, so that element-wise
    kernels may walk them flat. Copies `x` only where it has gaps or overlaps."""
    out = torch.empty_like(x)
    if out.stride() != x.stride():
        x = contiguous(x)
        out = torch.empty_like(x)
    return x, roomy(out)


def as_rows(x: torch.Tensor) -> torch.Tensor:
    """`x` as a contiguous matrix of its last dimension's rows."""
    n = x.shape[-1] if x.dim() else 1
    return contiguous(x).view(x.numel() // n if n else 0, n)
