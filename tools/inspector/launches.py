"""From what a user names to the kernels that would be launched: an op's case, or a kernel with arguments said by hand.

An op is run on fake tensors (torch's FakeTensorMode) of the target's device type; launches are caught before they compile, so no
GPU is needed and no work is done.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field

from ...backends.base import Error, suggest

#: element types as --arg takes them -> torch's
_TYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64", "f32": "float32", "f16": "float16", "f64": "float64",
          "fp8e4nv": "float8_e4m3fn", "fp8e5": "float8_e5m2", "fp8e4b8": "float8_e4m3fnuz", "fp8e5b16": "float8_e5m2fnuz",
          "i1": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16", "u32": "uint32",
          "u64": "uint64"}
_ALIGNED, _ODD = 16, 7  # integers that stand for "divisible by 16" and "any"


class Pointer:
    """An argument that Triton takes for a tensor: element type and alignment of its address in bytes."""

    def __init__(self, dtype, align: int):
        self.dtype, self.align = dtype, align
        self.shape = (1,)

    def data_ptr(self) -> int:
        return self.align

    @staticmethod
    def ptr_range() -> int:
        return 0

    def stride(self):
        return (1,)


@dataclass
class Launch:
    """A kernel and what it would be launched with. config: which of an autotuner's configurations, for people; grid: programs, where an op launches it."""

    kernel: object
    args: tuple = ()
    kwargs: dict = field(default_factory=dict)
    config: str = ""
    grid: object = None

    @property
    def name(self) -> str:
        return self.kernel.__name__

    def compile(self):
        """Compile it through Triton's own front door for the driver that is active."""
        compiled = self.kernel.warmup(*map(_mocked, self.args), grid=(1,), **{k: _mocked(v) for k, v in self.kwargs.items()})
        if compiled is None:
            raise Error(f"{self.name}: a hook of Triton's (jit_cache_hook) kept it from being compiled")
        return compiled

    def has_f64(self) -> bool:
        """Is one of its arguments, or of their elements, fp64?"""
        values = [*self.args, *self.kwargs.values()]
        return any(str(getattr(v, "dtype", "")).endswith("float64") for v in values)

    def values(self) -> dict[str, object]:
        """What it is launched with, by the kernel's names, options of the launch among it."""
        return {**dict(zip([p.name for p in self.kernel.params], self.args)), **self.kwargs}

    def integers(self) -> dict[str, int]:
        """Values of the integer arguments that are a caller's own, not the stand-ins of `i32` and `i32:16`."""
        names = [p.name for p in self.kernel.params if not p.is_constexpr]
        pairs = [*zip([p.name for p in self.kernel.params], self.args), *self.kwargs.items()]
        return {name: v for name, v in pairs if name in names and type(v) is int and v not in (_ALIGNED, _ODD, (1 << 40) + _ALIGNED, (1 << 40) + _ODD)}

    def unaligned(self) -> list[str]:
        """Names of pointer arguments that are not known to be 16-byte aligned, and of integers not known divisible by 16."""
        names = [p.name for p in self.kernel.params]
        consts = {p.name for p in self.kernel.params if p.is_constexpr}
        pairs = [*zip(names, self.args), *((k, v) for k, v in self.kwargs.items() if k in names)]
        out = []
        for name, v in pairs:
            v = _mocked(v)
            if isinstance(v, Pointer) and v.align % 16 or type(v) is int and name not in consts and v % 16 and v != 1:
                out.append(name)
        return out


def _mocked(value):
    import torch
    if isinstance(value, torch.Tensor):
        return Pointer(value.dtype, 16 if value.storage_offset() * value.element_size() % 16 == 0 else value.element_size())
    return value


def is_kernel(value) -> bool:
    from triton.runtime.jit import KernelInterface
    return isinstance(value, KernelInterface)


# --- ops -------------------------------------------------------------------------------------------------------------


