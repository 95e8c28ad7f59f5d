"""Other packages for target "cpu": found, driven, their assembly shown, and our plugin out of their way. Stand-ins have the public surface of the real ones
(spine-triton 3.6, triton-cpu, triton-shared); what they compile with is ours."""

import os
import platform
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import HANGS
from triport.backends.dispatch import foreign
from triport.backends.base import Error, Unavailable
from triport.backends.cpu.llvm import compile as llvm, targets
from triport.tools.inspector import code

ROOT = Path(__file__).resolve().parent.parent

COMPILER = """
import hashlib
from dataclasses import dataclass
from triton.backends.compiler import BaseBackend, GPUTarget, Language


@dataclass(frozen=True)
class SpineOptions:
    debug: bool = False
    num_warps: int = 4
    num_stages: int = 3
    num_ctas: int = 1
    warp_size: int = 1
    cluster_dims: tuple = (1, 1, 1)
    enable_fp_fusion: bool = True
    sanitize_overflow: bool = False
    supported_fp8_dtypes: tuple = ()
    deprecated_fp8_dot_operand_dtypes: tuple = ()
    default_dot_input_precision: str = "ieee"
    allowed_dot_input_precisions: tuple = ("ieee",)
    max_num_imprecise_acc_default: int = 0
    extern_libs: tuple = ()
    backend_name: str = "cpu"
    arch: str = ""
    instrumentation_mode: str = ""
    fpsan_homomorphic_casts: bool = False
    launch_cooperative_grid: bool = False
    launch_pdl: bool = False
    ir_override: str = None

    def hash(self):
        return hashlib.sha256(repr(self).encode()).hexdigest()


compiled = []


class SpineTritonBackend(BaseBackend):
    binary_ext = "so"

    @staticmethod
    def supports_target(target: GPUTarget):
        return target.backend == "cpu"

    def hash(self):
        return "spine-fake"

    def parse_options(self, opts):
        return SpineOptions(**{k: v for k, v in opts.items() if k in SpineOptions.__dataclass_fields__ and k != "arch"})

    def pack_metadata(self, metadata):
        return (metadata.num_warps, metadata.num_ctas, metadata.shared)

    def get_codegen_implementation(self, options):
        return {"min_dot_size": lambda lhs, rhs: (1, 1, 1)}

    def get_module_map(self):
        return {}

    def load_dialects(self, ctx):
        pass

    def add_stages(self, stages, options, language=Language.TRITON):
        from triport.backends.cpu import compiler
        from triport.backends.cpu.llvm import compile as llvm, targets
        from triport.backends.spine import link

        def so(src, metadata):
            compiled.append(metadata["name"])
            row = targets.native()
            text = str(src).replace("\\ndefine i64 @", "\\ndefine dso_local i64 @")
            return link.link([([llvm.emit_object(text, row)], "")], row)[0]

        stages["ttir"] = lambda src, metadata: compiler.make_ttir(src, metadata)
        stages["linalgdir"] = lambda src, metadata: metadata.setdefault("kept", str(src)) and src
        ours = compiler.CPUOptions(arch="native")

        def llir(src, metadata):
            metadata.pop("kept")
            return compiler.make_llir(src, metadata, ours)

        stages["llir"] = llir
        stages["so"] = so
"""

