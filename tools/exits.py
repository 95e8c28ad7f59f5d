"""The exit codes of every command, in one place: what a shell, a CI job or a Makefile may rely on.

`guarded` is how each command is run: it turns what a command raises into a code and, on stderr, a sentence. A failure of triport itself has a code of
its own, so that it is never read as "a result was wrong".
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Callable

#: all is well
GOOD = 0
#: a result was wrong or failed, a row got slower beyond its noise, a requirement was not met
WRONG = 1
#: the command line or a file that it names cannot be used, or a backend cannot run here
USAGE = 2
#: an error of triport's own
OURS = 3
#: what commands import that a machine may be without, as a board that pip has no wheels for
_NEEDED = ("torch", "triton", "llvmlite", "numpy", "rich", "sympy")
#: Ctrl-C: 128 + SIGINT, as shells have it
INTERRUPTED = 130


def guarded(name: str, run: Callable[[], int]) -> int:
    """The exit code of `run`, the command `name` (as "triport bench"), whatever it raises. What argparse raises to end the process goes through."""
    try:
        code = run()
        sys.stdout.flush()  # here, where a reader that has gone is met, and not while the interpreter ends
        return code
    except BrokenPipeError:  # `triport asm ... | head`
        _close_stdout()
        return GOOD
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as e:
        from ..backends.base import Error
        if isinstance(e, Error):
            print(f"{name}: {e}", file=sys.stderr)
            return USAGE
        if isinstance(e, ModuleNotFoundError) and (e.name or "").partition(".")[0] in _NEEDED:
            if e.name.partition(".")[0] == "triton":
                from ..backends import platforms
                print(f"{name}: {platforms.sentence('this command')}", file=sys.stderr)
                return USAGE
            print(f"{name}: {e.name.partition('.')[0]} is not installed here, and this command needs it: pip install {e.name.partition('.')[0]}. On a board that has none, run it on "
                  "another machine (docs/boards.md says what runs where)", file=sys.stderr)
            return USAGE
        traceback.print_exc()
        said = f"{type(e).__name__}: {e}".split("\n")[0]
        print(f"{name}: internal error: {said}; this is a fault of triport: please report it with the lines above", file=sys.stderr)
        return OURS


def _close_stdout():
    """What is left in stdout's buffer goes nowhere: flushing it at the interpreter's end would fail and change the exit code."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # a stdout without a descriptor
        pass
