"""Products of matrices whose terms lie so far apart that steps over several need more than 32 bits: slices of what is mapped and mostly empty."""

import sys

import pytest
import torch
from triport import ops
from triport.bench import check

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems back what is not touched")
BITS = 1 << 31


@pytest.fixture
def far(tmp_path, seed):
    """rows x columns of random numbers in fp32, rows `step` apart. A file with holes: only what is written takes any space."""
    def made(rows, columns, step):
        path, size = tmp_path / f"{rows} {columns} {step}", step * (rows - 1) + columns
        with open(path, "wb") as f:
            f.truncate(4 * size)
        x = torch.from_file(str(path), shared=True, size=size, dtype=torch.float32).as_strided((rows, columns), (step, 1))
        return x.copy_(torch.randn(rows, columns))

    torch.manual_seed(seed)
    return made


#: rows, terms, columns; at which step K's terms lie
SIZES = {"tiles": (40, 300, 64, 1 << 27), "all terms at once": (70, 600, 70, BITS // 600), "two rows": (2, 130, 5, 1 << 25), "one row": (1, 130, 50, 1 << 25), "few terms": (40, 8, 100, 1 << 29),
         "a few rows": (6, 300, 64, 1 << 27), "one column": (40, 300, 1, 1 << 27), "just near": (40, 64, 64, BITS // 64 - 1), "just far": (40, 64, 64, BITS // 64 + 1)}


@pytest.mark.parametrize("name", SIZES)
def test_products(name, far):
    m, k, n, step = SIZES[name]
    a, b = torch.randn(m, k), far(k, n, step)
    assert check.error(ops.matmul(a, b), a.double() @ b.double()) <= 1e-6
    assert check.error(ops.matmul(b.T, a.T), b.T.double() @ a.T.double()) <= 1e-6
    for dim in (0, -1):
        assert check.error(ops.matmul_softmax(a, b, dim), torch.softmax(a.double() @ b.double(), dim)) <= 1e-5


def test_low_rank(far):
    x, w, a, b = torch.randn(33, 300), far(300, 64, 1 << 27), torch.randn(300, 8), torch.randn(8, 64)
    right = x.double() @ w.double() + x.double() @ a.double() @ b.double()
    assert check.error(ops.lora_linear(x, w, a, b), right) <= 1e-6
    a = far(300, 8, 1 << 26).copy_(a)
    assert check.error(ops.lora_linear(x, w.clone(), a, b), right) <= 1e-6


def test_batches(far):
    a, b = torch.randn(4, 20, 300), far(300, 4 * 33, 1 << 27)
    b = b.as_strided((4, 300, 33), (33, b.stride(0), 1))
    assert check.error(torch.vmap(ops.matmul)(a, b), a.double() @ b.double()) <= 1e-6
    assert check.error(torch.vmap(ops.matmul)(b.mT, a.mT), b.mT.double() @ a.mT.double()) <= 1e-6


def test_products_of_inductor(far, through_triton, monkeypatch):
    from triport.backends.cpu.plugin import products
    monkeypatch.setattr(products, "ours", lambda name, dtype, multiplications: True)
    monkeypatch.setattr(products, "multiplies", lambda dtype: False)
    a, b = torch.randn(40, 300), far(300, 64, 1 << 27)
    assert check.error(torch.compile(lambda a, b: a @ b)(a, b), a.double() @ b.double()) <= 1e-6
