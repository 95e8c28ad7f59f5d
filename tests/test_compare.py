"""`triport bench --compare`: ratios, noise bands, exit codes."""

import copy
import json
import random
import re

import pytest
import results_files
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from triport.backends.base import Error
from triport.bench import changes
from triport.bench import changes_report
from triport.bench import clock, noise, results
from triport.tools.__main__ import main

MACHINE = {"cpu": "X", "threads": 2, "torch": "1", "triton": "1", "LLVM": "1", "python": "3"}


def made(times: dict, noise=0.01, drift=1.0, seed=0):
    """A results file: {(op, backend): seconds}, ten rounds that vary by `noise` and, all candidates together, by a tenth."""
    rng = random.Random(seed)
    shared = [drift * rng.uniform(0.9, 1.1) for _ in range(10)]
    rows = []
    for (op, backend), t in times.items():
        wall = [t * s * rng.uniform(1 - noise, 1 + noise) for s in shared]
        rows.append({"op": op, "case": "8x8", "dtype": "fp32", "backend": backend, "status": "ok", "wall_s": clock.summary(wall),
                     "rounds_s": wall})
    return {"schema": 1, "complete": True, "machine": dict(MACHINE), "rows": rows}


BASE = {("a", "torch"): 1e-3, ("a", "triton-cpu"): 5e-4, ("b", "torch"): 2e-3, ("b", "triton-cpu"): 1e-3}


def verdicts(old, new):
    return {(c.key.op, c.key.backend): c.verdict for c in changes.compare(old, new)}


def test_drift_of_the_machine_is_not_a_change():
    """All times doubled: torch's own rows are what the others are measured by; alone they are judged."""
    got = verdicts(made(BASE), made(BASE, drift=2.0, seed=1))
    assert got["a", "triton-cpu"] == got["b", "triton-cpu"] == "same"
    assert got["a", "torch"] == "yardstick"
    alone = {k: t for k, t in BASE.items() if k[1] == "torch"}
    assert set(verdicts(made(alone), made(alone, drift=2.0, seed=1)).values()) == {"slower"}


@pytest.mark.parametrize("factor,verdict", [(1.2, "slower"), (0.8, "faster"), (1.01, "same")])
def test_a_change_beyond_the_noise(factor, verdict):
    new = {**BASE, ("a", "triton-cpu"): 5e-4 * factor}
    found = {(c.key.op, c.key.backend): c for c in changes.compare(made(BASE), made(new, seed=2))}
    c = found["a", "triton-cpu"]
    assert c.verdict == verdict and abs(c.ratio / factor - 1) < 0.02 and 0.03 <= c.band < 0.04 and c.basis == "torch"
    assert found["b", "triton-cpu"].verdict == "same"


def test_noisy_rounds_widen_the_band():
    new = {**BASE, ("a", "triton-cpu"): 5e-4 * 1.1}
    got = {(c.key.op, c.key.backend): c for c in changes.compare(made(BASE, noise=0.3), made(new, noise=0.3, seed=2))}["a", "triton-cpu"]
    assert got.band > 0.12 and got.verdict == "same"


def test_rounds_of_two_kinds_are_no_regression(tmp_path, capsys):
    """A busy machine: the baseline takes one time or fifty times as long, and medians fall on either side. Nobody can tell, and the exit code is 0."""
    def rows(torch_rounds):
        out = made({("a", "torch"): 1e-4, ("a", "triton-cpu"): 1e-4})
        for r, rounds in zip(out["rows"], (torch_rounds, [1e-4] * 5)):
            r |= {"rounds_s": rounds, "wall_s": clock.summary(rounds)}
        return out

    old, new = rows([5e-3, 5e-3, 5e-3, 4.9e-3, 1e-4]), rows([1e-4, 1.1e-4, 1e-4, 1e-4, 5e-3])
    change = next(c for c in changes.compare(old, new) if c.key.backend == "triton-cpu")
    assert change.ratio > 1 + 10 * change.band and change.verdict == "noisy" and not change.is_regression
    assert main(["bench", "--compare", *map(str, results_files.written(tmp_path, a=old, b=new))]) == 0
    assert "0 slower, 0 broken, 0 faster, 0 same, 1 noisy" in capsys.readouterr().out


