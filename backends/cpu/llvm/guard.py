"""Calls into LLVM that cannot end the process.

LLVM answers what it did not foresee by abort(), by reading where nothing is, or by recursion without end. Here a call is made behind sigsetjmp; a handler
of SIGABRT, SIGSEGV, SIGBUS and SIGILL, in place for the length of the call and on a stack of its own, jumps back if it is the calling thread's. That is how LLVM's own CrashRecoveryContext works. What
the call was about is lost with it and must not be used or freed; LLVM's code generator holds no lock that would stay taken.
"""

from __future__ import annotations

import ctypes
import functools
import signal
import struct
import threading

from ... import forks
from ..run import kept, launch
from . import ir, targets
from .ir import Val
from .targets import Target

_SIGNALS = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL)
_lock = threading.RLock()
forks.hold(_lock, forks.GUARD)
_ONSTACK = 0x08000000  # SA_ONSTACK
_FLAGS = 136  # where sa_flags is in glibc's and musl's struct sigaction, behind the handler and a mask of 128 bytes


class _Stack(ctypes.Structure):
    """stack_t of sigaltstack(2)."""

    _fields_ = [("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]


class Crashed(Exception):
    """The call ended in a signal, which the message names."""


def guard_ir(target: Target) -> str:
    """The guard's LLVM IR for a row."""
    m = ir.Module("guard", target.triple, attributes="")
    m.variable("buffer", "[64 x i64] zeroinitializer", tail=", align 16")  # glibc's sigjmp_buf has 200 to 400 bytes
    m.variable("owner", "i64 0")
    m.declare("__sigsetjmp", "i32", ["ptr", "i32"], " returns_twice")
    m.declare("siglongjmp", "void", ["ptr", "i32"], " noreturn")
    _guarded(m)
    _caught(m)
    return m.render()


_BUFFER, _OWNER = Val("ptr", "@buffer"), Val("ptr", "@owner")


def _guarded(m: ir.Module):
    """A function of four words. `caught` gets the number of the signal that ended it, if one did."""
    b = ir.define(m, "tp_guarded", "i64", fn="ptr", words="ptr", caught="ptr")
    function, words, caught = b.fn.args
    b.store(b.call("pthread_self", "i64", []), _OWNER, volatile=True)
    signal = b.call("__sigsetjmp", "i32", [_BUFFER, ir.i32(1)])
    b.store(signal, caught, volatile=True)
    result = b.variable(ir.i64(0))
    with b.when(b.icmp("eq", signal, 0)):
        result.set(b.call(function, "i64", [b.load("i64", b.gep("i64", words, ir.i64(k))) for k in range(4)]))
    b.store(ir.i64(0), _OWNER, volatile=True)
    b.ret(result.get())


def _caught(m: ir.Module):
    """The handler. Another thread's signal is not ours: what happens by default happens when it returns."""
    b = ir.define(m, "tp_caught", "void", signal="i32")
    signal, = b.fn.args
    this = b.call("pthread_self", "i64", [])
    with b.when(b.icmp("eq", this, b.load("i64", _OWNER, volatile=True))):
        b.call("siglongjmp", "void", [_BUFFER, signal])
        b.unreachable()
    b.call("signal", "ptr", [signal, ir.NULL])
    b.ret()


@functools.lru_cache(maxsize=None)
def _guard():
    """(tp_guarded as a function, address of tp_caught, libc)."""
    target = targets.native()
    at = launch.load_object(kept.emitted("guard", guard_ir, target), ["tp_guarded", "tp_caught"])
    libc = ctypes.CDLL(None)
    pointer = ctypes.c_void_p
    return ctypes.CFUNCTYPE(ctypes.c_int64, pointer, pointer, pointer)(at["tp_guarded"]), at["tp_caught"], libc


def call(function: int, *words: int) -> int:
    """The result of a C function at address `function` of up to four integers or pointers. Raises `Crashed` where it ends in a signal."""
    guarded, handler, libc = _guard()
    given = (ctypes.c_uint64 * 4)(*words)
    caught = ctypes.c_int(0)
    with _lock:
        room = ctypes.create_string_buffer(1 << 16)
        stack, stack_before = _Stack(ctypes.addressof(room), 0, len(room)), _Stack()
        action = ctypes.create_string_buffer(512)  # struct sigaction has some 150 bytes
        struct.pack_into("<Q", action, 0, handler)
        struct.pack_into("<i", action, _FLAGS, _ONSTACK)
        before = {s: ctypes.create_string_buffer(512) for s in _SIGNALS}
        libc.sigaltstack(ctypes.byref(stack), ctypes.byref(stack_before))
        for s, old in before.items():
            libc.sigaction(int(s), action, old)
        try:
            result = guarded(function, ctypes.addressof(given), ctypes.addressof(caught))
        finally:
            for s, old in before.items():
                libc.sigaction(int(s), old, None)
            libc.sigaltstack(ctypes.byref(stack_before), None)
    if caught.value:
        raise Crashed(signal.Signals(caught.value).name)
    return result
