"""Gathers and scatters by a load or a store for each element: counted as such, with the width of what they load."""

import pytest
from triport.tools import __main__ as command
from triport.tools.inspector import code, report, verdict

KERNEL = '''
import triton
import triton.language as tl

@triton.jit
def gather_kernel(x_ptr, i_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i = tl.load(i_ptr + o, mask=o < n, other=0)
    tl.store(y_ptr + o, tl.load(x_ptr + i, mask=o < n) * 2.0, mask=o < n)
'''

ENDS = {"x86-64": "addq $16, %rdx\n cmpq %rdx, %rcx\n jne .L0\n ret", "aarch64": "add x10, x10, #16\n cmp x10, x11\n b.ne .L0\n ret", "riscv64": "addi a6, a6, 16\n bne a6, a7, .L0\n ret"}
LONG = " addps %xmm8, %xmm0\n mulps %xmm9, %xmm0\n" * 16
#: what a loop does -> ISA, gathers, narrowest load, narrowest store
PIECES = {
    "NEON": ("aarch64", 1, 32, 128, "ldr s4, [x1]\n ld1 { v4.s }[1], [x2]\n ld1 { v4.s }[2], [x3]\n ld1 { v4.s }[3], [x4]\n fadd v3.4s, v4.4s, v4.4s\n str q3, [x12]"),
    "NEON, two vectors": ("aarch64", 2, 64, 128, "ldr d4, [x1]\n ldr d5, [x3]\n ld1 { v4.d }[1], [x2]\n ld1 { v5.d }[1], [x4]\n fadd v3.2d, v4.2d, v5.2d\n str q3, [x12]"),
    "NEON, by way of other registers": ("aarch64", 1, 32, 128, "ldr w1, [x1]\n ldr s2, [x2]\n fmov s4, w1\n mov v4.s[1], v2.s[0]\n fadd v3.4s, v4.4s, v4.4s\n str q3, [x12]"),
    "NEON, after the loop's round": ("aarch64", 1, 32, 128, "fadd v3.4s, v4.4s, v4.4s\n str q3, [x12]\n ldr s4, [x1]\n ld1 { v4.s }[1], [x2]\n ld1 { v4.s }[2], [x3]"),
    "NEON, scattered": ("aarch64", 1, 128, 32, "ldr q3, [x12]\n fadd v4.4s, v3.4s, v3.4s\n str s4, [x1]\n st1 { v4.s }[1], [x2]\n st1 { v4.s }[2], [x3]\n st1 { v4.s }[3], [x4]"),
    "SSE2": ("x86-64", 1, 32, 128, "movss (%r8), %xmm0\n movss (%r9), %xmm1\n unpcklps %xmm1, %xmm0\n addps %xmm0, %xmm0\n movups %xmm0, (%rdx)"),
    "SSE2, doubles": ("x86-64", 1, 64, 128, "movsd (%r8), %xmm0\n movhpd (%r9), %xmm0\n addpd %xmm0, %xmm0\n movupd %xmm0, (%rdx)"),
    "SSE4": ("x86-64", 1, 32, 128, "movss (%r8), %xmm0\n insertps $16, (%r9), %xmm0\n insertps $32, (%r10), %xmm0\n addps %xmm0, %xmm0\n movups %xmm0, (%rdx)"),
    "AVX2": ("x86-64", 1, 32, 256, "vmovd (%r8), %xmm0\n vpinsrd $1, (%r9), %xmm0, %xmm0\n vmovd (%r10), %xmm1\n vpinsrd $1, (%r11), %xmm1, %xmm2\n vinserti128 $1, %xmm0, %ymm2, %ymm3\n"
                               " vpaddd %ymm3, %ymm3, %ymm3\n vmovdqu %ymm3, (%rdx)"),
    "SSE4, scattered": ("x86-64", 1, 128, 32, "movups (%rdx), %xmm0\n addps %xmm0, %xmm0\n movss %xmm0, (%r8)\n extractps $1, %xmm0, (%r9)\n extractps $2, %xmm0, (%r10)"),
    "much else in the loop": ("x86-64", 1, 32, 128, "movss (%r8), %xmm0\n insertps $16, (%r9), %xmm0\n insertps $32, (%r10), %xmm0\n" + LONG + " movups %xmm0, (%rdx)"),
    "RVV by slides": ("riscv64", 1, 32, 128, "flw fa0, 0(a0)\n flw fa1, 0(a1)\n vfmv.s.f v8, fa0\n vfslide1up.vf v9, v8, fa1\n vfadd.vv v9, v9, v9\n vse32.v v9, (a6)"),
    "halves side by side": ("x86-64", 0, 64, 128, "movsd (%r8), %xmm0\n movhpd 8(%r8), %xmm0\n addpd %xmm0, %xmm0\n movupd %xmm0, (%rdx)"),
    "rows of two": ("x86-64", 0, 64, 128, "movsd (%r8), %xmm0\n movhps (%r9), %xmm0\n addps %xmm0, %xmm0\n movups %xmm0, (%rdx)"),
    "three floats side by side": ("aarch64", 0, 128, 128, "ldr q4, [x1]\n ld1 { v4.s }[2], [x2]\n fadd v3.4s, v4.4s, v4.4s\n str q3, [x12]"),
    "an element for all lanes": ("aarch64", 0, 128, 128, "ldr s4, [x1]\n ldr q5, [x2]\n fmul v3.4s, v5.4s, v4.s[0]\n str q3, [x12]"),
    "spilled": ("aarch64", 0, 128, 128, "ldr q5, [x2]\n ldr s4, [sp, #8]\n ldr s6, [sp, #16]\n mov v4.s[1], v6.s[0]\n fmul v3.4s, v5.4s, v4.4s\n str q3, [x12]"),
    "one of two": ("x86-64", 0, 128, 128, "movl (%r8), %eax\n movl (%r9), %ebx\n cmovl %eax, %ebx\n movd %ebx, %xmm2\n pshufd $0, %xmm2, %xmm2\n movups (%r10), %xmm0\n paddd %xmm2, %xmm0\n movups %xmm0, (%rdx)"),
}


