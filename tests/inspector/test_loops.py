"""Readers, loops, figures and verdicts on small functions written here."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from triport.backends.base import Error
from triport.tools.inspector import code, isa, report, text, verdict

X86 = "\t.text\n\t.globl\tk\n\t.type\tk,@function\nk:\n\t.file\t1 \"/u\" \"k.py\"\n{}\n\tretq\n\t.size\tk, .-k\n"


def x86(body, **facts):
    return report.of(code.Code("k", "x86-64-v3", "x86-64", X86.format(body), vector_bits=256, **facts))


def loop(body, label=".LBB0_1", line=7):
    return f"{label}:\n\t.loc\t1 {line} 0\n{body}\n\taddq $8, %rax\n\tcmpq %rbx, %rax\n\tjb {label}"


VECTOR = "\tvmovups (%rdi,%rax,4), %ymm0\n\tvfmadd231ps %ymm0, %ymm1, %ymm2\n\tvmovups %ymm2, (%rsi,%rax,4)"
SCALAR = "\tvmovss (%rdi,%rax,4), %xmm0\n\tvfmadd231ss %xmm0, %xmm1, %xmm2\n\tvmovss %xmm2, (%rsi,%rax,4)"


def test_a_vector_loop():
    r = x86(loop(VECTOR))
    (hot,) = r.hot
    assert r.verdict == verdict.VECTOR and hot.label == ".LBB0_1" and hot.where == "k.py:7"
    f = hot.figures
    assert (f["vector"], f["fma"], f["load_bits"], f["store_bits"], f["spills"], f["bytes_per_access"]) == (1, 1, 256, 256, 0, 32)
    assert verdict.causes(hot, False) == []


def test_a_scalar_loop_fails_requirements():
    r = x86(loop(SCALAR))
    assert r.verdict == verdict.SCALAR
    lines = r.failures(verdict.requirements("vector>=0.9, load_bits>=128, spills=0"))
    assert len(lines) == 2 and "vector is 0.00, required >=0.9" in lines[0] and "k.py:7" in lines[0]
    assert "load_bits is 32" in lines[1]


@pytest.mark.parametrize("body,name", [
    ("\tvmovss (%rdi,%rax,4), %xmm0\n\tcallq expf@PLT\n\tvmovss %xmm0, (%rsi,%rax,4)", "scalar call"),
    ("\tmovl %ecx, %eax\n\tidivl %r8d\n\tvmovss (%rdi,%rdx,4), %xmm0\n\tvaddss %xmm0, %xmm1, %xmm1", "index by division"),
    ("\tvgatherdps %ymm3, (%rdi,%ymm4,4), %ymm0\n\tvaddps %ymm0, %ymm1, %ymm1", "stride not one"),
    ("\tvmaskmovps (%rdi,%rax,4), %ymm3, %ymm0\n\tvaddps %ymm0, %ymm1, %ymm1\n\tvmaskmovps %ymm1, %ymm3, (%rsi,%rax,4)", "mask in every chunk"),
    ("\tvmovups (%rdi,%rax,4), %ymm0\n\tvaddps 32(%rsp), %ymm0, %ymm0\n\tvmovups %ymm0, (%rsi,%rax,4)", "spills"),
    ("\tvmovups (%rdi,%rax,4), %xmm0\n\tvcvtps2pd %xmm0, %ymm0\n\tvmulpd %ymm0, %ymm1, %ymm0\n\tvcvtpd2ps %ymm0, %xmm0", "fp64"),
    ("\tvcvtph2ps (%rdi,%rax,2), %ymm0\n\tvaddps %ymm0, %ymm1, %ymm0\n\tvcvtps2ph $4, %ymm0, (%rsi,%rax,2)", "type conversion"),
    ("\tvmovups (%rdi,%rax,4), %ymm0\n\tvaddps %ymm0, %ymm1, %ymm1\n\taddq %r9, %r10\n\taddq %r9, %r11\n\taddq %r9, %r12\n\taddq %r9, %r13",
     "not unrolled"),
])
def test_causes(body, name):
    (hot,) = x86(loop(body)).hot
    found = {c.name: c for c in verdict.causes(hot, False)}
    assert name in found and found[name].remedy and found[name].line in ("k.py:7", "")


def test_a_call_is_named():
    (hot,) = x86(loop("\tvmovss (%rdi,%rax,4), %xmm0\n\tcallq expf@PLT")).hot
    assert "`expf`" in verdict.causes(hot, False)[0].text and "tl.exp" in verdict.causes(hot, False)[0].remedy


def test_fp64_is_no_fault_where_arguments_are_fp64():
    body = loop("\tvmovupd (%rdi,%rax,8), %ymm0\n\tvaddpd %ymm0, %ymm1, %ymm1")
    assert x86(body).hot[0].figures["f64"] == 1 and x86(body, f64=True).hot[0].figures["f64"] == 0


def test_fp64_is_no_fault_where_arguments_are_not_known():
    """A file of C has some, which its assembly does not tell."""
    (hot,) = x86(loop("\tvmovupd (%rdi,%rax,8), %ymm0\n\tvaddpd %ymm0, %ymm1, %ymm1"), backend="file").hot
    assert hot.figures["f64"] == 1 and "fp64" not in [c.name for c in verdict.causes(hot, False)]


def test_tails_are_not_judged_and_other_passes_are():
    """A scalar loop over the same lines beside a vector loop takes what that leaves; one over other lines is a loop of its own."""
    r = x86(loop(VECTOR) + "\n" + loop(SCALAR, ".LBB0_2"))
    assert [(x.label, x.tail) for x in r.regions if x.loop] == [(".LBB0_1", False), (".LBB0_2", True)] and r.verdict == verdict.VECTOR
    assert x86(loop(VECTOR) + "\n" + loop(SCALAR, ".LBB0_2", line=9)).verdict == verdict.PARTLY


def test_nested_loops():
    """Only the innermost is hot; an inner loop's instructions are not counted in the outer one."""
    r = x86(".LBB0_1:\n\tvmovss (%rcx), %xmm7\n" + loop(VECTOR, ".LBB0_2") + "\n\taddq $1, %rcx\n\tcmpq %r8, %rcx\n\tjne .LBB0_1")
    found = {x.label: x for x in r.regions if x.loop}
    assert (found[".LBB0_1"].depth, found[".LBB0_2"].depth) == (1, 2) and not found[".LBB0_1"].hot and found[".LBB0_2"].hot
    assert found[".LBB0_1"].kinds["fma"] == 0 and found[".LBB0_2"].heat > 0.8


