"""Other packages for target "cpu": found, driven, their assembly shown, and ours beside them. Stand-ins have the public surface of the real ones
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
from spine_boards import on
from triport.backends.dispatch import foreign
from triport.backends.base import Error, Unavailable
from triport.backends.cpu.llvm import compile as llvm, targets
from triport.tools.inspector import code

ROOT = Path(__file__).resolve().parent.parent

COMPILER = """
import functools, hashlib, os, re
from dataclasses import dataclass
from triton.backends.compiler import BaseBackend, GPUTarget


# fields, stages, what each stage reads and writes: backend/compiler.py of spine-triton; instead of its tools, which are programs, ours
@dataclass(frozen=True)
class CPUOptions:
    debug: bool = False
    arch: str = None
    num_warps: int = 0
    num_ctas: int = 0
    num_stages: int = 1
    enable_warp_specialization: bool = False
    enable_fp_fusion: bool = False
    extern_libs = None
    cluster_dims: tuple = (1, 1, 1)
    shared: bool = False
    supported_fp8_dtypes: tuple = ()
    allow_fp8e4nv: bool = False
    allowed_dot_input_precisions: tuple = ("ieee",)
    sanitize_overflow: bool = True

    def hash(self):
        key = "_".join([f"{name}-{val}" for name, val in self.__dict__.items()])
        return hashlib.md5(key.encode("utf-8")).hexdigest()


@dataclass(frozen=True)
class OptionsOfThisTriton(CPUOptions):
    # what Triton asks of options now and did not in 3.6, spine-triton's own
    max_num_imprecise_acc_default: int = 0
    deprecated_fp8_dot_operand_dtypes: tuple = ()
    default_dot_input_precision: str = "ieee"
    backend_name: str = "cpu"
    launch_cooperative_grid: bool = False
    launch_pdl: bool = False
    fpsan_homomorphic_casts: bool = False
    ir_override: str = None
    warp_size: int = 1


compiled = []


class CPUBackend(BaseBackend):
    binary_ext = "so"

    @staticmethod
    def supports_target(target: GPUTarget):
        return target.backend == "cpu"

    def parse_options(self, opts):
        if "instrumentation_mode" in opts:
            opts.pop("instrumentation_mode")
        args = {"arch": self.target.arch}
        args.update({k: opts[k] for k in OptionsOfThisTriton.__dataclass_fields__.keys() if k in opts})
        return OptionsOfThisTriton(**args)

    def get_codegen_implementation(self, options):
        return {"min_dot_size": lambda lhsType, rhsType: (1, 1, 1)}

    def pack_metadata(self, metadata):
        return (metadata.num_warps, metadata.num_ctas, metadata.shared, *metadata.cluster_dims, metadata.name)

    def load_dialects(self, ctx):
        pass

    @staticmethod
    def make_ttir(mod, metadata, opt):
        from triport.backends.cpu import compiler
        mod = compiler.make_ttir(mod, {})
        target = metadata["target"]
        assert type(target.num_threads) is int and type(target.arch_id) is str and type(target.force_vector_interleave) is int
        metadata["name"], = re.findall(r"tt\\.func\\s+public\\s+@(\\w+)\\s*\\(", str(mod))
        return mod

    def add_stages(self, stages, options, language):
        from triport.backends.cpu import compiler
        from triport.backends.cpu.llvm import compile as llvm, targets
        from triport.backends.spine import link

        def linalgdir(src, metadata):
            metadata["smt_parallel_inside"] = "bind_sub_block = true" in str(src)
            return str(src)

        def llir(src, metadata):
            mine = {}
            text = compiler.make_llir(src, mine, compiler.CPUOptions(arch="native"))
            metadata["standin_scratch"] = mine["scratch_bytes"]
            return text.replace("\\ndefine i64 @", "\\ndefine dso_local i64 @")

        def so(src, metadata):
            assert metadata["target"].arch_id
            row = targets.native()
            compiled.append(metadata["name"])
            folder = os.environ.get("SPINE_TRITON_DUMP_PATH", "")
            if folder != "" and os.path.exists(folder):
                with open(os.path.join(folder, metadata["name"] + ".s"), "w") as f:
                    f.write(llvm.emit_assembly(src, row))
            return link.link([([llvm.emit_object(src, row)], "")], row)[0]

        stages["ttir"] = lambda src, metadata: self.make_ttir(src, metadata, options)
        stages["linalgdir"] = linalgdir
        stages["llir"] = llir
        stages["so"] = so

    @functools.lru_cache()
    def hash(self):
        return self.target

    def get_module_map(self):
        return {}