@pytest.mark.parametrize("spoil", [lambda rows: rows[1].update(noisy="It spreads."), lambda rows: [r.update(rounds_s=r["rounds_s"][:1]) for r in rows],
                                   lambda rows: rows[0].update(noisy="so does torch")])
def test_what_a_run_calls_noisy_is_no_regression(spoil):
    """However far a row has moved: one round, a row's own doubts, or those of the yardstick."""
    rows = [{"op": "a", "case": "1", "dtype": "fp32", "backend": b, "status": "ok", "wall_s": {"p20": 1e-3, "p50": 1e-3, "p80": 1e-3}, "rounds_s": [1e-3] * 8}
            for b in ("torch", "triton-cpu")]
    old, new = ({"machine": {}, "rows": copy.deepcopy(rows)} for _ in range(2))
    new["rows"][1] |= {"rounds_s": [5e-3] * 8, "wall_s": {"p20": 5e-3, "p50": 5e-3, "p80": 5e-3}}
    assert next(c for c in changes.compare(old, new) if c.key.backend == "triton-cpu").is_regression
    for spoilt in (old, new):
        one, other = copy.deepcopy(old), copy.deepcopy(new)
        spoil((one if spoilt is old else other)["rows"])
        change = next(c for c in changes.compare(one, other) if c.key.backend == "triton-cpu")
        assert change.verdict == "noisy" and not change.is_regression and change.noisy


@pytest.mark.parametrize("spoil", [lambda rows: rows[1].update(noisy="It spreads."), lambda rows: rows[0].update(noisy="so does torch"),
                                   lambda rows: [r.update(rounds_s=r["rounds_s"][:4]) for r in rows]])
@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_what_nobody_can_tell_is_not_the_same(spoil, factor, tmp_path, capsys):
    """Within a band of some hundred percent lies a row that takes four times as long; and what a run calls noisy is not known to be the same, either."""
    def rows(t, seed):
        rng = random.Random(seed)
        out = made({("a", "torch"): 1e-3, ("a", "triton-cpu"): t}, seed=seed)
        rounds = [t * rng.choice([0.2, 1, 5]) for _ in range(10)]
        out["rows"][1] |= {"rounds_s": rounds, "wall_s": clock.summary(rounds)}
        return out

    old, new = rows(5e-4, 1), rows(5e-4 * factor, 1)
    spoil(new["rows"])
    change = next(c for c in changes.compare(old, new) if c.key.backend == "triton-cpu")
    assert change.band > 2 and change.verdict == "noisy" and not change.is_regression
    assert main(["bench", "--compare", *map(str, results_files.written(tmp_path, a=old, b=new)), "--format", "markdown"]) == 0
    assert "**No row is slower beyond the noise, none is no longer right; of 1 nobody can tell.**" in capsys.readouterr().out


def test_a_band_that_is_too_wide_is_noise_although_no_file_says_so():
    """Of files of before, which said nothing of noise."""
    data = [made({("a", "torch"): 1e-3, ("a", "triton-cpu"): t}, noise=0.6, seed=1) for t in (5e-4, 6e-4)]
    change = next(c for c in changes.compare(*data) if c.key.backend == "triton-cpu")
    assert change.band > changes.WIDE and abs(change.ratio - 1) < change.band and change.verdict == "noisy"


def test_intervals_of_a_median():
    """Order statistics, as in tables: of 5 values all, of 6 all, of 9 the 2nd to the 8th, of 10 the 2nd to the 9th, of 20 the 6th to the 15th."""
    assert [noise.interval(list(range(1, n + 1))) for n in (1, 2, 5, 6, 9, 10, 20)] == [(1, 1), (1, 2), (1, 5), (1, 6), (2, 8), (2, 9), (6, 15)]


def test_files_without_rounds():
    old, new = made(BASE), made({**BASE, ("a", "triton-cpu"): 1e-3})
    for r in old["rows"] + new["rows"]:
        del r["rounds_s"]
    got = {(c.key.op, c.key.backend): c for c in changes.compare(old, new)}["a", "triton-cpu"]
    assert got.basis == "wall" and got.verdict == "slower" and 1.8 < got.ratio < 2.2


