"""Products in CUDA C++ that the Tensor Memory Accelerator feeds (ops/product_tma.cuh): which kernel multiplies what, what its machine code does, and on a GPU what comes out."""

import itertools
import re
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import unavailable
from test_cuda_calls import Driver, Own
from triport import backends, ops
from triport.backends import cuda, nvrtc
from triport.backends.base import Error
from triport.backends.dispatch import cuda_calls
from triport.bench import check
from triport.ops import product_cuda, product_tiles
from triport.ops.matmul_softmax import _matmul_softmax_cuda
from triport.tools.inspector import tools

needs_nvrtc = pytest.mark.skipif(bool(nvrtc.missing()), reason=str(nvrtc.missing()))
hopper = pytest.mark.skipif(bool(unavailable("cuda")) or torch.cuda.get_device_capability() != (9, 0), reason="these kernels are compute capability 9.0's: " + str(unavailable("cuda")))
OPS = Path(ops.__file__).parent
each_tile = pytest.mark.parametrize("tile", product_tiles.TILES, ids=lambda t: f"{t.bm}x{t.bn}")
HALF, BF16 = torch.float16, torch.bfloat16
#: bytes of shared memory that a block of an H100 can have
SHARED = 232448


@pytest.fixture
def h100(monkeypatch):
    """The choices for an H100, from tensors on the CPU."""
    monkeypatch.setattr(cuda, "limits", lambda index: (132, SHARED, (9, 0)))
    monkeypatch.setattr(cuda, "describes", lambda: True)


def matrix(rows, columns, turned=False, dtype=HALF, device="cpu"):
    x = torch.randn((columns, rows) if turned else (rows, columns), device=device).to(dtype)
    return x.T if turned else x


def result(a, b):
    return torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)


def operands(m, k, n, **how):
    a, b = matrix(m, k, **how), matrix(k, n, **how)
    return a, b, result(a, b)


# --- which ---------------------------------------------------------------------------------------------------------------


def test_a_product_goes_by_tma_where_lines_begin_at_multiples_of_16_bytes(h100):
    assert product_cuda.fastest(*operands(512, 256, 768)).name == "tma"
    assert product_cuda.fastest(*operands(512, 256, 767)).name == "wgmma", "neither b nor c"
    a, b = matrix(512, 256), matrix(256, 767, turned=True)
    assert product_cuda.fastest(a, b, result(a, b)).name == "wgmma", "b, but not c"
    a, b, c = operands(512, 256, 768)
    assert product_cuda.fastest(torch.randn(512 * 256 + 1).to(HALF)[1:].view(512, 256), b, c).name == "wgmma", "memory that begins elsewhere"
    assert product_cuda.fastest(*operands(512, 256, 768, dtype=torch.float32)).name == "fma"


def test_other_gpus_have_other_kernels(h100, monkeypatch):
    monkeypatch.setattr(cuda, "limits", lambda index: (132, 101376, (12, 0)))
    assert product_cuda.fastest(*operands(512, 256, 768)).name == "mma" and product_cuda.spanning(*operands(256, 256, 256), 1) is None
    monkeypatch.setattr(cuda, "limits", lambda index: (132, SHARED, (9, 0)))
    monkeypatch.setattr(cuda, "describes", lambda: False)
    assert product_cuda.fastest(*operands(512, 256, 768)).name == "wgmma", "a driver that describes no matrices"


def test_batches_are_one_launch(h100):
    """Its grid counts matrices beside tiles; 16 bytes at a time are read where matrices begin so as well."""
    a, b, c = operands(512, 256, 768)
    way = product_cuda.of_batches(a, b, c, 6, 3, ((1 << 20, 512 * 256), (0, 256 * 768)))
    assert way.kernel("matmul") == "matmul_batch_wgmma<half, 128, 256, 4, false, false, true>" and way.grid == (12, 6, 1)
    assert way.sizes == (512, 768, 256, 6, 3, 1 << 20, 512 * 256, 0, 256 * 768)
    assert product_cuda.of_batches(a, b, c, 6, 3, ((1 << 20, 512 * 256 + 1), (0, 256 * 768))).template.endswith("false")
    assert product_cuda.of_batches(a, b, c, 70000, 70000, ((0, 512 * 256), (0, 0))).grid == (12, 65535, 2)
    few, many = (product_cuda.of_batches(*operands(128, 64, 128), count, count, ((0, 8192), (0, 8192))).template for count in (2, 264))
    assert few.startswith("half, 64, 128") and many.startswith("half, 128"), "many matrices fill the GPU with larger tiles"
    assert product_cuda.of_batches(*operands(128, 64, 128, dtype=torch.float32), 264, 264, ((0, 8192), (0, 8192))).name == "batch_fma"


