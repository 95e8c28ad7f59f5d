"""Which kernel multiplies on a GPU and in which tiles, by how long an H200 takes; and what kernels are told of numbers that 16 does not divide."""

import math
import re
from types import SimpleNamespace

import pytest
import torch
import triton
from torch._library.triton import set_wrap_triton_enabled
from triport import ops
from triport.backends import active
from triport.bench import check
from triport.ops import product_few, product_pace, product_split, product_tma, product_way, tiles
from triport.ops.batches import batched_matmul_kernel
from triport.ops.layout import at_a_time, even
from triport.ops.matmul import even_product, matmul_kernel
from triton.backends.compiler import GPUTarget

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
#: every tile that a product may have by pointers, and by few rows
POINTERS = {(size, *t[:5]) for pace, size in ((product_pace.POINTERS[2], 2), (product_pace.POINTERS[4], 4), (product_pace.POINTERS_ACROSS, 4)) for t in (*pace.odd, *pace.even)}
FEW = {(size, *t[:5]) for size, pace in product_pace.FEW.items() for t in (*pace.odd, *pace.even, *pace.ahead)}


def like(rows, columns, turned=False, dtype=torch.float32, offset=0, stride=None, device="cuda"):
    """A matrix on a GPU that is not here."""
    stride = stride or ((1, rows) if turned else (columns, 1))
    made = SimpleNamespace(shape=torch.Size((rows, columns)), device=SimpleNamespace(type=device, index=0), dtype=dtype, element_size=lambda: dtype.itemsize, storage_offset=lambda: offset,
                           stride=lambda d=None: stride if d is None else stride[d], data_ptr=lambda: 1 << 20 | offset * dtype.itemsize, numel=lambda: rows * columns)
    made.T = SimpleNamespace(**{**vars(made), "shape": made.shape[::-1], "stride": lambda d=None: stride[::-1] if d is None else stride[1 - d], "T": made})
    return made


@pytest.fixture
def a_gpu(monkeypatch):
    """An H100 or H200 is here, whose descriptors can be made."""
    monkeypatch.setattr(product_split, "suits", lambda device: True)
    monkeypatch.setattr(product_tma, "_has_tma", lambda device: True)
    for module in (product_way, product_few, product_tma, product_split):
        monkeypatch.setattr(module.cuda, "limits", lambda device: (132, 227 << 10, (9, 0)))
    with set_wrap_triton_enabled(False):  # as the dispatcher does
        yield


@pytest.mark.parametrize("shape,stride,offset,size,found", [
    ((100, 200), (200, 1), 0, 4, 4), ((100, 200), (200, 1), 0, 2, 8), ((100, 204), (204, 1), 0, 2, 4), ((100, 202), (202, 1), 0, 4, 2), ((100, 201), (201, 1), 0, 4, 1), ((100, 200), (201, 1), 0, 4, 1),
    ((100, 198), (200, 1), 0, 4, 2), ((100, 200), (200, 1), 1, 4, 1), ((100, 200), (200, 1), 2, 4, 2), ((100, 201), (1, 100), 0, 4, 4), ((100, 200), (1, 101), 0, 4, 1), ((100, 200), (400, 2), 0, 4, 1),
    ((7, 100, 200), (20000, 200, 1), 0, 4, 4), ((7, 100, 201), (1 << 20, 1, 100), 0, 2, 4)])
def test_numbers_at_a_time(shape, stride, offset, size, found):
    """As many as divide the line, the step from line to line, and where the first begins; of up to 16 bytes."""
    x = SimpleNamespace(shape=shape, stride=lambda: stride, element_size=lambda: size, storage_offset=lambda: offset)
    assert at_a_time(x) == found


def test_what_is_even():
    """Two bits a number, of which Triton sees those that 16 divides itself, and never one that is 1."""
    assert even(4, 100, 16, 101, 102, 1, 0) == 0b00_00_01_00_00_10 and even(2, 100, 8, 32, 24) == 0b11_00_11_10 and even(8, 100) == 1


