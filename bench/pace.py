"""The machine's own pace: a fixed piece of work, timed beside every turn, says in which rounds the machine was as fast as it can be.

Who else works on a core's other hardware thread (on a virtual machine: somebody else's machine), a lower clock frequency and caches that others fill are
not in /proc/stat. They slow calls by a tenth to a half, for milliseconds to minutes: rounds agree with each other and not with the next measurement's.
The probe's work is always the same, so its time is the machine's pace. Its two parts are timed on every thread: independent integer additions and loads
from the first cache, which want all that a core can start in a cycle and so feel whoever takes some of it, and reads of a block that lies in the second
cache.

A round counts where neither part took more than `ALLOWED` above its least of the last minute, before and after each of its turns. A machine that has
become slower for good, as a warm laptop, is at its best again a minute later. The limits are those at which six ops' rounds on a 16-core virtual machine
with busy neighbours agreed within 5 % (1, 4 and 16 threads); the reads also feel what the calls before left in the cache, so that theirs is wider.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import statistics
import struct
import time
from dataclasses import dataclass
from typing import Callable

from . import noise
from ..backends.base import Error

#: how much slower than at its best each part of the probe may be for a round to count; seconds for which a best is remembered
ALLOWED, MEMORY = (0.08, 0.2), 60
#: samples of a figure, and figures for the first best of several threads, so many seconds apart
SAMPLES, FIRST, APART = 10, 30, 0.005
#: seconds from which on a figure has no more samples: its threads have to wait for cores
LONGEST = 0.005
#: turns of the additions (some 30 us), bytes of the block, how often it is read (some 10 us), bytes of a page
TURNS, BLOCK, READS, PAGE = 16000, 256 << 10, 6, 4096


@dataclass(frozen=True)
class Figure:
    """Seconds that the probe took, by part: the median over samples of the mean over threads. together: did the threads run side by side?"""

    parts: tuple[float, ...]
    threads: int = 1
    together: bool = True


class Pace:
    """Figures, and the best of them by number of threads. sample(threads) -> for each thread the seconds at which it began, and ended each part."""

    def __init__(self, sample: Callable[[int], list[tuple[float, ...]]]):
        self._sample = sample
        self._least: dict[int, dict[int, tuple[float, ...]]] = {}  # threads -> second -> by part

    def figure(self, threads: int = 1) -> Figure:
        """How fast the machine is now, with so many threads."""
        if threads not in self._least:
            self._search(threads)
        return self._measured(threads)

    def best(self, threads: int) -> tuple[float, ...] | None:
        """The least seconds of each part in the last minute."""
        least, now = self._least.get(threads, {}), int(time.monotonic())
        return tuple(map(min, zip(*recent))) if (recent := [parts for second, parts in least.items() if second > now - MEMORY]) else None

    def _measured(self, threads: int) -> Figure:
        samples, end = [], time.perf_counter() + LONGEST
        while len(samples) < SAMPLES and (not samples or time.perf_counter() < end):
            samples.append(self._sample(threads))
        beside = [s for s in samples if max(t[0] for t in s) < min(t[-1] for t in s)]
        together = 2 * len(beside) > len(samples)
        parts = [_parts(s) for s in (beside if together else samples)]
        figure = Figure(tuple(map(statistics.median, zip(*parts))), threads, together)
        least, now = self._least.setdefault(threads, {}), int(time.monotonic())
        if together:
            least[now] = tuple(map(min, figure.parts, least.get(now, figure.parts)))
        return figure

    def _search(self, threads: int):
        """The best so far: of one thread on every core that we may use, of several for a while."""
        cores = os.sched_getaffinity(0) if threads == 1 and hasattr(os, "sched_getaffinity") else ()
        try:
            for core in 3 * sorted(cores):
                os.sched_setaffinity(0, {core})
                self._measured(threads)
        except OSError:
            pass  # a core went away
        finally:
            if cores:
                os.sched_setaffinity(0, cores)
        for _ in range(0 if cores else FIRST):
            self._measured(threads)
            time.sleep(APART)


def _parts(sample: list[tuple[float, ...]]) -> list[float]:
    """The seconds of each part, the mean over threads."""
    return [statistics.fmean(t[k + 1] - t[k] for t in sample) for k in range(len(sample[0]) - 1)]


class Rounds:
    """Which of some rounds count. pace: the process's, or None where nothing is known and all do."""

    def __init__(self, pace: Pace | None):
        self._pace, self._closed, self._open = pace, [], []

    def look(self, threads: int):
        """How fast is the machine? Called before and after a turn."""
        if self._pace is not None:
            self._open.append(self._pace.figure(threads))

    def close(self):
        """A round is over."""
        self._closed.append(self._open)
        self._open = []

    def clear(self):
        """Rounds begin again."""
        self._closed.clear()

    def count(self) -> list[int]:
        """The rounds that count, by what is now known of the best."""
        return [k for k, slower in enumerate(self._slower()) if _kept(slower)]

    def why(self, fixed: bool) -> str | None:
        """A sentence where too few rounds count to stand alone: too few for an interval or, where their number is `fixed`, not more than half of them."""
        slow = [max(slower) for slower in self._slower() if not _kept(slower)]
        n = len(self._closed) - len(slow)
        return _sentence(slow) if slow and (n <= len(slow) if fixed else n < noise.FEW) else None

    def _slower(self) -> list[tuple[float, ...]]:
        """For each round how much slower than at its best the machine was, by part: 0.23 is 23 %, infinite where threads did not run side by side."""
        best = {threads: self._pace.best(threads) for threads in {f.threads for figures in self._closed for f in figures}}

        def slower(f: Figure) -> list[float]:
            known = f.together and best[f.threads]
            return [t / b - 1 for t, b in zip(f.parts, known)] if known else [math.inf] * len(f.parts)

        return [tuple(map(max, zip(*map(slower, figures)))) for figures in self._closed]


