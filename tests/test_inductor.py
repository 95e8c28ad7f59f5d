"""torch.compile on the CPU through Triton: `torch._inductor.config.cpu_backend = "triton"`, against eager.

Inductor writes the kernels, this backend compiles them; nothing but the installed entry point tells it so."""

import math
import os
import subprocess
import sys
import textwrap

import pytest
import torch
import torch.nn.functional as F
from conftest import HANGS
from torch import nn

inductor = pytest.importorskip("torch._inductor.config")
pytestmark = pytest.mark.usefixtures("through_triton")


def compiled(fn, *args, **options):
    """The result of `fn` compiled, and the code that Inductor wrote."""
    from torch._inductor.utils import run_and_get_code
    out, code = run_and_get_code(torch.compile(fn, **options), *args)
    return out, "\n".join(code)


R, I = torch.randn, torch.randint  # noqa: E741

GRAPHS = {
    "add": (lambda x, y: x + y, lambda: (R(64, 33), R(64, 33))),
    "gelu": (F.gelu, lambda: (R(100, 77),)),
    "gelu of tanh": (lambda x: F.gelu(x, approximate="tanh"), lambda: (R(100, 77),)),
    "silu and product": (lambda x, y: F.silu(x) * y, lambda: (R(10, 300), R(10, 300))),
    "broadcast": (lambda x, y: (x + y).relu(), lambda: (R(10, 300), R(300))),
    "where": (lambda x, y: torch.where(x > 0, x, y), lambda: (R(64, 33), R(64, 33))),
    "bfloat16": (lambda x, y: (x * y).sigmoid(), lambda: (R(64, 33).bfloat16(), R(64, 33).bfloat16())),
    "float16 softmax": (lambda x: x.softmax(-1), lambda: (R(64, 33).half(),)),
    "float64": (lambda x: x.exp().sum(1), lambda: (R(64, 33).double(),)),
    "integers": (lambda x, y: (x // y, x % y, x & y, x << 2, x.bitwise_not()), lambda: (I(-99, 99, (64, 33)), I(1, 9, (64, 33)))),
    "casts": (lambda x: (x.int(), x.half(), x.to(torch.uint8), x > 0), lambda: (R(64, 33).abs() * 9,)),
    "special functions": (lambda x: (x.lgamma(), x.erf(), x.erfc(), x.log1p(), x.expm1(), x.tan(), x.atan(),
                                     torch.special.i0(x), torch.special.erfinv(x / 20)), lambda: (torch.rand(64, 33) * 9 + .1,)),
    "indices of indices": (lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), lambda: (R(2, 3, 8, 8),)),  # fewer than a block has
    "powers": (lambda x, y: (x**y, x**3, x.rsqrt(), torch.hypot(x, y), torch.atan2(x, y), x.fmod(y), x.remainder(y)),
               lambda: (torch.rand(64, 33) + .1, torch.rand(64, 33) + .1)),
    "rounding": (lambda x: (x.floor(), x.ceil(), x.trunc(), x.round(), x.frac(), x.sign()), lambda: (R(64, 33) * 5,)),
    "sum": (lambda x: x.sum(), lambda: (R(1000),)),
    "long sum": (lambda x: x.sum(), lambda: (R(1000000),)),
    "sum of columns": (lambda x: x.sum(0), lambda: (R(130, 70),)),
    "sum of rows": (lambda x: x.sum(-1), lambda: (R(130, 700),)),
    "product": (lambda x: x.prod(-1), lambda: (torch.rand(64, 33) + .5,)),
    "mean and variance": (lambda x: (x.mean(-1), x.var(-1)), lambda: (R(13, 700),)),
    "variance of columns": (lambda x: x.var(0), lambda: (R(3000, 64),)),
    "norm": (lambda x: x.norm(dim=-1), lambda: (R(64, 33),)),
    "any and all": (lambda x: ((x > 2).any(-1), (x > -3).all(-1)), lambda: (R(64, 33),)),
    "maximum": (lambda x: x.amax(-1), lambda: (R(13, 700),)),
    "argmax": (lambda x: x.argmax(-1), lambda: (R(13, 700),)),
    "argmin of columns": (lambda x: x.argmin(0), lambda: (R(130, 70),)),
    "softmax": (lambda x: x.softmax(-1), lambda: (R(64, 1000),)),
    "softmax of columns": (lambda x: x.softmax(0), lambda: (R(64, 100),)),
    "log softmax": (lambda x: x.log_softmax(-1), lambda: (R(64, 1000),)),
    "cross entropy": (F.cross_entropy, lambda: (R(64, 100), I(0, 100, (64,)))),
    "layer norm of many short rows": (lambda x, w, b: F.layer_norm(x, (32,), w, b), lambda: (R(90, 32), R(32), R(32))),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (512,), w, b), lambda: (R(20, 512), R(512), R(512))),
    "rms norm": (lambda x, w: F.rms_norm(x, (512,), w), lambda: (R(20, 512), R(512))),
    "batch norm": (lambda x: F.batch_norm(x, None, None, training=True), lambda: (R(8, 16, 10, 10),)),
    "index": (lambda x, i: x[i], lambda: (R(50, 20), I(0, 50, (33,)))),
    "gather": (lambda x, i: x.gather(1, i), lambda: (R(50, 20), I(0, 20, (50, 7)))),
    "scatter": (lambda x, i, s: x.scatter(1, i, s), lambda: (R(50, 20), I(0, 20, (50, 1)), R(50, 1))),
    "scatter add": (lambda x, i, s: x.scatter_add(0, i, s), lambda: (R(50, 20), I(0, 50, (99, 20)), R(99, 20))),
    "index put": (lambda x, i, s: x.index_put((i,), s, accumulate=True), lambda: (R(50, 20), I(0, 50, (99,)), R(99, 20))),
    "embedding": (lambda w, i: F.embedding(i, w), lambda: (R(50, 20), I(0, 50, (9, 5)))),
    "masked fill": (lambda x, m: x.masked_fill(m, -9.), lambda: (R(64, 64), R(64, 64) > 0)),
    "bucketize": (torch.bucketize, lambda: (R(64, 64), R(10).sort()[0])),
    "cat": (lambda x, y: torch.cat([x, y * 2], 1), lambda: (R(64, 33), R(64, 10))),
    "stack": (lambda x, y: torch.stack([x, y], -1).sin(), lambda: (R(64, 33), R(64, 33))),
    "slices": (lambda x: torch.cat([x[:, ::2], x[:, 1::2].exp()], 0), lambda: (R(64, 64),)),
    "flip and roll": (lambda x: (x.flip(0, 1) * 2, x.roll(3, 1)), lambda: (R(64, 33),)),
    "transpose": (lambda x: x.t().contiguous() + 1, lambda: (R(64, 33),)),
    "unfold": (lambda x: x.unfold(1, 5, 2).sum(-1), lambda: (R(64, 33),)),
    "pad": (lambda x: F.pad(x, (1, 2, 3, 4), value=7.).cos(), lambda: (R(64, 33),)),
    "reflect": (lambda x: F.pad(x, (1, 2, 3, 4), mode="reflect"), lambda: (R(1, 64, 33),)),
    "lower triangle": (lambda x: x.tril() + torch.arange(64), lambda: (R(64, 64),)),
    "cumsum": (lambda x: x.cumsum(-1), lambda: (R(64, 33),)),
    "cumprod": (lambda x: x.cumprod(-1), lambda: (torch.rand(16, 33),)),
    "logcumsumexp": (lambda x: x.logcumsumexp(-1), lambda: (R(16, 33),)),
    "cummax": (lambda x: x.cummax(-1), lambda: (R(16, 33),)),
    "sort": (lambda x: x.sort(-1), lambda: (R(16, 30),)),
    "stable sort": (lambda x: torch.sort(x, stable=True, dim=-1, descending=True), lambda: (I(0, 9, (16, 20)),)),
    "sorted shares": (lambda x: torch.softmax(x, -1).sort(dim=-1, descending=True, stable=True), lambda: (R(5, 33),)),
    "topk": (lambda x: x.topk(5), lambda: (R(16, 64),)),
    "linear": (lambda x, w, b: F.relu(F.linear(x, w, b)), lambda: (R(64, 33), R(50, 33), R(50))),
    "batched product": (lambda x, y: torch.bmm(x, y).relu(), lambda: (R(4, 64, 33), R(4, 33, 50))),
    "attention": (F.scaled_dot_product_attention, lambda: tuple(R(2, 4, 32, 16) for _ in range(3))),
    "convolution": (lambda x, w: F.conv2d(x, w).relu(), lambda: (R(2, 3, 16, 16), R(8, 3, 3, 3))),
    "pooling": (lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 3)), lambda: (R(2, 3, 16, 16),)),
    "upsampling": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), lambda: (R(2, 3, 16, 16),)),
}
#: graphs that Inductor hands to torch's own operators, wholly
OUTSIDE = {"topk", "attention"}
LOOSE = {"bfloat16": 1e-2, "float16 softmax": 2e-3}


