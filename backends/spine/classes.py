"""A function's classes of sizes: what it does depends on some sizes and numbers ("which power of two holds n?", "is n at most 1024?", "is `causal` true?"),
so it is traced for others, too, and its C function takes the one that fits a call.

From the example on, each condition of a trace is turned round, and values for which that is so are traced, until none is new. A number that is asked
for as such (a tl.constexpr, int(n)) is fixed: its other values have no class.
"""

from __future__ import annotations

import math

import sympy

from ..base import CompileError, Error
from .expressions import is_float
from .trace import Call, Program, trace_call

#: classes of one function, and the largest power of two that has one unasked
MOST = 32
LARGEST = 4096


def programs(calls: list[Call], row, within: tuple[int, int] | None = None, explore: bool = True) -> tuple[list[Program], list[str]]:
    """(a program for each class of a function's calls, the first of them its signature; remarks for the header). calls: examples of one layout; within:
    the powers of two (triton.next_power_of_2) that get a class (default: 1 to 4096, or the example's); explore: look for classes beyond the examples'."""
    made = [trace_call(calls[0], row)]
    for call in calls[1:]:
        if not any(_holds(p, _values(call, made[0])) for p in made):
            _add(made, trace_call(call, row, groups=made[0].groups))
    reach = within or (1, max([LARGEST, *(power for p in made for _, power in p.powers)]))
    tried, left_out, turn, shaped = set(), False, 0, []
    while explore and turn < len(made):
        at, turn = made[turn], turn + 1
        for hints in _others(at, reach, bool(calls[0].file)):
            key = tuple(sorted(hints.items()))
            if key in tried or any(_holds(p, hints) for p in made):
                continue
            tried.add(key)
            if len(made) >= MOST:
                left_out = True
                continue
            try:
                other = trace_call(calls[0], row, _spread(made[0], hints), made[0].groups)
            except (Error, CompileError):
                continue  # the function does not take such sizes: no class
            if not (all(reach[0] <= power <= reach[1] for _, power in other.powers) and _holds(other, hints)):
                continue
            if other.is_like(made[0]):
                _add(made, other)
            else:
                shaped.append(_text(hints))
    remarks = []
    if shaped:
        remarks.append(f"results have other shapes for {shaped[0]}{' and others' * (len(shaped) > 1)}, which is another function: export it by an --example of its own")
    if left_out:
        remarks.append(f"there are more classes than these {MOST}; those nearest to the examples are here. Another --example, or --classes A..B, chooses others")
    return made, remarks


def _add(made: list[Program], other: Program):
    """Raises `Error` where two classes have no C function in common."""
    if not other.is_like(made[0]):
        raise Error(f"{other.op} cannot be exported as one function: its results have other shapes for {_text(other.hints)} than for {_text(made[0].hints)}; "
                    "export these examples by themselves")
    if not any(other.conditions.keys() == p.conditions.keys() for p in made):
        made.append(other)


def _text(hints: dict) -> str:
    return ", ".join(f"{k}={v}" for k, v in hints.items())


def _values(call: Call, p: Program) -> dict:
    """parameter -> its value in a call."""
    out = {}
    for a in call.arguments:
        out |= {f"{a.name}_size{d}": max(2, n) for d, n in enumerate(a.shape)} | ({f"{a.name}_ld": a.ld} if a.ld else {})
        if a.kind in ("int", "float", "bool"):
            out[a.name] = a.value
    return {q.name: out[q.name] for q in p.parameters}


def _holds(p: Program, values: dict) -> bool:
    """Do a program's conditions hold for these parameters?"""
    names = {q.symbol: _number(values[q.name]) for q in p.parameters}
    return all(_true(e, names) for e in p.conditions)


def _number(v):
    return sympy.Float(v) if isinstance(v, float) else sympy.Integer(int(v))


def _true(e, names: dict) -> bool:
    return _is(e, names, sympy.true)


def _is(e, names: dict, wanted) -> bool:
    """Is a condition `wanted` for these values? It is neither where a divisor is 0."""
    try:
        return e.xreplace(names) == wanted
    except (ZeroDivisionError, TypeError, ValueError):
        return False


def _spread(first: Program, hints: dict) -> dict:
    """The hints of all symbols: those that are one parameter have one value."""
    return {name: hints[group[0]] for group in first.groups for name in group}


