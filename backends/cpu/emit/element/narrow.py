"""Narrow float formats as bit patterns: bf16 and the five fp8 types, to and from f32, by integer arithmetic.

LLVM's own vector fpext and fptrunc of bfloat are calls or scalar code on most targets (70 instructions against 6 on a SpacemiT
X60), and it has no fp8 types at all. Rounding is to nearest even unless rtz (towards zero) is asked for. What lies beyond
the largest number of an fp8 type becomes that number, as in PTX's cvt.satfinite; NaN stays NaN where the type has one.
The formats: OCP 8-bit Floating Point Specification 1.0 (E5M2, E4M3FN), Noune et al., arXiv:2206.02915 (the FNUZ types), and
Triton's own fp8e4b15, which has bias 15 and neither NaN nor infinity.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass

from ...llvm import ir
from ...llvm.ir import Val, const


@dataclass(frozen=True)
class Format:
    """A float format: bits in all, mantissa bits, exponent bias, the code of its largest finite number, its quiet NaN (None
    where it has none), whether it has infinities, and whether it has a negative zero."""

    bits: int
    mantissa: int
    bias: int
    largest: int
    nan: int | None
    infinity: bool = False
    negative_zero: bool = True


FORMATS = {
    "bf16": Format(16, 7, 127, 0x7F7F, 0x7FC0, infinity=True),
    "fp8e5": Format(8, 2, 15, 0x7B, 0x7F, infinity=True),
    "fp8e4nv": Format(8, 3, 7, 0x7E, 0x7F),
    "fp8e4b8": Format(8, 3, 8, 0x7F, 0x80, negative_zero=False),
    "fp8e5b16": Format(8, 2, 16, 0x7F, 0x80, negative_zero=False),
    "fp8e4b15": Format(8, 3, 15, 0x7F, None),
}
#: element types kept as bit patterns in registers
NARROW = set(FORMATS)


def encode(value, e: str) -> int:
    """A constant's bits in format `e`, rounded to nearest even; ("bits", n) is n."""
    if isinstance(value, tuple):
        return value[1]
    value, f = float(value), FORMATS[e]
    sign = 1 << (f.bits - 1) if struct.pack("<d", value)[7] & 0x80 else 0
    if value != value:
        return f.nan if f.nan is not None else f.largest
    if value in (float("inf"), float("-inf")) and f.infinity:
        return sign | f.largest + 1
    size = abs(value)
    if size >= 2.0**(1 - f.bias):
        # Python rounds float(int) and round() to nearest even: scale so that the last kept bit is worth 1.
        exponent = min(struct.unpack("<Q", struct.pack("<d", size))[0] >> 52, 2046) - 1023
        steps = round(size / 2.0**(exponent - f.mantissa)) if size != float("inf") else 1 << 60
        code = steps + ((exponent + f.bias - 1) << f.mantissa)
    else:
        code = round(size * 2.0**(f.bias - 1 + f.mantissa))
    over = f.largest + 1 if e == "bf16" else f.largest
    code = min(code, over)
    return code | (sign if code or f.negative_zero else 0)


def decode(bits: int, e: str) -> float:
    """The number that the bits of format `e` stand for."""
    f = FORMATS[e]
    sign = -1.0 if bits >> (f.bits - 1) & 1 else 1.0
    code = bits & ((1 << (f.bits - 1)) - 1)
    if bits == f.nan or (f.negative_zero and f.nan is not None and code > f.largest + f.infinity):
        return float("nan")
    if code > f.largest:
        return sign * float("inf")
    exponent, fraction = code >> f.mantissa, code & ((1 << f.mantissa) - 1)
    if exponent:
        return sign * (1 + fraction / (1 << f.mantissa)) * 2.0**(exponent - f.bias)
    return sign * fraction * 2.0**(1 - f.bias - f.mantissa)


def _i(x: int) -> Val:
    return const("i32", x)


def widen(b, v: Val, e: str) -> Val:
    """The bits of format `e` as f32, exactly."""
    if isinstance(v.const, int):
        f = FORMATS[e]
        if e == "bf16":
            return const("float", ("bits", (v.const & 0xFFFF) << 16), v.lanes)
        x = decode(v.const & ((1 << f.bits) - 1), e)
        return const("float", ("bits", 0x7FC00000) if x != x else x, v.lanes)
    wide = b.cast("zext", v, "i32")
    if e == "bf16":
        return b.bitcast(b.bin("shl", wide, _i(16)), "float")
    return _widened(b, wide, FORMATS[e])


