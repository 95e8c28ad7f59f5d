"""Blocks, dominators and loops of functions."""

import random

import pytest
from triport.tools.inspector import code, flow, isa, record, report, verdict
from triport.tools.inspector.schema import Block

LINES = {"x86-64": ("call {}", "jmp .L1", "ret", "vmovups (%rdi), %ymm0\n vaddps %ymm0, %ymm1, %ymm1\n addq $32, %rdi\n cmpq %rsi, %rdi\n jne .L0"),
         "aarch64": ("bl {}", "b .L1", "ret", "ldr q0, [x0], #16\n fadd v1.4s, v1.4s, v0.4s\n cmp x0, x1\n b.ne .L0"),
         "riscv64": ("call {}", "j .L1", "ret", "vle32.v v8, (a0)\n vfadd.vv v9, v9, v8\n addi a0, a0, 16\n bne a0, a1, .L0")}
#: a vector loop, which goes on to a failure where a flag is set; then what cleans up, in which a block jumps back over a call that never returns
PADS = """{loop}
 {test}
 {ret}
.L1:
 {free}
 {end}
 {back}
"""
TEST = {"x86-64": "testl %edx, %edx\n jne .L1", "aarch64": "cbnz w2, .L1", "riscv64": "bnez a2, .L1"}
NEVER = ("_Unwind_Resume", "_Unwind_Resume@PLT", "__cxa_throw", "__cxa_rethrow", "__cxa_throw_bad_array_new_length", "abort", "__assert_fail", "__stack_chk_fail", "_ZSt9terminatev",
         "_ZSt20__throw_length_errorPKc", "_ZSt24__throw_out_of_range_fmtPKcz", "_ZNSt3__120__throw_length_errorB8ne180100EPKc", "std::__throw_bad_alloc()@plt",
         "_ZN3c106detail14torchCheckFailEPKcS2_jS2_", "_gfortran_runtime_error_at", "_ZN4core9panicking18panic_bounds_check17h0123456789abcdefE")


def judged(name: str, body: str, function: str = "k"):
    head = f"\t.text\n\t.globl {function}\n\t.type {function},@function\n{function}:\n"
    return report.of(code.Code(function, name, name, head + body, vlen=128))


def pads(name: str, callee: str, before: str = "") -> str:
    call, back, ret, body = LINES[name]
    return PADS.format(loop=f"{before}\n.L0:\n {body}", test=TEST[name], ret=ret, free=call.format("__cxa_free_exception"), end=call.format(callee), back=back)


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("callee", NEVER)
def test_a_call_that_never_returns_ends_its_block(name, callee):
    r = judged(name, pads(name, callee, "vsetivli zero, 4, e32, m1, ta, ma" if name == "riscv64" else ""))
    assert [x.label for x in r.regions if x.loop] == [".L0"] and r.verdict == verdict.VECTOR
    assert not r.failures(verdict.requirements("vector>=0.95, calls=0"))


@pytest.mark.parametrize("callee", ["exit", "_exit", "longjmp", "pthread_exit"])
def test_work_before_an_exit_is_work(callee):
    call, _, _, body = LINES["x86-64"]
    r = judged("x86-64", f".L1:\n call expf\n vmovss %xmm0, (%rdi)\n {call.format(callee)}\n jmp .L1")
    assert not any(x.loop for x in r.regions) and r.verdict == verdict.SCALAR and r.hot[0].scalar_calls == 2


@pytest.mark.parametrize("callee", ["free", "err", "exits", "abortive", "my_exit", "_ZN2my8abort_ifEv", "__cxa_free_exception", "_ZSt18rethrow_if_nested", "longjmp_count"])
def test_other_calls_return(callee):
    r = judged("x86-64", pads("x86-64", callee))
    assert [x.label for x in r.regions if x.loop] == [".L0", ".L1"]


