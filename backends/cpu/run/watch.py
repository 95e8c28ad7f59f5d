"""Launches under watch, in LLVM IR: what lets signals reach a kernel that runs, and says of a thread which programs it is in.

Python's signal handlers run between instructions of Python, and a launch is one. So while a launch of Python's main thread goes on for long, a thread
of ours (`monitor`) sends that thread a signal of ours every `TICK`; its handler (`tp_kick`), which interrupts the kernel, lets Python run the handlers of
signals that came meanwhile (PyErr_CheckSignals), as it would between two instructions. Where they return the kernel goes on as if nothing had been;
where one raises, as that of Ctrl-C does, the launch ends: no more programs are taken, and the threads that are in programs leave them by longjmp. Nobody's
signal handler is replaced for it, so it does not matter who installs which, or when.

Only a thread that is in a kernel's own code is interrupted: that holds no lock and owns nothing. Whoever is in a function of the C library at a tick is
met at a later one.
"""

from __future__ import annotations

from ..llvm.ir import FALSE, NULL, TRUE, Builder, Module, Struct, Val, define, i32, i64
from ..llvm.targets import Target
from . import job as jobs
from .job import JOB, RECORD

#: nanoseconds between looks at what runs (a launch that is met twice is a long one), and after one that found a thread where it may not be interrupted;
#: ticks without a launch after which the monitor sleeps
TICK, SOON, QUIET = 100_000_000, 3_000_000, 20
_AWAKE, _ASLEEP, _ABSENT = range(3)  # states of the monitor
_WAIT, _WAKE = 128, 129  # futex operations, private to the process
_BLOCK = 0  # SIG_BLOCK
_SETMASK = 2
#: key: of each thread's record, -1 where nothing is to be watched; signal: ours; main: pthread_self() of Python's main thread, 0 where signals are to wait;
#: codes: the first `BLOCK` of loaded kernels; ensure, release, check, fetch: CPython's functions of GIL and exceptions; exception: what was raised
WATCH = Struct("watch", key="i32", signal="i32", main="i64", codes="ptr", ensure="ptr", release="ptr", check="ptr", fetch="ptr", exception="[3 x ptr]")
#: code of a loaded kernel: from start on, up to end; label: its name; object, size: its object file with the addresses of its sections, as debuggers
#: see it; arguments, length: names and types of its packed arguments, a line each; slots: how many
CODE = Struct("code", start="i64", end="i64", label="ptr", object="ptr", size="i64", arguments="ptr", length="i64", slots="i64")
CODES = 256
BLOCK = Struct("block", next="ptr", codes=f"[{CODES} x {CODE.ty}]")
#: the `WATCH` of a process, and what only this module knows
WORDS, _JOB, _COUNT, _MONITOR, _MISSED = (Val("ptr", f"@{name}") for name in ("tp_watch", *(f"watch.{n}" for n in ("job", "count", "monitor", "missed"))))


def add(m: Module, target: Target):
    """@watched, @begun, the monitor and the handler."""
    m.globals += [s.line() for s in (RECORD, WATCH, CODE, BLOCK)]
    m.variable("tp_watch", f"{WATCH.ty} {{ i32 -1, i32 0, i64 0, ptr null, ptr null, ptr null, ptr null, ptr null, [3 x ptr] zeroinitializer }}", "global")
    m.variable("watch.job", "ptr null", tail=", align 64")  # the main thread's, if it launches one
    m.variable("watch.count", "i64 0")  # of its launches
    m.variable("watch.monitor", f"i32 {_ABSENT}", tail=", align 64")
    m.variable("watch.missed", "i32 0")  # was a thread met where it may not be interrupted?
    m.declare("_setjmp", "i32", ["ptr"], " returns_twice")
    m.declare("_longjmp", "void", ["ptr", "i32"], " noreturn")
    _begun(m)
    _watched(m)
    _monitor(m, target)
    _wake(m, target)
    _code_of(m)
    _others(m)
    _main_kicked(m)
    _kick(m, target)


