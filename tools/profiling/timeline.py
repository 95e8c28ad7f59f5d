"""The CPU backend's launches, chunks and compilations as events of torch's chrome trace, and figures of them by kernel.

Events are those of the Trace Event Format (Chromium's), which Perfetto opens: lanes of a process "triton-cpu" beside torch's own, one for each
thread that ran programs, one for each that launched, one for compilations, and a counter of busy threads.
"""

from __future__ import annotations

import gzip
import json
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...backends.cpu.run.trace import Launch, Trace
from . import texts

#: the process number that our lanes stand under: above Linux's largest
PID = 1 << 23
_LAUNCH, _COMPILE = 100_000, 200_000
#: bytes of a trace of torch's that is read and joined with ours; what is larger stays apart
LARGEST = 256 << 20


@dataclass
class Kernel:
    """Figures of one kernel's steady launches of one grid. numbers: theirs in the trace; wall_s: median of a launch; busy: share of threads x wall in which programs ran, over all launches;
    imbalance: the busiest thread's time over the mean of the team's, less 1, median over launches; nbytes: that its tensor arguments span, median; rate: what `most`
    says of them and the median launch; busy and imbalance are of launches whose chunks were all kept, None where there is none."""

    name: str
    hash: str
    grid: tuple
    tile: dict
    numbers: list[int]
    threads: int
    wall_s: float
    total_s: float
    busy: float | None
    imbalance: float | None
    nbytes: int
    rate: float | None

    @property
    def launches(self) -> int:
        """How many."""
        return len(self.numbers)


#: why there is no rate of a launch whose tensors span more than memory gives in its time
UNKNOWN = "it touches a part of what its tensors span, or finds it in the caches"


def most(nbytes: int, seconds: float, bytes_per_s: float) -> float | None:
    """The bytes per second that a launch can have had from memory, whose tensors span `nbytes`: an upper bound, for nobody knows what part of them it touched. None where that
    is more than a copy's `bytes_per_s` (0: not measured), and where it has no tensors: then nothing is known."""
    rate = nbytes / max(seconds, 1e-9)
    return rate if rate and (not bytes_per_s or rate <= bytes_per_s) else None


def kernels(trace: Trace, bytes_per_s: float, first: int = 0) -> list[Kernel]:
    """Figures of the launches from number `first` on, by kernel, grid and tile; the longest in total first."""
    spans = trace.spans()
    work = defaultdict(lambda: defaultdict(int))  # launch -> thread -> ns
    seen = defaultdict(int)  # launch -> programs
    for launch, thread, ns, programs in zip(spans["launch"].tolist(), spans["thread"].tolist(), (spans["end"] - spans["start"]).tolist(),
                                            (spans["last"] - spans["first"]).tolist()):
        work[launch][thread] += ns
        seen[launch] += programs
    groups = defaultdict(list)
    for n, launch in enumerate(trace.launches):
        if n >= first and launch.end:
            groups[launch.kernel["hash"], launch.grid, launch.threads].append(n)
    out = []
    for (digest, grid, threads), numbers in groups.items():
        some = [trace.launches[n] for n in numbers]
        walls = np.array([x.end - x.start for x in some]) * 1e-9
        whole = [n for n in numbers if seen[n] == grid[0] * grid[1] * grid[2] and work[n]]
        busy = sum(sum(work[n].values()) for n in whole) / max(sum(trace.launches[n].end - trace.launches[n].start for n in whole) * threads, 1)
        uneven = [max(work[n].values()) * threads / max(sum(work[n].values()), 1) - 1 for n in whole]
        nbytes = int(np.median([x.nbytes for x in some]))
        wall = float(np.median(walls))
        out.append(Kernel(some[0].name, digest, grid, some[0].kernel["constants"], numbers, threads, wall, float(walls.sum()),
                          busy if whole else None, float(np.median(uneven)) if whole else None, nbytes,
                          most(nbytes, wall, bytes_per_s)))
    return sorted(out, key=lambda k: -k.total_s)


def _arguments(n: int, launch: Launch, bytes_per_s: float, step: dict) -> dict:
    """What a launch's event says of it."""
    seconds = max(launch.end - launch.start, 1) * 1e-9
    rate = most(launch.nbytes, seconds, bytes_per_s)
    out = {"backend": "triton-cpu", "grid": list(launch.grid), "tile": {k: str(v) for k, v in launch.kernel["constants"].items()}, "threads": launch.threads,
           "kernel hash": launch.kernel["hash"], "launch": n, "bytes (that its tensors span)": launch.nbytes}
    if rate is not None:
        out["GB/s, at most"] = round(rate / 1e9, 3)
        if bytes_per_s:
            out["% of copy bandwidth, at most"] = round(100 * rate / bytes_per_s, 2)
    elif launch.nbytes:
        out["no GB/s"] = UNKNOWN
    return out | step


def between_clocks(tries: int = 50) -> int:
    """Nanoseconds by which the clock of torch's events is ahead of CLOCK_MONOTONIC, by the two readings of this that lie closest round one of that: another program
    may take the core between them, for milliseconds."""
    readings = [(time.perf_counter_ns(), time.time_ns(), time.perf_counter_ns()) for _ in range(tries)]
    before, ahead, behind = min(readings, key=lambda r: r[2] - r[0])
    return ahead - (before + behind) // 2


