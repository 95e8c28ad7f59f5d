"""Python functions of native code, the tables of 8-byte words that they read, and what those say: facts that must hold, launches.

A table has addresses of Python objects among its words. It lives as long as the Python function that it was made for, which holds those objects and which
whoever reads the table holds.
"""

from __future__ import annotations

import ctypes
import gc
import struct
import sys
import threading
from types import ModuleType
from typing import Callable, NamedTuple

from . import kept, launch, link
from .python_ir import PYTHON, Fact
from ..llvm import targets
from ... import checking

#: does one lock keep an object from being dropped between being found and being held?
GIL = getattr(sys, "_is_gil_enabled", lambda: True)()
#: CPython's METH_FASTCALL and METH_KEYWORDS
FASTCALL, KEYWORDS = 0x80, 0x02
#: CPython 3.10 has the first in its headers only; the second does the same where it is given no keywords
_OLDER = {"PyObject_Vectorcall": "PyObject_VectorcallDict"}
#: may native code pass keywords on?
PASSES_KEYWORDS = hasattr(ctypes.pythonapi, "PyObject_Vectorcall")


class Method(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = [("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p)]


class Code(NamedTuple):
    """Native code: `write(target, *given)` is its LLVM IR, kept as `name`; methods: (symbol, name, flags, what it does) of each Python function in it."""

    name: str
    write: Callable[..., str]
    given: tuple
    methods: tuple[tuple[str, bytes, int, bytes], ...]


_lock = threading.Lock()
_made: dict[str, list[Method]] = {}  # for good: Python functions point into them


def methods(code: Code) -> list[Method]:
    """The code's Python functions, compiled on first use."""
    with _lock:
        if code.name not in _made:
            for name in PYTHON:
                found = getattr(ctypes.pythonapi, name, None) or getattr(ctypes.pythonapi, _OLDER[name])
                link.give(name, ctypes.cast(found, ctypes.c_void_p).value)
            at = launch.load_object(kept.emitted(code.name, code.write, targets.native(), *code.given), [symbol for symbol, *_ in code.methods])
            _made[code.name] = [Method(name, at[symbol], flags, doc) for symbol, name, flags, doc in code.methods]
        return _made[code.name]


_new = ctypes.pythonapi.PyCFunction_NewEx
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)


def function(method: Method, table, keep):
    """The method as a Python function that reads `table`; it holds `keep`."""
    return _new(ctypes.addressof(method), (ctypes.addressof(table), table, keep), None)


def table_of(words):
    """A table, of whole numbers."""
    return (ctypes.c_uint64 * len(words))(*words)


def packed(format: str, *values) -> list[bytes]:
    """The 8-byte words that `struct` makes of values."""
    data = struct.pack("<" + format, *values)
    return [data[k:k + 8] for k in range(0, len(data), 8)]


# --- launches ----------------------------------------------------------------------------------------------------------------


class Launch(NamedTuple):
    """A launch for a table. entry: the address of what does it; released: does it give up the GIL?; words: of each its bytes, or the number of a pointer."""

    entry: int
    released: bool
    words: list

    def row(self) -> list[int]:
        """Its words in a table (`python_ir.launched`)."""
        out = [self.released, self.entry, len(self.words)]
        for p in self.words:
            out += [0, int.from_bytes(p, "little")] if isinstance(p, bytes) else [1, p]
        return out


def launch_of(run, function, grid: tuple[int, int, int], args, threads: int, number: Callable[[int, object], int | None]) -> Launch | None:
    """A launch of a kernel by its launch function `run` on tensors and numbers; number(position, tensor): the number of a tensor's pointer. None where not
    all of it can be said."""
    import torch

    if run.slots is None:
        return None
    (x, y, z), pool, work = grid, launch.pool(), run.work(args)
    team = launch.team_of(x * y * z, work, threads)
    words = packed("8Q", function.address, x, y, z, run.scratch, team, *pool.openmp)
    for n, ty in run.slots:
        a = args[n]
        if isinstance(a, torch.Tensor):
            words.append(number(n, a))
            continue
        try:
            words += packed("H6x", launch.bf16_bits(a)) if ty == "bf16" else packed(launch.PACK[ty], a)
        except (OverflowError, struct.error, TypeError, KeyError):  # a launch makes something else of such a number
            return None
    return None if None in words else Launch(pool.address, team > 1 or not launch.brief(x * y * z, work), words)


# --- facts -------------------------------------------------------------------------------------------------------------------

#: what a fact has no use for
_UNUSED = object()


def empty_list(of: list):
    """The fact that a list is empty."""
    return (Fact.LISTED, of, _UNUSED, _UNUSED)


_checked: list[str] = []  # what every launch is checked for, if it is


def _note_checked(kinds: str):
    _checked[:] = [kinds] if kinds else []


checking.tell(_note_checked)


def unchecked():
    """The fact that no launch is checked."""
    return empty_list(_checked)


def returned(of, value):
    """The fact that `of()` is `value`."""
    return (Fact.RETURNED, of, _UNUSED, value)


def attribute(of, name: str, value):
    """The fact that an attribute is `value`. One that a module or a class has of its own is looked up in its dictionary, in half the time."""
    name, own = sys.intern(name), _dictionary(of)
    return (Fact.KEPT, own, name, value) if own.get(name) is value else (Fact.ATTRIBUTE, of, name, value)


def _dictionary(of) -> dict:
    """A module's, or that behind the view that `vars` gives of a class's; an empty one of anything else."""
    if isinstance(of, ModuleType):
        return vars(of)
    return next((d for d in gc.get_referents(vars(of)) if type(d) is dict), {}) if isinstance(of, type) else {}


def kept_there(of: dict, name: str, value):
    """The fact that a dictionary has `value` under a name."""
    return (Fact.KEPT, of, sys.intern(name), value)


def not_its_own(of, name: str):
    """The fact that an object has no attribute of its own that would hide its class's."""
    return (Fact.LACKED, vars(of), sys.intern(name), _UNUSED)


def fact_words(facts) -> list[int]:
    """Facts, in a table."""
    return [w for kind, *objects in facts for w in (kind, *(0 if it is _UNUSED else id(it) for it in objects))]
