"""Accesses as boxes: the active lanes of an affine access whose mask bounds each dimension by itself are a box, and one call judges it whole.

The kernel says where index 0 lies, and of each dimension how many bytes one index is from the next and which indices are active. `@check.box` finds the
memory that the lowest and the highest address lie in, and where elements have to be looked at (races, what nobody has written) goes over them by runs:
elements side by side, through as many dimensions as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...llvm.elements import memory_type
from ...llvm.ir import NULL, TRUE, Builder, Module, Struct, Val, define, i64
from ...plan.checks import Site
from ...plan.facts import poly, poly_add, poly_const, poly_mul
from ...plan.lazy import renamed
from ...plan.records import row_major
from ...ttir.types import Value
from .. import access
from . import race
from .block import PROGRAM, SITE, service

#: a dimension of a box: bytes from an index to the next, the first active index, the one behind the last, and lanes from an index to the next. What is
#: left of it when runs are gone over: `end` is how many there are
DIMENSION = Struct("check.dimension", stride="i64", begin="i64", end="i64", lanes="i64")


@dataclass(frozen=True)
class Box:
    """The active lanes of an access. start: the address of index 0 in all dimensions; strides: bytes; ranges: (first, behind the last) active index;
    active: an i1, is any lane? sure: an i1, are they a box at all: does no comparison of the mask wrap?"""

    start: Val
    strides: list[Val]
    ranges: list[tuple[Val, Val]]
    active: Val
    sure: Val


def of(nest, site: Site) -> Box | None:
    """The box of a site's active lanes; None where they are none, or not known to be one. `nest` stands before its loops."""
    ptr = site.op.operands[0]
    aff = nest.space.affine(ptr, nest.plan.identity)
    if aff.opaque or aff.ptr is None or aff.ptr.type.is_tensor:
        return None
    found = _Bounds(nest)
    if site.mask is not None and not found.take(site.mask, nest.plan.identity):
        return None
    b = nest.b
    start = b.address(b.gep(memory_type(ptr.type.pointee.elem), nest.k.scalar(aff.ptr), access.poly_value(nest, aff.base)))
    strides = [access.poly_value(nest, poly_mul(aff.coef[d], poly(site.bytes))) if d in aff.coef else i64(0) for d in range(len(nest.shape))]
    return Box(start, strides, *found.value())


class _Bounds:
    """What a mask's conjuncts say of each dimension by itself."""

    def __init__(self, nest):
        self.nest = nest
        self.atoms = {(a.value, a.dims): a for a in nest.plan.atoms}
        self.first: list[list] = [[] for _ in nest.shape]  # polynomials: indices from these on
        self.end: list[list] = [[] for _ in nest.shape]  # and below these
        self.uniform: list[Value] = []
        self.sure = TRUE

    def take(self, mask: Value, dims) -> bool:
        """Note what a mask says. False where it says more."""
        op, atom = mask.op, self.atoms.get((mask, dims))
        if not mask.type.is_tensor:
            self.uniform.append(mask)
            return True
        if atom is not None:
            return self._bound(atom)
        if op is None or mask in self.nest.reads:
            return False
        if op.name == "arith.constant":
            return op.attrs["value"] is True or op.attrs["value"] == 1
        if op.name == "arith.andi":
            return all(self.take(o, dims) for o in op.operands)
        if op.name == "tt.splat":
            return self.take(op.operands[0], ())
        mapped = renamed(op, dims)
        return mapped is not None and self.take(op.operands[0], mapped)

    def _bound(self, atom) -> bool:
        """base + coef * index < 0, of one dimension."""
        if len(atom.coef) != 1:
            return False
        self.sure = self.nest.b.and_(self.sure, access.holds(self.nest, atom.checks))
        (d, coef), = atom.coef.items()
        if poly_const(coef) == 1:
            self.end[d].append(poly_mul(atom.base, poly(-1)))
        elif poly_const(coef) == -1:
            self.first[d].append(poly_add(atom.base, poly(1)))
        else:
            return False
        return True

    def value(self) -> tuple[list[tuple[Val, Val]], Val, Val]:
        b, out, active = self.nest.b, [], TRUE
        for n, first, end in zip(self.nest.shape, self.first, self.end):
            low, high = i64(0), i64(n)
            for p in first:
                low = b.smax(low, access.poly_value(self.nest, p))
            for p in end:
                high = b.smin(high, access.poly_value(self.nest, p))
            out.append((low, high))
            if first or end:
                active = b.and_(active, b.icmp("slt", low, high))
        for v in self.uniform:
            active = b.and_(active, self.nest.k.scalar(v))
        return out, active, self.sure


