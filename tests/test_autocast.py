"""Ops under torch.autocast: dtypes as those of torch's own ops, by `ops.f` and by `torch.ops.triport.f`."""

import itertools
import threading

import pytest
import torch
from conftest import everywhere, unavailable
from triport import ops
from triport.backends.dispatch import replay
from triport.backends.base import ArgumentError
from triport.bench import check
from triport.ops import registry

registered = torch.ops.triport
SHAPES = {"matmul": [(5, 7), (7, 3)], "matmul_softmax": [(5, 7), (7, 3)], "lora_linear": [(5, 7), (7, 3), (7, 2), (2, 3)],
          "add_relu": [(5, 7), (7,)], "add_mul_act": [(5, 7), (5, 7), (7,)]}
PARAMS = {"softmax": (-1,), "matmul_softmax": (0,), "lora_linear": (0.5,), "add_mul_act": (0.5, "silu")}
FORMS = {"ops": lambda name, args: getattr(ops, name)(*args, *PARAMS.get(name, ())),
         "torch.ops": lambda name, args: getattr(registered, name)(*args, *PARAMS.get(name, ())),
         "torch.ops, by": lambda name, args: getattr(registered, name + "_by")(*args, *PARAMS.get(name, ()), "")}
HALVES = (torch.bfloat16, torch.float16)


def device():
    return torch.get_default_device().type


def arguments(name, dtype, requires_grad=False):
    return [torch.randn(s).to(dtype).requires_grad_(requires_grad) for s in SHAPES.get(name, [(5, 7)])]


def eager(name, args):
    return registry.get(name).eager(*args, *PARAMS.get(name, ()))


@everywhere
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", registry.NAMES)
def test_dtypes_are_torchs(name, form):
    """Of the result and of the gradients, for every dtype of the context and of the arguments."""
    for within, dtype in itertools.product(HALVES, (torch.float32, *HALVES, torch.float64)):
        args = arguments(name, dtype, requires_grad=True)
        twins = [t.detach().clone().requires_grad_() for t in args]
        with torch.autocast(device(), dtype=within):
            got, want = FORMS[form](name, args), eager(name, twins)
        assert got.dtype is want.dtype, (within, dtype)
        assert check.error(got.detach(), want.detach().double()) < 0.05
        weights = torch.randn(got.shape).to(got.dtype)
        for a, b in zip(torch.autograd.grad(got, args, weights), torch.autograd.grad(want, twins, weights)):
            assert a.dtype is b.dtype is dtype and (a - b).abs().max() < 0.05 * b.abs().max() + 0.05


@everywhere
@pytest.mark.parametrize("form", FORMS)
def test_a_product_is_that_of_rounded_operands(form):
    a, b = arguments("matmul", torch.float32)
    with torch.autocast(device(), dtype=torch.bfloat16):
        got = FORMS[form]("matmul", (a, b))
        mixed = FORMS[form]("matmul", (a.bfloat16(), b))
    assert torch.equal(got, ops.matmul(a.bfloat16(), b.bfloat16())) and torch.equal(mixed, got)


@everywhere
@pytest.mark.parametrize("name", ["add_relu", "add_mul_act"])
def test_sums_of_unlike_dtypes_take_the_widest(name):
    """A product under autocast is bf16, the bias that is added to it a fp32 parameter."""
    for x, bias, want in ((torch.bfloat16, torch.float32, torch.float32), (torch.float16, torch.bfloat16, torch.float32),
                          (torch.float32, torch.bfloat16, torch.float32), (torch.bfloat16, torch.bfloat16, torch.bfloat16)):
        args = [t.to(bias if k == len(SHAPES[name]) - 1 else x) for k, t in enumerate(arguments(name, torch.float32))]
        with torch.autocast(device(), dtype=torch.bfloat16):
            for form in FORMS:
                assert FORMS[form](name, args).dtype is eager(name, args).dtype is want
        if x is not bias:
            with pytest.raises(ArgumentError, match="convert one of them"):
                FORMS["ops"](name, args)


