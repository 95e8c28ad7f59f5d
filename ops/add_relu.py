"""add_relu(x, bias) = max(x + bias, 0): a bias row added to every row of x, then ReLU. NaN stays NaN, as in torch."""

from __future__ import annotations

from pathlib import Path

import torch
import triton
import triton.language as tl

from ..backends import cuda
from . import autocast, batching, choices, row_sums
from .autograd import added
from .checks import FLOATS, check, check_bias, check_same_shape, check_tensors
from .dispatch import direct, launch, replayed, watched, wrap_triton
from .grids import elements_of, grid, lines_at, row_at, widened
from .layout import roomy, row_alignment
from .row_sums import gradient_at, keep_sums
from .register import beneath, register, served
from .sizes import cdiv, known, next_power_of_2, planned
from .records import WITH_CUDA, Case, Op, traffic
from .straight import KERNELS as COPYING, as_rows, gapped, over_lines
from .tuning import Tiles

CUDA = Path(__file__).with_suffix(".cu")


def reference(x, bias):
    return torch.relu(x + bias)


@triton.jit
def relu(z):
    return tl.where(z <= 0, 0.0, z).to(z.dtype)


@triton.jit
def add_relu_kernel(x_ptr, bias_ptr, out_ptr, m, n, ROWS: tl.constexpr, COLS: tl.constexpr, ALIGN: tl.constexpr, FOLDED: tl.constexpr, FLAT: tl.constexpr):
    if ALIGN > 1:
        n = n // ALIGN * ALIGN
    cols, offs, mask = elements_of(m, n, ROWS, COLS, FOLDED, FLAT)
    x = tl.load(x_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, relu(x + row_at(bias_ptr, cols, n, x.dtype, FLAT)), mask=mask)


@triton.jit
def add_relu_lines_kernel(x_ptr, bias_ptr, out_ptr, lines, length, stride_line, stride_at, BL: tl.constexpr, BC: tl.constexpr, AT: tl.constexpr):
    """x a matrix with gaps. Grid: its tiles."""
    cols, offs, to, inside = lines_at(tl.program_id(0), lines, length, stride_line, AT or stride_at, length, BL, BC)
    x = tl.load(x_ptr + offs, mask=inside)
    tl.store(out_ptr + to, relu(x + row_at(bias_ptr, cols, length, x.dtype, False)), mask=inside)


@triton.jit
def add_relu_gradients_kernel(grad_ptr, out_ptr, dz_ptr, parts_ptr, m, n, ROWS: tl.constexpr, COLS: tl.constexpr, ALIGN: tl.constexpr, STAGES: tl.constexpr,
                              DZ: tl.constexpr, ONE: tl.constexpr):
    """The gradient of x + bias, where DZ is, and its sums over a part of the rows (row_sums.py), from the gradient of relu's result and that result."""
    if ALIGN > 1:
        n = n // ALIGN * ALIGN
    first, step = tl.program_id(1) * ROWS, tl.num_programs(1) * ROWS
    cols = widened(tl.program_id(0), n) * COLS + tl.arange(0, COLS)
    sums = tl.zeros((ROWS, COLS), tl.float64 if out_ptr.dtype.element_ty == tl.float64 else tl.float32)
    for turn in tl.range(0, tl.cdiv(m - first, step), num_stages=STAGES):
        rows = first + turn * step + tl.arange(0, ROWS)
        offs = rows.to(tl.int64)[:, None] * n + cols[None, :]
        mask = (rows[:, None] < m) & (cols[None, :] < n)
        out = tl.load(out_ptr + offs, mask=mask, other=0.0)
        dz = tl.where(out <= 0, 0.0, gradient_at(grad_ptr, offs, mask, ONE))  # no product: infinity times 0 is NaN; NaN counts as passed, as in torch
        if DZ:
            tl.store(dz_ptr + offs, dz, mask=mask)
        sums += dz.to(sums.dtype)
    keep_sums(sums, parts_ptr, cols, n)


CASES = tuple(Case(((m, n), (n,))) for m, n in ((128, 128), (256, 256), (512, 512), (1823, 781), (4096, 2048))) + (
    Case(((4096, 8192), (8192,)), device="cuda"),)