def _others(p: Program, reach: tuple[int, int], all_of_them: bool):
    """Values for which a program's conditions hold up to one, and that does not. all_of_them: not only those of powers of two and leading dimensions: an
    op of ours says by its cases what it is for."""
    asked = {n for e, _ in p.powers for n in e.free_symbols} | {q.symbol for q in p.parameters if q.kind == "ld"}
    conditions = list(p.conditions)
    for k, e in enumerate(conditions):
        symbols = sorted(e.free_symbols, key=str)
        if not all_of_them and not asked & e.free_symbols:
            continue
        if _fixes(p, e) or not symbols:
            continue
        for symbol in symbols:
            turned = [hints for c in _candidates(p, symbol, e, reach) if _turned(p, conditions[:k], e, hints := _tied(p, c, symbol))]
            if turned:
                yield next((hints for hints in turned if all(_true(x, _names(p, hints)) for x in conditions[:k])), turned[0])


def _fixes(p: Program, e) -> bool:
    """Does a condition tie sizes and numbers to one another, so that there is no class in which it does not hold? A leading dimension that is the line's
    length, a truth value, and what the function compares do have another."""
    return isinstance(e, sympy.Eq) and e not in p.equations and not any(q.kind in ("bool", "ld") for q in p.parameters if q.symbol in e.free_symbols)


def _names(p: Program, hints: dict) -> dict:
    return {q.symbol: _number(hints[q.name]) for q in p.parameters}


def _turned(p: Program, before: list, e, hints: dict) -> bool:
    names = _names(p, hints)
    return _is(e, names, sympy.false) and all(_true(x, names) for x in before if not x.free_symbols & e.free_symbols)


def _tied(p: Program, hints: dict, symbol) -> dict:
    """Hints of which one parameter was changed, with those that have to be equal to what it makes: the function asserts that they fit."""
    moved = {symbol}
    for _ in p.parameters:
        names = _names(p, hints)
        found = next(((q, v) for e in p.conditions if _fixes(p, e) and e.free_symbols & moved and not _true(e, names) for q in p.parameters
                      if q.kind in ("size", "int") and q.symbol in e.free_symbols - moved for v in _fitting(e, names, q.symbol)), None)
        if found is None:
            break
        hints, moved = {**hints, found[0].name: found[1]}, moved | {found[0].symbol}
    return hints


def _fitting(e, names: dict, symbol):
    """Values of one symbol for which an equation holds: both sides are mostly multiples, or shifted by a constant."""
    now = int(names[symbol])
    for mine, other in ((e.lhs, e.rhs), (e.rhs, e.lhs)):
        if symbol in mine.free_symbols and mine.xreplace(names).is_number and other.xreplace(names).is_number:
            has, wanted = int(mine.xreplace(names)), int(other.xreplace(names))
            for v in (wanted, *([now * wanted // has] if has else []), now + wanted - has):
                if v > 0 and _true(e, {**names, symbol: sympy.Integer(v)}):
                    yield v


def _candidates(p: Program, symbol, e, reach: tuple[int, int]):
    """Hints with another value of one parameter, the nearest first."""
    q = next(q for q in p.parameters if q.symbol == symbol)
    now = p.hints[q.name]
    numbers = [n for n in e.atoms(sympy.Number)]
    if q.kind == "bool":
        values = [1 - int(now)]
    elif q.kind == "float":
        values = [float(n) + d for n in numbers for d in (0, -1, 1)] + [0.0, 1.0, -1.0]
    elif q.kind == "ld":
        yield from _other_ld(p, q, now)
        return
    else:
        around = [int(n) + d for n in numbers if not is_float(n) for d in (-1, 0, 1)]
        powers = [1 << k for k in range(reach[1].bit_length() + 1)]
        values = [v for v in [*powers, *(3 * v for v in powers), *around, int(now) + 1, int(now) - 1] if q.kind == "int" or 1 <= v < 1 << 31]
        values.sort(key=lambda v: abs(math.log2(v / now)) if v > 0 and now > 0 else abs(v - now) + 64)
    for v in dict.fromkeys(values):
        if v != now:
            yield _kept_ld(p, {**p.hints, q.name: v})


def _kept_ld(p: Program, hints: dict) -> dict:
    """Leading dimensions go with the lines: as far beyond as before."""
    lines = {str(b.ld): str(b.shape[0 if b.turned else 1]) for b in p.arguments if b.ld is not None}
    return hints | {ld: hints[line] + (p.hints[ld] - p.hints[line]) for ld, line in lines.items()}


def _other_ld(p: Program, q, now: int):
    line = next(str(b.shape[0 if b.turned else 1]) for b in p.arguments if b.ld == q.symbol)
    yield {**p.hints, q.name: p.hints[line] + (3 if now == p.hints[line] else 0)}