def _is_main(b: Builder) -> Val:
    return b.icmp("eq", b.call("pthread_self", "i64", []), b.get(WATCH, WORDS, "main"))


def _begun(m: Module):
    """A job is ready: the main thread's is the one to be met."""
    b = define(m, "begun", "void", "internal", job="ptr")
    with b.when(_is_main(b)):
        b.atomic_store(b.address(b.fn.args[0]), _JOB)
    b.ret()


def call(m: Module, linkage: str):
    """@tp_call: @call, and of the main thread's launches it is known that they run."""
    b = define(m, "tp_call", "i64", linkage, p="ptr")
    packed = b.fn.args
    with b.when(b.not_(_is_main(b))):
        b.ret(b.call("call", "i64", packed))
    before = b.atomic_load("i64", _JOB)  # a launch by a signal's handler, within another
    b.atomic_store(b.add(b.load("i64", _COUNT), 1), _COUNT)
    with b.when(b.icmp("ne", b.atomic_load("i32", _MONITOR), _AWAKE)):
        b.call("wake", "void", [])
    status = b.call("call", "i64", packed)
    b.atomic_store(before, _JOB)
    b.ret(status)


def forget(b: Builder):
    """In a forked child there is no monitor, and no launch."""
    b.store(i32(_ABSENT), _MONITOR)
    b.store(i64(0), _JOB)


def _watched(m: Module):
    """@work, of which this thread has a record."""
    b = define(m, "watched", "i1", "internal", job="ptr", t="i32", scratch="ptr", deadline="i64")
    job, t, scratch, deadline = b.fn.args
    record = b.alloca(RECORD.ty, "record", 16)
    key = b.get(WATCH, WORDS, "key")
    with b.when(b.icmp("slt", key, 0)):
        b.ret(b.call("work", "i1", [*b.fn.args, record]))
    buffer = b.field(RECORD, record, "buffer")
    for field, v in dict(previous=b.call("pthread_getspecific", "ptr", [key]), job=job, jump=NULL, begin=i64(0), end=i64(0), scratch=scratch, all=i64(1)).items():
        b.put(RECORD, record, field, v)
    b.atomic_store(b.call("pthread_self", "i64", []), jobs.thread(b, job, t))
    b.call("pthread_setspecific", "i32", [key, record])
    with b.when(b.icmp("eq", b.call("_setjmp", "i32", [buffer]), 0)):
        b.put(RECORD, record, "jump", buffer)
        b.put(RECORD, record, "all", b.cast("zext", b.call("work", "i1", [job, t, scratch, deadline, record]), "i64"))
    b.put(RECORD, record, "jump", NULL)
    b.call("pthread_setspecific", "i32", [b.get(WATCH, WORDS, "key"), b.get(RECORD, record, "previous")])
    b.atomic_store(i64(0), jobs.thread(b, job, t), "release")
    b.ret(b.icmp("ne", b.get(RECORD, record, "all"), 0))


# --- the monitor -------------------------------------------------------------------------------------------------------------


