"""add_relu(x, bias) = max(x + bias, 0): a bias row added to every row of x, then ReLU. NaN stays NaN, as in torch."""

from __future__ import annotations

from pathlib import Path

import torch
import triton
import triton.language as tl

from ..backends import cuda
from . import autocast, batching
from .autograd import added
from .checks import FLOATS, check, check_bias, check_tensors
from .dispatch import direct, launch, replayed, watched, wrap_triton
from .layout import as_rows, roomy, row_alignment
from .register import register, served
from .sizes import cdiv, next_power_of_2, planned
from .records import WITH_CUDA, Case, Op, traffic
from .tuning import Tiles

CUDA = Path(__file__).with_suffix(".cu")


def reference(x, bias):
    return torch.relu(x + bias)


@triton.jit
def add_relu_kernel(x_ptr, bias_ptr, out_ptr, m, n, ROWS: tl.constexpr, COLS: tl.constexpr, ALIGN: tl.constexpr):
    if ALIGN > 1:
        n = n // ALIGN * ALIGN
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    offs = rows.to(tl.int64)[:, None] * n + cols[None, :]
    mask = (rows[:, None] < m) & (cols[None, :] < n)
    x = tl.load(x_ptr + offs, mask=mask)
    bias = tl.load(bias_ptr + cols, mask=cols < n)
    z = x + bias[None, :]
    tl.store(out_ptr + offs, tl.where(z <= 0, 0.0, z).to(x.dtype), mask=mask)


CASES = tuple(Case(((m, n), (n,))) for m, n in ((128, 128), (256, 256), (512, 512), (1823, 781), (4096, 2048))) + (
    Case(((4096, 8192), (8192,)), device="cuda"),)
TILES = Tiles("add_relu", cpu=(8, 2048), cuda=(4, 512), candidates=tuple((r, c) for c in (512, 1024, 2048, 4096) for r in (2, 4, 8, 16)),
              cuda_candidates=tuple((r, c) for c in (256, 512, 1024, 2048) for r in (1, 2, 4, 8)))


def nbytes(x, bias):
    return 2 * traffic(x) + traffic(bias)


def flops(x, bias):
    return 2 * x.numel()


#: longest rows that a GPU takes in one piece although its tile is narrower: with two pieces, whose ends are in the middle of a line of memory, 32768 rows of
#: 1000 in fp16 took 49 us on an H100, with one 43
WHOLE = 2048


def row_tile(x: torch.Tensor, n: int) -> dict[str, int]:
    """ROWS and COLS of a tile for rows of length n, and their ALIGN."""
    rows, cols = TILES.get(x.device.type)
    plan, align = planned(n), row_alignment(x, n)
    if plan is None:
        return {"ROWS": rows, "COLS": cols, "ALIGN": align}
    width = min(cols, next_power_of_2(*plan))
    if align > 1 and width < n <= WHOLE:
        wider = next_power_of_2(n)
        return {"ROWS": max(1, rows * width // wider), "COLS": wider, "ALIGN": align}
    return {"ROWS": rows * max(1, min(16, cols // (4 * width))), "COLS": width, "ALIGN": align}


def _add_relu_body(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    check("add_relu", FLOATS, x=x, bias=bias)
    check_bias("add_relu", x, bias)
    out = roomy(torch.empty(x.shape, dtype=x.dtype, device=x.device))
    if x.numel():
        flat, bias = as_rows(x), bias.contiguous()
        m, n = flat.shape
        tile = row_tile(x, n)
        launch(wrap_triton(add_relu_kernel), (cdiv(m, tile["ROWS"]), cdiv(n, tile["COLS"])), flat, bias, out, m, n, **tile)
    return out


def _add_relu_cuda(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    check("add_relu", FLOATS, x=x, bias=bias)
    check_bias("add_relu", x, bias)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    cuda.flat(CUDA, f"add_relu<{cuda.element(x)}>", out, x.contiguous(), bias.contiguous(), out, x.numel(), x.shape[-1])
    return out


_add_relu = register("add_relu", _add_relu_body, add_relu_kernel, implementations={"cuda": _add_relu_cuda})


def of_rows(grad: torch.Tensor) -> torch.Tensor:
    """The gradient of a bias row, from that of what it was added to."""
    return grad.sum(dim=tuple(range(grad.dim() - 1))) if grad.dim() > 1 else grad


def _through(grad: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """0 where relu's result is 0, whatever `grad` is there (infinity times 0 is NaN); NaN counts as passed, as in torch."""
    return torch.ops.aten.threshold_backward(grad, out, 0)


def _backward(kept, params, grad, needed):
    dz = _through(grad, *kept)
    return dz, of_rows(dz) if needed[1] else None


def _jvp(inputs, out, tangents):
    return _through(added(*tangents).expand_as(out), out)


_add_relu.derive(keep=lambda inputs, out: (out,), backward=_backward, jvp=_jvp)
_add_relu.batch(batching.with_row)
_add_relu.autocast(autocast.widest)


@replayed(2)
def add_relu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """relu(x + bias). x: (..., N), any strides; bias: N elements; both fp32, fp16, bf16 or fp64. Returns a contiguous
    tensor of the shape of x.

    Raises `ArgumentError` for a bias that does not fit, other dtypes and mixed devices."""
    if watched(x, bias):
        check_tensors("add_relu", x=x, bias=bias)
        return served("add_relu", x, bias)
    return direct(_add_relu_body, (x, bias))


OP = Op("add_relu", add_relu, reference, CASES, reference, nbytes, flops, ("fp32", "fp16", "bf16", "fp64"), backends=WITH_CUDA, dims="MxN,N")
