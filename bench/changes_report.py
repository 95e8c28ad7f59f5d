"""A comparison of runs (`changes.Comparison`) for people and programs: on a terminal, as Markdown, as JSON and as CSV."""

from __future__ import annotations

from itertools import groupby

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from . import flat as tables
from . import schema
from .changes import VERDICTS, Change, Comparison, first_launches
from .report import time_text
from .screen import uncut
from .words import YARDSTICKS

_COLOURS = {"slower": "red", "broken": "red", "faster": "green", "mended": "green", "noisy": "bright_black"}
_SPARE = 30  # characters of a line that are not a run's own columns: the backend's name, the base's time
_EACH = 38  # and those of a run
_NAMED = 3


def _rows(result: Comparison) -> dict[schema.Key, dict[str, Change]]:
    """Identity -> letter -> its change, for what has a partner in some run, in the first run's order, what else some have in common after it."""
    found: dict[schema.Key, dict[str, Change]] = {}
    order: dict = {}
    for letter, changes in result.changes.items():
        for c in changes:
            order.setdefault(c.key.group, len(order))
            order.setdefault(c.key, len(order))
            if not c.is_alone:
                found.setdefault(c.key, {})[letter] = c
    return dict(sorted(found.items(), key=lambda item: (order[item[0].group], order[item[0]])))


def heading(group: tuple[str, str, str, str]) -> str:
    """The line over the rows of an op, case, dtype and mode."""
    op, case, dtype, mode = group
    return "  ".join((op, case, dtype, *([mode] if mode != "fwd" else [])))


def _cells(c: Change | None) -> tuple[str, str, str, str]:
    """A run's columns of a row: time, ratio, band, verdict."""
    if c is None:
        return "", "", "", ""
    word = "" if c.verdict == "same" else c.verdict
    return ("", "", "", word) if c.ratio is None else (time_text(c.new_s), f"{c.ratio:.2f}", f"{100 * c.band:.0f}%", word)


def _base(changes) -> str:
    return next((time_text(c.old_s) for c in changes if c is not None and c.old_s is not None), "")


def show(result: Comparison, console: Console):
    """The runs by their letters, a block of rows for each op, case and dtype, as many runs beside each other as the screen has room for, and what was
    found in words."""
    for run in result.runs:
        console.print(Text(f"{run.letter}  {run.name}" + ("" if run.letter != "A" else "  (what the others are held against)")), soft_wrap=False)
    rows, letters = _rows(result), list(result.changes)
    at_once = max(1, (console.width - _SPARE) // _EACH)
    for n in range(0, len(letters), at_once):
        _panel({k: c for k, c in rows.items() if any(x in c for x in letters[n:n + at_once])}, letters[n:n + at_once], console)
    console.print()
    for line in remarks(result):
        console.print(f"[yellow]{escape(line)}[/yellow]", highlight=False)
    for line in words(result):
        console.print(escape(line), highlight=False)


def _panel(rows: dict, letters: list[str], console: Console):
    titles = ["", "A", *(t for x in letters for t in (x, f"{x}/A", "noise", ""))]
    body = {k: [k.backend, _base(c.values()), *(cell for x in letters for cell in _cells(c.get(x)))] for k, c in rows.items()}
    widths = [max([len(t), *(len(line[n]) for line in body.values())]) for n, t in enumerate(titles)]
    # The name gives way, by folding; a figure never does.
    widths[0] = max(8, min(widths[0], console.width - sum(widths[1:]) - 2 * (len(widths) - 1)))

    def table():
        t = Table.grid(padding=(0, 2, 0, 0))
        for n, width in enumerate(widths):
            words = n == 0 or n > 1 and n % 4 == 1
            t.add_column(justify="left" if words else "right", width=width, overflow="fold", no_wrap=not words)
        return t

    top = table()
    top.add_row(*(Text(t, style="bold") for t in titles))
    console.print()
    uncut(top, console)
    for group, keys in groupby(rows, key=lambda k: k.group):
        console.print(Text(heading(group), style="bold"))
        t = table()
        for k in keys:
            t.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in body[k]))
        uncut(t, console)