DRIVER = """
import ctypes, os, struct, tempfile
from dataclasses import dataclass
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

if os.environ.get("FAKE_SPINE_BROKEN") == "import":
    raise ImportError("libSpeIRRuntimeLibs.so: cannot open shared object file")


@dataclass(frozen=True)
class AICPUTarget(GPUTarget):
    num_cores: int = 8
    num_ai_cores: int = 4
    arch_id: int = 0x503C
    num_threads: int = 8
    version: int = 2


class CPUUtils:
    def load_binary(self, name, kernel, shared, device):
        with tempfile.NamedTemporaryFile(suffix=".so", delete=False) as f:
            f.write(kernel)
        lib = ctypes.CDLL(f.name)
        os.unlink(f.name)
        return lib, ctypes.cast(getattr(lib, name), ctypes.c_void_p).value, 0, 0, 1 << 20

    def unload_module(self, module):
        pass

    def get_device_properties(self, device):
        return {"max_shared_mem": 1 << 30, "multiprocessor_count": 8, "max_num_regs": 0, "warpSize": 1}


class CPULauncher:
    launches = 0

    def __init__(self, src, metadata):
        from triport.backends.cpu.run import launch
        names = list(src.signature)
        fixed = {((names.index(c),) if isinstance(c, str) else tuple(c)) for c in src.constants}
        self.types = [(k, t) for k, t in enumerate(src.signature.values()) if (k,) not in fixed and t != "constexpr"]
        self.pack, self.scratch = launch.PACK, metadata.scratch_bytes

    def __call__(self, gx, gy, gz, stream, function, packed_metadata, launch_metadata, enter, leave, *args):
        assert packed_metadata is not None, "stock launchers get the packed metadata"
        CPULauncher.launches += 1
        data = b"".join(struct.pack("<Q", args[k].data_ptr()) if t[0] == "*" else struct.pack("<" + self.pack[t], args[k]) for k, t in self.types)
        scratch = ctypes.create_string_buffer(self.scratch + 4096)
        at = (ctypes.addressof(scratch) + 4095) & -4096
        ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int, ctypes.c_int, ctypes.c_int)(function)(
            data, at, 0, gx * gy * gz, gx, gy, gz)


class CPUDriver(DriverBase):
    def __init__(self):
        if os.environ.get("FAKE_SPINE_BROKEN") == "driver":
            raise ValueError("unknown arch id 0x1234")
        super().__init__()
        self.utils, self.launcher_cls = CPUUtils(), CPULauncher
        self.cpu_arch, self.current_arch_id, self.num_cores = "spacemit-x60", 0x503C, 8

    @staticmethod
    def is_active():
        return False

    def map_python_to_cpp_type(self, ty):
        return ty

    def get_current_target(self):
        return AICPUTarget("cpu", "spacemit-x60", 0)

    def get_current_device(self):
        return "cpu"

    def set_current_device(self, device):
        pass

    def get_current_stream(self, device):
        return None

    def get_active_torch_device(self):
        import torch
        return torch.device("cpu")

    def get_device_interface(self):
        import torch
        return torch.cpu

    def get_benchmarker(self):
        from triton.testing import do_bench
        return do_bench

    def get_empty_cache_for_benchmark(self):
        import torch
        return torch.empty(1024)

    def clear_cache(self, cache):
        cache.zero_()
"""

SITE = """
import importlib.abc, importlib.util, sys
from pathlib import Path

HERE = Path(__file__).parent / "fake"


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "triton.backends.spine_triton" or name.startswith("triton.backends.spine_triton."):
            rest = name.split(".")[3:]
            file = HERE / (rest[0] + ".py") if rest else HERE / "__init__.py"
            return importlib.util.spec_from_file_location(name, file, submodule_search_locations=[str(HERE)] if not rest else None) if file.exists() else None


sys.meta_path.insert(0, Finder())
"""


