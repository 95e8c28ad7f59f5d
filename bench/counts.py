"""Numbers that commands take: what is counted starts at 1."""

from __future__ import annotations

from ..backends.base import Error

#: more than any machine's cores; torch starts as many as it is told, and the system ends a process that starts too many
MOST_THREADS = 1024


def check(**counts: int | None):
    """Raises `Error` for an option (its name without dashes -> the number given, None where none was) that is below 1, and for too many threads."""
    for name, n in counts.items():
        if n is not None and n < 1:
            raise Error(f"--{name} {n}: it takes a number from 1 up")
    if (counts.get("threads") or 0) > MOST_THREADS:
        raise Error(f"--threads {counts['threads']}: it takes {MOST_THREADS} at most")


def seed(n: int):
    """Raises `Error` for a seed that random generators do not take."""
    if not 0 <= n < 2**63:
        raise Error(f"--seed {n}: it takes a number from 0 to {2**63 - 1}")
