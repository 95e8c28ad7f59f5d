"""Operands of a matrix product as the plan says where they lie: rows of A, panels of B.

An operand that lies the other way round in memory is turned in registers, a block of lanes x lanes at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from ...llvm import ir
from ...llvm.builder import LINE
from ...llvm.elements import REGISTER, memory_type
from ...llvm.ir import Val, const, i64
from ...plan.facts import Poly
from ...plan.operand import Kind
from ...plan.product import Product
from ...plan.source import End, Inside, Source
from ...plan.records import NestPlan
from ...ttir.types import Value
from .. import access, bounds
from ..root.fill import converted
from . import ending


# --- numbers of the plan, where the kernel runs -------------------------------------------------------------------------


def _here(k):
    """A nest of one index, begun: what belongs outside loops is emitted here."""
    nest = k.nest(NestPlan((), ()))
    nest.begin()
    return nest


def number(k, p: Poly) -> Val:
    """A polynomial's value (i64), here."""
    return access.poly_value(_here(k), p)


def end_of(k, end: End) -> Val:
    """The index (i64) from which on an operand is zero."""
    nest, least = _here(k), None
    for base in end.bases:
        if isinstance(base, bool):
            limit = i64(end.size if base else 0)
        elif isinstance(base, Value):  # a condition for the whole operand
            limit = k.b.select(k.scalar(base), i64(end.size), i64(0))
        else:
            limit = bounds.limit(nest, base, {}, (), end.size)
        least = limit if least is None else k.b.intrinsic("smin", least, limit)
    return least


def is_inside(k, given: tuple[Inside, ...]) -> Val:
    """An i1: do all ranges of indices lie within their sizes?"""
    b, out = k.b, const("i1", True)
    for g in given:
        first, end = number(k, g.first), number(k, g.end)
        out = b.and_(out, b.and_(b.icmp("sge", first, i64(0)), b.icmp("sle", b.add(first, i64(g.span)), end)))
    return out


@dataclass
class Place:
    """Where a source is, in this run: the address of its first element, its ends, whether its conditions hold."""

    source: Source
    ptr: Val
    ends: list[Val | None]
    given: Val


def place(k, src: Source | None) -> Place | None:
    if src is None:
        return None
    given = is_inside(k, src.given)
    ends = [end_of(k, end) if end is not None and n != src.along else None for n, end in enumerate(src.limits)]
    elem = memory_type(src.load.operands[0].type.pointee.elem)
    ptr = k.b.gep(elem, k.scalar(src.origin), number(k, src.base))
    if src.along is not None and src.limits[src.along] is not None:
        ends[src.along] = end_of(k, src.limits[src.along])
    return Place(src, ptr, ends, given)


# --- A: rows -------------------------------------------------------------------------------------------------------------


@dataclass
class Rows:
    """A as the micro-kernel reads it: element (i, q) of batch p at `ptr + p batch + i pitch + q`. From `limit` rows on (None: all
    are there) nothing may be read; `padded`: so many elements of a row may be, of which those behind the operand's limit are 0.
    strip: rows of a strip, in each of which element (i, q) is at `q strip + i` (0: there are none)."""

    ptr: Val
    pitch: Val
    batch: int = 0
    limit: Val | None = None
    padded: bool = True
    strip: int = 0
    copies: Copies | None = None


@dataclass
class Copies:
    """A strip of A's rows at a time is copied to `out`, `pitch` elements from row to row, where it is `needed` (an i1): as tiles take it, with zeros where it is not there. ends: (rows,
    columns) that are; depth: of a tile."""

    needed: Val
    out: Val
    pitch: int
    ends: tuple[Val, Val]
    depth: int