def _monitor(m: Module, target: Target):
    """A thread that sends the main thread our signal at every tick of a long launch. Where there are no launches it sleeps."""
    b = define(m, "monitor", "ptr", "internal", arg="ptr")
    tick = b.alloca("[2 x i64]", "tick")  # a timespec
    b.store(i64(0), tick)
    last, quiet = b.variable(i64(0)), b.variable(i32(0))
    with b.forever() as turn:
        missed = b.icmp("ne", b.atomic("xchg", _MISSED, i32(0)), 0)
        b.store(b.select(missed, i64(SOON), i64(TICK)), b.gep("i64", tick, i64(1)))
        b.call("nanosleep", "i32", [tick, NULL])
        count, job = b.atomic_load("i64", _COUNT), b.atomic_load("i64", _JOB)
        same, none = b.icmp("eq", count, last.get()), b.icmp("eq", job, 0)
        last.set(count)
        with b.when(b.and_(same, b.not_(none))):
            quiet.set(i32(0))
            b.call("pthread_kill", "i32", [b.get(WATCH, WORDS, "main"), b.get(WATCH, WORDS, "signal")])
            turn.again()
        quiet.set(b.select(b.and_(same, none), b.add(quiet.get(), 1), i32(0)))
        with b.when(b.icmp("eq", quiet.get(), QUIET)):
            b.atomic_store(i32(_ASLEEP), _MONITOR, "seq_cst")
            b.call("nanosleep", "i32", [tick, NULL])  # who did not see that has been seen after it
            with b.when(b.icmp("eq", b.atomic_load("i64", _COUNT, "seq_cst"), count)), b.repeat() as asleep:
                b.call("syscall", "i64 (i64, ...)", [i64(target.futex), _MONITOR, i32(_WAIT), i32(_ASLEEP), NULL])
                asleep.until(b.icmp("ne", b.atomic_load("i32", _MONITOR), _ASLEEP))
            b.atomic_store(i32(_AWAKE), _MONITOR)
            quiet.set(i32(0))


def _wake(m: Module, target: Target):
    """Have the monitor awake. It gets no signals: those of the process are other threads'."""
    b = define(m, "wake", "void", "internal")
    state = b.atomic("xchg", _MONITOR, i32(_AWAKE), "seq_cst")
    with b.when(b.icmp("eq", state, _ASLEEP)):
        b.call("syscall", "i64 (i64, ...)", [i64(target.futex), _MONITOR, i32(_WAKE), i32(1)])
    with b.when(b.icmp("eq", state, _ABSENT)):
        thread, every, before = b.alloca("i64", "thread"), b.alloca("[16 x i64]", "every"), b.alloca("[16 x i64]", "before")
        b.call("sigfillset", "i32", [every])
        b.call("pthread_sigmask", "i32", [i32(_BLOCK), every, before])
        with b.when(b.icmp("eq", b.call("pthread_create", "i32", [thread, NULL, Val("ptr", "@monitor"), NULL]), 0)):
            b.call("pthread_detach", "i32", [b.load("i64", thread)])
        b.call("pthread_sigmask", "i32", [i32(_SETMASK), before, NULL])
    b.ret()


# --- the handler -------------------------------------------------------------------------------------------------------------


def _code_of(m: Module):
    """The `CODE` in which an address lies, or null."""
    b = define(m, "code_of", "ptr", "internal", pc="i64")
    pc, = b.fn.args
    block = b.variable(b.get(WATCH, WORDS, "codes"))
    with b.loop_while(lambda: b.icmp("ne", block.get(), NULL)):
        with b.loop(i32(0), i32(CODES)) as k:
            code = b.field(BLOCK, block.get(), "codes", k)
            start, end = (b.atomic_load("i64", b.field(CODE, code, f)) for f in ("start", "end"))
            with b.when(b.and_(b.icmp("uge", pc, start), b.icmp("ult", pc, end))):
                b.ret(code)
        block.set(b.get(BLOCK, block.get(), "next"))
    b.ret(NULL)


def in_kernel(b: Builder, target: Target, context: Val) -> Val:
    """Is what a signal interrupted a kernel's own code?"""
    return b.icmp("ne", b.call("code_of", "ptr", [b.load("i64", b.gep("i8", context, i64(target.context[0])))]), NULL)


def _others(m: Module):
    """How many other threads are in programs of a job? Where it is to stop each gets our signal."""
    b = define(m, "others", "i32", "internal", job="ptr")
    job, = b.fn.args
    this, found = b.call("pthread_self", "i64", []), b.variable(i32(0))
    stop = b.icmp("ne", b.atomic_load("i32", b.field(JOB, job, "stop")), 0)
    with b.loop(i32(0), b.get(JOB, job, "threads")) as t:
        thread = b.atomic_load("i64", jobs.thread(b, job, t), "acquire")
        with b.when(b.and_(b.icmp("ne", thread, 0), b.icmp("ne", thread, this))):
            found.set(b.add(found.get(), 1))
            with b.when(stop):
                b.call("pthread_kill", "i32", [thread, b.get(WATCH, WORDS, "signal")])
    b.ret(found.get())


