"""Branches that an object leaves to the linker. RISC-V assemblers do so by default, since the linker may still make code shorter: every branch is a
relocation, and its instruction jumps to itself. Here they are given their targets, as far as those lie in the section of the branch."""

from __future__ import annotations

import struct

_RISCV, _RELOCATABLE, _RELA, _SYMTAB = 243, 1, 4, 2
#: types of relocations, R_RISCV_BRANCH and so on, of the psABI
_BRANCH, _JAL, _RVC_BRANCH, _RVC_JUMP = 16, 17, 44, 45


def relocatable(data: bytes) -> bool:
    """Is it an object that was not linked?"""
    return data[:4] == b"\x7fELF" and len(data) > 64 and int.from_bytes(data[16:18], "little") == _RELOCATABLE


def resolved(data: bytes) -> bytes:
    """An ELF file with the branches of RISC-V code filled in; any other file as it is."""
    if not relocatable(data) or data[4:6] != b"\x02\x01" or int.from_bytes(data[18:20], "little") != _RISCV:
        return data
    out = bytearray(data)
    try:
        sections = _sections(data)
        for kind, offset, size, link, info in sections:
            if kind == _RELA and info < len(sections):
                _, symbols, *_ = sections[link]
                for at in range(offset, offset + size - 23, 24):
                    place, name, addend = struct.unpack_from("<QQq", data, at)
                    if name & 0xffffffff in _SET:
                        _, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", data, symbols + 24 * (name >> 32))
                        if section == info:
                            _SET[name & 0xffffffff](out, sections[info][1] + place, value + addend - place)
    except (struct.error, IndexError):  # a broken file: the disassembler says what is wrong with it
        return data
    return bytes(out)


def _sections(data: bytes) -> list[tuple[int, int, int, int, int]]:
    """(type, offset, size, link, info) of every section."""
    start, = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    return [struct.unpack_from("<4xI16xQQII", data, start + k * size) for k in range(count)]


def _bits(value: int, *spans: tuple[int, int, int]) -> int:
    """Bits of `value` put into an instruction: (first bit of the value, how many, first bit of the instruction)."""
    return sum(((value >> a) & ((1 << n) - 1)) << b for a, n, b in spans)


def _put(out: bytearray, at: int, width: int, spans, far: int):
    mask = _bits(-1, *spans)
    old = int.from_bytes(out[at:at + width], "little")
    out[at:at + width] = (old & ~mask | _bits(far, *spans)).to_bytes(width, "little")


_SET = {
    _BRANCH: lambda out, at, far: _put(out, at, 4, ((12, 1, 31), (5, 6, 25), (1, 4, 8), (11, 1, 7)), far),
    _JAL: lambda out, at, far: _put(out, at, 4, ((20, 1, 31), (1, 10, 21), (11, 1, 20), (12, 8, 12)), far),
    _RVC_BRANCH: lambda out, at, far: _put(out, at, 2, ((8, 1, 12), (3, 2, 10), (6, 2, 5), (1, 2, 3), (5, 1, 2)), far),
    _RVC_JUMP: lambda out, at, far: _put(out, at, 2, ((11, 1, 12), (4, 1, 11), (8, 2, 9), (10, 1, 8), (6, 1, 7), (7, 1, 6), (1, 3, 3), (5, 1, 2)), far),
}
