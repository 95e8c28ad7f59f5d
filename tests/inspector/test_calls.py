"""What calls weigh: of unknown functions in loops and outside of them, of functions of the same file, of profilers' hooks."""

import pytest
from triport.tools.inspector import code, report, verdict

HEAD = "\t.text\n\t.globl\t{0}\n\t.type\t{0},@function\n{0}:\n"
VECTOR = ".L{0}:\n\tvmovups (%rdi,%rax,4), %ymm0\n\tvaddps %ymm0, %ymm0, %ymm0\n\tvmovups %ymm0, (%rdi,%rax,4)\n\taddq $8, %rax\n\tcmpq %rdx, %rax\n\tjne .L{0}\n"
SCALAR = ".L{0}:\n\tvmovss (%rdi,%rax,4), %xmm0\n\tvaddss %xmm0, %xmm0, %xmm0\n\tvmovss %xmm0, (%rdi,%rax,4)\n\taddq $1, %rax\n\tcmpq %rdx, %rax\n\tjne .L{0}\n"
LOOP = "\txorl %ebx, %ebx\n.L{0}:\n\tcall {1}\n\taddq %r9, %rdi\n\tincq %rbx\n\tcmpq %rbx, %rbp\n\tjne .L{0}\n"
GATE = verdict.requirements("vector>=0.95")


def judged(*functions):
    return report.of(code.Code("f", "x86-64-v3", "x86-64", "".join(HEAD.format(name) + body + "\tret\n" for name, body in functions), vector_bits=256))


def test_calls_beside_loops_are_no_work():
    """malloc before a vector loop and free behind it; the count of calls stays."""
    r = judged(("f", "\tcall malloc@PLT\n\tcall start@PLT\n" + VECTOR.format(1) + "\tcall use@PLT\n\tcall free@PLT\n"))
    assert r.verdict == verdict.VECTOR and not r.failures(GATE) and [x.label for x in r.hot] == [".L1"]
    assert next(x for x in r.regions if x.loop is None).figures["calls"] == 4
    assert judged(("f", "\tcall malloc@PLT\n" + SCALAR.format(1))).verdict == verdict.SCALAR
    assert judged(("f", "\tcall expf@PLT\n\tvmovss %xmm0, (%rdi)\n")).verdict == verdict.SCALAR, "without loops the call is the work"


def test_calls_in_loops_are_work():
    """In a loop, and in the body of a function whose only loop does nothing."""
    inside = judged(("f", VECTOR.format(1).replace("\taddq", "\tcall expf@PLT\n\taddq")))
    assert inside.verdict == verdict.PARTLY and inside.failures(GATE)
    assert judged(("f", ".L1:\n\tpause\n\tjmp .L1\n\tcall expf@PLT\n")).verdict == verdict.SCALAR


@pytest.mark.parametrize("hook", ["1:\tcall *mcount@GOTPCREL(%rip)", "call __fentry__", "call mcount@PLT", "call __cyg_profile_func_enter@PLT"])
def test_profilers_hooks_are_no_calls(hook):
    straight = "\tvmovups (%rsi), %ymm0\n\tvaddps %ymm0, %ymm1, %ymm1\n\tvmovups %ymm1, (%rdi)\n"
    r = judged(("f", f"\t{hook}\n{straight}"))
    assert r.verdict == verdict.VECTOR and not r.failures([*GATE, *verdict.requirements("calls=0")])


@pytest.mark.parametrize("call", ["call row", "call row@PLT"])
def test_a_function_of_the_file_weighs_as_its_calls_do(call):
    """A loop over rows that calls the vector loop, and one that calls a scalar loop beside a vector loop of its own."""
    r = judged(("row", VECTOR.format(1)), ("f", LOOP.format(2, call.partition(" ")[2])))
    assert r.verdict == verdict.VECTOR and not r.failures(GATE) and [x.label for x in r.hot] == [".L1"]
    mixed = judged(("row", SCALAR.format(1)), ("f", VECTOR.format(3) + LOOP.format(2, call.partition(" ")[2])))
    assert mixed.verdict == verdict.SCALAR and mixed.share < 0.05
    assert judged(("row", SCALAR.format(1)), ("f", VECTOR.format(3))).share == pytest.approx(0.5)


def test_an_element_function_of_the_file():
    """It has no loop: its body runs in the caller's."""
    assert judged(("one", "\tvmulss %xmm0, %xmm0, %xmm0\n\tvaddss %xmm1, %xmm0, %xmm0\n"), ("f", VECTOR.format(3) + LOOP.format(2, "one"))).verdict == verdict.PARTLY
    jumped = judged(("row", SCALAR.format(1)), ("mid", "\tjmp row\n"), ("f", VECTOR.format(3) + LOOP.format(2, "mid")))
    assert jumped.verdict == verdict.SCALAR


def test_functions_that_call_each_other():
    r = judged(("a", SCALAR.format(1) + LOOP.format(2, "b")), ("b", VECTOR.format(3) + LOOP.format(4, "a")), ("c", LOOP.format(5, "c")))
    assert r.verdict == verdict.PARTLY and r.share == pytest.approx(0.5)
