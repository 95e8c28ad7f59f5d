"""Ops under torch.autocast: each casts its tensors as torch's own ops of that kind do on the device.

torch's lists say which (https://docs.pytorch.org/docs/stable/amp.html): matrix products go by the context's dtype, softmax and powers go
by fp32 on CUDA, most ops take what they get. fp64 is never cast. The casts are seen by autograd, so gradients have the arguments' dtypes.
"""

from __future__ import annotations

from typing import Callable

import torch

from ..backends import of_torch


def lower(device: str, dtypes: list):
    """The dtype of the context."""
    return torch.get_autocast_dtype(device)


def fp32_on_cuda(device: str, dtypes: list):
    """fp32, on CUDA."""
    return torch.float32 if device == "cuda" else None


def widest(device: str, dtypes: list):
    """One dtype that holds all of them, as torch's sums have."""
    out = dtypes[0]
    for d in dtypes[1:]:
        out = torch.promote_types(out, d)
    return out


KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}


def kernel(op, count: int, dtype_of: Callable, device: str, result: Callable | None = None) -> Callable:
    """What the dispatcher is to call for `op` (an OpOverload, whose first `count` arguments are tensors) at the key KEYS[device].

    dtype_of(device, dtypes of the tensors): the dtype to cast to, or None. result: the same of the result."""
    keys = of_torch.DispatchKeySet(getattr(of_torch.DispatchKey, KEYS[device]))

    def castable(t):
        return t.is_floating_point() and t.dtype is not torch.float64 and t.device.type == device

    def cast(t, dtype):
        return t.to(dtype) if dtype is not None and castable(t) else t

    def autocast(_, *args):
        tensors = args[:count]
        dtype = dtype_of(device, [t.dtype for t in tensors])
        with of_torch.ExcludeDispatchKey(keys):
            out = op(*(cast(t, dtype) for t in tensors), *args[count:])
            return out if result is None else cast(out, result(device, [out.dtype]))

    return autocast