"""

DRIVER = """
import ctypes, os, struct, tempfile, time
from dataclasses import dataclass
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

if os.environ.get("FAKE_SPINE_BROKEN") == "import":
    raise ImportError("can not find libspeirruntime. Could not find libSpeIRRuntimeLibs")


def get_cpu_name_from_arch_id(arch_id: str) -> str:
    known = {"0x503C": "spacemit-x60", "0x5064": "spacemit-x100", "0xA03C": "spacemit-a60", "0xA064": "spacemit-a100", "0xF000": "spacemit-a100"}
    if arch_id not in known:
        raise ValueError(f"Unknown arch_id: {arch_id}")
    return known[arch_id]


# fields and methods: backend/driver.py of spine-triton
@dataclass(frozen=True)
class AICPUTarget(GPUTarget):
    backend: str
    arch: str
    core: int
    ai_core: int
    arch_id: str
    num_threads: int
    force_vector_interleave: int


class CPUUtils:
    def load_binary(self, name, kernel, shared, device):
        with tempfile.NamedTemporaryFile(suffix=".so", delete=False) as f:
            f.write(kernel)
        lib = ctypes.CDLL(f.name)
        os.unlink(f.name)
        CPUUtils.libraries.append(lib)
        return lib, ctypes.cast(getattr(lib, name), ctypes.c_void_p).value, 0, 0, 1 << 20

    libraries = []

    def get_device_properties(self, device):
        return {"max_shared_mem": 1 << 30, "multiprocessor_count": 8, "max_num_regs": 0, "warpSize": 1}

    def get_current_stream(self):
        return 0

    def get_arch_id(self):
        return os.environ.get("FAKE_SPINE_ARCH", "0x503C")

    def get_num_cores(self):
        return 8

    def get_stream_threads(self):
        return 4


class CPULauncher:
    launches = 0

    def __init__(self, src, metadata):
        from triport.backends.cpu.run import launch
        assert metadata.smt_parallel_inside is False
        names = list(src.signature)
        fixed = {((names.index(c),) if isinstance(c, str) else tuple(c)) for c in src.constants}
        self.types = [(k, t) for k, t in enumerate(src.signature.values()) if (k,) not in fixed and t != "constexpr"]
        self.pack, self.scratch = launch.PACK, metadata.standin_scratch

    def __call__(self, gx, gy, gz, stream, function, packed_metadata, launch_metadata, enter, leave, *args):
        assert packed_metadata is not None, "stock launchers get the packed metadata"
        CPULauncher.launches += 1
        data = b"".join(struct.pack("<Q", args[k].data_ptr()) if t[0] == "*" else struct.pack("<" + self.pack[t], args[k]) for k, t in self.types)
        scratch = ctypes.create_string_buffer(self.scratch + 4096)
        at = (ctypes.addressof(scratch) + 4095) & -4096
        ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int, ctypes.c_int, ctypes.c_int)(function)(
            data, at, 0, gx * gy * gz, gx, gy, gz)


class RPCLauncher(CPULauncher):
    # to another machine, which has the tensors' copies

    def __call__(self, gx, gy, gz, stream, function, packed_metadata, launch_metadata, enter, leave, *args):
        copies = [a.clone() if hasattr(a, "data_ptr") else a for a in args]
        super().__call__(gx, gy, gz, stream, function, packed_metadata, launch_metadata, enter, leave, *copies)
        for a, copy in zip(args, copies):
            if hasattr(a, "data_ptr"):
                a.copy_(copy)


class CPUDeviceInterface:
    class TimerEvent:
        def __init__(self):
            self.timer = 0

        def elapsed_time(self, end_event):
            return (end_event.timer - self.timer) * 1000

        def record(self):
            self.timer = time.perf_counter()

    def synchronize(self):
        pass

    def Event(self, enable_timing=True):
        return CPUDeviceInterface.TimerEvent()


