"""`lora_linear` on NVIDIA GPUs of compute capability 9.0, for ranks up to 64: which kernels (lora_kernels.py), in which tiles, and their launches.

Of 16-bit numbers small results take one kernel, which computes x a beside x w: it is launched once, and a thin product of its own keeps few
multiprocessors busy. Where x w is the larger work by far x a comes first, K cut into parts, for each tile of columns would compute it again.
Calls that nothing watches come here without torch's dispatcher, and what was worked out for one serves all like it (launches.py): choosing, and
launching by Triton, take the host longer than the GPU needs for the work.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass
from typing import Callable, NamedTuple

import torch

from ..backends import cuda, of_torch
from ..backends.dispatch.cuda_launch import Address, Described, Number
from ..backends.of_torch import FakeTensor
from . import lora_few, lora_plain, lora_split, product_split
from .checks import FLOATS, check, check_low_rank
from .dispatch import interpreted
from .layout import steps_fit
from .launches import Drawing, Plan, TensorDescriptor
from .sizes import cdiv, known, next_power_of_2
from .lora_kernels import CLEARED, lora_gradients_kernel, lora_kernel, lora_parts_kernel, lora_tma_kernel
from .product_tma import turned

KERNELS = (lora_kernel, lora_tma_kernel, lora_parts_kernel, lora_gradients_kernel, *lora_few.KERNELS, *lora_split.KERNELS, lora_plain.clear_kernel)
MOST = 64  # the largest rank
GROUP = 8
#: x w + t b: (BM, BN, BK, warps, stages), fastest of those tried on an H200, by the size of the result
SMALL, MIDDLE, LARGE = (64, 64, 64, 4, 4), (64, 128, 64, 4, 4), (128, 128, 64, 8, 4)
TMA_MIDDLE, TMA_LARGE = (128, 128, 64, 4, 4), (128, 256, 64, 8, 3)
WIDE_SMALL, WIDE_LARGE = (64, 64, 64, 4, 3), (128, 128, 32, 8, 3)  # fp32
PARTS, WIDE_PARTS, FEW_PARTS = (64, 128, 4, 4), (64, 64, 4, 3), (16, 64, 4, 4)  # x a: (BM, BK, warps, stages)
#: fp32, on an H100 (docs/performance/gpu.md): rows or columns up to which, and multiplications and terms of a sum from which on lora_few.py is the fastest, as fused
#: products are from these multiplications on; products that a number is in, on average, from which on lora_split.py is
FEW, PRODUCTS, TERMS, SPLIT = 128, 1 << 26, 384, 240
SCANS = 256
GRADIENTS, WIDE_GRADIENTS = (128, 64, 4, 3), (32, 64, 4, 3)  # (BM, BC, warps, stages)


def on(x: torch.Tensor):
    """Within it the device of `x` is the current one."""
    return contextlib.nullcontext() if not x.is_cuda or x.get_device() == of_torch.current_gpu() else torch.cuda.device(x.device)


@dataclass(frozen=True)
class How:
    """One call's kernels: tiles as above, whether by TMA, into how many parts x a is cut (0: not computed beforehand), and who multiplies x and w: "fused", this
    file's kernels, else lora_split.py, lora_few.py or lora_plain.py."""

    tile: tuple
    tma: bool
    splits: int
    parts: tuple
    way: str = "fused"


