"""The cuda backend: code for GPUs that are not here, what is kept on disk, ops of one's own; on a GPU the kernels under compute-sanitizer."""

import re
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import torch
from conftest import unavailable
from triport import backends, ops
from triport.backends import cuda, nvrtc
from triport.backends.base import ArgumentError, CompileError, Error, Unavailable
from triport.bench import check
from triport.ops import cuda_op, extension_op, registry
from triport.tools.inspector import tools

needs_nvrtc = pytest.mark.skipif(bool(nvrtc.missing()), reason=str(nvrtc.missing()))
gpu = pytest.mark.skipif(bool(unavailable("cuda")), reason=str(unavailable("cuda")))
OPS = Path(ops.__file__).parent


def sass(file: str, kernel: str, arch: str) -> tuple[str, dict]:
    built = nvrtc.compile(OPS / file, kernel, arch)
    return tools.sass(built.cubin), tools.cubin_usage(built.cubin, built.name)


FLAT = [("square.cu", "square<{}>"), ("gelu.cu", "gelu<{}>"), ("add_relu.cu", "add_relu<{}>"), ("add_mul_act.cu", "add_mul_act<{}, 2>"),
        ("softmax.cu", "softmax_rows<{}, 4, 256, false>"), ("softmax.cu", "softmax_rows<{}, 2, 128, true>"), ("softmax.cu", "softmax_long_rows<{}>"),
        ("softmax.cu", "softmax_columns<{0}, Vec<{0}>, 256, 8>"), ("softmax.cu", "softmax_kept_rows<{}, 128, true>"),
        ("softmax.cu", "softmax_kept_rows<{}, 256, false>"), ("softmax.cu", "column_stats<{0}, Vec<{0}>, 512, 8, 2>"),
        ("softmax.cu", "column_scale<{0}, Vec<{0}>, 512, 8>"), ("matmul_softmax.cu", "scale_rows<{0}, Vec<{0}>>"),
        ("matmul_softmax.cu", "scale_columns<{0}, Vec<{0}>, 64>")]


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_75", "sm_90a"])
@pytest.mark.parametrize("element", ["float", "half", "bf16"])
@pytest.mark.parametrize("file,kernel", FLAT)
def test_memory_is_moved_16_bytes_at_a_time(file, kernel, element, arch):
    """And nothing is computed in double, and no more than two registers are spilled."""
    text, usage = sass(file, kernel.format(element), arch)
    assert re.search(r"LDG\.E\.128|LDGSTS\.\S*128", text) or "column_stats" in kernel and "LDG.E.128" in text
    assert "STG.E.128" in text or "column_stats" in kernel
    assert not re.search(r"\bD(ADD|MUL|FMA)\b", text)
    # the scale of add_mul_act arrives as a double
    assert not re.search(r"\.F64\b", re.sub(r"F2F\.F32\.F64", "", text))
    assert usage["stack, bytes"] <= 8 and usage["static shared memory, bytes"] <= cuda.BESIDE


@needs_nvrtc
@pytest.mark.parametrize("result", ["matmul_", "matmul_batch_", "product_exp_"])
@pytest.mark.parametrize("kernel,arch,instruction", [
    ("wgmma<half, 128, 256, 4, false, false, true{}>", "sm_90a", "HGMMA.64x256x16.F32"),
    ("wgmma<bf16, 128, 128, 4, true, true, true{}>", "sm_90a", "HGMMA.64x128x16.F32.BF16"),
    ("wgmma<half, 64, 128, 4, false, true, false{}>", "sm_90a", "HGMMA.64x128x16.F32"),
    ("mma<half, 128, 256, 2, 4, 64, 3, false, false, true{}>", "sm_80", "HMMA.16816.F32"),
    ("mma<bf16, 64, 64, 2, 2, 64, 3, true, true, false{}>", "sm_89", "HMMA.16816.F32.BF16"),
    ("mma<bf16, 128, 128, 2, 2, 64, 3, false, false, true{}>", "sm_120", "HMMA.16816.F32.BF16"),
    ("fma<float, 2, false, true, true{}>", "sm_86", "FFMA"), ("fma<double, 1, true, false, false{}>", "sm_80", "DFMA"),
    ("fma<half, 1, false, false, true{}>", "sm_75", "FFMA")])
