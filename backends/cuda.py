"""`cuda`: CUDA C++ kernels, compiled by NVRTC (`nvrtc.py`) for the GPU at hand, loaded and launched through cuda-core."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import NamedTuple

from .context import call as context
from .dispatch import choice, cuda_calls, cuda_launch
from .dispatch.cuda_launch import Boxes
from .base import Backend, Error, Unsupported

#: torch's dtype -> the element type in the .cu files (ops/common.cuh)
ELEMENT = {"float32": "float", "float16": "half", "bfloat16": "bf16", "float64": "double", "int32": "int", "int64": "i64"}


class Cuda(Backend):
    name = "cuda"
    device = "cuda"
    stays = True
    compiles = True
    serves = True
    forgets = True

    def unavailable(self) -> str | None:
        import torch

        from . import nvrtc
        from .table import get
        if (reason := get("triton-gpu").unavailable()):
            return reason
        if torch.version.hip is not None:
            return f"torch {torch.__version__} is a ROCm build: CUDA C++ needs an NVIDIA GPU"
        try:
            import cuda.core  # noqa: F401
        except ImportError as e:
            return f"it launches through cuda-core: {nvrtc.INSTALL} ({e})"
        return nvrtc.missing()

    def target(self) -> str:
        from .table import get
        return get("triton-gpu").target()

    def versions(self) -> dict[str, str]:
        import cuda.core
        import torch

        from . import nvrtc
        return {"NVRTC": nvrtc.version(), "cuda-core": cuda.core.__version__, "torch": torch.__version__, "CUDA": str(torch.version.cuda)}

    def bind(self, op):
        if not self.takes(op):
            raise Unsupported(f"{op.name} has no CUDA C++ kernel")
        return choice.within(self)(op.call)

    def synchronize(self) -> None:
        import torch
        torch.cuda.synchronize()

    @contextlib.contextmanager
    def fresh_caches(self, directory):
        from .table import get
        with get("triton-cpu").fresh_caches(directory):  # Triton's folder, ours too
            yield

    def forget(self, op):
        """Drop loaded kernels, so that the next call meets the disk cache."""
        _kernel.cache_clear()


#: bytes of shared memory that kernels have beside what they are launched with, at most
BESIDE = 16 << 10


def arch(index: int) -> str:
    """A device's compute capability as NVRTC takes it, like sm_86; sm_90a where wgmma is."""
    import torch
    major, minor = torch.cuda.get_device_capability(index)
    return f"sm_{major}{minor}" + ("a" if (major, minor) == (9, 0) else "")


@functools.lru_cache(maxsize=None)
def _kernel(path: Path, name: str, index: int, shared: int):
    """A kernel, loaded, and allowed to be launched with so much dynamic shared memory, in bytes."""
    from cuda.bindings import driver
    from cuda.core import Device, ObjectCode

    from . import nvrtc
    Device(index).set_current()  # the caller's torch.cuda.device puts back what was
    built = nvrtc.built(path, name, arch(index))
    kernel = ObjectCode.from_cubin(built.cubin).get_kernel(built.name)
    if shared > (48 << 10) - BESIDE:  # with more than 48 KiB together a kernel has to ask
        code, = driver.cuKernelSetAttribute(driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared,
                                            kernel.handle, index)
        if code != driver.CUresult.CUDA_SUCCESS:
            raise Error(f"{path.name}: {name} cannot have {shared} bytes of shared memory on {arch(index)}: {code.name}")
    return kernel


