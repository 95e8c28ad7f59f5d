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


#: a vector loop, and a scalar one that is entered at its head and in its middle
ENTERED_TWICE = """{loop}
 {test}
.L1:
 {first}
.L2:
 {second}
 {back}
 {ret}
"""
SCALARS = {"x86-64": ("movss (%rsi), %xmm0\n mulss %xmm0, %xmm0\n movss %xmm0, (%rsi)", "addq $4, %rsi\n cmpq %rcx, %rsi", "jne .L1", "testl %edx, %edx\n jne .L2"),
           "aarch64": ("ldr s0, [x4]\n fmul s0, s0, s0\n str s0, [x4]", "add x4, x4, #4\n cmp x4, x5", "b.ne .L1", "cbnz w2, .L2"),
           "riscv64": ("flw fa0, 0(a4)\n fmul.s fa0, fa0, fa0\n fsw fa0, 0(a4)", "addi a4, a4, 4", "bne a4, a5, .L1", "bnez a2, .L2")}


@pytest.mark.parametrize("name", LINES)
def test_a_loop_that_is_entered_in_its_middle(name):
    first, second, back, test = SCALARS[name]
    body = LINES[name][3] if name != "riscv64" else "vsetivli zero, 4, e32, m1, ta, ma\n" + LINES[name][3]
    r = judged(name, ENTERED_TWICE.format(loop=f".L0:\n {body}", test=test, first=first, second=second, back=back, ret=LINES[name][2]))
    once, twice = [x.loop for x in r.regions if x.loop]
    assert (once.entries, twice.entries, len(twice.blocks), twice.depth, twice.inner) == (1, 2, 2, 1, True)
    assert r.verdict == verdict.PARTLY and r.failures(verdict.requirements("vector>=0.95"))


def test_loops_in_a_loop_that_is_entered_in_its_middle():
    """A natural loop inside keeps what it is, and so does one round it; a way round a part of it is a loop in it."""
    head, middle, rest = ".L1:\n movss (%rsi), %xmm0\n", ".L2:\n addss %xmm0, %xmm1\n", " cmpq %rcx, %rsi\n jne .L1\n"
    inner = ".L3:\n mulss (%rdi), %xmm1\n addq $4, %rdi\n cmpq %rdi, %r8\n jne .L3\n"
    natural = judged("x86-64", f".L0:\n testl %edx, %edx\n jne .L2\n{head}{middle}{inner}{rest} decl %r9d\n jne .L0\n ret\n")
    assert {x.label: (x.depth, x.loop.entries, x.loop.inner) for x in natural.regions if x.loop} == {".L0": (1, 1, False), ".L1": (2, 2, False), ".L3": (3, 1, True)}
    within = judged("x86-64", f" testl %edx, %edx\n jne .L2\n{head}{middle} testl %r9d, %r9d\n je .L5\n.L4:\n addss %xmm2, %xmm2\n.L5:\n decl %r8d\n jne .L4\n{rest} ret\n")
    assert [(x.label, x.depth, x.loop.entries) for x in within.regions if x.loop] == [(".L1", 1, 2), (".L4", 2, 2)]


def test_two_versions_in_a_loop_that_is_entered_at_either():
    """gcc moves the choice between a vector loop and its remainder's code to the end of the loop round both: to go round by the remainder alone is no loop of its own."""
    r = judged("x86-64", " cmpq $6, %rcx\n jbe .L2\n.L1:\n xorl %eax, %eax\n.L3:\n movups (%rdi,%rax), %xmm0\n addps %xmm1, %xmm0\n movups %xmm0, (%rdi,%rax)\n addq $16, %rax\n cmpq %rax, %rdx\n jne .L3\n"
               " cmpq %rax, %r8\n je .L5\n.L4:\n movss (%rdi,%rax), %xmm0\n addss %xmm1, %xmm0\n movss %xmm0, (%rdi,%rax)\n.L5:\n addq %r9, %rdi\n decq %rsi\n je .L6\n cmpq $6, %rcx\n ja .L1\n"
               ".L2:\n xorl %eax, %eax\n jmp .L4\n.L6:\n ret\n")
    assert [(x.label, x.depth, x.loop.entries, len(x.left)) for x in r.regions if x.loop] == [(".L1", 1, 2, 3), (".L3", 2, 1, 0)] and r.verdict == verdict.VECTOR


@pytest.mark.parametrize("seed", [5])
def test_every_block_that_leads_to_itself_is_in_a_loop(seed):
    """On random graphs; what is reducible has natural loops only."""
    nx = pytest.importorskip("networkx", reason="networkx is not installed")
    for n in range(300):
        r = random.Random(seed + n)
        size = r.randint(1, 14)
        body = "".join(f".B{k}:\n testl %eax, %eax\n" + "".join(f" jne .B{r.randrange(size)}\n" for _ in range(r.randint(0, 2))) for k in range(size)) + " ret\n"
        (f,) = judged("x86-64", body).functions
        graph = nx.DiGraph([(k, s) for k, b in enumerate(f.blocks) for s in b.successors])
        reached = {0, *nx.descendants(graph, 0)} if graph else set()
        cyclic = [c for c in nx.strongly_connected_components(graph.subgraph(reached)) if len(c) > 1 or graph.has_edge(*2 * list(c))]
        assert set().union(*cyclic) == set().union(*(loop.blocks for loop in f.loops)), (seed, n)
        assert {frozenset(c) for c in cyclic} == {loop.blocks for loop in f.loops if loop.depth == 1}, (seed, n)
        assert all(len({*loop.blocks}) == len(loop.blocks) and loop.header in loop.blocks for loop in f.loops)
