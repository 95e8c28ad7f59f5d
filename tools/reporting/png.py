"""The page's plots as PNGs, by matplotlib without a display: the same colours, marks and figures, one file a panel."""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Callable, Iterable

from ...bench.units import geomean, prefixed, ratio, short
from . import colours
from .runs import Run

_DASHES = ("-", "--", ":", "-.", (0, (8, 2)), (0, (3, 1, 1, 1)))
_FIRST = {"cold": "o", "reload": "D", "process": "^", "here": "P"}


def write(runs: list[Run], folder: Path) -> list[Path]:
    """Draw every plot of the runs into a folder, which is made. Returns the files."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    palette = colours.of([r["backend"] for run in runs for r in run.rows])
    rows = [r for run in runs for r in run.rows if r["status"] == "ok"]
    written: list[Path] = []
    # Names from files are text, never formulas; a name in letters that the font lacks is drawn as boxes.
    style = {"text.parse_math": False, "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*missing")
        for name, title, height, draw in _plots(runs, rows, palette):
            figure = Figure(figsize=(7, height), dpi=150, layout="constrained")
            FigureCanvasAgg(figure)
            axes = figure.subplots()
            axes.set_title(title if len(title) < 80 else title[:77] + "...", loc="left", fontweight="bold")
            draw(axes)
            written.append(_free(folder, name, written))
            figure.savefig(written[-1])
    return written


def _free(folder: Path, name: str, taken: list[Path]) -> Path:
    """A file's path of plain letters that no other plot has."""
    stem = re.sub(r"[^A-Za-z0-9_.=-]+", "-", name).strip("-.")[:80]
    n, path = 1, folder / f"{stem}.png"
    while path in taken:
        n += 1
        path = folder / f"{stem}-{n}.png"
    return path


def _grouped(rows: Iterable[dict], *keys: str) -> list[tuple]:
    out = defaultdict(list)
    for r in rows:
        out[tuple(r[k] for k in keys)].append(r)
    return list(out.items())


def _plots(runs: list[Run], rows: list[dict], palette: dict) -> Iterable[tuple[str, str, float, Callable]]:
    """(file name, title, height in inches, what draws it) of each plot."""
    for (op, dtype), mine in _grouped([r for r in rows if r["bytes"]], "op", "dtype"):
        yield f"time-{op}-{dtype}", f"{op} {dtype}: time against size", 4.5, lambda axes, mine=mine: _time(axes, mine, runs, palette)
    for n, run in enumerate(runs):
        mine = [r for r in rows if r["run"] == n]
        over = _grouped([r for r in mine if r["speedup"] and r["backend"] != r["baseline"]], "baseline")
        for (base,), fast in over:
            lanes = _lanes(fast, palette)
            yield (f"speed-{run.name}" + f"-{base}" * (len(over) > 1), f"{run.name}: speed-up over {base}", _tall(lanes),
                   lambda axes, lanes=lanes, base=base: _speed(axes, lanes, base, palette))
        for (device,), its in _grouped([r for r in mine if r["bytes"] and r["flops"]], "device"):
            limits = run.limits.get(device, {})
            yield (f"roof-{run.name}-{device}", f"{run.name} ({device}): roofline", 4.5,
                   lambda axes, its=its, limits=limits: _roof(axes, its, limits, palette))
        if busy := [r for r in mine if r["cpu"]]:
            none = sum(r["cpu"] == 0 for r in mine)
            yield (f"cpu-{run.name}", f"{run.name}: wall time against CPU time" + f" ({none} too short to count)" * bool(none), 4.5,
                   lambda axes, busy=busy, run=run: _cpu(axes, busy, run.threads, palette))
        if first := [r for r in mine if r["first"]]:
            lanes = _lanes(first, palette)
            yield f"first-{run.name}", f"{run.name}: first call", _tall(lanes), lambda axes, lanes=lanes: _first(axes, lanes, palette)


