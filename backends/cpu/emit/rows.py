"""Row fusion: reductions along the last axis of a matrix, and the store that follows them, in one loop over rows.

A softmax over a tile is three roots over one index space: a maximum, a sum of exponentials, a store. One after another each
walks the whole tile, which has left the first-level cache by then. Where every later root uses the earlier ones' results
only of its own row, one loop over rows carries out all of them row by row: a row's elements stay in the cache, what is kept
between the passes is one row long, and the results are scalars in registers.
"""

from __future__ import annotations

from . import rules as lower
from ..plan.facts import same_expression, same_offsets
from ..llvm.ir import Val, const
from .nest import REGISTER, Buffer, Nest
from ..ttir.types import Op, Value

#: scalar operations that may be carried out before the group that they stand in
_EARLY = {"tt.get_program_id", "tt.get_num_programs"}


def find(k, first: Op) -> tuple[list[Op], list[Op]] | None:
    """(the roots to fuse, starting with `first`; scalar operations between them, to be carried out before), or None."""
    if not _is_row_reduction(first):
        return None
    shape = first.operands[0].type.shape
    ops = first.block.ops
    group, early, between, results = [first], [], [], set(first.results)
    ready = set(k.env)
    for op in ops[ops.index(first) + 1:]:
        if k.is_lazy(op):
            if op.name == "tt.load":
                between.append(op)
            continue
        if not any(r.type.is_tensor for r in op.results) and op.results and (op.name in lower.ELEMENTWISE or op.name in _EARLY):
            if not all(o in ready or (o.op is not None and o.op.name == "arith.constant") for o in op.operands):
                break
            early.append(op)
            ready |= set(op.results)
            continue
        store = op.name == "tt.store" and op.operands[0].type.is_tensor and op.operands[0].type.shape == shape
        if not (store or (_is_row_reduction(op) and op.operands[0].type.shape == shape)):
            break
        if not _row_wise(k, op, shape, results, ready):
            break
        group.append(op)
        if store:
            break
        results |= set(op.results)
    if group[-1].name == "tt.store" and not _may_interleave(k, group, between):
        group.pop()  # the reductions alone write nothing that a load could meet
    return (group, early) if len(group) > 1 else None


def _is_row_reduction(op: Op) -> bool:
    return (op.name == "tt.reduce" and len(op.operands) == 1 and len(op.operands[0].type.shape) == 2
            and op.attrs["axis"] == 1 and min(op.operands[0].type.shape) > 1 and lower.reduce.identity_of(op) is not None)


def _row_wise(k, op: Op, shape, results: set[Value], ready: set[Value]) -> bool:
    """Does `op` read the group's results only of its own row, and needs nothing of theirs in memory first?"""
    nest = Nest(k, shape)
    visited = nest.explore([(o, nest.identity) for o in op.operands])
    tainted = set()
    for v, dims in visited:
        inputs = [] if v.op is None else v.op.operands
        if v in results and dims != (0,):
            return False
        if v in results or (k.children(v, dims) and any(o in tainted for o in inputs)):
            tainted.add(v)
        for o in inputs:
            if not o.type.is_tensor and k.is_lazy(v.op) and v not in k.buffers and o not in ready and not (
                    o.op is not None and o.op.name == "arith.constant"):
                return False
    forced = k._first_to_materialise(nest, [x for x in visited if x[0] in tainted], [0, 1])
    return forced is None


def _may_interleave(k, group: list[Op], between: list[Op]) -> bool:
    """Row i is stored before row i + 1 is loaded: no load of the group may see that, neither one that stands before the group
    nor one `between` its members; and the latter may serve nobody after the store."""
    store = group[-1]
    if any(k.facts.consumers(load.result) - set(group) for load in between):
        return False
    target = k._arg_index(store.operands[0])
    pairs = []
    for load in k.pending_loads + between:
        users = k.facts.consumers(load.result) & set(group)
        if load.result in k.buffers or not users:
            continue
        source = k._arg_index(load.operands[0])
        alike = load.operands[0].type.shape == store.operands[0].type.shape and all(
            k._reads_identically(u, load.result) for u in users)
        if source is None or target is None:
            return False
        if source == target:
            if not (alike and same_expression(load.operands[0], store.operands[0])):
                return False
        elif not k.assume:
            return False
        else:
            pairs.append((source, target, alike and same_offsets(load.operands[0], store.operands[0])))
    for source, target, fine in pairs:
        k.disjoint[source, target] = k.disjoint.get((source, target), True) and fine
    return True


