"""How often a Triton kernel's own loops run, by its TTIR: where their bounds are constants, or integer arguments whose values are known."""

from __future__ import annotations

from dataclasses import dataclass

from .code import Code, functions


@dataclass(frozen=True)
class KernelLoop:
    """An scf.for. lines: (file, line) of everything in it, and of what that calls; rounds: None where its bounds are not known; assumed: what they are taken for then, None where that says
    nothing about this loop."""

    lines: frozenset[tuple[str, int]]
    rounds: int | None
    assumed: int | None = None


def of(code: Code, unknown: float) -> list[KernelLoop]:
    """Outer loops first; none where there is no TTIR, or it cannot be read. unknown: rounds of a loop of whose bounds nothing is known."""
    text = code.stages.get("ttir")
    if not isinstance(text, str) or "scf.for" not in text:
        return []
    from ...backends.cpu.ttir.types import walk
    func = next((f for f in functions(text) if f.public), None)
    if func is None:
        return []
    loops = [op for op in walk(func.body) if op.name == "scf.for"]
    values = {**_assumed(loops, func, code.values, unknown), **code.values}
    return [KernelLoop(frozenset(_lines(op, walk)), _rounds(op, func, code.values), _rounds(op, func, values)) for op in loops]


def _assumed(loops, func, values: dict[str, int], unknown: float) -> dict[str, int]:
    """Values of integer arguments that nobody told and loops end at: the one with the longest step makes `unknown` rounds, and others that end at the same argument so many as follow from
    that. A loop over all elements is not taken for as short as one over blocks of a thousand."""
    steps: dict[str, int] = {}
    for op in loops:
        step = _value(op.operands[2], func, values)
        for v in op.operands[:2] if step is not None and step > 0 else ():
            for name in _arguments(v, func):
                steps[name] = max(step, steps.get(name, 0))
    return {name: int(unknown * step) for name, step in steps.items() if name not in values}


def _arguments(v, func, depth: int = 8) -> set[str]:
    """The arguments that an integer is made of."""
    if v in func.args:
        return {v.name}
    if v.op is None or not depth:
        return set()
    return set().union(*(_arguments(o, func, depth - 1) for o in v.op.operands)) if v.op.operands else set()


def give(code: Code, loops: list, unknown: float):
    """Fill in `trips` of machine loops (stats.Region, inner ones in outer ones by their blocks) that the code itself does not tell, or `assumed` ones. A machine loop is the
    kernel's whose lines hold all of its own, unless a loop round it is that one already."""
    found = of(code, unknown)
    taken: dict[int, set[KernelLoop]] = {}
    own = [r for r in loops if "plan" not in code.stages or r.depth > 1]  # our compiler's outermost loop goes over the programs of the grid
    for r in sorted(own, key=lambda r: -len(r.loop.blocks)) if found else ():
        inside = [o for o in loops if o.loop.blocks <= r.loop.blocks]
        lines = {at for o in inside for at in o.lines}
        round_it = set().union(*(taken.get(id(o), set()) for o in loops if o.loop.blocks > r.loop.blocks))
        fits = [k for k in found if lines and lines <= k.lines and k not in round_it]
        if not fits:
            continue
        # of nested loops without lines of their own between them the outer machine loop is the outer one
        mine = max(fits, key=lambda k: len(k.lines))
        taken[id(r)] = {mine}
        if r.trips is None and mine.rounds is not None:
            r.trips = float(mine.rounds)
        if mine.assumed is not None:
            r.assumed = float(mine.assumed)


def _lines(op, walk):
    for region in op.regions:
        for o in walk(region):
            for at in (o.loc, *o.loc.callers):
                if at.line:
                    yield at.file, at.line


def _rounds(op, func, values: dict[str, int]) -> int | None:
    begin, end, step = (_value(v, func, values) for v in op.operands[:3])
    if begin is None or end is None or not step or step < 0:
        return None
    return max(0, -(-(end - begin) // step))


def _value(v, func, values: dict[str, int], depth: int = 8) -> int | None:
    """What an integer is, if constants and known arguments make it."""
    if v in func.args:
        return values.get(v.name)
    op = v.op
    if op is None or not depth:
        return None
    if op.name == "arith.constant":
        n = op.attrs["value"]
        return n if isinstance(n, int) else None
    parts = [_value(o, func, values, depth - 1) for o in op.operands]
    if None in parts:
        return None
    x, y = (*parts, 0, 0)[:2]
    made = {"arith.addi": lambda: x + y, "arith.subi": lambda: x - y, "arith.muli": lambda: x * y, "arith.divsi": lambda: int(x / y) if y else None,
            "arith.extsi": lambda: x, "arith.trunci": lambda: x, "arith.index_cast": lambda: x, "arith.minsi": lambda: min(x, y),
            "arith.maxsi": lambda: max(x, y)}.get(op.name)
    return made() if made else None
