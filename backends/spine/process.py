"""Programs that are given bytes and a time, and what they write: how runners start a bundle's program, here, in an emulator or over ssh."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass

from ..base import Error, Unavailable

#: seconds that one request may take
LIMIT = 300.0


def limit() -> float:
    """Seconds that a request may take: TRIPORT_SPINE_LIMIT, or else `LIMIT`. Raises `Error` where that is no time."""
    text = os.environ.get("TRIPORT_SPINE_LIMIT", "").strip()
    if not text:
        return LIMIT
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 1e6:  # NaN is no smaller than anything; more is no time that Python can wait
        raise Error(f"TRIPORT_SPINE_LIMIT={text}: it takes the seconds that a request may take, a number above 0 and up to 1000000, like 600 (unset: {LIMIT:g})")
    return seconds


@dataclass
class Ended:
    """A program that came to its end: exit code (below 0: the signal that it died of), and what it wrote."""

    code: int
    out: bytes
    err: bytes


def run(command: list[str], data: bytes, seconds: float, what: str) -> Ended:
    """Start a program, give it `data`, wait. Raises `Unavailable` where it cannot be started, `Error` where it takes longer; then it is ended, with
    all that it started."""
    try:
        p = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    except OSError as e:
        raise Unavailable(f"{what}: {command[0]} cannot be started ({e.strerror})") from None
    try:
        out, err = p.communicate(data, timeout=seconds)
    except subprocess.TimeoutExpired:
        _stop(p)
        raise Error(f"{what} did not end within {seconds:g} seconds (TRIPORT_SPINE_LIMIT=SECONDS allows more)") from None
    except BaseException:
        _stop(p)
        raise
    return Ended(p.returncode, out, err)


def output(ended: Ended, what: str) -> bytes:
    """What a program wrote that ended well; what it says besides (what kernels print) goes to stderr. Raises `Error` where it died."""
    said = ended.err.decode(errors="replace")
    if ended.code:
        died = f"died of signal {signal.Signals(-ended.code).name}" if -ended.code in set(signal.Signals) else f"ended with exit code {ended.code}"
        raise Error(f"{what} {died}" + (f": {said.strip()[-500:]}" if said.strip() else ""))
    sys.stderr.write(said)
    return ended.out


def _stop(p: subprocess.Popen):
    """End a process and what it started."""
    try:
        os.killpg(p.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    p.communicate()
