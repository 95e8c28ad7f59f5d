"""Inductor's calls of its own kernels in native code: what is launched so, what is not, and that both give the same."""

import contextlib
import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
import types
import weakref

import pytest
import torch
import triton
import triton.language as tl
from conftest import ROOT
from torch._inductor.runtime import triton_heuristics
from triport import checking
from triport.backends import active
from triport.backends.base import Error
from triport.backends.cpu.plugin import direct
from triport.backends.cpu.run import direct as run_direct, native

pytestmark = [pytest.mark.usefixtures("through_triton"),
              pytest.mark.skipif(not (native.GIL and native.PASSES_KEYWORDS), reason="this Python (3.10, or without a lock of its own) has no calls in native code")]


class Compiled:
    """A function compiled anew. calls: which of its kernels torch's own code launched."""

    def __init__(self, fn, monkeypatch, **options):
        torch._dynamo.reset()
        self.fn, self.calls = torch.compile(fn, **options), []
        pre = triton_heuristics.CachingAutotuner.run

        def counted(tuner, *args, **kwargs):
            self.calls.append(tuner)
            return pre.__wrapped__(tuner, *args, **kwargs)

        counted.__wrapped__ = pre.__wrapped__
        monkeypatch.setattr(triton_heuristics.CachingAutotuner, "run", direct.learning(counted, triton_heuristics.CachingAutotuner, triton_heuristics))

    def __call__(self, *args):
        return self.fn(*args)

    @property
    def kernels(self) -> list:
        return list({id(k): k for k in self.calls}.values())

    def by_torch(self, *args):
        """(result, how many of its kernels torch's own code launched)."""
        before = len(self.calls)
        return self.fn(*args), len(self.calls) - before


def test_a_launch_is_native_from_the_second_on(monkeypatch, seed):
    made = Compiled(lambda x, y: (x * y + 1).tanh(), monkeypatch)
    for n in range(3):
        x, y = torch.randn(33, 77), torch.randn(33, 77)
        out, by_torch = made.by_torch(x, y)
        torch.testing.assert_close(out, (x * y + 1).tanh())
        assert by_torch == (1 if n == 0 else 0)
    kernel, = made.kernels
    assert type(vars(kernel)["run"]) is type(len)


def test_parameters_and_noncontiguous_tensors(monkeypatch, seed):
    w = torch.nn.Parameter(torch.randn(64, 48))
    made = Compiled(lambda x: (x.t() * w).sum(1), monkeypatch)
    with torch.no_grad():
        for n in range(3):
            x = torch.randn(48, 64)
            out, by_torch = made.by_torch(x)
            torch.testing.assert_close(out, (x.t() * w).sum(1))
            assert by_torch == 0 or n == 0


def test_several_sizes_are_known(monkeypatch, seed):
    """And others, which come without end, are launched by torch's code."""
    made = Compiled(lambda x: x.sin() * 2, monkeypatch, dynamic=True)

    def by_torch(n) -> int:
        x = torch.randn(n, 3)
        out, count = made.by_torch(x)
        torch.testing.assert_close(out, x.sin() * 2)
        return count

    sizes = [300, 3001, 70, *range(5, 5 + 2 * direct.MOST)]
    assert [by_torch(n) for n in sizes] == [1] * len(sizes)
    assert [by_torch(n) for n in reversed(sizes)] == [1] * (len(sizes) - direct.MOST) + [0] * direct.MOST
    kernel, = made.kernels
    assert len(vars(kernel)[direct._KNOWN]) == direct.MOST


@triton.jit
def scaled_kernel(x_ptr, out_ptr, scale, n, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n) * scale, mask=i < n)


def test_numbers_in_floating_point_are_compared_by_their_bits(seed):
    """Of a launch that Inductor's launchers hand on as it is."""
    x, out, others = torch.randn(50), torch.empty(50), []
    compiled = scaled_kernel[(1,)](x, out, 0.5, 50, 64)
    values = (x, out, 0.5, 50, 64)

    def otherwise(*args, stream):
        others.append(args)

    again = run_direct.function(compiled.run, compiled.function, (1, 1, 1), values, values, dict(enumerate(range(5))), [], otherwise)
    out.zero_()
    again(x, out, float("0.5"), 50, 64, stream=0)
    assert torch.equal(out, x * 0.5) and not others
    for scale, n, block in ((0.25, 50, 64), (-0.5, 50, 64), (float("nan"), 50, 64), (0, 50, 64), (0.5, 50.0, 64), (0.5, True, 64), (0.5, 1 << 70, 64), (0.5, -50, 64), (0.5, 50, 32)):
        again(x, out, scale, n, block, stream=0)
        assert others.pop()[2:] in [(scale, n, block)] or scale != scale
    zero = run_direct.function(compiled.run, compiled.function, (1, 1, 1), (x, out, 0.0, 50, 64), (x, out, 0.0, 50, 64), dict(enumerate(range(5))), [], otherwise)
    zero(x, out, -0.0, 50, 64, stream=0)
    assert len(others) == 1


