"""One launch: how its programs are shared out among threads, in LLVM IR.

Each thread owns a contiguous part of the programs and takes it in chunks from a counter of its own; who is done takes chunks from the others'
parts. So neighbouring programs, and the same programs of the next launch, meet the same cache. Where a part is a few microseconds' work (`short`) it is
taken in one chunk, and only the calling thread, which waits for the others in any case, looks after theirs: a counter that another core has written
costs as much as dozens of programs. Scratch blocks are kept from launch to launch and grow when a kernel needs more.
"""

from __future__ import annotations

from ..llvm.ir import FALSE, NULL, TRUE, Builder, Module, Struct, Val, define, i32, i64

MAX_THREADS = 256
SLOTS = 512
#: chunks that a thread's part is taken in where it is not short
PIECES = 8
#: status codes of a launch; anything else is what a kernel returned (2: a check stopped a program)
NO_MEMORY, INTERRUPTED = 1, 3

#: taken: by a thread that works, 0 or 1
SLOT = Struct("slot", scratch="ptr", bytes="i64", taken="i32", padding="i32")
#: What all threads read is one cache line. count: of programs; pieces: that a part is taken in; stop: take no more programs. next: of each thread, a cache
#: line: the program that is taken next, where launches are watched (watch.py) pthread_self() of the thread while it is in programs, else 0, and when its
#: last program ended (nanoseconds; 0: it ran none). begun: when the calling thread began; waiting: the calling thread is done and waits for the others
JOB = Struct("job", function="ptr", args="ptr", count="i64", scratch="i64", gx="i32", gy="i32", gz="i32", threads="i32", status="i64",
             pieces="i32", stop="i32", next=f"[{MAX_THREADS} x [8 x i64]]", begun="i64", waiting="i32", padding="i32")
#: What one thread is doing, where launches are watched: its programs, and where it is to go on (null: nowhere) when they are to end. previous: what it
#: was doing when it was interrupted to do this
RECORD = Struct("record", previous="ptr", job="ptr", jump="ptr", begin="i64", end="i64", scratch="ptr", all="i64", padding="i64", buffer="[64 x i64]")
_SLOTS = Val("ptr", "@slots")


def add(m: Module, watched: bool):
    """@prepare and @enter, and what they need; @now is somebody else's, and where launches are watched @watched and @begun, too."""
    m.variable("slots", f"[{SLOTS} x {SLOT.ty}] zeroinitializer", tail=", align 64")
    _part(m)
    _work(m, watched)
    _enter(m, "watched" if watched else "work")
    _prepare(m, watched)


def slot(b: Builder, k: Val) -> Val:
    return b.gep(SLOT.ty, _SLOTS, k)


def status(b: Builder, job: Val) -> Val:
    stopped = b.icmp("ne", b.atomic_load("i32", b.field(JOB, job, "stop")), 0)
    return b.select(stopped, i64(INTERRUPTED), b.atomic_load("i64", b.field(JOB, job, "status")))


def thread(b: Builder, job: Val, t: Val) -> Val:
    """Where pthread_self() of thread t is while it is in programs."""
    return b.field(JOB, job, "next", t, i32(1))


def ended(b: Builder, job: Val, t: Val) -> Val:
    """Where it stands when thread t's last program ended."""
    return b.field(JOB, job, "next", t, i32(2))


def prepare(b: Builder) -> tuple[Val, Val]:
    """(A job as the function's parameters say, the number of threads that it is for.)"""
    job = b.alloca(JOB.ty, "job", 64)
    given = {v.s[1:]: v for v in b.fn.args}
    return job, b.call("prepare", "i32", [job, *(given[p] for p in ("fn", "args", "gx", "gy", "gz", "scratch", "threads", "short"))])


def enter(b: Builder, job: Val, t: Val, deadline: Val = i64(0)) -> Val:
    return b.call("enter", "i1", [job, t, deadline])


def _part(m: Module):
    """Thread t's first program of `count`, with so many threads."""
    b = define(m, "part", "i64", "internal", count="i64", threads="i32", t="i32")
    count, threads, t = b.fn.args
    n, k = b.cast("zext", threads, "i64"), b.cast("zext", t, "i64")
    each, over = b.udiv(count, n), b.urem(count, n)
    b.ret(b.add(b.mul(each, k), b.select(b.icmp("ult", k, over), k, over)))


