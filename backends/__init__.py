"""Backends: one op, several ways to run it (`table.py` lists them)."""

from .dispatch.choice import use
from .table import BACKENDS, available, get

__all__ = ["BACKENDS", "available", "get", "use"]