def test_what_shares_memory_is_launched_with_a_view_to_it(monkeypatch, seed):
    """In place on x, which is a part of y's memory: judged at every launch."""
    def fn(x, y):
        return x.add_(y)

    made = Compiled(fn, monkeypatch)
    x, y = torch.randn(60), torch.randn(60)  # one program
    for _ in range(3):
        expected = x + y
        assert torch.equal(made(x, y), expected)
    assert made.by_torch(x, y)[1] == 0
    kernel, = made.kernels
    run = vars(kernel)["run"]
    memory = torch.randn(300)
    for shift in (4, 8, 32, 56):
        for x, y in ((memory[:60], memory[shift:shift + 60]), (memory[shift:shift + 60], memory[:60])):
            expected = x + y  # read before anything is written, as eager does
            before = len(made.calls)
            run(x, y, *_output(kernel, x), 60, stream=0)
            assert torch.equal(x, expected) and len(made.calls) == before + 1, shift


def _output(kernel, x) -> list:
    """What a kernel of (x, y, out..., numel) is given behind its inputs: x again, for each that it writes."""
    names = [n for n, ty in kernel.triton_meta["signature"].items() if ty.startswith("*")]
    return [x] * (len(names) - 2)


def test_a_profiler_sees_every_launch(monkeypatch, seed):
    made, x = Compiled(lambda x: x.cos() + 1, monkeypatch), torch.randn(500)
    for _ in range(2):
        made(x)
    with torch.profiler.profile() as profile:
        for _ in range(3):
            made(x)
    kernel, = made.kernels
    assert sum(e.name == kernel.inductor_meta["kernel_name"] for e in profile.events()) == 3
    assert made.by_torch(x)[1] == 0 and len(vars(kernel)[direct._KNOWN]) == 1, "what goes by torch's code while somebody watches is not looked at anew"


def test_launch_hooks_are_called(monkeypatch, seed):
    made, x, seen = Compiled(lambda x: x.cos() + 3, monkeypatch), torch.randn(500), []
    made(x)
    hooks = triton.knobs.runtime.launch_enter_hook
    if hooks is None:
        pytest.skip("this Triton (before 3.6) has no chain of hooks")
    note = seen.append
    hooks.add(note)
    try:
        made(x)
    finally:
        hooks.remove(note)
    assert len(seen) == 1
    made(x)
    assert len(seen) == 1 and made.by_torch(x)[1] == 0


def test_checks_are_made(monkeypatch, seed):
    """One of x's numbers is a NaN, of which `check` says where it comes from: no launch goes unchecked."""
    made, x = Compiled(lambda x: x.log() + 3, monkeypatch), torch.rand(500) + 1
    made(x)
    assert made.by_torch(x)[1] == 0
    before = checking.enable("nan")
    try:
        with pytest.raises(Error, match="NaN"):
            made(-x)
    finally:
        checking.enable(before)
    assert made(-x).isnan().all() and made.by_torch(x)[1] == 0


def test_another_packages_driver_is_told(monkeypatch, seed):
    made, x = Compiled(lambda x: x.exp() + 3, monkeypatch), torch.rand(500)
    made(x)
    active.foreign.append("another")
    try:
        assert made.by_torch(x)[1] == 1
    finally:
        active.foreign.clear()
    assert made.by_torch(x)[1] == 0


def test_a_tuner_that_has_other_launchers_now(monkeypatch, seed):
    made, x = Compiled(lambda x: x.exp() + 4, monkeypatch), torch.rand(500)
    made(x)
    kernel, = made.kernels
    kernel.launchers = list(kernel.launchers)
    assert made.by_torch(x)[1] == 1
    assert made.by_torch(x)[1] == 0


def test_what_fails_is_said_as_before(monkeypatch, seed):
    made = Compiled(lambda x, k: x[k] + 1, monkeypatch)
    x, good, bad = torch.randn(100), torch.arange(50), torch.arange(50) + 70
    for _ in range(2):
        torch.testing.assert_close(made(x, good), x[good] + 1)
    with pytest.raises(Error, match="index out of bounds|assert"):
        made(x, bad)
    kernel, = made.kernels
    run, out, blocks = vars(kernel)["run"], torch.empty(50), []
    for _ in range(4):
        for _ in range(500):
            with contextlib.suppress(Error):
                run(bad, x, out, 50, stream=0)
        blocks.append(sys.getallocatedblocks())
    assert blocks[-1] - blocks[1] < 500, "nothing is left of what failed"
    torch.testing.assert_close(made(x, good), x[good] + 1)


