"""Markdown, a CI job's summary, spine-triton's lines; and what `triport bench` does with its options for them."""

import html
import re

import pytest
from test_screen import MACHINE, ROWS, new
from triport.bench import formats
from triport.tools.__main__ import main

NASTY = "a|b\\|c `d` <e> *f* _g_ [h](i)\nj"


def tables(text: str) -> list[list[list[str]]]:
    """The tables of a Markdown text, as GitHub reads them: a bar that is escaped ends no cell."""
    out, last = [], ""
    for line in text.splitlines():
        if line.startswith("|"):
            if not last.startswith("|"):
                out.append([])
            out[-1].append([html.unescape(re.sub(r"\\([\\|`*_~\[\]])", r"\1", c.strip())) for c in re.findall(r"((?:\\.|[^|\\])*)\|", line[1:])])
        last = line
    return out


def data(rows, **machine):
    return {"machine": {**MACHINE, "command": "bench --op softmax", "time": "2026-11-21T10:00:00", **machine}, "rows": rows}


def test_markdown_is_one_table_with_its_machine():
    text = formats.markdown(data(ROWS))
    table, = tables(text)
    assert text.startswith("`triport bench --op softmax` on 2026-11-21: a CPU, 2 threads; ") and len({len(line) for line in table}) == 1
    assert table[0][:7] == ["op", "case", "dtype", "mode", "backend", "time", "vs torch"] and len(table) == 2 + len(ROWS)
    assert table[2][:7] == ["softmax", "1823x781", "fp32", "fwd", "torch", "100.0 us", "1.00x"]
    assert table[6][4:7] == ["triton-cpu", "812 s", "1.2e-07x noisy"] and table[7][5] == "WRONG"
    assert "\n- FAILED: gelu 4096x4096,4096x4096t,dim=0 bf16 on variant: RuntimeError: why it failed" in text
    chosen, = tables(formats.markdown(data(ROWS), ["memory"]))
    assert chosen[0] == ["op", "case", "dtype", "mode", "backend", "memory"] and chosen[2][-1] == "65.5 kB"


@pytest.mark.parametrize("form", [formats.markdown, formats.github])
def test_names_are_text(form):
    """A bar ends no cell; nothing is markup."""
    text = form(data([new(op=NASTY, case=NASTY, backend=NASTY), new(op=NASTY, case=NASTY, backend="x", status="failed", reason=NASTY)]))
    for table in tables(text):
        assert len({len(line) for line in table}) == 1 and table[2][0] == table[2][1] == table[2][3] == NASTY.replace("\n", " ")
    assert "<e>" not in text and " *f" not in text and " _g" not in text and "`d`" not in text.replace("\\`", "")


def test_githubs_summary():
    """A verdict, the words, a short table, and all of it folded."""
    text = formats.github(data(ROWS, busy="a core of two was taken"))
    lines = text.splitlines()
    assert lines[0] == "## triport bench: 1 wrong, 1 failed; triton-cpu at 3.23x torch's speed; spine at 40000x torch's speed"
    assert "- The machine was busy: a core of two was taken" in lines and "- triton-cpu: 4.19x torch-compile's speed (softmax 1823x781 fp32)." in lines
    short, whole = tables(text)
    assert short[0] == ["op", "case", "dtype", "mode", "backend", "time", "vs torch"] and len(whole[0]) > len(short[0])
    assert [line[-1] for line in short[2:7]] == ["1.00x same", "0.77x slower", "3.23x faster", "1.00x same", "1.2e-07x noisy"]
    assert lines.index("<details><summary>All figures</summary>") < lines.index("</details>") == len(lines) - 1
    old = [new(speedup=2.0)]
    del old[0]["speedup_is"]
    assert tables(formats.github(data(old)))[0][2][-1] == "2.00x", "a row that does not say gets no word"
    assert formats.github(data([new()])).startswith("## triport bench: 1 of 1 results right\n")
    assert formats.github({"machine": {}, "rows": []}).startswith("## triport bench: no results\n"), "a run that was interrupted at once"


def test_spines_lines_are_of_single_calls():
    """The first call, which compiles, is among them and stands apart."""
    row = new(backend="triton", calls_s={"wall": [10.0, 1.0, 3.0, 2.0], "cpu": [20.0, 2.0, 2.0, 4.0]})
    assert formats.spine(data([row])).split("\n") == [
        "bench_softmax(1823x781, 'triton') {}, 4 times, all results in seconds",
        "Wall: Avg=4.000000, min=1.000000, std=3.535534, max=10.000000", "CPU: Avg=7.000000, min=2.000000, std=7.549834, max=20.000000",
        "First call: Wall=10.000000, CPU=20.000000", "Later calls: Wall Avg=2.000000, CPU Avg=2.666667", "Total: Wall=16.000000, CPU=28.000000"]
    other = formats.spine(data([row | {"dtype": "bf16", "mode": "bwd"}]))
    assert other.startswith("bench_softmax(1823x781, 'triton') {'dtype': 'bf16', 'mode': 'bwd'}, 4 times")


def test_means_of_rounds_are_no_calls():
    """A row without single calls says so, in no line that could be read as one."""
    text = formats.spine(data([new(repeats=700), new(status="failed", reason="why")]))
    assert text == ("bench_softmax(1823x781, 'torch') {}: no single calls in this row, its time is the median of rounds of 700 calls, 100.0 us; a run with "
                    "--format spine times them")
    assert not re.search("Avg|min=|times,", text)


QUICK = ["bench", "--op", "square", "--case", "128x128", "--backend", "torch", "--backend", "triton-cpu", "--reps", "2", "--no-cold"]


def test_options(capsys, monkeypatch):
    """On standard output the table, as wide as COLUMNS says; on standard error a line for each case."""
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*QUICK, "--columns", "time,memory"]) == 0
    said = capsys.readouterr()
    assert re.fullmatch(r"\[1/1\] square 128x128 fp32: triton-cpu [\d.]+ [num]?s, [\d.e-]+x of torch(, noisy)?\n", said.err), said.err
    lines = said.out.splitlines()
    assert any(re.fullmatch(r"  backend +time +memory", line) for line in lines) and max(map(len, lines)) <= 80
    assert re.search(r"^triton-cpu: [\d.e-]+x torch's speed \(square 128x128 fp32", said.out, re.M) and "2 of 2 results right: all of them." in lines
    assert main([*QUICK, "--format", "github"]) == 0
    short, _ = tables(capsys.readouterr().out)
    assert short[0] == ["op", "case", "dtype", "backend", "time", "vs torch"] and [r[3] for r in short[2:]] == ["torch", "triton-cpu"]


def test_an_unknown_column_is_found_before_anything_runs(capsys):
    assert main([*QUICK, "--columns", "time,memroy"]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("triport bench: unknown column 'memroy'; did you mean 'memory'? Known: backend, bandwidth,") and not said.out
