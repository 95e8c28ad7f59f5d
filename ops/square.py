"""square(x) = x * x, element by element.

Any shape, strides and size; fp32, fp16, bf16, fp64 and integers (which wrap). The derivative is 2 x.
"""

from __future__ import annotations

from pathlib import Path

import torch
import triton
import triton.language as tl

from ..backends import cuda
from . import autocast, batching, choices
from .checks import FLOATS, INTS, check, check_tensors
from .dispatch import direct, launch, replayed, watched, wrap_triton
from .grids import lines_at
from .register import register, served
from .sizes import cdiv
from .records import WITH_CUDA, Case, Op, traffic
from .straight import KERNELS as COPYING, dense, gapped, over_lines
from .tuning import Tiles, blocks, gpu_blocks, tile

CUDA = Path(__file__).with_suffix(".cu")


def reference(x):
    return x * x


@triton.jit
def square_piece(x_ptrs, out_ptrs, mask):
    x = tl.load(x_ptrs, mask=mask)
    tl.store(out_ptrs, x * x, mask=mask)


@triton.jit
def square_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr, SPLIT: tl.constexpr = False):
    """SPLIT: full blocks go without a mask. A GPU's threads move 16 bytes at a time only where the mask is alike for them, which an odd n
    leaves open; the CPU's compiler splits by itself."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    offs = first + tl.arange(0, BLOCK)
    if SPLIT:
        if first + BLOCK <= n:
            square_piece(x_ptr + offs, out_ptr + offs, None)
        else:
            square_piece(x_ptr + offs, out_ptr + offs, offs < n)
    else:
        square_piece(x_ptr + offs, out_ptr + offs, offs < n)


@triton.jit
def square_lines_kernel(x_ptr, out_ptr, lines, length, stride_line, stride_at, BL: tl.constexpr, BC: tl.constexpr, AT: tl.constexpr):
    """Of a matrix with gaps. Grid: its tiles."""
    _, offs, to, inside = lines_at(tl.program_id(0), lines, length, stride_line, AT or stride_at, length, BL, BC)
    square_piece(x_ptr + offs, out_ptr + to, inside)


CASES = (Case(((128, 128),)), Case(((256, 256),)), Case(((512, 512),)), Case(((1823, 781),)), Case(((4096, 2048),)), Case(((4096, 8192),), device="cuda"))
TILES = Tiles("square", cpu={"BLOCK": 8192}, cuda={"BLOCK": 1024}, candidates=blocks(2048, 32768),
              cuda_candidates=gpu_blocks())


def nbytes(x):
    return 2 * traffic(x)


def flops(x):
    return x.numel()


def _square_body(x: torch.Tensor) -> torch.Tensor:
    check("square", FLOATS + INTS, x=x)
    lines = gapped(x)
    if lines is not None:
        return over_lines(square_lines_kernel, lines, x)
    x, out = dense(x)
    n = x.numel()
    if n:
        t = tile(TILES, x)
        launch(wrap_triton(square_kernel), (cdiv(n, t["BLOCK"]),), x, out, n, **t, SPLIT=x.device.type == "cuda")
    return out


def _square_cuda(x: torch.Tensor) -> torch.Tensor:
    check("square", FLOATS + INTS, x=x)
    x, out = dense(x)
    cuda.flat(CUDA, f"square<{cuda.element(x)}>", out, x, out, x.numel())
    return out


_square = register("square", _square_body, square_kernel, square_lines_kernel, *COPYING, implementations={"cuda": _square_cuda}, alike=choices.elements)
_square.derive(keep=lambda inputs, out: inputs[:1], backward=lambda kept, params, grad, needed: (grad * (2 * kept[0]),),
               jvp=lambda inputs, out, tangents: tangents[0] * (2 * inputs[0]))
_square.batch(batching.elementwise)
_square.autocast(autocast.fp32_on_cuda)  # as powers


@replayed(1)
def square(x: torch.Tensor) -> torch.Tensor:
    """x * x. x: any shape and strides, fp32, fp16, bf16, fp64, int32 or int64. Returns a tensor like x.

    Raises `ArgumentError` for anything else."""
    if watched(x):
        check_tensors("square", x=x)
        return served("square", x)
    return direct(_square_body, (x,))


OP = Op("square", square, torch.square, CASES, reference, nbytes, flops, ("fp32", "fp16", "bf16", "fp64", "int32", "int64"), backends=WITH_CUDA)