def events(trace: Trace, base: int, bytes_per_s: float = 0.0, step=lambda launch: {}) -> list[dict]:
    """Trace events of all that `trace` holds. base: the trace file's "baseTimeNanoseconds", which times are counted from; step: what else a launch's
    event says."""
    ahead = between_clocks() - base

    def at(ns: int) -> float:
        return (ns + ahead) / 1e3

    def named(kind: str, tid: int, name: str, order: int) -> list[dict]:
        return [{"ph": "M", "name": f"{kind}_name", "pid": PID, "tid": tid, "args": {"name": name}},
                {"ph": "M", "name": f"{kind}_sort_index", "pid": PID, "tid": tid, "args": {"sort_index": order}}]

    spans = trace.spans()
    launchers = list(dict.fromkeys(x.thread for x in trace.launches))
    workers = list(dict.fromkeys([*launchers, *spans["thread"].tolist()]))
    out = named("process", 0, "triton-cpu", -1)
    for k, thread in enumerate(workers):
        out += named("thread", k, f"programs on thread {k}", k)
    for k, thread in enumerate(launchers):
        out += named("thread", _LAUNCH + k, f"launches from thread {workers.index(thread)}", -2 * len(launchers) + k)
    if trace.compilations:
        out += named("thread", _COMPILE, "compilations", -3 * len(launchers) - 1)
    for c in trace.compilations:
        common = {"pid": PID, "tid": _COMPILE, "ph": "X", "cat": "compile"}
        out.append(common | {"name": f"compile {c.name}", "ts": at(c.start), "dur": (c.end - c.start) / 1e3, "args": {"cached": c.hit}})
        start = c.start
        for stage, ns in c.stages:
            out.append(common | {"name": stage, "ts": at(start), "dur": ns / 1e3, "args": {"kernel": c.name}})
            start += ns
    seen = set()
    for n, x in enumerate(trace.launches):
        lane = {"pid": PID, "tid": _LAUNCH + launchers.index(x.thread)}
        first = x.kernel["hash"] not in seen
        seen.add(x.kernel["hash"])
        out.append(lane | {"ph": "X", "cat": "launch", "name": x.name, "ts": at(x.start), "dur": max(x.end - x.start, 1) / 1e3,
                           "args": _arguments(n, x, bytes_per_s, step(x)) | ({"first launch": True} if first else {})})
        out.append(lane | {"ph": "s", "cat": "launch", "name": "programs", "id": n, "ts": at(x.start)})
    met = set()
    for s in spans:
        n, k = int(s["launch"]), workers.index(int(s["thread"]))
        out.append({"ph": "X", "cat": "programs", "pid": PID, "tid": k, "name": trace.launches[n].name, "ts": at(int(s["start"])),
                    "dur": int(s["end"] - s["start"]) / 1e3, "args": {"first program": int(s["first"]), "last program": int(s["last"]) - 1, "launch": n}})
        if (n, k) not in met:
            met.add((n, k))
            out.append({"ph": "f", "bp": "e", "cat": "launch", "name": "programs", "id": n, "pid": PID, "tid": k, "ts": at(int(s["start"]))})
    edges = np.concatenate([spans["start"], spans["end"]])
    steps = np.concatenate([np.ones(len(spans), int), -np.ones(len(spans), int)])
    order = np.argsort(edges, kind="stable")
    for ns, busy in zip(edges[order].tolist(), np.cumsum(steps[order]).tolist()):
        out.append({"ph": "C", "pid": PID, "name": "busy threads", "ts": at(ns), "args": {"threads": busy}})
    return out


def join(parts: list[Path], trace: Trace | None, path: Path, bytes_per_s: float = 0.0, step=lambda launch: {}) -> str | None:
    """Write one trace of torch's (`parts`, of one process) and ours to `path`. Returns a remark where they had to stay apart.

    Launches stand in torch's trace as well, by name and grid: those events get ours' arguments."""
    sizes = [p.stat().st_size for p in parts]
    if sum(sizes) > LARGEST:
        for k, p in enumerate(parts):
            with open(p, "rb") as source, gzip.open(path.with_name(f"{path.stem}.torch{k or ''}.json.gz"), "wb", 3) as to:
                while block := source.read(1 << 20):
                    to.write(block)
        if trace is not None:
            texts.write(path, json.dumps({"traceEvents": events(trace, 0, bytes_per_s, step)}, separators=(",", ":")))
        return (f"torch's trace has {sum(sizes) >> 20} MiB: it is {path.stem}.torch.json.gz, and {path.name} has the kernels' launches and threads alone; "
                "profile fewer steps for one trace of both")
    data = None
    for p in parts:
        one = json.loads(texts.read(p))
        if data is None:
            data = one
        else:
            shift = (one.get("baseTimeNanoseconds", 0) - data.get("baseTimeNanoseconds", 0)) / 1e3
            data["traceEvents"] += [e | {"ts": e["ts"] + shift} if "ts" in e else e for e in one["traceEvents"]]
    data = data or {"traceEvents": []}
    if trace is not None:
        waiting = defaultdict(list)
        for n, x in enumerate(trace.launches):
            waiting[f"{x.name}[triton-cpu] grid({', '.join(map(str, x.grid))})"].append((n, x))
        for e in sorted((e for e in data["traceEvents"] if e.get("name") in waiting and e.get("ph") == "X"), key=lambda e: e["ts"]):
            if waiting[e["name"]]:
                n, x = waiting[e["name"]].pop(0)
                e.setdefault("args", {}).update(_arguments(n, x, bytes_per_s, step(x)))
        data["traceEvents"] += events(trace, data.get("baseTimeNanoseconds", 0), bytes_per_s, step)
    texts.write(path, json.dumps(data, separators=(",", ":")))
    return None
