"""Kernels of many steps, which are written as functions of their own."""

import re

import pytest
import torch
import triton
import triton.language as tl

from triport.backends.base import Error
from triport.backends.cpu.emit import parts


@triton.jit
def steps_kernel(x_ptr, out_ptr, n, TIMES: tl.constexpr, N: tl.constexpr, LEAST: tl.constexpr):
    """Numbers and places on the stack go from part to part: n, the sums, what the loop carries, and x in memory. One alone asks for the grid's depth."""
    i = tl.arange(0, N)
    x = tl.load(x_ptr + tl.program_id(0) * N + i, mask=i < n, other=0.0)
    first = tl.sum(x)
    turned = tl.flip(tl.cumsum(x), 0)
    carried = tl.num_programs(2) - 1.0
    for k in tl.static_range(TIMES):
        total = tl.sum(turned * (k + 1))
        tl.device_assert(total > LEAST, "small")
        for j in range(n):
            carried += total * j
        tl.store(out_ptr + (tl.program_id(0) * TIMES + k) * N + i, turned * total + first * k + carried, mask=i < n)


def expected(x, n, times):
    kept = torch.where(torch.arange(x.shape[1]) < n, x.double(), 0)
    turned, first, carried, rows = kept.cumsum(1).flip(1), kept.sum(1), 0, []
    for k in range(times):
        total = turned.sum(1) * (k + 1)
        carried = carried + total * (n * (n - 1) // 2)
        rows.append(turned * total[:, None] + (first * k + carried)[:, None])
    return torch.stack(rows, 1)[:, :, :n]


def launch(x, n, least, debug=False):
    out = torch.zeros(len(x), 6, x.shape[1])
    compiled = steps_kernel[len(x),](x, out, n, 6, x.shape[1], least, debug=debug)
    return out[:, :, :n], compiled.asm["llir"]


@pytest.fixture
def short(monkeypatch):
    """Parts of three steps."""
    monkeypatch.setattr(parts, "MOST", 8)
    monkeypatch.setattr(parts, "STEPS", 3)


def test_a_kernel_in_parts_computes_what_it_would_in_one(seed, short):
    x = torch.rand(3, 32)
    out, llir = launch(x, 29, -1)
    torch.testing.assert_close(out, expected(x, 29, 6).float(), rtol=1e-5, atol=1e-5)
    defined = re.findall(r"^define internal [\w ]*void @(steps_kernel\.part\d+)\(.* !dbg", llir, re.M)
    assert len(defined) >= 4 and len(re.findall(r"call [\w ]*void @steps_kernel\.part", llir)) == len(defined)


def test_parts_that_control_may_leave_stay_in_the_kernel(seed, short):
    x = torch.rand(3, 32)
    out, llir = launch(x, 31, -2, debug=True)
    torch.testing.assert_close(out, expected(x, 31, 6).float(), rtol=1e-5, atol=1e-5)
    assert ".part" not in llir and llir.count("\ndefine ") == 1
    with pytest.raises(Error, match="small"):
        launch(-x, 31, -2, debug=True)


def test_short_kernels_have_no_parts(seed):
    assert "define internal" not in launch(torch.rand(1, 32), 30, -3)[1]
