"""tt.extern_elementwise: the functions of CUDA's libdevice (`__nv_*`) and of ROCm's device library (`__ocml_*`), by name.

What the two libraries compute is in NVIDIA's libdevice user's guide. A function is one row of a table: an LLVM intrinsic, a
function of libm called for every lane, or a few operations written here; those of a rounding mode stand in `rounding.py`.
"""

from __future__ import annotations

import functools
from math import inf, pi

from ...llvm import ir
from ...llvm.ir import Val, const
from . import arith, convert, math, rounding, single, special, wide

_INT = {"half": "i16", "float": "i32", "double": "i64"}


def _c(like: Val, x: float) -> Val:
    return const(like.elem, x)


# --- libm ------------------------------------------------------------------------------------------------------------


def libm(name: str, ret: str | None = None):
    """A function of libm once per lane; the f32 one has an f behind its name. `ret`: its result's LLVM type, if not its
    argument's."""

    def rule(b, *vals):
        suffix = "f" if any(v.elem == "float" for v in vals) else ""
        return single.per_lane(b, name + suffix, *vals, ret=ret or next(v.elem for v in vals if v.elem in ir.FLOATS))

    return rule


def by_f32(fn32, name: str):
    """f32 by a polynomial, f64 by libm."""
    return math.of_either(fn32, libm(name))


def intrinsic(name: str):
    return lambda b, *vals: b.intrinsic(name, *vals)


def div(b, x, y):
    return b.fbin("fdiv", x, y, "")


def recip(b, x):
    return div(b, _c(x, 1.0), x)


def _compose(*fns):
    """One function after the other, from the right."""

    def rule(b, *vals):
        v = fns[-1](b, *vals)
        for fn in reversed(fns[:-1]):
            v = fn(b, v)
        return v

    return rule


def ilogb(b, x):
    """-2^31 for 0 and NaN, as CUDA has it: C libraries differ."""
    return b.select(b.fcmp("ueq", x, _c(x, 0.0)), const("i32", -(1 << 31)), libm("ilogb", "i32")(b, x))


def _hypot_of(count: int):
    """sqrt(a^2 + b^2 + ...) without overflow on the way: f32 in f64, f64 by hypot of hypots."""

    def rule(b, *vals):
        if vals[0].elem == "float":
            total = None
            for v in vals:
                w = b.cast("fpext", v, "double")
                w = b.fbin("fmul", w, w, "")
                total = w if total is None else b.fbin("fadd", total, w, "")
            infinite = functools.reduce(b.or_, [b.fcmp("oeq", b.intrinsic("fabs", v), _c(v, inf)) for v in vals])
            root = b.cast("fptrunc", b.intrinsic("sqrt", total), "float")
            return b.select(infinite, _c(root, inf), root)  # whatever is beside it, as hypot has it
        out = vals[0]
        for v in vals[1:]:
            out = libm("hypot")(b, out, v)
        return out

    return rule


def _sincospi(cosine: bool):
    """sin(pi x), cos(pi x): x is first taken apart into a multiple of 1/2, exactly, and what is left."""

    def rule(b, x):
        size = b.intrinsic("fabs", x)  # large numbers are even, and twice the largest is none
        even = b.and_(b.fcmp("oge", size, _c(x, 2.0 ** (24 if x.elem == "float" else 53))), b.fcmp("olt", size, _c(x, inf)))
        x = b.select(even, b.intrinsic("copysign", _c(x, 0.0), x), x)
        n = b.intrinsic("rint", b.fbin("fmul", x, _c(x, 2.0), ""))
        t = b.intrinsic("fma", n, _c(x, -0.5), x)
        angle = b.fbin("fmul", t, _c(x, pi), "")
        s, c = (math.FUNCTIONS[name](b, angle) for name in ("sin", "cos"))
        # n modulo 4, for any size of n
        q = b.fbin("fsub", n, b.fbin("fmul", b.intrinsic("floor", b.fbin("fmul", n, _c(x, 0.25), "")), _c(x, 4.0), ""), "")
        q = b.fbin("fadd", q, _c(x, 1.0 if cosine else 0.0), "")
        odd = b.or_(b.fcmp("oeq", q, _c(x, 1.0)), b.fcmp("oeq", q, _c(x, 3.0)))
        negative = b.or_(b.fcmp("oeq", q, _c(x, 2.0)), b.fcmp("oeq", q, _c(x, 3.0)))
        v = b.select(odd, c, s)
        v = b.select(negative, b.fneg(v), v)
        whole = b.fcmp("oeq", t, _c(x, 0.0))
        # sin(pi n) is a zero of x's sign.
        zero = b.and_(whole, b.not_(odd))
        return b.select(zero, b.intrinsic("copysign", _c(x, 0.0), x if not cosine else _c(x, 1.0)), v)

    return rule


