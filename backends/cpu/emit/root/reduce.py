"""tt.reduce: partial results in vector registers, joined across lanes once at the end.

A combine region that is one known operation starts from its identity; any other region (argmax, several operands) starts
from the first chunk.
"""

from __future__ import annotations

from ...llvm import ir
from ...llvm.ir import Val, const
from ..nest import REGISTER, Buffer, at_index
from . import control, region

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
    "arith.maximumf": _inf(-1), "arith.minimumf": _inf(1),
    "arith.maxsi": _int_min, "arith.minsi": _int_max, "arith.maxui": lambda e: 0, "arith.minui": lambda e: -1,
    "arith.andi": lambda e: -1, "arith.ori": lambda e: 0, "arith.xori": lambda e: 0,
}


def identity_of(op) -> Val | None:
    """The start value of a reduction by one known operation, else None."""
    block = op.regions[0].block
    if len(op.operands) != 1 or len(block.ops) != 2:
        return None
    combine = block.ops[0]
    e = op.operands[0].type.elem
    if combine.name not in IDENTITY or set(combine.operands) != set(block.args) or combine.result.type.elem != e:
        return None
    if list(block.ops[1].operands) != [combine.result]:
        return None
    value = IDENTITY[combine.name](e)
    return const("i1", value) if e == "i1" else const(REGISTER[e], value)


def is_pair(op) -> bool:
    """Does it combine just two elements, one way? Then it is an expression like any other, and needs no loop."""
    return (len(op.operands) == 1 and op.operands[0].type.shape[op.attrs["axis"]] == 2 and op.result.type.is_tensor
            and region.vectorises(op.regions[0].block))


def halves(op, dims):
    """Where a pair's two elements are."""
    axis = op.attrs["axis"]
    return [dims[:axis] + (at_index(k),) + dims[axis:] for k in (0, 1)]


def pair(nest, op, dims):
    return region.inline(nest.k, op.regions[0].block, [nest.at(op.operands[0], d) for d in halves(op, dims)])[0]


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


def quick_form(k, op):
    """(start value, combine) of a maximum or minimum that may be tried by plain comparisons first, else None."""
    quick = _QUICK.get(op.regions[0].block.ops[0].name)
    e = op.operands[0].type.elem
    if not quick or identity_of(op) is None or e not in ("f32", "f64") or k.facts.cost(op.operands[0]) > 4:
        return None
    pred, value = quick
    return const(REGISTER[e], value(e)), lambda acc, x: k.b.select(k.b.fcmp(pred, x, acc), x, acc)


def reduce(k, op):
    """Emit a reduction. A maximum (or minimum) of cheap f32 or f64 elements is first taken by plain comparisons, which skip
    NaN; where that finds no number it is done again, exactly: all elements may have been NaN."""
    quick = quick_form(k, op)
    exact = identity_of(op)
    slots = control.result_slots(k, op)
    if quick:
        b = k.b
        limit, combine = quick
        missed = b.alloca("i1", "missed")
        b.store(const("i1", False), missed, 1)
        _reduce(k, op, slots, limit, combine, missed)
        again, done = k.fn.new_block("again"), k.fn.new_block("found")
        b.cond_br(b.load("i1", missed, 1), again, done)
        b.enter(again)
        _reduce(k, op, slots, exact)
        b.br(done)
        b.place(done)
    else:
        _reduce(k, op, slots, exact)
    control.read_slots(k, op.results, slots)


#: operations whose polynomials hold many values at once
HEAVY = {f"math.{name}" for name in ("exp", "exp2", "log", "log2", "sin", "cos", "tanh", "erf")} | {"tt.extern_elementwise"}


def is_heavy(k, visited) -> bool:
    """Does one of these expressions' operations become a polynomial?"""
    return any(v.op is not None and v.op.name in HEAVY and v not in k.buffers for v, _ in visited)


