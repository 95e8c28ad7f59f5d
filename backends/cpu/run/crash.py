"""A crash inside a kernel, in LLVM IR: the handler of SIGSEGV, SIGBUS and SIGFPE that has it reported before the process dies as it would have.

It does what a handler may. The thread's record (`watch.py`) says which programs of which launch it is in; what is known goes to a file in memory, with the
kernel's object, and a Python of its own reads it there (`crash_report.py`), finds the line and prints. Kernels keep no program's number: where the thread
had several programs before it, a copy of the process, which nobody sees and which may write nothing of ours, runs them once more one by one, and the
one in which it dies too is the one.

Then whoever had the signal before has it again, and the handler returns, so that the instruction faults once more, for them: faulthandler prints its traceback,
and the process dies of the signal. Where faulthandler came later it is first: it prints, gives the signal back and raises it, and what it was about is found
in its frame. A signal that means no kernel is passed on in silence.
"""

from __future__ import annotations

import ctypes
import os
import sys

from ..llvm.ir import NULL, Builder, Module, Struct, Val, define, i32, i64
from ..llvm.targets import Target
from . import settings
from .interrupt import SIGINFO, Action
from .job import JOB, RECORD
from .watch import CODE, WATCH, WORDS

SYMBOLS = ["tp_crashes", "tp_crash"]
SIGNALS = {"segv": 11, "bus": 7, "fpe": 8}  # the same on all targets
ONSTACK = 0x08000000  # SA_ONSTACK
#: argv, environment: of the Python that reports; number: in argv, where it finds the file's number; the rest: who had the signals before
CRASHES = Struct("crashes", argv="ptr", environment="ptr", number="ptr", **{name: "ptr" for name in SIGNALS})
#: what the file begins with; the kernel's name, its arguments' names, its packed arguments and its object follow. address: that was accessed; where: in the
#: code; inner: is that the place, or one that called a function in which it was?; first, last: the programs of the thread; program: -1 where it was not found
REPORT = Struct("report", **{f: "i64" for f in ("signal", "code", "address", "where", "inner", "first", "last", "program", "gx", "gy", "gz",
                                                "label", "arguments", "slots", "size")})
#: bytes of a stack that are looked through, and of that on which programs are run again; seconds for that, and for a report
_SCAN, _STACK, _LIMIT, _WAIT = 1 << 20, 1 << 23, 5, 60
_WORDS, _BUSY = Val("ptr", "@tp_crashes"), Val("ptr", "@crash.busy")
ANYWHERE = 128  # si_code SI_KERNEL: the processor does not say which address
_SHARED, _CHILD = 0x21, 17  # MAP_SHARED | MAP_ANONYMOUS, SIGCHLD


def add(m: Module, target: Target):
    """The handler."""
    m.globals += [s.line() for s in (CRASHES, REPORT)]
    m.variable("tp_crashes", f"{CRASHES.ty} zeroinitializer", "global")
    m.variable("crash.busy", "i32 0")
    _interrupted(m, target)
    _return_address(m)
    _run_again(m)
    _program(m)
    _told(m)
    _handler(m, target)


def _interrupted(m: Module, target: Target):
    """The context of the kernel that was interrupted: this one, or where faulthandler raised the signal again the one in its frame; null for none."""
    pc, sp, *_ = target.context
    b = define(m, "interrupted", "ptr", "internal", context="ptr", record="ptr", code="i32")
    context, record, code = b.fn.args
    with b.when(b.icmp("sgt", code, 0)):
        b.ret(context)
    top = b.address(record)
    stack, flags, size = (b.load(ty, b.gep("i8", context, i64(at))) for ty, at in (("i64", 16), ("i32", 24), ("i64", 32)))
    inside = b.icmp("ult", b.sub(b.address(context), stack), size)
    end = b.select(b.and_(inside, b.icmp("ne", b.and_(flags, 2), 2)), b.add(stack, size), top)
    at = b.variable(b.and_(b.load("i64", b.gep("i8", context, i64(sp))), -8))
    stop = b.intrinsic("umin", b.sub(end, sp + 512), b.add(at.get(), _SCAN))
    with b.loop_while(lambda: b.icmp("ult", at.get(), stop)) as turn:
        place = b.address(at.get(), "ptr")
        at.set(b.add(at.get(), 8))
        # its stack ends right below the record, and it was in a kernel
        turn.again(b.icmp("uge", b.sub(top, b.load("i64", b.gep("i8", place, i64(sp)))), _SCAN))
        turn.again(b.icmp("eq", b.call("code_of", "ptr", [b.load("i64", b.gep("i8", place, i64(pc)))]), NULL))
        b.ret(place)
    b.ret(NULL)


