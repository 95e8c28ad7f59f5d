"""A softmax by parts: each part of a line has its maximum and its sum of exp(x - maximum), kept in memory until all are known."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def exp_of(x, AXIS: tl.constexpr):
    """(exp(x - top), top, sum of exp(x - top)), top the maximum along AXIS."""
    top = tl.max(x, axis=AXIS)
    base = tl.where(top == -float("inf"), 0.0, top)  # a tile of -inf alone adds nothing
    e = tl.exp(x - tl.expand_dims(base, AXIS))
    return e, top, tl.sum(e, axis=AXIS)


@triton.jit
def keep_part(stats_ptr, top, total, part, parts, lane, count):
    """A tile's statistics, of the lines `lane` of `count`, become part `part` of `parts`. stats: all tops, then all sums."""
    at = stats_ptr + part.to(tl.int64) * count + lane
    tl.store(at, top, mask=lane < count)
    tl.store(at + parts.to(tl.int64) * count, total, mask=lane < count)


@triton.jit
def join_parts(stats_ptr, lane, count, parts, AT_ONCE: tl.constexpr):
    """(maximum, sum of exp(x - maximum)) of all parts of each line; AT_ONCE of them are read together, so that their latencies overlap."""
    sums_ptr = stats_ptr + tl.cast(parts, tl.int64) * count  # Inductor makes a constexpr of a 1, whatever do_not_specialize says
    if AT_ONCE == 1:
        top = tl.load(stats_ptr + lane, mask=lane < count, other=0.0)
        total = tl.load(sums_ptr + lane, mask=lane < count, other=1.0)
        for part in range(1, parts):
            at = part.to(tl.int64) * count + lane
            t = tl.load(stats_ptr + at, mask=lane < count, other=0.0)
            s = tl.load(sums_ptr + at, mask=lane < count, other=0.0)
            new = tl.maximum(top, t)
            base = tl.where(new == -float("inf"), 0.0, new)
            total = total * tl.exp(top - base) + s * tl.exp(t - base)
            top = new
    else:
        top = tl.full(lane.shape, -float("inf"), stats_ptr.dtype.element_ty)
        total = tl.zeros(lane.shape, stats_ptr.dtype.element_ty)
        for start in range(0, parts, AT_ONCE):
            part = start + tl.arange(0, AT_ONCE)
            at = part.to(tl.int64)[:, None] * count + lane[None, :]
            here = (part < parts)[:, None] & (lane < count)[None, :]
            t = tl.load(stats_ptr + at, mask=here, other=-float("inf"))
            s = tl.load(sums_ptr + at, mask=here, other=0.0)
            new = tl.maximum(top, tl.max(t, axis=0))
            base = tl.where(new == -float("inf"), 0.0, new)
            total = total * tl.exp(top - base) + tl.sum(s * tl.exp(t - base[None, :]), axis=0)
            top = new
    return top, total


@triton.jit
def online_step(m, s, x, axis: tl.constexpr):
    """Add the elements of x along `axis` to a running maximum m and sum s of exp(x - m). A maximum of -inf has met no
    number yet: its differences would be NaN, so it counts as 0."""
    new = tl.maximum(m, tl.max(x, axis=axis))
    base = tl.where(new == -float("inf"), 0.0, new)
    s = s * tl.exp(m - base) + tl.sum(tl.exp(x - (base if axis == 0 and len(x.shape) == 1 else
                                                 tl.expand_dims(base, axis))), axis=axis)
    return new, s
