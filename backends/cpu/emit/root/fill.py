"""Tensors put into memory: one by one, and roots that go row by row."""

from __future__ import annotations

import functools

from ...llvm import ir
from ...llvm.elements import REGISTER
from ...llvm.ir import Val, const, i64
from ...plan.records import Fill, Rows, Stage, Turned
from .. import access, bounds, pieces
from ..element import convert
from . import reduce
from .memory import ahead, may_be_masked, store_chunk


def converted(b, v: Val, source: str, to: str) -> Val:
    """`v`, of TTIR's element type `source`, as another type's."""
    if source == to:
        return v
    if to == "u8":
        return b.xor(v, const("i8", -128, v.lanes))
    if to[0] == "i":
        return b.cast("sext", v, REGISTER[to])
    return convert.float_to_float(b, v, source, to)


def fill(k, step: Fill):
    """Write a tensor's elements into a buffer."""
    b, v, buf = k.b, step.value, step.buffer
    dims = tuple(range(len(v.type.shape)))
    nest = k.nest(step.nest)

    def element():
        return converted(b, nest.at(v, dims), v.type.elem, buf.elem)

    def one(u):
        k.write_keeps(nest, step.nest.keeps)
        access.store_buffer(nest, buf, dims, element())

    def several(u):
        (inner, _), = step.nest.steps.items()
        together = b.interleave([b.splat(nest.along(inner, n, element), nest.lanes) for n in range(step.group)])
        b.store(together, access.buffer_address(nest, buf, dims)[0], ir.bits_of(together.elem) // 8)

    def block(u):
        first, apart = access.buffer_address(nest, buf, dims)
        for n, line in enumerate(_transposed(nest, step, element)):
            b.store(line, b.gep(line.elem, first, i64(n * apart)), ir.bits_of(line.elem) // 8)

    nest.first = ahead(nest, step.nest.chunks, [v])
    nest.masked = nest.maskable(step.nest.keeps) and not step.turned and step.group <= 1 and buf.panel is None
    nest.run(block if step.turned else several if step.group > 1 else one, step.nest.chunks or step.unroll)


def _transposed(nest, step: Fill, element) -> list[Val]:
    """The lines of the block at hand, of which `element()` makes one that lies along the nest's vector dimension."""
    b, ((inner, side),) = nest.b, step.nest.steps.items()

    def line() -> Val:
        found = [b.splat(v, nest.lanes) for v in pieces.each_half(nest, element)]
        return found[0] if len(found) == 1 else b.select(nest.halves[0].lanes, *found)

    return b.transposed([nest.along(inner, n, line) for n in range(side)])


def turned(k, step: Turned):
    """Store blocks that are transposed in registers, line by line."""
    loads, stores = k.nest(step.fill.nest), k.nest(step.nest)
    mask, of = step.op.operands[2:], step.fill.value
    *outer, lies, read = loads.plan.order
    key = of, loads.plan.identity

    def each_line(lines):
        for n, v in enumerate(lines):
            stores.given[key] = v
            stores.enter(lies, k.b.add(loads.index[lies], i64(n)), lambda: pieces.each_half(stores, lambda: store_chunk(stores, step.op, ())))

    def block(u):
        if mask and bounds.is_false(loads, mask[0], loads.plan.identity):
            return
        lines = _transposed(loads, step.fill, lambda: loads.at(*key))
        stores.facts = loads.facts
        stores.begin((*outer, read, lies))
        inside = functools.partial(pieces.written, stores, range(1), functools.partial(each_line, lines), by_halves=True)
        for d in (read, *reversed(outer)):
            inside = functools.partial(stores.enter, d, loads.index[d], inside)
        inside()

    loads.run(block)


# --- row by row ------------------------------------------------------------------------------------------------------


def rows(k, step: Rows):
    """A group of roots in one loop over rows. That loop may be emitted twice (rows inside a mask, rows outside)."""
    nest = k.nest(step.nest)
    k.b.dbg = k.debug_loc(step.stages[0].op)
    slots = [k.b.alloca(REGISTER[stage.op.result.type.elem], "row") if stage.op.results else None for stage in step.stages]

    def row():
        for stage, slot in zip(step.stages, slots):
            nest.new_section()
            k.current_op = stage.op
            k.b.dbg = k.debug_loc(stage.op)
            nest.finds(stage.reads)
            if slot is None:
                nest.times = stage.times
                nest.first = ahead(nest, stage.chunks, stage.op.operands[1:])
                may_be_masked(nest, stage.op, stage.keeps)
                nest.inner(lambda u: store_chunk(nest, stage.op, stage.keeps), stage.chunks)
            else:
                _reduce_row(k, nest, stage, slot)
            k.stores_here = True

    nest.run_rows(row)


def _reduce_row(k, nest, stage: Stage, slot: Val):
    b, result = k.b, stage.op.result
    elem = REGISTER[result.type.elem]
    exact = reduce.identities_of(stage.op)
    if stage.quick:
        limit, combine = reduce.quick_form(k, stage.op)
        final = _row(k, nest, stage, [limit], combine)
        b.store(final, slot, 8)
        again, done = k.fn.new_block("again"), k.fn.new_block("found")
        b.cond_br(b.fcmp("oeq", final, limit), again, done)
        b.enter(again)
        b.store(_row(k, nest, stage, exact, None), slot, 8)
        b.br(done)
        b.place(done)
    else:
        b.store(_row(k, nest, stage, exact, None), slot, 8)
    value = b.load(elem, slot, 8)
    nest.given[result, (0,)] = value
    if stage.out is not None:
        access.store_buffer(nest, stage.out, (0,), value)


def _row(k, nest, stage: Stage, start: list[Val], combine) -> Val:
    """One row's reduction: the joined scalar."""
    partial = reduce.Partial(k, nest, stage.op, stage.chunks, stage.keeps, start, combine)
    found = []
    nest.times, nest.times_of_chunks = 1, stage.times
    nest.first = ahead(nest, stage.chunks if nest.plan.registers > 1 else 1, stage.op.operands)
    nest.masked, nest.idle = start is not None and nest.maskable(stage.keeps), lambda: False
    nest.inner(partial.add, stage.chunks, partial.before, lambda chunks: found.append(partial.finals(chunks)[0][0]), partial.ends_early)
    return found[-1]


STEPS = {Fill: fill, Rows: rows, Turned: turned}
