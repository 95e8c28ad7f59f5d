"""Random expressions: `Values.value(dtype, shape, depth)` and what it is made of."""

from __future__ import annotations

import math
import random
from typing import NamedTuple

from .nodes import arith, broadcast_shape, const, literal, numel
from .program import BITS, EXACT, FLOATS, INTS, SIGNED, Expr

#: floats in variables and memory are integers up to this size
CAP = {"float16": 30, "bfloat16": 12, "float32": 1000, "float64": 100000}


class Var(NamedTuple):
    """A name in scope. `fixed`: nothing may assign it."""

    name: str
    dtype: str
    shape: tuple
    span: tuple | None = None
    fixed: bool = False
    buffer: str | None = None
    raw: bool = False  # an argument, which the compiler may know


class Values:
    """`scope` holds the variables that an expression may use."""

    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        self.scope: list[Var] = []
        self.dear = 4  # sorts, products and the like that a program may still have
        self.pure = False  # within a function, which has no memory and no arguments of the kernel
        self.names = 0
        self.prologue: dict = {}  # what the kernel computes first: key -> (name, expression)

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def pick(self, table: dict):
        """A key, by its weight."""
        return self.rng.choices(list(table), list(table.values()))[0]

    def name(self, stem="x") -> str:
        self.names += 1
        return f"{stem}{self.names}"

    # -- leaves

    def var(self, v: Var) -> Expr:
        if v.raw:
            e = Expr("argument", (), v.dtype, (), v.name, v.span)
            return self.shared("typed", lambda: Expr("typed", (e,), v.dtype, (), None, v.span), v.name)
        return Expr("var", (), v.dtype, v.shape, v.name, v.span)

    def known(self, dtype, shape) -> list[Var]:
        return [v for v in self.scope if v.dtype == dtype and v.shape == shape]

    def constant(self, dtype, shape=(), literal=False) -> Expr:
        r = self.rng
        if dtype == "int1":
            return const(r.random() < 0.5, dtype, shape)
        if dtype in FLOATS:
            return const(float(r.randint(-6, 6)), dtype, shape, literal)
        low = -(1 << BITS[dtype] - 1) if dtype in SIGNED else 0
        high = (1 << BITS[dtype] - (dtype in SIGNED)) - 1
        value = self.pick({r.randint(max(low, -9), 9): 6, r.randint(low, high): 2, 1 << r.randint(0, BITS[dtype] - 2): 1, low: 0.3, high: 0.5})
        return const(value, dtype, shape, literal)

    def range(self, shape, axis) -> Expr:
        """The index along one axis, of a shape with ones elsewhere."""
        others = tuple(k for k in range(len(shape)) if k != axis)

        def make():
            e = Expr("range", (), "int32", (shape[axis],), 0, (0, shape[axis] - 1))
            thin = tuple(n if k == axis else 1 for k, n in enumerate(shape))
            return Expr("expand", (e,), "int32", thin, {"axes": others}, e.span) if others else e

        return self.shared("range", make, shape[axis], axis, len(shape))

    def shared(self, stem, make, *key) -> Expr:
        """An expression that the kernel's first lines give a name, as people write kernels; in functions, as it is."""
        if self.pure or self.chance(0.05):
            return make()
        key = stem, *key
        if key not in self.prologue:
            e = make()
            self.prologue[key] = self.name(stem[0]), e
        name, e = self.prologue[key]
        return Expr("var", (), e.dtype, e.shape, name, e.span)

    def affine(self, shape, strides, offset=0) -> Expr:
        """sum of index x stride, plus offset, in int32."""
        out = None
        for k, step in enumerate(strides):
            if step:
                term = self.range(shape, k)
                term = term if step == 1 else arith("mul", term, const(step, "int32", (), True))
                out = term if out is None else arith("add", out, term)
        if out is None:
            return const(offset, "int32", shape)
        if offset:
            out = arith("add", out, const(offset, "int32", (), True))
        return out if out.shape == shape else self.spread(out, shape)

    def row_major(self, shape) -> list[int]:
        return [numel(shape[k + 1:]) for k in range(len(shape))]

    def spread(self, e: Expr, shape) -> Expr:
        """e, broadcast to a shape."""
        return e if e.shape == shape else Expr("broadcast", (e,), e.dtype, shape, None, e.span)

    def leaf(self, dtype, shape, depth=0) -> Expr:
        known = self.known(dtype, shape)
        if known and self.chance(0.75):
            return self.var(self.rng.choice(known))
        if not self.pure and self.chance(0.5):
            return self.load(dtype, shape)
        others = [v for v in self.scope if v.shape == shape and v.dtype not in (dtype, "pointer")]
        if others and self.chance(0.6):
            return self.cast(self.var(self.rng.choice(others)), dtype)
        if shape and self.chance(0.3):
            return self.spread(self.leaf(dtype, ()), shape)
        if shape and self.chance(0.5):
            start = self.rng.choice([0, 0, 0, 1, 5, -3])
            e = self.affine(shape, self.row_major(shape), start if numel(shape) < 1000 else 0)
            return self.cast(e, dtype)
        return self.constant(dtype, shape)

    # -- types

    def cast(self, e: Expr, dtype) -> Expr:
        """e in another type: integers wrap, floats are first brought into the range."""
        if literal(e) and dtype in INTS:
            e = const(e.attr["value"], e.dtype)
        if e.dtype == dtype:
            return e
        if e.dtype == "int1" or dtype == "int1":
            return Expr("cast", (e,), dtype, e.shape, None, None if dtype == "int1" else (0, 1))
        if dtype in FLOATS:
            if e.dtype in FLOATS:
                e = self.fit(e, min(EXACT[dtype], EXACT[e.dtype]))
            elif not (e.span and max(map(abs, e.span)) <= EXACT[dtype]):
                if BITS[e.dtype] == 8 or BITS[e.dtype] == 16 and EXACT[dtype] > 1 << 16:
                    bits = BITS[e.dtype]
                    span = (-(1 << bits - 1), (1 << bits - 1) - 1) if e.dtype in SIGNED else (0, (1 << bits) - 1)
                    return Expr("cast", (e,), dtype, e.shape, None, span)
                if self.chance(0.5):
                    e = arith("and", e, const(self.rng.choice([1, 3, 7, 15, 63]), e.dtype, (), self.chance(0.5)))
                else:
                    m = self.rng.choice([3, 5, 10, 17])
                    rest = Expr("rem", (e, const(m, e.dtype, (), True)), e.dtype, e.shape, None, (1 - m if e.dtype in SIGNED else 0, m - 1))
                    e = rest
            return Expr("cast", (e,), dtype, e.shape, None, e.span)
        if e.dtype in FLOATS:
            if dtype not in SIGNED:
                e = Expr("abs", (self.fit(e, 200),), e.dtype, e.shape, None, (0, 200))
            else:
                e = self.fit(e, 100)
            return Expr("cast", (e,), dtype, e.shape, None, e.span)
        low = -(1 << BITS[dtype] - 1) if dtype in SIGNED else 0
        high = (1 << BITS[dtype] - (dtype in SIGNED)) - 1
        keeps = e.span and low <= e.span[0] and e.span[1] <= high
        return Expr("cast", (e,), dtype, e.shape, None, e.span if keeps else None)

    def fit(self, e: Expr, cap: int) -> Expr:
        """A float within -cap to cap."""
        if e.span and max(map(abs, e.span)) <= cap:
            return e
        lo, hi = -float(cap), float(cap)
        if e.dtype in ("float32", "float64") and self.chance(0.2):
            bounds = const(lo, e.dtype, e.shape), const(hi, e.dtype, e.shape)
            return Expr("clamp", (e, *bounds), e.dtype, e.shape, None, (-cap, cap))
        if self.chance(0.2):
            on = Expr("le", (Expr("abs", (e,), e.dtype, e.shape), const(hi, e.dtype, (), True)), "int1", e.shape)
            return Expr("where", (on, e, const(float(self.rng.randint(-3, 3)), e.dtype, e.shape)), e.dtype, e.shape, None, (-cap, cap))
        e = Expr("max", (e, const(lo, e.dtype, (), True)), e.dtype, e.shape)
        return Expr("min", (e, const(hi, e.dtype, (), True)), e.dtype, e.shape, None, (-cap, cap))

    def updated(self, v: Var, e: Expr, op="add") -> Expr:
        """v op e, as v may hold it."""
        if v.dtype not in FLOATS:
            return arith(op, self.var(v), e)
        return self.fit(arith(op, self.var(v), self.fit(e, EXACT[v.dtype] // 2)), CAP[v.dtype])

    def some_type(self, but=()) -> str:
        return self.pick({t: w for t, w in self.types.items() if t not in but} or {"int32": 1})

    # -- expressions

    def value(self, dtype, shape, depth=2) -> Expr:
        """A random value. Floats are exact, but may be larger than CAP."""
        if dtype == "int1":
            return self.spread(self.mask(shape) if shape else self.condition(depth), shape)
        if depth <= 0 or self.chance(0.12):
            return self.leaf(dtype, shape)
        kinds = {"binary": 10, "unary": 2, "where": 3, "cast_from": 4, "leaf": 2}
        if shape:
            kinds |= {"reshaped": 3, "scanned": 0.7, "reduced": 1.5}
        else:
            kinds |= {"reduced": 4}
        if not self.pure:
            kinds["load"] = 3
        return getattr(self, self.pick(kinds))(dtype, shape, depth)

    def fitting(self, dtype, shape, depth, cap=None) -> Expr:
        e = self.value(dtype, shape, depth)
        return self.fit(e, cap or CAP[dtype]) if dtype in FLOATS else e

    def operand(self, dtype, shape, depth) -> Expr:
        """A second operand: sometimes a number, sometimes what is broadcast."""
        if self.chance(0.2):
            return self.constant(dtype, (), literal=True)
        if shape and self.chance(0.15):
            return self.value(dtype, (), depth)
        if len(shape) > 1 and self.chance(0.2):
            axis = self.rng.randrange(len(shape))
            e = self.value(dtype, (shape[axis],), depth)
            thin = tuple(n if k == axis else 1 for k, n in enumerate(shape))
            return Expr("expand", (e,), dtype, thin, {"axes": tuple(k for k in range(len(shape)) if k != axis)}, e.span)
        return self.value(dtype, shape, depth)

    def binary(self, dtype, shape, depth) -> Expr:
        if dtype in FLOATS:
            return self.float_binary(dtype, shape, depth)
        x, d = self.value(dtype, shape, depth - 1), depth - 1
        op = self.pick({"add": 5, "sub": 4, "mul": 4, "and": 2, "or": 1.5, "xor": 2, "min": 2, "max": 2, "shl": 1.2, "shr": 1.5,
                        "div": 1.5, "rem": 1.5, "bits": 0.6})
        if op in ("shl", "shr"):
            bits = BITS[dtype]
            if self.chance(0.5):
                y = const(self.rng.randrange(bits), dtype, (), True)
            else:
                y = arith("and", self.value(dtype, shape, d - 1), const(bits - 1, dtype, (), True))
            return Expr(op, (x, y), dtype, shape)
        if op in ("div", "rem"):
            return Expr(op, (x, self.divisor(dtype, shape, d)), dtype, shape)
        if op == "bits":
            other = ("uint" if dtype in SIGNED else "int") + str(BITS[dtype])
            return Expr("bitcast", (self.value(other, shape, d),), dtype, shape)
        y = self.operand(dtype, shape, d)
        e = arith(op, x, y)
        if self.chance(0.3) and y.op != "const":
            e = Expr(op, (y, x), dtype, e.shape) if broadcast_shape(y.shape, x.shape) == shape else e
        return Expr(e.op, e.args, dtype, shape, None, e.span)

    def divisor(self, dtype, shape, depth) -> Expr:
        kind = self.pick({"const": 4, "positive": 2, "negative": 1 if dtype in SIGNED else 0})
        if kind == "const":
            return const(self.rng.choice([2, 3, 4, 5, 7, 8, 10, 16, 100]) if dtype not in SIGNED or self.chance(0.7)
                         else self.rng.choice([-2, -3, -4, -7, -16]), dtype, (), True)
        y = arith("and", self.value(dtype, shape, depth - 1), const(self.rng.choice([3, 7, 15]), dtype, (), True))
        return arith("add", y, const(1, dtype, (), True)) if kind == "positive" else arith("sub", y, const(20, dtype, (), True))

    def float_binary(self, dtype, shape, depth) -> Expr:
        op = self.pick({"add": 5, "sub": 4, "mul": 4, "min": 2, "max": 2, "halve": 1 if dtype in ("float32", "float64") else 0})
        x, y = self.value(dtype, shape, depth - 1), self.operand(dtype, shape, depth - 1)
        limit = EXACT[dtype]
        if op == "halve":
            k = float(self.rng.choice([2, 4]))
            x = arith("mul", self.fit(x, limit // 4), const(k, dtype, (), True))
            return Expr("halve", (x, const(k, dtype, (), True)), dtype, shape, None, tuple(s / k for s in x.span))
        cap = {"mul": int(math.isqrt(limit)), "add": limit // 2, "sub": limit // 2}.get(op, limit)
        bound = lambda e: max(map(abs, e.span))  # noqa: E731
        if op == "mul" and bound(x) * bound(y) > limit or op in ("add", "sub") and bound(x) + bound(y) > limit:
            x, y = self.fit(x, cap), self.fit(y, cap)
        e = arith(op, x, y)
        return Expr(e.op, e.args, dtype, shape, None, e.span)

    def unary(self, dtype, shape, depth) -> Expr:
        x = self.value(dtype, shape, depth - 1)
        op = self.pick({"neg": 2, "abs": 2} if dtype in FLOATS else {"neg": 2, "abs": 1.5, "invert": 2})
        span = None
        if dtype in FLOATS:
            m = max(map(abs, x.span))
            span = (-m, m) if op == "neg" else (0, m)
        return Expr(op, (x,), dtype, shape, None, span)

    def where(self, dtype, shape, depth) -> Expr:
        on = self.mask(shape) if shape and self.chance(0.85) else self.condition(0)
        op = "choose" if not shape and self.chance(0.5) else "where"
        x, y = self.value(dtype, shape, depth - 1), self.value(dtype, shape, depth - 1)
        span = (min(x.span[0], y.span[0]), max(x.span[1], y.span[1])) if x.span and y.span else None
        return Expr(op, (on, x, y), dtype, shape, None, span)

    def cast_from(self, dtype, shape, depth) -> Expr:
        return self.cast(self.value(self.some_type(but=(dtype,)), shape, depth - 1), dtype)
