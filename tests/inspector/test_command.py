"""`triport asm` as users call it: every kind of WHAT, every kind of output, exit codes, bad input."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from triport.tools.__main__ import main
from triport.tools.inspector import launches, targets

KERNELS = '''
import torch, triton, triton.language as tl
from triport.ops import Case, Op

@triton.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2.0, mask=i < n)

@triton.jit
def wide_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n).to(tl.float64)
    tl.store(out_ptr + i, (x * 0.1).to(tl.float32), mask=i < n)

@triton.jit
def broken_kernel(x_ptr, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), no_such_name)

@triton.autotune(configs=[triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 2048})], key=["n"])
@triton.jit
def tuned_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)

def double(x):
    out = torch.empty_like(x)
    copy_kernel[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
    return out

OP = Op("double", double, lambda x: x * 2, (Case(((100, 7),)),))
'''
ARGS = ["--arg", "x_ptr=fp32[16]", "--arg", "out_ptr=fp32[16]", "--arg", "n=i32:16", "--const", "BLOCK=1024"]


@pytest.fixture
def kernels(tmp_path):
    path = tmp_path / "kernels_of_a_user.py"
    path.write_text(KERNELS)
    return path


def asm(capfd, *args) -> tuple[int, str, str]:
    code = main(["asm", *map(str, args)])
    out = capfd.readouterr()
    return code, out.out, out.err


def test_targets(capfd):
    code, out, _ = asm(capfd, "--list-targets")
    listed = [line.split()[0] for line in out.strip().split("\n")]
    assert code == 0 and listed == targets.names()
    assert {"native", "x86-64-v3", "sapphirerapids", "neoverse-v2", "rv64gcv", "spacemit-x60", "spacemit-k3-a100", "sm_90", "gfx942"} <= set(listed)


@pytest.mark.parametrize("target,isa", [("native", None), ("x86-64-v3", "x86-64"), ("aarch64", "aarch64"), ("spacemit-x60", "riscv64"),
                                        ("sm_80", "sass"), ("sm_90", "sass"), ("sm_100", "sass"), ("gfx90a", "amdgcn"), ("gfx942", "amdgcn"),
                                        ("gfx1100", "amdgcn")])
def test_a_kernel_for_every_family(capfd, kernels, target, isa):
    code, out, _ = asm(capfd, f"{kernels}:copy_kernel", "--target", target, *ARGS, "--json")
    (r,) = json.loads(out)
    assert code == 0 and r["kernel"] == "copy_kernel" and r["verdict"] == "VECTOR" and r["unknown"] == 0
    assert isa in (None, r["isa"])
    hot = [x for x in r["loops"] if x["hot"]]
    assert hot and all(x["load_bits"] >= 128 for x in hot) and any(at["file"] == str(kernels) for x in hot for at in x["lines"])
    assert {i["kind"] for i in r["instructions"]} >= {"load", "store", "arithmetic"}


def test_alignment_is_the_reason_on_a_gpu(capfd, kernels):
    args = ["--arg", "x_ptr=fp32[]", "--arg", "out_ptr=fp32[16]", "--arg", "n=i32", "--const", "BLOCK=1024"]
    code, out, _ = asm(capfd, f"{kernels}:copy_kernel", "--target", "sm_90", *args, "--require", "load_bits>=128")
    assert code == 1 and out.count("\n") == 1 and "load_bits is 32" in out and "x_ptr, n not known divisible by 16" in out and "kernels_of_a_user.py:8" in out


def test_fp64_in_an_fp32_kernel(capfd, kernels):
    code, out, _ = asm(capfd, f"{kernels}:wide_kernel", "--target", "x86-64-v3", *ARGS, "--require", "f64=0")
    assert code == 1 and "fp64 instructions" in out and "kernels_of_a_user.py:1" in out


@pytest.mark.parametrize("target,stages", [("spacemit-x60", ("source", "ttir", "plan", "llir", "asm")), ("sm_90", ("source", "ttir", "ttgir", "llir", "ptx", "sass")),
                                           ("gfx942", ("source", "ttir", "ttgir", "llir", "amdgcn"))])
def test_stages(capfd, kernels, target, stages, tmp_path):
    signs = {"source": "def copy_kernel", "ttir": "tt.func", "plan": "plan of copy_kernel for ", "ttgir": "ttg.", "llir": "define ", "asm": "vle32.v", "ptx": ".visible .entry", "sass": "LDG.E.128",
             "amdgcn": "s_endpgm"}
    for stage in stages:
        code, out, _ = asm(capfd, f"{kernels}:copy_kernel", "--target", target, *ARGS, "--stage", stage)
        assert code == 0 and signs[stage] in out, stage
    code, _, _ = asm(capfd, f"{kernels}:copy_kernel", "--target", target, *ARGS, "--stage", "obj", "-o", tmp_path / "k.o")
    assert code == 0 and (tmp_path / "k.o").read_bytes()[:4] == b"\x7fELF"


def test_files(capfd, kernels, tmp_path):
    """What a stage wrote is read back, and judged alike."""
    for target, stage, name in (("spacemit-x60", "asm", "k.s"), ("aarch64", "asm", "a.s"), ("x86-64-v3", "asm", "x.s"), ("sm_90", "ptx", "k.ptx"),
                                ("sm_90", "obj", "k.cubin"), ("gfx942", "amdgcn", "g.s")):
        assert asm(capfd, f"{kernels}:copy_kernel", "--target", target, *ARGS, "--stage", stage, "-o", tmp_path / name)[0] == 0
        code, out, err = asm(capfd, tmp_path / name, "--json")
        assert code == 0, err
        (r,) = json.loads(out)
        assert r["verdict"] == "VECTOR" and r["unknown"] == 0, (name, r["verdict"])


@pytest.mark.parametrize("target", ["native", "spacemit-x60", "aarch64", "gfx942", "gfx1100"])
def test_objects(capfd, kernels, tmp_path, target):
    if not (shutil.which("llvm-objdump-22") or (target == "native" and shutil.which("objdump"))):
        pytest.skip("no disassembler for this: apt-get install llvm-22")
    assert asm(capfd, f"{kernels}:copy_kernel", "--target", target, *ARGS, "--stage", "obj", "-o", tmp_path / "k.o")[0] == 0
    code, out, err = asm(capfd, tmp_path / "k.o", *(["--vlen", "256"] if target == "spacemit-x60" else []), "--json")
    assert code == 0, err
    (r,) = json.loads(out)
    hot = [x for x in r["loops"] if x["hot"]]
    assert r["verdict"] == "VECTOR" and any(at["line"] == 8 for x in hot for at in x["lines"]), "line tables are in the object"


def test_ops_cases_and_dtypes(capfd):
    code, out, _ = asm(capfd, "matmul_softmax", "--target", "gfx942", "--case", "1024", "--dtype", "bf16", "--json")
    names = [r["kernel"] for r in json.loads(out)]
    assert code == 0 and names == ["product_exp_kernel", "scale_kernel"]
    product = json.loads(out)[0]
    assert any(x["matrix"] for x in product["loops"] if x["hot"]) and product["facts"]["vector registers"] > 0
    code, out, _ = asm(capfd, "matmul_softmax", "--case", "1024", "--kernel", "scale", "--target", "spacemit-x60")
    assert code == 0 and "scale_kernel" in out and "product_exp_kernel" not in out


def test_a_users_op_and_configurations(capfd, kernels):
    code, out, _ = asm(capfd, f"{kernels}:OP", "--target", "sm_90", "--json")
    assert code == 0 and [r["kernel"] for r in json.loads(out)] == ["copy_kernel"]
    sizes = []
    for n in ("0", "1"):
        code, out, _ = asm(capfd, f"{kernels}:tuned_kernel", "--target", "sm_90", *ARGS[:6], "--config", n, "--json")
        (r,) = json.loads(out)
        assert code == 0 and f"configuration {n} of 2" in r["remark"]
        sizes.append(sum(x["instructions"] for x in r["loops"]))
    assert sizes[0] < sizes[1]
    code, _, err = asm(capfd, f"{kernels}:tuned_kernel", *ARGS[:6], "--config", "2")
    assert code == 2 and "0 to 1" in err


def test_vlen(capfd, kernels):
    for bits in (256, 512):
        code, out, _ = asm(capfd, f"{kernels}:copy_kernel", "--target", "rv64gcv", "--vlen", bits, *ARGS, "--json")
        assert code == 0 and max(x["load_bits"] or 0 for x in json.loads(out)[0]["loops"]) == bits


def test_another_op_to_compare_with(capfd):
    code, out, err = asm(capfd, "square", "--target", "x86-64-v3", "--case", "128x128", "--diff", "gelu", "--json")
    (pair,) = json.loads(out)
    assert code == 0, err
    assert (pair["a"]["kernel"], pair["b"]["kernel"]) == ("square_kernel", "gelu_kernel") and pair["a"]["target"] == pair["b"]["target"]
    assert "unknown target 'geluu'" in asm(capfd, "square", "--diff", "geluu")[2]


def test_a_board_is_one_more_target(capfd):
    """It is judged besides those of --target, and what is compared with it is for it, too."""
    code, out, err = asm(capfd, "square", "--case", "128x128", "--on", "local", "--target", "spacemit-x60", "--json")
    found = [r["target"] for r in json.loads(out)]
    assert code == 0 and found == ["spacemit-x60", local().row().name], err
    code, out, err = asm(capfd, "square", "--case", "128x128", "--on", "local", "--diff", "gelu", "--json")
    (pair,) = json.loads(out)
    assert code == 0 and pair["a"]["target"] == pair["b"]["target"] == local().row().name, err


def local():
    from triport.backends.spine import runner
    return runner.get("local").board


def test_diff(capfd, kernels, tmp_path):
    what = f"{kernels}:copy_kernel"
    code, out, _ = asm(capfd, what, "--target", "sm_90", "--diff", "spacemit-x60", *ARGS)
    assert code == 0 and "spacemit-x60" in out and "verdict" in out and "kernels_of_a_user.py:8" in out
    code, out, _ = asm(capfd, what, "--target", "x86-64-v3", *ARGS, "--json")
    (tmp_path / "old.json").write_text(out)
    code, out, _ = asm(capfd, f"{kernels}:wide_kernel", "--target", "x86-64-v3", *ARGS, "--diff", tmp_path / "old.json", "--json")
    (pair,) = json.loads(out)
    assert code == 0 and pair["a"]["figures"]["f64"] > 0 and pair["b"]["figures"]["f64"] == 0
    (tmp_path / "bad.json").write_text("[1]")
    assert asm(capfd, what, *ARGS, "--diff", tmp_path / "bad.json")[0] == 2


@pytest.mark.first(0)
@pytest.mark.skipif(not shutil.which("g++"), reason="Inductor's C++ needs g++")
def test_inductor(capfd):
    code, out, err = asm(capfd, "gelu", "--case", "128x128", "--backend", "torch-compile", "--json")
    assert code == 0, err
    (r,) = json.loads(out)
    assert r["backend"] == "torch-compile" and "kernel" in r["kernel"] and r["loops"]
    code, out, err = asm(capfd, "gelu", "--case", "128x128", "--backend", "torch-compile", "--target", "spacemit-x60", "--json")
    assert code == 0, err
    assert json.loads(out)[0]["verdict"] == "VECTOR"


def test_cuda(capfd, tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc", reason="CUDA C++ needs cuda-bindings and nvidia-cuda-nvrtc")
    (tmp_path / "s.cu").write_text("__global__ void half_of(const float* x, float* out) {\n  int i = threadIdx.x;\n  out[i] = x[i] * 0.5;\n}\n")
    code, out, err = asm(capfd, f"{tmp_path}/s.cu:half_of", "--target", "sm_90", "--json")
    assert code == 0, err
    (r,) = json.loads(out)
    assert r["kernel"] == "half_of" and r["facts"]["registers"] > 0 and {"source", "ptx", "sass", "obj"} <= set(r["stages"])
    assert any(at["line"] == 3 for x in r["loops"] for at in x["lines"])
    code, _, err = asm(capfd, f"{tmp_path}/s.cu:nothing", "--target", "sm_90")
    assert code == 2 and "there is no function nothing" in err
    (tmp_path / "bad.cu").write_text("__global__ void k() { oops; }")
    code, _, err = asm(capfd, f"{tmp_path}/bad.cu:k")
    assert code == 2 and "oops" in err


@pytest.mark.parametrize("args,says", [
    (["softmax", "--target", "spacemit-x6O"], "did you mean 'spacemit-x60'?"), (["softmax", "--target", "sm_17"], "unknown target"),
    (["softmaxx"], "did you mean 'softmax'?"), (["softmax", "--case", "9x9,9x9"], "case '9x9,9x9': softmax takes x, dim"), (["softmax", "--dtype", "fp8"], "softmax takes fp32"),
    (["softmax", "--arg", "x=fp32[16]"], "belong to a kernel"), (["softmax", "--require", "vectors>1"], "did you mean 'vector'?"),
    (["softmax", "--vlen", "256", "--target", "x86-64-v3"], "RISC-V"), (["softmax", "--vlen", "100", "--target", "rv64gcv"], "power of two"),
    (["softmax", "--vlen", "128", "--target", "spacemit-x60"], "256"), (["softmax", "--stage", "sass", "--target", "rv64gcv"], "unknown stage 'sass'"),
    (["softmax", "-o", "x.s"], "--stage"), (["softmax", "--html", "/no/such/folder/x.html"], "no folder"), ([], "say what to look at"),
    (["/no/such/file.s"], "there is no file"), (["/no/such/file.py:kernel"], "there is no file"),
])
def test_bad_input(capfd, args, says):
    code, out, err = asm(capfd, *args)
    assert code == 2 and says in err and "Traceback" not in err


@pytest.mark.parametrize("extra,says", [
    (["--arg", "x_ptr=fp32[16]"], "copy_kernel needs out_ptr, n, BLOCK"), ([*ARGS, "--arg", "y=i32"], "unknown argument of copy_kernel 'y'"),
    (["--arg", "x_ptr=fp23[16]"], "unknown element type 'fp23'"), (["--arg", "x_ptr"], "NAME=VALUE"), (["--arg", "x_ptr=fp32[3]"], "power of two"),
    (["--arg", "n=banana"], "it takes a pointer like"),
])
def test_bad_arguments(capfd, kernels, extra, says):
    code, _, err = asm(capfd, f"{kernels}:copy_kernel", *extra)
    assert code == 2 and says in err


def test_a_kernel_that_does_not_compile_shows_its_line(capfd, kernels):
    code, _, err = asm(capfd, f"{kernels}:broken_kernel", "--arg", "x_ptr=fp32[16]", "--const", "BLOCK=16")
    assert code == 2 and "kernels_of_a_user.py:18" in err and "no_such_name" in err
    assert asm(capfd, f"{kernels}:no_kernel")[0] == 2


def test_a_missing_tool_is_named_with_its_package(monkeypatch):
    from triport.backends.base import Error
    from triport.tools.inspector import tools
    monkeypatch.setattr(tools.shutil, "which", lambda name: None)
    with pytest.raises(Error, match="apt-get install llvm"):
        tools.objdump("riscv64")


def test_a_compiled_kernel_object(kernels):
    import torch
    from triport.ops import registry
    from triport.tools.inspector.report import inspect
    kernel = registry.load(kernels, "copy_kernel")
    x = torch.randn(256)
    report = inspect(kernel[(1,)](x, torch.empty(256), 256, BLOCK=256))
    assert report.verdict == "VECTOR" and report.code.target == "native" and report.hot[0].figures["load_bits"] >= 128
    assert launches.is_kernel(kernel)


def test_the_readme_example():
    """The example's own command, as in its docstring."""
    path = Path(__file__).parent.parent.parent / "docs/examples/naive_matmul_softmax.py"
    args = [f"{path}:matmul_softmax_kernel", "--target", "spacemit-x60", *(x for n in ("a_ptr", "b_ptr", "out_ptr") for x in ("--arg", f"{n}=fp32[16]")),
            *(x for n in "MNK" for x in ("--const", f"{n}=128"))]
    assert main(["asm", *args, "--require", "vector>=0.95, spills=0, calls=0, f64=0"]) == 0


def test_the_terminal_view(capfd, kernels):
    code, out, _ = asm(capfd, f"{kernels}:copy_kernel", "--target", "spacemit-x60", *ARGS)
    assert code == 0 and "VECTOR" in out and "vle32.v" in out and "tl.store(out_ptr + i" in out and "┏" in out
    longer = asm(capfd, f"{kernels}:copy_kernel", "--target", "spacemit-x60", *ARGS, "--all")[1]
    assert len(longer) > len(out)


def test_objects_hold_line_tables(capfd, kernels, tmp_path):
    if not shutil.which("readelf"):
        pytest.skip("readelf was not found: apt-get install binutils")
    assert asm(capfd, f"{kernels}:copy_kernel", *ARGS, "--stage", "obj", "-o", tmp_path / "k.o")[0] == 0
    text = subprocess.run(["readelf", "--debug-dump=decodedline", tmp_path / "k.o"], capture_output=True, text=True).stdout
    assert "kernels_of_a_user.py" in text
