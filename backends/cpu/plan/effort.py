"""How much a program of a kernel does, roughly: operations on elements, for each number of times that its loops run. A launch knows these numbers where they follow from arguments."""

from __future__ import annotations

import math
from typing import NamedTuple

from ..ttir.ops import row
from ..ttir.types import Func, Op, Value


class Trips(NamedTuple):
    """How often a loop runs: max(0, (an argument + add) // per)."""
    argument: int
    add: int
    per: int


#: operations by how often they are done: once for each trip of all of these loops, which lie within each other
Effort = dict[tuple[Trips, ...], int]
#: loops within each other, and products of their lengths, of which a launch keeps account
DEEPEST, MOST = 3, 8
#: elements that an operation on a single number counts as, for it takes as long as one on a vector; one that reads memory, which others may wait for; and what an element of these takes
_SCALAR, _READ = 16, 256
_EACH = {"tt.atomic_rmw": 128, "tt.atomic_cas": 128, "tt.atomic_load": 32, "tt.atomic_store": 32, "tt.histogram": 16, "tt.gather": 8}
_CASTS = "arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast"


def effort(func: Func, is_lazy) -> Effort | None:
    """None where nobody can say by arguments how often a loop runs, at most."""
    found = _Counted({v: n for n, v in enumerate(func.args)}, is_lazy).region(func.body)
    return None if found is None or len(found) > MOST or any(len(loops) > DEEPEST for loops in found) else found


class _Counted:
    """arguments: the kernel's, by place. seen: lazy values that have been counted; what several roots need counts once."""

    def __init__(self, arguments: dict[Value, int], is_lazy):
        self.arguments, self.is_lazy = arguments, is_lazy
        self.seen: set[Value] = set()
        self.loops = 0  # that enclose what is counted

    def region(self, region) -> Effort | None:
        if len(region.blocks) > 1:
            return None
        total: Effort = {}
        for op in region.block.ops:
            found = self.op(op)
            if found is None:
                return None
            for loops, count in found.items():
                total[loops] = total.get(loops, 0) + count
        return total

    def op(self, op: Op) -> Effort | None:
        tensors = [o for o in op.operands if o.type.is_tensor]
        if op.name == "scf.for":
            self.loops += 1
            inner, trips = self.region(op.regions[0]), self.trips(*op.operands[:3])
            self.loops -= 1
            if inner is None or trips is None:
                return None
            return {loops: n * trips for loops, n in inner.items()} if isinstance(trips, int) else {(trips, *loops): n for loops, n in inner.items()}
        if op.name in ("tt.dot", "tt.dot_scaled"):
            return {(): math.prod(op.operands[0].type.shape) * op.result.type.shape[-1]}
        if op.name in ("scf.while", "tt.call"):
            return None
        if op.name == "scf.if":
            ways = [self.region(r) for r in op.regions]
            return None if None in ways else {loops: max(w.get(loops, 0) for w in ways) for loops in {k for w in ways for k in w}}
        if op.regions or not op.results or tensors and not self.is_lazy(op):  # reductions, scans; stores; what else needs its operands' elements
            values = tensors[1:2] if op.name == "tt.store" else tensors
            each = self.combined(op)
            return None if each is None else {(): max((math.prod(v.type.shape) for v in [*tensors, *op.results] if v.type.is_tensor), default=0) * (each + sum(map(self.cost, values)))}
        if not self.loops or op.name == "arith.constant" or any(r.type.is_tensor for r in op.results):
            return {(): 0}  # outside of loops emit/module.py has a program's beginning and end
        return {(): _READ if row(op).reads else _SCALAR * max(1, row(op).cost)}

    @staticmethod
    def combined(op: Op) -> int | None:
        """What an operation itself does with an element: of a region, which runs for each, what stands in it; None where that has loops of its own."""
        inside = [o for r in op.regions for b in r.blocks for o in b.ops]
        if any(o.regions for o in inside) or any(len(r.blocks) > 1 for r in op.regions):
            return None
        return 2 + _EACH.get(op.name, 0) + sum(row(o).cost for o in inside)

    def cost(self, v: Value) -> int:
        if v in self.seen or v.op is None or not v.type.is_tensor or not self.is_lazy(v.op):
            return 1
        self.seen.add(v)
        return row(v.op).cost + (0 if v.op.name == "tt.load" else sum(map(self.cost, v.op.operands)))  # where it reads is mostly a loop's bounds

    def trips(self, lo: Value, hi: Value, step: Value) -> int | Trips | None:
        """How often a loop from lo to hi runs, at most: a beginning that is not known, but is not negative, counts as 0, a step as 1."""
        begin, hi, step = self.bound(lo), self.bound(hi), self.bound(step)
        if not isinstance(begin, int) and not _is_positive(lo):
            return None
        lo, step = begin if isinstance(begin, int) else 0, max(step, 1) if isinstance(step, int) else 1
        if isinstance(hi, Trips):
            return Trips(hi.argument, hi.add + (step - 1 - lo) * hi.per, hi.per * step)
        return None if hi is None else max(0, -(-(hi - lo) // step))

    def bound(self, v: Value) -> int | Trips | None:
        """A number that `v` is, or is no larger than."""
        if v.op is None:
            return Trips(self.arguments[v], 0, 1) if v in self.arguments and v.type.elem in ("i32", "i64") else None
        if v.op.name == "arith.constant":
            value = v.op.attrs["value"]
            return value if isinstance(value, int) else None
        if v.op.name in _CASTS:
            return self.bound(v.op.operands[0])
        if v.op.name == "arith.minsi":
            return next((b for b in map(self.bound, v.op.operands) if b is not None), None)
        if v.op.name not in ("arith.addi", "arith.subi", "arith.divsi"):
            return None
        x, y = map(self.bound, v.op.operands)
        if v.op.name == "arith.addi" and isinstance(x, int):
            x, y = y, x
        if not isinstance(x, Trips) or not isinstance(y, int):
            return None
        if v.op.name == "arith.divsi":
            return Trips(x.argument, x.add, x.per * y) if y > 0 else None
        return x._replace(add=x.add + (y if v.op.name == "arith.addi" else -y) * x.per)


def _is_positive(v: Value) -> bool:
    """Is a number certainly not negative, a wrap apart: a program's, and what is made of such?"""
    if v.op is None:
        return False
    if v.op.name == "arith.constant":
        return isinstance(v.op.attrs["value"], int) and v.op.attrs["value"] >= 0
    return v.op.name in ("tt.get_program_id", "tt.get_num_programs") or v.op.name in (*_CASTS, "arith.addi", "arith.muli", "arith.divsi", "arith.remsi") and all(
        map(_is_positive, v.op.operands))
