"""Faulty kernels whose accesses leave their tensors."""

import pytest
import torch
import triton
import triton.language as tl
from faults import Faults
from triton.tools.tensor_descriptor import TensorDescriptor

fault = Faults("bounds")


@triton.jit
def one_too_many(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + i, mask=i <= n)  # here
    tl.store(out_ptr + i, x, mask=i < n)


@fault(one_too_many, argument="x_ptr", program=(3, 0, 0), lane=(40,))
def off_by_one_mask():
    x = torch.ones(232)
    one_too_many[(4,)](x, torch.empty(232), 232, N=64)


@triton.jit
def stores_all(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n))  # here


@fault(stores_all, argument="out_ptr", program=(1, 0, 0), lane=(36,), element=None)
def store_without_mask():
    stores_all[(2,)](torch.ones(100), torch.empty(100), 100, N=64)


@fault(stores_all, argument="out_ptr", program=(2, 0, 0), lane=(0,))
def one_program_too_many():
    stores_all[(3,)](torch.ones(128), torch.empty(128), 128, N=64)


@triton.jit
def turned(x_ptr, out_ptr, m, n, sm, sn, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    inside = (i < m) & (j < n)
    x = tl.load(x_ptr + i * sm + j * sn, mask=inside, other=0.0)  # here
    tl.store(out_ptr + i * n + j, x, mask=inside)


@fault(turned, argument="x_ptr", program=(0, 0, 0))
def transposed_strides():
    x = torch.ones(6, 13)
    turned[(1,)](x, torch.empty(6, 13), 6, 13, x.stride(1), x.stride(0), M=8, N=16)


@triton.jit
def before(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i - 1, mask=i < n), mask=i < n)  # here


@fault(before, argument="x_ptr", lane=(0,))
def negative_offset():
    before[(1,)](torch.ones(30), torch.empty(30), 30, N=32)


@fault(before, argument="x_ptr", lane=(28,))
def view_with_storage_offset():
    """The view begins behind the storage's start, so the first lane is inside, and the last ones are behind the end."""
    base = torch.ones(30)
    before[(1,)](base[3:], torch.empty(32), 32, N=32)


@triton.jit
def rows(x_ptr, out_ptr, stride, n, N: tl.constexpr):
    r, c = tl.program_id(0), tl.arange(0, N)
    x = tl.load(x_ptr + r * stride + c, mask=c < n, other=0.0)  # here
    tl.store(out_ptr + r, tl.sum(x, 0))


@fault(rows, argument="x_ptr", program=(1, 0, 0), lane=(0,))
def expanded_rows_taken_as_contiguous():
    x = torch.ones(1, 24).expand(4, 24)
    rows[(4,)](x, torch.empty(4), 24, 24, N=32)


@triton.jit
def box3(x_ptr, out_ptr, a, b, c, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    i, j, k = tl.arange(0, A)[:, None, None], tl.arange(0, B)[None, :, None], tl.arange(0, C)[None, None, :]
    at = (i * b + j) * c + k
    inside = (i < a) & (j <= b) & (k < c)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=(i < a) & (j < b) & (k < c)), mask=inside)  # here


@fault(box3, argument="out_ptr", lane=(2, 5, 0))
def three_dimensions():
    x = torch.ones(3, 5, 7)
    box3[(1,)](x, torch.empty(3, 5, 7), 3, 5, 7, A=4, B=8, C=8)


