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


_cpu = None


def cpu_driver():
    """This process's CPU driver."""
    global _cpu
    if _cpu is None:
        from .cpu.driver import CPUDriver
        _cpu = CPUDriver()
    return _cpu
