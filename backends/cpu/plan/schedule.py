"""The scheduler: walks a kernel in program order and decides everything: what is computed where it stands and what is put into memory, in which
order loops run, which roots go row by row together, which arguments are taken to be disjoint. It makes steps (records.py) and no LLVM IR.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from ..llvm.elements import bytes_of
from ..llvm.targets import Target
from ..ttir.ops import row
from ..ttir.types import Func, Op, Value
from . import estimates, exchanges, keeping, order, pressure, quotients, ranges, turning
from .facts import Facts
from .lazy import Lazy, renamed
from .records import Buffer, Constant, Fill, Idle, Induction, Keep, NestPlan, Part, Place, Root, Walk, inner_first, row_major
from .sequence import Sequence
from .space import Known, Space


class Room(NamedTuple):
    """A place in a thread's scratch block that is yet to be found, of `size` bytes, for the sake of `op`."""

    size: int
    op: Op | None


#: simple operations on an element up to which a loop is written twice, for chunks that have one quotient and for others
LOOKS_UP_TO = 64


def _in_order(buf: Buffer | None, d: int) -> bool:
    """Are neighbours along `d` neighbours in a buffer, if there is one?"""
    return buf is None or buf.panel is None and buf.strides[d:d + 1] == (1,)


def _side_by_side(into: Buffer | None, d: int, shape: tuple[int, ...]) -> int:
    """How many neighbours along `d` a vector may hold: it ends where a panel that it is stored to does."""
    return min(shape[d], into.panel[1]) if into is not None and into.panel and into.panel[0] == d else shape[d]


