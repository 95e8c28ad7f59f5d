"""Faulty kernels whose programs meet in an element with nothing that puts them in order."""

import pytest
import torch
import triton
import triton.language as tl
from faults import Faults

fault = Faults("race")


@triton.jit
def rounds_up(x_ptr, out_ptr, n, STEP: tl.constexpr, N: tl.constexpr):
    i = tl.program_id(0) * STEP + tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)  # here


@fault(rounds_up, argument="out_ptr", program=(1, 0, 0), lane=(0,), element=(60,))
def blocks_that_overlap():
    rounds_up[(2,)](torch.ones(124), torch.zeros(124), 124, STEP=60, N=64)


@triton.jit
def sum_in_place(x_ptr, out_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.program_id(0) * N + tl.arange(0, N))
    tl.store(out_ptr, tl.load(out_ptr) + tl.sum(x, 0))  # here


@fault(sum_in_place, argument="out_ptr", program=(1, 0, 0), lane=())
def sum_without_atomics():
    sum_in_place[(3,)](torch.ones(48), torch.zeros(1), N=16)


@triton.jit
def columns_in_place(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    acc = tl.load(out_ptr + i)
    acc += tl.load(x_ptr + tl.program_id(0) * N + i)
    tl.store(out_ptr + i, acc)  # here


@triton.jit
def same_place(out_ptr):
    tl.store(out_ptr, tl.program_id(0))  # here


@fault(same_place, argument="out_ptr", program=(1, 0, 0), element=(0,))
def all_write_one_element():
    same_place[(4,)](torch.zeros(3, dtype=torch.int32))


@triton.jit
def stencil(x_ptr, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    left = tl.load(x_ptr + i - 1, mask=(i > 0) & (i < n), other=0.0)  # here
    tl.store(x_ptr + i, left * 0.5, mask=i < n)


@fault(stencil, argument="x_ptr", program=(1, 0, 0), lane=(0,), element=(31,))
def stencil_in_place():
    stencil[(3,)](torch.ones(90), 90, N=32)


@triton.jit
def stencil_ahead(x_ptr, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    right = tl.load(x_ptr + i + 1, mask=i + 1 < n, other=0.0)
    tl.store(x_ptr + i, right * 0.5, mask=i < n)  # here


@fault(stencil_ahead, argument="x_ptr", program=(1, 0, 0), lane=(0,), element=(32,))
def stencil_in_place_that_reads_ahead():
    stencil_ahead[(3,)](torch.ones(90), 90, N=32)


@triton.jit
def transposes(x_ptr, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)[:, None]
    j = tl.program_id(1) * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + j * n + i)  # here
    tl.store(x_ptr + i * n + j, x)


@triton.jit
def locked(lock_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    while tl.atomic_cas(lock_ptr + tl.program_id(0) % 2, 0, 1) == 1:
        pass
    acc = tl.load(out_ptr + i) + 1  # here
    tl.store(out_ptr + i, acc)  # here
    tl.atomic_xchg(lock_ptr + tl.program_id(0) % 2, 0)


@fault(locked, argument="out_ptr", program=(1, 0, 0), lane=(0,))
def wrong_lock():
    locked[(2,)](torch.zeros(2, dtype=torch.int32), torch.zeros(8), N=8)


@triton.jit
def early(lock_ptr, x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    acc = tl.load(out_ptr + i)  # here
    tl.atomic_xchg(lock_ptr, 0)
    tl.store(out_ptr + i, acc + 1)  # here


@fault(early, argument="out_ptr", program=(1, 0, 0), lane=(0,))
def released_before_the_last_write():
    early[(2,)](torch.zeros(1, dtype=torch.int32), torch.ones(8), torch.zeros(8), N=8)


@triton.jit
def relaxed(lock_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    while tl.atomic_cas(lock_ptr, 0, 1, sem="relaxed") == 1:
        pass
    acc = tl.load(out_ptr + i) + 1  # here
    tl.store(out_ptr + i, acc)  # here
    tl.atomic_xchg(lock_ptr, 0, sem="relaxed")


@fault(relaxed, argument="out_ptr", program=(1, 0, 0), lane=(0,))
def lock_that_orders_nothing():
    relaxed[(2,)](torch.zeros(1, dtype=torch.int32), torch.zeros(8), N=8)


@triton.jit
def plain_flag(x_ptr, flag_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    if tl.program_id(0) == 0:
        tl.store(out_ptr + i, tl.load(x_ptr + i))
        tl.atomic_xchg(flag_ptr, 1)
    else:
        n = 0
        while tl.load(flag_ptr) == 0:  # here
            n += 1
        tl.store(out_ptr + N + i, tl.load(out_ptr + i) + n)  # here


@fault(plain_flag, argument="flag_ptr", program=(1, 0, 0), lane=(), element=(0,))
def barrier_by_plain_loads():
    plain_flag[(2,)](torch.ones(8), torch.zeros(1, dtype=torch.int32), torch.zeros(16), N=8)


@triton.jit
def plain_release(x_ptr, flag_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    if tl.program_id(0) == 0:
        tl.store(out_ptr + i, tl.load(x_ptr + i))
        tl.store(flag_ptr, 1)
    else:
        while tl.atomic_add(flag_ptr, 0) == 0:  # here
            pass


@fault(plain_release, argument="flag_ptr", program=(1, 0, 0), lane=(), element=(0,))
def barrier_by_a_plain_store():
    plain_release[(2,)](torch.ones(8), torch.zeros(1, dtype=torch.int32), torch.zeros(16), N=8)


@triton.jit
def half_atomic(out_ptr):
    if tl.program_id(0) < 2:
        tl.atomic_add(out_ptr, 1.0)
    else:
        tl.store(out_ptr, 0.0)  # here


@fault(half_atomic, argument="out_ptr", program=(2, 0, 0), element=(0,))
def atomic_and_plain_writes():
    half_atomic[(3,)](torch.zeros(1))


@triton.jit
def last_reads(x_ptr, sum_ptr, out_ptr, N: tl.constexpr):
    """The last program by number need not be the last to come."""
    i = tl.arange(0, N)
    tl.atomic_add(sum_ptr + i, tl.load(x_ptr + tl.program_id(0) * N + i))
    if tl.program_id(0) == tl.num_programs(0) - 1:
        tl.store(out_ptr + i, tl.load(sum_ptr + i))  # here


@fault(last_reads, argument="sum_ptr", program=(3, 0, 0), lane=(0,))
def sums_are_read_by_the_last_program_by_number():
    last_reads[(4,)](torch.ones(32), torch.zeros(8), torch.zeros(8), N=8)


@triton.jit
def relaxed_counter(x_ptr, part_ptr, count_ptr, out_ptr, N: tl.constexpr):
    p = tl.program_id(0)
    i = tl.arange(0, N)
    tl.store(part_ptr + p, tl.sum(tl.load(x_ptr + p * N + i), 0))
    if tl.atomic_add(count_ptr, 1, sem="relaxed") == tl.num_programs(0) - 1:
        tl.store(out_ptr, tl.sum(tl.load(part_ptr + tl.arange(0, 4)), 0))  # here


@fault(relaxed_counter, argument="part_ptr", program=(3, 0, 0), lane=(0,), element=(0,))
def last_block_by_a_counter_that_orders_nothing():
    relaxed_counter[(4,)](torch.ones(32), torch.zeros(4), torch.zeros(1, dtype=torch.int32), torch.zeros(1), N=8)


@triton.jit
def counts_first(x_ptr, part_ptr, count_ptr, out_ptr, N: tl.constexpr):
    p = tl.program_id(0)
    i = tl.arange(0, N)
    last = tl.atomic_add(count_ptr, 1) == tl.num_programs(0) - 1
    tl.store(part_ptr + p, tl.sum(tl.load(x_ptr + p * N + i), 0))
    if last:
        tl.store(out_ptr, tl.sum(tl.load(part_ptr + tl.arange(0, 4)), 0))  # here


@fault(counts_first, argument="part_ptr", program=(3, 0, 0), lane=(0,), element=(0,))
def counted_before_it_is_written():
    counts_first[(4,)](torch.ones(32), torch.zeros(4), torch.zeros(1, dtype=torch.int32), torch.zeros(1), N=8)


@triton.jit
def binned(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    at = tl.load(x_ptr + i, mask=i < n, other=0)
    old = tl.load(out_ptr + at, mask=i < n)  # here
    tl.store(out_ptr + at, old + 1, mask=i < n)  # here


@fault(binned, argument="out_ptr", program=(1, 0, 0), element=(1,))
def histogram_without_atomics():
    bins = torch.tensor([0, 1, 2, 3, 4, 1, 5, 6], dtype=torch.int32)
    binned[(2,)](bins, torch.zeros(8, dtype=torch.int32), 8, N=4)


@triton.jit
def writes_rows(x_ptr, out_ptr, stride, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + tl.program_id(0) * stride + i, tl.load(x_ptr + tl.program_id(0) * N + i))  # here


@fault(writes_rows, argument="out_ptr", program=(1, 0, 0), lane=(0,))
def output_that_is_expanded():
    out = torch.zeros(1, 16).expand(4, 16)
    writes_rows[(4,)](torch.ones(4, 16), out, out.stride(0), N=16)


@fault(writes_rows, argument="out_ptr", program=(1, 0, 0))
def windows_that_overlap():
    out = torch.zeros(40).as_strided((4, 16), (8, 1))
    writes_rows[(4,)](torch.ones(4, 16), out, out.stride(0), N=16)


@triton.jit
def shifts(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)  # here


@fault(shifts, program=(1, 0, 0), lane=(0,))
def two_views_of_one_storage():
    """What a program writes is what the next one should have read before."""
    base = torch.ones(72)
    shifts[(2,)](base[:64], base[4:68], 64, N=32)


@triton.jit
def split_k(a_ptr, b_ptr, out_ptr, k, M: tl.constexpr, K: tl.constexpr):
    m, q = tl.arange(0, M), tl.program_id(0) * K + tl.arange(0, K)
    acc = tl.dot(tl.load(a_ptr + m[:, None] * k + q[None, :]), tl.load(b_ptr + q[:, None] * M + m[None, :]))
    p = out_ptr + m[:, None] * M + m[None, :]
    tl.store(p, tl.load(p) + acc)  # here


@fault(split_k, argument="out_ptr", program=(1, 0, 0), lane=(0, 0))
def split_product_without_atomics():
    split_k[(2,)](torch.ones(16, 32), torch.ones(32, 16), torch.zeros(16, 16), 32, M=16, K=16)


@fault(same_place, argument="out_ptr", program=(0, 1, 0))
def programs_of_the_second_dimension():
    same_place[(1, 2)](torch.zeros(1, dtype=torch.int32))


@triton.jit
def bytes_(out_ptr, N: tl.constexpr):
    i = tl.program_id(0) * (N - 1) + tl.arange(0, N)
    tl.store(out_ptr + i, i > 3)  # here


@fault(bytes_, argument="out_ptr", program=(1, 0, 0), lane=(0,), element=(7,))
def elements_of_one_byte():
    bytes_[(2,)](torch.zeros(15, dtype=torch.bool), N=8)


@triton.jit
def to_either(a_ptr, b_ptr, N: tl.constexpr):
    p = tl.program_id(0)
    if p == 2:
        q = a_ptr
    else:
        q = b_ptr
    tl.store(q + p % 2 * N + tl.arange(0, N), p)  # here


@fault(to_either, argument="b_ptr", program=(3, 0, 0), lane=(0,))
def selected_pointers():
    to_either[(4,)](torch.zeros(16), torch.zeros(16), N=8)


@pytest.mark.parametrize("kernel, launch, wanted", fault.cases)
def test_fault(kernel, launch, wanted):
    fault.found(kernel, launch, wanted)


@pytest.mark.parametrize("kernel, launch, wanted", fault.cases[::3])
def test_fault_when_only_races_are_looked_for(kernel, launch, wanted):
    fault.found(kernel, launch, wanted, "race")


def test_both_ends_are_named():
    """Programs 1 and 2 read what program 0 wrote, and then write it: reports of both lines."""
    from triport import checking
    with checking.checks("race"), pytest.raises(checking.CheckError, match=r"program \(0, 0, 0\) wrote") as caught:
        columns_in_place[(3,)](torch.ones(48), torch.zeros(16), N=16)
    assert {r.argument for r in caught.value.reports} == {"out_ptr"}


def test_transposing_in_place():
    from triport import checking
    with checking.checks("race"), pytest.raises(checking.CheckError) as caught:
        transposes[(2, 2)](torch.ones(32, 32), 32, N=16)
    assert {r.kind for r in caught.value.reports} == {"race"}
