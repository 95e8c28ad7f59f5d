"""Elementary functions of f64 as polynomials, at any vector width: libm, called for each lane, took three to five times as long.

Errors in units in the last place, measured by tests/test_math_double.py: exp, exp2, log, log2, log10, log1p, sin, cos 1, tanh 1.5, expm1 1.9; where multiplications and additions are not
fused exp, exp2 1.25, expm1 2.1. Polynomials by Chebyshev interpolation (mpmath.chebyfit); reduction by Cody and Waite; how what is rounded is put back: fdlibm (Sun Microsystems, 1993;
e_log.c, e_log2.c, k_sin.c, k_cos.c).
"""

from __future__ import annotations

from ...llvm.ir import Val, const
from .single import beyond, clamp, horner, log_special, mul_add, with_fallback

_EXP = (2.0911264239196083e-09, 2.5100424157005067e-08, 2.755728291148268e-07, 2.7557268378684192e-06, 2.4801587317181886e-05, 0.00019841269863105968, 0.0013888888888886545,
        0.008333333333330051, 0.041666666666666664, 0.16666666666666669, 0.5)  # (e^r - 1 - r) / r^2, |r| <= ln(2)/2: e^r to 1e-18
_LOG = (0.14617807153417325, 0.15331611722055008, 0.1818289243253687, 0.22222211089379496, 0.28571428626253836, 0.3999999999989889, 0.666666666666667)  # (2 atanh s - 2 s) / s^3, s <= 0.172: 3e-16
_TANH = (-1.833596211003942e-05, 8.154737806525365e-05, -0.0002322510406793851, 0.0005880541548418729, -0.001455464802800745, 0.0035920831663434575, -0.008863232113541474,
         0.02186948838378093, -0.05396825396475762, 0.13333333333330197, -0.33333333333333326)  # (tanh x / x - 1) / x^2, x^2 <= 0.36: 5e-17
_SIN = (1.5917848524808262e-10, -2.5051127944014188e-08, 2.755731608381636e-06, -0.00019841269836722418, 0.008333333333330925, -0.16666666666666666)  # (sin r / r - 1) / r^2, |r| <= pi/4: 2e-17
_COS = (-1.1382456778061306e-11, 2.0876143827993133e-09, -2.7557317260008837e-07, 2.480158729874307e-05, -0.0013888888888887382, 0.041666666666666664)  # (cos r - 1 + r^2/2) / r^4: 1e-18
_MAGIC = 1.5 * 2.0**52  # adding it rounds to an integer and leaves that integer in the low bits
_LOG2E = 1.4426950408889634
_LN2 = 0.6931471803691238, 1.9082149292705877e-10  # the first of 32 bits: times an exponent it is exact
_PER_LN2 = 1.4426950407214463, 1.6751713164886512e-10  # 1/ln 2, likewise
_PER_LN10 = 0.4342944818781689, 2.5082946711645275e-11
_LOG10_2 = 0.30102999566361177, 3.6942390771589308e-13
#: pi/2 in four parts, all but the last of 33 bits: up to 2^20 times they are exact
_HALF_PI = 1.5707963267341256, 6.077100506303966e-11, 2.0222662487111665e-21, 8.478427660368899e-32
_ANGLE_LIMIT = 1e6  # beyond, libm reduces the angle
_HALF = 0x3FE6A09E667F3BCD  # sqrt(1/2)


def d(x: float) -> Val:
    return const("double", x)


def strict(b, opname: str, x: Val, y: Val) -> Val:
    """An operation that LLVM joins with no other."""
    return b.fbin(opname, x, y, "")


def _i(x: int) -> Val:
    return const("i64", x)


def _whole(b, t: Val) -> Val:
    """t - _MAGIC as i64."""
    return b.sub(b.bitcast(t, "i64"), b.bitcast(d(_MAGIC), "i64"))


def _power(b, n: Val) -> Val:
    """2^n of i64, a normal number."""
    return b.bitcast(b.bin("shl", b.add(n, _i(1023)), _i(52)), "double")


def _times_power(b, y: Val, t: Val) -> Val:
    """y 2^n, n = t - _MAGIC in [-1080, 1030]; in two steps, so that subnormal results round once."""
    target = b.fn.kernel.target
    if target.scalef and y.lanes == target.lanes(64):
        n = strict(b, "fsub", t, d(_MAGIC))
        return b.call("llvm.x86.avx512.mask.scalef.pd.512", y.ty, [y, n, Val(y.ty, "poison"), const("i8", -1), const("i32", 4)])
    n = _whole(b, t)
    half = b.sub(b.bin("lshr", b.add(n, _i(2048)), _i(1)), _i(1024))  # AVX2 shifts no signed i64
    return strict(b, "fmul", strict(b, "fmul", y, _power(b, half)), _power(b, b.sub(n, half)))


