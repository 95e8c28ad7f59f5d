"""The order of loads and stores. A program's loads happen before the stores that follow them; a lazy load has not happened yet, so what it
would read must not be written before. Pointers from different arguments are taken to be disjoint, which every launch checks."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ..ttir.ops import row
from ..ttir.types import Op, Value, walk
from . import keeping, together
from .facts import root_pointer, same_expression, same_offsets


class Meets(Enum):
    """Might a write change what a load reads?"""

    NEVER = "never"
    YES = "yes"
    ONLY_IF_OVERLAP = "only if two arguments overlap"


class Answer(NamedTuple):
    """Whether a load and a write meet; where that depends on two arguments, which (loaded, stored), and whether equal addresses do no harm."""

    meets: Meets
    pair: tuple[int, int] | None = None
    fine: bool = False


def argument(s, ptr: Value) -> int | None:
    """The place among the kernel's arguments of what `ptr` is derived from; None where that is not known."""
    root = root_pointer(ptr, s.inductions)
    return s.func.args.index(root) if root in s.func.args else None


def meets(s, load: Op, target: int | None, fine: bool = False) -> Answer:
    """Might a write to argument `target` change what `load` reads? `fine`: equal addresses would do no harm."""
    source = argument(s, load.operands[0])
    if source is None or target is None or source == target or not s.assume:
        return Answer(Meets.YES)
    return Answer(Meets.ONLY_IF_OVERLAP, (source, target), fine)


def settle(s, answer, now: int):
    """Loads from before the number `now` that have not happened yet and that meet something, as `answer(load)` says, happen here; what the others rely
    on is noted."""
    for load in s.sequence.loads_before(now):
        v = load.result
        if v in s.buffers:
            continue
        found = answer(load)
        if found.meets is Meets.YES:
            s.materialise(v, why="it is loaded before memory that it may read is written")
            continue
        if found.pair is not None:
            s.rely_on(found.pair, found.fine)


def before_write(s, op: Op, ptr: Value, now: int | None = None):
    """Loads that stand before a write but have not happened yet, and that the write might change, happen here. now: the number behind which
    somebody has to need them, where that is not where the scheduler stands."""
    target = argument(s, ptr)
    now = s.now if now is None else now

    def answer(load) -> Answer:
        v = load.result
        own = s.sequence.later(v, now) == {op} and keeping.reads_identically(s, op, v)
        if target is not None and argument(s, load.operands[0]) == target:
            return Answer(Meets.NEVER if own and same_expression(load.operands[0], ptr) else Meets.YES)
        return meets(s, load, target, own and same_offsets(load.operands[0], ptr))

    settle(s, answer, now)


def before_atomic(s, ptr: Value):
    """As `before_write`, for an operation whose elements may meet one another in memory: every load that it might change
    happens first."""
    target = argument(s, ptr)
    settle(s, lambda load: meets(s, load, target), s.now)


def before_region(s, op: Op):
    """Values from outside that a loop needs: dear ones and loads that the loop may overwrite are computed first."""
    inside = [o for r in op.regions for o in walk(r)]
    inner, stores = {o.block for o in inside}, [o for o in inside if row(o).writes]
    loops = op.name in ("scf.for", "scf.while")
    operands = dict.fromkeys(v for o in inside for v in o.operands)
    outside = [v for v in operands if v.op is not None and v.op.block not in inner and v.type.is_tensor and s.lazy(v.op)]
    needed = [v for v in dict.fromkeys(_narrowest(s, v) for v in outside)
              if v not in s.buffers and keeping.keepable(s, v) and (loops or len(s.facts.consumers(v)) > 1)]
    together.materialise(s, needed, why="a loop needs it in every trip" if loops else "several roots in a branch need it")
    if stores:
        targets = [argument(s, o.operands[0]) for o in stores]
        settle(s, lambda load: _worst(s, [meets(s, load, t) for t in targets]), s.now)


def _narrowest(s, v: Value) -> Value:
    """What has the fewest elements of a value and those that it repeats or renames: a number of each row instead of that in all columns."""
    found = v
    while v not in s.buffers and v.op is not None and s.lazy(v.op) and row(v.op).renames and v.op.operands[0].type.is_tensor:
        v = v.op.operands[0]
        if v.type.numel < found.type.numel:
            found = v
    return found


def _worst(s, answers: list[Answer]) -> Answer:
    """One answer of several: a load that meets one of the writes meets them; else it relies on every pair."""
    for a in answers:
        if a.pair is not None:
            s.rely_on(a.pair, a.fine)
    return Answer(Meets.YES if any(a.meets is Meets.YES for a in answers) else Meets.NEVER)
