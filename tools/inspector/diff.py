"""Two reports side by side: verdicts, figures of the hottest loops, instruction kinds, instructions for each source line."""

from __future__ import annotations

from collections import Counter

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...bench.screen import uncut
from .terminal import VERDICTS

_FIGURES = ("vector", "fma", "load_bits", "store_bits", "bytes_per_access", "spills", "calls", "f64", "gathers", "masked", "convert", "matrix")


def compare(a: dict, b: dict) -> dict:
    """The comparison of two reports in their JSON form (`Report.as_dict`)."""
    def summary(d):
        hot = [loop for loop in d["loops"] if loop["hot"]]
        worst = {k: _worst(k, [loop[k] for loop in hot if loop.get(k) is not None]) for k in _FIGURES}
        kinds, lines = Counter(), Counter()
        for loop in hot:
            kinds.update({k: n for k, n in loop["kinds"].items()})
            for at in loop["lines"]:
                lines[f"{at['file'].rpartition('/')[2]}:{at['line']}"] += at["instructions"]
        return {"kernel": d["kernel"], "target": d["target"], "backend": d["backend"], "verdict": d["verdict"], "hot_loops": len(hot),
                "instructions": sum(loop["instructions"] for loop in hot), "figures": worst, "kinds": dict(kinds), "lines": dict(lines)}
    return {"a": summary(a), "b": summary(b)}


def _worst(name: str, values: list):
    if not values:
        return None
    return min(values) if name in ("vector", "fma", "load_bits", "store_bits", "bytes_per_access", "matrix") else max(values)


def show(pair: dict, console: Console):
    a, b = pair["a"], pair["b"]
    t = Table(box=SIMPLE_HEAD, pad_edge=False, title=f"{a['kernel']}: hot loops, the worst figure of each", title_justify="left")
    t.add_column("")
    for side in (a, b):
        t.add_column(f"{side['kernel'] if a['kernel'] != b['kernel'] else ''} {side['target']} {side['backend']}".strip(), justify="right")
    t.add_row("verdict", *(Text(str(s["verdict"]), VERDICTS.get(s["verdict"], "")) for s in (a, b)))
    for key in ("hot_loops", "instructions"):
        t.add_row(key.replace("_", " "), *(str(s[key]) for s in (a, b)))
    cell = lambda x: "" if x is None else f"{x:g}"  # noqa: E731
    for key in _FIGURES:
        x, y = a["figures"][key], b["figures"][key]
        if (x, y) != (None, None):
            t.add_row(key, cell(x), Text(cell(y), "bold" if x != y else ""))
    t.add_section()
    for kind in sorted({*a["kinds"], *b["kinds"]}, key=lambda k: -(a["kinds"].get(k, 0) + b["kinds"].get(k, 0))):
        t.add_row(f"{kind} instructions", *(str(s["kinds"].get(kind, 0)) for s in (a, b)))
    shared = sorted({*a["lines"], *b["lines"]}, key=lambda x: (x.rpartition(":")[0], int(x.rpartition(":")[2])))
    if shared:
        t.add_section()
    for line in shared:
        t.add_row(line, *(str(s["lines"].get(line, 0)) for s in (a, b)))
    uncut(t, console)