def chunks_together(k, nest, sinks) -> int:
    """Chunks of a reduction that run side by side: enough to hide the latency of an addition, as many as fit in registers."""
    heavy = is_heavy(k, nest.explore(sinks))
    nest.times_of_chunks = 1 if heavy else min(2, k.target.unroll)
    return k.target.polynomials if heavy else 4


def _reduce(k, op, results, start, combine=None, missed=None):
    """Reduce into `results`: buffers and stack slots. `combine(acc, x)` stands in for the region; `missed` is set where a
    result is still `start`."""
    axis = op.attrs["axis"]
    shape = op.operands[0].type.shape
    block = op.regions[0].block
    dims = tuple(range(len(shape)))
    b = k.b
    nest = k.begin_nest(shape, [(v, dims) for v in op.operands], op=op, inner=axis,
                        lanes=None if region.vectorises(block) else 1, merge=True)
    keeps = k.keeps
    elems = [v.type.elem for v in op.operands]
    over_lanes = nest.vdim == axis
    count = len(op.operands)
    unroll = chunks_together(k, nest, [(v, dims) for v in op.operands]) if start is not None else 1
    lanes = nest.lanes
    slots = [[b.alloca(ir.vec(REGISTER[e], lanes), "acc") for e in elems] for _ in range(unroll)]
    started = b.alloca("i1", "started") if start is None else None
    out_dims = tuple(d for d in dims if d != axis)
    join = (lambda accs, vals: [combine(accs[0], vals[0])]) if combine else (
        lambda accs, vals: region.inline(k, block, accs + vals))

    def before(chunks):
        for u in range(chunks):
            if start is not None:
                b.store(b.splat(start, lanes), slots[u][0], 8)
        if start is None:
            b.store(const("i1", False), started, 1)
            for slot, e in zip(slots[0], elems):
                b.store(Val(ir.vec(REGISTER[e], lanes), "zeroinitializer"), slot, 8)

    def body(u):
        k.write_keeps(nest, keeps, op)
        vals = [b.splat(nest.at(v, dims), lanes) for v in op.operands]
        k.stores_here = True
        tys = [ir.vec(REGISTER[e], lanes) for e in elems]
        if start is not None:
            acc = b.load(tys[0], slots[u][0], 8)
            b.store(join([acc], vals)[0], slots[u][0], 8)
            return
        accs = [b.load(t, s, 8) for t, s in zip(tys, slots[0])]
        go = b.load("i1", started, 1)
        accs = [b.select(go, a, v) for a, v in zip(accs, vals)]
        new = join(accs, vals)
        for s, v, w in zip(slots[0], new, vals):
            b.store(b.select(go, v, w), s, 8)
        b.store(const("i1", True), started, 1)

    def after(chunks):
        tys = [ir.vec(REGISTER[e], lanes) for e in elems]
        if over_lanes or start is None:
            accs = [b.load(t, s, 8) for t, s in zip(tys, slots[0])]
            for u in range(1, chunks if over_lanes else 1):
                accs = join(accs, [b.load(t, s, 8) for t, s in zip(tys, slots[u])])
            finals = [across_lanes(k, join, accs) if over_lanes else accs]
        else:
            finals = [[b.load(tys[0], slots[u][0], 8)] for u in range(chunks)]
        for u, final in enumerate(finals):
            nest.u = u
            for n in range(count):
                if isinstance(results[n], Buffer):
                    nest.store_buffer(results[n], out_dims, final[n])
                else:
                    b.store(final[n], results[n], 8)
            if missed is not None:
                none = b.fcmp("oeq", final[0], start)
                if none.lanes > 1:
                    none = b.call(f"llvm.vector.reduce.or.{ir.mangle(none.ty)}", "i1", [none])
                b.store(b.or_(b.load("i1", missed, 1), none), missed, 1)
        nest.u = 0

    nest.run(nest.default_order, body, unroll, before, after)


ROOTS = {"tt.reduce": reduce}