def _kept(slower: tuple[float, ...]) -> bool:
    return all(s <= allowed for s, allowed in zip(slower, ALLOWED))


def _sentence(slow: list[float]) -> str:
    middle = statistics.median_low(slow)
    if math.isinf(middle):
        return "threads came late: there were not cores for all of them"
    return f"the machine's own pace changed by {100 * middle:.0f} % while this was measured"


@functools.lru_cache(maxsize=None)
def here() -> Pace | None:
    """This process's; None where the probe cannot be compiled."""
    try:
        return Pace(_sampler())
    except (Error, ImportError, OSError):
        return None


def threads(wall: float, cpu: float) -> int:
    """How many threads the probe is to have beside calls that took so long: one beside calls that use one, else as many as a call may use."""
    import torch
    return torch.get_num_threads() if cpu > 1.5 * wall else 1


def _sampler():
    """One sample of the probe, which is shared out as a kernel's launch is."""
    from ..backends.cpu.run import launch

    address, pool = _compiled(), launch.pool()

    @functools.lru_cache(maxsize=None)
    def prepared(n: int):
        block, out = ctypes.create_string_buffer(n * (BLOCK + PAGE) + PAGE), (ctypes.c_int64 * (3 * n))()
        ctypes.memset(block, 1, len(block))  # what was never written is one page of zeros, however much is read
        first = ctypes.addressof(block) + -ctypes.addressof(block) % PAGE
        return struct.pack("<8QQQ", address, n, 1, 1, PAGE, launch.team_of(n, 0, n), *pool.openmp, first, ctypes.addressof(out)), out, block

    def sample(n: int) -> list[tuple[float, ...]]:
        packed, out, _ = prepared(n)
        if status := pool.call(packed):
            launch.failed("pace", status, 0, (), n, 1)  # what a signal's handler raised
        return [tuple(t * 1e-9 for t in out[k:k + 3]) for k in range(0, 3 * n, 3)]

    return sample


def _compiled() -> int:
    """The address of the probe as a kernel: its arguments are the threads' blocks, and where each writes its three nanoseconds."""
    from ..backends.cpu.emit.kernel import SIGNATURE
    from ..backends.cpu.llvm import generator, ir, targets
    from ..backends.cpu.run import launch

    target = targets.native()
    lanes = target.lanes(32)
    module = ir.Module("pace", target.triple)
    module.declare("clock_gettime", "i32", ["i32", "ptr"])
    b = ir.Builder(ir.Function(module, "pace", "i64", SIGNATURE))
    args, scratch, program = ir.Val("ptr", "%args"), ir.Val("ptr", "%scratch"), ir.Val("i64", "%begin")
    block = b.gep("i8", b.load("ptr", args, 8), b.mul(program, BLOCK + PAGE))
    out = b.gep("i64", b.load("ptr", b.gep("i8", args, ir.i64(8)), 8), b.mul(program, 3))
    vector = ir.vec("float", lanes)
    sums, vectors, spec = [b.alloca("i64") for _ in range(8)], [b.alloca(vector) for _ in range(8)], b.alloca("[2 x i64]")

    def stamp(k: int):
        b.call("clock_gettime", "i32", [ir.i32(time.CLOCK_MONOTONIC), spec])
        now = b.add(b.mul(b.load("i64", spec), 1_000_000_000), b.load("i64", b.gep("i64", spec, ir.i64(1))))
        b.store(now, b.gep("i64", out, ir.i64(k)), 8)

    def add():
        for k, s in enumerate(sums):
            b.store(ir.i64(k), s)
        with b.loop(ir.i64(0), ir.i64(TURNS)) as i:
            line = b.gep("i8", block, b.add(b.and_(b.mul(i, 64), PAGE - 1), BLOCK - PAGE))  # what the reads ended with is in the first cache
            for k, s in enumerate(sums):
                v = b.xor(b.add(b.load("i64", s), 12345 + k), 23130 + k)  # nothing that can be done in fewer steps
                b.store(b.add(v, b.load("i64", b.gep("i64", line, ir.i64(k)), 8)) if k < 3 else v, s)
        for k, s in enumerate(sums):
            b.store(b.load("i64", s), b.gep("i64", scratch, ir.i64(k)))

    def read(times: int):
        for s in vectors:
            b.store(ir.const("float", 0.0, lanes), s, 64)
        with b.loop(ir.i64(0), ir.i64(times)), b.loop(ir.i64(0), ir.i64(BLOCK // (32 * lanes))) as i:
            for k, s in enumerate(vectors):
                x = b.load(vector, b.gep("float", block, b.add(b.mul(i, 8 * lanes), k * lanes)), 4)
                b.store(b.fbin("fadd", b.load(vector, s, 64), x), s, 64)
        for k, s in enumerate(vectors):
            b.store(b.load(vector, s, 64), b.gep("float", scratch, ir.i64(k * lanes)), 4)

    read(1)  # outside of the clock: what earlier calls left in the caches is not the machine's pace
    stamp(0)
    add()
    stamp(1)
    read(READS)
    stamp(2)
    b.ret(ir.i64(0))
    # without LLVM's passes, which would make vectors of the additions
    return launch.load_object(generator.emit_object(generator.in_registers(module.render()), target), ["pace"])["pace"]
