"""Integer division. Where a CPU has no instruction for vectors of integers (x86, NEON), floating-point numbers are divided, and the quotient is exact all the same.

With n bits of x and y, 1/y and its product with x + 1/2 are off by two roundings: by less than x/y 2^(1-p) in all, p being the precision. (x + 1/2)/y is 1/(2y) or more away from
the next integer, so that for 2^n 2^(1-p) < 1/2 truncation gives the quotient: integers of 8 and 16 bits by f32 (p = 24), of 32 bits by f64 (p = 53).
"""

from __future__ import annotations

from ...llvm import ir
from ...llvm.ir import Val, const


def rule(opname: str):
    """The emission rule of sdiv, srem, udiv or urem.

    LLVM calls division by zero and INT_MIN / -1 undefined, and x86 traps on them. Masked lanes divide garbage, so the divisor is made harmless: x / 0 is x / 1, and by a signed -1
    numbers are negated."""

    def emit(b, op, x, y):
        n, harmless = max(x.lanes, y.lanes), isinstance(y.const, int) and y.const not in (0, -1)
        if harmless and isinstance(x.const, int):
            return _folded(b, opname, x, y)
        if n > 1 and _by_floats(b, x.elem, y):
            return _vector(b, opname, x, y, n)
        if harmless:
            return b.bin(opname, b.splat(x, n), b.splat(y, n))
        one, zero = const(y.elem, 1), const(y.elem, 0)
        bad = b.icmp("eq", y, zero)
        if opname[0] == "s":
            minus = b.icmp("eq", y, const(y.elem, -1))
            q = b.bin(opname, x, b.select(b.or_(bad, minus), one, y))
            return b.select(minus, b.sub(zero, x) if opname == "sdiv" else b.splat(zero, n), q)
        return b.bin(opname, x, b.select(bad, one, y))

    return emit


def _folded(b, opname, x: Val, y: Val) -> Val:
    if opname == "sdiv":
        q = abs(x.const) // abs(y.const)
        return const(x.elem, q if (x.const < 0) == (y.const < 0) else -q, x.lanes)
    return b.bin(opname, b.splat(x, y.lanes), b.splat(y, x.lanes))


def _by_floats(b, elem: str, y: Val) -> bool:
    """Constants of up to 32 bits are no division: LLVM multiplies vectors by an inverse of theirs, and shifts for powers of two of any size."""
    known = isinstance(y.const, int)
    power = known and abs(y.const) & (abs(y.const) - 1) == 0
    return ir.bits_of(elem) in b.fn.kernel.target.divided and not power and (not known or elem == "i64")


def _vector(b, opname: str, x: Val, y: Val, n: int) -> Val:
    signed, x = opname[0] == "s", b.splat(x, n)
    y = b.select(b.icmp("eq", y, 0), const(y.elem, 1), y)
    if x.elem == "i64":
        q, r = _of_64_bits(b, x, y, signed)
        return q if opname.endswith("div") else r
    q = _of_few_bits(b, x, y, signed)
    return q if opname.endswith("div") else b.sub(x, b.mul(q, y))


def _of_few_bits(b, x: Val, y: Val, signed: bool) -> Val:
    bits = ir.bits_of(x.elem)
    real = "double" if bits == 32 else "float"
    to_real, to_int = ("sitofp", "fptosi") if signed else ("uitofp", "fptoui")
    dividend, divisor = b.cast(to_real, x, real), b.cast(to_real, y, real)
    if y.lanes == 1:  # one reciprocal, outside of the loop
        half = const(real, 0.5, x.lanes)
        half = b.intrinsic("copysign", half, dividend) if signed else half
        q = b.fbin("fmul", b.fbin("fadd", dividend, half, ""), b.fbin("fdiv", const(real, 1.0), divisor, ""), "")
    else:
        q = b.fbin("fdiv", dividend, divisor, "")  # rounded once: to go up to an integer it would have to be nearer than 1/y, and that is x + y >= 2^p
    return b.cast("trunc", b.cast(to_int, q, "i32"), x.elem)


def _of_64_bits(b, x: Val, y: Val, signed: bool) -> tuple[Val, Val]:
    """Quotient and remainder of magnitudes by a reciprocal that is too small by 2^-50 to 2^-49: a first quotient is at most 2^15 short of the whole, one of what then remains at most 1."""
    zero = const("i64", 0)
    minus_x, minus_y = b.icmp("slt", x, zero), b.icmp("slt", y, zero)
    if signed:
        x, y = b.select(minus_x, b.sub(zero, x), x), b.select(minus_y, b.sub(zero, y), y)
    inverse = b.fbin("fmul", b.fbin("fdiv", const("double", 1.0), b.cast("uitofp", y, "double"), ""), const("double", 1 - 2.0**-50), "")

    def short(value):
        return b.cast("fptoui", b.fbin("fmul", b.cast("uitofp", value, "double"), inverse, ""), "i64")

    q = short(x)
    r = b.sub(x, b.mul(q, y))
    more = short(r)
    q, r = b.add(q, more), b.sub(r, b.mul(more, y))
    over = b.icmp("uge", r, y)
    q, r = b.select(over, b.add(q, const("i64", 1)), q), b.select(over, b.sub(r, y), r)
    if signed:
        q, r = b.select(b.xor(minus_x, minus_y), b.sub(zero, q), q), b.select(minus_x, b.sub(zero, r), r)
    return q, r


def floor_div(b, op, x, y):
    """Signed division rounded down."""
    q, r = rule("sdiv")(b, op, x, y), rule("srem")(b, op, x, y)
    zero = const(x.elem, 0)
    inexact = b.and_(b.icmp("ne", r, zero), b.icmp("ne", b.icmp("slt", r, zero), b.icmp("slt", y, zero)))
    return b.select(inexact, b.sub(q, const(x.elem, 1)), q)


def ceil_div(b, op, x, y):
    """Signed division rounded up."""
    q, r = rule("sdiv")(b, op, x, y), rule("srem")(b, op, x, y)
    zero = const(x.elem, 0)
    inexact = b.and_(b.icmp("ne", r, zero), b.icmp("eq", b.icmp("slt", r, zero), b.icmp("slt", y, zero)))
    return b.select(inexact, b.add(q, const(x.elem, 1)), q)


def ceil_div_unsigned(b, op, x, y):
    """Unsigned division rounded up."""
    q, r = rule("udiv")(b, op, x, y), rule("urem")(b, op, x, y)
    return b.select(b.icmp("ne", r, const(x.elem, 0)), b.add(q, const(x.elem, 1)), q)
