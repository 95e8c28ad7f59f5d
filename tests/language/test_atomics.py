"""Atomics: every kind and type, masked, with their results, from several threads at once."""

import platform
import threading

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from values import random, torch_type


@triton.jit
def rmw_kernel(x_ptr, p_ptr, old_ptr, n, OP: tl.constexpr, SEM: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    p = p_ptr + i % K
    if OP == "add":
        old = tl.atomic_add(p, x, mask=i < n, sem=SEM)
    elif OP == "max":
        old = tl.atomic_max(p, x, mask=i < n, sem=SEM)
    elif OP == "min":
        old = tl.atomic_min(p, x, mask=i < n, sem=SEM)
    elif OP == "and":
        old = tl.atomic_and(p, x, mask=i < n, sem=SEM)
    elif OP == "or":
        old = tl.atomic_or(p, x, mask=i < n, sem=SEM)
    elif OP == "xor":
        old = tl.atomic_xor(p, x, mask=i < n, sem=SEM)
    else:
        old = tl.atomic_xchg(p, x, mask=i < n, sem=SEM)
    tl.store(old_ptr + i, old, mask=i < n)


INTEGER = {"add": np.add, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or,
           "xor": np.bitwise_xor}


@pytest.mark.parametrize("op", [*INTEGER, "xchg"])
@pytest.mark.parametrize("name", ["int32", "int64", "uint32", "uint64"])
@pytest.mark.parametrize("sem", ["relaxed", "acquire", "release", "acq_rel"])
def test_integer_rmw(op, name, sem, seed):
    n, k = 997, 5
    x = random(name, n, seed)
    start = random(name, k, seed + 1)
    p, old = start.clone(), torch.zeros_like(x)
    rmw_kernel[(triton.cdiv(n, 64),)](x, p, old, n, op, sem, k, 64)
    # What an exchange leaves, and what each element saw, depends on the order; the multiset of values does not.
    if op == "xchg":
        for j in range(k):
            before = sorted([start.tolist()[j], *x[j::k].tolist()])
            assert sorted([p.tolist()[j], *old[j::k].tolist()]) == before
        return
    want = start.numpy().copy()
    with np.errstate(all="ignore"):
        for j in range(k):
            want[j] = INTEGER[op].reduce(np.concatenate([start.numpy()[j:j + 1], x.numpy()[j::k]]), dtype=want.dtype)
    assert p.tolist() == want.tolist()


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_float_add(name, seed):
    """Small integers add up exactly, whatever the order."""
    n, k = 600, 3
    x = torch.randint(-2, 3, (n,), generator=torch.Generator().manual_seed(seed)).to(torch_type(name))
    p, old = torch.zeros(k, dtype=x.dtype), torch.zeros_like(x)
    rmw_kernel[(triton.cdiv(n, 32),)](x, p, old, n, "add", "acq_rel", k, 32)
    want = torch.stack([x[j::k].double().sum() for j in range(k)])
    assert torch.equal(p.double(), want)


@pytest.mark.parametrize("name", ["float32", "float64"])
@pytest.mark.parametrize("op", ["max", "min"])
def test_float_max(name, op, seed):
    n, k = 600, 3
    x = random(name, n, seed, small=True)
    p, old = torch.zeros(k, dtype=x.dtype), torch.zeros_like(x)
    rmw_kernel[(triton.cdiv(n, 32),)](x, p, old, n, op, "relaxed", k, 32)
    for j in range(k):
        assert p[j] == getattr(torch.cat([x[j::k], torch.zeros(1, dtype=x.dtype)]), op)()


@triton.jit
def counter_kernel(lock_ptr, total_ptr, seen_ptr):
    pid = tl.program_id(0)
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    value = tl.load(total_ptr)
    tl.store(seen_ptr + pid, value)
    tl.store(total_ptr, value + 1)
    tl.atomic_xchg(lock_ptr, 0)


def test_a_lock_by_compare_and_swap():
    """Programs on several threads take turns: no increment is lost."""
    lock, total, seen = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32), torch.zeros(
        500, dtype=torch.int32)
    counter_kernel[(500,)](lock, total, seen)
    assert total.item() == 500 and sorted(seen.tolist()) == list(range(500))


