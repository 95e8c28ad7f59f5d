"""What a loop consists of: counts by class, and the figures that `--require` and the verdict are about."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from .code import Code
from .schema import Function, Instruction, Loop

#: figure -> what it is; the names that `--require` takes
FIGURES = {
    "vector": "share of floating-point instructions on vector or matrix units (of memory accesses where there are none)",
    "fma": "share of floating-point arithmetic that multiplies and adds in one",
    "load_bits": "narrowest load of the vector unit, without one-element splats and spill slots; per thread on a GPU, from global memory",
    "store_bits": "the same for stores",
    "spills": "accesses to stack slots", "calls": "calls of functions",
    "f64": "fp64 instructions in a kernel without fp64 arguments",
    "gathers": "gathers and scatters", "masked": "share of vector accesses under a mask",
    "convert": "share of conversions in the floating-point instructions",
    "unknown": "share of instructions that the classifier does not know",
    "matrix": "instructions on tensor cores, MFMA, AMX, SME",
    "tensor_cores": "share of the multiply-adds that tensor cores or MFMA do (GPU)",
    "coalesced": "share of the bytes that global memory moves which threads asked for (GPU)",
    "bytes_per_request": "bytes that a warp asks for at a time, from global memory (GPU)",
    "conflicts": "cycles of shared memory beyond the fewest, by the fewest: 0 without bank conflicts (GPU)",
    "occupancy": "share of the warps that a multiprocessor can hold which this kernel leaves room for (GPU)",
    "instructions": "instructions", "registers": "registers of the kernel (GPU)", "shared": "bytes of shared memory (GPU)",
}


_LIBRARY = re.compile(r"/triton/(language|runtime|experimental)/|^<")


@dataclass
class Region:
    """A loop of a function, or the body of one without loops (`loop` is None). instructions: those the region owns (those of inner loops are not
    its own). memory: on a GPU its requests for memory (gpu.memory.Memory), and the kernel's gpu.arch.Occupancy; dots: does it hold a tl.dot? hot: innermost and carrying memory or arithmetic; tail: takes what another loop over the same lines leaves."""

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
    kinds: Counter = field(default_factory=Counter)
    units: Counter = field(default_factory=Counter)
    elements: Counter = field(default_factory=Counter)
    figures: dict[str, float | int | None] = field(default_factory=dict)
    calls: Counter = field(default_factory=Counter)
    lines: Counter = field(default_factory=Counter)
    memory: object = None
    occupancy: object = None
    dots: bool = False

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
    """The user's source line of an instruction: the innermost frame outside Triton's own library."""
    return line_of_frames(i.lines)


def line_of_frames(frames) -> tuple[str, int] | None:
    """The innermost of (file, line) frames outside Triton's own library."""
    return next((frame for frame in frames if not _LIBRARY.search(frame[0])), None)


def works(i: Instruction) -> bool:
    """Does an instruction compute or move data, rather than addresses and loop counters?"""
    c = i.what
    return c.is_float_work or c.unit == "matrix" or (c.is_memory and not c.is_spill and c.space not in ("const", "param")
                                                     and (c.unit != "scalar" or c.is_float or c.kind in ("gather", "scatter", "atomic")))


def regions(function: Function, code: Code) -> list[Region]:
    """A function's loops, inner ones first in text order, and its body where it has none that work."""
    out = []
    for loop in function.loops:
        inner = set().union(*(o.blocks for o in function.loops if o.blocks < loop.blocks))
        own = [i for k in sorted(loop.blocks - inner) for i in function.instructions[function.blocks[k].first:function.blocks[k].last]]
        r = Region(function, loop, code, own, function.blocks[loop.header].label or f"block {loop.header}", loop.depth)
        r.hot = loop.inner and any(works(i) or _integer_work(i) for i in own)
        out.append(r)
    in_loops = set().union(*(loop.blocks for loop in function.loops)) if function.loops else set()
    rest = [i for k, b in enumerate(function.blocks) if k not in in_loops for i in function.instructions[b.first:b.last]]
    body = Region(function, None, code, rest, "body")
    if not any(r.hot for r in out):
        # one program of the grid runs it once: the grid is the loop; or all work stands beside inner loops
        candidates = [r for r in [*out, body] if any(works(i) for i in r.instructions)]
        for r in candidates:
            r.hot = r.depth == max(c.depth for c in candidates)
    out.append(body)
    for r in out:
        _count(r)
    _tails(out)
    total = sum(len(r.instructions) * 10.0 ** r.depth for r in out) or 1.0
    for r in out:
        r.heat = len(r.instructions) * 10.0 ** r.depth / total
    return out


