"""The spellings in which assembly comes: Intel's, Apple's, and every way in which objdump prints."""

import re

import pytest
from triport.backends.base import Error
from triport.tools.inspector import intel, isa, text

#: Intel's syntax, by gcc or clang or objdump, and what the same compiler writes with -masm=att
PAIRS = [line.split(" | ") for line in """\
vmovups	zmm1, ZMMWORD PTR [rsi+rax] | vmovups (%rsi,%rax), %zmm1
vmovups ymm0, ymmword ptr [rdi + r8 - 32] | vmovups -32(%rdi,%r8), %ymm0
vfmadd213ss	xmm1, xmm0, dword ptr [rdi + 4*rcx] | vfmadd213ss (%rdi,%rcx,4), %xmm0, %xmm1
lea	eax, -1[rdx] | lea -1(%rdx), %eax
lea	rcx, 0[0+r9*4] | lea (,%r9,4), %rcx
add	dword ptr [rdi + 4*rcx], 3 | addl $3, (%rdi,%rcx,4)
mov	DWORD PTR -20[rbp], edi | movl %edi, -20(%rbp)
mov	rax, QWORD PTR fs:40 | movq %fs:40, %rax
movsxd	r9, dword ptr [rdx + 4*rcx] | movslq (%rdx,%rcx,4), %r9
movzx	eax, BYTE PTR [rdi+rdx] | movzbl (%rdi,%rdx), %eax
movsx	ecx, ax | movswl %ax, %ecx
cvtsi2sd	xmm0, dword ptr [rdi] | cvtsi2sdl (%rdi), %xmm0
vcvtpd2ps	xmm0, YMMWORD PTR [rdi] | vcvtpd2psy (%rdi), %xmm0
vmovss	xmm3, DWORD PTR .LC1[rip] | vmovss .LC1(%rip), %xmm3
vbroadcastss	ymm0, dword ptr [rip + .LCPI0_0] | vbroadcastss .LCPI0_0(%rip), %ymm0
vaddps	zmm1{k1}{z}, zmm2, zmm3 | vaddps %zmm3, %zmm2, %zmm1{%k1}{z}
vmulps	zmm0, zmm1, dword ptr [rax]{1to16} | vmulps (%rax){1to16}, %zmm1, %zmm0
vmulps	zmm0, zmm1, DWORD BCST [rax] | vmulps (%rax){1to16}, %zmm1, %zmm0
vgatherdps	ymm0, dword ptr [rsi + 4*ymm1], ymm2 | vgatherdps %ymm2, (%rsi,%ymm1,4), %ymm0
vcmpps	k1, zmm0, zmm1, 1 | vcmpps $1, %zmm1, %zmm0, %k1
fld	TBYTE PTR [rdi] | fldt (%rdi)
fmul	dword ptr [rax] | fmuls (%rax)
imul	rax, rbx, 12 | imul $12, %rbx, %rax
mov	edi, OFFSET FLAT:.LC0 | mov $.LC0, %edi
call	[QWORD PTR expf@GOTPCREL[rip]] | call *expf@GOTPCREL(%rip)
call	sinf@PLT | call sinf@PLT
jmp	rax | jmp *%rax
jmp	[QWORD PTR .L4[0+rdi*8]] | jmp *.L4(,%rdi,8)
rep movsb | rep movsb
rep stosd | rep stosl
cdqe | cltq
lock xadd	dword ptr [rdi], eax | lock xaddl %eax, (%rdi)""".split("\n")]


@pytest.mark.parametrize("ours,att", PAIRS)
def test_intels_syntax_is_read(ours, att):
    assert intel.att(ours) == att


SCALED = "{x}:\n{start}\txorl %eax, %eax\n.L3:\n\tvmovups (%rdi,%rax), %ymm0\n\tvmulps %ymm1, %ymm0, %ymm0\n\tvmovups %ymm0, (%rdi,%rax)\n\taddq $32, %rax\n\tcmpq %rax, %rdx\n\tjne .L3\n\tret\n"


def classes(source: str, name: str):
    row = isa.ISAS[name]
    found = text.functions(source, row)
    for f in found:
        isa.classify(f, row, isa.Machine(256))
    return found


def kinds(source: str, name: str):
    return [(f.name, [(i.what.kind, i.what.unit, i.what.element, i.what.bits, i.what.flow) for i in f.instructions]) for f in classes(source, name)]


