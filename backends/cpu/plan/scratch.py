"""Scratch memory: where in a thread's block each buffer is. A pass of its own, behind the scheduler: buffers that are never needed at one time
may be at one place.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from .looks import Check, FiniteStore, Made
from .product import Decode, Product
from .records import (Assign, Body, Branch, Buffer, Call, Copy, Fill, For, If, Jump, Lookup, Named, NestPlan, Prints, Reduction, Rest, Return, Root, Rows,
                      Scalar, Turned, While)

ALIGNMENT = 64
#: bytes that are left free behind each buffer
_BEHIND = 64
#: buffers from this size on are kept apart modulo the page size (see `place`)
_LARGE, _PAGE = 2048, 4096


class Life(NamedTuple):
    """The first and the last step, by number, at which a buffer holds what somebody wants."""

    first: int
    last: int


#: of what nobody reads or writes
NEVER = Life(0, -1)
#: of what a debugger, or the next program, may look at
ALWAYS = Life(0, 1 << 62)

# --- lifetimes -------------------------------------------------------------------------------------------------------


def lives(body: Body) -> dict[int, Life]:
    """From when to when each of the plan's places is needed, by its number: from the first to the last step that reads or writes it. Where that is
    a step of a loop and another one outside it, it is needed in the whole loop; what the next program wants is needed for ever."""
    walk = _Lives()
    walk.body(body)
    return {n: ALWAYS if n in walk.kept else Life(first, last) for n, (first, last, _) in walk.found.items()}


class _Lives:
    """The walk over a plan's steps. found: place -> [first step, last step, the loop in which all of that is, or None]; kept: places whose contents the next program wants."""

    def __init__(self):
        self.clock = 0
        self.found: dict[int, list] = {}
        self.kept: set[int] = set()

    def steps(self, steps):
        for step in steps:
            _WITHIN.get(type(step), _Lives.plain)(self, step)

    def plain(self, step):
        now, self.clock = self.clock, self.clock + 1
        found = self.found
        for buf in _TOUCHED[type(step)](step):
            if buf is None or buf.piece is None:
                continue
            old = found.get(buf.piece)
            if old is None:
                found[buf.piece] = [now, now, None]
            elif old[2] is None:
                old[1] = now
            else:
                found[buf.piece] = [old[2].first, now, None]

    def again(self, parts: Iterable[tuple]):
        """Lists of steps that are carried out in turns: what is needed in two of them is needed in all."""
        outer, start, inner = self.found, self.clock, []
        for steps in parts:
            self.found = {}
            self.steps(steps)
            inner.append(self.found)
        loop, self.found = Life(start, self.clock), outer
        for found in inner:
            for place, (first, last, _) in found.items():
                old = outer.get(place)
                if old is None:
                    outer[place] = [first, last, loop]
                else:
                    outer[place] = [min(old[0] if old[2] is None else old[2].first, loop.first), loop.last, None]
        self.clock += 1

    def body(self, step: Body):
        if len(step.blocks) > 1:  # control may come back to any of them
            self.again(steps for _, steps in step.blocks)
        else:
            self.steps(step.blocks[0][1])

    def product(self, step: Product):
        if step.b.kept:
            self.kept.add(step.b.buffer.piece)
        self.plain(step)  # operands that are turned or copied are written before the product, beside what other steps of it read
        for steps in (step.a.packing, step.b.packing, step.filling, step.zeros):
            self.steps(steps)
        self.plain(step)

    def loop(self, step: For):
        self.again((step.body,))
        for idle in step.idle:
            self.steps(idle.steps)

    def branches(self, step: If):
        for steps in step.branches:
            self.steps(steps)

    def loop_while(self, step: While):
        self.steps(step.entry)
        self.again((step.test + step.body,))

    def edges(self, step: Branch):
        for _, steps in step.edges:
            self.steps(steps)


_WITHIN = {Body: _Lives.body, For: _Lives.loop, If: _Lives.branches, While: _Lives.loop_while, Branch: _Lives.edges, Product: _Lives.product,
           Call: lambda walk, step: walk.body(step.body)}


def _walked(nest: NestPlan) -> Iterator[Buffer | None]:
    yield from nest.reads.values()
    yield from (keep.buffer for keep in nest.keeps)


def _of_fill(step: Fill):
    yield step.buffer
    yield from _walked(step.nest)


def _of_root(step: Root):
    yield from step.out
    for nest in step.nests:
        yield from _walked(nest)


def _of_lookup(step: Lookup):
    yield step.source
    yield from _of_root(step)


def _of_rows(step: Rows):
    yield from _walked(step.nest)
    for stage in step.stages:
        yield stage.out
        yield from stage.reads.values()
        yield from (keep.buffer for keep in stage.keeps)


def _of_product(step: Product):
    yield from (step.a.buffer, step.b.buffer, step.b.woven, step.destination, step.final)
    if step.ending is not None:
        yield from _walked(step.ending.nest)


def _of_check(step):
    return () if step.nest is None else _walked(step.nest)


def _none(step):
    return ()


#: step -> the buffers that it reads or writes itself
_TOUCHED = {Fill: _of_fill, Root: _of_root, Rest: _of_root, Turned: _of_root, Reduction: _of_root, Prints: _of_root, Lookup: _of_lookup, Rows: _of_rows,
            Copy: lambda step: (step.to, step.source), Product: _of_product,
            Decode: lambda step: (step.source, step.scales, step.out), Check: _of_check, Made: _of_check, FiniteStore: _of_check,
            **dict.fromkeys((Scalar, Named, Assign, Jump, Return), _none)}


# --- places ----------------------------------------------------------------------------------------------------------


def place(sizes: Sequence[int], needed: Sequence[Life]) -> tuple[list[int], int]:
    """(where each buffer of so many bytes starts, bytes of all): the largest first, each at the first place that is free for as long as it is needed.

    A load that is 4 KiB (modulo) from a store still in flight waits for it. Loops read one buffer a little ahead of where they write another, so
    each large buffer starts 64 bytes short of the large one before it, modulo 4 KiB."""
    offsets, total = [0] * len(sizes), 0
    number = {n: i for i, n in enumerate((n for n, size in enumerate(sizes) if size >= _LARGE), 1)}
    there: list[tuple[int, int, Life]] = []  # from where to where, and when, in order
    for n in sorted((n for n in range(len(sizes)) if needed[n] != NEVER), key=lambda n: -sizes[n]):
        room = (sizes[n] + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT + _BEHIND
        first, last = needed[n]
        step, short = (_PAGE, -ALIGNMENT * number[n]) if n in number else (1, 0)
        at = short % step
        for start, end, life in there:
            if at + room <= start:
                break
            if life.first <= last and first <= life.last:
                at = max(at, end + (short - end) % step)
        offsets[n] = at
        bisect.insort(there, (at, at + room, needed[n]))
        total = max(total, at + room)
    return offsets, total
