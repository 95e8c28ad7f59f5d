"""Objects that are the same in every process (the threads, the ops' direct path): compiled once, kept beside Triton's cache."""

from __future__ import annotations

import hashlib

from ... import memo
from ...base import sources_digest
from ..llvm import host
from ..llvm.targets import Target


def emitted(name: str, text: str, target: Target, far: bool = False) -> bytes:
    """The object of LLVM IR text (`compile.emit_object`), from disk where this text was compiled for this row before, by this LLVM and these sources."""
    from ..compiler import version
    from pathlib import Path

    key = repr((text, target, far, host.versions(), version(), sources_digest(Path(__file__).parents[2])))
    file = f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:32]}.kept"
    obj = memo.read(file)
    if obj is None:
        from ..llvm import compile as machine
        obj = machine.emit_object(text, target, far)
        memo.write(file, obj)
    return obj