def test_command(tmp_path, capsys):
    """Exit 0 without regressions; 1 for a slower row and for one that is no longer right; 2 for files that are none or share nothing."""
    paths = {n: tmp_path / f"{n}.json" for n in ("old", "same", "slow", "wrong", "other")}
    wrong = copy.deepcopy(made(BASE, seed=3))
    wrong["rows"][1] = {k: v for k, v in wrong["rows"][1].items() if k not in ("wall_s", "rounds_s")} | {"status": "wrong"}
    wrong["machine"]["threads"] = 16
    data = {"old": made(BASE), "same": made(BASE, seed=4), "slow": made({**BASE, ("b", "triton-cpu"): 2e-3}, seed=5), "wrong": wrong,
            "other": made({("c", "torch"): 1.0})}
    for n, d in data.items():
        paths[n].write_text(json.dumps(d))

    def run(new):
        code = main(["bench", "--compare", str(paths["old"]), str(new)])
        return code, "".join(capsys.readouterr())

    assert run(paths["same"])[0] == 0
    code, text = run(paths["slow"])
    assert code == 1 and "1 slower" in text and "2.0" in text
    code, text = run(paths["wrong"])
    assert code == 1 and "broken" in text and "threads: 2 in A, 16 in B" in text
    assert run(paths["other"])[0] == 2 and run(tmp_path / "none.json")[0] == 2


@pytest.mark.parametrize("text,said", [
    ("[1, 2]", "its JSON is a list"), ('"text"', "its JSON is a str"), ("null", "its JSON is a NoneType"), ("no JSON", "Expecting value"),
    ("[" * 100000, "recursion"), ('{"rows": []}', "has schema None"), ('{"schema": 3, "machine": {}, "rows": []}', "has schema 3; this version reads 1 and 2"),
    ('{"schema": true, "machine": {}, "rows": []}', "has schema True"), ('{"schema": [1], "machine": {}, "rows": []}', "has schema a list"),
    ('{"schema": 1, "machine": {}}', "its 'rows' is missing"), ('{"schema": 1, "machine": [], "rows": []}', "its 'machine' is of another kind")])
def test_what_is_no_results_file(tmp_path, text, said):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(Error, match=re.escape(said)):
        results.load(path)


def test_first_launches_are_told_and_not_judged(tmp_path, capsys):
    """Files of before, whose first calls have no new process, are taken as they are."""
    old, new = made(BASE), made(BASE)
    for data, seconds in ((old, (0.5, 0.7)), (new, (0.02, 0.04))):
        ours = [r for r in data["rows"] if r["backend"] == "triton-cpu"]
        for row, t in zip(ours, seconds):
            row["first_call_s"] = {"cold": 1.0, "reload": 0.003, "process": t}
    runs = [changes.Run("A", "old.json", old), changes.Run("B", "new.json", new)]
    assert changes.first_launches(runs) == "first launch of a new process, median of 2: 600.00 ms in A, 30.00 ms in B"
    paths = [tmp_path / "old.json", tmp_path / "new.json"]
    for path, data in zip(paths, (new, old)):  # backwards: slower by far
        path.write_text(json.dumps(data))
    assert main(["bench", "--compare", *map(str, paths)]) == 0
    assert "30.00 ms in A, 600.00 ms in B" in capsys.readouterr().out
    for row in old["rows"]:
        row["first_call_s"] = {"cold": 1.0, "disk": 0.003}
    assert changes.first_launches(runs) is None


def test_a_board_against_a_laptop():
    """triton-cpu there is what spine is here; a slower board is no regression, a wrong result is one."""
    def rows(backend, *times, status="ok"):
        return [{"op": "softmax", "case": "8x8", "dtype": "fp32", "backend": backend, "status": status, "rounds_s": list(times) * 3,
                 "wall_s": {"p20": times[0], "p50": times[0], "p80": times[0]}}]

    laptop = {"machine": {"cpu": "L"}, "rows": rows("torch", 1e-3, 1e-3) + rows("triton-cpu", 1e-3, 1e-3)}
    board = {"machine": {"cpu": "L", "board": {"runner": "ssh:k1", "cpu": "spacemit,x60", "target": "spacemit-x60"}}, "rows": rows("spine", 5e-3, 5e-3)}
    (change,) = changes.compare(laptop, board)
    assert (change.verdict, round(change.ratio, 6), change.is_regression, change.key.backend) == ("slower", 5.0, False, "spine")
    assert changes.differences(laptop, board) == ["kernels ran on: this machine in A, ssh:k1 (spacemit,x60, spacemit-x60) in B"]
    board["rows"] = rows("spine", 5e-3, 5e-3, status="wrong")
    assert changes.compare(laptop, board)[0].is_regression
    board["rows"] = rows("spine", 5e-3, 5e-3)
    later = {**board, "rows": rows("spine", 9e-3, 9e-3)}
    assert changes.compare(board, later)[0].is_regression  # one board, twice


