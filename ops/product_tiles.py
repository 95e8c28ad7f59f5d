"""Tiles of 16-bit products by the Tensor Memory Accelerator (product_tma.cuh): which there are, and about how long a product takes by them.

A multiprocessor takes tiles one after the other, so a product takes as many turns as the busiest has, and what counts is that the last turn is full: 132 multiprocessors have one
tile of 192 x 176 each of 2064 x 2064, but two of 128 x 256. Widths go by 16 therefore.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from .sizes import cdiv

BK = 64
#: bytes of shared memory that a block may have on compute capability 9.0
ROOM = 232448
MOST_STAGES = 8
#: (rows of a tile, columns at most): 232 registers a thread where there are two warp groups, and 160 where there are three, hold so much of it
HEIGHTS = ((64, 256), (128, 256), (192, 192))
#: From here on a fit to 3,000 times on an H200, 50 products of 256 to 4096 by most tiles (docs/performance/gpu-products.md), whose choices take 1.02 of the fastest tile's time.
#: us from a launch to its end beside its turns; us of a turn beside its terms, and more of a tile of 128 x 256, which is stored; us of exchanging who has fetched where two blocks do together
LAUNCH, TURN, STORE, SHARING = 2.0, 0.3, 1.28, 0.6
#: multiply-adds a us of a multiprocessor; bytes a us that it gets from the second cache where all multiprocessors do, and how many times as much where few do; us of BK terms at least
MULTIPLIES, FETCHES, ALONE, LATENCY = 2048 * 1.67e3, 139e3, 3.7, 0.11
#: turns from which on a multiprocessor is at it so long that power is what it lacks, and how many times as long a piece takes then by other tiles than the largest for two warp groups, which reads
#: shared memory least: 6144 cubed 617 us by 128 x 256, 656 by 192 x 192, 669 by 128 x 208; 8192 cubed 1,647, 1,716 and 1,729
LONG, HUNGRY = 4, 1.04
#: (bytes that lines of memory are no multiples of, how many times as long they are fetched: boxes lie across more sectors, or lines, of the second cache)
ACROSS = ((32, 2.17), (64, 1.49), (128, 1.25))
#: the least of these from which two blocks share what they fetch of b. 3000 cubed by tiles of 128 x 192: 100 us each for itself, 84 so; 2064, whose lines are sectors, 26.8 and 28.4
SHARED_FROM = 2.0


class Tile(NamedTuple):
    """bm x bn of the result, of bm / 64 warp groups that multiply."""

    bm: int
    bn: int

    @property
    def even(self) -> bool:
        """Any right factor will do; others are one whose lines are its columns (by rows 1536 cubed takes 44 us for 12)."""
        return self.bn % 64 == 0

    @property
    def panels(self) -> int:
        """Pieces of 64 columns of the result in shared memory, of cdiv(bn, 64): all, where three slots are beside them."""
        pieces = cdiv(self.bn, 64)
        return next((p for p in range(pieces, 1, -1) if pieces % p == 0 and self._stages(p) >= 3), 1)

    @property
    def stages(self) -> int:
        """Slots of shared memory for BK terms."""
        return min(MOST_STAGES, self._stages(self.panels))

    def _stages(self, panels: int) -> int:
        return (ROOM - self._beside(panels)) // self._slot()

    def _slot(self) -> int:
        return (self.bm + self.bn) * BK * 2 + 16

    def _beside(self, panels: int) -> int:
        """The result's pieces, a softmax's statistics, and what alignment takes."""
        return 1024 + self.bm * (panels * 128 + 16)

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return self.stages * self._slot() + self._beside(self.panels)

    def us(self, tiles: int, at_once: int, k: int, count: int, across: float = 1.0, sharers: int = 1, beside: float = 0.0) -> float:
        """About how long that many tiles of k terms take of which `at_once` are on `count` multiprocessors at a time. across: how many times as long lines are fetched; sharers: blocks that
        fetch b's lines together; beside: us of a turn more."""
        busy = min(tiles, at_once) / count
        multiply = self.bm * self.bn * BK / MULTIPLIES
        fetch = (self.bm + self.bn / sharers) * BK * 2 / FETCHES * across * max(busy, 1 / ALONE)
        piece = (multiply**3 + fetch**3 + LATENCY**3) ** (1 / 3)  # each is nearly hidden behind a longer one
        turns = cdiv(tiles, at_once)
        if turns >= LONG and (self.bm, self.bn) != (128, 256):
            piece *= HUNGRY
        return LAUNCH + turns * (TURN + STORE * self.bm * self.bn / (128 * 256) + (SHARING if sharers > 1 else 0) + beside + cdiv(k, BK) * piece)


TILES = tuple(Tile(bm, bn) for bm, most in HEIGHTS for bn in range(64, most + 1, 16))
EVEN = tuple(tile for tile in TILES if tile.even)


@functools.lru_cache(maxsize=1024)
def fastest(m: int, k: int, n: int, across: float, count: int, tiles: tuple[Tile, ...]) -> tuple[Tile, int, float]:
    """(tile, blocks that share what they fetch of b, about how many us) for m x k times k x n on `count` multiprocessors. across: as many times as long lines are fetched."""
    def takes(way: tuple[Tile, int]) -> float:
        tile, sharers = way
        return tile.us(cdiv(m, tile.bm * sharers) * sharers * cdiv(n, tile.bn), count // sharers * sharers, k, count, across, sharers)
    way = min(((tile, sharers) for tile in tiles for sharers in ((1, 2) if across >= SHARED_FROM and m > tile.bm else (1,))), key=takes)
    return *way, takes(way)


def across(*strides: int) -> float:
    """How many times as long 16-bit matrices of those elements from line to line are fetched as aligned ones."""
    return next((slower for line, slower in ACROSS if any(stride * 2 % line for stride in strides)), 1.0)
