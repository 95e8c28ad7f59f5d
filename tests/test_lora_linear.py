"""lora_linear: layouts, ranks, sizes and special values against float64, and what its backward computes and what it leaves out."""

import pytest
import torch
from conftest import SEED
from hypothesis import given, settings, strategies as st
from test_ops import DIM, LAYOUT, laid_out
from triport import ops
from triport.backends.dispatch import replay
from triport.bench import check
from triport.ops import registry
from triport.ops.records import DTYPES

OP = registry.get("lora_linear")
#: launched for: the result, the gradients of x, a and b
FORWARD = ["scaled_matmul_kernel", "sum_of_matmuls_kernel"]


def random(seed, *shapes, dtype=torch.float32, requires_grad=()):
    g = torch.Generator("cpu").manual_seed(seed)
    return [torch.randn(s, generator=g, dtype=torch.float64).to(dtype).requires_grad_(k in requires_grad) for k, s in enumerate(shapes)]


def sizes(m, k, n, r):
    return (m, k), (k, n), (k, r), (r, n)


@settings(max_examples=15, deadline=None)
@given(rows=st.lists(st.integers(1, 40), min_size=0, max_size=2), k=st.integers(1, 90), n=DIM, r=st.integers(1, 20), layouts=st.tuples(*[LAYOUT] * 4),
       dtype=st.sampled_from(["fp32", "fp16", "bf16", "fp64"]), s=st.sampled_from([1.0, 0.0, -0.5, 3, 1e-3]), seed=st.integers(0, 1 << 30))
def test_any_layout(rows, k, n, r, layouts, dtype, s, seed):
    shapes = (*rows, k), (k, n), (k, r), (r, n)
    args = [laid_out(shape, layout, (seed + i) ^ SEED, DTYPES[dtype]) for i, (shape, layout) in enumerate(zip(shapes, layouts))]
    before = [t.clone() for t in args]
    got, want = OP.call(*args, s), OP.expected(*args, s)
    assert got.is_contiguous() and got.shape == (*rows, n) and got.dtype is DTYPES[dtype]
    x, w, a, b = (t.double().abs() for t in args)
    terms = x @ w + abs(s) * (x @ a) @ b  # a sum's error is relative to its terms
    rounded = torch.finfo(got.dtype).eps / 2 * abs(s) * (args[0].double() @ args[2].double()).abs() @ b  # x @ a is kept in the element type
    assert (got.double() - want).norm() <= OP.allowed(got.dtype) * max(want.norm(), 0.1 * terms.norm()) + rounded.norm()
    assert all(torch.equal(t, u) for t, u in zip(args, before))


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16", "fp64"])
@pytest.mark.parametrize("r", [1, 5, 8, 64, 600])
def test_ranks(r, dtype, seed):
    """600 is more than a tile of K: those that fit are one product, longer ones a loop."""
    args = random(seed, *sizes(70, 130, 90, r), dtype=DTYPES[dtype])
    for _ in range(4):  # as it is, recorded, replayed
        assert check.error(ops.lora_linear(*args, 0.5), OP.expected(*args, 0.5)) <= OP.allowed(DTYPES[dtype])


@pytest.mark.parametrize("m,k,n,r", [(0, 3, 4, 2), (3, 0, 4, 2), (3, 4, 0, 2), (3, 4, 5, 0), (0, 0, 0, 0)])
def test_zero_sizes(m, k, n, r):
    args = [torch.ones(s) for s in sizes(m, k, n, r)]
    for _ in range(3):
        assert torch.equal(ops.lora_linear(*args), OP.eager(*args))


@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 7), (2, 0, 7)])
def test_leading_dimensions(shape, seed):
    x, w, a, b = random(seed, shape, (7, 5), (7, 2), (2, 5), requires_grad=range(4))
    twins = [t.detach().double().requires_grad_() for t in (x, w, a, b)]
    got, want = ops.lora_linear(x, w, a, b, 2), OP.eager(*twins, 2)
    g, = random(seed + 1, got.shape)
    for t, u in zip(torch.autograd.grad(got, (x, w, a, b), g), torch.autograd.grad(want, twins, g.double())):
        assert t.shape == u.shape and check.error(t, u) < 1e-5


def test_low_rank_part_is_scaled_before_it_is_rounded(seed):
    """A scale that takes x a beyond fp16's largest number, back into it, is no infinity; eager's is."""
    x, w, a, b = (torch.full(s, v, dtype=torch.float16) for s, v in zip(sizes(4, 64, 8, 2), (64.0, 0.0, 64.0, 1.0)))
    got = ops.lora_linear(x, w, a, b, 2.0**-10)
    assert torch.equal(got, torch.full((4, 8), 2 * 64.0**3 / 2**10, dtype=torch.float16))
    assert OP.eager(x, w, a, b, 2.0**-10).isinf().all()


@pytest.mark.parametrize("which,inf", [(0, float("inf")), (1, float("nan")), (2, float("-inf")), (3, float("nan"))])
def test_infinities_and_nan_stay(which, inf, seed):
    args = random(seed, *sizes(20, 30, 40, 3))
    args[which].view(-1)[7] = inf
    for s in (0.5, 0.0):
        torch.testing.assert_close(ops.lora_linear(*args, s), OP.eager(*args, s), equal_nan=True, rtol=1e-4, atol=1e-4)


