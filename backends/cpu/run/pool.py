"""The runtime in LLVM IR: threads that launches are shared out among.

Written as IR so that it needs no C compiler and is the same code on every ISA (a bundle for a board links it too). `job.py` shares out a launch's
programs, `late.py` notices threads that come late, and here they are called:

- `tp_launch_omp` runs on the OpenMP threads that torch has already (through libgomp's `GOMP_parallel`, which libomp has
  too): torch's workers spin for a while after every op, and a second pool would fight them for the cores.
- `tp_launch` runs on a pool of this module's own, where there is no OpenMP or after a fork, which OpenMP does not
  survive. It publishes one 64-bit word (generation << 32 | workers wanted); workers spin briefly, then sleep on its
  upper half with futex. One launch owns the pool at a time; another thread's launch meanwhile runs inline.
- After fork the child has no workers: `tp_forget` (called from Python's at-fork hook) starts from nothing.

In a process of Python's launches are watched, so that signals reach them (`watch.py`); a library for other programs has nothing of that.
"""

from __future__ import annotations

from ..llvm.ir import NULL, Builder, Module, Struct, Val, define, i32, i64
from ..llvm.targets import Target
from . import crash, job as jobs, late, watch
from .job import INTERRUPTED, JOB, MAX_THREADS, NO_MEMORY, SLOT, SLOTS

__all__ = ["INTERRUPTED", "MAX_THREADS", "NO_MEMORY", "SHORT", "module", "pool_ir"]

SPIN = 2000  # turns of the waiting loop before a worker of our own sleeps: some 50 microseconds
_WAIT, _WAKE, _ALL = 128, 129, (1 << 31) - 1  # futex operations, private to the process; how many to wake
#: generation << 32 | workers wanted; workers that sleep; workers still running the job; is a launch using them?; how many there are; what they run
_WORD, _SLEEPERS, _PENDING, _LOCK, _WORKERS, _JOB = (
    Val("ptr", f"@pool.{name}") for name in ("word", "sleepers", "pending", "lock", "workers", "job"))
#: what OpenMP's threads are told
_REGION = Struct("region", job="ptr", thread_num="ptr")


def pool_ir(target: Target, nanoseconds: int = late.LATE, credit: int = late.CREDIT) -> str:
    """The runtime's LLVM IR for a row; nanoseconds, credit: how late is late, and how much of it was saved before (see late.py)."""
    return module(target, nanoseconds=nanoseconds, credit=credit).render()


def module(target: Target, hidden: bool = False, nanoseconds: int = late.LATE, credit: int = late.CREDIT) -> Module:
    """hidden: other objects of one library call it, and launches are not watched."""
    m = Module("pool", target.triple, attributes="")
    m.globals += [s.line() for s in (SLOT, JOB, _REGION)]
    watched = not hidden and bool(target.context)
    for at, first in ((_WORD, "i64 0"), (_SLEEPERS, "i32 0"), (_PENDING, "i32 0"), (_LOCK, "i32 0"), (_WORKERS, "i32 0"), (_JOB, "ptr null")):
        m.variable(at.s[1:], first, tail="" if at is _WORKERS else ", align 64")  # who has the lock counts the workers
    late.add(m, target, nanoseconds, credit)
    jobs.add(m, watched)
    if watched:
        watch.add(m, target)
        crash.add(m, target)
    linkage = "hidden" if hidden else ""
    _worker(m, target)
    _launch(m, target, linkage)
    _region(m)
    _launch_omp(m, linkage)
    _call(m, linkage, watched)
    _forget(m, linkage, watched)
    return m


def _futex(b: Builder, target: Target, at: Val, what: int, *rest: Val):
    b.call("syscall", "i64 (i64, ...)", [i64(target.futex), at, i32(what), *rest])


def _generation_at(b: Builder) -> Val:
    """Where the word's upper half is: all targets are little-endian."""
    return b.gep("i8", _WORD, i64(4))


def _pause(b: Builder, target: Target):
    """A turn of a waiting loop."""
    if target.spin is None:
        b.compiler_fence()
        return
    name, given = target.spin
    b.call(name, "void", [i32(n) for n in given])


