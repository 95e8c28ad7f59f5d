"""Products of few lines and of few terms on the CPU: kernels of their own, right in every layout, between guard words, and chosen where they are meant to be."""

import importlib
import random
import sys
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.fx.experimental.proxy_tensor import make_fx
from triport import ops
from triport.backends.cpu.llvm import targets
from triport.backends.dispatch import replay
from triport.bench import check
from triport.ops import split_k, straight, thin, tuning
from triport.ops.matmul import OP
from triport.ops.tiles import FEW_TERMS, tile_for
from triport.ops.accuracy import error
from triport.ops.spanning import tile_for as matmul_softmax_tile
from triport.testing import launches

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
#: (M, K, N): lines, long ones, terms; each end of what is taken, and beyond it
SIZES = ((1, 64, 64), (1, 1, 1), (2, 7, 33), (3, 130, 17), (4, 1000, 5), (5, 300, 70), (1, 5000, 19), (2, 4100, 3), (1, 9, 5000), (3, 20, 4097), (70, 65, 1), (33, 5000, 1), (17, 130, 2),
         (40, 66, 3), (19, 257, 4), (21, 257, 5), (100, 1, 90), (65, 2, 1030), (64, 3, 64), (129, 8, 7), (30, 9, 31), (1, 600, 1100), (2, 600, 1100), (9, 20, 9), (8, 256, 33), (6, 1000, 5),
         (7, 513, 17), (5, 2500, 40), (30, 700, 8), (33, 300, 6), (4, 2500, 70), (2, 2049, 9))


def laid(rows: int, columns: int, how: str, dtype) -> torch.Tensor:
    """A random matrix that lies straight, transposed, with gaps between its lines, as every other column, or as one column."""
    if how == "straight":
        return torch.randn(rows, columns, dtype=torch.float64).to(dtype)
    if how == "transposed":
        return torch.randn(columns, rows, dtype=torch.float64).to(dtype).T
    if how == "gaps":
        return torch.randn(rows, columns + 3, dtype=torch.float64).to(dtype)[:, 1:columns + 1]
    if how == "every other":
        return torch.randn(rows, 2 * columns, dtype=torch.float64).to(dtype)[:, ::2]
    return torch.randn(rows, 1, dtype=torch.float64).to(dtype).expand(rows, columns)


LAYOUTS = "straight", "transposed", "gaps", "every other", "expanded"


def operands(m: int, k: int, n: int, dtype, seed: int, more: int):
    """(layouts, a, b), straight, with b transposed, and `more` at random."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    for layouts in [("straight", "straight"), ("straight", "transposed"), *((rng.choice(LAYOUTS), rng.choice(LAYOUTS)) for _ in range(more))]:
        yield layouts, laid(m, k, layouts[0], dtype), laid(k, n, layouts[1], dtype)


def compare(a: torch.Tensor, b: torch.Tensor, way):
    """`way(a, b)` beside float64: a sum's error is relative to its terms."""
    want, terms = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    got = way(a, b)
    assert got.shape == want.shape and got.dtype is a.dtype and got.is_contiguous()
    assert not got.isnan().any() and (got.double() - want).norm() <= OP.allowed(a.dtype) * max(want.norm(), 0.1 * terms.norm())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m,k,n", SIZES)
def test_any_layout(m, k, n, dtype, seed):
    """Twice: what was launched is launched again."""
    for _, a, b in operands(m, k, n, DTYPES[dtype], seed, 3):
        for _ in range(2):
            compare(a, b, ops.matmul)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["m", "n", "k"]), st.integers(1, 4), st.integers(1, 900), st.integers(1, 900), st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS), st.integers(0, 2**31))
def test_any_size(few, least, one, other, a, b, seed):
    torch.manual_seed(seed)
    m, k, n = {"m": (least, one, other), "n": (one, other, least), "k": (one, least, other)}[few]
    compare(laid(m, k, a, torch.float32), laid(k, n, b, torch.float32), ops.matmul)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("m,k,n", [(1, 700, 130), (3, 70, 33), (3, 300, 1000), (130, 4500, 1), (65, 70, 3), (70, 5, 1027), (7, 700, 130), (130, 300, 6)])
