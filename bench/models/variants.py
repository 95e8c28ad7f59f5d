"""A function's variants by name: eager torch, Inductor in both of its languages, our kernels; and those that cannot run here, with the reason."""

from __future__ import annotations

from typing import Callable

import torch

from ... import backends
from ...backends import active
from ...backends.dispatch import drivers
from ...backends.base import Error, Unavailable, suggest
from ..ranges import annotate  # noqa: F401  (names a range in a profiler's trace: `with annotate("forward"):`)


def on_device(device: str) -> str:
    """`device`, where tensors can be on it. Raises `Error` for another name, `Unavailable` with the reason."""
    if device not in ("cpu", "cuda"):
        raise Error(suggest("device", device, ("cpu", "cuda")))
    if device == "cuda" and (reason := backends.get("triton-gpu").unavailable()):
        raise Unavailable(f"--device cuda: {reason}")
    return device


def of_size(sizes: dict, size: str):
    """What `sizes` has for a size. Raises `Error` for one that it does not know."""
    if size not in sizes:
        raise Error(suggest("size", size, sizes))
    return sizes[size]


class Variants:
    """calls: name -> function, in the order of a table; left_out: name -> why it cannot run here."""

    def __init__(self, device: str):
        self.device, self.calls, self.left_out = on_device(device), {}, {}

    def add(self, name: str, fn: Callable, reason: str | None = None):
        """`fn` as variant `name`, unless there is a reason why not."""
        if reason:
            self.left_out[name] = reason
        else:
            self.calls[name] = fn

    def compiled(self, fn: Callable, triton: bool = True):
        """torch.compile of `fn`: C++ on a CPU (`torch-compile`), and Triton there, too (`torch-compile-triton`); a GPU's is Triton anyway."""
        self.add("torch-compile", inductor(fn), backends.get("torch-compile").unavailable())
        if triton and self.device == "cpu":
            self.add("torch-compile-triton", by_triton(fn), backends.get("triton-cpu").unavailable())

    def ours(self, fn: Callable):
        """`fn`, which calls triport's ops: by Triton, and by CUDA C++."""
        name = "triton-gpu" if self.device == "cuda" else "triton-cpu"
        self.add(name, fn, backends.get(name).unavailable())
        reason = backends.get("cuda").unavailable()
        self.add("cuda", by_cuda(fn), reason or ("its tensors are on a GPU: --device cuda" if self.device == "cpu" else None))

    def each(self, make: Callable) -> dict[str, Callable]:
        """name -> what `make` makes of its function; CUDA C++ serves all of it then, a backward too."""
        return {name: by_cuda(make(fn)) if name == "cuda" else make(fn) for name, fn in self.calls.items()}


def inductor(fn: Callable, **options) -> Callable:
    """torch.compile of `fn` with options of Inductor's, in this process and for the shapes that it is called with."""
    return torch.compile(fn, fullgraph=True, dynamic=False, options={"compile_threads": 1, **options})


def by_triton(fn: Callable) -> Callable:
    """As `inductor`, with Triton kernels for the CPU, which the plugin compiles."""
    return launching("cpu", inductor(fn, cpu_backend="triton"))


def launching(device: str, fn: Callable) -> Callable:
    """`fn`, whose Triton kernels are launched on `device`, also where Triton by itself would launch them elsewhere (on a GPU beside the CPU)."""
    if active.is_current(device):
        return fn

    def call(*args):
        with drivers.serving(device):
            return fn(*args)

    return call


def by_cuda(fn: Callable) -> Callable:
    def call(*args):
        with backends.use("cuda"):
            return fn(*args)

    return call


def generated(call: Callable[[], object]) -> list[str]:
    """The source that Inductor wrote for what a call of a compiled function runs, forward and backward."""
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    return run_and_get_code(call)[1]
