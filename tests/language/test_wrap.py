"""Integers that wrap: offsets of few bits, comparisons near the end of a type, and what the compiler may take for granted of them."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from triport.backends.base import Error
from triport.backends.cpu.plan import ranges
from triport.backends.cpu.ttir.types import Type, Value


@triton.jit
def narrow_offset_kernel(x_ptr, out_ptr, k, c, N: tl.constexpr, T: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + (i.to(T) * k.to(T) + c.to(T))))


@triton.jit
def narrow_carried_kernel(x_ptr, out_ptr, n, N: tl.constexpr, T: tl.constexpr):
    i = tl.arange(0, N).to(T)
    total = tl.zeros([N], tl.int32)
    for _ in range(n):
        total += tl.load(x_ptr + i)
        i += 3
    tl.store(out_ptr + tl.arange(0, N), total)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_offsets_of_few_bits_wrap(dtype):
    middle, x = 70000, torch.arange(140000, dtype=torch.int32)
    as_array = getattr(np, dtype)
    for k, c in ((3, 9), (2, 100), (100, 5)):
        out = torch.empty(256, dtype=torch.int32)
        narrow_offset_kernel[(1,)](x[middle:], out, k, c, N=256, T=getattr(tl, dtype))
        want = (np.arange(256).astype(dtype) * as_array(k) + as_array(c)).astype(np.int64)
        np.testing.assert_array_equal(out.numpy() - middle, want)
    out = torch.empty(64, dtype=torch.int32)
    narrow_carried_kernel[(1,)](x[middle:], out, 60, N=64, T=getattr(tl, dtype))
    i, total = np.arange(64).astype(dtype), np.zeros(64, np.int64)
    for _ in range(60):
        total += middle + i.astype(np.int64)
        i = i + as_array(3)
    np.testing.assert_array_equal(out.numpy(), total)


@triton.jit
def compare_kernel(out_ptr, mask_ptr, s, k, c, HOW: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    h = i * k + s
    if HOW == "lt":
        holds = h < c
    elif HOW == "le":
        holds = h <= c
    elif HOW == "gt":
        holds = h > c
    elif HOW == "other":
        holds = c >= h + i
    else:
        holds = h.to(tl.int64) < c
    tl.store(out_ptr + i, tl.where(holds, 1, 2))
    tl.store(mask_ptr + i, 1, mask=holds)


HOLDS = {"lt": lambda h, i, c: h < c, "le": lambda h, i, c: h <= c, "gt": lambda h, i, c: h > c, "other": lambda h, i, c: c >= h + i,
         "wide": lambda h, i, c: h.astype(np.int64) < c}


@pytest.mark.parametrize("how", HOLDS)
@pytest.mark.parametrize("wide", [False, True])
def test_comparisons_near_the_end_of_the_type(how, wide):
    """As data and as a mask; with numbers of 32 and of 64 bits."""
    n, most = 64, 2**63 - 1 if wide else 2**31 - 1
    dtype = np.int64 if wide else np.int32
    with np.errstate(over="ignore"):
        for s in (most, most - 47, most - 63, most - 64, -most - 1, -most + 9, 1, 0):
            for k in (1, 2, -1, 65537):
                for c in (5, most - 20, -most + 20):
                    out, mask = torch.zeros(n, dtype=torch.int32), torch.zeros(n, dtype=torch.int32)
                    if wide:  # Triton types an argument by its value
                        compare_wide_kernel[(1,)](out, mask, torch.tensor([s, k, c]), HOW=how, N=n)
                    else:
                        compare_kernel[(1,)](out, mask, s, k, c, HOW=how, N=n)
                    i = np.arange(n, dtype=dtype)
                    want = HOLDS[how](i * dtype(k) + dtype(s), i, dtype(c))
                    np.testing.assert_array_equal(out.numpy(), np.where(want, 1, 2), err_msg=str((s, k, c)))
                    np.testing.assert_array_equal(mask.numpy(), want.astype(np.int32), err_msg=str((s, k, c)))


@triton.jit
def compare_wide_kernel(out_ptr, mask_ptr, numbers_ptr, HOW: tl.constexpr, N: tl.constexpr):
    s, k, c = tl.load(numbers_ptr), tl.load(numbers_ptr + 1), tl.load(numbers_ptr + 2)
    compare_kernel(out_ptr, mask_ptr, s, k, c, HOW, N)


@triton.jit
def carried_compare_kernel(out_ptr, s, n, c, N: tl.constexpr):
    h = tl.arange(0, N) + s
    count = tl.zeros([N], tl.int32)
    for _ in range(n):
        count += tl.where(h < c, 1, 0)
        h += 7
    tl.store(out_ptr + tl.arange(0, N), count)


@pytest.mark.parametrize("s", [2**31 - 40, 2**31 - 200, -2**31, 0])
def test_a_carried_number_that_wraps_is_compared_as_it_is(s):
    out = torch.zeros(64, dtype=torch.int32)
    carried_compare_kernel[(1,)](out, s, 50, 9, N=64)
    h, count = np.arange(64, dtype=np.int32) + np.int32(s), np.zeros(64, np.int32)
    with np.errstate(over="ignore"):
        for _ in range(50):
            count += h < 9
            h = h + np.int32(7)
    np.testing.assert_array_equal(out.numpy(), count)


@triton.jit
def product_kernel(a_ptr, b_ptr, out_ptr, first, m, N: tl.constexpr):
    rows, r = first + tl.arange(0, N), tl.arange(0, N)
    a = tl.load(a_ptr + r[:, None] * N + r[None, :], mask=rows[:, None] < m, other=0.0)
    b = tl.load(b_ptr + r[:, None] * N + r[None, :])
    tl.store(out_ptr + r[:, None] * N + r[None, :], tl.dot(a, b))


def test_a_row_number_of_a_product_that_wraps_is_an_error(seed):
    g = torch.Generator().manual_seed(seed)
    a, b = torch.randn(16, 16, generator=g), torch.randn(16, 16, generator=g)
    out = torch.zeros(16, 16)
    product_kernel[(1,)](a, b, out, 2**31 - 30, 2**31 - 1, N=16)
    torch.testing.assert_close(out, a @ b)
    with pytest.raises(Error, match="product_kernel.*test_wrap.py.*passes 2\\^31"):
        product_kernel[(1,)](a, b, out, 2**31 - 8, 100, N=16)


@triton.jit
def program_compare_kernel(out_ptr, c, ORDER: tl.constexpr, N: tl.constexpr):
    pid = tl.program_id(0)
    if ORDER == "grouped":
        pid = pid // 8 * 8 + pid % 8
    h = pid * 1048576 + tl.arange(0, N) * 16384
    tl.atomic_add(out_ptr + tl.arange(0, N), tl.where(h < c, 1, 0))


@triton.jit
def count_compare_kernel(out_ptr, n, N: tl.constexpr):
    count = tl.zeros([N], tl.int32)
    for i in range(0, n, 268435456):
        count += tl.where(i + tl.arange(0, N) * 4194304 < 9, 1, 0)
    tl.store(out_ptr + tl.arange(0, N), count)


@pytest.mark.parametrize("order", ["plain", "grouped"])
@pytest.mark.parametrize("programs", [5, 2040, 2048, 2049, 3000])
def test_a_grid_whose_numbers_wrap_is_computed_as_it_wraps(order, programs):
    """Bounds that a launch checks, and the version that runs beyond them."""
    out = torch.zeros(64, dtype=torch.int32)
    program_compare_kernel[(programs,)](out, 9, ORDER=order, N=64)
    h = (np.arange(programs, dtype=np.int64)[:, None] * 1048576 + np.arange(64) * 16384).astype(np.int32)
    np.testing.assert_array_equal(out.numpy(), (h < 9).sum(0))


@pytest.mark.parametrize("n", [10, 2**28 + 1, 2**30, 2**31 - 2**28, 2**31 - 1])
def test_a_loop_whose_numbers_wrap_is_computed_as_it_wraps(n):
    out = torch.zeros(64, dtype=torch.int32)
    count_compare_kernel[(1,)](out, n, N=64)
    h = (np.arange(0, n, 2**28, dtype=np.int64)[:, None] + np.arange(64) * 4194304).astype(np.int32)
    np.testing.assert_array_equal(out.numpy(), (h < 9).sum(0))


def test_bounds_of_a_grid_are_known_to_the_launch():
    """The plain version is used within them: nothing is checked in the kernel."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    src = ASTSource(program_compare_kernel, {"out_ptr": "*i32", "c": "i32", "ORDER": "constexpr", "N": "constexpr"}, {"ORDER": "plain", "N": 64})
    made = triton.compile(src, target=GPUTarget("cpu", "native", 0))
    assert [list(m) for m in made.metadata.most] == [["grid", 0, (2**31 - 1 - 63 * 16384) // 1048576 + 1]]


def test_a_launch_beyond_its_bounds_is_not_replayed():
    """What is replayed is the version with bounds."""
    from triport.backends import context
    from triport.backends.dispatch import quick
    out = torch.zeros(64, dtype=torch.int32)
    for programs, odd in ((5, False), (3000, True)):
        for _ in range(2):  # the first launch of a kernel is odd in any case
            with context.recording() as did:
                quick.launch(program_compare_kernel, (programs,), (out, 9), {"ORDER": "plain", "N": 64})
        assert (None in did.launches) == odd and len(did.launches) == 1 + odd


@triton.jit
def wide_span_kernel(out_ptr, x, n, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    tl.store(out_ptr + i * N + j, 1, mask=x + i * 33554432 + j < n)


@triton.jit
def cancelled_kernel(out_ptr, n, N: tl.constexpr):
    pid = tl.program_id(0)
    i = tl.arange(0, N)
    tl.store(out_ptr + pid * N + i, 1, mask=(pid * 1048576 + i) - pid * 1048575 < n)
    tl.store(out_ptr + pid * N + i, 2, mask=(pid * 2147483637 + 1000 + i) - 1000 < 0)


@triton.jit
def limit_kernel(out_ptr, limit_ptr, N: tl.constexpr):
    i = tl.arange(0, N).to(tl.int64)
    limit = tl.load(limit_ptr)
    tl.store(out_ptr + i, 1, mask=i <= limit)
    tl.store(out_ptr + N + i, 1, mask=i - 10 < limit)
    tl.store(out_ptr + 2 * N + i, 1, mask=i + 3 <= limit)
    tl.store(out_ptr + 3 * N + i, 1, mask=tl.program_id(0).to(tl.int64) * 16 + i <= 9223372036854775807)


@triton.jit
def factor_kernel(out_ptr, q_ptr, x, n, N: tl.constexpr):
    i = tl.arange(0, N)
    w = (i + x).to(tl.int64) - i.to(tl.int64)
    tl.store(out_ptr + i, 1, mask=tl.load(q_ptr).to(tl.int64) * w + i < n)


def test_sums_that_leave_the_type_on_the_way():
    """Spans wider than the type, terms that cancel after they wrapped, limits at the end of 64 bits, a factor that wraps."""
    with np.errstate(over="ignore"):
        out = torch.zeros(256 * 16, dtype=torch.int32)
        wide_span_kernel[(1,)](out, 7, 10**6, M=256, N=16)
        h = np.int32(7) + np.arange(256, dtype=np.int32)[:, None] * np.int32(33554432) + np.arange(16, dtype=np.int32)
        np.testing.assert_array_equal(out.numpy().reshape(256, 16), (h < 10**6).astype(np.int32))

        out = torch.zeros(4096 * 16, dtype=torch.int32)
        cancelled_kernel[(4096,)](out, 1000, N=16)
        pid, i = np.arange(4096, dtype=np.int32)[:, None], np.arange(16, dtype=np.int32)
        want = ((pid * np.int32(1048576) + i) - pid * np.int32(1048575) < 1000).astype(np.int32)
        want[(pid * np.int32(2147483637) + np.int32(1000) + i) - np.int32(1000) < 0] = 2
        np.testing.assert_array_equal(out.numpy().reshape(4096, 16), want)

        for limit in (2**63 - 1, -2**63, 2**62, 5, -5):
            out = torch.zeros(64, dtype=torch.int32)
            limit_kernel[(1,)](out, torch.tensor([limit]), N=16)
            want = [[i <= limit, i - 10 < limit, i + 3 <= limit, True] for i in range(16)]
            assert out.view(4, 16).bool().T.tolist() == want, limit

        out = torch.zeros(16, dtype=torch.int32)
        factor_kernel[(1,)](out, torch.tensor([2**14], dtype=torch.int16), 2**31 - 8, 2**40, N=16)
        i = np.arange(16, dtype=np.int32)
        w = (i + np.int32(2**31 - 8)).astype(np.int64) - i
        np.testing.assert_array_equal(out.numpy(), (2**14 * w + i < 2**40).astype(np.int32))


# --- what is proved ---------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=300)
@given(base=st.integers(-2**40, 2**40), coef=st.dictionaries(st.integers(0, 2), st.integers(-2**33, 2**33), max_size=3),
       shape=st.tuples(*[st.sampled_from([1, 2, 8, 64])] * 3), bits=st.sampled_from([8, 16, 32]))
def test_constant_forms_are_decided_by_their_corners(base, coef, shape, bits):
    check = ranges.Check.of({(): base} if base else {}, {d: {(): c} for d, c in coef.items() if c}, bits)
    corners = [base]
    for d, c in coef.items():
        corners = [x + y for x in corners for y in (0, c * (shape[d] - 1))]
    assert ranges.decided(check, shape) == all(-2**(bits - 1) <= x < 2**(bits - 1) for x in corners)


def test_what_cannot_be_summed_in_64_bits_is_not_used():
    narrow, wide = Value(Type("i32"), name="n"), Value(Type("i64"), name="w")
    form = lambda m, bits: ranges.decided(ranges.Check.of({m: 1}, {0: {(): 1}}, bits), (64,))  # noqa: E731
    assert form((narrow,), 32) is None and form((narrow,), 64) is True
    assert form((wide,), 64) is None
    assert form((wide, wide), 64) is False and form((narrow, narrow, narrow), 32) is False
    assert ranges.decided(ranges.Check.of({(narrow,): 1}, {}, 32), (64,)) is True
