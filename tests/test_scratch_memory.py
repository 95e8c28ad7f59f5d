"""Temporaries of replayed calls, kept from call to call."""

import sys
import threading

import pytest
import torch
from triport import ops
from triport.backends.dispatch import replay, scratch
from triport.bench import check

STRAIGHT = sys.modules["triport.ops.straight"]


@pytest.fixture
def pool(monkeypatch):
    """This thread's, empty, and for small tensors, too."""
    monkeypatch.setattr(scratch, "LEAST", 1 << 10)
    monkeypatch.setattr(scratch._pool, "tensors", {})
    replay.forget()
    yield scratch._pool
    replay.forget()


def asked(shape, dtype=torch.float32):
    like = torch.empty(shape, dtype=dtype)
    return scratch.sizes_of(like), like.stride(), dtype


def test_memory_that_nobody_has_serves_again(pool):
    new = scratch.empty_with(lambda sizes, strides, dtype: torch.empty_strided(sizes, strides, dtype=dtype))
    first = new(*asked((32, 32)))
    place = first.data_ptr()
    second = new(*asked((32, 32)))  # the first is still held
    assert second.data_ptr() != place and second.shape == (32, 32)
    del first, second
    again = new(*asked((32, 32)))
    kept = again.data_ptr()
    assert kept in [t.data_ptr() for t in pool.tensors.values()]
    del again
    assert new(*asked((32, 32))).data_ptr() == kept
    assert new(*asked((32, 32), torch.float64)).dtype is torch.float64 and new(*asked((16, 64))).shape == (16, 64)


def test_results_and_small_ones_are_not_kept(pool):
    new = scratch.empty_with(lambda sizes, strides, dtype: torch.empty_strided(sizes, strides, dtype=dtype))
    new((64, 64), (64, 1), torch.float32)
    new(*asked((4, 4)))
    assert not pool.tensors


def test_no_more_is_kept_than_allowed(pool, monkeypatch):
    """What was asked for longest ago goes first."""
    monkeypatch.setattr(scratch, "MOST", 10 << 10)
    new = scratch.empty_with(lambda sizes, strides, dtype: torch.empty_strided(sizes, strides, dtype=dtype))
    for rows in (16, 17, 16, 18, 19):  # kilobytes of 4 to 4.75
        new(*asked((rows, 64)))
    assert [t.shape[0] for t in pool.tensors.values()] == [18, 19]
    assert type(scratch.sizes_of(torch.empty(1 << 12))) is tuple  # more than half of all


def test_calls_of_threads_do_not_share(pool, seed, monkeypatch):
    """A product whose factor is copied first: each thread's result is its own, replayed."""
    monkeypatch.setattr(STRAIGHT, "COLUMNS", 40)
    monkeypatch.setattr(STRAIGHT, "NUMBERS", 64)
    gen = torch.Generator().manual_seed(seed)
    given = [(torch.randn(128, 96, generator=gen).T, torch.randn(128, 64, generator=gen)) for _ in range(4)]
    wrong = []

    def run(a, b):
        want = a.double() @ b.double()
        for _ in range(50):
            if check.error(ops.matmul(a, b), want) > 1e-6:
                wrong.append(a)

    for _ in range(3):
        ops.matmul(*given[0])
    assert len(pool.tensors) == 1  # the copy
    threads = [threading.Thread(target=run, args=pair) for pair in given]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
