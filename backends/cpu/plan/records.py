"""What a plan is made of: immutable records, which the scheduler makes, `show` prints and the emitter follows.

Values and operations are TTIR's; a record holds no LLVM IR and no reference to who made it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ..ttir.types import Op, Value
from . import ranges
from .effort import Effort
from .facts import Poly
from .quotients import MANY, Quotient, written_out

# --- scratch ---------------------------------------------------------------------------------------------------------


class Piece(NamedTuple):
    """A place in a thread's scratch block: `size` bytes, `offset` from its start, needed from the step numbered `first` to `last`."""

    offset: int
    size: int
    first: int
    last: int


class Part(NamedTuple):
    """A place `offset` bytes behind another one."""

    place: int
    offset: int


class Constant(NamedTuple):
    """A place in the program itself, where a constant tensor's elements are laid down."""

    elem: str
    values: tuple


Place = Piece | Part | Constant


@dataclass(frozen=True)
class Buffer:
    """A tensor in memory: it starts at the plan's place number `place`; element strides per dimension. `panel` = (dimension, width, pitch) stores
    that dimension in panels of `width`, each panel contiguous, `pitch` elements from one to the next (the packed operand of a matrix product).
    `piece`: the number of the place in scratch that it is part of, None for what is not in scratch."""

    place: int
    elem: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    panel: tuple[int, int, int] | None = None
    piece: int | None = None

    def reshaped(self, shape) -> Buffer:
        """The same elements in row-major order under another shape."""
        return Buffer(self.place, self.elem, tuple(shape), row_major(shape), piece=self.piece)

    @property
    def is_row_major(self) -> bool:
        return self.panel is None and self.strides == row_major(self.shape)


def row_major(shape) -> tuple[int, ...]:
    """The strides of `shape` in row-major order, in elements."""
    strides, n = [], 1
    for d in reversed(shape):
        strides.append(n)
        n *= d
    return tuple(reversed(strides))


def inner_first(shape, inner: int) -> tuple[int, ...]:
    """The strides of `shape` in elements, dimension `inner` contiguous and the others in row-major order around it."""
    strides, n = [0] * len(shape), 1
    for d in (inner, *(d for d in reversed(range(len(shape))) if d != inner)):
        strides[d] = n
        n *= shape[d]
    return tuple(strides)


# --- what loops carry ------------------------------------------------------------------------------------------------


class Trips(NamedTuple):
    """A number that is known where the kernel runs: the trips that a loop has made, times `times`; `after`: all that it made."""

    loop: int
    times: int
    after: bool


class Induction(NamedTuple):
    """A tensor carried by a loop that only moves by the same step: initial + trips x step, never stored."""

    init: Value
    step: Value
    count: Trips


# --- nests -----------------------------------------------------------------------------------------------------------


def at_index(i: int) -> int:
    """The entry of `dims` that says index `i`, whatever the loops do; its own inverse."""
    return -1 - i


class Atom(NamedTuple):
    """A comparison that loop bounds can decide: `value` at `dims` is base + sum of coef[d] x index[d] < 0, where `checks` hold."""

    value: Value
    dims: tuple
    coef: dict[int, Poly]
    base: Poly
    checks: tuple[ranges.Check, ...]


class Keep(NamedTuple):
    """A value that a nest computes and later roots want: it is written to `buffer`. Where all of the masks `unread` are known to be false nobody
    reads what would be written (None: somebody may)."""

    value: Value
    buffer: Buffer
    unread: tuple[Value, ...] | None


