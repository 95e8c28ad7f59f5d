"""tl.dot over types, shapes, batches and precisions, and tl.dot_scaled over all formats, against float64."""

import re

import pytest
import torch
import triton
import triton.language as tl
from triport.bench import check
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from values import FP8, tl_type, torch_type


@triton.jit
def dot_kernel(a_ptr, b_ptr, c_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, TYPE: tl.constexpr,
               OUT: tl.constexpr, PRECISION: tl.constexpr, WITH_C: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :]).to(TYPE, bitcast=True)
    b = tl.load(b_ptr + k[:, None] * N + n[None, :]).to(TYPE, bitcast=True)
    at = m[:, None] * N + n[None, :]
    if WITH_C:
        c = tl.dot(a, b, tl.load(c_ptr + at), out_dtype=OUT, input_precision=PRECISION)
    else:
        c = tl.dot(a, b, out_dtype=OUT, input_precision=PRECISION)
    tl.store(out_ptr + at, c)


SHAPES = [(16, 16, 16), (64, 32, 16), (1, 16, 32), (128, 64, 32), (2, 4, 8), (32, 128, 128)]


def operand(name, shape, generator):
    """(what the kernel loads, exact values)."""
    if name == "int8":
        x = torch.randint(-128, 128, shape, generator=generator, dtype=torch.int8)
        return x, x.double()
    dtype = FP8[name] if name in FP8 else torch_type(name)
    x = torch.randn(shape, generator=generator).to(dtype)
    return (x.view(torch.int8) if name in FP8 else x), x.double().clone()


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "int8", "float8e5", "float8e4nv", "float8e4b8",
                                  "float8e5b16"])
@pytest.mark.parametrize("m,n,k", SHAPES)
def test_dot(name, m, n, k, seed):
    g = torch.Generator().manual_seed(seed)
    (a, wide_a), (b, wide_b) = operand(name, (m, k), g), operand(name, (k, n), g)
    outs = {"int8": ["int32"], "float64": ["float64"], "float16": ["float32", "float16"]}.get(name, ["float32"])
    for to in outs:
        for precision in ("ieee", "tf32", "tf32x3") if name == "float32" else ("ieee",):
            for with_c in (False, True):
                c = torch.randint(-9, 10, (m, n), generator=g).to(torch_type(to))
                out = torch.empty(m, n, dtype=torch_type(to))
                dot_kernel[(1,)](a, b, c, out, m, n, k, tl_type(name), tl_type(to), precision, with_c)
                want = wide_a @ wide_b + (c.double() if with_c else 0)
                if to == "int32":
                    assert torch.equal(out.double(), want)
                else:
                    # the rounding of the result, and of k sums in f32
                    allowed = {"float16": 2e-3, "float32": 2e-6, "float64": 1e-14}[to]
                    assert check.error(out, want) < allowed, (to, precision, with_c)


@triton.jit
def batched_kernel(a_ptr, b_ptr, out_ptr, B: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i = tl.arange(0, B)[:, None, None]
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + i * M * K + m[None, :, None] * K + k[None, None, :])
    b = tl.load(b_ptr + i * K * N + k[None, :, None] * N + n[None, None, :])
    tl.store(out_ptr + i * M * N + m[None, :, None] * N + n[None, None, :], tl.dot(a, b))


@pytest.mark.parametrize("name", ["float16", "float32", "int8"])
@pytest.mark.parametrize("batch,m,n,k", [(4, 32, 64, 16), (1, 16, 16, 16), (8, 2, 16, 4)])
def test_batched_dot(name, batch, m, n, k, seed):
    g = torch.Generator().manual_seed(seed)
    (a, wide_a), (b, wide_b) = operand(name, (batch, m, k), g), operand(name, (batch, k, n), g)
    out = torch.empty(batch, m, n, dtype=torch.int32 if name == "int8" else torch.float32)
    batched_kernel[(1,)](a, b, out, batch, m, n, k)
    assert check.error(out, wide_a @ wide_b) < 2e-6


