"""add_mul_act(x, y, bias, m, act) = act(x + m * y + bias): a scaled sum, a bias row and an activation in one pass.

act is relu, sigmoid, gelu (tanh form), silu or tanh. `add_mul_act_` writes over x.
"""

from __future__ import annotations

from pathlib import Path

import torch
import triton
import triton.language as tl

from ..backends import cuda
from ..backends.base import ArgumentError, suggest
from . import autocast, autograd, batching, choices, distributed
from .activations import ACTS, activate, argument, checked
from .add_mul_act_gradients import DERIVATIVES
from .add_relu import row_grid, row_tile
from .aliasing import elements_share, overlaps
from .checks import check_dense, check_number, check_tensors, stands_for_a_tensor
from .dispatch import compiling, direct, launch, replayed, watched, wrap_triton
from .grids import elements_of
from .layout import roomy
from .register import of_all, register, served
from .records import WITH_CUDA, Case, Op, traffic
from .straight import KERNELS as COPYING, as_rows

CUDA = Path(__file__).with_suffix(".cu")


def reference(x, y, bias, m=0.5, act="relu"):
    return ACTS[act][1](x + m * y + bias)


@triton.jit
def add_mul_act_kernel(x_ptr, y_ptr, bias_ptr, out_ptr, scale: tl.float64, m, n, ACT: tl.constexpr, ROWS: tl.constexpr,
                       COLS: tl.constexpr, ALIGN: tl.constexpr, FOLDED: tl.constexpr, FLAT: tl.constexpr):
    if ALIGN > 1:
        n = n // ALIGN * ALIGN
    cols, offs, mask = elements_of(m, n, ROWS, COLS, FOLDED, FLAT)
    z = argument(x_ptr, y_ptr, bias_ptr, scale, offs, cols, n, mask, FLAT)
    tl.store(out_ptr + offs, activate(z, ACT).to(out_ptr.dtype.element_ty), mask=mask)


def _case(m, n, device="", **kwargs):
    return Case(((m, n), (m, n), (n,)), kwargs, device=device)


CASES = (_case(128, 128), _case(256, 256), _case(512, 512), _case(1823, 781), _case(4096, 2048)) + tuple(
    _case(512, 512, act=a) for a in ("sigmoid", "gelu", "silu", "tanh")) + (_case(4096, 8192, "cuda"),)


def nbytes(x, y, bias, m=0.5, act="relu"):
    return 3 * traffic(x) + traffic(bias)


def flops(x, y, bias, m=0.5, act="relu"):
    return 4 * x.numel()


def _add_mul_act_body(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, m: float, act: str) -> torch.Tensor:
    number = checked("add_mul_act", x, y, bias, act)
    out = roomy(torch.empty(x.shape, dtype=x.dtype, device=x.device))
    if x.numel():
        rows, n = x.numel() // x.shape[-1], x.shape[-1]
        tile = row_tile(x, n)
        launch(wrap_triton(add_mul_act_kernel), row_grid(tile, rows, n),
               as_rows(x), as_rows(y), bias.contiguous(), out, m, rows, n, ACT=number, **tile)
    return out


def _launch_cuda(x, y, bias, out, m: float, number: int):
    cuda.flat(CUDA, f"add_mul_act<{cuda.element(x)}, {number}>", out, x, y.contiguous(), bias.contiguous(), out, m, x.numel(), x.shape[-1])


def _add_mul_act_cuda(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, m: float, act: str) -> torch.Tensor:
    number = checked("add_mul_act", x, y, bias, act)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch_cuda(x.contiguous(), y, bias, out, m, number)
    return out


_add_mul_act = register("add_mul_act", _add_mul_act_body, add_mul_act_kernel, *COPYING, implementations={"cuda": _add_mul_act_cuda}, alike=choices.rows)


def _check_writable(x: torch.Tensor):
    """No two elements of `x` lie at one place."""
    if elements_share(x):
        raise ArgumentError("triport.add_mul_act_: argument 'x' is expanded or overlaps itself: several elements share memory, so it "
                            "cannot be written in place; use x.clone()")


def _add_mul_act__body(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, m: float, act: str) -> None:
    number = checked("add_mul_act_", x, y, bias, act)
    _check_writable(x)
    if not x.numel():
        x.copy_(of_all(x, (x, y, bias)))
        return
    rows, n = x.numel() // x.shape[-1], x.shape[-1]
    tile = row_tile(x, n)
    flat, other, row = as_rows(x), as_rows(y), bias.contiguous()
    over = x.is_contiguous() and not overlaps(flat, other) and not overlaps(flat, row)
    out = flat if over else torch.empty_like(flat)
    launch(wrap_triton(add_mul_act_kernel), row_grid(tile, rows, n),
           flat, other, row, out, m, rows, n, ACT=number, **tile)
    if not over:
        x.copy_(out.view(x.shape))


