"""Addresses: where the elements of pointer tensors and of scratch buffers lie, and how their lanes are loaded and stored.

A pointer tensor is an address and a step from lane to lane: step 1 is one vector access, 0 a scalar one, a few elements some accesses of all between (`near`), anything else a gather or scatter.
One address is made per loop depth, each from the one around it: the inner loop adds only its own index.
"""

from __future__ import annotations

from typing import NamedTuple

from ..llvm import ir
from ..llvm.elements import memory_type
from ..llvm.ir import Val, const, i64
from ..plan.facts import Affine, Poly, poly_add, poly_const, poly_key
from ..plan.ranges import Check, TRIPS, WIDE, is_wide, scalars
from ..plan.records import Buffer, Trips, at_index, row_major
from ..ttir.types import Value


class Unit(NamedTuple):
    """Lanes side by side from `pointer` on."""

    pointer: Val


class Same(NamedTuple):
    """All lanes at one address."""

    pointer: Val


class Strided(NamedTuple):
    """Lanes `step` elements apart, the first one at `pointer`."""

    pointer: Val
    step: int | Val


class Scattered(NamedTuple):
    """Lanes anywhere."""

    pointers: Val


Access = Unit | Same | Strided | Scattered


def _spaced(p: Val, step: int | Val) -> Access:
    if isinstance(step, int):
        return Same(p) if step == 0 else Unit(p) if step == 1 else Strided(p, step)
    return Strided(p, step)


def pointers(nest, access: Access, elem: str) -> Val:
    """A vector of the lanes' addresses (of LLVM's type `elem`); one address where there is one lane."""
    match access:
        case Scattered(p):
            return p
        case Same(p):
            return spread(nest, elem, p, 0)
        case Unit(p):
            return spread(nest, elem, p, 1)
        case Strided(p, step):
            return spread(nest, elem, p, step)


# --- polynomials -----------------------------------------------------------------------------------------------------


def poly_value(nest, p: Poly) -> Val:
    """A polynomial's i64 value, emitted outside the nest."""
    c = poly_const(p)
    if c is not None:
        return i64(c)

    def build():
        total = i64(0)
        for m, n in p.items():
            term = i64(n)
            for s in m:
                term = nest.b.mul(term, _scalar64(nest, s))
            total = nest.b.add(total, term)
        return total

    return nest.hoisted(0, ("poly", poly_key(p)), build)


def _scalar64(nest, s: Value | Trips) -> Val:
    v = nest.k.trips[s] if isinstance(s, Trips) else nest.k.scalar(s)
    if v.elem == "i64":
        return v
    return nest.hoisted(0, ("sext", v.s), lambda: nest.b.cast("sext", v, "i64"))


def holds(nest, checks: tuple[Check, ...]) -> Val:
    """An i1: do all the checks hold?"""
    out = const("i1", True)
    for c in checks:
        out = nest.b.and_(out, nest.hoisted(0, ("sure", c), lambda c=c: _check(nest, c)))
    return out


def _check(nest, check: Check) -> Val:
    """An i1: does the check hold? Emitted where the nest begins."""
    b = nest.b
    out = const("i1", True)
    for s in dict.fromkeys(s for s in scalars(check) if is_wide(s)):
        if isinstance(s, Trips):
            small = b.icmp("ult", nest.k.trips[s], i64(TRIPS))
        else:
            small = b.icmp("ult", b.add(nest.k.scalar(s), i64(WIDE)), i64(2 * WIDE))
        out = b.and_(out, small)
    if check.bits == 64:
        return out
    least, most = -(1 << (check.bits - 1)), (1 << (check.bits - 1)) - 1
    base = poly_value(nest, dict(check.base))
    ends = [(poly_const(dict(p)), p, nest.shape[d] - 1) for d, p in check.coef]
    if all(c is not None for c, _, _ in ends):  # one comparison: low - least is below 2^bits - span, unsigned
        low, high = (sum(f(0, c * n) for c, _, n in ends) for f in (min, max))
        return b.and_(out, b.icmp("ult", b.add(base, i64(low - least)), i64(most - least + 1 - (high - low))))
    low = high = base
    for _, p, n in ends:
        end = b.mul(poly_value(nest, dict(p)), i64(n))
        low, high = b.add(low, b.intrinsic("smin", end, i64(0))), b.add(high, b.intrinsic("smax", end, i64(0)))
    return b.and_(out, b.and_(b.icmp("sge", low, i64(least)), b.icmp("sle", high, i64(most))))


# --- pointer tensors -------------------------------------------------------------------------------------------------


