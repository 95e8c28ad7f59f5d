"""Inside a program: every kernel that it launches, with arguments, counts and times, and the report at its end (TRIPORT_ASM=FILE).

Triton's hooks around launches give the times; `CompiledKernel.launch_metadata`, which Triton and Inductor call before each launch while there are
hooks, gives kernel, grid and arguments. backends/cpu/plugin/asked.py starts it. Nothing is printed unless it fails, and a failure never reaches the
program.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import pickle
import sys
import threading
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path

SUFFIXES = (".html", ".json", ".txt", ".pickle")
#: different arguments that are kept of each kernel; the others are counted
KEPT = 8
_PLAIN = (int, float, bool, str, type(None))
#: pairs of events of a GPU that may wait to be read
_WAITING = 4096


@dataclass
class Run:
    """What a program did with a kernel. seconds: of its launches together, by `clock`; share: of all kernels' seconds; calls: (grid, arguments,
    launches), the most frequent first; more: other arguments than those; tuning: launches while an autotuner measured, which count nowhere else;
    tried: other configurations that were only measured."""

    launches: int = 0
    seconds: float = 0.0
    clock: str = ""
    share: float = 0.0
    calls: list[tuple[tuple, str, int]] = field(default_factory=list)
    more: int = 0
    tuning: int = 0
    tried: int = 0
    #: integer arguments of the most frequent call, by name
    integers: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict:
        mine = {k: v for k, v in vars(self).items() if k != "integers"}  # the calls say them
        return {**mine, "calls": [{"grid": list(grid), "arguments": text, "launches": n} for grid, text, n in self.calls]}

    @property
    def words(self) -> str:
        """For people, in a line."""
        grid, text, _ = self.calls[0] if self.calls else ((), "", 0)
        others = len(self.calls) - 1 + self.more
        counted = f"{self.launches} launch{'es' * (self.launches != 1)}, {_time(self.seconds)}"
        return "".join((f"{counted} ({self.share:.0%} of the kernels' time, by {self.clock})", f"; grid {'x'.join(map(str, grid))}, {text}" if self.calls else "", f" and {others} other call{'s' * (others != 1)}" if others > 0 else "",
                        f"; autotuned: {self.tried} other configuration{'s were' if self.tried != 1 else ' was'} tried" if self.tried else ""))


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


class _Kernel:
    """What is known of a compiled kernel so far."""

    def __init__(self, compiled):
        self.compiled = compiled
        self.launches = self.tuning = 0
        self.seconds = 0.0
        self.calls: dict = {}
        self.events: list = []
        self.untimed = 0


class _Here(threading.local):
    """next: (kernel, grid, arguments) of the launch that comes; open: (kernel, when it began or its first event)."""

    next: tuple | None = None
    open: tuple | None = None
    tuning: int = 0


_here = _Here()
_lock = threading.Lock()
_kernels: dict[int, _Kernel] = {}
_where: list[Path] = []
_owner = 0


def start(wanted: str, compiler):
    """Record from now on, and write to `wanted`, file names joined by os.pathsep, when the program ends. compiler: the module
    triton.compiler.compiler."""
    global _owner
    if _owner:
        return
    _where[:] = [Path(p.replace("%p", str(os.getpid()))).resolve() for p in wanted.split(os.pathsep) if p]
    wrong = next((p for p in _where if p.suffix not in SUFFIXES), None)
    if wrong or not _where:
        print(f"triport: TRIPORT_ASM={wanted}: it takes the name of an .html, .json or .txt file; nothing is recorded", file=sys.stderr)
        return
    _owner = int(os.environ.setdefault("TRIPORT_ASM_OWNER", str(os.getpid())))
    if mark := _mark():
        mark.touch()
    from triton import knobs
    kernel = compiler.CompiledKernel
    kernel.launch_metadata = _noting(kernel.launch_metadata)
    knobs.runtime.launch_enter_hook.add(_enter)
    knobs.runtime.launch_exit_hook.add(_exit)
    atexit.register(finish)
    # a process that multiprocessing forks ends without atexit
    from multiprocessing import util
    util.register_after_fork(_here, lambda _: (_kernels.clear(), util.Finalize(None, finish, exitpriority=-100)))
    os.register_at_fork(after_in_child=_kernels.clear)


def _noting(launch_metadata):
    @functools.wraps(launch_metadata)
    def noted(self, grid, stream, *args):
        _here.next = self, grid, args
        return launch_metadata(self, grid, stream, *args)

    return noted


@functools.lru_cache(maxsize=None)
def _watch_tuning(module: str, owner: str, name: str) -> bool:
    """From now on launches within `module.owner.name` are an autotuner's; False where it is not loaded (asked again then)."""
    made = getattr(sys.modules[module], owner)
    measure = vars(made)[name]

    @functools.wraps(measure)
    def measured(*args, **kwargs):
        _here.tuning += 1
        try:
            return measure(*args, **kwargs)
        finally:
            _here.tuning -= 1

    setattr(made, name, measured)
    return True


