"""Launches that are known from one before: by the same kernel as Triton would find, and Triton's way wherever somebody looks."""

import functools
import inspect
import subprocess
import sys

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings, strategies as st
from triport.backends.cpu.plugin import relaunch
from triport.backends.dispatch import quick
from triton import knobs
from triton.runtime.jit import JITFunction, KernelInterface

@pytest.fixture(autouse=True, scope="module")
def installed():
    triton.runtime.driver.active.get_current_device()
    if KernelInterface.__getitem__.__module__ != relaunch.__name__:
        pytest.skip("a Triton that was not checked: launches go its way")


@triton.jit
def mixed_kernel(x_ptr, out_ptr, n, f, g: tl.float64, flag, C: tl.constexpr, D: tl.constexpr = 3):
    i = tl.arange(0, 16)
    v = tl.load(x_ptr + i).to(tl.float32) + n + f
    tl.store(out_ptr + i, v.to(out_ptr.dtype.element_ty), mask=flag > -1)


def new_kernel():
    return triton.jit(mixed_kernel.fn)


class NoBinder(Exception):
    pass


def without_binder(kernel):
    """From now on Triton's own way of launching the kernel raises `NoBinder`."""
    def binder(*args, **kwargs):
        raise NoBinder

    for device, (*kept, _) in list(kernel.device_caches.items()):
        kernel.device_caches[device] = (*kept, binder)


X = {d: torch.arange(64).to(d) for d in (torch.float32, torch.float16, torch.int32)}
tensors = st.builds(lambda d, at: X[d][at:at + 16], st.sampled_from(list(X)), st.integers(0, 4))
numbers = st.sampled_from([0, 1, 2, 16, 17, -16, -1, 1 << 31, (1 << 31) - 1, -(1 << 31), (1 << 40) + 1, 1 << 63, True, False])
constants = st.sampled_from([1, True, 0, False, 2, 2.0, 0.0, -0.0, "a", None, tl.float32, tl.float16])
calls = st.tuples(tensors, tensors, numbers, st.sampled_from([0.5, 1.0, 1, 2]), st.sampled_from([1.0, 2]), st.sampled_from([0, 1, 16]), constants,
                  st.none() | constants.map(lambda c: (c,)), st.sampled_from([{}, {"debug": True}, {"num_warps": 8}]), st.booleans())


@settings(max_examples=12, deadline=None)
@given(made=st.lists(calls, min_size=1, max_size=4), order=st.lists(st.integers(0, 3), min_size=4, max_size=12))
def test_by_the_kernel_that_triton_finds(made, order):
    """In any order, constexprs by place or by name, whatever was launched before."""
    for which in order:
        x, out, n, f, g, flag, c, d, options, by_name = made[which % len(made)]
        args, more = (x, out.clone(), n, f, g, flag), dict(options)
        if by_name:
            more |= {"C": c, **({} if d is None else {"D": d[0]})}
        else:
            args += (c, *(d or ()))
        kernel = mixed_kernel[(1,)](*args, **more)
        assert kernel is mixed_kernel.run(*args, grid=(1,), warmup=False, **more)


def launch(kernel, out, n=2, grid=(1,), **more):
    return kernel[grid](X[torch.float32][:16], out, n, 0.5, 1.0, 1, C=1, **more)


@triton.jit
def scaled_kernel(out_ptr, C: tl.constexpr):
    value: tl.constexpr = C[0] if isinstance(C, tl.tuple) else C
    if value is True:
        tl.store(out_ptr, 111)
    else:
        tl.store(out_ptr, (tl.load(out_ptr + 1).to(tl.int8) * value).to(tl.float32))


def scaled(launched, c):
    out = torch.tensor([0.0, 100.0])
    launched(out, C=c)
    return out[0].item()


@pytest.mark.parametrize("way", [lambda k: k[(1,)], lambda k: functools.partial(k.run, grid=(1,), warmup=False),
                                 lambda k: triton.autotune([triton.Config({}, num_warps=w) for w in (1, 2)], ["C"], do_bench=lambda *args, **options: [1.0] * 3)(k)[(1,)]],
                         ids=["launch", "run", "autotune"])
