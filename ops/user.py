"""Ops of one's own from CUDA C++: a `.cu` file and a function's name, or a function that `torch.utils.cpp_extension.load_inline` built.

Both become ops of torch: they show in traces, and torch.compile takes them whole.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Callable, Iterable

import torch
from torch.library import CustomOpDef

from ..backends import cuda
from ..backends.base import ArgumentError, Error
from .checks import check_tensors
from .sizes import cdiv
from .records import DTYPES, dtype_name

NAMESPACE = "triport_user"


def cuda_op(source: str, schema: str, *, out: Callable[..., torch.Tensor] | None = None,
            grid: Callable[..., tuple[int, ...]] | None = None, block: int = 256, shared: int = 0, dtypes: tuple[str, ...] | None = None,
            name: str | None = None) -> CustomOpDef:
    """An op from a CUDA C++ kernel: `cuda_op("saxpy.cu:saxpy<{T}>", "(Tensor x, Tensor y, float a) -> Tensor")`.

    source: FILE.cu:FUNCTION, the file beside the Python file that calls this; "{T}" becomes the first tensor's element type (float, half,
    bf16, double, int, i64 of `#include "common.cuh"`), without it the kernel takes fp32. schema: torch's, of tensors, int, float and bool, with one
    Tensor as result. The kernel is a `__global__` function of the arguments in the schema's order (tensors contiguous, as pointers; int as long
    long, float as double), then the result's pointer, then its number of elements as long long. out: from the op's arguments makes the result
    (default: like the first tensor); grid: from the op's arguments, up to 3 numbers of blocks (default: a thread for each element of the result);
    block: threads; shared: dynamic shared memory in bytes; dtypes: those it takes, by short name.

    Returns the op, with torch's `register_autograd`. Raises `Error` where the file or the schema is not usable; calls raise `ArgumentError` for
    tensors that are not on one GPU or of another dtype, `CompileError` with NVRTC's log, `Unavailable` where CUDA C++ cannot be compiled."""
    file, sep, kernel = source.partition(":")
    here = Path(sys._getframe(1).f_globals.get("__file__", "."))
    path = (here.parent / file).resolve()
    if not sep or not kernel or path.suffix != ".cu":
        raise Error(f"cuda_op({source!r}): it takes FILE.cu:FUNCTION")
    if not path.is_file():
        raise Error(f"cuda_op({source!r}): there is no file {path}")
    name = name or kernel.partition("<")[0]
    taken = dtypes or (tuple(DTYPES) if "{T}" in kernel else ("fp32",))
    known = _arguments(f"cuda_op({source!r})", name, schema)
    make = out or (lambda *args: torch.empty_like(_first(args), memory_format=torch.contiguous_format))

    def body(*args: Any) -> torch.Tensor:
        tensors = {n: a for n, a in zip(known, args) if known[n] == "Tensor"}
        check_tensors(name, **tensors)
        first = next(iter(tensors.values()))
        for n, t in tensors.items():
            if not t.is_cuda or t.device != first.device:
                raise ArgumentError(f"{name}: argument {n!r} is on {t.device}; this op is CUDA C++ ({path.name}) and takes tensors of one GPU")
            if dtype_name(t.dtype) not in taken:
                raise ArgumentError(f"{name}: argument {n!r} has dtype {dtype_name(t.dtype)}; it takes {', '.join(taken)}")
        result = make(*args)
        if result.numel():
            cuda.launch(path, kernel.replace("{T}", cuda.element(first)), grid(*args) if grid else (cdiv(result.numel(), block),), block,
                        *(a.contiguous() if isinstance(a, torch.Tensor) else a for a in args), result, result.numel(), shared=shared)
        return result

    op = torch.library.custom_op(f"{NAMESPACE}::{name}", body, mutates_args=(), schema=schema)
    op.register_fake(make)
    return op


def extension_op(function: Callable[..., torch.Tensor], schema: str, *, out: Callable[..., torch.Tensor] | None = None,
                 name: str | None = None) -> CustomOpDef:
    """An op from a compiled function, such as `load_inline(...).square`: the function takes the op's arguments and returns a new tensor.

    schema: torch's, as in `cuda_op`; out: from the op's arguments makes a tensor like the result (default: like the first tensor), which is all
    that torch.compile sees of it; name: the function's by default. Returns the op. Raises `Error` for an unusable schema or name."""
    name = name or str(getattr(function, "__name__", ""))
    if not name.isidentifier():
        raise Error(f"extension_op({function!r}): it has no name to go by; say name=")
    _arguments(f"extension_op({name})", name, schema)
    op = torch.library.custom_op(f"{NAMESPACE}::{name}", lambda *args: function(*args), mutates_args=(), schema=schema)
    op.register_fake(out or (lambda *args: torch.empty_like(_first(args))))
    return op


def _first(args: Iterable[Any]) -> torch.Tensor:
    return next(a for a in args if isinstance(a, torch.Tensor))


def _arguments(what: str, name: str, schema: str) -> dict[str, str]:
    """Argument name -> its type, as the schema says. Raises `Error`."""
    try:
        parsed = torch._C.parse_schema(f"{NAMESPACE}::{name}{schema}")
    except RuntimeError as e:
        raise Error(f"{what}: torch cannot read the schema {schema!r}: {str(e).splitlines()[0]}") from None
    known = {a.name: str(a.type) for a in parsed.arguments}
    odd = [f"{n} is {t}" for n, t in known.items() if t not in ("Tensor", "int", "float", "bool")]
    if odd or [str(r.type) for r in parsed.returns] != ["Tensor"] or "Tensor" not in known.values() or parsed.is_mutable:
        raise Error(f"{what}: the schema {schema!r} is not one of tensors, int, float and bool that returns one new Tensor"
                    + (f" ({', '.join(odd)})" if odd else ""))
    return known
