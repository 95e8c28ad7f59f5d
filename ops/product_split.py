"""Products of fp32 matrices by the tensor cores of GPUs of compute capability 9.0: each number as the sum of three of bf16, which hold its 24 bits
exactly; of the nine products of parts the six largest are added up, what is left out is below 2^-25 of a product ("bf16x6": Henry, Tang and Heinecke,
"Leveraging the bfloat16 artificial intelligence datatype for higher-precision computations", arXiv 1904.06376).

Tensor cores cut off what they add up instead of rounding it (K = 4096, on an H100: an error of 3.2e-6 of the sum of the terms' sizes, fused multiply-adds 4e-7). So
they add up BK terms of K only, the six products from the smallest on, and fused additions do the rest: 8e-8.

A first kernel splits both operands into three planes, which lie one behind the other along K, filled up with zeros; it also looks for numbers that three of
bf16 do not hold (`beyond`). Where there is one the second multiplies the operands as they are.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ..backends import cuda
from ..backends.dispatch.replay import temporary
from ..backends.of_torch import FakeTensor
from . import tuning
from .dispatch import launch, traced
from .product import add_products_of_parts, beyond, product_tile, three_parts, tile_of_program
from .product_tma import TensorDescriptor, keep_product
from .sizes import cdiv, known

#: (BM, BN, BK, warps, stages): the fastest of those tried on an H100 and, where tiles are few, by axis of a softmax
LARGE, SMALL = (128, 128, 32, 8, 3), (64, 128, 32, 4, 3)
#: a full large tile's time beside that of two small ones
PACE = 0.78
GROUP = 8
ALONG_K = 64  # K is filled up to a multiple of this
LINES = 8  # and the other dimension to one of this: TMA wants lines of 16 bytes
BLOCK = (16, 128)  # of a splitting program: lines, elements of each
SPLITTERS = 512  # most splitting programs of an operand
#: from which on splitting pays, on an H100: products that a number of the operands is in, on average; products of all; small tiles. us, split and by multiply-adds:
#: 192x4096x4096 179, 202, 128x4096x4096 178, 140; 768 cubed 30, 41, 512 cubed 21, 17; 512x8192x512, of 32 tiles, 249, 217. By product_few.py on an H200: 8192x1024x200 75, 83, 8192x2048x256 140, 157,
#: 4096x4096x192 166, 159, 16384x1024x128 98, 83
SERVES, PRODUCTS, TILES = 190, 1 << 28, 64
#: the bits of 2^48: of smaller numbers no sum of up to 2^31 products overflows, which one of products of parts may where the numbers' own does not
MOST = tl.constexpr(0x57800000)
FAR = 1 << 26  # elements from line to line, 16 of which the kernel steps over at a time in 32 bits


@triton.jit
def split_matrix(x_ptr, out_ptr, pid, programs, lines, length, step, out_lines, out_length, plane, out_step, BL: tl.constexpr, BC: tl.constexpr):
    """Split `lines` contiguous lines, `step` elements from one to the next, into three planes of out_lines x out_length, `plane` elements from one to
    the next; what they have more is 0. Returns whether a number is `beyond`."""
    across = tl.cdiv(out_length, BC)
    plane = tl.cast(plane, tl.int64)
    found = tl.zeros((BL, BC), tl.int32)
    for tile in range(pid, tl.cdiv(out_lines, BL) * across, programs):
        line = tile // across * BL + tl.arange(0, BL)
        at = tile % across * BC + tl.arange(0, BC)
        x = tl.load(x_ptr + line.to(tl.int64)[:, None] * step + at[None, :], mask=(line[:, None] < lines) & (at[None, :] < length), other=0.0)
        found |= beyond(x, MOST)
        first, second, third = three_parts(x)
        out = out_ptr + line.to(tl.int64)[:, None] * out_step + at[None, :]
        inside = (line[:, None] < out_lines) & (at[None, :] < out_length)
        tl.store(out, first, mask=inside)
        tl.store(out + plane, second, mask=inside)
        tl.store(out + 2 * plane, third, mask=inside)
    return tl.max(tl.max(found, axis=1), axis=0)


@triton.jit
def split_kernel(a_ptr, b_ptr, a_out_ptr, b_out_ptr, flags_ptr, programs_a, programs_b,
                 a_lines, a_length, a_step, a_out_lines, a_out_length, a_plane, a_out_step,
                 b_lines, b_length, b_step, b_out_lines, b_out_length, b_plane, b_out_step, BL: tl.constexpr, BC: tl.constexpr):
    """Both matrices, by programs_a and programs_b programs; each sets its flag."""
    pid = tl.program_id(0)
    if pid < programs_a:
        found = split_matrix(a_ptr, a_out_ptr, pid, programs_a, a_lines, a_length, a_step, a_out_lines, a_out_length, a_plane, a_out_step, BL, BC)
    else:
        found = split_matrix(b_ptr, b_out_ptr, pid - programs_a, programs_b, b_lines, b_length, b_step, b_out_lines, b_out_length, b_plane, b_out_step, BL, BC)
    tl.store(flags_ptr + pid, found)


@triton.jit
def part(x, row, at, TURNED: tl.constexpr):
    """A block of a descriptor's matrix that begins at (row, at), or of its transpose."""
    return x.load([at, row]).T if TURNED else x.load([row, at])


