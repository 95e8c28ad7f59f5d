"""Has this machine the memory that a case takes? Asked before its inputs are made: the system would end the process."""

from __future__ import annotations

from ..backends.base import Error
from .records import DTYPES, Case, Op


def require(op: Op, case: Case, dtype: str, device: str = "cpu", reference: bool = True):
    """Raise `Error` where there is no room for inputs and results, nor, with `reference`, for what float64 gives for them."""
    if device == "cuda":
        return  # its allocator says so
    free = _free()
    itemsize, made = DTYPES[dtype].itemsize, _results(op, case, dtype)
    # inputs are drawn in fp32; with a reference they are there twice, and once in float64, with what it computes
    needed = case.elements * (itemsize * 2 + 4 + 16) + made * (itemsize * 2 + 16) if reference else case.elements * (itemsize + 4) + made * itemsize
    if free is not None and needed > free:
        raise Error(f"case {case.name} takes about {needed / 1e9:.1f} GB{' with its float64 reference' if reference else ''}, and {free / 1e9:.1f} GB are free")


def _results(op: Op, case: Case, dtype: str) -> int:
    """Elements of an op's results, computed without them; 0 of what only knows real tensors."""
    try:
        made = (op.eager or op.reference)(*case.blank(DTYPES[dtype], "meta"), **case.kwargs)
        return sum(t.numel() for t in (made if isinstance(made, (tuple, list)) else [made]))
    except Exception:
        return 0


def _free() -> int | None:
    """Bytes that Linux says are to be had."""
    try:
        with open("/proc/meminfo") as f:
            return next(int(line.split()[1]) * 1024 for line in f if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return None
