"""lora_linear on GPUs: its kernels on the CPU, and on a GPU what calls return, keep and launch."""

import sys

import pytest
import torch
from conftest import unavailable
from torch.profiler import ProfilerActivity, profile
from triport import ops
from triport.bench import check
from triport.ops import lora_gpu, registry
from triport.ops.records import DTYPES

gpu = pytest.mark.skipif(bool(unavailable("triton-gpu")), reason=str(unavailable("triton-gpu")))
OP = registry.get("lora_linear")
ALLOWED = {"fp32": 2e-6, "fp16": 2e-3, "bf16": 1e-2}
#: what two numbers of TF32 do not hold, and what torch makes of it
EXTREMES = {"nan": float("nan"), "inf": float("inf"), "large": 3.4028234e38, "small": 1e-39}


def tensors(m, k, n, r, dtype, turned, seed, device="cpu"):
    g = torch.Generator().manual_seed(seed)

    def matrix(rows, columns, turned):
        shape = (columns, rows) if turned else (rows, columns)
        made = (torch.randn(shape, generator=g) * shape[turned] ** -0.5).to(dtype).to(device)
        return made.T if turned else made

    return matrix(m, k, False), matrix(k, n, turned), matrix(k, r, turned), matrix(r, n, turned)


def wanted(x, w, a, b, s):
    x, w, a, b = (t.double() for t in (x, w, a, b))
    return x @ w + s * (x @ a) @ b, s * x @ a


@pytest.mark.parametrize("dtype, tma, splits", [("fp32", False, 3), ("bf16", False, 0), ("bf16", True, 0), ("fp16", False, 2), ("fp16", True, 2)])
@pytest.mark.parametrize("m, k, n, r, turned", [(70, 104, 88, 8, False), (33, 40, 16, 24, True)])
def test_products(m, k, n, r, turned, dtype, tma, splits, seed):
    given = tensors(m, k, n, r, DTYPES[dtype], turned, seed)
    out, t, done = lora_gpu.product(*given, 0.5, keep=True, done=5, by=lora_gpu.How((32, 32, 16, 4, 2), tma, splits, (16, 16, 4, 2)))
    whole, low = wanted(*given, 0.5)
    assert check.error(out, whole) <= ALLOWED[dtype] and check.error(t, low) <= ALLOWED[dtype]
    assert done.tolist() == [0] * 5


@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize("which", range(4))
def test_numbers_beyond_two_of_tf32_set_a_flag(which, extreme, seed, monkeypatch):
    given = [t.clone() for t in tensors(40, 36, 33, 5, torch.float32, False, seed)]
    met = []
    real = lora_gpu._launch

    def launch(key, kernel, grid, args, *rest):
        real(key, kernel, grid, args, *rest)
        met.append((key[0], args))

    monkeypatch.setattr(lora_gpu, "_launch", launch)
    by = lora_gpu.How((32, 32, 16, 4, 2), False, 2, (16, 16, 4, 2))
    for value, flagged in ((0.0, False), (EXTREMES[extreme], True)):
        given[which].view(-1)[-3] = value
        met.clear()
        out, _, _ = lora_gpu.product(*given, 0.5, by=by)
        (first, args), (second, _) = met
        assert (first, second) == ("parts", "sum") and bool(args[5].max()) == flagged
        torch.testing.assert_close(out, OP.eager(*given, 0.5), equal_nan=True, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("which", [(True, True), (True, False), (False, True)])
def test_gradients(which, splits, dtype, seed):
    g = torch.Generator().manual_seed(seed)
    x, g, u, t = (torch.randn((70, n), generator=g).to(DTYPES[dtype]) for n in (50, 33, 8, 8))
    got = lora_gpu.low_rank_gradients(x, u if which[0] else None, g, t if which[1] else None, by=(16, 32, 4, 2), splits=splits)
    want = x.double().T @ u.double(), t.double().T @ g.double()
    for some, full, asked in zip(got, want, which):
        assert (some is not None) == asked and (some is None or check.error(some, full) <= ALLOWED[dtype])


class Stub:
    """A CUDA tensor, as far as `takes` looks."""

    is_cuda, dtype = True, torch.bfloat16

    def __init__(self, *shape):
        self.shape = shape

    def get_device(self):
        return 0


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (12, 0)])
def test_what_is_taken(capability, monkeypatch):
    """Outside the dispatcher, too, which turns torch's wrapping of kernels off."""
    monkeypatch.setattr(lora_gpu.cuda, "limits", lambda index: (132, 1 << 17, capability))
    x, w, a, b = Stub(2, 3, 16), Stub(16, 8), Stub(16, 4), Stub(4, 8)
    assert lora_gpu.takes(x, w, a, b) == (capability == (9, 0))
    assert not lora_gpu.takes(Stub(2, 0, 16), w, a, b) and not lora_gpu.takes(x, w, Stub(16, 65), Stub(65, 8))
    given = torch.zeros(64, 64)
    assert not lora_gpu.takes(given, given, given, given)


