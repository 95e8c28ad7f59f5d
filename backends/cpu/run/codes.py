"""Where kernels' code lies, in memory that a signal's handler reads: `watch.CODE` one after the other, in blocks that stay."""

from __future__ import annotations

import ctypes
import threading
from typing import Callable

from ... import forks
from .watch import BLOCK, CODE, CODES

_CTYPES = {"i64": ctypes.c_uint64, "ptr": ctypes.c_void_p}


class Code(ctypes.Structure):
    """`watch.CODE`. A handler may look at any moment, at one that is being changed too: nothing lies between `start` and an `end` of 0."""

    _fields_ = [(name, _CTYPES[ty]) for name, ty in CODE.fields.items()]


class Block(ctypes.Structure):
    """`watch.BLOCK`."""

    _fields_ = [("next", ctypes.c_void_p), ("codes", Code * CODES)]


assert list(BLOCK.fields) == [name for name, _ in Block._fields_]

_lock = threading.Lock()
forks.hold(_lock, forks.CODES)
_blocks = [Block()]  # for good
_free = [*reversed(_blocks[0].codes)]
_announced: dict[tuple[int, str], list] = {}
_kept: dict[int, tuple] = {}  # address of a code's entry -> what it points to


def first() -> int:
    """The address of the first block."""
    return ctypes.addressof(_blocks[0])


def announce(name: str, arguments: list[tuple[str, str]]):
    """What the next kernel of that name that this thread loads takes: (name, type) of its packed arguments. Triton makes a kernel's launcher and
    loads the kernel then."""
    _announced[threading.get_ident(), name] = arguments


def add(name: str, linked) -> Callable[[], None]:
    """Enter a kernel's code (`link.Linked`). What it returns takes the entry out again."""
    with _lock:
        if not _free:
            block = Block()
            _free.extend(reversed(block.codes))
            _blocks[-1].next = ctypes.addressof(block)
            _blocks.append(block)
        code = _free.pop()
    takes = _announced.pop((threading.get_ident(), name), [])
    arguments = "".join(f"{label}\t{ty}\n" for label, ty in takes).encode()
    kept = (ctypes.create_string_buffer(name.encode()), ctypes.create_string_buffer(arguments), linked.entry)
    _kept[ctypes.addressof(code)] = kept
    code.label, code.arguments = map(ctypes.addressof, kept[:2])
    code.length, code.slots = len(arguments), len(takes)
    if linked.entry is not None:
        code.object, code.size = linked.entry.object, linked.entry.size
    code.start, code.end = linked.code

    def remove():
        code.end = code.start = code.object = code.size = 0
        del _kept[ctypes.addressof(code)]
        _free.append(code)

    return remove
