"""AMDGCN's integer instructions, as far as they compute addresses: one instruction on a wave's registers.

Registers hold the low 32 bits: the upper half of an address says nothing about how its neighbours lie.
"""

from __future__ import annotations

import re

import numpy as np

from ..isa.operands import split
from ..schema import Function, Instruction
from ..stats import line_of
from .values import Value, uniform
from .warp import Warp, combine, follow

_LOW = 0xffffffff
#: the offset that LLVM gives threads that a mask leaves out of a buffer's access
_OUTSIDE = 0x80000000
#: registers that an instruction names together, at most
_LONGEST = 32


def _shift(x, n):
    return np.left_shift(x, n & 31) & _LOW


def _signed(x):
    return follow(x, 32, True)


_TWO = {"add": np.add, "sub": np.subtract, "subrev": lambda a, b: b - a, "mul_lo": np.multiply, "mul": lambda a, b: (a & 0xffffff) * (b & 0xffffff),
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "lshlrev": lambda n, a: _shift(a,
        n), "lshrrev": lambda n, a: a >> (n & 31),
        "ashrrev": lambda n, a: _signed(a) >> (n & 31), "lshl": _shift, "lshr": lambda a, n: a >> (n & 31),
        "ashr": lambda a, n: _signed(a) >> (n & 31),
        "min": np.minimum, "max": np.maximum, "mul_hi": lambda a, b: (a * b) >> 32}
_THREE = {"lshl_add": lambda a, n, c: _shift(a, n) + c, "add_lshl": lambda a, b, n: _shift(a + b, n), "lshl_or": lambda a, n, c: _shift(a, n) | c,
          "and_or": lambda a, b, c: a & b | c, "or3": lambda a, b, c: a | b | c, "add3": lambda a, b, c: a + b + c,
          "xad": lambda a, b, c: (a ^ b) + c,
          "bfi": lambda m, a, b: m & a | ~m & b, "mad": lambda a, b, c: a * b + c, "bfe": lambda a, p, n: a >> (p & 31) & ((1 << (n & 31)) - 1)}
_NAME = re.compile(r"([vs])_(?:pk_)?(mul_lo|mul_hi|lshl_add|add_lshl|lshl_or|and_or|or3|add3|xad|bfi|bfe|mad|add|subrev|sub|mul|and|"
                   r"or|xor|lshlrev|lshrrev|ashrrev|"
                   r"lshl|lshr|ashr|min|max)(?:_nc|_co)?_([uib])(\d+)(?:_[ui](\d+))?$")
_COMPARE = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal, "lg": np.not_equal}


#: what a function may write, by LLVM's convention for calls: of vector registers the first 40, and the lower eight of every sixteen from there; scalar ones below s30
_WRITTEN = (*(f"v{n}" for n in range(256) if n < 40 or not n & 8), *(f"a{n}" for n in range(32)))
_WRITTEN_SCALARS = (*(f"s{n}" for n in range(30)), "vcc", "vcc_lo", "vcc_hi", "m0", "scc")


def start(warp: Warp, function: Function):
    """What a kernel finds in its registers: the thread's number. A function that is called finds it in v31, and arguments of each thread in others."""
    warp.called = any(i.mnemonic.startswith("s_setpc") for i in function.instructions) and not any(i.mnemonic == "s_endpgm" for i in function.instructions)
    warp.registers["v31" if warp.called else "v0"] = Value(warp.lane)


def _call(warp: Warp):
    """After a call nothing is known of what the function may have written; scalar registers are still one value for all threads."""
    warp.registers.update(dict.fromkeys(_WRITTEN))
    for name in _WRITTEN_SCALARS:
        warp.registers.pop(name, None)
    for name in [n for n in warp.registers if n.startswith("mask ")]:
        del warp.registers[name]


def step(warp: Warp, i: Instruction):
    """Carry out one instruction; of a dual one both."""
    first, _, second = i.operands.partition("::")
    _one(warp, i, i.mnemonic, first)
    if second.strip():
        mnemonic, _, operands = second.strip().partition(" ")
        _one(warp, i, mnemonic, operands)