@pytest.mark.parametrize("name", GRAPHS)
def test_graph(name, seed):
    torch.manual_seed(seed)
    fn, inputs = GRAPHS[name]
    args = inputs()
    want = fn(*args)
    got, code = compiled(fn, *[a.clone() for a in args])
    assert "cpp_fused" not in code and (name in OUTSIDE or "@triton.jit" in code), "not Triton's code"
    tolerance = LOOSE.get(name, 1e-4)
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance * (10 if name == "long sum" else 1), equal_nan=True)


@pytest.mark.parametrize("name,fn,mean,std", [
    ("rand", lambda x: x + torch.rand_like(x), 0.5, 12**-0.5), ("randn", lambda x: x + torch.randn_like(x), 0, 1),
    ("randint", lambda x: torch.randint(0, 10, x.shape).double(), 4.5, (99 / 12)**0.5),
    ("dropout", lambda x: F.dropout(x + 1, 0.5), 1, 1)])
def test_random_numbers(name, fn, mean, std, seed):
    torch.manual_seed(seed)
    x = torch.zeros(200, 500)
    got, code = compiled(fn, x)
    assert "@triton.jit" in code
    assert abs(got.mean() - mean) < 0.03 and abs(got.std() - std) < 0.03
    assert not torch.equal(got, torch.compile(fn)(x)), "two calls, two draws"


