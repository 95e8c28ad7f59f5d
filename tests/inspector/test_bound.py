"""Bounds of loops: what llvm-mca says of chains, throughput and copies whose answer is known, and what is said where it cannot be asked."""

import json
import os
import shutil

import pytest
from triport.tools import __main__ as command
from triport.tools import asm
from triport.tools.inspector import bound, chains, code, mca, report, terminal, verdict


def answers() -> bool:
    try:
        return bool(mca.find())
    except mca.Missing:
        return False


needs_mca = pytest.mark.skipif(not answers(), reason="there is no llvm-mca of LLVM 19 or newer")
X86 = "\t.text\n\t.globl\tk\n\t.type\tk,@function\nk:\n\t.file\t1 \"/u\" \"k.py\"\n{}\n\tretq\n\t.size\tk, .-k\n"
ENDS = {"x86-64": "\taddq $8, %rax\n\tcmpq %rbx, %rax\n\tjb .LBB0_1", "aarch64": "\tsubs x9, x9, #1\n\tb.ne .LBB0_1", "riscv64": "\taddi a3, a3, -1\n\tbnez a3, .LBB0_1"}
SET = "\tvsetvli a5, zero, e32, m{}, ta, ma\n"


def judged(body: str, target: str, isa: str = "x86-64", bits: int = 256, model=None, before: str = "", bandwidth=None):
    """(the one hot loop, its report) of a body in a loop, bounded."""
    text = X86.format(f"{before}.LBB0_1:\n\t.loc\t1 7 0\n{body}\n{ENDS[isa]}")
    r = report.of(code.Code("k", target, isa, text, vlen=bits, vector_bits=bits))
    bound.fill([r], model, bandwidth)
    (hot,) = r.hot
    return hot, r


def fmas(count: int, isa: str = "x86-64") -> str:
    if isa == "x86-64":
        return "\n".join(f"\tvfmadd231ps %ymm0, %ymm1, %ymm{k}" for k in range(2, 2 + count))
    if isa == "aarch64":
        return "\n".join(f"\tfmla v{k}.4s, v0.4s, v1.4s" for k in range(2, 2 + count))
    return "\n".join(f"\tvfmacc.vv v{k}, v0, v1" for k in range(2, 2 + count))


# --- known loops -------------------------------------------------------------------------------------------------------


@needs_mca
@pytest.mark.parametrize("target, isa, model, latency, units", [
    ("x86-64-v3", "x86-64", None, 5, 2), ("x86-64-v3", "x86-64", "znver3", 4, 2), ("x86-64-v3", "x86-64", "goldencove", 4, 2), ("x86-64-v3", "x86-64", "skylake", 4, 2),
    ("x86-64-v3", "x86-64", "znver5", 4, 2), ("neoverse-v2", "aarch64", None, 2, 4), ("aarch64", "aarch64", "neoverse-n2", 4, 2), ("aarch64", "aarch64", "neoverse-v1", 2, 4)])
def test_one_chain_waits_and_many_do_not(target, isa, model, latency, units):
    """A sum in one register takes an FMA's latency (on Arm, where LLVM knows of it, that of the addend alone) a turn; twelve of them the units' throughput."""
    bits = 128 if isa == "aarch64" else 256
    chain, _ = judged(fmas(1, isa), target, isa, bits, model)
    assert chain.bound.by == "dependencies" and chain.bound.cycles == pytest.approx(latency, abs=0.05)
    assert "bound by one dependency chain" in chain.bound.words[0] and "k.py:7" in chain.bound.words[0] and f"{latency:.1f} of " in chain.bound.words[0]
    assert chain.bound.flops == 2 * bits // 32 and chain.bound.peak == pytest.approx(units * 2 * bits / 32, rel=0.01)
    assert chain.bound.peak_share == pytest.approx(1 / (latency * units), rel=0.02)
    many, _ = judged(fmas(12, isa), target, isa, bits, model)
    assert many.bound.by == "ports" and many.bound.cycles == pytest.approx(12 / units, rel=0.1)
    assert "floating-point units" in many.bound.words[0] and many.bound.peak_share > 0.9


