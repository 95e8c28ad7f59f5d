"""Assembly text -> functions: what compilers write (.s, PTX), and what disassemblers write (objdump, nvdisasm)."""

from __future__ import annotations

import re

from . import disassembly, gnu, gputext
from .gnu import SourceLines  # noqa: F401  (tritonparse's adapter reads lines by it)
from .schema import Function


def functions(text: str, isa) -> list[Function]:
    """The functions of assembly text in the syntax of `isa` (a row of isa.ISAS); those without instructions are left out."""
    if isa.syntax == "ptx":
        found = gputext.ptx(text)
    elif isa.syntax == "sass":
        found = gputext.sass(text)
    elif disassembly.is_disassembly(text):
        found = disassembly.functions(text, isa)
    else:
        found = gnu.functions(text, isa)
    for f in found:
        _drop_padding(f)
        _drop_unused(f)
    return [f for f in found if f.instructions]


#: what fills up the memory behind a function's last instruction
_PADDING = re.compile(r"s_nop|s_code_end|NOP|c?\.?nop[wlq]?|int3")


def _drop_padding(f: Function):
    while len(f.instructions) > 1 and _PADDING.fullmatch(f.instructions[-1].mnemonic):
        f.instructions.pop()


def _drop_unused(f: Function):
    """Keep only labels that something refers to; others (.Ltmp, .Lfunc_begin) would cut blocks in two."""
    used = set(re.findall(r"[.$\w@]+", " ".join(i.operands for i in f.instructions)))
    f.labels = {k: v for k, v in f.labels.items() if k in used}
