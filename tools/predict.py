"""How long an op would take with given tiles on a board, by llvm-mca's model of its CPU: `triport tune --on` measures only what looks best.

A launch's loops run as often as its own sizes say (`inspector/frequencies.py`), and a turn of one costs what the model says (`inspector/bound.py`). The model
knows no caches: whether a kernel's scratch is as small as the row asks is said beside the cycles. Starting threads counts nothing.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
import re

import torch

from ..backends.base import Error
from ..backends.cpu.llvm import compile as llvm
from ..bench.prune import NoModel, Prediction
from ..ops import tuning
from .inspector import bound, code, frequencies, launches, report, targets
from .inspector.integers import Unknown

#: programs of a launch that are walked, at most: the others are taken to be like them
SAMPLES = 8


class Predictor:
    """Predicts ops on a CPU. row: of the compiler's targets, with as many cores as will share an op's programs."""

    def __init__(self, row):
        self._row, self._goal = row, targets.get(row.name)
        self._loops: dict[str, _Loops] = {}
        self._known: dict[str, Prediction] = {}

    def __call__(self, table: str, tiles, op, case, dtype: str) -> Prediction | None:
        """An op's case with `tiles` for the table of that name; None where it does not compile, its data say what runs, or it calls functions of its own
        (a kernel of very much code, a micro-kernel of machine code). Raises `NoModel`."""
        try:
            with tuning.trying(table, tiles, op.name, {}):
                caught = launches.of_op(op, case, dtype, "cpu", row=self._row)
            found = [self._launch(x) for x in caught]
        except (Unknown, Error):
            return None
        return Prediction(sum(p.cycles for p in found), all(p.fits for p in found))

    def _launch(self, launch) -> Prediction:
        key = repr((launch.name, launch.grid, [(n, v.dtype if isinstance(v, torch.Tensor) else v) for n, v in launch.values().items()]))
        if key not in self._known:
            compiled = code.of_launch(launch, self._goal)
            grid, programs = (*launch.grid, 1, 1)[:3], math.prod(launch.grid)
            walk = frequencies.Walk(compiled.stages["llir"], compiled.name, frequencies.words(launch, compiled))
            counts = [walk.counts(p, grid) for p in _some(programs)]
            loops = self._loops.setdefault(compiled.stages["llir"], _Loops(compiled, self._goal.row))
            cycles = loops.cycles(set().union(*counts))
            costs = [sum(cycles.get(label, 0.0) * n for label, n in c.items()) for c in counts]
            fits = not self._row.scratch or compiled.facts["scratch, bytes"] <= self._row.scratch
            self._known[key] = Prediction(shared(costs, programs, self._row.cores), fits)
        return self._known[key]


def _some(programs: int) -> list[int]:
    """Programs that stand for all of a launch: its first, its last and some between them."""
    return [round(k * (programs - 1) / (SAMPLES - 1)) for k in range(SAMPLES)] if programs > SAMPLES else list(range(programs))


def shared(costs: list[float], programs: int, cores: int) -> float:
    """Cycles until the last of `programs` is done, each of which goes to the core that is free first. costs: of each, or of some."""
    if len(costs) < programs:
        return sum(costs) / len(costs) * math.ceil(programs / cores)
    free = [0.0] * cores
    for cost in costs:
        heapq.heapreplace(free, free[0] + cost)
    return max(free)


class _Loops:
    """What turns of a kernel's loops cost."""

    def __init__(self, compiled, row):
        self._compiled, self._row = compiled, row
        self._regions: dict = {}
        self._cycles: dict[str, float] = {}

    def cycles(self, ran: set[str]) -> dict[str, float]:
        """Label of a block of the LLVM IR that begins a loop -> cycles of a turn, without those of loops in it. ran: blocks that do run."""
        if not self._regions:
            text = llvm.emit_assembly(self._compiled.stages["llir"], self._row, named=True)
            names = dict(re.findall(r"^(\.?\w+):\s+(?:#|//) %(\S+)", text, re.M))
            self._report = report.of(dataclasses.replace(self._compiled, text=text))
            self._regions = {names[r.label]: r for r in self._report.regions if r.loop is not None and r.label in names}
        if new := {label for label in ran & self._regions.keys() if label not in self._cycles}:
            for label, r in self._regions.items():
                r.tail, r.hot = False, label in new
            bound.fill([self._report])
            if self._report.bounds.startswith("no bound: "):
                raise NoModel(self._report.bounds.removeprefix("no bound: ").partition("; --model")[0])
            for label in new:
                one = self._regions[label]
                if one.bound is None and len(one.instructions) > bound.LONGEST:
                    raise Unknown(f"a loop of {len(one.instructions)} instructions")
                self._cycles[label] = one.bound.cycles if one.bound else 0.0
        return self._cycles
