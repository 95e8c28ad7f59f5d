"""Quantised products by a user's own kernels: int8 exactly, fp8 against float64, with the scales that models use.

`python docs/users/quantised.py [PART OF A NAME ...]`. Nothing of triport is imported for the kernels. The reference is the product of the very same 8-bit
numbers: what quantising itself loses is not counted."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import triton
import triton.language as tl

sys.path.insert(0, str(Path(__file__).parent))
import checked  # noqa: E402

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
MOST = {torch.int8: 127.0, E4M3: 448.0, E5M2: 57344.0}


@triton.jit
def product_kernel(a_ptr, b_ptr, c_ptr, M, N, K, ACC: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """c = a @ b of 8-bit a (M, K) and b (K, N), summed and stored as ACC."""
    i, j = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), ACC)
    for begin in range(0, K, BK):
        k = begin + tl.arange(0, BK)
        a = tl.load(a_ptr + i[:, None] * K + k, mask=(i[:, None] < M) & (k < K), other=0.0)
        b = tl.load(b_ptr + k[:, None] * N + j, mask=(k[:, None] < K) & (j < N), other=0.0)
        acc = tl.dot(a, b, acc, out_dtype=ACC)
    tl.store(c_ptr + i[:, None] * N + j, acc, mask=(i[:, None] < M) & (j < N))


def product(a, b):
    """int32 or float32 (M, N) of contiguous 8-bit a (M, K) and b (K, N)."""
    (M, K), N = a.shape, b.shape[1]
    whole = a.dtype == torch.int8
    c = torch.empty(M, N, dtype=torch.int32 if whole else torch.float32)
    product_kernel[(triton.cdiv(M, 32), triton.cdiv(N, 32))](a, b, c, M, N, K, ACC=tl.int32 if whole else tl.float32, BM=32, BN=32, BK=64)
    return c


@triton.jit
def scaled_kernel(a_ptr, b_ptr, a_scale_ptr, b_scale_ptr, c_ptr, M, N, K, ACC: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """c = (a @ b) * a_scale[:, None] * b_scale[None, :]; the scales follow the sums."""
    i, j = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), ACC)
    for begin in range(0, K, BK):
        k = begin + tl.arange(0, BK)
        a = tl.load(a_ptr + i[:, None] * K + k, mask=(i[:, None] < M) & (k < K), other=0.0)
        b = tl.load(b_ptr + k[:, None] * N + j, mask=(k[:, None] < K) & (j < N), other=0.0)
        acc = tl.dot(a, b, acc, out_dtype=ACC)
    scale = tl.load(a_scale_ptr + i, mask=i < M)[:, None] * tl.load(b_scale_ptr + j, mask=j < N)
    tl.store(c_ptr + i[:, None] * N + j, acc.to(tl.float32) * scale, mask=(i[:, None] < M) & (j < N))


@triton.jit
def grouped_kernel(a_ptr, b_ptr, a_scale_ptr, b_scale_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """The same with a scale for each GROUP numbers of a row of a, and for each GROUP x GROUP of b: they are part of the sums. GROUP is a multiple of BN."""
    i, j = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    groups = tl.cdiv(K, GROUP)
    acc = tl.zeros((BM, BN), tl.float32)
    for group in range(groups):
        k = group * GROUP + tl.arange(0, GROUP)
        a = tl.load(a_ptr + i[:, None] * K + k, mask=(i[:, None] < M) & (k < K), other=0.0)
        b = tl.load(b_ptr + k[:, None] * N + j, mask=(k[:, None] < K) & (j < N), other=0.0)
        b_scale = tl.load(b_scale_ptr + group * tl.cdiv(N, GROUP) + tl.program_id(1) * BN // GROUP)
        acc += tl.dot(a, b) * tl.load(a_scale_ptr + i * groups + group, mask=i < M, other=0.0)[:, None] * b_scale
    tl.store(c_ptr + i[:, None] * N + j, acc, mask=(i[:, None] < M) & (j < N))


@triton.jit
def weights_kernel(x_ptr, w_ptr, scale_ptr, y_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """y = x @ (w * scale) of float16 x (M, K) and int8 w (K, N): a weight becomes float16 where it is loaded."""
    i, j = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for begin in range(0, K, BK):
        k = begin + tl.arange(0, BK)
        x = tl.load(x_ptr + i[:, None] * K + k, mask=(i[:, None] < M) & (k < K), other=0.0)
        w = tl.load(w_ptr + k[:, None] * N + j, mask=(k[:, None] < K) & (j < N), other=0)
        acc = tl.dot(x, w.to(tl.float16), acc)
    acc *= tl.load(scale_ptr + j, mask=j < N)
    tl.store(y_ptr + i[:, None] * N + j, acc.to(tl.float16), mask=(i[:, None] < M) & (j < N))


@triton.jit
def quantise_kernel(x_ptr, q_ptr, scale_ptr, K, MOST: tl.constexpr, BK: tl.constexpr):
    """A row of x (M, K) as 8-bit numbers, and its scale: its largest magnitude becomes MOST."""
    row, k = tl.program_id(0), tl.arange(0, BK)
    x = tl.load(x_ptr + row * K + k, mask=k < K, other=0.0)
    scale = tl.div_rn(tl.max(tl.abs(x)), MOST)
    q = tl.div_rn(x, scale)
    if q_ptr.dtype.element_ty == tl.int8:
        q = tl.floor(q + 0.5)
    tl.store(q_ptr + row * K + k, q.to(q_ptr.dtype.element_ty), mask=k < K)
    tl.store(scale_ptr + row, scale)


def rounded(x, dtype):
    """x / scale as dtype's numbers (int8: halves upwards), and the scale of each row."""
    scale = x.abs().amax(1) / MOST[dtype]
    q = x / scale[:, None]
    return (q + 0.5).floor().to(dtype) if dtype == torch.int8 else q.to(dtype), scale


