"""x w + t b with t = s x a by two kernels for any device, of numbers as they are: the CPU's, and on GPUs what is small in fp32 or lies badly."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..backends.dispatch.cuda_launch import Address, Number
from .dispatch import launch, wrap_triton
from .launches import Drawing
from .layout import near
from .lora_kernels import CLEARED, clear
from .tiles import SMALLEST, gpu_tile, tile_for
from .product import add_product, product_tile, tile_of_program
from .sizes import cdiv, known, next_power_of_2, planned


@triton.jit
def scaled_matmul_kernel(x_ptr, a_ptr, t_ptr, m, r, k, scale: tl.float64, stride_xm, stride_xk, stride_ak, stride_ar, BM: tl.constexpr,
                         BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    """t = scale * x @ a."""
    ACC: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    tile_m, tile_r = tile_of_program(tl.program_id(0), m, r, BM, BN, GROUP)
    rows = tile_m * BM + tl.arange(0, BM)
    ranks = tile_r * BN + tl.arange(0, BN)
    acc = product_tile(x_ptr, a_ptr, m, r, k, stride_xm, stride_xk, stride_ak, stride_ar, rows, ranks, BK, ACC)
    out = t_ptr + rows.to(tl.int64)[:, None] * r + ranks[None, :]
    tl.store(out, (acc * tl.cast(scale, ACC)).to(t_ptr.dtype.element_ty), mask=(rows < m)[:, None] & (ranks < r)[None, :])


@triton.jit
def sum_of_matmuls_kernel(x_ptr, w_ptr, t_ptr, b_ptr, out_ptr, m, n, k, r, stride_xm, stride_xk, stride_wk, stride_wn, stride_tm, stride_tr,
                          stride_br, stride_bn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr, ONCE: tl.constexpr,
                          GROUP: tl.constexpr):
    """out = x @ w + t @ b. ONCE: BR holds all of r, so there is no loop, which would copy the accumulators to its own."""
    ACC: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    tile_m, tile_n = tile_of_program(tl.program_id(0), m, n, BM, BN, GROUP)
    rows = tile_m * BM + tl.arange(0, BM)
    cols = tile_n * BN + tl.arange(0, BN)
    acc = product_tile(x_ptr, w_ptr, m, n, k, stride_xm, stride_xk, stride_wk, stride_wn, rows, cols, BK, ACC)
    if ONCE:
        ranks = tl.arange(0, BR)
        t_ptrs = t_ptr + rows.to(tl.int64)[:, None] * stride_tm + ranks[None, :] * stride_tr
        b_ptrs = b_ptr + ranks[:, None] * stride_br + cols.to(tl.int64)[None, :] * stride_bn
        t = tl.load(t_ptrs, mask=(rows[:, None] < m) & (ranks[None, :] < r), other=0.0)
        b = tl.load(b_ptrs, mask=(ranks[:, None] < r) & (cols[None, :] < n), other=0.0)
        acc = tl.dot(t, b, acc, input_precision="ieee", out_dtype=ACC)
    else:
        acc = add_product(acc, t_ptr, b_ptr, m, n, r, stride_tm, stride_tr, stride_br, stride_bn, rows, cols, BR)
    out = out_ptr + rows.to(tl.int64)[:, None] * n + cols[None, :]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=(rows[:, None] < m) & (cols[None, :] < n))


def scaled(x: torch.Tensor, a: torch.Tensor, s: float) -> torch.Tensor:
    """s * x @ a, of matrices none of whose sizes is 0."""
    (m, k), r = x.shape, a.shape[1]
    x, a = near(x, 1), near(a, 0)
    t = torch.empty((m, r), dtype=x.dtype, device=x.device)
    tile = tile_for(x, a)
    if x.device.type != "cuda":  # whole vectors for pairs of bf16, which have no others, and panels that every target packs by vectors
        tile = {**tile, "BN": max(16 if x.element_size() == 2 else 32, tile["BN"])}
    launch(wrap_triton(scaled_matmul_kernel), (cdiv(m, tile["BM"]) * cdiv(r, tile["BN"]),), x, a, t, m, r, k, s,
           x.stride(0), x.stride(1), a.stride(0), a.stride(1), **tile)
    return t


def summed(x: torch.Tensor, w: torch.Tensor, t: torch.Tensor, b: torch.Tensor, out: torch.Tensor):
    """out = x @ w + t @ b, of matrices none of whose sizes is 0."""
    (m, k), (r, n) = x.shape, b.shape
    x, w, t, b = near(x, 1), near(w, 0), near(t, 1), near(b, 0)
    tile, plan = tile_for(x, w), planned(r)
    low = SMALLEST["cuda" if x.device.type == "cuda" else "cpu"]
    ranks = tile["BK"] if plan is None else min(tile["BK"], max(low, next_power_of_2(*plan)))
    launch(wrap_triton(sum_of_matmuls_kernel), (cdiv(m, tile["BM"]) * cdiv(n, tile["BN"]),), x, w, t, b, out, m, n, k, r,
           x.stride(0), x.stride(1), w.stride(0), w.stride(1), t.stride(0), t.stride(1), b.stride(0), b.stride(1), BR=ranks,
           ONCE=known(r) and r <= ranks, **tile)


@triton.jit(do_not_specialize=["done"])
def clear_kernel(done_ptr, done, DONE: tl.constexpr):
    clear(done_ptr, done, DONE)


KERNELS = (scaled_matmul_kernel, sum_of_matmuls_kernel, clear_kernel)


def draw(d: Drawing, x, w, a, b, out: int, t: int | None, counters: int | None, done: int):
    """Draw out = x w + t b with t = s x a on a GPU, of fp32 matrices (lora_gpu.py). t, counters, done: as of `lora_gpu.draw_product`."""
    (m, k), (r, n) = x.shape, b.shape
    low = d.piece(m * r, x.dtype) if t is None else t
    for_low, tile = gpu_tile(x.dtype, m, r, k), gpu_tile(x.dtype, m, n, k)
    d.launch(scaled_matmul_kernel, cdiv(m, for_low["BM"]) * cdiv(r, for_low["BN"]),
             (*map(Address, (x.memory, a.memory, low)), m, r, k, Number(0), *x.strides, *a.strides), *_split(for_low))
    ranks = min(tile["BK"], max(SMALLEST["cuda"], next_power_of_2(r)))
    d.launch(sum_of_matmuls_kernel, cdiv(m, tile["BM"]) * cdiv(n, tile["BN"]),
             (*map(Address, (x.memory, w.memory, low, b.memory, out)), m, n, k, r, *x.strides, *w.strides, r, 1, *b.strides),
             *_split({**tile, "BR": ranks, "ONCE": r <= ranks}))
    if done:
        d.launch(clear_kernel, 1, (Address(counters), done), dict(DONE=CLEARED), 4, 1)


def _split(tile: dict) -> tuple[dict, int, int]:
    """(a kernel's constexprs, warps, stages)."""
    return {name: value for name, value in tile.items() if name.isupper()}, tile["num_warps"], tile["num_stages"]