def test_nothing_beyond_the_result_is_written(m, k, n, turned, seed):
    torch.manual_seed(seed)
    a = torch.randn(k, m).T if turned and k <= thin.TERMS else torch.randn(m, k)
    b = torch.randn(n, k).T if turned and k > thin.TERMS or m == 7 or n == 6 else torch.randn(k, n)
    out, whole = check.guarded((m, n), torch.float32)
    assert thin.takes(a, b) and check.guards_hold(whole)
    thin.product(a, b, out)
    assert error(out, a.double() @ b.double()) < 2e-6 and check.guards_hold(whole)


def kernels(a: torch.Tensor, b: torch.Tensor) -> list[str]:
    with launches.watched() as report:
        ops.matmul(a, b)
    return sorted(report.kernels)


@pytest.mark.parametrize("few,names", [((1, 64, 50), ["lines_kernel"]), ((2, 64, 50), ["lines_kernel"]), ((50, 64, 4), ["copy_lines_kernel", "lines_kernel"]),
                                       ((50, 64, 5), ["matmul_kernel"]), ((50, 5000, 1), ["lines_kernel"]), ((50, 8, 50), ["few_terms_kernel"]), ((50, 9, 50), ["matmul_kernel"])])
def test_which_kernel(few, names):
    m, k, n = few
    assert kernels(torch.randn(m, k), torch.randn(k, n)) == names


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_which_kernel_of_eight_lines(dtype, monkeypatch, seed):
    """In 16 bits, too, where the CPU has no instructions for them."""
    torch.manual_seed(seed)
    monkeypatch.setattr(thin, "by_pairs", lambda: False)
    monkeypatch.setattr(thin, "by_tiles", lambda dtype: False)
    for m, n in ((5, 300), (8, 70), (300, 6)):
        a, b = torch.randn(m, 700).to(dtype), torch.randn(n, 700).to(dtype).T
        assert kernels(a, b) == ["eight_lines_kernel"]
        out, whole = check.guarded((m, n), dtype)
        thin.product(a, b, out)
        assert error(out, a.double() @ b.double()) < {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype] and check.guards_hold(whole)
    assert kernels(torch.randn(9, 700).to(dtype), torch.randn(300, 700).to(dtype).T) != ["eight_lines_kernel"]


@pytest.mark.parametrize("count", [3, 4, 8])
@pytest.mark.skipif(sys.platform != "linux", reason="other systems back what is not touched")
def test_rows_that_are_far_apart(count, tmp_path):
    """Their distances need more than 32 bits. A file with holes: only what is written takes any space."""
    far = (1 << 31) // (count - 1) + 5
    path = tmp_path / "holes"
    with open(path, "wb") as f:
        f.truncate(4 * (far * (count - 1) + 300))
    x = torch.from_file(str(path), shared=True, size=far * (count - 1) + 300, dtype=torch.float32).as_strided((count, 300), (far, 1))
    x.copy_(torch.randn(count, 300))
    b = torch.randn(50, 300).T
    compare(x, b, ops.matmul)
    compare(b.T, x.T, ops.matmul)


@pytest.mark.parametrize("rows", range(5, 10))
def test_five_to_eight_rows(rows):
    """Times lines that lie along K, where these are long; and columns, of rows that do."""
    x, b = torch.randn(rows, 300), torch.randn(50, 300).T
    eight = rows <= 8
    assert ("eight_lines_kernel" in kernels(x, b)) is ("eight_lines_kernel" in kernels(b.T, x.T)) is eight
    assert "eight_lines_kernel" not in kernels(x[:, :200], b[:200]) + kernels(x.double(), b.double())
    assert thin.lines(x, b) == (1 if eight else None) and thin.lines(b.T, x.T) == (0 if eight else None)


def test_rows_that_amx_multiplies_at_a_time(monkeypatch):
    """Of fewer it makes nothing: tiles have sixteen for them."""
    for module in (importlib.import_module("triport.ops.tiles"), straight, split_k):
        monkeypatch.setattr(module, "by_tiles", lambda dtype: dtype is torch.bfloat16)
    a, b = torch.randn(5, 512, dtype=torch.bfloat16), torch.randn(512, 300, dtype=torch.bfloat16)
    assert tile_for(a, b)["BM"] == 16 and tile_for(a.float(), b.float())["BM"] == 8
    split_k._chosen.cache_clear()
    try:
        way = split_k._chosen(torch.bfloat16, 5, 300, 8192, True, False, 4)
        assert way is None or way.bm >= 16
        assert {bm for bm, _ in split_k._shapes(*straight.held(torch.bfloat16, 5, 300), False, 4)} == {16}
    finally:
        split_k._chosen.cache_clear()


