"""softmax(x, dim)[i] = exp(x[i] - m) / sum over j of exp(x[j] - m), m = max of x along dim.

Three kernels by how the dimension lies in memory: whole rows that fit on chip, long rows in two passes with a running
maximum and sum (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018), and columns.
"""

from __future__ import annotations

from pathlib import Path

import torch
import triton
import triton.language as tl

from ..backends import cuda
from ..backends.dispatch.replay import temporary
from . import autocast, batching
from .autograd import added, wide
from .checks import FLOATS, check, check_dim, check_same_shape, check_tensors
from .dispatch import direct, launch, replayed, watched, wrap_triton
from .layout import roomy, row_alignment
from .register import beneath, register, served
from .sizes import cdiv, known, next_power_of_2, planned
from .records import WITH_CUDA, Case, Op, traffic
from .parts import exp_of, join_parts, keep_part
from .tuning import Tiles

CUDA = Path(__file__).with_suffix(".cu")


def reference(x, dim=-1):
    return torch.softmax(x, dim)


@triton.jit
def softmax_rows_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """One row a program; the row stays on chip."""
    row = tl.program_id(0).to(tl.int64) * n
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + row + cols, mask=mask, other=-float("inf"))
    wide = x.to(tl.float32) if x.dtype.primitive_bitwidth < 32 else x
    e = tl.exp(wide - tl.max(wide, axis=0))
    tl.store(out_ptr + row + cols, (e * (1.0 / tl.sum(e, axis=0))).to(x.dtype), mask=mask)


@triton.jit
def softmax_short_rows_kernel(x_ptr, out_ptr, m, n, ROWS: tl.constexpr, BLOCK: tl.constexpr, ALIGN: tl.constexpr):
    """ROWS rows a program, for GPUs: of one short row too little is on its way."""
    if ALIGN > 1:
        n = n // ALIGN * ALIGN
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    offs = rows.to(tl.int64)[:, None] * n + cols[None, :]
    mask = (rows[:, None] < m) & (cols[None, :] < n)
    x = tl.load(x_ptr + offs, mask=mask, other=-float("inf"))
    wide = x.to(tl.float32) if x.dtype.primitive_bitwidth < 32 else x
    e = tl.exp(wide - tl.max(wide, axis=1)[:, None])
    tl.store(out_ptr + offs, (e * (1.0 / tl.sum(e, axis=1))[:, None]).to(x.dtype), mask=mask)


@triton.jit
def online_step(m, s, x, axis: tl.constexpr):
    """Add the elements of x along `axis` to a running maximum m and sum s of exp(x - m). A maximum of -inf has met no
    number yet: its differences would be NaN, so it counts as 0."""
    new = tl.maximum(m, tl.max(x, axis=axis))
    base = tl.where(new == -float("inf"), 0.0, new)
    s = s * tl.exp(m - base) + tl.sum(tl.exp(x - (base if axis == 0 and len(x.shape) == 1 else
                                                 tl.expand_dims(base, axis))), axis=axis)
    return new, s


@triton.jit
def softmax_long_rows_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """One row a program, piece by piece: one pass for maximum and sum, one to write."""
    row = tl.program_id(0).to(tl.int64) * n
    cols = tl.arange(0, BLOCK)
    first = tl.load(x_ptr + row + cols, mask=cols < n, other=-float("inf"))
    wide = first.to(tl.float32) if first.dtype.primitive_bitwidth < 32 else first
    m = tl.max(wide, axis=0)
    base = tl.where(m == -float("inf"), 0.0, m)
    s = tl.sum(tl.exp(wide - base), axis=0)
    for start in range(BLOCK, n, BLOCK):
        x = tl.load(x_ptr + row + start + cols, mask=start + cols < n, other=-float("inf"))
        m, s = online_step(m, s, x.to(wide.dtype), 0)
    scale = 1.0 / s
    for start in range(0, n, BLOCK):
        x = tl.load(x_ptr + row + start + cols, mask=start + cols < n)
        y = tl.exp(x.to(wide.dtype) - m) * scale
        tl.store(out_ptr + row + start + cols, y.to(x.dtype), mask=start + cols < n)