def _one(warp: Warp, i: Instruction, mnemonic: str, text: str):
    name = re.sub(r"_(e32|e64|sdwa|dpp)$", "", mnemonic).replace("v_dual_", "v_")
    operands = split(text)
    if not operands:
        return
    if i.what.kind == "call":
        return _call(warp)
    if i.what.is_memory and i.what.space in ("global", "flat", "shared"):
        return _memory(warp, i, name, operands)
    if "saveexec" in name and len(operands) > 1:
        mask = _mask(warp, operands[1])
        warp.registers["exec"] = mask if "and_save" in name else None
    elif name.startswith(("s_cmp_", "s_bitcmp")) and len(operands) > 1:
        warp.registers["scc"] = _condition(name, *(_value(warp, o) for o in operands[:2]))
    elif operands[0].startswith("exec"):
        warp.registers["exec"] = None
    elif name.startswith("s_load"):
        hit = re.fullmatch(r"(0x[0-9a-f]+|\d+)", operands[-1])
        for k, one in enumerate(_names(operands[0])):
            warp.registers[one] = warp.argument(int(hit[1], 0) + 4 * k, False) if hit else uniform()
    else:
        _set(warp, operands[0], _result(warp, name, operands))


def _names(text: str) -> list[str]:
    if (hit := re.match(r"([vsa])\[(\d+):(\d+)\]", text.strip())) and int(hit[3]) - int(hit[2]) < _LONGEST:
        return [f"{hit[1]}{n}" for n in range(int(hit[2]), int(hit[3]) + 1)]
    return [text.strip().split(" ")[0]]


def _set(warp: Warp, text: str, value: Value | None):
    names = _names(text)
    mask = value is not None and value.x.dtype == bool
    if value is not None and not mask:
        value = Value(value.x & _LOW, value.args, value.data)
    for k, one in enumerate(names):
        scalar = one[:1] == "s" or one.startswith(("vcc", "m0", "ttmp"))
        warp.registers[one] = value if k == 0 else uniform() if scalar and not mask else None
    if mask:
        warp.registers["mask " + text.strip()] = value


def _value(warp: Warp, text: str) -> Value | None:
    text = text.strip().split(" ")[0]
    one = _names(text)[0]
    if one in warp.registers:
        return warp.registers[one]
    try:
        return Value(np.int64(int(text, 0) & _LOW))
    except ValueError:
        return uniform() if re.match(r"s\d|s\[|vcc|ttmp|m0|exec|null", text) else None


def _mask(warp: Warp, text: str) -> Value | None:
    value = warp.registers.get("mask " + text.strip()) or warp.registers.get(_names(text)[0])
    return value if value is not None and value.x.dtype == bool and not value.data else None


def _memory(warp: Warp, i: Instruction, name: str, operands):
    line = line_of(i)
    where = f"{line[0].rpartition('/')[2]}:{line[1]}" if line else ""
    offsets = [int(n, 0) for n in re.findall(r"\boffset0?:(-?\w+)", operands[-1])]
    words = [o.split(" ")[0] for o in operands]
    active = _mask(warp, "exec")
    active = None if active is None else np.broadcast_to(active.x, warp.arch.warp)
    returns = bool(i.what.loads) and i.what.kind != "atomic" and " lds" not in operands[-1]
    if name.startswith("ds_"):
        step_ = i.what.bits // 16 if re.search(r"(read|write|load|store)_?2", name) else 1
        address = combine(np.add, _value(warp, words[1 if returns else 0]), Value(np.int64((offsets or [0])[0] * max(1, step_))))
    elif name.startswith("buffer"):
        at = next((k for k, w in enumerate(words) if re.match(r"s\[|ttmp\[", w)), None)
        parts = [_value(warp, words[at]), _value(warp, words[at + 1]) if at + 1 < len(words) else None] if at is not None else [None]
        if "offen" in operands[-1]:
            parts.append(_value(warp, words[at - 1]) if at else None)
        if parts[-1] is not None and parts[-1].x.ndim and (parts[-1].x >= _OUTSIDE).any() and active is None:
            active = parts[-1].x < _OUTSIDE
        address = None if "idxen" in operands[-1] else combine(lambda *p: sum(p), *parts, Value(np.int64((offsets or [0])[0])))
    else:
        at = 1 if returns else 0
        base = [_value(warp, words[at])]
        if len(words) > at + 1 and words[-1].startswith(("s[", "vcc", "ttmp")):
            base.append(_value(warp, words[-1]))
        address = combine(lambda *p: sum(p), *base, Value(np.int64((offsets or [0])[0])))
    if i.what.space == "shared" and name.startswith("ds_") and i.what.kind == "atomic":
        address = None
    loaded = warp.access(i, address, active, where)
    if returns:
        for one in _names(words[0]):
            warp.registers[one] = loaded


def _condition(name: str, a: Value | None, b: Value | None) -> Value | None:
    """s_cmp_lt_i32, s_bitcmp0_b32: what the scalar unit's condition becomes."""
    if hit := re.match(r"s_bitcmp([01])_b32$", name):
        return combine(lambda x, n: (x >> (n & 31) & 1) == int(hit[1]), a, b)
    if (hit := re.match(r"s_cmp_(\w\w)_([iu])32$", name)) and hit[1] in _COMPARE:
        sign = _signed if hit[2] == "i" else lambda x: x
        return combine(lambda x, y: _COMPARE[hit[1]](sign(x), sign(y)), a, b)
    return None


