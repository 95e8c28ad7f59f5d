"""tt.dot: operands packed into scratch, accumulators in registers, one micro-kernel whose shape is the target row's.

B goes in panels as wide as the micro-kernel, so its inner loop reads it in order. A's elements are broadcast one at a
time, so where A is a load of whole rows in the computing type it is read where it lies; else it goes row by row with a
stride that avoids cache-set conflicts. fp16 and bf16 widen to f32 while they are packed. The accumulator block lives in scratch
and is updated in place across the loop over K.
"""

from __future__ import annotations

from .. import ir
from ..analysis import poly, poly_add, poly_const
from ..ir import Val, const, i64
from ..nest import REGISTER, Buffer, Nest
from . import convert, math

#: (operand element) -> element that products are computed in
COMPUTE = {"f16": "f32", "f32": "f32", "f64": "f64", "i8": "i32", **dict.fromkeys(convert.NARROW, "f32")}


def dot(k, op):
    a, bv, c = op.operands[:3]
    for v in (a, bv):
        if v.type.elem not in COMPUTE:
            raise k.error(op, f"{v.type.elem} operands are not taken; it takes {', '.join(COMPUTE)}")
    if COMPUTE[bv.type.elem] != COMPUTE[a.type.elem]:
        raise k.error(op, f"operands {a.type.elem} and {bv.type.elem} do not go together")
    product(k, op, a, bv, c)


