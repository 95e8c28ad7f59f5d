"""Expressions in sizes and numbers (sympy, as torch's symbolic shapes have them) as LLVM IR: whole ones 64 bits wide, others as doubles."""

from __future__ import annotations

import functools

import sympy

from ..base import Unsupported
from ..cpu.llvm.ir import Builder, Val, const, i64

_RELATIONS = {sympy.Eq: "eq", sympy.Ne: "ne", sympy.StrictLessThan: "slt", sympy.LessThan: "sle", sympy.StrictGreaterThan: "sgt",
              sympy.GreaterThan: "sge"}
_BITS = {"BitwiseFn_bitwise_and": "and", "BitwiseFn_bitwise_or": "or", "BitwiseFn_bitwise_xor": "xor", "LShift": "shl", "RShift": "ashr"}
#: whole numbers made of doubles: what C's mathematical library calls it; Python's round, too, goes to the even one of two
_ROUNDED = {"CeilToInt": "ceil", "FloorToInt": "floor", "RoundToInt": "rint", "TruncToInt": "trunc"}
_FLOATS = ("ToFloat", "FloatTrueDiv", "IntTrueDiv", "FloatPow")


def is_float(e) -> bool:
    """Is an expression's value a double, no whole number?"""
    if isinstance(e, sympy.Symbol):
        return e.is_integer is not True
    name = type(e).__name__
    if isinstance(e, sympy.Float) or name in _FLOATS or name.startswith("OpaqueUnaryFn_"):
        return True
    return isinstance(e, (sympy.Add, sympy.Mul, sympy.Pow, sympy.Max, sympy.Min)) and any(map(is_float, e.args))


class Emitter:
    """Writes what computes expressions with `b`; `names`: symbol -> the value that it has."""

    def __init__(self, names: dict, b: Builder):
        self.names, self.b = dict(names), b
        self.known: dict = {}
        self.overflows: list[Val] = []  # i1: did a product or a rounded number not fit 64 bits, was a divisor 0?

    def value(self, e) -> Val:
        """The i64 (for a condition: i1) that has the value of an expression. Divisions round down, as Python's do."""
        if isinstance(e, (int, sympy.Integer)):
            return i64(int(e))
        if isinstance(e, sympy.Symbol):
            return self.names[e]
        if e not in self.known:
            self.known[e] = self._compute(e)
        return self.known[e]

    def _compute(self, e) -> Val:
        b, name = self.b, type(e).__name__
        if isinstance(e, sympy.Mul) and all(a.is_integer is not False for a in e.args):
            return self._product(e.args)
        if isinstance(e, sympy.Pow) and isinstance(e.exp, sympy.Integer) and 0 < e.exp < 8:
            return self._product([e.base] * int(e.exp))
        if name in ("FloorDiv", "CleanDiv", "IntTrueDiv"):
            return self._floor(*map(self.value, e.args))[0]
        if name in ("Mod", "PythonMod"):
            return self._floor(*map(self.value, e.args))[1]
        if type(e) in _RELATIONS and any(map(is_float, e.args)):
            kind = _RELATIONS[type(e)].replace("s", "")
            return b.fcmp(("u" if kind == "ne" else "o") + kind, *map(self.real, e.args))
        if name in _ROUNDED:
            d = self._rounded(e)
            none = b.not_(b.fcmp("olt", b.intrinsic("fabs", d), const("double", 2.0**63)))
            self.overflows.append(none)
            return b.cast("fptosi", b.select(none, const("double", 0.0), d), "i64")
        if name == "Abs":
            x = self.value(e.args[0])
            return b.smax(x, b.sub(i64(0), x))
        if name in _BITS:
            return b.bin(_BITS[name], *map(self.value, e.args))
        if type(e) in _RELATIONS:
            return b.icmp(_RELATIONS[type(e)], *map(self.value, e.args))
        if isinstance(e, sympy.Not):
            return b.not_(self.value(e.args[0]))
        joined = {"Add": b.add, "Max": b.smax, "Min": b.smin, "And": b.and_, "Or": b.or_}.get(name)
        if joined is None:
            raise Unsupported(f"a size is {e}, and a bundle computes with sums, products, divisions, minima, maxima and rounded quotients of whole numbers; "
                              "int(...) of it fixes it, which the header then says")
        return functools.reduce(joined, map(self.value, e.args))

    def real(self, e) -> Val:
        """The double that has the value of an expression."""
        if not is_float(e):
            return self.b.cast("sitofp", self.value(e), "double")
        if isinstance(e, sympy.Symbol):
            return self.names[e]
        key = "double", e
        if key not in self.known:
            self.known[key] = self._real(e)
        return self.known[key]

    def _real(self, e) -> Val:
        b, name = self.b, type(e).__name__
        if isinstance(e, sympy.Float):
            return const("double", float(e))
        if name == "ToFloat" and type(e.args[0]).__name__ in _ROUNDED:
            return self._rounded(e.args[0])  # which may be larger than a whole number of 64 bits
        args = list(map(self.real, e.args))
        if name == "ToFloat":
            return args[0]
        if name in ("FloatTrueDiv", "IntTrueDiv"):
            self.overflows.append(b.fcmp("oeq", args[1], const("double", 0.0)))  # Python refuses it
            return b.fbin("fdiv", *args, "")
        if name in ("FloatPow", "Pow"):
            return b.call("pow", "double", args)
        if name.startswith("OpaqueUnaryFn_"):
            return b.call(name.removeprefix("OpaqueUnaryFn_"), "double", args)
        if name in ("Max", "Min"):
            return functools.reduce(lambda x, y: b.call("fmax" if name == "Max" else "fmin", "double", [x, y]), args)
        how = {"Add": "fadd", "Mul": "fmul"}.get(name)
        if how is None:
            raise Unsupported(f"a number is {e}, and a bundle computes with sums, products, quotients, powers and roots; float(...) of it fixes it, "
                              "which the header then says")
        return functools.reduce(lambda x, y: b.fbin(how, x, y, ""), args)

    def _rounded(self, e) -> Val:
        """The double that a rounding makes."""
        return self.b.call(_ROUNDED[type(e).__name__], "double", [self.real(e.args[0])])

    def _product(self, args) -> Val:
        first, *rest = map(self.value, args)
        for x in rest:
            first, over = self.b.parts(self.b.call("llvm.smul.with.overflow.i64", "{ i64, i1 }", [first, x]))
            self.overflows.append(over)
        return first

    def _floor(self, x: Val, y: Val) -> tuple[Val, Val]:
        """(quotient rounded down, remainder of the divisor's sign)."""
        b = self.b
        if y.const is None:
            none = b.icmp("eq", y, 0)
            self.overflows.append(none)
            y = b.select(none, i64(1), y)
        q, r = b.bin("sdiv", x, y), b.bin("srem", x, y)
        off = b.and_(b.icmp("ne", r, 0), b.icmp("slt", b.xor(r, y), 0))
        return b.sub(q, b.cast("zext", off, "i64")), b.select(off, b.add(r, y), r)
