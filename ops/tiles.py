"""Which tile a product goes in: what was measured on this machine's kind of CPU or GPU, by how long its threads or multiprocessors would take over all tiles (`makespan.py`), and on a CPU tiles for few
terms, for small products, and with all of K.
"""

from __future__ import annotations

import functools

import torch

from ..backends.context import call
from ..backends.cpu.llvm import targets
from ..backends.cpu.run.launch import team_of
from .layout import at_a_time
from .makespan import cost, makespan
from .sizes import cdiv, known, next_power_of_2, planned
from .straight import by_tiles, held
from .tuning import Tiles, gpu_kind, second_cache, tries, tuned_gpu, workers


def _guess(bm, bn, bk):
    """A tile as the tables have it: (BM, BN, BK, speed of a full tile relative to others). A large tile packs each operand less often."""
    return bm, bn, bk, 1 / (1 + 4 / bm + 8 / bn)


#: by how operands are multiplied: fp64 and bf16 have tiles of their own; fp16 is widened and goes as fp32, or by AMX as bf16.
#: What `triport tune` measures is the speed of every shape of `SHAPES`, with all threads at work.
SHAPES = tuple((bm, bn, bk) for bm in (16, 32, 64, 128, 256, 512) for bn in (32, 64, 128, 256) for bk in (256, 512))
_WIDE = tuple(_guess(*t) for t in ((512, 128, 256), (256, 256, 256), (128, 256, 256), (256, 128, 256), (128, 128, 256), (64, 128, 256),
                                   (64, 64, 256), (32, 64, 256), (16, 64, 256)))
_DOUBLE = tuple(_guess(bm, bn, 32) for bm in (64, 32, 16) for bn in (64,))
TILES = Tiles("matmul", cpu={"fp32": _WIDE, "bf16": _WIDE, "fp64": _DOUBLE},
              cuda={"fp32": ((128, 128, 16, 1.0, 8, 3), (64, 64, 16, 0.7, 4, 3)),
                    "bf16": ((128, 256, 32, 1.0, 8, 4), (128, 128, 64, 0.85, 8, 4), (64, 64, 64, 0.5, 4, 4)),
                    "fp64": ((64, 64, 32, 1.0, 4, 3),)})
#: for a GPU, by what multiplies: (BM, BN, BK, warps, stages); 16-bit operands go to the tensor cores
GPU_SHAPES = {"fp32": ((128, 128, 16, 8, 3), (128, 128, 32, 8, 2), (128, 128, 16, 4, 3), (128, 256, 16, 8, 3), (64, 256, 16, 8, 3), (128, 64, 16, 4, 3),
                       (64, 128, 16, 4, 3), (64, 64, 16, 4, 3), (64, 64, 32, 4, 3), (32, 64, 32, 4, 3)),
              "bf16": ((128, 256, 32, 8, 4), (128, 256, 64, 8, 3), (128, 256, 64, 8, 4), (256, 128, 64, 8, 3), (256, 128, 32, 8, 4), (128, 128, 64, 8, 4),
                       (128, 128, 64, 4, 4), (128, 128, 32, 4, 5), (64, 256, 64, 8, 4), (64, 256, 64, 4, 4), (128, 64, 64, 4, 4), (64, 128, 64, 4, 4),
                       (64, 64, 64, 4, 4), (64, 64, 128, 4, 3), (32, 64, 64, 4, 4))}
EXTRA = {"cpu": {"GROUP": 4}, "cuda": {"GROUP": 8}}
SMALLEST = {"cpu": 8, "cuda": 16}


def tile_for(a: torch.Tensor, b: torch.Tensor, alone: bool = False, count: int = 1) -> dict:
    """The tile for the matrices at hand, so many of each, the table's or one with all of K. alone: the kernel multiplies nothing else, and ends in its store."""
    cpu, count = a.device.type != "cuda", count if known(count) else 1
    sizes = planned(a.shape[0], b.shape[1], a.shape[1])
    if sizes is None:
        return {"BM": 128, "BN": 128, "BK": 32, **EXTRA["cpu" if cpu else "cuda"]}
    free = alone and not tries(TILES.op)
    if free and cpu and call.row is None:
        choice = freely(a.dtype, *sizes, workers(), count, a.stride(1) == 1 and known(b.stride(0)) and b.stride(0) * next_power_of_2(sizes[2]) < 1 << 31)
    elif free and not cpu and a.dtype != torch.float64 and known(*a.shape, *b.shape, *a.stride(), *b.stride(), a.storage_offset(), b.storage_offset()) and _is_paced():
        return _by_pace(a, b, *sizes, count)
    else:
        choice = entries(a, sizes[2], written=sizes[0] * sizes[1] * a.element_size())
    m, n, k = (*held(a.dtype, *sizes[:2]), sizes[2]) if cpu else sizes
    return chosen_tile(cpu, workers() if cpu else multiprocessors(), m, n, k, choice, count)