def _chosen(a: Value | None, b: Value | None, mask: Value | None) -> Value | None:
    """v_cndmask: b where the mask is set. A mask that is not known, or leaves nobody, chooses the address that is not outside of everything."""
    outside = [v is not None and not v.x.ndim and int(v.x) == _OUTSIDE for v in (a, b)]
    if outside[0] and (mask is None or not mask.x.any()):
        return b
    if outside[1] and (mask is None or mask.x.all()):
        return a
    return combine(lambda x, y, m: np.where(m, y, x), a, b, mask)


def _result(warp: Warp, name: str, operands) -> Value | None:
    """What an instruction computes; None for what addresses are not made of."""
    scalar = name.startswith("s_")
    unknown = uniform() if scalar else None
    if name.startswith("v_cmp"):
        if not (hit := re.match(r"v_cmpx?_(\w\w)_([iu])(32|16|64)$", name)) or len(operands) < 2:
            return None
        a, b = (_value(warp, o) for o in operands[-2:])
        sign = _signed if hit[2] == "i" else lambda x: x
        return combine(lambda x, y: _COMPARE[hit[1]](sign(x), sign(y)), a, b) if hit[1] in _COMPARE else None
    if scalar and name.endswith(("_b64", "_b32")) and (masks := [_mask(warp, o) for o in operands[1:]]) and any(m is not None for m in masks):
        known = [m for m in masks if m is not None]
        f = np.logical_and if name.startswith("s_and_") else np.logical_or
        return known[0] if len(masks) == 1 else combine(f, *known) if len(known) == 2 and name.startswith(("s_and_b", "s_or_b")) else None
    values = [_value(warp, o) for o in operands[1:]]
    if name in ("v_mov_b32", "s_mov_b32", "s_mov_b64", "v_mov_b64", "v_readfirstlane_b32", "v_accvgpr_write_b32",
        "v_accvgpr_read_b32") and values[0] is not None:
        v = values[0]
        return Value(v.x.ravel()[0], v.args, v.data) if "first" in name and v.x.ndim else v
    if name in ("v_mad_u64_u32", "v_mad_i64_i32", "v_mad_co_u64_u32") and len(values) == 4:
        return combine(lambda a, b, c: a * b + c, *values[1:])
    if name in ("v_lshl_add_u64", "v_lshlrev_b64", "s_lshl_b64"):
        f = {"v_lshl_add_u64": lambda a, n, c: _shift(a, n) + c, "v_lshlrev_b64": lambda n, a: _shift(a, n), "s_lshl_b64": _shift}[name]
        return combine(f, *values)
    if name.startswith("v_mbcnt_"):
        low = np.minimum(warp.lane, 32) if "lo" in name else np.maximum(warp.lane - 32, 0)
        return combine(lambda b: b + low, values[1]) if operands[1].strip() in ("-1", "0xffffffff") else None
    if name.startswith("v_cndmask_b32") and len(operands) in (3, 4):
        return _chosen(values[0], values[1], _mask(warp, operands[3] if len(operands) == 4 else "vcc"))
    if name.startswith("s_cselect") and len(operands) == 3:
        condition = warp.registers.get("scc")
        if {o.strip() for o in operands[1:]} == {"-1", "0"}:
            return None if condition is None else Value(np.broadcast_to(condition.x == (operands[1].strip() == "-1"), warp.arch.warp), condition.args)
        return unknown if condition is None else combine(lambda a, b, c: np.where(c, a, b), *values, condition)
    if name.endswith("bfrev_b32") and values[0] is not None and not values[0].x.ndim:
        return Value(np.int64(int(f"{int(values[0].x) & _LOW:032b}"[::-1], 2)))
    if name.startswith("s_movk"):
        return values[0]
    if name.startswith("s_bfe") and None not in values and not values[1].x.ndim:
        n, at = int(values[1].x) >> 16 & 0x7f, int(values[1].x) & 31
        return combine(lambda x: follow(x >> at & (1 << n) - 1, max(1, n), "_i32" in name), values[0])
    hit = _NAME.match(name)
    if not hit or hit[4] == "16":
        return unknown
    if "_co_" in name and len(values) == 3:
        values = values[1:]
    table = _TWO if len(values) == 2 else _THREE
    if hit[2] not in table or len(values) not in (2, 3):
        return unknown
    if hit[2] == "mul" and hit[4] == "32":
        return combine(np.multiply, *values) or unknown
    return combine(table[hit[2]], *values) or unknown
