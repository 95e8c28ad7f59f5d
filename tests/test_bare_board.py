"""Commands on a machine without llvmlite, as every riscv64 board, and without torch and triton: what works there, and what says that it does not."""

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT
from triport.backends.spine import bundle, runner
from triport.ops import Case, registry

RUN = """
import json, sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None
from triport.tools.__main__ import main
print(json.dumps([main(argv) for argv in json.loads(sys.argv[2])]))
"""


def codes(absent: str, *commands: list[str]) -> tuple[list[int], list[str], str]:
    """(exit codes, lines on stderr, stdout) of commands in one process without some packages."""
    p = subprocess.run([sys.executable, "-c", RUN, absent, json.dumps(commands)], capture_output=True, text=True, cwd=ROOT, env={**os.environ, "COLUMNS": "200"})
    return json.loads(p.stdout.splitlines()[-1]), p.stderr.splitlines(), p.stdout


@pytest.mark.first(0)
def test_without_llvmlite(tmp_path):
    made = bundle.make([(registry.get("square"), Case(((17, 23),)), "fp32")], runner.get("local").board.row(), repetitions=1)
    made.write(tmp_path / "b")
    done, err, out = codes("llvmlite", ["devices"], ["bench", "--op", "square", "--op", "matmul", "--backend", "torch", "--case", "8x8", "--reps", "1", "--no-cold"],
                           ["bench", "--on", "local", "--bundle", str(tmp_path / "b")])
    assert done == [0, 0, 0], err
    assert "triton-cpu: unavailable" in out and "llvmlite is not installed, with which kernels are compiled" in out and ": right, error" in out
    done, err, _ = codes("llvmlite", ["export", "square", "--target", "k1", "-o", str(tmp_path / "c")], ["asm", "softmax", "--target", "k1"], ["check", "square"],
                         ["tune", "--op", "square", "--dry-run"], ["language"], ["devices", "--on", "local"])
    assert done == [2] * 6 and not any("fault of triport" in line for line in err)
    assert sum("llvmlite is not installed" in line and "It has no wheel for riscv64" in line for line in err) == 6


def test_without_torch_and_triton(tmp_path):
    done, err, _ = codes("llvmlite,torch,triton", ["devices"], ["bench", "--op", "square"], ["export", "square", "--target", "k1", "-o", str(tmp_path / "c")])
    assert done == [2] * 3 and not any("Traceback" in line for line in err)
    assert all("is not installed" in line and "pip install" in line and "docs/boards.md says what runs where" in line for line in err) and len(err) == 3
