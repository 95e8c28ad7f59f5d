"""A run: for each op x case x dtype check every backend against the float64 reference, then time those that are right,
interleaved. Nothing is timed that was not checked in the same run."""

from __future__ import annotations

import tempfile
import traceback
from dataclasses import dataclass
from typing import Callable

import torch

from ..backends import get as get_backend
from ..backends.base import Error, suggest
from ..ops.common import DTYPES
from . import check, clock, memory, roofline
from .results import Results, machine


@dataclass
class Plan:
    """What to run. `cases`: substrings of case names, none for each op's default ones."""

    ops: list
    backends: list[str]
    dtypes: list[str]
    cases: list[str]
    rounds: int = 10
    seconds: float = 0.01
    cold: bool = True
    seed: int = 0

    def items(self):
        """(op, dtype name, case) in order. Raises `Error` where nothing is left to run."""
        out = []
        for op in self.ops:
            for name in self.dtypes:
                if name not in op.dtypes:
                    continue
                for case in op.cases:
                    if (any(c == case.name or c in case.name for c in self.cases) if self.cases else case.default):
                        out.append((op, name, case))
        if not out:
            known = sorted({c.name for op in self.ops for c in op.cases})
            dtypes = sorted({d for op in self.ops for d in op.dtypes})
            if self.cases and not any(c in k for c in self.cases for k in known):
                raise Error(suggest("case", self.cases[0], known))
            raise Error(f"nothing to run: of dtypes {', '.join(self.dtypes)} the chosen ops take {', '.join(dtypes)}")
        return out


def first_calls(backend, op, args, kwargs) -> dict[str, float]:
    """Seconds of the first call: cold (nothing compiled before, an empty cache) and from the disk cache."""
    if not backend.compiles or not hasattr(backend, "forget"):
        return {}
    out = {}
    with tempfile.TemporaryDirectory(prefix="triport-cold-") as folder, backend.fresh_caches(folder):
        for key in ("cold", "disk"):
            backend.forget(op)
            out[key] = clock.once(lambda: backend.bind(op)(*args, **kwargs))[0]
        backend.forget(op)
    return out


def run(plan: Plan, results: Results, tick: Callable = lambda *a: None) -> int:
    """Carry out a plan. Returns how many results were wrong."""
    wrong = 0
    items = plan.items()
    results.meta = machine()
    limits = {"cpu": roofline.measure("cpu", torch.get_num_threads())}
    if any(get_backend(b).device == "cuda" for b in plan.backends):
        limits["cuda"] = roofline.measure("cuda")
    results.meta["roofline"] = limits
    results.save()
    for n, (op, dtype, case) in enumerate(items):
        tick(n, len(items), f"{op.name} {case.name} {dtype}")
        candidates, rows = {}, {}
        for name in plan.backends:
            row = _prepare(plan, op, dtype, case, get_backend(name), candidates)
            rows[name] = row
            wrong += row["status"] != "ok"
        samples = clock.interleave(candidates, plan.rounds, plan.seconds) if candidates else {}
        base = samples.get("torch")
        for name, row in rows.items():
            if name in samples:
                _fill(row, samples[name], base, limits[row["device"]])
            results.add(row)
    tick(len(items), len(items), "")
    results.finish()
    return wrong


def _prepare(plan, op, dtype, case, backend, candidates) -> dict:
    """Check one backend's result; a right one becomes a candidate for timing."""
    args = case.make(DTYPES[dtype], backend.device, plan.seed)
    row = {"op": op.name, "case": case.name, "dtype": dtype, "backend": backend.name, "device": backend.device,
           "bytes": op.nbytes(*args, **case.kwargs) if op.nbytes else None,
           "flops": op.flops(*args, **case.kwargs) if op.flops else None}
    try:
        row["first_call_s"] = first_calls(backend, op, args, case.kwargs) if plan.cold else {}
        bound = backend.bind(op)
        wall, _ = clock.once(lambda: bound(*args, **case.kwargs), backend.synchronize)
        row["first_call_s"].setdefault("here", wall)
        got = bound(*args, **case.kwargs)
        backend.synchronize()
        right, e = check.verdict(op, got, args, case.kwargs)
        row |= {"status": "ok" if right else "wrong", "error": e, "allowed": op.allowed(DTYPES[dtype])}
        if right:
            row["peak_bytes"] = memory.peak(lambda: bound(*args, **case.kwargs), backend.device)
            candidates[backend.name] = (lambda: bound(*args, **case.kwargs), backend.synchronize)
    except KeyboardInterrupt:
        raise
    except Exception as e:
        row |= {"status": "failed", "reason": f"{type(e).__name__}: {e}".split("\n")[0],
                "trace": traceback.format_exc(limit=-3)}
    return row


def _fill(row: dict, s: clock.Samples, base: clock.Samples | None, limits: dict):
    wall, cpu = clock.summary(s.wall), clock.summary(s.cpu)
    row |= {"wall_s": wall, "cpu_s": cpu, "repeats": s.repeats, "rounds_s": s.wall}
    t = wall["p50"]
    if row["bytes"]:
        row["gb_per_s"] = row["bytes"] / t / 1e9
    if row["flops"]:
        row["tflop_per_s"] = row["flops"] / t / 1e12
    if row["bytes"] or row["flops"]:
        # The time that the machine's slower limit allows, over the time taken.
        least = max((row["bytes"] or 0) / limits["bytes_per_s"], (row["flops"] or 0) / limits["flop_per_s"])
        row["roofline"] = least / t
    if base is not None:
        row["speedup"] = clock.summary(base.wall)["p50"] / t