@pytest.mark.parametrize("results", [
    [(2, -56.0), (2.0, 200.0)], [(1, 100.0), (True, 111.0)], [((2, 5), -56.0), ((2.0, 5), 200.0)], [((2.0, 1), 200.0), ((2, 1.0), -56.0)],
    [(tl.constexpr(2), -56.0), (tl.constexpr(2.0), 200.0)]], ids=str)
def test_constexprs_that_are_equal_have_kernels_of_their_own(results, way):
    """In either order, and again."""
    for order in (results, results[::-1]):
        launched = way(triton.jit(scaled_kernel.fn))
        assert [scaled(launched, c) for c, _ in [*order, *order]] == [r for _, r in [*order, *order]]


@triton.jit
def which_kernel(out_ptr, C: tl.constexpr, D: tl.constexpr):
    if C is None or C == "a":
        tl.store(out_ptr, 1)
    else:
        tl.store(out_ptr, 2)


@pytest.mark.parametrize("first,second", [((None, 1), ("None", 1)), (("a", "b-c"), ("a-b", "c"))])
def test_constexprs_that_are_written_alike_have_kernels_of_their_own(first, second):
    """As they do on disk, where a kernel is looked for that this process does not know."""
    for _ in range(2):
        for constants, result in ((first, 1), (second, 2)):
            out = torch.zeros(1)
            triton.jit(which_kernel.fn)[(1,)](out, *constants)
            assert out.item() == result


@triton.jit
def reciprocal_kernel(out_ptr, C: tl.constexpr):
    tl.store(out_ptr, 1.0 / (tl.load(out_ptr) + C))


def test_a_negative_zero_is_not_zero():
    for c, result in ((0.0, "inf"), (-0.0, "-inf"), (0.0, "inf")):
        out = torch.tensor([-0.0])
        reciprocal_kernel[(1,)](out, C=c)
        assert out.item() == float(result)


def test_what_is_known_needs_no_binder():
    kernel, out = new_kernel(), torch.empty(16)
    first = launch(kernel, out)
    without_binder(kernel)
    for n in (2, 3, 5):
        assert launch(kernel, out, n) is first and torch.equal(out, X[torch.float32][:16] + n + 0.5)
    seen = []
    launch(kernel, out, grid=lambda meta: seen.append(meta) or (1, 1, 1))
    assert seen[0]["C"] == 1 and seen[0]["D"] == 3 and seen[0]["n"] == 2
    for different in ({"n": 1}, {"n": 16}, {"n": 1 << 40}, {"D": 4}, {"num_warps": 8}, {"out": torch.empty(17)[1:]}, {"out": torch.empty(16, dtype=torch.float64)}):
        with pytest.raises(NoBinder):
            launch(kernel, different.pop("out", out), **different)


def test_whoever_looks_is_asked(monkeypatch):
    kernel, out = new_kernel(), torch.empty(16)
    launch(kernel, out)
    without_binder(kernel)
    met = []
    hooks = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    for name in ("launch_enter_hook", "launch_exit_hook"):
        with monkeypatch.context() as m:
            m.setattr(knobs.runtime, name, lambda metadata: None)
            with pytest.raises(NoBinder):
                launch(kernel, out)
    assert hooks == (knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook)
    with monkeypatch.context() as m:
        m.setattr(JITFunction, "run", lambda self, *args, **kwargs: met.append("patched"))
        launch(kernel, out)
    assert met == ["patched"]
    with monkeypatch.context() as m:
        m.setattr(knobs.runtime, "debug", True)
        with pytest.raises(NoBinder):
            launch(kernel, out)
    kernel.pre_run_hooks.append(lambda *args, **kwargs: met.append("hook"))
    with pytest.raises(NoBinder):
        launch(kernel, out)
    assert met == ["patched", "hook"]
    kernel.pre_run_hooks.clear()
    assert launch(kernel, out) is not None


