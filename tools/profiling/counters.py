"""Hardware counters of kernels: Linux's perf_event where it lets us, else instructions counted by valgrind, else the reason why not.

perf_event_open(2): each thread of the process has its counters, read before and after every launch.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import re
import shutil
import struct
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

#: name -> (type, config) of linux/perf_event.h
EVENTS = {"cycles": (0, 0), "instructions": (0, 1), "cache references": (0, 2), "cache misses": (0, 3)}
_CALL = {"x86_64": 298, "aarch64": 241, "riscv64": 241}
_LINE = 64  # bytes that a cache miss brings
#: seconds that valgrind may take for one run: it is some fifty times slower than the machine
_PATIENCE = 30


class Denied(Exception):
    """Why there are no counters, in words."""


def _open(event: tuple[int, int], thread: int) -> int:
    number = _CALL.get(platform.machine())
    if number is None:
        raise Denied(f"no perf_event on {platform.machine()} that is known here")
    attr = bytearray(120)  # PERF_ATTR_SIZE_VER6 is 120
    struct.pack_into("<IIQ", attr, 0, event[0], 120, event[1])
    struct.pack_into("<Q", attr, 32, 3)  # read_format: total time enabled, and running
    struct.pack_into("<Q", attr, 40, 1 << 5 | 1 << 6)  # exclude_kernel, exclude_hv
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(number, (ctypes.c_char * 120).from_buffer(attr), thread, -1, -1, 8)  # PERF_FLAG_FD_CLOEXEC
    if fd < 0:
        code = ctypes.get_errno()
        if code == errno.ESRCH:
            raise ProcessLookupError
        if code in (errno.EACCES, errno.EPERM):
            with contextlib.suppress(OSError):
                level = Path("/proc/sys/kernel/perf_event_paranoid").read_text().strip()
                raise Denied(f"this user may not read them (kernel.perf_event_paranoid is {level}; 2 or less would do, or CAP_PERFMON)")
            raise Denied("this user may not read them (perf_event_open is forbidden, as in most containers)")
        if code in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
            raise Denied("this machine shows none, as most virtual machines")
        raise Denied(f"perf_event_open: {os.strerror(code)}")
    return fd


class Counters:
    """A context with counters of all threads of this process. Raises `Denied`. `read()`: name -> count so far, scaled where the kernel took turns."""

    def __enter__(self):
        self._fds: dict[str, list[int]] = defaultdict(list)
        try:
            for thread in map(int, os.listdir("/proc/self/task")):
                for name, event in EVENTS.items():
                    try:
                        self._fds[name].append(_open(event, thread))
                    except Denied:
                        if name in ("cycles", "instructions"):
                            raise
                    except ProcessLookupError:
                        break
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc):
        for fd in (fd for fds in self._fds.values() for fd in fds):
            os.close(fd)
        self._fds.clear()

    def read(self) -> dict[str, float]:
        out = {}
        for name, fds in self._fds.items():
            total = 0.0
            for fd in fds:
                count, enabled, running = struct.unpack("<3Q", os.read(fd, 24))
                total += count * enabled / running if running else 0.0
            out[name] = total
        return out


def by_kernel(step, times: int) -> dict[str, dict[str, float]]:
    """Kernel -> {"launches", "seconds", counters, "IPC", "GB/s from memory"} of `times` calls of a step. Raises `Denied`."""
    import time

    import torch

    from ...backends.cpu.run import launch

    found: dict = defaultdict(lambda: defaultdict(float))
    with Counters() as counters:
        pool = launch.pool()

        def counted(kernel, grid, tensors, packed):
            before, start = counters.read(), time.perf_counter()
            status = pool.call(packed)
            seconds, after = time.perf_counter() - start, counters.read()
            at = found[kernel["name"]]
            at["launches"] += 1
            at["seconds"] += seconds
            for name in after:
                at[name] += after[name] - before[name]
            return status

        before, launch.tracer = launch.tracer, counted
        try:
            from ...bench.memory import quiet
            with quiet(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
                for _ in range(times):
                    step()
        finally:
            launch.tracer = before
    for at in found.values():
        if at.get("cycles"):
            at["IPC"] = at["instructions"] / at["cycles"]
        if "cache misses" in at and at["seconds"]:
            at["GB/s from memory"] = at["cache misses"] * _LINE / at["seconds"] / 1e9
    return {k: dict(v) for k, v in found.items()}


def by_valgrind(op, case, dtype: str) -> dict[str, float]:
    """{"instructions"} of one call of an op's exported function (`ops.Op`, `Case`, dtype's name) on one thread, counted by callgrind: compiled for x86-64-v3, as valgrind knows no
    AVX-512. Raises `Denied`, or `Error` where the op cannot be exported."""
    from ...backends.cpu.llvm import targets
    from ...backends.spine import bundle
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise Denied("valgrind, which would count instructions, is not installed")
    native = targets.native()
    row = targets.get("x86-64-v3" if native.triple.startswith("x86_64") else native.name)
    one = min(os.sched_getaffinity(0))
    counts = []
    with tempfile.TemporaryDirectory(prefix="triport-count-") as folder:
        for calls in (1, 3):  # what else the program does, reading its inputs and comparing, is the same in both
            made = bundle.make([(op, case, dtype)], row, "counted", repetitions=calls)
            path, out = Path(folder) / f"b{calls}", Path(folder) / f"out{calls}"
            made.write(path)
            files = [str(path / c["file"]) for c in made.manifest["cases"]]
            try:
                done = subprocess.run([valgrind, "--tool=callgrind", f"--callgrind-out-file={out}", str(path / made.manifest["program"]), *files],
                                      capture_output=True, text=True, timeout=_PATIENCE, preexec_fn=lambda: os.sched_setaffinity(0, {one}))  # one thread: none waits
            except subprocess.TimeoutExpired:
                raise Denied(f"valgrind had not counted them after {_PATIENCE} s; take a smaller --case") from None
            total = re.search(r"^(?:totals|summary): (\d+)", out.read_text(), re.M) if out.exists() else None
            if done.returncode or not total:
                raise Denied(f"valgrind did not run it: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
            counts.append(int(total[1]))
    return {"instructions": (counts[1] - counts[0]) / 2}
