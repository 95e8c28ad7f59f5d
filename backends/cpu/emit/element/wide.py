"""Elementary functions of f32 that are computed in f64, on half as many lanes, and rounded once: within 0.51 units in the last place, measured by tests/test_math_wide.py.

A polynomial of ten digits is enough for that, and what cancels, overflows or is subnormal in f32 does not in f64. libm, called for each lane, took ten times as long and more; f64
itself still goes there. Polynomials by Chebyshev interpolation (mpmath.chebyfit); identities: Abramowitz and Stegun, chapter 4.
"""

from __future__ import annotations

from math import inf, log, nan, pi

from ...llvm.ir import Val, const
from .double import d, strict
from .single import beyond, clamp, horner, log_special, mul_add, with_fallback

_LOG = (0.096813268571010039, 0.11095700415154251, 0.14285877267957245, 0.19999999398668794, 0.33333333333687543)  # (atanh s / s - 1) / s^2, s^2 in [0, (sqrt(2) - 1)^4]: relative error of atanh s 1e-13
_EXP = (0.00019890980869750327, 0.0013933641031986701, 0.008333310934448869, 0.04166646500604005, 0.16666666681614256, 0.50000000134577272)  # (e^r - 1 - r) / r^2, |r| <= ln(2)/2: 2e-10
_ATAN = (-0.040432248258871609, 0.071353251223306782, -0.090289835003504626, 0.11107495135714474, -0.14285612511387016, 0.19999998917288581, -0.33333333331440729)  # (atan t / t - 1) / t^2, t <= tan(pi/8): 3e-12
_ASIN = (0.02930523970533579, 0.0054431851027481075, 0.019306260869368045, 0.022132443623426794, 0.030397634130580702, 0.044642358484883196, 0.075000005988290486, 0.16666666665495086)  # (asin s / s - 1) / s^2, s <= 1/2: 4e-12
_SIN = (2.7249925803059792e-06, -0.00019840086735384846, 0.0083333318747102082, -0.1666666666385529)  # (sin r / r - 1) / r^2, |r| <= pi/4: 2e-11
_COS = (-2.7300959203487106e-07, 2.4800600377152256e-05, -0.0013888887672016776, 0.0416666666643212)  # (cos r - 1 + r^2/2) / r^4: 1e-12
_SINH = (2.8062802582276946e-06, 0.00019838101968683888, 0.0083333396759170605, 0.16666666646842135)  # (sinh x / x - 1) / x^2, |x| <= 1: 2e-10
#: log(erfc x e^(x^2) / t), t = 1 / (1 + x/2), x in [0, 10.4]: 1.4e-10
_ERFC = (-0.03321389994915195, 0.4365140840588672, -2.226766124699509, 6.1294385579685935, -10.217895734040836, 10.747337569115958, -7.255351209842758, 3.4058229094813846,
         -1.3387541561801186, 0.20361918850176233, 0.034737055924524335, 0.38036304128535314, 0.9996506921929909, -1.2655019737454842)
_MAGIC = 1.5 * 2.0**52  # adding it rounds to an integer and leaves that integer in the low bits
_ROOT = 0x3FE6A09E  # the upper half of sqrt(1/2)
#: pi/2 in two parts, the first of 33 bits: up to 2^20 times it is exact
_HALF_PI = 1.5707963267341256, 6.077100506506192e-11
_TAN_LIMIT = 1e6


def _odd(b, x: Val, z: Val, coefficients) -> Val:
    """x + x z P(z)."""
    return mul_add(b, strict(b, "fmul", x, z), horner(b, z, coefficients), x)


def in_double(fn):
    """A rule on f64 values; f32 is widened, and the result rounded once."""

    def rule(b, *vals: Val) -> Val:
        if vals[0].elem == "float":
            return b.cast("fptrunc", fn(b, *[b.cast("fpext", v, "double") for v in vals]), "float")
        return fn(b, *vals)

    return rule


