"""Kernels' machine code in this process: it goes when nobody can call it any more, and not before."""

import gc
import os
import queue
import threading
import time
import weakref

import pytest
import torch
import triton
import triton.language as tl
from triport import ops
from triport.backends.dispatch import replay
from triport.backends.cpu.run import gdb, launch, loaded
from triport.backends.cpu.llvm import compile as llvm, targets
from triport.ops import dispatch


def scaling():
    """A kernel of its own each time."""

    @triton.jit
    def scaling_kernel(x_ptr, out_ptr, n, FACTOR: tl.constexpr, BLOCK: tl.constexpr):
        offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * FACTOR, mask=offs < n)

    return scaling_kernel


def waiting():
    """A kernel that stores its flag once somebody has set it."""

    @triton.jit
    def waiting_kernel(flag_ptr, out_ptr, started_ptr):
        tl.atomic_add(started_ptr, 1)
        seen = tl.atomic_add(flag_ptr, 0)
        while seen == 0:
            seen = tl.atomic_add(flag_ptr, 0)
        tl.store(out_ptr, seen)

    return waiting_kernel


def mapped(name: str) -> int:
    """How many kernels of that name are mapped, when the garbage is gone."""
    gc.collect()
    loaded.free()
    return sum(n == name for n in loaded.mapped().values())


def executable(address: int) -> bool:
    """Does this process have executable memory there?"""
    with open("/proc/self/maps") as f:
        spans = [line.split()[:2] for line in f]
    return any("x" in rights and int(span.partition("-")[0], 16) <= address < int(span.partition("-")[2], 16) for span, rights in spans)


def constant() -> bytes:
    """An object for this machine with a function that returns 7."""
    row = targets.native()
    return llvm.emit_object(f'target triple = "{row.triple}"\ndefine i64 @scaling_kernel() {{\n  ret i64 7\n}}\n', row)


@pytest.fixture(autouse=True)
def nothing_left():
    """Of these tests' kernels nothing is mapped before and after."""
    replay.forget()
    scaling(), waiting()
    assert not mapped("scaling_kernel") and not mapped("waiting_kernel")
    yield
    replay.forget()
    scaling(), waiting()
    assert not mapped("scaling_kernel") and not mapped("waiting_kernel")


def test_code_goes_with_its_kernel_while_others_launch(monkeypatch):
    """150 kernels of one JITFunction that goes away; threads launch others meanwhile, and launch and drop some of the 150."""
    kernels, stop, wrong = queue.SimpleQueue(), threading.Event(), []

    def replays(n):
        x = torch.randn(n, 300)
        while not stop.wait(0.001):
            if not torch.equal(ops.square(x), x * x):
                wrong.append(n)

    def drops():
        x, out = torch.arange(500.), torch.empty(500)
        while (given := kernels.get()) is not None:
            factor, compiled = given
            del given
            for _ in range(20):
                compiled[(4, 1, 1)](x, out, 500, factor, 128)
                if not torch.equal(out, x * factor):
                    wrong.append(factor)
            del compiled

    x, out = torch.arange(300.), torch.empty(300)
    for n in (40, 200):
        [ops.square(torch.ones(n, 300)) for _ in range(3)]  # their code is there, and stays
    linked = len(gdb.shown())
    threads = [threading.Thread(target=replays, args=(n,)) for n in (40, 200)] + [threading.Thread(target=drops) for _ in range(2)]
    monkeypatch.setattr(threading, "excepthook", wrong.append)
    [t.start() for t in threads]
    try:
        kernel = scaling()
        for factor in range(3, 153):
            compiled = kernel[(3,)](x, out, 300, FACTOR=factor, BLOCK=128)
            assert torch.equal(out, x * factor)
            if factor % 5 == 0:
                kernel.device_caches.clear()  # Triton's own reference goes; the threads have theirs
                kernels.put((factor, compiled))
        assert mapped("scaling_kernel") >= 2
        del kernel, compiled
    finally:
        stop.set()
        [kernels.put(None) for _ in range(2)]
        [t.join() for t in threads]
    assert not wrong
    scaling()
    assert not mapped("scaling_kernel") and len(gdb.shown()) == linked


def test_as_many_are_mapped_as_can_be_called():
    kernel, x, out = scaling(), torch.arange(300.), torch.empty(300)
    for factor in range(3, 33):
        kernel[(3,)](x, out, 300, FACTOR=factor, BLOCK=128)
    assert mapped("scaling_kernel") == 30
    del kernel
    assert mapped("scaling_kernel") in (0, 30), "Triton 3.9 has the last of each name, 3.6 nothing"
    again = scaling()
    assert mapped("scaling_kernel") == 0
    again[(3,)](x, out, 300, FACTOR=3, BLOCK=128)
    assert mapped("scaling_kernel") == 1


def test_freed_code_is_unmapped():
    obj = constant()
    linked = len(gdb.shown())
    function = launch.load_function(obj, "scaling_kernel")
    address = function.address
    assert executable(address) and mapped("scaling_kernel") == 1 and len(gdb.shown()) == linked + 1
    del function
    assert not mapped("scaling_kernel") and len(gdb.shown()) == linked and not executable(address)
    assert executable(launch.load_object(obj, ["scaling_kernel"])["scaling_kernel"]) and len(gdb.shown()) == linked + 1, "for good"


