"""arith.*: integer and float arithmetic, comparisons, selection. bf16 is computed in f32 and rounded after each op."""

from __future__ import annotations

from ...llvm import ir
from ...llvm.ir import Val, const
from . import convert, division, wide


def elem(op, k=0) -> str:
    return op.operands[k].type.elem


def fma_flags(b) -> str:
    """`contract` lets LLVM join a product and a sum into one FMA, where the launch options allow it."""
    return "contract" if b.fn.fp_fusion else ""


def in_float(fn):
    """A rule on half/float/double values; bf16 and fp8 operands are widened to f32 and the result is rounded back;
    so is half where the target cannot convert it by instruction."""

    def rule(b, op, *vals):
        e = elem(op)
        if e in convert.NARROW or (e == "f16" and not b.fn.kernel.target.half):
            vals = [convert.float_to_float(b, v, e, "f32") for v in vals]
            out = fn(b, op, *vals)
            return out if out.elem == "i1" else convert.float_to_float(b, out, "f32", op.result.type.elem)
        return fn(b, op, *vals)

    return rule


def _int(opname):
    return lambda b, op, x, y: b.bin(opname, x, y)


def _float(opname):
    return in_float(lambda b, op, x, y: b.fbin(opname, x, y, fma_flags(b)))


def _shift(opname):
    # Shifting by the width or more is poison in LLVM; PTX gives 0 (or the sign). Follow PTX.
    def rule(b, op, x, y):
        bits = ir.bits_of(x.elem)
        if isinstance(y.const, int) and 0 <= y.const < bits:
            return b.bin(opname, x, y)
        inside = b.icmp("ult", y, const(y.elem, bits))
        limit = const(y.elem, bits - 1)
        out = b.bin(opname, x, b.select(inside, y, limit))
        return out if opname == "ashr" else b.select(inside, out, b.splat(const(x.elem, 0), out.lanes))

    return rule


def _minmax(name):
    return lambda b, op, x, y: b.intrinsic(name, x, y)


def _float_minmax(name):
    return in_float(lambda b, op, x, y: b.intrinsic(name, x, y))


_FCMP = {"oeq", "ogt", "oge", "olt", "ole", "one", "ord", "ueq", "ugt", "uge", "ult", "ule", "une", "uno"}


def cmpi(b, op, x, y):
    return b.icmp(op.attrs["predicate"], x, y)


@in_float
def cmpf(b, op, x, y):
    return b.fcmp(op.attrs["predicate"], x, y)


def _passing_nan(pred: str):
    """The greater or lesser of two, x where that is NaN, and y of equals."""
    return lambda b, op, x, y: b.select(b.fcmp("uno", x, x), x, b.select(b.fcmp(pred, x, y), x, y))


def select(b, op, c, x, y):
    return b.select(c, x, y)


def constant(b, op):
    return constant_value(op.attrs["value"], op.result.type.elem)


def constant_value(value, e: str) -> Val:
    """A TTIR constant of element type `e` as an LLVM constant (bf16 and fp8 as bit patterns)."""
    from ...llvm.elements import REGISTER
    if e in convert.NARROW:
        return const(REGISTER[e], convert.encode(value, e))
    return const(REGISTER[e], value)


def negf(b, op, x):
    if elem(op) in convert.NARROW:
        return convert.change_sign(b, x, elem(op), True)
    return b.fneg(x)


@in_float
def divf(b, op, x, y):
    """Division, correctly rounded: the same in every kernel that computes it, for a gradient asks which of its numbers is the maximum that forward left. Triton
    promises 2 ulp for f32 `/`, which targets that divide slowly make use of: lanes over one divisor take its reciprocal there (1.5 ulp)."""
    if y.lanes == 1 and x.lanes > 1 and y.elem == "float" and b.fn.kernel.target.divides:
        # A reciprocal of a subnormal overflows and one of a huge number is subnormal: 2^64 is moved out of the way.
        size = b.intrinsic("fabs", y)
        small, large = b.fcmp("olt", size, const("float", 2.0**-100)), b.fcmp("ogt", size, const("float", 2.0**100))
        shift = b.select(small, const("float", 2.0**64), b.select(large, const("float", 2.0**-64), const("float", 1.0)))
        r = b.fbin("fdiv", const("float", 1.0), b.fbin("fmul", y, shift, ""), "")
        return b.fbin("fmul", b.fbin("fmul", x, r, ""), shift, "")
    if op in b.fn.kernel.plan.estimates and y.lanes > 1:
        return b.fbin("fmul", x, _reciprocal(b, y), "")
    return b.fbin("fdiv", x, y, "")


