"""How tiles are chosen: what threads take over a product's tiles, and where a tile of matmul_softmax spans its dimension."""

import sys

import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from triport.backends.cpu.llvm import targets
from triport.ops import makespan, spanning, tuning
from triport.ops.tiles import taken
from triport.ops.sizes import cdiv

matmul = sys.modules["triport.ops.tiles"]


@pytest.mark.parametrize("tiles,workers,owners,turns", [
    ([4, 1, 4, 1, 2, 1], 2, 8, 7),   # the second thread has done its three at 4, and takes the first one's 1 and 4: one of 4 ends last
    ([1, 1, 1, 1], 2, 2, 2), ([5], 2, 5, 5), ([3, 3, 3], 2, 6, 6), ([1, 1, 1, 9], 2, 10, 10), ([9, 1, 1, 1], 2, 9, 9)])
def test_threads_take_their_own_then_others(tiles, workers, owners, turns):
    assert makespan._taken_by_owners(tiles, workers) == owners
    assert makespan._taken_in_turn(tiles, workers) == turns


@settings(deadline=None)
@given(st.integers(1, 700), st.integers(1, 700), st.sampled_from([8, 32, 64, 128]), st.sampled_from([8, 32, 64, 128]), st.integers(1, 16), st.integers(1, 8))
def test_a_makespan_is_between_a_fair_share_and_all_of_it(m, n, bm, bn, workers, group):
    """Tiles' order leaves none out; slow threads and whole micro-kernels take longer, up to a tile's size for each."""
    assert sum(r * c for r, c in makespan._in_order(m, n, bm, bn, group)) == m * n
    time = makespan.makespan(workers, m, n, bm, bn, 1.0, group, True)
    held = cdiv(m, bm) * cdiv(n, bn) * bm * bn
    assert m * n / workers <= time * 1.0001 and time <= makespan.SLOWER * (held + bm * bn)
    assert makespan.makespan(workers, m, n, bm, bn, 2.0, group, True) == time / 2


def test_a_tiles_speed_is_the_tables_or_near_it():
    table = ((64, 64, 256, 0.9), (64, 64, 512, 1.0), (128, 64, 256, 0.8))
    assert makespan.speed_of(table, 64, 64, 512, False) == pytest.approx(1.0)
    assert makespan.speed_of(table, 128, 64, 256, False) == pytest.approx(0.8)
    assert makespan.speed_of(table, 64, 64, 16, False) < 1.0, "accumulators are carried more often"
    assert makespan.speed_of(table, 64, 16, 512, True) < makespan.speed_of(table, 64, 16, 512, False), "half a micro-kernel of 16-bit operands"


SPEEDS = {key: [[bm, bn, 512, 1 / (1 + 4 / bm + 8 / bn)] for bm in (16, 32, 64, 128, 256, 512) for bn in (32, 64, 128, 256)] for key in ("fp32", "bf16")}


def chosen(m, n, k, axis, threads, monkeypatch, dtype=torch.float32):
    monkeypatch.setattr(tuning.call, "tiles", {"matmul": SPEEDS})
    for module in (matmul, spanning):
        monkeypatch.setattr(module, "workers", lambda: threads)
    return spanning.tile_for(torch.empty(m, k, dtype=dtype), torch.empty(k, n, dtype=dtype), axis)


@pytest.mark.parametrize("m,n,k,axis,threads,whole", [
    (256, 256, 256, 0, 2, True), (256, 256, 256, 1, 2, True),
    (333, 511, 257, 1, 2, False),     # two tiles of 256 and 77 rows leave a thread idle, narrower ones pack B too often
    (1024, 1024, 1024, 1, 2, False), (1024, 1024, 64, 0, 2, True), (2048, 2048, 8, 0, 2, True), (4096, 64, 64, 0, 2, True),
    (5000, 64, 64, 0, 2, False), (64, 5000, 64, 1, 2, False)])
def test_where_a_tile_spans(m, n, k, axis, threads, whole, monkeypatch):
    tile, spans = chosen(m, n, k, axis, threads, monkeypatch)
    assert spans == whole
    if whole:
        assert tile["BM" if axis == 0 else "BN"] >= (m, n)[axis]


