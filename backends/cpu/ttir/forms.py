"""How operations are written. Most are described by a *form*, a line of elements separated by blanks (`ops.Row.form`), which one
interpreter here follows:

    value, values     an operand; any number of them, separated by commas
    NAME:word         a bare word (a predicate, an axis), as attribute NAME; NAME:string in quotes, NAME:symbol with its @
    attributes        any of `{key = value}`, `key = value` and `flag<words>`, in any order
    flags             bare words, each an attribute that is True
    types, results    types separated by commas or stars, each perhaps several in brackets; `results` are the results'
    (? ... ?)         read where what it begins with is there
    anything else     that text

The few operations with regions or successors, and constants, have a function each (`SPECIAL`); MLIR's generic syntax another.
"""

from __future__ import annotations

from functools import lru_cache

from .attributes import typed
from .locations import unescape
from .types import Op, Type, Value

#: the form of an operation that is only ever printed in MLIR's generic syntax, or that `SPECIAL` reads
GENERIC, OWN = "generic", "own"


# --- the interpreter -------------------------------------------------------------------------------------------------


@lru_cache(maxsize=None)
def compiled(form: str) -> tuple:
    """The steps of a form: (function, its argument)."""
    steps, outer = [], []
    for element in form.split():
        name, colon, kind = element.partition(":")
        if element == "(?":
            outer.append(steps)
            steps = []
        elif element == "?)":
            inner, steps = tuple(steps), outer.pop()
            steps.append((_maybe, inner))
        elif element in _ELEMENTS:
            steps.append((_ELEMENTS[element], None))
        elif colon and name and kind:
            steps.append((_NAMED[kind], name))
        else:
            steps.append((_literal, element))
    if outer:
        raise ValueError(f"form {form!r}: a (? that is not closed")
    return tuple(steps)


def follow(r, op: Op, row) -> list[Type]:
    """Read what stands behind the name of `op`, as its row's form says: the types of its results."""
    types = Types()
    for step, argument in compiled(row.form):
        step(r, op, types, argument)
    printed = types.operands if types.results is None else types.results
    if row.types is None:
        return printed if types.results is not None else printed[-1:]
    try:
        return row.types(printed)
    except (IndexError, AttributeError):
        raise r.error(f"it cannot have the types {', '.join(map(str, types.operands))}") from None


class Types:
    """The types that an operation prints."""

    def __init__(self):
        self.operands: list[Type] = []
        self.results: list[Type] | None = None  # None: behind no arrow


def _literal(r, op, types, text):
    r.expect(text)


def _value(r, op, types, _):
    op.operands.append(r.use())


def _values(r, op, types, _):
    if r.peek()[0] != "val":
        return
    op.operands.append(r.use())
    while r.at(",") and r.peek(1)[0] == "val":
        r.next()
        op.operands.append(r.use())


def _scaled(r, op, types, _):
    """An operand and perhaps its scales; attribute `scales` tells which operands are scales."""
    op.operands.append(r.use())
    if r.accept("scale"):
        op.attrs.setdefault("scales", []).append(len(op.operands))
        op.operands.append(r.use())


def _word(r, op, types, name):
    op.attrs[name] = r.next("id")


def _string(r, op, types, name):
    op.attrs[name] = unescape(r.next("str"))


def _symbol(r, op, types, name):
    op.attrs[name] = r.next("sym")[1:].strip('"')


def _flags(r, op, types, _):
    while r.peek()[0] == "id" and "." not in r.peek()[1] and r.peek(1)[1] not in ("=", "(", "<"):
        op.attrs[r.next()] = True
        r.accept("|")


def _attributes(r, op, types, _):
    while not r.at(":"):
        comma = r.at(",")
        kind, tok, _ = r.peek(comma)
        if tok in ("{", "<{") and kind != "str" and not comma:
            op.attrs.update(r.dictionary())
        elif kind == "id" and r.peek(comma + 1)[1] == "=":
            r.accept(",")
            r.next()
            r.next()
            op.attrs[tok] = r.attribute()
        elif kind == "id" and not comma and r.peek(1)[1] == "<":
            r.next()
            start = r.i + 1
            r.skip_brackets()
            op.attrs[tok] = [t[1] for t in r.toks[start:r.i - 1]]
        else:
            return


def _types(r, op, types, _):
    types.operands += _several(r)


def _results(r, op, types, _):
    types.results = _several(r)


def _several(r) -> list[Type]:
    out = r.type_list()
    while r.accept(",") or r.accept("*"):
        out += r.type_list()
    return out


def _maybe(r, op, types, steps):
    first, argument = steps[0]
    there = r.at(argument) if first is _literal else r.peek()[0] == _BEGINS[first]
    if there:
        for step, argument in steps:
            step(r, op, types, argument)


_ELEMENTS = {"value": _value, "values": _values, "scaled": _scaled, "attributes": _attributes, "flags": _flags, "types": _types,
             "results": _results}
