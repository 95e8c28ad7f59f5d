"""The runtime in LLVM IR: how a launch's programs are shared out among threads.

Written as IR so that it needs no C compiler and is the same code on every ISA (a bundle for a board links it too).

- Each thread owns a contiguous part of the programs and takes it in chunks from a counter of its own; who is done takes
  chunks from the others' parts. So neighbouring programs, and the same programs of the next launch, meet the same cache.
- `tp_launch_omp` runs on the OpenMP threads that torch has already (through libgomp's `GOMP_parallel`, which libomp has
  too): torch's workers spin for a while after every op, and a second pool would fight them for the cores.
- `tp_launch` runs on a pool of this module's own, where there is no OpenMP or after a fork, which OpenMP does not
  survive. It publishes one 64-bit word (generation << 32 | workers wanted); workers spin briefly, then sleep on its
  upper half with futex. One launch owns the pool at a time; another thread's launch meanwhile runs inline.
- Where other programs have the cores, a launch waits for threads that do not come: milliseconds, for microseconds of work. Nothing tells beforehand, so
  a launch looks at how long nobody worked on it; after one that lost more than its sharing can have saved, launches begin on the calling thread alone,
  for as long as was lost, twice as long where it happens again, and call the others only after as long as meeting them may lose.
- Scratch blocks are kept from launch to launch and grow when a kernel needs more.
- After fork the child has no workers: `tp_forget` (called from Python's at-fork hook) starts from nothing.
"""

from __future__ import annotations

from ..llvm.targets import Target

MAX_THREADS = 256
SLOTS = 512
#: nanoseconds that nobody works on a launch from which on a thread came late, and that launches begin alone at most. Another late one is the
#: same trouble where it comes before RECENT times as long is over, or before so many meetings that went well
LATE, LONGEST, RECENT = 200_000, 1_000_000_000, 4
SPIN = 2000  # turns of the waiting loop before a worker of our own sleeps: some 50 microseconds
#: status codes of a launch; anything else is what a kernel returned
OK, NO_MEMORY = 0, 1

