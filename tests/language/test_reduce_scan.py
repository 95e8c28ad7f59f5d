"""Reductions and scans: every combine, several operands, both directions, regions that branch; sort, topk, flip, gather."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from values import FLOATS, INTS, random, torch_type

SHAPES = [(1, 64), (4, 64), (64, 4), (32, 32), (2, 128), (128, 1)]


@triton.jit
def reduce_kernel(x_ptr, out_ptr, OP: tl.constexpr, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr):
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + i)
    if OP == "sum":
        y = tl.sum(x, AXIS)
    elif OP == "max":
        y = tl.max(x, AXIS)
    elif OP == "min":
        y = tl.min(x, AXIS)
    elif OP == "argmax":
        y = tl.argmax(x, AXIS)
    elif OP == "argmin":
        y = tl.argmin(x, AXIS)
    else:
        y = tl.xor_sum(x, AXIS)
    tl.store(out_ptr + tl.arange(0, N if AXIS == 0 else M), y)


@pytest.mark.parametrize("name", ("int8", "int16", "int32", "int64", "uint8", "uint32") + FLOATS)
@pytest.mark.parametrize("op", ["sum", "max", "min", "argmax", "argmin", "xor"])
def test_reduce(name, op, seed):
    if op == "xor" and name in FLOATS:
        pytest.skip("xor is of integers")
    for k, (m, n) in enumerate(SHAPES):
        for axis in (0, 1):
            x = random(name, m * n, seed + k, small=True).reshape(m, n)
            wide = {"sum": name if name in FLOATS or "64" in name else ("uint32" if name[0] == "u" else "int32"),
                    "argmax": "int32", "argmin": "int32"}.get(op, name)
            out = torch.zeros(n if axis == 0 else m, dtype=torch_type(wide))
            reduce_kernel[(1,)](x, out, op, m, n, axis)
            v = x.double().numpy() if name in FLOATS else x.numpy().astype(np.int64)
            if op == "xor":
                want = np.bitwise_xor.reduce(v, axis)
            else:
                want = getattr(v, op)(axis)
            if op == "sum" and name in FLOATS:
                scale = np.abs(v).sum(axis) * torch.finfo(x.dtype).eps
                assert (np.abs(out.double().numpy() - want) <= 8 * scale + 1e-30).all(), (m, n, axis)
            else:
                got = out.double().numpy() if name in FLOATS else out.numpy().astype(np.int64)
                bits = int(wide.strip("uintfloab")) if wide in INTS else 0
                assert (got == (want if not bits or want.dtype == np.float64 else want.astype(wide).astype(np.int64))).all(), (
                    m, n, axis)


@triton.jit
def scan_kernel(x_ptr, out_ptr, OP: tl.constexpr, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr, REVERSE: tl.constexpr):
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + i)
    if OP == "cumsum":
        y = tl.cumsum(x, AXIS, reverse=REVERSE)
    else:
        y = tl.cumprod(x, AXIS, reverse=REVERSE)
    tl.store(out_ptr + i, y)


@triton.jit
def bits_kernel(x_ptr, table_ptr, out_ptr, W: tl.constexpr):
    bits = tl.load(x_ptr + tl.arange(0, 2)[:, None] * 0 + tl.arange(0, 8)[None, :]) & 1
    tl.store(out_ptr, tl.load(table_ptr + tl.sum(bits.to(W), None).to(tl.int8)))


@pytest.mark.parametrize("wide", ["int32", "int64"])
@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_a_sum_of_bits_that_is_an_index(wide, target):
    """LLVM ended the process on it, for AVX-512: of a pyramid that adds 4 or 8 small numbers it makes a sum of bytes in a type that is not legal."""
    source = ASTSource(fn=bits_kernel, signature={"x_ptr": "*i8", "table_ptr": "*i32", "out_ptr": "*i32", "W": "constexpr"},
                       constexprs={(3,): getattr(tl, wide)})
    assert triton.compile(source, target=GPUTarget("cpu", target, 0)).asm["obj"]


def test_sums_of_bits():
    x = torch.arange(64, dtype=torch.int8)
    out = torch.zeros(1, dtype=torch.int32)
    for wide in (tl.int32, tl.int64):
        bits_kernel[(1,)](x, torch.arange(100, dtype=torch.int32), out, wide)
        assert out.item() == 8


@pytest.mark.parametrize("name", ("int8", "int32", "int64", "uint16", "float16", "float32", "float64"))
@pytest.mark.parametrize("op", ["cumsum", "cumprod"])
@pytest.mark.parametrize("reverse", [False, True])
def test_scan(name, op, reverse, seed):
    for k, (m, n) in enumerate(SHAPES):
        for axis in (0, 1):
            if name in FLOATS:
                x = (torch.rand(m, n, generator=torch.Generator().manual_seed(seed + k)) * 0.2 + 0.9).to(torch_type(name))
            else:
                x = random(name, m * n, seed + k).reshape(m, n)
            wide = name if name in FLOATS or "64" in name else ("uint32" if name[0] == "u" else "int32")
            out = torch.zeros(m, n, dtype=torch_type(wide if op == "cumsum" else name))
            scan_kernel[(1,)](x, out, op, m, n, axis, reverse)
            v = x.double().numpy() if name in FLOATS else x.numpy().astype(np.int64)
            v = np.flip(v, axis) if reverse else v
            want = getattr(np, op)(v, axis)
            want = np.flip(want, axis) if reverse else want
            if name in FLOATS:
                eps = torch.finfo(x.dtype).eps
                np.testing.assert_allclose(out.double().numpy(), want, rtol=eps * 4 * max(m, n))
            else:
                dtype = out.numpy().dtype
                assert (out.numpy() == want.astype(dtype)).all(), (m, n, axis)


@triton.jit
def first(a, b):
    return a


@triton.jit
def recurrence(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2


@triton.jit
def larger(v1, i1, v2, i2):
    if v1 > v2:
        return v1, i1
    elif v1 == v2:
        return v1, tl.minimum(i1, i2)
    else:
        return v2, i2


@triton.jit
def regions(x_ptr, y_ptr, out_ptr, index_ptr, N: tl.constexpr, REVERSE: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(x_ptr + i), tl.load(y_ptr + i)
    tl.store(out_ptr + i, tl.associative_scan(x, 0, first, reverse=REVERSE))
    a, b = tl.associative_scan((x, y), 0, recurrence, reverse=REVERSE)
    tl.store(out_ptr + N + i, a)
    tl.store(out_ptr + 2 * N + i, b)
    v, at = tl.associative_scan((x, i), 0, larger, reverse=REVERSE)
    tl.store(out_ptr + 3 * N + i, v)
    tl.store(index_ptr + i, at)
    v, at = tl.reduce((x, i), 0, larger)
    tl.store(out_ptr + 4 * N, v)
    tl.store(index_ptr + N, at)


@pytest.mark.parametrize("n", [2, 16, 128])
@pytest.mark.parametrize("reverse", [False, True])
def test_combine_regions(n, reverse, seed):
    """Not commutative, several operands, and one that branches (which runs element by element)."""
    x = (random("float32", n, seed, small=True).round() / 4).contiguous()
    y = random("float32", n, seed + 1, small=True)
    out, index = torch.zeros(5, n), torch.zeros(n + 1, dtype=torch.int32)
    regions[(1,)](x, y, out, index, n, reverse)
    order = range(n - 1, -1, -1) if reverse else range(n)
    acc, want = None, np.zeros((4, n))
    at = np.zeros(n, dtype=int)
    for k in order:
        xv, yv = float(x[k]), float(y[k])
        acc = (xv, (xv, yv), (xv, k)) if acc is None else (
            acc[0], (acc[1][0] * xv, acc[1][1] * xv + yv),
            acc[2] if acc[2][0] > xv else ((xv, min(k, acc[2][1])) if acc[2][0] == xv else (xv, k)))
        want[:, k] = [acc[0], acc[1][0], acc[1][1], acc[2][0]]
        at[k] = acc[2][1]
    np.testing.assert_allclose(out[:4].double().numpy(), want, rtol=1e-4, atol=1e-4)
    assert index[:n].tolist() == at.tolist()
    assert out[4, 0] == x.max() and index[n] == x.argmax()


@triton.jit
def nan_kernel(x_ptr, out_ptr, index_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr, tl.max(x, 0))
    tl.store(out_ptr + 1, tl.min(x, 0))
    v, k = tl.max(x, 0, return_indices=True)
    tl.store(index_ptr, k)
    v, k = tl.min(x, 0, return_indices=True, return_indices_tie_break_left=False)
    tl.store(index_ptr + 1, k)


def test_max_and_ties():
    """max and min skip NaN; of equal elements the first is found."""
    x = torch.tensor([1.0, float("nan"), 5.0, -2.0, 5.0, -2.0, 0.0, 3.0])
    out, index = torch.zeros(2), torch.zeros(2, dtype=torch.int32)
    nan_kernel[(1,)](x, out, index, 8)
    assert out.tolist() == [5.0, -2.0]
    y = x.nan_to_num(0.0)
    nan_kernel[(1,)](y, out, index, 8)
    assert index[0] == 2 and y[index[1]] == -2.0


@triton.jit
def order_kernel(x_ptr, out_ptr, top_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + i, tl.sort(x))
    tl.store(out_ptr + M * N + i, tl.sort(x, descending=True))
    tl.store(out_ptr + 2 * M * N + i, tl.flip(x, 1))
    tl.store(top_ptr + tl.arange(0, M)[:, None] * K + tl.arange(0, K)[None, :], tl.topk(x, K))


@pytest.mark.parametrize("name", ["int32", "float16", "float32", "int64", "uint8", "bfloat16"])
@pytest.mark.parametrize("m,n,k", [(1, 8, 2), (4, 32, 8), (2, 256, 16), (8, 2, 1)])
def test_sort_topk_flip(name, m, n, k, seed):
    x = random(name, m * n, seed, small=True).reshape(m, n)
    out, top = torch.zeros(3, m, n, dtype=x.dtype), torch.zeros(m, k, dtype=x.dtype)
    order_kernel[(1,)](x, out, top, m, n, k)
    want = x.double().sort(-1).values
    assert torch.equal(out[0].double(), want)
    assert torch.equal(out[1].double(), want.flip(-1))
    assert torch.equal(out[2], x.flip(-1))
    assert torch.equal(top.double(), want.flip(-1)[:, :k])


def test_a_long_sort(seed):
    """Each of its 66 stages of compare and swap is two or three loops, however long the block: some 50 instructions of LLVM IR."""
    @triton.jit
    def kernel(x_ptr, out_ptr, N: tl.constexpr):
        i = tl.arange(0, N)
        tl.store(out_ptr + i, tl.sort(tl.load(x_ptr + i)))

    for n in (64, 2048):
        x = random("float32", n, seed, small=True)
        out = torch.zeros_like(x)
        compiled = kernel[(1,)](x, out, n)
        assert torch.equal(out, x.sort().values)
        stages = n.bit_length() * (n.bit_length() - 1) // 2
        assert sum(line.startswith("  ") for line in compiled.asm["llir"].split("\n")) < 64 * stages


@triton.jit
def pick_kernel(x_ptr, i_ptr, out_ptr, counts_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, AXIS: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    R: tl.constexpr = K if AXIS == 0 else M
    C: tl.constexpr = N if AXIS == 0 else K
    j = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    idx = tl.load(i_ptr + j)
    tl.store(out_ptr + j, tl.gather(x, idx, AXIS))
    flat = tl.reshape(idx, (R * C,))
    tl.store(counts_ptr + tl.arange(0, 32), tl.histogram(flat, 32, mask=flat != 3))


@pytest.mark.parametrize("m,n,k", [(4, 16, 8), (32, 2, 32), (16, 16, 1)])
@pytest.mark.parametrize("axis", [0, 1])
def test_gather_and_histogram(m, n, k, axis, seed):
    x = random("float32", m * n, seed, small=True).reshape(m, n)
    shape = (k, n) if axis == 0 else (m, k)
    idx = torch.randint(0, x.shape[axis], shape, generator=torch.Generator().manual_seed(seed), dtype=torch.int32)
    out, counts = torch.zeros(shape), torch.zeros(32, dtype=torch.int32)
    pick_kernel[(1,)](x, idx, out, counts, m, n, k, axis)
    assert torch.equal(out, x.gather(axis, idx.long()))
    want = torch.bincount(idx.flatten(), minlength=32)
    want[3] = 0
    assert counts.tolist() == want.tolist()


@triton.jit
def welford(mean1, square1, weight1, mean2, square2, weight2):
    delta = mean2 - mean1
    weight = weight1 + weight2
    ratio = weight2 / weight
    return mean1 + delta * ratio, square1 + square2 + delta * delta * weight1 * ratio, weight


@triton.jit
def welford_kernel(x_ptr, out_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    mean, square, weight = tl.reduce((x, tl.zeros_like(x), tl.full((N,), 1.0, tl.float32)), 0, welford)
    tl.store(out_ptr, mean)
    tl.store(out_ptr + 1, square / weight)


def test_welford(seed):
    x, out = random("float32", 512, seed, small=True), torch.zeros(2)
    welford_kernel[(1,)](x, out, 512)
    torch.testing.assert_close(out, torch.stack([x.mean(), x.var(correction=0)]), rtol=1e-5, atol=1e-6)


@triton.jit
def shifted(count1, last1, current1, count2, last2, current2):
    return count1 + count2, tl.where(count2 == 1, current1, 0) + last2, current2


@triton.jit
def shift_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr):
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + i)
    _, last, _ = tl.associative_scan((1 + 0 * x, 0 * x, x), AXIS, shifted)
    tl.store(out_ptr + i, last)


@pytest.mark.parametrize("m,n", [(8, 32), (32, 8), (2, 256), (256, 2)])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_scan_that_sees_its_neighbour(m, n, axis, seed):
    """Three operands, and a combine that depends on how elements were grouped."""
    x = random("int32", m * n, seed, small=True).reshape(m, n)
    out = torch.zeros_like(x)
    shift_kernel[(1,)](x, out, m, n, axis)
    want = x.roll(1, axis)
    want.select(axis, 0).zero_()
    assert torch.equal(out, want)


@triton.jit
def checked_add(a, b):
    wide = a.to(tl.int64) + b.to(tl.int64)
    tl.device_assert((wide >= -(2**31)) & (wide <= 2**31 - 1), "overflow")
    return a + b


@triton.jit(debug=True)
def checked_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + i, tl.associative_scan(x, 0, checked_add))
    tl.store(out_ptr + N, tl.reduce(x, 0, checked_add))


def test_assertions_inside_a_combine():
    from triport.backends.base import Error
    x, out = torch.arange(64, dtype=torch.int32), torch.zeros(65, dtype=torch.int32)
    checked_kernel[(1,)](x, out, 64)
    assert torch.equal(out[:64], x.cumsum(0).int()) and out[64] == x.sum()
    with pytest.raises(Error, match="overflow"):
        checked_kernel[(1,)](torch.full((64,), 2**30, dtype=torch.int32), out, 64)


@triton.jit
def larger_or_first(v1, i1, v2, i2):
    if v1 > v2:
        return v1, i1
    if v1 == v2:
        if i1 < i2:
            return v1, i1
    return v2, i2


@triton.jit
def early_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    value, index = tl.reduce((tl.load(x_ptr + i), i), 0, larger_or_first)
    tl.store(out_ptr, value)
    tl.store(out_ptr + 1, index)


def test_a_region_with_early_returns_reads_elements_once(seed):
    """What a region's blocks decide is about its own values: the tensor is not put into memory again for each of its elements."""
    x, out = torch.randint(0, 9, (64,), dtype=torch.int32, generator=torch.Generator().manual_seed(seed)), torch.zeros(2, dtype=torch.int32)
    kernel = early_kernel[(1,)](x, out, 64)
    assert out.tolist() == [x.max(), (x == x.max()).nonzero()[0]]
    assert "ptr %scratch, i64" not in kernel.asm["llir"]


@triton.jit
def exponentials_behind_a_scan_kernel(x_ptr, out_ptr, n, SCAN: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    sums = x
    if SCAN:
        sums = tl.cumsum(x, 0)
    for _ in range(n):
        x = tl.exp(x)
    tl.store(out_ptr + i, x + sums)


def test_loops_behind_a_scan_read_the_pool_as_ever():
    """On a target of few registers a polynomial's coefficients are read from memory in a loop that stores, whatever ran before it."""

    def reads(scan: bool) -> int:
        signature = {"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32", "SCAN": "constexpr", "N": "constexpr"}
        source = ASTSource(exponentials_behind_a_scan_kernel, signature, {"SCAN": scan, "N": 64})
        return triton.compile(source, target=GPUTarget("cpu", "x86-64-v3", 0)).asm["llir"].count(".pool, i64")

    assert reads(True) == reads(False) > 0
