"""llvm-mca, LLVM's own model of a CPU's ports and latencies: found, run once for many pieces of code, and its JSON read.

A tool that is missing, too old, or without a model of the CPU is a `Missing` with what to do: reports are made all the same.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from dataclasses import dataclass, field

#: the first version that leaves out what it does not know (-skip-unsupported-instructions)
OLDEST = 19
#: turns of a loop that are simulated; what the first ones take longer is subtracted
TURNS = 60
#: seconds that one run may take
LIMIT = 60
#: what resources of a model begin with -> whose ports they are. LLVM has models of its own for few CPUs, the others borrow one
_PORTS = {"Zn": "Zen", "Zn2": "Zen 2", "Zn3": "Zen 3", "Zn4": "Zen 4", "Zn5": "Zen 5", "SB": "Sandy Bridge", "HW": "Haswell", "BW": "Broadwell",
          "SKL": "Skylake client", "SKX": "Skylake server", "ICX": "Ice Lake", "SPR": "Golden Cove", "ADLP": "Golden Cove", "SLM": "Silvermont",
          "CortexA510": "Cortex-A510", "CortexA55": "Cortex-A55", "A57": "Cortex-A57", "N1": "Neoverse N1", "N2": "Neoverse N2", "V1": "Neoverse V1",
          "V2": "Neoverse V2", "SMX60": "SpacemiT X60", "SiFive7": "SiFive 7"}
#: what it says where it knows no ports of a CPU
_NO_MODEL = ("is not a recognized processor", "unable to find instruction-level scheduling", "requires an RV")


class Missing(Exception):
    """There is no bound: why, and what to do."""


@dataclass
class Piece:
    """What llvm-mca says of one piece of code. total: cycles for `TURNS` turns; throughput: cycles a turn by units and width alone; uops: a turn;
    latencies: of each instruction taken; pressure: unit -> cycles a turn; users: unit -> [(instruction, cycles a turn)]; taken: instructions; short:
    "units", "results" or "", what instructions waited for most (in cores that reorder them)."""

    total: int
    throughput: float
    uops: float
    width: int
    latencies: list[int]
    pressure: dict[str, float]
    users: dict[str, list[tuple[int, float]]]
    taken: int
    short: str = ""


@dataclass
class Answer:
    """pieces: name -> `Piece`; refused: name -> lines that it does not take; cpu: whose model; ports: whose units that model has ("" where not
    known); ordered: instructions start in the order of the text; version: of LLVM."""

    pieces: dict[str, Piece] = field(default_factory=dict)
    refused: dict[str, list[str]] = field(default_factory=dict)
    cpu: str = ""
    ports: str = ""
    ordered: bool = False
    version: int = 0


@functools.lru_cache(maxsize=8)
def _find(path: str) -> tuple[str, int]:
    """(program, version) of the newest llvm-mca on `path`. Raises `Missing`."""
    found = {}
    for name in ("llvm-mca", *(f"llvm-mca-{v}" for v in range(40, 13, -1))):
        if not (program := shutil.which(name, path=path)):
            continue
        version = name.rpartition("-")[2]
        if not version.isdigit():
            try:
                hit = re.search(r"version (\d+)", subprocess.run([program, "--version"], capture_output=True, text=True, timeout=LIMIT).stdout)
            except (OSError, subprocess.SubprocessError):
                continue
            version = hit[1] if hit else "0"
        found.setdefault(int(version), program)
    if not found:
        raise Missing("llvm-mca was not found: install LLVM's tools (apt-get install llvm-22, or a newer llvm-NN)")
    version = max(found)
    if version < OLDEST:
        raise Missing(f"llvm-mca {version} is too old: it takes {OLDEST} or newer (apt-get install llvm-22, or a newer llvm-NN)")
    return found[version], version


def find() -> tuple[str, int]:
    """(program, version) of the newest llvm-mca on PATH. Raises `Missing`."""
    import os
    return _find(os.environ.get("PATH", os.defpath))


@functools.lru_cache(maxsize=16)
def cpus(triple: str) -> frozenset[str]:
    """Names of the CPUs that the newest llvm-mca knows for a target. Raises `Missing`."""
    program, version = find()
    try:
        done = subprocess.run([program, f"-mtriple={triple}", "-mcpu=help"], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=LIMIT)
    except (OSError, subprocess.SubprocessError) as e:
        raise Missing(f"{program} does not run: {e}") from None
    return frozenset(re.findall(r"^ +(\S+) +- Select the ", done.stderr, re.MULTILINE))


def run(pieces: dict[str, list[str]], triple: str, cpu: str, features: str = "") -> Answer:
    """Simulate each of `pieces`, name -> lines of assembly, as the body of a loop. Raises `Missing`."""
    program, version = find()
    lines, owner = [], {}
    for name, body in pieces.items():
        lines.append(f"# LLVM-MCA-BEGIN {name}" if not triple.startswith("aarch64") else f"// LLVM-MCA-BEGIN {name}")
        for line in body:
            lines.append(line)
            owner[len(lines)] = name
        lines.append(lines[-1 - len(body)].replace("BEGIN", "END"))
    command = [program, f"-mtriple={triple}", f"-mcpu={cpu}", "-json", f"-iterations={TURNS}", "-skip-unsupported-instructions=any",
               "-bottleneck-analysis"]
    if features:
        command.append(f"-mattr={features}")
    try:
        done = subprocess.run([*command, "-"], input="\n".join(lines) + "\n", capture_output=True, text=True, errors="replace", timeout=LIMIT)
    except subprocess.TimeoutExpired:
        raise Missing(f"llvm-mca {version} took more than {LIMIT} s for it") from None
    except OSError as e:
        raise Missing(f"{program} does not run: {e}") from None
    if any(words in done.stderr for words in _NO_MODEL):
        raise Missing(f"llvm-mca {version} has no model of {cpu}")
    at = done.stdout.find("{")
    try:
        found = json.loads(done.stdout[at:], strict=False) if at >= 0 else None
    except ValueError:
        found = None
    if done.returncode or not found:
        raise Missing(f"llvm-mca {version} failed: {_complaint(done.stderr) or f'exit code {done.returncode}'}")
    return _read(found, done.stderr, owner, lines, version)


def _complaint(text: str) -> str:
    return next((line.strip()[:200] for line in text.split("\n") if "error" in line.lower()), text.strip()[:200])


def _read(found: dict, complaints: str, owner: dict[int, str], lines: list[str], version: int) -> Answer:
    resources = [re.sub(r"[.\x00-\x1f]+\d*$", "", r) for r in found["TargetInfo"]["Resources"]]
    out = Answer(cpu=found["TargetInfo"]["CPUName"], version=version, ordered="not supported for in-order CPU" in complaints)
    out.ports = next((_PORTS[p] for p in sorted(_PORTS, key=len, reverse=True) if any(r.startswith(p) for r in resources)), "")
    bad = {int(n) for n in re.findall(r"^\S*?:(\d+):\d+: error", complaints, re.M)}
    for n in sorted(bad):
        if n in owner:
            out.refused.setdefault(owner[n], []).append(lines[n - 1])
    for region in found["CodeRegions"]:
        summary, n = region["SummaryView"], len(region["Instructions"])
        pressure: dict[str, float] = {}
        users: dict[str, list[tuple[int, float]]] = {}
        for use in region["ResourcePressureView"]["ResourcePressureInfo"]:
            # units of one name are one resource: what one of them has to do is the mean
            unit = resources[use["ResourceIndex"]]
            share = use["ResourceUsage"] / resources.count(unit)
            if use["InstructionIndex"] >= n:
                pressure[unit] = pressure.get(unit, 0.0) + share
            else:
                users.setdefault(unit, []).append((use["InstructionIndex"], share))
        latencies = [i["Latency"] for i in region["InstructionInfoView"]["InstructionList"]]
        out.pieces[region["Name"]] = Piece(summary["TotalCycles"], summary["BlockRThroughput"], summary["TotaluOps"] / summary["Iterations"],
                                           summary["DispatchWidth"], latencies, pressure, users, n, _short(region.get("BottleneckAnalysis", {})))
    return out


def _short(found: dict) -> str:
    units, results = found.get("ResourcePressureCycles", 0), found.get("DataDependencyCycles", 0)
    return "" if not units and not results else "units" if units >= results else "results"
