"""SASS's integer instructions, as far as they compute addresses: one instruction on a warp's registers.

Registers hold the low 32 bits: the upper half of an address, and the carries into it, say nothing about how its neighbours lie.
"""

from __future__ import annotations

import re

import numpy as np

from ..isa.operands import split
from ..schema import Instruction
from ..stats import line_of
from .values import Value, uniform
from .warp import Warp, combine, follow, logic

_LOW = 0xffffffff
_PREDICATE = re.compile(r"!?U?P[\dT]$")
_COMPARE = {"LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal, "EQ": np.equal, "NE": np.not_equal}
#: where a kernel's arguments start in constant bank 0, by compute capability (what ptxas writes)
_ARGUMENTS = ((100, 0x380), (90, 0x210), (0, 0x160))


def step(warp: Warp, i: Instruction):
    """Carry out one instruction."""
    op, *mods = i.mnemonic.split(".")
    operands = [o.replace(".reuse", "") for o in split(i.operands)]
    active = _active(warp, i.predicate)
    if i.what.is_memory and i.what.space in ("global", "shared", "") and "[" in i.operands and op not in ("LDC", "ULDC", "LDCU"):
        return _memory(warp, i, op, operands, active)
    if not operands:
        return
    names = []
    while operands and re.match(r"U?[RP](\d+|Z|T)$", operands[0]) and (not names or _PREDICATE.match(operands[0])):
        names.append(operands.pop(0))
        if not _PREDICATE.match(names[-1]) and op not in ("IADD3", "LEA", "UIADD3", "ULEA", "VIADD", "IADD"):
            break
    if names and _PREDICATE.match(names[0]) and op in ("LOP3", "ULOP3", "R2UR") and operands and re.match(r"U?R", operands[0]):
        names.append(operands.pop(0))
    if not names:
        return
    bare = op[1:] if op[0] == "U" and op not in ("UMOV",) else op
    value = _result(warp, bare, mods, operands)
    if value is None and op[0] == "U":
        value = uniform()
    for name in names:
        if _PREDICATE.match(name):
            value_of = combine(lambda x: x != 0, value) if bare == "LOP3" else value if value is not None and value.x.dtype == bool else None
            _put(warp, name, value_of if name == names[0] else None, active)
        else:
            _put(warp, name, value if value is None or value.x.dtype != bool else None, active)
    wide = "64" in mods or "WIDE" in mods or bare == "CS2R"
    if wide and (hit := re.match(r"(U?R)(\d+)$", names[0])):
        warp.registers[f"{hit[1]}{int(hit[2]) + 1}"] = uniform() if hit[1] == "UR" else None


def _put(warp: Warp, name: str, value: Value | None, active):
    if name in ("RZ", "URZ", "PT", "UPT"):
        return
    if value is not None and value.x.dtype != bool:
        value = Value(value.x & _LOW, value.args, value.data)
    old = warp.registers.get(name)
    if active is not None and value is not None and old is not None and old.x.dtype == value.x.dtype and not active.all():
        value = combine(lambda a, b: np.where(active, a, b), value, old)
    warp.registers[name] = value


def _active(warp: Warp, predicate: str):
    value = warp.registers.get(predicate.lstrip("@!")) if predicate else None
    if value is None or value.data or value.x.dtype != bool:
        return None
    x = np.broadcast_to(value.x, warp.arch.warp)
    return ~x if "!" in predicate else x


def _value(warp: Warp, text: str) -> Value | None:
    """The low word of an operand."""
    text = text.strip()
    negative, inverted = text.startswith("-"), text.startswith("~")
    text = text.lstrip("-~|").rstrip("|")
    if text in ("RZ", "URZ", "SRZ"):
        value = Value(np.int64(0))
    elif re.match(r"c\[|cx?\[", text):
        value = _constant(warp, text)
    elif hit := re.match(r"(U?R\d+)", text):
        value = warp.registers.get(hit[1], uniform() if hit[1][0] == "U" else None)
        if value is not None and ".H" in text:
            value = combine(lambda x: x >> (16 if ".H1" in text else 0) & 0xffff, value)
    else:
        try:
            value = Value(np.int64(int(text, 0) & _LOW))
        except ValueError:
            value = None
    if negative and value is not None:
        value = Value(-value.x, value.args, value.data)
    return Value(~value.x & _LOW, value.args, value.data) if inverted and value is not None else value


def _constant(warp: Warp, text: str) -> Value:
    hit = re.match(r"c\[0x0\]\[(0x[0-9a-f]+)\]", text)
    start = next(at for least, at in _ARGUMENTS if int(warp.arch.name[3:]) >= least)
    if hit and int(hit[1], 16) >= start:
        return warp.argument(int(hit[1], 16) - start, False)
    return uniform()


def _memory(warp: Warp, i: Instruction, op: str, operands, active):
    line = line_of(i)
    where = f"{line[0].rpartition('/')[2]}:{line[1]}" if line else ""
    inside = [o for o in operands if "[" in o and not re.match(r"[-~|]?cx?\[", o)]
    if op.startswith(("UTMA", "UBLK")) or not inside:
        return
    picked = inside[-1]  # of LDGSTS the global one
    text = re.findall(r"\[([^\[\]]*)\]", picked)[-1]
    parts = []
    for part in re.findall(r"[+-]?[^+\-]+", text):
        value = _value(warp, part.lstrip("+"))
        if value is not None and (scale := re.search(r"\.X(\d+)", part)):
            value = combine(lambda x, n=int(scale[1]): x * n, value)
        parts.append(value)
    # thread's registers decide; a descriptor or a base in a uniform register stands for any number
    address = combine(lambda *p: sum(p) & _LOW, *parts) if parts else None
    loaded = warp.access(i, address, active, where)
    if i.what.kind in ("load", "atomic") and operands and op not in ("LDGSTS", "RED", "REDG") and (hit := re.match(r"(U?R)(\d+)$", operands[0])):
        for k in range(max(1, i.what.loads // 32)):
            warp.registers[f"{hit[1]}{int(hit[2]) + k}"] = loaded


def _special(warp: Warp, name: str) -> Value:
    if name in ("SR_TID.X", "SR_LANEID"):
        return Value(warp.lane)
    return Value(np.int64(0)) if name.startswith(("SR_TID", "SR_CTAID", "SRZ", "SR_VIRTID")) else uniform()


def _result(warp: Warp, op: str, mods, operands) -> Value | None:
    """What an instruction computes; None for what addresses are not made of."""
    if op in ("S2R", "S2UR", "CS2R", "2UR"):
        return _special(warp, operands[0]) if operands and operands[0].startswith("SR") else None
    if op == "R2UR":
        value = _value(warp, operands[0])
        return None if value is None else Value(value.x.ravel()[0], value.args, value.data)
    if op in ("LDC", "LDCU"):
        return _constant(warp, operands[0])
    numbers = [o for o in operands if not _PREDICATE.match(o.lstrip("!"))]
    v = [_value(warp, o) for o in numbers]
    signed = "U32" not in mods
    sign = (lambda x: follow(x, 32, True)) if signed else (lambda x: x & _LOW)
    if op == "HFMA2" and len(operands) == 4 and operands[1] == "RZ":
        return _halves(operands[2:])
    if op in ("MOV", "MOV32I", "UMOV"):
        return v[0] if v else None
    if op in ("IMAD", "MAD") and len(v) >= 3:
        if "HI" in mods:
            return combine(lambda a, b, c: (sign(a) * sign(b) >> 32) + c, *v[:3])
        return combine(lambda a, b, c: a * b + c, *v[:3])
    if op in ("IADD3", "VIADD", "IADD", "IADD32I", "IADD2", "IADD64", "VIADD64") and v:
        return combine(lambda *x: sum(x), *v)
    if op == "LEA":
        return _lea(mods, v)
    if op == "LOP3" and len(v) >= 4 and v[3] is not None:
        return combine(lambda a, b, c: logic(a, b, c, int(v[3].x)), *v[:3])
    if op == "SHF" and len(v) >= 3:
        return _funnel(mods, v)
    if op == "SHL" and len(v) >= 2:
        return combine(lambda a, n: np.left_shift(a & _LOW, n & 31), *v[:2])
    if op == "SHR" and len(v) >= 2:
        return combine(lambda a, n: sign(a) >> (n & 31), *v[:2])
    if op == "SGXT" and len(v) >= 2 and v[1] is not None:
        return combine(lambda a: follow(a, int(v[1].x) or 32, "U32" not in mods), v[0])
    if op == "BMSK" and len(v) >= 2:
        return combine(lambda a, n: ((1 << np.minimum(n, 32)) - 1) << np.minimum(a, 31), *v[:2])
    if op == "PRMT" and len(v) >= 3 and v[1] is not None:
        return combine(lambda a, c: _permute(a, int(v[1].x.ravel()[0]), c), v[0], v[2])
    if op == "ISETP" and len(v) >= 2 and mods and mods[0] in _COMPARE and "EX" not in mods:
        return combine(lambda a, b: _COMPARE[mods[0]](sign(a), sign(b)), *v[:2])
    if op == "SEL" and len(v) == 2:
        p = warp.registers.get(operands[-1].lstrip("!"))
        return combine(lambda a, b, m: np.where(m ^ operands[-1].startswith("!"), a, b), *v, p) if p is not None and p.x.dtype == bool else None
    if op in ("IMNMX", "VIMNMX") and len(v) >= 2:
        return combine(np.maximum if any(o == "!PT" for o in operands) else np.minimum, *v[:2])
    return None


def _halves(texts) -> Value | None:
    """The bits of two half-precision constants: how ptxas loads an integer through the floating-point unit."""
    try:
        upper, lower = (int(np.float16(float(t)).view(np.uint16)) for t in texts)
    except ValueError:
        return None
    return Value(np.int64(upper << 16 | lower))


def _lea(mods, v) -> Value | None:
    if "HI" in mods:
        if len(v) < 4 or v[3] is None:
            return None
        n = int(v[3].x)
        return combine(lambda a, b, c: b + ((((c & _LOW) << 32 | a & _LOW) << n) >> 32), *v[:3]) if "SX32" not in mods else combine(
            lambda a, b: b + (follow(a, 32, True) >> (32 - n)), v[0], v[1])
    return combine(lambda a, b, n: (np.left_shift(a & _LOW, n) & _LOW) + b, v[0], v[1], v[-1]) if len(v) >= 3 else None


def _funnel(mods, v) -> Value | None:
    """SHF: two words side by side, shifted; .HI gives the upper one."""
    high, left, signed = "HI" in mods, "L" in mods, "S32" in mods or "S64" in mods

    def f(a, n, c):
        upper = follow(c, 32, True) if signed else c & _LOW
        both = upper << 32 | a & _LOW
        both = np.left_shift(both, np.minimum(n, 63)) if left else np.right_shift(both, np.minimum(n, 63))
        return both >> 32 if high else both
    return combine(f, *v[:3])


def _permute(a, selector: int, c):
    out = 0
    for k in range(4):
        which = selector >> 4 * k & 7
        out = out | ((a if which < 4 else c) >> 8 * (which & 3) & 0xff) << 8 * k
    return out
