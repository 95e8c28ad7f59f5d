"""Replaying an op on CPU tensors: after its body ran once for some shapes, what it launched is enough.

The first call of an op's body for given dtypes, shapes, strides and alignments is recorded: which kernels it launched, on
which grids, with which scalars, and which of its tensors were inputs, the output or declared temporaries. Where that is all
there was, later calls allocate and launch, and skip checks, tile choice and binding: 5 microseconds of Python instead of 12,
which count double while a kernel's data has the caches.
"""

from __future__ import annotations

import contextlib
import os
from typing import Callable

import torch
from triton import knobs
from triton.runtime.jit import JITFunction

from . import call, choice, cuda_calls, scratch
from .. import active, checking, context, of_torch
from ..cpu.run import launch, native
from ..of_torch import TensorGuards, empty_strided_cpu as empty, forward_ad, profiler
from ..of_triton import chained, heard

_LIMIT = 1024
_plans: dict = {}


def hooked() -> bool:
    """Has somebody hooked launches? (Triton keeps a chain of hooks, which may be empty.)"""
    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return heard(enter) or heard(leave)


def temporary(t: torch.Tensor) -> torch.Tensor:
    """Declare `t` a temporary that kernels write before they read it."""
    if context.call.recording is not None:
        context.call.recording.temporaries.append(t)
    return t


_threads = torch.get_num_threads
_current_device = of_torch.current_gpu  # small ints: the same objects


def key_of(body, tensors: tuple, params: tuple):
    """What a plan is remembered under."""
    params = tuple(p or repr(p) for p in params)  # -0.0 is 0.0, and not the same
    return (body, params, _threads(), torch.is_inference_mode_enabled(),
            *[(t.dtype, t.shape, t.stride(), t.data_ptr() & 15, t.device) for t in tensors])


def find(key):
    """The plan remembered under a key, if it may be used."""
    plan = _plans.get(key)
    return None if plan is None or hooked() or checking.on or active.foreign else plan


def _empty_inference(sizes, strides, dtype):
    """A new tensor that inference_mode marks as its own."""
    return torch.empty_strided(sizes, strides, dtype=dtype)


def _facts():
    """What must be so for a call to be replayed that is recognised by its arguments (see `call.Site`), without what `choice` says."""
    out = [native.returned(of_torch.function_modes, 0), native.attribute(profiler, "_is_profiler_enabled", False),
           native.attribute(forward_ad, "_current_level", -1), native.empty_list(active.foreign), native.unchecked(),
           native.attribute(JITFunction, "run", JITFunction.run)]
    for name in ("launch_enter_hook", "launch_exit_hook"):
        hook = getattr(knobs.runtime, name)
        if name not in vars(knobs.runtime) and vars(type(knobs.runtime)).get(name) is hook:  # as Triton 3.6 to 3.9 have it
            out += [native.not_its_own(knobs.runtime, name), native.attribute(type(knobs.runtime), name, hook)]
        else:
            out.append(native.attribute(knobs.runtime, name, hook))
        if chained(hook):
            out.append(native.empty_list(hook.calls))
    return out


_sites: dict[str, call.Site] = {}


def site(name: str, chosen: bool = False) -> call.Site:
    """Where an op's calls are recognised by their arguments. chosen: those within `use`, which are looked for second."""
    key = f"{name} within use" if chosen else name
    if key not in _sites:
        facts = _facts() if chosen else [native.empty_list(choice.opened), *_facts()]
        _sites[key] = call.Site(facts, _threads)
    return _sites[key]


def learn_chosen(site: call.Site, args: tuple, count: int, plan):
    """As `learn`, of a call within `use`; `site` is one of those."""
    learn(site, args, count, plan, choice.token)


def learn(site: call.Site, args: tuple, count: int, plan, ask=None):
    """From now on `site` recognises a call like this one, whose first `count` arguments are its tensors, and `plan` does it: CUDA's on this device, the
    CPU's with so many threads."""
    tensors = args[:count]
    if TensorGuards is None or any(t.requires_grad for t in tensors):  # under no_grad its guard would hold without it, too
        return
    check = _guard(tensors)
    if check(*tensors):
        site.learn(check, args, count, plan, ask or (_current_device if tensors[0].is_cuda else None))


