"""Expressions in sizes and numbers as C, for headers and messages; and their values, for who calls from Python."""

from __future__ import annotations

import math
import operator
import re

import sympy

_RELATIONS = {sympy.Eq: "==", sympy.Ne: "!=", sympy.StrictLessThan: "<", sympy.LessThan: "<=", sympy.StrictGreaterThan: ">", sympy.GreaterThan: ">="}
_BITS = {"BitwiseFn_bitwise_and": "&", "BitwiseFn_bitwise_or": "|", "BitwiseFn_bitwise_xor": "^", "LShift": "<<", "RShift": ">>"}
_NEGATED = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}


def c(e, sizes=frozenset()) -> str:
    """A C expression with the value of `e`, whose whole-number divisions round down, as Python's do. sizes: symbols that are never negative; where they show that nothing divided is, it is
    divided as C does, else that is made up for."""
    return _c(sympy.sympify(e), 0, sizes)


def _least(e, sizes) -> int | None:
    """What a whole number is at least, as far as it is seen; None where it is not."""
    if isinstance(e, sympy.Integer):
        return int(e)
    if isinstance(e, sympy.Symbol):
        return 0 if e in sizes else None
    least = [_least(a, sizes) for a in e.args]
    name = type(e).__name__
    if name == "Max":
        return max((x for x in least if x is not None), default=None)
    if name == "Abs":
        return 0
    if name in ("Mod", "PythonMod"):
        return 0 if least[1] is not None and least[1] > 0 else None
    if not least or None in least:
        return None
    if name == "Min":
        return min(least)
    if isinstance(e, sympy.Add):
        return sum(least)
    if min(least) >= 0 and (isinstance(e, (sympy.Mul, sympy.Pow)) or name in ("FloorDiv", "CleanDiv")):
        return math.prod(least) if isinstance(e, sympy.Mul) else 0
    return None


def _c(e, strength: float, sizes) -> str:
    """strength: of the operator around: 3 a product, 2 a sum, 1 a relation, 0 none; a half more where what is there stands behind it."""
    name = type(e).__name__

    def within(own: float, text: str) -> str:
        return f"({text})" if own < strength else text

    def of(x, around: float) -> str:
        return _c(x, around, sizes)

    if isinstance(e, sympy.Symbol):
        return str(e)
    if e in (sympy.true, sympy.false):
        return str(int(bool(e)))
    if isinstance(e, sympy.Integer):
        return str(e) if e >= 0 else within(2, str(e))
    if isinstance(e, sympy.Float):
        return repr(float(e))
    if type(e) in _RELATIONS:
        return within(1, f"{of(e.args[0], 2)} {_RELATIONS[type(e)]} {of(e.args[1], 2)}")
    if isinstance(e, sympy.Not):
        inner = e.args[0]
        if type(inner) in _RELATIONS:
            return within(1, f"{of(inner.args[0], 2)} {_NEGATED[_RELATIONS[type(inner)]]} {of(inner.args[1], 2)}")
        return f"!({of(inner, 0)})"
    if isinstance(e, (sympy.And, sympy.Or)):
        return within(0.5, (" && " if isinstance(e, sympy.And) else " || ").join(of(a, 1) for a in e.args))
    if isinstance(e, sympy.Add):
        terms = sorted(e.args, key=lambda a: a.is_number)
        return within(2, " + ".join(of(a, 2) for a in terms).replace("+ -", "- "))
    if isinstance(e, sympy.Mul):
        if e.args[0] == -1:
            return within(2, f"-{of(sympy.Mul(*e.args[1:]), 3.5)}")
        first, *rest = sorted(e.args, key=lambda a: type(a).__name__ not in ("FloorDiv", "CleanDiv"))
        return within(3, "*".join([of(first, 3), *(of(a, 3.5) for a in rest)]))
    if isinstance(e, sympy.Pow) and isinstance(e.exp, sympy.Integer) and e.exp > 0:
        return within(3, "*".join([of(e.base, 3.5)] * int(e.exp)))
    if name in ("Max", "Min"):
        first, *rest = (of(a, 2) for a in e.args)
        for x in rest:
            first = f"({first} {'>' if name == 'Max' else '<'} {x} ? {first} : {x})"
        return first
    if name == "Abs":
        x = of(e.args[0], 2)
        return f"({x} < 0 ? -({x}) : {x})"
    return _other(e, name, within, of, sizes)


