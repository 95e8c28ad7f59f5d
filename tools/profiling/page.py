"""The page of a profile: what took how long, on which thread, and where the files are. One side, or two beside each other."""

from __future__ import annotations

import html
import re
import statistics
from pathlib import Path

import numpy as np

from ...bench.report import time_text
from ...bench.results import above_roof, least_time
from ..template import filled
from . import texts, timeline
from .session import Profile

_LANE, _WIDTH = 22, 1000
#: chunks that a drawing holds: a launch of more is drawn in part
_DRAWN = 4000


def write(sides: list[tuple[str, Profile]], path: Path, machine: dict, command: str):
    """The page of profiles. sides: (folder of its files relative to the page, profile)."""
    target = sides[0][1].target
    facts = f"{machine['cpu']}; {machine['cores']} cores, {machine['threads']} threads; torch {machine['torch']}, triton {machine['triton']}, LLVM {machine['LLVM']}"
    body = "".join(f'<section>{_side(folder, p, path.parent / folder)}</section>' for folder, p in sides)
    texts.write(path, filled(_PAGE, {"TITLE": html.escape(target.title), "FACTS": html.escape(facts), "COMMAND": html.escape(command), "SUMMARY": _summary(sides), "SIDES": body,
                                     "COLUMNS": str(len(sides))}))


def _table(head: list[str], rows: list[list[str]], left: int = 1) -> str:
    """An HTML table; the first `left` columns are text, the others numbers. Cells are text, not HTML."""
    def cells(tag, row):
        return "".join(f"<{tag}{'' if k < left else ' class=n'}>{html.escape(str(c))}</{tag}>" for k, c in enumerate(row))
    body = "".join(f"<tr>{cells('td', r)}</tr>" for r in rows)
    return f'<div class="scroll"><table><thead><tr>{cells("th", head)}</tr></thead><tbody>{body}</tbody></table></div>'


def _summary(sides: list[tuple[str, Profile]]) -> str:
    """The key figures, a column for each side."""
    def row(name, value):
        cells = [value(p) for _, p in sides]
        return [name, *cells] if any(cells) else None

    def rate(p: Profile, amount, unit, scale):
        return f"{amount / statistics.median(p.wall) / scale:.1f} {unit}" if amount and p.wall else ""

    def roof(p: Profile):
        limits = p.limits.get(p.target.device)
        if not limits or not p.wall or not (p.target.nbytes or p.target.flops):
            return ""
        of = limits, p.target.nbytes, p.target.flops, p.target.dtype
        share = least_time(*of) / statistics.median(p.wall)
        return f"{100 * share:.0f} %" + (f" ({above_roof(*of)})" if share > 1.005 else "")

    def spread(values):
        ordered = sorted(values)
        return f"{time_text(statistics.median(ordered))} ({time_text(ordered[0])} to {time_text(ordered[-1])})" if len(ordered) > 1 else time_text(ordered[0])

    rows = [row("first call (loads or compiles)", lambda p: time_text(p.first_s) if p.first_s else ""),
            row("wall of a step, no profiler on: median (from, to)" if not sides[0][1].target.argv else "wall of the run, profilers on",
                lambda p: "~" * bool(p.unsteady) + spread(p.wall) + ", noisy" * bool(p.noisy) if p.wall else ""),
            row("CPU time of a step, the mean" if not sides[0][1].target.argv else "CPU time", lambda p: time_text(statistics.fmean(p.cpu)) if p.cpu else ""),
            row("throughput", lambda p: rate(p, p.target.nbytes, "GB/s", 1e9)), row("arithmetic", lambda p: rate(p, p.target.flops, "GFLOP/s", 1e9)),
            row("of this machine's roof", roof),
            row("error against float64 (allowed)", lambda p: f"{p.error:.1e} ({p.allowed:.0e})" if p.error is not None else "")]
    return _table(["", *(p.target.backend or "script" for _, p in sides)], [r for r in rows if r])