#: a GPU's are those of 16-bit numbers: 16 bytes for each of four warps' threads, as for other numbers
TILES = Tiles("add_relu", cpu=(8, 2048), cuda=(2, 512), candidates=tuple((r, c) for c in (512, 1024, 2048, 4096) for r in (2, 4, 8, 16)),
              cuda_candidates=tuple((r, c) for c in (256, 512, 1024, 2048) for r in (1, 2, 4, 8)))


def nbytes(x, bias):
    return 2 * traffic(x) + traffic(bias)


def flops(x, bias):
    return 2 * x.numel()


#: longest rows of 16-bit numbers that a GPU takes in one piece although its tile is narrower: with two pieces, whose ends are in the middle of a line of memory, 32768
#: rows of 1000 in fp16 took 49 us on an H100, with one 43. (In fp32 124 in pieces of 512, 127 in one)
WHOLE = 2048
#: elements from and up to which rows that do not begin at multiples of 16 bytes are read FLAT on a GPU. us of add_relu and add_mul_act on an H200, by rows and so:
#: 32768 x 1001 in fp16 39.2, 55.0 and 35.2, 45.7, in fp32 66.9, 92.8 and 62.4, 90.3; 1823 x 781 in fp16 5.8, 6.5 and 6.1, 6.3: an element's column takes a division
FLAT = 1 << 22, 1 << 30
#: rows of a tile at most, where they are short
MOST_ROWS = 64


