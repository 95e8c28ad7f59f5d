"""Ops: every op x backend x case x dtype against float64, then shapes, strides, gradients, compilers and bad arguments."""

import functools
import subprocess
import sys

import numpy as np
import pytest
import torch
import triton
from conftest import SEED, everywhere, unavailable
from hypothesis import given, settings, strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from triport import ops
from triport.backends import BACKENDS, get
from triport.backends.base import ArgumentError
from triport.backends.dispatch import replay
from triport.bench import check
from triport.ops import registry
from triport.ops.records import DTYPES

RECORDS = {name: registry.get(name) for name in registry.NAMES}
#: spine's are in test_boards.py, in sizes for an emulator
WHERE = [b for b in BACKENDS if b not in ("torch-compile", "spine")]
ALL = [(n, d, c, b) for n, op in RECORDS.items() for d in op.dtypes for c in op.cases for b in WHERE if c in op.cases_on(get(b).device) and get(b).takes(op)]


def assert_right(op, got, args, kwargs):
    right, e = check.verdict(op, got, args, kwargs)
    assert right, f"{op.name}: error {e:.2e}, allowed {op.allowed(args[0].dtype):.1e}"


def make(name, seed, *shapes, dtype=torch.float32, scale=1.0):
    g = torch.Generator("cpu").manual_seed(seed)
    return [(torch.randn(s, generator=g, device="cpu") * scale).to(dtype).to(torch.get_default_device()) for s in shapes]



@functools.lru_cache(maxsize=1)
def wanted(name: str, dtype: str, case: int):
    """(inputs, the result in float64) of an op's case: for the backends that take it, one after the other."""
    op = RECORDS[name]
    args = op.cases[case].make(DTYPES[dtype], op.cases[case].device or "cpu", (SEED + case) % (1 << 31))
    return args, op.expected(*args, **op.cases[case].kwargs)


@pytest.mark.parametrize("name,dtype,case,where", ALL, ids=[f"{n}({c.name},{d})-{b}" for n, d, c, b in ALL])
def test_case(name, dtype, case, where):
    op, b = RECORDS[name], get(where)
    made, want = wanted(name, dtype, op.cases.index(case))
    args = [x.to(b.place("cpu"), copy=True) for x in made]
    error = check.error(b.bind(op)(*args, **case.kwargs), want)
    # Eager rounds between its steps: a yardstick for people, not for this bound.
    assert error <= (0.05 if where == "torch" and dtype in ("fp16", "bf16") else op.allowed(DTYPES[dtype]))
    assert all(torch.equal(x.to(y.device), y) for x, y in zip(args, made)), "inputs are left as they were"


@pytest.mark.parametrize("name", registry.NAMES)
def test_torch_compile_column(name, seed):
    if (reason := unavailable("torch-compile")):
        pytest.skip(reason)
    op = RECORDS[name]
    case = op.cases[0]
    args = case.make(torch.float32, "cpu", seed)
    assert_right(op, get("torch-compile").bind(op)(*args, **case.kwargs), args, case.kwargs)


# --- shapes and strides ----------------------------------------------------------------------------------------------

DIM = st.integers(1, 70)
LAYOUT = st.sampled_from(["plain", "transposed", "sliced", "expanded", "offset"])


def laid_out(shape, layout, seed, dtype):
    """A tensor of `shape` in a memory layout."""
    g = torch.Generator("cpu").manual_seed(seed)

    def randn(shape):
        return torch.randn(shape, generator=g, device="cpu").to(dtype).to(torch.get_default_device())

    if layout == "transposed" and len(shape) > 1:
        return randn(tuple(reversed(shape))).permute(*reversed(range(len(shape))))
    if layout == "sliced":
        return randn((*shape[:-1], 2 * shape[-1] + 1))[..., 1::2]
    if layout == "expanded" and len(shape) > 1:
        return randn((1, *shape[1:])).expand(shape)
    if layout == "offset":
        n = 3 + int(torch.tensor(shape).prod())
        return randn(n)[3:].view(shape)
    return randn(shape)


@everywhere
@settings(max_examples=40, deadline=None)
@given(shape=st.lists(DIM, min_size=1, max_size=3), layout=LAYOUT, dtype=st.sampled_from(["fp32", "fp16", "bf16", "fp64"]),
       name=st.sampled_from(["square", "gelu", "softmax"]), dim=st.integers(-1, 2), n=st.integers(0, 1 << 30))
def test_elementwise_and_softmax_any_layout(shape, layout, dtype, name, dim, n):
    op = RECORDS[name]
    x = laid_out(tuple(shape), layout, n ^ SEED, DTYPES[dtype])
    kwargs = {"dim": dim if dim < len(shape) else -1} if name == "softmax" else {}
    before = x.clone()
    assert_right(op, op.call(x, **kwargs), [x], kwargs)
    assert torch.equal(x, before)


