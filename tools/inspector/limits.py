"""What llvm-mca's answer means for a loop: its limits, which of them holds, FLOP and bytes a cycle, and the sentences that say so."""

from __future__ import annotations

import math
import re
from collections import Counter

from . import chains, mca
from .schema import Bound
from .stats import counts_flop, line_of

#: how near a limit has to be to what is simulated to be called its cause
_NEAR = 0.9
#: what is done to floating-point elements and counts no FLOP: bit logic, comparisons, rounding
_NO_FLOP = re.compile(r"v?(and|andn|or|xor|ternlog|cmp|u?comi|rndscale|round|scalef|getexp|getmant|range|fixupimm|fpclass|blend)|"
                      r"v?f(abs|neg|cm|ccmp|rint|class|eq|lt|le|ne|gt|ge|sgnj)|vmf|vptest")
#: what a unit does most -> what it is called
_CALLED = {"load": "load ports", "gather": "load ports, which take gathers apart", "store": "store ports",
           "both": "load and store ports", "": "ports"}


def work(instructions) -> tuple[int | None, Counter]:
    """(FLOP of one turn, FLOP by element): an operation of one element counts one, a multiply-add two; conversions, comparisons and bit logic none;
    None with tiles of matrices, whose size the instruction does not say."""
    by: Counter = Counter()
    for i in instructions:
        c = i.what
        if c.unit == "matrix" and c.kind == "fma":
            return None, by
        if c.is_float and c.kind in ("arithmetic", "fma") and not _NO_FLOP.match(i.mnemonic):
            size = int(re.sub(r"\D", "", c.element.replace("bf16", "16")) or 0)
            lanes = 1 if c.unit == "scalar" or not size or not c.bits else max(1, c.bits // size)
            by[c.element] += lanes * (2 if c.kind == "fma" else 1)
    return sum(by.values()), by


def _elements(instructions, wide: int) -> int | None:
    """Elements that a turn writes; read, where it writes none. wide: bits of the elements of registers that are moved whole."""
    for field_ in ("stores", "loads"):
        total = 0
        for i in instructions:
            c = i.what
            if getattr(c, field_) and not c.is_spill and not c.splat:
                size = 16 if c.element == "bf16" else int(re.sub(r"\D", "", c.element) or 0)
                size = size if c.is_float or size <= 64 and c.unit == "scalar" else wide or size
                if not 8 <= size <= 64:
                    return None
                total += max(1, getattr(c, field_) // size)
        if total:
            return total
    return None


def _peak(answer: mca.Answer, element: str, code) -> tuple[float | None, str]:
    """(FLOP a cycle, what that is) of independent multiply-adds as wide as the target's vectors."""
    if element not in ("f32", "f64", "f16"):
        return None, ""
    size, best = int(element[1:]), (0.0, "")
    known = code.backend != "file" and code.vector_bits
    for name, piece in answer.pieces.items():
        kind, _, rest = name.partition(":")
        if kind not in ("fma", "two") or not rest.startswith(element + ":") or not piece.throughput or (name in answer.refused):
            continue
        width = rest.partition(":")[2]
        if width[0] == "v" and not code.vector_bits or width == "scalar" and code.vector_bits:
            continue
        bits = size if width == "scalar" else int(width[1:]) * code.vlen if width[0] == "v" else int(width)
        if width[0] != "v" and known and bits > max(code.vector_bits, size):
            continue
        per = bits // size * (2 if kind == "fma" else 1)
        rate = per * piece.taken / piece.throughput
        if rate > best[0] * 1.01:
            each = piece.taken / piece.throughput
            what = "multiply-adds" if kind == "fma" else "multiplications and additions"
            wide = f"{bits} bits" if width[0] != "v" else f"{code.vlen} bits times LMUL {width[1:]}" if width != "v1" else f"{code.vlen} bits"
            count = "one" if round(each, 2) == 1 else f"{each:.2g}"
            best = rate, f"{count} {what if count != 'one' else what.replace('adds', 'add')} of {wide} a cycle"
    return (best[0], best[1]) if best[0] else (None, "")


_GROUPS = (("load", r"Load|AGU|LSU?$|LdSt|Ld\d|UnitL|_LS|Port0?2$|Port0?3$|Port11"), ("store", r"Store|UnitD|Port0?4$|Port0?7$|Port0?8$|Port0?9$"))


def _unit(piece: mca.Piece, kept) -> tuple[str, float, str]:
    """(its name, cycles a turn, what for) of the unit with most to do."""
    if not piece.pressure:
        return "", 0.0, ""
    name = max(piece.pressure, key=lambda n: (round(piece.pressure[n], 2), n))
    uses = [(kept[k].what, share) for k, share in piece.users.get(name, ()) if k < len(kept)] if piece.taken == len(kept) else []
    doing: Counter = Counter()
    for c, share in uses:
        pure = "load" if c.loads and not c.stores else "store" if c.stores else ""
        folded = pure == "load" and c.kind not in ("load", "gather")
        if pure and (not folded or any(re.search(p, name) for g, p in _GROUPS if g == "load")):
            doing["gather" if c.kind in ("gather", "scatter") else pure] += share
        else:
            doing["floating-point" if c.is_float or c.kind in ("fma",) else "shuffle" if c.kind == "shuffle" else "vector" if c.unit == "vector" else
                  "branch" if c.kind == "branch" else "integer"] += share
    what = doing.most_common(1)[0][0] if doing else ""
    if min(doing["load"], doing["store"]) * 4 > sum(doing.values()):
        what = "both"
    return name, piece.pressure[name], _CALLED.get(what, f"{what} units")


def of(r, kept, cut: tuple[str, ...], one: mca.Piece, two: mca.Piece, answer: mca.Answer, isa: str, bandwidth: float | None,
       plain: mca.Piece | None = None) -> Bound:
    """The bound of region `r`. kept: its instructions that were simulated; cut: what was not; one, two: the answers for one and for two turns;
    bandwidth: bytes a cycle;
    plain: the answer for the same code with registers in the place of loaded operands."""
    simulated = (two.total - one.total) / mca.TURNS
    unit, busy, what = _unit(one, kept)
    limits = {"ports": max(busy, 0.0), "width": one.uops / one.width}
    if max(limits.values()) < one.throughput:  # a unit that does not show by itself
        limits["ports"] = one.throughput
    limits["ports"] = min(limits["ports"], one.throughput) if one.throughput else limits["ports"]
    chain: list[int] = []
    if r.loop is not None and one.taken == len(kept):
        late = [max(0, a - b) for a, b in zip(one.latencies, plain.latencies)] if plain and plain.taken == one.taken else None
        slope, chain = chains.carried(kept, one.latencies, isa, late)
        limits["dependencies"] = min(slope, simulated)
    flops, by = work([i for i in r.instructions if counts_flop(r, i)])
    moved = sum(i.what.loads + i.what.stores for i in r.instructions if i.what.is_memory and not i.what.is_spill) // 8
    if bandwidth:
        limits["memory"] = moved / bandwidth
    cycles = max(simulated, limits.get("memory", 0.0))
    most = by.most_common(1)[0][0] if by else ""
    size = int(most.removeprefix("b").removeprefix("f")) if most else 0
    peak, source = _peak(answer, most, r.code) if flops else (None, "")
    share = min(1.0, flops / cycles / peak) if peak and flops else None  # additions beside multiply-adds may come on top
    units = f"{what or 'ports'} ({unit})" if unit else what or "ports"
    cause, words = _words(r, kept, limits, simulated, cycles, moved, bandwidth, answer.ordered, one.short, units, chain)
    if (narrow := _narrow(r)):
        words.append(narrow)
    if flops and peak:
        words.append(f"{_n(flops / cycles)} FLOP a cycle, {share:.0%} of the peak of {_n(peak)} ({source})")
    elif flops:
        words.append(f"{_n(flops / cycles)} FLOP a cycle")
    if moved:
        words.append(f"memory: {moved} bytes {'an iteration' if r.loop is not None else 'a program'}, {_n(moved / cycles)} a cycle" + (
            f"; they need {_n(limits['memory'])} cycles at {_n(bandwidth)} bytes a cycle" if bandwidth else ""))
    if cut:
        words.append(f"left out: {', '.join(dict.fromkeys(cut))}")
    if r.loop is not None and len(r.loop.blocks) > 1:
        words.append(f"the loop has {len(r.loop.blocks)} blocks: all are counted, as if each turn took every one")
    return Bound(cycles, answer.cpu, _elements(r.instructions, size), moved, flops, limits, peak, source, share, cause, tuple(words), cut)


def _words(r, kept, limits, simulated, cycles, moved, bandwidth, ordered, short, units, chain) -> tuple[str, list[str]]:
    """(what bounds it, the sentence that says so first)."""
    best = max(limits["ports"], limits["width"])
    each = "an iteration" if r.loop is not None else "a program"
    head = f"{_n(cycles)} of {_n(best)} cycles {each}" if cycles > max(best / _NEAR, best + 0.5) else f"{_n(cycles)} cycles {each}"
    if limits.get("memory", 0.0) > simulated:
        return "memory", [f"{head}: bound by memory, {moved} bytes at {_n(bandwidth)} a cycle"]
    if simulated <= max(best / _NEAR, best + 0.5):
        if limits["width"] > limits["ports"] * 1.02:
            return "width", [f"{head}: bound by the front end, {_n(limits['width'])} cycles to start its instructions"]
        return "ports", [f"{head}: bound by the {units}"]
    if limits.get("dependencies", 0.0) >= simulated * 0.75:
        rank = lambda k: (kept[k].what.is_float_work, kept[k].what.unit != "scalar")  # noqa: E731
        heavy = max(chain, key=rank) if chain else None
        if heavy is not None and rank(heavy) == (False, False) and simulated <= 2:
            return "dependencies", [f"{head}: bound by the loop's own counting (`{kept[heavy].mnemonic}`): more work in a turn would hide it"]
        through = f" through `{kept[heavy].mnemonic}`" if heavy is not None else ""
        at = line_of(kept[heavy]) if heavy is not None else None
        where = f" [{at[0].rpartition('/')[2]}:{at[1]}]" if at else ""
        remedy = f"; {math.ceil(simulated / best)} or more side by side would hide it" if best else ""
        return "dependencies", [f"{head}: bound by one dependency chain{through}{where}{remedy}"]
    if ordered:
        return "order", [f"{head}: instructions wait for results, as this core starts them in order; "
                         "more independent work between them would hide it"]
    if short == "units":
        return "ports", [f"{head}: bound by the {units}, which instructions of one turn ask for at once"]
    return "latency", [f"{head}: bound by latencies, as the core does not look far enough ahead to hide them"]


def _narrow(r) -> str:
    bits = r.code.vector_bits
    used = [i.what.bits for i in r.instructions if i.what.unit == "vector" and i.what.is_float_work] or [
        max(i.what.loads, i.what.stores) for i in r.instructions if i.what.unit == "vector" and i.what.is_memory and not i.what.splat]
    widest = max(used, default=0)
    if r.code.backend == "file" and r.code.target == r.code.isa or not widest or widest >= bits or r.tail:
        return ""
    share = {2: "half as wide as", 4: "a quarter as wide as", 8: "an eighth as wide as"}.get(bits / widest, "narrower than")
    return f"vectors are {share} the target's: {widest} of {bits} bits"


def _n(x: float) -> str:
    return f"{x:.2f}" if x < 1 else f"{x:.1f}" if x < 100 else f"{x:.0f}"
