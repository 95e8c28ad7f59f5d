"""Systems without Triton: what works there works with Triton hidden, and the rest fails with one sentence (docs/platforms.md)."""

import subprocess
import sys

import pytest
import results_files
from conftest import HANGS, ROOT
from triport.backends import platforms
from triport.backends.cpu.backend import TritonCPU

#: run by a process that has no Triton: commands and functions, each with what is printed
PROGRAM = '''
import sys
for name in ("triton", "fcntl", "grp", "pwd", "resource"):  # what macOS or Windows lack
    sys.modules[name] = None
import torch
from triport.backends import platforms
from triport.tools.__main__ import main
platforms.sys = type("sys", (), {"platform": "darwin"})

for words in (["report", "old.json", "-o", "r.html"], ["bench", "--compare", "old.json", "old.json"], ["asm", "f.s"]):
    assert main(words) == 0, words
from triport import bench
from triport.tools import annotate
with annotate("sum"):
    assert bench.benchmark(torch.sum, torch.ones(8), rounds=1).median > 0
assert "triton" not in {n.partition(".")[0] for n, m in sys.modules.items() if m is not None}
for words in ("bench --op softmax --backend torch", "bench --list", "asm softmax", "export softmax -o b", "devices", "profile softmax", "language", "models softmax",
              "check softmax", "tune --op softmax"):
    assert main(words.split()) == 2, words
try:
    import triport.ops
except RuntimeError as e:
    print(e, file=sys.stderr)
'''


def test_what_works_without_triton(tmp_path):
    results_files.written(tmp_path, old=results_files.made("old"))
    (tmp_path / "f.s").write_text(".text\n.globl f\nf:\n.L1:\n  vaddps (%rdi), %ymm0, %ymm0\n  addq $32, %rdi\n  decq %rsi\n  jne .L1\n  ret\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    p = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=HANGS)
    assert p.returncode == 0, p.stderr[-3000:]
    said = [line for line in p.stderr.splitlines() if "needs Triton, whose wheels are for Linux: on macOS `triport report`" in line]
    assert len(said) == 11, p.stderr
    assert "Traceback" not in p.stderr


@pytest.mark.parametrize("system,name", platforms.OTHERS.items())
def test_a_triton_of_others_is_not_taken_for_linuxs(system, name, monkeypatch):
    monkeypatch.setattr(platforms, "sys", type("sys", (), {"platform": system}))
    assert name in TritonCPU().unavailable() and name in platforms.sentence("bench")
    page = (ROOT / "docs" / "platforms.md").read_text()
    assert name in page


def test_linux_is_told_to_install_it():
    assert "pip install triton" in platforms.sentence("bench", "linux") and platforms.no_code("linux") is None