def rows(k, step: Product, at: Place | None) -> Rows:
    """A's rows, put where they are to be."""
    plan, kind = step.a, step.kind
    limit = at.ends[0] if plan.limit is not None else None
    buf = plan.buffer
    if plan.how == "buffer":
        return Rows(k.pointer(buf), i64(buf.strides[-2]), buf.strides[0])
    if plan.how == "in place" and plan.whole:
        return _in_tiles(k, step, at)
    if plan.how == "in place" and not plan.only_if:
        return Rows(at.ptr, number(k, at.source.steps[0]), 0, limit, plan.padded)
    if plan.how == "blocks":
        k.run(plan.packing)
        return Rows(k.pointer(buf), i64(kind.group), buf.strides[0])
    if plan.how == "strips":
        k.run(plan.packing)
        return Rows(k.pointer(buf), i64(step.k), buf.strides[0], strip=buf.panel[1])
    out, pitch = k.pointer(buf), buf.strides[-2]
    if plan.how == "in place":
        found = _in_place_or_packed(k, at, out, pitch, lambda: k.run(plan.packing))
        found.limit, found.padded = limit, plan.padded
        return found
    if plan.how == "turned":
        lanes = k.target.lanes(ir.bits_of(REGISTER[kind.packed]) * kind.group)
        k.either(at.given, lambda: turn(k, at, (step.m, step.k), kind.left, lanes, out,
                                        lambda q, i: k.b.add(k.b.mul(i, i64(pitch)), q), beside=kind.group), lambda: k.run(plan.packing))
    else:
        k.run(plan.packing)
    return Rows(out, i64(pitch), buf.strides[0], limit, plan.padded)


#: bytes between rows of which all share a few places in a first cache, as ways of 4 KiB have them. 512 x 512 times 512 x 256 in bf16 (AMX, Emerald Rapids) takes 93 us from rows of
#: 1,024 bytes, 105 of 2,048, 140 of 4,096, 90 of 4,160; 120 of 1,026, whose lines are read twice
ALIKE = 4096


def _in_tiles(k, step: Product, at: Place) -> Rows:
    """A, read where it lies as far as tiles can be, else in copies of strips of its rows."""
    b, plan, lda = k.b, step.a, number(k, at.source.steps[0])
    out, pitch = k.pointer(plan.buffer), plan.buffer.strides[-2]
    ends = tuple(i64(size) if end is None else b.intrinsic("smax", end, i64(0)) for end, size in zip(at.ends, (step.m, step.k)))
    depth = step.kind.depth_of_tiles(step.k)
    needed = b.not_(_reads_tiles(k, step, at, lda, ends))
    if not plan.only_if:
        return Rows(at.ptr, lda, copies=Copies(needed, out, pitch, ends, depth))
    found = _in_place_or_packed(k, at, out, pitch, lambda: k.run(plan.packing))
    found.copies = Copies(b.and_(at.given, needed), out, pitch, ends, depth)
    return found