class Block(nn.Module):
    """A transformer block: attention and an MLP, each behind a layer norm."""

    def __init__(self, width=64, heads=4):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)) * (width // self.heads)**-0.5
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        a = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        x = x + self.out(a.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


@pytest.mark.first(1)
@pytest.mark.parametrize("model,shape", [
    (lambda: nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10)), (16, 32)),
    (Block, (2, 24, 64))], ids=["mlp", "transformer"])
def test_models_forward_and_backward(model, shape, seed):
    torch.manual_seed(seed)
    m, x = model(), torch.randn(shape)
    out, code = compiled(m, x)
    assert "@triton.jit" in code and "cpp_fused" not in code
    want = m(x)
    torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-5)
    g = torch.randn_like(out)
    parameters = list(m.parameters())
    for a, b in zip(torch.autograd.grad(out, parameters, g), torch.autograd.grad(want, parameters, g)):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("fn,shapes", [(lambda x, y: (x @ y).relu(), ((64, 32), (32, 48))),
                                       (torch.bmm, ((2, 32, 16), (2, 16, 32)))], ids=["mm", "bmm"])
def test_matrix_product_templates(fn, shapes, seed):
    """max_autotune writes, times and chooses among Triton templates."""
    torch.manual_seed(seed)
    args = [torch.randn(s) for s in shapes]
    with inductor.patch(max_autotune=True, max_autotune_gemm_backends="TRITON", max_autotune_gemm_search_space="DEFAULT"):
        got, code = compiled(fn, *args)
    assert "triton_tem" in code
    torch.testing.assert_close(got, fn(*args), rtol=1e-4, atol=1e-4)