def emit(k, group: list[Op], early: list[Op]):
    """Carry out a group in one loop over rows."""
    for op in early:
        k.run_op(op)
        k.fused.add(op)
    inside = set(group)
    if group[-1].name == "tt.store":
        k.executed |= inside
        k.before_write(group[-1], group[-1].operands[0])
        k.executed -= inside
    shape = group[0].operands[0].type.shape
    ident = (0, 1)
    sinks = [(o, ident) for op in group for o in op.operands]
    nest = k.begin_nest(shape, sinks, vdim=1, keep=False)
    stages = []
    for n, op in enumerate(group):
        stages.append(_store_stage(k, op) if op.name == "tt.store" else _reduce_stage(k, op, inside))
    kept: dict[Value, Buffer] = {}
    plans = []
    for n, op in enumerate(group):
        keeps = []
        for v, dims in nest.explore([(o, ident) for o in op.operands]):
            later = k.facts.consumers(v) - k.executed - set(group[:n + 1])
            if dims == ident and v.type.shape == shape and v not in kept and later and v not in k.buffers \
                    and v.op is not None and k.is_lazy(v.op) and k._keepable(v) and v.op.block is k.current_block \
                    and all(k._reads_identically(u, v) for u in later & inside):  # other rows are not there yet
                own = later <= inside
                kept[v] = k.alloc((1, shape[1]) if own else shape, v.type.elem)
                if own:
                    kept[v] = Buffer(kept[v].ptr, v.type.elem, shape, (0, 1), base=kept[v].base)
                keeps.append(v)
        plans.append(keeps)

    def row():
        for op, stage, keeps in zip(group, stages, plans):
            nest.new_section()
            stage(nest, lambda: k.write_keeps_to(nest, keeps, kept, op))
            k.stores_here = True
            for v in keeps:
                k.buffers[v] = kept[v]
            k.executed.add(op)

    # The rows' loop may be emitted twice (rows inside a mask, rows outside): each starts from the same knowledge.
    def fresh_row():
        for op in group:
            k.executed.discard(op)
        for v in kept:
            k.buffers.pop(v, None)
        row()

    nest.run_rows(fresh_row)
    for op in group:
        k.executed.add(op)
        k.fused.add(op)
    for v in kept:
        k.buffers[v] = kept[v]


def _store_stage(k, op: Op):
    ptr, val = op.operands[:2]
    mask = op.operands[2] if len(op.operands) > 2 else None

    def stage(nest, write_keeps):

        def body(u):
            write_keeps()
            m = nest.at(mask, (0, 1)) if mask else const("i1", True)
            if m.const is not None and not m.const:
                return
            lower.memory.store_lanes(nest, ptr, (0, 1), nest.at(val, (0, 1)), m)

        k.b.dbg = k.debug_loc(op)
        nest.times = k.times_unrolled(nest.explore([(val, (0, 1))]))
        nest.inner(body)

    return stage


def _reduce_stage(k, op: Op, inside: set[Op]):
    result = op.result
    elem = REGISTER[result.type.elem]
    wanted = bool(k.facts.consumers(result) - inside)
    out = k.alloc(result.type.shape, result.type.elem) if wanted else None
    if out is not None:
        k.buffers_after[result] = out
    slot = k.b.alloca(elem, "row")
    quick = lower.reduce.quick_form(k, op)

    def stage(nest, write_keeps):
        b = k.b
        k.b.dbg = k.debug_loc(op)
        exact = lower.reduce.identity_of(op)
        if quick:
            limit, combine = quick
            final = _row_loop(k, nest, op, limit, combine, write_keeps)
            b.store(final, slot, 8)
            again, done = k.fn.new_block("again"), k.fn.new_block("found")
            b.cond_br(b.fcmp("oeq", final, limit), again, done)
            b.enter(again)
            b.store(_row_loop(k, nest, op, exact, None, write_keeps), slot, 8)
            b.br(done)
            b.place(done)
        else:
            b.store(_row_loop(k, nest, op, exact, None, write_keeps), slot, 8)
        value = b.load(elem, slot, 8)
        nest.memos[1][(result, (0,), 0)] = value
        if out is not None:
            nest.store_buffer(out, (0,), value)

    return stage


def _row_loop(k, nest: Nest, op: Op, start: Val, combine, write_keeps) -> Val:
    """One row's reduction: the joined scalar."""
    b = k.b
    block = op.regions[0].block
    ty = f"<{nest.lanes} x {start.ty}>" if nest.lanes > 1 else start.ty
    chunks = lower.reduce.chunks_together(k, nest, [(op.operands[0], (0, 1))])
    slots = [b.alloca(ty, "acc") for _ in range(chunks)]
    join = (lambda a, v: [combine(a[0], v[0])]) if combine else (lambda a, v: lower.region.inline(k, block, a + v))
    found = []

    def before(chunks):
        for s in slots[:chunks]:
            b.store(b.splat(start, nest.lanes), s, 8)

    def body(u):
        write_keeps()
        v = b.splat(nest.at(op.operands[0], (0, 1)), nest.lanes)
        b.store(join([b.load(ty, slots[u], 8)], [v])[0], slots[u], 8)

    def after(chunks):
        accs = [b.load(ty, slots[0], 8)]
        for s in slots[1:chunks]:
            accs = join(accs, [b.load(ty, s, 8)])
        found.append(lower.reduce.across_lanes(k, join, accs)[0])

    nest.times = 1
    nest.inner(body, chunks, before, after)
    return found[-1]
