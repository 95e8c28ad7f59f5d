"""Linux perf's map, /tmp/perf-PID.map: perf looks there for code that no file holds (tools/perf/Documentation/jit-interface.txt)."""

from __future__ import annotations

import os

from ...base import Error
from . import elf, settings

_FUNCTION = 2  # a symbol's type


def asked() -> bool:
    """Does TRIPORT_PERF_MAP ask for it? Code that is listed stays, for perf reads the map when all is over."""
    return settings.get("PERF_MAP", "0") not in ("", "0")


def add(obj: bytes, addresses: dict[str, int]):
    """A line for each function of an object that lies at `addresses` (name -> address)."""
    sizes = {s.name: s.size for s in elf.symbols(obj) if s.section and s.info & 15 == _FUNCTION}
    path = f"/tmp/perf-{os.getpid()}.map"  # noqa: S108  (where perf looks)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as e:
        raise Error(f"TRIPORT_PERF_MAP: {path} cannot be written, a link or another user's file perhaps ({e.strerror}); remove it, or unset the variable") from None
    with os.fdopen(fd, "a") as f:
        f.writelines(f"{addresses[name]:x} {size:x} triton-cpu::{name}\n" for name, size in sizes.items() if size and name in addresses)