def test_torch_of_two_machines_is_named_and_not_compared():
    laptop = made(BASE)
    board = made({("a", "spine"): 1e-2})
    board["machine"]["board"] = {"runner": "ssh:k1", "cpu": "x60", "target": "x60"}
    result = changes.beside([("laptop", laptop), ("board", board)])
    assert "between A and B, which are of two machines, torch is not compared: 2 rows (a 8x8 fp32 torch, b 8x8 fp32 torch) of A" in result.remarks
    assert not any("torch is not compared" in r for r in changes.beside([("x", laptop), ("y", laptop)]).remarks)


def test_totals_are_of_all_rows():
    """Every row is in one of the counts: yardsticks, what is right in one only, and what has no partner, too."""
    old, new = made({**BASE, ("c", "torch"): 1.0, ("d", "torch"): 1.0, ("e", "torch"): 1.0}), made({**BASE, ("b", "triton-cpu"): 3e-3, ("d", "torch"): 1.0, ("e", "torch"): 1.0, ("f", "torch"): 1.0}, seed=1)
    for data, ops in ((old, "de"), (new, "e")):
        for r in data["rows"]:
            if r["op"] in ops:
                r["status"] = "wrong"
    result = changes.beside([("x", old), ("y", new)])
    said = changes_report.data(result)
    assert sum(said["count"].values()) == len(said["rows"]) == 8
    assert said["count"] == {"slower": 1, "broken": 0, "faster": 0, "same": 1, "noisy": 0, "yardstick": 2, "mended": 1, "not right in either": 1, "only old": 1, "only new": 1}
    assert "B against A: 1 slower, 0 broken, 0 faster, 1 same, 2 yardstick, 1 mended, 1 not right in either, 1 only old, 1 only new" in said["words"]


@pytest.mark.parametrize("base, factor, said", [("manual", 2.0, True), ("manual", 1.01, False), ("torch", 2.0, False)])
def test_a_baseline_of_ones_own_that_moved_is_named(base, factor, said):
    """It and what is measured by it took twice as long: no row is slower, and a sentence says what happened. Of torch nobody asks."""
    old, new = (made({("a", base): f * 1e-3, ("a", "fused"): f * 5e-4}, seed=n) for n, f in enumerate((1.0, factor)))
    for data in (old, new):
        for r in data["rows"]:
            r["baseline"] = base
    result = changes.beside([("x", old), ("y", new)])
    assert not result.regressions
    found = [r for r in changes_report.remarks(result) if "the baseline itself moved" in r]
    assert len(found) == said and all("1 row (a 8x8 fp32 manual), " in r for r in found)


def screen(result, width):
    with Console(width=width, record=True, file=open("/dev/null", "w"), legacy_windows=False) as console:
        changes_report.show(result, console)
    return console.export_text().splitlines()


def three(**more):
    """A base, one of its kind, and one with a row slower, one missing and one of its own."""
    slow = made({**BASE, ("b", "triton-cpu"): 2e-3, ("c", "torch"): 1.0}, seed=2)
    del slow["rows"][2]
    return changes.beside([("base.json", made(BASE)), ("same.json", made(BASE, seed=1)), ("a long name of a file.json", slow)])


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_a_table_fits_its_screen(width):
    """Each figure of each run is there whole, at any width; runs that have no room beside the others come below."""
    result = three()
    lines = screen(result, width)
    assert all(len(line) <= width for line in lines)
    titles = [line.split() for line in lines if line.split()[:1] == ["A"] and "noise" in line]
    assert [t[1] for t in titles] == (["B", "C"] if width < 106 else ["B"]) and (width < 106 or "C/A" in titles[0])
    headings = [n for n, line in enumerate(lines) if line.strip() == "b  8x8  fp32"]
    assert len(headings) == len(titles)
    shown = "\n".join(lines)
    for found in result.changes.values():
        for c in found:
            if c.ratio is not None:
                assert f"{c.ratio:.2f}" in shown and changes_report.time_text(c.new_s) in shown
    assert "triton-cpu" in shown and "\u2026" not in shown
    words = " ".join(shown.split())
    assert "in A and not in C: 1 row (b 8x8 fp32 torch)" in words and "in C and not in A: 1 row (c 8x8 fp32 torch)" in words
    assert "B against A: 0 slower, 0 broken, 0 faster" in words and "C against A: 1 slower" in words


