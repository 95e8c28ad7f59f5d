"""Gaps of torch's Inductor that kernels for the CPU fall into."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys

from ...active import CPU
from ...base import CompileError
from . import benchmarker

#: milliseconds that one of a kernel's configurations is timed for; torch takes 20 and 100, and 40 on a GPU
REP = 6


def mend(module=None):
    """Mend what this process has loaded of torch 2.11 to 2.13, among which is `module`; a torch without the gaps is left alone.

    A fused matrix product on the CPU falls into three when Inductor times it: its code for `get_raw_stream` is a function of two lines where one line
    fits (IndentationError in what it generates), the CPU has no `device` context, and in 2.11 what stands for one is `pass`. It times each configuration of a
    kernel for an eighth of a second, half of what a model of many small kernels waits for. AOTInductor in 2.13 knows nothing of this compiler's libraries,
    and of Inductor's own kernels too little to launch them on a CPU."""
    overrides = sys.modules.get("torch._inductor.codegen.cpu_device_op_overrides")
    if overrides is not None and "\n" in overrides.CpuDeviceOpOverrides().import_get_raw_stream_as("f"):
        overrides.CpuDeviceOpOverrides.import_get_raw_stream_as = lambda self, name: f"{name} = lambda _: 0"
    if overrides is not None and overrides.CpuDeviceOpOverrides().device_guard(0) == "pass":
        overrides.CpuDeviceOpOverrides.device_guard = lambda self, index: "torch._ops.contextlib.nullcontext()"
    interfaces = sys.modules.get("torch._dynamo.device_interface")
    if interfaces is not None and interfaces.CpuInterface.device is interfaces.DeviceInterface.device:
        interfaces.CpuInterface.device = staticmethod(lambda device=None: contextlib.nullcontext())
    heuristics = sys.modules.get("torch._inductor.runtime.triton_heuristics")
    if hasattr(getattr(heuristics, "benchmarker", None), "benchmark") and not isinstance(heuristics.benchmarker, Timer):
        heuristics.benchmarker = Timer(heuristics.benchmarker)
    _mend_packages(heuristics, sys.modules.get("torch._inductor.codegen.cpp_wrapper_cpu"))


class Timer:
    """Inductor's benchmarker for the configurations of its Triton kernels, which times those of a CPU as `triton.autotune` does here: `REP` milliseconds each,
    five samples at least."""

    def __init__(self, torchs):
        self._torchs = torchs

    def __getattr__(self, name):
        return getattr(self._torchs, name)

    def benchmark(self, fn, *args, device=None, **options):
        """Milliseconds that `fn()` takes; torch's own answer for other devices, and where the time to take is given."""
        if args or options or str(device) != "cpu":
            return self._torchs.benchmark(fn, *args, device=device, **options)
        return benchmarker.benchmark(fn, rep=REP, return_mode="median")


def with_source(fn):
    """A Triton function whose Python one is there. What Inductor's processes compiled comes from them without: it is read again from the module that Inductor
    wrote for it. Raises `CompileError` where that is no longer there."""
    if getattr(fn, "fn", fn) is not None:
        return fn
    from torch._inductor.codecache import PyCodeCache, get_path

    key = fn.__module__.rpartition(".")[2]
    path = get_path(key, "py")[-1]
    try:
        return getattr(PyCodeCache.load_by_key_path(key, path), fn.__name__).fn
    except (OSError, RuntimeError, AttributeError) as e:
        raise CompileError(f"triton-cpu: Inductor's kernel {fn.__name__} has to be compiled once more, for arguments that overlap or for what is checked, and "
                           f"its source is not in {path} any more ({type(e).__name__}: {e}); torch.compile anew, after torch.compiler.reset(), or with "
                           "torch._inductor.config.compile_threads = 1") from None


# --- AOTInductor -------------------------------------------------------------------------------------------------------------

#: parameters of what is mended in torch 2.13 and 2.14
_KNOWN = {"save_cpu_kernel": ["self", "launcher"], "_resolve_arg_names": ["self"], "_get_cpp_param_type": ["self", "name", "arg_type"],
          "_generate_launch": ["self", "prefix", "kernel_arg_names", "grid_arg_names", "signature"]}


