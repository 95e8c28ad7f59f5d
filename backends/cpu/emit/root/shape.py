"""Index spaces: ranges, splats, and operations that only rename or regroup indices."""

from __future__ import annotations

from ...llvm import ir
from ...llvm.ir import const
from ...llvm.elements import REGISTER, memory_type
from ...plan.records import at_index
from .. import access
from .memory import from_memory


def make_range(nest, op, dims):
    start, d = op.attrs["start"], dims[0]
    if d < 0:
        return const("i32", start + at_index(d))
    if d == nest.vdim and nest.lanes > 1:  # the start joins the scalar, outside the lanes
        first = nest.b.add(nest.b.cast("trunc", nest.index_of(d), "i32"), const("i32", start))
        return nest.b.add(nest.b.splat(first, nest.lanes), nest.b.iota("i32", nest.lanes))
    return nest.b.add(nest.lane_index(d, "i32"), const("i32", start))


def splat(nest, op, dims):
    return nest.k.scalar(op.operands[0])


def join(nest, op, dims):
    """Two tensors side by side in a new last dimension."""
    last = dims[-1]
    idx = const("i64", at_index(last)) if last < 0 else nest.lane_index(last)
    first = nest.b.icmp("eq", idx, const("i64", 0))
    if first.const is not None:
        return nest.at(op.operands[0 if first.const else 1], dims[:-1])
    return nest.b.select(first, *[nest.at(o, dims[:-1]) for o in op.operands])


LANES = {"tt.make_range": make_range, "tt.splat": splat, "tt.join": join}


def split(k, step):
    """The halves of one pair, as scalars."""
    for r, at in zip(step.op.results, step.out):
        if not r.type.is_tensor:
            mem = memory_type(at.elem)
            x = k.b.load(mem, k.pointer(at), ir.bits_of(mem) // 8)
            k.env[r] = from_memory(k.b, x, at.elem)


def gather(k, step):
    """out[i, j] = src[idx[i, j], j] for axis 0. An index out of range reads some element of the source, not other memory."""
    b, op, buf = k.b, step.op, step.source
    src, idx = op.operands
    axis = op.attrs["axis"]
    dims = tuple(range(len(idx.type.shape)))
    nest = k.nest(step.nest)
    mem = memory_type(src.type.elem)

    def body(u):
        k.write_keeps(nest, step.nest.keeps)
        chosen = b.cast("sext", nest.at(idx, dims), "i64")
        off = b.mul(b.intrinsic("umin", chosen, const("i64", src.type.shape[axis] - 1)), const("i64", buf.strides[axis]))
        for d in dims:
            if d == axis or buf.shape[d] == 1:
                continue
            off = b.add(off, b.mul(nest.lane_index(d), const("i64", buf.strides[d])))
        at = b.gep(mem, k.pointer(buf), off)
        if off.lanes == 1:
            v = b.load(mem, at, ir.bits_of(mem) // 8)
        else:
            v = access.gather(b, mem, at, const("i1", True, nest.lanes), None)
        access.store_buffer(nest, step.out[0], dims, from_memory(b, v, src.type.elem))

    nest.run(body)


def histogram(k, step):
    """Counts of the values 0, 1, ..., n - 1; others, and elements outside the mask, are not counted."""
    b, op, out = k.b, step.op, k.pointer(step.out[0])
    v = op.operands[0]
    mask = op.operands[1] if len(op.operands) > 1 else None
    bins = op.result.type.shape[0]
    count = REGISTER[op.result.type.elem]
    size = ir.bits_of(count) // 8
    b.call("llvm.memset.p0.i64", "void", [out, const("i8", 0), const("i64", bins * size), const("i1", False)])
    dims = tuple(range(len(v.type.shape)))
    nest = k.nest(step.nest)

    def body(u):
        k.write_keeps(nest, step.nest.keeps)
        x = b.splat(b.cast("zext", nest.at(v, dims), "i64"), nest.lanes)
        inside = b.icmp("ult", x, const("i64", bins))
        inside = b.splat(b.and_(inside, nest.at(mask, dims)) if mask is not None else inside, nest.lanes)

        def lane(j):

            def add():
                p = b.gep(count, out, b.extract(x, j))
                b.store(b.add(b.load(count, p, size), const(count, 1)), p, size)

            k.guarded(b.extract(inside, j), add)

        k.loop(const("i64", 0), const("i64", nest.lanes), 1, lane, "lane")

    nest.run(body)


def unsplat(k, step):
    """The only element of a one-element tensor, as a scalar."""
    v = step.op.operands[0]
    nest = k.nest(step.nest)
    nest.begin()
    k.env[step.op.result] = nest.at(v, (-1,) * len(v.type.shape))


ROOTS = {"tt.unsplat": unsplat, "tt.split": split, "tt.gather": gather, "tt.histogram": histogram}
