"""Results files: what is written, after each row; what is read back; CSV; the schema in words, as JSON Schema, and in the code."""

import copy
import csv
import functools
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import results_files
from conftest import HANGS, ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from triport.backends import host
from triport.backends.base import Error
from triport.bench import changes, changes_report, flat, results, schema
from triport.tools.__main__ import main

PAGE = (ROOT / "docs/results.md").read_text()
SCHEMA = json.loads((ROOT / "docs/results.schema.json").read_text())
QUICK = ["bench", "--op", "square", "--op", "softmax", "--case", "128x128", "--reps", "2", "--no-cold", "--backend", "torch", "--backend", "triton-cpu"]


@functools.cache
def validator():
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    return jsonschema.Draft202012Validator(SCHEMA)


def full():
    """A row with every field that docs/results.md has."""
    summary = {"avg": 1e-4, "min": 9e-5, "std": 1e-6, "max": 2e-4, "p20": 9.5e-5, "p50": 1e-4, "p80": 1.1e-4, "n": 3, "ci": [9e-5, 1.2e-4]}
    return {"op": "a", "case": "8x8", "dtype": "fp32", "mode": "bwd", "backend": "mine", "device": "cuda", "status": "ok", "baseline": "torch", "column": "triton-cpu", "by": "cuda", "bytes": 512,
            "flops": 64, "error": 1e-7, "allowed": 1e-6, "reason": "", "trace": "", "new_process": "no", "first_call_s": {"cold": 1.0, "reload": 0.1, "process": 0.2,
            "here": 1.0}, "first_call_cpu_s": {"process": 0.1}, "peak_bytes": 256, "wall_s": summary, "cpu_s": summary, "device_s": summary, "repeats": 7,
            "rounds_left_out": 2, "rounds_s": [1e-4] * 3, "cpu_rounds_s": [0.0] * 3, "device_rounds_s": [1e-4] * 3, "gb_per_s": 1.0, "tflop_per_s": 0.1, "roofline": 0.5, "speedup": 2.0,
            "speedup_ci": [1.9, 2.1], "speedup_is": "faster", "noisy": "spread", "unsteady": "pace", "metrics": {"tokens": 3.0}, "calls_s": {"wall": [1.0], "cpu": [1.0]},
            "round_trip_s": 1.0, "distributed": {"of": "8x8", "sharded": "rows", "scaling": "weak", "ranks": 2, "placed": "S(0)", "kernels_s": summary, "communication_s": summary},
            "artefacts": {"asm": "x", "verdict": "V", "trace": "y", "case": "8x8"}}


def test_a_real_file_is_what_the_schema_says(tmp_path):
    path = tmp_path / "r.json"
    assert main([*QUICK, "--json", str(path)]) == 0
    raw = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert raw["schema"] == 2 and not list(tmp_path.glob("*.tmp"))
    errors = [f"{'/'.join(map(str, e.absolute_path))}: {e.message}" for e in validator().iter_errors(raw)]
    assert not errors, errors
    unknown = [(where, k) for where, known, found in (("machine", "machine", [raw["machine"]]), ("row", "row", raw["rows"])) for x in found
               for k in x if k not in SCHEMA["$defs"][known]["properties"]]
    assert not unknown, unknown


def test_the_page_the_schema_and_the_columns_name_the_same_fields():
    named = set(re.findall(r"`([\w.-]+)`", PAGE))
    fields = {k for d in ("machine", "row", "summary") for k in SCHEMA["$defs"][d]["properties"]} | SCHEMA["properties"].keys()
    assert fields <= named, fields - named
    tables = PAGE[PAGE.index("## The file"):PAGE.index("## CSV")]
    listed = {n for line in tables.splitlines() if line.startswith("| `") for n in re.findall(r"`([\w-]+)`", line.split("|")[1])}
    assert listed <= fields, listed - fields
    assert full().keys() == SCHEMA["$defs"]["row"]["properties"].keys()
    columns = PAGE[PAGE.index("## CSV"):PAGE.index("## Comparisons")]
    assert all(f"`{re.sub('^(cpu|device)_(?!ci)', 'wall_', c)}`" in columns for c in flat.COLUMNS)
    assert list(schema.STATUSES) == SCHEMA["$defs"]["row"]["properties"]["status"]["enum"]


