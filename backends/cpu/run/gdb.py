"""Showing linked code to debuggers through GDB's JIT interface (GDB's manual, "JIT Compilation Interface").

A debugger looks in the process's files for a function `__jit_debug_register_code`, at which it stops, and for `__jit_debug_descriptor`, which leads to
the object files of linked code. Here both are in a shared library of two symbols that is made on the spot, in memory: there is no C compiler to count
on, and LLVM, which has such a pair, need not be loaded. Where it cannot be had (no /proc, a system that forbids it) kernels run unseen.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import platform
import struct

_PAGE = mmap.PAGESIZE
#: machine -> ELF's number and flags for it, its instruction `ret`
_MACHINES = {"x86_64": (62, 0, b"\xc3"), "aarch64": (183, 0, b"\xc0\x03\x5f\xd6"), "riscv64": (243, 4, b"\x67\x80\0\0")}  # 4: floats in registers


class _Entry(ctypes.Structure):
    """GDB's jit_code_entry."""


_Entry._fields_ = [("next", ctypes.POINTER(_Entry)), ("previous", ctypes.POINTER(_Entry)), ("object", ctypes.c_void_p), ("size", ctypes.c_uint64)]


class _Descriptor(ctypes.Structure):
    """GDB's jit_descriptor. action: 0 none, 1 a new entry, 2 one that goes."""

    _fields_ = [("version", ctypes.c_uint32), ("action", ctypes.c_uint32), ("relevant", ctypes.POINTER(_Entry)), ("first", ctypes.POINTER(_Entry))]


def library(machine: str) -> bytes:
    """A shared library for a machine: a function that does nothing and 24 bytes that say version 1, under GDB's names."""
    number, flags_of_all, ret = _MACHINES[machine]
    names = b"\0__jit_debug_register_code\0__jit_debug_descriptor\0triport-gdb.so\0"
    hashes = struct.pack("<6I", 1, 3, 1, 0, 2, 0)  # one bucket with symbols 1 and 2
    at = 64 + 4 * 56
    parts = {}  # section -> (offset, size)

    def put(data, name, size):
        data += bytes(-len(data) % 16)
        parts[name] = (len(data), size)
        return data

    image = put(bytes(at), "hash", len(hashes)) + hashes
    image = put(image, "dynsym", 72)
    symbols_at = len(image)
    image = put(image + bytes(72), "dynstr", len(names)) + names
    image = put(image, "text", len(ret)) + ret
    fixed = len(image)
    image += bytes(-len(image) % _PAGE)
    dynamic = [(4, parts["hash"][0]), (5, parts["dynstr"][0]), (6, symbols_at), (10, len(names)), (11, 24), (14, names.index(b"triport")), (0, 0)]
    image = put(image, "dynamic", 16 * len(dynamic)) + b"".join(struct.pack("<QQ", *d) for d in dynamic)
    image = put(image, "data", ctypes.sizeof(_Descriptor)) + bytes(_Descriptor(version=1))
    end = len(image)
    kinds = {"hash": (5, 2), "dynsym": (11, 2), "dynstr": (3, 2), "text": (1, 6), "dynamic": (6, 3), "data": (1, 3)}  # type, flags
    order = {name: n + 1 for n, name in enumerate(kinds)}
    labels = b"\0" + b"".join(f".{n}\0".encode() for n in kinds) + b".shstrtab\0"
    labels_at = len(image)
    image += labels
    image += bytes(-len(image) % 16)
    headers = [bytes(64)]
    for name, (kind, flags) in kinds.items():
        where, size = parts[name]
        link = order["dynstr"] if name in ("dynsym", "dynamic") else order["dynsym"] if name == "hash" else 0
        entry = {"hash": 4, "dynsym": 24, "dynamic": 16}.get(name, 0)
        headers.append(struct.pack("<IIQQQQIIQQ", labels.index(f".{name}\0".encode()), kind, flags, where, where, size, link, int(name == "dynsym"), 16, entry))
    headers.append(struct.pack("<IIQQQQIIQQ", labels.index(b".shstrtab"), 3, 0, 0, labels_at, len(labels), 0, 0, 1, 0))
    out = bytearray(image + b"".join(headers))
    struct.pack_into("<4sBBBB8xHHIQQQIHHHHHH", out, 0, b"\x7fELF", 2, 1, 1, 0, 3, number, 1, 0, 64, len(image), flags_of_all, 64, 56, 4, 64,
                     len(headers), len(headers) - 1)
    low, (high, length) = 0, parts["dynamic"]
    for n, (kind, flags, where, size, align) in enumerate((
            (1, 5, low, fixed, _PAGE), (1, 6, high, end - high, _PAGE), (2, 6, high, length, 8), (0x6474e551, 6, 0, 0, 16))):  # PT_LOAD x2, PT_DYNAMIC, PT_GNU_STACK
        struct.pack_into("<IIQQQQQQ", out, 64 + 56 * n, kind, flags, where, where, where, size, size, align)
    for n, (name, kind, part) in enumerate((("__jit_debug_register_code", 2, "text"), ("__jit_debug_descriptor", 1, "data"))):
        struct.pack_into("<IBBHQQ", out, symbols_at + 24 * (n + 1), names.index(name.encode()), 1 << 4 | kind, 0, order[part], *parts[part])
    return bytes(out)


@functools.lru_cache(maxsize=1)
def interface():
    """(descriptor, function), or None where there is none."""
    try:
        fd = os.memfd_create("triport-gdb", os.MFD_CLOEXEC)
        written = library(platform.machine())
        if os.write(fd, written) != len(written):  # as where files may not be that long: what is loaded then ends in the middle
            return None
        # A debugger, another process, opens it by the same name, so it stays open.
        loaded = ctypes.CDLL(f"/proc/{os.getpid()}/fd/{fd}")
        return _Descriptor.in_dll(loaded, "__jit_debug_descriptor"), ctypes.CFUNCTYPE(None)(("__jit_debug_register_code", loaded))
    except (OSError, AttributeError, ValueError, KeyError):
        return None


def show(obj: bytes):
    """Tell debuggers of an object file whose sections carry the addresses at which they lie; what it returns is for `take_back`."""
    found = interface()
    if found is None:
        return None
    descriptor, tell = found
    kept = ctypes.create_string_buffer(obj, len(obj))
    entry = _Entry(object=ctypes.addressof(kept), size=len(obj))
    entry.kept = kept
    first = descriptor.first
    if first:
        entry.next = first
        first.contents.previous = ctypes.pointer(entry)
    descriptor.first = descriptor.relevant = ctypes.pointer(entry)
    descriptor.action = 1
    tell()
    descriptor.action = 0
    return entry


def shown() -> list[bytes]:
    """The object files that a debugger finds in this process, the newest first."""
    out, entry = [], found[0].first if (found := interface()) else None
    while entry:
        out.append(ctypes.string_at(entry.contents.object, entry.contents.size))
        entry = entry.contents.next
    return out


def take_back(entry):
    """Tell debuggers that an object shown before is gone."""
    found = interface()
    if entry is None or found is None:
        return
    descriptor, tell = found
    if entry.previous:
        entry.previous.contents.next = entry.next
    else:
        descriptor.first = entry.next
    if entry.next:
        entry.next.contents.previous = entry.previous
    descriptor.relevant = ctypes.pointer(entry)
    descriptor.action = 2
    tell()
    descriptor.action = 0
    descriptor.relevant = None
