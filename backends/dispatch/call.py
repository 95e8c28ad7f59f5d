"""A call of an op that was made before, in native code: recognised, and done as it was done then.

Two kinds of Python function made of native code (call_ir.py):

- a plan: takes tensors, allocates what the op allocated, launches the kernels it launched.
- a `Site`'s: the calls of one op that have a plan. It takes the op's arguments and answers with the result, or with None where
  it does not know the call or somebody watches. Parameters are compared by identity, which never takes True for 1
  (an equal number that is another object is merely not recognised), floats by their bits.

They read tables of words (cpu/run/native.py), addresses of Python objects among them.
"""

from __future__ import annotations

import ctypes
import sys
import threading

from ..cpu.run import native
from ..cpu.run.native import Launch, fact_words, function, table_of
from .call_ir import _Site, call_ir

#: room for pointers (tensors, output, temporaries) and for the words of one launch (with two descriptions for a Tensor Memory Accelerator a GPU's takes some 80);
#: what needs more has no plan
POINTERS, WORDS = 16, 128
#: calls of one op that a site knows: each that is not meant costs 0.1 microseconds
KNOWN = 8
_NESTED = sys.intern("is_nested")


_CODE = native.Code("calls", call_ir, (POINTERS, WORDS, KNOWN), (
    ("tp_plan", b"plan", native.FASTCALL, b"Launch again what an op launched."),
    ("tp_site", b"known", native.FASTCALL, b"The result of a call that is known, else None.")))
_DATA_PTR = "data_ptr"


def plan(alignments, allocations, launches: list[Launch], empty, fail, hold=(), stream=None, results=None):
    """A function of tensors that does `launches` and returns a new tensor, or a tuple of so many results; None where they are too large for a table.

    alignments: of each tensor, its address modulo 16; for any other the function does nothing and returns None.
    allocations: (function that the new tensor is shown to or None, sizes, strides, dtype), what is returned first, for
    `empty(sizes, strides, dtype)`. launches: `native.Launch`es, whose pointers are the
    tensors', then the new ones'. `fail(launch, status)` raises for a status other than 0. hold: what has to live as long
    as the plan, such as the functions whose addresses stand in the words. stream: (function, argument) that returns an int at every call, whose number
    follows the new tensors'."""
    if len(alignments) + len(allocations) + (stream is not None) > POINTERS or any(len(it.words) > WORDS for it in launches):
        return None
    # tensors, allocations, results or 0 for one that is no tuple, launches, empty, fail, "data_ptr", None, who is asked for the stream, with what, alignments;
    words = [len(alignments), len(allocations), results or 0, len(launches), id(empty), id(fail), id(_DATA_PTR), id(None), *map(id, stream or ()),
             *[0] * (0 if stream else 2), *alignments]
    for show, *like in allocations:  # advise, sizes, strides, dtype;
        words += [id(show) if show else 0, *map(id, like)]
    for it in launches:
        words += it.row()
    return function(native.methods(_CODE)[0], table_of(words), (allocations, empty, fail, hold, stream))


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
        if not native.GIL:  # nothing then keeps a call from being dropped between being found and being held
            return
        if len(self._calls) == KNOWN:
            self._missed += 1
            if self._missed % 64:
                return
        ask = ask or self._threads
        now = ask()
        # owner, tensors, check, threads(), their number, plan, parameters
        table = table_of([0, count, id(check), id(ask), id(now), plan.__self__[0], *map(id, args[count:])])
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
                self._words = table_of(self._head())
                self.call = function(native.methods(_CODE)[1], self._words, self._facts)
            self._words[0] = 0  # a thread that reads them meanwhile knows none
            for k, (table, *_) in enumerate(calls):
                self._words[_Site.CALLS + k] = ctypes.addressof(table)
            self._words[0] = len(calls)
            return before

    def _head(self):
        # known calls, None, True, float, "is_nested", facts, calls; the facts' words
        words = [0, id(None), id(True), id(float), id(_NESTED), len(self._facts), *[0] * KNOWN]
        return words + fact_words(self._facts)


def _unknown(*args):
    return None
