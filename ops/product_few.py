"""Products on GPUs of compute capability 9.0 of few rows or columns, which take as long as it takes to read the other matrix, and of few tiles: in fp32 where product_split.py has too little to do,
in 16 bits where product_tma.py would copy the large matrix first. K is shared out to as many programs as the GPU has room for; a second kernel adds the shares up.

Up to LINES rows go by multiply-adds. More go by tensor cores, fp32 as in product_split.py, each number as the sum of three of bf16; but numbers are split in registers,
where they are multiplied, instead of by a kernel of its own: the large matrix is read once. It is computed transposed, that is with few columns, since tensor
cores take few columns, not few rows, and the factor that has many lines from registers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl

from ..backends import cuda
from ..backends.of_torch import FakeTensor
from . import product_split, tuning
from .dispatch import launch, traced
from .layout import at_a_time, even
from .product import LEAST_HELD, add_products_of_parts, multiple, three_parts
from .product_tma import COUNTED, add_up, in_shares, is_described
from .sizes import cdiv, known, next_power_of_2

if TYPE_CHECKING:
    from . import product_pace

#: rows up to which multiply-adds keep up with memory
LINES = 4
#: how one row is multiplied so, and how more are, by whether the matrix's lines run along K: (BN, BK, stages, programs of a multiprocessor), the fastest of seven on an H100
PIECE = {False: ((64, 64, 4, 2), (256, 16, 4, 2)), True: ((8, 256, 4, 2), (16, 128, 4, 2))}
#: the same where lines do not begin at multiples of 16 bytes, the fastest of 42 on an H200. Numbers are read one by one there, and fetched ahead so they take many times as long:
#: 1x7176x1838 136 us by PIECE, 17 (torch 20)
PIECE_OF_NUMBERS = {False: ((128, 32, 1, 4), (512, 8, 1, 4)), True: ((4, 512, 1, 2), (8, 512, 1, 2))}
WARPS = 4  # of multiply-adds
#: pieces of K that a share of multiply-adds has at least, and the most shares
PIECES, MOST_SHARES = 4, 128
#: terms of a sum from which on a few lines' product goes so, by whether the large matrix's lines run along K (its columns are read one number at a time by pointers), and multiplications from which on
#: it does whatever the terms. us of an H200 by pointers and so: 1x64x64t 4.2, 2.0, 3x384x64t 18, 2.5, 1x256x64 5.2, 2.9, 3x257x65 8.8, 6.7; of an H100 1 x 1024 x 1024 16, 5.6
LEAST_TERMS_OF_LINES, LEAST_LINES = {False: 256, True: 32}, 1 << 17
ROWS = 128  # up to which a product in 16 bits goes so whose softmax follows
MOST = product_split.MOST


@triton.jit
def _pieces(x_ptrs, w_ptrs, inside, rows, cols, ks, m, n):
    """(pieces of w's columns, of x's rows) with their next terms, of which `inside` are left; behind them and outside of the matrices they are 0."""
    w = tl.load(w_ptrs, mask=(cols < n)[:, None] & (ks < inside)[None, :], other=0.0)
    x = tl.load(x_ptrs, mask=(rows < m)[None, :] & (ks < inside)[:, None], other=0.0)
    return w, x


@triton.jit
def _tile(x_ptr, w_ptr, m, n, stride_xm, stride_xk, stride_wk, stride_wn, rows, cols, begin, end, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """The accumulator, transposed, of rows x cols of x @ w by the terms from `begin` to `end`. Where an fp32 number has no three parts (`beyond` of product.py) they are multiplied as they are."""
    ks = tl.arange(0, BK)
    first_w = w_ptr + cols.to(tl.int64)[:, None] * stride_wn + (begin + ks).to(tl.int64)[None, :] * stride_wk
    first_x = x_ptr + rows.to(tl.int64)[None, :] * stride_xm + (begin + ks).to(tl.int64)[:, None] * stride_xk
    step_w, step_x = tl.cast(stride_wk, tl.int64) * BK, tl.cast(stride_xk, tl.int64) * BK
    w_ptrs, x_ptrs = first_w, first_x
    acc = tl.zeros((BN, BM), tl.float32)
    if x_ptr.dtype.element_ty == tl.float32:
        most_w = tl.zeros((BN, BK), tl.uint32)
        least_w = tl.full((BN, BK), 0xFFFFFFFF, tl.uint32)
        most_x = tl.zeros((BK, BM), tl.uint32)
        least_x = tl.full((BK, BM), 0xFFFFFFFF, tl.uint32)
        for at in range(begin, end, BK):
            w, x = _pieces(x_ptrs, w_ptrs, end - at, rows, cols, ks, m, n)
            w_ptrs += step_w
            x_ptrs += step_x
            size_w, size_x = w.to(tl.uint32, bitcast=True) & 0x7FFFFFFF, x.to(tl.uint32, bitcast=True) & 0x7FFFFFFF
            most_w, most_x = tl.maximum(most_w, size_w), tl.maximum(most_x, size_x)
            least_w, least_x = tl.minimum(least_w, size_w - 1), tl.minimum(least_x, size_x - 1)  # of 0 the largest there is
            w1, w2, w3 = three_parts(w)
            x1, x2, x3 = three_parts(x)
            acc = add_products_of_parts(acc, w1, w2, w3, x1, x2, x3)
        most = tl.maximum(tl.max(tl.max(most_w, axis=1), axis=0), tl.max(tl.max(most_x, axis=1), axis=0))
        least = tl.minimum(tl.min(tl.min(least_w, axis=1), axis=0), tl.min(tl.min(least_x, axis=1), axis=0))
        if (most >= MOST) | (least < LEAST_HELD - 1):
            acc = tl.zeros((BN, BM), tl.float32)
            w_ptrs, x_ptrs = first_w, first_x
            for at in range(begin, end, BK):
                w, x = _pieces(x_ptrs, w_ptrs, end - at, rows, cols, ks, m, n)
                w_ptrs += step_w
                x_ptrs += step_x
                acc = tl.dot(w, x, acc, input_precision="ieee")
    else:
        for at in range(begin, end, BK):
            w, x = _pieces(x_ptrs, w_ptrs, end - at, rows, cols, ks, m, n)
            w_ptrs += step_w
            x_ptrs += step_x
            acc = tl.dot(w, x, acc)
    return acc


@triton.jit
def few_rows_kernel(x_ptr, w_ptr, c_ptr, m, n, k, stride_xm, stride_xk, stride_wk, stride_wn, stride_cm, stride_cn, terms, plane, BM: tl.constexpr,
                    BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr):
    """c = x @ w, by shares of `terms` terms of K, `plane` numbers from one's result to the next. EVEN: as of `multiple` (product.py), m, n, k, strides of x, of w. Grid: tiles of rows, of columns, shares."""
    m, n, k = multiple(m, EVEN, 0), multiple(n, EVEN, 1), multiple(k, EVEN, 2)
    stride_xm, stride_xk = multiple(stride_xm, EVEN, 3), multiple(stride_xk, EVEN, 4)
    stride_wk, stride_wn = multiple(stride_wk, EVEN, 5), multiple(stride_wn, EVEN, 6)
    tiles_m, tiles_n = tl.cdiv(m, BM), tl.cdiv(n, BN)
    share, tile = tl.program_id(0) // (tiles_m * tiles_n), tl.program_id(0) % (tiles_m * tiles_n)
    cols = tile // tiles_m * BN + tl.arange(0, BN)
    rows = tile % tiles_m * BM + tl.arange(0, BM)
    begin = share * terms
    acc = _tile(x_ptr, w_ptr, m, n, stride_xm, stride_xk, stride_wk, stride_wn, rows, cols, begin, min(k, begin + terms), BM, BN, BK)
    c_ptrs = c_ptr + tl.cast(share, tl.int64) * plane + rows.to(tl.int64)[None, :] * stride_cm + cols.to(tl.int64)[:, None] * stride_cn
    tl.store(c_ptrs, acc, mask=(rows < m)[None, :] & (cols < n)[:, None])


