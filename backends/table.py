"""Backends: one op, several ways to run it. This table is the only list of them.

To add one, write a module with one `Backend` subclass and add a line.
"""

from __future__ import annotations

import functools
import importlib

from .base import Backend, Error, suggest

#: name -> module below this package
BACKENDS = {
    "torch": "torch_eager",
    "torch-compile": "inductor",
    "triton-cpu": "cpu.backend",
    "triton-gpu": "triton_gpu",
    "cuda": "cuda",
    "auto": "auto",
    "spine": "spine.backend",
}


@functools.lru_cache(maxsize=None)
def get(name: str) -> Backend:
    """The backend called `name`. Raises `Error` for an unknown one."""
    if name not in BACKENDS:
        raise Error(suggest("backend", name, BACKENDS))
    module = importlib.import_module(f"{__package__}.{BACKENDS[name]}")
    found = [v for v in vars(module).values() if isinstance(v, type) and issubclass(v, Backend) and v is not Backend
             and v.__module__ == module.__name__]
    return found[0]()


def available() -> list[Backend]:
    """Every backend that can run on this machine, in the table's order."""
    return [b for b in map(get, BACKENDS) if b.unavailable() is None]
