"""PTX's integer instructions, as far as they compute addresses: one instruction on a warp's registers."""

from __future__ import annotations

import re

import numpy as np

from ..isa.operands import split
from ..schema import Instruction
from ..stats import line_of
from .values import Value, uniform
from .warp import Warp, combine, follow, logic

_TYPE = re.compile(r"[subf](8|16|32|64)$")
_COMPARE = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal, "lo": np.less,
    "ls": np.less_equal,
            "hi": np.greater, "hs": np.greater_equal}


def step(warp: Warp, i: Instruction):
    """Carry out one instruction."""
    parts, operands = i.mnemonic.split("."), split(i.operands)
    op, kinds = parts[0], [p for p in parts if _TYPE.match(p)]
    bits = int(_TYPE.match(kinds[0])[1]) if kinds else 32
    signed = bool(kinds) and kinds[0][0] == "s"
    active = _active(warp, i.predicate)
    if i.what.is_memory and i.what.space not in ("const", "param", "stack", "tensor"):
        return _memory(warp, i, op, operands, active)
    if not operands:
        return None
    if i.what.kind == "call":
        return _called(warp, i.operands)
    if op == "ld" and i.what.space == "param":
        return _set(warp, operands[0], _parameter(warp, operands[-1], bits), None)
    values = [_value(warp, o, signed, bits) for o in operands[1:]]
    return _set(warp, operands[0], _result(warp, op, parts, kinds, bits, signed, values, operands), active)


def _active(warp: Warp, predicate: str) -> np.ndarray | None:
    """Which threads an instruction's predicate lets through; None for all, and where it is not known."""
    value = warp.registers.get(predicate.lstrip("@!")) if predicate else None
    if value is None or value.data or value.x.dtype != bool:
        return None
    x = np.broadcast_to(value.x, warp.arch.warp)
    return ~x if "!" in predicate else x


def _set(warp: Warp, name: str, value: Value | None, active):
    for k, one in enumerate(re.findall(r"%[\w.]+", name)):
        old = warp.registers.get(one)
        new = value if k == 0 else None
        if active is not None and new is not None and old is not None and not active.all():
            new = combine(lambda a, b: np.where(active, a, b), new, old)
        warp.registers[one] = new


def _value(warp: Warp, text: str, signed: bool, bits: int) -> Value | None:
    text = text.strip()
    if text.startswith("%"):
        special = {"%tid.x": warp.lane, "%laneid": warp.lane, "%tid.y": 0, "%tid.z": 0, "%warpid": 0, "%ctaid.x": 0, "%ctaid.y": 0, "%ctaid.z": 0}
        if text in special:
            return Value(np.asarray(special[text], np.int64))
        if text.startswith(("%ntid", "%nctaid", "%clusterid", "%cluster")):
            return uniform() if not text.startswith("%ntid") else Value(np.int64(1024 if text.endswith("x") else 1))
        value = warp.registers.get(text)
        if value is not None and value.x.dtype != bool and not text.startswith("%rd") and bits <= 32:
            value = Value(follow(value.x, bits, signed), value.args, value.data)
        return value
    try:
        return Value(np.int64(int(text.rstrip("U"), 0)))
    except (ValueError, OverflowError):
        return Value(np.int64(0)) if re.fullmatch(r"[A-Za-z_$][\w$.]*(\+\d+)?", text) else None  # a variable's address


def _called(warp: Warp, text: str):
    """What a function gives back, to each thread something else: registers, or parameters of the call that are loaded behind it."""
    if hit := re.match(r"\(([^)]*)\)", text):
        for name in re.findall(r"%?[\w$.]+", hit[1]):
            warp.registers[name] = None


def _parameter(warp: Warp, text: str, bits: int) -> Value | None:
    if warp.called or (name := re.match(r"\[\s*([\w$.]+)", text)) and name[1] in warp.registers:
        return None
    hit = re.search(r"param_(\d+)(?:\+(\d+))?\]", text)
    if hit:
        return warp.argument(int(hit[1]) + int(hit[2] or 0) * 64, bits == 64)
    hit = re.search(r"\[([\w$]+)(?:\+(\d+))?\]", text)
    if not hit:
        return None
    place = warp.registers.setdefault("params " + hit[1], Value(np.int64(sum(k.startswith("params ") for k in warp.registers))))
    warp.names.setdefault(int(place.x), hit[1])
    return warp.argument(int(place.x), bits == 64)


