"""What a board is, as it says itself (`probe.py` asks it), and which code is made for it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from ..base import Error
from ..cpu.llvm import targets


@dataclass
class Board:
    """What a machine says of itself. arch: riscv64, ...; vlen: bits of a vector register, 0 for none; clusters: CPUs that share a
    level-2 cache; memory: bytes."""

    runner: str
    arch: str
    cpu: str
    isa: str
    vlen: int
    cores: int
    clusters: list[str] = field(default_factory=list)
    memory: int = 0

    def row(self) -> targets.Target:
        """The compiler's row for it, with as many cores as it says it has."""
        return dataclasses.replace(self._kind(), cores=self.cores)

    def _kind(self) -> targets.Target:
        if self.arch == "riscv64":
            if not self.vlen:
                return targets.get("rv64gc")
            if self.cpu in ("spacemit,x60", "Spacemit(R) X60") and self.vlen == 256:
                return targets.get("spacemit-x60")
            if self.cpu == "spacemit,x100" and self.vlen == 256:
                return targets.get("spacemit-k3-x100")
            if self.cpu == "spacemit,a100" and self.vlen == 1024:
                return targets.get("spacemit-k3-a100")
            return targets.get("rv64gcv") if self.vlen == 128 else targets.with_vlen("rv64gcv", self.vlen)
        row = targets.widest(self.arch, set(self.isa.replace("sse4_2", "sse4.2").split()))  # as LLVM spells it
        if row is None:
            raise Error(f"{self.runner} is a {self.arch} machine with {self.isa or 'nothing said of its instructions'}; boards are riscv64, aarch64 and x86_64")
        return row
