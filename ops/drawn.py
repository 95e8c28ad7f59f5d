"""Cases of sizes that nobody thought of: drawn at random, the same ones for a seed."""

from __future__ import annotations

import dataclasses
import random

import torch

from ..backends.base import Error
from . import cases
from .case import Case

#: of a dimension: sizes are drawn evenly by their logarithms; shares of them that become a multiple of 16, and a power of two; and the share of matrices that lie transposed
LARGEST, SIXTEENS, POWERS, TRANSPOSED = 4096, 0.35, 0.15, 0.25
#: elements of a case, and operations, at most: thousands of them are measured in an hour
ELEMENTS, OPERATIONS = 1 << 25, 1 << 31
#: draws in a row that are too large before an op is given up
_TRIES = 1000


def drawn(op, count: int, seed: int, device: str = "cpu") -> list[Case]:
    """`count` cases of an op (an `Op`), other than each other: dimensions by their names, parameters as the op's own cases on `device` have them. Raises `Error` for an op whose
    dimensions have no names, or that has no so many cases."""
    dims, own = cases.dims_of(op), op.cases_on(device)
    if not dims or not own:
        raise Error(f"{op.name} has no names for its dimensions, and no sizes are drawn for it; say dims= in its Op, as in dims=\"MxK,KxN\"")
    rng = random.Random(f"{seed} {op.name}")  # noqa: S311  (nobody guesses sizes)
    out: dict[str, Case] = {}
    failed = 0
    names = list(dict.fromkeys(n for of in dims for n in of))
    kwargs = {k: list(dict.fromkeys(c.kwargs[k] for c in own if k in c.kwargs)) for c in own for k in c.kwargs}
    while len(out) < count:
        settings = {n: str(_size(rng)) for n in names}
        case = cases.resized(op, dataclasses.replace(own[0], kwargs={k: rng.choice(v) for k, v in kwargs.items()}, transposed=()), settings)
        turned = tuple(k for k, shape in enumerate(case.shapes) if rng.random() < TRANSPOSED and len(shape) == 2 and not case.type_of(k))
        case = dataclasses.replace(case, transposed=turned)
        failed = 0 if (fits := _is_small(op, case) and case.name not in out) else failed + 1
        if failed > _TRIES:
            raise Error(f"{op.name}: no {count} cases of up to {ELEMENTS} elements and {OPERATIONS} operations are found among its sizes")
        if fits:
            out[case.name] = case
    return list(out.values())


def _size(rng: random.Random) -> int:
    size, kind = LARGEST ** rng.random(), rng.random()
    if kind < SIXTEENS:
        return max(16, round(size / 16) * 16)
    return 1 << round(size).bit_length() - 1 if kind < SIXTEENS + POWERS else round(size)


def _is_small(op, case: Case) -> bool:
    try:
        operations = op.flops(*case.blank(torch.float32, "meta"), **case.kwargs) if op.flops else 0
    except Exception:  # one that wants values says nothing beforehand
        operations = 0
    return case.elements <= ELEMENTS and operations <= OPERATIONS
