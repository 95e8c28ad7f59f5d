"""`triport check` and docs/checking.md: what is printed, exit codes, one fault of each kind; and the kind "nan"."""

import re
import subprocess
import sys

import pytest
import torch
import triton
import triton.language as tl
from conftest import HANGS, ROOT
from triport.backends.cpu.emit.module import lower_module
from triport.backends.cpu.llvm import targets
from triport.backends.cpu.ttir import reader
from triport.checking import KINDS, CheckError, checks
from triport.tools.__main__ import main

EXAMPLES = "docs/examples/faults.py"


def said(argv, capsys):
    """(exit code, stdout, stderr) of a command."""
    try:
        code = main(argv)
    except SystemExit as e:
        code = e.code
    return code, *capsys.readouterr()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_page_shows_what_is_printed(kind, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    code, out, err = said(["check", f"{EXAMPLES}:{kind}", "--kinds", kind], capsys)
    assert code == 1
    shown = re.search(rf"\$ triport check {EXAMPLES}:{kind} --kinds {kind}\n(.*?)\n```", (ROOT / "docs" / "checking.md").read_text(), re.S)[1]
    assert (err + out).replace(f"{ROOT}/", "").strip() == shown.strip()


def test_the_right_kernels_pass(capsys):
    code, out, _ = said(["check", "square", "--kinds", "all", "--case", "70x33", "--dtype", "fp32"], capsys)
    assert code == 0 and "1 launch of 1 kernel checked for bounds, race, uninit, overflow, nan: nothing found" in out


@pytest.mark.parametrize("argv, words", [
    (["check", "squar"], "did you mean 'square'"), (["check", "square", "--kinds", "bond"], "did you mean 'bounds'"),
    (["check", "square", "--kinds", ""], "--kinds"), (["check", "square", "--kinds", "foo"], "Known: all, bounds, "), (["check", "nothing.py"], "no such script"),
    (["check", "square", "--dtype", "fp31"], "fp32"), (["check", "square", "--case", "7xx"], "7xx")])
def test_what_cannot_be_checked_is_told_in_a_sentence(argv, words, capsys):
    code, out, err = said(argv, capsys)
    assert code == 2 and words in err and "Traceback" not in err


@pytest.mark.parametrize("command", ["check", "profile"])
def test_a_kernel_is_no_function(command, tmp_path, capsys):
    (tmp_path / "k1.py").write_text("import triton\n@triton.jit\ndef vecloop():\n    pass\n")
    code, _, err = said([command, f"{tmp_path}/k1.py:vecloop"], capsys)
    assert code == 2 and err.endswith(f"triport {command}: {tmp_path}/k1.py:vecloop is a kernel; name a function that launches it\n")


SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
import faults
faults.bounds()
print("went on", sys.argv[1:])
sys.exit(7)
"""


def test_scripts_end_as_they_end_and_faults_are_told(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT.format(folder=str(ROOT / "docs" / "examples")))

    def run(*options):
        return subprocess.run([sys.executable, "-m", "triport.tools", "check", *options, "--", "script.py", "--deep"], cwd=tmp_path, capture_output=True,
                              text=True, timeout=HANGS)

    stopped = run()
    assert stopped.returncode == 1 and "went on" not in stopped.stdout and "CheckError" in stopped.stderr and "1 fault in 1 kernel" in stopped.stdout
    going = run("--keep-going")
    assert going.returncode == 1 and "went on ['--deep']" in going.stdout and "lane 1000" in going.stderr
    right = run("--kinds", "overflow")
    assert right.returncode == 7 and "nothing found" in right.stdout


@pytest.mark.parametrize("text, ended", [("", 2), ("import sys\nsys.exit(7)\n", 7)])
def test_what_launches_nothing_was_not_checked(text, ended, tmp_path, capsys):
    """A CI job would take "nothing found" and 0 for a kernel that is right."""
    (tmp_path / "empty.py").write_text(text)
    code, out, _ = said(["check", "--", f"{tmp_path}/empty.py"], capsys)
    assert code == ended and out == f"triport check {tmp_path}/empty.py: nothing was checked for bounds, race: no kernel was launched on the CPU\n"
    (tmp_path / "empty.py").write_text("def f(): pass\n")
    code, out, _ = said(["check", f"{tmp_path}/empty.py:f"], capsys)
    assert code == 2 and "nothing was checked" in out


# --- nan ------------------------------------------------------------------------------------------------------------


@triton.jit
def reciprocals(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    y = 1.0 / x  # here
    tl.store(out_ptr + offs, y + 1.0, mask=offs < n)


@triton.jit
def means(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    total = 0.0
    for start in range(0, n, BLOCK):
        x = tl.load(x_ptr + row * n + start + cols, mask=start + cols < n, other=0.0).to(tl.float32)
        total += tl.sum(x * x)  # here
    tl.store(out_ptr + row, tl.sqrt(total / n))


def line(kernel, word="# here"):
    return next(kernel.starting_line_number + n for n, text in enumerate(kernel.raw_src) if word in text)


def test_behind_masks_anything_may_be(seed):
    x = torch.randn(500, generator=torch.Generator().manual_seed(seed)).abs() + 0.1
    out = torch.zeros(500)
    reciprocals[(4,)](x, out, 500, BLOCK=128, check="nan")  # 12 lanes divide by 0
    assert torch.allclose(out, 1 / x + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_the_first_operation_is_named(dtype, seed):
    x = torch.rand(500, generator=torch.Generator().manual_seed(seed)).to(dtype) + 1
    x[137] = 0
    with pytest.raises(CheckError) as e:
        reciprocals[(4,)](x, torch.zeros(500, dtype=dtype), 500, BLOCK=128, check="nan")
    report, = e.value.reports
    assert (report.kind, report.program, report.lane, report.line) == ("nan", (1, 0, 0), (9,), line(reciprocals)) and "infinity" in report.text


def test_what_comes_in_is_nobodys_fault():
    x = torch.ones(300)
    x[5], x[6] = float("nan"), float("inf")
    out = torch.zeros(300)
    reciprocals[(3,)](x, out, 300, BLOCK=128, check="nan")
    assert out[5].isnan() and out[6] == 1


def test_sums_in_loops_are_looked_at():
    x = torch.full((3, 200), 1e20)
    x[0] = 1.0
    out = torch.zeros(3)
    with pytest.raises(CheckError) as e:
        means[(3,)](x, out, 200, BLOCK=64, check="nan")
    assert {(r.line, r.program) for r in e.value.reports} == {(line(means), (1, 0, 0))} and e.value.reports[0].count == 2
    assert out[0] == 1


@triton.jit
def masked_softmax(x_ptr, out_ptr, n, BLOCK: tl.constexpr, SHIFT: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.where(cols < n, tl.load(x_ptr + row * BLOCK + cols), -float("inf"))
    largest = tl.max(x)
    shifted = x - largest  # here
    if SHIFT:
        tl.store(out_ptr + row * BLOCK + cols, tl.exp(shifted))
    else:
        tl.store(out_ptr + row * BLOCK + cols, tl.cumsum(tl.maximum(x, largest)))


def test_a_row_of_nothing_makes_nan_where_infinities_meet():
    """Minus infinity, as such a row's largest element, is what the kernel says; less itself it is NaN."""
    x, out = torch.ones(2, 16), torch.zeros(2, 16)
    for n, shift in ((3, True), (3, False), (0, False)):
        masked_softmax[(2,)](x, out, n, BLOCK=16, SHIFT=shift, check="nan")
    assert out.isinf().all(), "sums of what the kernel put there are its own"
    with pytest.raises(CheckError) as e:
        masked_softmax[(2,)](x, out, 0, BLOCK=16, SHIFT=True, check="nan")
    assert {r.line for r in e.value.reports} == {line(masked_softmax)} and all("NaN (f32) of what is none" in r.text for r in e.value.reports)


# --- off ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["axpy", "argmax", "atomic", "batched", "branches"])
def test_off_nothing_is_left_of_it(name):
    text, row = (ROOT / "tests" / "plans" / f"{name}.ttir").read_text(), targets.get("x86-64-v4")
    plain = lower_module(reader.parse(text), row)
    checked = lower_module(reader.parse(text), row, check="bounds,race,uninit,overflow,nan")
    assert "check." in checked.text and checked.checks["sites"]
    again = lower_module(reader.parse(text), row)
    assert "check." not in plain.text and not plain.checks and (again.text, again.described) == (plain.text, plain.described)


def test_a_kernel_is_compiled_for_what_is_asked_now():
    x, out = torch.ones(100), torch.zeros(130)

    def launch():
        out.zero_()
        return reciprocals[(1,)](x, out, 130, BLOCK=256)  # reads 30 elements beyond x

    with checks("bounds"), pytest.raises(CheckError):
        launch()
    with checks("overflow"):
        launch()
    with checks("race"), checks("bounds"), pytest.raises(CheckError):
        launch()


def test_a_profiler_sees_checked_launches():
    x, out = torch.ones(256), torch.zeros(256)
    with checks("bounds"), torch.profiler.profile() as p:
        reciprocals[(2,)](x, out, 256, BLOCK=128)
    assert [e.key for e in p.key_averages() if e.key.startswith("reciprocals")] == ["reciprocals[triton-cpu] grid(2, 1, 1)"]


STEPS = """
import subprocess, sys, torch, triton, triton.language as tl

@triton.jit
def double_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i) * 2)

@triton.jit
def odd_kernel(x_ptr):
    i = tl.arange(0, 3)

def launch(n):
    double_kernel[(1,)](torch.ones(n), torch.empty(n), BLOCK=16)

def exits():
    launch(16)
    sys.exit(0)

def hides():
    try:
        launch(10)
    finally:
        sys.exit(0)

def three():
    launch(16)
    sys.exit(3)

def raises():
    launch(16)
    raise ValueError("no good")

def odd():
    odd_kernel[(1,)](torch.ones(16))

if __name__ == "__main__":
    launch(int(sys.argv[1]) if len(sys.argv) > 1 else 16)
    if len(sys.argv) > 2:
        sys.exit(subprocess.run([sys.executable, __file__, sys.argv[2]]).returncode)
"""


@pytest.mark.parametrize("function, code, words", [
    ("exits", 0, "1 launch of 1 kernel checked for bounds, race: nothing found"), ("three", 3, "nothing found"), ("hides", 1, "1 fault in 1 kernel"),
    ("raises", 2, "steps.py:raises raised ValueError: no good ("), ("odd", 2, "CompilationError: arange's range must be a power of 2 in `i = tl.arange(0, 3)` (")])
def test_a_step_that_exits_or_raises(function, code, words, tmp_path, monkeypatch, capsys):
    """What it found until then is told, and what the user's code raises is no fault of triport's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "steps.py").write_text(STEPS)
    got, out, err = said(["check", f"steps.py:{function}"], capsys)
    assert got == code and words in out + err and "Traceback" not in err and "report" not in err
    assert ("8 bytes behind the end" in err) == (function == "hides")
    if function == "raises":
        line = next(n for n, text in enumerate(STEPS.splitlines(), 1) if "no good" in text)
        assert f"{tmp_path}/steps.py:{line})" in err and "1 launch of 1 kernel checked for bounds, race: nothing found" in out


def test_processes_of_a_script_are_checked(tmp_path):
    (tmp_path / "steps.py").write_text(STEPS)
    done = subprocess.run([sys.executable, "-m", "triport.tools", "check", "--", "steps.py", "16", "10"], cwd=tmp_path, capture_output=True, text=True, timeout=HANGS)
    assert done.returncode == 1 and "CheckError" in done.stderr and "8 bytes behind the end" in done.stderr
    assert "1 launch of 1 kernel checked for bounds, race: nothing found" in done.stdout  # of its own process
