"""Proton, Triton's profiler, for launches on the CPU: `proton.start()` with our driver active.

libproton profiles GPUs through their vendors' libraries and takes no profiler from a plugin. What it keeps needs no device, though: scopes,
contexts, states, metrics, and the files that proton-viewer reads. So a session on the CPU is one of libproton's, begun with the profiler that does
nothing until a kernel is instrumented, and a launch hook adds to it what CUPTI would: each launch as an op with its time and count. What Proton does
for such a session beyond that is its own code, unchanged. Sessions for a GPU never come here but to be told apart.

That profiler of libproton's has one open op for all threads: whoever measures anything gives it to the op that was opened last. So an op on the CPU is
opened, measured and closed in one go when its launch has ended, and nobody else measures meanwhile.
"""

from __future__ import annotations

import functools
import json
import threading
import time

from ...base import Error
from ..run.loaded import Function
from .launcher import make_launcher

#: the backend's name in `proton.start(backend=...)`, which may be left out
NAME = "cpu"
#: libproton's profiler that needs no device and records nothing by itself, and the device it is told
_IDLE = ("instrumentation", "cuda")
#: the metrics of a launch, by the names that CUPTI's have
TIME, COUNT = "time (ns)", "count"


def on_cpu() -> bool:
    """Is our driver Triton's active one in this thread?"""
    from triton.runtime import driver

    try:
        return getattr(getattr(driver.active, "launcher_cls", None), "func", None) is make_launcher
    except RuntimeError:  # no driver is active: Triton's own message says so
        return False


def mend(module):
    """Make one of `triton.profiler`'s modules, which was just imported, take sessions on the CPU."""
    if module.__name__ in ("triton.profiler.scope", "triton.profiler.hooks.launch"):
        module.libproton = _ops()
    elif module.__name__ == "triton.profiler.metric":
        if hasattr(module, "set_metric_kernels"):  # from Triton 3.7
            module.set_metric_kernels = _where_needed(module.set_metric_kernels)
            module.transform_tensor_metrics = _read(module.transform_tensor_metrics)
    else:
        module._select_backend = _selected(module._select_backend)
        module._check_env = _checked(module._check_env)
        module.libproton = _Sessions(module.libproton)


def _where_needed(set_metric_kernels):
    @functools.wraps(set_metric_kernels)
    def unless_cpu():
        """The kernels that copy metrics from a GPU's tensors; those of CPU tensors are read."""
        if not on_cpu():
            set_metric_kernels()

    return unless_cpu


def _read(transform_tensor_metrics):
    @functools.wraps(transform_tensor_metrics)
    def transformed(metrics):
        """With tensors on the CPU as what they hold: libproton would cut a fraction off."""
        if on_cpu():
            metrics = {k: v.tolist() if getattr(v, "is_cpu", False) else v for k, v in metrics.items()}
        return transform_tensor_metrics(metrics)

    return transformed


def _selected(select_backend):
    @functools.wraps(select_backend)
    def selected():
        return NAME if on_cpu() else select_backend()

    return selected


def _checked(check_env):
    @functools.wraps(check_env)
    def checked(backend):
        cpu = on_cpu()
        if cpu and backend != NAME:
            raise Error(f"proton: backend {backend!r} records {'inside kernels for' if backend == 'instrumentation' else 'launches on'} a GPU, and "
                        f"Triton's active driver is the CPU's; leave `backend` out, or give {NAME!r}, for the time of each launch on the CPU")
        if backend == NAME and not cpu:
            raise Error(f"proton: backend {NAME!r} records launches on the CPU, and Triton's active driver is another; leave `backend` out, or set "
                        "TRITON_DEFAULT_BACKEND=cpu before Triton is imported")
        if not cpu:
            check_env(backend)

    return checked


