"""Calls like one before: what recognises them, what it must not take for them, and what native code does for them."""

import contextlib
import ctypes
import faulthandler
import functools
import importlib
import gc
import os
import subprocess
import sys
import textwrap
import threading
import types

import pytest
import torch
import triton
import triton.language as tl
from conftest import HANGS
from torch.overrides import TorchFunctionMode
from triton.runtime.jit import JITFunction
from triport import backends, ops
from triport.backends import active, checking
from triport.backends.cpu.run import loaded, metadata, native
from triport.backends.dispatch import replay
from triport.backends.dispatch import call
from triport.bench import check
from triport.ops.dispatch import direct, launch, replayed


@pytest.fixture(autouse=True)
def fresh():
    replay.forget()
    yield
    replay.forget()


def known(name, fn, *args):
    """The site of an op after calls like `fn(*args)`."""
    for _ in range(3):
        fn(*args)
    return replay.site(name)


def test_a_call_like_one_before_is_recognised(seed):
    x = torch.randn(40, 30)
    site = known("square", ops.square, x)
    y = torch.randn(40, 30)
    out = site.call(y)
    assert torch.equal(out, y * y) and type(out) is torch.Tensor
    for other in (y.T, y[:39], y.double(), y.requires_grad_(), torch.nn.Parameter(x), torch.randn(1201)[1:].view(40, 30), 3, None):
        assert site.call(other) is None
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert site.call(x) is None
    finally:
        torch.set_num_threads(threads)
    assert site.call(x) is not None
    with torch.inference_mode():
        assert site.call(x) is None
        for _ in range(3):
            assert ops.square(x).is_inference()
        assert site.call(x).is_inference()
    assert not site.call(x).is_inference()


class _Follows(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def _changed(of, name, value):
    """Within it an attribute is `value`; an object that had none of its own, only its class's, has none afterwards (some pytests' monkeypatch leaves it one)."""
    own = name in vars(of)
    before = getattr(of, name)
    setattr(of, name, value)
    try:
        yield
    finally:
        setattr(of, name, before) if own else delattr(of, name)


@contextlib.contextmanager
def _hooked(chain, hook):
    chain.add(hook)
    try:
        yield
    finally:
        chain.remove(hook)


def _hook(metadata):
    """Called around launches."""


@pytest.mark.parametrize("watcher", [
    _Follows, lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]), torch.autograd.forward_ad.dual_level,
    lambda: backends.use("triton-cpu"), checking.checks, lambda: active.of_another(active.now()),
    lambda: _changed(JITFunction, "run", lambda self, *args, **kwargs: None),
    lambda: _hooked(triton.knobs.runtime.launch_enter_hook, _hook), lambda: _hooked(triton.knobs.runtime.launch_exit_hook, _hook),
    lambda: _changed(triton.knobs.runtime, "launch_enter_hook", _hook), lambda: _changed(triton.knobs.runtime, "launch_exit_hook", _hook),
    lambda: _changed(type(triton.knobs.runtime), "launch_enter_hook", _hook)],
    ids=["function mode", "profiler", "dual level", "use", "checks", "another's driver", "run", "enter", "exit", "own enter", "own exit", "class's enter"])
def test_nothing_is_replayed_for_whoever_watches(watcher, seed):
    x = torch.randn(5, 7)
    site = known("square", ops.square, x)
    with watcher():
        assert site.call(x) is None
    assert torch.equal(site.call(x), x * x)
    with _changed(triton.knobs.runtime, "debug", triton.knobs.runtime.debug):  # Triton's settings have one of their own, and no hook
        assert site.call(x) is not None
        with watcher():
            assert site.call(x) is None


def test_one_tensor_twice_is_recognised(seed):
    """And is not taken for two of the same kind, nor they for it, whichever came first."""
    b, kinds = torch.randn(30), {"twice": lambda: (torch.randn(40, 30),) * 2, "apart": lambda: (torch.randn(40, 30), torch.randn(40, 30))}
    for first, second in (("twice", "apart"), ("apart", "twice")):
        replay.forget()
        site = known("add_mul_act", ops.add_mul_act, *kinds[first](), b, 0.5, "relu")
        x, y = kinds[first]()
        assert torch.allclose(site.call(x, y, b, 0.5, "relu"), torch.relu(x + 0.5 * y + b))
        x, y = kinds[second]()
        assert site.call(x, y, b, 0.5, "relu") is None
        assert known("add_mul_act", ops.add_mul_act, x, y, b, 0.5, "relu") is site
        for kind in (first, second):
            x, y = kinds[kind]()
            assert torch.allclose(site.call(x, y, b, 0.5, "relu"), torch.relu(x + 0.5 * y + b))
    x = torch.randn(48, 48)
    assert torch.allclose(known("matmul", ops.matmul, x, x).call(x, x), x @ x, atol=1e-4)


