"""Quotients and remainders of a remainder, as kernels take flat indices apart: `r = i % (H * W); y = r // W; x = r % W`.

Where W divides what the remainder is of, r % W is i % W and r // W is (i // W) % H, of negative numbers, too, as division truncates. Only the index itself is then divided, of which it is
known what neighbouring elements have together (plan/quotients.py, which also has those whose H and W are known as the kernel runs). And i - i // W * W is i % W, whatever W.
"""

from __future__ import annotations

from .types import Func, Op, Value, constant, give, made, walk

#: division -> the remainder that belongs to it
_REMAINDER = {"arith.divsi": "arith.remsi", "arith.divui": "arith.remui"}
#: what makes indices of indices; of what is loaded neighbours have nothing together, and a quotient that is there already makes its remainder without another division
_OF_INDICES = frozenset((*_REMAINDER, *_REMAINDER.values(), *(f"arith.{n}" for n in ("addi", "subi", "muli", "extsi", "extui", "trunci")), "tt.expand_dims", "tt.broadcast", "tt.reshape"))


def settle(func: Func):
    """Rewrite those of `func` whose divisors are constants above 0, and differences."""
    indices: set[Value] = set()  # a value is made before it is used
    for op in list(walk(func.body)):
        if op.name == "tt.make_range" or op.name in _OF_INDICES and not indices.isdisjoint(op.operands):
            indices.update(op.results)
        if op.name in _REMAINDER:
            _quotient(op, indices)
        elif op.name in _REMAINDER.values():
            _remainder(op)
        elif op.name == "arith.subi" and op.operands[0] in indices:
            _difference(op)


def _quotient(op: Op, indices: set[Value]):
    of = _divided(op.operands[0], _REMAINDER[op.name])
    per = _number(op.operands[1])
    if of is None or per is None or of[1] % per or of[0] not in indices:
        return
    inner = made(op.name, [of[0], op.operands[1]], op.result.type, {}, op.loc, op.block, op.result.name)
    whole = made("arith.constant", [], op.result.type, {"value": of[1] // per}, op.loc, op.block, op.result.name)
    at = op.block.ops.index(op)
    op.block.ops[at:at] = [inner, whole]
    op.name = _REMAINDER[op.name]
    give(op, inner.result, whole.result)


def _remainder(op: Op):
    of, per = _divided(op.operands[0], op.name), _number(op.operands[1])
    if of is not None and per is not None and of[1] % per == 0:
        give(op, of[0], op.operands[1])


def _difference(op: Op):
    x, product = op.operands
    if product.op is None or product.op.name != "arith.muli":
        return
    for quotient, by in (product.op.operands, product.op.operands[::-1]):
        if quotient.op is None or quotient.op.name not in _REMAINDER or quotient.op.operands[0] is not x:
            continue
        divisor = quotient.op.operands[1]
        if divisor is by or _number(by) is not None and _number(by) == _number(divisor):
            op.name = _REMAINDER[quotient.op.name]
            give(op, x, divisor)
            return


def _divided(v: Value, name: str) -> tuple[Value, int] | None:
    """What `v` is a quotient or remainder of, and by which number."""
    by = _number(v.op.operands[1]) if v.op is not None and v.op.name == name else None
    return None if by is None else (v.op.operands[0], by)


def _number(v: Value) -> int | None:
    """The number above 0 that all elements are."""
    number = constant(v)
    return number if number is not None and number > 0 else None
