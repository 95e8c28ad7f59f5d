"""`kernel[grid](...)` on the CPU as before, without Triton's binder: that specialises each argument, makes text of all and looks the kernel up by it, some 4 us a launch.

Here a launch is known by what decides which kernel serves it: dtypes and alignment of tensors, kinds of numbers, constexprs, options, and the knobs that
`JITFunction.run` reads. The first of a kind goes Triton's way, and so does every launch that is looked at or out of the ordinary: with hooks, checks, another
package's driver, arguments of other types (tuples, descriptors), grids of four dimensions.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import threading
from operator import attrgetter
from typing import Callable, NamedTuple

from triton import knobs, language as tl
from triton.runtime import jit

from ... import active, checking
from ...of_triton import heard

LIMIT = 1024  # kinds of launches of one kernel: constexprs may come without end
_NAME = "_triport_kinds"
_LEAST, _MOST, _WIDEST = -(1 << 31), (1 << 31) - 1, (1 << 63) - 1
_installing = threading.Lock()


def _fresh_lock():
    global _installing
    _installing = threading.Lock()  # in a forked child: whoever held it is gone


os.register_at_fork(after_in_child=_fresh_lock)


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

    def __init__(self, kernel, reserved: set[str]):
        """reserved: what `JITFunction.run` calls arguments of its own, which parameters of these names would get."""
        self.known: dict = {}
        self.names = [p.name for p in kernel.params]
        self.bind = _unknown if reserved & set(self.names) else _binder(kernel)


def _kind(x):
    """What of an argument that is no tensor decides which kernel serves a launch: as Triton specialises numbers, or finer."""
    t = type(x)
    if t is int:
        if _LEAST <= x <= _MOST:
            return x == 1, x & 15 == 0
        if not -_WIDEST <= x + 1 <= 2 * _WIDEST + 2:
            raise Unknown  # more than 64 bits, of which Triton says so
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
    # A view that negates another tensor has a key of its own, under which nothing is known: whoever looks at all arguments refuses it (`mends.looked_at`).
    for n, (param, of) in enumerate(zip(kernel.params, kernel.signature.parameters.values())):
        name = param.name
        env[f"triport_default{n}"] = of.default
        if of.kind is inspect.Parameter.KEYWORD_ONLY and "*" not in head:
            head.append("*")
        head.append(name if of.default is inspect.Parameter.empty else f"{name}=triport_default{n}")
        key.append(f"triport_constant({name})" if param.is_constexpr else
                   f"({name}.dtype, {name}.data_ptr() & 15 == 0, {name}.is_neg()) if triport_type({name}) in triport_tensors else triport_kind({name})")
    names = "".join(f"{p.name}, " for p in kernel.params)
    text = (f"def triport_bind({', '.join([*head, '**triport_options'])}):\n"
            f"    return ({''.join(f'{k}, ' for k in key)}), ({names}), triport_options\n")
    exec(compile(text, f"<arguments of {kernel.__name__}>", "exec"), env)  # noqa: S102  (source of ours, of a kernel's parameters)
    return env["triport_bind"]


def _knobs(source: str) -> tuple[Callable, list[str]]:
    """(a function that reads the knobs that `JITFunction.run` has a look at, by its source; names of the hooks among them, which it leaves out)."""
    found = {f"{group}.{name}" for group, name in re.findall(r"\bknobs\.(\w+)\.(\w+)", source)}
    hooks = {name for name in found if name.endswith("_hook")}
    read = attrgetter(*sorted(found - hooks))
    read(knobs)  # raises where there is no such knob
    return functools.partial(read, knobs), sorted(hooks - {"runtime.launch_enter_hook", "runtime.launch_exit_hook"})


def install():
    """From now on kernels are launched so. Raises what shows that this Triton has other insides. While another's functions stand where Triton's launch (a
    wrapper that counts, or lists launches instead of doing them) all goes by these; `install` is called again for each kernel that is loaded."""
    with _installing:
        if all(getattr(f, "__globals__", None) is vars(jit) for f in (jit.KernelInterface.__getitem__, jit.JITFunction.run)):
            _install()


def _install():
    run, of_driver = jit.JITFunction.run, jit.driver
    try:
        source = inspect.getsource(run)
    except OSError as e:
        raise AttributeError(f"JITFunction.run's source: {e}") from e
    if list(inspect.signature(run).parameters) != ["self", "args", "grid", "warmup", "kwargs"] or "device_caches" not in source:
        raise AttributeError("JITFunction.run")
    read, others = _knobs(source)
    hooks = attrgetter(*others, "runtime.launch_enter_hook", "runtime.launch_exit_hook")
    reserved = {"self", "grid", "warmup", *re.findall(r"kwargs\[\"(\w+)\"\]", source)}

    def again(kernel, grid, args, kwargs):
        """The kernel launched, None where that is left to Triton; and the key that it is to be known by."""
        device = of_driver.active.get_current_device()
        if device not in active.CPU:
            return None, None
        own, (*more, enter, leave) = kernel.__dict__, hooks(knobs)
        if (checking.on or active.foreign or kernel.pre_run_hooks or kernel.used_global_vals or type(kernel).run is not run or "run" in own
                or more.count(None) != len(more) or enter is not None and heard(enter) or leave is not None and heard(leave)):
            return None, None
        kinds = own.get(_NAME)
        if kinds is None:
            kinds = own[_NAME] = Kinds(kernel, reserved)
        try:
            key, values, options = kinds.bind(*args, **kwargs)
            key = key, tuple(options.items()), kernel.debug, read()
            found = kinds.known.get(key)
        except (Unknown, TypeError):  # unhashable, or arguments that do not fit, of which Triton says so
            return None, None
        if found is None:
            return None, key
        caches = kernel.device_caches.get(device)
        if caches is None or caches[0] is not found.cache or found.cache.get(found.key) is not found.compiled:
            return None, key
        if callable(grid):
            bound = dict(zip(kinds.names, values))
            grid = grid(bound)
            values = bound.values()  # into which it may have written
        try:
            x, sizes = grid[0], len(grid)
        except (TypeError, IndexError, KeyError):
            from ..run.grid import none
            raise none(found.compiled.name, grid) from None
        if sizes > 3:
            from ..run.grid import sizes as check
            check(found.compiled.name, grid)
        found.launch(x, grid[1] if sizes > 1 else 1, grid[2] if sizes > 2 else 1, 0, found.compiled.function, None, None, None, None, *values)
        return found.compiled, None

    def learn(kernel, key, compiled):
        """Launches of this key are known from now on, if it is a kernel of ours."""
        launch = getattr(compiled, "run", None)
        caches = kernel.device_caches.get(of_driver.active.get_current_device())
        if caches is None or not hasattr(launch, "slots") or getattr(launch, "unchecked", None) is not None:
            return
        place = next((k for k, c in list(caches[0].items()) if c is compiled), None)
        known = kernel.__dict__[_NAME].known
        if place is not None:
            if len(known) >= LIMIT:
                known.clear()
            known[key] = Kind(launch, compiled, caches[0], place)

    original = jit.KernelInterface.__getitem__

    def __getitem__(self, grid):
        if not isinstance(self, jit.JITFunction):
            return original(self, grid)

        def launched(*args, **kwargs):
            compiled, key = again(self, grid, args, kwargs)
            if compiled is None:
                compiled = self.run(grid=grid, warmup=False, *args, **kwargs)
                if key is not None and compiled is not None:
                    learn(self, key, compiled)
            return compiled

        return launched

    jit.KernelInterface.__getitem__ = __getitem__  # where it was, for whoever puts another in its place


def forget(kernel):
    """Drop what is known of a kernel's launches."""
    kernel.__dict__.pop(_NAME, None)
