"""Studies: candidates that are wrong are found and not timed, the others are timed in turns; rows are a benchmark's."""

import copy
import statistics

import pytest
import torch
from rich.console import Console
from triport.bench import changes
from triport.bench import clock, report, results, study
from triport.bench.study import Study


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    """A machine's limits are not what is tested here."""
    monkeypatch.setattr(study.roofline, "measure", lambda *a: {"bytes_per_s": 1e10, "flop_per_s": 1e11})


def off_by_one(x):
    out = torch.empty_like(x)
    out.view(-1)[:-1] = x.view(-1)[:-1] * x.view(-1)[:-1]
    out.view(-1)[-1] = 0
    return out


WRONG = {"zeros": torch.zeros_like, "nan": lambda x: torch.full_like(x, float("nan")), "off by one": off_by_one,
         "one nan": lambda x: (x * x).index_fill(0, torch.tensor(3), float("nan")), "shape": lambda x: (x * x)[:-1]}


def squares(seed, **candidates):
    x = torch.randn(33, 7, generator=torch.Generator().manual_seed(seed)) + 3
    return Study("square", "33x7", {"torch": torch.square, **candidates}, (x,), lambda x: x * x, nbytes=2 * x.nbytes, flops=x.numel())


def run(*studies, path=None):
    r = results.Results(path)
    return study.run(studies, r, rounds=3, seconds=0), r


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_candidate_is_found_and_not_timed(name, seed):
    wrong, r = run(squares(seed, **{name: WRONG[name], "product": lambda x: x * x}))
    rows = {row["backend"]: row for row in r.rows}
    assert wrong == 1 and rows[name]["status"] == "wrong" and "wall_s" not in rows[name]
    for right in ("torch", "product"):
        assert rows[right]["status"] == "ok" and rows[right]["error"] <= rows[right]["allowed"] and rows[right]["wall_s"]["n"] == 3


def test_the_reference_is_in_float64(seed):
    x = torch.randn(50, generator=torch.Generator().manual_seed(seed))
    index = torch.arange(50)
    seen = []
    s = Study("take", "50", {"torch": lambda x, i: x[i]}, (x, index), lambda x, i: (seen.append((x.dtype, i.dtype)), x[i])[1])
    assert run(s)[0] == 0 and seen == [(torch.float64, torch.int64)]


def test_a_candidate_that_raises_or_returns_no_tensor_fails(seed):
    wrong, r = run(squares(seed, broken=lambda x: 1 / 0, none=lambda x: None))
    assert wrong == 2 and [row["status"] for row in r.rows] == ["ok", "failed", "failed"]
    assert "ZeroDivisionError" in r.rows[1]["reason"] and "returned NoneType; it takes a tensor" in r.rows[2]["reason"]


def test_a_candidate_that_changes_the_inputs_fails_and_others_get_them_as_they_were(seed):
    s = squares(seed, inplace=lambda x: x.mul_(x), product=lambda x: x * x)
    before = s.inputs[0].clone()
    wrong, r = run(s)
    assert wrong == 1 and "inplace changed input 0" in r.rows[1]["reason"] and r.rows[2]["status"] == "ok"
    assert torch.equal(s.inputs[0], before)


def test_inputs_are_put_right_after_a_candidate_that_raises(seed):
    def spoils(x):
        x.zero_()
        raise ValueError("half way")

    kept = squares(seed)
    s = squares(seed, spoils=spoils, after=lambda x: x * x)
    out = results.Results()
    study.run([s], out, 1)
    status = {r["backend"]: r["status"] for r in out.rows}
    assert status["spoils"] == "failed" and status["after"] == "ok" and torch.equal(s.inputs[0], kept.inputs[0])


def test_several_results_are_all_compared(seed):
    x = torch.randn(20, generator=torch.Generator().manual_seed(seed)) + 2
    good = {"torch": lambda x: (x + 1, x * 2)}
    bad = {"second": lambda x: (x + 1, x * 2.001), "one": lambda x: (x + 1,), "three": lambda x: (x + 1, x * 2, x)}
    wrong, r = run(Study("two", "20", good | bad, (x,), good["torch"]))
    assert wrong == 3 and [row["status"] for row in r.rows] == ["ok", "wrong", "wrong", "wrong"]


def test_a_turn_is_timed_in_place_of_the_call(seed):
    calls, turns = [], []
    s = squares(seed, counted=lambda x: (calls.append(1), x * x)[1])
    s.turns["counted"] = lambda: turns.append(1)
    assert run(s)[0] == 0 and len(calls) == 1 and len(turns) > 5


def test_candidates_take_turns(seed, monkeypatch):
    seen = []
    monkeypatch.setattr(clock, "interleave", lambda candidates, *a, real=clock.interleave: (seen.append(list(candidates)), real(candidates, *a))[1])
    run(squares(seed, nan=WRONG["nan"], product=lambda x: x * x))
    assert seen == [["torch", "product"]], "in one call of the clock, and no wrong one among them"


def test_rows_are_a_benchmarks(tmp_path, seed):
    path = tmp_path / "r.json"
    s = squares(seed, product=lambda x: x * x, zeros=torch.zeros_like)
    s.left_out["cuda"] = "no GPU"
    wrong, r = run(s, path=path)
    data = results.load(path)
    assert data["complete"] and data["rows"] == r.rows and data["machine"]["left_out"] == {"cuda": "no GPU"}
    torch_row, product, _ = data["rows"]
    assert torch_row["speedup"] == 1
    assert product["speedup"] == statistics.median(t / p for t, p in zip(torch_row["rounds_s"], product["rounds_s"], strict=True))
    assert product["gb_per_s"] > 0 and product["tflop_per_s"] > 0 and product["roofline"] > 0 and product["peak_bytes"] >= 33 * 7 * 4
    verdicts = {c.key.backend: c.verdict for c in changes.compare(data, data)}
    assert verdicts.pop("product") in ("same", "noisy") and verdicts == {"torch": "yardstick", "zeros": "not right in either"}
    worse = copy.deepcopy(data)
    worse["rows"][1]["status"] = "wrong"
    assert [c.verdict for c in changes.compare(data, worse) if c.is_regression] == ["broken"]
    for text in (report.markdown(data), report.spine(data)):
        assert "square" in text
    with Console(width=200, record=True, file=open("/dev/null", "w")) as console:
        report.show(data, console)
    shown = console.export_text()
    assert "vs torch" in shown and "WRONG" in shown and "new process" not in shown


def test_speed_ups_are_against_the_base(seed):
    s = squares(seed, product=lambda x: x * x)
    s.base = "product"
    rows = run(s)[1].rows
    assert rows[1]["speedup"] == 1 and "vs product" in report.table(rows, 80)[0][0].plain