@pytest.mark.parametrize("width", [10, 40, 50])
def test_figures_stay_whole_on_a_narrow_screen(width):
    """A terminal folds what is too long for it; nothing is left out."""
    result = three()
    shown = "\n".join(screen(result, width))
    for found in result.changes.values():
        for c in found:
            if c.ratio is not None:
                assert f"{c.ratio:.2f}" in shown and changes_report.time_text(c.new_s) in shown


def test_long_names_fold_and_figures_stay():
    data = [made({("a", "torch"): 1e-3, ("a", "a_variant_with_a_name_" * 4): 1e-3}, seed=n) for n in range(2)]
    lines = screen(changes.beside(list(zip("xy", data))), 80)
    assert all(len(line) <= 80 for line in lines) and sum("1.00 ms" in line or "ms" in line for line in lines) >= 2
    assert "a_variant_with_a_name_" * 4 in "".join(re.findall("[a-z_]{9,}", " ".join(lines)))


def test_names_are_text_and_not_markup():
    data = [made({("[red]a[/]", "[/nonsense]"): 1e-3, ("a\x1b[31m", "torch"): 1.0}, seed=n) for n in range(2)]
    shown = "\n".join(screen(changes.beside([("[bold]x", data[0]), ("y", data[1])]), 120))
    assert "[red]a[/]" in shown and "[/nonsense]" in shown and "[bold]x" in shown and "\x1b" not in shown


@pytest.mark.parametrize("name", ["markdown", "github"])
def test_markdown_of_a_comparison(tmp_path, capsys, name):
    if name not in _formats():
        pytest.skip(f"there is no --format {name}")
    paths = results_files.written(tmp_path, a=made(BASE), b=made({**BASE, ("a|b", "torch"): 1.0, ("b", "triton-cpu"): 3e-3}, seed=1))
    assert main(["bench", "--compare", *map(str, paths), "--format", name]) == 1
    text = capsys.readouterr().out
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(BASE) and len({line.count("|") for line in lines}) == 1
    assert "**slower**" in text and "a\\|b" in text


def _formats():
    from triport.tools.__main__ import parser
    return next(a.choices for a in parser()[0].commands()["bench"]._actions if a.dest == "format")


def test_a_comparison_as_data(tmp_path, capsys):
    """--json and --csv have every row, with and without a partner; on stdout there is nothing else."""
    slow = made({**BASE, ("b", "triton-cpu"): 3e-3, ("c", "torch"): 1.0}, seed=1)
    paths = results_files.written(tmp_path, a=made(BASE), b=slow, c=made(BASE, seed=2))
    table = tmp_path / "t.csv"
    assert main(["bench", "--compare", *map(str, paths), "--json", "-", "--csv", str(table)]) == 1
    out, err = capsys.readouterr()
    said = json.loads(out)
    assert said["regressions"] == 1 and said["count"]["slower"] == 1 and len(said["rows"]) == 9 and [f["letter"] for f in said["files"]] == ["A", "B", "C"]
    row = next(r for r in said["rows"] if r["regression"])
    assert (row["op"], row["backend"], row["mode"], row["verdict"], row["basis"]) == ("b", "triton-cpu", "fwd", "slower", "torch")
    assert abs(row["ratio"] / 3 - 1) < 0.05 and row["time_s"] > row["base_s"] > 0
    assert sum(r["verdict"] == "only new" for r in said["rows"]) == 1 and "b  8x8  fp32" in err
    lines = table.read_text().splitlines()
    assert len(lines) == 10 and lines[0].split(",") == list(row)


