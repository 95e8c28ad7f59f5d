"""Objects of ours: kept on disk, linked into the process, shown to debuggers; what is remembered of the machine."""

import ctypes
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from conftest import HANGS
from triport.backends import memo
from triport.backends.cpu import cache
from triport.backends.cpu.run import elf, gdb, kept, link, llvm_linker, launch
from triport.backends.cpu.llvm import generator, host, compile as llvm, targets
from triton import knobs

x86 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="what is tested is made for x86-64 alone")

# --- objects that are kept ---------------------------------------------------------------------------------------------------

def test_the_threads_object_is_compiled_once(tmp_cache, monkeypatch):
    """And again for another row, another text, or where what is kept is damaged or cannot be kept."""
    compiled = []
    monkeypatch.setattr(generator, "in_registers", lambda text: text)
    monkeypatch.setattr(generator, "emit_object", lambda text, target: compiled.append(text) or text.encode())

    def write(target, text):
        return text

    row = targets.get("x86-64-v3")
    for _ in range(2):
        assert kept.emitted("pool", write, row, "some IR") == b"some IR" and len(compiled) == 1
    kept.emitted("pool", write, row, "other IR")
    kept.emitted("pool", write, targets.get("x86-64-v4"), "some IR")
    assert len(compiled) == 3
    for path in memo.folder().glob("pool-*.kept"):
        path.write_bytes(path.read_bytes().replace(b" IR", b" XX"))
    assert kept.emitted("pool", write, row, "some IR") == b"some IR" and len(compiled) == 4
    assert kept.emitted("pool", write, row, "some IR") == b"some IR" and len(compiled) == 4
    monkeypatch.setattr(host, "versions", lambda: {"llvmlite": "0", "LLVM": "0"})
    kept.emitted("pool", write, row, "some IR")
    assert len(compiled) == 5
    (tmp_cache / "file").write_text("")
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_cache / "file"))
    for n in (6, 7):
        assert kept.emitted("pool", write, row, "some IR") == b"some IR" and len(compiled) == n


# --- this machine ------------------------------------------------------------------------------------------------------------

def test_what_is_remembered_of_the_machine_is_what_llvm_says(tmp_cache):
    import llvmlite.binding
    host.facts.cache_clear()
    for _ in range(2):
        assert host.features() == dict(llvmlite.binding.get_host_cpu_features())
        assert host.versions() == {"llvmlite": llvmlite.__version__, "LLVM": ".".join(map(str, llvmlite.binding.llvm_version_info))}
        host.facts.cache_clear()


@x86
def test_every_core_says_the_same():
    """What the memo is kept under says which instructions there are, and not which core was asked."""
    allowed = os.sched_getaffinity(0)
    said = set()
    try:
        for core in sorted(allowed)[:16]:
            os.sched_setaffinity(0, {core})
            said.add(host.cpuid())
    finally:
        os.sched_setaffinity(0, allowed)
    assert len(said) == 1 and len(said.pop()) > 100


# --- linking -----------------------------------------------------------------------------------------------------------------

IR = """
target triple = "{triple}"
@table = internal constant [4 x i32] [i32 10, i32 20, i32 30, i32 40]
@wide = internal constant <8 x float> <float 1.0, float 2.0, float 3.0, float 4.0, float 5.0, float 6.0, float 7.0, float 8.0>, align 64
declare float @expf(float)
define i64 @twice(i64 %x) {{
  %y = mul i64 %x, 2
  ret i64 %y
}}
define i64 @constants(i64 %n) {{
  %p = getelementptr i32, ptr @table, i64 %n
  %v = load i32, ptr %p
  %w = sext i32 %v to i64
  %q = getelementptr float, ptr @wide, i64 %n
  %f = load float, ptr %q
  %i = fptosi float %f to i64
  %s = add i64 %w, %i
  ret i64 %s
}}
define float @outside(float %x) {{
  %y = call float @expf(float %x)
  ret float %y
}}
"""

