"""The benchmark's table as it stands on a screen: rendered, and read back. Nothing is cut, whatever the width, the names and the magnitudes."""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import types

import pytest
from conftest import HANGS, ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from results_files import made, row, written
from rich.cells import cell_len
from rich.console import Console
from triport.backends.base import Error
from triport.bench import fields, formats, progress, screen, units, words
from triport.tools import asm

WIDTHS = (80, 100, 120, 200)


def new(op="softmax", case="1823x781", dtype="fp32", backend="torch", t=1e-4, **more):
    """A row of schema 2 that has everything."""
    wall = {"avg": t, "min": 0.9 * t, "std": 0.01 * t, "max": 2 * t, "p20": 0.95 * t, "p50": t, "p80": 1.1 * t, "n": 9, "ci": [0.98 * t, 1.03 * t]}
    figures = {"wall_s": wall, "cpu_s": dict(wall), "gb_per_s": 131072 / t / 1e9, "tflop_per_s": 655360 / t / 1e12, "baseline": "torch",
               "speedup": 1e-4 / t, "speedup_ci": [0.95e-4 / t, 1.05e-4 / t], "speedup_is": "same",
               "first_call_s": {"here": 0.01, "cold": 0.2, "reload": 0.003, "process": 0.04}}
    out = row(op, case, dtype, backend, t, **figures | more)
    if out["status"] != "ok":
        for key in (*figures, "roofline", "peak_bytes"):
            del out[key]
    return out


ROWS = [new(), new(backend="torch-compile", t=1.3e-4, speedup_is="slower"), new(backend="triton-cpu", t=3.1e-5, speedup_is="faster"),
        new("gelu", "4096x4096,4096x4096t,dim=0", "bf16"), new("gelu", "4096x4096,4096x4096t,dim=0", "bf16", "triton-cpu", 812.0, speedup_is="noisy",
                                                              noisy="p20 to p80 spans 35 % of the median"),
        new("gelu", "4096x4096,4096x4096t,dim=0", "bf16", "cuda", status="wrong", error=0.25),
        new("gelu", "4096x4096,4096x4096t,dim=0", "bf16", "variant", status="failed", reason="RuntimeError: " + "why it failed, in full; " * 12),
        new("gelu", "7x3", "fp32", "spine", 2.5e-9, mode="fwd+bwd")]
MACHINE = {"cpu": "a CPU", "cores": 2, "threads": 2, "torch": "2", "triton": "3", "LLVM": "22"}


def shown(rows, width, machine=(), **options) -> list[str]:
    """The lines of a screen."""
    console = Console(width=width, file=io.StringIO(), color_system=None)
    screen.show({"machine": {**MACHINE, **dict(machine)}, "rows": rows}, console, **options)
    return console.file.getvalue().splitlines()


def read(lines: list[str]) -> list[dict[str, str]]:
    """The table on a screen: of each row what stands under each header, and under which heading."""
    rule = next(n for n, line in enumerate(lines) if set(line) == {"─"})
    heads = [(m[0], m.start(), m.end()) for m in re.finditer(r"\S+(?: \S+)*", lines[rule - 1])]
    out, heading = [], ""
    for line in lines[rule + 1:]:
        if not line.startswith("  "):
            heading = line
            continue
        cells = [(m[0], m.start(), m.end()) for m in re.finditer(r"\S+(?: \S+)*", line)]
        out.append({"heading": heading} | {head: text for head, start, end in heads for text, a, b in cells if a == start or b == end or a < end and b > start})
    return out


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_cut(width):
    """Every row's backend, time and ratio, and the cells of every column that stands."""
    lines = shown(ROWS, width)
    assert "…" not in "".join(lines) and max(map(cell_len, lines)) <= width
    table = read(lines)
    assert len(table) == len(ROWS)
    for got, want in zip(table, ROWS):
        assert got["heading"] == f"{want['op']} {want['case']} {want['dtype']}" + " fwd+bwd" * ("mode" in want)
        assert got["backend"] == want["backend"]
        of = {c.header: c.text(want) for c in fields.of(ROWS)}
        assert got["time"] == of["time"] and got.get("vs torch", "") == of["vs torch"] and set(got) <= {"heading", *of}
        for header, text in got.items():
            assert header == "heading" or text == of[header], (header, text)


