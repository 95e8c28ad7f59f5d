"""What launches on GPUs are made of, without one: kinds of call that are known, and plans."""

import contextlib

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triport import backends
from triport.backends import base
from triport.backends.dispatch import choice
from triport.backends.dispatch.cuda_launch import Address, Number
from triport.ops import dispatch, launches, lora_gpu


def pair(rows=6, dtype=torch.float32):
    return torch.zeros(rows, 8, dtype=dtype), torch.zeros(8, 4, dtype=dtype)


# --- kinds of call ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def calls():
    made = launches.Calls(keys=2, alike=2)
    made.learn("key", pair(), "known")
    return made


def test_equal_calls_are_known(calls):
    a, b = pair()
    assert calls.find("key", (a, b)) == ("known", [a.data_ptr(), b.data_ptr()])
    assert calls.find("other", (a, b)) is None


@pytest.mark.parametrize("change", ["rows", "strides", "dtype", "alignment", "kind", "requires_grad", "subclass", "same", "number"])
def test_other_calls_are_not(calls, change):
    a, b = pair(7 if change == "rows" else 6, torch.float16 if change == "dtype" else torch.float32)
    if change == "strides":
        a = torch.zeros(8, 6).T
    elif change == "alignment":
        a = torch.zeros(49)[1:].view(6, 8)
    elif change == "kind":
        a = a.to("meta")
    elif change == "requires_grad":
        b.requires_grad_()
    elif change == "subclass":
        b = torch.nn.Parameter(b, requires_grad=False)
    elif change == "same":
        b = a
    elif change == "number":
        b = 1.0
    assert calls.find("key", (a, b)) is None


def test_calls_under_modes_are_not_known(calls):
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Mode():
        assert calls.find("key", pair()) is None
    with torch.inference_mode():
        assert calls.find("key", pair()) is None
    with torch.autocast("cpu"):
        assert calls.find("key", pair()) is None
    assert calls.find("key", pair()) is not None
    for mode in (torch.profiler.profile(), torch.overrides.TorchFunctionMode()):
        assert not launches.unseen()
        with mode:
            assert launches.unseen()


@pytest.mark.parametrize("name, device, goes", [("auto", "cuda", True), ("triton-gpu", "cuda", True), ("cuda", "cuda", False), ("spine", "cpu", True)])
def test_within_a_use_that_serves_them_alike_calls_are_as_quick(name, device, goes):
    """An op that Triton alone has is for Triton on a GPU, whether nobody, `auto` or `triton-gpu` is chosen."""
    backend = base.Backend()
    backend.name, backend.device = name, device
    with choice.within(backend):
        assert choice.in_use and launches.unseen() is not goes and dispatch.bare() is goes
        with choice.within(backends.get("cuda")):
            assert launches.unseen() and not dispatch.bare()
    assert not launches.unseen() and dispatch.bare()


def test_the_oldest_are_forgotten(calls):
    calls.learn("second", pair(), 2)
    calls.learn("third", pair(), 3)
    assert [k for k in ("key", "second", "third") if calls.find(k, pair())] == ["second", "third"]
    for rows in (7, 8):
        calls.learn("third", pair(rows), rows)
    assert [calls.find("third", pair(rows)) is not None for rows in (6, 7, 8)] == [False, True, True]
    calls.learn("third", (pair()[0],) * 2, "one tensor twice")
    calls.learn("third", pair(8), "known already")
    assert [value for _, value in calls.known["third"]] == [8, 7]


@pytest.mark.parametrize("change", [{"keep": True}, {"shape": (2, 20, 40)}, {"strides": 0}, {"strides": 2}, {"dtype": torch.bfloat16}, {"off": 0}, {"off": 3}])
def test_plans_are_by_all_that_decides_them(change, monkeypatch):
    monkeypatch.setattr(lora_gpu, "_plans", {})
    monkeypatch.setattr(lora_gpu.cuda, "limits", lambda index: (132, 1 << 17, (9, 0)))

    def plan(keep=False, shape=(40, 40), strides=None, dtype=torch.float16, off=None):
        given = []
        for k, (m, n) in enumerate(((40, 16), (16, 40), (16, 8), (8, 40))):
            whole = torch.zeros(m * n + 1, dtype=dtype)[int(off == k):][:m * n]
            given.append(whole.view(n, m).T if strides == k else whole.view(m, n))
        return lora_gpu.product(*given, keep, shape)

    assert plan() is plan() and plan(**change) is plan(**change) and plan() is not plan(**change)


# --- plans ------------------------------------------------------------------------------------------------------------------------


class Kernel:
    """As far as a plan asks."""

    arg_names, pre_run_hooks = ("a", "BLOCK"), ()

    def __init__(self):
        self.device_caches, self.by_triton = {0: None}, []

    def __getitem__(self, grid):
        return lambda *args, **consts: self.by_triton.append((grid, args, consts))


@pytest.fixture
def plan(monkeypatch):
    """A plan for GPU 0 whose memory is the CPU's, compiled before: what its launch is called with is noted."""
    monkeypatch.setattr(launches, "_empty_strided_cuda", lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype))
    monkeypatch.setattr(launches.of_torch, "gpu_stream", lambda device: 77)
    monkeypatch.setattr(launches.drivers, "serving", lambda device: contextlib.nullcontext())
    d = launches.Drawing(2)
    out = d.made((3, 5), torch.float32)
    parts, flags = d.piece(5, torch.float32), d.piece(9, torch.int32)
    d.launch(Kernel(), 6, (Address(0), Address(out), Address(parts), Address(flags), Number(0), 11), {"BLOCK": 16}, 4, 3)
    made = d.plan(0)
    made.noted = []
    made._launches = [lambda *args: made.noted.append(args)]
    made._compiled = [{(6, 1, 1): lambda *args, stream: made.noted.append("compiled")}]
    return made


def test_a_plan_gives_every_memory_its_place(plan):
    a, b = pair()
    out, = plan((a, b), [a.data_ptr(), b.data_ptr()], 0.5)
    (memory, numbers, stream), = plan.noted
    assert memory[:3] == [a.data_ptr(), b.data_ptr(), out.data_ptr()] and numbers == (0.5,) and stream == 77
    assert memory[4] - memory[3] == launches.ALIGNED and plan.bytes == 2 * launches.ALIGNED and out.shape == (3, 5) and out.is_contiguous()


@pytest.mark.parametrize("who", ["hook", "patch", "forgotten", "pre_run_hook"])
def test_who_watches_launches_meets_triton(plan, who, monkeypatch):
    kernel = plan.steps[0][0]
    if who == "hook":
        monkeypatch.setattr(launches.replay, "hooked", lambda: True)
    elif who == "patch":
        monkeypatch.setattr(launches.JITFunction, "run", lambda *args, **kwargs: None)
    elif who == "forgotten":
        kernel.device_caches.clear()
    else:
        monkeypatch.setattr(kernel, "pre_run_hooks", [print])
    a, b = pair()
    plan((a, b), [a.data_ptr(), b.data_ptr()], 0.5)
    if who == "hook":
        assert plan.noted == ["compiled"]  # whose runner calls hooks
    else:
        (grid, args, consts), = kernel.by_triton
        assert grid == (6,) and args[0] is a and args[4:] == (0.5, 11) and consts == {"BLOCK": 16, "num_warps": 4, "num_stages": 3}