def _return_address(m: Module):
    """The place in a kernel from which the functions were called whose frames begin at `sp`, below a record; 0 for none."""
    b = define(m, "return_address", "i64", "internal", sp="i64", record="ptr")
    sp, record = b.fn.args
    top = b.address(record)
    at = b.variable(b.and_(sp, -8))
    with b.when(b.icmp("uge", b.sub(top, sp), _SCAN)):
        b.ret(i64(0))
    with b.loop_while(lambda: b.icmp("ult", at.get(), top)) as turn:
        word = b.load("i64", b.address(at.get(), "ptr"))
        at.set(b.add(at.get(), 8))
        turn.again(b.icmp("eq", b.call("code_of", "ptr", [word]), NULL))
        b.ret(b.sub(word, 1))
    b.ret(i64(0))


def _run_again(m: Module):
    """In a copy of the process: the record's programs one by one, whose numbers are noted before they run."""
    b = define(m, "run_again", "i32", "internal", given="ptr")
    note, record = b.load("ptr", b.gep("ptr", b.fn.args[0], i64(1))), b.load("ptr", b.fn.args[0])
    for number in (*SIGNALS.values(), 14):
        b.call("signal", "ptr", [i32(number), NULL])
    b.call("prctl", "i32 (i32, ...)", [i32(4), i64(0)])  # PR_SET_DUMPABLE: there is one core file, the process's
    b.call("close", "i32", [i32(1)])  # what it prints was printed
    b.call("alarm", "i32", [i32(_LIMIT)])
    job = b.get(RECORD, record, "job")
    function, args, gx, gy, gz = (b.get(JOB, job, f) for f in ("function", "args", "gx", "gy", "gz"))
    with b.loop(b.get(RECORD, record, "begin"), b.get(RECORD, record, "end")) as k:
        b.atomic_store(k, note)
        b.call(function, "i64", [args, b.get(RECORD, record, "scratch"), k, b.add(k, 1), gx, gy, gz])
    b.call("_exit", "void", [i32(0)])
    b.unreachable()


def _program(m: Module):
    """The program of a record that dies of a signal, -1 where none does."""
    b = define(m, "program", "i64", "internal", record="ptr", signal="i32")
    record, signal = b.fn.args
    first, last = (b.get(RECORD, record, f) for f in ("begin", "end"))
    with b.when(b.icmp("sle", b.sub(last, first), 1)):
        b.ret(first)
    size = _STACK + 4096
    note = b.call("mmap", "ptr", [NULL, i64(size), i32(3), i32(_SHARED), i32(-1), i64(0)])
    with b.when(b.icmp("eq", b.address(note), -1)):
        b.ret(i64(-1))
    given, status = b.alloca("[2 x ptr]", "given"), b.alloca("i32", "status")
    b.store(record, given)
    b.store(note, b.gep("ptr", given, i64(1)))
    b.store(i32(0), status)
    child = b.call("clone", "i32 (ptr, ptr, i32, ptr, ...)", [Val("ptr", "@run_again"), b.gep("i8", note, i64(size)), i32(_CHILD), given])
    with b.when(b.icmp("slt", child, 0)):
        b.ret(i64(-1))
    b.call("waitpid", "i32", [child, status, i32(0)])
    same = b.icmp("eq", b.and_(b.load("i32", status), 127), signal)
    b.ret(b.select(same, b.atomic_load("i64", note), i64(-1)))


