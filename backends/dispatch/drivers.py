"""Which of Triton's drivers serves a device's tensors: the GPU's, ours for CPU tensors, or another package's."""

from __future__ import annotations

import contextlib

import triton  # first: it imports our driver, which imports it

from . import foreign
from ..active import driven_by, is_current
from ..cpu import driver


class ChoicesByDevice(dict):
    """What an autotuner chose (`Autotuner.cache`), for each kind of device apart: Triton's key has sizes and dtypes alone."""

    def __contains__(self, key):
        return super().__contains__(_with_device(key))

    def __getitem__(self, key):
        return super().__getitem__(_with_device(key))

    def __setitem__(self, key, value):
        super().__setitem__(_with_device(key), value)


def _with_device(key) -> tuple:
    return triton.runtime.driver.active.get_current_target().backend, key


def serving(device_type: str):
    """A context in which Triton's active driver serves `device_type` in this thread; nothing changes where it does already."""
    return contextlib.nullcontext() if is_current(device_type) else switched(device_type)


def switched(device_type: str):
    """Within it Triton's active driver serves `device_type` in this thread."""
    return driven_by(triton.runtime.driver.default if device_type == "cuda" else cpu_driver())


def cpu_driver():
    """This process's CPU driver: ours, beside another package's too; that one where ours cannot compile, as on a board without llvmlite."""
    if not foreign.is_installed("llvmlite") and (other := foreign.found()) is not None:
        return foreign.driver_of(other)
    return driver.own()