@needs_mca
@pytest.mark.parametrize("model", ["skylake", "znver3", "znver5", "goldencove", "haswell"])
def test_a_chain_through_an_instruction_that_loads_too(model):
    """The loaded operand is fetched ahead: the chain takes the addition alone, as with a register in its place."""
    folded, plain = (judged(f"\tvfmadd231ss {operand}, %xmm1, %xmm2", "x86-64-v3", model=model)[0].bound for operand in ("(%rdi,%rax,4)", "%xmm0"))
    assert folded.by == plain.by == "dependencies" and folded.cycles == pytest.approx(plain.cycles, abs=1) == pytest.approx(folded.limits["dependencies"], abs=1)


@needs_mca
@pytest.mark.parametrize("target,vlen,model", [("riscv64", 128, None), ("spacemit-x60:vlen512", 512, None), ("rv64gcv", 128, "x60"), ("rv64gcv:vlen256", 256, "sifive-x280")])
def test_cycles_belong_to_the_models_vectors(target, vlen, model):
    """A model's cycles are those of its CPU's vectors: for others there are none, rather than FLOP of the one by cycles of the other. Code without vectors has them."""
    def bounds(body, before=""):
        text = f"\t.text\n\t.globl\tk\nk:\n{before}.LBB0_1:\n{body}\n{ENDS['riscv64']}\n\tret\n"
        r = report.of(code.Code("k", target, "riscv64", text, "file", vlen=vlen, vector_bits=vlen))
        bound.fill([r], model)
        return r
    vectors = bounds("\tvfmacc.vv v8, v0, v4", SET.format(1))
    assert vectors.hot[0].bound is None and f"and this code is judged for {vlen}; --target says" in vectors.bounds
    assert "judged for" not in bounds("\tfmadd.s ft0, fa0, fa1, ft0").bounds


def test_the_x60():
    """One 256-bit multiply-add a cycle in order: a chain takes 5 cycles in this model, and LMUL 2 twice the time of LMUL 1."""
    try:
        mca.run({"a": ["nop"]}, "riscv64", "spacemit-x60")
    except mca.Missing as e:
        pytest.skip(str(e))
    chain, r = judged(fmas(1, "riscv64"), "spacemit-x60", "riscv64", 256, before=SET.format(1))
    assert chain.bound.by == "dependencies" and chain.bound.limits["dependencies"] > 3 * chain.bound.limits["ports"] and "spacemit-x60" in r.bounds
    one, two = (judged("\n".join(f"\tvfmacc.vv v{k}, v0, v4" for k in range(8, 32, 2)), "spacemit-x60", "riscv64", 256, before=SET.format(m))[0].bound for m in (1, 2))
    assert two.limits["ports"] == pytest.approx(2 * one.limits["ports"]) and two.flops == 2 * one.flops
    waits, _ = judged("\tvle32.v v8, (a0)\n\tvfmul.vv v9, v8, v8\n\tvfmul.vv v10, v9, v9\n\tvse32.v v10, (a1)", "spacemit-x60", "riscv64", 256, before=SET.format(1))
    assert waits.bound.by == "order" and "starts them in order" in waits.bound.words[0]


