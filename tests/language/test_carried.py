"""Values that loops and branches carry: each slot gets the value of its own, whatever the others are given or read."""

import pytest
import torch
import triton
import triton.language as tl


def ints(seed, *shape, low=-50, high=50):
    return torch.randint(low, high, shape, dtype=torch.int32, generator=torch.Generator().manual_seed(seed))


@triton.jit
def same_value_kernel(c_ptr, x_ptr, y_ptr, n, B: tl.constexpr):
    r = tl.arange(0, B)
    x = tl.load(x_ptr + r)
    y = tl.load(y_ptr + r)
    for _ in range(n):
        x = x + tl.load(c_ptr + r)
        y = x
    tl.store(x_ptr + r, x)
    tl.store(y_ptr + r, y)


@triton.jit
def same_value_while_kernel(c_ptr, x_ptr, y_ptr, n, B: tl.constexpr):
    r = tl.arange(0, B)
    x = tl.load(x_ptr + r)
    y = tl.load(y_ptr + r)
    i = 0
    while i < n:
        x = x * tl.load(c_ptr + r)
        y = x
        i += 1
    tl.store(x_ptr + r, x)
    tl.store(y_ptr + r, y)


@pytest.mark.parametrize("n", [0, 1, 2, 5])
@pytest.mark.parametrize("kernel", [same_value_kernel, same_value_while_kernel])
def test_two_slots_of_one_value(kernel, n, seed):
    c, x, y = (ints(seed + k, 64) for k in range(3))
    want_x, want_y = x.clone(), y.clone()
    for _ in range(n):
        want_x = want_x + c if kernel is same_value_kernel else want_x * c
        want_y = want_x
    kernel[(1,)](c, x, y, n, B=64)
    assert torch.equal(x, want_x) and torch.equal(y, want_y)


@triton.jit
def one_start_kernel(x_ptr, out_ptr, n, HOW: tl.constexpr, B: tl.constexpr):
    r = tl.arange(0, B)
    y = tl.load(x_ptr + r)
    x = y
    z = x
    if HOW == "for":
        for _ in range(n):
            x, y = x * 3, x
    else:
        i = 0
        while i < n:
            x, y = x * 3, x
            i += 1
    tl.store(out_ptr + r, x)
    tl.store(out_ptr + B + r, y)
    tl.store(out_ptr + 2 * B + r, z)


@pytest.mark.parametrize("how", ["for", "while"])
@pytest.mark.parametrize("n", [0, 1, 3])
def test_variables_that_begin_alike_are_carried_apart(how, n, seed):
    x, out = ints(seed, 16), torch.zeros(48, dtype=torch.int32)
    one_start_kernel[(1,)](x, out, n, HOW=how, B=16)
    assert torch.equal(out, torch.cat([x * 3**n, x * 3**max(n - 1, 0), x]))


@triton.jit
def branch_kernel(x_ptr, y_ptr, n, B: tl.constexpr):
    r = tl.arange(0, B)
    x = tl.load(x_ptr + r)
    y = tl.load(y_ptr + r)
    for i in range(n):
        if i % 2 == 0:
            x, y = y, x + y
        else:
            y = x
            x = y * 3
    tl.store(x_ptr + r, x)
    tl.store(y_ptr + r, y)


@triton.jit(noinline=True)
def twice(x, y):
    if y > 0:
        return x + y, x + y
    return y, y


@triton.jit
def call_kernel(x_ptr, y_ptr, n):
    x = tl.load(x_ptr)
    y = tl.load(y_ptr)
    for _ in range(n):
        y, x = twice(x, y)
        x = x - 1
    tl.store(x_ptr, x)
    tl.store(y_ptr, y)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4])
def test_branches_and_calls_in_loops(n, seed):
    x, y = ints(seed, 32), ints(seed + 1, 32)
    a, b = x.clone(), y.clone()
    for i in range(n):
        a, b = (b, a + b) if i % 2 == 0 else (a * 3, a)
    p, q = x.clone(), y.clone()
    branch_kernel[(1,)](p, q, n, B=32)
    assert torch.equal(p, a) and torch.equal(q, b)
    a, b = x[0].item(), y[0].item()
    for _ in range(n):
        b, a = (a + b, a + b) if b > 0 else (b, b)
        a = a - 1
    call_kernel[(1,)](x, y, n)
    assert (x[0].item(), y[0].item()) == (a, b)


