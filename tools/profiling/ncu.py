"""Nsight Compute's key figures of a target's kernels on a GPU: a process of its own under `ncu`, which profiles one steady step.

Metric names are those of NVIDIA's Kernel Profiling Guide.
"""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys

from .counters import Denied

#: figure -> metric
METRICS = {"time us": "gpu__time_duration.sum", "DRAM %": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
           "SM %": "sm__throughput.avg.pct_of_peak_sustained_elapsed", "occupancy %": "sm__warps_active.avg.pct_of_peak_sustained_active",
           "registers": "launch__registers_per_thread", "shared bytes": "launch__shared_mem_per_block"}
STALLS = ("long_scoreboard", "short_scoreboard", "barrier", "math_pipe_throttle", "lg_throttle", "mio_throttle", "wait", "not_selected")
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
#: what a value has to be multiplied by to be in the figure's unit
_SCALE = {"nsecond": 1e-3, "ns": 1e-3, "usecond": 1.0, "us": 1.0, "msecond": 1e3, "ms": 1e3, "second": 1e6, "s": 1e6,
          "Kbyte/block": 1e3, "byte/block": 1.0, "Mbyte/block": 1e6}


def by_kernel(words: list[str], options: dict, backend: str) -> dict[str, dict[str, object]]:
    """Kernel -> figures, each the mean over its launches in one step, and its longest stall. words, options: what the target was found by
    (`target.find`). Raises `Denied`."""
    ncu = shutil.which("ncu")
    if ncu is None:
        raise Denied("Nsight Compute (ncu) is not installed, which reads a GPU's counters")
    metrics = ",".join([*METRICS.values(), *(_STALL.format(s) for s in STALLS)])
    request = json.dumps({"words": words, "options": options, "backend": backend})
    done = subprocess.run([ncu, "--csv", "--page", "raw", "--metrics", metrics, "--profile-from-start", "off", "--launch-count", "100",
                           sys.executable, "-m", "triport.tools.profiling.ncu", request], capture_output=True, text=True)
    if "ERR_NVGPUCTRPERM" in done.stdout + done.stderr:
        raise Denied("this user may not read the GPU's counters (ERR_NVGPUCTRPERM: NVreg_RestrictProfilingToAdminUsers=0, or run as root)")
    found = read(done.stdout)
    if not found:
        raise Denied(f"ncu profiled no kernel: {((done.stderr or done.stdout).strip().splitlines() or ['no output'])[-1]}")
    return found


def read(text: str) -> dict[str, dict[str, object]]:
    """Figures by kernel of what `ncu --csv --page raw` printed: remarks, a line of names, a line of units, a line for each launch."""
    lines = text.splitlines()
    start = next((k for k, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return {}
    rows = list(csv.reader(lines[start:]))
    names, units, launches = rows[0], rows[1] if len(rows) > 1 else [], rows[2:]
    if "Kernel Name" not in names:
        return {}
    values: dict[str, dict[str, list[float]]] = {}
    for row in launches:
        if len(row) != len(names):  # remarks again
            continue
        at = values.setdefault(row[names.index("Kernel Name")], {})
        for name, unit, value in zip(names, units, row):
            try:
                at.setdefault(name, []).append(float(value.replace(",", "")) * _SCALE.get(unit, 1.0))
            except ValueError:
                pass
    out = {}
    for kernel, at in values.items():
        def mean(metric, at=at):
            return sum(at[metric]) / len(at[metric]) if at.get(metric) else None

        figures: dict[str, object] = {"launches": max(len(v) for v in at.values())} if at else {}
        figures |= {figure: mean(metric) for figure, metric in METRICS.items() if mean(metric) is not None}
        stalls = {s: mean(_STALL.format(s)) for s in STALLS if mean(_STALL.format(s)) is not None}
        if stalls:
            longest = max(stalls, key=stalls.get)
            figures["longest stall"] = f"{longest.replace('_', ' ')}, {stalls[longest]:.1f} cycles an instruction"
        out[kernel] = figures
    return out


def _step(request: str):
    """What runs under ncu: two calls that are not profiled, one that is."""
    import argparse

    import torch

    from .target import find

    wanted = json.loads(request)
    one = next(t for t in find(wanted["words"], argparse.Namespace(**wanted["options"])) if t.backend == wanted["backend"])
    for _ in range(2):
        one.step()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    one.step()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


if __name__ == "__main__":
    _step(sys.argv[1])
