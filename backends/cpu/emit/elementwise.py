"""The rules of operations of equal lanes, in one table: what regions of reductions and scans may hold, too."""

from __future__ import annotations

from .element import arith, asm, convert, libdevice, math
from .root import memory


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
