"""Which backend serves the ops of a context: by the tensors' device, unless `with backends.use("cuda"):` says otherwise."""

from __future__ import annotations

import contextlib
import contextvars
import threading

from .. import table
from ..base import Error, Unavailable

#: device type -> who serves it where nobody chose
DEFAULT = {"cpu": "triton-cpu", "cuda": "triton-gpu"}

_chosen: contextvars.ContextVar[dict[str, str]] = contextvars.ContextVar("triport_backend", default={})
_count = threading.Lock()
_uses = 0  # how many `use` contexts are open in the process
in_use = False  # is one? Only then calls look at their context's choice (torch.compile guards on it, so it is no number)


@contextlib.contextmanager
def use(name: str):
    """Within it (and in the tasks started there) triport's ops on the backend's device go by the backend `name`: "cuda" has CUDA
    tensors served by CUDA C++ instead of Triton. Tensors on other devices are served as before.

    Raises `Error` for an unknown name or one that only benchmarks know, `Unavailable` with the reason where it cannot run here."""
    backend = table.get(name)
    if not backend.serves:
        known = ", ".join(n for n in table.BACKENDS if table.get(n).serves)
        raise Error(f"backends.use({name!r}): that is a column of `triport bench`, which serves no ops; it takes {known}")
    reason = backend.unavailable()
    if reason:
        raise Unavailable(f"backend {name} cannot run here: {reason}")
    with within(backend):
        yield backend


@contextlib.contextmanager
def within(backend):
    """As `use`, of a backend that is known to run."""
    token = _chosen.set({**_chosen.get(), backend.device: backend.name})
    _add(1)
    try:
        yield
    finally:
        _add(-1)
        _chosen.reset(token)


def _add(more: int):
    global _uses, in_use
    with _count:
        _uses += more
        in_use = _uses > 0


def of(device_type: str) -> str:
    """The backend chosen here for tensors on a device; "" where it is the default."""
    name = _chosen.get().get(device_type, "")
    return "" if name == DEFAULT.get(device_type) else name