@triton.jit
def scaled_kernel(a_ptr, sa_ptr, b_ptr, sb_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, A: tl.constexpr,
                  B: tl.constexpr, A_PACK: tl.constexpr, B_PACK: tl.constexpr, HAS_A: tl.constexpr, HAS_B: tl.constexpr):
    m, n, g = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K // 32)
    ka, kb = tl.arange(0, K // A_PACK), tl.arange(0, K // B_PACK)
    a = tl.load(a_ptr + m[:, None] * (K // A_PACK) + ka[None, :])
    b = tl.load(b_ptr + kb[:, None] * N + n[None, :])
    sa = None
    if HAS_A:
        sa = tl.load(sa_ptr + m[:, None] * (K // 32) + g[None, :])
    sb = None
    if HAS_B:
        sb = tl.load(sb_ptr + n[:, None] * (K // 32) + g[None, :])
    tl.store(out_ptr + m[:, None] * N + n[None, :], tl.dot_scaled(a, sa, A, b, sb, B))


FP4 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "bf16": torch.bfloat16, "fp16": torch.float16}


def packed(rows, columns, form, axis, g):
    if form == "e2m1":
        v = torch.randint(0, 16, (rows, columns), generator=g)
        low, high = (v[:, ::2], v[:, 1::2]) if axis else (v[::2], v[1::2])
        return (low | high << 4).to(torch.uint8).contiguous(), FP4[v]
    x = torch.randn(rows, columns, generator=g).to(FORMATS[form])
    return (x.view(torch.uint8) if form[0] == "e" else x), x.double()


@pytest.mark.parametrize("a", ["e2m1", *FORMATS])
@pytest.mark.parametrize("b", ["e2m1", *FORMATS])
@pytest.mark.parametrize("scales", [(True, True), (True, False), (False, True)])
def test_dot_scaled(a, b, scales, seed):
    g = torch.Generator().manual_seed(seed)
    m, n, k = 32, 16, 128
    (x, wide_x), (y, wide_y) = packed(m, k, a, 1, g), packed(k, n, b, 0, g)
    sx = torch.randint(118, 136, (m, k // 32), generator=g, dtype=torch.uint8)
    sy = torch.randint(118, 136, (n, k // 32), generator=g, dtype=torch.uint8)
    out = torch.empty(m, n)
    scaled_kernel[(1,)](x, sx, y, sy, out, m, n, k, a, b, 1 + (a == "e2m1"), 1 + (b == "e2m1"), *scales)
    if scales[0]:
        wide_x = wide_x * (2.0**(sx.double() - 127)).repeat_interleave(32, 1)
    if scales[1]:
        wide_y = wide_y * (2.0**(sy.double() - 127)).repeat_interleave(32, 1).t()
    assert check.error(out, wide_x @ wide_y) < 2e-6


@triton.jit
def tile_kernel(a_ptr, b_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    c = tl.dot(tl.load(a_ptr + m[:, None] * K + k[None, :]), tl.load(b_ptr + k[:, None] * N + n[None, :]))
    tl.store(out_ptr + m[:, None] * N + n[None, :], c)


def instructions(llir: str) -> int:
    """The instructions in LLVM IR text: what LLVM's code generator is given, which is what compilation takes."""
    return sum(line.startswith("  ") for line in llir.split("\n"))


@pytest.mark.parametrize("target", ["native", "x86-64-v2", "x86-64-v3", "sapphirerapids", "neoverse-v2", "spacemit-x60"])
def test_code_does_not_grow_with_the_tile(target):
    """Tiles made for a GPU, and larger ones, are loops over the same micro-kernels: some 700 instructions at most, of 3,000 a second or so, and 300 more where a strip of rows that puts B in its place
    has one of its own."""
    few, many = [], []
    for m, n, k in [(64, 64, 64), (128, 256, 64), (256, 256, 32), (256, 256, 256), (512, 512, 512)]:
        source = ASTSource(fn=tile_kernel, signature={**{p: "*fp32" for p in ("a_ptr", "b_ptr", "out_ptr")}, **{c: "constexpr" for c in "MNK"}},
                           constexprs={(3,): m, (4,): n, (5,): k})
        (few if k <= 64 else many).append(instructions(triton.compile(source, target=GPUTarget("cpu", target, 0)).asm["llir"]))
    assert max(many) < 1000 and all(max(counts) < 1.5 * min(counts) for counts in (few, many)), (few, many)
    assert max(few) < 700 and max(many) < 2 * min(few), (few, many)


@pytest.mark.parametrize("k,inside", [(32, "panels"), (64, "panels"), (128, "rows")])
def test_results_of_few_terms_are_written_row_by_row(k, inside):
    """Panels go by a strip of rows then, where accumulators end in registers; of more terms it is strips that go by a panel. In fp16, of which no strip puts B there first."""
    source = ASTSource(fn=tile_kernel, signature={**{p: "*fp16" for p in ("a_ptr", "b_ptr")}, "out_ptr": "*fp32", **{c: "constexpr" for c in "MNK"}},
                       constexprs={(3,): 64, (4,): 128, (5,): k})
    begun = re.findall(r"^(rows|panels)[0-9.]*\S*:", triton.compile(source, target=GPUTarget("cpu", "x86-64-v4", 0)).asm["llir"], re.M)
    assert set(begun) == {inside}, begun  # the outer loop begins with the kernel, and has no block in front of it


@pytest.mark.parametrize("m,n,k", [(64, 64, 64), (128, 256, 64), (256, 256, 32), (256, 256, 256)])
def test_gpu_sized_tiles(m, n, k, seed):
    g = torch.Generator().manual_seed(seed)
    a, b, out = torch.randn(m, k, generator=g), torch.randn(k, n, generator=g), torch.empty(m, n)
    tile_kernel[(1,)](a, b, out, m, n, k)
    assert check.error(out, a.double() @ b.double()) < 2e-6


@triton.jit
def batched_scaled_kernel(a_ptr, sa_ptr, b_ptr, sb_ptr, out_ptr, B: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
                          K: tl.constexpr):
    i = tl.arange(0, B)[:, None, None]
    m, n, g, k, half = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K // 32), tl.arange(0, K), tl.arange(0, K // 2)
    a = tl.load(a_ptr + i * (M * K // 2) + m[None, :, None] * (K // 2) + half[None, None, :])
    b = tl.load(b_ptr + i * K * N + k[None, :, None] * N + n[None, None, :])
    sa = tl.load(sa_ptr + i * (M * K // 32) + m[None, :, None] * (K // 32) + g[None, None, :])
    sb = tl.load(sb_ptr + i * (N * K // 32) + n[None, :, None] * (K // 32) + g[None, None, :])
    c = tl.dot_scaled(a, sa, "e2m1", b, sb, "e4m3")
    tl.store(out_ptr + i * M * N + m[None, :, None] * N + n[None, None, :], c)


@pytest.mark.skipif(triton.__version__ < "3.7", reason="Triton 3.6 takes scales of matrices only")
def test_batched_dot_scaled(seed):
    g = torch.Generator().manual_seed(seed)
    count, m, n, k = 4, 16, 16, 64
    parts = [(packed(m, k, "e2m1", 1, g), packed(k, n, "e4m3", 0, g)) for _ in range(count)]
    a, wide_a = (torch.stack(t) for t in zip(*[x for x, _ in parts]))
    b, wide_b = (torch.stack(t) for t in zip(*[y for _, y in parts]))
    sa = torch.randint(120, 134, (count, m, k // 32), generator=g, dtype=torch.uint8)
    sb = torch.randint(120, 134, (count, n, k // 32), generator=g, dtype=torch.uint8)
    out = torch.empty(count, m, n)
    batched_scaled_kernel[(1,)](a, sa, b, sb, out, count, m, n, k)
    wide_a = wide_a * (2.0**(sa.double() - 127)).repeat_interleave(32, 2)
    wide_b = wide_b * (2.0**(sb.double() - 127)).repeat_interleave(32, 2).transpose(1, 2)
    assert check.error(out, wide_a @ wide_b) < 2e-6


@triton.jit
def edge_kernel(a_ptr, b_ptr, c_ptr, out_ptr, m, n, ka, kb, sam, sak, sbk, sbn, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
                OUT: tl.constexpr, TRANS: tl.constexpr):
    rows, cols, ks = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + rows[:, None] * sam + ks[None, :] * sak, mask=(rows[:, None] < m) & (ks[None, :] < ka), other=0)
    if TRANS:
        b = tl.trans(tl.load(b_ptr + cols[:, None] * sbn + ks[None, :] * sbk, mask=(ks[None, :] < kb) & (cols[:, None] < n), other=0))
    else:
        b = tl.load(b_ptr + ks[:, None] * sbk + cols[None, :] * sbn, mask=(ks[:, None] < kb) & (cols[None, :] < n), other=0)
    at = rows[:, None] * N + cols[None, :]
    tl.store(out_ptr + at, tl.dot(a, b, tl.load(c_ptr + at), out_dtype=OUT, input_precision="ieee"))


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "float64", "int8"])
@pytest.mark.parametrize("odd", [None, float("inf"), float("nan")])
@pytest.mark.parametrize("turned_a,turned_b,trans", [(False, False, False), (False, True, False), (True, False, False), (True, True, True)])
def test_edges_are_as_if_computed(name, odd, turned_a, turned_b, trans, seed):
    """What masks leave out counts as 0: 0 x inf and 0 x NaN too, which an edge tile that skips zeros must not lose."""
    g = torch.Generator().manual_seed(seed)
    M, N, K = 32, 128, 64
    to = "int32" if name == "int8" else "float64" if name == "float64" else "float32"
    for m, n, ka, kb in [(32, 128, 64, 64), (17, 33, 31, 31), (1, 1, 1, 1), (0, 5, 7, 7), (32, 64, 20, 41), (32, 50, 41, 20), (5, 128, 0, 0),
                         tuple(torch.randint(0, s + 1, (), generator=g).item() for s in (M, N, K, K))]:
        a, wide_a = operand(name, (M, K), g)
        b, wide_b = operand(name, (K, N), g)
        if odd is not None and name != "int8":
            for x, wide, r, c in ((a, wide_a, m, ka), (b, wide_b, kb, n)):
                if r and c:  # one element that is there; what is masked off is odd everywhere, and must not be seen
                    i, j = (torch.randint(0, s, (), generator=g).item() for s in (r, c))
                    x[i, j] = wide[i, j] = odd
                x[r:], x[:, c:] = odd, odd
        wide_a[m:], wide_a[:, ka:], wide_b[kb:], wide_b[:, n:] = 0, 0, 0, 0
        a = a.T.contiguous().T if turned_a else a
        b = b.T.contiguous().T if turned_b else b
        c = torch.randint(-9, 10, (M, N), generator=g).to(torch_type(to))
        out, whole = check.guarded((M, N), torch_type(to))
        edge_kernel[(1,)](a, b, c, out, m, n, ka, kb, *a.stride(), *b.stride(), M, N, K, tl_type(to), trans)
        want = wide_a @ wide_b + c.double()
        assert check.guards_hold(whole)
        bad = ~want.isfinite()
        assert torch.equal(~out.isfinite(), bad), (m, n, ka, kb)
        assert check.error(out[~bad], want[~bad]) < (1e-14 if to == "float64" else 2e-6), (m, n, ka, kb)


@triton.jit
def pieces_kernel(a_ptr, b_ptr, out_ptr, m, n, k, sam, sak, sbk, sbn, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, OUT: tl.constexpr,
                  WRAP: tl.constexpr, EVEN: tl.constexpr, READ: tl.constexpr):
    pid = tl.program_id(0)
    rows, cols, ks = pid // tl.cdiv(n, N) * M + tl.arange(0, M), pid % tl.cdiv(n, N) * N + tl.arange(0, N), tl.arange(0, K)
    if WRAP:
        a_ptrs = a_ptr + (rows % m)[:, None] * sam + ks[None, :] * sak
        b_ptrs = b_ptr + ks[:, None] * sbk + (cols % n)[None, :] * sbn
    else:
        a_ptrs = a_ptr + rows[:, None] * sam + ks[None, :] * sak
        b_ptrs = b_ptr + ks[:, None] * sbk + cols[None, :] * sbn
    acc = tl.zeros((M, N), dtype=OUT)
    for start in range(0, k, K):
        if EVEN:
            a, b = tl.load(a_ptrs), tl.load(b_ptrs)
        elif WRAP:
            a = tl.load(a_ptrs, mask=ks[None, :] < k - start, other=0)
            b = tl.load(b_ptrs, mask=ks[:, None] < k - start, other=0)
        else:
            a = tl.load(a_ptrs, mask=(ks[None, :] < k - start) & (rows[:, None] < m), other=0)
            b = tl.load(b_ptrs, mask=(ks[:, None] < k - start) & (cols[None, :] < n), other=0)
        acc = tl.dot(a, b, acc, out_dtype=OUT, input_precision="ieee")
        if READ:  # somebody else reads the accumulators in each trip
            acc += (tl.max(acc) * 0).to(OUT)
        a_ptrs += K * sak
        b_ptrs += K * sbk
    mask = (rows < m)[:, None] & (cols < n)[None, :]
    tl.store(out_ptr + rows[:, None] * n + cols[None, :], acc, mask=mask)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "int8"])
@pytest.mark.parametrize("turned_a,turned_b", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("wrap,even", [(False, False), (True, False), (True, True), (False, True)])
def test_k_in_short_pieces(name, turned_a, turned_b, wrap, even, seed):
    """Loops over K that are gone through several pieces at a time: any number of trips, a last piece that is not whole, none at all."""
    g = torch.Generator().manual_seed(seed)
    to = "int32" if name == "int8" else "float32"
    M, N, K = 64, 64, 32
    for m, n, k in ((128, 128, 256), (64, 64, 32), (64, 128, 96)) if even else ((130, 70, 100), (64, 64, 128), (1, 1, 1), (63, 65, 257), (64, 200, 0)):
        a, wide_a = operand(name, (m, k), g)
        b, wide_b = operand(name, (k, n), g)
        a = a.T.contiguous().T if turned_a else a
        b = b.T.contiguous().T if turned_b else b
        out, whole = check.guarded((m, n), torch_type(to))
        pieces_kernel[(triton.cdiv(m, M) * triton.cdiv(n, N),)](a, b, out, m, n, k, *a.stride(), *b.stride(), M, N, K, tl_type(to), wrap, even,
                                                                False)
        want = wide_a @ wide_b
        assert check.guards_hold(whole)
        assert torch.equal(out.double(), want) if to == "int32" else check.error(out, want) < 2e-6, (m, n, k)


@triton.jit
def wrapping_kernel(a_ptr, b_ptr, out_ptr, m, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows, cols, ks = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a_ptrs = a_ptr + (rows % m)[:, None] * k + ks[None, :]
    b_ptrs = b_ptr + ks[:, None] * N + cols[None, :]
    acc = tl.zeros((M, N), dtype=tl.float32)
    for start in range(0, k, K):
        acc = tl.dot(tl.load(a_ptrs, mask=ks[None, :] < k - start, other=0), tl.load(b_ptrs, mask=ks[:, None] < k - start, other=0), acc,
                     input_precision="ieee")
        a_ptrs += K
        b_ptrs += K * N
    tl.store(out_ptr + rows[:, None] * N + cols[None, :], acc)


@pytest.mark.parametrize("m", [1, 63, 64, 100, 130, 192])
def test_rows_that_wrap_are_the_first_again(m, seed):
    """Where a block runs past the size it is no longer one run of rows; all that it reads is looked at here."""
    g = torch.Generator().manual_seed(seed)
    a, b = torch.randn(m, 96, generator=g), torch.randn(96, 64, generator=g)
    out = torch.empty(256, 64)
    wrapping_kernel[(4,)](a, b, out, m, 96, 64, 64, 32)
    assert check.error(out, a.double()[torch.arange(256) % m] @ b.double()) < 2e-6


@triton.jit
def wrapping_pieces_kernel(a_ptr, b_ptr, out_ptr, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PIECES: tl.constexpr):
    rows, cols = tl.arange(0, M), tl.arange(0, N)
    acc = tl.zeros((M, N), dtype=tl.float32)
    for u in tl.static_range(PIECES):
        ks = (u * K + tl.arange(0, K)) % k
        acc = tl.dot(tl.load(a_ptr + rows[:, None] * k + ks[None, :]), tl.load(b_ptr + ks[:, None] * N + cols[None, :]), acc, input_precision="ieee")
    tl.store(out_ptr + rows[:, None] * N + cols[None, :], acc)


@pytest.mark.parametrize("k", [16, 20, 33, 40, 48, 63, 64])
def test_later_pieces_wrap_where_the_first_does_not(k, seed):
    """Pieces along K that are multiplied at once: each is one run of rows or columns only where it does not wrap itself."""
    g = torch.Generator().manual_seed(seed)
    a, b = torch.randn(16, k, generator=g), torch.randn(k, 32, generator=g)
    out = torch.empty(16, 32)
    wrapping_pieces_kernel[(1,)](a, b, out, k, 16, 32, 16, 4)
    at = torch.arange(64) % k
    assert check.error(out, a.double()[:, at] @ b.double()[at]) < 2e-6


def test_accumulators_that_others_read_are_there_in_each_trip(seed):
    g = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(100, 100, generator=g) for _ in range(2))
    out = torch.empty(100, 100)
    pieces_kernel[(4,)](a, b, out, 100, 100, 100, *a.stride(), *b.stride(), 64, 64, 32, tl.float32, False, False, True)
    assert check.error(out, a.double() @ b.double()) < 2e-6


@triton.jit
def chained_kernel(a_ptr, b_ptr, x_ptr, out_ptr, N: tl.constexpr, STORE: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    c = tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at), input_precision="ieee")
    y = tl.load(x_ptr + at)
    if STORE == "x":
        tl.store(x_ptr + at, y * 2)
    if STORE == "b":
        tl.store(b_ptr + at, y * 2)
    x = tl.load(x_ptr + at)
    tl.store(out_ptr + at, tl.dot(x, tl.load(a_ptr + at), c, input_precision="ieee"))


@pytest.mark.parametrize("store", ["", "x", "b"])
def test_product_on_top_of_another(store, seed):
    """The second adds to the first; with a store between them that the second one's operand sees, or that the first's must not."""
    g = torch.Generator().manual_seed(seed)
    a, b, x = (torch.randn(32, 32, generator=g) for _ in range(3))
    want = a.double() @ b.double() + x.double() * (2 if store == "x" else 1) @ a.double()
    out = torch.empty(32, 32)
    chained_kernel[(1,)](a, b, x, out, 32, store)
    assert check.error(out, want) < 2e-6
