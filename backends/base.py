"""What a backend is, and the errors of the whole layer.

A backend is one module with one `Backend` subclass, listed in `backends/table.py`. It answers three questions: can it
run here (and if not, why and what to do), what exactly would run (target, versions), and how does a call go through it.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import functools
import hashlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator

if TYPE_CHECKING:
    from ..ops.records import Op


class Error(RuntimeError):
    """Root of triport's errors. Every message says what failed, where, what is accepted and what to do."""


class Unsupported(Error):
    """The request is well formed, but this op or backend does not take it (dtype, shape, feature)."""


class CompileError(Error):
    """A kernel could not be compiled; the message names the op, its Python line and the target."""


class Unavailable(Error):
    """The backend cannot run on this machine; the message says why and what to do about it."""


class ArgumentError(Error, ValueError):
    """An op was called with a wrong argument; the message names it, what was given and what is taken."""


class Backend:
    """One way to run an op. Subclass in a file of its own; list it in `backends/table.py`."""

    name: str = ""
    #: torch device type on which this backend's tensors live; "" where that is as one likes (`place`)
    device: str = "cpu"
    #: True where the backend compiles something on the first call
    compiles: bool = False
    #: True where `backends.use` can choose it for the ops
    serves: bool = False
    #: True where what runs here once runs here from then on: boards come and go, a GPU that is there stays
    stays: bool = False
    #: True where another machine computes, and times itself (`spine`)
    elsewhere: bool = False
    #: True where `forget` drops what was compiled, so that a first call can be timed again
    forgets: bool = False

    def place(self, device: str) -> str:
        """The device of this backend's tensors in a run on `device`."""
        return self.device or device

    def unavailable(self) -> str | None:
        """None when the backend can run here, else one sentence: why not, and what to do about it."""
        return None

    def target(self) -> str:
        """What code would run on: CPU model and vector ISA, or GPU name and sm."""
        raise NotImplementedError(f"backend {self.name} does not say its target")

    def versions(self) -> dict[str, str]:
        """Name -> version of everything that decides what code is made."""
        return {}

    def takes(self, op: Op) -> bool:
        """Can it run `op`?"""
        return op.call is not None and self.name in op.backends

    def bind(self, op: Op) -> Callable[..., Any]:
        """A callable with the signature of `op` that runs it through this backend."""
        raise NotImplementedError(f"backend {self.name} cannot run ops")

    def implementation(self, name: str, registered: dict[str, Callable[..., Any]]) -> Callable[..., Any]:
        """The body of the built-in op `name`, where this backend was chosen to serve it: takes the op's tensors and parameters
        by position. registered: op -> body, of the ops whose files have one for this backend. Raises `Unsupported` where there is none."""
        if name not in registered:
            raise Unsupported(f"backend {self.name} has no {name}" + (f"; it has {', '.join(registered)}" if registered else " of its own"))
        return registered[name]

    def chosen(self, op: Op | str, *args: Any, **kwargs: Any) -> str:
        """The name of the backend that serves such a call of `op`, a record or a built-in op's name: this one's own, where it does not choose among others."""
        return self.name

    @contextlib.contextmanager
    def fresh_caches(self, directory: str | Path) -> Iterator[None]:
        """Within it the backend compiles as on a new machine, keeping its artefacts under `directory`."""
        yield

    def forget(self, op: Op) -> None:
        """Drop the compiled kernels of `op` from memory, so that the next call meets the disk cache. By default nothing is dropped."""

    def synchronize(self) -> None:
        """Wait until everything that was launched has finished. By default it has when its call returns."""

    def measure(self, op: Op, tensors: Any, kwargs: dict[str, Any], rounds: int, threads: int = 0) -> tuple[Any, Any]:
        """(result, times) of `rounds` calls of `op`, one after the other, timed where they run; `times.wall` and `times.cpu` are lists of seconds,
        `times.first` those of the first call. Where `elsewhere` is True; by default there is no such clock. threads: 0 for as many as there are."""
        raise NotImplementedError(f"backend {self.name} has no clock of its own")

    def remark(self) -> str:
        """What is to be said beside its times; by default nothing."""
        return ""

    def facts(self) -> dict[str, Any]:
        """What a results file's "machine" says besides of where this backend computes; by default nothing."""
        return {}


@functools.lru_cache(maxsize=1)
def version() -> str:
    """triport's own."""
    import importlib.metadata
    try:
        return importlib.metadata.version("triport")
    except importlib.metadata.PackageNotFoundError:
        return "source"


@functools.lru_cache(maxsize=None)
def sources_digest(*folders: Path) -> str:
    """A digest of the Python sources below `folders`: part of cache keys, so that changed code meets no old artefacts."""
    from . import memo

    def files() -> list[str]:
        return [path for folder in folders for path in memo.files_below(str(folder), (".py",))]

    def digest() -> str:
        h = hashlib.sha256()
        for path in files():
            h.update(Path(path).read_bytes())
        return h.hexdigest()

    return str(memo.remembered("sources", "\0".join(map(str, folders)), lambda: memo.State(files()), digest))


def contents(path: str | Path) -> bytes:
    """What a file that a user names holds. Raises `OSError`, for a device as well: /dev/zero and /dev/full have no end."""
    if stat.S_ISCHR(os.stat(path).st_mode):
        raise OSError(errno.ENODEV, "it is a device, not a file", str(path))
    return Path(path).read_bytes()


def suggest(kind: str, name: str, known: Iterable[str], meant: dict[str, str] = {}) -> str:
    """The sentence for an unknown `name`: the nearest known one, and all of them. meant: other names, in lower case -> the known one."""
    known = sorted(set(known))
    return f"unknown {kind} {name!r}{nearest(name, known, meant)} Known: {', '.join(known)}"


def nearest(name: str, known: Iterable[str], meant: dict[str, str] = {}) -> str:
    """What goes on behind an unknown `name`: "; did you mean the nearest known one?", or the end of the sentence."""
    name = str(name)
    near = [meant[name.lower()]] if name.lower() in meant else difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else "."
