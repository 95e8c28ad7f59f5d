"""What every op file shares: argument checks, tiles by device, registration and dispatch. (The records are in records.py.)

An op file is read top to bottom: formula, reference, kernels, cases, bytes and flops, the registered op, its record.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import sys
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Callable
from unittest import mock

import torch
import triton
import triton.language as tl
from torch._library.triton import is_wrap_triton_enabled, triton_ops_to_kernels
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad, profiler
from torch.library import triton_op
from triton import knobs
from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.jit import JITFunction

from ..backends.dispatch import choice, drivers, quick, replay
from ..backends import get as get_backend
from ..backends.base import ArgumentError, Unsupported, sources_digest
from . import autocast, autograd
from .records import dtype_name

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTS = (torch.int32, torch.int64)


# --- argument checks -------------------------------------------------------------------------------------------------


def _shape(t: torch.Tensor) -> str:
    return "x".join(map(str, t.shape)) or "a scalar"


def check_tensors(op: str, **tensors):
    """Every argument is a tensor. Raises `ArgumentError`."""
    for name, t in tensors.items():
        if not isinstance(t, torch.Tensor):
            raise ArgumentError(f"triport.{op}: argument {name!r} is {type(t).__name__}; it takes a torch.Tensor")


def check(op: str, dtypes, **tensors: torch.Tensor):
    """The tensors' dtype is one of `dtypes`, they agree on it, and they are on one device that ops run on."""
    first_name, first = next(iter(tensors.items()))
    if getattr(_direct, "on", False) and first.dtype in dtypes and all(
            t.dtype is first.dtype for t in tensors.values()):
        return  # `watched` has seen to the rest
    for name, t in tensors.items():
        if t.dtype not in dtypes:
            known = ", ".join(map(dtype_name, dtypes))
            raise ArgumentError(f"triport.{op}: argument {name!r} has dtype {dtype_name(t.dtype)}; it takes {known}")
        if t.dtype != first.dtype:
            raise ArgumentError(f"triport.{op}: argument {name!r} has dtype {dtype_name(t.dtype)} but {first_name!r} "
                                f"has {dtype_name(first.dtype)}; convert one of them")
        if t.device != first.device:
            raise ArgumentError(f"triport.{op}: argument {name!r} is on {t.device} but {first_name!r} is on "
                                f"{first.device}; move them to one device")
    if first.device.type not in ("cpu", "cuda", "meta"):
        raise ArgumentError(f"triport.{op}: argument {first_name!r} is on {first.device}; it takes cpu and cuda tensors")
    if first.layout is not torch.strided:
        raise ArgumentError(f"triport.{op}: argument {first_name!r} has layout {first.layout}; it takes dense tensors")


#: the largest int that a float holds
MOST = int(sys.float_info.max)


def check_number(op: str, name: str, value):
    """`value` is a number that a float holds."""
    if isinstance(value, bool) or not isinstance(value, (int, float, torch.SymInt, torch.SymFloat)):
        raise ArgumentError(f"triport.{op}: argument {name!r} is {value!r}; it takes a number")
    if type(value) is int and not -MOST <= value <= MOST:
        raise ArgumentError(f"triport.{op}: argument {name!r} is an int of {value.bit_length()} bits; it takes a number that fp64 can hold")


def check_dim(op: str, x: torch.Tensor, dim: int) -> int:
    """`dim` as a non-negative dimension of `x`."""
    if not isinstance(dim, (int, torch.SymInt)) or isinstance(dim, bool):
        raise ArgumentError(f"triport.{op}: argument 'dim' is {dim!r}; it takes an int")
    rank, dim = max(x.dim(), 1), int(dim)
    if not -rank <= dim < rank:
        raise ArgumentError(f"triport.{op}: argument 'dim' is {dim}; for a tensor of shape {_shape(x)} it takes "
                            f"{-rank} to {rank - 1}")
    return dim % rank


def check_matrix(op: str, name: str, t: torch.Tensor):
    if t.dim() != 2:
        raise ArgumentError(f"triport.{op}: argument {name!r} has shape {_shape(t)}; it takes a matrix (2 dimensions)")


