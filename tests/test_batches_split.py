"""Batches of fp32 products as products of three parts of bf16: the kernels on the CPU whatever broadcasts and however it lies, what is taken, their code for a GPU, and both on one."""

import pytest
import torch
from conftest import unavailable
from hypothesis import given, settings
from test_batches import SHAPES, laid
from test_batches_tma import factors
from test_product_split import BEYOND
from test_product_tma import without_memory
from torch._library.triton import set_wrap_triton_enabled
from triport import backends, ops
from triport.backends import active
from triport.bench import check
from triport.ops import batches, batches_split, product_split
from triton.backends.compiler import GPUTarget

gpu = pytest.mark.skipif(bool(unavailable("triton-gpu")), reason=str(unavailable("triton-gpu")))
TILE = (32, 64, 16, 4, 2)


def prepared(a: torch.Tensor, b: torch.Tensor):
    shape = batches.shape_of_product("matmul", a, b)
    return batches_split.prepared(batches.walked(batches_split.in_lines(a), batches_split.in_lines(b), shape[:-2])), shape


def compare(a: torch.Tensor, b: torch.Tensor) -> batches_split.Split:
    """It is right, and nothing else is written."""
    split, shape = prepared(a, b)
    c, whole = check.guarded(shape, a.dtype)
    batches_split.product(split, c, tile=TILE, programs=3)
    most = (a.double().abs() @ b.double().abs()).norm()  # of few terms a sum may be far smaller than what was added up
    assert check.guards_hold(whole) and (c - a.double() @ b.double()).norm() < 3e-7 * most
    return split


@pytest.mark.parametrize("m,k,n", [(33, 40, 72), (40, 64, 33), (100, 21, 70), (9, 16, 136)])
@pytest.mark.parametrize("hows", [("straight", "straight"), ("transposed", "straight"), ("straight", "transposed"), ("transposed", "transposed"), ("heads", "heads")])
def test_any_batch(hows, m, k, n, seed):
    torch.manual_seed(seed)
    for one, other in SHAPES[:-2]:
        split = compare(laid((*one, m, k), hows[0], torch.float32), laid((*other, k, n), hows[1], torch.float32))
        assert not split.flags.any()


@settings(max_examples=25, deadline=None)
@given(factors(torch.float32))
def test_any_size(given):
    compare(*given)


@pytest.mark.parametrize("value", BEYOND.values(), ids=BEYOND)
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("how", ["straight", "transposed"])
def test_what_parts_do_not_hold_is_multiplied_as_it_is(which, value, how, seed):
    """In the last number of the last matrix: of the whole batch."""
    torch.manual_seed(seed)
    given = [laid((2, 3, 21, 40), "heads", torch.float32), laid((1, 3, 40, 33), how, torch.float32)]
    given[which][..., -1, -1] = value
    split, shape = prepared(*given)
    assert split.flags.any()
    c, whole = check.guarded(shape, torch.float32)
    batches_split.product(split, c, tile=TILE, programs=2)
    torch.testing.assert_close(c, given[0] @ given[1], rtol=1e-4, atol=1e-5 if abs(value) < 1 else 1e-6 * abs(value) if abs(value) < 1e37 else 0, equal_nan=True)
    assert check.guards_hold(whole)


@pytest.mark.parametrize("m,k,n", [(1, 2, 1), (1, 5, 7), (6, 1, 1), (1, 1, 9), (1, 1, 1), (5, 6, 7)])
@pytest.mark.parametrize("how", ["straight", "transposed", "last", "every other"])
def test_lines_of_one_number_and_batches_that_lie_innermost(m, k, n, how, seed):
    torch.manual_seed(seed)
    compare(laid((2, m, k), how, torch.float32), laid((2, k, n), "last", torch.float32))


def test_a_factor_that_goes_with_many_is_split_once(seed):
    torch.manual_seed(seed)
    for one, other, parts in (((4, 5), (1, 5), 5), ((4, 5), (4, 1), 4), ((4, 5), (1, 1), 1), ((4, 5), (4, 5), 20)):
        assert compare(torch.randn(*one, 16, 24), torch.randn(*other, 24, 40)).b.matrices == parts


def test_without_memory_there_is_no_split(monkeypatch, seed):
    without_memory(monkeypatch, batches_split)
    assert prepared(torch.randn(2, 16, 24), torch.randn(2, 24, 40))[0] is None


@pytest.mark.parametrize("m,n,k,count,taken", [(1024, 1024, 64, 96, True), (300, 300, 300, 100, True), (197, 197, 64, 64, True), (512, 512, 512, 8, True), (1024, 64, 1024, 96, False),
                                               (256, 256, 64, 24, False), (512, 512, 2048, 2, False), (1024, 1024, 64, 1, False)])
def test_what_pays(m, n, k, count, taken):
    """By few rows or columns a number that is split serves too few products; so do few products altogether."""
    assert batches_split.pays(m, n, k, count) == taken


@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False), (True, True)], ids=str)
@pytest.mark.parametrize("large", [False, True])
def test_code_for_a_gpu(large, turned, monkeypatch, tmp_path):
    """The Tensor Memory Accelerator fetches, tensor cores multiply, and no kernel is too large for the GPU."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    tile = product_split.LARGE if large else product_split.SMALL
    met = []
    monkeypatch.setattr(batches_split, "launch", lambda kernel, grid, *args, **consts: met.append((kernel, args, consts)))
    a, b = (torch.empty(4, 512, 512).mT if t else torch.empty(4, 512, 512) for t in turned)
    batches_split.product(prepared(a, b)[0], torch.empty(4, 512, 512), tile=tile, programs=132)
    with set_wrap_triton_enabled(False), active.compiling_for(GPUTarget("cuda", 90, 32)):
        kernel, args, consts = met[-1]
        compiled = kernel.warmup(*args, grid=(1,), **consts)
    assert "cp.async.bulk.tensor" in compiled.asm["ptx"] and "wgmma.mma_async" in compiled.asm["ptx"] and compiled.metadata.shared <= 227 << 10


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("shapes", [((8, 512, 512), (8, 512, 512)), ((3, 4, 1001, 512), (4, 512, 1001)), ((2, 1, 1024, 300), (1, 6, 300, 513)), ((40, 520, 64), (40, 64, 1030))], ids=str)
@pytest.mark.parametrize("hows", [("straight", "straight"), ("straight", "transposed"), ("transposed", "straight"), ("heads", "heads"), ("last", "last")], ids=str)
def test_ops_on_a_gpu(hows, shapes, seed):
    """By parts, the third time by native code, and as it is where a number is beyond them."""
    torch.manual_seed(seed)
    a, b = (laid(shape, how, torch.float32).cuda() for shape, how in zip(shapes, hows))
    if not product_split.suits(a.device.index):
        pytest.skip("a GPU of compute capability 9.0 (Hopper)")
    with set_wrap_triton_enabled(False):
        assert batches_split.way(a, b) is not None
    with backends.use("triton-gpu"):
        for _ in range(3):
            assert check.error(ops.matmul(a, b).cpu(), (a.double() @ b.double()).cpu()) < 3e-7
            a.normal_()
        a[..., -1, -1] = 3e38
        assert torch.equal(ops.matmul(a, b).isfinite().cpu(), (a.double() @ b.double()).float().isfinite().cpu())
