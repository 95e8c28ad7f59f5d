"""The line tables of an object file: DWARF 4, `.debug_line` (chapter 6.2). The standard library only."""

from __future__ import annotations

import bisect
import struct

from . import elf

_RELA = 4


def line_of(obj: bytes, address: int) -> tuple[str, int] | None:
    """(file, line) of an address in an object whose sections' headers say where they lie; None where its tables do not say."""
    for sequence in _sequences(obj):
        starts = [row[0] for row in sequence]
        if starts[0] <= address < starts[-1]:
            rows = sequence[:bisect.bisect_right(starts, address)]
            return next(((file, line) for _, file, line in reversed(rows) if line), None)
    return None


def _sequences(obj: bytes):
    """Lists of (address, file, line), each address the first of its line; the last of a list is its end."""
    table = elf.sections(obj)
    for section in table:
        if section.name != ".debug_line":
            continue
        data = bytearray(obj[section.offset:section.offset + section.size])
        _relocate(obj, table, section.index, data)
        at = 0
        while at + 4 <= len(data):
            length, = struct.unpack_from("<I", data, at)
            yield from _unit(bytes(data[at + 4:at + 4 + length]))
            at += 4 + length


def _relocate(obj: bytes, table, index: int, data: bytearray):
    """Put addresses where they are missing: symbol plus addend, 8 bytes, is all that line tables without relaxation have."""
    symbols = elf.symbols(obj)
    for s in table:
        if s.kind == _RELA and s.info == index:
            for at, info, addend in struct.iter_unpack("<QQq", obj[s.offset:s.offset + s.size]):
                symbol = symbols[info >> 32]
                if symbol.section < len(table) and at + 8 <= len(data):
                    start, = struct.unpack_from("<Q", obj, table[symbol.section].at + 16)
                    struct.pack_into("<Q", data, at, start + symbol.value + addend)


class _Reader:
    """A place in bytes."""

    def __init__(self, data: bytes, at: int = 0):
        self.data, self.at = data, at

    def number(self, form: str) -> int:
        value, = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return value

    def uleb(self) -> int:
        value = shift = 0
        while True:
            byte = self.number("B")
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def sleb(self) -> int:
        start = self.at
        value, bits = self.uleb(), 7 * (self.at - start)
        return value - (1 << bits) if value >> (bits - 1) else value

    def text(self) -> str:
        end = self.data.index(0, self.at)
        value, self.at = self.data[self.at:end].decode(errors="replace"), end + 1
        return value


def _unit(data: bytes):
    """The sequences of one unit."""
    r = _Reader(data)
    version, length = r.number("H"), r.number("I")
    if version not in (2, 3, 4):
        return
    program = r.at + length
    least = r.number("B")
    if version == 4:
        r.number("B")  # operations in an instruction, of VLIW machines
    r.number("B")
    base, span, first = r.number("b"), r.number("B"), r.number("B")
    operands = [0, *(r.number("B") for _ in range(first - 1))]
    folders, files = [""], [""]
    while folder := r.text():
        folders.append(folder)
    while name := r.text():
        folder = folders[r.uleb()]
        files.append(name if name.startswith("/") or not folder else f"{folder}/{name}")
        r.uleb(), r.uleb()
    r.at = program
    yield from _rows(r, files, least, base, span, first, operands)


def _rows(r: _Reader, files: list[str], least: int, base: int, span: int, first: int, operands: list[int]):
    """Carry out a line number program."""
    rows: list[tuple[int, str, int]] = []
    address, file, line = 0, 1, 1
    while r.at < len(r.data):
        code = r.number("B")
        if code >= first:
            address += (code - first) // span * least
            line += base + (code - first) % span
            rows.append((address, files[file], line))
        elif code == 0:
            end = r.uleb() + r.at
            extended = r.number("B")
            if extended == 1:  # DW_LNE_end_sequence
                rows.append((address, files[file], line))
                yield rows
                rows, (address, file, line) = [], (0, 1, 1)
            elif extended == 2:  # DW_LNE_set_address
                address = r.number("Q")
            r.at = end
        elif code == 1:  # DW_LNS_copy
            rows.append((address, files[file], line))
        elif code == 2:
            address += r.uleb() * least
        elif code == 3:
            line += r.sleb()
        elif code == 4:
            file = r.uleb()
        elif code == 8:  # DW_LNS_const_add_pc
            address += (255 - first) // span * least
        elif code == 9:  # DW_LNS_fixed_advance_pc
            address += r.number("H")
        else:
            for _ in range(operands[code]):
                r.uleb()
