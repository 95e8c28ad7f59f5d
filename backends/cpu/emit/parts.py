"""Kernels of very many steps, as functions of their own that the kernel calls one after the other.

Some of LLVM's passes over loops look, for each loop, at the whole function or at all that comes before it: a sorting network that is written out, hundreds of
nests in one function, took them ten seconds. A kernel of fewer steps stays one function, in which one step may leave the next what it needs in a register.
"""

from __future__ import annotations

from ..llvm import ir
from ..llvm.outline import Part, outline
from ..plan.records import Return

#: a body with more steps becomes functions of STEPS each
MOST, STEPS = 100, 24


def run(k, steps: tuple) -> list[Part]:
    """Carry out all steps of a kernel. Returns its parts, for `split`; none where it is short, or compiled for a debugger."""
    if len(steps) <= MOST or k.lines.scopes is not None:
        k.run(steps)
        return []
    parts = []
    last = len(steps) - isinstance(steps[-1], Return)
    for at in range(0, last, STEPS):
        k.b.dbg = call = k.debug_loc(None)
        start = _block(k)
        whole = k.lines.begin_part()
        k.run(steps[at:min(at + STEPS, last)])
        k.b.dbg = k.debug_loc(None)
        end = _block(k)
        parts.append(Part(f"{k.name}.part{len(parts)}", start, end, k.lines.subprogram, call))
        k.lines.end_part(whole)
    k.b.dbg = k.debug_loc(None)
    k.run(steps[last:])
    return parts


def _block(k) -> ir.Block:
    """A new block, behind all others, to which control goes."""
    block = k.fn.new_block("part")
    k.b.br(block)
    k.b.place(block)
    return block


def split(fn: ir.Function, parts: list[Part]):
    """Make functions of the parts, or let them stay where they are, if control leaves one otherwise than at its end."""
    if not outline(fn, parts):
        for part in parts:
            fn.kernel.lines.no_part(part.dbg)
