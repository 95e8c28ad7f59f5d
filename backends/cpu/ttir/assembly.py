"""Inline assembly of several results, as one operation for each of them: what it computes for one is found from that result back, and instructions that several need are one to LLVM."""

from __future__ import annotations

from .types import Func, Op, walk

NAME = "tt.elementwise_inline_asm"


def settle(func: Func):
    """Rewrite those of `func`. Each operation has every result's type in its attribute "gives", and in "gives_here" which is its own."""
    for op in list(walk(func.body)):
        if op.name == NAME and len(op.results) > 1:
            _apart(op)


def _apart(op: Op):
    gives = [v.type for v in op.results]
    made = []
    for k, result in enumerate(op.results):
        one = Op(NAME, list(op.operands), [result], {**op.attrs, "gives": gives, "gives_here": k}, loc=op.loc, block=op.block)
        result.op, result.index = one, 0
        made.append(one)
    for v in op.operands:
        v.uses.remove(op)
        v.uses += made
    at = op.block.ops.index(op)
    op.block.ops[at:at + 1] = made
