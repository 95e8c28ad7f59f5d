"""Batching rules: what `torch.func.vmap` runs in place of an op, on tensors that have the batch as one dimension more.

Without a rule torch runs the op once for each element of the batch. With one it is a single call wherever the op's kernels can take the batch as more
rows, more columns or more elements; products of two batches are products of batches (`batches.py`). What is left (two batches in what does more than
a product) is a call for each element, as before. A rule calls ops, so it may be nested in other transforms.

A rule has `(op, tensors, dims, params, size)`: the op (an OpOverload), its tensor arguments, where each has the batch (None: it has none; one at least has),
its other arguments, the batch's size. It returns (result, where that has the batch), of an op with several results a tuple of either. Sizes are checked as the user sees them, without the batch.
"""

from __future__ import annotations

from typing import Callable

import torch

from .batches import shape_of_product
from .checks import check_bias, check_dim, check_low_rank, check_product, check_same_shape

Rule = Callable[..., tuple]


def register(name: str, op, count: int, rule: Rule):
    """Let vmap run `rule` for `op` (an OpOverload of that full name, whose first `count` arguments are tensors)."""

    def batched(info, dims, *args):
        return rule(op, args[:count], dims[:count], args[count:], info.batch_size)

    torch.library.register_vmap(name, batched)


def _name(op) -> str:
    return op._opname.removesuffix("_by")


def _first(t: torch.Tensor, dim: int | None, size: int) -> torch.Tensor:
    """`t` with the batch as its first dimension."""
    return t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0) if dim else t


def _seen(t: torch.Tensor, dim: int | None) -> torch.Tensor:
    """What the user sees of `t`: as large, and empty."""
    return torch.empty(_shape(t, dim), dtype=t.dtype, device="meta")


def _shape(t: torch.Tensor, dim: int | None) -> torch.Size:
    """Without the batch. By sizes alone: torch refuses a second view of a dual tensor that is a negated one."""
    return t.shape if dim is None else t.shape[:dim] + t.shape[dim + 1:]


def each(op, tensors, dims, params, size):
    """A call for each element of the batch."""
    if not size:
        one = op(*(t if d is None else t.new_zeros(_shape(t, d)) for t, d in zip(tensors, dims)), *params)
        return one.new_empty((0, *one.shape)), 0
    return torch.stack([op(*(t if d is None else t.select(d, k) for t, d in zip(tensors, dims)), *params) for k in range(size)]), 0


def _same_shapes(op, tensors, dims):
    seen = [_seen(t, d) for t, d in zip(tensors, dims)]
    check_same_shape(_name(op), **{a.name: t for a, t in zip(op._schema.arguments, seen)})


def elementwise(op, tensors, dims, params, size):
    """Of tensors of one shape, element by element: the batch is a dimension like others."""
    _same_shapes(op, tensors, dims)
    return op(*(_first(t, d, size) for t, d in zip(tensors, dims)), *params), 0


def along(op, tensors, dims, params, size):
    """As `elementwise`, along the dimension that is the first parameter."""
    _same_shapes(op, tensors, dims)
    seen = _seen(tensors[0], dims[0])
    dim, rest = check_dim(_name(op), seen, params[0]), params[1:]
    tensors = [_first(t, d, size) for t, d in zip(tensors, dims)]
    if not seen.dim():
        return op(*(t.unsqueeze(-1) for t in tensors), 1, *rest).squeeze(-1), 0
    return op(*tensors, dim + 1, *rest), 0


def with_row(op, tensors, dims, params, size):
    """As `elementwise`, but the last tensor is a row for the last dimension of the others. A batch of rows is one long row: the batch goes beside the
    last dimension."""
    *full, row = tensors
    _same_shapes(op, full, dims[:-1])
    check_bias(_name(op), _seen(full[0], dims[0]), _seen(row, dims[-1]))
    if dims[-1] is None:
        return op(*(_first(t, d, size) for t, d in zip(full, dims)), row, *params), 0
    n = row.shape[1 - dims[-1]]
    wide = [_first(t, d, size).movedim(0, -2).flatten(-2) for t, d in zip(full, dims)]
    out = op(*wide, row.movedim(dims[-1], 0).flatten(), *params).unflatten(-1, (size, n))
    return out, out.dim() - 2