def test_what_divides_rows_is_told_where_a_lies_by_columns():
    """Else kernels would be made for what nothing is read by."""
    assert even_product(like(100, 208), like(208, 304)) == 0 and even_product(like(100, 208, True), like(208, 304)) & 3 == 2
    assert even_product(torch.empty(100, 20), torch.empty(20, 100)) == 0  # on a CPU
    assert even_product(like(100, 20), like(20, 100)) == even(4, 0, 100, 20, 20, 1, 100, 1)


def compiled(kernel, dtype: torch.dtype, told: int) -> str:
    """PTX of a kernel for an H100, on matrices whose lines are multiples of 8 numbers, not of 16."""
    names = list(kernel.arg_names)
    consts = {"BM": 64, "BN": 64, "BK": 32, "GROUP": 8, "stride_ak": 1, "stride_bn": 1, "EVEN": told, **({"SCALED": False} if "SCALED" in names else {})}
    kind = "*fp32" if dtype == torch.float32 else "*fp16"
    signature = {n: "constexpr" if n in consts else kind if n.endswith("_ptr") else "fp64" if n == "scale" else "i32" for n in names}
    attrs = {(names.index(n),): [["tt.divisibility", 16]] for n in names if n.endswith("_ptr")}
    target = GPUTarget("cuda", 90, 32)
    with active.compiling_for(target):
        made = triton.compile(triton.compiler.ASTSource(fn=kernel, signature=signature, constexprs=consts, attrs=attrs), target=target, options={"num_warps": 4, "num_stages": 3})
    return made.asm["ptx"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("kernel,numbers", [(matmul_kernel, (0, 1000, 200, 200, 1, 1000, 1)), (batched_matmul_kernel, (0, 1000, 200, 3 * 39 * 200, 39 * 200, 200, 1, 3 * (200 * 1000 + 8), 200 * 1000 + 8, 1000, 1))],
                         ids=["one", "batches"])
def test_what_is_told_is_read_16_bytes_at_a_time(kernel, numbers, dtype):
    """And written so."""
    for told, wide in ((even(dtype.itemsize, *numbers), True), (0, False)):
        text = compiled(kernel, dtype, told)
        sizes = set(re.findall(r"cp\.async\.c[ag]\.shared\.global \[[^\]]*\], \[[^\]]*\], (0x\w+)", text))
        assert sizes == {"0x10"} if wide else "0x10" not in sizes
        assert bool(re.search(r"st\.global\.v4\.b32", text)) is wide


@pytest.mark.parametrize("turned", [False, True])
def test_what_batches_compute_that_are_told_of(turned, seed):
    """On a CPU, of one dimension spread over two, with memory between matrices."""
    torch.manual_seed(seed)
    a, b = torch.randn(2, 3, 20, 44)[:, :, :, :36], torch.randn(2, 3, 36, 20)
    b = b.mT.contiguous().mT if turned else b
    c, whole = check.guarded((2, 3, 20, 20), torch.float32)
    steps = *a.stride()[:2], *a.stride()[2:], *b.stride()[:2], *b.stride()[2:]
    batched_matmul_kernel[(6 * 4,)](a, b, c, 20, 20, 36, 1.0, 3, *steps, SCALED=False, BM=16, BN=16, BK=16, GROUP=8, EVEN=even(4, 20, 20, 36, *steps))
    assert check.error(c, a.double() @ b.double()) < 2e-6 and check.guards_hold(whole)


@pytest.mark.parametrize("dtype,bound", [(torch.float32, 2e-6), (torch.float16, 5e-3), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("m,k,n,turned", [(36, 20, 100, False), (130, 8, 68, False), (20, 12, 4, True), (33, 47, 129, True), (1, 2, 6, False)])
def test_what_the_tiles_compute(m, k, n, turned, dtype, bound, seed):
    """On a CPU, by the kernel that a GPU has, told what divides its numbers."""
    torch.manual_seed(seed)
    a, b = torch.randn(m, k).to(dtype), torch.randn(n, k).T.to(dtype) if turned else torch.randn(k, n).to(dtype)
    want = a.double() @ b.double()
    for size, bm, bn, bk, warps, stages in POINTERS:
        if size == dtype.itemsize:
            c, whole = check.guarded((m, n), dtype)
            matmul_kernel[(-(-m // bm) * -(-n // bn),)](a, b, c, m, n, k, *a.stride(), *b.stride(), BM=bm, BN=bn, BK=bk, GROUP=8, EVEN=even(size, m, n, k, *a.stride(), *b.stride()), num_warps=warps,
                                                        num_stages=stages)
            assert check.error(c, want) < bound and check.guards_hold(whole), (bm, bn, bk)
    assert check.error(ops.matmul(a, b), want) < bound


@pytest.mark.parametrize("size,dtype", [(2, torch.float16), (4, torch.float32)])
def test_what_tiles_of_few_rows_compute(size, dtype, monkeypatch, seed):
    torch.manual_seed(seed)
    for t in FEW:
        if t[0] == size:
            monkeypatch.setattr(product_pace, "by_few", lambda *given, t=t: (0.0, product_pace.Tile(*t[1:], 0.0, 0.0), 2))
            for m, k, n in ((36, 100, 20), (7, 130, 68), (9, 5, 8)):
                a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
                c, whole = check.guarded((m, n), dtype)
                product_few.product((a, b), c, programs=4)
                assert check.error(c, a.double() @ b.double()) < (2e-6 if size == 4 else 5e-3) and check.guards_hold(whole), t


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers_that_are_read_one_by_one_are_not_fetched_ahead(dtype):
    """In fp32: a thread that fetches four bytes ahead at a time takes many times as long. In 16 bits nothing less than four bytes can be."""
    def stages(m, k, n, **how):
        return tiles.tile_for(like(m, k, dtype=dtype), like(k, n, how.pop("turned", False), dtype), alone=True)["num_stages"]
    if dtype == torch.float32:
        assert stages(300, 1263, 310) == stages(64, 257, 65, turned=True) == 1
        assert stages(1280, 1263, 1280) == stages(1280, 1264, 1279) == stages(1280, 1263, 1280, turned=True) == 1 and stages(300, 1264, 310) > 1
    assert tiles.tile_for(like(1280, 63, dtype=dtype), like(63, 1280, dtype=dtype))["num_stages"] > 1  # the table's, for another kernel


def test_the_table_is_for_fp64_and_other_measured_gpus(monkeypatch):
    assert tiles.tile_for(like(40, 64), like(64, 40), alone=True)["BM"] <= 32
    assert tiles.tile_for(like(1280, 63, dtype=torch.float64), like(63, 1280, dtype=torch.float64), alone=True)["BM"] == 64
    measured = {"matmul": {"fp32": [[256, 128, 16, 1.0, 8, 3]]}}
    for kind, of_table in (("sm_89", True), ("sm_90", False)):
        tiles._is_paced.cache_clear()
        monkeypatch.setattr(tiles, "tuned_gpu", lambda: measured)
        monkeypatch.setattr(tiles, "gpu_kind", lambda kind=kind: kind)
        assert tiles._is_paced() is not of_table
    tiles._is_paced.cache_clear()


def test_steps_that_are_left_open_are_not_asked():
    """Of sizes that torch.compile leaves open tiles are the table's, and nothing is decided by a stride."""
    class Open:
        def __mod__(self, other):
            raise AssertionError("a step was looked at")
        __eq__ = __ne__ = __mul__ = __mod__
        __hash__ = None
    for a, b in ((Open(), 0), (0, Open())):
        x, y = like(1280, 63, offset=a), like(63, 1280, offset=b)
        assert tiles.tile_for(x, y, alone=True)["num_stages"] > 1
        assert even(4, Open(), 100) == 0b10_00


@pytest.mark.parametrize("size", [2, 4])
def test_more_work_takes_longer(size):
    """About how long a product takes grows with each of its sizes, with numbers read one by one, and with products."""
    whole = 16 // size
    for us in (lambda m, n, k, at=whole, count=1: product_pace.by_pointers(m, n, k, size, False, (at, at), 132, count)[0],
               lambda m, n, k, at=whole, count=1: product_pace.by_few(min(m, n), max(m, n), k, size, (at, at), 132)[0] * count):
        base = us(512, 768, 640)
        assert us(2048, 768, 640) > base and us(512, 4096, 640) > base and us(512, 768, 2560) > base and us(512, 768, 640, at=1) > base and us(512, 768, 640, count=8) > base
        assert us(16, 16, 16) < base


def test_what_lies_in_memory_is_waited_for():
    """Longer than for what the second cache holds; numbers of fp32 that few rows are multiplied by are fetched ahead then, where they can be."""
    for pace in (*product_pace.POINTERS.values(), product_pace.POINTERS_ACROSS, product_pace.FEW[2]):
        (near, busy), (far, same) = (pace.of_piece(pace.even[0], (4, 4), far) for far in (False, True))
        assert far > near and busy == same
    for k, read, ahead in ((512, (4, 4), False), (8192, (4, 4), True), (8192, (1, 4), False)):
        _, tile, _ = product_pace.by_few(16, 4096, k, 4, read, 132)
        assert (tile in product_pace.FEW[4].ahead) is ahead


def test_a_tile_is_no_larger_than_a_product():
    for size in (2, 4):
        for across in (False, True):
            _, t = product_pace.by_pointers(5, 9, 3, size, across, (1, 1), 132)
            assert t[:3] == (16, 16, 16)
    t = product_pace.Tile(64, 128, 32, 4, 3, 0.4, 0.8)
    assert t.clipped(1000, 1000, 1000) == t and t.clipped(20, 1000, 16) == (32, 128, 16, 4, 3, 0.2, 0.2)


@pytest.mark.parametrize("dtype,m,k,n,turned,way", [
    ("fp32", 2048, 2048, 2048, False, product_split), ("fp32", 420, 564, 852, False, product_few), ("fp32", 60, 116, 3172, False, None), ("fp32", 7344, 16, 3264, False, None), ("fp32", 51, 589, 3361, True, product_few),
    ("fp32", 16, 700, 16, False, product_few), ("fp32", 128, 12, 128, True, None), ("fp16", 4096, 4096, 4096, False, product_tma), ("fp16", 1192, 216, 88, False, None), ("fp16", 2047, 2045, 2049, False, product_tma),
    ("fp16", 8, 1023, 1023, False, product_few), ("fp16", 24, 184, 72, False, None), ("fp16", 1024, 4096, 1024, True, product_tma)])
def test_who_multiplies(a_gpu, dtype, m, k, n, turned, way):
    dtype = torch.float32 if dtype == "fp32" else torch.float16
    assert product_way._fastest(like(m, k, dtype=dtype), like(k, n, turned, dtype)) is way


def test_the_fastest_multiplies_alone(a_gpu, monkeypatch):
    """What nothing follows, if it has more rows and columns than a few."""
    asked = []
    monkeypatch.setattr(product_way, "_fastest", lambda a, b: asked.append(a.shape[0]))
    assert product_way.special(like(1192, 216), like(216, 88), alone=True) is None and asked == [1192]
    product_way.special(like(1192, 216), like(216, 88)), product_way.special(like(4, 4096), like(4096, 4096), alone=True), product_way.special(like(2048, 4096), like(4096, 3), alone=True)
    assert asked == [1192]


def test_a_copy_costs_time(a_gpu):
    assert product_tma.us(1000, 1000, 1000, 132, 2 * 10**6) > product_tma.us(1000, 1000, 1000, 132, 0) + 2
    assert product_split.us(4096, 4096, 4096, 132) > 8 * product_split.us(1024, 1024, 1024, 132) > 0 and math.isfinite(product_split.us(1 << 20, 1 << 20, 64, 132))
