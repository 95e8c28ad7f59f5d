"""Kernels of products of a matrix and few lines, on a CPU: every element of the matrix is loaded once, for all of them."""

from __future__ import annotations

import triton
import triton.language as tl

from .grids import widened


@triton.jit
def _line(x_ptr, ks, inside, stride, DIM: tl.constexpr, ACC: tl.constexpr):
    return tl.expand_dims(tl.load(x_ptr + ks.to(tl.int64) * stride, mask=inside, other=0.0).to(ACC), DIM)


@triton.jit
def _add2(a0, a1, b0, b1):
    return a0 + b0, a1 + b1


@triton.jit
def _add3(a0, a1, a2, b0, b1, b2):
    return a0 + b0, a1 + b1, a2 + b2


@triton.jit
def _add4(a0, a1, a2, a3, b0, b1, b2, b3):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3


@triton.jit
def sums_of_lines(block, x_ptr, b_ptr, out_ptr, n, k, stride_xr, stride_xk, stride_bk, stride_bn, stride_or, stride_on, R: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                  ALONG: tl.constexpr):
    """out[r, j] = sum over i of x[r, i] b[i, j] for r < R <= 4 and the block-th BN columns j. ALONG: b is contiguous along i, else along j. Every element of b is loaded once, for all lines (one reduction
    of several sums)."""
    ACC: tl.constexpr = tl.float64 if b_ptr.dtype.element_ty == tl.float64 else tl.float32
    DIM: tl.constexpr = 1 if ALONG else 0  # where i is in a tile of b
    cols = widened(block, n) * BN + tl.arange(0, BN)
    ks = tl.arange(0, BK)
    ptrs = b_ptr + tl.expand_dims(cols.to(tl.int64) * stride_bn, DIM) + tl.expand_dims(ks.to(tl.int64) * stride_bk, 1 - DIM)
    step = tl.cast(stride_xr, tl.int64)
    acc0 = tl.zeros((BN,), ACC)
    acc1 = acc0
    acc2 = acc0
    acc3 = acc0
    for start in range(0, k, BK):
        inside = ks < k - start
        xs = x_ptr + start.to(tl.int64) * stride_xk
        b = tl.load(ptrs, mask=tl.expand_dims(inside, 1 - DIM) & tl.expand_dims(cols < n, DIM), other=0.0).to(ACC)
        x0 = _line(xs, ks, inside, stride_xk, 1 - DIM, ACC)
        if R == 1:
            acc0 += tl.sum(x0 * b, DIM)
        else:
            x1 = _line(xs + step, ks, inside, stride_xk, 1 - DIM, ACC)
            if R == 2:
                sums = tl.reduce((x0 * b, x1 * b), DIM, _add2)
            else:
                x2 = _line(xs + 2 * step, ks, inside, stride_xk, 1 - DIM, ACC)
                if R == 3:
                    sums = tl.reduce((x0 * b, x1 * b, x2 * b), DIM, _add3)
                else:
                    x3 = _line(xs + 3 * step, ks, inside, stride_xk, 1 - DIM, ACC)
                    sums = tl.reduce((x0 * b, x1 * b, x2 * b, x3 * b), DIM, _add4)
                    acc3 += sums[3]
                acc2 += sums[2]
            acc0 += sums[0]
            acc1 += sums[1]
        ptrs += BK * stride_bk
    out = out_ptr + cols.to(tl.int64) * stride_on
    tl.store(out, acc0.to(out_ptr.dtype.element_ty), mask=cols < n)
    if R > 1:
        tl.store(out + stride_or, acc1.to(out_ptr.dtype.element_ty), mask=cols < n)
    if R > 2:
        tl.store(out + 2 * stride_or, acc2.to(out_ptr.dtype.element_ty), mask=cols < n)
    if R > 3:
        tl.store(out + 3 * stride_or, acc3.to(out_ptr.dtype.element_ty), mask=cols < n)


@triton.jit
def lines_kernel(x_ptr, b_ptr, out_ptr, n, k, stride_xr, stride_xk, stride_bk, stride_bn, stride_or, stride_on, terms, plane, R: tl.constexpr, BN: tl.constexpr,
                 BK: tl.constexpr, ALONG: tl.constexpr, SHARED: tl.constexpr):
    """out[share, r, j] = sum over a share's `terms` i of x[r, i] b[i, j] for r < R <= 4; `plane` elements from one share to the next. ALONG: as of `sums_of_lines`. SHARED: K is divided. Grid: columns
    by BN of every share."""
    block = tl.program_id(0)
    if SHARED:
        blocks = tl.cdiv(n, BN)
        share = block // blocks
        block = block % blocks
        first = share.to(tl.int64) * terms
        x_ptr += first * stride_xk
        b_ptr += first * stride_bk
        out_ptr += share.to(tl.int64) * plane
        k = tl.minimum(k - share * terms, terms)  # which has the bits of k
    sums_of_lines(block, x_ptr, b_ptr, out_ptr, n, k, stride_xr, stride_xk, stride_bk, stride_bn, stride_or, stride_on, R, BN, BK, ALONG)


