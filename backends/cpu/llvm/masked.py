"""Masked stores whose mask is constant, as plain stores of what it lets through.

LLVM 20 to 22 joins a truncation and the masked store behind it into one operation. Where just one bit of a constant mask is set, its
x86 code generator then stores that one lane by a scalar store of the *wide* type: `masked.store(trunc <2 x i64> to <2 x i32>, <false,
true>)` writes eight bytes where four were meant, and so passes the end of the tensor. Masks become constant when sizes are: a constexpr,
or an argument of 1. So no such store reaches the code generator.
"""

from __future__ import annotations

import math
import re

from . import ir

_VALUE = r"(?P<vector><(?P<lanes>\d+) x (?P<elem>\w+)>) (?P<value>%[\w.$-]+|%\"[^\"]*\")"
_MASK = r"<\d+ x i1> <(?P<mask>i1 [^>]*)>"
#: LLVM 22 says the alignment as the pointer's attribute, LLVM up to 21 as an argument
_STORE = re.compile(
    r"^ *(?:tail |musttail |notail )?call void @llvm\.masked\.store\.\w+\.p0\(" + _VALUE + r", ptr (?:align (?P<new>\d+) |[a-z_]+(?:\(\w+\))? )*"
    r"(?P<ptr>%[\w.$-]+|%\"[^\"]*\"|@[\w.$-]+), (?:i32 (?:immarg )?(?P<old>\d+), )?" + _MASK + r"\)(?: #\d+)?(?P<dbg>, !dbg !\d+)?.*$", re.M)


def as_plain_stores(text: str) -> str:
    """LLVM IR text in which each masked store of a value under a constant mask stores the runs of set lanes, one after the other."""
    count = 0

    def plain(m: re.Match) -> str:
        nonlocal count
        count += 1
        bits = [b.split()[1] in ("true", "1") for b in m["mask"].split(", ")]
        align = int(m["new"] or m["old"] or 1)
        lines = []
        for start, length in _runs(bits):
            name, dbg = f"triport.mask{count}.{start}", m["dbg"] or ""
            ty = f"<{length} x {m['elem']}>"
            picked = ", ".join(f"i32 {start + i}" for i in range(length))
            if length == 1:
                ty = m["elem"]
                lines.append(f"  %{name} = extractelement {m['vector']} {m['value']}, i64 {start}{dbg}")
            else:
                lines.append(f"  %{name} = shufflevector {m['vector']} {m['value']}, {m['vector']} poison, <{length} x i32> <{picked}>{dbg}")
            lines.append(f"  %{name}.p = getelementptr {m['elem']}, ptr {m['ptr']}, i64 {start}{dbg}")
            known = math.gcd(align, start * (16 if m["elem"] == "bfloat" else ir.bits_of(m["elem"])) // 8)  # gcd(x, 0) is x
            lines.append(f"  store {ty} %{name}, ptr %{name}.p, align {known}{dbg}")
        return "\n".join(lines)

    return _STORE.sub(plain, text) if "@llvm.masked.store" in text else text


def _runs(bits: list[bool]):
    """(start, length) of each run of set bits."""
    start = None
    for n, bit in enumerate([*bits, False]):
        if bit and start is None:
            start = n
        elif not bit and start is not None:
            yield start, n - start
            start = None
