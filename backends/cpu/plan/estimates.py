"""Divisions by an estimate: where a target divides so slowly that a loop waits for nothing else, and the divisor is one that an estimate does for.

The estimate has 7 bits; two steps of Newton's make it 24 (`emit/element/arith.py`). It takes divisors that are at least 1, infinity and NaN among them:
then no step overflows, and none loses bits. That is proved from the expression: 1 + exp(-x) is one.
"""

from __future__ import annotations

from ..llvm.targets import Target
from ..ttir.ops import row
from ..ttir.types import Op, Value

#: how deep an expression is looked into
_DEPTH = 8


def divisions(target: Target, visited) -> set[Op]:
    """The divisions among the values `visited` of a loop that go by an estimate."""
    if not target.divides:
        return set()
    ops = list(dict.fromkeys(v.op for v, dims in visited if v.op is not None and dims))
    found = {op for op in ops if op.name == "arith.divf" and op.result.type.elem == "f32" and at_least_one(op.operands[1])}
    others = sum(row(op).cost for op in ops if op.name != "arith.divf" and op.result.type.elem[0] in "fb")
    return found if target.divides * len(found) >= others else set()


def at_least_one(v: Value) -> bool:
    """Is every element at least 1, or NaN?"""
    return _least(v, _DEPTH) >= 1.0


def _least(v: Value, depth: int) -> float:
    """What an element is at least, where it is no NaN."""
    op, none = v.op, float("-inf")
    if op is None or depth == 0:
        return none
    if op.name == "arith.constant":
        value = op.attrs["value"]
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value else none
    if row(op).view:
        return _least(op.operands[0], depth - 1)
    if op.name in ("math.exp", "math.exp2", "math.absf", "math.sqrt"):
        return 0.0
    if op.name == "arith.mulf" and op.operands[0] is op.operands[1]:
        return 0.0
    if op.name == "arith.addf":
        return sum(_least(o, depth - 1) for o in op.operands)
    if op.name in ("arith.maxnumf", "arith.maximumf", "triport.max"):
        return max(_least(o, depth - 1) for o in op.operands)
    return none
