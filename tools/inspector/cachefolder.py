"""Kernels out of Triton's cache on disk: one of its folders, or the whole of it. Nothing is compiled, and the kernels' sources need not be there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

from ...backends.base import Error, suggest
from . import code, targets
from .code import Code
from .targets import Goal

#: suffixes of stages in a folder of the cache; those with bytes
_TEXTS = ("source", "ttir", "ttgir", "plan", "llir", "ptx", "amdgcn", "asm")
_BYTES = ("cubin", "hsaco", "obj")


def is_cache(path: Path) -> bool:
    """Is a folder one of the cache's, or the cache?"""
    return any(True for _ in _metadata(path))


def _metadata(path: Path):
    """The kernels' metadata files in a folder and in its folders."""
    for file in sorted([*path.glob("*.json"), *path.glob("*/*.json")], key=lambda f: (f.stat().st_mtime, str(f))):
        if not file.name.startswith("__grp__") and any(file.with_suffix(f".{kind}").is_file() for kind in (*_BYTES, "asm", "amdgcn")):
            yield file


def codes(path: Path, kernel: str, goal: Goal | None, text: str = "") -> list[Code]:
    """The kernels of a folder, the oldest first. kernel: one by name; text: those whose name has it; goal: those of this target. Raises `Error`."""
    files = list(_metadata(path))
    if not files:
        raise Error(f"{path} is a folder without kernels; it takes Triton's cache (~/.triton/cache), or a folder of it")
    names = list(dict.fromkeys(f.stem for f in files))
    if kernel and kernel not in names:
        raise Error(f"{path}: {suggest('kernel', kernel, names)}")
    if text and not any(text in n for n in names):
        raise Error(f"--kernel {text}: there is none of that name; there are {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}")
    out, other = [], []
    for file in files:
        if kernel in ("", file.stem) and text in file.stem:
            made = _code(file)
            (out if goal is None or made.target == goal.name else other).append(made)
    if not out:
        raise Error(f"{path} has no kernel for {goal.name}; what it has is for {', '.join(dict.fromkeys(c.target for c in other))}")
    return out


def _code(file: Path) -> Code:
    try:
        meta = json.loads(file.read_text())
        target = meta["target"]
        backend, arch = target["backend"], target["arch"]
    except (ValueError, KeyError, TypeError):
        raise Error(f"{file} is no metadata of Triton's: it has no target") from None
    asm: dict = {}
    for kind in (*_TEXTS, *_BYTES):
        if (stage := file.with_suffix(f".{kind}")).is_file():
            asm[kind] = stage.read_bytes() if kind in _BYTES else stage.read_text(errors="replace")
    try:
        goal = _of_row(str(meta["target_row"])) if "target_row" in meta else targets.get(f"sm_{arch}" if backend == "cuda" else str(arch or "native"))
    except Error as e:
        raise Error(f"{file}: {e}") from None
    made = code.of_compiled(SimpleNamespace(asm=asm, metadata=SimpleNamespace(**{"name": file.stem, **meta}), src=None), goal)
    made.remark = file.parent.name
    return made


def _of_row(row: str) -> Goal:
    """The CPU that a kernel was compiled for, from the text of its row: another machine's "native" is not this one's."""
    said = dict(re.findall(r"(\w+)='?([^',()]*)", row))
    isa = {"x86_64": "x86-64", "aarch64": "aarch64", "riscv64": "riscv64"}.get(said.get("triple", "").partition("-")[0])
    if isa is None:
        raise Error(f"its target is {row[:60]!r}, which is none of this version's")
    return Goal(said["name"], isa, "cpu", said["name"], vector_bits=0 if said.get("isa") == "scalar" else int(said.get("vector_bits", 128)), about=said.get("isa", ""))
