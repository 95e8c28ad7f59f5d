"""matmul_softmax(a, b, dim) = softmax(a @ b, dim): the product and its softmax, fused.

Where a tile spans the whole dimension one kernel multiplies, takes the softmax of its accumulators and writes the result.
Otherwise two: the first multiplies and, from its accumulators, writes exp(product - maximum of the tile) where the result
will be, with that maximum and the sum for every tile and every row (dim -1) or column (dim 0). The second joins those
statistics and scales in place. Each exponential is taken once, products are never rounded to the dtype, and beside the
result only the statistics are held: 2 numbers for each 128 products or more. (And on Hopper GPUs what product_split.py and
product_tma.py make of the operands.)
Of one to four lines a CPU goes another way (thin_softmax.py). A Hopper GPU, where K is shared out among programs, and a CPU,
where a tile takes all of K, hold the products in fp32, and their softmax is a kernel of its own.
"""

from __future__ import annotations

from pathlib import Path

import torch
import triton
import triton.language as tl

from .checks import check_tensors, of_numpy
from .dispatch import direct, launch, replayed, watched, wrap_triton
from .layout import held, near, sums_dtype
from .register import register, served
from .softmax import KERNELS as SOFTMAX_KERNELS
from .softmax import backward_of_softmax, softmax_into
from .sizes import cdiv, known, next_power_of_2
from .grids import folded, grid, widened
from .records import WITH_CUDA, Case, Op, traffic
from .matmul import alike, begun, matmul_kernel, product_backward, product_jvp
from . import autocast, batching, product_way, split_k, thin, thin_softmax
from .parts import above, exp_inside, exp_normal, exp_of, join_parts, keep_part, normal, scaled_normal
from .product import product_tile, tile_of_program
from .straight import straight, turn_kernel
from .tiles import multiprocessors, whole_tile_for
from .spanning import SPAN, comes_first, tile_for  # noqa: F401  (SPAN: a search fills the tables that an op's module has)
from .tuning import Tiles, workers
from ..backends import cuda
from ..backends.base import ArgumentError
from ..backends.dispatch.replay import temporary

CUDA = Path(__file__).with_suffix(".cu")


def reference(a, b, dim=0):
    return torch.softmax(a @ b, dim)


@triton.jit
def product_exp_kernel(a_ptr, b_ptr, c_ptr, stats_ptr, m, n, k, stride_am, stride_ak, stride_bk, stride_bn,
                       AXIS: tl.constexpr, WHOLE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                       GROUP: tl.constexpr, NORMAL: tl.constexpr = False, CPU: tl.constexpr = False):
    """c = exp(a @ b - top), top the tile's maximum along AXIS; stats = (all tops, all sums of c), a part for each tile.
    WHOLE: a tile spans AXIS, so c is divided by its sum and that is all. CPU: in the way that is faster on one."""
    ACC: tl.constexpr = tl.float64 if a_ptr.dtype.element_ty == tl.float64 else tl.float32
    tile_m, tile_n = tile_of_program(tl.program_id(0), m, n, BM, BN, GROUP)
    rows = tile_m * BM + tl.arange(0, BM)
    cols = tile_n * BN + tl.arange(0, BN)
    acc = product_tile(a_ptr, b_ptr, m, n, k, stride_am, stride_ak, stride_bk, stride_bn, rows, cols, BK, ACC)
    inside = (rows[:, None] < m) & (cols[None, :] < n)
    if CPU:
        e, top, total = exp_inside(acc, inside, AXIS, NORMAL)
    else:
        e, top, total = exp_of(tl.where(inside, acc, -float("inf")), AXIS, NORMAL)
    c_ptrs = c_ptr + rows.to(tl.int64)[:, None] * n + cols[None, :]
    if WHOLE:
        y = scaled_normal(e, tl.expand_dims(1.0 / total, AXIS), NORMAL)
        tl.store(c_ptrs, y.to(c_ptr.dtype.element_ty), mask=inside)
        return
    tl.store(c_ptrs, e.to(c_ptr.dtype.element_ty), mask=inside)
    part = tile_m if AXIS == 0 else tile_n
    parts = tl.num_programs(0) // tl.cdiv(n, BN) if AXIS == 0 else tl.num_programs(0) // tl.cdiv(m, BM)
    keep_part(stats_ptr, top, total, part, parts, cols if AXIS == 0 else rows, n if AXIS == 0 else m)


