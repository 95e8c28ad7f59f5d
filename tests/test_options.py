"""Launch options and loop hints that GPU backends of Triton know: taken, and without effect."""

import dataclasses
import importlib
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triport.backends.cpu import compiler


def known_to_gpus():
    """(name, default) of the fields of the installed NVIDIA and AMD option classes."""
    found = {}
    for module, cls in (("nvidia", "CUDAOptions"), ("amd", "HIPOptions")):
        try:
            options = getattr(importlib.import_module(f"triton.backends.{module}.compiler"), cls)
        except ImportError:
            continue
        for f in dataclasses.fields(options):
            found.setdefault(f.name, None if f.default is dataclasses.MISSING else f.default)
    return found


@triton.jit
def double_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * 2, mask=offs < n)


def launch(**options):
    x, out = torch.arange(77.), torch.zeros(77)
    compiled = double_kernel[(3,)](x, out, 77, BLOCK=32, **options)
    assert torch.equal(out, x * 2)
    return compiled


def test_every_option_of_the_installed_gpu_backends_is_taken_and_changes_nothing():
    names = known_to_gpus()
    assert {"maxnreg", "waves_per_eu", "matrix_instr_nonkdim"} <= names.keys()
    plain = launch().hash
    for name, default in names.items():
        assert launch(**{name: default}).hash == plain or name in compiler._HEEDED, name
    assert launch(maxnreg=64, waves_per_eu=2, matrix_instr_nonkdim=16, kpack=2, num_warps=8, num_stages=5).hash == plain


@pytest.mark.parametrize("name", ["maxreg", "wave_per_eu", "tile"])
def test_an_option_that_nobody_knows_is_named(name):
    with pytest.raises(KeyError, match=f"{name} was specified but unrecognised"):
        launch(**{name: 1})


@pytest.fixture
def fresh_options():
    compiler.gpu_options.cache_clear()
    yield
    compiler.gpu_options.cache_clear()


def test_options_are_those_of_whatever_backend_is_installed(monkeypatch, fresh_options):
    """A backend of a Triton to come, with an option that nobody knows today."""
    from triton.backends import backends

    @dataclasses.dataclass(frozen=True)
    class FutureOptions:
        tensor_memory_banks: int = 3
        of_its_own: dict = dataclasses.field(default_factory=dict)

    module = types.ModuleType("a_backend_to_come")
    module.FutureOptions = FutureOptions
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(KeyError, match="tensor_memory_banks"):
        launch(tensor_memory_banks=3)
    compiler.gpu_options.cache_clear()
    monkeypatch.setitem(backends, "future", types.SimpleNamespace(
        compiler=type("Compiler", (), {"__module__": module.__name__, "supports_target": staticmethod(lambda target: False)}),
        driver=type("Driver", (), {"is_active": staticmethod(lambda: False)})))
    launch(tensor_memory_banks=7, of_its_own={})


def test_without_the_gpu_backends_their_options_are_known(monkeypatch, fresh_options):
    for module in ("nvidia", "amd"):
        monkeypatch.setitem(sys.modules, f"triton.backends.{module}.compiler", types.ModuleType(module))
    assert compiler.gpu_options()["maxnreg"] is None and "num_buffers" not in compiler.gpu_options()
    double_kernel.device_caches.clear()
    launch(maxnreg=64, kpack=2)


@triton.jit
def hints_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    for i in tl.range(0, n, BLOCK, num_stages=3, warp_specialize=True, flatten=True, loop_unroll_factor=2, disallow_acc_multi_buffer=True,
                      disable_licm=True):
        offs = i + tl.arange(0, BLOCK)
        tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) + n, mask=offs < n)


def test_hints_of_loops_are_taken():
    x, out = torch.randn(1003), torch.zeros(1003)
    hints_kernel[(1,)](x, out, 1003, BLOCK=64)
    assert torch.equal(out, x + 1003)