class Schedule:
    """What has been decided so far, and what is known where the walk stands.

    func: the kernel; lazy: which of its operations are lazy; assume: arguments are taken to be disjoint, and sizes such that what is compared
    does not wrap, where launches check it; refuse: (operation, sentence) -> the error to raise; operation: (schedule, operation) makes the steps
    of one operation."""

    def __init__(self, func: Func, target: Target, lazy: Lazy, assume: bool, refuse: Callable, operation: Callable):
        self.func, self.target, self.lazy, self.assume, self.refuse, self._operation = func, target, lazy, assume, refuse, operation
        self.facts = Facts(lazy)
        self.buffers: dict[Value, Buffer] = {}
        self.inductions: dict[Value, Induction] = {}
        self.known = Known(self.buffers, self.inductions, lazy)
        self.together = exchanges.together(func)
        self.sequence = Sequence(func.body, lazy, self.facts)
        self.now = 0  # what has been carried out: all up to this number of the sequence
        self.places: list[Room | Place] = []
        self.disjoint: dict[tuple[int, int], bool] = {}
        self.most: dict[tuple[str, int], int] = {}  # ("grid", axis) or ("argument", place) -> the most that a launch may have there
        self.block = None
        self.op: Op | None = None
        self.frame = None  # the function that is walked (control.Frame)
        self.steps: list = []
        self.regions: dict = {}
        self.notes: dict[Op, str] = {}  # what was not done, and why
        self.zeros: dict[Value, Idle] = {}  # what a loop carries and begins with zeros -> what would put those into memory, and which trips would be none
        self.idle: dict[Value, Idle] = {}  # a loop's result -> what puts zeros there where no trip was made
        self.turned: dict[int, tuple[int, ...]] = {}  # the piece of scratch of what a loop carries in another order than row-major -> its strides
        self.checks = None  # checks.Checks of a checked kernel
        self.made: dict[tuple, list] = {}  # shape -> what may have made something that is not finite and is not noted yet (finite.Maker)
        self.checked: set[Op] = set()  # whose check is planned
        self.variables: dict | None = None  # of a kernel for a debugger: where the elements of Python's variables lie
        self.estimates: set[Op] = set()  # divisions that go by an estimate
        self.required: set = set()  # comparisons, and blocks in which it has been seen to that they do not wrap

    # -- walking
    def operation(self, op: Op):
        """The steps of one operation."""
        self._operation(self, op)

    def run(self, block):
        """The steps of a block's operations, in order."""
        outer, self.block = self.block, block
        for op in block.ops:
            if self.lazy(op) or self.sequence.end[op] > self.now:  # else it was carried out with another one
                self.operation(op)
            self.now = max(self.now, self.sequence.end[op])
        self.block = outer

    def remember(self, buffers: dict[Value, Buffer]):
        """From here on these values are in memory."""
        self.buffers = buffers
        self.known = Known(buffers, self.inductions, self.lazy)

    # -- what was decided
    def add(self, step):
        """The next step."""
        self.steps.append(step)

    def rely_on(self, pair: tuple[int, int], fine: bool):
        """Two arguments (loaded, stored) are taken to be disjoint; `fine`: equal addresses would do no harm."""
        self.disjoint[pair] = self.disjoint.get(pair, True) and fine

    def proved(self, check: ranges.Check, shape) -> bool | None:
        """Does the check hold: certainly, or in every launch that keeps to `self.most`? None where the kernel has to look, False where
        it cannot."""
        found = ranges.decided(check, shape)
        if found is None and self.assume and (bounds := ranges.at_launch(check, shape, self.func.args)) is not None:
            for key, most in bounds.items():
                self.most[key] = min(most, self.most.get(key, most))
            return True
        return found

    @property
    def before(self) -> int:
        """The cost of the operations that have been carried out."""
        return self.sequence.cost[self.now]

    # -- scratch
    def _place(self, place: Room | Place) -> int:
        self.places.append(place)
        return len(self.places) - 1

    def alloc(self, shape, elem: str, strides=None, panel=None, size: int | None = None) -> Buffer:
        """A new buffer in this thread's scratch block. size: its elements, where strides leave gaps."""
        piece = self._place(Room((math.prod(shape) if size is None else size) * bytes_of(elem), self.op))
        return Buffer(piece, elem, tuple(shape), tuple(strides or row_major(shape)), panel, piece)

    def view(self, buf: Buffer, offset: int, shape, strides, elem: str | None = None) -> Buffer:
        """Part of a buffer, `offset` elements in, under a shape and strides (and an element type) of its own."""
        place = self._place(Part(buf.place, offset * bytes_of(buf.elem))) if offset else buf.place
        return Buffer(place, elem or buf.elem, tuple(shape), tuple(strides), piece=buf.piece)

    def table(self, v: Value) -> Buffer:
        """A constant tensor, laid down in the program."""
        elem, shape = v.type.elem, v.type.shape
        return Buffer(self._place(Constant(elem, tuple(v.op.attrs["value"]))), elem, shape, row_major(shape))

    # -- nests
    def nest(self, want: Walk, op: Op | None = None) -> NestPlan:
        """How to walk an index space. What must be in memory first is put there. op: the root that it is for, whose nest keeps what later
        roots want (`keep` gives it places)."""
        turned: dict[Value, Buffer] = {}  # for this nest's sake: others may read them as they lie
        while True:
            known = replace(self.known, buffers={**self.buffers, **turned}) if turned else self.known
            space = Space(known, want.shape)
            visited = space.explore(want.sinks)
            picked = exchanges.found(space, (x for x in visited if x[0] not in want.late), want)
            if picked is not None and picked.first is not None:
                self.materialise_row_major(picked.first, why="its elements change places")
                continue
            if want.merge and want.vdim is None:
                space.shape = order.merged(known, visited, space.shape, want.inner, want.into)
            shape = space.shape
            vdim = picked.vdim if picked else want.vdim if want.vdim is not None else order.vector_dimension(space, visited, self.target, self.proved, want.into)
            loops = [d for d in range(len(shape)) if d not in (vdim, want.inner)] + ([vdim] if shape else [])
            if want.inner is not None and want.inner != vdim:
                loops.append(want.inner)
            if want.lanes is None and want.into is None:
                found = turning.first(self, space, [x for x in visited if x[0] not in want.late and x[0] not in turned], vdim)
                if found is not None:
                    turned[found.value] = self._turn(found)
                    continue
            early = keeping.first_to_materialise(self, space, [x for x in visited if x[0] not in want.late], loops, vdim if want.lanes is None else None)
            if early is None:
                break
            self.materialise(early[0], why=early[1])
        self.estimates |= estimates.divisions(self.target, visited)
        lanes, registers, chunks = want.lanes and min(want.lanes, shape[vdim]), 1, 0
        if picked:
            lanes = picked.lanes
        elif lanes is None:
            one = self.target.lanes(order.lane_bits(visited))
            needs = pressure.needs(self.target, space, visited, vdim, want.sinks, want.along, loops[-1] if loops else None) if want.groups and _in_order(want.into, vdim) else None
            if needs is not None:
                registers = pressure.width(self.target, needs)
                chunks = pressure.chunks(self.target, needs, registers)
            lanes = min(one * registers, _side_by_side(want.into, vdim, shape)) if shape else 1
            registers = -(-lanes // one)
        full = tuple(want.shape)
        ident = tuple(range(len(shape)))
        keeps = [v for v, dims in visited if dims == ident and v.type.shape == full and op and v not in turned and keeping.worth_keeping(self, v, op)]
        keeps = keeping.reached(self, keeps, self.sequence.done[op]) if op else []
        apart = loops[-1:] == [vdim] and self.checks is None and self.variables is None and not any(exchanges.counts_lanes(v) or v in known.buffers and known.buffers[v].panel for v, _ in visited)
        divided = quotients.found(space, visited, vdim, self.proved)
        looks = (apart or want.turned) and any(p.mostly(lanes) for p in divided.values()) and order.work(space, [x for x in visited if not quotients.divides(x[0])]) <= LOOKS_UP_TO
        return NestPlan(
            shape, full, tuple(loops), vdim, lanes, 1 if shape != full or picked else order.times_unrolled(known, visited, self.target, self.before),
            tuple(space.atoms(visited, self.proved)),
            {v: known.buffers[v] for v, _ in visited if v in known.buffers},
            {v: self.inductions[v] for v, _ in visited if v in self.inductions},
            tuple(Keep(v, None, None) for v in keeps), divided, registers=registers, chunks=chunks,
            picks=picked.picks if picked else (), apart=apart, looks=looks)

    def keep(self, nest: NestPlan, op: Op, kept: dict[Value, Buffer] | None = None) -> NestPlan:
        """`nest` with places for what it keeps; `kept`: those that the root has already."""
        kept = {} if kept is None else kept
        keeps = []
        for v, _, _ in nest.keeps:
            if v not in kept:
                kept[v] = self.kept_buffer(nest, v)
            keeps.append(Keep(v, kept[v], keeping.unread(self, nest.shape, v, op)))
        return replace(nest, keeps=tuple(keeps))

    def kept_buffer(self, nest: NestPlan, v: Value) -> Buffer:
        """A place for what `nest` keeps of `v`, in the order in which it is computed."""
        shape = v.type.shape
        if nest.merged:
            return self.alloc(shape, v.type.elem)
        return self.alloc(shape, v.type.elem, inner_first(shape, nest.vdim))

    # -- values put into memory
    def materialise(self, v: Value, row_major_only: bool = False, why: str = "") -> Buffer:
        """Put a lazy tensor into scratch (once) and read it from there on."""
        if v in self.buffers:
            return self.buffers[v]
        op = v.op
        dims = tuple(range(len(v.type.shape)))
        if op is not None and row(op).renames and renamed(op, dims) is None:
            self.buffers[v] = self.materialise_row_major(op.operands[0], why).reshaped(v.type.shape)
        else:
            nest = self.nest(Walk(v.type.shape, [(v, dims)], merge=True, groups=True))
            buf = self.alloc(v.type.shape, v.type.elem) if row_major_only else self.kept_buffer(nest, v)
            self.add(Fill(self.op, v, buf, nest, why=why))
            self.buffers[v] = buf
        return self.buffers[v]

    def _turn(self, found: turning.Found) -> Buffer:
        """Put a load into scratch whose neighbours lie along another dimension than it is read along."""
        v, lies, read, lanes = found
        buf = self.alloc(v.type.shape, v.type.elem, inner_first(v.type.shape, read))
        self.fill(buf, v, lies, read, why="its neighbours in memory lie along another dimension", lanes=lanes, turned=True)
        return buf

    def materialise_row_major(self, v: Value, why: str = "") -> Buffer:
        """As `materialise`, in row-major order."""
        if v not in self.buffers:
            return self.materialise(v, row_major_only=True, why=why)
        buf = self.buffers[v]
        if buf.is_row_major:
            return buf
        out = self.alloc(v.type.shape, v.type.elem)
        self.fill(out, v, why=why)
        return out

    def fill(self, buf: Buffer, v: Value, vdim: int | None = None, inner: int | None = None, unroll: int = 1, group: int = 1, why: str = "",
             lanes: int | None = None, turned: bool = False):
        """Write a tensor's elements into `buf`, converted to its element type. `inner` names the innermost loop's dimension where that is not the
        vector dimension; `unroll` chunks of that one go together. `group`: a lane is so many neighbours along `inner`, the first one low. lanes: of the
        vector dimension, where not the target's; turned: as many neighbours along `inner` go together, whose vectors are transposed."""
        shape = v.type.shape
        dims = tuple(range(len(shape)))
        lanes = min(self.target.lanes(32), shape[vdim]) if group > 1 else lanes
        nest = self.nest(Walk(shape, [(v, dims)], vdim, lanes, inner, buf, merge=inner is None, groups=True, turned=turned))
        if group > 1 or turned:
            nest = replace(nest, steps={inner: nest.lanes if turned else group})
        self.add(Fill(self.op, v, buf, nest, unroll, group, why, turned))

    # -- roots
    def finish(self, step: Root):
        """A root's step is the next one; its results and what it kept are in memory from there on."""
        self.add(step)
        for v, buf in zip(step.op.results, step.out):
            if v.type.is_tensor and buf is not None:
                self.buffers[v] = buf
        for nest in step.nests:
            for keep in nest.keeps:
                self.buffers[keep.value] = keep.buffer

    def exchange(self, op: Op):
        """Put into memory what a pick exchanges over more than a chunk, and, in one go, what others of its step do."""
        if not exchanges.through_memory(op) or self.sequence.last(op.result) <= self.now:
            return
        why = "neighbours change places"
        first = op.operands[0]
        if first in self.buffers:
            if not self.buffers[first].is_row_major:
                self.buffers[first] = self.materialise_row_major(first, why=why)
            return
        beside = [v for v in self.together[op] if v is not first and v not in self.buffers and v.op is not None and v.op.block is op.block
                  and self.lazy(v.op) and self.sequence.end[v.op] <= self.now]
        dims = tuple(range(len(first.type.shape)))
        nest = self.nest(Walk(first.type.shape, [(v, dims) for v in (first, *beside)], merge=True))
        kept = [v for v in beside if v not in self.buffers]  # what the nest wanted in memory is there
        if first in self.buffers or not nest.picks:
            for v in (first, *kept):
                self.materialise_row_major(v, why=why)
            return
        self.add(Fill(self.op, first, self.alloc(first.type.shape, first.type.elem), replace(
            nest, keeps=tuple(Keep(v, self.alloc(v.type.shape, v.type.elem), None) for v in kept)), why=why))
        fill = self.steps[-1]
        self.buffers[first] = fill.buffer
        self.buffers.update({keep.value: keep.buffer for keep in fill.nest.keeps})
