"""add_mul_act(x, y, bias, m, act) = act(x + m * y + bias): a scaled sum, a bias row and an activation in one pass.

act is relu, sigmoid, gelu (tanh form), silu or tanh. `add_mul_act_` writes over x.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from ..backends import cuda
from ..backends.base import ArgumentError, suggest
from . import autocast, autograd, batching
from .add_relu import of_rows, row_tile
from .aliasing import elements_share, overlaps
from .autograd import added, wide
from .checks import FLOATS, check, check_bias, check_number, check_same_shape, check_tensors
from .dispatch import compiling, direct, launch, replayed, watched, wrap_triton
from .layout import as_rows, roomy
from .register import beneath, register, served
from .sizes import cdiv
from .records import WITH_CUDA, Case, Op, traffic
from .gelu import curvature as gelu_curvature, gelu_slope, gelu_value

#: name -> (number the kernel takes, torch's own)
ACTS = {"relu": (0, torch.relu), "sigmoid": (1, torch.sigmoid),
        "gelu": (2, lambda z: F.gelu(z, approximate="tanh")), "silu": (3, F.silu), "tanh": (4, torch.tanh)}

CUDA = Path(__file__).with_suffix(".cu")


def reference(x, y, bias, m=0.5, act="relu"):
    return ACTS[act][1](x + m * y + bias)


@triton.jit
def sigmoid(z):
    return 1.0 / (1.0 + tl.exp(-z))


@triton.jit
def tanh(z):
    """Exact near 0 and for large |z|: an odd polynomial below 0.35, 1 - 2 / (exp(2 z) + 1) above."""
    big = 1.0 - 2.0 / (tl.exp(2.0 * z) + 1.0)
    q = z * z
    if z.dtype == tl.float64:
        small = z * (1.0 - q * (0.3333333333333333 - q * (0.13333333333333333 - q * (
            0.05396825396825397 - q * (0.021869488536155203 - q * 0.008863235529902197)))))
        return tl.where(tl.abs(z) < 0.01, small, big)
    small = z * (1.0 - q * (0.33333334 - q * (0.13333334 - q * (0.053968254 - q * (0.021869488 - q * 0.008863236)))))
    return tl.where(tl.abs(z) < 0.35, small, big)


@triton.jit
def activate(z, ACT: tl.constexpr):
    if ACT == 0:
        return tl.where(z <= 0, 0.0, z)
    elif ACT == 1:
        return sigmoid(z)
    elif ACT == 2:
        return gelu_value(z)
    elif ACT == 3:
        return z * sigmoid(z)
    else:
        return tanh(z)


@triton.jit
def slope(z, ACT: tl.constexpr):
    """The activation's derivative; not for relu."""
    if ACT == 1:
        s = sigmoid(z)
        return s * (1.0 - s)
    elif ACT == 2:
        return gelu_slope(z)
    elif ACT == 3:
        s = sigmoid(z)
        tail = s * (1.0 - s)
        return s + tl.where(tail == 0.0, 0.0, z * tail)
    else:
        t = tanh(z)
        return 1.0 - t * t


@triton.jit
def argument(x_ptr, y_ptr, bias_ptr, scale, offs, cols, n, mask):
    """(z, x's dtype): z = x + scale * y + bias in at least fp32."""
    x = tl.load(x_ptr + offs, mask=mask)
    wide = x.to(tl.float32) if x.dtype.primitive_bitwidth < 32 else x
    y = tl.load(y_ptr + offs, mask=mask).to(wide.dtype)
    bias = tl.load(bias_ptr + cols, mask=cols < n).to(wide.dtype)
    return wide + tl.cast(scale, wide.dtype) * y + bias[None, :]


@triton.jit
def add_mul_act_kernel(x_ptr, y_ptr, bias_ptr, out_ptr, scale: tl.float64, m, n, ACT: tl.constexpr, ROWS: tl.constexpr,
                       COLS: tl.constexpr, ALIGN: tl.constexpr):
    if ALIGN > 1:
        n = n // ALIGN * ALIGN
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    offs = rows.to(tl.int64)[:, None] * n + cols[None, :]
    mask = (rows[:, None] < m) & (cols[None, :] < n)
    z = argument(x_ptr, y_ptr, bias_ptr, scale, offs, cols, n, mask)
    tl.store(out_ptr + offs, activate(z, ACT).to(out_ptr.dtype.element_ty), mask=mask)


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