@everywhere
@settings(max_examples=30, deadline=None)
@given(m=DIM, n=DIM, k=st.integers(1, 150), la=LAYOUT, lb=LAYOUT, dtype=st.sampled_from(["fp32", "fp16", "bf16", "fp64"]),
       dim=st.sampled_from([None, 0, -1]), seed=st.integers(0, 1 << 30))
def test_products_any_layout(m, n, k, la, lb, dtype, dim, seed):
    a = laid_out((m, k), la, seed ^ SEED, DTYPES[dtype])
    b = laid_out((k, n), lb, (seed + 1) ^ SEED, DTYPES[dtype])
    if dim is None:
        got, want = ops.matmul(a, b), a.double() @ b.double()
        cancelled = (a.double().abs() @ b.double().abs()).norm() / want.norm()  # a sum's error is relative to its terms
        assert check.error(got, want) <= RECORDS["matmul"].allowed(a.dtype) * max(1.0, cancelled.item() / 10)
    else:
        a = a * 0.3
        assert_right(RECORDS["matmul_softmax"], ops.matmul_softmax(a, b, dim), [a, b], {"dim": dim})


@everywhere
@settings(max_examples=30, deadline=None)
@given(shape=st.lists(DIM, min_size=1, max_size=3), lx=LAYOUT, ly=LAYOUT,
       act=st.sampled_from(["relu", "sigmoid", "gelu", "silu", "tanh"]), dtype=st.sampled_from(["fp32", "fp16", "bf16", "fp64"]),
       m=st.floats(-3, 3), seed=st.integers(0, 1 << 30))
def test_rows_with_bias_any_layout(shape, lx, ly, act, dtype, m, seed):
    d = DTYPES[dtype]
    x, y = laid_out(tuple(shape), lx, seed ^ SEED, d), laid_out(tuple(shape), ly, (seed + 1) ^ SEED, d)
    bias = laid_out((shape[-1],), "sliced", (seed + 2) ^ SEED, d)
    assert_right(RECORDS["add_relu"], ops.add_relu(x, bias), [x, bias], {})
    got = ops.add_mul_act(x, y, bias, m, act)
    # A sum that cancels keeps the rounding of its terms.
    want = RECORDS["add_mul_act"].expected(x, y, bias, m=m, act=act)
    bound = RECORDS["add_mul_act"].allowed(d) * (want.norm() + 1e-2 * (x.double().norm() + 3 * y.double().norm()))
    assert (got.double() - want).norm() <= bound + 1e-30
    z = x.clone(memory_format=torch.contiguous_format)
    assert ops.add_mul_act_(z, y, bias, m, act) is z
    assert torch.equal(z, got)


@everywhere
@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (3, 0, 2)])
def test_zero_size(shape):
    x = torch.empty(shape)
    for got in (ops.square(x), ops.gelu(x), ops.softmax(x, 0), ops.softmax(x, -1),
                ops.add_relu(x, torch.empty(shape[-1])), ops.add_mul_act(x, x, torch.empty(shape[-1]))):
        assert got.shape == x.shape


@everywhere
@pytest.mark.parametrize("m,k,n", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)])
def test_zero_size_products(m, k, n):
    a, b = torch.ones(m, k), torch.ones(k, n)
    assert torch.equal(ops.matmul(a, b), a @ b)
    for dim in (0, -1):
        got, want = ops.matmul_softmax(a, b, dim), torch.softmax(a @ b, dim)
        assert got.shape == want.shape and torch.allclose(got, want)


@everywhere
def test_scalar_tensor():
    x = torch.tensor(3.0)
    assert ops.square(x) == 9 and ops.softmax(x, 0) == 1 and ops.softmax(x, -1).shape == ()


@everywhere
@pytest.mark.parametrize("n", [1, 16384, 16385, 100003])
def test_softmax_long_rows(n, seed):
    x, = make("softmax", seed, (3, n), scale=3.0)
    assert_right(RECORDS["softmax"], ops.softmax(x), [x], {})


@everywhere
def test_softmax_tall_columns(seed):
    x, = make("softmax", seed, (5000, 3), scale=3.0)
    assert_right(RECORDS["softmax"], ops.softmax(x, 0), [x], {"dim": 0})


@everywhere
@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("m,n,k", [(700, 40, 30), (40, 1500, 30), (1100, 1030, 20)])
def test_matmul_softmax_in_parts(m, n, k, dim, seed):
    """More than one tile along the softmax: statistics are joined."""
    a, b = make("ms", seed, (m, k), (k, n), scale=0.7)
    assert_right(RECORDS["matmul_softmax"], ops.matmul_softmax(a, b, dim), [a, b], {"dim": dim})


# --- special values --------------------------------------------------------------------------------------------------

NAN, INF = float("nan"), float("inf")


