"""Expressions in sizes and numbers as C, for headers and messages; and their values, for who calls from Python."""

from __future__ import annotations

import ast
import operator

import sympy

_RELATIONS = {sympy.Eq: "==", sympy.Ne: "!=", sympy.StrictLessThan: "<", sympy.LessThan: "<=", sympy.StrictGreaterThan: ">", sympy.GreaterThan: ">="}
_BITS = {"BitwiseFn_bitwise_and": "&", "BitwiseFn_bitwise_or": "|", "BitwiseFn_bitwise_xor": "^", "LShift": "<<", "RShift": ">>"}
_NEGATED = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}


def c(e) -> str:
    """A C expression. `/` and `%` are between numbers that are not negative, or round as C does where they are."""
    return _c(sympy.sympify(e), 0)


def _c(e, strength: int) -> str:
    """strength: of the operator around: 3 a product, 2 a sum, 1 a relation, 0 none."""
    name = type(e).__name__

    def within(own: int, text: str) -> str:
        return f"({text})" if own < strength else text

    if isinstance(e, sympy.Symbol):
        return str(e)
    if e in (sympy.true, sympy.false):
        return str(int(bool(e)))
    if isinstance(e, sympy.Integer):
        return str(e) if e >= 0 else within(2, str(e))
    if isinstance(e, sympy.Float):
        return repr(float(e))
    if type(e) in _RELATIONS:
        return within(1, f"{_c(e.args[0], 2)} {_RELATIONS[type(e)]} {_c(e.args[1], 2)}")
    if isinstance(e, sympy.Not):
        inner = e.args[0]
        if type(inner) in _RELATIONS:
            return within(1, f"{_c(inner.args[0], 2)} {_NEGATED[_RELATIONS[type(inner)]]} {_c(inner.args[1], 2)}")
        return f"!({_c(inner, 0)})"
    if isinstance(e, (sympy.And, sympy.Or)):
        return within(0.5, (" && " if isinstance(e, sympy.And) else " || ").join(_c(a, 1) for a in e.args))
    if isinstance(e, sympy.Add):
        terms = sorted(e.args, key=lambda a: a.is_number)
        return within(2, " + ".join(_c(a, 2) for a in terms).replace("+ -", "- "))
    if isinstance(e, sympy.Mul):
        if e.args[0] == -1:
            return within(2, f"-{_c(sympy.Mul(*e.args[1:]), 3)}")
        return within(3, "*".join(_c(a, 3) for a in e.args))
    if isinstance(e, sympy.Pow) and isinstance(e.exp, sympy.Integer) and e.exp > 0:
        return within(3, "*".join([_c(e.base, 3)] * int(e.exp)))
    if name in ("Max", "Min"):
        first, *rest = (_c(a, 2) for a in e.args)
        for x in rest:
            first = f"({first} {'>' if name == 'Max' else '<'} {x} ? {first} : {x})"
        return first
    return _other(e, name, within)


def _other(e, name: str, within) -> str:
    args = e.args
    if name in ("FloorDiv", "CleanDiv"):
        return within(3, f"{_c(args[0], 3)}/{_c(args[1], 3.5)}")
    if name in ("FloatTrueDiv", "IntTrueDiv"):
        return within(3, f"(double){_c(args[0], 3.5)}/{_c(args[1], 3.5)}")
    if name in ("Mod", "PythonMod"):
        return within(3, f"{_c(args[0], 3)} % {_c(args[1], 3.5)}")
    if name in _BITS:
        return f"({_c(args[0], 3.5)} {_BITS[name]} {_c(args[1], 3.5)})"
    if name in ("ToFloat", "TruncToInt"):
        return f"({'double' if name == 'ToFloat' else 'int64_t'})({_c(args[0], 0)})"
    if name in ("FloatPow", "Pow"):
        return f"pow({_c(args[0], 0)}, {_c(args[1], 0)})"
    if name.startswith("OpaqueUnaryFn_"):
        return f"{name.removeprefix('OpaqueUnaryFn_')}({_c(args[0], 0)})"
    return str(e)


_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv, ast.Mod: operator.mod,
              ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor, ast.LShift: operator.lshift, ast.RShift: operator.rshift}
_COMPARED = {ast.Gt: operator.gt, ast.Lt: operator.lt}


def value(text: str, names: dict[str, int]) -> int:
    """The value of a size that `c` wrote, by its parameters' values. Raises ValueError for what is none."""
    def of(node) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.Name):
            return names[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](of(node.left), of(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -of(node.operand)
        raise ValueError(text)

    try:
        return of(ast.parse(_choices(text), mode="eval").body)
    except (SyntaxError, KeyError, ZeroDivisionError) as e:
        raise ValueError(f"{text}: {e}") from None


def _choices(text: str) -> str:
    if "?" in text:
        raise ValueError(text)
    return text
