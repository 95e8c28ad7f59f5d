"""Right kernels whose programs meet: by atomic operations, by locks, in an order that they keep to. Nothing is reported of any of them."""

import pytest
import torch
import triton
import triton.language as tl
from faults import ALL, Right
from triport import checking

right = Right()


def same(got, wanted):
    assert torch.allclose(got.double(), wanted.double(), atol=1e-3), (got, wanted)


@triton.jit
def sums(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.atomic_add(out_ptr, tl.sum(tl.load(x_ptr + i, mask=i < n, other=0.0), 0))


@right
def sum_by_atomics():
    x = torch.randn(500)
    sums[(8,)](x, out := torch.zeros(1), 500, N=64)
    same(out, x.sum()[None])


@triton.jit
def relaxed_sums(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.atomic_add(out_ptr + i, tl.load(x_ptr + tl.program_id(0) * N + i), sem="relaxed")


@right
def sum_of_rows_by_relaxed_atomics():
    x = torch.randn(8, 16)
    relaxed_sums[(8,)](x, out := torch.zeros(16), N=16)
    same(out, x.sum(0))


@triton.jit
def bins(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.atomic_add(out_ptr + tl.load(x_ptr + i, mask=i < n, other=0), 1, mask=i < n)


@right
def histogram_by_atomics():
    x = torch.randint(0, 10, (300,), dtype=torch.int32)
    bins[(5,)](x, out := torch.zeros(10, dtype=torch.int32), 300, N=64)
    same(out, torch.bincount(x, minlength=10))


@triton.jit
def block_bins(x_ptr, out_ptr, n, N: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    h = tl.histogram(tl.load(x_ptr + i, mask=i < n, other=0), B, mask=i < n)
    tl.atomic_add(out_ptr + tl.arange(0, B), h)


@right
def histogram_of_blocks():
    x = torch.randint(0, 16, (300,), dtype=torch.int32)
    block_bins[(5,)](x, out := torch.zeros(16, dtype=torch.int32), 300, N=64, B=16)
    same(out, torch.bincount(x, minlength=16))


@triton.jit
def doubles(x_ptr, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2, mask=i < n)


@right
def update_in_place():
    x = torch.randn(500)
    y = x * 2
    doubles[(8,)](x, 500, N=64)
    same(x, y)


@triton.jit
def softmax_in_place(x_ptr, n, N: tl.constexpr):
    r, c = tl.program_id(0), tl.arange(0, N)
    x = tl.load(x_ptr + r * n + c, mask=c < n, other=-float("inf"))
    e = tl.exp(x - tl.max(x, 0))
    tl.store(x_ptr + r * n + c, e / tl.sum(e, 0), mask=c < n)


@right
def rows_in_place():
    """Rows of 13 floats: neighbours share each line of marks."""
    x = torch.randn(9, 13)
    y = torch.softmax(x, 1)
    softmax_in_place[(9,)](x, 13, N=16)
    same(x, y)


@triton.jit
def even_odd(x_ptr, N: tl.constexpr):
    i = 2 * tl.arange(0, N) + tl.program_id(0)
    tl.store(x_ptr + i, tl.load(x_ptr + i) + tl.program_id(0))


@right
def interleaved_programs():
    even_odd[(2,)](x := torch.zeros(64), N=32)
    same(x, torch.tensor([0.0, 1.0]).repeat(32))


@triton.jit
def swaps_in_place(x_ptr, n, N: tl.constexpr):
    """The lower triangle's programs leave; a tile and its mirror are one program's."""
    p, q = tl.program_id(0), tl.program_id(1)
    if p <= q:
        i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
        a, b = (p * N + i) * n + q * N + j, (q * N + i) * n + p * N + j
        x, y = tl.load(x_ptr + a), tl.load(x_ptr + b)
        tl.debug_barrier()
        tl.store(x_ptr + b, tl.trans(x))
        tl.store(x_ptr + a, tl.trans(y))


@right
def transposing_in_place_by_tiles():
    x = torch.randn(32, 32)
    y = x.t().clone()
    swaps_in_place[(2, 2)](x, 32, N=16)
    same(x, y)


@triton.jit
def locked(lock_ptr, out_ptr, x_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + tl.program_id(0) * N + i)
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(out_ptr + i, tl.load(out_ptr + i) + x)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)


@right
def sum_under_a_lock():
    x = torch.randn(20, 16)
    locked[(20,)](torch.zeros(1, dtype=torch.int32), out := torch.zeros(16), x, N=16)
    same(out, x.sum(0))


@triton.jit
def locked_by_sem(lock_ptr, out_ptr, x_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    while tl.atomic_cas(lock_ptr, 0, 1, sem="acquire") == 1:
        pass
    tl.store(out_ptr + i, tl.load(out_ptr + i) + tl.load(x_ptr + tl.program_id(0) * N + i))
    tl.atomic_xchg(lock_ptr, 0, sem="release")


@right
def sum_under_a_lock_with_acquire_and_release():
    x = torch.randn(20, 16)
    locked_by_sem[(20,)](torch.zeros(1, dtype=torch.int32), out := torch.zeros(16), x, N=16)
    same(out, x.sum(0))


@triton.jit
def norm_backward(x_ptr, dy_ptr, w_ptr, mean_ptr, rstd_ptr, dx_ptr, dw_ptr, lock_ptr, n, GROUPS: tl.constexpr, N: tl.constexpr):
    """Gradients of a layer norm: dx of a row, and its part of dw under the lock of the row's group, as the tutorial has it."""
    r, c = tl.program_id(0), tl.arange(0, N)
    inside = c < n
    x = tl.load(x_ptr + r * n + c, mask=inside, other=0.0)
    dy = tl.load(dy_ptr + r * n + c, mask=inside, other=0.0)
    w = tl.load(w_ptr + c, mask=inside, other=0.0)
    rstd = tl.load(rstd_ptr + r)
    xhat = tl.where(inside, (x - tl.load(mean_ptr + r)) * rstd, 0.0)
    wdy = w * dy
    c1, c2 = tl.sum(xhat * wdy, 0) / n, tl.sum(wdy, 0) / n
    tl.store(dx_ptr + r * n + c, (wdy - (xhat * c1 + c2)) * rstd, mask=inside)
    part = dy * xhat
    group = r % GROUPS
    lock, count = lock_ptr + group, lock_ptr + GROUPS + group
    at = dw_ptr + group * n + c
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    if tl.load(count) == 0:
        tl.atomic_xchg(count, 1)
    else:
        part += tl.load(at, mask=inside)
    tl.store(at, part, mask=inside)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def sums_groups(parts_ptr, out_ptr, m, n, M: tl.constexpr, N: tl.constexpr):
    c = tl.program_id(0) * N + tl.arange(0, N)
    acc = tl.zeros((M, N), tl.float32)
    for s in range(0, m, M):
        r = s + tl.arange(0, M)
        acc += tl.load(parts_ptr + r[:, None] * n + c[None, :], mask=(r < m)[:, None] & (c < n)[None, :], other=0.0)
    tl.store(out_ptr + c, tl.sum(acc, 0), mask=c < n)


@right
def layer_norm_backward():
    """The sums of groups are in torch.empty: the first program of each writes them, and nobody reads them before."""
    x, dy, w = torch.randn(24, 29, requires_grad=True), torch.randn(24, 29), torch.randn(29, requires_grad=True)
    torch.nn.functional.layer_norm(x, (29,), w).backward(dy)
    xs = x.detach()
    mean, rstd = xs.mean(1), (xs.var(1, unbiased=False) + 1e-5).rsqrt()
    parts, dx, dw = torch.empty(4, 29), torch.empty(24, 29), torch.empty(29)
    norm_backward[(24,)](xs, dy, w, mean, rstd, dx, parts, torch.zeros(8, dtype=torch.int32), 29, GROUPS=4, N=32)
    sums_groups[(2,)](parts, dw, 4, 29, M=4, N=16)
    same(dx, x.grad)
    same(dw, w.grad)


@triton.jit
def last_finishes(x_ptr, parts_ptr, count_ptr, out_ptr, P: tl.constexpr, N: tl.constexpr):
    p = tl.program_id(0)
    tl.store(parts_ptr + p, tl.sum(tl.load(x_ptr + p * N + tl.arange(0, N)), 0))
    if tl.atomic_add(count_ptr, 1) == P - 1:
        tl.store(out_ptr, tl.sum(tl.load(parts_ptr + tl.arange(0, P)), 0))
        tl.store(count_ptr, 0)


@right
def last_block_finishes_the_sum():
    x, count = torch.randn(16, 32), torch.zeros(1, dtype=torch.int32)
    for _ in range(2):
        last_finishes[(16,)](x, torch.empty(16), count, out := torch.empty(1), P=16, N=32)
        same(out, x.sum()[None])


@triton.jit
def last_replaces(x_ptr, count_ptr, N: tl.constexpr, P: tl.constexpr):
    """All programs read all of x; whoever is last replaces it."""
    i = tl.arange(0, N)
    total = tl.sum(tl.load(x_ptr + i), 0)
    if tl.atomic_add(count_ptr, 1) == P - 1:
        tl.store(x_ptr + i, total + i)


@right
def last_block_writes_what_all_have_read():
    x = torch.ones(40)[:32]
    last_replaces[(9,)](x, torch.zeros(1, dtype=torch.int32), N=32, P=9)
    same(x, 32 + torch.arange(32))


@triton.jit
def last_reads_atomics(x_ptr, sums_ptr, count_ptr, out_ptr, P: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.atomic_add(sums_ptr + i, tl.load(x_ptr + tl.program_id(0) * N + i), sem="relaxed")
    tl.debug_barrier()
    if tl.atomic_add(count_ptr, 1) == P - 1:
        tl.store(out_ptr + i, tl.load(sums_ptr + i))
        tl.store(sums_ptr + i, 0.0)


@right
def last_block_reads_atomic_sums():
    x, s = torch.randn(7, 16), torch.zeros(16)
    last_reads_atomics[(7,)](x, s, torch.zeros(1, dtype=torch.int32), out := torch.empty(16), P=7, N=16)
    same(out, x.sum(0))
    same(s, torch.zeros(16))


@triton.jit
def chain(x_ptr, sums_ptr, flags_ptr, out_ptr, N: tl.constexpr):
    """A scan over blocks: each program waits for the sum of the one before it."""
    p, i = tl.program_id(0), tl.arange(0, N)
    x = tl.load(x_ptr + p * N + i)
    before = 0.0
    if p > 0:
        while tl.atomic_add(flags_ptr + p - 1, 0) == 0:
            pass
        before = tl.load(sums_ptr + p - 1)
    tl.store(sums_ptr + p, before + tl.sum(x, 0))
    tl.debug_barrier()
    tl.atomic_xchg(flags_ptr + p, 1)
    tl.store(out_ptr + p * N + i, before + tl.cumsum(x, 0))


@right
def scan_that_is_chained():
    x = torch.randn(6, 16)
    chain[(6,)](x, torch.empty(6), torch.zeros(6, dtype=torch.int32), out := torch.empty(6, 16), N=16)
    same(out, x.view(-1).cumsum(0).view(6, 16))


@triton.jit
def waits_for_a_volatile(x_ptr, flag_ptr, out_ptr, N: tl.constexpr):
    p, i = tl.program_id(0), tl.arange(0, N)
    if p == 0:
        tl.store(out_ptr + i, tl.load(x_ptr + i) * 2)
        tl.debug_barrier()
        tl.atomic_xchg(flag_ptr, 1)
    else:
        while tl.load(flag_ptr, volatile=True) != 1:
            pass
        tl.store(out_ptr + p * N + i, tl.load(out_ptr + i))


@right
def flag_that_is_read_as_volatile():
    x = torch.randn(16)
    waits_for_a_volatile[(3,)](x, torch.zeros(1, dtype=torch.int32), out := torch.empty(48), N=16)
    same(out, (x * 2).repeat(3))


@triton.jit
def takes_tickets(next_ptr, x_ptr, out_ptr, n):
    """Persistent programs: each takes the next row until there is none."""
    row = tl.atomic_add(next_ptr, 1)
    while row < n:
        tl.store(out_ptr + row, tl.load(x_ptr + row) * 2)
        row = tl.atomic_add(next_ptr, 1)


@right
def tickets():
    x = torch.randn(50)
    takes_tickets[(3,)](torch.zeros(1, dtype=torch.int32), x, out := torch.empty(50), 50)
    same(out, x * 2)


@triton.jit
def stream_k(a_ptr, b_ptr, out_ptr, parts_ptr, flags_ptr, n, k, total, share, M: tl.constexpr, K: tl.constexpr):
    """Tiles of 16 x 16, each of k / K steps; each program has a share of all steps. Who has a tile's first steps leaves them in `parts` for the one
    that has its last."""
    p = tl.program_id(0)
    steps = k // K
    at, end = p * share, tl.minimum(p * share + share, total)
    i, q = tl.arange(0, M), tl.arange(0, K)
    while at < end:
        tile = at // steps
        first, last = at - tile * steps, tl.minimum(end - tile * steps, steps)
        r, c = tile // (n // M) * M + i, tile % (n // M) * M + i
        acc = tl.zeros((M, M), tl.float32)
        for s in range(first, last):
            a = tl.load(a_ptr + r[:, None] * k + s * K + q[None, :])
            b = tl.load(b_ptr + (s * K + q)[:, None] * n + c[None, :])
            acc = tl.dot(a, b, acc, input_precision="ieee")
        mine = i[:, None] * M + i[None, :]
        if last < steps:
            tl.store(parts_ptr + p * M * M + mine, acc)
            tl.debug_barrier()
            tl.atomic_xchg(flags_ptr + p, 1)
        else:
            if first > 0:
                while tl.atomic_cas(flags_ptr + p - 1, 1, 1) != 1:
                    pass
                acc += tl.load(parts_ptr + (p - 1) * M * M + mine)
            tl.store(out_ptr + r[:, None] * n + c[None, :], acc)
        at = tile * steps + last


@right
def product_by_streams():
    a, b, out = torch.randn(32, 80), torch.randn(80, 32), torch.empty(32, 32)
    total, share = 4 * 5, 7
    programs = triton.cdiv(total, share)
    stream_k[(programs,)](a, b, out, torch.empty(programs, 16, 16), torch.zeros(programs, dtype=torch.int32), 32, 80, total, share, M=16, K=16)
    same(out, a @ b)


@triton.jit
def split_k(a_ptr, b_ptr, out_ptr, k, M: tl.constexpr, K: tl.constexpr):
    m, q = tl.arange(0, M), tl.program_id(0) * K + tl.arange(0, K)
    acc = tl.dot(tl.load(a_ptr + m[:, None] * k + q[None, :]), tl.load(b_ptr + q[:, None] * M + m[None, :]), input_precision="ieee")
    tl.atomic_add(out_ptr + m[:, None] * M + m[None, :], acc)


@right
def split_product_by_atomics():
    a, b = torch.randn(16, 64), torch.randn(64, 16)
    split_k[(4,)](a, b, out := torch.zeros(16, 16), 64, M=16, K=16)
    same(out, a @ b)


@triton.jit
def first_come(slot_ptr, out_ptr):
    """One program wins, and it alone writes."""
    if tl.atomic_cas(slot_ptr, 0, tl.program_id(0) + 1) == 0:
        tl.store(out_ptr, tl.program_id(0))


@right
def one_program_wins():
    first_come[(5,)](slot := torch.zeros(1, dtype=torch.int32), out := torch.full((1,), -1, dtype=torch.int32))
    assert out.item() == slot.item() - 1


@triton.jit
def most(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.atomic_max(out_ptr + i % 4, tl.load(x_ptr + tl.program_id(0) * N + i), mask=i != 3)


@right
def maximum_by_masked_atomics():
    x = torch.randint(0, 99, (6, 16), dtype=torch.int32)
    most[(6,)](x, out := torch.zeros(4, dtype=torch.int32), N=16)
    x[:, 3] = 0
    same(out, x.view(6, 4, 4).amax((0, 1)))


@triton.jit
def neighbours(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    left, right_ = tl.load(x_ptr + i - 1, mask=(i > 0) & (i < n), other=0.0), tl.load(x_ptr + i + 1, mask=i + 1 < n, other=0.0)
    tl.store(out_ptr + i, left + right_, mask=i < n)


@right
def stencil_to_another_tensor():
    x = torch.randn(100)
    neighbours[(4,)](x, out := torch.empty(100), 100, N=32)
    same(out, torch.cat([torch.zeros(1), x[:-1]]) + torch.cat([x[1:], torch.zeros(1)]))


@right
def halves_of_one_storage():
    x = torch.randn(128)
    neighbours[(2,)](x[:64], x[64:], 64, N=32)


@right
def one_launch_behind_the_other():
    """What one launch writes, other programs of the next one read and write."""
    x, y = torch.randn(128), torch.empty(128)
    for _ in range(5):
        neighbours[(4,)](x, y, 128, N=32)
        x, y = y, x
    doubles[(2,)](x, 128, N=64)


@triton.jit
def flags_that_all_look_at(flag_ptr, out_ptr):
    p = tl.program_id(0)
    if p == 0:
        tl.store(out_ptr, tl.load(flag_ptr))
    else:
        tl.store(out_ptr + p, tl.load(flag_ptr, volatile=True))


@right
def volatile_and_plain_reads():
    flags_that_all_look_at[(4,)](torch.ones(1, dtype=torch.int32), out := torch.empty(4, dtype=torch.int32))
    same(out, torch.ones(4))


@triton.jit
def many_releases(lock_ptr, out_ptr, TIMES: tl.constexpr):
    for _ in range(TIMES):
        while tl.atomic_cas(lock_ptr, 0, 1) == 1:
            pass
        tl.store(out_ptr, tl.load(out_ptr) + 1)
        tl.atomic_xchg(lock_ptr, 0)


@right
def lock_that_is_taken_often():
    for _ in range(3):
        many_releases[(5,)](torch.zeros(1, dtype=torch.int32), out := torch.zeros(1), TIMES=60)
        assert out.item() == 300
        doubles[(5,)](torch.ones(320), 320, N=64)


@triton.jit
def expanded_gradient(g_ptr, stride, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + tl.program_id(0) * N + i, tl.load(g_ptr + tl.program_id(0) * stride + i * 0) * 2)


@right
def gradient_of_a_sum():
    g = torch.ones(()).expand(4, 16)
    expanded_gradient[(4,)](g, g.stride(0), out := torch.empty(4, 16), N=16)
    same(out, torch.full((4, 16), 2.0))


@right
def bytes_of_neighbours():
    x = torch.ones(7 * 13, dtype=torch.bool).view(7, 13)
    flips[(7,)](x, N=16, n=13)
    assert not x.any()


@triton.jit
def flips(x_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    at = x_ptr + tl.program_id(0) * n + i
    tl.store(at, tl.load(at, mask=i < n) == 0, mask=i < n)


@pytest.mark.parametrize("launch", right.cases)
def test_nothing_is_reported(launch):
    torch.manual_seed(0)
    with checking.checks(ALL):
        launch()