def _reciprocal(b, y: Val) -> Val:
    """1 / y for y that are at least 1 (`plan/estimates.py`): an estimate of 7 bits, and Newton's step twice. Within 1 unit in the last place up to 2^125; for
    larger y the result is subnormal, or nearly, and within 2^-149. Of infinity 0, of NaN NaN."""
    one = const("float", 1.0)
    r = _estimate(b, y)
    y = b.intrinsic("minnum", y, const("float", ("bits", 0x7F7FFFFF)))  # 0 x infinity would be NaN
    for _ in range(2):
        error = b.intrinsic("fma", b.fneg(y), r, one)
        r = b.intrinsic("fma", r, error, r)
    return r


def _estimate(b, y: Val) -> Val:
    """1 / y as the target's instruction estimates it, which LLVM knows for vectors of RVV's own kind: n registers are <vscale x 2n x float>."""
    target = b.fn.kernel.target
    n = 2 * max(1, y.lanes // target.lanes(32))
    ty, mangled = f"<vscale x {n} x float>", f"nxv{n}f32"
    own = b.call(f"llvm.vector.insert.{mangled}.{ir.mangle(y.ty)}", ty, [Val(ty, "poison"), y, const("i64", 0)])
    own = b.call(f"{target.estimate}.{mangled}.i64", ty, [Val(ty, "poison"), own, const("i64", 7), const("i64", y.lanes)])
    return b.call(f"llvm.vector.extract.{ir.mangle(y.ty)}.{mangled}", y.ty, [own, const("i64", 0)])


@in_float
def precise_div(b, op, x, y):
    """IEEE division (tl.div_rn)."""
    return b.fbin("fdiv", x, y, "")


@in_float
def remf(b, op, x, y):
    if x.elem == "double":
        return b.fbin("frem", x, y, "")
    if x.elem == "half":  # what is left is a number of f16
        return b.cast("fptrunc", wide.fmod(b, *[b.cast("fpext", v, "float") for v in (x, y)]), "half")
    return wide.fmod(b, x, y)


def high_product(signed: bool):
    """The high half of a product, by way of the double width: rule(b, x, y)."""
    extend = "sext" if signed else "zext"

    def rule(b, x, y):
        bits = ir.bits_of(x.elem)
        double = f"i{2 * bits}"
        p = b.mul(b.cast(extend, x, double), b.cast(extend, y, double))
        return b.cast("trunc", b.bin("lshr", p, const(double, bits)), x.elem)

    return rule


def mulhi(b, op, x, y):
    return high_product(False)(b, x, y)


def index_cast(extend: str):

    def rule(b, op, v):
        to = convert._reg(op.result.type.elem)
        return b.cast("trunc" if ir.bits_of(to) < ir.bits_of(v.elem) else extend, v, to)

    return rule


def poison(b, op):
    """A value that nobody may look at: zero is as good as any."""
    from ...llvm.elements import REGISTER
    return const(REGISTER[op.result.type.elem], 0)


@in_float
def clampf(b, op, x, lo, hi):
    names = ("maximum", "minimum") if op.attrs.get("propagateNan") == "all" else ("maxnum", "minnum")
    return b.intrinsic(names[1], b.intrinsic(names[0], x, lo), hi)



ELEMENTWISE = {
    "arith.addi": _int("add"), "arith.subi": _int("sub"), "arith.muli": _int("mul"),
    "arith.andi": _int("and"), "arith.ori": _int("or"), "arith.xori": _int("xor"),
    "arith.divsi": division.rule("sdiv"), "arith.remsi": division.rule("srem"), "arith.divui": division.rule("udiv"),
    "arith.remui": division.rule("urem"),
    "arith.shli": _shift("shl"), "arith.shrsi": _shift("ashr"), "arith.shrui": _shift("lshr"),
    "arith.maxsi": _minmax("smax"), "arith.minsi": _minmax("smin"), "arith.maxui": _minmax("umax"),
    "arith.minui": _minmax("umin"),
    "arith.addf": _float("fadd"), "arith.subf": _float("fsub"), "arith.mulf": _float("fmul"),
    "arith.divf": divf, "tt.precise_divf": precise_div, "arith.remf": remf, "arith.negf": negf,
    "arith.maxnumf": _float_minmax("maxnum"), "arith.minnumf": _float_minmax("minnum"),
    "arith.maximumf": _float_minmax("maximum"), "arith.minimumf": _float_minmax("minimum"),
    "triport.max": _passing_nan("ogt"), "triport.min": _passing_nan("olt"),
    "arith.cmpi": cmpi, "arith.cmpf": cmpf, "arith.select": select, "arith.constant": constant,
    "arith.ceildivsi": division.ceil_div, "arith.ceildivui": division.ceil_div_unsigned, "arith.floordivsi": division.floor_div,
    "arith.index_cast": index_cast("sext"), "arith.index_castui": index_cast("zext"),
    "tt.mulhiui": mulhi, "tt.clampf": clampf, "tt.approx_divf": divf, "ub.poison": poison,
}
