"""A report as JSON: docs/asm-schema.md says what every field is, docs/asm.schema.json the same to programs. To add a field write it there, in both, and here.

A new field is no new version; a field that goes, or means something else, is. Text is written piece by piece: of a large library the report is
longer than memory is wide."""

from __future__ import annotations

import dataclasses
import json
from typing import Iterable, Iterator

from . import stats, verdict
from .schema import Function
from .stats import Region

#: version of what is written, and all that is read back
SCHEMA, READ = 1, (1,)
#: what a region and a report have besides, where somebody worked it out: trip counts, cycles, memory requests, weighted share, occupancy
_REGION = ("trips", "bound", "memory")
_REPORT = ("share", "occupancy", "bounds")


def number(report):
    """Give every region of a `report.Report` its id: L0, L1, ... for loops in the order of the text, B0, ... for what is outside of loops."""
    order = {id(f): k for k, f in enumerate(report.functions)}
    at = lambda r: (order.get(id(r.function), 0), r.function.blocks[r.loop.header].first if r.loop else 0, r.depth)  # noqa: E731
    for letter, some in (("L", [r for r in report.regions if r.loop]), ("B", [r for r in report.regions if not r.loop])):
        for k, r in enumerate(sorted(some, key=at)):
            r.id = f"{letter}{k}"


def of(report, instructions: bool = True) -> dict:
    """A report as one object."""
    return {**_head(report), **({"instructions": list(_instructions(report))} if instructions else {})}


def write(reports: Iterable, stream):
    """An array of reports, an instruction a line."""
    stream.write("[")
    for n, report in enumerate(reports):
        stream.write(",\n" if n else "\n")
        head = json.dumps(_head(report), indent=1)
        stream.write(head[:-2] + ',\n "instructions": [')
        for k, one in enumerate(_instructions(report)):
            stream.write(("," if k else "") + "\n  " + json.dumps(one))
        stream.write("\n ]\n}")
    stream.write("\n]\n")


def version() -> str:
    """triport's version; "" where it runs from source, uninstalled."""
    from importlib import metadata
    try:
        return metadata.version("triport")
    except metadata.PackageNotFoundError:
        return ""


def _head(report) -> dict:
    code = report.code
    return {
        "schema": SCHEMA, "triport": version(),
        "kernel": code.name, "target": code.target, "backend": code.backend, "isa": code.isa, "verdict": report.verdict,
        **{k: _plain(getattr(report, k)) for k in _REPORT if hasattr(report, k)},
        **({"run": report.run.as_dict()} if getattr(report, "run", None) else {}),
        "unknown": round(report.unknown, 4), "facts": code.facts, "stages": list(code.stages), "remark": report.remark,
        "functions": [{"name": f.name, "instructions": len(f.instructions)} for f in report.functions],
        "loops": [_region(report, r) for r in report.regions if r.instructions],
    }


def _plain(value):
    if hasattr(value, "as_dict"):
        return value.as_dict()
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else round(value, 6) if isinstance(value, float) else value


def _region(report, r: Region) -> dict:
    return {
        "id": r.id, "function": r.function.name, "label": r.label, "depth": r.depth, "hot": r.hot, "tail": r.tail, "heat": round(r.heat, 4),
        "verdict": verdict.of(r, report.gpu) if r.hot or r.tail else None,
        **{k: _plain(getattr(r, k)) for k in _REGION if hasattr(r, k)},
        "causes": [vars(c) for c in verdict.causes(r, report.gpu)] if r.hot else [],
        **r.figures, "kinds": dict(r.kinds), "units": dict(r.units), "float_elements": dict(r.elements), "called": dict(r.calls),
        "lines": [{"file": f, "line": n, "instructions": count} for (f, n), count in sorted(r.lines.items())],
    }


def _instructions(report) -> Iterator[dict]:
    regions: dict[int, list[Region]] = {}
    for r in report.regions:
        regions.setdefault(id(r.function), []).append(r)
    for f in report.functions:
        owners, names = _owners(regions.get(id(f), []), f), {}
        for name, k in f.labels.items():
            names.setdefault(k, name)
        for k, i in enumerate(f.instructions):
            c = i.what
            yield {"function": f.name, "loop": owners[k], "label": names.get(k, ""), "address": i.address, "text": i.text, "kind": c.kind, "unit": c.unit, "element": c.element,
                   "bits": c.bits, "load_bits": c.loads, "store_bits": c.stores, "spill": c.is_spill, "masked": c.masked, "line": stats.line_of(i)}


def _owners(mine: list[Region], f: Function) -> list[str]:
    """The id of the region that each instruction of a function belongs to, of the function's regions: the innermost loop's, else the body's; "" for those
    of none."""
    body = next((r.id for r in mine if r.loop is None), "")
    out = [body] * len(f.instructions)
    for b in f.blocks:
        if b.fails:
            out[b.first:b.last] = [""] * (b.last - b.first)
    for r in sorted((r for r in mine if r.loop is not None), key=lambda r: r.loop.depth):
        for k in r.loop.blocks:
            b = f.blocks[k]
            out[b.first:b.last] = [r.id] * (b.last - b.first)
    return out
