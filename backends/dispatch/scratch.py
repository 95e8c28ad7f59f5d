"""A replayed call's temporaries, kept from call to call.

The C library gives memory back to the system when much of it is free at the heap's end (glibc: twice the largest block that was mapped, mallopt(3)), as when a call frees a
temporary and its caller the result, and each call then meets untouched pages: 1024 x 1024 times 1024 in fp32 with a transposed first factor took sixteen threads of an
Emerald Rapids 12.2 ms, 11 of them for the page faults of a temporary of 4 MiB.
"""

from __future__ import annotations

import sys
import threading
from typing import Callable

import torch

#: bytes of a temporary from which on it is kept, and of all that a thread keeps; glibc maps every block of 32 MiB and more
LEAST, MOST = 1 << 20, 64 << 20


class Kept(tuple):
    """The sizes of a tensor that is kept, by which `empty_with` knows it."""


class _Pool(threading.local):
    """A thread's tensors, by how they were asked for."""

    def __init__(self):
        self.tensors: dict[tuple, torch.Tensor] = {}


_pool = _Pool()


def sizes_of(t: torch.Tensor) -> tuple:
    """The sizes of a temporary as plans have them."""
    return Kept(t.shape) if LEAST <= t.nbytes <= MOST // 2 else tuple(t.shape)


def empty_with(empty: Callable) -> Callable:
    """`empty`(sizes, strides, dtype), but what is `Kept` comes from the thread's tensors where one is free."""
    def found(sizes, strides, dtype):
        if type(sizes) is not Kept:
            return empty(sizes, strides, dtype)
        tensors, key = _pool.tensors, (empty, sizes, strides, dtype)
        t = tensors.pop(key, None)
        if t is None or sys.getrefcount(t) > _free:  # a call within a call, or two of one kind: somebody still has it
            t = empty(tuple(sizes), strides, dtype)
        tensors[key] = t  # at the end: the one that was asked for longest ago goes first
        held = sum(other.nbytes for other in tensors.values())
        while held > MOST:
            held -= tensors.pop(next(iter(tensors))).nbytes
        return t

    return found


def _references(tensors: dict, key) -> int:
    """How many references `empty_with` counts to a tensor that nobody else has."""
    t = tensors.pop(key, None)
    return sys.getrefcount(t)


_free = _references({0: torch.empty(0)}, 0)
