"""Memory that tensors share, for ops that write over an argument."""

from __future__ import annotations

import math

import torch

from ..backends.of_torch import FakeTensor, FunctionalTensor


def elements_share(x: torch.Tensor) -> bool:
    """Do two elements of `x` lie at one place? Also True where three or more dimensions reach into each other, which is not looked into."""
    if not x.numel() or x.is_contiguous():
        return False
    dims = sorted((s, n) for s, n in zip(x.stride(), x.shape) if n != 1)
    while dims:  # the outermost steps over all that lies below it: then only what lies below can share
        s, n = dims[-1]
        if s <= sum(s * (n - 1) for s, n in dims[:-1]):
            break
        dims.pop()
    if len(dims) == 2 and dims[0][0]:
        (s, n), (t, m) = dims
        meet = math.lcm(s, t)  # n steps of s and m steps of t meet there first
        return meet // s < n and meet // t < m
    return bool(dims)


def overlaps(x: torch.Tensor, t: torch.Tensor) -> bool:
    """Would writing element after element of `x` change elements of `t` that are read later? Both contiguous; where they are the same elements
    at the same place each is read before it is written. Where only shapes are traced, storages tell."""
    if isinstance(x, (FakeTensor, FunctionalTensor)):
        if x.untyped_storage()._cdata != t.untyped_storage()._cdata:
            return False
        first, other = x.storage_offset(), t.storage_offset()
        size, length = x.numel(), t.numel()
    else:
        first, other = x.data_ptr(), t.data_ptr()
        size, length = x.nbytes, t.nbytes
    if first == other and size == length:
        return False
    return first < other + length and other < first + size
