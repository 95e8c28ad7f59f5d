"""What a mnemonic means, in a few words: a dictionary of those that compilers write for each ISA.

The dictionary of an ISA is a text file beside this one: a pattern (a regular expression that a whole mnemonic matches) and its meaning, with two
spaces between; the first that fits counts. `{1}` in a meaning stands for what the pattern's first group caught, by the table of parts (`? eq  equal`)
where that knows it, and `<f>` in a pattern for what the line `= f  ...` says. On ISAs whose mnemonics have modifiers (`ld.global.v4.b32`) the pattern
is of the first part, and `.v4  four elements` says what a modifier adds.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from importlib import resources

#: ISAs whose mnemonics have modifiers behind dots
_DOTTED = ("ptx", "sass")


@dataclass
class Dictionary:
    """patterns: (pattern, meaning); parts: what a group stands for; modifiers: what one behind a dot adds."""

    patterns: list[tuple[re.Pattern, str]] = field(default_factory=list)
    parts: dict[str, str] = field(default_factory=dict)
    modifiers: dict[str, str] = field(default_factory=dict)


@functools.cache
def dictionary(isa: str) -> Dictionary:
    """The dictionary of a row of isa.ISAS; empty where there is none."""
    out, named = Dictionary(), {}
    path = resources.files(__package__) / f"{isa}.txt"
    if not path.is_file():
        return out
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        head, _, meaning = line.strip().partition("  ")
        meaning = meaning.strip()
        if head.startswith("? "):
            out.parts.update((part, meaning) for part in head[2:].split("|"))
        elif head.startswith("= "):
            named[f"<{head[2:]}>"] = f"(?:{meaning})"
        elif head.startswith("."):
            out.modifiers.update((part, meaning) for part in head.split(" "))
        else:
            out.patterns.append((re.compile(re.sub(r"<\w+>", lambda m: named[m[0]], head)), meaning))
    return out


@functools.lru_cache(maxsize=1 << 14)
def meaning(isa: str, mnemonic: str) -> str:
    """What a mnemonic means; "" where the dictionary does not know it."""
    known = dictionary(isa)
    head, *modifiers = mnemonic.split(".") if isa in _DOTTED else [mnemonic]
    for pattern, words in known.patterns:
        if hit := pattern.fullmatch(head):
            groups = {str(k): known.parts.get(g or "", g or "") for k, g in enumerate(hit.groups(), 1)}
            said = re.sub(r"\{(\d)\}", lambda m: groups.get(m[1], ""), words)
            extra = [known.modifiers[f".{m}"] for m in modifiers if f".{m}" in known.modifiers]
            return "; ".join([" ".join(said.split()), *extra])
    return ""
