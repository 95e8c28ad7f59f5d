"""Picks (`ttir/exchanges.py`) in a nest: exchanges within a chunk of lanes are shuffles, others read what they exchange from memory.

A nest that computes picks walks their last dimension in chunks as wide as they were made for, all of a sort's first steps in registers. Where it goes otherwise, what is made of picks is put
into memory first, by a nest of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..llvm.elements import bytes_of
from ..llvm.targets import Target
from ..ttir.ops import row
from ..ttir.types import Func, Op, Value, walk
from .records import Walk, row_major
from .space import Space

PICK, HALF, BIT = "triport.pick", "triport.half", "triport.bit"
#: a chunk takes one in so many of a target's registers: a key and an index, each beside its partner, and what is computed of them
SHARE = 8


def neighbours(target: Target, elem: str) -> int:
    """How many elements of a type a chunk holds. Of RVV's groups of registers only those that are worth one instruction to a target: lanes move through a group one register at a time."""
    return target.lanes(8 * bytes_of(elem)) * (target.registers // SHARE if target.length == "fixed" else min(target.group, target.registers // SHARE))


def along(op: Op, mask: str) -> tuple[int, ...]:
    """A pick's mask "clear" or "flip" of element numbers, or a bit's "bit" of them, as one of indices for each dimension."""
    shape = op.result.type.shape
    return tuple(op.attrs[mask] // stride % n for stride, n in zip(row_major(shape), shape))


def through_memory(op: Op) -> bool:
    """Does a pick exchange more than what a chunk holds? A half is of twice as much."""
    return op.name == HALF or (op.attrs["clear"] | op.attrs["flip"]) >= op.attrs["width"]


def is_pick(v: Value) -> bool:
    return v.op is not None and v.op.name in (PICK, HALF)


def counts_lanes(v: Value) -> bool:
    """Is an element's number asked for by bits, as if chunks began at multiples of their lanes?"""
    return v.op is not None and v.op.name in (PICK, HALF, BIT)


class Found(NamedTuple):
    """How a nest that computes picks walks: the vector dimension, lanes, and the picks, operands first; or what has to be in memory `first`."""

    vdim: int = 0
    lanes: int = 0
    picks: tuple[tuple[Value, tuple], ...] = ()
    first: Value | None = None


def found(space: Space, visited: Iterable[tuple[Value, tuple]], want: Walk) -> Found | None:
    """How a nest has to walk for the picks among `visited`, operands first; None where there are none."""
    visited = list(visited)
    picks = [x for x in visited if is_pick(x[0]) and x[0] not in space.known.buffers]
    if not picks:
        return None
    chosen = next((x for x in reversed(picks) if x[1] == space.identity), None)
    # A buffer that is written to may be what is exchanged, as what a loop carries: its neighbours are read before it is written.
    if chosen is None or want.vdim is not None or want.lanes is not None or want.inner is not None or want.into is not None:
        return Found(first=_made_of(space, visited, picks[-1]))
    for v, _ in picks:  # where a pick stands its operand goes to memory (Schedule.exchange), but a nest may come before that
        if through_memory(v.op) and v.op.operands[0] not in space.known.buffers:
            return Found(first=v.op.operands[0])
    vdim, lanes = chosen[1][-1], chosen[0].op.attrs["width"]
    for x in reversed(picks):
        v, dims = x
        if dims[-1] < 0 or dims[-1] != vdim or v.op.attrs["width"] != lanes or v.type.shape[-1] != space.shape[vdim]:
            return Found(first=_made_of(space, visited, x))
    return Found(vdim, lanes, tuple(picks))


def _made_of(space: Space, visited: list[tuple[Value, tuple]], pick: tuple[Value, tuple]) -> Value:
    """The last value of a pick's shape, at its indices, that is made of it: all of that in one nest, instead of the pick and again what is made of it."""
    made, best = {pick}, pick[0]
    for v, dims in visited:
        if any(x in made for x in space.known.children(v, dims)) and v not in space.known.buffers:
            made.add((v, dims))
            if dims == pick[1] and v.type.shape == pick[0].type.shape and v.type.elem != "ptr":
                best = v
    return best


def together(func: Func) -> dict[Op, list[Value]]:
    """The picks that go through memory -> what those of their step exchange: a sort's keys and what it sorts beside them are put there by one nest."""
    depth: dict[Value, int] = {}
    steps: dict[tuple, list[Op]] = {}
    for op in walk(func.body):
        deepest = max((depth.get(v, 0) for v in op.operands), default=0)
        if op.name in (PICK, HALF):
            deepest += 1
            if through_memory(op):
                steps.setdefault((op.block, op.operands[0].type.shape, deepest), []).append(op)
        if deepest and row(op).lazy:
            depth.update(dict.fromkeys(op.results, deepest))
    return {op: list(dict.fromkeys(o.operands[0] for o in ops)) for ops in steps.values() for op in ops}
