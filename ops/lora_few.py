"""`lora_linear` in fp32 on GPUs of compute capability 9.0 where x w is too small for lora_split.py, or of few rows, which take as long as it takes to read w: the
kernels of product_few.py multiply by shares of K, and what adds the shares up adds t b, too.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..backends import cuda
from ..backends.dispatch.cuda_launch import Address, Number
from . import product_few
from .launches import Drawing
from .layout import even, is_read
from .lora_kernels import CLEARED, add_parts, clear, eights, keep_low, keep_sum
from .sizes import cdiv

#: rows, columns of a program of the sum, shares it reads together, and its warps
TILE, AT_ONCE, WARPS = (16, 64), 4, 4
COUNT = 132  # multiprocessors where there is no GPU, an H100's


@triton.jit(do_not_specialize=["done"])
def lora_sum_kernel(shares_ptr, parts_ptr, b_ptr, out_ptr, t_ptr, done_ptr, m, n, r, scale: tl.float64, done, shares, stride_br, stride_bn, BM: tl.constexpr,
                    BN: tl.constexpr, BR: tl.constexpr, AT_ONCE: tl.constexpr, SPLITS: tl.constexpr, BY_EIGHT: tl.constexpr, KEEP: tl.constexpr, DONE: tl.constexpr):
    """out = the sum of so many `shares` of x @ w, one behind the other, + t @ b, t = scale * the sum of the `SPLITS` parts of x @ a. AT_ONCE shares are read
    together. KEEP, DONE, BY_EIGHT: as of `lora_kernel`."""
    r, stride_bn = eights(r, BY_EIGHT & 1), eights(stride_bn, BY_EIGHT & 4)
    clear(done_ptr, done, DONE)
    tiles_n = tl.cdiv(n, BN)
    rows, cols, ranks = tl.program_id(0) // tiles_n * BM + tl.arange(0, BM), tl.program_id(0) % tiles_n * BN + tl.arange(0, BN), tl.arange(0, BR)
    inside = (rows[:, None] < m) & (cols[None, :] < n)
    at = rows.to(tl.int64)[:, None] * n + cols[None, :]
    plane, share = m * tl.cast(n, tl.int64), tl.arange(0, AT_ONCE)
    acc = tl.zeros((BM, BN), tl.float32)
    for first in range(0, shares, AT_ONCE):
        some = tl.load(shares_ptr + (first + share).to(tl.int64)[:, None, None] * plane + at[None, :, :],
                       mask=(first + share < shares)[:, None, None] & inside[None, :, :], other=0.0)
        acc += tl.sum(some, axis=0)
    t = add_parts(tl.zeros((BM, BR), tl.float32), parts_ptr, m, r, rows, ranks, SPLITS, True) * tl.cast(scale, tl.float32)
    if KEEP:
        if tl.program_id(0) % tiles_n == 0:
            keep_low(t, t_ptr, m, r, rows, ranks)
    keep_sum(acc, t, b_ptr, out_ptr, m, n, r, stride_br, stride_bn, rows, cols, ranks, False, "ieee")


KERNELS = (*product_few.KERNELS, lora_sum_kernel)


def fits(x, w) -> bool:
    """Can these matrices' lines be read 16 bytes at a time? x, w: with `shape`, `strides` and `aligned`."""
    return all(is_read(p.strides, p.aligned) for p in (x, w))


def draw(d: Drawing, x, w, b, parts: int, out: int, t: int | None, counters: int | None, done: int, device: int, ranks: dict):
    """Draw out = x w + t b, of matrices (lora_gpu.py) that `fits` says fit. parts: memory of the parts of x a; ranks: the constexprs that say how they lie; t,
    counters, done and device: as of `lora_gpu.draw_product`."""
    (m, k), (r, n) = x.shape, b.shape
    few, large, strides_out = (x, w, (n, 1)) if m <= n else (w.T, x.T, (1, n))
    by = product_few.how(few.shape[0], large.shape[1], k, large.strides[1] != 1, cuda.limits(device)[0] if device >= 0 else COUNT, (4, 4))
    shares = d.piece(by.shares * m * n, x.dtype)
    kernel, programs, consts = by.kernel(few.shape[0], large.shape[1], k, large.strides, even(4, few.shape[0], large.shape[1], k, *few.strides, *large.strides))
    d.launch(kernel, programs, (Address(few.memory), Address(large.memory), Address(shares), few.shape[0], large.shape[1], k, *few.strides, *large.strides, *strides_out,
                                by.terms, m * n), consts, by.warps, by.stages)
    memory = [Address(p) for p in (shares, parts, b.memory, out, out if t is None else t, out if counters is None else counters)]
    d.launch(lora_sum_kernel, cdiv(m, TILE[0]) * cdiv(n, TILE[1]), (*memory, m, n, r, Number(0), done, by.shares, *b.strides),
             dict(BM=TILE[0], BN=TILE[1], AT_ONCE=AT_ONCE, **ranks, KEEP=t is not None, DONE=CLEARED if done else 0), WARPS, 1)
