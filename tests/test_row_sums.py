"""Gradients of add_relu and add_mul_act as GPUs compute them, with the bias' sums in the same pass: their results on the CPU, their code for a GPU."""

import itertools
import random
import re
import sys

import pytest
import torch
import triton
from torch._subclasses import FakeTensorMode
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode
from triport import ops
from triport.backends import active
from triport.backends.base import ArgumentError
from triport.backends.context import RECORD, calling
from triport.backends.dispatch import replay
from triport.bench import check
from triport.ops import activations, row_sums
from triton.backends.compiler import GPUTarget

RELU, MUL = (sys.modules[f"triport.ops.{name}"] for name in ("add_relu", "add_mul_act_gradients"))
T = torch.ops.triport
ALLOWED = {torch.float64: 1e-14, torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 8e-3}
DTYPES = list(ALLOWED)
#: name -> (op, the rule of its backward, tensors behind the gradient, those that are rows, results)
KINDS = {"add_relu": (T.add_relu_gradients, 1, 0, 2), "add_mul_act": (T.add_mul_act_gradients, 2, 1, 3)}


@pytest.fixture
def served(monkeypatch):
    """Backward goes the GPU's way."""
    monkeypatch.setattr(row_sums, "serves", lambda grad: True)


def small(monkeypatch, **changes):
    """Programs that have several parts and turns of small matrices."""
    how = row_sums.How(cols=64, tile=256, programs=12)._replace(**changes)
    monkeypatch.setattr(row_sums, "HOW", dict.fromkeys(row_sums.HOW, how))
    monkeypatch.setattr(row_sums, "ADDING", row_sums.Adding(2, 16, 4))


def inputs(name, shape, dtype, gen, layout="plain"):
    """grad and the op's other tensors."""
    def laid(s, k):
        if layout == "turned":
            return torch.randn(s[::-1], generator=gen).to(dtype).permute(*reversed(range(len(s))))
        if layout == "sliced":
            return torch.randn((*s[:-1], 2 * s[-1] + 1), generator=gen).to(dtype)[..., 1::2]
        if layout == "expanded" and k == 0:
            return torch.randn((), generator=gen).to(dtype).expand(s)
        if layout == "rows" and k == 0:
            return torch.randn(s[-1:], generator=gen).to(dtype).expand(s)
        return torch.randn(s, generator=gen).to(dtype)

    _, full, row, _ = KINDS[name]
    made = [laid(s, k) for k, s in enumerate([shape] * (1 + full) + [shape[-1:]] * row)]
    if name == "add_mul_act":  # a relu's gradient is another one on either side of 0, which rounding may change
        _, x, y, bias = made
        x += (x.double() + 0.7 * y.double() + bias.double()).abs().lt(1e-2).to(dtype)
    return [made[0], made[1].relu(), *made[2:]] if name == "add_relu" else made


def call(name, given, wanted, act="tanh"):
    return KINDS[name][0](*given, *((0.7, act) if name == "add_mul_act" else ()), *map(int, wanted))


def reference(name, given, act="tanh"):
    """In float64."""
    grad, *rest = (t.double() for t in given)
    if name == "add_relu":
        dz = torch.where(rest[0] <= 0, 0, grad)
        return dz, dz.sum(tuple(range(dz.dim() - 1)))
    leaves = [t.requires_grad_() for t in rest]
    return torch.autograd.grad(activations.ACTS[act][1](leaves[0] + 0.7 * leaves[1] + leaves[2]), leaves, grad)


def every(name):
    return itertools.product((False, True), repeat=KINDS[name][3])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", KINDS)
def test_gradients(name, dtype, monkeypatch, seed):
    """Of odd sizes, by parts and in one, laid out in every way; the act, and which of them are asked for alone, are drawn by the seed."""
    gen, rng = torch.Generator().manual_seed(seed), random.Random(seed)
    small(monkeypatch)
    act, everything, some = rng.choice(list(activations.ACTS)), (True,) * KINDS[name][3], rng.choice(list(every(name)))
    for layout in ("plain", "turned", "sliced", "expanded", "rows"):
        for shape in ((rng.randint(41, 60), rng.randint(33, 60)), (3, 5, 33)):
            given = inputs(name, shape, dtype, gen, layout)
            want = reference(name, given, act)
            for wanted in (everything, some) if layout == "plain" else (everything,):
                for asked, g, w in zip(wanted, call(name, given, wanted, act), want):
                    assert g.dtype is dtype
                    if asked:
                        assert g.is_contiguous() and check.error(g, w) < ALLOWED[dtype], (layout, shape, act, wanted)
                    else:
                        assert g.shape == (0,)