# --- what is computed ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def launched(monkeypatch):
    """The names of kernels in the order of their launches, of products' own ones "matmul_kernel"; no call takes a short cut past it."""
    from triport.ops import lora_linear  # noqa: F401
    import sys
    names = []
    for module in ("matmul", "split_k", "lora_plain"):
        m = sys.modules[f"triport.ops.{module}"]
        real = m.launch
        monkeypatch.setattr(m, "launch", lambda kernel, *args, real=real, **kwargs: (names.append(kernel.fn.__name__.replace("part_", "matmul_")), real(kernel, *args, **kwargs)))
    replay.forget()
    yield names
    replay.forget()


def test_a_frozen_weight_has_no_gradient_computed(launched, seed):
    """Nor any other tensor that requires none."""
    per = {0: ["scaled_matmul_kernel", "sum_of_matmuls_kernel"], 1: ["matmul_kernel"], 2: ["scaled_matmul_kernel", "matmul_kernel"],
           3: ["scaled_matmul_kernel", "matmul_kernel"]}
    for required in ((0, 2, 3), (2, 3), (0,), (1,), (2,), (3,), (0, 1, 2, 3)):
        tensors = random(seed, *sizes(9, 17, 13, 5), requires_grad=required)
        replay.forget()
        launched.clear()
        out = ops.lora_linear(*tensors, 0.5)
        assert launched == FORWARD
        launched.clear()
        out.sum().backward()
        want = [name for k in required for name in per[k]]
        if 0 in required and 2 in required:  # s g bT serves both
            want.remove("scaled_matmul_kernel")
        assert sorted(launched) == sorted(want), required
        assert [t.grad is not None for t in tensors] == [k in required for k in range(4)]


def test_nothing_of_the_results_size_is_held_beside_it(seed):
    """Temporaries of a forward: rank numbers for each row."""
    from torch.utils._python_dispatch import TorchDispatchMode
    made = []

    class Made(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            made.append((str(func), out.shape))
            return out

    args = random(seed, *sizes(64, 32, 48, 4))
    with Made():
        out = ops.lora_linear(*args)
    assert [n for n, _ in made if n == "triport.lora_linear.default"] and out.shape == (64, 48)
    assert {tuple(s) for n, s in made if n.startswith("aten.")} <= {(64, 4), (64, 48)}
    assert sum(tuple(s) == (64, 48) for n, s in made if n.startswith("aten.empty")) <= 1


def test_batched_gradients(seed):
    """autograd.grad(is_grads_batched=True) hands backward tensors without storage, which nothing but their kind shows."""
    tensors = random(seed, *sizes(5, 7, 4, 2), requires_grad=(0, 2, 3))
    inputs = [tensors[k] for k in (0, 2, 3)]
    grads, = random(seed + 1, (3, 5, 4))
    out = ops.lora_linear(*tensors, 0.5)
    got = torch.autograd.grad(out, inputs, grads, is_grads_batched=True, retain_graph=True)
    for k in range(3):
        for t, u in zip(got, torch.autograd.grad(out, inputs, grads[k], retain_graph=True)):
            torch.testing.assert_close(t[k], u)


def test_choosing_a_backend_that_lacks_it():
    from triport.backends import base, get
    from triport.ops.register import implementation
    with pytest.raises(base.Unsupported, match="backend cuda has no lora_linear; it has .*square"):
        implementation("cuda", "lora_linear")
    assert not get("cuda").takes(OP) and get("triton-gpu").takes(OP)


@pytest.mark.parametrize("parameter", [False, True])
def test_compiled_training_step(parameter, seed):
    """A frozen layer with trained factors under torch.compile, one graph."""
    tensors = random(seed, (2, 9, 17), (17, 13), (17, 3), (3, 13), requires_grad=(2, 3))
    twins = [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]
    s = torch.nn.Parameter(torch.tensor(0.5)).item() if parameter else 0.5
    torch._dynamo.reset()
    fn = torch.compile(lambda x, w, a, b: ops.lora_linear(x, w, a, b, s).pow(2).sum(), fullgraph=True, backend="aot_eager")
    fn(*tensors).backward()
    OP.eager(*twins, s).pow(2).sum().backward()
    for t, u in zip(tensors[2:], twins[2:]):
        torch.testing.assert_close(t.grad, u.grad, rtol=1e-4, atol=1e-4)
    assert tensors[1].grad is None


def test_a_result_of_no_rank_may_be_written_to():
    """The first and the next: it is no view of something else."""
    x, w = torch.randn(2, 3, 40, requires_grad=True), torch.randn(40, 17)
    for _ in range(3):
        y = ops.lora_linear(x, w, torch.randn(40, 0), torch.randn(0, 17))
        y += 1
        torch.testing.assert_close(y, x @ w + 1, rtol=1e-5, atol=1e-5)
        y.sum().backward()
