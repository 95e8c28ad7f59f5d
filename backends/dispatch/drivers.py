"""Which Triton driver is active: the GPU's, or ours for CPU tensors. Triton has one for the process; here each thread may have its own."""

from __future__ import annotations

import contextlib
import threading

_switch = threading.Lock()
_thread = threading.local()  # .driver: what serves this thread instead of the process's driver


class PerThread:
    """Triton's active driver, where threads launch on several devices at once: the one that was active, and in a thread that
    needs another for a while, that one."""

    def __init__(self, base):
        self._base = base

    def __getattr__(self, name):
        return getattr(self._now(), name)

    def _now(self):
        return getattr(_thread, "driver", None) or self.base

    @property
    def base(self):
        import triton
        return self._base or triton.runtime.driver.default

    def get_benchmarker(self):
        """Triton's autotuner keeps what it is given here: it times with the driver of whoever launches then."""
        def benchmark(*args, **kwargs):
            return self._now().get_benchmarker()(*args, **kwargs)

        return benchmark

    @property
    def utils(self):
        return Utils(self, getattr(self._now(), "utils", None))


class Utils:
    """A driver's utils; a kernel that goes, in whatever thread, is unloaded by who loaded it."""

    def __init__(self, driver: PerThread, utils):
        self._driver, self._utils = driver, utils

    def __getattr__(self, name):
        return getattr(self._utils, name)

    def unload_module(self, module):
        from ..cpu.run.loaded import Function
        if not isinstance(module, Function):  # ours goes when nobody holds it
            self._driver.base.utils.unload_module(module)


class ChoicesByDevice(dict):
    """What an autotuner chose (`Autotuner.cache`), for each kind of device apart: Triton's key has sizes and dtypes alone."""

    def __contains__(self, key):
        return super().__contains__(_with_device(key))

    def __getitem__(self, key):
        return super().__getitem__(_with_device(key))

    def __setitem__(self, key, value):
        super().__setitem__(_with_device(key), value)


def _with_device(key) -> tuple:
    import triton
    return triton.runtime.driver.active.get_current_target().backend, key


def is_current(device_type: str) -> bool:
    """Does Triton's active driver serve tensors on `device_type` in this thread?"""
    import triton

    try:
        target = triton.runtime.driver.active.get_current_target()
    except RuntimeError:  # no driver is active, and none would be by itself
        return False
    return (target.backend == "cpu") == (device_type != "cuda")


def serving(device_type: str):
    """A context in which Triton's active driver serves `device_type` in this thread; nothing changes where it does already."""
    return contextlib.nullcontext() if is_current(device_type) else switched(device_type)


def switched(device_type: str):
    """Within it Triton's active driver serves `device_type` in this thread."""
    import triton

    return driven_by(triton.runtime.driver.default if device_type == "cuda" else cpu_driver())


@contextlib.contextmanager
def driven_by(driver):
    """Within it `driver` is Triton's active one in this thread."""
    import triton

    config = triton.runtime.driver
    with _switch:
        if not isinstance(config._active, PerThread):
            config.set_active(PerThread(config._active))
    before = getattr(_thread, "driver", None)
    _thread.driver = driver
    try:
        yield
    finally:
        _thread.driver = before


class Offline:
    """Stands in for Triton's active driver while code is made for a target that need not be here; nothing can be launched."""

    def __init__(self, target):
        self.target = target

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return f"offline {self.target}"  # Triton keeps compiled kernels by device

    def get_current_stream(self, device=None):
        return 0

    def get_active_torch_device(self):
        import torch
        return torch.device("cpu")


def compiling_for(target):
    """Within it this thread compiles kernels for `target`, a Triton GPUTarget, and does not launch them (`kernel.warmup`)."""
    return driven_by(Offline(target))


_cpu = None


def cpu_driver():
    """This process's CPU driver: ours, or that of another package that is there for target "cpu"."""
    global _cpu
    if _cpu is None:
        from . import foreign
        other = foreign.found()
        if other is not None:
            return foreign.driver_of(other)
        from ..cpu.driver import CPUDriver
        _cpu = CPUDriver()
    return _cpu