def test_another_devices_launches_are_not_looked_at(monkeypatch):
    kernel, out = new_kernel(), torch.empty(16)
    launch(kernel, out)
    monkeypatch.setattr(relaunch, "Kinds", None)
    kernel.__dict__.pop(relaunch._NAME)
    monkeypatch.setattr(type(triton.runtime.driver.active), "get_current_device", lambda self: 0, raising=False)
    kernel.device_caches[0] = kernel.device_caches[next(iter(kernel.device_caches))]
    assert launch(kernel, out) is not None and relaunch._NAME not in kernel.__dict__


def test_a_kernel_that_is_forgotten_is_compiled_again():
    kernel, out = new_kernel(), torch.empty(16)
    first = launch(kernel, out)
    assert launch(kernel, out) is first
    kernel.device_caches.clear()
    second = launch(kernel, out)
    assert second is not first and launch(kernel, out) is second


def test_arguments_that_do_not_fit_are_tritons_errors():
    kernel, out = new_kernel(), torch.empty(16)
    launch(kernel, out)
    for grid, args, error in (((1,), (out,), TypeError), ((1,), (out, out, 1, 1.0, 1.0, 1, 1, 2, 3), TypeError), ((1, 1, 1, 2), (out, out, 2, .5, 1., 1, 1), ValueError)):
        with pytest.raises(error):
            kernel[grid](*args)
        with pytest.raises(error):
            kernel.run(*args, grid=grid, warmup=False)
    with pytest.raises(KeyError):
        launch(kernel, out, nonsense=3)


def test_what_is_forgotten_of_a_kernel_is_all():
    kernel, out = new_kernel(), torch.empty(16)
    launch(kernel, out)
    assert kernel.__dict__[relaunch._NAME].known
    quick.forget(kernel)
    assert relaunch._NAME not in kernel.__dict__


def test_kinds_are_limited(monkeypatch):
    monkeypatch.setattr(relaunch, "LIMIT", 2)
    kernel, out = new_kernel(), torch.empty(16)
    for d in (1, 2, 4, 1):
        launch(kernel, out, D=d)
        assert len(kernel.__dict__[relaunch._NAME].known) <= 2
    relaunch.forget(kernel)
    assert relaunch._NAME not in kernel.__dict__ and launch(kernel, out) is not None


@triton.jit
def named_kernel(tensors, type, kind, constant: tl.constexpr, bind: tl.constexpr, options__: tl.constexpr = 2):
    tl.store(tensors, tl.load(type) + kind + constant + bind + options__)


def test_parameters_may_have_any_name():
    kernel, out, x = triton.jit(named_kernel.fn), torch.zeros(1), torch.ones(1)
    first = kernel[(1,)](out, x, 5, 1, bind=3)
    without_binder(kernel)
    out.zero_()
    assert kernel[(1,)](out, x, 7, 1, bind=3) is first and out.item() == 14
    with pytest.raises(NoBinder):
        kernel[(1,)](out, x, 7, 1, bind=4)


@triton.jit
def any_number_kernel(out_ptr, *others):
    tl.store(out_ptr, others[0] + len(others))


def test_any_number_of_arguments():
    """Is Triton's (or its error, where it knows no such kernels)."""
    out = torch.zeros(1)
    for _ in range(3):
        try:
            any_number_kernel[(1,)](out, 5)
        except Exception:
            with pytest.raises(Exception):  # noqa: B017  (the same, whatever it is)
                any_number_kernel.run(out, 5, grid=(1,), warmup=False)
        else:
            assert out.item() == 6
    assert not any_number_kernel.__dict__[relaunch._NAME].known


@triton.jit
def reserved_kernel(out_ptr, debug=5):
    tl.store(out_ptr, debug)


def test_names_that_triton_fills_itself():
    """Are whatever its own way makes of them."""
    out = torch.zeros(1)
    for more in ({}, {"debug": 7}, {}):
        reserved_kernel.run(out, grid=(1,), warmup=False, **more)
        want = out.item()
        for _ in range(3):
            out.fill_(-1)
            reserved_kernel[(1,)](out, **more)
            assert out.item() == want


@triton.jit
def number_kernel(out_ptr, n):
    tl.store(out_ptr, n)


