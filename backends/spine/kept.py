"""What runs over ssh have left on a board: bundles' programs in ~/.cache/triport, a folder for each, named by the bundle's digest."""

from __future__ import annotations

from dataclasses import dataclass

from ..base import Error
from .remote import Shell

#: the board's folder, as sh's word
FOLDER = '"$HOME"/.cache/triport'
#: each entry there: is it a bundle's?, KiB, seconds since 1970, its name, the first file in it; `{then}` follows for a bundle's
_SCRIPT = f"""cd {FOLDER} 2>/dev/null || exit 0
for d in *; do
  [ -e "$d" ] || continue
  whose=ours; case $d in *[!0-9a-f]*) whose=other;; esac; [ ${{#d}} -eq 64 ] && [ -d "$d" ] || whose=other
  printf '%s\\t%s\\t%s\\t%s\\t%s\\n' $whose "$(du -sk "$d" | cut -f1)" "$(stat -c %Y "$d")" "$d" "$(ls "$d" | head -n 1)"
  [ $whose = other ] || {{then}} || exit 1
done"""
_CLEAN = _SCRIPT.replace("{then}", 'rm -rf "./$d"') + f"\ncd / && rmdir {FOLDER} 2>/dev/null || :"


@dataclass(frozen=True)
class Kept:
    """A bundle on a board. nbytes: what its folder takes; time: when it came, seconds since 1970."""

    digest: str
    program: str
    nbytes: int
    time: int


def listed(shell: Shell) -> tuple[list[Kept], int]:
    """(what is kept there, the oldest first; entries of that folder that are no bundles of triport's)."""
    return _read(shell, _SCRIPT.replace("{then}", ":"))


def clean(shell: Shell) -> tuple[list[Kept], int]:
    """Remove it, and the folder where nothing else is in it. Returns what `listed` would have."""
    return _read(shell, _CLEAN)


def _read(shell: Shell, script: str) -> tuple[list[Kept], int]:
    bundles, others = [], 0
    for line in shell.run(script).decode(errors="replace").splitlines():
        whose, *rest = line.split("\t")
        if whose == "ours" and len(rest) == 4 and rest[0].isdigit() and rest[1].isdigit():
            bundles.append(Kept(rest[2], rest[3], int(rest[0]) * 1024, int(rest[1])))
        elif whose == "other":
            others += 1
        else:
            raise Error(f"{shell.name}: the board did not list ~/.cache/triport but wrote {line[:80]!r}")
    return sorted(bundles, key=lambda k: (k.time, k.digest)), others
