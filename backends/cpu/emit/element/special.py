"""Special functions that libm lacks: erfcx, the inverse error functions, the normal distribution, Bessel I0 and I1.

Everything is computed in f64 and rounded once for f32. Inverses start from an approximation (M. Giles, Approximating the
erfinv function, GPU Computing Gems 2, 2011, for the middle; the asymptotic form for the tails) and are polished by Newton's method on
libm's erf or on log(erfc). Series: Abramowitz and Stegun 7.1.23 (erfc), 9.6.10 and 9.7.1 (Bessel).
"""

from __future__ import annotations

import math as pymath

from ...llvm.ir import Val, const
from . import double
from .double import d, strict
from .single import horner, per_lane
from .wide import in_double


def _fma(b, x, y, z):
    return b.intrinsic("fma", x, y, z)


def _exp_of_square(b, x: Val, sign: float) -> Val:
    """exp(sign * x^2), with x^2 in two parts so that its rounding does not show."""
    high = b.bitcast(b.and_(b.bitcast(x, "i64"), const("i64", -1 << 27)), "double")
    rest = strict(b, "fmul", strict(b, "fsub", x, high), strict(b, "fadd", x, high))
    square = strict(b, "fmul", high, high)
    big = double.exp(b, strict(b, "fmul", square, d(sign)))
    value = strict(b, "fmul", big, double.exp(b, strict(b, "fmul", rest, d(sign))))
    return b.select(b.fcmp("olt", b.intrinsic("fabs", x), d(1e100)), value, b.splat(d(float("inf") if sign > 0 else 0.0),
                                                                                   x.lanes))


@in_double
def erfcx(b, x):
    """exp(x^2) erfc(x)."""
    direct = strict(b, "fmul", _exp_of_square(b, x, 1.0), per_lane(b, "erfc", x))
    # x > 10: 1 / (x sqrt(pi)) * (1 - 1/(2x^2) + 1*3/(2x^2)^2 - ...)
    z = strict(b, "fdiv", d(-0.5), strict(b, "fmul", x, x))
    terms, value = [1.0], 1.0
    for k in range(1, 14):
        value *= 2 * k - 1
        terms.append(value)
    tail = strict(b, "fdiv", strict(b, "fmul", horner(b, z, terms[::-1]), d(1 / pymath.sqrt(pymath.pi))), x)
    direct = b.select(b.fcmp("olt", x, d(-27.0)), b.splat(d(float("inf")), x.lanes), direct)
    return b.select(b.fcmp("ogt", x, d(10.0)), tail, direct)


_MIDDLE = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
           -0.00417768164, 0.246640727, 1.50140941)
_OUTER = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
          0.00943887047, 1.00167406, 2.83297682)


def _start(b, x: Val, w: Val) -> Val:
    """erfinv(x) to about 6 digits, from w = -log(1 - x^2) <= 16."""
    inner = horner(b, strict(b, "fsub", w, d(2.5)), _MIDDLE)
    outer = horner(b, strict(b, "fsub", b.intrinsic("sqrt", w), d(3.0)), _OUTER)
    return strict(b, "fmul", b.select(b.fcmp("olt", w, d(5.0)), inner, outer), x)


@in_double
def erfinv(b, x):
    size = b.intrinsic("fabs", x)
    # Beyond 1/2 erfc of the rest, which is exact, keeps the digits.
    tail = _inverse_tail(b, strict(b, "fsub", d(1.0), size))
    w = double.log1p(b, strict(b, "fmul", b.fneg(x), x))
    y = _start(b, x, b.fneg(w))
    for _ in range(2):
        miss = strict(b, "fsub", per_lane(b, "erf", y), x)
        slope = strict(b, "fmul", _exp_of_square(b, y, 1.0), d(pymath.sqrt(pymath.pi) / 2))
        y = strict(b, "fsub", y, strict(b, "fmul", miss, slope))
    y = b.select(b.fcmp("oeq", x, d(0.0)), x, y)
    return b.select(b.fcmp("ogt", size, d(0.5)), b.intrinsic("copysign", tail, x), y)


