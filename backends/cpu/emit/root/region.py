"""Regions that combine elements (of reductions, scans, maps), carried out on vectors or, where they branch, on scalars."""

from __future__ import annotations

from ...llvm.ir import Val
from ...plan.records import Body
from ..elementwise import ELEMENTWISE
from . import control


def inline(k, block, args: list[Val]) -> list[Val]:
    """A combine region's results for `args`: lanes where it can be carried out on all at once, else scalars."""
    if not k.lazy.vectorises(block):
        return _on_scalars(k, block, args)
    env = dict(zip(block.args, args))

    def get(v):
        return env[v] if v in env else k.scalar(v)

    for op in block.ops[:-1]:
        env[op.result] = ELEMENTWISE[op.name](k.b, op, *[get(o) for o in op.operands])
    return [get(o) for o in block.ops[-1].operands]


def _on_scalars(k, block, args: list[Val]) -> list[Val]:
    """The results of a region of scalars, whatever it holds, for `args`."""
    at = k.current_op
    k.env.update(zip(block.args, args))
    plan = k.plan.regions[block.region]
    if isinstance(plan, Body):
        results = control.branching_region(k, plan)
    else:
        k.run(plan)
        results = [k.scalar(v) for v in block.ops[-1].operands]
    k.current_op = at
    return results