def test_lines_across_sectors_are_fetched_for_two(h100):
    assert [product_cuda.fastest(*operands(size, size, size)).cluster for size in (3072, 3000, 3024)] == [1, 2, 1], "3024's begin at multiples of 32 bytes"
    assert product_cuda.fastest(*operands(64, 3000, 3000)).cluster == 1, "there is one row of tiles"


@pytest.mark.parametrize("size, tile", [(1536, "128, 144"), (2064, "192, 176"), (2080, "192, 176")])
def test_tiles_that_fill_the_gpu(h100, size, tile):
    """132 multiprocessors have one each, of a product whose right factor's columns are lines: as it is, or of the transposes."""
    given = operands(size, size, size)
    way = product_cuda.fastest(*given)
    assert way.grid == (132,) and f" {tile}, " in way.template and way.template.endswith("true, true, true")
    assert way.operands[0].matrix.data_ptr() == given[1].data_ptr()
    a, b = matrix(size, size), matrix(size, size, turned=True)
    assert product_cuda.fastest(a, b, result(a, b)).template.endswith("false, true, false")


def test_tiles_of_any_right_factor(h100):
    """Where neither the product's is one whose lines are its columns, nor its transpose's; and a softmax cannot choose."""
    for a_turned, axis in ((True, None), (False, 1), (True, 0)):
        a, b = matrix(1536, 1536, a_turned), matrix(1536, 1536)
        for way in (product_cuda.fastest(a, b, result(a, b), axis), None if axis is None else product_cuda.spanning(a, b, result(a, b), axis)):
            assert way is None or way.part % 64 == 0
    a, b = matrix(1536, 1536), matrix(1536, 1536, turned=True)
    assert product_cuda.fastest(a, b, result(a, b), 1).part == 144


@pytest.mark.parametrize("m, n", [(128 * 12, 208 * 11), (208 * 11, 128 * 12)])
def test_a_product_is_of_the_transposes_where_tiles_lie_better_so(h100, m, n):
    a, b = matrix(m, 2048), matrix(2048, n, turned=True)
    way = product_cuda.fastest(a, b, result(a, b))
    assert way.grid == (132,) and way.sizes == (128 * 12, 208 * 11, 2048)


@pytest.mark.parametrize("axis", [0, 1])
def test_clusters_have_whole_rows_and_columns_where_they_are_short(h100, axis):
    way = product_cuda.spanning(*operands(512, 512, 512), axis)
    assert way.cluster * way.part >= 512 and way.grid[0] % way.cluster == 0
    assert product_cuda.spanning(*operands(4096, 512, 4096), axis) is None
    length = product_cuda.SPAN * max(tile.bn for tile in product_tiles.EVEN)
    short, long = ((length + d * 8, 64) if axis == 0 else (64, length + d * 8) for d in (0, 1))
    assert product_cuda.spanning(*operands(short[0], 64, short[1]), axis).cluster == product_cuda.SPAN and product_cuda.spanning(*operands(long[0], 64, long[1]), axis) is None


def test_a_softmax_over_columns_is_of_the_transposes(h100):
    a, b, c = operands(520, 256, 768)
    rows, columns = (product_cuda.fastest(a, b, c, axis) for axis in (1, 0))
    assert rows.sizes == (520, 768, 256) and columns.sizes == (768, 520, 256)
    assert rows.template.endswith("false, false, false") and columns.template.endswith("true, true, true")
    assert [x.matrix.data_ptr() for x in columns.operands] == [b.data_ptr(), a.data_ptr(), c.data_ptr()]


def test_coordinates_have_32_bits(h100):
    for m, k, n in ((1 << 31, 8, 8), (8, 1 << 31, 8), (8, 8, 1 << 31)):
        given = torch.empty(m, k, dtype=HALF, device="meta"), torch.empty(k, n, dtype=HALF, device="meta"), torch.empty(m, n, dtype=HALF, device="meta")
        assert product_cuda.fastest(*given).name == "wgmma" and product_cuda.spanning(*given, 1) is None


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_whatever_the_sizes_memory_suffices(h100, axis):
    """And blocks are whole clusters, no more than stay, of tiles that the product has."""
    for m, k, n in itertools.product((8, 64, 200, 1000, 4096, 65536), (8, 512, 4096), (8, 64, 264, 3000, 8192)):
        given = torch.empty(m, k, dtype=HALF, device="meta"), torch.empty(k, n, dtype=HALF, device="meta"), torch.empty(m, n, dtype=HALF, device="meta")
        for way in (product_cuda.fastest(*given, axis), None if axis is None else product_cuda.spanning(*given, axis)):
            if way is not None:
                assert way.shared <= SHARED and way.grid[0] % way.cluster == 0 and 0 < way.grid[0] <= 132
                assert way.cluster <= 8 and all(1 <= side <= 256 for box in way.operands[:3] for side in box.box)


