"""perf's map and tritonparse's adapter."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, torch
from triport.ops.softmax import softmax
softmax(torch.randn(100, 300))
path = f"/tmp/perf-{os.getpid()}.map"
print(open(path).read() if os.path.exists(path) else "no map")
if os.path.exists(path):
    os.remove(path)
"""


@pytest.mark.parametrize("switch", ["1", "0"])
def test_perf_map(switch):
    """Addresses and sizes of what was loaded, by the environment switch only."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env={**os.environ, "TRIPORT_PERF_MAP": switch})
    assert done.returncode == 0, done.stderr
    rows = [line.split(" ", 2) for line in done.stdout.strip().split("\n")]
    if switch == "0":
        assert done.stdout.strip() == "no map"
        return
    names = {name: (int(start, 16), int(size, 16)) for start, size, name in rows}
    assert names["triton-cpu::softmax_rows_kernel"][1] > 500 and all(start > 0 and size > 0 for start, size in names.values())


def test_tritonparse_reads_our_stages():
    backend = pytest.importorskip("tritonparse.backend", reason="tritonparse is not installed (pip install -e .[test])")
    from tritonparse.parse.trace_processor import generate_source_mappings
    from triport.ops import registry
    from triport.tools import tritonparse
    from triport.tools.inspector import code, launches, targets
    tritonparse.register()
    tritonparse.register()  # once more changes nothing
    adapter = backend.get_backend_registry().resolve_from_trace({"backend_name": "cpu"})
    assert [s.name for s in adapter.list_ir_stages()] == ["ttir", "plan", "llir", "asm", "obj", "json"]
    op = registry.get("softmax")
    path = Path(inspect.getsourcefile(inspect.unwrap(op.call)))
    line = next(n for n, text in enumerate(path.read_text().split("\n"), 1) if text.startswith("    e = tl.exp(wide"))
    made = code.of_launch(launches.of_op(op, op.cases[0], "fp32", "cpu")[0], targets.get("spacemit-x60"))
    for stage in ("ttir", "llir", "asm"):
        mapped = generate_source_mappings(made.stages[stage], stage, metadata={"backend_name": "cpu"})
        assert any(str(m.get("file", "")).endswith("softmax.py") and m.get("line") == line for m in mapped.values()), stage
