"""The buffers of a random program, and random addresses in them.

A program of a grid has a region of each buffer that is stored to, so programs never meet; buffers that are only read or only added to
belong to all. Where a launch is one program, buffers may lie on one another."""

from __future__ import annotations

from .nodes import arith, const, numel
from .program import BITS, FLOATS, INTS, STORED, Buffer, Expr, Storage
from .truth import Truths
from .values import CAP


class Places(Truths):

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
            return arith("add", self.cast(self.value("int8", shape, 2), "int32"), const(128, "int32", (), True))
        dtype = self.rng.choice(["int32", "int32", "int64", "uint32", self.some_type(but=("int1", *FLOATS))])
        k = (1 << min(bits, BITS[dtype] - 1)) - 1
        return arith("and", self.value(dtype, shape, 1), const(k, dtype, (), True))

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
