"""lora_linear on GPUs: its kernels on the CPU, and on a GPU what calls return, keep and launch."""

import sys
import threading

import pytest
import torch
from conftest import unavailable
from torch.profiler import ProfilerActivity, profile
from triport import backends, ops
from triport.bench import check
from triport.ops import dispatch, launches, lora_gpu, registry
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


def plan_of_product(x, w, a, b, by, done=0):
    """On the CPU; returns x w + t b, t = s x a, and the counters."""
    d = launches.Drawing(4)
    made = [d.made((x.shape[0], b.shape[1]), x.dtype), d.made((x.shape[0], a.shape[1]), x.dtype), d.made((done,), torch.int32)]
    lora_gpu.draw_product(d, *lora_gpu.matrices(x, w, a, b), -1, *made, done, by)
    return d.plan(-1)


def run(plan, tensors, *numbers):
    return plan(tensors, [t.data_ptr() for t in tensors], *numbers)


def same(got, args, s):
    """Is fp32 `got` what torch computes: NaN and infinities where it has them, and else as near as roundings of terms that may cancel let it be? Where a step
    between is too large for torch, as (x a) b before it is times s, `got` may be what is meant."""
    want, (x, w, a, b) = OP.eager(*args, s), (t.double().abs() for t in args)
    exact = OP.eager(*(t.double() for t in args), s)
    want = torch.where(want.isinf() & got.isfinite(), exact.float(), want)
    finite, bound = want.isfinite(), 1e-6 * (x @ w + abs(s) * (x @ a) @ b)
    return (torch.equal(got.isnan(), want.isnan()) and torch.equal(got[want.isinf()], want[want.isinf()])
            and bool(((got.double() - want.double()).abs() <= bound)[finite].all()))


@pytest.mark.parametrize("dtype, tma, splits, way", [("fp32", False, 3, "fused"), ("fp32", False, 3, "split"), ("fp32", False, 3, "few"), ("fp32", False, 1, "plain"),
                                                     ("bf16", False, 0, "fused"), ("bf16", True, 0, "fused"), ("fp16", False, 2, "fused"), ("fp16", True, 2, "fused")])
