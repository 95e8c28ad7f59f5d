"""Splitting operand text: commas inside brackets belong to one operand."""

from __future__ import annotations

import functools


@functools.lru_cache(maxsize=8192)
def split(text: str) -> tuple[str, ...]:
    out, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c == "," and depth == 0:
            out.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return (*out, last) if last or out else ()