@each_tile
def test_statistics_have_room_behind_the_barriers(tile):
    """16 bytes a row, as product_tma.cuh has it: a maximum and a sum, of this tile and the one before. What lies in front of them begins at a multiple of 1024."""
    in_front = 1023 + tile.stages * ((tile.bm + tile.bn) * 128 + 16) + tile.bm * tile.panels * 128
    assert in_front + 16 * tile.bm <= tile.shared <= SHARED and tile.stages >= 3 and -(-tile.bn // 64) % tile.panels == 0


# --- machine code ----------------------------------------------------------------------------------------------------------


@needs_nvrtc
@each_tile
def test_the_accelerator_fetches_and_stores(tile):
    """Tensor cores multiply from where it writes, and nothing is spilled."""
    bm, bn, turned = tile.bm, tile.bn, "false, false" if tile.even else "false, true"
    shape = f"{bm}, {bn}, {tile.stages}, {tile.panels}"
    for file, name, multicast in (("matmul.cu", f"matmul_tma<half, {shape}, 2, {turned}, false>", True),
                                  ("matmul_softmax.cu", f"product_exp_tma<bf16, {shape}, 1, true, true, true>", False),
                                  ("matmul_softmax.cu", f"product_softmax_tma<half, {shape}, 3, false, true, false>", False)):
        built = nvrtc.compile(OPS / file, name, "sm_90a")
        text, usage = tools.sass(built.cubin), tools.cubin_usage(built.cubin, built.name)
        assert len(re.findall(rf"HGMMA\.64x{bn}x16\.F32", text)) == 4 and "UTMALDG" in text and "UTMASTG" in text and "LDGSTS" not in text
        assert ("MULTICAST" in text) == multicast and not usage["stack, bytes"]
        if "softmax_tma" not in name:  # whose blocks read each other's statistics
            assert "MEMBAR.ALL.GPU" not in text, "no piece waits for what a tile before it stored"


@pytest.fixture
def driver(monkeypatch):
    """A driver that takes a description, a pointer and a number, and notes who has a context."""
    d = Driver([128, 8, 8])
    monkeypatch.setattr(cuda_calls.cuda_launch, "driver", lambda: d)
    monkeypatch.setattr(cuda_calls.cuda_launch, "enter_new_thread", d.entered.append)
    monkeypatch.setattr(cuda_calls, "_empty_strided_cuda", lambda sizes, strides, dtype: torch.empty_strided(sizes, strides, dtype=dtype))
    monkeypatch.setattr(cuda_calls, "_stream", lambda device: 7000)
    return d


def test_a_matrix_is_told_to_the_driver_as_boxes(driver):
    d, x, out = driver, matrix(40, 72), torch.zeros(48)
    plan = cuda_calls.plan([(Own(cluster=2), None, (8,), (cuda.Boxes(x, (16, 64)), out, 5))], [], (x,), out)
    y = matrix(40, 72)
    assert not d.entered
    plan(y)
    assert d.entered == [None], "describing takes a context, which a new thread has not"
    _, rank, address, sizes, strides, box, _, swizzle = d.encoded[-1]
    assert (rank, address, sizes, strides, box, swizzle) == (2, y.data_ptr(), [72, 40], [144], [64, 16], 3)
    assert cuda_calls.plan([(Own(), None, (8,), (cuda.Boxes(matrix(8, 8), (8, 64)), out, 5))], [], (x,), out) is None, "memory that the plan does not know"


def test_the_first_launch_describes_too(driver, monkeypatch):
    """Without a table for what comes after it."""
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=7001))
    monkeypatch.setattr(cuda_calls, "_Table", None)
    x, out = matrix(40, 72), torch.zeros(48)
    cuda_calls.start(Own(cluster=2), (8,), (cuda.Boxes(x, (16, 64)), out, 5), 0)
    (function, grid, threads, shared, stream, parameters), = driver.launched
    assert (function, grid, threads, shared, stream) == (55, (8, 1, 1), 256, 4096, 7001) and driver.attributes == (4, 2, 1, 1)
    assert parameters[:16] == struct.pack("=QQ", x.data_ptr(), 0xABCD) and parameters[128:] == struct.pack("=Qq", out.data_ptr(), 5)
    driver.codes = [1]
    with pytest.raises(Error, match="CUDA_ERROR"):
        cuda_calls.start(Own(), (8,), (cuda.Boxes(x, (16, 64)), out, 5), 0)
    with pytest.raises(Error, match="own<float> takes other parameters than it was given: Boxes, Tensor, str"):
        cuda_calls.start(Own(), (8,), (cuda.Boxes(x, (16, 64)), out, "5"), 0)


# --- on a GPU --------------------------------------------------------------------------------------------------------------

SHAPES = [(512, 256, 768), (200, 136, 264), (8, 8, 8), (1000, 1000, 1000), (1928, 72, 2056), (301, 200, 1544)]


