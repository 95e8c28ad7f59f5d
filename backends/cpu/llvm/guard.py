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

from ..run import kept
from . import targets
from .targets import Target

_SIGNALS = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL)
_lock = threading.RLock()
_ONSTACK = 0x08000000  # SA_ONSTACK
_FLAGS = 136  # where sa_flags is in glibc's and musl's struct sigaction, behind the handler and a mask of 128 bytes

_IR = """
target triple = "{triple}"

@buffer = internal global [64 x i64] zeroinitializer, align 16 ; glibc's sigjmp_buf has 200 to 400 bytes
@owner = internal global i64 0

declare i32 @__sigsetjmp(ptr, i32) returns_twice
declare void @siglongjmp(ptr, i32) noreturn
declare i64 @pthread_self()
declare ptr @signal(i32, ptr)

; %fn of four words. %caught gets the number of the signal that ended it, if one did.
define i64 @tp_guarded(ptr %fn, ptr %words, ptr %caught) {{
  %self = call i64 @pthread_self()
  store volatile i64 %self, ptr @owner
  %signal = call i32 @__sigsetjmp(ptr @buffer, i32 1) returns_twice
  store volatile i32 %signal, ptr %caught
  %first = icmp eq i32 %signal, 0
  br i1 %first, label %go, label %out
go:
  %a = load i64, ptr %words
  %b.p = getelementptr i64, ptr %words, i64 1
  %b = load i64, ptr %b.p
  %c.p = getelementptr i64, ptr %words, i64 2
  %c = load i64, ptr %c.p
  %d.p = getelementptr i64, ptr %words, i64 3
  %d = load i64, ptr %d.p
  %value = call i64 %fn(i64 %a, i64 %b, i64 %c, i64 %d)
  br label %out
out:
  %result = phi i64 [ 0, %0 ], [ %value, %go ]
  store volatile i64 0, ptr @owner
  ret i64 %result
}}

; The handler. Another thread's signal is not ours: what happens by default happens when it returns.
define void @tp_caught(i32 %signal) {{
  %self = call i64 @pthread_self()
  %owner = load volatile i64, ptr @owner
  %ours = icmp eq i64 %self, %owner
  br i1 %ours, label %back, label %leave
back:
  call void @siglongjmp(ptr @buffer, i32 %signal)
  unreachable
leave:
  %before = call ptr @signal(i32 %signal, ptr null)
  ret void
}}
"""


class _Stack(ctypes.Structure):
    """stack_t of sigaltstack(2)."""

    _fields_ = [("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]


class Crashed(Exception):
    """The call ended in a signal, which the message names."""


def guard_ir(target: Target) -> str:
    """The guard's LLVM IR for a row."""
    return _IR.format(triple=target.triple)


@functools.lru_cache(maxsize=None)
def _guard():
    """(tp_guarded as a function, address of tp_caught, libc)."""
    from ..run import launch as runtime

    target = targets.native()
    at = runtime.load_object(kept.emitted("guard", guard_ir, target, far=True), ["tp_guarded", "tp_caught"])
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