def test_sums_are_kept_in_fp32(seed):
    """Many rows, of which fp16 would lose most."""
    grad = torch.rand(3000, 3, generator=torch.Generator().manual_seed(seed)).half()
    got = call("add_relu", [grad, torch.ones_like(grad)], (False, True))[1]
    assert check.error(got, grad.double().sum(0)) < 5e-4


@pytest.mark.parametrize("m,n,align", [(37, 24, 8), (5, 781, 1), (1, 1, 1), (70, 40, 8)])
def test_nothing_is_written_beside_results(m, n, align, seed):
    gen, dtype = torch.Generator().manual_seed(seed), torch.float16
    grad, x, y = (torch.randn(m, n, generator=gen).to(dtype) for _ in range(3))
    bias, rows, cols = torch.randn(n, generator=gen).to(dtype), 4, 32
    for parts in (1, 3):
        (dx, _), (dy, _), (sums, _) = made = [check.guarded(s, t) for s, t in (((m, n), dtype), ((m, n), dtype), ((parts, n), torch.float32))]
        grid, consts = (triton.cdiv(n, cols), parts), dict(ROWS=rows, COLS=cols, ALIGN=align, STAGES=2)
        RELU.add_relu_gradients_kernel[grid](grad, x, dx, sums, m, n, **consts, DZ=True, ONE=False)
        want = reference("add_relu", [grad, x])
        assert check.error(dx, want[0]) == 0 and check.error(sums.sum(0), want[1]) < 2e-6
        MUL.add_mul_act_gradients_kernel[grid](grad, x, y, bias, dx, dy, sums, 0.7, m, n, ACT=4, **consts, DX=True, DY=True, SUMS=True, ONE=False)
        row, whole = check.guarded((n,), dtype)
        row_sums.add_parts_kernel[(triton.cdiv(n, 16),)](sums, row, parts, n, AT_ONCE=2, COLS=16)
        for g, w in zip((dx, dy, row), reference("add_mul_act", [grad, x, y, bias])):
            assert check.error(g, w) < 2 * ALLOWED[dtype]
        assert all(check.guards_hold(w) for _, w in made) and check.guards_hold(whole)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 0, 4), (0,)])
@pytest.mark.parametrize("name", KINDS)
def test_zero_sizes(name, shape, seed):
    given = inputs(name, shape, torch.float32, torch.Generator().manual_seed(seed))
    for g, s in zip(call(name, given, (True,) * KINDS[name][3]), [shape] * (KINDS[name][3] - 1) + [shape[-1:]]):
        assert torch.equal(g, torch.zeros(s))


@pytest.mark.parametrize("one", [False, True])
@pytest.mark.parametrize("grad", [1.5, -0.0, torch.inf, torch.nan])
def test_relu_is_torchs_at_what_is_no_number(grad, one):
    """0 where the result is 0, whatever the gradient; NaN counts as passed."""
    out = torch.tensor([[0.0, 2.0, torch.nan, torch.inf], [-0.0, 1.0, 0.0, 0.0]])
    given = torch.tensor(grad).expand(out.shape) if one else torch.full(out.shape, grad)
    dz, row = T.add_relu_gradients(given, out, 1, 1)
    want = torch.ops.aten.threshold_backward(given, out, 0)
    torch.testing.assert_close(dz, want, equal_nan=True, rtol=0, atol=0)
    torch.testing.assert_close(row, want.sum(0), equal_nan=True)
    dx, dy, row = T.add_mul_act_gradients(given, out, torch.zeros_like(out), torch.zeros(4), 0.5, "relu", 1, 1, 1)
    torch.testing.assert_close(dx, want, equal_nan=True, rtol=0, atol=0)
    torch.testing.assert_close(row, want.sum(0), equal_nan=True)


@pytest.mark.parametrize("name", KINDS)
def test_arguments_that_do_not_fit(name, seed):
    given = inputs(name, (3, 4), torch.float32, torch.Generator().manual_seed(seed))
    with pytest.raises(ArgumentError, match="'grad'"):
        call(name, [given[0][:2], *given[1:]], (True,) * KINDS[name][3])


# --- as derivatives ----------------------------------------------------------------------------------------------------------


def op_of(name, act="silu"):
    return (ops.add_relu, lambda x, b: torch.relu(x + b)) if name == "add_relu" else (
        lambda x, y, b: ops.add_mul_act(x, y, b, 0.7, act), lambda x, y, b: activations.ACTS[act][1](x + 0.7 * y + b))


