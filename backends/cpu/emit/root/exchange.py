"""Neighbours that change places (`ttir/exchanges.py`): shuffles of a chunk's lanes, and loads of other chunks."""

from __future__ import annotations

from ...llvm.ir import Val, const, i64
from ...plan.exchanges import along
from ...plan.records import Buffer, at_index, row_major
from .. import access


def pick(nest, op, dims):
    """Element (i & ~clear) ^ flip of the operand, for each i of the chunk."""
    v = op.operands[0]
    clear, flip = along(op, "clear"), along(op, "flip")
    within = nest.lanes - 1  # the bits of an index that tell a chunk's lanes apart
    over = tuple(c | f if d != nest.vdim else (c | f) & ~within for c, f, d in zip(clear, flip, dims))
    x = _other(nest, nest.reads[v], dims, clear, flip, within) if any(over) else nest.at(v, dims)
    clear, flip = clear[-1] & within, flip[-1] & within
    if x.lanes == 1 or dims[-1] != nest.vdim or not clear | flip:
        return x
    return nest.b.shuffle(x, None, [(i & ~clear) ^ flip for i in range(x.lanes)])


def _other(nest, buf: Buffer, dims, clear, flip, within: int) -> Val:
    """The chunk of a buffer that the current one, or its like at other indices, exchanges elements with."""
    b, off = nest.b, i64(0)
    for axis, d in enumerate(dims):
        index = i64(at_index(d)) if d < 0 else nest.index_of(d)
        less = within if d == nest.vdim else 0
        index = b.xor(b.and_(index, i64(~(clear[axis] & ~less))), i64(flip[axis] & ~less))
        off = b.add(off, b.mul(index, i64(buf.strides[axis])))
    step = buf.strides[dims.index(nest.vdim)] if nest.lanes > 1 and nest.vdim in dims else 0
    return access.load_at(nest, buf, b.gep(access.memory_type(buf.elem), nest.k.pointer(buf), off), step)


def half(nest, op, dims):
    """The first or the second of each two groups of neighbours of the operand."""
    b, stride, second = nest.b, op.attrs["stride"], op.attrs["second"]
    buf, first = nest.reads[op.operands[0]], i64(0)
    if not buf.is_row_major:
        raise nest.k.error(op, "its operand lies in memory in another order than the schedule sees to")
    for d, step in zip(dims, row_major(op.result.type.shape)):
        first = b.add(first, b.mul(i64(at_index(d)) if d < 0 else nest.index_of(d), i64(step)))
    lanes = nest.lanes if nest.vdim in dims else 1
    elem, pointer = access.memory_type(buf.elem), nest.k.pointer(buf)
    if lanes <= stride:
        at = b.add(b.add(first, b.and_(first, i64(-stride))), i64(second * stride))  # i // stride * 2 * stride + i % stride
        return access.load_at(nest, buf, b.gep(elem, pointer, at), int(lanes > 1))
    both = access.load_at(nest, buf, b.gep(elem, pointer, b.add(first, first)), 1, 2 * lanes)
    return b.shuffle(both, None, [i // stride * 2 * stride + second * stride + i % stride for i in range(lanes)])


def bit(nest, op, dims):
    """start + one bit of each element's number."""
    (axis, place), = ((axis, place) for axis, place in enumerate(along(op, "bit")) if place)
    d, start, b = dims[axis], op.attrs["start"], nest.b
    if d < 0:
        return const("i32", start + bool(at_index(d) & place))
    if d == nest.vdim and place < nest.lanes:
        lanes = b.and_(b.lshr(nest.b.iota("i32", nest.lanes), const("i32", place.bit_length() - 1, nest.lanes)), const("i32", 1, nest.lanes))
        return b.add(lanes, const("i32", start, nest.lanes))
    index = b.and_(b.lshr(b.cast("trunc", nest.index_of(d), "i32"), const("i32", place.bit_length() - 1)), const("i32", 1))
    return b.add(index, const("i32", start))


LANES = {"triport.pick": pick, "triport.half": half, "triport.bit": bit}
