"""What each root needs: operations that are carried out where they stand, and for which a nest computes elements.

`ROOTS[op](schedule, op)` makes the steps of one operation. To add an operation add a row; its emission is in emit/root.
"""

from __future__ import annotations

from dataclasses import replace

from ..ttir.types import Op
from . import order, turning
from .ending import handed_over
from .looks import Check, FiniteStore, Made
from .memory_order import before_atomic, before_write
from .checks import INDEX, OVERFLOW, exact_result
from .records import Buffer, Lookup, Prints, Reduction, Root, Walk, row_major
from .schedule import Schedule
from .space import Space


def store(s: Schedule, op: Op):
    ptr, val = op.operands[:2]
    mask = op.operands[2] if len(op.operands) > 2 else None
    before_write(s, op, ptr)
    if not ptr.type.is_tensor:
        s.finish(Root(op, None))
        return
    sinks = _sinks([ptr, val] + ([mask] if mask else []))
    nest = s.nest(Walk(ptr.type.shape, sinks, _stored_along(s, op, sinks), merge=True, groups=True), op)
    s.finish(turning.block_by_block(s, handed_over(s, Root(op, s.keep(nest, op)))))


def _stored_along(s: Schedule, op: Op, sinks) -> int | None:
    """The dimension along which lanes of a store go that lie side by side, though what is stored would have another one; that is in scratch then, if it pays."""
    ptr, value = op.operands[:2]
    space = Space(s.known, ptr.type.shape)
    visited = space.explore(sinks)
    found = turning.stored(s, space, visited, order.vector_dimension(space, visited, s.target, s.proved), ptr, value)
    if found is None:
        return None
    if found[1]:
        s.materialise(value, why="it is stored along another dimension than it is computed")
    return found[0]


def _sinks(values) -> list:
    """`values`, each at its own indices."""
    return [(v, tuple(range(len(v.type.shape)))) for v in values]


def check(s: Schedule, op: Op):
    """The check in front of an operation, if it has one. Is the check all that there is to do?"""
    site = s.checks.sites.get(op)
    if site is None or op in s.checked:
        return False
    s.checked.add(op)
    v = op.operands[1 if site.access == INDEX else 0]
    sinks = [v] if site.mask is None else [v, site.mask]
    if site.access == OVERFLOW and (exact := exact_result(v)) is not None:
        sinks.append(exact)
    if not v.type.is_tensor:
        s.add(Check(site, None))
        return site.access == OVERFLOW
    nest = s.nest(Walk(v.type.shape, _sinks(sinks), merge=True))
    s.add(Check(site, replace(nest, times=1)))
    return site.access == OVERFLOW


def checked_early(s: Schedule, roots: list[Op]) -> list[Op] | None:
    """The operations whose checks come before roots that go row by row: theirs, and those of loads between them. None where what is checked depends on
    the roots' results."""
    if s.checks is None:
        return []
    ops = roots[0].block.ops
    found = [op for op in ops[ops.index(roots[0]) + 1:ops.index(roots[-1]) + 1] if op in s.checks.sites]
    stack = [v for op in found for v in (op.operands[0], s.checks.sites[op].mask) if v is not None]
    seen = set()
    while stack:
        v = stack.pop()
        if v in seen or v.op is None:
            continue
        seen.add(v)
        if v.op in roots:
            return None
        stack += v.op.operands
    return found


def finite_before(s: Schedule, op: Op):
    """Before a root: what lazy operations made is noted while it can be computed, and what is about to be stored is looked at."""
    if s.lazy(op):
        return
    for shape, makers in s.made.items():
        makers = tuple(m for m in makers if s.lazy(m.op) or m.op.result in s.buffers)
        seen = [v for m in makers for v in (m.op.result, *m.given, m.mask) if v is not None and v.type.is_tensor]
        if makers:
            s.add(Made(makers, s.nest(Walk(shape, _sinks(seen)))))
    s.made = {}
    out = s.checks.finite.outs.get(op)
    if out is not None:
        values = [out.value] if out.mask is None else [out.value, out.mask]
        nest = s.nest(Walk(out.value.type.shape, _sinks(values))) if out.value.type.is_tensor else None
        s.add(FiniteStore(out, nest))