def _memory(warp: Warp, i: Instruction, op: str, operands, active):
    line = line_of(i)
    where = f"{line[0].rpartition('/')[2]}:{line[1]}" if line else ""
    inside = [o for o in operands if "[" in o]
    if not inside:
        return
    picked = inside[-1] if op == "cp" else inside[0]
    hit = re.search(r"\[\s*([^\s+\]]+)\s*(?:\+\s*(-?\w+))?\s*[\],]", picked)
    base = _value(warp, hit[1], True, 64) if hit else None
    address = combine(np.add, base, Value(np.int64(int(hit[2] or "0", 0)))) if hit else None
    loaded = warp.access(i, address, active, where)
    if op == "cp":
        return
    if i.what.loads and operands and "[" not in operands[0]:
        for name in re.findall(r"%[\w.]+", operands[0]):
            warp.registers[name] = loaded


def _result(warp: Warp, op: str, parts, kinds, bits: int, signed: bool, v: list, operands) -> Value | None:
    """What an instruction computes; None for what addresses are not made of."""
    wide = "wide" in parts
    if op in ("mov", "cvta") and len(v) == 1:
        return v[0]
    if op == "cvt" and len(kinds) == 2 and kinds[1][0] != "f" and kinds[0][0] != "f":
        to, of = (int(_TYPE.match(k)[1]) for k in kinds)
        source = _value(warp, operands[1], kinds[1][0] == "s", of)
        return combine(lambda x: follow(follow(x, of, kinds[1][0] == "s"), to, kinds[0][0] == "s"), source)
    if kinds and kinds[0][0] == "f":
        return None
    binary = {"add": np.add, "sub": np.subtract, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "min": np.minimum,
        "max": np.maximum,
              "shl": lambda a, b: np.left_shift(a, np.minimum(b, 63)), "shr": lambda a, b: np.right_shift(a, np.minimum(b, 63)),
              "div": lambda a, b: np.where(b == 0, 0, np.floor_divide(a, np.where(b == 0, 1, b))), "rem": lambda a, b: np.where(b == 0, 0,
              np.remainder(a, np.where(b == 0, 1, b)))}
    out = None
    if op in binary and len(v) == 2:
        out = combine(binary[op], *v)
    elif op == "mul" and len(v) == 2:
        out = combine(np.multiply, *v) if "hi" not in parts else combine(lambda a, b: np.right_shift(a * b, bits), *v) if bits <= 32 else None
    elif op == "mad" and len(v) == 3 and "hi" not in parts:
        last = _value(warp, operands[3], signed, 64 if wide else bits)
        out = combine(lambda a, b, c: a * b + c, v[0], v[1], last)
    elif op in ("not", "neg", "abs") and len(v) == 1:
        out = combine({"not": np.bitwise_not, "neg": np.negative, "abs": np.abs}[op], *v)
    elif op == "bfe" and len(v) == 3:
        out = combine(lambda a, p, n: np.right_shift(a, p) & ((1 << np.minimum(n, 62)) - 1), *v)
    elif op == "bfi" and len(v) == 4:
        out = combine(lambda a, b, p, n: (b & ~(((1 << n) - 1) << p)) | ((a & ((1 << n) - 1)) << p), *v)
    elif op == "lop3" and len(v) == 4 and v[3] is not None:
        out = combine(lambda a, b, c: logic(a, b, c, int(v[3].x)), *v[:3])
    elif op == "setp" and len(v) >= 2 and parts[1] in _COMPARE:
        return combine(_COMPARE[parts[1]], v[0], v[1])
    elif op == "selp" and len(v) == 3:
        return combine(lambda a, b, p: np.where(p, a, b), *v)
    elif op == "shf" and len(v) == 3:
        out = combine(lambda a, b, n: np.left_shift(follow(b, 32, False), n) | np.right_shift(follow(a, 32, False), 32 - n) if parts[1] == "l"
                      else np.right_shift(follow(b, 32, False) << 32 | follow(a, 32, False), n), *v)
    if out is None or out.x.dtype == bool:
        return out
    return Value(follow(out.x, 64 if wide else bits, signed), out.args, out.data)
