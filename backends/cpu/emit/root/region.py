"""Regions that combine elements (of reductions, scans, maps), carried out on vectors or, where they branch, on scalars."""

from __future__ import annotations

from ...llvm.ir import Val


def vectorises(block) -> bool:
    """Can the region be carried out on all lanes at once: nothing but operations of equal lanes?"""
    from ..rules import ELEMENTWISE
    return len(block.region.blocks) == 1 and all(o.name in ELEMENTWISE and not o.regions for o in block.ops[:-1])


def inline(k, block, args: list[Val]) -> list[Val]:
    """A combine region's results for `args`: lanes where it `vectorises`, else scalars."""
    from ..rules import ELEMENTWISE
    if not vectorises(block):
        return k.scalar_region(block, args)
    env = dict(zip(block.args, args))

    def get(v):
        return env[v] if v in env else k.scalar(v)

    for op in block.ops[:-1]:
        env[op.result] = ELEMENTWISE[op.name](k.b, op, *[get(o) for o in op.operands])
    return [get(o) for o in block.ops[-1].operands]
