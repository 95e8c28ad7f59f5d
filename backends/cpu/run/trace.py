"""What the CPU backend did and when: kernel launches, the chunks of programs that each thread ran, and compilations by stage.

While a `Trace` is open under torch.profiler, which every launch looks at anyway, a launch enters a trampoline instead of its kernel: the
pool calls that for each chunk of programs, and it notes the time before and after. Where none is open nothing is different: no branch, no word.

Times are nanoseconds of CLOCK_MONOTONIC, which `time.perf_counter_ns` reads as well.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import threading
import time
from dataclasses import dataclass, field

import numpy as np

from ...base import Error
from . import kept, launch as runtime
from ..llvm import targets
from ..llvm.targets import Target

#: of one chunk: its first and last time, first program, one past its last program, pthread_self() of the thread, index into `Trace.launches`
SPAN = np.dtype([("start", "<i8"), ("end", "<i8"), ("first", "<i8"), ("last", "<i8"), ("thread", "<u8"), ("launch", "<i8")])
#: bytes before a trace's spans: how many there were, how many there is room for
HEAD = 64
#: chunks that are kept where nothing else is said: 48 MiB
CAPACITY = 1 << 20

# The three words before a launch's header (pool.py) are the kernel, the trace's memory and the launch's number; the one before them is the pool's entry
# point. The trampoline finds them by its arguments' address, which follows the header's eight words.
_IR = """
target triple = "{triple}"

declare i32 @clock_gettime(i32, ptr)
declare i64 @pthread_self()

define internal i64 @now() {{
  %t = alloca {{ i64, i64 }}
  %r = call i32 @clock_gettime(i32 1, ptr %t)
  %s = load i64, ptr %t
  %n.p = getelementptr {{ i64, i64 }}, ptr %t, i64 0, i32 1
  %n = load i64, ptr %n.p
  %ns = mul i64 %s, 1000000000
  %sum = add i64 %ns, %n
  ret i64 %sum
}}

; A launch whose header follows four words.
define i64 @tp_call_traced(ptr %words) {{
  %call = load ptr, ptr %words
  %header = getelementptr i64, ptr %words, i64 4
  %status = call i64 %call(ptr %header)
  ret i64 %status
}}

define i64 @tp_traced(ptr %args, ptr %scratch, i64 %begin, i64 %end, i32 %gx, i32 %gy, i32 %gz) {{
  %fn.p = getelementptr i64, ptr %args, i64 -11
  %fn = load ptr, ptr %fn.p
  %memory.p = getelementptr i64, ptr %args, i64 -10
  %memory = load ptr, ptr %memory.p
  %launch.p = getelementptr i64, ptr %args, i64 -9
  %launch = load i64, ptr %launch.p
  %start = call i64 @now()
  %status = call i64 %fn(ptr %args, ptr %scratch, i64 %begin, i64 %end, i32 %gx, i32 %gy, i32 %gz)
  %stop = call i64 @now()
  %k = atomicrmw add ptr %memory, i64 1 monotonic
  %room.p = getelementptr i64, ptr %memory, i64 1
  %room = load i64, ptr %room.p
  %fits = icmp ult i64 %k, %room
  br i1 %fits, label %note, label %done
note:
  %at = mul i64 %k, {size}
  %offset = add i64 %at, {head}
  %p = getelementptr i8, ptr %memory, i64 %offset
  store i64 %start, ptr %p
  %p1 = getelementptr i64, ptr %p, i64 1
  store i64 %stop, ptr %p1
  %p2 = getelementptr i64, ptr %p, i64 2
  store i64 %begin, ptr %p2
  %p3 = getelementptr i64, ptr %p, i64 3
  store i64 %end, ptr %p3
  %self = call i64 @pthread_self()
  %p4 = getelementptr i64, ptr %p, i64 4
  store i64 %self, ptr %p4
  %p5 = getelementptr i64, ptr %p, i64 5
  store i64 %launch, ptr %p5
  br label %done
done:
  ret i64 %status
}}
"""


def trace_ir(target: Target) -> str:
    """The trampoline's LLVM IR for a row."""
    return _IR.format(triple=target.triple, size=SPAN.itemsize, head=HEAD)


@functools.lru_cache(maxsize=None)
def _entries():
    """(tp_call_traced as a function of bytes, the address of tp_traced)."""
    target = targets.native()
    at = runtime.load_object(kept.emitted("trace", trace_ir, target, far=True), ["tp_call_traced", "tp_traced"])
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_char_p)(at["tp_call_traced"]), at["tp_traced"]


