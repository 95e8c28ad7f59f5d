"""tt.dot: operands packed into scratch, accumulators in registers, one micro-kernel whose shape is the target row's.

A goes row by row with a stride that avoids cache-set conflicts; B goes in panels as wide as the micro-kernel, so its
inner loop reads it in order. fp16 and bf16 widen to f32 while they are packed. The accumulator block lives in scratch
and is updated in place across the loop over K.
"""

from __future__ import annotations

from .. import ir
from ..ir import i64
from ..nest import REGISTER, Buffer
from . import convert

#: (operand element) -> element that products are computed in
COMPUTE = {"f16": "f32", "bf16": "f32", "f32": "f32", "f64": "f64", "i8": "i32"}


def dot(k, op):
    a, bv, c = op.operands[:3]
    for v in (a, bv):
        if v.type.elem not in COMPUTE:
            raise k.error(op, f"{v.type.elem} operands are not covered yet; it takes {', '.join(COMPUTE)}")
    compute = COMPUTE[a.type.elem]
    if COMPUTE[bv.type.elem] != compute:
        raise k.error(op, f"operands {a.type.elem} and {bv.type.elem} do not go together")
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
    a_buf = _pack_rows(k, a, compute)
    b_buf = _pack_panels(k, bv, compute, width)
    dest = _destination(k, op, compute)
    _accumulate(k, dest, a_buf, b_buf, compute, count, m, n, kk, rows, lanes, vectors)
    if dest.elem == out.type.elem:
        k.buffers[out] = dest
    else:
        final = k.alloc(out.type.shape, out.type.elem)
        _convert_buffer(k, op, dest, final)
        k.buffers[out] = final


def _convert_buffer(k, op, src: Buffer, dst: Buffer):
    from ..nest import Nest
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


def _pack_rows(k, v, compute: str) -> Buffer:
    buf = k.buffers.get(v)
    if buf is not None and buf.elem == compute and buf.strides[-1] == 1 and buf.panel is None:
        return buf
    *batch, m, kk = v.type.shape
    pitch = kk + 16 if kk >= 64 else kk
    strides, step = [], m * pitch
    for d in reversed(batch):
        strides.append(step)
        step *= d
    out = k.alloc(v.type.shape, compute, tuple(reversed(strides)) + (pitch, 1), size=step)
    k.materialise_into(out, v, _widening(v.type.elem, compute))
    return out


def _pack_panels(k, v, compute: str, width: int) -> Buffer:
    *batch, kk, n = v.type.shape
    strides, step = [], kk * n
    for d in reversed(batch):
        strides.append(step)
        step *= d
    axis = len(batch) + 1
    out = k.alloc(v.type.shape, compute, tuple(reversed(strides)) + (width, 1), panel=(axis, width, kk * width))
    k.materialise_into(out, v, _widening(v.type.elem, compute), vdim=axis)
    return out


def _destination(k, op, compute: str) -> Buffer:
    """The accumulator buffer, holding C. A loop's own accumulator is used where it is: no copy per trip."""
    c, out = op.operands[2], op.result
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
    from ..nest import Nest
    nest = Nest(k, c.type.shape)
    return all(dims == nest.identity for v, dims in nest.explore([(c, nest.identity)]) if v is arg)


def _accumulate(k, dest, a, bb, compute, batch, m, n, kk, rows, lanes, vectors):
    """dest[batch, m, n] += a[batch, m, kk] @ b[batch, kk, n]."""
    b = k.b
    t = REGISTER[compute]
    ty = ir.vec(t, lanes)
    size = ir.bits_of(t) // 8
    width = lanes * vectors
    lda = a.strides[-2]
    k_unroll = next(u for u in (4, 2, 1) if kk % u == 0)
    isf = compute[0] == "f"

    def one_batch(p):
        a_base = b.gep(t, a.ptr, b.mul(p, i64(a.strides[0] if batch > 1 else 0)))
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
                a_tile = b.gep(t, a_base, b.mul(i, i64(lda)))
                where = [[b.gep(t, c_tile, i64(x * n + v * lanes)) for v in range(vectors)] for x in range(r)]
                for x in range(r):
                    for v in range(vectors):
                        b.store(b.load(ty, where[x][v], size), slots[x][v], 64)

                def step(q):
                    acc = [[b.load(ty, s, 64) for s in line] for line in slots]
                    b_row = b.gep(t, b_panel, b.mul(q, i64(width)))
                    a_col = b.gep(t, a_tile, q)
                    for u in range(k_unroll):
                        cols = [b.load(ty, b.gep(t, b_row, i64(u * width + v * lanes)), size) for v in range(vectors)]
                        for x in range(r):
                            s = b.splat(b.load(t, b.gep(t, a_col, i64(x * lda + u)), size), lanes)
                            for v in range(vectors):
                                acc[x][v] = (b.intrinsic("fma", s, cols[v], acc[x][v]) if isf else
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
