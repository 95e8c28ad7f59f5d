"""The derivatives of add_mul_act, as ops of their own: z = x + m * y + bias is computed again, which is cheaper than to keep it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import batching
from .activations import argument, checked, curvature, slope
from .add_relu import of_rows, row_tile
from .autograd import added, wide
from .checks import check_same_shape
from .dispatch import launch, wrap_triton
from .layout import as_rows, roomy
from .register import beneath, register
from .sizes import cdiv


@triton.jit
def add_mul_act_backward_kernel(grad_ptr, x_ptr, y_ptr, bias_ptr, out_ptr, scale: tl.float64, m, n, ACT: tl.constexpr,
                                ROWS: tl.constexpr, COLS: tl.constexpr, ALIGN: tl.constexpr):
    """d act / dz times the gradient."""
    if ALIGN > 1:
        n = n // ALIGN * ALIGN
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    offs = rows.to(tl.int64)[:, None] * n + cols[None, :]
    mask = (rows[:, None] < m) & (cols[None, :] < n)
    z = argument(x_ptr, y_ptr, bias_ptr, scale, offs, cols, n, mask)
    g = tl.load(grad_ptr + offs, mask=mask).to(z.dtype)
    if ACT == 0:
        dz = tl.where(z <= 0, 0.0, g)  # not a factor: an infinite gradient times 0 is NaN; NaN counts as passed, as in torch
    else:
        dz = g * slope(z, ACT)
    tl.store(out_ptr + offs, dz.to(out_ptr.dtype.element_ty), mask=mask)


def _add_mul_act_backward_body(grad: torch.Tensor, x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, m: float,
                          act: str) -> torch.Tensor:
    number = checked("add_mul_act_backward", x, y, bias, act)
    check_same_shape("add_mul_act_backward", x=x, grad=grad)
    out = roomy(torch.empty(x.shape, dtype=x.dtype, device=x.device))
    if x.numel():
        rows, n = x.numel() // x.shape[-1], x.shape[-1]
        tile = row_tile(x, n)
        launch(wrap_triton(add_mul_act_backward_kernel), (cdiv(rows, tile["ROWS"]), cdiv(n, tile["COLS"])),
               as_rows(grad), as_rows(x), as_rows(y), bias.contiguous(), out, m, rows, n, ACT=number, **tile)
    return out


_add_mul_act_backward = register("add_mul_act_backward", _add_mul_act_backward_body, add_mul_act_backward_kernel)
_backward = beneath("add_mul_act_backward", 4)


def _of_arguments(dz: torch.Tensor, m: float, needed):
    """The gradients of x, y and bias, from that of x + m * y + bias."""
    return dz if needed[0] else None, dz * m if needed[1] else None, of_rows(dz) if needed[2] else None


def _tangent(x: torch.Tensor, m: float, tangents) -> torch.Tensor | None:
    """The tangent of x + m * y + bias, from those of x, y and bias."""
    dx, dy, dbias = tangents
    dz = added(dx, None if dy is None else dy * m, dbias)
    return None if dz is None else dz.expand_as(x)


def _jvp(inputs, out, tangents):
    x, y, bias, m, act, *_ = inputs
    return torch.ops.triport.add_mul_act_backward(_tangent(x, m, tangents), x, y, bias, m, act)


#: of add_mul_act itself
DERIVATIVES = {"keep": lambda inputs, out: inputs[:3], "jvp": _jvp,
               "backward": lambda kept, params, grad, needed: _of_arguments(_backward(grad, *kept, *params[:2]), params[0], needed)}
_add_mul_act_backward.batch(batching.with_row)


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
