"""What names of instructions do not say: packed instructions of which one lane holds data are scalar code, scalar loads and stores of several narrow
elements are vector code, a scalar load of an address, or of an element for all lanes, is no data, and what is gathered in an integer register is some. Followed along the registers of one region, in text
order and once round where it is a loop."""

from __future__ import annotations

import dataclasses
import re

from . import registers
from .isa.operands import split

_FULL = 1 << 20
_VECTOR = re.compile(r"v\d+$")
_INSERTS = re.compile(r"v?pinsr|v?insertps|v?movhp|v?movlp|vslide1|vfslide1|vf?mv\.s|ins$|vmerge")
LANE = re.compile(r"\}\s*\[\d+\]|^(mov|ins) v\d+\.\w\[")  # into one of several lanes
_SIZES = {"b": 8, "w": 16, "d": 32, "q": 64, "h": 16, "s": 32}


#: how far the use of a value is looked for, in instructions
_FAR = 1000


#: by ISA, instructions on one integer of 64 bits that stand in vector code where vectors have none: (mnemonic and a register, what they compute)
_LACKED = {"x86-64": ((r"mulx?q ", "the high half of a product of 64-bit integers"), (r"v?cvtts[sd]2u?si\w* .*%r(?!\d+d)", "64-bit integers of floats"), (r"v?cvtu?si2s[sd]q ", "floats of 64-bit integers")),
           "aarch64": ((r"[us]mulh ", "the high half of a product of 64-bit integers"), (r"m(?:ul|add) x", "a product of 64-bit integers"))}
#: what puts an integer register into a vector's lane
_INTO_LANE = {"x86-64": r"v?movq %r\w+, %xmm|v?pinsrq ", "aarch64": r"fmov d\d+, x|(?:mov|ins) v\d+\.d\[\d\], x"}


@dataclasses.dataclass
class _Code:
    """A loop with the loops inside it, or a whole function: instructions in text order and what registers they use."""

    instructions: list
    registers: list
    loops: bool

    def later(self, start: int, name: str):
        """Places that read a register which instruction `start` wrote, up to its next value."""
        n = len(self.instructions)
        for p in [*range(start + 1, min(n, start + _FAR)), *(range(min(start + 1, _FAR)) if self.loops else ())]:
            used = self.registers[p]
            if name in used.read or name in used.address:
                yield p
            if name in used.written:
                return


def refine(found):
    """Correct the classes of the instructions of a function's regions."""
    for r in found:
        if not r.instructions or r.code.isa not in ("x86-64", "aarch64", "riscv64"):
            continue
        f = r.function
        every = f.instructions if r.loop is None else [i for k in sorted(r.loop.blocks) for i in f.instructions[f.blocks[k].first:f.blocks[k].last]]
        own = {id(i) for i in r.instructions}
        code = _Code(every, [registers.of(i, r.code.isa) for i in every], r.loop is not None)
        mine = [k for k, i in enumerate(every) if id(i) in own]
        _addresses(code, mine)
        if r.loop is not None:
            _gathered(code, mine)
        if r.code.isa != "riscv64":
            _halves(code, mine)
            _lowest(code, mine)
            _single(r, code, mine)


def lacked(r) -> tuple[str, list] | None:
    """(what they compute, which they are) of a loop's instructions on single elements that go into vectors' lanes behind them, for want of one on vectors."""
    if r.code.isa not in _LACKED or sum(bool(re.match(_INTO_LANE[r.code.isa], i.text)) for i in r.instructions) < 2:
        return None
    for pattern, what in _LACKED[r.code.isa]:
        if len(those := [i for i in r.instructions if re.match(pattern, i.text)]) > 1:
            return what, those
    return None


# --- addresses -------------------------------------------------------------------------------------------------------


def _addresses(code: _Code, mine):
    for k in mine:
        i = code.instructions[k]
        c = i.what
        if c.kind == "load" and c.unit == "scalar" and c.loads and not c.is_spill and (ends := _ends(code, k, set(), 0)) and ends <= {"address", "splat"}:
            i.what = dataclasses.replace(c, address=True)


