"""The records that describe an op to benchmarks, tests and commands: `Op`, its `Case`s, and the dtypes' short names."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Callable

import torch

from ..backends.base import ArgumentError, suggest
from ..backends.table import BACKENDS
from .case import DTYPES as DTYPES, Case as Case, dtype_name as dtype_name, shape_text as shape_text  # what a case is made of goes by this module, too

#: `Op.backends` of an op that has CUDA C++ beside its Triton kernels
WITH_CUDA = ("triton-cpu", "triton-gpu", "cuda", "auto")

#: names that a table's columns have already, so that no metric can (`bench.fields.NAMES`)
FIGURES = ("backend", "by", "time", "speedup", "speedup_ci", "ci", "wall", "cpu", "spread", "bandwidth", "flops", "roofline", "metrics", "cold", "reload", "process",
           "first", "memory", "error")

#: errors (`accuracy.error`): a few roundings of the type, measured over all ops and cases
TOLERANCE = {"fp32": 2e-6, "fp16": 1e-3, "bf16": 8e-3, "fp64": 1e-14}


@dataclass(frozen=True)
class Op:
    """An op as benchmarks, tests and commands see it.

    call: the public function, which the Triton (and CUDA C++) backends run. eager: the same in plain torch (the `torch` and `torch-compile` columns).
    variants: name -> further ways to compute the same, each a column of its own name. Of these three at least one is given. baseline: the column
    that speed-ups are against (default: torch, and without `eager` the first variant).

    cases: what commands take by default; a text is read as on the command line ("1823x781", "64x1000,64:int64<1000"). dims: the tensors' dimensions by name, "MxK,KxN",
    which lets commands complete a case and sweep a dimension, with the types that tensors keep: "MxN,M:int64<N,M:bool". dtypes: what it takes, by short name.

    reference: the result in float64, from inputs of which the floating ones are float64 (default: `eager`, else the baseline). Results are a tensor, or a tuple
    or list of them. mutates: names of arguments that are changed in place: each call that is checked or timed gets fresh ones, and they count as
    results. tolerance: accepted normalised error by dtype name.

    nbytes(*args, **kwargs) and flops(*args, **kwargs): memory traffic and arithmetic that the op cannot do without. metrics: name -> function of (seconds a
    call in the mode that is run, *args, **kwargs) that gives a number for the table; its tensors have shapes and no values (device meta). backends: who can run `call`, beside the torch columns."""

    name: str
    call: Callable[..., Any] | None = None
    eager: Callable[..., Any] | None = None
    cases: tuple[Case | str, ...] = ()
    reference: Callable[..., Any] | None = None
    nbytes: Callable[..., int] | None = None
    flops: Callable[..., int] | None = None
    dtypes: tuple[str, ...] = ("fp32",)
    tolerance: dict[str, float] = field(default_factory=dict)
    backends: tuple[str, ...] = ("triton-cpu", "triton-gpu")
    variants: dict[str, Callable[..., Any]] = field(default_factory=dict)
    baseline: str = ""
    dims: str = ""
    mutates: tuple[str, ...] = ()
    metrics: dict[str, Callable[..., float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        def wrong(text: str) -> ArgumentError:
            return ArgumentError(f"Op {self.name!r}: {text}")

        if not isinstance(self.name, str) or not self.name:
            raise ArgumentError(f"an Op's name is {self.name!r}; it takes a text")
        if not (self.call or self.eager or self.variants):
            raise wrong("it has nothing to run; say call=, eager= or variants=")
        if not isinstance(self.variants, dict):
            raise wrong("variants= takes name -> function")
        for what, run in {"call": self.call, "eager": self.eager, "reference": self.reference, **{f"variant {n!r}": v for n, v in self.variants.items()}}.items():
            if run is not None and not callable(run):
                raise wrong(f"{what} is {run!r}, which cannot be called")
        for backend in self.backends:
            if backend not in BACKENDS:
                raise wrong(suggest("backend", backend, BACKENDS))
        if odd := next((d for d in self.tolerance if d not in DTYPES), None):
            raise wrong(f"tolerance of {suggest('dtype', odd, DTYPES)}")
        if bad := next((d for d, e in self.tolerance.items() if not isinstance(e, (int, float)) or not 0 <= e < math.inf), None):
            raise wrong(f"tolerance {self.tolerance[bad]!r} of {bad}: it takes an error, a number from 0 on")
        if odd := next((n for part in self.dims.split(",") for n in part.partition(":")[0].split("x") if self.dims and not n.isidentifier()), None):
            raise wrong(f"dims {self.dims!r}: {odd!r} names no dimension; it takes names like MxK,KxN")
        given = self.baseline
        if not given:
            object.__setattr__(self, "baseline", "torch" if self.eager or not self.variants else next(iter(self.variants)))
        taken = {"torch", "torch-compile", "call", *self.backends} & self.variants.keys()
        if taken:
            raise wrong(f"variant {min(taken)!r} has the name of a column that is there already; call it otherwise")
        columns = [*(["torch", "torch-compile"] if self.eager else []), *([*self.backends, "call"] if self.call else []), *self.variants]
        if self.baseline not in columns and (given or self.eager or self.variants):
            raise wrong(f"baseline {self.baseline!r} is none of its columns: {', '.join(columns)}")
        if reserved := next((n for n in self.metrics if n in FIGURES), None):
            raise wrong(f"metric {reserved!r} has the name of a column that every table has; call it otherwise")
        if not self.dtypes or any(d not in DTYPES for d in self.dtypes):
            raise wrong(f"dtypes {self.dtypes!r}: it takes one or more of {', '.join(DTYPES)}")
        if isinstance(self.cases, (str, Case)):
            object.__setattr__(self, "cases", (self.cases,))
        if any(isinstance(c, str) for c in self.cases):
            from . import cases  # late: those of the ops here are no texts
            object.__setattr__(self, "cases", [cases.parse(self, c) if isinstance(c, str) else c for c in self.cases])
        object.__setattr__(self, "cases", tuple(self.cases))
        names = [c.name for c in self._cases()]
        if twice := next((n for n in names if names.count(n) > 1), None):
            raise wrong(f"two of its cases are called {twice}; results could not be told apart")

    @property
    def function(self) -> Callable[..., Any]:
        """The one to ask for parameters' names."""
        return self.call or self.eager or self.variants[self.baseline]

    def _cases(self) -> list[Case]:
        return [c for c in self.cases if isinstance(c, Case)]  # all: `__post_init__` has read those that were texts

    @property
    def truth(self) -> Callable[..., Any]:
        """What results are held against, called with float64 inputs."""
        return self.reference or self.eager or self.variants.get(self.baseline) or self.function

    def cases_on(self, device: str) -> list[Case]:
        """The cases that run on a device by default."""
        return [c for c in self._cases() if c.device in ("", device)]

    def expected(self, *args: Any, **kwargs: Any) -> Any:
        """The reference's result, in float64 on the arguments' device."""
        return self.truth(*map(wide, args), **kwargs)

    def allowed(self, dtype: torch.dtype) -> float:
        """The normalised error that still counts as right."""
        return self.tolerance.get(dtype_name(dtype)) or TOLERANCE.get(dtype_name(dtype), 0.0)


def wide(value: Any) -> Any:
    """A floating tensor in float64, in memory of its own; anything else as it is, tensors in memory of their own, too."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().to(torch.float64, copy=True) if value.is_floating_point() else value.detach().clone()


def traffic(*tensors: torch.Tensor) -> int:
    """Bytes of tensors, each touched once."""
    return sum(t.numel() * t.element_size() for t in tensors)