def test_more_columns_stand_on_a_wider_screen():
    """They leave in the stated order: what stands is all but a beginning of it."""
    before = set()
    for width in WIDTHS:
        heads = set().union(*read(shown(ROWS, width)))
        stand = {c.name for c in fields.of(ROWS) if c.header in heads}
        gone = [name for name in fields.LEAVE if name in {c.name for c in fields.of(ROWS)} and name not in stand]
        assert gone == [n for n in fields.LEAVE if n in {c.name for c in fields.of(ROWS)}][:len(gone)] and before <= stand
        before = stand
    assert before == {c.name for c in fields.of(ROWS)}, "200 columns hold all of them"
    assert len(set().union(*read(shown(ROWS, 80)))) >= 6
    assert set(fields.LEAVE) | set(fields.KEPT) == set(fields.NAMES) and not set(fields.LEAVE) & set(fields.KEPT)


def test_what_left_is_said_and_wide_keeps_it():
    assert any(line.startswith("not shown at 80 columns: error, memory") for line in shown(ROWS, 80)) and not any("not shown" in x for x in shown(ROWS, 200))
    lines = shown(ROWS, 80, wide=True)
    assert set().union(*read(lines)) >= {c.header for c in fields.of(ROWS)} and max(map(cell_len, lines)) > 80 and not any("not shown" in x for x in lines)


def test_columns_that_were_chosen():
    table = read(shown(ROWS, 80, names=["memory", "time"]))
    assert [list(r) for r in table][0] == ["heading", "backend", "memory", "time"]
    assert fields.chosen("time, error,time") == ["time", "error"] and fields.chosen("tokens", ["tokens"]) == ["tokens"]
    for text, said in (("tiem", "unknown column 'tiem'; did you mean 'time'?"), ("", "it takes names"), ("time,tokens", "unknown column 'tokens'")):
        with pytest.raises(Error, match=re.escape(said)):
            fields.chosen(text)


def test_a_rows_own_metrics_are_columns_after_the_rates():
    rows = [new(metrics={"tokens/s": 1234567.0, "ok": 3}), new(backend="x", metrics={"tokens/s": 2.5})]
    heads = list(dict.fromkeys(h for r in read(shown(rows, 200)) for h in r))
    assert heads.index("tokens/s") == heads.index("roof") + 1
    assert read(shown(rows, 200))[0]["tokens/s"] == "1.235e+06" and read(shown(rows, 80))[1]["tokens/s"] == "2.5"


@pytest.mark.parametrize("width", WIDTHS)
def test_rows_of_before(width):
    """Files of schema 1: no interval, no baseline, no colour."""
    rows = made()["rows"]
    table = read(shown(rows, width))
    assert [r["backend"] for r in table] == [r["backend"] for r in rows] and all(r["time"] for r in table)
    assert [r.get("vs torch", "") for r in table] == [units.ratio(r["speedup"]) for r in rows]


def test_cold_is_what_was_measured_cold():
    """The first call of a process that runs stands under a name of its own."""
    rows = [new(), new(backend="x")]
    for r in rows:
        r["first_call_s"] = {"here": 0.0123}
    table = read(shown(rows, 200))
    assert table[0]["first"] == "12.30 ms" and not {"cold", "reload", "new process"} & set(table[0])


def test_colours_are_what_the_row_says():
    rows = [new(speedup=9.0, speedup_is=said, backend=said) for said in ("faster", "slower", "same", "noisy")] + [new(speedup=9.0, backend="none")]
    del rows[-1]["speedup_is"]
    styles = {}
    for line in screen.table(rows, 200)[0][3:]:
        at = line.plain.index("9.00x")
        styles[line.plain.split()[0]] = [str(s.style) for s in line.spans if s.start <= at < s.end and s.style]
        assert ("noisy" in line.plain.split()[4:]) == (line.plain.split()[0] == "noisy") or "9.00x noisy" in line.plain
    assert styles == {"faster": ["green"], "slower": ["red"], "same": [], "noisy": ["bright_black"], "none": []}


def test_intervals():
    """Half of what the median may be, as a share of it; of a speed-up both ends, but not of the baseline's own."""
    first, second = read(shown([new(), new(backend="x")], 200))
    assert first["±95%"] == second["±95%"] == "±2.5%" and second["vs 95%"] == "0.95x..1.05x" and "vs 95%" not in first
    for nothing in (None, [], [None, None], [1e-5, float("inf")]):
        row = new(speedup_ci=nothing)
        row["wall_s"]["ci"] = nothing
        assert not {"±95%", "vs 95%"} & set(read(shown([row], 200))[0])


