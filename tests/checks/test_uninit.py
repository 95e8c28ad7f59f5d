"""Faulty kernels that read what torch.empty gave and nobody has written."""

import pytest
import torch
import triton
import triton.language as tl
from faults import Faults

fault = Faults("uninit")


@triton.jit
def copy(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)  # here


@triton.jit
def writes(out_ptr, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out_ptr + i, 1.0, mask=i < n)


@fault(copy, argument="x_ptr", program=(0, 0, 0), lane=(0,), element=(0,))
def never_written():
    copy[(1,)](torch.empty(50), torch.empty(50), 50, N=64)


@fault(copy, argument="x_ptr", program=(1, 0, 0), lane=(6,), element=(70,))
def written_in_part_by_a_kernel():
    x = torch.empty(100)
    writes[(2,)](x, 70, N=64)
    copy[(2,)](x, torch.empty(100), 100, N=64)


@fault(copy, argument="x_ptr", program=(0, 0, 0), lane=(32,), element=(32,))
def grid_too_small_before():
    x = torch.empty(64)
    writes[(1,)](x, 64, N=32)
    copy[(1,)](x, torch.empty(64), 64, N=64)


@fault(copy, argument="x_ptr", lane=(20,))
def written_in_part_by_torch():
    x = torch.empty(30)
    x[:20] = 1.0
    copy[(1,)](x, torch.empty(30), 30, N=32)


@fault(copy, argument="x_ptr", lane=(0,))
def empty_like():
    copy[(1,)](torch.empty_like(torch.ones(16)), torch.empty(16), 16, N=16)


@fault(copy, argument="x_ptr", lane=(0,))
def new_empty():
    copy[(1,)](torch.ones(16).new_empty(10), torch.empty(16), 10, N=16)


@fault(copy, argument="x_ptr", lane=(0,))
def empty_strided():
    copy[(1,)](torch.empty_strided((4, 4), (1, 4)), torch.empty(16), 16, N=16)


@fault(copy, argument="x_ptr", lane=(3,), element=(3,))
def view_with_storage_offset():
    x = torch.empty(40)
    writes[(1,)](x, 13, N=16)
    copy[(1,)](x[10:], torch.empty(16), 16, N=16)


@triton.jit
def sum_of_rows(x_ptr, out_ptr, stride, n, N: tl.constexpr):
    r, c = tl.program_id(0), tl.arange(0, N)
    x = tl.load(x_ptr + r * stride + c, mask=c < n, other=0.0)  # here
    tl.store(out_ptr + r, tl.sum(x, 0))


@triton.jit
def fills_rows(out_ptr, stride, n, N: tl.constexpr):
    r, c = tl.program_id(0), tl.arange(0, N)
    tl.store(out_ptr + r * stride + c, 1.0, mask=c < n)


@fault(sum_of_rows, argument="x_ptr", program=(0, 0, 0), lane=(12,), element=(0, 12))
def columns_of_padding():
    x = torch.empty(3, 16)
    fills_rows[(3,)](x, 16, 12, N=16)
    sum_of_rows[(3,)](x, torch.empty(3), 16, 16, N=16)


@fault(sum_of_rows, argument="x_ptr", program=(2, 0, 0), lane=(0,), element=(2, 0))
def last_row():
    x = torch.empty(3, 16)
    fills_rows[(2,)](x, 16, 16, N=16)
    sum_of_rows[(3,)](x, torch.empty(3), 16, 16, N=16)


@triton.jit
def accumulates(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    acc = tl.load(out_ptr + i)  # here
    tl.store(out_ptr + i, acc + tl.load(x_ptr + i))


@fault(accumulates, argument="out_ptr", lane=(0,))
def accumulator_that_was_not_cleared():
    accumulates[(1,)](torch.ones(8), torch.empty(8), N=8)


@triton.jit
def counts(x_ptr, out_ptr, N: tl.constexpr):
    tl.atomic_add(out_ptr + tl.load(x_ptr + tl.arange(0, N)), 1)  # here


@fault(counts, argument="out_ptr", lane=(0,), element=(2,))
def atomics_on_what_was_not_cleared():
    counts[(1,)](torch.tensor([2, 3, 2, 1], dtype=torch.int32), torch.empty(4, dtype=torch.int32), N=4)


@triton.jit
def lock(lock_ptr, out_ptr):
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:  # here
        pass
    tl.store(out_ptr, 1)
    tl.atomic_xchg(lock_ptr, 0)


@fault(lock, argument="lock_ptr", lane=(), element=(0,))
def lock_that_was_not_cleared():
    lock[(1,)](torch.empty(1, dtype=torch.int32), torch.zeros(1))


@triton.jit
def product(a_ptr, b_ptr, out_ptr, M: tl.constexpr):
    m = tl.arange(0, M)
    at = m[:, None] * M + m[None, :]
    a, b = tl.load(a_ptr + at), tl.load(b_ptr + at)  # here
    tl.store(out_ptr + at, tl.dot(a, b))


@fault(product, argument="b_ptr", lane=(9, 0), element=(9, 0))
def operand_of_a_product():
    b = torch.empty(16, 16)
    writes[(1,)](b, 144, N=256)
    product[(1,)](torch.ones(16, 16), b, torch.empty(16, 16), M=16)


@triton.jit
def every_other(out_ptr, N: tl.constexpr):
    tl.store(out_ptr + 2 * tl.arange(0, N), 1.0)


@fault(copy, argument="x_ptr", lane=(1,), element=(1,))
def every_other_element():
    x = torch.empty(32)
    every_other[(1,)](x, N=16)
    copy[(1,)](x, torch.empty(32), 32, N=32)


@triton.jit
def by_index(x_ptr, index_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + (tl.load(index_ptr + i) & 65535)))  # here


@fault(by_index, argument="x_ptr", lane=(5,), element=(13,))
def gather_by_indices():
    x = torch.empty(20)
    writes[(1,)](x, 12, N=16)
    by_index[(1,)](x, torch.tensor([0, 1, 2, 3, 4, 13, 5, 6]), torch.empty(8), N=8)


@fault(by_index, argument="index_ptr")
def indices_themselves():
    index = torch.empty(8, dtype=torch.int32)
    by_index[(1,)](torch.ones(1 << 16), index, torch.empty(8), N=8)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool], ids=str)
def test_elements_of_any_size(dtype):
    def launch():
        x = torch.empty(50, dtype=dtype)
        writes[(1,)](x, 40, N=64)
        copy[(1,)](x, torch.empty(50, dtype=dtype), 50, N=64)

    fault.found(copy, launch, dict(argument="x_ptr", lane=(40,), element=(40,)))


@pytest.mark.parametrize("kernel, launch, wanted", fault.cases)
def test_fault(kernel, launch, wanted):
    fault.found(kernel, launch, wanted)


@pytest.mark.parametrize("kernel, launch, wanted", fault.cases[::4])
def test_fault_when_nothing_else_is_looked_for(kernel, launch, wanted):
    fault.found(kernel, launch, wanted, "uninit")