def finite_after(s: Schedule, op: Op):
    """Behind an operation that may make what is not finite."""
    maker = s.checks.finite.makers.get(op)
    if maker is not None and op.result.type.is_tensor:
        s.made.setdefault(op.result.type.shape, []).append(maker)
    elif maker is not None:
        s.add(Made((maker,), None))


# --- reductions ------------------------------------------------------------------------------------------------------

#: combining operations that have an identity
_IDENTITY = {f"arith.{name}" for name in ("addf", "addi", "mulf", "muli", "maxnumf", "minnumf", "maximumf", "minimumf", "maxsi", "minsi", "maxui",
                                          "minui", "andi", "ori", "xori")} | {"triport.max", "triport.min"}
_QUICK = ("arith.maxnumf", "arith.minnumf")


def combinations(op: Op) -> tuple[str, ...] | None:
    """Of each operand of a reduction the one operation with an identity that two of its elements are combined by; None where there is more to it."""
    block, n = op.regions[0].block, len(op.operands)
    *ops, end = block.ops
    if len(ops) != n:
        return None
    for v, result, *pair in zip(op.operands, end.operands, block.args, block.args[n:]):
        combine = result.op
        if combine not in ops or combine.name not in _IDENTITY or set(combine.operands) != set(pair) or combine.result.type.elem != v.type.elem:
            return None
    return tuple(result.op.name for result in end.operands)


def known_combination(op: Op) -> str | None:
    """The same for a reduction of one operand."""
    found = combinations(op)
    return found[0] if found is not None and len(found) == 1 else None


def is_quick(s: Schedule, op: Op) -> bool:
    """May a reduction be tried by plain comparisons first: a maximum or minimum of cheap f32 or f64 elements?"""
    return known_combination(op) in _QUICK and op.operands[0].type.elem in ("f32", "f64") and s.facts.cost(op.operands[0]) <= 4


def reduce(s: Schedule, op: Op):
    shape, axis = op.operands[0].type.shape, op.attrs["axis"]
    out = result_buffers(s, op)
    quick = is_quick(s, op)
    sinks = _sinks(op.operands)
    lanes = None if s.lazy.vectorises(op.regions[0].block) else 1
    known = combinations(op) is not None
    nest = s.keep(s.nest(Walk(shape, sinks, inner=axis, lanes=lanes, merge=True, groups=known, along=1), op), op)
    visited = Space(s.known, shape).explore(sinks)
    chunks, times = order.chunks_together(s.known, visited, s.target, s.before, nest.chunks, len(sinks)) if known else (1, 1)
    abreast = order.lines_abreast(s.known, visited, s.target, nest, axis, len(sinks)) if known and not quick else None
    if abreast is not None:
        chunks, lines = abreast
        s.finish(Reduction(op, nest, out, chunks=chunks, lines=lines))
        return
    s.finish(Reduction(op, nest, out, quick, chunks, 1 if nest.merged else times))


def result_buffers(s: Schedule, op: Op) -> tuple[Buffer | None, ...]:
    """A place for each result of an operation; None for scalars."""
    return tuple(s.alloc(r.type.shape, r.type.elem) if r.type.is_tensor else None for r in op.results)


def scan(s: Schedule, op: Op):
    axis = op.attrs["axis"]
    out = result_buffers(s, op)
    lanes = None if s.lazy.vectorises(op.regions[0].block) else 1
    nest = s.nest(Walk(op.operands[0].type.shape, _sinks(op.operands), inner=axis, lanes=lanes, merge=True), op)
    if op.attrs.get("reverse"):  # masks along the axis are computed, not turned into bounds
        nest = replace(nest, backwards=axis, atoms=tuple(a for a in nest.atoms if axis not in a.coef))
    s.finish(Root(op, s.keep(nest, op), out))


def map_elementwise(s: Schedule, op: Op):
    pack = op.attrs.get("pack", 1)
    shape = op.operands[0].type.shape
    out = result_buffers(s, op)
    together = pack == 1 and s.lazy.vectorises(op.regions[0].block)
    walk = Walk(shape, _sinks(op.operands), vdim=None if pack == 1 else len(shape) - 1, lanes=None if together else pack)
    s.finish(Root(op, s.keep(s.nest(walk, op), op), out))