def check_product(op: str, a: torch.Tensor, b: torch.Tensor):
    """`a @ b` is defined for two matrices."""
    check_matrix(op, "a", a)
    check_matrix(op, "b", b)
    if a.shape[1] != b.shape[0]:
        raise ArgumentError(f"triport.{op}: argument 'a' is {_shape(a)} and 'b' is {_shape(b)}; it takes M x K and K x N "
                            f"with the same K ({a.shape[1]} is not {b.shape[0]})")


def check_low_rank(op: str, x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor):
    """`x @ w + (x @ a) @ b` is defined: x is ... x K, the others are matrices that fit it and one another."""
    if x.dim() < 1:
        raise ArgumentError(f"triport.{op}: argument 'x' is a scalar; it takes 1 or more dimensions")
    for name, t in (("w", w), ("a", a), ("b", b)):
        check_matrix(op, name, t)
    for name, t, size, other in (("w", w, x.shape[-1], f"x of shape {_shape(x)}"), ("a", a, x.shape[-1], f"x of shape {_shape(x)}"),
                                 ("b", b, a.shape[1], f"a of shape {_shape(a)}")):
        if t.shape[0] != size:
            raise ArgumentError(f"triport.{op}: argument {name!r} is {_shape(t)}; for {other} it takes {size} rows")
    if b.shape[1] != w.shape[1]:
        raise ArgumentError(f"triport.{op}: argument 'b' is {_shape(b)}; for w of shape {_shape(w)} it takes {w.shape[1]} columns")


def check_bias(op: str, x: torch.Tensor, bias: torch.Tensor):
    """`bias` has one element for each element of `x`'s last dimension."""
    if x.dim() < 1:
        raise ArgumentError(f"triport.{op}: argument 'x' is a scalar; it takes 1 or more dimensions")
    if bias.dim() != 1 or bias.shape[0] != x.shape[-1]:
        raise ArgumentError(f"triport.{op}: argument 'bias' has shape {_shape(bias)}; for x of shape {_shape(x)} it takes "
                            f"one row of {x.shape[-1]}")


def check_same_shape(op: str, **tensors: torch.Tensor):
    (first_name, first), *rest = tensors.items()
    for name, t in rest:
        if t.shape != first.shape:
            raise ArgumentError(f"triport.{op}: argument {name!r} has shape {_shape(t)} but {first_name!r} has "
                                f"{_shape(first)}; they must agree")


# --- registering -----------------------------------------------------------------------------------------------------


SOURCES = tl.constexpr(sources_digest(Path(__file__).parent, Path(__file__).parent.parent / "backends"))


@triton.jit
def stamp_kernel():
    """Never launched. torch's compile caches know an op by its kernels' sources, not by its body: this kernel belongs to every
    op, so that a changed body meets no graph that was compiled from the old one."""
    sources: tl.constexpr = SOURCES  # noqa: F841


#: op -> its body, which launches Triton's kernels
BODIES: dict[str, Callable] = {}
#: backend -> op -> its body, where that is not the one that launches Triton's kernels
IMPLEMENTATIONS: dict[str, dict[str, Callable]] = {"cuda": {}}


@dataclass(frozen=True)
class Registered:
    """`torch.ops.triport.<name>`, and `<name>_by`, which takes one argument more: the backend."""

    op: Callable
    by: Callable | None

    def _each(self):
        """(name, OpOverload, number of leading tensor arguments) of both."""
        for op in (self.op, self.by):
            if op is not None:
                schema = op._opoverload._schema
                yield schema.name, op._opoverload, sum(isinstance(a.type, torch.TensorType) for a in schema.arguments)

    def derive(self, **rule):
        """Register the derivatives (see `autograd.Derivatives`)."""
        self.at("Autograd", lambda op, count: autograd.kernel(op, count, autograd.Derivatives(**rule)))

    def autocast(self, dtype_of: Callable, result: Callable | None = None):
        """Register what torch.autocast casts (see `autocast.kernel`)."""
        for device, key in autocast.KEYS.items():
            self.at(key, lambda op, count, device=device: autocast.kernel(op, count, dtype_of, device, result))

    def at(self, key: str, kernel: Callable):
        """`kernel(op, number of its leading tensor arguments)` is what the dispatcher calls for an op at a key."""
        for name, op, count in self._each():
            with warnings.catch_warnings():  # that it replaces the kernel for Autograd which a custom op comes with
                warnings.filterwarnings("ignore", message="Warning only once for all operators", category=UserWarning)
                _library.impl(name, kernel(op, count), key, with_keyset=True, allow_override=True)


