"""What `--target` takes: every CPU row of the compiler, NVIDIA's sm_* and AMD's gfx*. LLVM and ptxas abort on names they do not know, so only
names from these tables get through."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from ...backends.base import Error

#: compute capability -> what it is, those for which Triton makes code
SM = {75: "Turing", 80: "Ampere, A100", 86: "Ampere, RTX 30", 87: "Ampere, Orin", 89: "Ada, RTX 40, L4", 90: "Hopper, H100",
      100: "Blackwell, B200", 103: "Blackwell Ultra, B300", 120: "Blackwell, RTX 50", 121: "Blackwell, GB10"}
#: AMD architecture -> (warp size, what it is)
GFX = {"gfx908": (64, "CDNA, MI100"), "gfx90a": (64, "CDNA 2, MI200"), "gfx942": (64, "CDNA 3, MI300"), "gfx950": (64, "CDNA 4, MI350"),
       "gfx1100": (32, "RDNA 3, RX 7900"), "gfx1101": (32, "RDNA 3, RX 7800"), "gfx1151": (32, "RDNA 3.5, Strix Halo"),
       "gfx1200": (32, "RDNA 4, RX 9060"), "gfx1201": (32, "RDNA 4, RX 9070")}


@dataclass(frozen=True)
class Goal:
    """A target: `isa` is the row of isa.ISAS its final assembly has; backend and arch are Triton's; vlen as isa.Machine has it; vector_bits: widest
    vector register, 0 where it has none, on a GPU the widest memory access of a thread; row: the CPU compiler's; foreign: the package that compiles,
    where that is neither ours nor Triton's own."""

    name: str
    isa: str
    backend: str
    arch: object
    warp: int = 0
    vector_bits: int = 128
    about: str = ""
    row: object = None
    foreign: object = None

    @property
    def gpu(self) -> bool:
        return self.backend != "cpu"

    @property
    def vlen(self) -> int:
        return self.vector_bits or 128

    def triton(self):
        from triton.backends.compiler import GPUTarget

        from ...backends.cpu.plugin import claims
        return GPUTarget(self.backend, self.arch, self.warp) if self.gpu else claims.target(self.arch, self.warp)


def names() -> list[str]:
    from ...backends.cpu.llvm import targets
    from ...backends.dispatch import foreign
    other = foreign.found()
    return ["native", *([other.name] if other else []), *targets.NAMES, *targets.ALIASES, *(f"sm_{n}" for n in SM), *GFX]


def get(name: str, vlen: int | None = None) -> Goal:
    """The target called `name`, or NAME:vlenN. vlen: RVV's register width in bits. Raises `Error` for unknown names and impossible widths."""
    from ...backends.cpu.llvm import targets
    from ...backends.dispatch import foreign
    if hit := re.fullmatch(r"(.+):vlen(\d+)", name):  # as it is printed
        if vlen not in (None, int(hit[2])):
            raise Error(f"--target {name} and --vlen {vlen}: two widths")
        name, vlen = hit[1], int(hit[2])
    name = targets.ALIASES.get(name.lower(), name)
    if (hit := re.fullmatch(r"sm_?(\d+)a?", name)) and int(hit[1]) in SM:
        goal = Goal(f"sm_{hit[1]}", "sass", "cuda", int(hit[1]), 32, about=SM[int(hit[1])])
    elif name in GFX:
        goal = Goal(name, "amdgcn", "hip", name, GFX[name][0], about=GFX[name][1])
    elif name == "native" or name in targets.NAMES:
        row = targets.get(name)
        isa = {"x86_64": "x86-64", "aarch64": "aarch64", "riscv64": "riscv64"}[row.triple.partition("-")[0]]
        goal = Goal(name, isa, "cpu", name, vector_bits=0 if row.isa == "scalar" else row.vector_bits, about=row.isa, row=row)
    elif name in [one.name for one in foreign.KNOWN]:
        goal = _of_another(name)
    else:
        raise Error(targets.unknown(name, names()))
    return goal if vlen is None else _with_vlen(goal, vlen)


def _of_another(name: str) -> Goal:
    """What another package for target "cpu" compiles for: the architecture that its target names, else this machine's."""
    from ...backends.cpu.llvm import targets
    from ...backends.dispatch import foreign
    other = foreign.found()
    if other is None or other.name != name:
        raise Error(f"target {name} is the compiler of that name, which is not installed" + (f"; {other.name} is" if other else ""))
    arch = str(getattr(foreign.driver_of(other).get_current_target(), "arch", ""))
    row = targets.TARGETS["rv64gcv"] if arch.startswith("spacemit-") else targets.native()
    row = targets.TARGETS.get(arch, row)
    isa = {"x86_64": "x86-64", "aarch64": "aarch64", "riscv64": "riscv64"}[row.triple.partition("-")[0]]
    return Goal(name, isa, "cpu", arch or "native", vector_bits=row.vector_bits, about=f"another compiler, {foreign.target_of(other)}", foreign=other)


def _with_vlen(goal: Goal, vlen: int) -> Goal:
    """`goal` with vector registers of another width: a row of its own, named `NAME:vlenN`."""
    from ...backends.cpu.llvm import targets
    if goal.isa != "riscv64" or not goal.vector_bits or goal.row is None:
        raise Error(f"--vlen is the width of RISC-V's vector registers; {goal.name} has none of those. "
                    "It goes with rv64gcv, spacemit-x60, spacemit-k3-x100 and spacemit-k3-a100")
    if goal.row.cpu == "spacemit-x60" and 128 <= vlen < 256:
        raise Error(f"--vlen {vlen}: the X60's registers have 256 bits; it takes 256 or more, or choose --target rv64gcv")
    row = targets.with_vlen(goal.name, vlen)
    return dataclasses.replace(goal, name=row.name, arch=row.name, vector_bits=vlen, row=row)
