"""What `torch.cuda` and its relatives answer for a GPU that is not there: the stated GPU's properties, streams that run in order, events that read the
host's clock, and a skip with the reason for what a CPU cannot mean.
"""

from __future__ import annotations

import contextlib
import functools
import time
import types

import pytest
import torch
import torch.multiprocessing

from .gpus import GPU
from .marks import GPU as DEVICE
from .marks import Memory
from .patches import Patches
from .tensors import device_of

#: the release of CUDA that `torch.version.cuda` tells
VERSION = "12.8"


def unmeant(what: str, why: str):
    """A function that skips the test which calls it."""
    def skip(*args, **kwargs):
        raise pytest.skip.Exception(f"{what}: {why} (--triton-cpu)", allow_module_level=True, _use_item_location=True)

    return skip


class Stream:
    """A stream: everything runs in the order of the calls, which is one of the orders that streams allow."""

    cuda_stream, device, device_index, priority = 0, DEVICE, 0, 0

    def __init__(self, device=None, priority=0, **kwargs):
        self.priority = priority

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def synchronize(self):
        pass

    wait_event = wait_stream = lambda self, other: None

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        pass


class Event:
    """An event: when it is recorded everything before it is done."""

    device, cuda_event = DEVICE, 0

    def __init__(self, enable_timing=False, blocking=False, interprocess=False, **kwargs):
        self._at = None

    def record(self, stream=None):
        self._at = time.perf_counter()

    def query(self) -> bool:
        return True

    def wait(self, stream=None):
        pass

    synchronize = wait

    def elapsed_time(self, end) -> float:
        """Milliseconds."""
        if self._at is None or end._at is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end._at - self._at) * 1e3


def properties(gpu: GPU):
    """What `torch.cuda.get_device_properties` gives of it."""
    return types.SimpleNamespace(
        name=gpu.name, major=gpu.capability[0], minor=gpu.capability[1], total_memory=gpu.memory, multi_processor_count=gpu.multiprocessors, warp_size=32,
        max_threads_per_multi_processor=gpu.threads, max_threads_per_block=1024, regs_per_multiprocessor=65536, shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=gpu.shared, shared_memory_per_multiprocessor=gpu.shared_all, L2_cache_size=gpu.l2, gcnArchName=gpu.name,
        is_integrated=0, is_multi_gpu_board=0, pci_bus_id=0, pci_device_id=0, pci_domain_id=0, uuid="GPU-00000000-0000-0000-0000-000000000000")


def _checked(answer):
    """An answer about a device, which there is one of."""
    @functools.wraps(answer)
    def asked(device=None):
        if device is not None:
            device_of(device)
        return answer()

    return asked


def _memory(gpu: GPU) -> dict:
    def reset_peak(device=None):
        Memory.peak = Memory.live

    def stats(device=None):
        return {"allocated_bytes.all.current": Memory.live, "allocated_bytes.all.peak": Memory.peak,
                "reserved_bytes.all.current": Memory.live, "reserved_bytes.all.peak": Memory.peak}

    live, peak = _checked(lambda: Memory.live), _checked(lambda: Memory.peak)
    return {"memory_allocated": live, "memory_reserved": live, "memory_cached": live, "max_memory_allocated": peak, "max_memory_reserved": peak,
            "max_memory_cached": peak, "reset_peak_memory_stats": reset_peak, "reset_max_memory_allocated": reset_peak,
            "reset_max_memory_cached": reset_peak, "reset_accumulated_memory_stats": _checked(lambda: None), "memory_stats": stats,
            "mem_get_info": _checked(lambda: (gpu.memory - Memory.live, gpu.memory)), "empty_cache": lambda: None, "ipc_collect": lambda: None,
            "device_memory_used": live, "set_per_process_memory_fraction": lambda fraction, device=None: None}


