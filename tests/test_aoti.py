"""AOTInductor with `torch._inductor.config.cpu_backend = "triton"`: the libraries that it loads of each kernel, called as torch calls them, with and without
torch; and a model with all of it, in a process without Python."""

import ctypes
import os
import shutil
import signal
import subprocess
import textwrap
import types
import zipfile
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from conftest import HANGS
from triport import ops
from triport.backends.base import Unsupported
from triport.backends.cpu.plugin import claims, inductor as mends
from triport.backends.spine import aoti
from triport.bench.check import error
from triton.compiler import ASTSource

TORCH = Path(torch.__file__).parent
COMPILER = shutil.which("cc") or shutil.which("gcc")
with_launchers = pytest.mark.skipif(not (TORCH / aoti._HEADER).exists(), reason="this torch's AOTInductor has no launches of Triton's kernels for the CPU")


@triton.jit
def mixed_kernel(x, y, out, n, k, a, d, flag, nothing, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    j = (tl.program_id(1) * 2 + tl.program_id(2)).to(tl.int64) * n + i
    v = tl.load(x + j, i < n).to(tl.float64) * a + d + k.to(tl.float64)
    if flag:
        v += tl.load(y + j, i < n)
    tl.store(out + j, v, i < n)


@triton.jit
def guarded_kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, i < n, other=0)
    tl.device_assert(v < 100, "too large")
    tl.store(out + i, v + 1, i < n)


@triton.jit
def shift_kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n), i < n)


def made(kernel, signature: dict, constants: dict, by_inductor=False, **options):
    """The libraries' bytes of a kernel, by extension."""
    source = ASTSource(kernel, {**signature, **dict.fromkeys(constants, "constexpr")}, constants)
    return aoti.libraries(triton.compile(source, target=claims.target("native"), options=options), written_by_inductor=by_inductor)


class Launched:
    """A kernel's libraries, opened and called as torch's generated C++ does. Values are tensors, or C numbers; None for what the code has already."""

    def __init__(self, libraries: dict, name: str, folder):
        paths = {}
        for n, data in enumerate(libraries.values()):
            paths[n] = folder / f"{n}.so"
            paths[n].write_bytes(data)
        kernel, launcher = (ctypes.CDLL(str(p)) for p in paths.values())
        self.symbol = ctypes.cast(getattr(kernel, name), ctypes.c_void_p)
        self.run = launcher.run_from_nativert
        self.run.restype, self.run.argtypes = None, [*[ctypes.c_uint32] * 3, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]

    def __call__(self, grid, *values, threads=1):
        args = (ctypes.c_void_p * len(values))(*(None if v is None else v.data_ptr() if isinstance(v, torch.Tensor) else ctypes.addressof(v) for v in values))
        self.run(*grid, threads, args, self.symbol)


MIXED = {"x": "*fp32", "y": "*fp64", "out": "*fp64", "n": "i32", "k": "i64", "a": "fp32", "d": "fp64", "flag": "i1"}


@with_launchers
def test_every_kind_of_argument_and_a_grid_of_three_dimensions(tmp_path, seed):
    torch.manual_seed(seed)
    run = Launched(made(mixed_kernel, MIXED, {"nothing": None, "BLOCK": 16}), "mixed_kernel", tmp_path)
    for n, flag in ((37, 1), (16, 0), (1, 1)):
        x, y, out = torch.randn(6, n), torch.randn(6, n, dtype=torch.float64), torch.full((7, n), 5.0, dtype=torch.float64)
        numbers = ctypes.c_int64(n), ctypes.c_int64(-(1 << 40)), ctypes.c_float(0.5), ctypes.c_double(1 / 3), ctypes.c_int64(flag)
        for threads in (1, 2):
            out[:6] = 5
            run((triton.cdiv(n, 16), 3, 2), x, y, out, *numbers, None, None, threads=threads)
            assert torch.equal(out[:6], x.double() * 0.5 + 1 / 3 - (1 << 40) + flag * y) and (out[6] == 5).all()
    run((0, 3, 2), x, y, None, *numbers, None, None)  # no programs


