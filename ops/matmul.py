"""matmul(a, b)[i, j] = sum over k of a[i, k] b[k, j].

One kernel, tiles by table. Products are accumulated in fp32 (fp64 for fp64); fp32 operands are multiplied as fp32 (no
TF32). Neighbouring programs share rows of a and columns of b, so that caches serve both.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from .common import (FLOATS, Case, Op, cdiv, check, check_product, check_tensors, direct, known, launch, next_power_of_2,
                     register, roomy, traffic, watched, wrap_triton)


def reference(a, b):
    return a @ b


@triton.jit
def tile_of_program(pid, m, n, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """(row tile, column tile): GROUP rows of tiles are walked column by column."""
    tiles_m = tl.cdiv(m, BM)
    in_group = GROUP * tl.cdiv(n, BN)
    group = pid // in_group
    size = min(tiles_m - group * GROUP, GROUP)
    return group * GROUP + (pid % in_group) % size, (pid % in_group) // size


@triton.jit
def product_tile(a_ptr, b_ptr, m, n, k, stride_am, stride_ak, stride_bk, stride_bn, rows, cols, BK: tl.constexpr,
                 ACC: tl.constexpr):
    """The accumulator of rows x cols of a @ b."""
    ks = tl.arange(0, BK)
    a_ptrs = a_ptr + rows.to(tl.int64)[:, None] * stride_am + ks[None, :] * stride_ak
    b_ptrs = b_ptr + ks[:, None] * stride_bk + cols.to(tl.int64)[None, :] * stride_bn
    acc = tl.zeros((rows.shape[0], cols.shape[0]), dtype=ACC)
    for start in range(0, k, BK):
        inside = k - start
        a = tl.load(a_ptrs, mask=(rows[:, None] < m) & (ks[None, :] < inside), other=0.0)
        b = tl.load(b_ptrs, mask=(ks[:, None] < inside) & (cols[None, :] < n), other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee", out_dtype=ACC)
        a_ptrs += BK * stride_ak
        b_ptrs += BK * stride_bk
    return acc


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, m, n, k, stride_am, stride_ak, stride_bk, stride_bn, BM: tl.constexpr,
                  BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    ACC: tl.constexpr = tl.float64 if a_ptr.dtype.element_ty == tl.float64 else tl.float32
    tile_m, tile_n = tile_of_program(tl.program_id(0), m, n, BM, BN, GROUP)
    rows = tile_m * BM + tl.arange(0, BM)
    cols = tile_n * BN + tl.arange(0, BN)
    acc = product_tile(a_ptr, b_ptr, m, n, k, stride_am, stride_ak, stride_bk, stride_bn, rows, cols, BK, ACC)
    out = c_ptr + rows.to(tl.int64)[:, None] * n + cols[None, :]
    tl.store(out, acc.to(c_ptr.dtype.element_ty), mask=(rows[:, None] < m) & (cols[None, :] < n))


CASES = (Case(((128, 128), (128, 128))), Case(((256, 256), (256, 256))), Case(((512, 512), (512, 512))),
         Case(((1024, 1024), (1024, 1024))), Case(((512, 512), (512, 512)), transposed=(1,)),
         Case(((333, 257), (257, 511))))

#: tiles by preference, largest first: (BM, BN, BK). A large tile packs each operand less often, a small one
#: wastes less at the edges and leaves every thread some
TILES = {"cpu": ((512, 128, 256), (256, 256, 256), (128, 256, 256), (256, 128, 256), (128, 128, 256), (64, 128, 256),
                 (64, 64, 256), (32, 64, 256), (16, 64, 256)),
         "cuda": ((128, 128, 32),)}
EXTRA = {"cpu": {"GROUP": 4}, "cuda": {"GROUP": 8, "num_warps": 8}}
SMALLEST = {"cpu": 8, "cuda": 16}


def nbytes(a, b):
    return traffic(a, b) + a.shape[0] * b.shape[1] * a.element_size()


def flops(a, b):
    return 2 * a.shape[0] * a.shape[1] * b.shape[1]


def tile_for(a: torch.Tensor, b: torch.Tensor) -> dict:
    """The table's tile for the matrices at hand."""
    cpu = a.device.type != "cuda"
    if not known(*a.shape, *b.shape):
        return {"BM": 128, "BN": 128, "BK": 32, **EXTRA["cpu" if cpu else "cuda"]}
    return _tile(cpu, torch.get_num_threads() if cpu else 1, a.shape[0], b.shape[1], a.shape[1],
                 a.dtype == torch.float64)


@functools.lru_cache(maxsize=1024)
def _tile(cpu: bool, workers: int, m: int, n: int, k: int, double: bool) -> dict:
    device = "cpu" if cpu else "cuda"

    def cost(tile):
        # Time, roughly: what the busiest thread multiplies (edges included), and what is packed for it.
        bm, bn, _ = tile
        return cdiv(cdiv(m, bm) * cdiv(n, bn), workers) * bm * bn * (1 + 4 / bm + 8 / bn)

    low = SMALLEST[device]
    bm, bn, bk = (min(t, max(low, next_power_of_2(size))) for t, size in zip(min(TILES[device], key=cost), (m, n, k)))
    if double:
        bm, bn, bk = min(bm, 64), min(bn, 64), min(bk, 32)
    return {"BM": bm, "BN": bn, "BK": bk, **EXTRA[device]}


def _matmul_body(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    check("matmul", FLOATS, a=a, b=b)
    check_product("matmul", a, b)
    (m, k), n = a.shape, b.shape[1]
    if k == 0:
        return torch.zeros((m, n), dtype=a.dtype, device=a.device)
    c = roomy(torch.empty((m, n), dtype=a.dtype, device=a.device))
    if m and n:
        t = tile_for(a, b)
        launch(wrap_triton(matmul_kernel), (cdiv(m, t["BM"]) * cdiv(n, t["BN"]),),
               a, b, c, m, n, k, a.stride(0), a.stride(1), b.stride(0), b.stride(1), **t)
    return c


_matmul = register("matmul", _matmul_body, matmul_kernel)


def _setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _backward(ctx, grad):
    a, b = ctx.saved_tensors
    da = torch.ops.triport.matmul(grad, b.T) if ctx.needs_input_grad[0] else None
    db = torch.ops.triport.matmul(a.T, grad) if ctx.needs_input_grad[1] else None
    return da, db


_matmul.register_autograd(_backward, setup_context=_setup)


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b. a: M x K, b: K x N, any strides, both fp32, fp16, bf16 or fp64. Returns M x N, contiguous, of that dtype.

    Raises `ArgumentError` for shapes that do not fit, other dtypes and mixed devices."""
    if watched(a, b):
        check_tensors("matmul", a=a, b=b)
        return torch.ops.triport.matmul(a, b)
    return direct(_matmul_body, (a, b))


OP = Op("matmul", matmul, torch.matmul, CASES, reference, nbytes, flops, ("fp32", "fp16", "bf16"))