def configs():
    """A list as programs have it that was tuned for GPUs of both makers."""
    nvidia = [triton.Config({"BM": m, "BN": n, "BK": k, "GROUP": 4}, num_stages=s, num_warps=w, maxnreg=r)
              for m, n, k, s, w, r in [(64, 32, 32, 4, 4, None), (32, 64, 16, 5, 2, 168)]]
    amd = [triton.Config({"BM": m, "BN": n, "BK": k, "GROUP": 4, "matrix_instr_nonkdim": i, "waves_per_eu": v, "kpack": 2},
                         num_warps=4, num_stages=0) for m, n, k, i, v in [(32, 32, 32, 16, 2), (64, 64, 16, 32, 3)]]
    return nvidia + amd


@triton.autotune(configs=configs(), key=["M", "N", "K"])
@triton.jit
def grouped_kernel(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
                   BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, ACTIVATION: tl.constexpr):
    """A product whose programs walk the tiles in groups of rows, with the promises that such kernels make."""
    rows, cols = tl.cdiv(M, BM), tl.cdiv(N, BN)
    pid = tl.program_id(axis=0)
    first = pid // (GROUP * cols) * GROUP
    high = min(rows - first, GROUP)
    row, col = first + pid % (GROUP * cols) % high, pid % (GROUP * cols) // high
    tl.assume(row >= 0)
    tl.assume(col >= 0)
    tl.assume(stride_am > 0)
    tl.assume(stride_bn > 0)
    i, j, k = (row * BM + tl.arange(0, BM)) % M, (col * BN + tl.arange(0, BN)) % N, tl.arange(0, BK)
    a, b = a_ptr + i[:, None] * stride_am + k[None, :] * stride_ak, b_ptr + k[:, None] * stride_bk + j[None, :] * stride_bn
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(0, tl.cdiv(K, BK)):
        acc = tl.dot(tl.load(a, mask=k[None, :] < K - step * BK, other=0.0),
                     tl.load(b, mask=k[:, None] < K - step * BK, other=0.0), acc)
        a += BK * stride_ak
        b += BK * stride_bk
    if ACTIVATION == "leaky":
        acc = tl.where(acc >= 0, acc, 0.01 * acc)
    i, j = row * BM + tl.arange(0, BM), col * BN + tl.arange(0, BN)
    tl.store(c_ptr + i[:, None] * stride_cm + j[None, :] * stride_cn, acc.to(tl.float16), mask=(i[:, None] < M) & (j[None, :] < N))


@pytest.mark.parametrize("activation", ["", "leaky"])
def test_a_product_tuned_for_gpus_of_both_makers(seed, activation):
    """The pattern of Triton's tutorial on matrix products."""
    torch.manual_seed(seed)
    M, N, K = 197, 131, 173
    a, b, c = torch.randn(M, K).half(), torch.randn(K, N).half(), torch.empty(M, N, dtype=torch.float16)
    grouped_kernel[lambda meta: (triton.cdiv(M, meta["BM"]) * triton.cdiv(N, meta["BN"]),)](
        a, b, c, M, N, K, *a.stride(), *b.stride(), *c.stride(), ACTIVATION=activation)
    right = a.double() @ b.double()
    if activation:
        right = torch.nn.functional.leaky_relu(right, 0.01)
    error = (c.double() - right).norm() / right.norm()
    assert error < 4e-4, error  # half of fp16's spacing


TUTORIALS = os.environ.get("TRIPORT_TUTORIALS", "")


@pytest.mark.skipif(not TUTORIALS, reason="TRIPORT_TUTORIALS names no folder with Triton's tutorials (python/tutorials of its repository)")
def test_the_tutorial_itself(tmp_path):
    """Triton's 03-matrix-multiplication.py as it is; the plots at its end are not drawn."""
    run = ("import runpy, sys, triton.testing; triton.testing.Mark.run = lambda self, *args, **kwargs: None; "
           "runpy.run_path(sys.argv[1], run_name='__main__')")
    p = subprocess.run([sys.executable, "-c", run, str(Path(TUTORIALS) / "03-matrix-multiplication.py")], capture_output=True, text=True,
                       timeout=600, env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_DEFAULT_BACKEND": "cpu"})
    assert p.returncode == 0, p.stderr[-2000:]
    assert "Triton and Torch match" in p.stdout and "differ" not in p.stdout, p.stdout