def test_arguments_of_another_kind_go_torchs_way(monkeypatch, seed):
    made, x = Compiled(lambda x: x.exp() + 5, monkeypatch), torch.rand(500)
    made(x)
    kernel, = made.kernels
    run, out = vars(kernel)["run"], torch.empty(500)

    class Mine(torch.Tensor):
        pass

    before = len(made.calls)
    run(x.as_subclass(Mine), out, 500, stream=0)
    torch.testing.assert_close(out, x.exp() + 5)
    assert len(made.calls) == before + 1
    with pytest.raises(Exception, match="stream"):
        run(x, out, 500)
    with pytest.raises(Exception, match="meta|CPU"):
        run(x.to("meta"), out, 500, stream=0)
    with pytest.raises(TypeError):
        run(x, out, stream=0)


def test_another_number_of_threads(monkeypatch, seed):
    made, x, threads = Compiled(lambda x: x.exp() + 6, monkeypatch), torch.rand(300_000), torch.get_num_threads()
    few, some, more = [n for n in (1, 2, 3, 4) if n != threads][:3]
    try:
        for n, known in ((few, False), (some, False), (more, False), (few, True), (more, True)):
            torch.set_num_threads(n)
            assert made.by_torch(x)[1] == (not known)
            torch.testing.assert_close(made(x), x.exp() + 6)
    finally:
        torch.set_num_threads(threads)


def test_a_tuner_is_sent_without_it(monkeypatch, seed):
    """What is sent to another process has no function of this one's."""
    made, x = Compiled(lambda x: x.exp() + 7, monkeypatch), torch.rand(500)
    made(x)
    kernel = object.__new__(triton_heuristics.CachingAutotuner)
    vars(kernel).update(vars(made.kernels[0]), launchers=[])
    state = kernel.__getstate__()
    assert "run" in vars(kernel) and not {"run", direct._KNOWN} & set(state)


def test_no_reference_is_left_or_lost(monkeypatch, seed):
    made, x, y = Compiled(lambda x, y: (x * y).exp() + 9, monkeypatch), torch.rand(500), torch.rand(500)
    made(x, y)
    kernel, = made.kernels
    run, out, big = vars(kernel)["run"], torch.empty(500), int("500")
    held = (x, y, out, big, run, torch.Tensor, True, None)
    before = [sys.getrefcount(o) for o in held]
    for _ in range(100):
        assert run(x, y, out, big, stream=0) is None
        with pytest.raises(Exception, match="CPU"):
            run(x.to("meta"), y, out, big, stream=0)
    assert max(abs(sys.getrefcount(o) - n) for o, n in zip(held, before)) < 50  # others come and go, too


def test_a_tuner_goes_with_its_own_run(monkeypatch, seed):
    """It holds its `run`, which holds it."""
    made, x = Compiled(lambda x: x.exp() + 10, monkeypatch), torch.rand(500)
    made(x)
    tuner = object.__new__(triton_heuristics.CachingAutotuner)
    vars(tuner).update(vars(made.kernels[0]), launchers=list(made.kernels[0].launchers))
    tuner.run = direct._again(tuner, (x, torch.empty(500), 500), 0, triton_heuristics.get_active_debug_mode, types.MethodType(triton_heuristics.CachingAutotuner.run, tuner))
    tuner.run(x, out := torch.empty(500), 500, stream=0)
    torch.testing.assert_close(out, x.exp() + 10)
    gone = weakref.ref(tuner)
    del tuner
    gc.collect()
    assert gone() is None


def test_other_threads_go_on_while_a_long_kernel_runs(monkeypatch, seed):
    """Also where it has one thread: Python's lock is given up."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        made, x = Compiled(lambda x: torch.special.bessel_j0(x).cumsum(1), monkeypatch), torch.rand(1000, 5000)
        for _ in range(2):
            made(x)
        assert made.by_torch(x)[1] == 0
        turns, over = [], threading.Event()

        def count():
            while not over.is_set():
                turns.append(time.perf_counter())
                time.sleep(0)

        other = threading.Thread(target=count)
        other.start()
        try:
            begin = time.perf_counter()
            made(x)
            end = time.perf_counter()
        finally:
            over.set()
            other.join()
        assert sum(begin < t < end for t in turns) > 20
    finally:
        torch.set_num_threads(threads)


PROGRAM = """
    import os, sys, torch, triport
    import torch._inductor.config as config
    config.compile_threads = 1
    torch.set_num_threads(2)
    fn = torch.compile(lambda x: x.exp() + 8, options={"cpu_backend": "triton"})
    x = torch.rand(300_000)
    for _ in range(3):
        fn(x)
    expected = float(x[299_999].exp() + 8)
    if os.fork() == 0:
        os._exit(0 if abs(float(fn(x)[299_999]) - expected) < 1e-4 else 1)  # x is as large as for several threads, and torch itself has none here
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_launches_too():
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(PROGRAM)], capture_output=True, text=True, timeout=120, cwd=ROOT.parent)
    assert done.stdout.split() == ["0"], done.stderr[-2000:]
