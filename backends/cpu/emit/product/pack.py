"""Operands of a matrix product: where they are zero, rows of A, panels of B.

A's elements are broadcast one at a time, so where A is a plain load of contiguous rows in the computing type it is read
where it lies. Else it goes row by row into scratch, with a stride that avoids cache-set conflicts. B goes in panels as wide
as the micro-kernel, in its order. An operand that lies the other way round in memory is turned in registers, a block of
lanes x lanes at a time.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ...llvm import ir
from ...plan.facts import Affine, Poly, expanded, poly, poly_add, poly_const, poly_mul
from ...llvm.ir import Val, const, i64
from ..nest import REGISTER, Buffer, Nest, memory_type, poly_key
from ...ttir.types import Value
from ..element import convert
from ..root import debug


@dataclass(frozen=True)
class Kind:
    """How products are computed: element types of packed operands and accumulators, how many elements along K share one
    lane (2: a pair of 16-bit numbers, low one first), and whether whole tiles are multiplied (AMX)."""

    packed: str
    acc: str
    group: int = 1
    tiles: bool = False


@dataclass(frozen=True)
class End:
    """The index (an i64) from which on an operand is zero along a dimension: the least of those at which a polynomial of `bases` stops
    being below 0 (or of none where an i1 does not hold). Equal keys mean equal values."""

    at: Val
    key: frozenset
    bases: tuple = ()


@dataclass
class Source:
    """A load that an operand is, element for element: elements `base + row x steps[0] + column x steps[1]` from `ptr`, zero
    from `limits` on (None: there is no limit). `exact`: nothing else masks it. All that where `given` (an i1) holds: an index that is
    taken modulo a size, as kernels do to stay inside a matrix, is itself unless the block passes the end."""

    load: object
    origin: Value
    base: Poly
    ptr: Val
    steps: tuple[Poly, Poly]
    limits: list[End | None]
    exact: bool
    nest: Nest
    given: Val


def widening(src: str, dst: str):
    """(b, lanes) -> lanes, converted from element `src` to `dst`; None where that is nothing."""
    if src == dst:
        return None
    if dst[0] == "i":
        return lambda b, v: b.cast("sext", v, REGISTER[dst])
    return lambda b, v: convert.float_to_float(b, v, src, dst)


# --- where an operand is zero ------------------------------------------------------------------------------------------


def limits(k, v) -> list[End | None]:
    """For each of the last two dimensions of `v` where its elements end: from there on all are certainly +0 because they are masked
    off. None where nothing is known."""
    found: dict[int, list] = {}
    nest = Nest(k, v.type.shape)
    rank = len(v.type.shape)
    _zeros(nest, v, nest.identity, found)
    return _least(nest, found, (rank - 2, rank - 1))


def _least(nest, found, dims) -> list[End | None]:
    out: list[End | None] = [None, None]

    def emit(_):
        for n, d in enumerate(dims):
            least, keys = None, set()
            bases = tuple(found.get(d, ()))
            for base in found.get(d, ()):
                if isinstance(base, Val):  # a condition for the whole operand
                    limit = nest.b.select(base, i64(nest.shape[d]), i64(0))
                    keys.add(base.s)
                else:
                    limit = nest._limit(base, {}, (), nest.shape[d])
                    keys.add(poly_key(expanded(base)))
                least = limit if least is None else nest.b.intrinsic("smin", least, limit)
            if least is not None and least.const != nest.shape[d]:
                out[n] = End(least, frozenset(keys), bases)

    nest.run([], emit)
    return out


def _zeros(nest, v, dims, found):
    op = v.op
    if op is None or v in nest.k.buffers:
        return
    if op.name == "tt.load":
        if len(op.operands) > 1 and (len(op.operands) < 3 or _is_zero(op.operands[2])):
            _bounds(nest, op.operands[1], dims, found)
    elif op.name in ("arith.extf", "arith.truncf", "arith.extsi", "arith.extui", "tt.fp_to_fp"):
        _zeros(nest, op.operands[0], dims, found)
    elif op.name == "arith.select" and _is_zero(op.operands[2]):
        _bounds(nest, op.operands[0], dims, found)
    else:
        mapped = nest.k.mapped_dims(op, dims)
        if mapped is not None:
            _zeros(nest, op.operands[0], mapped, found)


def _is_zero(v) -> bool:
    while v.op is not None and v.op.name == "tt.splat":
        v = v.op.operands[0]
    return v.op is not None and v.op.name == "arith.constant" and v.op.attrs["value"] in (0, 0.0) and str(
        v.op.attrs["value"])[0] != "-"


def _bounds(nest, mask, dims, found) -> bool:
    """Note in `found` (dimension -> polynomials p: false where index + p >= 0; or an i1) what `mask` is bounded by. Says whether that is all."""
    op = mask.op
    if not mask.type.is_tensor:
        found.setdefault(0, []).append(nest.k.scalar(mask))
        return True
    if op is None or mask in nest.k.buffers:
        return False
    if op.name == "tt.splat":
        found.setdefault(len(nest.shape) - 2, []).append(nest.k.scalar(op.operands[0]))
        return True
    if op.name == "arith.constant" and not isinstance(op.attrs["value"], list):
        if not op.attrs["value"]:
            found.setdefault(len(nest.shape) - 2, []).append(const("i1", False))
        return True
    if op.name == "arith.andi":
        return all([_bounds(nest, o, dims, found) for o in op.operands])
    if op.name == "arith.cmpi":
        nest.atoms = []
        nest.find_atoms([(mask, dims)])
        if not nest.atoms:
            return False
        atom = nest.atoms[0]
        if len(atom.coef) != 1:
            return False
        (d, p), = atom.coef.items()
        if poly_const(p) == 1:  # a larger step might wrap in 32 bits, on purpose
            if any(c.bits == 64 for c in atom.checks):
                return False  # numbers so large that a difference might wrap are no error: they are compared one by one
            _must_not_wrap(nest, atom, op)
            found.setdefault(d, []).append(atom.base)
            return True
        return False
    mapped = nest.k.mapped_dims(op, dims)
    return mapped is not None and _bounds(nest, op.operands[0], mapped, found)


def _must_not_wrap(nest, atom, op):
    """A row or column number of a matrix that wraps would lie outside it: where one does, the launch raises."""
    k = nest.k
    if atom.checks and (op, k.current_block) not in k.required:
        k.required.add((op, k.current_block))
        nest.run([], lambda _: None)
        debug.require(k, nest.sure(atom.checks), "a row or column number that masks a matrix product's operand passes 2^31 within a block", op)


def source(k, v) -> Source | None:
    """The load that matrix `v` is, element for element, if its address is affine."""
    if len(v.type.shape) != 2:
        return None
    nest = Nest(k, v.type.shape)
    dims = nest.identity
    while v not in k.buffers and v.op is not None and v.op.name == "tt.trans":
        dims = k.mapped_dims(v.op, dims)
        v = v.op.operands[0]
    op = v.op
    if op is None or op.name != "tt.load" or v in k.buffers or v.type.elem == "i1":
        return None
    aff, given = _without_wrapping(nest, nest.affine(op.operands[0], dims))
    if aff is None or aff.ptr is None or aff.ptr.type.is_tensor:
        return None
    found: dict[int, list] = {}
    exact = True
    if len(op.operands) > 1:
        exact = _bounds(nest, op.operands[1], dims, found) and (len(op.operands) < 3 or _is_zero(op.operands[2]))
    bounds = _least(nest, found, (0, 1))
    elem = memory_type(op.operands[0].type.pointee.elem)
    ptr = k.b.gep(elem, k.scalar(aff.ptr), _value(nest, aff.base))
    return Source(op, aff.ptr, aff.base, ptr, (aff.coef.get(0, {}), aff.coef.get(1, {})), bounds, exact, nest, given)


def joined(k, values: list[Value], along: int) -> Source | None:
    """The one load that `values`, pieces of an operand that follow each other along dimension `along`, are together; None where they are
    not a load each, or do not follow each other in memory and in their masks."""
    pieces = [source(k, v) for v in values]
    first, size = pieces[0], values[0].type.shape[along]
    if None in pieces or len(pieces) == 1:
        return None if None in pieces else first
    across = 1 - along
    for u, s in enumerate(pieces[1:], 1):
        apart = poly_add(expanded(s.base), expanded(first.base), -1)
        if (s.origin is not first.origin or s.steps != first.steps or not (s.exact and first.exact)
                or s.load.operands[0].type != first.load.operands[0].type
                or apart != expanded(poly_mul(poly(u * size), first.steps[along]))):
            return None
        x, y = s.limits[across], first.limits[across]
        if (x is None) != (y is None) or x and x.key != y.key:
            return None
        x, y = s.limits[along], first.limits[along]
        if (x is None) != (y is None) or x and (len(x.bases) != 1 or len(y.bases) != 1 or isinstance(x.bases[0], Val) or poly_add(
                expanded(x.bases[0]), expanded(y.bases[0]), -1) != poly(u * size)):
            return None
    limits = list(first.limits)
    if limits[along]:
        base = limits[along].bases[0]
        found = []
        first.nest.run([], lambda _: found.append(first.nest._limit(base, {}, (), size * len(values))))
        limits[along] = dataclasses.replace(limits[along], at=found[0])
    return dataclasses.replace(first, limits=limits)


def ends(k, values: list[Value], src: Source | None) -> list[End | None]:
    """`limits` of an operand in pieces; `src`: what they are together."""
    if src and src.exact:
        return src.limits
    return limits(k, values[0]) if len(values) == 1 else [None, None]


def _without_wrapping(nest, aff: Affine) -> tuple[Affine | None, Val]:
    """An address with `(base + index) % size` taken as `base + index`, and under which condition it is that."""
    b = nest.b
    out, given = Affine(aff.base, dict(aff.coef), [], aff.ptr), const("i1", True)
    for v, dims, scale in aff.opaque:
        if v.op is None or v.op.name not in ("arith.remsi", "arith.remui"):
            return None, given
        x, size = (nest.affine(o, dims) for o in v.op.operands)
        if x.opaque or x.ptr is not None or not size.uniform or len(x.coef) != 1:
            return None, given
        (d, step), = x.coef.items()
        if poly_const(step) != 1:
            return None, given
        out = out.plus(x.times(scale))
        first, end = _value(nest, x.base), _value(nest, size.base)
        given = b.and_(given, b.and_(b.icmp("sge", first, i64(0)), b.icmp("sle", b.add(first, i64(nest.shape[d])), end)))
    return out, given


def _value(nest, p: Poly) -> Val:
    nest.run([], lambda _: None)
    return nest.poly_value(p)


# --- A: rows -------------------------------------------------------------------------------------------------------------


@dataclass
class Rows:
    """A as the micro-kernel reads it: element (i, q) of batch p at `ptr + p batch + i pitch + q`. From `limit` rows on (None: all
    are there) nothing may be read; `padded`: so many elements of a row may be, of which those behind the operand's limit are 0."""

    ptr: Val
    pitch: Val
    batch: int = 0
    limit: Val | None = None
    padded: bool = True


