"""What samples are worth: how sure a median is, what two candidates' rounds say about their ratio, and what of it may be coloured.

Times are skewed and have outliers, so nothing here takes them to be normal: intervals are those of order statistics, which hold for samples of any
distribution. Candidates took turns, so ratios are of the same round: what slowed one slowed the other.
"""

from __future__ import annotations

import functools
import math
import statistics
from dataclasses import dataclass

#: how far a ratio must be from 1, for certain, to be called faster or slower; a median that is less sure than this is noisy
BAND = 0.05
#: rounds below which there is nothing to say about a median: no interval of fewer has 95 % (`rank`)
FEW = 6


@functools.lru_cache(maxsize=None)
def rank(n: int, confidence: float = 0.95) -> int:
    """The largest r for which the r-th smallest and the r-th largest of n samples enclose the median with this confidence; 1 where no r does.

    Each sample lies below the median with probability 1/2, so the r-th smallest lies above it where fewer than r do: with P(B(n, 1/2) < r), at
    either end (David and Nagaraja, Order Statistics, 3rd edition, section 7.1). Six samples are the fewest that reach 95 %."""
    r, below = 0, 0.0
    while r < n / 2:
        below += math.exp(math.lgamma(n + 1) - math.lgamma(r + 1) - math.lgamma(n - r + 1) - n * math.log(2))
        if below > (1 - confidence) / 2:
            break
        r += 1
    return max(r, 1)


def interval(values: list[float], confidence: float = 0.95) -> tuple[float, float]:
    """The confidence interval of the median, in the samples' unit; of fewer than `FEW` samples, of which none is sure, all that they span."""
    ordered = sorted(values)
    r = rank(len(ordered), confidence)
    return ordered[r - 1], ordered[-r]


def width(values: list[float]) -> float:
    """Half the width of the 95 % confidence interval of the median, as a share of the median: 0.02 is +-2 %. Infinite for fewer than `FEW` samples."""
    if len(values) < FEW:
        return math.inf
    low, high = interval(values)
    middle = statistics.median(values)
    return (high - low) / 2 / middle if middle > 0 else math.inf


def why(values: list[float], busy: str | None = None) -> str | None:
    """A sentence why the median of these samples is not to be trusted, None where it is. busy: what others did to the machine meanwhile."""
    reasons = [busy] if busy else []
    if len(values) < FEW:
        reasons.append(f"{len(values)} round{'s are' if len(values) > 1 else ' is'} too few to tell noise")
    elif (half := width(values)) > BAND:
        reasons.append(f"after {len(values)} rounds the median is known to +-{100 * half:.0f} % only")
    return "; ".join(reasons) or None


@dataclass(frozen=True)
class Ratio:
    """Baseline's time / a candidate's (above 1: the candidate is faster): the median over rounds, and its 95 % confidence interval (None where
    the samples had no rounds)."""

    median: float
    ci: tuple[float, float] | None = None

    def verdict(self, noisy: bool = False) -> str:
        """"faster" or "slower" where the whole interval lies beyond 1 +- `BAND`, "noisy" where it is too wide to say or the figures are `noisy`,
        else "same"."""
        if noisy or self.ci is None:
            return "noisy"
        low, high = self.ci
        if low > 1 + BAND:
            return "faster"
        if high < 1 - BAND:
            return "slower"
        return "noisy" if high - low > 2 * BAND else "same"


def paired(base: list[float], values: list[float]) -> Ratio:
    """The ratio of two candidates that took turns: the n-th of each is of the same round."""
    ratios = [b / v for b, v in zip(base, values, strict=True)]
    return Ratio(statistics.median(ratios), interval(ratios) if len(ratios) >= FEW else None)


def apart(base: list[float], values: list[float]) -> Ratio:
    """The ratio of two that were not measured in turns: of the medians, the interval from the ends of both, which is wider than it need be."""
    median = statistics.median(base) / statistics.median(values)
    if min(len(base), len(values)) < FEW:
        return Ratio(median)
    (low, high), (least, most) = interval(base), interval(values)
    return Ratio(median, (low / most, high / least))
