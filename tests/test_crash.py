"""Crashes inside kernels: what is said of them, and that the process dies as it would have."""

import os
import re
import resource
import signal
import struct
import subprocess
import sys
import textwrap

import pytest
import triton
import triton.language as tl
from conftest import HANGS
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triport.backends import active
from triport.backends.cpu import cache
from triport.backends.cpu.run import crash, crash_report, lines

SETUP = """
import ctypes, faulthandler, os, signal, sys
import torch, triton, triton.language as tl

@triton.jit
def wild_kernel(x_ptr, out_ptr, n, FAR: tl.constexpr):
    pid = tl.program_id(0)
    x = tl.load(x_ptr + pid)
    far = tl.where(pid + 64 * tl.program_id(1) == n, FAR, 0)
    tl.store(out_ptr + pid + far, x + 1)  # here

@triton.jit
def once_kernel(count_ptr, out_ptr):
    seen = tl.atomic_add(count_ptr, 1)
    far = tl.where(seen == 3, 1 << 40, 0)
    tl.store(out_ptr + far, seen)  # here

torch.set_num_threads(int(os.environ.get("TEAM", "1")))
FAR = 1 << 40
x, out = torch.zeros(64), torch.zeros(64)
def crash(program, far=FAR):
    wild_kernel[(64, 2)](x, out, program, FAR=far)
"""
LINE = 1 + SETUP[:SETUP.index("# here")].count("\n")
OURS = "triton-cpu:"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the kernels are, and Triton's cache: it keeps a kernel's object with the path that it had when it was compiled."""
    folder = tmp_path_factory.mktemp("crash")
    (folder / "wild.py").write_text(SETUP)
    return folder


@pytest.fixture
def die(folder, tmp_path):
    """What a script wrote to stderr that dies of a signal."""

    def run(code: str, of: int = signal.SIGSEGV, **env) -> str:
        path = tmp_path / "script.py"
        path.write_text(f"import sys\nsys.path.append({str(folder)!r})\nfrom wild import *\n" + textwrap.dedent(code))
        env = {**os.environ, "TRITON_CACHE_DIR": str(folder / "cache"), **env}
        done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=HANGS, env=env,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)))
        assert done.returncode == -of, done.stderr
        return done.stderr

    return run


@pytest.mark.parametrize("team, threads, handler", [("1", "openmp", "none"), ("2", "openmp", "none"), ("2", "own", "before"), ("2", "openmp", "after"),
                                                    ("1", "openmp", "after")])
def test_a_crash_names_kernel_line_program_and_address(die, folder, team, threads, handler):
    """With faulthandler enabled before the first launch, behind it, and not at all; in one of many programs."""
    enable = "faulthandler.enable()"
    program = {"none": 5, "before": 127, "after": 64}[handler]
    said = die(f"""
        {enable if handler == "before" else ""}
        crash(1000)
        {enable if handler == "after" else ""}
        crash({program})
        """, TEAM=team, TRIPORT_THREADS=threads)
    assert f"triton-cpu: kernel wild_kernel crashed at {folder}/wild.py:{LINE}: SIGSEGV in program ({program % 64}, {program // 64}, 0) of grid (64, 2, 1)" in said
    assert "    tl.store(out_ptr + pid + far, x + 1)  # here\n" in said
    offset = 4 * ((1 << 40) + program % 64)
    assert re.search(rf"It accessed address 0x[0-9a-f]+, {offset} bytes \({offset // 4} elements of fp32\) behind where argument out_ptr points\.", said)
    assert "TRITON_CPU_CHECK=bounds" in said and said.count(OURS) == 1
    assert said.count("Fatal Python error: Segmentation fault") == (handler != "none")
    assert ("in crash" in said) == (handler != "none"), "faulthandler's traceback"


def test_addresses_that_are_none(die):
    assert "argument out_ptr is a null pointer." in die("wild_kernel[(1,)](x, torch.empty(0), 0, FAR=5)")
    assert ("The address that it accessed is none that memory can have." in die("crash(0, 1 << 58)")) == (os.uname().machine == "x86_64")


def test_a_file_that_became_shorter(die, tmp_path):
    said = die(f"""
        path = {str(tmp_path / "data")!r}
        open(path, "wb").write(bytes(1 << 16))
        x = torch.from_file(path, shared=True, size=1 << 14, dtype=torch.float32)[8192:]
        os.truncate(path, 0)
        wild_kernel[(4,)](x, out, 1000, FAR=FAR)
        """, of=signal.SIGBUS)
    assert "SIGBUS in program (0, 0, 0) of grid (4, 1, 1)" in said and "0 bytes (0 elements of fp32) behind where argument x_ptr points" in said


def test_a_program_that_crashes_only_once_is_one_of_several(die):
    said = die("""
        count = torch.zeros(1, dtype=torch.int32)
        once_kernel[(64,)](count, torch.zeros(1, dtype=torch.int32))
        """)
    assert re.search(r"once_kernel crashed at .*wild.py:\d+: SIGSEGV in one of the programs \(0, 0, 0\) to \(7, 0, 0\) of grid \(64, 1, 1\)", said)


@pytest.mark.parametrize("enable, end, of", [("", "ctypes.string_at(8)", signal.SIGSEGV), ("faulthandler.enable()", "ctypes.string_at(8)", signal.SIGSEGV),
                                             ("", "os.kill(os.getpid(), signal.SIGSEGV)", signal.SIGSEGV),
                                             ("faulthandler.enable()", "signal.raise_signal(signal.SIGFPE)", signal.SIGFPE)])
def test_a_crash_elsewhere_is_nobodys_kernel(die, enable, end, of):
    said = die(f"{enable}\ncrash(1000)\n{end}\n", of=of)
    assert OURS not in said and ("Fatal Python error" in said) == bool(enable)


def test_without_a_python_to_report_there_is_a_line(die):
    assert die("sys.executable = ''\ncrash(3)") == "triton-cpu: kernel wild_kernel crashed; run again with TRITON_CPU_CHECK=bounds\n"


def test_without_it_nothing_is_said(die):
    """TRIPORT_CRASH_REPORT=0."""
    assert die("crash(3)", TRIPORT_CRASH_REPORT="0") == ""


def report(**given) -> str:
    """What is printed for what a handler wrote: a kernel with an f16 pointer x at 4096 and a number."""
    name, arguments, packed = b"some_kernel", b"x\t*fp16\nn\ti32\n", struct.pack("<QQ", 4096, 7)
    fields = dict.fromkeys(crash.REPORT.fields, 0) | dict(signal=11, code=1, address=4090, inner=1, first=4, last=5, program=4, gx=2, gy=3, gz=1,
                                                          label=len(name), arguments=len(arguments), slots=2) | given
    return crash_report.text(struct.pack(f"<{len(fields)}q", *fields.values()) + name + arguments + packed)


def test_a_report_without_an_object():
    assert list(crash.REPORT.fields) == list(crash_report.FIELDS)
    assert report().splitlines()[:2] == ["triton-cpu: kernel some_kernel crashed: SIGSEGV in program (0, 2, 0) of grid (2, 3, 1)",
                                         "  It accessed address 0xffa, 6 bytes (3 elements of fp16) before where argument x points."]
    assert "crashed (in a function that it calls there): SIGFPE in one of" in report(inner=0, signal=8, program=-1)
    assert "address" not in report(signal=8)


def test_the_nearest_argument_is_meant_and_far_away_the_one_that_the_line_names():
    packed = struct.pack("<3Q", 1 << 20, 1 << 30, 5)
    near = lambda address, line: crash_report.nearest(address, ["x_ptr\t*fp32", "y_ptr\t*fp32", "n\ti32"], packed, line)[0]  # noqa: E731
    assert [near((1 << 20) + 4000, line) for line in ("", "x_ptr", "y_ptr + n")] == ["x_ptr"] * 3
    assert [near(1 << 40, line) for line in ("", "my_x_ptr", "load(x_ptr)", "y_ptr", "x_ptr, y_ptr")] == ["y_ptr", "y_ptr", "x_ptr", "y_ptr", "y_ptr"]
    assert crash_report.nearest(5, ["n\ti32"], packed, "") is None


@triton.jit
def lines_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(out_ptr + offs, tl.exp(x), mask=offs < n)


@pytest.mark.parametrize("row", ["x86-64-v3", "aarch64", "rv64gc", "rv64gcv"])
def test_line_tables_are_read(row):
    with active.compiling_for(GPUTarget("cpu", row, 0)):
        made = triton.compile(ASTSource(fn=lines_kernel, signature={"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32", "BLOCK": "constexpr"},
                                        constexprs={"BLOCK": 128}), target=GPUTarget("cpu", row, 0))
    obj = cache.checked(made.asm["obj"], "lines_kernel")
    size = next(s.size for s in lines.elf.symbols(obj) if s.name == "lines_kernel")
    start = lines_kernel.fn.__code__.co_firstlineno
    found = [lines.line_of(obj, at) for at in range(size)]
    assert {line for _, line in filter(None, found)} == {start + k for k in (1, 2, 3, 4)} and found.count(None) < size // 2
    assert {os.path.basename(file) for file, _ in filter(None, found)} == {os.path.basename(__file__)}
    assert lines.line_of(obj, size + 16) is None