def _work(m: Module, watched: bool):
    """Take the programs of thread t's part, then what is left of the others'. Past a deadline (0: none) no more are taken. Are all taken?"""
    b = define(m, "work", "i1", "internal", job="ptr", t="i32", scratch="ptr", deadline="i64", **({"record": "ptr"} if watched else {}))
    job, t, scratch, deadline, *record = b.fn.args
    timed = b.icmp("ne", deadline, 0)
    function, args, count, *grid, n, pieces = (b.get(JOB, job, f) for f in ("function", "args", "count", "gx", "gy", "gz", "threads", "pieces"))
    every, short = b.cast("zext", b.mul(n, pieces), "i64"), b.icmp("eq", pieces, 1)
    chunk = b.intrinsic("umax", b.udiv(b.add(count, b.select(short, b.sub(every, 1), i64(0))), every), i64(1))
    visits = b.select(b.and_(short, b.icmp("ne", t, 0)), i32(1), n)
    v, some = b.variable(i32(0)), b.variable(FALSE)  # whose part, counted from our own; has this thread run any?
    with b.forever() as parts:
        who = b.urem(b.add(t, v.get()), n)
        last = b.call("part", "i64", [count, n, b.add(who, 1)])
        counter = b.field(JOB, job, "next", who, i32(0))
        left = b.icmp("slt", b.atomic_load("i64", counter), last)  # a line that is only read is not fought for
        with b.when(left):
            with b.when(timed), b.when(b.icmp("sgt", b.call("now", "i64", []), deadline)):
                b.ret(FALSE)
            with b.forever() as chunks:
                begin = b.atomic("add", counter, chunk)
                chunks.leave(b.icmp("sge", begin, last))
                end = b.smin(b.add(begin, chunk), last)
                if watched:
                    chunks.leave(b.icmp("ne", b.atomic_load("i32", b.field(JOB, job, "stop")), 0))
                    b.put(RECORD, record[0], "begin", begin)
                    b.put(RECORD, record[0], "end", end)
                result = b.call(function, "i64", [args, scratch, begin, end, *grid])
                with b.when(b.icmp("ne", result, 0)):
                    b.atomic_store(result, b.field(JOB, job, "status"))
                    b.ret(TRUE)
                some.set(TRUE)
                parts.again(timed)
        v.set(b.add(v.get(), 1))
        parts.leave(b.icmp("eq", v.get(), visits))
    with b.when(b.and_(b.icmp("sgt", n, 1), some.get())):
        b.atomic_store(b.call("now", "i64", []), ended(b, job, t))
    b.ret(TRUE)


def _enter(m: Module, work: str):
    """Find scratch (a kept block, or one for this launch alone) and work."""
    b = define(m, "enter", "i1", "internal", job="ptr", t="i32", deadline="i64")
    job, t, deadline = b.fn.args
    need = b.get(JOB, job, "scratch")
    with b.when(b.icmp("eq", need, 0)):
        b.ret(b.call(work, "i1", [job, t, NULL, deadline]))
    tries = b.variable(i32(0))
    with b.forever() as search:
        mine = slot(b, b.urem(b.add(t, tries.get()), SLOTS))
        taken = b.field(SLOT, mine, "taken")
        search.leave(b.taken(taken))
        tries.set(b.add(tries.get(), 1))
        with b.when(b.icmp("eq", tries.get(), SLOTS)):
            _no_memory(b, job)
    memory = b.variable(b.get(SLOT, mine, "scratch"))
    with b.when(b.icmp("ult", b.get(SLOT, mine, "bytes"), need)):
        b.call("free", "void", [memory.get()])
        b.put(SLOT, mine, "bytes", i64(0))
        size = b.and_(b.add(need, 4095), -4096)
        memory.set(b.call("aligned_alloc", "ptr", [i64(4096), size]))
        b.put(SLOT, mine, "scratch", memory.get())
        with b.when(b.icmp("eq", memory.get(), NULL)):
            b.atomic_store(i32(0), taken, "release")
            _no_memory(b, job)
        b.put(SLOT, mine, "bytes", size)
    all_ = b.call(work, "i1", [job, t, memory.get(), deadline])
    b.atomic_store(i32(0), taken, "release")
    b.ret(all_)


def _no_memory(b: Builder, job: Val):
    b.atomic_store(i64(NO_MEMORY), b.field(JOB, job, "status"))
    b.ret(TRUE)


def _prepare(m: Module, watched: bool):
    """Fill a job for `threads` at most. Returns the number of threads that it is for."""
    b = define(m, "prepare", "i32", "internal", job="ptr", fn="ptr", args="ptr", gx="i32", gy="i32", gz="i32", scratch="i64", threads="i32", short="i1")
    job, function, args, gx, gy, gz, scratch, threads, short = b.fn.args
    x, y, z = (b.cast("zext", g, "i64") for g in (gx, gy, gz))
    count = b.mul(b.mul(x, y), z)
    use = b.smax(b.smin(threads, b.cast("trunc", b.smin(count, MAX_THREADS), "i32")), 1)
    filled = dict(function=function, args=args, count=count, scratch=scratch, gx=gx, gy=gy, gz=gz, threads=use, status=i64(0),
                  pieces=b.select(short, i32(1), i32(PIECES)), stop=i32(0), waiting=i32(0))
    for field, v in filled.items():
        b.put(JOB, job, field, v)
    with b.loop(i32(0), use) as t:
        b.store(b.call("part", "i64", [count, use, t]), b.field(JOB, job, "next", t, i32(0)))
        b.store(i64(0), ended(b, job, t))
        if watched:
            b.store(i64(0), thread(b, job, t))
    if watched:
        b.call("begun", "void", [job])
    b.ret(use)
