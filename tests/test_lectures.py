"""docs/lectures.md: 26 rows, and every command in them runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import HANGS, ROOT

ROWS = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in (ROOT / "docs/lectures.md").read_text().splitlines()
        if re.match(r"\| \d+ \|", line)]


def commands(cell: str) -> list[str]:
    return [c.replace(r"\|", "|") for c in re.findall(r"`((?:triport|python|printf|proton) [^`]*)`", cell)]


def gpu() -> bool:
    import torch
    return torch.cuda.is_available()


def run(command: str, cwd: Path) -> subprocess.CompletedProcess:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(["bash", "-eo", "pipefail", "-c", command], cwd=cwd, capture_output=True, text=True, timeout=HANGS, env={**os.environ, "PATH": path})


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    (tmp_path / "out").mkdir()
    return tmp_path


def test_there_are_26_rows():
    assert [int(row[0]) for row in ROWS] == list(range(1, 27)) and all(commands(row[2]) for row in ROWS)


@pytest.mark.first(2)
@pytest.mark.parametrize("row", ROWS, ids=[f"row{row[0]}" for row in ROWS])
def test_a_row(row, folder):
    if row[2].startswith("GPU") and not gpu():
        pytest.skip("this row is of a GPU")
    for command in commands(row[2]):
        done = run(command, folder)
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
        for made in re.findall(r"out/[\w.]+", command):
            assert (folder / made).exists() or list((folder / "out").glob(f"{made[4:]}.*")), (command, made)


def test_the_debugger_prints_what_the_kernel_has(folder):
    done = run(commands(ROWS[6][2])[0], folder)
    assert "array([0., 1., 2., 3., 4., 0., 0., 0.]" in done.stdout and "[ 0.,  1.,  4.,  9., 16.]" in done.stdout


@pytest.mark.first(0)
def test_what_the_demo_runs(tmp_path):
    """`make demo` with this interpreter's commands."""
    recipe = re.search(r"^demo:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)[1]
    script = recipe.replace("\t", "").replace("@", "").replace("$(BIN)", str(Path(sys.executable).parent))
    script = script.replace("--reps 5", "--reps 1 --no-cold --backend torch --backend triton-cpu").replace("-o demo/profile", "--no-counters --no-roof -o demo/profile")
    done = run(script, tmp_path)
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-3000:])
    for path in ("report.html", "results.json", "profile/index.html", "profile/trace.json", "code/asm-softmax-fp32.html", "code/profile-gelu-fp32/index.html"):
        assert (tmp_path / "demo" / path).stat().st_size, path
    assert "look at demo/report.html" in done.stdout and "as required, VECTOR" in done.stderr
