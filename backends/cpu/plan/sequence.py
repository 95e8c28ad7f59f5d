"""The order in which a kernel's operations are carried out, known before anything is planned: that of the text, an operation with regions behind what
is in them.
"""

from __future__ import annotations

import bisect

from ..ttir.ops import row
from ..ttir.types import Op, Value
from .facts import Facts
from .lazy import Lazy


def following_product(op: Op) -> Op | None:
    """The product that adds to this one's result, right behind it in the block, and is all that reads it: K in pieces, as in an unrolled
    loop. (The two are multiplied at once: the accumulators go through registers once.)"""
    out = op.result
    if len(out.uses) != 1 or out.uses[0].name != "tt.dot" or out.uses[0].block is not op.block:
        return None
    other = out.uses[0]
    if other.operands[2] is not out or [o.type for o in other.operands] != [o.type for o in op.operands]:
        return None
    ops = op.block.ops
    between = ops[ops.index(op) + 1:ops.index(other)]
    return other if not any(o.regions or row(o).writes for o in between) else None


class Sequence:
    """Numbers of a kernel's operations, in order.

    end: behind which number an operation has been walked past; done: behind which it has been carried out, which is later for a product that a
    following one carries out with itself, and 0 for what nobody needs; cost: of all operations on tensors up to a number, in simple vector
    operations; products: the last of such products -> all of them, in order; loads: the lazy loads, in order."""

    def __init__(self, region, lazy: Lazy, facts: Facts):
        self.end: dict[Op, int] = {}
        self.done: dict[Op, int] = {}
        self.cost = [0]
        self.products: dict[Op, list[Op]] = {}
        self.loads: list[Op] = []
        self._lazy, self._facts = lazy, facts
        self._last: dict[Value, int] = {}
        self._number(region)

    def _number(self, region):
        end, done, cost = self.end, self.done, self.cost
        for block in region.blocks:
            for op in block.ops:
                for r in op.regions:
                    self._number(r)
                end[op] = done[op] = len(cost)
                cost.append(cost[-1] + (row(op).cost if any(v.type.is_tensor for v in op.operands) else 0))
                if op.name == "tt.load" and self._lazy(op):
                    self.loads.append(op)
                elif op.name == "tt.dot":
                    self._join(op)

    def _join(self, op: Op):
        """Put a product together with those that it carries out with itself."""
        c = op.operands[2].op
        before = self.products.pop(c) if c in self.products and following_product(c) is op else []
        self.products[op] = chain = [*before, op]
        for o in chain:
            self.done[o] = self.end[op]

    def last(self, v: Value) -> int:
        """Behind which number nobody needs a value any more."""
        found = self._last.get(v)
        if found is None:
            found = self._last[v] = max(map(self.done.__getitem__, self._facts.consumers(v)), default=0)
        return found

    def later(self, v: Value, now: int) -> set[Op]:
        """The roots that need a value and come behind the number `now`."""
        return {op for op in self._facts.consumers(v) if self.done[op] > now}

    def loads_before(self, now: int) -> list[Op]:
        """The lazy loads in front of the number `now` that somebody behind it needs."""
        return [op for op in self.loads[:bisect.bisect_right(self.loads, now, key=self.end.__getitem__)] if self.last(op.result) > now]
