"""Object files before they are linked into the process (System V ABI, chapter 4; 64-bit, little-endian)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

_SYMTAB, _RELA, _NOBITS = 2, 4, 8  # section types
_WRITE, _ALLOC, _EXEC = 1, 2, 4  # section flags
_SECTION = "<IIQQQQIIQQ"  # name, type, flags, address, offset, size, link, info, align, entry size
_SYMBOL = "<IBBHQQ"  # name, info, other, section, value, size
_RELOCATION = "<QQq"  # offset, info (symbol << 32 | type), addend


#: what other modules ask about sections
NOBITS, WRITE, ALLOC, EXEC, TLS = _NOBITS, _WRITE, _ALLOC, _EXEC, 0x400


@dataclass
class _Section:
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


def _sections(obj: bytes) -> list[_Section]:
    table, = struct.unpack_from("<Q", obj, 40)
    size, count = struct.unpack_from("<HH", obj, 58)
    out = []
    for k in range(count):
        _, kind, flags, _, offset, length, link, info, align, entry = struct.unpack_from(_SECTION, obj, table + k * size)
        out.append(_Section(k, table + k * size, kind, flags, offset, length, link, info, align, entry))
    return out


def undefined_symbols(obj: bytes) -> list[str]:
    """The names that an object expects from elsewhere."""
    sections = _sections(obj)
    out = []
    for s in sections:
        if s.kind != _SYMTAB:
            continue
        names = sections[s.link].offset
        for at in range(s.offset, s.offset + s.size, s.entry):
            name, _, _, section, _, _ = struct.unpack_from(_SYMBOL, obj, at)
            if name and section == 0:
                out.append(obj[names + name:obj.index(b"\0", names + name)].decode())
    return out


#: ELF machine -> (code that jumps to the address behind it, relocation types of calls)
_JUMPS = {62: (b"\xff\x25\0\0\0\0", {2, 4}),  # x86-64: jmp *(%rip); R_X86_64_PC32, PLT32
          183: (struct.pack("<II", 0x58000050, 0xd61f0200), {282, 283})}  # aarch64: ldr x16, 8; br x16; R_AARCH64_JUMP26, CALL26


def in_one_section(obj: bytes, addresses: dict[str, int]) -> bytes:
    """The object with its constants, and jumps to the functions of `addresses` that it calls, in the section of its code, behind it.

    LLVM's in-process linker maps section by section, wherever the system has room, and its table of outside functions, too. In a crowded address
    space (a GPU's driver reserves much of it) they come to lie more than 2 GiB apart, which their references cannot span, and LLVM ends the process.
    Writable sections stay: what has any is compiled to reach them from afar (`compile.emit_object`)."""
    sections = _sections(obj)
    code = next((s for s in sections if s.flags & _EXEC and s.size), None)
    if code is None:
        return obj
    moved = [s for s in sections if s.flags & _ALLOC and not s.flags & (_WRITE | _EXEC) and s.size and s.kind != _NOBITS]
    data = bytearray(obj)
    body = bytearray(obj[code.offset:code.offset + code.size])
    start = {}  # section -> where it begins in the one section
    for s in moved:
        body += bytes(-len(body) % s.align)
        start[s.index] = len(body)
        body += obj[s.offset:s.offset + s.size]
    jump, calls = _JUMPS.get(struct.unpack_from("<H", obj, 18)[0], (b"", set()))
    used: dict[int, set] = {}  # symbol -> types of the relocations to it
    for s in sections:
        if s.kind == _RELA:
            for at in range(s.offset, s.offset + s.size, s.entry):
                _, info, _ = struct.unpack_from(_RELOCATION, obj, at)
                used.setdefault(info >> 32, set()).add(info & 0xffffffff)
    ahead = {}  # symbol that stands for a moved section -> where that begins: relocations to it count from the section's start
    for s in sections:
        if s.kind != _SYMTAB:
            continue
        names = sections[s.link].offset
        for n, at in enumerate(range(s.offset, s.offset + s.size, s.entry)):
            name, info, other, section, value, size = struct.unpack_from(_SYMBOL, obj, at)
            if section in start and info & 15 == 3:  # STT_SECTION: the linker takes the section's start for it, whatever its value
                ahead[n] = start[section]
                section, value = code.index, 0
            elif section in start:
                section, value = code.index, value + start[section]
            elif section == 0 and name and n in used and used[n] <= calls:
                called = obj[names + name:obj.index(b"\0", names + name)].decode()
                body += bytes(-len(body) % 16)
                section, value, info = code.index, len(body), info & 0xf0 | 2  # STT_FUNC
                body += jump + struct.pack("<Q", addresses[called])
            struct.pack_into(_SYMBOL, data, at, name, info, other, section, value, size)
    align = max(s.align for s in (code, *moved))
    data += bytes(-len(data) % align)
    _put(data, code, offset=len(data), size=len(body), align=align)
    data += body
    for s in moved:
        _put(data, s, flags=0, size=0)
    for s in sections:
        if s.kind != _RELA:
            continue
        if s.info in start:
            _put(data, s, info=code.index)
        for at in range(s.offset, s.offset + s.size, s.entry):
            offset, info, addend = struct.unpack_from(_RELOCATION, obj, at)
            struct.pack_into(_RELOCATION, data, at, offset + start.get(s.info, 0), info, addend + ahead.get(info >> 32, 0))
    return bytes(data)


def _put(data: bytearray, s: _Section, **changes):
    """Change fields of a section's header."""
    name, kind, flags, address, offset, size, link, info, align, entry = struct.unpack_from(_SECTION, data, s.at)
    now = {"flags": flags, "offset": offset, "size": size, "info": info, "align": align, **changes}
    struct.pack_into(_SECTION, data, s.at, name, kind, now["flags"], address, now["offset"], now["size"], link, now["info"], now["align"], entry)


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


def sections(obj: bytes) -> list[_Section]:
    """An object's sections."""
    return _sections(obj)


def symbols(obj: bytes) -> list[Symbol]:
    """An object's symbols, in the order by which relocations count them."""
    table = _sections(obj)
    out = []
    for s in table:
        if s.kind == _SYMTAB:
            names = table[s.link].offset
            for name, info, _, section, value, size in struct.iter_unpack(_SYMBOL, obj[s.offset:s.offset + s.size]):
                out.append(Symbol(obj[names + name:obj.index(b"\0", names + name)].decode(), info, section, value, size))
    return out


def relocations(obj: bytes) -> list[Relocation]:
    """The relocations of what is loaded of an object."""
    table = _sections(obj)
    return [Relocation(s.info, offset, info & 0xffffffff, info >> 32, addend) for s in table if s.kind == _RELA and table[s.info].flags & _ALLOC
            for offset, info, addend in struct.iter_unpack(_RELOCATION, obj[s.offset:s.offset + s.size])]


def placed(obj: bytes, addresses: dict[int, int]) -> bytes:
    """The object with the addresses of its sections (index -> address) in their headers, for a debugger."""
    data = bytearray(obj)
    for s in _sections(obj):
        if s.index in addresses:
            struct.pack_into("<Q", data, s.at + 16, addresses[s.index])
    return bytes(data)


def code_size(obj: bytes) -> int:
    """Bytes of an object's code."""
    return sum(s.size for s in _sections(obj) if s.flags & _EXEC)