class CPUDriver(DriverBase):
    def __init__(self):
        super().__init__()
        self.utils = CPUUtils()
        self.binary_ext = "so"
        self.rpc_mode = bool(os.environ.get("SPINE_TRITON_RPC_HOST", ""))
        self.launcher_cls = RPCLauncher if self.rpc_mode else CPULauncher
        self.current_arch_id = self.utils.get_arch_id()
        self.cpu_arch = get_cpu_name_from_arch_id(self.current_arch_id)
        self.num_cores = self.utils.get_num_cores()
        self.num_of_stream_threads = self.utils.get_stream_threads()
        self.force_vector_interleave = 2

    @staticmethod
    def is_active():
        return False

    def get_benchmarker(self):
        from triton.testing import do_bench
        return do_bench

    def get_device_capability(self):
        return ("cpu", 0)

    def get_current_stream(self, device):
        return self.utils.get_current_stream()

    def get_current_device(self):
        return "cpu"

    def set_current_device(self, device):
        assert device == "cpu"

    def get_current_target(self):
        if self.rpc_mode:
            arch_id = os.environ.get("SPACEMIT_EP_QEMU_SET_CORE_ARCH", "0xF000")
            threads = int(os.environ.get("SPINE_TRITON_RPC_THREADS", "8"))
            return AICPUTarget("cpu", get_cpu_name_from_arch_id(arch_id), 0, 8, threads, arch_id, threads, self.force_vector_interleave)
        return AICPUTarget("cpu", self.cpu_arch, 0, self.num_cores, self.num_of_stream_threads, self.current_arch_id, self.num_of_stream_threads,
                           self.force_vector_interleave)

    def get_active_torch_device(self):
        import torch
        return torch.device("cpu")

    def assemble_tensormap_to_arg(self, tensormaps_info, args):
        return args

    def get_device_interface(self):
        return CPUDeviceInterface()

    def get_empty_cache_for_benchmark(self):
        import torch
        return torch.empty(1024)

    def clear_cache(self, cache):
        cache.zero_()

    def map_python_to_cpp_type(self, ty):
        return ty
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


def run(folder: Path, tmp_path: Path, script: str, *arguments: str, cwd=None, **env) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    (tmp_path / "script.py").write_text(textwrap.dedent(script))
    clean = {k: v for k, v in os.environ.items() if k not in ("TRIPORT_SPINE", "SPINE_TRITON_DUMP_PATH", "SPINE_TRITON_RPC_HOST", "TRITON_DEFAULT_BACKEND")}
    return subprocess.run([sys.executable, str(tmp_path / "script.py"), *arguments], capture_output=True, text=True, timeout=HANGS, cwd=cwd,
                          env={**clean, "PYTHONPATH": path, "TRITON_CACHE_DIR": str(tmp_path / "cache"), **env})


installed = pytest.mark.skipif("triport" not in {d.metadata["Name"] for d in __import__("importlib.metadata").metadata.distributions()},
                               reason="triport is not installed: Triton would not find the plugin that is to yield")