def _told(m: Module):
    """Write the file, have it read, and wait. 0 where that went well."""
    b = define(m, "told", "i32", "internal", report="ptr", code="ptr", record="ptr")
    report, code, record = b.fn.args
    file = b.call("memfd_create", "i32", [m.string("crash"), i32(0)])
    with b.when(b.icmp("slt", file, 0)):
        b.ret(i32(1))
    size = b.variable(i64(8 * len(REPORT.fields)))
    b.call("write", "i64", [file, report, size.get()])
    for field, start in (("label", "label"), ("arguments", "arguments")):
        b.call("write", "i64", [file, b.get(CODE, code, start), b.get(REPORT, report, field)])
    with b.when(b.icmp("ne", b.get(REPORT, report, "slots"), 0)):
        args = b.get(JOB, b.get(RECORD, record, "job"), "args")
        b.call("write", "i64", [file, args, b.mul(b.get(REPORT, report, "slots"), 8)])
    b.call("write", "i64", [file, b.get(CODE, code, "object"), b.get(REPORT, report, "size")])
    b.call("lseek", "i64", [file, i64(0), i32(0)])
    child, status = b.alloca("i32", "child"), b.alloca("i32", "status")
    b.store(i32(1), status)
    argv = b.get(CRASHES, _WORDS, "argv")
    b.call("snprintf", "i32 (ptr, i64, ptr, ...)", [b.get(CRASHES, _WORDS, "number"), i64(16), m.string("%d"), file])
    path = b.load("ptr", argv)
    failed = b.call("posix_spawn", "i32", [child, path, NULL, NULL, argv, b.get(CRASHES, _WORDS, "environment")])
    with b.when(b.icmp("ne", failed, 0)):
        b.ret(i32(1))
    b.call("waitpid", "i32", [b.load("i32", child), status, i32(0)])
    b.ret(b.load("i32", status))


def _handler(m: Module, target: Target):
    pc, sp, address_at, *no_address = target.context
    b = define(m, "tp_crash", "void", signal="i32", info="ptr", context="ptr")
    signal, info, context = b.fn.args
    code = b.load("i32", b.gep("i8", info, i64(8)))  # si_code: 0 and less where somebody sent it
    record = b.call("pthread_getspecific", "ptr", [b.get(WATCH, WORDS, "key")])
    with b.when(b.icmp("ne", record, NULL)), b.when(b.icmp("ne", b.get(RECORD, record, "jump"), NULL)):
        kernel = b.call("interrupted", "ptr", [context, record, code])
        with b.when(b.icmp("ne", kernel, NULL)):
            its, address = b.variable(code), b.variable(b.load("i64", b.gep("i8", info, i64(16))))
            with b.when(b.icmp("sle", code, 0)):  # no siginfo_t is written for a handler that does not ask for it
                address.set(b.load("i64", b.gep("i8", kernel, i64(address_at))))
                if no_address:
                    place, number = no_address
                    none = b.icmp("eq", b.load("i64", b.gep("i8", kernel, i64(place))), number)
                    its.set(b.select(none, i32(ANYWHERE), i32(0)))
            where, inner = b.variable(b.load("i64", b.gep("i8", kernel, i64(pc)))), b.variable(i64(1))
            with b.when(b.icmp("eq", b.call("code_of", "ptr", [where.get()]), NULL)):
                where.set(b.call("return_address", "i64", [b.load("i64", b.gep("i8", kernel, i64(sp))), record]))
                inner.set(i64(0))
            found = b.call("code_of", "ptr", [where.get()])
            with b.when(b.icmp("ne", found, NULL)):
                with b.either(b.taken(_BUSY)) as (first, other):
                    with first:
                        _report(b, m, signal, its.get(), address.get(), where.get(), inner.get(), found, record)
                    with other:  # the process ends meanwhile
                        b.call("sleep", "i32", [i32(_WAIT)])
    before = b.variable(b.get(CRASHES, _WORDS, "segv"))
    for name in ("bus", "fpe"):
        with b.when(b.icmp("eq", signal, SIGNALS[name])):
            before.set(b.get(CRASHES, _WORDS, name))
    b.call("sigaction", "i32", [signal, before.get(), NULL])
    with b.when(b.icmp("sle", code, 0)):  # nothing will fault again
        b.call("pthread_kill", "i32", [b.call("pthread_self", "i64", []), signal])
    b.ret()