def address(nest, ptr: Value, dims) -> Access:
    """Where the pointer tensor `ptr` points at the current indices."""
    b = nest.b
    aff = nest.space.affine(ptr, dims)
    elem = memory_type(ptr.type.pointee.elem)
    if aff.ptr is None or aff.ptr.type.is_tensor:  # a tensor of arbitrary pointers
        return _opaque_address(nest, aff, elem)
    terms: list[tuple[int, object]] = []  # (level, function yielding an i64)
    vector_terms = []
    stride = aff.coef.get(nest.vdim, {}) if nest.lanes > 1 else {}
    for d, p in aff.coef.items():
        terms.append((nest.depth_of.get(d, 0), lambda d=d, p=p: b.mul(nest.index_of(d), poly_value(nest, p))))
    for v, vd, scale in aff.opaque:
        if (v, vd) in nest.quotients:
            terms.append((nest.level(vd), lambda v=v, vd=vd, s=scale: b.mul(nest.wide_first_of(v, vd), poly_value(nest, s))))
            stride = poly_add(stride, scale) if nest.quotients[v, vd].step else stride
        elif nest.vdim in vd and nest.lanes > 1:
            vector_terms.append((v, vd, scale))
        else:
            terms.append((nest.level(vd), lambda v=v, vd=vd, s=scale: _opaque_term(nest, v, vd, s)))
    p = nest.hoisted(0, ("base", aff.ptr, poly_key(aff.base), elem), lambda: b.gep(
        elem, nest.k.scalar(aff.ptr), poly_value(nest, aff.base)))
    by_level: dict[int, list] = {}
    for level, term in terms:
        by_level.setdefault(level, []).append(term)
    p = _by_depth(nest, elem, p, by_level, lambda level: ("addr", ptr, dims, level), lambda off, term: b.add(off, term()))
    apart = []
    for x in (_opaque_term(nest, v, vd, scale) for v, vd, scale in vector_terms):
        if x.lanes == 1:  # all lanes turned out to be equal
            p = b.gep(elem, p, x)
        else:
            apart.append(x)
    if not apart:
        c = poly_const(stride)
        return _spaced(p, c if c is not None else poly_value(nest, stride))
    off = b.mul(b.iota("i64", nest.lanes), poly_value(nest, stride))
    for x in apart:
        off = b.add(off, x)
    return Scattered(b.gep(elem, p, b.splat(off, nest.lanes)))


def _by_depth(nest, elem: str, p: Val, by_level: dict[int, list], key, added) -> Val:
    """`p` plus terms, those of each loop depth added where it begins. added(offset, term) -> their sum, in elements."""
    for level in sorted(by_level):

        def build(p=p, terms=by_level[level]):
            off = i64(0)
            for term in terms:
                off = added(off, term)
            return nest.b.gep(elem, p, off)

        p = nest.hoisted(level, (*key(level), nest.u if level >= nest.depth_of.get(nest.vdim, 99) else 0), build)
    return p


def _opaque_term(nest, v: Value, dims, scale: Poly) -> Val:
    x = nest.at(v, dims)
    return nest.b.mul(nest.b.cast("sext", x, "i64"), poly_value(nest, scale))


def _opaque_address(nest, aff: Affine, elem: str) -> Access:
    b = nest.b
    pointer, off = None, i64(0)
    for v, vd, scale in aff.opaque:
        if v.type.elem == "ptr":
            pointer = nest.at(v, vd)
        else:
            off = b.add(off, _opaque_term(nest, v, vd, scale))
    for d, p in aff.coef.items():
        off = b.add(off, b.mul(nest.lane_index(d), poly_value(nest, p)))
    off = b.add(off, poly_value(nest, aff.base))
    p = b.gep(elem, pointer, off)
    return Same(p) if p.lanes == 1 else Scattered(p)


def lane_number(nest) -> tuple[Val, int]:
    """(the row-major number of the first lane at hand among the nest's elements, how much larger that of the next one is)."""
    first, strides = i64(0), row_major(nest.shape)
    for d, stride in enumerate(strides):
        first = nest.b.add(first, nest.b.mul(nest.index_of(d), i64(stride)))
    return first, strides[nest.vdim] if strides else 0


# --- scratch ---------------------------------------------------------------------------------------------------------


def buffer_address(nest, buf: Buffer, dims) -> tuple[Val, int]:
    """(pointer to the element of lane 0, elements from lane to lane) in a scratch buffer."""
    b = nest.b
    elem = memory_type(buf.elem)
    p, by_level, stride, fixed = nest.k.pointer(buf), {}, 0, 0
    for axis, d in enumerate(dims):
        if buf.shape[axis] == 1 or d == at_index(0):
            continue
        if d < 0:
            fixed += at_index(d) * buf.strides[axis]
            continue
        if d == nest.vdim:
            stride = buf.strides[axis]
        by_level.setdefault(nest.depth_of.get(d, 0), []).append((axis, d))
    if fixed:
        start = p
        p = nest.hoisted(0, ("at", buf, fixed), lambda: b.gep(elem, start, i64(fixed)))

    def added(off, term):
        axis, d = term
        idx = nest.index_of(d)
        if buf.panel and axis == buf.panel[0]:
            _, width, pitch = buf.panel
            off = b.add(off, b.mul(_shr(b, idx, width.bit_length() - 1), i64(pitch)))
            idx = b.and_(idx, i64(width - 1))
        return b.add(off, b.mul(idx, i64(buf.strides[axis])))

    p = _by_depth(nest, elem, p, by_level, lambda level: ("buf", buf, dims, level), added)
    return p, stride if nest.lanes > 1 else 0


