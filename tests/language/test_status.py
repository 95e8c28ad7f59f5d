"""The status page: made by a command from the rule tables, complete, and the one that is committed."""

from pathlib import Path

import pytest
from triport.backends.cpu.emit import rules
from triport.tools import probes
from triport.backends.cpu.llvm import targets
from triport.tools.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
TABLES = {*rules.ELEMENTWISE, *rules.DIMS, *rules.LANES, *rules.CARRIED_OUT}


def test_every_rule_has_a_probe():
    """But for operations of our own, which no kernel has: a pass makes them."""
    assert set(probes.probes()) == {name for name in TABLES if not name.startswith("triport.")}


def test_the_page_is_up_to_date(tmp_path):
    out = tmp_path / "language.md"
    assert main(["language", "-o", str(out)]) == 0
    assert out.read_text() == (ROOT / "docs" / "language.md").read_text(), "run `triport language -o docs/language.md`"


@pytest.mark.first(2)
@pytest.mark.parametrize("target", targets.TARGETS)
def test_every_target_takes_the_same_language(target):
    """What is refused is refused everywhere, and nothing makes IR that LLVM rejects."""
    refused = {(name, types): reason for name, _, no in probes.rows(target) for types, reason in no.items()}
    assert set(refused) == {("tt.elementwise_inline_asm", "shf.l.wrap.b32 $0, $1, $1, 7")}, refused


@pytest.mark.first(1)
@pytest.mark.parametrize("target", ["x86-64-v3", "aarch64", "spacemit-x60", "rv64gc"])
def test_every_rule_has_machine_code(target):
    """One kernel per rule down to assembly: LLVM's code generators abort the process on what they cannot select."""
    from triport.backends.cpu.emit.module import lower_module
    from triport.backends.cpu.llvm import compile as llvm
    from triport.backends.cpu.ttir import reader
    row = targets.get(target)
    for name, kernels in probes.probes().items():
        for types, text in kernels.items():
            if name != "tt.elementwise_inline_asm" and (len(kernels) < 8 or types in ("f32", "bf16", "f16", "i64", "i1", "f8E5M2")):
                llir = llvm.optimise(lower_module(reader.parse(text), row).text, row)
                assert llvm.emit_assembly(llir, row), (name, types)


def test_unknown_target_is_exit_2(capsys):
    assert main(["language", "--target", "x86-64-v9"]) == 2
    assert "x86-64-v9" in capsys.readouterr().err