def _ends(code: _Code, start: int, seen: set, depth: int) -> set[str]:
    """What becomes of what an instruction wrote: "address", "splat" or "data"; empty where nothing here reads it."""
    out: set[str] = set()
    for name in code.registers[start].written:
        for p in code.later(start, name):
            i, c, used = code.instructions[p], code.instructions[p].what, code.registers[p]
            if name in used.address and name not in used.read:
                out.add("address" if c.is_memory else "data" if c.kind != "arithmetic" else "")
                if c.kind == "arithmetic" and not c.is_memory and (p, name) not in seen and depth < 6:  # lea
                    seen.add((p, name))
                    out |= _ends(code, p, seen, depth + 1)
            elif c.unit in ("vector", "matrix") and c.kind in ("arithmetic", "fma", "shuffle", "move", "mask", "convert", "config") and not (
                    _INSERTS.match(i.mnemonic)) and (not _VECTOR.match(name) or _broadcasts(i, name)):
                out.add("splat")
            elif c.unit == "scalar" and c.kind in ("arithmetic", "move") and not c.is_float and not c.is_memory and not _VECTOR.match(name) and used.written:
                if (p, name) not in seen:
                    seen.add((p, name))
                    out |= _ends(code, p, seen, depth + 1) if depth < 6 else {"data"}
            else:
                out.add("data")
    return out - {""}


def _broadcasts(i, name: str) -> bool:
    """Does a vector instruction take one element of a register for all lanes?"""
    if "broadcast" in i.mnemonic or i.mnemonic == "dup" or re.match(r"v?(shufps|pshufd)$", i.mnemonic) and i.operands.startswith("$0,"):
        return True
    number = name[1:]
    return bool(re.search(rf"[vz]{number}\.\d*[bhsd]\[\d+\]$", i.operands))


# --- integers that a loop gathers ------------------------------------------------------------------------------------

#: arithmetic that may move an index or a pointer on, whatever the name
_LINEAR = re.compile(r"(add|sub|lea|inc|dec|neg|mov|cmov|c\.add|c\.mv|mv|sh\dadd)")


def _gathered(code: _Code, mine):
    """Mark scalar integer instructions whose results go round the loop and nowhere else: a hash, a sum, a generator of random numbers."""
    inside = set(mine)
    for k in mine:
        if not _integer(code, k):
            continue
        nodes = _circle(code, k)
        if nodes and nodes <= inside and any(code.instructions[n].what.loads or not _LINEAR.match(code.instructions[n].mnemonic) for n in nodes):
            i = code.instructions[k]
            i.what = dataclasses.replace(i.what, gathered=True)


def _integer(code: _Code, k: int) -> bool:
    """A scalar load of an integer, or integer arithmetic?"""
    c, written = code.instructions[k].what, code.registers[k].written
    return (c.unit == "scalar" and not c.is_float and not c.stores and not c.is_spill and not c.address and c.kind in ("load", "arithmetic", "fma", "move")
            and bool(written) and not any(_VECTOR.match(name) for name in written))


def _circle(code: _Code, start: int) -> set[int]:
    """The instructions that a scalar integer goes through, where all of them are integer arithmetic again and one is met twice; else none."""
    found, todo, met = {start}, [start], False
    while todo:
        k = todo.pop()
        used = code.registers[k]
        for name in set(used.written) - (set(used.address) if code.instructions[k].what.is_memory else set()):  # but for what moves its address on
            for p in code.later(k, name):
                if not _integer(code, p) or code.instructions[p].what.is_memory and name in code.registers[p].address or len(found) > 64:
                    return set()
                met |= p in found
                if p not in found:
                    found.add(p)
                    todo.append(p)
    return found if met else set()


# --- several elements in a scalar access ---------------------------------------------------------------------------


