"""tt.dot_scaled: a product of operands in fp4, fp8 or 16-bit floats, each group of 16 or 32 along K with a scale of its own.

The operands are decoded into f32 scratch, scales multiplied in, and multiplied there: every product is exact, the sum is f32's.
Formats and the e8m0 scale: OCP Microscaling Formats (MX) Specification 1.0, section 5; fp4 elements are packed in pairs, the low
half of a byte first.
"""

from __future__ import annotations

from ...llvm import ir
from ...llvm.ir import Val, const, i64
from ..nest import memory_type
from ...ttir.types import Type, Value
from ..element import convert
from . import dot

#: a format's name in TTIR -> its element type here (fp4 stays packed)
_FORMATS = {"e2m1": "e2m1", "e4m3": "fp8e4nv", "e5m2": "fp8e5", "bf16": "bf16", "fp16": "f16"}


def dot_scaled(k, op):
    scaled = op.attrs.get("scales", [])
    rest = iter(enumerate(op.operands))
    found = []
    for _ in "ab":
        v = next(rest)[1]
        at = len(found) + sum(s is not None for _, s in found) + 1
        found.append((v, next(rest)[1] if at in scaled else None))
    c = next(rest)[1]
    (a, a_scale), (bv, b_scale) = found
    m, n = op.result.type.shape[-2:]
    lhs = _decoded(k, op, a, a_scale, str(op.attrs.get("lhs")), op.attrs.get("lhs_k_pack", True), m, k_axis=1)
    rhs = _decoded(k, op, bv, b_scale, str(op.attrs.get("rhs")), op.attrs.get("rhs_k_pack", True), n, k_axis=0)
    dot.product(k, op, [lhs], [rhs], c)


def _decoded(k, op, v, scale, form: str, k_pack: bool, free: int, k_axis: int) -> Value:
    """The operand in f32, as a value held in scratch: [..., free, K] where `k_axis` is 1, [..., K, free] where it is 0."""
    if form not in _FORMATS:
        raise k.error(op, f"format {form} is not one of {', '.join(_FORMATS)}")
    b, elem = k.b, _FORMATS[form]
    packed = elem == "e2m1"
    source = k.materialise_row_major(v)
    *batch, height, width = v.type.shape
    kk = (height, width)[k_axis] * (2 if packed and k_pack else 1)
    shape = (free, kk) if k_axis else (kk, free)
    out = k.alloc((*batch, *shape), "f32")
    scales = k.materialise_row_major(scale) if scale is not None else None
    group = kk // scale.type.shape[-1] if scale is not None else kk
    mem = memory_type(v.type.elem)
    size = ir.bits_of(mem) // 8
    # The packed dimension is halved in memory.
    half_axis = (k_axis if k_pack else 1 - k_axis) if packed else None

    def one(p):
        k.loop(i64(0), i64(shape[0]), 1, lambda i: k.loop(i64(0), i64(shape[1]), 1, lambda j: element(p, i, j), "column"), "row")

    def element(p, i, j):
        at = [i, j]
        if half_axis is not None:
            nibble = b.and_(at[half_axis], i64(1))
            at[half_axis] = b.bin("lshr", at[half_axis], i64(1))
        at[0] = b.add(b.mul(p, i64(height)), at[0])
        raw = b.load(mem, b.gep(mem, source.ptr, b.add(b.mul(at[0], i64(width)), at[1])), size)
        if half_axis is not None:
            x = _fp4(b, b.bin("lshr", b.cast("zext", raw, "i32"), b.cast("trunc", b.mul(nibble, i64(4)), "i32")))
        else:
            x = convert.float_to_float(b, raw, elem, "f32")
        if scales is not None:
            free_at, k_at = (i, j) if k_axis else (j, i)
            free_at = b.add(b.mul(p, i64(free)), free_at)
            where = b.add(b.mul(free_at, i64(scale.type.shape[-1])), b.bin("udiv", k_at, i64(group)))
            x = b.fbin("fmul", x, _scale(k, b.load("i8", b.gep("i8", scales.ptr, where), 1), scale.type.elem), "")
        i = b.add(b.mul(p, i64(shape[0])), i)
        b.store(x, b.gep("float", out.ptr, b.add(b.mul(i, i64(shape[1])), j)), 4)

    count = 1
    for d in batch:
        count *= d
    k.loop(i64(0), i64(count), 1, one, "batch")
    value = Value(Type("f32", (*batch, *shape)))
    k.buffers[value] = out
    return value


def _fp4(b, x: Val) -> Val:
    """The low four bits as e2m1: the exponent and mantissa stand at f32's place, and the product moves the bias."""
    bits = b.bin("shl", b.and_(x, const("i32", 7)), const("i32", 22))
    size = b.bitcast(b.fbin("fmul", b.bitcast(bits, "float"), const("float", 2.0**126), ""), "i32")
    return b.bitcast(b.or_(size, b.bin("shl", b.and_(x, const("i32", 8)), const("i32", 28))), "float")


def _scale(k, s: Val, elem: str) -> Val:
    """A scale: 2^(s - 127), NaN for 255; or an fp8 number."""
    b = k.b
    if elem in convert.NARROW:
        return convert.widen(b, s, elem)
    s = b.cast("zext", s, "i32")
    bits = b.bin("shl", s, const("i32", 23))
    bits = b.select(b.icmp("eq", s, const("i32", 0)), const("i32", 1 << 22), bits)
    return b.bitcast(b.select(b.icmp("eq", s, const("i32", 255)), const("i32", 0x7FC00000), bits), "float")


ROOTS = {"tt.dot_scaled": dot_scaled}
