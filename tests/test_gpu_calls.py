"""Calls of ops on a GPU that were made before: recognised, launched by CUDA's driver, and right wherever torch's own are."""

import contextvars
import threading

import pytest
import torch
from triport import backends, ops
from triport.backends.dispatch import replay
from triport.ops import product_few, product_split, product_tma

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

F16 = torch.float16


def rand(*shape, dtype=F16):
    return torch.randn(*shape, device="cuda").to(dtype)


#: name -> (op, tensors, what it computes)
CALLS = {
    "square": (ops.square, lambda: (rand(256, 256),), lambda x: x * x),
    "gelu": (ops.gelu, lambda: (rand(123, 45, dtype=torch.float32),), lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
    "softmax": (ops.softmax, lambda: (rand(256, 256),), lambda x: torch.softmax(x, -1)),
    "softmax_columns": (lambda x: ops.softmax(x, 0), lambda: (rand(1823, 781),), lambda x: torch.softmax(x, 0)),
    "softmax_long": (ops.softmax, lambda: (rand(7, 40000),), lambda x: torch.softmax(x, -1)),
    "add_relu": (ops.add_relu, lambda: (rand(256, 100), rand(100)), lambda x, b: torch.relu(x + b)),
    "matmul": (ops.matmul, lambda: (rand(256, 256), rand(256, 256)), lambda a, b: a @ b),
    "matmul_fp32": (ops.matmul, lambda: (rand(100, 77, dtype=torch.float32), rand(77, 51, dtype=torch.float32)), lambda a, b: a @ b),
    "matmul_tma": (ops.matmul, lambda: (rand(2048, 1024), rand(1024, 2048)), lambda a, b: a @ b),
    "matmul_turned": (ops.matmul, lambda: (rand(1024, 2048).T, rand(1024, 2048)), lambda a, b: a @ b),
    "matmul_copied": (ops.matmul, lambda: (rand(2047, 1025), rand(2046, 1025).T), lambda a, b: a @ b),
    "matmul_softmax_copied": (lambda a, b: ops.matmul_softmax(a, b, -1), lambda: (rand(2048, 512), rand(512, 2047)), lambda a, b: torch.softmax(a @ b, -1)),
    "matmul_split": (ops.matmul, lambda: (rand(1024, 777, dtype=torch.float32), rand(777, 1030, dtype=torch.float32)), lambda a, b: a @ b),
    "matmul_small": (ops.matmul, lambda: (rand(512, 512), rand(512, 520)), lambda a, b: a @ b),
    "matmul_shares": (ops.matmul, lambda: (rand(64, 8192), rand(256, 8192).T), lambda a, b: a @ b),
    "matmul_few": (ops.matmul, lambda: (rand(20, 1000, dtype=torch.float32), rand(1000, 516, dtype=torch.float32)), lambda a, b: a @ b),
    "matmul_line": (ops.matmul, lambda: (rand(1024, 2048, dtype=torch.float32), rand(2048, 1, dtype=torch.float32)), lambda a, b: a @ b),
    "matmul_softmax_few": (lambda a, b: ops.matmul_softmax(a, b, 0), lambda: (rand(20, 1000, dtype=torch.float32) * 0.1, rand(1000, 516, dtype=torch.float32)), lambda a, b: torch.softmax(a @ b, 0)),
    "matmul_softmax_shares": (lambda a, b: ops.matmul_softmax(a, b, -1), lambda: (rand(64, 8192) * 0.05, rand(8192, 256)), lambda a, b: torch.softmax(a @ b, -1)),
    "matmul_softmax": (lambda a, b: ops.matmul_softmax(a, b, 0), lambda: (rand(300, 257), rand(257, 511)), lambda a, b: torch.softmax(a @ b, 0)),
    "matmul_softmax_rows": (lambda a, b: ops.matmul_softmax(a, b, -1), lambda: (rand(256, 256), rand(256, 256)), lambda a, b: torch.softmax(a @ b, -1)),
    "matmul_softmax_tma": (lambda a, b: ops.matmul_softmax(a, b, -1), lambda: (rand(2048, 512), rand(512, 2048)), lambda a, b: torch.softmax(a @ b, -1)),
    "matmul_softmax_split": (lambda a, b: ops.matmul_softmax(a, b, 0), lambda: (rand(1024, 512, dtype=torch.float32) * 0.2, rand(900, 512, dtype=torch.float32).T),
                             lambda a, b: torch.softmax(a @ b, 0)),
}
#: those that Hopper GPUs have kernels of their own for
HOPPER = {"matmul_copied": product_tma, "matmul_softmax_copied": product_tma, "matmul_tma": product_tma, "matmul_turned": product_tma, "matmul_softmax_tma": product_tma, "matmul_split": product_split,
          "matmul_softmax_split": product_split, "matmul_small": product_tma, "matmul_shares": product_tma, "matmul_softmax_shares": product_tma, "matmul_few": product_few,
          "matmul_line": product_few, "matmul_softmax_few": product_few}


@pytest.fixture(params=["triton-gpu", "cuda"])
def by(request):
    """The ops are served by that backend."""
    if reason := backends.get(request.param).unavailable():
        pytest.skip(reason)
    with backends.use(request.param):
        yield request.param


@pytest.fixture(params=CALLS)
def called(request, by):
    return CALLS[request.param]


def close(got, wanted):
    error = (got.double() - wanted).abs().max() / wanted.abs().max().clamp_min(1e-30)
    assert torch.isfinite(got).all() and error < (4e-3 if got.dtype == F16 else 2e-5), error


def wanted(reference, tensors):
    return reference(*(t.double() for t in tensors))


def warmed(op, tensors, turns=4):
    for _ in range(turns):
        out = op(*tensors)
    return out


def test_results_and_new_memory(called):
    op, make, reference = called
    replay.forget()
    kept = []
    for _ in range(6):
        tensors = make()
        kept.append((op(*tensors), tensors))
    assert sum(len(s._calls) for s in replay._sites.values()) == 1, "the call is known"
    for out, tensors in kept:
        close(out, wanted(reference, tensors))
    assert len({out.data_ptr() for out, _ in kept}) == len(kept)


@pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0), reason="a GPU of another compute capability than 9.0")
@pytest.mark.parametrize("name", HOPPER)
def test_calls_go_by_the_kernels_for_the_gpu(name, monkeypatch):
    """The first call of a kind, too, which no dispatcher has seen."""
    op, make, reference = CALLS[name]
    replay.forget()
    went, real = [], HOPPER[name].product
    monkeypatch.setattr(HOPPER[name], "product", lambda *args, **how: (went.append(1), real(*args, **how)))
    tensors = make()
    for _ in range(3):
        close(op(*tensors), wanted(reference, tensors))
    assert went == [1], "once, and then by native code"


