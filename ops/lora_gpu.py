"""`lora_linear` on NVIDIA GPUs of compute capability 9.0, for ranks up to 64: which kernels (lora_kernels.py), in which tiles, and their launches.

Of 16-bit numbers small results take one kernel, which computes x a beside x w: it is launched once, and a thin product of its own keeps few
multiprocessors busy. Where x w is the larger work by far x a comes first, K cut into parts, for each tile of columns would compute it again.
Calls that nothing watches come here without torch's dispatcher, and with the compiled kernel of the last call like them at hand: a launch through
Triton's own takes the host longer than the GPU needs for the work.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensor
from triton.runtime.jit import JITFunction

from ..backends import cuda
from ..backends.dispatch import drivers
from .checks import FLOATS, check, check_low_rank
from .dispatch import interpreted, launch
from .sizes import cdiv, known, next_power_of_2
from .lora_kernels import lora_gradients_kernel, lora_kernel, lora_parts_kernel, lora_tma_kernel
from .product_tma import TensorDescriptor, _turned

KERNELS = (lora_kernel, lora_tma_kernel, lora_parts_kernel, lora_gradients_kernel)
MOST = 64  # the largest rank
GROUP = 8
#: x w + t b: (BM, BN, BK, warps, stages), fastest of those tried on an H200, by the size of the result
SMALL, MIDDLE, LARGE = (64, 64, 64, 4, 4), (64, 128, 64, 4, 4), (128, 128, 64, 8, 4)
TMA_MIDDLE, TMA_LARGE = (128, 128, 64, 4, 4), (128, 256, 64, 8, 3)
WIDE_SMALL, WIDE_LARGE = (64, 64, 64, 4, 3), (128, 128, 32, 8, 3)  # fp32
PARTS, WIDE_PARTS = (64, 128, 4, 4), (64, 64, 4, 3)  # x a: (BM, BK, warps, stages)
SCANS = 256
GRADIENTS, WIDE_GRADIENTS = (128, 64, 4, 3), (32, 64, 4, 3)  # (BM, BC, warps, stages)


def on(x: torch.Tensor):
    """Within it the device of `x` is the current one."""
    return contextlib.nullcontext() if not x.is_cuda or x.get_device() == torch._C._cuda_getDevice() else torch.cuda.device(x.device)


@dataclass(frozen=True)
class How:
    """One call's kernels: tiles as above, whether by TMA, and into how many parts x a is cut (0: not computed beforehand)."""

    tile: tuple
    tma: bool
    splits: int
    parts: tuple


