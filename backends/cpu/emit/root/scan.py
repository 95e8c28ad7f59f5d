"""tt.scan and tt.map_elementwise: operations whose meaning is a region that the user wrote.

A scan along the vector dimension is done in registers: log2(lanes) shifts and combines make the prefixes of one vector, and
what came before is combined in once. Along any other dimension the vectors walk side by side. A region with branches or calls is
run for one element at a time.
"""

from __future__ import annotations

from ...llvm import ir
from ...llvm.ir import const
from ...llvm.elements import REGISTER
from .. import access
from . import region


def scan(k, step):
    b, op = k.b, step.op
    block, axis, reverse = op.regions[0].block, op.attrs["axis"], bool(op.attrs.get("reverse"))
    dims = tuple(range(len(op.operands[0].type.shape)))
    nest = k.nest(step.nest)
    lanes = nest.lanes
    along = nest.vdim == axis and lanes > 1
    types = [ir.vec(REGISTER[v.type.elem], 1 if along else lanes) for v in op.operands]
    slots = [b.alloca(t, "carry") for t in types]
    started = b.alloca("i1", "started")

    def before(chunks):
        for slot, t in zip(slots, types):
            b.store(ir.Val(t, "zeroinitializer"), slot, 8)
        b.store(const("i1", False), started, 1)

    def body(u):
        k.write_keeps(nest, step.nest.keeps, reduces=True)
        vals = [b.splat(nest.at(v, dims), lanes) for v in op.operands]
        if along:
            vals = _prefixes(k, block, vals, lanes, reverse)
        go = b.load("i1", started, 1)
        carried = [b.splat(b.load(t, s, 8), lanes) for t, s in zip(types, slots)]
        joined = region.inline(k, block, carried + vals)
        vals = [b.select(go, j, v) for j, v in zip(joined, vals)]
        for slot, v in zip(slots, vals):
            b.store(b.extract(v, 0 if reverse else lanes - 1) if along else v, slot, 8)
        b.store(const("i1", True), started, 1)
        for out, v in zip(step.out, vals):
            access.store_buffer(nest, out, dims, v)

    nest.run(body, 1, before)


def _prefixes(k, block, vals, lanes: int, reverse: bool):
    """Lane j of each vector becomes the combination of lanes 0 to j (of lanes j to the last, where `reverse`)."""
    b, step = k.b, 1
    while step < lanes:
        order = [j + step if j + step < lanes else -1 for j in range(lanes)] if reverse else [
            j - step if j >= step else -1 for j in range(lanes)]
        inside = ir.Val(f"<{lanes} x i1>", "<" + ", ".join(f"i1 {'true' if j >= 0 else 'false'}" for j in order) + ">")
        # A lane without a neighbour takes itself: whatever the region does, it does on real elements.
        order = [j if j >= 0 else n for n, j in enumerate(order)]
        moved = [b.shuffle(v, None, order) for v in vals]
        joined = region.inline(k, block, moved + vals)
        vals = [b.select(inside, j, v) for j, v in zip(joined, vals)]
        step *= 2
    return vals


def map_elementwise(k, step):
    b, op = k.b, step.op
    block, pack = op.regions[0].block, op.attrs.get("pack", 1)
    dims = tuple(range(len(op.operands[0].type.shape)))
    nest = k.nest(step.nest)

    def body(u):
        k.write_keeps(nest, step.nest.keeps)
        vals = [b.splat(nest.at(v, dims), nest.lanes) for v in op.operands]
        if pack > 1:
            vals = [b.extract(v, j) for v in vals for j in range(pack)]
        results = region.inline(k, block, vals)
        for n, out in enumerate(step.out):
            v = results[n]
            if pack > 1:
                v = ir.Val(ir.vec(results[n * pack].ty, pack), "poison")
                for j in range(pack):
                    v = b.insert(v, results[n * pack + j], j)
            access.store_buffer(nest, out, dims, v)

    nest.run(body)


ROOTS = {"tt.scan": scan, "tt.map_elementwise": map_elementwise}
