"""What a loop consists of: counts by class, and the figures that `--require` and the verdict are about."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from . import assembled, integer_divisions, lanes
from .code import Code
from .schema import Bound, Class, Function, Instruction, Loop

#: figure -> what it is; the names that `--require` takes
FIGURES = {
    "vector": "share of floating-point instructions on vector or matrix units (of memory accesses where there are none)",
    "fma": "share of floating-point arithmetic that multiplies and adds in one",
    "load_bits": "narrowest load of the vector unit, without one-element splats and spill slots; per thread on a GPU, from global memory",
    "store_bits": "the same for stores",
    "spills": "accesses to stack slots", "calls": "calls of functions",
    "f64": "fp64 instructions in a kernel without fp64 arguments, beside those that divide integers",
    "gathers": "gathers and scatters, also by a load or store for each element", "masked": "share of vector accesses under a mask",
    "convert": "share of conversions in the floating-point instructions",
    "unknown": "share of instructions that the classifier does not know",
    "matrix": "instructions on tensor cores, MFMA, AMX, SME",
    "tensor_cores": "share of the multiply-adds that tensor cores or MFMA do (GPU)",
    "coalesced": "share of the bytes that global memory moves which threads asked for (GPU)",
    "bytes_per_request": "bytes that a warp asks for at a time, from global memory (GPU)",
    "conflicts": "cycles of shared memory beyond the fewest, by the fewest: 0 without bank conflicts (GPU)",
    "occupancy": "share of the warps that a multiprocessor can hold which this kernel leaves room for (GPU)",
    "cycles": "cycles of one iteration, by llvm-mca's model of the target (CPU)", "peak": "share of the model's peak FLOP a cycle (CPU)",
    "instructions": "instructions", "registers": "registers of the kernel (GPU)", "shared": "bytes of shared memory (GPU)",
}


DIVIDE = re.compile(r"i?div[bwlq]?$|u?s?div$|div[u]?w?$|rem[u]?w?$|udiv$|sdiv$")
#: what may count a loop
_COUNTS = re.compile(r"(?:add|sub)[lq]? \$|(?:inc|dec|cmp|test)[bwlq]? |(?:add|sub)s? (?P<a>\w+), (?P=a), #?\d|(?:c\.)?addiw? (?P<b>\w+), (?:(?P=b), )?-?\w+$|"
                     r"(?:cmp|tst|cmn) ")
#: files that are nobody's own: Triton's library, and a compiler's headers of intrinsics, to which gcc gives no caller
_LIBRARY = re.compile(r"/triton/(language|runtime|experimental)/|/lib(?:32|64)?/(?:gcc|clang|llvm-\d+)/.*/include/|^<")


@dataclass
class Region:
    """A loop of a function, or the body of one without loops (`loop` is None). instructions: those the region owns (those of inner loops are not
    its own). hot: judged; tail: takes what another loop leaves, or its place where that cannot run. trips: rounds each time it is entered, where that is
    known; assumed: what they are taken for where a kernel's argument decides that nobody told; rounds: the first of these that is known, or a number for any loop. work: what it does in all, in instructions that compute or move data; heat: its share of the report's.
    left: ids of instructions that take what a loop leaves. On a GPU memory: its requests for memory (gpu.memory.Memory), and the kernel's
    gpu.arch.Occupancy; dots: does it hold a tl.dot? assembled: vectors that single loads
    and stores gather and scatter."""

    function: Function
    loop: Loop | None
    code: Code
    instructions: list[Instruction]
    label: str
    depth: int = 0
    id: str = ""
    hot: bool = False
    tail: bool = False
    heat: float = 0.0
    trips: float | None = None
    assumed: float | None = None
    work: float = 0.0
    kinds: Counter = field(default_factory=Counter)
    units: Counter = field(default_factory=Counter)
    elements: Counter = field(default_factory=Counter)
    figures: dict[str, float | int | None] = field(default_factory=dict)
    calls: Counter = field(default_factory=Counter)
    lines: Counter = field(default_factory=Counter)
    memory: object = None
    occupancy: object = None
    dots: bool = False
    assembled: int = 0
    scalar_calls: int = 0
    rounds: float = 1.0
    runs: float = 1.0
    left: set[int] = field(default_factory=set)
    bound: Bound | None = None

    @property
    def where(self) -> str:
        """file.py:first-last of the source lines that carry its work."""
        files = Counter(f for f, _ in self.lines)
        if not files:
            return ""
        name = files.most_common(1)[0][0]
        at = sorted(n for f, n in self.lines if f == name)
        return f"{name.rpartition('/')[2]}:{at[0]}" + (f"-{at[-1]}" if at[-1] != at[0] else "")


def line_of(i: Instruction) -> tuple[str, int] | None:
    """The user's source line of an instruction: the innermost frame outside Triton's own library and the compiler's headers."""
    return line_of_frames(i.lines)