@pytest.mark.parametrize("m, k, n, r, turned", [(70, 104, 88, 8, False), (33, 40, 16, 24, True), (3, 100, 36, 33, True), (50, 31, 65, 5, False), (20, 1000, 40, 8, False)])
def test_products(m, k, n, r, turned, dtype, tma, splits, way, seed):
    if tma and (k % 8 or n % 8 or r % 8):
        k, n, r = (-(-size // 8) * 8 for size in (k, n, r))
    given = tensors(m, k, n, r, DTYPES[dtype], turned, seed)
    plan = plan_of_product(*given, lora_gpu.How((32, 32, 32, 4, 2), tma, splits, (16, 16, 4, 2), way), done=5)
    plan._empty = lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype).view(torch.uint8).fill_(255).view(dtype)  # counters, too
    out, t, done = run(plan, given, 0.5)
    whole, low = wanted(*given, 0.5)
    assert check.error(out, whole) <= ALLOWED[dtype] and check.error(t, low) <= ALLOWED[dtype]
    assert done.tolist() == [0] * 5


@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize("which", range(4))
def test_numbers_beyond_two_of_tf32_set_a_flag(which, extreme, seed, monkeypatch):
    given = [t.clone() for t in tensors(40, 36, 33, 5, torch.float32, False, seed)]
    met = []
    real = launches.launch
    monkeypatch.setattr(launches, "launch", lambda kernel, grid, *args, **consts: (met.append((kernel.__name__, args)), real(kernel, grid, *args, **consts)))
    plan = plan_of_product(*given, lora_gpu.How((32, 32, 16, 4, 2), False, 2, (16, 16, 4, 2)))
    for value, flagged in ((0.0, False), (EXTREMES[extreme], True)):
        given[which].view(-1)[-3] = value
        met.clear()
        out = run(plan, given, 0.5)[0]
        (first, args), (second, _) = met
        assert (first, second) == ("lora_parts_kernel", "lora_kernel") and bool(args[5].max()) == flagged
        assert same(out, given, 0.5)


@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize("which", range(4))
def test_numbers_beyond_three_of_bf16_set_a_flag(which, extreme, seed, monkeypatch):
    """Of a, too, if they make one of t; what is left is multiplied as it is."""
    given = [t.clone() for t in tensors(40, 36, 33, 5, torch.float32, which % 2 == 0, seed)]
    met = []
    real = launches.launch
    monkeypatch.setattr(launches, "launch", lambda kernel, grid, *args, **consts: (met.append((kernel.__name__, args)), real(kernel, grid, *args, **consts)))
    plan = plan_of_product(*given, lora_gpu.How((32, 32, 32, 4, 2), False, 2, (16, 16, 4, 2), "split"))
    for value, flagged in ((0.0, False), (EXTREMES[extreme], not (which == 2 and extreme == "small"))):
        given[which][-1, -1] = value
        met.clear()
        out = run(plan, given, 0.5)[0]
        assert [name for name, _ in met] == ["lora_parts_kernel", "lora_split_kernel", "lora_split_product_kernel"]
        assert bool(met[1][1][7].max()) == flagged
        assert same(out, given, 0.5)


def test_ranks_are_terms_of_the_product(seed):
    """What t b adds is not rounded to less than fp32, and nothing of another rank's is added."""
    x, w, a, b = tensors(40, 64, 48, 33, torch.float32, False, seed)
    plan = plan_of_product(x, w * 1e-6, a, b * 1e3, lora_gpu.How((32, 32, 32, 4, 2), False, 2, (16, 16, 4, 2), "split"))
    assert check.error(run(plan, (x, w * 1e-6, a, b * 1e3), 0.5)[0], wanted(x, w * 1e-6, a, b * 1e3, 0.5)[0]) < 3e-7


@pytest.mark.parametrize("m, k, n, r, laid, way", [
    (4096, 4096, 4096, 16, (True, True, True), "split"), (1000, 1001, 1003, 5, (True, False, False), "split"), (768, 768, 768, 16, (True, True, True), "split"),
    (4096, 4096, 4096, 16, (False, True, True), "fused"), (4096, 4096, 4096, 16, (False, False, True), "fused"), (512, 1024, 1024, 64, (True, True, True), "fused"),
    (512, 512, 512, 8, (True, True, True), "few"), (64, 4096, 4096, 16, (True, True, True), "few"), (1, 1024, 1024, 16, (True, True, True), "few"),
    (333, 257, 511, 5, (True, False, False), "plain"), (128, 128, 128, 8, (True, True, True), "plain"), (2000, 300, 2000, 5, (False, False, False), "plain")])
def test_who_multiplies_fp32(m, k, n, r, laid, way):
    """As measured on an H100 (docs/performance/gpu.md)."""
    assert lora_gpu.how(m, n, k, r, True, False, 132, *laid).way == way


def test_without_memory_for_planes(seed, monkeypatch):
    """A plan that needs less does it, and is kept."""
    given = tensors(768, 768, 768, 4, torch.float32, False, seed)
    monkeypatch.setattr(lora_gpu.cuda, "limits", lambda index: (132, 1 << 17, (9, 0)))
    monkeypatch.setattr(lora_gpu, "_plans", {})
    monkeypatch.setattr(lora_gpu, "WIDE_SMALL", (64, 64, 16, 4, 3))
    plan, addresses, drawn = lora_gpu.product(*given, False, (768, 768)), [t.data_ptr() for t in given], []
    real, least = launches.Plan._empty, plan.bytes

    def empty(self, shape, strides, dtype):
        if shape[0] >= least:
            raise torch.OutOfMemoryError("said by the test")
        drawn.append(self)
        return real(self, shape, strides, dtype)

    monkeypatch.setattr(launches.Plan, "_empty", empty)
    out, = plan(given, addresses, 0.5)
    assert check.error(out, wanted(*given, 0.5)[0]) <= ALLOWED["fp32"] and plan not in drawn
    plan(given, addresses, 0.5)
    assert len(set(map(id, drawn))) == 1
    least = 0
    with pytest.raises(torch.OutOfMemoryError):
        plan(given, addresses, 0.5)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("which", [(True, True), (True, False), (False, True)])
def test_gradients(which, splits, dtype, seed):
    g = torch.Generator().manual_seed(seed)
    x, g, u, t = (torch.randn((70, n), generator=g).to(DTYPES[dtype]) for n in (50, 33, 8, 8))
    given = [x, u, g, t, torch.zeros(lora_gpu.gradient_tiles(50, 33, False, (16, 32)), dtype=torch.int32)]
    d, (mx, _, mg, _, _) = launches.Drawing(5), lora_gpu.matrices(*given)
    ga, gb = d.made((50, 8), x.dtype) if which[0] else None, d.made((8, 33), x.dtype) if which[1] else None
    lora_gpu.draw_gradients(d, mx, 1 if which[0] else None, ga, mg, 3 if which[1] else None, gb, 8, -1, 4, (16, 32, 4, 2), splits)
    got = run(d.plan(-1), given)
    want = [full for full, asked in zip((x.double().T @ u.double(), t.double().T @ g.double()), which) if asked]
    assert len(got) == len(want) and all(check.error(some, full) <= ALLOWED[dtype] for some, full in zip(got, want))


class Stub:
    """A CUDA tensor, as far as `takes` looks."""

    is_cuda, dtype = True, torch.bfloat16

    def __init__(self, *shape, strides=None, at=0):
        self.shape, self._strides, self._at = shape, strides or torch.empty(shape, device="meta").stride(), at

    def get_device(self):
        return 0

    def stride(self, d=None):
        return self._strides if d is None else self._strides[d]

    def data_ptr(self):
        return self._at


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (12, 0)])
def test_what_is_taken(capability, monkeypatch):
    """Outside the dispatcher, too, which turns torch's wrapping of kernels off."""
    monkeypatch.setattr(lora_gpu.cuda, "limits", lambda index: (132, 1 << 17, capability))
    x, w, a, b = Stub(2, 3, 16), Stub(16, 8), Stub(16, 24), Stub(24, 8)
    assert lora_gpu.takes(x, w, a, b) == (capability == (9, 0))
    assert not lora_gpu.takes(Stub(2, 0, 16), w, a, b) and not lora_gpu.takes(x, w, Stub(16, 65), Stub(65, 8))
    given = torch.zeros(64, 64)
    assert not lora_gpu.takes(given, given, given, given)