@everywhere
@pytest.mark.parametrize("dim", [0, 1])
def test_softmax_special_rows(dim):
    rows = torch.tensor([[1.0, 2.0, 3.0], [NAN, 1.0, 2.0], [INF, 1.0, 2.0], [-INF, 1.0, 2.0], [-INF, -INF, -INF],
                         [3e38, -3e38, 0.0], [1e-40, 0.0, -1e-40]])
    x = rows if dim == 1 else rows.T.contiguous()
    torch.testing.assert_close(ops.softmax(x, dim), torch.softmax(x, dim), equal_nan=True)
    wide = x.repeat(1, 7000) if dim == 1 else x.repeat(700, 1)  # the long kernels
    torch.testing.assert_close(ops.softmax(wide, dim), torch.softmax(wide, dim), equal_nan=True)


@everywhere
@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("n", [5, 1100])
def test_matmul_softmax_special_values(dim, n):
    a = torch.randn(n, 4) * 0.1
    b = torch.randn(4, n) * 0.1
    a[0, 0], b[1, 2], a[2, 3] = INF, NAN, -INF
    torch.testing.assert_close(ops.matmul_softmax(a, b, dim), torch.softmax(a @ b, dim), equal_nan=True, rtol=1e-5,
                               atol=1e-7)


@everywhere
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16", "fp64"])
def test_gelu_up_to_the_largest_number(dtype):
    d = DTYPES[dtype]
    top = torch.finfo(d).max
    x = torch.tensor([0.0, -0.0, 1.0, 11.0, 100.0, -11.0, -100.0, top, -top, top / 2, INF, -INF, NAN], dtype=torch.float64)
    got = ops.gelu(x.to(d))
    want = torch.tensor([0.0, -0.0, *torch.nn.functional.gelu(x[2:7], approximate="tanh"), top, 0.0, top / 2, INF])
    want[-2] = x.to(d)[-4].double()
    torch.testing.assert_close(got[:11].double(), want.double(), rtol=1e-2 if dtype in ("fp16", "bf16") else 2e-6, atol=1e-6)
    assert torch.isnan(got[12])


@everywhere
@pytest.mark.parametrize("act", ["relu", "sigmoid", "gelu", "silu", "tanh"])
def test_activations_at_extremes(act):
    x = torch.tensor([[0.0, -0.0, 1e-30, -1e-30, 50.0, -50.0, 1e4, -1e4, 3e38, -3e38, NAN, 0.01, -0.34, 0.36]])
    zero = torch.zeros_like(x)
    got = ops.add_mul_act(x, zero, torch.zeros(x.shape[1]), 0.5, act)
    want = RECORDS["add_mul_act"].expected(x, zero, torch.zeros(x.shape[1]), act=act)
    torch.testing.assert_close(got.double(), want, rtol=2e-6, atol=1e-37, equal_nan=True)


@everywhere
def test_relu_keeps_nan():
    x = torch.tensor([[NAN, -1.0, 2.0, INF, -INF]])
    torch.testing.assert_close(ops.add_relu(x, torch.zeros(5)), torch.relu(x), equal_nan=True)


@everywhere
def test_square_wraps_integers():
    x = torch.tensor([2**31 - 1, -(2**31), 46341, -3], dtype=torch.int32)
    assert torch.equal(ops.square(x), x * x)


# --- gradients, tracers, compilers -----------------------------------------------------------------------------------

GRAD = {
    "square": lambda s: (ops.square, torch.square, [(33, 17)], {}),
    "gelu": lambda s: (ops.gelu, RECORDS["gelu"].eager, [(33, 17)], {}),
    "softmax": lambda s: (ops.softmax, torch.softmax, [(33, 17)], {"dim": -1}),
    "softmax0": lambda s: (ops.softmax, torch.softmax, [(33, 17)], {"dim": 0}),
    "matmul": lambda s: (ops.matmul, torch.matmul, [(33, 17), (17, 29)], {}),
    "matmul_softmax": lambda s: (ops.matmul_softmax, RECORDS["matmul_softmax"].eager, [(33, 17), (17, 29)], {"dim": 0}),
    "lora_linear": lambda s: (ops.lora_linear, RECORDS["lora_linear"].eager, [(4, 33, 17), (17, 29), (17, 5), (5, 29)], {"s": 0.7}),
    "add_relu": lambda s: (ops.add_relu, RECORDS["add_relu"].eager, [(4, 33, 17), (17,)], {}),
    **{f"add_mul_act-{a}": lambda s, a=a: (ops.add_mul_act, RECORDS["add_mul_act"].eager, [(33, 17), (33, 17), (17,)],
                                           {"m": 0.7, "act": a}) for a in ("relu", "sigmoid", "gelu", "silu", "tanh")},
}


