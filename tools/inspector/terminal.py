"""The terminal view: hot loops boxed, each source line over its instructions, coloured by class; causes and remedies; a table of all loops."""

from __future__ import annotations

import linecache

from rich.box import HEAVY, SIMPLE_HEAD
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ...bench.screen import uncut
from . import verdict
from .report import Report
from .stats import Region, line_of

#: style of an instruction by what it is; the first that fits
_STYLES = ((lambda c: c.kind == "unknown", "bold white on red"), (lambda c: c.is_spill, "bold red"), (lambda c: c.kind == "call", "bold red"),
           (lambda c: c.unit == "matrix", "bold bright_green"), (lambda c: c.kind in ("gather", "scatter"), "yellow"),
           (lambda c: c.unit == "vector" and c.is_memory, "cyan"), (lambda c: c.unit == "vector" and c.is_float_work, "green"),
           (lambda c: c.is_float_work, "bold yellow"), (lambda c: c.is_memory, "dark_cyan"), (lambda c: c.unit == "vector", "bright_blue"),
           (lambda c: True, "dim"))
VERDICTS = {verdict.VECTOR: "bold green", verdict.PARTLY: "bold yellow", verdict.SCALAR: "bold red", None: "dim"}

#: columns of the table of loops -> figures
_ON_CPU = {"vector": "vector", "fma": "fma", "cycles": "cycles", "peak": "peak", "load bits": "load_bits", "store bits": "store_bits",
           "B/access": "bytes_per_access", "spills": "spills", "calls": "calls", "f64": "f64", "matrix": "matrix"}
#: those that stay where the terminal is narrow
_NARROW = ("vector", "cycles", "peak", "spills")
_ON_GPU = {"coal.": "coalesced", "B/req": "bytes_per_request", "confl.": "conflicts", "spills": "spills", "tensor": "tensor_cores"}


def show(report: Report, console: Console, everything: bool = False):
    """Print a report; `everything` also shows the code outside hot loops."""
    code = report.code
    head = Text.assemble((code.name, "bold"), f"  {code.target}, {code.backend}  ", (report.verdict or verdict.none(report), VERDICTS[report.verdict]))
    if report.share is not None:
        head.append(f"  {verdict.percent(report.share)} of the work is vector")
    console.print(head)
    facts = [f"{k} {v}" for k, v in code.facts.items()] + ([f"occupancy {report.occupancy.words}"] if report.occupancy else []) + [f"unknown instructions {report.unknown:.1%}"]
    console.print("  " + ", ".join(facts), style="dim")
    if report.bounds:
        console.print("  " + report.bounds, style="dim")
    if report.remark:
        console.print("  " + report.remark, style="dim")
    for r in report.regions:
        if r.hot:
            console.print(_panel(r, report))
        elif everything and r.instructions:
            console.print(Panel(_lines(r, report), title=_title(r, report), title_align="left", border_style="dim"))
    uncut(table(report, console.width), console)


def _title(r: Region, report: Report) -> Text:
    v = verdict.of(r, report.gpu)
    kind = "tail" if r.tail else "loop" if r.loop else "code without a loop"
    return Text.assemble((f"{r.label} ", "bold"), f"{kind} {r.where} ", (v or "", VERDICTS[v]), f" {len(r.instructions)} instructions")


def _panel(r: Region, report: Report) -> Panel:
    parts = [_lines(r, report)]
    for cause in verdict.causes(r, report.gpu):
        parts.append(Text.assemble(("why: ", "bold yellow"), cause.text, f" [{cause.line}]" if cause.line else ""))
        if cause.plan:
            parts.append(Text.assemble(("plan: ", "bold"), cause.plan))
        parts.append(Text.assemble(("do:  ", "bold"), cause.remedy))
    for n, words in enumerate(r.bound.words if r.bound else ()):
        parts.append(Text.assemble(("bound: " if not n else "       ", "bold cyan"), words))
    return Panel(Group(*parts), title=_title(r, report), title_align="left", box=HEAVY, border_style=VERDICTS[verdict.of(r, report.gpu)])


def style(c) -> str:
    return next(s for fits, s in _STYLES if fits(c))


def _lines(r: Region, report: Report) -> Text:
    text, last = Text(no_wrap=True, overflow="ellipsis"), None
    for i in r.instructions:
        at = line_of(i)
        if at and at != last:
            source = linecache.getline(*at).strip()
            text.append(f"{at[0].rpartition('/')[2]}:{at[1]}  {source}\n", "bold magenta")
            last = at
        c = i.what
        note = " ".join(filter(None, (c.unit if c.unit != "scalar" else "", c.kind, c.element, f"{c.bits} bit" if c.bits else "",
                                      "spill" if c.is_spill else "", "masked" if c.masked else "")))
        text.append(f"    {i.text:<58}", style(c))
        text.append(f" {note}\n", "dim")
    return text


def table(report: Report, width: int = 200) -> Table:
    """Every region that works, with its figures; of a terminal less than 120 columns wide, the most important of them."""
    t = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1) if width >= 120 else 0)
    figures = {name: figure for name, figure in (_ON_GPU if report.gpu else _ON_CPU).items() if report.gpu or width >= 120 or name in _NARROW}
    for name in ("loop", "lines", "verdict", "insns", *figures):
        t.add_column(name, justify="left" if name in ("loop", "lines", "verdict") else "right", no_wrap=True)
    for r in report.regions:
        v = verdict.of(r, report.gpu)
        if not r.instructions or not (r.hot or r.tail):
            continue
        f = {**r.figures, "cycles": f"{r.bound.cycles:.1f}" if r.bound else None,
             "peak": f"{r.bound.peak_share:.0%}" if r.bound and r.bound.peak_share is not None else None}
        cell = lambda x: "" if x is None else f"{x:.2f}" if isinstance(x, float) and x < 100 else f"{x:.0f}" if isinstance(x, float) else str(x)  # noqa: E731
        t.add_row(r.label, r.where, Text(f"{v or ''}{(' (tail)' if width >= 120 else ' tail') if r.tail else ''}", VERDICTS[v]), str(f["instructions"]),
                  *(cell(f[k]) for k in figures.values()))
    return t


def ranking(reports: list[Report], width: int = 200) -> Table:
    """The kernels of a program, the longest time first."""
    t = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1) if width >= 120 else 0, title=f"kernels by time ({reports[0].run.clock})" if reports else None,
              title_justify="left")
    for name, right in (("kernel", False), ("launches", True), ("seconds", True), ("share", True), ("verdict", False), ("bound", False)):
        t.add_column(name, justify="right" if right else "left", no_wrap=True, overflow="ellipsis")
    for r in reports:
        hot = max((x for x in r.hot if x.bound), key=lambda x: x.heat, default=None)
        t.add_row(r.code.name, str(r.run.launches), f"{r.run.seconds:.4g}", f"{r.run.share:.0%}", Text(r.verdict or "", VERDICTS[r.verdict]),
                  f"{hot.label}: {hot.bound.by}, {hot.bound.cycles:.1f} cycles" if hot else "")
    return t
