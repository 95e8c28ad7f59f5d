"""What a warp's accesses cost: sectors of global memory and banks of shared memory.

A warp's instruction is one request. Global memory answers in sectors (32 bytes on NVIDIA, 64 on AMD): what lies in a sector that is not asked for is
moved all the same. Shared memory answers one word of each bank a cycle.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Request:
    """One access of one warp, or several alike. useful: bytes that its threads ask for, each counted once; sectors: how many it touches; best: how
    few would do; width: bits a thread; threads: of a warp; uniform: do all threads want the same? data: are the addresses data? stride: bytes from
    one thread to the next, where that is the same for all; run: bytes that lie together; args: arguments that the addresses depend on; apart: the
    argument that is the distance of what does not lie together; known: False where the addresses could not be followed; bulk: moved by the TMA unit;
    times: how many instructions it stands for; line: file.py:number; tile: its elements, and threads for them; unaligned, could: arguments whose
    alignment is not known, and the width in bits that was to be had with it; together: efficiency of all requests of the warp for the tile, as if
    they came at once; divided: are addresses computed by division? alone: does each thread walk through memory on its own?"""

    kind: str
    width: int
    threads: int
    useful: float = 0.0
    sectors: float = 0.0
    best: float = 0.0
    uniform: bool = False
    data: bool = False
    stride: int | None = None
    run: float = 0.0
    apart: str = ""
    args: frozenset = frozenset()
    known: bool = True
    bulk: bool = False
    times: float = 1.0
    line: str = ""
    tile: tuple[int, int] | None = None
    unaligned: tuple[str, ...] = ()
    could: int = 0
    together: float | None = None
    divided: bool = False
    alone: bool = False

    @property
    def efficiency(self) -> float:
        """Fewest sectors by sectors touched."""
        return self.best / self.sectors if self.sectors else 1.0

    @property
    def score(self) -> float:
        """Share of what a full request (4 bytes a thread, in whole sectors) does."""
        if self.bulk:
            return 1.0
        return self.efficiency * min(1.0, self.useful / (4 * self.threads))


@dataclass
class Shared:
    """A warp's access to shared memory: cycles that it takes, and the fewest that so many bytes take."""

    cycles: float
    best: float
    line: str = ""


@dataclass
class Memory:
    """A region's accesses. bytes_per_request: useful ones a warp's request; best: those of a request of 128 bits a thread; coalescing: share of the
    sectors' bytes that is needed, None where no address is known; conflicts: cycles of shared memory beyond the fewest, by the fewest; sector:
    bytes."""

    sector: int = 32
    requests: list[Request] = field(default_factory=list)
    shared: list[Shared] = field(default_factory=list)
    bytes_per_request: float | None = None
    best: int | None = None
    sectors: float | None = None
    width_bits: int | None = None
    coalescing: float | None = None
    conflicts: float | None = None

    @property
    def judged(self) -> list[Request]:
        """The requests that a verdict is about: where some spread over the warp, those that fetch one value for all do not count."""
        spread = [r for r in self.requests if not r.uniform]
        return spread or self.requests

    def as_dict(self) -> dict:
        """The figures, as JSON takes them."""
        return {name: getattr(self, name) for name in ("bytes_per_request", "best", "sectors", "sector", "width_bits", "coalescing", "conflicts")}

    def sum(self) -> Memory:
        """Fill in the figures from the requests. Returns itself."""
        judged = self.judged
        known = [r for r in judged if r.known and not r.bulk]
        if judged:
            self.width_bits = min(r.width for r in judged)
        if known:
            times = sum(r.times for r in known)
            self.bytes_per_request = round(sum(r.useful * r.times for r in known) / times, 1)
            self.best = 16 * max(r.threads for r in known)
            self.sectors = round(sum(r.sectors * r.times for r in known) / times, 2)
            if all(r.uniform for r in known):
                self.coalescing = round(sum(r.score * r.times for r in known) / times, 4)
            else:
                self.coalescing = round(sum(r.best * r.times for r in known) / sum(r.sectors * r.times for r in known), 4)
        elif any(r.bulk for r in judged) and all(r.known for r in judged):
            self.coalescing = 1.0
        if best := sum(s.best for s in self.shared):
            self.conflicts = round(sum(s.cycles for s in self.shared) / best - 1, 4)
        return self


def request(kind: str, addresses: np.ndarray, active: np.ndarray | None, width: int, sector: int, **more) -> Request:
    """A warp's request for `width` bytes at each thread's address. Threads that are not active ask for nothing."""
    threads = len(addresses)
    at = addresses if active is None or not active.any() else addresses[active]
    start = np.unique(at)
    bytes_ = np.unique((start[:, None] + np.arange(0, width, min(width, 4))).ravel() // min(width, 4)) if width >= 4 else start
    useful = len(bytes_) * min(width, 4)
    first, last = start // sector, (start + width - 1) // sector
    sectors = len(np.unique(np.concatenate([first, last, *(first + k for k in range(1, int((last - first).max())))]))) if len(start) else 0
    steps = np.diff(at)
    even = len(steps) and (steps == steps[0]).all()
    runs = 1 + int((np.diff(start) > width).sum()) if len(start) else 1
    return Request(kind, 8 * width, threads, useful, sectors, -(-useful // sector), uniform=len(start) == 1 and len(at) > 1,
                   stride=int(steps[0]) if even else None, run=useful / runs, **more)


def cycles(addresses: np.ndarray, active: np.ndarray | None, width: int, banks: int = 32, grouped: bool = True) -> tuple[int, int]:
    """(cycles, fewest) of a warp's access to shared memory: groups of threads that together ask for a row of all banks are served one after another,
    and each word of a bank takes a cycle of its group. Threads that ask for the same word are served together. grouped: are neighbouring threads a
    group? Where the hardware chooses others that nobody documents, the best groups there could be are taken."""
    group = max(1, min(len(addresses), banks * 4 // max(4, width))) if grouped else len(addresses)
    total = fewest = 0
    for k in range(0, len(addresses), group):
        part = addresses[k:k + group]
        if active is not None:
            part = part[active[k:k + group]]
        if not len(part):
            continue
        words = np.unique((part[:, None] + np.arange(0, width, 4)).ravel() // 4)
        total += int(np.bincount(words % banks).max())
        fewest += -(-len(words) // banks)
    return total, fewest