def test_what_autograd_follows_is_replayed_below_the_dispatcher(monkeypatch, seed):
    bodies = []
    record = replay.record
    monkeypatch.setattr(replay, "record", lambda key, body, *rest: (bodies.append(body), record(key, body, *rest))[1])
    x, w = torch.randn(40, 30, requires_grad=True), torch.randn(30, 20)
    site = replay.site("matmul")
    replay.forget()  # another test may have called it with these sizes
    for k in range(6):
        if k == 3:  # the first call may compile, which is no launch to repeat
            settled = len(bodies)
        leaf = (x.detach() + k).requires_grad_()
        out = ops.matmul(leaf, w)
        assert out.requires_grad and check.error(out.detach(), leaf.detach().double() @ w.double()) < 2e-6
    assert len(bodies) == settled >= 1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ops.matmul(x, w).dtype is torch.bfloat16
    settled = len(bodies)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as prof:
        ops.matmul(x, w)
    assert any(e.key.startswith("matmul_kernel[triton-cpu]") for e in prof.key_averages())  # what watches sees kernels
    assert len(bodies) == settled
    assert site.call(x, w) is None and site.call(x.detach(), w) is None  # a plan that the dispatcher's call used says nothing of the function's


def test_backward_is_known_by_native_code(monkeypatch, seed):
    """And what comes before it, of tensors that require gradients: neither is looked for by Python once it was seen. Derivatives of it are right all the same."""
    register = importlib.import_module("triport.ops.register")
    looked, real = [], register.direct
    monkeypatch.setattr(register, "direct", lambda body, *rest: (looked.append(body.__name__), real(body, *rest))[1])
    x, w, grad = torch.randn(37, 29, dtype=torch.float64), torch.nn.Parameter(0.1 * torch.randn(29, 31, dtype=torch.float64)), torch.randn(37, 31, dtype=torch.float64)
    replay.forget()
    for k in range(6):
        looked.clear()
        leaf = (x + 0.1 * k).requires_grad_()
        found = torch.autograd.grad(ops.softmax(ops.matmul(leaf, w), -1), (leaf, w), grad)
        a, b = (t.detach().requires_grad_() for t in (leaf, w))
        for got, want in zip(found, torch.autograd.grad((a @ b).softmax(-1), (a, b), grad)):
            assert check.error(got, want) < 1e-12 and not got.requires_grad
    assert looked == []
    leaf = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(ops.softmax(leaf, -1), leaf, torch.ones_like(x).cumsum(1), create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), leaf)
    other = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(other.softmax(-1), other, torch.ones_like(x).cumsum(1), create_graph=True)
    assert first.requires_grad and check.error(second, torch.autograd.grad(expected.square().sum(), other)[0]) < 1e-10


@pytest.mark.parametrize("kinds", ["bounds", ",".join(checking.KINDS)])
def test_what_was_first_checked_is_replayed_afterwards(kinds, seed):
    """Triton keeps the kernel that checks; what is launched once nothing is checked any more is its version without."""
    forget = functools.partial(backends.get("triton-cpu").forget, ops.registry.get("square"))
    x = torch.randn(40, 30)
    forget()
    try:
        with checking.checks(kinds):
            ops.square(x)
        site = known("square", ops.square, x)
        assert len(replay._plans) == 1 and torch.equal(site.call(x), x * x)
        launched = []
        with checking.checks(kinds):
            assert site.call(x) is None
            checking.watchers.append(types.SimpleNamespace(launched=launched.append))
            try:
                ops.square(x)
            finally:
                checking.watchers.pop()
        assert launched == ["square_kernel"] and torch.equal(site.call(x), x * x)
    finally:
        forget()


def test_parameters_are_told_apart():
    x, bias = torch.randn(8, 8), torch.randn(8)
    site = known("add_mul_act", ops.add_mul_act, x, x + 1, bias, 0.5, "relu")
    assert site.call(x, x + 1, bias, float("0.5"), "relu") is not None, "equal floats are one parameter"
    for m, act in ((-0.5, "relu"), (0.5, "silu"), (0.25, "relu"), (1, "relu"), (None, "relu"), ("0.5", "relu"), (0.5, None)):
        assert site.call(x, x + 1, bias, m, act) is None, (m, act)
    site = known("add_mul_act", ops.add_mul_act, x, x + 1, bias, 0.0, "relu")
    assert site.call(x, x + 1, bias, -0.0, "relu") is None and site.call(x, x + 1, bias, 0.0, "relu") is not None
    for _ in range(3):
        for zero in (0.0, -0.0):
            out = ops.add_mul_act(-torch.zeros(8, 8), torch.ones(8, 8), -torch.zeros(8), zero, "tanh")
            assert torch.signbit(out).all() == (str(zero) == "-0.0"), zero
    site = known("softmax", ops.softmax, x, 1)
    assert site.call(x, 1) is not None and site.call(x, True) is None and site.call(x, 0) is None
    assert ops.softmax(x, dim=1) is not None and torch.equal(ops.softmax(dim=1, x=x), ops.softmax(x))