_NAMED = {"word": _word, "string": _string, "symbol": _symbol}
_BEGINS = {_value: "val", _values: "val", _word: "id", _string: "str", _symbol: "sym"}


# --- what no form says -----------------------------------------------------------------------------------------------


def generic(r, op: Op) -> list[Type]:
    """`"op"(%operands) <{attrs}> ({ regions }) : (types) -> types`: MLIR's generic syntax."""
    r.expect("(")
    while not r.accept(")"):
        op.operands.append(r.use())
        r.accept(",")
    if r.accept("["):
        while not r.accept("]"):
            op.successors.append((r.next("block"), []))
            r.accept(",")
    if r.at("<{"):
        op.attrs.update(r.dictionary())
    if r.accept("({"):  # regions: `({ ... }, { ... })`
        while r.region(op, opened=True, closing=("}", "})")) == "}":
            r.expect(",")
            r.expect("{")
    if r.at("{"):
        op.attrs.update(r.dictionary())
    r.expect(":")
    r.type_list()
    r.expect("->")
    return r.type_list()


def unknown(r, op: Op, results: int) -> list[Type]:
    """An operation that the table does not have: what stands up to the end of its line, values as operands. Making code for it is refused,
    by name."""
    end = _end_of_line(r)
    while r.peek()[0] != "end" and r.peek()[2] < end and not r.at_location() and not (r.at("}") or r.at("})")):
        if r.peek()[0] == "val":
            op.operands.append(r.use())
        elif r.peek()[1] in ("{", "<{", "({"):
            r.skip_brackets()
            end = _end_of_line(r)
        else:
            r.next()
    return [Type("unknown")] * results


def _end_of_line(r) -> int:
    """Where the line of the token before the cursor ends."""
    end = r.text.find("\n", r.toks[r.i - 1][2])
    return end if end >= 0 else len(r.text)


def _constant(r, op: Op) -> list[Type]:
    if r.at("{"):
        r.dictionary()
    if r.accept("dense"):
        op.attrs["value"], ty = r.dense()
        return [ty]
    value, ty = r.number_or_truth(), Type("i1")
    if not isinstance(value, bool):
        r.expect(":")
        ty = r.type()
        value = typed(value, ty.elem)
    op.attrs["value"] = value
    return [ty]


def _carried(r, op: Op) -> list[str]:
    """`(%name = %init, ...)`: the names; the values become operands."""
    names = []
    r.expect("(")
    while not r.accept(")"):
        names.append(r.next("val")[1:])
        r.expect("=")
        op.operands.append(r.use())
        r.accept(",")
    return names


def _for(r, op: Op) -> list[Type]:
    if r.accept("unsigned"):
        op.attrs["unsigned"] = True
    number = r.next("val")[1:]
    for before in ("=", "to", "step"):
        r.expect(before)
        op.operands.append(r.use())
    names, types = [], []
    if r.accept("iter_args"):
        names = _carried(r, op)
        r.expect("->")
        types = r.type_list()
    counter = Value(r.type() if r.accept(":") else Type("index"), name=number)
    r.region(op, [counter, *_arguments(r, names, types)])
    if r.at("{"):
        op.attrs.update(r.dictionary())
    return types


def _arguments(r, names: list[str], types: list[Type]) -> list[Value]:
    if len(names) != len(types):
        raise r.error(f"{len(names)} values are carried and {len(types)} types given")
    return [Value(t, name=n) for n, t in zip(names, types)]


def _if(r, op: Op) -> list[Type]:
    op.operands.append(r.use())
    types = r.type_list() if r.accept("->") else []
    r.region(op)
    if r.accept("else"):
        r.region(op)
    if r.at("{"):
        op.attrs.update(r.dictionary())
    return types


def _while(r, op: Op) -> list[Type]:
    names = _carried(r, op) if r.at("(") else []
    r.expect(":")
    carried = r.type_list()
    r.expect("->")
    types = r.type_list()
    r.region(op, _arguments(r, names, carried))
    r.expect("do")
    r.region(op)
    if r.accept("attributes"):
        op.attrs.update(r.dictionary())
    return types


def _branch(r, op: Op) -> list[Type]:
    if op.name == "cf.cond_br":
        op.operands.append(r.use())
        r.expect(",")
    while True:
        label, values = r.next("block"), []
        if r.accept("("):  # (%a, %b : types)
            while r.peek()[0] == "val":
                values.append(r.use())
                r.accept(",")
            r.expect(":")
            _several(r)
            r.expect(")")
        op.successors.append((label, values))
        if not r.accept(","):
            break
    if r.at("{"):
        op.attrs.update(r.dictionary())
    return []


SPECIAL = {"arith.constant": _constant, "scf.for": _for, "scf.if": _if, "scf.while": _while, "cf.br": _branch, "cf.cond_br": _branch}
