"""Huge pages for large memory that is taken anew at each call.

The C library gives such memory back to the system, so each call meets pages that were never touched, and the kernel clears them first: 4 KiB at a time their faults of a
33 MB result take 4 ms, three times as long as writing it (MADV_HUGEPAGE, see Linux's transhuge.rst). Advice only: where it is refused nothing changes.
"""

from __future__ import annotations

import ctypes

import torch

from . import of_torch

_PAGE, _MADV_HUGEPAGE = 2 << 20, 14
#: bytes in which a huge page lies, wherever they begin
LEAST = 2 * _PAGE
_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def advise(out: torch.Tensor):
    """Ask for huge pages under a fresh tensor in a CPU's memory."""
    start = (out.data_ptr() + _PAGE - 1) & -_PAGE
    length = ((out.data_ptr() + out.nbytes) & -_PAGE) - start
    if length > 0:
        _madvise(start, length, _MADV_HUGEPAGE)


def empty_strided(size, stride, dtype) -> torch.Tensor:
    """A fresh tensor in a CPU's memory, on huge pages where it is `LEAST` bytes or more: what graphs that Inductor makes allocate by (`cpu/plugin/roomy.py`)."""
    out = of_torch.empty_strided_cpu(size, stride, dtype)
    if out.nbytes >= LEAST:
        advise(out)
    return out