class _Sessions:
    """libproton as `triton.profiler.profile` sees it: it starts and ends sessions on the CPU, too."""

    def __init__(self, lib):
        self._lib = lib
        self._paths = {}  # session on the CPU -> where it will write

    def __getattr__(self, name):
        return getattr(self._lib, name)

    def start(self, path, context, data, profiler, mode="", *more):
        if profiler != NAME:
            return self._lib.start(path, context, data, profiler, mode, *more)
        if mode:
            raise Error(f"proton: mode {mode!r} is of a GPU's profiler; a session on the CPU takes none. For samples inside kernels use perf "
                        "(TRIPORT_PERF_MAP=1 perf record ...)")
        if data != "tree":
            raise Error(f"proton: data={data!r} needs launches timed by a GPU's profiler; a session on the CPU takes data='tree'. torch.profiler "
                        "writes a trace in which each launch on the CPU is an event")
        session = self._lib.start(path, context, data, *_IDLE)
        from triton.profiler.hooks import HookManager
        HookManager.register(_timer(), session)
        self._paths[session] = path
        return session

    def finalize(self, session, output_format=""):
        self._lib.finalize(session, output_format)
        self._sum_up([session], output_format)

    def finalize_all(self, output_format=""):
        self._lib.finalize_all(output_format)
        self._sum_up(list(self._paths), output_format)

    def _sum_up(self, sessions, output_format):
        """Have viewers add time and count up the tree: hatchet does so with what the root has, and libproton gives it what a GPU's profiler
        measured."""
        for path in [self._paths.pop(s) for s in sessions if s in self._paths]:
            if output_format in ("", None, "hatchet"):
                with open(f"{path}.hatchet", "r+") as f:
                    tree = json.load(f)
                    tree[0]["metrics"] = {TIME: 0, COUNT: 0, **tree[0]["metrics"]}
                    f.seek(0)
                    f.truncate()
                    json.dump(tree, f, indent=1)


class _Ops:
    """libproton as those see it who open ops and measure: an op on the CPU is noted, and handed on when it ends."""

    def __init__(self, lib):
        self._lib = lib
        self._measuring = threading.Lock()
        self._thread = threading.local()  # .op: (id, name, what was measured of it: arguments of add_metrics) of the launch that runs now

    def __getattr__(self, name):
        return getattr(self._lib, name)

    def enter_op(self, op, name):
        if on_cpu():
            self.begin(op, name)
        else:
            self._lib.enter_op(op, name)

    def begin(self, op, name):
        self._thread.op = (op, name, [])

    def add_metrics(self, op, *metrics):
        noted = getattr(self._thread, "op", None)
        if noted is not None and noted[0] == op:
            noted[2].append(metrics)
        else:
            with self._measuring:
                self._lib.add_metrics(op, *metrics)

    def exit_op(self, op, name):
        noted = getattr(self._thread, "op", None)
        if noted is None or noted[0] != op:
            self._lib.exit_op(op, name)
            return
        self._thread.op = None
        with self._measuring:
            self._lib.enter_op(op, noted[1])
            for metrics in noted[2]:
                self._lib.add_metrics(op, *metrics)
            self._lib.exit_op(op, noted[1])


@functools.lru_cache(maxsize=1)
def _ops() -> _Ops:
    from triton._C.libproton import proton as lib

    return _Ops(lib)


@functools.lru_cache(maxsize=1)
def _timer():
    """The hook that all sessions on the CPU share."""
    from triton import knobs
    from triton.profiler.hooks import HookManager, hook, launch

    ops = _ops()
    opened = threading.local()  # .op: (id, name or None where Proton's own hook opened the op, start) of the launch that runs now

    def of_launch_hook():
        """The op that Proton's own hook (hook="triton") opened for this launch, by the name that its metadata gives; None without one."""
        if hasattr(launch, "enabled"):
            return launch.id.get() if launch.enabled.get() else None
        return launch.id.get() if any(isinstance(h, launch.LaunchHook) for h in HookManager.active_hooks) else None  # Triton 3.6

    class Timer(hook.Hook):
        priority = -100  # last before the launch, first after it

        def init_handle(self, module, function, name, metadata_group, hash):
            pass

        def enter(self, metadata):
            launched = metadata.data if metadata is not None else {}
            if not isinstance(launched.get("function"), Function):
                return  # a launch on a GPU
            op, name = of_launch_hook(), None
            if op is None:
                op, name = ops.record_scope(), launched["name"]
                ops.begin(op, name)
            opened.op = (op, name, time.perf_counter_ns())

        def exit(self, metadata):
            end = time.perf_counter_ns()
            op = getattr(opened, "op", None)
            if op is None:
                return  # it began before the session
            opened.op = None
            ops.add_metrics(op[0], {TIME: end - op[2], COUNT: 1})
            if op[1] is not None:
                ops.exit_op(*op[:2])

        def activate(self):
            knobs.runtime.launch_enter_hook.add(HookManager.enter)
            knobs.runtime.launch_exit_hook.add(HookManager.exit)

        def deactivate(self):
            """Proton leaves its hooks in until a session ends. Where all sessions are ours and none is active they go, so that ops are replayed."""
            sessions = HookManager.session_hooks.values()
            if all(self in hooks and not any(hooks.values()) for hooks in sessions):
                knobs.runtime.launch_enter_hook.remove(HookManager.enter)
                knobs.runtime.launch_exit_hook.remove(HookManager.exit)

    return Timer()
