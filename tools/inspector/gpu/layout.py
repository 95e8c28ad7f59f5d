"""Which elements of a tile which thread holds: TTGIR's layouts as bases of linear layouts.

A linear layout maps the bits of a register's, lane's and warp's number to coordinates; the coordinates of a number are the exclusive or of its bits'
bases. #ttg.blocked, #ttg.linear and #ttg.slice of them are read here. Others (matrix units', dot operands') are converted by Triton's own code in a
process of its own (`triton_layouts.py`), since nanobind complains at the end of a process that did it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

#: bases of registers, lanes and warps
Bases = tuple[list, list, list]


def places(ttgir: str, types: list[str]) -> dict[str, np.ndarray]:
    """{type: element coordinates [warps, lanes, registers, rank]} of tensor types as TTGIR text writes them, `tensor<64x64xf32, #mma>`. ttgir: the
    module, for the layouts' names. A type whose layout nobody can read is left out."""
    names = dict(re.findall(r"^(#(?!loc)\w+) = (#ttg\..*)$", ttgir, re.M))
    out, others = {}, []
    for t in dict.fromkeys(types):
        shape = shape_of(t)
        bases = _read(t.partition(", ")[2][:-1], shape, names) if ", " in t else None
        if bases is None:
            others.append(t)
        else:
            out[t] = _spread(bases, shape)
    for t, bases in _by_triton(ttgir, [t for t in others if ", " in t]).items():
        out[t] = _spread(bases, shape_of(t))
    return out


def shape_of(tensor: str) -> tuple[int, ...]:
    """(64, 32) of `tensor<64x32xf32, #blocked>`."""
    return tuple(int(n) for n in re.match(r"tensor<((?:\d+x)*)", tensor)[1].split("x") if n)


def _read(layout: str, shape: tuple[int, ...], names: dict[str, str]) -> Bases | None:
    layout = names.get(layout.strip(), layout.strip())
    if hit := re.match(r"#ttg\.slice<\{dim = (\d+), parent = (.*)\}>$", layout):
        dim = int(hit[1])
        parent = _read(hit[2], (*shape[:dim], 1, *shape[dim:]), names)
        return None if parent is None else tuple([base[:dim] + base[dim + 1:] for base in part] for part in parent)
    lists = {key: json.loads(text) for key, text in re.findall(r"(\w+) = (\[(?:[\d, ]|\[[\d, ]*\])*\])", layout)}
    if layout.startswith("#ttg.blocked"):
        return _blocked(lists, shape)
    if layout.startswith("#ttg.linear") and not any(lists.get("block", [])):
        registers = list(lists["register"])
        covered = [1 + sum(max(b[d], 0) for part in (registers, lists["lane"], lists["warp"]) for b in part) for d in range(len(shape))]
        return _extended(registers, covered, shape), lists["lane"], lists["warp"]
    return None


def _blocked(lists: dict, shape: tuple[int, ...]) -> Bases:
    size, order, parts = [1] * len(shape), lists["order"], []
    for key in ("sizePerThread", "threadsPerWarp", "warpsPerCTA"):
        bases = []
        for d in order:
            for _ in range(lists[key][d].bit_length() - 1):
                bases.append([size[d] if k == d and size[d] < shape[d] else 0 for k in range(len(shape))])
                size[d] *= 2
        parts.append(bases)
    return _extended(parts[0], size, shape, order), parts[1], parts[2]


def _extended(registers: list, size: list, shape: tuple[int, ...], order=None) -> list:
    """Registers for what a layout's own tile does not cover of a shape."""
    for d in order or range(len(shape)):
        while size[d] < shape[d]:
            registers = [*registers, [size[d] if k == d else 0 for k in range(len(shape))]]
            size[d] *= 2
    return registers


def _spread(bases: Bases, shape: tuple[int, ...]) -> np.ndarray:
    def of(part):
        at = np.zeros((1, len(shape)), np.int64)
        for base in part:
            at = np.concatenate([at, at ^ np.array(base, np.int64)])
        return at
    registers, lanes, warps = map(of, bases)
    return (warps[:, None, None] ^ lanes[None, :, None] ^ registers[None, None]) % np.array(shape, np.int64)


def _by_triton(ttgir: str, types: list[str]) -> dict[str, Bases]:
    """The bases of layouts that Triton converts; {} where it does not."""
    if not types:
        return {}
    names = [line for line in ttgir.split("\n") if re.match(r"#(?!loc)\w+ = #", line)]
    head = re.search(r"^module attributes \{.*$", ttgir, re.M)
    arguments = ", ".join(f"%a{k}: {t}" for k, t in enumerate(types))
    module = "\n".join([*names, head[0] if head else "module {", f"tt.func public @f({arguments}) {{ tt.return }}", "}"])
    told = json.dumps({"module": module, "shapes": [shape_of(t) for t in types]})
    try:
        done = subprocess.run([sys.executable, str(Path(__file__).with_name("triton_layouts.py"))], input=told, capture_output=True, text=True,
        timeout=120)
        found = json.loads(done.stdout.strip().rpartition("\n")[2])
    except (OSError, ValueError, subprocess.SubprocessError):
        return {}
    return {t: tuple(bases) for t, bases in zip(types, found) if bases}
