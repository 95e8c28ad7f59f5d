"""Numbers that a launch could not pack: what a GPU's driver makes of them, or an error that names the argument."""

from __future__ import annotations

import math
import operator
import struct

from ...base import ArgumentError

#: what packing raises
UNFIT = struct.error, TypeError, OverflowError
#: how struct packs a Triton type of floats whose large numbers become infinities, as by a cast in C
_CAST = {"fp32": "<f", "f32": "<f", "bf16": "<f"}
_FLOATS = {*_CAST, "fp16", "fp64", "f64"}


def fitted(kernel: str, signature: list[tuple[str, object]], a: tuple, error: Exception) -> list:
    """The arguments of a launch, floats beyond what their type holds as infinities. signature: (name, Triton type) of every argument. Raises `ArgumentError` of one that has no place in
    its type, and `error`, that of packing, where none is to blame."""
    found = [_fitted(kernel, label, ty, x) for (label, ty), x in zip(signature, a)]
    if all(x is y for x, y in zip(found, a)):
        raise error
    return found


def _fitted(kernel: str, label: str, ty, x):
    if isinstance(ty, tuple):
        parts = [_fitted(kernel, f"{label}[{n}]", t, part) for n, (t, part) in enumerate(zip(ty, x))]
        return x if all(p is part for p, part in zip(parts, x)) else type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)
    if ty in _CAST and isinstance(x, (int, float)):
        try:
            struct.pack(_CAST[ty], x)
        except OverflowError:
            return math.inf if x > 0 else -math.inf
        return x
    whole = ty[:1] in "iu" and ty[1:].isdigit()
    if not whole and ty not in _FLOATS:
        return x  # a pointer, a constant
    takes = f"a number ({ty})"
    if whole:
        bits = int(ty[1:])
        least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if ty[0] == "i" and bits > 1 else (0, (1 << bits) - 1)
        takes = f"an integer from {least} to {most} ({ty})"
        try:
            if bits == 1 or least <= operator.index(x) <= most:
                return x
        except TypeError:
            pass
    elif ty == "fp16" and isinstance(x, (int, float)):
        takes = "a number up to 65504 (fp16)"
        try:
            struct.pack("<e", x)
            return x
        except OverflowError:
            pass
    elif isinstance(x, (int, float)) or hasattr(x, "__float__"):
        return x
    raise ArgumentError(f"triton-cpu: kernel {kernel}: argument {label!r} is {x!r:.60}; it takes {takes}")