def takes(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> bool:
    """Is x w + s (x a) b, of checked tensors that nothing traces, for this file?"""
    sizes = (*x.shape, *w.shape, *a.shape)
    return (x.is_cuda and x.dtype in (torch.float32, torch.float16, torch.bfloat16) and not isinstance(x, FakeTensor) and known(*sizes)
            and 0 not in sizes and a.shape[1] <= MOST and TensorDescriptor is not None and torch.version.hip is None
            and cuda.limits(x.get_device())[2] == (9, 0) and not interpreted())


_accepted: dict = {}


def accepts(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> bool:
    """`takes`, of tensors that are `bare`; raises `ArgumentError` for those that do not fit. Calls like one before are not checked again."""
    key = (x.shape, w.shape, a.shape, b.shape, x.dtype, w.dtype, a.dtype, b.dtype, x.device, w.device, a.device, b.device)
    found = _accepted.get(key)
    if found is None:
        check("lora_linear", FLOATS, x=x, w=w, a=a, b=b)
        check_low_rank("lora_linear", x, w, a, b)
        if len(_accepted) >= 1024:
            _accepted.clear()
        found = _accepted[key] = takes(x, w, a, b)
    return found


@functools.lru_cache(maxsize=1024)
def how(m: int, n: int, k: int, r: int, wide: bool, described: bool, workers: int) -> How:
    """wide: fp32; described: TMA can fetch the operands; workers: the GPU's multiprocessors."""
    def tiles(tile):
        return cdiv(m, tile[0]) * cdiv(n, tile[1])

    def parts(block):
        """So many that all multiprocessors have work, twice where that is cheap: for every tile of x w each is one more to add up."""
        return max(1, min(8, 1 << ((2 if r <= 32 else 1) * workers // cdiv(m, block[0])).bit_length() >> 1, cdiv(k, block[1])))

    if wide:
        tile = WIDE_LARGE if 4 * tiles(WIDE_LARGE) >= 3 * workers else WIDE_SMALL
        return How(tile, False, parts(WIDE_PARTS), WIDE_PARTS)
    if 2 * tiles(SMALL) <= 3 * workers:
        return How(SMALL, False, 0, PARTS)
    if tiles(MIDDLE) <= 2 * workers:
        tma = described and r > 32 and 4 * tiles(TMA_MIDDLE) >= 3 * workers
        return How(TMA_MIDDLE if tma else MIDDLE, tma, 0, PARTS)
    return How(TMA_LARGE if described else LARGE, described, parts(PARTS), PARTS)


_compiled: dict = {}
_run = JITFunction.run


def _launch(key: tuple, kernel, grid: int, args: tuple, consts: dict, warps: int, stages: int, device: int):
    """Launch a kernel, as it was compiled for an earlier call with this key, which says all by which Triton specialises."""
    made = _compiled.get(key)
    if made is not None and JITFunction.run is _run and device in kernel.device_caches:  # else somebody looks at launches, or had it forgotten
        made[grid, 1, 1](*args, *[consts[name] for name in kernel.arg_names[len(args):]], stream=torch._C._cuda_getCurrentRawStream(device))
        return
    if not args[0].is_cuda:
        launch(kernel, (grid,), *args, **consts, num_warps=warps, num_stages=stages)
        return
    if len(_compiled) >= 4096:
        _compiled.clear()
    with drivers.serving("cuda"):
        _compiled[key] = kernel[(grid,)](*args, **consts, num_warps=warps, num_stages=stages)


def _lines(x: torch.Tensor) -> tuple[int, int, int] | None:
    """(how many, how long, elements from one to the next) of a matrix's contiguous lines."""
    if x.stride(1) == 1:
        return x.shape[0], x.shape[1], x.stride(0)
    return (x.shape[1], x.shape[0], x.stride(1)) if x.stride(0) == 1 else None


def _by_eight(r: int, a: torch.Tensor, b: torch.Tensor) -> int:
    """What is a multiple of 8, for the kernels: 1 (r), 2 (the steps from row to row of a) and 4 (those from column to column of b), added up.
    Triton sees multiples of 16 itself, and no others: it would read rank 8 a number at a time."""
    if r % 8 or r % 16 == 0:
        return 0
    return 1 + 2 * (a.stride(1) == 1 and a.stride(0) % 8 == 0) + 4 * (b.stride(0) == 1 and b.stride(1) % 8 == 0)


def _descriptors(x, w, a, b):
    """Whether the operands can be described: False or True, whether w, a and b are turned; None where they cannot, or not all alike."""
    turned = _turned(w)
    return turned if _turned(x) is False and turned is not None and _turned(a) is turned and _turned(b) is turned else None


def product(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor, s: float, keep: bool = False, done: int = 0,
            by: How | None = None) -> tuple:
    """(x w + t b, t = s x a if it is to be kept, `done` counters that are 0, int32). Takes what `takes` does; CPU tensors with a `by`."""
    (m, k), (r, n) = x.shape, b.shape
    wide, device = x.dtype is torch.float32, x.get_device()
    turned = None if wide else _descriptors(x, w, a, b)
    h = by or how(m, n, k, r, wide, turned is not None, cuda.limits(device)[0])
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    t = torch.empty((m, r), dtype=x.dtype, device=x.device) if keep else out
    counters = torch.empty(done, dtype=torch.int32, device=x.device) if done else out
    strides = (*x.stride(), *w.stride(), *a.stride(), *b.stride())
    key = (x.dtype, device, m, n, k, r, strides, *[p.data_ptr() & 15 for p in (x, w, a, b)], keep, done, h)
    ranks = dict(BR=max(16, next_power_of_2(r)), SPLITS=h.splits, BY_EIGHT=_by_eight(r, a, b))
    parts, flags, count = _parts(key, x, w, a, b, h, ranks) if h.splits else (out, out, 0)
    bm, bn, bk, warps, stages = h.tile
    consts = dict(BM=bm, BN=bn, BK=bk, **ranks, GROUP=GROUP, KEEP=keep, DONE=128 if done else 0)
    grid = cdiv(m, bm) * cdiv(n, bn)
    if h.tma:
        def of(p, *block):
            return TensorDescriptor.from_tensor(p.T, [block[1], block[0]]) if turned else TensorDescriptor.from_tensor(p, list(block))

        descriptors = TensorDescriptor.from_tensor(x, [bm, bk]), of(w, bk, bn), of(a, bk, ranks["BR"]), of(b, ranks["BR"], bn)
        _launch(("tma", *key), lora_tma_kernel, grid, (out, t, parts, counters, *descriptors, m, n, k, r, s, done), {**consts, "TURNED": turned},
                warps, stages, device)
    else:
        # the right factor's columns must lie contiguous for TF32; those of w seldom do, those of x^T are x's rows
        how_multiplied = dict(EVEN=m % bm == 0 and n % bn == 0 and k % bk == 0, SWAP=wide and w.stride(0) != 1,
                              PRECISION="tf32x3" if wide else "ieee", FLAGS=512 if wide else 0, STAGES=stages)
        _launch(("sum", *key), lora_kernel, grid, (x, w, a, b, out, t, parts, flags, counters, m, n, k, r, s, count, done, *strides),
                {**consts, **how_multiplied}, warps, stages, device)
    return out, t if keep else None, counters if done else None


def _parts(key, x, w, a, b, h: How, ranks: dict) -> tuple[torch.Tensor, torch.Tensor, int]:
    """(the parts of x a, fp32; flags for numbers in fp32 operands that TF32 does not do for, int32; how many)."""
    (m, k), r, (bm, bk, warps, stages) = x.shape, a.shape[1], h.parts
    parts = torch.empty((h.splits, m, r), dtype=torch.float32, device=x.device)
    work, scans, lines, flags = cdiv(m, bm) * h.splits, 0, (0,) * 6, parts
    if x.dtype is torch.float32:
        w, b = (p if _lines(p) else p.contiguous() for p in (w, b))
        lines = (*_lines(w), *_lines(b))
        scans = min(SCANS, cdiv(lines[0], bm) * cdiv(lines[1], bk) + cdiv(lines[3], bm) * cdiv(lines[4], bk))
        flags = torch.empty(work + scans, dtype=torch.int32, device=x.device)
    _launch(("parts", *key), lora_parts_kernel, work + scans, (x, a, parts, w, b, flags, m, k, r, *lines, *x.stride(), *a.stride()),
            dict(BM=bm, BK=bk, **ranks, EVEN=m % bm == 0 and k % (bk * h.splits) == 0, SCANS=scans), warps, stages, x.get_device())
    return parts, flags, work + scans if scans else 0


def gradient_tiles(k: int, n: int, wide: bool) -> int:
    """How many counters `low_rank_gradients` takes at most."""
    bc = (WIDE_GRADIENTS if wide else GRADIENTS)[1]
    return cdiv(k, bc) + cdiv(n, bc)


def low_rank_gradients(x, u, g, t, done=None, by: tuple = (), splits: int = 0) -> tuple:
    """(x^T u, t^T g); None where u or t is None. u and t are contiguous; done: counters from `product`."""
    m, r = (t if u is None else u).shape
    wide, k, n = g.dtype is torch.float32, x.shape[1], g.shape[1]
    x, g = (p if p.stride(1) == 1 else p.contiguous() for p in (x, g))
    bm, bc, warps, stages = by or (WIDE_GRADIENTS if wide else GRADIENTS)
    tiles = (cdiv(k, bc) if u is not None else 0) + (cdiv(n, bc) if t is not None else 0)
    splits = splits or max(1, min(8, 1 << (2 * cuda.limits(g.get_device())[0] // tiles).bit_length() >> 1, m // (2 * bm)))
    ga = torch.empty((k, r), dtype=g.dtype, device=g.device) if u is not None else None
    gb = torch.empty((r, n), dtype=g.dtype, device=g.device) if t is not None else None
    ranks = max(16, next_power_of_2(r))
    parts = torch.empty(tiles * splits * bc * ranks, dtype=torch.float32, device=g.device) if splits > 1 else None
    if splits > 1 and done is None:
        done = torch.zeros(tiles, dtype=torch.int32, device=g.device)
    device, unused = g.get_device(), g if ga is None else ga
    aligned = [p.data_ptr() & 15 for p in (x, g)]
    key = ("gradients", g.dtype, device, m, k, n, r, x.stride(0), g.stride(0), *aligned, u is None, t is None, bm, bc, warps, stages, splits)
    tensors = [unused if p is None else p for p in (x, u, ga, g, t, gb, parts, done)]
    _launch(key, lora_gradients_kernel, tiles * splits, (*tensors, m, k, n, r, x.stride(0), g.stride(0)),
            dict(BM=bm, BC=bc, BR=ranks, SPLITS=splits, BY_EIGHT=int(r % 16 == 8), GA=u is not None, GB=t is not None), warps, stages, device)
    return ga, gb
