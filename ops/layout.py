"""How ops' arguments and results lie in memory."""

from __future__ import annotations

import math

import torch

from ..backends import huge
from ..backends.dispatch.replay import temporary
from .sizes import known

#: outputs of at least this many bytes ask for huge pages: glibc keeps smaller blocks, once used, in its heap
HUGE = 32 << 20


def roomy(out: torch.Tensor) -> torch.Tensor:
    """`out`, a fresh output, on huge pages where it is large and on the CPU (`backends/huge.py`)."""
    if type(out) is torch.Tensor and out.is_cpu and out.nbytes >= HUGE:
        huge.advise(out)
    return out


roomy.from_bytes = HUGE


def held(shape: tuple, device: torch.device) -> torch.Tensor | None:
    """Numbers of fp32 that an op keeps for itself; None where there is no memory for them."""
    try:
        return temporary(torch.empty(shape, dtype=torch.float32, device=device))
    except torch.OutOfMemoryError:
        return None


def unexpanded(grad: torch.Tensor) -> torch.Tensor:
    """`grad`, or a copy where one element stands for many, as the gradient of a sum is: Inductor hands such an element to kernels as a number."""
    return grad.clone(memory_format=torch.contiguous_format) if 0 in grad.stride() else grad


def sums_dtype(x: torch.Tensor) -> torch.dtype:
    """The dtype that sums of x's elements are kept in: fp64 of fp64, else fp32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def split(x: torch.Tensor, dim: int) -> tuple[int, int, int]:
    """(outer, n, inner): the sizes before, of and after `dim`."""
    shape = x.shape or (1,)
    outer = inner = 1
    for k, size in enumerate(shape):
        outer, inner = (outer * size, inner) if k < dim else (outer, inner * size) if k > dim else (outer, inner)
    return outer, shape[dim], inner


def row_alignment(x: torch.Tensor, n: int) -> int:
    """The ALIGN of a kernel on rows of n elements: how many of them 16 bytes hold, on a GPU where rows are a multiple of that and Triton, which looks for
    multiples of 16 elements, would not see it; else 1. A kernel that begins with `if ALIGN > 1: n = n // ALIGN * ALIGN` reads and writes such rows 16 bytes
    at a time."""
    whole = 16 // x.element_size()
    return whole if x.is_cuda and known(n) and n % 16 and n % whole == 0 else 1


def even(size: int, *numbers: int) -> int:
    """The EVEN of a kernel: of each of these arguments, two bits at a time, the power of two that divides it, and what 16 bytes hold of numbers of `size` bytes; 0 where Triton sees that 16 does."""
    return sum((math.gcd(number, 16 // size).bit_length() - 1) << 2 * at for at, number in enumerate(numbers) if known(number) and number % 16)


def even_product(a: torch.Tensor, b: torch.Tensor, steps: tuple = ((), ())) -> int:
    """The EVEN of a kernel by pointers of a @ b: m, n, k, a's steps, b's. steps: of batches, whose first matrices a and b are, what leads from one to the next, in front of a matrix's own. Along the rows
    of a Triton looks at nothing but its columns' steps, unless a lies by columns."""
    if a.device.type != "cuda":
        return 0
    rows = a.shape[0] if known(a.stride(1)) and a.stride(1) != 1 else 0
    return even(a.element_size(), rows, b.shape[1], a.shape[1], *steps[0], *a.stride(), *steps[1], *b.stride())


def at_a_time(x: torch.Tensor) -> int:
    """How many numbers of a matrix's contiguous lines a thread reads at a time, of those that 16 bytes hold: as many as divide a line, and where it begins. Where memory begins is not asked: what is only
    traced has none, and an allocator's is aligned."""
    whole, steps = 16 // x.element_size(), x.stride()[-2:]
    if 1 not in steps:
        return 1
    along = -1 if steps[1] == 1 else -2
    return math.gcd(whole, x.shape[along], steps[-3 - along], x.storage_offset())


def is_read(strides: tuple, aligned: bool) -> bool:
    """Are an fp32 matrix's lines contiguous, and begin at multiples of 16 bytes, where its memory is `aligned` to such?"""
    lines, along = strides if strides[1] == 1 else strides[::-1]
    return along == 1 and lines % 4 == 0 and aligned


#: kernels of products by pointers count elements in 32 bits over the terms that they step over at a time, no more than these on a GPU and on a CPU. Tiles with all of K, which may be more, are for
#: what fits (`tiles.tile_for`)
STEP, STEP_ON_CPU = 256, 1024


def steps_fit(x: torch.Tensor, k: int, most: int = STEP) -> bool:
    """Do steps along K, dimension `k`, over up to so many terms fit the 32 bits that kernels of products by pointers have for them?"""
    step, terms = x.stride(k), x.shape[k]
    return not known(step, terms) or step * min(most, terms) < 1 << 31


def near(x: torch.Tensor, k: int) -> torch.Tensor:
    """x, a matrix, or a batch of them, for a kernel by pointers: a copy that is contiguous along K where steps along it do not fit. k: its dimension, of batches -2 or -1."""
    if steps_fit(x, k, STEP if x.device.type == "cuda" else STEP_ON_CPU):
        return x
    return x.contiguous() if k in (1, -1) else x.mT.contiguous().mT