def look(k, box: Box, site: Site, shape) -> Val:
    """How many of a box's lanes are outside, an i64: a call."""
    b = k.b
    dims = b.alloca(f"[{len(shape)} x {DIMENSION.ty}]", "box", 8)
    for d, (stride, (begin, end), lanes) in enumerate(zip(box.strides, box.ranges, row_major(shape))):
        at = b.gep(DIMENSION.ty, dims, i64(d))
        for name, v in dict(stride=stride, begin=begin, end=end, lanes=i64(lanes)).items():
            b.put(DIMENSION, at, name, v)
    return b.call(service(b, k.block, "box"), "i64", [k.block, k.sites[site], PROGRAM, box.start, dims, i64(len(shape))])


# --- the function that is called ---------------------------------------------------------------------------------------


def add(m: Module, kinds: frozenset[str], orders: bool):
    """@check.box: how many lanes of a box, of which none is empty, are outside."""
    _rows(m, kinds, orders)
    b = define(m, "check.box", "i64", "internal", "noinline", block="ptr", site="ptr", program="i64", start="i64", dims="ptr", rank="i64")
    block, site, program, start, dims, rank = b.fn.args
    size = b.cast("zext", b.get(SITE, site, "bytes"), "i64")
    low, high = b.variable(start), b.variable(start)
    with b.loop(i64(0), rank) as d:
        at = b.gep(DIMENSION.ty, dims, d)
        stride, begin, end = (b.get(DIMENSION, at, name) for name in ("stride", "begin", "end"))
        first, last = b.mul(stride, begin), b.mul(stride, b.sub(end, 1))
        low.set(b.add(low.get(), b.smin(first, last)))
        high.set(b.add(high.get(), b.smax(first, last)))
    bytes_ = b.add(b.sub(high.get(), low.get()), size)
    extent = b.variable(NULL)
    with b.when(b.icmp("sgt", bytes_, 0)):
        extent.set(b.call("check.find", "ptr", [block, site, low.get(), bytes_]))
    if not kinds & {"race", "uninit"}:
        with b.when(b.icmp("ne", extent.get(), NULL)):
            b.ret(i64(0))
    address, lane, left, n, step = b.variable(start), b.variable(i64(0)), b.variable(i64(0)), b.variable(i64(1)), b.variable(i64(0))
    _without_run(b, dims, rank, size, b.icmp("ne", extent.get(), NULL), (address, lane, left, n, step))
    # elements side by side through several dimensions
    with b.loop_while(lambda: b.icmp("sgt", left.get(), 0)) as more:
        at = b.gep(DIMENSION.ty, dims, b.sub(left.get(), 1))
        stride, count, lanes = (b.get(DIMENSION, at, name) for name in ("stride", "end", "lanes"))
        more.leave(b.or_(b.icmp("ne", stride, b.mul(n.get(), size)), b.icmp("ne", lanes, b.mul(n.get(), step.get()))))
        n.set(b.mul(n.get(), count))
        left.set(b.sub(left.get(), 1))
    b.ret(b.call("check.rows", "i64", [block, site, program, extent.get(), address.get(), n.get(), lane.get(), step.get(), dims, left.get()]))


