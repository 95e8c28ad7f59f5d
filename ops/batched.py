"""batched_matmul(a, b, s)[i] = s a[i] b[i]: what `vmap` makes of products of two batches (`batching.py`), as the gradients of weights for each sample are."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import autocast, batching
from .autograd import added
from .checks import FLOATS, check
from .dispatch import launch, wrap_triton
from .layout import near, roomy, unexpanded
from .matmul import tile_for
from .product import product_tile, tile_of_program
from .register import register
from .sizes import cdiv


@triton.jit
def batched_matmul_kernel(a_ptr, b_ptr, c_ptr, m, n, k, scale: tl.float64, stride_ai, stride_am, stride_ak, stride_bi, stride_bk, stride_bn,
                          BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    ACC: tl.constexpr = tl.float64 if a_ptr.dtype.element_ty == tl.float64 else tl.float32
    tiles = tl.cdiv(m, BM) * tl.cdiv(n, BN)
    i = (tl.program_id(0) // tiles).to(tl.int64)
    tile_m, tile_n = tile_of_program(tl.program_id(0) % tiles, m, n, BM, BN, GROUP)
    rows = tile_m * BM + tl.arange(0, BM)
    cols = tile_n * BN + tl.arange(0, BN)
    acc = product_tile(a_ptr + i * stride_ai, b_ptr + i * stride_bi, m, n, k, stride_am, stride_ak, stride_bk, stride_bn, rows, cols, BK, ACC)
    out = c_ptr + (i * m + rows.to(tl.int64)[:, None]) * n + cols[None, :]
    tl.store(out, (acc * tl.cast(scale, ACC)).to(c_ptr.dtype.element_ty), mask=(rows[:, None] < m) & (cols[None, :] < n))


def _batched_matmul_body(a: torch.Tensor, b: torch.Tensor, s: float) -> torch.Tensor:
    """a: B x M x K, b: B x K x N, any strides. Only rules call it, with sizes that fit."""
    check("batched_matmul", FLOATS, a=a, b=b)
    (batch, m, k), n = a.shape, b.shape[2]
    if k == 0:
        return torch.zeros((batch, m, n), dtype=a.dtype, device=a.device)
    c = roomy(torch.empty((batch, m, n), dtype=a.dtype, device=a.device))
    if c.numel():
        a, b = near(a, -1), near(b, -2)
        t = tile_for(a[0], b[0])
        launch(wrap_triton(batched_matmul_kernel), (cdiv(m, t["BM"]) * cdiv(n, t["BN"]) * batch,), a, b, c, m, n, k, s, *a.stride(), *b.stride(), **t)
    return c


_batched_matmul = register("batched_matmul", _batched_matmul_body, batched_matmul_kernel)


def _backward(kept, params, grad, needed):
    (a, b), grad = kept, unexpanded(grad)
    product = torch.ops.triport.batched_matmul
    return product(grad, b.mT, *params) if needed[0] else None, product(a.mT, grad, *params) if needed[1] else None


def _jvp(inputs, out, tangents):
    (a, b, s), (da, db) = inputs, tangents
    product = torch.ops.triport.batched_matmul
    return added(None if da is None else product(da, b, s), None if db is None else product(a, db, s))


_batched_matmul.derive(keep=lambda inputs, out: inputs[:2], backward=_backward, jvp=_jvp)
_batched_matmul.batch(batching.batched_product)
_batched_matmul.autocast(autocast.lower)  # which comes behind vmap, on what the rule calls