@pytest.mark.parametrize("version", [1, 2])
def test_files_of_both_versions_are_read(tmp_path, version):
    data = results_files.made()
    data["schema"] = version
    if version == 2:
        data["rows"] += [full(), {**full(), "mode": "fwd+bwd", "error": "NaN", "metrics": {"loss": "Infinity"}}]
    assert not list(validator().iter_errors(data))
    path, = results_files.written(tmp_path, r=data)
    read = results.load(path)
    rows, remarks = schema.rows(read, "r")
    assert len(rows) == len(data["rows"]) and not remarks
    if version == 2:
        assert read["rows"][-1]["error"] != read["rows"][-1]["error"] and read["rows"][-1]["metrics"] == {"loss": float("inf")}


VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["ok", "fwd", "NaN", 10**400, 1e-13, 2e9]),
                      lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["p20", "p50", "p80", "cold", "process", "x"]), inner, max_size=4))


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(full())), VALUES, st.sampled_from([None, "p50", "p20", "process", 0]))
def test_what_the_schema_takes_a_comparison_reads(field, value, below):
    """A row that the JSON Schema takes is read, but for what that cannot say: percentiles in order."""
    row = full()
    if isinstance(row[field], dict) and below in row[field] or isinstance(row[field], list) and below == 0:
        row[field] = copy.deepcopy(row[field])
        row[field][below] = value
    else:
        row[field] = value
    if row[field] != row[field] or "nan" in repr(row[field]) or "inf" in repr(row[field]):
        return  # JSON has no number for it; jsonschema takes Python's
    if not list(validator().iter_errors({"schema": 2, "complete": True, "machine": {}, "rows": [row]})):
        assert (schema.wrong(row) or "out of order").endswith("out of order")