@everywhere
@pytest.mark.parametrize("name", GRAD)
def test_gradient(name, seed):
    fn, eager, shapes, kwargs = GRAD[name](seed)
    tensors = [t.requires_grad_() for t in make(name, seed, *shapes)]
    twins = [t.detach().double().requires_grad_() for t in tensors]
    got, want = fn(*tensors, **kwargs), eager(*twins, **kwargs)
    g, = make(name, seed, got.shape)
    got.backward(g)
    want.backward(g.double())
    for t, w in zip(tensors, twins):
        assert check.error(t.grad, w.grad) < 1e-5, name


CHECKS = {
    "square": lambda: (torch.ops.triport.square, (torch.randn(5, 7, requires_grad=True),)),
    "gelu": lambda: (torch.ops.triport.gelu, (torch.randn(5, 7, requires_grad=True),)),
    "softmax": lambda: (torch.ops.triport.softmax, (torch.randn(5, 7, requires_grad=True), 1)),
    "matmul": lambda: (torch.ops.triport.matmul, (torch.randn(5, 7, requires_grad=True), torch.randn(7, 3))),
    "matmul_softmax": lambda: (torch.ops.triport.matmul_softmax, (torch.randn(5, 7, requires_grad=True),
                                                                  torch.randn(7, 3), 0)),
    "lora_linear": lambda: (torch.ops.triport.lora_linear, (torch.randn(2, 5, 7, requires_grad=True), torch.randn(7, 4), torch.randn(7, 3, requires_grad=True),
                                                            torch.randn(3, 4, requires_grad=True), 0.7)),
    "add_relu": lambda: (torch.ops.triport.add_relu, (torch.randn(5, 7, requires_grad=True), torch.randn(7))),
    "add_mul_act": lambda: (torch.ops.triport.add_mul_act, (torch.randn(5, 7, requires_grad=True), torch.randn(5, 7),
                                                            torch.randn(7), 0.5, "silu")),
    "add_mul_act_": lambda: (torch.ops.triport.add_mul_act_, (torch.randn(5, 7), torch.randn(5, 7), torch.randn(7), 0.5,
                                                              "relu")),
    "gelu_backward": lambda: (torch.ops.triport.gelu_backward, (torch.randn(5, 7), torch.randn(5, 7))),
    "scaled_matmul": lambda: (torch.ops.triport.scaled_matmul, (torch.randn(5, 7, requires_grad=True), torch.randn(7, 3), 0.7)),
    "batched_matmul": lambda: (torch.ops.triport.batched_matmul, (torch.randn(2, 5, 7, requires_grad=True), torch.randn(2, 7, 3), 0.7)),
    "sum_of_matmuls": lambda: (torch.ops.triport.sum_of_matmuls, (torch.randn(5, 7, requires_grad=True), torch.randn(7, 4), torch.randn(5, 3),
                                                                  torch.randn(3, 4))),
    "add_relu_gradients": lambda: (torch.ops.triport.add_relu_gradients, (torch.randn(5, 7, requires_grad=True), torch.rand(5, 7), 1, 1)),
    "add_mul_act_gradients": lambda: (torch.ops.triport.add_mul_act_gradients, (
        torch.randn(5, 7, requires_grad=True), torch.randn(5, 7), torch.randn(5, 7), torch.randn(7, requires_grad=True), 0.5, "silu", 1, 0, 1)),
    "softmax_backward": lambda: (torch.ops.triport.softmax_backward, (torch.randn(5, 7), torch.rand(5, 7), 0)),
    "add_mul_act_backward": lambda: (torch.ops.triport.add_mul_act_backward, (
        torch.randn(5, 7), torch.randn(5, 7), torch.randn(5, 7), torch.randn(7), 0.5, "gelu")),
}


@everywhere
@pytest.mark.parametrize("name", CHECKS)
def test_opcheck(name):
    op, args = CHECKS[name]()
    torch.library.opcheck(op, args)


@everywhere
@pytest.mark.parametrize("name", registry.NAMES)
def test_torch_compile_fullgraph(name, seed):
    if (reason := unavailable("torch-compile")):
        pytest.skip(reason)
    op = RECORDS[name]
    case = op.cases[0]
    args = case.make(torch.float32, torch.get_default_device(), seed)
    torch._dynamo.reset()
    fn = torch.compile(lambda *a: op.call(*a, **case.kwargs) + 1.0, fullgraph=True)
    assert_right(op, fn(*args) - 1.0, args, case.kwargs) if name not in ("softmax", "matmul_softmax") else \
        torch.testing.assert_close(fn(*args) - 1.0, op.call(*args, **case.kwargs), atol=1e-6, rtol=1e-4)


