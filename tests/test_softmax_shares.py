"""softmax of few long lines on the CPU, each shared out among the threads: right in any size, between guard words, and chosen where it is meant to be."""

import sys
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings, strategies as st
from triport import ops
from triport.backends.cpu.llvm import targets
from triport.bench import check
from triport.ops import softmax_shares, tuning
from triport.testing import launches

softmax = sys.modules["triport.ops.softmax"]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}


@pytest.fixture
def threads(monkeypatch):
    """As many threads as are asked for, whatever this machine has."""
    def of(count: int):
        monkeypatch.setattr(softmax_shares, "workers", lambda: count)
    of(4)
    return of


def compare(x: torch.Tensor, dim: int):
    right, e = check.verdict(softmax.OP, ops.softmax(x, dim), (x,), {"dim": dim})
    assert right, (x.shape, dim, e)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape,dim", [((1, 8192), -1), ((1, 50257), 1), ((3, 20011), -1), ((8192, 2), 0), ((10007, 3), 0), ((3000, 7), 0), ((2, 4099, 5), 1), ((1000, 63), 0), ((513, 64), 0),
                                       ((777, 65), 0), ((300, 129), 0), ((9000,), 0)])
def test_any_shape(shape, dim, dtype, threads, seed, monkeypatch):
    threads(8)
    monkeypatch.setattr(softmax_shares, "saves", lambda *sizes: True)
    torch.manual_seed(seed)
    x = torch.randn(shape).to(DTYPES[dtype]) * 3
    with launches.watched() as report:
        compare(x, dim)
    assert sorted(report.kernels) == ["share_kernel", "shared_scale_kernel"]
    compare(x, dim)  # what was launched is launched again


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3000), st.integers(1, 200), st.integers(1, 16), st.integers(0, 2**31))
def test_any_share(outer, n, inner, workers, seed):
    """Whatever the sizes: what is left of the last share, and of the last row, is left out."""
    torch.manual_seed(seed)
    x = torch.randn(outer, n, inner)
    out, whole = check.guarded((outer, n, inner), torch.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(softmax_shares, "workers", lambda: workers)
        patch.setattr(softmax_shares, "LEAST", 64)
        softmax_shares.softmax(x, out, outer, n, inner)
    assert check.error(out, torch.softmax(x.double(), 1)) < 1e-5 and check.guards_hold(whole)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.one_of(st.integers(1, 9000), st.sampled_from([2048, 4096, 6144])), st.sampled_from(list(DTYPES)), st.integers(1, 200), st.integers(0, 2**31))
