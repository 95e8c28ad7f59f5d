"""Which loop beside a vector loop takes what that leaves, and which only looks so: small functions of a vector loop with rounded count and one scalar loop."""

import pytest
from triport.tools.inspector import code, report, verdict

#: twice each element by eight; then a scalar loop that goes on at the rounded count, or anywhere else
MAIN = """	.text
	.globl	f
	.type	f,@function
f:
	movq	%rdx, %rcx
	andq	$-8, %rcx
	xorl	%eax, %eax
.L1:
	vmovups	(%rsi,%rax,4), %ymm0
{main}
	vmovups	%ymm0, (%rdi,%rax,4)
	addq	$8, %rax
	cmpq	%rax, %rcx
	jne	.L1
	cmpq	%rcx, %rdx
	je	.L3
.L2:
{scalar}
	incq	%rcx
	cmpq	%rcx, %rdx
	jne	.L2
.L3:
	ret
"""
ADD, FMA = "\tvaddps %ymm0, %ymm0, %ymm0", "\tvfmadd132ps %ymm1, %ymm2, %ymm0"
SUM = "\tvaddps %ymm0, %ymm3, %ymm3"
#: what the two loops do -> is the second one the first one's tail?
PAIRS = {
    "the same": (ADD, "\tvmovss (%rsi,%rcx,4), %xmm0\n\tvaddss %xmm0, %xmm0, %xmm0\n\tvmovss %xmm0, (%rdi,%rcx,4)", True),
    "the same, multiplied and added apart": (FMA, "\tvmovss (%rsi,%rcx,4), %xmm0\n\tvmulss %xmm1, %xmm0, %xmm0\n\tvaddss %xmm2, %xmm0, %xmm0\n\tvmovss %xmm0, (%rdi,%rcx,4)", True),
    "a constant from memory": (ADD, "\tvmovss (%rsi,%rcx,4), %xmm0\n\tvaddss .LC0(%rip), %xmm0, %xmm0\n\tvmovss %xmm0, (%rdi,%rcx,4)", True),
    "a value of no round from memory": (ADD, "\tvmovss (%rsi,%rcx,4), %xmm0\n\tvaddss (%r8), %xmm0, %xmm0\n\tvmovss %xmm0, (%rdi,%rcx,4)", True),
    "a sum in both": (SUM, "\tvmovss (%rsi,%rcx,4), %xmm0\n\tvaddss %xmm0, %xmm3, %xmm3\n\tvmovss %xmm0, (%rdi,%rcx,4)", True),
    "the element before, kept in a register": (ADD, "\tvmovaps %xmm5, %xmm4\n\tvmovss (%rsi,%rcx,4), %xmm5\n\tvaddss %xmm5, %xmm4, %xmm0\n\tvmovss %xmm0, (%rdi,%rcx,4)", True),
    "a square root whose register is written whole": ("\tvsqrtps %ymm0, %ymm0\n" + ADD, "\tsqrtss (%rsi,%rcx,4), %xmm0\n\taddss %xmm0, %xmm0\n\tmovss %xmm0, (%rdi,%rcx,4)", True),
    "multiplied, too": (ADD, "\tvmovss (%rsi,%rcx,4), %xmm0\n\tvfmadd132ss %xmm1, %xmm2, %xmm0\n\tvmovss %xmm0, (%rdi,%rcx,4)", False),
    "a recurrence": (FMA, "\tvfmadd132ss (%rsi,%rcx,4), %xmm1, %xmm0\n\tvmovss %xmm0, (%rdi,%rcx,4)", False),
    "a recurrence by two instructions": (FMA, "\tvmulss (%rsi,%rcx,4), %xmm0, %xmm1\n\tvaddss %xmm2, %xmm1, %xmm0\n\tvmovss %xmm0, (%rdi,%rcx,4)", False),
    "a recurrence through memory": (FMA, "\tvmovss (%rsi,%rcx,4), %xmm0\n\tvfmadd132ss -4(%rdi,%rcx,4), %xmm1, %xmm0\n\tvmovss %xmm0, (%rdi,%rcx,4)", False),
}


