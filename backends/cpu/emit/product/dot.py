"""tt.dot: operands where the plan put them, accumulators in registers, one micro-kernel whose shape is the target row's.

Rows, columns and steps along K that
masks leave out are not computed where that changes nothing: nothing is added by 0 x 0, and by 0 x y only where y is finite,
which is looked up in the edge tiles that need it.
"""

from __future__ import annotations

from ...llvm import ir
from ...llvm.elements import REGISTER
from ...llvm.ir import Val, const, i64
from ...plan.operand import Kind
from ...plan.product import Product
from ...plan.records import NestPlan
from .. import access
from ..element import convert
from ..root import debug
from . import ending, micro, pack
from .micro import Extent
from .pack import Panels, Rows


def product(k, step: Product):
    for op, plan, atom in step.requires:
        nest = k.nest(plan)
        nest.begin()
        debug.require(k, access.holds(nest, atom.checks), "a row or column number that masks a matrix product's operand passes 2^31 within a block", op)
    at = [pack.place(k, src) for src in step.sources]
    ends = [[_end(k, end, src, here, n) for n, end in enumerate(pair)] for pair, src, here in zip(step.ends, step.sources, at)]
    rows_of_a = pack.rows(k, step, at[0])
    panels = pack.panels(k, step, at[1])
    k.run(step.filling)
    extent = _extent(k, step, rows_of_a, panels, ends)
    fresh = _fresh(k, step, extent)
    if step.kind.tiles:
        micro.configure_tiles(k, step.kind, step.k)
    ends_in = ending.of(k, step, extent) if step.ending is not None else None
    micro.accumulate(k, step.kind, k.pointer(step.destination), rows_of_a, panels, step.count, extent, step.rows, step.vectors, fresh, ends_in)
    if step.kind.tiles:
        micro.release_tiles(k)
    if step.final is not None:
        _convert_buffer(k, step)


def _fresh(k, step: Product, extent: Extent) -> Val:
    """An i1: do accumulators begin as zeros? Those that are not computed are zeros in memory then, but where nobody sees them: to put zeros there takes longer than
    a product of few terms does."""
    b = k.b
    if not step.zeros:
        return const("i1", False)
    first, whole = k.none(step.first), const("i1", True)
    for d, (end, size) in enumerate(((extent.rows, step.m), (extent.columns, step.n))):
        if end.const != size:
            unseen = ending.unseen(k, step, d, end) if step.count == 1 else const("i1", False)
            whole = b.and_(whole, b.or_(b.icmp("sge", end, i64(size)), unseen))
    k.guarded(b.and_(first, b.not_(whole)), lambda: k.run(step.zeros))
    return first


def _end(k, end, src, here, n: int) -> Val | None:
    """Where an operand ends: as its source does where that says all."""
    if end is None:
        return None
    return here.ends[n] if src is not None and src.exact else pack.end_of(k, end)


def _convert_buffer(k, step: Product):
    src, dst = step.destination, step.final
    dims = tuple(range(len(src.shape)))
    nest = k.nest(NestPlan(src.shape, src.shape, dims, len(dims) - 1, min(k.target.lanes(32), src.shape[-1])))
    nest.run(lambda u: access.store_buffer(
        nest, dst, dims, convert.float_to_float(k.b, access.load_buffer(nest, src, dims), src.elem, dst.elem)))


# --- how far to go -----------------------------------------------------------------------------------------------------


