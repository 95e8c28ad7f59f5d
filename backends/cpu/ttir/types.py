"""TTIR's nouns: types, values, operations, blocks, regions, functions. `reader.py` makes them from text."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from typing import NamedTuple
from functools import lru_cache

from ...base import CompileError


# --- types -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Type:
    """A TTIR type: `elem` is a scalar type's name ("i32", "bf16", "ptr", ...), `shape` is () for a scalar.

    `pointee` is the element type that a pointer points to (a name; "ptr" for pointers to pointers)."""

    elem: str
    shape: tuple[int, ...] = ()
    pointee: Type | None = None

    @property
    def is_tensor(self) -> bool:
        return bool(self.shape) or self.elem.startswith("tensordesc")

    def scalar(self) -> Type:
        return Type(self.elem, (), self.pointee)

    def with_shape(self, shape) -> Type:
        return Type(self.elem, tuple(shape), self.pointee)

    @property
    def numel(self) -> int:
        n = 1
        for d in self.shape:
            n *= d
        return n

    def __str__(self) -> str:
        elem = f"!tt.ptr<{self.pointee}>" if self.elem == "ptr" else self.elem
        return f"tensor<{'x'.join(map(str, self.shape))}x{elem}>" if self.shape else elem


_FP8 = {"f8E5M2": "fp8e5", "f8E4M3FN": "fp8e4nv", "f8E4M3FNUZ": "fp8e4b8", "f8E5M2FNUZ": "fp8e5b16",
        "f8E4M3B11FNUZ": "fp8e4b15"}


@lru_cache(maxsize=4096)
def parse_type(text: str) -> Type:
    """A type's text, as MLIR prints it, to a `Type`."""
    if text.startswith("tensor<"):
        body = text[7:-1]
        shape = []
        while (m := re.match(r"(\d+)x", body)):
            shape.append(int(m[1]))
            body = body[m.end():]
        inner = parse_type(_first(body))  # an encoding may follow
        return Type(inner.elem, tuple(shape), inner.pointee)
    if text.startswith("!tt.ptr<"):
        return Type("ptr", (), parse_type(_first(text[8:-1])))  # an address space may follow, or that what it points to is constant
    return Type(_FP8.get(text, text.lstrip("!")))


def _first(text: str) -> str:
    """What stands before the first comma that is in no angle brackets."""
    depth = 0
    for n, c in enumerate(text):
        depth += (c == "<") - (c == ">")
        if c == "," and not depth:
            return text[:n]
    return text


# --- values, operations, regions -------------------------------------------------------------------------------------


class Loc(NamedTuple):
    """Where in the user's Python an operation comes from; line 0 means unknown. callers: where the function that it is in was inlined, the innermost
    call first."""

    file: str = "<unknown>"
    line: int = 0
    callers: tuple[Loc, ...] = ()

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


class Value:
    """An SSA value: the result `index` of `op`, or (op is None) an argument of `block`. `number` counts the values of a process."""

    __slots__ = ("type", "op", "index", "block", "uses", "name", "number")
    _numbers = itertools.count()

    def __init__(self, type: Type, op=None, index=0, block=None, name=""):
        self.type, self.op, self.index, self.block, self.name = type, op, index, block, name
        self.number = next(Value._numbers)
        self.uses: list[Op] = []

    def __repr__(self):
        return f"%{self.name}:{self.type}"


@dataclass(eq=False)
class Op:
    """One operation. `attrs` holds its attributes, and the bare words of its syntax under their names: "predicate", "axis", "sem"."""

    name: str
    operands: list[Value]
    results: list[Value]
    attrs: dict = field(default_factory=dict)
    regions: list[Region] = field(default_factory=list)
    successors: list[tuple[str, list[Value]]] = field(default_factory=list)
    loc: Loc = Loc()
    block: Block | None = None

    @property
    def result(self) -> Value:
        return self.results[0]

    def __repr__(self):
        return f"{self.name}({', '.join(map(repr, self.operands))})"


@dataclass(eq=False)
class Block:
    label: str
    args: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    region: Region | None = None


@dataclass(eq=False)
class Region:
    blocks: list[Block] = field(default_factory=list)
    op: Op | None = None

    @property
    def block(self) -> Block:
        return self.blocks[0]


@dataclass(eq=False)
class Func:
    name: str
    args: list[Value]
    arg_attrs: list[dict]
    results: list[Type]
    body: Region
    loc: Loc
    public: bool


@dataclass(eq=False)
class Module:
    funcs: dict[str, Func]

    @property
    def kernel(self) -> Func:
        return next(f for f in self.funcs.values() if f.public)


def constant(v: Value) -> int | None:
    """The integer that a scalar, or each element of a tensor, is written down as."""
    value = v.op.attrs["value"] if v.op is not None and v.op.name == "arith.constant" else None
    return value if isinstance(value, int) else None


def made(name: str, operands: list[Value], type: Type, attrs: dict, loc: Loc, block: Block | None, label: str) -> Op:
    """A new operation with one result, which its operands know of; where in the block it stands is for others to say."""
    op = Op(name, operands, [], attrs, loc=loc, block=block)
    op.results = [Value(type, op, 0, None, label)]
    for v in operands:
        v.uses.append(op)
    return op


def give(op: Op, *operands: Value):
    """Other operands to an operation."""
    for v in op.operands:
        v.uses.remove(op)
    op.operands = list(operands)
    for v in operands:
        v.uses.append(op)


def walk(region, only=None):
    """Every operation of a region (or of its one block `only`), nested regions included."""
    for block in [only] if only is not None else region.blocks:
        for op in block.ops:
            yield op
            for r in op.regions:
                yield from walk(r)


# --- calls -----------------------------------------------------------------------------------------------------------

CALL_DEPTH = 64


def expand_calls(module: Module):
    """Give every call in the kernel a copy of the called function's body as its region, arguments put in place."""
    _expand(module, module.kernel.body, 0)


def _expand(module: Module, region: Region, depth: int):
    for block in region.blocks:
        for op in block.ops:
            if op.name == "tt.call" and not op.regions:
                callee = module.funcs.get(str(op.attrs.get("callee")))
                if callee is None or depth > CALL_DEPTH:
                    what = "is not defined" if callee is None else f"calls itself, or calls are over {CALL_DEPTH} deep"
                    raise CompileError(f"triton-cpu: tt.call at {op.loc}: function {op.attrs.get('callee')} {what}")
                copies = dict(zip(callee.args, op.operands))
                give(op)
                op.regions = [_copy(callee.body, op, copies)]
            for r in op.regions:
                _expand(module, r, depth + (op.name == "tt.call"))


def _copy(region: Region, parent: Op, copies: dict[Value, Value]) -> Region:
    """`region` again, with values of its own; `copies` maps what it uses from outside."""
    out = Region(op=parent)
    for block in region.blocks:
        new = Block(block.label, region=out)
        new.args = [Value(a.type, None, 0, new, a.name) for a in block.args]
        copies.update(zip(block.args, new.args))
        out.blocks.append(new)
    for block, new in zip(region.blocks, out.blocks):
        for op in block.ops:
            o = Op(op.name, [copies[v] for v in op.operands], [], dict(op.attrs), loc=op.loc, block=new)
            o.successors = [(label, [copies[v] for v in vals]) for label, vals in op.successors]
            o.results = [Value(r.type, o, n, None, r.name) for n, r in enumerate(op.results)]
            copies.update(zip(op.results, o.results))
            for v in o.operands + [v for _, vals in o.successors for v in vals]:
                v.uses.append(o)
            o.regions = [_copy(r, o, copies) for r in op.regions]
            new.ops.append(o)
    return out
