"""Kernels of very much code, as functions of their own that the kernel calls one after the other.

Several of LLVM's passes over loops look, for each loop, at the whole function or at all that comes before it, and its code generator does, too: a sorting
network that is written out, hundreds of nests in one function, took them ten seconds, an attention's backward of twelve products eight. A kernel of less
code stays one function, in which one step may leave the next what it needs in a register.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from ..llvm import ir
from ..llvm.outline import Part, outline
from ..plan import records

#: a function that computes more values becomes functions, each of the steps in a row that have so many lines together; what has less than LEAST stays where it is
MOST, ENOUGH, LEAST = 6000, 1000, 200

#: steps that hold others, or go elsewhere
_CONTROL = (records.For, records.If, records.While, records.Call, records.Branch, records.Jump, records.Return)
#: steps of a few instructions, whose results those that follow have in registers
_SMALL = (records.Scalar, records.Assign, records.Copy)


class Nest(NamedTuple):
    """The code of one step: from block `start` up to `end`, exclusive. dbg: its place in the user's Python, as it stands behind an instruction."""

    start: ir.Block
    end: ir.Block
    dbg: str


class Parts:
    """What of a kernel's code may become functions: `rows`, nests that stand one after the other."""

    def __init__(self):
        self.rows: list[list[Nest]] = []
        self._within = False  # a nest's own code is written

    def begin(self):
        """What follows does not stand behind what was before."""
        self.rows.append([])

    def carry_out(self, k, step, rule):
        """`rule(k, step)`, whose code is noted."""
        if self._within or isinstance(step, _SMALL) or k.lines.scopes is not None:
            return rule(k, step)
        if isinstance(step, _CONTROL):
            rule(k, step)
            return self.begin()
        start, dbg = _block(k), k.b.dbg
        self._within = True
        rule(k, step)
        self._within = False
        self.rows[-1].append(Nest(start, _block(k), dbg))

    def split(self, k):
        """Make functions of the parts of a kernel that has very much code."""
        if k.fn.count <= MOST:
            return
        place = {id(b): n for n, b in enumerate(k.fn.blocks)}
        before = [0, *itertools.accumulate(sum(1 for _ in b.lines()) for b in k.fn.blocks)]
        parts = []
        for row in self.rows:
            first = 0
            for n, nest in enumerate(row):
                length = before[place[id(nest.end)]] - before[place[id(row[first].start)]]
                if length >= ENOUGH or n + 1 == len(row) and length >= LEAST:
                    lines = k.lines.elsewhere()
                    parts.append(Part(f"{k.name}.part{len(parts)}", row[first].start, nest.end, lines.subprogram, lines.of, row[first].dbg))
                    first = n + 1
        outline(k.fn, parts)


def _block(k) -> ir.Block:
    """A new block, behind all others, to which control goes."""
    block = k.fn.new_block("part")
    k.b.br(block)
    k.b.place(block)
    return block
