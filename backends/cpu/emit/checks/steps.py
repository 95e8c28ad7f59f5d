"""Checks in a kernel's code: one in front of each access, by whole boxes and vectors where that shows that all is fine, else lane by lane.

Of an affine access the lowest and the highest address of all its lanes decide at once whether any of them could be outside. Where one could, and where
each element is looked at (races, what nobody has written), a nest goes over the addresses: elements side by side are judged as vectors.
"""

from __future__ import annotations

from ...llvm import ir
from ...llvm.elements import memory_type
from ...llvm.ir import FALSE, TRUE, Val, const, i32, i64
from ...plan.checks import ATOMIC, INDEX, OVERFLOW, READ, WRITE, Site, exact_result
from ...plan.records import Check, row_major
from .. import access
from ..access import Same, Scattered, Strided, Unit
from . import lanes, race
from .block import BLOCK, EXTENT, STOPPED

PROGRAM = Val("i64", "%program.id")


def begin_kernel(k):
    """Where the kernel begins: its block's address follows the arguments."""
    lanes.add(k.module, k.checks.kinds, k.checks.granule, k.checks.orders)
    k.block = k.b.load("ptr", k.b.gep("i8", Val("ptr", "%args"), i64(8 * len(k.func.args))), 8)
    k.sites = {site: _site(k, site) for site in k.checks.sites.values()}


def begin_program(k):
    if "race" in k.checks.kinds:
        race.begin(k, k.block, PROGRAM)


def _site(k, site: Site) -> Val:
    """What the functions of lanes.py know of a site: a constant."""
    words = [site.number, site.access, site.bytes, len(site.arguments or ()), *(site.arguments or ())]
    return k.module.variable(f"{k.name}.site.{site.number}", f"[{len(words)} x i32] [{', '.join(f'i32 {w}' for w in words)}]", "internal constant")


def check(k, step: Check):
    """What a `Check` step does. Behind it all active lanes are fine, or the program has ended."""
    site = step.site
    bad = _RULES.get(site.access, _memory)(k, step, site)
    if bad is not None:
        k.guarded(k.b.icmp("ne", bad, 0), lambda: _stop(k))


def _stop(k):
    """The program ends; where programs may wait for it, all that follow do not begin."""
    b = k.b
    if k.checks.alone:
        b.emit(f"ret i64 {STOPPED}")
    else:
        b.br(k.latch)
    b.enter(k.fn.new_block("unreachable"))  # the rest of this block is never reached; LLVM drops it


# --- memory ----------------------------------------------------------------------------------------------------------


def _memory(k, step: Check, site: Site) -> Val | None:
    bad = _scalar(k, site) if step.nest is None else _tensor(k, step, site)
    return bad if "bounds" in k.checks.kinds else None


def _scalar(k, site: Site) -> Val:
    b, op = k.b, site.op
    ptr = k.scalar(op.operands[0])
    active = k.scalar(site.mask) if site.mask is not None else TRUE
    bad = _slot(b)
    addresses, flags = b.alloca("i64", "address"), b.alloca("i8", "active")

    def look():
        address = b.address(ptr)
        b.store(address, addresses)
        b.store(const("i8", 1), flags)
        b.store(b.call("check.lanes", "i64", [k.block, k.sites[site], PROGRAM, addresses, flags, i64(1), i64(0), i64(0)]), bad)
        if "race" in k.checks.kinds and site.orders:
            b.call("check.order", "void", [k.block, address, PROGRAM, const("i1", "acquire" in site.orders), const("i1", "release" in site.orders)])

    k.guarded(active, look)
    return b.load("i64", bad)


def _slot(b) -> Val:
    bad = b.alloca("i64", "bad")
    b.store(i64(0), bad)
    return bad


def _tensor(k, step: Check, site: Site) -> Val:
    b = k.b
    bad = _slot(b)
    nest = k.nest(step.nest)
    nest.begin()
    box = _box(nest, site) if k.checks.kinds & {"bounds", "race", "uninit"} == {"bounds"} else None
    look = _Chunk(k, k.nest(step.nest), site, bad)

    def walk():
        look.nest.run(look.body)

    if box is None:
        walk()
    else:
        k.guarded(b.not_(box), walk)
    return b.load("i64", bad)


