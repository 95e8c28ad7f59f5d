"""Faulty kernels whose integers leave their type."""

import pytest
import torch
import triton
import triton.language as tl
from faults import Faults

fault = Faults("overflow")


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(x_ptr + i, mask=i < n, other=0), tl.load(y_ptr + i, mask=i < n, other=0)
    tl.store(out_ptr + i, x + y, mask=i < n)  # here


@triton.jit
def sub(x_ptr, y_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(x_ptr + i, mask=i < n, other=0), tl.load(y_ptr + i, mask=i < n, other=0)
    tl.store(out_ptr + i, x - y, mask=i < n)  # here


@triton.jit
def mul(x_ptr, y_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(x_ptr + i, mask=i < n, other=0), tl.load(y_ptr + i, mask=i < n, other=0)
    tl.store(out_ptr + i, x * y, mask=i < n)  # here


def on(kernel, dtype, x, y, lane):
    """`x` and `y` meet in lane `lane` of 20, and small numbers elsewhere."""
    a, b = torch.full((20,), 2, dtype=dtype), torch.full((20,), 1, dtype=dtype)
    a[lane], b[lane] = x, y
    kernel[(1,)](a, b, torch.empty_like(a), 20, N=32)


@fault(add, lane=(7,), program=(0, 0, 0))
def add_of_int8():
    on(add, torch.int8, 100, 28, 7)


@fault(add, lane=(19,))
def add_of_int16():
    on(add, torch.int16, -30000, -2769, 19)


@fault(add, lane=(0,))
def add_of_int32():
    on(add, torch.int32, 2**31 - 1, 1, 0)


@fault(sub, lane=(3,))
def sub_of_int8():
    on(sub, torch.int8, -100, 29, 3)


@fault(sub, lane=(9,))
def sub_of_int32():
    on(sub, torch.int32, -(2**31), 1, 9)


@fault(sub, lane=(5,))
def sub_of_uint8():
    on(sub, torch.uint8, 3, 4, 5)


@fault(mul, lane=(11,))
def mul_of_int8():
    on(mul, torch.int8, 16, 8, 11)


@fault(mul, lane=(16,))
def mul_of_int16():
    on(mul, torch.int16, 256, -129, 16)


@fault(mul, lane=(2,))
def mul_of_int32():
    on(mul, torch.int32, 65536, 32768, 2)


@triton.jit
def index(out_ptr, rows, stride, N: tl.constexpr):
    r = rows - 1 + tl.program_id(0)
    at = r * stride  # here
    tl.store(out_ptr + tl.program_id(0) * N + tl.arange(0, N), at)


@fault(index, lane=())
def row_times_stride():
    """The start of row 70000 of a matrix with 32768 columns, in 32 bits."""
    index[(2,)](torch.empty(32, dtype=torch.int32), 70000, 32768, N=16)


@triton.jit
def block_of_indices(out_ptr, first, step, N: tl.constexpr):
    i = tl.arange(0, N)
    at = i * step  # here
    tl.store(out_ptr + i, at + first)


@fault(block_of_indices, lane=(2,))
def indices_times_step():
    block_of_indices[(1,)](torch.empty(16, dtype=torch.int32), 5, 1 << 30, N=16)


@triton.jit
def block_start(out_ptr, size, N: tl.constexpr):
    first = tl.program_id(0) * size  # here
    i = first.to(tl.int64) * 0 + tl.arange(0, N)
    tl.store(out_ptr + tl.program_id(0) * N + i, first)


@fault(block_start, program=(2, 0, 0), lane=())
def program_times_block():
    block_start[(4,)](torch.empty(64, dtype=torch.int32), 1 << 30, N=16)


@triton.jit
def factorial(out_ptr, n):
    x = 1
    for i in range(1, n + 1):
        x = x * i  # here
    tl.store(out_ptr, x)


@fault(factorial, lane=())
def product_carried_by_a_loop():
    factorial[(1,)](torch.empty(1, dtype=torch.int32), 13)


@triton.jit
def doubled(x):
    return x + x  # here


@triton.jit
def calls(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, doubled(tl.load(x_ptr + i)))


@fault(doubled, lane=(6,))
def function_that_is_called():
    x = torch.ones(8, dtype=torch.int32)
    x[6] = 1 << 30
    calls[(1,)](x, torch.empty_like(x), N=8)


@triton.jit
def table(x_ptr, y_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    tl.store(out_ptr + i * N + j, tl.load(x_ptr + i) * tl.load(y_ptr + j))  # here


@fault(table, lane=(3, 5))
def two_dimensions():
    x, y = torch.arange(4, dtype=torch.int16), torch.arange(8, dtype=torch.int16)
    x[3], y[5] = 400, 90
    table[(1,)](x, y, torch.empty(4, 8, dtype=torch.int16), M=4, N=8)


@triton.jit
def hashed(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    h = tl.load(x_ptr + i) * 31 + 7  # here
    tl.store(out_ptr + i, h & 15)


@fault(hashed, lane=(4,))
def what_is_masked_afterwards():
    x = torch.arange(8, dtype=torch.int32)
    x[4] = 1 << 28
    hashed[(1,)](x, torch.empty_like(x), N=8)


@triton.jit
def unsigned(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i) + tl.load(x_ptr + N + i))  # here


@fault(unsigned, lane=(1,))
def add_of_uint32():
    x = torch.ones(16, dtype=torch.int64)
    x[1] = (1 << 32) - 1
    unsigned[(1,)](x.to(torch.uint32), torch.empty(8, dtype=torch.uint32), N=8)


@triton.jit
def conditionally(x_ptr, out_ptr, n):
    x = tl.load(x_ptr + tl.program_id(0))
    if x > n:
        x = x * n  # here
    tl.store(out_ptr + tl.program_id(0), x)


@fault(conditionally, program=(2, 0, 0), lane=())
def in_a_branch():
    conditionally[(4,)](torch.tensor([1, 2, 1 << 20, 3], dtype=torch.int32), torch.empty(4, dtype=torch.int32), 5000)


@pytest.mark.parametrize("kernel, launch, wanted", fault.cases)
def test_fault(kernel, launch, wanted):
    fault.found(kernel, launch, wanted)


@pytest.mark.parametrize("kernel, launch, wanted", fault.cases[::6])
def test_fault_when_only_overflow_is_looked_for(kernel, launch, wanted):
    fault.found(kernel, launch, wanted, "overflow")
