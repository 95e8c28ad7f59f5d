"""Kernels for a debugger (TRITON_CPU_DEBUG=1): Python's variables in gdb, right results, and nothing of it in other kernels."""

import os
import platform
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from conftest import HANGS
from triport.backends.base import CompileError
from triport.backends.cpu.compiler import CPUBackend
from triport.backends.cpu.emit.element import narrow
from triport.backends.cpu.emit.module import lower_module
from triport.backends.cpu.llvm import targets
from triport.backends.cpu.run import gdb, gdb_printers
from triport.backends.cpu.ttir import locations, reader
from triton.backends.compiler import GPUTarget

PLANS = Path(__file__).parent / "plans"

# --- in gdb ------------------------------------------------------------------------------------------------------------------

SCRIPT = '''\
import torch, triton, triton.language as tl

@triton.jit
def scaled(v, by):
    product = v * by
    return product + 1

@triton.jit
def kernel(x_ptr, y_ptr, f_ptr, out_ptr, n, scale, BLOCK: tl.constexpr, KIND: tl.constexpr):
    pid = tl.program_id(0)
    if pid > 5:
        never = pid + 1
        return
    HALF: tl.constexpr = BLOCK // 2
    offs = pid * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    acc = tl.zeros([2, HALF], tl.float32)
    x = tl.load(x_ptr + offs, mask=mask, other=-1.0)
    for i in range(2, 5):
        acc += tl.reshape(scaled(x, scale), [2, HALF]) * i  # stop in the loop
    x = tl.sum(x)
    y = tl.load(y_ptr + offs)
    bytes_of_it = tl.load(f_ptr + offs)
    tl.store(out_ptr + offs, tl.reshape(acc, [BLOCK]) + x, mask=mask)  # stop at the end

if __name__ == "__main__":
    x = torch.arange(16) / 4
    out = torch.empty(16)
    kernel[(2,)](x, (x * 3).bfloat16(), (x * 2).to(torch.float8_e4m3fn), out, 13, 0.5, BLOCK=8, KIND="some")
    print("out", out[:13].tolist())
'''


def locals_of(text: str) -> list[dict[str, str]]:
    """What each `info locals`, between lines "echo ---", printed: name -> text, the innermost of one name."""
    out = []
    for part in re.split(r"^---\n", text, flags=re.M)[1::2]:
        found = {}
        for m in re.finditer(r"^(\w+) = (.*)$", part, re.M):
            found.setdefault(m[1], m[2])
        out.append(found)
    return out


def numbers(text: str) -> torch.Tensor:
    return torch.tensor([float(x) for x in re.findall(r"-?\b(?:\d+\.?\d*(?:e[-+]?\d+)?|nan|inf)\b", text.partition("{")[2])])


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """(what gdb printed of each place where it stopped, all that it said)."""
    if not shutil.which("gdb"):
        pytest.skip("gdb is not installed")
    if sys.platform != "linux":
        pytest.skip("gdb is not used on this system")
    folder = tmp_path_factory.mktemp("debugged")
    (folder / "kernel.py").write_text(SCRIPT)
    line = {word: n for n, text in enumerate(SCRIPT.split("\n"), 1) for word in ("return product", "in the loop", "at the end") if word in text}
    show = ["echo ---\\n", "info locals", "echo ---\\n"]
    commands = ["set breakpoint pending on", "set width 0", "set print elements 100", f"source {gdb_printers.__file__}",
                f"break kernel.py:{line['in the loop']} if i == 3", f"break kernel.py:{line['at the end']} if program_id.x == 1",
                "run", *show, f"tbreak kernel.py:{line['return product']} if program_id.x == 0", "continue", "backtrace 2", *show, "up", *show, "delete 1", "continue",
                *show, "continue"]
    env = {k: v for k, v in os.environ.items() if k not in ("DEBUGINFOD_URLS", "TRITON_INTERPRET")} | {
        "TRITON_CPU_DEBUG": "1", "TRITON_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(["gdb", "-q", "-nx", "-batch", *(f"-ex={c}" for c in commands), "--args", sys.executable, str(folder / "kernel.py")],
                          capture_output=True, text=True, timeout=HANGS, env=env)
    said = done.stdout + done.stderr
    if "ptrace" in said and "out [" not in said:
        pytest.skip("this system does not let gdb run a process")
    assert "exited normally" in said, said[-3000:]
    return locals_of(done.stdout), said