@everywhere
def test_torch_compile_of_a_softmax_in_one_part(seed):
    """fp64 has no kernel for whole dimensions: statistics of one part are joined, and Inductor takes a 1 for a constexpr."""
    if (reason := unavailable("torch-compile")):
        pytest.skip(reason)
    a, b = make("ab", seed, (7, 5), (5, 9), dtype=torch.float64)
    torch._dynamo.reset()
    for dim in (0, -1):
        got = torch.compile(lambda a, b: ops.matmul_softmax(a, b, dim), fullgraph=True)(a, b)
        assert_right(RECORDS["matmul_softmax"], got, [a, b], {"dim": dim})


@everywhere
def test_vmap_and_export(seed):
    x, = make("x", seed, (3, 4, 5))
    assert torch.allclose(torch.vmap(ops.square)(x), x * x)

    class M(torch.nn.Module):
        def forward(self, x):
            return ops.gelu(x)

    program = torch.export.export(M(), (x,))
    assert torch.allclose(program.module()(x), ops.gelu(x))


def test_direct_and_dispatched_agree(seed):
    x, y, bias = make("x", seed, (40, 30), (40, 30), (30,))
    a, b = make("ab", seed, (30, 20), (20, 10))
    t = torch.ops.triport
    for got, want in ((ops.square(x), t.square(x)), (ops.gelu(x), t.gelu(x)), (ops.softmax(x, 0), t.softmax(x, 0)),
                      (ops.matmul(a, b), t.matmul(a, b)), (ops.matmul_softmax(a, b, 0), t.matmul_softmax(a, b, 0)),
                      (ops.lora_linear(x, a, a[:, :3], b[:3, :1].expand(3, 20), 0.7), t.lora_linear(x, a, a[:, :3], b[:3, :1].expand(3, 20), 0.7)),
                      (ops.add_relu(x, bias), t.add_relu(x, bias)),
                      (ops.add_mul_act(x, y, bias), t.add_mul_act(x, y, bias, 0.5, "relu"))):
        assert torch.equal(got, want)


def test_replayed_calls_use_their_own_arguments(seed):
    """Same shapes again: what was remembered of the first call must not leak into later ones."""
    for k in range(4):
        x, y, bias = make("x", seed + k, (40, 30), (40, 30), (30,))
        a, b = make("ab", seed + k, (600, 20), (20, 1200), scale=0.5)
        assert_right(RECORDS["add_mul_act"], ops.add_mul_act(x, y, bias, 0.5 + k, "silu"), [x, y, bias],
                     {"m": 0.5 + k, "act": "silu"})
        assert_right(RECORDS["matmul_softmax"], ops.matmul_softmax(a, b, -1), [a, b], {"dim": -1})
        assert_right(RECORDS["matmul"], ops.matmul(x.T, x), [x.T, x], {})
        square = x[:30, :30].contiguous()
        assert_right(RECORDS["matmul"], ops.matmul(square, square), [square, square], {})


def test_what_watches_sees_calls_that_were_made_before(seed):
    """A call like earlier ones takes a short cut, but not where something follows it."""
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    x, y = make("xy", seed, (40, 30), (40, 30))
    want = torch.softmax(x.double(), -1)

    def right(got, want=want):
        assert check.error(got, want) < 2e-6
        return got

    for _ in range(4):
        right(ops.softmax(x))
        right(ops.softmax(x, -1))

    seen = []

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    class Function(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    for mode in (Dispatch, Function):
        seen.clear()
        with mode():
            right(ops.softmax(x))
        assert any("softmax" in s for s in seen), mode
    leaf = x.clone().requires_grad_()
    got = right(ops.softmax(leaf))
    got.backward(y)
    assert leaf.grad is not None
    with torch.no_grad():
        assert not right(ops.softmax(leaf)).requires_grad
    assert right(ops.softmax(leaf)).requires_grad
    with torch.inference_mode():
        right(ops.softmax(x))
    right(torch.func.vmap(ops.softmax)(x[None])[0])
    with torch.autograd.forward_ad.dual_level():
        right(ops.softmax(x))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as prof:
        right(ops.softmax(x))
    assert any(e.key == "triport::softmax" for e in prof.key_averages())
    names = []
    hook = lambda metadata: names.append(1)  # noqa: E731
    triton.knobs.runtime.launch_enter_hook.add(hook)
    try:
        right(ops.softmax(x))
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(hook)
    assert names
    fake = FakeTensorMode()
    assert ops.softmax(fake.from_tensor(x)).shape == x.shape
    neg = torch.view_as_complex(torch.stack([x, -x], -1)).conj().imag
    assert neg.is_neg()
    right(ops.softmax(neg))
    right(ops.softmax(torch.nn.Parameter(x, requires_grad=False)))


def test_calls_made_before_at_another_alignment_and_with_other_parameters(seed):
    base, = make("x", seed, (40 * 30 + 8,))
    for start in (0, 4, 1, 4, 0, 1):  # 0, 16 and 4 bytes from a boundary
        x = base[start:start + 1200].view(40, 30)
        for _ in range(3):
            assert check.error(ops.square(x), x.double()**2) < 2e-6
            assert check.error(ops.softmax(x, 0), torch.softmax(x.double(), 0)) < 2e-6
    for _ in range(3):
        assert check.error(ops.softmax(x, 1), torch.softmax(x.double(), 1)) < 2e-6
        assert check.error(ops.softmax(x, dim=1), torch.softmax(x.double(), 1)) < 2e-6
    for wrong in (True, [0], 1.0):
        with pytest.raises((ArgumentError, TypeError)):
            ops.softmax(x, wrong)
    before = torch.get_num_threads()
    try:
        for n in (1, 2, before):
            torch.set_num_threads(n)
            assert check.error(ops.softmax(x, 1), torch.softmax(x.double(), 1)) < 2e-6
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("shapes", [False, True])
def test_profiler_shows_op_kernel_backend_and_grid(shapes, seed, tmp_path):
    import json
    from triport.ops import tuning
    x, = make("x", seed, (100, 100))
    with (tuning.trying("gelu", {"BLOCK": 4096}, "gelu", {}),
          torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=shapes) as prof):
        ops.gelu(x)
    prof.export_chrome_trace(str(tmp_path / "t.json"))
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    op, = [e for e in events if e.get("name") == "triport::gelu"]
    kernel, = [e for e in events if e.get("name") == "gelu_kernel[triton-cpu] grid(3, 1, 1)"]
    assert op["ts"] <= kernel["ts"] and kernel["ts"] + kernel["dur"] <= op["ts"] + op["dur"] + 1
    if shapes:
        assert kernel["args"]["kernel_backend"] == "triton-cpu" and kernel["args"]["grid"] == "grid(3, 1, 1)"


