"""Loads, stores and values in scratch that lie along another dimension than lanes go over.

As where a matrix is copied or used transposed. Gathering such a load costs two instructions an element or more. It goes through scratch instead, by square blocks that are transposed in
registers: n loads, n log2 n shuffles and n stores for n vectors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from ..llvm.elements import bytes_of
from ..llvm.targets import Target
from ..ttir.types import Type, Value
from . import order, quotients
from .facts import Affine
from .records import Fill, Root, Turned
from .space import Known, Space

#: bytes of scratch that such a tensor may take: it, and what is made of it, are to stay in the second cache
MOST = 1 << 17
#: simple operations of a store that are written for each line of a block, and once more where masks end
WORK = 8


class Found(NamedTuple):
    """A load's value, its dimension whose elements lie side by side in memory, the one that lanes go over where it is read, and the lanes of a block's side."""

    value: Value
    lies: int
    read: int
    lanes: int


def first(s, space: Space, visited: Iterable[tuple[Value, tuple]], vdim: int) -> Found | None:
    """The first such load, or value in scratch, that is not as well gathered, among what a nest over `space` visits whose lanes go over `vdim`; s: the schedule."""
    for v, dims in visited:
        lanes = side(s.target, v.type)
        gathered = bytes_of(v.type.elem) >= 4 and space.shape[vdim] <= s.target.gathers
        along = None if gathered else _lies_along(s, space, v, dims, vdim, lanes)
        if along is not None:
            return Found(v, dims.index(along), dims.index(vdim), lanes)
    return None


def _lies_along(s, space: Space, v: Value, dims: tuple, vdim: int, lanes: int) -> int | None:
    """The dimension along which the elements of a load, or of what is in scratch, lie side by side, if that is not `vdim` and both are as long as a block's side; None for others, such as what is
    the same along a dimension."""
    if lanes < 2 or space.shape[vdim] < lanes or sorted(dims) != list(space.identity) or [space.shape[d] for d in dims] != list(v.type.shape):
        return None
    buf = space.known.buffers.get(v)
    if buf is not None:
        steps = {d: buf.strides[axis] for axis, d in enumerate(dims)}
        return None if buf.panel or steps[vdim] in (0, 1) else next((d for d, step in steps.items() if step == 1 and space.shape[d] >= lanes), None)
    if v.op is None or v.op.name != "tt.load":
        return None
    at = space.affine(v.op.operands[0], dims)
    moves = vdim in at.coef or any(vdim in on for _, on, _ in at.opaque)
    return contiguous(s, space, at, vdim, lanes) if moves else None


def contiguous(s, space: Space, at: Affine, vdim: int, lanes: int) -> int | None:
    """The dimension along which `lanes` neighbours lie side by side at an address; None where `vdim` is one."""
    by_one = lambda d: quotients.by_one(space, at, d, s.proved, lambda found: found.always(lanes) or found.mostly(lanes))  # noqa: E731
    if at.ptr is None or at.ptr.type.is_tensor or by_one(vdim):
        return None
    return next((d for d, n in enumerate(space.shape) if d != vdim and n >= lanes and by_one(d)), None)


def stored(s, space: Space, visited: list[tuple[Value, tuple]], vdim: int, ptr: Value, value: Value) -> tuple[int, bool] | None:
    """Of a store whose neighbours lie along another dimension than `vdim`, along which lanes would go for the sake of what it stores: that dimension, and whether what it stores is computed
    into scratch first, since more than one load would go through scratch else. None for others."""
    lanes = side(s.target, value.type)
    along = contiguous(s, space, space.affine(ptr, space.identity), vdim, lanes) if lanes > 1 and space.shape[vdim] >= lanes else None
    if along is None:
        return None
    return along, sum(_lies_along(s, space, v, dims, along, side(s.target, v.type)) is not None for v, dims in visited) > 1


def block_by_block(s, step: Root) -> Root:
    """A store right behind the turned load that it stores, or little made of it, which needs no scratch then."""
    fill, nest = s.steps[-1] if s.steps else None, step.nest
    if type(step) is not Root or not isinstance(fill, Fill) or not fill.turned or nest.reads.get(fill.value) is not fill.buffer:
        return step
    alike = nest.shape == fill.nest.shape and (nest.lanes, nest.registers) == (fill.nest.lanes, 1) and nest.vdim in fill.nest.steps
    if not alike or nest.keeps or nest.picks or nest.backwards is not None or s.checks is not None or s.variables is not None:
        return step
    space = Space(Known(nest.reads, nest.inductions, s.lazy), nest.shape)
    if order.work(space, space.explore([(v, nest.identity) for v in step.op.operands])) > WORK:
        return step
    s.steps.pop()
    return Turned(step.op, replace(nest, reads={v: buf for v, buf in nest.reads.items() if buf is not fill.buffer}), step.out, fill)


def side(target: Target, tensor: Type) -> int:
    """Lanes of a block's side: a vector's, as far as half of the registers hold the block; 1 for what is not turned."""
    if not target.turns or tensor.elem in ("i1", "ptr") or math.prod(tensor.shape) * bytes_of(tensor.elem) > MOST:
        return 1
    return min(target.lanes(8 * bytes_of(tensor.elem)), target.registers // 2)