@triton.jit
def _scale_tile(c_ptr, stats_ptr, m, n, parts, down, right, lane, count, top, total, AXIS: tl.constexpr, STEP: tl.constexpr, BM: tl.constexpr,
                BN: tl.constexpr, BEYOND: tl.constexpr, NORMAL: tl.constexpr):
    """BEYOND: the tile may lie behind the end along AXIS."""
    mine = (down * BM if AXIS == 0 else right * BN) // STEP
    here = (lane < count) & (mine < parts) if BEYOND else lane < count
    own = tl.load(stats_ptr + tl.cast(mine, tl.int64) * count + lane, mask=here, other=0.0)
    factor = above(exp_normal(own - top, NORMAL), total, NORMAL) / total
    rows = down * BM + tl.arange(0, BM)
    cols = right * BN + tl.arange(0, BN)
    inside = (rows[:, None] < m) & (cols[None, :] < n)
    ptrs = c_ptr + rows.to(tl.int64)[:, None] * n + cols[None, :]
    x = tl.load(ptrs, mask=inside, other=0.0)
    tl.store(ptrs, scaled_normal(x.to(factor.dtype), tl.expand_dims(factor, AXIS), NORMAL).to(x.dtype), mask=inside)


@triton.jit(do_not_specialize=["parts", "turns"])
def scale_kernel(c_ptr, stats_ptr, m, n, parts, turns, AXIS: tl.constexpr, STEP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
                 AT_ONCE: tl.constexpr, TURNS: tl.constexpr, FOLDED: tl.constexpr, NORMAL: tl.constexpr = False):
    """c = c exp(top of its part - maximum) / sum, with the statistics of all parts joined; a part has STEP rows or columns, and a tile of
    BM x BN lies in one part. A program scales TURNS tiles along AXIS, each by code of its own, or `turns` of them in a loop where TURNS is 0. Grid: (along
    columns, along rows), or FOLDED (grids.py)."""
    many = TURNS if TURNS else turns
    if FOLDED:
        down, right = folded(n, BN if AXIS == 0 else BN * many)
    else:
        right, down = tl.program_id(0), tl.program_id(1)
    down, right = widened(down, m), widened(right, n)
    line0 = right * BN if AXIS == 0 else down * BM
    lane = line0 + (tl.arange(0, BN) if AXIS == 0 else tl.arange(0, BM))
    count = n if AXIS == 0 else m
    top, total = join_parts(stats_ptr, lane, count, parts, AT_ONCE, NORMAL)
    first = (down if AXIS == 0 else right) * many
    if TURNS:
        for turn in tl.static_range(TURNS):
            _scale_tile(c_ptr, stats_ptr, m, n, parts, first + turn if AXIS == 0 else down, right if AXIS == 0 else first + turn, lane, count, top, total,
                        AXIS, STEP, BM, BN, TURNS > 1, NORMAL)
    else:
        for tile in range(first, min(first + turns, tl.cdiv(m, BM) if AXIS == 0 else tl.cdiv(n, BN))):
            _scale_tile(c_ptr, stats_ptr, m, n, parts, tile if AXIS == 0 else down, right if AXIS == 0 else tile, lane, count, top, total, AXIS, STEP, BM, BN,
                        False, NORMAL)


CASES = tuple(Case(((s, s), (s, s)), {"dim": d}, scale=0.3) for s in (128, 256, 512, 1024) for d in (0, -1)) + (
    Case(((333, 257), (257, 511)), {"dim": 0}, scale=0.3),) + tuple(
    Case(((s, s), (s, s)), {"dim": d}, scale=0.3 * (1024 / s)**0.5, device="cuda") for s in (2048, 4096, 8192) for d in (0, -1))
#: largest tile of the scaling kernel, (rows, columns) by axis: inside one part, long where memory is contiguous
TILES = Tiles("matmul_softmax", cpu=((64, 1024), (64, 1024)), cuda=((16, 256), (16, 256)),
              candidates=tuple(((r, c), (r, c)) for r in (16, 32, 64) for c in (256, 512, 1024)),
              cuda_candidates=tuple((a, b) for a in ((64, 256), (128, 64), (128, 128)) for b in ((16, 256), (16, 512), (32, 256), (64, 256))))

def nbytes(a, b, dim=0):
    return traffic(a, b) + a.shape[0] * b.shape[1] * a.element_size()


def flops(a, b, dim=0):
    return 2 * a.shape[0] * a.shape[1] * b.shape[1] + 5 * a.shape[0] * b.shape[1]


def _turns(along: int, across: int) -> int:
    """Tiles of a GPU's scaling program, of so many along the softmax's dimension and across: statistics are joined once for all of them, while programs enough are
    left for every multiprocessor."""
    return max(t for t in (1, 2, 4, 8, 16) if t == 1 or (t <= along and along * across >= 4 * t * multiprocessors()))


