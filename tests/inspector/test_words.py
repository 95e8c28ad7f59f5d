"""What mnemonics mean: every one of the corpora is known, and what is said is of that mnemonic."""

import re
from pathlib import Path

import pytest
from triport.ops import registry
from triport.tools.inspector import code, launches, report, targets
from triport.tools.inspector.isa import ISAS
from triport.tools.inspector.page import words

CORPUS = Path(__file__).parent / "corpus"
#: mnemonics that the corpora made up
_INVENTED = re.compile(r"v?frob|v_frob|vfrob|smt\.frob", re.I)


@pytest.mark.parametrize("isa", [name for name in ISAS if (CORPUS / f"{name}.txt").is_file()])
def test_the_corpus_is_known(isa):
    heads = [re.match(r"(?:@!?\S+\s+)?((?:(?:lock|rep\w*)\s+)?\S+)", line)[1] for line in (CORPUS / f"{isa}.txt").read_text().splitlines()
             if line.strip() and not line.startswith("#")]
    assert len(heads) > 20
    assert [m for m in heads if not words.meaning(isa, m) and not _INVENTED.match(m)] == []
    assert [m for m in heads if words.meaning(isa, m) and _INVENTED.match(m)] == []


@pytest.mark.first(2)
@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v4", "neoverse-v2", "spacemit-x60", "rv64gc", "sm_90", "gfx942", "gfx1201"])
@pytest.mark.parametrize("name, dtype", [("softmax", "fp32"), ("matmul", "bf16")])
def test_ops_are_known(target, name, dtype):
    op, goal = registry.get(name), targets.get(target)
    made = code.of_launch(launches.of_op(op, op.cases[0], dtype, "cuda" if goal.gpu else "cpu", row=goal.row)[0], goal)
    every = {i.mnemonic for f in report.of(made).functions for i in f.instructions}
    assert [m for m in sorted(every) if not words.meaning(made.isa, m)] == []
    if "ptx" in made.stages:
        found = {hit[1] for line in made.stages["ptx"].splitlines() if (hit := re.match(r"\s+(?:@!?%p\d+\s+)?([a-z][\w.:]*)\s.*;", line))}
        assert found and [m for m in sorted(found) if not words.meaning("ptx", m)] == []


@pytest.mark.parametrize("isa, mnemonic, said", [
    ("x86-64", "vfmadd231ps", "multiply and add, one rounding: first operand x second + destination"), ("x86-64", "vfmadd213sd", "destination x second operand + first"),
    ("x86-64", "vcvttps2dq", "from fp32 to integers, the fraction cut off"), ("x86-64", "jne", "jump where not equal"), ("x86-64", "vmovaps", "aligned"),
    ("x86-64", "xorps", "xor"), ("x86-64", "orps", "bitwise or"), ("x86-64", "sarq", "keeping the sign"), ("x86-64", "vgatherdps", "an address for each element"),
    ("aarch64", "fmla", "multiply and add to the destination"), ("aarch64", "b.ne", "not equal"), ("aarch64", "bne", "not equal"), ("aarch64", "bic", "and with the complement"),
    ("riscv64", "vfmv.f.s", "first element to a scalar"), ("riscv64", "vle32.v", "load elements side by side"), ("riscv64", "vluxei64.v", "an address for each element"),
    ("riscv64", "vfredusum.vs", "sum of a vector"), ("riscv64", "ld", "load 64 bits"), ("riscv64", "vmv1r.v", "whole registers"),
    ("ptx", "ld.global.v4.b32", "load; global memory; four elements"), ("ptx", "shfl.sync.bfly.b32", "another lane"), ("ptx", "ex2.approx.f32", "2 to the power of; approximate"),
    ("sass", "LDG.E.128", "load from global memory; 64-bit address; 128 bits"), ("sass", "MUFU.EX2", "2 to the power of"), ("sass", "HGMMA.64x64x16.F32", "tensor cores"),
    ("amdgcn", "global_load_dwordx4", "load from global memory, 128 bits a lane"), ("amdgcn", "v_cmp_gt_f32_e32", "compare: greater"), ("amdgcn", "s_waitcnt", "wait"),
    ("amdgcn", "v_mfma_f32_32x32x8_bf16_1k", "MFMA")])
def test_what_is_said(isa, mnemonic, said):
    assert said in words.meaning(isa, mnemonic)


def test_what_is_not_known_is_not_said():
    assert words.meaning("x86-64", "frobnicate") == "" and words.meaning("no such isa", "add") == "" and words.meaning("ptx", "") == ""
    for isa in ISAS:
        known = words.dictionary(isa)
        assert len(known.patterns) > 30 and all(meaning for _, meaning in known.patterns), isa