@installed
def test_spine_triton_and_ours_in_one_process(spine_triton, tmp_path):
    """Each by its own compiler and launcher, in turns and in several threads: what is remembered of one's kernels is not launched as the other's."""
    done = run(spine_triton, tmp_path, """
        import sys, threading, torch, triton
        from triport import backends, ops
        from triport.backends.dispatch import foreign
        from triport.bench import check
        assert "triton.backends.spine_triton" in sys.modules  # Triton itself looked at it
        assert not any(b.driver.is_active() for b in triton.backends.backends.values())
        assert foreign.found().name == "spine-triton"
        spine, ours = backends.get("spine"), backends.get("triton-cpu")
        assert spine.unavailable() is None and spine.target() == "spine-triton: spacemit-x60", spine.target()
        assert ours.unavailable() is None and "compiled for" in ours.target()
        assert {"spine", "triton-cpu"} <= {b.name for b in backends.available()}
        from triton.backends.spine_triton import compiler, driver
        x = torch.randn(50, 60)
        assert torch.equal(ops.square(x), x * x) and not compiler.compiled  # by default ours
        def launched(call):
            before = driver.CPULauncher.launches
            call()
            return driver.CPULauncher.launches - before
        for name in ops.registry.NAMES:
            op = ops.registry.get(name)
            for case in op.cases_on("cpu")[:1]:
                args = case.make(torch.float32, seed=3)
                for backend, theirs in ((ours, False), (spine, True), (ours, False), (spine, True)):
                    def call():
                        right, error = check.verdict(op, backend.bind(op)(*args, **case.kwargs), args, case.kwargs)
                        assert right, (name, error)
                    assert bool(launched(call)) == theirs, (name, backend.name)
        assert {"square_kernel", "softmax_rows_kernel", "matmul_kernel"} <= set(compiler.compiled), compiler.compiled
        with backends.use("spine"):
            assert launched(lambda: torch.testing.assert_close(ops.softmax(x), torch.softmax(x, -1)))
        with backends.use("triton-cpu"):
            assert not launched(lambda: torch.testing.assert_close(ops.softmax(x), torch.softmax(x, -1)))
        gelu, failed, before = ops.registry.get("gelu"), [], driver.CPULauncher.launches
        def work(backend):
            try:
                for n in range(20):
                    y = torch.randn(n + 1, 30)
                    assert torch.allclose(backend.bind(gelu)(y), torch.nn.functional.gelu(y, approximate="tanh"), atol=1e-6)
            except BaseException as e:
                failed.append(e)
        threads = [threading.Thread(target=work, args=[b]) for b in (spine, ours, spine, ours)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert not failed, failed
        assert driver.CPULauncher.launches == before + 40, driver.CPULauncher.launches - before
        print("driven")
        """)
    assert done.returncode == 0 and "driven" in done.stdout, done.stderr[-3000:]
    assert "Exception ignored" not in done.stderr, done.stderr[-3000:]


@installed
def test_a_users_kernel_goes_to_whoever_is_active(spine_triton, tmp_path):
    """Nobody by itself, as with spine-triton alone; spine-triton where its driver is made active; ours where TRITON_DEFAULT_BACKEND says so."""
    script = """
        import os, torch, triton, triton.language as tl
        @triton.jit
        def double(x, y, n, BLOCK: tl.constexpr):
            i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            tl.store(y + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)
        x = torch.randn(1000)
        if "WHO" in os.environ:
            from triton.backends.spine_triton.driver import CPUDriver
            triton.runtime.driver.set_active(CPUDriver())
        y = torch.empty_like(x)
        double[(4,)](x, y, 1000, BLOCK=256)
        assert torch.equal(y, 2 * x)
        from triton.backends.spine_triton import driver
        print("launches", driver.CPULauncher.launches)
        """
    assert "0 active drivers" in run(spine_triton, tmp_path, script).stderr
    for who, launches in (({"WHO": "theirs"}, 1), ({"TRITON_DEFAULT_BACKEND": "cpu"}, 0)):
        done = run(spine_triton, tmp_path, script, **who)
        assert done.stdout == f"launches {launches}\n", done.stderr[-2000:]


