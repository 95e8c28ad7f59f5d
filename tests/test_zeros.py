"""Accumulators of matrix products that begin as zeros: in registers, not in memory, and zeros all the same where nothing is computed."""

import pytest
import torch
import triton
import triton.language as tl
from test_decisions import compiled

BEGINS = "accumulators begin as zeros in registers"


@triton.jit
def loop_kernel(a_ptr, b_ptr, out_ptr, m, n, k, pitch, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, FIRST: tl.constexpr):
    """out = FIRST + a @ b, of one block; elements of out are `pitch` apart from row to row."""
    rows, cols, depth = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    acc = tl.full((M, N), FIRST, tl.float32)
    for start in range(0, k, K):
        at = start + depth
        a = tl.load(a_ptr + rows[:, None] * k + at[None, :], mask=(rows[:, None] < m) & (at[None, :] < k), other=0.0)
        b = tl.load(b_ptr + at[:, None] * n + cols[None, :], mask=(at[:, None] < k) & (cols[None, :] < n), other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    tl.store(out_ptr + rows[:, None] * pitch + cols[None, :], acc)


@triton.jit
def again_kernel(a_ptr, b_ptr, out_ptr, times, trips, S: tl.constexpr):
    """out[t] = the sum over i < trips of a[i] @ b[i], for each t: a loop in a loop."""
    square = tl.arange(0, S)[:, None] * S + tl.arange(0, S)[None, :]
    for t in range(times):
        acc = tl.zeros((S, S), tl.float32)
        for i in range(trips):
            acc = tl.dot(tl.load(a_ptr + i * S * S + square), tl.load(b_ptr + i * S * S + square), acc, input_precision="ieee")
        tl.store(out_ptr + t * S * S + square, acc)


@triton.jit
def two_kernel(a_ptr, b_ptr, out_ptr, trips, HALF: tl.constexpr, S: tl.constexpr):
    """out = the sum over i < trips of 2 a @ b in two steps, the first of them halved where HALF: what is carried is read by more than a product."""
    square = tl.arange(0, S)[:, None] * S + tl.arange(0, S)[None, :]
    a, b = tl.load(a_ptr + square), tl.load(b_ptr + square)
    acc = tl.zeros((S, S), tl.float32)
    for _ in range(trips):
        if HALF:
            acc = acc * 0.5
        else:
            acc = tl.dot(a, b, acc, input_precision="ieee")
        acc = tl.dot(a, b, acc, input_precision="ieee")
    tl.store(out_ptr + square, acc)


@triton.jit(do_not_specialize=["first", "second", "times"])
def twice_kernel(a_ptr, b_ptr, out_ptr, first, second, times, S: tl.constexpr, HOW: tl.constexpr):
    """out[t] = the sum over i < first of a[i] @ b[i], and over i < second of b[i] @ a[i], in two loops. HOW: "on", the second goes on with the first's; "read": out[times + t] is
    what the first one left; "again", the second loop is in one that starts `times` times from the first's."""
    square = tl.arange(0, S)[:, None] * S + tl.arange(0, S)[None, :]
    acc = tl.zeros((S, S), tl.float32)
    for i in range(first):
        acc = tl.dot(tl.load(a_ptr + i * S * S + square), tl.load(b_ptr + i * S * S + square), acc, input_precision="ieee")
    for t in range(times):
        if HOW == "again":
            both = acc
            for i in range(second):
                both = tl.dot(tl.load(b_ptr + i * S * S + square), tl.load(a_ptr + i * S * S + square), both, input_precision="ieee")
            tl.store(out_ptr + t * S * S + square, both)
    if HOW != "again":
        both = acc
        for i in range(second):
            both = tl.dot(tl.load(b_ptr + i * S * S + square), tl.load(a_ptr + i * S * S + square), both, input_precision="ieee")
        tl.store(out_ptr + square, both)
    if HOW == "read":
        tl.store(out_ptr + S * S + square, acc)


@triton.jit
def plain_kernel(a_ptr, b_ptr, out_ptr, S: tl.constexpr):
    square = tl.arange(0, S)[:, None] * S + tl.arange(0, S)[None, :]
    tl.store(out_ptr + square, tl.dot(tl.load(a_ptr + square), tl.load(b_ptr + square), input_precision="ieee"))


def plan_of(kernel, target: str, **consts) -> str:
    return compiled(kernel, target, **consts).asm["plan"]


TARGETS = ("x86-64-v3", "sapphirerapids", "neoverse-v2", "rv64gcv", "spacemit-x60")


@pytest.mark.parametrize("target", TARGETS)
def test_the_plan(target):
    """No zeros are put into memory before the loop; they are where it makes no trip."""
    plan = plan_of(loop_kernel, target, M=32, N=64, K=32, FIRST=0.0)
    assert f"{BEGINS}, in the first trip" in plan
    assert "carried by the loop" not in plan[:plan.index(": for")] and "where it makes no trip" in plan
    assert f"{BEGINS};" in plan_of(plain_kernel, target, S=32)


def test_who_does_not_begin_so():
    """Accumulators that begin as ones, or as minus zero, and those that something else reads."""
    for first in (1.0, -0.0):
        kernel = compiled(loop_kernel, "x86-64-v3", M=32, N=64, K=32, FIRST=first)
        if first or "-0.0" in kernel.asm["ttir"]:  # some versions of Triton make 0.0 of it
            assert BEGINS not in kernel.asm["plan"]
    assert BEGINS not in plan_of(two_kernel, "x86-64-v3", HALF=True, S=32)


@pytest.mark.parametrize("first", [0.0, -0.0, 1.0])
@pytest.mark.parametrize("m,n,k", [(64, 64, 70), (37, 64, 32), (64, 41, 64), (5, 3, 1), (64, 64, 0), (9, 64, 0), (0, 0, 40), (1, 64, 33),
                                   (64, 64, 128), (61, 64, 128), (64, 64, 160), (64, 33, 257)])  # 128 of K at once, and what is left
def test_all_are_written(m, n, k, first, seed):
    """Rows and columns that masks leave out, and loops that make no trip, leave what the accumulators begin with."""
    make = torch.Generator().manual_seed(seed)
    a, b = torch.randn(m, k, generator=make), torch.randn(k, n, generator=make)
    out = torch.full((64, 80), 7.0)
    for _ in range(2):  # again, over what the first one left in scratch
        loop_kernel[(1,)](a, b, out, m, n, k, 80, M=64, N=64, K=32, FIRST=first)
        want = torch.full((64, 64), first, dtype=torch.float64)
        want[:m, :n] += a.double() @ b.double()
        torch.testing.assert_close(out[:, :64].double(), want, rtol=1e-5, atol=1e-4)
        assert (out[:, 64:] == 7).all()
        a, b = a.flip(0).contiguous(), b.flip(1).contiguous()


def test_what_is_not_computed_is_still_nan_where_b_is():
    """Rows that are not there times an infinity are NaN, on the first trip as on others."""
    a, b, out = torch.ones(3, 64), torch.ones(64, 64), torch.empty(64, 80)
    b[40, 5] = float("inf")
    loop_kernel[(1,)](a, b, out, 3, 64, 64, 80, M=64, N=64, K=32, FIRST=0.0)
    assert (out[:3, 5] == float("inf")).all() and out[3:, 5].isnan().all() and (out[3:, :5] == 0).all() and (out[:3, :5] == 64).all()


@pytest.mark.parametrize("trips", [0, 1, 3])
def test_a_loop_in_a_loop_begins_anew(trips, seed):
    make = torch.Generator().manual_seed(seed)
    a, b, out = (torch.randn(n, 32, 32, generator=make) for n in (max(trips, 1), max(trips, 1), 3))
    kernel = again_kernel[(1,)](a, b, out, 3, trips, S=32)
    assert BEGINS in kernel.asm["plan"]
    want = (a.double() @ b.double())[:trips].sum(0)
    torch.testing.assert_close(out.double(), want.expand(3, 32, 32), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("how", ["on", "read", "again"])
@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("second", [0, 1, 2])
def test_one_loop_goes_on_from_another(how, first, second, seed):
    make = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(2, 64, 64, generator=make) for _ in "ab")
    out = torch.full((2, 64, 64), 7.0)
    kernel = twice_kernel[(1,)](a, b, out, first, second, 2 if how == "again" else 0, S=64, HOW=how)
    begun = (a.double() @ b.double())[:first].sum(0)
    want = begun + (b.double() @ a.double())[:second].sum(0)
    torch.testing.assert_close(out[0].double(), want, rtol=1e-5, atol=1e-4)
    if how != "on":
        torch.testing.assert_close(out[1].double(), begun if how == "read" else want, rtol=1e-5, atol=1e-4)
    copied = "put for@" in kernel.asm["plan"]
    assert copied == (how != "on")


@pytest.mark.parametrize("second", [0, 1, 2])
def test_a_loop_goes_on_from_a_product(second, seed):
    make = torch.Generator().manual_seed(seed)
    a, b, out = (torch.randn(2, 64, 64, generator=make) for _ in range(3))
    kernel = twice_kernel.fn
    kernel = triton.jit(do_not_specialize=["second", "times"])(kernel)[(1,)](a, b, out, 1, second, 0, S=64, HOW="on")  # one trip is no loop
    torch.testing.assert_close(out[0].double(), (a.double() @ b.double())[0] + (b.double() @ a.double())[:second].sum(0), rtol=1e-5, atol=1e-4)
    assert ": for, carries" in kernel.asm["plan"] and "carried by the loop" not in kernel.asm["plan"]


@pytest.mark.parametrize("target", TARGETS)
def test_what_an_unrolled_loop_leaves_is_not_copied(target):
    """K by four pieces at once, and the rest by one: both add to one place, which neither fills with zeros before."""
    plan = plan_of(loop_kernel, target, M=64, N=64, K=32, FIRST=0.0)
    if target != "spacemit-x60":  # whose scratch holds fewer pieces
        assert "4 pieces of K at once" in plan
    assert "put for@" not in plan and plan.count("where it makes no trip, and the loop before it made none") == 1 == plan.count("where it makes no trip")
    assert f"{BEGINS}, in the first trip where the loop before it made none" in plan
    assert "put for@" not in plan_of(loop_kernel, target, M=64, N=64, K=32, FIRST=1.0)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("trips", [0, 1, 2])
def test_what_is_carried_and_read(half, trips, seed):
    make = torch.Generator().manual_seed(seed)
    a, b, out = (torch.randn(32, 32, generator=make) for _ in range(3))
    two_kernel[(1,)](a, b, out, trips, HALF=half, S=32)
    want = (a.double() @ b.double()) * ((2 - 2 * 0.5**trips) if half else 2 * trips)
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype,tolerance", [(torch.float32, 1e-5), (torch.float64, 1e-12), (torch.bfloat16, 1e-2), (torch.float16, 1e-3), (torch.int8, 0)])
def test_a_product_alone(dtype, tolerance, seed):
    make = torch.Generator().manual_seed(seed)
    draw = (lambda: torch.randint(-100, 100, (32, 32), generator=make).to(dtype)) if dtype == torch.int8 else lambda: torch.randn(32, 32, generator=make).to(dtype)
    a, b = draw(), draw()
    out = torch.full((32, 32), 7, dtype=torch.int32 if dtype == torch.int8 else torch.float64 if dtype == torch.float64 else torch.float32)
    plain_kernel[(1,)](a, b, out, S=32)
    torch.testing.assert_close(out.double(), a.double() @ b.double(), rtol=tolerance, atol=tolerance)
