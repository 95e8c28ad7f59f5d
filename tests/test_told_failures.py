"""Why a row is wrong or has no time is told so that its author finds it."""

import errno
import json
import re

import pytest
import torch
from test_check_command import said
from triport.backends import host
from triport.bench import check

OPS = '''
import torch, triton, triton.language as tl
from triport.ops import Op

@triton.jit
def odd_kernel(x_ptr, out_ptr):
    i = tl.arange(0, 3)
    tl.store(out_ptr + i, tl.load(x_ptr + i))

@triton.jit
def outer_kernel(x_ptr, out_ptr):
    odd_kernel(x_ptr, out_ptr)

def within(x):
    out = torch.empty_like(x)
    outer_kernel[(1,)](x, out)
    return out

def launch(x):
    out = torch.empty_like(x)
    odd_kernel[(1,)](x, out)
    return out

def boom(x):
    raise ValueError("the first line\\nand the second")

twice = lambda x: x * 2
compile_error = Op("compile_error", call=launch, eager=twice, cases=("8x8",))
called = Op("called", call=within, eager=twice, cases=("8x8",))
raising = Op("raising", call=boom, eager=twice, cases=("8x8",))
reference = Op("reference", call=twice, eager=twice, reference=boom, cases=("8x8",))
nbytes = Op("nbytes", call=twice, eager=twice, nbytes=lambda x: "many", cases=("8x8",))
flops = Op("flops", call=twice, eager=twice, flops=lambda x: -5, cases=("8x8",))
shape = Op("shape", call=lambda x: (x * 2)[:1], eager=twice, cases=("8x8",))
nan = Op("nan", call=lambda x: torch.where(torch.arange(8) == 3, float("nan"), x * 2), eager=twice, cases=("8x8",))
two = Op("two", call=lambda x: (x, x), eager=twice, cases=("8x8",))
alone = Op("alone", call=twice, cases=("8x8",))
'''


@pytest.mark.parametrize("op, status, words", [
    ("compile_error", "failed", r"CompilationError: arange's range must be a power of 2 in `i = tl.arange\(0, 3\)`"), ("called", "failed", r"power of 2 in `i = tl.arange\(0, 3\)`"),
    ("raising", "failed", "ValueError: the first line and the second"),
    ("reference", "failed", "the reference raised ValueError: the first line"), ("nbytes", "failed", "nbytes gave 'many'; it takes a number, 0 or more"),
    ("flops", "failed", "flops gave -5; it takes"), ("shape", "wrong", r"shape \(1, 8\), \(8, 8\) expected"), ("nan", "wrong", r"nan at \[0, 3\], -?[\d.e-]+ expected, the first of 8 such elements"),
    ("two", "wrong", "2 results, 1 expected")])
def test_reasons(op, status, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ops.py").write_text(OPS)
    code, out, err = said(["bench", "--op", f"ops.py:{op}", "--backend", "triton-cpu", "--reps", "2", "--no-cold", "--json", "r.json"], capsys)
    row = json.loads((tmp_path / "r.json").read_text())["rows"][-1]
    assert code == 1 and row["status"] == status and re.search(words, row["reason"])
    assert re.search(words.replace(" ", r"\s+"), out), out


def test_an_op_without_a_reference_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ops.py").write_text(OPS)
    for op, there in (("alone", True), ("raising", False)):
        out = " ".join(" ".join(said(["bench", "--op", f"ops.py:{op}", "--backend", "triton-cpu", "--reps", "2", "--no-cold"], capsys)[1:]).split())
        assert (f"{op} is held against itself in float64" in out) == there


def test_results_that_no_number_tells_apart():
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    inf = torch.tensor([[1.0, float("inf")], [3.0, 4.0]])
    assert check.differs([x], [x.double()]) == "" and check.differs([inf], [inf]) == ""
    assert check.differs([x], [inf]) == "2 at [0, 1], inf expected" and check.differs([inf], [-inf]) == "inf at [0, 1], -inf expected"
    assert check.differs([x, x], [x, x[:1]]) == "result 1: shape (2, 2), (1, 2) expected" and check.differs([x + 0j], [x]) == "complex numbers, real ones expected"
    assert check.differs([x.int()], [inf]) == "2 at [0, 1], inf expected"


def test_a_cpu_that_py_cpuinfo_cannot_tell(monkeypatch):
    """Its child's output is no JSON where a sitecustomize prints: name and flags are the system's then."""
    import cpuinfo

    def noise():
        raise json.JSONDecodeError("Expecting value", "welcome", 0)

    host.cpu_info.cache_clear()
    told = host.cpu_name()
    monkeypatch.setattr(cpuinfo, "get_cpu_info", noise)
    host.cpu_info.cache_clear()
    try:
        assert host.cpu_name().rpartition(", ")[2] == told.rpartition(", ")[2]
    finally:
        host.cpu_info.cache_clear()


def test_a_full_disk_names_what_was_written(tmp_path, monkeypatch, capsys):
    from results_files import made, written
    from triport.tools.reporting import png

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    written(tmp_path, one=made())
    monkeypatch.setattr(png, "write", full)
    code, _, err = said(["report", str(tmp_path / "one.json"), "-o", str(tmp_path / "r.html"), "--png", str(tmp_path / "plots")], capsys)
    assert code == 2 and f"{tmp_path}/plots cannot be written: No space left on device" in err


def test_no_threads_are_no_number_of_threads(tmp_path, capsys):
    code, _, err = said(["export", "softmax", "--target", "native", "--case", "8x8", "--threads", "0", "-o", str(tmp_path / "b")], capsys)
    assert code == 2 and "--threads 0: it takes a number from 1 to 1024" in err
