"""A run: for each op x case x dtype check every backend against the float64 reference, then time those that are right,
interleaved. Nothing is timed that was not checked in the same run."""

from __future__ import annotations

import itertools
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from typing import Callable

import torch

from ..backends import get as get_backend
from ..backends.base import Error, suggest
from ..ops.common import DTYPES
from . import check, clock, first, load, memory, roofline
from .results import Results, add_rates, add_times, machine


@dataclass
class Plan:
    """What to run. `cases`: substrings of case names, none for each op's default ones; `device`: where the torch columns run."""

    ops: list
    backends: list[str]
    dtypes: list[str]
    cases: list[str]
    rounds: int = 10
    seconds: float = 0.01
    cold: bool = True
    seed: int = 0
    device: str = "cpu"
    threads: int = 0
    #: (op, dtype, backend) whose first call in a new process was measured
    seen: set = field(default_factory=set)

    def items(self):
        """(op, dtype name, case) in order. Raises `Error` where nothing is left to run."""
        out = []
        for op in self.ops:
            for name in self.dtypes:
                if name not in op.dtypes:
                    continue
                for case in op.cases if self.cases else op.cases_on(self.device):
                    if not self.cases or any(c == case.name or c in case.name for c in self.cases):
                        out.append((op, name, case))
        if not out:
            known = sorted({c.name for op in self.ops for c in op.cases})
            dtypes = sorted({d for op in self.ops for d in op.dtypes})
            if self.cases and not any(c in k for c in self.cases for k in known):
                raise Error(suggest("case", self.cases[0], known))
            raise Error(f"nothing to run: of dtypes {', '.join(self.dtypes)} the chosen ops take {', '.join(dtypes)}")
        return out


def first_calls(backend, op, args, kwargs) -> dict[str, float]:
    """Seconds of the first call: cold (nothing compiled before, an empty cache), and reloaded: the process has its runtime, and forgot the
    op's kernels, which are on disk."""
    if not backend.compiles or not hasattr(backend, "forget"):
        return {}
    out = {}
    with tempfile.TemporaryDirectory(prefix="triport-cold-") as folder, backend.fresh_caches(folder):
        for key in ("cold", "reload"):
            backend.forget(op)
            out[key] = clock.once(lambda: backend.bind(op)(*args, **kwargs))[0]
        backend.forget(op)
    return out


def run(plan: Plan, results: Results, tick: Callable = lambda *a: None) -> int:
    """Carry out a plan. Returns how many results were wrong."""
    wrong = 0
    items = plan.items()
    results.meta, watch = machine(plan.device), load.Watch()
    places = {"board" if get_backend(b).elsewhere else get_backend(b).place(plan.device) for b in plan.backends}
    limits = {"cpu": roofline.measure("cpu", torch.get_num_threads())} if places - {"board"} else {}
    for name in plan.backends:
        if get_backend(name).elsewhere:
            results.meta |= get_backend(name).facts()
            limits["board"] = {"bytes_per_s": results.meta["board"]["bytes_per_s"]}
    if "cuda" in places:
        limits["cuda"] = roofline.measure("cuda")
    results.meta["roofline"] = limits
    results.save()
    for n, (op, dtype, case) in enumerate(items):
        tick(n, len(items), f"{op.name} {case.name} {dtype}")
        candidates, rows, wanted = {}, {}, {}
        for name in plan.backends:
            if not get_backend(name).takes(op):
                continue
            prepare = _on_board if get_backend(name).elsewhere else _prepare
            row = prepare(plan, op, dtype, case, get_backend(name), candidates, wanted)
            rows[name] = row
            wrong += row["status"] != "ok"
        wanted.clear()
        samples = clock.interleave({n: (c.turn, c.synchronize) for n, c in candidates.items()}, plan.rounds, plan.seconds) if candidates else {}
        on_gpu = {n: c.call for n, c in candidates.items() if rows[n]["device"] == "cuda"}
        devices = clock.on_gpu(on_gpu, plan.rounds) if on_gpu else {}
        for name, row in rows.items():
            if name in samples:
                add_times(row, samples[name], devices.get(name))
        base = rows.get("torch")
        for row in rows.values():
            if "wall_s" in row:
                add_rates(row, base if base and "wall_s" in base else None, limits[row["device"]], dtype)
            results.add(row)
    tick(len(items), len(items), "")
    results.meta |= watch.fact()
    results.finish()
    return wrong


