"""CPU and GPU in one process: every thread's launches go to the device of its tensors."""

import itertools
import subprocess
import sys
import textwrap
import threading

import pytest
import torch
import triton
import triton.language as tl
from conftest import HANGS, unavailable
from triport import ops
from triport.backends import active
from triport.backends.dispatch import drivers
from triport.backends.cpu.plugin import benchmarker
from triport.bench import check
from triport.ops import dispatch, register
from triport.ops.records import DTYPES
from triton.backends.compiler import GPUTarget

gpu = pytest.mark.skipif(bool(unavailable("triton-gpu")), reason=str(unavailable("triton-gpu")))


@triton.jit
def scale_kernel(x_ptr, out_ptr, n, FACTOR: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * FACTOR, mask=offs < n)


def at_once(*works):
    """Run functions in threads; their exceptions are raised here."""
    failed = []

    def guarded(work):
        try:
            work()
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=guarded, args=(w,)) for w in works]
    [t.start() for t in threads]
    [t.join() for t in threads]
    if failed:
        raise failed[0]


def test_a_thread_compiles_for_a_gpu_while_others_launch_here(tmp_cache):
    before = active.is_current("cpu")  # not beside a GPU

    def compile_there():
        for factor in range(2, 8):
            with active.compiling_for(GPUTarget("cuda", 90, 32)):
                assert triton.runtime.driver.active.get_current_target().backend == "cuda"
                k = scale_kernel.warmup(torch.float32, torch.float32, 100, FACTOR=factor, BLOCK=64, grid=(1,))
                assert "ptx" in k.asm
            assert active.is_current("cpu") == before

    def launch_here(first):
        x = torch.randn(100)
        for factor in range(first, first + 6):
            out = torch.empty_like(x)
            with drivers.serving("cpu"):
                assert active.is_current("cpu")
                scale_kernel[(2,)](x, out, 100, FACTOR=factor, BLOCK=64)
            assert torch.equal(out, x * factor)
            assert torch.equal(ops.square(out), out * out)

    at_once(compile_there, lambda: launch_here(2), lambda: launch_here(20))
    assert active.is_current("cpu") == before


def test_what_was_active_comes_back():
    before = active.is_current("cpu")
    with active.compiling_for(GPUTarget("cuda", 90, 32)):
        with drivers.serving("cpu"):
            assert active.is_current("cpu")
        assert active.is_current("cuda")
        with pytest.raises(ZeroDivisionError):
            with drivers.serving("cpu"):
                1 / 0
        assert active.is_current("cuda")
    assert active.is_current("cpu") == before


def test_a_kernel_that_goes_in_another_drivers_time(tmp_cache):
    """Triton asks the active driver to unload it, who may not know it."""
    unloaded = []

    class GPU:
        class utils:
            unload_module = unloaded.append

        def get_current_target(self):
            return GPUTarget("cuda", 90, 32)

    x, out = torch.randn(10), torch.empty(10)
    with drivers.serving("cpu"):
        k = scale_kernel[(1,)](x, out, 10, FACTOR=77, BLOCK=16)
    driver = active.PerThread(GPU())
    with active.compiling_for(GPUTarget("cuda", 90, 32)):
        driver.utils.unload_module(k.module)
        assert not unloaded
        driver.utils.unload_module(12345)
    assert unloaded == [12345]
    assert torch.equal(out, x * 77)


def test_a_kernel_for_the_cpu_is_loaded_by_the_cpus_driver(tmp_cache):
    """Also where a GPU's is active when its launcher is made, as in Inductor's threads beside a GPU."""
    class GPU:
        utils = None

        def launcher_cls(self, src, metadata):
            raise AttributeError("global_scratch_size")

        def get_current_device(self):
            return 0

        def get_current_target(self):
            return GPUTarget("cuda", 90, 32)

    x, out = torch.randn(10), torch.empty(10)
    with drivers.serving("cpu"):
        k = scale_kernel.warmup(x, out, 10, FACTOR=78, BLOCK=16, grid=(1,))
    with active.driven_by(GPU()):
        k._init_handles()
        assert active.is_current("cuda")
        k.run(1, 1, 1, 0, k.function, k.packed_metadata, None, None, None, x, out, 10, 78, 16)
    assert torch.equal(out, x * 78)