def test_a_body_without_loops_is_judged():
    r = x86("\tvmovss (%rdi), %xmm0\n\tvmulss %xmm0, %xmm0, %xmm0\n\tvmovss %xmm0, (%rsi)")
    assert r.hot[0].label == "body" and r.verdict == verdict.SCALAR


def test_the_frame_pointer_is_a_register_like_others_unless_it_is_one():
    body = loop("\tvmovups 32(%rbp), %ymm0\n\tvmulps %ymm0, %ymm0, %ymm0\n\tvmovups %ymm0, (%rsi,%rax,4)")
    assert x86(body).hot[0].figures["spills"] == 0
    assert x86("\tpushq %rbp\n\tmovq %rsp, %rbp\n" + body).hot[0].figures["spills"] == 1


def test_hand_written_assembly_with_plain_labels():
    source = "vadd:\n\tvsetvli t0, a0, e32, m1, ta, ma\nloop:\n\tvle32.v v0, (a1)\n\tvfadd.vv v0, v0, v1\n\tvse32.v v0, (a2)\n\tsub a0, a0, t0\n\tbnez a0, loop\n\tret\n"
    r = report.of(code.Code("f", "rv64gcv", "riscv64", source, vlen=512))
    assert [f.name for f in r.functions] == ["vadd"] and r.verdict == verdict.VECTOR and r.hot[0].figures["load_bits"] == 512
    numeric = report.of(code.Code("f", "rv64gcv", "riscv64", source.replace("loop:", "1:").replace(", loop", ", 1b"), vlen=512))
    assert numeric.verdict == verdict.VECTOR and [(x.depth, x.hot) for x in numeric.regions if x.loop] == [(1, True)]


