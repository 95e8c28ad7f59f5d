"""matmul(a, b)[i, j] = sum over k of a[i, k] b[k, j], of matrices and of batches of them (`batches.py`).

One kernel, in tiles that `tiles.py` chooses. Products are accumulated in fp32 (fp64 for fp64); fp32 operands are multiplied as fp32 (no
TF32). Neighbouring programs share rows of a and columns of b, so that caches serve both.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Callable

import torch
import triton
import triton.language as tl

from ..backends import cuda
from .checks import FLOATS, check, check_product, check_tensors
from .dispatch import direct, launch, replayed, watched, wrap_triton
from .layout import even_product, near, roomy, unexpanded
from .register import beneath, register, served
from .sizes import cdiv, known
from .records import WITH_CUDA, Case, Op, traffic
from . import autocast, batches, batching, choices, product_tma, product_way, split_k, thin, turning
from .autograd import added
from .product import multiple, product_tile, tile_of_program
from .straight import straight, turn_kernel
from .tiles import TILES, tile_for  # noqa: F401  (the table, which `triport tune` fills, is this op's)

CUDA = Path(__file__).with_suffix(".cu")


def reference(a, b):
    return a @ b


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, m, n, k, stride_am, stride_ak, stride_bk, stride_bn, BM: tl.constexpr,
                  BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, EVEN: tl.constexpr = 0):
    """EVEN: as of `multiple` (product.py), of the numbers from m on."""
    m, n, k = multiple(m, EVEN, 0), multiple(n, EVEN, 1), multiple(k, EVEN, 2)
    stride_am, stride_ak = multiple(stride_am, EVEN, 3), multiple(stride_ak, EVEN, 4)
    stride_bk, stride_bn = multiple(stride_bk, EVEN, 5), multiple(stride_bn, EVEN, 6)
    ACC: tl.constexpr = tl.float64 if a_ptr.dtype.element_ty == tl.float64 else tl.float32
    tile_m, tile_n = tile_of_program(tl.program_id(0), m, n, BM, BN, GROUP)
    rows = tile_m * BM + tl.arange(0, BM)
    cols = tile_n * BN + tl.arange(0, BN)
    acc = product_tile(a_ptr, b_ptr, m, n, k, stride_am, stride_ak, stride_bk, stride_bn, rows, cols, BK, ACC)
    out = c_ptr + rows.to(tl.int64)[:, None] * n + cols[None, :]
    tl.store(out, acc.to(c_ptr.dtype.element_ty), mask=(rows[:, None] < m) & (cols[None, :] < n))


CASES = (Case(((128, 128), (128, 128))), Case(((256, 256), (256, 256))), Case(((512, 512), (512, 512))),
         Case(((1024, 1024), (1024, 1024))), Case(((512, 512), (512, 512)), transposed=(1,)),
         Case(((333, 257), (257, 511))), *(Case(((s, s), (s, s)), device="cuda") for s in (2048, 4096, 8192)))


def nbytes(a, b):
    return traffic(a, b) + math.prod(batches.shape_of_product("matmul", a, b)) * a.element_size()


def flops(a, b):
    return 2 * math.prod(batches.shape_of_product("matmul", a, b)) * a.shape[-1]


def begun(op: str, a: torch.Tensor, b: torch.Tensor, without_terms: Callable = lambda m, n: 0.0, of_batches: bool = False) -> tuple[torch.Tensor, bool]:
    """(the result of an op on a @ b, whether it is still to be computed). without_terms: the value of all its elements where K is 0, from m and n; of_batches: a and b may have more dimensions than two."""
    check(op, FLOATS, a=a, b=b)
    if of_batches:
        shape = batches.shape_of_product(op, a, b)
    else:
        check_product(op, a, b)
        shape = a.shape[0], b.shape[1]
    if a.shape[-1] == 0:
        return torch.full(shape, without_terms(*shape[-2:]), dtype=a.dtype, device=a.device), False
    return roomy(torch.empty(shape, dtype=a.dtype, device=a.device)), 0 not in shape


def _matmul_body(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.dim() != 2 or b.dim() != 2:
        return _of_batches(a, b)
    c, work = begun("matmul", a, b)
    if work:
        multiply(a, b, c)
    return c


def multiply(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor):
    """c = a @ b, of matrices; c: contiguous."""
    if (found := product_way.special(a, b, alone=True)) is not None:
        way, given = found
        way.product(given, c)
        return
    if turning.slow_as_it_lies(a, b):
        b = turning.straightened(b)
    a, b = near(a, 1), near(b, 0)
    if thin.takes(a, b):
        thin.product(a, b, c)
        return
    if (split := split_k.way(a, b)) is not None:
        split_k.product(a, b, c, split)
        return
    (m, k), n = a.shape, b.shape[1]
    a = straight(a, n, "matmul")
    t = tile_for(a, b, alone=True)
    launch(wrap_triton(matmul_kernel), (cdiv(m, t["BM"]) * cdiv(n, t["BN"]),),
           a, b, c, m, n, k, *a.stride(), *b.stride(), **t, EVEN=even_product(a, b))


def _of_batches(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    c, work = begun("matmul", a, b, of_batches=True)
    if work and (matrices := batches.as_matrices(a, b, c)) is not None:
        multiply(*matrices)
    elif work and not _by_parts(a, b, c):
        batches.product(a, turning.straightened(b) if turning.slow_as_it_lies(a, b) else b, c, functools.partial(tile_for, alone=True))
    return c


def _by_parts(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> bool:
    """c = a @ b of batches in fp32, if a GPU multiplies them as sums of numbers of 16 bits."""
    if a.device.type != "cuda" or a.dtype != torch.float32:
        return False
    from . import batches_split
    if (split := batches_split.way(a, b)) is None:
        return False
    batches_split.product(split, c)
    return True


def _matmul_cuda(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    matrices = a.dim() == b.dim() == 2
    c, work = begun("matmul", a, b, of_batches=not matrices)
    if not work:
        return c
    from . import product_cuda
    if matrices or (found := batches.as_matrices(a, b, c)) is not None:
        way = product_cuda.fastest(*((a, b, c) if matrices else found))
    else:
        batch = batches.walked(*(x if 1 in x.stride()[-2:] else x.contiguous() for x in (a, b)), tuple(c.shape[:-2]))
        way = product_cuda.of_batches(*batch.first(), batches.first(c), batch.count, batch.inner, batch.steps)
    cuda.launch(CUDA, way.kernel("matmul"), way.grid, way.threads, *way.operands, *way.sizes, shared=way.shared, cluster=way.cluster)
    return c


def alike(a: torch.Tensor, b: torch.Tensor, *named: str) -> choices.Like:
    """(M, N, K) of a product, by whether its operands are transposed; named: more of the kind's name."""
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0] or not known(*a.shape, *b.shape) or not a.numel() or not b.numel():
        return None
    laid = [product_tma.turned(tuple(t.shape), t.stride(), 16, True) for t in (a, b)]  # whether or not 16 bytes divide lines
    if None in laid or not choices.begins(a, b):
        return None
    line = math.gcd(*(t.stride(1 if turned else 0) * t.element_size() for t, turned in zip((a, b), laid)))
    return choices.kind(" ".join([*named, "".join("t" if turned else "n" for turned in laid)]), line), (a.shape[0], b.shape[1], a.shape[1])


