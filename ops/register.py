"""Ops as torch knows them: `torch.ops.triport.<name>`, by whichever backend a context chose."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import torch
import triton
import triton.language as tl
from torch.library import triton_op
from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.jit import JITFunction

from ..backends import get as get_backend, of_torch
from ..backends.base import ArgumentError, sources_digest
from ..backends.context import EXPORT, SHAPES, call, calling
from ..backends.dispatch import choice, drivers
from . import autocast, autograd, batching, choices, distributed
from .checks import stands_for_a_tensor
from .dispatch import PLAIN, compiling, direct, followed, only_backward_follows, replayed, watched

SOURCES = tl.constexpr(sources_digest(Path(__file__).parent, Path(__file__).parent.parent / "backends"))


@triton.jit
def stamp_kernel():
    """Never launched. torch's compile caches know an op by its kernels' sources, not by its body: this kernel belongs to every
    op, so that a changed body meets no graph that was compiled from the old one."""
    sources: tl.constexpr = SOURCES  # noqa: F841


#: ops that write into their arguments: torch has to hear of it
MUTATING: set[str] = set()
#: op -> its body, which launches Triton's kernels
BODIES: dict[str, Callable] = {}
#: op -> (number of its tensors, the op for calls that nothing follows but backward mode)
STRAIGHT: dict[str, tuple[int, Callable]] = {}
#: backend -> op -> its body there, where that is not the one that launches Triton's kernels
IMPLEMENTATIONS: dict[str, dict[str, Callable]] = {}


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
        if not of_torch.forward_derivatives:
            for name, op, count in self._each():
                autograd.register_backward(name, count, autograd.Derivatives(**rule))
            return
        self.at("Autograd", lambda op, count: autograd.kernel(op, count, autograd.Derivatives(**rule)))
        name, _, count = next(self._each())
        name = name.partition("::")[2]
        if name not in MUTATING:
            STRAIGHT[name] = count, autograd.straight(name, count, autograd.Derivatives(**rule), _for_backward(name, count))

    def batch(self, rule: batching.Rule):
        """Register what `vmap` runs instead (see `batching`)."""
        for name, op, count in self._each():
            batching.register(name, op, count, rule)

    def autocast(self, dtype_of: Callable, result: Callable | None = None):
        """Register what torch.autocast casts (see `autocast.kernel`)."""
        if not of_torch.autocasts:
            return
        for device, key in autocast.KEYS.items():
            self.at(key, lambda op, count, device=device: autocast.kernel(op, count, dtype_of, device, result))

    def at(self, key: str, kernel: Callable):
        """`kernel(op, number of its leading tensor arguments)` is what the dispatcher calls for an op at a key."""
        for name, op, count in self._each():
            with warnings.catch_warnings():  # that it replaces the kernel for Autograd which a custom op comes with
                warnings.filterwarnings("ignore", message="Warning only once for all operators", category=UserWarning)
                _library.impl(name, kernel(op, count), key, with_keyset=True, allow_override=True)


_library = torch.library.Library("triport", "FRAGMENT")  # holds the kernels of keys that a custom op has no call for, or none that will do


def register(name: str, body: Callable, *kernels, mutates_args=(), implementations: dict[str, Callable] | None = None,
             by: bool = False, alike: Callable[..., choices.Like] | None = None) -> Registered:
    """`body`, which launches `kernels`, as the op `torch.ops.triport.<name>`. implementations: name of a backend -> the same by its own means.
    by: calls may name their backend; an op with implementations has that anyhow. alike: from the op's arguments tells what a call is to be like that was
    measured, for `use("auto")` to choose by (`choices.py`); without it that goes by `body`."""
    full = f"triport::{name}"
    BODIES[name] = body
    if mutates_args:
        MUTATING.add(name)
    with of_torch.no_kernel_search():  # the kernels are named here instead
        op = triton_op(full, body if mutates_args else _replaying(body), mutates_args=mutates_args)
    of_torch.kernels_of_op[full] = [*kernels, stamp_kernel]
    for kernel in kernels:
        _serve_by_device(kernel)
    for backend, own in (implementations or {}).items():
        IMPLEMENTATIONS.setdefault(backend, {})[name] = own
    if not (implementations or by):
        return Registered(op, None)
    if alike is not None:
        choices.LIKE[name] = alike
    IMPLEMENTATIONS.setdefault(choice.AUTO, {})[name] = body if alike is None else _by_measurement(name, body)
    return Registered(op, _register_by(name, body, mutates_args))


def _by_measurement(name: str, body: Callable) -> Callable:
    """An op's body by the backend that was measured as faster for such a call. What it launched is remembered like any body's, so that is asked of new calls
    alone."""

    def chosen(*args):
        return IMPLEMENTATIONS.get(choices.chosen(name, *args), {}).get(name, body)(*args)

    return chosen


def _replaying(body: Callable) -> Callable:
    """`body` as the dispatcher calls it, under autograd for one: where nothing else watches, a call like one before is replayed."""
    count = sum(p.annotation in (torch.Tensor, "torch.Tensor") for p in inspect.signature(body).parameters.values())

    @functools.wraps(body)
    def run(*args):
        if watched(*args[:count]):
            return of_all(body(*args), args[:count])
        return _alone(body, count, *args)

    return run


def of_all(out, tensors: tuple):
    """What a body returned for tensors of which one is empty, as a function of them all where a graph is traced: no kernel reads them, and what brings them would be taken for
    useless. A rank whose shard is empty would leave out the collectives that the others wait in."""
    if all(type(t) in PLAIN for t in tensors) or not any(type(n) is int and n == 0 for t in tensors for n in t.shape):
        return out
    zero = sum(t.unsqueeze(0)[:0].sum() for t in tensors)
    several = tuple(one + zero.to(one.dtype) for one in (out if isinstance(out, tuple) else (out,)))
    return several if isinstance(out, tuple) else several[0]


def _alone(body: Callable, count: int, *args):
    """`direct`, on the first `count` of args and the rest, whose plan nobody else is to learn: it is for these tensors, which need not be those that the op's
    function was called with, nor followed by autograd like those."""
    try:
        return direct(body, args[:count], *args[count:])
    finally:
        call.plan = None


def implementation(backend: str, name: str) -> Callable:
    """The body of an op by the backend of that name. Raises `Unsupported` where it has none."""
    return get_backend(backend).implementation(name, IMPLEMENTATIONS.get(backend, {}))


def _register_by(name: str, body: Callable, mutates_args):
    """`torch.ops.triport.<name>_by(..., backend)`: by that backend, or where it is "" by the one that the context chose."""

    def by(*args):
        *args, backend = args
        backend = backend or choice.of(args[0].device.type)
        return (implementation(backend, name) if backend else body)(*args)

    def fake(*args):
        with calling(SHAPES):
            return body(*args[:-1])

    schema = torch.library.infer_schema(body, mutates_args=mutates_args)
    op = torch.library.custom_op(f"triport::{name}_by", by, mutates_args=mutates_args, schema=schema.replace(") ->", ", str backend) ->", 1))
    op.register_fake(fake)
    return op


def served(name: str, *args):
    """`torch.ops.triport.<name>`, by the backend that `backends.use` chose for the first argument's device."""
    if any(map(stands_for_a_tensor, args)):
        return getattr(torch.ops.triport, name)(*args)  # which hands the call to it
    for place, a in enumerate(args):
        if isinstance(a, torch.Tensor) and a.is_nested:
            word = list(inspect.signature(BODIES[name]).parameters)[place]
            raise ArgumentError(f"triport.{name}: argument {word!r} is a nested tensor; it takes dense tensors: call it for each of {word}.unbind()")
    if call.mode == EXPORT:
        return BODIES[name](*args)
    if (found := STRAIGHT.get(name)) is not None and only_backward_follows(*args[:found[0]]):
        return found[1](*args)
    if compiling() or not distributed.meet(name, args):
        return _dispatched(name, args)
    with distributed.errors_of_ours():
        return _dispatched(name, args)


