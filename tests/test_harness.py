"""The harness itself: for every op a kernel of zeros, one of NaN and one with an off-by-one mask must fail, and stray
stores must show."""

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings, strategies as st
from triport.bench import check
from triport.ops import registry
from triport.ops.records import DTYPES, TOLERANCE


@triton.jit
def copy_kernel(x_ptr, out_ptr, n, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n + SHIFT)


def result(name, dtype=torch.float32):
    op = registry.get(name)
    case = op.cases[0]
    args = case.make(dtype, "cpu", 5)
    return op, case, args, op.call(*args, **case.kwargs)


@pytest.mark.parametrize("name", registry.NAMES)
def test_right_result_passes(name):
    op, case, args, good = result(name)
    assert check.verdict(op, good, args, case.kwargs)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", registry.NAMES)
def test_zeros_fail(name, dtype):
    op, case, args, good = result(name, dtype)
    assert not check.verdict(op, torch.zeros_like(good), args, case.kwargs)[0]


@pytest.mark.parametrize("name", registry.NAMES)
def test_nan_fails(name):
    op, case, args, good = result(name)
    assert not check.verdict(op, torch.full_like(good, float("nan")), args, case.kwargs)[0]
    one = good.clone()
    one.view(-1)[7] = float("nan")
    assert not check.verdict(op, one, args, case.kwargs)[0]


@pytest.mark.parametrize("name", registry.NAMES)
def test_off_by_one_mask_fails(name):
    """One element too few leaves a guard word in the result, one too many overwrites a guard word behind it."""
    op, case, args, good = result(name)
    n = good.numel()
    for shift in (0, -1, 1):
        view, whole = check.guarded(good.shape, good.dtype)
        copy_kernel[(triton.cdiv(n, 1024) + 1,)](good, whole[64:], n, SHIFT=shift, BLOCK=1024)
        right = check.verdict(op, view, args, case.kwargs)[0] and check.guards_hold(whole)
        assert right == (shift == 0), f"shift {shift}"


def test_infinities_and_shapes():
    inf = torch.tensor([1.0, float("inf")])
    assert check.error(inf, inf) == 0
    assert check.error(-inf, inf) == float("inf")
    assert check.error(torch.ones(2), torch.ones(3)) == float("inf")
    assert check.error(torch.ones(2), torch.zeros(2)) > 1e30
    assert check.error(torch.ones(2, dtype=torch.int64), torch.zeros(2)) == float("inf")


def test_rounding_of_subnormals_is_right_and_zeros_for_them_are_not():
    want = torch.tensor([-2.9334e-07, 4.1e-06], dtype=torch.float64)
    assert check.error(want.half(), want) < 1e-3
    assert check.error(torch.zeros(2, dtype=torch.float16), want) > 1e-3


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_row_lost_among_thousands_fails(dtype, seed):
    """Also one element that is off by half a standard deviation; the norm of all, which lets more elements hide more, lets both pass in bf16."""
    torch.manual_seed(seed)
    want = torch.softmax(torch.randn(20000, 64, dtype=torch.float64), 1)
    got = want.to(DTYPES[dtype])
    assert check.error(got, want) <= TOLERANCE[dtype]
    got[torch.randint(20000, ())] = 0
    assert check.error(got, want) > TOLERANCE[dtype]
    want = torch.randn(2048, 2048, dtype=torch.float64)
    got = want.to(DTYPES[dtype])
    assert check.error(got, want) <= TOLERANCE[dtype]
    got[torch.randint(2048, ()), torch.randint(2048, ())] += 0.5 if dtype == "bf16" else 0.05
    assert check.error(got, want) > TOLERANCE[dtype]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 5000), st.floats(1e-3, 1e3), st.integers(0, 1 << 30))
def test_noise_is_as_large_as_its_norm(n, scale, drawn):
    """Of normally distributed errors the largest one does not count."""
    torch.manual_seed(drawn)
    want = torch.randn(n, dtype=torch.float64) * scale
    got = want + 1e-4 * scale * torch.randn(n, dtype=torch.float64)
    norm = float((got - want).norm() / want.norm())
    assert check.error(got, want) == pytest.approx(norm, rel=1e-9)
