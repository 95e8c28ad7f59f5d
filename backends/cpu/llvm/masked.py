"""Masked stores whose mask is constant, as plain stores of what it lets through.

LLVM 20 to 22 joins a truncation and the masked store behind it into one operation. Where just one bit of a constant mask is set, its
x86 code generator then stores that one lane by a scalar store of the *wide* type: `masked.store(trunc <2 x i64> to <2 x i32>, <false,
true>)` writes eight bytes where four were meant, and so passes the end of the tensor. Masks become constant when sizes are: a constexpr,
or an argument of 1. So no such store reaches the code generator. Those with several bits set in each part of 256 bits that is
stored do, where they would be many stores.
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
    """LLVM IR text in which masked stores of a value under a constant mask store the runs of set lanes, one after the other."""
    b = ir.Builder(ir.Function(ir.Module("", ""), "", "void", [], names="triport.mask"))  # its lines go into a function that there is

    def plain(m: re.Match) -> str:
        bits = [bit.split()[1] in ("true", "1") for bit in m["mask"].split(", ")]
        align = int(m["new"] or m["old"] or 1)
        if _is_scattered(bits, 16 if m["elem"] == "bfloat" else ir.bits_of(m["elem"])):
            return m[0]
        value, place, elem = ir.Val(m["vector"], m["value"]), ir.Val("ptr", m["ptr"]), m["elem"]
        b.section, b.dbg = [], m["dbg"] or ""
        for start, length in _runs(bits):
            part = b.extract(value, start) if length == 1 else b.shuffle(value, None, list(range(start, start + length)))
            known = math.gcd(align, start * (16 if elem == "bfloat" else ir.bits_of(elem)) // 8)  # gcd(x, 0) is x
            b.store(part, b.gep(elem, place, ir.i64(start)), known)
        return "\n".join(b.section)

    return _STORE.sub(plain, text) if "@llvm.masked.store" in text else text


def _is_scattered(bits: list[bool], size: int) -> bool:
    """Are set lanes, of `size` bits, more than two runs, and two or more in each 256 bits that have any: what no type that a CPU has makes one of?"""
    part = max(1, 256 // size)
    return len(list(_runs(bits))) > 2 and all(sum(bits[at:at + part]) != 1 for at in range(0, len(bits), part))


def _runs(bits: list[bool]):
    """(start, length) of each run of set bits."""
    start = None
    for n, bit in enumerate([*bits, False]):
        if bit and start is None:
            start = n
        elif not bit and start is not None:
            yield start, n - start
            start = None
