"""Object files before they are linked into the process (System V ABI, chapter 4; 64-bit, little-endian)."""

from __future__ import annotations

import struct
from typing import NamedTuple

_SYMTAB, _RELA, NOBITS = 2, 4, 8  # section types
WRITE, ALLOC, EXEC, TLS = 1, 2, 4, 0x400  # section flags
_SECTION = "<IIQQQQIIQQ"  # name, type, flags, address, offset, size, link, info, align, entry size
_SYMBOL = "<IBBHQQ"  # name, info, other, section, value, size
_RELOCATION = "<QQq"  # offset, info (symbol << 32 | type), addend


class Section(NamedTuple):
    """One of an object's sections."""

    index: int
    at: int  # of its header in the file
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int
    name: str


def sections(obj: bytes) -> list[Section]:
    """An object's sections."""
    table, = struct.unpack_from("<Q", obj, 40)
    size, count, of_names = struct.unpack_from("<HHH", obj, 58)
    headers = [struct.unpack_from(_SECTION, obj, table + k * size) for k in range(count)]
    names = headers[of_names][4] if of_names < count else 0
    return [Section(k, table + k * size, kind, flags, offset, length, link, info, align, entry, _text(obj, names + name))
            for k, (name, kind, flags, _, offset, length, link, info, align, entry) in enumerate(headers)]


def _text(obj: bytes, at: int) -> str:
    return obj[at:obj.index(b"\0", at)].decode()


class Symbol(NamedTuple):
    """section: 0 for one that is elsewhere; value: from the section's start."""

    name: str
    info: int
    section: int
    value: int
    size: int


class Relocation(NamedTuple):
    """target: the section that it changes, offset bytes from its start."""

    target: int
    offset: int
    kind: int
    symbol: int
    addend: int


def symbols(obj: bytes) -> list[Symbol]:
    """An object's symbols, in the order by which relocations count them."""
    table = sections(obj)
    out = []
    for s in table:
        if s.kind == _SYMTAB:
            names = table[s.link].offset
            for name, info, _, section, value, size in struct.iter_unpack(_SYMBOL, obj[s.offset:s.offset + s.size]):
                out.append(Symbol(_text(obj, names + name), info, section, value, size))
    return out


def undefined_symbols(obj: bytes) -> list[str]:
    """The names that an object expects from elsewhere."""
    return [s.name for s in symbols(obj) if s.name and s.section == 0]


def relocations(obj: bytes) -> list[Relocation]:
    """The relocations of what is loaded of an object."""
    table = sections(obj)
    return [Relocation(s.info, offset, info & 0xffffffff, info >> 32, addend) for s in table if s.kind == _RELA and table[s.info].flags & ALLOC
            for offset, info, addend in struct.iter_unpack(_RELOCATION, obj[s.offset:s.offset + s.size])]


def placed(obj: bytes, addresses: dict[int, int]) -> bytes:
    """The object with the addresses of its sections (index -> address) in their headers, for a debugger."""
    data = bytearray(obj)
    for s in sections(obj):
        if s.index in addresses:
            struct.pack_into("<Q", data, s.at + 16, addresses[s.index])
    return bytes(data)


def code_size(obj: bytes) -> int:
    """Bytes of an object's code."""
    return sum(s.size for s in sections(obj) if s.flags & EXEC)
