"""Linking an object file into this process: sections side by side in memory of its own, relocated, shown to debuggers.

For x86-64, in a hundredth of the time that loading LLVM for it would take: a kernel that comes from the disk cache needs nothing else. All of an object
lies in one piece, code and constants first, then jumps to the functions that it calls and addresses that it reads, then what it writes; so nothing is
further apart than its references span. Other machines' objects, and relocations that are not known here, are linked by LLVM (`run/llvm_linker.py`).
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import struct

from ..pages import Memory
from . import elf, gdb

_PAGE = mmap.PAGESIZE
_JUMP = b"\xff\x25\0\0\0\0"  # jmp *(%rip), of the address behind it
#: R_X86_64_*
_64, _PC32, _GOT32, _PLT32, _GOTPCREL, _32, _32S, _PC64, _GOTPCRELX, _REX_GOTPCRELX = 1, 2, 3, 4, 9, 10, 11, 24, 41, 42
_FROM_TABLE = (_GOTPCREL, _GOTPCRELX, _REX_GOTPCRELX)


class Unknown(Exception):
    """An object that this linker does not take; LLVM's may."""


@functools.lru_cache(maxsize=1)
def _libraries() -> list:
    """Where outside functions are looked for: the process, libm, libc."""
    out = [ctypes.CDLL(None)]
    for name in ("libm.so.6", "libc.so.6"):
        try:
            out.append(ctypes.CDLL(name))
        except OSError:
            pass  # the process may have the symbols already; a kernel that lacks one says so when it is loaded
    return out


_given: dict[str, int] = {}


def give(name: str, address: int):
    """Let objects find `address` under `name`."""
    _given[name] = address


def address_of(name: str) -> int:
    """A symbol's address in this process; 0 where there is none."""
    if name in _given:
        return _given[name]
    for library in _libraries():
        try:
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        except AttributeError:
            pass
    return 0


@functools.lru_cache(maxsize=1)
def _unwinder():
    """GCC's, or None. It has to know the frames of what calls Python's functions: a daemon thread that asks for the GIL when the interpreter has ended
    leaves by way of `pthread_exit`, which unwinds its stack and ends the process where it cannot."""
    try:
        library = ctypes.CDLL("libgcc_s.so.1")
        library.__register_frame.argtypes = library.__deregister_frame.argtypes = [ctypes.c_void_p]
        library.__register_frame.restype = library.__deregister_frame.restype = None
        return library
    except (OSError, AttributeError):
        return None


class Linked:
    """An object in this process. symbols: name -> address of what it defines; code: where its code starts and ends; entry: `gdb.show`'s.
    It stays until `unload`, however few refer to it."""

    def __init__(self, memory: Memory, symbols: dict[str, int], frames: list[int], entry, code: tuple[int, int]):
        self.memory, self.symbols, self._frames, self.entry, self.code = memory, symbols, frames, entry, code

    def unload(self):
        """Give its memory back. Nothing may run in it, or call it afterwards; as `link`, one thread at a time (`launch.load_object` has a lock)."""
        gdb.take_back(self.entry)
        for frames in self._frames:
            getattr(_unwinder(), "__deregister_frame")(frames)
        self._frames = []
        self.memory.free()


class _Layout:
    """Where everything of an object goes, counted from the start of its memory. starts: of its sections; jumps: of those to functions that are elsewhere,
    by name; table: of the addresses of symbols, by number; code: the bytes that are not written; size: all of it."""

    def __init__(self, sections: list[elf.Section], outside, in_table):
        self.fixed = [s for s in sections if s.flags & elf.ALLOC and s.size and not s.flags & elf.WRITE]
        self.written = [s for s in sections if s.flags & elf.ALLOC and s.size and s.flags & elf.WRITE]
        if any(s.flags & elf.TLS for s in self.loaded):
            raise Unknown("thread-local data")
        if any(max(s.align, 1) > _PAGE for s in self.loaded):
            raise Unknown("sections that want more than a page's alignment")
        self.fixed.sort(key=lambda s: not s.flags & elf.EXEC)
        at, self.starts = 0, {}
        for s in self.fixed:
            self.starts[s.index] = at = _up(at, s.align)
            at += s.size + 4 * (s.name == ".eh_frame")  # what is read of frames ends with a length of 0
        at = _up(at, 16)
        self.jumps = {name: at + 16 * n for n, name in enumerate(outside)}
        at += 16 * len(self.jumps)
        self.table = {n: at + 8 * k for k, n in enumerate(in_table)}
        self.code = at = at + 8 * len(self.table)
        if self.written:
            at = _up(at, _PAGE)
            for s in self.written:
                self.starts[s.index] = at = _up(at, s.align)
                at += s.size
        self.size = at

    @property
    def loaded(self) -> list[elf.Section]:
        return [*self.fixed, *self.written]


