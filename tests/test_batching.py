"""vmap of the ops: one call for a batch, right whatever has the batch and wherever, within other transforms and around them; errors that name what is seen."""

import random

import pytest
import torch
import torch.nn.functional as F
from conftest import everywhere
from torch.func import grad, jacrev, jvp, vmap
from triport import ops
from triport.backends.base import ArgumentError
from triport.testing import launches

pytestmark = pytest.mark.filterwarnings("error:There is a performance drop")  # torch's, of an op that has no rule
T = torch.ops.triport
#: name -> (op, the same in torch, shapes of its tensors without the batch)
CASES = {
    "square": (ops.square, torch.square, ((3, 5),)),
    "square of scalars": (ops.square, torch.square, ((),)),
    "gelu": (ops.gelu, lambda x: F.gelu(x, approximate="tanh"), ((7,),)),
    "gelu_backward": (T.gelu_backward, lambda g, x: grad(lambda x: (F.gelu(x, approximate="tanh") * g).sum())(x), ((3, 5), (3, 5))),
    "softmax": (ops.softmax, lambda x: x.softmax(-1), ((4, 5),)),
    "softmax, dim 0": (lambda x: ops.softmax(x, 0), lambda x: x.softmax(0), ((4, 3, 5),)),
    "softmax, dim -2": (lambda x: ops.softmax(x, -2), lambda x: x.softmax(-2), ((4, 3, 5),)),
    "softmax of scalars": (lambda x: ops.softmax(x, 0), lambda x: x.softmax(0), ((),)),
    "softmax_backward": (lambda g, y: T.softmax_backward(g, y, -1), lambda g, y: y * (g - (g * y).sum(-1, keepdim=True)), ((4, 5), (4, 5))),
    "add_relu": (ops.add_relu, lambda x, b: (x + b).relu(), ((2, 3, 5), (5,))),
    "add_relu of rows": (ops.add_relu, lambda x, b: (x + b).relu(), ((5,), (5,))),
    "add_mul_act": (lambda x, y, b: ops.add_mul_act(x, y, b, 0.7, "silu"), lambda x, y, b: F.silu(x + 0.7 * y + b), ((3, 5), (3, 5), (5,))),
    "add_mul_act_backward": (lambda g, x, y, b: T.add_mul_act_backward(g, x, y, b, 0.7, "tanh"),
                             lambda g, x, y, b: g * (1 - torch.tanh(x + 0.7 * y + b) ** 2), ((3, 5), (3, 5), (3, 5), (5,))),
    "matmul": (ops.matmul, torch.matmul, ((3, 4), (4, 5))),
    "matmul_by": (lambda a, b: T.matmul_by(a, b, ""), torch.matmul, ((3, 4), (4, 5))),
    "matmul without terms": (ops.matmul, torch.matmul, ((3, 0), (0, 5))),
    "batched_matmul": (lambda a, b: T.batched_matmul(a, b, 0.7), lambda a, b: 0.7 * torch.bmm(a, b), ((2, 3, 4), (2, 4, 5))),
    "matmul_softmax, dim 0": (lambda a, b: ops.matmul_softmax(a, b, 0), lambda a, b: (a @ b).softmax(0), ((3, 4), (4, 5))),
    "matmul_softmax, dim -1": (lambda a, b: ops.matmul_softmax(a, b, -1), lambda a, b: (a @ b).softmax(-1), ((3, 4), (4, 5))),
    "scaled_matmul": (lambda a, b: T.scaled_matmul(a, b, 0.7), lambda a, b: 0.7 * (a @ b), ((3, 4), (4, 5))),
    "sum_of_matmuls": (T.sum_of_matmuls, lambda x, w, t, b: x @ w + t @ b, ((3, 4), (4, 5), (3, 2), (2, 5))),
    "lora_linear": (lambda *t: ops.lora_linear(*t, 0.7), lambda x, w, a, b: x @ w + 0.7 * (x @ a) @ b, ((2, 3, 4), (4, 5), (4, 2), (2, 5))),
}


def batch(name: str, rng: random.Random, size: int, had=None):
    """(tensors in fp64 with the batch somewhere, where) for a case; had: which arguments have it."""
    shapes = CASES[name][2]
    while had is None:
        had = [rng.random() < 0.6 for _ in shapes]
        had = had if any(had) else None
    dims = tuple(rng.randrange(-len(s) - 1, len(s) + 1) if h else None for s, h in zip(shapes, had))
    tensors = [torch.randn((size, *s) if h else s, dtype=torch.float64) for s, h in zip(shapes, had)]
    return [t if d is None else t.movedim(0, d) for t, d in zip(tensors, dims)], dims




