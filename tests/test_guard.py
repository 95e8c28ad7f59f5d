"""LLVM's crashes do not end the process: what it broke over is compiled at a lower level, and where no level works the error says so."""

import ctypes
import signal
import subprocess
import sys
import threading
import warnings

import pytest
import torch
import triton
import triton.language as tl
from conftest import HANGS
from triport.backends.base import CompileError
from triport.backends.cpu.llvm import guard, compile as llvm, targets
from triport.backends.cpu.run import launch

LIBC = ctypes.CDLL(None)
SIGNALS = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL)


def address(name: str) -> int:
    return ctypes.cast(getattr(LIBC, name), ctypes.c_void_p).value


def handlers() -> list[bytes]:
    out = []
    for s in SIGNALS:
        old = ctypes.create_string_buffer(512)
        LIBC.sigaction(int(s), None, old)
        out.append(old.raw[:8])  # the handler comes first
    return out


def test_a_call_returns():
    text = ctypes.create_string_buffer(b"four")
    assert guard.call(address("strlen"), ctypes.addressof(text)) == 4
    assert guard.call(address("labs"), (1 << 64) - 5) == 5


def test_a_crash_is_an_exception_again_and_again():
    before = handlers()
    for _ in range(20):
        with pytest.raises(guard.Crashed, match="SIGABRT"):
            guard.call(address("abort"))
        with pytest.raises(guard.Crashed, match="SIGSEGV"):
            guard.call(address("strlen"), 8)
        assert guard.call(address("labs"), 7) == 7
    assert handlers() == before


def test_recursion_without_end():
    target = targets.native()
    text = f"""target triple = "{target.triple}"
define i64 @deeper(i64 %n, i64 %b, i64 %c, i64 %d) noinline {{
  %room = alloca [4096 x i8]
  store volatile i8 1, ptr %room
  %m = add i64 %n, 1
  %r = call i64 @deeper(i64 %m, i64 %b, i64 %c, i64 %d)
  %q = load volatile i8, ptr %room
  %z = zext i8 %q to i64
  %s = add i64 %r, %z
  ret i64 %s
}}"""
    deeper = launch.load_object(llvm.emit_object(text, target), ["deeper"])["deeper"]
    ends = []

    def run():
        for _ in range(2):
            try:
                guard.call(deeper, 0)
            except guard.Crashed as e:
                ends.append(str(e))
        ends.append(guard.call(address("labs"), 7))

    before = threading.stack_size(1 << 20)  # the main thread's may be without limit, as under make
    try:
        thread = threading.Thread(target=run)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    assert ends == ["SIGSEGV", "SIGSEGV", 7]


@pytest.mark.parametrize("program, code", [
    ("os.abort()", -signal.SIGABRT), ("ctypes.string_at(8)", -signal.SIGSEGV),  # no call is being made
    ("t = threading.Timer(0.3, os.abort); t.start(); guard.call(sleep, 3)", -signal.SIGABRT)])  # another thread than the one that makes a call
def test_others_crashes_are_theirs(program, code):
    """They end the process as ever."""
    text = ("import ctypes, os, threading\nfrom triport.backends.cpu.llvm import guard\nlibc = ctypes.CDLL(None)\n"
            "sleep = ctypes.cast(libc.sleep, ctypes.c_void_p).value\n"
            "try: guard.call(ctypes.cast(libc.abort, ctypes.c_void_p).value)\nexcept guard.Crashed: pass\n" + program)
    assert subprocess.run([sys.executable, "-c", text], capture_output=True, timeout=HANGS).returncode == code


def breaks_at(levels, monkeypatch, name):
    """A guard in which calls about `name` crash as long as the level is among `levels`; the levels asked for."""
    asked = []
    plain, by_levels = llvm.guarded, llvm.by_levels

    def levelled(what, target, attempt):
        def noted(level):
            asked.append((what, level))
            return attempt(level)
        return by_levels(what, target, noted)

    def crash(function, *given):
        if asked[-1][0] == name and asked[-1][1] in levels:
            return guard.call(address("abort"))
        return plain(function, *given)

    monkeypatch.setattr(llvm, "by_levels", levelled)
    monkeypatch.setattr(llvm, "guarded", crash)
    return asked


@pytest.mark.parametrize("name", ["optimised", "generated code"])
@pytest.mark.parametrize("levels", [(3,), (3, 1)])
def test_the_next_level_is_right(name, levels, monkeypatch, tmp_path):
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    asked = breaks_at(levels, monkeypatch, name)

    @triton.jit
    def sums_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
        r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out_ptr + tl.program_id(0), tl.sum(tl.load(x_ptr + r, mask=r < n, other=0)))

    x, out = torch.randint(-99, 99, (1000,), dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    with pytest.warns(RuntimeWarning, match=rf"crashed \(SIGABRT\) while it {name} at level 3 .* slower"):
        sums_kernel[(8,)](x, out, 1000, BLOCK=128)
    assert torch.equal(out, torch.stack([c.sum() for c in x.split(128)]).to(torch.int32))
    assert [level for what, level in asked if what == name] == [*levels, *(n for n in llvm.LEVELS if n not in levels)][:len(levels) + 1]


def test_where_no_level_works_it_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    breaks_at(llvm.LEVELS, monkeypatch, "generated code")

    @triton.jit
    def lost_kernel(out_ptr):
        tl.store(out_ptr, 3)

    out = torch.zeros(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(CompileError, match="at every level.*in another way"):
            lost_kernel[(1,)](out)
        monkeypatch.undo()
        lost_kernel[(1,)](out)
    assert out.item() == 3


@triton.jit
def casts_kernel(x_ptr):
    r = tl.arange(0, 32)
    x = tl.load(x_ptr + tl.full([32], 0, tl.int32)).to(tl.int32).to(tl.float64)
    tl.store(x_ptr + r, tl.where(r < 17, x.to(tl.float16).to(tl.uint64), x.to(tl.uint64)))


def test_a_kernel_that_llvm_22_breaks_over():
    """Found by random kernels: joining the two conversions makes a shuffle of operands that do not fit."""
    x = torch.full((32,), 77, dtype=torch.uint64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        casts_kernel[(1,)](x)
    assert x.tolist() == [77] * 32


def test_crashes_leave_the_compiler_usable(monkeypatch):
    """A module lost half way does no harm to those that come after."""
    text = 'define i32 @f(i32 %x) {\n  %y = add i32 %x, 1\n  ret i32 %y\n}\n'
    row = targets.native()
    wanted = llvm.emit_assembly(llvm.optimise(text, row), row)
    for name in ("optimised", "generated code"):
        with monkeypatch.context() as m, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            breaks_at((3,), m, name)
            llvm.emit_object(llvm.optimise(text, row), row)
    assert llvm.emit_assembly(llvm.optimise(text, row), row) == wanted