def line_of_frames(frames) -> tuple[str, int] | None:
    """The innermost of (file, line) frames outside Triton's own library."""
    return next((frame for frame in frames if not _LIBRARY.search(frame[0])), None)


def is_wide(r: Region, i: Instruction) -> bool:
    """Does an instruction work on fp64, other than to divide integers?"""
    return i.what.element == "f64" and line_of(i) not in integer_divisions.lines(r.code).no_f64


def converts(r: Region, i: Instruction) -> bool:
    """Does it convert, other than to divide integers?"""
    return i.what.kind == "convert" and line_of(i) not in integer_divisions.lines(r.code).no_conversion


def counts_flop(r: Region, i: Instruction) -> bool:
    """Does it not stand where integers are divided and nothing floats?"""
    return line_of(i) not in integer_divisions.lines(r.code).no_floats


def works(i: Instruction) -> bool:
    """Does an instruction compute or move data, rather than addresses and loop counters?"""
    c = i.what
    return c.is_float_work or c.unit == "matrix" or _is_data(c)


def _keeps_integers(c: Class) -> bool:
    """Does it write one integer to memory, or gather integers in a register? A loop of floating point that does so has other work beside that."""
    return c.gathered or c.unit == "scalar" and bool(c.stores) and not c.is_float and _is_data(c)


def _is_data(c: Class) -> bool:
    return c.is_memory and not c.is_spill and not c.address and c.kind not in ("branch", "config", "call")


def regions(function: Function, code: Code) -> list[Region]:
    """A function's loops, inner ones first in text order, and its body, counted; `weights` says what they weigh. Blocks that fail belong to neither."""
    out = []
    for loop in function.loops:
        inner = set().union(*(o.blocks for o in function.loops if o.blocks < loop.blocks))
        own = [i for k in sorted(loop.blocks - inner) for i in function.instructions[function.blocks[k].first:function.blocks[k].last]]
        out.append(Region(function, loop, code, own, function.blocks[loop.header].label or f"block {loop.header}", loop.depth))
    in_loops = set().union(*(loop.blocks for loop in function.loops)) if function.loops else set()
    rest = [i for k, b in enumerate(function.blocks) if k not in in_loops and not b.fails for i in function.instructions[b.first:b.last]]
    out.append(Region(function, None, code, rest, "body"))
    lanes.refine(out)
    for r in out:
        r.assembled = assembled.count(r)
        _count(r)
    return out


def _count(r: Region):
    memory = [i.what for i in r.instructions if i.what.is_memory and not i.what.is_spill]
    plain = [c for c in memory if not c.splat]
    r.scalar_calls = sum(i.what.kind == "call" and i.what.unit == "scalar" for i in r.instructions)
    r.figures = {"vector": share_of(r), **counted(r, works, memory, [c for c in plain if c.unit == "vector" or c.lane] or plain), "cycles": None, "peak": None}


