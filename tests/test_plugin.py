"""What Triton and programs written for it meet of this backend beside kernels: modules, targets, printing, promises."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource
from triton.language.extra.cpu import libdevice
from triton.language.extra.cpu.libdevice import atan as arctangent


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
