"""Kernels with one fault each, of every kind that `triport check` finds: see docs/checking.md."""

import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(out_ptr + offs, tl.load(x_ptr + offs) + tl.load(y_ptr + offs, mask=mask), mask=mask)


@triton.jit
def sum_kernel(x_ptr, total_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.sum(tl.load(x_ptr + offs, mask=offs < n, other=0.0))
    tl.store(total_ptr, tl.load(total_ptr) + part)


@triton.jit
def scale_kernel(x_ptr, s_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * tl.load(s_ptr + offs, mask=offs < n), mask=offs < n)


@triton.jit
def square_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(out_ptr + offs, x * x, mask=offs < n)


@triton.jit
def softmax_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    e = tl.exp(tl.load(x_ptr + row + cols, mask=cols < n, other=-float("inf")))
    tl.store(out_ptr + row + cols, e / tl.sum(e, 0), mask=cols < n)


def bounds():
    x, y = torch.randn(1000), torch.randn(1000)
    add_kernel[(1,)](x, y, torch.zeros(1000), 1000, BLOCK=1024)


def race():
    sum_kernel[(4,)](torch.randn(1000), torch.zeros(1), 1000, BLOCK=256)


def uninit():
    scale_kernel[(4,)](torch.randn(1000), torch.empty(1000), torch.zeros(1000), 1000, BLOCK=256)


def overflow():
    square_kernel[(1,)](torch.full((100,), 50_000, dtype=torch.int32), torch.zeros(100, dtype=torch.int32), 100, BLOCK=128)


def nan():
    softmax_kernel[(2,)](torch.full((2, 100), 100.0), torch.zeros(2, 100), 100, BLOCK=128)
