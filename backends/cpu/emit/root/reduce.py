"""tt.reduce: partial results in vector registers, joined across lanes once at the end.

A combine region that is one known operation starts from its identity; any other region (argmax, several operands) starts
from the first chunk.
"""

from __future__ import annotations

import functools

from ...llvm import ir
from ...llvm.ir import Val, const
from ...llvm.elements import REGISTER
from ...plan.records import Buffer
from ...plan.roots import combinations, known_combination
from .. import access, bounds
from ..elementwise import ELEMENTWISE
from . import region
from .memory import ahead
from .scalars import register_type

_NAN = {"f16": ("bits", 0x7E00), "bf16": 0x7FC0, "f32": ("bits", 0x7FC00000), "f64": ("bits", 0x7FF8000000000000)}


def _inf(sign):
    table = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F800000, "f64": 0x7FF0000000000000}

    def value(e):
        bits = table[e] | ((sign < 0) << ({"f16": 15, "bf16": 15, "f32": 31, "f64": 63}[e]))
        return bits if e == "bf16" else ("bits", bits)

    return value


def _int_min(e):
    return -(1 << (int(e[1:]) - 1)) if e != "i1" else 1


def _int_max(e):
    return (1 << (int(e[1:]) - 1)) - 1 if e != "i1" else 0


#: operation -> its identity for an element type. -0.0 is addition's: -0.0 + -0.0 stays -0.0. NaN is maxnum's, so that a
#: row of NaN yields NaN.
IDENTITY = {
    "arith.addf": lambda e: 0x8000 if e == "bf16" else -0.0, "arith.addi": lambda e: 0,
    "arith.mulf": lambda e: 0x3F80 if e == "bf16" else 1.0, "arith.muli": lambda e: 1,
    "arith.maxnumf": _NAN.__getitem__, "arith.minnumf": _NAN.__getitem__,
    "arith.maximumf": _inf(-1), "arith.minimumf": _inf(1), "triport.max": _inf(-1), "triport.min": _inf(1),
    "arith.maxsi": _int_min, "arith.minsi": _int_max, "arith.maxui": lambda e: 0, "arith.minui": lambda e: -1,
    "arith.andi": lambda e: -1, "arith.ori": lambda e: 0, "arith.xori": lambda e: 0,
}


#: operations of which taking a value in once more changes nothing
_IDEMPOTENT = {"arith.maxnumf", "arith.minnumf", "arith.maximumf", "arith.minimumf", "arith.maxsi", "arith.minsi", "arith.maxui", "arith.minui", "arith.andi", "arith.ori", "triport.max", "triport.min"}


def identities_of(op) -> list[Val] | None:
    """The start values of a reduction by known operations, else None."""
    names = combinations(op)
    return None if names is None else [_identity(name, v.type.elem) for name, v in zip(names, op.operands)]


def _identity(name: str, e: str) -> Val:
    value = IDENTITY[name](e)
    return const("i1", value) if e == "i1" else const(REGISTER[e], value)


def across_lanes(k, join, accs: list[Val]) -> list[Val]:
    """Combine the lanes of each accumulator into one scalar, halving."""
    n = accs[0].lanes
    while n > 1:
        if n == 4 and accs[0].elem in ("i32", "i64"):
            # Neighbours first, which is no pyramid of halves: LLVM 20 to 22 for AVX-512 turn one that adds 4 or 8 numbers known to be
            # below 256 into a sum of bytes, after types were made legal, and end the process over its <4 x i8>.
            accs = join(accs, [k.b.shuffle(a, None, [1, 0, 3, 2]) for a in accs])
            accs = join(accs, [k.b.shuffle(a, None, [2, 3, 0, 1]) for a in accs])
            return [k.b.extract(a, 0) for a in accs]
        half = n // 2
        if half == 1:
            low, high = [k.b.extract(x, 0) for x in accs], [k.b.extract(x, 1) for x in accs]
        else:
            low = [k.b.shuffle(a, None, list(range(half))) for a in accs]
            high = [k.b.shuffle(a, None, list(range(half, n))) for a in accs]
        accs = join(low, high)
        n = half
    return accs


