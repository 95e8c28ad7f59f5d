"""Which backend serves a call within `backends.use("auto")`: of a GPU's two the one that was measured as faster, on the shape nearest to the call's.

The measurements are the "choices" of a compute capability in tuned.json, beside its tiles: "times", op -> dtype -> kind of shape -> a line for each shape,
[sizes ..., microseconds by triton-gpu, by cuda, noise], noise being half the width of the 95 % confidence interval of the two times' ratio; and "runs", who
measured what. `triport tune --choose` writes them.

The rule. Of the shapes that were measured for this op, dtype, kind of shape and compute capability the nearest decides, by the sum of the squares of the
base-2 logarithms of the sizes' ratios: what makes one kernel the faster (blocks enough for all multiprocessors, rows that fit in registers, columns that fit
in a cluster's shared memory, how much is read again) changes with doublings, of any size alike. A kind is what takes other kernels or other ways to memory
whatever the sizes: a softmax's contiguous rows or columns, lines of memory that 16 bytes divide or not, operands that are transposed. `cuda` is chosen
where the nearest shape, or each of several that are as near, says that it is faster by more than the noise and `GAIN`. All else goes to `triton-gpu`: what is
farther than `REACH` doublings from all that was measured, other dtypes, other GPUs, ops without CUDA C++, arguments that ops refuse; and everything where
CUDA C++ cannot run.
"""

from __future__ import annotations

import functools
import math
from typing import Callable

import torch

from ..backends import cuda, get as get_backend
from ..backends.base import Error
from . import tuning
from .records import dtype_name
from .sizes import known

#: who serves what nothing was measured for, and who does where that was faster
OTHERWISE, FASTER = "triton-gpu", "cuda"
#: a shape that is farther from a measured one, in doublings, is not like it: a size 16 times as large, three sizes 5 times each
REACH = 4.0
#: by which part a time must be shorter to count, whatever the noise: GPU times of one shape differ that much from process to process
GAIN = 0.015
#: how near two distances are the same
_SAME = 1e-9

#: kind of shape, and sizes, of a call; None where nothing like it can be in the table
Like = tuple[str, tuple[int, ...]] | None
#: op -> what tells the `Like` of a call by its arguments
LIKE: dict[str, Callable[..., Like]] = {}


def begins(*tensors: torch.Tensor) -> bool:
    """Does their memory begin at multiples of 16 bytes, as that of what was measured does?"""
    return all(t.data_ptr() % 16 == 0 for t in tensors)


def kind(name: str, line: int) -> str:
    """The name of a kind whose contiguous lines have so many bytes."""
    return name if line % 16 == 0 else f"{name}, unaligned"


def elements(x: torch.Tensor) -> Like:
    """Of an op on each element by itself: (elements)."""
    n = x.numel()
    return ("elements", (n,)) if known(n) and n and begins(x) else None


