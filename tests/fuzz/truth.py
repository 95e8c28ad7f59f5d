"""Random truths: masks of blocks, by bounds and by data, and the conditions of branches."""

from __future__ import annotations

from .nodes import arith, broadcast_shape, const
from .program import Expr
from .values import Values


class Truths(Values):

    def limit(self) -> Expr:
        """A number that bounds an index."""
        raw = [v for v in self.scope if v.raw and v.dtype == "int32" and v.span and v.span[1] < 1 << 16]
        if raw and self.chance(0.6):
            v = self.rng.choice(raw)
            return Expr("argument", (), "int32", (), v.name, v.span)
        if self.chance(0.3):
            known = self.known("int32", ())
            if known:
                return arith("and", self.var(self.rng.choice(known)), const(31, "int32", (), True))
        return const(self.rng.choice([0, 1, 2, 3, 5, 7, 11, 17, 30, 64]), "int32", (), True)

    def mask(self, shape, depth=2) -> Expr:
        """Truth of each element; its shape may be one that broadcasts to `shape`."""
        kind = self.pick({"bound": 8, "both": 2.5 if depth else 0, "data": 2.5, "inverse": 0.7 if depth else 0, "scalar": 0.4,
                          "known": 2 if self.known("int1", shape) else 0})
        if kind == "known":
            return self.var(self.rng.choice(self.known("int1", shape)))
        if kind == "scalar":
            return self.spread(self.condition(0), shape)
        if kind == "both":
            x, y = self.mask(shape, depth - 1), self.mask(shape, depth - 1)
            return Expr(self.pick({"and": 6, "or": 2, "xor": 1}), (x, y), "int1", broadcast_shape(x.shape, y.shape))
        if kind == "inverse":
            x = self.mask(shape, depth - 1)
            return Expr("invert", (x,), "int1", x.shape)
        compare = self.pick({"lt": 6, "ge": 4, "gt": 2, "le": 2, "ne": 1, "eq": 1})
        if kind == "data":
            dtype = self.some_type(but=("int1",))
            x, y = self.value(dtype, shape, 1), self.operand(dtype, shape, 0)
            return Expr(compare, (x, y), "int1", shape)
        axis = self.rng.randrange(len(shape))
        if len(shape) > 1 and self.chance(0.3):
            x = self.affine(shape, self.row_major(shape))
        else:
            x = self.range(shape, axis)
        form = self.pick({"plain": 6, "shifted": 2, "scaled": 1, "typed": 1.5, "moved": 1})
        y = self.limit()
        if form == "shifted":
            x = arith(self.pick({"add": 1, "sub": 1}), x, const(self.rng.randint(1, 9), "int32", (), True))
        elif form == "moved":
            any_size = [v for v in self.scope if v.raw and v.name == "s"]
            x = arith("add", x, self.var(any_size[0]) if any_size and self.chance(0.5) else self.limit())
        elif form == "scaled":
            x = arith("mul", x, const(self.rng.choice([2, 3, -1]), "int32", (), True))
        elif form == "typed":
            dtype = self.rng.choice(["int64", "int64", "int8", "int16", "uint32", "uint8"])
            x, y = self.cast(x, dtype), self.cast(Expr("typed", (y,), "int32", (), None, y.span), dtype)
        return Expr(compare, (x, y), "int1", x.shape)

    def condition(self, depth=1) -> Expr:
        """A scalar truth."""
        compare = self.pick({"lt": 3, "ge": 2, "gt": 2, "le": 1, "ne": 2, "eq": 3})
        if depth and self.chance(0.2):
            x, y = self.condition(0), self.condition(0)
            return Expr(self.pick({"and": 1, "or": 1, "both": 1, "either": 1}), (x, y), "int1")
        if depth and self.chance(0.1):
            return Expr("not", (self.condition(0),), "int1")
        known = self.known("int1", ())
        if known and self.chance(0.15):
            return self.var(self.rng.choice(known))
        counters = [v for v in self.scope if v.dtype == "int32" and v.shape == () and v.span and v.span[1] < 100]
        if counters and self.chance(0.6):
            v = self.rng.choice(counters)
            return Expr(compare, (self.var(v), const(self.rng.randint(max(v.span[0], -9), min(v.span[1], 9)), "int32", (), True)), "int1")
        dtype = self.some_type(but=("int1",))
        x = self.value(dtype, (), min(depth, 1))
        return Expr(compare, (x, self.constant(dtype, (), True)), "int1")
