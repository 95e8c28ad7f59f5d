"""How much of a kernel's work each loop does: by trip counts where they are known, and one assumption for all others. Nothing is left out: a loop that
takes another's remainder counts with the few rounds that it has."""

from __future__ import annotations

from dataclasses import dataclass, replace

from . import kernel_loops
from .flow import cycles
from .remainder import Structure, families, lanes, mixes
from .stats import data_of, share_of, works
from .trips import Values, count

#: rounds of a loop whose bound only the running program knows
UNKNOWN = 64.0
#: what a call of a function costs that works on one element, in instructions that compute
_CALL = 10.0
#: functions of libm that triton-cpu calls only where a vector holds a number beyond a limit; tan and fmod in fp64 are libm's all along
GUARDED = frozenset(("sinf", "cosf", "tanf", "fmodf", "sin", "cos"))
#: the most that a tail can be of its main loop's work, which is taken to run often; known trip counts come first
_TAIL = 0.005
_ISAS = ("x86-64", "aarch64", "riscv64")


def of_function(function, found) -> list:
    """Fill in trips, tails and work of a function's regions, the function being called once; the regions."""
    loops = [r for r in found if r.loop is not None]
    if loops and loops[0].code.isa in _ISAS:
        values = Values(function, loops[0].code.isa)
        for r in loops:
            r.trips = count(r.loop, values)
        kernel_loops.give(loops[0].code, loops, UNKNOWN)
        structure = Structure(function, values, _behind_checks(function, found))
        _tails(loops, structure)
        _rest(function, found, loops, structure)
    for r in found:
        r.runs = _runs(r, loops)
        if r.loop is None and any(o.figures["vector"] is not None or o.scalar_calls for o in loops):
            r.scalar_calls = 0  # once a call of the function, such as malloc beside loops: what it does there is no element's work
        r.work = _amount(r) * r.runs
    return found


def of_calls(found):
    """A function of the same file is no unknown one: what it does runs as often as the loops round its calls, and a call itself is no work. Functions that nothing
    here calls run once, and so do those that call each other."""
    functions = {r.function.name for r in found}
    callers: dict[str, list] = {}  # of a called function: the regions that call it
    for r in found:
        for c in (i.what for i in r.instructions):
            if c.target in functions and (c.kind == "call" or c.flow in ("jump", "branch") and c.target not in r.function.labels):
                callers.setdefault(c.target, []).append(r)
                r.scalar_calls -= c.kind == "call" and c.unit == "scalar" and r.scalar_calls > 0
                if r.loop is not None and r.loop.inner:  # what it calls is the work in it, and its own counting is none
                    r.loop.inner = False
                    r.figures["vector"] = share_of(r)
    if not callers:
        return
    calls: dict[str, set] = {name: set() for name in functions}
    for name, regions in callers.items():
        for r in regions:
            calls[r.function.name].add(name)
    circle = {name: k for k, part in enumerate(cycles(calls)) for name in part}
    outside = {name: [r for r in regions if r.function.name != name and circle.get(name, -1) != circle.get(r.function.name, -2)] for name, regions in callers.items()}
    times, before = dict.fromkeys(functions, 1.0), None
    while times != before:  # from callers to callees, as deep as calls go
        before = times
        times = before | {name: max(1.0, sum(r.runs * before[r.function.name] for r in regions)) for name, regions in outside.items()}
    for r in found:
        r.work = _amount(r) * r.runs * times[r.function.name]


def _amount(r) -> float:
    """Instructions of a region's one round that compute or move data; calls count for more."""
    strings = sum(i.mnemonic.startswith("rep") for i in r.instructions)
    amount = sum(works(i) for i in r.instructions if id(i) not in r.left) or len(data_of(r))
    return amount + strings * UNKNOWN + r.scalar_calls * _CALL


def _runs(r, loops) -> float:
    out = 1.0
    for other in loops:
        if r.loop is not None and r.loop.blocks <= other.loop.blocks:
            out *= other.rounds
    return out


@dataclass
class _Nest:
    """A loop with the loops in it, as a candidate for a main loop or for what takes its remainder."""

    region: object
    inside: list
    instructions: list

    def __post_init__(self):
        self.vector = share_of(self.region) if self.region.loop.inner else share_of(replace(self.region, instructions=self.instructions))
        memory = [i.what for i in self.instructions if i.what.is_memory and not i.what.is_spill]
        self.masked = sum(c.masked for c in memory) / len(memory) if memory else 0.0
        self.width = sum(i.what.bits for i in self.instructions if i.what.is_float_work) or sum(c.loads + c.stores for c in memory) or 1
        self.lines = {at for r in self.inside for at in r.lines}
        # sorts a main loop behind its tails: wider, less masked, more work for each instruction
        self.rank = (self.vector or 0, -self.masked, self.width / max(1, len(self.instructions)))


#: how many loops side by side are compared with each other
_NEAR = 24


