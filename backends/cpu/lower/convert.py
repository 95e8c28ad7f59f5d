"""Conversions between types. bf16 goes by integer arithmetic: LLVM's own vector fpext/fptrunc of bfloat are calls or
scalar code on most targets (70 instructions against 6 on a SpacemiT X60)."""

from __future__ import annotations

import struct

from .. import ir
from ..ir import Val, const

#: element types kept as bit patterns in registers
NARROW = {"bf16"}


def encode(value, e: str) -> int:
    """A constant as bf16 bits, rounded to nearest even; ("bits", n) is n."""
    if isinstance(value, tuple):
        return value[1]
    value = float(value)
    if value != value:
        return 0x7FC0
    try:
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
    except OverflowError:
        bits = 0x7F800000 if value > 0 else 0xFF800000
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def widen(b, v: Val, e: str) -> Val:
    """bf16 bits to float."""
    if isinstance(v.const, int):
        return const("float", ("bits", (v.const & 0xFFFF) << 16), v.lanes)
    wide = b.bin("shl", b.cast("zext", v, "i32"), const("i32", 16))
    return b.bitcast(wide, "float")


def narrow(b, v: Val, e: str) -> Val:
    """float to bf16 bits, rounded to nearest even; NaN stays NaN."""
    if v.elem == "double":
        v = b.cast("fptrunc", v, "float")
    if v.elem == "half":
        v = b.cast("fpext", v, "float")
    bits = b.bitcast(v, "i32")
    odd = b.and_(b.bin("lshr", bits, const("i32", 16)), const("i32", 1))
    rounded = b.bin("lshr", b.add(b.add(bits, const("i32", 0x7FFF)), odd), const("i32", 16))
    quiet = b.or_(b.bin("lshr", bits, const("i32", 16)), const("i32", 0x40))
    nan = b.fcmp("uno", v, v)
    return b.cast("trunc", b.select(nan, quiet, rounded), "i16")


_FLOAT = {"f16": "half", "f32": "float", "f64": "double"}


def float_to_float(b, v: Val, src: str, dst: str) -> Val:
    """Any float conversion, rounded to nearest even."""
    if src == dst:
        return v
    if src in NARROW:
        v, src = widen(b, v, src), "f32"
    if dst in NARROW:
        return narrow(b, v, dst)
    order = ["f16", "f32", "f64"]
    if src == dst:
        return v
    name = "fpext" if order.index(src) < order.index(dst) else "fptrunc"
    return b.cast(name, v, _FLOAT[dst])


def _types(op):
    return op.operands[0].type.elem, op.result.type.elem


def fp_cast(b, op, v):
    src, dst = _types(op)
    for e in (src, dst):
        if e not in _FLOAT and e not in NARROW:
            raise b.fn.kernel.error(op, f"no conversion {src} -> {dst} yet; it takes f16, bf16, f32, f64")
    rounding = op.attrs.get("rounding") or next((w for w in op.words if w.startswith("rt")), "rtne")
    if rounding not in ("rtne", True) and ir.bits_of(_reg(dst)) < ir.bits_of(_reg(src)):
        raise b.fn.kernel.error(op, f"rounding mode {rounding} is not covered yet; it takes rtne")
    return float_to_float(b, v, src, dst)


def _reg(e):
    from ..nest import REGISTER
    return REGISTER[e]


def int_cast(name):
    return lambda b, op, v: b.cast(name, v, _reg(op.result.type.elem))


def from_int(signed: bool):

    def rule(b, op, v):
        dst = op.result.type.elem
        name = "sitofp" if signed else "uitofp"
        if dst in NARROW:
            return narrow(b, b.cast(name, v, "float"), dst)
        return b.cast(name, v, _FLOAT[dst])

    return rule


def to_int(signed: bool):
    """Float to integer, truncating. Out of range and NaN saturate (LLVM's plain cast would be poison)."""

    def rule(b, op, v):
        src, dst = _types(op)
        if src in NARROW:
            v = widen(b, v, src)
        to = _reg(dst)
        if dst == "i1":
            return b.cast("trunc", to_int_sat(b, v, "i8", signed), "i1")
        return to_int_sat(b, v, to, signed)

    return rule


def to_int_sat(b, v: Val, to: str, signed: bool) -> Val:
    ty = ir.vec(to, v.lanes)
    name = "fptosi" if signed else "fptoui"
    return b.call(f"llvm.{name}.sat.{ir.mangle(ty)}.{ir.mangle(v.ty)}", ty, [v])


def bitcast(b, op, v):
    src, dst = _types(op)
    to = _reg(dst)
    if src == "ptr" or dst == "ptr":
        return v
    if v.elem == to:
        return v
    return b.bitcast(v, to)


ELEMENTWISE = {
    "arith.extsi": int_cast("sext"), "arith.extui": int_cast("zext"), "arith.trunci": int_cast("trunc"),
    "arith.extf": fp_cast, "arith.truncf": fp_cast, "tt.fp_to_fp": fp_cast,
    "arith.sitofp": from_int(True), "arith.uitofp": from_int(False),
    "arith.fptosi": to_int(True), "arith.fptoui": to_int(False),
    "tt.bitcast": bitcast, "arith.bitcast": bitcast,
    "tt.ptr_to_int": lambda b, op, v: b.cast("ptrtoint", v, _reg(op.result.type.elem)),
    "tt.int_to_ptr": lambda b, op, v: b.cast("inttoptr", v, "ptr"),
}
