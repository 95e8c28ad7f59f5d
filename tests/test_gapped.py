"""Matrices with gaps between their lines or elements, as slices and chunks are, which ops on a CPU read where they lie."""

import math
import sys

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from triport import ops
from triport.backends.dispatch import replay
from triport.bench import check
from triport.ops.records import DTYPES

MODULE = sys.modules["triport.ops.straight"]
ALLOWED = {"fp32": 2e-6, "fp16": 1e-3, "bf16": 8e-3, "fp64": 1e-13}
OPS = {"square": (ops.square, lambda x, b: x * x), "gelu": (ops.gelu, lambda x, b: F.gelu(x, approximate="tanh")),
       "add_relu": (ops.add_relu, lambda x, b: torch.relu(x + b)), "softmax": (ops.softmax, lambda x, b: torch.softmax(x, -1))}
#: a memory's shape, and the view of it that is given
VIEWS = {"first half of each row": ((33, 130), lambda w: w.chunk(2, -1)[0]), "second half": ((33, 130), lambda w: w.chunk(2, -1)[1]),
         "of a batch": ((3, 5, 74), lambda w: w[..., 1:38]), "of five dimensions": ((2, 1, 3, 4, 26), lambda w: w[..., :13]),
         "every second": ((17, 60), lambda w: w[:, ::2]), "every third row": ((50, 31), lambda w: w[::3]), "a vector's every third": ((100,), lambda w: w[::3]),
         "one row for all": ((1, 77), lambda w: w.expand(20, 77)), "one number for all": ((40, 1), lambda w: w.expand(40, 50)), "long rows": ((3, 9000), lambda w: w[:, 5:8803]),
         "one column": ((70, 3), lambda w: w[:, 1:2]), "one channel": ((2, 1, 6, 1, 26), lambda w: w[..., :13]), "of one image": ((1, 3, 6, 8), lambda w: w[..., :5])}
#: those that are no such matrix
OTHERS = {"turned": ((40, 30), lambda w: w.T), "turned, with gaps": ((40, 30), lambda w: w[:, :17].T), "turned batches": ((3, 20, 30), lambda w: w.transpose(1, 2)),
          "some of each batch": ((4, 9, 20), lambda w: w[:, :5]), "a crop of pictures with one channel": ((2, 1, 6, 8), lambda w: w[:, :, :4]), "turned every second": ((40, 30), lambda w: w[::2, ::2].T), "contiguous": ((20, 30), lambda w: w)}


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_view(data):
    """Chains of them, of dimensions of 1 among others: the same numbers in the same order, or none."""
    x = torch.arange(math.prod(shape := data.draw(st.lists(st.sampled_from((1, 2, 3, 4)), min_size=1, max_size=5)))).view(shape)
    for _ in range(data.draw(st.integers(1, 4))):
        d = data.draw(st.integers(0, x.dim() - 1))
        how = data.draw(st.sampled_from(("turn", "some", "second", "unsqueeze", "squeeze", "expand")))
        if how == "turn":
            x = x.transpose(d, data.draw(st.integers(0, x.dim() - 1)))
        elif how == "some":
            first = data.draw(st.integers(0, x.shape[d] - 1))
            x = x.narrow(d, first, data.draw(st.integers(1, x.shape[d] - first)))
        elif how == "second":
            x = x.movedim(d, 0)[::2].movedim(0, d)
        elif how == "unsqueeze":
            x = x.unsqueeze(d)
        elif how == "squeeze" and x.dim() > 1:
            x = x.squeeze(d)
        elif how == "expand" and x.shape[d] == 1:
            x = x.expand(*x.shape[:d], 3, *x.shape[d + 1:])
    lines = MODULE.gapped(x)
    assert lines is None or torch.equal(lines.flatten(), x.flatten())
    assert torch.equal(MODULE.contiguous(x), x) and torch.equal(ops.square(x), x * x)


@pytest.fixture
def taken(monkeypatch):
    """Shapes of those that were. No call takes a short cut past it."""
    seen = []
    for name in ("square", "gelu", "add_relu"):
        module = sys.modules[f"triport.ops.{name}"]
        monkeypatch.setattr(module, "over_lines", lambda *args: (seen.append(args[1].shape), MODULE.over_lines(*args))[1])
    replay.forget()
    yield seen
    replay.forget()


@pytest.mark.parametrize("dtype", ALLOWED)
@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("how", [*VIEWS, *OTHERS])
def test_numbers(how, name, dtype, seed):
    shape, view = (VIEWS | OTHERS)[how]
    op, reference = OPS[name]
    for again in range(3):  # as recorded, and as replayed, of other numbers
        torch.manual_seed(seed + again)
        memory = torch.randn(shape).to(DTYPES[dtype])
        x, kept = view(memory), memory.clone()
        b = torch.randn(x.shape[-1]).to(x.dtype)
        given = (x, b) if name == "add_relu" else (x,)
        got = op(*given)
        assert got.shape == x.shape and check.error(got, reference(x.double(), b.double())) <= ALLOWED[dtype]
        assert torch.equal(memory, kept) and (got.is_contiguous() or how in OTHERS)


@pytest.mark.parametrize("how", VIEWS)
def test_they_are_not_copied(how, taken, seed):
    shape, view = VIEWS[how]
    x = view(torch.randn(shape))
    for name in ("square", "gelu", "add_relu"):
        OPS[name][0](*((x, torch.randn(x.shape[-1])) if name == "add_relu" else (x,)))
    assert len(taken) == 3 and all(s[-1] == x.shape[-1] and s.numel() == x.numel() for s in taken)


@pytest.mark.parametrize("how", OTHERS)
def test_what_is_no_such_matrix(how, taken, seed):
    shape, view = OTHERS[how]
    ops.square(view(torch.randn(shape)))
    assert not taken


@pytest.mark.parametrize("how", VIEWS)
def test_copies_are_contiguous(how, seed):
    shape, view = VIEWS[how]
    x = view(torch.randn(shape))
    lines = MODULE.gapped(x)
    assert lines is not None and torch.equal(lines.flatten(), x.flatten()) and lines.data_ptr() == x.data_ptr()
    assert torch.equal(MODULE.contiguous(x), x) and MODULE.contiguous(x).is_contiguous()


def test_integers_and_nothing(seed):
    x = torch.randint(-90, 90, (31, 40))[:, 3:20]
    assert torch.equal(ops.square(x), x * x) and torch.equal(ops.square(x.int()[:, ::2]), (x * x).int()[:, ::2])
    for empty in (torch.empty(0, 8)[:, ::2], torch.empty(5, 8)[:, :0]):
        assert ops.square(empty).shape == empty.shape and MODULE.gapped(empty) is None


def test_gradients(seed):
    w = torch.randn(9, 26, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda w: (ops.square(w[:, :13]), ops.gelu(w[:, 13:]), ops.add_relu(w[:, ::2], w[0, ::2])), (w,))