def test_products_use_what_multiplies(kernel, arch, instruction, result):
    file = "matmul.cu" if result.startswith("matmul_") else "matmul_softmax.cu"
    for dim in ("",) if file == "matmul.cu" else (", 0", ", 1"):
        text, usage = sass(file, result + kernel.format(dim), arch)
        assert instruction in text
        assert usage["stack, bytes"] <= 64
        if "mma<" in kernel and "true{}" in kernel:
            assert "LDGSTS" in text


@needs_nvrtc
def test_integers_wrap():
    text, _ = sass("square.cu", "square<int>", "sm_80")
    assert "IMAD" in text and "LDG.E.128" in text


# --- what is kept ----------------------------------------------------------------------------------------------------

SAXPY = '''
#include "twice.cuh"
template <class T> __global__ void saxpy(const T* x, const T* y, double a, T* out, i64 n) {
    for (i64 i = i64(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += i64(gridDim.x) * blockDim.x)
        out[i] = narrow<T>(float(a) * wide(x[i]) + TWICE / 2 * wide(y[i]));
}
'''


@pytest.fixture
def saxpy(tmp_path):
    (tmp_path / "saxpy.cu").write_text(SAXPY)
    (tmp_path / "twice.cuh").write_text('#pragma once\n#include "common.cuh"\n#define TWICE 2\n')
    return tmp_path / "saxpy.cu"


@needs_nvrtc
def test_a_kernel_is_compiled_once_and_again_when_something_changed(saxpy, tmp_cache, monkeypatch):
    made = []
    compile_ = nvrtc.compile
    monkeypatch.setattr(nvrtc, "compile", lambda *a: made.append(a[1:3]) or compile_(*a))

    def build(kernel="saxpy<float>", arch="sm_80"):
        before = len(made)
        return nvrtc.built(saxpy, kernel, arch), len(made) - before

    first, n = build()
    assert n == 1 and first.cubin[:4] == b"\x7fELF" and "saxpy" in first.name
    again, n = build()
    assert n == 0 and (again.cubin, again.name) == (first.cubin, first.name)
    assert build("saxpy<half>")[1] == build(arch="sm_90a")[1] == 1
    header = saxpy.with_name("twice.cuh")
    header.write_text(header.read_text().replace("TWICE 2", "TWICE 4"))
    changed, n = build()
    assert n == 1 and changed.cubin != first.cubin
    saxpy.write_text(SAXPY + "// more\n")
    assert build()[1] == 1
    assert build()[1] == 0
    for damage in (lambda d: d[:100], lambda d: d[:-1] + bytes([d[-1] ^ 1]), lambda d: b""):
        for path in tmp_cache.rglob("kernel.cubin"):
            path.write_bytes(damage(path.read_bytes()))
        sound, n = build()
        assert n == 1 and sound.name == first.name
        assert build()[1] == 0


@needs_nvrtc
@pytest.mark.parametrize("source,kernel,text", [
    ("__global__ void f(float* x) { x[0] = y; }", "f", r'bad.cu\(1\): error: identifier "y" is undefined'),
    ("__global__ void f(float* x) {}", "g", "there is no function g"),
    ("__global__ void f(float* x) {}", "g<float>", "could not compile g<float> for sm_80"),
    ('#include "nowhere.h"\n', "f", "nowhere.h"),
    ("", "f", "could not compile f"),
])
def test_what_does_not_compile(tmp_path, source, kernel, text):
    (tmp_path / "bad.cu").write_text(source)
    with pytest.raises(CompileError, match=text) as e:
        nvrtc.compile(tmp_path / "bad.cu", kernel, "sm_80")
    assert str(tmp_path / "bad.cu") in str(e.value) and "NVRTC" in str(e.value)


@needs_nvrtc
def test_an_architecture_that_is_none(saxpy):
    with pytest.raises(CompileError, match="gpu-architecture"):
        nvrtc.compile(saxpy, "saxpy<float>", "sm_1")


def test_without_nvrtc(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    assert "triport[gpu]" in nvrtc.missing()
    (tmp_path / "f.cu").write_text("__global__ void f() {}")
    with pytest.raises(Unavailable, match="triport.gpu."):
        nvrtc.compile(tmp_path / "f.cu", "f", "sm_80")


# --- ops of one's own ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source,schema,text", [
    ("saxpy.cu", "(Tensor x) -> Tensor", "takes FILE.cu:FUNCTION"), ("saxpy.py:f", "(Tensor x) -> Tensor", "takes FILE.cu:FUNCTION"),
    ("nowhere.cu:f", "(Tensor x) -> Tensor", "there is no file"), ("saxpy.cu:f", "x -> y", "torch cannot read the schema"),
    ("saxpy.cu:f", "(str x) -> Tensor", "x is str"), ("saxpy.cu:f", "(int n) -> Tensor", "returns one new Tensor"),
    ("saxpy.cu:f", "(Tensor x) -> (Tensor, Tensor)", "returns one new Tensor"), ("saxpy.cu:f", "(Tensor(a!) x) -> Tensor", "one new Tensor")])