@triton.jit
def cas_kernel(p_ptr, cmp_ptr, val_ptr, old_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(old_ptr + i, tl.atomic_cas(p_ptr + i, tl.load(cmp_ptr + i), tl.load(val_ptr + i)))


@pytest.mark.parametrize("name", ["int16", "int32", "int64", "float16", "float32", "float64"])
def test_tensor_cas(name, seed):
    p = random(name, 64, seed, small=True)
    cmp = torch.where(torch.arange(64) % 2 == 0, p, p + 1)
    val = random(name, 64, seed + 1, small=True)
    before, old = p.clone(), torch.zeros_like(p)
    cas_kernel[(1,)](p, cmp, val, old, 64)
    assert torch.equal(old, before)
    same = (before.view(torch.uint8).reshape(64, -1) == cmp.view(torch.uint8).reshape(64, -1)).all(1)
    assert torch.equal(p, torch.where(same, val, before))


@triton.jit
def order_kernel(p_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    before = tl.load(p_ptr + i // 2)
    old = tl.atomic_add(p_ptr + i // 2, i)
    tl.store(out_ptr + i, before * 1000 + old)
    tl.store(out_ptr + N + i, tl.load(p_ptr + i // 2))


def test_loads_and_atomics_keep_their_order():
    """A load before an atomic to the same place sees the old value, one after it the new."""
    n = 32
    p, out = torch.arange(n // 2, dtype=torch.int32), torch.zeros(2 * n, dtype=torch.int32)
    order_kernel[(1,)](p, out, n)
    i = torch.arange(n)
    first = i // 2
    seen = first * 1000 + first + torch.where(i % 2 == 1, i - 1, 0)
    assert torch.equal(out[:n], seen.int())
    assert torch.equal(out[n:], (first + 4 * first + 1).int())


@triton.jit
def flags_kernel(flag_ptr, out_ptr):
    pid = tl.program_id(0)
    if pid > 0:
        tl.atomic_poll(flag_ptr + pid - 1, 1)
    tl.store(out_ptr + pid, tl.atomic_load(flag_ptr + pid))
    tl.atomic_store(flag_ptr + pid, 1)


@triton.jit
def timeout_kernel(flag_ptr, out_ptr):
    tl.store(out_ptr, tl.atomic_poll(flag_ptr, 1, timeout_ns=1000000))
    tl.store(out_ptr + 1, tl.atomic_poll(flag_ptr, 0, timeout_ns=0))


@pytest.mark.skipif(not hasattr(tl, "atomic_poll"), reason="this Triton has no atomic_poll")
def test_poll_load_store():
    """Each program waits for the one before it."""
    flag, out = torch.zeros(64, dtype=torch.int32), torch.ones(64, dtype=torch.int32)
    flags_kernel[(64,)](flag, out)
    assert flag.tolist() == [1] * 64 and out.tolist() == [0] * 64
    out = torch.zeros(2, dtype=torch.bool)
    timeout_kernel[(1,)](torch.zeros(1, dtype=torch.int32), out)
    assert out.tolist() == [False, True]


@triton.jit
def sum_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out_ptr, tl.sum(tl.load(x_ptr + i, mask=i < n, other=0), 0))


def test_several_python_threads(seed):
    n = 5000
    x = torch.randint(-5, 6, (n,), generator=torch.Generator().manual_seed(seed), dtype=torch.int32)
    out = torch.zeros(1, dtype=torch.int32)
    sum_kernel[(1,)](x, torch.zeros(1, dtype=torch.int32), n, 64)  # compiled once: ast.parse of Python 3.11 fails in threads at times

    def work():
        for _ in range(10):
            sum_kernel[(triton.cdiv(n, 64),)](x, out, n, 64)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert out.item() == 40 * x.sum().item()


@triton.jit
def neighbours_kernel(x_ptr, keep_ptr, p_ptr, n, C: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """Row by row of C numbers added to the same C."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    if MASKED:
        mask &= tl.load(keep_ptr + i, mask=i < n, other=0) != 0
    tl.atomic_add(p_ptr + i % C, tl.load(x_ptr + i, mask=i < n), mask=mask, sem="relaxed")


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("columns", [64, 48, 65, 7])
@pytest.mark.parametrize("offset", [0, 1, 4])
def test_float_add_to_neighbours(name, columns, offset, seed):
    """Aligned or not, all lanes or some, rows as long as vectors or not: what is added is exact, by many programs on several threads, and nothing beside it is touched."""
    generator = torch.Generator().manual_seed(seed)
    n = 100 * columns - 3
    x = torch.randint(-1, 2, (n,), generator=generator).to(torch_type(name))
    for masked in (False, True):
        keep = torch.randint(0, 16, (n,), generator=generator, dtype=torch.int32)
        keep[:n // 2] = 1
        whole = torch.full((columns + 16,), 33.0, dtype=x.dtype)
        p = whole[offset:offset + columns]
        p.zero_()
        neighbours_kernel[(triton.cdiv(n, 256),)](x, keep, p, n, columns, masked, 256)
        want = torch.zeros(columns, dtype=torch.float64)
        want.index_add_(0, torch.arange(n) % columns, x.double() * (keep != 0) if masked else x.double())
        assert torch.equal(p.double(), want)
        assert (whole[:offset] == 33).all() and (whole[offset + columns:] == 33).all()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86 exchanges 16 bytes at once")
def test_neighbours_are_exchanged_at_once():
    """16 bytes at a time where additions are of neighbours and nobody asks what was there."""
    def exchanges(kernel, *args) -> bool:
        return "cmpxchg16b" in kernel.warmup(*args, grid=(1,)).asm["asm"]

    x = torch.zeros(64)
    assert exchanges(neighbours_kernel, x, x.int(), x, 64, 64, False, 64)
    assert not exchanges(rmw_kernel, x, x, x, 64, "add", "acq_rel", 64, 64), "what was there is asked for"
    assert not exchanges(neighbours_kernel, x.int(), x.int(), x.int(), 64, 64, False, 64), "integers"


@triton.jit
def racing_kernel(p_ptr, BLOCK: tl.constexpr):
    for _ in range(200):
        tl.atomic_add(p_ptr + tl.arange(0, BLOCK), tl.full((BLOCK,), 1.0, tl.float32))
        tl.atomic_add(p_ptr + 1 + tl.arange(0, 2), tl.full((2,), 1.0, tl.float32))


def test_threads_that_add_to_neighbours_and_to_one():
    """Exchanges of 16 bytes and of 4 meet at the same elements."""
    p = torch.zeros(18)
    racing_kernel[(64,)](p, 16)
    want = torch.full((18,), 64 * 200.0)
    want[1:3] *= 2
    want[16:] = 0
    assert torch.equal(p, want)
