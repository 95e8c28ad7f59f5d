"""Threads that come late, in LLVM IR.

Where other programs have the cores, a launch waits for threads that do not come: milliseconds, for microseconds of work. Nothing tells beforehand, so
a launch looks at how long nobody worked on it; after one that lost more than its sharing can have saved, launches begin on the calling thread alone,
for as long as was lost, twice as long where it happens again, and call the others only after as long as meeting them may lose.
"""

from __future__ import annotations

from ..llvm.ir import FALSE, Module, Val, define, i32, i64
from ..llvm.targets import Target
from . import job as jobs
from .job import JOB

#: nanoseconds that nobody works on a launch from which on a thread came late, and that launches begin alone at most. Another late one is the
#: same trouble where it comes before RECENT times as long is over, or before so many meetings that went well
LATE, LONGEST, RECENT = 200_000, 1_000_000_000, 4
#: until when launches begin on the calling thread alone, for how long that was decided, what the meeting lost that decided it, and how many have
#: gone well since (RECENT and more are one). Any thread writes them, each by itself: a mixture decides no worse than either.
UNTIL, _HOLD, _LOST, _MET = (Val("ptr", f"@alone.{name}") for name in ("until", "hold", "lost", "met"))


def add(m: Module, target: Target, late: int):
    """@now, @met and @alone."""
    m.variable("alone.until", "i64 0", tail=", align 64")
    m.variable("alone.hold", "i64 0")
    m.variable("alone.lost", "i64 0")
    m.variable("alone.met", f"i32 {RECENT}")
    _now(m, target)
    _met(m, late)
    _alone(m)


def _now(m: Module, target: Target):
    """Nanoseconds. By the CPU's counter to within a factor of two: the C library's clock takes three times as long, which the shortest shared
    launches feel."""
    if not target.counter:
        add_clock(m)
        return
    b = define(m, "now", "i64", "internal")
    b.ret(b.lshr(b.call(target.counter, "i64", []), 1))


def add_clock(m: Module):
    """@now: nanoseconds by the C library."""
    b = define(m, "now", "i64", "internal")
    time = b.alloca("[2 x i64]", "time")  # a timespec: seconds, nanoseconds
    b.call("clock_gettime", "i32", [i32(1), time])
    seconds, rest = b.load("i64", time), b.load("i64", b.gep("i64", time, i64(1)))
    b.ret(b.add(b.mul(seconds, 1_000_000_000), rest))


def _met(m: Module, late: int):
    """A launch whose sharing began at `start` is over. Where nobody worked on it for longer than the others can have saved, a thread came late, for
    the cores are taken: launches begin alone for as long as was lost, and twice as long as the last time where that is not long ago."""
    b = define(m, "met", "void", "internal", job="ptr", start="i64")
    job, start = b.fn.args
    end = b.call("now", "i64", [])
    whole = b.sub(end, start)
    met = b.atomic_load("i32", _MET)
    with b.when(b.icmp("sgt", whole, late)):
        begun, ended = b.get(JOB, job, "begun"), b.atomic_load("i64", b.field(JOB, job, "ended"))
        work = b.sub(ended, begun)
        lost = b.sub(whole, work)
        saved = b.mul(work, b.sub(b.cast("zext", b.get(JOB, job, "threads"), "i64"), 1))
        with b.when(b.icmp("sgt", lost, b.smax(saved, late))):
            hold, until = b.atomic_load("i64", _HOLD), b.atomic_load("i64", UNTIL)
            soon = b.icmp("slt", b.sub(end, until), b.mul(hold, RECENT))
            again = b.or_(soon, b.icmp("slt", met, RECENT))
            more = b.select(again, b.mul(hold, 2), lost)
            new = b.smin(b.smax(more, lost), LONGEST)
            b.atomic_store(lost, _LOST)
            b.atomic_store(new, _HOLD)
            b.atomic_store(b.add(end, new), UNTIL)
            b.atomic_store(i32(0), _MET)
            b.ret()
    with b.when(b.icmp("slt", met, RECENT)):
        b.atomic_store(b.add(met, 1), _MET)
    b.ret()


def _alone(m: Module):
    """Where threads came late: run programs on this thread, for as long as a meeting may lose. Are all done?"""
    b = define(m, "alone", "i1", "internal", job="ptr")
    job, = b.fn.args
    until = b.atomic_load("i64", UNTIL)
    with b.when(b.icmp("ne", until, 0)):
        now = b.call("now", "i64", [])
        with b.when(b.icmp("slt", now, until)):
            b.ret(jobs.enter(b, job, i32(0), b.add(now, b.atomic_load("i64", _LOST))))
    b.ret(FALSE)
