"""What decides, beside a kernel, what this compiler makes of it."""

from __future__ import annotations

from pathlib import Path

from ...base import sources_digest, version
from . import host, targets


def of(target: str) -> str:
    """For the target of that name: this package's version and sources, LLVM's, and the row's features."""
    return f"triport-{version()}-{sources_digest(Path(__file__).parents[1])[:16]}-{host.versions()}-{targets.get(target)}"