#: maxnum and minnum with one comparison and no care for NaN -> (the comparison, the value that nothing passes)
_QUICK = {"arith.maxnumf": ("ogt", _inf(-1)), "arith.minnumf": ("olt", _inf(1))}


def quick_form(k, op) -> tuple[Val, object]:
    """(start value, combine) of a maximum or minimum by plain comparisons."""
    pred, value = _QUICK[op.regions[0].block.ops[0].name]
    e = op.operands[0].type.elem
    return const(REGISTER[e], value(e)), lambda acc, x: k.b.select(k.b.fcmp(pred, x, acc), x, acc)


def reduce(k, step):
    """A reduction. Where the plan says `quick`, a maximum (or minimum) is first taken by plain comparisons, which skip
    NaN; where that finds no number it is done again, exactly: all elements may have been NaN."""
    op = step.op
    exact = identities_of(op)
    slots = [out if out is not None else k.b.alloca(register_type(r), "slot") for out, r in zip(step.out, op.results)]
    if step.quick:
        b = k.b
        limit, combine = quick_form(k, op)
        missed = b.alloca("i1", "missed")
        b.store(const("i1", False), missed, 1)
        _pass(k, step, slots, [limit], combine, missed)
        again, done = k.fn.new_block("again"), k.fn.new_block("found")
        b.cond_br(b.load("i1", missed, 1), again, done)
        b.enter(again)
        _pass(k, step, slots, exact)
        b.br(done)
        b.place(done)
    else:
        _pass(k, step, slots, exact)
    for r, slot in zip(op.results, slots):
        if isinstance(slot, Val):
            k.env[r] = k.b.load(register_type(r), slot, 8)


