"""Which backend serves the ops of a context: by the tensors' device, unless `with backends.use("cuda"):` says otherwise."""

from __future__ import annotations

import contextvars
import functools
from typing import Any, Callable, ParamSpec, TypeVar

import torch

from .. import of_torch, table
from ..base import Backend, Error, Unavailable

P = ParamSpec("P")
R = TypeVar("R")

#: device type -> who serves it where nobody chose
DEFAULT = {"cpu": "triton-cpu", "cuda": "triton-gpu"}
#: who serves each call by one of a GPU's two backends (`ops/choices.py`)
AUTO = "auto"

_NOBODY: tuple[dict[str, str], Any] = ({}, None)
#: (device type -> backend, what was chosen before)
_chosen: contextvars.ContextVar[tuple[dict[str, str], Any]] = contextvars.ContextVar("triport_backend", default=_NOBODY)
_get, _set = _chosen.get, _chosen.set
_device, _threads, _initialised = of_torch.current_gpu, torch.get_num_threads, torch.cuda.is_initialized
#: one for each `use` context that is open in the process
opened: list[None] = []
_opened, _closed = opened.append, opened.pop
in_use = False  # is one? Only then calls look at their context's choice (torch.compile guards on it, so it is no number)


class within:
    """As `use`, of a backend that is known to run. Any number of threads, or of `with` inside each other, may share one."""

    __slots__ = ("_backend", "_alone")

    def __init__(self, backend: Backend) -> None:
        self._backend, self._alone = backend, ({backend.device: backend.name}, _NOBODY)

    def __enter__(self) -> Backend:
        global in_use
        before = _get()
        _set(self._alone if before is _NOBODY else ({**before[0], **self._alone[0]}, before))
        _opened(None)
        in_use = True
        return self._backend

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        global in_use
        _closed()
        # No lock, with which `use` took twice as long: CPython changes threads at calls and jumps back, so not between these two lines. Whoever opens
        # one before them is seen, and whoever does behind them says so afterwards.
        if not opened:
            in_use = False
        _set(_get()[1])

    def __call__(self, fn: Callable[P, R]) -> Callable[P, R]:
        """As a decorator."""
        @functools.wraps(fn)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return fn(*args, **kwargs)

        return run


#: name -> `within` of backends that run here now and always (`Backend.stays`)
_lasting: dict[str, within] = {}


def use(name: str) -> within:
    """Within it (and in the tasks started there) triport's ops on the backend's device go by the backend `name`: "cuda" has CUDA
    tensors served by CUDA C++ instead of Triton, "auto" by whichever of the two was measured as the faster for an op, dtype and shape like the call's
    (Triton where none was). Tensors on other devices are served as before.

    Raises `Error` for an unknown name or one that only benchmarks know, `Unavailable` with the reason where it cannot run here."""
    if (found := _lasting.get(name)) is not None:
        return found
    backend = table.get(name)
    if not backend.serves:
        known = ", ".join(n for n in table.BACKENDS if table.get(n).serves)
        raise Error(f"backends.use({name!r}): that is a column of `triport bench`, which serves no ops; it takes {known}")
    reason = backend.unavailable()
    if reason:
        raise Unavailable(f"backend {name} cannot run here: {reason}")
    found = within(backend)
    return _lasting.setdefault(name, found) if backend.stays else found


_tokens: dict[tuple[object, ...], object] = {}


def token() -> object:
    """What plans of calls within `use` belong to: one object for the choice, the current GPU and the number of threads."""
    chosen = _chosen.get()[0]
    key = (chosen.get("cuda"), chosen.get("cpu"), _device() if _device is not None and _initialised() else -1, _threads())
    found = _tokens.get(key)
    return _tokens.setdefault(key, object()) if found is None else found


def of(device_type: str) -> str:
    """The backend chosen here for tensors on a device; "" where it is the default."""
    name = _chosen.get()[0].get(device_type, "")
    return "" if name == DEFAULT.get(device_type) else name


def elsewhere(device_type: str) -> bool:
    """Is an op that launches Triton's kernels and nothing else, on a device, for another backend here than by default?"""
    return in_use and of(device_type) not in ("", AUTO)
