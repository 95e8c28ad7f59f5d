"""This machine's limits, measured: bytes per second of a stream copy, FLOP per second of fused multiply-adds."""

from __future__ import annotations

import functools
import struct

import torch

from . import clock

COPY_BYTES = 256 << 20


def copy_bandwidth(device: str = "cpu") -> float:
    """Bytes per second (read plus written) of copying a block far larger than the caches, with torch's threads."""
    n = COPY_BYTES // 4
    x, y = torch.ones(n, device=device), torch.zeros(n, device=device)
    sync = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    y.copy_(x)
    best = min(clock.once(lambda: y.copy_(x), sync)[0] for _ in range(7))
    return 2 * COPY_BYTES / best


@functools.lru_cache(maxsize=None)
def _fma_kernel():
    """(address, FLOP per program): a loop of independent FMAs in registers, compiled by the CPU backend."""
    from ..backends.cpu import ir, machine, runtime, targets
    from ..backends.cpu.codegen import SIGNATURE

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
    head, body, done = (fn.new_block(n) for n in ("head", "body", "done"))
    entry = b.block
    b.br(head)
    b.enter(head)
    at = len(head.items)
    head.items.append("")
    i = ir.Val("i64", "%i")
    b.cond_br(b.icmp("slt", i, ir.i64(turns)), body, done)
    b.enter(body)
    for s in slots:
        b.store(b.intrinsic("fma", b.load(ty, s, 64), x, x), s, 64)
    b.emit("%n = add i64 %i, 1")
    b.br(head)
    head.items[at] = f"  %i = phi i64 [ 0, %{entry.label} ], [ %n, %{body.label} ]"
    b.enter(done)
    # The sums go to scratch, so that no one can say they are not needed.
    for k, s in enumerate(slots):
        b.store(b.load(ty, s, 64), b.gep("float", ir.Val("ptr", "%scratch"), ir.i64(k * lanes)), 4)
    b.emit("ret void")
    _, _, obj = machine.compile_ir(module.render(), target)
    address = runtime.load_object(obj, ["fma_peak"])["fma_peak"]
    return address, 2 * lanes * chains * turns, chains * lanes * 4


def fma_peak(threads: int | None = None) -> float:
    """fp32 FLOP per second of independent FMAs on this CPU, with `threads` threads (torch's number by default)."""
    from ..backends.cpu import runtime

    threads = threads or torch.get_num_threads()
    address, flop, scratch = _fma_kernel()
    pool = runtime.pool()
    packed = struct.pack("<8Qf4x", address, threads, 1, 1, scratch, runtime.team_of(threads, 0, threads), *pool.openmp, 0.999)
    pool.call(packed)
    best = min(clock.once(lambda: pool.call(packed))[0] for _ in range(9))
    return flop * threads / best


@functools.lru_cache(maxsize=None)
def measure(device: str = "cpu", threads: int | None = None) -> dict[str, float]:
    """{"bytes_per_s", "flop_per_s"} of a device; on a GPU the FLOP are those of a large fp16 matrix product."""
    if device == "cuda":
        a = torch.randn(8192, 8192, device="cuda", dtype=torch.float16)
        out = a @ a
        best = min(clock.once(lambda: torch.matmul(a, a, out=out), torch.cuda.synchronize)[0] for _ in range(5))
        return {"bytes_per_s": copy_bandwidth("cuda"), "flop_per_s": 2 * 8192**3 / best}
    return {"bytes_per_s": copy_bandwidth(), "flop_per_s": fma_peak(threads)}
