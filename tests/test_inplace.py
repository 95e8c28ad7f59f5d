"""Ops that write over an argument: what autograd is told, and memory that arguments share."""

import itertools

import pytest
import torch
from conftest import everywhere, unavailable
from torch._subclasses.fake_tensor import FakeTensorMode
from triport import ops
from triport.backends.base import ArgumentError
from triport.ops import registry
from triport.ops.aliasing import elements_share, overlaps

registered = torch.ops.triport
FORMS = {"ops": lambda x, y, b, m=0.5, act="relu": ops.add_mul_act_(x, y, b, m, act),
         "torch.ops": lambda x, y, b, m=0.5, act="relu": registered.add_mul_act_(x, y, b, m, act),
         "torch.ops, by": lambda x, y, b, m=0.5, act="relu": registered.add_mul_act__by(x, y, b, m, act, "")}
each_form = pytest.mark.parametrize("form", FORMS)
eager = registry.get("add_mul_act").eager


# --- what autograd is told -------------------------------------------------------------------------------------------


@everywhere
@each_form
def test_a_saved_tensor_that_was_overwritten_is_noticed(form):
    a, y, b = torch.randn(4, 8), torch.randn(4, 8), torch.randn(8)
    p = torch.randn(4, 8, requires_grad=True)
    for calls in range(1, 6):  # like calls become cheaper ones
        out = p * a
        before = a._version
        for _ in range(calls):
            FORMS[form](a, y, b)
        assert a._version == before + calls
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


@everywhere
@each_form
def test_versions_of_views_and_bases(form):
    base = torch.randn(6, 8)
    detached = base.detach()
    for view in (base[:2], base.view(8, 6).T.reshape(6, 8), base[1::2], base.T, base[:0]):
        before, shares = base._version, view._base is base
        FORMS[form](view, torch.randn(view.shape), torch.randn(view.shape[-1]))
        assert (base._version > before) == shares and base._version == detached._version


@each_form
def test_inference_mode(form):
    with torch.inference_mode():
        x, y, b = torch.randn(4, 8), torch.randn(4, 8), torch.randn(8)
        want = torch.relu(x + 0.5 * y + b)
        FORMS[form](x, y, b)
        torch.testing.assert_close(x, want)


def test_what_inference_mode_made_stays_as_it_is():
    with torch.inference_mode():
        x, y, bias = torch.ones(4), torch.ones(4), torch.zeros(4)
        ops.add_mul_act_(x, y, bias)
        assert x.tolist() == [1.5] * 4
    with pytest.raises(ArgumentError, match="made in inference mode"):
        ops.add_mul_act_(x, y, bias)
    assert x.tolist() == [1.5] * 4


def test_a_view_that_negates_is_refused():
    z = torch.randn(7, dtype=torch.complex64)
    x, before = z.conj().imag, z.clone()
    with pytest.raises(ArgumentError, match="a view that negates another tensor.*resolve_neg"):
        ops.add_mul_act_(x, torch.ones(7), torch.zeros(7))
    assert torch.equal(z, before)
    assert torch.equal(ops.add_mul_act(x, torch.ones(7), torch.zeros(7)), torch.relu(-z.imag + 0.5))


def test_a_failed_call_counts_as_a_write(monkeypatch):
    """A kernel that raises may have written some of x."""
    import sys
    module = sys.modules["triport.ops.add_mul_act"]

    def fail(*args):
        raise RuntimeError("midway")

    monkeypatch.setattr(module, "direct", fail)
    x = torch.randn(4, 8)
    with pytest.raises(RuntimeError, match="midway"):
        ops.add_mul_act_(x, x + 1, x[0] * 2)
    assert x._version == 1


@everywhere
@each_form
@pytest.mark.parametrize("act", ["relu", "silu"])
def test_autograd_follows(form, act, seed):
    """x that is no leaf, y, bias: whichever requires grad; through a view, too."""
    for which in itertools.product((False, True), repeat=3):
        if not any(which):
            continue
        leaves = [torch.randn(s).requires_grad_(w) for s, w in zip(((5, 7), (3, 7), (7,)), which)]
        twins = [t.detach().clone().requires_grad_(t.requires_grad) for t in leaves]

        def run(tensors, change):
            x, y, b = tensors
            x = x * 1.0
            change(x[1:4], y, b)
            return x

        got = run(leaves, lambda x, y, b: FORMS[form](x, y, b, 0.7, act))
        want = run(twins, lambda x, y, b: x.copy_(eager(x, y, b, 0.7, act)))
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
        assert got.requires_grad
        weights = torch.randn(5, 7)
        for a, b in zip(torch.autograd.grad((got * weights).sum(), [t for t in leaves if t.requires_grad]),
                        torch.autograd.grad((want * weights).sum(), [t for t in twins if t.requires_grad])):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@each_form