@triton.jit
def softmax_columns_kernel(x_ptr, out_ptr, n, inner, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Softmax over the middle of (outer, n, inner): COLS neighbouring columns a program."""
    cols = tl.program_id(0) * COLS + tl.arange(0, COLS)
    rows = tl.arange(0, ROWS)
    base_off = tl.program_id(1).to(tl.int64) * n * inner
    offs = rows[:, None].to(tl.int64) * inner + cols[None, :]
    inside = cols[None, :] < inner
    x = tl.load(x_ptr + base_off + offs, mask=(rows[:, None] < n) & inside, other=-float("inf"))
    wide = x.to(tl.float32) if x.dtype.primitive_bitwidth < 32 else x
    m = tl.max(wide, axis=0)
    base = tl.where(m == -float("inf"), 0.0, m)
    s = tl.sum(tl.exp(wide - base[None, :]), axis=0)
    for start in range(ROWS, n, ROWS):
        at = base_off + start.to(tl.int64) * inner
        x = tl.load(x_ptr + at + offs, mask=(rows[:, None] < n - start) & inside, other=-float("inf"))
        m, s = online_step(m, s, x.to(wide.dtype), 0)
    scale = 1.0 / s
    for start in range(0, n, ROWS):
        at = base_off + start.to(tl.int64) * inner
        mask = (rows[:, None] < n - start) & inside
        x = tl.load(x_ptr + at + offs, mask=mask)
        y = tl.exp(x.to(wide.dtype) - m[None, :]) * scale[None, :]
        tl.store(out_ptr + at + offs, y.to(x.dtype), mask=mask)


@triton.jit
def column_parts_kernel(x_ptr, stats_ptr, n, inner, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Statistics of the middle of (outer, n, inner): ROWS rows, a part, and COLS neighbouring columns a program."""
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
                        AT_ONCE: tl.constexpr):
    """What `column_parts_kernel` prepared: TURNS times ROWS rows and COLS columns of the result a program."""
    outer = tl.program_id(2).to(tl.int64)
    cols = tl.program_id(0) * COLS + tl.arange(0, COLS)
    top, total = join_parts(stats_ptr + outer * 2 * parts * inner, cols, inner, parts, AT_ONCE)
    scale = 1.0 / total
    for turn in tl.static_range(TURNS):
        rows = (tl.program_id(1) * TURNS + turn) * ROWS + tl.arange(0, ROWS)
        inside = (rows[:, None] < n) & (cols[None, :] < inner)
        offs = outer * n * inner + rows[:, None].to(tl.int64) * inner + cols[None, :]
        x = tl.load(x_ptr + offs, mask=inside)
        y = tl.exp(x.to(scale.dtype) - top[None, :]) * scale[None, :]
        tl.store(out_ptr + offs, y.to(x.dtype), mask=inside)


@triton.jit
def softmax_backward_kernel(grad_ptr, y_ptr, out_ptr, n, inner, ROWS: tl.constexpr, COLS: tl.constexpr):
    """dx = y (g - sum of g y), over the middle of (outer, n, inner); inner = 1 where rows are contiguous."""
    cols = tl.program_id(0) * COLS + tl.arange(0, COLS)
    rows = tl.arange(0, ROWS)
    base_off = tl.program_id(1).to(tl.int64) * n * inner
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


def _split(x: torch.Tensor, dim: int) -> tuple[int, int, int]:
    """(outer, n, inner): the sizes before, of and after `dim`."""
    shape = x.shape or (1,)
    outer = inner = 1
    for k, size in enumerate(shape):
        outer, inner = (outer * size, inner) if k < dim else (outer, inner * size) if k > dim else (outer, inner)
    return outer, shape[dim], inner


