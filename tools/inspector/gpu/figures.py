"""A GPU function's loops and body, and their figures."""

from __future__ import annotations

import re

from ..code import Code
from ..schema import Function, Instruction
from ..stats import Region, counted, line_of
from . import arch as archs
from . import lanes, verdict
from .kernels import Kernel
from .memory import Memory, Request, Shared
from .units import multiply_adds


def works(i: Instruction) -> bool:
    """Does an instruction compute or move data, rather than addresses and loop counters?"""
    c = i.what
    return c.is_float_work or c.unit == "matrix" or (c.is_memory and not c.is_spill and c.space not in ("const", "param")
                                                     and (c.unit != "scalar" or c.is_float or c.kind in ("gather", "scatter", "atomic")))


def _carries(i: Instruction) -> bool:
    return works(i) or i.what.unit == "vector" and i.what.is_memory or i.what.kind == "call"


def regions(function: Function, code: Code) -> list[Region]:
    """A function's loops, inner ones first in text order, and its body where it has none that work."""
    out = []
    for loop in function.loops:
        inner = set().union(*(o.blocks for o in function.loops if o.blocks < loop.blocks))
        own = [i for k in sorted(loop.blocks - inner) for i in function.instructions[function.blocks[k].first:function.blocks[k].last]]
        r = Region(function, loop, code, own, function.blocks[loop.header].label or f"block {loop.header}", loop.depth)
        r.hot = loop.inner and any(map(_carries, own))
        out.append(r)
    in_loops = set().union(*(loop.blocks for loop in function.loops)) if function.loops else set()
    rest = [i for k, b in enumerate(function.blocks) if k not in in_loops for i in function.instructions[b.first:b.last]]
    body = Region(function, None, code, rest, "body")
    if not any(r.hot for r in out):
        # one program of the grid runs it once: the grid is the loop; or all work stands beside inner loops
        candidates = [r for r in [*out, body] if any(map(works, r.instructions))]
        for r in candidates:
            r.hot = r.depth == max(c.depth for c in candidates)
    out.append(body)
    machine = archs.of(code.target, code.text) or archs.usual(code.isa)
    kernel = _kernel(code, machine)
    walked = lanes.walk(function, code.isa, machine, dict(code.arguments))
    for r in out:
        r.memory = _memory(r, kernel, machine, walked)
    if kernel and not machine.amd:
        kernel.straighten(function.instructions)
    for r in out:
        r.dots = kernel is not None and any(line_of(i) in kernel.dots for i in r.instructions)
        count(r, machine)
    _tails(out)
    total = sum(len(r.instructions) * 10.0 ** r.depth for r in out) or 1.0
    for r in out:
        r.heat = len(r.instructions) * 10.0 ** r.depth / total
    return out


def _kernel(code: Code, machine: archs.Arch) -> Kernel | None:
    """What TTGIR says of a kernel's accesses; None where there is none, or it is of another Triton and not understood: then the machine code
    alone says."""
    text = code.stages.get("ttgir")
    if not isinstance(text, str) or not text:
        return None
    try:
        return Kernel(text, code.values, code.unaligned, machine.warp, machine.sector)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None


def _memory(r: Region, kernel: Kernel | None, machine: archs.Arch, walked: dict) -> Memory | None:
    """A region's requests: of the accesses in TTGIR where its lines have them, else of its instructions. None for code that touches no memory."""
    found = Memory(machine.sector)
    groups: dict[tuple, list[Instruction]] = {}
    for i in r.instructions:
        if i.what.is_memory and i.what.space in ("global", "flat", ""):
            kind = "atomic" if i.what.kind == "atomic" else "store" if i.what.stores else "load"
            q = walked.get(id(i))
            groups.setdefault((line_of(i), kind, (q.useful, q.sectors) if q else None), []).append(i)
    told: dict[tuple, int] = {}
    for (line, kind, _), instructions in groups.items():
        bits = max(i.what.loads or i.what.stores for i in instructions)
        numbers = ()
        if kernel and line:
            numbers = tuple(kernel.numbers(line, kind, bits, r.loop is not None, not machine.amd, walked.get(id(instructions[0]))))
        if numbers:
            told[numbers] = max(bits, told.get(numbers, 0))
        elif not (kernel and line in kernel.made):  # a tensor's description is written once
            found.requests += [_followed(walked.get(id(i))) or _unfollowed(i, kind, machine, r) for i in instructions]
    for numbers, bits in told.items():
        found.requests += kernel.requests(list(numbers), bits)
    found.shared = [walked[id(i)] for i in r.instructions if isinstance(walked.get(id(i)), Shared)]
    return found.sum() if found.requests or found.shared else None