def test_modes_are_rows_of_their_own():
    """A backward that got slower is not held against a forward; a row that names no mode is a forward."""
    old, new = made({("a", "torch"): 1e-3}), made({("a", "torch"): 1e-3}, seed=1)
    for data, t in ((old, 2e-3), (new, 4e-3)):
        back = made({("a", "torch"): t})["rows"][0]
        data["rows"].append({**back, "mode": "bwd"})
    new["rows"][0]["mode"] = "fwd"
    assert {c.key.mode: c.verdict for c in changes.compare(old, new)} == {"fwd": "same", "bwd": "slower"}


def test_a_baseline_other_than_torch():
    """Rows say what they are measured by: twice as slow together with it is no change, and it is the yardstick."""
    old, new = made({("a", "ours"): 1e-3, ("a", "torch"): 1e-3}), made({("a", "ours"): 2e-3, ("a", "torch"): 2e-3}, seed=1)
    for r in old["rows"] + new["rows"]:
        r["baseline"] = "ours"
    got = {c.key.backend: (c.verdict, c.basis) for c in changes.compare(old, new)}
    assert got == {"ours": ("yardstick", "wall"), "torch": ("same", "ours")}


@pytest.mark.parametrize("status,verdict", [("wrong", "broken"), ("failed", "broken"), ("skipped", "only old")])
def test_what_was_right(status, verdict):
    new = made(BASE)
    new["rows"][1] = {**{k: v for k, v in new["rows"][1].items() if k not in ("wall_s", "rounds_s")}, "status": status}
    found = {(c.key.op, c.key.backend): c for c in changes.compare(made(BASE), new)}
    assert found["a", "triton-cpu"].verdict == verdict and found["a", "triton-cpu"].is_regression == (verdict == "broken")


def test_rows_twice_and_rows_without_times(tmp_path, capsys):
    old, new = made(BASE), made(BASE, seed=1)
    new["rows"].append({**new["rows"][1], "rounds_s": [1.0], "wall_s": {"p20": 1, "p50": 1, "p80": 1}})
    del new["rows"][3]["wall_s"], new["rows"][3]["rounds_s"]
    assert main(["bench", "--compare", *map(str, results_files.written(tmp_path, a=old, b=new))]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "b.json has 1 row (a 8x8 fp32 triton-cpu) more than once; the first counts" in out and "1 not timed" in out


BAD_ROWS = [
    (5, "it is 5, not an object"), ({}, "op is missing"), ({"op": 1}, "op is 1, no text"), ({"status": "good"}, "status is 'good', none of ok"),
    ({"wall_s": [1]}, "wall_s is a list, no summary"), ({"wall_s": {"p20": 1, "p50": 1}}, "wall_s lacks p80"),
    ({"wall_s": {"p20": 1, "p50": float("nan"), "p80": 1}}, "wall_s.p50 is nan, no number of seconds"), ({"rounds_s": [1.0, -1]}, "rounds_s[1] is -1"),
    ({"rounds_s": [10**400]}, "rounds_s[0] is a int"), ({"rounds_s": [True]}, "rounds_s[0] is True"), ({"first_call_s": {"process": "x"}}, "first_call_s.process is 'x'"),
    ({"wall_s": {"p20": 2, "p50": 1, "p80": 3}}, "wall_s has percentiles out of order"), ({"mode": None}, "mode is None, no text")]


@pytest.mark.parametrize("change,said", BAD_ROWS, ids=[b[1] for b in BAD_ROWS])
def test_a_row_that_cannot_be_is_exit_2(tmp_path, capsys, change, said):
    """A verdict on what is left of a damaged file would be none."""
    data = made(BASE)
    data["rows"][1] = change if not isinstance(change, dict) or not change else {**data["rows"][1], **change}
    assert main(["bench", "--compare", *map(str, results_files.written(tmp_path, a=made(BASE), b=data))]) == 2
    err = capsys.readouterr().err
    assert "b.json: its row 2 cannot be read: " + said in err and "Traceback" not in err


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from([10**400, "ok", 1e-3, "torch", "NaN"]),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["p20", "p50", "p80", "process", "runner", "x"]), inner, max_size=4),
                    max_leaves=6)