def test_forward_mode_and_transforms_follow(form):
    def changed(x, y, b):
        x = x.clone()
        FORMS[form](x, y, b, 0.7, "tanh")
        return x

    def want(x, y, b):
        return eager(x, y, b, 0.7, "tanh")

    args = tuple(torch.randn(s, dtype=torch.float64) for s in ((3, 4), (3, 4), (4,)))
    for a, b in ((torch.func.jvp(changed, args, args), torch.func.jvp(want, args, args)),
                 (torch.func.grad(lambda *a: changed(*a).pow(2).sum(), (0, 1, 2))(*args), torch.func.grad(lambda *a: want(*a).pow(2).sum(), (0, 1, 2))(*args)),
                 (torch.func.vmap(changed)(*(torch.stack([t, t + 1]) for t in args)), torch.func.vmap(want)(*(torch.stack([t, t + 1]) for t in args)))):
        torch.testing.assert_close(a, b)


@each_form
def test_a_leaf_is_refused(form):
    x = torch.randn(4, 8, requires_grad=True)
    before = x.detach().clone()
    with pytest.raises((ArgumentError, RuntimeError), match="leaf"):
        FORMS[form](x, torch.randn(4, 8), torch.randn(8))
    assert torch.equal(x, before)
    with torch.no_grad():
        FORMS[form](x, torch.randn(4, 8), torch.randn(8))
    assert not torch.equal(x, before)


# --- shared memory ---------------------------------------------------------------------------------------------------


def turned_about(z):
    """The same memory by another tensor's storage."""
    return torch.from_numpy(z.numpy()) if z.device.type == "cpu" else z.view(z.shape)


N = 20000
SHARED = {
    "bias is x's first row": lambda z: (z, z.clone(), z[0]),
    "bias is x's last row": lambda z: (z, z.clone(), z[-1]),
    "bias is x's only row": lambda z: (z[:1], z[1:2], z[0]),
    "y is a row up": lambda z: (z[:-1], z[1:], torch.zeros(64)),
    "y is a row down": lambda z: (z[1:], z[:-1], torch.zeros(64)),
    "y is an element on": lambda z: (z.view(-1)[:-1].view(-1)[:64 * (N - 1)].view(N - 1, 64), z.view(-1)[1:64 * (N - 1) + 1].view(N - 1, 64), torch.zeros(64)),
    "y is x turned": lambda z: (z[:64], z[:64].T, torch.zeros(64)),
    "x is y turned": lambda z: (z[:64].T, z[:64], torch.zeros(64)),
    "rows in turn": lambda z: (z[::2], z[1::2], torch.zeros(64)),
    "columns in turn": lambda z: (z[:, ::2], z[:, 1::2], torch.zeros(32)),
    "y is x flipped over": lambda z: (z, z.flip(0), z[5]),
    "y is x": lambda z: (z, z, torch.ones(64)),
    "y is a view of x": lambda z: (z, z.view(N, 64), z[7]),
    "another storage, a row down": lambda z: (z[1:], turned_about(z)[:-1], torch.zeros(64)),
    "a 16-bit view": lambda z: (z[1:], z[:-1], torch.zeros(64)),
    "three dimensions": lambda z: (z.view(100, N // 100, 64)[1:], z.view(100, N // 100, 64)[:-1], z[3]),
}


@everywhere
@each_form
@pytest.mark.parametrize("name", SHARED)
def test_arguments_that_share_memory_are_read_before_they_change(name, form):
    dtype = torch.bfloat16 if name == "a 16-bit view" else torch.float32
    for _ in range(3):
        z = torch.randn(N, 64, dtype=dtype)
        x, y, b = (t.to(dtype) for t in SHARED[name](z))
        want = eager(*(t.double().clone() for t in (x, y, b))).to(dtype)
        FORMS[form](x, y, b)
        torch.testing.assert_close(x, want, rtol=1e-2 if dtype is torch.bfloat16 else 1e-5, atol=1e-2 if dtype is torch.bfloat16 else 1e-5)


@pytest.mark.parametrize("name", [n for n in SHARED if "storage" not in n])
def test_shared_memory_under_torch_compile(name):
    """Views made inside the graph, and views that come from outside. (The latter not by Inductor of torch 2.13: of arguments that share
    memory it takes the wrong elements, also where torch.relu and copy_ are all there is.)"""
    if (reason := unavailable("torch-compile")):
        pytest.skip(reason)

    def views(z):
        x, y, b = SHARED[name](z)
        ops.add_mul_act_(x, y, b)
        return x + 0

    for fn, inside in ((views, True), (lambda x, y, b: ops.add_mul_act_(x, y, b), False)):
        torch._dynamo.reset()
        compiled = torch.compile(fn, fullgraph=True, backend="inductor" if inside else "aot_eager")
        for _ in range(2):
            z = torch.randn(N, 64)
            x, y, b = SHARED[name](z)
            want = eager(*(t.double() for t in (x, y, b))).float()
            compiled(z) if inside else compiled(x, y, b)
            torch.testing.assert_close(x, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dynamic", [False, True])
def test_layouts_under_torch_compile(dynamic):
    """Symbolic sizes and strides, too."""
    compiled = torch.compile(lambda x, y, b: ops.add_mul_act_(x, y, b), fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for layout in (lambda n, m: torch.randn(n, m), lambda n, m: torch.randn(n, 2 * m)[:, ::2], lambda n, m: torch.randn(m, n).T,
                   lambda n, m: torch.randn(n, 5, m)[:, 2], lambda n, m: torch.randn(2, n, 2 * m)[:, :, 1::2]):
        torch._dynamo.reset()
        for n, m in ((6, 4), (9, 7), (12, 5)):
            x, y, b = layout(n, m), torch.randn(layout(n, m).shape), torch.randn(m)
            want = eager(x, y, b)
            compiled(x, y, b)
            torch.testing.assert_close(x, want)
    with pytest.raises(Exception, match="expanded or overlaps itself"):
        compiled(torch.randn(1, 4).expand(3, 4), torch.randn(3, 4), torch.randn(4))


def crooked(sizes, strides):
    return torch.zeros(200).as_strided(sizes, strides)


SELVES = [((3, 4), (4, 1), False), ((3, 4), (1, 3), False), ((3, 4), (0, 1), True), ((1, 4), (0, 1), False), ((3, 4), (3, 1), True),
          ((3, 3), (2, 3), False), ((4, 3), (2, 3), True), ((4, 3), (3, 2), False), ((4, 4), (3, 2), True), ((2, 3, 4), (12, 4, 1), False), ((2, 3, 4), (11, 4, 1), True),
          ((0, 4), (0, 1), False), ((5, 0), (0, 0), False), ((3, 3, 5), (40, 2, 3), False), ((5,), (2,), False), ((5,), (0,), True), ((1, 1), (0, 0), False),
          ((), (), False), ((2, 2, 2), (1, 1, 4), True)]


@pytest.mark.parametrize("sizes,strides,shares", SELVES)
def test_elements_that_share_a_place(sizes, strides, shares):
    x = crooked(sizes, strides)
    places = [sum(i * s for i, s in zip(index, strides)) for index in itertools.product(*(range(n) for n in sizes))]
    assert shares == (len(set(places)) < len(places)) == elements_share(x)


def test_elements_that_share_a_place_in_every_small_layout():
    """Never False where two do; True where none do only among three dimensions that reach into each other."""
    for sizes in itertools.product((1, 2, 3, 4), repeat=2):
        for strides in itertools.product(range(6), repeat=2):
            places = {i * strides[0] + j * strides[1] for i in range(sizes[0]) for j in range(sizes[1])}
            assert elements_share(crooked(sizes, strides)) == (len(places) < sizes[0] * sizes[1]), (sizes, strides)
    for sizes in itertools.product((2, 3), repeat=3):
        for strides in itertools.product(range(6), repeat=3):
            places = {sum(i * s for i, s in zip(at, strides)) for at in itertools.product(*(range(n) for n in sizes))}
            assert elements_share(crooked(sizes, strides)) or len(places) == torch.Size(sizes).numel(), (sizes, strides)


@everywhere
@each_form
@pytest.mark.parametrize("x", [lambda: torch.ones(1, 4).expand(3, 4), lambda: torch.ones(40).as_strided((3, 4), (2, 1)),
                               lambda: torch.ones(4).as_strided((1, 4, 4), (1, 0, 1))])
def test_x_that_overlaps_itself_is_refused(x, form):
    x = x()
    before = x.clone()
    with pytest.raises(ArgumentError, match="argument 'x' is expanded or overlaps itself"):
        FORMS[form](x, torch.ones(x.shape), torch.ones(4))
    assert torch.equal(x, before)
    y = torch.ones(x.shape, requires_grad=True)
    with pytest.raises(ArgumentError, match="overlaps itself"):
        FORMS[form](x, y, torch.ones(4))


@everywhere
@each_form
def test_an_empty_expanded_x_is_taken(form):
    for shape in ((0, 4), (3, 0), (0, 0)):
        x = torch.empty((1,) + shape[1:]).expand(shape) if shape[1] else torch.empty(3, 1).as_strided(shape, (0, 0))
        FORMS[form](x, torch.empty(shape), torch.empty(shape[1]))
        assert x.shape == shape


def test_ranges():
    z = torch.zeros(10)
    assert overlaps(z[2:5], z[4:6]) and overlaps(z[2:5], z[0:3]) and overlaps(z[2:5], z) and overlaps(z[2:5], z[3:4])
    with FakeTensorMode() as mode:  # tracing: no addresses, but storages
        f = mode.from_tensor(z)
        assert overlaps(f[2:5], f[4:6]) and not overlaps(f[2:5], f[5:6]) and not overlaps(f[2:5], f[2:5]) and not overlaps(f, torch.zeros(10))
    assert not overlaps(z[2:5], z[5:6]) and not overlaps(z[2:5], z[0:2]) and not overlaps(z[2:5], z[2:5]) and not overlaps(z[2:5], torch.zeros(10))
