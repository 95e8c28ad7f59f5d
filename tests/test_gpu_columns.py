"""Softmax's kernels for GPUs that go by parts of columns, those of its gradient, and grids that GPUs take: results on the CPU, launches by tensors that only
say that they are a GPU's."""

import sys

import pytest
import torch
import triton
from torch._subclasses.fake_tensor import FakeTensorMode
from triport.bench import check
from triport.ops import softmax_backward, softmax_held

softmax = sys.modules["triport.ops.softmax"]
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
CLOSE = {torch.float64: 1e-14, torch.float32: 2e-6}


def pair(shape, dim, dtype, seed):
    """(gradient, softmax along dim, the gradient towards softmax's argument in fp64)."""
    gen = torch.Generator().manual_seed(seed)
    g = torch.randn(shape, generator=gen).to(dtype)
    y = torch.softmax(3 * torch.randn(shape, generator=gen, dtype=torch.float64), dim).to(dtype)
    return g, y, y.double() * (g.double() - (g.double() * y.double()).sum(dim, keepdim=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m,n,rows", [(1000, 256, 8), (7, 1000, 2), (1, 1, 4), (33, 24, 16), (5, 781, 1)])
def test_gradient_of_rows(m, n, rows, dtype, seed):
    g, y, want = pair((m, n), 1, dtype, seed)
    out, whole = check.guarded((m, n), dtype)
    softmax_backward.softmax_backward_rows_kernel[(triton.cdiv(m, rows),)](g, y, out, m, n, ROWS=rows, BLOCK=triton.next_power_of_2(n),
                                                                           ALIGN=8 if n % 8 == 0 else 1)
    assert (out.double() - want).norm() <= CLOSE.get(dtype, 8e-3) * max(want.norm(), y.double().norm())
    assert check.guards_hold(whole)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m,n,block", [(3, 1000, 128), (2, 64, 64), (1, 7, 16), (2, 781, 256)])
def test_gradient_of_long_rows(m, n, block, dtype, seed):
    g, y, want = pair((m, n), 1, dtype, seed)
    out, whole = check.guarded((m, n), dtype)
    softmax_backward.softmax_backward_long_rows_kernel[(m,)](g, y, out, n, BLOCK=block, ALIGN=8 if n % 8 == 0 else 1)
    assert (out.double() - want).norm() <= CLOSE.get(dtype, 8e-3) * max(want.norm(), y.double().norm())
    assert check.guards_hold(whole)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("outer,n,inner,align", [(2, 100, 72, 8), (3, 33, 65, 1), (1, 1, 5, 1), (5, 16, 8, 8)])
def test_gradient_of_short_columns(outer, n, inner, align, dtype, seed):
    g, y, want = pair((outer, n, inner), 1, dtype, seed)
    out, whole = check.guarded((outer, n, inner), dtype)
    softmax_backward.softmax_backward_columns_kernel[(triton.cdiv(inner, 16) * outer,)](g, y, out, n, inner, ROWS=triton.next_power_of_2(n), COLS=16,
                                                                                      ALIGN=align)
    assert (out.double() - want).norm() <= CLOSE.get(dtype, 8e-3) * max(want.norm(), y.double().norm())
    assert check.guards_hold(whole)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("outer,n,inner,align", [(1, 700, 40, 8), (2, 257, 33, 1), (1, 5000, 3, 1), (3, 1, 8, 8)])
def test_gradient_of_columns_by_parts(outer, n, inner, align, dtype, monkeypatch, seed):
    g, y, want = pair((outer, n, inner), 1, dtype, seed)
    out, whole = check.guarded((outer, n, inner), dtype)
    monkeypatch.setattr(softmax_backward, "row_alignment", lambda x, n: align)
    softmax_backward._by_parts(g, y, out, outer, n, inner)
    assert (out.double() - want).norm() <= CLOSE.get(dtype, 8e-3) * max(want.norm(), y.double().norm())
    assert check.guards_hold(whole)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("outer,n,inner,align", [(1, 700, 40, 8), (2, 257, 33, 1), (1, 8500, 8, 8), (2, 300, 8, 8)])
def test_columns_by_parts(outer, n, inner, align, dtype, monkeypatch, seed):
    gen = torch.Generator().manual_seed(seed)
    x = (3 * torch.randn(outer, n, inner, generator=gen, dtype=torch.float64)).to(dtype)
    x[0, : n // 2, 0] = -torch.inf
    out, whole = check.guarded((outer, n, inner), dtype)
    monkeypatch.setattr(softmax, "row_alignment", lambda x, n: align)
    softmax.columns_by_parts(x, out, outer, n, inner)
    assert check.error(out, torch.softmax(x.double(), 1)) < CLOSE.get(dtype, 8e-3)
    assert check.guards_hold(whole)


@pytest.mark.parametrize("shape,dim", [((3, 50, 40), 1), ((1, 3, 5), 1), ((4, 70, 1), 1)])
def test_folded_grids(shape, dim, seed):
    """All tiles in the grid's first dimension, for GPUs: the kernels' results are those of a grid of two."""
    outer, n, inner = shape
    g, y, want = pair(shape, dim, torch.float64, seed)
    x = torch.randn(shape, dtype=torch.float64)
    out, dx = torch.empty_like(x), torch.empty_like(x)
    tiles = triton.cdiv(inner, 16)
    softmax.softmax_columns_kernel[(tiles * outer,)](x, out, n, inner, ROWS=16, COLS=16, FOLDED=True)
    softmax_backward.softmax_backward_kernel[(tiles * outer,)](g, y, dx, n, inner, ROWS=16, COLS=16, FOLDED=True)
    assert check.error(out, torch.softmax(x, dim)) < 1e-14 and check.error(dx, want) < 1e-14


def launched(shape, dim, monkeypatch) -> list:
    """(kernel, grid) of what softmax and its gradient launch for a GPU's tensor."""
    seen = []
    with monkeypatch.context() as m, FakeTensorMode():
        for module in (softmax, softmax_held, softmax_backward):
            m.setattr(module, "launch", lambda kernel, grid, *args, **consts: seen.append((kernel.fn.__name__, grid)))
            m.setattr(module, "wrap_triton", lambda kernel: kernel)
        x = torch.empty(shape, dtype=torch.float16, device="cuda")
        softmax._softmax_body(x, dim)
        softmax._softmax_backward_body(x, x, dim)
    return seen


@pytest.mark.parametrize("shape,dim,kernel", [
    ((4096, 8192), 1, "softmax_backward_rows_kernel"), ((16, 131072), 1, "softmax_backward_long_rows_kernel"), ((256, 4096), 0, "softmax_backward_columns_kernel"),
    ((4096, 8192), 0, "column_gradient_kernel"), ((70_000, 300, 2), 1, "softmax_backward_kernel")])
def test_which_kernel_a_gpus_gradient_takes(shape, dim, kernel, monkeypatch):
    assert launched(shape, dim, monkeypatch)[-1][0] == kernel


@pytest.mark.parametrize("shape,dim", [((65537, 8), 1), ((65537, 20_000), 1), ((65537, 4, 3), 1), ((66_000, 300, 2), 1), ((2, 5_000_000), 0), ((70_000, 256), 0),
                                       ((30_000, 7, 64), 1)])
def test_grids_that_a_gpu_has(shape, dim, monkeypatch):
    """2**31 - 1 blocks in the first dimension, 65,535 in the others."""
    seen = launched(shape, dim, monkeypatch)
    assert len(seen) >= 2 and all(0 < grid[0] < 1 << 31 and all(0 < g < 65536 for g in grid[1:]) for _, grid in seen), seen
