"""Products that tiles do not suit, on a CPU: of a matrix and one to four lines, which take as long as it takes to read the matrix, and of few terms, which take
as long as it takes to write the result. What a tile's product does first, to pack the matrix, reads and writes it once more; what it does last, to carry
accumulators through memory, is more than a product of few terms itself.
"""

from __future__ import annotations

from typing import Callable

import torch
import triton
import triton.language as tl

from ..backends.cpu.llvm import targets
from . import split_k
from .dispatch import launch, wrap_triton
from .lines import eight_lines_kernel, lines_kernel
from .sizes import cdiv, next_power_of_2
from .straight import by_pairs, by_tiles, copied
from .tuning import plainly_here, second_cache, workers


@triton.jit
def _term(a_ptr, b_ptr, rows, cols, m, n, stride_am, stride_bn, ACC: tl.constexpr):
    x = tl.load(a_ptr + rows * stride_am, mask=rows < m, other=0.0).to(ACC)
    y = tl.load(b_ptr + cols * stride_bn, mask=cols < n, other=0.0).to(ACC)
    return x[:, None] * y[None, :]


@triton.jit
def few_terms_kernel(a_ptr, b_ptr, c_ptr, m, n, stride_am, stride_ak, stride_bk, stride_bn, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """c = a @ b of K terms, element by element."""
    ACC: tl.constexpr = tl.float64 if a_ptr.dtype.element_ty == tl.float64 else tl.float32
    tiles = tl.cdiv(n, BN)
    rows = (tl.program_id(0) // tiles).to(tl.int64) * BM + tl.arange(0, BM)
    cols = (tl.program_id(0) % tiles).to(tl.int64) * BN + tl.arange(0, BN)
    acc = _term(a_ptr, b_ptr, rows, cols, m, n, stride_am, stride_bn, ACC)
    for i in tl.static_range(1, K):
        acc += _term(a_ptr + i * stride_ak, b_ptr + i * stride_bk, rows, cols, m, n, stride_am, stride_bn, ACC)
    tl.store(c_ptr + rows[:, None] * n + cols[None, :], acc.to(c_ptr.dtype.element_ty), mask=(rows < m)[:, None] & (cols < n)[None, :])


KERNELS = lines_kernel, eight_lines_kernel, few_terms_kernel  # beside the one for copies, which product_tma.py has as well
#: lines, and terms, up to which a product goes this way (docs/performance/cpu-products.md has what was measured)
LINES, TERMS = 4, 8
#: elements that a program copies of such a line: it is to be copied by all threads
PIECES = 1024
#: lines along K that are multiplied with lines along K, where these have so many elements, in fp32 and what is widened to it: tiles would turn the matrix first (fp32, us on one thread of an Ice Lake, by tiles and by lines: 8x4096x4096
#: 7,955 and 5,661, 5x4096x4096 7,453 and 6,183; MKL takes 2.5 and 1.5 times as long as lines do)
EIGHT, EIGHT_TERMS = 8, 256
#: elements of a line that are read at a time, for eight rows that stay in the first cache
PIECE = 512
#: the same of bf16 that the CPU has instructions to multiply: rows of a where b is larger than the second cache (else one), and terms
LINES_BY_PAIRS, TERMS_BY_PAIRS = 2, 2
#: elements that a program reads of neighbouring lines of a matrix at a time
ACROSS = 4096
#: elements of a line that are a tile's, of one line of x and of several, which are to stay in the first cache (Emerald Rapids, fp32, of MKL's speed by all and by 1,024 of them: 3x4096x4096 transposed on
#: 1, 2, 8 and 16 threads 0.70, 0.75, 0.78, 1.44 and 0.76, 0.80, 1.06, 1.64; 4x4096x4096 0.95, 1.08, 1.25, 2.13 and 1.00, 1.14, 1.75, 2.71), and lines whose sums are a program's
LONGEST, SEVERAL, SUMS = 1 << 16, 1 << 10, 16
#: bytes of a matrix from which on it is divided by rows among threads, and of a thread's part, and rows of a part at least. A part of a row is a piece of a page, of which little is fetched ahead, and
#: columns of rows that lie pages apart share few places of the second cache (Emerald Rapids, one row of fp32, of MKL's speed by columns and by rows: 1024x1024 on 4, 8 and 16 threads 0.52, 0.65, 0.93
#: and 1.06, 1.04, 1.70; 2048x2048 0.87, 0.77, 0.73 and 1.2, 1.0, 1.2; 128x8192 on 8 1.04 and 0.58)
DIVIDED, DIVIDED_EACH, SHARE = 2 << 20, 1 << 18, 64
#: how much of the places that it may take in the second cache a thread's part fills, bytes of a page, and columns of a program, at most and at least, where all of the matrix has room in the threads' second
#: caches: in as few shares as find their places there, for they are to be added up (as above, on 8 threads 1024x1024 in 1, 2, 4 and 8 shares 0.65, 0.92, 1.22, 1.20; 2048x2048 0.73, 0.74, 0.84, 1.40)
FILLED, PAGE, NARROW, LEAST = 0.45, 4096, 256, 32
#: and columns where it has none
WIDE = 1024
#: elements of a program of few terms, and terms times columns where that is more columns: whole rows go by as one stream, as long as their terms stay in the first cache. us of one thread of a Zen 4 into one matrix by
#: 64 x 1024, 16 x 1024, and 64 x 4096: 2048x1x2048 737, 609, 386 (torch.mul 278), 2000x1x2000 638, 496, 339, 2000x3x2000 943, 828, 799 (an Emerald Rapids 12 % less so); of torch's speed 300x5x3000 0.86, 0.67 by rows, 335x8x2472 0.96, 0.66
TERM_ROWS, TERM_COLUMNS, TERM_LINE = 64, 1024, 4096


def takes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Does a @ b go this way?"""
    return _way(a, b) is not None


def _way(a: torch.Tensor, b: torch.Tensor) -> Callable | None:
    """What launches a @ b into its result, if that is for here."""
    (m, k), n = a.shape, b.shape[1]
    if not plainly_here(a, "matmul", m, n, k):
        return None
    pairs = a.dtype == torch.bfloat16 and by_pairs()
    rows = (LINES_BY_PAIRS if b.numel() * b.element_size() > split_k.CACHED else 1) if pairs else LINES
    if m <= rows and _is_read(b):
        return _lines
    if n <= LINES and _is_read(a):
        return _columns
    if is_long(a, k) and a.stride(1) == b.stride(0) == 1:
        if m <= EIGHT <= n:
            return _eight
        if n <= EIGHT <= m:
            return _eight_columns
    return _terms if k <= (TERMS_BY_PAIRS if pairs else TERMS) and b.stride(1) == 1 else None


def is_long(x: torch.Tensor, k: int) -> bool:
    """May eight lines of k terms of x's dtype go side by side, rather than by tiles?"""
    return k >= EIGHT_TERMS and (x.dtype == torch.float32 or x.dtype.itemsize == 2 and not (x.dtype == torch.bfloat16 and by_pairs()) and not by_tiles(x.dtype))


def lines(a: torch.Tensor, b: torch.Tensor) -> int | None:
    """Where a @ b goes this way for its few lines, the dimension along them: 1 of few rows, 0 of few columns; else None."""
    return {_lines: 1, _eight: 1, _columns: 0, _eight_columns: 0}.get(_way(a, b))


def _is_read(x: torch.Tensor) -> bool:
    """Can a matrix be read a vector at a time?"""
    return 1 in x.stride()


def product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor):
    """c = a @ b. a: M x K, b: K x N, of which `takes` is true; c: M x N, contiguous; of few `lines` without gaps, in either order, and of the dtype of sums, too."""
    _way(a, b)(a, b, c)


def lines_each(n: int) -> int:
    """Of how many of n lines along K a program takes the sums: four programs a thread, if there are lines for them."""
    bn = SUMS
    while bn > 1 and cdiv(n, bn) < 4 * workers():
        bn //= 2
    return bn


def across(n: int, matrices: int = 1) -> int:
    """How many neighbours of lines of n, of each of so many matrices, a program takes at a time: as many as there are, but no program for a rest, and one for each thread, of many threads four; two
    lines of the cache at least where threads would be idle."""
    threads = workers() * (4 if workers() > 2 else 1)
    least = 5 if matrices * cdiv(n, 64) < workers() else 6
    return min((1 << i for i in range(least, ACROSS.bit_length())), key=lambda b: (max(matrices * cdiv(n, b), threads) * b, -b))


def _columns(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor):
    _lines(b.T, a.T, c.T)


def _eight_columns(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor):
    _eight(b.T, a.T, c.T)


def _eight(x: torch.Tensor, b: torch.Tensor, out: torch.Tensor):
    (m, k), n = x.shape, b.shape[1]
    bn = lines_each(n)
    launch(wrap_triton(eight_lines_kernel), (cdiv(n, bn),), x, b, out, m, n, k, x.stride(0), b.stride(1), *out.stride(), BN=bn, BK=PIECE)


def _terms(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor):
    (m, k), n = a.shape, b.shape[1]
    bn = min(max(TERM_COLUMNS, TERM_LINE // next_power_of_2(k)), next_power_of_2(n))
    bm = min(TERM_ROWS, next_power_of_2(m))
    while bm > 8 and cdiv(m, bm) * cdiv(n, bn) < 4 * workers():
        bm //= 2
    launch(wrap_triton(few_terms_kernel), (cdiv(m, bm) * cdiv(n, bn),), a, b, c, m, n, *a.stride(), *b.stride(), K=k, BM=bm, BN=bn)


def _lines(x: torch.Tensor, b: torch.Tensor, out: torch.Tensor):
    (r, k), n = x.shape, b.shape[1]
    along, shares = b.stride(1) != 1, 1
    if along and x.stride(1) != 1:  # each of b's lines reads it
        x = copied(x, 1, PIECES)
    if along:
        bn, bk = lines_each(n), next_power_of_2(min(k, LONGEST if r == 1 or k <= 2 * SEVERAL else SEVERAL))
    elif (parts := _divided(r, k, n, b.dtype, workers())) is not None:
        shares, bn = parts
        bk = 8
    else:
        bn = across(n)
        if (way := split_k.of_lines(x, b, cdiv(n, bn))) is not None:
            split_k.product(x, b, out, way)
            return
        # of a matrix larger than the second cache 8 lines at a time, as many as are fetched ahead
        bk = 8 if n * k * b.element_size() > split_k.CACHED else max(8, min(64, next_power_of_2(k)))
    terms = cdiv(cdiv(k, shares), bk) * bk
    shares = cdiv(k, terms)
    sums = split_k.room(out, shares)
    launch(wrap_triton(lines_kernel), (shares * cdiv(n, bn),), x, b, sums, n, k, *x.stride(), *b.stride(), *out.stride(), terms, r * n, R=r, BN=bn, BK=bk, ALONG=along,
           SHARED=shares > 1)
    split_k.add_up(sums, out, shares)


def _divided(r: int, k: int, n: int, dtype: torch.dtype, threads: int) -> tuple[int, int] | None:
    """(shares of K, columns of a program) where threads read some rows of b each, and some columns at most, and not some columns of all of them."""
    size, here = n * k * dtype.itemsize, targets.native()
    if threads < (2 if here.assists else 3) or size < max(DIVIDED, threads * DIVIDED_EACH):
        return None  # a Zen 5 of two threads is 8 to 20 % faster by columns
    if dtype == torch.float64 or k >= 1 << 31 or r > 2 and dtype == torch.float32 and here.few_rows:  # whose shares are fp32; whose terms are counted in 64 bits; whose rows go by `split_k.of_lines`
        return None
    if size > threads * second_cache():
        shares, bn = max(threads, min(4 * threads, k // (2 * SHARE))), min(WIDE, next_power_of_2(n))
    else:
        shares, bn, line = 1, min(NARROW, next_power_of_2(n)), n * dtype.itemsize
        while shares < threads and size / threads > FILLED * second_cache() * min(1, line * shares / threads / min(line, PAGE)):
            shares = min(2 * shares, threads)
        while bn > LEAST and shares * cdiv(n, bn) < threads:
            bn //= 2
    return (shares, bn) if shares > 1 and k >= shares * SHARE else None
