"""Batches of products by TMA: the kernel on the CPU whatever broadcasts and however it lies, what is taken, and its code for a GPU. `test_batches.py` runs it on one."""

import math
from contextlib import contextmanager

import pytest
import torch
import triton
from hypothesis import given, settings, strategies as st
from test_batches import SHAPES, laid
from test_product_tma import without_memory
from torch._library.triton import set_wrap_triton_enabled
from triport.backends import active
from triport.bench import check
from triport.ops import batches, batches_tma, product_tma
from triton.backends.compiler import GPUTarget

TILE = (32, 64, 16, 4, 2, 1)


@contextmanager
def taking():
    """Every batch of 16 bits is taken, on the CPU."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(product_tma, "described_here", lambda a, *sizes: True)
        for module, name in ((batches_tma, "LEAST"), (batches_tma, "NARROW"), (product_tma, "SERVES")):
            monkeypatch.setattr(module, name, 0)
        yield


@pytest.fixture
def taken():
    with taking():
        yield


def way(a: torch.Tensor, b: torch.Tensor):
    """(what `batches_tma.way` gives, matrices of the batch, outer and inner)."""
    batch = batches.walked(a, b, batches.shape_of_product("matmul", a, b)[:-2])
    count = batch.count // batch.inner, batch.inner
    return batches_tma.way(*batch.first(), count, batch.steps), count


def compare(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Is it taken? It is right then, and nothing else is written."""
    found, count = way(a, b)
    if found is None:
        return False
    c, whole = check.guarded(batches.shape_of_product("matmul", a, b), a.dtype)
    batches_tma.product(*found, c, count, tile=TILE, programs=3)
    assert check.guards_hold(whole) and check.error(c, a.double() @ b.double()) < (1e-3 if a.dtype is torch.float16 else 8e-3)
    return True


@pytest.mark.parametrize("m,k,n", [(33, 40, 72), (40, 64, 33), (100, 21, 70), (9, 16, 136)])
@pytest.mark.parametrize("hows", [("straight", "straight"), ("transposed", "straight"), ("straight", "transposed"), ("transposed", "transposed"), ("heads", "heads")])
def test_any_batch(hows, m, k, n, taken, seed):
    """What lies apart, as heads do, is taken where it can be described."""
    torch.manual_seed(seed)
    for one, other in SHAPES[:-2]:
        a, b = laid((*one, m, k), hows[0], torch.float16), laid((*other, k, n), hows[1], torch.bfloat16 if k == 16 else torch.float16)
        assert compare(a.to(b.dtype), b) or hows[0] == "heads" and (k % 8 or n % 8), (one, other)