def _case(m, n, device="", **kwargs):
    return Case(((m, n), (m, n), (n,)), kwargs, device=device)


CASES = (_case(128, 128), _case(256, 256), _case(512, 512), _case(1823, 781), _case(4096, 2048)) + tuple(
    _case(512, 512, act=a) for a in ("sigmoid", "gelu", "silu", "tanh")) + (_case(4096, 8192, "cuda"),)


def nbytes(x, y, bias, m=0.5, act="relu"):
    return 3 * traffic(x) + traffic(bias)


def flops(x, y, bias, m=0.5, act="relu"):
    return 4 * x.numel()


def _checked(op: str, x, y, bias, act: str) -> int:
    check(op, FLOATS, x=x, y=y, bias=bias)
    check_same_shape(op, x=x, y=y)
    check_bias(op, x, bias)
    if act not in ACTS:
        raise ArgumentError(f"triport.{op}: " + suggest("act", str(act), ACTS))
    return ACTS[act][0]


def _add_mul_act_body(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, m: float, act: str) -> torch.Tensor:
    number = _checked("add_mul_act", x, y, bias, act)
    out = roomy(torch.empty(x.shape, dtype=x.dtype, device=x.device))
    if x.numel():
        rows, n = x.numel() // x.shape[-1], x.shape[-1]
        tile = row_tile(x, n)
        launch(wrap_triton(add_mul_act_kernel), (cdiv(rows, tile["ROWS"]), cdiv(n, tile["COLS"])),
               as_rows(x), as_rows(y), bias.contiguous(), out, m, rows, n, ACT=number, **tile)
    return out


def _launch_cuda(x, y, bias, out, m: float, number: int):
    cuda.flat(CUDA, f"add_mul_act<{cuda.element(x)}, {number}>", out, x, y.contiguous(), bias.contiguous(), out, m, x.numel(), x.shape[-1])


def _add_mul_act_cuda(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, m: float, act: str) -> torch.Tensor:
    number = _checked("add_mul_act", x, y, bias, act)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch_cuda(x.contiguous(), y, bias, out, m, number)
    return out


_add_mul_act = register("add_mul_act", _add_mul_act_body, add_mul_act_kernel, implementations={"cuda": _add_mul_act_cuda})


def _check_writable(x: torch.Tensor):
    """No two elements of `x` lie at one place."""
    if elements_share(x):
        raise ArgumentError("triport.add_mul_act_: argument 'x' is expanded or overlaps itself: several elements share memory, so it "
                            "cannot be written in place; use x.clone()")


def _add_mul_act__body(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, m: float, act: str) -> None:
    number = _checked("add_mul_act_", x, y, bias, act)
    _check_writable(x)
    if not x.numel():
        return
    rows, n = x.numel() // x.shape[-1], x.shape[-1]
    tile = row_tile(x, n)
    flat, other, row = as_rows(x), as_rows(y), bias.contiguous()
    over = x.is_contiguous() and not overlaps(flat, other) and not overlaps(flat, row)
    out = flat if over else torch.empty_like(flat)
    launch(wrap_triton(add_mul_act_kernel), (cdiv(rows, tile["ROWS"]), cdiv(n, tile["COLS"])),
           flat, other, row, out, m, rows, n, ACT=number, **tile)
    if not over:
        x.copy_(out.view(x.shape))


def _add_mul_act__cuda(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, m: float, act: str) -> None:
    number = _checked("add_mul_act_", x, y, bias, act)
    _check_writable(x)
    flat, y, bias = x.contiguous(), y.contiguous(), bias.contiguous()
    out = torch.empty_like(flat) if overlaps(flat, y) or overlaps(flat, bias) else flat
    _launch_cuda(flat, y, bias, out, m, number)  # an element is read before it is written, by who writes it
    if out is not x:
        x.copy_(out)


_add_mul_act_ = register("add_mul_act_", _add_mul_act__body, add_mul_act_kernel, mutates_args={"x"}, implementations={"cuda": _add_mul_act__cuda})