def _small_exp(b, r: Val) -> Val:
    """e^r for |r| <= ln(2)/2."""
    return horner(b, r, (*_EXP, 1.0, 1.0))


def _reduced(b, x: Val) -> tuple[Val, Val]:
    """(r, t): x = r + n ln 2, n = t - _MAGIC."""
    t = strict(b, "fadd", strict(b, "fmul", x, d(_LOG2E)), d(_MAGIC))
    n = strict(b, "fsub", t, d(_MAGIC))
    return mul_add(b, n, d(-_LN2[1]), mul_add(b, n, d(-_LN2[0]), x)), t


def exp(b, x: Val) -> Val:
    r, t = _reduced(b, clamp(b, x, -746.0, 710.0))
    return _times_power(b, _small_exp(b, r), t)


def exp2(b, x: Val) -> Val:
    x = clamp(b, x, -1076.0, 1025.0)
    t = strict(b, "fadd", x, d(_MAGIC))
    r = strict(b, "fmul", strict(b, "fsub", x, strict(b, "fsub", t, d(_MAGIC))), d(0.6931471805599453))
    return _times_power(b, _small_exp(b, r), t)


def expm1(b, x: Val) -> Val:
    """e^x - 1 = 2 (2^(n-1) (e^r - 1) + 2^(n-1) - 1/2): nothing but the result overflows."""
    r, t = _reduced(b, clamp(b, x, -40.0, 710.0))
    p = mul_add(b, horner(b, r, _EXP), strict(b, "fmul", r, r), r)  # e^r - 1
    power = _power(b, b.sub(_whole(b, t), _i(1)))
    half = mul_add(b, power, p, strict(b, "fsub", power, d(0.5)))
    y = b.select(b.fcmp("oeq", t, d(_MAGIC)), p, strict(b, "fadd", half, half))
    return b.select(b.fcmp("oeq", x, d(0.0)), x, y)


def _log_parts(b, x: Val) -> tuple[Val, Val, Val, Val]:
    """(f, f^2 / 2, y, e): x = (1 + f) 2^e with 1 + f in [sqrt(1/2), sqrt(2)), log(1 + f) = f - f^2 / 2 + y; subnormal numbers are scaled first."""
    small = b.fcmp("olt", x, d(2.0**-1022))
    x = b.select(small, strict(b, "fmul", x, d(2.0**54)), x)
    shifted = b.sub(b.bitcast(x, "i64"), _i(_HALF - (1024 << 52)))  # no negative exponents: AVX2 shifts no signed i64
    low = _i((1 << 52) - 1)
    m = b.bitcast(b.add(b.and_(shifted, low), _i(_HALF)), "double")
    e = b.bitcast(b.or_(b.bin("lshr", shifted, _i(52)), b.bitcast(d(2.0**52), "i64")), "double")
    e = strict(b, "fsub", e, b.select(small, d(2.0**52 + 1078), d(2.0**52 + 1024)))
    f = strict(b, "fsub", m, d(1.0))
    s = strict(b, "fdiv", f, strict(b, "fadd", f, d(2.0)))
    z = strict(b, "fmul", s, s)
    half = strict(b, "fmul", strict(b, "fmul", f, f), d(0.5))
    return f, half, strict(b, "fmul", s, mul_add(b, z, horner(b, z, _LOG), half)), e


def _natural(b, parts, more: Val | None = None) -> Val:
    """The logarithm of `_log_parts`, and a little `more`."""
    f, half, y, e = parts
    low = mul_add(b, e, d(_LN2[1]), y)
    low = low if more is None else strict(b, "fadd", low, more)
    return mul_add(b, e, d(_LN2[0]), strict(b, "fsub", f, strict(b, "fsub", half, low)))


def log(b, x: Val) -> Val:
    return log_special(b, x, _natural(b, _log_parts(b, x)))