def _worker(m: Module, target: Target):
    """A thread of our own, which never ends."""
    b = define(m, "worker", "ptr", "internal", arg="ptr")
    k = b.cast("trunc", b.address(b.fn.args[0]), "i32")
    thread = b.add(k, 1)
    seen = b.variable(i32(0))
    with b.forever():
        word = _awaited(b, target, seen.get())
        seen.set(_generation(b, word))
        wanted = b.icmp("ult", k, b.cast("trunc", word, "i32"))
        with b.when(wanted):
            jobs.enter(b, b.load("ptr", _JOB), thread)
            before = b.atomic("sub", _PENDING, i32(1), "acq_rel")
            with b.when(b.icmp("eq", before, 1)):
                _futex(b, target, _PENDING, _WAKE, i32(1))


def _generation(b: Builder, word: Val) -> Val:
    return b.cast("trunc", b.lshr(word, 32), "i32")


def _awaited(b: Builder, target: Target, seen: Val) -> Val:
    """The word when its generation is no longer the one that was seen."""
    turns, word = b.variable(i32(0)), b.variable(i64(0))
    with b.forever() as waiting:
        word.set(b.atomic_load("i64", _WORD, "acquire"))
        waiting.leave(b.icmp("ne", _generation(b, word.get()), seen))
        turns.set(b.add(turns.get(), 1))
        with b.when(b.icmp("sgt", turns.get(), SPIN)):
            with b.repeat() as asleep:
                b.atomic("add", _SLEEPERS, i32(1), "seq_cst")
                _futex(b, target, _generation_at(b), _WAIT, seen, NULL)
                b.atomic("sub", _SLEEPERS, i32(1), "seq_cst")
                word.set(b.atomic_load("i64", _WORD, "acquire"))
                asleep.until(b.icmp("ne", _generation(b, word.get()), seen))
            waiting.leave()
        _pause(b, target)
    return word.get()


#: parameters of a launch
_LAUNCH = dict(fn="ptr", args="ptr", gx="i32", gy="i32", gz="i32", scratch="i64", threads="i32", short="i1")
#: in the word of a launch's threads: each has a few microseconds' work
SHORT = 1 << 62


def _launch(m: Module, target: Target, linkage: str):
    """Run one launch on this module's own threads. Returns 0, 1 when scratch could not be had, or what a kernel returned."""
    b = define(m, "tp_launch", "i64", linkage, **_LAUNCH)
    job, use = jobs.prepare(b)
    _without_others(b, job, use)
    with b.when(b.not_(b.taken(_LOCK))):
        jobs.enter(b, job, i32(0))
        b.ret(jobs.status(b, job))
    start = b.call("now", "i64", [])
    b.put(JOB, job, "begun", start)
    wanted = b.sub(use, 1)
    _start_workers(b, wanted)
    _publish(b, target, job, wanted)
    jobs.enter(b, job, i32(0))
    b.atomic_store(i32(1), b.field(JOB, job, "waiting"))
    _all_done(b, target)
    b.atomic_store(i32(0), _LOCK, "release")
    b.call("met", "void", [job, start])
    b.ret(jobs.status(b, job))


def _without_others(b: Builder, job: Val, use: Val):
    """Return where the launch is for one thread, or is over before others were called."""
    with b.when(b.icmp("eq", use, 1)):
        jobs.enter(b, job, i32(0))
        b.ret(jobs.status(b, job))
    with b.when(b.call("alone", "i1", [job])):
        b.ret(jobs.status(b, job))


def _start_workers(b: Builder, wanted: Val):
    """Have so many workers, or as many as the system grants."""
    thread = b.alloca("i64", "thread")
    with b.forever() as starting:
        have = b.load("i32", _WORKERS)
        starting.leave(b.icmp("sge", have, wanted))
        failed = b.call("pthread_create", "i32", [thread, NULL, Val("ptr", "@worker"), b.address(b.cast("zext", have, "i64"), "ptr")])
        starting.leave(b.icmp("ne", failed, 0))
        b.call("pthread_detach", "i32", [b.load("i64", thread)])
        b.store(b.add(have, 1), _WORKERS)


def _publish(b: Builder, target: Target, job: Val, wanted: Val):
    """Tell the workers of a job, and wake those that sleep."""
    active = b.smin(b.load("i32", _WORKERS), wanted)
    b.store(job, _JOB)
    b.atomic_store(active, _PENDING)
    following = b.add(b.lshr(b.load("i64", _WORD), 32), 1)
    b.atomic_store(b.or_(b.shl(following, 32), b.cast("zext", active, "i64")), _WORD, "seq_cst")
    with b.when(b.icmp("sgt", b.atomic_load("i32", _SLEEPERS, "seq_cst"), 0)):
        _futex(b, target, _generation_at(b), _WAKE, i32(_ALL))


