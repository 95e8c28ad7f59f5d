"""Matrix products: how they are multiplied, which of them at once, what they add to."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..llvm import ir
from ..llvm.elements import REGISTER
from ..ttir.ops import Kind as When, row
from ..ttir.types import Op, Type, Value, walk
from . import keeping
from .control import captured
from .ending import Ending
from .memory_order import Meets, argument, meets
from .operand import Kind, Operand, may_lie, panels, rows
from .records import Atom, Buffer, Idle, NestPlan, Trips
from .schedule import Schedule
from .source import End, Look, Source, is_zero
from .space import Space

#: (operand element) -> element that products are computed in
COMPUTE = {"f16": "f32", "f32": "f32", "f64": "f64", "i8": "i32",
           **dict.fromkeys(("bf16", "fp8e5", "fp8e4nv", "fp8e4b8", "fp8e5b16", "fp8e4b15"), "f32")}

#: panels of B from which on A's elements are read so often that putting them into strips is worth it
MANY = 4
#: terms of a product up to which panels go by a strip of rows, where accumulators end in registers, so that a row's results are written one behind the other; of more terms strips go by a panel, which stays in
#: the first cache. Emerald Rapids, fp32, two threads, us, strips and panels inside: 1024x64x1024 515, 455; 1024x32x1024 290, 250; 799x10x2407 475, 395; 184x12x2628 125, 114; one thread, and a Zen 5, the same
SHALLOW = 64
#: vector registers of targets on which the first strip puts panels there (by AVX2 it gains 3 to 10 %, and loops round it keep what they need on the stack)
_WEAVES = 32
#: rows of a micro-kernel one vector wide, at least: a core that begins two multiply-adds a cycle, of four cycles each, has eight under way
NARROW = 8


@dataclass(frozen=True)
class Product:
    """op's result = the sum of its `pieces` a[u] @ b[u], and of what `filling` (steps) puts into `destination`; in_place: that is a loop's own.
    zeros: the steps that would put zeros there, where accumulators begin as zeros in registers; first: only while these trips are none (of the loop that it
    is in, and of those that this one goes on from).

    rows, vectors: of the micro-kernel, registers: in each of the vectors; count: of matrices; m, n, k: of each; ends: where operands end (of A's rows, of its columns; of B's);
    lanes: of a vector of the micro-kernel; ending: what is done with the accumulators while they are in registers; sources: the loads that the operands are; requires: masks that must not wrap; final: where the result is converted to, if anywhere."""

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
    registers: int = 1
    zeros: tuple = ()
    first: tuple[Trips, ...] = ()
    lanes: int = 1
    ending: Ending | None = None

    @property
    def width(self) -> int:
        """Columns of the micro-kernel."""
        return self.lanes * self.vectors


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


def dot(s: Schedule, op: Op):
    chain = s.sequence.products.get(op)
    if chain is None:  # a later one carries it out with itself
        return
    for o in chain:
        _check(s, o)
    product(s, op, [o.operands[0] for o in chain], [o.operands[1] for o in chain], chain[0].operands[2], chain[0])


def _check(s: Schedule, op: Op):
    a, b = (v.type.elem for v in op.operands[:2])
    for elem in (a, b):
        if elem not in COMPUTE:
            raise s.refuse(op, f"{elem} operands are not taken; it takes {', '.join(COMPUTE)}")
    if COMPUTE[b] != COMPUTE[a]:
        raise s.refuse(op, f"operands {a} and {b} do not go together")


def _kind(target, a: str, b: str, m: int, n: int, k: int, piece: int) -> Kind:
    """How the target multiplies these operands best, whose k terms come in pieces that are put in place one by one."""
    for p in target.products:
        steps = p.tiles or p.blocks or (1, 1, 1)
        if p.tiles and k == steps[2] // 2:  # tiles of A that are half as wide, and of B half as high
            steps = *steps[:2], k
        if a == b == p.takes and piece % p.group == 0 and n >= target.lanes(32) and all(size % step == 0 for size, step in zip((m, n, k), steps)):
            return Kind(p.packed, p.acc, p)
    return Kind(a if a == b and a in target.widens else COMPUTE[a], COMPUTE[a])


def product(s: Schedule, op: Op, lhs: list[Value], rhs: list[Value], c: Value, first: Op | None = None):
    """The steps of op's result = the sum of lhs[u] @ rhs[u], and c. `first`: the operation that reads c."""
    *batch, m, piece = lhs[0].type.shape
    k = piece * len(lhs)
    n = rhs[0].type.shape[-1]
    out = op.result
    kind = _kind(s.target, lhs[0].type.elem, rhs[0].type.elem, m, n, k, piece)
    lanes = min(s.target.dot_lanes(ir.bits_of(REGISTER[kind.acc])), n)
    height, vectors = kind.by and kind.by.shape or s.target.dot
    look = Look(s)
    a_src, b_src = look.joined(lhs, 1), look.joined(rhs, 0)
    a_ends, b_ends = look.ends(lhs, a_src), look.ends(rhs, b_src)
    lies = s.target.few_rows > 0 and not batch and may_lie(rhs, b_src, kind) and _ends_with(a_ends[1], b_ends[0])
    direct = lies and m <= s.target.few_rows
    if direct and vectors > 2 and n > lanes:  # one pass over B: of as many rows as there are, or for two
        known = m if a_ends[0] is None else a_ends[0].known
        height, vectors = (known, vectors) if known is not None and known <= height else (NARROW, 2)
    if n <= lanes and not (kind.tiles or kind.blocks):
        height = max(height, NARROW)
    height, vectors = min(height, m), max(1, min(vectors, n // lanes))
    a = rows(s, lhs, a_src, kind, b_ends[0], height if n >= MANY * lanes * vectors else 0)
    weaves = lies and not direct and s.target.registers >= _WEAVES and k > SHALLOW and m >= 2 * height
    b = panels(s, rhs, b_src, kind, lanes * vectors, direct, strip=height if weaves else 0)
    if b_src is not None and not b.direct and _serves_others(s, s.sequence.products.get(op, [op]), b_src):
        b = replace(b, kept=True)
    with captured(s) as filling:
        destination, loop = _destination(s, op, first or op, c, kind.acc, lhs + rhs)
    trips, zeros = (), ()
    if loop is None and is_zero(c) and not kind.blocks:
        zeros, filling = filling, []
    elif loop is not None and not filling and not kind.blocks:
        before, zeros = s.zeros.pop(c, Idle((), ()))
        trips = (*before, Trips(s.sequence.end[loop], 1, False))
    final = None if destination.elem == out.type.elem else s.alloc(out.type.shape, out.type.elem)
    s.add(Product(op, len(lhs), kind, height, vectors, math.prod(batch), m, n, k, (a_src, b_src), (a_ends, b_ends), tuple(look.requires), a, b,
                  tuple(filling), destination, loop is not None, final, -(-lanes // s.target.lanes(ir.bits_of(REGISTER[kind.acc]))), tuple(zeros), trips, lanes))
    s.buffers[out] = final or destination


def _ends_with(a: End | None, b: End | None) -> bool:
    """Is nothing of A multiplied behind the end of B's rows?"""
    return b is None or a is not None and a.key == b.key


def _serves_others(s: Schedule, chain: list[Op], src: Source) -> bool:
    """May panels of B that one program made serve the next one of its thread? Its load is all that they depend on, nothing in the launch writes what it reads, and
    the kernel only stores what it multiplied: reductions and other products would want the same cache."""
    if s.checks is not None or s.variables is not None or not src.exact or src.load.attrs.get("isVolatile"):
        return False
    others = [o for o in walk(s.func.body) if row(o).kind is When.ROOT and o not in chain]
    if any(o.name != "tt.store" for o in others):
        return False
    answers = [meets(s, src.load, argument(s, o.operands[0])) for o in others]
    if any(a.meets is Meets.YES for a in answers):
        return False
    for a in answers:
        s.rely_on(a.pair, a.fine)
    return True


# --- accumulators ----------------------------------------------------------------------------------------------------


def _destination(s: Schedule, op: Op, first: Op, c: Value, compute: str, factors: list[Value]) -> tuple[Buffer, Op | None]:
    """The accumulator buffer, which holds C, and the loop whose own it is (None: no loop's): that is used where it is, without a copy per trip, unless the
    `factors` are made of it: they may be read while the result is written."""
    out = op.result
    held = loop = None
    if out.type.elem == compute and len(out.uses) == 1 and out.uses[0].name == "scf.yield":
        y = out.uses[0]
        region = y.block.region
        loop = region.op if region else None
        if loop is not None and loop.name == "scf.for":
            arg = region.block.args[1 + y.operands.index(out)]
            buf = s.buffers.get(arg)
            if (buf is not None and buf.is_row_major and s.facts.consumers(arg) == {first} and _elementwise_in(s, c, arg)
                    and not any(buf.piece in keeping.reads(s, v) for v in factors)):
                held = buf
                if c is arg:
                    return held, loop
    buf = held if held is not None else s.alloc(out.type.shape, compute)
    s.fill(buf, c, why="what the product adds to")
    return buf, loop if held is not None else None


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
