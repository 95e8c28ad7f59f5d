"""Row fusion: reductions along the last axis of a matrix, and the store that follows them, in one loop over rows.

A softmax over a tile is three roots over one index space: a maximum, a sum of exponentials, a store. One after another each
walks the whole tile, which has left the first-level cache by then. Where every later root uses the earlier ones' results
only of its own row, one loop over rows carries out all of them row by row: a row's elements stay in the cache, what is kept
between the passes is one row long, and the results are scalars in registers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..ttir.ops import Kind, row
from ..ttir.types import Op, Value
from . import keeping, order, pressure
from .exchanges import is_pick
from .facts import same_expression, same_offsets
from .memory_order import argument, before_write
from .records import Buffer, Keep, NestPlan, Rows, Stage, Walk
from .roots import check, is_quick, known_combination
from .schedule import Schedule
from .space import Space

#: scalar operations that may be carried out before the group that they stand in
_EARLY = {"tt.get_program_id", "tt.get_num_programs"}
_IDENTITY = (0, 1)


@dataclass
class Group:
    """Roots that go row by row, the first one first; `early`: scalar operations between them, carried out before; `why`: what ended it."""

    roots: list[Op]
    early: list[Op] = field(default_factory=list)
    pairs: list[tuple[int, int, bool]] = field(default_factory=list)
    why: str = ""


def find(s: Schedule, first: Op) -> Group | None:
    """The group that begins with `first`; None where it is no reduction along rows. One root is no group: `why` says what stood against a second."""
    if not _is_row_reduction(first):
        return None
    shape = first.operands[0].type.shape
    ops = first.block.ops
    group, between, results = Group([first]), [], set(first.results)
    for op in ops[ops.index(first) + 1:]:
        if s.lazy(op):
            if op.name == "tt.load":
                between.append(op)
            continue
        if not any(r.type.is_tensor for r in op.results) and op.results and (row(op).kind is Kind.ELEMENTWISE or op.name in _EARLY):
            if not all(_is_ready(s, o, group.early) for o in op.operands):
                group.why = f"{_called(op)} needs a number that is not there before the rows"
                break
            group.early.append(op)
            continue
        group.why = _against(s, op, shape, results, group.early)
        if group.why:
            break
        group.roots.append(op)
        if op.name == "tt.store":
            break
        results |= set(op.results)
    if group.roots[-1].name == "tt.store":
        group.why, group.pairs = _may_interleave(s, group.roots, between)
        if group.why:
            group.roots.pop()  # the reductions alone write nothing that a load could meet
    if len(group.roots) > 1 and _lies_in_columns(s, group.roots, shape):
        return Group([first], why="neighbours in memory lie along the other dimension")
    return group


def _lies_in_columns(s: Schedule, roots: list[Op], shape) -> bool:
    """Is most of what the roots read and write best walked with the lanes of a vector along columns? Row by row it would be gathered, element by element."""
    space = Space(s.known, shape)
    return order.vector_dimension(space, space.explore([(o, _IDENTITY) for op in roots for o in op.operands]), s.target, s.proved) == 0


def _called(op: Op) -> str:
    """An operation, for people."""
    return f"{op.name} of line {op.loc.line}" if op.loc.line else op.name


def _is_ready(s: Schedule, v: Value, early: list[Op]) -> bool:
    """Is a scalar there before a group whose `early` scalar operations are carried out first?"""
    return v.op is None or v.op.name == "arith.constant" or s.sequence.end[v.op] <= s.now or v.op in early


def _is_row_reduction(op: Op) -> bool:
    return (op.name == "tt.reduce" and len(op.operands) == 1 and len(op.operands[0].type.shape) == 2
            and op.attrs["axis"] == 1 and min(op.operands[0].type.shape) > 1 and known_combination(op) is not None)


def _against(s: Schedule, op: Op, shape, results: set[Value], early: list[Op]) -> str:
    """What stands against `op` in a group over `shape` with these results so far; "" where nothing does."""
    store = op.name == "tt.store" and op.operands[0].type.is_tensor
    if not (store or _is_row_reduction(op)):
        return f"{_called(op)} is neither a store nor a reduction along rows"
    if op.operands[0].type.shape != shape:
        return f"{_called(op)} is over {'x'.join(map(str, op.operands[0].type.shape))}, not {'x'.join(map(str, shape))}"
    space = Space(s.known, shape)
    visited = space.explore([(o, space.identity) for o in op.operands])
    tainted = _made_of(s, visited, results)
    for v, dims in visited:
        inputs = [] if v.op is None else v.op.operands
        if v in results and dims != (0,):
            return f"{_called(op)} reads {_called(v.op)}'s result of other rows"
        for o in inputs:
            if not o.type.is_tensor and s.lazy(v.op) and v not in s.buffers and not _is_ready(s, o, early):
                return f"{_called(op)} needs a number that is not there before the rows"
    if any(is_pick(v) and v in tainted and v not in s.buffers for v, _ in visited):
        return f"{_called(op)} exchanges neighbours, a chunk at a time"
    forced = keeping.first_to_materialise(s, space, [x for x in visited if x[0] in tainted], [0, 1])
    return "" if forced is None else f"{_called(op)} needs {_called(forced[0].op)} in memory, of all rows"


def _made_of(s: Schedule, visited, results: set[Value]) -> set[Value]:
    """`results`, and what of the values that were visited, inputs first, is computed from them."""
    found = set()
    for v, dims in visited:
        if v in results or (s.known.children(v, dims) and v.op is not None and any(o in found for o in v.op.operands)) or _through_memory(s, v, dims, results):
            found.add(v)
    return found


def _through_memory(s: Schedule, v: Value, dims, results: set[Value]) -> bool:
    """Is `v`, whose operands are not visited for its elements change places, computed from `results`?"""
    if v in s.buffers or v.op is None or s.known.children(v, dims):
        return False
    stack, seen = [v], set()
    while stack:
        w = stack.pop()
        if w in results:
            return True
        if w not in seen and w not in s.buffers and w.op is not None and s.lazy(w.op):
            seen.add(w)
            stack.extend(w.op.operands)
    return False


def _may_interleave(s: Schedule, group: list[Op], between: list[Op]) -> tuple[str, list[tuple[int, int, bool]]]:
    """Row i is stored before row i + 1 is loaded: no load of the group may see that, neither one that stands before the group
    nor one `between` its members; and the latter may serve nobody after the store. (What stands against it, or ""; pairs of arguments that
    must be disjoint: loaded, stored, whether equal addresses do no harm.)"""
    store = group[-1]
    if any(s.facts.consumers(load.result) - set(group) for load in between):
        return "what is loaded between the roots is read after the store", []
    target = argument(s, store.operands[0])
    pairs = []
    for load in s.sequence.loads_before(s.now) + between:
        users = s.facts.consumers(load.result) & set(group)
        if load.result in s.buffers or not users:
            continue
        source = argument(s, load.operands[0])
        alike = load.operands[0].type.shape == store.operands[0].type.shape and all(
            keeping.reads_identically(s, u, load.result) for u in users)
        if source is None or target is None:
            return f"nobody knows which argument {_called(load if source is None else store)} reaches", []
        if source == target:
            if not (alike and same_expression(load.operands[0], store.operands[0])):
                return f"{_called(store)} may write what {_called(load)} reads for a later row", []
        elif not s.assume:
            return "arguments may overlap", []
        else:
            pairs.append((source, target, alike and same_offsets(load.operands[0], store.operands[0])))
    return "", pairs


def plan(s: Schedule, group: Group, checked: list[Op]):
    """The steps of a group. checked: operations whose checks come before it."""
    for source, target, fine in group.pairs:
        s.rely_on((source, target), fine)
    for op in group.early:
        s.operation(op)
    for op in checked:
        check(s, op)
    roots, inside = group.roots, set(group.roots)
    if roots[-1].name == "tt.store":
        before_write(s, roots[-1], roots[-1].operands[0], s.sequence.end[roots[-1]])
    shape = roots[0].operands[0].type.shape
    sinks = [(o, _IDENTITY) for op in roots for o in op.operands]
    late = _made_of(s, Space(s.known, shape).explore(sinks), {r for op in roots for r in op.results})
    nest = s.nest(Walk(shape, sinks, vdim=1, late=frozenset(late)))
    outs = [s.alloc(op.result.type.shape, op.result.type.elem) if op.results and s.facts.consumers(op.result) - inside else None for op in roots]
    kept, keeps = _kept(s, group, nest, shape)
    stages = []
    needs = []
    for n, op in enumerate(roots):
        stages.append(_stage(s, nest, op, outs[n], keeps[n], kept))
        needs.append(_needs(s, nest, op))
        for v in keeps[n]:
            s.buffers[v] = kept[v]
    s.add(_widened(s, stages, nest, needs))
    s.now = max(s.sequence.end[op] for op in group.early + roots)
    for op, out in zip(roots, outs):
        if out is not None:
            s.buffers[op.result] = out


def _kept(s: Schedule, group: Group, nest: NestPlan, shape) -> tuple[dict[Value, Buffer], list[list[Value]]]:
    """(the places of what the group keeps between its passes: one row, or all of them where somebody behind the group reads it; which values each root
    writes)."""
    inside = set(group.roots)
    space = _space(s, nest)
    kept: dict[Value, Buffer] = {}
    keeps = []
    for n, op in enumerate(group.roots):
        mine = []
        for v, dims in space.explore([(o, _IDENTITY) for o in op.operands]):
            later = s.sequence.later(v, s.sequence.end[op])
            if dims == _IDENTITY and v.type.shape == shape and v not in kept and later and v not in space.known.buffers \
                    and v.op is not None and s.lazy(v.op) and keeping.keepable(s, v) and v.op.block is s.block \
                    and all(keeping.reads_identically(s, u, v) for u in later & inside):  # other rows are not there yet
                mine.append(v)
        mine = keeping.reached(s, list(dict.fromkeys(mine)), s.sequence.end[op], kept)
        for v in mine:
            own = s.sequence.later(v, s.sequence.end[op]) <= inside
            kept[v] = s.alloc((1, shape[1]) if own else shape, v.type.elem)
            if own:
                kept[v] = replace(kept[v], shape=shape, strides=(0, 1))
        keeps.append(mine)
    return kept, keeps


def _space(s: Schedule, nest: NestPlan) -> Space:
    """With what is in memory for the nest's sake alone: loads that were transposed."""
    return Space(replace(s.known, buffers={**nest.reads, **s.buffers}), nest.shape)


