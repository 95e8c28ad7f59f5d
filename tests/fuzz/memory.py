"""Random loads, stores, atomics, and loops that carry pointers and offsets."""

from __future__ import annotations

from .nodes import arith, const, numel
from .places import Places
from .program import FLOATS, Assign, Atomic, Buffer, Expr, For, Storage, Store, counter
from .values import CAP, Var

ATOMIC = ("int32", "uint32", "int64", "uint64", "float32", "float64")


class Accesses(Places):

    def load_wide(self, shape) -> Expr:
        """A load from anywhere in a buffer of 2^16 elements, by an index of 16 bits that may wrap."""
        known = [b.name for b in self.buffers if self.role[b.name] == "wide"]
        if not known:
            dtype = self.rng.choice(["int8", "uint8", "int16", "int32"])
            s = Storage(f"s{len(self.storages)}", dtype, 1 << 16, self.rng.randrange(1 << 30))
            self.storages.append(s)
            known = [f"p{len(self.buffers)}"]
            self.buffers.append(Buffer(known[0], s.name, dtype, 0))
            self.role[known[0]] = "wide"
        name = known[0]
        held = next(b.dtype for b in self.buffers if b.name == name)
        narrow = self.rng.choice(["int16", "uint16"])
        index = self.value(narrow, shape, 2)
        if shape and self.chance(0.5):
            index = arith("mul", self.cast(self.affine(shape, self.row_major(shape)), narrow), const(self.rng.randint(2, 900), narrow, (), True))
            index = arith("add", index, self.leaf(narrow, ()))
            index = Expr(index.op, index.args, narrow, shape)
        if narrow == "int16":
            inner = Expr("pointer", (const(1 << 15, "int32", (), True),), "pointer", (), name)
            pointer = Expr("advance", (inner, index), "pointer", shape)
        else:
            pointer = Expr("pointer", (index,), "pointer", shape, name)
        return Expr("load", (pointer,), held, shape)

    def load(self, dtype, shape, depth=0) -> Expr:
        if numel(shape) > self.region:
            return self.constant(dtype, shape)
        if self.wide and depth > 0 and self.chance(0.3):
            return self.cast(self.load_wide(shape), dtype)
        walking = [v for v in self.scope if v.dtype == "pointer" and v.shape == shape]
        if walking and self.chance(0.5):
            v = self.rng.choice(walking)
            held = next(b.dtype for b in self.buffers if b.name == v.buffer)
            pointer = Expr("var", (), "pointer", shape, v.name)
        else:
            held = dtype if self.chance(0.7) else self.some_type()
            name = self.buffer(held, ("read", "own"))
            pointer = self.pointer(name, shape, False, 0.25 if depth > 0 else 0.0)
        span = (-CAP[held], CAP[held]) if held in CAP else None
        args, form = (pointer,), None
        if self.chance(0.5 if shape else 0.15):
            mask = self.mask(shape) if shape else self.condition(0)
            form = self.pick({"other": 3, "where": 1})
            other = self.constant(held, ()) if self.chance(0.7) or depth <= 0 else self.spread(self.fitting(held, shape, depth - 1), shape)
            args = (pointer, mask, other)
        return self.cast(Expr("load", args, held, shape, form, span), dtype)

    def store(self, name=None, e=None):
        if e is None:
            shape = self.some_shape()
            held = self.some_type()
            e = self.value(self.some_type() if self.chance(0.4) else held, shape, 2)
        else:
            shape, held = e.shape, e.dtype if self.chance(0.5) else self.some_type()
        walking = [v for v in self.scope if v.dtype == "pointer" and v.shape == shape and self.role[v.buffer] == "own"]
        if walking and name is None and self.chance(0.5):
            v = self.rng.choice(walking)
            held = next(b.dtype for b in self.buffers if b.name == v.buffer)
            pointer = Expr("var", (), "pointer", shape, v.name)
        else:
            name = self.writable(held)
            pointer = self.pointer(name, shape, True)
        mask = None
        if self.chance(0.5):
            mask = self.mask(shape) if shape else self.condition(0)
        return [Store(pointer, self.stored(e, held), mask)]

    def writable(self, dtype) -> str:
        return self.buffer(dtype, ("own",))

    def stored(self, e: Expr, dtype) -> Expr:
        e = self.cast(e, dtype)
        return self.fit(e, CAP[dtype]) if dtype in FLOATS else e

    def atomic(self):
        r = self.rng
        shape = self.some_shape()
        dtype = r.choice([t for t in ATOMIC if t in self.types] or ["int32"])
        ops = ["add", "max", "min"] + ([] if dtype in FLOATS else ["and", "or", "xor"])
        mask = None if self.chance(0.5) else self.mask(shape) if shape else self.condition(0)
        if self.chance(0.5):  # in a buffer that all programs add to
            name = self.buffer(dtype, ("sum",))
            op = self.adds.setdefault(name, r.choice(ops))
            pointer = self.pointer(name, shape, False, 0.5)
            return [Atomic(op, pointer, self.atomic_value(dtype, shape, op), mask)]
        if dtype in FLOATS:  # what variables hold is bounded, sums are not
            ops = ["max", "min", "xchg"]
        else:
            ops.append("xchg")
        op = r.choice(ops)
        pointer = self.pointer(self.writable(dtype), shape, True)
        if not self.chance(0.5):
            return [Atomic(op, pointer, self.atomic_value(dtype, shape, op), mask)]
        name = self.name()
        s = Atomic(op, pointer, self.atomic_value(dtype, shape, op), mask, name, self.constant(dtype, ()) if mask is not None else None)
        self.scope.append(Var(name, dtype, shape, (-CAP[dtype], CAP[dtype]) if dtype in CAP else None))
        return [s]

    def atomic_value(self, dtype, shape, op):
        e = self.value(dtype, shape, 1)
        return self.fit(e, 8 if op == "add" else CAP[dtype]) if dtype in FLOATS else e

    def walk(self):
        """A loop that carries a pointer or an offset, which each trip moves."""
        start, stop, step, form, trips, span = self.bounds()
        shape = self.some_shape()
        dtype = self.some_type()
        name = self.buffer(dtype, ("read", "own")) if self.chance(0.5) else self.writable(dtype)
        trips = max(trips, 1) + 1
        most = self.region // 2 if self.region > 2 * numel(shape) else self.region
        index = self.regular(shape, True, max(numel(shape), most))
        move = self.rng.choice([1, 1, 2, 3, numel(shape)])
        if index.span[1] + trips * move * self.trips >= self.region:
            move = 0 if index.span[1] + trips * self.trips >= self.region else 1
        if move == 0:
            return self.loop()
        held, outer = list(self.scope), self.trips
        self.trips *= trips
        before = []
        high = index.span[1] + trips * move
        if self.chance(0.6):  # a pointer
            p = self.name("q")
            base = self.base() if self.role[name] == "own" else None
            first = index if base is None else arith("add", base, index)
            before.append(Assign((p,), (Expr("pointer", (first,), "pointer", shape, name),)))
            self.scope.append(Var(p, "pointer", shape, None, True, name))
            by = const(move, "int32", (), True)
            if shape and self.chance(0.3):
                by = const(move, "int32", shape)
            moved = Assign((p,), (Expr("advance", (Expr("var", (), "pointer", shape, p), by), "pointer", shape),))
            kept = Var(p, "pointer", shape, None, True, name)
        else:
            p = self.name("o")
            kind = self.pick({"int32": 3, "int64": 2, **({"int8": 1} if high < 128 else {}), **({"uint8": 1} if high < 256 else {})})
            first = index if index.op != "const" else const(index.span[0], "int32", shape)
            before.append(Assign((p,), (self.cast(first, kind),)))
            kept = Var(p, kind, shape, (0, high), True)
            self.scope.append(kept)
            moved = Assign((p,), (arith("add", Expr("var", (), kind, shape, p), const(move, kind, (), True)),))
        i = self.name("i")
        if form == "static":
            form = "range"
        self.scope.append(Var(i, counter(start, stop), (), span, True))
        body = self.block(3)
        if kept.dtype != "pointer":  # what the offset is for
            body = [*self.at_offset(kept, name), *body]
        cut = self.rng.randint(0, len(body))
        body = [*body[:cut], moved, *body[cut:]]
        self.scope, self.trips = held, outer
        if self.chance(0.5) and kept.dtype == "pointer":
            self.scope.append(kept)
        return [*before, For(i, start, stop, step, body, form)]

    def at_offset(self, v: Var, name: str):
        """A load from a carried offset, into a variable or a buffer."""
        dtype = next(b.dtype for b in self.buffers if b.name == name)
        index = Expr("var", (), v.dtype, v.shape, v.name, v.span)
        base = self.base() if self.role[name] == "own" else None
        if base is not None:
            index = arith("add", base, self.cast(index, "int32"))
        e = Expr("load", (Expr("pointer", (index,), "pointer", v.shape, name),), dtype, v.shape, None,
                 (-CAP[dtype], CAP[dtype]) if dtype in CAP else None)
        same = [u for u in self.known(dtype, v.shape) if not u.fixed]
        if same and dtype != "int1" and self.chance(0.7):
            u = self.rng.choice(same)
            return [Assign((u.name,), (self.updated(u, e),))]
        return self.store(None, e)

    def outcome(self):
        """Stores of what the variables hold in the end."""
        out = []
        left = [v for v in self.scope if not v.raw and v.dtype != "pointer" and self.chance(0.7)][-10:]
        for v in left or [None]:
            e = self.var(v) if v else self.value("int32", self.some_shape(), 1)
            out += self.store(None, e)
        return out

