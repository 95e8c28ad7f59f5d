"""Random expressions that change a block's shape or go along its axes: transposes, reductions, scans, gathers, sorts, products."""

from __future__ import annotations

from .nodes import arith, const, numel
from .program import EXACT, FLOATS, Expr
from .truth import Truths


class Blocks(Truths):
    """`largest`: elements of a block at most."""

    def sizes(self, most: int) -> int:
        """A power of two up to a size."""
        return 1 << self.rng.randint(0, max(0, min(most, self.largest).bit_length() - 1))

    def reshaped(self, dtype, shape, depth) -> Expr:
        d = depth - 1
        kinds = {"broadcast": 2, "flip": 0.7 if shape[-1] > 1 else 0, "take": 2}
        if len(shape) > 1:
            kinds |= {"expand": 5, "trans": 3}
        if numel(shape) * 2 <= self.largest:
            kinds["half"] = 1.5
        if shape[-1] % 2 == 0:
            kinds["interleave"] = 1
        if shape[-1] == 2:
            kinds["join"] = 3
        kinds["reshape"] = 2
        if self.dear > 0:
            kinds |= {"sort": 0.5 if shape[-1] > 1 else 0, "topk": 0.3, "dot": 12 if len(shape) == 2 and dtype in ("int32", "float32", "float64")
                      else 0, "histogram": 1.5 if len(shape) == 1 and dtype == "int32" else 0}
        kind = self.pick(kinds)
        if kind in ("sort", "topk", "dot", "histogram"):
            self.dear -= 1
        return getattr(self, "make_" + kind)(dtype, shape, d)

    def make_broadcast(self, dtype, shape, d):
        return self.spread(self.value(dtype, (), d), shape)

    def make_expand(self, dtype, shape, d):
        kept = sorted(self.rng.sample(range(len(shape)), self.rng.randint(1, len(shape) - 1)))
        e = self.value(dtype, tuple(shape[k] for k in kept), d)
        thin = tuple(n if k in kept else 1 for k, n in enumerate(shape))
        e = Expr("expand", (e,), dtype, thin, {"axes": tuple(k for k in range(len(shape)) if k not in kept)}, e.span)
        return self.spread(e, shape)

    def make_trans(self, dtype, shape, d):
        order = list(range(len(shape)))
        self.rng.shuffle(order)
        source = [0] * len(shape)
        for k, at in enumerate(order):
            source[at] = shape[k]
        e = self.value(dtype, tuple(source), d)
        return Expr("trans", (e,), dtype, shape, tuple(order), e.span)

    def make_reshape(self, dtype, shape, d):
        n = numel(shape)
        known = [v.shape for v in self.scope if v.dtype == dtype and numel(v.shape) == n and v.shape not in (shape, ())]
        if known and self.chance(0.7):
            source = self.rng.choice(known)
        elif len(shape) > 1 and self.chance(0.5):
            source = (n,)
        else:
            a = self.sizes(n)
            source = (a, n // a)
        e = self.value(dtype, source, d)
        return Expr("reshape", (e,), dtype, shape, None, e.span)

    def make_flip(self, dtype, shape, d):
        e = self.value(dtype, shape, d)
        return Expr("flip", (e,), dtype, shape, self.rng.choice([k for k, n in enumerate(shape) if n > 1]), e.span)

    def make_half(self, dtype, shape, d):
        e = self.value(dtype, (*shape, 2), d)
        return Expr("half", (e,), dtype, shape, self.rng.randrange(2), e.span)

    def pair(self, dtype, shape, d):
        x, y = self.value(dtype, shape, d), self.value(dtype, shape, d)
        return (x, y), (min(x.span[0], y.span[0]), max(x.span[1], y.span[1])) if x.span and y.span else None

    def make_join(self, dtype, shape, d):
        args, span = self.pair(dtype, shape[:-1], d)
        return Expr("join", args, dtype, shape, None, span)

    def make_interleave(self, dtype, shape, d):
        args, span = self.pair(dtype, (*shape[:-1], shape[-1] // 2), d)
        return Expr("interleave", args, dtype, shape, None, span)

    def make_take(self, dtype, shape, d):
        """tl.gather, by indices that depend on data."""
        axis = self.rng.randrange(len(shape))
        size = self.sizes(self.largest * shape[axis] // numel(shape) // 4 or 1)
        e = self.value(dtype, tuple(size if k == axis else n for k, n in enumerate(shape)), d)
        index = arith("and", self.value("int32", shape, d), const(size - 1, "int32", (), True))
        return Expr("take", (e, index), dtype, shape, {"axis": axis}, e.span)

    def make_sort(self, dtype, shape, d):
        e = self.value(dtype, shape, d)
        return Expr("sort", (e,), dtype, shape, {"descending": self.chance(0.5)}, e.span)

    def make_topk(self, dtype, shape, d):
        wide = (*shape[:-1], shape[-1] * self.rng.choice([1, 2, 4]))
        e = self.value(dtype, wide if numel(wide) <= 256 else shape, d)
        return Expr("topk", (e,), dtype, shape, {"descending": self.chance(0.5)}, e.span)

    def make_dot(self, dtype, shape, d):
        k = self.rng.choice([1, 2, 4, 8, 16, 16, 32])
        operand = {"int32": "int8", "float32": self.rng.choice(["float32", "float16", "bfloat16"]), "float64": "float64"}[dtype]
        cap = 10
        args = [self.fitting(operand, s, d, cap) for s in ((shape[0], k), (k, shape[1]))]
        total = k * cap * cap
        if self.chance(0.4):
            acc = self.fitting(dtype, shape, d)
            args.append(acc)
            total += max(map(abs, acc.span)) if dtype in FLOATS else 0
        return Expr("dot", tuple(args), dtype, shape, None, (-total, total) if dtype in FLOATS else None)

    def make_histogram(self, dtype, shape, d):
        e = arith("and", self.value("int32", (self.sizes(128),), d), const(shape[0] - 1, "int32", (), True))
        return Expr("histogram", (e,), dtype, shape)

    # -- along an axis

    def reduced(self, dtype, shape, depth) -> Expr:
        """A reduction of a block with one axis more (or, for a scalar, any block)."""
        wide = list(shape)
        if shape:
            axis = self.rng.randrange(len(shape) + 1) if len(shape) < 3 else self.rng.randrange(len(shape))
            wide.insert(axis, self.sizes(min(64, self.largest // numel(shape))))
        else:
            blocks = [s for s in self.shapes if s]
            wide = list(self.rng.choice(blocks))
            axis = 0 if len(wide) == 1 and self.chance(0.7) else None
        wide, count = tuple(wide), numel(wide) // numel(shape)
        attr = {"axis": axis}
        if dtype == "int32" and axis is not None and self.chance(0.25):
            source = self.some_type(but=("int1",))
            return Expr(self.pick({"argmax": 1, "argmin": 1}), (self.value(source, wide, depth - 1),), dtype, shape, attr, (0, count - 1))
        kinds = {"sum": 4, "greatest": 2, "least": 2, "fold": 2}
        if dtype not in FLOATS:
            kinds["xorsum"] = 1.5
        kind = self.pick(kinds)
        if kind == "fold":
            attr["fn"] = self.pick({"add": 2, "min": 1, "max": 1} | ({} if dtype in FLOATS else {"xor": 1, "or": 1, "and": 1, "mul": 1}))
        e = self.value(dtype, wide, depth - 1)
        span = e.span if kind in ("greatest", "least") or attr.get("fn") in ("min", "max") else None
        if dtype in FLOATS and (kind == "sum" or attr.get("fn") == "add"):
            e = self.fit(e, EXACT[dtype] // count)
            span = tuple(s * count for s in e.span)
        return Expr(kind, (e,), dtype, shape, attr, span)

    def scanned(self, dtype, shape, depth) -> Expr:
        axis = self.rng.randrange(len(shape))
        attr = {"axis": axis, "reverse": self.chance(0.4)}
        if dtype in FLOATS:
            kind = self.pick({"cumsum": 2, "scan": 1})
            attr["fn"] = self.pick({"add": 1, "max": 1, "min": 1})
        else:
            kind = self.pick({"cumsum": 3, "cumprod": 1, "scan": 2, "recurrence": 1.5})
            attr["fn"] = self.pick({"add": 1, "xor": 1, "max": 1, "min": 1, "or": 1, "mul": 1})
        if kind == "recurrence":
            return Expr(kind, self.pair(dtype, shape, depth - 1)[0], dtype, shape, {"axis": axis})
        if kind != "scan":
            attr.pop("fn")
        e, span = self.value(dtype, shape, depth - 1), None
        if dtype in FLOATS:
            if attr.get("fn", "add") == "add":
                e = self.fit(e, EXACT[dtype] // shape[axis])
                span = tuple(s * shape[axis] for s in (min(e.span[0], 0), max(e.span[1], 0)))
            else:
                span = e.span
        return Expr(kind, (e,), dtype, shape, attr, span)