def test_what_is_no_op(saxpy, source, schema, text):
    with pytest.raises(Error, match=re.escape(text)):
        cuda_op(str(saxpy.parent / source), schema)


def test_a_cuda_op_on_cpu_tensors(saxpy):
    op = cuda_op(f"{saxpy}:saxpy<{{T}}>", "(Tensor x, Tensor y, float a) -> Tensor", name="saxpy_cpu")
    with pytest.raises(ArgumentError, match="saxpy_cpu: argument 'x' is on cpu; this op is CUDA C"):
        op(torch.ones(3), torch.ones(3), 2.0)
    with torch.device("meta"):
        assert op(torch.ones(3, 4), torch.ones(3, 4), 2.0).shape == (3, 4)  # its shape is known without a GPU


def test_a_compiled_function_as_an_op():
    made = []

    def plus(x, n):
        made.append(n)
        return x + n

    op = extension_op(plus, "(Tensor x, int n) -> Tensor", name="plus_from_elsewhere")
    x = torch.randn(5, 7)
    assert torch.equal(op(x, 3), x + 3)
    torch.library.opcheck(op, (x, 3))
    f = torch.compile(lambda x: op(x, 2) * 2, fullgraph=True, backend="aot_eager")
    assert torch.equal(f(x), (x + 2) * 2)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as prof:
        op(x, 1)
    assert any(e.key == "triport_user::plus_from_elsewhere" for e in prof.key_averages())
    with pytest.raises(Error, match="has no name"):
        extension_op(lambda x: x, "(Tensor x) -> Tensor")


@needs_nvrtc
@pytest.mark.parametrize("element", ["float", "half", "bf16", "double"])
def test_the_documentations_op(element):
    docs = Path(__file__).resolve().parent.parent / "docs"
    op = registry.get(f"{docs / 'my_cuda_op.py'}:my_op")
    assert op.backends == ("cuda",) and not backends.get("triton-cpu").takes(op) and backends.get("torch").takes(op)
    assert nvrtc.compile(docs / "saxpy.cu", f"saxpy<{element}>", "sm_80").cubin


@gpu
@pytest.mark.gpu
def test_a_users_kernel(saxpy):
    op = cuda_op(f"{saxpy}:saxpy<{{T}}>", "(Tensor x, Tensor y, float a) -> Tensor", name="saxpy_gpu")
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x, y = torch.randn(100, 37, device="cuda").to(dtype), torch.randn(37, 100, device="cuda").to(dtype).T
        assert check.error(op(x, y, 2.5), 2.5 * x.double() + y.double()) < 8e-3
    assert op(x[:0], y[:0], 1.0).shape == (0, 37)
    torch.library.opcheck(op, (x, y, 2.5))
    f = torch.compile(lambda x, y: op(x, y, 1.0) + 1, fullgraph=True)
    assert check.error(f(x, y), (x.double() + y.double()).to(x.dtype).double() + 1) < 8e-3
    with pytest.raises(ArgumentError, match="'y' is on cpu"):
        op(x, y.cpu(), 1.0)
    with pytest.raises(ArgumentError, match="argument 'x' has dtype bool"):
        op(x > 0, y, 1.0)


@gpu
@pytest.mark.gpu
def test_a_load_inline_kernel():
    if not shutil.which("nvcc") or not shutil.which("ninja"):
        pytest.skip("load_inline needs nvcc and ninja")
    from torch.utils.cpp_extension import load_inline
    module = load_inline("triport_test_inline", "torch::Tensor triple(torch::Tensor x);", textwrap.dedent("""
        __global__ void triple_kernel(const float* x, float* out, long n) {
            long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
            if (i < n) out[i] = 3.0f * x[i];
        }
        torch::Tensor triple(torch::Tensor x) {
            auto out = torch::empty_like(x);
            triple_kernel<<<(x.numel() + 255) / 256, 256>>>(x.data_ptr<float>(), out.data_ptr<float>(), x.numel());
            return out;
        }"""), functions=["triple"])
    op = extension_op(module.triple, "(Tensor x) -> Tensor")
    x = torch.randn(1000, device="cuda")
    assert torch.equal(op(x), 3 * x)
    torch.library.opcheck(op, (x,))


