"""Index spaces: ranges, splats, and operations that only rename or regroup indices."""

from __future__ import annotations

from ...llvm import ir
from ...llvm.ir import const
from ..nest import REGISTER, at_index, memory_type, row_major
from ..nest import gather as gather_lanes
from .memory import from_memory


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
    if [n for n in src if n != 1] != [n for n in dst if n != 1]:
        return None
    rest = [d for n, d in zip(dst, dims) if n != 1]
    return tuple(rest.pop(0) if n != 1 else -1 for n in src)


DIMS = {"tt.expand_dims": expand_dims, "tt.broadcast": broadcast, "tt.trans": trans, "tt.reshape": reshape}


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


def split(k, op):
    """The two halves of the last dimension: views of one buffer that holds them one after the other."""
    v = op.operands[0]
    buf = k.buffers.get(v)
    if buf is None or buf.panel:
        half = v.type.numel // 2
        buf = k.alloc(v.type.shape, v.type.elem, row_major(v.type.shape[:-1]) + (half,))
        k.materialise_into(buf, v)
    for n, r in enumerate(op.results):
        if r.type.is_tensor:
            k.buffers[r] = k.view(buf, n * buf.strides[-1], r.type.shape, buf.strides[:-1])
        else:
            at = k.view(buf, n * buf.strides[-1], (), ())
            mem = memory_type(buf.elem)
            x = k.b.load(mem, at.ptr, ir.bits_of(mem) // 8)
            k.env[r] = from_memory(k.b, x, buf.elem)


def cat(k, op):
    """Tensors one after the other along dimension 0."""
    out = k.alloc(op.result.type.shape, op.result.type.elem)
    axis = op.attrs.get("dim", 0)
    at = 0
    for v in op.operands:
        k.materialise_into(k.view(out, at * out.strides[axis], v.type.shape, out.strides), v)
        at += v.type.shape[axis]
    k.buffers[op.result] = out


def gather(k, op):
    """out[i, j] = src[idx[i, j], j] for axis 0. An index out of range reads some element of the source, not other memory."""
    b = k.b
    src, idx = op.operands
    axis = op.attrs["axis"]
    buf = k.materialise(src)
    shape = idx.type.shape
    dims = tuple(range(len(shape)))
    out = k.alloc(shape, src.type.elem)
    nest = k.begin_nest(shape, [(idx, dims)], op=op)
    keeps = k.keeps
    mem = memory_type(src.type.elem)

    def body(u):
        k.write_keeps(nest, keeps, op)
        chosen = b.cast("sext", nest.at(idx, dims), "i64")
        off = b.mul(b.intrinsic("umin", chosen, const("i64", src.type.shape[axis] - 1)), const("i64", buf.strides[axis]))
        for d in dims:
            if d == axis or buf.shape[d] == 1:
                continue
            off = b.add(off, b.mul(nest.lane_index(d), const("i64", buf.strides[d])))
        if off.lanes == 1:
            v = b.load(mem, b.gep(mem, buf.ptr, off), ir.bits_of(mem) // 8)
        else:
            v = gather_lanes(b, mem, b.gep(mem, buf.ptr, off), const("i1", True, nest.lanes), None)
        nest.store_buffer(out, dims, from_memory(b, v, src.type.elem))

    nest.run(nest.default_order, body)
    k.buffers[op.result] = out


def histogram(k, op):
    """Counts of the values 0, 1, ..., n - 1; others, and elements outside the mask, are not counted."""
    b = k.b
    v = op.operands[0]
    mask = op.operands[1] if len(op.operands) > 1 else None
    shape, bins = v.type.shape, op.result.type.shape[0]
    count = REGISTER[op.result.type.elem]
    out = k.alloc((bins,), op.result.type.elem)
    size = ir.bits_of(count) // 8
    b.call("llvm.memset.p0.i64", "void", [out.ptr, const("i8", 0), const("i64", bins * size), const("i1", False)])
    dims = tuple(range(len(shape)))
    nest = k.begin_nest(shape, [(x, dims) for x in (v, mask) if x is not None], op=op)
    keeps = k.keeps

    def body(u):
        k.write_keeps(nest, keeps, op)
        x = b.splat(b.cast("zext", nest.at(v, dims), "i64"), nest.lanes)
        inside = b.icmp("ult", x, const("i64", bins))
        inside = b.splat(b.and_(inside, nest.at(mask, dims)) if mask is not None else inside, nest.lanes)

        def lane(j):

            def add():
                p = b.gep(count, out.ptr, b.extract(x, j))
                b.store(b.add(b.load(count, p, size), const(count, 1)), p, size)

            k.guarded(b.extract(inside, j), add)

        k.loop(const("i64", 0), const("i64", nest.lanes), 1, lane, "lane")

    nest.run(nest.default_order, body)
    k.buffers[op.result] = out


def unsplat(k, op):
    """The only element of a one-element tensor, as a scalar."""
    v = op.operands[0]
    nest = k.begin_nest(v.type.shape, [(v, tuple(-1 for _ in v.type.shape))], lanes=1)
    out = []
    nest.run([], lambda u: out.append(nest.at(v, tuple(-1 for _ in v.type.shape))))
    k.env[op.result] = out[0]


ROOTS = {"tt.unsplat": unsplat, "tt.split": split, "tt.cat": cat, "tt.gather": gather, "tt.histogram": histogram}
