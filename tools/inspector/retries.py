"""Loops that are none: an atomic operation's, which tries again where its store failed for somebody else wrote meanwhile (x86's cmpxchg, Arm's and RISC-V's exclusive or conditional stores and CAS).
They hardly ever go round, and an operation on one element is what they are."""

from __future__ import annotations

import re

from .isa.operands import split
from .schema import Function, Loop

_EXCHANGES, _MAY_FAIL, _COMPARES = re.compile(r"cmpxchg"), re.compile(r"stt?l?t?xr[bh]?$|stl?xp$|sc\.[wd](\.|$)"), re.compile(r"(cas[alp]*[bh]?|amocas\.[wdq](\..*)?)$")
#: of x86, what sets flags: behind one of these a branch asks for something else
_FLAGS = re.compile(r"(cmp|test|add|sub|inc|dec|and|or|xor|neg|sh[lr]|sa[lr]|bt|sbb|adc)[a-z]?$")


def again(function: Function, loop: Loop) -> bool:
    """Does a loop go round only where an atomic operation's store failed?"""
    back = [b for k in loop.blocks for b in [function.blocks[k]] if loop.header in b.successors]
    return loop.entries == 1 and all(_fails(function.instructions[b.first:b.last]) for b in back)


def _fails(block: list) -> bool:
    """Does a block end in a branch that asks whether its own atomic store came too late?"""
    *before, last = block
    if last.what.flow != "branch":
        return False
    asked = {_name(o) for o in split(last.operands)}
    for i in reversed(before):
        m, ops = i.mnemonic, split(i.operands)
        if _EXCHANGES.search(m):
            return True
        if _MAY_FAIL.match(m):
            return _name(ops[0]) in asked
        if _COMPARES.match(m):
            return bool({_name(o) for o in ops[:2]} & asked)
        if m == "cmp" and "%" not in i.operands:  # Arm's, of what CAS found
            asked |= {_name(o) for o in ops}
        elif _FLAGS.match(m):
            return False
    return False


def _name(register: str) -> str:
    """Arm's w8 is x8's lower half."""
    return re.sub(r"^[wx](\d+)$", r"r\1", register.strip())
