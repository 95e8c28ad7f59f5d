"""Index spaces: ranges, splats, and operations that only rename or regroup indices."""

from __future__ import annotations

from ..ir import const
from . import arith


def expand_dims(op, dims):
    axis = op.attrs["axis"]
    return dims[:axis] + dims[axis + 1:]


def broadcast(op, dims):
    return tuple(-1 if n == 1 else d for n, d in zip(op.operands[0].type.shape, dims))


def trans(op, dims):
    out = [-1] * len(dims)
    for d, src in zip(dims, op.attrs["order"]):
        out[src] = d
    return tuple(out)


def reshape(op, dims):
    """Only dimensions of size 1 come and go: a renaming. Anything else needs its elements in memory (None)."""
    src, dst = op.operands[0].type.shape, op.result.type.shape
    if [n for n in src if n != 1] != [n for n in dst if n != 1] or op.attrs.get("allow_reorder"):
        if [n for n in src if n != 1] != [n for n in dst if n != 1]:
            return None
    rest = [d for n, d in zip(dst, dims) if n != 1]
    return tuple(rest.pop(0) if n != 1 else -1 for n in src)


DIMS = {"tt.expand_dims": expand_dims, "tt.broadcast": broadcast, "tt.trans": trans, "tt.reshape": reshape}


def make_range(nest, op, dims):
    b = nest.b
    start = const("i32", op.attrs["start"])
    d = dims[0]
    if d < 0:
        return start
    idx = b.add(b.cast("trunc", nest.index_of(d), "i32"), start)
    if d != nest.vdim or nest.lanes == 1:
        return idx
    return b.add(b.splat(idx, nest.lanes), b.iota("i32", nest.lanes))


def splat(nest, op, dims):
    return nest.k.scalar(op.operands[0])


def constant(nest, op, dims):
    value = op.attrs["value"]
    e = op.result.type.elem
    if not isinstance(value, list):
        return arith.constant_value(value, e)
    raise nest.k.error(op, "constants with different elements are not covered yet")


LANES = {"tt.make_range": make_range, "tt.splat": splat}


def unsplat(k, op):
    """The only element of a one-element tensor, as a scalar."""
    v = op.operands[0]
    nest = k.begin_nest(v.type.shape, [(v, tuple(-1 for _ in v.type.shape))], lanes=1)
    out = []
    nest.run([], lambda u: out.append(nest.at(v, tuple(-1 for _ in v.type.shape))))
    k.env[op.result] = out[0]


ROOTS = {"tt.unsplat": unsplat}