def _numbers() -> dict:
    """Random numbers: there is one generator, the CPU's."""
    def seed(value):
        torch.default_generator.manual_seed(int(value))

    def state(device="cuda"):
        return torch.default_generator.get_state()

    def set_state(new_state, device="cuda"):
        torch.default_generator.set_state(new_state)

    return {"manual_seed": seed, "manual_seed_all": seed, "seed": torch.default_generator.seed, "seed_all": torch.default_generator.seed,
            "initial_seed": torch.default_generator.initial_seed, "get_rng_state": state, "set_rng_state": set_state, "get_rng_state_all": lambda: [state()],
            "set_rng_state_all": lambda states: [set_state(s) for s in states], "default_generators": (torch.default_generator,)}


def _streams() -> dict:
    now = Stream()

    def current(device=None):
        return now

    def stream(stream):
        return contextlib.nullcontext(stream)

    return {"Stream": Stream, "ExternalStream": Stream, "Event": Event, "current_stream": current, "default_stream": current, "stream": stream,
            "StreamContext": stream, "set_stream": lambda stream: None, "get_stream_from_external": current, "synchronize": _checked(lambda: None),
            "is_current_stream_capturing": lambda: False}


def _device(gpu: GPU) -> dict:
    told = properties(gpu)
    archs = [f"sm_{gpu.arch}"]
    return {"is_available": lambda: True, "is_initialized": lambda: True, "init": lambda: None, "_lazy_init": lambda: None,
            "_is_in_bad_fork": lambda: False, "device_count": lambda: 1, "current_device": lambda: 0, "set_device": _checked(lambda: None),
            "_exchange_device": lambda device: 0, "_maybe_exchange_device": lambda device: 0, "get_device_properties": _checked(lambda: told),
            "get_device_name": _checked(lambda: gpu.name), "get_device_capability": _checked(lambda: gpu.capability),
            "is_bf16_supported": lambda including_emulation=True: including_emulation or gpu.capability >= (8, 0),
            "is_tf32_supported": lambda: gpu.capability >= (8, 0), "can_device_access_peer": lambda device, peer: False,
            "get_arch_list": lambda: archs, "get_gencode_flags": lambda: f"-gencode compute=compute_{gpu.arch},code=sm_{gpu.arch}",
            "get_sync_debug_mode": lambda: 0, "set_sync_debug_mode": lambda mode: None}


#: no answer: what -> why
_GRAPHS = "a CPU runs launches as they come and cannot record them into a CUDA graph"
_UNMEANT = {"CUDAGraph": _GRAPHS, "graph": _GRAPHS, "make_graphed_callables": _GRAPHS, "graph_pool_handle": _GRAPHS,
            "cudart": "there is no CUDA runtime", "jiterator": "it compiles CUDA C++", "MemPool": "there is no CUDA allocator",
            "use_mem_pool": "there is no CUDA allocator", "CUDAPluggableAllocator": "there is no CUDA allocator",
            "change_current_allocator": "there is no CUDA allocator", "caching_allocator_alloc": "there is no CUDA allocator",
            "caching_allocator_delete": "there is no CUDA allocator", "memory_snapshot": "there is no CUDA allocator",
            "memory_summary": "there is no CUDA allocator", "utilization": "there is no GPU to be measured", "temperature": "there is no GPU to be measured",
            "power_draw": "there is no GPU to be measured", "clock_rate": "there is no GPU to be measured", "memory_usage": "there is no GPU to be measured",
            "list_gpu_processes": "there is no GPU to be measured", "current_blas_handle": "there is no cuBLAS", "GreenContext": _GRAPHS}