def _forced(monkeypatch, tile, ctas=1, span=False):
    """Tiles of another width where lines of the right factor are not its columns."""
    monkeypatch.setattr(product_tiles, "fastest", lambda m, k, n, across, count, tiles: (tile, ctas, 0.0) if tile in tiles else (tiles[0], ctas, 1e9))
    monkeypatch.setattr(product_cuda, "_spanning", lambda m, k, n, count, tiles: (tile, 0.0) if span and tile in tiles and n <= tile.bn * product_cuda.SPAN else (None, 0.0))


@hopper
@pytest.mark.gpu
@pytest.mark.parametrize("ctas", [1, 2])
@each_tile
def test_products_of_all_tiles(tile, ctas, monkeypatch):
    """Nothing is written beside the result."""
    _forced(monkeypatch, tile, ctas)
    for (m, k, n), (a_turned, b_turned) in zip(SHAPES, [(False, False), (False, True), (False, False), (True, False), (True, True), (False, False)]):
        dtype = BF16 if m == 200 else HALF
        a, b = matrix(m, k, a_turned, dtype, "cuda"), matrix(k, n, b_turned, dtype, "cuda")
        room = torch.full((m * n + 256,), 7.0, dtype=dtype, device="cuda")
        way = product_cuda.fastest(a, b, c := room[128:128 + m * n].view(m, n))
        assert way.name == "tma" and (f" {tile.bm}, {tile.bn}, " in way.template) == (tile.even or (a_turned, b_turned) != (True, False))
        cuda.launch(OPS / "matmul.cu", way.kernel("matmul"), way.grid, way.threads, *way.operands, *way.sizes, shared=way.shared, cluster=way.cluster)
        assert check.error(c, a.double() @ b.double()) < (8e-3 if dtype == BF16 else 1e-3), (m, k, n)
        assert (room[:128] == 7).all() and (room[-128:] == 7).all()


@hopper
@pytest.mark.gpu
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("span", [True, False])
@each_tile
def test_softmaxes_of_all_tiles(tile, span, dim, monkeypatch):
    _forced(monkeypatch, tile, 1 + (not span), span)
    for (m, k, n), turned in zip([(504, 512, 496), (200, 136, 264), (2048, 128, 2040), (64, 64, 20000), (20000, 64, 64)], [not tile.even and dim == 1, dim == 1 or tile.even, not tile.even and dim == 1] * 2):
        a, b = matrix(m, k, turned, HALF, "cuda") / k**0.5, matrix(k, n, turned, HALF, "cuda")
        y = _matmul_softmax_cuda(a, b, dim)
        assert check.error(y, torch.softmax(a.double() @ b.double(), dim)) < 2e-3, (m, k, n)


@hopper
@pytest.mark.gpu
def test_infinities_and_nan_stay_in_their_lines():
    a, b = matrix(264, 72, device="cuda"), matrix(72, 520, device="cuda")
    a[3, 0], a[7, 2] = float("nan"), float("-inf")
    b[5, 9] = float("inf")
    for dim in (0, 1):
        with backends.use("cuda"):
            y = ops.matmul_softmax(a, b, dim)
        want = torch.softmax(a.double() @ b.double(), dim)
        assert torch.equal(y.isnan(), want.isnan()) and want.isnan().any()
        assert check.error(torch.where(want.isnan(), 0, y.double()), torch.where(want.isnan(), 0, want)) < 2e-3


@hopper
@pytest.mark.gpu
def test_calls_are_remembered_with_what_they_describe():
    """In a graph, on other memory and after it."""
    a, b = matrix(512, 512, device="cuda"), matrix(512, 512, device="cuda")
    with backends.use("cuda"):
        for _ in range(3):
            a, b = a.clone(), b.clone()
            assert check.error(ops.matmul(a, b), a.double() @ b.double()) < 1e-3
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            c, y = ops.matmul(a, b), ops.matmul_softmax(a * 0.04, b, 0)
        a.copy_(matrix(512, 512, device="cuda"))
        graph.replay()
        assert check.error(c, a.double() @ b.double()) < 1e-3
        assert check.error(y, torch.softmax((a * 0.04).double() @ b.double(), 0)) < 2e-3


@hopper
@pytest.mark.gpu
def test_a_launch_that_the_driver_refuses(monkeypatch):
    a, b = matrix(512, 512, device="cuda"), matrix(512, 512, device="cuda")
    way = product_cuda.fastest(a, b, result(a, b))
    with pytest.raises(Error, match=r"matmul\.cu: launching matmul_tma<.* failed"):
        cuda.launch(OPS / "matmul.cu", way.kernel("matmul"), way.grid, way.threads, *way.operands, *way.sizes, shared=way.shared, cluster=way.cluster * 16 + 1)