def test_many_shapes(seed):
    xs = [torch.randn(n, 7) for n in range(1, 40)]
    for _ in range(5):
        for x in xs:
            assert torch.equal(ops.square(x), x * x)
    assert len(replay.site("square").swap([])) == call.KNOWN


@pytest.mark.parametrize("second", [lambda x: x, lambda x: x.T, lambda x: x[:, ::1], lambda x: x.detach()], ids=["itself", "turned", "view", "detached"])
@pytest.mark.parametrize("step", [1, 2])
def test_two_tensors_in_one_place_are_told_apart(second, step, seed):
    """Of x @ x.T a plan is made at the first call: it is right for such calls, and for tensors that lie apart. A slice's gaps are no hindrance."""
    x, z = torch.randn(48 * step, 48)[::step], torch.randn(48 * step, 48)[::step]
    before = x.clone()
    for _ in range(3):
        assert (ops.matmul(x, second(x)).double() - x.double() @ second(x).double()).abs().max() < 1e-4
    assert len(replay._plans) == 1
    assert (ops.matmul(z, second(x)).double() - z.double() @ second(x).double()).abs().max() < 1e-4
    assert (ops.matmul(x, second(z)).double() - x.double() @ second(z).double()).abs().max() < 1e-4
    assert len(replay._plans) == 1 and torch.equal(x, before)
    if second(x) is not x:
        assert replay.site("matmul").call(x, second(x)) is not None


def test_two_tensors_in_one_place_that_are_not_copied(monkeypatch, seed):
    """What overlaps itself, and what is large, is served as it was: without a plan."""
    wide = torch.randn(40, 1).expand(40, 40)
    for _ in range(2):
        assert (ops.matmul(wide, wide).double() - wide.double() @ wide.double()).abs().max() < 1e-4
    monkeypatch.setattr(replay, "_COPIED", 40 * 40 * 4 - 1)
    x = torch.randn(40, 40)
    for _ in range(2):
        assert (ops.matmul(x, x.T).double() - x.double() @ x.T.double()).abs().max() < 1e-4
    assert not replay._plans


def test_calls_hold_on_to_nothing():
    x = torch.randn(64, 64)
    site = known("softmax", ops.softmax, x, 0)
    learnt = site.swap([])
    site.swap(learnt)
    found = learnt[0]

    def counts():
        gc.collect()
        return (sys.getrefcount(x), sys.getrefcount(found), sum(isinstance(o, torch.Tensor) for o in gc.get_objects()),
                sys.getrefcount(None), sys.getrefcount(torch.float32))

    before = counts()
    for _ in range(2000):
        assert ops.softmax(x, 0) is not None
        site.call(x, 1)  # not known
        site.call(x.T, 0)
    after = counts()
    assert after[:3] == before[:3]
    assert all(b < a + 1000 for a, b in zip(before[3:], after[3:])), "others use these, too, but not once a call"


def test_threads_while_calls_are_learnt_and_dropped(seed):
    """Others keep running what was dropped while they ran."""
    wrong, stop = [], threading.Event()

    def work(n):
        x = torch.randn(n, 700)
        while not stop.is_set():
            if not torch.equal(ops.square(x), x * x):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in (100, 101, 102)]
    [t.start() for t in threads]
    for k in range(60):
        if k % 7 == 0:
            replay.forget()
        known("square", ops.square, torch.randn(k + 1, 5))
    stop.set()
    [t.join() for t in threads]
    assert not wrong