def _log(b, x: Val) -> Val:
    """log x, x no subnormal number."""
    bits = b.bitcast(x, "i64")
    e = b.bin("ashr", b.sub(b.cast("trunc", b.bin("lshr", bits, const("i64", 32)), "i32"), const("i32", _ROOT)), const("i32", 20))
    m = b.bitcast(b.sub(bits, b.bin("shl", b.cast("sext", e, "i64"), const("i64", 52))), "double")
    s = strict(b, "fdiv", strict(b, "fsub", m, d(1.0)), strict(b, "fadd", m, d(1.0)))
    y = _odd(b, s, strict(b, "fmul", s, s), _LOG)
    return log_special(b, x, mul_add(b, b.cast("sitofp", e, "double"), d(log(2)), strict(b, "fadd", y, y)))


def _exp(b, x: Val) -> Val:
    """e^x where that is a number of f32; what is too large or too small for one elsewhere. NaN stays."""
    x = clamp(b, x, -120.0, 100.0)
    t = mul_add(b, x, d(1 / log(2)), d(_MAGIC))
    r = mul_add(b, strict(b, "fsub", t, d(_MAGIC)), d(-log(2)), x)
    p = strict(b, "fadd", mul_add(b, strict(b, "fmul", r, r), horner(b, r, _EXP), r), d(1.0))
    scaled = b.bitcast(b.add(b.bitcast(p, "i64"), b.bin("shl", b.bitcast(t, "i64"), const("i64", 52))), "double")
    return b.select(b.fcmp("uno", x, x), x, scaled)


def _signed(b, size: Val, x: Val) -> Val:
    return b.intrinsic("copysign", size, x)


@in_double
def exp10(b, x):
    return _exp(b, strict(b, "fmul", x, d(log(10))))


@in_double
def power(b, x, y):
    size = b.intrinsic("fabs", x)
    z = _exp(b, strict(b, "fmul", y, _log(b, size)))
    half = strict(b, "fmul", y, d(0.5))
    whole, even = (b.fcmp("oeq", b.intrinsic("floor", v), v) for v in (y, half))
    z = b.select(b.and_(whole, b.not_(even)), _signed(b, z, x), z)
    neither = b.and_(b.and_(b.fcmp("olt", x, d(0.0)), b.fcmp("ogt", x, d(-inf))), b.not_(whole))
    z = b.select(neither, d(nan), z)
    one = b.or_(b.fcmp("oeq", x, d(1.0)), b.fcmp("oeq", y, d(0.0)))
    one = b.or_(one, b.and_(b.fcmp("oeq", x, d(-1.0)), b.fcmp("oeq", b.intrinsic("fabs", y), d(inf))))
    return b.select(one, d(1.0), z)


@in_double
def cbrt(b, x):
    size = b.intrinsic("fabs", x)
    root = _exp(b, strict(b, "fmul", _log(b, size), d(1 / 3)))
    same = b.or_(b.fcmp("oeq", size, d(0.0)), b.fcmp("oeq", size, d(inf)))
    return b.select(same, x, _signed(b, root, x))


@in_double
def cosh(b, x):
    e = _exp(b, b.intrinsic("fabs", x))
    return strict(b, "fmul", strict(b, "fadd", e, strict(b, "fdiv", d(1.0), e)), d(0.5))


@in_double
def sinh(b, x):
    e = _exp(b, b.intrinsic("fabs", x))
    large = _signed(b, strict(b, "fmul", strict(b, "fsub", e, strict(b, "fdiv", d(1.0), e)), d(0.5)), x)
    small = _signed(b, _odd(b, x, strict(b, "fmul", x, x), _SINH), x)
    return b.select(b.fcmp("olt", b.intrinsic("fabs", x), d(1.0)), small, large)


@in_double
def asinh(b, x):
    size, square = b.intrinsic("fabs", x), strict(b, "fmul", x, x)
    large = _log(b, strict(b, "fadd", size, b.intrinsic("sqrt", strict(b, "fadd", square, d(1.0)))))
    small = mul_add(b, strict(b, "fmul", size, square), d(-1 / 6), size)
    return _signed(b, b.select(b.fcmp("olt", size, d(1e-4)), small, large), x)


