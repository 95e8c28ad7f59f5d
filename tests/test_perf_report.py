"""Scripts of Triton's users that time with `triton.testing`: perf_report's table, CSV and plot, on the CPU, with nothing in them changed."""

import csv
import os
import subprocess
import sys

import pytest
from conftest import HANGS, ROOT

SCRIPT = '''
import sys
import torch, triton, triton.language as tl

DEVICE = triton.runtime.driver.active.get_active_torch_device()

@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=mask) + tl.load(y_ptr + offs, mask=mask), mask=mask)

def add(x, y):
    out = torch.empty_like(x)
    n = out.numel()
    add_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n, BLOCK=1024)
    return out

@triton.testing.perf_report(
    triton.testing.Benchmark(x_names=["size"], x_vals=[2**10, 2**12, 3001], x_log=True, line_arg="provider", line_vals=["triton", "torch"],
                             line_names=["Triton", "Torch"], styles=[("blue", "-"), ("green", "-")], ylabel="GB/s", plot_name="vector-add", args={}))
def benchmark(size, provider):
    x, y = torch.rand(size, device=DEVICE, dtype=torch.float32), torch.rand(size, device=DEVICE, dtype=torch.float32)
    call = (lambda: x + y) if provider == "torch" else (lambda: add(x, y))
    assert torch.equal(call(), x + y)
    ms, low, high = triton.testing.do_bench(call, warmup=1, rep=3, quantiles=[0.5, 0.2, 0.8])
    gbps = lambda ms: 3 * x.numel() * x.element_size() * 1e-9 / (ms * 1e-3)
    return gbps(ms), gbps(high), gbps(low)

benchmark.run(print_data=True, show_plots="--show" in sys.argv, save_path=sys.argv[1])
'''


def _run(folder, **environment):
    (folder / "script.py").write_text(SCRIPT)
    (folder / "out").mkdir()
    return subprocess.run([sys.executable, "script.py", "out", "--show"], cwd=folder, capture_output=True, text=True, timeout=HANGS,
                          env={**os.environ, "MPLBACKEND": "agg", "TRITON_DEFAULT_BACKEND": "cpu", **environment})


def test_a_script_of_triton_users_runs_unchanged(tmp_path):
    """print_data, show_plots and save_path: a table, a CSV, a plot and its page."""
    pytest.importorskip("pandas", reason="pandas is not installed (pip install 'triport[notebook]')")
    p = _run(tmp_path)
    assert p.returncode == 0, p.stderr[-2000:]
    assert "vector-add:" in p.stdout and "Triton (GB/s)" in p.stdout and "3001" in p.stdout
    rows = list(csv.DictReader((tmp_path / "out/vector-add.csv").open()))
    assert [float(r["size"]) for r in rows] == [1024, 4096, 3001] and all(float(r["Triton (GB/s)"]) > 0 and float(r["Torch (GB/s)"]) > 0 for r in rows)
    assert (tmp_path / "out/vector-add.png").read_bytes()[:4] == b"\x89PNG" and "vector-add.png" in (tmp_path / "out/results.html").read_text()


def test_what_it_needs_is_an_extra_and_written_down():
    import configparser
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert "pandas" in config["options.extras_require"]["notebook"].split()
    assert "triport[notebook]" in (ROOT / "docs/lectures.md").read_text() and "triport[notebook]" in (ROOT / "README.md").read_text()