@functools.lru_cache(maxsize=4096)
def _config(grid: tuple, block: int, cluster: int, shared: int, together: bool):
    from cuda.core import LaunchConfig
    if together:  # asked for only here: a cuda-core that does not know it still launches the others
        return LaunchConfig(grid=grid, block=block, shmem_size=shared, is_cooperative=True)
    if cluster > 1:  # cuda-core counts clusters
        return LaunchConfig(grid=(grid[0] // cluster, *grid[1:]), cluster=(cluster, 1, 1), block=block, shmem_size=shared)
    return LaunchConfig(grid=grid, block=block, shmem_size=shared)


@functools.lru_cache(maxsize=256)
def _stream(handle: int):
    from cuda.core import Stream
    return Stream.from_handle(handle)


class Own(NamedTuple):
    """A launch of one of these kernels, to be made again (dispatch/cuda_calls.py): the kernel, its name, threads of a block, bytes of dynamic shared
    memory, blocks of a cluster along the grid's first dimension, whether all blocks are on the GPU at once."""

    kernel: object
    name: str
    threads: int
    shared: int
    cluster: int = 1
    together: bool = False


def describes() -> bool:
    """Can kernels be launched with `Boxes` here?"""
    return cuda_launch.driver() is not None


def launch(path: Path, kernel: str, grid: tuple, block: int, *args, cluster: int = 1, shared: int = 0, together: bool = False):
    """Launch `kernel` of a .cu file on the current stream of the device of the first tensor among `args`.

    args: tensors arrive as pointers, `Boxes` as what describes them, int as 64-bit integers, float as double. grid: 1 to 3 numbers of blocks; cluster: blocks
    of a cluster along the grid's first dimension, 8 at most (compute capability 9.0 and later); shared: dynamic shared memory, bytes;
    together: all blocks are on the GPU at once, so that they may wait for each other (a cooperative launch, without clusters).
    Raises `CompileError` with NVRTC's log, `Error` where the launch fails."""
    import torch
    from cuda.core import Device, launch as launch_kernel

    device = next(x.device for x in (a.matrix if isinstance(a, Boxes) else a for a in args) if isinstance(x, torch.Tensor))
    with torch.cuda.device(device):
        Device(device.index).set_current()  # a thread that has not used the GPU has no context yet
        loaded = _kernel(path, kernel, device.index, shared)
        stream = _stream(torch.cuda.current_stream().cuda_stream)
        context.note_launch(own := Own(loaded, kernel, block, shared, cluster, together), None, grid, args)
        try:
            with _traced(kernel, grid):
                if any(isinstance(a, Boxes) for a in args):  # which cuda-core's releases describe in ways of their own
                    cuda_calls.start(own, grid, args, device.index)
                else:
                    values = [a.data_ptr() if isinstance(a, torch.Tensor) else a for a in args]
                    launch_kernel(stream, _config(grid, block, cluster, shared, together), loaded, *values)
        except Exception as e:
            raise Error(f"{path.name}: launching {kernel} as {grid} x {block} threads on {device} failed: {e}") from e


def _traced(kernel: str, grid: tuple):
    """A launch as an event of torch.profiler, where it runs."""
    from torch.autograd import profiler

    if not profiler._is_profiler_enabled:
        return contextlib.nullcontext()
    from torch._C._profiler import _RecordFunctionFast
    where = f"grid({', '.join(map(str, (*grid, 1, 1)[:3]))})"
    return _RecordFunctionFast(f"{kernel}[cuda] {where}", [], {"kernel_backend": "cuda", "grid": where})


def element(x) -> str:
    """The element type of a tensor in CUDA C++."""
    return ELEMENT[str(x.dtype).removeprefix("torch.")]


@functools.lru_cache(maxsize=None)
def limits(index: int) -> tuple[int, int, tuple[int, int]]:
    """(multiprocessors, bytes of shared memory that a block can have, compute capability) of a device."""
    import torch
    p = torch.cuda.get_device_properties(index)
    return p.multi_processor_count, p.shared_memory_per_block_optin, (p.major, p.minor)


#: threads of a block that walks elements one after the other, and 16-byte pieces that each of them has on its way
THREADS, UNROLL = 256, 2


def flat(path: Path, kernel: str, out, *args):
    """Launch a kernel that walks the elements of `out` in grid-stride order (`flat` in ops/common.cuh)."""
    n = out.numel()
    if n:
        pieces = -(-n * out.element_size() // 16)
        launch(path, kernel, (min(-(-pieces // (THREADS * UNROLL)), (1 << 31) - 1),), THREADS, *args)
