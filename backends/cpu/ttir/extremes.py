"""Maxima and minima that NaN goes through as Inductor's kernels write them, `where((a > b) | (a != a), a, b)`: one operation each, `triport.max` and `triport.min`.

A reduction by one has a start value, so that several chunks go side by side, and none waits for the one before (docs/performance/cpu-kernels.md has the times).
"""

from __future__ import annotations

from .types import Func, Op, Value, give, walk

#: comparison of a with b -> what `where` makes of them
_EXTREMES = {"ogt": "triport.max", "olt": "triport.min"}


def settle(func: Func):
    """Rewrite those of `func`, also in the regions of its reductions."""
    for op in list(walk(func.body)):
        if op.name == "arith.select" and op.result.type.elem in ("f32", "f64") and (name := _extreme(*op.operands)) is not None:
            condition = op.operands[0]
            op.name = name
            give(op, *op.operands[1:])
            _drop(condition)


def _extreme(condition: Value, a: Value, b: Value) -> str | None:
    """Which of them `condition` chooses from a and b, if one."""
    if condition.op is None or condition.op.name != "arith.ori":
        return None
    for passes, is_nan in (condition.op.operands, condition.op.operands[::-1]):
        if _compared(is_nan, "une", a, a) or _compared(is_nan, "uno", a, a):
            return next((name for predicate, name in _EXTREMES.items() if _compared(passes, predicate, a, b)), None)
    return None


def _compared(v: Value, predicate: str, a: Value, b: Value) -> bool:
    return v.op is not None and v.op.name == "arith.cmpf" and v.op.attrs["predicate"] == predicate and v.op.operands[0] is a and v.op.operands[1] is b


def _drop(v: Value):
    """Remove what made a value that nobody uses any more, and what that alone used."""
    op: Op | None = v.op
    if op is None or v.uses or op.name not in ("arith.ori", "arith.cmpf"):
        return
    operands = list(op.operands)
    give(op)
    op.block.ops.remove(op)
    for o in operands:
        _drop(o)
