"""Every op on every CPU target: its fp32 cases compile to hot loops of vector code without spills, calls or fp64. The target need not be here."""

import pytest
from triport.backends.cpu.llvm.targets import TARGETS
from triport.ops import registry
from triport.tools.inspector import code, launches, report, targets, verdict

REQUIRED = "vector>=0.95, spills=0, calls=0, f64=0"
pytestmark = pytest.mark.usefixtures("own_tiles")


def reports(op, target):
    """One report for each different kernel of an op's cases."""
    goal, seen = targets.get(target), set()
    for case in op.cases_on("cpu"):
        for launch in launches.of_op(op, case, "fp32", "cpu", row=goal.row):
            key = (launch.name, *sorted(launch.kwargs.items()), *launch.unaligned())
            if key not in seen:
                seen.add(key)
                yield report.of(code.of_launch(launch, goal))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", registry.NAMES)
def test_hot_loops(name, target):
    required = verdict.requirements(REQUIRED)
    if target == "rv64gc":  # it has no vectors to use, and loops of matmul_softmax reload up to three constants
        required = [r if r[0] != "spills" else ("spills", "<=", 3) for r in required if r[0] != "vector"]
    if target == "spacemit-k3-a100" and name in ("lora_linear", "matmul_softmax"):  # rows shorter than its vectors reload one pointer each
        required = [r if r[0] != "spills" else ("spills", "<=", 1) for r in required]
    count = 0
    for r in reports(registry.get(name), target):
        assert not r.failures(required), "\n".join(r.failures(required))
        assert r.unknown == 0
        count += 1
    assert count


def test_no_code_for_fills_and_copies_is_left_to_a_library():
    r = next(reports(registry.get("matmul"), "spacemit-x60"))
    assert not any(i.what.kind == "call" for f in r.functions for i in f.instructions)
