"""A run's rows as CSV: one line a row, a column for each figure, seconds and bytes; docs/results.md lists the columns."""

from __future__ import annotations

import csv
import io
from typing import Iterable

_QUANTILES = ("p50", "p20", "p80", "avg", "min", "std", "max", "n")
#: column -> where its value is in a row
COLUMNS: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in ("op", "case", "dtype", "mode", "backend", "device", "status", "error", "allowed")},
    **{f"{clock}_{q}{'' if q == 'n' else '_s'}": (f"{clock}_s", q) for clock in ("wall", "cpu", "device") for q in _QUANTILES},
    **{f"wall_ci_{end}_s": ("wall_s", "ci", n) for n, end in enumerate(("low", "high"))},
    "repeats": ("repeats",), "baseline": ("baseline",), "speedup": ("speedup",),
    **{f"speedup_ci_{end}": ("speedup_ci", n) for n, end in enumerate(("low", "high"))},
    "speedup_is": ("speedup_is",), "noisy": ("noisy",), "unsteady": ("unsteady",), "bytes": ("bytes",), "flops": ("flops",), "gb_per_s": ("gb_per_s",),
    "tflop_per_s": ("tflop_per_s",), "roofline": ("roofline",),
    **{f"first_call_{kind}_s": ("first_call_s", kind) for kind in ("cold", "reload", "process", "here")},
    "peak_bytes": ("peak_bytes",), "reason": ("reason",)}


def _at(row, path: tuple):
    for step in path:
        if isinstance(row, dict):
            row = row.get(step)
        elif isinstance(row, (list, tuple)) and isinstance(step, int) and step < len(row):
            row = row[step]
        else:
            return None
    return row


def lines(rows: Iterable[Iterable]) -> str:
    """Rows of cells as CSV (RFC 4180, but lines end in one line feed)."""
    out = []
    for row in rows:
        one = io.StringIO()
        csv.writer(one).writerow(row)  # its usual line end has both characters, so that cells with either are quoted: with another Python before 3.13 leaves a carriage return bare
        out.append(one.getvalue().removesuffix("\r\n") + "\n")
    return "".join(out)


def as_csv(data: dict) -> str:
    """The rows of results `data` as CSV: a heading line, `COLUMNS`, then a column `metric_NAME` for each
    metric that an op has of its own, and the machine's name and the run's time in the last columns."""
    metrics = sorted({name for r in data["rows"] for name in r.get("metrics") or {}})
    machine = data["machine"]
    where = (machine.get("board") or {}).get("runner") or machine.get("gpu") or machine.get("cpu")
    out: list[list] = [[*COLUMNS, *(f"metric_{m}" for m in metrics), "machine", "time"]]
    for r in data["rows"]:
        values = [_at({"mode": "fwd", "baseline": "torch", **r}, path) for path in COLUMNS.values()]
        out.append([*values, *((r.get("metrics") or {}).get(m) for m in metrics), where, machine.get("time")])
    return lines(out)
