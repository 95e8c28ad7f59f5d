"""Checks of ops' arguments: each raises `ArgumentError`, which names the argument, what was given and what is taken."""

from __future__ import annotations

import sys

import torch

from ..backends.base import ArgumentError
from ..backends.context import RECORD, call
from .records import dtype_name

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTS = (torch.int32, torch.int64)


def shape_of(t: torch.Tensor) -> str:
    return "x".join(map(str, t.shape)) or "a scalar"


def stands_for_a_tensor(x) -> bool:
    """Is it no tensor, but what asks to be handed the call, as `torch.fx`'s proxies do?"""
    return not isinstance(x, torch.Tensor) and hasattr(type(x), "__torch_function__")


def check_tensors(op: str, **tensors):
    """Every argument is a tensor, or stands for one. Raises `ArgumentError`."""
    for name, t in tensors.items():
        if not isinstance(t, torch.Tensor) and not stands_for_a_tensor(t):
            raise ArgumentError(f"triport.{op}: argument {name!r} is {type(t).__name__}; it takes a torch.Tensor")


def check_dense(op: str, name: str, t: torch.Tensor):
    """A tensor is not sparse, nor laid out for a library alone."""
    if t.layout is not torch.strided:
        raise ArgumentError(f"triport.{op}: argument {name!r} has layout {t.layout}; it takes dense tensors")


def check(op: str, dtypes, **tensors: torch.Tensor):
    """The tensors' dtype is one of `dtypes`, they agree on it, and they are on one device that ops run on."""
    first_name, first = next(iter(tensors.items()))
    if call.mode == RECORD and first.dtype in dtypes and all(t.dtype is first.dtype for t in tensors.values()):
        return  # `dispatch.watched` has seen to the rest
    for name, t in tensors.items():
        if t.dtype not in dtypes:
            known = ", ".join(map(dtype_name, dtypes))
            raise ArgumentError(f"triport.{op}: argument {name!r} has dtype {dtype_name(t.dtype)}; it takes {known}")
        if t.dtype != first.dtype:
            raise ArgumentError(f"triport.{op}: argument {name!r} has dtype {dtype_name(t.dtype)} but {first_name!r} "
                                f"has {dtype_name(first.dtype)}; convert one of them")
        if t.device != first.device:
            raise ArgumentError(f"triport.{op}: argument {name!r} is on {t.device} but {first_name!r} is on "
                                f"{first.device}; move them to one device")
        check_dense(op, name, t)
    if first.device.type not in ("cpu", "cuda", "meta"):
        raise ArgumentError(f"triport.{op}: argument {first_name!r} is on {first.device}; it takes cpu and cuda tensors")


#: the largest int that a float holds
MOST = int(sys.float_info.max)


def check_number(op: str, name: str, value):
    """`value`, a number that a float holds, NumPy's as Python's."""
    value = of_numpy(value)
    if isinstance(value, bool) or not isinstance(value, (int, float, torch.SymInt, torch.SymFloat)):
        raise ArgumentError(f"triport.{op}: argument {name!r} is {value!r}; it takes a number")
    if type(value) is int and not -MOST <= value <= MOST:
        raise ArgumentError(f"triport.{op}: argument {name!r} is an int of {value.bit_length()} bits; it takes a number that fp64 can hold")
    return value


def of_numpy(value):
    """A NumPy scalar (not one of which Python's own numbers are a base) as the Python number that it is; anything else as it is."""
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0 and not isinstance(value, float) else value


def check_index(op: str, dim):
    """`dim`, a whole number, NumPy's as Python's."""
    dim = of_numpy(dim)
    if not isinstance(dim, (int, torch.SymInt)) or isinstance(dim, bool):
        raise ArgumentError(f"triport.{op}: argument 'dim' is {dim!r}; it takes an int")
    return dim


def check_dim(op: str, x: torch.Tensor, dim: int) -> int:
    """`dim` as a non-negative dimension of `x`."""
    rank, dim = max(x.dim(), 1), int(check_index(op, dim))
    if not -rank <= dim < rank:
        raise ArgumentError(f"triport.{op}: argument 'dim' is {dim}; for a tensor of shape {shape_of(x)} it takes "
                            f"{-rank} to {rank - 1}")
    return dim % rank


def check_matrix(op: str, name: str, t: torch.Tensor):
    if t.dim() != 2:
        raise ArgumentError(f"triport.{op}: argument {name!r} has shape {shape_of(t)}; it takes a matrix (2 dimensions)")


def check_product(op: str, a: torch.Tensor, b: torch.Tensor):
    """`a @ b` is defined for two matrices."""
    check_matrix(op, "a", a)
    check_matrix(op, "b", b)
    if a.shape[1] != b.shape[0]:
        raise ArgumentError(f"triport.{op}: argument 'a' is {shape_of(a)} and 'b' is {shape_of(b)}; it takes M x K and K x N "
                            f"with the same K ({a.shape[1]} is not {b.shape[0]})")


def check_low_rank(op: str, x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor):
    """`x @ w + (x @ a) @ b` is defined: x is ... x K, the others are matrices that fit it and one another."""
    if x.dim() < 1:
        raise ArgumentError(f"triport.{op}: argument 'x' is a scalar; it takes 1 or more dimensions")
    for name, t in (("w", w), ("a", a), ("b", b)):
        check_matrix(op, name, t)
    for name, t, size, other in (("w", w, x.shape[-1], f"x of shape {shape_of(x)}"), ("a", a, x.shape[-1], f"x of shape {shape_of(x)}"),
                                 ("b", b, a.shape[1], f"a of shape {shape_of(a)}")):
        if t.shape[0] != size:
            raise ArgumentError(f"triport.{op}: argument {name!r} is {shape_of(t)}; for {other} it takes {size} rows")
    if b.shape[1] != w.shape[1]:
        raise ArgumentError(f"triport.{op}: argument 'b' is {shape_of(b)}; for w of shape {shape_of(w)} it takes {w.shape[1]} columns")


def check_bias(op: str, x: torch.Tensor, bias: torch.Tensor):
    """`bias` has one element for each element of `x`'s last dimension."""
    if x.dim() < 1:
        raise ArgumentError(f"triport.{op}: argument 'x' is a scalar; it takes 1 or more dimensions")
    if bias.dim() != 1 or bias.shape[0] != x.shape[-1]:
        raise ArgumentError(f"triport.{op}: argument 'bias' has shape {shape_of(bias)}; for x of shape {shape_of(x)} it takes "
                            f"one row of {x.shape[-1]}")


def check_same_shape(op: str, **tensors: torch.Tensor):
    (first_name, first), *rest = tensors.items()
    for name, t in rest:
        if t.shape != first.shape:
            raise ArgumentError(f"triport.{op}: argument {name!r} has shape {shape_of(t)} but {first_name!r} has "
                                f"{shape_of(first)}; they must agree")
