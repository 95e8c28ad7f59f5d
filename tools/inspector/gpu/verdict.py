"""VECTOR, PARTLY or SCALAR for a hot loop of GPU code, and the likely causes with their remedies.

What counts is what a warp's requests for global memory cost: a request is *full* when at least 95% of the sectors that it touches are needed and its
threads want 4 bytes or more each. VECTOR: at least 95% of the requests are full. SCALAR: none needs more than a quarter of what it moves, or all
threads want one value. Spills and shared memory that takes twice as long as it must make VECTOR PARTLY.
"""

from __future__ import annotations

from collections import Counter

from ..cause import PARTLY, SCALAR, VECTOR, Cause, Causes
from ..stats import Region

#: share of sectors that a full request needs, and of full requests in vector code; share of a full request up to which code counts as scalar
_WHOLE, _QUARTER = 0.95, 0.25
#: extra cycles of shared memory, by the fewest, that a verdict minds, and that are told
_CONFLICTS, _TOLD = 1.0, 0.5


def score(request) -> float:
    """What a request does of a full one; where its addresses are not known, by the width of a thread's access: 128 bits count as full."""
    return request.score if request.known else min(1.0, request.width / 128) * (1 if request.width >= 128 else 2 if request.width >= 32 else 1)


def full(requests) -> float | None:
    """The share of requests that are full."""
    total = sum(q.times for q in requests)
    return sum(q.times for q in requests if score(q) >= _WHOLE) / total if total else None


def of(r: Region) -> str | None:
    """The verdict of a region; None where it neither computes nor touches memory."""
    share = r.figures["vector"]
    if share is None:
        return None
    if share >= _WHOLE:
        slow = r.figures["spills"] or (r.figures["conflicts"] or 0) > _CONFLICTS
        return PARTLY if slow else VECTOR
    return SCALAR if all(map(poor, r.memory.judged if r.memory else [])) else PARTLY


def poor(q) -> bool:
    """Does a request do a quarter of what it could, or less? One value for all threads is that; so are sectors of which the warp's other requests for
    the tile need no more; an access whose addresses are not known is where it is narrower than 32 bits."""
    if q.bulk or not q.known:
        return not q.bulk and q.width < 32
    return q.uniform or (q.efficiency if q.together is None else max(q.efficiency, q.together)) <= _QUARTER


def causes(r: Region) -> list[Cause]:
    """What stands in the way, the likeliest first. Empty for a loop without faults."""
    out = Causes(r)
    for target, count in r.calls.items():
        out.add("call", f"call of `{target}`" + (f", {count} of them" if count > 1 else ""),
                "the function was not inlined: remove noinline, or compute it with tl operations", lambda i: i.what.kind == "call")
    if r.memory:
        _memory(r, out)
    if r.figures["spills"]:
        out.add("spills", f"{r.figures['spills']} accesses to local memory, where registers did not suffice",
                "a smaller tile, fewer values alive at once, more warps", lambda i: i.what.is_spill)
    if r.dots and not r.figures["matrix"]:
        out.add("no tensor cores", "a tl.dot is computed without tensor cores",
        "fp16, bf16, fp8 or int8 operands, or input_precision=\"tf32\" for fp32, in tiles of 16 "
                "or more each way", lambda i: i.what.kind == "fma")
    if r.occupancy and r.occupancy.share < 0.25 and (r.figures["tensor_cores"] or 0) < 0.5:
        out.append(Cause("low occupancy", f"occupancy {r.occupancy.words}: few warps to hide memory's latency behind", {
            "registers": "a smaller tile, or fewer values alive at once", "shared memory": "fewer stages (num_stages) or a smaller tile"}.get(
                r.occupancy.limit, "more warps a block")))
    if r.figures["f64"] and r.code.typed:
        out.add("fp64", f"{r.figures['f64']} fp64 instructions, though no argument is fp64", "cast to tl.float32, write constants as fp32",
                lambda i: i.what.element == "f64")
    if (r.figures["convert"] or 0) >= 0.25:
        out.add("type conversion", f"{r.figures['convert']:.0%} of the floating-point instructions convert", "keep one element type through the loop",
                lambda i: i.what.kind == "convert")
    return out


