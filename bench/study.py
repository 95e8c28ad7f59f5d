"""Candidates for one piece of work, side by side: each is checked against a float64 reference, and those that are right are timed in turns.

Where `runner` measures ops on backends, this measures whatever callables one has: ways to write an op, tile sizes, a model's training step by eager
torch and compiled. Rows are those of `triport bench --json`, a candidate's name standing for the backend, so tables and comparisons are the same.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable

import torch

from ..backends.base import Error, suggest
from ..ops.records import TOLERANCE
from . import check, clock, load, memory, roofline
from .results import Results, add_rates, add_times, machine
from .words import raised


@dataclass
class Study:
    """Candidates and what they are given.

    candidates: name -> function of `inputs` that leaves them as they are and returns a tensor or several. reference: the same in plain torch, called
    with the inputs in float64. allowed: normalised error that counts as right (default: the ops' for the dtype); measure: that error, of results and of those expected. nbytes, flops: what one call cannot do
    without. base: the candidate that speed-ups are against. turns: what is timed of a candidate instead of a call with `inputs`, where that is
    another thing (a training step, which changes its parameters). left_out: candidates that cannot run here -> why."""

    op: str
    case: str
    candidates: dict[str, Callable[..., Any]]
    inputs: tuple[Any, ...]
    reference: Callable[..., Any]
    dtype: str = "fp32"
    allowed: float | None = None
    measure: Callable[[list[torch.Tensor], list[torch.Tensor]], float] = check.largest
    nbytes: int | None = None
    flops: int | None = None
    base: str = "torch"
    turns: dict[str, Callable[[], object]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def __post_init__(self):
        if self.base not in self.candidates and self.base not in self.left_out:
            raise Error(f"Study {self.op!r}: " + suggest("base", self.base, self.candidates))

    def call(self, name: str) -> Callable[[], object]:
        """A candidate with its inputs."""
        fn = self.candidates[name]
        return lambda: fn(*self.inputs)

    def steps(self) -> dict[str, Callable[[], object]]:
        """What is timed: candidate -> function of no arguments."""
        return {name: self.turns.get(name) or self.call(name) for name in self.candidates}

    def expected(self) -> list[torch.Tensor]:
        """The reference's results, from the inputs in float64."""
        return check.tensors("the reference", self.reference(*map(_wide, self.inputs)))


def _wide(x):
    return x.detach().double().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def run(studies: Iterable[Study], results: Results, rounds: int = 10, seconds: float = 0.01, device: str = "cpu",
        tick: Callable[[str], object] = lambda text: None) -> int:
    """Carry studies out, row by row into `results`. Returns how many candidates were wrong or failed.

    On "cuda" rows have the GPU's own time as well, and rates and speed-ups are by that."""
    results.meta, watch = machine(device), load.Watch()
    results.meta["roofline"] = {device: roofline.measure("cuda") if device == "cuda" else roofline.measure("cpu", torch.get_num_threads())}
    results.save()
    wrong = 0
    for study in studies:
        tick(f"{study.op} {study.case}")
        wrong += _one(study, results, rounds, seconds, device)
    results.meta |= watch.fact()
    results.finish()
    return wrong


def _one(study: Study, results: Results, rounds: int, seconds: float, device: str) -> int:
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()  # shapes of its own for every study, without meeting the recompile limit
    if study.left_out:
        results.meta.setdefault("left_out", {}).update(study.left_out)
    want, steps = study.expected(), study.steps()
    kept = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in study.inputs]
    rows = {name: _checked(study, name, steps[name], want, kept, device) for name in study.candidates}
    del want, kept
    right = {name: steps[name] for name, row in rows.items() if row["status"] == "ok"}
    if right:
        wait = torch.cuda.synchronize if device == "cuda" else lambda: None
        samples = clock.interleave({name: (fn, wait) for name, fn in right.items()}, rounds, seconds)
        on_gpu = clock.on_gpu(right, rounds) if device == "cuda" else {}
        for name in right:
            add_times(rows[name], samples[name], on_gpu.get(name))
    for row in rows.values():
        if "wall_s" in row:
            add_rates(row, rows[study.base] if study.base in right else None, results.meta["roofline"][device], study.dtype)
        results.add(row)
    return sum(row["status"] != "ok" for row in rows.values())


def _checked(study: Study, name: str, step: Callable, want, kept, device: str) -> dict:
    """A candidate's row: its first call, its error, and the memory of a step where it is right."""
    allowed = TOLERANCE[study.dtype] if study.allowed is None else study.allowed
    row = {"op": study.op, "case": study.case, "dtype": study.dtype, "backend": name, "device": device, "bytes": study.nbytes, "flops": study.flops,
           "baseline": study.base}
    made: list = []
    try:
        wait = torch.cuda.synchronize if device == "cuda" else lambda: None
        row["first_call_s"] = {"here": clock.once(lambda: made.append(study.candidates[name](*study.inputs)), wait)[0]}
        got = check.tensors(f"candidate {name}", made.pop())
        verdict = check.judged(got, want, allowed, study.measure)
        _unchanged(name, study.inputs, kept)
        row |= verdict
        del got
        if row["status"] == "ok":
            step()
            row["peak_bytes"] = memory.peak(step, device)
    except (Exception, SystemExit) as e:
        with contextlib.suppress(Error):
            _unchanged(name, study.inputs, kept)
        row |= {"status": "failed", "reason": raised(e), "trace": traceback.format_exc(limit=-3)}
    return row


def _unchanged(name: str, inputs, kept):
    """Raises `Error` where a candidate changed what the others are to be given, and puts it right."""
    if changed := check.put_back(inputs, kept):
        raise Error(f"candidate {name} changed input {', '.join(map(str, changed))}, which it shares with the others")
