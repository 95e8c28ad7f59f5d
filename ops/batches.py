"""Products of batches of matrices: how batches go with each other, and the kernels that walk them where they lie.

A batch is any number of dimensions in front of the last two, sizes of 1 and dimensions that are not there going with any size, as in torch.matmul. Kernels walk up to two of them, each with a step of its own
for each factor, as heads of attention have them (batch x heads of what lies as batch x rows x heads x columns); dimensions that lie behind one another are one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ..backends.base import ArgumentError
from ..backends.cpu.llvm import targets
from . import batches_tma, product_few, thin
from .checks import shape_of
from .dispatch import launch, wrap_triton
from .layout import even_product, near
from .lines import sums_of_eight_lines, sums_of_lines
from .product import multiple, product_tile, tile_of_program
from .sizes import cdiv, known, next_power_of_2
from .straight import by_pairs
from .tiles import multiprocessors
from .tuning import plainly_here, tries


@triton.jit
def _beginning(ptr, i, inner, stride_outer, stride_inner):
    """Where the i-th matrix of a batch of two dimensions, `inner` the size of the second, begins."""
    return ptr + (i // inner).to(tl.int64) * stride_outer + (i % inner).to(tl.int64) * stride_inner


@triton.jit
def batched_matmul_kernel(a_ptr, b_ptr, c_ptr, m, n, k, scale: tl.float64, inner, stride_ao, stride_ai, stride_am, stride_ak, stride_bo, stride_bi, stride_bk, stride_bn, SCALED: tl.constexpr,
                          BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, EVEN: tl.constexpr = 0):
    """c[i] = a[i] @ b[i], times `scale` where SCALED; c: contiguous. EVEN: as of `multiple` (product.py), of m, n, k and all strides. Grid: the tiles of every matrix."""
    m, n, k = multiple(m, EVEN, 0), multiple(n, EVEN, 1), multiple(k, EVEN, 2)
    stride_ao, stride_ai, stride_am, stride_ak = multiple(stride_ao, EVEN, 3), multiple(stride_ai, EVEN, 4), multiple(stride_am, EVEN, 5), multiple(stride_ak, EVEN, 6)
    stride_bo, stride_bi, stride_bk, stride_bn = multiple(stride_bo, EVEN, 7), multiple(stride_bi, EVEN, 8), multiple(stride_bk, EVEN, 9), multiple(stride_bn, EVEN, 10)
    ACC: tl.constexpr = tl.float64 if a_ptr.dtype.element_ty == tl.float64 else tl.float32
    tiles = tl.cdiv(m, BM) * tl.cdiv(n, BN)
    i = tl.program_id(0) // tiles
    tile_m, tile_n = tile_of_program(tl.program_id(0) % tiles, m, n, BM, BN, GROUP)
    rows = tile_m * BM + tl.arange(0, BM)
    cols = tile_n * BN + tl.arange(0, BN)
    a_ptr = _beginning(a_ptr, i, inner, stride_ao, stride_ai)
    b_ptr = _beginning(b_ptr, i, inner, stride_bo, stride_bi)
    acc = product_tile(a_ptr, b_ptr, m, n, k, stride_am, stride_ak, stride_bk, stride_bn, rows, cols, BK, ACC)
    if SCALED:
        acc *= tl.cast(scale, ACC)
    out = c_ptr + (i.to(tl.int64) * m + rows[:, None]) * n + cols[None, :]
    tl.store(out, acc.to(c_ptr.dtype.element_ty), mask=(rows[:, None] < m) & (cols[None, :] < n))


@triton.jit
def batched_lines_kernel(x_ptr, b_ptr, out_ptr, m, n, k, plane, inner, stride_xo, stride_xi, stride_xr, stride_xk, stride_bo, stride_bi, stride_bk, stride_bn, stride_or, stride_on, R: tl.constexpr,
                         BN: tl.constexpr, BK: tl.constexpr, ALONG: tl.constexpr):
    """out[i] = x[i] @ b[i] of m lines, of R = m or of R = 8 that are more than 4 (`lines.py`); `plane` elements from one result to the next. Grid: columns by BN of every matrix."""
    blocks = tl.cdiv(n, BN)
    i, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    x_ptr, b_ptr, out_ptr = _beginning(x_ptr, i, inner, stride_xo, stride_xi), _beginning(b_ptr, i, inner, stride_bo, stride_bi), out_ptr + i.to(tl.int64) * plane
    if R > 4:
        sums_of_eight_lines(block, x_ptr, b_ptr, out_ptr, m, n, k, stride_xr, stride_bn, stride_or, stride_on, BN, BK)
    else:
        sums_of_lines(block, x_ptr, b_ptr, out_ptr, n, k, stride_xr, stride_xk, stride_bk, stride_bn, stride_or, stride_on, R, BN, BK, ALONG)


KERNELS = batched_matmul_kernel, batched_lines_kernel, *batches_tma.KERNELS
#: columns of lines that lie along them, from which on vectors of them pay for more than one row
WIDE = 16
#: elements of a matrix of lines along K that a program reads
READ = 1 << 14
#: elements of a line along K that are read at a time: they stay in the first cache
LONGEST = 1 << 12


def shape_of_product(op: str, a: torch.Tensor, b: torch.Tensor) -> tuple:
    """The shape of a @ b. Raises `ArgumentError`."""
    for name, t in (("a", a), ("b", b)):
        if t.dim() < 2:
            raise ArgumentError(f"triport.{op}: argument {name!r} has shape {shape_of(t)}; it takes a matrix, or a batch of them (2 or more dimensions)")
    if a.shape[-1] != b.shape[-2]:
        raise ArgumentError(f"triport.{op}: argument 'a' is {shape_of(a)} and 'b' is {shape_of(b)}; it takes ... x M x K and ... x K x N with the same K ({a.shape[-1]} is not {b.shape[-2]})")
    rank, lead = max(a.dim(), b.dim()) - 2, []
    for d in range(rank):
        one, other = (t.shape[d - rank - 2] if t.dim() - 2 >= rank - d else 1 for t in (a, b))
        if one != other and one == 1:
            one = other
        elif one != other and other != 1:
            raise ArgumentError(f"triport.{op}: argument 'a' is {shape_of(a)} and 'b' is {shape_of(b)}; it takes batches of one size, or of 1 ({one} is not {other})")
        lead.append(one)
    return *lead, a.shape[-2], b.shape[-1]


def is_one(b: torch.Tensor) -> bool:
    """Is b one matrix, whatever dimensions of size 1 it has in front?"""
    return all(type(s) is int and s == 1 for s in b.shape[:-2])


def first(x: torch.Tensor) -> torch.Tensor:
    """The first matrix of a batch. (Indexing asks for the GPU of a tensor that holds nothing, which a torch without GPUs does not have.)"""
    while x.dim() > 2:
        x = x.select(0, 0)
    return x


def as_matrices(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """a, b and c, their product, as matrices, where b is one and the rows of a's lie one below the other."""
    if not is_one(b):
        return None
    try:
        return a.view(-1, a.shape[-1]), first(b), c.view(-1, c.shape[-1])
    except (RuntimeError, ValueError):  # the latter while torch traces
        return None


