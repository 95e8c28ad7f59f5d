"""Synthetic click data of the Criteo data's form, made as it is asked for: 13 numbers, 26 categories, and whether it was a click.

Categories are drawn by a power law, as real ones are: few are met in every batch, most hardly ever. What a sample's label depends on is hidden in
its numbers and in an effect of each category, so there is something to learn.
"""

from __future__ import annotations

import torch

DENSE, SPARSE = 13, 26
#: how many categories a feature has, in turns; the largest have more than any table has rows, so they share them
CARDINALITIES = (10, 100, 1000, 10_000, 100_000, 1_000_000)
#: a category's frequency is as 1 / rank ** SKEW
SKEW = 1.1
PRIME = 2_147_483_647


class Clicks:
    """Batches of samples; the same ones for the same seed."""

    def __init__(self, rows: int, seed: int):
        """rows: of each table, which categories are hashed to."""
        self.rows, self._g = rows, torch.Generator("cpu").manual_seed(seed)
        self.sizes = [CARDINALITIES[k % len(CARDINALITIES)] for k in range(SPARSE)]
        self._numbers = 2 * torch.nn.functional.normalize(torch.randn(DENSE, generator=self._g), dim=0)
        self._factors = torch.randint(1, PRIME, (2, SPARSE), generator=self._g)
        self._phases = torch.rand(SPARSE, generator=self._g) * 6.28
        self._cumulative = {n: (torch.arange(1, n + 1, dtype=torch.float64)**-SKEW).cumsum(0) for n in CARDINALITIES}

    def batch(self, n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(numbers n x 13 fp32, as log(1 + x); rows of the tables n x 26 int64; labels n fp32, 0 or 1)."""
        raw = torch.exp(1.5 * torch.randn(n, DENSE, generator=self._g)) * (torch.rand(n, DENSE, generator=self._g) > 0.1)
        dense = torch.log1p(raw)
        ranks = torch.stack([self._ranks(size, n) for size in self.sizes], 1)
        index = (ranks * self._factors[0] + self._factors[1]) % PRIME % self.rows
        effects = torch.sin(1.7 * ranks + self._phases)  # of each category, by no pattern that its row shows
        score = (dense - 0.8) @ self._numbers + 0.35 * effects.sum(1) - 1
        label = (torch.rand(n, generator=self._g) < torch.sigmoid(score)).float()
        return dense, index, label

    def _ranks(self, size: int, n: int) -> torch.Tensor:
        c = self._cumulative[size]
        at = torch.rand(n, generator=self._g, dtype=torch.float64) * c[-1]
        return torch.searchsorted(c, at).clamp_(max=size - 1)