def counted(r: Region, works, memory: list[Class], accesses: list[Class]) -> dict[str, float | int | None]:
    """Fill in a region's counts, and return the figures that CPUs and GPUs have in common. works: does an instruction do the region's work? Where
    none that does has a line of source, all that have one say where it is. memory: its accesses to memory; accesses: those whose width counts."""
    r.kinds = Counter("spill" if i.what.is_spill else i.what.kind for i in r.instructions)
    r.units = Counter(i.what.unit for i in r.instructions)
    r.elements = Counter(i.what.element for i in r.instructions if i.what.is_float_work)
    r.calls = Counter(i.what.target or "an address" for i in r.instructions if i.what.kind == "call")
    lines = [(i, at) for i in r.instructions if (at := line_of(i))]
    r.lines = Counter(at for i, at in lines if works(i)) or Counter(at for _, at in lines)
    floating = [i for i in r.instructions if i.what.is_float_work]
    floats = [i.what for i in floating]
    arithmetic = [c for c in floats if c.kind in ("arithmetic", "fma")]
    n = len(r.instructions)

    def share(some: int, of: list) -> float | None:
        return round(some / len(of), 4) if of else None

    return {
        "fma": share(sum(c.kind == "fma" for c in arithmetic), arithmetic),
        "load_bits": min((c.loads for c in accesses if c.loads), default=None),
        "store_bits": min((c.stores for c in accesses if c.stores), default=None),
        "spills": sum(i.what.is_spill for i in r.instructions),
        "calls": sum(r.calls.values()),
        "f64": 0 if r.code.f64 else sum(is_wide(r, i) for i in floating),
        "gathers": r.kinds["gather"] + r.kinds["scatter"] + r.assembled,
        "masked": share(sum(c.masked for c in memory), memory),
        "convert": share(sum(converts(r, i) for i in floating), floats),
        "unknown": round(r.kinds["unknown"] / n, 4) if n else 0.0,
        "matrix": r.units["matrix"],
        "instructions": n,
        "bytes_per_access": round(sum(c.loads + c.stores for c in memory) / 8 / len(memory), 2) if memory else None,
        "registers": r.code.facts.get("registers", r.code.facts.get("vector registers")),
        "shared": r.code.facts.get("shared memory, bytes"),
    }


def share_of(r: Region) -> float | None:
    """The share of a region's data that vector code works on; None where there is none."""
    data = data_of(r)
    return round(sum(c.unit != "scalar" for c in data) / len(data), 4) if data else None


def data_of(r: Region) -> list[Class]:
    """What a region's share of vector code is counted over: arithmetic on floating-point elements, calls of vector mathematics, and integer divisions; where
    there are none of the first two, accesses to memory; where there are none of those either, integer arithmetic."""
    every = [i.what for i in r.instructions if id(i) not in r.left]
    floats = [c for c in every if c.is_float_work or c.unit == "matrix" or c.kind == "call" and c.unit == "vector"]
    if not floats or any(map(_keeps_integers, every)):
        floats += [c for c in every if (_is_data(c) or c.gathered) and not (c.is_float_work or c.unit == "matrix")]
    inner = r.loop is None and not r.function.loops or r.loop is not None and r.loop.inner
    divisions = [i.what for i in r.instructions if inner and DIVIDE.match(i.mnemonic) and not i.what.is_float and i.what.unit == "scalar"]
    lacked = lanes.lacked(r) if inner else None
    singles = [] if lacked is None else [i.what for i in lacked[1] if not (i.what.gathered or i.what.is_float_work)]
    if floats or divisions or singles:
        return floats + divisions + singles
    if r.loop is None or not r.loop.inner:
        return []
    sums = [i for i in r.instructions if i.what.kind in ("arithmetic", "fma", "convert")]
    data = [i.what for i in sums if not _COUNTS.match(i.text)]
    return data or ([] if any(i.what.unit == "vector" for i in r.instructions) else [i.what for i in sums])
