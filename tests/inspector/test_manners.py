"""How `triport asm` behaves where something is odd: a sentence and not a traceback, the compiler's own reason, a hint that is right, a user's file run once."""

from pathlib import Path

import pytest
from triport.backends.base import Error
from triport.tools.__main__ import main
from triport.tools.inspector import report, targets

KERNELS = '''
import os
import triton, triton.language as tl
from triport.ops import Case, Op

with open(os.environ["RUNS"], "a") as f:
    f.write("run\\n")

@triton.jit
def norm_kernel(x, out, weight_ptr, n, stride, eps, slope, rows: tl.int64, BLOCK: tl.constexpr):
    i = tl.program_id(0) * stride + tl.arange(0, BLOCK)
    p = x + i
    p += 1
    v = tl.load(p, mask=i < n) * tl.load(weight_ptr + i, mask=i < n)
    tl.store(out + i, tl.where(v > 0, v, v * slope) * tl.rsqrt(eps) + rows * 0, mask=i < n)

@triton.jit
def row_kernel(X, k, BLOCK: tl.constexpr):
    tl.store(X + k * tl.arange(0, BLOCK), 1.0)

def twice(x):
    import torch
    out = torch.empty_like(x)
    row_kernel[(1,)](out, 1, BLOCK=64)
    return out

OP = Op("twice", twice, lambda x: x, (Case(((64,),)),))
NOT = 3
'''


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNS", str(tmp_path / "runs"))
    (tmp_path / "kernels_with_manners.py").write_text(KERNELS)
    return tmp_path / "kernels_with_manners.py"


def asm(capfd, *args) -> tuple[int, str, str]:
    code = main(["asm", *map(str, args)])
    out = capfd.readouterr()
    assert "Traceback" not in out.err
    return code, out.out, out.err


def test_the_hint_has_types_that_fit(capfd, kernels):
    code, _, err = asm(capfd, f"{kernels}:norm_kernel")
    assert code == 2 and ("--arg x=fp32[16] --arg out=fp32[16] --arg weight_ptr=fp32[16] --arg n=i32 --arg stride=i32 --arg eps=fp32 --arg slope=fp32 --arg rows=i32 "
                          "--const BLOCK=1024") in err
    line = err.partition("for example: ")[2].split()
    assert asm(capfd, f"{kernels}:norm_kernel", "--target", "x86-64-v3", *line, "--json")[0] == 0, "what the hint says is taken"


def test_the_compilers_own_reason_is_shown(capfd, kernels):
    code, _, err = asm(capfd, f"{kernels}:row_kernel", "--arg", "X=fp32[16]", "--arg", "k=i32", "--const", "BLOCK=1000")
    assert code == 2 and "power of 2" in err and "kernels_with_manners.py:19" in err


@pytest.mark.parametrize("what", ["row_kernel", "OP"])
def test_a_users_file_runs_once(capfd, kernels, tmp_path, what):
    args = ["--arg", "X=fp32[16]", "--arg", "k=i32", "--const", "BLOCK=64"] if what == "row_kernel" else []
    assert asm(capfd, f"{kernels}:{what}", "--target", "x86-64-v3", "--target", "rv64gcv", *args, "--diff", "neoverse-v2")[0] == 0
    assert (tmp_path / "runs").read_text() == "run\n"


def test_what_is_neither_op_nor_kernel(capfd, kernels):
    code, _, err = asm(capfd, f"{kernels}:NOT")
    assert code == 2 and "neither a kernel" in err and "but int" in err
    code, _, err = asm(capfd, f"{kernels}:nothing")
    assert code == 2 and "norm_kernel, row_kernel, twice, OP" in err


def test_parts_of_what_has_none(capfd, tmp_path):
    """Libraries are not loaded, sources not imported."""
    (tmp_path / "many.cpp").write_text("int add(int a) { return a; }\n")
    (tmp_path / "many.so").write_bytes(b"\x7fELF no library")
    (tmp_path / "my.ttir").write_text("module {}\n")
    (tmp_path / "bits.s").write_bytes(b"\xff\xfe\x00\x01")
    (tmp_path / "none.s").write_text("")
    (tmp_path / "words.s").write_text("there is nothing here\n")
    (tmp_path / "data.s").write_text("\t.data\nx:\n\t.quad 1\n")
    (tmp_path / "listing.s").write_text("   1              \t.text\n" + "".join(f"  {k} 000{k} 89D0 \t\tmovl\t%edx, %eax\n" for k in range(2, 9)))
    (tmp_path / "w.obj").write_bytes(b"\x64\x86\x03\x00" * 20)
    for what, says in ((f"{tmp_path}/listing.s", "are no instructions of x86-64"), (f"{tmp_path}/w.obj", "a Windows object"), (f"{tmp_path}/many.cpp:add", "is source text: compile it"), (f"{tmp_path}/many.so:add", "many.so"), (f"{tmp_path}/my.ttir:rms", "my.ttir"),
                       (f"{tmp_path}/bits.s", "neither an ELF file nor text"), (f"{tmp_path}/none.s", "is empty"), (f"{tmp_path}/words.s", "cannot tell which machine"),
                       (f"{tmp_path}/no.so:add", "there is no file"), (f"{tmp_path}/data.s", "cannot tell"), (f"{tmp_path}/kernels.py:k", "there is no file")):
        code, out, err = asm(capfd, what)
        assert code == 2 and not out and says in err, (what, err)