def _inverse_tail(b, q: Val) -> Val:
    """y > 0 with erfc(y) = q, for 0 < q <= 1/2 or so: Newton on log(erfc), which is all but straight. q = 0 gives infinity, q < 0
    and NaN give NaN."""
    length = b.fneg(double.log(b, q))
    w = strict(b, "fsub", length, double.log(b, strict(b, "fsub", d(2.0), q)))
    near = _start(b, strict(b, "fsub", d(1.0), q), w)
    far = b.intrinsic("sqrt", b.intrinsic("maxnum", strict(b, "fsub", length, double.log(b, strict(
        b, "fadd", d(1.0), strict(b, "fmul", d(pymath.sqrt(pymath.pi)), b.intrinsic("sqrt", length))))), d(0.01)))
    y = b.select(b.fcmp("olt", w, d(16.0)), near, far)
    for _ in range(3):
        found = per_lane(b, "erfc", y)
        step = strict(b, "fmul", double.log(b, strict(b, "fdiv", found, q)), strict(b, "fmul", found, strict(
            b, "fmul", _exp_of_square(b, y, 1.0), d(pymath.sqrt(pymath.pi) / 2))))
        y = strict(b, "fadd", y, b.select(b.fcmp("olt", b.intrinsic("fabs", step), d(10.0)), step, b.splat(d(0.0), q.lanes)))
    y = b.select(b.fcmp("oeq", q, d(0.0)), b.splat(d(float("inf")), q.lanes), y)
    return b.select(b.fcmp("oge", q, d(0.0)), y, b.splat(d(float("nan")), q.lanes))


def _erfcinv(b, x):
    small = _inverse_tail(b, x)
    large = b.fneg(_inverse_tail(b, strict(b, "fsub", d(2.0), x)))
    middle = erfinv(b, strict(b, "fsub", d(1.0), x))
    y = b.select(b.fcmp("olt", x, d(0.5)), small, b.select(b.fcmp("ogt", x, d(1.5)), large, middle))
    return b.select(b.fcmp("uno", x, x), x, y)


erfcinv = in_double(_erfcinv)


@in_double
def normcdf(b, x):
    """The normal distribution function: erfc(-x / sqrt(2)) / 2."""
    z = strict(b, "fmul", x, d(-pymath.sqrt(0.5)))
    # The argument's rounding is felt through the square: one step of its derivative puts it back.
    low = _fma(b, x, d(-pymath.sqrt(0.5)), b.fneg(z))
    low = _fma(b, x, d(4.833646656726457e-17), low)  # sqrt(1/2) is not a double either
    value = per_lane(b, "erfc", z)
    slope = strict(b, "fmul", _exp_of_square(b, z, -1.0), d(-2 / pymath.sqrt(pymath.pi)))
    fixed = _fma(b, slope, low, value)
    finite = b.fcmp("olt", b.intrinsic("fabs", x), d(1e300))
    return strict(b, "fmul", b.select(finite, fixed, value), d(0.5))


@in_double
def normcdfinv(b, p):
    """-sqrt(2) erfcinv(2 p)."""
    return strict(b, "fmul", _erfcinv(b, strict(b, "fmul", p, d(2.0))), d(-pymath.sqrt(2.0)))


def _bessel(order: int):

    def series():
        """1 / (k! (k + order)!), for powers of x^2 / 4: enough for |x| <= 25."""
        return [1.0 / (pymath.factorial(k) * pymath.factorial(k + order)) for k in range(60)]

    def asymptotic():
        """(-1)^k a_k(order) / 1, for powers of 1 / x."""
        out, value = [1.0], 1.0
        for k in range(1, 24):
            value *= -(4 * order * order - (2 * k - 1)**2) / (8.0 * k)
            out.append(value)
        return out

    @in_double
    def rule(b, x):
        size = b.intrinsic("fabs", x)
        t = strict(b, "fmul", strict(b, "fmul", x, x), d(0.25))
        near = horner(b, t, series()[::-1])
        if order:
            near = strict(b, "fmul", near, strict(b, "fmul", size, d(0.5)))
        z = strict(b, "fdiv", d(1.0), size)
        root = strict(b, "fmul", double.exp(b, strict(b, "fmul", size, d(0.5))), d(1 / pymath.sqrt(2 * pymath.pi)))
        far = strict(b, "fmul", horner(b, z, asymptotic()[::-1]), strict(b, "fdiv", root, b.intrinsic("sqrt", size)))
        far = strict(b, "fmul", far, double.exp(b, strict(b, "fmul", size, d(0.5))))
        far = b.select(b.fcmp("oeq", size, d(float("inf"))), size, far)
        out = b.select(b.fcmp("olt", size, d(25.0)), near, far)
        return b.intrinsic("copysign", out, x) if order else out

    return rule


bessel_i0, bessel_i1 = _bessel(0), _bessel(1)

