"""Whole user lands of other machines under QEMU: numpy calls a bundle's library, kernels are linked into a process. Slow, and only where
`.ci/userland DIR` made them and TRIPORT_USERLAND=DIR names them."""

import os
import subprocess
import textwrap
from pathlib import Path

import pytest
import triton
import triton.language as tl
from conftest import HANGS
from spine_boards import on
from test_link import DATA, IR
from triport.backends.cpu import cache
from triport.backends.cpu.llvm import compile, targets
from triport.backends.cpu.run.pool import pool_ir
from triport.backends import active
from triport.backends.spine import bundle, runner
from triport.ops import Case, registry
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

ROOT = os.environ.get("TRIPORT_USERLAND", "")
pytestmark = [pytest.mark.userland, pytest.mark.skipif(not ROOT, reason="TRIPORT_USERLAND is not set; .ci/userland DIR makes what it names (500 MB)")]


def python(machine: str, emulator: list[str], *args) -> str:
    """What that machine's Python says. emulator: QEMU and what it is to know of the CPU."""
    root = Path(ROOT, machine)
    program = min(root.glob("usr/bin/python3.[0-9]*"))
    done = subprocess.run([*emulator, "-L", str(root), str(program), *map(str, args)], capture_output=True, text=True, timeout=HANGS,
                          env={"PATH": os.environ["PATH"], "PYTHONHOME": str(root / "usr"), "PYTHONDONTWRITEBYTECODE": "1", "TRIPORT_THREADS": "own"})
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("board", [on("qemu:riscv64?vlen=256")])
def test_numpy_calls_a_library(board, tmp_path):
    wanted = [(registry.get("softmax"), Case(((5, 33),)), "fp32"), (registry.get("matmul"), Case(((9, 7), (7, 5))), "fp32")]
    made = bundle.make(wanted, targets.get("spacemit-x60"), cases=False)
    made.write(tmp_path)
    (tmp_path / "call.py").write_text(textwrap.dedent("""
        import ctypes, platform, sys
        import numpy as np
        lib = ctypes.CDLL(sys.argv[1])
        def at(x): return x.ctypes.data_as(ctypes.c_void_p)
        def size(n): return ctypes.c_int64(n)
        g = np.random.default_rng(7)
        for m, n in ((33, 70), (1, 1), (4, 1000)):
            x = g.standard_normal((m, n), dtype=np.float32)
            y = np.full((m, n), np.nan, np.float32)
            assert lib.triport_softmax_fp32(at(x), at(y), size(m), size(n), 2) == 0
            e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
            assert np.abs(y - e / e.sum(1, keepdims=True)).max() < 1e-6, (m, n)
        a, b = g.standard_normal((20, 31), dtype=np.float32), g.standard_normal((31, 40), dtype=np.float32)
        c = np.empty((20, 40), np.float32)
        assert lib.triport_matmul_fp32(at(a), at(b), at(c), size(20), size(31), size(40), 2) == 0
        assert np.allclose(c, a.astype(np.float64) @ b, atol=1e-4)
        print("right on", platform.machine(), "numpy", np.__version__)
        """))
    r = runner.get(board)
    said = python("riscv64", [r.program, "-cpu", r.cpu], tmp_path / "call.py", tmp_path / made.manifest["library"])
    assert "right on riscv64" in said


@triton.jit
def scaling_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.exp2(tl.load(x_ptr + offs, mask=offs < n)) + 0.125, mask=offs < n)


