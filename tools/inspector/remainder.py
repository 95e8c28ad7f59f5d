"""Loops that take what a main loop leaves: remainders of fewer elements than a vector has, masked last chunks, and the scalar version for arguments that
overlap or are too short. They are recognised by structure: what the main loop's exit leads to, going on where that stopped, or another way round it; and
by the same mix of operations, as many loads to a store, and no value carried from round to round where the main loop carries none. Everything here is about one
function."""

from __future__ import annotations

import re

from .flow import cycles
from .lanes import size_of
from .schema import Function, Loop
from .stats import DIVIDE
from .trips import Values

#: what a computation is made of, coarse enough for vector and scalar code of one expression to agree
_FAMILIES = (("divide", re.compile(r"v?f?(div|sqrt|rcp|rsqrt|recpe|recps|rsqrte|rsqrts|rec7|rdiv)|f(div|sqrt)")), ("compute", re.compile(r".*")))


def families(instructions) -> frozenset[str]:
    """The kinds of floating-point arithmetic in it."""
    return frozenset(next(name for name, fits in _FAMILIES if fits.match(i.mnemonic)) for i in instructions
                     if i.what.is_float_work and i.what.kind != "convert")


#: multiplications and additions by name; a multiply-add is both
_SUMS = (("multiply", re.compile(r"v?fc?n?m?w?mul|v?mul|v?dpp|v?fcmla")), ("add", re.compile(r"v?f?w?(add|sub|rsub|hadd|hsub)|vf?w?red[ou]?s?sum|v?dpp|fcadd|fabd|faba")))


def _sums(instructions) -> set[str]:
    """Does it multiply, does it add floating-point elements?"""
    return {name for i in instructions if i.what.is_float_work for name, fits in _SUMS if i.what.kind == "fma" or fits.match(i.mnemonic)}


def divides(part) -> bool:
    """Does it divide integers? RISC-V has vectors of that."""
    return any(DIVIDE.match(i.mnemonic) or re.match(r"v(div|rem)u?\.", i.mnemonic) for i in part)


#: from how many times as much loaded for what is stored a loop does something else than the main one, which may keep a vector that others load
_MORE = 1.9


def _loaded(part) -> float:
    """Bits of elements loaded for each that is stored, 0 where nothing is; constants, and what another loop prepares for all rounds, are not counted."""
    data = [i.what for i in part if i.what.is_memory and not i.what.is_spill and not i.what.address and not i.what.splat and "(%rip)" not in i.operands]
    stored = sum(c.stores for c in data)
    return sum(c.loads for c in data) / stored if stored else 0.0


def mixes(main, other) -> bool:
    """Does `other` do what `main` does? Both are lists of instructions. Floating-point division may be by reciprocals, and compares be masks, in one of them; integers are
    divided by both or by `main` alone: LLVM makes a loop of its own for a divisor of -1, which is no main loop of the one that divides."""
    def touches(part, way):
        return any(getattr(i.what, way) and not i.what.is_spill for i in part)
    a, b = families(main), families(other)
    return (touches(other, "loads") <= touches(main, "loads") and touches(other, "stores") == touches(main, "stores") and bool(a) == bool(b)
            and b <= a | {"compute"} and _sums(other) <= _sums(main) and divides(other) <= divides(main))


#: what rounds a count down to whole vectors, and which of these divides by a power of two
_ROUNDS = re.compile(r"(and|bic|shr|sar|lsr|asr|srl|sra|ubfx|neg|rem|bfxil|bextr)")
_SHIFTS = re.compile(r"(shr|sar|lsr|asr|srl|sra)")
#: a shift by so much divides nothing: it takes a number's sign, or its upper half
_SIGN = 16


def lanes(classes) -> int:
    """The narrowest elements that the widest of these instructions' vectors hold."""
    done = list(classes)
    return max((c.bits for c in done), default=0) // min((n for c in done if (n := size_of(c.element))), default=64)


def _rounds(i, least: int) -> bool:
    """Does an instruction round a count down to whole vectors, of `least` lanes? Half of the elements are no such count."""
    name = i.mnemonic.removeprefix("c.")
    if not _ROUNDS.match(name):
        return False
    if not _SHIFTS.match(name):
        return True
    hit = re.search(r"(?:^|[ ,])[$#]?(0x[0-9a-f]+|\d+)(?=$|,)", i.operands)
    by = int(hit[1], 0) if hit else None if "," in i.operands else 1  # x86 names no 1; None: by a register
    return by is None or by < _SIGN and 1 << by >= least

#: registers and stack slots that floating-point values are in
_FLOATS = re.compile(r"v\d+$|f[ast]?\d+$|.*[(\[]")