def test_rows_of_a_gpu(rows, n, dtype, programs, seed):
    """Its kernels, here: what is left of the last share is left out; nothing is written between rows. A row may be its own result."""
    x = (torch.randn(rows, n, generator=torch.Generator().manual_seed(seed)) * 3).to(DTYPES[dtype])
    out, whole = check.guarded((rows, n), x.dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(softmax_shares, "PROGRAMS", programs)
        softmax_shares.long_rows(x, out, rows, n)
        want = torch.softmax(x.double(), 1)
        assert check.error(out, want) < max(1e-5, torch.finfo(x.dtype).eps) and check.guards_hold(whole)
        softmax_shares.long_rows(x, x, rows, n)
    assert torch.equal(x, out)


def test_rows_of_a_gpu_that_are_not_numbers():
    x = torch.randn(6, 9001)
    x[1], x[2, :8000], x[3, 17], x[4, 9000], x[5, 5000] = -float("inf"), -float("inf"), float("inf"), float("nan"), -float("inf")
    out = torch.empty_like(x)
    softmax_shares.long_rows(x, out, 6, 9001)
    assert torch.allclose(out, torch.softmax(x, 1), equal_nan=True)


def test_which_rows_a_gpu_shares_out():
    def takes(rows, n, inner=1, device="cuda", size=4):
        return softmax_shares.takes_rows(SimpleNamespace(device=SimpleNamespace(type=device), element_size=lambda: size), rows, n, inner, 16384)

    assert takes(1, 50257) and takes(128, 1 << 20) and takes(384, 20000) and not takes(385, 20000) and not takes(8, 16384)
    assert takes(256, 131072, size=2) and not takes(256, 131072) and not takes(256, 131080, size=2)  # what the cache holds
    assert takes(1, 1 << 30) and not takes(1, (1 << 30) + 1)  # they are counted in 32 bits
    assert not takes(8, 50257, 2) and not takes(8, 50257, device="cpu")


@pytest.mark.parametrize("inner", [1, 3, 64])
def test_infinities_and_nan(inner, threads):
    """As torch has them: -inf counts for nothing, a line of it alone is NaN, and so is one with +inf or NaN."""
    n = 9001
    for bad, rows in ((-float("inf"), slice(0, 8000)), (-float("inf"), slice(None)), (float("inf"), 17), (float("nan"), n - 1)):
        x = torch.randn(n, inner)
        x[rows, inner - 1] = bad
        x = x.T.contiguous() if inner == 1 else x
        dim = 1 if inner == 1 else 0
        assert torch.allclose(ops.softmax(x, dim), torch.softmax(x, dim), equal_nan=True)


def test_who_is_shared_out(threads):
    """Lines that are fewer than the threads, and long; rows where more than two threads are left to each. Not a board's, nor a search's."""
    def taken(outer, n, inner, columns=64):
        return softmax_shares.takes(torch.empty(outer, n, inner), outer, n, inner, columns)
    assert taken(1, 8192, 1) and not taken(1, 8191, 1) and not taken(2, 50257, 1) and not taken(4, 50257, 1)
    assert taken(1, 128, 64) and not taken(1, 127, 64) and taken(1, 8192, 192) and not taken(1, 8192, 193)
    threads(1)
    assert not taken(1, 50257, 1) and not taken(1, 50257, 64)
    threads(8)
    assert taken(3, 50257, 1)
    with tuning.on(targets.get("spacemit-x60")):
        assert not taken(1, 50257, 1)
    with tuning.trying("softmax", softmax.TILES.cpu, "softmax", {}):
        assert not taken(1, 50257, 1)


def test_narrow_columns_fill_vectors_for_a_thread_alone(threads):
    def taken(outer, n, inner):
        return softmax_shares.takes(torch.empty(outer, n, inner), outer, n, inner, 64)
    for count in (1, 2, 16):
        threads(count)
        assert taken(1, 512, 2) and taken(100, 1000, 8) and not taken(1, 511, 2) and not taken(100, 1000, 9)
    with tuning.on(targets.get("spacemit-x60")):
        assert not taken(1, 512, 2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape,dim", [((3548, 2), 0), ((513, 8), 0), ((7, 600, 3), 1), ((100, 1000, 5), 1)])
def test_narrow_columns(shape, dim, dtype, threads, seed):
    threads(1)
    torch.manual_seed(seed)
    compare(torch.randn(shape).to(DTYPES[dtype]) * 3, dim)


def test_two_launches_are_to_pay():
    """A row that one thread has done before sixteen have met twice is its alone."""
    assert not softmax_shares.saves(1, 11605, 1, 64, 16) and softmax_shares.saves(1, 50257, 1, 64, 16)
    assert not softmax_shares.saves(6, 8192, 1, 64, 16) and softmax_shares.saves(6, 65536, 1, 64, 16)


def test_few_columns_fill_vectors(monkeypatch):
    """Rows of memory are taken together until they are as long as vectors."""
    seen = []
    monkeypatch.setattr(softmax_shares, "launch", lambda kernel, grid, *args, **consts: seen.append((grid, args, consts)))
    for inner, wide in ((1, 64), (2, 64), (3, 63), (7, 63), (40, 40), (64, 64), (100, 100)):
        seen.clear()
        softmax_shares.softmax(torch.empty(10000, inner), torch.empty(10000, inner), 1, 10000, inner)
        assert len(seen) == 2 and seen[0][1][3] == wide and seen[0][2]["COLS"] == 64
