"""Ops over 1, 2, 4, ... ranks: weak and strong scaling, with communication apart from kernels.

Strong scaling spreads one case over more ranks; weak scaling makes what is sharded as many times longer, so each rank's part stays the same. Each result is
held against the float64 reference of the whole first. Times are of calls that nobody watches, the slowest rank's in each round. What kernels and
communication take is then seen from within by a dispatch mode, which meets every operation on this rank's parts; where ranks wait for one another, that
is communication, so the least of the ranks counts.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Callable, Iterator

import torch
import torch.distributed as dist
from torch.distributed.tensor import DeviceMesh, DTensor, Replicate, Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..backends.base import Error
from ..ops.accuracy import error
from ..ops.records import DTYPES, Case, Op
from . import clock, noise

#: op -> way -> the dimension that each tensor is sharded along, None where it is on every rank
WAYS = {
    **{name: {"rows": (0,), "columns": (1,)} for name in ("square", "gelu", "softmax")},
    "add_relu": {"rows": (0, None), "columns": (1, 0)},
    "add_mul_act": {"rows": (0, 0, None), "columns": (1, 1, 0)},
    **{name: {"rows": (0, None), "columns": (None, 1), "K": (1, 0)} for name in ("matmul", "matmul_softmax")},
    "lora_linear": {"rows": (0, None, None, None), "columns": (None, 1, None, 1), "K": (1, 0, 0, None)},
}
#: seconds that a turn's calls take at least, and rounds where nobody said how many
TURN, ROUNDS = 0.02, 10


@dataclass(frozen=True)
class Piece:
    """One row: an op's case, `along` a way, over the first ranks of all."""

    op: Op
    case: Case
    dtype: str
    way: str
    scaling: str
    ranks: int

    @property
    def places(self) -> list:
        return [Replicate() if d is None else Shard(d) for d in WAYS[self.op.name][self.way]]

    @property
    def whole(self) -> Case:
        """The case of all ranks together."""
        if self.scaling == "strong":
            return self.case
        longer = tuple(tuple(size * self.ranks if n == d else size for n, size in enumerate(shape))
                       for shape, d in zip(self.case.shapes, WAYS[self.op.name][self.way]))
        return replace(self.case, shapes=longer)

    @property
    def row(self) -> dict:
        return {"op": self.op.name, "case": f"{self.whole.name}, {self.way} over {self.ranks}, {self.scaling}", "dtype": self.dtype,
                "distributed": {"of": self.case.name, "sharded": self.way, "scaling": self.scaling, "ranks": self.ranks}}


def pieces(items, world: int) -> list[Piece]:
    """Every way of each (op, dtype name, case). Raises `Error` for an op that has none."""
    sizes = sorted({2**k for k in range(world.bit_length()) if 2**k <= world} | {world})
    out = []
    for op, dtype, case in items:
        if op.name not in WAYS:
            raise Error(f"--distributed: {op.name} has no ways to be sharded; it takes {', '.join(WAYS)}")
        if any(len(shape) < 1 + (d or 0) for ways in WAYS[op.name].values() for shape, d in zip(case.shapes, ways)):
            raise Error(f"--distributed: {op.name} {case.name} has too few dimensions to be sharded by {' and by '.join(WAYS[op.name])}")
        out += [Piece(op, case, dtype, way, scaling, n) for way in WAYS[op.name] for scaling in ("strong", "weak") for n in sizes]
    return out


class Watched(TorchDispatchMode):
    """Seconds of communication and of everything else that is done on a rank's own tensors."""

    def __init__(self, cuda: bool):
        super().__init__()
        self.spent, self.cuda, self.events = defaultdict(float), cuda, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented  # it comes again with the rank's own
        kind = "communication" if func.namespace in ("_c10d_functional", "_dtensor", "c10d") else "kernels"
        if self.cuda:
            events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            events[0].record()
            out = func(*args, **(kwargs or {}))
            events[1].record()
            self.events.append((kind, *events))
            return out
        start = time.perf_counter()
        out = func(*args, **(kwargs or {}))
        self.spent[kind] += time.perf_counter() - start
        return out

    def seconds(self) -> tuple[float, float]:
        """(kernels, communication) since the last time it was asked."""
        if self.cuda:
            torch.cuda.synchronize()
            for kind, start, end in self.events:
                self.spent[kind] += start.elapsed_time(end) / 1e3
        out = self.spent["kernels"], self.spent["communication"]
        self.spent.clear()
        self.events.clear()
        return out


