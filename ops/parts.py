"""A softmax by parts: each part of a line has its maximum and its sum of exp(x - maximum), kept in memory until all are known."""

from __future__ import annotations

import triton
import triton.language as tl

from ..backends.context import call
from ..backends.cpu.llvm import targets


# NORMAL, of the functions and kernels of softmax: in fp32 what would be smaller than its smallest normal number, 2^-126, is 0. Intel's CPUs compute such numbers, and whatever is made of them,
# by a microcode assist: softmax of 1024 x 1024 numbers takes an Emerald Rapids 0.52 ms, and 8.7 where logits are some 30 apart (torch's 7.1). Constants stand in the functions: a kernel with
# global ones is launched the long way.


@triton.jit
def exp_normal(d, NORMAL: tl.constexpr):
    """exp(d)."""
    if NORMAL and d.dtype != tl.float64:
        return tl.exp(tl.where(d < -87.3365, -float("inf"), d))  # the logarithm of 2^-126
    else:
        return tl.exp(d)


@triton.jit
def least_difference(total, NORMAL: tl.constexpr):
    """For `share_of`: of which x - maximum exp(x - maximum) / total, 1 <= total, is a normal number, at least."""
    if NORMAL and total.dtype != tl.float64:
        return tl.log(total) - 87.3365
    else:
        return total


@triton.jit
def share_of(d, least, scale, NORMAL: tl.constexpr):
    """exp(d) * scale."""
    if NORMAL and d.dtype != tl.float64:
        return tl.exp(tl.where(d < least, -float("inf"), d)) * scale
    else:
        return tl.exp(d) * scale


@triton.jit
def above(e, total, NORMAL: tl.constexpr):
    """e, 0 where e / total would be no normal number."""
    if NORMAL and e.dtype != tl.float64:
        return tl.where(e < total * 1.17550e-38, 0.0, e)  # 2^-126, and what rounding may take from it
    else:
        return e


@triton.jit
def scaled_normal(e, factor, NORMAL: tl.constexpr):
    """e * factor, of numbers from 0 to 1; factor may have fewer elements."""
    if NORMAL and e.dtype != tl.float64:
        return tl.where(e < 1.17550e-38 / factor, 0.0, e * factor)
    else:
        return e * factor


def normal(x) -> dict:
    """{"NORMAL": whether the CPU that the tensor x is on wants it} for kernels of softmax of x; fp64's smallest normal number is another."""
    return {"NORMAL": x.device.type == "cpu" and x.element_size() < 8 and call.row is None and targets.native().assists}


@triton.jit
def exp_of(x, AXIS: tl.constexpr, NORMAL: tl.constexpr = False):
    """(exp(x - top), top, sum of exp(x - top)), top the maximum along AXIS."""
    top = tl.max(x, axis=AXIS)
    base = tl.where(top == -float("inf"), 0.0, top)  # a tile of -inf alone adds nothing
    e = exp_normal(x - tl.expand_dims(base, AXIS), NORMAL)
    return e, top, tl.sum(e, axis=AXIS)


@triton.jit
def exp_inside(x, inside, AXIS: tl.constexpr, NORMAL: tl.constexpr = False):
    """The same of x where it is not `inside` -inf, for CPUs: there no exponential is computed outside, and nothing is kept between the passes but exponentials. (A GPU takes 0.83 to 1.05
    of its speed so.)"""
    top = tl.max(tl.where(inside, x, -float("inf")), axis=AXIS)
    base = tl.where(top == -float("inf"), 0.0, top)
    e = tl.where(inside, exp_normal(x - tl.expand_dims(base, AXIS), NORMAL), 0.0)
    return e, top, tl.sum(e, axis=AXIS)


@triton.jit
def keep_part(stats_ptr, top, total, part, parts, lane, count):
    """A tile's statistics, of the lines `lane` of `count`, become part `part` of `parts`. stats: all tops, then all sums."""
    at = stats_ptr + part.to(tl.int64) * count + lane
    tl.store(at, top, mask=lane < count)
    tl.store(at + parts.to(tl.int64) * count, total, mask=lane < count)


@triton.jit
def join_parts(stats_ptr, lane, count, parts, AT_ONCE: tl.constexpr, NORMAL: tl.constexpr = False):
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
            total = total * exp_normal(top - base, NORMAL) + s * exp_normal(t - base, NORMAL)
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
            total = total * exp_normal(top - base, NORMAL) + tl.sum(s * exp_normal(t - base[None, :], NORMAL), axis=0)
            top = new
    return top, total


@triton.jit
def joined(tops, totals, NORMAL: tl.constexpr = False):
    """(maximum, sum of exp(x - maximum)) of all of one line, from those of its parts side by side."""
    top = tl.max(tops, axis=0)
    base = tl.where(top == -float("inf"), 0.0, top)
    return top, tl.sum(totals * exp_normal(tops - base, NORMAL), axis=0)


@triton.jit
def online_step(m, s, x, axis: tl.constexpr, NORMAL: tl.constexpr = False):
    """Add the elements of x along `axis` to a running maximum m and sum s of exp(x - m). A maximum of -inf has met no
    number yet: its differences would be NaN, so it counts as 0."""
    new = tl.maximum(m, tl.max(x, axis=axis))
    base = tl.where(new == -float("inf"), 0.0, new)
    s = s * exp_normal(m - base, NORMAL) + tl.sum(exp_normal(x - (base if axis == 0 and len(x.shape) == 1 else
                                                                  tl.expand_dims(base, axis)), NORMAL), axis=axis)
    return new, s
