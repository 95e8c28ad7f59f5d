"""TTIR text -> typed operations.

The text that Triton prints is the portable interface between its versions: libtriton's Python bindings lack most attributes. This file
reads modules, functions, regions and blocks; how an operation is written says its row (`ops.Row.form`, read by `forms.py`). What is kept is
what a compiler needs: values with types, attributes, regions, and the user's file:line of every operation.
"""

from __future__ import annotations

from ...base import CompileError
from . import forms
from .attributes import Attributes
from .ops import TABLE
from .locations import unescape
from .types import Block, Func, Loc, Module, Op, Region, Type, Value


def parse(text: str) -> Module:
    """Read a TTIR module. Raises `CompileError` on text that it does not understand."""
    reader = None
    try:
        reader = Reader(text)
        return reader.module()
    except RecursionError as e:
        raise reader.error("regions stand in each other too deeply") from e
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as e:
        said = f"this is a bug in triport ({type(e).__name__}: {e}); please report it with the text"
        raise (reader.error(said) if reader else CompileError(f"triton-cpu: TTIR text: {said}")) from e


class Reader(Attributes):
    """The cursor of one module's text, with the values that are defined where it stands."""

    def __init__(self, text: str):
        super().__init__(text)
        self.scopes: list[dict[str, Value]] = [{}]

    # -- values and locations

    def use(self) -> Value:
        """The value that the next token names."""
        name = self.next("val")[1:]
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        if name.endswith("#0"):
            for scope in reversed(self.scopes):
                if name[:-2] in scope:
                    return scope[name[:-2]]
        raise self.error(f"value %{name} is not defined")

    def define(self, name: str, value: Value):
        value.name = name
        self.scopes[-1][name] = value

    def loc(self) -> Loc:
        """An optional `loc(...)`."""
        if not self.at_location():
            return Loc()
        kind, text, _ = self.toks[self.i]
        self.i += 1
        if kind == "loc":  # an alias
            return self.locations.resolve(text[4:-1])
        start = self.toks[self.i][2] + 1
        self.skip_brackets()
        return self.locations.resolve(self.text[start:self.toks[self.i - 1][2]])

    # -- modules and functions

    def module(self) -> Module:
        while not self.at("module"):
            self.next()
        self.next()
        if self.peek()[0] == "sym":
            self.next()
        if self.accept("attributes"):
            self.dictionary()
        self.expect("{")
        funcs = {}
        while not self.at("}"):
            f = self.func()
            funcs[f.name] = f
        if not any(f.public for f in funcs.values()):
            raise CompileError("triton-cpu: the TTIR text holds no public tt.func")
        return Module(funcs)

    def func(self) -> Func:
        self.expect("tt.func")
        public = True
        while self.peek()[0] == "id":
            public = self.next() != "private"
        name = self.next("sym")[1:].strip('"')
        self.scopes.append({})
        args, attrs = [], []
        self.expect("(")
        while not self.accept(")"):
            args.append(self._argument())
            attrs.append(self.dictionary() if self.at("{") else {})
            self.loc()
            self.accept(",")
        results = self.type_list() if self.accept("->") else []
        if self.accept("attributes"):
            self.dictionary()
        body = Region()
        self._blocks(body, [], ("}",))
        loc = self.loc()
        self.scopes.pop()
        return Func(name, args, attrs, results, body, loc, public)

    def _argument(self, block: Block | None = None) -> Value:
        """`%name: type`, defined from here on."""
        name = self.next("val")[1:]
        self.expect(":")
        value = Value(self.type(), block=block)
        self.define(name, value)
        return value

    # -- regions

    def region(self, op: Op, args: list[Value] = (), opened: bool = False, closing: tuple[str, ...] = ("}",)) -> str:
        """Read a region of `op`, whose first block has the arguments `args`, which `op`'s own syntax names: the token that closed it."""
        region = Region(op=op)
        op.regions.append(region)
        return self._blocks(region, args, closing, opened)

    def _blocks(self, region: Region, args, closing: tuple[str, ...], opened: bool = False) -> str:
        if not opened:
            self.expect("{")
        self.scopes.append({})
        block = Block("", list(args), region=region)
        region.blocks.append(block)
        for a in block.args:
            a.block = block
            self.scopes[-1][a.name] = a
        while not (self.at("}") or self.at("})")):
            if self.peek()[0] == "block":
                block = self._header(region, block)
                continue
            op = self.op()
            op.block = block
            block.ops.append(op)
        if self.peek()[1] not in closing:
            raise self.error(f"expected {' or '.join(closing)}, found {self.peek()[1]!r}")
        self.scopes.pop()
        return self.next()

    def _header(self, region: Region, block: Block) -> Block:
        """`^label(%argument: type, ...):` starts a block: `block` where that holds nothing yet, else a new one."""
        label = self.next()
        if block.ops or block.label:
            block = Block(label, region=region)
            region.blocks.append(block)
        else:
            block.label = label
        if self.accept("("):
            while not self.accept(")"):
                block.args.append(self._argument(block))
                self.loc()
                self.accept(",")
        self.expect(":")
        self.loc()
        return block

    # -- operations

    def op(self) -> Op:
        outer, self.started = self.started, self.i
        names = self._result_names()
        kind, name, _ = self.peek()
        self.next("id", "str")
        op = Op(unescape(name) if kind == "str" else name, [], [])
        types = self._rest(op, kind == "str", len(names))
        op.loc = self.loc()
        if len(names) != len(types):
            raise self.error(f"{len(names)} results have names and {len(types)} have types")
        for k, (n, t) in enumerate(zip(names, types)):
            v = Value(t, op, k)
            self.define(n, v)
            op.results.append(v)
        for v in op.operands + [v for _, values in op.successors for v in values]:
            v.uses.append(op)
        self.started = outer
        return op

    def _result_names(self) -> list[str]:
        """`%a, %b:2 =`: the names under which results are used."""
        out = []
        while self.peek()[0] == "val":
            name = self.next()[1:]
            if self.accept(":"):
                count = self.number()
                if not isinstance(count, int) or not 0 <= count <= 10_000:
                    raise self.error(f"a value of {count} results")
                out += [name] if count == 1 else [f"{name}#{k}" for k in range(count)]
            else:
                out.append(name)
            self.accept(",")
        if out:
            self.expect("=")
        return out

    def _rest(self, op: Op, quoted: bool, results: int) -> list[Type]:
        """What stands behind an operation's name: the types of its results."""
        row = TABLE.get(op.name)
        if quoted:
            return forms.generic(self, op)
        if row is None:
            return forms.unknown(self, op, results)
        if row.form == forms.OWN:
            return forms.SPECIAL[op.name](self, op)
        if row.form == forms.GENERIC:
            raise self.error("it is written in MLIR's generic syntax, its name in quotes")
        return forms.follow(self, op, row)