def with_sums(op, tensors, dims, params, size, row: bool = False):
    """Of gradients: results like the first tensor, all but the last, which is a sum over its rows; the last parameters say which of them are wanted, the others
    are empty. row: the last tensor is a row, as `with_row` has it. As there, the batch goes beside the last dimension."""
    full, wanted = len(tensors) - row, params[-len(op._schema.returns):]
    _same_shapes(op, tensors[:full], dims[:full])
    wide = [_first(t, d, size) for t, d in zip(tensors, dims)]
    n = wide[0].shape[-1]
    out = op(*(t.movedim(0, -2).flatten(-2) if k < full else t.flatten() for k, t in enumerate(wide)), *params)
    out = tuple(t.unflatten(-1, (size, n)) if asked else t for t, asked in zip(out, wanted))
    return out, tuple(t.dim() - 2 if asked else None for t, asked in zip(out, wanted))


def _more_rows(op, tensors, dims, params, size, which=(0,)):
    """Of products whose factors `which` on the left alone have the batch: their rows, one below the other."""
    m = _seen(tensors[0], dims[0]).shape[0]
    out = op(*(_first(t, d, size).flatten(0, 1) if k in which else t for k, (t, d) in enumerate(zip(tensors, dims))), *params)
    return out.unflatten(0, (size, m)), 0


def _more_columns(op, tensors, dims, params, size):
    """Of a product whose right factor alone has the batch: its matrices, side by side."""
    a, b = tensors
    b = b.movedim(dims[1], 1)
    return op(a, b.flatten(1), *params).unflatten(1, (size, b.shape[2])), 1


def _check_product(op, tensors, dims):
    check_product(_name(op), *(_seen(t, d) for t, d in zip(tensors, dims)))


def product(op, tensors, dims, params, size):
    """Of two matrices, or batches of them, which are batches with one dimension more."""
    seen = [_seen(t, d) for t, d in zip(tensors, dims)]
    shape_of_product(_name(op), *seen)
    rank = max(t.dim() for t in seen)
    if rank == 2 and dims[1] is None:
        return _more_rows(op, tensors, dims, params, size)
    return op(*(t if d is None else _of_rank(_first(t, d, size), rank + 1) for t, d in zip(tensors, dims)), *params), 0


def _of_rank(t: torch.Tensor, rank: int) -> torch.Tensor:
    """`t` with so many dimensions, the new ones behind the first."""
    return t if t.dim() == rank else t[(slice(None), *[None] * (rank - t.dim()))]


def scaled_product(op, tensors, dims, params, size):
    """Of two matrices; the first parameter is a factor of the result."""
    _check_product(op, tensors, dims)
    if dims[1] is None:
        return _more_rows(op, tensors, dims, params, size)
    if len(params) > 1:  # `<op>_by`: the kernel for batches is Triton's
        return each(op, tensors, dims, params, size) if dims[0] is not None else _more_columns(op, tensors, dims, params, size)
    return torch.ops.triport.batched_matmul(*(_first(t, d, size) for t, d in zip(tensors, dims)), float(params[0])), 0


def batched_product(op, tensors, dims, params, size):
    """Of two batches of matrices: batches of them are one longer batch."""
    inner = _seen(tensors[0], dims[0]).shape[0]
    return op(*(_first(t, d, size).flatten(0, 1) for t, d in zip(tensors, dims)), *params).unflatten(0, (size, inner)), 0


def product_along(op, tensors, dims, params, size):
    """Of a product whose rows (the first parameter 1 or -1) or columns are scaled."""
    _check_product(op, tensors, dims)
    axis = int(params[0]) % 2
    if axis and dims[1] is None:
        return _more_rows(op, tensors, dims, params, size)
    if not axis and dims[0] is None:
        return _more_columns(op, tensors, dims, params, size)
    return each(op, tensors, dims, params, size)


def sum_of_products(op, tensors, dims, params, size):
    """Of the first two tensors' product and the last two's."""
    if dims[1] is None and dims[3] is None:
        return _more_rows(op, tensors, dims, params, size, which=(0, 2))
    return each(op, tensors, dims, params, size)


def low_rank(op, tensors, dims, params, size):
    """Of a layer, whose input has any number of dimensions, and its weights."""
    check_low_rank(_name(op), *(_seen(t, d) for t, d in zip(tensors, dims)))
    if all(d is None for d in dims[1:]):
        return op(_first(tensors[0], dims[0], size), *tensors[1:], *params), 0
    return each(op, tensors, dims, params, size)