def _add_mul_act__cuda(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, m: float, act: str) -> None:
    number = checked("add_mul_act_", x, y, bias, act)
    _check_writable(x)
    flat, y, bias = x.contiguous(), y.contiguous(), bias.contiguous()
    out = torch.empty_like(flat) if overlaps(flat, y) or overlaps(flat, bias) else flat
    _launch_cuda(flat, y, bias, out, m, number)  # an element is read before it is written, by who writes it
    if out is not x:
        x.copy_(out)


_add_mul_act_ = register("add_mul_act_", _add_mul_act__body, add_mul_act_kernel, *COPYING, mutates_args={"x"}, implementations={"cuda": _add_mul_act__cuda})


_add_mul_act.derive(**DERIVATIVES)
_add_mul_act.batch(batching.with_row)
_add_mul_act.autocast(autocast.widest)


def _by_copy(keyset, x, *others):
    """In place in two steps, which autograd can follow and vmap can take apart."""
    _check_writable(x)
    distributed.check_in_place("add_mul_act_", x)
    ops = torch.ops.triport
    result = (ops.add_mul_act if len(others) == 4 else ops.add_mul_act_by)(x.clone(), *others)  # what it saves of x must last
    x.copy_(distributed.placed_as(result, x))


def _followed(op, count):
    return lambda keyset, *args: _by_copy(keyset, *args) if autograd.followed(*args) else autograd.below(op, keyset, args)


_add_mul_act_.at("Autograd", _followed)
_add_mul_act_.at("FuncTorchBatched", lambda op, count: _by_copy)


def _check_plain(op: str, m, act):
    """`m`, a number; `act` is a known name: before either reaches a schema or a key."""
    m = check_number(op, "m", m)
    if not isinstance(act, str) or act not in ACTS:
        raise ArgumentError(f"triport.{op}: " + suggest("act", str(act), ACTS))
    return m


@replayed(3)
def add_mul_act(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, m: float = 0.5, act: str = "relu") -> torch.Tensor:
    """act(x + m * y + bias). x, y: (..., N), any strides; bias: N elements; all fp32, fp16, bf16 or fp64; m: a number;
    act: "relu", "sigmoid", "gelu", "silu" or "tanh". Returns a contiguous tensor of the shape of x.

    Raises `ArgumentError` for shapes that do not fit, an unknown act, other dtypes and mixed devices."""
    m = _check_plain("add_mul_act", m, act)
    if watched(x, y, bias):
        check_tensors("add_mul_act", x=x, y=y, bias=bias)
        return served("add_mul_act", x, y, bias, m, act)
    return direct(_add_mul_act_body, (x, y, bias), float(m), act)


def add_mul_act_(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, m: float = 0.5, act: str = "relu") -> torch.Tensor:
    """As `add_mul_act`, written over x, which it returns; autograd follows, and finds x changed where it had saved it. y and bias may share
    memory with x: they are read as they were before. Raises also for a leaf x that requires grad, one of
    inference mode outside of it, a view that negates, and where elements of x share memory."""
    m = _check_plain("add_mul_act_", m, act)
    check_tensors("add_mul_act_", x=x, y=y, bias=bias)
    for name, t in (("x", x), ("y", y), ("bias", bias)):
        if stands_for_a_tensor(t):
            raise ArgumentError(f"triport.add_mul_act_: argument {name!r} is {type(t).__name__}; it takes a torch.Tensor; what traces symbolically takes add_mul_act")
        check_dense("add_mul_act_", name, t)
    if x.requires_grad and x.is_leaf and torch.is_grad_enabled():
        raise ArgumentError("triport.add_mul_act_: argument 'x' is a leaf that requires grad; use add_mul_act, or torch.no_grad()")
    if not compiling():  # Dynamo cannot sort strides that are symbols; the op's body sees to it when the graph is made
        _check_writable(x)
        if x.is_neg():
            raise ArgumentError("triport.add_mul_act_: argument 'x' is a view that negates another tensor as it is read (Tensor.is_neg), so it cannot be written "
                                "in place; use add_mul_act, or x.resolve_neg()")
        if x.is_inference() and not torch.is_inference_mode_enabled():
            raise ArgumentError("triport.add_mul_act_: argument 'x' was made in inference mode and cannot be written in place outside of it; use x.clone()")
    if watched(x, y, bias):
        served("add_mul_act_", x, y, bias, m, act)
        return x
    try:
        direct(_add_mul_act__body, (x, y, bias), float(m), act)
    finally:  # under no dispatcher nobody else tells autograd; a body that fails may have written some of x
        torch.autograd.graph.increment_version(x)
    return x


OP = Op("add_mul_act", add_mul_act, reference, CASES, reference, nbytes, flops, ("fp32", "fp16", "bf16", "fp64"), backends=WITH_CUDA, dims="MxN,MxN,N")