def close(got, want):
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_a_batch(name, seed):
    """Each argument alone, all and some, the batch at any dimension, three, one and no elements; the result's batch anywhere, too."""
    op, wanted, shapes = CASES[name]
    rng = random.Random(seed)
    alone = [[k == n for k in range(len(shapes))] for n in range(len(shapes))]
    for size, had in [*((3, h) for h in alone), (3, [True] * len(shapes)), (3, None), (1, None), (0, None)]:
        tensors, dims = batch(name, rng, size, had)
        parts = [[t if d is None else t.select(d, k) for t, d in zip(tensors, dims)] for k in range(size)]
        got = vmap(op, in_dims=dims)(*tensors)
        if size:
            close(got, torch.stack([op(*p) for p in parts]))
            close(got, torch.stack([wanted(*p) for p in parts]))
            close(vmap(op, in_dims=dims, out_dims=-1)(*tensors), torch.stack([wanted(*p) for p in parts], -1))
        else:
            assert got.shape == (0, *op(*(torch.zeros(s, dtype=torch.float64) for s in shapes)).shape)


@pytest.mark.parametrize("name", CASES)
def test_batches_of_batches(name, seed):
    op, wanted, shapes = CASES[name]
    rng = random.Random(seed)
    inner, dims = batch(name, rng, 3)
    outer = [rng.random() < 0.5 for _ in shapes]
    outer[0] |= not any(outer)
    tensors = [torch.stack([t, t + 1, t * t, 2 * t], -1) if h else t for t, h in zip(inner, outer)]
    places = tuple(-1 if h else None for h in outer)
    close(vmap(vmap(op, in_dims=dims), in_dims=places)(*tensors), vmap(vmap(wanted, in_dims=dims), in_dims=places)(*tensors))


#: of what is compared within a transform the first derivative is one of ops, too
DIFFERENTIABLE = [n for n in CASES if n not in ("gelu_backward", "softmax_backward", "add_mul_act_backward", "matmul without terms")]
TRANSFORMS = {
    "a gradient for each": lambda f, dims, a: vmap(grad(lambda *t: f(*t).pow(2).sum(), tuple(range(len(a)))), in_dims=dims)(*a),
    "gradient of a batch": lambda f, dims, a: grad(lambda *t: vmap(f, in_dims=dims)(*t).pow(2).sum(), tuple(range(len(a))))(*a),
    "a tangent for each": lambda f, dims, a: vmap(lambda *t: jvp(f, t, t)[1], in_dims=dims)(*a),
    "tangent of a batch": lambda f, dims, a: jvp(vmap(f, in_dims=dims), tuple(a), tuple(a))[1],
    "a Jacobian for each": lambda f, dims, a: vmap(jacrev(f), in_dims=dims)(*a),
}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_a_batch_and_derivatives(name, seed):
    """Two of the transforms, drawn by the seed."""
    rng = random.Random(seed)
    tensors, dims = batch(name, rng, 3)
    for transform in rng.sample(list(TRANSFORMS), 2):
        got, want = (TRANSFORMS[transform](f, dims, tensors) for f in CASES[name][:2])
        for g, w in zip(*map(torch.utils._pytree.tree_leaves, (got, want))):
            close(g, w)


@pytest.mark.parametrize("name", CASES)
def test_a_batch_rounds_as_its_elements(name, seed):
    """In a dtype that is drawn by the seed."""
    rng = random.Random(seed)
    dtype = rng.choice([torch.float32, torch.float16, torch.bfloat16])
    tensors, dims = batch(name, rng, 3)
    low = [t.to(dtype) for t in tensors]
    got, want = vmap(CASES[name][0], in_dims=dims)(*low), vmap(CASES[name][1], in_dims=dims)(*(t.double() for t in low))
    assert got.dtype is dtype
    assert (got.double() - want).norm() <= {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype] * (want.norm() + 1e-30)