def _turns_in_loop(along: int, across: int) -> int:
    """The same on a CPU: as many as leave each thread four programs. Statistics joined for every tile were most of the time where there are many parts:
    of 100000 x 64 x 64 over columns 640 ms of two threads of a Zen 4."""
    return max(1, along // cdiv(4 * workers(), across))


#: on a CPU, by axis: terms of a sum above which products whose tiles take all of K are in memory before their softmax begins, for they end in registers then. Of the speed of torch's
#: product and softmax over rows: 1024 cubed in fp32 1.15 -> 1.19 (two threads 1.09 -> 1.17), bf16 0.95 -> 1.05, 1000 x 777 x 1000 1.05 -> 1.09, 2048 cubed 1.09 -> 1.16; over columns
#: 1.23 -> 1.18 (two threads 1.25 -> 1.20), bf16 1.13 -> 1.06, 1.16 -> 1.14, and 2048 cubed 1.12 -> 1.18 (Zen 4)
APART = 1024, 0


def _apart_on_cpu(a: torch.Tensor, b: torch.Tensor, axis: int) -> dict | None:
    """The tile of a product whose softmax waits until it is in memory; None where that is not so."""
    if a.device.type != "cpu" or not known(a.shape[1]) or a.shape[1] <= APART[axis]:
        return None
    return whole_tile_for(a, b)


def _begun(a: torch.Tensor, b: torch.Tensor, dim: int) -> tuple[torch.Tensor, bool]:
    return begun("matmul_softmax", a, b, lambda m, n: 1.0 / max(1, (m, n)[int(dim) % 2]))


def _matmul_softmax_body(a: torch.Tensor, b: torch.Tensor, dim: int) -> torch.Tensor:
    c, work = _begun(a, b, dim)
    if not work:
        return c
    (m, k), n, axis = a.shape, b.shape[1], int(dim) % 2
    way, given = not comes_first(a, b, axis) and product_way.special(a, b) or (None, None)
    if way and product_way.apart(way, given):
        if (products := held(c.shape, c.device)) is not None:
            way.product(given, products)
            softmax_into(products, c, axis)
            return c
        way = None
    if way is None:
        a, b = near(a, 1), near(b, 0)
    if thin_softmax.takes(a, b, axis):
        thin_softmax.product_softmax(a, b, c, axis)
        return c
    split = split_k.way(a, b)
    if split and (split.exchanged or split.shares > 1) and (products := held(c.shape, c.device)) is not None:
        split_k.product(a, b, products, split)
        softmax_into(products, c, axis)
        return c
    a = straight(a, n, "matmul_softmax")
    if way is None and (t := _apart_on_cpu(a, b, axis)) and (products := held(c.shape, c.device)) is not None:
        launch(wrap_triton(matmul_kernel), (cdiv(m, t["BM"]) * cdiv(n, t["BN"]),), a, b, products, m, n, k, *a.stride(), *b.stride(), **t, EVEN=0)
        softmax_into(products, c, axis)
        return c
    t, whole = ({}, False) if way else tile_for(a, b, axis)
    step = way.step(a, b, axis) if way else t["BN" if axis else "BM"]
    parts, lanes = (cdiv(m, step), n) if axis == 0 else (cdiv(n, step), m)
    # One tile spans all: nothing is kept between kernels. (Not c itself: a tracer would take it for two results.)
    stats = temporary(torch.empty(1 if whole else 2 * parts * lanes, dtype=sums_dtype(a), device=a.device))
    if way:
        way.product(given, c, stats, axis)
    else:
        launch(wrap_triton(product_exp_kernel), (cdiv(m, t["BM"]) * cdiv(n, t["BN"]),),
               a, b, c, stats, m, n, k, a.stride(0), a.stride(1), b.stride(0), b.stride(1), AXIS=axis, WHOLE=whole, **t, **normal(a), CPU=a.device.type == "cpu")
    if not whole:
        bm, bn = TILES.get(a.device.type)[axis]
        bm, bn = (min(bm, step), bn) if axis == 0 else (bm, min(bn, step))
        folds, sure = a.device.type == "cuda", known(m, n)
        along, across = (cdiv(m, bm), cdiv(n, bn)) if axis == 0 else (cdiv(n, bn), cdiv(m, bm))
        turns = (_turns if folds else _turns_in_loop)(along, across) if sure else 1
        once = (min(16, next_power_of_2(parts)) if sure else 16) if folds else 1
        right, down = (across, cdiv(along, turns)) if axis == 0 else (cdiv(along, turns), across)
        launch(wrap_triton(scale_kernel), grid(right, down, folds), c, stats, m, n, parts, turns, AXIS=axis, STEP=step, BM=bm, BN=bn, AT_ONCE=once,
               TURNS=turns if folds else 0, FOLDED=folds, **normal(a))
    return c


#: columns of a block of scale_columns, and pieces of 16 bytes that each of its 256 threads has on its way (HELD there). Many parts are joined once for more rows
SCALED_COLUMNS, SCALED = 64, 4


def _matmul_softmax_cuda(a: torch.Tensor, b: torch.Tensor, dim: int) -> torch.Tensor:
    c, work = _begun(a, b, dim)
    if not work:
        return c
    (m, n), axis = c.shape, int(dim) % 2
    from . import product_cuda
    if (way := product_cuda.spanning(a, b, c, axis)) is not None:
        cuda.launch(CUDA, way.kernel("product_softmax"), way.grid, way.threads, *way.operands, *way.sizes, shared=way.shared, cluster=way.cluster)
        return c
    way = product_cuda.fastest(a, b, c, axis)
    step = way.part
    parts, count = (cdiv(m, step), n) if axis == 0 else (cdiv(n, step), m)
    stats = temporary(torch.empty(2 * parts * count, dtype=sums_dtype(a), device=a.device))
    cuda.launch(CUDA, way.kernel("product_exp"), way.grid, way.threads, *way.operands, stats, *way.sizes, shared=way.shared, cluster=way.cluster)
    t, size = cuda.element(c), c.element_size()
    piece = f"Vec<{t}>" if n * size % 16 == 0 and c.data_ptr() % 16 == 0 else f"One<{t}>"
    if axis:
        cuda.launch(CUDA, f"scale_rows<{t}, {piece}>", (cdiv(m, 8),), 256, c, stats, m, n, parts, step)
    else:
        rows = SCALED * 256 * (16 // size if piece.startswith("Vec") else 1) // SCALED_COLUMNS
        blocks, chunks = cdiv(n, SCALED_COLUMNS), cdiv(m, rows)
        turns = max(1, min(cdiv(parts, 32), blocks * chunks // cuda.limits(c.device.index)[0]))
        cuda.launch(CUDA, f"scale_columns<{t}, {piece}, {SCALED_COLUMNS}>", (blocks, cdiv(chunks, turns)), 256, c, stats, m, n, parts, step, turns)
    return c


_matmul_softmax = register("matmul_softmax", _matmul_softmax_body, product_exp_kernel, scale_kernel, matmul_kernel, turn_kernel, *product_way.KERNELS, *thin.KERNELS, *split_k.KERNELS,
                           *thin_softmax.KERNELS, *SOFTMAX_KERNELS, implementations={"cuda": _matmul_softmax_cuda},
                           alike=lambda a, b, dim: alike(a, b, "rows" if int(dim) % 2 else "columns"))


def _backward(kept, params, grad, needed):
    a, b, y = kept
    return product_backward(a, b, backward_of_softmax(grad, y, params[0]), needed)


def _jvp(inputs, out, tangents):
    return torch.ops.triport.softmax_backward(product_jvp(inputs, out, tangents), out, inputs[2])


_matmul_softmax.derive(keep=lambda inputs, out: (*inputs[:2], out), backward=_backward, jvp=_jvp)
_matmul_softmax.batch(batching.product_along)
_matmul_softmax.autocast(autocast.lower, result=autocast.fp32_on_cuda)  # as a product, then a softmax


@replayed(2)
def matmul_softmax(a: torch.Tensor, b: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """softmax(a @ b, dim). a: M x K, b: K x N, any strides, both fp32, fp16, bf16 or fp64; dim 0 (each column sums to 1)
    or -1 (each row does). Returns M x N, contiguous, of that dtype.

    Raises `ArgumentError` for shapes that do not fit, other dtypes, dims and mixed devices."""
    dim = of_numpy(dim)
    if not isinstance(dim, (int, torch.SymInt)) or isinstance(dim, bool) or dim not in (0, 1, -1, -2):
        raise ArgumentError(f"triport.matmul_softmax: argument 'dim' is {dim!r}; it takes 0 (columns) or -1 (rows)")
    if watched(a, b):
        check_tensors("matmul_softmax", a=a, b=b)
        return served("matmul_softmax", a, b, dim)
    return direct(_matmul_softmax_body, (a, b), dim)


# A product of size 15 that is off by 1 ulp moves its exponential by 15 ulp.
TOLERANCE = {"fp32": 1e-5}

OP = Op("matmul_softmax", matmul_softmax, reference, CASES, reference, nbytes, flops, ("fp32", "fp16", "bf16", "fp64"), TOLERANCE, backends=WITH_CUDA, dims="MxK,KxN")
