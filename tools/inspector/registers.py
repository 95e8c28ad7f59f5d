"""Which registers an instruction writes and reads, for the questions that are asked of loops: what counts them, where a value comes from and where it
goes. Widths of one register have one name: `rax` for %eax, `v3` for %xmm3 and %ymm3 or d3 and z3.f, `x4` for w4."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from .isa.operands import split


class Registers(NamedTuple):
    """written; read: as data; address: read for an address."""

    written: frozenset[str]
    read: frozenset[str]
    address: frozenset[str]


NONE = Registers(frozenset(), frozenset(), frozenset())
_X86_ALIAS = {a: f"r{b}" for b in ("ax", "bx", "cx", "dx") for a in (f"r{b}", f"e{b}", b, f"{b[0]}l", f"{b[0]}h")} | {
    a: f"r{b}" for b in ("si", "di", "bp", "sp") for a in (f"r{b}", f"e{b}", b, f"{b}l")}
_X86 = re.compile(r"%(\w+)")
_X86_READS = re.compile(r"(cmp|test|bt|ucomi|comi|vucomi|vcomi|ptest|vptest$|vtest|kortest|ktest|push|prefetch|out)")
_X86_PURE = re.compile(r"(v(?!fn?m|pdp|dpb|pmadd52|perm[it]2|pternlog|fixup)|mov|lea|set|pop|cvt|lzcnt|tzcnt|popcnt|bsf|bsr|rorx|sarx|shlx|shrx|andn|"
                       r"bextr|bls|mulx|pshuf[dhl]|pabs|pmov|sqrt|rcp|rsqrt|lddqu|k|in$|pbroadcast|broadcast|pext[rq]|extract|round)")
_CALLED = {"x86-64": frozenset({"rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", *(f"v{n}" for n in range(32))}),
           "aarch64": frozenset({*(f"x{n}" for n in range(19)), "x30", *(f"v{n}" for n in (*range(8), *range(16, 32)))}),
           "riscv64": frozenset({"ra", *(f"a{n}" for n in range(8)), *(f"t{n}" for n in range(7)), *(f"fa{n}" for n in range(8)),
                                 *(f"ft{n}" for n in range(12)), *(f"v{n}" for n in range(32))})}


def of(i, isa: str) -> Registers:
    """The registers of an instruction of x86-64, aarch64 or riscv64; none for other ISAs."""
    if i.what.kind == "call":
        return Registers(_CALLED.get(isa, frozenset()), frozenset(), frozenset())
    read = {"x86-64": _x86, "aarch64": _arm, "riscv64": _riscv}.get(isa)
    if read is None:
        return NONE
    found = read(i.mnemonic, i.operands, i.what.kind)
    if i.what.is_spill and (name := slot(i)):  # a slot of the stack is a register that lies in memory
        found = found._replace(written=found.written | {name} if i.what.stores else found.written, read=found.read | {name} if i.what.loads else found.read)
    return found


_SLOT = re.compile(r"(-?\w*\(%[re][sb]p\)|\[(?:sp|x29)(?:, #-?\w+)?\]|-?\w*\((?:sp|s0)\))$|(-?\w*\(%[re][sb]p\)),")


def slot(i) -> str:
    """The stack slot that a load or a store of one register goes to, as it is written; "" for others."""
    hit = _SLOT.search(i.operands)
    return (hit[1] or hit[2]) if hit and not re.match(r"(push|pop|ld|st)p?$", i.mnemonic) or hit and i.mnemonic in ("ld",) else ""


def _x86_name(name: str) -> str:
    if name in _X86_ALIAS:
        return _X86_ALIAS[name]
    if hit := re.fullmatch(r"[xyz]mm(\d+)", name):
        return f"v{hit[1]}"
    return re.sub(r"^(r\d+)[dwb]$", r"\1", name)


@functools.lru_cache(maxsize=65536)
def _x86(m: str, operands: str, kind: str) -> Registers:
    ops = [o for o in split(operands) if not re.fullmatch(r"\{[a-z-]+\}", o)]
    if m.startswith("nop") or m.startswith("xchg") and len(set(ops)) == 1:
        return NONE  # padding, whose operands make it long
    names = [frozenset(map(_x86_name, _X86.findall(o))) for o in ops]
    memory = ["(" in o for o in ops]
    address = frozenset().union(*(n for n, mem in zip(names, memory) if mem)) if ops else frozenset()
    read = frozenset().union(*(n for n, mem in zip(names, memory) if not mem)) if ops else frozenset()
    if m.endswith(("cqto", "cltd", "cqo")):
        return Registers(frozenset({"rdx"}), frozenset({"rax"}), frozenset())
    if m in ("cltq", "cwtl"):
        return Registers(frozenset({"rax"}), frozenset({"rax"}), frozenset())
    if re.match(r"(rep\w* )?(movs|stos|lods|scas|cmps)[bwlq]$", m):
        return Registers(frozenset({"rdi", "rsi", "rcx"}), frozenset({"rax", "rcx"}), frozenset({"rdi", "rsi"}))
    if not ops or kind == "branch" or _X86_READS.match(m):
        return Registers(frozenset(), read, address)
    if len(ops) == 1 and re.match(r"(i?mul|i?div)[bwlq]?$", m):
        return Registers(frozenset({"rax", "rdx"}), read | {"rax", "rdx"}, address)
    if memory[-1]:
        return Registers(frozenset(), read, address)
    last = frozenset(map(_x86_name, _X86.findall(ops[-1].partition("{")[0])))
    if m.startswith(("xchg", "xadd")):
        return Registers(read, read, address)
    others = [n for n, mem in zip(names[:-1], memory[:-1]) if not mem]
    sources = frozenset().union(*others) if others else frozenset()
    if re.match(r"v?p?(xor|sub|andn|cmpeq)", m) and len(ops) >= 2 and all(n == last for n in names):
        return Registers(last, frozenset(), frozenset())  # zero, whatever was in it
    if not _X86_PURE.match(m) and not (m.startswith("imul") and len(ops) == 3) or "{%k" in operands and "{z}" not in operands:
        sources |= last
    if "{%k" in operands:
        sources |= frozenset(re.findall(r"\{%(k\d)\}", operands))
    return Registers(last, sources, address)


_ARM = re.compile(r"(?<![\w#.])([xwvzqdshbp])(\d+)\b|\b(sp|wsp|fp|lr)\b")


def _arm_names(text: str) -> frozenset[str]:
    out = set()
    for hit in _ARM.finditer(text):
        kind = hit[1]
        out.add({"wsp": "sp", "fp": "x29", "lr": "x30"}.get(hit[3], hit[3]) if hit[3] else f"{'x' if kind in 'xw' else 'p' if kind == 'p' else 'v'}{hit[2]}")
    if lists := re.findall(r"([vz])(\d+)\.\w+\s*-\s*[vz](\d+)", text):
        out |= {f"v{n % 32}" for _, a, b in lists for n in range(int(a), int(b) + (32 if int(b) < int(a) else 0) + 1)}
    return frozenset(out)


@functools.lru_cache(maxsize=65536)
def _arm(m: str, operands: str, kind: str) -> Registers:
    ops = split(operands)
    names = [_arm_names(o) for o in ops]
    at = next((k for k, o in enumerate(ops) if o.startswith("[")), None)
    address = names[at] if at is not None else frozenset()
    back = address & _arm_names(ops[at].split(",")[0]) if at is not None and (ops[at].endswith("!") or len(ops) > at + 1) else frozenset()
    rest = frozenset().union(*(n for k, n in enumerate(names) if k and k != at)) if ops else frozenset()
    if not ops or kind in ("branch", "config", "sync") or re.match(r"(f?ccm[pn]|f?cmp[e]?|cmn|tst|ptest)$", m) and "." not in ops[0]:
        return Registers(frozenset(), frozenset().union(*names) if names else frozenset(), frozenset())
    if kind in ("store", "scatter"):
        return Registers(back, frozenset().union(*(n for k, n in enumerate(names) if k != at)), address)
    written = names[0]
    if re.match(r"(ldp|ldnp|ldpsw|ldxp|ldaxp)$", m) and at == 2:
        written, rest = names[0] | names[1], frozenset()
    if at is not None and not at == 0:
        return Registers(written | back, rest - written, address)
    merges = kind == "fma" and not re.match(r"[fsu]?n?m(add|sub)l?$|[su]m(add|sub)l$", m) or m in ("movk", "bfi", "bfxil", "bfm", "ins", "bit", "bif", "bsl") or (
        m == "mov" and re.match(r"v\d+\.\w\[", ops[0]) is not None) or m.endswith("2") and m[:2] in ("fc", "xt", "uq", "sq", "sh")
    counts = re.match(r"(inc|dec|[su]q(inc|dec))[bhwdp]$", m)
    return Registers(written, rest | written if merges or counts else rest, frozenset())


_RISCV = re.compile(r"\b(zero|ra|sp|gp|tp|fp|s1[01]|[satx]\d+|f[sat]?\d+|v\d+)\b")


@functools.lru_cache(maxsize=65536)
def _riscv(m: str, operands: str, kind: str) -> Registers:
    ops = split(operands)
    names = [frozenset(n for n in _RISCV.findall(o.replace("v0.t", "")) if n != "zero") for o in ops]
    memory = [o.endswith(")") for o in ops]
    address = frozenset().union(*(n for n, mem in zip(names, memory) if mem)) if ops else frozenset()
    if not ops or kind == "branch":
        return Registers(frozenset(), frozenset().union(*names) if names else frozenset(), frozenset())
    rest = frozenset().union(*(n for n, mem in zip(names[1:], memory[1:]) if not mem))
    if kind in ("store", "scatter"):
        return Registers(frozenset(), rest | names[0], address)
    if m.startswith("vset"):
        return Registers(names[0], rest, frozenset())
    merges = m.startswith("v") and (kind == "fma" or "slideup" in m or "v0.t" in operands or m.startswith(("vmv.s", "vfmv.s")))
    return Registers(names[0], rest | names[0] if merges else rest, address)