def test_dynamic_shapes(seed):
    torch.manual_seed(seed)
    f = torch.compile(lambda x: x.softmax(-1) + x.sum(-1, keepdim=True), dynamic=True)
    for shape in ((3, 50), (17, 333), (64, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(f(x), x.softmax(-1) + x.sum(-1, keepdim=True), rtol=1e-4, atol=1e-4)


def test_the_gradient_of_a_maximum_that_is_computed_anew(seed):
    """Backward divides by how many numbers are the maximum that forward left: what it computes anew has the same bits."""
    def fn(x):
        y = F.normalize(x, dim=3, eps=1e-3)
        v, m = torch.var_mean(y, (0, 1), correction=0, keepdim=True)
        y = (y - m) * (v + 1e-3).rsqrt()
        return (y + y.mean(0, keepdim=True) * y.amax(-1, keepdim=True).sigmoid()).exp().sum(0).log1p()

    torch.manual_seed(seed)
    x = R(2, 5, 9, 20)
    wide, own = x.double().requires_grad_(), x.clone().requires_grad_()
    want, got = fn(wide), torch.compile(fn)(own)
    grad = torch.randn_like(got)
    want.backward(grad.double())
    got.backward(grad)
    assert own.grad.isfinite().all() and (own.grad - wide.grad).norm() <= 1e-5 * wide.grad.norm()


def test_configurations_are_timed_shortly(monkeypatch, tmp_path):
    """Those of kernels for the CPU, five to sixty samples each, for which torch takes an eighth of a second; what else Inductor times stays as it is."""
    from torch._inductor.runtime import triton_heuristics as heuristics
    from triport.backends.cpu.plugin import benchmarker
    from triport.backends.cpu.plugin import inductor as mends

    compiled(lambda x: x + 1, R(8))
    assert isinstance(heuristics.benchmarker, mends.Timer), "it stands where kernels are launched"
    asked, own = [], benchmarker.benchmark

    def benchmark(fn, **options):
        asked.append(options)
        return own(fn, **options)

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # where nothing was chosen before
    monkeypatch.setattr(benchmarker, "benchmark", benchmark)
    monkeypatch.setattr(type(heuristics.benchmarker._torchs), "benchmark_cpu", None)
    x, y = R(300, 257), R(257, 300)
    out, _ = compiled(lambda x, y: (x + y.T).exp(), x, y)  # two tiles or more to choose from
    torch.testing.assert_close(out, (x + y.T).exp())
    assert len(asked) > 1 and all(o == {"rep": mends.REP, "return_mode": "median"} for o in asked)

    class Torchs:
        kind = "torch's"

        def benchmark(self, *args, **options):
            return args, options

    timer = mends.Timer(Torchs())
    assert timer.kind == "torch's" and timer.benchmark(len, device="cuda") == ((len,), {"device": "cuda"})
    assert timer.benchmark(len, device="cpu", rep=7) == ((len,), {"device": "cpu", "rep": 7})


@pytest.mark.parametrize("first", ["torch._inductor.codegen.cpu_device_op_overrides", "triton"])
def test_text_is_mended_before_a_kernel_is_loaded(first, tmp_path):
    """As where Inductor finds on disk which template it chose, and loads none before it has written what launches it."""
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(f"""
        import importlib
        importlib.import_module("{first}")
        import triton
        from torch._inductor.codegen.cpu_device_op_overrides import CpuDeviceOpOverrides
        assert "\\n" not in CpuDeviceOpOverrides().import_get_raw_stream_as("f") and CpuDeviceOpOverrides().device_guard(0) != "pass"
    """))
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env=dict(os.environ, CUDA_VISIBLE_DEVICES=""), timeout=HANGS)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.first(0)
def test_in_worker_processes(tmp_path):
    """Inductor's compile workers find the backend by its entry point too."""
    path = tmp_path / "workers.py"
    path.write_text(textwrap.dedent("""
        import os
        import shutil
        import torch
        import torch._inductor.config as config
        from torch._inductor.codecache import PyCodeCache
        from triport.backends.base import CompileError
        from triport.checking import checks
        config.cpu_backend = "triton"
        config.compile_threads = 2
        config.worker_start_method = "subprocess"

        if __name__ == "__main__":
            from torch._inductor.async_compile import AsyncCompile
            AsyncCompile.wait_pool_ready()
            x = torch.randn(50, 60)
            fns = [lambda x, k=k: (x * k).softmax(-1).exp() + k for k in range(1, 4)]
            for f in fns:
                torch.testing.assert_close(torch.compile(f)(x), f(x), rtol=1e-4, atol=1e-5)
            assert AsyncCompile.use_process_pool()
            print("compiled in workers")
            # what workers compiled comes back without its Python: checking it compiles it once more
            for f in fns:
                with checks("bounds"):
                    torch.testing.assert_close(torch.compile(f)(x), f(x), rtol=1e-4, atol=1e-5)
            torch._dynamo.reset()
            shutil.rmtree(os.environ["TORCHINDUCTOR_CACHE_DIR"])
            g = torch.compile(lambda x: (x * 9).softmax(-1))
            g(x)
            shutil.rmtree(os.environ["TORCHINDUCTOR_CACHE_DIR"])
            PyCodeCache.cache_clear()
            try:
                with checks("bounds"):
                    g(x)
            except CompileError as e:
                assert "has to be compiled once more" in str(e) and "torch.compiler.reset()" in str(e), e
                print("told")
    """))
    env = dict(os.environ, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "inductor"), TRITON_CACHE_DIR=str(tmp_path / "triton"),
               CUDA_VISIBLE_DEVICES="", TORCHINDUCTOR_FX_GRAPH_CACHE="0")
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env=env, timeout=HANGS)
    assert done.returncode == 0 and done.stdout.split("\n")[:2] == ["compiled in workers", "told"], done.stdout + done.stderr[-3000:]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16])
