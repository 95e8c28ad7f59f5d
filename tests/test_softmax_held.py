"""softmax over columns that a tile holds whole: right in any size, between guard words, with infinities and NaN, and chosen where it is meant to be."""

import sys

import pytest
import torch
from hypothesis import given, settings, strategies as st
from triport import ops
from triport.backends.cpu.llvm import targets
from triport.bench import check
from triport.ops import softmax_held, tuning
from triport.testing import launches

softmax = sys.modules["triport.ops.softmax"]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape,dim", [((1, 29056), 0), ((2, 3328), 0), ((4, 14448), 0), ((137, 2, 32), 1), ((33, 3, 5), 1), ((17, 16), 0), ((64, 8, 128), 1), ((4096, 1), -1), ((1,), 0), ((250, 300), 0),
                                       ((5, 1, 7), 1)])
def test_any_shape(shape, dim, dtype, seed):
    torch.manual_seed(seed)
    x = torch.randn(shape).to(DTYPES[dtype]) * 3
    with launches.watched() as report:
        y = ops.softmax(x, dim)
    assert list(report.kernels) == ["held_columns_kernel"]
    for out in (y, ops.softmax(x, dim)):  # what was launched is launched again
        right, e = check.verdict(softmax.OP, out, (x,), {"dim": dim})
        assert right, e


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 128), st.integers(2, 300), st.integers(1, 16), st.sampled_from(list(DTYPES)), st.integers(0, 2**31))
def test_any_tile(outer, n, inner, workers, dtype, seed):
    torch.manual_seed(seed)
    x = torch.randn(outer, n, inner).to(DTYPES[dtype])
    out, whole = check.guarded((outer, n, inner), DTYPES[dtype])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(softmax_held, "workers", lambda: workers)
        tile = softmax_held.widths(x, outer, n, inner)
        softmax_held.softmax(x, out, outer, n, inner, tile)
        right = torch.softmax(x.double(), 1)
        assert check.error(out, right) < {2: 1e-2}.get(x.element_size(), 1e-5) and check.guards_hold(whole)
        out.fill_(7)
        *tile, warps = softmax_held.tile_on_gpu(outer, n, inner)
        softmax_held.softmax(x, out, outer, n, inner, tuple(tile), warps)
    assert check.error(out, right) < {2: 1e-2}.get(x.element_size(), 1e-5) and check.guards_hold(whole)


@pytest.mark.parametrize("n", [1, 2, 3, 70])
def test_infinities_and_nan(n, seed):
    """As torch has them: -inf counts for nothing, a column of it alone is NaN, and so is one with +inf or NaN."""
    torch.manual_seed(seed)
    for bad, rows in ((-float("inf"), slice(0, n - 1)), (-float("inf"), slice(None)), (float("inf"), n - 1), (float("nan"), n // 2)):
        x = torch.randn(n, 37)
        x[rows, 30] = bad
        assert torch.allclose(ops.softmax(x, 0), torch.softmax(x, 0), equal_nan=True)


def test_who_is_held(monkeypatch):
    """Columns that fit in the second cache with their exponentials; narrower ones for more threads. Not rows, a board's, nor a search's."""
    monkeypatch.setattr(softmax_held, "workers", lambda: 1)

    def tile(outer, n, inner, dtype=torch.float32):
        return softmax_held.widths(torch.empty(outer, n, inner, dtype=dtype), outer, n, inner)
    assert tile(1, 256, 4096) == (256, 256) and tile(1, 512, 4096) == (512, 128) and tile(1, 513, 4096) is None
    assert tile(1, 1024, 4096, torch.bfloat16) == (1024, 64) and tile(1, 1025, 4096, torch.bfloat16) is None
    assert tile(1, 256, 4096, torch.float64) == (256, 128)
    assert tile(9, 2, 5) == (4, 16) and tile(9, 1, 1) == (1, 16) and tile(9, 2, 1) is None
    monkeypatch.setattr(softmax_held, "workers", lambda: 8)
    assert tile(1, 256, 2048) == (256, 128) and tile(1, 16, 1024) == (16, 64) and tile(1, 32, 1024) == (32, 128)
    with tuning.on(targets.get("spacemit-x60")):
        assert tile(1, 256, 4096) is None
    with tuning.trying("softmax", softmax.TILES.cpu, "softmax", {}):
        assert tile(1, 256, 4096) is None


def test_who_is_held_on_a_gpu():
    """Columns of up to 128 numbers, and longer ones where there are few side by side; of one number all are columns. Not rows."""
    tile = softmax_held.tile_on_gpu
    assert tile(1, 3, 127568) == (4, 128, 1) and tile(1, 8, 50) == (8, 64, 1) and tile(9, 16, 16384) == (16, 64, 1) and tile(1, 22, 66115) == (32, 64, 4) and tile(1, 128, 65536) == (128, 32, 4)
    assert tile(1, 1, 173301) == (1, 1024, 4) and tile(300, 1, 1) == (1, 512, 4) and tile(1, 129, 65536) is None
    assert tile(1, 455, 2) == (512, 2, 8) and tile(7, 2150, 4) == (4096, 2, 16) and tile(1, 455, 5) is None and tile(1, 5000, 2) is None and tile(9, 100, 1) is None