def _without_run(b: Builder, dims: Val, rank: Val, size: Val, inside: Val, given: tuple):
    """The dimension whose elements lie side by side becomes a run, those of one index (where all is inside: of one address) are gone, and of the rest
    `begin` is 0."""
    address, lane, left, n, step = given
    run = b.variable(i64(-1))
    with b.loop(i64(0), rank) as d:
        at = b.gep(DIMENSION.ty, dims, d)
        several = b.icmp("sgt", b.sub(b.get(DIMENSION, at, "end"), b.get(DIMENSION, at, "begin")), 1)
        with b.when(b.and_(several, b.icmp("eq", b.get(DIMENSION, at, "stride"), size))):
            run.set(d)
    with b.loop(i64(0), rank) as d:
        at = b.gep(DIMENSION.ty, dims, d)
        stride, begin, lanes = (b.get(DIMENSION, at, name) for name in ("stride", "begin", "lanes"))
        count = b.sub(b.get(DIMENSION, at, "end"), begin)
        address.set(b.add(address.get(), b.mul(stride, begin)))
        lane.set(b.add(lane.get(), b.mul(lanes, begin)))
        with b.either(b.icmp("eq", d, run.get())) as (yes, no):
            with yes:
                n.set(count)
                step.set(lanes)
            with no, b.when(b.and_(b.icmp("ne", b.select(inside, stride, i64(1)), 0), b.icmp("ne", count, 1))):
                to = b.gep(DIMENSION.ty, dims, left.get())
                for name, v in dict(stride=stride, begin=i64(0), end=count, lanes=lanes).items():
                    b.put(DIMENSION, to, name, v)
                left.set(b.add(left.get(), 1))


def _rows(m: Module, kinds: frozenset[str], orders: bool):
    """Runs of n elements at every index of what is left of a box; extent: what all of it lies in, null where something is outside."""
    b = define(m, "check.rows", "i64", "internal", "noinline", block="ptr", site="ptr", program="i64", extent="ptr", address="i64", n="i64", lane="i64",
               step="i64", dims="ptr", left="i64")
    block, site, program, extent, address, n, lane, step, dims, left = b.fn.args
    outside = b.variable(i64(0))
    rest = b.gep(DIMENSION.ty, dims, i64(1))
    stride, count, lanes = (b.variable(v) for v in (i64(0), i64(1), i64(0)))
    with b.when(b.icmp("sgt", left, 0)):
        for v, name in ((stride, "stride"), (count, "end"), (lanes, "lanes")):
            v.set(b.get(DIMENSION, dims, name))

    def each(what):
        with b.loop(i64(0), count.get()) as k:
            what(b.add(address, b.mul(k, stride.get())), b.add(lane, b.mul(k, lanes.get())))

    def deeper(at: Val, number: Val):
        found = b.call("check.rows", "i64", [block, site, program, extent, at, n, number, step, rest, b.sub(left, 1)])
        outside.set(b.add(outside.get(), found))

    def judged(at: Val, number: Val):
        found = b.call("check.run", "i64", [block, site, program, at, n, number, step])
        outside.set(b.add(outside.get(), found))

    with b.when(b.icmp("sgt", left, 1)):
        each(deeper)
        b.ret(outside.get())
    with b.when(b.icmp("eq", extent, NULL)):
        each(judged)
        b.ret(outside.get())
    bytes_ = b.mul(n, b.cast("zext", b.get(SITE, site, "bytes"), "i64"))
    if "race" in kinds:
        touched = race.Touched(b, block, site, program, extent, orders)
        with b.when(b.not_(touched.unmarked)):
            each(lambda at, number: touched.look(at, bytes_, number, step))
    if "uninit" in kinds:
        each(lambda at, number: b.call("check.written", "void", [block, site, extent, program, at, bytes_, number, step]))
    b.ret(i64(0))