@pytest.mark.parametrize("name,body", [
    ("x86-64", "\tmovups (%rdx), %xmm1\n\tmulps %xmm1, %xmm1\n\tmovups %xmm1, (%rdx)\n1:\tmovss (%rdi), %xmm0\n\tmulss %xmm0, %xmm0\n\tmovss %xmm0, (%rdi)\n\taddq $4, %rdi\n"
               "\tcmpq %rsi, %rdi\n\tje 1f\n\tjmp 1b\n1:\n\tret\n"),
    ("riscv64", "\tvsetivli zero, 4, e32, m1, ta, ma\n\tvle32.v v8, (a3)\n\tvfmul.vv v8, v8, v8\n\tvse32.v v8, (a3)\n1:\n\tflw fa1, 0(a1)\n\tfmul.s fa1, fa1, fa0\n\tfsw fa1, 0(a1)\n\taddi a1, a1, 4\n"
                "\tbeq a1, a2, 1f\n\tj 1b\n1:\n\tret\n"),
    ("aarch64", "\tldr q1, [x3]\n\tfmul v1.4s, v1.4s, v1.4s\n\tstr q1, [x3]\n1:\tldr s0, [x0]\n\tfmul s0, s0, s0\n\tstr s0, [x0], #4\n\tcmp x0, x1\n\tb.eq 1f\n\tb 1b\n1:\n\tret\n"),
])
def test_numeric_labels_are_loops(name, body):
    """A scalar loop behind straight vector code; of two labels of one number the nearest one before or after is meant."""
    r = report.of(code.Code("f", name, name, f"\t.text\n\t.globl f\n\t.type f,@function\nf:\n{body}"))
    (one,) = [x for x in r.regions if x.loop]
    assert one.hot and r.verdict == verdict.SCALAR


def test_the_vector_type_is_followed_round_loops_and_over_jumps():
    """vset* stands before the loop; the block between is entered by a jump from further down."""
    source = ("f:\n\tvsetivli zero, 8, e32, m1, ta, ma\n\tj start\nbody:\n\tvle32.v v8, (a0)\n\tvfadd.vv v8, v8, v9\n\tvse32.v v8, (a0)\n"
              "\taddi a0, a0, 32\n\tbltu a0, a1, body\n\tret\nstart:\n\tli a2, 0\n\tj body\n")
    r = report.of(code.Code("f", "spacemit-x60", "riscv64", source, vlen=256))
    assert r.hot[0].figures["load_bits"] == 256
    mixed = source.replace("start:\n", "start:\n\tbeqz a3, body\n\tvsetivli zero, 4, e32, m1, ta, ma\n")
    assert {i.what.bits for i in report.of(code.Code("f", "x", "riscv64", mixed)).hot[0].instructions if i.mnemonic == "vfadd.vv"} == {0}


@pytest.mark.parametrize("bad", ["vector>=2", "vector>=95", "coalesced<=1.5", "peak>=-0.1", "vector>=101%", "vectr>=0.9", "vector", "vector>=", "vector>>1", "", "vector>=x"])
def test_bad_requirements(bad):
    with pytest.raises(Error, match="require"):
        verdict.requirements(bad)


def test_requirements_read():
    assert verdict.requirements("vector >= 90%, spills=0") == [("vector", ">=", 0.9), ("spills", "=", 0.0)]


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=st.sampled_from(list("abvzxr019%$(){}[]<>,.:;#/@*-+\"'_ \t\n")) | st.characters(max_codepoint=300), max_size=200),
       st.sampled_from(sorted(isa.ISAS)))
def test_readers_take_any_text(source, name):
    """Reports or a triport error, never another exception, whatever the text."""
    prefix = {"ptx": ".visible .entry k()\n{\n", "sass": "\t.section\t.text.k\n"}.get(name, "k:\n")
    try:
        r = report.of(code.Code("k", name, name, prefix + source))
    except Error:
        return
    assert sum(len(f.instructions) for f in r.functions) == sum(len(x.instructions) for x in r.regions)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300))
