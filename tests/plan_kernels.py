"""Small kernels of one idea each, whose plans `test_plans.py` holds."""

import re

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def copy(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)


@triton.jit
def axpy(x_ptr, y_ptr, out_ptr, n, a, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out_ptr + i, a * tl.load(x_ptr + i, mask=i < n) + tl.load(y_ptr + i, mask=i < n), mask=i < n)


@triton.jit
def strided(x_ptr, out_ptr, n, step, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i * step, mask=i < n), mask=i < n)


@triton.jit
def transposed(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    tl.store(out_ptr + j * M + i, tl.load(x_ptr + i * N + j))


@triton.jit
def broadcast_row(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    tl.store(out_ptr + i * N + j, tl.exp(tl.load(x_ptr + j)) + i)


@triton.jit
def softmax_rows(x_ptr, out_ptr, n, N: tl.constexpr):
    r, c = tl.program_id(0), tl.arange(0, N)
    x = tl.load(x_ptr + r * n + c, mask=c < n, other=-float("inf"))
    e = tl.exp(x - tl.max(x, 0))
    tl.store(out_ptr + r * n + c, e / tl.sum(e, 0), mask=c < n)


@triton.jit
def softmax_tile(x_ptr, out_ptr, n, M: tl.constexpr, N: tl.constexpr):
    r, c = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + r[:, None] * n + c[None, :], mask=c[None, :] < n, other=-float("inf"))
    e = tl.exp(x - tl.max(x, 1)[:, None])
    tl.store(out_ptr + r[:, None] * n + c[None, :], e / tl.sum(e, 1)[:, None], mask=c[None, :] < n)


@triton.jit
def softmax_columns(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    r, c = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + r[:, None] * N + c[None, :])
    e = tl.exp(x - tl.max(x, 0)[None, :])
    tl.store(out_ptr + r[:, None] * N + c[None, :], e / tl.sum(e, 0)[None, :])


@triton.jit
def rows_read_elsewhere(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    """The second reduction wants the first one's result of all rows: no group."""
    r, c = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + r[:, None] * N + c[None, :])
    m = tl.max(x, 1)
    tl.store(out_ptr + r, tl.sum(tl.exp(x - tl.max(m, 0)), 1))


@triton.jit
def rows_in_place(x_ptr, M: tl.constexpr, N: tl.constexpr):
    r, c = tl.arange(0, M), tl.arange(0, N)
    p = x_ptr + r[:, None] * N + c[None, :]
    x = tl.load(p)
    tl.store(p, x / tl.sum(x, 1)[:, None])


@triton.jit
def in_place(x_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x_ptr + i, tl.load(x_ptr + i) * 2)


@triton.jit
def in_place_shifted(x_ptr, out_ptr, N: tl.constexpr):
    """What is loaded is stored elsewhere in the same tensor first, then read."""
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + i, x)
    tl.store(out_ptr + N + i, x + 1)


@triton.jit
def reversed_in_place(x_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x_ptr + N - 1 - i, tl.load(x_ptr + i))


@triton.jit
def layer_norm(x_ptr, w_ptr, out_ptr, n, N: tl.constexpr):
    c = tl.arange(0, N)
    x = tl.load(x_ptr + tl.program_id(0) * n + c, mask=c < n, other=0.0)
    mean = tl.sum(x, 0) / n
    d = tl.where(c < n, x - mean, 0.0)
    var = tl.sum(d * d, 0) / n
    tl.store(out_ptr + tl.program_id(0) * n + c, d / tl.sqrt(var + 1e-5) * tl.load(w_ptr + c, mask=c < n), mask=c < n)


@triton.jit
def argmax(x_ptr, out_ptr, N: tl.constexpr):
    tl.store(out_ptr, tl.argmax(tl.load(x_ptr + tl.arange(0, N)), 0))