def _widened(b, wide: Val, f: Format) -> Val:
    """The bits (i32) of a format as f32."""
    # The exponent and mantissa stand at f32's place, and the bias is added; subnormals are whole numbers of steps. Never by a subnormal f32, which threads that flush them take for 0.
    code = b.and_(wide, _i((1 << (f.bits - 1)) - 1))
    shifted = b.bin("shl", code, _i(23 - f.mantissa))
    normal = b.add(shifted, _i((127 - f.bias) << 23))
    small = b.fbin("fmul", b.cast("sitofp", code, "float"), const("float", 2.0**(1 - f.bias - f.mantissa)), "")
    bits = b.select(b.icmp("ult", code, _i(1 << f.mantissa)), b.bitcast(small, "i32"), normal)
    if f.infinity:
        special = b.or_(shifted, _i(0x7F800000))
        bits = b.select(b.icmp("ugt", code, _i(f.largest)), special, bits)
    elif f.negative_zero and f.nan is not None:
        bits = b.select(b.icmp("eq", code, _i(f.nan)), _i(0x7FC00000), bits)
    bits = b.or_(bits, b.bin("shl", b.and_(wide, _i(1 << (f.bits - 1))), _i(32 - f.bits)))
    if not f.negative_zero:
        bits = b.select(b.icmp("eq", wide, _i(0x80)), _i(0x7FC00000), bits)
    return b.bitcast(bits, "float")


def narrow(b, v: Val, e: str, rtz: bool = False) -> Val:
    """f32 (or half, double: rounded once) to the bits of format `e`."""
    if v.elem == "double":
        v = to_odd(b, v) if not rtz else truncated(b, v, "float")
    if v.elem == "half":
        v = b.cast("fpext", v, "float")
    if e == "bf16":
        return _narrow_bf16(b, v, rtz)
    f = FORMATS[e]
    return b.cast("trunc", _rounded(b, v, f, rtz, f.largest), "i8")


def _narrow_bf16(b, v: Val, rtz: bool) -> Val:
    if not rtz and v.elem == "float" and _by_instruction(b, v.lanes):
        return b.fn.kernel.helper("tp.bf16.v16", "<16 x i16>", [v], _native_bf16)
    return bf16_by_integers(b, v, rtz)


def _by_instruction(b, lanes: int) -> bool:
    """Has the target an instruction that makes bf16 of so many floats?"""
    target = b.fn.kernel.target
    return bool(target.to_bf16) and lanes == target.lanes(32)


def converts(b, op, lanes: int) -> bool:
    """Is `op` a cast of so many lanes that an instruction carries out, but for subnormal numbers?"""
    if op is None or op.name != "arith.truncf" or op.attrs.get("rounding", "rtne") != "rtne":
        return False
    return (op.operands[0].type.elem, op.result.type.elem) == ("f32", "bf16") and _by_instruction(b, lanes)


def of_normal(b, v: Val) -> Val:
    """AVX512-BF16's conversion, which rounds to nearest even but takes subnormals for zero."""
    return b.reinterpret(b.call(b.fn.kernel.target.to_bf16, "<16 x bfloat>", [v]), "<16 x i16>")


def any_subnormal(b, vectors: list[Val]) -> Val:
    """An i1: is a lane of these vectors, as an AVX-512 register holds them, a subnormal number?"""
    # vfpclassps; llvm.is.fpclass becomes three instructions (LLVM 22)
    tiny = [b.call("llvm.x86.avx512.fpclass.ps.512", "<16 x i1>", [v, const("i32", 0x20)], tail="") for v in vectors]
    return b.icmp("ne", b.reinterpret(functools.reduce(b.or_, tiny), "i16"), const("i16", 0))


def _native_bf16(b, v: Val):
    """Vectors with a subnormal number go the long way."""
    some = any_subnormal(b, [v])
    long, short = b.fn.new_block("subnormal"), b.fn.new_block("normal")
    weights = b.fn.module.add_meta('!{!"branch_weights", i32 1, i32 4000}')
    b.cond_br(some, long, short, f", !prof {weights}")
    b.enter(long)
    b.ret(bf16_by_integers(b, v, False))
    b.enter(short)
    b.ret(of_normal(b, v))


def bf16_by_integers(b, v: Val, rtz: bool) -> Val:
    """The bits (i16) of a float's bf16."""
    bits = b.bitcast(v, "i32")
    rounded = bits
    if not rtz:
        odd = b.and_(b.bin("lshr", bits, _i(16)), _i(1))
        rounded = b.add(b.add(bits, _i(0x7FFF)), odd)
    quiet = b.or_(b.bin("lshr", bits, _i(16)), _i(0x40))
    nan = b.fcmp("uno", v, v)
    return b.cast("trunc", b.select(nan, quiet, b.bin("lshr", rounded, _i(16))), "i16")


