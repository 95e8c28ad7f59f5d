"""`backends.use`: who serves the ops of a context."""

import contextlib
import contextvars
import sys
import threading
import time

import pytest
import torch
import torch._dynamo.testing
from conftest import unavailable
from triport import backends, ops
from triport.backends import base, table
from triport.backends.dispatch import choice
from triport.ops import register

calls = []


class Twin(base.Backend):
    """Serves CPU tensors by torch, and keeps count."""

    name = "twin"
    device = "cpu"
    serves = True

    def implementation(self, name, registered):
        by = {"square": lambda x: x * x, "matmul": torch.matmul, "softmax": torch.softmax,
              "add_mul_act": lambda x, y, bias, m, act: ops.registry.get("add_mul_act").eager(x, y, bias, m, act),
              "add_mul_act_": lambda x, y, bias, m, act: (x.copy_(torch.relu(x + m * y + bias)), None)[1]}
        if name not in by:
            raise base.Unsupported(f"backend twin has no {name}")

        def body(*args):
            calls.append(name)
            return by[name](*args)

        return body


class Away(Twin):
    name = "away"

    def unavailable(self):
        return "it is away"


@pytest.fixture(autouse=True)
def twins(monkeypatch):
    known = {"twin": Twin(), "away": Away()}
    get = table.get
    both = lambda name: known.get(name) or get(name)  # noqa: E731
    monkeypatch.setattr(table, "get", both)
    monkeypatch.setattr(register, "get_backend", both)
    calls.clear()


def test_a_board_that_went_is_refused(monkeypatch):
    with backends.use("twin"):
        pass
    monkeypatch.setattr(Twin, "unavailable", lambda self: "it went")
    with pytest.raises(base.Unavailable, match="backend twin cannot run here: it went"):
        backends.use("twin")


def test_who_stays_is_asked_once(monkeypatch):
    monkeypatch.setattr(choice, "_lasting", {})
    monkeypatch.setattr(Twin, "stays", True)
    first = backends.use("twin")
    monkeypatch.setattr(Twin, "unavailable", lambda self: "it went")
    assert backends.use("twin") is first
    assert [n for n in table.BACKENDS if table.get(n).serves and not table.get(n).stays] == ["spine"], "a board may go"


def test_within_it_the_chosen_one_serves():
    x, y = torch.randn(5, 7), torch.randn(7, 3)
    ops.square(x)
    with backends.use("twin") as b:
        assert b.name == "twin"
        assert torch.equal(ops.square(x), x * x)
        assert torch.equal(ops.softmax(x, 0), torch.softmax(x, 0))
        assert torch.equal(ops.matmul(x, y), x @ y)
        assert torch.equal(ops.add_mul_act(x, x, x[0], 0.5, "relu"), torch.relu(x + 0.5 * x + x[0]))
        z = x.clone()
        assert ops.add_mul_act_(z, x, x[0]) is z and torch.equal(z, torch.relu(x + 0.5 * x + x[0]))
        with pytest.raises(base.Unsupported, match="twin has no gelu"):
            ops.gelu(x)
        with backends.use("triton-cpu"):
            ops.gelu(x)
        with pytest.raises(base.ArgumentError, match="argument 'x' is str"):
            ops.square("x")
    assert calls == ["square", "softmax", "matmul", "add_mul_act", "add_mul_act_"]
    assert ops.square(x).shape == x.shape and calls[-1] == "add_mul_act_" and not choice.in_use


def test_calls_that_were_replayed_before_obey():
    """Known calls are recognised in native code, which must look at the choice."""
    x = torch.randn(40, 30)
    for _ in range(5):
        ops.square(x)
    with backends.use("twin"):
        ops.square(x)
    assert calls == ["square"]
    for _ in range(3):
        ops.square(x)
    assert calls == ["square"]


def test_it_is_the_contexts_own():
    x = torch.randn(5)
    with backends.use("twin"):
        other = threading.Thread(target=lambda: ops.square(x))  # a thread has a context of its own
        other.start()
        other.join()
        assert not calls
        contextvars.copy_context().run(ops.square, x)
        assert calls == ["square"]
        contextvars.Context().run(ops.square, x)
        assert calls == ["square"]


