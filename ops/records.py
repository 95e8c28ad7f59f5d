"""The records that describe an op to benchmarks, tests and commands: `Op`, its `Case`s, and the dtypes' short names."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Callable

import torch

from ..backends.base import ArgumentError

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp64": torch.float64,
          "int32": torch.int32, "int64": torch.int64}

#: dtypes that a case's tensor may keep whatever dtype is run
KEPT = DTYPES | {"bool": torch.bool, "int8": torch.int8, "int16": torch.int16, "uint8": torch.uint8}

#: `Op.backends` of an op that has CUDA C++ beside its Triton kernels
WITH_CUDA = ("triton-cpu", "triton-gpu", "cuda")

#: names that a table's columns have already, so that no metric can (`bench.fields.NAMES`)
FIGURES = ("backend", "time", "speedup", "speedup_ci", "ci", "wall", "cpu", "spread", "bandwidth", "flops", "roofline", "metrics", "cold", "reload", "process",
           "first", "memory", "error")

#: normalised error ||got - want|| / ||want||: a few roundings of the type, measured over all ops and cases
TOLERANCE = {"fp32": 2e-6, "fp16": 1e-3, "bf16": 8e-3, "fp64": 1e-14}


def dtype_name(dtype: torch.dtype) -> str:
    """The short name of a dtype, as commands take and print it."""
    return next((n for n, d in DTYPES.items() if d == dtype), str(dtype).removeprefix("torch."))


def shape_text(shape: tuple[int, ...]) -> str:
    """A shape as commands take it: 1823x781; "scalar" of a tensor without dimensions."""
    return "x".join(map(str, shape)) or "scalar"


@dataclass(frozen=True)
class Case:
    """Inputs to check and time an op with. `shapes`: one per tensor argument; `kwargs`: the rest; `transposed`: indices
    of arguments that are made as the transpose of a contiguous matrix; `scale`: standard deviation of the values; `device`: "cuda" for what takes a
    CPU too long, and is run by default beside a GPU only; `types`: one per tensor argument, "" for the dtype that is run, else one that it keeps:
    "bool", or an integer type, with "<N" for values from 0 to N - 1 ("int64<1000", labels of 1000 classes); fewer than shapes: the rest are "".

    `name` is the case as commands take it (`cases.parse` reads it back): "64x1000,64:int64<1000,dim=0"."""

    shapes: tuple[tuple[int, ...], ...]
    kwargs: dict = field(default_factory=dict)
    transposed: tuple[int, ...] = ()
    scale: float = 1.0
    device: str = ""
    types: tuple[str, ...] = ()

    def __post_init__(self):
        for text in self.types:
            _kept(text)
        for k in self.transposed:
            if len(self.shapes[k]) != 2:
                raise ArgumentError(f"a case's tensor {shape_text(self.shapes[k])} cannot be a transposed one: it has {len(self.shapes[k])} dimensions, not 2")

    @property
    def name(self) -> str:
        tensors = (shape_text(s) + ("t" if k in self.transposed else "") + (f":{self.type_of(k)}" if self.type_of(k) else "")
                   for k, s in enumerate(self.shapes))
        return ",".join([*tensors, *(f"{k}={v}" for k, v in self.kwargs.items())])

    def type_of(self, k: int) -> str:
        """What `types` says of tensor `k`."""
        return self.types[k] if k < len(self.types) else ""

    def dtype_of(self, k: int, dtype: torch.dtype) -> torch.dtype:
        """Tensor `k`'s dtype where `dtype` is run."""
        return _kept(self.type_of(k))[0] or dtype

    def blank(self, dtype: torch.dtype, device: str = "cpu") -> list[torch.Tensor]:
        """Tensors of the case's shapes, layouts and dtypes, with nothing in them."""
        out = []
        for k, shape in enumerate(self.shapes):
            made = torch.empty(tuple(reversed(shape)) if k in self.transposed else shape, dtype=self.dtype_of(k, dtype), device=device)
            out.append(made.T if k in self.transposed else made)
        return out

    def make(self, dtype: torch.dtype, device: str = "cpu", seed: int = 0) -> list[torch.Tensor]:
        """Fresh random inputs on `device`, the same for the same seed: normal ones of standard deviation `scale`, integers from -1000 to 999 or what
        `types` says, and as many True as False."""
        g = torch.Generator("cpu").manual_seed(seed)
        out = []
        for k, shape in enumerate(self.shapes):
            made = tuple(reversed(shape)) if k in self.transposed else shape
            kind, below = self.dtype_of(k, dtype), _kept(self.type_of(k))[1]
            if kind.is_floating_point:
                t = (torch.randn(made, generator=g, dtype=torch.float32, device="cpu") * self.scale).to(kind)
            elif kind == torch.bool:
                t = torch.randint(0, 2, made, generator=g, device="cpu").bool()
            else:
                few = torch.iinfo(kind)
                low, high = (0, below) if below else (max(-1000, few.min), min(999, few.max) + 1)
                t = torch.randint(low, high, made, generator=g, dtype=kind, device="cpu")
            out.append((t.T if k in self.transposed else t).to(device))
        return out

    @property
    def elements(self) -> int:
        """Of all tensors together."""
        return sum(math.prod(s) for s in self.shapes)