def _shr(b, v: Val, n: int) -> Val:
    if v.const is not None:
        return i64(v.const >> n)
    return b.lshr(v, n)


def load_buffer(nest, buf: Buffer, dims) -> Val:
    """A scratch buffer's elements at the current indices."""
    return load_at(nest, buf, *buffer_address(nest, buf, dims))


def load_at(nest, buf: Buffer, p: Val, stride: int, lanes: int | None = None) -> Val:
    """A scratch buffer's elements from `p` on, `stride` from lane to lane (0: one for all); lanes: side by side, where not the nest's."""
    b, elem = nest.b, memory_type(buf.elem)
    if stride == 0:
        v = b.load(elem, p, ir.bits_of(elem) // 8)
    elif stride == 1 and nest.part is not None:  # other lanes may lie behind the buffer
        v = masked_load(b, ir.vec(elem, nest.lanes), p, nest.part, Val(ir.vec(elem, nest.lanes), "zeroinitializer"))
    elif stride == 1:
        v = b.load(ir.vec(elem, lanes or nest.lanes), p, ir.bits_of(elem) // 8)
    else:
        v = gather(b, elem, spread(nest, elem, p, stride), const("i1", True, nest.lanes) if nest.part is None else nest.part, None)
    return b.cast("trunc", v, "i1") if buf.elem == "i1" else v


def store_buffer(nest, buf: Buffer, dims, v: Val):
    """`v` becomes a scratch buffer's elements at the current indices."""
    b = nest.b
    if buf.elem == "i1":
        v = b.cast("zext", v, "i8")
    p, stride = buffer_address(nest, buf, dims)
    elem = memory_type(buf.elem)
    if nest.lanes > 1 and nest.vdim in dims:
        v = b.splat(v, nest.lanes)
        if stride == 1 and nest.part is not None:
            masked_store(b, v, p, nest.part)
        elif stride == 1:
            b.store(v, p, ir.bits_of(elem) // 8)
        else:
            scatter(b, v, spread(nest, elem, p, stride), const("i1", True, nest.lanes) if nest.part is None else nest.part)
    else:
        b.store(v, p, ir.bits_of(elem) // 8)


# --- lanes apart -----------------------------------------------------------------------------------------------------


def spread(nest, elem: str, p: Val, stride: int | Val) -> Val:
    """A vector of pointers `stride` elements apart."""
    step = i64(stride) if isinstance(stride, int) else stride
    return nest.b.gep(elem, p, nest.b.mul(nest.b.iota("i64", nest.lanes), nest.b.splat(step, nest.lanes)))


def gather(b, elem: str, ptrs: Val, mask: Val, other: Val | None) -> Val:
    """The elements at a vector of pointers where `mask`; `other` (or zero) elsewhere."""
    n = ptrs.lanes
    ty = ir.vec(elem, n)
    passthru = b.splat(other, n) if other is not None else Val(ty, "zeroinitializer")
    return b.call(f"llvm.masked.gather.{ir.mangle(ty)}.{ir.mangle(ptrs.ty)}", ty,
                  [ptrs, const("i32", ir.bits_of(elem) // 8), b.splat(mask, n), passthru])


def masked_load(b, ty: str, p: Val, mask: Val, other: Val) -> Val:
    """A vector from `p` on where `mask`; `other` elsewhere."""
    return b.masked_load(ty, p, ir.bits_of(other.elem) // 8, mask, other)


def masked_store(b, v: Val, p: Val, mask: Val):
    """`v` from `p` on where `mask`."""
    b.call(f"llvm.masked.store.{ir.mangle(v.ty)}.p0", "void", [v, p, const("i32", ir.bits_of(v.elem) // 8), mask])


def scatter(b, v: Val, ptrs: Val, mask: Val):
    """`v` to a vector of pointers where `mask`."""
    n = ptrs.lanes
    v = b.splat(v, n)
    b.call(f"llvm.masked.scatter.{ir.mangle(v.ty)}.{ir.mangle(ptrs.ty)}", "void",
           [v, ptrs, const("i32", ir.bits_of(v.elem) // 8), b.splat(mask, n)])