def test_what_only_fails_is_no_work():
    """A function of straight vector code that throws, its part that was moved away, with a loop that destroys elements, and one that only says what is wrong."""
    straight = " vmovups (%rsi), %ymm0\n vaddps %ymm0, %ymm1, %ymm1\n vmovups %ymm1, (%rdi)\n testl %edx, %edx\n jne .L1\n ret\n.L1:\n vmovss (%rsi), %xmm0\n call log_value\n ud2\n"
    r = judged("x86-64", straight)
    assert r.verdict == verdict.VECTOR and not r.failures(verdict.requirements("vector>=0.95, calls=0"))
    owners = [i["loop"] for i in record.of(r)["instructions"]]
    assert owners == ["B0"] * 6 + [""] * 3
    cold = ".L2:\n call destroy\n addq $8, %rbx\n cmpq %rbx, %rbp\n jne .L2\n call _Unwind_Resume@PLT\n"
    assert judged("x86-64", cold, "k.cold").verdict is None and judged("x86-64", cold).verdict == verdict.SCALAR
    assert judged("x86-64", " movq %rdi, (%rsi)\n jmp abort\n").verdict is None
    assert judged("riscv64", " sd a0, (a1)\n tail __cxa_throw\n").verdict is None


def test_a_main_loop_that_ends_by_an_abort_is_work():
    r = judged("x86-64", ".L0:\n vmovss (%rdi), %xmm0\n vaddss %xmm0, %xmm1, %xmm1\n addq $4, %rdi\n cmpq %rsi, %rdi\n jne .L0\n call abort\n")
    assert r.verdict == verdict.SCALAR and [x.label for x in r.hot] == [".L0"]


def test_code_behind_a_loop_is_no_remainder_because_a_throw_passes_it_by():
    """Of what follows the loop nothing is left out: all that returns goes through it."""
    loop = ".L0:\n vmovups (%rdi,%rax,4), %ymm0\n vaddps %ymm0, %ymm1, %ymm1\n vmovups %ymm1, (%rdi,%rax,4)\n addq $8, %rax\n cmpq %rsi, %rax\n jb .L0\n"
    r = judged("x86-64", loop + " testl %edx, %edx\n jne .L1\n" + " vmovss (%rcx), %xmm2\n vaddss %xmm2, %xmm3, %xmm3\n vmovss %xmm3, (%rcx)\n ret\n.L1:\n call abort\n")
    assert not next(x for x in r.regions if x.loop is None).left


def test_calls_in_disassembly():
    """By relocations, by linked names, and by readable ones."""
    rows = {"callee": ("x86-64", "   0:\tcall 5 <f+0x5>\n\t\t\t1: R_X86_64_PLT32\t_Unwind_Resume-0x4\n"), "plt": ("x86-64", "   0:\tcall   1030 <_Unwind_Resume@plt>\n"),
            "readable": ("x86-64", "   0:\tcall   1030 <std::__throw_out_of_range_fmt(char const*, ...)@plt>\n"),
            "arm": ("aarch64", "   0:\tbl 0 <f>\n\t\t\t0: R_AARCH64_CALL26\t_Unwind_Resume\n"),
            "riscv": ("riscv64", "   0:\tauipc ra, 0x0\n\t\t\t0: R_RISCV_CALL_PLT\tabort\n   4:\tjalr ra <f>\n"), "linked": ("riscv64", "   0:\tjal ra, 0x1030 <abort@plt>\n")}
    ret = {"x86-64": "ret", "aarch64": "ret", "riscv64": "ret"}
    for what, (name, line) in rows.items():
        r = report.of(code.Code("f", name, name, f"f.o:     file format elf64-{name}\n\n0000000000000000 <f>:\n{line}   8:\t{ret[name]}\n"))
        assert isa.never_returns(next(i for i in r.functions[0].instructions if i.what.kind == "call").what.target), what
        assert r.functions[0].blocks[0].successors == [] and r.functions[0].blocks[0].fails, what


def test_dominators_are_a_graph_librarys(seed):
    """On random graphs, with blocks that nothing reaches and loops of one block."""
    nx = pytest.importorskip("networkx", reason="networkx is not installed")
    for n in range(300):
        r = random.Random(seed + n)
        size = r.randint(1, 14)
        found = [Block(k, k + 1, "", sorted({r.randrange(size) for _ in range(r.randint(0, 3))})) for k in range(size)]
        edges = [(k, s) for k, b in enumerate(found) for s in b.successors]
        before = [[k for k, s in edges if s == node] for node in range(size)]
        graph = nx.DiGraph(edges)
        graph.add_nodes_from(range(size))
        assert flow._dominators(found, before) == {**nx.immediate_dominators(graph, 0), 0: 0}, (seed, n)