@triton.jit
def any_flag(flags_ptr, flags, FLAGS: tl.constexpr):
    """Is one of so many flags set, of at most FLAGS?"""
    flag = tl.arange(0, FLAGS)
    return tl.max(tl.load(flags_ptr + flag, mask=flag < flags, other=0), axis=0) != 0


@triton.jit
def keep_split_product(c_ptr, stats_ptr, a, b, m, n, planes, A_TURNED: tl.constexpr, B_TURNED: tl.constexpr, AXIS: tl.constexpr, BM: tl.constexpr,
                       BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    """A program's tiles of the product of split matrices; what is not said here as of `product_split_kernel`."""
    tiles_m, tiles_n = tl.cdiv(m, BM), tl.cdiv(n, BN)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):
        tile_m, tile_n = tile_of_program(tile, m, n, BM, BN, GROUP)
        row, col = tile_m * BM, tile_n * BN
        acc = tl.zeros((BN, BM) if AXIS == 0 else (BM, BN), dtype=tl.float32)
        for at in range(0, planes, BK):
            x1, y1 = part(a, row, at, A_TURNED), part(b, at, col, B_TURNED)
            x2, y2 = part(a, row, at + planes, A_TURNED), part(b, at + planes, col, B_TURNED)
            x3, y3 = part(a, row, at + 2 * planes, A_TURNED), part(b, at + 2 * planes, col, B_TURNED)
            if AXIS == 0:
                x1, x2, x3, y1, y2, y3 = y1.T, y2.T, y3.T, x1.T, x2.T, x3.T
            acc = add_products_of_parts(acc, x1, x2, x3, y1, y2, y3)
        keep_product(acc, c_ptr, stats_ptr, m, n, tile_m, tile_n, tiles_m, tiles_n, AXIS, BM, BN, AXIS == 0)


@triton.jit
def product_split_kernel(c_ptr, stats_ptr, flags_ptr, a_ptr, b_ptr, a, b, m, n, k, planes, flags, stride_am, stride_ak, stride_bk, stride_bn,
                         A_TURNED: tl.constexpr, B_TURNED: tl.constexpr, AXIS: tl.constexpr, FLAGS: tl.constexpr,
                         BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    """c = a @ b, or with an AXIS what `product_exp_kernel` writes. a, b: descriptors of the split matrices, or of their transposes where they are
    TURNED, `planes` elements along K from one plane to the next. flags: so many are read, at most FLAGS; where one is set a_ptr and b_ptr are multiplied.
    Any number of programs."""
    if any_flag(flags_ptr, flags, FLAGS):
        tiles_m, tiles_n = tl.cdiv(m, BM), tl.cdiv(n, BN)
        for tile in range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0)):
            tile_m, tile_n = tile_of_program(tile, m, n, BM, BN, GROUP)
            rows, cols = tile_m * BM + tl.arange(0, BM), tile_n * BN + tl.arange(0, BN)
            acc = product_tile(a_ptr, b_ptr, m, n, k, stride_am, stride_ak, stride_bk, stride_bn, rows, cols, 16, tl.float32)
            keep_product(acc.T if AXIS == 0 else acc, c_ptr, stats_ptr, m, n, tile_m, tile_n, tiles_m, tiles_n, AXIS, BM, BN, AXIS == 0)
    else:
        keep_split_product(c_ptr, stats_ptr, a, b, m, n, planes, A_TURNED, B_TURNED, AXIS, BM, BN, BK, GROUP)