_library = torch.library.Library("triport", "FRAGMENT")  # holds the kernels of keys that a custom op has no call for, or none that will do


def register(name: str, body: Callable, *kernels, mutates_args=(), cuda: Callable | None = None, by: bool = False) -> Registered:
    """`body`, which launches `kernels`, as the op `torch.ops.triport.<name>`. cuda: the same in CUDA C++, for CUDA tensors. by: calls may name
    their backend; an op with CUDA C++ has that anyhow."""
    full = f"triport::{name}"
    BODIES[name] = body
    # torch 2.13 finds the kernels by reading the body's source, for which it imports all of Inductor (0.7 s). They are named
    # here instead; where a version has no such search there is nothing to leave out.
    with mock.patch.object(torch._library.triton, "get_inner_triton_kernels", lambda fn: [], create=True):
        op = triton_op(full, body if mutates_args else _replaying(body), mutates_args=mutates_args)
    triton_ops_to_kernels[full] = [*kernels, stamp_kernel]
    for kernel in kernels:
        _serve_by_device(kernel)
    if cuda is not None:
        IMPLEMENTATIONS["cuda"][name] = cuda
    elif not by:
        return Registered(op, None)
    return Registered(op, _register_by(name, body, mutates_args))


def _replaying(body: Callable) -> Callable:
    """`body` as the dispatcher calls it, under autograd for one: where nothing else watches, a call like one before is replayed."""
    count = sum(p.annotation in (torch.Tensor, "torch.Tensor") for p in inspect.signature(body).parameters.values())

    @functools.wraps(body)
    def run(*args):
        if watched(*args[:count]):
            return body(*args)
        try:
            return direct(body, args[:count], *args[count:])
        finally:
            _direct.plan = None  # it is for these tensors, which need not be those that the op's function was called with

    return run


def _register_by(name: str, body: Callable, mutates_args):
    """`torch.ops.triport.<name>_by(..., backend)`: by that backend, or where it is "" by the one that the context chose."""

    def by(*args):
        *args, backend = args
        backend = backend or choice.of(args[0].device.type)
        return (get_backend(backend).implementation(name) if backend else body)(*args)

    def fake(*args):
        _shapes.only = True
        try:
            return body(*args[:-1])
        finally:
            _shapes.only = False

    schema = torch.library.infer_schema(body, mutates_args=mutates_args)
    op = torch.library.custom_op(f"triport::{name}_by", by, mutates_args=mutates_args, schema=schema.replace(") ->", ", str backend) ->", 1))
    op.register_fake(fake)
    return op


_shapes = threading.local()  # .only: a body runs for the shapes of its results, and launches nothing


def served(name: str, *args):
    """`torch.ops.triport.<name>`, by the backend that `backends.use` chose for the first argument's device."""
    if getattr(_export, "on", False):
        return BODIES[name](*args)
    if choice.in_use:
        if compiling():  # a graph outlives its context: it asks for the choice when it runs
            return getattr(torch.ops.triport, f"{name}_by")(*args, "")
        backend = choice.of(args[0].device.type)
        if backend:
            return getattr(torch.ops.triport, f"{name}_by")(*args, backend)
    return getattr(torch.ops.triport, name)(*args)


