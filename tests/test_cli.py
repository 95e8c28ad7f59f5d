"""The command line: exit codes, messages, files."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import DOUBLE, HANGS
from triport.bench import clock, report, results
from triport.tools.__main__ import main

USER_OP = DOUBLE + '''def triple(x):
    return double(x) * 1.5 + 1e-3

double_op = Op("double", double, lambda x: x * 2, (Case(((1000,),)),))
wrong_op = Op("wrong", triple, lambda x: x * 3, (Case(((1000,),)),))
broken_op = Op("broken", lambda x: 1 / 0, lambda x: x * 3, (Case(((1000,),)),))
'''


@pytest.fixture
def user_file(tmp_path):
    path = tmp_path / "my_ops.py"
    path.write_text(USER_OP)
    return path


QUICK = ["--reps", "2", "--backend", "torch", "--backend", "triton-cpu", "--case", "128x128"]


def test_bench_writes_rows(tmp_path, capsys):
    path = tmp_path / "r.json"
    assert main(["bench", "--op", "softmax", "--op", "add_relu", *QUICK, "--json", str(path)]) == 0
    data = results.load(path)
    assert data["complete"] and {(r["op"], r["backend"]) for r in data["rows"]} == {
        (o, b) for o in ("softmax", "add_relu") for b in ("torch", "triton-cpu")}
    for r in data["rows"]:
        assert r["status"] == "ok" and r["error"] <= r["allowed"]
        for kind in ("wall_s", "cpu_s"):
            s = r[kind]
            assert 0 <= s["min"] <= s["p20"] <= s["p50"] <= s["p80"] <= s["max"] and s["n"] == 2 and s["std"] >= 0
        assert r["gb_per_s"] > 0 and r["roofline"] > 0 and r["speedup"] > 0 and r["peak_bytes"] >= 128 * 128 * 4
        if r["backend"] == "triton-cpu":
            assert r["first_call_s"].keys() == {"cold", "reload", "process", "here"}
            assert all(0 < s < float("inf") for s in r["first_call_s"].values())
    limits = data["machine"]["roofline"]["cpu"]
    assert limits["bytes_per_s"] > 0 and limits["flop_per_s"] > 0
    text = capsys.readouterr().out
    assert "softmax" in text and "triton-cpu" in text


def test_a_cold_call_compiles_and_one_from_disk_does_not(monkeypatch):
    import torch
    from triport.backends import get
    from triport.backends.cpu import compiler
    from triport import ops
    from triport.bench import runner
    from triport.ops import registry

    made, counts, once = [], [], clock.once
    monkeypatch.setattr(compiler, "lower", lambda *a, real=compiler.lower: made.append(1) or real(*a))
    monkeypatch.setattr(clock, "once", lambda fn: (once(fn), counts.append(len(made)))[0])
    times = runner.first_calls(get("triton-cpu"), registry.get("square"), lambda: ops.square(torch.randn(40, 30)))
    assert list(times)[0] == "cold" and counts[:2] == [1, 1] and all(s > 0 for s in times.values())


def test_markdown(capsys):
    assert main(["bench", "--op", "square", *QUICK, "--format", "markdown"]) == 0
    lines = capsys.readouterr().out.strip().split("\n")
    assert "torch" in lines[0] and "GB/s" in lines[0] and len({line.count("|") for line in lines[2:]}) == 1
    assert lines[-1].startswith("| square | 128x128 | fp32 | triton-cpu |")


def test_users_own_op(user_file, tmp_path):
    path = tmp_path / "r.json"
    assert main(["bench", "--op", f"{user_file}:double_op", "--backend", "triton-cpu", "--reps", "2", "--json",
                 str(path)]) == 0
    assert results.load(path)["rows"][0]["op"] == "double"


@pytest.mark.parametrize("name,status", [("wrong_op", "wrong"), ("broken_op", "failed")])
def test_wrong_result_is_exit_1(user_file, tmp_path, capsys, name, status):
    path = tmp_path / "r.json"
    assert main(["bench", "--op", f"{user_file}:{name}", "--backend", "torch", "--backend", "triton-cpu", "--reps", "2",
                 "--json", str(path)]) == 1
    ours = [r for r in results.load(path)["rows"] if r["backend"] == "triton-cpu"]
    assert ours[0]["status"] == status and "wall_s" not in ours[0], "what is wrong is not timed"
    assert ("WRONG" if status == "wrong" else "ZeroDivisionError") in capsys.readouterr().out


def test_list(capsys):
    assert main(["bench", "--list"]) == 0
    out = capsys.readouterr().out
    assert "matmul_softmax: fp32, fp16, bf16" in out and "512x512,512x512,dim=-1" in out and "triton-gpu" in out


BAD = [
    (["bench", "--op", "softmx"], "unknown op 'softmx'; did you mean 'softmax'?"),
    (["bench", "--op", "nowhere.py:x"], "there is no file nowhere.py"),
    (["bench", "--backend", "cudaa"], "unknown backend 'cudaa'"),
    (["bench", "--dtype", "fp33"], "unknown dtype 'fp33'"),
    (["bench", "--op", "gelu", "--dtype", "int32"], "the chosen ops take"),
    (["bench", "--op", "gelu", "--case", "sevens"], "unknown case 'sevens'"),
    (["bench", "--op", "matmul", "--case", "7x7"], "matmul takes MxK,KxN; say N"),
    (["bench", "--precision", "3x"], "--precision 3x"),
    (["bench", "--budget", "fast"], "--budget fast"),
    (["bench", "--op", "gelu", "--sweep", "M=9..1"], "goes upwards"),
    (["bench", "--backend", "troch"], "did you mean 'torch'"),
    (["bench", "--threads", "0"], "--threads 0: it takes a number from 1 up"),
    (["bench", "--reps", "0"], "--reps 0"),
    *(([*command, "--threads", "100000"], "--threads 100000: it takes 1024 at most") for command in (
        ["bench"], ["tune", "--op", "square", "--dry-run"], ["profile", "square"], ["models", "square"])),
    (["bench", "--op", "gelu", "--json", "/nowhere/at/all.json"], "there is no folder"),
]


@pytest.mark.parametrize("argv,text", BAD, ids=[" ".join(b[0]) for b in BAD])
def test_usage_is_exit_2(argv, text, capsys):
    assert main(argv) == 2
    assert text in capsys.readouterr().err


def test_unavailable_backend_says_why(capsys):
    from triport.backends import get
    if get("triton-gpu").unavailable() is None:
        pytest.skip("there is a GPU here")
    assert main(["bench", "--backend", "triton-gpu"]) == 2
    assert "backend triton-gpu cannot run here" in capsys.readouterr().err


def test_user_file_without_the_name(user_file, capsys):
    assert main(["bench", "--op", f"{user_file}:nothing"]) == 2
    assert "it has scale_kernel, double, triple, double_op, wrong_op, broken_op" in capsys.readouterr().err


def test_devices(capsys):
    assert main(["devices", "--json"]) == 0
    rows = {r["backend"]: r for r in json.loads(capsys.readouterr().out)}
    assert rows["triton-cpu"]["status"] == "ok" and "error" in rows["triton-cpu"]["proof"]
    assert rows["torch"]["status"] == "ok" and "triton" in rows["triton-cpu"]["versions"]
    gpu = rows["triton-gpu"]
    assert gpu["status"] == "ok" or ("install" in gpu["reason"] or "nvidia-smi" in gpu["reason"])
    assert main(["devices"]) == 0
    assert "proof" in capsys.readouterr().out


def test_ctrl_c_leaves_a_valid_file(tmp_path):
    path = tmp_path / "r.json"
    p = subprocess.Popen([sys.executable, "-m", "triport.tools", "bench", "--backend", "torch", "--backend", "triton-cpu",
                          "--json", str(path), "--no-cold"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                         cwd=Path(__file__).resolve().parent.parent, env=os.environ)
    for _ in range(10 * HANGS):
        if path.exists() and len(json.loads(path.read_text())["rows"]) >= 4:
            break
        time.sleep(0.1)
    p.send_signal(signal.SIGINT)
    _, err = p.communicate(timeout=HANGS)
    data = results.load(path)
    assert p.returncode == 130 and len(data["rows"]) >= 4 and not data["complete"]
    assert "interrupted after" in err


def test_broken_results_file(tmp_path):
    from triport.backends.base import Error
    for text in ("", "{", "[]", '{"schema": 99, "rows": []}'):
        (tmp_path / "r.json").write_text(text)
        with pytest.raises(Error):
            results.load(tmp_path / "r.json")


def test_summary_of_samples():
    s = clock.summary([3.0, 1.0, 2.0, 5.0, 4.0])
    assert s == {"avg": 3.0, "min": 1.0, "std": pytest.approx(2**0.5), "max": 5.0, "p20": 2.0, "p50": 3.0, "p80": 4.0, "n": 5}
    assert clock.summary([3.0, 1.0, 2.0, 5.0, 4.0, 3.0])["ci"] == [1.0, 5.0]


def test_times_in_words():
    assert [report.time_text(t) for t in (1.23e-5, 4.56e-3, 1.2)] == ["12.3 us", "4.56 ms", "1.20 s"]


def _gpu_row(backend, gpu, wall, device="cuda"):
    row = {"op": "gelu", "case": "8x8", "dtype": "fp16", "backend": backend, "device": device, "bytes": 256, "flops": 512, "status": "ok", "error": 0.0,
           "allowed": 1e-3, "peak_bytes": 128, "first_call_s": {"here": 0.1}, "wall_s": clock.summary([wall]), "cpu_s": clock.summary([wall]),
           "repeats": 1, "rounds_s": [wall, wall * 1.01] * 3}
    return row | ({"device_s": clock.summary([gpu]), "device_rounds_s": [gpu, gpu * 1.01] * 3} if gpu else {})


def test_a_gpus_own_time_stands_beside_the_hosts():
    from rich.console import Console
    from triport.bench import changes

    limits = {"bytes_per_s": 4e12, "flop_per_s": 8e14, "flop_per_s_fp32": 5e13}
    torch_, ours, cpu = _gpu_row("torch", 8e-6, 20e-6), _gpu_row("cuda", 4e-6, 60e-6), _gpu_row("triton-cpu", None, 30e-6, "cpu")
    for row in (torch_, ours, cpu):
        results.add_rates(row, torch_, limits, "fp16")
    assert ours["speedup"] == 2.0 and ours["gb_per_s"] == 256 / 4e-6 / 1e9  # by the GPU's time, though its host takes longer
    assert cpu["gb_per_s"] == 256 / 30e-6 / 1e9
    data = {"rows": [torch_, ours, cpu], "machine": {
        "command": "bench", "time": "2026-11-21", "cpu": "c", "gpu": "H", "cuda": "13.0", "cores": 1, "threads": 1, "python": "3", "torch": "2", "triton": "3",
        "LLVM": "22", "llvmlite": "0", "roofline": {"cpu": {"bytes_per_s": 1e11, "flop_per_s": 1e12}, "cuda": limits}}}
    text = report.markdown(data)
    assert "| time |" in text and "| wall |" in text and re.search(r"\| cuda \| 4.0 us \| 2.00x \|.* 60.0 us \|", text) and "on the GPU copy 4000 GB/s" in text
    assert len({line.count("|") for line in text.splitlines() if line.startswith("|")}) == 1
    out = Console(width=240, record=True, file=open(os.devnull, "w"))
    report.show(data, out)
    shown = out.export_text()
    assert re.search(r"cuda +4.0 us +2.00x .*60.0 us", shown) and re.search(r"triton-cpu +30.0 us", shown)
    slower = {**data, "rows": [torch_, _gpu_row("cuda", 8e-6, 60e-6)]}
    change = next(c for c in changes.compare(data, slower) if c.key.backend == "cuda")
    assert change.verdict == "slower" and abs(change.ratio - 2) < 0.01


def test_a_run_on_a_gpu_that_is_not_there(capsys):
    import torch
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    assert main(["bench", "--device", "cuda"]) == 2
    assert "--device cuda: " in capsys.readouterr().err


def test_spine_format_of_a_run(capsys):
    """Single calls, the first one included and apart: of each column a title and its lines, in seconds."""
    assert main(["bench", "--op", "square", *QUICK, "--no-cold", "--format", "spine"]) == 0
    out = capsys.readouterr().out
    number = r"\d+\.\d{6}"
    for backend in ("torch", "triton-cpu"):
        assert f"bench_square(128x128, '{backend}') {{}}, 2 times, all results in seconds" in out
    assert len(re.findall(rf"^Wall: Avg={number}, min={number}, std={number}, max={number}", out, re.M)) == 2
    assert len(re.findall(rf"^CPU: Avg={number}, min={number}, std={number}, max={number}", out, re.M)) == 2
    assert re.search(r"[Ff]irst", out)


@pytest.mark.parametrize("limits,dtype,peak", [
    ({"flop_per_s": 4e11}, "fp32", 4e11), ({"flop_per_s": 4e11}, "bf16", 4e11), ({"flop_per_s": 4e11}, "fp64", 2e11),
    ({"flop_per_s": 8e14, "flop_per_s_fp32": 5e13}, "fp16", 8e14), ({"flop_per_s": 8e14, "flop_per_s_fp32": 5e13}, "fp64", 5e13),
    ({"flop_per_s": 4e11, "flop_per_s_fp64": 1e11}, "fp64", 1e11)])
def test_the_least_time_by_dtype(limits, dtype, peak):
    assert results.least_time({"bytes_per_s": 1e10, **limits}, 8, 10**9, dtype) == pytest.approx(1e9 / peak)
    assert results.least_time({"bytes_per_s": 1e10, **limits}, 10**10, 8, dtype) == 1.0


@pytest.mark.parametrize("line,said", [
    ("bench --on local --bundle x --json y.json", "--json is of a run; --bundle runs the cases that a bundle has"), ("bench --on local --bundle x --op gelu", "--op is of a run; --bundle"),
    ("bench --on local --bundle x --reps 3", "--reps is of a run; --bundle"), ("bench --on local --bundle x --artefacts y", "--artefacts is of a run; --bundle"),
    ("export gelu --target native --on local -o {new}", "--target and --on both say for which CPU"), ("export gelu --target native --classes 64..128 -o {new}", "--classes goes with functions of yours"),
    ("export gelu --target native --name cases -o {new}", "--name cases: the folder of the case files has that name"), ("export gelu --target native --seed 99999999999999999999 -o {new}", "--seed 9999"),
    ("export gelu --target native -o {file}/b", "{file} is no folder"), ("export gelu --target native -o /proc/x", "/proc/x"), ("language -o /nonexistent/x.md", "there is no folder /nonexistent"),
    ("language -o {folder}", "it is a folder; name a file"), ("bench --op {file}:f", "is no Python file; its name ends in .py"), ("profile {file}:f", "is no Python file"),
    ("check {file}:f", "is no Python file"), ("export {file}:f --target native -o {new}", "is no Python file"), ("profile gelu --steps 0", "--steps 0")])
def test_what_a_command_cannot_heed_is_refused(line, said, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    places = {"new": tmp_path / "new", "file": tmp_path / "file", "folder": tmp_path}
    assert main(line.format(**places).split()) == 2
    err = capsys.readouterr().err
    assert said.format(**places) in err and "Traceback" not in err and not (tmp_path / "new").exists()
