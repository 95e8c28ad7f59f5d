"""What the kernels of products share: the order of their tiles, and a tile's accumulator."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tile_of_program(pid, m, n, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """(row tile, column tile): GROUP rows of tiles are walked column by column."""
    tiles_m = tl.cdiv(m, BM)
    in_group = GROUP * tl.cdiv(n, BN)
    group = pid // in_group
    size = min(tiles_m - group * GROUP, GROUP)
    return group * GROUP + (pid % in_group) % size, (pid % in_group) // size


@triton.jit
def add_product(acc, a_ptr, b_ptr, m, n, k, stride_am, stride_ak, stride_bk, stride_bn, rows, cols, BK: tl.constexpr):
    """acc + rows x cols of a @ b."""
    ks = tl.arange(0, BK)
    a_ptrs = a_ptr + rows.to(tl.int64)[:, None] * stride_am + ks[None, :] * stride_ak
    b_ptrs = b_ptr + ks[:, None] * stride_bk + cols.to(tl.int64)[None, :] * stride_bn
    for start in range(0, k, BK):
        inside = k - start
        a = tl.load(a_ptrs, mask=(rows[:, None] < m) & (ks[None, :] < inside), other=0.0)
        b = tl.load(b_ptrs, mask=(ks[:, None] < inside) & (cols[None, :] < n), other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee", out_dtype=acc.dtype)
        a_ptrs += BK * stride_ak
        b_ptrs += BK * stride_bk
    return acc


@triton.jit
def product_tile(a_ptr, b_ptr, m, n, k, stride_am, stride_ak, stride_bk, stride_bn, rows, cols, BK: tl.constexpr,
                 ACC: tl.constexpr):
    """The accumulator of rows x cols of a @ b."""
    acc = tl.zeros((rows.shape[0], cols.shape[0]), dtype=ACC)
    return add_product(acc, a_ptr, b_ptr, m, n, k, stride_am, stride_ak, stride_bk, stride_bn, rows, cols, BK)
