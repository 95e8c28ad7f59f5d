"""Ops that communicate themselves, on DTensors: softmax along a sharded dimension, matmul_softmax, and what is changed in place.

Along a sharded dimension every rank has a part of each line. Its maximum and, from the maximum of all, its sum are reduced over the ranks, which is two
numbers a line; the elements stay where they are. A `Partial` placement is how torch.distributed.tensor is told of such a reduction.
"""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from .places import check_in_place


def register():
    """Register the rules below for their ops, and for those that name their backend."""
    for name, rule in RULES.items():
        for op in (name, f"{name}_by"):
            if hasattr(torch.ops.triport, op):
                torch.library.register_torch_dispatch(f"triport::{op}", DTensor, _dispatched(rule))


def _dispatched(rule):
    def dispatched(_, op, types, args, kwargs):
        mesh = next(a.device_mesh for a in args if isinstance(a, DTensor))
        with torch.no_grad():  # autograd has been here
            return rule(op, *(_replicated(a, mesh) if isinstance(a, torch.Tensor) else a for a in args))

    return dispatched


def _replicated(t: torch.Tensor, mesh) -> DTensor:
    """A tensor that is none of the mesh's counts as on every rank; `meet` has seen to it that this was asked for."""
    return t if isinstance(t, DTensor) else DTensor.from_local(t, mesh, [Replicate()] * mesh.ndim, run_check=False)


def _like(local: torch.Tensor, x: DTensor, placements, shape=None) -> DTensor:
    """A DTensor on the mesh of `x`, contiguous, from this rank's part. shape: default that of `x`."""
    shape, strides, n = tuple(x.shape if shape is None else shape), [], 1
    for size in reversed(shape):
        strides.append(n)
        n = n * max(size, 1)
    return DTensor.from_local(local, x.device_mesh, placements, run_check=False, shape=torch.Size(shape), stride=tuple(reversed(strides)))


def _wide(t: torch.Tensor) -> torch.Tensor:
    """`t` in the type that kernels compute in: at least fp32."""
    return t.to(torch.promote_types(t.dtype, torch.float32))


def _outside(x: DTensor) -> bool:
    """Is this rank none of the mesh's? Then it has no part of `x`, and does nothing, as torch's own ops."""
    return x.device_mesh.get_coordinate() is None


def _placed(t: DTensor, placements) -> DTensor:
    """Without a history: autograd has been here, and torch 2.11 cannot forget that a DTensor has one (no strategy for aten.detach_)."""
    return t if tuple(t.placements) == tuple(placements) else t.detach().redistribute(placements=placements)


def _summed(x: DTensor, dim: int) -> DTensor:
    """`x` in shards, or whole. Sums are spread along another dimension than `dim`, if it has one for every rank, else known to all; what is neither sum nor
    plain shard, as the strided ones that a view leaves, is known to all."""
    if all(p.is_shard() or p.is_replicate() for p in x.placements):
        return x
    places = [p if p.is_shard() or p.is_partial() else Replicate() for p in x.placements]
    free = [d for d in range(x.ndim) if d != dim and not any(p.is_shard(d) for p in places)]
    for k, p in enumerate(places):
        if p.is_partial():
            d = next((d for d in free if x.shape[d] >= x.device_mesh.size(k)), None)
            places[k] = Replicate() if d is None else Shard(d)
            free = [f for f in free if f != d]
    return _placed(x, places)


def _spread(x: DTensor, dim: int) -> bool:
    """Are there ranks that have parts of one line?"""
    return any(p.is_shard(dim) and x.device_mesh.size(k) > 1 for k, p in enumerate(x.placements))


def _over_ranks(part: torch.Tensor, x: DTensor, dim: int, how: str) -> torch.Tensor:
    """Parts of lines of `x` along `dim`, 1 long there, reduced by "max" or "sum" over the ranks that the line is sharded on."""
    shape = [1 if d == dim else size for d, size in enumerate(x.shape)]
    places = [Partial(how) if p.is_shard(dim) else p for p in x.placements]
    return _like(part, x, places, shape).redistribute(placements=[Replicate() if p.is_shard(dim) else p for p in x.placements]).to_local()


def _softmax(op, x: DTensor, dim: int, *backend) -> DTensor:
    dim %= max(x.ndim, 1)
    x = _summed(x, dim)
    part = x.to_local()
    if _outside(x):
        return _like(part, x, x.placements)
    if not _spread(x, dim):
        return _like(op(part, dim, *backend), x, x.placements)
    t = _wide(part)
    top = t.amax(dim, keepdim=True) if part.shape[dim] else t.new_full([1 if d == dim else s for d, s in enumerate(t.shape)], -torch.inf)
    e = (t - _over_ranks(top, x, dim, "max")).exp()
    total = _over_ranks(e.sum(dim, keepdim=True), x, dim, "sum")
    return _like((e / total).to(part.dtype).contiguous(), x, x.placements)


def _softmax_backward(op, grad: DTensor, y: DTensor, dim: int, *backend) -> DTensor:
    dim %= max(y.ndim, 1)
    y = _summed(y, dim)
    grad = _placed(grad, y.placements)
    g, part = grad.to_local(), y.to_local()
    if _outside(y):
        return _like(part, y, y.placements)
    if not _spread(y, dim):
        return _like(op(g, part, dim, *backend), y, y.placements)
    g, p = _wide(g), _wide(part)
    dot = _over_ranks((g * p).sum(dim, keepdim=True), y, dim, "sum")
    return _like((p * (g - dot)).to(part.dtype).contiguous(), y, y.placements)


def _matmul_softmax(op, a: DTensor, b: DTensor, dim: int, *backend) -> DTensor:
    """Fused where no line of the result is spread over ranks and nothing is left to be summed; else a product, then a softmax."""
    rows = [(p.is_shard(0), q.is_replicate()) for p, q in zip(a.placements, b.placements)]
    columns = [(p.is_replicate(), q.is_shard(1)) for p, q in zip(a.placements, b.placements)]
    both = [p.is_replicate() and q.is_replicate() or a.device_mesh.size(k) == 1 for k, (p, q) in enumerate(zip(a.placements, b.placements))]
    if all(alone or all(along) for alone, along in zip(both, rows if dim % 2 else columns)):
        places = [Replicate() if alone else Shard(0 if dim % 2 else 1) for alone in both]
        parts = a.to_local(), b.to_local()
        return _like(parts[0] if _outside(a) else op(*parts, dim, *backend), a, places, (a.shape[0], b.shape[1]))
    ops = torch.ops.triport
    if backend:
        return ops.softmax_by(ops.matmul_by(a, b, *backend), dim, *backend)
    return ops.softmax(ops.matmul(a, b), dim)


def _add_mul_act_(op, x: DTensor, y: DTensor, bias: DTensor, *params):
    """x stays where it is."""
    check_in_place("add_mul_act_", x)
    row = [Shard(0) if p.is_shard(x.ndim - 1) else Replicate() for p in x.placements]
    parts = x.to_local(), _placed(y, x.placements).to_local(), _placed(bias, row).to_local()
    if not _outside(x):
        op(*parts, *params)


RULES = {"softmax": _softmax, "softmax_backward": _softmax_backward, "matmul_softmax": _matmul_softmax, "add_mul_act_": _add_mul_act_}