@settings(deadline=None, max_examples=200)
@example(4096, 32, 512, 0, 1, torch.bfloat16)
@example(4096, 32, 512, 0, 1, torch.float32)
@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 5000), st.sampled_from([0, 1]), st.integers(1, 16),
       st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]))
def test_any_tile_is_one_that_triton_takes(m, n, k, axis, threads, dtype):
    with pytest.MonkeyPatch.context() as patch:
        tile, spans = chosen(m, n, k, axis, threads, patch, dtype) if dtype is not torch.float64 else spanning.tile_for(
            torch.empty(m, k, dtype=dtype), torch.empty(k, n, dtype=dtype), axis)
    sides = [tile[s] for s in ("BM", "BN", "BK")]
    assert all(s >= 8 and s & (s - 1) == 0 for s in sides)
    assert max(sides[0] * sides[1], sides[0] * sides[2], sides[1] * sides[2]) <= 1 << 20
    assert not spans or tile["BM" if axis == 0 else "BN"] >= (m, n)[axis]


@pytest.mark.parametrize("axis", [0, 1])
def test_on_a_board_a_tile_that_spans_fits_its_scratch(axis):
    with tuning.on(targets.get("spacemit-x60")):
        row = tuning.call.row
        tile, spans = spanning.tile_for(torch.empty(128, 128), torch.empty(128, 128), axis)
        assert row.scratch and spans and taken(tile["BM"], tile["BN"], tile["BK"], 4) <= row.scratch
        assert not spanning.tile_for(torch.empty(300, 64), torch.empty(64, 300), axis)[1]


#: tiles with their speeds, of which the widest are the fastest
_MEASURED = ((512, 256, 512, 1.0), (512, 64, 512, 0.8), (256, 256, 512, 1.0), (128, 128, 512, 0.9))
_PLAIN, _WIDTHS = tuple({"BM": 256, "BN": 256, "BK": 512, "GROUP": 4}.items()), (256, 128, 64, 32, 16)


def test_tiles_of_whole_columns_are_narrow():
    """Their accumulators go through memory whatever the width, and more of them are shared out better. Those of whole rows are as high as the table has it."""
    tile, whole = spanning._fastest(_PLAIN, 0, 512, 512, 512, 2, _WIDTHS, _MEASURED, 1)
    assert whole and (tile["BM"], tile["BN"]) == (512, 64)
    tile, whole = spanning._fastest(_PLAIN, 1, 512, 512, 512, 2, _WIDTHS, _MEASURED, 1)
    assert whole and (tile["BM"], tile["BN"]) == (256, 512)


def test_the_faster_products_are_the_more_a_second_kernel_takes_beside_them():
    assert not spanning._fastest(_PLAIN, 1, 333, 511, 257, 2, _WIDTHS, _MEASURED, 1)[1]
    assert spanning._fastest(_PLAIN, 1, 333, 511, 257, 2, _WIDTHS, _MEASURED, 8)[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_product_that_one_thread_has_done_before_others_come_is_one_program(dtype, monkeypatch):
    """However many threads there are; a larger one is shared out, and one thread alone goes by its table."""
    for threads, shared in ((16, 96), (4, 128)):
        monkeypatch.setattr(matmul, "workers", lambda n=threads: n)
        for m, n, k in ((16, 16, 16), (33, 40, 12), (9, 65, 17)):
            a, b = torch.empty(m, k, dtype=dtype), torch.empty(k, n, dtype=dtype)
            tile = matmul.tile_for(a, b, alone=True)
            assert tile["BM"] >= m and tile["BN"] >= n
        a = torch.empty(4 * shared, 4 * shared, dtype=dtype)
        tile = matmul.tile_for(a, a, alone=True)
        assert cdiv(4 * shared, tile["BM"]) * cdiv(4 * shared, tile["BN"]) >= threads
        assert not matmul.at_once(dtype, 129, 1, 1, threads), "a tile has an end"
    assert not matmul.at_once(dtype, 16, 16, 16, 1)
