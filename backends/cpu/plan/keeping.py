"""What is worth keeping in memory, and what has to be there first. Pure questions about a schedule's state."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..ttir.ops import row
from ..ttir.types import Op, Value
from . import quotients
from .exchanges import is_pick
from .facts import KEEP_ABOVE
from .lazy import renamed
from .space import Space

#: operations for an element, from which on numbers that a nest needs one at a time are computed before it, side by side: 16 are some 64 cycles of latency for
#: each line, where a vector of 16 lines takes as many
LANES_ABOVE = 16


def keepable(s, v: Value) -> bool:
    """Dear enough that reading it back from scratch beats computing it again."""
    cost, e = s.facts.cost(v), v.type.elem
    if e == "i1":
        return cost > 24
    if e == "ptr" or e[0] == "i":
        if cost < 12:
            return False
        return e != "ptr" and not _by_quotients(s, v)
    return cost > KEEP_ABOVE


def _by_quotients(s, v: Value) -> bool:
    """Is an integer affine, but for quotients and remainders that a chunk's lanes have together? What is read back from scratch is a number for each lane."""
    probe, lanes = Space(s.known, v.type.shape), s.target.lanes(32)
    vdim = len(probe.shape) - 1

    def together(x: Value, dims) -> quotients.Quotient | None:
        p = quotients.quotient(probe, x, dims, vdim, s.proved)
        return p if p is not None and p.pays(s.target, lanes) else None

    def one(x: Value, dims) -> bool:
        """Is it the same for all of a chunk's lanes, as (x // 50) % 12 is?"""
        if vdim not in dims or not x.type.is_tensor:
            return True
        form = probe.affine(x, dims)
        if form.ptr is not None or vdim in form.coef:
            return False
        return all(made_of_one(y, on) for y, on, _ in form.opaque)

    def made_of_one(y: Value, on) -> bool:
        p = together(y, on)
        if p is not None:
            return not p.step
        return quotients.divides(y) and all(one(o, on) for o in y.op.operands)

    return all(together(x, dims) is not None or made_of_one(x, dims) for x, dims, _ in probe.affine(v, probe.identity).opaque)


def worth_keeping(s, v: Value, op: Op) -> bool:
    """Do roots behind `op` want `v`, which its nest computes?"""
    if v in s.buffers or v.op is None or not s.lazy(v.op) or not keepable(s, v):
        return False
    if v.op.block is not s.block:
        return False
    return s.sequence.last(v) > s.sequence.done[op]


def reached(s, values: list[Value], now: int, kept: Iterable[Value] = ()) -> list[Value]:
    """Of values that are worth keeping, those that roots behind the number `now` read other than through one of them, or of what is kept already: of exp(x) and a selection of it the
    selection."""
    roots, kept = {op for v in values for op in s.sequence.later(v, now)}, {*kept, *values}
    if len(kept) < 2 or any(op.name.startswith("scf.") for op in roots):
        return values
    stack, found, seen = [v for op in roots for v in op.operands], set(), set()
    while stack:
        v = stack.pop()
        if v in seen:
            continue
        seen.add(v)
        if v in kept:
            found.add(v)
        elif v not in s.buffers and v.op is not None and s.lazy(v.op):
            stack += v.op.operands
    return [v for v in values if v in found]


def first_to_materialise(s, space: Space, visited, order, vdim: int | None = None) -> tuple[Value, str] | None:
    """The value that must be in memory before a nest begins, and why: what no renaming of indices reaches, what is dear and would be computed
    again for indices that it does not depend on, and what is dear and would be computed one element at a time. Users first. vdim: the
    dimension that goes over lanes, where such numbers are looked for."""
    depth = {d: n for n, d in enumerate(order)}
    for v, dims in reversed(visited):
        if v in s.buffers or v.op is None or not s.lazy(v.op):
            continue
        if (renames := row(v.op).renames) is not None and renames(v.op, dims) is None:
            return v, "its elements change places"
        if not keepable(s, v):
            continue
        deepest = max((depth[d] for d in dims if d >= 0), default=-1)
        again = 1
        for d in order[:deepest + 1]:
            if d not in dims:
                again *= space.shape[d]
        if again > 1:
            return v, "it would be computed again"
        if vdim is not None and _one_at_a_time(s, space, v, dims, vdim):
            return v, "it would be computed one element at a time"
    return None


