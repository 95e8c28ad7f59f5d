"""What a run says on standard error while it runs: a bar on a terminal; elsewhere (a log, a CI job) a line for each case as it is done."""

from __future__ import annotations

import contextlib
import sys

from .units import plain, ratio, time_text
from .words import YARDSTICKS, baseline, is_noisy, seconds, where


class Lines:
    """A line for each case whose rows have come to `rows`."""

    def __init__(self, rows: list[dict]):
        self.rows, self.seen = rows, 0

    def tick(self, done: int, total: int, text: str):
        """So many cases of so many are done, and the next is `text`."""
        new, self.seen = self.rows[self.seen:], len(self.rows)
        if new:
            self.say(f"[{done}/{total}] {line(new)}")

    def say(self, text: str):
        """A remark, on a line of its own."""
        print(text, file=sys.stderr, flush=True)


class Bar:
    """The same as a bar, by rich."""

    def __init__(self, progress):
        self.progress = progress
        self.task = progress.add_task("measuring the machine", total=None)

    def tick(self, done: int, total: int, text: str):
        self.progress.update(self.task, completed=done, total=total, description=plain(text))

    def say(self, text: str):
        self.progress.console.print(text, highlight=False, markup=False, soft_wrap=True)


@contextlib.contextmanager
def shown(rows: list[dict]):
    """A display, `Bar` or `Lines`, for a run that appends to `rows`."""
    if not sys.stderr.isatty():
        yield Lines(rows)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from . import screen

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Drawn rarely: what it takes is taken from what is being timed.
    with Progress(*columns, console=screen.console(stderr=True), transient=True, refresh_per_second=2) as progress:
        yield Bar(progress)


def line(rows: list[dict]) -> str:
    """One case: what serves it here, timed and held against its baseline, and whatever is not right."""
    serving = [r for r in rows if r["backend"] not in YARDSTICKS and r["backend"] != baseline(r)]
    said = [_said(r) for r in rows if r["status"] not in ("ok", "skipped") or r in (serving or rows)]
    return f"{where(rows[0])}: {'; '.join(said)}"


def _said(row: dict) -> str:
    name = plain(row["backend"])
    if row["status"] != "ok":
        return f"{name} {'WRONG' if row['status'] == 'wrong' else row['status']}" + (f" ({plain(row['reason'])})" if row.get("reason") else "")
    t = seconds(row)
    versus = f", {ratio(row['speedup'])} of {plain(baseline(row))}" if row.get("speedup") and row["backend"] != baseline(row) else ""
    return name + (f" {time_text(t)}" if t is not None else "") + versus + ", noisy" * is_noisy(row)
