"""Products of 16-bit matrices on GPUs whose Tensor Memory Accelerator fetches whole tiles (compute capability 9.0 on). It wants lines that begin at
multiples of 16 bytes: a matrix with others is copied to such first.

One program per multiprocessor walks the tiles, so that the next tile's operands are fetched while the last one's result is
stored. A row's statistics lie in one thread's registers and its neighbours'; a column's are spread over all warps. So the
softmax over columns multiplies the transposed matrices, whose accumulators have those columns as rows.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from ..backends import cuda
from ..backends.dispatch.replay import temporary
from ..backends.of_torch import FakeTensor
from . import tuning
from .dispatch import launch, traced
from .sizes import cdiv, known
from .parts import exp_of, keep_part
from .product import copy_lines_kernel, tile_of_program

try:
    from triton.tools.tensor_descriptor import TensorDescriptor
except ImportError:  # a Triton that describes no tensors
    TensorDescriptor = None

#: (BM, BN, BK, warps, stages) for no softmax, dim 0 and dim 1; fastest of the shapes that fit a multiprocessor, on an H200
TILES = {None: (128, 256, 64, 8, 3), 0: (256, 128, 64, 8, 3), 1: (128, 256, 64, 8, 3)}
GROUP = 8
COPIED = (16, 256)  # what a program of copy_lines_kernel copies
#: products that a number is in from which on copying pays that: it reads and writes 4 bytes, at some 2.5 TB/s, and by pointers lines that 16 bytes do not divide
#: take an H100 some 90 TFLOP/s, by TMA 600
SERVES = 128


@triton.jit
def keep_product(acc, c_ptr, stats_ptr, m, n, tile_m, tile_n, tiles_m, tiles_n, AXIS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Write a tile of a product, transposed with AXIS 0; with an AXIS what `product_exp_kernel` writes of it."""
    rows, cols = tile_m * BM + tl.arange(0, BM), tile_n * BN + tl.arange(0, BN)
    if AXIS == 0:
        acc, top, total = exp_of(tl.where((cols[:, None] < n) & (rows[None, :] < m), acc, -float("inf")), 1)
        keep_part(stats_ptr, top, total, tile_m, tiles_m, cols, n)
    elif AXIS == 1:
        acc, top, total = exp_of(tl.where((rows[:, None] < m) & (cols[None, :] < n), acc, -float("inf")), 1)
        keep_part(stats_ptr, top, total, tile_n, tiles_n, rows, m)
    out = acc.to(c_ptr.dtype.element_ty)
    tl.store(c_ptr + rows.to(tl.int64)[:, None] * n + cols[None, :], out.T if AXIS == 0 else out,
             mask=(rows[:, None] < m) & (cols[None, :] < n))


@triton.jit
def product_tma_kernel(c_ptr, stats_ptr, a, b, m, n, k, A_TURNED: tl.constexpr, B_TURNED: tl.constexpr, AXIS: tl.constexpr,
                       BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    """c = a @ b, or with an AXIS what `product_exp_kernel` writes. a, b: descriptors of the matrices, or of their transposes where
    they are TURNED. Any number of programs."""
    tiles_m, tiles_n = tl.cdiv(m, BM), tl.cdiv(n, BN)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):
        tile_m, tile_n = tile_of_program(tile, m, n, BM, BN, GROUP)
        row, col = tile_m * BM, tile_n * BN
        acc = tl.zeros((BN, BM) if AXIS == 0 else (BM, BN), dtype=tl.float32)
        for at in range(0, k, BK):
            x = a.load([at, row]).T if A_TURNED else a.load([row, at])
            y = b.load([col, at]).T if B_TURNED else b.load([at, col])
            acc = tl.dot(y.T, x.T, acc) if AXIS == 0 else tl.dot(x, y, acc)
        keep_product(acc, c_ptr, stats_ptr, m, n, tile_m, tile_n, tiles_m, tiles_n, AXIS, BM, BN)


KERNELS = (copy_lines_kernel, product_tma_kernel)