@installed
def test_boards_beside_spine_triton(spine_triton, tmp_path):
    """Targets of ours are compiled by ours: export, asm, and what is sent to a board."""
    done = run(spine_triton, tmp_path, """
        import sys
        from triport.tools.__main__ import main
        from triport.backends.spine import bundle
        codes = [main(["export", "matmul_softmax", "square", "--dtype", "fp32", "--dtype", "fp16", "--target", "spacemit-x60", "-o", "bundle"]),
                 main(["asm", "softmax", "--target", "spacemit-x60", "--case", "128x128"]),
                 main(["asm", "square", "--target", "native", "--target", "neoverse-v2", "--case", "128x128"])]
        assert len(bundle.load(bundle.Path("bundle")).manifest["functions"]) == 4
        from triton.backends.spine_triton import compiler
        assert codes == [0, 0, 0] and not compiler.compiled, (codes, compiler.compiled)
        """, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "vfmacc" in done.stdout or "vfmul" in done.stdout or "vfsub" in done.stdout, done.stdout[:3000]
    assert "spine-triton" not in done.stdout, done.stdout[:3000]


@installed
@pytest.mark.parametrize("board", [on("qemu:riscv64?vlen=256")])
def test_a_named_board_is_ours(spine_triton, tmp_path, board):
    done = run(spine_triton, tmp_path, """
        import sys, torch
        from triport import backends, ops
        from triport.backends.spine.backend import on
        x = torch.randn(33, 20)
        with on(sys.argv[1]), backends.use("spine"):
            torch.testing.assert_close(ops.softmax(x), torch.softmax(x, -1))
        from triton.backends.spine_triton import compiler
        assert not compiler.compiled
        """, board)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.first(0)
@installed
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the stand-in's assembly is x86's here")
def test_spine_tritons_assembly(spine_triton, tmp_path):
    """Of this kernel: not of one of the same name that was dumped, or kept, before."""
    dump = tmp_path / "dump"
    dump.mkdir()
    stale = "square_kernel:\n.L1:\n\tvmulps (%rdi), %ymm7, %ymm7\n\taddq $32, %rdi\n\tcmpq %rsi, %rdi\n\tjne .L1\n\tret\n"
    (dump / "square_kernel.s").write_text(stale)
    script = """
        import sys
        from triport.tools.__main__ import main
        sys.exit(main(["asm", "square", "--target", "spine-triton", "--case", "128x128", "--dtype", sys.argv[1]]))
        """
    for dtype, mnemonic in (("fp32", "mulps"), ("fp64", "mulpd"), ("fp32", "mulps")):  # the last is in Triton's cache
        done = run(spine_triton, tmp_path, script, dtype, SPINE_TRITON_DUMP_PATH=str(dump))
        assert done.returncode == 0, done.stderr[-3000:]
        assert "spine-triton" in done.stdout and mnemonic in done.stdout and "addq $32, %rdi" not in done.stdout, done.stdout[:2000]
    assert (dump / "square_kernel.s").read_text() == stale  # the user's folder is theirs


@installed
def test_spine_tritons_kernel_objects(spine_triton, tmp_path):
    """A kernel that was launched is disassembled, whatever a dump of its name has."""
    (tmp_path / "square_kernel.s").write_text("square_kernel:\n\tud2\n")
    done = run(spine_triton, tmp_path, """
        import torch
        from triport.backends.dispatch import foreign
        from importlib import import_module
        from triport.tools.inspector import code
        one, x = foreign.found(), torch.randn(5000)
        y = torch.empty_like(x)
        with foreign.active(one):
            made = import_module("triport.ops.square").square_kernel[(5,)](x, y, 5000, BLOCK=1024)
        text = code.of_compiled(made).text
        assert "mul" in text and "ud2" not in text, text
        """, SPINE_TRITON_DUMP_PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.first(0)
@installed
def test_spine_tritons_rpc(spine_triton, tmp_path):
    """Where another machine computes, the times are said to contain the copies."""
    script = """
        import torch
        from triport import backends
        from triport.tools.__main__ import main
        print(backends.get("spine").target())
        main(["bench", "--op", "square", "--case", "64x64", "--backend", "spine", "--backend", "torch", "--no-cold", "--reps", "2"])
        """
    done = run(spine_triton, tmp_path, script, SPINE_TRITON_RPC_HOST="k1:9999", SPACEMIT_EP_QEMU_SET_CORE_ARCH="0x503C")
    first = done.stdout.splitlines()[0]
    assert first == "spine-triton: spacemit-x60 over RPC", done.stderr[-2000:]
    assert done.stderr.count("spine-triton computes over RPC: its times contain the copies of all tensors") == 1, done.stderr[-2000:]
    done = run(spine_triton, tmp_path, """
        from triport import backends
        print(backends.get("spine").unavailable())
        """, SPINE_TRITON_RPC_HOST="k1", SPACEMIT_EP_QEMU_SET_CORE_ARCH="0xf000")
    assert done.stdout.strip() == "spine-triton does not know its target: ValueError: Unknown arch_id: 0xf000", done.stderr[-2000:]


@installed
def test_a_spine_triton_that_does_not_start(spine_triton, tmp_path):
    done = run(spine_triton, tmp_path, """
        import torch
        from triport import backends, ops
        print(backends.get("spine").unavailable())
        try:
            with backends.use("spine"):
                ops.square(torch.ones(3))
        except Exception as e:
            print(type(e).__name__, e)
        print(ops.square(torch.ones(1)))  # ours does
        """, FAKE_SPINE_ARCH="0x1234")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 3 and lines[2] == "tensor([1.])", done.stderr[-2000:]
    assert all("spine-triton is installed and does not start: ValueError: Unknown arch_id: 0x1234" in x for x in lines[:2]), lines
    assert lines[1].startswith("Unavailable")


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
