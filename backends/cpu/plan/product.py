"""Matrix products: how they are multiplied, where their operands lie, how far to go.

A's elements are broadcast one at a time, so where A is a plain load of contiguous rows in the computing type it is read
where it lies. Else it goes row by row into scratch, with a stride that avoids cache-set conflicts. B goes in panels as wide
as the micro-kernel, in its order. An operand that lies the other way round in memory is turned in registers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..llvm import ir
from ..llvm.elements import REGISTER
from ..llvm.targets import Product as Instruction
from ..ttir.ops import row
from ..ttir.types import Op, Type, Value
from . import keeping
from .control import captured, forget_foreign
from .facts import Affine, Poly, expanded, poly, poly_add, poly_const, poly_key, poly_mul
from .lazy import renamed
from .records import Atom, Buffer, NestPlan
from .schedule import Schedule
from .space import Space

#: (operand element) -> element that products are computed in
COMPUTE = {"f16": "f32", "f32": "f32", "f64": "f64", "i8": "i32",
           **dict.fromkeys(("bf16", "fp8e5", "fp8e4nv", "fp8e4b8", "fp8e5b16", "fp8e4b15"), "f32")}


@dataclass(frozen=True)
class Kind:
    """How products are computed: element types of packed operands and accumulators, how many elements along K share one
    lane (2: a pair of 16-bit numbers, low one first), whether whole tiles are multiplied (AMX), and the target's instruction for it (None:
    one that multiplies and one that adds)."""

    packed: str
    acc: str
    group: int = 1
    tiles: bool = False
    by: Instruction | None = None


@dataclass(frozen=True)
class End:
    """The index from which on an operand is zero along a dimension of `size`: the least of those at which a polynomial of `bases` stops
    being below 0 (or of none where an i1 does not hold). Equal keys mean equal values."""

    size: int
    bases: tuple[Poly | Value | bool, ...]

    @property
    def key(self) -> frozenset:
        return frozenset(b if isinstance(b, (Value, bool)) else poly_key(expanded(b)) for b in self.bases)

    @property
    def known(self) -> int | None:
        """The index, where it is one number."""
        return _known(self.bases[0], self.size) if len(self.bases) == 1 else None


def _known(base, size: int) -> int | None:
    if isinstance(base, bool):
        return size if base else 0
    if isinstance(base, Value):
        return None
    c = poly_const(base)
    return None if c is None else min(max(-c, 0), size)


@dataclass(frozen=True)
class Inside:
    """A range of indices lies within a size: 0 <= first and first + span <= end."""

    first: Poly
    span: int
    end: Poly

    @property
    def known(self) -> bool | None:
        first, end = poly_const(self.first), poly_const(self.end)
        above = None if first is None else first >= 0
        below = None if first is None or end is None else first + self.span <= end
        return False if False in (above, below) else True if above and below else None


def all_known(tests) -> bool | None:
    """Do all of the tests, each True, False or None (it depends), hold?"""
    tests = list(tests)
    return False if False in tests else None if None in tests else True


@dataclass(frozen=True)
class Source:
    """A load that an operand is, element for element: elements `base + row x steps[0] + column x steps[1]` from `origin`, zero
    from `limits` on (None: there is no limit). `exact`: nothing else masks it. All that where `given` holds: an index that is
    taken modulo a size, as kernels do to stay inside a matrix, is itself unless the block passes the end."""

    load: Op
    origin: Value
    base: Poly
    steps: tuple[Poly, Poly]
    limits: tuple[End | None, End | None]
    exact: bool
    shape: tuple[int, int]
    given: tuple[Inside, ...]
    along: int | None = None

    @property
    def is_given(self) -> bool | None:
        return all_known(i.known for i in self.given)


@dataclass(frozen=True)
class Operand:
    """Where the micro-kernel finds an operand.

    how: "buffer" (it is in scratch already), "in place" (where it is loaded from), "turned" (transposed in registers on its way into `buffer`),
    "copied" (row by row into panels) or "packed" (by `packing`). only_if: it is so where the source's conditions hold, which the kernel looks
    at; else it is packed. limit, padded: of rows read in place (`Rows` of emit/product/pack.py)."""

    how: str
    buffer: Buffer | None = None
    packing: tuple = ()
    only_if: bool = False
    limit: End | None = None
    padded: bool = True
    whole: bool = False
    why: str = ""


@dataclass(frozen=True)
class Product:
    """op's result = the sum of lhs[u] @ rhs[u], and what `destination` holds, `before` it was filled.

    rows, vectors: of the micro-kernel; count: of matrices; m, n, k: of each; ends: where operands end (of A's rows, of its columns; of B's);
    sources: the loads that the operands are; requires: masks that must not wrap; final: where the result is converted to, if anywhere."""

    op: Op
    pieces: int
    kind: Kind
    rows: int
    vectors: int
    count: int
    m: int
    n: int
    k: int
    sources: tuple[Source | None, Source | None]
    ends: tuple[tuple[End | None, End | None], tuple[End | None, End | None]]
    requires: tuple[tuple[Op, NestPlan, Atom], ...]
    a: Operand
    b: Operand
    filling: tuple
    destination: Buffer
    in_place: bool
    final: Buffer | None


@dataclass(frozen=True)
class Decode:
    """An operand of `op` in one of the scaled formats is decoded into `out`. `source`, `scales`: where it and its scales lie; form: its format;
    k_pack: pairs lie along K; free: its other dimension; k_axis: which one of its dimensions is K."""

    op: Op
    value: Value
    source: Buffer
    scale: Value | None
    scales: Buffer | None
    out: Buffer
    form: str
    k_pack: bool
    free: int
    k_axis: int


DEFERRED = object()  # what a product returns that a later one carries out with itself


def dot(s: Schedule, op: Op):
    if _next(op) is not None:
        return DEFERRED
    chain = [op]
    while chain[0].operands[2].op is not None and chain[0].operands[2].op.name == "tt.dot" and _next(chain[0].operands[2].op) is chain[0]:
        chain.insert(0, chain[0].operands[2].op)
    for o in chain:
        _check(s, o)
    product(s, op, [o.operands[0] for o in chain], [o.operands[1] for o in chain], chain[0].operands[2], chain[0])
    s.executed.update(chain)


def _next(op: Op) -> Op | None:
    """The product that adds to this one's result, right behind it in the block, and is all that reads it: K in pieces, as in an unrolled
    loop. (The two are multiplied at once: the accumulators go through registers once.)"""
    out = op.result
    if len(out.uses) != 1 or out.uses[0].name != "tt.dot" or out.uses[0].block is not op.block:
        return None
    other = out.uses[0]
    if other.operands[2] is not out or [o.type for o in other.operands] != [o.type for o in op.operands]:
        return None
    ops = op.block.ops
    between = ops[ops.index(op) + 1:ops.index(other)]
    return other if not any(o.regions or row(o).writes for o in between) else None


def _check(s: Schedule, op: Op):
    a, b = (v.type.elem for v in op.operands[:2])
    for elem in (a, b):
        if elem not in COMPUTE:
            raise s.refuse(op, f"{elem} operands are not taken; it takes {', '.join(COMPUTE)}")
    if COMPUTE[b] != COMPUTE[a]:
        raise s.refuse(op, f"operands {a} and {b} do not go together")


def _kind(target, a: str, b: str, m: int, n: int, k: int) -> Kind:
    """How the target multiplies these operands best."""
    for p in target.products:
        fits = all(size % step == 0 for size, step in zip((m, n, k), p.tiles or (1, 1, 1)))
        if a == b == p.takes and k >= p.group and n >= target.lanes(32) and fits:
            return Kind(p.packed, p.acc, p.group, p.tiles is not None, p)
    return Kind(COMPUTE[a], COMPUTE[a])


def product(s: Schedule, op: Op, lhs: list[Value], rhs: list[Value], c: Value, first: Op | None = None):
    """The steps of op's result = the sum of lhs[u] @ rhs[u], and c. `first`: the operation that reads c."""
    *batch, m, k = lhs[0].type.shape
    k *= len(lhs)
    n = rhs[0].type.shape[-1]
    out = op.result
    kind = _kind(s.target, lhs[0].type.elem, rhs[0].type.elem, m, n, k)
    lanes = min(s.target.lanes(ir.bits_of(REGISTER[kind.acc])), n)
    rows, vectors = kind.by and kind.by.shape or s.target.dot
    rows, vectors = min(rows, m), max(1, min(vectors, n // lanes))
    look = _Look(s)
    a_src, b_src = look.joined(lhs, 1), look.joined(rhs, 0)
    a_ends, b_ends = look.ends(lhs, a_src), look.ends(rhs, b_src)
    a = _rows(s, lhs, a_src, kind, b_ends[0])
    b = _panels(s, rhs, b_src, kind, lanes * vectors)
    with captured(s) as filling:
        destination, in_place = _destination(s, op, first or op, c, kind.acc, lhs + rhs)
    final = None if destination.elem == out.type.elem else s.alloc(out.type.shape, out.type.elem)
    s.add(Product(op, len(lhs), kind, rows, vectors, math.prod(batch), m, n, k, (a_src, b_src), (a_ends, b_ends), tuple(look.requires), a, b,
                  tuple(filling), destination, in_place, final))
    s.buffers[out] = final or destination


# --- where an operand is zero, and which load it is ------------------------------------------------------------------


class _Look:
    """What is found out of one product's operands; `requires`: what must hold for it."""

    def __init__(self, s: Schedule):
        self.s = s
        self.requires: list[tuple[Op, NestPlan, Atom]] = []

    def _ends(self, found, shape) -> tuple[End | None, End | None]:
        """For each of the last two dimensions where elements end, of what was `found` of them."""
        rank = len(shape)
        out = []
        for d in (rank - 2, rank - 1):
            end = End(shape[d], tuple(found[d])) if found.get(d) else None
            out.append(None if end is None or end.known == shape[d] else end)
        return tuple(out)

    def _limits(self, v: Value) -> tuple[End | None, End | None]:
        """For each of the last two dimensions of `v` where its elements end: from there on all are certainly +0 because they are masked
        off. None where nothing is known."""
        space = Space(self.s.known, v.type.shape)
        found: dict[int, list] = {}
        self._zeros(space, v, space.identity, found)
        return self._ends(found, v.type.shape)

    def _zeros(self, space: Space, v: Value, dims, found):
        op = v.op
        if op is None or v in self.s.buffers:
            return
        if op.name == "tt.load":
            if len(op.operands) > 1 and (len(op.operands) < 3 or _is_zero(op.operands[2])):
                self._bounds(space, op.operands[1], dims, found)
        elif op.name in ("arith.extf", "arith.truncf", "arith.extsi", "arith.extui", "tt.fp_to_fp"):
            self._zeros(space, op.operands[0], dims, found)
        elif op.name == "arith.select" and _is_zero(op.operands[2]):
            self._bounds(space, op.operands[0], dims, found)
        else:
            mapped = renamed(op, dims)
            if mapped is not None:
                self._zeros(space, op.operands[0], mapped, found)

    def _bounds(self, space: Space, mask: Value, dims, found) -> bool:
        """Note in `found` (dimension -> polynomials p: false where index + p >= 0; or an i1) what `mask` is bounded by. Says whether that is all."""
        op = mask.op
        if not mask.type.is_tensor:
            found.setdefault(0, []).append(_truth(mask))
            return True
        if op is None or mask in self.s.buffers:
            return False
        whole = len(space.shape) - 2
        if op.name == "tt.splat":
            found.setdefault(whole, []).append(_truth(op.operands[0]))
            return True
        if op.name == "arith.constant" and not isinstance(op.attrs["value"], list):
            if not op.attrs["value"]:
                found.setdefault(whole, []).append(False)
            return True
        if op.name == "arith.andi":
            return all([self._bounds(space, o, dims, found) for o in op.operands])
        if op.name == "arith.cmpi":
            return self._bound(space, mask, dims, found)
        mapped = renamed(op, dims)
        return mapped is not None and self._bounds(space, op.operands[0], mapped, found)

    def _bound(self, space: Space, mask: Value, dims, found) -> bool:
        atoms = space.atoms([(mask, dims)], self.s.proved)
        if not atoms or len(atoms[0].coef) != 1:
            return False
        (d, p), = atoms[0].coef.items()
        if poly_const(p) != 1:  # a larger step might wrap in 32 bits, on purpose
            return False
        if any(c.bits == 64 for c in atoms[0].checks):
            return False  # numbers so large that a difference might wrap are no error: they are compared one by one
        self._must_not_wrap(space, atoms[0], mask.op)
        found.setdefault(d, []).append(atoms[0].base)
        return True

    def _must_not_wrap(self, space: Space, atom: Atom, op: Op):
        """A row or column number of a matrix that wraps would lie outside it: where one does, the launch raises."""
        s = self.s
        if atom.checks and (op, s.block) not in s.required:
            s.required.add((op, s.block))
            self.requires.append((op, NestPlan(space.shape), atom))

    def source(self, v: Value) -> Source | None:
        """The load that matrix `v` is, element for element, if its address is affine."""
        s = self.s
        if len(v.type.shape) != 2:
            return None
        shape = v.type.shape
        space = Space(s.known, shape)
        dims = space.identity
        while v not in s.buffers and v.op is not None and v.op.name == "tt.trans":
            dims = renamed(v.op, dims)
            v = v.op.operands[0]
        op = v.op
        if op is None or op.name != "tt.load" or v in s.buffers or v.type.elem == "i1":
            return None
        aff, given = _without_wrapping(space, space.affine(op.operands[0], dims))
        if aff is None or aff.ptr is None or aff.ptr.type.is_tensor:
            return None
        found: dict[int, list] = {}
        exact = True
        if len(op.operands) > 1:
            exact = self._bounds(space, op.operands[1], dims, found) and (len(op.operands) < 3 or _is_zero(op.operands[2]))
        return Source(op, aff.ptr, aff.base, (aff.coef.get(0, {}), aff.coef.get(1, {})), self._ends(found, shape), exact, shape, given)

    def joined(self, values: list[Value], along: int) -> Source | None:
        """The one load that `values`, pieces of an operand that follow each other along dimension `along`, are together; None where they are
        not a load each, or do not follow each other in memory and in their masks."""
        pieces = [self.source(v) for v in values]
        if None in pieces or len(pieces) == 1:
            return None if None in pieces else pieces[0]
        first, size = pieces[0], values[0].type.shape[along]
        if not all(_follows(x, first, u * size, along) for u, x in enumerate(pieces[1:], 1)):
            return None
        limits = list(first.limits)
        if limits[along]:
            limits[along] = replace(limits[along], size=size * len(values))
        return replace(first, limits=tuple(limits), along=along)

    def ends(self, values: list[Value], src: Source | None) -> tuple[End | None, End | None]:
        """Where an operand in pieces ends; `src`: what they are together."""
        if src and src.exact:
            return src.limits
        return self._limits(values[0]) if len(values) == 1 else (None, None)


def _truth(v: Value) -> Value | bool:
    """A scalar i1: what it is, where that is known."""
    return bool(v.op.attrs["value"]) if v.op is not None and v.op.name == "arith.constant" else v


def _is_zero(v: Value) -> bool:
    while v.op is not None and v.op.name == "tt.splat":
        v = v.op.operands[0]
    return v.op is not None and v.op.name == "arith.constant" and v.op.attrs["value"] in (0, 0.0) and str(
        v.op.attrs["value"])[0] != "-"


def _follows(x: Source, first: Source, distance: int, along: int) -> bool:
    """Is `x` the load `distance` behind `first` along a dimension, masked as it is?"""
    apart = poly_add(expanded(x.base), expanded(first.base), -1)
    if (x.origin is not first.origin or x.steps != first.steps or not (x.exact and first.exact)
            or x.load.operands[0].type != first.load.operands[0].type
            or apart != expanded(poly_mul(poly(distance), first.steps[along]))):
        return False
    p, q = x.limits[1 - along], first.limits[1 - along]
    if (p is None) != (q is None) or p and p.key != q.key:
        return False
    p, q = x.limits[along], first.limits[along]
    if (p is None) != (q is None):
        return False
    return p is None or (len(p.bases) == len(q.bases) == 1 and isinstance(p.bases[0], dict) and isinstance(q.bases[0], dict)
                         and poly_add(expanded(p.bases[0]), expanded(q.bases[0]), -1) == poly(distance))


def _without_wrapping(space: Space, aff: Affine) -> tuple[Affine | None, tuple[Inside, ...]]:
    """An address with `(base + index) % size` taken as `base + index`, and under which conditions it is that."""
    out, given = Affine(aff.base, dict(aff.coef), [], aff.ptr), []
    for v, dims, scale in aff.opaque:
        if v.op is None or v.op.name not in ("arith.remsi", "arith.remui"):
            return None, ()
        x, size = (space.affine(o, dims) for o in v.op.operands)
        if x.opaque or x.ptr is not None or not size.uniform or len(x.coef) != 1:
            return None, ()
        (d, step), = x.coef.items()
        if poly_const(step) != 1:
            return None, ()
        out = out.plus(x.times(scale))
        given.append(Inside(x.base, space.shape[d], size.base))
    return out, tuple(given)


# --- A: rows ---------------------------------------------------------------------------------------------------------


def _rows(s: Schedule, values: list[Value], src: Source | None, kind: Kind, depth: End | None) -> Operand:
    """A's rows, in place where they lie contiguous in the computing type, else in scratch. `values`: its pieces along K; `src`: the load
    that they are; `depth`: where B ends along K. In place A may be read up to its own end only, so the product must end there, too."""
    v = values[0]
    buf = s.buffers.get(v) if len(values) == 1 else None
    if buf is not None and buf.elem == kind.packed and buf.strides[-1] == 1 and buf.panel is None:
        return Operand("buffer", buf)
    *batch, m, piece = v.type.shape
    k = piece * len(values)
    lies_right = src and v.type.elem == kind.packed and poly_const(src.steps[1]) == 1
    in_place = lies_right and not kind.tiles and src.exact and (
        src.limits[1] is None or depth is not None and src.limits[1].key == depth.key)
    limit = src.limits[0] if src else None
    if in_place and src.is_given:
        return Operand("in place", limit=limit, padded=src.limits[1] is None)
    pitch = k + 64 // (ir.bits_of(REGISTER[kind.packed]) // 8) if k >= 64 else k
    strides, step = [], m * pitch
    for d in reversed(batch):
        strides.append(step)
        step *= d
    out = s.alloc((*batch, m, k), kind.packed, tuple(reversed(strides)) + (pitch, 1), size=step)

    def pack():
        for u, x in enumerate(values):
            s.fill(s.view(out, u * piece, x.type.shape, out.strides), x, why="rows of a product's operand")

    if lies_right and kind.tiles:
        return _either(s, out, _is_whole(src, (m, k)), pack, "in place", whole=True)
    if in_place:
        return replace(_either(s, out, src.is_given, pack, "in place"), limit=limit, padded=src.limits[1] is None)
    lanes = s.target.lanes(ir.bits_of(REGISTER[kind.packed]))
    if kind.group == 1 and _turnable(s, src, (m, k), kind.packed, lanes, 1):
        return _either(s, out, src.is_given, pack, "turned")
    return _either(s, out, False, pack, "packed", why=_why_packed(src, v, kind))


def _why_packed(src: Source | None, v: Value, kind: Kind) -> str:
    if src is None:
        return "it is no plain load"
    if v.type.elem != kind.packed:
        return f"{v.type.elem} is multiplied as {kind.packed}"
    return "its rows are not contiguous" if poly_const(src.steps[1]) != 1 else "its mask is not a plain bound"


def _is_whole(src: Source, sizes) -> bool | None:
    """Are all of the operand's elements there?"""
    ends = [None if end.known is None else end.known >= size for end, size in zip(src.limits, sizes) if end]
    return all_known([src.is_given, src.exact, *ends])


def _either(s: Schedule, out: Buffer, holds: bool | None, pack, how: str, **more) -> Operand:
    """An operand that is `how` where a condition holds, else packed into `out`."""
    if holds:
        return Operand(how, out, **more)
    if holds is not None:
        with captured(s) as steps:
            pack()
        return Operand("packed", out, tuple(steps), **more)
    before = set(s.buffers)
    with captured(s) as steps:
        pack()
    forget_foreign(s, before, ())
    return Operand(how, out, tuple(steps), only_if=True, **more)


# --- B: panels -------------------------------------------------------------------------------------------------------


def _panels(s: Schedule, values: list[Value], src: Source | None, kind: Kind, width: int) -> Operand:
    """B in panels of `width` columns, each [K / group][width][group]. `values`: its pieces along K; `src`: the load that they are. A batch
    follows the other."""
    *batch, piece, n = values[0].type.shape
    k = piece * len(values)
    lanes = s.target.lanes(ir.bits_of(REGISTER[kind.acc]))
    strides, step = [], k * n
    for d in reversed(batch):
        strides.append(step)
        step *= d
    axis, group = len(batch) + 1, kind.group
    out = s.alloc((*batch, k, n), kind.packed, tuple(reversed(strides)) + (width, group), panel=(axis, width, k * width))

    def pack():
        for u, x in enumerate(values):
            part = replace(s.view(out, u * piece * width, x.type.shape, out.strides), panel=out.panel)
            s.fill(part, x, vdim=axis, inner=axis - 1, unroll=max(1, width // lanes), pairs=group == 2, why="panels of a product's operand")

    if _turnable(s, src, (k, n), kind.packed, lanes, group):
        return _either(s, out, src.is_given, pack, "turned")
    if src and (not src.is_given or len(values) > 1) and src.exact and poly_const(src.steps[1]) == 1 and s.target.lanes(32) > 1:
        return _either(s, out, src.is_given, pack, "copied")
    return _either(s, out, False, pack, "packed")


def _turnable(s: Schedule, src: Source | None, shape, packed: str, lanes: int, group: int) -> bool:
    """Is the operand contiguous along its first dimension, and such that registers turn it?"""
    if src is None or not src.exact or not s.target.turns:
        return False
    elem = src.load.operands[0].type.pointee.elem
    fits = elem == packed or (packed, elem) in (("f32", "f16"), ("f32", "bf16"), ("i16", "i8"), ("i32", "i8"))
    return (fits and shape[0] % (lanes * group) == 0 and shape[1] % lanes == 0
            and poly_const(src.steps[0]) == 1 and poly_const(src.steps[1]) != 1)


# --- accumulators ----------------------------------------------------------------------------------------------------


def _destination(s: Schedule, op: Op, first: Op, c: Value, compute: str, factors: list[Value]) -> tuple[Buffer, bool]:
    """The accumulator buffer, which holds C, and whether it is the loop's own: that is used where it is, without a copy per trip, unless the
    `factors` are made of it: they may be read while the result is written."""
    out = op.result
    held = None
    if out.type.elem == compute and len(out.uses) == 1 and out.uses[0].name == "scf.yield":
        y = out.uses[0]
        region = y.block.region
        loop = region.op if region else None
        if loop is not None and loop.name == "scf.for":
            arg = region.block.args[1 + y.operands.index(out)]
            buf = s.buffers.get(arg)
            if (buf is not None and buf.is_row_major and s.facts.consumers(arg) == {first} and _elementwise_in(s, c, arg)
                    and not any(buf.base in keeping.reads(s, v) for v in factors)):
                held = buf
                if c is arg:
                    return held, True
    buf = held if held is not None else s.alloc(out.type.shape, compute)
    s.fill(buf, c, why="what the product adds to")
    return buf, held is not None


def _elementwise_in(s: Schedule, c: Value, arg: Value) -> bool:
    """Does `c` read `arg` only at its own index?"""
    space = Space(s.known, c.type.shape)
    return all(dims == space.identity for v, dims in space.explore([(c, space.identity)]) if v is arg)


# --- scaled products -------------------------------------------------------------------------------------------------

#: a format's name in TTIR -> its element type here (fp4 stays packed)
FORMATS = {"e2m1": "e2m1", "e4m3": "fp8e4nv", "e5m2": "fp8e5", "bf16": "bf16", "fp16": "f16"}


def dot_scaled(s: Schedule, op: Op):
    """The operands are decoded into f32, and multiplied there."""
    scaled = op.attrs.get("scales", [])
    rest = iter(op.operands)
    found = []
    for _ in "ab":
        v = next(rest)
        at = len(found) + sum(scale is not None for _, scale in found) + 1
        found.append((v, next(rest) if at in scaled else None))
    c = next(rest)
    (a, a_scale), (b, b_scale) = found
    m, n = op.result.type.shape[-2:]
    lhs = _decoded(s, op, a, a_scale, str(op.attrs.get("lhs")), op.attrs.get("lhs_k_pack", True), m, k_axis=1)
    rhs = _decoded(s, op, b, b_scale, str(op.attrs.get("rhs")), op.attrs.get("rhs_k_pack", True), n, k_axis=0)
    product(s, op, [lhs], [rhs], c)


def _decoded(s: Schedule, op: Op, v: Value, scale: Value | None, form: str, k_pack: bool, free: int, k_axis: int) -> Value:
    """The operand in f32, as a value held in scratch: [..., free, K] where `k_axis` is 1, [..., K, free] where it is 0."""
    if form not in FORMATS:
        raise s.refuse(op, f"format {form} is not one of {', '.join(FORMATS)}")
    why = "an operand in a scaled format is decoded from memory"
    source = s.materialise_row_major(v, why=why)
    *batch, height, width = v.type.shape
    k = (height, width)[k_axis] * (2 if FORMATS[form] == "e2m1" and k_pack else 1)
    shape = (free, k) if k_axis else (k, free)
    out = s.alloc((*batch, *shape), "f32")
    scales = s.materialise_row_major(scale, why=why) if scale is not None else None
    s.add(Decode(op, v, source, scale, scales, out, form, k_pack, free, k_axis))
    value = Value(Type("f32", (*batch, *shape)))
    s.buffers[value] = out
    return value


PRODUCTS = {"tt.dot": dot, "tt.dot_scaled": dot_scaled}
