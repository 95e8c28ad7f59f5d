"""How often loops run, where the code says so: the register that a loop counts with, where it starts, its step, and what it is compared with, for
x86-64, AArch64 and RISC-V. Bounds that only the running program knows are none."""

from __future__ import annotations

import re

from . import registers
from .isa.operands import split
from .schema import Function, Loop

#: (symbol, number): a constant where the symbol is None, else that far from a value that is not known
Value = tuple[object, int]

_X86_IMMEDIATE = re.compile(r"\$(-?(?:0x[0-9a-f]+|\d+))$")
_ARM_IMMEDIATE = re.compile(r"#?(-?(?:0x[0-9a-f]+|\d+))$")
#: conditions under which the instruction before decides by equality
_EQUAL = re.compile(r"j(e|ne|z|nz)$|b\.?(eq|ne)$|c?\.?b(eq|ne)z?$|cbn?z$")
_SIGN = re.compile(r"j(l|le|g|ge|b|be|a|ae|c|nc|s|ns|ng|nl|na|nb)$|b\.?(lt|le|gt|ge|lo|ls|hi|hs|cc|cs|mi|pl)$|c?\.?b(lt|ge|gt|le|ltu|geu|gtu|leu)z?$")
_OR_EQUAL = re.compile(r"j(le|be|ng|na|g|a)$|b\.?(le|ls|gt|hi)$|c?\.?b(le|leu|gt|gtu)z?$")
_MOST = 1 << 40


class Values:
    """Values of a function's registers, as far as moves, constants and additions of constants tell."""

    def __init__(self, function: Function, isa: str):
        self.function, self.isa = function, isa
        self.registers = [registers.of(i, isa) for i in function.instructions]
        self.before: dict[int, list[int]] = {}
        for k, b in enumerate(function.blocks):
            for s in b.successors:
                self.before.setdefault(s, []).append(k)
        self.loops = {loop.header: loop for loop in function.loops if loop.entries == 1}

    def written(self, blocks, register: str) -> bool:
        return any(register in self.registers[p].written for k in blocks for p in range(self.function.blocks[k].first, self.function.blocks[k].last))

    def at(self, register: str, block: int, place: int, head: int | None = None, depth: int = 0) -> Value:
        """What `register` holds before instruction `place` of `block`. head: a block at whose start to stop, with ("head", register)."""
        if register in ("zero", "xzr", "wzr"):
            return None, 0
        first = self.function.blocks[block].first
        for p in range(place - 1, first - 1, -1):
            if register in self.registers[p].written:
                told = self._effect(p, register)
                if told is None or depth > 40:
                    return ("instruction", p), 0
                source, number = told
                if source is None:
                    return None, number
                symbol, value = self.at(source, block, p, head, depth + 1)
                return symbol, value + number
        if block == head:
            return ("head", register), 0
        before = list(dict.fromkeys(self.before.get(block, ())))
        if (loop := self.loops.get(block)) is not None:
            if self.written(loop.blocks, register):
                return ("loop", block, register), 0
            before = [k for k in before if k not in loop.blocks]
        if not before or depth > 40:
            return ("entry" if block == 0 else "block", block, register), 0
        found = {self.at(register, k, self.function.blocks[k].last, head, depth + 8 * (len(before) > 1) + 1) for k in before}
        return found.pop() if len(found) == 1 else (("block", block, register), 0)

    def entering(self, register: str, loop: Loop) -> Value:
        """What a register holds where a loop is entered."""
        outside = [k for k in self.before.get(loop.header, ()) if k not in loop.blocks]
        found = {self.at(register, k, self.function.blocks[k].last) for k in outside}
        return found.pop() if len(found) == 1 else (("entering", loop.header, register), 0)

    def step(self, register: str, loop: Loop) -> int | None:
        """What each round of a loop adds to a register; None where that is no constant."""
        latches = [k for k in self.before.get(loop.header, ()) if k in loop.blocks]
        found = {self.at(register, k, self.function.blocks[k].last, loop.header) for k in latches}
        symbol, number = found.pop() if len(found) == 1 else (None, 0)
        return number if symbol == ("head", register) else None

    def _effect(self, p: int, register: str) -> tuple[str | None, int] | None:
        i = self.function.instructions[p]
        if i.what.is_spill and i.what.unit == "scalar" and (name := registers.slot(i)):
            if i.what.kind == "load":
                return name, 0
            return (next(iter(self.registers[p].read - {name})), 0) if i.what.kind == "store" and len(self.registers[p].read - {name}) == 1 else None
        return {"x86-64": _x86, "aarch64": _arm, "riscv64": _riscv}[self.isa](i.mnemonic, split(i.operands), register)


def _x86(m, ops, register):
    if not ops:
        return None
    number = int(hit[1], 0) if (hit := _X86_IMMEDIATE.match(ops[0])) else None
    if re.match(r"xor[lq]?$", m) and len(ops) == 2 and ops[0] == ops[1]:
        return None, 0
    if re.match(r"mov(abs)?[lq]?$", m) and number is not None:
        return None, number
    if re.match(r"mov[lq]?$|movslq$", m) and "(" not in ops[0] and ops[0][:1] == "%":
        return registers._x86_name(ops[0][1:]), 0
    if re.match(r"(add|sub)[lq]?$", m) and number is not None:
        return register, number if m[0] == "a" else -number
    if re.match(r"(inc|dec)[lq]?$", m):
        return register, 1 if m[0] == "i" else -1
    if m.startswith("lea") and (hit := re.fullmatch(r"(-?(?:0x[0-9a-f]+|\d+))?\(%(\w+)\)", ops[0])) and hit[2] != "rip":
        return registers._x86_name(hit[2]), int(hit[1] or "0", 0)
    return None