_TUNERS = (("triton.runtime.autotuner", "Autotuner", "_bench"), ("torch._inductor.runtime.triton_heuristics", "CachingAutotuner", "bench"))


def _tuning() -> bool:
    """Does an autotuner measure? It is asked when a kernel is launched first, so that what is measured then is on the stack."""
    for tuner in _TUNERS:
        if tuner[0] in sys.modules and hasattr(sys.modules[tuner[0]], tuner[1]):
            _watch_tuning(*tuner)
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name in ("_bench", "bench") and any(frame.f_globals.get("__name__") == module for module, _, _ in _TUNERS):
            return True
        frame = frame.f_back
    return False


def _enter(metadata):
    try:
        if _here.next is None:
            return
        compiled, grid, args = _here.next
        _here.next = None
        with _lock:
            kernel = _kernels.get(id(compiled))
            if kernel is None:
                kernel = _kernels[id(compiled)] = _Kernel(compiled)
        if _here.tuning or not kernel.launches and _tuning():
            kernel.tuning += 1
            return
        with _lock:
            kernel.launches += 1
            _count(kernel, tuple(grid), args)
        if compiled.metadata.target.backend == "cpu":
            _here.open = kernel, None, time.perf_counter_ns()
        else:
            _here.open = kernel, *_event(metadata)
    except Exception as e:
        _failed(e)


def _exit(metadata):
    now = time.perf_counter_ns()
    opened, _here.open = _here.open, None
    if opened is None:
        return
    try:
        kernel, event, begin = opened
        with _lock:
            if event is not None:
                kernel.events.append((begin, event(), kernel))
                if len(kernel.events) > _WAITING:
                    _read(kernel)
            elif begin is None:
                kernel.untimed += 1
            else:
                kernel.seconds += (now - begin) / 1e9
    except Exception as e:
        _failed(e)


def _event(metadata):
    """(a function that records an event on the launch's stream, the first such event); (None, None) where a graph is recorded, whose launches have no
    time of their own."""
    import torch
    if torch.cuda.is_current_stream_capturing():
        return None, None
    stream = torch.cuda.ExternalStream((metadata.get() if metadata is not None else {}).get("stream") or 0)

    def record():
        e = torch.cuda.Event(enable_timing=True)
        e.record(stream)
        return e

    return record, record()


def _read(kernel: _Kernel):
    """Take the times of a GPU's events, which have to have come to pass."""
    for begin, end, _ in kernel.events:
        end.synchronize()
        kernel.seconds += begin.elapsed_time(end) / 1e3
    kernel.events.clear()


def _count(kernel: _Kernel, grid: tuple, args):
    key = (grid, *[(a.dtype, tuple(a.shape)) if hasattr(a, "data_ptr") and hasattr(a, "shape") else a if isinstance(a, _PLAIN) else type(a) for a in args])
    found = kernel.calls.get(key)
    if found is None:
        if len(kernel.calls) >= 64:
            key, text, integers = "more", "", {}
        else:
            text = _text(kernel.compiled, args)
            integers = {name: a for name, a in _named(kernel.compiled, args) if type(a) is int}
        found = kernel.calls.setdefault(key, [grid, text, 0, integers])
    found[2] += 1


def _named(compiled, args) -> list[tuple[str, object]]:
    """(name, argument) of a launch."""
    fn = getattr(compiled.src, "fn", None)
    names = list(getattr(fn, "arg_names", ()))
    fixed = {p.name for p in getattr(fn, "params", ()) if p.is_constexpr}
    if len(args) != len(names):  # a launcher that leaves constants out
        names = [n for n in names if n not in fixed]
    return list(zip(names, args))


def _text(compiled, args) -> str:
    """Arguments for people: x_ptr=fp32[4096], n=4096, BLOCK=1024."""
    names = [name for name, _ in _named(compiled, args)]
    constants = {names[path[0]] if path and path[0] < len(names) else "": v for path, v in (getattr(compiled.src, "constants", None) or {}).items()}
    out = []
    for name, a in zip(names, args):
        if hasattr(a, "shape") and hasattr(a, "dtype"):
            dtype = str(a.dtype).removeprefix("torch.").replace("bfloat", "bf").replace("float", "fp").replace("int", "i")
            text = f"{dtype}[{'x'.join(map(str, a.shape))}]"
        elif isinstance(a, _PLAIN):
            text = f"{a:.6g}" if isinstance(a, float) else str(a)
        else:
            text = str(constants.get(name, type(a).__name__))
        out.append(f"{name}={text}")
    return ", ".join(out)