def test_a_file_says_its_syntax_or_its_registers_do():
    body = "f:\n\txor\teax, eax\n.L3:\n\tvmovups\tymm0, YMMWORD PTR [rdi+rax]\n\tvmulps\tymm0, ymm0, ymm1\n\tvmovups\tYMMWORD PTR [rdi+rax], ymm0\n\tadd\trax, 32\n" \
           "\tcmp\trdx, rax\n\tjne\t.L3\n\tret\n"
    want = kinds("\t.globl f\n\t.type f,@function\n" + SCALED.format(x="f", start=""), "x86-64")
    assert kinds("\t.intel_syntax noprefix\n\t.globl f\n\t.type f,@function\n" + body, "x86-64") == want
    assert kinds(body, "x86-64") == want, "without a directive"
    both = "\t.intel_syntax noprefix\n\t.globl f\n\t.type f,@function\nf:\n\txor\teax, eax\n\t.att_syntax\n\tmovl %eax, %ecx\n\t.intel_syntax noprefix\n\tmov\tedx, ecx\n\tret\n"
    assert not [i.text for f in classes(both, "x86-64") for i in f.instructions if i.what.kind == "unknown"]


def test_mach_o():
    source = "\t.section\t__TEXT,__text,regular,pure_instructions\n\t.build_version macos, 12, 0\n\t.globl\t_f                      ## -- Begin function f\n_f:\n## %bb.0:\nLBB0_4:   ## =>This\n" \
             "\tmovups\t(%rsi,%r8), %xmm2           ## xmm2 = mem\n\tcallq\t_sinf\n\taddq\t$32, %r8\n\tcmpq\t%r8, %rdx\n\tjne\tLBB0_4\n\tretq\n_local:\n\tretq\n" \
             "\t.section\t__TEXT,__literal4,4byte_literals\n\t.long\t1\n\t.section __DATA,__data\n_x:\n\t.quad 1\n.subsections_via_symbols\n"
    found = classes(source, "x86-64")
    assert [f.name for f in found] == ["f", "local"] and found[0].labels == {"LBB0_4": 0}
    assert [i.what.kind for i in found[0].instructions] == ["load", "call", "arithmetic", "arithmetic", "branch", "branch"]
    assert found[0].instructions[1].what.target == "sinf"


def test_apples_neon():
    """Mach-O text for Arm: ; begins a comment, and the arrangement stands at the mnemonic."""
    apple = ("fmla.4s\tv6, v2, v1", "dup.4s\tv1, v0[0]", "ld1.4s\t{ v0, v1 }, [x0]", "mov.s\tv0[1], w8", "st1.s\t{ v0 }[1], [x8]", "ldp\tq2, q3, [x11, #-32]", "fmul.2d\tv0, v1, v2[1]",
             "faddp.2s\ts0, v0", "b.lt\tLBB0_1", "bl\t_expf")
    usual = ("fmla v6.4s, v2.4s, v1.4s", "dup v1.4s, v0.s[0]", "ld1 { v0.4s, v1.4s }, [x0]", "mov v0.s[1], w8", "st1 { v0.s }[1], [x8]", "ldp q2, q3, [x11, #-32]",
             "fmul v0.2d, v1.2d, v2.d[1]", "faddp s0, v0.2s", "b.lt LBB0_1", "bl expf")
    source = "\t.section\t__TEXT,__text,regular,pure_instructions\n\t.globl _f\n_f:   ; @f\nLBB0_1:\n; %bb.0:\n" + "".join(f"\t{x}   ; a comment\n" for x in apple)
    (f,) = classes(source, "aarch64")
    assert [i.text for i in f.instructions] == list(usual) and "unknown" not in {i.what.kind for i in f.instructions}


