"""A call of an op that was made before, in native code: recognised, and done as it was done then.

Two kinds of Python function made of native code (call_ir.py):

- a plan: takes tensors, allocates what the op allocated, launches the kernels it launched.
- a `Site`'s: the calls of one op that have a plan. It takes the op's arguments and answers with the result, or with None where
  it does not know the call or somebody watches. Parameters are compared by identity, which never takes True for 1
  (an equal number that is another object is merely not recognised), floats by their bits.

They read tables of 8-byte words, addresses of Python objects among them. A table lives as long as the Python object that it
was made for, which holds those objects and which whoever reads the table holds.
"""

from __future__ import annotations

import ctypes
import gc
import struct
import sys
import threading
from types import ModuleType

from ..cpu.run import kept, link
from ..cpu.llvm import targets
from .call_ir import Fact, PYTHON, _Site, call_ir

#: room for pointers (tensors, output, temporaries) and for the words of one launch (with two descriptions for a Tensor Memory Accelerator a GPU's takes some 80);
#: what needs more has no plan
POINTERS, WORDS = 16, 128
#: calls of one op that a site knows: each that is not meant costs 0.1 microseconds
KNOWN = 8
_NESTED = sys.intern("is_nested")


class _Method(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = [("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p)]


_FASTCALL = 0x80
#: CPython 3.10 has the first in its headers only; the second does the same where it is given no keywords, as here
_OLDER = {"PyObject_Vectorcall": "PyObject_VectorcallDict"}


_lock = threading.Lock()
_made: list[_Method] = []  # for good: Python functions point into them


def _methods() -> list[_Method]:
    """[plan, site], compiled on first use."""
    from ..cpu.run.launch import load_object

    with _lock:
        if not _made:
            target = targets.native()
            for name in PYTHON:
                found = getattr(ctypes.pythonapi, name, None) or getattr(ctypes.pythonapi, _OLDER[name])
                link.give(name, ctypes.cast(found, ctypes.c_void_p).value)
            at = load_object(kept.emitted("calls", call_ir, target, POINTERS, WORDS, KNOWN), ["tp_plan", "tp_site"])
            _made.extend((_Method(b"plan", at["tp_plan"], _FASTCALL, b"Launch again what an op launched."),
                          _Method(b"known", at["tp_site"], _FASTCALL, b"The result of a call that is known, else None.")))
        return _made


_new = ctypes.pythonapi.PyCFunction_NewEx
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)


def _callable(method: _Method, table, keep):
    """The method as a Python function that reads `table`; it holds `keep`."""
    return _new(ctypes.addressof(method), (ctypes.addressof(table), table, keep), None)


def _table(words):
    return (ctypes.c_uint64 * len(words))(*words)


_DATA_PTR = "data_ptr"
_GIL = getattr(sys, "_is_gil_enabled", lambda: True)()


def plan(alignments, allocations, launches, empty, fail, hold=(), stream=None, results=None):
    """A function of tensors that does `launches` and returns a new tensor, or a tuple of so many results; None where they are too large for a table.

    alignments: of each tensor, its address modulo 16; for any other the function does nothing and returns None.
    allocations: (function that the new tensor is shown to or None, sizes, strides, dtype), what is returned first, for
    `empty(sizes, strides, dtype)`. launches: (entry point, does it give up the GIL?, its words), a word being bytes or the
    number of a pointer: the tensors', then the new ones'. `fail(launch, status)` raises for a status other than 0. hold: what has to live as long
    as the plan, such as the functions whose addresses stand in the words. stream: (function, argument) that returns an int at every call, whose number
    follows the new tensors'."""
    if len(alignments) + len(allocations) + (stream is not None) > POINTERS or any(len(words) > WORDS for _, _, words in launches):
        return None
    # tensors, allocations, results or 0 for one that is no tuple, launches, empty, fail, "data_ptr", None, who is asked for the stream, with what, alignments;
    words = [len(alignments), len(allocations), results or 0, len(launches), id(empty), id(fail), id(_DATA_PTR), id(None), *map(id, stream or ()),
             *[0] * (0 if stream else 2), *alignments]
    for show, *like in allocations:  # advise, sizes, strides, dtype;
        words += [id(show) if show else 0, *map(id, like)]
    for entry, gil, parts in launches:  # releases the GIL, entry point, words; (is a pointer, value or number) each
        words += [gil, entry, len(parts)]
        for p in parts:
            words += [0, int.from_bytes(p, "little")] if isinstance(p, bytes) else [1, p]
    table = _table(words)
    return _callable(_methods()[0], table, (allocations, empty, fail, hold, stream))


def results_of(out) -> tuple:
    """What an op returned, one tensor or a tuple, as a tuple."""
    return out if isinstance(out, tuple) else (out,)


def numbered(tensors: tuple, out, temps: list) -> dict[int, int] | None:
    """Address -> number of the memory there: the tensors', then what is returned (empty tensors have a number and no memory), then temporaries. None where
    addresses do not tell, or there is no result."""
    outs = results_of(out)
    if not all(hasattr(t, "data_ptr") for t in outs) or not any(t.numel() for t in outs):
        return None
    of = [(t.data_ptr(), k) for k, t in enumerate((*tensors, *outs, *temps)) if k < len(tensors) or t.numel()]
    number = dict(of)
    return number if len(number) == len(of) else None


def packed(format: str, *values) -> list[bytes]:
    """The 8-byte words that `struct` makes of values."""
    data = struct.pack("<" + format, *values)
    return [data[k:k + 8] for k in range(0, len(data), 8)]


class Site:
    """The calls of one op that are known.

    call: takes the op's arguments, all of them, by position; the result, or None for a call that is not known. facts: what
    must be so for every one of them, as made by `empty_list`, `returned`, `attribute` and `not_its_own`. threads(): the number of threads, which a
    plan belongs to."""

    def __init__(self, facts, threads):
        self._facts, self._threads = facts, threads
        self._calls: list = []
        self._words = None
        self._missed = 0
        self._lock = threading.RLock()
        self.call = _unknown

    def learn(self, check, args: tuple, count: int, plan, ask=None):
        """From now on `plan` serves calls with these arguments whose first `count`, tensors, pass `check`. Where there are many, most
        that come go unlearnt: shapes without end would cost more to learn than is won. ask(): what the plan belongs to, in place of the threads; it is to
        return the very object again."""
        if not _GIL:  # nothing then keeps a call from being dropped between being found and being held
            return
        if len(self._calls) == KNOWN:
            self._missed += 1
            if self._missed % 64:
                return
        ask = ask or self._threads
        now = ask()
        # owner, tensors, check, threads(), their number, plan, parameters
        table = _table([0, count, id(check), id(ask), id(now), plan.__self__[0], *map(id, args[count:])])
        owner = (table, check, now, plan, args[count:], ask)
        table[0] = id(owner)
        with self._lock:
            self.swap([owner, *self._calls][:KNOWN])

    def swap(self, calls: list) -> list:
        """Know these calls instead; returns those known before."""
        with self._lock:
            before, self._calls = self._calls, calls
            if self._words is None:
                if not calls:
                    return before
                self._words = _table(self._head())
                self.call = _callable(_methods()[1], self._words, self._facts)
            self._words[0] = 0  # a thread that reads them meanwhile knows none
            for k, (table, *_) in enumerate(calls):
                self._words[_Site.CALLS + k] = ctypes.addressof(table)
            self._words[0] = len(calls)
            return before

    def _head(self):
        # known calls, None, True, float, "is_nested", facts, calls; the facts' words
        words = [0, id(None), id(True), id(float), id(_NESTED), len(self._facts), *[0] * KNOWN]
        for kind, *objects in self._facts:
            words += [kind, *(0 if it is _UNUSED else id(it) for it in objects)]
        return words


#: what a fact has no use for
_UNUSED = object()


def empty_list(of: list):
    """The fact that a list is empty."""
    return (Fact.LISTED, of, _UNUSED, _UNUSED)


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


def not_its_own(of, name: str):
    """The fact that an object has no attribute of its own that would hide its class's."""
    return (Fact.LACKED, vars(of), sys.intern(name), _UNUSED)


def _unknown(*args):
    return None