def beneath(name: str, count: int) -> Callable:
    """`torch.ops.triport.<name>`, whose first `count` arguments are tensors, for derivatives to call: where nothing follows a call, as in a backward whose gradients
    need none themselves, it goes round the dispatcher, which costs 20 microseconds, and several times that with cold caches."""
    op, body = getattr(torch.ops.triport, name), BODIES[name]

    def derivative(*args):
        tensors = args[:count]
        if watched(*tensors) or any(autograd.value_and_tangent(t)[1] is not None for t in tensors):
            return op(*args)
        return direct(body, tensors, *args[count:])

    return _known_again(f"{name} beneath", count, body, derivative)


def _for_backward(name: str, count: int) -> Callable:
    """An op's body for `autograd.straight`, whose plan nobody else is to learn (`_alone`)."""
    body = BODIES[name]
    known = _known_again(f"{name} for backward", count, body, lambda *args: direct(body, args[:count], *args[count:]))

    def run(*args):
        try:
            return known(*args)
        finally:
            call.plan = None

    return run


def _known_again(name: str, count: int, body: Callable, fn: Callable) -> Callable:
    """`fn`, called as `body` is, within autograd: what it was called with before is known by native code (`dispatch.replayed`), which takes no tensor that requires gradients. Where none are asked for
    it is handed the same memory without."""
    names = (f"argument{k}" for k in range(len(inspect.signature(body).parameters)))  # by place: a body's own may be those that `replayed` has
    fn.__name__, fn.__signature__ = name, inspect.Signature([inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names])
    known = replayed(count)(fn)

    def run(*args):
        if torch.is_grad_enabled() or compiling() or of_torch.transforms_active() or of_torch.forward_ad._current_level >= 0:
            return known(*args)
        return known(*(a.detach() if k < count and type(a) in PLAIN and a.requires_grad else a for k, a in enumerate(args)))

    return run if of_torch.quick else fn


def _dispatched(name: str, args):
    if choice.in_use:
        if compiling():  # a graph outlives its context: it asks for the choice when it runs
            return getattr(torch.ops.triport, f"{name}_by")(*args, "")
        backend = choice.of(args[0].device.type)
        own = IMPLEMENTATIONS.get(backend, {}).get(name) if backend else BODIES[name]
        tensors = tuple(itertools.takewhile(lambda a: isinstance(a, torch.Tensor), args))
        params = args[len(tensors):]
        if own is not None and name not in MUTATING and tensors and not any(isinstance(p, torch.Tensor) for p in params) and not followed(*tensors):
            return direct(own, tensors, *params)
        if backend:
            return getattr(torch.ops.triport, f"{name}_by")(*args, backend)
    return getattr(torch.ops.triport, name)(*args)


def _serve_by_device(kernel):
    """Let a kernel run on its tensors' device, whoever launches it: torch's tracers launch with the process's driver."""
    if isinstance(kernel, Autotuner):
        kernel.cache = drivers.ChoicesByDevice()
        if kernel.__dict__.get("_do_bench") is None:  # else the user's own; Triton would keep that of the first driver, and time the CPU by a GPU's clock
            kernel.__dict__["do_bench"] = lambda *args, **kwargs: triton.runtime.driver.active.get_benchmarker()(*args, **kwargs)
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