def _failed(e: Exception):
    if os.environ.get("TRIPORT_ASM_DEBUG"):
        raise e
    print(f"triport: TRIPORT_ASM: a launch was not recorded: {type(e).__name__}: {e}", file=sys.stderr)


# --- the end -------------------------------------------------------------------------------------------------------------


def recorded() -> list[tuple]:
    """[(kernel object, `Run`)] of what was launched for the program itself, the longest time first."""
    from .code import name_of
    kernels = [k for k in _kernels.values() if k.launches]
    for k in kernels:
        _read(k)
    total = sum(k.seconds for k in kernels) or 1.0
    out = []
    for k in sorted(kernels, key=lambda k: -k.seconds):
        mine = name_of(k.compiled)
        tried = sum(1 for o in _kernels.values() if o.tuning and not o.launches and name_of(o.compiled) == mine)
        known = sorted((c for c in k.calls.values() if c[1]), key=lambda c: -c[2])
        calls = [(grid, text, n) for grid, text, n, _ in known]
        clock = "wall clock of each launch" if k.compiled.metadata.target.backend == "cpu" else "events before and after each launch"
        if k.untimed:
            clock += f", {k.untimed} in graphs not timed"
        run = Run(k.launches, k.seconds, clock, k.seconds / total, calls[:KEPT], len(k.calls) - len(calls[:KEPT]), k.tuning, tried, known[0][3] if known else {})
        out.append((k.compiled, run))
    return out


def codes() -> list[tuple]:
    """[(`Code`, `Run`)], the same. A kernel that cannot be read is left out and said."""
    from ...backends.base import Error
    from .code import of_compiled
    out = []
    for compiled, run in recorded():
        try:
            code = of_compiled(compiled)
        except Error as e:
            print(f"triport: TRIPORT_ASM: {e}", file=sys.stderr)
            continue
        _typed(code, compiled.src)
        code.values = run.integers
        code.remark = "; ".join(filter(None, (code.remark, run.words)))
        out.append((code, run))
    return out


def _typed(code, src):
    """What a kernel's source says of its arguments: are there fp64 ones, which are not known divisible by 16?"""
    attrs = getattr(src, "attrs", None) or {}
    fixed = {path[0] for path in getattr(src, "constants", None) or {} if len(path) == 1}
    signature = [(n, str(name), str(ty)) for n, (name, ty) in enumerate((getattr(src, "signature", None) or {}).items()) if n not in fixed]
    code.f64 = any(ty in ("fp64", "*fp64") for _, _, ty in signature)
    code.unaligned = tuple(name for n, name, ty in signature if (ty.startswith("*") or ty in ("i32", "i64"))
                           and ["tt.divisibility", 16] not in [list(a) for a in attrs.get((n,), ())])


def _mark() -> Path | None:
    """What `asm --run` has its process lay down and take away at its end: a signal, or os._exit, leaves it."""
    return Path(os.environ["TRIPORT_ASM_MARK"]) if "TRIPORT_ASM_MARK" in os.environ and os.getpid() == _owner else None


def finish():
    """Write what was asked for. Once; nothing where this process launched no kernel."""
    if mark := _mark():
        mark.unlink(missing_ok=True)
    if not any(k.launches for k in _kernels.values()):
        return
    to = [_own(path) for path in _where]
    if getattr(sys, "last_type", None) is not KeyboardInterrupt:
        _write(to)
        return
    # Python forgets that Ctrl-C ends it, and has another exit code, where code is made of text (exec) meanwhile, as in what is imported now
    kept = dict(_kernels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads that a forked child has not
        child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        _kernels.update(kept)
        _write(to)
    finally:
        os._exit(0)


def _write(to: list[Path]):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = codes()
            _kernels.clear()
            from . import running
            for path in to:
                if path.suffix == ".pickle":
                    with path.open("wb") as f:
                        pickle.dump(found, f)
                else:
                    running.write(running.reports(found), path)
    except Exception as e:
        with contextlib.suppress(Exception):
            from ...backends.base import Error
            print(f"triport: TRIPORT_ASM: no report was written: {e if isinstance(e, Error) else f'{type(e).__name__}: {e}'}", file=sys.stderr)


def _own(path: Path) -> Path:
    """The file of this process: the first one's is the one that was named, others' have the rank or process id before the suffix."""
    rank = os.environ.get("RANK", "0")
    if os.getpid() == _owner and rank in ("", "0"):
        return path
    mark = f"rank{rank}" if rank not in ("", "0") and rank.isdigit() else str(os.getpid())
    return path.with_name(f"{path.stem}.{mark}{path.suffix}")