@triton.jit
def _add8(a0, a1, a2, a3, a4, a5, a6, a7, b0, b1, b2, b3, b4, b5, b6, b7):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4, a5 + b5, a6 + b6, a7 + b7


@triton.jit
def sums_of_eight_lines(block, x_ptr, b_ptr, out_ptr, m, n, k, stride_xr, stride_bn, stride_or, stride_on, BN: tl.constexpr, BK: tl.constexpr):
    """out[r, j] = sum over i of x[r, i] b[i, j] for r < m, 4 < m <= 8, and the block-th BN columns j; summed up in fp32, x and b contiguous along i. A line of b is read once, where it lies, for all rows of
    x. Rows that are not there are the last one again: a mask of what is loaded would be asked of every vector."""
    cols = widened(block, n) * BN + tl.arange(0, BN)
    ks = tl.arange(0, BK)
    ptrs = b_ptr + cols.to(tl.int64)[:, None] * stride_bn + ks[None, :]
    acc0 = tl.zeros((BN,), tl.float32)
    acc1, acc2, acc3, acc4, acc5, acc6, acc7 = acc0, acc0, acc0, acc0, acc0, acc0, acc0
    step = tl.cast(stride_xr, tl.int64)
    x5, x6, x7 = tl.minimum(5, m - 1) * step, tl.minimum(6, m - 1) * step, tl.minimum(7, m - 1) * step
    for start in range(0, k, BK):
        inside = ks < k - start
        xs = x_ptr + start
        b = tl.load(ptrs, mask=(cols < n)[:, None] & inside[None, :], other=0.0).to(tl.float32)
        sums = tl.reduce((_line(xs, ks, inside, 1, 0, tl.float32) * b, _line(xs + step, ks, inside, 1, 0, tl.float32) * b,
                          _line(xs + 2 * step, ks, inside, 1, 0, tl.float32) * b, _line(xs + 3 * step, ks, inside, 1, 0, tl.float32) * b,
                          _line(xs + 4 * step, ks, inside, 1, 0, tl.float32) * b, _line(xs + x5, ks, inside, 1, 0, tl.float32) * b,
                          _line(xs + x6, ks, inside, 1, 0, tl.float32) * b, _line(xs + x7, ks, inside, 1, 0, tl.float32) * b), 1, _add8)
        acc0 += sums[0]
        acc1 += sums[1]
        acc2 += sums[2]
        acc3 += sums[3]
        acc4 += sums[4]
        acc5 += sums[5]
        acc6 += sums[6]
        acc7 += sums[7]
        ptrs += BK
    out = out_ptr + cols.to(tl.int64) * stride_on
    there = cols < n
    tl.store(out, acc0.to(out_ptr.dtype.element_ty), mask=there)
    tl.store(out + stride_or, acc1.to(out_ptr.dtype.element_ty), mask=there)
    tl.store(out + 2 * stride_or, acc2.to(out_ptr.dtype.element_ty), mask=there)
    tl.store(out + 3 * stride_or, acc3.to(out_ptr.dtype.element_ty), mask=there)
    tl.store(out + 4 * stride_or, acc4.to(out_ptr.dtype.element_ty), mask=there)
    tl.store(out + 5 * stride_or, acc5.to(out_ptr.dtype.element_ty), mask=there & (m > 5))
    tl.store(out + 6 * stride_or, acc6.to(out_ptr.dtype.element_ty), mask=there & (m > 6))
    tl.store(out + 7 * stride_or, acc7.to(out_ptr.dtype.element_ty), mask=there & (m > 7))


@triton.jit
def eight_lines_kernel(x_ptr, b_ptr, out_ptr, m, n, k, stride_xr, stride_bn, stride_or, stride_on, BN: tl.constexpr, BK: tl.constexpr):
    """`sums_of_eight_lines`. Grid: columns by BN."""
    sums_of_eight_lines(tl.program_id(0), x_ptr, b_ptr, out_ptr, m, n, k, stride_xr, stride_bn, stride_or, stride_on, BN, BK)
