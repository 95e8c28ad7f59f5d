"""matmul_softmax(a, b, dim) = softmax(a @ b, dim): the product and its softmax, fused.

Two kernels. The first multiplies, writes the products where the result will be, and from its accumulators adds one
maximum and one sum of exponentials for every tile and every row (dim -1) or column (dim 0). The second joins those and
normalises in place. Beside the result only those statistics are held: 2 numbers for each 128 products.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch.library import triton_op

from .common import (FLOATS, Case, Op, cdiv, check, check_product, check_tensors, direct, launch, roomy, tiles, traffic,
                     watched, wrap_triton)
from .matmul import product_tile, tile_for, tile_of_program
from ..backends.base import ArgumentError


def reference(a, b, dim=0):
    return torch.softmax(a @ b, dim)


@triton.jit
def product_stats_kernel(a_ptr, b_ptr, c_ptr, max_ptr, sum_ptr, m, n, k, stride_am, stride_ak, stride_bk, stride_bn,
                         AXIS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                         GROUP: tl.constexpr):
    """c = a @ b, and per tile the maximum and sum of exp(c - maximum) along AXIS of c (as it is stored)."""
    ACC: tl.constexpr = tl.float64 if a_ptr.dtype.element_ty == tl.float64 else tl.float32
    tile_m, tile_n = tile_of_program(tl.program_id(0), m, n, BM, BN, GROUP)
    rows = tile_m * BM + tl.arange(0, BM)
    cols = tile_n * BN + tl.arange(0, BN)
    acc = product_tile(a_ptr, b_ptr, m, n, k, stride_am, stride_ak, stride_bk, stride_bn, rows, cols, BK, ACC)
    c = acc.to(c_ptr.dtype.element_ty)
    inside = (rows[:, None] < m) & (cols[None, :] < n)
    tl.store(c_ptr + rows.to(tl.int64)[:, None] * n + cols[None, :], c, mask=inside)
    x = tl.where(inside, c.to(ACC), -float("inf"))
    top = tl.max(x, axis=AXIS)
    base = tl.where(top == -float("inf"), 0.0, top)  # a tile of -inf alone adds nothing
    total = tl.sum(tl.exp(x - tl.expand_dims(base, AXIS)), axis=AXIS)
    if AXIS == 0:
        at = tile_m.to(tl.int64) * n + cols
        tl.store(max_ptr + at, top, mask=cols < n)
        tl.store(sum_ptr + at, total, mask=cols < n)
    else:
        at = tile_n.to(tl.int64) * m + rows
        tl.store(max_ptr + at, top, mask=rows < m)
        tl.store(sum_ptr + at, total, mask=rows < m)


@triton.jit
def normalise_kernel(c_ptr, max_ptr, sum_ptr, m, n, parts, AXIS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """c = exp(c - maximum) / sum, with the statistics of all parts joined."""
    rows = tl.program_id(1) * BM + tl.arange(0, BM)
    cols = tl.program_id(0) * BN + tl.arange(0, BN)
    lane = cols if AXIS == 0 else rows
    count = n if AXIS == 0 else m
    top = tl.load(max_ptr + lane, mask=lane < count, other=0.0)
    total = tl.load(sum_ptr + lane, mask=lane < count, other=1.0)
    for part in range(1, parts):
        at = part.to(tl.int64) * count + lane
        t = tl.load(max_ptr + at, mask=lane < count, other=0.0)
        s = tl.load(sum_ptr + at, mask=lane < count, other=0.0)
        new = tl.maximum(top, t)
        base = tl.where(new == -float("inf"), 0.0, new)
        total = total * tl.exp(top - base) + s * tl.exp(t - base)
        top = new
    inside = (rows[:, None] < m) & (cols[None, :] < n)
    ptrs = c_ptr + rows.to(tl.int64)[:, None] * n + cols[None, :]
    x = tl.load(ptrs, mask=inside, other=0.0)
    scale = 1.0 / total
    y = tl.exp(x.to(top.dtype) - tl.expand_dims(top, AXIS)) * tl.expand_dims(scale, AXIS)
    tl.store(ptrs, y.to(x.dtype), mask=inside)


CASES = tuple(Case(((s, s), (s, s)), {"dim": d}, scale=0.3) for s in (128, 256, 512, 1024) for d in (0, -1)) + (
    Case(((333, 257), (257, 511)), {"dim": 0}, scale=0.3),)
#: tile of the normalising kernel
TILES = {"cpu": {"BM": 64, "BN": 512}, "cuda": {"BM": 16, "BN": 256}}


def nbytes(a, b, dim=0):
    return traffic(a, b) + a.shape[0] * b.shape[1] * a.element_size()


def flops(a, b, dim=0):
    return 2 * a.shape[0] * a.shape[1] * b.shape[1] + 5 * a.shape[0] * b.shape[1]


def _matmul_softmax_body(a: torch.Tensor, b: torch.Tensor, dim: int) -> torch.Tensor:
    check("matmul_softmax", FLOATS, a=a, b=b)
    check_product("matmul_softmax", a, b)
    (m, k), n = a.shape, b.shape[1]
    axis = dim % 2
    if k == 0:
        return torch.full((m, n), 1.0 / max(1, (m, n)[axis]), dtype=a.dtype, device=a.device)
    c = roomy(torch.empty((m, n), dtype=a.dtype, device=a.device))
    if m == 0 or n == 0:
        return c
    t = tile_for(a, b)
    parts = cdiv(m, t["BM"]) if axis == 0 else cdiv(n, t["BN"])
    wide = torch.float64 if a.dtype == torch.float64 else torch.float32
    stats = torch.empty((2, parts, n if axis == 0 else m), dtype=wide, device=a.device)
    second = tiles(TILES, a)
    launch(wrap_triton(product_stats_kernel), (cdiv(m, t["BM"]) * cdiv(n, t["BN"]),),
           a, b, c, stats[0], stats[1], m, n, k, a.stride(0), a.stride(1), b.stride(0), b.stride(1), AXIS=axis, **t)
    launch(wrap_triton(normalise_kernel), (cdiv(n, second["BN"]), cdiv(m, second["BM"])),
           c, stats[0], stats[1], m, n, parts, AXIS=axis, **second)
    return c


_matmul_softmax = triton_op("triport::matmul_softmax", _matmul_softmax_body, mutates_args={})


def _setup(ctx, inputs, output):
    ctx.dim = inputs[2]
    ctx.save_for_backward(inputs[0], inputs[1], output)


def _backward(ctx, grad):
    a, b, y = ctx.saved_tensors
    dz = torch.ops.triport.softmax_backward(grad, y, ctx.dim)
    da = torch.ops.triport.matmul(dz, b.T) if ctx.needs_input_grad[0] else None
    db = torch.ops.triport.matmul(a.T, dz) if ctx.needs_input_grad[1] else None
    return da, db, None


_matmul_softmax.register_autograd(_backward, setup_context=_setup)


def matmul_softmax(a: torch.Tensor, b: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """softmax(a @ b, dim). a: M x K, b: K x N, any strides, both fp32, fp16, bf16 or fp64; dim 0 (each column sums to 1)
    or -1 (each row does). Returns M x N, contiguous, of that dtype.

    Raises `ArgumentError` for shapes that do not fit, other dtypes, dims and mixed devices."""
    check_tensors("matmul_softmax", a=a, b=b)
    if dim not in (0, 1, -1, -2) or isinstance(dim, bool):
        raise ArgumentError(f"triport.matmul_softmax: argument 'dim' is {dim!r}; it takes 0 (columns) or -1 (rows)")
    if watched(a, b):
        return torch.ops.triport.matmul_softmax(a, b, dim)
    return direct(_matmul_softmax_body, a, b, dim)


# Rounding a product of size 15 to the dtype moves its exponential by that error times 15: torch eager has the same.
TOLERANCE = {"fp32": 1e-5, "fp16": 4e-3, "bf16": 3e-2}

OP = Op("matmul_softmax", matmul_softmax, reference, CASES, reference, nbytes, flops, ("fp32", "fp16", "bf16"), TOLERANCE)
