"""GDB's pretty-printers for the variables of kernels that are compiled with TRITON_CPU_DEBUG=1: blocks with their type and shape, and the numbers that
bytes of int8, uint8 and the fp8 types stand for. GDB runs this file, in its own Python, and knows the rest without it:

    (gdb) source PATH        where PATH is what `python -m triport.backends.cpu.run.gdb_printers` prints
"""

import struct

try:
    import gdb
except ImportError:  # not in GDB
    gdb = None

#: name -> mantissa bits, exponent bias, the code of the largest number, has it infinities, is NaN what would be a negative zero?
FP8 = {"fp8e5": (2, 15, 0x7B, True, False), "fp8e4nv": (3, 7, 0x7E, False, False), "fp8e4b8": (3, 8, 0x7F, False, True),
       "fp8e5b16": (2, 16, 0x7F, False, True), "fp8e4b15": (3, 15, 0x7F, False, False)}
_PACKED = {"fp16": "e", "__bf16": "f", "fp32": "f", "fp64": "d"}
_BYTES = {"int8", "uint8", *FP8}
_LIMIT = 200  # elements, where GDB's `print elements` is unlimited


def fp8(bits: int, name: str) -> float:
    """The number that the bits of one of Triton's fp8 types stand for."""
    mantissa, bias, largest, infinity, zero_is_nan = FP8[name]
    code, sign = bits & 0x7F, -1.0 if bits & 0x80 else 1.0
    if zero_is_nan and bits == 0x80 or code > largest + infinity:
        return float("nan")
    if code > largest:
        return sign * float("inf")
    exponent, fraction = code >> mantissa, code & ((1 << mantissa) - 1)
    if exponent:
        return sign * (1 + fraction / (1 << mantissa)) * 2.0**(exponent - bias)
    return sign * fraction * 2.0**(1 - bias - mantissa)


def shortest(value: float, name: str) -> str:
    """The shortest text that a float of type `name` is read back from."""
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    packed = _PACKED.get(name, "f")
    return next(text for text in (f"{value:.{digits}g}" for digits in range(1, 18)) if struct.pack(packed, float(text)) == struct.pack(packed, value)
                or len(text) > 24)


def element(value, name: str) -> str:
    """One element's text."""
    if name in FP8:
        return shortest(fp8(int(value) & 0xFF, name), name)
    if name in _PACKED:
        return shortest(float(value), name)
    if name == "bool":
        return str(bool(value))
    return hex(int(value)) if not name else str(int(value))


class Block:
    """A tensor's elements: `fp32[2, 3] {{0, 1, 2}, {3, 4, 5}}`."""

    def __init__(self, value, name: str, shape: list):
        self.value, self.name, self.shape, self.left = value, name, shape, 0

    def to_string(self):
        self.left = gdb.parameter("print elements") or _LIMIT
        return f"{self.name.lstrip('_') or 'pointer'}{self.shape} {self._text(self.value, len(self.shape))}"

    def _text(self, value, rank: int) -> str:
        if not rank:
            self.left -= 1
            return element(value, self.name)
        low, high = value.type.strip_typedefs().range()
        parts = []
        for n in range(low, high + 1):
            if self.left <= 0:
                parts.append("...")
                break
            parts.append(self._text(value[n], rank - 1))
        return "{" + ", ".join(parts) + "}"


class Element:
    """A number of one byte, and the address of some, which GDB would take for text."""

    def __init__(self, value, name: str):
        self.value, self.name = value, name

    def to_string(self):
        return element(self.value, self.name)


def printer(value):
    """The printer of a kernel's variable; None: GDB's own."""
    ty, shape = value.type.strip_typedefs(), []
    while ty.code == gdb.TYPE_CODE_ARRAY:
        shape.append(ty.range()[1] + 1)
        ty = ty.target().strip_typedefs()
    pointer = ty.code == gdb.TYPE_CODE_PTR
    name = "" if pointer else ty.name or "?"
    if shape and (pointer or name in _BYTES or name in _PACKED or name == "bool" or name.lstrip("u")[:3] == "int"):
        return Block(value, name, shape) if _ours() else None
    plain = name in _BYTES or pointer and ty.target().name in _BYTES
    return Element(value, name) if plain and not shape and _ours() else None


def _ours() -> bool:
    """Does the frame at hand stand in a kernel?"""
    try:
        return gdb.lookup_symbol("num_programs")[0] is not None
    except gdb.error:
        return False


if gdb is not None:
    gdb.pretty_printers.append(printer)
    gdb.execute("set max-value-size unlimited")
elif __name__ == "__main__":
    print(__file__)
