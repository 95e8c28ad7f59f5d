"""docs/users: every script there is right in every way that it shows; where a library is not installed its ways are skipped."""

import importlib.util
import json
import os
import platform
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


@pytest.mark.filterwarnings("error:There is a performance drop", "ignore:.isinstance.treespec")
@pytest.mark.parametrize("script, name", [(s, name) for s in ("torch_ways", "quantised") for name in loaded(s).WAYS])
def test_a_way(script, name):
    right, e, kernels = checked.run(name, loaded(script).WAYS[name])
    assert right, (e, kernels)


#: script -> the packages that it imports, with a folder that they need to have
LIBRARIES = {"liger": ("liger_kernel", "transformers"), "flash_linear_attention": ("fla",), "transformer": ("transformers",),
             "helion_kernels": ("helion",), "flaggems": ("flag_gems/runtime/backend/_spacemit",), "flaggems_board": ("flag_gems/runtime/backend/_spacemit",)}


def needed(script):
    """Skips the test where a package is not there."""
    for package in LIBRARIES[script]:
        name, _, folder = package.partition("/")  # found without an import: FlagGems raises in its own where it has no vendor
        spec = importlib.util.find_spec(name)
        if spec is None or not (Path(spec.origin).parent / folder).exists():
            pytest.skip(f"{package} is not installed, which docs/users/{script}.py is about")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("script", [s for s in LIBRARIES if s != "flaggems_board"])  # which has no ways: below
def test_a_library(script):
    needed(script)
    ways = loaded(script).WAYS
    assert ways
    for name, way in ways.items():
        right, e, kernels = checked.run(name, way)
        assert right, (name, e, kernels)


@pytest.mark.filterwarnings("ignore")
def test_functions_for_a_board(capsys):
    """Some of FlagGems' as C functions: a softmax of several classes of sizes, a pointwise function of generated code, a product."""
    needed("flaggems_board")
    assert loaded("flaggems_board").main(["softmax", "gelu", "mm", "--target", {"x86_64": "x86-64-v2", "aarch64": "aarch64"}[platform.machine()], "--on", "local"]) == 0
    assert "3 of 3 right" in capsys.readouterr().out


#: a file in the shape of Triton's tutorials, with all around its kernel that must not be run
STAND_IN = """
import torch

import triton
import triton.language as tl
import no_such_package_that_only_the_benchmark_needs

DEVICE = triton.runtime.driver.active.get_active_torch_device()


def is_gpu():
    return triton.runtime.driver.active.get_current_target().backend == "cuda"


if is_gpu():
    BLOCKS = []
else:
    BLOCKS = [64, 128, 256, 512]

MORE = 1.0 if is_gpu() else 0.0


@triton.autotune([triton.Config({"BLOCK_SIZE": b}) for b in BLOCKS], key=["n_elements"])
@triton.jit
def add_kernel(x_ptr, y_ptr, output_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    tl.store(output_ptr + offsets, total(tl.load(x_ptr + offsets, mask=mask), tl.load(y_ptr + offsets, mask=mask)), mask=mask)


@triton.jit
def total(x, y):
    return x + y


def add(x, y):
    output = torch.empty_like(x)
    assert x.device == DEVICE
    add_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK_SIZE"]), )](x, y, output, x.numel())
    return output + MORE


x = torch.rand(2**60)
output = add(x, x)
no_such_package_that_only_the_benchmark_needs.run()
"""


@pytest.fixture
def stand_in(tmp_path):
    path = tmp_path / "01-vector-add.py"
    path.write_text(STAND_IN)
    yield path
    sys.modules.pop(path.stem, None)


def test_a_tutorial_is_taken_as_it_stands(stand_in):
    module = loaded("tutorials").taken(stand_in, "add")
    x, y = torch.randn(1000), torch.randn(1000)
    assert torch.equal(module.add(x, y), x + y)
    assert [config.kwargs["BLOCK_SIZE"] for config in module.add_kernel.configs] == [64, 128]  # the first CONFIGS
    assert {"is_gpu", "total", "DEVICE", "BLOCKS"} <= vars(module).keys() and not {"x", "output"} & vars(module).keys()


def test_what_a_tutorial_asks_of_the_host_is_given(stand_in):
    """Functions that are given replace the file's own, and what is made of them follows."""
    assert loaded("tutorials").taken(stand_in, "MORE", is_gpu=lambda: True).MORE == 1
    with pytest.raises(LookupError, match=r"01-vector-add\.py has no multiply: another version of Triton's tutorials"):
        loaded("tutorials").taken(stand_in, "add", "multiply")


