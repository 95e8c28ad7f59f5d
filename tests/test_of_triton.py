"""A Triton that nobody has checked, or with other insides: kernels run, without what triport changes, and one warning says so (`backends/of_triton.py`)."""

import os
import subprocess
import sys

import pytest
from conftest import HANGS

PROGRAM = """
import sys, warnings
import torch, triton, triton.language as tl
{change}

@triton.jit
def twice_kernel(x_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    acc = tl.zeros((N,), tl.float32)
    for _ in range(n):
        acc += tl.load(x_ptr + i)
    tl.store(x_ptr + i, acc)

with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    x = torch.ones(16)
    twice_kernel[(1,)](x, 2, 16)
    twice_kernel[(1,)](x, 3, 16)
    assert x.eq(6).all(), x
from triport.backends import of_triton
for w in seen:
    print(w.message)
"""


@pytest.mark.parametrize("change,lines", [("triton.__version__ = '4.1.0'", [["4.1.0", "is not one", "half a second"], ["gdb sees no variables"]]),
                                          ("from triport.backends.cpu.plugin import mends, names; mends.looked_at = lambda f: f.is_not_there; "
                                           "names._returned = lambda f, g: f.is_not_there", [["lacks what", "errors of dtypes"], ["gdb"]])],
                         ids=["version", "insides"])
def test_another_triton(change, lines, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM.format(change=change))
    p = subprocess.run([sys.executable, "program.py"], capture_output=True, text=True, timeout=HANGS, cwd=tmp_path, env=os.environ | {"TRITON_CACHE_DIR": str(tmp_path / "c")})
    assert p.returncode == 0, p.stderr[-2500:]
    said = [line for line in p.stdout.splitlines() if "triton-cpu: Triton" in line]
    assert len(said) == len(lines) and all(w in line for line, words in zip(said, lines) for w in words), p.stdout
