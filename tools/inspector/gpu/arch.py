"""GPUs: threads of a warp, sectors of memory, and what a multiprocessor holds; occupancy by registers, shared memory and warps.

NVIDIA: "Technical Specifications per Compute Capability" of the CUDA C++ Programming Guide. AMD: LLVM's AMDGPUBaseInfo (registers, their granule,
waves) and AMD's architecture documents (LDS).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Arch:
    """warp: threads of a warp (wave). warps, blocks: resident on a multiprocessor (on AMD: waves on one of its SIMDs, `simds` of them). registers:
    32-bit ones a thread of a SIMD or, on NVIDIA, of the multiprocessor; granule: in which they are given out (to a thread; on NVIDIA to a warp).
    shared: bytes of shared memory; reserved: of these for each block by the system. sector: bytes of memory that are moved at least. banks: of
    shared memory."""

    name: str
    warp: int
    warps: int
    blocks: int
    registers: int
    granule: int
    shared: int
    reserved: int = 0
    simds: int = 1
    sector: int = 32
    banks: int = 32
    separate: bool = False

    @property
    def amd(self) -> bool:
        return self.name.startswith("gfx")


def _sm(number: int, warps: int, blocks: int, shared: int, reserved: int = 1024) -> Arch:
    return Arch(f"sm_{number}", 32, warps, blocks, 65536, 256, shared * 1024, reserved)


def _gfx(name: str, warp: int, waves: int, registers: int, granule: int, shared: int, **more) -> Arch:
    return Arch(name, warp, waves, 32 if warp == 64 else 64, registers, granule, shared * 1024, simds=4, sector=64, **more)


#: gfx908's accumulator registers are a file of their own; later ones share one. RDNA: a work-group processor with two compute units and their LDS
ARCHS = {a.name: a for a in (
    _sm(75, 32, 16, 64, 0), _sm(80, 64, 32, 164), _sm(86, 48, 16, 100), _sm(87, 48, 16, 164), _sm(89, 48, 24, 100), _sm(90, 64, 32, 228),
    _sm(100, 64, 32, 228), _sm(103, 64, 32, 228), _sm(120, 48, 24, 100), _sm(121, 48, 24, 100),
    _gfx("gfx908", 64, 10, 256, 4, 64, separate=True), _gfx("gfx90a", 64, 8, 512, 8, 64), _gfx("gfx942", 64, 8, 512, 8, 64),
    _gfx("gfx950", 64, 8, 512, 8, 160, banks=64),
    *(_gfx(name, 32, 16, 1536, 24, 128) for name in ("gfx1100", "gfx1101", "gfx1151", "gfx1200", "gfx1201")))}


def of(target: str, text: str = "") -> Arch | None:
    """The GPU of a target's name, else of what assembly text says it is for."""
    if target in ARCHS:
        return ARCHS[target]
    head = text[:20000]
    hit = re.search(r"\.target\s+sm_(\d+)|EF_CUDA_SM(\d+)|amdgcn-amd-\w*--?(gfx\w+)|\bsm_(\d+)a?\b", head)
    if hit:
        return ARCHS.get(hit[3] or f"sm_{hit[1] or hit[2] or hit[4]}")
    return None


def usual(isa: str) -> Arch:
    """What GPU code of an ISA is taken to be for that says nothing."""
    return ARCHS["gfx90a" if isa == "amdgcn" else "sm_90"]


@dataclass(frozen=True)
class Occupancy:
    """share: of the warps that the GPU can hold at once; warps of `most`; limit: "registers", "shared memory", "blocks" or "warps" (nothing else);
    blocks: resident ones, where the block's size is known."""

    share: float
    warps: int
    most: int
    limit: str
    blocks: int | None = None

    @property
    def words(self) -> str:
        if not self.warps:
            return f"0%: a block does not fit, by {self.limit}"
        return f"{self.share:.0%} ({self.warps} of {self.most} warps, by {self.limit})"


def occupancy(arch: Arch | None, facts: dict) -> Occupancy | None:
    """How many warps stay on a multiprocessor at once. facts: "registers" or "vector registers" a thread, "shared memory, bytes" and "warps" of a
    block. None where registers are not told."""
    registers = facts.get("registers", facts.get("vector registers"))
    if arch is None or registers is None:
        return None
    shared = facts.get("shared memory, bytes", facts.get("static shared memory, bytes", 0)) or 0
    warps = facts.get("warps") or 0
    most = arch.warps * arch.simds
    if arch.amd:
        if arch.separate:
            registers = max(registers - facts.get("accumulator registers", 0), facts.get("accumulator registers",
                0)) if registers > 256 else registers
        given = max(arch.granule, math.ceil(registers / arch.granule) * arch.granule)
        by_registers = min(arch.warps, arch.registers // given) * arch.simds
    else:
        given = math.ceil(max(registers, 1) * arch.warp / arch.granule) * arch.granule
        by_registers = arch.registers // given // 4 * 4  # a quarter of the registers belongs to each of four schedulers
    limits = {"registers": min(most, by_registers), "warps": most}
    if warps:
        blocks = {"registers": limits["registers"] // warps, "warps": most // warps, "blocks": arch.blocks}
        if shared:
            blocks["shared memory"] = arch.shared // (math.ceil(shared / 128) * 128 + arch.reserved)
        limit = min(blocks, key=lambda k: (blocks[k], k != "warps"))
        resident = blocks[limit]
        return Occupancy(round(resident * warps / most, 4), resident * warps, most, limit, resident)
    limit = min(limits, key=lambda k: (limits[k], k != "warps"))
    return Occupancy(round(limits[limit] / most, 4), limits[limit], most, limit)
