"""Expressions in sizes (sympy, as torch's symbolic shapes have them) as LLVM IR, 64 bits wide."""

from __future__ import annotations

import sympy

from ..base import Unsupported

_RELATIONS = {sympy.Eq: "eq", sympy.Ne: "ne", sympy.StrictLessThan: "slt", sympy.LessThan: "sle", sympy.StrictGreaterThan: "sgt",
              sympy.GreaterThan: "sge"}


class Emitter:
    """Appends the instructions that compute expressions to `lines`; `names`: symbol -> the IR value that it has."""

    def __init__(self, names: dict, lines: list[str]):
        self.names, self.lines = dict(names), lines
        self.known: dict = {}
        self.overflows: list[str] = []  # i1: did a product not fit 64 bits, was a divisor 0?
        self.count = 0

    def emit(self, text: str) -> str:
        self.count += 1
        self.lines.append(f"  %e{self.count} = {text}")
        return f"%e{self.count}"

    def value(self, e) -> str:
        """The i64 (for a condition: i1) that has the value of an expression. Divisions round down, as Python's do."""
        if isinstance(e, sympy.Integer):
            return str(int(e))
        if isinstance(e, sympy.Symbol):
            return self.names[e]
        if e not in self.known:
            self.known[e] = self._compute(e)
        return self.known[e]

    def _compute(self, e) -> str:
        name = type(e).__name__
        if isinstance(e, sympy.Add):
            first, *rest = map(self.value, e.args)
            for x in rest:
                first = self.emit(f"add i64 {first}, {x}")
            return first
        if isinstance(e, sympy.Mul) and all(a.is_integer is not False for a in e.args):
            return self._product(e.args)
        if isinstance(e, sympy.Pow) and isinstance(e.exp, sympy.Integer) and 0 < e.exp < 8:
            return self._product([e.base] * int(e.exp))
        if name in ("FloorDiv", "CleanDiv", "IntTrueDiv"):
            return self._floor(*map(self.value, e.args))[0]
        if name in ("Mod", "PythonMod"):
            return self._floor(*map(self.value, e.args))[1]
        if name in ("Max", "Min"):
            first, *rest = map(self.value, e.args)
            for x in rest:
                first = self.emit(f"call i64 @llvm.s{name.lower()}.i64(i64 {first}, i64 {x})")
            return first
        if type(e) in _RELATIONS:
            x, y = map(self.value, e.args)
            return self.emit(f"icmp {_RELATIONS[type(e)]} i64 {x}, {y}")
        if isinstance(e, (sympy.And, sympy.Or)):
            first, *rest = map(self.value, e.args)
            for x in rest:
                first = self.emit(f"{'and' if isinstance(e, sympy.And) else 'or'} i1 {first}, {x}")
            return first
        if isinstance(e, sympy.Not):
            return self.emit(f"xor i1 {self.value(e.args[0])}, true")
        raise Unsupported(f"a size is {e}, and a bundle computes with sums, products, divisions, minima and maxima of whole numbers")

    def _product(self, args) -> str:
        first, *rest = map(self.value, args)
        for x in rest:
            both = self.emit(f"call {{ i64, i1 }} @llvm.smul.with.overflow.i64(i64 {first}, i64 {x})")
            first = self.emit(f"extractvalue {{ i64, i1 }} {both}, 0")
            self.overflows.append(self.emit(f"extractvalue {{ i64, i1 }} {both}, 1"))
        return first

    def _floor(self, x: str, y: str) -> tuple[str, str]:
        """(quotient rounded down, remainder of the divisor's sign)."""
        if y.startswith("%"):
            none = self.emit(f"icmp eq i64 {y}, 0")
            self.overflows.append(none)
            y = self.emit(f"select i1 {none}, i64 1, i64 {y}")
        q, r = self.emit(f"sdiv i64 {x}, {y}"), self.emit(f"srem i64 {x}, {y}")
        signs = self.emit(f"xor i64 {r}, {y}")
        off = self.emit(f"and i1 {self.emit(f'icmp ne i64 {r}, 0')}, {self.emit(f'icmp slt i64 {signs}, 0')}")
        less = self.emit(f"sub i64 {q}, {self.emit(f'zext i1 {off} to i64')}")
        return less, self.emit(f"select i1 {off}, i64 {self.emit(f'add i64 {r}, {y}')}, i64 {r}")