def measure(plan: list[Piece], device: str, rounds: int | None, seed: int) -> Iterator[dict]:
    """A row for each piece, on the first rank; None on the others. All ranks take part, with the same plan."""
    world = dist.get_world_size()
    meshes = {n: DeviceMesh(device, list(range(n))) for n in sorted({p.ranks for p in plan})}
    alone: dict[tuple, float] = {}
    for piece in plan:
        row = _row(piece, meshes[piece.ranks], device, rounds, seed) if dist.get_rank() < piece.ranks else None
        if world > 1:
            dist.barrier()
        if row is not None and dist.get_rank() == 0 and row["status"] == "ok":
            key = piece.op.name, piece.dtype, piece.case.name, piece.way, piece.scaling
            first = alone.setdefault(key, row["wall_s"]["p50"])
            row["metrics"]["efficiency"] = first / row["wall_s"]["p50"] / (piece.ranks if piece.scaling == "strong" else 1)
        yield row if dist.get_rank() == 0 else None


def _row(piece: Piece, mesh: DeviceMesh, device: str, rounds: int | None, seed: int) -> dict:
    op, kwargs, group = piece.op, piece.whole.kwargs, mesh.get_group()
    full = [t.to(device) for t in piece.whole.make(DTYPES[piece.dtype], "cpu", seed)]
    given = [distribute_tensor(t, mesh, [place], src_data_rank=None) for t, place in zip(full, piece.places)]
    wait: Callable = torch.cuda.synchronize if device == "cuda" else clock.nothing

    def call() -> DTensor:
        out = op.call(*given, **kwargs)
        return out.redistribute(placements=[Replicate()]) if out.placements[0].is_partial() else out  # a sum that nobody has added up is no result

    out = call()
    e, most = error(out.full_tensor(), op.expected(*full, **kwargs)), allowed(piece)
    row = piece.row | {"backend": f"triton-{'gpu' if device == 'cuda' else 'cpu'}", "device": device, "baseline": "torch", "error": e, "allowed": most,
                       "status": "ok" if e <= most else "wrong", "bytes": None, "flops": None, "first_call_s": {}}
    row["distributed"]["placed"] = str(out.placements[0])
    if row["status"] != "ok":
        return row
    del full, out

    def together(value: float, how=dist.ReduceOp.MAX) -> float:
        t = torch.tensor(value, dtype=torch.float64, device=device)
        dist.all_reduce(t, how, group)
        return t.item()

    def turn(n: int) -> tuple[float, float]:
        dist.barrier(group)
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(n):
            call()
        wait()
        return (time.perf_counter() - wall) / n, (time.process_time() - cpu) / n

    turn(2)
    n = max(1, min(clock.MOST, int(TURN / together(turn(3)[0]))))
    took = [turn(n) for _ in range(rounds or ROUNDS)]
    walls = [together(wall) for wall, _ in took]
    watched = Watched(device == "cuda")
    inside = []
    for _ in range(rounds or ROUNDS):
        dist.barrier(group)
        with watched:
            for _ in range(n):
                call()
        inside.append([s / n for s in watched.seconds()])
    kernels = [together(k) for k, _ in inside]
    communication = [together(c, dist.ReduceOp.MIN) for _, c in inside]
    apart = {"kernels_s": clock.summary(kernels), "communication_s": clock.summary(communication)}
    row["distributed"] |= apart
    if why := noisy(walls, kernels, communication):
        row["noisy"] = why
    return row | {"wall_s": clock.summary(walls), "cpu_s": clock.summary([cpu for _, cpu in took]), "rounds_s": walls, "cpu_rounds_s": [cpu for _, cpu in took],
                  "repeats": n, "metrics": {name.replace("_s", "_ms"): 1e3 * figures["p50"] for name, figures in apart.items()}}


def noisy(walls: list[float], kernels: list[float], communication: list[float]) -> str | None:
    """Why a row's figures are not to be trusted, by its rounds (seconds): those of the whole, and those of its parts, which are timed in rounds of their own. What others did to
    the machine is not known: ranks beside this one look like others."""
    whole, parts = statistics.median(walls), (("kernels", statistics.median(kernels)), ("communication", statistics.median(communication)))
    over = [name for name, part in parts if part > whole * (1 + noise.BAND)]
    reasons = [noise.why(walls)] + ([f"{' and '.join(over)}, in other rounds, took longer than the whole"] if over else [])
    return "; ".join(filter(None, reasons)) or None


def allowed(piece: Piece) -> float:
    """As of one device; where a product and a softmax are two ops, the product is rounded to the dtype between them, which counts once more."""
    apart = piece.op.name == "matmul_softmax" and piece.dtype in ("fp16", "bf16")
    return piece.op.allowed(DTYPES[piece.dtype]) * (2 if apart else 1)