@needs_mca
def test_a_copy_is_bound_by_loads_or_stores_and_memory_where_it_is_known():
    copy = "\n".join(f"\tvmovups {32 * k}(%rdi,%rax,4), %ymm{k}" for k in range(4)) + "\n" + "\tvmovups %ymm0, (%rsi,%rax,4)"
    hot, _ = judged(copy, "x86-64-v3", model="skylake")
    b = hot.bound
    assert b.by == "ports" and ("load" in b.words[0]) and b.cycles == pytest.approx(2.5, abs=0.55)
    assert b.bytes == 160 and b.flops == 0 and b.peak is None and b.peak_share is None and "memory" not in b.limits
    assert any(w.startswith("memory: 160 bytes an iteration") and "need" not in w for w in b.words)
    slow, _ = judged(copy, "x86-64-v3", model="skylake", bandwidth=5.0)
    assert slow.bound.by == "memory" and slow.bound.cycles == slow.bound.limits["memory"] == 32 and "160 bytes at 5.0 a cycle" in slow.bound.words[0]
    fast, _ = judged(copy, "x86-64-v3", model="skylake", bandwidth=1000.0)
    assert fast.bound.by == "ports" and "need 0.16 cycles at 1000 bytes a cycle" in fast.bound.words[-1]


@needs_mca
def test_half_width():
    narrow, _ = judged("\tvmovups (%rdi,%rax,4), %ymm0\n\tvaddps %ymm0, %ymm0, %ymm1\n\tvmovups %ymm1, (%rdi,%rax,4)", "x86-64-v4", bits=512)
    assert "vectors are half as wide as the target's: 256 of 512 bits" in narrow.bound.words and narrow.bound.elements == 8
    wide, _ = judged("\tvmovups (%rdi,%rax,4), %zmm0\n\tvaddps %zmm0, %zmm0, %zmm1\n\tvmovups %zmm1, (%rdi,%rax,4)", "x86-64-v4", bits=512)
    assert not any("wide as" in w for w in wide.bound.words) and wide.bound.elements == 16


# --- what cannot be simulated ------------------------------------------------------------------------------------------


@needs_mca
def test_calls_and_unknown_instructions_are_cut_out_and_said():
    hot, _ = judged("\tvaddps %ymm0, %ymm1, %ymm2\n\tcallq expf@PLT\n\tfrobnicate %eax\n\tblorb %ebx", "x86-64-v3")
    assert hot.bound.cut == ("the call of expf", "2 instructions that llvm-mca does not take (frobnicate, blorb)") and hot.bound.cycles <= 3
    assert hot.bound.words[-1].startswith("left out: the call of expf, 2 instructions")


@needs_mca
def test_several_blocks_are_said():
    hot, _ = judged("\tvaddps %ymm0, %ymm1, %ymm2\n\ttestq %rcx, %rcx\n\tje .LBB0_3\n\tvaddps %ymm0, %ymm1, %ymm2\n.LBB0_3:", "x86-64-v3")
    assert any(w.startswith("the loop has 3 blocks") for w in hot.bound.words)


@needs_mca
def test_no_model_of_the_cpu():
    hot, r = judged("\tvfadd.vv v8, v8, v9", "rv64gcv", "riscv64", 128, before=SET.format(1))
    assert hot.bound is None and "no bound: " in r.bounds and "no model of generic-rv64" in r.bounds and "--model NAME" in r.bounds
    hot, r = judged(fmas(2), "x86-64-v3", model="cortex-a72")
    assert hot.bound is None and "no model of cortex-a72" in r.bounds


def test_a_missing_tool_is_a_sentence(monkeypatch, capsys, tmp_path):
    """Nothing fails, nothing is invented: the report says what to install, in the table's head and in JSON."""
    monkeypatch.setenv("PATH", str(tmp_path))
    hot, r = judged(fmas(2), "x86-64-v3")
    assert hot.bound is None and "llvm-mca was not found: install LLVM's tools (apt-get install llvm-22" in r.bounds and hot.figures["cycles"] is None
    terminal.show(r, asm.console())
    assert "llvm-mca was not found" in capsys.readouterr().out
    assert json.loads(json.dumps(r.as_dict()))["bounds"] == r.bounds
    old = tmp_path / "llvm-mca"
    old.write_text("#!/bin/sh\necho 'LLVM version 14.0.6'\n")
    old.chmod(0o755)
    mca._find.cache_clear()
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin")
    if shutil.which("llvm-mca-22") is None or "/bin" not in shutil.which("llvm-mca-22"):
        assert "llvm-mca 14 is too old" in judged(fmas(2), "x86-64-v3")[1].bounds