# --- launches --------------------------------------------------------------------------------------------------------


@gpu
@pytest.mark.gpu
def test_launches_are_on_torchs_stream_and_are_captured():
    x = torch.randn(1 << 20, device="cuda")
    with backends.use("cuda"):
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            y = x * 2  # not there yet when the launch is queued
            got = ops.square(y)
        side.synchronize()
        assert torch.equal(got, 4 * x * x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = ops.gelu(x)
        x.copy_(torch.randn_like(x))
        graph.replay()
        assert check.error(out, registry.get("gelu").expected(x)) < 2e-6


@gpu
@pytest.mark.gpu
def test_launches_from_threads():
    failed = []

    def work(seed):
        try:
            g = torch.Generator().manual_seed(seed)
            with backends.use("cuda"):
                for k in range(20):
                    x = torch.randn(50 + k, 37, generator=g).cuda()
                    assert check.error(ops.softmax(x, 0), torch.softmax(x.double(), 0)) < 2e-6
                    assert check.error(ops.matmul(x, x.T), x.double() @ x.double().T) < 2e-6
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=work, args=(s,)) for s in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not failed


@gpu
@pytest.mark.gpu
def test_the_profiler_shows_op_kernel_and_backend():
    x = torch.randn(100, 100, device="cuda")
    with torch.profiler.profile() as prof, backends.use("cuda"):
        ops.gelu(x)
        torch.cuda.synchronize()
    names = {e.key for e in prof.key_averages()}
    assert "triport::gelu_by" in names and any(n.startswith("gelu<float>[cuda] grid(") for n in names)
    assert any(re.search(r"\bgelu<float>\(", n) for n in names)  # the kernel itself, on the GPU


@gpu
@pytest.mark.gpu
def test_a_launch_that_fails_is_said(tmp_path):
    (tmp_path / "f.cu").write_text("__global__ void f(float* x) {}")
    with pytest.raises(Error, match="launching f as"):
        cuda.launch(tmp_path / "f.cu", "f", (1,), 4096, torch.zeros(1, device="cuda"))


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_compute_sanitizer(tool, tmp_path):
    """No access outside of what was allocated, no race in shared memory: every kernel, at sizes that fit nothing."""
    if not shutil.which("compute-sanitizer"):
        pytest.skip("compute-sanitizer is not installed; it comes with the CUDA toolkit")
    script = tmp_path / "all.py"
    script.write_text(textwrap.dedent("""
        import torch
        from triport import backends, ops
        with backends.use("cuda"):
            for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
                def t(*shape, offset=0):
                    n = offset + torch.Size(shape).numel()
                    return torch.randn(n, device="cuda").to(dtype)[offset:].view(shape)
                for x in (t(37, 131), t(64, 256), t(3, 1001, offset=3)):
                    ops.square(x), ops.gelu(x), ops.add_relu(x, x[0]), ops.add_mul_act(x, x, x[0]), ops.add_mul_act_(x, x, x[0].clone())
                for x in (t(5, 100), t(3, 781), t(3, 3001), t(2, 9000, offset=1), t(1, 70000)):
                    ops.softmax(x)
                for x in (t(300, 40), t(1823, 33), t(700, 64), t(40, 3, 8), t(12000, 5, offset=1)):
                    ops.softmax(x, 0)
                for m, k, n in ((37, 65, 131), (130, 96, 264), (200, 33, 72)):
                    a, b = t(m, k), t(k, n)
                    for p, q in ((a, b), (t(k, m).T, b), (a, t(n, k).T)):
                        ops.matmul(p, q), ops.matmul_softmax(p, q, 0), ops.matmul_softmax(p, q, -1)
            torch.cuda.synchronize()
        print("done")
    """))
    import os
    p = subprocess.run(["compute-sanitizer", "--tool", tool, "--error-exitcode", "7", "--report-api-errors", "no", sys.executable,
                        str(script)], capture_output=True, text=True, timeout=900, env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})
    assert p.returncode == 0 and "done" in p.stdout, p.stdout[-3000:] + p.stderr[-2000:]