@triton.jit
def split_lines(x_ptr, out_ptr, pid, programs, matrices, inner, lines, length, step_outer, step_inner, step, plane, BL: tl.constexpr, BC: tl.constexpr):
    """Split `matrices` matrices of contiguous lines, `inner` of them for each index of an outer dimension, into lines of three parts, `plane` elements from one to the next. Returns whether a number is
    `beyond`."""
    across = tl.cdiv(plane, BC)
    found = tl.zeros((BL, BC), tl.int32)
    for tile in range(pid, tl.cdiv(matrices * lines, BL) * across, programs):
        line = tile // across * BL + tl.arange(0, BL)
        at = tile % across * BC + tl.arange(0, BC)
        i = line // lines
        begin = (i // inner).to(tl.int64) * step_outer + (i % inner).to(tl.int64) * step_inner + (line % lines).to(tl.int64) * step
        there = line < matrices * lines
        x = tl.load(x_ptr + begin[:, None] + at[None, :], mask=there[:, None] & (at[None, :] < length), other=0.0)
        found |= beyond(x, MOST)
        first, second, third = three_parts(x)
        out = out_ptr + line.to(tl.int64)[:, None] * (3 * plane) + at[None, :]
        inside = there[:, None] & (at[None, :] < plane)
        tl.store(out, first, mask=inside)
        tl.store(out + plane, second, mask=inside)
        tl.store(out + 2 * plane, third, mask=inside)
    return tl.max(tl.max(found, axis=1), axis=0)


@triton.jit
def split_batches_kernel(a_ptr, b_ptr, a_out_ptr, b_out_ptr, flags_ptr, programs_a, programs_b, a_matrices, a_inner, a_lines, a_length, a_outer_step, a_inner_step, a_step, a_plane,
                         b_matrices, b_inner, b_lines, b_length, b_outer_step, b_inner_step, b_step, b_plane, BL: tl.constexpr, BC: tl.constexpr):
    """Both factors, by programs_a and programs_b programs; each sets its flag."""
    pid = tl.program_id(0)
    if pid < programs_a:
        found = split_lines(a_ptr, a_out_ptr, pid, programs_a, a_matrices, a_inner, a_lines, a_length, a_outer_step, a_inner_step, a_step, a_plane, BL, BC)
    else:
        found = split_lines(b_ptr, b_out_ptr, pid - programs_a, programs_b, b_matrices, b_inner, b_lines, b_length, b_outer_step, b_inner_step, b_step, b_plane, BL, BC)
    tl.store(flags_ptr + pid, found)


@triton.jit
def _part(x, i, row, at, PART: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TURNED: tl.constexpr):
    """ROWS x COLUMNS of a part of a descriptor's i-th matrix, or of its transpose, from (row, at) on."""
    if TURNED:
        return x.load([i, at, PART, row]).reshape(COLUMNS, ROWS).T
    else:
        return x.load([i, row, PART, at]).reshape(ROWS, COLUMNS)


@triton.jit
def batched_split_kernel(c_ptr, flags_ptr, a_ptr, b_ptr, a, b, count, inner, a_outer, a_inner, a_row, a_k, b_outer, b_inner, b_k, b_column, a_per_outer, a_per_inner, b_per_outer, b_per_inner, m, n, k, flags,
                         A_TURNED: tl.constexpr, B_TURNED: tl.constexpr, FLAGS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    """c[i] = a[i] @ b[i] of `count` matrices, `inner` of them for each index of the outer dimension; c: contiguous. a, b: descriptors of the parts of a_ptr's and b_ptr's matrices, or of their transposes
    where they are TURNED; a_per_outer and the like: matrices of theirs from one index of that dimension to the next. flags: so many are read, at most FLAGS; where one is set a_ptr and b_ptr are multiplied. Any
    number of programs."""
    tiles_n = tl.cdiv(n, BN)
    tiles = tl.cdiv(m, BM) * tiles_n
    if any_flag(flags_ptr, flags, FLAGS):
        for index in tl.range(tl.program_id(0), tiles * count, tl.num_programs(0)):
            i = index // tiles
            far, near = (i // inner).to(tl.int64), (i % inner).to(tl.int64)
            tile_m, tile_n = tile_of_program(index % tiles, m, n, BM, BN, GROUP)
            rows, cols = tile_m * BM + tl.arange(0, BM), tile_n * BN + tl.arange(0, BN)
            acc = product_tile(a_ptr + far * a_outer + near * a_inner, b_ptr + far * b_outer + near * b_inner, m, n, k, a_row, a_k, b_k, b_column, rows, cols, 16, tl.float32)
            tl.store(c_ptr + (i.to(tl.int64) * m + rows[:, None]) * n + cols[None, :], acc, mask=(rows[:, None] < m) & (cols[None, :] < n))
    else:
        for index in tl.range(tl.program_id(0), tiles * count, tl.num_programs(0), flatten=True):
            i = index // tiles
            ia, ib = i // inner * a_per_outer + i % inner * a_per_inner, i // inner * b_per_outer + i % inner * b_per_inner
            tile_m, tile_n = tile_of_program(index % tiles, m, n, BM, BN, GROUP)
            row, col = tile_m * BM, tile_n * BN
            acc = tl.zeros((BM, BN), dtype=tl.float32)
            for at in range(0, k, BK):
                x1, x2, x3 = _part(a, ia, row, at, 0, BM, BK, A_TURNED), _part(a, ia, row, at, 1, BM, BK, A_TURNED), _part(a, ia, row, at, 2, BM, BK, A_TURNED)
                y1, y2, y3 = _part(b, ib, at, col, 0, BK, BN, B_TURNED), _part(b, ib, at, col, 1, BK, BN, B_TURNED), _part(b, ib, at, col, 2, BK, BN, B_TURNED)
                acc = add_products_of_parts(acc, x1, x2, x3, y1, y2, y3)
            rows, cols = row + tl.arange(0, BM), col + tl.arange(0, BN)
            tl.store(c_ptr + (i.to(tl.int64) * m + rows[:, None]) * n + cols[None, :], acc, mask=(rows[:, None] < m) & (cols[None, :] < n))


KERNELS = (split_kernel, product_split_kernel, split_batches_kernel, batched_split_kernel)


@functools.lru_cache(maxsize=None)
def suits(device: int) -> bool:
    """Is GPU number `device` one that these kernels are for?"""
    return TensorDescriptor is not None and torch.version.hip is None and cuda.limits(device)[2] == (9, 0)


def takes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Is a @ b for this file: fp32 on a GPU of compute capability 9.0, both with a contiguous dimension, and so large that splitting pays? What is only
    traced goes by pointers, as no descriptor can be made of it."""
    if a.device.type != "cuda" or a.dtype != torch.float32 or isinstance(a, FakeTensor) or traced():
        return False
    m, n, k = a.shape[0], b.shape[1], a.shape[1]
    return (known(m, n, k) and suits(a.device.index) and 1 in a.stride() and 1 in b.stride() and pays(m, n, k)
            and max(*a.stride(), *b.stride()) < FAR and not tuning.tries("matmul"))


def pays(m: int, n: int, k: int) -> bool:
    """Is a product of m x k by k x n faster so?"""
    return m * n >= SERVES * (m + n) and m * n * k >= PRODUCTS and cdiv(m, SMALL[0]) * cdiv(n, SMALL[1]) >= TILES


#: us of a whole call on an H200, of a thousand numbers that are split, of a thousand of a tile that is stored, and of a piece of K by `SMALL` and by `LARGE`; a fit as product_pace.py's, to 44 products, 9 % from
#: their times
CALLED, SPLIT, STORED, PIECES = 7.6, 0.0043, 0.22, {SMALL: 0.68, LARGE: 1.01}


def us(m: int, n: int, k: int, count: int) -> float:
    """About how long a product of m x k by k x n takes on so many multiprocessors, beside what product_pace.py says of others."""
    tile = tile_for(m, n, None, count)
    turns = cdiv(cdiv(m, tile[0]) * cdiv(n, tile[1]), count)
    return CALLED + k * (m + n) / 1e3 * SPLIT + turns * (cdiv(k, tile[2]) * PIECES[tile] + tile[0] * tile[1] / 1e3 * STORED)


def tile_for(m: int, n: int, axis: int | None, count: int, matrices: int = 1) -> tuple:
    """(BM, BN, BK, warps, stages) of so many products on so many multiprocessors."""
    small = (SMALL[1], SMALL[0], *SMALL[2:]) if axis == 0 else SMALL
    large, rest = (cdiv(cdiv(m, t[0]) * cdiv(n, t[1]) * matrices, count) for t in (LARGE, small))
    return LARGE if 2 * PACE * large <= rest else small


class Planes:
    """Where a matrix's parts go. `lines` x `length` numbers of x, contiguous along the second, become three planes of `shape`; along_k: do lines run along K?
    `size`: terms of a plane, the last `more` of which somebody else writes, from `filled` on."""

    def __init__(self, shape: tuple, strides: tuple, k: int, more: int = 0):
        """Of a matrix of this shape. k: which of its dimensions K is."""
        along = 1 if strides[1] == 1 else 0
        self.lines, self.length, self.step = shape[1 - along], shape[along], strides[1 - along]
        self.along_k = along == k
        self.filled = cdiv(shape[k], ALONG_K) * ALONG_K
        self.size = self.filled + more
        across = cdiv(shape[1 - k], LINES) * LINES
        self.shape = (self.lines, self.filled) if self.along_k else (self.filled, across)
        self.made = (self.lines, 3 * self.size) if self.along_k else (3 * self.size, across)
        self.programs = min(SPLITTERS, cdiv(self.shape[0], BLOCK[0]) * cdiv(self.shape[1], BLOCK[1]))
        #: elements from a term to the next, and from one of the other dimension
        self.of_term, self.across = (1, self.made[1]) if self.along_k else (self.made[1], 1)

    def numbers(self) -> tuple[int, ...]:
        """What `split_matrix` takes of it."""
        return self.lines, self.length, self.step, *self.shape, self.size * self.of_term, self.made[1]


class Split(NamedTuple):
    """Two matrices, their parts and flags."""

    a: torch.Tensor
    b: torch.Tensor
    planes_a: Planes
    planes_b: Planes
    parts_a: torch.Tensor
    parts_b: torch.Tensor
    flags: torch.Tensor


def prepared(a: torch.Tensor, b: torch.Tensor) -> Split | None:
    """Both split; None where there is no memory for 6 bytes a number."""
    pa, pb = Planes(a.shape, a.stride(), 1), Planes(b.shape, b.stride(), 0)
    try:
        x, y, flags = (temporary(torch.empty(shape, dtype=dtype, device=a.device))
                       for shape, dtype in ((pa.made, torch.bfloat16), (pb.made, torch.bfloat16), (pa.programs + pb.programs, torch.int32)))
    except torch.OutOfMemoryError:
        return None
    launch(split_kernel, (pa.programs + pb.programs,), a, b, x, y, flags, pa.programs, pb.programs, *pa.numbers(), *pb.numbers(),
           BL=BLOCK[0], BC=BLOCK[1], num_warps=4)
    return Split(a, b, pa, pb, x, y, flags)


def product(given: Split, c: torch.Tensor, stats: torch.Tensor | None = None, axis: int | None = None, *, tile: tuple = (), programs: int = 0):
    """c = a @ b of what is `prepared`; with an axis exp(a @ b - tops) and the parts' statistics, `step` rows or columns a part. programs: on the CPU, how
    many."""
    a, b, pa, pb, x, y, flags = given
    (m, k), n = a.shape, b.shape[1]
    count = programs or cuda.limits(a.device.index)[0]
    bm, bn, bk, warps, stages = tile or tile_for(m, n, axis, count)
    x = TensorDescriptor.from_tensor(x, [bm, bk] if pa.along_k else [bk, bm])
    y = TensorDescriptor.from_tensor(y, [bn, bk] if pb.along_k else [bk, bn])
    launch(product_split_kernel, (min(cdiv(m, bm) * cdiv(n, bn), count),), c, c if stats is None else stats, flags, a, b, x, y, m, n, k, pa.size,
           pa.programs + pb.programs, *a.stride(), *b.stride(), A_TURNED=not pa.along_k, B_TURNED=pb.along_k, AXIS=axis, FLAGS=2 * SPLITTERS,
           BM=bm, BN=bn, BK=bk, GROUP=GROUP, num_warps=warps, num_stages=stages)


def step(a: torch.Tensor, b: torch.Tensor, axis: int) -> int:
    """Rows (axis 0) or columns (1) of a tile: what one part of the statistics is of."""
    return tile_for(a.shape[0], b.shape[1], axis, cuda.limits(a.device.index)[0])[axis]