@pytest.mark.parametrize("change, taken", [({}, True), ({"x": Stub(2, 3, 16, strides=(72, 24, 1))}, True), ({"w": Stub(16, 8, strides=(1, 16))}, True),
                                           ({"x": Stub(2, 3, 16, at=8)}, False), ({"x": Stub(2, 3, 16, strides=(60, 20, 1))}, False),
                                           ({"w": Stub(16, 8, strides=(16, 2))}, False), ({"w": Stub(16, 8, strides=(1, 20))}, False),
                                           ({"w": Stub(16, 12, strides=(1, 16)), "b": Stub(8, 12, strides=(1, 8))}, False),
                                           ({"a": Stub(16, 5), "b": Stub(5, 8, at=2)}, True)])
def test_16_bit_lines_begin_at_multiples_of_16_bytes(change, taken, monkeypatch):
    monkeypatch.setattr(lora_gpu.cuda, "limits", lambda index: (132, 1 << 17, (9, 0)))
    given = {"x": Stub(2, 3, 16), "w": Stub(16, 8), "a": Stub(16, 8), "b": Stub(8, 8), **change}
    assert lora_gpu.takes(*given.values()) == taken
    monkeypatch.setattr(Stub, "dtype", torch.float32)
    assert lora_gpu.takes(*given.values())


@pytest.mark.parametrize("which, along", [("x", 2), ("w", 0), ("a", 0), ("b", 0)])
@pytest.mark.parametrize("step, taken", [((1 << 23) - 8, True), (1 << 23, False)])
def test_steps_along_k_fit_32_bits(which, along, step, taken, monkeypatch):
    monkeypatch.setattr(lora_gpu.cuda, "limits", lambda index: (132, 1 << 17, (9, 0)))
    shapes = {"x": (2, 3, 256), "w": (256, 8), "a": (256, 256), "b": (256, 8)}
    given = {name: Stub(*shape) for name, shape in shapes.items()}
    given[which] = Stub(*shapes[which], strides=tuple(step if d == along else 8 * step if d == 0 else 1 for d in range(len(shapes[which]))))
    monkeypatch.setattr(lora_gpu, "MOST", 256)  # ranks
    monkeypatch.setattr(Stub, "dtype", torch.float32)
    assert lora_gpu.takes(*given.values()) == taken


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
    monkeypatch.setattr(lora_gpu, "takes", lambda *tensors: True)
    monkeypatch.setattr(calls, "_calls", launches.Calls())
    calls._on_gpu(*given, 0.5)
    out, want = calls._known(*given, 0.5), OP.eager(*twins, 0.5)
    assert out.grad_fn.name() == "triport_lora_linear_Backward" and check.error(out, want) <= ALLOWED[dtype]
    inputs, others = [[t for t in some if t.requires_grad] for some in (given, twins)]
    g = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)).to(out.dtype)
    for _ in range(2):  # learnt, and known
        for t, u in zip(torch.autograd.grad(out, inputs, g, retain_graph=True), torch.autograd.grad(want, others, g.double(), retain_graph=True)):
            assert t.shape == u.shape and check.error(t, u) <= ALLOWED[dtype]
    (_, kind), = calls._calls.known[given[0].shape]
    assert bool(kind.backward.known) == (1 not in required and 0 in required)
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
                                        (2048, 2048, 2048, 16), (333, 257, 511, 5), (3, 64, 5, 1), (333, 264, 504, 8), (4000, 1000, 3000, 64),
                                        (64, 1024, 1024, 8), (1, 512, 1024, 64), (1000, 1001, 1003, 5)])
