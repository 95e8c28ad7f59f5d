"""In which order a nest walks its index space: which dimensions become one, which is the vector dimension, how many lanes, how often unrolled.

Pure functions of what is visited and what is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ..llvm.targets import Target
from ..ttir.ops import row
from ..ttir.types import Value
from . import quotients
from .facts import poly
from .records import Buffer, NestPlan
from .space import Known, Space

#: lazy operations that evaluate indices themselves
_INDICES = ("tt.make_range", "tt.join", "tt.load", "triport.pick", "triport.half", "triport.bit")


#: the cost of what is in front of a loop from which on it is not unrolled: for the hundreds of loops of a sort LLVM would take half as long again
MUCH = 192


def merged(known: Known, visited, shape, inner: int | None, into: Buffer | None) -> tuple[int, ...]:
    """`shape` with each run of dimensions that all of `visited` walks as one put into the run's last dimension. Sorting
    works on [2, 2, ..., 2]: ten nested loops of two trips would be a bad way through it."""
    n = len(shape)
    if n < 3:
        return shape
    together = [shape[d] > 1 and shape[d + 1] > 1 for d in range(n - 1)] + [False]
    if inner is not None:
        _apart(together, inner)
    if into is not None:
        if into.panel:
            return shape
        _walks_as_one(together, into, tuple(range(n)), shape)
    for v, dims in visited:
        buf = known.buffers.get(v)
        if v in known.inductions or v.type.elem == "ptr" or (buf is None and v.op is None) or (buf and buf.panel):
            return shape
        if buf is not None:
            _walks_as_one(together, buf, dims, shape)
        elif v.op.name in _INDICES:
            for d in dims:
                if d >= 0:
                    _apart(together, d)
    out, run = [], 1
    for d in range(n):
        run *= shape[d]
        out.append(1 if together[d] else run)
        if not together[d]:
            run = 1
    return tuple(out)


def _apart(together: list[bool], d: int):
    """Dimension `d` is joined to neither neighbour."""
    together[d] = False
    if d:
        together[d - 1] = False


def _walks_as_one(together: list[bool], buf: Buffer, dims, shape):
    """What of `together` a buffer's strides allow."""
    axis = {d: a for a, d in enumerate(dims)}
    for d in range(len(shape) - 1):
        x, y = axis.get(d), axis.get(d + 1)
        if together[d] and (x, y) != (None, None) and (
                x is None or y is None or (buf.shape[x], buf.shape[y]) != (shape[d], shape[d + 1])
                or buf.strides[x] != buf.strides[y] * shape[d + 1]):
            together[d] = False


def vector_dimension(space: Space, visited, target: Target, proved: Callable, into: Buffer | None = None) -> int:
    """The dimension with the most unit-stride accesses; of what has none the one along which `into` lies, if it is written to one, and the last one that is not 1 otherwise.
    One too short for a vector is for where more lies side by side along it than gathering would cost. proved: as for `Space.atoms`."""
    shape = space.shape
    if not shape:
        return 0
    votes = {d: 0.0 for d, n in enumerate(shape) if n > 1}
    if not votes:
        return len(shape) - 1
    votes[max(votes)] += 0.01
    for d in votes:
        votes[d] += 0.02 * _lies(into, d, shape)
    volume, width = math.prod(shape), target.lanes(32)
    for v, dims in visited:
        # What is read once for a whole row or column matters as little as it is read.
        weight = 1.0 / volume
        for d in set(dims):
            weight *= shape[d] if d >= 0 else 1
        buf = space.known.buffers.get(v)
        if buf is not None:
            for axis, d in enumerate(dims):
                if d in votes and buf.strides[axis] == 1:
                    votes[d] += weight
        elif v.type.elem == "ptr" and any(u.name in ("tt.load", "tt.store") for u in v.uses):
            at = space.affine(v, dims)
            for d in votes:
                lanes = min(width, shape[d])
                if at.coef.get(d) == poly(1) or quotients.by_one(space, at, d, proved, lambda found: found.pays(target, lanes)):
                    votes[d] += weight * len(v.uses)
    wide = [d for d in votes if shape[d] >= width]
    if not wide:
        return max(votes, key=lambda d: (min(shape[d], width), votes[d], d))
    best = max(wide, key=lambda d: (votes[d], d))
    short = max((d for d in votes if shape[d] < width), key=lambda d: (votes[d], d), default=best)
    gathered = votes[short] - votes[best] + (_lies(into, short, shape) - _lies(into, best, shape))
    return short if _short_pays(shape[short], width, gathered, work(space, visited)) else best