def _add_mul_act_backward_body(grad: torch.Tensor, x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, m: float,
                          act: str) -> torch.Tensor:
    number = _checked("add_mul_act_backward", x, y, bias, act)
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


_add_mul_act.derive(keep=lambda inputs, out: inputs[:3], jvp=_jvp, backward=lambda kept, params, grad, needed: _of_arguments(
    _backward(grad, *kept, *params[:2]), params[0], needed))
_add_mul_act.batch(batching.with_row)
_add_mul_act_backward.batch(batching.with_row)
_add_mul_act.autocast(autocast.widest)


def curvature(z: torch.Tensor, act: str) -> torch.Tensor:
    """The activation's second derivative, by torch's ops, so it has derivatives of its own."""
    if act == "relu":
        return torch.zeros_like(z)
    if act == "gelu":
        return gelu_curvature(z)
    if act == "tanh":
        t = torch.tanh(z)
        return -2 * t * (1 - t * t)
    if act == "silu":
        z = z.clamp(-800, 800)  # it is 0 from there on in any dtype, and 0 times infinity is not
    s = torch.sigmoid(z)
    return s * (1 - s) * (1 - 2 * s if act == "sigmoid" else 2 + z * (1 - 2 * s))


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


def _by_copy(keyset, x, *others):
    """In place in two steps, which autograd can follow and vmap can take apart."""
    _check_writable(x)
    ops = torch.ops.triport
    x.copy_((ops.add_mul_act if len(others) == 4 else ops.add_mul_act_by)(x.clone(), *others))  # what it saves of x must last


def _followed(op, count):
    return lambda keyset, *args: _by_copy(keyset, *args) if autograd.followed(*args) else autograd.below(op, keyset, args)


_add_mul_act_.at("Autograd", _followed)
_add_mul_act_.at("FuncTorchBatched", lambda op, count: _by_copy)


def _check_plain(op: str, m, act):
    """`m` is a number and `act` a known name, before either reaches a schema or a key."""
    check_number(op, "m", m)
    if not isinstance(act, str) or act not in ACTS:
        raise ArgumentError(f"triport.{op}: " + suggest("act", str(act), ACTS))


@replayed(3)
def add_mul_act(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, m: float = 0.5, act: str = "relu") -> torch.Tensor:
    """act(x + m * y + bias). x, y: (..., N), any strides; bias: N elements; all fp32, fp16, bf16 or fp64; m: a number;
    act: "relu", "sigmoid", "gelu", "silu" or "tanh". Returns a contiguous tensor of the shape of x.

    Raises `ArgumentError` for shapes that do not fit, an unknown act, other dtypes and mixed devices."""
    _check_plain("add_mul_act", m, act)
    if watched(x, y, bias):
        check_tensors("add_mul_act", x=x, y=y, bias=bias)
        return served("add_mul_act", x, y, bias, m, act)
    return direct(_add_mul_act_body, (x, y, bias), float(m), act)


def add_mul_act_(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, m: float = 0.5, act: str = "relu") -> torch.Tensor:
    """As `add_mul_act`, written over x, which it returns; autograd follows, and finds x changed where it had saved it. y and bias may share
    memory with x: they are read as they were before. Raises also for a leaf x that requires grad, and where elements of x share memory."""
    _check_plain("add_mul_act_", m, act)
    check_tensors("add_mul_act_", x=x, y=y, bias=bias)
    if x.requires_grad and x.is_leaf and torch.is_grad_enabled():
        raise ArgumentError("triport.add_mul_act_: argument 'x' is a leaf that requires grad; use add_mul_act, or torch.no_grad()")
    if not compiling():  # Dynamo cannot sort strides that are symbols; the op's body sees to it when the graph is made
        _check_writable(x)
    if watched(x, y, bias):
        served("add_mul_act_", x, y, bias, m, act)
        return x
    try:
        direct(_add_mul_act__body, (x, y, bias), float(m), act)
    finally:  # under no dispatcher nobody else tells autograd; a body that fails may have written some of x
        torch.autograd.graph.increment_version(x)
    return x


OP = Op("add_mul_act", add_mul_act, reference, CASES, reference, nbytes, flops, ("fp32", "fp16", "bf16", "fp64"), backends=WITH_CUDA, dims="MxN,MxN,N")
