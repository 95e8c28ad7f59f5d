"""The exit codes of every command, in one place: what a shell, a CI job or a Makefile may rely on.

`guarded` is how each command is run: it turns what a command raises into a code and, on stderr, a sentence. A failure of triport itself has a code of
its own, so that it is never read as "a result was wrong".
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
import time
import traceback
from typing import Callable, Iterator

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
#: seconds between two looks at whether an import is over
_AGAIN = 0.01
#: what a disk, or whatever stdout is, answers that takes no more
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: Ctrl-C: 128 + SIGINT, as shells have it; at SIGTERM and SIGHUP it is 128 + theirs
INTERRUPTED = 130


class Ended(KeyboardInterrupt):
    """A signal asked the process to end: what Ctrl-C would clean up is cleaned up."""


def guarded(name: str, run: Callable[[], int]) -> int:
    """The exit code of `run`, the command `name` (as "triport bench"), whatever it raises. What argparse raises to end the process goes through."""
    with _streams(), _ending() as ended:
        code = _guarded(name, run)
    return 128 + ended[0] if ended and code == INTERRUPTED else code


def _guarded(name: str, run: Callable[[], int]) -> int:
    try:
        code = run()
        sys.stdout.flush()  # here, where a full disk is met, and not while the interpreter ends
        return code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as e:
        from ..backends.base import Error
        if isinstance(e, OSError) and e.errno in FULL:
            _close(sys.stdout)
            print(f"{name}: {e.filename or 'what it writes'} cannot be written: {e.strerror}", file=sys.stderr)
            return USAGE
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


class _WhileRead:
    """A stream that goes nowhere once its reader has gone (`triport asm ... | head`): the command goes on, for its exit code and its files are what it found."""

    def __init__(self, stream):
        self._stream = stream

    def __getattr__(self, name):
        found = getattr(self._stream, name)
        return _WhileRead(found) if name == "buffer" else found

    def _while_read(self, do, otherwise):
        try:
            return do()
        except BrokenPipeError:
            _close(self._stream)
            return otherwise

    def write(self, data) -> int:
        return self._while_read(lambda: self._stream.write(data), len(data))

    def writelines(self, lines):
        for line in lines:
            self.write(line)

    def flush(self):
        self._while_read(self._stream.flush, None)


@contextlib.contextmanager
def _streams() -> Iterator[None]:
    """Within it both streams are there, as they are not where a shell closed them (`>&-`), take any text, and end nothing when their readers go."""
    before = sys.stdout, sys.stderr
    with contextlib.ExitStack() as opened:
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is None:
                setattr(sys, name, opened.enter_context(open(os.devnull, "w")))
                continue
            if not (getattr(stream, "encoding", None) or "utf-8").lower().startswith("utf") and hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")
            setattr(sys, name, _WhileRead(stream))
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before


@contextlib.contextmanager
def _ending() -> Iterator[list[int]]:
    """Within it a process that is told to end (SIGTERM, SIGHUP) does as at Ctrl-C, where nobody has decided otherwise. It gives the signals that came. Either waits for the
    end of an import that would lose it: numpy and torch take a KeyboardInterrupt in their own modules for a module that is missing, and go on. A second one ends the process at once."""
    came: list[int] = []
    late: list[int] = []
    own = os.getpid()

    def end(number, frame):
        if number != signal.SIGINT and os.getpid() != own:  # a forked child has nothing to clean up
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif _is_importing(frame):
            late.append(number)
            if len(late) > 1:  # whoever asks twice does not wait for an import that hangs
                os.write(2, b"interrupted\n")
                os._exit(128 + number)
            threading.Thread(target=send_again, daemon=True).start()
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            came.append(number)
            raise Ended

    def send_again():
        while _is_importing(sys._current_frames().get(threading.main_thread().ident)):
            time.sleep(_AGAIN)
        number = late.pop()
        os.kill(os.getpid(), number)

    before = {}
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL), (signal.SIGHUP, signal.SIG_DFL)):
        with contextlib.suppress(ValueError):  # not the main thread
            if signal.getsignal(number) is usual:
                before[number] = signal.signal(number, end)
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_importing(frame) -> bool:
    """Is a frame importlib's own, whose callbacks print what they raise, or is a module of `_NEEDED` being imported there?"""
    if frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        return True
    while frame is not None:
        if frame.f_code.co_name == "_find_and_load" and str(frame.f_locals.get("name")).partition(".")[0] in _NEEDED:
            return True
        frame = frame.f_back
    return False


def _close(stream):
    """What is left in a stream's buffer goes nowhere: flushing it at the interpreter's end would fail and change the exit code."""
    with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
