"""Machine code of the RISC-V instructions that hand-written code consists of: LLVM as it is at hand here has no assembler for another machine's.

Registers are numbers: 10 is a0, 5 is t0. Vector instructions: The RISC-V Instruction Set Manual, "V" Standard Extension, version 1.0. `vmadot`:
SpacemiT's IME (LLVM: XSMTVDot), SpacemiT AI Matrix Extension Instruction Set 0.6, chapters 5 and 8: for registers of 256 bits, vs1 holds 4 rows of A
of 8 bytes each, vs2 4 columns of B of 8 bytes each, and vd and vd + 1 hold 4 x 4 numbers of 32 bits in row-major order, to which the products are added.
"""

from __future__ import annotations

import struct

ZERO, RA, T0, T1, T2, A0 = 0, 1, 5, 6, 7, 10
#: vtype's code of an element's width, and of loads' and stores'
_SEW = {8: 0, 16: 1, 32: 2, 64: 3}
_WIDTH = {8: 0, 16: 5, 32: 6, 64: 7}
_LMUL = {1: 0, 2: 1, 4: 2, 8: 3}
#: suffix of vmadot -> funct3; what is signed: of A, of B
VMADOT = {"": 3, "u": 0, "su": 2, "us": 1}


def addi(rd: int, rs: int, value: int) -> int:
    return (value & 0xfff) << 20 | rs << 15 | rd << 7 | 0x13


def add(rd: int, rs1: int, rs2: int) -> int:
    return rs2 << 20 | rs1 << 15 | rd << 7 | 0x33


def ret() -> int:
    return RA << 15 | 0x67


def branch(what: str, rs1: int, rs2: int, to: int) -> int:
    """what: "beq" or "bne"; to: bytes from here."""
    bits = to & 0x1fff
    return ((bits >> 12) << 31 | (bits >> 5 & 0x3f) << 25 | rs2 << 20 | rs1 << 15 | {"beq": 0, "bne": 1}[what] << 12 | (bits >> 1 & 0xf) << 8
            | (bits >> 11 & 1) << 7 | 0x63)


def _vtype(sew: int, lmul: int) -> int:
    return 0xc0 | _SEW[sew] << 3 | _LMUL[lmul]  # tails and masked lanes may be anything


def vsetivli(count: int, sew: int, lmul: int) -> int:
    """`count` elements (up to 31) are worked on from here on."""
    return 3 << 30 | _vtype(sew, lmul) << 20 | count << 15 | 7 << 12 | 0x57


def vsetvli(rd: int, rs: int, sew: int, lmul: int) -> int:
    """As many elements as `rs` says; rs = ZERO and rd another: as many as there is room for."""
    return _vtype(sew, lmul) << 20 | rs << 15 | 7 << 12 | rd << 7 | 0x57


def vle(width: int, vd: int, at: int) -> int:
    """Neighbours in memory."""
    return 1 << 25 | at << 15 | _WIDTH[width] << 12 | vd << 7 | 0x07


def vluxei64(vd: int, at: int, offsets: int) -> int:
    """Elements at `at` and offsets in bytes (64 bits each)."""
    return 1 << 26 | 1 << 25 | offsets << 20 | at << 15 | 7 << 12 | vd << 7 | 0x07


def vsuxei64(vs: int, at: int, offsets: int) -> int:
    return 1 << 26 | 1 << 25 | offsets << 20 | at << 15 | 7 << 12 | vs << 7 | 0x27


def vmadot(vd: int, vs1: int, vs2: int, signs: str = "") -> int:
    if vd % 2 or {vs1, vs2} & {vd, vd + 1}:
        raise ValueError(f"vmadot v{vd}, v{vs1}, v{vs2}: the first is even, and of a pair that the others are not in")
    return 0x71 << 25 | vs2 << 20 | vs1 << 15 | VMADOT[signs] << 12 | vd << 7 | 0x2b


def code(words: list[int]) -> bytes:
    return struct.pack(f"<{len(words)}I", *words)
