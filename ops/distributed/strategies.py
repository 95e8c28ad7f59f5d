"""How ops may be sharded: for one dimension of a mesh, the placements of an op's result and those of its tensors that give it without communication.

torch.distributed.tensor tries them for every dimension of the mesh, redistributes arguments where the cheapest way asks for it, and takes shards of
unequal sizes as they are. Partial is a sum over ranks that nobody has added up: what is linear in an argument passes it on.
"""

from __future__ import annotations

import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

R, P = Replicate(), Partial()
S = Shard


def elementwise(*tensors):
    """Any dimension, alike."""
    return [(R, *[R] * len(tensors)), *[(S(d), *[S(d)] * len(tensors)) for d in range(tensors[0].ndim)]]


def slope(grad, x):
    """As `elementwise`, and linear in the gradient."""
    return [*elementwise(grad, x), (P, P, R)]


def with_row(*tensors):
    """`elementwise` but for the last tensor, a row that goes with the last dimension."""
    *like, _ = tensors
    last = like[0].ndim - 1
    return [(R, *[R] * len(tensors)), *[(S(d), *[S(d)] * len(like), S(0) if d == last else R) for d in range(last + 1)]]


def gradients(*given):
    """Of tensors of one shape, behind which there may be a row: results like them, all but the last, which is their sum over rows. What is behind the tensors
    says which of them are wanted. Linear in the first tensor."""
    tensors = [t for t in given if hasattr(t, "placements")]
    wanted, last = given[len(tensors):], tensors[0].ndim - 1
    full = [t for t in tensors if t.ndim == tensors[0].ndim] if last else tensors
    row = len(tensors) - len(full)

    def results(place, total):
        return tuple((place if k < len(wanted) - 1 else total) if asked else R for k, asked in enumerate(wanted))

    by_dimension = [(results(S(d), S(0) if d == last else P), *[S(d)] * len(full), *[S(0) if d == last else R] * row) for d in range(last + 1)]
    return [(results(R, R), *[R] * len(tensors)), *by_dimension, (results(P, P), P, *[R] * (len(tensors) - 1))]


def product(a, b):
    """a @ b by rows, by columns, by K, which leaves a sum, and by dimensions of a batch; a factor that has no such dimension, or one of size 1, is everywhere."""
    rank, (rows, terms), (terms_of_b, columns) = max(a.ndim, b.ndim), (a.ndim - 2, a.ndim - 1), (b.ndim - 2, b.ndim - 1)
    lead = [(S(d), *_of_batch(d - rank, a, b)) for d in range(rank - 2)]
    return [(R, R, R), (S(rank - 2), S(rows), R), (S(rank - 1), R, S(columns)), (P, S(terms), S(terms_of_b)), (P, P, R), (P, R, P), *(row for row in lead if row[1:] != (R, R))]


def _of_batch(d: int, *tensors):
    """The placements of tensors whose dimension d, counted from the last one, goes by ranks."""
    return tuple(S(t.ndim + d) if t.ndim + d >= 0 and t.shape[d] != 1 else R for t in tensors)


def product_and_softmax(a, b, dim):
    """Without the dimension that is normalised: `exchange.py` has the others."""
    return [(R, R, R), (S(0), S(0), R) if dim % 2 else (S(1), R, S(1))]


def low_rank(x, w, a, b):
    """x @ w + (x @ a) @ b."""
    last = x.ndim - 1
    rows = [(S(d), S(d), R, R, R) for d in range(last)]
    return [(R, R, R, R, R), *rows, (S(last), R, S(1), R, S(1)), (P, S(last), S(0), S(0), R), (P, P, R, R, R)]


def two_products(x, w, t, b):
    """x @ w + t @ b."""
    return [(R, R, R, R, R), (S(0), S(0), R, S(0), R), (S(1), R, S(1), R, S(1)), (P, S(1), S(0), P, R), (P, S(1), S(0), S(1), S(0)), (P, P, R, P, R)]


def lines(*tensors):
    """Every dimension but the one that is normalised, which is the argument behind the tensors."""
    *like, dim = tensors
    return [row for row in elementwise(*like) if row[0] is R or row[0].dim != dim % max(like[0].ndim, 1)]


#: op -> its placements, from its tensors and those of the arguments behind them that `PARAMS` says
STRATEGIES = {"square": elementwise, "gelu": elementwise, "gelu_backward": slope, "add_relu": with_row, "add_mul_act": with_row,
              "add_mul_act_backward": with_row, "matmul": product, "scaled_matmul": product, "sum_of_matmuls": two_products, "lora_linear": low_rank,
              "softmax": lines, "softmax_backward": lines, "matmul_softmax": product_and_softmax, "add_relu_gradients": gradients,
              "add_mul_act_gradients": gradients}
PARAMS = {**dict.fromkeys(("softmax", "softmax_backward", "matmul_softmax"), slice(1)), "add_relu_gradients": slice(2), "add_mul_act_gradients": slice(2, 5)}


def register():
    """Tell torch.distributed.tensor of every op, and of those that name their backend."""
    for name, rows in STRATEGIES.items():
        for op in (name, f"{name}_by"):
            if hasattr(torch.ops.triport, op):
                register_sharding(getattr(torch.ops.triport, op).default)(_sharding(rows, PARAMS.get(name, slice(0))))


def _sharding(rows, which: slice):
    def sharding(*args):
        tensors = [a for a in args if hasattr(a, "placements")]
        params = args[len(tensors):]
        return [([*out] if isinstance(out, tuple) else [out], [*places, *[None] * len(params)]) for out, *places in rows(*tensors, *params[which])]

    return sharding