def _rounded(b, v: Val, f: Format, rtz: bool, limit: int) -> Val:
    """f32 to the bits (i32) of a format; what rounds beyond the code `limit` becomes `limit`."""
    bits = b.bitcast(v, "i32")
    sign = b.and_(b.bin("lshr", bits, _i(32 - f.bits)), _i(1 << (f.bits - 1)))
    size = b.and_(bits, _i(0x7FFFFFFF))
    drop = 23 - f.mantissa
    normal = size
    if not rtz:
        odd = b.and_(b.bin("lshr", size, _i(drop)), _i(1))
        normal = b.add(b.add(size, _i((1 << (drop - 1)) - 1)), odd)
    normal = b.sub(b.bin("lshr", normal, _i(drop)), _i((127 - f.bias) << f.mantissa))
    # Below the smallest normal number: adding a power of 2 whose last bit is worth one subnormal step rounds to steps.
    magnitude = b.bitcast(size, "float")
    if rtz:
        scaled = b.fbin("fmul", magnitude, const("float", 2.0**(f.bias - 1 + f.mantissa)), "")
        steps = b.call(f"llvm.fptoui.sat.{ir.mangle(ir.vec('i32', v.lanes))}.{ir.mangle(scaled.ty)}",
                       ir.vec("i32", v.lanes), [scaled])
    else:
        magic = 2.0**(1 - f.bias + drop)
        sum_ = b.bitcast(b.fbin("fadd", magnitude, const("float", magic), ""), "i32")
        steps = b.sub(sum_, b.bitcast(const("float", magic), "i32"))
    small = b.icmp("ult", size, _i((128 - f.bias) << 23))
    code = b.intrinsic("umin", b.select(small, steps, normal), _i(limit))
    if not f.negative_zero:
        sign = b.select(b.icmp("eq", code, _i(0)), _i(0), sign)
    code = b.or_(code, sign)
    if f.nan is not None:
        code = b.select(b.icmp("ugt", size, _i(0x7F800000)), _i(f.nan), code)
    return code


def change_sign(b, v: Val, e: str, negate: bool) -> Val:
    """-x, or |x|, of the bits of format `e`: exact, infinities and NaN included."""
    f = FORMATS[e]
    sign = 1 << (f.bits - 1)
    elem = f"i{f.bits}"
    out = b.xor(v, const(elem, sign)) if negate else b.and_(v, const(elem, sign - 1))
    if f.negative_zero:
        return out
    alone = b.icmp("eq", b.and_(v, const(elem, sign - 1)), const(elem, 0))  # 0 and NaN have no negative
    return b.select(alone, v, out)


# --- IEEE formats that LLVM knows ------------------------------------------------------------------------------------

_INTEGER = {"half": "i16", "float": "i32", "double": "i64"}


def _step_back(b, r: Val, back: Val, v: Val) -> Val:
    """`r`, a rounding of `v` that widens to `back`, with its last bit taken one down where it was rounded away from zero."""
    bits = b.bitcast(r, _INTEGER[r.elem])
    away = b.fcmp("ogt", b.intrinsic("fabs", back), b.intrinsic("fabs", v))
    return b.select(away, b.sub(bits, const(bits.elem, 1)), bits)


def truncated(b, v: Val, elem: str) -> Val:
    """`v` in the narrower LLVM float type `elem`, rounded towards zero."""
    r = half_of(b, v) if elem == "half" else b.cast("fptrunc", v, elem)
    return b.bitcast(_step_back(b, r, b.cast("fpext", r, v.elem), v), elem)


def to_odd(b, v: Val) -> Val:
    """double to float, rounded to odd: what is rounded to a narrower format after that is rounded as if at once (Boldo and
    Melquiond, Emulation of FMA and correctly rounded sums, 2008)."""
    r = b.cast("fptrunc", v, "float")
    back = b.cast("fpext", r, "double")
    bits = _step_back(b, r, back, v)
    inexact = b.and_(b.fcmp("one", back, v), b.fcmp("one", v, const("double", float("inf"))))
    return b.bitcast(b.or_(bits, b.cast("zext", inexact, "i32")), "float")


def half_of(b, v: Val) -> Val:
    """double or float to half. From double by way of float: most targets have no instruction for it, but a library call."""
    return b.cast("fptrunc", to_odd(b, v) if v.elem == "double" else v, "half")


_HALF = Format(16, 10, 15, 0x7BFF, 0x7E00, infinity=True)


def soft_half(b, v: Val, elem: str) -> Val:
    """fpext from half or fptrunc to half, by integer arithmetic."""
    if v.elem == "half":
        x = _widened(b, b.cast("zext", b.bitcast(v, "i16"), "i32"), _HALF)
        return b.cast("fpext", x, elem) if elem == "double" else x
    return b.bitcast(b.cast("trunc", half_bits(b, v), "i16"), "half")


def half_bits(b, v: Val) -> Val:
    """The bits (i32) of the half nearest to a float or double."""
    return _rounded(b, to_odd(b, v) if v.elem == "double" else v, _HALF, False, _HALF.largest + 1)
