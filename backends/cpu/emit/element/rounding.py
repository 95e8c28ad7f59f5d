"""Rounding down (rd), up (ru) and to zero (rz): the correctly rounded result, and its neighbour where the sign of its error says so.

Error-free transformations give the error exactly (Dekker 1971, Knuth TAOCP 2, 4.2.2; for the fused product Boldo and Muller 2005), products of
f64 below 2^-969 excepted. Each function makes a rule for a mode; "rn" is the nearest.
"""

from __future__ import annotations

from ...llvm import ir
from ...llvm.ir import Val, const
from . import convert

_INT = {"half": "i16", "float": "i32", "double": "i64"}


def _c(like: Val, x: float) -> Val:
    return const(like.elem, x)


def directed(b, r: Val, err: Val, mode: str, exact_inputs: Val | None = None) -> Val:
    """The rounding of r + err (err below half an ulp of r, only its sign counts) in a direction."""
    if mode == "rn":
        return r
    zero = _c(err, 0.0)
    more, less = b.fcmp("ogt", err, zero), b.fcmp("olt", err, zero)
    if exact_inputs is not None:  # an overflow of finite operands: the exact result is below the infinity
        over = b.and_(exact_inputs, b.fcmp("oeq", b.intrinsic("fabs", r), _c(r, float("inf"))))
        positive = b.fcmp("ogt", r, _c(r, 0.0))
        less, more = b.or_(less, b.and_(over, positive)), b.or_(more, b.and_(over, b.not_(positive)))
    bits = b.bitcast(r, _INT[r.elem])
    one, tiny = const(bits.elem, 1), _c(r, 0.0)
    positive, zero_r = b.fcmp("ogt", r, tiny), b.fcmp("oeq", r, tiny)
    smallest = const(bits.elem, 1)
    up = b.select(zero_r, smallest, b.select(positive, b.add(bits, one), b.sub(bits, one)))
    sign = const(bits.elem, 1 << (ir.bits_of(bits.elem) - 1))
    down = b.select(zero_r, b.or_(sign, smallest), b.select(positive, b.sub(bits, one), b.add(bits, one)))
    if mode == "ru":
        out = b.select(more, up, bits)
    elif mode == "rd":
        out = b.select(less, down, bits)
    else:
        out = b.select(b.and_(positive, less), down, b.select(b.and_(b.fcmp("olt", r, tiny), more), up, bits))
    return b.bitcast(out, r.elem)


def finite(b, *vals):
    out = None
    for v in vals:
        f = b.fcmp("olt", b.intrinsic("fabs", v), _c(v, float("inf")))
        out = f if out is None else b.and_(out, f)
    return out


def two_sum(b, x, y):
    """(s, e): s = x + y rounded, s + e = x + y exactly."""
    f = lambda op, p, q: b.fbin(op, p, q, "")  # noqa: E731
    s = f("fadd", x, y)
    t = f("fsub", s, x)
    return s, f("fadd", f("fsub", x, f("fsub", s, t)), f("fsub", y, t))


def add(mode):

    def rule(b, x, y):
        x, y = b.unify(x, y)
        r, e = two_sum(b, x, y)
        return directed(b, r, e, mode, finite(b, x, y))

    return rule


def sub(mode):
    return lambda b, x, y: add(mode)(b, x, b.fneg(y))


def _wide(b, v):
    return b.cast("fpext", v, "double")


def mul(mode):

    def rule(b, x, y):
        x, y = b.unify(x, y)
        r = b.fbin("fmul", x, y, "")
        if r.elem == "float":
            e = b.fbin("fsub", b.fbin("fmul", _wide(b, x), _wide(b, y), ""), _wide(b, r), "")
        else:
            e = b.intrinsic("fma", x, y, b.fneg(r))
        return directed(b, r, e, mode, finite(b, x, y))

    return rule


def divide(mode):

    def rule(b, x, y):
        x, y = b.unify(x, y)
        r = b.fbin("fdiv", x, y, "")
        if r.elem == "float":
            rest = b.fbin("fsub", _wide(b, x), b.fbin("fmul", _wide(b, r), _wide(b, y), ""), "")
            rest = b.select(b.fcmp("olt", y, _c(y, 0.0)), b.fneg(rest), rest)
        else:
            rest = b.intrinsic("fma", b.fneg(r), y, x)
            rest = b.select(b.fcmp("olt", y, _c(y, 0.0)), b.fneg(rest), rest)
        overflow = b.and_(finite(b, x, y), b.fcmp("one", y, _c(y, 0.0)))
        return directed(b, r, rest, mode, overflow)

    return rule


def sqrt(mode):

    def rule(b, x):
        r = b.intrinsic("sqrt", x)
        if r.elem == "float":
            rest = b.fbin("fsub", _wide(b, x), b.fbin("fmul", _wide(b, r), _wide(b, r), ""), "")
        else:
            rest = b.intrinsic("fma", b.fneg(r), r, x)
        return directed(b, r, rest, mode)

    return rule


def fma(mode):

    def rule(b, x, y, z):
        x, y, z = b.unify(x, y, z)
        r = b.intrinsic("fma", x, y, z)
        f = lambda op, p, q: b.fbin(op, p, q, "")  # noqa: E731
        if r.elem == "float":
            s, e = two_sum(b, f("fmul", _wide(b, x), _wide(b, y)), _wide(b, z))
            err = f("fadd", f("fsub", s, _wide(b, r)), e)
        else:
            p = f("fmul", x, y)
            p_err = b.intrinsic("fma", x, y, b.fneg(p))
            a1, a2 = two_sum(b, z, p_err)
            b1, b2 = two_sum(b, p, a1)
            err = f("fadd", f("fadd", f("fsub", b1, r), b2), a2)
        return directed(b, r, err, mode, finite(b, x, y, z))

    return rule


def narrow(mode):

    def rule(b, x):
        r = b.cast("fptrunc", x, "float")
        return directed(b, r, b.fbin("fsub", x, _wide(b, r), ""), mode, finite(b, x))

    return rule


def to_float(signed: bool, to: str, mode: str):

    def rule(b, x):
        name = "sitofp" if signed else "uitofp"
        r = b.cast(name, x, to)
        if mode == "rn":
            return r
        if x.elem == "i32":  # exact in f64
            exact = b.cast(name, x, "double")
            return directed(b, r, b.fbin("fsub", exact, _wide(b, r) if to == "float" else r, ""), mode)
        back = convert.to_int_sat(b, r, "i64", signed)
        rest = b.sub(x, back)
        top = b.fcmp("oge", r, _c(r, 2.0**(63 if signed else 64)))
        return directed(b, r, b.select(top, const("double", -1.0), b.cast("sitofp", rest, "double")), mode)

    return rule


def to_int(to: str, signed: bool, mode: str):
    name = {"rn": "roundeven", "rd": "floor", "ru": "ceil", "rz": None}[mode]
    return lambda b, x: convert.to_int_sat(b, b.intrinsic(name, x) if name else x, to, signed)
