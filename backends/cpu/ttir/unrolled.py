"""Loops that Triton's unroller took apart, with the right number of trips.

`tl.range(lo, hi, step, loop_unroll_factor=f)` becomes a loop over whole groups of f trips, up to `lo + (n - n % f) * step`, and one over the
rest, where n is `(hi - lo + step - 1) / step` *unsigned* (MLIR's loopUnrollByFactor, Triton 3.6 to 3.9): where hi is below lo that is a
huge number, and a body runs that should not. The same where `lo + n * step` passes the end of the type. Then n is taken as 0 here: the loop
over the rest does everything.
"""

from __future__ import annotations

from .types import Func, Op, Type, Value, give, made, walk


def mend(func: Func):
    """Guard the number of trips of each unrolled loop in `func`."""
    for rest in [op for op in walk(func.body) if op.name == "scf.for"]:
        groups = next((u for u in rest.operands[0].uses if u.name == "scf.for" and u is not rest and u.operands[1] is rest.operands[0]), None)
        trips = groups and _trips(rest.operands[0], groups.operands[0], rest.operands[1], rest.operands[2])
        if trips:
            _guard(trips, groups.operands[0], rest.operands[1], rest.operands[2])


def _made_by(v: Value, name: str) -> Op | None:
    return v.op if v.op is not None and v.op.name == name else None


def _trips(end: Value, lo: Value, hi: Value, step: Value) -> Op | None:
    """The division n = (hi - lo + (step - 1)) / step that counts the trips, of `end` = lo + (n - n % f) * step."""
    sum_ = _made_by(end, "arith.addi")
    product = sum_ and sum_.operands[0] is lo and _made_by(sum_.operands[1], "arith.muli")
    whole = product and product.operands[1] is step and _made_by(product.operands[0], "arith.subi")
    rest = whole and _made_by(whole.operands[1], "arith.remsi")
    count = rest and rest.operands[0] is whole.operands[0] and _made_by(whole.operands[0], "arith.divui")
    over = count and count.operands[1] is step and _made_by(count.operands[0], "arith.addi")
    length, less = (_made_by(v, "arith.subi") for v in over.operands) if over else (None, None)
    return count if length and length.operands == [hi, lo] and less and less.operands[0] is step else None


def _guard(trips: Op, lo: Value, hi: Value, step: Value):
    """`trips` only where hi > lo, the count has a sign bit of 0 and lo + count * step has not wrapped; else 0."""
    n, block = trips.result, trips.block
    users = list(n.uses)
    new: list[Op] = []

    def make(name, operands, type=n.type, **attrs):
        new.append(made(name, list(operands), type, attrs, trips.loc, block, f"{n.name}.{len(new)}"))
        return new[-1].result

    truth = Type("i1")
    zero = make("arith.constant", [], value=0)
    end = make("arith.addi", [lo, make("arith.muli", [n, step])])
    tests = [make("arith.cmpi", pair, truth, predicate=word) for word, pair in (("sgt", (hi, lo)), ("sge", (n, zero)), ("sge", (end, hi)))]
    fine = make("arith.andi", [make("arith.andi", tests[:2], truth), tests[2]], truth)
    guarded = make("arith.select", [fine, n, zero])
    block.ops[block.ops.index(trips) + 1:block.ops.index(trips) + 1] = new
    for user in users:
        give(user, *(guarded if v is n else v for v in user.operands))