#: ISA -> (a disassembler's lines: address, bytes, text; what stands before the bytes and between)
DUMPS = {
    "x86-64": ("elf64-x86-64", [("28", "62 f1 7c 48 10 0c 06", "vmovups (%rsi,%rax,1),%zmm1"), ("2f", "62 f2 6d 48 a8 0c 07", "vfmadd213ps (%rdi,%rax,1),%zmm2,%zmm1"),
                                ("36", "62 f1 7c 48 11 0c 07", "vmovups %zmm1,(%rdi,%rax,1)"), ("3d", "48 83 c0 40", "add    $0x40,%rax"), ("41", "48 39 c1", "cmp    %rax,%rcx"),
                                ("44", "75 e2", "jne    28 <saxpy+0x28>"), ("46", "c3", "ret")]),
    "aarch64": ("elf64-littleaarch64", [("28", "3ce36801", "ldr\tq1, [x0, x3]"), ("2c", "1e222820", "fadd\ts0, s1, s2"), ("30", "4e23cc41", "fmla\tv1.4s, v2.4s, v3.4s"), ("34", "3ca36801", "str\tq1, [x0, x3]"),
                                        ("38", "eb03009f", "cmp\tx4, x3"), ("3c", "54ffff41", "b.ne\t28 <saxpy+0x28>  // b.any"), ("40", "d65f03c0", "ret")]),
    "riscv64": ("elf64-littleriscv", [("28", "0d1076d7", "vsetvli\ta3,zero,e32,m2,ta,ma"), ("2c", "02056507", "vle32.v\tv10,(a0)"), ("30", "b2a41657", "vfmacc.vv\tv12,v8,v10"), ("34", "02056627", "vse32.v\tv12,(a0)"),
                                      ("38", "9696", "add\ta3,a3,t0"), ("3a", "f77d", "bnez\ta4,28 <saxpy+0x28>"), ("3c", "8082", "ret")]),
}
HEAD = "\nx.o:     file format {}\n\n\nDisassembly of section .text:\n\n0000000000000028 <saxpy>:\n"


def dump(name: str, shape: str) -> str:
    form, rows = DUMPS[name]
    lines = {"gnu": lambda a, b, t: f"  {a}:\t{b:<21}\t{t}", "llvm": lambda a, b, t: f"      {a}: {b:<29}\t{t}", "bare": lambda a, b, t: f"  {a}:\t{t}",
             "pasted": lambda a, b, t: f"  {a}:   {b:<21}   {t.expandtabs()}"}[shape]
    return HEAD.format(form) + "\n".join(lines(*row) for row in rows) + "\n"


@pytest.mark.parametrize("name", DUMPS)
@pytest.mark.parametrize("shape", ["gnu", "llvm", "bare", "pasted"])
def test_every_way_in_which_objdump_prints(name, shape):
    """With and without bytes; `fadd` and `add`, which look like bytes, among them."""
    (f,) = classes(dump(name, shape), name)
    want = [re.split(r"\s", t)[0] for _, _, t in DUMPS[name][1]]
    assert f.name == "saxpy" and [i.mnemonic for i in f.instructions] == want and [i.address for i in f.instructions] == [int(a, 16) for a, _, _ in DUMPS[name][1]]
    assert "unknown" not in {i.what.kind for i in f.instructions} and f.labels == {".L28": 0}


def test_long_instructions_go_on_in_the_next_line():
    source = HEAD.format("elf64-x86-64") + "  28:\tc7 84 24 98 00 00 00 \tmovl   $0x1,0x98(%rsp)\n  2f:\t01 00 00 00 \n  33:\tc3                   \tret\n"
    (f,) = classes(source, "x86-64")
    assert [i.mnemonic for i in f.instructions] == ["movl", "ret"]


def test_objdump_in_intels_syntax():
    rows = [("28", "62 f1 7c 48 10 0c 06", "vmovups zmm1,ZMMWORD PTR [rsi+rax*1]"), ("2f", "48 83 c0 40", "add    rax,0x40"), ("33", "75 e2", "jne    28 <saxpy+0x28>"), ("35", "c3", "ret")]
    (f,) = classes(HEAD.format("elf64-x86-64") + "\n".join(f"  {a}:\t{b:<21}\t{t}" for a, b, t in rows), "x86-64")
    assert [i.text for i in f.instructions] == ["vmovups (%rsi,%rax), %zmm1", "add $0x40, %rax", "jne .L28", "ret"]


def test_no_heading_is_needed():
    """A part of a disassembly, cut out by hand."""
    (f,) = classes(dump("x86-64", "gnu").partition("text:\n")[2], "x86-64")
    assert f.name == "saxpy" and len(f.instructions) == 7


def test_jumps_that_the_linker_fills_in_are_refused():
    source = HEAD.format("elf64-littleriscv") + "  28:\t00c05063          \tblez\ta2,28 <saxpy>\n  2c:\t8082                \tret\n"
    with pytest.raises(Error, match="branches to themselves .*-mno-relax"):
        classes(source, "riscv64")


def test_a_callee_that_only_the_linker_knows():
    """An object's call goes to the next instruction (x86) or to itself (Arm) until it is linked; it is no loop."""
    for name, line in (("x86-64", "  28:\te8 00 00 00 00       \tcall   2d <f+0x5>\n  2d:\tc3   \tret\n"), ("aarch64", "  28:\t94000000 \tbl\t28 <f>\n  2c:\td65f03c0 \tret\n")):
        (f,) = classes(HEAD.format("elf64-" + {"x86-64": "x86-64", "aarch64": "littleaarch64"}[name]) + line, name)
        assert f.instructions[0].what.kind == "call" and f.instructions[0].what.target == "unlinked" and not f.labels


