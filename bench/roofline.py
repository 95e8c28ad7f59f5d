"""This machine's limits, measured: bytes per second of a stream copy, FLOP per second of fused multiply-adds."""

from __future__ import annotations

import contextlib
import functools
import os
import struct
from pathlib import Path

import torch

from ..backends.base import Unavailable
from . import clock

COPY_BYTES = 256 << 20


def copy_bandwidth() -> float:
    """Bytes per second (read plus written) of copying a block far larger than the caches, with torch's threads."""
    n = COPY_BYTES // 4
    x, y = torch.ones(n), torch.zeros(n)
    y.copy_(x)
    best = min(clock.once(lambda: y.copy_(x))[0] for _ in range(7))
    return 2 * COPY_BYTES / best


def cache_bytes() -> int:
    """Bytes that the caches of the CPUs of this process hold, of the level that holds most; 0 where Linux does not say."""
    levels: dict[str, dict[str, int]] = {}
    for cpu in os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ():
        for cache in Path(f"/sys/devices/system/cpu/cpu{cpu}/cache").glob("index*"):
            with contextlib.suppress(OSError, ValueError):
                kind, level, shared, size = ((cache / name).read_text().strip() for name in ("type", "level", "shared_cpu_list", "size"))
                if kind != "Instruction":
                    levels.setdefault(level, {})[shared] = int(size.removesuffix("K")) << 10
    return max((sum(sizes.values()) for sizes in levels.values()), default=0)


@functools.lru_cache(maxsize=None)
def _fma_kernel():
    """(address, FLOP per program, bytes of scratch): a loop of independent FMAs in registers, compiled by the CPU backend."""
    from ..backends.cpu.llvm import ir, compile as llvm, targets
    from ..backends.cpu.run import launch
    from ..backends.cpu.emit.kernel import SIGNATURE

    target = targets.native()
    lanes = target.lanes(32)
    chains = min(12, target.registers - 4)
    turns = 2000000  # some 5 ms: waking the threads must not show
    module = ir.Module("fma_peak", target.triple)
    fn = ir.Function(module, "fma_peak", "void", SIGNATURE)
    b = ir.Builder(fn)
    ty = ir.vec("float", lanes)
    slots = [b.alloca(ty) for _ in range(chains)]
    for k, s in enumerate(slots):
        b.store(ir.const("float", 1.0 + k, lanes), s, 64)
    x = b.splat(b.load("float", ir.Val("ptr", "%args"), 8), lanes)
    with b.loop(ir.i64(0), ir.i64(turns)):
        for s in slots:
            b.store(b.intrinsic("fma", b.load(ty, s, 64), x, x), s, 64)
    # The sums go to scratch, so that no one can say they are not needed.
    for k, s in enumerate(slots):
        b.store(b.load(ty, s, 64), b.gep("float", ir.Val("ptr", "%scratch"), ir.i64(k * lanes)), 4)
    b.ret()
    _, _, obj = llvm.compile_ir(module.render(), target)
    address = launch.load_object(obj, ["fma_peak"])["fma_peak"]
    return address, 2 * lanes * chains * turns, chains * lanes * 4


def fma_peak(threads: int | None = None) -> float:
    """fp32 FLOP per second of independent FMAs on this CPU, with `threads` threads (torch's number by default)."""
    from ..backends.cpu.run import launch

    threads = threads or torch.get_num_threads()
    address, flop, scratch = _fma_kernel()
    pool = launch.pool()
    packed = struct.pack("<8Qf4x", address, threads, 1, 1, scratch, launch.team_of(threads, 0, threads), *pool.openmp, 0.999)

    def multiply():
        if status := pool.call(packed):
            launch.failed("fma_peak", status, scratch, (), threads, 1)  # what a signal's handler raised

    multiply()
    best = min(clock.once(multiply)[0] for _ in range(9))
    return flop * threads / best


@functools.lru_cache(maxsize=None)
def measure(device: str = "cpu", threads: int | None = None) -> dict[str, float]:
    """{"bytes_per_s", "flop_per_s"} of a device, of a CPU also "cache_bytes", where Linux says it. On a GPU by events: a copy of 1 GiB, and for "flop_per_s" (and "flop_per_s_fp32") a product of
    8192 x 8192 fp16 (4096 x 4096 fp32) matrices by torch's library."""
    if device == "cuda":
        x = torch.ones(1 << 28, device="cuda")
        y = torch.empty_like(x)
        runs = {"copy": lambda: torch.add(x, 0, out=y)}  # a kernel of torch's: its copy_ leaves this to the copy engine, which is slower
        for name, n, dtype in (("fp16", 8192, torch.float16), ("fp32", 4096, torch.float32)):
            a = torch.randn(n, n, device="cuda", dtype=dtype)
            runs[name] = lambda a=a, out=torch.empty_like(a): torch.matmul(a, a, out=out)
        best = {name: min(s) for name, s in clock.on_gpu(runs, 7).items()}
        return {"bytes_per_s": 2 * x.nbytes / best["copy"], "flop_per_s": 2 * 8192**3 / best["fp16"], "flop_per_s_fp32": 2 * 4096**3 / best["fp32"]}
    limits = {"bytes_per_s": copy_bandwidth()} | ({"cache_bytes": held} if (held := cache_bytes()) else {})
    with contextlib.suppress(Unavailable):  # without llvmlite no code is made that reaches the peak
        limits["flop_per_s"] = fma_peak(threads)
    return limits
