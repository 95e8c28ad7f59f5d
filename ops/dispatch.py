"""From a call of an op to launches: what must go through torch's dispatcher, what need not, and what can be replayed."""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import Any, Callable, TypeVar

import torch
from triton import knobs
from triton.runtime.jit import JITFunction

from ..backends import checking, of_torch
from ..backends.base import Unsupported
from ..backends.context import RECORD, SHAPES, call as context, calling
from ..backends.dispatch import choice, drivers, quick, replay
from ..backends.dispatch.cuda_launch import enter_new_thread, is_description
from ..backends.of_torch import FakeTensor, forward_ad, is_wrap_triton_enabled, profiler
from .layout import roomy

F = TypeVar("F", bound=Callable[..., Any])


def watched(*tensors: torch.Tensor) -> bool:
    """Must a call go through torch's dispatcher? Yes where something follows it: a tracer, autograd, autocast, a mode, the
    profiler, a tensor subclass or a device other than the CPU and the current GPU. Otherwise the op's body may be run as it is, which saves some 50
    microseconds a call."""
    return choice.in_use or followed(*tensors)


def followed(*tensors: torch.Tensor) -> bool:
    """As `watched`, whoever was chosen to serve."""
    if not _QUICK or profiler._is_profiler_enabled or _observed():
        return True
    grad = torch.is_grad_enabled()
    for t in tensors:
        if not _plain(t) or (grad and t.requires_grad):
            return True
    return False


def only_backward_follows(*tensors: torch.Tensor) -> bool:
    """Does autograd's backward mode follow a call on plain tensors, and nothing else?"""
    if not _QUICK or choice.in_use or profiler._is_profiler_enabled or not torch.is_grad_enabled() or _observed():
        return False
    return all(map(_plain, tensors)) and any(t.requires_grad for t in tensors)


def _plain(t: torch.Tensor) -> bool:
    """Is it a tensor, and no more, on the CPU or the current GPU?"""
    return (type(t) in PLAIN and (t.is_cpu or _here(t)) and not (t.is_neg() or t._is_zerotensor()) and t.layout is torch.strided
            and not (_batched(t) or t.is_nested))


def _here(t: torch.Tensor) -> bool:
    """Is it on the current GPU, and plain?"""
    return t.is_cuda and t.device.index == _current_device()


def bare(*tensors: torch.Tensor) -> bool:
    """Is a call of an op that Triton alone has on plain CUDA tensors, and followed by autograd at most? (The profiler sees kernels on a GPU, whoever
    launches them.)"""
    return _QUICK and not (_observed() or choice.elsewhere("cuda")) and all(type(t) in PLAIN and t.is_cuda and t.layout is torch.strided
                                   and not (t.is_neg() or t._is_zerotensor() or _batched(t)) for t in tensors)


def _observed() -> bool:
    """Does something follow all calls of this thread that has to meet the dispatcher?"""
    return (torch.compiler.is_compiling() or _dispatch_modes() or _function_modes() or _functorch_level() is not None or _jit_tracing() is not None
            or forward_ad._current_level >= 0 or _autocast() or _INTERPRETED)


_QUICK = of_torch.quick  # else nothing goes round the dispatcher
_current_device = of_torch.current_gpu
compiling = torch.compiler.is_dynamo_compiling  # elsewhere tracing works by modes and subclasses, which a site sees
PLAIN = (torch.Tensor, torch.nn.Parameter)
_INTERPRETED = knobs.runtime.interpret  # Triton, too, looks when a kernel is decorated
_dispatch_modes = of_torch.dispatch_modes
_function_modes = of_torch.function_modes
_functorch_level = of_torch.functorch_level
_batched = of_torch.batched  # as autograd.grad(is_grads_batched=True) makes them, at no level
_jit_tracing = of_torch.jit_tracing
_autocast = of_torch.any_autocast


def direct(body: Callable, tensors: tuple, *params):
    """Run an op's body without the dispatcher (see `watched`); `tensors` are its first arguments, `params` the rest."""
    if checking.on:  # what is checked is never replayed
        with calling(RECORD):
            return body(*tensors, *params)
    key = replay.key_of(body, tensors, params)
    plan = replay.find(key)
    if plan is not None:
        context.plan = plan
        return plan(*tensors)
    return replay.record(key, body, tensors, params, roomy)


_REPLAYED = """
def call({parameters}):
    if compiling():
        return fn({names})
    out = site.call({names})
    if out is None and choice.in_use:
        out = chosen.call({names})
    if out is None:
        context.plan = None
        out = fn({names})
        if context.plan is not None:
            if choice.in_use:
                learn_chosen(chosen, ({names},), count, context.plan)
            else:
                learn(site, ({names},), count, context.plan)
    return out
"""


def replayed(count: int) -> Callable[[F], F]:
    """Decorator of an op's public function, whose first `count` arguments are tensors: a call like one before, that nothing
    watches, goes straight to what that one launched (`replay.site`)."""

    def decorate(fn: F) -> F:
        if not _QUICK:
            return fn
        names = list(inspect.signature(fn).parameters)
        source = _REPLAYED.format(parameters=", ".join(names), names=", ".join(names))  # by name: *args would cost 60 ns a call
        env = {"fn": fn, "site": replay.site(fn.__name__), "chosen": replay.site(fn.__name__, chosen=True), "choice": choice, "compiling": compiling,
               "context": context, "learn": replay.learn, "learn_chosen": replay.learn_chosen, "count": count}
        exec(compile(source, f"<replayed {fn.__name__}>", "exec"), env)  # noqa: S102  (source of ours, by the names of a function's parameters)
        call = functools.wraps(fn)(env["call"])
        call.__defaults__, call.__kwdefaults__ = fn.__defaults__, fn.__kwdefaults__
        return call

    return decorate


def traced() -> bool:
    """May it be that a body runs for somebody who traces its launches?"""
    return context.mode != RECORD and is_wrap_triton_enabled()


def wrap_triton(kernel):
    """`torch.library.wrap_triton` where something traces, else the kernel itself."""
    return torch.library.wrap_triton(kernel) if traced() else kernel


def launch(kernel, grid: tuple, *args, **consts):
    """Launch a (wrapped) kernel; the first argument's device says where."""
    if context.mode == SHAPES:
        return
    if isinstance(kernel, JITFunction) and args[0].is_cpu and not isinstance(args[0], FakeTensor):
        quick.launch(kernel, grid, args, consts)
        return
    if args[0].is_cuda and any(map(is_description, args)):
        enter_new_thread(args[0].device.index)
    with on_device(args[0]):
        compiled = kernel[grid](*args, **consts)
    if context.recording is not None:
        context.note_launch(compiled, None, grid, args) if isinstance(kernel, JITFunction) else context.note_odd()


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
