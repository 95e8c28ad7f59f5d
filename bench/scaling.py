"""How time grows with size: the exponent b of t = a x^b, by least squares on logarithms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Sequence

from ..backends.base import Error


@dataclass(frozen=True)
class Law:
    """t = factor * x ** exponent. error: standard error of the exponent; None of two points, which a line meets exactly."""

    factor: float
    exponent: float
    error: float | None

    def __call__(self, x: float) -> float:
        return float(self.factor * x**self.exponent)

    @property
    def text(self) -> str:
        return f"{self.exponent:.2f}" + (f" ± {self.error:.2f}" if self.error is not None else "")


def fit(x: Sequence[float], t: Sequence[float]) -> Law:
    """The law nearest to times `t` at sizes `x` (both above 0). Raises `Error` for fewer than two different sizes."""
    if len(x) != len(t) or any(not v > 0 for v in (*x, *t)):
        raise Error("a power law is fitted to as many times as sizes, all of them above 0")
    xs, ts = [math.log(v) for v in x], [math.log(v) for v in t]
    x_mean, t_mean = (math.fsum(v) / len(v) if v else 0.0 for v in (xs, ts))
    spread = math.fsum((v - x_mean)**2 for v in xs)
    if not spread > 0:
        raise Error(f"a power law is fitted to two different sizes at least; here: {', '.join(f'{v:g}' for v in dict.fromkeys(x)) or 'none'}")
    slope = math.fsum((v - x_mean) * (w - t_mean) for v, w in zip(xs, ts)) / spread
    start = t_mean - slope * x_mean
    rest = math.fsum((w - start - slope * v)**2 for v, w in zip(xs, ts))
    return Law(math.exp(start), slope, math.sqrt(rest / (len(xs) - 2) / spread) if len(xs) > 2 else None)
