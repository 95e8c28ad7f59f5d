"""What Triton's cache has of a kernel: the code that was compiled last for it, for `triport asm script.py:kernel` without types.

Entries do not say from which types they were compiled; their TTIR does (arguments with alignment, constants folded), and where the kernel stands. So
an entry is found by the kernel's name and file, is judged as it is, and for another target is compiled on from its TTIR. An entry that is used again
keeps its date: the last one is the one that was compiled last.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from types import SimpleNamespace

from ...backends import active
from ...backends.base import CompileError
from ...backends.cpu.ttir.locations import unescape
from . import code, targets
from .code import Code
from .targets import Goal

_FUNCTION = re.compile(r"tt\.func public @[^(]+\((.*?)\) (?:attributes|->|\{)", re.S)
_ARGUMENT = re.compile(r"%(\w+): ([\w!.]+(?:<[^>]*>)?)( \{[^}]*\})?")


def last(path: Path, name: str, goal: Goal | None) -> Code | None:
    """The code of the newest entry in the cache of kernel `name` of the Python file `path`, which is not run, for `goal` (None: what launches here
    run on); None where there is none. Raises `CompileError`."""
    if not re.search(rf"^\s*def {re.escape(name)}\(", _text(path), re.M) or not (found := _entries(path, name)):
        return None
    goal = goal or _here()
    mine = [e for e in found if _target(e[1]) == (goal.backend, str(goal.arch))]
    entry, meta = (mine or found)[0]
    files = {p.suffix[1:]: p for p in entry.parent.glob(f"{entry.stem}.*")}
    if mine:
        asm = {ext: p.read_bytes() if ext in ("obj", "cubin", "hsaco") else p.read_text(errors="replace")
               for ext, p in files.items() if ext != "json"}
        compiled = SimpleNamespace(asm=asm, metadata=SimpleNamespace(**meta), src=None)
    else:
        compiled = _compiled(files["ttir"], meta, goal)
    out = code.of_compiled(compiled, goal)
    out.stages, out.sources = {"source": _text(path), **out.stages}, (str(path.resolve()),)
    types = arguments(files["ttir"].read_text())
    out.f64 = any("f64" in ty or ty.endswith("fp64") for _, ty, _ in types)
    out.unaligned = tuple(name for name, ty, aligned in types if not aligned and (ty.startswith("*") or ty in ("i32", "i64")))
    out.remark = _remark(path, entry, len(found), types)
    return out


def _here() -> Goal:
    """The target that launches of this process have."""
    from triton.runtime import driver
    now = driver.active.get_current_target()
    return targets.get(f"sm_{now.arch}" if now.backend == "cuda" else str(now.arch))


def _remark(path: Path, entry: Path, count: int, types) -> str:
    """Where the code is from, for people; its types as --arg takes them."""
    shown = ", ".join(f"{name}={f'{ty[1:]}[16]' if aligned else f'{ty[1:]}[]'}" if ty.startswith("*") else f"{name}={ty}{':16' if aligned else ''}"
                      for name, ty, aligned in types)
    at = entry.stat().st_mtime
    others = f", the last of {count} in Triton's cache" if count > 1 else " in Triton's cache"
    return (f"as compiled {time.strftime('%Y-%m-%d %H:%M', time.localtime(at))}{others}: {shown}"
            f"{'; the file has changed since' if path.stat().st_mtime > at else ''}")


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def arguments(ttir: str) -> list[tuple[str, str, bool]]:
    """[(name, type like *fp32 or i32, is it known to be divisible by 16?)] of a kernel's TTIR."""
    hit = _FUNCTION.search(ttir)
    out = []
    for name, ty, attributes in _ARGUMENT.findall(hit[1] if hit else ""):
        pointer = re.match(r"!tt\.ptr<(\w+)", ty)
        step = re.search(r"tt\.divisibility = (\d+)", attributes)
        plain = re.sub(r"^f(\d+)$", r"fp\1", pointer[1] if pointer else ty)
        out.append((name, f"*{plain}" if pointer else plain, bool(step) and int(step[1]) % 16 == 0))
    return out


def _entries(path: Path, name: str) -> list[tuple[Path, dict]]:
    """[(its .json, what that says)] of a kernel's entries, the newest first. Those that check accesses are not what programs run."""
    from triton import knobs
    out = []
    for entry in Path(knobs.cache.dir).glob(f"*/{name[:150]}.json"):
        try:
            at = re.search(r'loc\(("[^"]+"):\d+', entry.with_suffix(".ttir").read_text())
            meta = json.loads(entry.read_text())
            if at and Path(unescape(at[1])).resolve() == path.resolve() and {"target", "name"} <= meta.keys() and not meta.get("check"):
                out.append((entry.stat().st_mtime, entry, meta))
        except (OSError, ValueError):
            continue  # half written, or gone meanwhile
    return [(entry, meta) for _, entry, meta in sorted(out, key=lambda e: -e[0])]


def _target(meta: dict) -> tuple[str, str]:
    return meta["target"]["backend"], str(meta["target"]["arch"])


def _compiled(ttir: Path, meta: dict, goal: Goal):
    """The kernel that an entry's TTIR gives for another target."""
    import triton
    gpus = meta["target"]["backend"] != "cpu" and goal.gpu
    options = {"num_warps": meta.get("num_warps", 4), "num_stages": meta.get("num_stages", 3)} if gpus else {}
    with active.compiling_for(goal.triton()):
        try:
            return triton.compile(str(ttir), target=goal.triton(), options=options)
        except Exception as e:
            raise CompileError(f"{meta['name']}, as its TTIR is in Triton's cache, does not compile for {goal.name}: {e}\n"
                               f"say its arguments' types with --arg and --const") from e


