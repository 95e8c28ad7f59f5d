"""The softmax of a product of few lines on the CPU: along them and across them, in every layout, between guard words, and chosen where it is meant to be."""

import pytest
import torch
from test_thin import DTYPES, operands
from triport import ops
from triport.backends.cpu.llvm import targets
from triport.bench import check
from triport.ops import thin_softmax, tuning
from triport.ops.matmul_softmax import OP
from triport.testing import launches

#: (M, K, N): rows, columns, lines longer than a piece
SIZES = (1, 64, 64), (1, 1, 1), (2, 7, 33), (3, 130, 17), (4, 200, 5), (1, 64, 9001), (70, 65, 1), (17, 130, 2), (40, 66, 3), (19, 257, 4), (4500, 70, 4), (5, 300, 70), (8, 300, 50), (50, 300, 7)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m,k,n", SIZES)
def test_any_layout(m, k, n, dtype, seed):
    """Twice: what was launched is launched again."""
    for layouts, a, b in operands(m, k, n, DTYPES[dtype], seed, 2):
        b = b * k**-0.5
        for dim in (0, -1, 0, -1):
            got = ops.matmul_softmax(a, b, dim)
            assert got.shape == (m, n) and got.dtype is a.dtype and got.is_contiguous()
            right, e = check.verdict(OP, got, (a, b), {"dim": dim})
            assert right, (layouts, dim, e)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("m,k,n", [(1, 70, 130), (3, 70, 33), (4, 64, 5000), (130, 64, 1), (65, 70, 3)])
def test_nothing_beyond_the_result_is_written(m, k, n, axis, seed):
    torch.manual_seed(seed)
    a, b = torch.randn(m, k), torch.randn(k, n) * 0.1
    out, whole = check.guarded((m, n), torch.float32)
    assert thin_softmax.takes(a, b, axis) and check.guards_hold(whole)
    thin_softmax.product_softmax(a, b, out, axis)
    assert check.error(out, torch.softmax(a.double() @ b.double(), axis)) < 1e-5 and check.guards_hold(whole)


def test_infinities_and_nan():
    """As torch has them: a line of -inf alone is NaN, and so is one with +inf or NaN."""
    for bad in (-float("inf"), float("inf"), float("nan")):
        for a, b in ((torch.ones(2, 64), torch.ones(64, 9)), (torch.ones(9, 64), torch.ones(64, 2))):
            for x in (a[0], b[:, 0]):
                before = x.clone()
                x[:] = bad
                for dim in (0, 1):
                    assert torch.allclose(ops.matmul_softmax(a, b, dim), torch.softmax(a @ b, dim), equal_nan=True)
                x.copy_(before)


@pytest.mark.parametrize("m,k,n,axis,names", [
    (1, 64, 50, 1, ["lines_kernel", "softmax_of_lines_kernel"]), (2, 64, 50, 0, ["lines_kernel", "softmax_across_lines_kernel"]),
    (50, 64, 4, 0, ["copy_lines_kernel", "lines_kernel", "softmax_of_lines_kernel"]), (1, 8, 20000, 0, ["lines_kernel", "softmax_across_lines_kernel"]),
    (1, 64, 20000, 1, ["lines_kernel", "softmax_of_lines_kernel"]), (1, 8, 20000, 1, ["product_exp_kernel", "scale_kernel"]), (5, 64, 50, 1, ["product_exp_kernel"])])
def test_which_kernels(m, k, n, axis, names):
    """Few terms of a long line go by tiles: one program would take all its exponentials."""
    with launches.watched() as report:
        ops.matmul_softmax(torch.randn(m, k), torch.randn(k, n), axis)
    assert sorted(report.kernels) == names


def test_a_board_has_the_tiles():
    a, b = torch.randn(1, 64), torch.randn(64, 64)
    assert thin_softmax.takes(a, b, 1)
    with tuning.on(targets.get("spacemit-x60")):
        assert not thin_softmax.takes(a, b, 1)


@pytest.mark.parametrize("m,k,n,dim", [(1, 70, 130, -1), (3, 70, 33, 0), (65, 70, 2, 0), (1, 1, 9, 1)])
def test_compiled_and_followed(m, k, n, dim, seed):
    """By torch.compile, and by autograd, whose gradients are those of torch's own two steps."""
    torch.manual_seed(seed)
    a, b = torch.randn(m, k, dtype=torch.float64), torch.randn(k, n, dtype=torch.float64) * k**-0.5
    compiled = torch.compile(lambda a, b: ops.matmul_softmax(a * 2, b, dim), fullgraph=True)
    assert torch.allclose(compiled(a.float(), b.float()).double(), torch.softmax(a * 2 @ b, dim), atol=1e-5)
    weight, grads = torch.randn(m, n, dtype=torch.float64), []
    for way in (lambda a, b: ops.matmul_softmax(a, b, dim), lambda a, b: torch.softmax(a @ b, dim)):
        x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
        (way(x, y) * weight).sum().backward()
        grads.append((x.grad, y.grad))
    assert all(torch.allclose(p, q, atol=1e-10) for p, q in zip(*grads))