@pytest.mark.parametrize("variable", ["TRIPORT_PERF_MAP", "TRITON_CPU_PERF_MAP"])
def test_code_that_perf_will_look_for_stays(variable, monkeypatch):
    obj = constant()
    listed = os.path.exists(f"/tmp/perf-{os.getpid()}.map")
    monkeypatch.setenv(variable, "1")
    try:
        address = launch.load_function(obj, "scaling_kernel").address
    finally:
        if not listed and os.path.exists(f"/tmp/perf-{os.getpid()}.map"):
            os.remove(f"/tmp/perf-{os.getpid()}.map")
    gc.collect()
    assert executable(address)


def wait_for(started):
    while not started.item():
        time.sleep(0.001)


def test_a_launch_holds_the_code_that_it_runs():
    """Everything else that held it goes while it runs."""
    flag, out, started = (torch.zeros(1, dtype=torch.int32) for _ in range(3))

    def run(kernels):
        kernels.pop()[(1,)](flag, out, started)

    thread = threading.Thread(target=run, args=([waiting()],))
    thread.start()
    wait_for(started)
    waiting()
    held = mapped("waiting_kernel")
    flag.fill_(5)
    thread.join()
    assert held == 1 and out.item() == 5
    waiting()
    assert not mapped("waiting_kernel")


def recorded(factor: int):
    """(the plan of an op's body that launched a kernel of its own, the kernel)."""
    kernel = scaling()

    def body(x):
        out = torch.empty_like(x)
        dispatch.launch(kernel, (4,), x, out, 64, FACTOR=factor, BLOCK=16)
        return out

    x = torch.arange(64.)
    assert torch.equal(dispatch.direct(body, (x,)), x * factor)
    return replay.find(replay.key_of(body, (x,), ())), weakref.ref(kernel)


def test_a_plan_holds_the_code_whose_address_it_has():
    plan, kernel = recorded(7)
    replay.forget()
    scaling()
    assert mapped("scaling_kernel") == 1 and kernel() is None
    assert torch.equal(plan(torch.arange(64.)), torch.arange(64.) * 7)
    del plan
    ops.square(torch.ones(3))  # the thread's last plan is another's
    ops.square(torch.ones(3))
    assert not mapped("scaling_kernel")


def test_a_known_call_holds_its_code_while_it_runs():
    """The site that knew it forgets it meanwhile, and its plan is dropped."""
    kernels, out, started = [waiting()], torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    outputs = []

    def body(flag, out, started):
        made = torch.empty_like(flag)
        dispatch.launch(kernels[0], (1,), flag, made, started)
        return made

    flag = torch.ones(1, dtype=torch.int32)
    assert dispatch.direct(body, (flag, out, started)).item() == 1
    site = replay.site("a test's own")
    replay.learn(site, (flag, out, started), 3, replay.find(replay.key_of(body, (flag, out, started), ())))
    flag.zero_(), started.zero_()
    thread = threading.Thread(target=lambda: outputs.append(site.call(flag, out, started)))
    thread.start()
    wait_for(started)
    replay.forget()
    kernels.clear()
    waiting()
    held = mapped("waiting_kernel")
    flag.fill_(9)
    thread.join()
    assert held == 1 and outputs[0].item() == 9
    ops.square(torch.ones(3)), ops.square(torch.ones(3))
    assert not mapped("waiting_kernel")


def test_code_is_unmapped_when_more_is_loaded():
    """And not when the last reference goes, which the collector decides, in the middle of anything."""
    gone = []
    function = loaded.Function(5, "scaling_kernel", lambda: gone.append(1))
    del function
    assert not gone and loaded.mapped()[5] == "scaling_kernel"
    launch.load_object(constant(), ["scaling_kernel"])
    assert gone == [1] and 5 not in loaded.mapped()


def test_llvms_pass_managers_are_freed(monkeypatch):
    """llvmlite makes one for each compilation, and would keep it."""
    from llvmlite.binding import ffi
    freed, real = [], ffi.lib.LLVMPY_DisposeNewModulePassManger
    monkeypatch.setitem(ffi.lib._fntab, "LLVMPY_DisposeNewModulePassManger", lambda passes: freed.append(1) or real(passes))
    row = targets.native()
    for n in (1, 2):
        llvm.optimise(f'target triple = "{row.triple}"\ndefine i64 @f() {{\n  ret i64 {n}\n}}\n', row)
        gc.collect()
        assert len(freed) == n


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_keeps_what_its_parent_loaded():
    gone, own = [], []
    function = loaded.Function(5, "scaling_kernel", lambda: gone.append(1))
    child = os.fork()
    if child == 0:
        del function
        loaded.Function(6, "scaling_kernel", lambda: own.append(1))
        loaded.free()
        os._exit(0 if not gone and own else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    del function
    loaded.free()
    assert gone
