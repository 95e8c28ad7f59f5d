"""A row of a results file -> the same row with every field looked at, and what a page draws of it."""

from __future__ import annotations

import re

from ...bench import schema
from ...bench.schema import clean
from ...bench.words import baseline, is_noisy

_TEXTS = ("mode", "baseline", "noisy", "unsteady", "speedup_is", "new_process", "reason", "device")
_SUMMARIES = {"wall_s": 1e-12, "device_s": 1e-12}  # -> the least that one can have
_FIGURES = {"bytes": 1e24, "flops": 1e30, "speedup": 1e12, "roofline": 1e12, "peak_bytes": 1e24}  # -> the most
_FIRST = ("cold", "reload", "process", "here")


class Bad(Exception):
    """Why a row is left out."""


def measured(raw) -> dict:
    """A row of a file, its fields named as in the file and sound: texts cleaned (`error` and `allowed` are texts), figures as floats, summaries with p20, p50 and p80, of CPU time
    with avg (docs/results.md); what no page needs is not in it. Raises `Bad` for a row that cannot be what it says."""
    if not isinstance(raw, dict):
        raise Bad(f"it is a {type(raw).__name__}, not an object")
    raw = {k: v for k, v in raw.items() if v is not None}
    row: dict = {}
    for key in ("op", "case", "dtype", "backend"):
        if not isinstance(raw.get(key), str) or not clean(raw[key]):
            raise Bad(f"its {key} is {'missing' if key not in raw else 'no text'}")
        row[key] = clean(raw[key])
    if raw.get("status") not in schema.STATUSES:
        raise Bad(f"its status is {_shown(raw.get('status'))}, none of {', '.join(schema.STATUSES)}")
    row |= {"status": raw["status"], "device": "cpu"}
    row |= {key: clean(raw[key], 300) for key in _TEXTS if isinstance(raw.get(key), str) and clean(raw[key])}
    row |= {key: text for key in ("error", "allowed") if (text := _error(raw.get(key)))}
    if row["status"] != "ok":
        return row
    for key, low in _SUMMARIES.items():
        if key in raw:
            row[key] = _summary(raw, key, low)
    if "wall_s" not in row:
        raise Bad("it has no wall_s")
    if "cpu_s" in raw:
        if not isinstance(raw["cpu_s"], dict):
            raise Bad("cpu_s is no summary of samples")
        row["cpu_s"] = {"avg": number(raw["cpu_s"], "avg", 0.0, 1e9, "cpu_s.avg")}
    first = raw.get("first_call_s", {})
    if not isinstance(first, dict):
        raise Bad("first_call_s is no object")
    row["first_call_s"] = {k: s for k in _FIRST if (s := number(first, k, 1e-12, 1e9, f"first_call_s.{k}")) is not None}
    row |= {key: x for key, high in _FIGURES.items() if (x := number(raw, key, 0.0, high)) is not None}
    if said := schema.wrong(raw):
        raise Bad(said)
    return row | {key: raw[key] for key in ("rounds_s", "device_rounds_s") if key in raw}


def drawn(row: dict) -> dict:
    """A sound row as the page draws it: op (with the mode, where it is not forward), case, variant (what its case says beside shapes), dtype, backend, device,
    status, baseline, reason, error, allowed; of a right one time, wall: [p20, p50, p80] in seconds (time: the GPU's own where it was measured); cpu: seconds, the mean; first: kind -> seconds; bytes,
    flops, speedup, roof (1.0: all of it), peak (bytes); noisy, unsteady: why. None where there is none."""
    out = {key: row.get(key, "") for key in ("case", "dtype", "backend", "device", "status", "reason", "error", "allowed", "unsteady")}
    out |= {"op": row["op"] + (f" {row['mode']}" if row.get("mode", "fwd") != "fwd" else ""), "variant": variant(row["case"]), "baseline": baseline(row),
            "noisy": (row.get("noisy") or "its rounds differ by too much to say") if row["status"] == "ok" and is_noisy(row) else ""}
    if row["status"] != "ok":
        return out
    wall, device = ([row[key][q] for q in ("p20", "p50", "p80")] if key in row else None for key in _SUMMARIES)
    return out | {"wall": wall, "cpu": row.get("cpu_s", {}).get("avg"), "time": device or wall, "gpu": device is not None, "first": row["first_call_s"], "bytes": row.get("bytes"),
                  "flops": row.get("flops"), "speedup": row.get("speedup") or None, "roof": row.get("roofline"), "peak": row.get("peak_bytes")}


def number(where: dict, key: str, low: float, high: float, called: str = ""):
    """A figure within [low, high]; None where there is none. Raises `Bad`."""
    value = where.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (low <= value <= high):
        raise Bad(f"{called or key} is {_shown(value)}, which is no number from {low:g} to {high:g}")
    return float(value)


def limits(machine: dict) -> dict[str, dict[str, float]]:
    """device -> what a run measured of it: bytes_per_s, flop_per_s, flop_per_s_DTYPE, cache_bytes. Raises `Bad`."""
    found = machine.get("roofline") or {}
    if not isinstance(found, dict) or not all(isinstance(v, dict) for v in found.values()):
        raise Bad("roofline is no object of devices")
    return {clean(device): {clean(k): x for k in v if k.startswith(("bytes_per_s", "flop_per_s", "cache_bytes"))
                            and (x := number(v, k, k != "cache_bytes", 1e24, f"roofline.{k}")) is not None} for device, v in found.items()}


def variant(case: str) -> str:
    """What a case's name says beside its shapes: "dim=0" of "1024x1024,dim=0"; "transposed" where an argument is."""
    parts = case.split(",")
    said = [p for p in parts if not re.fullmatch(r"\d+(x\d+)*t?", p)]
    return ", ".join((["transposed"] if any(re.fullmatch(r"[\dx]*t", p) for p in parts) else []) + said)


def _shown(value) -> str:
    return clean(repr(value), 40) if isinstance(value, (str, int, float, type(None))) else f"a {type(value).__name__}"


def _summary(raw: dict, key: str, low: float) -> dict[str, float]:
    """p20, p50, p80 of a row's samples in seconds."""
    s = raw[key]
    if not isinstance(s, dict):
        raise Bad(f"{key} is no summary of samples")
    out = {q: number(s, q, low, 1e9, f"{key}.{q}") for q in ("p20", "p50", "p80")}
    if None in out.values():
        raise Bad(f"{key} lacks p20, p50 or p80")
    if list(out.values()) != sorted(out.values()):
        raise Bad(f"{key} has percentiles out of order")
    return out


def _error(value) -> str:
    """An error for people; infinite and NaN are errors, too."""
    return f"{value:.1e}" if isinstance(value, float) or isinstance(value, int) and abs(value) < 1e300 else ""
