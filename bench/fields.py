"""What a benchmark's table can say of a row, a column each, and in which order columns leave where the table is wider than the screen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable, Iterable

from . import noise
from .units import percent, plain, prefixed, ratio, time_text
from .words import baseline, is_noisy, seconds


@dataclass(frozen=True)
class Field:
    """name: as --columns takes it; header: what stands above it; text: a row's cell, "" where the row has none."""

    name: str
    header: str
    meaning: str
    text: Callable[[dict], str]


def _time(row: dict) -> str:
    if row["status"] != "ok":
        return {"wrong": "WRONG"}.get(row["status"], row["status"])
    t = seconds(row)
    return "" if t is None else "~" * ("unsteady" in row) + time_text(t)


def _speedup(row: dict) -> str:
    said = ratio(row["speedup"]) if row.get("speedup") else ""
    return f"{said} noisy".strip() if row["status"] == "ok" and is_noisy(row) else said


def _interval(row: dict) -> str:
    s = row.get("device_s") or row.get("wall_s") or {}
    if s.get("n", 0) < noise.FEW:
        return ""  # the interval of so few samples is none
    if not s.get("ci") or not s.get("p50") or not all(isinstance(x, (int, float)) and math.isfinite(x) for x in s["ci"]):
        return ""
    return "±" + percent((s["ci"][1] - s["ci"][0]) / 2 / s["p50"])


def _spread(row: dict) -> str:
    s = row.get("device_s") or row.get("wall_s") or {}
    return f"{time_text(s['p20'])}..{time_text(s['p80'])}" if "p20" in s and "p80" in s else ""


def _median(key: str) -> Callable[[dict], str]:
    return lambda row: time_text(row[key]["p50"]) if (row.get(key) or {}).get("p50") is not None else ""


def _mean(key: str) -> Callable[[dict], str]:
    return lambda row: time_text(row[key]["avg"]) if (row.get(key) or {}).get("avg") is not None else ""


def _first(key: str) -> Callable[[dict], str]:
    return lambda row: time_text(row["first_call_s"][key]) if (row.get("first_call_s") or {}).get(key) is not None else ""


def _figure(key: str, text: Callable[[float], str]) -> Callable[[dict], str]:
    return lambda row: text(row[key]) if row.get(key) is not None else ""


def _host(row: dict) -> str:
    return _median("wall_s")(row) if "device_s" in row else ""


def _ratio_interval(row: dict) -> str:
    s = row.get("device_s") or row.get("wall_s") or {}
    if s.get("n", 0) < noise.FEW or row["backend"] == baseline(row):
        return ""
    low_high = row.get("speedup_ci") or []
    return "..".join(map(ratio, low_high)) if len(low_high) == 2 and all(isinstance(x, (int, float)) and math.isfinite(x) for x in low_high) else ""


def _metric(name: str) -> Field:
    def text(row: dict) -> str:
        value = (row.get("metrics") or {}).get(name)
        return "" if value is None else f"{value:.4g}" if isinstance(value, float) else plain(value)

    return Field(name, plain(name), "a metric of the op's own", text)


#: in the order in which they stand; the op's own metrics follow the rates
FIELDS = (
    Field("backend", "backend", "who computed it", lambda row: plain(row["backend"])),
    Field("by", "by", "the backend that `auto` chose", lambda row: plain(row.get("by") or "")),
    Field("time", "time", "median time of a call (GPU rows: the GPU's own)", _time),
    Field("speedup", "vs", "times as fast as the baseline", _speedup),
    Field("speedup_ci", "vs 95%", "95 % confidence interval of the speed-up", _ratio_interval),
    Field("ci", "±95%", "half the 95 % confidence interval of the median time", _interval),
    Field("wall", "wall", "the host's median time, beside a GPU's own", _host),
    Field("cpu", "cpu", "CPU time of all threads, the mean of all calls", _mean("cpu_s")),  # Linux may count other threads' in ticks of 4 ms: a median is one of few numbers
    Field("spread", "p20..p80", "20th to 80th percentile of the time", _spread),
    Field("bandwidth", "bandwidth", "bytes that the op must move, over the time", _figure("gb_per_s", lambda x: prefixed(x * 1e9, "B/s", True))),
    Field("flops", "FLOP/s", "floating-point operations over the time", _figure("tflop_per_s", lambda x: prefixed(x * 1e12, "FLOP/s", True))),
    Field("roofline", "roof", "the share of what the machine's limits allow", _figure("roofline", percent)),
    Field("metrics", "metrics", "the op's own metrics, a column each", lambda row: ""),
    Field("cold", "cold", "first call with nothing compiled", _first("cold")),
    Field("reload", "reload", "first call with the kernels on disk, in a process that runs already", _first("reload")),
    Field("process", "new process", "first call of a new process, the kernels on disk", _first("process")),
    Field("first", "first", "first call in this process, whatever was compiled before", _first("here")),
    Field("memory", "memory", "peak of the memory that a call takes", _figure("peak_bytes", lambda x: prefixed(x, "B", x >= 1000))),
    Field("error", "error", "normalised error against float64", _figure("error", lambda x: f"{x:.0e}")),
)
NAMES = tuple(c.name for c in FIELDS)
#: these never leave
KEPT = ("backend", "time", "speedup")
#: where a table is wider than the screen, columns leave in this order
LEAVE = ("error", "memory", "first", "reload", "process", "speedup_ci", "spread", "cold", "cpu", "wall", "ci", "roofline", "flops", "bandwidth",
         "metrics", "by")


def add(parser):
    """The options that choose columns."""
    parser.add_argument("--columns", metavar="A,B,...", help="these columns, in this order (default: all that have figures): "
                        + ", ".join(NAMES) + ", or one of an op's own metrics by its name")
    parser.add_argument("--wide", action="store_true", help="every column, however wide the screen is")


def chosen(text: str, metrics: Iterable[str] = ()) -> list[str]:
    """The names in "a,b,c". metrics: names of ops' own metrics, which may be among them. Raises `Error` for an unknown one."""
    from ..backends.base import Error, suggest
    names = [n.strip() for n in text.split(",") if n.strip()]
    for n in names:
        if n not in NAMES and n not in metrics:
            raise Error(suggest("column", n, [*NAMES, *metrics]))
    if not names:
        raise Error(f"--columns {text!r}: it takes names with commas between them: {', '.join(NAMES)}")
    return list(dict.fromkeys(names))


def of(rows: list[dict], names: list[str] | None = None) -> list[Field]:
    """The columns `names` (default: all that some row fills), the backend first. The speed-up's header names what it is against."""
    metrics = list(dict.fromkeys(k for r in rows for k in r.get("metrics") or {}))
    wanted: list[Field] = []
    known = {c.name: c for c in FIELDS}
    for name in names or NAMES:
        wanted += map(_metric, metrics) if name == "metrics" else [known[name]] if name in known else [_metric(name)]
    bases = {plain(baseline(r)) for r in rows}
    base = bases.pop() if len(bases) == 1 else "baseline"
    head = f"vs {base if len(base) <= 13 else 'baseline'}"
    wanted = [Field(c.name, head, c.meaning, c.text) if c is known["speedup"] else c for c in wanted if c.name != "backend"]
    return [known["backend"], *(c for c in wanted if names or c.name == "time" or any(map(c.text, rows)))]


def leaving(columns: list[Field]) -> list[Field]:
    """Those of some columns that may leave, in order."""
    rank = {name: n for n, name in enumerate(LEAVE)}
    out = [c for c in columns if c.name not in KEPT]
    return sorted(out, key=lambda c: rank.get(c.name, rank["metrics"]))