def _extent(k, step: Product, a: Rows, panels: Panels, ends) -> Extent:
    """Up to where the product has to be computed, given where A's rows and columns, and B's, end."""
    b, kind, m, n, kk = k.b, step.kind, step.m, step.n, step.k
    (a_rows, a_columns), (b_rows, b_columns) = ends
    depth, rows, columns = i64(kk), i64(m), i64(n)
    if a_columns is not None and b_rows is not None:
        same = step.ends[0][1].key == step.ends[1][0].key
        depth = a_columns if same else b.intrinsic("smax", a_columns, b_rows)
    if a_rows is not None:
        rows = a_rows
    if b_columns is not None:
        columns = b_columns
    if kind.acc[0] == "f" and step.count == 1:
        # Rows of zeros times a B that has an infinity or NaN are NaN; so are columns of zeros.
        if rows.const != m:
            rows = _unless(k, b.and_(b.icmp("slt", rows, i64(m)), b.not_(ending.unseen(k, step, 0, rows))), rows, lambda: _finite_panels(k, step, panels), i64(m))
        if columns.const != n:
            there = a_rows if a_rows is not None else i64(m)
            length = b.intrinsic("smin", depth, a.copies.ends[1]) if a.copies is not None else depth
            read = (i64(0), i64(1), i64(m * kk)) if a.strip else (a.pitch, there, length)
            columns = _unless(k, b.and_(b.icmp("slt", columns, i64(n)), b.not_(ending.unseen(k, step, 1, columns))), columns, lambda: _finite(k, kind, a.ptr, *read), i64(n))
    elif kind.acc[0] == "f":
        rows, columns = i64(m), i64(n)
    return Extent(m, n, kk, rows, columns, depth)


def _unless(k, edge: Val, limit: Val, finite, whole: Val) -> Val:
    """`limit`, but `whole` where `edge` holds and not `finite()`."""
    b = k.b
    if edge.const == 0:
        return limit
    slot = b.alloca("i64", "end")
    b.store(limit, slot, 8)
    k.guarded(edge, lambda: b.store(b.select(finite(), limit, whole), slot, 8))
    return b.load("i64", slot, 8)


def _finite_panels(k, step: Product, panels: Panels) -> Val:
    """Is B free of infinities and NaNs?"""
    packed, lies = (panels.ptr, i64(0), i64(1), i64(step.k * step.n)), panels.lies
    if lies is not None:
        packed = tuple(k.b.select(lies.holds, x, y) for x, y in zip((lies.ptr, lies.pitch, *lies.ends), packed))
    return _finite(k, step.kind, *packed)


def _finite(k, kind: Kind, ptr: Val, pitch: Val, rows: Val, length: Val) -> Val:
    """Are `rows` rows of `length` floats free of infinities and NaNs: is an exponent of all ones nowhere?"""
    b = k.b
    packed = REGISTER[kind.packed]
    bits = ir.bits_of(packed)
    elem = f"i{bits}"
    lanes = k.target.lanes(bits)
    exponent = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F800000, "f64": 0x7FF << 52}[kind.packed]
    slot, last = b.alloca(ir.vec(elem, lanes), "worst"), b.alloca(elem, "worst")
    b.store(const(elem, 0, lanes), slot, 64)
    b.store(const(elem, 0), last, 8)

    def note(at, where, lanes):
        ty = ir.vec(elem, lanes)
        v = b.and_(b.load(ty, at, bits // 8), const(elem, exponent, lanes))
        b.store(b.intrinsic("umax", b.load(ty, where, 8), v), where, 8)

    def row(i):
        line = b.gep(packed, ptr, b.mul(i, pitch))
        main = b.and_(length, i64(-lanes))
        k.loop(i64(0), main, lanes, lambda q: note(b.gep(packed, line, q), slot, lanes), "finite")
        k.loop(main, length, 1, lambda q: note(b.gep(packed, line, q), last, 1), "finite")

    k.loop(i64(0), rows, 1, row, "finite")
    worst = b.load(ir.vec(elem, lanes), slot, 64)
    if lanes > 1:
        worst = b.call(f"llvm.vector.reduce.umax.{ir.mangle(worst.ty)}", elem, [worst])
    return b.icmp("ult", b.intrinsic("umax", worst, b.load(elem, last, 8)), const(elem, exponent))


STEPS = {Product: product}
