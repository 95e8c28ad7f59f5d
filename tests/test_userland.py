"""A whole riscv64 user land, Debian's Python and numpy under QEMU, calls a bundle's library: slow, and only where `.ci/userland DIR` made it and
TRIPORT_USERLAND=DIR names it."""

import os
import subprocess
import textwrap
from pathlib import Path

import pytest
from conftest import HANGS
from spine_boards import on
from triport.backends.cpu.llvm import targets
from triport.backends.spine import bundle, runner
from triport.ops import Case, registry

ROOT = os.environ.get("TRIPORT_USERLAND", "")
PYTHON = next(iter(sorted(Path(ROOT, "usr/bin").glob("python3.[0-9]*"))), None) if ROOT else None


@pytest.mark.userland
@pytest.mark.skipif(PYTHON is None, reason="TRIPORT_USERLAND names no riscv64 root with python3; .ci/userland DIR makes one (100 MB)")
@pytest.mark.parametrize("board", [on("qemu:riscv64?vlen=256")])
def test_numpy_calls_a_library(board, tmp_path):
    wanted = [(registry.get("softmax"), Case(((5, 33),)), "fp32"), (registry.get("matmul"), Case(((9, 7), (7, 5))), "fp32")]
    made = bundle.make(wanted, targets.get("spacemit-x60"), cases=False)
    made.write(tmp_path)
    (tmp_path / "call.py").write_text(textwrap.dedent("""
        import ctypes, platform, sys
        import numpy as np
        lib = ctypes.CDLL(sys.argv[1])
        def at(x): return x.ctypes.data_as(ctypes.c_void_p)
        def size(n): return ctypes.c_int64(n)
        g = np.random.default_rng(7)
        for m, n in ((33, 70), (1, 1), (4, 1000)):
            x = g.standard_normal((m, n), dtype=np.float32)
            y = np.full((m, n), np.nan, np.float32)
            assert lib.triport_softmax_fp32(at(x), at(y), size(m), size(n), 2) == 0
            e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
            assert np.abs(y - e / e.sum(1, keepdims=True)).max() < 1e-6, (m, n)
        a, b = g.standard_normal((20, 31), dtype=np.float32), g.standard_normal((31, 40), dtype=np.float32)
        c = np.empty((20, 40), np.float32)
        assert lib.triport_matmul_fp32(at(a), at(b), at(c), size(20), size(31), size(40), 2) == 0
        assert np.allclose(c, a.astype(np.float64) @ b, atol=1e-4)
        print("right on", platform.machine(), "numpy", np.__version__)
        """))
    r = runner.get(board)
    done = subprocess.run([r.program, "-cpu", r.cpu, "-L", ROOT, str(PYTHON), str(tmp_path / "call.py"), str(tmp_path / made.manifest["library"])],
                          capture_output=True, text=True, timeout=HANGS, env={"PATH": os.environ["PATH"], "PYTHONHOME": str(Path(ROOT, "usr"))})
    assert done.returncode == 0 and "right on riscv64" in done.stdout, done.stderr[-2000:]
