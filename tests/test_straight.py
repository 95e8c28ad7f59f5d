"""A transposed first factor that is copied before a product on the CPU."""

import sys

import pytest
import torch
from triport import ops
from triport.backends.dispatch import replay
from triport.bench import check
from triport.ops.records import DTYPES

MODULE = sys.modules["triport.ops.straight"]
ALLOWED = {"fp32": 1e-6, "bf16": 8e-3, "fp64": 1e-14}


@pytest.fixture
def copied(monkeypatch):
    """Small ones, too; the shapes that were. No call takes a short cut past it."""
    seen, real = [], MODULE.launch
    monkeypatch.setattr(MODULE, "launch", lambda kernel, grid, x, *args, **consts: (seen.append(tuple(x.shape)), real(kernel, grid, x, *args, **consts)))
    monkeypatch.setattr(MODULE, "COLUMNS", 40)
    monkeypatch.setattr(MODULE, "BY_TILES", 40)
    monkeypatch.setattr(MODULE, "NUMBERS", 64)
    replay.forget()
    yield seen
    replay.forget()


def transposed(m, k, dtype, seed, room=0):
    return torch.randn(k, m + room, generator=torch.Generator().manual_seed(seed)).to(dtype)[:, :m].T


@pytest.mark.parametrize("dtype", ALLOWED)
@pytest.mark.parametrize("m, k, n, room", [(64, 128, 64, 0), (67, 97, 41, 3), (129, 200, 300, 1), (33, 40, 70, 0)])
def test_products(m, k, n, room, dtype, copied, seed):
    for again in range(3):  # as recorded, and as replayed, of other numbers
        a, b = transposed(m, k, DTYPES[dtype], seed + again, room), torch.randn(k, n, generator=torch.Generator().manual_seed(seed - again)).to(DTYPES[dtype])
        assert check.error(ops.matmul(a, b), a.double() @ b.double()) <= ALLOWED[dtype]
        for dim in (0, -1):
            assert check.error(ops.matmul_softmax(a * 0.1, b, dim), torch.softmax((a * 0.1).double() @ b.double(), dim)) <= 10 * ALLOWED[dtype]
    assert (m, k) in copied


def test_what_is_left_as_it_lies(copied, seed):
    """Straight factors, few columns, few numbers, fp16, and one whose lines are nowhere side by side."""
    b = torch.randn(128, 64, generator=torch.Generator().manual_seed(seed))
    for a, b in ((torch.randn(64, 128), b), (transposed(64, 128, torch.float32, seed), b[:, :39]), (transposed(64, 128, torch.float16, seed), b.half()),
                 (torch.randn(128, 200).T[:128:2], b), (torch.randn(64, 1).expand(64, 128), b)):
        assert check.error(ops.matmul(a, b), a.double() @ b.double()) <= 2e-3
    assert not copied
    ops.matmul(transposed(64, 128, torch.float32, seed), b)
    assert copied


def test_by_the_thresholds_of_use(seed):
    """A square of 512 is copied, one of 256 is not."""
    for n, taken in ((256, False), (512, True)):
        a = transposed(n, n, torch.float32, seed)
        found = MODULE.straight(a, n, "matmul")
        assert torch.equal(found, a) and (found is not a) == taken == (found.stride(1) == 1)
