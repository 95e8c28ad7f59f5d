"""Files of text, in UTF-8 whatever the locale is."""

from __future__ import annotations

from pathlib import Path


def write(path: Path, text: str):
    """Write text as UTF-8. A name of a file in a locale without its letters holds its bytes as lone surrogates: they are written as those bytes."""
    path.write_bytes(text.encode("utf-8", "surrogateescape") if _escapes(text) else text.encode("utf-8", "replace"))


def read(path: Path) -> str:
    """A file's text, what is no UTF-8 in it replaced."""
    return path.read_text(encoding="utf-8", errors="replace")


def _escapes(text: str) -> bool:
    try:
        text.encode("utf-8", "surrogateescape")
        return True
    except UnicodeEncodeError:  # a surrogate that stands for no byte
        return False
