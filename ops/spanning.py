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
from .tiles import SMALLEST, entries, multiprocessors, taken
from .tiles import tile_for as product_tile_for
from .sizes import cdiv, known, next_power_of_2
from .product_tma import COUNTED
from .straight import by_tiles, held
from .tuning import Tiles, workers

#: what a tile that spans may have across the dimension, by preference where no speeds decide
_ACROSS = (256, 128, 64, 32, 16)
#: the longest dimension that one tile spans, and those
SPAN = Tiles("matmul_softmax_span", cpu=(4096, _ACROSS), cuda=(256, (128, 64, 32, 16)),
             candidates=tuple((longest, _ACROSS) for longest in (0, 256, 512, 2048, 4096)))
#: elements of a tile that spans, at most, and of its piece of B: a thread's accumulators are to stay in its second cache, and so is B
_LARGEST = 1 << 17
#: elements of Triton's largest tensor, such as its piece of A
_TENSOR = 1 << 20

#: on a GPU, by bytes of a number: the longest dimensions that a tile spans, and the largest K with them. In fp16 128 x 128 x 128 takes an H100 over rows 5.5 us by tiles of 16 rows (8.2
#: by one, two kernels 8), 256 x 256 x 256 7.2 (8.3 by two kernels), 512 x 512 x 512 11.8 (9.2); 65536 x 64 x 128 15.4 (30.8), 16384 x 128 x 256 11.4 (16.7). In fp32, by multiply-adds,
#: 128 x 128 x 128 7.5 (10.1), 64 x 4096 x 4096 over columns 347 (117)
_GPU_SPANS = {2: ((128, COUNTED), (256, 512)), 4: ((128, 128),)}
#: BK of such a tile, by bytes of a number (of a long span whose numbers are read one by one that of four: of 64 columns of 256 rows four warps had 128 numbers a thread on their way, and spilled. 64 x 116 x
#: 174 over rows took an H200 112 us, torch 6), and its stages; elements of a tile up to spans of 128, and of longer ones; from how many on it has eight warps
_GPU_BK, _GPU_STAGES, _GPU_LARGEST, _GPU_MANY = {2: 64, 4: 32}, 3, (1 << 13, 1 << 15), 1 << 14
#: the largest K with which such a tile is faster than two kernels of which the first fetches by the Tensor Memory Accelerator (16384 x 512 x 128 12.4 us for 19.7, 128 x 768 x 128
#: 9.6 for 9.2), and what divides sizes that pointers fetch 16 bytes at a time (256 x 512 x 200 14 and 18 us for 11 and 9)
_AHEAD, _DIVISOR = 512, 16

#: multiply-adds in fp32 that take as long as scaling an element of the result over columns and over rows, and as a second kernel's launch takes, for each thread that is
#: woken; how many times as many they are in 16 bits, and by AMX's tiles
_SCALING, _LAUNCH, _HALVES, _BY_TILES = (24, 12), 50_000, 2, 8
#: on a CPU the width that tiles of whole columns count as wide as from the second on: accumulators go through memory before their softmax, whatever the width, and more tiles are shared out better.
#: Two threads of an Emerald Rapids, 333 x 257 x 511 by tiles 64 and 256 wide: fp32 917 and 984 us, bf16 456 and 548, 512 cubed in bf16 643 and 798; of a Zen 5 333 and 367, 700 and 769
_AS_WIDE = 256, 64


def tile_for(a: torch.Tensor, b: torch.Tensor, axis: int) -> tuple[dict, bool]:
    """(tile of the kernel that multiplies, whether it spans dimension `axis` of a @ b)."""
    (m, k), n = a.shape, b.shape[1]
    longest, widths = SPAN.get(a.device.type)
    length, across = (m, n) if axis == 0 else (n, m)
    t = product_tile_for(a, b)
    if not known(length, across) or length > longest or a.dtype == torch.float64:
        return dict(t), False
    if a.device.type == "cuda":
        return _on_gpu(dict(t), axis, length, across, k, widths, a.element_size(), _are_fetched(a, b))
    if call.row is not None and call.row.scratch:
        return _on_board(t, axis, length, across, widths, call.row.scratch)
    terms = k if known(k) else t["BK"]
    pace = 1 if a.element_size() > 2 else _BY_TILES if by_tiles(a.dtype) else _HALVES
    return _fastest(tuple(t.items()), axis, *held(a.dtype, m, n), terms, workers(), widths, entries(a, terms, ends=False), pace)