@pytest.fixture(scope="module")
def spine_triton(tmp_path_factory):
    """A folder for PYTHONPATH in which spine-triton's stand-in is installed."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "fake").mkdir()
    for name, text in (("__init__", ""), ("compiler", COMPILER), ("driver", DRIVER)):
        (folder / "fake" / f"{name}.py").write_text(text)
    (folder / "sitecustomize.py").write_text(SITE)
    info = folder / "triton_spine-3.6.0+spacemit.a1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: triton-spine\nVersion: 3.6.0+spacemit.a1\n")
    (info / "entry_points.txt").write_text("[triton.backends]\nspine_triton = triton.backends.spine_triton\n")
    return folder


def run(folder: Path, tmp_path: Path, script: str, **env) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    (tmp_path / "script.py").write_text(textwrap.dedent(script))
    clean = {k: v for k, v in os.environ.items() if k not in ("TRIPORT_SPINE", "SPINE_TRITON_DUMP_PATH", "TRITON_DEFAULT_BACKEND")}
    return subprocess.run([sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, timeout=HANGS,
                          env={**clean, "PYTHONPATH": path, "TRITON_CACHE_DIR": str(tmp_path / "cache"), **env})


installed = pytest.mark.skipif("triport" not in {d.metadata["Name"] for d in __import__("importlib.metadata").metadata.distributions()},
                               reason="triport is not installed: Triton would not find the plugin that is to yield")


@installed
def test_spine_triton_is_driven(spine_triton, tmp_path):
    """As backend `spine`, by its own compiler and launcher; ours yields, in one process and in several threads."""
    done = run(spine_triton, tmp_path, """
        import sys, threading, torch, triton
        from triport import backends, ops
        from triport.backends.dispatch import foreign
        from triport.bench import check
        assert "triton.backends.spine_triton" in sys.modules  # Triton itself looked at it
        assert not any(b.driver.is_active() for b in triton.backends.backends.values())
        assert foreign.found().name == "spine-triton"
        spine = backends.get("spine")
        assert spine.unavailable() is None and spine.target() == "spine-triton: spacemit-x60", spine.target()
        assert "another installed package compiles for target cpu (spine_triton)" in backends.get("triton-cpu").unavailable()
        from triton.backends.spine_triton import compiler, driver
        g = torch.Generator().manual_seed(1)
        for name in ops.registry.NAMES:
            op = ops.registry.get(name)
            for case in op.cases_on("cpu")[:1]:
                args = case.make(torch.float32, seed=3)
                for _ in range(2):
                    right, error = check.verdict(op, spine.bind(op)(*args, **case.kwargs), args, case.kwargs)
                    assert right, (name, error)
        assert {"square_kernel", "softmax_rows_kernel", "matmul_kernel"} <= set(compiler.compiled), compiler.compiled
        before = driver.CPULauncher.launches
        x = torch.randn(50, 60)
        assert torch.equal(ops.square(x), x * x)  # whoever is the default on such a machine
        with backends.use("spine"):
            assert torch.allclose(ops.softmax(x), torch.softmax(x, -1))
        failed = []
        def work():
            try:
                for n in range(20):
                    y = torch.randn(n + 1, 30)
                    assert torch.allclose(ops.gelu(y), torch.nn.functional.gelu(y, approximate="tanh"), atol=1e-6)
            except BaseException as e:
                failed.append(e)
        threads = [threading.Thread(target=work) for _ in range(3)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert not failed, failed
        assert driver.CPULauncher.launches > before + 60
        print("driven")
        """)
    assert done.returncode == 0 and "driven" in done.stdout, done.stderr[-3000:]


@installed
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the dumped assembly is x86's")
def test_spine_tritons_assembly(spine_triton, tmp_path):
    """Of the library that it keeps, or of the file that it dumps."""
    script = """
        import sys
        from triport.tools.__main__ import main
        sys.exit(main(["asm", "square", "--target", "native", "--case", "128x128"]))
        """
    done = run(spine_triton, tmp_path, script)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "spine-triton" in done.stdout and "square_kernel" in done.stdout and ("vmulps" in done.stdout or "fmul" in done.stdout), done.stdout[:2000]
    dump = tmp_path / "dump"
    dump.mkdir()
    (dump / "square_kernel.s").write_text("square_kernel:\n.L1:\n\tvmulps (%rdi), %ymm7, %ymm7\n\taddq $32, %rdi\n\tcmpq %rsi, %rdi\n\tjne .L1\n\tret\n")
    done = run(spine_triton, tmp_path, script, SPINE_TRITON_DUMP_PATH=str(dump))
    assert done.returncode == 0 and "%ymm7" in done.stdout, done.stderr[-2000:]


@installed
def test_a_spine_triton_that_does_not_start(spine_triton, tmp_path):
    done = run(spine_triton, tmp_path, """
        import torch
        from triport import backends, ops
        print(backends.get("spine").unavailable())
        try:
            ops.square(torch.ones(3))
        except Exception as e:
            print(type(e).__name__, e)
        """, FAKE_SPINE_BROKEN="driver")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 2, done.stderr[-2000:]
    assert all("spine-triton is installed and does not start: ValueError: unknown arch id 0x1234" in x for x in lines) and lines[1].startswith("Unavailable")


@installed
def test_a_named_board_comes_first(spine_triton, tmp_path):
    done = run(spine_triton, tmp_path, """
        from triport import backends
        print(backends.get("spine").unavailable())
        """, TRIPORT_SPINE="qemu:sparc")
    assert "unknown emulated machine 'sparc'" in done.stdout, done.stderr[-2000:]


# --- the others, by what tells them apart ----------------------------------------------------------------------------------------


def test_nothing_is_found_here():
    assert foreign.found() is None


@pytest.fixture
def none_started():
    """As in a process that has asked for no other package's driver."""
    foreign.driver_of.cache_clear()
    yield
    foreign.driver_of.cache_clear()


def test_triton_cpu(monkeypatch, none_started):
    """It adds `set_active_to_cpu` to Triton's driver configuration; what was active stays so."""
    from triton.runtime import driver

    class Theirs:
        def get_current_target(self):
            return SimpleNamespace(backend="cpu", arch="x86_64")

    theirs = Theirs()
    before = driver._active
    monkeypatch.setattr(type(driver), "set_active_to_cpu", lambda self: self.set_active(theirs), raising=False)
    one = foreign.found()
    assert one.name == "triton-cpu" and foreign.driver_of(one) is theirs and foreign.target_of(one) == "triton-cpu: x86_64"
    assert driver._active is before
    with foreign.active(one):
        assert driver.active.get_current_target().arch == "x86_64"
    made = SimpleNamespace(asm={"ttir": "x", "ttcir": "x", "tttcir": "x", "llir": "x", "asm": "f:\n\tret\n", "so": b"\x7fELF"}, metadata=SimpleNamespace(name="f"))
    assert code.foreign_assembly(made, one) == ("f:\n\tret\n", b"")


@pytest.mark.parametrize("module,name", [("triton.backends.cpu.knobs", "triton-cpu (Kernelize)"), ("triton.backends.triton_shared", "triton-shared"),
                                         ("triton.backends.spine_triton", "spine-triton")])
def test_by_module(monkeypatch, none_started, module, name):
    monkeypatch.setattr(foreign, "is_installed", lambda m: m == module)
    one = foreign.found()
    assert one.name == name
    with pytest.raises(Unavailable, match="is installed and does not start: ModuleNotFoundError"):
        foreign.driver_of(one)


def test_assembly_of_an_object(monkeypatch):
    """As triton-shared keeps it."""
    row = targets.native()
    obj = llvm.emit_object(f'target triple = "{row.triple}"\ndefine i32 @seven() {{\n  ret i32 7\n}}', row)
    shared = foreign.KNOWN[3]
    compiled = SimpleNamespace(asm={"ttir": "", "ttsharedir": "", "llir": "", "obj": obj}, metadata=SimpleNamespace(name="seven"))
    text, data = code.foreign_assembly(compiled, shared)
    assert "seven" in text and data == obj
    for bad in (b"not ELF", None, "text"):
        with pytest.raises(Error, match="holds no machine code; it has ttir, obj"):
            code.foreign_assembly(SimpleNamespace(asm={"ttir": "", "obj": bad}, metadata=SimpleNamespace(name="k")), shared)