@triton.jit
def by_index(x_ptr, index_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    at = tl.load(index_ptr + i, mask=i < n, other=0)
    tl.store(out_ptr + i, tl.load(x_ptr + at, mask=i < n), mask=i < n)  # here


@fault(by_index, argument="x_ptr", lane=(17,))
def gather_by_indices():
    index = torch.arange(20)
    index[17] = 50
    by_index[(1,)](torch.ones(50), index, torch.empty(20), 20, N=32)


@triton.jit
def scattered(x_ptr, index_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(out_ptr + tl.load(index_ptr + i, mask=i < n), x, mask=i < n)  # here


@fault(scattered, argument="out_ptr", lane=(4,))
def scatter_by_indices():
    index = torch.tensor([0, 3, 1, 2, -1], dtype=torch.int32)
    scattered[(1,)](torch.ones(5), index, torch.empty(5), 5, N=8)


@triton.jit
def of_scalars(x_ptr, len_ptr, out_ptr, N: tl.constexpr):
    p = tl.program_id(0)
    first, last = tl.load(len_ptr + p), tl.load(len_ptr + p + 1)  # here
    i = tl.arange(0, N)
    tl.store(out_ptr + p, tl.sum(tl.load(x_ptr + first + i, mask=first + i < last, other=0.0), 0))


@fault(of_scalars, argument="len_ptr", program=(3, 0, 0), lane=())
def scalar_load():
    of_scalars[(4,)](torch.ones(12), torch.tensor([0, 3, 6, 12]), torch.empty(4), N=16)


@triton.jit
def one_of_two(a_ptr, b_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    p = tl.where(i % 2 == 0, a_ptr + i, b_ptr + i)
    tl.store(out_ptr + i, tl.load(p))  # here


@fault(one_of_two, lane=(11,))
def selected_pointers():
    one_of_two[(1,)](torch.ones(16), torch.ones(10), torch.empty(16), 16, N=16)


@triton.jit
def either(a_ptr, b_ptr, out_ptr, N: tl.constexpr):
    if tl.program_id(0) == 0:
        p = a_ptr
    else:
        p = b_ptr
    i = tl.arange(0, N)
    tl.store(out_ptr + tl.program_id(0) * N + i, tl.load(p + i))  # here


@fault(either, program=(1, 0, 0), lane=(9,), argument="b_ptr")
def assigned_pointers():
    either[(2,)](torch.ones(16), torch.ones(9), torch.empty(32), N=16)


@triton.jit
def marching(x_ptr, out_ptr, n, N: tl.constexpr):
    p = x_ptr + tl.arange(0, N)
    acc = tl.zeros((N,), tl.float32)
    for _ in range(tl.cdiv(n, N)):
        acc += tl.load(p)  # here
        p += N
    tl.store(out_ptr + tl.arange(0, N), acc)


@fault(marching, argument="x_ptr", lane=(8,))
def pointers_carried_by_a_loop():
    marching[(1,)](torch.ones(56), torch.empty(16), 56, N=16)


@triton.jit
def until_zero(x_ptr, out_ptr):
    p = x_ptr
    n = 0
    while tl.load(p) != 0.0:  # here
        p += 1
        n += 1
    tl.store(out_ptr, n)


@fault(until_zero, argument="x_ptr", lane=())
def pointer_carried_by_while():
    until_zero[(1,)](torch.ones(11), torch.empty(1, dtype=torch.int32))


@triton.jit
def fetch(p, i, n):
    return tl.load(p + i, mask=i < n + 2, other=0.0)  # here


@triton.jit
def calls(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, fetch(x_ptr, i, n), mask=i < n)


@fault(fetch, argument="x_ptr", lane=(21,))
def function_that_is_called():
    calls[(1,)](torch.ones(21), torch.empty(21), 21, N=32)


@triton.jit(noinline=True)
def fetch_apart(p, i):
    x = tl.load(p + i)  # here
    return x * 2


@triton.jit
def calls_apart(x_ptr, out_ptr, n):
    i = tl.program_id(0)
    tl.store(out_ptr + i, fetch_apart(x_ptr, i + 1))


@fault(fetch_apart, argument="x_ptr", program=(20, 0, 0), lane=())
def function_that_is_not_inlined():
    calls_apart[(21,)](torch.ones(21), torch.empty(21), 21)


@triton.jit
def grouped(table_ptr, out_ptr, n, N: tl.constexpr):
    p = tl.load(table_ptr + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    i = tl.arange(0, N)
    tl.store(out_ptr + tl.program_id(0), tl.sum(tl.load(p + i, mask=i < n, other=0.0), 0))  # here


@fault(grouped, program=(1, 0, 0))
def table_of_pointers():
    """The second of the tensors is shorter, and behind its end is nothing of a tensor's."""
    tensors = [torch.ones(40), torch.ones(1 << 20)]
    table = torch.tensor([tensors[0].data_ptr(), tensors[1].data_ptr() + 4 * ((1 << 20) - 39)])
    grouped[(2,)](table, torch.empty(2), 40, N=64)


@triton.jit
def masked_later(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)  # here
    tl.store(out_ptr + i, tl.where(i < n, x * 2, 0.0), mask=i < n)


@fault(masked_later, argument="x_ptr", lane=(27,))
def lanes_that_nobody_stores():
    masked_later[(1,)](torch.ones(27), torch.empty(27), 27, N=32)


@triton.jit
def unused(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i + 1)  # here
    tl.store(out_ptr + i, x * 0.0)


@fault(unused, argument="x_ptr", lane=(31,))
def elements_that_are_multiplied_by_zero():
    unused[(1,)](torch.ones(32), torch.empty(32), N=32)


@triton.jit
def product(a_ptr, b_ptr, out_ptr, k, M: tl.constexpr, K: tl.constexpr):
    m, q = tl.arange(0, M), tl.arange(0, K)
    acc = tl.zeros((M, M), tl.float32)
    for s in range(0, k, K):
        a = tl.load(a_ptr + m[:, None] * k + s + q[None, :], mask=(s + q < k)[None, :], other=0.0)
        b = tl.load(b_ptr + (s + q)[:, None] * M + m[None, :])  # here
        acc = tl.dot(a, b, acc)
    tl.store(out_ptr + m[:, None] * M + m[None, :], acc)


@fault(product, argument="b_ptr", lane=(4, 0))
def operand_of_a_product():
    product[(1,)](torch.ones(16, 20), torch.ones(20, 16), torch.empty(16, 16), 20, M=16, K=16)


@triton.jit
def mean_of_rows(x_ptr, out_ptr, n, M: tl.constexpr, N: tl.constexpr):
    r, c = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + r[:, None] * n + c[None, :], mask=c[None, :] < n, other=0.0)  # here
    d = x - (tl.sum(x, 1) / n)[:, None]
    tl.store(out_ptr + r, tl.sum(d * d, 1), mask=r < 6)


@fault(mean_of_rows, argument="x_ptr", program=(1, 0, 0), lane=(2, 0), element=None)
def reduction_of_rows():
    mean_of_rows[(2,)](torch.ones(6, 20), torch.empty(6), 20, M=4, N=32)


@triton.jit
def counts(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i, mask=i < n, other=0)
    tl.atomic_add(out_ptr + x, 1, mask=i < n)  # here


@fault(counts, argument="out_ptr", lane=(2,))
def atomic():
    counts[(1,)](torch.tensor([0, 3, 8, 1], dtype=torch.int32), torch.zeros(8, dtype=torch.int32), 4, N=4)


@triton.jit
def counter(out_ptr, n):
    tl.atomic_add(out_ptr + n, 1)  # here


@fault(counter, argument="out_ptr", lane=())
def atomic_of_one_element():
    counter[(1,)](torch.zeros(4, dtype=torch.int64), 4)


@triton.jit
def swaps(out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.atomic_cas(out_ptr + i, tl.zeros((N,), tl.int32), i)  # here


@fault(swaps, argument="out_ptr", lane=(13,))
def compare_and_swap():
    swaps[(1,)](torch.zeros(13, dtype=torch.int32), 13, N=16)


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float64, torch.bool], ids=str)
def test_elements_of_any_size(dtype):
    def launch():
        one_too_many[(1,)](torch.ones(50, dtype=dtype), torch.zeros(50, dtype=dtype), 50, N=64)

    fault.found(one_too_many, launch, dict(argument="x_ptr", lane=(50,)))


@triton.jit
def described(x_ptr, out_ptr, m, n, M: tl.constexpr, N: tl.constexpr):
    d = tl.make_tensor_descriptor(x_ptr, [m, n], [n, 1], [M, N])
    x = d.load([0, 0])  # here
    i, j = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    tl.store(out_ptr + i * N + j, x)


@fault(described, argument="x_ptr", lane=(5, 0))
def descriptor_with_a_wrong_shape():
    described[(1,)](torch.ones(5, 16), torch.empty(8, 16), 7, 16, M=8, N=16)


@triton.jit
def given_a_descriptor(d, M: tl.constexpr, N: tl.constexpr):
    d.store([0, 0], tl.full((M, N), 1.0, tl.float32))  # here


@fault(given_a_descriptor, argument="d", lane=(3, 8))
def descriptor_with_wrong_strides():
    given_a_descriptor[(1,)](TensorDescriptor(torch.zeros(56), [4, 16], [16, 1], [4, 16]), M=4, N=16)


@triton.jit
def looked_up(x_ptr, index_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + i, tl.gather(x, tl.load(index_ptr + i), 0))  # here


@fault(looked_up, lane=(5,))
def gather_in_a_block():
    index = torch.arange(16, dtype=torch.int32)
    index[5] = 16
    looked_up[(1,)](torch.ones(16), index, torch.empty(16), N=16)


@triton.jit
def three_axes(x_ptr, out_ptr, m, N: tl.constexpr):
    p, q, r = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i = tl.arange(0, N)
    tl.store(out_ptr + ((r * 3 + q) * m + p) * N + i, tl.load(x_ptr + i))  # here


@fault(three_axes, argument="out_ptr", program=(0, 2, 1), lane=(0,))
def grid_of_three_dimensions():
    three_axes[(2, 3, 2)](torch.ones(8), torch.empty(80), 2, N=8)


@fault(one_too_many, argument="x_ptr", lane=(0,))
def tensor_without_elements():
    one_too_many[(1,)](torch.empty(0), torch.empty(8), 0, N=16)


@triton.jit
def at_address(x_addr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_addr.to(tl.int64).to(tl.pointer_type(tl.float32)) + i))  # here


@fault(at_address, lane=(0,))
def null_pointer():
    at_address[(1,)](0, torch.empty(8), N=8)


@pytest.mark.parametrize("kernel, launch, wanted", fault.cases)
def test_fault(kernel, launch, wanted):
    fault.found(kernel, launch, wanted)


@pytest.mark.parametrize("kernel, launch, wanted", fault.cases[::2])
def test_fault_when_only_bounds_are_checked(kernel, launch, wanted):
    """Whole boxes are looked at then, and not one lane after the other."""
    fault.found(kernel, launch, wanted, "bounds")