class Structure:
    """What leads where in a function. rare: instructions, by id, that do not count."""

    def __init__(self, function: Function, values: Values, rare: set[int]):
        self.function, self.values, self.rare = function, values, rare

    def reached(self, start: set[int], outer: Loop | None, without: frozenset[int] = frozenset()) -> set[int]:
        """Blocks that code goes to from `start` inside a round of `outer` (None: the function)."""
        blocks, stop = self.function.blocks, outer.header if outer else -1
        out, work = set(), [k for k in start if k != stop and k not in without and (outer is None or k in outer.blocks)]
        while work:
            if (k := work.pop()) not in out:
                out.add(k)
                work += [s for s in blocks[k].successors if s != stop and s not in without and (outer is None or s in outer.blocks)]
        return out

    def exits(self, loop: Loop) -> set[int]:
        return {s for k in loop.blocks for s in self.function.blocks[k].successors if s not in loop.blocks}

    def around(self, a: Loop, b: Loop | None = None) -> Loop | None:
        """The innermost loop round one loop or both."""
        fits = [o for o in self.function.loops if a.blocks < o.blocks and (b is None or b.blocks < o.blocks)]
        return min(fits, key=lambda o: len(o.blocks), default=None)

    def follows(self, main: Loop, other: Loop) -> bool:
        """Does `other` come after `main`, in one round of the loop round both, and go on where that stopped?"""
        outer = self.around(main)
        if self.around(other) is not outer and self.around(other) != outer:
            return False
        return other.header in self.reached(self.exits(main), outer) and self.goes_on(main, other)

    def replaces(self, main: Loop, other: Loop) -> bool:
        """Does either the one or the other run?"""
        outer = self.around(main, other)
        return other.header not in self.reached(self.exits(main), outer) and main.header not in self.reached(self.exits(other), outer)

    def left_over(self, main: Loop, blocks: set[int]) -> set[int]:
        """Of `blocks`, those of no inner loop round `main`: the ones that run after it only where something is left, or instead of it."""
        outer, all_blocks = self.around(main), self.function.blocks
        starts = self.exits(main)
        after = self.reached(starts, outer)
        out = set()
        for k in blocks:
            if k in after:
                others = self.reached(starts, outer, frozenset({k}))
                ends = (not all_blocks[o].successors and not all_blocks[o].fails or any(outer is not None and (s == outer.header or s not in outer.blocks) for s in all_blocks[o].successors)
                        for o in others)
                if any(ends):
                    out.add(k)
            elif main.header not in self.reached(set(all_blocks[k].successors), outer) and k in self._beside(main, outer):
                out.add(k)
        return out

    def _beside(self, main: Loop, outer: Loop | None) -> set[int]:
        """Blocks that are reached without passing `main`."""
        start = {outer.header} if outer else {0}
        blocks = self.function.blocks
        first = {s for k in start for s in blocks[k].successors} | (set() if outer else start)
        return self.reached(first, outer, frozenset({main.header}))

    def carries(self, loop: Loop) -> bool:
        """Does a loop's floating-point arithmetic in a round need its result of the round before: a sum, or a recurrence?"""
        function, registers = self.function, self.values.registers
        places = [p for k in sorted(loop.blocks) for p in range(function.blocks[k].first, function.blocks[k].last)]
        uses: dict[int, set[int]] = {p: set() for p in places}
        last: dict[str, int] = {}
        for p in places * 2:  # the second time with what the first left
            for name in registers[p].read:
                if name in last and _FLOATS.match(name):
                    uses[last[name]].add(p)
            last.update(dict.fromkeys(registers[p].written, p))
        works = {p for p in places if function.instructions[p].what.is_float_work and function.instructions[p].what.kind != "convert"}
        return any(p in uses[p] for p in works) or any(part & works for part in cycles(uses))

    def loads_more(self, main: Loop, other: Loop) -> bool:
        """Does `other` load more than `main` for what it stores? Where registers that no round changes say is loaded once, in one of the two maybe before the loop."""
        def part(loop):
            places = [p for k in loop.blocks for p in range(self.function.blocks[k].first, self.function.blocks[k].last)]
            changed = set().union(*(self.values.registers[p].written for p in places))
            return [self.function.instructions[p] for p in places if self.values.registers[p].address & changed and id(self.function.instructions[p]) not in self.rare]
        return _loaded(part(other)) > _MORE * _loaded(part(main)) > 0

    def goes_on(self, main: Loop, other: Loop) -> bool:
        """Do the addresses of `other` come from what `main` left in its registers, or from a count rounded to whole vectors? A loop over the same
        data that starts again takes them from arguments and constants."""
        theirs = self._slice(self._addresses(other), other)
        inside = {p for k in main.blocks for p in range(self.function.blocks[k].first, self.function.blocks[k].last)}
        least = lanes(c for p in inside if (c := self.function.instructions[p].what).unit == "vector" and c.bits)
        return bool(theirs & inside) or any(_rounds(self.function.instructions[p], least) for p in theirs)

    def _addresses(self, loop: Loop) -> set[str]:
        """Registers that addresses come from which a loop finds when it is entered."""
        registers, function = self.values.registers, self.function
        out: set[str] = set()
        came: dict[str, set[str]] = {}  # a register that the loop has written -> registers of its entry that its value comes from

        def entries(names) -> set[str]:
            return set().union(*(came.get(r, {r}) for r in names))

        for k in sorted(loop.blocks, key=lambda k: (k < loop.header, k)):
            for p in range(function.blocks[k].first, function.blocks[k].last):
                at = registers[p]
                out |= entries(at.address)
                moved = function.instructions[p].what.kind in ("arithmetic", "move")
                new = entries(at.read | at.address) if moved else set()
                came.update(dict.fromkeys(at.written, new))
        return out

    def _slice(self, names: set[str], loop: Loop) -> set[int]:
        """Instructions that the values of registers at a loop's entry come from."""
        blocks, registers = self.function.blocks, self.values.registers
        outside = [k for k in self.values.before.get(loop.header, ()) if k not in loop.blocks]
        work = [(k, blocks[k].last, r) for k in outside for r in names]
        seen, out = set(), set()
        while work:
            k, end, r = work.pop()
            for p in range(end - 1, blocks[k].first - 1, -1):
                if r in registers[p].written:
                    if p not in out:
                        out.add(p)
                        work += [(k, p, x) for x in registers[p].read | (registers[p].address if self.function.instructions[p].what.kind == "arithmetic" else set())]
                    break
            else:
                for before in self.values.before.get(k, ()):
                    if (before, r) not in seen:
                        seen.add((before, r))
                        work.append((before, blocks[before].last, r))
        return out
