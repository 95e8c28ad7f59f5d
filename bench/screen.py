"""The terminal's table: a heading line for each op, case and dtype, below it a line for each backend. Columns leave where the screen is too narrow
for them; what stands is never cut."""

from __future__ import annotations

import os
import shutil
import sys
from typing import IO, Any

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.segment import Segments
from rich.text import Text

from . import fields, words
from .fields import Field
from .units import plain

#: a screen's width where there is none and nothing says another
AWAY = 120
#: between columns, and before a group's lines
_GAP, _INDENT = "  ", "  "
_COLOURS = {"faster": "green", "slower": "red", "noisy": "bright_black"}


def console(away: int = AWAY, stderr: bool = False, **options: Any) -> Console:
    """Standard output, or standard error: as wide as COLUMNS says, which is a number above 0, or as the terminal; away from one `away` columns. options:
    rich's own."""
    width = _width(sys.stderr if stderr else sys.stdout, away)
    height = None if width is None else shutil.get_terminal_size().lines  # without one rich reads COLUMNS all the same, and "\u00b2" is a digit to it and no number
    return Console(width=width, height=height, stderr=stderr, **options)


def uncut(renderable: Any, console: Console) -> None:
    """Print it as wide as its columns need, where that is more than the screen has: the terminal folds a line, and rich would leave out figures."""
    least = Measurement.get(console, console.options.update(max_width=1 << 12), renderable).minimum
    if least <= console.width:
        console.print(renderable)
    else:
        console.print(Segments(console.render(renderable, console.options.update(max_width=least))), crop=False, soft_wrap=True)


def _width(stream: IO[str], away: int) -> int | None:
    """A stream's columns; None: rich follows a terminal that changes its size. Rich takes COLUMNS=0 as it is, and prints nothing then."""
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told):
        return int(told)
    if not stream.isatty():
        return away
    if not told.isdigit():
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or away
    except (OSError, ValueError):  # what says that it is a terminal, and has no descriptor of one
        return away


def show(data: dict[str, Any], console: Console, names: list[str] | None = None, wide: bool = False, hint: str = "") -> None:
    """The machine's lines, the table, every row that is not right with its reason, and what was found in words.

    names: columns (default: all that some row fills); wide: none leaves; hint: how a reader gets those that left."""
    for line in words.about(data["machine"]):
        console.print(Text(line), overflow="fold")
    lines, left = table(data["rows"], console.width, names, wide)
    for line in lines:
        console.print(line, overflow="ignore" if wide else "fold", soft_wrap=wide)
    if left:
        said = f"not shown at {console.width} columns: {', '.join(c.header for c in left)}" + f" ({hint})" * bool(hint)
        console.print(Text(said, style="bright_black"), overflow="fold")
    console.print()
    styles = {"bad": "red", "skipped": "bright_black", "remark": "yellow", "fact": ""}
    for kind, sentence in words.words(data["rows"], words.remarks(data)):
        console.print(Text(sentence, style=styles[kind]), overflow="fold")


def table(rows: list[dict], width: int, names: list[str] | None = None, wide: bool = False) -> tuple[list[Text], list[Field]]:
    """The lines of the table, and the columns that left. Longer than `width` (at least 40) are headings and names alone, which may be folded
    anywhere; with `wide` also the rows."""
    width = max(width, 40)
    shown = fields.of(rows, names)
    cells = {c.name: _cells(c, rows) for c in shown}
    sizes = {c.name: max(map(cell_len, [c.header, *cells[c.name]])) for c in shown}
    if not wide:  # a long name gets a line of its own, rather than the place of figures
        room = [n for n in map(cell_len, cells["backend"]) if n <= max(16, 2 * width // 5)]
        sizes["backend"] = max([cell_len("backend"), *room])

    def total(those: list[Field]) -> int:
        return len(_INDENT) + sum(sizes[c.name] for c in those) + len(_GAP) * (len(those) - 1)

    left: list[Field] = []
    for c in fields.leaving(shown):
        if wide or total(shown) <= width:
            break
        shown = [s for s in shown if s is not c]
        left.append(c)
    if not wide:
        sizes["backend"] = max(0, min(sizes["backend"], sizes["backend"] + width - total(shown)))
    head = Text(_INDENT + _GAP.join(_padded(c.header if cell_len(c.header) <= sizes[c.name] else "", sizes[c.name], c.name) for c in shown).rstrip(),
                style="bold")
    lines, last = [head, Text("─" * total(shown))], None
    several = len({words.baseline(r) for r in rows}) > 1
    for n, row in enumerate(rows):
        if last is None or words.place(row) != words.place(last):
            lines.append(_heading(row, several))
        last = row
        texts = {c.name: cells[c.name][n] for c in shown}
        if cell_len(texts["backend"]) > sizes["backend"]:
            lines.append(Text(_INDENT + texts["backend"]))
            texts["backend"] = ""
        line = Text(_INDENT)
        for k, c in enumerate(shown):
            line.append(_GAP * bool(k))
            line.append(_padded(texts[c.name], sizes[c.name], c.name), _style(c, row))
        line.rstrip()
        lines.append(line)
    return lines, left


def _cells(column: Field, rows: list[dict]) -> list[str]:
    """A column's texts. Where a speed-up has a word after it, the others leave room for one, so that the numbers stand below each other."""
    out = [column.text(r) for r in rows]
    if column.name == "speedup" and any(t.endswith("noisy") for t in out):
        out = [t if not t or t.endswith("noisy") else t + " " * len(" noisy") for t in out]
    return out


def _heading(row: dict, several: bool) -> Text:
    case = " ".join(filter(None, (plain(row["case"]), plain(row["dtype"]), words.mode(row) if words.mode(row) != "fwd" else "")))
    against = f" (vs {plain(words.baseline(row))})" if several else ""
    return Text.assemble((plain(row["op"]), "bold"), " ", case, (against, "bright_black"))


def _padded(text: str, size: int, name: str) -> str:
    fill = " " * (size - cell_len(text))
    return text + fill if name == "backend" else fill + text


def _style(column: Field, row: dict) -> str:
    """A colour only where the row says that its speed-up is one: the figure may be within the noise."""
    if column.name == "time":
        return {"wrong": "red", "failed": "red", "skipped": "bright_black"}.get(row["status"], "")
    if column.name == "speedup":
        return _COLOURS["noisy"] if words.is_noisy(row) else _COLOURS.get(row.get("speedup_is"), "")
    return ""