_HEADER = struct.Struct("<Q32xI")  # of a packed launch: its function, its threads
_WORDS = struct.Struct("<QQQQQ").pack


@dataclass(slots=True)
class Launch:
    """One kernel launch. kernel: what `launch.make_launch` knows of it; start, end: ns; thread: pthread_self() of who launched it; threads: how many
    were to share it; nbytes: bytes that its tensor arguments span, those at one address counted once."""

    kernel: dict
    grid: tuple[int, int, int]
    threads: int
    nbytes: int
    thread: int
    start: int = 0
    end: int = 0

    @property
    def name(self) -> str:
        return self.kernel["name"]


@dataclass
class Compilation:
    """One kernel's way from Python to machine code, or from disk. stages: (name, ns) in order; end: ns; hit: was it on disk?"""

    name: str
    end: int
    stages: list[tuple[str, int]]
    hit: bool
    thread: int = field(default_factory=threading.get_ident)

    @property
    def start(self) -> int:
        return self.end - sum(ns for _, ns in self.stages)


def _extent(t) -> int:
    """Bytes from a tensor's first element to its last."""
    return t.element_size() * (1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride()))) if t.numel() else 0


class Trace:
    """A context that notes what the CPU backend does in this process, from every thread. One at a time; `Error` for a second.

    capacity: chunks that are kept; `dropped` says how many came after. Launches are seen while torch.profiler is on."""

    def __init__(self, capacity: int = CAPACITY):
        self.launches: list[Launch] = []
        self.compilations: list[Compilation] = []
        self.capacity = capacity
        # Zeroed by the first touch, not here. Kept as long as this object: a launch that is under way writes to it.
        self._memory = np.zeros(HEAD + capacity * SPAN.itemsize, np.uint8)
        self._head = self._memory[:16].view(np.int64)
        self._head[1] = capacity
        self._lock = threading.Lock()
        self._address = self._memory.ctypes.data
        self._pool = runtime.pool().address

    def __enter__(self):
        from triton import knobs

        if runtime.tracer is not None:
            raise Error("a trace of the CPU backend is open already; close it first")
        self._before, (self._call, self._entry) = knobs.compilation.listener, _entries()
        knobs.compilation.listener = self._compiled
        runtime.tracer = self.launch
        return self

    def __exit__(self, *exc):
        from triton import knobs

        runtime.tracer = None
        knobs.compilation.listener = self._before

    def launch(self, kernel: dict, grid: tuple[int, int, int], tensors, packed: bytes) -> int:
        """Run a packed launch (`runtime.Pool.call`) through the trampoline. Returns its status."""
        spans = {}
        for t in tensors:
            extent = t.nbytes if t.is_contiguous() else _extent(t)
            spans[t.data_ptr()] = max(spans.get(t.data_ptr(), 0), extent)
        function, threads = _HEADER.unpack_from(packed)
        one = Launch(kernel, grid, threads, sum(spans.values()), threading.get_ident())
        with self._lock:
            number = len(self.launches)
            self.launches.append(one)
        words = _WORDS(self._pool, function, self._address, number, self._entry) + packed[8:]
        one.start = time.perf_counter_ns()
        status = self._call(words)
        one.end = time.perf_counter_ns()
        return status

    def _compiled(self, **given):
        if self._before is not None:
            self._before(**given)
        times, metadata = given["times"], given["metadata"]
        stages = [("front end", times.ir_initialization), *times.lowering_stages, ("store", times.store_results)]
        name = metadata.get("name") if isinstance(metadata, dict) else getattr(metadata, "name", None)
        self.compilations.append(Compilation(str(name or getattr(given["src"], "name", "?")), time.perf_counter_ns(),
                                             [(stage, int(us * 1000)) for stage, us in stages if us], bool(given.get("cache_hit"))))

    @property
    def dropped(self) -> int:
        """Chunks for which there was no room."""
        return max(0, int(self._head[0]) - self.capacity)

    def spans(self) -> np.ndarray:
        """The chunks that were run, of dtype `SPAN`, by start."""
        count = min(int(self._head[0]), self.capacity)
        found = self._memory[HEAD:HEAD + count * SPAN.itemsize].view(SPAN)
        return np.sort(found, order="start")
