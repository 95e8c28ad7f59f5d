"""A kernel's plan: every operation carried out in program order, by the rules of roots, products and control flow."""

from __future__ import annotations

from collections.abc import Callable

from ..llvm.targets import Target
from ..ttir.names import name_of
from ..ttir.ops import Kind, row
from ..ttir.types import Func, Op
from . import control, rows, scratch, variables
from .checks import Checks
from .control import CONTROL, scalar_region
from .effort import effort
from .exchanges import HALF, PICK
from .lazy import Lazy
from .product import PRODUCTS
from .records import Piece, Plan, Scalar
from .roots import ROOTS, check, checked_early, finite_after, finite_before
from .schedule import Room, Schedule

#: bytes of scratch per thread
SCRATCH_LIMIT = 1 << 28
RULES = {**ROOTS, **PRODUCTS, **CONTROL}
#: kinds of operations that are carried out on scalars where they stand
SCALARS = (Kind.ELEMENTWISE, Kind.SCALAR)
#: roots whose regions run on elements one by one where they cannot run on all lanes at once
_COMBINE = ("tt.reduce", "tt.scan", "tt.map_elementwise")


def plan(func: Func, target: Target, lazy: Lazy, noting: Callable, refuse: Callable, assume: bool = True,
         checks: Checks | None = None, debugger: bool = False) -> Plan:
    """What is decided about a kernel for a target. lazy: its lazy operations; noting: told of each operation before it is
    planned; refuse: (operation, sentence) -> the error to raise; checks: what the kernel checks, if it does; debugger: Python's variables are
    there to be looked at."""

    def operation(s: Schedule, op: Op):
        noting(op)
        _operation(s, op)
        if checks is not None and checks.finite is not None:
            finite_after(s, op)

    s = Schedule(func, target, lazy, assume, refuse, operation)
    s.checks = checks
    s.variables = {} if debugger else None
    body = control.function(s, func.body, [])
    places, size = _placed(s.places, scratch.lives(body), refuse, {b.piece for b in (s.variables or {}).values()})
    return Plan((body,), s.regions, places, size, s.disjoint, s.most, effort(func, lazy), s.notes, checks,
                frozenset(s.estimates))


def _placed(places: list, lives: dict[int, scratch.Life], refuse: Callable, shown: set[int]) -> tuple[tuple, int]:
    """The plan's places, each room at its offset, and the bytes of all of them; shown: those that nothing else may lie at, ever."""
    rooms = [n for n, p in enumerate(places) if isinstance(p, Room)]
    needed = [scratch.ALWAYS if n in shown else lives.get(n, scratch.NEVER) for n in rooms]
    offsets, total = scratch.place([places[n].size for n in rooms], needed)
    pieces = {n: Piece(offset, places[n].size, *life) for n, offset, life in zip(rooms, offsets, needed)}
    if total > SCRATCH_LIMIT:
        op = next(places[n].op for n, p in pieces.items() if p.offset + p.size > SCRATCH_LIMIT)
        raise refuse(op, f"the kernel's blocks need over {SCRATCH_LIMIT >> 20} MiB of scratch per thread; use smaller blocks")
    return tuple(pieces.get(n, p) for n, p in enumerate(places)), total


def _operation(s: Schedule, op: Op):
    s.op = op
    if s.variables is not None and name_of(op) is not None:
        variables.named(s, op)
        return
    if s.checks is not None:
        if op in s.checks.dropped:
            return
        if s.checks.finite is not None:
            finite_before(s, op)
        if check(s, op):
            return
    if op.name in (PICK, HALF):
        s.exchange(op)
    elif s.lazy(op):
        if op.name == "tt.load":
            return
        if op.name == "arith.constant" and isinstance(op.attrs["value"], list):
            s.buffers[op.result] = s.table(op.result)
    else:
        _root(s, op)


def _root(s: Schedule, op: Op):
    # A group would load before what is between its roots is named.
    alone = s.variables is not None or s.checks is not None and s.checks.finite is not None
    group = rows.find(s, op) if op.name == "tt.reduce" and not alone else None
    if group is not None:
        if group.why:
            s.notes[op] = group.why
        if len(group.roots) > 1 and (checked := checked_early(s, group.roots)) is not None:
            rows.plan(s, group, checked)
            return
    rule = RULES.get(op.name)
    if op.name in _COMBINE and not s.lazy.vectorises(op.regions[0].block):
        scalar_region(s, op.regions[0])
    if rule is not None:
        rule(s, op)
    elif row(op).kind in SCALARS or op.name == "tt.load":
        s.add(Scalar(op))
    else:
        raise s.refuse(op, "this operation is not covered yet; `backends/cpu/emit/rules.py` lists what is")
