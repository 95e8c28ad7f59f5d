"""A shell's completion script, by shtab: the parser as it is, and for options whose values come from triport's tables, those tables.

shtab and not argcomplete: its script holds every name, so that Tab starts no Python.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..backends.base import Error


def names() -> dict[str, list[str]]:
    """What an option's destination is -> the names that it takes."""
    from ..backends import BACKENDS
    from ..bench.models import MODELS
    from ..ops import registry
    from ..ops.records import DTYPES
    from .inspector import targets

    return {"op": list(registry.NAMES), "backend": list(BACKENDS), "against": list(BACKENDS), "dtype": list(DTYPES), "target": targets.names(),
            "model": list(MODELS), "what": list(registry.NAMES), "case": sorted({c.name for n in registry.NAMES for c in registry.get(n).cases})}


def script(parser, shell: str) -> str:
    """The script for a shell ("bash", "zsh", "fish") that completes the commands of `parser`, which it changes. Raises `Error` without shtab."""
    try:
        import shtab
    except ModuleNotFoundError:
        raise Error("--print-completion needs shtab: pip install shtab") from None
    known = names()
    for command, below in parser.commands().items():
        for action in below._actions:
            if isinstance(action, argparse._HelpAction) or action.nargs == argparse.REMAINDER:
                continue
            if action.type is Path:
                action.complete = shtab.DIRECTORY if action.metavar == "DIR" else shtab.FILE
            elif command == "profile" and action.dest == "target":  # an op, a model, or a file
                action.choices = [*known["op"], *(m for m in known["model"] if m not in known["op"])]
            elif action.dest in known and action.choices is None:
                action.choices = known[action.dest]
    made = shtab.complete(parser, shell=shell)
    # bash: where no name fits, files do (an op can be FILE.py:NAME, and asm takes any .s or .o)
    return made.replace("complete -o bashdefault -F", "complete -o bashdefault -o default -F") if shell == "bash" else made
