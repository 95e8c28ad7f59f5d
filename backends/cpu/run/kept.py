"""Objects that are the same in every process (the threads, the ops' direct path): compiled once, kept beside Triton's cache."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from ... import memo
from ...base import sources_digest, version
from ..llvm import host
from ..llvm.targets import Target


def emitted(name: str, write: Callable[..., str], target: Target, *given, fast: bool = False) -> bytes:
    """The object of the LLVM IR text `write(target, *given)` (`generator.emit_object`), from disk where these sources wrote it before, for this row and with
    this LLVM. fast: by all of LLVM's passes."""
    from pathlib import Path

    key = repr((given, target, host.versions(), version(), sources_digest(Path(__file__).parents[2])))
    file = f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:32]}.kept"
    obj = memo.read(file)
    if obj is None:
        from ..llvm import generator
        obj = generator.emit_object((generator.optimised if fast else generator.in_registers)(write(target, *given)), target)
        memo.write(file, obj)
    return obj