@triton.jit
def few_batches_kernel(x_ptr, w_ptr, c_ptr, m, n, k, inner, stride_xo, stride_xi, stride_xm, stride_xk, stride_wo, stride_wi, stride_wk, stride_wn, stride_cm, stride_cn, BM: tl.constexpr,
                       BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr):
    """c[i] = x[i] @ w[i] of batches of two dimensions, `inner` the size of the second; the c[i] lie one behind the other. EVEN: as of `multiple` (product.py), m, n, k, strides of x, of w. Grid: tiles of
    rows, of columns, matrices."""
    m, n, k = multiple(m, EVEN, 0), multiple(n, EVEN, 1), multiple(k, EVEN, 2)
    stride_xo, stride_xi, stride_xm, stride_xk = multiple(stride_xo, EVEN, 3), multiple(stride_xi, EVEN, 4), multiple(stride_xm, EVEN, 5), multiple(stride_xk, EVEN, 6)
    stride_wo, stride_wi, stride_wk, stride_wn = multiple(stride_wo, EVEN, 7), multiple(stride_wi, EVEN, 8), multiple(stride_wk, EVEN, 9), multiple(stride_wn, EVEN, 10)
    tiles_m, tiles_n = tl.cdiv(m, BM), tl.cdiv(n, BN)
    i, tile = tl.program_id(0) // (tiles_m * tiles_n), tl.program_id(0) % (tiles_m * tiles_n)
    far, near = (i // inner).to(tl.int64), (i % inner).to(tl.int64)
    cols = tile // tiles_m * BN + tl.arange(0, BN)
    rows = tile % tiles_m * BM + tl.arange(0, BM)
    acc = _tile(x_ptr + far * stride_xo + near * stride_xi, w_ptr + far * stride_wo + near * stride_wi, m, n, stride_xm, stride_xk, stride_wk, stride_wn, rows, cols, 0, k, BM, BN, BK)
    c_ptrs = c_ptr + i.to(tl.int64) * m * n + rows.to(tl.int64)[None, :] * stride_cm + cols.to(tl.int64)[:, None] * stride_cn
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=(rows < m)[None, :] & (cols < n)[:, None])