@pytest.mark.parametrize("wide, described", [(True, False), (False, True), (False, False)])
def test_tiles_leave_few_multiprocessors_idle(wide, described):
    for size in (512, 1024, 2048, 4096, 8192):
        for r in (1, 8, 64):
            how = lora_gpu.how(size, size, size, r, wide, described, 132)
            assert how.tma <= described and (how.splits > 0 or not wide)
            assert (size // how.tile[0]) * (size // how.tile[1]) >= (64 if size == 512 else 128)


@pytest.mark.parametrize("required, dtype", [((0, 2, 3), "fp32"), ((0, 1, 2, 3), "bf16"), ((2,), "fp32"), ((3,), "fp32"), ((0,), "bf16"),
                                             ((1,), "bf16")])
def test_calls_without_the_dispatcher(required, dtype, seed, monkeypatch):
    """What a GPU's calls go through, on the CPU: values, gradients, gradients of gradients, and that the graph's node has the op's name."""
    calls = sys.modules["triport.ops.lora_linear"]
    monkeypatch.setattr(calls, "bare", lambda *tensors: True)
    monkeypatch.setattr(lora_gpu, "how", lambda *args: lora_gpu.How((32, 32, 16, 4, 2), False, 2, (16, 16, 4, 2)))
    monkeypatch.setattr(lora_gpu.cuda, "limits", lambda index: (4, 1 << 17, (9, 0)))
    for name in ("GRADIENTS", "WIDE_GRADIENTS"):
        monkeypatch.setattr(lora_gpu, name, (16, 32, 4, 2))
    x, *rest = tensors(60, 24, 40, 5, DTYPES[dtype], False, seed)
    given = [t.requires_grad_(k in required) for k, t in enumerate((x.view(3, 20, 24), *rest))]
    twins = [t.detach().double().requires_grad_(t.requires_grad) for t in given]
    out, want = calls._on_gpu(*given, 0.5), OP.eager(*twins, 0.5)
    assert out.grad_fn.name() == "triport_lora_linear_Backward" and check.error(out, want) <= ALLOWED[dtype]
    inputs, others = [[t for t in some if t.requires_grad] for some in (given, twins)]
    g = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)).to(out.dtype)
    for t, u in zip(torch.autograd.grad(out, inputs, g, retain_graph=True), torch.autograd.grad(want, others, g.double(), retain_graph=True)):
        assert t.shape == u.shape and check.error(t, u) <= ALLOWED[dtype]
    if required == (0, 2, 3):
        second = [torch.autograd.grad(sum(t.pow(2).sum() for t in torch.autograd.grad(o, i, y, create_graph=True)), i)
                  for o, i, y in ((out, inputs, g), (want, others, g.double()))]
        for t, u in zip(*second):
            assert check.error(t, u) <= 3 * ALLOWED[dtype]


def small(dtype, device="cuda", seed=0):
    return [t.requires_grad_(k != 1) for k, t in enumerate(tensors(96, 64, 80, 8, DTYPES[dtype], False, seed, device))]


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("m, k, n, r", [(512, 1024, 1024, 8), (512, 1024, 1024, 64), (2048, 1024, 1024, 16), (2048, 1024, 1024, 64),
                                        (2048, 2048, 2048, 16), (333, 257, 511, 5), (3, 64, 5, 1), (4000, 1000, 3000, 64)])
