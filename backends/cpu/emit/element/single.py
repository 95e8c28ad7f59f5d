"""Elementary functions of f32 as polynomials, at any vector width.

LLVM turns `llvm.exp.v16f32` into sixteen scalar calls on every ISA, so f32 exp, exp2, log, log2, sin, cos, tanh and erf are
written out here (range reduction by Cody and Waite; the logarithm's coefficients are those of the Cephes library, S. Moshier, logf.c).

Errors in units in the last place, f32, measured over the whole range by tests/test_math.py: exp 1.5, exp2 2,
log 2, log2 3, sin 2, cos 2, tanh 1.5, erf 2, log1p 1.5, expm1 2, log10 2 (the last three by tests/test_math_wide.py).
"""

from __future__ import annotations

from math import inf, nan

from ...llvm import ir
from ...llvm.ir import Val, const

# e^r = 1 + r + r^2 P(r), |r| <= ln(2)/2: P by the Remez exchange, relative error 2.5e-8 (a fifth of an ulp).
_EXP = (1.334405494762116e-3, 8.35927930481041e-3, 4.167372897742599e-2, 1.666660006979811e-1, 4.999998363857541e-1)
_LOG = (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
        2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)
_MAGIC = 12582912.0  # 1.5 * 2^23: adding it rounds to an integer and leaves that integer in the low bits


def f(x: float) -> Val:
    return const("float", x)


def i(x: int) -> Val:
    return const("i32", x)


def fma(b, x, y, z) -> Val:
    return b.intrinsic("fma", x, y, z)


def mul_add(b, x, y, z) -> Val:
    """x y + z, fused where the target has an instruction for that (LLVM makes a call of the C library's fmaf elsewhere)."""
    return fma(b, x, y, z) if b.fn.kernel.target.fma else b.fbin("fadd", b.fbin("fmul", x, y, ""), z, "")


def pooled(b, value: float, x: Val) -> Val:
    """A constant for use with `x`; of f32 from memory where registers are few (`Kernel.pooled`)."""
    return b.fn.kernel.pooled(b, value, x.lanes) if x.elem == "float" else const(x.elem, value)


def horner(b, x: Val, coefficients) -> Val:
    """coefficients[0] x^n + ... + coefficients[n]."""
    c = [pooled(b, v, x) for v in coefficients]
    acc = mul_add(b, x, c[0], c[1])
    for v in c[2:]:
        acc = mul_add(b, acc, x, v)
    return acc


def _scales(b, x: Val) -> bool:
    """Is there one instruction that multiplies `x` by powers of two?"""
    return b.fn.kernel.target.scalef and x.lanes == b.fn.kernel.target.lanes(32)


def whole(b, x: Val, factor: Val) -> tuple[Val, Val | None]:
    """(n, the same as i32 or None): x * factor rounded to a whole number below 2^22; any number for a NaN. By a conversion there and back,
    which needs no constants in registers; where `times_power` takes floats, by adding and taking off a number whose last bit is 1."""
    if _scales(b, x):
        return b.fbin("fsub", fma(b, x, factor, f(_MAGIC)), f(_MAGIC), ""), None
    ints = ir.vec("i32", x.lanes)
    n = b.call(f"llvm.lrint.{ir.mangle(ints)}.{ir.mangle(x.ty)}", ints, [b.fbin("fmul", x, factor, "")])
    return b.cast("sitofp", n, "float"), n


#: 2^n is 0 as a float from here on down
_NOTHING = -151