# --- wrong arguments -------------------------------------------------------------------------------------------------

X, B = torch.ones(3, 4), torch.ones(4)
BAD = [
    (lambda: ops.square([1.0]), "argument 'x' is list"),
    (lambda: ops.square(torch.ones(3, dtype=torch.bool)), "dtype bool; it takes fp32"),
    (lambda: ops.square(torch.ones(3, dtype=torch.complex64)), "complex64"),
    (lambda: ops.square(torch.eye(3).to_sparse()), "layout"),
    (lambda: ops.add_mul_act(X, X.to_sparse(), B), "argument 'y' has layout torch.sparse_coo"),
    (lambda: ops.add_mul_act(X, X.to_sparse_csr(), B), "argument 'y' has layout torch.sparse_csr"),
    (lambda: ops.add_mul_act(X, X, B.to_sparse()), "argument 'bias' has layout"),
    (lambda: ops.add_mul_act_(X.to_sparse(), X, B), "argument 'x' has layout torch.sparse_coo"),
    (lambda: ops.add_mul_act_(X.to_sparse_csr(), X, B), "argument 'x' has layout torch.sparse_csr"),
    (lambda: ops.add_mul_act_(X.clone(), X.to_sparse(), B), "argument 'y' has layout"),
    (lambda: ops.add_relu(X, B.to_sparse()), "argument 'bias' has layout"),
    (lambda: ops.matmul(X, torch.ones(4, 2).to_sparse()), "argument 'b' has layout"),
    (lambda: ops.matmul_softmax(X, torch.ones(4, 2).to_sparse_csr()), "argument 'b' has layout"),
    (lambda: ops.lora_linear(X, torch.ones(4, 2).to_sparse(), torch.ones(4, 1), torch.ones(1, 2)), "argument 'w' has layout"),
    (lambda: ops.softmax(X.to_mkldnn()), "layout"),
    (lambda: ops.softmax(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)), "is a nested tensor"),
    (lambda: ops.gelu(torch.ones(3, dtype=torch.int32)), "argument 'x' has dtype int32"),
    (lambda: ops.softmax(X, 2), "'dim' is 2; for a tensor of shape 3x4 it takes -2 to 1"),
    (lambda: ops.softmax(X, 0.5), "'dim' is 0.5"),
    (lambda: ops.softmax("x"), "argument 'x' is str"),
    (lambda: ops.matmul(X, X), "'a' is 3x4 and 'b' is 3x4"),
    (lambda: ops.matmul(X, torch.ones(4)), "argument 'b' has shape 4; it takes a matrix"),
    (lambda: ops.matmul(X, torch.ones(4, 2, dtype=torch.float16)), "argument 'b' has dtype fp16 but 'a' has fp32"),
    (lambda: ops.matmul(X, torch.ones(4, 2, device="meta")), "argument 'b' is on meta but 'a' is on cpu"),
    (lambda: ops.matmul_softmax(X, torch.ones(4, 2), 2), "'dim' is 2; it takes 0"),
    (lambda: ops.matmul_softmax(X, torch.ones(4, 2), torch.tensor([0, 1])), "'dim' is tensor([0, 1]); it takes 0"),
    (lambda: ops.matmul_softmax(X, torch.ones(4, 2), torch.tensor(0)), "'dim' is tensor(0); it takes 0"),
    (lambda: ops.matmul_softmax(X, torch.ones(4, 2), 0.0), "'dim' is 0.0; it takes 0"),
    (lambda: ops.matmul_softmax(X, torch.ones(4, 2), None), "'dim' is None; it takes 0"),
    (lambda: ops.matmul_softmax(X, X), "same K"),
    (lambda: ops.lora_linear(X, torch.ones(3, 2), torch.ones(4, 2), torch.ones(2, 2)), "argument 'w' is 3x2; for x of shape 3x4 it takes 4 rows"),
    (lambda: ops.lora_linear(X, torch.ones(4, 2), torch.ones(3, 2), torch.ones(2, 2)), "argument 'a' is 3x2; for x of shape 3x4 it takes 4 rows"),
    (lambda: ops.lora_linear(X, torch.ones(4, 2), torch.ones(4, 3), torch.ones(2, 2)), "argument 'b' is 2x2; for a of shape 4x3 it takes 3 rows"),
    (lambda: ops.lora_linear(X, torch.ones(4, 2), torch.ones(4, 3), torch.ones(3, 4)), "argument 'b' is 3x4; for w of shape 4x2 it takes 2 columns"),
    (lambda: ops.lora_linear(X, torch.ones(4, 2), torch.ones(4), torch.ones(3, 2)), "argument 'a' has shape 4; it takes a matrix"),
    (lambda: ops.lora_linear(torch.tensor(1.0), torch.ones(4, 2), torch.ones(4, 3), torch.ones(3, 2)), "argument 'x' is a scalar"),
    (lambda: ops.lora_linear(X, torch.ones(4, 2), torch.ones(4, 3).half(), torch.ones(3, 2)), "argument 'a' has dtype fp16 but 'x' has fp32"),
    (lambda: ops.lora_linear(X, torch.ones(4, 2), torch.ones(4, 3), [1.0]), "argument 'b' is list"),
    (lambda: ops.lora_linear(X, torch.ones(4, 2), torch.ones(4, 3), torch.ones(3, 2), "2"), "argument 's' is '2'; it takes a number"),
    (lambda: ops.lora_linear(X, torch.ones(4, 2), torch.ones(4, 3), torch.ones(3, 2), True), "argument 's' is True; it takes a number"),
    (lambda: ops.add_relu(X, torch.ones(3)), "argument 'bias' has shape 3; for x of shape 3x4 it takes one row of 4"),
    (lambda: ops.add_relu(torch.tensor(1.0), B), "'x' is a scalar"),
    (lambda: ops.add_mul_act(X, torch.ones(4, 3), B), "argument 'y' has shape 4x3 but 'x' has 3x4"),
    (lambda: ops.add_mul_act(X, X, B, act="swish"), "unknown act 'swish'"),
    (lambda: ops.add_mul_act(X, X, B, act=["relu"]), "unknown act"),
    (lambda: ops.add_mul_act(X, X, B, m="2"), "argument 'm' is '2'; it takes a number"),
    (lambda: ops.add_mul_act(X, X, B, m=10**400), "argument 'm' is an int of 1329 bits"),
    (lambda: ops.add_mul_act_(X.clone(), X, B, m=-10**400), "argument 'm' is an int of 1329 bits"),
    (lambda: ops.add_mul_act_([1.0], X, B), "argument 'x' is list"),
    (lambda: ops.add_mul_act_(X.clone().requires_grad_(), X, B), "is a leaf that requires grad"),
    (lambda: ops.add_mul_act_(torch.ones(1, 4).expand(3, 4), X, B), "expanded"),
]