def test_what_a_grid_writes_is_launched():
    out = torch.zeros(1)

    def grid(bound):
        bound["n"] += 7
        return (1,)

    for _ in range(3):
        number_kernel[grid](out, 2)
        assert out.item() == 9


def test_numbers_of_more_than_64_bits_are_an_error():
    out = torch.zeros(1)
    for n in (1 << 40, -(1 << 40), (1 << 64) - 1, -(1 << 63)):
        for _ in range(2):
            number_kernel[(1,)](out, n)
            assert out.item() == float(n)
    for n in (1 << 64, -(1 << 63) - 1):
        for launched in (lambda: number_kernel[(1,)](out, n), lambda: number_kernel.run(out, n, grid=(1,), warmup=False)):
            with pytest.raises(OverflowError):
                launched()


def test_a_hook_that_changes_the_pipeline_is_called_each_time(monkeypatch):
    if "add_stages_inspection_hook" not in inspect.getsource(JITFunction.run):
        pytest.skip("a Triton that does not call this hook at launches")
    kernel, out, calls = new_kernel(), torch.empty(16), []
    launch(kernel, out)
    without_binder(kernel)
    monkeypatch.setattr(knobs.runtime, "add_stages_inspection_hook", lambda *args: calls.append(1) or ("a", "b"))
    with pytest.raises(NoBinder):
        launch(kernel, out)


def test_it_is_installed_once():
    before = KernelInterface.__getitem__
    relaunch.install()
    assert KernelInterface.__getitem__ is before is JITFunction.__getitem__


def test_who_stands_in_for_triton_is_asked(monkeypatch):
    """As what lists launches instead of doing them."""
    monkeypatch.setattr(KernelInterface, "__getitem__", lambda self, grid: lambda *args, **kwargs: (self, grid))
    assert mixed_kernel[(3,)](1, 2) == (mixed_kernel, (3,))


WRAPPED = """
import functools, sys, torch, triton, triton.language as tl
from triton.runtime.jit import JITFunction

run, seen = JITFunction.run, []

@functools.wraps(run)
def counted(self, *args, **kwargs):
    seen.append(self)
    return run(self, *args, **kwargs)

@triton.jit
def kernel(x_ptr):
    tl.store(x_ptr, 1.0)

x = torch.zeros(1)
JITFunction.run = counted
for _ in range(5):
    kernel[(1,)](x)
assert len(seen) == 5, len(seen)
JITFunction.run = run
kernel[(2,)](x)
other = triton.jit(kernel.fn)  # behind whose first launch ours are known
other[(1,)](x)
assert "relaunch" in type(other).__getitem__.__module__
assert len(seen) == 5 and x.item() == 1
"""


def test_a_wrapper_of_before_the_first_launch_sees_all_of_them(tmp_path):
    (tmp_path / "wrapped.py").write_text(WRAPPED)
    subprocess.run([sys.executable, "-W", "error::RuntimeWarning", tmp_path / "wrapped.py"], check=True, cwd=tmp_path, timeout=300)


def test_listing_launches_first_is_no_other_triton(tmp_path):
    """`triport asm OP` makes the driver while launches are listed: nothing to warn of."""
    text = "from triport.tools.__main__ import main\nraise SystemExit(main(['asm', 'softmax', '--case', '4x5']))"
    done = subprocess.run([sys.executable, "-W", "error::RuntimeWarning", "-c", text], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "triton-cpu: " not in done.stderr, done.stderr


SCALE = 2


@triton.jit
def global_kernel(out_ptr):
    tl.store(out_ptr, SCALE)


def test_a_global_that_changed_is_seen(monkeypatch):
    with monkeypatch.context() as m:
        m.setenv("TRITON_ALLOW_NON_CONSTEXPR_GLOBALS", "1")
        out = torch.zeros(1)
        global_kernel[(1,)](out)
        global_kernel[(1,)](out)
        m.setitem(globals(), "SCALE", 3)
        with pytest.raises(RuntimeError, match="SCALE has changed"):
            global_kernel[(1,)](out)
