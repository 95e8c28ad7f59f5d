"""Making a failing program small: `reduce(program, failure, test)` drops and replaces parts as long as it fails in the same way."""

from __future__ import annotations

import dataclasses
import math

from . import evaluate, source
from .edit import constant, edit, well_formed
from .operations import Invalid
from .program import Assign, Atomic, Call, Expr, For, If, Launch, Nothing, Program, Return, While


class Reducer:

    def __init__(self, program: Program, failure, test, tries: int = 600):
        self.best, self.failure, self.test, self.left = program, failure, test, tries

    def attempt(self, candidate: Program) -> bool:
        """Keep a candidate that is smaller and fails as the program did."""
        if self.left <= 0 or not cost(candidate) < cost(self.best) or not well_formed(candidate):
            return False
        try:
            for launch in candidate.launches:
                evaluate.run(candidate, launch)
        except Invalid:
            return False
        self.left -= 1
        failure = self.test(candidate)
        if not self.failure.same(failure):
            return False
        self.best, self.failure = candidate, failure
        return True

    def run(self) -> Program:
        self.launches()
        size = None
        while size != (size := cost(self.best)) and self.left > 0:
            self.drop()
            self.unwrap()
            self.expressions()
            self.arguments()
        self.blocks()
        self.expressions()
        self.arguments()
        return self.best

    def launches(self):
        p = self.best
        if len(p.launches) > 1:
            for launch in p.launches:
                if self.attempt(dataclasses.replace(p, launches=[launch])):
                    break
        for launch in self.best.launches[:1]:
            self.attempt(dataclasses.replace(self.best, launches=[Launch((1, 1, 1), launch.scalars), *self.best.launches[1:]]))

    def bodies(self):
        out = [self.best.body, *(f.body for f in self.best.functions)]
        for s in self.best.statements():
            out += s.bodies()
        return out

    def drop(self):
        """Statements, many at once and then fewer."""
        size = max(len(b) for b in self.bodies())
        while size:
            k = 0
            while True:
                chunks = [b[at:at + size] for b in self.bodies() for at in range(0, len(b), size)]
                chunks = [c for c in chunks if not all(isinstance(s, Nothing) for s in c)]
                if k >= len(chunks) or self.left <= 0:
                    break
                chunk = chunks[len(chunks) - 1 - k]  # from the end: what is made before is used behind
                if not self.attempt(edit(self.best, {id(s): [] for s in chunk})):
                    k += 1
            size //= 2

    def each(self, choose):
        """Try choose(statement) -> candidates' replacements, for every statement, until none helps."""
        seen = set()
        while True:
            todo = [s for s in self.best.statements() if id(s) not in seen]
            if not todo or self.left <= 0:
                return
            s = todo[0]
            seen.add(id(s))
            keep.append(s)
            for new in choose(s):
                if self.attempt(edit(self.best, {id(s): new})):
                    break

    def unwrap(self):

        def choose(s):
            if isinstance(s, If):
                yield s.then
                yield s.other
                if s.other:
                    yield [If(s.condition, [Nothing()], s.other)]
                    yield [If(s.condition, s.then, [])]
            elif isinstance(s, For):
                first = Assign((s.name,), (dataclasses.replace(s.start, attr={"value": 0, "literal": False})
                                           if s.start.op == "const" else constant(s.start),))
                yield [first, *s.body]
                zero, one, two = (Expr("const", (), "int32", (), {"value": n, "literal": True}) for n in (0, 1, 2))
                for stop in (one, two):
                    yield [For(s.name, zero, stop, 1, s.body)]
                if s.form != "range":
                    yield [dataclasses.replace(s, form="range")]
            elif isinstance(s, While):
                yield [Assign((s.name,), (constant(s.stop),)), *s.body]
                yield [For(s.name, Expr("const", (), "int32", (), {"value": 0, "literal": True}), s.stop, 1, s.body)]
                if s.condition is not None:
                    yield [dataclasses.replace(s, condition=None)]
            elif isinstance(s, Return):
                yield []
            elif isinstance(s, Atomic) and s.result is not None:
                yield [dataclasses.replace(s, result=None, other=None)]
            elif isinstance(s, Assign) and len(s.names) > 1:
                for k in range(len(s.names)):
                    yield [Assign(s.names[:k] + s.names[k + 1:], s.values[:k] + s.values[k + 1:])]
            elif isinstance(s, Call):
                f = next(f for f in self.best.functions if f.name == s.function)
                yield [Assign(s.names, tuple(constant(e) for e in f.results))]
                if f.parameters and not f.body and not f.early:
                    given = dict(zip((p[0] for p in f.parameters), s.values))
                    yield [Assign(s.names, tuple(given[e.attr] if e.op == "var" else constant(e) for e in f.results))]
            if getattr(s, "mask", None) is not None and not (isinstance(s, Atomic) and s.result):
                yield [dataclasses.replace(s, mask=None)]

        self.each(choose)
        for f in self.best.functions:
            if f.early:
                fs = [dataclasses.replace(g, early=None) if g is f else g for g in self.best.functions]
                self.attempt(dataclasses.replace(self.best, functions=fs))

    def expressions(self):
        """A part of an expression instead of all of it, or a number."""
        seen = set()
        while self.left > 0:
            nodes = {id(e): e for e in self.best.nodes() if id(e) not in seen and e.op not in ("const", "argument", "range")}
            if not nodes:
                return
            sizes = {k: sum(1 for _ in e.walk()) for k, e in nodes.items()}
            e = nodes[max(sizes, key=sizes.get)]
            seen.add(id(e))
            keep.append(e)
            for new in self.simpler(e):
                if self.attempt(edit(self.best, None, {id(e): new})):
                    break

    def simpler(self, e: Expr):
        if e.op == "var":
            if e.dtype != "pointer":
                yield constant(e, 1)
            return
        if e.dtype != "pointer":
            yield constant(e)
        parts = [p for a in e.args for p in a.walk() if p.dtype == e.dtype]
        parts.sort(key=lambda p: sum(1 for _ in p.walk()))
        given = 0
        for p in parts:
            if p.op == "const" and e.dtype != "pointer":
                continue
            if p.shape == e.shape:
                yield p
                given += 1
            elif p.shape == () and e.dtype != "pointer" and p.op != "argument":
                yield Expr("broadcast", (p,), e.dtype, e.shape)
                given += 1
            if given > 6:
                break
        if e.op == "advance" and e.args[0].op == "pointer":
            yield Expr("pointer", e.args[1:], "pointer", e.shape, e.args[0].attr)
        if e.op == "load" and len(e.args) == 3:
            yield dataclasses.replace(e, args=e.args[:1], attr=None)
        if e.op in ("and", "or") and e.dtype == "int1":
            yield from (a for a in e.args if a.shape != e.shape)
        if e.dtype != "pointer":
            yield constant(e, 1)

    def arguments(self):
        """Drop what nothing uses; plain grids, offsets and numbers."""
        p = self.best
        nodes = list(p.nodes())
        called = {s.function for s in p.statements() if isinstance(s, Call)}
        pointers = {e.attr for e in nodes if e.op == "pointer"}
        numbers = {e.attr for e in nodes if e.op == "argument"}
        buffers = [b for b in p.buffers if b.name in pointers]
        new = dataclasses.replace(
            p, functions=[f for f in p.functions if f.name in called], buffers=buffers,
            storages=[s for s in p.storages if s.name in {b.storage for b in buffers}],
            scalars=[s for s in p.scalars if s.name in numbers],
            launches=[Launch(x.grid, {k: v for k, v in x.scalars.items() if k in numbers}) for x in p.launches])
        if (len(new.functions), len(new.buffers), len(new.scalars)) != (len(p.functions), len(p.buffers), len(p.scalars)):
            self.attempt(new)
        for b in self.best.buffers:
            if b.offset:
                self.attempt(dataclasses.replace(self.best, buffers=[dataclasses.replace(c, offset=0) if c.name == b.name else c
                                                                     for c in self.best.buffers]))
        for s in self.best.scalars:
            if not s.specialize:
                self.attempt(dataclasses.replace(self.best, scalars=[dataclasses.replace(c, specialize=True) if c.name == s.name else c
                                                                     for c in self.best.scalars]))

    def blocks(self):
        """Smaller blocks and buffers."""
        for s in self.best.storages:
            for size in (64, 256):
                if s.size > size:
                    if self.attempt(dataclasses.replace(self.best, storages=[dataclasses.replace(t, size=size) if t.name == s.name else t
                                                                             for t in self.best.storages])):
                        break
        sizes = sorted({n for e in self.best.nodes() for n in e.shape if n > 1}, reverse=True)
        for n in sizes:
            while n > 1:

                def halved(e, n=n):
                    return dataclasses.replace(e, shape=tuple(n // 2 if k == n else k for k in e.shape)) if n in e.shape else e

                if not self.attempt(edit(self.best, node=halved)):
                    break
                n //= 2


#: nodes that were looked at stay alive, so that no other gets their id
keep: list = []


def cost(program: Program) -> tuple:
    """Lines, parts of expressions, arguments, then what makes it no shorter but plainer: launches, blocks, buffers, numbers."""
    nodes = list(program.nodes())
    consts = [min(abs(float(e.attr["value"])), 1e6) for e in nodes if e.op == "const"]
    texts = len(source.module(program).splitlines())
    return (texts, len(nodes), len(program.buffers) + len(program.scalars), sum(math.prod(x.grid) for x in program.launches),
            sum(sum(e.shape) for e in nodes), sum(s.size for s in program.storages) + sum(b.offset for b in program.buffers),
            sum(not s.specialize for s in program.scalars), sum(s.form != "range" for s in program.statements() if isinstance(s, For)), sum(consts))


def reduce(program: Program, failure, test, tries: int = 600):
    """(the smallest program found, how it fails): test(program) is a Failure or None."""
    r = Reducer(program, failure, test, tries)
    r.run()
    keep.clear()
    return r.best, r.failure