def _mend_packages(heuristics, wrappers):
    """What of torch's modules there is, mended; one that is written in another way is left as it is, and says itself what it misses."""
    tuner, calls = getattr(heuristics, "CachingAutotuner", None), getattr(wrappers, "DeferredCpuTritonCallWrapper", None)
    if _known(tuner, "save_cpu_kernel"):
        tuner.save_cpu_kernel = with_libraries(tuner.save_cpu_kernel, heuristics)
    if _known(calls, "_resolve_arg_names", "_get_cpp_param_type", "_generate_launch") and not _mentions(calls, "grid_type"):
        calls._resolve_arg_names = with_own_names(calls._resolve_arg_names)
        calls._get_cpp_param_type = with_number_types(calls._get_cpp_param_type)
        calls._generate_launch = with_grid(calls._generate_launch, heuristics)


def _known(cls, *names: str) -> bool:
    """Has a class these functions as they are known, and not mended?"""
    functions = [getattr(cls, name, None) for name in names]
    return all(f is not None and not hasattr(f, "__wrapped__") and list(inspect.signature(f).parameters) == _KNOWN[f.__name__] for f in functions)


def _mentions(cls, text: str) -> bool:
    """Is a text among the constants of a class's functions?"""
    return any(text in f.__code__.co_consts for f in vars(cls).values() if hasattr(f, "__code__"))


def with_libraries(save, heuristics):
    """`save_cpu_kernel`, which takes a kernel's shared libraries out of what Triton made of it: linked when they are asked for. What the generated C++ has
    to know of Inductor's own kernels, and torch does not keep, is kept with them: configuration, names of arguments, and how the grid follows from them."""
    @functools.wraps(save)
    def saved(self, launcher):
        kernel = launcher.bin
        if kernel.metadata.target.backend in CPU and "obj" in kernel.asm:
            from ...spine import aoti
            user = getattr(self.heuristic_type, "name", "USER_AUTOTUNE") == "USER_AUTOTUNE"
            kernel.asm.update(aoti.libraries(kernel, written_by_inductor=not user))
        save(self, launcher)
        info = _saved(self.inductor_meta.get("kernel_name"))
        if info is not None:
            info["launch"] = heuristics.config_to_dict(launcher.config), list(launcher.def_args), self.inductor_meta

    return saved


def _saved(kernel_name: str) -> dict | None:
    """What torch keeps of a kernel that it saved."""
    from torch._inductor.codecache import CpuTritonKernelCache
    return CpuTritonKernelCache.get(kernel_name)


def with_own_names(resolve):
    """`_resolve_arg_names`, which takes XBLOCK and its like, whose values are in the code, for arguments of the call."""
    @functools.wraps(resolve)
    def resolved(self):
        names, kernel, grid = resolve(self)
        _, own, _ = (_saved(self.kernel_name) or {}).get("launch", (None, None, None))
        return (own if own is not None and len(names) != len(self.arg_types) == len(own) else names), kernel, grid

    return resolved


def with_number_types(parameter):
    """`_get_cpp_param_type`, which takes numbers of fp64 for floats, and those that are computed from sizes for integers."""
    @functools.wraps(parameter)
    def typed(self, name, arg_type):
        ty = (_saved(self.kernel_name) or {}).get("signature", {}).get(name)
        return f"{_FLOATS[ty]} {name}" if ty in _FLOATS and isinstance(arg_type, type) else parameter(self, name, arg_type)

    return typed


_FLOATS = {"fp32": "float", "fp64": "double"}


def with_grid(generate, heuristics):
    """`_generate_launch`, which passes the grid that the caller computed: for kernels that have none such, with what it is computed by."""
    @functools.wraps(generate)
    def generated(self, prefix, kernel_arg_names, grid_arg_names, signature):
        config, _, meta = (_saved(self.kernel_name) or {}).get("launch", ({}, None, {}))
        if meta.get("grid_type", "FixedGrid") != "FixedGrid":
            grid = heuristics.GridExpr.from_meta(meta, config, mode="cpp")
            for line in grid.prefix:
                prefix.writeline(line)
            grid_arg_names = [str(x) for x in (grid.x_grid, grid.y_grid, grid.z_grid)]
        return generate(self, prefix, kernel_arg_names, grid_arg_names, signature)

    return generated