def extremes():
    """Sums of 1,333 products of the largest numbers, which are beyond 2**24 (from there on float32 has not each integer), and of random ones."""
    a, b = (torch.randint(-128, 128, s, dtype=torch.int8) for s in ((77, 1333), (1333, 65)))
    a[:9], b[:, :9] = -128, -128
    low, high = a.clamp(max=-127), b.clamp(min=126)
    return [(product(a, b), a.double() @ b.double()), (product(low, high), low.double() @ high.double())]


def fp8(a_type, b_type):
    """Products of fp8 numbers without scales, of either kind or of both."""
    a, b = torch.randn(77, 133).to(a_type), torch.randn(133, 65).to(b_type)
    return [(product(a, b), a.double() @ b.double())]


def scaled(dtype):
    """A scale for each token (row of a) and each channel (column of b)."""
    (a, a_scale), (b, b_scale) = rounded(torch.randn(77, 133), dtype), rounded(torch.randn(65, 133), dtype)
    b, c = b.T.contiguous(), torch.empty(77, 65)
    acc = tl.int32 if dtype == torch.int8 else tl.float32
    scaled_kernel[(3, 3)](a, b, a_scale, b_scale, c, 77, 65, 133, ACC=acc, BM=32, BN=32, BK=64)
    return [(c, a.double() @ b.double() * a_scale.double()[:, None] * b_scale.double())]


def grouped():
    """DeepSeek's scales: for 128 numbers of a row of a, for 128 x 128 of b."""
    M, N, K, G = 33, 192, 300, 128
    a, b = torch.randn(M, K).to(E4M3), torch.randn(K, N).to(E4M3)
    a_scale, b_scale = torch.rand(M, 3) + 0.1, torch.rand(3, 2) + 0.1
    c = torch.empty(M, N)
    grouped_kernel[(2, 6)](a, b, a_scale, b_scale, c, M, N, K, BM=32, BN=32, GROUP=G)
    whole_a = a.double() * a_scale.double().repeat_interleave(G, 1)[:, :K]
    return [(c, whole_a @ (b.double() * b_scale.double().repeat_interleave(G, 0).repeat_interleave(G, 1)[:K, :N]))]


def weights():
    """Weights alone in int8, what they multiply in float16."""
    x, (w, scale) = torch.randn(77, 133).half(), rounded(torch.randn(65, 133), torch.int8)
    w, y = w.T.contiguous(), torch.empty(77, 65, dtype=torch.float16)
    weights_kernel[(3, 3)](x, w, scale, y, 77, 65, 133, BM=32, BN=32, BK=64)
    return [(y, x.double() @ (w.double() * scale.double()))]


def quantise(dtype):
    """A kernel that quantises gives torch's bits, and its scales."""
    x = torch.randn(77, 133) * torch.logspace(-3, 3, 77)[:, None]
    q, scale = torch.empty(77, 133, dtype=dtype), torch.empty(77)
    quantise_kernel[(77,)](x, q, scale, 133, MOST=MOST[dtype], BK=256)
    want, want_scale = rounded(x, dtype)
    return [(q.view(torch.int8), want.view(torch.int8)), (scale, want_scale)]


WAYS = {
    "int8 x int8, int32 sums, exact": extremes,
    "int8, scales of rows and columns": lambda: scaled(torch.int8),
    "int8 weights, float16 activations": weights,
    "int8 by a kernel, exact": lambda: quantise(torch.int8),
    "fp8 e4m3 x e4m3": lambda: fp8(E4M3, E4M3),
    "fp8 e5m2 x e5m2": lambda: fp8(E5M2, E5M2),
    "fp8 e4m3 x e5m2": lambda: fp8(E4M3, E5M2),
    "fp8 e4m3, scales of rows and columns": lambda: scaled(E4M3),
    "fp8 e5m2, scales of rows and columns": lambda: scaled(E5M2),
    "fp8 e4m3, scales of groups of 128": grouped,
    "fp8 e4m3 by a kernel, exact": lambda: quantise(E4M3),
    "fp8 e5m2 by a kernel, exact": lambda: quantise(E5M2),
}

if __name__ == "__main__":
    sys.exit(checked.main(WAYS))
