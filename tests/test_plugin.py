"""What Triton and programs written for it meet of this backend beside kernels: modules, targets, printing, promises."""

import os
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource
from triton.language.extra.cpu import libdevice
from triton.language.extra.cpu.libdevice import atan as arctangent
from triport.backends import active


def program(tmp_path, text, **env):
    """Run a file in a process of its own; what it prints."""
    path = tmp_path / "program.py"
    path.write_text("import torch, triton, triton.language as tl\n" + textwrap.dedent(text))
    p = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=240, cwd=tmp_path, env={**os.environ, **env})
    assert p.returncode == 0, p.stderr[-2000:]
    return p.stdout


# --- modules and targets -------------------------------------------------------------------------------------------------------


@triton.jit
def libdevice_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + i, libdevice.pow(libdevice.tanh(x), 3.0) + arctangent(x) + libdevice.rsqrt(x * x + 1))


def test_libdevice_of_cpu_builds_of_triton(seed):
    torch.manual_seed(seed)
    x, out = torch.randn(64), torch.empty(64)
    libdevice_kernel[(1,)](x, out, 64)
    d = x.double()
    right = d.tanh() ** 3 + d.atan() + (d * d + 1).rsqrt()
    assert (out - right).norm() / right.norm() < 1e-6


def test_libdevice_has_the_names_of_cpu_builds_of_triton():
    """The functions that triton-cpu's module of this name has."""
    names = ("acos acosh asin asinh atan atanh cbrt ceil cos cosh erf exp exp2 expm1 floor fmod isinf isnan log log10 log1p log2 pow "
             "rsqrt signbit sin sinh sqrt tan tanh trunc").split()
    assert set(names) <= set(libdevice.__all__)
    assert all(callable(getattr(libdevice, n)) for n in libdevice.__all__)


def test_ways_to_import_it(tmp_path):
    lines = ["from triton.language.extra.cpu import libdevice as l", "import triton.language.extra.cpu.libdevice as l",
             "from triton.language.extra import cpu; l = cpu.libdevice", "import triton.language.extra.cpu; l = tl.extra.cpu.libdevice"]
    forget = "import sys; [sys.modules.pop(m) for m in list(sys.modules) if 'extra.cpu' in m]; vars(tl.extra).pop('cpu', None)"
    told = program(tmp_path, "\n".join(f"{line}; print(l.fmod.__name__); {forget}" for line in lines))
    assert told.split() == ["fmod"] * 4


@pytest.mark.parametrize("name", ["backends.dispatch.drivers", "backends.cpu.lowered"])
def test_what_imports_our_driver_is_imported_first(name, tmp_path):
    """Triton imports the driver while it is imported itself."""
    p = subprocess.run([sys.executable, "-c", f"import triport.{name}, triton; print(triton.backends.backends['cpu'].driver.__name__)"], capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert p.stdout.split() == ["CPUDriver"], p.stderr[-2000:]


def test_modules_of_another_package_come_first(tmp_path):
    """A Triton that brings `triton.language.extra.cpu` itself keeps its own."""
    text = f"""
        import triton.language.extra as extra
        extra.__path__.append({str(tmp_path / "extra")!r})
        from triton.language.extra.cpu import libdevice
        print(libdevice)
    """
    (tmp_path / "extra" / "cpu").mkdir(parents=True)
    (tmp_path / "extra" / "cpu" / "__init__.py").write_text("libdevice = 'of its own'")
    assert "of its own" in program(tmp_path, text)
    with pytest.raises(ModuleNotFoundError):
        import triton.language.extra.cpu.tle_ops  # noqa: F401  (what others have beside it)


@triton.jit
def fill_kernel(x_ptr, N: tl.constexpr):
    tl.store(x_ptr + tl.program_id(0) * N + tl.arange(0, N), 1.0)


@pytest.mark.parametrize("arch", [0, "0", "", None, "native"])
def test_a_target_without_an_architecture_is_this_cpu(arch):
    source = ASTSource(fn=fill_kernel, signature={"x_ptr": "*fp32", "N": "constexpr"}, constexprs={"N": 8})
    compiled = triton.compile(source, target=GPUTarget("cpu", arch, 0))
    x = torch.zeros(8)
    compiled[(1, 1, 1)](x, 8)
    assert torch.equal(x, torch.ones(8))


def test_hosts_can_divide_by_the_warp_size():
    assert triton.runtime.driver.active.get_current_target().warp_size == 1
    assert fill_kernel.warmup(torch.float32, N=8, grid=(1,), num_warps=8).metadata.warp_size == 1


# --- printing ------------------------------------------------------------------------------------------------------------------

PRINT = """
    @triton.jit
    def k(x_ptr, N: tl.constexpr):
        tl.device_print("v", tl.load(x_ptr + tl.arange(0, N)), hex=True)
    @triton.jit
    def s(x_ptr):
        tl.device_print("s", tl.load(x_ptr), hex=True)
    values = [0.0, -1.5, 3.140625, 65504.0]
    for d in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        k[(1,)](torch.tensor(values, dtype=torch.float64).to(d), 4)
    k[(1,)](torch.tensor([float("inf"), float("-inf"), float("nan"), 2.0**-140]), 4)
    k[(1,)](torch.tensor([1.0, -2.0]).to(torch.float8_e5m2), 2)
    k[(1,)](torch.tensor([-1, 77], dtype=torch.int16), 2)
    s[(1,)](torch.tensor([0.1]))
"""


def test_hexadecimal_floats_are_printed_exactly(tmp_path):
    """As Triton's GPU backends print them: %a of the value as a double, the bits of fp8, 0x... of integers."""
    out = program(tmp_path, PRINT)
    told = re.findall(r"pid \(0, 0, 0\) idx \(\d*\) [vs]: (\S+)", out)
    assert len(told) == 25, out
    for n in range(4):
        d = (torch.float16, torch.bfloat16, torch.float32, torch.float64)[n]
        right = torch.tensor([0.0, -1.5, 3.140625, 65504.0], dtype=torch.float64).to(d).double().tolist()
        assert [float.fromhex(t) for t in told[4 * n:4 * n + 4]] == right and all("0x" in t for t in told[4 * n:4 * n + 4])
    assert told[16:18] == ["inf", "-inf"] and "nan" in told[18] and float.fromhex(told[19]) == 2.0**-140
    assert told[20:24] == ["0x3c", "0xc0", "0xffff", "0x004d"]
    assert float.fromhex(told[24]) == float(np.float32(0.1))


# --- what is passed on to LLVM, and out of it ----------------------------------------------------------------------------------


@triton.jit
def promise_kernel(x_ptr, out_ptr, n, stride, BRANCH: tl.constexpr, N: tl.constexpr):
    tl.assume(n < 100)
    if BRANCH:
        if n > 3:
            tl.assume(stride == 5)
    else:
        tl.assume(stride == 5)
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i * stride, mask=i < n, other=-1.0), mask=i < n)


