"""What a program does, by numpy: `run(program, launch)` gives what each storage holds afterwards, or raises Invalid where that is
not defined (bounds, races between programs, stores of one block that meet, numbers that are not exact)."""

from __future__ import annotations

import itertools

import numpy as np

from .operations import OPERATIONS, Invalid, exact, require
from .program import (EXACT, FLOATS, GUARD, NUMPY, STORED, Assign, Atomic, Barrier, Call, For, If, Launch, Nothing, Program, Return,
                      Store, While, counter, decode, encode, fill)

RMW = {"add": np.add, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
#: statements that a launch may execute
STEPS = 20000


class Returned(Exception):
    pass


class Pointer:
    """A block of addresses in a buffer: `index` counts its elements."""

    def __init__(self, buffer: str, index: np.ndarray):
        self.buffer, self.index = buffer, index


class Memory:
    """The bytes of all storages, and which program touched them how."""

    def __init__(self, program: Program, many: bool):
        self.bytes = {s.name: np.ascontiguousarray(fill(s.dtype, s.size + 2 * GUARD, s.seed, s.span)).view(np.uint8).copy()
                      for s in program.storages}
        self.size = {s.name: s.size * STORED[s.dtype].itemsize for s in program.storages}
        self.guard = {s.name: GUARD * STORED[s.dtype].itemsize for s in program.storages}
        self.buffers = {b.name: b for b in program.buffers}
        self.many = many
        self.touched = {(s.name, how): np.full(len(self.bytes[s.name]), -1, np.int32)
                        for s in program.storages for how in ("read", "written", "atomic")} if many else {}

    def view(self, name: str):
        """The elements of a buffer."""
        b = self.buffers[name]
        start, end = self.guard[b.storage] + b.offset, self.guard[b.storage] + self.size[b.storage]
        width = STORED[b.dtype].itemsize
        return self.bytes[b.storage][start:end - (end - start) % width].view(STORED[b.dtype])

    def touch(self, name: str, index: np.ndarray, how: str, pid: int):
        """Programs run at the same time: what one writes, no other may look at."""
        b = self.buffers[name]
        require(np.all((index >= 0) & (index < len(self.view(name)))), "out of bounds")
        if not self.many:
            return
        width = STORED[b.dtype].itemsize
        at = (self.guard[b.storage] + b.offset + index.reshape(-1, 1) * width + np.arange(width)).reshape(-1)
        for other in {"read": ("written", "atomic"), "written": ("read", "written", "atomic"), "atomic": ("read", "written")}[how]:
            by = self.touched[b.storage, other][at]
            require(np.all((by == -1) | (by == pid)), f"programs meet: {how} what another has {other}")
        mark = self.touched[b.storage, how]
        mark[at] = np.where((mark[at] == -1) | (mark[at] == pid), pid, -2)


class Run:
    """One program of the grid."""

    def __init__(self, program, launch, memory, pid, number):
        self.program, self.launch, self.memory, self.pid, self.number = program, launch, memory, pid, number
        self.functions = {f.name: f for f in program.functions}
        self.env, self.steps = {}, STEPS

    def value(self, e):
        out = self._value(e)
        if isinstance(out, Pointer):
            require(out.index.shape == e.shape, "shape")
            return out
        out = np.asarray(out)
        require(out.shape == e.shape and out.dtype == NUMPY[e.dtype], f"{e.op}: {out.dtype}{out.shape} for {e.dtype}{e.shape}")
        if e.dtype in FLOATS:
            require(np.all(np.abs(out) <= EXACT[e.dtype]) and np.all(out == np.trunc(out)), f"{e.op}: float not exact")
        return out

    def _value(self, e):
        if e.op == "var":
            require(e.attr in self.env, f"{e.attr} is not known here")
            v = self.env[e.attr]
            require(isinstance(v, Pointer) == (e.dtype == "pointer"), "type")
            return v
        if e.op == "argument":
            return np.asarray(self.launch.scalars[e.attr], NUMPY[e.dtype])
        if e.op == "program":
            return np.asarray(self.pid[e.attr], np.int32)
        if e.op == "programs":
            return np.asarray(self.launch.grid[e.attr], np.int32)
        args = [self.value(a) for a in e.args]
        if e.op == "pointer":
            return Pointer(e.attr, args[0].astype(np.int64) if args else np.zeros((), np.int64))
        if e.op == "advance":
            return Pointer(args[0].buffer, args[0].index + args[1].astype(np.int64))
        if e.op == "load":
            return self.load(e, *args)
        if any(isinstance(a, Pointer) for a in args):
            raise Invalid("a pointer is no number")
        return OPERATIONS[e.op][1](e, *args)

    def load(self, e, pointer, mask=None, other=None):
        index = pointer.index
        on = np.broadcast_to(True if mask is None else mask, index.shape)
        self.memory.touch(pointer.buffer, index[on], "read", self.number)
        view = self.memory.view(pointer.buffer)
        dtype = self.memory.buffers[pointer.buffer].dtype
        require(dtype == e.dtype, "type")
        value = decode(view[np.where(on, index, 0)], dtype)
        return value if mask is None else np.where(on, value, other)

    def place(self, s):
        """(buffer, index, mask) of a store or an atomic."""
        pointer = self.value(s.pointer)
        require(isinstance(pointer, Pointer), "type")
        on = np.broadcast_to(True if s.mask is None else self.value(s.mask), pointer.index.shape)
        require(self.memory.buffers[pointer.buffer].dtype == s.value.dtype, "type")
        return pointer.buffer, pointer.index, on

    def store(self, s):
        value = np.broadcast_to(self.value(s.value), s.pointer.shape)
        name, index, on = self.place(s)
        where = index[on]
        require(len(np.unique(where)) == where.size, "a block's stores meet")
        self.memory.touch(name, where, "written", self.number)
        self.memory.view(name)[where] = encode(value[on], s.value.dtype)

    def atomic(self, s):
        value = np.broadcast_to(self.value(s.value), s.pointer.shape)
        name, index, on = self.place(s)
        where, dtype = index[on], s.value.dtype
        alone = len(np.unique(where)) == where.size
        require(s.op in RMW or alone, "exchanges that meet")
        require(s.result is None or alone, "results of atomics that meet")
        own = s.result is not None or s.op not in RMW
        self.memory.touch(name, where, "atomic", self.number)
        if own:
            self.memory.touch(name, where, "read", self.number)
            self.memory.touch(name, where, "written", self.number)
        view = self.memory.view(name)
        before = decode(view[np.where(on, index, 0)], dtype)
        if s.op not in RMW:
            view[where] = encode(value[on], dtype)
        elif dtype == "bfloat16" or dtype == "float16" and not alone:
            for k, v in zip(where.tolist(), value[on]):
                view[k:k + 1] = encode(RMW[s.op](decode(view[k:k + 1], dtype), v), dtype)
        else:
            RMW[s.op].at(view, where, value[on])
        exact(dtype, np.abs(decode(view[where], dtype).astype(np.float64)) if dtype in FLOATS else 0)
        if s.result is not None:
            self.env[s.result] = before if s.mask is None else np.where(on, before, self.value(s.other))

    def truth(self, e):
        v = self.value(e)
        require(v.shape == (), "a branch's condition is a block")
        return bool(v)

    def scope(self, body):
        """A branch's or loop's body: names that are new in it are not known behind it."""
        known = set(self.env)
        self.body(body)
        for name in set(self.env) - known:
            del self.env[name]

    def set(self, name, v):
        old = self.env.get(name)
        if old is not None:
            same = (old.buffer == v.buffer and old.index.shape == v.index.shape if isinstance(old, Pointer) and isinstance(v, Pointer)
                    else not isinstance(old, Pointer) and not isinstance(v, Pointer) and old.dtype == v.dtype and old.shape == v.shape)
            require(same, f"{name} changes its type")
        self.env[name] = v

    def body(self, body):
        for s in body:
            self.statement(s)

    def statement(self, s):
        self.steps -= 1
        require(self.steps > 0, "too long")
        if isinstance(s, Assign):
            values = [self.value(v) for v in s.values]
            for name, v in zip(s.names, values):
                self.set(name, v)
        elif isinstance(s, Store):
            self.store(s)
        elif isinstance(s, Atomic):
            self.atomic(s)
        elif isinstance(s, If):
            self.scope(s.then if self.truth(s.condition) else s.other)
        elif isinstance(s, For):
            self.loop(s)
        elif isinstance(s, While):
            n, stop = 0, self.value(s.stop)
            self.set(s.name, np.asarray(0, np.int32))
            while n < int(stop) and (s.condition is None or self.truth(s.condition)):
                self.scope(s.body)
                n += 1
                self.set(s.name, np.asarray(n, np.int32))
                stop = self.value(s.stop)
            del self.env[s.name]
        elif isinstance(s, Return):
            if self.truth(s.condition):
                raise Returned
        elif isinstance(s, Call):
            for name, v in zip(s.names, self.call(self.functions[s.function], [self.value(v) for v in s.values])):
                self.set(name, v)
        else:
            assert isinstance(s, (Barrier, Nothing)), s

    def loop(self, s):
        start, stop = (int(self.value(e)) for e in (s.start, s.stop))
        require(s.name not in self.env, "a loop's variable is used twice")
        for i in range(start, stop, s.step):
            self.env[s.name] = np.asarray(i, counter(s.start, s.stop))
            self.scope(s.body)
            require(int(self.env[s.name]) == i, "a loop's variable is assigned")
        self.env.pop(s.name, None)

    def call(self, f, values):
        require([(v.dtype, v.shape) for v in values] == [(NUMPY[d], s) for _, d, s in f.parameters], "a function's arguments")
        saved, self.env = self.env, {p[0]: v for p, v in zip(f.parameters, values)}
        if f.early and self.truth(f.early[0]):
            out = [self.value(v) for v in f.early[1]]
        else:
            self.body(f.body)
            out = [self.value(v) for v in f.results]
        self.env = saved
        return out


def run(program: Program, launch: Launch) -> dict[str, np.ndarray]:
    """Storage name -> its bytes after a launch, guards included."""
    count = int(np.prod(launch.grid))
    memory = Memory(program, count > 1)
    with np.errstate(all="ignore"):
        for number, (z, y, x) in enumerate(itertools.product(*(range(n) for n in reversed(launch.grid)))):
            try:
                Run(program, launch, memory, (x, y, z), number).body(program.body)
            except Returned:
                pass
    return memory.bytes