NESTED = """
import torch, warnings
from triport import ops
from triport.backends.base import ArgumentError
warnings.simplefilter("ignore")
x, w = torch.randn(5, 7), torch.randn(7, 7)
n = torch.nested.nested_tensor([torch.randn(2, 7), torch.randn(4, 7)])
calls = {"gelu": (x,), "softmax": (x,), "add_relu": (x, w[0]), "add_mul_act": (x, x, w[0]), "matmul": (x, w), "lora_linear": (x, w, w, w, 0.5)}
for name, args in calls.items():
    for _ in range(4):
        getattr(ops, name)(*args)
    for k in range(len([a for a in args if isinstance(a, torch.Tensor)])):
        try:
            getattr(ops, name)(*args[:k], n, *args[k + 1:])
        except ArgumentError as e:
            assert "is a nested tensor" in str(e), e
        else:
            raise SystemExit(name)
print("all refused")
"""


def test_a_nested_tensor_where_dense_ones_are_known():
    """torch's guards, by which a call is recognised, end the process for one that has no strides."""
    done = subprocess.run([sys.executable, "-c", NESTED], capture_output=True, text=True)
    assert done.stdout == "all refused\n", done.stderr[-500:]


class Chain(torch.nn.Module):
    """Every op once."""

    def __init__(self, n: int):
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(n, n))

    def forward(self, x, b):
        y = ops.gelu(ops.add_relu(ops.square(x), b))
        y = ops.softmax(ops.add_mul_act(y, y, b, 0.5, "silu"), -1)
        return ops.lora_linear(ops.matmul_softmax(ops.matmul(y, self.w), self.w, -1), self.w, self.w, self.w, 0.25)