_matmul = register("matmul", _matmul_body, matmul_kernel, turn_kernel, *product_way.KERNELS, *thin.KERNELS, *split_k.KERNELS, *batches.KERNELS, *turning.KERNELS,
                   implementations={"cuda": _matmul_cuda}, alike=alike)


_product = beneath("matmul", 2)


def product_backward(a: torch.Tensor, b: torch.Tensor, grad: torch.Tensor, needed):
    """Of a @ b: (gradient of a, gradient of b), None where it is not needed."""
    grad = unexpanded(grad)
    if a.dim() > 2 and batches.is_one(b) and not hasattr(grad, "placements"):  # rows of all matrices, one below the other; a DTensor may be refused that
        rows, grads = a.flatten(0, -2), grad.flatten(0, -2)
        return _product(grads, batches.first(b).T).view(a.shape) if needed[0] else None, _product(rows.T, grads).view(b.shape) if needed[1] else None
    return (_product(grad, b.mT).sum_to_size(a.shape) if needed[0] else None, _product(a.mT, grad).sum_to_size(b.shape) if needed[1] else None)


def product_jvp(inputs, out, tangents) -> torch.Tensor:
    """The tangent of a @ b; inputs: a, b and maybe more."""
    (a, b, *_), (da, db) = inputs, tangents
    return added(None if da is None else torch.ops.triport.matmul(da, b), None if db is None else torch.ops.triport.matmul(a, db))


_matmul.derive(keep=lambda inputs, out: inputs[:2], backward=lambda kept, params, grad, needed: product_backward(*kept, grad, needed),
               jvp=product_jvp)
_matmul.batch(batching.product)
_matmul.autocast(autocast.lower)


@replayed(2)
def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b. a: ... x M x K, b: ... x K x N, any strides, both fp32, fp16, bf16 or fp64. Dimensions before the last two are batches: of one size in both, or of 1 or absent in one, which then goes with
    each of the other's. Returns ... x M x N, contiguous, of that dtype.

    Raises `ArgumentError` for shapes that do not fit, other dtypes and mixed devices."""
    if watched(a, b):
        check_tensors("matmul", a=a, b=b)
        return served("matmul", a, b)
    return direct(_matmul_body, (a, b))


OP = Op("matmul", matmul, torch.matmul, CASES, reference, nbytes, flops, ("fp32", "fp16", "bf16", "fp64"), backends=WITH_CUDA, dims="MxK,KxN")