@st.composite
def factors(draw, dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Two batches that broadcast, of any sizes and however they lie."""
    lead = draw(st.lists(st.tuples(st.integers(1, 3), st.sampled_from(("both", "a", "b"))), max_size=3))
    m, k, n = draw(st.integers(1, 70)), draw(st.integers(1, 50)), draw(st.integers(1, 140))
    how, other_how = draw(st.sampled_from(("straight", "transposed", "gaps", "heads", "last", "every other"))), draw(st.sampled_from(("straight", "transposed", "heads", "last")))
    torch.manual_seed(draw(st.integers(0, 2**31)))
    one, other = ([size if who in (mine, "both") else 1 for size, who in lead] for mine in "ab")
    return laid((*one, m, k), how, dtype), laid((*other, k, n), other_how, dtype)


@settings(max_examples=25, deadline=None)
@given(factors(torch.float16))
def test_any_size(given):
    with taking():
        compare(*given)


def launched(monkeypatch) -> list[str]:
    met = []
    for module in (batches_tma, product_tma):
        real = module.launch
        monkeypatch.setattr(module, "launch", lambda kernel, *args, real=real, **consts: (met.append(kernel.__name__), real(kernel, *args, **consts)))
    return met


@pytest.mark.parametrize("k,n,copies", [(24, 72, 0), (21, 72, 1), (24, 70, 1), (21, 70, 2)])
def test_lines_that_begin_anywhere_are_copied_by_one_launch(k, n, copies, taken, seed, monkeypatch):
    """All matrices' at once; what one matrix is for all is copied once."""
    torch.manual_seed(seed)
    met = launched(monkeypatch)
    for one, other in (((2, 3), (2, 3)), ((4,), (1,)), ((2, 1), (1, 3))):
        met.clear()
        assert compare(laid((*one, 33, k), "straight", torch.float16), laid((*other, k, n), "straight", torch.float16))
        assert met == [[], ["copy_lines_kernel"], ["copy_both_kernel"]][copies] + ["batched_tma_kernel"]


def test_heads_are_read_where_they_lie(taken, monkeypatch):
    met = launched(monkeypatch)
    q, k = torch.randn(2, 33, 3, 16).half().transpose(1, 2), torch.randn(2, 40, 3, 16).half().transpose(1, 2)
    (a, b), count = way(q, k.mT)
    assert count == (2, 3) and (a.outer, a.inner, a.line, a.turned) == (33 * 48, 16, 48, False) and (b.outer, b.inner, b.line, b.turned) == (40 * 48, 16, 48, True)
    assert compare(q, k.mT) and met == ["batched_tma_kernel"]


def test_what_cannot_be_copied_at_once(taken):
    """Heads whose lines begin anywhere: their matrices do not lie behind one another. Nor is anything taken that has no memory for a copy."""
    q = torch.randn(2, 33, 3, 21).half().transpose(1, 2)
    assert way(q, torch.randn(2, 3, 21, 40).half())[0] is None
    with pytest.MonkeyPatch.context() as monkeypatch:
        without_memory(monkeypatch, product_tma)
        assert way(torch.randn(2, 33, 21).half(), torch.randn(2, 21, 40).half())[0] is None


@pytest.mark.parametrize("count,m,k,n,is_taken", [(96, 1024, 64, 1024, True), (24, 128, 64, 128, False), (24, 256, 64, 256, True), (512, 32, 64, 1024, False), (512, 1024, 64, 32, False), (512, 33, 64, 1024, True),
                                                  (64, 1001, 1001, 1001, True), (64, 1024, 1001, 100, False), (64, 1024, 1000, 100, True), (64, 1024, 1001, 104, False)])
def test_what_is_taken(count, m, k, n, is_taken, monkeypatch):
    """Not few rows, nor little work, nor what would be copied to serve few products."""
    monkeypatch.setattr(product_tma, "_has_tma", lambda device: True)
    monkeypatch.setattr(product_tma, "copied", lambda matrices: [x.new_empty(x.shape[0], -(-x.shape[1] // 8) * 8) for x in matrices])
    a, b = (torch.empty(count, *shape, dtype=torch.float16, device="meta") for shape in ((m, k), (k, n)))
    with set_wrap_triton_enabled(False):
        assert not batches_tma.way(a[0], b[0], (1, count), ((0, m * k), (0, k * n))), "not on the CPU"
        monkeypatch.setattr(product_tma, "described_here", lambda a, *sizes: True)
        assert (batches_tma.way(a[0], b[0], (1, count), ((0, m * k), (0, k * n))) is not None) == is_taken


@pytest.mark.parametrize("count,m,k,n,tile", [(96, 1024, 64, 1024, (64, 128)), (16, 1024, 1024, 1024, (128, 256)), (8, 512, 512, 512, (128, 128)), (64, 64, 1024, 64, (64, 64)), (16, 2048, 2048, 128, (128, 128))])
def test_tiles(count, m, k, n, tile):
    """As measured on an H200 (docs/performance/gpu-products.md)."""
    assert batches_tma.tile_for(m, n, k, count, 132)[:2] == tile


def test_tiles_fit_a_multiprocessor():
    """As many programs of each as it is to have."""
    for (bm, bn, bk, _, stages, together), *_ in batches_tma.TILES:
        assert together * (2 * (bm + bn) * bk * stages + (2 * bm * bn if together > 1 else 0)) < 227 << 10


@pytest.mark.parametrize("tile", [t for t, *_ in batches_tma.TILES], ids=lambda t: f"{t[0]}x{t[1]}")
@pytest.mark.parametrize("deep,stored", [(False, True), (True, False)])
def test_code_for_a_gpu(tile, deep, stored):
    """Operands come by TMA, results leave so where they can, tensor cores multiply, nothing is spilled."""
    from triport.tools.inspector import tools

    bm, bn, bk, warps, stages, _ = tile
    kernel, lead = batches_tma.batched_tma_kernel, "1, 1" if deep else "1"
    signature = {"c_ptr": "*fp16", "c": f"tensordesc<fp16[1, {bm}, {bn}]>" if stored else "*fp16", "a": f"tensordesc<fp16[{lead}, {bm}, {bk}]>", "b": f"tensordesc<fp16[{lead}, {bn}, {bk}]>", "count": "i32",
                 "inner": "i32", "a_outer": "i32", "b_outer": "i32", "m": "i32", "n": "i32", "k": "i32"}
    consts = {"A_TURNED": False, "B_TURNED": True, "DEEP": deep, "STORED": stored, "BM": bm, "BN": bn, "BK": bk, "GROUP": 8, "a_inner": 1, "b_inner": 1}
    names = list(kernel.arg_names)
    source = triton.compiler.ASTSource(fn=kernel, signature={n: signature.get(n, "constexpr") for n in names}, constexprs=consts,
                                       attrs={(names.index(n),): [["tt.divisibility", 16]] for n in ("c_ptr", "m", "n", "k")})
    target = GPUTarget("cuda", 90, 32)
    with active.compiling_for(target):
        made = triton.compile(source, target=target, options={"num_warps": warps, "num_stages": stages})
    text, usage = tools.sass(made.asm["cubin"]), tools.cubin_usage(made.asm["cubin"], made.metadata.name)
    assert "UTMALDG" in text and "HGMMA" in text and ("UTMASTG" in text) == stored
    assert usage["local memory, bytes"] == 0
    assert made.metadata.shared * tile[5] <= 227 << 10


def test_lines_of_all_matrices():
    """One below the other where steps lead from one to the next."""
    x = torch.randn(2, 3, 5, 7)
    every = batches_tma._lines_of_all(x[0, 0], (2, 3), (105, 35))
    assert torch.equal(every, x.view(30, 7))
    assert torch.equal(batches_tma._lines_of_all(x[0, 0].T, (2, 3), (105, 35)), x.view(30, 7).T)
    assert batches_tma._lines_of_all(x[0, 0], (2, 3), (0, 35)).shape == (15, 7) and batches_tma._lines_of_all(x[0, 0], (2, 3), (0, 0)).shape == (5, 7)
    assert batches_tma._lines_of_all(x[0, 0], (2, 3), (105, 36)) is None and batches_tma._lines_of_all(x[0, 0], (2, 3), (106, 35)) is None
    assert math.prod(batches_tma._lines_of_all(x[0, 0], (2, 3), (35, 0)).shape) == 70
