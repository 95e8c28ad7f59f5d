"""Products by AMX's tiles, on any x86-64: in code that calls tiles in Python (`amx_machine.py`) where it would have instructions."""

import contextlib
import platform

import amx_machine
import pytest
import torch
import triton
import triton.language as tl

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="tiles are x86's")
GUARD = 7
INSTRUCTION = {torch.int8: "tdpbssd", torch.bfloat16: "tdpbf16ps", torch.float16: "tdpfp16ps"}


@triton.jit
def product_kernel(a_ptr, b_ptr, out_ptr, m, n, k, am, ak, bk, bn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr):
    rm, rn, rk = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=ACC)
    for start in range(0, k, BK):
        here = start + rk
        a = tl.load(a_ptr + rm[:, None] * am + here[None, :] * ak, mask=(rm[:, None] < m) & (here[None, :] < k), other=0)
        b = tl.load(b_ptr + here[:, None] * bk + rn[None, :] * bn, mask=(here[:, None] < k) & (rn[None, :] < n), other=0)
        acc = tl.dot(a, b, acc, out_dtype=ACC)
    tl.store(out_ptr + rm[:, None] * n + rn[None, :], acc, mask=(rm[:, None] < m) & (rn[None, :] < n))


@triton.jit
def computed_kernel(a_ptr, b_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :])
    b = tl.load(b_ptr + k[:, None] * N + n[None, :])
    c = tl.dot((a >> 1).to(tl.int8), (b ^ 3).to(tl.int8), out_dtype=tl.int32)
    tl.store(out_ptr + m[:, None] * N + n[None, :], c * 2 + n[None, :])


@contextlib.contextmanager
def compiled_here(*kernels):
    """What was compiled before is not known within it, and what is compiled within it not afterwards."""
    for kernel in kernels:
        kernel.device_caches.clear()
    yield
    for kernel in kernels:
        kernel.device_caches.clear()


@pytest.fixture
def amx(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with compiled_here(product_kernel, computed_kernel, masked_kernel):
        machine = amx_machine.install(monkeypatch)
        yield machine
    torch.set_num_threads(threads)
    assert not machine.wrong, machine.wrong[:3]


def operands(dtype, m: int, n: int, k: int, seed: int):
    make = torch.Generator().manual_seed(seed)
    if dtype == torch.int8:
        return (torch.randint(-128, 128, s, generator=make, dtype=dtype) for s in ((m, k), (k, n)))
    return (torch.randn(s, generator=make).to(dtype) for s in ((m, k), (k, n)))


def product(a, b, blocks, acc):
    """(the result, guard words behind it)."""
    (m, k), n = a.shape, b.shape[1]
    out = torch.full((m * n + 64,), GUARD, dtype=acc)
    bm, bn, bk = blocks
    product_kernel[(triton.cdiv(m, bm), triton.cdiv(n, bn))](a, b, out, m, n, k, *a.stride(), *b.stride(), BM=bm, BN=bn, BK=bk, ACC=tl.int32 if acc == torch.int32 else tl.float32)
    return out[:m * n].view(m, n), out[m * n:]


def right(a, b, blocks) -> bool:
    """Is the product of int8 exact, with nothing written behind it?"""
    out, guard = product(a, b, blocks, torch.int32)
    return torch.equal(out.double(), a.double() @ b.double()) and bool((guard == GUARD).all())


def right_of_computed(seed: int) -> bool:
    """The same where both factors are computed, and the result goes on."""
    m, n, k = 64, 32, 128
    a, b = operands(torch.int8, m, n, k, seed)
    out = torch.full((m * n + 64,), GUARD, dtype=torch.int32)
    computed_kernel[(1,)](a, b, out, M=m, N=n, K=k)
    want = (a >> 1).double() @ (b ^ 3).double() * 2 + torch.arange(n).double()
    return torch.equal(out[:m * n].view(m, n).double(), want) and bool((out[m * n:] == GUARD).all())


def by_columns(x):
    return x.t().contiguous().t()


SIZES = [(32, 32, 64), (64, 64, 128), (61, 33, 64), (17, 100, 131), (40, 64, 50), (5, 3, 1), (64, 48, 259)]


@pytest.mark.parametrize("layout", ["rows", "a by columns", "b by columns", "both", "a inside another"])
@pytest.mark.parametrize("m,n,k", SIZES)
@pytest.mark.parametrize("dtype", INSTRUCTION, ids=["int8", "bf16", "fp16"])
def test_products(dtype, m, n, k, layout, amx, seed):
    a, b = operands(dtype, m, n, k, seed)
    a = by_columns(a) if layout in ("a by columns", "both") else a
    b = by_columns(b) if layout in ("b by columns", "both") else b
    if layout == "a inside another":
        wide = torch.full((m + 1, k + 3), 99, dtype=torch.int8).to(dtype)
        wide[1:, 3:] = a
        a = wide[1:, 3:]
    acc = torch.int32 if dtype == torch.int8 else torch.float32
    out, guard = product(a, b, (32, 32, 64), acc)
    want = a.double() @ b.double()
    assert (guard == GUARD).all() and amx.counts[INSTRUCTION[dtype]] > 0
    if dtype == torch.int8:
        assert torch.equal(out.double(), want)
    else:
        assert ((out.double() - want).abs() / (a.double().abs() @ b.double().abs() + 1e-30)).max() < 1e-6


@pytest.mark.parametrize("blocks", [(16, 16, 64), (16, 32, 32), (64, 16, 128), (128, 64, 64), (32, 128, 32)])
def test_tiles_of_other_blocks(blocks, amx, seed):
    assert right(*operands(torch.int8, 70, 90, 160, seed), blocks) and amx.counts["tdpbssd"] > 0


@pytest.mark.parametrize("k", [249, 250, 251, 252, 259])
@pytest.mark.parametrize("turned", [False, True], ids=["b by rows", "b by columns"])
def test_several_pieces_of_k_at_once(turned, k, amx, seed):
    a, b = operands(torch.int8, 130, 140, k, seed)
    assert right(a, by_columns(b) if turned else b, (128, 128, 64)) and amx.counts["tdpbssd"] > 0


@triton.jit
def masked_kernel(a_ptr, b_ptr, out_ptr, m, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr):
    rm, rn, rk = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), ACC)
    for start in range(0, k, BK):
        here = start + rk
        a = tl.load(a_ptr + rm[:, None] + here[None, :] * BM, mask=rm[:, None] < m, other=1)
        acc = tl.dot(a, tl.load(b_ptr + here[:, None] * BN + rn[None, :]), acc, out_dtype=ACC)
    tl.store(out_ptr + rm[:, None] * BN + rn[None, :], acc)


