"""Two benchmark runs side by side: each row's time, new over old, and whether it moved by more than its rounds did.

Machines drift between runs, so where both runs have the `torch` column of a row, the row's time is taken as a multiple of
torch's in the same round; candidates took turns, so what slowed one slowed the other. torch's own row is then the yardstick
and not judged. The noise band of a row is the spread of its rounds: half the distance from the 20th to the 80th percentile of the logarithms, of both runs together (root of the
sum of squares), and at least `FLOOR`: the medians of two runs of one build differ by about that on a quiet machine.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from . import clock
from ..backends.base import Error

FLOOR = 0.03


@dataclass
class Change:
    """One row of both runs. ratio: new time / old time (below 1 is faster); band: e.g. 0.05 is 5 % either way; basis: "torch"
    where times were multiples of torch's, else "wall"; verdict: same, faster, slower, yardstick (torch's, which others are measured by),
    broken (right before, not now), mended, only old, only new, or not right in either."""

    key: tuple[str, str, str, str]
    verdict: str
    ratio: float | None = None
    band: float | None = None
    basis: str = ""
    old_s: float | None = None
    new_s: float | None = None
    #: the times are of two machines: a laptop's and a board's
    across: bool = False

    @property
    def is_regression(self) -> bool:
        return self.verdict == "broken" or self.verdict == "slower" and not self.across


def _rows(data: dict) -> dict[tuple, dict]:
    return {(r["op"], r["case"], r["dtype"], r["backend"]): r for r in data["rows"]}


def _logs(row: dict, base: dict | None) -> list[float] | None:
    """Logarithms of each round's time, as multiples of torch's where there is one."""
    key = "device_rounds_s" if "device_rounds_s" in row and (base is None or "device_rounds_s" in base) else "rounds_s"
    rounds = row.get(key)
    if not rounds:
        return None
    if base is None:
        return [math.log(t) for t in rounds]
    against = base.get(key) or []
    return [math.log(t / u) for t, u in zip(rounds, against)] if len(against) == len(rounds) else None


def compare(old: dict, new: dict) -> list[Change]:
    """The changes from results `old` to `new` (as `results.load` gives them), in the new run's order. Raises `Error` where they have no
    row in common."""
    before, after = _rows(old), _rows(new)
    boards = [d["machine"].get("board", {}).get("runner") for d in (old, new)]
    across = boards[0] != boards[1]
    if across:  # what runs our kernels there against what runs them here
        before, after = ({(*k[:3], "spine" if k[3] == "triton-cpu" else k[3]): r for k, r in rows.items() if k[3] != "torch"} for rows in (before, after))
    if not before.keys() & after.keys():
        raise Error("the two results files have no row in common (op, case, dtype and backend)")
    out = []
    for key in [*after, *(k for k in before if k not in after)]:
        x, y = before.get(key), after.get(key)
        if x is None or y is None:
            out.append(Change(key, "only new" if x is None else "only old"))
        elif "ok" not in (x["status"], y["status"]):
            out.append(Change(key, "not right in either"))
        elif x["status"] != y["status"]:
            out.append(Change(key, "broken" if y["status"] != "ok" else "mended"))
        else:
            out.append(_change(key, x, y, before, after))
            out[-1].across = across
    return out


def _change(key, x, y, before, after) -> Change:
    bases = [None, None]
    if key[3] != "torch":
        found = [rows.get((*key[:3], "torch")) for rows in (before, after)]
        if all(b is not None and b["status"] == "ok" for b in found):
            bases = found
    logs = [_logs(r, b) for r, b in zip((x, y), bases)]
    basis = "torch" if bases[0] is not None else "wall"
    if None in logs:  # a file without rounds: medians and percentiles are what there is
        basis = "wall"
        logs = [[math.log(r["wall_s"][q]) for q in ("p20", "p20", "p50", "p80", "p80")] for r in (x, y)]
    judged = key[3] != "torch" or not any(k[:3] == key[:3] and k[3] != "torch" for k in before.keys() & after.keys())
    x_logs, y_logs = map(clock.summary, logs)
    change = y_logs["p50"] - x_logs["p50"]
    band = max(FLOOR, math.hypot(*((s["p80"] - s["p20"]) / 2 for s in (x_logs, y_logs))))
    verdict = "yardstick" if not judged else "slower" if change > band else "faster" if change < -band else "same"
    return Change(key, verdict, math.exp(change), math.expm1(band), basis, x["wall_s"]["p50"], y["wall_s"]["p50"])


def differences(old: dict, new: dict) -> list[str]:
    """What else differs between the runs, in words: machine, threads, versions."""
    names = {"cpu": "CPU", "threads": "threads", "torch": "torch", "triton": "triton", "LLVM": "LLVM", "python": "Python"}
    x, y = old["machine"], new["machine"]
    def board(m: dict):
        b = m.get("board")
        return f"{b['runner']} ({b['cpu']}, {b['target']})" if b else "this machine"

    said = [f"{text}: {x.get(k)} before, {y.get(k)} now" for k, text in names.items() if x.get(k) != y.get(k)]
    if board(x) != board(y):
        said.insert(0, f"kernels ran on: {board(x)} before, {board(y)} now")
    return said


def first_launches(old: dict, new: dict) -> str | None:
    """What first launches in new processes took in both runs, over the rows where both measured one; one sample each, so nothing is judged."""
    before, after = ({k: r["first_call_s"]["process"] for k, r in _rows(d).items() if "process" in r.get("first_call_s", {})} for d in (old, new))
    both = before.keys() & after.keys()
    if not both:
        return None
    from .report import time_text
    x, y = (time_text(statistics.median(d[k] for k in both)) for d in (before, after))
    return f"first launch of a new process, median of {len(both)}: {x} before, {y} now"


def show(changes: list[Change], remarks: list[str], console):
    """The table, what else differs, and a line that counts."""
    from rich.table import Table

    from .report import time_text
    t = Table(show_edge=False, pad_edge=False, header_style="bold")
    for name in ("op", "case", "dtype", "backend"):
        t.add_column(name, no_wrap=True)
    for name in ("old", "new", "new/old", "noise"):
        t.add_column(name, justify="right", no_wrap=True)
    t.add_column("", no_wrap=True)
    colours = {"slower": "red", "broken": "red", "faster": "green", "mended": "green"}
    for c in changes:
        colour = colours.get(c.verdict)
        word = f"[{colour}]{c.verdict}[/{colour}]" if colour else "" if c.verdict == "same" else c.verdict
        numbers = ("", "", "", "") if c.ratio is None else (time_text(c.old_s), time_text(c.new_s), f"{c.ratio:.2f}",
                                                             f"{100 * c.band:.0f}%")
        t.add_row(*c.key, *numbers, word)
    console.print(t)
    for line in remarks:
        console.print(f"[yellow]not the same: {line}[/yellow]", highlight=False)
    if any(c.basis == "torch" for c in changes):
        console.print("new/old is of times as multiples of torch's in the same round, where both runs have it", highlight=False)
    count = {v: sum(c.verdict == v for c in changes) for v in ("slower", "broken", "faster", "same")}
    console.print(", ".join(f"{n} {v}" for v, n in count.items()), highlight=False)
