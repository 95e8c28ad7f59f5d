"""The rule tables: how each TTIR operation, and each step of a plan, is written as LLVM IR.

- `LANES[op](nest, op, dims)`: a lazy operation that needs the loop nest (loads, index spaces);
- `ELEMENTWISE[op](b, op, *operands)`: a lazy operation of equal lanes, also used for scalars;
- `DIMS[op](op, dims)`: a lazy operation that only renames indices: its row's `renames`;
- `SCALARS[op](kernel, op)`: an operation on scalars that is more than its operands' values;
- `ROOTS[op](kernel, step)`: an operation whose step is a `Root`; `STEPS[type](kernel, step)`: any step.

To add an operation add its row to `ttir/ops.py` and its rule to a table in the file it belongs to; where it is a root, also what it needs to
`plan/roots.py`. A rule without a row, a row without a rule of its kind and an operation with two rules are errors when this is imported.
"""

from __future__ import annotations

from ..plan import planner, records
from ..ttir import ops
from ..ttir.ops import Kind
from . import variables
from .elementwise import ELEMENTWISE, merge
from .checks import finite, steps as checks
from .product import dot, dot_scaled, ending
from .root import atomic, control, debug, exchange, fill, memory, reduce, region, scalars, scan, shape  # noqa: F401

DIMS = {name: r.renames for name, r in ops.TABLE.items() if r.kind is Kind.RENAME}
LANES = merge(shape.LANES, exchange.LANES, memory.LANES)
SCALARS = merge(memory.SCALARS, scalars.SCALARS)
ROOTS = merge(memory.ROOTS, reduce.ROOTS, shape.ROOTS, scan.ROOTS, atomic.ROOTS, debug.ROOTS)
#: operations that are carried out where they stand, whatever they compute
CARRIED_OUT = frozenset((*planner.RULES, *SCALARS)) - LANES.keys()
merge(ELEMENTWISE, DIMS, LANES, dict.fromkeys(CARRIED_OUT))  # refuses an operation that is in two of them

_TABLES = {Kind.ELEMENTWISE: ELEMENTWISE, Kind.RENAME: DIMS, Kind.SOURCE: LANES, Kind.SCALAR: SCALARS,
           **dict.fromkeys((Kind.ROOT, Kind.CONTROL, Kind.TERMINATOR), planner.RULES)}


def unmatched() -> list[str]:
    """What the table of operations and the rules do not agree on: rows without a rule of their kind, rules without a row."""
    rules = {*ELEMENTWISE, *DIMS, *LANES, *SCALARS, *ROOTS, *planner.RULES}
    return [f"{name} is a row of kind {r.kind.value} in ttir/ops.py and has no rule of that kind" for name, r in ops.TABLE.items() if name not in
            _TABLES[r.kind]] + [f"{name} has a rule and no row in ttir/ops.py" for name in sorted(rules - ops.TABLE.keys())]


if unmatched():
    raise ValueError("; ".join(unmatched()))


def _scalar(k, step: records.Scalar):
    op = step.op
    if op.name in SCALARS:
        SCALARS[op.name](k, op)
    else:
        k.env[op.result] = ELEMENTWISE[op.name](k.b, op, *[k.scalar(o) for o in op.operands])


def _root(k, step: records.Root):
    ROOTS[step.op.name](k, step)


def _rest(k, step: records.Rest):
    k.guarded(ending.left(k, step), lambda: _root(k, step))


STEPS = merge(dict.fromkeys((records.Root, records.Reduction, records.Lookup, records.Prints), _root), {records.Scalar: _scalar, records.Rest: _rest},
              checks.STEPS, finite.STEPS, control.STEPS, fill.STEPS, dot.STEPS, dot_scaled.STEPS,
              variables.STEPS)
