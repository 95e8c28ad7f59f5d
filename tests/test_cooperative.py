"""`launch_cooperative_grid=True`: programs that wait for each other, whichever comes first. Without it one that waits for a later one waits for ever."""

import faulthandler
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from conftest import HANGS
from triport.backends.base import ArgumentError, Error
from triport.backends.cpu.run import together


@pytest.fixture(autouse=True)
def ends():
    """Where a test waits for ever its process ends, and says where it was."""
    faulthandler.dump_traceback_later(HANGS, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@triton.jit
def waits_for_later_kernel(flag, parts, out, B: tl.constexpr):
    """Program 0 adds up what all others have left, as the first program of a tile does in stream-K."""
    pid, last = tl.program_id(0), tl.num_programs(0) - 1
    i = tl.arange(0, B)
    if pid == 0:
        while tl.atomic_cas(flag, last, last) != last:
            pass
        total = tl.zeros((B,), tl.float32)
        for k in range(1, last + 1):
            total += tl.load(parts + k * B + i)
        tl.store(out + i, total)
    else:
        tl.store(parts + pid * B + i, (i + pid).to(tl.float32))
        tl.atomic_add(flag, 1, sem="release")


@triton.jit
def barrier_kernel(x, parts, count, out, rounds, B: tl.constexpr):
    """Every program waits until all have come, and reads what each has left."""
    pid = tl.program_id(0) + tl.program_id(1) * tl.num_programs(0)
    programs = tl.num_programs(0) * tl.num_programs(1)
    i = tl.arange(0, B)
    for r in range(rounds):
        tl.store(parts + pid + r * programs, tl.sum(tl.load(x + pid * B + i), 0) * (r + 1))
        tl.atomic_add(count, 1, sem="acq_rel")
        while tl.atomic_add(count, 0, sem="acq_rel") < (r + 1) * programs:
            pass
        total = 0.0
        for k in range(programs):
            total += tl.load(parts + k + r * programs)
        tl.store(out + pid + r * programs, total)


@triton.jit
def product_kernel(a, b, flag, out, N: tl.constexpr):
    """Two programs' products, the first one's after the second one's; they keep their operands in scratch."""
    pid = tl.program_id(0)
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    if pid == 0:
        while tl.atomic_cas(flag, 1, 1) != 1:
            pass
    c = tl.dot(tl.load(a + at), tl.load(b + at))
    tl.store(out + pid * N * N + at, c + tl.load(out + N * N + at, mask=(at >= 0) & (pid == 0), other=0.0))
    if pid == 1:
        tl.atomic_xchg(flag, 1)


@triton.jit
def asserts_kernel(flag, B: tl.constexpr):
    pid = tl.program_id(0)
    tl.device_assert(pid != 3, "the fourth")
    tl.atomic_add(flag, 1)


@pytest.mark.parametrize("programs", [2, 9, 64])
def test_a_program_waits_for_later_ones(programs):
    i = torch.arange(32, dtype=torch.float32)
    for _ in range(3):  # a launch again goes the same way
        out = torch.zeros(32)
        waits_for_later_kernel[(programs,)](torch.zeros(1, dtype=torch.int32), torch.zeros(programs, 32), out, B=32, launch_cooperative_grid=True)
        assert torch.equal(out, i * (programs - 1) + programs * (programs - 1) / 2)


@pytest.mark.parametrize("grid", [(1,), (40,), (5, 7)])
def test_all_wait_for_all(grid, seed):
    torch.manual_seed(seed)
    programs, rounds = grid[0] * (grid[1] if len(grid) > 1 else 1), 3
    x, out = torch.randint(-50, 50, (programs, 16)).float(), torch.zeros(rounds, programs)
    barrier_kernel[grid](x, torch.zeros(rounds, programs), torch.zeros(1, dtype=torch.int32), out, rounds, B=16, launch_cooperative_grid=True)
    assert torch.equal(out, x.sum() * torch.arange(1, rounds + 1)[:, None].expand(rounds, programs))


def test_scratch_is_a_programs_own(seed):
    torch.manual_seed(seed)
    a, b, out = torch.randn(64, 64), torch.randn(64, 64), torch.zeros(2, 64, 64)
    product_kernel[(2,)](a, b, torch.zeros(1, dtype=torch.int32), out, N=64, launch_cooperative_grid=True)
    right = a.double() @ b.double()
    torch.testing.assert_close(out.double(), torch.stack([2 * right, right]), rtol=1e-4, atol=1e-4)


def test_an_assertion_of_one_program():
    with pytest.raises(Error, match=r"device-side assert triggered at .* in program \(3, 0, 0\): the fourth"):
        asserts_kernel[(5,)](torch.zeros(1, dtype=torch.int32), B=1, launch_cooperative_grid=True, debug=True)


def test_no_programs_and_too_many():
    flag = torch.zeros(1, dtype=torch.int32)
    asserts_kernel[(0,)](flag, B=1, launch_cooperative_grid=True)
    with pytest.raises(ArgumentError, match="kernel asserts_kernel: launch_cooperative_grid with a grid of 1,025 programs: each has a thread of its own, and there are 1,024 at most"):
        asserts_kernel[(together.MOST + 1,)](flag, B=1, launch_cooperative_grid=True)
    assert flag.item() == 0
    asserts_kernel[(together.MOST,)](flag, B=1, launch_cooperative_grid=True)
    assert flag.item() == together.MOST


INTERRUPTED = """
import gc, os, signal, sys, threading, time, weakref
import torch
sys.path.insert(0, {here!r})
import test_cooperative as kernels
flag = torch.zeros(1, dtype=torch.int32)
out = torch.zeros(32)
threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    kernels.waits_for_later_kernel[(1,)](flag.sub_(1), torch.zeros(1, 32), out, B=32, launch_cooperative_grid=True)
except KeyboardInterrupt:
    print("interrupted")
there = weakref.ref(out)
del out
gc.collect()
print("held", there() is not None)
flag.zero_()
for _ in range(600):
    gc.collect()
    if there() is None:
        break
    time.sleep(0.1)
print("let go", there() is None)
"""


def test_ctrl_c_ends_the_wait_and_programs_keep_what_they_write():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED.format(here=str(Path(__file__).parent))], capture_output=True, text=True, timeout=HANGS)
    assert done.stdout.split("\n")[:3] == ["interrupted", "held True", "let go True"], done.stderr


def test_a_trace_shows_it():
    with torch.profiler.profile() as profile:
        barrier_kernel[(4,)](torch.ones(4, 16), torch.zeros(4), torch.zeros(1, dtype=torch.int32), torch.zeros(4), 1, B=16, launch_cooperative_grid=True)
    assert any("barrier_kernel" in e.key for e in profile.key_averages())
