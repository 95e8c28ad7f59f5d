"""Random programs: `generate(seed)`."""

from __future__ import annotations

from .blocks import Blocks
from .memory import Accesses
from .nodes import arith, const, numel
from .program import (FLOATS, INTS, Assign, Barrier, Call, Expr, For, Function, If, Launch, Nothing, Program, Return, Scalar, While, counter)
from .values import CAP, Var

#: statements of a program, within others too
STATEMENTS = 10, 55


class Generator(Accesses, Blocks):

    def __init__(self, seed: int):
        super().__init__(seed)
        r = self.rng
        self.seed = seed
        wide = {t: r.random() for t in INTS}
        chosen = r.sample(INTS, r.randint(1, 3)) + r.sample(FLOATS, r.randint(0, 2))
        self.types = {t: 1 + wide.get(t, 0.5) for t in chosen} | {"int32": 0.8, "int1": 0.25}
        self.shapes = self.some_shapes()
        self.grid_form = self.pick({"one": 5, "x": 3, "xy": 1})
        self.trips = 1
        self.functions: list[Function] = []
        self.scalars: list[Scalar] = []
        self.arguments()
        self.set_places()
        self.budget = r.randint(*STATEMENTS)

    def some_shapes(self):
        r = self.rng
        size = lambda most: 1 << r.randint(0, most)  # noqa: E731
        b = self.pick({1: 1, 2: 2, 4: 3, 8: 3, 16: 3, 32: 2, 64: 2, 128: 1.5, 256: 0.7, 512: 0.3, 1024: 0.2})
        shapes = {(): 2, (b,): 5}
        if r.random() < 0.3:
            shapes[(size(6),)] = 3
        if r.random() < 0.5:
            m, n = (b, size(4)) if r.random() < 0.5 else (size(4), b)
            shapes |= {(m, n): 4, (m,): 1.5, (n,): 1.5}
            if r.random() < 0.3:
                shapes[(n, m)] = 1.5
        if r.random() < 0.15:
            shapes[(size(3), size(3), size(3))] = 2
        return {s: w for s, w in shapes.items() if numel(s) <= 1024}

    def arguments(self):
        """Numbers that the kernel is given, two sets of them for two launches."""
        r = self.rng
        largest = max(numel(s) for s in self.shapes)
        spans = {"n": (0, min(largest, 40) + 3), "m": (0, 9), "t": (0, 4), "s": (-(1 << 31), (1 << 31) - 1)}
        values = {name: [self.pick({r.randint(*span): 5, span[1] - 3: 1, 1: 1, 0: 1}) if name != "s" else
                         self.pick({r.randint(*span): 3, (1 << 31) - 3: 1, 7: 1}) for _ in range(2)] for name, span in spans.items()}
        rows = [(name, "int32", values[name], span) for name, span in spans.items()]
        rows.append(("w", "int64", [r.randint(1 << 33, 1 << 60) for _ in range(2)], None))
        rows.append(("f", "float32", [float(r.randint(-9, 9)) for _ in range(2)], (-9, 9)))
        rows.append(("c", "int1", [r.random() < 0.5 for _ in range(2)], None))
        kept = [row for row in rows if row[0] in "nt" or r.random() < 0.4]
        specialize = 0.5 if r.random() < 0.4 else 0  # what the compiler knows may differ between launches: it compiles twice
        for name, dtype, _, span in kept:
            self.scalars.append(Scalar(name, dtype, r.random() < specialize))
            self.scope.append(Var(name, dtype, (), span, True, None, True))
        grids = {"one": lambda: (1, 1, 1), "x": lambda: (r.randint(2, 4), 1, 1), "xy": lambda: (2, r.randint(1, 2), 1)}[self.grid_form]
        self.launches = [Launch(grids(), {name: v[k] for name, _, v, _ in kept}) for k in range(2)]

    # -- statements

    def block(self, most: int) -> list:
        """Statements in a scope of their own."""
        held = list(self.scope)
        out = []
        for _ in range(self.rng.randint(1, most)):
            if self.budget <= 0:
                break
            out += self.statement()
        self.scope = held
        return out or [Nothing()]

    def statement(self, top=False) -> list:
        self.budget -= 1
        kinds = {"define": 9, "reassign": 8, "branch": 5, "loop": 4 if self.trips < 12 else 0.5, "repeat": 1 if self.trips < 12 else 0,
                 "exchange": 3 if self.trips == 1 else 6}
        if self.pure:
            kinds["call"] = 1 if self.functions else 0
        else:
            kinds |= {"store": 8, "atomic": 3, "barrier": 0.4, "walk": 3 if self.trips < 12 else 0, "call": 1.2, "leave": 0.25 if top else 0}
        return getattr(self, self.pick(kinds))()

    def some_shape(self):
        return self.pick(self.shapes)

    def define(self):
        dtype, shape = self.some_type(), self.some_shape()
        e = self.fitting(dtype, shape, 3 if self.chance(0.4) else 2)
        name = self.name()
        self.scope.append(Var(name, dtype, shape, (-CAP[dtype], CAP[dtype]) if dtype in CAP else None))
        return [Assign((name,), (e,))]

    def mutable(self):
        return [v for v in self.scope if not v.fixed]

    def reassign(self):
        known = self.mutable()
        if not known:
            return self.define()
        v = self.rng.choice(known[-8:])
        same = [u for u in self.known(v.dtype, v.shape) if u.name != v.name and not u.raw]
        if same and self.chance(0.2):
            e = self.var(self.rng.choice(same))
        elif v.dtype != "int1" and self.chance(0.4):  # x = x op y
            e = self.updated(v, self.value(v.dtype, v.shape, 1), self.pick({"add": 3, "sub": 1, "min": 1, "max": 1}))
        else:
            e = self.fitting(v.dtype, v.shape, 2)
        return [Assign((v.name,), (e,))]

    def exchange(self):
        """Variables of one type that take each other's values."""
        groups = {}
        for v in self.mutable():
            groups.setdefault((v.dtype, v.shape), []).append(v)
        groups = [g for g in groups.values() if len(g) > 1]
        if not groups:
            return self.reassign()
        g = self.rng.choice(groups)
        a, b = self.rng.sample(g, 2)
        form = self.pick({"swap": 2, "sum": 2, "both": 3, "turn": 1 if len(g) > 2 else 0})
        if form == "swap":
            return [Assign((a.name, b.name), (self.var(b), self.var(a)))]
        if form == "turn":
            a, b, c = self.rng.sample(g, 3)
            return [Assign((a.name, b.name, c.name), (self.var(b), self.var(c), self.var(a)))]
        e = self.value(a.dtype, a.shape, 1)
        e = e if a.dtype == "int1" else self.updated(a, e)
        if form == "sum":
            return [Assign((a.name, b.name), (self.var(b), e))]
        return [Assign((a.name,), (e,)), Assign((b.name,), (self.var(a),))]

    def branch(self):
        condition = self.condition()
        empty = self.pick({"no": 6, "then": 1.5, "else": 1})
        then = [Nothing()] if empty == "then" else self.block(3)
        other = []
        if empty == "else":
            other = [Nothing()]
        elif empty == "then" or self.chance(0.45):
            other = self.branch() if self.chance(0.25) and self.budget > 0 else self.block(3)
        return [If(condition, then, other)]

    def bounds(self):
        """(start, stop, step, form, most trips, span of the counter) of a loop."""
        most = 5 if self.trips < 4 else 2
        step = self.pick({1: 6, 2: 1, 3: 1, -1: 1})
        start = self.rng.choice([0, 0, 0, 1, -2, 3])
        raw = [v for v in self.scope if v.raw and v.name in "tm" and v.span[1] <= (9 if self.trips < 3 else 4)]
        kind = self.pick({"const": 3, "raw": 4 if raw else 0, "data": 2})
        first = const(start, "int32", (), True)
        if kind == "const":
            count = self.rng.randint(0, most)
            stop, length = const(start + count, "int32", (), True), count
        elif kind == "raw":
            v = self.rng.choice(raw)
            stop, length = Expr("argument", (), "int32", (), v.name, v.span), max(0, v.span[1] - start)
        else:
            stop = arith("and", self.value("int32", (), 1), const(3, "int32", (), True))
            length = max(0, 3 - start)
        top = start + max(length, 1)
        if kind != "const" and self.chance(0.15):
            stop = self.cast(Expr("typed", (stop,), "int32", (), None, stop.span) if kind == "raw" else stop, "int64")
        if step < 0:  # from the end to the start
            return stop, first, step, "range", length, (start, top)
        form = self.pick({"range": 8, "static": 3 if kind == "const" and self.trips == 1 else 0, "unroll": 0.7, "stages": 0.5})
        return first, stop, step, form, -(-length // step), (start, top)

    def loop(self):
        start, stop, step, form, trips, span = self.bounds()
        held, outer = list(self.scope), self.trips
        self.trips *= max(1, trips)
        name = self.name("i")
        if form != "static":
            self.scope.append(Var(name, counter(start, stop), (), span, True))
        body = self.block(4)
        self.scope, self.trips = held, outer
        return [For(name, start, stop, step, body, form)]

    def repeat(self):
        """A while loop."""
        name, held, outer = self.name("k"), list(self.scope), self.trips
        most = self.rng.randint(1, 4)
        stop = arith("and", self.value("int32", (), 0), const(3, "int32", (), True)) if self.chance(0.4) else const(most, "int32", (), True)
        condition = self.condition(0) if self.chance(0.4) else None
        self.scope.append(Var(name, "int32", (), (0, 4), True))
        self.trips *= 4
        body = self.block(3)
        self.scope, self.trips = held, outer
        return [While(name, stop, condition, body)]

    def barrier(self):
        return [Barrier()]

    def leave(self):
        return [Return(self.condition())]

    # -- functions

    def call(self):
        typed = [v for v in self.scope if v.dtype != "pointer"]
        if self.chance(0.4):  # as functions that are not inlined need it
            typed = [v for v in typed if v.shape == ()]
        given = self.rng.sample(typed, min(len(typed), self.rng.randint(1, 3)))
        same = [f for f in self.functions if self.chance(0.5)]
        if self.pure:
            same = self.functions
        f = self.rng.choice(same) if same else self.function([(v.dtype, v.shape) for v in given])
        values = tuple(self.fitting(d, s, 1) for _, d, s in f.parameters)
        names = tuple(self.name() for _ in f.results)
        for name, e in zip(names, f.results):
            self.scope.append(Var(name, e.dtype, e.shape, (-CAP[e.dtype], CAP[e.dtype]) if e.dtype in CAP else None))
        return [Call(names, f.name, values)]

    def function(self, types) -> Function:
        held, self.scope, self.pure, budget = self.scope, [], True, self.budget
        names = [self.name("a") for _ in types]
        for name, (dtype, shape) in zip(names, types):
            self.scope.append(Var(name, dtype, shape, (-CAP[dtype], CAP[dtype]) if dtype in CAP else None))
        parameters = [(name, *t) for name, t in zip(names, types)]
        wanted = [self.rng.choice(types) for _ in range(self.rng.randint(1, 2))]
        early = None
        if any(shape == () for _, shape in types) and self.chance(0.4):
            early = self.condition(), tuple(self.fitting(d, s, 1) for d, s in wanted)
        self.budget, outer, self.trips = 3, self.trips, max(self.trips, 4)
        body = []
        for _ in range(self.rng.randint(0, 3)):
            body += self.statement()
        results = tuple(self.fitting(d, s, 2) for d, s in wanted)
        self.scope, self.pure, self.budget, self.trips = held, False, budget, outer
        f = Function(f"part{len(self.functions)}", parameters, body, results, early, self.chance(0.3) or any(shape for _, shape in types))
        self.functions.append(f)
        return f

    def program(self) -> Program:
        body = []
        while self.budget > 0:
            body += self.statement(top=True)
        body += self.outcome()
        body = [*(Assign((name,), (e,)) for name, e in self.prologue.values()), *body]
        return Program(self.seed, self.storages, self.buffers, self.scalars, self.launches, body, self.functions)


def generate(seed: int) -> Program:
    """The program of a seed."""
    return Generator(seed).program()