def _ends(nest, coef: dict, size: int):
    """Bytes from the address of index 0 in all dimensions to the lowest and to the highest one."""
    b = nest.b
    low = high = i64(0)
    for d, p in coef.items():
        end = b.mul(access.poly_value(nest, p), i64((nest.shape[d] - 1) * size))
        low, high = b.add(low, b.intrinsic("smin", end, i64(0))), b.add(high, b.intrinsic("smax", end, i64(0)))
    return low, high


def _box(nest, site: Site) -> Val | None:
    """An i1: are all lanes inside, active or not? None where addresses are not affine, or of several arguments."""
    b, ptr = nest.b, site.op.operands[0]
    aff = nest.space.affine(ptr, nest.plan.identity)
    if aff.opaque or aff.ptr is None or aff.ptr.type.is_tensor or site.arguments is None or len(site.arguments) != 1:
        return None
    start = b.address(b.gep(memory_type(ptr.type.pointee.elem), nest.k.scalar(aff.ptr), access.poly_value(nest, aff.base)))
    low, high = _ends(nest, aff.coef, site.bytes)
    extent = _extent(nest.k, site)
    first = b.sub(b.add(start, low), b.get(EXTENT, extent, "start"))
    last = b.add(first, b.sub(high, low))
    room = b.sub(b.get(EXTENT, extent, "bytes"), i64(site.bytes))
    return b.and_(b.and_(b.icmp("sge", room, 0), b.icmp("ule", first, room)), b.and_(b.icmp("ule", last, room), b.icmp("ule", first, last)))


def _extent(k, site: Site) -> Val:
    """The extent of a site's only argument."""
    return k.b.gep(EXTENT.ty, k.b.get(BLOCK, k.block, "extents"), i64(site.arguments[0]))