def times_power(b, z: Val, n: Val, k: Val | None, there: Val | None) -> Val:
    """(1 + z) * 2^n, |n| < 256, and 0 where not `there` (None: it is everywhere), with n also as integers in `k` where `whole` gave them; two steps, so
    that subnormal results round once."""
    if k is None:
        # vscalefps: one instruction, right for subnormal results too
        ty = z.ty
        mask = const("i16", -1) if there is None else b.reinterpret(there, "i16")
        return b.call("llvm.x86.avx512.mask.scalef.ps.512", ty, [b.fbin("fadd", z, f(1.0), ""), n, Val(ty, "poison" if there is None else "zeroinitializer"),
                                                                 mask, const("i32", 4)])
    half = b.bin("ashr", k, i(1))
    rest = b.sub(k, half)

    one = b.bitcast(pooled(b, 1.0, z), "i32")

    def power(v):
        return b.bitcast(b.add(b.bin("shl", v, i(23)), one), "float")

    first = power(half)
    if b.fn.kernel.target.assists:  # times 0 is 0 without rounding; a mask of what is 0 would take a register all along
        first = b.select(b.fcmp("ogt", first, pooled(b, 2.0**(_NOTHING // 2), z)), first, f(0.0))
    return b.fbin("fmul", mul_add(b, z, first, first), power(rest), "")


def exp_minus_one(b, r: Val) -> Val:
    """exp(r) - 1 for |r| <= ln(2)/2."""
    return mul_add(b, horner(b, r, _EXP), b.fbin("fmul", r, r, ""), r)


def clamp(b, x: Val, lo: float, hi: float) -> Val:
    """x in [lo, hi]; NaN passes (the comparisons are false for it)."""
    low, high = pooled(b, lo, x), pooled(b, hi, x)
    x = b.select(b.fcmp("olt", x, low), low, x)
    return b.select(b.fcmp("ogt", x, high), high, x)


def _bounded(b, x: Val, lo: float, hi: float) -> tuple[Val, Val | None]:
    """(x in [lo, hi], None), or (x no larger than hi, where an exponential of it is not 0), which it is below lo. NaN passes."""
    if not (b.fn.kernel.target.assists and _scales(b, x)):
        return clamp(b, x, lo, hi), None
    there = b.fcmp("uge", x, f(lo))
    return b.select(there, b.select(b.fcmp("ogt", x, f(hi)), f(hi), x), f(0.0)), there


def exp32(b, x: Val) -> Val:
    x, there = _bounded(b, x, -105.0, 89.0)
    n, k = whole(b, x, pooled(b, 1.44269504088896341, x))
    r = mul_add(b, n, pooled(b, -0.693359375, x), x)
    r = mul_add(b, n, pooled(b, 2.12194440e-4, x), r)
    return times_power(b, exp_minus_one(b, r), n, k, there)


def exp2_32(b, x: Val) -> Val:
    x, there = _bounded(b, x, float(_NOTHING), 129.0)
    n, k = whole(b, x, f(1.0))
    r = b.fbin("fmul", b.fbin("fsub", x, n, ""), pooled(b, 0.693147180559945, x), "")
    return times_power(b, exp_minus_one(b, r), n, k, there)


def _log_parts(b, x: Val):
    """(m, e): x = (1 + m) * 2^e with 1 + m in [sqrt(1/2), sqrt(2)); subnormals are scaled first."""
    small = b.fcmp("olt", x, f(1.17549435e-38))
    x = b.select(small, b.fbin("fmul", x, f(8388608.0), ""), x)
    bits = b.bitcast(x, "i32")
    # Take sqrt(1/2) off first: the exponent field then splits where the mantissa should.
    shifted = b.sub(bits, i(0x3F3504F3))
    e = b.bin("ashr", shifted, i(23))
    m = b.bitcast(b.add(b.and_(shifted, i(0x7FFFFF)), i(0x3F3504F3)), "float")
    e = b.sub(e, b.select(small, i(23), i(0)))
    return b.fbin("fsub", m, f(1.0), ""), b.cast("sitofp", e, "float")


def log_special(b, x: Val, y: Val) -> Val:
    """y, or what a logarithm of x is that is no positive number."""
    y = b.select(b.fcmp("oeq", x, const(x.elem, inf)), x, y)
    y = b.select(b.fcmp("oeq", x, const(x.elem, 0.0)), const(x.elem, -inf), y)
    return b.select(b.fcmp("ult", x, const(x.elem, 0.0)), const(x.elem, nan), y)  # negative, or NaN itself


def _log_tail(b, m: Val):
    """(z, y): log(1 + m) = m + y with y = m^3 P(m) - m^2 / 2."""
    z = b.fbin("fmul", m, m, "")
    y = b.fbin("fmul", b.fbin("fmul", horner(b, m, _LOG), m, ""), z, "")
    return z, y


def log32(b, x: Val) -> Val:
    m, e = _log_parts(b, x)
    z, y = _log_tail(b, m)
    y = mul_add(b, e, f(-2.12194440e-4), y)
    y = mul_add(b, z, f(-0.5), y)
    y = mul_add(b, e, f(0.693359375), b.fbin("fadd", m, y, ""))
    return log_special(b, x, y)


def log2_32(b, x: Val) -> Val:
    m, e = _log_parts(b, x)
    z, y = _log_tail(b, m)
    y = mul_add(b, z, f(-0.5), y)
    # log2(e) - 1 = 0.44269504 keeps the leading product exact (Cephes log2f.c).
    c = f(0.44269504088896340735992)
    r = mul_add(b, y, c, b.fbin("fmul", m, c, ""))
    r = b.fbin("fadd", b.fbin("fadd", r, y, ""), m, "")
    return log_special(b, x, b.fbin("fadd", r, e, ""))


# Coefficients by Chebyshev interpolation (mpmath.chebyfit) on the interval that follows each.
_SIN = (-2.40801904e-08, 2.75364636e-06, -0.000198410866, 0.00833333277, -0.166666667)  # (sin r / r - 1) / r^2, r^2 in [0, (pi/2)^2]
_TANH = (0.00237076564, -0.0084100708, 0.021788322, -0.0539615518, 0.133333129, -0.333333332)  # likewise, r^2 in [0, 0.36]
#: log(erfc x) / x + 1, x in [0, 4], by weighted least squares (Lawson): what is left of erf's relative error is 4e-9
_ERFC = (9.25582999e-06, -0.000117637209, 0.000632821634, -0.00166699798, 0.000160364393, 0.0191530827, -0.102777836, -0.636619381, -0.128379172)
_TRIG_LIMIT = 71476.0  # up to here three FMAs reduce the angle; beyond, libm does


def _sin_of(b, x: Val, n: Val, odd: Val) -> Val:
    """sin(x - n pi/2), |x - n pi/2| <= pi/2 or little more, with the other sign where the last bit of `odd` is 1."""
    r = fma(b, n, f(-1.5707963705062866), x)
    r = fma(b, n, f(4.371138828673793e-08), r)
    r = fma(b, n, f(1.7151244994428829e-15), r)
    z = b.fbin("fmul", r, r, "")
    sin = mul_add(b, b.fbin("fmul", horner(b, z, _SIN), z, ""), r, r)
    return b.bitcast(b.xor(b.bitcast(sin, "i32"), b.bin("shl", odd, i(31))), "float")


def _sin(b, x: Val) -> Val:
    t = mul_add(b, x, f(0.3183098861837907), f(_MAGIC))
    n = b.fbin("fsub", t, f(_MAGIC), "")
    return b.select(b.fcmp("oeq", x, f(0.0)), x, _sin_of(b, x, b.fbin("fadd", n, n, ""), b.bitcast(t, "i32")))  # -0 itself: in the polynomial it loses its sign


def _cos(b, x: Val) -> Val:
    """By odd multiples of pi/2."""
    t = b.fbin("fadd", mul_add(b, x, f(0.3183098861837907), f(-0.5)), f(_MAGIC), "")
    n = b.fbin("fsub", t, f(_MAGIC), "")
    return _sin_of(b, x, mul_add(b, n, f(2.0), f(1.0)), b.add(b.bitcast(t, "i32"), i(1)))


def per_lane(b, name: str, *vals: Val, ret: str | None = None) -> Val:
    """A libm function, called once for every lane. `ret`: its result's scalar LLVM type, if not its first argument's."""
    n = max(v.lanes for v in vals)
    elem = ret or vals[0].elem
    if n == 1:
        return b.call(name, elem, list(vals))
    out = Val(ir.vec(elem, n), "poison")
    for k in range(n):
        out = b.insert(out, b.call(name, elem, [b.extract(v, k) for v in vals]), k)
    return out


def with_fallback(name: str, fast, outside):
    """A function of its own, inlined by LLVM: `fast(b, *values)`, but libm for all lanes where `outside(b, *values)` holds for one."""

    def build(b, *xs):
        any_ = b.some(outside(b, *xs))
        slow, quick = b.fn.new_block("slow"), b.fn.new_block("quick")
        b.cond_br(any_, slow, quick)
        b.enter(slow)
        b.ret(per_lane(b, name if xs[0].elem == "double" else name + "f", *xs))
        b.enter(quick)
        b.ret(fast(b, *xs))

    def called(b, *xs):
        xs = b.unify(*xs)  # one function for each type
        return b.fn.kernel.helper(f"tp.{name}.{ir.mangle(xs[0].ty)}", xs[0].ty, list(xs), build)

    return called


def beyond(limit: float):
    """Is |x| above a limit, or NaN?"""
    return lambda b, x: b.fcmp("ugt", b.intrinsic("fabs", x), const(x.elem, limit))


sin32, cos32 = with_fallback("sin", _sin, beyond(_TRIG_LIMIT)), with_fallback("cos", _cos, beyond(_TRIG_LIMIT))


def log10_32(b, x: Val) -> Val:
    """By log10(e) and log10(2) in two parts each, whose first have few bits (Cephes log10f.c)."""
    m, e = _log_parts(b, x)
    z, y = _log_tail(b, m)
    y = mul_add(b, z, f(-0.5), y)
    r = mul_add(b, e, f(2.48745663981195213739e-4), b.fbin("fmul", b.fbin("fadd", m, y, ""), f(7.00731903251827651129e-4), ""))
    r = mul_add(b, m, f(0.43359375), mul_add(b, y, f(0.43359375), r))
    return log_special(b, x, mul_add(b, e, f(0.30078125), r))


def log1p32(b, x: Val) -> Val:
    """log(1 + x), to which the part of x is added that 1 + x does not hold (W. Kahan)."""
    u = b.fbin("fadd", x, f(1.0), "")
    lost = b.select(b.fcmp("ogt", x, f(1.0)), b.fbin("fsub", f(1.0), b.fbin("fsub", u, x, ""), ""), b.fbin("fsub", x, b.fbin("fsub", u, f(1.0), ""), ""))
    m, e = _log_parts(b, u)
    z, y = _log_tail(b, m)
    y = b.fbin("fadd", mul_add(b, e, f(-2.12194440e-4), y), b.fbin("fdiv", lost, u, ""), "")
    y = mul_add(b, z, f(-0.5), y)
    y = mul_add(b, e, f(0.693359375), b.fbin("fadd", m, y, ""))
    return b.select(b.fcmp("oeq", x, f(0.0)), x, log_special(b, u, y))


def expm1_32(b, x: Val) -> Val:
    """e^x - 1 = 2 (2^(n-1) (e^r - 1) + 2^(n-1) - 1/2): nothing but the result overflows."""
    bounded = clamp(b, x, -19.0, 89.0)
    t = mul_add(b, bounded, pooled(b, 1.44269504088896341, x), f(_MAGIC))
    n = b.fbin("fsub", t, f(_MAGIC), "")
    r = mul_add(b, n, pooled(b, -0.693359375, x), bounded)
    r = mul_add(b, n, pooled(b, 2.12194440e-4, x), r)
    p = exp_minus_one(b, r)
    power = b.bitcast(b.bin("shl", b.add(b.bitcast(t, "i32"), i(126)), i(23)), "float")
    half = mul_add(b, power, p, b.fbin("fsub", power, f(0.5), ""))
    y = b.select(b.fcmp("oeq", n, f(0.0)), p, b.fbin("fadd", half, half, ""))
    return b.select(b.fcmp("oeq", x, f(0.0)), x, y)


def tanh32(b, x: Val) -> Val:
    size = b.intrinsic("fabs", x)
    s = b.fbin("fmul", x, x, "")
    small = fma(b, b.fbin("fmul", horner(b, s, _TANH), s, ""), x, x)
    e = exp32(b, b.fbin("fmul", size, f(2.0), ""))
    large = b.fbin("fsub", f(1.0), b.fbin("fdiv", f(2.0), b.fbin("fadd", e, f(1.0), ""), ""), "")
    return b.intrinsic("copysign", b.select(b.fcmp("olt", size, f(0.6)), small, large), x)  # of -0, too, where small is +0


def erf32(b, x: Val) -> Val:
    """1 - e^g, g = log(erfc |x|): as 1 - 2^n - 2^n (e^r - 1), which keeps all digits where g is small."""
    size, limit = b.intrinsic("fabs", x), pooled(b, 4.0, x)  # erf(4) is 1 in f32
    t = b.select(b.fcmp("ogt", size, limit), limit, size)
    g = mul_add(b, horner(b, t, _ERFC), t, b.fneg(t))
    k = mul_add(b, g, pooled(b, 1.44269504088896341, x), pooled(b, _MAGIC, x))
    n = b.fbin("fsub", k, pooled(b, _MAGIC, x), "")
    r = mul_add(b, n, pooled(b, -0.693359375, x), g)
    r = mul_add(b, n, pooled(b, 2.12194440e-4, x), r)
    power = b.bitcast(b.bin("shl", b.add(b.bitcast(k, "i32"), i(127)), i(23)), "float")
    y = mul_add(b, b.fneg(power), exp_minus_one(b, r), b.fbin("fsub", f(1.0), power, ""))
    return b.intrinsic("copysign", y, x)
