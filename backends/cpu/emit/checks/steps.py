"""Checks in a kernel's code: one in front of each access, by whole boxes and vectors where that shows that all is fine, else lane by lane.

Where the active lanes of an affine access are a box (`boxes.py`), a call judges it whole. Of other affine accesses the lowest and the highest address of all
lanes decide at once whether any of them could be outside; where one could, and where each element is looked at (races, what nobody has written), a nest goes
over the addresses: elements side by side are judged as vectors.
"""

from __future__ import annotations

from dataclasses import replace

from ...llvm.elements import memory_type
from ...llvm.ir import FALSE, NULL, TRUE, Val, const, i64
from ...plan.checks import INDEX, OVERFLOW, Site, exact_result
from ...plan.facts import poly_const
from ...plan.looks import Check
from .. import access, bounds
from ..access import Same, Scattered, Strided, Unit
from ..nest import Nest
from . import boxes, finite, lanes, race
from .block import PROGRAM, BLOCK, EXTENT, FOUND, STOPPED, WAIT, service


def begin_kernel(k):
    """Where the kernel begins: its block's address follows the arguments."""
    k.module.globals += [s.line() for s in lanes.STRUCTS]
    if k.checks.finite is not None:
        finite.add(k.module, len(k.checks.records))
    k.block = k.b.load("ptr", k.b.gep("i8", Val("ptr", "%args"), i64(8 * len(k.func.args))), 8)
    k.sites = {site: _site(k, site) for site in k.checks.sites.values()}
    # programs run one after the other where some wait: one place for all of them
    k.waits = {site: k.module.variable(f"{k.name}.wait.{site.number}", f"{WAIT.ty} zeroinitializer") for site in k.checks.sites.values()
               if site.waits and k.checks.alone}


def begin_program(k):
    if "race" in k.checks.kinds:
        race.begin(k, k.block, PROGRAM)
    for site, at in k.waits.items():
        k.b.put(WAIT, at, "times", i64(0))
    if k.checks.finite is not None:
        finite.begin_program(k)


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
        b.ret(i64(STOPPED))
    else:
        b.br(k.latch)
    b.enter(k.fn.new_block("unreachable"))  # the rest of this block is never reached; LLVM drops it


# --- memory ----------------------------------------------------------------------------------------------------------


def _memory(k, step: Check, site: Site) -> Val | None:
    bad = _scalar(k, site) if step.nest is None else _tensor(k, step, site)
    return bad if "bounds" in k.checks.kinds or site in k.waits else None


def _scalar(k, site: Site) -> Val:
    b, op = k.b, site.op
    ptr = k.scalar(op.operands[0])
    active = k.scalar(site.mask) if site.mask is not None else TRUE
    bad = _slot(b)

    def look():
        address = b.address(ptr)
        b.store(b.call(service(b, k.block, "run"), "i64", [k.block, k.sites[site], PROGRAM, address, i64(1), i64(0), i64(0)]), bad)
        if site in k.waits:
            with b.when(b.icmp("eq", b.load("i64", bad), 0)):
                b.store(b.call(service(b, k.block, "wait"), "i64", [k.block, k.sites[site], PROGRAM, address, k.waits[site]]), bad)
        if "race" in k.checks.kinds and site.orders:
            b.call(service(b, k.block, "order"), "void", [k.block, address, PROGRAM, const("i1", "acquire" in site.orders), const("i1", "release" in site.orders)])

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
    box = boxes.of(nest, site)

    def walk():
        look = _Looks(k, step.nest, site, bad)
        if box is not None or not look.contiguous:  # hardly ever run, or a chunk at a time in any case: one loop that computes its mask is all
            look = _Looks(k, replace(step.nest, atoms=()), site, bad)
        look.run(look.body)

    def judge():
        k.guarded(box.active, lambda: b.store(boxes.look(k, box, site, nest.shape), bad))

    if box is None:
        k.guarded(b.not_(_all_inside(nest, site)), walk)
    else:
        k.either(box.sure, judge, walk)
    return b.load("i64", bad)


def _all_inside(nest, site: Site) -> Val:
    """An i1: are all lanes inside, active or not, and is there nothing else to look at? Of affine addresses the lowest and the highest one say so."""
    b, ptr = nest.b, site.op.operands[0]
    aff = nest.space.affine(ptr, nest.plan.identity)
    extent = _extent(nest.k, site)
    if nest.k.checks.kinds & {"bounds", "race", "uninit"} != {"bounds"} or aff.opaque or aff.ptr is None or aff.ptr.type.is_tensor or extent is None:
        return FALSE
    start = b.address(b.gep(memory_type(ptr.type.pointee.elem), nest.k.scalar(aff.ptr), access.poly_value(nest, aff.base)))
    first = last = start
    for d, p in aff.coef.items():
        end = b.mul(access.poly_value(nest, p), i64((nest.shape[d] - 1) * site.bytes))
        first, last = b.add(first, b.intrinsic("smin", end, i64(0))), b.add(last, b.intrinsic("smax", end, i64(0)))
    both = b.and_(*(lanes.inside(b, extent, end, i64(site.bytes)) for end in (first, last)))
    return b.and_(both, b.icmp("ule", first, last))


def _extent(k, site: Site) -> Val | None:
    """The only extent that a site may touch; None where there are several, or it is known when it runs."""
    if site.arguments is None or len(site.arguments) != 1:
        return None
    return k.b.gep(EXTENT.ty, k.b.get(BLOCK, k.block, "extents"), i64(site.arguments[0]))


