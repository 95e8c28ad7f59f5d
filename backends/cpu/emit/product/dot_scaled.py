"""tt.dot_scaled: a product of operands in fp4, fp8 or 16-bit floats, each group of 16 or 32 along K with a scale of its own.

The operands are decoded into f32 scratch, scales multiplied in, and multiplied there: where an element times its scale is a number of f32 (4 times a scale of
2^126 is infinite), every product is exact, the sum is f32's.
Formats and the e8m0 scale: OCP Microscaling Formats (MX) Specification 1.0, section 5; fp4 elements are packed in pairs, the low
half of a byte first.
"""

from __future__ import annotations

import math

from ...llvm import ir
from ...llvm.elements import memory_type
from ...llvm.ir import Val, const, i64
from ...plan.product import FORMATS, Decode
from ..element import convert


def decode(k, step: Decode):
    """An operand in f32, in scratch: [..., free, K] where `k_axis` is 1, [..., K, free] where it is 0."""
    b, elem, scale, free = k.b, FORMATS[step.form], step.scale, step.free
    *batch, height, width = step.value.type.shape
    shape = step.out.shape[-2:]
    kk = shape[step.k_axis]
    group = kk // scale.type.shape[-1] if scale is not None else kk
    mem = memory_type(step.value.type.elem)
    size = ir.bits_of(mem) // 8
    source, out = k.pointer(step.source), k.pointer(step.out)
    scales = k.pointer(step.scales) if scale is not None else None
    # The packed dimension is halved in memory.
    half_axis = (step.k_axis if step.k_pack else 1 - step.k_axis) if elem == "e2m1" else None

    def one(p):
        k.loop(i64(0), i64(shape[0]), 1, lambda i: k.loop(i64(0), i64(shape[1]), 1, lambda j: element(p, i, j), "column"), "row")

    def element(p, i, j):
        at = [i, j]
        if half_axis is not None:
            nibble = b.and_(at[half_axis], i64(1))
            at[half_axis] = b.bin("lshr", at[half_axis], i64(1))
        at[0] = b.add(b.mul(p, i64(height)), at[0])
        raw = b.load(mem, b.gep(mem, source, b.add(b.mul(at[0], i64(width)), at[1])), size)
        if half_axis is not None:
            x = _fp4(b, b.bin("lshr", b.cast("zext", raw, "i32"), b.cast("trunc", b.mul(nibble, i64(4)), "i32")))
        else:
            x = convert.float_to_float(b, raw, elem, "f32")
        if scales is not None:
            free_at, k_at = (i, j) if step.k_axis else (j, i)
            free_at = b.add(b.mul(p, i64(free)), free_at)
            where = b.add(b.mul(free_at, i64(scale.type.shape[-1])), b.bin("udiv", k_at, i64(group)))
            x = b.fbin("fmul", x, _scale(k, b.load("i8", b.gep("i8", scales, where), 1), scale.type.elem), "")
        i = b.add(b.mul(p, i64(shape[0])), i)
        b.store(x, b.gep("float", out, b.add(b.mul(i, i64(shape[1])), j)), 4)

    k.loop(i64(0), i64(math.prod(batch)), 1, one, "batch")


def _fp4(b, x: Val) -> Val:
    """The low four bits as e2m1: the exponent and mantissa stand at f32's place, and the bias is added; of the two numbers without an exponent one is a half."""
    code = b.and_(x, const("i32", 7))
    normal = b.add(b.bin("shl", code, const("i32", 22)), const("i32", 126 << 23))
    size = b.select(b.icmp("ult", code, const("i32", 2)), b.bin("mul", code, const("i32", 126 << 23)), normal)
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


STEPS = {Decode: decode}
