"""The rule tables: what each TTIR operation means.

- `LANES[op](nest, op, dims)`: a lazy operation that needs the loop nest (loads, index spaces);
- `ELEMENTWISE[op](b, op, *operands)`: a lazy operation of equal lanes, also used for scalars;
- `DIMS[op](op, dims)`: a lazy operation that only renames indices: the dims of its operand, or None where it cannot;
- `ROOTS[op](kernel, op)`: an operation that is carried out where it stands.

To add an operation add a row to one table in the file it belongs to. A key in two tables is an error.
"""

from __future__ import annotations

from .element import arith, asm, convert, libdevice, math, narrow
from .root import atomic, control, debug, memory, reduce, region, scan, shape
from .product import dot, dot_scaled  # noqa: F401


def merge(*tables: dict) -> dict:
    """One dict of several; the same operation in two of them is refused."""
    out: dict = {}
    for t in tables:
        both = out.keys() & t.keys()
        if both:
            raise ValueError(f"two lowering rules for {', '.join(sorted(both))}")
        out |= t
    return out


ELEMENTWISE = merge(arith.ELEMENTWISE, convert.ELEMENTWISE, math.ELEMENTWISE, memory.ELEMENTWISE,
                    libdevice.ELEMENTWISE, asm.ELEMENTWISE)
DIMS = merge(shape.DIMS)
LANES = merge(shape.LANES, memory.LANES)
ROOTS = merge(memory.ROOTS, reduce.ROOTS, dot.ROOTS, dot_scaled.ROOTS, control.ROOTS, shape.ROOTS, scan.ROOTS, atomic.ROOTS,
              debug.ROOTS)
#: operations that write memory
WRITES = atomic.WRITES
merge(ELEMENTWISE, DIMS, LANES, ROOTS)  # refuses an operation that is in two of them
