"""Dependency chains through the registers of a loop: how long one turn has to wait for the one before, however many units there are.

Which registers an instruction reads and writes follows from its operands' order, which is a rule for each ISA: the last is written on x86 (AT&T), the
first elsewhere; the written one is read too by what adds to it. Flags, memory and parts of registers are left out, so a chain through these is not
seen.
"""

from __future__ import annotations

import re

from .isa.operands import split
from .schema import Instruction

#: turns that are followed
_TURNS = 24

_X86 = re.compile(r"%(\w+)")
_X86_NAMES = {"ax": "a", "bx": "b", "cx": "c", "dx": "d", "si": "si", "di": "di", "bp": "bp", "sp": "sp"}
_ARM = re.compile(r"\b([wxbhsdqvz])(\d{1,2})\b|\b(p)(\d{1,2})\b|\b(sp)\b")
_RISCV = re.compile(r"\b(x\d+|zero|ra|sp|gp|tp|[ast]\d+|f[ast]?\d+|fp|v\d+)\b")
#: writes that read the register too
_ADDS = {"x86-64": re.compile(r"vf\w*n?m(add|sub|addsub|subadd)\d\d\d|vpdp|vdpbf16|vperm[ti]2|vpternlog|vpmadd52|vmovdqu.*\}|.*\{%k"),
         "aarch64": re.compile(r"(f|bf)?ml[as]|b?fdot|bfdot|[su]{1,2}dot|bfmmla|[su]{1,2}mmla|movk|ins$|bs[li]|bi[tf]|s[lr]i$|[su]?[rq]?sra|"
                               r"tbx|fcmla|[su]aba|[su]adalp|[su]ml[as]l|fmml|fm[ls]al"),
         "riscv64": re.compile(r"vf?w?n?m(acc|add|sac|sub)|vf?wn?m(acc|sac)|vqdot|smt\.vm|vslideup")}
#: x86: instructions of two operands that do not read what they write
_X86_FRESH = re.compile(r"v|mov|lea|cvt|sqrt|rsqrt|rcp|pshuf[dhl]|pmovzx|pmovsx|pabs|lzcnt|tzcnt|popcnt|bsf|bsr|lddqu|bls[ir]|rorx")
_X86_THREE = re.compile(r"(shld|shrd|pinsr|insertps|blend|pblend|shufp|palignr)")
_X86_NONE = re.compile(r"(cmp|test|ucomi|comi|vucomi|vcomi|bt|prefetch|vptest|ptest|kortest|ktest|nop|push|call|j|ret|lock|rep|vzero)")


def _x86_name(text: str) -> str:
    if hit := re.fullmatch(r"[xyz]mm(\d+)", text):
        return f"v{hit[1]}"
    if hit := re.fullmatch(r"r(\d+)[bwd]?", text):
        return f"r{hit[1]}"
    short = re.sub(r"^[er]", "", text)
    if len(short) == 2 and short[1] in "lh" and short[0] in "abcd":
        return short[0]
    return _X86_NAMES.get(short.removesuffix("l") if short not in _X86_NAMES else short, text)


def _names(isa: str, text: str) -> list[str]:
    if isa == "x86-64":
        return [_x86_name(n) for n in _X86.findall(text) if n not in ("rip", "eiz", "riz")]
    if isa == "aarch64":
        return [f"{'v' if kind in 'bhsdqvz' else 'x'}{n}" if kind else f"p{pn}" if pred else sp for kind, n, pred, pn, sp in _ARM.findall(text)]
    return [n for n in _RISCV.findall(text) if n not in ("zero", "x0")]


def touched(i: Instruction, isa: str) -> tuple[set[str], set[str], set[str], set[str]]:
    """(registers read for their value, read for an address, written, addresses that move on) by an instruction."""
    ops, m = split(i.operands), i.mnemonic
    if not ops or i.what.flow or i.what.kind == "call":
        return set(_names(isa, i.operands)), set(), set(), set()
    address = {n for o in ops if "(" in o or "[" in o for n in _names(isa, o)}
    value = [o for o in ops if "(" not in o and "[" not in o]
    if isa == "x86-64":
        return *_of_x86(m, ops, value, address), set()
    stores = i.what.kind in ("store", "scatter") or bool(i.what.stores)
    written = set() if stores or re.match(r"(cmp|cmn|tst|fcmp|ccmp|prf|nop|vset|csrw|fence)", m) else set(_names(isa, ops[0]))
    first = 1
    if isa == "aarch64" and re.match(r"ld[nax]*p", m) and len(ops) > 2:  # a pair is loaded
        written |= set(_names(isa, ops[1]))
        first = 2
    read = {n for o in value for n in _names(isa, o)} if stores or not written else {n for o in value[first:] for n in _names(isa, o)}
    if written and (_ADDS[isa].match(m) or isa == "aarch64" and "/m" in i.operands):
        read |= written
    moves = isa == "aarch64" and ("]!" in i.operands or re.search(r"\], (#|x)", i.operands))
    return read, address, written, set(_names(isa, next(o for o in ops if "[" in o))[:1]) if moves else set()


def _of_x86(m: str, ops, value, address) -> tuple[set[str], set[str], set[str]]:
    read = {n for o in value[:-1] for n in _names("x86-64", o)}
    last = ops[-1]
    names = set(_names("x86-64", last.partition("{")[0]))
    read |= set(_names("x86-64", last.partition("{")[2]))
    if _X86_NONE.match(m) or "(" in last:
        return read | (names if "(" not in last else set()), address, set()
    zeroes = re.match(r"v?p?xor|v?psub|sub|sbb", m) and len({o for o in ops[:2]}) == 1 and len(ops) >= 2
    if zeroes:
        return set(), set(), names
    merges = "{%k" in last and "{z}" not in last
    if len(ops) == 1 or merges or _ADDS["x86-64"].match(m) or len(ops) == 2 and not _X86_FRESH.match(m) or len(ops) == 3 and _X86_THREE.match(m):
        read |= names
    return read, address, names


def carried(instructions: list[Instruction], latencies: list[int], isa: str, late: list[int] | None = None) -> tuple[float, list[int]]:
    """(cycles, instructions) of the longest chain from one turn of a loop to the next; (0, []) without one. latencies: of each instruction; late: how many of these
    cycles it does not need its other operands for, while it loads one."""
    reads = [touched(i, isa) for i in instructions]
    late = late or [0] * len(instructions)
    ready: dict[str, tuple[float, int]] = {}
    finished: list[tuple[float, int]] = []  # (when, the one that it waited for)
    ends = []
    for _ in range(_TURNS):
        for k, (value, address, written, moved) in enumerate(reads):
            waits = [ready[n] for n in value if n in ready] + [(ready[n][0] + late[k], ready[n][1]) for n in address if n in ready]
            begin, of = max(waits, default=(0.0, -1))
            finished.append((begin + max(1, latencies[k] - late[k]), of))
            for n in moved:  # there in a cycle
                ready[n] = ready.get(n, (0.0, -1))[0] + 1, len(finished) - 1
            for n in written:
                ready[n] = finished[-1][0], len(finished) - 1
        ends.append(max(range(len(finished)), key=lambda j: finished[j][0]))
    slope = (finished[ends[-1]][0] - finished[ends[_TURNS // 2 - 1]][0]) / (_TURNS - _TURNS // 2)
    if slope <= 0:
        return 0.0, []
    at, chain, n = ends[-1], set(), len(instructions)
    while at >= 0:
        if n <= at < (_TURNS - 1) * n:  # not how it begins and ends
            chain.add(at % n)
        at = finished[at][1]
    return slope, sorted(chain)