@pytest.mark.parametrize("rows", [16, 32, 64])
@pytest.mark.parametrize("dtype", INSTRUCTION, ids=["int8", "bf16", "fp16"])
def test_columns_shorter_than_a_vector_are_packed(dtype, rows, amx, seed):
    """A that lies by columns and is not 0 where it is masked: it is not turned, and its columns have fewer numbers than a vector."""
    n, k, m = 32, 256, rows - 3
    a, b = operands(dtype, rows, n, k, seed)
    acc = torch.int32 if dtype == torch.int8 else torch.float32
    out = torch.full((rows * n + 64,), GUARD, dtype=acc)
    masked_kernel[(1,)](by_columns(a), b, out, m, k, BM=rows, BN=n, BK=128, ACC=tl.int32 if dtype == torch.int8 else tl.float32)
    want = torch.cat([a[:m].double(), torch.ones(rows - m, k).double()])
    error = (out[:rows * n].view(rows, n).double() - want @ b.double()).abs() / (want.abs() @ b.double().abs() + 1e-30)
    assert error.max() < 1e-6 and (out[rows * n:] == GUARD).all() and amx.counts[INSTRUCTION[dtype]] > 0


@pytest.mark.parametrize("blocks", [(8, 16, 64), (16, 8, 64), (16, 16, 16)])
def test_what_no_tile_fits(blocks, amx, seed):
    assert right(*operands(torch.int8, 33, 20, 70, seed), blocks) and amx.counts["tdpbssd"] == 0


def test_the_widest_sums(amx):
    a, b = torch.full((16, 512), -128, dtype=torch.int8), torch.full((512, 16), -128, dtype=torch.int8)
    out, _ = product(a, b, (16, 16, 64), torch.int32)
    assert (out == 512 * 128 * 128).all()


def test_operands_that_are_computed(amx, seed):
    assert right_of_computed(seed) and amx.counts["tdpbssd"] > 0


def test_small_halves_are_not_zeros(amx, seed):
    """Numbers below the normal ones of fp16 are normal in fp32, in which they are multiplied: unlike bf16's they count."""
    a, b = ((x * 2.0**-16).half() for x in operands(torch.float32, 32, 32, 64, seed))
    assert ((a != 0) & (a.abs() < 2.0**-14)).any()
    out, _ = product(a, b.float().mul(2.0**16).half(), (32, 32, 64), torch.float32)
    want = a.double() @ b.float().mul(2.0**16).half().double()
    assert ((out.double() - want).abs() / (a.double().abs() @ b.double().abs() * 2.0**16)).max() < 1e-6 and amx.counts["tdpfp16ps"] > 0


def test_the_machine_finds_what_is_forbidden(monkeypatch):
    machine = amx_machine.Machine()
    with pytest.raises(AssertionError, match="not configured"):
        machine.tilezero(0)
    machine.shapes = [(16, 64)] * 4 + [(16, 32)] * 2 + [(16, 64)] * 2
    for tile in (0, 4, 6):
        machine.tilezero(tile)
    with pytest.raises(AssertionError, match="go together"):
        machine.tdpbssd(0, 4, 6)