def _other(e, name: str, within, of, sizes) -> str:
    args = e.args
    if name in ("FloorDiv", "CleanDiv", "Mod", "PythonMod"):
        a, b = of(args[0], 3), of(args[1], 3.5)
        quotient = name.endswith("Div")
        least = [_least(x, sizes) for x in args]
        if None not in least and least[0] >= 0 and least[1] >= 0 or name == "CleanDiv":
            return within(3, f"{a}/{b}" if quotient else f"{a} % {b}")
        if quotient and isinstance(args[1], sympy.Integer) and args[1] > 0 and (opposite := _least(-args[0], sizes)) is not None and opposite >= 0:
            return within(2, f"-{of(type(e)(args[1] - 1 - args[0], args[1]), 3.5)}")
        negative = f"{of(args[0], 2)} < 0" if least[1] is not None and least[1] >= 0 else f"({of(args[0], 2)} < 0) != ({of(args[1], 2)} < 0)"
        rounds = f"({a} % {b} != 0 && {negative})"  # where C rounds up
        return f"({a}/{b} - {rounds})" if quotient else f"({a} % {b} + {rounds}*{b})"
    if name in ("FloatTrueDiv", "IntTrueDiv"):
        return within(3, f"(double){of(args[0], 3.5)}/{of(args[1], 3.5)}")
    if name in _BITS:
        return f"({of(args[0], 3.5)} {_BITS[name]} {of(args[1], 3.5)})"
    if name in ("ToFloat", "TruncToInt"):
        return f"({'double' if name == 'ToFloat' else 'int64_t'})({of(args[0], 0)})"
    if name in ("FloatPow", "Pow"):
        return f"pow({of(args[0], 0)}, {of(args[1], 0)})"
    if name.startswith("OpaqueUnaryFn_"):
        return f"{name.removeprefix('OpaqueUnaryFn_')}({of(args[0], 0)})"
    return str(e)


#: C's operators between whole numbers, by how strongly they bind
_LEVELS = (("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", "<=", ">", ">="), ("<<", ">>"), ("+", "-"), ("*", "/", "%"))
_TOKENS = re.compile(r"\s*(?:(\d+)(?![\w.])|([A-Za-z_]\w*)|(\|\||&&|==|!=|<=|>=|<<|>>|[-+*/%<>|&^!?:()]))")
_PLAIN = {"|": operator.or_, "^": operator.xor, "&": operator.and_, "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
          "<<": operator.lshift, ">>": operator.rshift, "+": operator.add, "-": operator.sub, "*": operator.mul}


def value(text: str, names: dict[str, int]) -> int:
    """The value that C gives a size that `c` wrote, by its parameters' values: whole numbers, names, brackets, C's operators and its choice. Raises ValueError for what is none."""
    try:
        return _Reader(text, names).value()
    except (KeyError, ZeroDivisionError, IndexError, RecursionError, MemoryError, OverflowError) as e:
        raise ValueError(f"{text}: {type(e).__name__}: {e}") from None


class _Reader:
    """Reads a C expression, and computes as it goes: both sides of a choice, as what was written here has no side that cannot be."""

    def __init__(self, text: str, names: dict[str, int]):
        self.text, self.names, self.tokens, at = text, names, [], 0
        while text[at:].strip():
            found = _TOKENS.match(text, at)
            if found is None:
                raise ValueError(text)
            self.tokens.append(found)
            at = found.end()
        self.at = 0

    def value(self) -> int:
        made = self._choice()
        if self.at < len(self.tokens):
            raise ValueError(self.text)
        return int(made)

    def _next(self, *wanted: str) -> str | None:
        """The next sign, which is passed, if it is one of `wanted`."""
        if self.at < len(self.tokens) and (sign := self.tokens[self.at][3]) in wanted:
            self.at += 1
            return sign
        return None

    def _need(self, sign: str):
        if self._next(sign) is None:
            raise ValueError(self.text)

    def _choice(self) -> int:
        condition = self._level(0)
        if self._next("?") is None:
            return condition
        then = self._choice()
        self._need(":")
        other = self._choice()
        return then if condition else other

    def _level(self, n: int) -> int:
        if n == len(_LEVELS):
            return self._unary()
        made = self._level(n + 1)
        while (sign := self._next(*_LEVELS[n])) is not None:
            made = self._joined(sign, made, self._level(n + 1))
        return made

    def _joined(self, sign: str, a: int, b: int) -> int:
        if sign in ("/", "%"):
            quotient = abs(a) // abs(b) * (-1 if (a < 0) != (b < 0) else 1)
            return quotient if sign == "/" else a - quotient * b
        if sign in ("||", "&&"):
            return int(bool(a) or bool(b)) if sign == "||" else int(bool(a) and bool(b))
        if sign in ("<<", ">>") and not 0 <= b < 64:
            raise ValueError(self.text)
        return int(_PLAIN[sign](a, b))

    def _unary(self) -> int:
        if self._next("-"):
            return -self._unary()
        if self._next("!"):
            return int(not self._unary())
        if self._next("("):
            made = self._choice()
            self._need(")")
            return made
        sign = self.tokens[self.at]
        self.at += 1
        if sign[1]:
            return int(sign[1])
        if sign[2]:
            return self.names[sign[2]]
        raise ValueError(self.text)