def test_graphs_capture_everything(called):
    op, make, reference = called
    tensors = make()
    warmed(op, tensors)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = op(*tensors)
    for _ in range(3):
        fresh = make()
        for t, f in zip(tensors, fresh):
            t.copy_(f)
        graph.replay()
        close(out, wanted(reference, fresh))


def test_streams(called):
    """A call runs where it was put: behind what its stream waits for."""
    op, make, reference = called
    tensors = make()
    warmed(op, tensors)
    side = torch.cuda.Stream()
    fresh = make()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        for t, f in zip(tensors, fresh):
            t.copy_(f)
        out = op(*tensors)
    torch.cuda.current_stream().wait_stream(side)
    close(out, wanted(reference, fresh))


def test_threads_that_have_not_used_the_gpu(called):
    op, make, reference = called
    tensors = make()
    warmed(op, tensors)
    found, context = [], contextvars.copy_context()

    def work():
        for _ in range(20):
            out = op(*tensors)
        found.append(out)

    threads = [threading.Thread(target=context.copy().run, args=(work,)) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 6
    for out in found:
        close(out, wanted(reference, tensors))


def test_modes(called):
    op, make, reference = called
    tensors = make()
    warmed(op, tensors)
    with torch.inference_mode():
        for _ in range(4):
            out = op(*tensors)
        assert out.is_inference()
    close(out, wanted(reference, tensors))
    assert not op(*tensors).is_inference()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        close(op(*tensors), wanted(reference, tensors))
    finally:
        torch.use_deterministic_algorithms(False)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        out = op(*tensors)
    close(out, wanted(reference, tensors))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        op(*tensors)


def test_what_watches_sees_the_op():
    x = rand(64, 64)
    warmed(ops.square, (x,))
    activities = torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA  # where the first profile of a process is of the CPU alone, later ones see no GPU
    with torch.profiler.profile(activities=activities) as prof:
        ops.square(x)
    assert any("triport::square" in e.key for e in prof.key_averages())
    seen = []

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Mode():
        ops.square(x)
    assert any("triport" in s for s in seen)
    leaf = x.float().requires_grad_()
    for _ in range(3):
        ops.square(leaf).sum().backward()
    assert torch.allclose(leaf.grad, 6 * leaf.detach())


def test_another_alignment_shape_dtype_or_stride_is_another_call():
    base = rand(300 * 300 + 8, dtype=torch.float32)
    for shift in (0, 1, 2, 4, 0, 1):
        for shape in ((300, 300), (300, 299), (17, 5)):
            x = base[shift:shift + shape[0] * shape[1]].view(shape)
            for v in (x, x.T, x[::2], x.half()):
                for _ in range(3):
                    close(ops.square(v), v.double()**2)
                    close(ops.softmax(v, 0), torch.softmax(v.double(), 0))


def test_hooks_of_triton_see_launches():
    from triton import knobs
    x = rand(64, 64)
    warmed(ops.square, (x,))
    seen = []
    before = knobs.runtime.launch_enter_hook
    knobs.runtime.launch_enter_hook = lambda metadata: seen.append(metadata.get()["name"])
    try:
        ops.square(x)
    finally:
        knobs.runtime.launch_enter_hook = before
    assert seen == ["square_kernel"]


def test_many_addresses_of_described_matrices():
    b = rand(1024, 2048)
    kept = [rand(2048, 1024) for _ in range(150)]
    for a in (*kept, *kept[:20]):
        close(ops.matmul(a, b), a.double() @ b.double())


def test_memory_that_is_full():
    x = rand(256, 256)
    warmed(ops.square, (x,))
    free, _ = torch.cuda.mem_get_info()
    big = torch.empty(int(free * 0.55), dtype=torch.uint8, device="cuda")
    half = torch.zeros(int(free * 0.3) // 2, dtype=F16, device="cuda")
    for _ in range(3):
        with pytest.raises(torch.OutOfMemoryError):
            ops.square(half)
    del big, half
    torch.cuda.empty_cache()
    close(ops.square(x), x.double()**2)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_device(called):
    op, make, reference = called
    tensors = make()
    warmed(op, tensors)
    other = [t.to("cuda:1") for t in tensors]
    for _ in range(4):
        close(op(*other), wanted(reference, other))
        with torch.cuda.device(1):
            close(op(*other), wanted(reference, other))
            close(op(*tensors), wanted(reference, tensors))


BACKWARD = {"add_relu": (ops.add_relu, lambda m, n: (rand(m, n), rand(n)), lambda x, b: torch.relu(x + b)),
            "add_mul_act": (lambda x, y, b: ops.add_mul_act(x, y, b, 0.5, "silu"), lambda m, n: (rand(m, n), rand(m, n), rand(n)),
                            lambda x, y, b: torch.nn.functional.silu(x + 0.5 * y + b))}


@pytest.mark.parametrize("shape", [(4096, 1024), (1823, 781), (3000, 1000), (5, 40000), (1, 64)])
@pytest.mark.parametrize("name", BACKWARD)
def test_gradients_with_a_bias(name, shape):
    """In one pass and a short one, both remembered; equal calls have equal results; CUDA graphs take them in."""
    op, make, reference = BACKWARD[name]
    leaves = [t.requires_grad_() for t in make(*shape)]
    out, grad = op(*leaves), rand(*shape)

    def gradients():
        return torch.autograd.grad(out, leaves, grad, retain_graph=True)

    first = warmed(gradients, ())
    wide = [t.detach().double().requires_grad_() for t in leaves]
    want = torch.autograd.grad(reference(*wide), wide, grad.double())
    apart = (out.detach() > 0) != (reference(*wide) > 0) if name == "add_relu" else torch.zeros(shape, dtype=torch.bool, device="cuda")
    for got, w in zip(first, want):
        close(got.masked_fill(apart, 0) if got.dim() == 2 else got, w.masked_fill(apart, 0) if w.dim() == 2 else w)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as prof:
        again = gradients()
        torch.cuda.synchronize()
    kernels = {e.key for e in prof.key_averages()}
    assert f"{name}_gradients_kernel" in kernels and not any("reduce_kernel" in k for k in kernels), kernels
    assert all(torch.equal(a, b) for a, b in zip(again, first))
    graph = torch.cuda.CUDAGraph()
    twins = [t.detach() for t in leaves]
    with torch.cuda.graph(graph):  # the call, too, of leaves of its own: torch computes gradients on the streams that these were made on
        given = [t.requires_grad_() for t in twins]
        captured = torch.autograd.grad(op(*given), given, grad)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, first))