@triton.jit
def reordered_kernel(x_ptr, out_ptr, n, HOW: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    r = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    v = tl.load(x_ptr + r)
    for _ in range(n):
        if HOW == "flip":
            v = tl.flip(v, 1) + tl.arange(0, N)[None, :]
        elif HOW == "sort":
            v = tl.sort(v * 7 % 31, 1)
        elif HOW == "turn":
            v = tl.reshape(tl.trans(v), (M, N)) + 1
        elif HOW == "split":
            a, b = tl.split(v)
            v = tl.join(b + 1, a)
        else:
            a, b = tl.split(v)
            v = tl.join(b, b * 3)
    tl.store(out_ptr + r, v)


def c_remainder(x, n):
    return torch.sign(x) * (x.abs() % n)


REORDERED = {
    "flip": lambda v: v.flip(1) + torch.arange(v.shape[1], dtype=torch.int32),
    "sort": lambda v: c_remainder(v * 7, 31).sort(1)[0],
    "turn": lambda v: v.T.reshape(v.shape) + 1,
    "split": lambda v: torch.stack([v[:, 1] + 1, v[:, 0]], 1),
    "second": lambda v: torch.stack([v[:, 1], v[:, 1] * 3], 1),
}


@pytest.mark.parametrize("m,n", [(1, 2), (4, 2), (64, 2), (2, 4), (16, 16)])
@pytest.mark.parametrize("how", REORDERED)
def test_a_slot_that_is_read_in_another_order(how, m, n, seed):
    """Through views of the slot's own scratch: halves, an axis walked backwards, another shape."""
    if how in ("split", "second") and n != 2:
        return
    for trips in (0, 1, 2, 3):
        x = ints(seed + trips, m, n)
        out, want = torch.zeros_like(x), x
        for _ in range(trips):
            want = REORDERED[how](want)
        reordered_kernel[(1,)](x, out, trips, HOW=how, M=m, N=n)
        assert torch.equal(out, want), trips


@triton.jit
def product_kernel(x_ptr, y_ptr, b_ptr, n, HOW: tl.constexpr, N: tl.constexpr):
    r = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    u = tl.load(x_ptr + r)
    v = tl.load(y_ptr + r)
    b = tl.load(b_ptr + r)
    for _ in range(n):
        if HOW == "itself":
            v = tl.dot(v, b, v, input_precision="ieee")
        elif HOW == "other":
            v = tl.dot(v, b, u, input_precision="ieee")
        elif HOW == "right":
            v = tl.dot(b, v, v, input_precision="ieee")
        else:
            t = tl.dot(v, b, u, input_precision="ieee")
            u = v
            v = t
    tl.store(x_ptr + r, u)
    tl.store(y_ptr + r, v)


PRODUCTS = {"itself": lambda u, v, b: (u, v @ b + v), "other": lambda u, v, b: (u, v @ b + u), "right": lambda u, v, b: (u, b @ v + v),
            "both": lambda u, v, b: (v, v @ b + u)}


@pytest.mark.parametrize("n", [4, 16, 64, 128])
@pytest.mark.parametrize("how", PRODUCTS)
def test_a_product_whose_factor_is_the_accumulator(how, n, seed):
    """The loop's accumulator is written in place only where nothing else of the product reads it. Small integers: exact in any order."""
    g = torch.Generator().manual_seed(seed)
    for trips in (1, 2, 3):
        x, y, b = (torch.randint(-1, 2, (n, n), generator=g) * (torch.rand(n, n, generator=g) < 4 / n) for _ in range(3))
        x, y, b = x.float(), y.float(), b.float()
        u, v = x.clone(), y.clone()
        for _ in range(trips):
            u, v = PRODUCTS[how](u, v, b)
        product_kernel[(1,)](x, y, b, trips, HOW=how, N=n)
        assert torch.equal(x, u) and torch.equal(y, v), trips


@triton.jit
def loaded_start_kernel(p_ptr, q_ptr, n, step, B: tl.constexpr):
    r = tl.arange(0, B)
    x = tl.load(p_ptr + r)
    for i in range(n):
        tl.store(q_ptr + B + i * B + r, x)
        tl.store(p_ptr + r, i)
        x += step
    tl.store(p_ptr + r, -1)
    tl.store(q_ptr + r, x)


@pytest.mark.parametrize("n", [0, 1, 3])
def test_what_a_loop_counts_from_is_loaded_before_memory_changes(n, seed):
    p = ints(seed, 64)
    q = torch.zeros(64 * (n + 1), dtype=torch.int32)
    want = torch.cat([p + 5 * n, *(p + 5 * i for i in range(n))])
    loaded_start_kernel[(1,)](p, q, n, 5, B=64)
    assert torch.equal(q, want)


@triton.jit
def empty_branches_kernel(out_ptr, n, m):
    if n == 0:
        pass
    elif m == 3:
        tl.store(out_ptr, 1)
    if n == 0:
        x = 1  # noqa: F841  (dead)
    else:
        tl.atomic_add(out_ptr + 1, 1)
    for i in range(n):
        if i == 2:
            pass
        else:
            tl.store(out_ptr + 2 + i, 1)
    if m == 3:
        tl.store(out_ptr + 7, 1)
    else:
        pass


@pytest.mark.parametrize("n,m,want", [(0, 3, [0, 0, 0, 0, 0, 0, 0, 1]), (5, 3, [1, 1, 1, 1, 0, 1, 1, 1]), (2, 0, [0, 1, 1, 1, 0, 0, 0, 0])])
def test_branches_with_nothing_in_them(n, m, want):
    out = torch.zeros(8, dtype=torch.int32)
    empty_branches_kernel[(1,)](out, n, m)
    assert out.tolist() == want


@triton.jit
def add_pairs(a, b, c, d):
    return a + c, b * d


@triton.jit
def equal_operands_kernel(x_ptr, out_ptr, B: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, B))
    s, p = tl.reduce((x, x), 0, add_pairs)
    cs, cp = tl.associative_scan((x, x), 0, add_pairs)
    tl.store(out_ptr, s)
    tl.store(out_ptr + 1, p)
    tl.store(out_ptr + 2 + tl.arange(0, B), cs)
    tl.store(out_ptr + 2 + B + tl.arange(0, B), cp)