def test_files_of_any_bytes(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("x") / "f.o"
    path.write_bytes(data)
    try:
        report.inspect(path)
    except Error as e:
        assert "f.o" in str(e) or "disassembler" in str(e)


def test_functions_of_several_kinds_of_text():
    assert text.functions("", isa.ISAS["x86-64"]) == []


def test_a_cause_points_into_the_plan():
    """The line of the plan that is about the cause's source line, and none that merely has its number in it."""
    plan = ("plan of k for rv64gcv\n  put exp@130 into memory (13 f32 at 0): 13, 4 lanes along 0\n  line 12: reduce by addf of x_ptr[]@11 along 0: 13\n"
            "  line 13: store mulf@13 to out_ptr: 13, 4 lanes along 0\n")
    assert verdict.decided(plan, "k.py:13") == "line 13: store mulf@13 to out_ptr: 13, 4 lanes along 0"
    assert verdict.decided(plan, "k.py:11").startswith("line 12: reduce") and verdict.decided(plan, "k.py:4") == verdict.decided(plan, "") == ""


@pytest.mark.parametrize("body,rounds", [
    ("\txorl %eax, %eax\n.L1:\n\tvmovups (%rdi,%rax,4), %ymm0\n\taddq $8, %rax\n\tcmpq $1024, %rax\n\tjne .L1", 128),
    ("\tmovq $-4096, %rax\n.L1:\n\tvmovups (%rdi,%rax,4), %ymm0\n\taddq $32, %rax\n\tjne .L1", 128),
    ("\tleaq 4096(%rdi), %rcx\n.L1:\n\tvmovups (%rdi), %ymm0\n\taddq $32, %rdi\n\tcmpq %rcx, %rdi\n\tjb .L1", 128),
    ("\tmovl $16, %ecx\n.L1:\n\tvmovups (%rdi), %ymm0\n\taddq $32, %rdi\n\tdecl %ecx\n\tjne .L1", 16),
    ("\tmovq $100, -8(%rsp)\n\tmovl $100, %ecx\n\tmovq %rcx, -16(%rsp)\n\txorl %eax, %eax\n\tmovq -16(%rsp), %rdx\n.L1:\n\tvmovups (%rdi), %ymm0\n\tincq %rax\n"
     "\tcmpq %rdx, %rax\n\tjne .L1", 100),
    (".L1:\n\tvmovups (%rdi), %ymm0\n\taddq $32, %rdi\n\tcmpq %rcx, %rdi\n\tjb .L1", None),
])
def test_rounds_of_a_loop(body, rounds):
    assert [r.trips for r in x86(body).regions if r.loop] == [rounds]


def test_the_share_weighs_loops_by_their_rounds():
    """A scalar loop of 4 rounds beside a vector loop of 1024 does not make the kernel PARTLY; one of as many rounds does."""
    def beside(n):
        return x86(f"\txorl %eax, %eax\n.L1:\n{VECTOR}\n\taddq $8, %rax\n\tcmpq $8192, %rax\n\tjne .L1\n"
                   f"\txorl %eax, %eax\n.L2:\n{SCALAR}\n\taddq $1, %rax\n\tcmpq ${n}, %rax\n\tjne .L2")
    few, many = beside(4), beside(1024)
    assert few.verdict == verdict.VECTOR and 0.99 < few.share < 1 and many.verdict == verdict.PARTLY and many.share == pytest.approx(0.5)
    assert sum(r.heat for r in many.regions) == pytest.approx(1) and verdict.percent(few.share) == "over 99%"
    assert any("50% of the work is vector" in line for line in many.failures(verdict.requirements("verdict=VECTOR")))


def test_what_is_required_has_to_exist():
    r = x86(loop("\tvmovups %ymm2, (%rsi,%rax,4)"))
    assert r.verdict == verdict.VECTOR and not r.failures(verdict.requirements("vector>=0.95, store_bits>=256, verdict=VECTOR, verdict>=PARTLY"))
    for name in ("load_bits>=128", "fma>=0", "registers<=255", "shared<=1"):
        (line,) = r.failures(verdict.requirements(name))
        assert f"no hot loop has a figure {name.partition('>')[0].partition('<')[0]}" in line
    assert verdict.requirements("verdict = vector") == [("verdict", "=", "VECTOR")]
    with pytest.raises(Error, match="a verdict is VECTOR, PARTLY, SCALAR"):
        verdict.requirements("verdict=GOOD")


HALF = """

	cmpq	$2, %rdx
	jl	.LBB0_14
	movq	%rdx, %rax
	shrq	$63, %rax
	addq	%rdx, %rax
	sarq	%rax
	movq	%rax, %rcx
	andq	$-32, %rcx
	vbroadcastss	%xmm0, %ymm1
	xorl	%r9d, %r9d
.LBB0_8:
	vmulps	(%rsi,%r9,4), %ymm1, %ymm2
	vmulps	32(%rsi,%r9,4), %ymm1, %ymm3
	vmovups	%ymm2, (%rdi,%r9,4)
	vmovups	%ymm3, 32(%rdi,%r9,4)
	addq	$16, %r9
	cmpq	%r9, %rcx
	jne	.LBB0_8
	cmpq	%rcx, %rax
	je	.LBB0_14
.LBB0_4:
	vmulss	(%rsi,%rcx,4), %xmm0, %xmm1
	vmovss	%xmm1, (%rdi,%rcx,4)
	incq	%rcx
	cmpq	%rcx, %rax
	jne	.LBB0_4
.LBB0_14:
	cmpq	%rdx, %rax
	jge	.LBB0_16
.LBB0_15:
	vmulss	(%rsi,%rax,4), %xmm0, %xmm1
	vmovss	%xmm1, (%rdi,%rax,4)
	incq	%rax
	cmpq	%rax, %rdx
	jne	.LBB0_15
.LBB0_16:

"""


def test_the_other_half_is_no_tail():
    """A loop over the elements from half on begins where a shift says, which is no count rounded to whole vectors; what the first half leaves is one."""
    r = x86(HALF)
    assert {x.label: x.tail for x in r.regions if x.loop} == {".LBB0_8": False, ".LBB0_4": True, ".LBB0_15": False} and r.verdict != verdict.VECTOR


NEST = """
	movq	%rdx, %rcx
	andq	$-8, %rcx
	xorl	%eax, %eax
.LBB0_4:
	vmovups	(%rsi,%rax,4), %ymm0
	vaddps	%ymm0, %ymm0, %ymm0
	vmovups	%ymm0, (%rdi,%rax,4)
	addq	$8, %rax
	cmpq	%rax, %rcx
	jne	.LBB0_4
	xorl	%r8d, %r8d
.LBB0_5:
	xorl	%r9d, %r9d
	{padding}
.LBB0_6:
	vmovss	(%rsi,%r9,4), %xmm0
	vaddss	(%rdi,%r8,4), %xmm0, %xmm0
	vmovss	%xmm0, (%rdi,%r8,4)
	incq	%r9
	cmpq	%rdx, %r9
	jne	.LBB0_6
	incq	%r8
	cmpq	%rdx, %r8
	jne	.LBB0_5
"""


@pytest.mark.parametrize("padding", ["nop", "nopl (%rax)", "nopw 0(%rax,%rax,1)", "cs nopw 0(%rax,%rax,1)", "data16 nopw %cs:0(%rax,%rax,1)", "xchg %ax, %ax"])
def test_padding_reads_no_registers(padding):
    """A scalar nest behind a vector loop is no tail of that because a NOP before its inner loop names the register that the loop counted in."""
    r = x86(NEST.format(padding=padding))
    assert not any(x.tail for x in r.regions) and next(x for x in r.regions if x.label == ".LBB0_6").hot and r.verdict == verdict.SCALAR


@pytest.mark.parametrize("share, words", [(0.0474, "4.7%"), (0.04999, "4.9%"), (0.05, "5%"), (0.9499, "94.9%"), (0.95, "95%"), (0.5, "50%"), (0.001, "under 1%"), (0.9999, "over 99%"), (1.0, "100%"), (0.0, "0%")])
def test_a_share_does_not_round_up_to_another_verdicts(share, words):
    assert verdict.percent(share) == words