@pytest.mark.parametrize("dtype,bits", [(torch.float32, 32), (torch.bfloat16, 32), (torch.float16, 32), (torch.float64, 64)])
def test_tiles_have_the_columns_of_a_vector(dtype, bits):
    """Fewer would be stored across rows; a board's tiles are as its tables have them."""
    a, b = torch.randn(300, 90).to(dtype), torch.randn(90, 5).to(dtype)
    assert tile_for(a, b)["BN"] == max(8, targets.native().lanes(bits)) and matmul_softmax_tile(a, b, 1)[0]["BN"] >= targets.native().lanes(bits)
    with tuning.on(targets.get("spacemit-x60")):
        assert tile_for(a, b)["BN"] == 8


@pytest.fixture(params=[1, 2000], ids=["larger than caches", "in caches"])
def divided(request, monkeypatch):
    """Matrices of any size are divided by rows among four threads, whose second caches are so large."""
    monkeypatch.setattr(thin, "DIVIDED", 0)
    monkeypatch.setattr(thin, "DIVIDED_EACH", 1)
    monkeypatch.setattr(thin, "SHARE", 4)
    monkeypatch.setattr(thin, "second_cache", lambda: request.param)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    replay.forget()
    yield request.param
    replay.forget()
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("m,k,n", [(1, 16, 1), (1, 100, 33), (2, 130, 17), (1, 37, 1500), (1, 1000, 2050), (2, 999, 300), (70, 65, 1), (300, 130, 2)])
def test_terms_divided_among_threads(divided, m, k, n, dtype, seed):
    torch.manual_seed(seed)
    a = laid(m, k, "straight" if m < 3 else "transposed", DTYPES[dtype])
    b = laid(k, n, "gaps" if m < 3 else "transposed", DTYPES[dtype])
    for _ in range(2):
        compare(a, b, ops.matmul)
    if thin.takes(a, b) and divided == 1:  # bf16 of two lines goes by instructions for it
        assert kernels(a, b) == ["lines_kernel", "sum_shares_kernel"]
    out, whole = check.guarded((m, n), DTYPES[dtype])
    if thin.takes(a, b):
        thin.product(a, b, out)
        assert check.guards_hold(whole) and torch.equal(out, ops.matmul(a, b))


def test_whose_terms_are_divided(monkeypatch):
    """What is large, by rows; by two threads where the second cache is Intel's; in as few shares as find places in threads' second caches, and no more than there are terms for."""
    monkeypatch.setattr(thin, "second_cache", lambda: 2 << 20)

    def parts(threads, k, n, r=1, dtype=torch.float32, assists=True):
        monkeypatch.setattr(thin.targets, "native", lambda: SimpleNamespace(assists=assists, few_rows=32))
        return thin._divided(r, k, n, dtype, threads)

    assert parts(1, 4096, 4096) is parts(4, 512, 512) is parts(16, 700, 1024) is parts(8, 128, 8192) is parts(16, 512, 65536) is None
    assert parts(4, 1024, 1024) == (4, 256) and parts(4, 1024, 1024, assists=False) == (4, 256) and parts(2, 1024, 1024, assists=False) is None
    assert parts(16, 2048, 2048) == (16, 256) and parts(16, 512, 2048) == (4, 256) and parts(8, 1024, 1024, dtype=torch.bfloat16) == (4, 256) and parts(5, 3072, 128 * 6) == (5, 256)
    assert parts(2, 4096, 4096) == (8, 1024) and parts(16, 4096, 4096) == (32, 1024) and parts(8, 16384, 100) == (8, 128)
    assert parts(4, 4096, 4096, 3) is None and parts(4, 4096, 4096, 3, torch.float16) == (16, 1024) and parts(4, 4096, 4096, dtype=torch.float64) is None
    monkeypatch.setattr(thin, "second_cache", lambda: 1 << 30)
    assert parts(4, 4096, 4096) is None


