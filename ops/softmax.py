"""softmax(x, dim)[i] = exp(x[i] - m) / sum over j of exp(x[j] - m), m = max of x along dim.

Three kernels by how the dimension lies in memory: whole rows that fit on chip, long rows in two passes with a running
maximum and sum (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018), and columns. On Intel's CPUs
results in fp32 and bf16 below 2^-126, the smallest normal number, are 0 (parts.py).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..backends.dispatch.replay import temporary
from . import autocast, batching, choices, softmax_held, softmax_shares
from .autograd import added, wide
from .checks import FLOATS, check, check_dim, check_index, check_same_shape, check_tensors
from .dispatch import direct, launch, replayed, watched, wrap_triton
from .grids import columns_of, grid, widened
from .layout import roomy, row_alignment, split, sums_dtype
from .register import beneath, register, served
from .sizes import cdiv, known, next_power_of_2, planned
from .records import WITH_CUDA, Case, Op, traffic
from .parts import exp_normal, exp_of, join_parts, keep_part, least_difference, normal, online_step, share_of
from .softmax_backward import KERNELS as GRADIENT_KERNELS, gradient
from .straight import KERNELS as COPYING, contiguous
from .tuning import Tiles


def reference(x, dim=-1):
    return torch.softmax(x, dim)


@triton.jit
def softmax_rows_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr, NORMAL: tl.constexpr = False):
    """One row a program; the row stays on chip."""
    row = tl.program_id(0).to(tl.int64) * n
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + row + cols, mask=mask, other=-float("inf"))
    wide = x.to(tl.float32) if x.dtype.primitive_bitwidth < 32 else x
    wide -= tl.max(wide, axis=0)
    if NORMAL:  # as parts.exp_normal and parts.above have it: written out, so that a page shows this kernel's file alone
        wide = tl.where(wide < -87.3365, -float("inf"), wide)
    e = tl.exp(wide)
    total = tl.sum(e, axis=0)
    if NORMAL:
        e = tl.where(e < total * 1.17550e-38, 0.0, e)
    tl.store(out_ptr + row + cols, (e * (1.0 / total)).to(x.dtype), mask=mask)


@triton.jit
def softmax_short_rows_kernel(x_ptr, out_ptr, m, n, ROWS: tl.constexpr, BLOCK: tl.constexpr, ALIGN: tl.constexpr):
    """ROWS rows a program, for GPUs: of one short row too little is on its way."""
    if ALIGN > 1:
        n = n // ALIGN * ALIGN
    rows = widened(tl.program_id(0), m) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    offs = rows.to(tl.int64)[:, None] * n + cols[None, :]
    mask = (rows[:, None] < m) & (cols[None, :] < n)
    x = tl.load(x_ptr + offs, mask=mask, other=-float("inf"))
    wide = x.to(tl.float32) if x.dtype.primitive_bitwidth < 32 else x
    e = tl.exp(wide - tl.max(wide, axis=1)[:, None])
    tl.store(out_ptr + offs, (e * (1.0 / tl.sum(e, axis=1))[:, None]).to(x.dtype), mask=mask)


@triton.jit
def softmax_line(x_ptr, out_ptr, n, stride, BLOCK: tl.constexpr, NORMAL: tl.constexpr):
    """Softmax of n numbers in a row, `stride` apart in the result, piece by piece: one pass for maximum and sum, one to write."""
    cols = tl.arange(0, BLOCK)
    first = tl.load(x_ptr + cols, mask=cols < n, other=-float("inf"))
    wide = first.to(tl.float32) if first.dtype.primitive_bitwidth < 32 else first
    m = tl.max(wide, axis=0)
    base = tl.where(m == -float("inf"), 0.0, m)
    s = tl.sum(exp_normal(wide - base, NORMAL), axis=0)
    for start in range(BLOCK, n, BLOCK):
        x = tl.load(x_ptr + (start + cols), mask=start + cols < n, other=-float("inf"))
        m, s = online_step(m, s, x.to(wide.dtype), 0, NORMAL)
    scale, least = 1.0 / s, least_difference(s, NORMAL)
    for start in range(0, n, BLOCK):
        x = tl.load(x_ptr + (start + cols), mask=start + cols < n)  # as the store's: a row may be its own result
        y = share_of(x.to(wide.dtype) - m, least, scale, NORMAL)
        tl.store(out_ptr + (start + cols) * stride, y.to(out_ptr.dtype.element_ty), mask=start + cols < n)


@triton.jit
def softmax_long_rows_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr, NORMAL: tl.constexpr = False):
    """One row a program, in two passes."""
    row = tl.program_id(0).to(tl.int64) * n
    softmax_line(x_ptr + row, out_ptr + row, n, 1, BLOCK, NORMAL)


@triton.jit
def softmax_columns_kernel(x_ptr, out_ptr, n, inner, ROWS: tl.constexpr, COLS: tl.constexpr, FOLDED: tl.constexpr, NORMAL: tl.constexpr = False):
    """Softmax over the middle of (outer, n, inner): COLS neighbouring columns a program."""
    outer, cols = columns_of(inner, COLS, FOLDED)
    rows = tl.arange(0, ROWS)
    base_off = outer.to(tl.int64) * n * inner
    offs = rows[:, None].to(tl.int64) * inner + cols[None, :]
    inside = cols[None, :] < inner
    x = tl.load(x_ptr + base_off + offs, mask=(rows[:, None] < n) & inside, other=-float("inf"))
    wide = x.to(tl.float32) if x.dtype.primitive_bitwidth < 32 else x
    m = tl.max(wide, axis=0)
    base = tl.where(m == -float("inf"), 0.0, m)
    s = tl.sum(exp_normal(wide - base[None, :], NORMAL), axis=0)
    for start in range(ROWS, n, ROWS):
        at = base_off + start.to(tl.int64) * inner
        x = tl.load(x_ptr + at + offs, mask=(rows[:, None] < n - start) & inside, other=-float("inf"))
        m, s = online_step(m, s, x.to(wide.dtype), 0, NORMAL)
    scale, least = 1.0 / s, least_difference(s, NORMAL)
    for start in range(0, n, ROWS):
        at = base_off + start.to(tl.int64) * inner
        mask = (rows[:, None] < n - start) & inside
        x = tl.load(x_ptr + at + offs, mask=mask)
        y = share_of(x.to(wide.dtype) - m[None, :], least[None, :], scale[None, :], NORMAL)
        tl.store(out_ptr + at + offs, y.to(x.dtype), mask=mask)


@triton.jit
def column_parts_kernel(x_ptr, stats_ptr, n, inner, ROWS: tl.constexpr, COLS: tl.constexpr, ALIGN: tl.constexpr):
    """Statistics of the middle of (outer, n, inner): ROWS rows, a part, and COLS neighbouring columns a program."""
    if ALIGN > 1:
        inner = inner // ALIGN * ALIGN
    part, outer = tl.program_id(1), tl.program_id(2).to(tl.int64)
    parts = tl.num_programs(1)
    cols = tl.program_id(0) * COLS + tl.arange(0, COLS)
    rows = part * ROWS + tl.arange(0, ROWS)
    x = tl.load(x_ptr + outer * n * inner + rows[:, None].to(tl.int64) * inner + cols[None, :],
                mask=(rows[:, None] < n) & (cols[None, :] < inner), other=-float("inf"))
    _, top, total = exp_of(x.to(tl.float32) if x.dtype.primitive_bitwidth < 32 else x, 0)
    keep_part(stats_ptr + outer * 2 * parts * inner, top, total, part, parts, cols, inner)


@triton.jit(do_not_specialize=["parts"])
def column_scale_kernel(x_ptr, out_ptr, stats_ptr, n, inner, parts, ROWS: tl.constexpr, COLS: tl.constexpr, TURNS: tl.constexpr,
                        AT_ONCE: tl.constexpr, ALIGN: tl.constexpr):
    """What `column_parts_kernel` prepared: TURNS times ROWS rows and COLS columns of the result a program. The last rows come first: what was read last is still
    in the cache."""
    if ALIGN > 1:
        inner = inner // ALIGN * ALIGN
    outer = tl.program_id(2).to(tl.int64)
    cols = tl.program_id(0) * COLS + tl.arange(0, COLS)
    top, total = join_parts(stats_ptr + outer * 2 * parts * inner, cols, inner, parts, AT_ONCE)
    scale = 1.0 / total
    last = tl.num_programs(1) - 1 - tl.program_id(1)
    for turn in tl.static_range(TURNS):
        rows = (last * TURNS + turn) * ROWS + tl.arange(0, ROWS)
        inside = (rows[:, None] < n) & (cols[None, :] < inner)
        offs = outer * n * inner + rows[:, None].to(tl.int64) * inner + cols[None, :]
        x = tl.load(x_ptr + offs, mask=inside)
        y = tl.exp(x.to(scale.dtype) - top[None, :]) * scale[None, :]
        tl.store(out_ptr + offs, y.to(x.dtype), mask=inside)


CASES = (Case(((128, 128),)), Case(((256, 256),)), Case(((512, 512),)), Case(((1823, 781),)), Case(((4096, 2048),)),
         Case(((1024, 1024),), {"dim": 0}), Case(((4096, 8192),), device="cuda"), Case(((4096, 8192),), {"dim": 0}, device="cuda"),
         Case(((1823, 781),), {"dim": 0}, device="cuda"))
#: longest whole row, piece of a long row, and (rows, columns) of a column tile
TILES = Tiles("softmax", cpu={"row": 16384, "piece": 4096, "columns": (64, 64)},
              cuda={"row": 16384, "piece": 4096, "columns": (32, 64)},
              candidates=tuple({"row": 16384, "piece": 4096, "columns": (r, c)} for r in (16, 32, 64, 128) for c in (32, 64, 128)),
              cuda_candidates=tuple({"row": 16384, "piece": 4096, "columns": (r, c), "num_warps": w}
                                    for r, c in ((32, 64), (64, 32), (128, 32), (128, 16), (256, 16)) for w in (4, 8, 16)))


def nbytes(x, dim=-1):
    return 2 * traffic(x)


def flops(x, dim=-1):
    return 5 * x.numel()


def _softmax_body(x: torch.Tensor, dim: int) -> torch.Tensor:
    check("softmax", FLOATS, x=x)
    dim = check_dim("softmax", x, dim)
    x = contiguous(x)
    out = roomy(torch.empty_like(x))
    if x.numel():
        softmax_into(x, out, dim)
    return out


def softmax_into(x: torch.Tensor, out: torch.Tensor, dim: int):
    """out = softmax(x, dim). Both contiguous, of one shape, on a GPU of any dtypes; x is not empty; dim >= 0."""
    outer, n, inner = split(x, dim)
    t = TILES.get(x.device.type)
    warps = {"num_warps": t["num_warps"]} if "num_warps" in t else {}
    if softmax_shares.takes(x, outer, n, inner, t["columns"][1]):
        softmax_shares.softmax(x, out, outer, n, inner)
    elif softmax_shares.takes_rows(x, outer, n, inner, t["row"]):
        softmax_shares.long_rows(x, out, outer, n)
    elif (held := softmax_held.widths(x, outer, n, inner)) is not None:
        softmax_held.softmax(x, out, outer, n, inner, held)
    elif x.device.type == "cuda" and (held := softmax_held.tile_on_gpu(outer, n, inner)) is not None:
        softmax_held.softmax(x, out, outer, n, inner, held[:2], held[2])
    elif known(outer, n, inner) and inner > 1 and x.device.type == "cuda" and PART[0] < n and outer < 65536:
        columns_by_parts(x, out, outer, n, inner)
    elif not known(inner) or inner > 1:
        rows, cols = t["columns"]
        folded = x.device.type == "cuda"
        launch(wrap_triton(softmax_columns_kernel), grid(cdiv(inner, cols), outer, folded), x, out, n, inner, ROWS=rows, COLS=cols, FOLDED=folded,
               **warps, **normal(x))
    elif x.device.type == "cuda" and known(outer, n) and n <= SHORT:
        block, together = next_power_of_2(n), SHORT
        if n * x.element_size() % 16 and block <= SHORT_OF_NUMBERS[0]:
            together = max(SHORT_OF_NUMBERS[1], 2 * block)
            warps = {"num_warps": together // SHORT_OF_NUMBERS[1]}
        rows = min(max(1, together // block), next_power_of_2(max(1, outer // PROGRAMS)))
        launch(wrap_triton(softmax_short_rows_kernel), (cdiv(outer, rows),), x, out, outer, n, ROWS=rows, BLOCK=block, ALIGN=row_alignment(x, n), **warps)
    elif known(n) and n <= t["row"]:
        launch(wrap_triton(softmax_rows_kernel), (outer,), x, out, n, BLOCK=next_power_of_2(n), **warps, **normal(x))
    else:
        plan = planned(n)  # where a row's length is left open: a piece that the one at hand fits in
        piece = t["piece"] if plan is None else min(t["piece"], max(64, next_power_of_2(*plan)))
        launch(wrap_triton(softmax_long_rows_kernel), (outer,), x, out, n, BLOCK=piece, **warps, **normal(x))


#: on a GPU: elements of the rows that a program takes together, and programs that there are to be at least, before they take several. 65536 x 256 fp16 took an
#: H100 44 us a row a program, 21 by eight
SHORT, PROGRAMS = 2048, 512
#: the same of rows that do not begin at multiples of 16 bytes, whose numbers are read one by one: up to how long, and elements of a warp. us of an H200 by 2048
#: elements of four warps, so and torch: 43160x87 fp16 16.1, 9.1, 10.0, fp32 16.9, 9.5, 10.0; 34320x100 fp16 12.5, 7.6, 9.0; 75865x47 fp32 15.8, 9.5, 11.5;
#: 10000x333 fp16 7.3, 6.0, 8.1
SHORT_OF_NUMBERS = 512, 512
#: on a GPU: rows and columns of a part, and of a tile of the result; fastest of 30 on an H200 (fp32, fp16), of 14 on an H100. A program has two tiles one below
#: the other, four where more parts than FEW are to be joined
PART, SCALED, FEW = (256, 32), (64, 64), 32


def columns_by_parts(x: torch.Tensor, out: torch.Tensor, outer: int, n: int, inner: int):
    """Over the middle of (outer, n, inner), with programs enough for a GPU where few columns are long."""
    parts = cdiv(n, PART[0])
    stats = temporary(torch.empty(2 * outer * parts * inner, dtype=sums_dtype(x), device=x.device))
    turns, align = 2 if parts <= FEW else 4, row_alignment(x, inner)
    launch(wrap_triton(column_parts_kernel), (cdiv(inner, PART[1]), parts, outer), x, stats, n, inner, ROWS=PART[0], COLS=PART[1], ALIGN=align)
    launch(wrap_triton(column_scale_kernel), (cdiv(inner, SCALED[1]), cdiv(n, SCALED[0] * turns), outer), x, out, stats, n, inner, parts,
           ROWS=SCALED[0], COLS=SCALED[1], TURNS=turns, AT_ONCE=min(16, next_power_of_2(parts)), ALIGN=align)


def _softmax_cuda(x: torch.Tensor, dim: int) -> torch.Tensor:
    check("softmax", FLOATS, x=x)
    dim = check_dim("softmax", x, dim)
    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel():
        from . import softmax_cuda
        softmax_cuda.softmax(x, out, dim)
    return out


def _alike(x: torch.Tensor, dim: int) -> choices.Like:
    """(outer, n, inner) of the softmax of contiguous rows, or of columns."""
    if not x.dim() or not -x.dim() <= dim < x.dim() or not known(*x.shape) or not x.numel() or not choices.begins(x):
        return None
    outer, n, inner = sizes = split(x, dim % x.dim())
    return choices.kind("columns" if inner > 1 else "rows", (inner if inner > 1 else n) * x.element_size()), sizes


KERNELS = (softmax_columns_kernel, softmax_rows_kernel, softmax_short_rows_kernel, softmax_long_rows_kernel, column_parts_kernel, column_scale_kernel,
           *softmax_shares.KERNELS, *softmax_held.KERNELS)
_softmax = register("softmax", _softmax_body, *KERNELS, *COPYING, implementations={"cuda": _softmax_cuda}, alike=_alike)


def _softmax_backward_body(grad: torch.Tensor, y: torch.Tensor, dim: int) -> torch.Tensor:
    check("softmax_backward", FLOATS, grad=grad, y=y)
    check_same_shape("softmax_backward", grad=grad, y=y)
    dim = check_dim("softmax_backward", y, dim)
    y, grad = y.contiguous(), grad.contiguous()
    out = roomy(torch.empty_like(y))
    if y.numel() == 0:
        return out
    gradient(grad, y, out, dim, TILES.get(y.device.type)["columns"])
    return out


_softmax_backward = register("softmax_backward", _softmax_backward_body, *GRADIENT_KERNELS)
backward_of_softmax = beneath("softmax_backward", 2)
_softmax.derive(keep=lambda inputs, out: (out,),
                backward=lambda kept, params, grad, needed: (backward_of_softmax(grad, kept[0], params[0]),),
                jvp=lambda inputs, out, tangents: torch.ops.triport.softmax_backward(tangents[0], out, inputs[1]))
_softmax.batch(batching.along)
_softmax_backward.batch(batching.along)
_softmax.autocast(autocast.fp32_on_cuda)


def _backward_twice(kept, params, outer, needed):
    """Of y (g - sum of g y): towards g it is the same again, with `outer` for g."""
    (grad, y), (dim, *_) = kept, params
    dy = None
    if needed[1]:
        g, w, p = wide(grad), wide(outer), wide(y)
        dy = (w * (g - (g * p).sum(dim, keepdim=True)) - g * (w * p).sum(dim, keepdim=True)).to(y.dtype)
    return torch.ops.triport.softmax_backward(outer, y, dim) if needed[0] else None, dy


def _backward_jvp(inputs, out, tangents):
    (grad, y, dim, *_), (dgrad, dy) = inputs, tangents
    along_y = None
    if dy is not None:
        g, p, t = wide(grad), wide(y), wide(dy)
        along_y = (t * (g - (g * p).sum(dim, keepdim=True)) - p * (g * t).sum(dim, keepdim=True)).to(y.dtype)
    return added(None if dgrad is None else torch.ops.triport.softmax_backward(dgrad, y, dim), along_y)


_softmax_backward.derive(keep=lambda inputs, out: inputs[:2], backward=_backward_twice, jvp=_backward_jvp)


@replayed(1)
def softmax(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """Softmax of x along `dim`. x: any shape and strides, fp32, fp16, bf16 or fp64. Returns a contiguous tensor of the
    shape and dtype of x; sums are kept in fp32 (fp64 for fp64).

    Raises `ArgumentError` for a wrong dtype, device or dim."""
    dim = check_index("softmax", dim)
    if not isinstance(x, torch.Tensor):
        check_tensors("softmax", x=x)
        return served("softmax", x, dim)
    check_dim("softmax", x, dim)
    if watched(x):
        return served("softmax", x, dim)
    return direct(_softmax_body, (x,), dim)


OP = Op("softmax", softmax, reference, CASES, reference, nbytes, flops, ("fp32", "fp16", "bf16", "fp64"), backends=WITH_CUDA)