def _memory(r: Region, out: Causes):
    """Causes of requests that are not full: the same fault is told once, with the line that has most of it."""
    found: dict[str, Counter] = {}
    said: dict[str, tuple[str, str]] = {}
    judged = r.memory.judged
    for q in judged:
        if score(q) >= _WHOLE:
            continue
        name, text, remedy = fault(q, r)
        found.setdefault(name, Counter())[q.line] += q.times
        said.setdefault(f"{name} {q.line}", (text, remedy))
    for name, lines in sorted(found.items(), key=lambda kv: -sum(kv[1].values())):
        line = lines.most_common(1)[0][0]
        out.append(Cause(name, *said[f"{name} {line}"], line))
    narrow = Counter({(q.line, q.unaligned, q.width, q.could): q.times for q in judged if q.unaligned and q.could > q.width})
    if narrow and not found:
        (line, names, bits, could), _ = narrow.most_common(1)[0]
        out.append(Cause("alignment unknown", *unaligned(names, bits, could), line))
    if divided := Counter(q.line for q in r.memory.requests if q.divided and (q.uniform or score(q) < _WHOLE)):
        out.append(Cause("index by division", "addresses are computed by // or %", "index with one tl.arange for each dimension instead of // and %",
                         divided.most_common(1)[0][0]))
    if (r.figures["conflicts"] or 0) >= _TOLD:
        worst = max(r.memory.shared, key=lambda s: s.cycles / max(1, s.best))
        out.append(Cause("bank conflicts",
        f"shared memory takes {1 + r.figures['conflicts']:.1f} times the cycles that it must: threads of a warp want different rows of a bank",
                         "another order of the tile's dimensions, a padded row, or a transpose in registers", worst.line))


def fault(q, r: Region) -> tuple[str, str, str]:
    """(name, text, remedy) of what is wrong with a request."""
    contiguous = "let the tile's last dimension run along contiguous memory, or transpose once before the loop"
    if not q.known:
        return ("addresses unknown", f"accesses of {q.width} bits a thread; how neighbouring threads' addresses lie could not be followed",
                "where neighbouring threads read neighbouring elements this is fine; else let each thread own 16 neighbouring bytes")
    if q.uniform:
        if q.tile in (None, (1, 1)):
            return ("one element at a time", f"all threads of a warp want the same {q.width // 8} bytes",
                    "load a tile with tl.arange instead of one element in each turn")
        by = f" ({', '.join(sorted(q.args))})" if q.args else ""
        return ("one element for many", f"all threads of a warp want the same element: the index is divided or masked{by}",
                "load it once as a scalar, or index with one tl.arange for each dimension")
    if q.alone:
        return ("stride", f"each thread walks through memory on its own, {q.width // 8} bytes a turn: neighbours are far apart",
        "let neighbouring threads take "
                "neighbouring elements, and each step on by the number of threads")
    moved = f"a warp asks for {q.useful:g} bytes and moves {q.sectors * r.memory.sector:g}"
    if q.efficiency < _WHOLE:
        if q.data:
            return ("gather", f"addresses come from memory (a gather or scatter): {moved}",
                    "sort the indices, or let each index fetch a contiguous row")
        if q.apart:
            what = "neighbouring threads' elements" if q.run * 8 <= q.width < 128 else f"rows of {q.run:g} bytes"
            return "stride", f"{what} lie {q.apart} elements apart: {moved}", f"pass a tensor whose {q.apart} is 1, or {contiguous}"
        if (q.together or 0) >= _WHOLE:
            if q.unaligned:
                return ("alignment unknown", *unaligned(q.unaligned, q.width, q.could))
            if q.width >= 64:
                return ("short rows", f"what a warp's request finds together is {q.run:g} bytes long, its other requests fetch the rest: {moved}",
                        "nothing where this is the matrix unit's own layout; else " + contiguous)
            if q.kind == "atomic":
                return "narrow accesses", f"each thread's atomics are neighbours, one at a time: {moved}", "a BLOCK of one element a thread"
            return ("narrow accesses", f"each thread fetches neighbouring bytes {q.width // 8} at a time: {moved}",
                "masks that hold for 16 bytes at a time, "
                    "and tensors that start at 16 bytes, let it fetch them at once")
        if max(q.efficiency, q.together or 0) >= 0.7:
            return ("rows off sectors", f"rows do not start where sectors do ({r.memory.sector} bytes): {moved}", "pad rows to a multiple of "
                    f"{r.memory.sector} bytes, and start tensors there")
        if q.stride and abs(q.stride) * 8 > q.width:
            return "stride", f"neighbouring threads are {abs(q.stride)} bytes apart and want {q.width // 8} each: {moved}", contiguous
        return "short rows", f"what lies together is shorter than a sector of {r.memory.sector} bytes: {moved}", contiguous
    if q.tile and q.tile[0] < q.tile[1]:
        return "tile too small", f"a tile of {q.tile[0]} elements for {q.tile[1]} threads", "a larger BLOCK, or fewer warps"
    if q.unaligned and q.could > q.width:
        return ("alignment unknown", *unaligned(q.unaligned, q.width, q.could))
    return ("narrow accesses", f"accesses of {q.width} bits a thread: a warp asks for {q.useful:g} bytes at a time",
            "let each thread own 16 neighbouring bytes: a larger BLOCK, fewer warps, or tensors known to start at 16 bytes")


def unaligned(names: tuple[str, ...], bits: int, could: int) -> tuple[str, str]:
    """(text, remedy) of accesses that are narrower than they could be."""
    return (f"accesses of {bits} bits a thread where {could} would do: {', '.join(names)} not known divisible by 16",
            "pass tensors that start at 16 bytes and sizes divisible by 16, or say so with tl.multiple_of")
