"""batched_matmul(a, b, s)[i] = s a[i] b[i]: what `vmap` makes of products of two batches with a factor (`batching.py`)."""

from __future__ import annotations

import torch

from . import autocast, batches, batching
from .autograd import added
from .checks import FLOATS, check
from .layout import roomy, unexpanded
from .tiles import tile_for
from .register import register


def _batched_matmul_body(a: torch.Tensor, b: torch.Tensor, s: float) -> torch.Tensor:
    """a: B x M x K, b: B x K x N, any strides. Only rules call it, with sizes that fit."""
    check("batched_matmul", FLOATS, a=a, b=b)
    (batch, m, k), n = a.shape, b.shape[2]
    if k == 0:
        return torch.zeros((batch, m, n), dtype=a.dtype, device=a.device)
    c = roomy(torch.empty((batch, m, n), dtype=a.dtype, device=a.device))
    if c.numel():
        batches.product(a, b, c, tile_for, s)
    return c


_batched_matmul = register("batched_matmul", _batched_matmul_body, *batches.KERNELS)


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
