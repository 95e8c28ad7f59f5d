"""Checked runs: what is checked, and what a report says. The checks themselves are part of the kernels' code (`cpu/plan/checks.py`)."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator

from .base import Error, suggest

#: what can be checked -> what is reported
KINDS = {"bounds": "an access outside the storage that its argument lives in", "race": "two programs that meet in one element without order",
         "uninit": "reading elements of torch.empty that nobody has written", "overflow": "integer arithmetic beyond its type",
         "nan": "the first operation that makes an infinity of finite numbers, or a NaN of what is none"}
VARIABLE, KEEP_GOING = "TRITON_CPU_CHECK", "TRITON_CPU_CHECK_KEEP_GOING"
#: places of a kernel that one launch reports for each kind
MOST = 16


def parse(text: str, where: str = VARIABLE) -> str:
    """The kinds that a text names, in one order, joined by commas; "" for none. "1" is bounds and race, "all" is everything."""
    words = [w.strip().lower() for w in str(text).split(",") if w.strip()]
    if words in ([], ["0"], ["off"], ["false"], ["none"]):
        return ""
    wanted: set[str] = set()
    for word in words:
        if word in ("1", "true", "on"):
            wanted |= {"bounds", "race"}
        elif word == "all":
            wanted |= set(KINDS)
        elif word in KINDS:
            wanted.add(word)
        else:
            raise Error(f"{where} {text}: {suggest('kind of check', word, [*KINDS, 'all'])}")
    return ",".join(k for k in KINDS if k in wanted)


@dataclass(frozen=True)
class Report:
    """One finding. program: of the grid, (x, y, z); lane: in the block, one index a dimension; argument: its name, "" where that is not known; text: all
    of it for people, over several lines; count: how often it was found at this place of the kernel."""

    kind: str
    kernel: str
    file: str
    line: int
    operation: str
    program: tuple[int, int, int]
    lane: tuple[int, ...] = ()
    argument: str = ""
    element: tuple[int, ...] | None = None
    count: int = 1
    text: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.text


class CheckError(Error):
    """A checked launch found faults: `reports`, first those of the earliest programs."""

    def __init__(self, kernel: str, reports: tuple[Report, ...], found: int) -> None:
        self.kernel, self.reports, self.found = kernel, reports, found
        many = "" if found <= 1 else f", {found} times in all" if len(reports) < found else f", {found} times"
        head = f"triton-cpu: kernel {kernel}: {', '.join(dict.fromkeys(r.kind for r in reports))}{many}"
        super().__init__("\n".join([head, *(r.text for r in reports)]))

    def __reduce__(self) -> tuple[type[CheckError], tuple[str, tuple[Report, ...], int]]:
        return CheckError, (self.kernel, self.reports, self.found)


#: kinds that every launch is checked for now, as `parse` writes them
on: str = parse(os.environ.get(VARIABLE, ""))
#: called with each `CheckError` in place of raising it
_going_on: list[Callable[[CheckError], object]] = []
#: who is told of each checked launch, by its kernel's name, and of each failure: objects with `launched(name)` and `failed(error)`
watchers: list[Any] = []
if os.environ.get(KEEP_GOING, "0") not in ("", "0"):
    _going_on.append(lambda error: print(error, file=sys.stderr, flush=True))


#: told what every launch is checked for, whenever that changes
_told: list[Callable[[str], object]] = []


def tell(note: Callable[[str], object]) -> None:
    """Have `note(kinds)` called now, and whenever what every launch is checked for changes."""
    _told.append(note)
    note(on)


def enable(kinds: str = "bounds,race") -> str:
    """From here on every launch on the CPU is checked for `kinds` (""  for none). Returns what was checked before."""
    global on
    before, on = on, parse(kinds, "kinds")
    for note in _told:
        note(on)
    return before


@contextlib.contextmanager
def checks(kinds: str = "bounds,race") -> Iterator[None]:
    """Within it every launch on the CPU is checked."""
    before = enable(kinds)
    try:
        yield
    finally:
        enable(before)


@contextlib.contextmanager
def keeping_going(note: Callable[[CheckError], object]) -> Iterator[None]:
    """Within it launches that fail a check go on, and `note(error)` is called instead."""
    if not callable(note):
        raise TypeError(f"keeping_going takes a function of an error, not {note!r}")
    _going_on.append(note)
    try:
        yield
    finally:
        _going_on.remove(note)


@contextlib.contextmanager
def raising() -> Iterator[None]:
    """Within it launches that fail a check raise, whatever goes on outside."""
    before, _going_on[:] = list(_going_on), []
    try:
        yield
    finally:
        _going_on[:] = before


def fail(error: CheckError) -> None:
    """Raise the error, or hand it to who keeps going."""
    for w in watchers:
        w.failed(error)
    if not _going_on:
        raise error
    _going_on[-1](error)
