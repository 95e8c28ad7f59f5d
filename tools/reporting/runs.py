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
from ...bench import results, words
from ...bench.schema import clean
from . import rows
from .rows import Bad

_SHOWN = 6  # rows left out that are named one by one
_SCHEME = re.compile(r"[A-Za-z][\w+.-]*:|[/\\]")


@dataclass
class Run:
    """One results file. name: its short name on the page; about: its machine in words; limits: device -> {"bytes_per_s", "flop_per_s", ...};
    remarks: what `triport bench` says of the run, and what is missing from the file, in sentences; measured: its sound rows in the file's own terms
    (`rows.measured`); rows: those as the page draws them (`rows.drawn`), in the same order."""

    name: str
    about: str = ""
    command: str = ""
    threads: int | None = None
    limits: dict[str, dict[str, float]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    measured: list[dict] = field(default_factory=list)
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
        run.threads = int(rows.number(machine, "threads", 1, 1e6) or 0) or None
        run.limits = rows.limits(machine)
    except Bad as e:
        run.remarks.append(f"Of its machine's figures one cannot be: {e}.")
    left, gone = [], 0
    for n, raw in enumerate(data["rows"]):
        try:
            measured = rows.measured(raw)
        except Bad as e:
            left.append(f"Row {n + 1} is left out: {e}.")
            continue
        row = rows.drawn(measured)
        gone += _links(row, raw, path, page)
        run.measured.append(measured)
        run.rows.append(row)
    run.remarks = words.remarks(_said(run, data)) + run.remarks
    run.remarks += left[:_SHOWN] + ([f"{len(left) - _SHOWN} more rows are left out for such reasons."] if len(left) > _SHOWN else [])
    if gone:
        run.remarks.append(f"{gone} link{'s' * (gone != 1)} to machine code or a trace lead{'s' * (gone == 1)} nowhere and "
                           f"{'is' if gone == 1 else 'are'} left out: the files do not lie where the rows say.")
    if not data["rows"]:
        run.remarks.append("It has no rows.")
    return run


def _said(run: Run, data: dict) -> dict:
    """What of a file's data the sentences of `bench.words` are made of, with what can be in it."""
    machine = data["machine"]
    busy, left_out = machine.get("busy"), machine.get("left_out")
    texts = {clean(k): clean(v, 300) for k, v in left_out.items() if isinstance(v, str)} if isinstance(left_out, dict) else {}
    return {"complete": data.get("complete") is True, "rows": run.measured,
            "machine": {"busy": clean(busy, 300) if isinstance(busy, str) else "", "left_out": texts, "roofline": run.limits}}


def about(machine: dict) -> str:
    """A machine in words, of whatever a file says of it."""
    board = machine.get("board") if isinstance(machine.get("board"), dict) else {}
    said = [board.get("runner"), board.get("cpu"), machine.get("gpu")]
    said.append(f"compiled on {machine['cpu']}" if board and isinstance(machine.get("cpu"), str) else machine.get("cpu"))
    said += [f"{machine[k]} {k}" for k in ("cores", "threads") if isinstance(machine.get(k), int)]
    said += [f"{k} {machine[k]}" for k in ("torch", "triton", "LLVM", "cuda") if isinstance(machine.get(k), str)]
    said.append(machine["time"][:10] if isinstance(machine.get("time"), str) else None)
    return ", ".join(clean(x, 80) for x in said if isinstance(x, str) and clean(x))


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