@in_double
def acosh(b, x):
    y = _log(b, strict(b, "fadd", x, b.intrinsic("sqrt", strict(b, "fmul", strict(b, "fsub", x, d(1.0)), strict(b, "fadd", x, d(1.0))))))
    return b.select(b.fcmp("olt", x, d(1.0)), d(nan), y)


@in_double
def atanh(b, x):
    """log((1 + |x|) / (1 - |x|)) / 2 by one division: the lower factor takes the exponent of the ratio, within sqrt(2) and a little more."""
    size = b.intrinsic("fabs", x)
    over, under = strict(b, "fadd", d(1.0), size), strict(b, "fsub", d(1.0), size)
    upper = [b.cast("trunc", b.bin("lshr", b.bitcast(v, "i64"), const("i64", 32)), "i32") for v in (over, under)]
    e = b.bin("ashr", b.add(b.sub(*upper), const("i32", 1 << 19)), const("i32", 20))
    under = b.bitcast(b.add(b.bitcast(under, "i64"), b.bin("shl", b.cast("sext", e, "i64"), const("i64", 52))), "double")
    apart = b.select(b.fcmp("olt", size, d(0.125)), strict(b, "fadd", size, size), strict(b, "fsub", over, under))
    s = strict(b, "fdiv", apart, strict(b, "fadd", over, under))
    y = mul_add(b, b.cast("sitofp", e, "double"), d(log(2) / 2), _odd(b, s, strict(b, "fmul", s, s), _LOG))
    y = b.select(b.fcmp("oeq", size, d(1.0)), d(inf), y)
    return _signed(b, b.select(b.fcmp("ugt", size, d(1.0)), d(nan), y), x)


def _asin_parts(b, x: Val) -> tuple[Val, Val]:
    """(|x| > 1/2, p): asin |x| is p, or pi/2 - 2p where |x| > 1/2."""
    size = b.intrinsic("fabs", x)
    large = b.fcmp("ogt", size, d(0.5))
    z = b.select(large, strict(b, "fmul", strict(b, "fsub", d(1.0), size), d(0.5)), strict(b, "fmul", x, x))
    return large, _odd(b, b.select(large, b.intrinsic("sqrt", z), size), z, _ASIN)


@in_double
def asin(b, x):
    large, p = _asin_parts(b, x)
    return _signed(b, b.select(large, mul_add(b, p, d(-2.0), d(pi / 2)), p), x)


@in_double
def acos(b, x):
    large, p = _asin_parts(b, x)
    twice = strict(b, "fadd", p, p)
    outer = b.select(b.fcmp("olt", x, d(0.0)), strict(b, "fsub", d(pi), twice), twice)
    return b.select(large, outer, strict(b, "fsub", d(pi / 2), _signed(b, p, x)))


def _angle(b, y: Val, x: Val) -> Val:
    """atan(y / x), both 0 or more and finite; 0 where both are 0."""
    steep, diagonal = b.fcmp("ogt", y, strict(b, "fmul", x, d(1 + 2**0.5))), b.fcmp("ogt", y, strict(b, "fmul", x, d(2**0.5 - 1)))
    over = b.select(steep, b.fneg(x), b.select(diagonal, strict(b, "fsub", y, x), y))
    under = b.select(steep, y, b.select(diagonal, strict(b, "fadd", y, x), x))
    t = strict(b, "fdiv", over, b.select(b.fcmp("oeq", under, d(0.0)), d(1.0), under))
    begin = b.select(steep, d(pi / 2), b.select(diagonal, d(pi / 4), d(0.0)))
    return strict(b, "fadd", _odd(b, t, strict(b, "fmul", t, t), _ATAN), begin)


def _finite(b, x: Val) -> Val:
    """|x|, a number larger than any of f32 for infinities."""
    size = b.intrinsic("fabs", x)
    return b.select(b.fcmp("oeq", size, d(inf)), d(1e200), size)


@in_double
def atan(b, x):
    return _signed(b, _angle(b, _finite(b, x), b.splat(d(1.0), x.lanes)), x)


@in_double
def atan2(b, y, x):
    angle = _angle(b, _finite(b, y), _finite(b, x))
    left = b.icmp("slt", b.bitcast(x, "i64"), const("i64", 0))  # -0, too
    return _signed(b, b.select(left, strict(b, "fsub", d(pi), angle), angle), y)