#: what writes, and what reads data of others
DATA = """
@count = internal global i64 5
@zeros = internal global [5000 x i8] zeroinitializer, align 64
@pointer = internal global ptr @twice
@environ = external global ptr
define i64 @counts() {{
  %c = load volatile i64, ptr @count
  %d = add i64 %c, 1
  store volatile i64 %d, ptr @count
  %z = getelementptr i8, ptr @zeros, i64 4999
  %b = load volatile i8, ptr %z
  %e = zext i8 %b to i64
  %r = add i64 %d, %e
  ret i64 %r
}}
define i64 @indirect(i64 %x) {{
  %f = load volatile ptr, ptr @pointer
  %y = call i64 %f(i64 %x)
  ret i64 %y
}}
define ptr @data_of_others() {{
  %e = load ptr, ptr @environ
  ret ptr %e
}}
"""


def call(address: int, result, *kinds):
    return ctypes.CFUNCTYPE(result, *kinds)(address)


def maps(address: int) -> str:
    """The permissions of the memory at an address, "" where there is none."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(x, 16) for x in line.split()[0].split("-"))
        if low <= address < high:
            return line.split()[1]
    return ""


def compiled(ir: str) -> bytes:
    target = targets.native()
    return generator.emit_object(ir.format(triple=target.triple), target)


def by_llvm(obj: bytes):
    """An object linked into this process by LLVM."""
    return llvm_linker.link(obj, {s: link.address_of(s) for s in elf.undefined_symbols(obj)})


LINKERS = pytest.mark.parametrize("linked_by", [pytest.param(link.link, marks=x86, id="own"), pytest.param(by_llvm, id="LLVM")])


@pytest.mark.parametrize("linker", [pytest.param("own", marks=x86), "LLVM"])
def test_linked_code_runs(linker, monkeypatch):
    """Constants, functions of libc; data that is written, zeros, pointers in data and data of libc. Who links is as the launch decides."""
    def unknown(obj):
        raise link.Unknown("of the test")

    if linker == "LLVM":
        monkeypatch.setattr(link, "link", unknown)
    else:
        monkeypatch.setitem(sys.modules, "triport.backends.cpu.run.llvm_linker", None)
    at = launch.load_object(compiled(IR + DATA), ["twice", "constants", "outside", "counts", "indirect", "data_of_others"])
    i64 = ctypes.c_int64
    assert call(at["twice"], i64, i64)(21) == 42
    assert [call(at["constants"], i64, i64)(n) for n in range(4)] == [11, 22, 33, 44]
    assert call(at["outside"], ctypes.c_float, ctypes.c_float)(0.0) == 1.0
    assert [call(at["counts"], i64)() for _ in range(3)] == [6, 7, 8]
    assert call(at["indirect"], i64, i64)(-4) == -8
    assert call(at["data_of_others"], ctypes.c_void_p)() == ctypes.c_void_p.in_dll(ctypes.CDLL(None), "environ").value


@LINKERS
def test_code_cannot_be_written_and_leaves_when_unloaded(linked_by):
    linked = linked_by(compiled(IR + DATA))
    address = linked.symbols["twice"]
    assert maps(address) == "r-xp"
    if linked_by is link.link:
        assert "rw-p" in maps(linked.memory.address + linked.memory.size - 1)
    before = gdb.shown()
    linked.unload()
    assert len(gdb.shown()) == len(before) - 1
    assert maps(address) == ""


@LINKERS
def test_the_unwinder_knows_its_frames(linked_by):
    """Until it is unloaded: a thread that ends inside what a kernel's launcher calls unwinds through it."""
    unwinder = ctypes.CDLL("libgcc_s.so.1")
    find = getattr(unwinder, "_Unwind_Find_FDE")
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_void_p]
    linked = [linked_by(compiled(IR + DATA)) for _ in range(2)]
    bases = (ctypes.c_void_p * 3)()
    inside = [one.symbols["indirect"] + 1 for one in linked]
    assert all(find(at, bases) for at in inside)
    linked[0].unload()
    assert not find(inside[0], bases) and find(inside[1], bases)
    linked[1].unload()


