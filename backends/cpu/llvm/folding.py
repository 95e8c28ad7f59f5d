"""What an integer operation gives whose operands are known, or enough of them."""

from __future__ import annotations

from .values import FLOATS, Val, bits_of, const


def _unsigned(v: Val) -> int:
    return v.const & ((1 << bits_of(v.elem)) - 1)


COMPARE = {
    "eq": lambda a, b: a.const == b.const, "ne": lambda a, b: a.const != b.const,
    "slt": lambda a, b: a.const < b.const, "sle": lambda a, b: a.const <= b.const,
    "sgt": lambda a, b: a.const > b.const, "sge": lambda a, b: a.const >= b.const,
    "ult": lambda a, b: _unsigned(a) < _unsigned(b), "ule": lambda a, b: _unsigned(a) <= _unsigned(b),
    "ugt": lambda a, b: _unsigned(a) > _unsigned(b), "uge": lambda a, b: _unsigned(a) >= _unsigned(b),
}

_INT = {"add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "and": lambda x, y: x & y,
        "or": lambda x, y: x | y, "xor": lambda x, y: x ^ y}


def folded(opname: str, a: Val, b: Val) -> Val | None:
    """The result of an integer operation whose operands say enough, else None."""
    if opname not in _INT:
        return None
    ca, cb = a.const, b.const
    if ca is None and cb is None:
        return None
    if a.elem in FLOATS:
        return None
    n = max(a.lanes, b.lanes)
    if ca is not None and cb is not None:
        if a.elem == "i1":
            return const("i1", _INT[opname](int(ca), int(cb)) & 1, n)
        return const(a.elem, _INT[opname](ca, cb), n)
    c, other = (ca, b) if ca is not None else (cb, a)
    wide = other.lanes == n
    ones = (c is True) if a.elem == "i1" else c == -1
    zero = not c
    if opname == "and":
        if zero:
            return const(a.elem, 0, n)
        if ones and wide:
            return other
    elif opname == "or":
        if ones:
            return const(a.elem, c, n)
        if zero and wide:
            return other
    elif opname in ("add", "xor") and zero and wide:
        return other
    elif opname == "sub" and cb is not None and zero and wide:
        return other
    elif opname == "mul" and a.elem != "i1":
        if zero:
            return const(a.elem, 0, n)
        if c == 1 and wide:
            return other
    return None