def test_on_a_gpu(m, k, n, r, dtype, turned, seed):
    given = [t.requires_grad_() for t in tensors(m, k, n, r, DTYPES[dtype], turned, seed, "cuda")]
    assert lora_gpu.takes(*given) == (torch.cuda.get_device_capability() == (9, 0) and (dtype == "fp32" or k % 8 == n % 8 == 0))
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
    assert same(ops.lora_linear(*given, 0.5), given, 0.5)
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


def test_dynamo_traces_what_asks_for_bare_calls():
    """Within `use`, too, whose choice is a context variable, which it does not trace."""
    with backends.use("triton-cpu"):
        assert torch.equal(torch.compile(lambda t: t + dispatch.bare(t), backend="eager", fullgraph=True)(torch.ones(3)), torch.ones(3))


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_calls_that_nothing_follows_on_a_gpu(dtype, grad, seed):
    """Inference's take the same kernels as training's, and are known afterwards."""
    calls = sys.modules["triport.ops.lora_linear"]
    given = tensors(512, 512, 512, 8, DTYPES[dtype], False, seed, "cuda")
    with torch.set_grad_enabled(grad):
        for _ in range(3):
            assert check.error(ops.lora_linear(*given, 0.5), wanted(*given, 0.5)[0]) <= ALLOWED[dtype]
        assert calls._calls.find(given[0].shape, given) is not None
        with profile(activities=[ProfilerActivity.CUDA]) as ran:
            ops.lora_linear(*given, 0.5)
            torch.cuda.synchronize()
    names = [e.name for e in ran.events()]
    assert any(name.startswith("lora_") for name in names) and not any("sum_of_matmuls" in name for name in names)


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("m, k, n, r", [(512, 256, 384, 8), (2048, 2048, 2048, 16)])
def test_calls_like_one_before_on_a_gpu(m, k, n, r, dtype, seed):
    """Other tensors, numbers, streams and threads, a graph: by the driver, which is asked for every one of them."""
    calls = sys.modules["triport.ops.lora_linear"]
    sets = [tensors(m, k, n, r, DTYPES[dtype], False, seed + i, "cuda") for i in range(4)]
    grads = [torch.randn(m, n, device="cuda").to(DTYPES[dtype]) for _ in sets]

    def step(i, s):
        x, w, a, b = (t.detach().requires_grad_(which != 1) for which, t in enumerate(sets[i]))
        out = ops.lora_linear(x, w, a, b, s)
        return out.detach(), *torch.autograd.grad(out, (x, a, b), grads[i])

    def right(i, s, got):
        x, w, a, b = (t.double().requires_grad_(which != 1) for which, t in enumerate(sets[i]))
        out = OP.eager(x, w, a, b, s)
        return all(check.error(t, u) <= ALLOWED[dtype] for t, u in zip(got, (out, *torch.autograd.grad(out, (x, a, b), grads[i].double()))))

    for i, s in ((0, 0.5), (1, -2.0), (2, 0.25), (3, 0.5)):
        assert right(i, s, step(i, s))
    x, w, a, b = (t.detach().requires_grad_(which != 1) for which, t in enumerate(sets[0]))
    kind, _ = calls._calls.find(x.shape, (x, w, a, b))
    plans = [*kind.plans.values(), *(plan for known in kind.backward.known.values() for _, (plan, _) in known)]
    assert len(plans) == 2 and all(plan._launches for plan in plans)

    results = {}

    def run(i):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                results[i] = step(i, i - 0.5)
            torch.cuda.current_stream().synchronize()

    torch.cuda.synchronize()
    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(right(i, i - 0.5, results[i]) for i in range(4))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = step(1, 0.5)
    sets[1][0].copy_(sets[2][0])
    graph.replay()
    assert right(1, 0.5, made)


@gpu
@pytest.mark.gpu
def test_derivatives_of_derivatives_and_tracers_on_a_gpu(seed):
    x, w, a, b = [t.detach().double().to(torch.float32).requires_grad_() for t in small("fp32")]
    twins = [t.detach().clone().requires_grad_() for t in (x, w, a, b)]
    ours: tuple = ()
    for fn, inputs in ((ops.lora_linear, (x, w, a, b)), (OP.eager, twins)):
        first = torch.autograd.grad(fn(*inputs, 0.5).pow(2).sum(), inputs, create_graph=True)
        second = torch.autograd.grad(sum(t.pow(2).sum() for t in first), inputs)
        if fn is OP.eager:
            for t, u in zip(second, ours):
                torch.testing.assert_close(t, u, rtol=1e-3, atol=1e-3)
        ours = second
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