def test_the_tutorials_of_a_folder(stand_in, capsys, monkeypatch):
    """The command: a tutorial that is right, one that is wrong, one that is not there; without a folder its usage."""
    stand_in.with_name("02-fused-softmax.py").write_text("import torch\n\ndef softmax(x):\n    return x\n")
    monkeypatch.setattr(sys, "argv", ["tutorials.py", str(stand_in.parent), "01", "02", "03"])
    assert loaded("tutorials").main() == 1
    out = capsys.readouterr().out
    assert re.fullmatch(r"01 vector addition +right, error \S+, 1 kernel\n02 fused softmax +WRONG, error \S+, 0 kernels\n"
                        r"03 matrix multiplication +FAILED: FileNotFoundError: .*\n", out), out
    monkeypatch.setattr(sys, "argv", ["tutorials.py", str(stand_in)])
    with pytest.raises(SystemExit, match="usage: tutorials.py FOLDER"):
        loaded("tutorials").main()


@pytest.mark.filterwarnings("ignore:tl.where with a non-boolean")
@pytest.mark.parametrize("name", loaded("tutorials").TUTORIALS)
def test_a_tutorial(name):
    folder = os.environ.get("TRIPORT_TUTORIALS")
    if not folder:
        pytest.skip("Triton's tutorials are in no package: TRIPORT_TUTORIALS=FOLDER, python/tutorials of a checkout of Triton, runs them")
    right, e, kernels = checked.run(name, lambda: loaded("tutorials").TUTORIALS[name](Path(folder)))
    assert right, (e, kernels)


@pytest.mark.parametrize("name", loaded("puzzles").PUZZLES)
def test_a_puzzle(name):
    puzzles = loaded("puzzles")
    kernel, *rest = puzzles.PUZZLES[name]
    right, e, kernels = checked.run(name, lambda: puzzles.way(getattr(puzzles, kernel), *rest))
    assert right, (e, kernels)


#: kernels for puzzles: one that is right where a notebook's constant is, one that reads beyond a row of a tensor's last, one that does nothing
OTHERS = """
@triton.jit
def add_mask2_kernel(x_ptr, z_ptr, N0, B0: tl.constexpr):
    i = tl.program_id(0) * B0 + tl.arange(0, B0)
    tl.store(z_ptr + i, tl.load(x_ptr + i, i < N0) + TEN, i < N0)

@triton.jit
def sum_kernel(x_ptr, z_ptr, N0, N1, T, B0: tl.constexpr, B1: tl.constexpr):
    i = tl.program_id(0) * B0 + tl.arange(0, B0)
    total = tl.zeros((B0,), tl.float32)
    for begin in range(0, T, B1):
        t = begin + tl.arange(0, B1)
        total += tl.sum(tl.load(x_ptr + i[:, None] * T + t), 1)
    tl.store(z_ptr + i, total)

@triton.jit
def softmax_kernel(x_ptr, z_ptr, N0, N1, T, B0: tl.constexpr, B1: tl.constexpr):
    pass
"""


@pytest.mark.parametrize("notebook", [False, True])
def test_puzzles_by_other_kernels(notebook, tmp_path, tmp_cache, monkeypatch, capsys):
    """Yours, in a file or in the notebook, of which only the kernels and constants are taken: right, out of bounds with the access named, nothing stored.
    A cache that outlives the folder would name a line of a file that is gone."""
    path = tmp_path / ("my-kernels.ipynb" if notebook else "mine.py")
    if notebook:
        cells = ["%%capture\n!pip install nothing", "TEN = 5 + 5\nraise SystemExit\n" + OTHERS, "test(add_mask2_kernel, nelem={})"]
        path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": c.splitlines(keepends=True)} for c in cells] + [{"cell_type": "markdown", "source": ["def x("]}]}))
    else:
        path.write_text("import triton, triton.language as tl\nTEN = tl.constexpr(10)\n" + OTHERS)
    monkeypatch.setattr(sys, "argv", ["puzzles.py", "--kernels", str(path)])
    assert loaded("puzzles").main() == 1
    out = capsys.readouterr().out
    assert re.fullmatch(r"2 constant add, block +right, error .*, 1 kernel\n7 long sum +FAILED: CheckError: .*: bounds, \d+ times in all\n"
                        r"  bounds: tl.load at .*\n +total \+= .*\n +program .*: reads element \d+ of argument 'x_ptr' .*\n.*\n"
                        r"8 long softmax +WRONG, error inf, 1 kernel\n", out), out


def test_puzzles_that_are_not_there(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("x = 1\n")
    for args, said in (["--kernels"], "usage: puzzles.py"), (["--kernels", str(tmp_path / "no")], "usage"), (["--kernels", str(tmp_path / "mine.py")], "no kernel of a puzzle"):
        monkeypatch.setattr(sys, "argv", ["puzzles.py", *args])
        with pytest.raises(SystemExit, match=said):
            loaded("puzzles").main()


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
