"""Vectors that are put together from single elements of memory, a load each, or taken apart by a store each: gathers and scatters in all but name, as
compilers write them where a machine has none (NEON, SSE), or slow ones. Followed along the registers of one region, in text order."""

from __future__ import annotations

import dataclasses
import re

from . import registers
from .lanes import LANE, taken

#: what puts elements of several registers, or of memory and one, into one register
_JOINS = re.compile(r"v?(pinsr[bwdq]|insertps|unpcklp[sd]|punpckl\w+|mov[hl]p[sd]|movlhps|insert[fi]\d+\w*|shufp[sd])$|(ins|zip1|trn1)$|v[f]?slide1\w+\.v[xf]$|vf?mv\.s\.[xf]$")
#: what only moves them on
_CARRIES = re.compile(r"v?mov\w*$|fmov$|mv$|fmv\.\w+$")
#: loads into one lane whose register is not named a second time for the others, which stay
_KEEPS = re.compile(r"ld1 |mov[hl]p[sd] ")
_EXTRACTS = re.compile(r"v?(pextr[bwdq]|extractps)$")
_PLACE = re.compile(r"(?P<x86>-?(?:0x)?[0-9a-f]*)\((?P<base>%[^)]*)\)|\[(?P<arm>\w+)(?:, #(?P<by>-?\w+))?\]$|(?P<riscv>-?\d*)\((?P<from>\w+)\)$")


def count(r) -> int:
    """Mark a region's loads and stores of single elements of vectors (`Class.lane`); how many vectors are gathered or scattered by them: not those whose
    elements lie side by side."""
    if r.code.isa not in ("x86-64", "aarch64", "riscv64"):
        return 0
    used = [registers.of(i, r.code.isa) for i in r.instructions]
    loads, stores = _together(r.instructions, used, r.loop is not None), _apart(r.instructions, used)
    for i in {id(i): i for i in (r.instructions[k] for some in (*loads, *stores) for k in some)}.values():
        i.what = dataclasses.replace(i.what, lane=True)
    return sum(_scattered([r.instructions[k] for k in some]) for some, whole in (*loads.items(), *stores.items()) if whole)


def _single(i, x) -> bool:
    """Does an instruction load one element, be it into one lane of a register?"""
    c = i.what
    return 0 < c.loads <= 64 and not c.stores and not (c.is_spill or c.address or c.splat) and 1 in (len(x.written), len(x.written - x.address)) and (
        c.kind == "load" and c.unit == "scalar" or bool(_JOINS.match(i.mnemonic)))


def _together(code, used, loops: bool) -> dict[frozenset[int], bool]:
    """Sets of loads that make up a vector each -> is each load one element of it?"""
    made: dict[str, frozenset[int]] = {}
    found: dict[frozenset[int], bool] = {}

    def is_used(name: str, reader):
        some = made.get(name, frozenset())
        if len(some) > 1:
            size = taken(reader, name) if reader is not None and not reader.what.stores else 0
            found[some] = found.get(some, True) and not 0 < size < min(code[k].what.loads for k in some)

    for k, (i, x) in enumerate(zip(code, used)):
        joins = bool(_JOINS.match(i.mnemonic) or LANE.search(i.text)) and not i.what.stores
        now = frozenset({k}) if _single(i, x) else frozenset()
        if joins or not i.what.is_memory and _CARRIES.match(i.mnemonic):
            kept = x.written if _KEEPS.match(i.text) else frozenset()
            now = now.union(*(made.get(n, frozenset()) for n in x.read | kept))
        else:
            for name in x.read:
                is_used(name, i)
        for name in x.written:
            made[name] = now
    for name in made if loops else ():
        is_used(name, None)
    return {some: whole for some, whole in found.items() if not any(some < other for other in found)}


def _apart(code, used) -> dict[frozenset[int], bool]:
    """Sets of stores of one register's elements, as `_together` has loads."""
    open_: dict[str, set[int]] = {}
    found: list[set[int]] = []
    for k, (i, x) in enumerate(zip(code, used)):
        c = i.what
        if c.stores and not c.is_spill and (c.unit == "scalar" and c.kind == "store" or _EXTRACTS.match(i.mnemonic)):
            for name in x.read - x.address:
                open_.setdefault(name, set()).add(k)
        for name in x.written:
            found.append(open_.pop(name, set()))
    lane = lambda k: bool(LANE.search(code[k].text) or _EXTRACTS.match(code[k].mnemonic))  # noqa: E731
    return {frozenset(some): True for some in (*found, *open_.values()) if len(some) > 1 and any(map(lane, some))}


def _scattered(some) -> bool:
    """Do accesses go to places that are not side by side, as far as their operands tell?"""
    places = [_place(i) for i in some]
    if None in places or len({base for base, _ in places}) > 1:
        return True
    at = sorted(by for _, by in places)
    size = max(some[0].what.loads, some[0].what.stores) // 8
    return any(b - a != size for a, b in zip(at, at[1:]))


def _place(i) -> tuple[str, int] | None:
    """(registers, displacement) of an address; None where it is of another kind."""
    hit = _PLACE.search(i.operands)
    if not hit:
        return None
    by = hit["x86"] or hit["by"] or hit["riscv"] or "0"
    return (hit["base"] or hit["arm"] or hit["from"], int(by, 0)) if re.fullmatch(r"-?(0x[0-9a-f]+|\d+)", by) else None
