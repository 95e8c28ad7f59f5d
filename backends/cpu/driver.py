"""Triton's driver interface for CPU tensors: which device, which stream, how to load and launch."""

from __future__ import annotations

import functools
import os

from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

from .plugin.claims import PACKAGE, other_claimants, target
from .plugin.launcher import make_launcher

# The compiler package is imported when a kernel is first compiled: importing triton must stay fast.

if os.environ.get("TRIPORT_ASM"):
    from .plugin import asked
    asked.install()


class CPUUtils:
    """What Triton asks a driver's `utils` for."""

    def load_binary(self, name, kernel, shared, device):
        """(module, function, registers, spills, max threads): the object linked into this process."""
        from . import cache
        from .run import launch
        from .llvm import targets

        obj = cache.checked(kernel, name)
        fn = launch.load_function(obj, name)
        return fn, fn, targets.native().registers, 0, 1 << 30

    def unload_module(self, module):
        """Nothing: launches and plans may hold the function still, and its code goes with it (`loaded.Function`)."""

    def get_device_properties(self, device):
        """What kernels that fill a GPU ask for. A core stands for a multiprocessor, scratch for shared memory."""
        return {"max_shared_mem": 1 << 30, "max_num_regs": 1 << 16, "multiprocessor_count": os.cpu_count() or 1, "warpSize": 1,
                "sm_clock_rate": 0, "mem_clock_rate": 0, "mem_bus_width": 0}


class CPUDriver(DriverBase):
    """Active where no GPU driver is, or where TRITON_DEFAULT_BACKEND=cpu asks for it."""

    def __init__(self):
        self.utils = CPUUtils()
        self.launcher_cls = functools.partial(make_launcher, self)
        super().__init__()
        from . import cache
        from .plugin import gluon, key, mends, relaunch
        from .. import of_triton
        cache.install()
        of_triton.change("launches from several threads may meet a fault of CPython's parser, and errors of dtypes and grids are Triton's own",
                         lambda: mends.install(own))
        of_triton.change("a launch takes twice as long", relaunch.install)
        of_triton.change("the first launch of a process takes half a second more", key.install)
        of_triton.change("the first launch of a process imports gluon", gluon.install)
        of_triton.warn()

    @staticmethod
    def is_active():
        if os.environ.get("TRITON_DEFAULT_BACKEND") == "cpu":
            return True
        if other_claimants():
            return False
        from triton.backends import backends

        return not any(b.driver.is_active() for b in backends.values() if not b.driver.__module__.startswith(PACKAGE))

    def map_python_to_cpp_type(self, ty: str) -> str:
        if ty.startswith("*"):
            return "void*"
        return {"i1": "int8_t", "i8": "int8_t", "i16": "int16_t", "i32": "int32_t", "i64": "int64_t", "u1": "uint8_t",
                "u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t", "fp16": "uint16_t",
                "bf16": "uint16_t", "fp32": "float", "f32": "float", "fp64": "double", "f64": "double"}[ty]

    # A key of its own: JITFunction keeps compiled kernels per device key, 0 is a GPU's, and "cpu" another package's where there is one.
    def get_current_device(self):
        return current_target().backend

    def set_current_device(self, device):
        pass

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return current_target()

    def get_active_torch_device(self):
        import torch
        return torch.device("cpu")

    def get_device_interface(self):
        from torch._dynamo.device_interface import CpuInterface
        return CpuInterface

    def get_benchmarker(self):
        from .plugin.benchmarker import benchmark
        return benchmark

    def get_empty_cache_for_benchmark(self):
        import torch
        return torch.empty(8 << 20, dtype=torch.int8)

    def clear_cache(self, cache):
        cache.zero_()


@functools.lru_cache(maxsize=1)
def own() -> CPUDriver:
    """This process's, for threads in which Triton's active driver is another."""
    return CPUDriver()


@functools.lru_cache(maxsize=1)
def current_target() -> GPUTarget:
    return target("native", 1)  # a program is one thread, and hosts divide by this