def _powi(b, x, n):
    return libm("pow")(b, x, b.cast("sitofp", n, x.elem)) if x.elem == "double" else b.cast(
        "fptrunc", libm("pow")(b, b.cast("fpext", x, "double"), b.cast("sitofp", n, "double")), "float")


def _saturate(b, x):
    x = b.select(b.fcmp("ogt", x, _c(x, 0.0)), x, _c(x, 0.0))  # NaN becomes 0
    return b.select(b.fcmp("olt", x, _c(x, 1.0)), x, _c(x, 1.0))


# --- classification: i32 results -------------------------------------------------------------------------------------


def _flag(test):
    return lambda b, x: b.cast("zext", test(b, x), "i32")


def _sign(b, x):
    return b.icmp("slt", b.bitcast(x, _INT[x.elem]), const(_INT[x.elem], 0))


# --- integers --------------------------------------------------------------------------------------------------------


def _count(name: str):
    """ctlz and friends: 32-bit results of 32- or 64-bit arguments; of 0 it is the width."""

    def rule(b, x):
        args = [x] + ([const("i1", False)] if name != "ctpop" else [])
        return b.cast("trunc", b.call(f"llvm.{name}.{ir.mangle(x.ty)}", x.ty, args), "i32")

    return rule


def _ffs(b, x):
    first = b.add(_count("cttz")(b, x), const("i32", 1))
    return b.select(b.icmp("eq", x, const(x.elem, 0)), const("i32", 0), first)


def _mul24(signed: bool):

    def low(b, x):
        if signed:
            return b.bin("ashr", b.bin("shl", x, const("i32", 8)), const("i32", 8))
        return b.and_(x, const("i32", 0xFFFFFF))

    return lambda b, x, y: b.mul(low(b, x), low(b, y))


def _average(shift: str, up: bool):
    """(x + y) / 2 rounded down, or (x + y + 1) / 2 where `up`, without overflow."""

    def rule(b, x, y):
        half = b.bin(shift, b.xor(x, y), const(x.elem, 1))
        return b.sub(b.or_(x, y), half) if up else b.add(b.and_(x, y), half)

    return rule


def _sad(low: str, high: str):
    return lambda b, x, y, z: b.add(b.sub(b.intrinsic(high, x, y), b.intrinsic(low, x, y)), z)


def byte_perm(signs: bool):
    """Each byte one of the eight of y and x, as three bits of s say; signs: eight times its sign where the fourth is set, as PTX's prmt has it."""
    def rule(b, x, y, s):
        bytes_ = b.or_(b.bin("shl", b.cast("zext", y, "i64"), const("i64", 32)), b.cast("zext", x, "i64"))
        out = const("i32", 0)
        for k in range(4):
            chosen = b.bin("lshr", s, const("i32", 4 * k))
            which = b.and_(chosen, const("i32", 7))
            byte = b.and_(b.cast("trunc", b.bin("lshr", bytes_, b.bin("shl", b.cast("zext", which, "i64"), const("i64", 3))), "i32"), const("i32", 255))
            if signs:
                sign = b.and_(b.sub(const("i32", 0), b.bin("lshr", byte, const("i32", 7))), const("i32", 255))
                byte = b.select(b.icmp("ne", b.and_(chosen, const("i32", 8)), const("i32", 0)), sign, byte)
            out = b.or_(out, b.bin("shl", byte, const("i32", 8 * k)))
        return out
    return rule


def _hiloint(b, hi, lo):
    return b.bitcast(b.or_(b.bin("shl", b.cast("zext", hi, "i64"), const("i64", 32)), b.cast("zext", lo, "i64")), "double")


def _half_bits(shift: int):
    return lambda b, x: b.cast("trunc", b.bin("lshr", b.bitcast(x, "i64"), const("i64", shift)), "i32")


def _rcp64h(b, x):
    """1 / x with the low 32 bits of the result zero."""
    return b.bitcast(b.and_(b.bitcast(recip(b, x), "i64"), const("i64", -1 << 32)), "double")


