"""After a report the process is as it was: memory beyond a tensor, locks, threads; and checks are the same however they are asked for."""

import os
import pickle
import subprocess
import sys
import threading
import traceback

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from faults import ALL
from triport import checking
from triport.backends.base import Unsupported

GUARD = -7.0


def guarded(n: int, dtype=np.float32):
    """(a tensor of n ones, the memory that it lies in, with 64 guard words on both sides): its storage is the tensor's."""
    memory = np.full(n + 128, GUARD, dtype)
    memory[64:64 + n] = 1
    return torch.from_numpy(memory[64:64 + n]), memory


def unharmed(memory) -> bool:
    return bool((memory[:64] == GUARD).all() and (memory[-64:] == GUARD).all())


@triton.jit
def stores(out_ptr, first, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out_ptr + first + i, 3.0, mask=i < n)


@triton.jit
def scatters(out_ptr, first, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out_ptr + first + (i * 7) % n, 3.0, mask=i < n)


@triton.jit
def adds(out_ptr, first, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.atomic_add(out_ptr + first + i, 2.0, mask=i < n)


@triton.jit
def one(out_ptr, first, n, N: tl.constexpr):
    if first + n > 100 or first < 0:
        tl.store(out_ptr + tl.where(first < 0, first, first + n - 1), 3.0)
    else:
        i = tl.program_id(0) * N + tl.arange(0, N)
        tl.store(out_ptr + i, 3.0, mask=i < n)


@pytest.mark.parametrize("kernel", [stores, scatters, adds, one], ids=lambda k: k.__name__)
@pytest.mark.parametrize("first", [3, -3, 40])
@pytest.mark.parametrize("kinds", ["bounds", ALL])
def test_memory_beyond_the_tensor_is_left_as_it_was(kernel, first, kinds):
    x, memory = guarded(100)
    with checking.checks(kinds):
        with pytest.raises(checking.CheckError, match="bounds"):
            kernel[(2,)](x, first, 100, N=64)
        assert unharmed(memory)
        x.fill_(1.0)
        kernel[(2,)](x, 0, 100, N=64)
    assert unharmed(memory) and (x == 3.0).all()


@triton.jit
def locked(lock_ptr, out_ptr, first, N: tl.constexpr):
    i = tl.arange(0, N)
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(out_ptr + first + i, tl.load(out_ptr + first + i) + 1.0)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)


@pytest.mark.parametrize("kinds", ["bounds", ALL])
def test_a_fault_under_a_lock_ends_the_launch(kinds):
    """The lock stays held: no other program of the launch waits for it."""
    x, memory = guarded(16)
    with checking.checks(kinds):
        with pytest.raises(checking.CheckError, match="bounds"):
            locked[(50,)](torch.zeros(1, dtype=torch.int32), x, 1, N=16)
        assert unharmed(memory)
        locked[(50,)](torch.zeros(1, dtype=torch.int32), x, 0, N=16)
    assert (x == 51.0).all()


@triton.jit
def meets(count_ptr, out_ptr, HOW: tl.constexpr):
    """All programs wait until all are there."""
    n = tl.num_programs(0)
    turns = 0
    tl.atomic_add(count_ptr, 1)
    if HOW == "plain":
        while tl.load(count_ptr) < n:
            turns += 1
    elif HOW == "volatile":
        while tl.load(count_ptr, volatile=True) < n:
            pass
    else:
        while tl.atomic_add(count_ptr, 0) < n:
            pass
    tl.store(out_ptr + tl.program_id(0), tl.load(count_ptr, volatile=True) + turns)


@pytest.mark.parametrize("kinds", ["bounds", ALL])
@pytest.mark.parametrize("how", ["volatile", "atomic"])
def test_a_program_that_waits_for_a_later_one_ends(how, kinds):
    with checking.checks(kinds):
        with pytest.raises(Unsupported, match="waits for a later one"):
            meets[(4,)](torch.zeros(1, dtype=torch.int32), torch.zeros(4), HOW=how)
        meets[(1,)](torch.zeros(1, dtype=torch.int32), out := torch.zeros(1), HOW=how)
    assert out.item() == 1


def test_a_barrier_by_plain_loads_is_a_race():
    with checking.checks("race"), pytest.raises(checking.CheckError, match="waits in a loop for element 0 of argument 'count_ptr'"):
        meets[(4,)](torch.zeros(1, dtype=torch.int32), torch.zeros(4), HOW="plain")


@triton.jit
def copy(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)


def faulty(**options):
    copy[(2,)](torch.ones(100), torch.zeros(100), 110, N=64, **options)


def fine(**options):
    copy[(2,)](torch.ones(100), out := torch.zeros(100), 100, N=64, **options)
    assert (out == 1.0).all()


def test_a_launch_may_ask_for_checks():
    fine()
    with pytest.raises(checking.CheckError):
        faulty(check="bounds")
    fine(check="bounds")
    fine()


def test_what_a_launch_asks_for_counts_beside_what_all_are_checked_for():
    x = torch.zeros(1, dtype=torch.int32)
    with checking.checks("race"):
        with pytest.raises(checking.CheckError) as caught:
            faulty(check="bounds")
        assert {r.kind for r in caught.value.reports} == {"bounds"}
        same_place[(3,)](x, check="")
        with pytest.raises(checking.CheckError):
            same_place[(3,)](x)