def test_a_broken_tool_is_a_sentence(monkeypatch, tmp_path):
    tool = tmp_path / "llvm-mca-39"
    for text, says in (("#!/bin/sh\necho 'error: it fell over' >&2\nexit 3\n", "it fell over"), ("#!/bin/sh\necho '{ not json'\n", "failed"), ("not a program", "")):
        tool.write_text(text)
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin{os.pathsep}/usr/bin")
        hot, r = judged(fmas(2), "x86-64-v3")
        assert hot.bound is None and "no bound: " in r.bounds and says in r.bounds


def test_gpu_code_has_none():
    r = report.of(code.Code("k", "sm_90", "ptx", ".version 8.0\n.target sm_90\n.visible .entry k() {\nld.global.v4.f32 {%f1,%f2,%f3,%f4}, [%rd1];\nret;\n}\n"))
    bound.fill([r])
    assert "no models of GPUs" in r.bounds and all(x.bound is None for x in r.regions)


# --- chains --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isa, body, latencies, slope", [
    ("x86-64", "vfmadd231ps %ymm0, %ymm1, %ymm2", [4], 4), ("x86-64", "vaddps %ymm0, %ymm1, %ymm2", [4], 0), ("x86-64", "addps %xmm1, %xmm2", [3], 3),
    ("x86-64", "mulps %xmm2, %xmm3\naddps %xmm3, %xmm2", [4, 4], 8), ("x86-64", "vxorps %xmm2, %xmm2, %xmm2\nvfmadd231ps %ymm0, %ymm1, %ymm2", [1, 4], 0),
    ("x86-64", "vaddps %ymm2, %ymm1, %ymm3\nvmulps %ymm3, %ymm1, %ymm2", [3, 4], 7), ("x86-64", "addq $8, %rax\nvmovups (%rdi,%rax,4), %ymm1", [1, 7], 1),
    ("x86-64", "vaddps %zmm0, %zmm1, %zmm2{%k1}", [4], 4), ("x86-64", "vaddps %zmm0, %zmm1, %zmm2{%k1}{z}", [4], 0), ("x86-64", "movl (%rax), %eax", [5], 5),
    ("x86-64", "vfmadd231ps (%rdi), %ymm1, %ymm2", [11], 4), ("x86-64", "cmpq %rax, %rbx\nvmovups %ymm0, (%rax)", [1, 1], 0),
    ("aarch64", "fmla v2.4s, v0.4s, v1.4s", [4], 4), ("aarch64", "fadd v2.4s, v0.4s, v1.4s", [2], 0), ("aarch64", "fadd s2, s2, s1", [2], 2),
    ("aarch64", "ldr q0, [x0], #16\nfmul v1.4s, v0.4s, v0.4s", [6, 3], 1), ("aarch64", "ldr x0, [x0, #8]", [4], 4), ("aarch64", "ldp q0, q1, [x0], #32\nfadd v2.4s, v2.4s, v0.4s", [6, 2], 2), ("aarch64", "ldp q0, q1, [x0]\nstp q0, q1, [x1]", [6, 1], 0),
    ("aarch64", "fmla z2.s, p0/m, z0.s, z1.s", [4], 4), ("riscv64", "vfmacc.vv v2, v0, v1", [5], 5), ("riscv64", "vfadd.vv v2, v0, v1", [5], 0),
    ("riscv64", "vfadd.vv v2, v2, v1", [5], 5), ("riscv64", "fmadd.s ft0, fa0, fa1, ft0", [5], 5), ("riscv64", "lw a0, 0(a0)", [3], 3), ("riscv64", "sw a0, 0(a1)", [3], 0)])
