"""Where Triton's front end (3.9) loses an assignment, and programs without such places.

It finds what a loop carries by comparing each variable's value in the IR at the end of the body with the one before the loop: where y and x
are one value before it (`x = y`), `y = x` in it is not seen, although x changes from trip to trip. A branch drops what both its sides assign
alike. Both are wrong on every backend, so they would hide what is looked for here."""

from __future__ import annotations

import itertools

from .program import FLOATS, UNSIGNED, Assign, Atomic, Call, Expr, For, If, Program, While


def same_value(e: Expr) -> str | None:
    """The variable whose value in the IR an expression is, too."""
    while e.op == "abs" and e.dtype in UNSIGNED:
        e = e.args[0]
    return e.attr if e.op == "var" else None


def renewed(e: Expr) -> Expr:
    """The same number as a new value in the IR."""
    other = {"int1": False}.get(e.dtype, 1.0 if e.dtype in FLOATS else 0)
    op = "xor" if e.dtype == "int1" else "mul" if e.dtype in FLOATS else "add"
    return Expr(op, (e, Expr("const", (), e.dtype, (), {"value": other, "literal": e.dtype != "int1"})), e.dtype, e.shape, None, e.span)


class Walk:
    """Goes through a body with what each name may be in the IR. `repair`: put new values where the front end would err; else count."""

    def __init__(self, repair: bool):
        self.repair, self.errors, self.numbers = repair, 0, itertools.count()
        self.typed: dict[str, Expr] = {}

    def new(self):
        return frozenset([next(self.numbers)])

    def assign(self, state, names, values):
        after = []
        for name, e in zip(names, values):
            source = same_value(e)
            after.append(state.get(source) or self.new() if source else self.new())
            self.typed[name] = Expr("var", (), e.dtype, e.shape, name, e.span)
        state.update(zip(names, after))

    def body(self, statements: list, state: dict) -> list:
        """The statements, with repairs; `state` is what holds behind them."""
        out = []
        for s in statements:
            if isinstance(s, Assign):
                self.assign(state, s.names, s.values)
            elif isinstance(s, (Call, Atomic)):
                for name in s.names if isinstance(s, Call) else [s.result] if s.result else []:
                    state[name] = self.new()
            elif isinstance(s, If):
                self.branch(s, state)
            elif isinstance(s, (For, While)):
                out += self.loop(s, state)
            out.append(s)
        return out

    def branch(self, s: If, state: dict):
        then, other = dict(state), dict(state)
        s.then[:], s.other[:] = self.body(s.then, then), self.body(s.other, other)
        for name in list(state):
            if then[name] & other[name] and (then[name] != state[name] or other[name] != state[name]):
                self.errors += 1
                if self.repair:
                    s.then.append(Assign((name,), (renewed(self.typed[name]),)))
                    then[name] = self.new()
        for name in state:
            if then[name] != state[name] or other[name] != state[name]:
                state[name] = then[name] | other[name] | self.new()  # a condition that is known leaves one side as it is

    def loop(self, s, state: dict) -> list:
        """What has to stand before a loop."""
        before = []
        for _ in range(9):
            inside = dict(state)
            s.body[:] = self.body(s.body, inside)
            lost = [n for n in sorted(assigned(s.body) & state.keys())
                    if any(inside[n] & state[n] & held for other, held in state.items() if other != n)]
            self.errors += len(lost)
            if not lost or not self.repair:
                break
            for name in lost:
                before.append(Assign((name,), (renewed(self.typed[name]),)))
                state[name] = self.new()
        for name in sorted(assigned(s.body) & state.keys()):
            state[name] = self.new() | (inside[name] | state[name] if getattr(s, "form", "") == "static" else frozenset())
        return before


def assigned(body) -> set[str]:
    out = set()
    for s in body:
        out |= {*s.names} if isinstance(s, (Assign, Call)) else {s.result} if isinstance(s, Atomic) and s.result else set()
        for b in s.bodies():
            out |= assigned(b)
    return out


def _walk(program: Program, repair: bool) -> int:
    walk = Walk(repair)
    for f in program.functions:
        state = {p[0]: walk.new() for p in f.parameters}
        walk.typed |= {n: Expr("var", (), d, s, n) for n, d, s in f.parameters}
        f.body[:] = walk.body(f.body, state)
    program.body[:] = walk.body(program.body, {})
    return walk.errors


def repair(program: Program):
    """Change a program so that the front end keeps all it assigns."""
    _walk(program, True)


def kept(program: Program) -> bool:
    """Whether the front end keeps all that a program assigns."""
    return _walk(program, False) == 0