def test_a_file_has_no_number_that_json_lacks(tmp_path):
    import numpy
    import torch
    made = results.Results(tmp_path / "r.json")
    made.add({**full(), "error": float("inf"), "metrics": {"nan": float("nan"), "low": -float("inf"), "numpy": numpy.float32(0.5), "tensor": torch.tensor(3)}})
    raw = json.loads((tmp_path / "r.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert raw["rows"][0]["error"] == "Infinity" and raw["rows"][0]["metrics"] == {"nan": "NaN", "low": "-Infinity", "numpy": 0.5, "tensor": 3}
    assert results.load(tmp_path / "r.json")["rows"][0]["error"] == float("inf")


WRITER = '''
import sys
from pathlib import Path
from triport.bench import flat, results
path = Path(sys.argv[1])
made = results.Results(path, {path.with_suffix(".csv"): flat.as_csv})
made.meta = {"command": "X" * 300000}
made.add({"op": "a0", "case": "8", "dtype": "fp32", "backend": "torch", "status": "failed"})
print("begun", flush=True)
n = 0
while True:
    n += 1
    made.rows = [{"op": f"a{k}", "case": "8", "dtype": "fp32", "backend": "torch", "status": "failed"} for k in range(1 + n % 300)]
    made.save()
'''


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_writer_that_is_killed_leaves_a_whole_file(tmp_path, how):
    """Whenever the kill comes: the file is whole, and its CSV. (Written in place, most of these would be cut off.)"""
    path = tmp_path / "r.json"
    for pause in (0.0, 0.003, 0.011, 0.02, 0.037):
        p = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert p.stdout.readline() == b"begun\n"
        time.sleep(pause)
        p.send_signal(how)
        p.wait(HANGS)
        data = results.load(path)
        assert not data["complete"] and len(data["rows"]) >= 1 and len(data["machine"]["command"]) == 300000
        lines = list(csv.reader(io.StringIO(path.with_suffix(".csv").read_text())))
        assert len({len(line) for line in lines}) == 1 and len(lines) >= 2


def test_an_earlier_file_stays_until_there_is_a_row(tmp_path):
    path = tmp_path / "x.json"
    path.write_text("an earlier run's")
    made = results.Results(path)
    made.save()
    assert path.read_text() == "an earlier run's"
    made.rows.append({})
    made.save()
    assert results.load(path)["rows"] == [{}]
    fresh = results.Results(tmp_path / "y.json")
    fresh.save()
    assert results.load(fresh.path)["complete"] is False  # whoever looks for it finds one from the start
    path.write_text("an earlier run's")
    results.Results(path).finish()
    assert results.load(path)["complete"] and not results.load(path)["rows"]


def test_what_a_path_can_be(tmp_path):
    """A link's file is written, a pipe is written to, and what cannot be written is a sentence."""
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    results.write(tmp_path / "link.json", "1")
    assert (tmp_path / "link.json").is_symlink() and (tmp_path / "real.json").read_text() == "1"
    read, write = os.pipe()
    results.write(Path(f"/dev/fd/{write}"), "2")
    os.close(write)
    with os.fdopen(read) as f:
        assert f.read() == "2"
    with pytest.raises(Error, match="gone/x.json cannot be written: No such file"):
        results.write(tmp_path / "gone/x.json", "3")
    with pytest.raises(Error, match="/dev/full cannot be written: No space left"):
        results.write(Path("/dev/full"), "4")


def test_csv_has_a_cell_for_each_figure():
    data = {"rows": [full(), {"op": 'a "quoted", op', "case": "8", "dtype": "fp32", "backend": "torch", "device": "cpu", "status": "failed",
                              "reason": "two\nlines"}], "machine": {"cpu": "X", "time": "2026-11-22T10:57:40"}}
    first, second = csv.DictReader(io.StringIO(flat.as_csv(data)))
    assert first["wall_p50_s"] == "0.0001" and first["device_n"] == "3" and first["speedup_ci_high"] == "2.1" and first["metric_tokens"] == "3.0"
    assert first["mode"] == "bwd" and first["first_call_process_s"] == "0.2" and first["wall_ci_low_s"] == "9e-05" and first["machine"] == "X"
    assert second["op"] == 'a "quoted", op' and second["reason"] == "two\nlines" and second["mode"] == "fwd" and second["wall_p50_s"] == ""
    empty = [c for c, v in first.items() if not v]
    assert empty == ["reason"], empty


@pytest.mark.parametrize("text", ["b\rad", "a\r\nb", "two\nlines", "\r", 'a "quoted", b'])
def test_csv_has_a_line_for_each_row_whatever_texts_say(text):
    """Of a run and of a comparison; a program reads what was there."""
    row = {"op": text, "case": "8x8", "dtype": "fp32", "backend": text, "device": "cpu", "status": "failed", "reason": text}
    read, = csv.DictReader(io.StringIO(flat.as_csv({"rows": [row], "machine": {"cpu": "X", "time": "2026"}}), newline=""))
    assert (read["op"], read["backend"], read["reason"], read["machine"], read["time"]) == (text, text, text, "X", "2026")
    data = {"machine": {}, "rows": [results_files.row(op="a", backend="b")]}
    read, = csv.DictReader(io.StringIO(changes_report.as_csv(changes.beside([(f"x{text}", data), ("y", data)])), newline=""))
    assert (read["op"], read["verdict"], read["regression"]) == ("a", "same", "False")


def test_a_reason_is_one_line():
    from triport.bench import runner
    assert runner._failed(RuntimeError("ssh: connect failed\r\nsecond line"))["reason"] == "RuntimeError: ssh: connect failed second line"
    assert len(runner._failed(RuntimeError("word " * 1000))["reason"]) < 1100


def test_all_files_at_once_and_figures_on_stdout(tmp_path, capsys):
    """--json - leaves stdout to the JSON; the other files are written beside it, and the table goes to stderr."""
    table, page = tmp_path / "t.csv", tmp_path / "t.md"
    assert main([*QUICK, "--json", "-", "--csv", str(table), "--markdown", str(page)]) == 0
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert data["complete"] and len(data["rows"]) == 4 and "triton-cpu" in err
    assert [r["backend"] for r in csv.DictReader(table.open())] == [r["backend"] for r in data["rows"]]
    assert page.read_text().count("triton-cpu") >= 2 and "|" in page.read_text()
    assert main([*QUICK, "--csv", "-", "--format", "markdown"]) == 0
    assert len(list(csv.reader(io.StringIO(capsys.readouterr().out)))) == 5


@pytest.mark.parametrize("options,said", [
    (["--json", "-", "--csv", "-"], "--json and --csv both go to -"), (["--csv", "x.csv", "--markdown", "./x.csv"], "--csv and --markdown both go to x.csv"),
    (["--csv", "/"], "--csv /: it is a folder"), (["--markdown", "/nowhere/at/all.md"], "--markdown /nowhere/at/all.md: there is no folder"),
    (["--json", "-", "--artefacts", "x"], "--artefacts goes with --json FILE")])
def test_files_that_cannot_be_written(options, said, capsys):
    assert main([*QUICK, *options]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("flags,isa", [("fphp asimd sve", "SVE"), ("asimd", "NEON"), ("sse4_2 avx avx2 avx512f", "AVX-512"), ("sse4_2 avx", "AVX"),
                                       ("", "scalar")])
def test_the_widest_vectors_of_a_machine_are_named(flags, isa, monkeypatch):
    monkeypatch.setattr(host, "cpu_info", lambda: {"brand_raw": "A CPU", "flags": flags.split()})
    assert host.cpu_name() == f"A CPU, {isa}"
