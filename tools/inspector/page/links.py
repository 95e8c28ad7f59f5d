"""Which source line each line of a stage is about: of TTIR and TTGIR by their locations, of LLVM IR by !dbg, of PTX by .loc, of a plan by its words.

Every function returns a `Linked`: the lines as they are shown, without the marks that the links were read from, and a tuple of source lines for each,
the one that it is mainly about first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Iterable

from ....backends.cpu.ttir.locations import unescape
from ..stats import _LIBRARY
from ..text import SourceLines

#: (file, line)
Place = tuple[str, int]


@dataclass
class Linked:
    """A stage's lines. places: for each, the source lines that it is about. folds: (first, last, title) of lines that are shown folded."""

    lines: list[str]
    places: list[tuple[Place, ...]]
    folds: list[tuple[int, int, str]] = field(default_factory=list)


def of(stage: str, text: str, source: str, known: Iterable[Place] = ()) -> Linked:
    """The lines of a stage. source: the kernel's own file. known: source lines that code comes from; a plan says no files, so that its numbers are
    looked up in them."""
    lines = text.rstrip("\n").split("\n")
    how = {"ttir": _ttir, "ttgir": _ttir, "llir": _llir, "ptx": _ptx}.get(stage)
    if stage == "plan":
        return _plan(lines, source, known)
    return how(lines) if how else Linked(lines, [()] * len(lines))


def _folded(lines: list[str], hidden, title: str, least: int = 3) -> list[tuple[int, int, str]]:
    """Runs of at least `least` lines that `hidden` picks, blank ones between them included."""
    out, first = [], None
    for k, line in enumerate([*lines, "end"]):
        if k < len(lines) and (hidden(line) or first is not None and not line.strip()):
            first = k if first is None else first
        else:
            if first is not None and k - first >= least:
                out.append((first, k, f"{title}, {k - first} lines"))
            first = None
    return out


def _ttir(lines: list[str]) -> Linked:
    named = {hit[1]: hit[2] for line in lines if (hit := re.match(r"(#loc\w*) = loc\((.*)\)$", line))}

    def frames(body: str, depth: int = 0) -> list[Place]:
        if depth > 20:
            return []
        if hit := re.match(r'("[^"]+"):(\d+):\d+', body):
            return [(unescape(hit[1]), int(hit[2]))]
        return [f for ref in re.findall(r"#loc\w*", body) for f in frames(named.get(ref, ""), depth + 1)]

    shown, places = [], []
    for line in lines:
        hit = re.search(r"\s*loc\((#loc\w*)\)(\s*\{?)$", line) if not line.startswith("#loc") else None
        found = frames(named.get(hit[1], "")) if hit else []
        places.append(tuple(f for f in found if not _LIBRARY.search(f[0]))[:1])
        shown.append(re.sub(r" loc\((#loc\w*|unknown)\)", "", line))
    return Linked(shown, places, _folded(lines, lambda line: line.startswith("#loc"), "locations"))


def _llir(lines: list[str]) -> Linked:
    meta = {hit[1]: hit[2] for line in lines if (hit := re.match(r"!(\d+) = (?:distinct )?(!DI\w+\(.*\))$", line))}

    def ref(body: str, name: str) -> str:
        hit = re.search(rf"\b{name}: !(\d+)", body)
        return hit[1] if hit else ""

    def path(scope: str) -> str:
        for _ in range(20):
            body = meta.get(scope, "")
            if at := ref(body, "file"):
                name, folder = (re.search(rf'{k}: ("[^"]*")', meta.get(at, "")) for k in ("filename", "directory"))
                return "/".join(filter(None, (unescape(folder[1]) if folder else "", unescape(name[1]) if name else "")))
            scope = ref(body, "scope")
        return ""

    kept: dict[str, tuple[Place, ...]] = {}

    def places(n: str) -> tuple[Place, ...]:
        if n not in kept:
            at, found = n, ()
            for _ in range(20):
                body = meta.get(at, "")
                line = re.search(r"\bline: (\d+)", body)
                frame = (path(ref(body, "scope")), int(line[1])) if line else None
                if frame and frame[1] and frame[0] and not _LIBRARY.search(frame[0]):
                    found = (frame,)
                    break
                at = ref(body, "inlinedAt")
                if not at:
                    break
            kept[n] = found
        return kept[n]

    marks = [re.search(r"!dbg !(\d+)", line) for line in lines]
    shown = [re.sub(r",? !dbg !\d+", "", line) for line in lines]
    hidden = re.compile(r"!\w|attributes #|declare |; Function Attrs|source_filename|target (datalayout|triple)")
    return Linked(shown, [places(hit[1]) if hit else () for hit in marks], _folded(lines, hidden.match, "declarations and debug information"))


def _ptx(lines: list[str]) -> Linked:
    where, places = SourceLines(), []
    stripped = [line.strip() for line in lines]
    for line in stripped:
        if line.startswith(".file"):
            where.read(line)
    for line in stripped:
        if line.startswith(".loc"):
            where.read(line)
        frames = tuple(f for f in where.frames() if not _LIBRARY.search(f[0]))[:1]
        places.append(frames if re.match(r"[a-z@]", line) else ())
    sections = next((k for k, line in enumerate(stripped) if line.startswith(".section")), len(lines))
    keep = [k for k, line in enumerate(stripped) if not line.startswith(".loc") and not re.match(r"\$L__tmp\d+:|\$L__func_", line)]
    first = sum(k < sections for k in keep)
    folds = [(first, len(keep), f"debug information, {len(keep) - first} lines")] if len(keep) - first > 3 else []
    return Linked([lines[k].expandtabs(4) for k in keep], [places[k] for k in keep], folds)


def _plan(lines: list[str], source: str, known: Iterable[Place]) -> Linked:
    named: dict[int, list[Place]] = {}
    for place in sorted(known, key=lambda at: (at[0] != source, at)):
        named.setdefault(place[1], []).append(place)
    places, last = [], ()
    for line in lines:
        about = [int(n) for n in re.findall(r"\bline (\d+):", line) + re.findall(r"@(\d+)\b", line)]
        found = tuple(dict.fromkeys(place for n in about for place in named.get(n, [(source, n)])))
        last = found or (last if line.startswith("    ") else ())  # what is further in is about the line above it
        places.append(last)
    return Linked(lines, places)
