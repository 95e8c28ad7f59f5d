"""gelu(x) = 0.5 x (1 + tanh(u)), u = sqrt(2 / pi) (x + 0.044715 x^3): GELU's tanh form (Hendrycks and Gimpel, 2016).

Computed as x * sigmoid(2 u), which is the same and needs one exponential. exp(-2 u) overflows to infinity only where
the sigmoid is 0, so the result is right up to the dtype's largest number; (e^2u - 1) / (e^2u + 1) is NaN from x = 11 on.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from ..backends import cuda
from . import batching, choices
from .autograd import added, wide
from .checks import FLOATS, check, check_same_shape, check_tensors
from .dispatch import direct, launch, replayed, watched, wrap_triton
from .grids import lines_at
from .register import beneath, register, served
from .sizes import cdiv
from .records import WITH_CUDA, Case, Op, traffic
from .straight import KERNELS as COPYING, dense, gapped, over_lines
from .tuning import Tiles, blocks, gpu_blocks, tile

CUDA = Path(__file__).with_suffix(".cu")


def reference(x):
    return F.gelu(x, approximate="tanh")


@triton.jit
def gelu_value(x):
    """x * sigmoid(2 u); the sign of the exponent keeps exp below overflow where it matters."""
    u2 = 1.5957691216057308 * x * (1.0 + 0.044715 * x * x)
    return x / (1.0 + tl.exp(-u2))


@triton.jit
def gelu_slope(x):
    """d gelu / dx = s + x s (1 - s) 2 u', with s = sigmoid(2 u)."""
    u2 = 1.5957691216057308 * x * (1.0 + 0.044715 * x * x)
    s = 1.0 / (1.0 + tl.exp(-u2))
    du2 = 1.5957691216057308 * (1.0 + 0.134145 * x * x)
    # Far out s (1 - s) is 0 while x u' may be infinite: the product is 0 there.
    tail = s * (1.0 - s)
    return s + tl.where(tail == 0.0, 0.0, x * tail * du2)


@triton.jit
def gelu_piece(x_ptrs, out_ptrs, mask):
    x = tl.load(x_ptrs, mask=mask)
    wide = x.to(tl.float32) if x.dtype.primitive_bitwidth < 32 else x
    tl.store(out_ptrs, gelu_value(wide).to(x.dtype), mask=mask)


