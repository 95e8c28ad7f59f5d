"""Masks as loop bounds: the pieces of a dimension's range in which comparisons are known."""

from __future__ import annotations

from ..llvm.ir import Val, i64
from ..plan.facts import poly, poly_const, poly_key, poly_mul
from ..plan.lazy import renamed
from ..ttir.ops import Kind, row
from ..ttir.types import Value
from . import access, pieces


def ranges(nest, d: int, unroll: int):
    """The ranges of dimension `d`: (lo, hi, step, facts, chunks)."""
    n = nest.shape[d]
    step = nest.lanes if d == nest.vdim else nest.plan.steps.get(d, 1)
    unroll = unroll if d == nest.vdim else 1
    thresholds, decided = _thresholds(nest, d)
    end = i64(n)
    if not thresholds:
        whole = n - n % (step * unroll)
        yield i64(0), i64(whole), step * unroll, {}, unroll
        if whole < n:
            yield i64(whole), end, step, {}, 1
        return
    lo, hi = thresholds[0]
    for low, high in thresholds[1:]:
        if (low.s, high.s) != (lo.s, hi.s):
            lo = nest.b.intrinsic("smin", lo, low)
            hi = nest.b.intrinsic("smax", hi, high)
    if lo.s == hi.s and d == nest.order[-1] and pieces.goes_by_pieces(nest) and _is_idle(nest, decided):
        yield i64(0), lo, step * unroll, dict.fromkeys(decided, True), unroll
        return
    full, partial = lo, hi
    if step * unroll > 1:
        full = nest.b.and_(lo, i64(-(step * unroll)))
    if step > 1:
        partial = nest.b.and_(nest.b.add(hi, i64(step - 1)), i64(-step))
    yield i64(0), full, step * unroll, dict.fromkeys(decided, True), unroll
    if step * unroll > 1 or lo.s != hi.s:
        yield full, partial, step, {}, 1
    yield partial, end, step, dict.fromkeys(decided, False), 1


def _is_idle(nest, decided) -> bool:
    """Does a nest do nothing where these comparisons are false?"""
    saved, nest.facts = nest.facts, {**nest.facts, **dict.fromkeys(decided, False)}
    try:
        return nest.idle()
    finally:
        nest.facts = saved


def _thresholds(nest, d: int) -> tuple[list[tuple[Val, Val]], list]:
    """(for each comparison that dimension `d` decides: up to which index it is certainly true, from which on certainly false; the comparisons)."""
    n, depth = nest.shape[d], nest.depth_of[d]
    thresholds, decided = [], []
    if d == nest.vdim:
        nest.limits = {}
    for v, dims, coef, base, checks in nest.plan.atoms:
        if poly_const(coef.get(d, {})) != 1 or (v, dims) in nest.facts:
            continue
        others = [o for o in coef if o != d]
        if any(nest.depth_of.get(o, 0) >= depth for o in others):
            continue  # decided by a loop further in
        if nest.vdim in others and nest.lanes > 1:
            continue  # each lane has a limit of its own
        key = ("limit", poly_key(base), tuple(sorted((o, poly_key(coef[o])) for o in others)))
        t = nest.hoisted(len(nest.sections) - 1, key, lambda: limit(nest, base, coef, others, n))
        sure = access.holds(nest, checks)
        if d == nest.vdim and sure.const:
            nest.limits[(v, dims)] = t
        # What may have wrapped is known of no index: all of the range is computed.
        thresholds.append((nest.b.select(sure, t, i64(0)), nest.b.select(sure, t, i64(n))))
        decided.append((v, dims))
    return thresholds, decided


def limit(nest, base, coef, others, n) -> Val:
    """How many indices of a dimension satisfy an atom: clamp(-(base + other terms), 0, n)."""
    b = nest.b
    t = access.poly_value(nest, poly_mul(base, poly(-1)))
    for o in others:
        t = b.sub(t, b.mul(nest.index_of(o), access.poly_value(nest, coef[o])))
    if t.const is not None:
        return i64(min(max(t.const, 0), n))
    return b.intrinsic("smin", b.intrinsic("smax", t, i64(0)), i64(n))


def is_false(nest, mask: Value, dims) -> bool:
    """Is a mask known to be false everywhere in the range that is walked now?"""
    fact = nest.facts.get((mask, dims))
    if fact is not None:
        return not fact
    if mask.op is not None and mask.op.name == "arith.andi":
        return any(is_false(nest, o, dims) for o in mask.op.operands)
    mapped = renamed(mask.op, dims) if mask.op is not None else None
    return mapped is not None and is_false(nest, mask.op.operands[0], mapped)


def is_true(nest, mask: Value, dims) -> bool:
    """Is a mask known to be true everywhere in the range that is walked now?"""
    fact = nest.facts.get((mask, dims))
    if fact is not None:
        return fact
    op = mask.op
    if op is None:
        return False
    if op.name == "arith.constant":
        return op.attrs["value"] is True or op.attrs["value"] == 1
    if op.name == "arith.andi":
        return all(is_true(nest, o, dims) for o in op.operands)
    mapped = renamed(op, dims)
    return mapped is not None and is_true(nest, op.operands[0], mapped)


def same_along(nest, values, d: int) -> bool:
    """Is each of these values, at the nest's own indices, one and the same at all indices of dimension `d` in the range that is walked now? So is what a load's mask keeps out, and what is
    made of it."""
    found: dict[tuple[Value, tuple], bool] = {}

    def same(v: Value, dims) -> bool:
        if d not in dims or not v.type.is_tensor:
            return True
        if (v, dims) not in found:
            found[v, dims] = (v, dims) in nest.facts or v not in nest.reads and _made_of_same(nest, v, dims, same)
        return found[v, dims]

    return all(same(v, nest.plan.identity) for v in values)


def _made_of_same(nest, v: Value, dims, same) -> bool:
    """`same_along` of what an operation makes; same(operand, its dims)."""
    op = v.op
    if op is None or v in nest.plan.inductions:
        return False
    if op.name == "arith.constant":
        return not isinstance(op.attrs["value"], list)
    if op.name == "tt.load":
        return len(op.operands) > 1 and is_false(nest, op.operands[1], dims) and all(same(o, dims) for o in op.operands[2:])
    if op.name == "arith.select" and op.operands[0].type.is_tensor:
        condition, yes, no = op.operands
        for known, chosen in ((is_true, yes), (is_false, no)):
            if known(nest, condition, dims):
                return same(chosen, dims)
    if (mapped := renamed(op, dims)) is not None:
        return same(op.operands[0], mapped)
    return op.name == "tt.splat" or row(op).kind is Kind.ELEMENTWISE and not op.regions and all(same(o, dims) for o in op.operands)