# --- the table: base name -> rule on values, for f32 and f64 alike -----------------------------------------------------

_FLOAT = {
    **{n: libm(n) for n in ("fdim", "j0", "j1", "lgamma", "nextafter", "remainder", "tgamma", "y0", "y1", "logb", "jn", "yn", "ldexp")},
    **{n: by_f32(getattr(wide, n), n) for n in ("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cosh", "erfc", "exp10", "fmod", "hypot", "sinh", "tan")},
    **math.FUNCTIONS, "pow": by_f32(wide.power, "pow"), "scalbn": libm("ldexp"), "ilogb": ilogb, "llrint": libm("llrint", "i64"), "llround": libm("llround", "i64"),
    **{n: intrinsic(n) for n in ("floor", "ceil", "trunc", "round", "sqrt", "copysign", "fabs", "fma", "rint",
                                 "nearbyint")},
    "rsqrt": _compose(recip, intrinsic("sqrt")), "rcbrt": _compose(recip, libm("cbrt")),
    "rhypot": _compose(recip, _hypot_of(2)), "norm3d": _hypot_of(3), "norm4d": _hypot_of(4),
    "rnorm3d": _compose(recip, _hypot_of(3)), "rnorm4d": _compose(recip, _hypot_of(4)),
    "sinpi": _sincospi(False), "cospi": _sincospi(True), "powi": _powi, "pown": _powi, "saturate": _saturate,
    "isnan": _flag(lambda b, x: b.fcmp("uno", x, x)),
    "isinf": _flag(lambda b, x: b.fcmp("oeq", b.intrinsic("fabs", x), _c(x, float("inf")))),
    "isfinite": _flag(rounding.finite), "finite": _flag(rounding.finite), "signbit": _flag(_sign),
    "erfcx": special.erfcx, "erfinv": math.of_either(wide.erfinv, special.erfinv), "erfcinv": special.erfcinv, "normcdf": special.normcdf,
    "normcdfinv": special.normcdfinv, "cyl_bessel_i0": special.bessel_i0, "cyl_bessel_i1": special.bessel_i1,
    "i0": special.bessel_i0, "i1": special.bessel_i1,
}
_MODES = ("rn", "rd", "ru", "rz")
_OTHER = {
    "abs": lambda b, x: b.call(f"llvm.abs.{ir.mangle(x.ty)}", x.ty, [x, const("i1", False)]),
    "brev": intrinsic("bitreverse"), "brevll": intrinsic("bitreverse"), "clz": _count("ctlz"), "clzll": _count("ctlz"),
    "popc": _count("ctpop"), "popcll": _count("ctpop"), "ffs": _ffs, "ffsll": _ffs, "byte_perm": byte_perm(False),
    "mulhi": arith.high_product(True), "umulhi": arith.high_product(False),
    "mul64hi": arith.high_product(True), "umul64hi": arith.high_product(False),
    "mul24": _mul24(True), "umul24": _mul24(False), "sad": _sad("smin", "smax"), "usad": _sad("umin", "umax"),
    "hadd": _average("ashr", False), "rhadd": _average("ashr", True), "uhadd": _average("lshr", False),
    "urhadd": _average("lshr", True), "hiloint2double": _hiloint, "double2hiint": _half_bits(32),
    "double2loint": _half_bits(0), "rcp64h": _rcp64h, "frsqrt_rn": _FLOAT["rsqrt"],
    "fast_fdividef": div, "fast_powf": _FLOAT["pow"],
    **{f"fast_{n}f": _FLOAT[n] for n in ("exp", "exp10", "log", "log2", "log10", "sin", "cos", "tan")},
    **{f"{p}{name}_{mode}": make(mode) for mode in _MODES for p in "fd" for name, make in (
        ("add", rounding.add), ("sub", rounding.sub), ("mul", rounding.mul), ("div", rounding.divide), ("sqrt", rounding.sqrt))},
    **{f"{p}rcp_{mode}": (lambda b, x, f=rounding.divide(mode): f(b, _c(x, 1.0), x)) for mode in _MODES for p in "fd"},
    **{f"fma{f}_{mode}": rounding.fma(mode) for mode in _MODES for f in ("", "f")},
    **{f"double2float_{mode}": rounding.narrow(mode) for mode in _MODES},
    **{f"{src}2{dst}_{mode}": rounding.to_float(src[0] != "u", dst, mode) for mode in _MODES
       for src in ("int", "uint", "ll", "ull") for dst in ("float", "double")},
    **{f"{src}2{dst}_{mode}": rounding.to_int("i64" if "ll" in dst else "i32", dst[0] != "u", mode) for mode in _MODES
       for src in ("float", "double") for dst in ("int", "uint", "ll", "ull")},
    **{n: (lambda b, x, t=t: b.bitcast(x, t)) for n, t in (
        ("float_as_int", "i32"), ("float_as_uint", "i32"), ("int_as_float", "float"), ("uint_as_float", "float"),
        ("double_as_longlong", "i64"), ("longlong_as_double", "double"))},
}

