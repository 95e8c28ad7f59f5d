"""The runtime in LLVM IR: a pool of parked threads that share out a launch's programs.

Written as IR so that it needs no C compiler and is the same code on every ISA (a bundle for a board links it too).

- A launch publishes one 64-bit word (generation << 32 | workers wanted); workers spin briefly, then sleep on its upper
  half with futex. A worker whose number is below the count takes part; the launcher waits for all who do.
- Programs are handed out in chunks by an atomic counter: neighbours stay together, uneven programs balance out.
- One launch owns the pool at a time; another thread's launch meanwhile runs inline. Each slot (worker or caller) keeps
  its scratch block and grows it when a kernel needs more.
- After fork the child has no workers: `tp_forget` (called from Python's at-fork hook) starts from nothing.
"""

from __future__ import annotations

from .targets import Target

MAX_WORKERS = 255
CALLER_SLOTS = 16
SPIN = 2000  # turns of the waiting loop before a worker sleeps: some 50 microseconds
#: status codes of tp_launch
OK, NO_MEMORY = 0, 1

_IR = """
target triple = "{triple}"

%slot = type {{ ptr, i64, i32, i32 }} ; scratch, its bytes, taken, padding

@pool.word = internal global i64 0, align 64       ; generation << 32 | workers wanted
@pool.sleepers = internal global i32 0, align 64
@pool.pending = internal global i32 0, align 64    ; workers still running the job
@pool.lock = internal global i32 0, align 64
@pool.workers = internal global i32 0
@pool.next = internal global i64 0, align 64       ; the next program to hand out
@job.fn = internal global ptr null, align 64
@job.args = internal global ptr null
@job.count = internal global i64 0
@job.chunk = internal global i64 0
@job.gx = internal global i32 0
@job.gy = internal global i32 0
@job.gz = internal global i32 0
@job.scratch = internal global i64 0
@job.status = internal global i32 0
@slots = internal global [{slots} x %slot] zeroinitializer, align 64

declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i64 @syscall(i64, ...)
declare ptr @aligned_alloc(i64, i64)
declare void @free(ptr)
{spin_decl}

; Scratch of a slot, at least `need` bytes; null when there is no memory.
define internal ptr @scratch_of(i32 %k, i64 %need) {{
  %s = getelementptr [{slots} x %slot], ptr @slots, i64 0, i32 %k
  %have.p = getelementptr %slot, ptr %s, i64 0, i32 1
  %have = load i64, ptr %have.p
  %old = load ptr, ptr %s
  %enough = icmp uge i64 %have, %need
  br i1 %enough, label %keep, label %grow
keep:
  ret ptr %old
grow:
  call void @free(ptr %old)
  store ptr null, ptr %s
  store i64 0, ptr %have.p
  %padded = add i64 %need, 4095
  %size = and i64 %padded, -4096
  %new = call ptr @aligned_alloc(i64 4096, i64 %size)
  %none = icmp eq ptr %new, null
  br i1 %none, label %fail, label %done
fail:
  ret ptr null
done:
  store ptr %new, ptr %s
  store i64 %size, ptr %have.p
  ret ptr %new
}}

; Take chunks of the job until none is left.
define internal void @work(i32 %k) {{
  %need = load i64, ptr @job.scratch
  %some = icmp ne i64 %need, 0
  br i1 %some, label %alloc, label %go0
alloc:
  %mem = call ptr @scratch_of(i32 %k, i64 %need)
  %none = icmp eq ptr %mem, null
  br i1 %none, label %fail, label %go0
fail:
  store atomic i32 1, ptr @job.status monotonic, align 4
  ret void
go0:
  %scratch = phi ptr [ null, %0 ], [ %mem, %alloc ]
  %fn = load ptr, ptr @job.fn
  %args = load ptr, ptr @job.args
  %count = load i64, ptr @job.count
  %chunk = load i64, ptr @job.chunk
  %gx = load i32, ptr @job.gx
  %gy = load i32, ptr @job.gy
  %gz = load i32, ptr @job.gz
  br label %more
more:
  %begin = atomicrmw add ptr @pool.next, i64 %chunk monotonic
  %left = icmp slt i64 %begin, %count
  br i1 %left, label %run, label %done
run:
  %e = add i64 %begin, %chunk
  %over = icmp sgt i64 %e, %count
  %end = select i1 %over, i64 %count, i64 %e
  call void %fn(ptr %args, ptr %scratch, i64 %begin, i64 %end, i32 %gx, i32 %gy, i32 %gz)
  br label %more
done:
  ret void
}}

define internal ptr @worker(ptr %arg) {{
entry:
  %k64 = ptrtoint ptr %arg to i64
  %k = trunc i64 %k64 to i32
  %slot = add i32 %k, 1
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
  call void @work(i32 %slot)
  %was = atomicrmw sub ptr @pool.pending, i32 1 acq_rel
  %last = icmp eq i32 %was, 1
  br i1 %last, label %tell, label %after
tell:
  %r2 = call i64 (i64, ...) @syscall(i64 {futex}, ptr @pool.pending, i32 129, i32 1)
  br label %after
after:
  br label %wait
}}

; Run one launch. Returns 0, or 1 when scratch could not be had.
define i32 @tp_launch(ptr %fn, ptr %args, i32 %gx, i32 %gy, i32 %gz, i64 %scratch, i32 %threads) {{
  %x = zext i32 %gx to i64
  %y = zext i32 %gy to i64
  %z = zext i32 %gz to i64
  %xy = mul i64 %x, %y
  %count = mul i64 %xy, %z
  %t64 = sext i32 %threads to i64
  %few = icmp slt i64 %count, %t64
  %use64 = select i1 %few, i64 %count, i64 %t64
  %use = trunc i64 %use64 to i32
  %alone = icmp slt i32 %use, 2
  br i1 %alone, label %inline, label %try
try:
  %won = cmpxchg ptr @pool.lock, i32 0, i32 1 acquire monotonic
  %got = extractvalue {{ i32, i1 }} %won, 1
  br i1 %got, label %prepare, label %inline

inline:
  %some = icmp ne i64 %scratch, 0
  br i1 %some, label %find, label %bare
bare:
  call void %fn(ptr %args, ptr null, i64 0, i64 %count, i32 %gx, i32 %gy, i32 %gz)
  ret i32 0
find:
  %k = phi i32 [ {first_caller}, %inline ], [ %k1, %next ]
  %s = getelementptr [{slots} x %slot], ptr @slots, i64 0, i32 %k, i32 2
  %free = cmpxchg ptr %s, i32 0, i32 1 acquire monotonic
  %mine = extractvalue {{ i32, i1 }} %free, 1
  br i1 %mine, label %have, label %next
next:
  %k1 = add i32 %k, 1
  %out = icmp eq i32 %k1, {slots}
  br i1 %out, label %private, label %find
have:
  %mem = call ptr @scratch_of(i32 %k, i64 %scratch)
  %null = icmp eq ptr %mem, null
  br i1 %null, label %give, label %call
call:
  call void %fn(ptr %args, ptr %mem, i64 0, i64 %count, i32 %gx, i32 %gy, i32 %gz)
  br label %give
give:
  store atomic i32 0, ptr %s release, align 4
  %st = zext i1 %null to i32
  ret i32 %st
private:
  %p0 = add i64 %scratch, 4095
  %p1 = and i64 %p0, -4096
  %pm = call ptr @aligned_alloc(i64 4096, i64 %p1)
  %pn = icmp eq ptr %pm, null
  br i1 %pn, label %nomem, label %pcall
nomem:
  ret i32 1
pcall:
  call void %fn(ptr %args, ptr %pm, i64 0, i64 %count, i32 %gx, i32 %gy, i32 %gz)
  call void @free(ptr %pm)
  ret i32 0

prepare:
  %wanted0 = sub i32 %use, 1
  %most = icmp sgt i32 %wanted0, {max_workers}
  %wanted = select i1 %most, i32 {max_workers}, i32 %wanted0
  %tid = alloca i64
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
  %fewer = icmp slt i32 %alive, %wanted
  %active = select i1 %fewer, i32 %alive, i32 %wanted
  %active64 = zext i32 %active to i64
  %parts = mul i64 %use64, 8
  %c0 = udiv i64 %count, %parts
  %c1 = icmp eq i64 %c0, 0
  %chunk = select i1 %c1, i64 1, i64 %c0
  store ptr %fn, ptr @job.fn
  store ptr %args, ptr @job.args
  store i64 %count, ptr @job.count
  store i64 %chunk, ptr @job.chunk
  store i32 %gx, ptr @job.gx
  store i32 %gy, ptr @job.gy
  store i32 %gz, ptr @job.gz
  store i64 %scratch, ptr @job.scratch
  store i32 0, ptr @job.status
  store i64 0, ptr @pool.next
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
  call void @work(i32 0)
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
  %status = load atomic i32, ptr @job.status monotonic, align 4
  store atomic i32 0, ptr @pool.lock release, align 4
  ret i32 %status
}}

; In a forked child: the workers are gone, and so is whoever held the lock.
define void @tp_forget() {{
  store i64 0, ptr @pool.word
  store i32 0, ptr @pool.sleepers
  store i32 0, ptr @pool.pending
  store i32 0, ptr @pool.lock
  store i32 0, ptr @pool.workers
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


def pool_ir(target: Target) -> str:
    """The runtime's LLVM IR for a row."""
    spin = target.spin or "fence syncscope(\"singlethread\") seq_cst"
    declared = ""
    if target.spin:
        name = target.spin.split("@")[1].split("(")[0]
        params = "i32" if "i32" in target.spin else ""
        declared = f"declare void @{name}({params})"
    return _IR.format(triple=target.triple, slots=1 + MAX_WORKERS + CALLER_SLOTS, first_caller=1 + MAX_WORKERS,
                      max_workers=MAX_WORKERS, futex=target.futex, spin=spin, spin_decl=declared, spin_count=SPIN)