@pytest.mark.parametrize("name", PAIRS)
def test_tails_do_what_the_main_loop_does(name):
    main, scalar, tail = PAIRS[name]
    r = report.of(code.Code("f", "x86-64-v3", "x86-64", MAIN.format(main=main, scalar=scalar), vector_bits=256))
    assert [x.tail for x in r.regions if x.loop] == [False, tail]
    assert r.verdict == (verdict.VECTOR if tail else verdict.PARTLY)


def test_the_other_mode_is_no_scalar_version():
    """Of two loops of which one runs, a recurrence is not the other for few elements."""
    one = "\tvmovups (%rsi,%rax,4), %ymm0\n\tvfmadd132ps %ymm1, %ymm2, %ymm0\n\tvmovups %ymm0, (%rdi,%rax,4)\n\taddq $8, %rax"
    same = "\tvmovss (%rsi,%rax,4), %xmm0\n\tvfmadd132ss %xmm1, %xmm2, %xmm0\n\tvmovss %xmm0, (%rdi,%rax,4)\n\tincq %rax"
    other = "\tvfmadd132ss (%rsi,%rax,4), %xmm1, %xmm0\n\tvmovss %xmm0, (%rdi,%rax,4)\n\tincq %rax"
    for body, want in ((same, verdict.VECTOR), (other, verdict.PARTLY)):
        source = f"\t.text\nf:\n\txorl %eax, %eax\n\ttestl %ecx, %ecx\n\tje .L2\n.L1:\n{one}\n\tcmpq %rax, %rdx\n\tjne .L1\n\tret\n.L2:\n{body}\n\tcmpq %rax, %rdx\n\tjne .L2\n\tret\n"
        assert report.of(code.Code("f", "x86-64-v3", "x86-64", source, vector_bits=256)).verdict == want


@pytest.mark.parametrize("name,source,tail", [
    ("aarch64", "\tand x4, x2, #-4\n\tmov x3, #0\n.L1:\n\tldr q0, [x1, x3]\n\tfmla v3.4s, v0.4s, v1.4s\n\tadd x3, x3, #16\n\tcmp x3, x4\n\tb.ne .L1\n.L2:\n\tldr s0, [x1, x3]\n\tfmadd s3, s0, s1, s3\n"
                "\tadd x3, x3, #4\n\tcmp x3, x2\n\tb.ne .L2\n\tret\n", True),
    ("aarch64", "\tand x4, x2, #-4\n\tmov x3, #0\n.L1:\n\tldr q0, [x1, x3]\n\tfmul v0.4s, v0.4s, v1.4s\n\tfadd v0.4s, v0.4s, v2.4s\n\tstr q0, [x0, x3]\n\tadd x3, x3, #16\n\tcmp x3, x4\n\tb.ne .L1\n.L2:\n"
                "\tldr s0, [x1, x3]\n\tfmadd s3, s0, s3, s2\n\tstr s3, [x0, x3]\n\tadd x3, x3, #4\n\tcmp x3, x2\n\tb.ne .L2\n\tret\n", False),
    ("riscv64", "\tandi a4, a2, -4\n\tvsetivli zero, 4, e32, m1, ta, ma\n.L1:\n\tvle32.v v8, (a1)\n\tvfmul.vf v8, v8, fa1\n\tvfadd.vf v8, v8, fa2\n\tvse32.v v8, (a0)\n\taddi a1, a1, 16\n\taddi a0, a0, 16\n"
                "\taddi a4, a4, -4\n\tbnez a4, .L1\n.L2:\n\tflw fa0, 0(a1)\n\tfmadd.s fa3, fa0, fa3, fa2\n\tfsw fa3, 0(a0)\n\taddi a1, a1, 4\n\taddi a0, a0, 4\n\tbne a1, a3, .L2\n\tret\n", False),
])
def test_recurrences_elsewhere(name, source, tail):
    r = report.of(code.Code("f", name, name, "\t.text\n\t.globl f\nf:\n" + source, vlen=128))
    assert [x.tail for x in r.regions if x.loop] == [False, tail] and (r.verdict == verdict.VECTOR) == tail