#: (name, which arguments have the batch) -> is it one call? (What launches two kernels for one element does for a batch.)
CALLS = {("square", (1,)): True, ("softmax", (1,)): True, ("softmax, dim 0", (1,)): True, ("add_relu", (1, 1)): True, ("add_mul_act", (0, 1, 1)): True,
         ("matmul", (1, 1)): True, ("matmul_softmax, dim -1", (1, 0)): True, ("matmul_softmax, dim 0", (0, 1)): True, ("scaled_matmul", (0, 1)): True,
         ("lora_linear", (1, 0, 0, 0)): True, ("sum_of_matmuls", (1, 0, 0, 0)): True, ("matmul_softmax, dim 0", (1, 1)): False}


@pytest.mark.parametrize("name,had", CALLS)
def test_a_batch_is_one_call(name, had, seed):
    tensors, dims = batch(name, random.Random(seed), 9, had)
    with launches.watched() as report:
        vmap(CASES[name][0], in_dims=dims)(*tensors)
    assert (0 < len(report.launches) < 3) if CALLS[name, had] else len(report.launches) > 8, report.kernels


def test_gradients_for_each_sample_are_one_product(seed):
    x, w = torch.randn(9, 4, 15), torch.randn(15, 6)
    gradients = vmap(grad(lambda w, x: ops.matmul(x, w).pow(2).sum()), in_dims=(None, 0))
    with launches.watched() as report:
        got = gradients(w, x)
    assert report.kernels == {"matmul_kernel": 1, "batched_matmul_kernel": 1}
    torch.testing.assert_close(got, 2 * x.mT @ (x @ w))


WRONG = {
    "add_relu: a row for another": (ops.add_relu, ((3, 4), (5,)), "argument 'bias' has shape 5; for x of shape 3x4"),
    "add_relu: no dimension": (ops.add_relu, ((), (4,)), "argument 'x' is a scalar"),
    "matmul: rows": (ops.matmul, ((3,), (3, 4)), "argument 'a' has shape 3; it takes a matrix"),
    "matmul: another K": (ops.matmul, ((3, 5), (4, 6)), "'a' is 3x5 and 'b' is 4x6"),
    "softmax: no such dim": (lambda x, _: T.softmax(x, 2), ((3, 5), (1,)), "argument 'dim' is 2; for a tensor of shape 3x5 it takes -2 to 1"),
    "add_mul_act: other shapes": (lambda x, y: ops.add_mul_act(x, y, torch.zeros(5)), ((3, 5), (2, 5)), "argument 'y' has shape 2x5 but 'x' has 3x5"),
    "lora_linear: no fit": (lambda x, a: ops.lora_linear(x, torch.zeros(4, 5), a, torch.zeros(2, 5)), ((3, 4), (3, 2)),
                            "argument 'a' is 3x2; for x of shape 3x4"),
}


@pytest.mark.parametrize("what", WRONG)
def test_errors_are_of_what_is_seen(what):
    """A batch of what an op refuses is refused, in the words for one element: also where with the batch the sizes would do."""
    op, shapes, said = WRONG[what]
    tensors = [torch.zeros(4, *s) for s in shapes]
    with pytest.raises(ArgumentError, match=said.replace("(", r"\(")):
        vmap(op)(*tensors)


@everywhere
def test_a_batch_by_each_backend(seed):
    """Where a backend is named, it serves the batch."""
    x, a, b = torch.randn(3, 4, 5), torch.randn(3, 4, 6), torch.randn(3, 6, 5)
    for got, want in ((vmap(ops.softmax)(x), x.softmax(-1)), (vmap(ops.matmul)(a, b), a @ b), (vmap(ops.matmul, in_dims=(None, 0))(a[0], b), a[0] @ b),
                      (vmap(ops.add_relu)(x, b[:, 0]), (x + b[:, :1]).relu())):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_a_batch_in_place(seed):
    x, y, bias = torch.randn(3, 4, 5), torch.randn(3, 4, 5), torch.randn(5)
    want = torch.relu(x + 0.5 * y + bias)
    vmap(ops.add_mul_act_, in_dims=(0, 0, None))(x, y, bias)
    torch.testing.assert_close(x, want)


def test_a_negated_view_with_a_tangent(seed):
    """torch makes no second view of one: sizes without the batch are made of sizes."""
    torch.manual_seed(seed)
    x, t = torch.randn(3, 2), torch.randn(3, 2)
    got = torch.func.jvp(torch.vmap(ops.gelu), (torch._neg_view(x),), (t,))
    torch.testing.assert_close(got, torch.func.jvp(ops.gelu, (-x,), (t,)))
