"""Multiply-adds of a warp's instruction, to say which share tensor cores do."""

from __future__ import annotations

import re

from ..schema import Instruction

_MNK = re.compile(r"m(\d+)n(\d+)k(\d+)")
_AMD = re.compile(r"_(\d+)x(\d+)x(\d+)_?")
#: SASS shapes as one number: 16816 is 16x8x16
_SASS = re.compile(r"\.(884|1684|1688|16816|16832|16864|168128|168256|8816|8832|88128)(?:\.|$)")
_SHAPES = {"884": (8, 8, 4), "1684": (16, 8, 4), "1688": (16, 8, 8), "16816": (16, 8, 16), "16832": (16, 8, 32), "16864": (16, 8, 64),
    "168128": (16, 8, 128),
           "168256": (16, 8, 256), "8816": (8, 8, 16), "8832": (8, 8, 32), "88128": (8, 8, 128)}


def multiply_adds(i: Instruction, threads: int) -> int:
    """How many multiply-adds an instruction of a warp does; 0 for others. A warp group's are shared out to its four warps."""
    c = i.what
    if c.kind != "fma" or not (c.is_float or c.unit == "matrix" or c.element == "i8"):
        return 0
    if c.unit != "matrix":
        lanes = {"f16": 2, "bf16": 2, "f32": 1, "f64": 1}
        return threads * (max(1, c.bits // 16) if c.element in ("f16", "bf16") and c.bits >= 16 else max(1,
        c.bits // 32) if c.element == "f32" else lanes.get(c.element, 4))
    if hit := _MNK.search(i.mnemonic):
        m, n, k = (int(x) for x in hit.groups())
        return m * n * k // (4 if i.mnemonic.startswith("wgmma") else 1)
    if hit := re.search(r"\.(\d+)x(\d+)x(\d+)", i.mnemonic):
        return int(hit[1]) * int(hit[2]) * int(hit[3]) // 4
    if hit := _SASS.search(i.mnemonic):
        m, n, k = _SHAPES[hit[1]]
        return m * n * k
    if hit := _AMD.search(i.mnemonic):
        return int(hit[1]) * int(hit[2]) * int(hit[3])
    return 64 * 64 * 16 // 4  # tcgen05 says its shape in a descriptor
