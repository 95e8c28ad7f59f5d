"""Other packages that compile Triton for CPUs, where one is installed: spine-triton (SpacemiT's boards), triton-cpu, triton-shared.

They claim Triton's target "cpu", so that is theirs where one is installed, and ours have another name (`cpu/plugin/claims.py`); each has its own way to be
made active. Found without importing them (that loads libraries), in the order in which they would be meant.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from ..active import of_another
from ..base import Unavailable


@dataclass(frozen=True)
class Foreign:
    """name: of the package; module: by which it is recognised; driver: module of its `CPUDriver`, "" where Triton's own driver configuration
    switches (`set_active_to_cpu`); binary: the key of its machine code in `kernel.asm`."""

    name: str
    module: str
    driver: str
    binary: str = "so"


#: in the order of probing; facts from their sources, see each `driver.py`
KNOWN = (Foreign("spine-triton", "triton.backends.spine_triton", "triton.backends.spine_triton.driver"),
         Foreign("triton-cpu", "", ""),
         Foreign("triton-cpu (Kernelize)", "triton.backends.cpu.knobs", "triton.backends.cpu.driver"),
         Foreign("triton-shared", "triton.backends.triton_shared", "triton.backends.triton_shared.driver", "obj"))


def is_installed(module: str) -> bool:
    """Can a module be imported? It is not."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # its parent is not there
        return False


def found() -> Foreign | None:
    """The package that serves target "cpu" instead of ours."""
    for one in KNOWN:
        if one.module and is_installed(one.module):
            return one
        if not one.module:
            from triton.runtime import driver
            if hasattr(driver, "set_active_to_cpu"):
                return one
    return None


@functools.lru_cache(maxsize=None)
def driver_of(one: Foreign):
    """Its driver, made once. Raises `Unavailable` with its own complaint where it does not start."""
    try:
        if one.driver:
            return importlib.import_module(one.driver).CPUDriver()
        from triton.runtime import driver
        before = driver._active
        driver.set_active_to_cpu()
        made = driver.active
        driver.set_active(before)
        return made
    except Exception as e:  # a library that does not load, an architecture that it does not know
        raise Unavailable(f"{one.name} is installed and does not start: {type(e).__name__}: {e}") from None


@contextlib.contextmanager
def active(one: Foreign):
    """Within it this thread's kernels are compiled and launched by the package."""
    with of_another(driver_of(one)):
        yield


def target_of(one: Foreign) -> str:
    """What it compiles for, in words, and where that runs. Raises `Unavailable` with its own complaint about a target that it does not know."""
    driver = driver_of(one)
    try:
        target = driver.get_current_target()
    except Exception as e:
        raise Unavailable(f"{one.name} does not know its target: {type(e).__name__}: {e}") from None
    return f"{one.name}: {getattr(target, 'arch', '') or target.backend}" + (" over RPC" if _far(one) else "")


def remark_of(one: Foreign) -> str:
    """What is to be said beside its times; "" for nothing."""
    return f"{one.name} computes over RPC: its times contain the copies of all tensors, there and back" if _far(one) else ""


def _far(one: Foreign) -> bool:
    """Does another machine compute (SPINE_TRITON_RPC_HOST)?"""
    return bool(getattr(driver_of(one), "rpc_mode", False))


#: where spine-triton writes a kernel's assembly when it compiles one: a file for each name, whatever it was compiled for
DUMPS = "SPINE_TRITON_DUMP_PATH"


@contextlib.contextmanager
def dumping(one: Foreign):
    """Within it the package compiles anew and its dumps are in the folder that this gives: what is there is of now. None where it dumps nothing."""
    if one.name != "spine-triton":
        yield None
        return
    from triton import knobs
    with _dumping, tempfile.TemporaryDirectory() as folder, knobs.compilation.scope():
        before = os.environ.get(DUMPS)
        os.environ[DUMPS], knobs.compilation.always_compile = folder, True
        try:
            yield Path(folder)
        finally:
            os.environ.pop(DUMPS)
            if before is not None:
                os.environ[DUMPS] = before


_dumping = threading.Lock()