@triton.jit
def gelu_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr, SPLIT: tl.constexpr = False):
    """SPLIT: as in `square_kernel`."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    offs = first + tl.arange(0, BLOCK)
    if SPLIT:
        if first + BLOCK <= n:
            gelu_piece(x_ptr + offs, out_ptr + offs, None)
        else:
            gelu_piece(x_ptr + offs, out_ptr + offs, offs < n)
    else:
        gelu_piece(x_ptr + offs, out_ptr + offs, offs < n)


@triton.jit
def gelu_lines_kernel(x_ptr, out_ptr, lines, length, stride_line, stride_at, BL: tl.constexpr, BC: tl.constexpr, AT: tl.constexpr):
    """Of a matrix with gaps. Grid: its tiles."""
    _, offs, to, inside = lines_at(tl.program_id(0), lines, length, stride_line, AT or stride_at, length, BL, BC)
    gelu_piece(x_ptr + offs, out_ptr + to, inside)


@triton.jit
def gelu_backward_kernel(grad_ptr, x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    wide = x.to(tl.float32) if x.dtype.primitive_bitwidth < 32 else x
    g = tl.load(grad_ptr + offs, mask=mask).to(wide.dtype)
    tl.store(out_ptr + offs, (g * gelu_slope(wide)).to(x.dtype), mask=mask)


CASES = (Case(((128, 128),)), Case(((256, 256),)), Case(((512, 512),)), Case(((1823, 781),)),
         Case(((4096, 2048),), scale=3.0), Case(((4096, 8192),), scale=3.0, device="cuda"))
TILES = Tiles("gelu", cpu={"BLOCK": 8192}, cuda={"BLOCK": 1024}, candidates=blocks(2048, 32768),
              cuda_candidates=gpu_blocks())


def nbytes(x):
    return 2 * traffic(x)


def flops(x):
    return 8 * x.numel()


def _gelu_body(x: torch.Tensor) -> torch.Tensor:
    check("gelu", FLOATS, x=x)
    lines = gapped(x)
    if lines is not None:
        return over_lines(gelu_lines_kernel, lines, x)
    x, out = dense(x)
    n = x.numel()
    if n:
        t = tile(TILES, x)
        launch(wrap_triton(gelu_kernel), (cdiv(n, t["BLOCK"]),), x, out, n, **t, SPLIT=x.device.type == "cuda")
    return out


def _gelu_cuda(x: torch.Tensor) -> torch.Tensor:
    check("gelu", FLOATS, x=x)
    x, out = dense(x)
    cuda.flat(CUDA, f"gelu<{cuda.element(x)}>", out, x, out, x.numel())
    return out


_gelu = register("gelu", _gelu_body, gelu_kernel, gelu_lines_kernel, *COPYING, implementations={"cuda": _gelu_cuda}, alike=choices.elements)


def _gelu_backward_body(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    check("gelu_backward", FLOATS, grad=grad, x=x)
    check_same_shape("gelu_backward", grad=grad, x=x)
    x, out = dense(x)
    if grad.stride() != x.stride():
        grad = torch.empty_like(x).copy_(grad)
    n = x.numel()
    if n:
        t = TILES.get(x.device.type)
        launch(wrap_triton(gelu_backward_kernel), (cdiv(n, t["BLOCK"]),), grad, x, out, n, **t)
    return out


_gelu_backward = register("gelu_backward", _gelu_backward_body, gelu_backward_kernel, *COPYING)
_backward = beneath("gelu_backward", 2)
_gelu.batch(batching.elementwise)
_gelu_backward.batch(batching.elementwise)
_gelu.derive(keep=lambda inputs, out: inputs[:1],
             backward=lambda kept, params, grad, needed: (_backward(grad, *kept),),
             jvp=lambda inputs, out, tangents: torch.ops.triport.gelu_backward(tangents[0], inputs[0]))


def curvature(x: torch.Tensor) -> torch.Tensor:
    """The second derivative, 2 s1 v1 + x (s2 v1^2 + s1 v2), with s = sigmoid(v), v = 2 u; by torch's ops, so it has derivatives of its own."""
    x = x.clamp(-30, 30)  # it is 0 from there on in any dtype, and no factor is infinite before
    c = 1.5957691216057308
    v, v1, v2 = c * x * (1 + 0.044715 * x * x), c * (1 + 0.134145 * x * x), c * 0.26829 * x
    s = torch.sigmoid(v)
    s1 = s * (1 - s)
    return s1 * (2 * v1 + x * ((1 - 2 * s) * v1 * v1 + v2))


def _bent(factor: torch.Tensor, grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """factor * grad * curvature(x), in x's dtype."""
    return (wide(factor) * wide(grad) * curvature(wide(x))).to(x.dtype)


def _backward_twice(kept, params, outer, needed):
    grad, x = kept
    return (torch.ops.triport.gelu_backward(outer, x) if needed[0] else None, _bent(outer, grad, x) if needed[1] else None)


def _backward_jvp(inputs, out, tangents):
    (grad, x), (dgrad, dx) = inputs, tangents
    return added(None if dgrad is None else torch.ops.triport.gelu_backward(dgrad, x), None if dx is None else _bent(dx, grad, x))


_gelu_backward.derive(keep=lambda inputs, out: inputs, backward=_backward_twice, jvp=_backward_jvp)


@replayed(1)
def gelu(x: torch.Tensor) -> torch.Tensor:
    """GELU, tanh form. x: any shape and strides, fp32, fp16, bf16 or fp64. Returns a tensor like x.

    Raises `ArgumentError` for anything else."""
    if watched(x):
        check_tensors("gelu", x=x)
        return served("gelu", x)
    return direct(_gelu_body, (x,))


OP = Op("gelu", gelu, reference, CASES, reference, nbytes, flops, ("fp32", "fp16", "bf16", "fp64"), backends=WITH_CUDA)