def _kept(text: str) -> tuple[torch.dtype | None, int]:
    """(dtype, limit or 0) of one of a case's `types`. Raises `ArgumentError`."""
    if not text:
        return None, 0
    name, sep, limit = text.partition("<")
    dtype = KEPT.get(name)
    if dtype is None:
        raise ArgumentError(f"a case's tensor of type {text!r}: it takes {', '.join(KEPT)}")
    integer = not dtype.is_floating_point and dtype != torch.bool
    if sep and not (integer and limit.isdecimal() and 0 < int(limit) <= torch.iinfo(dtype).max):
        raise ArgumentError(f"a case's tensor of type {text!r}: <N goes with an integer type that holds it, as in int64<1000")
    return dtype, int(limit or 0)


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
    call: Callable | None = None
    eager: Callable | None = None
    cases: tuple[Case | str, ...] = ()
    reference: Callable | None = None
    nbytes: Callable | None = None
    flops: Callable | None = None
    dtypes: tuple[str, ...] = ("fp32",)
    tolerance: dict[str, float] = field(default_factory=dict)
    backends: tuple[str, ...] = ("triton-cpu", "triton-gpu")
    variants: dict[str, Callable] = field(default_factory=dict)
    baseline: str = ""
    dims: str = ""
    mutates: tuple[str, ...] = ()
    metrics: dict[str, Callable] = field(default_factory=dict)

    def __post_init__(self):
        from . import cases

        def wrong(text):
            return ArgumentError(f"Op {self.name!r}: {text}")

        if not (self.call or self.eager or self.variants):
            raise wrong("it has nothing to run; say call=, eager= or variants=")
        if not self.baseline:
            object.__setattr__(self, "baseline", "torch" if self.eager or not self.variants else next(iter(self.variants)))
        taken = {"torch", "torch-compile", "call", *self.backends} & self.variants.keys()
        if taken:
            raise wrong(f"variant {min(taken)!r} has the name of a column that is there already; call it otherwise")
        columns = [*(["torch", "torch-compile"] if self.eager else []), *([*self.backends, "call"] if self.call else []), *self.variants]
        if self.baseline not in columns and (self.eager or self.variants):
            raise wrong(f"baseline {self.baseline!r} is none of its columns: {', '.join(columns)}")
        if reserved := next((n for n in self.metrics if n in FIGURES), None):
            raise wrong(f"metric {reserved!r} has the name of a column that every table has; call it otherwise")
        if not self.dtypes or any(d not in DTYPES for d in self.dtypes):
            raise wrong(f"dtypes {self.dtypes!r}: it takes one or more of {', '.join(DTYPES)}")
        if isinstance(self.cases, (str, Case)):
            object.__setattr__(self, "cases", (self.cases,))
        object.__setattr__(self, "cases", tuple(cases.parse(self, c) if isinstance(c, str) else c for c in self.cases))
        names = [c.name for c in self.cases]
        if twice := next((n for n in names if names.count(n) > 1), None):
            raise wrong(f"two of its cases are called {twice}; results could not be told apart")

    @property
    def function(self) -> Callable:
        """The one to ask for parameters' names."""
        return self.call or self.eager or self.variants[self.baseline]

    @property
    def truth(self) -> Callable:
        """What results are held against, called with float64 inputs."""
        return self.reference or self.eager or self.variants.get(self.baseline) or self.call

    def cases_on(self, device: str) -> list[Case]:
        """The cases that run on a device by default."""
        return [c for c in self.cases if c.device in ("", device)]

    def expected(self, *args, **kwargs):
        """The reference's result, in float64 on the arguments' device."""
        return self.truth(*map(wide, args), **kwargs)

    def allowed(self, dtype: torch.dtype) -> float:
        """The normalised error that still counts as right."""
        return self.tolerance.get(dtype_name(dtype)) or TOLERANCE.get(dtype_name(dtype), 0.0)


def wide(value):
    """A floating tensor in float64, in memory of its own; anything else as it is, tensors in memory of their own, too."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().to(torch.float64, copy=True) if value.is_floating_point() else value.detach().clone()


def traffic(*tensors: torch.Tensor) -> int:
    """Bytes of tensors, each touched once."""
    return sum(t.numel() * t.element_size() for t in tensors)
