"""The derivatives of add_mul_act, as ops of their own: z = x + m * y + bias is computed again, which is cheaper than to keep it."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from . import batching, row_sums
from .activations import argument, checked, curvature, slope
from .add_relu import of_rows, row_grid, row_tile
from .autograd import added, wide
from .checks import check_same_shape
from .dispatch import launch, wrap_triton
from .grids import elements_of, widened
from .layout import roomy
from .register import beneath, register
from .row_sums import gradient_at, keep_sums
from .straight import KERNELS as COPYING, as_rows


@triton.jit
def add_mul_act_backward_kernel(grad_ptr, x_ptr, y_ptr, bias_ptr, out_ptr, scale: tl.float64, m, n, ACT: tl.constexpr,
                                ROWS: tl.constexpr, COLS: tl.constexpr, ALIGN: tl.constexpr, FOLDED: tl.constexpr, FLAT: tl.constexpr):
    """d act / dz times the gradient."""
    if ALIGN > 1:
        n = n // ALIGN * ALIGN
    cols, offs, mask = elements_of(m, n, ROWS, COLS, FOLDED, FLAT)
    z = argument(x_ptr, y_ptr, bias_ptr, scale, offs, cols, n, mask, FLAT)
    g = tl.load(grad_ptr + offs, mask=mask).to(z.dtype)
    if ACT == 0:
        dz = tl.where(z <= 0, 0.0, g)  # not a factor: an infinite gradient times 0 is NaN; NaN counts as passed, as in torch
    else:
        dz = g * slope(z, ACT)
    tl.store(out_ptr + offs, dz.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def add_mul_act_gradients_kernel(grad_ptr, x_ptr, y_ptr, bias_ptr, dx_ptr, dy_ptr, parts_ptr, scale: tl.float64, m, n, ACT: tl.constexpr,
                                 ROWS: tl.constexpr, COLS: tl.constexpr, ALIGN: tl.constexpr, STAGES: tl.constexpr, DX: tl.constexpr, DY: tl.constexpr,
                                 SUMS: tl.constexpr, ONE: tl.constexpr):
    """The gradients of x and y, where DX and DY are, and with SUMS of the bias those of a part of the rows (row_sums.py)."""
    if ALIGN > 1:
        n = n // ALIGN * ALIGN
    first, step = tl.program_id(1) * ROWS, tl.num_programs(1) * ROWS
    cols = widened(tl.program_id(0), n) * COLS + tl.arange(0, COLS)
    WIDE: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    bias = tl.load(bias_ptr + cols, mask=cols < n, other=0.0).to(WIDE)
    factor = tl.cast(scale, WIDE)
    sums = tl.zeros((ROWS, COLS), WIDE)
    for turn in tl.range(0, tl.cdiv(m - first, step), num_stages=STAGES):
        rows = first + turn * step + tl.arange(0, ROWS)
        offs = rows.to(tl.int64)[:, None] * n + cols[None, :]
        mask = (rows[:, None] < m) & (cols[None, :] < n)
        x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(WIDE)
        y = tl.load(y_ptr + offs, mask=mask, other=0.0).to(WIDE)
        z = x + factor * y + bias[None, :]
        g = gradient_at(grad_ptr, offs, mask, ONE).to(WIDE)
        if ACT == 0:
            dz = tl.where(z <= 0, 0.0, g)
        else:
            dz = g * slope(z, ACT)
        if DX:
            tl.store(dx_ptr + offs, dz.to(dx_ptr.dtype.element_ty), mask=mask)
        if DY:
            tl.store(dy_ptr + offs, (factor * dz).to(dy_ptr.dtype.element_ty), mask=mask)
        if SUMS:
            sums += tl.where(mask, dz, 0.0)
    if SUMS:
        keep_sums(sums, parts_ptr, cols, n)


def _add_mul_act_backward_body(grad: torch.Tensor, x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, m: float,
                          act: str) -> torch.Tensor:
    number = checked("add_mul_act_backward", x, y, bias, act)
    check_same_shape("add_mul_act_backward", x=x, grad=grad)
    out = roomy(torch.empty(x.shape, dtype=x.dtype, device=x.device))
    if x.numel():
        rows, n = x.numel() // x.shape[-1], x.shape[-1]
        tile = row_tile(x, n)
        launch(wrap_triton(add_mul_act_backward_kernel), row_grid(tile, rows, n),
               as_rows(grad), as_rows(x), as_rows(y), bias.contiguous(), out, m, rows, n, ACT=number, **tile)
    return out


_add_mul_act_backward = register("add_mul_act_backward", _add_mul_act_backward_body, add_mul_act_backward_kernel, *COPYING)
_backward = beneath("add_mul_act_backward", 4)


def _add_mul_act_gradients_body(grad: torch.Tensor, x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, m: float, act: str, to_x: int, to_y: int,
                                to_bias: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of x, y and bias, in one pass; empty where they are not asked for, as add_relu's."""
    number = checked("add_mul_act_gradients", x, y, bias, act)
    check_same_shape("add_mul_act_gradients", x=x, grad=grad)
    n = x.shape[-1]
    dx, dy = (roomy(torch.empty(x.shape if asked else (0,), dtype=x.dtype, device=x.device)) for asked in (to_x, to_y))
    row = torch.empty(n if to_bias else 0, dtype=x.dtype, device=x.device)
    if not x.numel():
        return dx, dy, row.zero_()
    if to_x or to_y or to_bias:
        flat, other, (given, one) = as_rows(x), as_rows(y), row_sums.rows_of(grad)
        walked = row_sums.walk("add_mul_act", x, flat.shape[0], n)
        parts = row_sums.total(walked, row, n) if to_bias else flat
        launch(wrap_triton(add_mul_act_gradients_kernel), (walked.tiles, walked.parts), given, flat, other, bias.contiguous(), dx if to_x else flat,
               dy if to_y else flat, parts, m, flat.shape[0], n, ACT=number, **walked.consts, DX=bool(to_x), DY=bool(to_y), SUMS=bool(to_bias), ONE=one)
        if to_bias:
            row_sums.add_up(walked, parts, row, n)
    return dx, dy, row


