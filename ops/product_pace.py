"""About how long an H200 takes over a product by pointers (matmul.py) and by the kernels of product_few.py, by which the fastest of their tiles is chosen, and who multiplies.

A program waits for its next pieces of both matrices, then multiplies them. Where a multiprocessor has few tiles it waits with them; where it has many it reads and multiplies all the time. Of `turns` tiles
a multiprocessor, of so many pieces of K each, it takes

    us = begin + pieces (alone^4 + (turns busy)^4)^(1/4) + turns store BM BN

and by shares of K what adding them up takes. Lines that are not read 16 bytes at a time make `alone` and `busy` longer. All numbers below are a fit to 43,000 times of 1,610 products drawn at random, of 4 to
12,000 rows and columns and 4 to 9,000 terms; what is chosen by them takes 1.04 of the fastest tile's time (docs/performance/gpu-products.md).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from .sizes import cdiv, next_power_of_2

CACHED = 30e6  # bytes of both matrices that the second cache holds
#: us that adding shares up takes, and those of a thousand numbers of all of them
ADDING, ADDED = 1.58, 0.0014
#: of how many shares the fastest number is chosen, and turns of a multiprocessor from which on no more of them are looked at
SHARES, MOST_TURNS = (*range(2, 9), 10, 12, 16, 20, 24, 32, 48, 64, 96, 128), 16
LEAST_SIDE = 16  # of a tile


class Tile(NamedTuple):
    """BM x BN x BK by so many warps, pieces of K fetched `stages` ahead. alone, busy: us of a piece of it, as above."""

    bm: int
    bn: int
    bk: int
    warps: int
    stages: int
    alone: float
    busy: float

    def clipped(self, m: int, n: int, k: int) -> Tile:
        """No larger than a product of m x k by k x n needs."""
        bm, bn, bk = (min(side, max(LEAST_SIDE, next_power_of_2(size))) for side, size in zip(self, (m, n, k)))
        return self._replace(bm=bm, bn=bn, bk=bk, alone=self.alone * bk / self.bk, busy=self.busy * (bm * bn * bk) / (self.bm * self.bn * self.bk))


class Pace(NamedTuple):
    """How a kernel goes. store: us of a thousand numbers of the result; reads, waits: by how many numbers of a line are read at a time (1, 2, 4, 8) us of a thousand that `busy` is longer, and with one warp
    `alone`; far: how many times as long a program waits for what is in memory; odd, even, ahead: the tiles, where a line of some matrix is read four bytes at a time, or two, where none is, and where what is
    read so lies in memory."""

    begin: float
    store: float
    reads: tuple[float, ...]
    waits: tuple[float, ...]
    far: float
    odd: tuple[Tile, ...]
    even: tuple[Tile, ...]
    ahead: tuple[Tile, ...] = ()

    def of_piece(self, t: Tile, at_a_time: tuple[int, int], far: bool) -> tuple[float, float]:
        """(us of a piece alone, and busy). at_a_time: numbers of the two matrices' lines; far: more is read than the second cache holds."""
        alone, busy = t.alone * (self.far if far else 1), t.busy
        for one, numbers in zip(at_a_time, (t.bm * t.bk / 1e3, t.bn * t.bk / 1e3)):
            alone += numbers * self.waits[one.bit_length() - 1] / t.warps
            busy += numbers * self.reads[one.bit_length() - 1]
        return alone, busy

    def us(self, t: Tile, alone: float, busy: float, pieces: int, turns: int) -> float:
        """About how long so many turns of tiles take, of pieces as `of_piece` has them."""
        return self.begin + pieces * (alone**4 + (turns * busy)**4) ** 0.25 + turns * t.bm * t.bn / 1e3 * self.store

    def tiles(self, at_a_time: tuple[int, int], size: int, far: bool) -> tuple[Tile, ...]:
        return self.odd if min(at_a_time) * size <= 4 else far and self.ahead or self.even


def _tiles(*rows) -> tuple[Tile, ...]:
    return tuple(Tile(*row) for row in rows)


_SMALL_16 = (64, 64, 32, 4, 3, .144, .109), (64, 32, 64, 4, 3, .174, .194), (32, 32, 64, 4, 3, .177, .165), (16, 64, 64, 4, 3, .171, .180)
_WIDE_16, _WIDE_32 = (128, 128, 32, 8, 3, .190, .281), (128, 64, 16, 8, 1, .440, .956)
#: by pointers: in 16 bits, in fp32 with a right factor whose lines run along N, and one whose run along K, of which numbers lie across what a warp takes from shared memory
POINTERS = {
    2: Pace(1.85, .090, (.069, .070, .014, 0), (.384, .353, .053, 0), 2.3,
            _tiles(_WIDE_16, (64, 128, 32, 4, 1, .110, .053), *_SMALL_16),
            _tiles(_WIDE_16, (128, 128, 64, 8, 3, .242, .503), (64, 128, 32, 4, 3, .151, .179), (64, 64, 64, 4, 3, .187, .229), *_SMALL_16)),
    4: Pace(1.80, .115, (.057, .043, 0), (.669, .267, 0), 1.5,
            _tiles(_WIDE_32, (64, 64, 16, 4, 1, .305, .570), (32, 64, 32, 4, 1, .251, .490), (32, 32, 32, 4, 1, .300, .357), (16, 64, 32, 4, 1, .240, .311), (16, 32, 32, 2, 1, .080, .162)),
            _tiles(_WIDE_32, (64, 64, 16, 4, 3, .241, .517), (32, 32, 32, 4, 3, .309, .345), (16, 64, 32, 4, 3, .275, .391), (16, 32, 32, 2, 3, .400, .188)))}