def test_promises_reach_llvm():
    x, out = torch.arange(40.), torch.zeros(8)
    for branch in (False, True):
        llir = promise_kernel.warmup(x, out, 7, 5, branch, 8, grid=(1,)).asm["llir"]
        assert re.search(r"call void @llvm\.assume\(i1 %", llir), llir
        assert branch or re.search(r"mul .*i64 %\w+, 20\b", llir), f"a step that is known is not used:\n{llir}"
        promise_kernel[(1,)](x, out, 7, 5, branch, 8)
        assert torch.equal(out[:7], x[:35:5])


def test_a_promise_holds_where_it_is_made():
    """Where control does not come to it, nothing is promised."""
    x, out = torch.arange(40.), torch.zeros(8)
    promise_kernel[(1,)](x, out, 3, 2, True, 8)
    assert torch.equal(out[:3], x[:6:2])


@triton.jit
def promise_in_a_loop_kernel(x_ptr, out_ptr, n, N: tl.constexpr):
    acc = tl.zeros((N,), tl.float32)
    for r in range(n):
        tl.assume(r < 3)
        tl.assume(True)
        acc += tl.load(x_ptr + r * N + tl.arange(0, N))
    tl.store(out_ptr + tl.arange(0, N), acc)


@pytest.mark.parametrize("n", [0, 1, 3])
def test_promises_in_loops(n):
    x, out = torch.arange(4 * 16.), torch.zeros(16)
    promise_in_a_loop_kernel[(1,)](x, out, n, 16)
    assert torch.equal(out, x.view(4, 16)[:n].sum(0))


def test_the_reproducer_holds_all_passes(tmp_path):
    text = """
        @triton.jit
        def k(x_ptr, N: tl.constexpr):
            tl.store(x_ptr + tl.arange(0, N), 1.0)
        k[(1,)](torch.zeros(8), 8)
    """
    program(tmp_path, text, TRITON_REPRODUCER_PATH=str(tmp_path / "r"), TRITON_CACHE_DIR=str(tmp_path / "cache"))
    told = "".join(p.read_text() for p in tmp_path.glob("r*"))
    for name in ("inline", "canonicalize", "triton-combine", "triton-reorder-broadcast", "cse", "triton-licm", "symbol-dce", "triton-loop-unroll"):
        assert name in told, (name, told)


def test_kernels_go_when_python_has_ended(monkeypatch):
    """Nothing can be imported any more, and Triton asks the active driver to unload what is left."""
    driver = active.PerThread(None)
    monkeypatch.setitem(sys.modules, "triton", None)
    for module in (active.Held(), object()):
        driver.utils.unload_module(module)
