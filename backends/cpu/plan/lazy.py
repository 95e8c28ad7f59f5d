"""Lazy operations: expressions that emit nothing until a root asks for their elements, and how they rename indices.

`dims[k]` names the dimension of a nest that indexes a value's dimension k; `at_index(i)` says index i.
"""

from __future__ import annotations

from ..ttir.types import Op, Value
from .records import at_index

# --- operations that only rename indices: the dims of their operand, None where no renaming does it ------------------


def expand_dims(op, dims):
    axis = op.attrs["axis"]
    return dims[:axis] + dims[axis + 1:]


def broadcast(op, dims):
    return tuple(-1 if n == 1 else d for n, d in zip(op.operands[0].type.shape, dims))


def trans(op, dims):
    out = [-1] * len(dims)
    for d, src in zip(dims, op.attrs["order"]):
        out[src] = d
    return tuple(out)


def reshape(op, dims):
    """Only dimensions of size 1 come and go: a renaming. Anything else needs its elements in memory (None)."""
    src, dst = op.operands[0].type.shape, op.result.type.shape
    if [n for n in src if n != 1] != [n for n in dst if n != 1]:
        return None
    rest = [d for n, d in zip(dst, dims) if n != 1]
    return tuple(rest.pop(0) if n != 1 else -1 for n in src)


DIMS = {"tt.expand_dims": expand_dims, "tt.broadcast": broadcast, "tt.trans": trans, "tt.reshape": reshape}


def renamed(op: Op, dims):
    """The dims of `op`'s operand, where it only renames indices; else None."""
    fn = DIMS.get(op.name)
    return fn(op, dims) if fn else None


def halves(op: Op, dims):
    """Where the two elements of a reduction of two are."""
    axis = op.attrs["axis"]
    return [dims[:axis] + (at_index(k),) + dims[axis:] for k in (0, 1)]


class Lazy:
    """Which operations of one kernel are lazy. elementwise, lanes: the names of operations of equal lanes, and of those that a nest evaluates."""

    def __init__(self, elementwise, lanes):
        self.elementwise = elementwise
        self.names = frozenset((*elementwise, *lanes, *DIMS))
        self._pairs: dict[Op, bool] = {}
        self._depths: dict[Value, int] = {}

    def __call__(self, op: Op) -> bool:
        if not op.results or not op.results[0].type.is_tensor:
            return False
        if op.name == "tt.reduce":
            if op not in self._pairs:
                # Pairs of pairs of pairs would be written out in full: 2^n times what is under them.
                self._pairs[op] = self._is_pair(op) and self._pair_depth(op.operands[0]) < 2
            return self._pairs[op]
        return op.name in self.names

    def vectorises(self, block) -> bool:
        """Can a region be carried out on all lanes at once: nothing but operations of equal lanes?"""
        return len(block.region.blocks) == 1 and all(o.name in self.elementwise and not o.regions for o in block.ops[:-1])

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