def test_chains_through_registers(isa, body, latencies, slope):
    from triport.tools.inspector import isa as isas
    from triport.tools.inspector import text
    (function,) = text.functions(body + "\n", isas.ISAS[isa])
    isas.classify(function, isas.ISAS[isa], isas.Machine(128))
    late = [7 if i.what.loads and i.what.kind != "load" else 0 for i in function.instructions]
    found, members = chains.carried(function.instructions, latencies, isa, late)
    assert found == pytest.approx(slope, abs=0.35) and bool(members) == bool(slope)


# --- where it is shown ---------------------------------------------------------------------------------------------------


@needs_mca
def test_table_json_and_requirements(tmp_path, capsys):
    (tmp_path / "k.s").write_text(X86.format(".LBB0_1:\n\t.loc\t1 7 0\n" + fmas(1) + "\n" + ENDS["x86-64"]))
    run = lambda *more: command.main(["asm", str(tmp_path / "k.s"), "--model", "zen3", *more])  # noqa: E731
    assert run() == 0
    out = capsys.readouterr().out
    assert "4.0 of 0.67 cycles an iteration: bound by one dependency chain" in out and "cycles by llvm-mca" in out and " 12%" in out
    assert run("--json") == 0
    (d,) = json.loads(capsys.readouterr().out)
    b = next(r["bound"] for r in d["loops"] if r["hot"])
    assert b["model"] == "znver3" and b["by"] == "dependencies" and b["cycles"] == 4 and b["flop_per_cycle"] == 4 and b["words"] and "ports" in b["limits"]
    assert "a cycle" in b["peak_source"]
    assert run("--require", "cycles<=2") == 1 and "cycles is 4.00, required <=2" in capsys.readouterr().out
    assert run("--require", "cycles<=4, peak>=0.1") == 0
    capsys.readouterr()
    for bad in ("0", "-1", "nan"):
        assert run("--bandwidth", bad) == 2 and "bytes a cycle" in capsys.readouterr().err


@needs_mca
def test_a_cpu_that_there_is_not(tmp_path, capsys):
    (tmp_path / "k.s").write_text(X86.format(".LBB0_1:\n" + fmas(1) + "\n" + ENDS["x86-64"]))
    run = lambda name: (command.main(["asm", str(tmp_path / "k.s"), "--model", name]), capsys.readouterr())  # noqa: E731
    code, said = run("zen9")
    assert code == 2 and "--model zen9: llvm-mca knows no such CPU; did you mean 'zen" in said.err and "neoverse-v2" in said.err
    assert run("native")[0] == 0
    code, said = run("cortex-a72")  # of another ISA: the code beside it may be that one's
    assert code == 0 and "no bound: " in said.out


@needs_mca
def test_in_python(tmp_path):
    (tmp_path / "k.s").write_text(X86.format(".LBB0_1:\n" + fmas(1) + "\n" + ENDS["x86-64"]))
    r = report.inspect(tmp_path / "k.s", "x86-64-v3")
    assert isinstance(r.hot[0].bound, bound.Bound) and r.hot[0].bound.by == "dependencies" and "Haswell" in r.bounds


@needs_mca
def test_eighty_columns(monkeypatch, tmp_path, capsys):
    (tmp_path / "k.s").write_text(X86.format(".LBB0_1:\n\t.loc\t1 7 0\n" + fmas(1) + "\n" + ENDS["x86-64"]))
    monkeypatch.setenv("COLUMNS", "80")
    assert command.main(["asm", str(tmp_path / "k.s"), "--model", "znver3"]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert max(map(len, lines)) <= 80
    table = lines[max(k for k, line in enumerate(lines) if " cycles" in line and "insns" in line):]
    assert "…" not in "".join(table) and "peak" in table[0] and "spills" in table[0]


def test_requirements_know_the_figures():
    assert verdict.requirements("cycles<=4, peak>=50%") == [("cycles", "<=", 4.0), ("peak", ">=", 0.5)]