def install(patches: Patches, gpu: GPU):
    """`torch.cuda`, `torch.accelerator`, autocast and what builds CUDA extensions answer, or skip."""
    from torch.cuda import nvtx
    for name, answer in (_device(gpu) | _streams() | _memory(gpu) | _numbers()).items():
        patches.put(torch.cuda, name, answer)
    for module in (torch.cuda.memory, torch.cuda.random, torch.cuda.streams, torch.cuda.graphs):
        for name in set(vars(module)) & set(torch.cuda.__all__):  # the same by their other name
            patches.put(module, name, vars(torch.cuda)[name])
    for name, why in _UNMEANT.items():
        if hasattr(torch.cuda, name):
            skip = unmeant(f"torch.cuda.{name}", why)
            # a class stays one: libraries derive from it, and ask isinstance
            patches.put(torch.cuda, name, type(name, (), {"__new__": skip}) if isinstance(getattr(torch.cuda, name), type) else skip)
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        patches.put(nvtx, name, lambda *args, **kwargs: 0)
    patches.put(nvtx, "range", contextlib.contextmanager(lambda *args, **kwargs: (yield)))
    alone = unmeant("torch.multiprocessing.spawn", "the processes it starts are no pytest and have no GPU")
    for name in ("spawn", "start_processes"):
        patches.put(torch.multiprocessing, name, alone)
    patches.put(torch.version, "cuda", torch.version.cuda or VERSION)  # torchvision compares it with its own
    patches.put(torch.backends.cuda, "is_built", lambda: True)
    if not hasattr(torch._C, "_cuda_CUDAAllocator_AllocatorState"):  # a torch without GPUs; `torch._dynamo.reset` imports Inductor's CUDA graphs, which import it
        patches.put(torch._C, "_cuda_CUDAAllocator_AllocatorState", type("_cuda_CUDAAllocator_AllocatorState", (), {}))
    for name, answer in {"is_available": lambda: True, "device_count": lambda: 1, "current_accelerator": lambda check_available=False: torch.device("cuda"),
                         "current_device_index": lambda: 0, "current_device_idx": lambda: 0, "set_device_index": lambda device: None,
                         "synchronize": lambda device=None: None, "current_stream": lambda device=None: torch.cuda.current_stream(),
                         "set_stream": lambda stream: None, "get_device_capability": lambda device=None: {}, "empty_cache": lambda: None}.items():
        if hasattr(torch.accelerator, name):
            patches.put(torch.accelerator, name, answer)
    of_memory = {name: vars(torch.cuda)[name] for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved", "memory_stats",
                                                           "reset_peak_memory_stats", "reset_accumulated_memory_stats")} | {"get_memory_info": torch.cuda.mem_get_info}
    for module in (torch.accelerator, getattr(torch.accelerator, "memory", None)):
        for name, answer in of_memory.items():
            if hasattr(module, name):
                patches.put(module, name, answer)
    if hasattr(torch.accelerator, "device_index"):
        patches.put(torch.accelerator, "device_index", _Index)
    module_of = torch.get_device_module
    patches.put(torch, "get_device_module", lambda device=None: torch.cuda if device is None else module_of(device))
    _autocast(patches)


class _Index:
    """`with torch.accelerator.device_index(0)`: there is one device."""

    def __init__(self, device: int | None, /):
        if device is not None:
            device_of(device)

    def __enter__(self):
        return None

    def __exit__(self, *raised):
        return None


def _autocast(patches: Patches):
    """autocast("cuda") casts what the CPU's autocast does, to float16 unless told otherwise."""
    from torch.amp import autocast_mode
    init, enabled, dtype = autocast_mode.autocast.__init__, torch.is_autocast_enabled, torch.get_autocast_dtype
    set_enabled, set_dtype = torch.set_autocast_enabled, torch.set_autocast_dtype

    def started(self, device_type, dtype=None, enabled=True, cache_enabled=None):
        if device_type == "cuda":
            device_type, dtype = "cpu", torch.get_autocast_dtype("cuda") if dtype is None else dtype
        init(self, device_type, dtype, enabled, cache_enabled)

    patches.put(autocast_mode.autocast, "__init__", started)
    patches.put(torch, "is_autocast_enabled", lambda device_type="cuda": enabled("cpu" if device_type == "cuda" else device_type))
    patches.put(torch, "get_autocast_dtype",
                lambda device_type: dtype(device_type) if device_type != "cuda" else dtype("cpu") if enabled("cpu") else torch.float16)
    patches.put(torch, "get_autocast_gpu_dtype", lambda: torch.get_autocast_dtype("cuda"))
    patches.put(torch, "set_autocast_enabled", lambda *args: set_enabled("cpu", args[-1]) if args[0] == "cuda" or len(args) == 1 else set_enabled(*args))
    patches.put(torch, "set_autocast_dtype", lambda device_type, to: set_dtype("cpu" if device_type == "cuda" else device_type, to))
