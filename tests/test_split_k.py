"""Products of few rows that read the right factor where it lies, of few columns whose left factor lies transposed, and whose terms are divided among threads that would be idle."""

import math
import re

import pytest
import torch
import triton
from hypothesis import given, settings, strategies as st
from test_decisions import compiled
from test_thin import DTYPES, kernels
from triport import ops
from triport.backends.cpu.llvm import targets
from triport.bench import check
from triport.ops import split_k, tuning
from triport.ops.accuracy import error
from triport.ops.split_k import Way, part_kernel

LIES = bool(targets.native().few_rows)
BOUNDS = {torch.float64: 1e-14, torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@pytest.fixture
def threads():
    """Sets the number of torch's threads, for a test alone."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def off(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> float:
    """How far a product is from a @ b, of what its terms are in size, or of the least normal number: those below have fewer bits."""
    a, b = a.double(), b.double()
    return ((out.double() - a @ b).abs() / (a.abs() @ b.abs()).clamp(min=torch.finfo(out.dtype).smallest_normal)).max().item()


def laid(rows: int, columns: int, turned: bool, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(columns, rows).to(dtype).T if turned else torch.randn(rows, columns).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("way", [Way(False, 1, 8, 64, 256), Way(False, 4, 32, 64, 64), Way(True, 1, 16, 64, 128), Way(True, 3, 8, 128, 64)])
@pytest.mark.parametrize("m,k,n", [(7, 700, 130), (130, 513, 9), (1, 300, 1), (65, 16, 33), (33, 1, 7)])
def test_every_way_is_right_and_writes_nothing_else(m, k, n, way, dtype, seed):
    torch.manual_seed(seed)
    for turned in (False, True):
        a, b = laid(m, k, turned, dtype), laid(k, n, not turned, dtype)
        for shape, back in (((m, n), False), ((n, m), True)):  # by rows, and by columns
            out, whole = check.guarded(shape, dtype)
            split_k.product(a, b, out.T if back else out, way)
            assert off(out.T if back else out, a, b) < BOUNDS[dtype] and check.guards_hold(whole)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 70), st.integers(1, 2000), st.integers(1, 70), st.booleans(), st.booleans(), st.sampled_from(list(DTYPES.values())), st.sampled_from([1, 2, 5]), st.integers(0, 2**31))
def test_any_size_and_any_number_of_threads(m, k, n, a_turned, b_turned, dtype, count, seed):
    torch.manual_seed(seed)
    a, b = laid(m, k, a_turned, dtype), laid(k, n, b_turned, dtype)
    want, before = a.double() @ b.double(), torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        for _ in range(2):
            assert off(ops.matmul(a, b), a, b) < BOUNDS[dtype]
        for dim in (0, 1):
            torch.testing.assert_close(ops.matmul_softmax(a, b, dim).double(), torch.softmax(want, dim), rtol=0, atol={torch.float64: 1e-10, torch.float32: 3e-4}.get(dtype, 2e-2))
    finally:
        torch.set_num_threads(before)


def test_terms_are_divided_where_threads_would_be_idle(threads):
    a, b = torch.randn(64, 8192), torch.randn(8192, 64)
    threads(1)
    assert split_k.way(a, b) is None
    threads(16)
    assert split_k.way(a, b).shares > 1
    assert split_k.way(a.to(torch.float64), b.to(torch.float64)) is None, "shares are added up in fp32"
    assert split_k.way(torch.randn(2048, 512), torch.randn(512, 2048)) is None, "there is a tile for each thread"
    assert split_k.way(torch.randn(64, 64), torch.randn(64, 64)) is None, "of so few terms another launch takes longer"
    assert kernels(a, b) == ["part_kernel", "sum_shares_kernel"]
    want = a.double() @ b.double()
    assert off(ops.matmul(a, b), a, b) < 2e-6
    assert error(ops.matmul_softmax(a / 90, b, 1), torch.softmax(want / 90, 1)) < 1e-5


@pytest.mark.skipif(not LIES, reason="this CPU's tiles pack the right factor in any case")
def test_few_columns_of_a_transposed_left_factor_are_rows(threads):
    threads(1)
    a, b = laid(500, 300, True, torch.float32), torch.randn(300, 8)
    assert split_k.way(a, b).exchanged and split_k.way(a.half(), b.half()).exchanged and kernels(a, b) == ["part_kernel"]
    assert split_k.way(a.contiguous(), b) is None and split_k.way(a.bfloat16(), b.bfloat16()) is None
    assert split_k.way(laid(500, 300, True, torch.float32), torch.randn(300, 64)) is None, "as many columns are not read where they lie"
    assert split_k.way(laid(500, 20, True, torch.float32), torch.randn(20, 8)) is None, "a result of so few terms is most of the time"
    a[3, 5], b[7, 2] = float("inf"), float("nan")
    torch.testing.assert_close(ops.matmul(a, b), a @ b, equal_nan=True, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not LIES, reason="this CPU's tiles pack the right factor in any case")
def test_few_rows_take_pieces_of_the_terms(threads):
    """Of many terms, whose rows are many pages; all of few."""
    threads(1)
    assert split_k.way(torch.randn(8, 4096), torch.randn(4096, 300))[2:] == (8, 256, 256)
    assert split_k.way(torch.randn(8, 300), torch.randn(300, 300)).bk == 512
    assert split_k.way(torch.randn(33, 300), torch.randn(300, 300)) is None


@pytest.mark.parametrize("target,tile,rows,micro", [("x86-64-v4", 8, 5, "5 rows x 4 vectors"), ("sapphirerapids", 4, 3, "3 rows x 4 vectors"), ("x86-64-v4", 8, 6, "6 rows x 4 vectors"),
                                                    ("x86-64-v4", 8, 8, "8 rows x 2 vectors"), ("x86-64-v4", 16, 13, "8 rows x 2 vectors"), ("x86-64-v4", 8, 0, "8 rows x 2 vectors")])
def test_a_kernel_for_so_many_rows_multiplies_no_more(target, tile, rows, micro):
    """Known rows that fit in one pass over B take all accumulators there are; of 13 no step multiplies more than 8 and 5."""
    made = compiled(part_kernel, target, BM=tile, BN=128, BK=256, GROUP=4, ROWS=rows, stride_ak=1, stride_bn=1, stride_on=1)
    assert micro in made.asm["plan"]
    steps = [block.count("vfmadd") for block in re.split(r"\n\.LBB", made.asm["asm"]) if "prefetch" in block and "vfmadd" in block]
    width = 4 if "x 4" in micro else 2
    assert not rows or set(steps) <= {u * r * w for u in (1, 4) for r in (rows if rows < 8 else 8, rows % 8) for w in (width, width * 3 // 4, width // 2) if r}
    assert rows or max(steps) == 4 * 8 * 2


@pytest.mark.parametrize("rows", [8, 12, 16])
def test_a_strip_that_is_alone_spills_nothing(rows):
    """LLVM, which saw that it begins at row 0, read all of a step's elements of A first, and put them on the stack."""
    made = compiled(part_kernel, "x86-64-v4", BM=16, BN=256, BK=256, GROUP=4, ROWS=rows, stride_ak=1, stride_bn=1, stride_on=1)
    hot = [block for block in re.split(r"\n\.LBB", made.asm["asm"]) if "prefetch" in block and block.count("vfmadd") >= 64]
    assert hot and not any(re.search(r"\(%rsp\), %zmm|%zmm\d+, -?\d*\(%rsp\)", block) for block in hot)


@pytest.mark.parametrize("m,bm,rows", [(5, 8, 5), (16, 16, 16), (17, 32, 0), (9, 8, 0)])
def test_whose_kernels_know_their_rows(m, bm, rows, monkeypatch):
    """Those of up to sixteen in one tile."""
    seen = []
    monkeypatch.setattr(split_k, "launch", lambda kernel, grid, *args, **constants: seen.append(constants["ROWS"]))
    split_k.product(torch.randn(m, 300), torch.randn(300, 70), torch.empty(m, 70), Way(False, 1, bm, 64, 128))
    assert seen == [rows]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize("rows", [3, 4, 5, 6, 7, 8, 9, 13, 16, 17])
def test_every_number_of_rows(rows, dtype, seed):
    """Infinities and NaN stay in the columns and rows that have them."""
    torch.manual_seed(seed)
    for k, n in ((300, 200), (77, 1001), (600, 64), (5, 30)):
        a, b = torch.randn(rows, k).to(dtype), torch.randn(k, n).to(dtype)
        assert off(ops.matmul(a, b), a, b) < BOUNDS[dtype]
        if dtype != torch.float64:  # which adds up in fp32
            out, whole = check.guarded((rows, n), torch.float32)
            split_k.product(a, b, out, Way(False, 1, max(8, triton.next_power_of_2(rows)), 128, 128))
            assert off(out, a, b) < BOUNDS[dtype] and check.guards_hold(whole)
        a[rows - 1, 2], b[k - 1, n // 2] = math.inf, math.nan
        got, want = ops.matmul(a, b), a.double() @ b.double()
        assert torch.equal(got.isfinite(), want.isfinite()) and torch.equal(got.isnan(), want.isnan())


def test_whose_products_do_not_go_this_way():
    """A board's code, a search for tiles."""
    a, b = torch.randn(8, 4096), torch.randn(4096, 300)
    with tuning.on(targets.get("spacemit-x60")):
        assert split_k.way(a, b) is None
    with tuning.trying("matmul", {"fp32": ((32, 32, 32, 1.0),)}, "matmul", {}):
        assert split_k.way(a, b) is None
