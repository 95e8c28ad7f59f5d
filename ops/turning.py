"""Right factors that lie transposed, in fp32 on a GPU: by fused multiply-adds such a product takes up to three times as long as a straight one, so that they are turned first."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..backends.dispatch.replay import temporary
from . import batches
from .dispatch import launch, wrap_triton
from .sizes import cdiv, known


@triton.jit
def turn_matrices_kernel(x_ptr, out_ptr, rows, columns, inner, stride_outer, stride_inner, stride_row, BR: tl.constexpr, BC: tl.constexpr):
    """out[i] = x[i] transposed, of matrices of rows x columns whose rows are contiguous, `inner` of them for each index of an outer dimension; out: contiguous. Grid: tiles of BR x BC of every matrix."""
    across = tl.cdiv(columns, BC)
    tiles = tl.cdiv(rows, BR) * across
    i, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    row, column = (tile // across * BR + tl.arange(0, BR)).to(tl.int64), (tile % across * BC + tl.arange(0, BC)).to(tl.int64)
    x_ptr += (i // inner).to(tl.int64) * stride_outer + (i % inner).to(tl.int64) * stride_inner
    x = tl.load(x_ptr + row[:, None] * stride_row + column[None, :], mask=(row[:, None] < rows) & (column[None, :] < columns))
    tl.store(out_ptr + (i.to(tl.int64) * columns + column[:, None]) * rows + row[None, :], tl.trans(x), mask=(column[:, None] < columns) & (row[None, :] < rows))


KERNELS = turn_matrices_kernel,
#: rows of each product, and multiplications, from which on that pays. us of an H200, as it lies, turned and torch's: 16 of 64x512x64 44.8, 16.1, 11.7, 24 of 256x64x256 26.2, 11.4, 9.9, 64 of 197x64x197 54.9, 26.7,
#: 17.8, 96 of 1024x64x1024 1,149, 401, 400, 64 of 8x64x2000 53.0, 31.9, 34.7, 24 of 128x64x128 8.6, 7.1, 5.1
COPIED = 8, 1 << 25
TILE = 64, 64


def slow_as_it_lies(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Is b, a matrix or a batch of them, to be turned before a @ b on a GPU, for it is the transpose of what its memory holds? 16 bits and fp64 have tensor cores, and do not mind."""
    (m, k), n, many = a.shape[-2:], b.shape[-1], b.shape[:-2]
    return (a.device.type == "cuda" and a.dtype == torch.float32 and known(m, n, k, *many) and b.stride(-2) == 1 and b.stride(-1) != 1
            and m >= COPIED[0] and b.numel() * m >= COPIED[1])


def straightened(b: torch.Tensor) -> torch.Tensor:
    """A contiguous copy of b, matrices of contiguous columns; as many as b has, whatever they go with."""
    x = b.mT
    batch = batches.walked(x, x, tuple(x.shape[:-2]))
    (rows, columns), (outer, inner) = x.shape[-2:], batch.steps[0]
    made = temporary(torch.empty(b.shape, dtype=b.dtype, device=b.device))
    launch(wrap_triton(turn_matrices_kernel), (batch.count * cdiv(rows, TILE[0]) * cdiv(columns, TILE[1]),), batch.a, made, rows, columns, batch.inner, outer, inner, x.stride(-2), BR=TILE[0], BC=TILE[1])
    return made