def test_a_target_as_it_is_printed():
    goal = targets.get("rv64gcv:vlen512")
    assert goal.name == "rv64gcv:vlen512" and goal.vlen == 512 == targets.get("rv64gcv", 512).vlen
    from triport.backends.base import Error
    for name, vlen, says in (("rv64gcv:vlen512", 256, "two widths"), ("x86-64-v3:vlen512", None, "RISC-V"), ("rv64gcv:vlen100", None, "power of two"), ("rv64gcv:512", None, "unknown target")):
        with pytest.raises(Error, match=says):
            targets.get(name, vlen)


def test_fp64(capfd):
    code, out, err = asm(capfd, "gelu", "--case", "128x128", "--dtype", "fp64", "--target", "x86-64-v3", "--require", "f64>0")
    assert code == 0 or "f64 is 0" in out, err  # fp64 was asked for: its instructions are no fault


def test_arguments_given_twice(capfd, kernels):
    code, _, err = asm(capfd, f"{kernels}:row_kernel", "--arg", "k=i32", "--arg", "k=i64")
    assert code == 2 and "--arg k is given twice" in err


@pytest.mark.parametrize("args,said", [
    (["--arg", "X=fp32[16]", "--arg", "k=i32", "--const", "k=5", "--const", "BLOCK=64"], "--arg k=i32 and --const k=5: choose one"),
    (["--arg", "X=fp32[16]", "--arg", "k=i32", "--arg", "BLOCK=i32"], "--arg BLOCK=i32: BLOCK is a constexpr of row_kernel, which has a value; say --const BLOCK=VALUE"),
    (["--arg", "X=fp32[16]", "--arg", "k=i32", "--arg", "BLOCK=fp32[16]"], "BLOCK is a constexpr"), (["--arg", "X=fp32[16]", "--arg", "k=i32", "--arg", "BLOCK=fp32"], "BLOCK is a constexpr"),
    *((["--arg", "X=fp32[16]", "--arg", f"k=i32:{step}", "--const", "BLOCK=64"], f"--arg i32:{step}: of an integer Triton sees whether it is a multiple of 16, or 1: i32, i32:16 or i32:1") for step in (0, 3, 8, 24))])
def test_arguments_that_would_mean_something_else(capfd, kernels, args, said):
    code, _, err = asm(capfd, f"{kernels}:row_kernel", *args)
    assert code == 2 and said in err


@pytest.mark.parametrize("k", ["i32", "i32:1", "i32:16", "i64:32", "7"])
def test_arguments_that_are_taken(capfd, kernels, k):
    code, out, err = asm(capfd, f"{kernels}:row_kernel", "--arg", "X=fp32[16]", "--arg", f"k={k}", "--arg", "BLOCK=64", "--stage", "ttir")
    assert code == 0 and "tensor<64x" in out, err


def test_what_is_read_is_not_written(capfd, kernels, tmp_path):
    """A source, a file of code, a baseline and a comparison: each stays as it is."""
    (tmp_path / "f.s").write_text("f:\n\txorl %eax, %eax\n\tret\n")
    code, out, err = asm(capfd, tmp_path / "f.s", "--json")
    (tmp_path / "b.json").write_text(out)
    (tmp_path / "link.s").symlink_to("f.s")
    for args in ([f"{kernels}:row_kernel", "--stage", "ttir", "-o", kernels], [f"{kernels}:row_kernel", "--html", kernels], [tmp_path / "f.s", "--html", tmp_path / "f.s"], [tmp_path / "f.s", "--html", tmp_path / "link.s"],
                 [tmp_path / "f.s", "--baseline", tmp_path / "b.json", "--html", tmp_path / "b.json"], [tmp_path / "f.s", "--diff", tmp_path / "b.json", "--html", tmp_path / "b.json"]):
        before = {p: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
        code, _, err = asm(capfd, *args)
        assert code == 2 and "it is what the command reads; name another file" in err, args
        assert before == {p: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
    code, _, err = asm(capfd, tmp_path / "f.s", "--html", "-")
    assert code == 2 and f"--html -: it takes a file, and prints nothing; for one of that name say {Path.cwd() / '-'}" in err
    code, _, err = asm(capfd, tmp_path / "f.s", "--html", tmp_path / "-")
    assert code == 0 and (tmp_path / "-").stat().st_size, err


def test_requirements_of_a_report_as_text(tmp_path):
    (tmp_path / "f.s").write_text("f:\n.L1:\n\tvmulps (%rdi,%rax), %ymm0, %ymm1\n\tvmovups %ymm1, (%rsi,%rax)\n\taddq $32, %rax\n\tcmpq %rax, %rdx\n\tjne .L1\n\tret\n")
    judged = report.inspect(tmp_path / "f.s")
    assert judged.failures("vector>=0.5, spills=0") == [] and "required <0.5" in judged.failures("vector<0.5")[0]
    with pytest.raises(Error, match="--require"):
        judged.failures("vectors>=1")


def test_files_that_cannot_be_written(capfd, tmp_path):
    (tmp_path / "f.s").write_text("f:\n\txorl %eax, %eax\n\tret\n")
    code, _, err = asm(capfd, tmp_path / "f.s", "--html", "/dev/full")
    assert code == 2 and "cannot be written" in err