def _log_by(factor: tuple[float, float], of_two: tuple[float, float]):
    """A logarithm of another base, by 1 / log(base) and log(2) / log(base) in two parts each, of which the first have few bits."""

    def rule(b, x: Val) -> Val:
        f, half, y, e = _log_parts(b, x)
        high = b.bitcast(b.and_(b.bitcast(strict(b, "fsub", f, half), "i64"), _i(-1 << 32)), "double")
        low = strict(b, "fadd", strict(b, "fsub", strict(b, "fsub", f, high), half), y)
        large = strict(b, "fmul", high, d(factor[0]))
        small = mul_add(b, strict(b, "fadd", low, high), d(factor[1]), strict(b, "fmul", low, d(factor[0])))
        small = mul_add(b, e, d(of_two[1]), small) if of_two[1] else small
        whole = strict(b, "fmul", e, d(of_two[0]))
        total = strict(b, "fadd", whole, large)
        small = strict(b, "fadd", small, strict(b, "fadd", strict(b, "fsub", whole, total), large))
        return log_special(b, x, strict(b, "fadd", total, small))

    return rule


log2, log10 = _log_by(_PER_LN2, (1.0, 0.0)), _log_by(_PER_LN10, _LOG10_2)


def log1p(b, x: Val) -> Val:
    """log(1 + x), to which the part of x is added that 1 + x does not hold (W. Kahan)."""
    u = strict(b, "fadd", x, d(1.0))
    lost = b.select(b.fcmp("ogt", x, d(1.0)), strict(b, "fsub", d(1.0), strict(b, "fsub", u, x)), strict(b, "fsub", x, strict(b, "fsub", u, d(1.0))))
    y = _natural(b, _log_parts(b, u), strict(b, "fdiv", lost, u))
    return b.select(b.fcmp("oeq", x, d(0.0)), x, log_special(b, u, y))


def tanh(b, x: Val) -> Val:
    size, z = b.intrinsic("fabs", x), strict(b, "fmul", x, x)
    small = mul_add(b, strict(b, "fmul", horner(b, z, _TANH), z), x, x)
    e = exp(b, strict(b, "fadd", size, size))
    large = strict(b, "fsub", d(1.0), strict(b, "fdiv", d(2.0), strict(b, "fadd", e, d(1.0))))
    return b.intrinsic("copysign", b.select(b.fcmp("olt", size, d(0.6)), small, large), x)


def _angle(b, x: Val) -> tuple[Val, Val, Val]:
    """(r, what r lacks, t): x = r + n pi/2, n = t - _MAGIC, |r| <= pi/4 or little more."""
    t = strict(b, "fadd", strict(b, "fmul", x, d(0.6366197723675814)), d(_MAGIC))
    n = strict(b, "fsub", t, d(_MAGIC))
    r, low = mul_add(b, n, d(-_HALF_PI[0]), x), None
    for part in _HALF_PI[1:]:
        w = strict(b, "fmul", n, d(part))
        w = w if low is None else strict(b, "fsub", w, low)
        rest = strict(b, "fsub", r, w)
        r, low = rest, strict(b, "fsub", strict(b, "fsub", r, rest), w)
    return r, low, t


def _turned(quarter: int):
    """sin(x + quarter pi/2)."""

    def rule(b, x: Val) -> Val:
        r, low, t = _angle(b, x)
        z = strict(b, "fmul", r, r)
        half = strict(b, "fmul", z, d(0.5))
        cube = mul_add(b, low, strict(b, "fsub", d(1.0), half), strict(b, "fmul", strict(b, "fmul", z, r), horner(b, z, _SIN)))
        sin = strict(b, "fadd", r, cube)
        most = strict(b, "fsub", d(1.0), half)
        rest = strict(b, "fsub", strict(b, "fsub", d(1.0), most), half)
        fourth = mul_add(b, strict(b, "fmul", z, z), horner(b, z, _COS), strict(b, "fsub", rest, strict(b, "fmul", r, low)))
        cos = strict(b, "fadd", most, fourth)
        n = b.add(b.bitcast(t, "i64"), _i(quarter))
        y = b.select(b.icmp("eq", b.and_(n, _i(1)), _i(0)), sin, cos)
        y = b.bitcast(b.xor(b.bitcast(y, "i64"), b.bin("shl", b.and_(n, _i(2)), _i(62))), "double")
        return y if quarter else b.select(b.fcmp("oeq", x, d(0.0)), x, y)

    return rule


sin, cos = with_fallback("sin", _turned(0), beyond(_ANGLE_LIMIT)), with_fallback("cos", _turned(1), beyond(_ANGLE_LIMIT))
