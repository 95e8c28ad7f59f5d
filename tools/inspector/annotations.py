"""What a report finds, for machines that show it beside the source: GitHub's annotations and step summary, SARIF 2.1.0."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from . import verdict
from .report import Report
from .stats import Region

_SARIF = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


@dataclass(frozen=True)
class Finding:
    """rule: "requirement", "worse", "verdict", or a cause's name with dashes; level: "error" or "warning"; file and line: of the source, "" and 0 where it
    is not known; function: of the machine code."""

    rule: str
    level: str
    title: str
    text: str
    file: str = ""
    line: int = 0
    function: str = ""


def findings(reports: list[Report], failed: list[str], worse: list[str]) -> list[Finding]:
    """Failed requirements and what got worse than the baseline as errors, then the causes of hot loops as warnings, each once."""
    out = []
    for said, rule, title in ((failed, "requirement", "requirement not met"), (worse, "worse", "worse than the baseline")):
        for line in said:
            r = _region(reports, line)
            out.append(Finding(rule, "error", title, line, *_at(r), function=r.function.name if r else ""))
    for report in reports:
        for r in report.hot:
            for c in verdict.causes(r, report.gpu):
                where = f"{report.code.name} [{report.code.target}] {r.label}: "
                out.append(Finding(c.name.replace(" ", "-"), "warning", c.name, f"{where}{c.text}; {c.remedy}", *_at(r, c.line), function=r.function.name))
    return list(dict.fromkeys(out))


def _region(reports: list[Report], line: str) -> Region | None:
    """The hot loop that a line is about: lines name kernel, target and label."""
    for report in reports:
        head = f"{report.code.name} [{report.code.target}]"
        if line.startswith(head):
            return next((r for r in report.hot if r.label in line.split()), report.hot[0] if report.hot else None)
    return None


def _at(r: Region | None, short: str = "") -> tuple[str, int]:
    """(file, line) of a region's work, or of `short`, "file.py:12"."""
    if r is None or not r.lines:
        return "", 0
    name, _, number = short.rpartition(":")
    for file, _ in r.lines:
        if name and number.isdigit() and file.rpartition("/")[2] == name:
            return _relative(file), int(number)
    file, line = max(r.lines, key=lambda at: r.lines[at])
    return _relative(file), line


def _relative(file: str) -> str:
    """A path as the repository has it, where it lies in there."""
    root = Path(os.environ.get("GITHUB_WORKSPACE") or os.getcwd()).resolve()
    try:
        return str(Path(file).resolve().relative_to(root)) if os.path.isabs(file) else file
    except ValueError:
        return file


# --- GitHub ----------------------------------------------------------------------------------------------------------


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def github(found: list[Finding]) -> str:
    """A workflow command for each finding (docs.github.com, "Workflow commands for GitHub Actions")."""
    out = []
    for f in found:
        place = f"file={_property(f.file)},line={f.line}," if f.file else ""
        out.append(f"::{f.level} {place}title={_property('triport asm: ' + f.title)}::{_data(f.text)}\n")
    return "".join(out)


def summary(reports: list[Report], found: list[Finding]) -> str:
    """The step summary: a table of kernels, and what is wrong, in Markdown."""
    cell = lambda text: str(text).replace("|", "\\|").replace("\n", " ")  # noqa: E731
    out = ["### triport asm", "", "| kernel | target | verdict | hot loops | unknown |", "|---|---|---|---:|---:|"]
    out += [f"| `{cell(r.code.name)}` | {cell(r.code.target)} | {r.verdict or 'nothing to judge'} | {len(r.hot)} | {r.unknown:.1%} |" for r in reports]
    for level, title in (("error", "Failed"), ("warning", "Could be better")):
        some = [f for f in found if f.level == level]
        if some:
            out += ["", f"**{title}**", "", *(f"- {cell(f.text)}" + (f" (`{f.file}:{f.line}`)" if f.file else "") for f in some)]
    return "\n".join(out) + "\n"


# --- SARIF -----------------------------------------------------------------------------------------------------------


def sarif(found: list[Finding]) -> str:
    """A log of SARIF 2.1.0 with one run."""
    from .record import version
    rules = {}
    for f in found:
        rules.setdefault(f.rule, {"id": f.rule, "shortDescription": {"text": f.title}, "defaultConfiguration": {"level": f.level}})
    driver = {"name": "triport asm", **({"version": version()} if version() else {}), "rules": list(rules.values())}
    return json.dumps({"$schema": _SARIF, "version": "2.1.0",
                       "runs": [{"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": [_result(f, list(rules)) for f in found]}]}, indent=1) + "\n"


def _result(f: Finding, rules: list[str]) -> dict:
    from urllib.parse import quote
    place: dict = {}
    if f.file:
        absolute = os.path.isabs(f.file)
        place["physicalLocation"] = {"artifactLocation": {"uri": ("file://" if absolute else "") + quote(f.file)}, "region": {"startLine": max(1, f.line)}}
    if f.function:
        place["logicalLocations"] = [{"name": f.function, "kind": "function"}]
    return {"ruleId": f.rule, "ruleIndex": rules.index(f.rule), "level": f.level, "message": {"text": f.text}, **({"locations": [place]} if place else {})}
