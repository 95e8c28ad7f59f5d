"""Lazy operations: expressions that emit nothing until a root asks for their elements, and how they rename indices.

`dims[k]` names the dimension of a nest that indexes a value's dimension k; `at_index(i)` says index i.
"""

from __future__ import annotations

from ..ttir.ops import Kind, row
from ..ttir.types import Op, Value
from .records import at_index

def renamed(op: Op, dims):
    """The dims of `op`'s operand, where it only renames indices and a renaming says where they are; else None."""
    renames = row(op).renames
    return renames(op, dims) if renames is not None else None


def halves(op: Op, dims):
    """Where the two elements of a reduction of two are."""
    axis = op.attrs["axis"]
    return [dims[:axis] + (at_index(k),) + dims[axis:] for k in (0, 1)]


class Lazy:
    """Which operations of one kernel are lazy."""

    def __init__(self):
        self._known: dict[Op, bool] = {}
        self._depths: dict[Value, int] = {}

    def __call__(self, op: Op) -> bool:
        found = self._known.get(op)
        if found is None:
            found = self._known[op] = self._is_lazy(op)
        return found

    def _is_lazy(self, op: Op) -> bool:
        if not op.results or not op.results[0].type.is_tensor:
            return False
        # Pairs of pairs of pairs would be written out in full: 2^n times what is under them.
        return row(op).lazy if op.name != "tt.reduce" else self._is_pair(op) and self._pair_depth(op.operands[0]) < 2

    def vectorises(self, block) -> bool:
        """Can a region be carried out on all lanes at once: nothing but operations of equal lanes?"""
        return len(block.region.blocks) == 1 and all(row(o).kind is Kind.ELEMENTWISE and not o.regions for o in block.ops[:-1])

    def _is_pair(self, op: Op) -> bool:
        """Does it combine just two elements, one way? Then it is an expression like any other, and needs no loop."""
        return (len(op.operands) == 1 and op.operands[0].type.shape[op.attrs["axis"]] == 2 and op.result.type.is_tensor
                and self.vectorises(op.regions[0].block))

    def _pair_depth(self, v: Value) -> int:
        """How many reductions of two elements an element of `v` goes through before it meets memory."""
        depth = self._depths.get(v)
        if depth is None:
            op = v.op
            depth = 0
            if op is not None and self(op):
                depth = max((self._pair_depth(o) for o in op.operands if o.type.is_tensor), default=0) + (
                    op.name == "tt.reduce")
            self._depths[v] = depth
        return depth
