"""Systems other than Linux: what works there, and the sentence for what does not."""

from __future__ import annotations

import importlib.util
import sys

from .base import Unavailable

#: systems by sys.platform -> their names, of those for which Triton has no wheels
OTHERS = {"darwin": "macOS", "win32": "Windows", "cygwin": "Windows"}
#: what works without Triton: docs/platforms.md, tests/test_platforms.py
WITHOUT = ("`triport report`, `triport bench --compare`, `triport asm` of files (.s, .o, .so), `triport.bench.benchmark` and `compare` of your own functions, and "
           "`triport.tools.annotate`")


def sentence(what: str, system: str | None = None) -> str:
    """Why `what` cannot run where Triton is not installed, what works all the same, and what to do. system: as sys.platform has it, by default this one."""
    name = OTHERS.get(system or sys.platform)
    if name is None:
        return f"{what} needs Triton, which is not installed: pip install triton. On a board that has none, docs/boards.md says what runs where"
    return (f"{what} needs Triton, whose wheels are for Linux: on {name} {WITHOUT} work. Run the rest on Linux: in a container, "
            + ("in WSL 2, " if name == "Windows" else "") + "or on another machine (docs/platforms.md)")


def need_triton(what: str):
    """Raises `Unavailable` where Triton is not installed."""
    if importlib.util.find_spec("triton") is None:
        raise Unavailable(sentence(what))


def no_code(system: str | None = None) -> str | None:
    """Why kernels cannot be compiled for this system's CPU though some Triton is there; None on Linux."""
    name = OTHERS.get(system or sys.platform)
    return None if name is None else (f"it makes code for Linux's ABI and links ELF objects; on {name} run it in a container"
                                      + (" or in WSL 2" if name == "Windows" else "") + " (docs/platforms.md)")