def _arm_name(text: str) -> str:
    return "xzr" if text in ("xzr", "wzr") else "sp" if text in ("sp", "wsp") else f"x{text[1:]}"


def _arm(m, ops, register):
    number = lambda k: int(hit[1], 0) if len(ops) > k and (hit := _ARM_IMMEDIATE.match(ops[k])) else None  # noqa: E731
    if m == "mov" and len(ops) == 2:
        return (None, number(1)) if number(1) is not None else (_arm_name(ops[1]), 0) if ops[1][:1] in "xws" else None
    if m in ("add", "sub", "adds", "subs") and len(ops) >= 3 and number(2) is not None and ops[1][:1] in "xws":
        size = number(2) << (12 if len(ops) > 3 and "12" in ops[3] else 0)
        return _arm_name(ops[1]), size if m[0] == "a" else -size
    at = next((k for k, o in enumerate(ops) if o.startswith("[")), None)
    if at is not None and _arm_name(re.split(r"[,\]]", ops[at][1:])[0].strip()) == register:
        if len(ops) > at + 1 and number(at + 1) is not None:
            return register, number(at + 1)
        if hit := re.search(r",\s*#(-?\w+)\]!$", ops[at]):
            return register, int(hit[1], 0)
    return None


def _riscv(m, ops, register):
    m = m.removeprefix("c.")
    if m in ("li", "mv", "lui", "addi", "addiw") and len(ops) > 1:
        try:
            if m == "li":
                return None, int(ops[1], 0)
            if m == "lui":
                value = int(ops[1], 0) << 12
                return None, value - (1 << 32) if value >= 1 << 31 else value
            if m == "mv":
                return ops[1], 0
            return (ops[1], int(ops[2], 0)) if len(ops) > 2 else (register, int(ops[1], 0))
        except ValueError:
            return None
    return None


# --- trip counts -----------------------------------------------------------------------------------------------------


def count(loop: Loop, values: Values) -> float | None:
    """How many rounds a loop makes each time it is entered, the smallest of its exits' that are known; None where none is."""
    if loop.entries > 1:  # where it starts depends on the way in
        return None
    found = [n for k in loop.blocks if any(s not in loop.blocks for s in values.function.blocks[k].successors) or k == loop.header
             if (n := _rounds(k, loop, values)) is not None]
    return min(found) if found else None


def _compared(block: int, values: Values) -> tuple | None:
    """(left, right, place): what the branch at a block's end compares, registers or numbers."""
    f, isa = values.function, values.isa
    last = f.blocks[block].last - 1
    i = f.instructions[last]
    ops = split(i.operands)
    if i.what.flow != "branch" or not (_EQUAL.match(i.mnemonic) or _SIGN.match(i.mnemonic)):
        return None
    if isa == "riscv64":
        return (ops[0], ops[1] if len(ops) == 3 else 0, last) if len(ops) >= 2 else None
    if isa == "aarch64" and i.mnemonic.startswith("cb"):
        return _arm_name(ops[0]), 0, last
    for p in range(last - 1, f.blocks[block].first - 1, -1):
        m, o = f.instructions[p].mnemonic, split(f.instructions[p].operands)
        if isa == "x86-64":
            if re.match(r"cmp[lq]?$", m) and len(o) == 2 and "(" not in "".join(o):
                left = registers._x86_name(o[1][1:])
                return left, int(hit[1], 0) if (hit := _X86_IMMEDIATE.match(o[0])) else registers._x86_name(o[0][1:]), p
            if re.match(r"(add|sub|inc|dec)[lq]?$", m) and "(" not in o[-1]:
                return registers._x86_name(o[-1][1:]), 0, p + 1
            if re.match(r"test[lq]?$", m) and len(o) == 2 and o[0] == o[1]:
                return registers._x86_name(o[0][1:]), 0, p
            if f.instructions[p].what.kind in ("arithmetic", "fma") and f.instructions[p].what.unit == "scalar" and not m.startswith(("lea", "v", "not")):
                return None
        else:
            if m == "cmp" and len(o) == 2 and o[0][:1] in "xw":
                return _arm_name(o[0]), int(hit[1], 0) if (hit := _ARM_IMMEDIATE.match(o[1])) else _arm_name(o[1]), p
            if m in ("subs", "adds") and o and o[0][:1] in ("x", "w"):
                return _arm_name(o[0]), 0, p + 1
            if m in ("cmp", "cmn", "tst", "ands", "fcmp", "ccmp", "whilelo", "whilelt", "ptest"):
                return None
    return None


def _rounds(block: int, loop: Loop, values: Values) -> float | None:
    found = _compared(block, values)
    if found is None:
        return None
    branch = values.function.instructions[values.function.blocks[block].last - 1].mnemonic
    left, right, place = found
    for one, other in ((left, right), (right, left)):
        if not isinstance(one, str):
            continue
        symbol, ahead = values.at(one, block, place, loop.header)
        if not (isinstance(symbol, tuple) and symbol[0] == "head") or not (step := values.step(symbol[1], loop)):
            continue
        if isinstance(other, int):
            bound: Value = (None, other)
        elif values.written(loop.blocks, other):
            continue
        else:
            bound = values.entering(other, loop)
        start = values.entering(symbol[1], loop)
        if start[0] != bound[0]:
            continue
        distance = bound[1] - start[1] - ahead
        if _EQUAL.match(branch):
            if distance % step or distance // step < 0:
                return None
            rounds = distance // step + 1
        else:
            inclusive = _OR_EQUAL.match(branch) is not None and one == left
            rounds = -(-(distance + (inclusive if step > 0 else -inclusive)) // step) + 1
        if 0 < rounds < _MOST:
            return float(rounds)
    return None