@x86
def test_what_it_does_not_know_it_does_not_guess():
    target = targets.native()
    thread_local = f'target triple = "{target.triple}"\n@t = thread_local global i32 1\ndefine ptr @f() {{\n  ret ptr @t\n}}\n'
    with pytest.raises(link.Unknown):
        link.link(llvm.emit_object(thread_local, target))
    row = targets.get("aarch64")
    with pytest.raises(link.Unknown, match="x86-64"):
        link.link(llvm.emit_object(f'target triple = "{row.triple}"\ndefine void @f() {{\n  ret void\n}}\n', row))
    with pytest.raises(link.Unknown):
        link.link(b"not an object at all, and long enough for a header" * 4)


# --- debuggers ---------------------------------------------------------------------------------------------------------------

@LINKERS
def test_debuggers_are_told_where_code_lies(linked_by):
    before = len(gdb.shown())
    linked = [linked_by(compiled(IR)) for _ in range(3)]
    assert len(gdb.shown()) == before + 3
    linked[1].unload()  # from the middle
    assert len(gdb.shown()) == before + 2
    for obj, one in zip(gdb.shown(), (linked[2], linked[0])):  # the newest first
        text = next(s for s in elf.sections(obj) if s.flags & elf.EXEC and s.size)
        placed = int.from_bytes(obj[text.at + 16:text.at + 24], "little")
        twice = next(s for s in elf.symbols(obj) if s.name == "twice")
        assert placed + twice.value == one.symbols["twice"]
    for one in (linked[0], linked[2]):
        one.unload()
    assert len(gdb.shown()) == before


@triton.jit
def seen_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(out_ptr + offs, x * x, mask=offs < n)


CALLS = """
import ctypes, sys
from triport.backends.cpu.run import launch, link
path, how = sys.argv[1:]
if how == "LLVM":
    def unknown(obj):
        raise link.Unknown("of the test")
    link.link = unknown
x, out = (ctypes.c_float * 2)(3, 4), (ctypes.c_float * 2)()
args = (ctypes.c_int64 * 3)(ctypes.addressof(x), ctypes.addressof(out), 2)
kernels = [launch.load_function(open(path, "rb").read(), "seen_kernel") for _ in range(2)]
while kernels:
    kernel = kernels.pop()
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, *[ctypes.c_int32] * 3)
    assert kind(kernel.address)(ctypes.addressof(args), 0, 0, 1, 1, 1, 1) == 0 and list(out) == [9, 16]
    del kernel
    launch.loaded.free()
print("right")
"""


@x86
@pytest.mark.skipif(not shutil.which("gdb"), reason="gdb is not installed")
@pytest.mark.parametrize("how", ["own", "LLVM"])
def test_gdb_stops_in_a_kernel(how, tmp_path):
    """On a Python line, in each of two copies, and it knows who called it, all the way to the interpreter."""
    made = seen_kernel.warmup(torch.empty(2), torch.empty(2), 2, BLOCK=8, grid=(1,))
    (tmp_path / "kernel.o").write_bytes(cache.checked(made.asm["obj"], "seen_kernel"))
    (tmp_path / "calls.py").write_text(CALLS)
    line = inspect.getsourcelines(seen_kernel.fn)[1] + 4
    assert "tl.store" in Path(__file__).read_text().split("\n")[line - 1]
    stop = ["set breakpoint pending on", f"break test_link.py:{line}", "run", "backtrace", "continue", "backtrace 1", "continue"]
    program = [sys.executable, str(tmp_path / "calls.py"), str(tmp_path / "kernel.o"), how]
    done = subprocess.run(["gdb", "-nx", "-batch", *(f"-ex={c}" for c in stop), "--args", *program],
                          capture_output=True, text=True, timeout=HANGS, env={k: v for k, v in os.environ.items() if k != "DEBUGINFOD_URLS"})
    said = done.stdout + done.stderr
    if "ptrace" in said and "right" not in said:
        pytest.skip("this system does not let gdb run a process")
    assert len(re.findall(rf"#0  .*seen_kernel \(\) at .*test_link.py:{line}$", done.stdout, re.M)) == 2, said[-3000:]
    assert "right" in done.stdout and re.search(r"#\d+ .* in (main|_start|Py_BytesMain) ", done.stdout), said[-3000:]