#: symbol -> rule(b, *values)
FUNCTIONS = {
    **{f"__nv_{n}": fn for n, fn in _FLOAT.items()}, **{f"__nv_{n}f": fn for n, fn in _FLOAT.items()},
    **{f"__nv_{n}d": _FLOAT[n] for n in ("isnan", "isinf", "isfinite", "signbit")},
    **{f"__ocml_{n}_f{bits}": fn for n, fn in _FLOAT.items() for bits in (32, 64)},
    **{f"__nv_{n}": fn for n, fn in _OTHER.items()}, "__nv_llabs": _OTHER["abs"],
    "__triport_fp8e4b15_to_f32": lambda b, x: convert.widen(b, x, "fp8e4b15"),
    **{f"__triport_f{bits}_to_fp8e4b15{tail}": (lambda b, x, rtz=bool(tail): convert.narrow(b, x, "fp8e4b15", rtz))
       for bits in (32, 64) for tail in ("", "_rtz")},
    # Triton's HIP backend has names of its own for these.
    **{f"__ockl_{n}_u{bits}": _count(to) for bits in (32, 64) for n, to in (("clz", "ctlz"), ("popcount", "ctpop"))},
    "__triton_hip_rint": _FLOAT["rint"], "__triton_hip_llrint": _FLOAT["llrint"], "__triton_hip_iabs": _OTHER["abs"],
    "__triton_hip_fabs": _FLOAT["fabs"],
    "__triton_hip_fast_tanhf": _FLOAT["tanh"], "__triton_hip_fast_expf": _FLOAT["exp"],
    "__triton_hip_fast_fdividef": div,
}


def extern(b, op, *vals):
    symbol = op.attrs.get("symbol", "")
    rule = FUNCTIONS.get(symbol)
    if rule is None:
        near = [s for s in FUNCTIONS if symbol.strip("_").split("_")[-1].rstrip("f") in s][:6]
        raise b.fn.kernel.error(op, f"function {symbol!r} is not known; triton-cpu has the functions of libdevice and ocml by "
                                f"name{' (near: ' + ', '.join(near) + ')' if near else ''}, and cannot run GPU bitcode")
    out = rule(b, *vals)
    want = convert._reg(op.result.type.elem)
    if out.elem != want and out.elem[0] == want[0] == "i":
        out = b.cast("trunc" if ir.bits_of(want) < ir.bits_of(out.elem) else "zext", out, want)
    return out


def _math(name: str):
    """A function of MLIR's math dialect: f16 and bf16 go by f32."""

    def rule(b, op, *vals):
        e = op.operands[0].type.elem
        narrow = e == "f16" or e in convert.NARROW
        if narrow:
            vals = [convert.float_to_float(b, v, o.type.elem, "f32") if v.elem in ("half", "i16", "i8") else v
                    for v, o in zip(vals, op.operands)]
        out = _FLOAT[name](b, *vals)
        if op.result.type.elem == "i1":
            return b.cast("trunc", out, "i1")
        return convert.float_to_float(b, out, "f32", e) if narrow else out

    return rule


_MATH = {n: n for n in ("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cosh", "erfc", "expm1", "log10",
                        "log1p", "sinh", "tan", "trunc", "round", "copysign", "isnan", "isinf", "isfinite")}
_MATH |= {"powf": "pow", "fpowi": "powi", "roundeven": "rint"}

ELEMENTWISE = {
    "tt.extern_elementwise": extern, **{f"math.{m_}": _math(n) for m_, n in _MATH.items()},
    **{f"math.{n}": (lambda b, op, x, n=n: b.call(f"llvm.{n}.{ir.mangle(x.ty)}", x.ty, [x] + (
        [const("i1", False)] if n != "ctpop" else []))) for n in ("ctlz", "cttz", "ctpop")},
}