def _scales(axes, x=None, y=None):
    """Logarithmic axes whose labels are written by functions of the value."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
    for axis, text in ((axes.xaxis, x), (axes.yaxis, y)):
        if text:
            axis.axes.set(**{f"{axis.axis_name}scale": "log"})
            low, high = axis.get_view_interval()
            axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 50 * low else (1,), numticks=9))
            axis.set_major_formatter(FuncFormatter(lambda value, _, text=text: text(value)))
            axis.set_minor_locator(NullLocator())
    axes.grid(alpha=0.25)


def _seconds(s: float) -> str:
    size, unit = next(((k, u) for k, u in ((1, "s"), (1e-3, "ms"), (1e-6, "us")) if s >= 0.9995 * k), (1e-9, "ns"))
    return f"{short(s / size)} {unit}"


def _legend(axes, handles: dict):
    """Handles by label, also of labels that start with an underscore, which matplotlib would leave out."""
    from matplotlib.lines import Line2D
    made = [Line2D([], [], **style) for style in handles.values()]
    legend = axes.legend(made, [str(n) for n in range(len(made))], fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    for text, label in zip(legend.get_texts(), handles):
        text.set_text(label if len(label) < 30 else label[:27] + "...")


def _colours(rows, palette) -> dict:
    return {b: {"color": c, "marker": "s", "linestyle": ""} for b, c in palette.items() if any(r["backend"] == b for r in rows)}


def _hollow(rows) -> dict:
    """What a hollow mark is, where there is one."""
    return {"hollow: noisy": {"color": "none", "marker": "o", "markeredgecolor": "black", "linestyle": ""}} if any(r["noisy"] for r in rows) else {}


def _mark(n: int) -> str:
    return list(colours.MARKS.values())[n % len(colours.MARKS)]


def _point(axes, x, y, row, marker, palette, size: float = 5):
    """A row's mark, hollow where it is noisy."""
    colour = palette[row["backend"]]
    look = {"color": "none", "markeredgecolor": colour, "markeredgewidth": 1} if row["noisy"] else {
        "color": colour, "markeredgecolor": "white", "markeredgewidth": 0.5}
    axes.plot(x, y, marker=marker, linestyle="", markersize=size, **look)


def _time(axes, rows, runs, palette):
    for (n, backend, _), line in _grouped(rows, "run", "backend", "variant"):
        line.sort(key=lambda r: (r["bytes"], r["time"][1]))
        x, (low, mid, high) = [r["bytes"] for r in line], zip(*(r["time"] for r in line))
        axes.fill_between(x, low, high, color=palette[backend], alpha=0.18, linewidth=0)
        axes.vlines(x, low, high, color=palette[backend], alpha=0.6, linewidth=1)
        axes.plot(x, mid, color=palette[backend], linestyle=_DASHES[n % len(_DASHES)], linewidth=1.3)
        for r in line:
            _point(axes, r["bytes"], r["time"][1], r, _mark(n), palette)
    _scales(axes, lambda b: prefixed(b, "B"), _seconds)
    axes.set(xlabel="bytes that the op must move")
    machines = sorted({r["run"] for r in rows})
    _legend(axes, _colours(rows, palette) | _hollow(rows) | ({runs[n].name: {"color": "black", "marker": _mark(n), "linestyle": _DASHES[n % len(_DASHES)]}
                                             for n in machines} if len(machines) > 1 else {}))


def _lanes(rows, palette) -> list[tuple[str, str, list[dict]]]:
    """(op and dtype, backend, rows), from the top."""
    out = []
    for (op, dtype), mine in _grouped(rows, "op", "dtype"):
        out += [(f"{op} {dtype}", b, its) for b in palette if (its := [r for r in mine if r["backend"] == b])]
    return out


def _tall(lanes) -> float:
    return min(200.0, 1.2 + 0.2 * len(lanes))


def _named(axes, lanes, palette):
    """Lanes from the top, each group named at its first."""
    names = [name if not n or lanes[n - 1][0] != name else "" for n, (name, _, _) in enumerate(lanes)]
    axes.set_yticks(range(len(lanes)), [n if len(n) < 40 else n[:37] + "..." for n in names])
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    return _colours([r for _, _, its in lanes for r in its], palette)


