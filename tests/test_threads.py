"""Kernels compiled by several threads at once."""

import gc
import os
import sys
import threading
import time

import pytest
import torch
import triton
import triton.language as tl
from triport.backends.cpu.plugin import mends
from triport.backends.cpu.run import launch


@triton.jit
def plain_kernel(x_ptr):
    tl.store(x_ptr, 1.0)


MODULE = """
import triton, triton.language as tl
@triton.jit
def helper(x, k: tl.constexpr):
    return x * k + 1
"""
KERNEL = """
@triton.jit
def kernel_{n}(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    y = (helper(x, {n}) + [x, x + 1, x + 2][{n} % 3]) * (1 + ((({n} - 1) + 1) - {n}))
    if {n} % 2 == 0:
        y = (y + 1) if {n} > 3 else (y - 1)
    tl.store(out_ptr + i, y)
"""


@triton.jit
def first_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i) + 5)


def right_of(n, x):
    y = x * n + 1 + x + n % 3
    return y + (1 if n > 3 else -1) if n % 2 == 0 else y


@pytest.fixture
def restless():
    """Threads that take turns as often as they can, within the garbage collector's callbacks too."""
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()

    def pause(phase, info):
        sum(range(50))

    sys.setswitchinterval(1e-5)
    gc.set_threshold(50)
    gc.callbacks.append(pause)
    yield
    gc.callbacks.remove(pause)
    gc.set_threshold(*threshold)
    sys.setswitchinterval(interval)


def in_threads(count, work):
    """`work(n)` in a thread each, begun at once; what they raised."""
    errors, start = [], threading.Barrier(count)

    def run(n):
        start.wait()
        try:
            work(n)
        except BaseException as e:  # noqa: B036  (reported by the caller)
            errors.append(e)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return errors


def test_many_threads_compile_at_once(tmp_path, tmp_cache, monkeypatch, restless):
    """Two dozen different kernels, eight at a time."""
    (tmp_path / "many_kernels.py").write_text(MODULE + "".join(KERNEL.format(n=n) for n in range(24)))
    monkeypatch.syspath_prepend(str(tmp_path))
    import many_kernels

    def work(t):
        for n in range(t, 24, 8):
            x, out = torch.arange(32.), torch.empty(32)
            getattr(many_kernels, f"kernel_{n}")[(1,)](x, out, 32)
            assert torch.equal(out, right_of(n, x)), n

    assert in_threads(8, work) == []


def test_parsing_is_one_threads_at_a_time():
    """CPython 3.11 counts the depth of the trees that all threads build in one place: two in it at once, and one of them fails."""
    inside, most = [], []

    def parse(self):
        inside.append(self)
        most.append(len(inside))
        threading.Event().wait(0.002)
        inside.remove(self)

    alone = mends.one_at_a_time(parse)
    assert in_threads(8, lambda n: [alone(n) for _ in range(5)]) == [] and max(most) == 1
    parser = next(c for c in reversed(type(plain_kernel).__mro__) if "parse" in vars(c))
    assert parser.parse.__wrapped__ and plain_kernel.parse().body[0].name == "plain_kernel"


def test_parsing_that_other_code_disturbed_is_done_again():
    calls = []

    def parse(self):
        calls.append(1)
        if len(calls) < 4:
            raise SystemError("AST constructor recursion depth mismatch (before=18, after=9)")
        return "a tree"

    assert mends.one_at_a_time(parse)(None) == "a tree" and len(calls) == 4

    def broken(self):
        raise SystemError("something else")

    with pytest.raises(SystemError, match="something else"):
        mends.one_at_a_time(broken)(None)


def test_a_fork_while_another_thread_parses():
    """The child does not wait for a thread that it does not have."""
    begun, done = threading.Event(), threading.Event()

    def parse(self):
        if self == "long":
            begun.set()
            done.wait(60)

    alone = mends.one_at_a_time(parse)
    thread = threading.Thread(target=alone, args=("long",))
    thread.start()
    begun.wait(60)
    pid = os.fork()
    if pid == 0:
        alone("short")
        os._exit(0)
    for _ in range(600):
        if os.waitpid(pid, os.WNOHANG)[0]:
            break
        threading.Event().wait(0.1)
    else:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        pytest.fail("the child waits for a lock that nobody holds")
    done.set()
    thread.join()


def test_who_comes_while_a_kernel_is_loaded_waits_for_it(monkeypatch):
    """The first launch of a kernel by two threads: Triton makes its launcher before its code is there."""
    made, loading = launch.load_function, threading.Event()

    def slowly(*args):
        loading.set()
        time.sleep(0.3)
        return made(*args)

    monkeypatch.setattr(launch, "load_function", slowly)
    x = torch.arange(64.0)
    kernel = first_kernel.warmup(x, x, N=64, grid=(1,))
    errors, right = [], []

    def run(late: bool):
        try:
            if late:
                assert loading.wait(60)
            out = torch.empty_like(x)
            first_kernel[(1,)](x, out, N=64)
            right.append(torch.equal(out, x + 5))
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=run, args=(late,)) for late in (False, True, True)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not errors and right == [True] * 3 and kernel.function is not None