def autotuned():
    """(an op whose kernel is autotuned, that kernel), new with every call."""
    configs = [triton.Config({"BLOCK": b}) for b in (64, 256)]
    kernel = triton.autotune(configs=configs, key=["n"])(triton.jit(scale_kernel.fn))

    def body(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        dispatch.launch(dispatch.wrap_triton(kernel), lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),), x, out, x.numel(), FACTOR=3)
        return out

    return register.register(f"autotuned_{next(_numbers)}", body, kernel).op, kernel


_numbers = itertools.count()


@pytest.fixture
def clocks(monkeypatch):
    """(a list that the CPU's benchmarker and a GPU's write their names to, the driver of that GPU)."""
    timed = []

    class GPU:
        def get_current_target(self):
            return GPUTarget("cuda", 90, 32)

        def get_benchmarker(self):
            return lambda fn, quantiles: [timed.append("cuda") or 1.0] * 3

    monkeypatch.setattr(benchmarker, "benchmark", lambda fn, quantiles: [timed.append("cpu") or fn() or 1.0] * 3)
    return timed, GPU()


def test_autotuning_by_device(clocks, monkeypatch):
    """Each driver's benchmarker times what that driver launches, whoever was used first, and each device has its own choice."""
    timed, gpu = clocks
    op, kernel = autotuned()
    x = torch.randn(500)
    with active.compiling_for(GPUTarget("cuda", 90, 32)):  # so that the thread's driver is kept, as beside a GPU
        with drivers.serving("cpu"):
            assert torch.equal(op(x), x * 3)
    assert timed == ["cpu", "cpu"]
    with active.driven_by(gpu):
        monkeypatch.setattr(kernel.fn, "run", lambda *args, **kwargs: None)
        type(kernel).run(kernel, x, torch.empty_like(x), 500, FACTOR=3, grid=(1,), warmup=False)
    assert timed == ["cpu", "cpu", "cuda", "cuda"]
    assert {device for device, _ in dict.keys(kernel.cache)} == {"cpu", "cuda"}


def test_the_first_drivers_benchmarker_is_not_kept(clocks, monkeypatch):
    """A GPU comes first, when the process's driver is its own and no thread has another."""
    timed, gpu = clocks
    op, kernel = autotuned()
    monkeypatch.setattr(triton.runtime.driver, "_active", gpu)
    with monkeypatch.context() as m:
        m.setattr(kernel.fn, "run", lambda *args, **kwargs: None)
        type(kernel).run(kernel, torch.randn(500), torch.empty(500), 500, FACTOR=3, grid=(1,), warmup=False)
    assert timed == ["cuda", "cuda"]
    x = torch.randn(500)
    with drivers.serving("cpu"):
        assert torch.equal(op(x), x * 3)
    assert timed == ["cuda", "cuda", "cpu", "cpu"]


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "fp64"])
@pytest.mark.parametrize("outer,n,inner", [(1, 257, 40), (1, 1000, 33), (3, 700, 65), (2, 256, 1)])
def test_columns_by_parts(outer, n, inner, dtype, seed):
    """As a GPU has them."""
    module = sys.modules["triport.ops.softmax"]
    x = torch.randn(outer, n, inner, generator=torch.Generator().manual_seed(seed)).to(DTYPES[dtype]) * 5
    x[0, :n - 1, 0] = -float("inf")  # parts of nothing else
    out, whole = check.guarded(tuple(x.shape), x.dtype)
    module.columns_by_parts(x, out, outer, n, inner)
    assert check.guards_hold(whole) and check.verdict(ops.registry.get("softmax"), out, [x], {"dim": 1})[0]


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("first", ["cpu", "cuda"])
def test_autotuning_on_one_device_never_times_the_other(first, monkeypatch):
    op, kernel = autotuned()
    seen, by = [], []
    plain, clocks = type(kernel.fn).run, {"cpu": benchmarker.benchmark, "cuda": triton.testing.do_bench}

    def run(self, *args, **kwargs):
        if by:
            seen.append((by[-1], args[0].device.type))
        return plain(self, *args, **kwargs)

    def clock(device):
        def timed(*args, **kwargs):
            by.append(device)
            try:
                return clocks[device](*args, **kwargs)
            finally:
                by.pop()
        return timed

    monkeypatch.setattr(type(kernel.fn), "run", run)
    monkeypatch.setattr(benchmarker, "benchmark", clock("cpu"))
    monkeypatch.setattr(triton.testing, "do_bench", clock("cuda"))
    for device in (first, {"cpu": "cuda", "cuda": "cpu"}[first]):
        x = torch.randn(5000, device=device)
        assert torch.equal(op(x), x * 3)
        assert {(device, device)} == set(seen)
        seen.clear()
    assert {device for device, _ in dict.keys(kernel.cache)} == {"cpu", "cuda"}
    for device in ("cpu", "cuda"):  # chosen already
        op(torch.randn(5000, device=device))
    assert not seen


