"""Which Triton driver is active: the GPU's, or ours for CPU tensors."""

from __future__ import annotations

import contextlib
import threading

_switch = threading.RLock()


def _is_cpu(driver) -> bool:
    return driver.get_current_target().backend == "cpu"


def is_current(device_type: str) -> bool:
    """Does Triton's active driver serve tensors on `device_type`?"""
    import triton

    wants_cpu = device_type != "cuda"
    return _is_cpu(triton.runtime.driver.active) == wants_cpu


def serving(device_type: str):
    """A context in which Triton's active driver serves `device_type`; nothing changes where it does already."""
    return contextlib.nullcontext() if is_current(device_type) else switched(device_type)


@contextlib.contextmanager
def switched(device_type: str):
    """Within it Triton's active driver serves `device_type`."""
    import triton

    with _switch:  # Triton's active driver is one for the whole process
        before = triton.runtime.driver.active
        if device_type == "cuda":
            triton.runtime.driver.reset_active()
        else:
            triton.runtime.driver.set_active(cpu_driver())
        try:
            yield
        finally:
            triton.runtime.driver.set_active(before)


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


@contextlib.contextmanager
def compiling_for(target):
    """Within it kernels are compiled for `target`, a Triton GPUTarget, and not launched (`kernel.warmup`)."""
    import triton

    with _switch:
        before = getattr(triton.runtime.driver, "_active", None)
        triton.runtime.driver.set_active(Offline(target))
        try:
            yield
        finally:
            triton.runtime.driver._active = before


_cpu = None


def cpu_driver():
    """This process's CPU driver."""
    global _cpu
    if _cpu is None:
        from .cpu.driver import CPUDriver
        _cpu = CPUDriver()
    return _cpu
