"""`triport tune --on` measures the candidates that a model of the board's CPU predicts to be fastest, and the default."""

import dataclasses
import importlib
from types import SimpleNamespace

import pytest
import torch
import x60_pace
from triport.backends.cpu.llvm import targets
from triport.backends.spine import backend as spine
from triport.bench import prune, search
from triport.bench.prune import NoModel, Prediction, Pruning
from triport.ops import Case, registry, tuning
from triport.tools import predict
from triport.tools.__main__ import main

SQUARE = [(Case(((64, 48),)), "fp32"), (Case(((33, 65),)), "bf16")]


def kept(cycles: dict, most: int, each=(), asked=SQUARE) -> tuple[list, str]:
    """What is measured and what is said, candidates having these predictions: tiles -> one, or one for each case's name."""
    said = []

    def predicted(table, tiles, op, case, dtype):
        found = cycles[tiles]
        return found[case.name] if isinstance(found, dict) else found

    chosen = Pruning(predicted, most).kept("square", "square", {c: c for c in cycles}, registry.get("square"), asked, list(each), said.append)
    return chosen, "\n".join(said)


def test_the_default_and_the_best_are_kept():
    cycles = {"a": Prediction(100), "b": Prediction(300), "c": Prediction(50), "d": Prediction(90), "e": Prediction(200), "f": Prediction(10, fits=False)}
    chosen, said = kept(cycles, 2)
    assert chosen == ["a", "c", "d"], "in their own order, the default first"
    assert "square: 2 left out, with the predicted part of the default's time: e 2.000, b 3.000" in said
    assert "square: 1 left out, whose scratch is more than a thread's share of the cache, with the predicted part of the default's time: f 0.100" in said
    assert kept(cycles, 4)[0] == ["a", "b", "c", "d", "e"] and kept(cycles, 1)[0] == ["a", "c"]
    assert kept(cycles, 0) == (list(cycles), "") and kept(cycles, 5) == (list(cycles), ""), "nothing is predicted where all are measured"


def test_over_cases_it_is_the_geometric_mean():
    """Of 0.1 and 3 that is less than 1; the arithmetic one is more."""
    one, two = (case.name for case, _ in SQUARE)
    cycles = {"a": Prediction(10), "b": {one: Prediction(9), two: Prediction(10)}, "c": {one: Prediction(1), two: Prediction(30)}, "d": Prediction(11)}
    assert kept(cycles, 1)[0] == ["a", "c"]
    small = Case(((2, 2),))
    cycles = {"a": Prediction(10), "b": Prediction(9), "c": {one: Prediction(50), two: Prediction(50), small.name: Prediction(1)}, "d": Prediction(11)}
    assert kept(cycles, 1)[0] == ["a", "b"]
    assert kept(cycles, 1, each=[(small, "fp32")])[0] == ["a", "b", "c"], "the best in a case of its own is measured, whatever it is over the others"


def test_what_has_no_prediction_is_measured():
    cycles = {"a": Prediction(10), "b": Prediction(9), "c": None, "d": Prediction(11)}
    assert kept(cycles, 1)[0] == ["a", "b", "c"]
    chosen, said = kept({**cycles, "a": None}, 1)
    assert chosen == list(cycles) and said.endswith("all 4 candidates are measured: the default's time cannot be predicted")
    assert kept({**cycles, "a": Prediction(0)}, 1)[0] == list(cycles) and kept({**cycles, "d": Prediction(0)}, 1)[0] == list(cycles), "nothing costs 0 cycles"


def test_a_search_measures_what_is_kept(monkeypatch):
    """By seconds and predictions that the test makes up; the best is found by what it took."""
    small = dataclasses.replace(registry.get("square"), cases=(Case(((64, 48),)),))
    tiles = tuning.Tiles("square", cpu={"BLOCK": 1024}, cuda={}, candidates=tuple({"BLOCK": n} for n in (2048, 4096, 512, 256)))
    monkeypatch.setattr(search.registry, "get", lambda name: small)
    monkeypatch.setattr(search, "searches", lambda: {"square": tiles})
    measured = []

    def timed(tiles, candidate, op, args, kwargs, device, rounds):
        measured.append(candidate["BLOCK"])
        return lambda: args[0] * args[0]

    monkeypatch.setattr(search, "_with", timed)
    monkeypatch.setattr(search, "seconds_of", lambda runs, rounds, device: {n: [5.0 - n] for n in runs})

    def found(most, predicted=lambda table, t, *rest: Prediction(t["BLOCK"])):
        measured.clear()
        return search.search("square", ["fp32"], 3, 0.02, lambda text: None, pruning=Pruning(predicted, most))

    assert found(1) == {"BLOCK": 256} and measured == [1024, 256]
    assert found(0) is not None and measured == [1024, 2048, 4096, 512, 256]

    def missing(*_):
        raise NoModel("llvm-mca was not found")

    assert found(1, missing) is not None and len(measured) == 5
    assert prune.NONE.most == 0