FIELDS = ["op", "case", "dtype", "backend", "mode", "status", "wall_s", "rounds_s", "device_s", "device_rounds_s", "first_call_s", "baseline", "noisy", "error",
          "metrics"]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_a_file_holds_there_is_no_traceback(tmp_path_factory, data):
    """Any JSON in the place of any field of any file: a comparison, or a sentence and exit code 2."""
    sides = [made(BASE), made(BASE, seed=1)]
    for _ in range(data.draw(st.integers(1, 3))):
        side = data.draw(st.integers(0, 1))
        target = sides[side]
        where = data.draw(st.sampled_from(["file", "machine", "row", "field", "field", "field"]))
        value = data.draw(JSON)
        if not isinstance(target, dict):
            continue
        if where == "file" and data.draw(st.booleans()):
            sides[side] = value
        elif where == "file":
            target[data.draw(st.sampled_from(["schema", "machine", "rows", "complete"]))] = value
        elif where == "machine" and isinstance(target.get("machine"), dict):
            target["machine"][data.draw(st.sampled_from(["cpu", "board", "threads", "torch"]))] = value
        elif isinstance(target.get("rows"), list) and target["rows"]:
            n = data.draw(st.integers(0, len(target["rows"]) - 1))
            if where == "row":
                target["rows"][n] = value
            elif isinstance(target["rows"][n], dict):
                target["rows"][n][data.draw(st.sampled_from(FIELDS))] = value
    folder = tmp_path_factory.getbasetemp()
    paths = results_files.written(folder, **{f"fuzzed-{k}": side for k, side in enumerate(sides)})
    assert main(["bench", "--compare", *map(str, paths), "--json", str(folder / "fuzzed-out.json"), "--markdown", str(folder / "fuzzed-out.md")]) in (0, 1, 2)


def test_bad_input_is_exit_2_and_ours_is_3(tmp_path, capsys, monkeypatch):
    """A list, an empty one, other JSON, a missing file, one file alone: 2. What triport does wrong: 3, and never the 1 of a slower row."""
    good, empty, other = results_files.written(tmp_path, good=made(BASE), empty="[]", other='{"a": 1}')
    for files in ((good, empty), (empty, empty), (good, other), (good, tmp_path / "none.json"), (good,), (good, tmp_path)):
        assert main(["bench", "--compare", *map(str, files)]) == 2
        said = capsys.readouterr()
        assert said.err.startswith("triport bench: ") and len(said.err.splitlines()) == 1 and not said.out
    monkeypatch.setattr(changes, "change_of", lambda *a: 1 / 0)
    assert main(["bench", "--compare", str(good), str(good)]) == 3
    assert capsys.readouterr().err.splitlines()[-1].startswith("triport bench: internal error: ZeroDivisionError: division by zero")


def test_what_runs_say_of_themselves():
    """A busy machine, a noisy figure and an interruption are told beside the verdicts."""
    old, new = made(BASE), made(BASE, seed=1)
    new["machine"]["busy"], new["complete"], old["rows"][1]["noisy"] = "two other processes ran", False, "its spread is 40 %"
    said = changes_report.remarks(changes.beside([("old", old), ("new", new)]))
    assert said[:2] == ["B's machine was busy: two other processes ran", "B was interrupted: rows that would have followed are missing"]
    assert said[2] == "A or B says itself that a figure is noisy: 1 row (a 8x8 fp32 triton-cpu)"


@pytest.mark.parametrize("option", ["--csv", "--json", "--markdown"])
def test_what_is_compared_is_not_written(tmp_path, capsys, option):
    good, = results_files.written(tmp_path, good=made(BASE))
    before = good.read_bytes()
    assert main(["bench", "--compare", str(good), str(good), option, str(good)]) == 2
    assert "it is what the command reads" in capsys.readouterr().err and good.read_bytes() == before


@pytest.mark.parametrize("options,said", [(["--format", "spine"], "--format spine is of a run"), (["--op", "softmax"], "--op is of a run")])
def test_options_that_are_of_a_run(tmp_path, capsys, options, said):
    good, = results_files.written(tmp_path, good=made(BASE))
    assert main(["bench", "--compare", str(good), str(good), *options]) == 2
    assert said in capsys.readouterr().err
