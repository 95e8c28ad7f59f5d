"""math.*: f32 by `single.py`, f64 by `double.py`; f16 and bf16 are computed in f32. What has no polynomial there or in `wide.py` calls libm once per lane: exact, but slow."""

from __future__ import annotations

from ...llvm import ir
from ...llvm.ir import const
from . import convert, double, single


def of_either(of_f32, of_f64):
    """rule(b, *values) by the values' type."""
    return lambda b, *vals: (of_f32 if vals[0].elem == "float" else of_f64)(b, *vals)


#: name -> rule(b, x) on f32 and f64
FUNCTIONS = {
    "exp": of_either(single.exp32, double.exp), "exp2": of_either(single.exp2_32, double.exp2), "expm1": of_either(single.expm1_32, double.expm1),
    "log": of_either(single.log32, double.log), "log2": of_either(single.log2_32, double.log2), "log10": of_either(single.log10_32, double.log10),
    "log1p": of_either(single.log1p32, double.log1p), "sin": of_either(single.sin32, double.sin), "cos": of_either(single.cos32, double.cos),
    "tanh": of_either(single.tanh32, double.tanh), "erf": of_either(single.erf32, lambda b, x: single.per_lane(b, "erf", x)),
}


def elementary(name: str):
    """f16 and bf16 are computed in f32, and the result rounded back."""
    fn = FUNCTIONS[name]

    def rule(b, op, v):
        e = op.operands[0].type.elem
        return fn(b, v) if e in ("f32", "f64") else convert.float_to_float(b, fn(b, convert.float_to_float(b, v, e, "f32")), "f32", e)

    return rule


def native(name: str):
    """An LLVM intrinsic that every target has as an instruction or a short sequence."""

    def rule(b, op, *vals):
        e = op.operands[0].type.elem
        if e in convert.NARROW or e == "f16":
            wide = [convert.float_to_float(b, v, e, "f32") for v in vals]
            return convert.float_to_float(b, b.intrinsic(name, *wide), "f32", e)
        return b.intrinsic(name, *vals)

    return rule


def rsqrt(b, op, v):
    e = op.operands[0].type.elem
    x = convert.float_to_float(b, v, e, "f32") if e != "f64" else v
    r = b.fbin("fdiv", const(x.elem, 1.0), b.intrinsic("sqrt", x), "")
    return convert.float_to_float(b, r, "f32", e) if e != "f64" else r


def absf(b, op, v):
    e = op.operands[0].type.elem
    return convert.change_sign(b, v, e, False) if e in convert.NARROW else b.intrinsic("fabs", v)


def absi(b, op, v):
    return b.call(f"llvm.abs.{ir.mangle(v.ty)}", v.ty, [v, const("i1", False)])


ELEMENTWISE = {
    **{f"math.{name}": elementary(name) for name in ("exp", "exp2", "log", "log2", "sin", "cos", "tanh", "erf")},
    "math.sqrt": native("sqrt"), "tt.precise_sqrt": native("sqrt"), "math.rsqrt": rsqrt,
    "math.absf": absf, "math.floor": native("floor"), "math.ceil": native("ceil"),
    "math.fma": native("fma"), "math.absi": absi,
}