@dataclass(frozen=True)
class NestPlan:
    """A loop nest over the index space `shape` (of `tensor`'s shape, where dimensions that everything walks together were `merged`).

    order: its loops, outermost first; vdim: the vector dimension, in chunks of `lanes`; times: how often its innermost loop is unrolled;
    atoms: masks that become loop bounds; reads: what it finds in memory; inductions: what it finds as initial + trips x step; keeps: what it
    writes for later roots; steps: how many indices a loop over a dimension takes at once, where that is not one;
    quotients: quotients and remainders that a chunk's lanes have together; backwards: the dimension that is walked from its end; registers: in a chunk, of those that lanes were counted by; chunks: of such
    groups, how many go side by side (0: the root says); picks: exchanges of lanes that it computes (exchanges.py), operands first; apart: whether chunks of its innermost loop may begin
    anywhere; looks: whether they are looked at for a quotient in common."""

    shape: tuple[int, ...]
    tensor: tuple[int, ...]
    order: tuple[int, ...] = ()
    vdim: int = 0
    lanes: int = 1
    times: int = 1
    atoms: tuple[Atom, ...] = ()
    reads: Mapping[Value, Buffer] = field(default_factory=dict)
    inductions: Mapping[Value, Induction] = field(default_factory=dict)
    keeps: tuple[Keep, ...] = ()
    quotients: Mapping[tuple[Value, tuple], Quotient] = field(default_factory=dict)
    steps: Mapping[int, int] = field(default_factory=dict)
    backwards: int | None = None
    registers: int = 1
    chunks: int = 0
    picks: tuple[tuple[Value, tuple], ...] = ()
    apart: bool = False
    looks: bool = False

    @property
    def whole(self) -> dict[tuple[Value, tuple], Quotient]:
        """The quotients and remainders that each chunk's lanes have together."""
        return {key: p for key, p in self.quotients.items() if p.always(self.lanes)}

    @property
    def pieces(self) -> dict[tuple[Value, tuple], Quotient]:
        """Those by which an innermost loop goes piece by piece, where one does not by whole chunks, or would compute many of each."""
        found = {key: p for key, p in self.quotients.items() if self.lanes > 1 and not p.is_short(self.lanes)} if self.apart else {}
        return {} if len(found) < MANY and all(p.always(self.lanes) for p in found.values()) else found

    @property
    def written_out(self) -> int | None:
        """The size of pieces of which each chunk is written for itself, without a loop."""
        return written_out(self.pieces, self.lanes)

    @property
    def looked_at(self) -> dict[tuple[Value, tuple], Quotient]:
        """Those that most have together: which ones is looked at as the kernel runs."""
        return {key: p for key, p in self.quotients.items() if p.mostly(self.lanes)} if self.looks else {}

    @property
    def identity(self) -> tuple[int, ...]:
        return tuple(range(len(self.shape)))

    @property
    def merged(self) -> bool:
        return self.shape != self.tensor


class Walk(NamedTuple):
    """What a root wants of a nest: an index space, and `sinks` [(value, dims)] evaluated in it.

    vdim, lanes: where the root has a say in them; inner: the dimension of the innermost loop where that is not the vector dimension (a
    reduction's axis); merge: dimensions that everything walks together, in order, may become one; into: a buffer that is written; groups: its chunks may be groups of registers;
    along: registers that a chunk keeps all along; late: values that are not there before the nest, for they are made of what it computes; turned: the innermost loop's indices go a block
    at a time, which is transposed."""

    shape: tuple[int, ...]
    sinks: list[tuple[Value, tuple[int, ...]]]
    vdim: int | None = None
    lanes: int | None = None
    inner: int | None = None
    into: Buffer | None = None
    merge: bool = False
    groups: bool = False
    along: int = 0
    late: frozenset[Value] = frozenset()
    turned: bool = False


# --- steps -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scalar:
    """An operation on scalars, carried out where it stands."""

    op: Op


@dataclass(frozen=True)
class Fill:
    """A tensor's elements are put into `buffer`, converted to its element type. unroll: chunks of the innermost loop that go together; group: a lane
    is so many neighbours along that loop, the first one low; turned: as many of its indices as there are lanes go together, whose vectors are transposed. op: for whose
    sake; why: the reason, for people."""

    op: Op
    value: Value
    buffer: Buffer
    nest: NestPlan
    unroll: int = 1
    group: int = 1
    why: str = ""
    turned: bool = False


@dataclass(frozen=True)
class Root:
    """An operation that needs elements, carried out in `nest` (None: it is one of scalars). out: where its results go (None: a scalar, or nobody
    reads it)."""

    op: Op
    nest: NestPlan | None
    out: tuple[Buffer | None, ...] = ()

    @property
    def nests(self) -> tuple[NestPlan, ...]:
        return (self.nest,) if self.nest is not None else ()


@dataclass(frozen=True)
class Rest(Root):
    """A store that is carried out where the `product` has not ended in it (ending.py)."""

    product: Op | None = None


@dataclass(frozen=True)
class Turned(Root):
    """A store, block by block, of lines that `fill` loads along another dimension: they are transposed in registers, and not put into its buffer."""

    fill: Fill | None = None

    @property
    def nests(self) -> tuple[NestPlan, ...]:
        return self.nest, self.fill.nest


@dataclass(frozen=True)
class Reduction(Root):
    """quick: a maximum or minimum is first taken by plain comparisons, which skip NaN, and again, exactly, where that finds no number; chunks: how many
    go side by side; times: how often a loop over them is unrolled; lines: of how many indices of the loop round the innermost one results are taken at once."""

    quick: bool = False
    chunks: int = 1
    times: int = 1
    lines: int = 1


