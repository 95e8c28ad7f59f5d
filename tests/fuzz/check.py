"""Whether a program does on this machine what numpy says."""

from __future__ import annotations

import importlib.util
import itertools
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from . import evaluate, source
from .program import FLOATS, GUARD, STORED, Program, decode, fill

_numbers = itertools.count()


@dataclass
class Failure:
    """What was wrong: `kind` is "values" or an error's class, `launch` the number of the argument set."""

    kind: str
    detail: str
    launch: int = 0

    @property
    def cause(self) -> str:
        """What two failures of one cause have in common: of an error its text without files, names and numbers."""
        return self.kind if self.kind == "values" else f"{self.kind}: {re.sub(r'/[^ ]*|[a-z]*[0-9][a-z0-9]*|<.*?>', '', self.detail)[:300]}"

    def same(self, other) -> bool:
        return other is not None and self.cause == other.cause


def load_module(text: str, folder: Path):
    """Import a module's source; Triton reads kernels from files."""
    name = f"fuzzed_{next(_numbers)}"
    path = Path(folder) / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


def tensors(program: Program):
    """(storage name -> its tensor of bytes, the pointer arguments)."""
    data = {s.name: torch.from_numpy(np.ascontiguousarray(fill(s.dtype, s.size + 2 * GUARD, s.seed, s.span)).view(np.uint8).copy())
            for s in program.storages}
    storages = {s.name: s for s in program.storages}
    args = []
    for b in program.buffers:
        s = storages[b.storage]
        width = STORED[s.dtype].itemsize
        start, end = GUARD * width + b.offset, (GUARD + s.size) * width
        args.append(data[b.storage][start:end - (end - start) % STORED[b.dtype].itemsize].view(torch_type(b.dtype)))
    return data, args


def torch_type(dtype: str):
    return torch.bool if dtype == "int1" else getattr(torch, dtype)


def differing(program: Program, wanted: dict, got: dict) -> list[str]:
    """Where storages are not equal: lines of text."""
    out = []
    for s in program.storages:
        w, g = wanted[s.name], got[s.name]
        if np.array_equal(w, g):
            continue
        w, g = (decode(x.view(STORED[s.dtype]), s.dtype) if s.dtype != "int1" else x for x in (w, g))
        at = np.flatnonzero(~(w == g)) if s.dtype in FLOATS else np.flatnonzero(w != g)
        if len(at):
            out.append(f"{s.name} ({s.dtype}): {len(at)} of {len(w)} differ, at {(at[:6] - GUARD).tolist()}: "
                       f"wanted {w[at[:6]].tolist()}, got {g[at[:6]].tolist()}")
    return out


def check(program: Program, folder: Path, wanted=None) -> Failure | None:
    """Compile and run a program; None where all is as numpy says. Raises Invalid where numpy cannot say it."""
    if wanted is None:
        wanted = [evaluate.run(program, launch) for launch in program.launches]
    try:
        kernel = load_module(source.module(program), folder).kernel
    except Exception as e:
        return Failure(type(e).__name__, str(e))
    for k, launch in enumerate(program.launches):
        data, args = tensors(program)
        try:
            kernel[launch.grid](*args, *launch.scalars.values())
        except Exception as e:
            return Failure(type(e).__name__, message(e), k)
        lines = differing(program, wanted[k], {name: t.numpy() for name, t in data.items()})
        if lines:
            return Failure("values", "; ".join(lines), k)
    return None


def message(e: Exception) -> str:
    """What an error says, without the source lines that it quotes."""
    lines = [line.strip() for line in str(e).splitlines() if line.strip()]
    return (lines[-1] if lines else "") + (f" <- {message(e.__cause__)}" if e.__cause__ is not None else "")
