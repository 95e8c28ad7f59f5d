"""Results files -> runs: what a page can draw. Files come from other machines, other versions and other hands, so nothing in them is taken on trust:
a file that is none is an `Error`, a row with a figure that cannot be is left out and said so."""

from __future__ import annotations

import os
import re
import urllib.parse
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from ...backends.base import Error
from ...bench import results
from ...bench.schema import clean

STATUSES = ("ok", "wrong", "failed", "skipped")
_SHOWN = 6  # rows left out that are named one by one
_SCHEME = re.compile(r"[A-Za-z][\w+.-]*:|[/\\]")


class _Bad(Exception):
    """Why a row is left out."""


@dataclass
class Run:
    """One results file. name: its short name on the page; about: its machine in words; limits: device -> {"bytes_per_s", "flop_per_s", ...};
    remarks: what is missing from it, in sentences; rows: see `_row`."""

    name: str
    about: str = ""
    command: str = ""
    threads: int | None = None
    limits: dict[str, dict[str, float]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    rows: list[dict] = field(default_factory=list)


def read(paths: list[Path], page: Path) -> list[Run]:
    """The runs of results files, in order, with links relative to where `page` will be. Raises `Error` for a file that is none, and where no
    file has a row to show."""
    loaded = [results.load(p) for p in paths]
    out = []
    for n, (name, path, data) in enumerate(zip(names(paths), paths, loaded)):
        out.append(_run(name, Path(path), data, Path(page)))
        for row in out[-1].rows:
            row["run"] = n
    if not any(r.rows for r in out):
        raise Error("there is no row to show: " + "; ".join(f"{r.name}: {' '.join(r.remarks)}" for r in out))
    return out


def names(paths: list[Path]) -> list[str]:
    """A short name for each file: its stem, with its folder where two are alike, numbered where those are, too."""
    stems = [Path(p).stem for p in paths]
    found = [f"{Path(p).resolve().parent.name}/{s}" if stems.count(s) > 1 else s for p, s in zip(paths, stems)]
    seen: Counter = Counter()
    out = []
    for name in map(clean, found):
        seen[name] += 1
        out.append(name if found.count(name) == 1 else f"{name} {seen[name]}")
    return out


def _run(name: str, path: Path, data: dict, page: Path) -> Run:
    machine = data["machine"]
    run = Run(name, about(machine), clean(machine["command"]) if isinstance(machine.get("command"), str) else "")
    try:
        run.threads = int(_number(machine, "threads", 1, 1e6) or 0) or None
        run.limits = _limits(machine)
    except _Bad as e:
        run.remarks.append(f"Of its machine's figures one cannot be: {e}.")
    if data.get("complete") is not True:
        run.remarks.append(f"The run was interrupted: it has {len(data['rows'])} row{'s' * (len(data['rows']) != 1)}, and those that would have "
                           "followed are missing.")
    left, gone = [], 0
    for n, raw in enumerate(data["rows"]):
        try:
            row = _row(raw)
        except _Bad as e:
            left.append(f"Row {n + 1} is left out: {e}.")
            continue
        gone += _links(row, raw, path, page)
        run.rows.append(row)
    run.remarks += left[:_SHOWN] + ([f"{len(left) - _SHOWN} more rows are left out for such reasons."] if len(left) > _SHOWN else [])
    if gone:
        run.remarks.append(f"{gone} link{'s' * (gone != 1)} to machine code or a trace lead{'s' * (gone == 1)} nowhere and "
                           f"{'is' if gone == 1 else 'are'} left out: the files do not lie where the rows say.")
    if not data["rows"]:
        run.remarks.append("It has no rows.")
    return run


def about(machine: dict) -> str:
    """A machine in words, of whatever a file says of it."""
    board = machine.get("board") if isinstance(machine.get("board"), dict) else {}
    said = [board.get("runner"), board.get("cpu"), machine.get("gpu")]
    said.append(f"compiled on {machine['cpu']}" if board and isinstance(machine.get("cpu"), str) else machine.get("cpu"))
    said += [f"{machine[k]} {k}" for k in ("cores", "threads") if isinstance(machine.get(k), int)]
    said += [f"{k} {machine[k]}" for k in ("torch", "triton", "LLVM", "cuda") if isinstance(machine.get(k), str)]
    said.append(machine["time"][:10] if isinstance(machine.get("time"), str) else None)
    return ", ".join(clean(x, 80) for x in said if isinstance(x, str) and clean(x))


# --- figures ---------------------------------------------------------------------------------------------------------


def _shown(value) -> str:
    return clean(repr(value), 40) if isinstance(value, (str, int, float, type(None))) else f"a {type(value).__name__}"


def _number(where: dict, key: str, low: float, high: float, called: str = ""):
    """A figure within [low, high]; None where there is none. Raises `_Bad`."""
    value = where.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (low <= value <= high):
        raise _Bad(f"{called or key} is {_shown(value)}, which is no number from {low:g} to {high:g}")
    return float(value)


def _percentiles(raw: dict, key: str, low: float) -> list[float] | None:
    """[p20, p50, p80] of a row's samples in seconds."""
    s = raw.get(key)
    if s is None:
        return None
    if not isinstance(s, dict):
        raise _Bad(f"{key} is no summary of samples")
    out = [_number(s, p, low, 1e9, f"{key}.{p}") for p in ("p20", "p50", "p80")]
    if None in out:
        raise _Bad(f"{key} lacks p20, p50 or p80")
    if out != sorted(out):
        raise _Bad(f"{key} has percentiles out of order")
    return out


def _limits(machine: dict) -> dict[str, dict[str, float]]:
    limits = machine.get("roofline") or {}
    if not isinstance(limits, dict) or not all(isinstance(v, dict) for v in limits.values()):
        raise _Bad("roofline is no object of devices")
    return {clean(device): {clean(k): _number(v, k, 1, 1e24, f"roofline.{k}") for k in v if k.startswith(("bytes_per_s", "flop_per_s"))}
            for device, v in limits.items()}


def _row(raw) -> dict:
    """A row as the page takes it: op, case, variant (what its case says beside shapes), dtype, backend, device, status; of a right one time,
    wall, cpu: [p20, p50, p80] in seconds (time: the GPU's own where it was measured); first: kind -> seconds; bytes, flops, speedup, roof (1.0: all of
    it), peak (bytes), error and allowed as text, reason; where the file has them mode, baseline, noisy, speedup_is. None where there is none. Raises
    `_Bad`."""
    if not isinstance(raw, dict):
        raise _Bad(f"it is a {type(raw).__name__}, not an object")
    row: dict = {}
    for key in ("op", "case", "dtype", "backend"):
        if not isinstance(raw.get(key), str) or not clean(raw[key]):
            raise _Bad(f"its {key} is {'missing' if key not in raw else 'no text'}")
        row[key] = clean(raw[key])
    if isinstance(raw.get("mode"), str) and raw["mode"] != "fwd":
        row["op"] = clean(f"{row['op']} {raw['mode']}")
    if raw.get("status") == "skipped":
        raise _Bad(f"it was skipped: {clean(str(raw.get('reason')), 80)}")
    if raw.get("status") not in STATUSES:
        raise _Bad(f"its status is {_shown(raw.get('status'))}, none of {', '.join(STATUSES)}")
    row["device"] = clean(raw["device"]) if isinstance(raw.get("device"), str) else "cpu"
    row |= {"variant": variant(row["case"]), "status": raw["status"],
            "reason": clean(raw["reason"], 300) if isinstance(raw.get("reason"), str) else "", "error": _error(raw.get("error")),
            "allowed": _error(raw.get("allowed"))}
    row |= {key: clean(raw[key]) for key in ("mode", "baseline", "noisy", "speedup_is") if isinstance(raw.get(key), str) and clean(raw[key])}
    if row["status"] != "ok":
        return row
    row["wall"], row["cpu"], device = (_percentiles(raw, k, low) for k, low in (("wall_s", 1e-12), ("cpu_s", 0.0), ("device_s", 1e-12)))
    if row["wall"] is None:
        raise _Bad("it has no wall_s")
    row |= {"time": device or row["wall"], "gpu": device is not None}
    first = raw.get("first_call_s") or {}
    if not isinstance(first, dict):
        raise _Bad("first_call_s is no object")
    row["first"] = {k: v for k in ("cold", "reload", "process", "here") if (v := _number(first, k, 1e-12, 1e9, f"first_call_s.{k}")) is not None}
    for name, key, high in (("bytes", "bytes", 1e24), ("flops", "flops", 1e30), ("speedup", "speedup", 1e12), ("roof", "roofline", 1e12),
                            ("peak", "peak_bytes", 1e24)):
        row[name] = _number(raw, key, 0.0, high)
    row["speedup"] = row["speedup"] or None
    return row


def _error(value) -> str:
    """An error for people; infinite and NaN are errors, too."""
    return f"{value:.1e}" if isinstance(value, float) or isinstance(value, int) and abs(value) < 1e300 else ""


def variant(case: str) -> str:
    """What a case's name says beside its shapes: "dim=0" of "1024x1024,dim=0"; "transposed" where an argument is."""
    parts = case.split(",")
    said = [p for p in parts if not re.fullmatch(r"\d+(x\d+)*t?", p)]
    return ", ".join((["transposed"] if any(re.fullmatch(r"[\dx]*t", p) for p in parts) else []) + said)


# --- links -----------------------------------------------------------------------------------------------------------


def _links(row: dict, raw: dict, path: Path, page: Path) -> int:
    """Add a row's links, relative to the page, and its verdict. Returns how many lead nowhere."""
    artefacts = raw.get("artefacts")
    gone = 0
    if isinstance(artefacts, dict):
        for key in ("verdict", "case"):
            if isinstance(artefacts.get(key), str):
                row["code_case" if key == "case" else key] = clean(artefacts[key], 60)
        for key in ("asm", "trace"):
            if artefacts.get(key) is not None:
                row[key] = _link(artefacts[key], path, page)
                gone += row[key] is None
    return gone


def _link(there, path: Path, page: Path) -> str | None:
    """A relative URL from the page to a file that a results file names relative to itself. None for anything else."""
    if not isinstance(there, str) or not there or _SCHEME.match(there):
        return None
    target = os.path.join(os.path.dirname(os.path.abspath(path)), there)
    if not os.path.isfile(target):
        return None
    return urllib.parse.quote(Path(os.path.relpath(target, os.path.dirname(os.path.abspath(page)))).as_posix())