def remarks(result: Comparison) -> list[str]:
    """What else differs, and what has no partner, line by line."""
    out = list(result.remarks)
    for letter, changes in result.changes.items():
        for verdict, where, other in (("only old", "A", letter), ("only new", letter, "A")):
            if keys := [c.key for c in changes if c.verdict == verdict]:
                out.append(f"in {where} and not in {other}: {schema.named(keys, _NAMED)}")
        # torch's own time moves with torch and the machine; an op's own baseline is its writer's
        if own := [c for c in changes if c.moved and c.key.backend not in YARDSTICKS and not c.across]:
            times = ", ".join(f"{c.ratio:.2f} times as long" for c in own[:_NAMED])
            out.append(f"from A to {letter} the baseline itself moved, by which the others are measured and which is not judged: {schema.named([c.key for c in own], _NAMED)}, {times}; "
                       "both it and they are yours: a run of it alone, with --backend, judges it")
        if said := [c for c in changes if c.noisy]:
            out.append(f"A or {letter} says itself that a figure is noisy: {schema.named([c.key for c in said], _NAMED)}")
    return out


def words(result: Comparison) -> list[str]:
    """What was found: how the ratios were taken, and how many rows of each run moved which way."""
    out = []
    bases = sorted({c.basis for changes in result.changes.values() for c in changes} - {"", "wall"})
    if bases:
        out.append(f"ratios are of times as multiples of {' or '.join(bases)}'s in the same round, where both runs have it")
    if launches := first_launches(result.runs):
        out.append(launches)
    for letter, changes in result.changes.items():
        out.append(f"{letter} against A: " + ", ".join(f"{n} {v}" for v, n in _count(changes, ("slower", "broken", "faster", "same")).items()))
    return out


def _count(changes: list[Change], always: tuple[str, ...]) -> dict[str, int]:
    """Verdict -> rows, all of which are in it: those that are `always` named first, then what else there is."""
    found = {v: sum(c.verdict == v for c in changes) for v in (*always, *(v for v in VERDICTS if v not in always))}
    return {v: n for v, n in found.items() if n or v in always}


def markdown(result: Comparison) -> str:
    """The comparison in GitHub's Markdown."""
    def cell(text: str) -> str:
        return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "\\`")

    letters = list(result.changes)
    regressions, unknown = len(result.regressions), sum(c.verdict == "noisy" for changes in result.changes.values() for c in changes)
    out = [f"**{regressions} row{'s' * (regressions != 1)} slower beyond the noise or no longer right.**" if regressions else
           "**No row is slower beyond the noise, none is no longer right" + (f"; of {unknown} nobody can tell" if unknown else "") + ".**", "", "; ".join(f"{r.letter}: {cell(r.name)}" for r in result.runs), "",
           "| op | case | dtype | backend | A |" + "".join(f" {x} | {x}/A | noise | |" for x in letters),
           "|---|---|---|---|--:|" + "--:|--:|--:|---|" * len(letters)]
    for key, changes in _rows(result).items():
        op = key.op if key.mode == "fwd" else f"{key.op} {key.mode}"
        cells = [op, key.case, key.dtype, key.backend, _base(changes.values())]
        for x in letters:
            *figures, word = _cells(changes.get(x))
            cells += [*figures, f"**{word}**" if word in ("slower", "broken") else word]
        out.append("| " + " | ".join(cell(c) if n < 4 else c for n, c in enumerate(cells)) + " |")
    out += ["", *(f"- {cell(line)}" for line in (*remarks(result), *words(result)))]
    return "\n".join(out)


def flat(result: Comparison) -> list[dict]:
    """One flat object for each row of each run but the first; what docs/results.md lists."""
    names = {r.letter: r.name for r in result.runs}
    return [{"against": result.runs[0].name, "file": names[letter], **c.key._asdict(), "verdict": c.verdict, "ratio": c.ratio, "band": c.band,
             "basis": c.basis or None, "base_s": c.old_s, "time_s": c.new_s, "noisy": c.noisy or None, "across": c.across,
             "regression": c.is_regression}
            for letter, changes in result.changes.items() for c in changes]


def data(result: Comparison) -> dict:
    """The comparison as `--json` has it."""
    count = _count([c for changes in result.changes.values() for c in changes], ("slower", "broken", "faster", "same", "noisy"))
    return {"comparison": schema.VERSION, "files": [{"letter": r.letter, "name": r.name, "rows": len(r.data["rows"])} for r in result.runs],
            "regressions": len(result.regressions), "count": count, "remarks": remarks(result), "words": words(result), "rows": flat(result)}


def as_csv(result: Comparison) -> str:
    """The comparison as CSV: `flat` with a heading line."""
    rows = flat(result)
    return tables.lines([rows[0].keys(), *(r.values() for r in rows)])