def _lies(into: Buffer | None, d: int, shape) -> bool:
    """Do neighbours along `d` lie side by side in the buffer that is written?"""
    return into is not None and not into.panel and len(into.strides) == len(shape) and into.strides[d] == 1


#: simple operations that rounding to 16 bits takes beside its own
_ROUNDING = 3


def _short_pays(n: int, width: int, gathered: float, work: float) -> bool:
    """Are lanes better put along a dimension of `n` elements, less than a vector, than along one of `width` or more, where so many of an element's accesses would be `gathered` by single
    lanes, a cycle each? work: the simple vector operations on an element, of which two go in a cycle, n or `width` elements at a time."""
    return n < width and gathered > 0.1 and gathered * (1 - 1 / n) > work / 2 * (1 / n - 1 / width)


def work(space: Space, visited) -> int:
    """Simple vector operations for one element of the space."""
    whole = {d for d, n in enumerate(space.shape) if n > 1}
    ops = [v.op for v, dims in visited if v.op is not None and v not in space.known.buffers and v.op.name != "tt.load" and whole <= set(dims)]
    return sum(row(op).cost + _ROUNDING * (op.name == "arith.truncf" and op.result.type.elem != "f32") for op in ops)


def lane_bits(visited) -> int:
    """The element width that lanes are counted by: the widest float, at least 32 where 32-bit data is in play."""
    bits = 8
    for v, _ in visited:
        e = v.type.elem
        if e == "f64":
            return 64
        if e in ("f32", "bf16") or (e == "i32" and v.op is not None):
            bits = max(bits, 32)
        elif e in ("f16", "i16"):
            bits = max(bits, 16)
        elif e == "i64":
            bits = max(bits, 32)
    return bits


def is_heavy(known: Known, visited) -> bool:
    """Does one of these expressions' operations become a polynomial?"""
    return any(v.op is not None and row(v.op).heavy and v not in known.buffers for v, _ in visited)


def times_unrolled(known: Known, visited, target: Target, before: int) -> int:
    """How often a loop over these expressions is unrolled: as often as its target has registers for, and not behind a cost of `MUCH` in front of
    it. LLVM unrolls nothing by itself: it does so where registers are short, too."""
    if before > MUCH:
        return 1
    work: set[Value] = {v for v, _ in visited if v.op is not None and v not in known.buffers and v.type.elem[0] in "fb"
                        and v.op.name.startswith(("arith.", "math.", "tt.extern"))}
    heavy = len(work) > 4 or is_heavy(known, visited)
    return min(target.unroll, target.polynomials) if heavy else target.unroll


def chunks_together(known: Known, visited, target: Target, before: int, chunks: int, sums: int = 1) -> tuple[int, int]:
    """(chunks of a reduction that run side by side, how often a loop over them is unrolled): enough to hide the latency of an addition, as many as
    fit in registers. `chunks`: those of groups of registers (pressure.py); sums: numbers that are reduced at the same time."""
    if chunks:
        return chunks, 1
    heavy = is_heavy(known, visited)
    if sums > 1:
        return next(n for n in (4, 2, 1) if n == 1 or n * sums <= _room(target) and not heavy), 1
    return (target.polynomials, 1) if heavy else (4, 1 if before > MUCH else min(2, target.unroll))


def _room(target: Target) -> int:
    """Accumulators that leave registers for what is added to them."""
    return target.registers * 3 // 4


#: lines whose sums are taken at the same time, at most, and accumulators that hide the latency of an addition
_LINES, _HIDING = 4, 8


def lines_abreast(known: Known, visited, target: Target, nest: NestPlan, axis: int, sums: int) -> tuple[int, int] | None:
    """(chunks side by side, lines abreast) of a reduction of `sums` numbers along lanes where what is loaded for a line serves others, too, as a vector's
    elements do those of a matrix: it is loaded once for several, and memory has as many streams to run ahead in. None where one line goes after the other."""
    if (nest.order[-1:] != (axis,) or nest.vdim != axis or nest.lanes == 1 or len(nest.order) < 2 or nest.merged or nest.registers > 1 or nest.chunks or nest.keeps or nest.quotients
            or nest.steps or nest.picks or nest.backwards is not None or is_heavy(known, visited)):
        return None
    outer = nest.order[-2]
    loaded = [set(dims) for v, dims in visited if v.op is not None and v.op.name == "tt.load" and v not in known.buffers and axis in dims]
    lines = min(_LINES, _room(target) // sums, nest.shape[outer])
    if lines < 2 or all(outer in dims for dims in loaded) or not any(outer in dims for dims in loaded):
        return None
    return next(n for n in (1, 2, 4) if n == 4 or n * lines * sums >= _HIDING), lines