@functools.lru_cache(maxsize=1)
def _is_paced() -> bool:
    """Are tiles of kernels by pointers chosen by product_pace.py on this machine's GPU: is it like the one that is from, or was none like it measured?"""
    return TILES.op not in tuned_gpu() or gpu_kind() == "sm_90"


def _by_pace(a: torch.Tensor, b: torch.Tensor, m: int, n: int, k: int, count: int) -> dict:
    from . import product_pace
    _, t = product_pace.by_pointers(m, n, k, a.element_size(), b.stride(-1) != 1, (at_a_time(a), at_a_time(b)), multiprocessors(), count)
    return {"BM": t.bm, "BN": t.bn, "BK": t.bk, **EXTRA["cuda"], "num_warps": t.warps, "num_stages": t.stages}


def freely(dtype: torch.dtype, m: int, n: int, k: int, workers: int, count: int = 1, straight: bool = True) -> tuple:
    """Tiles, each with its speed, of which one is chosen for a product, or so many, on this machine's CPU, that ends in its store. straight: all of K may be one piece."""
    choice = few_terms(dtype, k, m * n * dtype.itemsize // workers) if k <= FEW_TERMS else measured(dtype, workers)
    if count == 1 and at_once(dtype, m, n, k, workers):
        return _guess(LARGEST_AT_ONCE, LARGEST_AT_ONCE, choice[0][2]),
    return choice + whole(dtype, m, n, k, workers, max(t[3] for t in choice), count) if straight else choice


def measured(dtype: torch.dtype, workers: int, device_type: str = "cpu") -> tuple:
    """Tiles as the table has them for this machine's CPU with so many threads, or its GPU."""
    return tuple(map(tuple, speeds_for(TILES.get(device_type), speeds_of(dtype, device_type), workers)))


#: rows and columns of the largest product that is one program for its own sake
LARGEST_AT_ONCE = 128
#: how much more AMX multiplies than vectors of fp32 do, in products that are this small (64 cubed on an Emerald Rapids: 1.3 us in bf16, 5.2 in fp32)
_BY_TILES = 4


def at_once(dtype: torch.dtype, m: int, n: int, k: int, workers: int) -> bool:
    """Is a product done by one of several threads of this CPU before the others would have come?"""
    pace = targets.native().lanes(64 if dtype == torch.float64 else 32) * (_BY_TILES if by_tiles(dtype) else 1)
    return workers > 1 and max(m, n) <= LARGEST_AT_ONCE and team_of(1, m * n * k // pace, workers) == 1


def gpu_tile(dtype: torch.dtype, m: int, n: int, k: int) -> dict:
    """The table's tile for a product on this machine's GPU."""
    return chosen_tile(False, multiprocessors(), m, n, k, measured(dtype, 0, "cuda"))


def entries(a: torch.Tensor, k: int, ends: bool = True, written: int = 0) -> tuple:
    """Tiles, each with its speed, for products of `a`'s dtype and k terms, where `a` is or on the board that code is made for. ends: products end in their store, else accumulators go
    through memory; written: bytes of the result."""
    cpu = a.device.type != "cuda"
    if cpu and not tries(TILES.op):
        if call.row is not None and call.row.scratch and TILES.op not in (call.tiles or ()):
            return fitting(call.row.scratch, a.dtype)
        if call.row is None and k <= FEW_TERMS:
            return few_terms(a.dtype, k, written // workers()) if ends else (_guess(32 if a.dtype == torch.bfloat16 or by_tiles(a.dtype) else 64, 64, FEW_TERMS),)
    return measured(a.dtype, workers() if cpu else 0, a.device.type)


@functools.lru_cache(maxsize=None)
def fitting(scratch: int, dtype: torch.dtype) -> tuple:
    """Tiles whose operands and accumulators fit in `scratch` bytes, where none were measured."""
    size = 8 if dtype == torch.float64 else 4
    return tuple((m, n, k, 1 / cost(m, n, k)) for m in (16, 32, 64, 128) for n in (32, 64, 128) for k in (32, 64, 128)
                 if taken(m, n, k, size) <= scratch * 15 // 16)


@functools.lru_cache(maxsize=1)
def multiprocessors() -> int:
    """Those of this machine's GPU; an H100's where tiles are chosen for one that is not here."""
    return torch.cuda.get_device_properties(0).multi_processor_count if torch.cuda.is_available() else 132


#: terms of a sum up to which a tile's accumulators take about as long as its products, on a CPU: tiles that are small leave more of them whole, and go to memory once, as results. 300 x 32 x 1000
#: in bf16 takes a Zen 4 135 us by 128 x 64, 142 by 256 x 128 and 143 by 32 x 64, 1024 x 64 x 1024 679, 670 and 749. Where accumulators go through memory they are to stay in the first cache
FEW_TERMS = 64
_FEW = tuple(_guess(bm, 64, FEW_TERMS) for bm in (128, 64, 32))
#: by AMX, and of up to so many terms in fp32 on Intel's CPUs, where a result's lines must follow each other: torch's time of ours on an Emerald Rapids, one thread, 1024 x 64 x 1024
#: by 128 x 64, 128 x 256 and 256 x 256 1.12, 1.54 and 1.74; 1024 x 16 x 1024 by 128 x 64, 128 x 512 and 64 x 512 0.73, 0.76 and 0.92 (two threads 0.76, 0.85 and 0.79)
_FEW_BY_TILES = ((256, 256, FEW_TERMS, 1.0), (128, 256, FEW_TERMS, 0.9), *_FEW)
_FEWEST, _FEWEST_TILES = 16, ((64, 512, FEW_TERMS, 1.0), *_FEW)
#: where a thread's part of the result is so many times what its second cache holds that its lines are fetched and written back while others are computed: pieces of 256 bytes a row are too short for
#: the hardware to see a row in (docs/performance/cpu-products.md has the times; of twice as much an Emerald Rapids gains nothing, 1024 x 64 x 1024 loses a tenth)
SPILLED = 2
_FEW_SPILLED = ((128, 512, FEW_TERMS, 1.0), *_FEW)


def few_terms(dtype: torch.dtype, k: int, written: int = 0) -> tuple:
    """Tiles, each with its speed, for products of up to `FEW_TERMS` terms that end in their store on this CPU. written: bytes of the result, a thread's."""
    if by_tiles(dtype):
        return _FEW_BY_TILES
    if written > SPILLED * second_cache():
        return _FEW_SPILLED
    return _FEWEST_TILES if dtype == torch.float32 and k <= _FEWEST and targets.native().assists else _FEW


def whole_tile_for(a: torch.Tensor, b: torch.Tensor) -> dict | None:
    """The tile that takes all of K, for a kernel that multiplies nothing else and ends in its store, where such a one is the fastest."""
    tile = tile_for(a, b, alone=True)
    return tile if tile["BK"] >= a.shape[1] > WHOLE[0] else None


#: terms of a sum, on a CPU: above the first, and up to the last, a tile takes all of K at once where a thread has several programs in a row that share their columns, for what is packed
#: of B then serves them all, and accumulators never leave registers. Of MKL's and oneDNN's speed, on one thread: 1024 cubed in fp32 0.93 -> 1.03, bf16 1.02 -> 1.11, 2048 cubed 0.90 -> 1.03
#: and 0.95 -> 1.29 (Emerald Rapids); fp32 1.19 -> 1.23 and 1.10 -> 1.16, bf16 1.01 -> 1.05 and 1.02 -> 1.07 (Zen 4), fp32 1.05 -> 1.11 and 1.02 -> 1.07 (by AVX2)
WHOLE = 512, 2048
#: the last for a thread alone, in fp32, where others' packed rows are not in the third cache as well: 1024 x 4096 x 1024 0.87 -> 1.07, 4096 x 4096 x 512 0.98 -> 1.08; two threads 0.94 -> 0.81
#: and 0.94 -> 0.92 (Emerald Rapids)
WHOLE_ALONE = 4096
#: how much faster such tiles are than the table's, at least; rows that share what is packed
_SERVING, _SHARING = 1.05, 1024


def whole(dtype: torch.dtype, m: int, n: int, k: int, workers: int, best: float, count: int = 1) -> tuple:
    """Tiles with all of K for a product, or so many, on this CPU, (BM, BN, BK, speed, GROUP) each, where `best` is the speed of the fastest others; none where they are no use. B's rows of a tile are to
    take half of the second cache, at most. In fp16 without AMX nothing is read where it lies, and rows of A would be packed for each of the more columns of tiles. Few threads take them for fewer terms,
    too, of which the table's tiles are whole as well, but wider (Emerald Rapids, one thread and two, fp32: 512 cubed 0.97 -> 1.02 and 0.99 -> 1.17, 333 x 257 x 511 0.96 -> 1.06 and 1.03 -> 1.06,
    1024 x 256 x 1024 0.86 -> 0.91 and 0.96 -> 1.02, 1024 x 512 x 1024 1.00 -> 1.15 and 1.04 -> 1.12)."""
    tiles = by_tiles(dtype)
    least = FEW_TERMS if workers <= FEW and not tiles else WHOLE[0]
    if not (tiles or dtype in (torch.float32, torch.bfloat16)) or not least < k <= (WHOLE_ALONE if workers == 1 and dtype == torch.float32 else WHOLE[1]):
        return ()
    bk = next_power_of_2(k)
    shapes = ((256, 256), (128, 256), (128, 128), (64, 128)) if tiles else ((256, 64), (128, 64), (64, 64))
    return tuple((bm, bn, bk, best * _SERVING, _SHARING // bm) for bm, bn in shapes
                 if bn * bk * dtype.itemsize <= second_cache() // 2 and (k <= WHOLE[0] or in_a_row(cdiv(m, bm) * cdiv(n, bn) * count, workers) > 1))


def in_a_row(programs: int, workers: int) -> int:
    """How many programs a thread takes at a time (`backends/cpu/run/job.py`)."""
    return max(programs // (8 * workers), 1)


#: threads that count as few: where a machine has many, its first ones leave caches and memory to each other, and tiles of other shapes are fastest
FEW = 2


def few(key: str) -> str:
    """Where a table keeps the speeds of few threads, as `triport tune --threads 1` measures them on a machine of many."""
    return f"{key} few"


def speeds_for(table: dict, key: str, workers: int):
    """The speeds of an entry of a table of tiles, for so many CPU threads (0: a GPU)."""
    return table.get(few(key), table[key]) if 0 < workers <= FEW else table[key]


def speeds_of(dtype: torch.dtype, device_type: str) -> str:
    """The entry of a table of tiles that a dtype takes."""
    if dtype == torch.float64:
        return "fp64"
    return "bf16" if dtype == torch.bfloat16 or dtype == torch.float16 and (device_type == "cuda" or by_tiles(dtype)) else "fp32"


@functools.lru_cache(maxsize=1024)
def chosen_tile(cpu: bool, workers: int, m: int, n: int, k: int, choice: tuple, count: int = 1) -> dict:
    device = "cpu" if cpu else "cuda"
    fitting = [(*clipped(tile, m, n, k, device), *tile[3:]) for tile in choice]
    group = EXTRA[device]["GROUP"]
    bm, bn, bk, _, *how = min(fitting, key=lambda t: makespan(workers, m, n, t[0], t[1], t[3], t[4] if cpu and t[4:] else group, cpu, count))
    return {"BM": bm, "BN": bn, "BK": bk, **EXTRA[device], **dict(zip(("GROUP",) if cpu else ("num_warps", "num_stages"), how))}


def clipped(tile, m: int, n: int, k: int, device: str = "cpu") -> tuple[int, int, int]:
    """(BM, BN, BK) of a table's tile, no larger than a product of m x k by k x n needs."""
    bm, bn, bk = (min(t, max(SMALLEST[device], next_power_of_2(size))) for t, size in zip(tile, (m, n, k)))
    return bm, bn, bk


def taken(m: int, n: int, k: int, size: int) -> int:
    """Bytes of a product's operands, packed, and accumulators, `size` an element."""
    return ((m + n) * k + m * n) * size
