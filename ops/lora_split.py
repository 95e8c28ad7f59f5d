"""Large products of `lora_linear` in fp32 on GPUs of compute capability 9.0, as products of three parts of bf16 (product_split.py says how and why): x w + t b
is one product of [x t] and [w b], whose planes have rank terms more along K. One kernel splits all four, after x a is known by its parts; where a number is
`beyond`, x w + t b is computed of the operands as they are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..backends import cuda
from ..backends.dispatch.cuda_launch import Address, Described, Number
from .launches import Drawing
from .lora_kernels import CLEARED, add_parts, clear
from .product import add_product, beyond, product_tile, three_parts, tile_of_program
from .product_split import BLOCK, FAR, GROUP, MOST, SPLITTERS, Planes, any_flag, keep_split_product, split_matrix
from .product_tma import keep_product
from .sizes import cdiv, next_power_of_2

ROWS = 64  # of t, and columns of b, that a program splits together
RANKS = 32  # t's columns are filled up to a multiple of this: a piece of K


@triton.jit
def _keep_parts(v, out_ptr, first, second, plane, inside):
    """The three parts of v, a `plane` apart, at first + second; returns where v is `beyond`."""
    out = out_ptr + first.to(tl.int64)[:, None] + second.to(tl.int64)[None, :]
    one, two, three = three_parts(v)
    tl.store(out, one, mask=inside)
    tl.store(out + plane, two, mask=inside)
    tl.store(out + 2 * tl.cast(plane, tl.int64), three, mask=inside)
    return beyond(v, MOST)


@triton.jit(do_not_specialize=["done"])
def lora_split_kernel(x_ptr, w_ptr, b_ptr, parts_ptr, t_ptr, x_out_ptr, w_out_ptr, flags_ptr, done_ptr, m, n, r, scale: tl.float64, done, programs_x,
                      programs_w, programs_t, programs_b, x_lines, x_length, x_step, x_out_lines, x_out_length, x_plane, x_out_step, x_term, x_across, x_filled,
                      w_lines, w_length, w_step, w_out_lines, w_out_length, w_plane, w_out_step, w_term, w_across, w_filled, stride_br, stride_bn,
                      BL: tl.constexpr, BC: tl.constexpr, BT: tl.constexpr, BR: tl.constexpr, SPLITS: tl.constexpr, DONE: tl.constexpr):
    """Split x, w, t = scale * the sum of the `SPLITS` parts of x @ a, which is stored, too, and b; each program sets its flag. After what `Planes.numbers`
    says come elements from term to term, from one of the other dimension to the next, and where t's and b's terms begin."""
    pid = tl.program_id(0)
    clear(done_ptr, done, DONE)
    if pid < programs_x:
        found = split_matrix(x_ptr, x_out_ptr, pid, programs_x, x_lines, x_length, x_step, x_out_lines, x_out_length, x_plane, x_out_step, BL, BC)
    elif pid < programs_x + programs_w:
        found = split_matrix(w_ptr, w_out_ptr, pid - programs_x, programs_w, w_lines, w_length, w_step, w_out_lines, w_out_length, w_plane, w_out_step, BL, BC)
    else:
        ranks, met = tl.arange(0, BR), tl.zeros((BT, BR), tl.int32)
        here = pid - programs_x - programs_w
        if here < programs_t:
            for tile in range(here, tl.cdiv(m, BT), programs_t):
                rows = tile * BT + tl.arange(0, BT)
                t = add_parts(tl.zeros((BT, BR), tl.float32), parts_ptr, m, r, rows, ranks, SPLITS, True) * tl.cast(scale, tl.float32)
                tl.store(t_ptr + rows.to(tl.int64)[:, None] * r + ranks[None, :], t, mask=(rows[:, None] < m) & (ranks[None, :] < r))
                met |= _keep_parts(t, x_out_ptr, rows.to(tl.int64) * x_across, (x_filled + ranks).to(tl.int64) * x_term, x_plane, (rows < m)[:, None])
        else:
            for tile in range(here - programs_t, tl.cdiv(n, BT), programs_b):
                cols = tile * BT + tl.arange(0, BT)
                b = tl.load(b_ptr + cols.to(tl.int64)[:, None] * stride_bn + ranks[None, :] * stride_br, mask=(cols[:, None] < n) & (ranks[None, :] < r), other=0.0)
                met |= _keep_parts(b, w_out_ptr, cols.to(tl.int64) * w_across, (w_filled + ranks).to(tl.int64) * w_term, w_plane, (cols < n)[:, None])
        found = tl.max(tl.max(met, axis=1), axis=0)
    tl.store(flags_ptr + pid, found)


@triton.jit
def lora_split_product_kernel(out_ptr, flags_ptr, x_ptr, w_ptr, t_ptr, b_ptr, x, w, m, n, k, r, planes, flags, stride_xm, stride_xk, stride_wk, stride_wn, stride_br,
                              stride_bn, X_TURNED: tl.constexpr, W_TURNED: tl.constexpr, FLAGS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
                              BK: tl.constexpr, GROUP: tl.constexpr):
    """out = x @ w + t @ b. x, w: descriptors of the split matrices with t's and b's terms, or of their transposes where they are TURNED, `planes` elements along
    K from one plane to the next. flags: so many are read, at most FLAGS; where one is set the operands themselves are multiplied. Any number of programs."""
    if any_flag(flags_ptr, flags, FLAGS):
        tiles_m, tiles_n = tl.cdiv(m, BM), tl.cdiv(n, BN)
        for tile in range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0)):
            tile_m, tile_n = tile_of_program(tile, m, n, BM, BN, GROUP)
            rows, cols = tile_m * BM + tl.arange(0, BM), tile_n * BN + tl.arange(0, BN)
            sure = product_tile(x_ptr, w_ptr, m, n, k, stride_xm, stride_xk, stride_wk, stride_wn, rows, cols, 16, tl.float32)
            sure = add_product(sure, t_ptr, b_ptr, m, n, r, r, 1, stride_br, stride_bn, rows, cols, 16)
            keep_product(sure, out_ptr, out_ptr, m, n, tile_m, tile_n, tiles_m, tiles_n, None, BM, BN, False)
    else:
        keep_split_product(out_ptr, out_ptr, x, w, m, n, planes, X_TURNED, W_TURNED, None, BM, BN, BK, GROUP)


KERNELS = (lora_split_kernel, lora_split_product_kernel)


def fits(x, w) -> bool:
    """Can these matrices be split: has each a contiguous dimension, and lines near enough to one another? x, w: with `shape` and `strides`."""
    return all(1 in p.strides and max(p.strides) < FAR for p in (x, w))


def draw(d: Drawing, x, w, b, parts: int, splits: int, out: int, t: int | None, counters: int | None, done: int, device: int, tile: tuple):
    """Draw out = x w + t b, of matrices (lora_gpu.py) that `fits` says fit. parts: memory of the `splits` parts of x a; t, counters, done and device: as of
    `lora_gpu.draw_product`."""
    (m, k), (r, n) = x.shape, b.shape
    ranks = max(RANKS, next_power_of_2(r))
    px, pw = Planes(x.shape, x.strides, 1, ranks), Planes(w.shape, w.strides, 0, ranks)
    programs = px.programs, pw.programs, min(SPLITTERS // 2, cdiv(m, ROWS)), min(SPLITTERS // 2, cdiv(n, ROWS))
    low = d.piece(m * r, torch.float32) if t is None else t
    planes_x, planes_w = (d.piece(p.made[0] * p.made[1], torch.bfloat16) for p in (px, pw))
    flags = d.piece(sum(programs), torch.int32)
    memory = [Address(p) for p in (x.memory, w.memory, b.memory, parts, low, planes_x, planes_w, flags, out if counters is None else counters)]
    laid = [number for p in (px, pw) for number in (*p.numbers(), p.of_term, p.across, p.filled)]
    d.launch(lora_split_kernel, sum(programs), (*memory, m, n, r, Number(0), done, *programs, *laid, *b.strides),
             dict(BL=BLOCK[0], BC=BLOCK[1], BT=ROWS, BR=ranks, SPLITS=splits, DONE=CLEARED if done else 0), 4, 1)
    bm, bn, bk, warps, stages = tile

    def of(memory, p, across):
        return Described(memory, p.made, (p.made[1], 1), (across, bk) if p.along_k else (bk, across))

    grid = min(cdiv(m, bm) * cdiv(n, bn), cuda.limits(device)[0]) if device >= 0 else 2
    operands = [Address(p) for p in (out, flags, x.memory, w.memory, low, b.memory)]
    d.launch(lora_split_product_kernel, grid, (*operands, of(planes_x, px, bm), of(planes_w, pw, bn), m, n, k, r, px.size, sum(programs), *x.strides, *w.strides,
                                               *b.strides),
             dict(X_TURNED=not px.along_k, W_TURNED=pw.along_k, FLAGS=4 * SPLITTERS, BM=bm, BN=bn, BK=bk, GROUP=GROUP), warps, stages)