def link(obj: bytes) -> Linked:
    """Link an x86-64 object of which every undefined symbol is to be found (`address_of`). Raises `Unknown`."""
    if obj[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<HH", obj, 16) != (1, 62):  # ET_REL, EM_X86_64
        raise Unknown("not an x86-64 object")
    symbols, relocations = elf.symbols(obj), elf.relocations(obj)
    outside = {s.name: address_of(s.name) for s in symbols if s.section == 0 and s.name}
    lay = _Layout(elf.sections(obj), outside, dict.fromkeys(r.symbol for r in relocations if r.kind in _FROM_TABLE))
    memory = Memory(max(lay.size, 1))
    base = memory.address
    try:
        image = bytearray(lay.size)
        for s in lay.loaded:
            if s.kind != elf.NOBITS:
                image[lay.starts[s.index]:lay.starts[s.index] + s.size] = obj[s.offset:s.offset + s.size]
        for name, where in lay.jumps.items():
            image[where:where + 14] = _JUMP + struct.pack("<Q", outside[name])
        values = [_value(s, lay.starts, base, outside) for s in symbols]
        for n, where in lay.table.items():
            struct.pack_into("<Q", image, where, _known(values[n], symbols[n]))
        for r in relocations:
            if r.target in lay.starts:
                _relocate(image, base, lay.starts[r.target] + r.offset, r, values, symbols, lay.jumps, lay.table)
        memory.fill(image, lay.code)
    except BaseException:
        memory.free()
        raise
    found = {s.name: values[n] for n, s in enumerate(symbols) if s.name and s.section and values[n] is not None and s.info & 15 != 4}
    frames = [base + lay.starts[s.index] for s in lay.fixed if s.name == ".eh_frame"] if _unwinder() else []
    for address in frames:
        _unwinder().__register_frame(address)
    entry = gdb.show(elf.placed(obj, {k: base + v for k, v in lay.starts.items()}))
    return Linked(memory, found, frames, entry, (base, base + lay.code))


def _up(at: int, align: int) -> int:
    return at + -at % max(align, 1)


def _value(s, starts, base, outside) -> int | None:
    """A symbol's address; None where it has none here."""
    if s.section == 0:
        return outside.get(s.name, 0) if s.name else 0
    if s.section == 0xfff1:  # SHN_ABS
        return s.value
    return base + starts[s.section] + s.value if s.section in starts else None


def _known(value: int | None, s) -> int:
    if value is None:
        raise Unknown(f"symbol {s.name!r} of section {s.section:#x}")
    return value


def _relocate(image, base, at, r, values, symbols, jumps, table):
    """Put what relocation `r` asks for at offset `at` of the image (System V ABI for AMD64, 4.4)."""
    s = symbols[r.symbol]
    value = _known(values[r.symbol], s)
    if r.kind == _64:
        struct.pack_into("<Q", image, at, (value + r.addend) % (1 << 64))
        return
    if r.kind == _PC64:
        struct.pack_into("<q", image, at, value + r.addend - base - at)
        return
    if r.kind in (_PC32, _PLT32) and s.section == 0 and s.name:  # a call: by way of a jump, from anywhere to anywhere
        value = base + jumps[s.name]
    elif r.kind in _FROM_TABLE:
        value = base + table[r.symbol]
    elif r.kind not in (_PC32, _PLT32, _32, _32S):
        raise Unknown(f"relocations of type {r.kind}")
    value += r.addend - (0 if r.kind in (_32, _32S) else base + at)
    if not (0 <= value < 1 << 32 if r.kind == _32 else -(1 << 31) <= value < 1 << 31):
        raise Unknown(f"symbol {s.name!r} is further away than a relocation of type {r.kind} spans")
    struct.pack_into("<I" if r.kind == _32 else "<i", image, at, value)