def _needs(s: Schedule, nest: NestPlan, op: Op) -> pressure.Needs | None:
    sinks = [(o, _IDENTITY) for o in op.operands]
    space = _space(s, nest)
    return pressure.needs(s.target, space, space.explore(sinks), 1, sinks, along=int(op.name == "tt.reduce"))


def _widened(s: Schedule, stages: list[Stage], nest: NestPlan, needs: list[pressure.Needs | None]) -> Rows:
    """All stages walk in chunks of as many registers as the one that takes the most has room for."""
    if None in needs:
        return Rows(tuple(stages), nest)
    registers = min(pressure.width(s.target, n) for n in needs)
    lanes = min(nest.lanes * registers, nest.shape[1])
    registers = -(-lanes // nest.lanes)
    stages = [replace(stage, chunks=pressure.chunks(s.target, n, registers), times=1) for stage, n in zip(stages, needs)]
    return Rows(tuple(stages), replace(nest, lanes=lanes, registers=registers))


def _stage(s: Schedule, nest: NestPlan, op: Op, out: Buffer | None, keeps: list[Value], kept) -> Stage:
    space = _space(s, nest)
    visited = space.explore([(o, _IDENTITY) for o in op.operands])
    reads = {v: space.known.buffers[v] for v, _ in visited if v in space.known.buffers}
    written = tuple(Keep(v, kept[v], keeping.unread(s, nest.shape, v, op)) for v in keeps)
    if op.name == "tt.store":
        times = order.times_unrolled(space.known, space.explore([(op.operands[1], _IDENTITY)]), s.target, s.before)
        return Stage(op, None, reads, written, times=times)
    chunks, times = order.chunks_together(space.known, visited, s.target, s.before, 0)
    return Stage(op, out, reads, written, is_quick(s, op), chunks, times)