def _one_at_a_time(s, space: Space, v: Value, dims, vdim: int) -> bool:
    """Is `v` a number for each line of a nest, such as exp(a row's maximum), which a nest of its own computes for a vector of lines at once?"""
    own = {d for d in dims if d >= 0}
    return vdim not in own and s.facts.cost(v) >= LANES_ABOVE and 1 < s.target.lanes(32) <= math.prod(space.shape[d] for d in own)


def reads_identically(s, op: Op, value: Value) -> bool:
    """Does `op` read the value's element k only for its own element k?"""
    if not op.operands[0].type.is_tensor:
        return False
    shape = op.operands[0].type.shape
    space = Space(s.known, shape)
    visited = space.explore([(o, space.identity) for o in op.operands if o.type.is_tensor])
    found = [dims == space.identity and v.type.shape == shape for v, dims in visited if v is value]
    moved = any(is_pick(v) and v not in s.buffers for v, _ in visited)
    return bool(found) and all(found) and not moved  # what is not found is read behind a change of shape that no index follows


def unread(s, shape, v: Value, op: Op) -> tuple[Value, ...] | None:
    """The masks behind which nobody reads `v`, kept by a nest over `shape`, any more once `op` is carried out; None where somebody may read all
    of it."""
    masks = []
    for later in sorted(s.sequence.later(v, s.sequence.done[op]), key=s.sequence.end.__getitem__):
        if later.name != "tt.store" or len(later.operands) < 3 or later.operands[0].type.shape != shape:
            return None
        if not reads_identically(s, later, v) or _steers(s, later, v):
            return None
        masks.append(later.operands[2])
    return tuple(masks)


def _steers(s, store: Op, v: Value) -> bool:
    """Does `v` decide which elements a store, or a load for it, takes? A vector in which a store's mask is partly true is computed in all of its lanes, and a lane in which it is false has for `v`
    what happens to stand where nobody wrote it: as a number it is not stored, but an address would be read."""
    sinks = [store.operands[2]]
    for w in _computed_from(s, store.operands):
        if w.op is not None and w not in s.buffers and w.op.name == "tt.load":
            sinks += w.op.operands[:2]
    return v in _computed_from(s, sinks)


def _computed_from(s, values: Iterable[Value]) -> set[Value]:
    """`values`, and what they are computed from anew where they are read."""
    stack, seen = list(values), set()
    while stack:
        w = stack.pop()
        if w in seen:
            continue
        seen.add(w)
        if w not in s.buffers and w.op is not None and s.lazy(w.op):
            stack += w.op.operands
    return seen


def reads(s, v: Value) -> dict[int | None, bool]:
    """The pieces of scratch that computing `v` reads: their number -> whether element k is read only for element k. A piece may be
    read through views of it (halves of a split, an axis walked backwards, another shape), whose elements are other ones."""
    out: dict[int | None, bool] = {}
    stack = [(v, True)]
    seen = set()
    while stack:
        root, alike = stack.pop()
        space = Space(s.known, root.type.shape)
        for w, dims in space.explore([(root, space.identity)]):
            buf = s.buffers.get(w)
            if buf is not None:
                whole = buf.strides == s.turned[buf.piece] if buf.piece in s.turned else buf.is_row_major
                same = alike and dims == space.identity and w.type.shape == v.type.shape and whole
                out[buf.piece] = out.get(buf.piece, True) and same
            elif w.op is not None and row(w.op).renames and renamed(w.op, dims) is None and w not in seen:
                seen.add(w)  # a change of shape that no index follows: its elements go through memory
                stack.append((w.op.operands[0], False))
    return out