def _new_process(plan, op, dtype, case, backend, row):
    """Add the first call in a new process to a row, the kernels being on disk by now: of an op, dtype and backend at the first case, for a process
    takes seconds to start."""
    if not plan.cold or not row["first_call_s"].get("reload"):
        return
    key = (op.name, dtype, backend.name)
    if key in plan.seen:
        return
    plan.seen.add(key)
    try:
        said = first.of_op(op, case.name, dtype, backend.name, row["device"], plan.seed, torch.get_num_threads())
        if said is not None and said["compiled"]:  # what a run before it left unfinished, or what files touched just now keep from being remembered
            said = first.of_op(op, case.name, dtype, backend.name, row["device"], plan.seed, torch.get_num_threads())
        if said is not None and said["compiled"]:
            raise Error("it compiled its kernels again, as if nothing were on disk; is Triton's cache directory writable?")
        if said is not None:
            row["first_call_s"]["process"], row["first_call_cpu_s"] = said["wall"], {"process": said["cpu"]}
    except Error as e:
        row["new_process"] = str(e)


@dataclass
class Candidate:
    """A right result's way there. call: with one set of inputs; turn: with the next of several sets, so many that they do not fit in a GPU's L2."""

    call: Callable
    turn: Callable
    synchronize: Callable


def _sets(args: list, nbytes: int) -> list[list]:
    """The inputs, and on a GPU copies of them: as many as it takes to leave its L2 twice, 16 at most."""
    if not args[0].is_cuda:
        return [args]
    l2 = torch.cuda.get_device_properties(args[0].device).L2_cache_size
    return [args, *([a.clone() for a in args] for _ in range(min(15, 2 * l2 // max(nbytes, 1))))]


def _prepare(plan, op, dtype, case, backend, candidates, wanted) -> dict:
    """Check one backend's result; a right one becomes a candidate for timing. wanted: device -> the reference's result."""
    device = backend.place(plan.device)
    args = case.make(DTYPES[dtype], device, plan.seed)
    row = {"op": op.name, "case": case.name, "dtype": dtype, "backend": backend.name, "device": device,
           "bytes": op.nbytes(*args, **case.kwargs) if op.nbytes else None,
           "flops": op.flops(*args, **case.kwargs) if op.flops else None}
    try:
        row["first_call_s"] = first_calls(backend, op, args, case.kwargs) if plan.cold else {}
        bound = backend.bind(op)
        wall, _ = clock.once(lambda: bound(*args, **case.kwargs), backend.synchronize)
        row["first_call_s"].setdefault("here", wall)
        got = bound(*args, **case.kwargs)
        backend.synchronize()
        if device not in wanted:
            wanted[device] = op.expected(*args, **case.kwargs)
        e = check.error(got, wanted[device])
        right = e <= op.allowed(DTYPES[dtype])
        row |= {"status": "ok" if right else "wrong", "error": e, "allowed": op.allowed(DTYPES[dtype])}
        del got
        if right:
            _new_process(plan, op, dtype, case, backend, row)
            row["peak_bytes"] = memory.peak(lambda: bound(*args, **case.kwargs), device)
            turns = itertools.cycle(_sets(args, row["bytes"] or sum(a.nbytes for a in args)))
            candidates[backend.name] = Candidate(lambda: bound(*args, **case.kwargs), lambda: bound(*next(turns), **case.kwargs), backend.synchronize)
    except KeyboardInterrupt:
        raise
    except Exception as e:
        row |= {"status": "failed", "reason": f"{type(e).__name__}: {e}".split("\n")[0],
                "trace": traceback.format_exc(limit=-3)}
    return row


def _on_board(plan, op, dtype, case, backend, candidates, wanted) -> dict:
    """Check and time a backend whose machine is another one: its program times itself, nothing is interleaved with it."""
    args = case.make(DTYPES[dtype], "cpu", plan.seed)
    row = {"op": op.name, "case": case.name, "dtype": dtype, "backend": backend.name, "device": "board", "first_call_s": {},
           "bytes": op.nbytes(*args, **case.kwargs) if op.nbytes else None, "flops": op.flops(*args, **case.kwargs) if op.flops else None}
    try:
        if "cpu" not in wanted:
            wanted["cpu"] = op.expected(*args, **case.kwargs)
        start = time.perf_counter()
        got, answer = backend.measure(op, args, case.kwargs, plan.rounds, plan.threads)
        e = check.error(got, wanted["cpu"])
        row |= {"status": "ok" if e <= op.allowed(DTYPES[dtype]) else "wrong", "error": e, "allowed": op.allowed(DTYPES[dtype]),
                "first_call_s": {"here": answer.first}, "round_trip_s": time.perf_counter() - start}
        if row["status"] == "ok":
            row |= {"wall_s": clock.summary(answer.wall), "cpu_s": clock.summary(answer.cpu), "repeats": 1, "rounds_s": answer.wall}
    except KeyboardInterrupt:
        raise
    except Exception as e:
        row |= {"status": "failed", "reason": f"{type(e).__name__}: {e}".split("\n")[0], "trace": traceback.format_exc(limit=-3)}
    return row