class _Looks(Nest):
    """The nest that looks at one access. Where lanes lie side by side and their mask is known to be true, all of them along the vector dimension are
    looked at once; else a chunk at a time."""

    def __init__(self, k, plan, site: Site, bad: Val):
        super().__init__(k, plan)
        self.site, self.bad = site, bad
        ptr = site.op.operands[0]
        self.mem = memory_type(ptr.type.pointee.elem)
        self.each = bool(k.checks.kinds & {"race", "uninit"})
        aff = self.space.affine(ptr, plan.identity)
        self.contiguous = (aff.ptr is not None and not aff.ptr.type.is_tensor and poly_const(aff.coef.get(self.vdim, {})) == 1
                           and not any(self.vdim in dims for _, dims, _ in aff.opaque))

    def _loop(self, lo: Val, hi: Val, step: int, d: int, inner):
        mask, dims = self.site.mask, self.plan.identity
        if mask is not None and bounds.is_false(self, mask, dims):
            return
        if d != self.vdim or not self.contiguous or not (mask is None or bounds.is_true(self, mask, dims)):
            super()._loop(lo, hi, step, d, inner)
            return
        self.k.guarded(self.b.icmp("slt", lo, hi), lambda: self.enter(d, lo, lambda: self._side_by_side(self.b.sub(hi, lo))))

    def _note(self, found: Val):
        self.b.store(self.b.add(self.b.load("i64", self.bad), found), self.bad)

    def _side_by_side(self, n: Val):
        """`n` lanes, all active."""
        b, k = self.b, self.k
        (first, step), where = access.lane_number(self), access.address(self, self.site.op.operands[0], self.plan.identity)
        address = b.address(where.pointer)

        def look():
            self._note(b.call(service(b, k.block, "run"), "i64", [k.block, k.sites[self.site], PROGRAM, address, n, first, i64(step)]))

        one = _extent(k, self.site)
        if one is None or self.each:
            look()
        else:
            k.guarded(b.not_(lanes.inside(b, one, address, b.mul(n, i64(self.site.bytes)))), look)

    def body(self, u):
        """A chunk."""
        b, site = self.b, self.site
        dims = self.plan.identity
        active = self.at(site.mask, dims) if site.mask is not None else TRUE
        where = access.address(self, site.op.operands[0], dims)
        first, step = access.lane_number(self)
        if isinstance(where, Same):
            active = b.some(active)
        self.k.guarded(b.not_(self._fine(where, active)), lambda: self._lanes(where, active, first, step))

    def _fine(self, where, active: Val) -> Val:
        """An i1: is there nothing to say of the lanes: all inside, or not active, and nothing else to look at?"""
        b, n, size, extent = self.b, self.lanes, self.site.bytes, _extent(self.k, self.site)
        if extent is None:
            return FALSE
        if isinstance(where, Scattered):
            fine = b.every(b.or_(lanes.inside(b, extent, b.address(where.pointers), i64(size)), b.not_(b.splat(active, n))))
        else:
            step = where.step if isinstance(where, Strided) else int(isinstance(where, Unit))
            first = b.address(where.pointer)
            last = b.add(first, b.mul(i64(step) if isinstance(step, int) else step, i64((n - 1) * size)))
            fine = b.and_(*(lanes.inside(b, extent, end, i64(size)) for end in (first, last)))
        for name, kind in (("writers", "race"), ("written", "uninit")):
            if kind in self.k.checks.kinds:
                fine = b.and_(fine, b.icmp("eq", b.get(EXTENT, extent, name), NULL))
        return fine

    def _lanes(self, where, active: Val, first: Val, step: int):
        """One lane after the other, those that lie side by side at once."""
        b, n = self.b, 1 if isinstance(where, Same) else self.lanes
        p = where.pointer if isinstance(where, Same) else access.pointers(self, where, self.mem)
        addresses, flags = b.alloca(f"[{n} x i64]", "addresses", 64), b.alloca(f"[{n} x i8]", "active", 64)
        b.store(b.address(p), addresses, 8)
        b.store(b.cast("zext", b.splat(active, n), "i8"), flags, 1)
        given = [self.k.block, self.k.sites[self.site], PROGRAM, addresses, flags, i64(n), first, i64(step)]
        self._note(b.call(service(b, self.k.block, "lanes"), "i64", given))


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
        first, each = access.lane_number(nest)

        def look():
            b.store(x, values, 8)
            found = b.call(service(b, k.block, "indices"), "i64", [k.block, i64(site.number), PROGRAM, values, i64(nest.lanes), first, i64(each), limit])
            b.store(b.add(b.load("i64", bad), found), bad)

        k.guarded(b.not_(b.every(good)), look)

    nest.run(body)
    return b.load("i64", bad)


def _overflow(k, step: Check, site: Site) -> Val:
    """An assertion of Triton's sanitize_overflow: the first lane for which it does not hold."""
    b, cond = k.b, site.op.operands[0]
    bad = _slot(b)
    exact = exact_result(cond)

    def note(lane: Val, value: Val):
        b.call(service(b, k.block, "record"), "void", [i64(FOUND.index("overflow")), k.block, i64(site.number), PROGRAM, i64(0), lane, value, i64(0)])
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
        first, stride = access.lane_number(nest)

        def each():
            def one(j: Val):
                k.guarded(b.not_(b.extract(good, j)), lambda: note(b.add(first, b.mul(j, i64(stride))), b.extract(value, j)))

            k.loop(i64(0), i64(nest.lanes), 1, one, "lane")

        k.guarded(b.not_(b.every(good)), each)

    nest.run(body)
    return b.load("i64", bad)


_RULES = {INDEX: _index, OVERFLOW: _overflow}
STEPS = {Check: check}