def comes_first(a: torch.Tensor, b: torch.Tensor, axis: int) -> bool:
    """Is it on a GPU one kernel, whatever other ways there are to multiply a and b?"""
    if a.device.type != "cuda" or a.element_size() != 2 or not known(*a.shape, *b.shape) or a.shape[1] > _AHEAD:
        return False
    return _are_fetched(a, b) and all(s % _DIVISOR == 0 for s in b.shape if s != 1) and tile_for(a, b, axis)[1]


def _are_fetched(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Do pointers fetch 16 bytes of these lines at a time, and ahead?"""
    return all(s == 1 or s % _DIVISOR == 0 for s in (*a.stride(), *b.stride()))


def _on_gpu(plain: dict, axis: int, length: int, across: int, k: int, widths: tuple, size: int, are_fetched: bool) -> tuple[dict, bool]:
    """The widest tile of which there are enough for most multiprocessors, else the narrowest, where it spans the dimension; else the `plain` one."""
    if not known(k) or not any(length <= longest and k <= most for longest, most in _GPU_SPANS[size]):
        return plain, False
    span = max(SMALLEST["cuda"], next_power_of_2(length))
    fit = [w for w in widths if w * span <= _GPU_LARGEST[length > 128]]
    width = next((w for w in fit if 4 * cdiv(across, w) >= 3 * multiprocessors()), widths[-1])
    bk = _GPU_BK[size] if are_fetched or span <= 128 else _GPU_BK[4]
    t = _spanning({**plain, "BK": bk}, axis, length, across, width, SMALLEST["cuda"])
    return {**t, "num_warps": 8 if t["BM"] * t["BN"] >= _GPU_MANY else 4, "num_stages": _GPU_STAGES}, True


def _spanning(t: dict, axis: int, length: int, across: int, width: int, low: int) -> dict:
    """`t` with sizes of a tile that spans, no smaller than `low`."""
    span, width = max(low, next_power_of_2(length)), min(width, max(low, next_power_of_2(across)))
    bm, bn = (span, width) if axis == 0 else (width, span)
    return {**t, "BM": bm, "BN": bn, "BK": min(t["BK"], max(low, _LARGEST // bn), _TENSOR // bm)}


@functools.lru_cache(maxsize=1024)
def _fastest(plain: tuple, axis: int, m: int, n: int, k: int, threads: int, widths: tuple, choice: tuple, pace: int) -> tuple[dict, bool]:
    """pace: how many times as fast as in fp32 numbers are multiplied."""
    t, low = dict(plain), SMALLEST["cpu"]
    length, across = (m, n) if axis == 0 else (n, m)

    def takes(t: dict, columns: int) -> float:
        return makespan(threads, m, n, t["BM"], t["BN"], speed_of(choice, t["BM"], columns, t["BK"], pace > 1), t["GROUP"], cpu=True)

    def whole(t: dict) -> float:
        return takes(t, _AS_WIDE[0] if axis == 0 and _AS_WIDE[1] <= t["BN"] < _AS_WIDE[0] else t["BN"])
    spans = [_spanning(t, axis, length, across, w, low) for w in widths if w * max(low, next_power_of_2(length)) <= _LARGEST]
    best = min(reversed(spans) if axis == 0 else spans, key=whole, default=None)
    if best is not None and whole(best) <= takes(t, t["BN"]) + pace * (_SCALING[axis] * m * n / threads + _LAUNCH * threads) / k:
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