@pytest.mark.parametrize("b", [2, 8, 64])
def test_reductions_and_scans_of_equal_operands(b, seed):
    x = ints(seed, b, low=-3, high=4)
    out = torch.zeros(2 + 2 * b, dtype=torch.int32)
    equal_operands_kernel[(1,)](x, out, B=b)
    want = torch.cat([x.sum(0, keepdim=True), x.prod(0, keepdim=True), x.cumsum(0), x.cumprod(0)]).to(torch.int32)
    assert torch.equal(out, want)


@triton.jit
def range_kernel(out_ptr, lo, hi, step):
    count = 0
    for i in range(lo, hi, step):
        tl.store(out_ptr + 1, i)
        count += 1
    tl.store(out_ptr, count)


@triton.jit
def fixed_range_kernel(out_ptr, lo, hi, STEP: tl.constexpr):
    count = 0
    for i in range(lo, hi, STEP):
        tl.store(out_ptr + 1, i)
        count += 1
    tl.store(out_ptr, count)


LAST32, LAST64 = 2**31 - 1, 2**63 - 1


@pytest.mark.parametrize("kernel", [range_kernel, fixed_range_kernel])
@pytest.mark.parametrize("lo,hi,step", [
    (LAST32 - 7, LAST32, 4), (LAST32 - 99, LAST32, 16), (0, LAST32, LAST32 // 2), (-LAST32 - 1, LAST32, LAST32), (LAST32, LAST32, 2),
    (0, 10, 3), (5, 0, 1), (LAST64 - 9, LAST64, 4), (-LAST64 - 1, LAST64, LAST64), (2**40, 2**40 + 9, 2)])
def test_ranges_whose_next_number_passes_their_type(kernel, lo, hi, step):
    out = torch.full((2,), -1, dtype=torch.int64)
    kernel[(1,)](out, lo, hi, step)
    numbers = range(lo, hi, step)
    assert out.tolist() == [len(numbers), numbers[-1] if numbers else -1]


@triton.jit
def unrolled_kernel(out_ptr, lo, hi, STEP: tl.constexpr, TIMES: tl.constexpr):
    for i in tl.range(lo, hi, STEP, loop_unroll_factor=TIMES):
        tl.atomic_add(out_ptr, 1)
        tl.store(out_ptr + 1, i)


@pytest.mark.parametrize("times", [2, 4])
@pytest.mark.parametrize("step", [1, 2, 5])
def test_unrolled_loops_run_as_often_as_they_should(step, times):
    """Triton's unroller counts trips without a sign."""
    for lo, hi in ((3, 0), (3, 3), (3, 2), (3, 1), (5, 0), (0, 1), (0, 4), (0, 5), (0, 6), (-3, 4), (0, 23), (LAST32 - 9, LAST32), (-LAST32 - 1, -LAST32 + 6)):
        out = torch.full((2,), 0, dtype=torch.int64)
        unrolled_kernel[(1,)](out, lo, hi, STEP=step, TIMES=times)
        numbers = range(lo, hi, step)
        assert out.tolist() == [len(numbers), numbers[-1] if numbers else 0], (lo, hi)


@triton.jit
def two_ranges_kernel(out_ptr, lo, hi, step, u, w, F: tl.constexpr):
    n = (u.to(tl.uint32) // w.to(tl.uint32)).to(tl.int32)
    middle = lo + (n - n % F) * step
    for i in range(lo, middle, step * F):
        tl.atomic_add(out_ptr, 1)
    for i in range(middle, hi, step):
        tl.atomic_add(out_ptr + 1, 1)
    tl.store(out_ptr + 2, n)


def test_a_loop_that_looks_unrolled_is_left_alone():
    out = torch.zeros(3, dtype=torch.int64)
    two_ranges_kernel[(1,)](out, 2, 100, 3, 40, 5, F=4)
    assert out.tolist() == [len(range(2, 26, 12)), len(range(26, 100, 3)), 8]


@triton.jit
def constant_pointer_kernel(x_ptr: tl.const, out_ptr, n, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)


def test_pointers_to_constants(seed):
    x, out = ints(seed, 50), torch.zeros(64, dtype=torch.int32)
    constant_pointer_kernel[(1,)](x, out, 50, B=64)
    assert torch.equal(out[:50], x) and not out[50:].any()


@triton.jit
def sum_kernel(x_ptr, y_ptr, out_ptr, HOW: tl.constexpr):
    x, y = tl.load(x_ptr), tl.load(y_ptr)
    tl.store(out_ptr, x + y if HOW == "add" else x - y if HOW == "sub" else x * y)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
@pytest.mark.parametrize("how", ["add", "sub", "mul"])
def test_debug_checks_integer_overflow(how, dtype):
    """As Triton's GPU backends do; without `debug` integers wrap."""
    from triport.backends.base import Error
    most = torch.iinfo(dtype).max
    x, y, out = torch.tensor([most], dtype=dtype), torch.tensor([-2 if how == "sub" else 2], dtype=dtype), torch.zeros(1, dtype=dtype)
    with pytest.raises(Error, match="overflow detected"):
        sum_kernel[(1,)](x, y, out, HOW=how, debug=True)
    wrapped = {"add": x + y, "sub": x - y, "mul": x * y}[how]
    for options in ({}, {"debug": True, "sanitize_overflow": False}):
        sum_kernel[(1,)](x, y, out, HOW=how, **options)
        assert torch.equal(out, wrapped)


@triton.jit
def gathered_offsets_kernel(x_ptr, start_ptr, index_ptr, out_ptr, n, m, B: tl.constexpr):
    r = tl.arange(0, B)
    index = tl.load(index_ptr + r)
    outer = tl.load(start_ptr + r)
    for _ in range(n):
        inner = outer
        for _ in range(m):
            other = tl.gather(inner, index, 0)  # what the loop carries is in memory, too
            x = tl.load(x_ptr + inner)
            tl.store(start_ptr + r, r)  # what it starts from was read before
            tl.store(out_ptr + inner, x + other)
            inner += B
        outer += 5 * B


@pytest.mark.parametrize("n, m", [(0, 1), (3, 2)])
def test_carried_offsets_are_in_memory_and_addresses(n, m, seed):
    b = 16
    x, start = ints(seed, 400), torch.randperm(b, dtype=torch.int32, generator=torch.Generator().manual_seed(seed))
    index, out, want = ints(seed + 1, b, low=0, high=b), torch.zeros(400, dtype=torch.int32), torch.zeros(400, dtype=torch.int32)
    for i in range(n):
        for j in range(m):
            offs = (start + 5 * b * i + b * j).long()
            want[offs] = x[offs] + offs[index.long()].int()
    gathered_offsets_kernel[(1,)](x, start, index, out, n, m, B=b)
    assert torch.equal(out, want)