def test_it_ends_with_an_exception():
    with pytest.raises(ZeroDivisionError):
        with backends.use("twin"):
            1 / 0
    ops.square(torch.ones(3))
    assert not calls and not choice.in_use


def test_gradients():
    x = torch.randn(5, 7, requires_grad=True)
    w, b = torch.randn(5, 7), torch.randn(7)
    with backends.use("twin"):
        (ops.square(x) * w).sum().backward()
        assert torch.allclose(x.grad, 2 * x * w)
        x.grad = None
        (ops.add_mul_act(x, w, b, 0.5, "relu") * w).sum().backward()
        assert torch.allclose(x.grad, w * (x + 0.5 * w + b > 0))
    assert calls == ["square", "add_mul_act"]


def test_a_compiled_function_is_compiled_once_however_many_uses_are_open():
    torch._dynamo.reset()
    compiled = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    f = torch.compile(lambda x: ops.square(x) + 1, fullgraph=True, backend=compiled)
    x = torch.randn(5, 7)
    f(x)
    with contextlib.ExitStack() as stack:
        for n in range(1, 12):
            stack.enter_context(backends.use("twin"))
            f(x)
            assert calls == ["square"] * n and compiled.frame_count == 2


def test_a_compiled_function_asks_when_it_runs():
    torch._dynamo.reset()
    f = torch.compile(lambda x: ops.square(x) + 1, fullgraph=True, backend="aot_eager")
    x = torch.randn(5, 7)
    assert torch.equal(f(x), x * x + 1) and not calls
    with backends.use("twin"):
        assert torch.equal(f(x), x * x + 1) and calls == ["square"]
    assert torch.equal(f(x), x * x + 1) and calls == ["square"]
    with backends.use("triton-cpu"):
        f(x)
    with backends.use("twin"):
        f(x)
    assert calls == ["square"] * 2


@pytest.mark.parametrize("name", list(register.IMPLEMENTATIONS["cuda"]))
def test_opcheck(name):
    x, y, b = torch.randn(5, 7), torch.randn(7, 3), torch.randn(7)
    args = {"softmax": (x, 1), "matmul": (x, y), "matmul_softmax": (x, y, 0), "add_relu": (x, b),
            "add_mul_act": (x, x + 1, b, 0.5, "silu"), "add_mul_act_": (x, x + 1, b, 0.5, "relu")}.get(name, (x,))
    torch.library.opcheck(getattr(torch.ops.triport, f"{name}_by"), (*args, ""))
    if name != "add_mul_act_":
        grad = tuple(a.clone().requires_grad_() if isinstance(a, torch.Tensor) else a for a in args)
        torch.library.opcheck(getattr(torch.ops.triport, f"{name}_by"), (*grad, ""))


@pytest.mark.parametrize("name,error,text", [
    ("cudaa", base.Error, "did you mean 'cuda'"), ("away", base.Unavailable, "backend away cannot run here: it is away"),
    ("torch", base.Error, "column of `triport bench`"), ("torch-compile", base.Error, "it takes triton-cpu, triton-gpu, cuda")])
def test_what_cannot_be_used(name, error, text):
    with pytest.raises(error, match=text):
        with backends.use(name):
            pass
    assert not choice.in_use


def test_whoever_is_within_it_sees_so_whatever_other_threads_do():
    """`in_use` is told without a lock."""
    before, missed, ready = sys.getswitchinterval(), [], threading.Barrier(4)

    def enter_and_leave():
        ready.wait()
        for _ in range(2000):
            with backends.use("triton-cpu"):
                time.sleep(0)  # the others' turn
                missed.extend([] if choice.in_use else [1])

    threads = [threading.Thread(target=enter_and_leave) for _ in range(4)]
    sys.setswitchinterval(1e-6)
    try:
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(before)
    assert not missed and not choice.in_use


def test_cuda_says_why_it_cannot():
    reason = unavailable("cuda")
    if reason is None:
        pytest.skip("it can, here")
    with pytest.raises(base.Unavailable) as e:
        with backends.use("cuda"):
            pass
    assert reason in str(e.value)
