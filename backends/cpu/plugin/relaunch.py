"""`kernel[grid](...)` on the CPU as before, without Triton's binder: that specialises each argument, makes text of all and looks the kernel up by it, some 4 us a launch.

Here a launch is known by what decides which kernel serves it: dtypes and alignment of tensors, kinds of numbers, constexprs, options, and the knobs that
`JITFunction.run` reads. The first of a kind goes Triton's way, and so does every launch that is looked at or out of the ordinary: with hooks, checks, another
package's driver, arguments of other types (tuples, descriptors), grids of four dimensions.
"""

from __future__ import annotations

import functools
import inspect
import re
from operator import attrgetter
from typing import Callable, NamedTuple

from triton import knobs, language as tl
from triton.runtime import jit

from ... import active, checking
from ...of_triton import heard

LIMIT = 1024  # kinds of launches of one kernel: constexprs may come without end
_NAME = "_triport_kinds"
_HOOKS = {"launch_enter_hook", "launch_exit_hook"}
_LEAST, _MOST, _WIDEST = -(1 << 31), (1 << 31) - 1, (1 << 63) - 1


class Unknown(Exception):
    """An argument that Triton's binder is to look at."""


class Kind(NamedTuple):
    """What serves launches of a kind. cache, key: where Triton keeps it, by which it is seen to be there still."""

    launch: Callable
    compiled: object
    cache: dict
    key: object


class Kinds:
    """A kernel's. bind: (arguments) -> (key, values of all parameters, options), which raises what Python raises for arguments that do not fit."""

    def __init__(self, kernel):
        self.known: dict = {}
        self.names = [p.name for p in kernel.params]
        self.bind = _binder(kernel)


def _kind(x):
    """What of an argument that is no tensor decides which kernel serves a launch: as Triton specialises numbers, or finer."""
    t = type(x)
    if t is int:
        if _LEAST <= x <= _MOST:
            return x == 1, x & 15 == 0
        return x & 15 == 0, x > _WIDEST, None
    if t is float or t is bool or x is None:
        return t
    raise Unknown


def _constant(x):
    """A constexpr, as a key; what equals another and is none has its text."""
    t = type(x)
    if t is int or t is bool or t is str or x is None:
        return t, x
    if t is float or t is tl.dtype:
        return t, repr(x)
    raise Unknown


def _unknown(*args, **options):
    raise Unknown


def _binder(kernel) -> Callable:
    """A function with the parameters of the kernel and any options; its text decides what can be decided once."""
    import torch

    if any(of.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD) for of in kernel.signature.parameters.values()):
        return _unknown
    head, key, env = [], [], {"triport_tensors": (torch.Tensor, torch.nn.Parameter), "triport_kind": _kind, "triport_constant": _constant, "triport_type": type}
    for n, (param, of) in enumerate(zip(kernel.params, kernel.signature.parameters.values())):
        name = param.name
        env[f"triport_default{n}"] = of.default
        if of.kind is inspect.Parameter.KEYWORD_ONLY and "*" not in head:
            head.append("*")
        head.append(name if of.default is inspect.Parameter.empty else f"{name}=triport_default{n}")
        key.append(f"triport_constant({name})" if param.is_constexpr else
                   f"({name}.dtype, {name}.data_ptr() & 15 == 0) if triport_type({name}) in triport_tensors else triport_kind({name})")
    names = "".join(f"{p.name}, " for p in kernel.params)
    text = (f"def triport_bind({', '.join([*head, '**triport_options'])}):\n"
            f"    return ({''.join(f'{k}, ' for k in key)}), ({names}), triport_options\n")
    exec(compile(text, f"<arguments of {kernel.__name__}>", "exec"), env)  # noqa: S102  (source of ours, of a kernel's parameters)
    return env["triport_bind"]


def _knobs(run) -> Callable:
    """A function that reads the knobs that `run`, Triton's, has a look at, but for hooks of launches."""
    names = sorted({f"{group}.{name}" for group, name in re.findall(r"\bknobs\.(\w+)\.(\w+)", inspect.getsource(run)) if name not in _HOOKS})
    read = attrgetter(*names)
    read(knobs)  # raises where there is no such knob
    return functools.partial(read, knobs)


def install():
    """From now on kernels are launched so. Raises what shows that this Triton has other insides."""
    if getattr(jit.JITFunction.__getitem__, "__module__", None) == __name__:
        return
    run, of_driver, runtime, read = jit.JITFunction.run, jit.driver, knobs.runtime, _knobs(jit.JITFunction.run)
    parameters = list(inspect.signature(run).parameters)
    if parameters != ["self", "args", "grid", "warmup", "kwargs"] or "__getitem__" in vars(jit.JITFunction) or "device_caches" not in inspect.getsource(run):
        raise AttributeError("JITFunction.run")

    def again(kernel, grid, args, kwargs):
        """The kernel launched, None where that is left to Triton; and the key that it is to be known by."""
        own, enter, leave = kernel.__dict__, runtime.launch_enter_hook, runtime.launch_exit_hook
        if (checking.on or active.foreign_in_use or kernel.pre_run_hooks or kernel.used_global_vals or type(kernel).run is not run or "run" in own
                or enter is not None and heard(enter) or leave is not None and heard(leave)):
            return None, None
        kinds = own.get(_NAME)
        if kinds is None:
            kinds = own[_NAME] = Kinds(kernel)
        try:
            key, values, options = kinds.bind(*args, **kwargs)
            key = key, tuple(options.items()), kernel.debug, read()
            found = kinds.known.get(key)
        except (Unknown, TypeError):  # unhashable, or arguments that do not fit, of which Triton says so
            return None, None
        if found is None:
            return None, key
        caches = kernel.device_caches.get(of_driver.active.get_current_device())
        if caches is None or caches[0] is not found.cache or found.cache.get(found.key) is not found.compiled:
            return None, key
        if callable(grid):
            grid = grid(dict(zip(kinds.names, values)))
        sizes = len(grid)
        if sizes > 3:
            return None, None
        found.launch(grid[0], grid[1] if sizes > 1 else 1, grid[2] if sizes > 2 else 1, 0, found.compiled.function, None, None, None, None, *values)
        return found.compiled, None

    def learn(kernel, key, compiled):
        """Launches of this key are known from now on, if it is a kernel of ours."""
        launch = getattr(compiled, "run", None)
        caches = kernel.device_caches.get(of_driver.active.get_current_device())
        if caches is None or not hasattr(launch, "slots") or getattr(launch, "unchecked", None) is not None:
            return
        place = next((k for k, c in caches[0].items() if c is compiled), None)
        known = kernel.__dict__[_NAME].known
        if place is not None:
            if len(known) >= LIMIT:
                known.clear()
            known[key] = Kind(launch, compiled, caches[0], place)

    def __getitem__(self, grid):
        def launched(*args, **kwargs):
            compiled, key = again(self, grid, args, kwargs)
            if compiled is None:
                compiled = self.run(grid=grid, warmup=False, *args, **kwargs)
                if key is not None and compiled is not None:
                    learn(self, key, compiled)
            return compiled

        return launched

    jit.JITFunction.__getitem__ = __getitem__


def forget(kernel):
    """Drop what is known of a kernel's launches."""
    kernel.__dict__.pop(_NAME, None)