def taken(i, name: str) -> int:
    """Bits of the elements that an instruction takes from a vector register; 0 where that is not known or it takes one."""
    number = name[1:]
    if hit := re.search(rf"\b[vz]{number}\.\d*([bhsd])\b(?!\[)", i.operands.partition(",")[2]):
        return {"b": 8, "h": 16, "s": 32, "d": 64}[hit[1]]
    if "%" not in i.operands:
        return 0
    if hit := re.match(r"v?pmov[sz]x([bwd])[wdq]", i.mnemonic):
        return _SIZES[hit[1]]
    if hit := re.match(r"v?cvtt?(ps|ph|dq|udq|pd)2", i.mnemonic):
        return {"ps": 32, "dq": 32, "udq": 32, "ph": 16, "pd": 64}[hit[1]]
    if hit := re.match(r"v?punpckl(bw|wd|dq)|v?unpcklps", i.mnemonic):
        return {"bw": 8, "wd": 16, "dq": 32, None: 32}[hit[1]]
    return size_of(i.what.element)


def _given(i) -> int:
    """Bits of the elements that an instruction writes."""
    if hit := re.match(r"[vz]\d+\.\d*([bhsd])\b(?!\[)", i.operands):
        return {"b": 8, "h": 16, "s": 32, "d": 64}[hit[1]]
    if hit := re.match(r"v?cvt\w*2(ps|ph|dq|udq|pd)[xyz]?$", i.mnemonic):
        return {"ps": 32, "dq": 32, "udq": 32, "ph": 16, "pd": 64}[hit[1]]
    if hit := re.match(r"v?pmovu?s?[dwq]([bwd])$|v?pack\w+?([bw])$|v?packus(wb)$", i.mnemonic):
        return 8 if hit[3] else _SIZES[hit[1] or hit[2]]
    return size_of(i.what.element)


def size_of(element: str) -> int:
    return int(element[1:]) if element[1:].isdigit() else 16 if element == "bf16" else 0


def _halves(code: _Code, mine):
    """Scalar loads and stores of vector registers that hold several elements."""
    for k in mine:
        i = code.instructions[k]
        c = i.what
        if c.unit != "scalar" or c.is_spill or c.kind not in ("load", "store"):
            continue
        if c.kind == "load":
            for name in (x for x in code.registers[k].written if _VECTOR.match(x)):
                readers = [i for p in code.later(k, name) if (i := code.instructions[p]).mnemonic != "cnt"]  # the bits of one number are no elements
                sizes = [taken(reader, name) for reader in readers if reader.what.unit == "vector" and not _broadcasts(reader, name)]
                if any(0 < size < c.loads for size in sizes):
                    code.instructions[k].what = dataclasses.replace(c, unit="vector", address=False)
        elif names := [x for x in code.registers[k].read if _VECTOR.match(x)]:
            n = len(code.instructions)
            order = [*range(k - 1, max(-1, k - _FAR), -1), *(range(n - 1, max(k, n - _FAR), -1) if code.loops else ())]
            made = next((code.instructions[p] for p in order if names[0] in code.registers[p].written), None)
            if made is not None and made.what.unit == "vector" and 0 < _given(made) < c.stores:
                i.what = dataclasses.replace(c, unit="vector")


_PLACE = re.compile(r"v?p(insr|extr)([bwdq]) \$(0x0|0),")


def _lowest(code: _Code, mine):
    """x86 has no other way to load and store a number of 16 bits in a vector register than by the lowest place: where nothing makes a vector of it it is scalar."""
    for k in mine:
        i = code.instructions[k]
        if not (hit := _PLACE.match(i.text)) or not i.what.is_memory:
            continue
        if hit[1] == "insr":
            users = [code.instructions[p] for name in code.registers[k].written for p in code.later(k, name)]
        else:
            before = [*range(k - 1, max(-1, k - _FAR), -1), *(range(len(code.instructions) - 1, k, -1)[:_FAR] if code.loops else ())]
            users = [code.instructions[p] for name in code.registers[k].read for p in before if name in code.registers[p].written][:1]
        if (users or hit[1] == "insr") and all(user.what.unit == "scalar" for user in users):
            i.what = dataclasses.replace(i.what, kind="load" if hit[1] == "insr" else "store", unit="scalar", bits=_SIZES[hit[2]])


# --- one lane --------------------------------------------------------------------------------------------------------


