"""Which Triton driver is active. Triton has one for the process; here each thread may have its own."""

from __future__ import annotations

import contextlib
import threading

#: what Triton calls a target of ours where another package has "cpu", and all the names of CPUs
OWN = "triport"
CPU = ("cpu", OWN)

_switch = threading.Lock()
#: one for each `of_another` context that is open in the process: only then launches ask whose kernels they remember
foreign: list[None] = []
_thread = threading.local()  # .driver: what serves this thread instead of the process's driver


class Held:
    """A loaded kernel that goes when nobody holds it any more: no driver unloads it."""

    __slots__ = ()


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
        try:
            now = self._now()
        except ImportError:  # Python ends, and the last kernels go
            now = None
        return Utils(self, getattr(now, "utils", None))


class Utils:
    """A driver's utils; a kernel that goes, in whatever thread, is unloaded by who loaded it."""

    def __init__(self, driver: PerThread, utils):
        self._driver, self._utils = driver, utils

    def __getattr__(self, name):
        return getattr(self._utils, name)

    def unload_module(self, module):
        if isinstance(module, Held):
            return
        try:
            unload = getattr(self._driver.base.utils, "unload_module", None)  # spine-triton's has none
        except (RuntimeError, ImportError):  # the process has no driver but those that were chosen for a while, or Python ends
            return
        if unload is not None:
            unload(module)


def is_current(device_type: str) -> bool:
    """Does Triton's active driver serve tensors on `device_type` in this thread?"""
    import triton

    try:
        target = triton.runtime.driver.active.get_current_target()
    except RuntimeError:  # no driver is active, and none would be by itself
        return False
    return (target.backend in CPU) == (device_type != "cuda")


def now():
    """Triton's active driver in this thread itself."""
    import triton

    driver = triton.runtime.driver.active
    return driver._now() if isinstance(driver, PerThread) else driver


def drives(driver) -> bool:
    """Is `driver` Triton's active one in this thread?"""
    return now() is driver


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


@contextlib.contextmanager
def of_another(driver):
    """As `driven_by`, for a driver that is another package's: nothing is launched again that is remembered as ours."""
    foreign.append(None)
    try:
        with driven_by(driver):
            yield
    finally:
        foreign.pop()


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