@pytest.mark.first(0)
def test_gdb_shows_scalars_and_blocks(session):
    """In a loop's second turn, before the line at which it stopped is carried out."""
    (loop, *_), said = session
    assert "x_ptr" in loop, said[-3000:]
    x = torch.arange(16) / 4
    want = {"pid": "0", "i": "3", "n": "13", "scale": "0.5", "BLOCK": "8", "HALF": "4", "KIND": '"some"', "program_id": "{x = 0, y = 0, z = 0}",
            "num_programs": "{x = 2, y = 1, z = 1}"}
    assert {k: loop.get(k) for k in want} == want
    assert loop["x"].startswith("fp32[8] {") and torch.equal(numbers(loop["x"]), x[:8])
    assert loop["offs"] == "int32[8] {0, 1, 2, 3, 4, 5, 6, 7}" and loop["mask"] == "bool[8] {" + ", ".join(["True"] * 8) + "}"
    assert loop["acc"].startswith("fp32[2, 4] {{") and torch.equal(numbers(loop["acc"]), (x[:8] * 0.5 + 1) * 2)
    assert not loop.keys() & {"y", "bytes_of_it", "never"}, "what has not been assigned is not there"


def test_gdb_shows_a_function_that_was_inlined(session):
    (loop, inside, around, _), said = session
    assert re.search(r"#0 +scaled \(\) at .*kernel.py:6\n#1 +kernel \(\) at .*kernel.py:20", said), said[-3000:]
    assert inside.keys() == {"v", "by", "product", "program_id", "num_programs"} and not loop.keys() & {"product", "__return__"} and inside["by"] == "0.5"
    assert inside["program_id"] == "{x = 0, y = 0, z = 0}" and inside["product"].startswith("fp32[8] {"), "as in the kernel"
    assert torch.equal(numbers(inside["product"]), torch.arange(8) / 8)
    assert around["i"] == "3" and "by" not in around


def test_gdb_shows_narrow_floats_and_the_later_of_two_types(session):
    """In the second program; x has become a scalar, behind a return that was not taken."""
    (*_, end), said = session
    x = torch.arange(16) / 4
    loaded = torch.where(torch.arange(8) < 5, x[8:], -1)
    acc = sum((loaded * 0.5 + 1) * i for i in (2, 3, 4))
    assert end["pid"] == "1" and float(end["x"]) == loaded.sum() and torch.equal(numbers(end["acc"]), acc)
    assert end["y"].startswith("bf16[8] {") and torch.equal(numbers(end["y"]), (x[8:] * 3).bfloat16().float())
    assert end["bytes_of_it"].startswith("fp8e4nv[8] {") and torch.equal(numbers(end["bytes_of_it"]), (x[8:] * 2).to(torch.float8_e4m3fn).float())
    assert "i" not in end and "never" not in end
    out = torch.tensor(eval(re.search(r"^out (.*)$", said, re.M)[1]))
    assert torch.equal(out[8:], (acc + loaded.sum())[:5])


@pytest.mark.parametrize("name", sorted(narrow.NARROW - {"bf16"}))
def test_printers_know_the_narrow_floats(name):
    for bits in range(256):
        want, got = narrow.decode(bits, name), gdb_printers.fp8(bits, name)
        assert want == got or want != want and got != got, bits
    assert gdb_printers.shortest(0.1, "fp64") == "0.1" and gdb_printers.shortest(torch.tensor(0.1).item(), "fp32") == "0.1"


# --- results -----------------------------------------------------------------------------------------------------------------

@triton.jit
def larger(a, b):
    chosen = tl.where(a > b, a, b)
    return chosen


@triton.jit
def capped(a, b):
    if a > 0.5:
        limit = b * 2
        return limit
    return larger(a, b)


@triton.jit
def softmax_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=float("-inf"))
    e = tl.exp(x - tl.max(x))
    tl.store(out_ptr + row * n + cols, e / tl.sum(e), mask=cols < n)


