"""Which candidates of a search on a board are measured: those that a model of its CPU predicts to be fastest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable


class NoModel(Exception):
    """Nothing can be predicted: why, and what to do."""


@dataclass(frozen=True)
class Prediction:
    """cycles: until an op is done; fits: does what a thread works on fit where the board's row says it should?"""

    cycles: float
    fits: bool = True


@dataclass(frozen=True)
class Pruning:
    """predict: (name of a table, tiles, op, case, dtype) -> `Prediction`, or None where there is none; raises `NoModel`. most: how many candidates are
    measured beside the default; 0 for all."""

    predict: Callable
    most: int

    def kept(self, what: str, table: str, tiles: dict, op, asked: list, each: list, say) -> list:
        """Names of the candidates to measure, in order: the first, which is the default, and those that are fastest over `asked`, (case, dtype) pairs, or the
        fastest in one of `each`, more such pairs; what has no prediction is measured, too. tiles: name of a candidate -> its tiles. `say` takes a line with
        what is left out, or why nothing is."""
        names = list(tiles)
        if not self.most or len(names) <= self.most + 1:
            return names
        say(f"{what}: {len(names)} candidates; llvm-mca's model of the board's CPU says which are measured")
        try:
            found = {n: self._found(table, t, op, asked + each) for n, t in tiles.items()}
        except NoModel as e:
            say(f"{what}: all {len(names)} candidates are measured: {e}")
            return names
        if found[names[0]] is None:
            say(f"{what}: all {len(names)} candidates are measured: the default's time cannot be predicted")
            return names
        default, known = found[names[0]], {n: f for n, f in found.items() if f}
        part = {n: math.exp(sum(math.log(p.cycles / q.cycles) for p, q in zip(f, default[:len(asked)])) / len(asked)) for n, f in known.items()}
        fits = {n: all(p.fits for p in f[:len(asked)]) for n, f in known.items()}
        ranked = sorted((n for n in known if n != names[0]), key=lambda n: (not fits[n], part[n]))
        best = {min(known, key=lambda n: (not known[n][k].fits, known[n][k].cycles)) for k in range(len(asked), len(asked + each))}
        chosen = {names[0], *ranked[:self.most], *best, *(n for n in names if n not in known)}
        for fit, how in ((True, ""), (False, ", whose scratch is more than a thread's share of the cache")):
            if left := [f"{n} {part[n]:.3f}" for n in ranked if n not in chosen and fits[n] == fit]:
                say(f"{what}: {len(left)} left out{how}, with the predicted part of the default's time: {', '.join(left)}")
        return [n for n in names if n in chosen]

    def _found(self, table: str, tiles, op, pairs: list) -> list[Prediction] | None:
        found = []
        for case, dtype in pairs:
            if (p := self.predict(table, tiles, op, case, dtype)) is None or not p.cycles:  # no loop, or no program, runs
                return None
            found.append(p)
        return found


#: every candidate is measured
NONE = Pruning(lambda *_: None, 0)
