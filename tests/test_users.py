"""docs/users: every script there is right in every way that it shows; where a library is not installed its ways are skipped."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT

FOLDER = ROOT / "docs" / "users"


def loaded(name: str):
    """A script of the folder as a module."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


checked = loaded("checked")


@pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:.isinstance.treespec")
@pytest.mark.parametrize("name", loaded("torch_ways").WAYS)
def test_a_way_of_torch(name):
    right, e = checked.run(name, loaded("torch_ways").WAYS[name])
    assert right, e


@pytest.mark.parametrize("way", [list, lambda: [(torch.zeros(3), torch.ones(3))], lambda: [(torch.ones(3), torch.ones(3).double() * (1 + 1e-4))],
                                 lambda: [(torch.ones(3), torch.ones(3)), (torch.full((3,), torch.nan), torch.ones(3))]])
def test_what_is_wrong_counts(way, capsys, monkeypatch):
    """Nothing, zeros, a small error, and NaN beside what is right."""
    assert not checked.run("a way", way)[0]
    monkeypatch.setattr(sys, "argv", ["script.py"])
    assert checked.main({"a way": way, "another": lambda: [(torch.ones(3), torch.ones(3))]}) == 1
    assert re.search(r"a way +WRONG.*\nanother +right, error 0", capsys.readouterr().out)


def test_a_way_that_fails_is_said(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["script.py"])

    def way():
        raise ValueError("no such thing\nmore")
    assert checked.main({"a way": way}) == 1
    assert capsys.readouterr().out.rstrip().endswith("FAILED: ValueError: no such thing")


def test_the_pages_and_the_scripts_belong_together():
    """Each script but what they share is in the table, each page and script of the table is there."""
    text = (FOLDER / "README.md").read_text()
    named = set(re.findall(r"\]\((\w+\.(?:py|md))\)", text))
    assert named == {p.name for p in FOLDER.iterdir() if p.suffix in (".py", ".md")} - {"README.md", "checked.py"}
    for script in (n for n in named if n.endswith(".py")):
        assert any(f"python docs/users/{script}" in p.read_text() for p in Path(FOLDER).glob("*.md")), script