def takes(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> bool:
    """Is x w + s (x a) b, of checked tensors that nothing traces, for this file?"""
    sizes = (*x.shape, *w.shape, *a.shape)
    return (x.is_cuda and x.dtype in (torch.float32, torch.float16, torch.bfloat16) and not isinstance(x, FakeTensor) and known(*sizes)
            and 0 not in sizes and a.shape[1] <= MOST and TensorDescriptor is not None and torch.version.hip is None
            and cuda.limits(x.get_device())[2] == (9, 0) and not interpreted()
            and (x.dtype is torch.float32 or not any(n % 8 for n in w.shape) and fetched(x) and fetched(w))
            and all(steps_fit(*step) for step in ((x, -1), (w, 0), (a, 0), (b, 0))))


def fetched(x: torch.Tensor) -> bool:
    """Do all lines of a 16-bit tensor begin at multiples of 16 bytes? x and w that do not, so that they cannot be copied to shared memory 16 bytes
    at a time, Triton 3.6 compiles wrong where one loop multiplies them and x a: it reads outside of shared memory (compute-sanitizer), and
    333 x 257 x 511 at rank 5 had an error of 0.47 on an H200. a and b may lie as they like (ranks 1 to 20 were right, and read where they should)."""
    strides = x.stride()
    return x.data_ptr() % 16 == 0 and any(step == 1 and not any(s % 8 for e, s in enumerate(strides) if e != d) for d, step in enumerate(strides))


_accepted: dict = {}


def accepts(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> bool:
    """`takes`, of tensors that are `bare`; raises `ArgumentError` for those that do not fit. Calls like one before are not checked again."""
    key = tuple((t.shape, t.stride(), t.dtype, t.device, t.data_ptr() % 16) for t in (x, w, a, b))
    found = _accepted.get(key)
    if found is None:
        check("lora_linear", FLOATS, x=x, w=w, a=a, b=b)
        check_low_rank("lora_linear", x, w, a, b)
        if len(_accepted) >= 1024:
            _accepted.clear()
        found = _accepted[key] = takes(x, w, a, b)
    return found


@functools.lru_cache(maxsize=1024)
def how(m: int, n: int, k: int, r: int, wide: bool, described: bool, workers: int, split: bool = False, few: bool = False,
        neat: bool = True) -> How:
    """wide: fp32; described: TMA can fetch the operands; workers: the GPU's multiprocessors; of fp32 split, few: what `fits` says in lora_split.py
    and lora_few.py; neat: as of `_wide`."""
    def tiles(tile):
        return cdiv(m, tile[0]) * cdiv(n, tile[1])

    def parts(block):
        """So many that all multiprocessors have work, twice where that is cheap: for every tile of x w each is one more to add up."""
        return max(1, min(8, 1 << ((2 if r <= 32 else 1) * workers // cdiv(m, block[0])).bit_length() >> 1, cdiv(k, block[1])))

    if wide:
        return _wide(m, n, k, split, few, neat, tiles, parts, workers)
    if 2 * tiles(SMALL) <= 3 * workers:
        return How(SMALL, False, 0, PARTS)
    if tiles(MIDDLE) <= 2 * workers:
        tma = described and r > 32 and 4 * tiles(TMA_MIDDLE) >= 3 * workers
        return How(TMA_MIDDLE if tma else MIDDLE, tma, 0, PARTS)
    return How(TMA_LARGE if described else LARGE, described, parts(PARTS), PARTS)


def _wide(m: int, n: int, k: int, split: bool, few: bool, neat: bool, tiles: Callable, parts: Callable, workers: int) -> How:
    """`how`, of fp32. neat: of x's lines 64 bytes are a part, so that Triton sees that they can be read 16 at a time."""
    at_once = neat and workers <= 2 * tiles(WIDE_SMALL) <= 2 * workers
    if split and not at_once and m * n >= SPLIT * (m + n) and m * n * k >= product_split.PRODUCTS and tiles(product_split.SMALL) >= product_split.TILES:
        return How(product_split.tile_for(m, n, None, workers), False, parts(WIDE_PARTS), WIDE_PARTS, "split")
    if few and k >= TERMS and (min(m, n) <= FEW or m * n * k >= PRODUCTS and 2 * tiles(WIDE_SMALL) < workers):
        block = FEW_PARTS if m <= FEW else WIDE_PARTS
        return How(WIDE_SMALL, False, parts(block), block, "few")
    tile = WIDE_LARGE if 4 * tiles(WIDE_LARGE) >= 3 * workers else WIDE_SMALL
    return How(tile, False, parts(WIDE_PARTS), WIDE_PARTS, "fused" if neat and m * n * k >= PRODUCTS else "plain")


class Matrix(NamedTuple):
    """A matrix as plans know it. memory: its number; aligned: it begins at a multiple of 16 bytes."""

    memory: int
    shape: tuple
    strides: tuple
    dtype: torch.dtype
    aligned: bool

    @property
    def T(self) -> Matrix:
        return self._replace(shape=self.shape[::-1], strides=self.strides[::-1])


def matrices(*tensors: torch.Tensor | None) -> list[Matrix | None]:
    """They have numbers in their order; None has none."""
    out, number = [], 0
    for t in tensors:
        out.append(None if t is None else Matrix(number, tuple(t.shape), t.stride(), t.dtype, t.data_ptr() % 16 == 0))
        number += t is not None
    return out


_plans: dict = {}


def _planned(key: tuple, draw: Callable[[bool], Plan]) -> Plan:
    """What `draw` made for the first call with this key. It is told whether little scratch memory is to do, as where there is none for what it drew at first."""
    found = _plans.get(key)
    if found is None:
        if len(_plans) >= 1024:
            _plans.clear()
        found = _plans[key] = draw(False)
        found.otherwise = functools.cache(functools.partial(draw, True))
    return found


def lined(x: torch.Tensor) -> torch.Tensor:
    """A matrix with contiguous lines; a copy where it has none. What fp32 is looked through by."""
    return x.contiguous() if x.dtype is torch.float32 and 1 not in x.stride() else x


def _lines(x: Matrix) -> tuple[int, int, int]:
    """(how many, how long, elements from one to the next) of a matrix's contiguous lines."""
    return (x.shape[0], x.shape[1], x.strides[0]) if x.strides[1] == 1 else (x.shape[1], x.shape[0], x.strides[1])


def _by_eight(r: int, a: Matrix, b: Matrix) -> int:
    """What is a multiple of 8, for the kernels: 1 (r), 2 (the steps from row to row of a) and 4 (those from column to column of b), added up.
    Triton sees multiples of 16 itself, and no others: it would read rank 8 a number at a time."""
    if r % 8 or r % 16 == 0:
        return 0
    return 1 + 2 * (a.strides[1] == 1 and a.strides[0] % 8 == 0) + 4 * (b.strides[0] == 1 and b.strides[1] % 8 == 0)


def _turned(*operands: Matrix) -> bool | None:
    """Whether x, w, a and b can be described: False or True, whether w, a and b are turned; None where they cannot, or not all alike."""
    x, w, a, b = (turned(p.shape, p.strides, p.dtype.itemsize, p.aligned) for p in operands)
    return w if x is False and w is not None and a is w and b is w else None


def draw_product(d: Drawing, x: Matrix, w: Matrix, a: Matrix, b: Matrix, device: int, out: int, t: int | None = None, counters: int | None = None,
                 done: int = 0, by: How | None = None):
    """Draw out = x w + t b with t = s x a, s the first of the plan's numbers. out, t and counters are numbers of memory: t where it is to be kept,
    `done` counters (int32) that the product sets to 0. device: as `Plan`'s."""
    (m, k), (r, n), wide = x.shape, b.shape, x.dtype is torch.float32
    across = None if wide else _turned(x, w, a, b)
    laid = (lora_split.fits(x, w) and not d.lean, lora_few.fits(x, w), _lines(x)[2] % 16 == 0) if wide else ()
    h = by or how(m, n, k, r, wide, across is not None, cuda.limits(device)[0], *laid)
    keep = t is not None
    if h.way == "plain":
        lora_plain.draw(d, x, w, a, b, out, t, counters, done)
        return
    ranks = dict(BR=max(16, next_power_of_2(r)), SPLITS=h.splits, BY_EIGHT=_by_eight(r, a, b))
    parts, flags, count = _draw_parts(d, x, w, a, b, h, ranks) if h.splits else (out, out, 0)
    if h.way == "split":
        lora_split.draw(d, x, w, b, parts, h.splits, out, t, counters, done, device, h.tile)
    if h.way == "few":
        lora_few.draw(d, x, w, b, parts, out, t, counters, done, device, ranks)
    if h.way != "fused":
        return
    bm, bn, bk, warps, stages = h.tile
    consts = dict(BM=bm, BN=bn, BK=bk, **ranks, GROUP=GROUP, KEEP=keep, DONE=CLEARED if done else 0)
    grid = cdiv(m, bm) * cdiv(n, bn)
    low, zeros = Address(t if keep else out), Address(counters if done else out)
    if h.tma:
        def of(p, *block):
            p, block = (p.T, block[::-1]) if across and p is not x else (p, block)
            return Described(p.memory, p.shape, p.strides, block)

        descriptors = of(x, bm, bk), of(w, bk, bn), of(a, bk, ranks["BR"]), of(b, ranks["BR"], bn)
        d.launch(lora_tma_kernel, grid, (Address(out), low, Address(parts), zeros, *descriptors, m, n, k, r, Number(0), done),
                 {**consts, "TURNED": across}, warps, stages)
        return
    # the right factor's columns must lie contiguous for TF32; those of w seldom do, those of x^T are x's rows
    how_multiplied = dict(EVEN=m % bm == 0 and n % bn == 0 and k % bk == 0, SWAP=wide and w.strides[0] != 1,
                          PRECISION="tf32x3" if wide else "ieee", FLAGS=512 if wide else 0, STAGES=stages)
    operands = [Address(p.memory) for p in (x, w, a, b)]
    d.launch(lora_kernel, grid, (*operands, Address(out), low, Address(parts), Address(flags), zeros, m, n, k, r, Number(0), count, done,
                                 *x.strides, *w.strides, *a.strides, *b.strides), {**consts, **how_multiplied}, warps, stages)


def _draw_parts(d: Drawing, x: Matrix, w: Matrix, a: Matrix, b: Matrix, h: How, ranks: dict) -> tuple[int, int, int]:
    """(the parts of x a, fp32; flags for numbers in fp32 operands that TF32 does not do for, int32; how many)."""
    (m, k), r, (bm, bk, warps, stages) = x.shape, a.shape[1], h.parts
    parts = d.piece(h.splits * m * r, torch.float32)
    work, scans, lines, flags = cdiv(m, bm) * h.splits, 0, (0,) * 6, parts
    if x.dtype is torch.float32 and h.way == "fused":
        lines = (*_lines(w), *_lines(b))
        scans = min(SCANS, cdiv(lines[0], bm) * cdiv(lines[1], bk) + cdiv(lines[3], bm) * cdiv(lines[4], bk))
        flags = d.piece(work + scans, torch.int32)
    d.launch(lora_parts_kernel, work + scans, (*map(Address, (x.memory, a.memory, parts, w.memory, b.memory, flags)), m, k, r, *lines, *x.strides,
                                               *a.strides),
             dict(BM=bm, BK=bk, **ranks, EVEN=m % bm == 0 and k % (bk * h.splits) == 0, SCANS=scans), warps, stages)
    return parts, flags, work + scans if scans else 0


def draw_gradients(d: Drawing, x: Matrix, u: int | None, ga: int | None, g: Matrix, t: int | None, gb: int | None, r: int, device: int,
                   done: int | None, by: tuple = (), splits: int = 0):
    """Draw ga = x^T u and gb = t^T g, of contiguous u and t, numbers of memory; without u or t its gradient is left out. done: as many counters that
    are 0 as `gradient_tiles` says."""
    (m, k), n, wide = x.shape, g.shape[1], g.dtype is torch.float32
    bm, bc, warps, stages = by or (WIDE_GRADIENTS if wide else GRADIENTS)
    tiles = (cdiv(k, bc) if u is not None else 0) + (cdiv(n, bc) if t is not None else 0)
    splits = splits or max(1, min(8, 1 << (2 * cuda.limits(device)[0] // tiles).bit_length() >> 1, m // (2 * bm)))
    ranks, unused = max(16, next_power_of_2(r)), gb if ga is None else ga
    parts = d.piece(tiles * splits * bc * ranks, torch.float32) if splits > 1 else unused
    memory = [Address(unused if p is None else p) for p in (x.memory, u, ga, g.memory, t, gb, parts, done)]
    d.launch(lora_gradients_kernel, tiles * splits, (*memory, m, k, n, r, x.strides[0], g.strides[0]),
             dict(BM=bm, BC=bc, BR=ranks, SPLITS=splits, BY_EIGHT=int(r % 16 == 8), GA=u is not None, GB=t is not None), warps, stages)


def gradient_tiles(k: int, n: int, wide: bool, by: tuple = ()) -> int:
    """How many counters the gradients take at most."""
    bc = (by or (WIDE_GRADIENTS if wide else GRADIENTS))[1]
    return cdiv(k, bc) + cdiv(n, bc)


def product(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor, keep: bool, shape: tuple) -> Plan:
    """The plan of (x w + t b as a tensor of this shape, t = s x a if it is to be kept), for tensors and alignment like these. Takes what `takes`
    does, w and b `lined`."""
    operands, device = matrices(x, w, a, b), x.get_device()

    def draw(lean):
        d = Drawing(4, lean)
        out = d.made(shape, x.dtype)
        draw_product(d, *operands, device, out, d.made((x.shape[0], a.shape[1]), x.dtype) if keep else None)
        return d.plan(device)

    return _planned(("product", device, keep, tuple(shape), *operands), draw)


def gradients(x, w, a, b, t, g, u, zeros, needed: tuple, shape: tuple) -> Plan:
    """The plan of the gradients of x (as a tensor of this shape), a and b, those of them that are needed, for tensors like these, all those that are
    not None the plan's. g: the result's gradient; t: s x a, where b's is needed; u: s g b^T, where a's is and x's is not; zeros: `gradient_tiles` of them,
    int32, where x's is not needed. x and g have contiguous rows, t and u are contiguous."""
    of, device = matrices(x, w, a, b, t, g, u, zeros), g.get_device()

    def draw(lean):
        mx, mw, ma, mb, mt, mg, mu, mz = of
        d, (k, r), n, thin = Drawing(sum(p is not None for p in of), lean), a.shape, b.shape[1], needed[2] or needed[3]
        gx = d.made(shape, g.dtype) if needed[0] else None
        ga = d.made((k, r), g.dtype) if needed[2] else None
        gb = d.made((r, n), g.dtype) if needed[3] else None
        low, done = (None if p is None else p.memory for p in (mu, mz))
        if needed[0]:
            counters = gradient_tiles(k, n, g.dtype is torch.float32) if thin else 0
            low = d.piece(g.shape[0] * r, g.dtype) if needed[2] else None
            done = d.piece(counters, torch.int32) if thin else None
            draw_product(d, mg, mw.T, mb.T, ma.T, device, gx, low, done, counters)
        if thin:
            draw_gradients(d, mx, low, ga, mg, mt.memory if needed[3] else None, gb, r, device, done)
        return d.plan(device)

    return _planned(("gradients", device, needed[:1] + needed[2:], tuple(shape), *of), draw)