@pytest.mark.parametrize("what", PIECES)
def test_single_elements(what):
    name, gathers, loads, stores, body = PIECES[what]
    start = "vsetivli zero, 4, e32, m1, ta, ma\n" if name == "riscv64" else ""
    r = report.of(code.Code("k", name, name, f"\t.globl k\n\t.type k,@function\nk:\n {start}.L0:\n {body}\n {ENDS[name]}\n", vlen=128))
    (hot,) = r.hot
    assert (hot.figures["gathers"], hot.figures["load_bits"], hot.figures["store_bits"]) == (gathers, loads, stores)
    causes = [c.name for c in verdict.causes(hot, False)]
    assert ("stride not one" in causes) == bool(gathers) and not (gathers and "not unrolled" in causes)
    assert bool(r.failures(verdict.requirements("gathers=0"))) == bool(gathers)


@pytest.mark.parametrize("target", ["aarch64", "x86-64-v2", "x86-64-v3"])
def test_a_kernel_that_gathers(capfd, tmp_path, target):
    (tmp_path / "gathers.py").write_text(KERNEL)
    args = [f"--arg={x}" for x in ("x_ptr=fp32[16]", "i_ptr=i32[16]", "y_ptr=fp32[16]", "n=i32")]
    result = command.main(["asm", f"{tmp_path}/gathers.py:gather_kernel", "--target", target, *args, "--const", "BLOCK=256", "--require", "load_bits>=128, gathers=0"])
    out = capfd.readouterr().out
    assert result == 1 and "load_bits is 32" in out and "gathers is 1" in out and "single elements" in out and "gathers.py:9" in out
