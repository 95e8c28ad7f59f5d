"""Branches that an object leaves to the linker. RISC-V assemblers do so by default, since the linker may still make code shorter: every branch is a
relocation, and its instruction jumps to itself. Here they are given their targets, as far as those lie in the section of the branch."""

from __future__ import annotations

import struct
from typing import NamedTuple

_RISCV, _RELOCATABLE, _RELA, _SYMTAB = 243, 1, 4, 2
#: types of relocations, R_RISCV_BRANCH and so on, of the psABI
_BRANCH, _JAL, _RVC_BRANCH, _RVC_JUMP = 16, 17, 44, 45


class _Form(NamedTuple):
    """How an ELF file of one class writes: struct's formats of a section (type, offset, size, link, info), a relocation (place, name and type, addend), a symbol; which
    of a symbol's two numbers is its value, the other being its section; bits of a relocation's type; where the header has the sections' place and their size."""

    section: str
    relocation: str
    symbol: str
    value: int
    bits: int
    place: tuple[str, int]
    size: int


_FORMS = {1: _Form("<4xI8xIIII", "<IIi", "<4xI6xH", 0, 8, ("<I", 32), 46), 2: _Form("<4xI16xQQII", "<QQq", "<6xHQ8x", 1, 32, ("<Q", 40), 58)}


def relocatable(data: bytes) -> bool:
    """Is it an object that was not linked?"""
    return data[:4] == b"\x7fELF" and len(data) > 64 and int.from_bytes(data[16:18], "little") == _RELOCATABLE


def resolved(data: bytes) -> bytes:
    """An ELF file with the branches of RISC-V code filled in; any other file as it is."""
    if not relocatable(data) or data[4] not in _FORMS or data[5] != 1 or int.from_bytes(data[18:20], "little") != _RISCV:
        return data
    out = bytearray(data)
    form = _FORMS[data[4]]
    step, width = struct.calcsize(form.relocation), struct.calcsize(form.symbol)
    try:
        sections = _sections(data, form)
        for kind, offset, size, link, info in sections:
            if kind == _RELA and info < len(sections):
                _, symbols, *_ = sections[link]
                for at in range(offset, offset + size - step + 1, step):
                    place, name, addend = struct.unpack_from(form.relocation, data, at)
                    if (what := name & (1 << form.bits) - 1) in _SET:
                        symbol = struct.unpack_from(form.symbol, data, symbols + width * (name >> form.bits))
                        value, section = symbol[form.value], symbol[1 - form.value]
                        if section == info:
                            _SET[what](out, sections[info][1] + place, value + addend - place)
    except (struct.error, IndexError):  # a broken file: the disassembler says what is wrong with it
        return data
    return bytes(out)


def _sections(data: bytes, form: _Form) -> list[tuple[int, int, int, int, int]]:
    """(type, offset, size, link, info) of every section."""
    start, = struct.unpack_from(form.place[0], data, form.place[1])
    size, count = struct.unpack_from("<HH", data, form.size)
    return [struct.unpack_from(form.section, data, start + k * size) for k in range(count)]


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