_ACROSS = (128, 64, 16, 4, 1, .787, 1.823), (64, 64, 16, 4, 1, .759, 1.398)
POINTERS_ACROSS = Pace(1.86, .112, (.063, .087, 0), (.598, .454, 0), 1.7,
                       _tiles(*_ACROSS, (16, 64, 32, 4, 1, .684, 1.175), (16, 32, 32, 2, 1, .584, .595)),
                       _tiles(*_ACROSS, (16, 64, 32, 4, 3, .632, 1.319), (16, 32, 32, 2, 3, .715, .668)))
_PARTS = _tiles((16, 64, 32, 4, 1, 1.106, .391), (32, 64, 32, 4, 1, 1.158, .522), (64, 64, 32, 4, 1, 1.309, .748), (64, 128, 32, 8, 1, .278, 1.572))
_PARTS_AHEAD = _tiles((16, 64, 32, 4, 3, 1.007, .487), (32, 64, 32, 4, 3, 1.063, .629), (64, 64, 32, 4, 3, 1.216, .802), (64, 128, 32, 8, 3, .428, 1.727), (128, 128, 32, 8, 3, .624, 2.585))
_HIGH = (64, 64, 32, 4, 1, .381, .117), (128, 128, 32, 8, 3, .199, .335)
#: the same of `few_rows_kernel`, by bytes of a number; bm: of the factor with fewer lines
FEW = {2: Pace(1.84, .107, (.063, .022, .011, 0), (.101, 0, 0, 0), 1.9,
               _tiles((16, 64, 64, 4, 1, .387, .126), (32, 64, 64, 4, 1, .463, .108), *_HIGH), _tiles((16, 64, 32, 4, 4, .100, .101), (32, 64, 64, 4, 4, .138, .210), *_HIGH)),
       4: Pace(2.08, .285, (.059, .039, 0), (.006, .031, 0), 1.0, _PARTS, (*_PARTS, Tile(128, 128, 32, 8, 1, .465, 2.211), *_PARTS_AHEAD), _PARTS_AHEAD)}


def _far(m: int, n: int, k: int, size: int) -> bool:
    return (m + n) * k * size > CACHED


@functools.lru_cache(maxsize=1024)
def by_pointers(m: int, n: int, k: int, size: int, across: bool, at_a_time: tuple[int, int], count: int, matrices: int = 1) -> tuple[float, Tile]:
    """(about how many us, the tile) of products of m x k by k x n on so many multiprocessors. size: bytes of a number; across: the right factor's lines run along K."""
    pace, far = POINTERS_ACROSS if across and size == 4 else POINTERS[size], _far(m, n, k, size * matrices)
    return min((pace.us(t, *pace.of_piece(t, at_a_time, far), cdiv(k, t.bk), _turns(t, m, n, matrices, count)), t) for t in {t.clipped(m, n, k) for t in pace.tiles(at_a_time, size, far)})


@functools.lru_cache(maxsize=1024)
def by_few(m: int, n: int, k: int, size: int, at_a_time: tuple[int, int], count: int, matrices: int = 1) -> tuple[float, Tile, int]:
    """(about how many us, the tile, shares of K) of m <= n rows by a matrix, or so many such products, without shares then."""
    pace, far = FEW[size], _far(m, n, k, size * matrices)
    found = []
    for t in pace.tiles(at_a_time, size, far):
        pieces, of_piece = cdiv(k, t.bk), pace.of_piece(t, at_a_time, far)
        found.append((pace.us(t, *of_piece, pieces, _turns(t, m, n, matrices, count)), t, 1))
        for shares in SHARES if matrices == 1 else ():
            turns = _turns(t, m, n, shares, count)
            if shares > pieces or shares > 4 and turns > MOST_TURNS:
                break
            found.append((pace.us(t, *of_piece, cdiv(pieces, shares), turns) + ADDING + shares * m * n / 1e3 * ADDED, t, shares))
    return min(found)


def _turns(t: Tile, m: int, n: int, times: int, count: int) -> int:
    """Tiles that a multiprocessor has at most."""
    return cdiv(cdiv(m, t.bm) * cdiv(n, t.bn) * times, count)
