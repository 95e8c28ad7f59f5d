"""TTIR's nouns: types, values, operations, blocks, regions, functions. `ttir_reader.py` makes them from text."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache


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
        inner = parse_type(body.split(", ")[0])  # an encoding may follow
        return Type(inner.elem, tuple(shape), inner.pointee)
    if text.startswith("!tt.ptr<"):
        return Type("ptr", (), parse_type(text[8:-1].split(", ")[0]))
    return Type(_FP8.get(text, text.lstrip("!")))


# --- values, operations, regions -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loc:
    """Where in the user's Python an operation comes from; line 0 means unknown."""

    file: str = "<unknown>"
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


class Value:
    """An SSA value: the result `index` of `op`, or (op is None) an argument of `block`."""

    __slots__ = ("type", "op", "index", "block", "uses", "name")

    def __init__(self, type: Type, op=None, index=0, block=None, name=""):
        self.type, self.op, self.index, self.block, self.name = type, op, index, block, name
        self.uses: list[Op] = []

    def __repr__(self):
        return f"%{self.name}:{self.type}"


@dataclass(eq=False)
class Op:
    """One operation. `attrs` holds named attributes; `words` the bare words of its syntax (predicates, axes)."""

    name: str
    operands: list[Value]
    results: list[Value]
    attrs: dict = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
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