def test_on_a_gpu(m, k, n, r, dtype, turned, seed):
    given = [t.requires_grad_() for t in tensors(m, k, n, r, DTYPES[dtype], turned, seed, "cuda")]
    assert lora_gpu.takes(*given) == (torch.cuda.get_device_capability() == (9, 0))
    twins = [t.detach().double().requires_grad_() for t in given]
    out, want = ops.lora_linear(*given, 0.5), OP.eager(*twins, 0.5)
    g = torch.randn(m, n, device="cuda").to(out.dtype)
    assert check.error(out, want) <= ALLOWED[dtype]
    for _ in range(2):  # as compiled, and as kept
        for t, u in zip(torch.autograd.grad(out, given, g, retain_graph=True), torch.autograd.grad(want, twins, g.double(), retain_graph=True)):
            assert t.shape == u.shape and check.error(t, u) <= ALLOWED[dtype]


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize("which", range(4))
def test_extremes_on_a_gpu(which, extreme, seed):
    given = [t.clone() for t in tensors(512, 1024, 512, 16, torch.float32, False, seed, "cuda")]
    given[which].view(-1)[77] = EXTREMES[extreme]
    got, want = ops.lora_linear(*given, 0.5), OP.eager(*given, 0.5)
    torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-4, atol=1e-4)
    for scale in (1e-39, 1e-36, 1e-30):
        x, w, a, b = tensors(512, 1024, 512, 16, torch.float32, False, seed, "cuda")
        assert check.error(ops.lora_linear(x * scale, w * 1e30, a * 1e30, b, 0.5), wanted(x * scale, w * 1e30, a * 1e30, b, 0.5)[0]) < 2e-6


@gpu
@pytest.mark.gpu
def test_a_step_launches_what_it_needs_on_a_gpu(seed):
    """A frozen w has no gradient computed; x a is kept for the gradient of b, and computed nowhere else."""
    x, w, a, b = small("bf16")

    def step(*inputs):
        return torch.autograd.grad(ops.lora_linear(x, w, a, b, 0.5).sum(), inputs)

    for inputs, want in (((x, a, b), ["lora_kernel", "lora_kernel", "lora_gradients_kernel"]), ((x,), ["lora_kernel", "lora_kernel"])):
        step(*inputs)
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as p:
            step(*inputs)
            torch.cuda.synchronize()
        names = [e.name for e in p.events() if e.device_type.name == "CUDA"]
        ours = [n for n in names if n.startswith(("lora", "scaled", "sum_of_matmuls", "matmul", "product"))]
        if inputs == (x,):  # a and b still ask for gradients, so the graph computes them
            assert ours[:2] == want
        else:
            assert ours == want


@gpu
@pytest.mark.gpu
def test_derivatives_of_derivatives_and_tracers_on_a_gpu(seed):
    x, w, a, b = [t.detach().double().to(torch.float32).requires_grad_() for t in small("fp32")]
    twins = [t.detach().clone().requires_grad_() for t in (x, w, a, b)]
    for fn, inputs in ((ops.lora_linear, (x, w, a, b)), (OP.eager, twins)):
        first = torch.autograd.grad(fn(*inputs, 0.5).pow(2).sum(), inputs, create_graph=True)
        second = torch.autograd.grad(sum(t.pow(2).sum() for t in first), inputs)
        if fn is OP.eager:
            for t, u in zip(second, kept):
                torch.testing.assert_close(t, u, rtol=1e-3, atol=1e-3)
        kept = second
    value, tangent = torch.func.jvp(lambda x: ops.lora_linear(x, *twins[1:], 0.5), (twins[0].detach(),), (torch.ones_like(twins[0]),))
    torch.testing.assert_close(tangent, OP.eager(torch.ones_like(x), *twins[1:], 0.5), rtol=1e-4, atol=1e-4)
    torch._dynamo.reset()
    compiled = torch.compile(lambda *t: ops.lora_linear(*t, 0.5).pow(2).sum(), fullgraph=True, backend="aot_eager")
    for t, u in zip(torch.autograd.grad(compiled(x, w, a, b), (x, a, b)), torch.autograd.grad(OP.eager(x, w, a, b, 0.5).pow(2).sum(), (x, a, b))):
        torch.testing.assert_close(t, u, rtol=1e-3, atol=1e-3)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = ops.lora_linear(x, w, a, b, 0.5)
    assert out.dtype is torch.bfloat16
    for t, u in zip(torch.autograd.grad(out.float().sum(), (x, a, b)), torch.autograd.grad(OP.eager(x, w, a, b, 0.5).sum(), (x, a, b))):
        assert t.dtype is torch.float32 and check.error(t, u) < 2e-2
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        ops.lora_linear(x, w, a, b, 0.5)
        with torch.cuda.graph(graph):
            made = ops.lora_linear(x, w, a, b, 0.5)
        graph.replay()
        torch.testing.assert_close(made, OP.eager(x, w, a, b, 0.5), rtol=1e-4, atol=1e-4)