def test_small_integers_add_to_what_indices_choose(dtype, threads, seed):
    """Triton adds none of them atomically: torch does, of rows and of single elements, also where Inductor's C++ would add these."""
    torch.manual_seed(seed)
    x, v = torch.randint(0, 100, (40, 5)).to(dtype), torch.randint(0, 100, (30, 5)).to(dtype)
    i = torch.randint(0, 40, (30,))
    with inductor.patch({"cpu_backend": "triton", "compile_threads": 1, "fx_graph_cache": False, "cpp.threads": threads}):
        for fn in (lambda x, i, v: x.index_add(0, i, v), lambda x, i, v: x.index_put((i,), v, accumulate=True), lambda x, i, v: x.scatter_add(0, i[:, None].expand(30, 5), v),
                   lambda x, i, v: x.scatter_reduce(0, i[:, None].expand(30, 5), v, "sum"), lambda x, i, v: x.scatter(0, i[:, None].expand(30, 5), 3, reduce="add")):
            torch._dynamo.reset()
            assert torch.equal(torch.compile(fn)(x, i, v), fn(x, i, v))


@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_without_their_index(name, seed):
    """Nobody asks for the index: no kernel looks for it. With it both come of one reduction."""
    torch.manual_seed(seed)
    x = torch.randn(60, 70)
    x[3, 5], x[:, 9], x[7] = math.nan, math.inf, -math.inf
    with inductor.patch(cpu_backend="triton", compile_threads=1, fx_graph_cache=False):
        for fn, indices in ((lambda x: getattr(x, name)(-1)[0], False), (lambda x: getattr(x, name)(0, keepdim=True)[0] + 1, False), (lambda x: getattr(x, name)(1), True)):
            torch._dynamo.reset()
            got, code = compiled(fn, x)
            torch.testing.assert_close(got, type(got)(fn(x)) if indices else fn(x), rtol=0, atol=0, equal_nan=True)
            assert ("_with_index" in code) == indices


def test_kept_graphs_are_this_compilers(tmp_path, monkeypatch):
    """A graph on disk serves who made it, and not another version of this package."""
    from torch._dynamo.utils import counters
    from triport.backends.cpu.llvm import identity
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    x = torch.rand(100)  # positive: a sum that cancels shows that one rounding is not two

    def hits() -> int:
        torch._dynamo.reset()
        counters.clear()
        assert torch.allclose(torch.compile(lambda x: x * 3 + 1)(x), x * 3 + 1)
        return counters["inductor"]["fxgraph_cache_hit"]

    with inductor.patch(cpu_backend="triton", compile_threads=1, fx_graph_cache=True), torch._functorch.config.patch(enable_autograd_cache=False):
        assert (hits(), hits()) == (0, 1)
        monkeypatch.setattr(identity, "of", lambda target: "another")
        assert (hits(), hits()) == (0, 1)
