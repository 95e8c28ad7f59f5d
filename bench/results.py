"""A benchmark run as JSON: what machine, what versions, one row for each op x case x dtype x backend."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any, Callable

from ..backends.base import Error, contents, version
from . import clock, noise, schema
from .whole import write


def machine(device: str = "cpu") -> dict:
    """This machine and the versions that decide the figures; with device "cuda" its GPU, too."""
    import torch
    import triton

    from ..backends.cpu.llvm import compile as llvm
    from ..backends.host import cpu_name
    gpu = {}
    if device == "cuda":
        from ..backends import get
        gpu = {"gpu": get("triton-gpu").target(), "cuda": torch.version.cuda}
        if get("cuda").unavailable() is None:
            gpu |= {k: v for k, v in get("cuda").versions().items() if k in ("NVRTC", "cuda-core")}
    return {"cpu": cpu_name(), **gpu, "cores": os.cpu_count(), "threads": torch.get_num_threads(),
            "system": platform.platform(), "python": platform.python_version(), "triport": version(),
            "torch": torch.__version__, "triton": triton.__version__, **llvm.versions(),
            "time": time.strftime("%Y-%m-%dT%H:%M:%S"), "command": " ".join(sys.argv[1:])}


def add_times(row: dict, s: clock.Samples, device: list[float] | None):
    """A row's times: `s` of the host's clock, `device` of the GPU's own (seconds a call, one for each round)."""
    row |= {"wall_s": clock.summary(s.wall), "cpu_s": clock.summary(s.cpu), "repeats": s.repeats, "rounds_s": s.wall,
            "cpu_rounds_s": s.cpu}
    if s.left_out:
        row["rounds_left_out"] = s.left_out
    if s.unsteady and device is None:
        row["unsteady"] = s.unsteady
    if device is not None:
        row |= {"device_s": clock.summary(device), "device_rounds_s": device}
    if why := noise.why(s.wall, s.busy) if device is None else noise.why(device):  # a GPU's own time does not depend on who else is on the CPU
        row["noisy"] = why


def least_time(limits: dict, nbytes: int | None, flops: int | None, dtype: str) -> float:
    """Seconds that the slower of a device's limits (`roofline.measure`) allows for so many bytes and FLOPs in dtype `dtype`. fp64 is not measured: a CPU's
    vectors have half as many lanes for it as for fp32, and a GPU's tensor cores do as much in it as its FMA units in fp32, where it has such cores."""
    fp64 = limits.get("flop_per_s_fp32", limits["flop_per_s"] / 2)
    peak = limits.get(f"flop_per_s_{dtype}", fp64 if dtype == "fp64" else limits["flop_per_s"])
    return max((nbytes or 0) / limits["bytes_per_s"], (flops or 0) / peak)


def above_roof(limits: dict, nbytes: int | None, flops: int | None, dtype: str) -> str:
    """Why something may take less than `least_time`: the limits are those of memory, and caches are faster; of what does not fit in them only a figure can be wrong."""
    by_bytes = (nbytes or 0) / limits["bytes_per_s"] >= least_time(limits, nbytes, flops, dtype)
    if by_bytes and nbytes <= limits.get("cache_bytes", 0):
        return "its data stay in the caches"
    return "its time is noisy, or the roof was measured while the machine was slower"


def _rounds(row: dict) -> list[float]:
    """A row's samples by the clock that counts: the GPU's own where it has them."""
    return row["device_rounds_s" if "device_s" in row else "rounds_s"]


def add_rates(row: dict, base: dict | None, limits: dict, dtype: str):
    """What follows from a row's times: those of the GPU where the row has them, else the wall's. The speed-up against `base`, which has times, is
    of the rounds that both were in; what were not in turns (a board, two clocks) are compared as wholes."""
    t = row.get("device_s", row["wall_s"])["p50"]
    if row["bytes"]:
        row["gb_per_s"] = row["bytes"] / t / 1e9
    if row["flops"]:
        row["tflop_per_s"] = row["flops"] / t / 1e12
    if (row["bytes"] or row["flops"]) and "flop_per_s" in limits:
        row["roofline"] = least_time(limits, row["bytes"], row["flops"], dtype) / t
    if base is not None:
        ours, theirs = _rounds(row), _rounds(base)
        in_turns = row["device"] == base["device"] and ("device_s" in row) == ("device_s" in base) and len(ours) == len(theirs)
        ratio = (noise.paired if in_turns else noise.apart)(theirs, ours)
        row |= {"speedup": ratio.median, "speedup_is": ratio.verdict("noisy" in row)}
        if ratio.ci is not None:
            row["speedup_ci"] = list(ratio.ci)


class Results:
    """Rows as they come; written whole after each, so that an interrupted run leaves a valid file, of an earlier run where it has none of its own. also: other files -> what their text is,
    of `data()`; they are there from the first row on."""

    rows: list[dict[str, Any]]
    meta: dict[str, Any]

    def __init__(self, path: Path | None = None, also: dict[Path, Callable[[dict[str, Any]], str]] | None = None) -> None:
        self.path, self.also, self.rows, self.meta = path, also or {}, [], {}
        self.complete = False

    def data(self) -> dict[str, Any]:
        """What the file holds."""
        return {"schema": schema.VERSION, "complete": self.complete, "machine": self.meta, "rows": self.rows}

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.save()

    def finish(self) -> None:
        self.complete = True
        self.save()

    def save(self) -> None:
        if self.path is not None and (self.rows or self.complete or not self.path.is_file()):
            write(self.path, text(self.data()))
        elif self.path is not None and not os.access(self.path.resolve().parent, os.W_OK):
            raise Error(f"{self.path} cannot be written: nothing can be made in its folder")
        for path, made in self.also.items():
            if self.rows:
                write(path, made(self.data()))


def text(data: dict) -> str:
    """Data as JSON that any program reads: what is not finite is text ("NaN", "Infinity")."""
    return json.dumps(schema.plain(data), indent=1, allow_nan=False) + "\n"


def load(path: Path) -> dict[str, Any]:
    """A results file of this version or an earlier one. Raises `Error` where it is none; its rows are looked at by who reads them (`schema.rows`)."""
    try:
        data = json.loads(contents(path))
    except (OSError, ValueError, RecursionError) as e:
        raise Error(f"{path} is not a results file of `triport bench --json`: {e}") from None
    if not isinstance(data, dict):
        raise Error(f"{path} is not a results file of `triport bench --json`: its JSON is a {type(data).__name__}, not an object with rows")
    if isinstance(data.get("schema"), bool) or data.get("schema") not in schema.READABLE:
        raise Error(f"{path} has schema {schema.shown(data.get('schema'))}; this version reads {' and '.join(map(str, schema.READABLE))}: run "
                    "`triport bench --json` again")
    for key, kind in (("machine", dict), ("rows", list)):
        if not isinstance(data.get(key), kind):
            wrong = "missing" if key not in data else "of another kind"
            raise Error(f"{path} is not a results file of `triport bench --json`: its {key!r} is {wrong}")
    return {**data, "rows": [schema.restored(r) for r in data["rows"]]}
