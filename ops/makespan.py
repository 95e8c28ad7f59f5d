"""How long threads or multiprocessors take over a product's tiles, of which the fastest is chosen."""

from __future__ import annotations

import heapq

from .sizes import cdiv


def makespan(workers: int, m: int, n: int, bm: int, bn: int, speed: float, group: int, cpu: bool, count: int = 1) -> float:
    """How long `workers` take over m x n, so many of them, in tiles of bm x bn at a speed, `group` rows of tiles walked column by column, roughly, in elements at speed 1.
    An edge tile takes as long as what it holds, in whole micro-kernels. Many tiles even out."""
    if cdiv(m, bm) * cdiv(n, bn) * count > 8 * workers:
        return _evened_out(workers, m, n, bm, bn, cpu, count) / speed
    tiles = count * [_worked(rows, 8, bm) * _worked(columns, _columns(bn), bn) for rows, columns in _in_order(m, n, bm, bn, group)]
    return (_taken_by_owners(tiles, workers) if cpu else _taken_in_turn(tiles, workers)) / speed


def _worked(size: int, step: int, most: int) -> int:
    """What micro-kernels of `step` compute of a side of a tile that holds `size` of its `most`."""
    return min(cdiv(size, step) * step, most)


def _columns(bn: int) -> int:
    """Columns by which what is left of a tile counts: a tile of one panel takes a micro-kernel of as many vectors as there are, or half of them (`emit/product/micro.py`)."""
    return 16 if bn <= 64 else 32


def _evened_out(workers: int, m: int, n: int, bm: int, bn: int, cpu: bool, count: int) -> float:
    if not cpu:
        return count * (m + bm / 4) * (n + bn / 4) / workers
    held = count * (m // bm * bm + _worked(m % bm, 8, bm)) * (n // bn * bn + _worked(n % bn, _columns(bn), bn))
    return held / (workers - _slow(workers) * (1 - 1 / SLOWER)) + bm * bn * (1 - 1 / workers) / 2


def _in_order(m: int, n: int, bm: int, bn: int, group: int):
    """(rows, columns) of each tile, in the order of programs (`product.tile_of_program`)."""
    rows, columns = ([min(b, size - at) for at in range(0, size, b)] for size, b in ((m, bm), (n, bn)))
    for first in range(0, len(rows), group):
        for c in columns:
            for r in rows[first:first + group]:
                yield r, c


#: of many CPU threads some are slower, as cores share and others want them, too: as many large tiles as workers took 1.4 times as long as small ones
#: (16 of 16, measured)
SLOWER = 1.4


def _slow(workers: int) -> int:
    return workers // 4


def _taken_by_owners(tiles: list[int], workers: int) -> float:
    """Each thread owns as many tiles in a row, and takes others' when its own are done (`backends/cpu/run/job.py`)."""
    each, over = divmod(len(tiles), workers)
    begin = [each * w + min(w, over) for w in range(workers + 1)]
    next_of, whose = begin[:-1], list(range(workers))
    free, end = [(0.0, w) for w in range(workers)], 0.0
    while free:
        at, w = heapq.heappop(free)
        while next_of[whose[w] % workers] == begin[whose[w] % workers + 1]:
            whose[w] += 1
            if whose[w] == w + workers:
                break
        else:
            part = whose[w] % workers
            done = at + tiles[next_of[part]] * (SLOWER if w < _slow(workers) else 1.0)
            next_of[part] += 1
            end = max(end, done)
            heapq.heappush(free, (done, w))
    return end


def _taken_in_turn(tiles: list[int], workers: int) -> float:
    """Each next tile goes to who is free first."""
    free = [0.0] * workers
    for tile in tiles:
        heapq.heapreplace(free, free[0] + tile)
    return max(free)


def speed_of(choice: tuple, bm: int, bn: int, bk: int, halves: bool) -> float:
    """The speed of tiles of bm x bn x bk: a table's (of (bm, bn, bk, speed, ...)) of the nearest that was measured, and by what packing and carrying
    cost from there. halves: of 16-bit operands, whose micro-kernels are 32 columns wide; of 16 they take 0.73 of the pace
    (Zen 4; Emerald Rapids 0.82)."""
    nearest = min(max(bm, 16), 512), min(max(bn, 32), 256)
    relative = {t: t[3] * cost(*t[:3]) for t in choice}
    found = max([r for t, r in relative.items() if t[:2] == nearest] or relative.values()) / cost(bm, max(bn, 32), bk)
    return found * (0.73 if halves else (1 + 2 / 32) / (1 + 2 / bn)) if bn < 32 else found


def cost(bm: int, bn: int, bk: int) -> float:
    """Time of a product of 1 x 1 x 1 within a tile, relative to a large one's: each packs A once and B once, and carries its accumulators through
    memory once for each piece of K (by the X60's model, a fourth of the product of 1 x 1 x 1 each)."""
    return 1 + 4 / bm + 8 / bn + 4 / bk