def _serve_by_device(kernel):
    """Let a kernel run on its tensors' device, whoever launches it: torch's tracers launch with the process's driver."""
    if isinstance(kernel, Autotuner):
        kernel.cache = drivers.ChoicesByDevice()
        kernel.__dict__.pop("do_bench", None)  # kept from the first use
    if not isinstance(kernel, (JITFunction, Autotuner, Heuristics)) or "run" in vars(kernel):  # under TRITON_INTERPRET it is none
        return

    def plain(*args, **kwargs):
        return type(kernel).run(kernel, *args, **kwargs)  # looked up late: the inspector records launches there

    def run(*args, warmup=False, **kwargs):
        if warmup:  # compiling, perhaps for what is not here
            return plain(*args, warmup=True, **kwargs)
        device = next((a.device.type for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)), None)
        with drivers.serving(device) if device is not None else contextlib.nullcontext():
            return plain(*args, warmup=False, **kwargs)

    kernel.run = run


# --- launching -------------------------------------------------------------------------------------------------------


def blocks(smallest: int, largest: int) -> tuple:
    """Candidates {"BLOCK": n}, powers of two."""
    return tuple({"BLOCK": 1 << n} for n in range(smallest.bit_length() - 1, largest.bit_length()))


def gpu_blocks() -> tuple:
    """Candidates for a GPU: elements of a program and its warps."""
    return tuple({"BLOCK": n, "num_warps": w} for n in (1024, 2048, 4096, 8192) for w in (4, 8))