# --- atomics ---------------------------------------------------------------------------------------------------------


def atomic(s: Schedule, op: Op):
    values = list(op.operands[:_VALUES.get(op.name, len(op.operands))])
    mask = op.operands[len(values)] if len(op.operands) > len(values) and op.name in _MASKED else None
    before_atomic(s, op.operands[0])
    if not op.operands[0].type.is_tensor:
        s.finish(Root(op, None, (None,) * len(op.results)))
        return
    nest = s.nest(Walk(op.operands[0].type.shape, _sinks(values + ([mask] if mask is not None else []))), op)
    read = bool(op.results and op.results[0].uses)
    out = (s.alloc(nest.tensor, op.result.type.elem),) if read else ()
    s.finish(Root(op, s.keep(nest, op), out))


#: operands before the mask, or what else an atomic operation takes that is no element
_VALUES = {"tt.atomic_rmw": 2, "tt.atomic_load": 1, "tt.atomic_store": 2, "tt.atomic_poll": 2}
_MASKED = ("tt.atomic_rmw", "tt.atomic_load", "tt.atomic_store")


# --- shapes ----------------------------------------------------------------------------------------------------------


def split(s: Schedule, op: Op):
    """The two halves of the last dimension: views of one buffer that holds them one after the other."""
    v = op.operands[0]
    buf = s.buffers.get(v)
    if buf is None or buf.panel:
        buf = s.alloc(v.type.shape, v.type.elem, row_major(v.type.shape[:-1]) + (v.type.numel // 2,))
        s.fill(buf, v, why="its halves are views of it")
    halves = tuple(s.view(buf, n * buf.strides[-1], r.type.shape, buf.strides[:-1] if r.type.is_tensor else ()) for n, r in enumerate(op.results))
    s.finish(Root(op, None, halves))


def cat(s: Schedule, op: Op):
    """Tensors one after the other along a dimension."""
    out = s.alloc(op.result.type.shape, op.result.type.elem)
    axis, at = op.attrs.get("dim", 0), 0
    for v in op.operands:
        s.fill(s.view(out, at * out.strides[axis], v.type.shape, out.strides), v, why="it becomes part of a larger tensor")
        at += v.type.shape[axis]
    s.buffers[op.result] = out


def gather(s: Schedule, op: Op):
    src, idx = op.operands
    source = s.materialise(src, why="it is indexed")
    out = s.alloc(idx.type.shape, src.type.elem)
    nest = s.nest(Walk(idx.type.shape, _sinks([idx])), op)
    s.finish(Lookup(op, s.keep(nest, op), (out,), source))


def histogram(s: Schedule, op: Op):
    out = result_buffers(s, op)
    nest = s.nest(Walk(op.operands[0].type.shape, _sinks(op.operands)), op)
    s.finish(Root(op, s.keep(nest, op), out))


def unsplat(s: Schedule, op: Op):
    v = op.operands[0]
    s.finish(Root(op, s.nest(Walk(v.type.shape, [(v, (-1,) * len(v.type.shape))], lanes=1)), (None,)))


# --- for people ------------------------------------------------------------------------------------------------------


def device_print(s: Schedule, op: Op):
    kept: dict = {}
    each = tuple(s.keep(s.nest(Walk(v.type.shape, _sinks([v]), vdim=len(v.type.shape) - 1, lanes=1), op), op, kept) if v.type.is_tensor else None
                 for v in op.operands)
    s.finish(Prints(op, None, each=each))


def device_assert(s: Schedule, op: Op):
    cond = op.operands[0]
    nest = s.keep(s.nest(Walk(cond.type.shape, _sinks([cond])), op), op) if cond.type.is_tensor else None
    s.finish(Root(op, nest))


ROOTS = {"tt.store": store, "tt.reduce": reduce, "tt.scan": scan, "tt.map_elementwise": map_elementwise,
         **dict.fromkeys(("tt.atomic_rmw", "tt.atomic_cas", "tt.atomic_load", "tt.atomic_store", "tt.atomic_poll"), atomic),
         "tt.split": split, "tt.cat": cat, "tt.gather": gather, "tt.histogram": histogram, "tt.unsplat": unsplat,
         "tt.print": device_print, "tt.assert": device_assert}