def _tails(loops, structure):
    """Mark loops, with the loops in them, that take what another one leaves."""
    for r in loops:
        r.rounds = next(n for n in (r.trips, r.assumed, UNKNOWN) if n is not None)
    beside: dict[int, list] = {}
    for r in loops:
        beside.setdefault(id(structure.around(r.loop)), []).append(r)
    f = structure.function
    for group in beside.values():
        nests = [_Nest(r, [o for o in loops if o.loop.blocks <= r.loop.blocks],
                       [i for k in sorted(r.loop.blocks) for i in f.instructions[f.blocks[k].first:f.blocks[k].last] if id(i) not in structure.rare]) for r in group] if len(group) > 1 else []
        place = {id(n): k for k, n in enumerate(nests)}
        for n in sorted(nests, key=lambda n: n.rank):
            main = next((m for m in nests if m is not n and abs(place[id(m)] - place[id(n)]) <= _NEAR and not m.region.tail and m.rank > n.rank
                         and _leaves(m, n, structure)), None)
            if main is not None:
                r = n.region
                for o in n.inside:
                    o.tail = True
                r.rounds = min(r.rounds, 0.5 * main.width / n.width, _TAIL * main.region.rounds * max(1.0, _of_nest(main)) / max(1.0, _of_nest(n)))


def _of_nest(n: _Nest) -> float:
    """What one round of a nest does."""
    out = 0.0
    for r in n.inside:
        runs = 1.0
        for o in n.inside:
            if o is not n.region and r.loop.blocks <= o.loop.blocks:
                runs *= o.rounds
        out += _amount(r) * runs
    return out


def _leaves(main: _Nest, n: _Nest, structure) -> bool:
    if not main.vector or n.region.loop.entries > 1 or not mixes(main.instructions, n.instructions):
        return False
    if main.lines and n.lines and not main.lines & n.lines:
        return False  # other lines of source: other work
    if any(structure.carries(r.loop) for r in n.inside) and not any(structure.carries(r.loop) for r in main.inside):
        return False  # a recurrence
    if main.region.loop.inner and n.region.loop.inner and structure.loads_more(main.region.loop, n.region.loop):
        return False
    return structure.follows(main.region.loop, n.region.loop) or structure.replaces(main.region.loop, n.region.loop)


def _behind_checks(function, found) -> set[int]:
    """What triton-cpu's kernels call for numbers beyond those that a polynomial serves stands behind a check (`emit/element/single.py`, `with_fallback`), and is not counted: the ids of such instructions."""
    if found[0].code.backend != "triton-cpu":
        return set()
    parts = [function.instructions[block.first:block.last] for block in function.blocks]
    rare = {id(i) for part in parts if any(i.what.target in GUARDED for i in part) for i in part}
    for r in found:
        if mine := rare.intersection(map(id, r.instructions)):
            r.left |= mine
            r.figures["spills"] = sum(i.what.is_spill and id(i) not in mine for i in r.instructions)
    return rare


def _rest(function, found, loops, structure):
    """Straight code for the few elements that a vector loop leaves: it is not counted in the region that it stands in."""
    for main in loops:
        if not main.loop.inner or main.tail or (main.figures["vector"] or 0) < 0.5:
            continue
        outer = structure.around(main.loop)
        home = next(r for r in found if r.loop is outer)
        own = set(range(len(function.blocks)) if outer is None else outer.blocks).difference(*(o.loop.blocks for o in loops if o.loop is not outer and (
            outer is None or o.loop.blocks < outer.blocks)))
        parts = {k: function.instructions[function.blocks[k].first:function.blocks[k].last] for k in own}
        calls = any(i.what.kind == "call" and i.what.unit == "vector" for i in main.instructions)
        counts = lambda i: works(i) or calls and i.what.kind == "call"  # noqa: E731
        working = {k for k, part in parts.items() if any(map(counts, part)) and (calls or not any(i.what.kind == "call" and i.what.unit == "scalar" for i in part))}
        left = [i for k in structure.left_over(main.loop, working) for i in parts[k] if counts(i)]
        done = [i for i in main.instructions if works(i) or i.what.unit == "vector" and i.what.bits]
        if left and len(left) <= 2 * lanes(i.what for i in done) * len(done) and families(left) <= families(main.instructions) | ({"compute"} if families(main.instructions) else set()):
            home.left |= {id(i) for i in left}
    for r in found:
        if r.left:
            r.scalar_calls = sum(i.what.kind == "call" and i.what.unit == "scalar" and id(i) not in r.left for i in r.instructions)
            r.figures["vector"] = share_of(r)


def of_report(found):
    """Fill in heat and say which regions are judged: all that work, but those that take another's remainder and those that hardly run."""
    total = sum(r.work for r in found) or 1.0
    for r in found:
        r.heat = r.work / total
    most = max((r.heat for r in found), default=0.0)
    for r in found:
        judged = r.figures["vector"] is not None or r.figures["calls"]
        r.hot = bool(judged) and not r.tail and r.heat > 0 and (r.heat >= 0.05 or r.heat == most or r.loop is not None and r.loop.inner and r.heat >= 0.01)


def share(found) -> float | None:
    """Share of the work that vector code does; None where nothing works."""
    parts = [(r.work, (r.figures["vector"] or 0.0) * _own(r)) for r in found if r.work and (r.figures["vector"] is not None or r.figures["calls"])]
    total = sum(work for work, _ in parts)
    return sum(work * part for work, part in parts) / total if total else None


def _own(r) -> float:
    """The part of a region's work that is not inside functions it calls."""
    amount = _amount(r)
    return (amount - r.scalar_calls * _CALL) / amount if amount else 0.0
