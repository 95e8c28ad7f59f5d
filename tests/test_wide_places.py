"""Where a program's tile lies in tensors of which one dimension alone has more than 2^31 elements: the last program's indices, which 32 bits do not count."""

import pytest
import torch
import triton
import triton.language as tl
from triport.ops import softmax_backward
from triport.ops.grids import columns_of, elements_of, lines_at

SIDE = 1 << 20
BITS = 1 << 31


@triton.jit
def last_columns_kernel(out_ptr, inner, COLS: tl.constexpr, FOLDED: tl.constexpr):
    _, cols = columns_of(inner, COLS, FOLDED)
    if tl.program_id(0) == tl.num_programs(0) - 1:
        tl.store(out_ptr + tl.arange(0, COLS), cols.to(tl.int64))


@triton.jit
def last_elements_kernel(offs_ptr, inside_ptr, m, n, ROWS: tl.constexpr, COLS: tl.constexpr, FOLDED: tl.constexpr):
    _, offs, inside = elements_of(m, n, ROWS, COLS, FOLDED, False)
    if (tl.program_id(0) == tl.num_programs(0) - 1) & (tl.program_id(1) == tl.num_programs(1) - 1):
        at = tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :]
        tl.store(offs_ptr + at, offs)
        tl.store(inside_ptr + at, inside)


@triton.jit
def last_lines_kernel(offs_ptr, inside_ptr, lines, length, BL: tl.constexpr, BC: tl.constexpr):
    _, offs, _, inside = lines_at(tl.program_id(0), lines, length, length, 1, length, BL, BC)
    if tl.program_id(0) == tl.num_programs(0) - 1:
        at = tl.arange(0, BL)[:, None] * BC + tl.arange(0, BC)[None, :]
        tl.store(offs_ptr + at, offs)
        tl.store(inside_ptr + at, inside)


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("size", [BITS + 5, BITS - 1, 3 * BITS + SIDE])
def test_columns(size, folded):
    out = torch.zeros(SIDE, dtype=torch.int64)
    count = triton.cdiv(size, SIDE)
    last_columns_kernel[(count,)](out, size, COLS=SIDE, FOLDED=folded)
    assert torch.equal(out, (count - 1) * SIDE + torch.arange(SIDE))


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("size", [BITS + 5, BITS - 1])
def test_elements(size, wide, folded):
    m, n, rows, cols = (1, size, 1, SIDE) if wide else (size, 1, SIDE, 1)
    offs, inside = torch.zeros(SIDE, dtype=torch.int64), torch.zeros(SIDE, dtype=torch.bool)
    count = triton.cdiv(size, SIDE)
    last_elements_kernel[(count,) if folded else (1, count) if wide else (count, 1)](offs, inside, m, n, ROWS=rows, COLS=cols, FOLDED=folded)
    right = (count - 1) * SIDE + torch.arange(SIDE)
    assert torch.equal(offs, right) and torch.equal(inside, right < size)


@pytest.mark.parametrize("wide", [False, True])
def test_lines(wide):
    size = BITS + 5
    offs, inside = torch.zeros(SIDE, dtype=torch.int64), torch.zeros(SIDE, dtype=torch.bool)
    count = triton.cdiv(size, SIDE)
    last_lines_kernel[(count,)](offs, inside, *((1, size) if wide else (size, 1)), BL=1 if wide else SIDE, BC=SIDE if wide else 1)
    right = (count - 1) * SIDE + torch.arange(SIDE)
    assert torch.equal(offs, right) and torch.equal(inside, right < size)


def test_a_gradient_along_a_dimension_of_one_goes_by_columns(monkeypatch):
    """And not by a program for each number, of which there may be more than a grid has."""
    grids, launch = [], softmax_backward.launch
    monkeypatch.setattr(softmax_backward, "launch", lambda kernel, grid, *given, **how: (grids.append(grid), launch(kernel, grid, *given, **how)))
    grad, y, out = torch.randn(5000, 1), torch.ones(5000, 1), torch.full((5000, 1), 7.0)
    softmax_backward.gradient(grad, y, out, 1, (64, 64))
    assert grids == [(triton.cdiv(5000, 64), 1)] and torch.equal(out, torch.zeros(5000, 1))
