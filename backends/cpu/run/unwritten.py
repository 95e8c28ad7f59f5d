"""Tensors of torch.empty, and which of their bytes nobody has written.

`watch()` has torch's functions that give memory as it is mark what they give: it is filled with a pattern, and each byte counts as unwritten until a
checked kernel writes it. What others write (torch, NumPy, C) is known by the pattern, which is gone: it differs from byte to byte, and four of them
count as one, so what is written does not look like it.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from dataclasses import dataclass

import numpy as np

from ... import forks
from ..emit.checks.block import PATTERN, STEP
from .shadow import Zeros

_NAMES = {"torch": ("empty", "empty_like", "empty_strided", "empty_permuted"), "Tensor": ("new_empty", "new_empty_strided")}
_ROW = ((np.arange(256) * STEP + PATTERN) & 255).astype(np.uint8)  # from then on it repeats
_lock = threading.Lock()
forks.hold(_lock, forks.MARKS)
_watching = False


@dataclass
class _Empty:
    """A storage of torch.empty. ref: weak; marks: a byte for each of its; version: of the tensor when it was last looked through."""

    ref: object
    size: int
    marks: Zeros
    version: int = 0


_known: dict[int, _Empty] = {}  # by the storage's address


def watch():
    """From here on what torch.empty gives is followed; once."""
    global _watching
    if _watching:
        return
    _watching = True
    import torch
    from torch.jit import _builtins

    for name in _NAMES["torch"]:
        setattr(torch, name, _followed(getattr(torch, name)))
        if hasattr(_builtins, "_register_builtin"):  # TorchScript knows operators by their functions
            _builtins._register_builtin(getattr(torch, name), f"aten::{name}")
    for name in _NAMES["Tensor"]:
        setattr(torch.Tensor, name, _followed(getattr(torch.Tensor, name)))


def _followed(make):
    @functools.wraps(make)
    def made(*args, **kwargs):
        out = make(*args, **kwargs)
        note(out)
        return out

    return made


def note(t):
    """`t` was made, and nobody has written it."""
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef

    if type(t) is not torch.Tensor or not t.is_cpu or t.layout is not torch.strided or torch.compiler.is_compiling():
        return
    try:
        storage = t.untyped_storage()
    except RuntimeError:  # what torch.func and tracers wrap
        return
    size = storage.nbytes()
    if not size:
        return
    memory = _bytes(storage.data_ptr(), size)
    whole = size // 256 * 256
    memory[:whole].reshape(-1, 256)[:] = _ROW
    memory[whole:] = _ROW[:size - whole]
    with _lock:
        if len(_known) > 4096:
            for start in [start for start, e in _known.items() if e.ref.expired()]:
                del _known[start]
        _known[storage.data_ptr()] = _Empty(StorageWeakRef(storage), size, Zeros(size + 64))


def _bytes(start: int, size: int) -> np.ndarray:
    return np.frombuffer((ctypes.c_ubyte * size).from_address(start), np.uint8)


def marks(argument) -> int:
    """The address of an argument's marks, a byte for each of its storage's; 0 where all of it counts as written."""
    get = getattr(argument, "untyped_storage", None)
    if get is None:
        return 0
    storage = get()
    start = storage.data_ptr()
    with _lock:
        known = _known.get(start)
        if known is None:
            return 0
        if known.ref.expired() or known.ref.cdata != storage._weak_ref() or known.size != storage.nbytes():  # the memory is another's by now
            del _known[start]
            return 0
        version = -1 if argument.is_inference() else argument._version
        if version != known.version or version < 0:
            _look_through(known, start)
            known.version = version
        return known.marks.address


def _look_through(known: _Empty, start: int):
    """Mark what torch has written since: the kernels would see it, too, one element after the other."""
    words = known.size // 4
    seen, row = _bytes(start, 4 * words).view(np.uint32), _ROW.view(np.uint32)
    marked = _bytes(known.marks.address, 4 * words).view(np.uint32)
    step = 1 << 20
    for first in range(0, words, step):
        part = seen[first:first + step]
        marked[first:first + step][part != np.resize(row, part.size)] = 0x01010101