def test_first_calls_from_several_threads(tmp_path):
    """What native code is made from lives as long as the functions that point into it, also where two threads make it at once."""
    script = tmp_path / "first.py"
    script.write_text(textwrap.dedent("""
        import ctypes, gc, threading, torch
        from triport import ops
        start = threading.Barrier(4)
        def work(n):
            x = torch.randn(64 + n, 64)
            start.wait()
            for _ in range(200):
                assert torch.equal(ops.square(x), x * x)
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        gc.collect()
        junk = [ctypes.create_string_buffer(bytes([255]) * 32, 32) for _ in range(100_000)]  # where freed structures lay
        for n in range(4):
            x = torch.randn(64 + n, 64)
            assert torch.equal(ops.square(x), x * x)
        print("right")
    """))
    for _ in range(3):
        p = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=HANGS)
        assert p.returncode == 0 and "right" in p.stdout, p.stderr[-2000:]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_starts_from_nothing():
    x = torch.randn(600, 600)
    want = x * x  # torch's own threads do not survive a fork
    site = known("square", ops.square, x)
    pid = os.fork()
    if pid == 0:
        right = site.call(x) is None and all((ops.square(x).numpy() == want.numpy()).all() for _ in range(4))
        os._exit(0 if right else 1)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_copies_nothing_by_torch():
    """Which it would for a call of one tensor twice, and wait for OpenMP's threads for ever."""
    x = torch.randn(300, 300)
    want = torch.matmul(x, x)
    assert torch.allclose(ops.matmul(x, x), want, atol=1e-3) and torch.softmax(torch.randn(600, 600), 1) is not None
    pid = os.fork()
    if pid == 0:
        faulthandler.dump_traceback_later(60, exit=True)
        got = [ops.matmul(x, x) for _ in range(3)]
        os._exit(0 if all(abs(g.numpy() - want.numpy()).max() < 1e-3 for g in got) else 1)
    assert os.waitpid(pid, 0)[1] == 0


Entry = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.POINTER(ctypes.c_uint64))


def make_plan(statuses, alignments=(0,), allocations=2, show=None, fail=None, words=(), results=None):
    """A plan whose launches return `statuses`, and what they were passed."""
    seen, keep = [], []
    for k, status in enumerate(statuses):
        keep.append(Entry(lambda p, k=k, status=status: seen.append((k, p[0], p[1], p[2])) or status))
    launches = [native.Launch(ctypes.cast(e, ctypes.c_void_p).value, False, [0, len(alignments), b"\x2a" + bytes(7), *words]) for e in keep]
    made = [(show, (3, 5), (5, 1), torch.float32), (None, (2,), (1,), torch.float64)][:allocations]
    plan = call.plan(alignments, made, launches, replay.empty, fail, results=results)
    return plan, seen, keep


def test_a_plan_passes_addresses_and_values():
    shown = []
    plan, seen, _keep = make_plan([0, 0], show=shown.append)
    x = torch.zeros(64)
    gc.collect()
    before = sum(isinstance(o, torch.Tensor) for o in gc.get_objects())
    out = plan(x)
    assert sum(isinstance(o, torch.Tensor) for o in gc.get_objects()) == before + 1, "the temporary goes"
    assert out.shape == (3, 5) and out.stride() == (5, 1) and out.dtype is torch.float32 and shown[0] is out
    assert seen == [(k, x.data_ptr(), out.data_ptr(), 42) for k in range(2)]
    assert plan(x[1:]) is None and plan(x, x) is None and plan() is None and len(seen) == 2


@pytest.mark.parametrize("results", [1, 2])
def test_a_plan_of_several_results_returns_a_tuple(results):
    plan, seen, _keep = make_plan([0], results=results)
    x = torch.zeros(64)
    for _ in range(3):
        gc.collect()
        before = sum(isinstance(o, torch.Tensor) for o in gc.get_objects())
        out = plan(x)
        assert type(out) is tuple and [t.shape for t in out] == [(3, 5), (2,)][:results]
        assert sum(isinstance(o, torch.Tensor) for o in gc.get_objects()) == before + results, "what is no result goes"
        assert seen.pop() == (0, x.data_ptr(), out[0].data_ptr(), 42)
        del out
        assert sum(isinstance(o, torch.Tensor) for o in gc.get_objects()) == before


def test_a_plan_that_fails_raises_and_drops_what_it_made():
    def fail(launch, status):
        raise RuntimeError(f"{launch}: {status}")

    plan, seen, _keep = make_plan([0, -7, 0], fail=fail)
    x = torch.zeros(64)
    gc.collect()
    before = sum(isinstance(o, torch.Tensor) for o in gc.get_objects()), sys.getrefcount(x)
    for _ in range(100):
        with pytest.raises(RuntimeError, match="1: -7"):
            plan(x)
    gc.collect()
    assert (sum(isinstance(o, torch.Tensor) for o in gc.get_objects()), sys.getrefcount(x)) == before and len(seen) == 200

    def refuse(out):
        raise MemoryError("no advice")

    plan, seen, _keep = make_plan([0], show=refuse)
    with pytest.raises(MemoryError, match="no advice"):
        plan(x)
    assert not seen
    with pytest.raises((RuntimeError, AttributeError, TypeError)):
        plan("no tensor")


