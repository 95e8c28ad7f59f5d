"""Pages of parts: a text in which @NAME@ stands where a part goes."""

from __future__ import annotations

import re


def filled(template: str, parts: dict[str, str]) -> str:
    """The template with its parts. Each goes in once: what a part says is not looked through for names of parts."""
    return re.sub("@([A-Z]+)@", lambda found: parts[found[1]], template)