def test_an_ops_kernel_goes_by_its_tensors():
    """Whatever drives the thread: torch's tracers launch kernels themselves."""
    from triport.ops.square import square_kernel

    x, out = torch.randn(100), torch.empty(100)
    with active.compiling_for(GPUTarget("cuda", 90, 32)):
        square_kernel[(2,)](x, out, 100, BLOCK=64)
        assert active.is_current("cuda")
    assert torch.equal(out, x * x)


@pytest.mark.parametrize("name", ["square", "gelu"])
def test_a_gpu_moves_16_bytes_at_a_time_at_odd_sizes_too(name):
    from triport.tools.inspector import code, launches, targets

    op = ops.registry.get(name)
    case = next(c for c in op.cases if c.name == "1823x781")
    text = code.of_launch(launches.of_op(op, case, "fp16", "cuda")[0], targets.get("sm_90")).text
    assert "LDG.E.128" in text and "STG.E.128" in text


@pytest.mark.parametrize("name", ["square", "gelu"])
@pytest.mark.parametrize("n", [1, 63, 64, 65, 5003])
def test_blocks_without_a_mask_and_the_last_with_one(name, n, seed):
    """As kernels run on a GPU."""
    import importlib

    kernel = getattr(importlib.import_module(f"triport.ops.{name}"), f"{name}_kernel")
    x = torch.randn(n, generator=torch.Generator().manual_seed(seed))
    out, whole = check.guarded((n,), torch.float32)
    kernel[(triton.cdiv(n, 64),)](x, out, n, BLOCK=64, SPLIT=True)
    assert check.guards_hold(whole) and check.verdict(ops.registry.get(name), out, [x], {})[0]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("m,n,k", [(200, 300, 40), (64, 64, 16), (33, 500, 70), (500, 33, 7)])
