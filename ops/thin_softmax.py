"""The softmax of a product of one to four lines, on a CPU: the product is read at memory's pace (thin.py), and what it leaves is little."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..backends.dispatch.replay import temporary
from . import thin
from .dispatch import launch, wrap_triton
from .grids import widened
from .layout import sums_dtype
from .sizes import cdiv, next_power_of_2
from .parts import above, exp_normal, normal
from .softmax import softmax_line


@triton.jit
def softmax_of_lines_kernel(x_ptr, out_ptr, n, stride_ol, stride_on, BLOCK: tl.constexpr, NORMAL: tl.constexpr = False):
    """Softmax of each of the lines x, n numbers each; a line a program."""
    line = tl.program_id(0).to(tl.int64)
    softmax_line(x_ptr + line * n, out_ptr + line * stride_ol, n, tl.cast(stride_on, tl.int64), BLOCK, NORMAL)


@triton.jit
def softmax_across_lines_kernel(x_ptr, out_ptr, lines, n, stride_ol, stride_on, R: tl.constexpr, BLOCK: tl.constexpr, NORMAL: tl.constexpr = False):
    """Softmax over the lines x, of each of their n numbers; BLOCK of these a program. R: a power of two, `lines` at least."""
    row = tl.arange(0, R)
    at = widened(tl.program_id(0), n) * BLOCK + tl.arange(0, BLOCK)
    inside = (row < lines)[:, None] & (at < n)[None, :]
    x = tl.load(x_ptr + row[:, None].to(tl.int64) * n + at[None, :], mask=inside, other=-float("inf"))
    e = exp_normal(x - tl.max(x, axis=0)[None, :], NORMAL)
    total = tl.sum(e, axis=0)[None, :]
    y = above(e, total, NORMAL) / total
    out = out_ptr + row[:, None] * stride_ol + at[None, :].to(tl.int64) * stride_on
    tl.store(out, y.to(out_ptr.dtype.element_ty), mask=inside)


KERNELS = softmax_of_lines_kernel, softmax_across_lines_kernel
#: numbers of a line that a program works on at a time; a line longer than LONGEST, one program's, takes about as long as a product of TERMS terms
PIECE, LONGEST, TERMS = 4096, 16384, 64


def takes(a: torch.Tensor, b: torch.Tensor, axis: int) -> bool:
    """Does softmax(a @ b, axis) go this way?"""
    along = thin.lines(a, b)
    return along is not None and (a.shape[1] >= TERMS or along != axis or (a.shape[0], b.shape[1])[along] <= LONGEST)


def product_softmax(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, axis: int):
    """c = softmax(a @ b, axis). a: M x K, b: K x N, of which `takes` is true; c: M x N, contiguous."""
    along = thin.lines(a, b)
    lines, long = c.shape[1 - along], c.shape[along]
    x = temporary(torch.empty((lines, long), dtype=sums_dtype(a), device=a.device))
    thin.product(a, b, x if along else x.T)
    strides = c.stride(1 - along), c.stride(along)
    if axis == along:
        launch(wrap_triton(softmax_of_lines_kernel), (lines,), x, c, long, *strides, BLOCK=min(PIECE, next_power_of_2(long)), **normal(x))
    else:
        block = min(1024, next_power_of_2(long))
        launch(wrap_triton(softmax_across_lines_kernel), (cdiv(long, block),), x, c, lines, long, *strides, R=next_power_of_2(lines), BLOCK=block, **normal(x))
