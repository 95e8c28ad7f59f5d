"""The only clock: wall and process-CPU time of candidates, interleaved in rounds.

Candidates take turns, so that whatever else the machine does meets all of them alike; each turn repeats the call until it
is long enough to time. The figures are of turns: one sample is a turn's time over its repeats. A turn must not feel the
one before it: runtimes leave threads that spin for a few milliseconds and caches full of their data, so each turn starts
with a pause and an untimed call, and who goes first changes from round to round.

How many repeats a turn has comes from several tries, of which the least counts, and rounds go on until the medians are known well enough (`noise`) or
the time is up: no single call decides about a figure.

A round counts where the machine kept its pace (`pace`): before and after every turn a fixed piece of work is timed, and where that was slower than it can
be, the round is left out and another one made. What is left are times as they were measured.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from dataclasses import dataclass, field
from typing import Callable

from . import load, noise, pace

#: seconds of pause before a turn: OpenMP's workers spin about this long after a parallel region
SETTLE = 0.005
#: seconds for which all candidates are called before any is timed: threads start, and cores clock up
WARM = 0.02
#: tries for one number of repeats, of which the least counts, and the most repeats of a turn
TRIES, MOST = 3, 10000
#: seconds from which on a call is long: it does not feel what was before it, and a second try says enough
LONG = 0.1
#: share of the budget after which rounds count although the machine did not keep its pace
PATIENCE = 0.25
#: times that rounds begin again because a turn proved too short
AGAIN = 3
#: seconds for a case's rounds, and half the width that the median's 95 % confidence interval is to have, as a share of it
BUDGET, PRECISION = 2.0, 0.02


def nothing(*_):
    """What waits for nothing, and says nothing."""


@dataclass
class Turn:
    """What a candidate does in its turn.

    call: what is timed. synchronize: waits for what it began. before(n): called outside of the clock, before every n calls: makes ready what they
    change. limit: the most calls that `before` can make ready."""

    call: Callable
    synchronize: Callable = nothing
    before: Callable[[int], object] | None = None
    limit: int | None = None

    def run(self, n: int) -> tuple[float, float]:
        """(wall, CPU) seconds of n calls."""
        return self.run_within(n, math.inf)[:2]

    def run_within(self, n: int, seconds: float) -> tuple[float, float, int]:
        """(wall, CPU) seconds of n calls, and how many: no more once they have taken `seconds`, which is looked at ten times on the way. Calls may
        have become far slower than they were when a turn's length was chosen."""
        if self.before is not None:
            self.before(n)
            self.synchronize()
        call, step, done = self.call, max(1, n // 10), 0
        cpu, wall = time.process_time(), time.perf_counter()
        while done < n and (not done or time.perf_counter() - wall < seconds):
            some = min(step, n - done)
            for _ in range(some):
                call()
            done += some
        self.synchronize()
        return time.perf_counter() - wall, time.process_time() - cpu, done


@dataclass
class Samples:
    """Seconds per call, one number for each round that counts; left_out: how many did not, for the machine did not keep its pace; busy: a sentence where
    other programs used the cores meanwhile; unsteady: one where too few rounds count and so all of them are here."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    repeats: int = 1
    busy: str | None = None
    unsteady: str | None = None
    left_out: int = 0


def summary(values: list[float]) -> dict:
    """avg, min, std, max, p20, p50, p80 of samples, in their unit; ci: [low, high], the 95 % confidence interval of the median, where there are samples enough for one."""
    ordered = sorted(values)

    def at(q):
        return ordered[min(len(ordered) - 1, round(q * (len(ordered) - 1)))]

    return {"avg": statistics.fmean(ordered), "min": ordered[0], "std": statistics.pstdev(ordered), "max": ordered[-1],
            "p20": at(0.2), "p50": statistics.median(ordered), "p80": at(0.8), "n": len(ordered)} | (
                {"ci": list(noise.interval(ordered))} if len(ordered) >= noise.FEW else {})


def once(fn: Callable, synchronize: Callable = nothing) -> tuple[float, float]:
    """(wall, CPU) seconds of one call."""
    return Turn(fn, synchronize).run(1)


def singles(turn: Turn, n: int = 10) -> tuple[list[float], list[float]]:
    """(wall, CPU) seconds of n single calls, in order: the first one is what the first one takes."""
    times = [turn.run(1) for _ in range(n)]
    return [wall for wall, _ in times], [cpu for _, cpu in times]


def calibrate(turn: Turn, seconds: float) -> int:
    """How many calls take about `seconds`: by ever more calls, the least of `TRIES` each time, since what else the machine does only makes a call longer."""
    n, least, spent = 1, math.inf, 0.0
    while True:
        for tries in range(TRIES):
            if tries and spent > LONG * 10**(2 - tries):
                break
            took = turn.run(n)[0]
            least, spent = min(least, took / n), spent + took
        wanted = _repeats(turn, seconds, least)
        if 2 * n >= wanted or spent > 10 * LONG:
            return wanted
        n = min(wanted, 10 * n)


def _repeats(turn: Turn, seconds: float, call: float) -> int:
    """How many calls of so many seconds a turn has."""
    return max(1, min(MOST, turn.limit or MOST, round(seconds / max(call, 1e-9))))


def interleave(candidates: dict[str, Turn | tuple[Callable, Callable]], rounds: int | None = None, seconds: float = 0.01,
               tick: Callable = nothing, precision: float = PRECISION, budget: float = BUDGET) -> dict[str, Samples]:
    """Time candidates {name: Turn, or (function, synchronize)} in rounds of turns of about `seconds` each, after warm-up calls.

    rounds: so many, or None for as many as it takes until every median's 95 % confidence interval is within +-`precision` of it, or `budget` seconds
    are up; then at least six, where one fits. `tick` is called after every round."""
    turns = {name: t if isinstance(t, Turn) else Turn(*t) for name, t in candidates.items()}
    looked = pace.Rounds(pace.here() if seconds else None)
    watch = load.Watch()
    threads = {name: _warm(turn, WARM / len(turns) if seconds else 0) for name, turn in turns.items()}
    out = {name: Samples(repeats=calibrate(turn, seconds)) for name, turn in turns.items()}
    least = {name: math.inf for name in turns}
    again = 0

    def take(name: str):
        turn, s = turns[name], out[name]
        time.sleep(SETTLE)
        if not s.wall or s.wall[-1] < LONG:
            least[name] = min(least[name], turn.run(1)[0])
        looked.look(threads[name])
        wall, cpu, n = turn.run_within(s.repeats, 10 * seconds or math.inf)
        looked.look(threads[name])
        s.wall.append(wall / n)
        s.cpu.append(cpu / n)
        least[name] = min(least[name], s.wall[-1])

    def ended() -> bool:
        """Call `tick`. Was a candidate calibrated in a bad moment? Turns of different lengths meet a busy machine differently, so all begin again."""
        nonlocal again
        tick()
        looked.close()
        wanted = {name: _repeats(turns[name], seconds, t) for name, t in least.items()}
        if again == AGAIN or all(n < 2 * out[name].repeats for name, n in wanted.items()):
            return False
        again += 1
        looked.clear()
        for name, s in out.items():
            s.repeats = max(wanted[name], s.repeats)
            s.wall.clear()
            s.cpu.clear()
        return True

    _in_rounds({name: s.wall for name, s in out.items()}, take, rounds, precision, budget, ended, looked.count)
    busy, unsteady = watch.busy(wait=rounds is None), looked.why(rounds is not None)  # what is soon known well enough may have been disturbed as well
    kept = looked.count() if rounds is None and not unsteady else None
    for s in out.values():
        s.busy, s.unsteady = busy, unsteady
        if kept is not None:
            s.left_out = len(s.wall) - len(kept)
            s.wall, s.cpu = [s.wall[k] for k in kept], [s.cpu[k] for k in kept]
    return out


def _warm(turn: Turn, seconds: float) -> int:
    """Call for so many seconds, at least once; how many threads the pace is to be looked at with."""
    time.sleep(SETTLE)  # the threads of whoever was called before spin
    end = time.perf_counter() + seconds
    wall, cpu = turn.run(1)
    while time.perf_counter() < end:
        took = turn.run(1)
        wall, cpu = wall + took[0], cpu + took[1]
    return pace.threads(wall, cpu)


def _in_rounds(samples: dict[str, list[float]], take: Callable, rounds: int | None, precision: float, budget: float, ended: Callable,
               count: Callable[[], list[int]] | None = None):
    """`take(name)`, which adds to a candidate's samples, for all of them in turns: for so many rounds, or until precise or out of budget. After each
    round `ended()`: are the samples gone, and rounds to be counted anew? `count()`: those that count; all do where after a share of the budget too few
    of them did, for then the machine's pace is what it is."""
    order = list(samples)
    start = begun = time.perf_counter()
    n = 0

    def done() -> bool:
        now, kept = time.perf_counter(), None if count is None else count()
        elapsed, each = now - start, (now - begun) / max(n, 1)
        if kept is None or len(kept) < noise.FEW and elapsed >= PATIENCE * budget:
            return _enough(samples, n, elapsed, each, precision, budget)
        return _enough({name: [s[k] for k in kept] for name, s in samples.items()}, n, elapsed, each, precision, budget)

    while order and (n < rounds if rounds is not None else not done()):
        for name in order[n % len(order):] + order[:n % len(order)]:
            take(name)
        if ended():
            begun, n = time.perf_counter(), 0
        else:
            n += 1


def _enough(samples: dict[str, list[float]], n: int, elapsed: float, each: float, precision: float, budget: float) -> bool:
    """After n rounds of `each` seconds, `elapsed` seconds after the first ones began, of which these samples count: is every median known well enough, or the time up?"""
    if n < noise.FEW:
        return n > 0 and each > budget  # not even one round fits
    return elapsed >= budget or all(len(s) >= noise.FEW and noise.width(s) <= precision for s in samples.values())


def on_gpu(candidates: dict[str, Callable | Turn], rounds: int | None = None, repeats: int = 5, precision: float = PRECISION,
           budget: float = BUDGET) -> dict[str, list[float]]:
    """Seconds of GPU time a call, by CUDA events: name -> the median of `repeats` for each round, candidates in turns; rounds as `interleave`'s.

    Before each repeat the L2 is filled with another block, which is read and not written: lines that a candidate would have to write back first
    would count as its time. What can be captured is replayed as a CUDA graph, so that the time of many short
    kernels is theirs and not the host's; what cannot (a library that waits for the host), or has a `before`, is called."""
    import torch

    flush = torch.zeros(4 * torch.cuda.get_device_properties(0).L2_cache_size // 4, device="cuda")
    into = torch.empty((), device="cuda")
    turns = {name: t if isinstance(t, Turn) else Turn(t) for name, t in candidates.items()}
    runs = {name: captured(t.call) if t.before is None else t.call for name, t in turns.items()}
    out: dict[str, list[float]] = {name: [] for name in candidates}

    def take(name: str):
        turn = turns[name]
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(min(repeats, turn.limit or repeats))]
        if turn.before is not None:
            turn.before(len(events))
        for start, end in events:
            torch.sum(flush, 0, out=into)
            start.record()
            runs[name]()
            end.record()
        torch.cuda.synchronize()
        out[name].append(statistics.median(start.elapsed_time(end) for start, end in events) / 1e3)

    _in_rounds(out, take, rounds, precision, budget, nothing)
    return out


def captured(fn: Callable) -> Callable:
    """The replay of `fn` as a CUDA graph, or `fn` where it cannot be captured."""
    import torch

    fn()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            fn()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            made = fn()
    except RuntimeError:
        with contextlib.suppress(RuntimeError):
            torch.cuda.synchronize()
        return fn

    def replay():
        graph.replay()
        return made  # what the graph writes stays while it may be replayed

    return replay
