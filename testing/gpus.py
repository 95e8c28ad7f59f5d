"""GPUs that a run on a CPU can describe: what `torch.cuda` and Triton's driver say of them, and what they hold.

What follows from the compute capability is from the CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; the rest from
NVIDIA's data sheets and architecture white papers. Memory is the data sheet's; the H200's L2,
which its data sheet does not say, is that of the H100, the same chip.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..backends.base import Error, suggest

#: compute capability -> (shared memory of a block at most, of a multiprocessor, both in KiB; threads of a multiprocessor)
_LIMITS = {(7, 5): (64, 64, 1024), (8, 0): (163, 164, 2048), (8, 6): (99, 100, 1536), (8, 9): (99, 100, 1536), (9, 0): (227, 228, 2048),
           (10, 0): (227, 228, 2048), (12, 0): (99, 100, 1536)}
#: name here -> (name of the device, compute capability, multiprocessors, memory in GiB, L2 in MiB)
_DEVICES = {
    "t4": ("Tesla T4", (7, 5), 40, 16, 4),
    "a100": ("NVIDIA A100-SXM4-80GB", (8, 0), 108, 80, 40),
    "a10": ("NVIDIA A10", (8, 6), 72, 24, 6),
    "l4": ("NVIDIA L4", (8, 9), 58, 24, 48),
    "l40s": ("NVIDIA L40S", (8, 9), 142, 48, 96),
    "rtx4090": ("NVIDIA GeForce RTX 4090", (8, 9), 128, 24, 72),
    "h100": ("NVIDIA H100 80GB HBM3", (9, 0), 132, 80, 50),
    "h200": ("NVIDIA H200", (9, 0), 132, 141, 50),
    "b200": ("NVIDIA B200", (10, 0), 148, 180, 126),
    "rtx5090": ("NVIDIA GeForce RTX 5090", (12, 0), 170, 32, 96),
}
DEFAULT = "h100"


@dataclass(frozen=True)
class GPU:
    """key: its name here; name: the device's; capability: (major, minor); multiprocessors: how many; memory, l2: in bytes; shared, shared_all: bytes of
    shared memory of a block at most and of a multiprocessor; threads: of a multiprocessor at most."""

    key: str
    name: str
    capability: tuple[int, int]
    multiprocessors: int
    memory: int
    l2: int
    shared: int
    shared_all: int
    threads: int

    @property
    def arch(self) -> int:
        """The capability as Triton writes it: 90."""
        return self.capability[0] * 10 + self.capability[1]


def get(key: str) -> GPU:
    """The GPU called `key`. Raises `Error`, with the nearest name, for one that is not in the table."""
    if key not in _DEVICES:
        raise Error("--triton-cpu-as: " + suggest("GPU", key, _DEVICES))
    name, capability, count, memory, l2 = _DEVICES[key]
    shared, shared_all, threads = _LIMITS[capability]
    return GPU(key, name, capability, count, memory << 30, l2 << 20, shared << 10, shared_all << 10, threads)