def row_tile(x: torch.Tensor, n: int) -> dict[str, int]:
    """ROWS and COLS of a tile for contiguous rows of length n, their ALIGN, and whether the grid is FOLDED (`row_grid`), or tiles are FLAT (grids.py)."""
    rows, cols = TILES.get(x.device.type)
    gpu = x.device.type == "cuda"
    plan, fixed = planned(n), {"ALIGN": row_alignment(x, n), "FOLDED": gpu, "FLAT": False}
    if gpu:
        rows = max(1, rows * 2 // x.element_size())
    if plan is None:
        return {"ROWS": rows, "COLS": cols, **fixed}
    width = min(cols, next_power_of_2(*plan))
    if not gpu:
        return {"ROWS": rows * max(1, min(16, cols // (4 * width))), "COLS": width, **fixed}
    whole = 16 // x.element_size()
    if known(n, x.numel()) and n % whole and FLAT[0] <= x.numel() <= FLAT[1]:
        return {"ROWS": 1, "COLS": rows * cols, **fixed, "FLAT": True}
    if x.element_size() == 2 and fixed["ALIGN"] > 1 and width < n <= WHOLE:
        wider = next_power_of_2(n)
        return {"ROWS": max(1, rows * width // wider), "COLS": wider, **fixed}
    return {"ROWS": min(MOST_ROWS, rows * cols // width), "COLS": width, **fixed}


def row_grid(tile: dict[str, int], m: int, n: int) -> tuple:
    """The grid for m rows of n. On a GPU its programs go along the rows, FOLDED into one dimension, so that neighbours in time are neighbours in memory: down the
    columns 4096 x 8192 in fp32 took an H100 92 us."""
    if tile["FLAT"]:
        return grid(cdiv(m * n, tile["COLS"]), 1, True)
    return grid(cdiv(m, tile["ROWS"]), cdiv(n, tile["COLS"]), tile["FOLDED"])


def _add_relu_body(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    check("add_relu", FLOATS, x=x, bias=bias)
    check_bias("add_relu", x, bias)
    lines = gapped(x)
    if lines is not None:
        return over_lines(add_relu_lines_kernel, lines, x, bias.contiguous())
    out = roomy(torch.empty(x.shape, dtype=x.dtype, device=x.device))
    if x.numel():
        flat, bias = as_rows(x), bias.contiguous()
        m, n = flat.shape
        tile = row_tile(x, n)
        launch(wrap_triton(add_relu_kernel), row_grid(tile, m, n), flat, bias, out, m, n, **tile)
    return out


def _add_relu_cuda(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    check("add_relu", FLOATS, x=x, bias=bias)
    check_bias("add_relu", x, bias)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    cuda.flat(CUDA, f"add_relu<{cuda.element(x)}>", out, x.contiguous(), bias.contiguous(), out, x.numel(), x.shape[-1])
    return out


_add_relu = register("add_relu", _add_relu_body, add_relu_kernel, add_relu_lines_kernel, *COPYING, implementations={"cuda": _add_relu_cuda}, alike=choices.rows)


def of_rows(grad: torch.Tensor) -> torch.Tensor:
    """The gradient of a bias row, from that of what it was added to."""
    return grad.sum(dim=tuple(range(grad.dim() - 1))) if grad.dim() > 1 else grad


def _through(grad: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """0 where relu's result is 0, whatever `grad` is there (infinity times 0 is NaN); NaN counts as passed, as in torch."""
    return torch.ops.aten.threshold_backward(grad, out, 0)


def _add_relu_gradients_body(grad: torch.Tensor, out: torch.Tensor, x: int, bias: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of x and of bias; empty where they are not asked for, by 0 for 1: of what is no integer torch.distributed.tensor takes no notice."""
    check("add_relu_gradients", FLOATS, grad=grad, out=out)
    check_same_shape("add_relu_gradients", grad=grad, out=out)
    none = torch.empty(0, dtype=out.dtype, device=out.device)
    if not bias:
        return _through(grad, out).contiguous() if x else none, none.clone()
    n = out.shape[-1] if out.dim() else 1
    row = torch.empty(n, dtype=out.dtype, device=out.device)
    dz = roomy(torch.empty(out.shape, dtype=out.dtype, device=out.device)) if x else none
    if not out.numel():
        return dz, row.zero_()
    flat, (given, one) = as_rows(out), row_sums.rows_of(grad)
    m = flat.shape[0]
    walked = row_sums.walk("add_relu", out, m, n)
    parts = row_sums.total(walked, row, n)
    launch(wrap_triton(add_relu_gradients_kernel), (walked.tiles, walked.parts), given, flat, dz if x else flat, parts, m, n, **walked.consts, DZ=bool(x), ONE=one)
    row_sums.add_up(walked, parts, row, n)
    return dz, row


_add_relu_gradients = register("add_relu_gradients", _add_relu_gradients_body, add_relu_gradients_kernel, row_sums.add_parts_kernel, *COPYING)
_gradients = beneath("add_relu_gradients", 2)


def _backward(kept, params, grad, needed):
    if needed[1] and row_sums.serves(grad):
        dz, row = _gradients(grad, *kept, *map(int, needed))
        return dz if needed[0] else None, row
    dz = _through(grad, *kept)
    return dz, of_rows(dz) if needed[1] else None


def _backward_twice(kept, params, outer, needed):
    """Linear in grad; towards out they are 0 but at relu's corner."""
    (out,), (dz, row) = kept, outer
    to_z = added(dz if params[0] else None, row if params[1] else None)
    return None if to_z is None else _through(to_z.expand_as(out), out), None


def _backward_jvp(inputs, out, tangents):
    grad, kept, *wanted = inputs
    return torch.ops.triport.add_relu_gradients(torch.zeros_like(grad) if tangents[0] is None else tangents[0], kept, *wanted)


def _jvp(inputs, out, tangents):
    return _through(added(*tangents).expand_as(out), out)


_add_relu.derive(keep=lambda inputs, out: (out,), backward=_backward, jvp=_jvp)
_add_relu_gradients.derive(keep=lambda inputs, out: inputs[1:2], backward=_backward_twice, jvp=_backward_jvp)
_add_relu_gradients.batch(batching.with_sums)
_add_relu.batch(batching.with_row)
_add_relu.autocast(autocast.widest)


@replayed(2)
def add_relu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """relu(x + bias). x: (..., N), any strides; bias: N elements; both fp32, fp16, bf16 or fp64. Returns a contiguous
    tensor of the shape of x.

    Raises `ArgumentError` for a bias that does not fit, other dtypes and mixed devices."""
    if watched(x, bias):
        check_tensors("add_relu", x=x, bias=bias)
        return served("add_relu", x, bias)
    return direct(_add_relu_body, (x, bias))


OP = Op("add_relu", add_relu, reference, CASES, reference, nbytes, flops, ("fp32", "fp16", "bf16", "fp64"), backends=WITH_CUDA, dims="MxN,N")
