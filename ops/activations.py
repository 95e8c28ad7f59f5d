"""The activations that add_mul_act knows, with their first and second derivatives; and what they are functions of there, x + m * y + bias."""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from ..backends.base import ArgumentError, suggest
from .checks import FLOATS, check, check_bias, check_same_shape
from .grids import row_at
from .gelu import curvature as gelu_curvature, gelu_slope, gelu_value

#: name -> (number the kernel takes, torch's own)
ACTS = {"relu": (0, torch.relu), "sigmoid": (1, torch.sigmoid),
        "gelu": (2, lambda z: F.gelu(z, approximate="tanh")), "silu": (3, F.silu), "tanh": (4, torch.tanh)}


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
def argument(x_ptr, y_ptr, bias_ptr, scale, offs, cols, n, mask, FLAT: tl.constexpr):
    """x + scale * y + bias in at least fp32, of a tile of `elements_of`."""
    x = tl.load(x_ptr + offs, mask=mask)
    wide = x.to(tl.float32) if x.dtype.primitive_bitwidth < 32 else x
    y = tl.load(y_ptr + offs, mask=mask).to(wide.dtype)
    return wide + tl.cast(scale, wide.dtype) * y + row_at(bias_ptr, cols, n, wide.dtype, FLAT)


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


def checked(op: str, x, y, bias, act: str) -> int:
    """The number of a known activation, for arguments that fit."""
    check(op, FLOATS, x=x, y=y, bias=bias)
    check_same_shape(op, x=x, y=y)
    check_bias(op, x, bias)
    if act not in ACTS:
        raise ArgumentError(f"triport.{op}: " + suggest("act", str(act), ACTS))
    return ACTS[act][0]
