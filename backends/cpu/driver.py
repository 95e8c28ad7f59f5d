"""Triton's driver interface for CPU tensors: which device, which stream, how to load and launch."""

from __future__ import annotations

import contextlib
import functools
import os
import sys

from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

from .. import active
from ..context import call

# The compiler package is imported when a kernel is first compiled: importing triton must stay fast.


def other_claimants() -> list[str]:
    """Installed packages, other than this one, that compile for target "cpu" (spine-triton, triton-cpu, ...)."""
    from triton.backends import backends

    mine = __name__.rpartition(".")[0]
    return [name for name, b in backends.items()
            if not b.compiler.__module__.startswith(mine) and _claims_cpu(b.compiler)]


def _claims_cpu(compiler) -> bool:
    try:
        return bool(compiler.supports_target(GPUTarget("cpu", "", 0)))
    except Exception:
        return False


class CPUUtils:
    """What Triton asks a driver's `utils` for."""

    def load_binary(self, name, kernel, shared, device):
        """(module, function, registers, spills, max threads): the object linked into this process."""
        from . import cache
        from .run import launch as runtime
        from .llvm import targets

        obj = cache.checked(kernel, name)
        fn = runtime.load_function(obj, name)
        return fn, fn, targets.native().registers, 0, 1 << 30

    def unload_module(self, module):
        """Nothing: launches and plans may hold the function still, and its code goes with it (`loaded.Function`)."""

    def get_device_properties(self, device):
        """What kernels that fill a GPU ask for. A core stands for a multiprocessor, scratch for shared memory."""
        return {"max_shared_mem": 1 << 30, "max_num_regs": 1 << 16, "multiprocessor_count": os.cpu_count() or 1, "warpSize": 1,
                "sm_clock_rate": 0, "mem_clock_rate": 0, "mem_bus_width": 0}


def mend_inductor():
    """Gaps of torch 2.11 to 2.13 that a fused matrix product on the CPU falls into when Inductor times it: its code for
    `get_raw_stream` is a function of two lines where one line fits (IndentationError in what it generates), the CPU has no
    `device` context, and in 2.11 what stands for one is `pass`. Nothing else changes; a torch without the gaps is left alone."""
    overrides = sys.modules.get("torch._inductor.codegen.cpu_device_op_overrides")
    if overrides is not None and "\n" in overrides.CpuDeviceOpOverrides().import_get_raw_stream_as("f"):
        overrides.CpuDeviceOpOverrides.import_get_raw_stream_as = lambda self, name: f"{name} = lambda _: 0"
    if overrides is not None and overrides.CpuDeviceOpOverrides().device_guard(0) == "pass":
        overrides.CpuDeviceOpOverrides.device_guard = lambda self, index: "torch._ops.contextlib.nullcontext()"
    interfaces = sys.modules.get("torch._dynamo.device_interface")
    if interfaces is not None and interfaces.CpuInterface.device is interfaces.DeviceInterface.device:
        interfaces.CpuInterface.device = staticmethod(lambda device=None: contextlib.nullcontext())


def make_launcher(src, metadata):
    """What Triton calls to launch one compiled kernel; built once per kernel."""
    from .run import launch as runtime

    mend_inductor()

    constants = getattr(src, "constants", {}) or {}
    names = list(src.signature.keys())
    fixed = {((names.index(c),) if isinstance(c, str) else tuple(c)) for c in constants}

    def known(path, ty):
        if path in fixed:
            return "constexpr"
        return tuple(known((*path, n), t) for n, t in enumerate(ty)) if isinstance(ty, (tuple, list)) else ty

    signature = [(str(n), known((k,), t)) for k, (n, t) in enumerate(src.signature.items())]
    safe = []

    def overlapping(gx, gy, gz, stream, fn, km, lm, enter, leave, *args):
        """The launch for arguments that overlap, or sizes that are too large: a version compiled without taking anything for granted."""
        call.note_odd()  # what is remembered of this call would launch the other version
        if not safe:
            import triton

            k = triton.compile(src, target=metadata.target, options={
                "enable_fp_fusion": metadata.enable_fp_fusion, "debug": metadata.debug,
                "sanitize_overflow": metadata.sanitize_overflow, "assume_disjoint": False})
            with contextlib.nullcontext() if active.is_current("cpu") else active.driven_by(own()):  # beside a GPU the active driver may be the other one by now
                k._init_handles()
            safe.append(k)
        k = safe[0]
        k.run(gx, gy, gz, stream, k.function, k.packed_metadata, lm, enter, leave, *args)

    values = {str(names[c] if isinstance(c, int) else c): v for c, v in ((c[0] if isinstance(c, tuple) else c, v) for c, v in constants.items())}
    return runtime.make_launch(metadata.name, signature, metadata, overlapping, values)


class CPUDriver(DriverBase):
    """Active where no GPU driver is, or where TRITON_DEFAULT_BACKEND=cpu asks for it."""

    def __init__(self):
        self.utils = CPUUtils()
        self.launcher_cls = make_launcher
        super().__init__()
        from . import cache
        from .plugin import gluon, key, mends
        cache.install()
        mends.install()
        key.install()
        gluon.install()

    @staticmethod
    def is_active():
        if other_claimants():
            return False
        if os.environ.get("TRITON_DEFAULT_BACKEND") == "cpu":
            return True
        from triton.backends import backends

        mine = __name__.rpartition(".")[0]
        return not any(b.driver.is_active() for b in backends.values() if not b.driver.__module__.startswith(mine))

    def map_python_to_cpp_type(self, ty: str) -> str:
        if ty.startswith("*"):
            return "void*"
        return {"i1": "int8_t", "i8": "int8_t", "i16": "int16_t", "i32": "int32_t", "i64": "int64_t", "u1": "uint8_t",
                "u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t", "fp16": "uint16_t",
                "bf16": "uint16_t", "fp32": "float", "f32": "float", "fp64": "double", "f64": "double"}[ty]

    # A key of its own: JITFunction keeps compiled kernels per device key, and 0 is a GPU's.
    def get_current_device(self):
        return "cpu"

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
    return GPUTarget("cpu", "native", 1)  # a program is one thread, and hosts divide by this

