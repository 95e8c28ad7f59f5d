"""tl.rand and its family: Philox 4x32 exactly, and the distributions that are made of it."""

import pytest
import torch
import triton
import triton.language as tl

MASK = 0xFFFFFFFF


def philox(counter: int, key: int, rounds: int = 10) -> int:
    """The first word of Philox4x32 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011)."""
    c, k = [counter & MASK, counter >> 32, 0, 0], [key & MASK, key >> 32 & MASK]
    for _ in range(rounds):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & MASK, (a >> 32) ^ c[3] ^ k[1], a & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c[0]


@triton.jit
def randint_kernel(out_ptr, seed, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.randint(seed, i), mask=i < n)


@pytest.mark.parametrize("key", [0, 42, 2**31 - 1, 2**40 + 3])
def test_philox(key):
    out = torch.zeros(1000, dtype=torch.int32)
    randint_kernel[(8,)](out, key, 1000, 128)
    assert [v & MASK for v in out.tolist()[:100] + out.tolist()[-3:]] == [philox(k, key) for k in (*range(100), 997, 998, 999)]


@triton.jit
def draw_kernel(out_ptr, seed, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.rand(seed, i), mask=i < n)
    tl.store(out_ptr + n + i, tl.randn(seed, i), mask=i < n)
    a, b, c, d = tl.rand4x(seed, i)
    tl.store(out_ptr + 2 * n + i, a + b + c + d, mask=i < n)


def test_distributions(seed):
    n = 200_000
    out = torch.zeros(3, n)
    draw_kernel[(triton.cdiv(n, 1024),)](out, seed, n, 1024)
    uniform, normal, four = out.double()
    assert uniform.min() >= 0 and uniform.max() < 1
    for x, mean, std in ((uniform, 0.5, 12**-0.5), (normal, 0, 1), (four, 2, 3**-0.5)):
        assert abs(x.mean() - mean) < 6 * std / n**0.5 and abs(x.std() - std) < 6 * std / n**0.5
    assert abs(torch.corrcoef(torch.stack([uniform[1:], uniform[:-1]]))[0, 1]) < 6 / n**0.5
