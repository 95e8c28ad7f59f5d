"""docs/users: every script there is right in every way that it shows; where a library is not installed its ways are skipped."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
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
    right, e, kernels = checked.run(name, loaded("torch_ways").WAYS[name])
    assert right, (e, kernels)


#: script -> the packages that it imports
LIBRARIES = {"liger": ("liger_kernel", "transformers"), "flash_linear_attention": ("fla",)}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("script", LIBRARIES)
def test_a_library(script):
    for package in LIBRARIES[script]:
        pytest.importorskip(package, reason=f"{package} is not installed, which docs/users/{script}.py is about")
    ways = loaded(script).WAYS
    assert ways
    for name, way in ways.items():
        right, e, kernels = checked.run(name, way)
        assert right, (name, e, kernels)


@triton.jit
def ones_kernel(out_ptr, BLOCK: tl.constexpr):
    tl.store(out_ptr + tl.arange(0, BLOCK), 1.0)


def ones() -> torch.Tensor:
    out = torch.empty(4)
    ones_kernel[(1,)](out, BLOCK=4)
    return out


WRONG = {"nothing": lambda: [ones()][1:], "zeros": lambda: [(ones() * 0, torch.ones(4))],
         "a small error": lambda: [(ones(), torch.ones(4).double() * (1 + 1e-4))],
         "NaN beside what is right": lambda: [(ones(), torch.ones(4)), (ones() * torch.nan, torch.ones(4))],
         "no kernel": lambda: [(torch.ones(4), torch.ones(4))]}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_counts(what, capsys, monkeypatch):
    assert not checked.run(what, WRONG[what])[0]
    monkeypatch.setattr(sys, "argv", ["script.py"])
    assert checked.main({"a way": WRONG[what], "another": lambda: [(ones(), torch.ones(4))]}) == 1
    assert re.search(r"a way +WRONG.*\nanother +right, error 0.0e\+00, 1 kernel\n", capsys.readouterr().out)


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