class Batch(NamedTuple):
    """How a and b are walked: so many matrices, in two dimensions of which the second has the size `inner`. steps: of each factor, outer and inner."""

    a: torch.Tensor
    b: torch.Tensor
    count: int
    inner: int
    steps: tuple[tuple[int, int], tuple[int, int]]

    def first(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The first matrices."""
        return first(self.a), first(self.b)


def walked(a: torch.Tensor, b: torch.Tensor, shape: tuple) -> Batch:
    """a and b as batches of the shape; copies where that takes more than two dimensions. What is open while torch traces is compared with nothing."""
    dims: list[tuple[int, tuple]] = []
    a, b = a.expand(*shape, *a.shape[-2:]), b.expand(*shape, *b.shape[-2:])
    walked = list(zip(shape, a.stride(), b.stride()))
    closed = all(known(*numbers) for numbers in walked)
    for size, *steps in walked:
        if not closed:
            dims.append((size, tuple(steps)))
        elif dims and all(before == size * step for before, step in zip(dims[-1][1], steps)):
            dims[-1] = dims[-1][0] * size, tuple(steps)
        elif size != 1:
            dims.append((size, tuple(steps)))
    if len(dims) > 2:
        a, b = a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:])
        dims = [(a.shape[0], (a.stride(0), b.stride(0)))]
    (outer, far), (inner, near) = [(1, (0, 0))] * (2 - len(dims)) + dims
    return Batch(a, b, outer * inner, inner, ((far[0], near[0]), (far[1], near[1])))


def product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, tile_for, scale: float = 1.0):
    """c = scale a @ b, batches of matrices that fit each other, none of them empty. c: contiguous, of the product's shape. tile_for: from the first two matrices and the count of them a tile."""
    (m, n), k = c.shape[-2:], a.shape[-1]
    batch = walked(near(a, -1), near(b, -2), tuple(c.shape[:-2]))
    a, b = batch.first()
    if scale == 1.0 and _by_lines(a, b, batch, c):
        return
    count = batch.count // batch.inner, batch.inner
    if scale == 1.0 and (factors := batches_tma.way(a, b, count, batch.steps)) is not None:
        batches_tma.product(*factors, c, count)
        return
    if scale == 1.0 and (tile := product_few.of_batches(a, b, batch.count)) is not None:
        product_few.product_of_batches(batch.a, batch.b, c, tile, (a, b), count, batch.steps)
        return
    t = tile_for(a, b, count=batch.count)
    launch(wrap_triton(batched_matmul_kernel), (cdiv(m, t["BM"]) * cdiv(n, t["BN"]) * batch.count,), batch.a, batch.b, c, m, n, k, scale, batch.inner,
           *batch.steps[0], *a.stride(), *batch.steps[1], *b.stride(), SCALED=bool(scale != 1.0), **t, EVEN=even_product(a, b, batch.steps))


def _by_lines(a: torch.Tensor, b: torch.Tensor, batch: Batch, c: torch.Tensor) -> bool:
    """c = a @ b, of few rows or columns, if it goes by lines: matrices are read once, and neither packed nor padded to what a tile has. a, b: the first matrices."""
    (m, k), n = a.shape, b.shape[1]
    gpu = a.device.type == "cuda"
    if not (known(m, n, k, batch.count) and not tries("matmul") if gpu else plainly_here(a, "matmul", m, n, k, batch.count)):
        return False
    lines = _lines_on_gpu if gpu else _lines
    if r := lines(a, b):
        x, w, steps, out, tensors = a, b, batch.steps, (n, 1), (batch.a, batch.b)
    elif r := lines(b.T, a.T):
        x, w, steps, out, tensors = b.T, a.T, batch.steps[::-1], (1, n), (batch.b, batch.a)
    else:
        return False
    columns, options = w.shape[1], {}
    if gpu:
        along, bn, bk, warps = _tile_of_lines_on_gpu(r, columns, k, w.stride(0) == 1, batch.count)
        options = {"num_warps": warps}
    elif along := _along(x, w):
        bk, bn = min(next_power_of_2(k), LONGEST if r <= thin.LINES else thin.PIECE), next_power_of_2(min(columns, max(1, READ // k)))
    else:
        bk, bn = max(8, min(64, next_power_of_2(k))), thin.across(columns, batch.count)
    launch(wrap_triton(batched_lines_kernel), (batch.count * cdiv(columns, bn),), *tensors, c, x.shape[0], columns, k, m * n, batch.inner, *steps[0], *x.stride(), *steps[1], *w.stride(), *out,
           R=r, BN=bn, BK=bk, ALONG=along, **options)
    return True


def _lines_on_gpu(x: torch.Tensor, w: torch.Tensor) -> int:
    """As how many lines x goes with w on a GPU, 0 where it does not. us of an H200 by lines, by tiles and torch's (docs/performance/gpu-products.md): 128 of 1x64 by 64x1024 transposed in fp16 4.0, 7.6, 7.9,
    in fp32 5.8, 43.7, 15.6, 4x64 5.9, 7.8, 8.2 and 8.0, 44.3, 34.2; 128 of 1x1024 by 1024x64 6.0, 6.0, 4.7 and 6.0, 15.4, 7.4, 4x1024 9.3, 6.0, 4.8 and 10.5, 16.5, 17.2."""
    m = x.shape[0]
    return m if m <= thin.LINES and (w.stride(0) == 1 or w.stride(1) == 1 and (m == 1 or w.element_size() > 2)) else 0


def _tile_of_lines_on_gpu(lines: int, columns: int, k: int, along: bool, count: int) -> tuple[bool, int, int, int]:
    """(ALONG, BN, BK, warps) of so many products on a GPU: two programs a multiprocessor at least, if there are columns for them."""
    bn = max(16, min(128, next_power_of_2(count * columns // (2 * multiprocessors())), next_power_of_2(columns)))
    read = (4096 if along else 8192) // (1 if lines == 1 else 2)
    return along, bn, max(16, min(256, read // bn, next_power_of_2(k))), 4 if lines == 1 else 2


def _along(x: torch.Tensor, w: torch.Tensor) -> bool:
    """Do vectors go along K, which both lie along: where w has no others, or fewer columns than fill one?"""
    return w.stride(0) == x.stride(1) == 1 and (w.stride(1) != 1 or w.shape[1] < WIDE)


def _lines(x: torch.Tensor, w: torch.Tensor) -> int:
    """As how many lines x goes with w as it lies, a vector at a time; 0 where it does not. us of 512 products in fp32 on one thread of an Ice Lake, by lines and by tiles: 1x64x64 443, 565, 4x64x64 559, 525,
    2x64 by 64x32 transposed 280, 461, 1x64 by 64x16 transposed 155, 398; 16 of 4x1024x256 1,480, 1,020. In bf16, which is widened there: 4x64x64 459, 731."""
    (m, k), n, pairs = x.shape, w.shape[1], x.dtype == torch.bfloat16 and by_pairs()
    if w.stride(1) == 1 and not _along(x, w):
        most = thin.LINES if x.dtype.itemsize == 2 and not pairs or not targets.native().few_rows else 1
        return m if m == 1 or m <= most and n >= WIDE else 0
    if w.stride(0) != 1 or x.stride(1) != 1:
        return 0
    if m <= (1 if pairs else thin.LINES):
        return m
    return thin.EIGHT if m <= thin.EIGHT <= n and thin.is_long(x, k) else 0