def rows(x: torch.Tensor, *others) -> Like:
    """Of an op on rows with one bias row: (rows, elements of a row)."""
    if not x.dim() or not known(*x.shape) or not x.numel() or not begins(x):
        return None
    n = x.shape[-1]
    return kind("rows", n * x.element_size()), (x.numel() // n, n)


def chosen(op: str, *args) -> str:
    """The backend that serves a call of `op` on CUDA tensors within `use("auto")`; args: all of them, by position. Raises `Error` for a damaged table."""
    like = LIKE.get(op)
    found = None if like is None else like(*args)
    if found is None or not _faster(_gpu(args[0]), op, dtype_name(args[0].dtype), *found):
        return OTHERWISE
    return FASTER if usable() else OTHERWISE


def _gpu(x: torch.Tensor) -> str:
    """What the table calls the GPU of a tensor."""
    return "sm_%d%d" % cuda.limits(x.device.index)[2]


@functools.lru_cache(maxsize=1)
def usable() -> bool:
    """Can CUDA C++ be compiled and launched here?"""
    return get_backend(FASTER).unavailable() is None


@functools.lru_cache(maxsize=4096)
def _faster(gpu: str, op: str, dtype: str, kind: str, sizes: tuple[int, ...]) -> bool:
    """Is CUDA C++ the faster for such a call?"""
    return nearest(measured(gpu).get((op, dtype, kind), ()), sizes)


def nearest(lines, sizes: tuple[int, ...]) -> bool:
    """Do all measured shapes that are nearest to `sizes`, within reach, say that CUDA C++ is faster? lines: (sizes, is it?) of each."""
    at = [math.log2(s) for s in sizes]
    apart = [(math.dist(at, [math.log2(s) for s in measured]), faster) for measured, faster in lines if len(measured) == len(at)]
    least = min((d for d, _ in apart), default=math.inf)
    return least <= REACH + _SAME and all(faster for d, faster in apart if d <= least + _SAME)


@functools.lru_cache(maxsize=None)
def measured(gpu: str) -> dict[tuple[str, str, str], tuple]:
    """(op, dtype, kind) -> (sizes, is CUDA C++ faster?) of each shape that was measured on GPUs of a compute capability, as sm_90."""
    return read(tuning.load().get(gpu, {}), f"{tuning.path()}: {gpu}")


def read(entry: dict, where: str) -> dict[tuple[str, str, str], tuple]:
    """As `measured`, of a table's entry. Raises `Error`, which begins with `where`, for choices that are none."""
    def wrong(what: str, value) -> Error:
        return Error(f"{where}: {what} is {str(value)[:60]!r}; remove the entry's \"choices\", and measure them again by `triport tune --choose`")

    def inner(what: str, value) -> dict:
        if not isinstance(value, dict):
            raise wrong(what, value)
        return value

    out: dict[tuple[str, str, str], tuple] = {}
    choices = inner("choices", inner("the entry", entry).get("choices", {}))
    for op, by_dtype in inner("choices' times", choices.get("times", {})).items():
        for dtype, by_kind in inner(op, by_dtype).items():
            for name, lines in inner(f"{op} {dtype}", by_kind).items():
                if not isinstance(lines, list) or any(not _sound(line) or len(line) != len(lines[0]) for line in lines):
                    raise wrong(f"{op} {dtype} {name}", lines)
                out[op, dtype, name] = tuple((tuple(line[:-3]), faster(*line[-3:])) for line in lines)
    return out


def _sound(line) -> bool:
    """Is it [sizes ..., a time or null, a time or null, noise]?"""
    if not isinstance(line, list) or len(line) < 4:
        return False
    *sizes, one, other, noise = line
    numbers = all(type(s) is int and s > 0 for s in sizes) and all(t is None or _number(t) and t > 0 for t in (one, other))
    return numbers and _number(noise) and noise >= 0


def _number(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def faster(triton: float | None, other: float | None, noise: float) -> bool:
    """Is CUDA C++ faster, for certain, by its time and Triton's, both in one unit? None: it failed, or its result was wrong."""
    return triton is not None and other is not None and triton / other > 1 + max(GAIN, noise)


def summary(gpu: str) -> str:
    """A sentence: by which measurements calls go on GPUs of a compute capability."""
    shapes = [faster for lines in measured(gpu).values() for _, faster in lines]
    if not shapes:
        return f"nothing was measured for {gpu} (`triport tune --choose` does): {OTHERWISE} serves every call"
    runs = tuning.load()[gpu]["choices"].get("runs")
    last = f" ({runs[-1].get('machine')}, {runs[-1].get('date')})" if runs and isinstance(runs, list) and isinstance(runs[-1], dict) else ""
    said = f"{FASTER} was faster on {sum(shapes)} of {len(shapes)} shapes{last}"
    return said if usable() else f"{said}, but cannot run here: {OTHERWISE} serves every call ({get_backend(FASTER).unavailable()})"


def forget():
    """Read the table anew, and ask anew whether CUDA C++ can run."""
    for kept in (measured, _faster, usable):
        kept.cache_clear()
