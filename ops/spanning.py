"""Which tile matmul_softmax multiplies by, and whether it spans the softmax's dimension: then one kernel does all. Else products go by parts, in the tiles of
`matmul`, and a second kernel scales.

On a CPU the fastest is chosen as `matmul` chooses its tiles: how long the threads take over all tiles, at the speeds of the table. A tile that spans
saves the second kernel, and is often less square, or too few are left for the threads.
"""

from __future__ import annotations

import functools

import torch

from ..backends.context import call
from .makespan import makespan, speed_of
from .matmul import SMALLEST, entries, multiprocessors, taken
from .matmul import tile_for as product_tile_for
from .sizes import cdiv, known, next_power_of_2
from .product_tma import COUNTED
from .tuning import Tiles, workers

#: what a tile that spans may have across the dimension, by preference where no speeds decide
_ACROSS = (256, 128, 64, 32, 16)
#: the longest dimension that one tile spans, and those
SPAN = Tiles("matmul_softmax_span", cpu=(4096, _ACROSS), cuda=(256, (64, 32, 16)),
             candidates=tuple((longest, _ACROSS) for longest in (0, 256, 512, 2048, 4096)))
#: elements of a tile that spans, at most, and of its piece of B: a thread's accumulators are to stay in its second cache, and so is B
_LARGEST = 1 << 17
#: elements of Triton's largest tensor, such as its piece of A
_TENSOR = 1 << 20

#: on a GPU, by bytes of a number: the longest dimensions that a tile spans, and the largest K with them. Narrow tiles, for there are few: in fp16 128 x 128 x 128 takes an H100 over
#: rows 5.5 us by tiles of 16 rows (8.2 by one, two kernels 8), 256 x 256 x 256 7.2 (8.3 by two kernels), 512 x 512 x 512 11.8 (9.2); 256 x 512 x 200 17.6 (15.7). In fp32, by
#: multiply-adds, 128 x 128 x 128 7.5 (10.1), 64 x 4096 x 4096 over columns 347 (117)
_GPU_SPANS = {2: ((128, COUNTED), (256, 256)), 4: ((128, 128),)}
#: (BK, warps, stages) of such a tile, by bytes of a number
_GPU_TILE = {2: (64, 4, 3), 4: (32, 4, 3)}

#: multiply-adds that take as long as scaling an element of the result over columns and over rows, and as a second kernel's launch takes, for each thread that is
#: woken
_SCALING, _LAUNCH = (24, 12), 50_000


def tile_for(a: torch.Tensor, b: torch.Tensor, axis: int) -> tuple[dict, bool]:
    """(tile of the kernel that multiplies, whether it spans dimension `axis` of a @ b)."""
    (m, k), n = a.shape, b.shape[1]
    longest, widths = SPAN.get(a.device.type)
    length, across = (m, n) if axis == 0 else (n, m)
    t = product_tile_for(a, b)
    if not known(length, across) or length > longest or a.dtype == torch.float64:
        return dict(t), False
    if a.device.type == "cuda":
        return _on_gpu(dict(t), axis, length, across, k, widths, a.element_size())
    if call.row is not None and call.row.scratch:
        return _on_board(t, axis, length, across, widths, call.row.scratch)
    terms = k if known(k) else t["BK"]
    return _fastest(tuple(t.items()), axis, m, n, terms, workers(), widths, entries(a, terms, ends=False), a.element_size() == 2)


def _on_gpu(plain: dict, axis: int, length: int, across: int, k: int, widths: tuple, size: int) -> tuple[dict, bool]:
    """The widest tile of which there is one for each multiprocessor, else the narrowest, where it spans the dimension; else the `plain` one."""
    if not known(k) or not any(length <= longest and k <= most for longest, most in _GPU_SPANS[size]):
        return plain, False
    width = next((w for w in widths if cdiv(across, w) >= multiprocessors()), widths[-1])
    bk, warps, stages = _GPU_TILE[size]
    return {**_spanning({**plain, "BK": bk}, axis, length, across, width, SMALLEST["cuda"]), "num_warps": warps, "num_stages": stages}, True


def _spanning(t: dict, axis: int, length: int, across: int, width: int, low: int) -> dict:
    """`t` with sizes of a tile that spans, no smaller than `low`."""
    span, width = max(low, next_power_of_2(length)), min(width, max(low, next_power_of_2(across)))
    bm, bn = (span, width) if axis == 0 else (width, span)
    return {**t, "BM": bm, "BN": bn, "BK": min(t["BK"], max(low, _LARGEST // bn), _TENSOR // bm)}


@functools.lru_cache(maxsize=1024)
def _fastest(plain: tuple, axis: int, m: int, n: int, k: int, threads: int, widths: tuple, choice: tuple, halves: bool) -> tuple[dict, bool]:
    t, low = dict(plain), SMALLEST["cpu"]
    length, across = (m, n) if axis == 0 else (n, m)

    def takes(t: dict) -> float:
        return makespan(threads, m, n, t["BM"], t["BN"], speed_of(choice, t["BM"], t["BN"], t["BK"], halves), t["GROUP"], cpu=True)
    spans = [_spanning(t, axis, length, across, w, low) for w in widths if w * max(low, next_power_of_2(length)) <= _LARGEST]
    best = min(spans, key=takes, default=None)
    if best is not None and takes(best) <= takes(t) + (_SCALING[axis] * m * n / threads + _LAUNCH * threads) / k:
        return best, True
    return t, False


def _on_board(plain: dict, axis: int, length: int, across: int, widths: tuple, scratch: int) -> tuple[dict, bool]:
    """A tile that spans the dimension and fits in a thread's scratch, as narrow as 16 and 32 along K; else the `plain` one, which does not span it."""
    low = SMALLEST["cpu"]
    span = max(low, next_power_of_2(length))
    if span > 256 and 8 * length < 7 * span:  # what pads the span is multiplied in vain
        return dict(plain), False
    width = next((w for w in widths if cdiv(across, w) >= workers() and w * span <= _LARGEST), widths[-1])
    t, side = _spanning(plain, axis, length, across, width, low), ("BN", "BM")[axis]
    while taken(t["BM"], t["BN"], t["BK"], 4) > scratch * 15 // 16:
        if t["BK"] > 32:
            t["BK"] //= 2
        elif t[side] > 16:
            t[side] //= 2
        else:
            return dict(plain), False
    return t, True
