"""Changed copies of programs, and whether one is well formed."""

from __future__ import annotations

import dataclasses

from .program import FLOATS, Assign, Atomic, Call, Expr, For, Function, Program, Statement, While


def edit(program: Program, statements: dict | None = None, expressions: dict | None = None, node=None) -> Program:
    """A copy with other statements (id -> list of them) and expressions (id -> expression); `node` changes every expression left."""
    statements, expressions, done = statements or {}, expressions or {}, {}

    def expression(e: Expr) -> Expr:
        if id(e) in expressions:
            return expressions[id(e)]
        if id(e) not in done:
            args = tuple(map(expression, e.args))
            new = e if all(a is b for a, b in zip(args, e.args)) else dataclasses.replace(e, args=args)
            done[id(e)] = (node(new) if node else new), e
        return done[id(e)][0]

    def field(v):
        if isinstance(v, Expr):
            return expression(v)
        if isinstance(v, tuple):
            return tuple(map(field, v))
        if isinstance(v, list) and v and isinstance(v[0], Statement):
            return body(v)
        return v

    def statement(s) -> list:
        if id(s) in statements:
            return statements[id(s)]
        values = {f.name: getattr(s, f.name) for f in dataclasses.fields(s)}
        new = {k: field(v) for k, v in values.items()}
        return [s if all(new[k] is v or new[k] == v for k, v in values.items()) else type(s)(**new)]

    def body(statements_):
        return [t for s in statements_ for t in statement(s)]

    functions = [Function(f.name, f.parameters, body(f.body), field(f.results), field(f.early) if f.early else None, f.inline)
                 for f in program.functions]
    return dataclasses.replace(program, body=body(program.body), functions=functions)


def well_formed(program: Program) -> bool:
    """Whether every name is known where it is used, as Triton sees it."""

    def known(exprs, names):
        return all(e.op != "var" or e.attr in names for r in exprs for e in r.walk())

    def body(statements, names):
        names = set(names)
        for s in statements:
            if isinstance(s, While):
                names.add(s.name)
            if not known(s.expressions(), names):
                return False
            inside = names | ({s.name} if isinstance(s, For) else set())
            if not all(body(b, inside) for b in s.bodies()):
                return False
            if isinstance(s, (Assign, Call)):
                names.update(s.names)
            elif isinstance(s, Atomic) and s.result:
                names.add(s.result)
        held[id(statements)] = names
        return True

    held = {}
    for f in program.functions:
        names = {p[0] for p in f.parameters}
        if f.early and not known((f.early[0], *f.early[1]), names) or not body(f.body, names) or not known(f.results, held[id(f.body)]):
            return False
    return body(program.body, set())


def constant(e: Expr, value=0) -> Expr:
    value = bool(value) if e.dtype == "int1" else float(value) if e.dtype in FLOATS else value
    return Expr("const", (), e.dtype, e.shape, {"value": value, "literal": False}, (value, value))
