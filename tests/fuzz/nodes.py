"""Expressions put together by hand: numbers, and arithmetic that follows what is known of its operands."""

from __future__ import annotations

import math

from .program import BITS, INTS, SIGNED, Expr


def numel(shape) -> int:
    return math.prod(shape)


def const(value, dtype, shape=(), literal=False) -> Expr:
    return Expr("const", (), dtype, shape, {"value": value, "literal": literal}, (value, value))


def literal(e: Expr) -> bool:
    """Whether an expression is written as a plain number."""
    return e.op == "const" and e.attr["literal"]


def arith(op, x: Expr, y: Expr) -> Expr:
    """x op y of one type; spans are followed, shapes broadcast."""
    if op == "add" and literal(x) and literal(y):
        return const(x.attr["value"] + y.attr["value"], x.dtype, (), True)
    span = None
    if x.span and y.span:
        (a, b), (c, d) = x.span, y.span
        if op == "add":
            span = a + c, b + d
        elif op == "sub":
            span = a - d, b - c
        elif op == "mul":
            products = a * c, a * d, b * c, b * d
            span = min(products), max(products)
        elif op in ("min", "max"):
            fn = min if op == "min" else max
            span = fn(a, c), fn(b, d)
        if span and x.dtype in INTS:
            low = -(1 << BITS[x.dtype] - 1) if x.dtype in SIGNED else 0
            high = (1 << BITS[x.dtype] - (x.dtype in SIGNED)) - 1
            span = span if low <= span[0] and span[1] <= high else None
    if op == "and" and y.span and y.op == "const" and y.span[0] >= 0:
        span = 0, y.span[1]
    shape = broadcast_shape(x.shape, y.shape)
    return Expr(op, (x, y), x.dtype, shape, None, span)


def broadcast_shape(a, b):
    if not a or not b:
        return a or b
    return tuple(max(x, y) for x, y in zip(a, b))