@triton.jit
def sum_all(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(out_ptr, tl.sum(tl.sum(x, 1), 0))


@triton.jit
def cumsum(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.cumsum(tl.load(x_ptr + i), 0))


@triton.jit
def cumsum_back(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    tl.store(out_ptr + i * N + j, tl.cumsum(tl.load(x_ptr + i * N + j), 0, reverse=True))


@triton.jit
def sort(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.sort(tl.load(x_ptr + i)))


@triton.jit
def flip(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.flip(tl.exp(tl.load(x_ptr + i)), 0))


@triton.jit
def gathered(x_ptr, i_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.gather(tl.load(x_ptr + i), tl.load(i_ptr + i).to(tl.int32), 0))


@triton.jit
def indirect(x_ptr, i_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + tl.load(i_ptr + i).to(tl.int32)))


@triton.jit
def histogram(x_ptr, out_ptr, N: tl.constexpr):
    h = tl.histogram(tl.load(x_ptr + tl.arange(0, N)).to(tl.int32), 32)
    tl.store(out_ptr + tl.arange(0, 32), h.to(tl.float32))


@triton.jit
def atomic(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.atomic_add(out_ptr + i % 7, tl.load(x_ptr + i, mask=i < n), mask=i < n)


@triton.jit
def split_halves(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.split(tl.reshape(tl.exp(tl.load(x_ptr + tl.arange(0, 2 * N))), (N, 2)))
    tl.store(out_ptr + i, a * b)


@triton.jit
def joined_pairs(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    z = tl.interleave(tl.load(x_ptr + i), tl.load(y_ptr + i))
    tl.store(out_ptr + tl.arange(0, 2 * N), z)


@triton.jit
def reshaped(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    x = tl.exp(tl.load(x_ptr + tl.arange(0, M * N)))
    tl.store(out_ptr + tl.arange(0, N), tl.sum(tl.reshape(x, (M, N)), 0))


@triton.jit
def carried(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    acc = tl.zeros((N,), tl.float32)
    for k in range(0, n, N):
        acc += tl.load(x_ptr + k + i, mask=k + i < n, other=0.0)
    tl.store(out_ptr + i, acc)


@triton.jit
def moving_pointers(x_ptr, out_ptr, n, N: tl.constexpr):
    p = x_ptr + tl.arange(0, N)
    total = 0.0
    for _ in range(n):
        total += tl.sum(tl.load(p), 0)
        p += N
    tl.store(out_ptr, total)


@triton.jit
def two_carried(c_ptr, x_ptr, y_ptr, N: tl.constexpr):
    """The second carried value is made of the first one's new value."""
    i = tl.arange(0, N)
    x, y = tl.zeros((N,), tl.float32), tl.zeros((N,), tl.float32)
    for r in range(4):
        x = x + tl.load(c_ptr + r)
        y = x
    tl.store(x_ptr + i, x)
    tl.store(y_ptr + i, y)


@triton.jit
def swapped(c_ptr, x_ptr, y_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(x_ptr + i), tl.load(y_ptr + i)
    for _ in range(3):
        x, y = y, x
    tl.store(c_ptr + i, x - y)


@triton.jit
def branches(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.exp(tl.load(x_ptr + i))
    if n > 3:
        tl.store(out_ptr + i, x)
    else:
        tl.store(out_ptr + i, x * x)


@triton.jit
def until(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    while tl.max(x, 0) > 1.0:
        x = x * 0.5
    tl.store(out_ptr + i, x)


@triton.jit
def matmul(a_ptr, b_ptr, out_ptr, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i, j, q = tl.program_id(0) * M + tl.arange(0, M), tl.program_id(1) * N + tl.arange(0, N), tl.arange(0, K)
    acc = tl.zeros((M, N), tl.float32)
    for s in range(0, k, K):
        a = tl.load(a_ptr + i[:, None] * k + s + q[None, :], mask=(i < m)[:, None] & (s + q < k)[None, :], other=0.0)
        b = tl.load(b_ptr + (s + q)[:, None] * n + j[None, :], mask=(s + q < k)[:, None] & (j < n)[None, :], other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    tl.store(out_ptr + i[:, None] * n + j[None, :], acc, mask=(i < m)[:, None] & (j < n)[None, :])


@triton.jit
def matmul_pieces(a_ptr, b_ptr, out_ptr, k, sa, sb, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, ks = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a_ptrs, b_ptrs = a_ptr + m[:, None] * sa + ks[None, :], b_ptr + ks[:, None] * sb + n[None, :]
    acc = tl.zeros((M, N), dtype=tl.float32)
    for _ in range(0, k, K):
        acc = tl.dot(tl.load(a_ptrs), tl.load(b_ptrs), acc, input_precision="ieee")
        a_ptrs += K
        b_ptrs += K * sb
    tl.store(out_ptr + m[:, None] * N + n[None, :], acc)


@triton.jit
def matmul_bf16(a_ptr, b_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :]).to(tl.bfloat16)
    b = tl.load(b_ptr + n[None, :] * K + k[:, None]).to(tl.bfloat16)
    tl.store(out_ptr + m[:, None] * N + n[None, :], tl.dot(a, b))


@triton.jit
def matmul_turned(a_ptr, b_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a, b = tl.load(a_ptr + k[None, :] * M + m[:, None]), tl.load(b_ptr + n[None, :] * K + k[:, None])
    tl.store(out_ptr + m[:, None] * N + n[None, :], tl.dot(a, b, input_precision="ieee"))


@triton.jit
def matmul_of_softmax(x_ptr, b_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(x_ptr + m[:, None] * K + k[None, :])
    e = tl.exp(x - tl.max(x, 1)[:, None])
    p = e / tl.sum(e, 1)[:, None]
    b = tl.load(b_ptr + k[:, None] * N + n[None, :])
    tl.store(out_ptr + m[:, None] * N + n[None, :], tl.dot(p, b, input_precision="ieee"))


@triton.jit
def batched(a_ptr, b_ptr, out_ptr, B: tl.constexpr, N: tl.constexpr):
    p, i, j = tl.arange(0, B)[:, None, None], tl.arange(0, N)[None, :, None], tl.arange(0, N)[None, None, :]
    at = p * N * N + i * N + j
    tl.store(out_ptr + at, tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at), input_precision="ieee"))


@triton.jit
def stencil(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    left, right = tl.load(x_ptr + i - 1, mask=(i > 0) & (i < n), other=0.0), tl.load(x_ptr + i + 1, mask=i + 1 < n, other=0.0)
    tl.store(out_ptr + i, 0.25 * left + 0.5 * tl.load(x_ptr + i, mask=i < n) + 0.25 * right, mask=i < n)


@triton.jit
def column_sums(x_ptr, out_ptr, n, k, M: tl.constexpr, N: tl.constexpr):
    """As Inductor has them: columns are a tile's first dimension, which memory is contiguous along."""
    at = tl.program_id(0) * M + tl.arange(0, M)[:, None]
    acc = tl.zeros((M, N), tl.float32)
    for start in range(0, k, N):
        row = start + tl.arange(0, N)[None, :]
        acc += tl.load(x_ptr + at + n * row, (row < k) & (at < n), other=0.0)
    tl.store(out_ptr + at, tl.sum(acc, 1)[:, None], at < n)


@triton.jit
def row_factors(x_ptr, own_ptr, out_ptr, n, M: tl.constexpr, N: tl.constexpr):
    """A dear number for each row is made of many rows at once, and not in front of each."""
    row, col = tl.arange(0, M), tl.arange(0, N)
    factor = tl.exp(tl.load(own_ptr + row)) / tl.load(own_ptr + M + row)
    at = row[:, None] * n + col[None, :]
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=(col < n)[None, :]) * factor[:, None], mask=(col < n)[None, :])


SIZES = {"N": 256, "M": 16, "K": 64, "B": 4}
KERNELS = {fn.__name__: fn for fn in list(globals().values()) if isinstance(fn, triton.JITFunction)}
OWN = {"matmul": {"M": 64, "N": 64, "K": 64}, "matmul_pieces": {"M": 64, "N": 64, "K": 32}, "matmul_bf16": {"M": 32, "N": 32, "K": 64},
       "matmul_turned": {"M": 32, "N": 32, "K": 64}, "matmul_of_softmax": {"M": 32, "N": 32}, "batched": {"N": 16}, "column_sums": {"M": 64, "N": 8}, "sort": {"N": 64}, "flip": {"N": 64}}


def source(name: str) -> ASTSource:
    """A kernel with pointers to fp32, integers of 32 bits and the sizes that it has here."""
    fn = KERNELS[name]
    sizes = SIZES | OWN.get(name, {})
    constants = {n: sizes[n] for n in fn.arg_names if n in sizes}
    signature = {n: "constexpr" if n in constants else "*fp32" if n.endswith("_ptr") else "fp32" if n == "a" else "i32" for n in fn.arg_names}
    return ASTSource(fn=fn, signature=signature, constexprs={(fn.arg_names.index(n),): v for n, v in constants.items()})


def compiled(name: str, target: str):
    return triton.compile(source(name), target=GPUTarget("cpu", target, 0))


def ttir(name: str) -> str:
    """A kernel's TTIR, with lines counted from its `def`."""
    first = KERNELS[name].fn.__code__.co_firstlineno
    made = re.sub(r'"[^"]*/([\w.]+\.py)"', r'"\1"', compiled(name, "x86-64-v4").asm["ttir"])
    return re.sub(r'"plan_kernels\.py":(\d+)', lambda m: f'"plan_kernels.py":{int(m[1]) - first}', made)