def of_op(op, case, dtype: str, device: str, config: int = 0, row=None) -> list[Launch]:
    """The launches of an op's case with tensors of `dtype` on `device` ("cpu" or "cuda"), in order, each specialisation once. `row`: the
    CPU whose tiles they have, a row of the compiler's targets (default: this machine's)."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from ...ops import capture
    from ...ops.records import DTYPES
    if op.call is None:
        raise Error(f"{op.name} has no call=, whose Triton kernels these would be")

    with capture.launches(row, config) as caught, FakeTensorMode(allow_non_fake_inputs=True):
        op.call(*case.blank(DTYPES[dtype], device), **case.kwargs)
    found = [Launch(c.kernel, c.args, c.kwargs, c.remark, c.grid) for c in caught]
    if not found:
        raise Error(f"{op.name} launches no Triton kernel for case {case.name}")
    unique = {}
    for launch in found:
        key = (launch.name, *[(v.dtype, v.align) if isinstance(v, Pointer) else v for v in map(_mocked, launch.args)], *launch.kwargs.items())
        unique.setdefault(repr(key), launch)
    return list(unique.values())


# --- kernels with arguments said by hand -----------------------------------------------------------------------------


#: how a --arg names a type: a pointer's, an integer's, a float's
_POINTER, _INTEGER, _FLOAT = re.compile(r"(\w+)\[(\d*)\]|\*(\w+)(?::(\d+))?"), re.compile(r"([iu]\d+)(?::(\d+))?"), re.compile(r"(fp|f|bf)\d+")


def argument(text: str):
    """The value of `fp32[16]` (pointer, aligned to 16 bytes), `*fp32:16` (the same in Triton's spelling), `i32`, `i32:16` (an integer, divisible
    by 16), `fp32` (a scalar), or a number. Raises `Error`."""
    import torch
    text = text.strip()
    if hit := _POINTER.fullmatch(text):
        name, align = hit[1] or hit[3], hit[2] or hit[4]
        if name not in _TYPES:
            raise Error(suggest("element type", name, _TYPES))
        dtype = getattr(torch, _TYPES[name])
        align = int(align) if align else dtype.itemsize
        if align & (align - 1) or not align:
            raise Error(f"--arg {text}: the alignment is a power of two in bytes, like fp32[16]")
        return Pointer(dtype, align)
    if hit := _INTEGER.fullmatch(text):
        if hit[1] not in _TYPES:
            raise Error(suggest("type", hit[1], _TYPES))
        wide = 1 << 40 if hit[1] in ("i64", "u64") else 0
        if hit[1] not in ("i32", "i64"):
            raise Error(f"--arg {text}: an integer argument is i32 or i64, or the number itself")
        step = int(hit[2] or 0)
        if hit[2] and step != 1 and (step % 16 or not step):
            raise Error(f"--arg {text}: of an integer Triton sees whether it is a multiple of 16, or 1: {hit[1]}, {hit[1]}:16 or {hit[1]}:1")
        return step if step == 1 else wide + (_ALIGNED if step and step % 16 == 0 else _ODD)
    if _FLOAT.fullmatch(text):
        return 0.5
    for kind in (lambda t: int(t, 0), float):
        try:
            return kind(text)
        except ValueError:
            pass
    if text in ("True", "False"):
        return text == "True"
    if text == "None":
        return None
    raise Error(f"--arg {text}: it takes a pointer like fp32[16] (aligned to 16 bytes) or fp32[] (not aligned), an integer like i32 or i32:16 "
                "(divisible by 16), a float like fp32, or a value")


def constant(text: str):
    """The value of a --const: an int, a float, True, False, None, a tl dtype like tl.float16, or text."""
    import triton.language as tl
    if text.startswith("tl.") and hasattr(tl, text[3:]):
        return getattr(tl, text[3:])
    for kind in (lambda t: int(t, 0), float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"True": True, "False": False, "None": None}.get(text, text.strip("'\""))


def of_kernel(kernel, args: dict[str, str], consts: dict[str, str], options: dict, config: int = 0) -> Launch:
    """A launch of `kernel` with arguments and constants as on the command line. Raises `Error` for missing and unknown names, with a line to copy."""
    values = {k: argument(v) for k, v in args.items()} | {k: constant(v) for k, v in consts.items()}
    from ...ops import capture
    jit, kwargs, remark = capture.unwrap(kernel, (), values, config)
    params = {p.name: p for p in jit.params}
    for name in (*args, *consts):
        if name not in params:
            raise Error(suggest(f"argument of {jit.__name__}", name, params))
        if name in args and name in consts:
            raise Error(f"--arg {name}={args[name]} and --const {name}={consts[name]}: choose one of them")
        if name in args and params[name].is_constexpr and any(p.fullmatch(args[name].strip()) for p in (_POINTER, _INTEGER, _FLOAT)):
            raise Error(f"--arg {name}={args[name]}: {name} is a constexpr of {jit.__name__}, which has a value; say --const {name}=VALUE")
    missing = [n for n, p in params.items() if n not in kwargs and p.default is inspect.Parameter.empty]
    if missing:
        from . import hints
        likely = hints.types(jit)
        example = " ".join(f"--const {n}=1024" if params[n].is_constexpr else f"--arg {n}={likely[n]}" for n in missing)
        raise Error(f"{jit.__name__} needs {', '.join(missing)}; run its program once, and its last "
                    f"compilation in Triton's cache is looked at, or say them, for example: {example}")
    return Launch(jit, (), {**kwargs, **options}, remark)
