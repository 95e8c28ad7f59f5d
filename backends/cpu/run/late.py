"""Threads that come late, in LLVM IR.

Where other programs have the cores, a launch waits for threads that do not come: milliseconds, for microseconds of work. Nothing tells beforehand, so
a launch looks at how long nobody worked on it; after one that lost more than its sharing and that of those before it can have saved, launches begin on
the calling thread alone, for as long as was lost, twice as long where it happens again, and call the others only after as long as meeting them may lose.

What others saved is counted up to CREDIT, so that a core that is taken now and then (a shared host, a daemon) does not cost what all of them are worth: on 16 cores, 8 other programs busy for
3 ms in 23, `add_mul_act` of 512 x 512 takes 16 us in the median and 46 in the mean, 100 and 90 where every launch is judged by itself, and of 1823 x 781 190 for 215 in the mean; with
cores that others have all along both are the same (Emerald Rapids, two runs of a second each).
"""

from __future__ import annotations

from ..llvm.ir import FALSE, Module, Val, define, i32, i64
from ..llvm.targets import Target
from . import job as jobs
from .job import JOB

#: nanoseconds that nobody works on a launch from which on a thread came late, and that launches begin alone at most. Another late one is the
#: same trouble where it comes before RECENT times as long is over, or before so many meetings that went well
LATE, LONGEST, RECENT = 200_000, 1_000_000_000, 4
#: nanoseconds that meetings which went well may have saved, at most, before one that did not
CREDIT = 20_000_000
#: until when launches begin on the calling thread alone, for how long that was decided, what the meeting lost that decided it, how many have
#: gone well since (RECENT and more are one), and what these saved. Any thread writes them, each by itself: a mixture decides no worse than either.
UNTIL, _HOLD, _LOST, _MET, _CREDIT = (Val("ptr", f"@alone.{name}") for name in ("until", "hold", "lost", "met", "credit"))


def add(m: Module, target: Target, late: int, most: int):
    """@now, @met and @alone. late, most: LATE and CREDIT."""
    m.variable("alone.until", "i64 0", tail=", align 64")
    m.variable("alone.hold", "i64 0")
    m.variable("alone.lost", "i64 0")
    m.variable("alone.credit", "i64 0")
    m.variable("alone.met", f"i32 {RECENT}")
    _now(m, target)
    _met(m, late, most)
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


def _met(m: Module, late: int, most: int):
    """A launch whose sharing began at `start` is over. Where nobody worked on it for longer than the others can have saved, of it and of what
    came before, a thread came late, for the cores are taken: launches begin alone for as long as was lost, and twice as long as the last time where that is not long ago."""
    b = define(m, "met", "void", "internal", job="ptr", start="i64")
    job, start = b.fn.args
    end = b.call("now", "i64", [])
    whole = b.sub(end, start)
    met, credit = b.atomic_load("i32", _MET), b.atomic_load("i64", _CREDIT)
    others = b.sub(b.cast("zext", b.get(JOB, job, "threads"), "i64"), 1)
    gain = b.variable(b.lshr(b.mul(whole, others), 1))  # of a short one half at least was work
    with b.when(b.icmp("sgt", whole, late)):
        begun, ended = b.get(JOB, job, "begun"), b.variable(i64(0))
        with b.loop(i32(0), b.get(JOB, job, "threads")) as t:
            ended.set(b.smax(ended.get(), b.atomic_load("i64", jobs.ended(b, job, t))))
        work = b.sub(ended.get(), begun)
        lost = b.sub(whole, work)
        saved = b.mul(work, others)
        gain.set(b.sub(saved, lost))
        with b.when(b.icmp("sgt", lost, b.smax(b.add(saved, credit), late))):
            hold, until = b.atomic_load("i64", _HOLD), b.atomic_load("i64", UNTIL)
            soon = b.icmp("slt", b.sub(end, until), b.mul(hold, RECENT))
            again = b.or_(soon, b.icmp("slt", met, RECENT))
            more = b.select(again, b.mul(hold, 2), lost)
            new = b.smin(b.smax(more, lost), LONGEST)
            b.atomic_store(lost, _LOST)
            b.atomic_store(new, _HOLD)
            b.atomic_store(b.add(end, new), UNTIL)
            b.atomic_store(i32(0), _MET)
            b.atomic_store(i64(0), _CREDIT)
            b.ret()
    b.atomic_store(b.smin(b.add(credit, gain.get()), most), _CREDIT)
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
