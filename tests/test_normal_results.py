"""Softmax where numbers that are not normal are slow, as on Intel's CPUs: none is computed, and the rest is as anywhere."""

import dataclasses
import importlib

import pytest
import torch
from triport import backends, ops
from triport.backends.cpu.llvm import targets
from triport.backends.dispatch import replay

parts = importlib.import_module("triport.ops.parts")
LEAST = 2.0**-126


@pytest.fixture
def slow_at_small_numbers(monkeypatch):
    """This machine's row, as if it were Intel's."""
    row = dataclasses.replace(targets.native(), assists=True)
    monkeypatch.setattr(targets, "native", lambda: row)
    replay.forget()
    yield
    replay.forget()


def assert_normal(got: torch.Tensor, want: torch.Tensor, tolerance: float):
    assert got.isfinite().all() and (got.double() - want).abs().max() <= tolerance * want.abs().max()
    if got.dtype == torch.float64:
        assert ((got != 0) & (got < LEAST)).any()  # whose smallest normal number is another
    else:
        assert not ((got != 0) & (got < LEAST)).any() and (got == 0).any()
        assert (got[want > 2 * LEAST] != 0).all()


@pytest.mark.parametrize("dtype,tolerance", [(torch.float32, 2e-6), (torch.bfloat16, 1e-2), (torch.float64, 1e-12)])
@pytest.mark.parametrize("shape,dim", [((64, 333), -1), ((333, 64), 0), ((5, 33, 70), 1), ((2, 40000), -1), ((40000, 2), 0), ((100000, 4), 0)])
def test_softmax(shape, dim, dtype, tolerance, slow_at_small_numbers, seed):
    x = (40 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).to(dtype)
    with backends.use("triton-cpu"):
        out = ops.softmax(x, dim)
    assert_normal(out, torch.softmax(x.double(), dim), tolerance)


@pytest.mark.parametrize("dtype,tolerance", [(torch.float32, 1e-3), (torch.bfloat16, 5e-2), (torch.float64, 1e-10)])
@pytest.mark.parametrize("m,n,k", [(64, 64, 33), (300, 2500, 40), (3, 3000, 64), (640, 512, 1100)])
@pytest.mark.parametrize("dim", [0, 1])
def test_matmul_softmax(m, n, k, dim, dtype, tolerance, slow_at_small_numbers, seed):
    make = torch.Generator().manual_seed(seed)
    a, b = (6 * torch.randn(s, generator=make, dtype=torch.float64) / k**0.25 for s in ((m, k), (k, n)))
    a, b = a.to(dtype), b.to(dtype)
    with backends.use("triton-cpu"):
        out = ops.matmul_softmax(a, b, dim)
    want = torch.softmax(a.double() @ b.double(), dim)
    assert out.isfinite().all() and (out.double() - want).abs().max() <= tolerance * want.abs().max()
    assert dtype == torch.float64 or not ((out != 0) & (out < LEAST)).any()


@pytest.mark.parametrize("shape,dim", [((7, 100), -1), ((100, 7), 0), ((3, 40000), -1)])
def test_infinities_and_nan(shape, dim, slow_at_small_numbers):
    x = torch.randn(shape)
    lines = x if dim else x.T
    lines[0] = -float("inf")
    lines[1, 5], lines[2, 3] = float("nan"), -float("inf")
    with backends.use("triton-cpu"):
        out = ops.softmax(x, dim)
    torch.testing.assert_close(out, torch.softmax(x, dim), rtol=1e-5, atol=1e-7, equal_nan=True)


def test_who_asks_for_them(slow_at_small_numbers, monkeypatch):
    """x86 CPUs that take assists, for what runs here; nobody else."""
    x = torch.empty(1)
    assert parts.normal(x) == {"NORMAL": True} and parts.normal(torch.empty(1, device="meta")) == {"NORMAL": False}
    row = dataclasses.replace(targets.native(), assists=False)
    monkeypatch.setattr(targets, "native", lambda: row)
    assert parts.normal(x) == {"NORMAL": False}