@triton.jit
def _add(acc, w, x_ptrs, inside, DIM: tl.constexpr):
    return acc + w * tl.expand_dims(tl.load(x_ptrs, mask=inside, other=0.0).to(tl.float32), DIM)


@triton.jit
def few_lines_kernel(x_ptr, w_ptr, c_ptr, m, n, k, stride_xm, stride_xk, stride_wk, stride_wn, stride_cm, stride_cn, terms, plane, R: tl.constexpr,
                     BN: tl.constexpr, BK: tl.constexpr, W_ALONG_K: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr):
    """c = x @ w of up to R <= 4 rows, by multiply-adds; shares and EVEN as of `few_rows_kernel`. W_ALONG_K: w's lines run along K, else along N. Sums stay apart
    for all numbers of a piece of w, so that no thread waits for another before the end. Grid: tiles of columns, shares."""
    DIM: tl.constexpr = 1 if W_ALONG_K else 0  # where K is in a piece of w
    n, k, stride_wk, stride_wn = multiple(n, EVEN, 1), multiple(k, EVEN, 2), multiple(stride_wk, EVEN, 5), multiple(stride_wn, EVEN, 6)
    tiles_n = tl.cdiv(n, BN)
    share = tl.program_id(0) // tiles_n
    cols = tl.program_id(0) % tiles_n * BN + tl.arange(0, BN)
    ks = tl.arange(0, BK)
    begin = share * terms
    end = min(k, begin + terms)
    at = (begin + ks).to(tl.int64)
    w_ptrs = w_ptr + tl.expand_dims(cols.to(tl.int64) * stride_wn, DIM) + tl.expand_dims(at * stride_wk, 1 - DIM)
    x0 = x_ptr + at * stride_xk
    x1 = x0 + tl.cast(stride_xm, tl.int64)
    x2 = x1 + tl.cast(stride_xm, tl.int64)
    x3 = x2 + tl.cast(stride_xm, tl.int64)
    step_w, step_x = tl.cast(stride_wk, tl.int64) * BK, tl.cast(stride_xk, tl.int64) * BK
    acc0 = tl.zeros((BN, BK) if W_ALONG_K else (BK, BN), tl.float32)
    acc1 = acc0
    acc2 = acc0
    acc3 = acc0
    for first in tl.range(begin, end, BK, num_stages=STAGES):
        inside = ks < end - first
        w = tl.load(w_ptrs, mask=tl.expand_dims(cols < n, DIM) & tl.expand_dims(inside, 1 - DIM), other=0.0).to(tl.float32)
        w_ptrs += step_w
        acc0 = _add(acc0, w, x0, inside, 1 - DIM)
        x0 += step_x
        if R > 1:
            acc1 = _add(acc1, w, x1, inside, 1 - DIM)
            x1 += step_x
        if R > 2:
            acc2 = _add(acc2, w, x2, inside, 1 - DIM)
            acc3 = _add(acc3, w, x3, inside & (m > 3), 1 - DIM)
            x2 += step_x
            x3 += step_x
    c_ptrs = c_ptr + tl.cast(share, tl.int64) * plane + cols.to(tl.int64) * stride_cn
    tl.store(c_ptrs, tl.sum(acc0, axis=DIM), mask=cols < n)
    if R > 1:
        tl.store(c_ptrs + stride_cm, tl.sum(acc1, axis=DIM), mask=cols < n)
    if R > 2:
        tl.store(c_ptrs + 2 * tl.cast(stride_cm, tl.int64), tl.sum(acc2, axis=DIM), mask=cols < n)
        tl.store(c_ptrs + 3 * tl.cast(stride_cm, tl.int64), tl.sum(acc3, axis=DIM), mask=(cols < n) & (m > 3))


