"""Values and constants of LLVM IR, and how their types are written. NULL, TRUE, FALSE, i32 and i64 are for code written by hand."""

from __future__ import annotations

import functools
import struct

FLOATS = {"half": 16, "float": 32, "double": 64}


class Val:
    """An SSA value or constant: LLVM type text `ty`, operand text `s`, and `const` (int, float) where known.

    A vector type is `<n x elem>`; a scalar used where a vector is wanted means the same value in every lane."""

    __slots__ = ("ty", "s", "const")

    def __init__(self, ty: str, s: str, const=None):
        self.ty, self.s, self.const = ty, s, const

    @property
    def lanes(self) -> int:
        return _lanes(self.ty) if self.ty[0] == "<" else 1

    @property
    def elem(self) -> str:
        return self.ty[self.ty.index(" x ") + 3:-1] if self.ty[0] == "<" else self.ty

    def __repr__(self):
        return f"{self.ty} {self.s}"


@functools.lru_cache(maxsize=512)
def _lanes(ty: str) -> int:
    return int(ty[1:ty.index(" x")])


def vec(elem: str, n: int) -> str:
    return elem if n == 1 else f"<{n} x {elem}>"


def bits_of(elem: str) -> int:
    """Size in bits of a scalar LLVM type."""
    return FLOATS.get(elem) or (64 if elem == "ptr" else int(elem[1:]))


def float_text(value: float, elem: str) -> str:
    """A float constant's text: LLVM wants the bits of the double that equals it."""
    if elem == "float":
        value = struct.unpack("<f", struct.pack("<f", value))[0] if abs(value) <= 3.4028235677973366e38 or value != value \
            else float("inf") * (1 if value > 0 else -1)
    elif elem == "half":
        h = struct.pack("<e", value) if abs(value) < 65520 or value != value else \
            struct.pack("<H", 0x7C00 if value > 0 else 0xFC00)
        return f"0xH{struct.unpack('<H', h)[0]:04X}"
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def bits_text(bits: int, elem: str) -> str:
    """The text of a float constant given by its bit pattern."""
    if elem == "half":
        return f"0xH{bits:04X}"
    if elem == "float":
        return float_text_from_f32_bits(bits)
    return f"0x{bits:016X}"


def float_text_from_f32_bits(bits: int) -> str:
    # A signalling NaN would be quieted by a round trip through a double; build the double's bits by hand.
    sign, exp, frac = bits >> 31, (bits >> 23) & 0xFF, bits & 0x7FFFFF
    if exp == 0xFF:
        return f"0x{(sign << 63) | (0x7FF << 52) | (frac << 29):016X}"
    return float_text(struct.unpack("<f", struct.pack("<I", bits))[0], "float")


def const(elem: str, value, lanes: int = 1) -> Val:
    """A constant of scalar LLVM type `elem`, in every one of `lanes` lanes."""
    return _number(elem, value, lanes) if type(value) is int else _const(elem, value, lanes)


def _const(elem: str, value, lanes: int) -> Val:
    if elem == "ptr":
        text = "null"
    elif elem in FLOATS:
        text = bits_text(value[1], elem) if isinstance(value, tuple) else float_text(float(value), elem)
    elif elem == "i1":
        value = bool(value)
        text = "true" if value else "false"
    else:
        n = int(elem[1:])
        value = value & ((1 << n) - 1)
        value -= (value >> (n - 1)) << n  # the signed reading, as LLVM prints it
        text = str(value)
    if lanes > 1:
        text = f"splat ({elem} {text})"
    return Val(vec(elem, lanes), text, value)


#: floats are not looked up: 0.0 equals -0.0
_number = functools.lru_cache(maxsize=4096)(_const)


def i64(v: int) -> Val:
    return const("i64", v)


def i32(v: int) -> Val:
    return const("i32", v)


NULL = const("ptr", 0)
TRUE, FALSE = const("i1", True), const("i1", False)


class Struct:
    """A named type: fields by name, in order."""

    def __init__(self, name: str, **fields: str):
        self.ty, self.fields = f"%{name}", fields

    def index(self, field: str) -> int:
        return list(self.fields).index(field)

    def line(self) -> str:
        return f"{self.ty} = type {{ {', '.join(self.fields.values())} }}"


def mangle(ty: str) -> str:
    """A type's name in an intrinsic's suffix: `<16 x float>` is v16f32."""
    if ty[0] == "<":
        n, _, elem = ty[1:-1].partition(" x ")
        return f"v{n}{mangle(elem)}"
    return {"half": "f16", "float": "f32", "double": "f64", "ptr": "p0"}.get(ty, ty)