def test_what_is_too_large_for_a_table_has_no_plan():
    assert make_plan([0], words=[b"8 bytes."] * call.WORDS)[0] is None
    assert make_plan([0], alignments=(0,) * call.POINTERS)[0] is None
    plan, seen, _keep = make_plan([0], words=[b"8 bytes."] * (call.WORDS - 3))
    assert plan(torch.zeros(16)) is not None and len(seen) == 1


def test_pythons_lock_is_given_up_for_what_takes_long():
    """By one thread, too, and where nothing is known of how long it takes; not for what is over sooner than another thread wakes."""
    class Run:
        slots, scratch = [], 0

    kernel = loaded.Function(0, "kernel", None)
    for work, threads, released in ((5, 1, False), (5_000_000, 1, True), (0, 1, True), (metadata.ALONE, 2, True), (5_000_000, 2, True), (5, 2, False)):
        run = Run()
        run.work = lambda args, work=work: work
        assert native.launch_of(run, kernel, (3, 1, 1), (), threads, lambda n, t: None).released == released, (work, threads)


def test_an_assert_in_a_recognised_call_says_which(seed):
    """Through `launch.failed`, as every launch."""
    import triton
    import triton.language as tl
    from triport.ops.dispatch import direct, launch

    @triton.jit(debug=True)
    def positive_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
        offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offs, mask=offs < n, other=1)
        tl.device_assert(x > 0, "not positive")
        tl.store(out_ptr + offs, x, mask=offs < n)

    def body(x):
        out = torch.empty_like(x)
        launch(positive_kernel, (4,), x, out, 64, BLOCK=16)
        return out

    x = torch.rand(64) + 1
    for _ in range(3):
        assert torch.equal(direct(body, (x,)), x)
    x[40] = -1
    with pytest.raises(Exception, match="not positive"):
        direct(body, (x,))
    assert check.error(direct(body, (x.abs(),)), x.abs().double()) == 0


@triton.jit
def added_kernel(x_ptr, out_ptr, real):
    tl.store(out_ptr, tl.load(x_ptr) + real)


def test_a_number_that_its_type_does_not_hold():
    """A launch makes an infinity of it, and there is nothing to replay."""
    def body(x, real):
        out = torch.empty_like(x)
        launch(added_kernel, (1,), x, out, real)
        return out

    @replayed(1)
    def beyond(x, real=0.0):
        return direct(body, (x,), real)

    for real in (1e300, -1e300, 2.0):
        assert [beyond(torch.ones(1), real).item() for _ in range(3)] == [float(torch.tensor(1 + real, dtype=torch.float64).float())] * 3


LAID = {"transposed": lambda m, n: torch.randn(n, m).t(), "with gaps": lambda m, n: torch.randn(m, n + 5)[:, :n], "every other": lambda m, n: torch.randn(m, 2 * n)[:, ::2],
        "one row for all": lambda m, n: torch.randn(1, n).expand(m, n), "one column for all": lambda m, n: torch.randn(m, 1).expand(m, n)}


@pytest.mark.parametrize("laid", LAID)
def test_a_matrix_that_is_not_contiguous_is_replayed(laid, monkeypatch, seed):
    """Its copy is a kernel's, launched again; torch's own would be a call that nobody knows."""
    torch.manual_seed(seed)
    bodies = []
    record = replay.record
    monkeypatch.setattr(replay, "record", lambda *args: (bodies.append(args[0]), record(*args))[1])
    for m, n in ((33, 70), (1, 9), (2100, 3), (5, 1)):
        x, y, bias = LAID[laid](m, n), LAID[laid](m, n), torch.randn(n)
        for op, want in ((ops.square, x * x), (ops.gelu, torch.nn.functional.gelu(x, approximate="tanh")), (lambda x: ops.add_relu(x, bias), (x + bias).relu()),
                         (lambda x: ops.add_mul_act(x, y, bias), None), (lambda x: ops.softmax(x, 0), x.softmax(0)), (lambda x: ops.softmax(x, 1), x.softmax(1))):
            replay.forget()
            first = op(x)
            bodies.clear()
            again = [op(x) for _ in range(3)]
            assert not bodies, (laid, m, n)
            assert all(torch.equal(a, first) for a in again)
            if want is not None:
                torch.testing.assert_close(first, want, rtol=1e-5, atol=1e-6)
            else:
                assert torch.equal(first, ops.add_mul_act(x.contiguous(), y.contiguous(), bias))
