"""What the kernels of products share: the order of their tiles, a tile's accumulator, numbers that have no parts, and how operands are copied."""

from __future__ import annotations

import triton
import triton.language as tl

from .grids import lines_at, widened


@triton.jit
def tile_of_program(pid, m, n, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """(row tile, column tile): GROUP rows of tiles are walked column by column."""
    tiles_m = tl.cdiv(m, BM)
    in_group = GROUP * tl.cdiv(n, BN)
    group = pid // in_group
    size = min(tiles_m - group * GROUP, GROUP)
    return group * GROUP + (pid % in_group) % size, (pid % in_group) // size


@triton.jit
def multiple(number, EVEN: tl.constexpr, AT: tl.constexpr):
    """A kernel's argument, of whose EVEN (`layout.even`) it is the AT-th, for Triton to see what divides it. It looks for 16 itself, and so many numbers have to divide whatever is read 16 bytes at a time."""
    BY: tl.constexpr = 1 << (EVEN >> 2 * AT & 3)
    if BY > 1:
        number = number // BY * BY
    return number


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


#: the bits of 2^-100: of what is smaller the last part would lose bits as a subnormal number
LEAST_HELD = tl.constexpr(0x0D800000)


@triton.jit
def beyond(v, MOST: tl.constexpr):
    """1 where an fp32 number is not for products of its parts, two of TF32 or three of bf16: NaN, infinities, what is at least the number whose bits are MOST, and what
    is below 2^-100, whose last part would lose bits as a subnormal number. int32."""
    size = v.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return ((size != 0) & ((size < LEAST_HELD) | (size >= MOST))).to(tl.int32)


@triton.jit
def three_parts(v):
    """Three numbers of bf16 whose sum an fp32 number is that is not `beyond`, the largest first."""
    first = v.to(tl.bfloat16)
    rest = v - first.to(tl.float32)
    second = rest.to(tl.bfloat16)
    return first, second, (rest - second.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def add_products_of_parts(acc, x1, x2, x3, y1, y2, y3):
    """acc + the six largest products of the parts of x and of y, the smallest first (product_split.py says why)."""
    terms = tl.dot(x3, y1)
    terms = tl.dot(x1, y3, terms)
    terms = tl.dot(x2, y2, terms)
    terms = tl.dot(x2, y1, terms)
    terms = tl.dot(x1, y2, terms)
    return acc + tl.dot(x1, y1, terms)


@triton.jit
def copy_lines(pid, x_ptr, out_ptr, lines, length, stride_line, stride_at, step, BL: tl.constexpr, BC: tl.constexpr, ROOM: tl.constexpr):
    """Copy a tile, the pid-th, of BL lines x BC elements of a matrix to contiguous lines, `step` elements from one to the next. ROOM: `step` is a multiple of these elements, and less than so many more
    than a line; what lies behind lines is written, too, as then 16 bytes are stored at a time."""
    if ROOM > 1:
        step = step // ROOM * ROOM
        _, offs, to, inside = lines_at(pid, lines, length, stride_line, stride_at, step, BL, BC)
        _, _, _, written = lines_at(pid, lines, step, stride_line, stride_at, step, BL, BC)
        tl.store(out_ptr + to, tl.load(x_ptr + offs, mask=inside, other=0), mask=written)
    else:
        _, offs, to, inside = lines_at(pid, lines, length, stride_line, stride_at, step, BL, BC)
        tl.store(out_ptr + to, tl.load(x_ptr + offs, mask=inside), mask=inside)


@triton.jit
def copy_lines_kernel(x_ptr, out_ptr, lines, length, stride_line, stride_at, step, BL: tl.constexpr, BC: tl.constexpr, AT: tl.constexpr = 0, ROOM: tl.constexpr = 1):
    """`copy_lines` of a matrix; AT: the step from element to element, where kernels are made for it. Grid: its tiles."""
    copy_lines(tl.program_id(0), x_ptr, out_ptr, lines, length, stride_line, AT or stride_at, step, BL, BC, ROOM)


@triton.jit
def copy_both_kernel(x_ptr, x_out_ptr, x_lines, x_length, x_stride_line, x_stride_at, x_step, programs, y_ptr, y_out_ptr, y_lines, y_length, y_stride_line,
                      y_stride_at, y_step, BL: tl.constexpr, BC: tl.constexpr, ROOM: tl.constexpr):
    """`copy_lines` of one matrix, by that many `programs`, and of another by the rest."""
    pid = tl.program_id(0)
    if pid < programs:
        copy_lines(pid, x_ptr, x_out_ptr, x_lines, x_length, x_stride_line, x_stride_at, x_step, BL, BC, ROOM)
    else:
        copy_lines(pid - programs, y_ptr, y_out_ptr, y_lines, y_length, y_stride_line, y_stride_at, y_step, BL, BC, ROOM)


@triton.jit
def sum_shares_kernel(shares_ptr, c_ptr, count, shares, AT_ONCE: tl.constexpr, BLOCK: tl.constexpr):
    """c = the sum of several `shares` of `count` numbers, one behind the other, in their order. AT_ONCE are read together. Grid: pieces of BLOCK."""
    at = widened(tl.program_id(0), count) * BLOCK + tl.arange(0, BLOCK)
    share = tl.arange(0, AT_ONCE)
    acc = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, shares, AT_ONCE):
        x = tl.load(shares_ptr + (first + share).to(tl.int64)[:, None] * count + at[None, :], mask=(first + share < shares)[:, None] & (at < count)[None, :],
                    other=0.0)
        acc += tl.sum(x, axis=0)
    tl.store(c_ptr + at, acc.to(c_ptr.dtype.element_ty), mask=at < count)
