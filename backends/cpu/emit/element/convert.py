"""Conversions between types; the narrow float formats themselves are in narrow.py."""

from __future__ import annotations

from ...llvm import ir
from ...llvm.ir import Val, const
from .narrow import NARROW, change_sign, encode, half_of, narrow, truncated, widen  # noqa: F401  (the names that other rules use)

_FLOAT = {"f16": "half", "f32": "float", "f64": "double"}


def float_to_float(b, v: Val, src: str, dst: str, rtz: bool = False) -> Val:
    """Any float conversion, rounded once: to nearest even, or towards zero."""
    if src == dst:
        return v
    if src in NARROW:
        v, src = widen(b, v, src), "f32"
    if dst in NARROW:
        return narrow(b, v, dst, rtz)
    order = ["f16", "f32", "f64"]
    if src == dst:
        return v
    if order.index(src) < order.index(dst):
        return b.cast("fpext", v, _FLOAT[dst])
    if rtz:
        return truncated(b, v, _FLOAT[dst])
    return half_of(b, v) if dst == "f16" else b.cast("fptrunc", v, _FLOAT[dst])


def _types(op):
    return op.operands[0].type.elem, op.result.type.elem


def fp_cast(b, op, v):
    src, dst = _types(op)
    for e in (src, dst):
        if e not in _FLOAT and e not in NARROW:
            raise b.fn.kernel.error(op, f"no conversion {src} -> {dst}; it takes f16, bf16, f32, f64 and the fp8 types")
    rounding = op.attrs.get("rounding", "rtne")
    if rounding not in ("rtne", "rtz"):
        raise b.fn.kernel.error(op, f"rounding mode {rounding} is not one of rtne, rtz")
    return float_to_float(b, v, src, dst, rounding == "rtz")


def _reg(e):
    from ...llvm.elements import REGISTER
    return REGISTER[e]


def int_cast(name):
    return lambda b, op, v: b.cast(name, v, _reg(op.result.type.elem))


def from_int(signed: bool):

    def rule(b, op, v):
        dst = op.result.type.elem
        name = "sitofp" if signed else "uitofp"
        if dst == "f16":  # what f32 cannot hold exactly is beyond f16's range
            return half_of(b, b.cast(name, v, "float"))
        if dst in NARROW:  # a double holds every i32, so that it is rounded once
            if v.elem == "i64":
                v = _in_a_double(b, v)
            return narrow(b, b.cast(name, v, "float" if ir.bits_of(v.elem) <= 16 else "double"), dst)
        return b.cast(name, v, _FLOAT[dst])

    return rule


def _in_a_double(b, v: Val) -> Val:
    """An i64 that a double holds and that lies where `v` does among multiples of 4096, which are more than what a 16-bit format tells apart from 2^52 on."""
    inside = b.bin("shl", b.bin("lshr", v, const("i64", 12)), const("i64", 12))
    inside = b.select(b.icmp("eq", inside, v), inside, b.or_(inside, const("i64", 1 << 11)))
    large = b.icmp("ugt", b.add(v, const("i64", 1 << 52)), const("i64", 1 << 53))
    return b.select(large, inside, v)


def to_int(signed: bool):
    """Float to integer, truncating. Out of range and NaN saturate (LLVM's plain cast would be poison); of 8 bits, signed or not, there is what is left of 32, as with torch, Triton's
    interpreter and, but for what is below 0 on NVIDIA's, on GPUs: AITER's mxfp4 kernels add 127 to a negative number that became a uint8."""

    def rule(b, op, v):
        src, dst = _types(op)
        if src in NARROW or src == "f16":
            v = float_to_float(b, v, src, "f32")
        to = _reg(dst)
        if dst == "i1":
            return b.cast("trunc", to_int_sat(b, v, "i8", signed), "i1")
        if to == "i8":
            return b.cast("trunc", to_int_sat(b, v, "i32", True), to)
        return to_int_sat(b, v, to, signed)

    return rule


def to_int_sat(b, v: Val, to: str, signed: bool) -> Val:
    """The integers that floats are when truncated; out of range the nearest there is, of NaN 0."""
    name = "fptosi" if signed else "fptoui"
    if v.lanes > 1 and not b.fn.kernel.target.saturates:
        return _within(b, v, to, name)
    ty = ir.vec(to, v.lanes)
    return b.call(f"llvm.{name}.sat.{ir.mangle(ty)}.{ir.mangle(v.ty)}", ty, [v])


def _within(b, v: Val, to: str, name: str) -> Val:
    """`to_int_sat` by x86's conversions of vectors, which know nothing of saturation: LLVM makes of its intrinsic a scalar conversion and two comparisons for each lane."""
    bits, digits = ir.bits_of(to), {"float": 24, "double": 53}[v.elem]
    value = bits - (name == "fptosi")  # bits beside the sign's
    least, most = -(1 << value) if name == "fptosi" else 0, (1 << value) - 1
    largest = most if value <= digits else most + 1 - (1 << (value - digits))  # of the floats that are not above `most`
    low, high = const(v.elem, float(least), v.lanes), const(v.elem, float(largest), v.lanes)
    x = b.select(b.fcmp("ogt", v, low), v, low)
    x = b.select(b.fcmp("olt", x, high), x, high)
    found = b.cast("trunc", b.cast("fptosi", x, "i32"), to) if bits < 32 else b.cast(name, x, to)
    if largest != most:
        found = b.select(b.fcmp("ogt", v, high), const(to, most if name == "fptosi" else -1, v.lanes), found)
    return b.select(b.fcmp("uno", v, v), const(to, 0, v.lanes), found)


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
