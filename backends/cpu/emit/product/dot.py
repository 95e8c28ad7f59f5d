"""tt.dot: operands packed into scratch, accumulators in registers, one micro-kernel whose shape is the target row's.

The accumulator block lives in scratch and is updated in place across the loop over K. Rows, columns and steps along K that
masks leave out are not computed where that changes nothing: nothing is added by 0 x 0, and by 0 x y only where y is finite,
which is looked up in the edge tiles that need it.
"""

from __future__ import annotations

from ...llvm import ir
from ...llvm.ir import Val, const, i64
from ..nest import REGISTER, Buffer, Nest
from ..root import control
from ..element import convert
from . import micro, pack
from ..root.atomic import WRITES
from .micro import Extent
from .pack import Kind, Rows

#: (operand element) -> element that products are computed in
COMPUTE = {"f16": "f32", "f32": "f32", "f64": "f64", "i8": "i32", **dict.fromkeys(convert.NARROW, "f32")}


def dot(k, op):
    following = _next(op)
    if following is not None:  # carried out with the next one: see `product`
        return k.DEFERRED
    chain = [op]
    while chain[0].operands[2].op is not None and chain[0].operands[2].op.name == "tt.dot" and _next(chain[0].operands[2].op) is chain[0]:
        chain.insert(0, chain[0].operands[2].op)
    for o in chain:
        _check(k, o)
    product(k, op, [o.operands[0] for o in chain], [o.operands[1] for o in chain], chain[0].operands[2], chain[0])
    k.executed.update(chain)


def _next(op):
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
    return other if not any(o.regions or o.name in WRITES for o in between) else None


def _check(k, op):
    a, bv = op.operands[:2]
    for v in (a, bv):
        if v.type.elem not in COMPUTE:
            raise k.error(op, f"{v.type.elem} operands are not taken; it takes {', '.join(COMPUTE)}")
    if COMPUTE[bv.type.elem] != COMPUTE[a.type.elem]:
        raise k.error(op, f"operands {a.type.elem} and {bv.type.elem} do not go together")


def _kind(target, a: str, b: str, m: int, n: int, kk: int) -> Kind:
    """How the target multiplies these operands best."""
    lanes = target.lanes(32)
    if a == b == "bf16" and target.bf16_dot and kk >= 2 and n >= lanes:
        tiles = target.bf16_dot == "amx" and m % 16 == 0 and n % 16 == 0 and kk % 32 == 0
        return Kind("bf16", "f32", 2, tiles)
    if a == b == "i8" and target.triple.startswith("x86") and kk >= 2 and n >= lanes:
        return Kind("i16", "i32", 2)
    return Kind(COMPUTE[a], COMPUTE[a])


