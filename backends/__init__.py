"""Backends: one op, several ways to run it (`table.py` lists them)."""

from typing import TYPE_CHECKING

from .table import BACKENDS, available, get

if TYPE_CHECKING:
    from .dispatch.choice import use

__all__ = ["BACKENDS", "available", "get", "use"]

if not TYPE_CHECKING:  # which would take any name for one of the module's
    def __getattr__(name):
        if name == "use":  # when it is asked for: it imports torch, and commands that need none import this package
            from .dispatch.choice import use
            globals()["use"] = use  # found at once from now on
            return use
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