def _all_done(b: Builder, target: Target):
    """Wait for the workers."""
    turns = b.variable(i32(0))
    with b.forever() as waiting:
        waiting.leave(b.icmp("eq", b.atomic_load("i32", _PENDING, "acquire"), 0))
        turns.set(b.add(turns.get(), 1))
        with b.when(b.icmp("sgt", turns.get(), SPIN)):
            with b.forever() as asleep:
                left = b.atomic_load("i32", _PENDING, "acquire")
                asleep.leave(b.icmp("eq", left, 0))
                _futex(b, target, _PENDING, _WAIT, left, NULL)
            waiting.leave()
        _pause(b, target)


def _region(m: Module):
    """What each of OpenMP's threads does."""
    b = define(m, "region", "void", "internal", data="ptr")
    data, = b.fn.args
    thread_num, job = b.get(_REGION, data, "thread_num"), b.get(_REGION, data, "job")
    t = b.call(thread_num, "i32", [])
    with b.when(b.icmp("ult", t, b.get(JOB, job, "threads"))):
        with b.when(b.icmp("eq", t, 0)):  # the thread that called
            b.put(JOB, job, "begun", b.call("now", "i64", []))
        jobs.enter(b, job, t)
        with b.when(b.icmp("eq", t, 0)):
            b.atomic_store(i32(1), b.field(JOB, job, "waiting"))
    b.ret()


def _launch_omp(m: Module, linkage: str):
    """Run one launch on `threads` of OpenMP's team: `parallel` is GOMP_parallel, `number` is omp_get_thread_num. libgomp ends the threads that a
    smaller team than the last one leaves over, so every launch takes the same team. The work does not depend on how many threads OpenMP grants:
    parts without a thread are taken by the others."""
    b = define(m, "tp_launch_omp", "i64", linkage, **_LAUNCH, team="i32", parallel="ptr", number="ptr")
    *_, team, parallel, number = b.fn.args
    job, use = jobs.prepare(b)
    _without_others(b, job, use)
    start = b.call("now", "i64", [])
    data = b.alloca(_REGION.ty, "data")
    b.put(_REGION, data, "job", job)
    b.put(_REGION, data, "thread_num", number)
    b.call(parallel, "void", [Val("ptr", "@region"), data, team, i32(0)])
    b.call("met", "void", [job, start])
    b.ret(jobs.status(b, job))


def _call(m: Module, linkage: str, watched: bool):
    """Run one launch whose header and arguments are packed in one block of 8-byte slots: function, grid x, y, z, scratch bytes, threads for it |
    threads there are << 32 | SHORT or 0, GOMP_parallel (0: our own threads), omp_get_thread_num, the kernel's arguments."""
    b = define(m, "call" if watched else "tp_call", "i64", "internal" if watched else linkage, p="ptr")
    slots = [b.gep("i64", b.fn.args[0], i64(k)) for k in range(9)]
    header = [b.load(ty, at) for ty, at in zip(("ptr", "i32", "i32", "i32", "i64", "i32", "ptr", "ptr"), slots)]
    function, *grid, scratch, threads, parallel, number = header
    there = b.load("i32", b.gep("i32", slots[5], i64(1)))
    team = b.and_(there, (SHORT >> 32) - 1)
    launch = [function, slots[8], *grid, scratch, threads, b.icmp("ne", there, team)]
    with b.when(b.icmp("eq", parallel, NULL)):
        b.ret(b.call("tp_launch", "i64", launch))
    b.ret(b.call("tp_launch_omp", "i64", [*launch, team, parallel, number]))
    if watched:
        watch.call(m, linkage)


def _forget(m: Module, linkage: str, watched: bool):
    """In a forked child: the workers are gone, and so is whoever held the lock."""
    b = define(m, "tp_forget", "void", linkage)
    for at, none in ((_WORD, i64(0)), (_SLEEPERS, i32(0)), (_PENDING, i32(0)), (_LOCK, i32(0)), (_WORKERS, i32(0)), (late.UNTIL, i64(0))):
        b.store(none, at)
    with b.loop(i32(0), i32(SLOTS)) as k:
        b.store(i32(0), b.field(SLOT, jobs.slot(b, k), "taken"))
    if watched:
        watch.forget(b)
    b.ret()