_add_mul_act_gradients = register("add_mul_act_gradients", _add_mul_act_gradients_body, add_mul_act_gradients_kernel, row_sums.add_parts_kernel, *COPYING)
_gradients = beneath("add_mul_act_gradients", 4)


def _of_arguments(dz: torch.Tensor, m: float, needed):
    """The gradients of x, y and bias, from that of x + m * y + bias."""
    return dz if needed[0] else None, dz * m if needed[1] else None, of_rows(dz) if needed[2] else None


def _derivative(kept, params, grad, needed):
    m, act = params[:2]
    if (needed[1] or needed[2]) and row_sums.serves(grad):
        return tuple(g if asked else None for g, asked in zip(_gradients(grad, *kept, m, act, *map(int, needed)), needed))
    return _of_arguments(_backward(grad, *kept, m, act), m, needed)


def _tangent(x: torch.Tensor, m: float, tangents) -> torch.Tensor | None:
    """The tangent of x + m * y + bias, from those of x, y and bias."""
    dx, dy, dbias = tangents
    dz = added(dx, None if dy is None else dy * m, dbias)
    return None if dz is None else dz.expand_as(x)


def _jvp(inputs, out, tangents):
    x, y, bias, m, act, *_ = inputs
    return torch.ops.triport.add_mul_act_backward(_tangent(x, m, tangents), x, y, bias, m, act)


#: of add_mul_act itself
DERIVATIVES = {"keep": lambda inputs, out: inputs[:3], "jvp": _jvp, "backward": _derivative}
_add_mul_act_backward.batch(batching.with_row)
_add_mul_act_gradients.batch(functools.partial(batching.with_sums, row=True))


def _bent(x, y, bias, m, act, *factors) -> torch.Tensor:
    """The activation's second derivative times factors, in at least fp32."""
    out = curvature(wide(x) + m * wide(y) + wide(bias), act)
    for f in factors:
        out = out * wide(f)
    return out


def _backward_twice(kept, params, outer, needed):
    grad, *arguments = kept
    dz = torch.ops.triport.add_mul_act_backward(outer, *arguments, *params) if needed[0] else None
    if not any(needed[1:]):
        return dz, None, None, None
    ways = _of_arguments(_bent(*arguments, *params, outer, grad), params[0], needed[1:])
    return dz, *(None if w is None else w.to(grad.dtype) for w in ways)


def _backward_jvp(inputs, out, tangents):
    (grad, *arguments), (dgrad, *others) = inputs, tangents
    dz = _tangent(grad, arguments[3], others)
    return added(None if dgrad is None else torch.ops.triport.add_mul_act_backward(dgrad, *arguments),
                 None if dz is None else _bent(*arguments, grad, dz).to(grad.dtype))


_add_mul_act_backward.derive(keep=lambda inputs, out: inputs[:4], backward=_backward_twice, jvp=_backward_jvp)


def _gradients_twice(kept, params, outer, needed):
    """All are sums of dz times numbers."""
    m, act, *asked = params
    dx, dy, row = (g if wanted else None for g, wanted in zip(outer, asked))
    to_z = added(dx, None if dy is None else dy * m, row)
    return (None,) * 4 if to_z is None else _backward_twice(kept, (m, act), to_z.expand_as(kept[0]), needed)


def _gradients_jvp(inputs, out, tangents):
    dz = _backward_jvp(inputs[:6], None, tangents)
    return tuple(o.new_zeros(o.shape) if way is None else way for o, way in zip(out, _of_arguments(dz, inputs[4], inputs[6:])))


_add_mul_act_gradients.derive(keep=lambda inputs, out: inputs[:4], backward=_gradients_twice, jvp=_gradients_jvp)