def _side(folder: str, p: Profile, files: Path) -> str:
    parts = [f"<h2>{html.escape(p.target.backend or p.target.title)}</h2>"]
    noise = [f"The time of a step is noisy, not to be relied on: {p.noisy}"] if p.noisy else []
    pace = [f"The time of a step, marked ~, may be another in another run: {p.unsteady}"] if p.unsteady else []
    parts += [f'<p class="remark">{html.escape(r)}</p>' for r in (*noise, *pace, *p.remarks)]
    if p.code:
        parts.append(f'<p class="remark">The script ended with exit code {p.code}; this is what was seen until then.</p>')
    parts.append("<h3>Kernels</h3>" + (_kernels(p) if p.kernels else "<p>No kernel of the CPU backend was launched.</p>"))
    if p.trace is not None and len(p.trace.spans()):
        parts.append("<h3>Threads</h3>" + _threads(p))
    if p.trace is not None and p.trace.compilations:
        parts.append("<h3>Compilations</h3>" + _table(["kernel", "from", "total", "stages"], [
            [c.name, "disk" if c.hit else "Python", time_text((c.end - c.start) * 1e-9), ", ".join(f"{n} {time_text(ns * 1e-9)}" for n, ns in c.stages)]
            for c in p.trace.compilations], 4))
    parts.append("<h3>Counters</h3>" + (_counted(p) if p.counted else "") + (f"<p>{html.escape(p.uncounted)}</p>" if p.uncounted else ""))
    at = f"{folder}/" if folder else ""
    width, height = re.search(r'viewBox="0 0 (\d+) (\d+)"', texts.read(files / "flame.svg")).groups()
    parts.append(f'<h3>Flame graph</h3><iframe title="flame graph" style="aspect-ratio: {width} / {height}" src="{html.escape(at, quote=True)}flame.svg"></iframe>')
    parts.append(f"<h3>torch.profiler</h3><pre>{html.escape(p.table)}</pre>")
    listed = "".join(f'<li><a href="{html.escape(at + n, quote=True)}">{html.escape(at + n)}</a>: {html.escape(what)}</li>' for n, what in p.files.items())
    parts.append(f"<h3>Files</h3><ul>{listed}</ul>")
    return "".join(parts)


def _kernels(p: Profile) -> str:
    copy = p.limits.get("cpu", {}).get("bytes_per_s")
    unknown = [f"{k.name} {'x'.join(map(str, k.grid))}" for k in p.kernels if k.rate is None and k.nbytes]
    note = "What tensors span is all from an argument's first element to its last, whatever part a launch touches: GB/s of it is an upper bound."
    if unknown:
        named = ", ".join(unknown[:4]) + f" and {len(unknown) - 4} more" * (len(unknown) > 4)
        note += f" Where it is above this machine's copy, {copy / 1e9:.1f} GB/s, none is shown ({named}): {timeline.UNKNOWN}."
    return f"<p>{html.escape(note)}</p>" + _table(["kernel", "grid", "tile", "launches", "threads", "wall p50", "total", "threads busy, all launches", "imbalance p50", "tensors span", "GB/s, at most", "of copy, at most"], [
        [k.name, "x".join(map(str, k.grid)), ", ".join(f"{n}={v}" for n, v in k.tile.items()), k.launches, k.threads, time_text(k.wall_s), time_text(k.total_s),
         *("" if x is None else f"{100 * x:.0f} %" for x in (k.busy, k.imbalance)), f"{k.nbytes / 1e6:.2f} MB", "unknown" if k.rate is None and k.nbytes else "" if k.rate is None else f"{k.rate / 1e9:.1f}",
         f"{100 * k.rate / copy:.0f} %" if k.rate and copy else ""] for k in p.kernels], 3)


def _counted(p: Profile) -> str:
    names = list(dict.fromkeys(n for at in p.counted.values() for n in at))

    def cell(value):
        return "" if value is None else value if isinstance(value, str) else f"{value:,.2f}" if value < 100 and value != int(value) else f"{value:,.0f}"

    return _table(["kernel", *names], [[kernel, *(cell(at.get(n)) for n in names)] for kernel, at in p.counted.items()])