KERNELS = (few_rows_kernel, few_lines_kernel, few_batches_kernel)


def may(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Can these kernels multiply a and b, on a GPU of compute capability 9.0? What is only traced goes by pointers."""
    if a.device.type != "cuda" or a.dtype not in (torch.float32, torch.float16, torch.bfloat16) or isinstance(a, FakeTensor) or traced():
        return False
    m, n, k = a.shape[0], b.shape[1], a.shape[1]
    if not known(m, n, k) or max(m, n, k) >= COUNTED or not product_split.suits(a.device.index) or tuning.tries("matmul"):
        return False
    x, w = _rows_first(a, b)
    return 1 in w.stride() and (x.shape[0] <= LINES or 1 in x.stride())


def takes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Is a @ b for this file: is it multiplied so in less time than by pointers? What `product_split` takes it does better, and in 16 bits what can be described to the Tensor Memory Accelerator where it
    lies, for all but few rows and columns any copy of it, too."""
    if not may(a, b):
        return False
    (m, k), n, size = a.shape, b.shape[1], a.element_size()
    x, w = _rows_first(a, b)
    if size == 2 and (x.shape[0] > ROWS or is_described(w)):
        return False
    if x.shape[0] <= LINES:  # neighbouring threads read neighbours
        return m * n * k >= LEAST_LINES or k >= LEAST_TERMS_OF_LINES[_runs_along_k(w)]
    return _faster(a, b) is not None


def compared(a: torch.Tensor, b: torch.Tensor, matrices: int = 1) -> tuple[float, float, product_pace.Tile]:
    """(about how many us by pointers, by these kernels, their tile) of so many products like a @ b, of more rows and columns than LINES."""
    from . import product_pace
    (m, k), n, size, count = a.shape, b.shape[1], a.element_size(), cuda.limits(a.device.index)[0]
    x, w = _rows_first(a, b)
    pointers, _ = product_pace.by_pointers(m, n, k, size, b.stride(1) != 1, (at_a_time(a), at_a_time(b)), count, matrices)
    us, tile, _ = product_pace.by_few(x.shape[0], w.shape[1], k, size, (at_a_time(x), at_a_time(w)), count, matrices)
    return pointers, us, tile


def _faster(a: torch.Tensor, b: torch.Tensor, matrices: int = 1) -> product_pace.Tile | None:
    """The tile by which so many products take less time than by pointers, if one does."""
    pointers, us, tile = compared(a, b, matrices)
    return tile if us < pointers else None


def _rows_first(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(the few rows, the large matrix) whose product a @ b is, or is the transpose of."""
    return (a, b) if a.shape[0] <= b.shape[1] else (b.T, a.T)


def _runs_along_k(w: torch.Tensor) -> bool:
    """Do the large matrix's lines run along K, or else along N?"""
    return _along_k(w.shape[1], w.stride())


def _along_k(n: int, strides: tuple) -> bool:
    """A single column's do, whatever the step to the next would be."""
    return strides[1] != 1 or n == 1 and strides[0] == 1


def prepared(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both as they are."""
    return a, b


class How(NamedTuple):
    """bm: rows of a tile, or of all by multiply-adds; so many `shares` of `terms` terms each."""

    bm: int
    bn: int
    bk: int
    warps: int
    stages: int
    shares: int
    terms: int

    @property
    def by_tensor_cores(self) -> bool:
        return self.bm > LINES

    def kernel(self, m: int, n: int, k: int, strides_w: tuple, even: int) -> tuple:
        """(the kernel of m x k rows times k x n, how many programs, its constexprs)."""
        consts = {"BN": self.bn, "BK": self.bk, "EVEN": even}
        if self.by_tensor_cores:
            return few_rows_kernel, cdiv(m, self.bm) * cdiv(n, self.bn) * self.shares, {"BM": self.bm, **consts}
        return few_lines_kernel, cdiv(n, self.bn) * self.shares, {"R": self.bm, "W_ALONG_K": _along_k(n, strides_w), "STAGES": self.stages, **consts}


def how(m: int, n: int, k: int, along_k: bool, count: int, read: tuple[int, int], size: int = 4) -> How:
    """How m <= n rows are multiplied by a matrix whose lines run along K or N, on so many multiprocessors. read: numbers of both that are read at a time (`layout.at_a_time`); size: of a number, in
    bytes."""
    if m <= LINES:
        bn, bk, stages, room = (PIECE if read[1] * size == 16 else PIECE_OF_NUMBERS)[along_k][m > 1]
        bm, warps, tiles = next_power_of_2(m), WARPS, cdiv(n, bn)
        shares = max(1, min(room * count // tiles, k // (PIECES * bk), MOST_SHARES))
    else:
        from . import product_pace
        _, (bm, bn, bk, warps, stages, *_), shares = product_pace.by_few(m, n, k, size, read, count)
    terms = cdiv(cdiv(k, bk), shares) * bk
    return How(bm, bn, bk, warps, stages, cdiv(k, terms), terms)


def product(given: tuple[torch.Tensor, torch.Tensor], c: torch.Tensor, *, programs: int = 0):
    """c = a @ b of what is `prepared`; c: contiguous. programs: on the CPU, for how many multiprocessors."""
    x, w = _rows_first(*given)
    out = c if c.shape[0] == x.shape[0] else c.T
    (m, k), n, along_k = x.shape, w.shape[1], _runs_along_k(w)
    by = how(m, n, k, along_k, programs or cuda.limits(c.device.index)[0], (at_a_time(x), at_a_time(w)), x.element_size())
    to = in_shares(c, by.shares)
    if to is c:
        by = by._replace(shares=1, terms=cdiv(k, by.bk) * by.bk)  # a multiple of 16, which Triton sees
    kernel, programs, consts = by.kernel(m, n, k, w.stride(), even(x.element_size(), m, n, k, *x.stride(), *w.stride()))
    launch(kernel, (programs,), x, w, to, m, n, k, *x.stride(), *w.stride(), *out.stride(), by.terms, c.numel(), **consts, num_warps=by.warps, num_stages=by.stages)
    if by.shares > 1:
        add_up(to, c, by.shares)


def of_batches(a: torch.Tensor, b: torch.Tensor, count: int) -> product_pace.Tile | None:
    """The tile in which so many products like a @ b, the first of them, go together here; None where that takes more time than by pointers."""
    return _faster(a, b, count) if known(count) and may(a, b) and min(a.shape[0], b.shape[1]) > LINES else None


def product_of_batches(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, tile: product_pace.Tile, first: tuple[torch.Tensor, torch.Tensor], count: tuple[int, int], steps: tuple):
    """c = a @ b, batches of (outer, inner) many matrices, of which `first` are the first, in tiles of `of_batches`. steps: of each factor from a matrix to the next, outer and inner; c: contiguous."""
    (m, k), n, strides = first[0].shape, first[1].shape[1], (c.shape[-1], 1)
    (x, w), (xs, ws) = _rows_first(*first), steps
    if x is not first[0]:
        a, b, xs, ws, m, n, strides = b, a, ws, xs, n, m, strides[::-1]
    numbers = m, n, k
    lines = *xs, *x.stride(), *ws, *w.stride()
    launch(few_batches_kernel, (cdiv(m, tile.bm) * cdiv(n, tile.bn) * count[0] * count[1],), a, b, c, *numbers, count[1], *lines, *strides, BM=tile.bm, BN=tile.bn, BK=tile.bk,
           EVEN=even(first[0].element_size(), *numbers, *lines), num_warps=tile.warps, num_stages=tile.stages)
