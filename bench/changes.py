"""Benchmark runs side by side, the first being what others are held against: each row's time over its time there, and whether it moved by more than
its rounds did.

Machines drift between runs, so where both runs have the baseline (`torch`, where rows name no other) of a row, the row's time is taken as a multiple
of the baseline's in the same round; candidates took turns, so what slowed one slowed the other. The baseline's own row is then the yardstick
and not judged. The noise band of a row is the spread of its rounds: half the distance from the 20th to the 80th percentile of the logarithms, of both
runs together (root of the sum of squares), and at least `FLOOR`: the medians of two runs of one build differ by about that on a quiet machine.
Where a median moved by more than that and the medians' 95 % confidence intervals still overlap, as rounds of two kinds make them do (a busy machine),
or a run calls the row or its baseline noisy, or there are too few rounds to tell, or the band is wider than `WIDE`, in which a row that got much slower would
lie, the verdict is "noisy", however far the median moved: nobody can tell, "same" no more than "slower".
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field

from ..backends.base import Error
from . import clock, noise, schema
from .schema import Key, clean

FLOOR = 0.03
#: the widest band, as a share, within which a row may be called the same
WIDE = 0.25
#: what a row can be; what has no partner: "only old", "only new"
VERDICTS = ("same", "faster", "slower", "noisy", "yardstick", "broken", "mended", "not right in either", "not timed", "only old", "only new")


@dataclass
class Change:
    """One row of two runs. ratio: new time / old time (below 1 is faster); band: e.g. 0.05 is 5 % either way; basis: the baseline's name
    where times were multiples of its, else "wall"; verdict: same, faster, slower, noisy (nobody can tell), yardstick (the baseline's, which others are measured by),
    broken (right before, not now), mended, only old, only new, not right in either, or not timed; noisy: what a run said against its own figure."""

    key: Key
    verdict: str
    ratio: float | None = None
    band: float | None = None
    basis: str = ""
    old_s: float | None = None
    new_s: float | None = None
    noisy: str = ""
    #: of a yardstick: its own median moved by more than its band, and the files are sure of it
    moved: bool = False
    #: the times are of two machines: a laptop's and a board's
    across: bool = False

    @property
    def is_regression(self) -> bool:
        return self.verdict == "broken" or self.verdict == "slower" and not self.across

    @property
    def is_alone(self) -> bool:
        return self.verdict.startswith("only ")


@dataclass
class Run:
    """One results file. letter: what stands for it in tables; name: what the user calls it; data: as `results.load` gives it."""

    letter: str
    name: str
    data: dict


@dataclass
class Comparison:
    """Runs beside the first of them. changes: letter of each other run -> its rows; remarks: what else differs, and what was left out."""

    runs: list[Run]
    changes: dict[str, list[Change]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    @property
    def regressions(self) -> list[tuple[str, Change]]:
        return [(letter, c) for letter, changes in self.changes.items() for c in changes if c.is_regression]


def beside(runs: list[tuple[str, dict]]) -> Comparison:
    """The comparison of results [(name, data)], two or more, with the first. Raises `Error` where one has no row in common with it, or rows that
    cannot be read."""
    if len(runs) < 2:
        raise Error(f"--compare takes two results files or more, not {len(runs)}")
    out = Comparison([Run(_letter(n), clean(name), data) for n, (name, data) in enumerate(runs)])
    for run in out.runs:
        out.remarks += schema.rows(run.data, run.name)[1]
    base, *others = out.runs
    for run in others:
        out.changes[run.letter] = compare(base.data, run.data, base.name, run.name)
        if _across(base.data, run.data):
            for side in (base, run):
                if aside := [k for k in schema.rows(side.data, side.name)[0] if k.backend == "torch"]:
                    out.remarks.append(f"between A and {run.letter}, which are of two machines, torch is not compared: {schema.named(aside)} of {side.letter}")
        out.remarks += [f"not the same: {what}" for what in differences(base.data, run.data, run.letter)]
    out.remarks += [f"{run.letter}'s machine was busy: {clean(busy)}" for run in out.runs if isinstance(busy := run.data["machine"].get("busy"), str)]
    for run in out.runs:
        if run.data.get("complete") is False:
            out.remarks.append(f"{run.letter} was interrupted: rows that would have followed are missing")
    return out


def _letter(n: int) -> str:
    """A, B, ... Z, A2, B2, ..."""
    return chr(ord("A") + n % 26) + (str(n // 26 + 1) if n >= 26 else "")


def _logs(row: dict, base: dict | None, key: str) -> list[float] | None:
    """Logarithms of each round's time (`key`: of which clock), as multiples of the baseline's where there is one; None where rounds are missing."""
    rounds = row.get(key)
    if not rounds:
        return None
    if base is None:
        return [math.log(t) for t in rounds]
    against = base.get(key) or []
    return [math.log(t / u) for t, u in zip(rounds, against)] if len(against) == len(rounds) else None


def board(data: dict) -> dict:
    """What a run says of the board that its kernels ran on; empty where it was this machine."""
    found = data["machine"].get("board")
    return {k: clean(str(v), 80) for k, v in found.items() if k in ("runner", "cpu", "target")} if isinstance(found, dict) else {}


def _across(old: dict, new: dict) -> bool:
    """Did kernels run on two machines, a board and another one?"""
    return board(old).get("runner") != board(new).get("runner")


def compare(old: dict, new: dict, old_name: str = "the first file", new_name: str = "the second") -> list[Change]:
    """The changes from results `old` to `new` (as `results.load` gives them), in the old run's order, what only the new one has at the end.
    Raises `Error` where they have no row in common."""
    before, after = (schema.rows(data, name)[0] for data, name in ((old, old_name), (new, new_name)))
    across = _across(old, new)
    if across:  # what runs our kernels there against what runs them here
        before, after = ({k._replace(backend="spine") if k.backend == "triton-cpu" else k: r for k, r in rows.items() if k.backend != "torch"}
                         for rows in (before, after))
    # What was not run has no result that another could be held against.
    before, after = ({k: r for k, r in rows.items() if r["status"] != "skipped"} for rows in (before, after))
    if not before.keys() & after.keys():
        raise Error(f"{old_name} and {new_name} have no row in common (op, case, dtype, mode and backend)")
    out = []
    for key in [*before, *(k for k in after if k not in before)]:
        x, y = before.get(key), after.get(key)
        if x is None or y is None:
            out.append(Change(key, "only new" if x is None else "only old"))
        elif "ok" not in (x["status"], y["status"]):
            out.append(Change(key, "not right in either"))
        elif x["status"] != y["status"]:
            out.append(Change(key, "broken" if y["status"] != "ok" else "mended"))
        elif "wall_s" not in x or "wall_s" not in y:
            out.append(Change(key, "not timed"))
        else:
            out.append(change_of(key, x, y, before, after))
        out[-1].across = across
    return out


def change_of(key: Key, x: dict, y: dict, before: dict, after: dict) -> Change:
    """Of one row, which is `x` of the runs `before` and `y` of those `after`."""
    # Rows name no baseline, or one that only one of the runs has: then torch is asked for.
    yardstick = x["baseline"] if x.get("baseline") == y.get("baseline") and "baseline" in x else "torch"
    bases = [None, None]
    if key.backend != yardstick:
        found = [rows.get(key._replace(backend=yardstick)) for rows in (before, after)]
        if all(b is not None and b["status"] == "ok" for b in found):
            bases = found
    gpu = all("device_s" in r for r in (x, y, *filter(None, bases)))
    summary, rounds = ("device_s", "device_rounds_s") if gpu else ("wall_s", "rounds_s")
    logs, basis = [_logs(r, b, rounds) for r, b in zip((x, y), bases)], yardstick if bases[0] is not None else "wall"
    if None in logs and basis != "wall":  # rounds that do not pair
        logs, basis = [_logs(r, None, rounds) for r in (x, y)], "wall"
    if None in logs:  # a file without rounds: medians and percentiles are what there is
        logs = [[math.log(r[summary][q]) for q in ("p20", "p20", "p50", "p50", "p80", "p80")] for r in (x, y)]
    judged = key.backend != yardstick or not any(k.group == key.group and k.backend != yardstick for k in before.keys() & after.keys())
    x_logs, y_logs = map(clock.summary, logs)
    change = y_logs["p50"] - x_logs["p50"]
    band = max(FLOOR, math.hypot(*((s["p80"] - s["p20"]) / 2 for s in (x_logs, y_logs))))
    (low, high), (least, most) = map(noise.interval, logs)
    unsure = [r[why] for r in (x, y, *filter(None, bases)) for why in ("noisy", "unsteady")[:1 + (basis == "wall")] if r.get(why)] or [f"{len(v)} rounds are too few" for v in logs if len(v) < noise.FEW]
    apart = not unsure and (least > high if change > 0 else most < low)
    if not judged:
        verdict = "yardstick"
    elif abs(change) <= band:
        verdict = "noisy" if unsure or math.expm1(band) > WIDE else "same"
    else:
        verdict = "noisy" if not apart else "slower" if change > 0 else "faster"
    return Change(key, verdict, math.exp(change), math.expm1(band), basis, x[summary]["p50"], y[summary]["p50"], noisy=clean(unsure[0] if unsure else ""),
                  moved=not judged and apart and abs(change) > band)


def differences(old: dict, new: dict, letter: str = "B") -> list[str]:
    """What else differs between the runs, of which tables call the new one `letter`, in words: machine, threads, versions."""
    names = {"cpu": "CPU", "gpu": "GPU", "threads": "threads", "torch": "torch", "triton": "triton", "LLVM": "LLVM", "python": "Python"}
    x, y = ({k: clean(str(d["machine"][k]), 80) if isinstance(d["machine"].get(k), (str, int, float)) else "none" for k in names} for d in (old, new))

    def place(b: dict):
        return f"{b.get('runner')} ({b.get('cpu')}, {b.get('target')})" if b else "this machine"

    said = [f"{text}: {x[k]} in A, {y[k]} in {letter}" for k, text in names.items() if x[k] != y[k]]
    places = [place(board(d)) for d in (old, new)]
    if places[0] != places[1]:
        said.insert(0, f"kernels ran on: {places[0]} in A, {places[1]} in {letter}")
    return said


def first_launches(runs: list[Run]) -> str | None:
    """What first launches in new processes took, over the rows where all runs measured one; one sample each, so nothing is judged."""
    found = [{k: r["first_call_s"]["process"] for k, r in schema.rows(run.data, run.name)[0].items() if "process" in r.get("first_call_s", {})}
             for run in runs]
    shared = set.intersection(*(set(f) for f in found))
    if not shared:
        return None
    from .report import time_text
    medians = ", ".join(f"{time_text(statistics.median(f[k] for k in shared))} in {run.letter}" for run, f in zip(runs, found))
    return f"first launch of a new process, median of {len(shared)}: {medians}"