def _integer_work(i: Instruction) -> bool:
    return i.what.unit == "vector" and i.what.is_memory or i.what.kind == "call"


def _count(r: Region):
    r.kinds = Counter("spill" if i.what.is_spill else i.what.kind for i in r.instructions)
    r.units = Counter(i.what.unit for i in r.instructions)
    r.elements = Counter(i.what.element for i in r.instructions if i.what.is_float_work)
    r.calls = Counter(i.what.target or "an address" for i in r.instructions if i.what.kind == "call")
    for i in r.instructions:
        if works(i) and (at := line_of(i)):
            r.lines[at] += 1
    floats = [i.what for i in r.instructions if i.what.is_float_work]
    memory = [i.what for i in r.instructions if i.what.is_memory and not i.what.is_spill and i.what.space not in ("const", "param")]
    base = floats or memory
    vectors = sum(c.unit != "scalar" for c in base)
    arithmetic = [c for c in floats if c.kind in ("arithmetic", "fma")]
    accesses = [c for c in memory if c.unit == "vector" and not c.splat]
    if not accesses:
        accesses = [c for c in memory if not c.splat]
    n = len(r.instructions)
    r.figures = {
        "vector": round(vectors / len(base), 4) if base else None,
        "fma": round(sum(c.kind == "fma" for c in arithmetic) / len(arithmetic), 4) if arithmetic else None,
        "load_bits": min((c.loads for c in accesses if c.loads), default=None),
        "store_bits": min((c.stores for c in accesses if c.stores), default=None),
        "spills": sum(i.what.is_spill for i in r.instructions),
        "calls": sum(r.calls.values()),
        "f64": 0 if r.code.f64 else sum(c.element == "f64" for c in floats),
        "gathers": r.kinds["gather"] + r.kinds["scatter"],
        "masked": round(sum(c.masked for c in memory) / len(memory), 4) if memory else None,
        "convert": round(sum(c.kind == "convert" for c in floats) / len(floats), 4) if floats else None,
        "unknown": round(r.kinds["unknown"] / n, 4) if n else 0.0,
        "matrix": r.units["matrix"],
        "instructions": n,
        "bytes_per_access": round(sum(c.loads + c.stores for c in memory) / 8 / len(memory), 2) if memory else None,
        "registers": r.code.facts.get("registers", r.code.facts.get("vector registers")),
        "shared": r.code.facts.get("shared memory, bytes"),
    }


def _tails(found: list[Region]):
    """Of loops over the same lines side by side the widest is meant; the others take what it leaves, a chunk or an element at a time."""
    hot = [r for r in found if r.hot and r.loop]
    for r in hot:
        for main in hot:
            if main is r or main.tail or main.depth != r.depth or not _same_work(main, r):
                continue
            if _rank(main) > _rank(r):
                r.tail = True
                break
    for r in hot:
        r.hot = not r.tail


def _same_work(main: Region, r: Region) -> bool:
    """Do two loops come from the same source lines? A masked one may have lines more, of loads that arithmetic takes from memory in the other."""
    a, b = set(main.lines), set(r.lines)
    if not b or a == b:
        return bool(b)
    masked = (r.figures["masked"] or 0) > (main.figures["masked"] or 0)
    return masked and len(a & b) >= 0.7 * len(a | b)


def _rank(r: Region) -> tuple:
    """Sorts a main loop behind its tails: wider, less masked, more work for each instruction."""
    return r.figures["vector"] or 0, -(r.figures["masked"] or 0), _work(r) / len(r.instructions)


def _work(r: Region) -> int:
    return sum(i.what.bits for i in r.instructions if i.what.is_float_work) or sum(i.what.loads + i.what.stores for i in r.instructions)