def test_reasons_stand_in_full():
    text = " ".join(" ".join(shown(ROWS, 80)).split())
    assert ROWS[6]["reason"].strip() in text and "WRONG: gelu 4096x4096,4096x4096t,dim=0 bf16 on cuda: error 2.5e-01, allowed 2.0e-06" in text
    skipped = [new(), new(backend="cuda", status="skipped", reason="no CUDA")]
    assert "Skipped: softmax 1823x781 fp32 on cuda: no CUDA" in " ".join(shown(skipped, 80)) and words.words(skipped)[-1][1] == "1 skipped."


def test_names_are_text():
    """Neither markup, nor escape sequences, nor line ends."""
    lines = shown([new(op="[red]x[/red]", case="a\x1b[31mb\nc", backend="[bold]")], 80)
    assert any(line == "[red]x[/red] a [31mb c fp32" for line in lines) and any(line.startswith("  [bold] ") for line in lines)


name = st.text(st.characters(categories=("L", "N", "P", "S", "Zs"), exclude_characters="…─"), min_size=1, max_size=90).filter(lambda t: units.plain(t))
seconds = st.floats(-9, 3).map(lambda x: 10**x)


@st.composite
def rows_(draw):
    out = []
    for place in draw(st.lists(st.tuples(name, name, st.sampled_from(["fp32", "bf16"])), min_size=1, max_size=3)):
        for backend in draw(st.lists(name, min_size=1, max_size=3, unique=True)):
            r = new(*place, backend=backend, t=draw(seconds), status=draw(st.sampled_from(["ok"] * 4 + ["wrong", "failed", "skipped"])), reason="why")
            r |= {"speedup": 10**draw(st.floats(-12, 12)), "peak_bytes": draw(st.integers(1, 10**14)), "roofline": 10**draw(st.floats(-9, 3)),
                  "metrics": draw(st.dictionaries(name, st.floats(allow_nan=False), max_size=2)), "mode": draw(st.sampled_from(["fwd", "bwd"])),
                  "baseline": draw(st.sampled_from(["torch", "a baseline of a long name"]))}
            if draw(st.booleans()):
                r["noisy"] = "it spreads"
            for key in draw(st.lists(st.sampled_from(sorted(set(r) - {"op", "case", "dtype", "backend", "device", "status"})))):
                r.pop(key, None)
            out.append(r)
    return out


@settings(max_examples=120, deadline=None)
@given(rows=rows_(), width=st.sampled_from((40, *WIDTHS)))
def test_whatever_rows(rows, width):
    lines = shown(rows, width)
    assert "…" not in "".join(lines) and max(map(cell_len, lines)) <= width
    flat, at = "".join("".join(lines).split()), 0
    cell = {field.name: field.text for field in fields.FIELDS}
    for r in rows:
        for text in (units.plain(r["backend"]), cell["time"](r), cell["speedup"](r)):
            text = "".join(text.split())
            assert text in flat[at:], (text, lines)
            at = flat.index(text, at) + len(text)


@given(seconds, st.floats(1e-12, 1e12))
def test_figures_are_never_nothing(t, x):
    """To three digits or so, in a unit that leaves at most four before the point."""
    scale = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
    number, unit = units.time_text(t).split()
    assert float(number) * scale[unit] == pytest.approx(t, rel=0.06) and float(number) <= 1000
    assert float(units.ratio(x)[:-1]) == pytest.approx(x, rel=0.06)
    number, _, unit = units.prefixed(x, "B/s").partition(" ")
    assert float(number) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[unit.removesuffix("B/s")] == pytest.approx(x, rel=0.01)


def test_figures():
    assert [units.time_text(t) for t in (0, 8.2e-9, 1.23e-5, 999.96e-6, 4.56e-3, 1.2, 1000)] == [
        "0 s", "8.2 ns", "12.3 us", "1.00 ms", "4.56 ms", "1.20 s", "1000 s"]
    assert [units.prefixed(x, "FLOP/s") for x in (8.3e8, 9.999e8, 1.5e12, 12)] == ["830 MFLOP/s", "1 GFLOP/s", "1.5 TFLOP/s", "12 FLOP/s"]
    assert [units.prefixed(x, "B/s", True) for x in (1.1e10, 1e11, 5.0, 0.5)] == ["11.0 GB/s", "100 GB/s", "5.00 B/s", "0.500 B/s"]
    assert [units.percent(x) for x in (0.98, 0.042, 1e-5, 0)] == ["98%", "4.2%", "0.001%", "0.0%"]