@pytest.mark.parametrize("once,turns", [(1, 1), (4, 2), (16, 4)])
@pytest.mark.parametrize("folds, looped", [(False, False), (True, False), (False, True)])
def test_statistics_joined_at_once_and_tiles_scaled_in_turns(folds, looped, once, turns, m, n, k, axis, seed):
    """As kernels run on a GPU, and in a loop as on a CPU."""
    from triport.ops import grids
    from triport.ops.matmul_softmax import product_exp_kernel, scale_kernel

    g = torch.Generator().manual_seed(seed)
    a, b = torch.randn(m, k, generator=g), torch.randn(k, n, generator=g)
    c, whole = check.guarded((m, n), torch.float32)
    step, (bm, bn) = 32, (16, 16)
    parts, lanes = (triton.cdiv(m, step), n) if axis == 0 else (triton.cdiv(n, step), m)
    stats = torch.full((2 * parts * lanes,), float("nan"))
    product_exp_kernel[(triton.cdiv(m, 32) * triton.cdiv(n, 32),)](a, b, c, stats, m, n, k, *a.stride(), *b.stride(), AXIS=axis, WHOLE=False, BM=32,
                                                                   BN=32, BK=16, GROUP=4)
    tiles = (triton.cdiv(n, bn), triton.cdiv(m, bm * turns)) if axis == 0 else (triton.cdiv(n, bn * turns), triton.cdiv(m, bm))
    scale_kernel[grids.grid(*tiles, folds)](c, stats, m, n, parts, turns, AXIS=axis, STEP=step, BM=bm, BN=bn, AT_ONCE=once, TURNS=0 if looped else turns,
                                            FOLDED=folds)
    assert check.guards_hold(whole) and check.error(c, torch.softmax(a.double() @ b.double(), axis)) < 1e-5


@pytest.mark.parametrize("m,n,k,axis", [(100000, 64, 8, 0), (64, 100000, 8, 1), (20000, 3000, 8, 0)])
def test_statistics_are_joined_by_few_programs_on_a_cpu(m, n, k, axis, monkeypatch):
    """By as many as keep threads busy, however many parts there are: joining takes each of them time in proportion to these. And each tile is scaled."""
    module, seen = sys.modules["triport.ops.matmul_softmax"], []
    monkeypatch.setattr(module, "workers", lambda: 2)
    monkeypatch.setattr(module, "launch", lambda kernel, grid, *args, **consts: seen.append((grid, args, consts)))
    module._matmul_softmax_body(torch.empty(m, k), torch.empty(k, n), axis)
    (right, down), (*_, turns), consts = seen[-1]
    assert len(seen) == 2 and 8 <= right * down < 24
    covered = (right * consts["BN"], down * consts["BM"] * turns) if axis == 0 else (right * consts["BN"] * turns, down * consts["BM"])
    assert covered[0] >= n and covered[1] >= m and consts["TURNS"] == 0


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("first", ["cpu", "cuda"])
def test_both_devices_in_one_process(first, tmp_path):
    """Whatever is used first, from several threads, forward and backward, compiled or not."""
    script = tmp_path / "both.py"
    script.write_text(textwrap.dedent("""
        import sys, threading, torch
        from triport import ops
        failed = []
        def work(device, seed):
            try:
                g = torch.Generator().manual_seed(seed)
                for k in range(12):
                    x = torch.randn(50 + k, 37, generator=g).to(device).requires_grad_()
                    y = torch.randn(37, 20, generator=g).to(device)
                    for got, want in ((ops.square(x), x * x), (ops.softmax(x), torch.softmax(x, -1)), (ops.matmul(x, y), x @ y),
                                      (ops.matmul_softmax(x, y, 0), torch.softmax(x @ y, 0))):
                        assert got.device.type == device and torch.allclose(got, want, atol=1e-4, rtol=1e-3), (device, k)
                    ops.gelu(x).sum().backward()
                    assert torch.isfinite(x.grad).all()
            except BaseException as e:
                failed.append(e)
        devices = [sys.argv[1], {"cpu": "cuda", "cuda": "cpu"}[sys.argv[1]]]
        torch.backends.cuda.matmul.allow_tf32 = False
        for d in devices:
            work(d, 0)
        threads = [threading.Thread(target=work, args=(d, s)) for s in range(3) for d in devices]
        [t.start() for t in threads]
        [t.join() for t in threads]
        if failed:
            raise failed[0]
        print("right")
    """))
    p = subprocess.run([sys.executable, str(script), first], capture_output=True, text=True, timeout=HANGS)
    assert p.returncode == 0 and "right" in p.stdout, p.stderr[-2000:]