def _guard(tensors: tuple) -> Callable[..., bool]:
    """What says whether tensors are like these, and the same ones twice where these are: torch's guards are False for any that is there twice."""
    first = [next(k for k, other in enumerate(tensors) if other is t) for t in tensors]
    apart = [k for k, f in enumerate(first) if k == f]
    check = TensorGuards(*(tensors[k] for k in apart), dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    if len(apart) == len(tensors):
        return check
    twice = [(k, f) for k, f in enumerate(first) if k != f]
    return lambda *given: all(given[k] is given[f] for k, f in twice) and check(*(given[k] for k in apart))


def record(key, body, tensors: tuple, params: tuple, advise):
    """`body(*tensors, *params)`, to be replayed from now on. Plain tensors only, on the CPU or the current GPU. `advise(out)` prepares the memory of an output
    that is large, on the CPU."""
    tensors = tensors if _forked else _apart(tensors)
    with context.recording() as did:
        out = body(*tensors, *params)
    if tensors[0].is_cuda:
        plan = cuda_calls.plan(did.launches, did.temporaries, tensors, out)
    else:
        plan = _compile(did.launches, did.temporaries, tensors, out, advise)
    if plan is not None:
        if len(_plans) >= _LIMIT:
            _plans.clear()
        _plans[key] = plan
    return out


#: bytes of the largest tensor that is copied for a plan's sake: the time of a call on a larger one is not that of finding out what to launch
_COPIED = 1 << 24


def _apart(tensors: tuple) -> tuple:
    """The tensors, with a copy for each that begins where an earlier one does (x @ x.T): which of the two a launch reads could not be told by its address."""
    found, seen = [], set()
    for t in tensors:
        if t.data_ptr() in seen and 0 < t.nbytes <= _COPIED and t.data_ptr() % 64 == 0 and torch._debug_has_internal_overlap(t) != 1:  # 1: it has
            t = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device).copy_(t)
        seen.add(t.data_ptr())
        found.append(t)
    return tuple(found)


def forget():
    """Drop all plans."""
    _plans.clear()
    for known in _sites.values():
        known.swap([])


#: in a child, torch's copies wait for OpenMP's threads, which it does not have: such calls are made without a plan
_forked = False


def _fork():
    global _forked
    _forked = True
    forget()  # plans name OpenMP's threads


os.register_at_fork(after_in_child=_fork)


@contextlib.contextmanager
def plans(op: str, own: dict):
    """Within it `op`'s plans are found in and added to `own`. For one thread that searches: others would see them, too."""
    global _plans
    before, _plans = _plans, own
    known = site(op).swap([])
    try:
        yield
    finally:
        _plans = before
        site(op).swap(known)


def _compile(launches, temps, tensors, out, advise):
    """A function of the input tensors that allocates and launches, or None where the record does not say everything. Called with
    tensors of another alignment it does nothing and returns None."""
    number = call.numbered(tensors, out, temps) if launches and None not in launches else None
    if number is None:
        return None
    outs = call.results_of(out)
    made = [(advise if t.nbytes >= advise.from_bytes else None, tuple(t.shape), t.stride(), t.dtype) for t in outs]
    made += [(None, scratch.sizes_of(t), t.stride(), t.dtype) for t in temps]
    threads, todo, told = _threads(), [], []
    for run, function, grid, args in launches:
        x, y, z = (*grid, 1, 1)[:3]
        it = native.launch_of(run, function, (x, y, z), args, threads, lambda _, a: number.get(a.data_ptr()))
        if it is None:
            return None
        todo.append(it)
        told.append((function.name, run.scratch, run.asserts, x, y))

    def fail(which, status):
        name, scratch, asserts, x, y = told[which]
        launch.failed(name, status, scratch, asserts, x, y)

    new = _empty_inference if torch.is_inference_mode_enabled() else empty
    if any(type(sizes) is scratch.Kept for _, sizes, *_ in made):
        new = scratch.empty_with(new)
    return call.plan([t.data_ptr() & 15 for t in tensors], made, todo, new, fail,
                     hold=[function for _, function, _, _ in launches], results=len(outs) if isinstance(out, tuple) else None)