# --- widths, away from a terminal and at one ---------------------------------------------------------------------------


def test_width_away_from_a_terminal(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert screen.console().width == 120 and asm.console().width == 200
    for told, width in (("80", 80), ("200", 200), ("none", None), ("0", None), ("-5", None), ("\u00b2", None), ("", None)):
        monkeypatch.setenv("COLUMNS", told)
        assert [screen.console().width, screen.console(stderr=True).width, asm.console().width] == [width or 120, width or 120, width or 200]


@pytest.mark.parametrize("told", ("0", "-5", "wide"))
def test_columns_that_are_no_width_swallow_nothing(monkeypatch, capsys, tmp_path, told):
    """Rich takes 0 as it is and prints nothing. A comparison has the width that every table has away from a terminal, and what a study leaves out is said."""
    from triport.bench.models import common
    from triport.tools.__main__ import main
    monkeypatch.setenv("COLUMNS", told)
    assert main(["bench", "--compare", *map(str, written(tmp_path, a=made("of " + "x" * 200), b=made()))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines and 100 < max(map(cell_len, lines)) <= 120, lines
    study = types.SimpleNamespace(left_out={"cuda": "no GPU"})
    monkeypatch.setattr(common.study, "run", lambda studies, *rest: len(list(studies)) * 0)
    monkeypatch.setattr(common.report, "show", lambda *rest: None)
    args = types.SimpleNamespace(show_inductor=False, columns=None, json=None, csv=None, markdown=None, reps=1, device="cpu", wide=False, plot=None, html=None)
    common.measure([study], args)
    assert "cuda is left out: no GPU" in capsys.readouterr().err


SCRIPT = """import sys; sys.path[:0] = [{tests!r}]
import conftest, test_screen
from triport.bench import screen
screen.show({{"machine": {{}}, "rows": test_screen.ROWS}}, screen.console())"""


def at_terminal(width: int, **env) -> str:
    """What comes out at a terminal of so many fields."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    clean = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")}
    p = subprocess.Popen([sys.executable, "-c", SCRIPT.format(tests=str(ROOT / "tests"))], stdin=follower, stdout=follower, stderr=follower,
                         env={**clean, "TERM": "xterm-256color", **env})
    os.close(follower)
    out = b""
    try:
        while chunk := os.read(leader, 65536):
            out += chunk
    except OSError:  # Linux' way to say that the other side is closed
        pass
    os.close(leader)
    assert p.wait(HANGS) == 0, out.decode()
    return out.decode()


@pytest.mark.parametrize("width", (80, 120))
def test_at_a_terminal(width):
    text = at_terminal(width)
    lines = re.sub(r"\x1b\[[\d;]*m", "", text).splitlines()
    assert "\x1b[32m" in text and "\x1b[31m" in text and max(map(cell_len, lines)) <= width
    assert [r["backend"] for r in read(lines)] == [r["backend"] for r in ROWS] and any(f"not shown at {width} columns" in x for x in lines)
    assert not re.search(r"\x1b\[[\d;]*3[0-9]", at_terminal(width, NO_COLOR="1"))


# --- while it runs ---------------------------------------------------------------------------------------------------


def test_a_line_for_each_case_away_from_a_terminal(capsys):
    rows = []
    with progress.shown(rows) as display:
        display.tick(0, 2, "softmax 1823x781 fp32")
        assert not capsys.readouterr().err
        rows += ROWS[:3]
        display.tick(1, 2, "gelu")
        assert capsys.readouterr().err == "[1/2] softmax 1823x781 fp32: triton-cpu 31.0 us, 3.23x of torch\n"
        rows += ROWS[3:7]
        display.tick(2, 2, "")
    said = capsys.readouterr().err
    assert said.startswith("[2/2] gelu 4096x4096,4096x4096t,dim=0 bf16: triton-cpu 812 s, 1.2e-07x of torch, noisy; cuda WRONG; variant failed (RuntimeError: ")
    assert progress.line([new()]) == "softmax 1823x781 fp32: torch 100.0 us"


# --- in words --------------------------------------------------------------------------------------------------------


def test_the_last_lines_say_what_was_found():
    rows = [new(case="a"), new(case="a", backend="torch-compile", t=5e-5), new(case="a", backend="triton-cpu", t=2.5e-5),
            new(case="b"), new(case="b", backend="torch-compile", t=2e-4), new(case="b", backend="triton-cpu", t=1e-4),
            new(case="c"), new(case="c", backend="triton-cpu", t=1e-6, speedup_is="noisy", noisy="It spreads.")]
    text = " ".join(line.strip() for line in shown(rows, 120, {"busy": "a core of two was taken"}))
    assert "The machine was busy: a core of two was taken" in text
    assert "1 of 8 rows is noisy, not to be relied on: softmax c fp32 on triton-cpu. Why, of softmax c fp32 on triton-cpu: It spreads." in text
    assert ("triton-cpu: 2.00x torch's speed, the geometric mean of 2 rows (1 more noisy); best 4.00x (softmax a fp32), worst 1.00x (softmax b fp32)."
            in text), "a noisy figure is in no mean"
    assert "triton-cpu: 2.00x torch-compile's speed, the geometric mean of 2 rows; best 2.00x (softmax a fp32), worst 2.00x (softmax a fp32)." in text
    assert "8 of 8 results right: all of them." in text


def test_no_metric_can_have_a_columns_name():
    """What ops refuse is what the table has."""
    from triport.ops.records import FIGURES
    assert FIGURES == fields.NAMES


def test_noisy_rows_are_in_no_mean():
    """Nor does a ratio hold that the rounds are not sure of."""
    pace = "The machine slowed down."
    rows = [r for case in "ab" for r in (new(case=case, unsteady=pace, noisy="It spreads."), new(case=case, backend="triton-cpu", t=5e-5, unsteady=pace, noisy="It spreads."))]
    text = " ".join(sentence for _, sentence in words.words(rows))
    assert "All 4 rows are noisy, not to be relied on. Why, of softmax a fp32 on torch: It spreads." in text
    assert "4 of 4 times, marked ~, may be others in another run (softmax a fp32 on torch: The machine slowed down)." in text and "hold" not in text
    assert text.endswith("triton-cpu: 2 rows beside torch's, all of them noisy: no mean of their speeds.")
    assert words.mean("triton-cpu", "torch", rows) is None and formats.verdict(rows) == "4 of 4 results right"
    assert "triton-cpu: 2.00x torch's speed (softmax a fp32, noisy)." in words.speeds(rows[:2]), "one figure is no mean"
    del rows[1]["noisy"]
    text = " ".join(sentence for _, sentence in words.words(rows))
    assert "ratios, measured side by side, hold where they are not noisy." in text and words.mean("triton-cpu", "torch", rows) == 2.0
    del rows[3]["noisy"]
    assert "ratios, measured side by side, hold." in words.words(rows)[1][1]


def test_rows_above_the_roof_say_why():
    """Caches are faster than memory, whose limit it is; of what is larger than they are only a figure can be wrong."""
    limits = {"cpu": {"bytes_per_s": 4e10, "flop_per_s": 2e11, "cache_bytes": 1 << 20}}
    held = {"roofline": 1.8, "bytes": 1 << 20, "flops": 100}
    rows = [new(case="a", **held), new(case="b", **held | {"roofline": 1.2}), new(case="c", **held | {"bytes": 2 << 20}), new(case="d", **held | {"bytes": 8, "flops": 1 << 30}),
            new(case="e", roofline=1.004, bytes=8, flops=8)]
    for r in rows:
        r["device"] = "cpu"
    text = words.remarks({"machine": {"roofline": limits}, "rows": rows})
    assert text == ["softmax a fp32 on torch is at 180% of the roof, as 1 other: their data stay in the caches.",
                    "softmax c fp32 on torch is at 180% of the roof, as 1 other: their time is noisy, or the roof was measured while the machine was slower."]
    assert words.remarks({"machine": {}, "rows": rows}) == []


def test_the_caches_that_are_used(monkeypatch, tmp_path):
    """Each once, whoever shares it, of the level that holds most."""
    from pathlib import Path

    from triport.bench import roofline
    for cpu in range(3):
        for n, (kind, level, shared, size) in enumerate((("Data", 1, cpu, "48K"), ("Instruction", 1, cpu, "99999K"), ("Unified", 2, cpu, "1024K"), ("Unified", 3, "0-1" if cpu < 2 else 2, "4096K"))):
            folder = tmp_path / f"cpu{cpu}/cache/index{n}"
            folder.mkdir(parents=True)
            for name, text in (("type", kind), ("level", level), ("shared_cpu_list", shared), ("size", size)):
                (folder / name).write_text(f"{text}\n")
    monkeypatch.setattr(roofline, "Path", lambda text: Path(text.replace("/sys/devices/system/cpu", str(tmp_path))))
    monkeypatch.setattr(roofline.os, "sched_getaffinity", lambda pid: {0, 1, 2})
    assert roofline.cache_bytes() == 8 << 20
    monkeypatch.setattr(roofline.os, "sched_getaffinity", lambda pid: {0, 7})
    assert roofline.cache_bytes() == 4 << 20


def test_cpu_time_is_the_mean_of_all_calls():
    """What is counted in ticks has no median that means something: of rounds of 1 or 2 ticks it is one of these."""
    from triport.bench import clock
    from triport.bench.measure import Measurement
    ticks = [1.79e-4, 2.19e-4, 2.19e-4, 1.79e-4, 2.19e-4]
    cpu = {c.name: c for c in fields.of([new()])}["cpu"]
    assert cpu.text(new(cpu_s=clock.summary(ticks))) == "203.0 us" and Measurement("a", [1e-4] * 5, ticks, 9, 1e-3).cpu == pytest.approx(2.03e-4)


def test_many_noisy_rows_are_counted():
    rows = [new(case=str(n), backend=b, speedup_is="noisy") for n in range(6) for b in ("torch", "x")]
    assert words.words(rows)[0] == ("remark", "All 12 rows are noisy, not to be relied on.")
    assert words.words([*rows, new(op="gelu")])[0] == ("remark", "12 of 13 rows are noisy, not to be relied on: softmax 0 fp32 on torch, x; softmax 1 "
                                                       "fp32 on torch, x; softmax 2 fp32 on torch, x; softmax 3 fp32 on torch, x; and 4 more.")


def test_a_ratio_of_other_columns_is_taken_round_by_round():
    """Rounds pair: what slowed one slowed the other."""
    a, b = new(backend="triton-cpu", rounds_s=[1.0, 2.0, 9.0]), new(backend="torch-compile", rounds_s=[2.0, 4.0, 18.0])
    a["wall_s"], b["wall_s"] = {"p50": 2.0}, {"p50": 4.4}
    assert words.speedup(a, "torch-compile", b) == 2.0
    del a["rounds_s"]
    assert words.speedup(a, "torch-compile", b) == 2.2


def test_a_baseline_of_ones_own():
    rows = [new(backend="manual", baseline="manual"), new(backend="fast", baseline="manual", speedup=3.0)]
    assert "vs manual" in read(shown(rows, 80))[1] and "fast: 3.00x manual's speed (softmax 1823x781 fp32)." in shown(rows, 80)
    both = shown([*rows, new(op="gelu")], 80)
    assert "softmax 1823x781 fp32 (vs manual)" in both and "gelu 1823x781 fp32 (vs torch)" in both and read(both)[1]["vs baseline"] == "3.00x"


def test_the_docs_have_every_column():
    text = (ROOT / "docs/table.md").read_text()
    rows = [tuple(c.strip().strip("`") for c in line.split("|")[1:-1]) for line in text.splitlines() if line.startswith("| `")]
    assert rows[1:] == [(c.name, c.header if c.name != "speedup" else "vs torch", c.meaning) for c in fields.FIELDS]
    assert ", ".join(f"`{n}`" for n in fields.LEAVE) + ". Never `backend`, `time` and `speedup`." in " ".join(text.split())


@pytest.mark.parametrize("width", WIDTHS)
def test_a_long_name_takes_no_figures_place(width):
    """It has a line of its own above its figures, and the same columns stand as without it."""
    rows = [new(), new(backend="x" * 300)]
    lines, plain = shown(rows, width), shown([new(), new(backend="x")], width)
    heads = [next(line for line in text if line.startswith("  backend")) for text in (lines, plain)]
    assert heads[0] == heads[1] and max(map(len, lines)) <= width
    figures = next(line for line in plain if line.startswith("  x"))
    assert "   " + figures[3:] in lines and "x" * 300 in "".join(line.strip() for line in lines)