def _kick(m: Module, target: Target):
    """The handler of our signal."""
    b = define(m, "tp_kick", "void", signal="i32", info="ptr", context="ptr")
    *_, context = b.fn.args
    errno = b.call("__errno_location", "ptr", [])
    kept = b.load("i32", errno)
    record = b.call("pthread_getspecific", "ptr", [b.get(WATCH, WORDS, "key")])
    jump = b.variable(NULL)
    with b.when(b.icmp("ne", record, NULL)):
        jump.set(b.get(RECORD, record, "jump"))
    runs = b.icmp("ne", jump.get(), NULL)
    free = b.or_(b.not_(runs), in_kernel(b, target, context))
    with b.when(b.not_(free)):
        b.atomic_store(i32(1), _MISSED)
    with b.when(free):
        ends = b.variable(TRUE)
        with b.either(_is_main(b)) as (main, other):
            with main:
                ends.set(b.call("main_kicked", "i1", [record, jump.get()]))
            with other, b.when(runs):
                ends.set(b.icmp("ne", b.atomic_load("i32", b.field(JOB, b.get(RECORD, record, "job"), "stop")), 0))
        with b.when(b.and_(runs, ends.get())):
            b.call("_longjmp", "void", [jump.get(), i32(1)])
            b.unreachable()
    b.store(kept, errno)
    b.ret()


def _main_kicked(m: Module):
    """Let Python's handlers run. jump: null where this thread is in no program: then it has to be one that waits for others. Is the job to stop?"""
    b = define(m, "main_kicked", "i1", "internal", record="ptr", jump="ptr")
    record, jump = b.fn.args
    job = b.address(b.atomic_load("i64", _JOB), "ptr")
    with b.when(b.icmp("eq", job, NULL)):
        b.ret(FALSE)
    waiting, runs = b.field(JOB, job, "waiting"), b.icmp("ne", jump, NULL)
    with b.when(b.not_(runs)):
        # As long as others are in programs this thread cannot have left the place at which it waits for them.
        with b.when(b.icmp("eq", b.atomic_load("i32", waiting), 0)):
            b.ret(FALSE)
        with b.when(b.icmp("eq", b.call("others", "i32", [job]), 0)):
            b.ret(FALSE)
    stop = b.field(JOB, job, "stop")
    with b.when(b.icmp("eq", b.atomic_load("i32", stop), 0)):
        _ask(b, record, runs, waiting, stop)
    stopped = b.icmp("ne", b.atomic_load("i32", stop), 0)
    with b.when(stopped):
        b.call("others", "i32", [job])
    b.ret(stopped)


def _ask(b: Builder, record: Val, runs: Val, waiting: Val, stop: Val):
    """Run Python's handlers, which are not interrupted by ticks. Where one raises, keep what it raised and stop the job."""
    function = {name: b.get(WATCH, WORDS, name) for name in ("ensure", "release", "check", "fetch")}
    jump = b.variable(NULL)
    with b.either(runs) as (running, idle):
        with running:
            jump.set(b.get(RECORD, record, "jump"))
            b.put(RECORD, record, "jump", NULL)
        with idle:
            b.atomic_store(i32(0), waiting)
    state = b.call(function["ensure"], "i32", [])
    with b.when(b.icmp("ne", b.call(function["check"], "i32", []), 0)):
        place = b.field(WATCH, WORDS, "exception")
        b.call(function["fetch"], "void", [place, b.gep("ptr", place, i64(1)), b.gep("ptr", place, i64(2))])
        b.atomic_store(i32(1), stop, "seq_cst")
    b.call(function["release"], "void", [state])
    with b.either(runs) as (running, idle):
        with running:
            b.put(RECORD, record, "jump", jump.get())
        with idle:
            b.atomic_store(i32(1), waiting)
