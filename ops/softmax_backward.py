"""The gradient of softmax: dx = y (g - sum of g y) along the dimension, y the softmax, g the gradient towards it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..backends.dispatch.replay import temporary
from .dispatch import launch, wrap_triton
from .grids import columns_of, grid, widened
from .layout import row_alignment, split, sums_dtype
from .sizes import cdiv, known, next_power_of_2


@triton.jit
def softmax_backward_kernel(grad_ptr, y_ptr, out_ptr, n, inner, ROWS: tl.constexpr, COLS: tl.constexpr, FOLDED: tl.constexpr):
    """Over the middle of (outer, n, inner); inner = 1 where rows are contiguous."""
    outer, cols = columns_of(inner, COLS, FOLDED)
    rows = tl.arange(0, ROWS)
    base_off = outer.to(tl.int64) * n * inner
    offs = rows[:, None].to(tl.int64) * inner + cols[None, :]
    inside = cols[None, :] < inner
    mask = (rows[:, None] < n) & inside
    y = tl.load(y_ptr + base_off + offs, mask=mask, other=0.0)
    wide = y.to(tl.float32) if y.dtype.primitive_bitwidth < 32 else y
    g = tl.load(grad_ptr + base_off + offs, mask=mask, other=0.0).to(wide.dtype)
    dot = tl.sum(g * wide, axis=0)
    for start in range(ROWS, n, ROWS):
        at = base_off + start.to(tl.int64) * inner
        mask = (rows[:, None] < n - start) & inside
        y2 = tl.load(y_ptr + at + offs, mask=mask, other=0.0).to(wide.dtype)
        dot += tl.sum(tl.load(grad_ptr + at + offs, mask=mask, other=0.0).to(wide.dtype) * y2, axis=0)
    for start in range(0, n, ROWS):
        at = base_off + start.to(tl.int64) * inner
        mask = (rows[:, None] < n - start) & inside
        y3 = tl.load(y_ptr + at + offs, mask=mask, other=0.0)
        g3 = tl.load(grad_ptr + at + offs, mask=mask, other=0.0).to(wide.dtype)
        tl.store(out_ptr + at + offs, (y3.to(wide.dtype) * (g3 - dot[None, :])).to(y3.dtype), mask=mask)


@triton.jit
def softmax_backward_rows_kernel(grad_ptr, y_ptr, out_ptr, m, n, ROWS: tl.constexpr, BLOCK: tl.constexpr, ALIGN: tl.constexpr):
    """ROWS whole rows a program, read once. For GPUs."""
    if ALIGN > 1:
        n = n // ALIGN * ALIGN
    rows = widened(tl.program_id(0), m) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    offs = rows.to(tl.int64)[:, None] * n + cols[None, :]
    mask = (rows[:, None] < m) & (cols[None, :] < n)
    y = tl.load(y_ptr + offs, mask=mask, other=0.0)
    wide = y.to(tl.float32) if y.dtype.primitive_bitwidth < 32 else y
    g = tl.load(grad_ptr + offs, mask=mask, other=0.0).to(wide.dtype)
    dot = tl.sum(g * wide, axis=1)
    tl.store(out_ptr + offs, (wide * (g - dot[:, None])).to(y.dtype), mask=mask)


@triton.jit
def softmax_backward_long_rows_kernel(grad_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr, ALIGN: tl.constexpr):
    """One row a program, piece by piece: one pass for the sum, one to write, from the last piece on, which is still in the cache. For GPUs."""
    if ALIGN > 1:
        n = n // ALIGN * ALIGN
    row = tl.program_id(0).to(tl.int64) * n
    cols = tl.arange(0, BLOCK)
    y = tl.load(y_ptr + row + cols, mask=cols < n, other=0.0)
    wide = y.to(tl.float32) if y.dtype.primitive_bitwidth < 32 else y
    products = wide * tl.load(grad_ptr + row + cols, mask=cols < n, other=0.0).to(wide.dtype)
    for start in range(BLOCK, n, BLOCK):
        inside = start + cols < n
        y2 = tl.load(y_ptr + row + start + cols, mask=inside, other=0.0).to(wide.dtype)
        products += y2 * tl.load(grad_ptr + row + start + cols, mask=inside, other=0.0).to(wide.dtype)
    dot = tl.sum(products, axis=0)
    last = (tl.cdiv(n, BLOCK) - 1) * BLOCK
    for back in range(0, n, BLOCK):
        at = last - back + cols
        y3 = tl.load(y_ptr + row + at, mask=at < n)
        g3 = tl.load(grad_ptr + row + at, mask=at < n).to(wide.dtype)
        tl.store(out_ptr + row + at, (y3.to(wide.dtype) * (g3 - dot)).to(y3.dtype), mask=at < n)


@triton.jit
def softmax_backward_columns_kernel(grad_ptr, y_ptr, out_ptr, n, inner, ROWS: tl.constexpr, COLS: tl.constexpr, ALIGN: tl.constexpr):
    """COLS neighbouring columns of the middle of (outer, n, inner) a program, read once. For GPUs."""
    if ALIGN > 1:
        inner = inner // ALIGN * ALIGN
    outer, cols = columns_of(inner, COLS, True)
    rows = tl.arange(0, ROWS)
    offs = outer.to(tl.int64) * n * inner + rows[:, None].to(tl.int64) * inner + cols[None, :]
    mask = (rows[:, None] < n) & (cols[None, :] < inner)
    y = tl.load(y_ptr + offs, mask=mask, other=0.0)
    wide = y.to(tl.float32) if y.dtype.primitive_bitwidth < 32 else y
    g = tl.load(grad_ptr + offs, mask=mask, other=0.0).to(wide.dtype)
    dot = tl.sum(g * wide, axis=0)
    tl.store(out_ptr + offs, (wide * (g - dot[None, :])).to(y.dtype), mask=mask)


@triton.jit
def column_dots_kernel(grad_ptr, y_ptr, dots_ptr, n, inner, ROWS: tl.constexpr, COLS: tl.constexpr, TURNS: tl.constexpr, ALIGN: tl.constexpr):
    """The sums of g y over the rows of a part, TURNS times ROWS of them, of COLS neighbouring columns. dots: (outer, parts, inner)."""
    if ALIGN > 1:
        inner = inner // ALIGN * ALIGN
    part, outer = tl.program_id(1), tl.program_id(2).to(tl.int64)
    cols = tl.program_id(0) * COLS + tl.arange(0, COLS)
    dots = tl.zeros((ROWS, COLS), dots_ptr.dtype.element_ty)
    for turn in tl.static_range(TURNS):
        rows = (part * TURNS + turn) * ROWS + tl.arange(0, ROWS)
        offs = outer * n * inner + rows[:, None].to(tl.int64) * inner + cols[None, :]
        mask = (rows[:, None] < n) & (cols[None, :] < inner)
        y = tl.load(y_ptr + offs, mask=mask, other=0.0).to(dots.dtype)
        dots += y * tl.load(grad_ptr + offs, mask=mask, other=0.0).to(dots.dtype)
    tl.store(dots_ptr + (outer * tl.num_programs(1) + part) * inner + cols, tl.sum(dots, axis=0), mask=cols < inner)


@triton.jit(do_not_specialize=["parts"])
def column_gradient_kernel(grad_ptr, y_ptr, dots_ptr, out_ptr, n, inner, parts, ROWS: tl.constexpr, COLS: tl.constexpr, TURNS: tl.constexpr,
                           AT_ONCE: tl.constexpr, ALIGN: tl.constexpr):
    """What `column_dots_kernel` prepared: TURNS times ROWS rows and COLS columns of the gradient a program. The last rows come first: what was read last is
    still in the cache."""
    if ALIGN > 1:
        inner = inner // ALIGN * ALIGN
    outer = tl.program_id(2).to(tl.int64)
    cols = tl.program_id(0) * COLS + tl.arange(0, COLS)
    all_dots = tl.zeros((AT_ONCE, COLS), dots_ptr.dtype.element_ty)
    count = tl.cast(parts, tl.int64)  # Inductor makes a constexpr of a 1, whatever do_not_specialize says
    for start in range(0, parts, AT_ONCE):
        part = start + tl.arange(0, AT_ONCE)
        here = (part < parts)[:, None] & (cols < inner)[None, :]
        all_dots += tl.load(dots_ptr + (outer * count + part.to(tl.int64)[:, None]) * inner + cols[None, :], mask=here, other=0.0)
    dot = tl.sum(all_dots, axis=0)
    last = tl.num_programs(1) - 1 - tl.program_id(1)
    for turn in tl.static_range(TURNS):
        rows = (last * TURNS + turn) * ROWS + tl.arange(0, ROWS)
        offs = outer * n * inner + rows[:, None].to(tl.int64) * inner + cols[None, :]
        mask = (rows[:, None] < n) & (cols[None, :] < inner)
        y = tl.load(y_ptr + offs, mask=mask)
        g = tl.load(grad_ptr + offs, mask=mask).to(dot.dtype)
        tl.store(out_ptr + offs, (y.to(dot.dtype) * (g - dot[None, :])).to(y.dtype), mask=mask)


KERNELS = (softmax_backward_kernel, softmax_backward_rows_kernel, softmax_backward_long_rows_kernel, softmax_backward_columns_kernel, column_dots_kernel,
           column_gradient_kernel)

#: on a GPU: longest row that a program takes whole, and piece of longer ones; elements of the shorter ones that it takes together. 4096 x 8192 on an H100: 60.6 us
#: in fp16 for 76.2 with rows read twice, 128 for 187 in fp32; 256 x 131072 103 for 171, 213 for 233
ROW, SHORT = 16384, 2048
#: on a GPU: longest columns that a program reads once, and how many of them. 256 x 131072 on an H100: 71.7 us in fp16 for 125, 137 for 197 in fp32
COLUMN, COLUMNS = 256, 64
#: on a GPU: rows at a time, columns and turns of a part and of a tile of the result; fastest of 16 (4096 x 8192 fp16 and fp32, 65536 x 256, 32768 x 1000, H100)
PART, TILE = (32, 64, 8), (64, 64, 2)


def gradient(grad: torch.Tensor, y: torch.Tensor, out: torch.Tensor, dim: int, columns: tuple[int, int]):
    """y (g - sum of g y) into `out`; all contiguous and not empty. columns: (rows, columns) of a tile where no other kernel is better."""
    outer, n, inner = split(y, dim)
    on_gpu = y.device.type == "cuda"
    rows, cols = columns
    if known(n) and n == 1:  # all are columns
        outer, inner, rows = 1, outer * inner, 1
    if on_gpu and known(outer, n, inner) and inner == 1:
        _rows(grad, y, out, outer, n)
    elif on_gpu and known(outer, n, inner) and n <= COLUMN:
        rows = next_power_of_2(n)
        launch(wrap_triton(softmax_backward_columns_kernel), (cdiv(inner, COLUMNS) * outer,), grad, y, out, n, inner, ROWS=rows, COLS=COLUMNS,
               ALIGN=row_alignment(y, inner), num_warps=max(4, rows // 32))
    elif on_gpu and known(outer, n, inner) and outer < 65536:
        _by_parts(grad, y, out, outer, n, inner)
    else:
        if known(inner) and inner == 1:
            rows, cols = min(next_power_of_2(n), 4096) if known(n) else 4096, 1
        launch(wrap_triton(softmax_backward_kernel), grid(cdiv(inner, cols), outer, on_gpu), grad, y, out, n, inner, ROWS=rows, COLS=cols,
               FOLDED=on_gpu)


def _rows(grad: torch.Tensor, y: torch.Tensor, out: torch.Tensor, outer: int, n: int):
    """Over rows of n, on a GPU."""
    align, block = row_alignment(y, n), next_power_of_2(n)
    if n > ROW:
        launch(wrap_triton(softmax_backward_long_rows_kernel), (outer,), grad, y, out, n, BLOCK=ROW, ALIGN=align, num_warps=16)
        return
    together = max(1, SHORT // block)
    launch(wrap_triton(softmax_backward_rows_kernel), (cdiv(outer, together),), grad, y, out, outer, n, ROWS=together, BLOCK=block, ALIGN=align,
           num_warps=min(16, max(4, block // 1024)))


def _by_parts(grad: torch.Tensor, y: torch.Tensor, out: torch.Tensor, outer: int, n: int, inner: int):
    """Over the middle of (outer, n, inner), with programs enough for a GPU where few columns are long."""
    align = row_alignment(y, inner)
    parts = cdiv(n, PART[0] * PART[2])
    dots = temporary(torch.empty(outer * parts * inner, dtype=sums_dtype(y), device=y.device))
    launch(wrap_triton(column_dots_kernel), (cdiv(inner, PART[1]), parts, outer), grad, y, dots, n, inner, ROWS=PART[0], COLS=PART[1], TURNS=PART[2],
           ALIGN=align)
    launch(wrap_triton(column_gradient_kernel), (cdiv(inner, TILE[1]), cdiv(n, TILE[0] * TILE[2]), outer), grad, y, dots, out, n, inner, parts,
           ROWS=TILE[0], COLS=TILE[1], TURNS=TILE[2], AT_ONCE=min(16, next_power_of_2(parts)), ALIGN=align)
