"""`triport bench --compare`: ratios, noise bands, exit codes."""

import copy
import json
import random
import re

import pytest
from triport.backends.base import Error
from triport.bench import changes as compare
from triport.bench import clock, results
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
    return {c.key[::3]: c.verdict for c in compare.compare(old, new)}


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
    changes = {c.key[::3]: c for c in compare.compare(made(BASE), made(new, seed=2))}
    c = changes["a", "triton-cpu"]
    assert c.verdict == verdict and abs(c.ratio / factor - 1) < 0.02 and 0.03 <= c.band < 0.04 and c.basis == "torch"
    assert changes["b", "triton-cpu"].verdict == "same"


def test_noisy_rounds_widen_the_band():
    new = {**BASE, ("a", "triton-cpu"): 5e-4 * 1.1}
    got = {c.key[::3]: c for c in compare.compare(made(BASE, noise=0.3), made(new, noise=0.3, seed=2))}["a", "triton-cpu"]
    assert got.band > 0.12 and got.verdict == "same"


def test_files_without_rounds():
    old, new = made(BASE), made({**BASE, ("a", "triton-cpu"): 1e-3})
    for r in old["rows"] + new["rows"]:
        del r["rounds_s"]
    got = {c.key[::3]: c for c in compare.compare(old, new)}["a", "triton-cpu"]
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
    assert code == 1 and "broken" in text and "threads: 2 before, 16 now" in text
    assert run(paths["other"])[0] == 2 and run(tmp_path / "none.json")[0] == 2


@pytest.mark.parametrize("text,said", [
    ("[1, 2]", "its JSON is a list"), ('"text"', "its JSON is a str"), ("null", "its JSON is a NoneType"), ("no JSON", "Expecting value"),
    ("[" * 100000, "recursion"), ('{"rows": []}', "has schema None"), ('{"schema": 3, "machine": {}, "rows": []}', "has schema 3; this version reads 1 and 2"),
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
    assert compare.first_launches(old, new) == "first launch of a new process, median of 2: 600.00 ms before, 30.00 ms now"
    paths = [tmp_path / "old.json", tmp_path / "new.json"]
    for path, data in zip(paths, (new, old)):  # backwards: slower by far
        path.write_text(json.dumps(data))
    assert main(["bench", "--compare", *map(str, paths)]) == 0
    assert "30.00 ms before, 600.00 ms now" in capsys.readouterr().out
    for row in old["rows"]:
        row["first_call_s"] = {"cold": 1.0, "disk": 0.003}
    assert compare.first_launches(old, new) is None


def test_a_board_against_a_laptop():
    """triton-cpu there is what spine is here; a slower board is no regression, a wrong result is one."""
    def rows(backend, *times, status="ok"):
        return [{"op": "softmax", "case": "8x8", "dtype": "fp32", "backend": backend, "status": status, "rounds_s": list(times),
                 "wall_s": {"p20": times[0], "p50": times[0], "p80": times[0]}}]

    laptop = {"machine": {"cpu": "L"}, "rows": rows("torch", 1e-3, 1e-3) + rows("triton-cpu", 1e-3, 1e-3)}
    board = {"machine": {"cpu": "L", "board": {"runner": "ssh:k1", "cpu": "spacemit,x60", "target": "spacemit-x60"}}, "rows": rows("spine", 5e-3, 5e-3)}
    (change,) = compare.compare(laptop, board)
    assert (change.verdict, round(change.ratio, 6), change.is_regression, change.key[3]) == ("slower", 5.0, False, "spine")
    assert compare.differences(laptop, board) == ["kernels ran on: this machine before, ssh:k1 (spacemit,x60, spacemit-x60) now"]
    board["rows"] = rows("spine", 5e-3, 5e-3, status="wrong")
    assert compare.compare(laptop, board)[0].is_regression
    board["rows"] = rows("spine", 5e-3, 5e-3)
    later = {**board, "rows": rows("spine", 9e-3, 9e-3)}
    assert compare.compare(board, later)[0].is_regression  # one board, twice