@functools.lru_cache(maxsize=None)
def _has_tma(device: int) -> bool:
    return TensorDescriptor is not None and torch.version.hip is None and cuda.limits(device)[2] >= (9, 0)


def turned(shape: tuple, strides: tuple, size: int, aligned: bool) -> bool | None:
    """Are a matrix's columns what lies contiguous in memory? None where it cannot be described: that takes one contiguous dimension, lines that
    begin at multiples of 16 bytes, and memory that does. size: of an element, in bytes."""
    for answer, along, line in ((False, 1, 0), (True, 0, 1)):
        if strides[along] == 1 and strides[line] >= shape[along] and strides[line] * size % 16 == 0 and aligned:
            return answer
    return None


def _turned(x: torch.Tensor) -> bool | None:
    return turned(x.shape, x.stride(), x.element_size(), x.data_ptr() % 16 == 0)


def takes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Is a @ b for this file: both 16 bits wide on a GPU that has what it needs, and large enough for most multiprocessors? What is only traced goes by pointers, as no descriptor can be made of it."""
    if a.device.type != "cuda" or a.dtype not in (torch.float16, torch.bfloat16) or isinstance(a, FakeTensor) or traced():
        return False
    if tuning.tries("matmul"):  # for the kernel by pointers
        return False
    m, n = a.shape[0], b.shape[1]
    return (known(m, n, a.shape[1]) and _has_tma(a.device.index) and 4 * cdiv(m, 128) * cdiv(n, 256) >= 3 * cuda.limits(a.device.index)[0]
            and (n >= SERVES or _turned(a) is not None) and (m >= SERVES or _turned(b) is not None))


def _described(x: torch.Tensor) -> torch.Tensor:
    """x, or a copy that can be described, which lies as x does."""
    if _turned(x) is not None:
        return x
    along = 0 if x.stride(0) == 1 and x.stride(1) != 1 else 1
    lines, length = x.shape[1 - along], x.shape[along]
    made = temporary(torch.empty((lines, cdiv(length, 8) * 8), dtype=x.dtype, device=x.device))
    launch(copy_lines_kernel, (cdiv(lines, COPIED[0]) * cdiv(length, COPIED[1]),), x, made, lines, length, x.stride(1 - along), x.stride(along), made.shape[1],
           BL=COPIED[0], BC=COPIED[1], num_warps=4)
    return made[:, :length] if along == 1 else made[:, :length].T


def prepared(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Both, described; None where there is no memory for a copy that it takes."""
    try:
        return _described(a), _described(b)
    except torch.OutOfMemoryError:
        return None


def product(given: tuple[torch.Tensor, torch.Tensor], c: torch.Tensor, stats: torch.Tensor | None = None, axis: int | None = None, *,
            tile: tuple = (), programs: int = 0):
    """c = a @ b of what is `prepared`; with an axis exp(a @ b - tops) and the parts' statistics, `step` rows or columns a part. programs: on the CPU, how
    many."""
    a, b = given
    (m, k), n = a.shape, b.shape[1]
    bm, bn, bk, warps, stages = tile or TILES[axis]
    a_turned, b_turned = _turned(a), _turned(b)
    described = (TensorDescriptor.from_tensor(x.T if turned else x, [block[1], block[0]] if turned else list(block))
                 for x, turned, block in ((a, a_turned, (bm, bk)), (b, b_turned, (bk, bn))))
    programs = min(cdiv(m, bm) * cdiv(n, bn), programs or cuda.limits(a.device.index)[0])
    launch(product_tma_kernel, (programs,), c, c if stats is None else stats, *described, m, n, k, A_TURNED=a_turned, B_TURNED=b_turned,
           AXIS=axis, BM=bm, BN=bn, BK=bk, GROUP=GROUP, num_warps=warps, num_stages=stages)


def step(a: torch.Tensor, b: torch.Tensor, axis: int) -> int:
    """Rows (axis 0) or columns (1) of a tile: what one part of the statistics is of."""
    return TILES[axis][axis]