def rows(k, values: list[Value], src: Source | None, kind: Kind, depth: End | None) -> Rows:
    """A's rows, in place where they lie contiguous in the computing type, else in scratch. `values`: its pieces along K; `src`: the load
    that they are; `depth`: where B ends along K. In place A may be read up to its own end only, so the product must end there, too."""
    v = values[0]
    buf = k.buffers.get(v) if len(values) == 1 else None
    if buf is not None and buf.elem == kind.packed and buf.strides[-1] == 1 and buf.panel is None:
        return Rows(buf.ptr, i64(buf.strides[-2]), buf.strides[0])
    *batch, m, piece = v.type.shape
    kk = piece * len(values)
    lies_right = src and v.type.elem == kind.packed and poly_const(src.steps[1]) == 1
    in_place = lies_right and not kind.tiles and src.exact and (
        src.limits[1] is None or depth and src.limits[1].key == depth.key)
    limit = src.limits[0].at if src and src.limits[0] else None
    if in_place and src.given.const:
        return Rows(src.ptr, _value(src.nest, src.steps[0]), 0, limit, src.limits[1] is None)
    pitch = kk + 64 // (ir.bits_of(REGISTER[kind.packed]) // 8) if kk >= 64 else kk
    strides, step = [], m * pitch
    for d in reversed(batch):
        strides.append(step)
        step *= d
    out = k.alloc((*batch, m, kk), kind.packed, tuple(reversed(strides)) + (pitch, 1), size=step)

    def copy():
        for u, x in enumerate(values):
            k.materialise_into(k.view(out, u * piece, x.type.shape, out.strides), x, widening(x.type.elem, kind.packed))

    if lies_right and kind.tiles:
        whole = _all(k, [src.given, const("i1", src.exact)] + [
            k.b.icmp("sge", end.at, i64(size)) for end, size in zip(src.limits, (m, kk)) if end])
        return _in_place_or_packed(k, src, out, pitch, whole, copy)
    if in_place:
        return dataclasses.replace(_in_place_or_packed(k, src, out, pitch, src.given, copy), limit=limit, padded=src.limits[1] is None)
    lanes = k.target.lanes(ir.bits_of(REGISTER[kind.packed]))
    if kind.group == 1 and _turnable(k, src, (m, kk), kind.packed, lanes, 1):
        k.either(src.given, lambda: turn(k, src, (m, kk), kind.packed, lanes, 1, out.ptr,
                                         lambda q, i: k.b.add(k.b.mul(i, i64(pitch)), q)), copy)
    else:
        copy()
    return Rows(out.ptr, i64(pitch), out.strides[0])