def product(k, op, lhs, rhs, c, first=None):
    """op's result = the sum of lhs[u] @ rhs[u], and c. `first`: the operation that reads c."""
    a, bv = lhs[0], rhs[0]
    *batch, m, kk = a.type.shape
    kk *= len(lhs)
    n = bv.type.shape[-1]
    out = op.result
    kind = _kind(k.target, a.type.elem, bv.type.elem, m, n, kk)
    lanes = min(k.target.lanes(ir.bits_of(REGISTER[kind.acc])), n)
    rows, vectors = (32, 2) if kind.tiles else k.target.dot
    rows, vectors = min(rows, m), max(1, min(vectors, n // lanes))
    count = 1
    for d in batch:
        count *= d
    a_src, b_src = pack.joined(k, lhs, 1), pack.joined(k, rhs, 0)
    a_ends, b_ends = pack.ends(k, lhs, a_src), pack.ends(k, rhs, b_src)
    rows_of_a = pack.rows(k, lhs, a_src, kind, b_ends[0])
    panels = pack.panels(k, rhs, b_src, kind, lanes * vectors)
    dest = _destination(k, op, first or op, c, kind.acc, lhs + rhs)
    extent = _extent(k, kind, rows_of_a, panels, a_ends, b_ends, count, m, n, kk)
    if kind.tiles:
        micro.configure_tiles(k)
    micro.accumulate(k, kind, dest, rows_of_a, panels, count, extent, rows, vectors)
    if kind.tiles:
        micro.release_tiles(k)
    if dest.elem == out.type.elem:
        k.buffers[out] = dest
    else:
        final = k.alloc(out.type.shape, out.type.elem)
        _convert_buffer(k, op, dest, final)
        k.buffers[out] = final


def _convert_buffer(k, op, src: Buffer, dst: Buffer):
    nest = Nest(k, src.shape)
    nest.lanes = min(k.target.lanes(32), src.shape[-1])
    nest.run(list(nest.identity), lambda u: nest.store_buffer(
        dst, nest.identity, convert.float_to_float(k.b, nest.load_buffer(src, nest.identity), src.elem, dst.elem)))


# --- how far to go -----------------------------------------------------------------------------------------------------


def _extent(k, kind: Kind, a: Rows, panels: Val, a_ends, b_ends, batch: int, m: int, n: int, kk: int) -> Extent:
    """Up to where the product has to be computed, given where A's rows and columns, and B's, end."""
    b = k.b
    depth, rows, columns = i64(kk), i64(m), i64(n)
    if a_ends[1] and b_ends[0]:
        same = a_ends[1].key == b_ends[0].key
        depth = a_ends[1].at if same else b.intrinsic("smax", a_ends[1].at, b_ends[0].at)
    if a_ends[0]:
        rows = a_ends[0].at
    if b_ends[1]:
        columns = b_ends[1].at
    if kind.acc[0] == "f" and batch == 1:
        # Rows of zeros times a B that has an infinity or NaN are NaN; so are columns of zeros.
        if rows.const != m:
            rows = _unless(k, b.icmp("slt", rows, i64(m)), lambda: _finite(k, kind, panels, i64(0), i64(1), i64(kk * n)), rows, i64(m))
        if columns.const != n:
            there = a_ends[0].at if a_ends[0] else i64(m)
            columns = _unless(k, b.icmp("slt", columns, i64(n)), lambda: _finite(k, kind, a.ptr, a.pitch, there, depth), columns, i64(n))
    elif kind.acc[0] == "f":
        rows, columns = i64(m), i64(n)
    return Extent(m, n, kk, rows, columns, depth)


def _unless(k, edge: Val, finite, limit: Val, whole: Val) -> Val:
    """`limit` where `edge` holds and `finite()`, else `whole`."""
    b = k.b
    slot = b.alloca("i64", "end")
    b.store(whole, slot, 8)
    k.guarded(edge, lambda: b.store(b.select(finite(), limit, whole), slot, 8))
    return b.load("i64", slot, 8)


def _finite(k, kind: Kind, ptr: Val, pitch: Val, rows: Val, length: Val) -> Val:
    """Are `rows` rows of `length` floats free of infinities and NaNs: is an exponent of all ones nowhere?"""
    b = k.b
    packed = REGISTER[kind.packed]
    bits = ir.bits_of(packed)
    elem = f"i{bits}"
    lanes = k.target.lanes(bits)
    exponent = {16: 0x7F80, 32: 0x7F800000, 64: 0x7FF << 52}[bits]
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


# --- accumulators --------------------------------------------------------------------------------------------------------


def _destination(k, op, first, c, compute: str, factors) -> Buffer:
    """The accumulator buffer, holding C. A loop's own accumulator is used where it is, without a copy per trip, unless the `factors` are
    made of it: they may be read while the result is written."""
    out = op.result
    shape = out.type.shape
    buf = None
    if out.type.elem == compute and len(out.uses) == 1 and out.uses[0].name == "scf.yield":
        y = out.uses[0]
        region = y.block.region
        loop = region.op if region else None
        if loop is not None and loop.name == "scf.for":
            arg = region.block.args[1 + y.operands.index(out)]
            held = k.buffers.get(arg)
            if (held is not None and held.is_row_major and k.facts.consumers(arg) == {first} and _elementwise_in(k, c, arg)
                    and not any(held.base in control.reads(k, v) for v in factors)):
                buf = held
                if c is arg:
                    return buf
    if buf is None:
        buf = k.alloc(shape, compute)
    k.materialise_into(buf, c, pack.widening(c.type.elem, compute))
    return buf


def _elementwise_in(k, c, arg) -> bool:
    """Does `c` read `arg` only at its own index?"""
    nest = Nest(k, c.type.shape)
    return all(dims == nest.identity for v, dims in nest.explore([(c, nest.identity)]) if v is arg)


ROOTS = {"tt.dot": dot}
