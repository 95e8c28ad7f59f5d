"""softmax in CUDA C++ (softmax.cu): which kernel, and how its blocks share a tensor."""

from __future__ import annotations

from pathlib import Path

import torch

from ..backends import cuda
from ..backends.dispatch.replay import temporary
from .layout import split, sums_dtype
from .sizes import cdiv, next_power_of_2

CUDA = Path(__file__).with_name("softmax.cu")

#: 16-byte pieces of a row that a thread has in registers, and of the longest row that one block has there on GPUs with clusters: of a longer one shared memory
#: lets more be on its way. H100, fp16, registers and shared memory: rows of 8192 44.5 and 43.5 us, of 16384 51.3 and 41.9
PIECES, HELD = 4, 1024
#: most parts whose statistics each block joins
PARTS = 128
#: blocks of a cluster that any GPU with clusters can have
CLUSTER = 8
#: bytes of columns that blocks may have where clusters of the largest would have to have less, if all multiprocessors have work then: 2048x16384 62 and 56 us in fp16, 108 and 104 in fp32 (H100)
SMALL = 64 << 10
#: of a block that stays, for columns longer than clusters keep (softmax_tall.cuh): threads that compute, 16-byte pieces that each of them has of a slice,
#: threads side by side over a slice, slices in shared memory; and the most blocks that share a slice
TALL_THREADS, TALL_TURNS, TALL_LANES, TALL_SLICES, TALL_GROUP = 448, 9, 8, 3, 288
#: bytes of a tensor from which on they are faster than reading it twice. H100: 16384x64 in fp32 13.0 us for 11.2, 32768x128 in fp16 17.5 for 21.2
TALL_BYTES = 6 << 20


def softmax(x: torch.Tensor, out: torch.Tensor, dim: int):
    """Softmax of x, contiguous and not empty, along `dim`, into `out`."""
    outer, n, inner = split(x, dim)
    if inner > 1:
        _columns(x, out, outer, n, inner)
        return
    t = cuda.element(x)
    piece = 16 // x.element_size()
    pieces = cdiv(n, piece) + (n % piece != 0 or x.data_ptr() % 16 != 0)  # a row that is not aligned sticks out at both ends
    most = 256 if piece <= 4 else 128  # pieces of a row that a warp has registers for
    if pieces <= most:
        cuda.launch(CUDA, f"softmax_rows<{t}, {next_power_of_2(cdiv(pieces, 32))}, 128, true>", (cdiv(outer, 4),), 128, x, out, outer, n)
    elif pieces > HELD and _kept_rows(x, out, outer, n, pieces):
        pass
    elif pieces <= PIECES * 1024:
        threads = next_power_of_2(cdiv(pieces, PIECES))
        cuda.launch(CUDA, f"softmax_rows<{t}, {cdiv(pieces, threads)}, {threads}, false>", (outer,), threads, x, out, outer, n)
    else:
        cuda.launch(CUDA, f"softmax_long_rows<{t}>", (outer,), 1024, x, out, outer, n)


def _kept_rows(x: torch.Tensor, out: torch.Tensor, outer: int, n: int, pieces: int) -> bool:
    """Rows in the shared memory of clusters, where the GPU has clusters and a row fits. Blocks are small, 32 KiB where that can be, so that some compute
    while others wait for memory."""
    _, shared, capability = cuda.limits(x.device.index)
    if capability < (9, 0):
        return False
    cluster = min(CLUSTER, next_power_of_2(cdiv(pieces, 2048)))
    own = cdiv(pieces, cluster)
    threads = 128 if own <= 2048 else 256
    turns = cdiv(own, threads)
    if turns * threads * 16 > shared - cuda.BESIDE:
        return False
    whole = n * x.element_size() % 16 == 0 and x.data_ptr() % 16 == 0 and out.data_ptr() % 16 == 0
    cuda.launch(CUDA, f"softmax_kept_rows<{cuda.element(x)}, {threads}, {str(whole).lower()}>", (outer * cluster,), threads, x, out, n, turns,
                cluster=cluster, shared=turns * threads * 16)
    return True


