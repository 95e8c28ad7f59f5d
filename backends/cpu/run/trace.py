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
from . import kept, late, launch
from ..llvm import ir, targets
from ..llvm.targets import Target

#: of one chunk: its first and last time, first program, one past its last program, pthread_self() of the thread, index into `Trace.launches`
SPAN = np.dtype([("start", "<i8"), ("end", "<i8"), ("first", "<i8"), ("last", "<i8"), ("thread", "<u8"), ("launch", "<i8")])
#: bytes before a trace's spans: how many there were, how many there is room for
HEAD = 64
#: chunks that are kept where nothing else is said: 48 MiB
CAPACITY = 1 << 20


def trace_ir(target: Target) -> str:
    """The trampoline's LLVM IR for a row. The three words before a launch's header (pool.py) are the kernel, the trace's memory and the launch's
    number; the one before them is the pool's entry point. The trampoline finds them by its arguments' address, which follows the header's eight words."""
    m = ir.Module("trace", target.triple, attributes="")
    b = ir.define(m, "tp_call_traced", "i64", words="ptr")
    words, = b.fn.args
    b.ret(b.call(b.load("ptr", words), "i64", [b.gep("i64", words, ir.i64(4))]))
    late.add_clock(m)
    b = ir.define(m, "tp_traced", "i64", args="ptr", scratch="ptr", begin="i64", end="i64", gx="i32", gy="i32", gz="i32")
    args, _, begin, end, *_ = b.fn.args
    function, memory, launch = (b.load(ty, b.gep("i64", args, ir.i64(k))) for ty, k in (("ptr", -11), ("ptr", -10), ("i64", -9)))
    start = b.call("now", "i64", [])
    status = b.call(function, "i64", b.fn.args)
    stop = b.call("now", "i64", [])
    k = b.atomic("add", memory, ir.i64(1))
    with b.when(b.icmp("ult", k, b.load("i64", b.gep("i64", memory, ir.i64(1))))):
        span = b.gep("i8", memory, b.add(b.mul(k, SPAN.itemsize), HEAD))
        for n, word in enumerate((start, stop, begin, end, None, launch)):
            b.store(word or b.call("pthread_self", "i64", []), b.gep("i64", span, ir.i64(n)))
    b.ret(status)
    return m.render()


@functools.lru_cache(maxsize=None)
def _entries():
    """(tp_call_traced as a function of bytes, the address of tp_traced)."""
    target = targets.native()
    at = launch.load_object(kept.emitted("trace", trace_ir, target), ["tp_call_traced", "tp_traced"])
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
        self._pool = launch.pool().address

    def __enter__(self):
        from triton import knobs

        if launch.tracer is not None:
            raise Error("a trace of the CPU backend is open already; close it first")
        self._before, (self._call, self._entry) = knobs.compilation.listener, _entries()
        knobs.compilation.listener = self._compiled
        launch.tracer = self.launch
        return self

    def __exit__(self, *exc):
        from triton import knobs

        launch.tracer = None
        knobs.compilation.listener = self._before

    def launch(self, kernel: dict, grid: tuple[int, int, int], tensors, packed: bytes) -> int:
        """Run a packed launch (`launch.Pool.call`) through the trampoline. Returns its status."""
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