_IR = """
target triple = "{triple}"

%slot = type {{ ptr, i64, i32, i32 }} ; scratch, its bytes, taken, padding
; function, arguments, programs, scratch bytes, grid, threads, status, next program of each thread (a cache line each),
; when the calling thread began, and when the last program ended so far (nanoseconds)
%job = type {{ ptr, ptr, i64, i64, i32, i32, i32, i32, i64, [{threads} x [8 x i64]], i64, i64 }}

@pool.word = internal global i64 0, align 64       ; generation << 32 | workers wanted
@pool.sleepers = internal global i32 0, align 64
@pool.pending = internal global i32 0, align 64    ; workers still running the job
@pool.lock = internal global i32 0, align 64
@pool.workers = internal global i32 0
@pool.job = internal global ptr null, align 64
@slots = internal global [{slots} x %slot] zeroinitializer, align 64
; Where others take the cores: until when launches begin on the calling thread alone, for how long that was decided,
; what the meeting lost that decided it, and how many have gone well since ({recent} and more are one). Any thread writes them, each by itself: a mixture decides no worse than either.
@alone.until = internal global i64 0, align 64
@alone.hold = internal global i64 0
@alone.lost = internal global i64 0
@alone.met = internal global i32 {recent}

declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i64 @syscall(i64, ...)
declare ptr @aligned_alloc(i64, i64)
declare void @free(ptr)
{spin_decl}

{now}

; A launch whose sharing began at %start is over. Where nobody worked on it for longer than the others can have saved, a
; thread came late, for the cores are taken: launches begin alone for as long as was lost, and twice as long as the last
; time where that is not long ago.
define internal void @met(ptr %job, i64 %start) {{
entry:
  %end = call i64 @now()
  %whole = sub i64 %end, %start
  %met = load atomic i32, ptr @alone.met monotonic, align 4
  %long = icmp sgt i64 %whole, {late}
  br i1 %long, label %look, label %fine
look:
  %begun.p = getelementptr %job, ptr %job, i64 0, i32 10
  %begun = load i64, ptr %begun.p
  %ended.p = getelementptr %job, ptr %job, i64 0, i32 11
  %ended = load atomic i64, ptr %ended.p monotonic, align 8
  %work = sub i64 %ended, %begun
  %lost = sub i64 %whole, %work
  %n.p = getelementptr %job, ptr %job, i64 0, i32 7
  %n = load i32, ptr %n.p
  %n64 = zext i32 %n to i64
  %others = sub i64 %n64, 1
  %saved = mul i64 %work, %others
  %most = call i64 @llvm.smax.i64(i64 %saved, i64 {late})
  %late = icmp sgt i64 %lost, %most
  br i1 %late, label %alone, label %fine
alone:
  %hold = load atomic i64, ptr @alone.hold monotonic, align 8
  %until = load atomic i64, ptr @alone.until monotonic, align 8
  %since = sub i64 %end, %until
  %recent = mul i64 %hold, {recent}
  %soon = icmp slt i64 %since, %recent
  %few = icmp slt i32 %met, {recent}
  %again = or i1 %soon, %few
  %twice = mul i64 %hold, 2
  %more = select i1 %again, i64 %twice, i64 %lost
  %enough = call i64 @llvm.smax.i64(i64 %more, i64 %lost)
  %new = call i64 @llvm.smin.i64(i64 %enough, i64 {longest})
  %then = add i64 %end, %new
  store atomic i64 %lost, ptr @alone.lost monotonic, align 8
  store atomic i64 %new, ptr @alone.hold monotonic, align 8
  store atomic i64 %then, ptr @alone.until monotonic, align 8
  store atomic i32 0, ptr @alone.met monotonic, align 4
  br label %done
fine:
  %count = icmp slt i32 %met, {recent}
  br i1 %count, label %one, label %done
one:
  %met1 = add i32 %met, 1
  store atomic i32 %met1, ptr @alone.met monotonic, align 4
  br label %done
done:
  ret void
}}
declare i64 @llvm.smax.i64(i64, i64)

; Where threads came late: run programs on this thread, for as long as a meeting may lose. Are all done?
define internal i1 @alone(ptr %job) {{
entry:
  %until = load atomic i64, ptr @alone.until monotonic, align 8
  %never = icmp eq i64 %until, 0
  br i1 %never, label %no, label %ask
ask:
  %now = call i64 @now()
  %over = icmp sge i64 %now, %until
  br i1 %over, label %no, label %try
try:
  %lost = load atomic i64, ptr @alone.lost monotonic, align 8
  %deadline = add i64 %now, %lost
  %all = call i1 @enter(ptr %job, i32 0, i64 %deadline)
  ret i1 %all
no:
  ret i1 false
}}

; Thread %t's first program of %count, with %threads threads.
define internal i64 @part(i64 %count, i32 %threads, i32 %t) {{
  %n = zext i32 %threads to i64
  %k = zext i32 %t to i64
  %each = udiv i64 %count, %n
  %over = urem i64 %count, %n
  %before = mul i64 %each, %k
  %few = icmp ult i64 %k, %over
  %extra = select i1 %few, i64 %k, i64 %over
  %first = add i64 %before, %extra
  ret i64 %first
}}

; Take the programs of thread %t's part, then what is left of the others'. Past a %deadline (0: none) no more are taken. Are all taken?
define internal i1 @work(ptr %job, i32 %t, ptr %scratch, i64 %deadline) {{
entry:
  %timed = icmp ne i64 %deadline, 0
  %fn = load ptr, ptr %job
  %args.p = getelementptr %job, ptr %job, i64 0, i32 1
  %args = load ptr, ptr %args.p
  %count.p = getelementptr %job, ptr %job, i64 0, i32 2
  %count = load i64, ptr %count.p
  %gx.p = getelementptr %job, ptr %job, i64 0, i32 4
  %gx = load i32, ptr %gx.p
  %gy.p = getelementptr %job, ptr %job, i64 0, i32 5
  %gy = load i32, ptr %gy.p
  %gz.p = getelementptr %job, ptr %job, i64 0, i32 6
  %gz = load i32, ptr %gz.p
  %n.p = getelementptr %job, ptr %job, i64 0, i32 7
  %n = load i32, ptr %n.p
  %parts64 = zext i32 %n to i64
  %parts = mul i64 %parts64, 8
  %c0 = udiv i64 %count, %parts
  %chunk = call i64 @llvm.umax.i64(i64 %c0, i64 1)
  br label %victim
victim:
  %v = phi i32 [ 0, %entry ], [ %v1, %next ], [ %v, %ran ]
  %some = phi i1 [ false, %entry ], [ %some.now, %next ], [ true, %ran ]
  %sum = add i32 %t, %v
  %who = urem i32 %sum, %n
  %who1 = add i32 %who, 1
  %last = call i64 @part(i64 %count, i32 %n, i32 %who1)
  %counter = getelementptr %job, ptr %job, i64 0, i32 9, i32 %who, i32 0
  %next.one = load atomic i64, ptr %counter monotonic, align 8 ; a line that is only read is not fought for
  %some.left = icmp slt i64 %next.one, %last
  br i1 %some.left, label %time, label %next
time:
  br i1 %timed, label %clock, label %more
clock:
  %now = call i64 @now()
  %late = icmp sgt i64 %now, %deadline
  br i1 %late, label %stop, label %more
more:
  %some.more = phi i1 [ %some, %time ], [ %some, %clock ], [ true, %ran ]
  %begin = atomicrmw add ptr %counter, i64 %chunk monotonic
  %left = icmp slt i64 %begin, %last
  br i1 %left, label %run, label %next
run:
  %e = add i64 %begin, %chunk
  %end = call i64 @llvm.smin.i64(i64 %e, i64 %last)
  %r = call i64 %fn(ptr %args, ptr %scratch, i64 %begin, i64 %end, i32 %gx, i32 %gy, i32 %gz)
  %bad = icmp ne i64 %r, 0
  br i1 %bad, label %failed, label %ran
ran:
  br i1 %timed, label %victim, label %more
stop:
  ret i1 false
failed:
  %status = getelementptr %job, ptr %job, i64 0, i32 8
  store atomic i64 %r, ptr %status monotonic, align 8
  ret i1 true
next:
  %some.now = phi i1 [ %some, %victim ], [ %some.more, %more ]
  %v1 = add i32 %v, 1
  %all = icmp eq i32 %v1, %n
  br i1 %all, label %done, label %victim
done:
  %others = icmp sgt i32 %n, 1
  %shared = and i1 %others, %some.now
  br i1 %shared, label %stamp, label %out
stamp:
  %end.now = call i64 @now()
  %ended = getelementptr %job, ptr %job, i64 0, i32 11
  %before = atomicrmw umax ptr %ended, i64 %end.now monotonic
  br label %out
out:
  ret i1 true
}}
declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)

; Find scratch (a kept block, or one for this launch alone) and work.
define internal i1 @enter(ptr %job, i32 %t, i64 %deadline) {{
entry:
  %need.p = getelementptr %job, ptr %job, i64 0, i32 3
  %need = load i64, ptr %need.p
  %some = icmp ne i64 %need, 0
  br i1 %some, label %find, label %bare
bare:
  %all = call i1 @work(ptr %job, i32 %t, ptr null, i64 %deadline)
  ret i1 %all
find:
  %tries = phi i32 [ 0, %entry ], [ %tries1, %next ]
  %at = add i32 %t, %tries
  %k = urem i32 %at, {slots}
  %s = getelementptr [{slots} x %slot], ptr @slots, i64 0, i32 %k
  %taken = getelementptr %slot, ptr %s, i64 0, i32 2
  %free = cmpxchg ptr %taken, i32 0, i32 1 acquire monotonic
  %mine = extractvalue {{ i32, i1 }} %free, 1
  br i1 %mine, label %have, label %next
next:
  %tries1 = add i32 %tries, 1
  %out = icmp eq i32 %tries1, {slots}
  br i1 %out, label %fail, label %find
have:
  %have.p = getelementptr %slot, ptr %s, i64 0, i32 1
  %bytes = load i64, ptr %have.p
  %old = load ptr, ptr %s
  %enough = icmp uge i64 %bytes, %need
  br i1 %enough, label %go, label %grow
grow:
  call void @free(ptr %old)
  store i64 0, ptr %have.p
  %padded = add i64 %need, 4095
  %size = and i64 %padded, -4096
  %new = call ptr @aligned_alloc(i64 4096, i64 %size)
  store ptr %new, ptr %s
  %none = icmp eq ptr %new, null
  br i1 %none, label %fail.slot, label %grown
grown:
  store i64 %size, ptr %have.p
  br label %go
go:
  %mem = phi ptr [ %old, %have ], [ %new, %grown ]
  %done = call i1 @work(ptr %job, i32 %t, ptr %mem, i64 %deadline)
  store atomic i32 0, ptr %taken release, align 4
  ret i1 %done
fail.slot:
  store atomic i32 0, ptr %taken release, align 4
  br label %fail
fail:
  %status = getelementptr %job, ptr %job, i64 0, i32 8
  store atomic i64 1, ptr %status monotonic, align 8
  ret i1 true
}}

; Fill a job for %threads at most. Returns the number of threads that it is for.
define internal i32 @prepare(ptr %job, ptr %fn, ptr %args, i32 %gx, i32 %gy, i32 %gz, i64 %scratch, i32 %threads) {{
entry:
  %x = zext i32 %gx to i64
  %y = zext i32 %gy to i64
  %z = zext i32 %gz to i64
  %xy = mul i64 %x, %y
  %count = mul i64 %xy, %z
  %limit = call i64 @llvm.smin.i64(i64 %count, i64 {threads})
  %most = trunc i64 %limit to i32
  %some = call i32 @llvm.smin.i32(i32 %threads, i32 %most)
  %use = call i32 @llvm.smax.i32(i32 %some, i32 1)
  store ptr %fn, ptr %job
  %p1 = getelementptr %job, ptr %job, i64 0, i32 1
  store ptr %args, ptr %p1
  %p2 = getelementptr %job, ptr %job, i64 0, i32 2
  store i64 %count, ptr %p2
  %p3 = getelementptr %job, ptr %job, i64 0, i32 3
  store i64 %scratch, ptr %p3
  %p4 = getelementptr %job, ptr %job, i64 0, i32 4
  store i32 %gx, ptr %p4
  %p5 = getelementptr %job, ptr %job, i64 0, i32 5
  store i32 %gy, ptr %p5
  %p6 = getelementptr %job, ptr %job, i64 0, i32 6
  store i32 %gz, ptr %p6
  %p7 = getelementptr %job, ptr %job, i64 0, i32 7
  store i32 %use, ptr %p7
  %p8 = getelementptr %job, ptr %job, i64 0, i32 8
  store i64 0, ptr %p8
  %p11 = getelementptr %job, ptr %job, i64 0, i32 11
  store i64 0, ptr %p11
  br label %each
each:
  %t = phi i32 [ 0, %entry ], [ %t1, %each ]
  %first = call i64 @part(i64 %count, i32 %use, i32 %t)
  %c = getelementptr %job, ptr %job, i64 0, i32 9, i32 %t, i32 0
  store i64 %first, ptr %c
  %t1 = add i32 %t, 1
  %all = icmp eq i32 %t1, %use
  br i1 %all, label %done, label %each
done:
  ret i32 %use
}}
declare i32 @llvm.smin.i32(i32, i32)
declare i32 @llvm.smax.i32(i32, i32)

define internal void @region(ptr %data) {{
  %number = getelementptr {{ ptr, ptr }}, ptr %data, i64 0, i32 1
  %thread_num = load ptr, ptr %number
  %job = load ptr, ptr %data
  %t = call i32 %thread_num()
  %n.p = getelementptr %job, ptr %job, i64 0, i32 7
  %n = load i32, ptr %n.p
  %mine = icmp ult i32 %t, %n
  br i1 %mine, label %go, label %done
go:
  %first = icmp eq i32 %t, 0 ; the thread that called
  br i1 %first, label %stamp, label %share
stamp:
  %now = call i64 @now()
  %begun = getelementptr %job, ptr %job, i64 0, i32 10
  store i64 %now, ptr %begun
  br label %share
share:
  %all = call i1 @enter(ptr %job, i32 %t, i64 0)
  br label %done
done:
  ret void
}}

; Run one launch on %threads of OpenMP's %team: %parallel is GOMP_parallel, %number is omp_get_thread_num. libgomp ends the
; threads that a smaller team than the last one leaves over, so every launch takes the same team. The work does not depend
; on how many threads OpenMP grants: parts without a thread are taken by the others.
define i64 @tp_launch_omp(ptr %fn, ptr %args, i32 %gx, i32 %gy, i32 %gz, i64 %scratch, i32 %threads, i32 %team,
                          ptr %parallel, ptr %number) {{
  %job = alloca %job, align 64
  %use = call i32 @prepare(ptr %job, ptr %fn, ptr %args, i32 %gx, i32 %gy, i32 %gz, i64 %scratch, i32 %threads)
  %alone = icmp eq i32 %use, 1
  br i1 %alone, label %inline, label %try
inline:
  %all = call i1 @enter(ptr %job, i32 0, i64 0)
  br label %done
try:
  %already = call i1 @alone(ptr %job)
  br i1 %already, label %done, label %share
share:
  %start = call i64 @now()
  %data = alloca {{ ptr, ptr }}
  store ptr %job, ptr %data
  %d1 = getelementptr {{ ptr, ptr }}, ptr %data, i64 0, i32 1
  store ptr %number, ptr %d1
  call void %parallel(ptr @region, ptr %data, i32 %team, i32 0)
  call void @met(ptr %job, i64 %start)
  br label %done
done:
  %status.p = getelementptr %job, ptr %job, i64 0, i32 8
  %status = load atomic i64, ptr %status.p monotonic, align 8
  ret i64 %status
}}

define internal ptr @worker(ptr %arg) {{
entry:
  %k64 = ptrtoint ptr %arg to i64
  %k = trunc i64 %k64 to i32
  %thread = add i32 %k, 1
  br label %wait
wait:
  %seen = phi i32 [ 0, %entry ], [ %gen2, %after ]
  br label %spin
spin:
  %n = phi i32 [ 0, %wait ], [ %n1, %pause ]
  %w = load atomic i64, ptr @pool.word acquire, align 8
  %wh = lshr i64 %w, 32
  %gen = trunc i64 %wh to i32
  %new = icmp ne i32 %gen, %seen
  br i1 %new, label %look, label %turn
turn:
  %n1 = add i32 %n, 1
  %tired = icmp sgt i32 %n1, {spin_count}
  br i1 %tired, label %sleep, label %pause
pause:
  {spin}
  br label %spin
sleep:
  %old = atomicrmw add ptr @pool.sleepers, i32 1 seq_cst
  %hi = getelementptr i8, ptr @pool.word, i64 4
  %r = call i64 (i64, ...) @syscall(i64 {futex}, ptr %hi, i32 128, i32 %seen, ptr null)
  %old2 = atomicrmw sub ptr @pool.sleepers, i32 1 seq_cst
  br label %spin.again
spin.again:
  %w2 = load atomic i64, ptr @pool.word acquire, align 8
  %w2h = lshr i64 %w2, 32
  %g2 = trunc i64 %w2h to i32
  %same = icmp eq i32 %g2, %seen
  br i1 %same, label %sleep, label %look
look:
  %ww = phi i64 [ %w, %spin ], [ %w2, %spin.again ]
  %wwh = lshr i64 %ww, 32
  %gen2 = trunc i64 %wwh to i32
  %want = trunc i64 %ww to i32
  %mine = icmp ult i32 %k, %want
  br i1 %mine, label %take, label %after
take:
  %job = load ptr, ptr @pool.job
  %all = call i1 @enter(ptr %job, i32 %thread, i64 0)
  %was = atomicrmw sub ptr @pool.pending, i32 1 acq_rel
  %last = icmp eq i32 %was, 1
  br i1 %last, label %tell, label %after
tell:
  %r2 = call i64 (i64, ...) @syscall(i64 {futex}, ptr @pool.pending, i32 129, i32 1)
  br label %after
after:
  br label %wait
}}

; Run one launch whose header and arguments are packed in one block of 8-byte slots: function, grid x, y, z, scratch bytes,
; threads for it | threads there are << 32, GOMP_parallel (0: our own threads), omp_get_thread_num, the kernel's arguments.
define i64 @tp_call(ptr %p) {{
  %fn = load ptr, ptr %p
  %p1 = getelementptr i64, ptr %p, i64 1
  %gx = load i32, ptr %p1
  %p2 = getelementptr i64, ptr %p, i64 2
  %gy = load i32, ptr %p2
  %p3 = getelementptr i64, ptr %p, i64 3
  %gz = load i32, ptr %p3
  %p4 = getelementptr i64, ptr %p, i64 4
  %scratch = load i64, ptr %p4
  %p5 = getelementptr i64, ptr %p, i64 5
  %threads = load i32, ptr %p5
  %p5.high = getelementptr i32, ptr %p5, i64 1
  %team = load i32, ptr %p5.high
  %p6 = getelementptr i64, ptr %p, i64 6
  %parallel = load ptr, ptr %p6
  %p7 = getelementptr i64, ptr %p, i64 7
  %number = load ptr, ptr %p7
  %args = getelementptr i64, ptr %p, i64 8
  %none = icmp eq ptr %parallel, null
  br i1 %none, label %own, label %omp
own:
  %s1 = call i64 @tp_launch(ptr %fn, ptr %args, i32 %gx, i32 %gy, i32 %gz, i64 %scratch, i32 %threads)
  ret i64 %s1
omp:
  %s2 = call i64 @tp_launch_omp(ptr %fn, ptr %args, i32 %gx, i32 %gy, i32 %gz, i64 %scratch, i32 %threads,
                                i32 %team, ptr %parallel, ptr %number)
  ret i64 %s2
}}

; Run one launch on this module's own threads. Returns 0, 1 when scratch could not be had, or what a kernel returned.
define i64 @tp_launch(ptr %fn, ptr %args, i32 %gx, i32 %gy, i32 %gz, i64 %scratch, i32 %threads) {{
  %job = alloca %job, align 64
  %tid = alloca i64
  %use = call i32 @prepare(ptr %job, ptr %fn, ptr %args, i32 %gx, i32 %gy, i32 %gz, i64 %scratch, i32 %threads)
  %alone = icmp eq i32 %use, 1
  br i1 %alone, label %inline, label %first
first:
  %already = call i1 @alone(ptr %job)
  br i1 %already, label %report, label %try
try:
  %won = cmpxchg ptr @pool.lock, i32 0, i32 1 acquire monotonic
  %got = extractvalue {{ i32, i1 }} %won, 1
  br i1 %got, label %begin, label %inline
inline:
  %all = call i1 @enter(ptr %job, i32 0, i64 0)
  br label %report
begin:
  %start = call i64 @now()
  %begun = getelementptr %job, ptr %job, i64 0, i32 10
  store i64 %start, ptr %begun
  %wanted = sub i32 %use, 1
  br label %spawn
spawn:
  %have.w = load i32, ptr @pool.workers
  %enough = icmp sge i32 %have.w, %wanted
  br i1 %enough, label %publish, label %create
create:
  %k2 = zext i32 %have.w to i64
  %arg = inttoptr i64 %k2 to ptr
  %rc = call i32 @pthread_create(ptr %tid, ptr null, ptr @worker, ptr %arg)
  %bad = icmp ne i32 %rc, 0
  br i1 %bad, label %publish, label %created
created:
  %id = load i64, ptr %tid
  %rc2 = call i32 @pthread_detach(i64 %id)
  %have.w1 = add i32 %have.w, 1
  store i32 %have.w1, ptr @pool.workers
  br label %spawn
publish:
  %alive = load i32, ptr @pool.workers
  %active = call i32 @llvm.smin.i32(i32 %alive, i32 %wanted)
  %active64 = zext i32 %active to i64
  store ptr %job, ptr @pool.job
  store atomic i32 %active, ptr @pool.pending monotonic, align 4
  %w = load i64, ptr @pool.word
  %g = lshr i64 %w, 32
  %g1 = add i64 %g, 1
  %g2 = shl i64 %g1, 32
  %w1 = or i64 %g2, %active64
  store atomic i64 %w1, ptr @pool.word seq_cst, align 8
  %asleep = load atomic i32, ptr @pool.sleepers seq_cst, align 4
  %any = icmp sgt i32 %asleep, 0
  br i1 %any, label %wake, label %join
wake:
  %hi = getelementptr i8, ptr @pool.word, i64 4
  %r = call i64 (i64, ...) @syscall(i64 {futex}, ptr %hi, i32 129, i32 2147483647)
  br label %join
join:
  %whole = call i1 @enter(ptr %job, i32 0, i64 0)
  br label %wait
wait:
  %n = phi i32 [ 0, %join ], [ %n1, %pause ]
  %left = load atomic i32, ptr @pool.pending acquire, align 4
  %done = icmp eq i32 %left, 0
  br i1 %done, label %finish, label %turn
turn:
  %n1 = add i32 %n, 1
  %tired = icmp sgt i32 %n1, {spin_count}
  br i1 %tired, label %sleep, label %pause
pause:
  {spin}
  br label %wait
sleep:
  %left2 = load atomic i32, ptr @pool.pending acquire, align 4
  %done2 = icmp eq i32 %left2, 0
  br i1 %done2, label %finish, label %block
block:
  %r3 = call i64 (i64, ...) @syscall(i64 {futex}, ptr @pool.pending, i32 128, i32 %left2, ptr null)
  br label %sleep
finish:
  store atomic i32 0, ptr @pool.lock release, align 4
  call void @met(ptr %job, i64 %start)
  br label %report
report:
  %status.p = getelementptr %job, ptr %job, i64 0, i32 8
  %status = load atomic i64, ptr %status.p monotonic, align 8
  ret i64 %status
}}

; In a forked child: the workers are gone, and so is whoever held the lock.
define void @tp_forget() {{
  store i64 0, ptr @pool.word
  store i32 0, ptr @pool.sleepers
  store i32 0, ptr @pool.pending
  store i32 0, ptr @pool.lock
  store i32 0, ptr @pool.workers
  store i64 0, ptr @alone.until
  br label %each
each:
  %k = phi i32 [ 0, %0 ], [ %k1, %each ]
  %s = getelementptr [{slots} x %slot], ptr @slots, i64 0, i32 %k, i32 2
  store i32 0, ptr %s
  %k1 = add i32 %k, 1
  %out = icmp eq i32 %k1, {slots}
  br i1 %out, label %done, label %each
done:
  ret void
}}
"""