@with_launchers
def test_pointers_of_a_users_kernel_may_be_into_one_tensor_and_sizes_be_any(tmp_path):
    """A kernel of Inductor's has buffers of its own; it has a second version for sizes beyond what the first takes for granted."""
    types = {"x": "*fp32", "out": "*fp32", "n": "i32"}
    libraries = made(shift_kernel, types, {"BLOCK": 64})
    x = torch.arange(65.0)
    Launched(libraries, "shift_kernel", tmp_path)((1, 1, 1), x, x[1:], ctypes.c_int64(64), None)
    assert torch.equal(x[1:], torch.arange(64.0)), "all is read before anything is written"
    own = made(shift_kernel, types, {"BLOCK": 64}, by_inductor=True)
    assert own["launcher.so"] == libraries["launcher.so"], "threads and scratch are one launcher's"
    assert own["so"] != libraries["so"]
    (tmp_path / "own").mkdir()
    out = torch.zeros(128)
    Launched(own, "shift_kernel", tmp_path / "own")((1, 1, 1), torch.ones(64), out, ctypes.c_int64((1 << 31) - 1), None)
    assert out.sum() == 64


@with_launchers
def test_a_forked_child_has_threads_of_its_own(tmp_path):
    """Those of OpenMP are gone there, and it would wait for them."""
    run = Launched(made(shift_kernel, {"x": "*fp32", "out": "*fp32", "n": "i32"}, {"BLOCK": 64}), "shift_kernel", tmp_path)
    n = 1 << 21
    x, out = torch.ones(n), torch.zeros(n)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run((n // 64, 1, 1), x, out, ctypes.c_int64(n), None)
        out.zero_()
        child = os.fork()
        if not child:
            signal.alarm(60)
            run((n // 64, 1, 1), x, out, ctypes.c_int64(n), None)
            os._exit(0 if out[0] == out[-1] == 1 else 1)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        torch.set_num_threads(before)


@with_launchers
@pytest.mark.skipif(COMPILER is None, reason="no C compiler for a program that calls them (apt-get install g++)")
def test_neither_python_nor_torch_is_asked_for(tmp_path):
    """A C program that has neither: threads are the launcher's own, and an assertion that does not hold ends the process with its text."""
    for name, data in made(guarded_kernel, {"x": "*fp32", "out": "*fp32", "n": "i32"}, {"BLOCK": 32}, debug=True).items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "main.c").write_text(textwrap.dedent(r"""
        #include <dlfcn.h>
        #include <stdint.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        static float x[100000], out[100001];
        int main(int argc, char **argv) {
          void *kernel = dlsym(dlopen("./so", RTLD_NOW | RTLD_LOCAL), "guarded_kernel");
          void (*run)(uint32_t, uint32_t, uint32_t, int, void **, void *) = dlsym(dlopen("./launcher.so", RTLD_NOW | RTLD_LOCAL), "run_from_nativert");
          int64_t n = 100000;
          void *args[] = {x, out, &n, NULL};
          for (int k = 0; k < n; k++) x[k] = k % 90;
          for (int again = 0; again < 20; again++) run((n + 31) / 32, 1, 1, 3, args, kernel);
          for (int k = 0; k < n; k++) if (out[k] != k % 90 + 1) return 1;
          if (out[n]) return 2;
          char line[4096];
          for (FILE *maps = fopen("/proc/self/maps", "r"); fgets(line, sizeof line, maps);)
            if (strstr(line, "libpython") || strstr(line, "libtorch") || strstr(line, "libgomp")) return 3;
          puts("right");
          fflush(stdout);
          x[70] = 100;
          run((n + 31) / 32, 1, 1, 3, args, kernel);
          return 4;
        }"""))
    subprocess.run([COMPILER, "-O1", "main.c", "-o", "main", "-ldl"], cwd=tmp_path, check=True, timeout=HANGS)
    done = subprocess.run(["./main"], cwd=tmp_path, capture_output=True, text=True, timeout=HANGS)
    assert done.stdout == "right\n" and done.returncode == -6, (done.returncode, done.stderr)
    assert "kernel guarded_kernel: device-side assert triggered at" in done.stderr and "in program (2, 0, 0): too large" in done.stderr


def test_what_torch_cannot_pass_and_a_torch_that_asks_for_something_else(monkeypatch, tmp_path):
    with pytest.raises(Unsupported, match="argument 'd' has type tensordesc.*, which AOTInductor's launch on a CPU cannot pass"):
        aoti._arguments("k", [("x", "*fp32"), ("d", "tensordesc<fp32[16, 16]>")], ["ptr"])
    (tmp_path / "other.h").write_text('using CpuTritonLauncherFn = void (*)(void**); dlsym(handle, "run_from_nativert");')
    for other in (tmp_path / "other.h", tmp_path / "absent.h"):
        monkeypatch.setattr(aoti, "_HEADER", str(other))
        with pytest.raises(Unsupported, match=f"torch .* calls a kernel's launcher in a way that this triport does not know \\({other.name}.*cpu_backend"):
            aoti._same_call()


@torch.library.triton_op("triport_test_aoti::guarded", mutates_args=())
def guarded(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    torch.library.wrap_triton(guarded_kernel)[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), BLOCK=128)
    return out


class Model(torch.nn.Module):
    """An MLP with a softmax, an op of ours, a user's kernel, a tensor that is a number, reductions of both kinds, and a scan whose kernel has memory of its own."""

    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(33, 64), torch.nn.Linear(64, 17)

    def forward(self, x, scale):
        h = self.down(torch.nn.functional.gelu(self.up(x))) * scale
        return h.softmax(-1), ops.gelu(h), guarded(x), x.sum(0), x.cumsum(0)

    def expected(self, x, scale):
        x, scale = x.double(), scale.double()
        h = torch.nn.functional.linear(x, self.up.weight.double(), self.up.bias.double())
        h = torch.nn.functional.linear(torch.nn.functional.gelu(h), self.down.weight.double(), self.down.bias.double()) * scale
        return h.softmax(-1), torch.nn.functional.gelu(h, approximate="tanh"), x + 1, x.sum(0), x.cumsum(0)


@pytest.mark.first(0)
@with_launchers
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++, which torch compiles a package's C++ with")
def test_a_packaged_model(tmp_path, monkeypatch, seed):
    """In Python with several sizes of one package; and in a program that has no Python, through torch's C interface."""
    import torch._inductor.config as config
    from triport.backends.dispatch import drivers

    torch.manual_seed(seed)
    model, number = Model().eval(), torch.tensor(2.5)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    options = {"cpu_backend": "triton", "compile_threads": 1, "aot_inductor.compile_wrapper_opt_level": "O0", "aot_inductor.precompile_headers": False}
    with config.patch(options), drivers.serving("cpu"), torch.no_grad(), triton.knobs.runtime.scope():
        triton.knobs.runtime.debug = True
        exported = torch.export.export(model, (torch.randn(3000, 33), number), dynamic_shapes=({0: torch.export.Dim("rows", min=1, max=9999)}, None))
        package = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "model.pt2"))
    run = torch._inductor.aoti_load_package(package)
    for rows in (1, 5, 77, 2000):
        x = torch.randn(rows, 33)
        for got, want in zip(run(x, number), model.expected(x, number), strict=True):
            assert error(got, want) < 3e-6
    x[3, 4] = 1000
    with pytest.raises(RuntimeError, match="kernel guarded_kernel: device-side assert triggered at .*: too large"):
        run(x, number)
    x[3, 4] = 1
    assert error(run(x, number)[2], x.double() + 1) < 3e-6, "and goes on"
    _without_python(tmp_path, package, model)


def _without_python(folder, package, model):
    """The package's model, run by a program in C."""
    with zipfile.ZipFile(package) as z:
        z.extractall(folder / "package")
    library = next((folder / "package").rglob("*.wrapper.so"))
    (folder / "main.c").write_text(textwrap.dedent(r"""
        #include <dlfcn.h>
        #include <stdint.h>
        #include <stdio.h>
        #include <string.h>
        typedef void *Tensor;
        int aoti_torch_create_tensor_from_blob(void *, int64_t, const int64_t *, const int64_t *, int64_t, int32_t, int32_t, int32_t, Tensor *);
        int aoti_torch_get_data_ptr(Tensor, void **);
        static float x[300 * 33], number = 0.5;
        int main(int argc, char **argv) {
          void *model = dlopen(argv[1], RTLD_NOW), *container;
          if (!model) return fprintf(stderr, "%s\n", dlerror()), 1;
          int (*create)(void **, size_t, const char *, const char *) = dlsym(model, "AOTInductorModelContainerCreateWithDevice");
          int (*run)(void *, Tensor *, size_t, Tensor *, size_t, void *, void *) = dlsym(model, "AOTInductorModelContainerRun");
          int64_t sizes[] = {300, 33}, strides[] = {33, 1};
          Tensor in[2], out[5];
          fread(x, sizeof x, 1, stdin);
          if (create(&container, 1, "cpu", argv[2])) return 2;
          if (aoti_torch_create_tensor_from_blob(x, 2, sizes, strides, 0, 6, 0, -1, in)) return 3;
          if (aoti_torch_create_tensor_from_blob(&number, 0, sizes, strides, 0, 6, 0, -1, in + 1)) return 4;
          if (run(container, in, 2, out, 5, NULL, NULL)) return 5;
          int64_t lengths[] = {300 * 17, 300 * 17, 300 * 33, 33, 300 * 33};
          for (int k = 0; k < 5; k++) {
            void *data;
            if (aoti_torch_get_data_ptr(out[k], &data)) return 6;
            fwrite(data, 4, lengths[k], stdout);
          }
          char line[4096];
          for (FILE *maps = fopen("/proc/self/maps", "r"); fgets(line, sizeof line, maps);)
            if (strstr(line, "libpython") || strstr(line, "libtorch_python") || strstr(line, "libtriton")) return 7;
          return 0;
        }"""))
    libraries = [f"-L{TORCH}/lib", f"-Wl,-rpath,{TORCH}/lib", "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10", "-ldl"]
    subprocess.run(["g++", "-x", "c", "main.c", "-o", "main", "-x", "none", *libraries], cwd=folder, check=True, timeout=HANGS)
    x = torch.randn(300, 33)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "TRI"))}
    done = subprocess.run([folder / "main", library, library.parent], input=x.numpy().tobytes(), capture_output=True, env=environment, timeout=HANGS)
    assert done.returncode == 0, done.stderr.decode()
    got = torch.frombuffer(bytearray(done.stdout), dtype=torch.float32)
    wants = model.expected(x, torch.tensor(0.5))
    for part, want in zip(got.split([w.numel() for w in wants]), wants, strict=True):
        assert error(part.view(want.shape), want) < 3e-6


def test_a_torch_that_is_written_in_another_way_is_left_alone():
    """One that knows grids itself, whose functions take something else, or that has none of it."""
    def module(**functions):
        functions = {"_resolve_arg_names": lambda self: 0, "_get_cpp_param_type": lambda self, name, arg_type: 0,
                     "_generate_launch": lambda self, prefix, kernel_arg_names, grid_arg_names, signature: 0, **functions}
        for name, f in functions.items():
            f.__name__ = name
        return types.SimpleNamespace(DeferredCpuTritonCallWrapper=type("Calls", (), functions), DTYPE_TO_CPP={})

    def mended(made) -> bool:
        before = dict(vars(made.DeferredCpuTritonCallWrapper))
        for _ in range(2):
            mends._mend_packages(None, made)
        return dict(vars(made.DeferredCpuTritonCallWrapper)) != before

    assert mended(module())
    assert not mended(module(_write_grid=lambda self: "grid_type"))
    assert not mended(module(_generate_launch=lambda self, writer: 0))
    mends._mend_packages(types.SimpleNamespace(CachingAutotuner=object), None)