@in_double
def hypot(b, x, y):
    infinite = b.or_(*(b.fcmp("oeq", b.intrinsic("fabs", v), d(inf)) for v in (x, y)))
    return b.select(infinite, d(inf), b.intrinsic("sqrt", mul_add(b, x, x, strict(b, "fmul", y, y))))


@in_double
def _tan(b, x):
    t = mul_add(b, x, d(2 / pi), d(_MAGIC))
    n = strict(b, "fsub", t, d(_MAGIC))
    r = mul_add(b, n, d(-_HALF_PI[1]), mul_add(b, n, d(-_HALF_PI[0]), x))
    z = strict(b, "fmul", r, r)
    sin, cos = _odd(b, r, z, _SIN), mul_add(b, strict(b, "fmul", z, z), horner(b, z, _COS), mul_add(b, z, d(-0.5), d(1.0)))
    turned = b.icmp("ne", b.and_(b.bitcast(t, "i64"), const("i64", 1)), const("i64", 0))
    y = strict(b, "fdiv", b.select(turned, b.fneg(cos), sin), b.select(turned, sin, cos))
    return b.select(b.fcmp("oeq", x, d(0.0)), x, y)


tan = with_fallback("tan", _tan, beyond(_TAN_LIMIT))


@in_double
def erfc(b, x):
    size = b.intrinsic("fabs", x)
    t = strict(b, "fdiv", d(1.0), mul_add(b, size, d(0.5), d(1.0)))
    tail = strict(b, "fmul", t, _exp(b, strict(b, "fsub", horner(b, t, _ERFC), strict(b, "fmul", x, x))))
    return b.select(b.fcmp("olt", x, d(0.0)), strict(b, "fsub", d(2.0), tail), tail)


#: erfinv(x) / x by powers of w = -log(1 - x^2) in [0, 6], and of sqrt(w) in [sqrt(6), 4.06]: 6e-10, 3e-10
_ERFINV = (-1.4854908961637763e-11, 5.5734290803925986e-10, -8.4922429016067575e-09, 6.1131555424910155e-08, -1.2203597397129162e-07, -9.4915908920394233e-07, 2.1790884142241462e-06, 4.6103491260809155e-05, -0.00012741227568066718, -0.0023354996777537208, 0.011549462396345868, 0.23201365296109508, 0.88622692569609651)
_ERFINV_TAIL = (5.2259036297417355e-06, -0.00022561111959057612, 0.0043696593848585076, -0.050159762571272942, 0.37920944335979578, -1.9810922518211902, 7.2857832481935452, -18.803690884219165, 33.192787298860679, -37.784287399862677, 25.469053658045137, -6.6954689768654569)


@in_double
def erfinv(b, x):
    size = b.intrinsic("fabs", x)
    w = b.fneg(_log(b, strict(b, "fmul", strict(b, "fsub", d(1.0), size), strict(b, "fadd", d(1.0), size))))
    far = b.select(b.fcmp("oeq", size, d(1.0)), d(inf), horner(b, b.intrinsic("sqrt", w), _ERFINV_TAIL))
    return strict(b, "fmul", x, b.select(b.fcmp("olt", w, d(6.0)), horner(b, w, _ERFINV), far))


@in_double
def _fmod(b, x, y):
    """Up to a quotient of 2^27: it is rounded to a whole number only if it is one, for x and y have 24 bits, and that times y is exact."""
    n = b.intrinsic("trunc", strict(b, "fdiv", x, y))
    rest = mul_add(b, b.fneg(n), y, x)
    below = b.and_(b.fcmp("oeq", b.intrinsic("fabs", y), d(inf)), b.fcmp("olt", b.intrinsic("fabs", x), d(inf)))
    return _signed(b, b.select(below, x, rest), x)


fmod = with_fallback("fmod", _fmod, lambda b, x, y: b.fcmp("ugt", b.intrinsic("fabs", x), strict(b, "fmul", b.intrinsic("fabs", y), const("float", 2.0**27))))