def _report(b: Builder, m: Module, signal: Val, number: Val, address: Val, where: Val, inner: Val, code: Val, record: Val):
    """Have what a thread met reported; where that fails, say as much as there is."""
    report, job = b.alloca(REPORT.ty, "report"), b.get(RECORD, record, "job")
    grid = {g: b.cast("zext", b.get(JOB, job, g), "i64") for g in ("gx", "gy", "gz")}
    fields = dict(signal=b.cast("zext", signal, "i64"), code=b.cast("sext", number, "i64"), address=address, where=where, inner=inner,
                  first=b.get(RECORD, record, "begin"), last=b.get(RECORD, record, "end"), program=b.call("program", "i64", [record, signal]), **grid,
                  label=b.call("strlen", "i64", [b.get(CODE, code, "label")]), arguments=b.get(CODE, code, "length"), slots=b.get(CODE, code, "slots"),
                  size=b.get(CODE, code, "size"))
    for field, v in fields.items():
        b.put(REPORT, report, field, v)
    with b.when(b.icmp("ne", b.call("told", "i32", [report, code, record]), 0)):
        for text in (m.string("triton-cpu: kernel "), b.get(CODE, code, "label"), m.string(" crashed; run again with TRITON_CPU_CHECK=bounds\n")):
            b.call("write", "i64", [i32(2), text, b.call("strlen", "i64", [text])])


# --- in this process ---------------------------------------------------------------------------------------------------------


class _Crashes(ctypes.Structure):
    """`CRASHES`."""

    _fields_ = [(name, ctypes.c_void_p) for name in CRASHES.fields]


_CODE = ("import sys, types; p = types.ModuleType('run'); p.__path__ = [sys.argv[1]]; sys.modules['run'] = p; from run import crash_report; "
         "crash_report.main(int(sys.argv[2]))")


def _strings(values: list[bytes]):
    return (ctypes.c_char_p * (len(values) + 1))(*values, None)


class Handler:
    """Has crashes in kernels reported, unless TRIPORT_CRASH_REPORT=0. addresses: of `SYMBOLS`."""

    def __init__(self, addresses: dict[str, int]):
        if settings.get("CRASH_REPORT", "1") == "0":
            return
        words = _Crashes.from_address(addresses["tp_crashes"])
        number = ctypes.create_string_buffer(16)
        argv = (ctypes.c_char_p * 8)(os.fsencode(sys.executable or ""), b"-I", b"-S", b"-c", _CODE.encode(), os.fsencode(os.path.dirname(__file__)))
        ctypes.cast(argv, ctypes.POINTER(ctypes.c_void_p))[6] = ctypes.addressof(number)
        environment = _strings([k + b"=" + v for k, v in os.environb.items()])
        words.argv, words.environment, words.number = (ctypes.addressof(x) for x in (argv, environment, number))
        self._kept = [argv, environment, number]  # a handler may read them until the process ends
        libc = ctypes.CDLL(None)
        for name, signal in SIGNALS.items():
            before = Action()
            setattr(words, name, ctypes.addressof(before))
            self._kept.append(before)
            action = Action(handler=addresses["tp_crash"], flags=SIGINFO | ONSTACK)
            libc.sigaction(signal, ctypes.byref(action), ctypes.byref(before))
