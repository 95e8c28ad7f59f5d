"""A random kernel as a tree: expressions with element types and shapes, statements, buffers, arguments.

All numbers are exact: integers wrap, floats are integers that their type holds, whatever order they are added in."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import numpy as np

SIGNED, UNSIGNED = ("int8", "int16", "int32", "int64"), ("uint8", "uint16", "uint32", "uint64")
INTS = SIGNED + UNSIGNED
FLOATS = ("float16", "bfloat16", "float32", "float64")
BITS = {"int1": 8, "float16": 16, "bfloat16": 16, "float32": 32, "float64": 64, **{t: int(t.lstrip("uint")) for t in INTS}}
#: element type -> what numpy computes in (bfloat16, which it has not, in float32)
NUMPY = {"int1": np.dtype(bool), "bfloat16": np.dtype("float32"), **{t: np.dtype(t) for t in INTS + ("float16", "float32", "float64")}}
#: what memory holds
STORED = {**NUMPY, "bfloat16": np.dtype("uint16")}
#: integers up to this size are exact, and no other number is rounded to them
EXACT = {"float16": 2047, "bfloat16": 255, "float32": (1 << 24) - 1, "float64": (1 << 53) - 1}
#: elements before and behind a buffer that nothing may touch
GUARD = 296


@dataclass(frozen=True, eq=False)
class Expr:
    """A value. `span` is what is known of it when it is made: (least, greatest)."""

    op: str
    args: tuple = ()
    dtype: str = "int32"
    shape: tuple = ()
    attr: object = None
    span: tuple | None = None

    def walk(self):
        yield self
        for a in self.args:
            yield from a.walk()


class Statement:

    def bodies(self) -> list[list]:
        """Statements within."""
        return []

    def expressions(self) -> list[Expr]:
        return [v for f in dataclasses.fields(self) for v in _expressions(getattr(self, f.name))]


def _expressions(v):
    return [v] if isinstance(v, Expr) else list(v) if isinstance(v, tuple) and v and all(isinstance(x, Expr) for x in v) else []


@dataclass(eq=False)
class Assign(Statement):
    """names = values, all at once."""

    names: tuple
    values: tuple


@dataclass(eq=False)
class Store(Statement):
    pointer: Expr
    value: Expr
    mask: Expr | None = None


@dataclass(eq=False)
class Atomic(Statement):
    """op: add, max, min, and, or, xor, xchg. `result` is the name of what was there before, `other` what counts where the mask is off."""

    op: str
    pointer: Expr
    value: Expr
    mask: Expr | None = None
    result: str | None = None
    other: Expr | None = None


@dataclass(eq=False)
class If(Statement):
    condition: Expr
    then: list
    other: list

    def bodies(self):
        return [self.then, self.other]


@dataclass(eq=False)
class For(Statement):
    """form: range, static_range, or options of tl.range."""

    name: str
    start: Expr
    stop: Expr
    step: int
    body: list
    form: str = "range"

    def bodies(self):
        return [self.body]


def counter(start: Expr, stop: Expr) -> str:
    """The type that a loop counts in."""
    return "int64" if "int64" in (start.dtype, stop.dtype) else "int32"


@dataclass(eq=False)
class While(Statement):
    """while name < stop [and condition]: body; name += 1, name beginning at 0."""

    name: str
    stop: Expr
    condition: Expr | None
    body: list

    def bodies(self):
        return [self.body]


@dataclass(eq=False)
class Return(Statement):
    """if condition: return"""

    condition: Expr


@dataclass(eq=False)
class Barrier(Statement):
    pass


@dataclass(eq=False)
class Nothing(Statement):
    """`pass`."""


@dataclass(eq=False)
class Call(Statement):
    """names = function(values)"""

    names: tuple
    function: str
    values: tuple


@dataclass
class Function:
    """A @triton.jit function: parameters are variables (name, dtype, shape); `early` is (condition, results) of a return before the last."""

    name: str
    parameters: list
    body: list
    results: tuple
    early: tuple | None = None
    inline: bool = True


@dataclass
class Storage:
    """Memory of `size` elements, filled from `seed`."""

    name: str
    dtype: str
    size: int
    seed: int
    span: tuple | None = None  # of the values; None: all that the type has


@dataclass
class Buffer:
    """A pointer argument: what lies in a storage from a byte on."""

    name: str
    storage: str
    dtype: str
    offset: int


@dataclass
class Scalar:
    """A number argument: dtype int32, int64, float32 or int1. `specialize`: the compiler may know its value."""

    name: str
    dtype: str
    specialize: bool = True


@dataclass
class Launch:
    grid: tuple
    scalars: dict


@dataclass
class Program:
    seed: int
    storages: list
    buffers: list
    scalars: list
    launches: list
    body: list
    functions: list = field(default_factory=list)

    def statements(self):
        """All of them, those within others too."""
        stack = [s for b in [self.body, *(f.body for f in self.functions)] for s in b]
        while stack:
            s = stack.pop()
            yield s
            stack += [t for b in s.bodies() for t in b]

    def nodes(self):
        """All expressions, those within others too."""
        roots = [e for s in self.statements() for e in s.expressions()]
        for f in self.functions:
            roots += [*f.results, *([f.early[0], *f.early[1]] if f.early else [])]
        for e in roots:
            yield from e.walk()


def features(program: Program) -> set[str]:
    """What occurs in a program: operations, statements, element types, and how they are used."""
    out = {e.op for e in program.nodes()} | {e.dtype for e in program.nodes()} | {type(s).__name__ for s in program.statements()}
    ranks = {len(e.shape) for e in program.nodes()}
    out |= {f"rank {n}" for n in ranks} | {f"size {n}" for e in program.nodes() for n in e.shape}
    for e in program.nodes():
        if e.op == "load":
            out.add(f"load {e.attr or 'of all'}")
        elif e.op in ("fold", "scan"):
            out.add(f"{e.op} {e.attr['fn']}")
        elif e.op == "dot":
            out.add(f"dot of {e.args[0].dtype}")
        elif e.op == "cast":
            out.add(f"{e.args[0].dtype} to {e.dtype}")
    for s in program.statements():
        if isinstance(s, If):
            out.add("empty branch" if any(isinstance(t, Nothing) for t in s.then[:1]) else "branch")
            out.add("elif" if s.other and isinstance(s.other[0], If) else "else" if s.other else "if alone")
        elif isinstance(s, (For, While)):
            out |= {f"{t} in a loop" for t in (type(t).__name__ for t in s.body)}
            out.add(f"loop by {s.form}" if isinstance(s, For) else "loop by while")
            if isinstance(s, For) and s.step < 0:
                out.add("loop that goes down")
        elif isinstance(s, Assign):
            if len(s.names) > 1:
                out.add("values exchanged")
            out |= {"a pointer moves" for v in s.values if v.op == "advance" and v.args[0].op == "var"}
            out |= {"a value copied" for v in s.values if v.op == "var"}
        elif isinstance(s, Atomic):
            out.add(f"atomic {s.op}" + (" with result" if s.result else ""))
        elif isinstance(s, Store):
            out.add("store masked" if s.mask is not None else "store of all")
            out.add(f"store of {s.value.dtype}")
    out |= {"function inlined" if f.inline else "function called" for f in program.functions}
    out |= {"function with two returns" for f in program.functions if f.early}
    out |= {f"grid of {sum(n > 1 for n in launch.grid)}" for launch in program.launches}
    placed = {}
    for b in program.buffers:
        for offset, dtype in placed.setdefault(b.storage, []):
            out.add("alias of another type" if dtype != b.dtype else "alias" if offset == b.offset else "alias that overlaps in part")
        placed[b.storage].append((b.offset, b.dtype))
    return out


def fill(dtype: str, size: int, seed: int, span) -> np.ndarray:
    """The values that memory holds before a launch: small ones and, where no span is given, the type's extremes."""
    rng = np.random.default_rng(seed)
    if dtype == "int1":
        return rng.integers(0, 2, size).astype(bool)
    if dtype in FLOATS:
        values = rng.integers(span[0], span[1] + 1, size).astype(NUMPY[dtype])
        return encode(values, dtype)
    info = np.iinfo(dtype)
    if span:
        return rng.integers(span[0], span[1], size, dtype=dtype, endpoint=True)
    values = rng.integers(info.min, info.max, size, dtype=dtype, endpoint=True)
    small = rng.integers(max(info.min, -9), 10, size).astype(dtype)
    edges = np.array([info.min, info.max, info.max - 1, 0, 1], dtype)[rng.integers(0, 5, size)]
    return np.choose(rng.integers(0, 5, size), [values, values, small, small, edges])


def encode(values: np.ndarray, dtype: str) -> np.ndarray:
    """What memory holds of values."""
    if dtype == "bfloat16":
        return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values


def decode(stored: np.ndarray, dtype: str) -> np.ndarray:
    """The values of what memory holds."""
    if dtype == "bfloat16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored
