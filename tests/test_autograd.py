"""Derivatives of every op: backward, forward mode, derivatives of either, torch.func's transforms; by `ops.f` and by `torch.ops.triport.f`."""

import itertools
import random
import shutil
import sys

import pytest
import torch
import torch.nn.functional as F
from conftest import everywhere
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from triport import backends, ops
from triport.backends.context import call as context
from triport.ops import register, registry
from triport.ops.dispatch import direct

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")
ACTS = ("relu", "sigmoid", "gelu", "silu", "tanh")
RECORDS = {name: registry.get(name) for name in registry.NAMES}
RECORDS["add_mul_act_backward"] = RECORDS["add_mul_act"]
registered = torch.ops.triport


def laid_out(layout, shape, g):
    """A fp64 tensor in a memory layout."""
    made = {"turned": tuple(reversed(shape)), "sliced": (*shape[:-1], 2 * shape[-1] + 1), "expanded": (1, *shape[1:])}.get(layout, shape)
    x = torch.randn(made, generator=g, dtype=torch.float64, device="cpu").to(torch.get_default_device())
    if layout == "turned":
        return x.permute(*reversed(range(len(shape))))
    return x[..., 1::2] if layout == "sliced" else x.expand(shape)


def rows(rng, rank=None):
    return tuple(rng.choice([1, 2, 3, 5]) for _ in range(rank or rng.choice([1, 2, 3])))


#: name -> (as function, as registered op, in torch, shapes of the tensors from a random.Random)
CASES = {
    "square": (ops.square, registered.square, torch.square, lambda r: (rows(r),)),
    "gelu": (ops.gelu, registered.gelu, lambda x: F.gelu(x, approximate="tanh"), lambda r: (rows(r),)),
    "softmax": (ops.softmax, lambda x: registered.softmax(x, -1), lambda x: torch.softmax(x, -1), lambda r: (rows(r),)),
    "softmax-0": (lambda x: ops.softmax(x, 0), lambda x: registered.softmax(x, 0), lambda x: torch.softmax(x, 0), lambda r: (rows(r),)),
    "matmul": (ops.matmul, registered.matmul, torch.matmul, lambda r: (lambda m, k, n: ((m, k), (k, n)))(*rows(r, 3))),
    **{f"matmul_softmax{d}": (lambda a, b, d=d: ops.matmul_softmax(a, b, d), lambda a, b, d=d: registered.matmul_softmax(a, b, d),
                              lambda a, b, d=d: torch.softmax(a @ b, d), lambda r: (lambda m, k, n: ((m, k), (k, n)))(*rows(r, 3)))
       for d in (0, -1)},
    "lora_linear": (lambda *t: ops.lora_linear(*t, 0.7), lambda *t: registered.lora_linear(*t, 0.7), lambda x, w, a, b: x @ w + 0.7 * ((x @ a) @ b),
                    lambda r: (lambda s, n, k: (s, (s[-1], n), (s[-1], k), (k, n)))(rows(r), *rows(r, 2))),
    "add_relu": (ops.add_relu, registered.add_relu, lambda x, b: torch.relu(x + b), lambda r: (lambda s: (s, s[-1:]))(rows(r))),
    **{f"add_mul_act-{a}": (lambda x, y, b, a=a: ops.add_mul_act(x, y, b, 0.7, a), lambda x, y, b, a=a: registered.add_mul_act(x, y, b, 0.7, a),
                            lambda x, y, b, a=a: RECORDS["add_mul_act"].eager(x, y, b, 0.7, a), lambda r: (lambda s: (s, s, s[-1:]))(rows(r)))
       for a in ACTS},
}
WAYS = ("ops", "torch.ops")


def arguments(name, seed, requires_grad=False, layouts=("plain", "turned", "sliced")):
    """fp64 tensors of random shapes and layouts for a case, none of whose sums lies at relu's corner."""
    rng, g = random.Random(seed), torch.Generator("cpu").manual_seed(seed)
    while True:
        tensors = [laid_out(rng.choice(layouts), s, g) for s in CASES[name][3](rng)]
        if "relu" not in name or sum(t if k != 1 or len(tensors) == 2 else 0.7 * t for k, t in enumerate(tensors)).abs().min() > 1e-2:
            return [t.detach().requires_grad_(requires_grad) for t in tensors]


def fn_of(name, way):
    return CASES[name][WAYS.index(way)]


def same(got, want):
    got, want = torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(want)
    assert len(got) == len(want)
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)


# --- numerically -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_derivatives_are_those_of_the_function(name, way, seed):
    """Backward, forward mode, backward of backward and forward of backward against finite differences, in random shapes and layouts."""
    for k in range(2):
        tensors = arguments(name, seed + k, requires_grad=True)
        fn = fn_of(name, way)
        assert torch.autograd.gradcheck(fn, tensors, check_forward_ad=True, check_batched_grad=k == 0, check_batched_forward_grad=k == 0)
        assert torch.autograd.gradgradcheck(fn, tensors, check_fwd_over_rev=True, gen_non_contig_grad_outputs=k == 1)


@everywhere
@pytest.mark.parametrize("name", CASES)
def test_second_derivatives_are_torchs(name, seed):
    """On every backend; of a function whose gradient depends on the result, too."""
    tensors = arguments(name, seed, requires_grad=True, layouts=("plain", "turned", "sliced", "expanded"))
    twins = [t.detach().clone().requires_grad_() for t in tensors]

    def second(fn, args):
        first = torch.autograd.grad(fn(*args).pow(3).sum(), args, create_graph=True)
        return first, torch.autograd.grad(sum((k + 1) * g.pow(2).sum() for k, g in enumerate(first)), args)

    same(second(fn_of(name, "ops"), tensors), second(CASES[name][2], twins))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_second_derivatives_keep_the_dtype(name, dtype, seed):
    """Their formulas compute in fp32 at least and round once or twice."""
    wide = [t / 2 for t in arguments(name, seed)]  # fourth powers stay below fp16's largest number
    tensors = [t.to(dtype).requires_grad_() for t in wide]
    twins = [t.detach().double().requires_grad_() for t in tensors]

    def second(fn, args):
        first, *_ = torch.autograd.grad(fn(*args).sum() * 3 + fn(*args).pow(2).sum(), args[:1], create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), args[0])[0]

    got, want = second(fn_of(name, "ops"), tensors), second(CASES[name][2], twins)
    assert got.dtype is dtype
    scale = want.abs().max() + 1
    assert ((got.double() - want).abs().max() / scale).item() < (1e-4 if dtype is torch.float32 else 0.15), name


@pytest.mark.parametrize("name", CASES)
def test_zero_sizes(name):
    shapes = {"matmul": [((0, 3), (3, 4)), ((3, 0), (0, 4)), ((3, 4), (4, 0))],
              "lora_linear": [((0, 3), (3, 4), (3, 2), (2, 4)), ((3, 0), (0, 4), (0, 2), (2, 4)), ((3, 4), (4, 0), (4, 2), (2, 0)),
                              ((3, 4), (4, 5), (4, 0), (0, 5)), ((2, 0, 4), (4, 5), (4, 1), (1, 5))], "add_relu": [((0, 3), (3,)), ((3, 0), (0,))],
              "add_mul_act": [((0, 3), (0, 3), (3,)), ((3, 0), (3, 0), (0,))]}
    for each in shapes.get(name.partition("_softmax")[0].partition("-")[0], [((0,),), ((0, 3),), ((3, 0),)]):
        tensors = [torch.ones(s, dtype=torch.float64, requires_grad=True) for s in each]
        twins = [t.detach().clone().requires_grad_() for t in tensors]
        for way in WAYS:
            fn = fn_of(name, way)
            same(torch.autograd.grad(fn(*tensors).sum(), tensors), torch.autograd.grad(CASES[name][2](*twins).sum(), twins))
            plain = [t.detach() for t in tensors]
            same(torch.func.jvp(fn, tuple(plain), tuple(plain)), torch.func.jvp(CASES[name][2], tuple(plain), tuple(plain)))


# --- forward mode and transforms -------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_dual_tensors(name, way, seed):
    """Any of the arguments may carry a tangent; a call that was replayed before must not lose it."""
    tensors, fn, eager = arguments(name, seed), fn_of(name, way), CASES[name][2]
    for _ in range(4):
        fn(*tensors)
    for which in itertools.product((False, True), repeat=len(tensors)):
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(t, t * t + 1) if w else t for t, w in zip(tensors, which)]
            got, want = forward_ad.unpack_dual(fn(*duals)), forward_ad.unpack_dual(eager(*duals))
        same(got.primal, want.primal)
        assert (got.tangent is None) == (not any(which))
        if any(which):
            same(got.tangent, want.tangent)
    for _ in range(2):
        assert not forward_ad.unpack_dual(fn(*tensors), level=0).tangent


func = torch.func


def total(fn):
    return lambda *args: fn(*args).pow(2).sum()


def twice(tensors):
    return tuple(torch.stack([t, 1.5 * t]) for t in tensors)


def every(args):
    return tuple(range(len(args)))


TRANSFORMS = {
    "jvp": lambda f, a: func.jvp(f, a, tuple(2 * t + 1 for t in a)),
    "jvp of one": lambda f, a: func.jvp(lambda t: f(*a[:-1], t), a[-1:], a[-1:]),
    "jvp of jvp": lambda f, a: func.jvp(lambda *b: func.jvp(f, b, tuple(t * t for t in b))[1], a, a),
    "grad": lambda f, a: func.grad(total(f), every(a))(*a),
    "grad of grad of grad": lambda f, a: func.grad(total(func.grad(total(func.grad(total(f))))))(*a),
    "vjp": lambda f, a: func.vjp(f, *a)[1](f(*a)),
    "jacrev": lambda f, a: func.jacrev(f, every(a))(*a),
    "jacfwd": lambda f, a: func.jacfwd(f, every(a))(*a),
    "hessian": lambda f, a: func.hessian(total(f), every(a))(*a),
    "jacrev of jacrev": lambda f, a: func.jacrev(func.jacrev(total(f)))(*a),
    "jacfwd of jacfwd": lambda f, a: func.jacfwd(func.jacfwd(total(f)))(*a),
    "jacrev of jacfwd": lambda f, a: func.jacrev(func.jacfwd(total(f)))(*a),
    "vmap": lambda f, a: func.vmap(f)(*twice(a)),
    "vmap of one": lambda f, a: func.vmap(lambda t: f(t, *a[1:]))(*twice(a[:1])),
    "vmap of grad": lambda f, a: func.vmap(func.grad(total(f), every(a)))(*twice(a)),
    "vmap of jvp": lambda f, a: func.vmap(lambda *b: func.jvp(f, b, b))(*twice(a)),
    "grad of vmap": lambda f, a: func.grad(total(func.vmap(f)), every(a))(*twice(a)),
    "jvp of grad": lambda f, a: func.jvp(func.grad(total(f), every(a)), a, a),
    "grad of jvp": lambda f, a: func.grad(lambda *b: func.jvp(f, b, a)[1].pow(2).sum(), every(a))(*a),
    "backward of jvp": lambda f, a: backward_of_jvp(f, a),
}


def backward_of_jvp(f, a):
    """torch.autograd, around one of its transforms."""
    leaves = tuple(t.clone().requires_grad_() for t in a)
    out, tangent = func.jvp(f, leaves, a)
    return torch.autograd.grad(out.sum() + tangent.pow(2).sum(), leaves)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", CASES)
def test_transform(name, transform, seed):
    tensors, apply = tuple(arguments(name, seed)), TRANSFORMS[transform]
    want = apply(CASES[name][2], tensors)
    for way in WAYS:
        same(apply(fn_of(name, way), tensors), want)


def test_transforms_respect_no_grad(seed):
    x = torch.randn(3, 4, dtype=torch.float64)

    def stopped(x):
        with torch.no_grad():
            return ops.gelu(x)

    def stopped_eager(x):
        with torch.no_grad():
            return F.gelu(x, approximate="tanh")

    same(func.grad(lambda t: (stopped(t) * t).sum())(x), func.grad(lambda t: (stopped_eager(t) * t).sum())(x))
    with torch.no_grad():
        same(func.grad(total(ops.gelu))(x), func.grad(total(stopped_eager))(x) * 0 + func.grad(total(CASES["gelu"][2]))(x))


@pytest.mark.parametrize("name", ["square", "gelu", "softmax", "matmul", "matmul_softmax0", "lora_linear", "add_relu", "add_mul_act-silu"])
def test_the_form_that_names_its_backend(name, seed):
    """`torch.ops.triport.<name>_by` has the same derivatives."""
    tensors = tuple(arguments(name, seed))
    base, extra = {"softmax": ("softmax", (-1,)), "lora_linear": ("lora_linear", (0.7,)), "matmul_softmax0": ("matmul_softmax", (0,)),
                   "add_mul_act-silu": ("add_mul_act", (0.7, "silu"))}.get(name, (name, ()))
    by = getattr(registered, base + "_by")
    for transform in ("jvp", "grad", "hessian"):
        same(TRANSFORMS[transform](lambda *a: by(*a, *extra, ""), tensors), TRANSFORMS[transform](CASES[name][2], tensors))


@pytest.mark.parametrize("name", CASES)
def test_compiled(name, seed):
    """torch.compile traces through the kernels that the dispatcher calls."""
    torch._dynamo.reset()
    tensors = arguments(name, seed, requires_grad=True)
    twins = [t.detach().clone().requires_grad_() for t in tensors]
    fn = torch.compile(fn_of(name, "ops"), fullgraph=True, backend="aot_eager")
    same(torch.autograd.grad(fn(*tensors).pow(2).sum(), tensors), torch.autograd.grad(CASES[name][2](*twins).pow(2).sum(), twins))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", CASES)
def test_compiled_forward_mode(name, backend, seed):
    """A level that a compiled graph enters is the dispatcher's alone: Python's `forward_ad` does not show it."""
    tensors = tuple(arguments(name, seed))

    def dual(fn, args):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(fn(*(forward_ad.make_dual(t, t + 1) for t in args))).tangent

    def jvp(fn, args):
        return torch.func.jvp(fn, args, args)[1]

    for apply in (dual, jvp):
        want = apply(CASES[name][2], tensors)
        for way in WAYS:
            torch._dynamo.reset()
            fn = fn_of(name, way)
            same(torch.compile(lambda *args: apply(fn, args), fullgraph=True, backend=backend)(*tensors), want)


# --- special values --------------------------------------------------------------------------------------------------

INF, NAN = float("inf"), float("nan")
EAGER = {"relu": torch.relu, "sigmoid": torch.sigmoid, "gelu": lambda z: F.gelu(z, approximate="tanh"), "silu": F.silu, "tanh": torch.tanh}
#: the derivative at -inf and inf, where torch's own formulas for some come to 0 times infinity
ENDS = {"relu": (0.0, 1.0), "sigmoid": (0.0, 0.0), "gelu": (0.0, 1.0), "silu": (0.0, 1.0), "tanh": (0.0, 0.0)}


@everywhere
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("act", ACTS)
def test_gradient_at_extremes(act, dtype):
    """As torch's wherever that has a number; where it is NaN for a number, the limit times the gradient."""
    top = torch.finfo(dtype).max
    values = torch.tensor([[0.0, -0.0, 1e-6, -1e-6, 1.0, -1.0, 4.0, -4.0, 12.0, -12.0, 90.0, -90.0, 800.0, -800.0, top, -top, INF, -INF, NAN]], dtype=dtype)
    forms = [lambda x: ops.add_mul_act(x, torch.zeros_like(x), torch.zeros_like(x[0]), 0.5, act)]
    forms += {"relu": [lambda x: ops.add_relu(x, torch.zeros_like(x[0]))], "gelu": [ops.gelu]}.get(act, [])
    tolerance = {torch.float64: 1e-9, torch.float32: 1e-5}.get(dtype, 2e-2)
    for fn, factor in itertools.product(forms, (1.0, INF, -INF, NAN, 0.0)):
        x, twin = values.clone().requires_grad_(), values.clone().requires_grad_()
        grad = torch.full_like(values, factor)
        got, = torch.autograd.grad(fn(x), x, grad)
        want, = torch.autograd.grad(EAGER[act](twin), twin, grad)
        low, high = ENDS[act]
        ends = torch.where(values > 0, high * factor, low * factor).to(dtype)
        agree = torch.isclose(got, want, tolerance, tolerance * 0.1, equal_nan=True)
        limit = want.isnan() & ~values.isnan() & ((got == ends) | (got.isinf() & grad.isinf()))  # rounded to 0 sooner there than here
        assert (agree | limit).all(), (factor, values[~(agree | limit)], got[~(agree | limit)], want[~(agree | limit)])


@everywhere
def test_relu_at_infinite_gradients_and_nan():
    x = torch.tensor([[-1.0, 2.0, NAN, 0.0]])
    for fn in (lambda x: ops.add_relu(x, torch.zeros(4)), lambda x: ops.add_mul_act(x, torch.zeros(1, 4), torch.zeros(4), 0.5, "relu")):
        for grad, want in ((INF, [0.0, INF, INF, 0.0]), (2.0, [0.0, 2.0, 2.0, 0.0])):
            leaf = x.clone().requires_grad_()
            got, = torch.autograd.grad(fn(leaf), leaf, torch.full_like(x, grad))
            assert got.tolist() == [want]


@pytest.mark.parametrize("act", ACTS)
def test_second_derivative_far_out(act):
    """No product of 0 and infinity, up to the largest number."""
    for dtype in (torch.float32, torch.float64):
        top = torch.finfo(dtype).max
        x = torch.tensor([[50.0, -50.0, 1e3, -1e3, 1e10, -1e10, top, -top, INF, -INF]], dtype=dtype, requires_grad=True)
        zero = torch.zeros_like(x)
        for fn in [lambda x: ops.add_mul_act(x, zero, zero[0], 0.5, act)] + [ops.gelu] * (act == "gelu"):
            first, = torch.autograd.grad(fn(x).sum(), x, create_graph=True)
            second, = torch.autograd.grad(first.sum(), x)
            assert (second.abs() < 1e-15).all(), (act, second)


# --- what else follows -----------------------------------------------------------------------------------------------


def test_first_order_keeps_the_fused_backward(seed):
    """Differentiable formulas are for derivatives of derivatives alone."""
    x = torch.randn(6, 5, requires_grad=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as prof:
        ops.gelu(x).sum().backward()
    names = {e.key for e in prof.key_averages()}
    assert "triport::gelu_backward" in names and not names & {"aten::sigmoid", "aten::clamp"}


@pytest.mark.parametrize("name", [n for n in CASES if n not in ("square", "lora_linear", "add_relu")])
def test_a_backward_that_nothing_follows_goes_round_the_dispatcher(name, monkeypatch, seed):
    """It costs less so; what follows it, a graph of derivatives, tangents, the profiler, still sees its ops."""
    callers = []  # below the dispatcher `direct` is called as well
    monkeypatch.setattr(register, "direct", lambda body, *args: callers.append(sys._getframe(1).f_code.co_name) or direct(body, *args))
    tensors = arguments(name, seed, requires_grad=True, layouts=("plain",))
    g = torch.randn(CASES[name][2](*tensors).shape, dtype=torch.float64)
    plain = torch.autograd.grad(fn_of(name, "ops")(*tensors), tensors, g)
    assert "derivative" in callers
    same(plain, torch.autograd.grad(CASES[name][2](*tensors), tensors, g))
    callers.clear()
    same(torch.autograd.grad(fn_of(name, "ops")(*tensors), tensors, g.clone().requires_grad_(), create_graph=True), plain)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as prof:
        torch.autograd.grad(fn_of(name, "ops")(*tensors), tensors, g)
    assert "derivative" not in callers and any(e.key.startswith("triport::") and "backward" in e.key or e.key == "triport::matmul" for e in prof.key_averages())


@pytest.mark.parametrize("name", [n for n in CASES if n != "lora_linear"])
def test_a_call_that_backward_alone_follows_goes_round_the_dispatcher(name, monkeypatch, seed):
    """What else follows it still meets its op."""
    dispatched = []
    real = register._dispatched
    monkeypatch.setattr(register, "_dispatched", lambda op, args: dispatched.append(op) or real(op, args))
    tensors = arguments(name, seed, requires_grad=True, layouts=("plain",))
    f = fn_of(name, "ops")
    out = f(*tensors)
    assert not dispatched and out.grad_fn.name().startswith("triport_") and out.requires_grad
    want = CASES[name][2](*tensors)
    torch.testing.assert_close(out, want)
    g = torch.randn_like(out)
    same(torch.autograd.grad(out, tensors, g, create_graph=True), torch.autograd.grad(want, tensors, g))
    for _ in range(3):  # nothing is learned of it that would serve a call without autograd
        assert f(*tensors).grad_fn is not None and context.plan is None
    with torch.no_grad():
        assert not f(*tensors).requires_grad
    assert f(*tensors).requires_grad
    some = f(tensors[0].detach(), *tensors[1:])
    assert some.requires_grad == (len(tensors) > 1)
    dispatched.clear()

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    def tangents():
        with forward_ad.dual_level():
            f(*(forward_ad.make_dual(t, torch.ones_like(t)) for t in tensors))

    def profiled():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            f(*tensors)

    def moded():
        with Seen():
            f(*tensors)

    def transformed():
        torch.func.grad(lambda t: f(t, *tensors[1:]).sum())(tensors[0])

    def chosen():
        with backends.use("triton-cpu"):
            f(*tensors)

    for way in (tangents, profiled, moded, transformed, chosen):
        way()
        assert dispatched, way.__name__
        dispatched.clear()


@pytest.mark.parametrize("backend", ["", "eager", "aot_eager"])
@pytest.mark.parametrize("name", [n for n in CASES if "relu" not in n])
def test_forward_over_reverse(name, backend, seed):
    """Hessians times vectors: the backward's own tangents are not lost, in a graph of Dynamo's either."""
    tensors = arguments(name, seed, layouts=("plain",))
    along = tuple(torch.randn_like(t) for t in tensors)

    def product(f):
        gradient = torch.func.grad(lambda ts: f(*ts).square().sum())
        return lambda ts, vs: torch.func.jvp(gradient, (ts,), (vs,))[1]

    want = product(CASES[name][2])(tuple(tensors), along)
    ours = product(fn_of(name, "ops"))
    torch._dynamo.reset()
    same((torch.compile(ours, backend=backend, fullgraph=True) if backend else ours)(tuple(tensors), along), want)


def test_a_graph_goes_with_its_result():
    import gc
    import weakref
    a, b = torch.randn(5, 4, requires_grad=True), torch.randn(4, 3)
    out = ops.matmul_softmax(a, b)
    graph, held = weakref.ref(out), weakref.ref(out.grad_fn)
    assert out.grad_fn.name() == "triport_matmul_softmax_Backward"
    del out
    gc.collect()
    assert graph() is None and held() is None


@pytest.mark.parametrize("of", ["sum", "mean"])
def test_a_compiled_products_gradient_of_a_sum(of, seed):
    """The gradient of a sum is one element that stands for all, which Inductor would hand over as a number."""
    if not shutil.which("g++"):
        pytest.skip("Inductor needs a C++ compiler: g++ was not found")
    a, b = (torch.randn(s, generator=torch.Generator().manual_seed(seed)).requires_grad_() for s in ((16, 9), (9, 12)))
    torch._dynamo.reset()
    got = torch.autograd.grad(torch.compile(lambda x, y: getattr(ops.matmul(x, y), of)())(a, b), (a, b))
    for g, w in zip(got, torch.autograd.grad(getattr(a.double() @ b.double(), of)(), (a, b))):
        torch.testing.assert_close(g, w.float())
    torch._dynamo.reset()


def test_tensors_of_zeros_that_have_no_memory():
    zeros = torch._efficientzerotensor((8, 8))
    assert torch.equal(ops.square(zeros), torch.zeros(8, 8))
