"""What `watch.py` needs of this process: Python's functions, its main thread, and a signal that nobody else uses.

TRIPORT_INTERRUPT=0 leaves launches alone: signals then wait until they are over.
"""

from __future__ import annotations

import ctypes
import signal
import threading

from . import codes, settings
from .watch import WATCH

SYMBOLS = ["tp_watch", "tp_kick"]
_CTYPES = {"i32": ctypes.c_int32, "i64": ctypes.c_uint64, "ptr": ctypes.c_void_p, "[3 x ptr]": ctypes.c_void_p * 3}
_PYTHON = {"ensure": "PyGILState_Ensure", "release": "PyGILState_Release", "check": "PyErr_CheckSignals", "fetch": "PyErr_Fetch"}
SIGINFO, RESTART, NODEFER = 4, 0x10000000, 0x40000000  # SA_*


class _Watch(ctypes.Structure):
    """`watch.WATCH`."""

    _fields_ = [(name, _CTYPES[ty]) for name, ty in WATCH.fields.items()]


class Action(ctypes.Structure):
    """struct sigaction of glibc and musl."""

    _fields_ = [("handler", ctypes.c_void_p), ("mask", ctypes.c_uint64 * 16), ("flags", ctypes.c_int), ("restorer", ctypes.c_void_p)]


def action_of(number: int) -> Action:
    """What happens on a signal."""
    found = Action()
    ctypes.CDLL(None).sigaction(number, None, ctypes.byref(found))
    return found


def _unused() -> int | None:
    """A signal for which nobody has a handler: SIGURG, which is ignored by default and which debuggers do not stop at, or a real-time signal."""
    return next((n for n in (signal.SIGURG, *range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1)) if not action_of(n).handler), None)


class Watch:
    """The watch over this process's launches. addresses: of `SYMBOLS`."""

    def __init__(self, addresses: dict[str, int]):
        self._words = w = _Watch.from_address(addresses["tp_watch"])
        for field, name in _PYTHON.items():
            setattr(w, field, ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value)
        w.codes = codes.first()
        self._restore = ctypes.pythonapi.PyErr_Restore
        self._restore.argtypes, self._restore.restype = [ctypes.c_void_p] * 3, None
        key = ctypes.c_uint32()
        if not ctypes.CDLL(None).pthread_key_create(ctypes.byref(key), None):
            w.key = key.value
        self._signal = _unused() if settings.get("INTERRUPT", "1") != "0" and w.key >= 0 else None
        if self._signal:
            action = Action(handler=addresses["tp_kick"], flags=SIGINFO | RESTART | NODEFER)
            ctypes.CDLL(None).sigaction(self._signal, ctypes.byref(action), None)
            w.signal, w.main = self._signal, threading.main_thread().ident

    def forked(self):
        """In a forked child the thread that forked is Python's main thread."""
        if self._signal:
            self._words.main = threading.get_ident()

    def raise_exception(self):
        """Raise what a signal's handler raised."""
        error = list(self._words.exception)
        self._words.exception[:] = [None] * 3
        self._restore(*error)  # which ctypes finds set, and raises