@pytest.mark.parametrize("rows", [3, 4])
def test_three_rows_and_more(rows):
    """They go by tiles where these read a matrix where it lies: in fp32, by its rows."""
    lies = bool(targets.native().few_rows)
    a, b = torch.randn(rows, 64), torch.randn(64, 50)
    assert kernels(a, b) == ["part_kernel" if lies else "lines_kernel"]
    assert kernels(a, b.T.contiguous().T) == kernels(a.half(), b.half()) == ["lines_kernel"]


@pytest.mark.parametrize("pairs", [False, True])
def test_bf16_that_is_multiplied_as_it_is(pairs, monkeypatch):
    """Where the CPU has instructions for it tiles are faster earlier: where a matrix stays in the cache from the second line on."""
    monkeypatch.setattr(thin, "by_pairs", lambda: pairs)
    x = {m: torch.empty(m, 64, dtype=torch.bfloat16) for m in (1, 2, 3)}
    small, large = torch.empty(64, 64, dtype=torch.bfloat16), torch.empty(64, 9000, dtype=torch.bfloat16)
    assert [thin.takes(x[m], small) for m in x] == [True, not pairs, not pairs] and [thin.takes(x[m], large) for m in x] == [True, True, not pairs]
    assert [thin.takes(small[:, :k], small[:k]) for k in (2, 3)] == [True, not pairs]


def test_whose_products_do_not_go_this_way():
    """A board's code, a search for tiles, sizes that are open; a matrix that no vector reads."""
    a, b = torch.randn(1, 64), torch.randn(64, 64)
    assert thin.takes(a, b) and not thin.takes(a, torch.randn(64, 128)[:, ::2]) and not thin.takes(a.to("meta"), b.to("meta"))
    with tuning.on(targets.get("spacemit-x60")):
        assert not thin.takes(a, b)
    with tuning.trying("matmul", {"fp32": ((32, 32, 32, 1.0),)}, "matmul", {}):
        assert not thin.takes(a, b)
    asked = []
    make_fx(lambda a, b: asked.append(thin.takes(a, b)) or a + 1, tracing_mode="symbolic")(torch.randn(3, 64), b)
    assert asked == [False]


def test_tiles_of_few_terms_are_small(monkeypatch):
    """Small enough that few of them are cut, and that there are some for each thread; by AMX large ones, and wide ones of the fewest terms on Intel's CPUs, and where a thread's part of the
    result is much larger than its second cache."""
    m = importlib.import_module("triport.ops.tiles")
    monkeypatch.setattr(m, "second_cache", lambda: 1 << 20)
    monkeypatch.setattr(m, "by_tiles", lambda dtype: False)
    monkeypatch.setattr(m, "targets", SimpleNamespace(native=lambda: SimpleNamespace(assists=False)))
    monkeypatch.setattr(m, "workers", lambda: 2)
    for dtype in DTYPES.values():
        few, more = (tile_for(torch.empty(512, k, dtype=dtype), torch.empty(k, 1024, dtype=dtype)) for k in (FEW_TERMS, FEW_TERMS + 1))
        assert few["BM"] * few["BN"] <= 128 * 64 and few["BK"] == FEW_TERMS
        assert dtype is torch.float64 or more["BM"] * more["BN"] > few["BM"] * few["BN"]
        for rows, wide in ((m.SPILLED << 11, False), ((m.SPILLED << 11) + 8, True)):  # of both threads
            few = tile_for(torch.empty(rows // dtype.itemsize, FEW_TERMS, dtype=dtype), torch.empty(FEW_TERMS, 1024, dtype=dtype))
            assert ((few["BM"], few["BN"]) == (128, 512)) == wide
    monkeypatch.setattr(m, "targets", SimpleNamespace(native=lambda: SimpleNamespace(assists=True)))
    for k, wide in ((16, True), (17, False)):
        tile = tile_for(torch.empty(1024, k), torch.empty(k, 1024))
        assert ((tile["BM"], tile["BN"]) == (64, 512)) == wide
    monkeypatch.setattr(m, "by_tiles", lambda dtype: dtype == torch.bfloat16)
    tile = tile_for(torch.empty(1024, 32, dtype=torch.bfloat16), torch.empty(32, 1024, dtype=torch.bfloat16))
    assert (tile["BM"], tile["BN"]) == (256, 256)
    monkeypatch.setattr(m, "workers", lambda: 32)
    assert tile_for(torch.empty(256, 32), torch.empty(32, 256))["BM"] == 32
