"""Random loads, stores, atomics and pointers that walk; the buffers that they go to.

A program of a grid has a region of each buffer that is stored to, so programs never meet; buffers that are only read or only added to
belong to all. Where a launch is one program, buffers may lie on one another."""

from __future__ import annotations

from .program import BITS, FLOATS, INTS, STORED, Assign, Atomic, Buffer, Expr, For, Storage, Store
from .values import CAP, Values, Var, arith, const, numel

ATOMIC = ("int32", "uint32", "int64", "uint64", "float32", "float64")


class Places(Values):

    def set_places(self):
        r = self.rng
        #: elements of a program's region
        self.region = max(64, 2 * max(numel(s) for s in self.shapes))
        if r.random() < 0.3:
            self.region = max(self.region, 256)
        self.largest = min(1024, self.region)
        self.programs = max(x * y * z for x, y, z in (launch.grid for launch in self.launches))
        self.storages: list[Storage] = []
        self.buffers: list[Buffer] = []
        self.role: dict[str, str] = {}  # "read", "own" (a region for each program) or "sum" (atomics alone)
        self.adds: dict[str, str] = {}  # what a "sum" buffer is for
        self.aliased = self.grid_form == "one" and r.random() < 0.35
        #: whether there is a buffer that an index of 16 bits may address all of
        self.wide = r.random() < 0.1

    # -- buffers

    def new_buffer(self, dtype, role) -> str:
        r = self.rng
        name = f"p{len(self.buffers)}"
        shared = [s for s in self.storages if dtype in INTS and s.dtype in INTS or dtype in FLOATS and s.dtype == dtype] if self.aliased else []
        if shared and role != "sum" and r.random() < 0.6:
            s = r.choice(shared)
            width = STORED[dtype].itemsize
            offset = width * self.pick({0: 4, r.randint(1, 9): 2, self.region // 2: 1, self.region: 1})
            self.buffers.append(Buffer(name, s.name, dtype, offset))
        else:
            elements = self.region * self.programs
            if self.aliased:  # room for what lies in it from later elements on, or of wider ones
                elements = (self.region * 2 + 10) * (64 // BITS[dtype] if dtype in INTS else 1)
            span = (-CAP[dtype], CAP[dtype]) if dtype in FLOATS else None
            offset = STORED[dtype].itemsize * (r.randint(1, 5) if r.random() < 0.3 else 0)
            s = Storage(f"s{len(self.storages)}", dtype, elements + 8, r.randrange(1 << 30), span)
            self.storages.append(s)
            self.buffers.append(Buffer(name, s.name, dtype, offset))
        self.role[name] = role
        return name

    def buffer(self, dtype, roles) -> str:
        """A buffer of a type that serves one of some uses."""
        if self.aliased and roles != ("sum",):
            roles = ("read", "own")
        known = [b.name for b in self.buffers if b.dtype == dtype and self.role[b.name] in roles]
        if known and self.chance(0.75 if len(self.buffers) < 9 else 1):
            return self.rng.choice(known[-4:])
        return self.new_buffer(dtype, roles[-1] if "read" not in roles or self.chance(0.3) else "read")

    # -- indices

    def base(self) -> Expr | None:
        """Where a program's region begins."""
        return None if self.grid_form == "one" else self.shared("base", self.make_base)

    def make_base(self) -> Expr:
        pid = Expr("program", (), "int32", (), 0, (0, 3))
        if self.grid_form == "xy":
            count = Expr("programs", (), "int32", (), 0, (1, 4))
            pid = arith("add", pid, arith("mul", Expr("program", (), "int32", (), 1, (0, 3)), count))
        return arith("mul", pid, const(self.region, "int32", (), True))

    def retyped(self, e: Expr) -> Expr:
        """An index in any type that holds it."""
        if e.span is None or self.chance(0.55):
            return e
        lo, hi = e.span
        types = {"int64": 4} | ({"int8": 1} if -128 <= lo and hi < 128 else {}) | ({"int16": 1} if -32768 <= lo and hi < 32768 else {})
        types |= {"uint8": 1} if 0 <= lo and hi < 256 else {}
        types |= {"uint32": 1, "uint64": 0.5} if lo >= 0 else {}
        return self.cast(e, self.pick(types))

    def offset_term(self, room: int) -> Expr | None:
        """A number of run time, from 0 up to less than `room`, that an index may have added."""
        known = [v for v in self.scope if v.shape == () and v.dtype == "int32" and v.span and v.span[0] >= 0 and v.span[1] < room]
        if not known or not self.chance(0.4):
            return None
        e = self.var(self.rng.choice(known))
        step = self.rng.choice([1, 1, 2, 3, 5])
        return arith("mul", e, const(step, "int32", (), True)) if step > 1 and e.span[1] * step < room else e

    def regular(self, shape, apart: bool, room: int) -> Expr:
        """index x strides + offset, from 0 to less than `room`; `apart`: no two elements at one place."""
        r = self.rng
        if not shape:
            e = const(r.randrange(min(room, 16)), "int32", (), True)
        else:
            order = list(range(len(shape)))
            if r.random() < 0.25:
                r.shuffle(order)
            step = self.pick({1: 6, 2: 1, 3: 0.5})
            strides = [0] * len(shape)
            for k in reversed(order):
                strides[k] = step
                step = step * shape[k] + (r.choice([0, 0, 1, 3]) if shape[k] > 1 else 0)
            if sum((n - 1) * s for n, s in zip(shape, strides)) >= room:
                strides = self.row_major(shape)
            if not apart and r.random() < 0.3:
                strides = [s if r.random() < 0.7 else r.choice([0, 1]) for s in strides]
                if sum((n - 1) * s for n, s in zip(shape, strides)) >= room:
                    strides = self.row_major(shape)
            high = sum((n - 1) * s for n, s in zip(shape, strides))
            form = self.pick({"up": 8, "down": 1, "xor": 0.7 if len(shape) == 1 and strides == [1] else 0})
            if form == "down":
                e = arith("sub", const(high, "int32", (), True), self.affine(shape, strides))
            elif form == "xor":
                e = arith("xor", self.affine(shape, strides), const(r.randrange(shape[0]), "int32", (), True))
                e = Expr(e.op, e.args, e.dtype, e.shape, None, (0, shape[0] - 1))
            else:
                e = self.affine(shape, strides)
        left = room - 1 - e.span[1]
        if left > 0 and r.random() < 0.4:
            e = arith("add", e, const(r.randint(0, min(left, 20)), "int32", (), True))
            left = room - 1 - e.span[1]
        if left > 0 and (term := self.offset_term(left + 1)) is not None:
            e = arith("add", e, term)
        return e

    def irregular(self, shape, room: int) -> Expr:
        """Indices that depend on data or wrap."""
        bits = max(1, room.bit_length() - 1)
        if room >= 256 and self.chance(0.4):
            return self.value("uint8", shape, 2)
        if room >= 256 and self.chance(0.3):
            e = self.cast(self.value("int8", shape, 2), "int32") if self.chance(0.3) else self.value("int8", shape, 2)
            return arith("add", Expr("cast", (e,), "int32", shape) if e.dtype == "int8" and self.chance(0.4) else self.cast(e, "int32"),
                         const(128, "int32", (), True))
        dtype = self.rng.choice(["int32", "int32", "int64", "uint32", self.some_type(but=("int1", *FLOATS))])
        k = (1 << min(bits, BITS[dtype] - 1)) - 1
        return arith("and", self.value(dtype, shape, 1), const(k, dtype, (), True))

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

    def pointer(self, name: str, shape, apart: bool, irregular=0.0) -> Expr:
        """Addresses in a buffer; of a program's own region if it is stored to."""
        base = self.base() if self.role[name] == "own" else None
        index = self.irregular(shape, self.region) if self.chance(irregular) else self.regular(shape, apart, self.region)
        whole = index.op == "const" and index.span == (0, 0)
        index = index if whole else self.retyped(index)
        if self.chance(0.3) and base is not None:  # (p + base) + index
            inner = Expr("pointer", (base,), "pointer", (), name)
            return Expr("advance", (inner, index), "pointer", shape)
        if base is not None:
            index = arith("add", base, index if index.dtype == "int32" else self.cast(index, "int32"))
        elif whole and shape == ():
            return Expr("pointer", (), "pointer", (), name)
        return Expr("pointer", (index,), "pointer", shape, name)

    # -- statements and loads

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
            before.append(Assign((p,), (self.cast(index if shape else Expr("const", (), "int32", (), {"value": index.span[0], "literal": False},
                                                                        (index.span[0],) * 2) if index.op == "const" else index, kind),)))
            kept = Var(p, kind, shape, (0, high), True)
            self.scope.append(kept)
            moved = Assign((p,), (arith("add", Expr("var", (), kind, shape, p), const(move, kind, (), True)),))
        i = self.name("i")
        if form == "static":
            form = "range"
        self.scope.append(Var(i, "int32", (), span, True))
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