class _Chunk:
    """The check of one access, a chunk of lanes at a time."""

    def __init__(self, k, nest, site: Site, bad: Val):
        self.k, self.b, self.nest, self.site, self.bad = k, k.b, nest, site, bad
        ptr = site.op.operands[0]
        self.mem = memory_type(ptr.type.pointee.elem)
        self.each = k.checks.kinds & {"race", "uninit"}
        self.addresses = self.b.alloca(f"[{nest.lanes} x i64]", "addresses", 64)
        self.flags = self.b.alloca(f"[{nest.lanes} x i8]", "active", 64)

    def body(self, u):
        b, nest, site = self.b, self.nest, self.site
        dims = nest.plan.identity
        active = nest.at(site.mask, dims) if site.mask is not None else TRUE
        where = access.address(nest, site.op.operands[0], dims)
        steps = row_major(nest.shape)
        first = i64(0)
        for d, step in enumerate(steps):
            first = b.add(first, b.mul(nest.index_of(d), i64(step)))
        self.first, self.step = first, i64(steps[nest.vdim] if steps else 0)
        if isinstance(where, Same) and active.lanes > 1:
            active = b.call(f"llvm.vector.reduce.or.{ir.mangle(active.ty)}", "i1", [active])
        doubtful = b.alloca("i1", "doubtful")
        b.store(TRUE, doubtful)
        inside, offset = self._inside(where, active)
        if not self.each:
            b.store(b.not_(inside), doubtful)
        elif isinstance(where, Unit) and len(site.arguments or ()) == 1 and site.access != ATOMIC:
            self.k.guarded(inside, lambda: self._side_by_side(offset, active, doubtful))
        self.k.guarded(b.load("i1", doubtful), lambda: self._lanes(where, active))

    def _inside(self, where, active: Val) -> tuple[Val, Val | None]:
        """(are all lanes inside, or not active?, bytes from the extent's start to the first lane)."""
        b, n, size, site = self.b, self.nest.lanes, self.site.bytes, self.site
        if site.arguments is None or len(site.arguments) != 1:
            return FALSE, None
        extent = _extent(self.k, site)
        start, room = b.get(EXTENT, extent, "start"), b.sub(b.get(EXTENT, extent, "bytes"), i64(size))
        fits = b.icmp("sge", room, 0)
        if isinstance(where, Scattered):
            far = b.value(ir.vec("i64", n), f"ptrtoint {where.pointers.ty} {where.pointers.s} to {ir.vec('i64', n)}") if n > 1 else b.address(where.pointers)
            good = b.or_(b.and_(b.icmp("ule", b.sub(far, b.splat(start, n)), b.splat(room, n)), b.splat(fits, n)), b.not_(b.splat(active, n)))
            return (b.call(f"llvm.vector.reduce.and.{ir.mangle(good.ty)}", "i1", [good]) if n > 1 else good), None
        offset = b.sub(b.address(where.pointer), start)
        step = {Unit: lambda: i64(1), Same: lambda: i64(0), Strided: lambda: where.step if isinstance(where.step, Val) else i64(where.step)}[type(where)]()
        last = b.add(offset, b.mul(step, i64((n - 1) * size)))
        return b.and_(fits, b.and_(b.icmp("ule", offset, room), b.icmp("ule", last, room))), offset

    def _lanes(self, where, active: Val):
        """One lane after the other."""
        b, n = self.b, self.nest.lanes
        n = 1 if isinstance(where, Same) else n
        p = where.pointer if isinstance(where, Same) else access.pointers(self.nest, where, self.mem)
        to = ir.vec("i64", p.lanes)
        b.store(b.value(to, f"ptrtoint {p.ty} {p.s} to {to}"), self.addresses, 8)
        b.store(b.cast("zext", b.splat(active, n), "i8"), self.flags, 1)
        found = b.call("check.lanes", "i64", [self.k.block, self.k.sites[self.site], PROGRAM, self.addresses, self.flags, i64(n), self.first, self.step])
        b.store(b.add(b.load("i64", self.bad), found), self.bad)

    def _side_by_side(self, offset: Val, active: Val, doubtful: Val):
        """Lanes side by side, all inside: is that all that there is to say?"""
        b, k, n, size = self.b, self.k, self.nest.lanes, self.site.bytes
        extent = _extent(k, self.site)
        marks = []
        fine = TRUE
        if "race" in self.each:
            ok, mark = self._no_race(extent, offset, active)
            fine, marks = b.and_(fine, ok), [*marks, mark]
        if "uninit" in self.each:
            written = b.get(EXTENT, extent, "written")
            known = b.icmp("eq", written, Val("ptr", "null"))
            if self.site.access == READ:
                at = b.select(known, b.address(b.add(offset, b.get(EXTENT, extent, "start")), "ptr"), b.gep("i8", written, offset))
                v = self._load(f"i{8 * size}", n, at, active, -1)
                ones = b.splat(const(f"i{8 * size}", int.from_bytes(bytes([1] * size), "little")), n)
                fine = b.and_(fine, b.or_(known, self._all(b.icmp("eq", v, ones), active)))
            else:
                marks.append(lambda: k.guarded(b.not_(known), lambda: self._store(
                    const(f"i{8 * size}", int.from_bytes(bytes([1] * size), "little")), n, b.gep("i8", written, offset), active)))

        def note():
            for mark in marks:
                mark()
            b.store(FALSE, doubtful)

        k.guarded(fine, note)

    def _no_race(self, extent: Val, offset: Val, active: Val):
        b, k = self.b, self.k
        each = self.site.bytes // k.checks.granule
        n = self.nest.lanes * each
        mask = active
        if each > 1 and active.lanes > 1:
            mask = b.shuffle(active, None, [lane // each for lane in range(n)])
        place = b.udiv(offset, k.checks.granule)
        writers, readers = (b.gep("i32", b.get(EXTENT, extent, who), place) for who in ("writers", "readers"))
        writer, reader = (self._load("i32", n, at, mask, 0) for at in (writers, readers))
        me = race.mark(b, k.block, i32(self.site.number))
        fine = self._all(b.not_(race.foreign(b, k.block, writer)), mask)
        others = race.foreign(b, k.block, reader)
        if self.site.access == WRITE:
            return b.and_(fine, self._all(b.not_(others), mask)), lambda: self._store(me, n, writers, mask)
        if k.checks.orders:  # whether others came before is known lane by lane
            return b.and_(fine, self._all(b.not_(others), mask)), lambda: self._store(me, n, readers, mask)
        return fine, lambda: self._store(b.select(others, b.splat(race.several(b, k.block), n), b.splat(me, n)), n, readers, mask)

    def _all(self, good: Val, active: Val) -> Val:
        b = self.b
        good = b.or_(good, b.not_(b.splat(active, good.lanes)))
        return b.call(f"llvm.vector.reduce.and.{ir.mangle(good.ty)}", "i1", [good]) if good.lanes > 1 else good

    def _load(self, elem: str, n: int, at: Val, active: Val, other: int) -> Val:
        b = self.b
        if active.const or n == 1:  # of one lane that is not active nothing is made
            return b.load(ir.vec(elem, n), at, 1)
        ty = ir.vec(elem, n)
        return b.call(f"llvm.masked.load.{ir.mangle(ty)}.p0", ty, [at, i32(1), b.splat(active, n), const(elem, other, n)])

    def _store(self, v: Val, n: int, at: Val, active: Val):
        b = self.b
        v = b.splat(v, n)
        if active.const:
            b.store(v, at, 1)
        elif n == 1:
            self.k.guarded(active, lambda: b.store(v, at, 1))
        else:
            b.call(f"llvm.masked.store.{ir.mangle(v.ty)}.p0", "void", [v, at, i32(1), b.splat(active, n)])


# --- what is no memory -----------------------------------------------------------------------------------------------


def _index(k, step: Check, site: Site) -> Val:
    """tl.gather: an index of the tensor that is indexed."""
    b, op = k.b, site.op
    source, index = op.operands
    limit = i64(source.type.shape[op.attrs["axis"]])
    nest, bad = k.nest(step.nest), _slot(b)
    values = b.alloca(f"[{nest.lanes} x i64]", "indices", 64)

    def body(u):
        x = b.splat(b.cast("sext", nest.at(index, nest.plan.identity), "i64"), nest.lanes)
        good = b.icmp("ult", x, b.splat(limit, x.lanes))
        fine = b.call(f"llvm.vector.reduce.and.{ir.mangle(good.ty)}", "i1", [good]) if good.lanes > 1 else good
        first, steps = i64(0), row_major(nest.shape)
        for d, stride in enumerate(steps):
            first = b.add(first, b.mul(nest.index_of(d), i64(stride)))

        def look():
            b.store(x, values, 8)
            found = b.call("check.indices", "i64", [k.block, i64(site.number), PROGRAM, values, i64(nest.lanes), first, i64(steps[nest.vdim]), limit])
            b.store(b.add(b.load("i64", bad), found), bad)

        k.guarded(b.not_(fine), look)

    nest.run(body)
    return b.load("i64", bad)


def _overflow(k, step: Check, site: Site) -> Val:
    """An assertion of Triton's sanitize_overflow: the first lane for which it does not hold."""
    b, cond = k.b, site.op.operands[0]
    bad = _slot(b)
    exact = exact_result(cond)

    def note(lane: Val, value: Val):
        lanes.record(b, "overflow", k.block, i64(site.number), PROGRAM, i64(0), lane, value)
        b.store(i64(1), bad)

    if step.nest is None:
        value = b.cast("sext", k.scalar(exact), "i64") if exact is not None else i64(0)
        k.guarded(b.not_(k.scalar(cond)), lambda: note(i64(0), value))
        return b.load("i64", bad)
    nest = k.nest(step.nest)

    def body(u):
        dims = nest.plan.identity
        good = b.splat(nest.at(cond, dims), nest.lanes)
        value = b.splat(b.cast("sext", nest.at(exact, dims), "i64"), nest.lanes) if exact is not None else i64(0)
        steps = row_major(nest.shape)
        first = i64(0)
        for d, stride in enumerate(steps):
            first = b.add(first, b.mul(nest.index_of(d), i64(stride)))
        fine = b.call(f"llvm.vector.reduce.and.{ir.mangle(good.ty)}", "i1", [good]) if good.lanes > 1 else good

        def each():
            def one(j: Val):
                k.guarded(b.not_(b.extract(good, j)), lambda: note(b.add(first, b.mul(j, i64(steps[nest.vdim] if steps else 0))), b.extract(value, j)))

            k.loop(i64(0), i64(nest.lanes), 1, one, "lane")

        k.guarded(b.not_(fine), each)

    nest.run(body)
    return b.load("i64", bad)


_RULES = {INDEX: _index, OVERFLOW: _overflow}
STEPS = {Check: check}