def _single(r, code: _Code, mine):
    """Packed arithmetic on what scalar instructions left in the lowest lane; a conversion of an element for all lanes is no work of its own."""
    if not any(_holds(i) for i in r.instructions):
        return
    regs = [code.registers[k] for k in mine]
    live: dict[str, int] = {}
    zeros = _empty(r, regs) if any(_INSERT.match(i.text) for i in r.instructions) else frozenset()
    for last in (False, True) if r.loop is not None else (True,):
        for k, i, x in zip(mine, r.instructions, regs):
            written = [n for n in x.written if _VECTOR.match(n)]
            if not written:
                continue
            now = _lanes(i, x, live, zeros)
            if last and now and now <= size_of(i.what.element) and i.what.unit == "vector" and (
                    i.what.kind in ("arithmetic", "fma") or i.what.kind == "convert" and _ends(code, k, set(), 0) != {"splat"}):
                i.what = dataclasses.replace(i.what, unit="scalar", bits=size_of(i.what.element))
            for n in written:
                live[n] = now
            zeros = zeros.union(written) if _is_zero(i, x) else zeros.difference(written)


def _is_zero(i, x) -> bool:
    """Does an instruction clear a register, whatever was in it?"""
    return not x.read and not x.address and bool(re.match(r"v?p?xor", i.mnemonic))


def _empty(r, regs) -> frozenset[str]:
    """Registers in which a region finds no vector: those that its function only clears, those that nothing writes and that are no argument's, and a loop's
    own before its first round."""
    filled, cleared = set(), set()
    for i in r.function.instructions:
        x = registers.of(i, r.code.isa)
        (cleared if _is_zero(i, x) else filled).update(() if i.what.kind == "call" else x.written)
    return frozenset(({*cleared, *(f"v{n}" for n in range(8, 32))} - filled).union(*(x.written for x in regs if r.loop is not None)))


def _holds(i) -> bool:
    c = i.what
    return c.unit == "scalar" and c.kind in ("load", "move", "arithmetic", "convert", "fma") and 0 < c.bits <= 64 and (
        "%xmm" in i.operands or bool(re.match(r"[sdhb]\d+,", i.operands))) or bool(_INSERT.match(i.text))


#: x86's inserts of one element into a register whose others stay
_INSERT = re.compile(r"v?(?:pinsr(?P<size>[bwdq])|insertps) \$(?P<control>0x[0-9a-f]+|\d+),")


def _behind_insert(i, hit, live, zeros) -> int:
    """Bits of data in a register after an insert: one element's where nothing is in it but the lowest."""
    ops, control = split(i.operands), int(hit["control"], 16 if hit["control"].startswith("0x") else 10)
    name = f"v{ops[2].removeprefix('%xmm')}" if len(ops) > 2 else ""
    bits = _SIZES[hit["size"]] if hit["size"] else 32
    there = 0 if name in zeros else -(-min(live.get(name) or 128, 128) // bits)
    place, gone = (control, ()) if hit["size"] else (control >> 4 & 3, [k for k in range(4) if control >> k & 1])  # insertps clears some
    return bits if {*range(there), place}.difference(gone) <= {0} else _FULL


def _lanes(i, x, live, zeros) -> int:
    """Bits of data that an instruction leaves in a vector register, from the lowest on; 0 where all its operands are from outside the region."""
    c = i.what
    if hit := _INSERT.match(i.text):
        return _behind_insert(i, hit, live, zeros)
    if LANE.search(i.text):
        return _FULL
    if c.unit == "scalar":
        return c.bits or 64
    if c.kind not in ("arithmetic", "fma", "convert", "move") or c.splat:
        return _FULL
    found = [live[n] for n in x.read if live.get(n)] + ([c.loads] if c.loads else [])
    if not found:
        return 0 if c.kind != "move" and x.read else _FULL if c.is_memory else 0
    widest = max(found)
    if c.kind == "convert" and widest < _FULL:
        source = taken(i, next((n for n in x.read if live.get(n)), "v0")) or size_of(c.element)
        return widest * _given(i) // source if source and _given(i) else _FULL
    return widest
