"""Launches of Triton kernels, as they happen.

Triton's launch hooks say that a kernel is launched and when it is done; its grid, constexprs and options they do not say, so `JITFunction.run` (the options as
the caller wrote them) and `CompiledKernel.launch_metadata` (the grid, after the caller's function of it was asked) are looked at on their way. While
hooks are there, triport's ops launch by Triton as well, and not by replay.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

#: keyword arguments of `JITFunction.run` that are Triton's own
_OWN = ("grid", "warmup", "debug", "instrumentation_mode", "fpsan_homomorphic_casts")


@dataclass
class Launch:
    """kernel: its name; grid: three numbers; constexprs: by name; options: those that the caller gave (num_warps, ...); seconds: of the launch; reports:
    what a checked launch found; tuning: was it one of the autotuner's, which measures configurations? compiled: Triton's compiled kernel."""

    kernel: str
    grid: tuple
    constexprs: dict
    options: dict
    seconds: float = 0.0
    reports: tuple = ()
    tuning: bool = False
    compiled: object = field(default=None, repr=False)


class Report:
    """Launches in order."""

    def __init__(self):
        self.launches: list[Launch] = []

    @property
    def kernels(self) -> Counter:
        """Kernel's name -> how often it was launched."""
        return Counter(x.kernel for x in self.launches)

    @property
    def seconds(self) -> float:
        """Time in kernels."""
        return sum(x.seconds for x in self.launches)

    @property
    def reports(self) -> list:
        """What checked launches found."""
        return [r for x in self.launches for r in x.reports]

    def __str__(self):
        lines = [f"{x.kernel}{list(x.grid)} {x.seconds * 1e6:.0f} us {x.constexprs}" for x in self.launches]
        return "\n".join(lines) or "no Triton kernel was launched"


class _State(threading.local):
    """options: of the call to `JITFunction.run` that is under way; next: (compiled kernel, grid) of the launch that comes; open: (launch,
    when it began) of the one that runs; tuning: does an autotuner measure?"""

    options: dict = {}
    next: tuple = (None, ())
    open: tuple | None = None
    tuning: bool = False


_here = _State()
_reports: list[Report] = []
_lock = threading.Lock()
_undo: list = []


@contextlib.contextmanager
def watched():
    """A `Report` that grows while this is open, of launches in any thread."""
    report = Report()
    with _lock:
        if not _reports:
            _install()
        _reports.append(report)
    try:
        yield report
    finally:
        with _lock:
            _reports.remove(report)
            if not _reports:
                while _undo:
                    _undo.pop()()


def _install():
    from triton import knobs
    from triton.compiler.compiler import CompiledKernel
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    chains = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    for chain, hook in zip(chains, (_enter, _exit)):
        chain.add(hook)
        _undo.append(functools.partial(chain.remove, hook))
    for owner, name, made in ((JITFunction, "run", _run), (CompiledKernel, "launch_metadata", _metadata), (Autotuner, "_bench", _bench)):
        before = vars(owner)[name]
        seen = functools.wraps(before)(made(before))
        setattr(owner, name, seen)
        _undo.append(functools.partial(_put_back, owner, name, seen, before))


def _put_back(owner, name: str, seen, before):
    """What stood there, unless another's function was laid over ours meanwhile, as the plugin's is where the first launch of a process is watched: that stays, and ours below it looks at nothing."""
    if vars(owner)[name] is seen:
        setattr(owner, name, before)


def _run(run):
    def seen(self, *args, grid, warmup, **kwargs):
        __tracebackhide__ = True
        before = _here.options
        _here.options = {k: v for k, v in kwargs.items() if k not in _OWN and k not in self.arg_names}
        try:
            return run(self, *args, grid=grid, warmup=warmup, **kwargs)
        except RuntimeError as e:
            found = getattr(e, "reports", ())
            if found and (launches := _reports[0].launches):
                launches[-1].reports = tuple(found)
            raise
        finally:
            _here.options = before

    return seen


def _metadata(launch_metadata):
    def seen(self, grid, stream, *args):
        if _reports:
            _here.next = self, grid
        return launch_metadata(self, grid, stream, *args)

    return seen


def _bench(bench):
    def seen(self, *args, **kwargs):
        _here.tuning = True
        try:
            return bench(self, *args, **kwargs)
        finally:
            _here.tuning = False

    return seen


def _enter(metadata):
    compiled, grid = _here.next
    _here.next = None, ()
    name = compiled.name if compiled is not None else metadata.get()["name"] if metadata is not None else "?"
    launch = Launch(name, (*grid, 1, 1, 1)[:max(3, len(grid))], constexprs(compiled), dict(_here.options), tuning=_here.tuning, compiled=compiled)
    for report in _reports:
        report.launches.append(launch)
    _here.open = launch, time.perf_counter()


def _exit(metadata):
    if _here.open is not None:
        launch, begin = _here.open
        launch.seconds, _here.open = time.perf_counter() - begin, None


def constexprs(compiled) -> dict:
    """Name -> value of the parameters of a compiled kernel that are declared constexpr."""
    src = getattr(compiled, "src", None)
    fn = getattr(src, "fn", None)
    params = {p.num: p for p in getattr(fn, "params", ())}
    given = {path[0]: value for path, value in (getattr(src, "constants", None) or {}).items() if len(path) == 1}
    return {p.name: given[n] for n, p in params.items() if p.is_constexpr and n in given}
