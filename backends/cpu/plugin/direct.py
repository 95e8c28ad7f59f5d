"""Inductor's calls of its own kernels, in native code.

`CachingAutotuner.run` looks at what may have changed, its launcher computes the grid, and ours packs the arguments: 3 to 6 us for a kernel that may take one. Once
it has launched its one configuration, a `run` of the tuner's own in native code does what that launch did (run/direct.py), and leaves to torch's what
is out of the ordinary: a profiler, a debug mode, hooks, checks, other numbers, a tuner that has other launchers now.
"""

from __future__ import annotations

import functools
import os
import types

import torch

from ... import active, checking, of_torch
from ...of_torch import profiler
from ...of_triton import chained
from ..run import direct, native

_RUN = "run"
#: launches of a kernel that are known, by their numbers and by how many threads there are: shapes may come without end
MOST = 8
_KNOWN = "_triport_known"

_forked: list[str] = []  # is this a forked process, whose threads the tables do not name?
os.register_at_fork(after_in_child=lambda: _forked.append("fork"))


def mend(module):
    """Mend torch._inductor.runtime.triton_heuristics, which has run; a torch that was not tried, or has it written in another way, is left alone."""
    tuner = getattr(module, "CachingAutotuner", None)
    if of_torch.checked() and of_torch.takes(getattr(tuner, "run", None), "self", "args", "stream", "benchmark_run", "kwargs") and hasattr(tuner, "__getstate__"):
        tuner.run = learning(tuner.run, tuner, module)
        tuner.__getstate__ = without_own_run(tuner.__getstate__)


def without_own_run(state):
    """`CachingAutotuner.__getstate__`, without what another process has no use for."""
    @functools.wraps(state)
    def known(self):
        return {name: value for name, value in state(self).items() if name not in (_RUN, _KNOWN)}

    return known


def learning(run, tuner: type, module):
    """`CachingAutotuner.run`, which a launch gives a `run` of its own."""
    debugged = getattr(module, "get_active_debug_mode", _no_mode)

    @functools.wraps(run)
    def launched(self, *args, stream, **kwargs):
        result = run(self, *args, stream=stream, **kwargs)
        if not kwargs and type(self) is tuner and not (checking.on or _forked or active.foreign or profiler._is_profiler_enabled or debugged() is not None):
            own = vars(self)
            known, kind = own.setdefault(_KNOWN, set()), _kind(self, args)
            if kind not in known and len(known) < MOST:
                known.add(kind)
                # What is no such launch may be one of those before it.
                found = _again(self, args, stream, debugged, own.get(_RUN) or types.MethodType(launched, self))
                if found is not None:
                    own[_RUN] = found
        return result

    return launched


def _no_mode():
    """A torch without debug modes of kernels has none."""


def _kind(self, args: tuple) -> tuple:
    """What decides that a launch is another one than those that are known."""
    return id(self.launchers), torch.get_num_threads(), *(repr(a) for a in args if not isinstance(a, torch.Tensor))


def _again(self, args: tuple, stream, debugged, otherwise):
    """What launches as the tuner just did, or None."""
    (launcher, *more), meta = self.launchers, self.inductor_meta
    looked_at = ("triton_interpret", "dump_launch_params", "dump_launch_tensors", "save_cubin_kernel")
    if more or any(getattr(self, name, False) for name in looked_at) or meta.get("profile_bandwidth") or meta.get("store_cubin") or getattr(launcher, "store_cubin", False):
        return None
    if not isinstance(launcher, types.FunctionType) or getattr(launcher.__globals__.get("runner"), "slots", None) is None:
        return None
    grid, rest = _given(launcher, args, stream)
    _, kernel, _, _, enter, leave, *values = rest
    names = launcher.__code__.co_varnames[:launcher.__code__.co_argcount]
    run = launcher.__globals__["runner"]
    places = {n: names.index(label) for n, (label, _) in enumerate(run.signature) if label in names}
    if len(values) != len(run.signature) or any(values[n] is not args[k] for n, k in places.items()):
        return None
    facts = _facts(self, debugged, (enter, leave))
    return None if facts is None else direct.function(run, kernel, grid, tuple(values), args, places, facts, otherwise, hold=(launcher,))


def _given(launcher, args: tuple, stream) -> tuple[tuple, list]:
    """(grid, what follows it) that a launcher's runner is given."""
    found = []
    scope = {**launcher.__globals__, "runner": lambda *given: found.extend(given)}
    types.FunctionType(launcher.__code__, scope, launcher.__name__, launcher.__defaults__, launcher.__closure__)(*args, stream)
    return tuple(found[:3]), found[3:]


def _facts(self, debugged, hooks) -> list | None:
    """What must be so for a launch to be done again, or None where it is not so now."""
    facts = [native.kept_there(vars(self), "launchers", self.launchers), native.attribute(profiler, "_is_profiler_enabled", False),
             native.empty_list(active.foreign), native.unchecked(), native.empty_list(_forked)]
    if debugged is not _no_mode:
        facts.append(native.returned(debugged, None))
    for hook in hooks:
        if hook is not None and (not chained(hook) or hook.calls):
            return None
        if hook is not None:
            facts.append(native.empty_list(hook.calls))
    return facts
