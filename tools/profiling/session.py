"""Runs of a target under the profilers, and the files that they leave.

A step (an op's call, a function, a model's step) is run several times over, so that each profiler sees it alone: once for the first, compiling call;
under torch.profiler with the CPU backend's trace; under cProfile; sampled; then timed with no profiler. A script is run once, under all of them.
"""

from __future__ import annotations

import contextlib
import cProfile
import io
import os
import pstats
import runpy
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.profiler import record_function

from ...backends.base import Error
from ...backends.cpu.run.trace import Trace
from ...bench import clock, load, noise, results, roofline
from ...bench.memory import quiet
from . import counters, flame, ncu, texts, timeline
from .target import Target

#: events of torch's that a table is made of
LARGEST = 3_000_000
#: turns of a step that are timed with no profiler on
ROUNDS = 7


@dataclass
class Profile:
    """What was found out. Times in seconds; wall, cpu: of each step timed with no profiler on; noisy: why the median of these is not to be trusted, unsteady: why it may be
    another in another run (`bench.clock.Samples`); error, allowed: of an op against float64;
    steady: number of the trace's first launch in a
    steady step; counted: counters by kernel, or `uncounted` says why there are none; files: name -> what it is, in the folder."""

    target: Target
    first_s: float = 0.0
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    noisy: str | None = None
    unsteady: str | None = None
    error: float | None = None
    allowed: float | None = None
    limits: dict = field(default_factory=dict)
    trace: Trace | None = None
    steady: int = 0
    kernels: list = field(default_factory=list)
    table: str = ""
    counted: dict = field(default_factory=dict)
    uncounted: str = ""
    remarks: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    code: int = 0


def _limits(profile: Profile, measure: bool):
    if measure:
        profile.limits = {device: roofline.measure(device, None) for device in {"cpu", profile.target.device}}


def _checked(profile: Profile):
    """Compare an op's result with its float64 reference; `Error` where it is wrong: a wrong result is not worth a profile."""
    from ...ops.records import DTYPES

    t = profile.target
    profile.error, profile.allowed = t.error(), t.op.allowed(DTYPES[t.dtype])
    if not profile.error <= profile.allowed:
        raise Error(f"{t.title} by {t.backend} is wrong: error {profile.error:.2e}, allowed {profile.allowed:.1e}; nothing was profiled")


def _profiled(path: Path, run) -> torch.profiler.profile:
    """`run()` under torch.profiler, which has then ended and written its trace to `path`."""
    profiler = torch.profiler.profile(record_shapes=True)
    with quiet():
        profiler.__enter__()
    taken = False
    try:
        run()
    finally:
        taken = not torch.autograd.profiler._is_profiler_enabled
        if not taken:
            with quiet():
                profiler.__exit__(None, None, None)
    if taken:  # there is one for a process, and ending it again would end the process
        raise Error("what is profiled uses torch.profiler itself, which takes it from `triport profile`; profile it without, or read its own trace")
    profiler.export_chrome_trace(str(path))
    return profiler


def steps(target: Target, folder: Path, count: int = 0, count_hardware: bool = True, measure: bool = True,
          found_by: tuple[list[str], dict] = ([], {})) -> Profile:
    """Profile a step and write the files into `folder`. count: steps under the profiler (0: as many as fill a third of a second, 3 to 50);
    found_by: the words and options that another process would find the target by."""
    profile, watch = Profile(target), load.Watch()
    _limits(profile, measure)
    folder.mkdir(parents=True, exist_ok=True)

    def first_call():
        with record_function("first call"):
            profile.first_s = _timed(target)[0]

    def steady_steps():
        for _ in range(count):
            with record_function("step"):
                target.step()
                target.synchronize()

    with tempfile.TemporaryDirectory(prefix="triport-profile-") as scratch:
        parts = [Path(scratch) / "first.json", Path(scratch) / "steady.json"]
        with Trace() as profile.trace:
            first = _profiled(parts[0], first_call)
            if target.op:
                _checked(profile)
            once = min(_timed(target)[0] for _ in range(2))
            count = count or max(3, min(50, round(0.3 / max(once, 1e-6))))
            profile.steady = len(profile.trace.launches)
            steady = _profiled(parts[1], steady_steps)
        profile.kernels = timeline.kernels(profile.trace, _copy(profile), profile.steady)
        _write_trace(profile, folder, parts, count)
    profile.table = _table(steady, target.device)
    _write(profile, folder, "table.txt", f"First call\n\n{_table(first, target.device)}\n\n{count} steady steps\n\n{profile.table}\n",
           "torch.profiler's tables: the first call's, and the steady steps'")
    _python(profile, folder, once)
    _busy(profile, watch)
    _count(profile, count_hardware, count, found_by)
    return profile