def _followed(q: Request | None) -> Request | None:
    return q if q is not None and q.known else None


def _unfollowed(i: Instruction, kind: str, machine: archs.Arch, r: Region) -> Request:
    """The request of an instruction whose address nobody follows: the TMA unit's, which fetches whole rows; that of a thread which walks through
    memory on its own, so that others must be elsewhere; or one that is not known."""
    line, bits = line_of(i), i.what.loads or i.what.stores
    where = f"{line[0].rpartition('/')[2]}:{line[1]}" if line else ""
    if bits < 128 and r.loop is not None and _walks(i, bits // 8, r):
        sectors = machine.warp
        return Request(kind, bits, machine.warp, machine.warp * bits / 8, sectors, -(-machine.warp * bits // 8 // machine.sector), run=bits / 8,
        line=where, alone=True)
    return Request(kind, bits, machine.warp, known=bits >= 1024, bulk=bits >= 1024, line=where)


def _walks(i: Instruction, step: int, r: Region) -> bool:
    """Does the loop move an access's address on by no more than what the thread accessed?"""
    base = re.search(r"\[\s*(%\w+|R\d+)", i.operands) or re.search(r"\bv\[(\d+):\d+\]", i.operands.partition(",")[2] or i.operands)
    if not base:
        return False
    name = re.escape(base[1] if not base[1].isdigit() else f"v{base[1]}")
    number = rf"(?:0x0*{step:x}|{step})"
    move = re.compile(rf"{name}(?:\.64)?, (?:\w+, )*(?:{name}(?:\.reuse)?, {number}|{number}, {name})(?:,|$)")
    return any(re.match(r"(add|v_add|IADD3|VIADD|IADD)", x.mnemonic) and move.match(x.operands) for x in r.instructions)


def count(r: Region, machine: archs.Arch):
    """Fill in a region's counts and figures."""
    memory = [i.what for i in r.instructions if i.what.is_memory and not i.what.is_spill and i.what.space not in ("const", "param")]
    base = [i.what for i in r.instructions if i.what.is_float_work] or memory
    vectors = sum(c.unit != "scalar" for c in base)
    full = verdict.full(r.memory.judged) if r.memory else None
    r.occupancy = occupied = archs.occupancy(archs.of(r.code.target, r.code.text), r.code.facts)
    macs = {unit: sum(multiply_adds(i, machine.warp) for i in r.instructions if i.what.unit == unit) for unit in ("vector", "matrix")}
    r.figures = {
        "vector": round(full, 4) if full is not None else round(vectors / len(base), 4) if base else None,
        **counted(r, works, memory, [c for c in memory if c.unit == "vector" and not c.splat and c.space in ("global", "flat", "")]),
        "tensor_cores": round(macs["matrix"] / sum(macs.values()), 4) if any(macs.values()) else None,
        "coalesced": r.memory.coalescing if r.memory else None,
        "bytes_per_request": r.memory.bytes_per_request if r.memory else None,
        "conflicts": r.memory.conflicts if r.memory and r.memory.shared else None if any(c.space == "shared" for c in memory) else 0.0,
        "occupancy": occupied.share if occupied else None,
    }


def _tails(found: list[Region]):
    """Of loops over the same lines side by side the widest is meant; the others take what it leaves."""
    hot = [r for r in found if r.hot and r.loop]
    for r in hot:
        r.tail = any(main is not r and not main.tail and main.depth == r.depth and _same_work(main, r) and _rank(main) > _rank(r) for main in hot)
    for r in hot:
        r.hot = not r.tail


def _same_work(main: Region, r: Region) -> bool:
    a, b = set(main.lines), set(r.lines)
    if not b or a == b:
        return bool(b)
    masked = (r.figures["masked"] or 0) > (main.figures["masked"] or 0)
    return masked and len(a & b) >= 0.7 * len(a | b)


def _rank(r: Region) -> tuple:
    work = sum(i.what.bits for i in r.instructions if i.what.is_float_work) or sum(i.what.loads + i.what.stores for i in r.instructions)
    return r.figures["vector"] or 0, -(r.figures["masked"] or 0), work / len(r.instructions)