def leaves(name, gen, shape=(5, 7), dtype=torch.float64):
    """None of whose sums lies at relu's corner."""
    count = 2 if name == "add_relu" else 3
    signs = torch.randint(0, 2, shape, generator=gen) * 2 - 1
    made = [(signs * (1 + torch.rand(shape, generator=gen))).to(dtype), *(0.2 * torch.randn(shape, generator=gen).to(dtype) for _ in range(count - 2)),
            0.2 * torch.randn(shape[-1:], generator=gen).to(dtype)]
    return [t.requires_grad_() for t in made]


@pytest.mark.parametrize("name", KINDS)
def test_derivatives(name, served, seed):
    """Of the gradients, too, in both modes and batched."""
    given = leaves(name, torch.Generator().manual_seed(seed))
    assert torch.autograd.gradcheck(op_of(name)[0], given, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(op_of(name)[0], given, check_fwd_over_rev=True)


@pytest.mark.parametrize("name", KINDS)
def test_each_that_is_needed(name, served, monkeypatch, seed):
    """What is not needed is not computed: flags tell the op so."""
    gen, asked = torch.Generator().manual_seed(seed), []
    module = RELU if name == "add_relu" else MUL
    real = module._gradients
    monkeypatch.setattr(module, "_gradients", lambda *args: (asked.append(args[-KINDS[name][3]:]), real(*args))[1])
    given = leaves(name, gen, (9, 4))
    grad = torch.randn(9, 4, generator=gen, dtype=torch.float64)
    want = torch.autograd.grad(op_of(name)[1](*given), given, grad)
    for needed in every(name):
        if not any(needed):
            continue
        some = [t.detach().requires_grad_(n) for t, n in zip(given, needed)]
        asked.clear()
        got = torch.autograd.grad(op_of(name)[0](*some), [t for t in some if t.requires_grad], grad)
        assert asked == ([] if needed == (True,) + (False,) * (len(needed) - 1) else [needed])
        for g, w in zip(got, [w for w, n in zip(want, needed) if n]):
            torch.testing.assert_close(g, w)


@pytest.mark.parametrize("name", KINDS)
def test_second_derivatives_are_torchs(name, served, seed):
    given = leaves(name, torch.Generator().manual_seed(seed), (4, 6))

    def second(fn):
        first = torch.autograd.grad(fn(*given).pow(3).sum(), given, create_graph=True)
        return first, torch.autograd.grad(sum((k + 1) * g.pow(2).sum() for k, g in enumerate(first)), given)

    for got, want in zip(*(torch.utils._pytree.tree_leaves(second(fn)) for fn in op_of(name))):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("name", KINDS)
def test_a_batch(name, seed):
    """Of any of the tensors, anywhere; what is not asked for stays empty."""
    rng, gen = random.Random(seed), torch.Generator().manual_seed(seed)
    for wanted in [(True,) * KINDS[name][3], *rng.sample(list(every(name)), 2)]:
        given, size = inputs(name, (2, 3, 5), torch.float64, gen), rng.choice([1, 3])
        had = [rng.random() < 0.6 for _ in given]
        had[rng.randrange(len(had))] = True
        dims = tuple(rng.randrange(-t.dim() - 1, t.dim() + 1) if h else None for t, h in zip(given, had))
        tensors = [t if d is None else torch.stack([(k + 1) * t for k in range(size)], d) for t, d in zip(given, dims)]
        got = vmap(lambda *t, wanted=wanted: call(name, t, wanted), in_dims=dims)(*tensors)
        each = [call(name, [t if d is None else t.select(d, k) for t, d in zip(tensors, dims)], wanted) for k in range(size)]
        for g, *parts in zip(got, *each):
            torch.testing.assert_close(g, torch.stack(parts))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_compiled(name, dynamic, served, seed):
    torch._dynamo.reset()
    fn = torch.compile(op_of(name)[0], fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for shape in ((6, 10), (13, 9))[:1 + dynamic]:
        given = leaves(name, torch.Generator().manual_seed(seed), shape)
        got, want = (torch.autograd.grad(f(*given).pow(2).sum(), given) for f in (fn, op_of(name)[1]))
        for g, w in zip(got, want):
            torch.testing.assert_close(g, w)


# --- where they are used -----------------------------------------------------------------------------------------------------


class Seen(TorchDispatchMode):
    """Names of the ops that are called within."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func._opname)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("name", KINDS)
def test_gpus_add_up_in_the_pass_that_writes(name, device):
    """And the CPU does not. On tensors without memory, so that no GPU is needed."""
    rule, full = (RELU._backward, 1) if name == "add_relu" else (MUL._derivative, 2)
    with FakeTensorMode(), Seen() as seen:
        grad, *kept = (torch.empty(8, 16, device=device) for _ in range(1 + full))
        if name == "add_mul_act":
            kept.append(torch.empty(16, device=device))
        got = rule(kept, (0.5, "relu")[:2 * (name == "add_mul_act")], grad, (True,) * KINDS[name][3])
        assert [tuple(g.shape) for g in got] == [(8, 16)] * full + [(16,)]
        one, = (g for g in rule(kept, (0.5, "relu"), grad, (False,) * full + (True,)) if g is not None and g.dim() == 1)
        assert one.shape == (16,)
    fused = f"{name}_gradients" in seen.names
    assert fused == (device == "cuda") and ("sum" in seen.names) != fused, seen.names


@pytest.mark.parametrize("name", KINDS)
def test_backward_is_replayed(name, served, monkeypatch, seed):
    """All of it, its results and its scratch memory."""
    gen, bodies = torch.Generator().manual_seed(seed), []
    small(monkeypatch)
    replay.forget()
    given = leaves(name, gen, (40, 30), torch.float32)
    out = op_of(name)[0](*given)
    record = replay.record
    monkeypatch.setattr(replay, "record", lambda key, body, *rest: (bodies.append(body), record(key, body, *rest))[1])
    kept = []
    for k in range(6):
        if k == 3:  # the first call may compile, which is no launch to repeat
            settled = len(bodies)
        grad = torch.randn(40, 30, generator=gen)
        kept.append((torch.autograd.grad(out, given, grad, retain_graph=True), grad))
    assert len(bodies) == settled >= 1
    for got, grad in kept:
        for g, w in zip(got, torch.autograd.grad(op_of(name)[1](*given), given, grad)):
            torch.testing.assert_close(g, w)
    replay.forget()


def test_the_gradient_of_a_sum_is_not_copied():
    grad = torch.ones(()).expand(4, 6)
    with calling(RECORD):
        assert row_sums.rows_of(grad)[0] is grad and row_sums.rows_of(grad)[1] is True
        assert row_sums.rows_of(grad[:1, :1])[1] is False and row_sums.rows_of(torch.ones(6).expand(4, 6))[1] is False
    assert row_sums.rows_of(grad)[1] is False, "who traces may hand the element over as a number"


def test_walks_have_programs_enough_and_no_more():
    for dtype, m, n in itertools.product((torch.float16, torch.float64), (1, 7, 4096, 32768), (1, 24, 1000, 8192, 131072)):
        walked = row_sums.walk("add_relu", torch.empty(0, dtype=dtype), m, n)
        rows, cols = walked.consts["ROWS"], walked.consts["COLS"]
        assert walked.tiles * cols >= n > (walked.tiles - 1) * cols and (walked.parts - 1) * rows < m
        assert walked.parts == 1 or walked.tiles * walked.parts <= row_sums.HOW["add_relu"].programs


@pytest.mark.parametrize("name", KINDS)
def test_rows_that_16_bytes_divide_move_16_bytes_at_a_time(name):
    """Also by way of shared memory, for several turns at once."""
    kernel = RELU.add_relu_gradients_kernel if name == "add_relu" else MUL.add_mul_act_gradients_kernel
    names = list(kernel.arg_names)
    for stages, load in ((1, r"ld\.global\.v4\.b32"), (3, r"cp\.async\.cg\.shared\.global \[[^]]*\], \[[^]]*\], 0x10")):
        consts = dict(ROWS=8, COLS=512, ALIGN=8, STAGES=stages, ONE=False) | (
            dict(DZ=True) if name == "add_relu" else dict(ACT=0, DX=True, DY=True, SUMS=True))
        types = {"parts_ptr": "*fp32", "scale": "fp64", "m": "i32", "n": "i32"}
        signature = {k: "constexpr" if k in consts else types.get(k, "*fp16") for k in names}
        source = triton.compiler.ASTSource(fn=kernel, signature=signature, constexprs=consts,
                                           attrs={(k,): [["tt.divisibility", 16]] for k, n in enumerate(names) if n.endswith("_ptr")})
        target = GPUTarget("cuda", 90, 32)
        with active.compiling_for(target):
            ptx = triton.compile(source, target=target, options={"num_warps": 4}).asm["ptx"]
        assert re.search(load, ptx) and re.search(r"st\.global\.v4\.b32", ptx) and not re.search(r"st\.global\.b16", ptx)
