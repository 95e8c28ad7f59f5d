"""Locations of a TTIR text: the lines of the user's Python that operations come from."""

from __future__ import annotations

import re

from .types import Loc

_PART = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):\d+|(#\w+)')
_NESTED = 64


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
                    out.append(Loc(m[1], int(m[2])))
            self._inside[text] = out
        return out or []