def test_symbolic_traces():
    """torch.fx hands out what stands for a tensor, and is handed the call."""
    chain, x, b = Chain(7), torch.randn(5, 7), torch.randn(7)
    graph = torch.fx.symbolic_trace(chain)
    assert [str(n.target) for n in graph.graph.nodes if n.op == "call_function"] == [
        f"triport.{name}" for name in ("square", "add_relu", "gelu", "add_mul_act", "softmax", "matmul", "matmul_softmax", "lora_linear")]
    assert torch.equal(graph(x, b), chain(x, b))
    graph(x, b).sum().backward()
    assert chain.w.grad is not None
    with pytest.raises(ArgumentError, match="'x' is Proxy; .* takes add_mul_act"):
        torch.fx.symbolic_trace(lambda x: ops.add_mul_act_(x, x, b))
    with pytest.raises(ArgumentError, match="'y' is Proxy; .* takes add_mul_act"):  # what would be written is no part of the graph
        torch.fx.symbolic_trace(lambda y: ops.add_mul_act_(torch.ones(5, 7), y, b))
    with pytest.raises(ArgumentError, match="'b' is list; it takes a torch.Tensor"):
        torch.fx.symbolic_trace(lambda x: ops.matmul(x, [1.0]))


def test_numbers_of_numpy():
    x, bias = torch.randn(4, 5), torch.randn(5)
    for m in (np.float32(0.5), np.float64(0.5), np.float16(0.5), np.array(0.5)):
        assert torch.equal(ops.add_mul_act(x, x, bias, m), ops.add_mul_act(x, x, bias, 0.5))
        assert torch.equal(ops.lora_linear(x, x.T, x.T, x @ x.T, m), ops.lora_linear(x, x.T, x.T, x @ x.T, 0.5))
    assert torch.equal(ops.add_mul_act_(x.clone(), x, bias, np.int64(2)), ops.add_mul_act(x, x, bias, 2))
    assert torch.equal(ops.softmax(x, np.int64(0)), ops.softmax(x, 0)) and torch.equal(ops.matmul_softmax(x, x.T, np.int32(-1)), ops.matmul_softmax(x, x.T, -1))
    for wrong in (np.bool_(True), np.str_("1"), np.array([0.5]), np.complex64(1)):
        with pytest.raises(ArgumentError, match="'m' is .*; it takes a number"):
            ops.add_mul_act(x, x, bias, wrong)
    for wrong in (np.float32(0), np.bool_(False)):
        with pytest.raises(ArgumentError, match="'dim' is .*; it takes an int"):
            ops.softmax(x, wrong)


def test_a_nested_tensor_without_sizes():
    """Before an op knows a call: TensorGuards, which know one again, end the process where they are given such a tensor (torch 2.13), as in a compiled graph."""
    replay.forget()
    with pytest.raises(ArgumentError, match="argument 'x' is a nested tensor"):
        ops.square(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))


@pytest.mark.parametrize("call,text", BAD, ids=[t for _, t in BAD])
def test_bad_argument(call, text):
    with pytest.raises(ArgumentError) as e:
        call()
    assert text in str(e.value) and str(e.value).startswith("triport.")


def test_unlike_devices_named(seed):
    x = torch.ones(3, 4)
    with pytest.raises(ArgumentError, match="meta"):
        torch.ops.triport.add_relu(x, torch.ones(4, device="meta"))


@everywhere
@pytest.mark.parametrize("name", registry.NAMES)
def test_torch_compile_dynamic_shapes(name, seed):
    """Traced with symbolic sizes, run at sizes that were not there at the trace."""
    op = RECORDS[name]
    torch._dynamo.reset()
    fn = torch.compile(op.call, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows, cols in ((33, 17), (65, 40), (130, 257)):
        args = make(name, seed, *{"matmul": [(rows, cols), (cols, rows + 3)], "matmul_softmax": [(rows, cols), (cols, rows)],
                                  "lora_linear": [(rows, cols), (cols, rows + 3), (cols, 5), (5, rows + 3)],
                                  "add_relu": [(rows, cols), (cols,)],
                                  "add_mul_act": [(rows, cols), (rows, cols), (cols,)]}.get(name, [(rows, cols)]), scale=0.5)
        assert_right(op, fn(*args), args, {})