def times(profiles: list[Profile]):
    """Time the steps of some profiles in turns, with no profiler on: what else the machine does meets all of them alike."""
    watch = load.Watch()
    samples = clock.interleave({str(n): (p.target.step, p.target.synchronize) for n, p in enumerate(profiles)}, rounds=ROUNDS)
    busy = watch.busy(wait=True)  # also where seven short turns are too little to know
    for profile, s in zip(profiles, samples.values()):
        profile.wall, profile.cpu, profile.unsteady = s.wall, s.cpu, s.unsteady
        profile.noisy = noise.why(s.wall, s.busy or busy)


def _busy(profile: Profile, watch: load.Watch):
    """Remark what others did to the machine while `watch` looked."""
    if busy := watch.busy():
        profile.remarks.append(f"The machine was busy while this was profiled: {busy}; the times of kernels and threads are not to be relied on")


def _table(profiler, device: str = "cpu") -> str:
    return profiler.key_averages().table(sort_by="self_cuda_time_total" if device == "cuda" else "self_cpu_time_total", row_limit=60, max_name_column_width=70)


def _timed(target: Target) -> tuple[float, float]:
    return clock.once(target.step, target.synchronize)


def _copy(profile: Profile) -> float:
    return profile.limits.get("cpu", {}).get("bytes_per_s", 0.0)


def _write(profile: Profile, folder: Path, name: str, text: str, what: str):
    texts.write(folder / name, text)
    profile.files[name] = what


def _write_trace(profile: Profile, folder: Path, traces: list[Path], count: int):
    t = profile.target
    per_step = (len(profile.trace.launches) - profile.steady) / max(count, 1)
    limits = profile.limits.get(t.device, {})

    def step(launch) -> dict:
        """An op's bytes and FLOPs are its kernel's where it launches one."""
        if not t.op or per_step != 1 or not limits:
            return {}
        seconds = max(launch.end - launch.start, 1) * 1e-9
        of = limits, t.nbytes, t.flops, t.dtype
        share = results.least_time(*of) / seconds
        return {"bytes": t.nbytes, "FLOPs": t.flops, "% of this machine's roof": round(100 * share, 2)} | ({"above the roof": results.above_roof(*of)} if share > 1 else {})

    remark = timeline.join(traces, profile.trace, folder / "trace.json", _copy(profile), step)
    profile.files["trace.json"] = "chrome trace: open it in Perfetto (ui.perfetto.dev) or chrome://tracing"
    if remark:
        profile.remarks.append(remark)
    if profile.trace.dropped:
        profile.remarks.append(f"{profile.trace.dropped} chunks of programs came after the trace's {profile.trace.capacity} and are not in it; profile less")


def _python(profile: Profile, folder: Path, once: float):
    """cProfile's file, and stacks sampled, of runs of their own."""
    target = profile.target
    deterministic = cProfile.Profile()
    until = time.perf_counter() + max(0.2, 3 * once)
    deterministic.enable()
    try:
        while time.perf_counter() < until:
            target.step()
    finally:
        deterministic.disable()
    target.synchronize()
    _save_cprofile(profile, folder, deterministic)
    sampler = flame.Sampler()
    until = time.perf_counter() + max(0.6, 3 * once)

    def profiled_steps():
        while time.perf_counter() < until:
            target.step()
        target.synchronize()

    with sampler:
        profiled_steps()
    _save_flame(profile, folder, flame.trimmed(sampler.stacks, "profiled_steps"))


def _save_cprofile(profile: Profile, folder: Path, run: cProfile.Profile):
    out = io.StringIO()
    run.create_stats()
    run.dump_stats(folder / "cprofile.prof")
    profile.files["cprofile.prof"] = "cProfile: python -m pstats, snakeviz and the like read it"
    if run.stats:
        pstats.Stats(run, stream=out).sort_stats("tottime").print_stats(25)
    _write(profile, folder, "cprofile.txt", out.getvalue() or "nothing was called\n", "its 25 functions with the most time of their own")