def next_power_of_2(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def known(*sizes) -> bool:
    """Are sizes plain numbers? While torch traces with dynamic shapes they are symbols, on which no tile should depend."""
    return all(type(s) is int for s in sizes)


def planned(*sizes) -> tuple | None:
    """The numbers by which tiles are chosen: `sizes` themselves, and where an export leaves them open those of its case. None where there are
    none."""
    if known(*sizes):
        return sizes
    if getattr(_export, "on", False):
        return tuple(s if type(s) is int else int(s.node.hint) for s in sizes)
    return None


_export = threading.local()  # .on: this thread traces an op for a bundle


@contextlib.contextmanager
def exporting():
    """Within it built-in ops run their bodies, which launch kernels and nothing else, whatever watches."""
    _export.on = True
    try:
        yield
    finally:
        _export.on = False


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


#: outputs of at least this many bytes ask for huge pages: glibc keeps smaller blocks, once used, in its heap
HUGE = 32 << 20
_PAGE = 2 << 20


def roomy(out: torch.Tensor) -> torch.Tensor:
    """`out`, a fresh output, on huge pages where it is large and on the CPU.

    The C library maps every such block anew, so each call meets untouched memory: 4 KiB at a time the page faults of a
    33 MB result take 4 ms, three times as long as the work (measured; MADV_HUGEPAGE, see Linux's transhuge.rst)."""
    if type(out) is torch.Tensor and out.is_cpu and out.nbytes >= HUGE:
        start = (out.data_ptr() + _PAGE - 1) & -_PAGE
        length = ((out.data_ptr() + out.nbytes) & -_PAGE) - start
        if length > 0:
            _madvise(start, length, 14)  # advice only: where it is refused nothing changes
    return out


roomy.from_bytes = HUGE
_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def dense(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(x, out): two tensors of one layout whose elements fill memory without gaps or overlap, so that element-wise
    kernels may walk them flat. Copies `x` only where it has gaps or overlaps."""
    out = torch.empty_like(x)
    if out.stride() != x.stride():
        x = x.contiguous()
        out = torch.empty_like(x)
    return x, roomy(out)


def unexpanded(grad: torch.Tensor) -> torch.Tensor:
    """`grad`, or a copy where one element stands for many, as the gradient of a sum is: Inductor hands such an element to kernels as a number."""
    return grad.clone(memory_format=torch.contiguous_format) if 0 in grad.stride() else grad


def as_rows(x: torch.Tensor) -> torch.Tensor:
    """`x` as a contiguous matrix of its last dimension's rows."""
    n = x.shape[-1] if x.dim() else 1
    return x.contiguous().view(x.numel() // n if n else 0, n)


_direct = threading.local()  # .on: this thread runs an op's body itself, under no dispatcher


def watched(*tensors: torch.Tensor) -> bool:
    """Must a call go through torch's dispatcher? Yes where something follows it: a tracer, autograd, autocast, a mode, the
    profiler, a tensor subclass or a device other than the CPU. Otherwise the op's body may be run as it is, which saves some 50
    microseconds a call."""
    if torch.compiler.is_compiling():
        return True
    if (_dispatch_modes() or _function_modes() or profiler._is_profiler_enabled or _functorch_level() is not None
            or _jit_tracing() is not None or forward_ad._current_level >= 0 or _autocast() or _INTERPRETED or choice.in_use):
        return True
    grad = torch.is_grad_enabled()
    for t in tensors:
        if (type(t) not in _PLAIN or not t.is_cpu or (grad and t.requires_grad) or t.is_neg() or t._is_zerotensor()
                or t.layout is not torch.strided or _batched(t)):
            return True
    return False


compiling = torch.compiler.is_dynamo_compiling  # elsewhere tracing works by modes and subclasses, which a site sees
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_INTERPRETED = knobs.runtime.interpret  # Triton, too, looks when a kernel is decorated
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_functorch_level = torch._C._functorch.maybe_current_level
_batched = torch._C._functorch.is_legacy_batchedtensor  # as autograd.grad(is_grads_batched=True) makes them, at no level
_jit_tracing = torch._C._get_tracing_state
_autocast = torch._C._is_any_autocast_enabled


def direct(body: Callable, tensors: tuple, *params):
    """Run an op's body without the dispatcher (see `watched`); `tensors` are its first arguments, `params` the rest."""
    key = replay.key_of(body, tensors, params)
    plan = replay.find(key)
    if plan is not None:
        _direct.plan = plan
        return plan(*tensors)
    before = getattr(_direct, "on", False)
    _direct.on = True
    try:
        return replay.record(key, body, tensors, params, roomy)
    finally:
        _direct.on = before


_REPLAYED = """
def call({parameters}):
    if compiling():
        return fn({names})
    out = site.call({names})
    if out is None:
        direct.plan = None
        out = fn({names})
        if direct.plan is not None:
            learn(site, ({names},), count, direct.plan)
    return out
"""


def replayed(count: int):
    """Decorator of an op's public function, whose first `count` arguments are tensors: a call like one before, that nothing
    watches, goes straight to what that one launched (`replay.site`)."""

    def decorate(fn):
        names = list(inspect.signature(fn).parameters)
        source = _REPLAYED.format(parameters=", ".join(names), names=", ".join(names))  # by name: *args would cost 60 ns a call
        env = {"fn": fn, "site": replay.site(fn.__name__), "compiling": compiling, "direct": _direct, "learn": replay.learn,
               "count": count}
        exec(compile(source, f"<replayed {fn.__name__}>", "exec"), env)
        call = functools.wraps(fn)(env["call"])
        call.__defaults__, call.__kwdefaults__ = fn.__defaults__, fn.__kwdefaults__
        return call

    return decorate


def wrap_triton(kernel):
    """`torch.library.wrap_triton` where something traces, else the kernel itself."""
    if getattr(_direct, "on", False) or not is_wrap_triton_enabled():
        return kernel
    return torch.library.wrap_triton(kernel)


def launch(kernel, grid: tuple, *args, **consts):
    """Launch a (wrapped) kernel; the first argument's device says where."""
    if getattr(_shapes, "only", False):
        return
    if isinstance(kernel, JITFunction) and args[0].is_cpu and not isinstance(args[0], FakeTensor):
        quick.launch(kernel, grid, args, consts)
        return
    with on_device(args[0]):
        kernel[grid](*args, **consts)


@contextlib.contextmanager
def on_device(x: torch.Tensor):
    """Triton's active driver is the one for the device of `x`.

    On a machine without a GPU that is always so; beside a GPU, CPU tensors switch it for the length of the launch."""
    if interpreted():
        if isinstance(x, FakeTensor) or x.device.type == "meta":
            raise Unsupported("TRITON_INTERPRET=1 runs triport's ops on real tensors only: it cannot trace them for "
                              "torch.compile, torch.export, FakeTensor or opcheck. Unset it for those")
        yield
        return
    with drivers.serving(x.device.type):
        yield


def interpreted() -> bool:
    """Does TRITON_INTERPRET=1 run kernels in Python?"""
    return knobs.runtime.interpret
