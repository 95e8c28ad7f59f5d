"""A `Case`: inputs to check and time an op with; and the short names of dtypes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from ..backends.base import ArgumentError

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp64": torch.float64,
          "int32": torch.int32, "int64": torch.int64}

#: dtypes that a case's tensor may keep whatever dtype is run
KEPT = DTYPES | {"bool": torch.bool, "int8": torch.int8, "int16": torch.int16, "uint8": torch.uint8}


def dtype_name(dtype: torch.dtype) -> str:
    """The short name of a dtype, as commands take and print it."""
    return next((n for n, d in DTYPES.items() if d == dtype), str(dtype).removeprefix("torch."))


def shape_text(shape: tuple[int, ...]) -> str:
    """A shape as commands take it: 1823x781; "scalar" of a tensor without dimensions."""
    return "x".join(map(str, shape)) or "scalar"


@dataclass(frozen=True)
class Case:
    """Inputs to check and time an op with. `shapes`: one per tensor argument; `kwargs`: the rest; `transposed`: indices
    of arguments that are made as the transpose of a contiguous matrix, or of each matrix of a batch; `scale`: standard deviation of the values; `device`: "cuda" for what takes a
    CPU too long, and is run by default beside a GPU only; `types`: one per tensor argument, "" for the dtype that is run, else one that it keeps:
    "bool", or an integer type, with "<N" for values from 0 to N - 1 ("int64<1000", labels of 1000 classes); fewer than shapes: the rest are "".

    `name` is the case as commands take it (`cases.parse` reads it back): "64x1000,64:int64<1000,dim=0"."""

    shapes: tuple[tuple[int, ...], ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    transposed: tuple[int, ...] = ()
    scale: float = 1.0
    device: str = ""
    types: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (isinstance(self.shapes, (tuple, list)) and all(isinstance(s, (tuple, list)) and all(isinstance(n, int) and n >= 0 for n in s) for s in self.shapes)):
            raise ArgumentError(f"a case's shapes are {self.shapes!r}; it takes a tuple of sizes for each tensor, as ((64, 1000), (64,)); a text is read by triport.ops.cases.parse")
        if odd := next((k for k in self.transposed if not 0 <= k < len(self.shapes)), None):
            raise ArgumentError(f"a case's transposed tensor {odd}: it has {len(self.shapes)}, from 0 on")
        for text in self.types:
            _kept(text)
        for k in self.transposed:
            if len(self.shapes[k]) < 2:
                raise ArgumentError(f"a case's tensor {shape_text(self.shapes[k])} cannot be a transposed one: it has {len(self.shapes[k])} dimensions, not 2 or more")

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
        for k in range(len(self.shapes)):
            made = torch.empty(self._laid(k), dtype=self.dtype_of(k, dtype), device=device)
            out.append(made.mT if k in self.transposed else made)
        return out

    def make(self, dtype: torch.dtype, device: str = "cpu", seed: int = 0) -> list[torch.Tensor]:
        """Fresh random inputs on `device`, the same for the same seed: normal ones of standard deviation `scale`, integers from -1000 to 999 or what
        `types` says, and as many True as False."""
        if not isinstance(dtype, torch.dtype):
            raise ArgumentError(f"a case is made in a dtype of torch, as torch.float32, not {dtype!r}")
        g = torch.Generator("cpu").manual_seed(seed)
        out = []
        for k in range(len(self.shapes)):
            made = self._laid(k)
            kind, below = self.dtype_of(k, dtype), _kept(self.type_of(k))[1]
            if kind.is_floating_point:
                t = (torch.randn(made, generator=g, dtype=torch.float32, device="cpu") * self.scale).to(kind)
            elif kind == torch.bool:
                t = torch.randint(0, 2, made, generator=g, device="cpu").bool()
            else:
                few = torch.iinfo(kind)
                low, high = (0, below) if below else (max(-1000, few.min), min(999, few.max) + 1)
                t = torch.randint(low, high, made, generator=g, dtype=kind, device="cpu")
            out.append((t.mT if k in self.transposed else t).to(device))
        return out

    def _laid(self, k: int) -> tuple[int, ...]:
        """Tensor `k`'s sizes as they lie in memory."""
        shape = self.shapes[k]
        return (*shape[:-2], shape[-1], shape[-2]) if k in self.transposed else shape

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