def _reads_tiles(k, step: Product, at: Place, lda: Val, ends: tuple[Val, Val]) -> Val:
    """An i1: are tiles of A read where they lie? All of its elements are there, then."""
    b, out = k.b, const("i1", True)
    for end, size in zip(ends, (step.m, step.k)):
        out = b.and_(out, b.icmp("sge", end, i64(size)))
    if step.a.apart:
        pitch = b.mul(lda, i64(ir.bits_of(REGISTER[step.kind.packed]) // 8))
        begins = b.or_(b.cast("ptrtoint", at.ptr, "i64"), pitch)
        out = b.and_(out, b.icmp("eq", b.and_(begins, i64(LINE - 1)), i64(0)))
        out = b.and_(out, b.icmp("ne", b.and_(pitch, i64(ALIKE - 1)), i64(0)))
    return out


def _in_place_or_packed(k, at: Place, out: Val, pitch: int, pack) -> Rows:
    """A where it lies if its rows do not wrap, else what `pack` puts into `out`."""
    lda = number(k, at.source.steps[0])
    ptr, pitch = _one_of(k, at.given, (at.ptr, lda), lambda: pack() or (out, i64(pitch)))
    return Rows(ptr, pitch)


def _one_of(k, condition: Val, there: tuple[Val, Val], otherwise) -> tuple[Val, Val]:
    """(address of a row, elements to the next): `there` where the condition holds, else what `otherwise()` says."""
    b = k.b
    slots = b.alloca("ptr", "rows"), b.alloca("i64", "pitch")

    def remember(found):
        for x, slot in zip(found, slots):
            b.store(x, slot, 8)

    k.either(condition, lambda: remember(there), lambda: remember(otherwise()))
    return b.load("ptr", slots[0], 8), b.load("i64", slots[1], 8)


def strip(k, kind: Kind, a: Rows, base: Val, i: Val, count: int, depth: Val) -> tuple[Val, Val]:
    """Where `count` rows of A, from row i on, lie for tiles `depth` elements deep: (the first one's address, elements to the next)."""
    b, packed = k.b, REGISTER[kind.packed]
    there = b.gep(packed, base, b.mul(i, a.pitch)), a.pitch
    if a.copies is None:
        return there

    def copied():
        _copy_strip(k, kind, a.copies, there, i, count, depth)
        return a.copies.out, i64(a.copies.pitch)

    return _one_of(k, b.not_(a.copies.needed), there, copied)


def copy_rows(k, kind: Kind, lines: list[Val], depth: Val, to: Rows):
    """Copy the first `depth` elements of some rows, each by its address, to rows of one pitch."""
    b, packed = k.b, REGISTER[kind.packed]
    size = ir.bits_of(packed) // 8
    lanes = k.target.lanes(8 * size)
    ty, main = ir.vec(packed, lanes), b.and_(depth, i64(-lanes))
    for n, line in enumerate(lines):
        out = b.gep(packed, to.ptr, i64(n * to.pitch.const))
        k.loop(i64(0), main, lanes, lambda q, line=line, out=out: b.store(b.load(ty, b.gep(packed, line, q), size), b.gep(packed, out, q), size), "copy")
        k.loop(main, depth, 1, lambda q, line=line, out=out: b.store(b.load(packed, b.gep(packed, line, q), size), b.gep(packed, out, q), size), "last")


def _copy_strip(k, kind: Kind, to: Copies, source: tuple[Val, Val], i: Val, count: int, depth: Val):
    b, mem = k.b, memory_type(kind.packed)
    size, lanes = ir.bits_of(mem) // 8, to.depth
    ty, zero = ir.vec(mem, lanes), Val(ir.vec(mem, lanes), "zeroinitializer")
    rows = b.intrinsic("smax", b.intrinsic("smin", b.sub(to.ends[0], i), i64(count)), i64(0))
    end = b.intrinsic("smin", to.ends[1], depth)
    main = b.and_(end, i64(-lanes))
    inside = b.icmp("slt", b.iota("i32", lanes), b.splat(b.cast("trunc", b.sub(end, main), "i32"), lanes))

    def row(x: Val):
        line, out = b.gep(mem, source[0], b.mul(x, source[1])), b.gep(mem, to.out, b.mul(x, i64(to.pitch)))
        k.loop(i64(0), main, lanes, lambda q: b.store(b.load(ty, b.gep(mem, line, q), size), b.gep(mem, out, q), size), "copy")
        k.loop(main, end, lanes, lambda q: b.store(masked(k, ty, b.gep(mem, line, q), size, inside), b.gep(mem, out, q), size), "last")
        zeros(out, b.and_(b.add(end, i64(lanes - 1)), i64(-lanes)))

    def zeros(out: Val, first: Val):
        k.loop(first, depth, lanes, lambda q: b.store(zero, b.gep(mem, out, q), size), "zeros")

    k.loop(i64(0), rows, 1, row, "copy")
    k.loop(rows, i64(count), 1, lambda x: zeros(b.gep(mem, to.out, b.mul(x, i64(to.pitch))), i64(0)), "zeros")


# --- B: panels -----------------------------------------------------------------------------------------------------------


@dataclass
class Panels:
    """B as the micro-kernel reads it: row q of the panel that begins with column j at `ptr + j across + q width` (in elements along K that share a lane). lies: where it was loaded from, if
    whole panels may be read there: by all strips of A, if it is `direct`, or by the first one, which puts them into their places, where `woven` (an i1; None: never) is true.
    strip: where that one's rows are, so that one address leads to all of them."""

    ptr: Val
    across: int
    width: int
    lies: Lies | None = None
    woven: Val | None = None
    direct: bool = False
    strip: Rows | None = None


@dataclass
class Lies:
    """Where B lies, row q of column j at `ptr + q pitch + j`, if that `holds` (an i1). ends: up to which (rows, columns) it is there."""

    ptr: Val
    pitch: Val
    holds: Val
    ends: tuple[Val, Val]


def panels(k, step: Product, at: Place | None) -> Panels:
    """B in panels, put where they are to be."""
    found = Panels(k.pointer(step.b.buffer), step.kind.group if step.kind.blocks else step.k, step.width, direct=step.b.direct)
    put = functools.partial(_panels, k, step, at, found.ptr)
    if step.b.direct or step.b.woven is not None:
        ends = tuple(i64(size) if end is None else end for size, end in zip((step.k, step.n), at.ends))
        found.lies = Lies(at.ptr, number(k, at.source.steps[0]), at.given, ends)
        put = functools.partial(k.either, at.given, functools.partial(_rest_of_panels, k, step, at, found), put)
    if step.b.kept:
        needed = k.b.not_(_unless_there(k, at, put))
    else:
        put()
        needed = const("i1", True)
    if (buf := step.b.woven) is not None:
        found.woven, found.strip = needed, Rows(k.pointer(buf), i64(buf.strides[0]), padded=step.a.padded)
    return found


def _rest_of_panels(k, step: Product, at: Place, to: Panels):
    """What of B is no whole panel; and zeros behind its end, where somebody might see what they are multiplied into, or the next program's store."""
    b, end = k.b, to.lies.ends[1]
    last = i64(step.n)
    if not step.b.kept:
        last = b.select(ending.unseen(k, step, 1, end), b.intrinsic("smin", end, last), last)
    copy_panels(k, at, (step.k, step.n), step.kind, to.width, to.ptr, b.and_(end, i64(-to.width)), last)


def panel(k, kind: Kind, found: Panels, base: Val, j: Val) -> tuple[Val, Val]:
    """(where row 0 of the panel from column j on is, elements from row to row) of a matrix of B whose panels begin at `base`."""
    b, packed = k.b, REGISTER[kind.packed]
    put = b.gep(packed, base, b.mul(j, i64(found.across))), i64(found.width)
    if not found.direct:
        return put
    whole, lies = lies_whole(k, found, j), where_it_lies(k, kind, found, j)
    return b.select(whole, lies[0], put[0]), b.select(whole, lies[1], put[1])


def where_it_lies(k, kind: Kind, found: Panels, j: Val) -> tuple[Val, Val]:
    """As `panel`, of a panel that is read where it was loaded from."""
    return k.b.gep(REGISTER[kind.packed], found.lies.ptr, j), found.lies.pitch


def lies_whole(k, found: Panels, j: Val) -> Val:
    """An i1: may the panel from column j on be read where it was loaded from?"""
    return k.b.and_(found.lies.holds, k.b.icmp("sle", k.b.add(j, i64(found.width)), found.lies.ends[1]))


def _unless_there(k, at: Place, put: Callable) -> Val:
    """`put()` a source's elements into memory that nothing else is put into, unless the program before, of this call, has put the same ones there. What is returned is an i1: had it?"""
    b = k.b
    about = [b.cast("ptrtoint", at.ptr, "i64"), *(number(k, step) for step in at.source.steps), *(end for end in at.ends if end is not None)]
    about = [x for x in about if x.const is None]
    slots, same = [b.alloca("i64", "about") for _ in about], b.alloca("i1", "kept")
    b.at_first(same, const("i1", False))
    found = b.and_(b.load("i1", same, 1), at.given)  # where its indices wrap, other elements are wanted of the same place
    for x, slot in zip(about, slots):
        b.at_first(slot, i64(0))
        found = b.and_(found, b.icmp("eq", x, b.load("i64", slot, 8)))

    def put_and_note():
        put()
        for x, slot in zip(about, slots):
            b.store(x, slot, 8)
        b.store(at.given, same, 1)

    k.guarded(b.not_(found), put_and_note)
    return found


def _panels(k, step: Product, at: Place | None, out: Val):
    plan, kind = step.b, step.kind
    if plan.how == "blocks":
        k.run(plan.packing)
        return
    width, shape, g = plan.buffer.panel[1], (step.k, step.n), kind.group
    if plan.how == "turned":

        def where(j, q):
            in_panel = k.b.and_(j, i64(width - 1))
            return k.b.add(k.b.mul(k.b.sub(j, in_panel), i64(step.k)), k.b.mul(k.b.add(k.b.mul(q, i64(width)), in_panel), i64(g)))

        lanes = k.target.lanes(ir.bits_of(REGISTER[kind.acc]))
        k.either(at.given, lambda: turn(k, at, shape, kind.packed, lanes, out, where, group=g), lambda: k.run(plan.packing))
    elif plan.how == "copied":
        k.either(at.given, lambda: copy_panels(k, at, shape, kind, width, out), lambda: k.run(plan.packing))
    else:
        k.run(plan.packing)


def fetch(b, at: Val, nbytes: int, cache: int = 1):
    """Have the lines of so many bytes fetched for reading, into the first cache or the second."""
    for line in range(0, nbytes, LINE):
        b.fetch(b.gep("i8", at, i64(line)), cache)


def copy_panels(k, at: Place, shape, kind: Kind, width: int, out: Val, first: Val = i64(0), last: Val | None = None):
    """Pack B, whose rows are contiguous, into panels (see `panels`), those from column `first` on to `last` (None: all); what lies behind its limits is zero."""
    b = k.b
    kk, n = shape
    g = kind.group
    elem = at.source.load.operands[0].type.pointee.elem
    mem, packed = memory_type(elem), REGISTER[kind.packed]
    lanes = min(k.target.dot_lanes(ir.bits_of(REGISTER[kind.acc])), n)
    ty, size = ir.vec(mem, lanes), ir.bits_of(mem) // 8
    pitch = number(k, at.source.steps[0])
    rows_end, columns_end = (i64(x) if end is None else end for x, end in zip(shape, at.ends))
    zero = Val(ir.vec(packed, lanes), "zeroinitializer")
    ahead = k.target.ahead

    def panel(j):
        to = b.gep(packed, out, b.mul(j, i64(kk)))

        def rows_of(load):
            def row(q, count):
                if ahead:  # a row is in a page of its own, which no prefetcher of the hardware foresees
                    for u in range(count):
                        later = b.gep(mem, at.ptr, b.add(b.mul(b.add(q, i64(u + ahead)), pitch), j))
                        fetch(b, later, width * size)
                for v in range(0, width, lanes):
                    lines = [load(b.gep(mem, at.ptr, b.add(b.mul(b.add(q, i64(u)), pitch), b.add(j, i64(v)))), v) for u in range(count)]
                    lines = [converted(b, x, elem, kind.packed) for x in lines]
                    put(q, v, lines + [zero] * (g - count))

            main = b.and_(rows_end, i64(-g))
            k.loop(i64(0), main, g, lambda q: row(q, g), "row")
            left = b.sub(rows_end, main)
            for count in range(1, g):
                k.guarded(b.icmp("eq", left, count), lambda count=count: row(main, count))

        def put(q, v, lines):
            b.store(b.interleave(lines), b.gep(packed, to, b.add(b.mul(q, i64(width)), i64(v * g))), ir.bits_of(packed) // 8)

        def part():
            masks = {v: b.icmp("slt", b.iota("i64", lanes), b.splat(b.sub(columns_end, b.add(j, i64(v))), lanes))
                     for v in range(0, width, lanes)}
            if lanes == 1:
                masks = {v: b.icmp("slt", b.add(j, i64(v)), columns_end) for v in masks}
            rows_of(lambda p, v: masked(k, ty, p, size, masks[v]))

        k.either(b.icmp("sle", b.add(j, i64(width)), columns_end), lambda: rows_of(lambda p, v: b.load(ty, p, size)), part)
        rest = b.and_(b.add(rows_end, i64(g - 1)), i64(-g))
        k.loop(rest, i64(kk), g, lambda q: [put(q, v, [zero] * g) for v in range(0, width, lanes)], "rest")

    k.loop(first, i64(n) if last is None else last, width, panel, "panel")


def masked(k, ty: str, ptr: Val, size: int, mask: Val) -> Val:
    """The elements at `ptr` where `mask`, zero elsewhere."""
    b = k.b
    if mask.lanes == 1:  # LLVM's masked loads are of vectors
        return b.select(mask, b.load(ty, b.select(mask, ptr, k.zeros), size), Val(ty, "zeroinitializer"))
    return b.masked_load(ty, ptr, size, mask, Val(ty, "zeroinitializer"))


# --- operands that lie the other way round -------------------------------------------------------------------------------


def turn(k, at: Place, shape, packed: str, lanes: int, out: Val, where, group: int = 1, beside: int = 1):
    """Write the transpose of a matrix that is contiguous along dimension 0: `lanes` neighbours of dimension 1 as a vector, at element `where(column, row / group)` of `out`; in
    each lane `group` neighbours of dimension 0, or `beside` of dimension 1, of which there are so many times more then. Dimension 0 may be shorter than a vector: its lines are put one beside the other
    before they are transposed."""
    b = k.b
    along = min(lanes * group, shape[0])
    elem = at.source.load.operands[0].type.pointee.elem
    mem = memory_type(elem)
    ty = ir.vec(mem, along)
    size = ir.bits_of(mem) // 8
    unit = REGISTER[packed] if group * beside == 1 else f"i{ir.bits_of(REGISTER[packed]) * group * beside}"
    pitch = number(k, at.source.steps[1])
    ends = [i64(n) if end is None else end for n, end in zip(shape, at.ends)]

    def block(column, row):
        first = b.gep(mem, at.ptr, b.add(b.mul(column, pitch), row))
        count = lanes * beside
        lines_at = [b.gep(mem, first, b.mul(i64(t), pitch)) for t in range(count)]
        slots = [b.alloca(ty, "turn") for _ in range(count)]
        whole = const("i1", True)
        for x, span, limit, end in zip((row, column), (along, count), at.ends, ends):
            if limit is not None:
                whole = b.and_(whole, b.icmp("sle", b.add(x, i64(span)), end))
        def part():
            left = b.cast("trunc", b.sub(ends[0], row), "i32")
            inside = b.icmp("slt", b.iota("i32", along), b.splat(left, along))
            for t in range(count):
                here = b.icmp("slt", b.add(column, i64(t)), ends[1])
                mask = b.and_(inside, b.splat(here, along))
                b.store(masked(k, ty, lines_at[t], size, mask), slots[t], 64)

        def all_there():
            for t in range(count):
                b.store(b.load(ty, lines_at[t], size), slots[t], 64)

        k.either(whole, all_there, part)
        lines = [b.load(ty, s, 64) for s in slots]
        lines = [converted(b, v, elem, packed) for v in lines]
        if beside > 1:
            lines = [b.interleave(lines[n:n + beside]) for n in range(0, count, beside)]
        if group * beside > 1:
            lines = [b.reinterpret(v, ir.vec(unit, along // group)) for v in lines]
        grouped = row if group == 1 else b.bin("lshr", row, group.bit_length() - 1, "exact")
        for t, v in enumerate(b.transposed(lines)):
            b.store(v, b.gep(REGISTER[packed], out, where(column, b.add(grouped, i64(t)))), size if group == 1 else size * group)

    k.loop(i64(0), i64(shape[1]), lanes * beside, lambda column: k.loop(
        i64(0), i64(shape[0]), along, lambda row: block(column, row), "row"), "column")