def _speed(axes, lanes, base, palette):
    for y, (_, backend, rows) in enumerate(lanes):
        sound = [r["speedup"] for r in rows if not r["noisy"]]  # the others are in no bar and no mean
        if sound:
            axes.barh(y, geomean(sound) - 1, left=1, height=0.75, color=palette[backend], alpha=0.6)
        for r in rows:
            _point(axes, r["speedup"], y, r, "o", palette, 3.5)
        axes.text(1.01, y, ratio(geomean(sound)) if sound else "noisy", transform=axes.get_yaxis_transform(), va="center", fontsize=8)
    axes.axvline(1, color="black", linestyle="--", linewidth=0.8)
    _scales(axes, x=lambda x: f"{short(x)}x")
    axes.set(xlabel=f"times as fast as {base if len(base) < 25 else base[:22] + '...'} on that machine (bar: geometric mean)")
    _legend(axes, _named(axes, lanes, palette) | _hollow([r for _, _, its in lanes for r in its]))
    axes.get_legend().set_bbox_to_anchor((1.12, 1))


def _roof(axes, rows, limits, palette):
    x, rates = [r["flops"] / r["bytes"] for r in rows], [r["flops"] / r["time"][1] for r in rows]
    ceilings = {k: v for k, v in limits.items() if k.startswith("flop_per_s") and v}
    slope = limits.get("bytes_per_s")
    knees = [v / slope for v in ceilings.values()] if slope else []
    low, high = min(x + knees) / 2, max(x + knees) * 2
    if slope:
        end = max(knees, default=high)
        axes.plot([low, end], [low * slope, end * slope], color="black", linewidth=1.3)
        axes.annotate(f"copy {prefixed(slope, 'B/s')}", (low, low * slope), (4, -14), textcoords="offset points", fontsize=8)
    for value in ceilings.values():
        axes.plot([value / slope if slope else low, high], [value, value], color="black", linewidth=1.3)
        axes.annotate(prefixed(value, "FLOP/s"), (high, value), (0, 3), textcoords="offset points", ha="right", fontsize=8)
    for a, b, r in zip(x, rates, rows):
        _point(axes, a, b, r, _mark(r["run"]), palette)
    _scales(axes, short, prefixed)
    axes.set(xlabel="FLOP per byte that must move", ylabel="FLOP/s")
    _legend(axes, _colours(rows, palette) | _hollow(rows))


def _cpu(axes, rows, threads, palette):
    for r in rows:
        _point(axes, r["wall"][1], r["cpu"], r, _mark(r["run"]), palette)
    _scales(axes, _seconds, _seconds)
    ends = axes.get_xlim()
    for n in {1, threads or 1}:
        axes.plot(ends, [n * e for e in ends], color="grey", linestyle="--", linewidth=0.8)
        axes.annotate(f"{n} core{'s' * (n > 1)} busy", (ends[1], n * ends[1]), (-4, 2 if n > 1 else -14), textcoords="offset points",
                      ha="right", fontsize=8, color="grey")
    axes.set(xlabel="wall time of a call", ylabel="CPU time, the mean")
    _legend(axes, _colours(rows, palette) | _hollow(rows))


def _first(axes, lanes, palette):
    kinds = set()
    for y, (_, backend, rows) in enumerate(lanes):
        for r in rows:
            for kind, s in r["first"].items():
                if kind != "here" or "cold" not in r["first"]:
                    axes.plot(s, y, _FIRST[kind], color=palette[backend], markersize=5, markeredgecolor="white", markeredgewidth=0.5)
                    kinds.add(kind)
    _scales(axes, x=_seconds)
    axes.set(xlabel="first call")
    _legend(axes, _named(axes, lanes, palette) | {k: {"color": "black", "marker": m, "linestyle": ""} for k, m in _FIRST.items() if k in kinds})