def test_gradients_are_those_of_the_casts():
    """Also where backward runs under autocast."""
    for name in ("matmul", "matmul_softmax"):
        a, b = arguments(name, torch.float32, requires_grad=True)
        c, d = a.detach().clone().requires_grad_(), b.detach().clone().requires_grad_()
        weights = torch.randn(5, 3).bfloat16()
        want = torch.autograd.grad(getattr(ops, name)(c.bfloat16(), d.bfloat16()), (c, d), weights)
        for inside in (False, True):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = getattr(ops, name)(a, b)
                if inside:
                    got = torch.autograd.grad(out, (a, b), weights)
            if not inside:
                got = torch.autograd.grad(out, (a, b), weights)
            assert all(torch.equal(g, w) and g.dtype is torch.float32 for g, w in zip(got, want))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            first, = torch.autograd.grad(getattr(ops, name)(a, b).float().pow(2).sum(), a, create_graph=True)
            second, = torch.autograd.grad(first.pow(2).sum(), b)
        assert second.dtype is torch.float32 and second.isfinite().all()


def test_calls_that_were_replayed_before_obey():
    """Known calls are recognised in native code, which must see that autocast is on; and a call under it must not be remembered."""
    a, b = arguments("matmul", torch.float32)
    replay.forget()
    for _ in range(5):
        assert ops.matmul(a, b).dtype is torch.float32
    site = replay.site("matmul")
    assert site.call(a, b) is not None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert site.call(a, b) is None
        for _ in range(5):
            assert ops.matmul(a, b).dtype is torch.bfloat16
        with torch.autocast("cpu", enabled=False):
            assert ops.matmul(a, b).dtype is torch.float32
        seen = []
        other = threading.Thread(target=lambda: seen.append(ops.matmul(a, b).dtype))  # autocast is a thread's own
        other.start()
        other.join()
        assert seen == [torch.float32]
    assert site.call(a, b) is not None and ops.matmul(a, b).dtype is torch.float32


def test_only_its_device_and_no_other_ops():
    a, b = arguments("matmul", torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = a.clone()
        assert ops.add_mul_act_(x, a, a[0]).dtype is torch.float32
        with pytest.raises(ArgumentError, match="dtype bf16 but 'x' has fp32"):
            ops.add_mul_act_(x, a.bfloat16(), a[0])
        with pytest.raises(ArgumentError, match="has dtype fp64"):
            ops.matmul(a, b.double())
        with pytest.raises(ArgumentError, match="int32"):
            ops.matmul(a, b.int())
        assert ops.square(a.int()).dtype is torch.int32


def test_transforms_under_autocast():
    a, b = arguments("matmul", torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, tangent = torch.func.jvp(ops.matmul, (a, b), (a, b))
        grads = torch.func.grad(lambda a: ops.matmul(a, b).float().pow(2).sum())(a)
        each = torch.func.vmap(ops.matmul)(torch.stack([a, a]), torch.stack([b, b]))
    assert out.dtype is tangent.dtype is each.dtype is torch.bfloat16 and grads.dtype is torch.float32
    torch.testing.assert_close(tangent.float(), 2 * (a @ b), rtol=0.05, atol=0.1)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled(backend):
    if (reason := unavailable("torch-compile")):
        pytest.skip(reason)
    a, b = arguments("matmul", torch.float32, requires_grad=True)
    torch._dynamo.reset()
    compiled = torch.compile(lambda a, b: ops.matmul_softmax(ops.square(a), b, -1), fullgraph=True, backend=backend)

    def context(a, b):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return ops.matmul(a, b)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, want = compiled(a, b), ops.matmul_softmax(ops.square(a), b, -1)
        assert got.dtype is want.dtype is torch.bfloat16
        torch.testing.assert_close(got, want, rtol=0.02, atol=0.02)
    assert compiled(a, b).dtype is torch.float32
    inside = torch.compile(context, fullgraph=True, backend=backend)(a, b)
    assert inside.dtype is torch.bfloat16
    assert torch.autograd.grad(inside.float().sum(), a)[0].dtype is torch.float32
