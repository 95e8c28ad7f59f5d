"""Plans, as texts: what the compiler decides about the ops' kernels and about small kernels of one idea each (`plan_kernels.py`), for four targets.

`tests/plans` holds each kernel's TTIR, as Triton 3.9 has it, and its plans. `python tests/test_plans.py` writes the plans anew: read the difference before
it is committed. `python tests/test_plans.py --ttir` writes the small kernels' TTIR, too. A decision that is switched off changes a plan, where the tests of
results see nothing.
"""

import sys
from pathlib import Path

import pytest
from triport.backends.cpu.emit.module import lower_module
from triport.backends.cpu.llvm import targets
from triport.backends.cpu.plan import keeping, memory_order, order, rows, sequence
from triport.backends.cpu.ttir import reader

FOLDER = Path(__file__).parent / "plans"
TARGETS = ("x86-64-v4", "neoverse-v2", "rv64gcv", "spacemit-x60")
KERNELS = sorted(path.stem for path in FOLDER.glob("*.ttir"))


def plan(name: str, target: str) -> str:
    return lower_module(reader.parse((FOLDER / f"{name}.ttir").read_text()), targets.get(target)).described


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_plan(name, target):
    assert plan(name, target) == (FOLDER / f"{name}.{target}.txt").read_text()


def test_the_small_kernels_are_all_there():
    import plan_kernels
    assert plan_kernels.KERNELS.keys() <= set(KERNELS)


@pytest.mark.parametrize("name", ["softmax_rows", "matmul", "carried"])
def test_a_plan_is_a_function_of_the_kernel(name):
    """Planned twice, the second time from what the first left: nothing was changed."""
    module = reader.parse((FOLDER / f"{name}.ttir").read_text())
    first = lower_module(module, targets.get("x86-64-v4"))
    again = lower_module(module, targets.get("x86-64-v4"))
    assert first.described == again.described and first.plan == again.plan and first.text == again.text


#: a decision is switched off where it is made, so what a module has for itself (`_next`) is named here on purpose
MUTANTS = {
    "rows are not fused": (rows, "find", lambda s, first: None, "softmax_tile"),
    "nothing is kept": (keeping, "worth_keeping", lambda s, v, op: False, "softmax_rows"),
    "products are not joined": (sequence, "following_product", lambda op: None, "matmul_pieces"),
    "arguments never meet": (memory_order, "meets", lambda s, load, target, fine=False: memory_order.Answer(memory_order.Meets.NEVER), "in_place_shifted"),
}


@pytest.mark.parametrize("what", MUTANTS)
def test_a_decision_that_is_switched_off_is_seen(what, monkeypatch):
    module, name, mutant, kernel = MUTANTS[what]
    monkeypatch.setattr(module, name, mutant)
    with pytest.raises(AssertionError):
        test_plan(kernel, "x86-64-v4")


def test_loops_behind_much_are_not_unrolled(monkeypatch):
    assert "unrolled 4 times" in plan("softmax_rows", "x86-64-v4")
    monkeypatch.setattr(order, "MUCH", 8)
    assert "unrolled" not in plan("softmax_rows", "x86-64-v4") and "unrolled 4 times" in plan("copy", "x86-64-v4")


def test_the_plan_is_a_stage():
    """`kernel.asm["plan"]`, which `triport asm --stage plan` prints."""
    import plan_kernels
    kernel = plan_kernels.compiled("softmax_rows", "x86-64-v4")
    assert kernel.asm["plan"].startswith("plan of softmax_rows for x86-64-v4\n") and "keeps exp" in kernel.asm["plan"]


if __name__ == "__main__":
    if "--ttir" in sys.argv:
        import plan_kernels
        for name in plan_kernels.KERNELS:
            (FOLDER / f"{name}.ttir").write_text(plan_kernels.ttir(name))
    for path in FOLDER.glob("*.ttir"):
        for target in TARGETS:
            (FOLDER / f"{path.stem}.{target}.txt").write_text(plan(path.stem, target))