def _softmax_body(x: torch.Tensor, dim: int) -> torch.Tensor:
    check("softmax", FLOATS, x=x)
    dim = check_dim("softmax", x, dim)
    x = x.contiguous()
    out = roomy(torch.empty_like(x))
    if x.numel() == 0:
        return out
    outer, n, inner = _split(x, dim)
    t = TILES.get(x.device.type)
    warps = {"num_warps": t["num_warps"]} if "num_warps" in t else {}
    if known(outer, n, inner) and inner > 1 and x.device.type == "cuda" and PART[0] < n and outer < 65536:
        columns_by_parts(x, out, outer, n, inner)
    elif not known(inner) or inner > 1:
        rows, cols = t["columns"]
        launch(wrap_triton(softmax_columns_kernel), (cdiv(inner, cols), outer), x, out, n, inner, ROWS=rows, COLS=cols,
               **warps)
    elif x.device.type == "cuda" and known(outer, n) and n <= SHORT:
        block = next_power_of_2(n)
        rows = min(max(1, SHORT // block), next_power_of_2(max(1, outer // PROGRAMS)))
        launch(wrap_triton(softmax_short_rows_kernel), (cdiv(outer, rows),), x, out, outer, n, ROWS=rows, BLOCK=block, ALIGN=row_alignment(x, n), **warps)
    elif known(n) and n <= t["row"]:
        launch(wrap_triton(softmax_rows_kernel), (outer,), x, out, n, BLOCK=next_power_of_2(n), **warps)
    else:
        plan = planned(n)  # where a row's length is left open: a piece that the one at hand fits in
        piece = t["piece"] if plan is None else min(t["piece"], max(64, next_power_of_2(*plan)))
        launch(wrap_triton(softmax_long_rows_kernel), (outer,), x, out, n, BLOCK=piece, **warps)
    return out


#: on a GPU: elements of the rows that a program takes together, and programs that there are to be at least, before they take several. 65536 x 256 fp16 took an
#: H100 44 us a row a program, 21 by eight
SHORT, PROGRAMS = 2048, 512
#: on a GPU: rows and columns of a part, and of a tile of the result, whose programs take TURNS; fastest of 30 on an H200 (fp32, fp16)
PART, SCALED, TURNS = (256, 32), (64, 32), 4


def columns_by_parts(x: torch.Tensor, out: torch.Tensor, outer: int, n: int, inner: int):
    """Over the middle of (outer, n, inner), with programs enough for a GPU where few columns are long."""
    parts = cdiv(n, PART[0])
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    stats = temporary(torch.empty(2 * outer * parts * inner, dtype=wide, device=x.device))
    launch(wrap_triton(column_parts_kernel), (cdiv(inner, PART[1]), parts, outer), x, stats, n, inner, ROWS=PART[0], COLS=PART[1])
    launch(wrap_triton(column_scale_kernel), (cdiv(inner, SCALED[1]), cdiv(n, SCALED[0] * TURNS), outer), x, out, stats, n, inner, parts,
           ROWS=SCALED[0], COLS=SCALED[1], TURNS=TURNS, AT_ONCE=min(16, next_power_of_2(parts)))


#: most parts whose statistics each block of CUDA C++ joins. 65536 x 256 fp16 on an H100: 59.4 us with 64, 58.8 with 128, 88.1 with 256
PARTS = 128
#: 16-byte pieces of a row that a thread of CUDA C++ keeps
PIECES = 4


def _softmax_cuda(x: torch.Tensor, dim: int) -> torch.Tensor:
    check("softmax", FLOATS, x=x)
    dim = check_dim("softmax", x, dim)
    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel() == 0:
        return out
    outer, n, inner = _split(x, dim)
    if inner > 1:
        _columns_cuda(x, out, outer, n, inner)
        return out
    t = cuda.element(x)
    piece = 16 // x.element_size()
    pieces = cdiv(n, piece) + (n % piece != 0 or x.data_ptr() % 16 != 0)  # a row that is not aligned sticks out at both ends
    most = 256 if piece <= 4 else 128  # pieces of a row that a warp has registers for
    if pieces <= most:
        cuda.launch(CUDA, f"softmax_rows<{t}, {next_power_of_2(cdiv(pieces, 32))}, 128, true>", (cdiv(outer, 4),), 128, x, out, outer, n)
    elif pieces <= PIECES * 1024:
        threads = next_power_of_2(cdiv(pieces, PIECES))
        cuda.launch(CUDA, f"softmax_rows<{t}, {cdiv(pieces, threads)}, {threads}, false>", (outer,), threads, x, out, outer, n)
    else:
        cuda.launch(CUDA, f"softmax_long_rows<{t}>", (outer,), 1024, x, out, outer, n)
    return out


def _columns_cuda(x: torch.Tensor, out: torch.Tensor, outer: int, n: int, inner: int):
    """Over the middle of (outer, n, inner): read once where a cluster of blocks can keep the columns, else twice."""
    t, size = cuda.element(x), x.element_size()
    whole = inner * size % 16 == 0 and x.data_ptr() % 16 == 0 and out.data_ptr() % 16 == 0
    piece, lanes, bytes_, threads = (f"Vec<{t}>", 8, 16, 128) if whole else (f"One<{t}>", 32, size, 256)
    tiles = cdiv(inner, lanes * (bytes_ // size))
    _, shared, capability = cuda.limits(x.device.index)
    teams = threads // lanes
    for at_most in (16 << 10, 32 << 10, 64 << 10, 96 << 10, shared - (16 << 10)):  # small blocks: while some wait for memory, others compute
        turns = at_most // (threads * bytes_)
        cluster = next_power_of_2(cdiv(n, teams * turns))
        if cluster <= (8 if capability >= (9, 0) else 1):
            turns = cdiv(n, teams * cluster)
            cuda.launch(CUDA, f"softmax_columns<{t}, {piece}, {threads}, {lanes}>", (tiles * outer * cluster,), threads, x, out, n, inner, tiles,
                        turns, cluster=cluster, shared=turns * threads * bytes_)
            return
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    parts = max(1, min(cdiv(n, 256), cdiv(1024, tiles), PARTS))
    step = cdiv(n, parts)
    parts = cdiv(n, step)
    for at in range(0, outer, 65535):  # the grid's second and third dimension end there
        part, to = x.view(outer, n, inner)[at:at + 65535], out.view(outer, n, inner)[at:at + 65535]
        stats = temporary(torch.empty(2 * len(part) * parts * inner, dtype=wide, device=x.device))
        grid = (tiles, len(part), parts)
        cuda.launch(CUDA, f"column_stats<{t}, {piece}, 256, {lanes}>", grid, 256, part, stats, len(part), n, inner, step)
        cuda.launch(CUDA, f"column_scale<{t}, {piece}, 256, {lanes}>", grid, 256, part, to, stats, len(part), n, inner, step)


_softmax = register("softmax", _softmax_body, softmax_columns_kernel, softmax_rows_kernel, softmax_short_rows_kernel, softmax_long_rows_kernel,
                    column_parts_kernel, column_scale_kernel, implementations={"cuda": _softmax_cuda})


def _softmax_backward_body(grad: torch.Tensor, y: torch.Tensor, dim: int) -> torch.Tensor:
    check("softmax_backward", FLOATS, grad=grad, y=y)
    check_same_shape("softmax_backward", grad=grad, y=y)
    dim = check_dim("softmax_backward", y, dim)
    y, grad = y.contiguous(), grad.contiguous()
    out = roomy(torch.empty_like(y))
    if y.numel() == 0:
        return out
    outer, n, inner = _split(y, dim)
    rows, cols = TILES.get(y.device.type)["columns"]
    if known(inner) and inner == 1:
        rows, cols = min(next_power_of_2(n), 4096) if known(n) else 4096, 1
    launch(wrap_triton(softmax_backward_kernel), (cdiv(inner, cols), outer),
           grad, y, out, n, inner, ROWS=rows, COLS=cols)
    return out


_softmax_backward = register("softmax_backward", _softmax_backward_body, softmax_backward_kernel)
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
    if not isinstance(x, torch.Tensor):
        check_tensors("softmax", x=x)
    check_dim("softmax", x, dim)
    if watched(x):
        return served("softmax", x, dim)
    return direct(_softmax_body, (x,), dim)


OP = Op("softmax", softmax, reference, CASES, reference, nbytes, flops, ("fp32", "fp16", "bf16", "fp64"), backends=WITH_CUDA)