def test_shapes_of_products_for_a_board(monkeypatch):
    """The shape that the X60 has so far, what fits in its scratch, and the shapes of all; the table has what was measured."""
    matmul = importlib.import_module("triport.ops.tiles")
    monkeypatch.setattr(matmul, "SHAPES", ((16, 32, 256), (64, 64, 256), (32, 64, 512)))
    row = targets.get("spacemit-x60")
    monkeypatch.setattr(spine, "board_runner", lambda: SimpleNamespace(board=SimpleNamespace(row=lambda: row)))
    monkeypatch.setattr(search, "_with", lambda tiles, candidate, op, args, *rest: lambda: args[0] @ args[1])
    monkeypatch.setattr(search, "seconds_of", lambda runs, rounds, device: {n: [1.0 + sum(n)] for n in runs})
    asked = set()

    def predicted(table, tiles, op, case, dtype):
        (shape,) = tiles["fp32"]
        asked.add((case.name, shape[:3]))
        return Prediction(sum(shape), fits=sum(shape) < 500)

    found = search.matmul_speeds(search.searches()["matmul"], ["fp32"], 1, lambda text: None, "board", Pruning(predicted, 2))["fp32"]
    shapes = {shape for _, shape in asked}
    assert {*matmul.SHAPES, *(t[:3] for t in matmul.fitting(row.scratch, torch.float32))} <= shapes
    assert {case for case, _ in asked} >= {"128x128,128x128", "512x512,512x512"}
    assert len(found) == 3 and {tuple(t[:3]) for t in found} >= set(sorted(shapes, key=sum)[:2])


def test_tune_on_a_board_leaves_out(monkeypatch, capsys):
    """Of five tables of square's, with what the command says of those that are left out; llvm-mca is not asked."""
    class Predicted:
        def __init__(self, row):
            assert row.cores == torch.get_num_threads()

        def __call__(self, table, tiles, op, case, dtype):
            return Prediction(tiles["BLOCK"])

    monkeypatch.setattr(predict, "Predictor", Predicted)
    argv = ["tune", "--on", "local", "--op", "square", "--case", "64x48", "--dtype", "fp32", "--reps", "2", "--dry-run"]
    assert main([*argv, "--most", "1"]) == 0
    said = capsys.readouterr().err
    assert "[2/2]" in said and "3 left out, with the predicted part of the default's time: {'BLOCK': 4096} 0.500, {'BLOCK': 16384} 2.000" in said
    for wrong, words in ((["--most", "-1", "--on", "local"], "--most -1"), (["--most", "2"], "--most goes with --on")):
        assert main(["tune", "--op", "square", *wrong]) == 2
        assert words in capsys.readouterr().err


def test_no_llvm_mca_no_pruning(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    row = dataclasses.replace(targets.get("x86-64-v3"), cores=2)
    with pytest.raises(NoModel, match="llvm-mca was not found: install"):
        predict.Predictor(row)("square", {"BLOCK": 2048}, registry.get("square"), Case(((64, 48),)), "fp32")


@pytest.mark.skipif(x60_pace.mca() is None, reason="no llvm-mca with the X60's model (apt: llvm-22)")
def test_predictions_for_the_x60():
    """Cores without a program, edges and small tiles cost what they cost; what takes more scratch than the X60's row says is told."""
    row = dataclasses.replace(targets.get("spacemit-x60"), cores=8)
    predicted = predict.Predictor(row)
    square = {n: predicted("square", {"BLOCK": n}, registry.get("square"), Case(((256, 256),)), "fp32") for n in (2048, 8192, 32768)}
    assert 3.5 < square[32768].cycles / square[8192].cycles < 4.1, "two programs for eight cores, of four times the work"
    assert 1 < square[2048].cycles / square[8192].cycles < 1.1
    matmul = importlib.import_module("triport.ops.tiles")

    def product(shape, sizes):
        return predicted("matmul", {**matmul.TILES.cpu, "fp32": ((*shape, 1.0),)}, registry.get("matmul"), Case(sizes), "fp32")

    large, tiny = (product(shape, ((256, 256), (256, 256))) for shape in ((64, 32, 128), (16, 32, 32)))
    assert large.fits and 1.2 < tiny.cycles / large.cycles < 3, "it packs B 16 times instead of 4"
    assert 2 * 256**3 / 8 / 11.6 < large.cycles < 2 * 256**3 / 8 / 8, "near the micro-kernel's 11.4 flops a cycle, on each of eight cores"
    assert not product((128, 128, 128), ((256, 256), (256, 256))).fits


def test_shares():
    assert predict.shared([3.0, 1.0, 1.0, 1.0], 4, 2) == 3 and predict.shared([2.0, 4.0], 100, 8) == 3 * 13
