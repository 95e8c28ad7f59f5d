"""Locations of a TTIR text: the lines of the user's Python that operations come from."""

from __future__ import annotations

import re

from .types import Loc

_PART = re.compile(r'("(?:[^"\\]|\\.)*"):(\d+):\d+|(#\w+)')
_NESTED = 64


def unescape(quoted: str) -> str:
    """What a quoted text of MLIR's or LLVM's says, which write what is not ASCII byte by byte."""
    said = re.sub(rb"\\([0-9A-Fa-f]{2}|.)", lambda m: bytes([int(m[1], 16)]) if len(m[1]) == 2 else {b"n": b"\n", b"t": b"\t"}.get(m[1], m[1]), quoted[1:-1].encode())
    return said.decode(errors="replace")


class Locations:
    """`aliases`: name (`#loc3`) -> the location's text, which may name others."""

    def __init__(self, aliases: dict[str, str]):
        self.aliases = aliases
        self._known: dict[str, Loc] = {}
        self._inside: dict[str, list[Loc]] = {}  # a location's text -> its frames

    def resolve(self, text: str) -> Loc:
        """The user's frame of a location: of a chain of call sites the innermost one outside Triton's library."""
        found = self._known.get(text)
        if found is None:
            frames = self._frames(text, 0)
            user = [f for f in frames if "/triton/language/" not in f.file.replace("\\", "/") and f.line]
            first, *callers = user or [f for f in frames if f.line][:1] or [Loc()]
            found = self._known[text] = Loc(first.file, first.line, tuple(callers))
        return found

    def _frames(self, text: str, depth: int) -> list[Loc]:
        out = self._inside.get(text)
        if out is None and depth <= _NESTED:
            out = []
            for m in _PART.finditer(text):
                if m[3]:
                    out += self._frames(self.aliases.get(m[3], ""), depth + 1)
                else:
                    out.append(Loc(unescape(m[1]), int(m[2])))
            self._inside[text] = out
        return out or []