def _threads(p: Profile) -> str:
    """The launch nearest to the median of the kernel and grid that take longest in all, of those whose chunks were kept: a lane for each thread that was to share it, also where
    it came too late for any program, and a box for each chunk of programs."""
    launches, spans = p.trace.launches, p.trace.spans()
    drawn = set(spans["launch"].tolist())
    kernel = next((k for k in p.kernels if drawn.intersection(k.numbers)), None)
    candidates, wall = (drawn.intersection(kernel.numbers), kernel.wall_s) if kernel else (drawn, 0.0)
    chosen = min(sorted(candidates), key=lambda n: abs((launches[n].end - launches[n].start) * 1e-9 - wall))
    one = launches[chosen]
    mine = spans[spans["launch"] == chosen]
    start, length = one.start, max(one.end - one.start, 1)
    threads = list(dict.fromkeys([one.thread, *mine["thread"].tolist()]))
    threads += [-1 - k for k in range(one.threads - len(threads))]  # no thread's number: those that ran nothing have none here
    boxes = []
    for s in mine[:_DRAWN]:
        x, w = _WIDTH * (int(s["start"]) - start) / length, _WIDTH * int(s["end"] - s["start"]) / length
        boxes.append(f'<rect x="{x + 90:.1f}" y="{threads.index(int(s["thread"])) * _LANE + 2}" width="{max(w - 0.3, 0.4):.1f}" height="{_LANE - 5}">'
                     f'<title>programs {s["first"]} to {s["last"] - 1}: {time_text(int(s["end"] - s["start"]) * 1e-9)}</title></rect>')
    idle = [length - int(np.sum((mine["end"] - mine["start"])[mine["thread"] == t])) for t in threads]
    lanes = "".join(f'<text x="0" y="{k * _LANE + 15}">thread {k}</text><text x="{_WIDTH + 98}" y="{k * _LANE + 15}">idle {100 * max(i, 0) / length:.0f} %</text>'
                    for k, i in enumerate(idle))
    more = f" (its first {_DRAWN} chunks)" if len(mine) > _DRAWN else ""
    return (f"<p>A median launch{more}: {html.escape(one.name)}, {one.grid[0] * one.grid[1] * one.grid[2]} programs in {len(mine)} chunks for {one.threads} thread{'s' * (one.threads != 1)}, "
            f"{time_text(length * 1e-9)}. Boxes are chunks of programs; what is blank is idle.</p>"
            f'<div class="scroll"><svg class="lanes" viewBox="0 0 {_WIDTH + 170} {len(threads) * _LANE + 4}" role="img" aria-label="programs by thread">{"".join(boxes)}{lanes}</svg></div>')


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>@TITLE@: profile</title>
<style>
:root { color-scheme: light dark; --ink: #1c1c1c; --ground: #fff; --line: #d5d5d5; --soft: #f3f3f3; --mark: #0072b2; --warn: #a15c00 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --ground: #161616; --line: #3a3a3a; --soft: #222; --mark: #56b4e9; --warn: #e6a23c } }
body { margin: 0 auto; padding: 1rem; max-width: 1500px; font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--ground) }
h1 { font-size: 1.4rem; margin: 0 0 .3rem } h2 { font-size: 1.15rem } h3 { font-size: 1rem; margin: 1.2rem 0 .3rem }
.facts, .command { opacity: .8; margin: .1rem 0; overflow-wrap: anywhere } .remark { color: var(--warn) }
.sides { display: grid; grid-template-columns: repeat(@COLUMNS@, minmax(0, 1fr)); gap: 1.5rem }
@media (max-width: 900px) { .sides { grid-template-columns: minmax(0, 1fr) } }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-size: .88rem } th, td { padding: .2rem .6rem; border-bottom: 1px solid var(--line); text-align: left }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
pre { overflow: auto; max-height: 28rem; background: var(--soft); padding: .6rem; font-size: .75rem } iframe { width: 100%; min-height: 8rem; max-height: 40rem; border: 1px solid var(--line); background: #fff }
svg.lanes { min-width: 640px; width: 100%; font: 12px system-ui, sans-serif } svg.lanes rect { fill: var(--mark) } svg.lanes text { fill: currentColor }
a { color: var(--mark) } li { overflow-wrap: anywhere }
</style></head><body>
<h1>@TITLE@</h1><p class="facts">@FACTS@</p><p class="command"><code>@COMMAND@</code></p>
@SUMMARY@
<div class="sides">@SIDES@</div>
</body></html>
"""
