"""Gradients on GPUs that go with that of a bias row, which is a sum over rows: one pass writes the others and adds up, by parts of the rows, then the parts
are added. In a fixed order, so that equal calls have equal results; nothing is added atomically.

A program walks every so many rows of its columns with sums in registers, fp32 at least (`Walk`). Where rows are few it has all of them and writes the
row itself.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ..backends import of_torch
from ..backends.dispatch.replay import temporary
from .dispatch import launch, traced, wrap_triton
from .grids import widened
from .layout import row_alignment, sums_dtype
from .sizes import cdiv, known, next_power_of_2
from .straight import as_rows


class How(NamedTuple):
    """cols, tile: bytes, of one tensor, of a row of a program's tile and of all of it; programs: so many there are to be; warps of each; stages: loads for
    so many turns are on their way at once, by way of shared memory where that is more than one."""

    cols: int = 1024
    tile: int = 8192
    programs: int = 1056
    warps: int = 4
    stages: int = 1


class Adding(NamedTuple):
    """How parts are added: so many at once, of so many columns a program."""

    parts: int = 128
    cols: int = 16
    warps: int = 4


#: op -> how its gradients are computed
#: fastest of 70 on an H100 (4096 x 8192, 32768 x 1000, 1823 x 781, 256 x 131072, fp16): 91 to 98 % of a copy's rate but for the small one
HOW = {"add_relu": How(programs=396), "add_mul_act": How(tile=4096, programs=264, stages=3)}
ADDING = Adding()
#: parts where torch traces with sizes that are symbols
PARTS = 64
#: bytes of the longest rows that a program takes whole although its tile is narrower, where 16 bytes divide them (see `add_relu.WHOLE`)
WHOLE = 4096


def serves(grad: torch.Tensor) -> bool:
    """Are gradients to be computed so? On the CPU they are not: its programs go by whole rows. Nor of a batch that is vmap's, which would be copied to lie
    beside the columns."""
    return grad.is_cuda and not of_torch.batched(grad)


class Walk(NamedTuple):
    """How a kernel walks m rows of n: `tiles` of columns and `parts` of rows, as its grid; consts: its constexprs and options."""

    tiles: int
    parts: int
    consts: dict


def walk(op: str, x: torch.Tensor, m: int, n: int) -> Walk:
    how, size, align = HOW[op], x.element_size(), row_alignment(x, n)
    cols, tile = how.cols // size, how.tile // size
    if known(n):
        wide = align > 1 and cols < n <= WHOLE // size
        cols = next_power_of_2(n) if wide else min(cols, next_power_of_2(n))
    rows = max(1, tile // cols)
    tiles, parts = cdiv(n, cols), PARTS
    if known(n):
        parts = max(1, how.programs // tiles)
    if known(m):
        rows = min(rows, next_power_of_2(m))
        parts = min(parts, cdiv(m, rows))
    return Walk(tiles, parts, {"ROWS": rows, "COLS": cols, "ALIGN": align, "STAGES": how.stages, "num_warps": how.warps})


def rows_of(grad: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """(`grad` as contiguous rows, False), or where one element stands for all, as in the gradient of a sum, (`grad`, True): then kernels read the one. Not
    while torch traces: Inductor hands such an element over as a number."""
    if grad.numel() > 1 and not traced() and not any(step for step, size in zip(grad.stride(), grad.shape) if size > 1):
        return grad, True
    return as_rows(grad), False


def total(walked: Walk, of: torch.Tensor, n: int) -> torch.Tensor:
    """What a walk's kernel writes sums to, for `of`, a row like the result: (parts, n) in fp32 or fp64, or `of` itself for one part."""
    if known(walked.parts) and walked.parts == 1:
        return of
    return temporary(torch.empty((walked.parts, n), dtype=sums_dtype(of), device=of.device))


def add_up(walked: Walk, parts: torch.Tensor, out: torch.Tensor, n: int):
    """The sum of what `total` gave becomes `out`."""
    if parts is not out:
        at_once = min(ADDING.parts, next_power_of_2(walked.parts))
        launch(wrap_triton(add_parts_kernel), (cdiv(n, ADDING.cols),), parts, out, walked.parts, n, AT_ONCE=at_once, COLS=ADDING.cols,
               num_warps=ADDING.warps)


@triton.jit(do_not_specialize=["parts"])
def add_parts_kernel(parts_ptr, out_ptr, parts, n, AT_ONCE: tl.constexpr, COLS: tl.constexpr):
    cols = widened(tl.program_id(0), n) * COLS + tl.arange(0, COLS)
    sums = tl.zeros((AT_ONCE, COLS), parts_ptr.dtype.element_ty)
    for start in range(0, parts, AT_ONCE):
        part = start + tl.arange(0, AT_ONCE)
        sums += tl.load(parts_ptr + part.to(tl.int64)[:, None] * n + cols[None, :], mask=(part < parts)[:, None] & (cols < n)[None, :], other=0.0)
    tl.store(out_ptr + cols, tl.sum(sums, axis=0).to(out_ptr.dtype.element_ty), mask=cols < n)


@triton.jit
def keep_sums(sums, parts_ptr, cols, n):
    """A program's sums, (ROWS, COLS), become its part."""
    row = tl.sum(sums, axis=0).to(parts_ptr.dtype.element_ty)
    tl.store(parts_ptr + tl.program_id(1).to(tl.int64) * n + cols, row, mask=cols < n)


@triton.jit
def gradient_at(grad_ptr, offs, mask, ONE: tl.constexpr):
    """ONE: one element stands for all."""
    if ONE:
        return tl.load(grad_ptr)
    else:
        return tl.load(grad_ptr + offs, mask=mask, other=0.0)
