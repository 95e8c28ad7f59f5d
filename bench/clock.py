"""The only clock: wall and process-CPU time of candidates, interleaved in rounds.

Candidates take turns, so that whatever else the machine does meets all of them alike; each turn repeats the call until it
is long enough to time. The figures are of turns: one sample is a turn's time over its repeats. A turn must not feel the
one before it: runtimes leave threads that spin for a few milliseconds and caches full of their data, so each turn starts
with a pause and an untimed call, and who goes first changes from round to round.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from dataclasses import dataclass, field
from typing import Callable


#: seconds of pause before a turn: OpenMP's workers spin about this long after a parallel region
SETTLE = 0.005


@dataclass
class Samples:
    """Seconds per call, one number for each round."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    repeats: int = 1


def summary(values: list[float]) -> dict[str, float]:
    """avg, min, std, max, p20, p50, p80 of samples, in their unit."""
    ordered = sorted(values)

    def rank(q):
        return ordered[min(len(ordered) - 1, round(q * (len(ordered) - 1)))]

    return {"avg": statistics.fmean(ordered), "min": ordered[0], "std": statistics.pstdev(ordered), "max": ordered[-1],
            "p20": rank(0.2), "p50": statistics.median(ordered), "p80": rank(0.8), "n": len(ordered)}


def once(fn: Callable, synchronize: Callable = lambda: None) -> tuple[float, float]:
    """(wall, CPU) seconds of one call."""
    cpu, wall = time.process_time(), time.perf_counter()
    fn()
    synchronize()
    return time.perf_counter() - wall, time.process_time() - cpu


def interleave(candidates: dict[str, tuple[Callable, Callable]], rounds: int = 10, seconds: float = 0.01,
               tick: Callable = lambda: None) -> dict[str, Samples]:
    """Time candidates {name: (function, synchronize)} in `rounds` rounds of turns of about `seconds` each, after two
    warm-up calls. `tick` is called after every round."""
    out = {}
    for name, (fn, sync) in candidates.items():
        fn()
        wall, _ = once(fn, sync)
        out[name] = Samples(repeats=max(1, min(10000, round(seconds / max(wall, 1e-7)))))
    order = list(candidates)
    for n in range(rounds):
        for name in order[n % len(order):] + order[:n % len(order)]:
            (fn, sync), s = candidates[name], out[name]
            time.sleep(SETTLE)
            fn()
            sync()
            cpu, wall = time.process_time(), time.perf_counter()
            for _ in range(s.repeats):
                fn()
            sync()
            s.wall.append((time.perf_counter() - wall) / s.repeats)
            s.cpu.append((time.process_time() - cpu) / s.repeats)
        tick()
    return out


def on_gpu(candidates: dict[str, Callable], rounds: int = 10, repeats: int = 5) -> dict[str, list[float]]:
    """Seconds of GPU time a call, by CUDA events: name -> the median of `repeats` for each round, candidates in turns.

    Before each repeat the L2 is filled with another block, which is read and not written: lines that a candidate would have to write back first
    would count as its time. What can be captured is replayed as a CUDA graph, so that the time of many short
    kernels is theirs and not the host's; what cannot (a library that waits for the host) is called."""
    import torch

    flush = torch.zeros(4 * torch.cuda.get_device_properties(0).L2_cache_size // 4, device="cuda")
    nothing = torch.empty((), device="cuda")
    runs = {name: _captured(fn) for name, fn in candidates.items()}
    out: dict[str, list[float]] = {name: [] for name in candidates}
    order = list(candidates)
    for n in range(rounds):
        for name in order[n % len(order):] + order[:n % len(order)]:
            events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
            for start, end in events:
                torch.sum(flush, 0, out=nothing)
                start.record()
                runs[name]()
                end.record()
            torch.cuda.synchronize()
            out[name].append(statistics.median(start.elapsed_time(end) for start, end in events) / 1e3)
    return out


def _captured(fn: Callable) -> Callable:
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