LINKING = """
import ctypes, os, struct, sys, threading, types
from pathlib import Path
folder, root, scratch, work = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
module = types.ModuleType("triport")
module.__path__ = [root]
sys.modules["triport"] = module
from triport.backends.base import CompileError
from triport.backends.cpu.run import gdb, kept, launch

obj = {p.stem: p.read_bytes() for p in folder.glob("*.o")}
kept.emitted = lambda name, ir, target: obj[name]  # there is no Triton, whose cache folder it would be kept in
pool = launch.pool()
assert pool.openmp == (0, 0)
n = 1000
x, out = (ctypes.c_float * n)(*(k / 100 for k in range(n))), (ctypes.c_float * n)()

def run(function, threads=3):
    ctypes.memset(out, 0, ctypes.sizeof(out))
    args = struct.pack("<8QQQi4x", function.address, 8, 1, 1, scratch, threads << 32 | threads, 0, 0, ctypes.addressof(x), ctypes.addressof(out), n)
    assert pool.call(args) == 0
    return all(abs(out[k] / (2 ** (k / 100) + 0.125) - 1) < 1e-6 for k in range(n))

def shown():
    return len(gdb.shown())

def executable(address):
    for line in open("/proc/self/maps"):
        low, high = (int(part, 16) for part in line.split()[0].split("-"))
        if low <= address < high:
            return line.split()[1] == "r-xp"

before = shown()
kernel = launch.load_function(obj["kernel"], "scaling_kernel")
assert run(kernel) and run(kernel, 1) and len(os.listdir("/proc/self/task")) > 2 and executable(kernel.address) and shown() == before + 1
address = kernel.address
del kernel
launch.loaded.free()
assert not executable(address) and shown() == before, "what nobody holds is unmapped"
kernel = launch.load_function(obj["kernel"], "scaling_kernel")
child = os.fork()
if not child:
    os._exit(0 if run(kernel) and run(launch.load_function(obj["kernel"], "scaling_kernel")) else 1)
assert os.waitpid(child, 0)[1] == 0 and run(kernel)

data = launch.load_object(obj["data"], ["counts", "constants", "outside", "indirect", "data_of_others"])
i64 = ctypes.c_int64
call = lambda name, result, *kinds: ctypes.CFUNCTYPE(result, *kinds)(data[name])
assert [call("counts", i64)() for _ in range(3)] == [6, 7, 8] and call("indirect", i64, i64)(-4) == -8
assert [call("constants", i64, i64)(k) for k in range(4)] == [11, 22, 33, 44] and call("outside", ctypes.c_float, ctypes.c_float)(0.0) == 1.0
assert call("data_of_others", ctypes.c_void_p)() == ctypes.c_void_p.in_dll(ctypes.CDLL(None), "environ").value
try:
    launch.load_object(obj["lacking"], ["f"])
    raise AssertionError("linked")
except CompileError as e:
    assert "calls no_such_function, which" in str(e)

libc = ctypes.CDLL(None)  # the only memory that is free above what is taken: single pages, more than 2 GiB apart
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
reserve = lambda size: libc.mmap(None, size, 0, 0x4022, -1, 0)
blocks = [reserve(3 << 30) for _ in range(12)]
for _ in range(60000):
    if reserve(4096) < min(blocks):
        break
for b in blocks:
    libc.munmap(b + (1 << 20), 4096)
assert run(launch.load_function(obj["kernel"], "scaling_kernel"))
assert ctypes.CFUNCTYPE(i64)(launch.load_object(obj["data"], ["counts"])["counts"])() == 6
print("right on", os.uname().machine)
"""


LACKING = """
target triple = "{triple}"
declare float @no_such_function(float)
define float @f(float %x) {{
  %y = call float @no_such_function(float %x)
  ret float %y
}}
"""


@pytest.mark.first(1)
@pytest.mark.parametrize("machine, row, emulator", [
    ("aarch64", "aarch64", ["qemu-aarch64"]), ("riscv64", "rv64gcv", ["qemu-riscv64", "-cpu", "rv64,v=true,vlen=256"]), ("riscv64", "rv64gc", ["qemu-riscv64"])])
def test_kernels_are_linked_and_run_by_the_pool(machine, row, emulator, tmp_path):
    """As on a host of that machine, but that objects are compiled here: on several threads, in a forked child, in a crowded address space. Debuggers are
    told, what nobody holds goes, and a function that is not there is an error."""
    target = targets.get(row)
    with active.compiling_for(GPUTarget("cpu", row, 0)):
        made = triton.compile(ASTSource(fn=scaling_kernel, signature={"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32", "BLOCK": "constexpr"},
                                        constexprs={"BLOCK": 128}), target=GPUTarget("cpu", row, 0))
    texts = {"pool": pool_ir(target), "data": (IR + DATA).format(triple=target.triple), "lacking": LACKING.format(triple=target.triple)}
    for name, obj in {"kernel": cache.checked(made.asm["obj"], "scaling_kernel"), **{n: compile.emit_object(t, target) for n, t in texts.items()}}.items():
        (tmp_path / f"{name}.o").write_bytes(obj)
    (tmp_path / "linking.py").write_text(LINKING)
    said = python(machine, emulator, tmp_path / "linking.py", tmp_path, Path(__file__).parent.parent, made.metadata.scratch_bytes, made.metadata.work)
    assert f"right on {machine}" in said
