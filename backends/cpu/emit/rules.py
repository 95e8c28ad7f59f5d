"""The rule tables: how each TTIR operation, and each step of a plan, is written as LLVM IR.

- `LANES[op](nest, op, dims)`: a lazy operation that needs the loop nest (loads, index spaces);
- `ELEMENTWISE[op](b, op, *operands)`: a lazy operation of equal lanes, also used for scalars;
- `DIMS[op](op, dims)`: a lazy operation that only renames indices: the dims of its operand, or None where it cannot;
- `SCALARS[op](kernel, op)`: an operation on scalars that is more than its operands' values;
- `ROOTS[op](kernel, step)`: an operation whose step is a `Root`; `STEPS[type](kernel, step)`: any step.

To add an operation add a row to one table in the file it belongs to. A key in two tables is an error.
"""

from __future__ import annotations

from ..plan import planner, records
from ..plan.lazy import DIMS
from .element import arith, asm, convert, libdevice, math
from .product import dot, dot_scaled
from .root import atomic, control, debug, fill, memory, reduce, region, scalars, scan, shape  # noqa: F401


def merge(*tables: dict) -> dict:
    """One dict of several; the same operation in two of them is refused."""
    out: dict = {}
    for t in tables:
        both = out.keys() & t.keys()
        if both:
            raise ValueError(f"two lowering rules for {', '.join(sorted(map(str, both)))}")
        out |= t
    return out


ELEMENTWISE = merge(arith.ELEMENTWISE, convert.ELEMENTWISE, math.ELEMENTWISE, memory.ELEMENTWISE,
                    libdevice.ELEMENTWISE, asm.ELEMENTWISE)
LANES = merge(shape.LANES, memory.LANES)
_ON_SCALARS = merge(memory.SCALARS, scalars.SCALARS)
#: operations that are carried out on scalars where they stand
SCALARS = frozenset((*ELEMENTWISE, *_ON_SCALARS))
ROOTS = merge(memory.ROOTS, reduce.ROOTS, shape.ROOTS, scan.ROOTS, atomic.ROOTS, debug.ROOTS)
#: operations that are carried out where they stand, whatever they compute
CARRIED_OUT = frozenset((*planner.RULES, *_ON_SCALARS)) - LANES.keys()
merge(ELEMENTWISE, DIMS, LANES, dict.fromkeys(CARRIED_OUT))  # refuses an operation that is in two of them


def _scalar(k, step: records.Scalar):
    op = step.op
    if op.name in _ON_SCALARS:
        _ON_SCALARS[op.name](k, op)
    else:
        k.env[op.result] = ELEMENTWISE[op.name](k.b, op, *[k.scalar(o) for o in op.operands])


def _root(k, step: records.Root):
    ROOTS[step.op.name](k, step)


STEPS = merge(dict.fromkeys((records.Root, records.Reduction, records.Lookup, records.Prints), _root), {records.Scalar: _scalar},
              control.STEPS, fill.STEPS, dot.STEPS, dot_scaled.STEPS)
