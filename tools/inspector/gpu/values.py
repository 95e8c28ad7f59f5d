"""Numbers of threads or of a tile's elements: computed, or standing for what is not known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: what an integer argument counts as whose value nobody has told: large, so that bounds are not reached and rows lie far apart, and divisible by 4096
_LARGE = 1 << 16


@dataclass(frozen=True)
class Value:
    """x: int64 or bool, one for each element or thread, or one for all. args: arguments that it depends on. data: does it come from memory, so that
    neighbours are strangers to each other?"""

    x: np.ndarray
    args: frozenset = frozenset()
    data: bool = False

    def with_(self, other: Value, f) -> Value:
        with np.errstate(all="ignore"):
            return Value(np.asarray(f(self.x, other.x)), self.args | other.args, self.data or other.data)

    def __add__(self, other: Value) -> Value:
        return self.with_(other, np.add)

    def __mul__(self, other: Value) -> Value:
        return self.with_(other, np.multiply)


def argument(number: int) -> int:
    """The value of an unknown integer argument, one for each number."""
    return _LARGE * (33 + 2 * number)


def uniform() -> Value:
    """A number that all threads share and nobody knows."""
    return Value(np.int64(_LARGE * 31))


def scattered(shape) -> Value:
    """Numbers from memory: each somewhere else."""
    n = int(np.prod(shape)) if shape else 1
    x = (np.arange(1, n + 1, dtype=np.int64) * 2654435761 % 1000003) * 32
    return Value(x.reshape(shape), data=True)