#: nanoseconds, by the C library
_CLOCK = """
declare i32 @clock_gettime(i32, ptr)
define internal i64 @now() {
  %t = alloca { i64, i64 }
  %r = call i32 @clock_gettime(i32 1, ptr %t)
  %s = load i64, ptr %t
  %n.p = getelementptr { i64, i64 }, ptr %t, i64 0, i32 1
  %n = load i64, ptr %n.p
  %ns = mul i64 %s, 1000000000
  %all = add i64 %ns, %n
  ret i64 %all
}"""
#: nanoseconds to within a factor of two, by the CPU's counter: the C library's clock takes three times as long, which the shortest shared launches feel
_COUNTER = """
declare i64 @llvm.readcyclecounter()
define internal i64 @now() {{
  %c = {counter}
  %ns = lshr i64 %c, 1
  ret i64 %ns
}}"""


def pool_ir(target: Target) -> str:
    """The runtime's LLVM IR for a row."""
    spin = target.spin or "fence syncscope(\"singlethread\") seq_cst"
    declared = ""
    if target.spin:
        name = target.spin.split("@")[1].split("(")[0]
        params = "i32" if "i32" in target.spin else ""
        declared = f"declare void @{name}({params})"
    return _IR.format(triple=target.triple, slots=SLOTS, threads=MAX_THREADS, futex=target.futex,
                      spin=spin, spin_decl=declared, spin_count=SPIN, now=_COUNTER.format(counter=target.counter) if target.counter else _CLOCK, late=LATE, longest=LONGEST, recent=RECENT)