def _save_flame(profile: Profile, folder: Path, stacks: Counter):
    _write(profile, folder, "flame.svg", flame.svg(stacks, profile.target.title), "flame graph of sampled Python stacks: click to zoom, search at the top right")
    _write(profile, folder, "stacks.txt", flame.folded(stacks), "the same as folded stacks, for speedscope.app and others")


def _count(profile: Profile, wanted: bool, times: int, found_by):
    """Counters of kernels: on a GPU by ncu, on this CPU by perf_event or valgrind; or why not."""
    if not wanted:
        profile.uncounted = "--no-counters"
        return
    t = profile.target
    if t.device == "cuda":
        try:
            profile.counted = ncu.by_kernel(*found_by, t.backend)
        except counters.Denied as e:
            profile.uncounted = str(e)
        return
    try:
        profile.counted = counters.by_kernel(t.step, times)
        return
    except counters.Denied as e:
        profile.uncounted = f"no hardware counters: {e}"
    if not t.op or t.backend != "triton-cpu":
        profile.uncounted += "; instructions can be counted by valgrind for ops by triton-cpu"
        return
    try:
        profile.counted = {"a call on one thread, compiled for x86-64-v3, by valgrind": counters.by_valgrind(t.op, t.case, t.dtype)}
    except (counters.Denied, Error) as e:
        profile.uncounted += f"; nor instructions by valgrind: {e}"


def script(target: Target, folder: Path, measure: bool = True) -> Profile:
    """Run a script as `python script.py arguments` would, once, under all profilers. Whatever was seen is written, however it ends; `code` is its
    exit code."""
    profile, watch, folder = Profile(target), load.Watch(), folder.absolute()  # the script may go elsewhere
    _limits(profile, measure)
    folder.mkdir(parents=True, exist_ok=True)
    deterministic, sampler = cProfile.Profile(), flame.Sampler(0.002)

    def run():
        cpu, wall = time.process_time(), time.perf_counter()
        with sampler:
            deterministic.enable()
            try:
                profile.code = run_script(target.argv)
            finally:
                deterministic.disable()
                profile.wall, profile.cpu = [time.perf_counter() - wall], [time.process_time() - cpu]

    with tempfile.TemporaryDirectory(prefix="triport-profile-") as scratch:
        part = Path(scratch) / "all.json"
        with Trace() as profile.trace:
            profiler = _profiled(part, run)
        profile.kernels = timeline.kernels(profile.trace, _copy(profile))
        _write_trace(profile, folder, [part], 1)
    if len(profiler.events()) > LARGEST:
        profile.remarks.append(f"torch.profiler saw more than {LARGEST} events: it was not asked for a table")
    else:
        profile.table = _table(profiler)
    _write(profile, folder, "table.txt", f"{profile.table}\n", "torch.profiler's table of the whole run")
    _save_cprofile(profile, folder, deterministic)
    _save_flame(profile, folder, flame.trimmed(sampler.stacks, "run_path"))
    _busy(profile, watch)
    profile.uncounted = "counters need a step that can be repeated: an op, FILE.py:FUNCTION or a model"
    return profile


def run_script(argv: tuple[str, ...]) -> int:
    """The exit code of a script that is run here; an exception of its is printed, as Python would."""
    before, path = sys.argv, list(sys.path)
    sys.argv, sys.path[:] = list(argv), [str(Path(argv[0]).resolve().parent), *path]
    try:
        runpy.run_path(argv[0], run_name="__main__")
        return 0
    except SystemExit as e:
        if e.code is None or isinstance(e.code, int):
            return e.code or 0
        print(e.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BaseException as e:
        shown = e.__traceback__
        while shown is not None and os.path.dirname(shown.tb_frame.f_code.co_filename) != os.path.dirname(os.path.abspath(argv[0])) and \
                shown.tb_frame.f_code.co_filename != argv[0]:
            shown = shown.tb_next
        traceback.print_exception(type(e), e, shown or e.__traceback__)
        return 1
    finally:
        sys.argv, sys.path[:] = before, path
        with contextlib.suppress(OSError, ValueError):  # the script may have closed it
            sys.stdout.flush()