@triton.jit
def same_place(out_ptr):
    tl.store(out_ptr, tl.program_id(0))


def test_checks_are_switched_on_and_off():
    x = torch.zeros(1, dtype=torch.int32)
    for _ in range(3):
        same_place[(3,)](x)
        with checking.checks("bounds"):
            same_place[(3,)](x)
            with checking.checks("race"), pytest.raises(checking.CheckError):
                same_place[(3,)](x)
            same_place[(3,)](x)


def test_going_on():
    noted = []
    with checking.checks(ALL), checking.keeping_going(noted.append):
        faulty()
        fine()
        faulty()
    assert [e.found for e in noted] == [10, 10]


def test_an_error_can_be_pickled():
    with checking.checks("bounds"), pytest.raises(checking.CheckError) as caught:
        faulty()
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value) and again.reports == caught.value.reports and again.kernel == "copy"


def test_launches_from_several_threads():
    wrong, right_ = [], []

    def work(n):
        for k in range(6):
            try:
                (faulty if (n + k) % 2 else fine)()
                right_.append(n)
            except checking.CheckError as e:
                wrong.append({r.kind for r in e.reports})

    with checking.checks(ALL):
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert wrong == [{"bounds"}] * 12 and len(right_) == 12


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_checks_too():
    """Even one that is made while another thread's launch is under way."""
    with checking.checks("bounds,race"):
        fine()
        stop = threading.Event()

        def busy():
            while not stop.is_set():
                fine()

        t = threading.Thread(target=busy)
        t.start()
        statuses = []
        try:
            for _ in range(5):
                pid = os.fork()
                if not pid:
                    status = 1
                    try:
                        fine()
                        faulty()
                    except checking.CheckError:
                        status = 0
                    except BaseException:
                        traceback.print_exc()
                    finally:
                        os._exit(status)
                statuses.append(os.waitpid(pid, 0)[1])
        finally:
            stop.set()
            t.join()
    assert statuses == [0] * 5


@triton.autotune(configs=[triton.Config({"N": 32}), triton.Config({"N": 128})], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % 2 == 0})
@triton.jit
def tuned(x_ptr, out_ptr, n, EVEN: tl.constexpr, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n) + EVEN, mask=i < n)


def test_autotuned_kernels():
    with checking.checks(ALL):
        tuned[lambda meta: (triton.cdiv(100, meta["N"]),)](torch.ones(100), out := torch.zeros(100), 100)
        assert (out == 2.0).all()
        with pytest.raises(checking.CheckError):
            tuned[lambda meta: (triton.cdiv(104, meta["N"]),)](torch.ones(100), torch.zeros(104), 104)


@pytest.mark.parametrize("n", [0, 1])
def test_a_kernel_without_tensors(n):
    with checking.checks(ALL):
        nothing[(n, 2)](5)


@triton.jit
def nothing(n):
    tl.device_assert(n == 5)


SCRIPT = """
import torch, triton, triton.language as tl
from triport import checking
x = torch.empty(64)

@triton.jit
def copy(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)

try:
    copy[(1,)](x, torch.zeros(64), 65, N=128)
except checking.CheckError as e:
    print(sorted((r.kind, r.line) for r in e.reports))
copy[(1,)](torch.ones(64), out := torch.empty(64), 64, N=128)
print(out.sum().item())
"""


@pytest.mark.first(0)
def test_kinds_from_the_environment_and_code_from_the_disk(tmp_path):
    """The first process compiles, the second one reads what it left."""
    (tmp_path / "script.py").write_text(SCRIPT)
    env = os.environ | {"TRITON_CPU_CHECK": "bounds,uninit", "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    first, second = (subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=env, text=True, capture_output=True) for _ in range(2))
    assert first.stdout == "[('bounds', 9), ('uninit', 9)]\n64.0\n", first.stderr
    assert second.stdout == first.stdout, second.stderr


def test_nothing_is_checked_by_the_interpreter(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT.replace(", 65, ", ", 64, "))
    env = os.environ | {"TRITON_CPU_CHECK": "all", "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=env, text=True, capture_output=True)
    assert done.stdout == "64.0\n", done.stderr


def test_what_is_followed_is_still_torchs():
    """torch.empty under fake tensors, under transforms, in TorchScript, and without memory."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from triport.backends.cpu.run import unwritten
    unwritten.watch()
    with FakeTensorMode():
        fake = torch.empty(4).new_empty(3)
    assert fake.shape == (3,) and torch.empty(0).numel() == 0 and torch.empty(2, device="meta").is_meta
    assert torch.func.vmap(torch.func.grad(lambda v: (v + torch.empty_like(v).zero_()).sum()))(torch.ones(3, 4)).sum() == 12

    @torch.jit.script
    def scripted(a: torch.Tensor):
        return torch.empty_like(a).zero_() + a

    assert scripted(torch.ones(3)).sum() == 3


def test_tensors_are_looked_through_for_pointers_from_memory_only(monkeypatch):
    from triport.backends.cpu.run import extents
    monkeypatch.setattr(extents, "living", lambda: pytest.fail("looked through"))
    with checking.checks(ALL):
        fine()