def _in_place_or_packed(k, src: Source, out: Buffer, pitch: int, whole: Val, copy) -> Rows:
    """A where it lies if `whole` (its tiles are read whole, its rows do not wrap), else what `copy` puts into `out`."""
    b = k.b
    lda = _value(src.nest, src.steps[0])
    if whole.const:
        return Rows(src.ptr, lda)
    ptr_slot, lda_slot = b.alloca("ptr", "rows"), b.alloca("i64", "pitch")

    def remember(ptr, pitch):
        b.store(ptr, ptr_slot, 8)
        b.store(pitch, lda_slot, 8)

    def packed():
        copy()
        remember(out.ptr, i64(pitch))

    k.either(whole, lambda: remember(src.ptr, lda), packed)
    return Rows(b.load("ptr", ptr_slot, 8), b.load("i64", lda_slot, 8))


# --- B: panels -----------------------------------------------------------------------------------------------------------


def panels(k, values: list[Value], src: Source | None, kind: Kind, width: int) -> Val:
    """Pack B: panels of `width` columns, each [K / group][width][group]. `values`: its pieces along K; `src`: the load that they are.
    Returns where the panels start; a batch follows the other."""
    *batch, piece, n = values[0].type.shape
    kk = piece * len(values)
    lanes = k.target.lanes(ir.bits_of(REGISTER[kind.acc]))
    strides, step = [], kk * n
    for d in reversed(batch):
        strides.append(step)
        step *= d
    axis = len(batch) + 1
    g = kind.group
    out = k.alloc((*batch, kk, n), kind.packed, tuple(reversed(strides)) + (width, g), panel=(axis, width, kk * width))

    def generic():
        for u, x in enumerate(values):
            part = dataclasses.replace(k.view(out, u * piece * width, x.type.shape, out.strides), panel=out.panel)
            k.materialise_into(part, x, widening(x.type.elem, kind.packed), vdim=axis, inner=axis - 1, unroll=max(1, width // lanes),
                               pairs=g == 2)

    if _turnable(k, src, (kk, n), kind.packed, lanes, g):
        def place(j, q):
            in_panel = k.b.and_(j, i64(width - 1))
            return k.b.add(k.b.mul(k.b.sub(j, in_panel), i64(kk)), k.b.mul(k.b.add(k.b.mul(q, i64(width)), in_panel), i64(g)))

        k.either(src.given, lambda: turn(k, src, (kk, n), kind.packed, lanes, g, out.ptr, place), generic)
    elif src and (not src.given.const or len(values) > 1) and src.exact and poly_const(src.steps[1]) == 1 and k.target.isa != "scalar":
        k.either(src.given, lambda: copy_panels(k, src, (kk, n), kind, width, out.ptr), generic)
    else:
        generic()
    return out.ptr


def copy_panels(k, src: Source, shape, kind: Kind, width: int, out: Val):
    """Pack B, whose rows are contiguous, into panels (see `panels`); what lies behind its limits is zero."""
    b = k.b
    kk, n = shape
    g = kind.group
    elem = src.load.operands[0].type.pointee.elem
    mem, packed, wide = memory_type(elem), REGISTER[kind.packed], widening(elem, kind.packed)
    lanes = min(k.target.lanes(ir.bits_of(REGISTER[kind.acc])), n)
    ty, size = ir.vec(mem, lanes), ir.bits_of(mem) // 8
    pitch = _value(src.nest, src.steps[0])
    rows_end, columns_end = (i64(x) if end is None else end.at for x, end in zip(shape, src.limits))
    zero = Val(ir.vec(packed, lanes), "zeroinitializer")

    def panel(j):
        to = b.gep(packed, out, b.mul(j, i64(kk)))

        def rows_of(load):
            def row(q, count):
                for v in range(0, width, lanes):
                    lines = [load(b.gep(mem, src.ptr, b.add(b.mul(b.add(q, i64(u)), pitch), b.add(j, i64(v)))), v) for u in range(count)]
                    lines = [wide(b, x) for x in lines] if wide else lines
                    put(q, v, lines + [zero] * (g - count))

            main = b.and_(rows_end, i64(-g))
            k.loop(i64(0), main, g, lambda q: row(q, g), "row")
            if g > 1:
                k.loop(main, rows_end, g, lambda q: row(q, 1), "last")

        def put(q, v, lines):
            x = lines[0] if g == 1 else b.shuffle(*lines, [i // 2 + lanes * (i % 2) for i in range(2 * lanes)])
            b.store(x, b.gep(packed, to, b.add(b.mul(q, i64(width)), i64(v * g))), ir.bits_of(packed) // 8)

        def part():
            masks = {v: b.icmp("slt", b.iota("i64", lanes), b.splat(b.sub(columns_end, b.add(j, i64(v))), lanes))
                     for v in range(0, width, lanes)}
            if lanes == 1:
                masks = {v: b.icmp("slt", b.add(j, i64(v)), columns_end) for v in masks}
            rows_of(lambda p, v: masked(k, ty, p, size, masks[v]))

        k.either(b.icmp("sle", b.add(j, i64(width)), columns_end), lambda: rows_of(lambda p, v: b.load(ty, p, size)), part)
        rest = b.and_(b.add(rows_end, i64(g - 1)), i64(-g))
        k.loop(rest, i64(kk), g, lambda q: [put(q, v, [zero] * g) for v in range(0, width, lanes)], "rest")

    k.loop(i64(0), i64(n), width, panel, "panel")


def masked(k, ty: str, ptr: Val, size: int, mask: Val) -> Val:
    """The elements at `ptr` where `mask`, zero elsewhere."""
    b = k.b
    if mask.lanes == 1:  # LLVM's masked loads are of vectors
        return b.select(mask, b.load(ty, b.select(mask, ptr, k.zeros), size), Val(ty, "zeroinitializer"))
    return b.call(f"llvm.masked.load.{ir.mangle(ty)}.p0", ty, [ptr, const("i32", size), mask, Val(ty, "zeroinitializer")])


def _all(k, tests: list[Val]) -> Val:
    out = const("i1", True)
    for t in tests:
        out = k.b.and_(out, t)
    return out


# --- operands that lie the other way round -------------------------------------------------------------------------------


def _turnable(k, src: Source | None, shape, packed: str, lanes: int, group: int) -> bool:
    """Is the operand contiguous along its first dimension, and such that `turn` takes it?"""
    if src is None or not src.exact or k.target.isa in ("RVV", "scalar"):
        return False
    elem = src.load.operands[0].type.pointee.elem
    fits = elem == packed or (packed, elem) in (("f32", "f16"), ("f32", "bf16"), ("i16", "i8"), ("i32", "i8"))
    return (fits and shape[0] % (lanes * group) == 0 and shape[1] % lanes == 0
            and poly_const(src.steps[0]) == 1 and poly_const(src.steps[1]) != 1)


def turn(k, src: Source, shape, packed: str, lanes: int, group: int, out: Val, place):
    """Write the transpose of a matrix that is contiguous along dimension 0: `lanes` neighbours of dimension 1 as a vector, `group`
    elements of dimension 0 in each lane, at element `place(column, row / group)` of `out`."""
    b = k.b
    elem = src.load.operands[0].type.pointee.elem
    mem, wide = memory_type(elem), widening(elem, packed)
    ty = ir.vec(mem, lanes * group)
    size = ir.bits_of(mem) // 8
    unit = REGISTER[packed] if group == 1 else f"i{ir.bits_of(REGISTER[packed]) * group}"
    pitch = _value(src.nest, src.steps[1])
    ends = [i64(n) if limit is None else limit.at for n, limit in zip(shape, src.limits)]

    def block(column, row):
        first = b.gep(mem, src.ptr, b.add(b.mul(column, pitch), row))
        at = [b.gep(mem, first, b.mul(i64(t), pitch)) for t in range(lanes)]
        slots = [b.alloca(ty, "turn") for _ in range(lanes)]
        whole = const("i1", True)
        for x, span, limit, end in zip((row, column), (lanes * group, lanes), src.limits, ends):
            if limit is not None:
                whole = b.and_(whole, b.icmp("sle", b.add(x, i64(span)), end))
        def part():
            left = b.cast("trunc", b.sub(ends[0], row), "i32")
            inside = b.icmp("slt", b.iota("i32", lanes * group), b.splat(left, lanes * group))
            for t in range(lanes):
                here = b.icmp("slt", b.add(column, i64(t)), ends[1])
                mask = b.and_(inside, b.splat(here, lanes * group))
                b.store(masked(k, ty, at[t], size, mask), slots[t], 64)

        def all_there():
            for t in range(lanes):
                b.store(b.load(ty, at[t], size), slots[t], 64)

        k.either(whole, all_there, part)
        lines = [b.load(ty, s, 64) for s in slots]
        if wide:
            lines = [wide(b, v) for v in lines]
        if group > 1:
            lines = [b.value(ir.vec(unit, lanes), f"bitcast {v.ty} {v.s} to {ir.vec(unit, lanes)}") for v in lines]
        grouped = row if group == 1 else b.value("i64", f"lshr exact i64 {row.s}, {group.bit_length() - 1}")
        for t, v in enumerate(transposed(b, lines)):
            b.store(v, b.gep(REGISTER[packed], out, place(column, b.add(grouped, i64(t)))), size if group == 1 else size * group)

    k.loop(i64(0), i64(shape[1]), lanes, lambda column: k.loop(
        i64(0), i64(shape[0]), lanes * group, lambda row: block(column, row), "row"), "column")


def transposed(b, lines: list[Val]) -> list[Val]:
    """n vectors of n lanes (a power of two) as the rows of a square, transposed: in log2 n rounds the off-diagonal blocks of ever
    smaller squares change places."""
    n = len(lines)
    half = n // 2
    while half:
        low = [x if not x & half else n + x - half for x in range(n)]
        high = [x + half if not x & half else n + x for x in range(n)]
        out = list(lines)
        for i in range(n):
            if not i & half:
                out[i] = b.shuffle(lines[i], lines[i + half], low)
                out[i + half] = b.shuffle(lines[i], lines[i + half], high)
        lines = out
        half //= 2
    return lines