@dataclass(frozen=True)
class Lookup(Root):
    """A gather from the tensor at `source`."""

    source: Buffer | None = None


@dataclass(frozen=True)
class Prints(Root):
    """One nest for each tensor that is printed."""

    each: tuple[NestPlan | None, ...] = ()

    @property
    def nests(self) -> tuple[NestPlan, ...]:
        return tuple(n for n in self.each if n is not None)


@dataclass(frozen=True)
class Named:
    """A Python variable (`name`, names.Name) is `value` from here on, a tensor as it lies in `buffer`; None: a constant of the language."""

    op: Op
    name: object
    value: Value | None
    buffer: Buffer | None


@dataclass(frozen=True)
class Stage:
    """One root of a group, for one row. reads: what it finds in memory; chunks: of a reduction, how many go side by side; times: how often its
    loop (over these) is unrolled."""

    op: Op
    out: Buffer | None
    reads: Mapping[Value, Buffer]
    keeps: tuple[Keep, ...]
    quick: bool = False
    chunks: int = 1
    times: int = 1


@dataclass(frozen=True)
class Rows:
    """Roots over one index space that are carried out row by row, all of them for a row before the next: what they keep is one row long. nest: the
    index space, whose first dimension is the loop over rows."""

    stages: tuple[Stage, ...]
    nest: NestPlan


# --- control flow ----------------------------------------------------------------------------------------------------

#: where a carried value lives: a buffer of a tensor, None for a scalar (the emitter's own), an induction that is not stored
Slot = Buffer | Induction | None


@dataclass(frozen=True)
class Copy:
    """One row-major buffer is copied to another of the same shape."""

    op: Op
    to: Buffer
    source: Buffer


@dataclass(frozen=True)
class Assign:
    """Scalar slots, named by the values that are read from them, get new values, all at once."""

    op: Op
    pairs: tuple[tuple[object, Value], ...]


class Idle(NamedTuple):
    """Steps that stand for what loops carry, where none of `trips` is made."""

    trips: tuple[Trips, ...]
    steps: tuple


@dataclass(frozen=True)
class For:
    """A loop. number: `Trips.loop` of what it carries as inductions; slots: of each carried value; body: its steps, assignments at its end
    included; idle: what is done behind it, where neither it nor one that it goes on from makes a trip."""

    op: Op
    number: int
    slots: tuple[Slot, ...]
    body: tuple
    idle: tuple[Idle, ...] = ()


@dataclass(frozen=True)
class If:
    op: Op
    slots: tuple[Slot, ...]
    branches: tuple[tuple, ...]


@dataclass(frozen=True)
class While:
    """entry: steps that give the carried values their first ones; test: those of the part that computes the condition; body: of the part behind
    it."""

    op: Op
    entry: tuple
    test: tuple
    body: tuple


@dataclass(frozen=True)
class Body:
    """A function's blocks, each with its steps; the last of them is a `Jump`, a `Branch` or a `Return` where there is control flow between them."""

    region: object
    blocks: tuple[tuple[object, tuple], ...]


@dataclass(frozen=True)
class Call:
    """A function that Triton did not inline."""

    op: Op
    body: Body


@dataclass(frozen=True)
class Jump:
    """Control goes on at the block `label`."""

    op: Op
    label: str


@dataclass(frozen=True)
class Branch:
    """Control goes on along one of two edges (label, steps on the way), by the scalar `condition`."""

    op: Op
    condition: Value
    edges: tuple[tuple[str, tuple], tuple[str, tuple]]


@dataclass(frozen=True)
class Return:
    """The function that is walked ends."""

    op: Op


@dataclass(frozen=True)
class Plan:
    """What the compiler decided about a kernel.

    steps: what is done, in order; regions: combine functions that run on scalars; places: of all buffers, by number; scratch: bytes of a
    thread's block; disjoint: arguments taken not to overlap ((loaded, stored) -> whether equal addresses do no harm); most: what a launch keeps
    to; effort: what a program does, roughly (effort.py; None: a loop's length is not known); notes: for people, by operation; checks: what a
    checked kernel checks (checks.Checks), None where it checks nothing; estimates: divisions that go by an estimate."""

    steps: tuple
    regions: Mapping[object, object]
    places: tuple[Place, ...]
    scratch: int
    disjoint: Mapping[tuple[int, int], bool]
    most: Mapping[tuple[str, int], int]
    effort: Effort | None
    notes: Mapping[Op, str]
    checks: object = None
    estimates: frozenset[Op] = frozenset()