def product(k, op, a, bv, c):
    """op's result = a @ bv + c."""
    compute = COMPUTE[a.type.elem]
    *batch, m, kk = a.type.shape
    n = bv.type.shape[-1]
    out = op.result
    lanes = min(k.target.lanes(ir.bits_of(REGISTER[compute])), n)
    rows, vectors = k.target.dot
    rows, vectors = min(rows, m), max(1, min(vectors, n // lanes))
    width = lanes * vectors
    count = 1
    for d in batch:
        count *= d
    rows_of_a = _rows(k, a, compute, bool(batch))
    b_buf = _pack_panels(k, bv, compute, width)
    dest = _destination(k, op, c, compute)
    _accumulate(k, dest, rows_of_a, b_buf, compute, count, m, n, kk, rows, lanes, vectors)
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


def _widening(src: str, dst: str):
    if src == dst:
        return None
    if dst[0] == "i":
        return lambda b, v: b.cast("sext", v, REGISTER[dst])
    return lambda b, v: convert.float_to_float(b, v, src, dst)


def _rows(k, v, compute: str, batched: bool) -> tuple[Val, Val, int]:
    """(pointer to row 0 of A, elements from row to row, elements from batch to batch)."""
    b = k.b
    buf = k.buffers.get(v)
    if buf is not None and buf.elem == compute and buf.strides[-1] == 1 and buf.panel is None:
        return buf.ptr, i64(buf.strides[-2]), buf.strides[0]
    *batch, m, kk = v.type.shape
    direct = None if batched else _rows_in_place(k, v, compute)
    if direct and direct[0].const:
        return direct[1], direct[2], 0
    pitch = kk + 16 if kk >= 64 else kk
    strides, step = [], m * pitch
    for d in reversed(batch):
        strides.append(step)
        step *= d
    out = k.alloc(v.type.shape, compute, tuple(reversed(strides)) + (pitch, 1), size=step)
    if direct is None:
        k.materialise_into(out, v, _widening(v.type.elem, compute))
        return out.ptr, i64(pitch), out.strides[0]
    whole, ptr, lda = direct
    ptr_slot, lda_slot = b.alloca("ptr", "rows"), b.alloca("i64", "pitch")
    pack, ready = k.fn.new_block("pack"), k.fn.new_block("ready")
    b.store(ptr, ptr_slot, 8)
    b.store(lda, lda_slot, 8)
    b.cond_br(whole, ready, pack)
    b.enter(pack)
    k.materialise_into(out, v, _widening(v.type.elem, compute))
    b.store(out.ptr, ptr_slot, 8)
    b.store(i64(pitch), lda_slot, 8)
    b.br(ready)
    b.place(ready)
    return b.load("ptr", ptr_slot, 8), b.load("i64", lda_slot, 8), 0


def _rows_in_place(k, v, compute: str):
    """(i1: is every element there, pointer to row 0, elements from row to row) where A is a plain load of contiguous
    rows; None otherwise."""
    op = v.op
    if op is None or op.name != "tt.load" or v in k.buffers or v.type.elem != compute:
        return None
    nest = Nest(k, v.type.shape)
    dims = nest.identity
    aff = nest.affine(op.operands[0], dims)
    if aff.ptr is None or aff.ptr.type.is_tensor or aff.opaque or poly_const(aff.coef.get(1, {})) != 1:
        return None
    limits = _all_below(nest, op.operands[1], dims) if len(op.operands) > 1 else []
    if limits is None:
        return None
    found = []

    def emit(_):
        whole = const("i1", True)
        for limit in limits:
            test = limit if isinstance(limit, Val) else k.b.icmp("slt", nest.poly_value(limit), i64(0))
            whole = k.b.and_(whole, test)
        ptr = k.b.gep(REGISTER[compute], k.scalar(aff.ptr), nest.poly_value(aff.base))
        found.append((whole, ptr, nest.poly_value(aff.coef.get(0, {}))))

    nest.run([], emit)
    return found[0]


def _all_below(nest, mask, dims):
    """The conditions (scalars, or polynomials that must be negative) under which a mask holds everywhere, or None."""
    op = mask.op
    if not mask.type.is_tensor:
        return [nest.k.scalar(mask)]
    if op is None or mask in nest.k.buffers:
        return None
    if op.name == "tt.splat":
        return [nest.k.scalar(op.operands[0])]
    if op.name == "arith.constant" and not isinstance(op.attrs["value"], list):
        return [const("i1", op.attrs["value"])]
    if op.name == "arith.andi":
        parts = [_all_below(nest, o, dims) for o in op.operands]
        return None if None in parts else parts[0] + parts[1]
    if op.name == "arith.cmpi":
        nest.atoms = []
        nest.find_atoms([(mask, dims)])
        if not nest.atoms:
            return None
        _, _, coef, worst = nest.atoms[0]
        for d, p in coef.items():
            c = poly_const(p)
            if c not in (1, -1):  # a larger step might wrap in 32 bits, on purpose
                return None
            worst = poly_add(worst, poly(max(c, 0) * (nest.shape[d] - 1)))
        return [worst]
    mapped = nest.k.mapped_dims(op, dims)
    return _all_below(nest, op.operands[0], mapped) if mapped is not None else None


def _pack_panels(k, v, compute: str, width: int) -> Buffer:
    *batch, kk, n = v.type.shape
    strides, step = [], kk * n
    for d in reversed(batch):
        strides.append(step)
        step *= d
    axis = len(batch) + 1
    out = k.alloc(v.type.shape, compute, tuple(reversed(strides)) + (width, 1), panel=(axis, width, kk * width))
    lanes = k.target.lanes(ir.bits_of(REGISTER[compute]))
    k.materialise_into(out, v, _widening(v.type.elem, compute), vdim=axis, inner=axis - 1, unroll=max(1, width // lanes))
    return out


def _destination(k, op, c, compute: str) -> Buffer:
    """The accumulator buffer, holding C. A loop's own accumulator is used where it is: no copy per trip."""
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
            if held is not None and held.is_row_major and k.facts.consumers(arg) == {op} and _elementwise_in(k, c, arg):
                buf = held
                if c is arg:
                    return buf
    if buf is None:
        buf = k.alloc(shape, compute)
    k.materialise_into(buf, c, _widening(c.type.elem, compute))
    return buf


def _elementwise_in(k, c, arg) -> bool:
    """Does `c` read `arg` only at its own index?"""
    nest = Nest(k, c.type.shape)
    return all(dims == nest.identity for v, dims in nest.explore([(c, nest.identity)]) if v is arg)


def _accumulate(k, dest, a, bb, compute, batch, m, n, kk, rows, lanes, vectors):
    """dest[batch, m, n] += a[batch, m, kk] @ b[batch, kk, n]."""
    b = k.b
    t = REGISTER[compute]
    ty = ir.vec(t, lanes)
    size = ir.bits_of(t) // 8
    width = lanes * vectors
    a_ptr, lda, a_batch = a
    k_unroll = next(u for u in (4, 2, 1) if kk % u == 0 and u <= k.target.dot_unroll)
    isf = compute[0] == "f"

    def one_batch(p):
        a_base = b.gep(t, a_ptr, b.mul(p, i64(a_batch if batch > 1 else 0)))
        b_base = b.gep(t, bb.ptr, b.mul(p, i64(kk * n)))
        c_base = b.gep(t, dest.ptr, b.mul(p, i64(m * n)))

        def panel(j):
            b_panel = b.gep(t, b_base, b.mul(j, i64(kk)))
            tile_rows(0, m - m % rows, rows, j, b_panel)
            if m % rows:
                tile_rows(m - m % rows, m, m % rows, j, b_panel)

        def tile_rows(lo, hi, r, j, b_panel):
            slots = [[b.alloca(ty, "acc") for _ in range(vectors)] for _ in range(r)]

            def tile(i):
                c_tile = b.gep(t, c_base, b.add(b.mul(i, i64(n)), j))
                a_tile = b.gep(t, a_base, b.mul(i, lda))
                a_rows = [b.gep(t, a_tile, b.mul(i64(x), lda)) for x in range(r)]
                where = [[b.gep(t, c_tile, i64(x * n + v * lanes)) for v in range(vectors)] for x in range(r)]
                for x in range(r):
                    for v in range(vectors):
                        b.store(b.load(ty, where[x][v], size), slots[x][v], 64)

                def step(q):
                    acc = [[b.load(ty, s, 64) for s in line] for line in slots]
                    b_row = b.gep(t, b_panel, b.mul(q, i64(width)))
                    a_cols = [b.gep(t, row, q) for row in a_rows]
                    for u in range(k_unroll):
                        cols = [b.load(ty, b.gep(t, b_row, i64(u * width + v * lanes)), size) for v in range(vectors)]
                        for x in range(r):
                            s = b.splat(b.load(t, b.gep(t, a_cols[x], i64(u)), size), lanes)
                            for v in range(vectors):
                                acc[x][v] = (math.mul_add(b, s, cols[v], acc[x][v]) if isf else
                                             b.add(b.mul(s, cols[v]), acc[x][v]))
                    for x in range(r):
                        for v in range(vectors):
                            b.store(acc[x][v], slots[x][v], 64)

                k.loop(i64(0), i64(kk), k_unroll, step, "k")
                for x in range(r):
                    for v in range(vectors):
                        b.store(b.load(ty, slots[x][v], 64), where[x][v], size)

            k.loop(i64(lo), i64(hi), r, tile, "rows")

        k.loop(i64(0), i64(n), width, panel, "panels")

    k.loop(i64(0), i64(batch), 1, one_batch, "batch")


ROOTS = {"tt.dot": dot}
