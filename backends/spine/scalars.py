"""A kernel's numbers in an exported function: which type each has, as in a launch, and the 8 bytes that the kernel is given for it."""

from __future__ import annotations

import struct
import sys

import sympy
import torch

from ..base import Unsupported
from ..cpu.emit.element import narrow
from ..cpu.llvm.ir import Val, const, i64
from ..cpu.run.launch import PACK, bf16_bits
from .expressions import Emitter, is_float

#: numbers of a float type end below: what is rounded to its infinity
_ENDS = {"fp16": 65520.0, "fp32": float.fromhex("0x1.ffffffp127"), "bf16": float.fromhex("0x1.ffffffp127")}
#: float type -> the 8 bytes of a double in it, rounded as in a launch (`bf16_bits` goes by fp32)
FLOATS = {
    "fp16": lambda b, d: b.cast("zext", narrow.half_bits(b, d), "i64"),  # by integers: a target may have neither instruction nor function for it
    "bf16": lambda b, d: b.cast("zext", narrow.bf16_by_integers(b, b.cast("fptrunc", d, "float"), False), "i64"),
    "fp32": lambda b, d: b.cast("zext", b.bitcast(b.cast("fptrunc", d, "float"), "i32"), "i64"),
    "fp64": lambda b, d: b.bitcast(d, "i64"),
}


def annotated(kernel, p) -> str:
    """The type that a kernel names for a parameter, which a launch gives it whatever the number is; "" where it names none. Raises `Unsupported` for a type that no number can
    have."""
    ty = p.annotation_type
    if ty and ty not in PACK and ty != "bf16":
        raise Unsupported(f"kernel {kernel.__name__} takes {p.name!r} as {ty}, which no launch can give it: annotate it as tl.float32, and convert it in the kernel")
    return ty


def is_constant(p, e) -> bool:
    """Is the whole number `e` compiled into the kernel, as Triton does with a 1 of no type?"""
    return e == 1 and not p.do_not_specialize and not p.annotation_type


def whole_type(e, example: int | None) -> str:
    """The type of a whole number whose kernel names none: of one that is open as its example's is."""
    n = example if e.free_symbols else int(e)
    if n is None or -(1 << 31) <= n < 1 << 31:
        return "i32"
    return "i64" if n < 1 << 63 else "u64"


def example_of(value) -> int | None:
    """The example's number of one that is open, where there is one."""
    node = getattr(value, "node", None)
    return getattr(node, "hint", None) if isinstance(value, torch.SymInt) else None


def fits(kernel, p, value, ty: str):
    """Raise `Unsupported` where `ty` does not hold `value`: a launch refuses an integer, and makes an infinity of a float, which what is exported refuses whether it is fixed or given."""
    fixed = value if isinstance(value, (bool, int, float)) else None
    whole = ty[0] in "iu" and ty != "u1"
    if whole and isinstance(value, (float, torch.SymFloat)):
        raise Unsupported(f"kernel {kernel.__name__} takes {p.name!r} as {ty}, and it is a float: give it a whole number, or annotate it as tl.float32")
    if fixed is None:
        return
    try:
        packed(fixed, ty)
    except (struct.error, OverflowError):
        raise Unsupported(f"kernel {kernel.__name__} takes {p.name!r} as {ty}, {range_text(ty)}, and it is {fixed}") from None


def packed(value, ty: str) -> int:
    """A number's 8 bytes, as in a launch that packs it. Raises what struct does for one that its type does not hold."""
    if isinstance(value, sympy.Basic):
        value = int(value)
    data = struct.pack("<H6x", bf16_bits(value)) if ty == "bf16" else struct.pack("<" + PACK[ty], value)
    return struct.unpack("<q", data)[0]


def range_text(ty: str) -> str:
    """What numbers a type holds, for people."""
    if ty[0] not in "iu":
        return f"up to {_ENDS.get(ty, sys.float_info.max):.8g}"
    lo, hi = range_of(ty)
    return f"{lo} to {hi}"


def range_of(ty: str) -> tuple[int, int]:
    """The least and the greatest number of a whole type."""
    bits = int(ty[1:])
    return (0, (1 << bits) - 1) if ty[0] == "u" else (-(1 << bits - 1), (1 << bits - 1) - 1)


def outside(e: Emitter, value: sympy.Basic, ty: str) -> Val | None:
    """Is the open number `value` one that `ty` does not hold? None: it holds all."""
    b = e.b
    if ty in _ENDS:
        size = b.intrinsic("fabs", e.real(value))
        return b.and_(b.fcmp("oge", size, const("double", _ENDS[ty])), b.fcmp("olt", size, const("double", float("inf"))))
    if ty in ("u1", "fp64", "i64"):
        return None
    lo, hi = range_of(ty)
    v = _whole(e, value)
    if ty == "u64":
        return b.icmp("slt", v, 0)  # numbers of a function have 64 bits with a sign
    return b.icmp("ugt", b.sub(v, i64(lo)), hi - lo)


def word(e: Emitter, value, ty: str) -> Val:
    """The 8 bytes of a number, of which the kernel reads as many as its type has: all targets are little-endian."""
    if not isinstance(value, sympy.Basic) or isinstance(value, sympy.Integer):
        return i64(packed(value, ty))
    b = e.b
    if ty in FLOATS:
        real = e.real(value) if is_float(value) else b.cast("sitofp", _whole(e, value), "double")
        return FLOATS[ty](b, real)
    if is_float(value):  # of a truth value
        return b.cast("zext", b.fcmp("une", e.real(value), const("double", 0.0)), "i64")
    v = _whole(e, value)
    return b.cast("zext", b.icmp("ne", v, 0), "i64") if ty == "u1" else v


def _whole(e: Emitter, value) -> Val:
    """An expression's i64; a condition's is 0 or 1."""
    v = e.value(value)
    return v if v.ty == "i64" else e.b.cast("zext", v, "i64")