class Partial:
    """Partial results of one pass over the elements of a reduction's operands, in registers: of `chunks` chunks side by side of each line that goes beside others. `combine(acc, x)` stands
    in for the region; without a `start` for each operand the first elements are it. keeps: what is written on the way."""

    def __init__(self, k, nest, op, chunks: int, keeps, start: list[Val] | None, combine=None):
        self.k, self.b, self.nest, self.op, self.chunks, self.keeps, self.start = k, k.b, nest, op, chunks, keeps, start
        block = op.regions[0].block
        self.types = [ir.vec(REGISTER[v.type.elem], nest.lanes) for v in op.operands]
        self.slots = [[[self.b.alloca(t, "acc") for t in self.types] for _ in range(chunks)] for _ in range(nest.abreast)]
        self.started = self.b.alloca("i1", "started") if start is None else None
        self._taken: list[Val] = []  # what the turn that is written has added
        self.join = (lambda accs, vals: [combine(accs[0], vals[0])]) if combine else (
            lambda accs, vals: region.inline(k, block, accs + vals))

    def before(self, chunks: int):
        b = self.b
        if self.start is None:
            b.store(const("i1", False), self.started, 1)
            for slot, t in zip(self.slots[0][0], self.types):
                b.store(Val(t, "zeroinitializer"), slot, 8)
            return
        for line in self.slots[:self.nest.lines]:
            for slots in line[:chunks]:
                for slot, start in zip(slots, self.start):
                    b.store(b.splat(start, self.nest.lanes), slot, 8)

    def add(self, u: int):
        """The elements of chunk `u` are taken in."""
        self.k.write_keeps(self.nest, self.keeps, reduces=True)
        if self.nest.lines > 1:
            self._add_lines(u)
            return
        b = self.b
        vals = [self._value(n) for n in range(len(self.op.operands))]
        self.k.stores_here = True
        self._taken.append(vals[0])
        if self.start is not None:
            for new, slot in zip(self.join(self._accumulators(u), vals), self.slots[0][u]):
                b.store(new, slot, 8)
            return
        accs = self._accumulators(0)
        go = b.load("i1", self.started, 1)
        accs = [b.select(go, a, v) for a, v in zip(accs, vals)]
        new = self.join(accs, vals)
        for slot, v, w in zip(self.slots[0][0], new, vals):
            b.store(b.select(go, v, w), slot, 8)
        b.store(const("i1", True), self.started, 1)

    def _value(self, n: int) -> Val:
        """What is taken in of operand n."""
        b, nest, v = self.b, self.nest, self.op.operands[n]
        value = b.splat(nest.at(v, nest.plan.identity), nest.lanes)
        return value if nest.part is None else b.select(nest.part, value, b.splat(self.start[n], nest.lanes))

    def _add_lines(self, u: int):
        """Operand by operand of all lines: what they share is in a register no longer than it takes."""
        block, b = self.op.regions[0].block, self.b
        for n in range(len(self.op.operands)):
            combine = block.ops[-1].operands[n].op

            def taken(line, n=n, combine=combine):
                slot, value = self.slots[line][u][n], self._value(n)
                self._taken.append(value)
                b.store(ELEMENTWISE[combine.name](b, combine, b.load(self.types[n], slot, 8), value), slot, 8)

            self.nest.each_line(taken)
        self.k.stores_here = True

    def ends_early(self, d: int):
        """For `Nest.ends_early`: behind masks a row's padding is one value, and once that is taken in, as often as not the next ones change nothing: 0 of a sum (exp(-inf) of a softmax),
        anything of a maximum."""
        name, elem = known_combination(self.op), self.op.operands[0].type.elem
        if d != self.op.attrs["axis"] or not bounds.same_along(self.nest, self.op.operands, d) or self.k.kept_here(self.nest, self.keeps):
            return None
        if name in _IDEMPOTENT:
            self._taken.clear()
            return lambda: const("i1", True)
        if name == "arith.addi" or name == "arith.addf" and elem in ("f32", "f64"):
            self._taken.clear()
            return self._adds_nothing
        return None

    def _adds_nothing(self) -> Val:
        """Would adding once more what this turn added change nothing? It is 0, infinite or NaN: as large when doubled."""
        b = self.b
        double, differ = ("add", functools.partial(b.icmp, "ne")) if self._taken[0].elem[0] == "i" else ("fadd", functools.partial(b.fcmp, "one"))
        return b.not_(functools.reduce(b.or_, (b.some(differ(b.bin(double, v, v), v)) for v in self._taken)))

    def _accumulators(self, u: int, line: int = 0) -> list[Val]:
        return [self.b.load(t, slot, 8) for t, slot in zip(self.types, self.slots[line][u])]

    def finals(self, chunks: int, line: int = 0) -> list[list[Val]]:
        """The results of a line behind the innermost loop: one of all chunks and lanes where these lie along the axis, else of each chunk."""
        over_lanes = self.nest.vdim == self.op.attrs["axis"]
        if not over_lanes and self.start is not None:
            return [self._accumulators(u) for u in range(chunks)]
        accs = self._accumulators(0, line)
        for u in range(1, chunks if over_lanes else 1):
            accs = self.join(accs, self._accumulators(u, line))
        return [across_lanes(self.k, self.join, accs) if over_lanes else accs]


def _pass(k, step, results, start: list[Val] | None, combine=None, missed: Val | None = None):
    """One pass over the elements, into `results`: buffers and stack slots. `missed` is set where a result is still `start`."""
    nest, b = k.nest(step.nest), k.b
    nest.times_of_chunks, nest.abreast = step.times, step.lines
    nest.first = ahead(nest, nest.plan.chunks, step.op.operands)
    nest.masked = start is not None and nest.maskable(step.nest.keeps)
    partial = Partial(k, nest, step.op, step.chunks, step.nest.keeps, start, combine)
    dims = tuple(d for d in nest.plan.identity if d != step.op.attrs["axis"])

    def store(chunks):
        nest.each_line(lambda line: store_line(chunks, line))

    def store_line(chunks, line):
        for u, final in enumerate(partial.finals(chunks, line)):
            nest.u = u
            for result, v in zip(results, final):
                if isinstance(result, Buffer):
                    access.store_buffer(nest, result, dims, v)
                else:
                    b.store(v, result, 8)
            if missed is not None:
                none = b.some(b.fcmp("oeq", final[0], start[0]))
                b.store(b.or_(b.load("i1", missed, 1), none), missed, 1)
        nest.u = 0

    nest.run(partial.add, step.chunks, partial.before, store, partial.ends_early)


ROOTS = {"tt.reduce": reduce}