def test_a_callee_is_the_relocations():
    source = HEAD.format("elf64-x86-64") + "  28:\te8 00 00 00 00       \tcall   2d <saxpy+0x5>\n\t\t\t29: R_X86_64_PLT32\tsinf-0x4\n  2d:\tc3   \tret\n"
    (f,) = classes(source, "x86-64")
    assert f.instructions[0].what.target == "sinf"
    source = HEAD.format("elf64-littleriscv") + "  28:\t00000097 \tauipc\tra,0x0\n\t\t\t28: R_RISCV_CALL_PLT\tsinf\n\t\t\t28: R_RISCV_RELAX\t*ABS*\n  2c:\t000080e7 \tjalr\tra # 28 <saxpy>\n  30:\t8082\tret\n"
    (f,) = classes(source, "riscv64")
    assert [i.what.target for i in f.instructions if i.what.kind == "call"] == ["sinf"]


@pytest.mark.parametrize("raw", ["", "48 89 f9           \t"])
def test_gdbs_disassembly(raw):
    source = f"Dump of assembler code for function f:\n   0x0000000000401030 <+0>:\t{raw}xor    %eax,%eax\n=> 0x0000000000401032 <+2>:\t{raw}vaddps (%rsi,%rax,1),%ymm0,%ymm0\n" \
             f"   0x0000000000401037 <+7>:\t{raw}jne    0x401032 <f+2>\n   0x0000000000401039 <+9>:\t{raw}ret\nEnd of assembler dump.\n"
    (f,) = classes(source, "x86-64")
    assert f.name == "f" and [i.mnemonic for i in f.instructions] == ["xor", "vaddps", "jne", "ret"] and f.labels == {".L401032": 1}


def test_mach_o_disassembled():
    source = "\nm.o:\tfile format mach-o arm64\n\nDisassembly of section __TEXT,__text:\n\n0000000000000000 <_f>:\n       0: d2800009     \tmov\tx9, #0x0                ; =0\n" \
             "       4: 4e22cc26     \tfmla.4s\tv6, v2, v1\n       8: 54000001     \tb.ne\t0x4 <_f+0x4>\n       c: 94000000     \tbl\t0x100 <_expf>\n      10: d65f03c0     \tret\n"
    (f,) = classes(source, "aarch64")
    assert f.name == "f" and [i.text for i in f.instructions] == ["mov x9, #0x0", "fmla v6.4s, v2.4s, v1.4s", "b.ne .L4", "bl expf", "ret"]


def test_a_part_of_amds_disassembly():
    source = "\tv_add_f32_e32 v1, v2, v3                                   // 000000001600: 02020702\n" \
             "\tglobal_store_dword v0, v1, s[0:1]                          // 000000001604: DC708000 00000100\n\ts_endpgm                                                   // 00000000160C: BF810000\n"
    (f,) = classes(source, "amdgcn")
    assert [i.mnemonic for i in f.instructions] == ["v_add_f32_e32", "global_store_dword", "s_endpgm"] and [i.address for i in f.instructions] == [0x1600, 0x1604, 0x160c]


@pytest.mark.parametrize("section,code", [
    ('.section fast,"ax",@progbits', True), ('.section\t.ltext,"axl",@progbits', True), ('.section ".vectors", "ax"', True), ('.section fast,"ax"\n\t.data\n\t.section fast', True),
    ('.pushsection .rodata\n\t.quad 1\n\t.popsection', True), ('.data\n\t.previous', True), ('.section .rodata\n\t.pushsection fast,"axG",@progbits,f,comdat', True),
    (".section __TEXT,__text,regular", True), (".section .text.hot", True), (".section .init", True), ('.pushsection .text.hot,1,"ax"', True),
    ('.section .init_array,"aw"', False), (".section .init_array", False), ('.section fast,"aw"', False), (".section fast", False), ('.section .text,"ax"\n\t.data', False)])
def test_sections_that_hold_code(section, code):
    """By their flags; those without any by their name."""
    source = f"\t.text\n\t.globl f\n\t.type f, @function\n{section}\nf:\n\taddl $1, %eax\n\tret\n"
    assert [i.mnemonic for f in text.functions(source, isa.ISAS["x86-64"]) for i in f.instructions] == (["addl", "ret"] if code else [])
