"""Tensors of torch.empty, and which of their bytes nobody has written.

`watch()` has torch's functions that give memory as it is mark what they give: it is filled with a pattern, and each byte counts as unwritten until a
checked kernel writes it. A torch operation that writes the tensor changes its version, and then all of it counts as written; what others write (NumPy, C)
is known by the pattern, which is gone.
"""

from __future__ import annotations

import ctypes
import functools
import threading

from ..emit.checks.block import PATTERN
from .shadow import Zeros

_NAMES = {"torch": ("empty", "empty_like", "empty_strided", "empty_permuted"), "Tensor": ("new_empty", "new_empty_strided")}
_known: dict[int, tuple] = {}  # address of a storage -> (weak reference to it, marks)
_lock = threading.Lock()
_watching = False


def watch():
    """From here on what torch.empty gives is followed; once."""
    global _watching
    if _watching:
        return
    _watching = True
    import torch

    for name in _NAMES["torch"]:
        setattr(torch, name, _followed(getattr(torch, name)))
    for name in _NAMES["Tensor"]:
        setattr(torch.Tensor, name, _followed(getattr(torch.Tensor, name)))
    torch.Tensor.numpy = _lent(torch.Tensor.numpy)


def _followed(make):
    @functools.wraps(make)
    def made(*args, **kwargs):
        out = make(*args, **kwargs)
        note(out)
        return out

    return made


def _lent(numpy):
    @functools.wraps(numpy)
    def lent(self, *args, **kwargs):
        with _lock:
            _known.pop(self.untyped_storage().data_ptr(), None)  # whoever has the array may write it
        return numpy(self, *args, **kwargs)

    return lent


def note(t):
    """`t` was made, and nobody has written it."""
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef

    if type(t) is not torch.Tensor or not t.is_cpu or t.layout is not torch.strided or torch.compiler.is_compiling():
        return
    storage = t.untyped_storage()
    if not storage.nbytes():
        return
    ctypes.memset(storage.data_ptr(), PATTERN & 255, storage.nbytes())
    with _lock:
        if len(_known) > 4096:
            for start in [start for start, (ref, _) in _known.items() if ref.expired()]:
                del _known[start]
        _known[storage.data_ptr()] = (StorageWeakRef(storage), Zeros(storage.nbytes() + 64))


def marks(argument) -> int:
    """The address of an argument's marks, a byte for each of its storage's; 0 where all of it counts as written."""
    storage = getattr(argument, "untyped_storage", None)
    if storage is None:
        return 0
    start = storage().data_ptr()
    with _lock:
        ref, written = _known.get(start, (None, None))
        if ref is None:
            return 0
        if ref.expired() or argument.is_inference() or argument._version:
            del _known[start]
            return 0
        return written.address