def _tall_columns(x: torch.Tensor, out: torch.Tensor, outer: int, n: int, inner: int, across: int) -> bool:
    """By blocks that stay, where all that are on the GPU at once can hold some slices of columns, a slice is full, and it is worth it."""
    t, size = cuda.element(x), x.element_size()
    multiprocessors, shared, _ = cuda.limits(x.device.index)
    teams, kept = TALL_THREADS // TALL_LANES, TALL_SLICES * TALL_TURNS * TALL_THREADS * 16
    least = cdiv(n, TALL_TURNS * teams)  # blocks that hold a slice
    if size > 4 or x.numel() * size < TALL_BYTES or inner * size < TALL_LANES * 16 or least > min(multiprocessors, TALL_GROUP) or kept > shared - cuda.BESIDE:
        return False
    slices = across * outer
    groups = min(multiprocessors // least, slices)
    group = min(multiprocessors // groups, TALL_GROUP)
    side = TALL_LANES * 16 // size
    told = temporary(torch.empty(2 * slices * (group + 1) * side, dtype=sums_dtype(x), device=x.device))
    cuda.launch(CUDA, "softmax_tall_begin", (min(2 * multiprocessors, cdiv(told.numel(), 512)),), 256, told, told.numel() // 2)
    cuda.launch(CUDA, f"softmax_tall_columns<{t}, {TALL_THREADS}, {TALL_TURNS}, {TALL_LANES}>", (groups * group,), TALL_THREADS + side, x, out, told, n, inner,
                across, slices, group, cdiv(n, group), shared=kept, together=True)
    return True


def _columns(x: torch.Tensor, out: torch.Tensor, outer: int, n: int, inner: int):
    """Over the middle of (outer, n, inner): read once where a cluster of blocks can keep the columns or all of the GPU some of them, else twice."""
    t, size = cuda.element(x), x.element_size()
    whole = inner * size % 16 == 0 and x.data_ptr() % 16 == 0 and out.data_ptr() % 16 == 0
    piece, lanes, bytes_ = (f"Vec<{t}>", 8, 16) if whole else (f"One<{t}>", 32, size)
    across = cdiv(inner, lanes * (bytes_ // size))
    multiprocessors, shared, capability = cuda.limits(x.device.index)
    largest = CLUSTER if capability >= (9, 0) else 1
    if not whole and n <= 256 * largest:  # 16 rows a piece of each of 512 threads: 16 pieces at most
        held = 4 if n <= 64 else 8 if n <= 128 * largest else 16
        cluster = next_power_of_2(cdiv(n, 16 * held))
        cuda.launch(CUDA, f"softmax_held_columns<{t}, {piece}, {held}, 512, {lanes}>", (across * outer * cluster,), 512, x, out, n, inner, across,
                    cluster=cluster)
        return
    threads = 128 if n <= 128 else 256
    for at_most in (32 << 10, SMALL, 96 << 10, shared - cuda.BESIDE):  # small blocks: while some wait for memory, others compute
        turns = min(at_most, shared - cuda.BESIDE) // (threads * bytes_)
        cluster = next_power_of_2(cdiv(n, threads // lanes * turns))
        if cluster <= (largest // 2 if at_most < SMALL and across * outer * largest >= 4 * multiprocessors else largest):
            turns = cdiv(n, threads // lanes * cluster)
            cuda.launch(CUDA, f"softmax_columns<{t}, {piece}, {threads}, {lanes}>", (across * outer * cluster,), threads, x, out, n, inner, across,
                        turns, cluster=cluster, shared=turns * threads * bytes_)
            return
    if whole and capability >= (9, 0) and _tall_columns(x, out, outer, n, inner, across):
        return
    fit = (2 if whole else 4) * multiprocessors // across  # parts that run at once; of too few one would be left over
    parts = max(1, min(cdiv(n, 256), fit if fit >= 4 else cdiv(1024, across), PARTS))
    step = cdiv(n, parts)
    parts = cdiv(n, step)
    for at in range(0, outer, 65535):  # the grid's second and third dimension end there
        part, to = x.view(outer, n, inner)[at:at + 65535], out.view(outer, n, inner)[at:at + 65535]
        stats = temporary(torch.empty(2 * len(part) * parts * inner, dtype=sums_dtype(x), device=x.device))
        grid = (across, len(part), parts)
        cuda.launch(CUDA, f"column_stats<{t}, {piece}, 512, {lanes}, 2>", grid, 512, part, stats, len(part), n, inner, step)
        cuda.launch(CUDA, f"column_scale<{t}, {piece}, 512, {lanes}>", grid, 512, part, to, stats, len(part), n, inner, step)