@triton.jit
def matmul_kernel(a_ptr, b_ptr, out_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    a_ptrs = a_ptr + m[:, None] * K + k[None, :]
    b_ptrs = b_ptr + k[:, None] * N + n[None, :]
    acc = tl.zeros([BM, BN], tl.float32)
    for start in range(0, K, BK):
        a = tl.load(a_ptrs, mask=(m[:, None] < M) & (k[None, :] + start < K), other=0.0)
        b = tl.load(b_ptrs, mask=(k[:, None] + start < K) & (n[None, :] < N), other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += BK
        b_ptrs += BK * N
    tl.store(out_ptr + m[:, None] * N + n[None, :], acc, mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit
def many_kernel(x_ptr, out_ptr, count_ptr, n, BLOCK: tl.constexpr):
    """A while loop, branches, reductions by functions of one's own, scans, a sort, atomics, and values that are assigned again and again."""
    pid = tl.program_id(0)
    if pid == 3:
        return
    offs = pid * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0)
    most = larger(tl.reduce(x, 0, larger), 0.0)
    running = tl.associative_scan(x, 0, larger)
    ordered = tl.sort(x)
    high = tl.map_elementwise(capped, x, running)
    steps, left = 0, most
    while left > 0.25:
        left = left * 0.5
        steps += 1
    if steps > 1:
        y = running + left
        before = x
        x = x + 1
        y = y + before
    else:
        y = running - left
    for k in tl.static_range(3):
        y = y * 1.5 + k
    tl.atomic_add(count_ptr, steps)
    tl.atomic_max(count_ptr + 1, tl.max(tl.where(mask, offs, 0)))
    tl.store(out_ptr + offs, y + ordered + x + high, mask=mask)


@triton.jit
def overlapping_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    y = x * 2
    tl.store(out_ptr + offs, y)
    z = tl.load(x_ptr + offs)
    tl.store(out_ptr + offs, z + x)


def runs(kernel, grid, *args, **consts):
    """The kernel as compiled for a debugger, and launched."""
    made = kernel[grid](*args, **consts, debugger=True)
    assert "DILocalVariable" in made.asm["llir"] and "emissionKind: FullDebug" in made.asm["llir"]
    return made


@pytest.mark.parametrize("shape", [(3, 5), (4, 16), (2, 100)])
def test_softmax(shape, seed):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    out = torch.empty_like(x)
    runs(softmax_kernel, (shape[0],), x, out, shape[1], BLOCK=triton.next_power_of_2(shape[1]))
    assert torch.allclose(out, torch.softmax(x.double(), 1).float(), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [(16, 16, 16), (33, 20, 70)])
def test_matmul(size, dtype, seed):
    (m, n, k), generator = size, torch.Generator().manual_seed(seed)
    a, b, out = (torch.randn(s, generator=generator).to(dtype) for s in ((m, k), (k, n), (m, n)))
    out = out.float()
    runs(matmul_kernel, (triton.cdiv(m, 16), triton.cdiv(n, 32)), a, b, out, m, n, k, BM=16, BN=32, BK=16)
    want = a.double() @ b.double()
    assert (out - want).abs().max() < 1e-3 * want.abs().max()


def test_loops_branches_reductions_scans_and_atomics(seed):
    """As optimised, which other tests hold against references."""
    n = 150
    x = torch.rand(n, generator=torch.Generator().manual_seed(seed))
    outs, counts = torch.zeros(2, n), torch.zeros(2, 2, dtype=torch.int32)
    many_kernel[(4,)](x, outs[0], counts[0], n, BLOCK=64)
    runs(many_kernel, (4,), x, outs[1], counts[1], n, BLOCK=64)
    assert torch.allclose(outs[0], outs[1]) and torch.equal(counts[0], counts[1]) and counts[1, 1] == n - 1


def test_stores_are_seen_by_the_loads_behind_them():
    x = torch.arange(8.0)
    runs(overlapping_kernel, (1,), x, x, BLOCK=8)
    assert torch.equal(x, torch.arange(8.0) * 3)


def test_programs_run_one_after_the_other_in_the_calling_thread():
    from triport.backends.cpu.run import launch, metadata
    made = runs(softmax_kernel, (2,), torch.ones(2, 4), torch.empty(2, 4), 4, BLOCK=4)
    assert made.metadata.work == metadata.ALONE
    assert launch.team_of(1 << 30, metadata.ALONE, 64) == 1


# --- what is named -----------------------------------------------------------------------------------------------------------

def test_the_plan_names_each_assignment(seed):
    made = many_kernel.warmup(torch.empty(1), torch.empty(1), torch.empty(1, dtype=torch.int32), 1, BLOCK=64, grid=(1,), debugger=True)
    first = many_kernel.fn.__code__.co_firstlineno
    named = [(int(m[1]) - first, m[2], m[3]) for m in re.finditer(r"line (\d+): (\w+) is (.*)$", made.asm["plan"], re.M)]
    shapes = {(name, what.split(" at ")[0]) for _, name, what in named}
    assert {("pid", "a scalar"), ("BLOCK", "64"), ("x", "64 f32"), ("mask", "64 i1"), ("offs", "64 i32"), ("steps", "a scalar"), ("left", "a scalar"),
            ("y", "64 f32"), ("most", "a scalar"), ("running", "64 f32"), ("ordered", "64 f32"), ("k", "0"), ("k", "1"), ("k", "2"),
            ("before", "64 f32")} <= shapes
    assert [what for _, name, what in named if name == "chosen"] == ["a scalar"], "where the kernel calls it, not where it combines elements"
    assert "limit" not in {name for _, name, _ in named}
    assert (6, "offs", "64 i32 at 0") in named


# --- other kernels -----------------------------------------------------------------------------------------------------------

def test_the_variable_turns_it_on(monkeypatch):
    backend = CPUBackend(GPUTarget("cpu", 0, 0))
    assert [backend.parse_options(o).debugger for o in ({}, {"debugger": True})] == [False, True]
    keys = set()
    for value, wanted in (("0", False), ("", False), ("1", True)):
        monkeypatch.setenv("TRITON_CPU_DEBUG", value)
        options = backend.parse_options({})
        assert options.debugger is wanted
        keys.add(options.hash())
    assert len(keys) == 2


def test_nothing_of_it_is_in_other_kernels():
    made = many_kernel.warmup(torch.empty(1), torch.empty(1), torch.empty(1, dtype=torch.int32), 1, BLOCK=64, grid=(1,))
    assert "tt.print" not in made.asm["ttir"] and " is " not in made.asm["plan"]
    assert "LineTablesOnly" in made.asm["llir"] and not re.search("DILocalVariable|dbg_declare|inlinedAt|DILexicalBlock\\(", made.asm["llir"])


@pytest.mark.parametrize("name", ["argmax", "atomic", "axpy"])
def test_who_calls_what_was_inlined_changes_no_code(name, monkeypatch):
    text, row = (PLANS / f"{name}.ttir").read_text(), targets.get("x86-64-v4")
    with_callers = lower_module(reader.parse(text), row).text
    resolve = locations.Locations.resolve
    monkeypatch.setattr(locations.Locations, "resolve", lambda self, t: type(loc := resolve(self, t))(loc.file, loc.line))
    assert lower_module(reader.parse(text), row).text == with_callers


@triton.jit
def stopping_kernel(x_ptr, STOP: tl.constexpr):
    x = tl.load(x_ptr)
    if STOP:
        breakpoint()
    tl.store(x_ptr, x + 1)


def test_a_breakpoint_says_how_to_get_to_a_debugger():
    x = torch.zeros(1)
    stopping_kernel[(1,)](x, STOP=False)
    assert x[0] == 1
    with pytest.raises(CompileError, match="TRITON_INTERPRET=1") as caught:
        stopping_kernel[(1,)](x, STOP=True)
    line = stopping_kernel.fn.__code__.co_firstlineno + 4
    assert f"test_debugger.py:{line}" in str(caught.value) and "TRITON_CPU_DEBUG=1 gdb" in str(caught.value)


def test_a_breakpoint_of_the_kernels_own_is_a_function_like_any_other(tmp_path, monkeypatch):
    path = tmp_path / "own_breakpoint.py"
    path.write_text(textwrap.dedent("""
        import triton, triton.language as tl
        @triton.jit
        def breakpoint(x):
            return x + 1
        @triton.jit
        def kernel(x_ptr):
            tl.store(x_ptr, breakpoint(tl.load(x_ptr)))
    """))
    monkeypatch.syspath_prepend(tmp_path)
    import own_breakpoint
    x = torch.zeros(1)
    own_breakpoint.kernel[(1,)](x)
    assert x[0] == 1


def test_where_files_may_not_be_as_long(monkeypatch):
    """What is loaded for debuggers is written whole or not loaded: of a file that ends in the middle reading is SIGBUS."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:4096]))
    assert len(gdb.library(platform.machine())) > 4096 and gdb.interface.__wrapped__() is None
