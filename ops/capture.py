"""Which kernels an op would launch: launches caught before they compile, so that nothing is computed and no device is needed.

Whoever catches calls the op within, on whatever tensors suit: fake ones of a device that is not there, or of sizes that are symbols.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import triton
from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.jit import JITFunction, KernelInterface

from ..backends.base import Error
from ..backends.of_torch import set_wrap_triton_enabled
from . import tuning

#: packages whose launchers only keep what they compiled, by the arguments' values: these are open here (FlagGems' LibEntry)
PASSING = ("flag_gems",)
_TRITON = str(Path(triton.__file__).parent)


@dataclass
class Caught:
    """A launch that was not done: the kernel, its arguments, constants and options by name, the grid, and which of an autotuner's configurations, for
    people; site: file.py:line that launched."""

    kernel: JITFunction
    args: tuple
    kwargs: dict
    grid: object
    remark: str
    site: str = ""


@contextlib.contextmanager
def launches(row=None, config: int = 0):
    """Within it kernels are not launched but listed; gives the list of `Caught`, in order. row: the CPU whose tiles ops choose, a row of the
    compiler's targets (default: this machine's); config: which configuration an autotuner has."""
    caught: list[Caught] = []

    def catch(self, *args, grid=None, warmup=False, **kwargs):
        kernel, kwargs, remark = unwrap(self, args, kwargs, config)
        caught.append(Caught(kernel, args, kwargs, grid, remark, _site()))

    def launched(self, grid):
        return functools.partial(functools.partial(catch, self) if _passes_on(self) else self.run, grid=grid, warmup=False)

    with contextlib.ExitStack() as stack:
        if row is not None:
            stack.enter_context(tuning.on(row))
        for kind in (JITFunction, Autotuner, Heuristics):
            stack.enter_context(mock.patch.object(kind, "run", catch))
        stack.enter_context(mock.patch.object(KernelInterface, "__getitem__", launched))
        stack.enter_context(set_wrap_triton_enabled(False))
        yield caught


def _passes_on(kernel) -> bool:
    """Is a launch what the kernel within would be given? So it is with Triton's own wrappers, their subclasses, and the launchers of `PASSING`; what another's `run` does
    counts, it may change the arguments or zero a result."""
    return isinstance(kernel, (JITFunction, Autotuner, Heuristics)) or type(kernel).__module__.partition(".")[0] in PASSING


def _site() -> str:
    """file.py:line of the launch that is being caught."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_TRITON):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def unwrap(kernel, args: tuple, kwargs: dict, config: int = 0):
    """(JITFunction, kwargs, remark): an autotuner gives its configuration number `config`, heuristics are evaluated."""
    remark, kwargs = "", dict(kwargs)
    while not isinstance(kernel, JITFunction):
        if isinstance(kernel, Autotuner):
            if not 0 <= config < len(kernel.configs):
                raise Error(f"--config {config}: {kernel.base_fn.__name__} has configurations 0 to {len(kernel.configs) - 1}")
            chosen = kernel.configs[config]
            kwargs = {**kwargs, **chosen.all_kwargs()}
            remark = f"configuration {config} of {len(kernel.configs)}: {chosen}"
        elif isinstance(kernel, Heuristics):
            for name, rule in kernel.values.items():
                kwargs[name] = rule({**dict(zip(kernel.arg_names, args)), **kwargs})
        elif not hasattr(kernel, "fn"):
            raise Error(f"{kernel!r} is not a Triton kernel")
        kernel = kernel.fn
    return kernel, kwargs, remark
