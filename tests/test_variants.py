"""What an op's record can say for `triport bench`: variants and a baseline, several results, mixed dtypes, arguments changed in place, own figures, and
backward modes. Each is told from what is wrong."""

import json
import subprocess
import sys

import pytest
import torch
from conftest import ROOT
from triport.backends.base import Error
from triport.bench import columns, plan, runner, words
from triport.bench.results import Results
from triport.ops import Case, Op, registry, softmax
from triport.tools.__main__ import main


def rows_of(op, backends=("torch",), **kwargs) -> dict[str, dict]:
    """A run of an op, one round: column -> row."""
    results = Results()
    runner.run(plan.Plan([op], list(backends), kwargs.pop("dtypes", ["fp32"]), rounds=1, seconds=0.0, cold=False, **kwargs), results)
    return {r["backend"]: r for r in results.rows}


def manual(x):
    e = (x - x.max(-1, keepdim=True).values).exp()
    return e / e.sum(-1, keepdim=True)


def test_variants_are_columns_and_the_baseline_is_free():
    op = Op("softmaxes", variants={"manual": manual, "triton": softmax, "torch's": lambda x: x.softmax(-1)}, baseline="triton", cases=("13x78",))
    rows = rows_of(op, ())
    assert list(rows) == ["manual", "triton", "torch's"] and all(r["status"] == "ok" for r in rows.values())
    assert all(r["baseline"] == "triton" and r["speedup"] > 0 for r in rows.values()) and rows["triton"]["speedup"] == 1
    assert list(rows_of(op, (), variants=["manual"])) == ["manual"]


def test_a_wrong_variant_is_not_timed_and_the_others_are():
    op = Op("mixed", variants={"right": manual, "wrong": lambda x: manual(x) * 1.001, "broken": lambda x: 1 // 0}, cases=("13x78",))
    rows = rows_of(op, ())
    assert {n: r["status"] for n, r in rows.items()} == {"right": "ok", "wrong": "wrong", "broken": "failed"}
    assert "wall_s" in rows["right"] and "wall_s" not in rows["wrong"] and "wall_s" not in rows["broken"]


def test_a_result_of_another_dtype_is_told():
    """Its numbers are right, but a result of fp32 is other work than one of 16 bits. Once for all cases of a dtype."""
    op = Op("wide", variants={"as given": manual, "fp32": lambda x: manual(x.float()), "two": lambda x: manual(x)}, cases=("13x78", "5x9"), dtypes=("fp32", "bf16"))
    told: list[str] = []
    results = Results()
    runner.run(plan.Plan([op], [], ["fp32", "bf16"], rounds=1, seconds=0.0, cold=False), results, remark=told.append)
    assert [r["status"] for r in results.rows] == ["ok"] * 12
    assert [t for t in told if "returns" in t] == ["wide 13x78 bf16: fp32 returns fp32, as given bf16; their times are not of the same work"]


@pytest.mark.skipif(sys.platform != "linux", reason="the CPU compiler's column runs on Linux")
def test_a_call_without_triton_is_not_called_so():
    rows = rows_of(Op("plain", call=manual, eager=lambda x: x.softmax(-1), cases=("13x78",)), ("torch", "triton-cpu"))
    assert list(rows) == ["torch", "call"] and rows["call"]["status"] == "ok"
    rows = rows_of(Op("ours", call=softmax, eager=lambda x: x.softmax(-1), cases=("13x78",)), ("torch", "triton-cpu"))
    assert list(rows) == ["torch", "triton-cpu"]


def test_a_baseline_that_launches_nothing_is_still_the_baseline():
    op = Op("plain", call=manual, eager=lambda x: x.softmax(-1), baseline="triton-cpu", cases=("13x78",))
    rows = rows_of(op, ("torch", "triton-cpu"))
    assert rows["call"]["column"] == "triton-cpu" and rows["call"]["speedup"] == 1 and rows["torch"]["speedup"] > 0
    assert plan.split(["call"], [op]) == (["triton-cpu"], [])
    assert list(rows_of(registry.get("square"), ("torch", "triton-cpu"), cases=["0x5"])) == ["torch", "triton-cpu"], "nothing to launch is no other column"


@pytest.mark.parametrize("second,status", [(lambda x, y: x * y, "ok"), (lambda x, y: x * y + 1e-3, "wrong"), (lambda x, y: x / 0, "wrong")])
def test_every_result_counts(second, status):
    op = Op("two", eager=lambda x, y: (x + y, x * y), variants={"mine": lambda x, y: [x + y, second(x, y)]}, cases=("9x7,9x7",))
    assert rows_of(op)["mine"]["status"] == status


def test_complex_results_and_large_integers_count_whole():
    op = Op("ft", eager=torch.fft.fft, variants={"same": lambda x: torch.fft.fft(x), "conjugate": lambda x: torch.fft.fft(x).conj(),
                                                 "real": lambda x: torch.fft.fft(x).real}, cases=("9x7",))
    assert {n: r["status"] for n, r in rows_of(op).items()} == {"torch": "ok", "same": "ok", "conjugate": "wrong", "real": "wrong"}
    large = Op("large", eager=lambda x: x.long() + 2**60, variants={"off": lambda x: x.long() + 2**60 + 1}, cases=("9x7",), dtypes=("int32",))
    assert {n: r["status"] for n, r in rows_of(large, dtypes=["int32"]).items()} == {"torch": "ok", "off": "wrong"}


def test_what_is_wrong_later_is_wrong():
    calls = []

    def late(x):
        calls.append(1)
        return x * 2 if len(calls) < 5 else x * 3

    op = Op("twice", eager=lambda x: x * 2, variants={"late": late, "wipes": lambda x, n=[]: (n.append(1), x * 2, len(n) < 5 or x.zero_())[1]}, cases=("9x7",))
    rows = rows_of(op)
    assert rows["torch"]["status"] == "ok" and rows["late"]["status"] == "wrong" and "one after those that were timed is not" in rows["late"]["reason"]
    assert rows["wipes"]["status"] in ("wrong", "failed") and "wall_s" not in rows["late"] and "wall_s" not in rows["wipes"]


def test_what_asks_the_process_to_end_has_failed(tmp_path, capsys):
    """The run goes on with what else there is, the table is printed, and the exit code is not the call's. A metric that does so is left out."""
    (tmp_path / "mine.py").write_text("""import sys
from triport.ops import Op
op = Op("ends", eager=lambda x: x * 2, variants={"ends": lambda x: sys.exit(0)}, cases=("8x8",), metrics={"none": lambda seconds, x: sys.exit(0)})
""")
    path = tmp_path / "r.json"
    assert main(["bench", "--op", "square", "--op", f"{tmp_path}/mine.py:op", "--case", "8x8", "--backend", "torch", "--backend", "ends", "--no-cold", "--reps", "1",
                 "--json", str(path)]) == 1
    data = json.loads(path.read_text())
    rows = {(r["op"], r["backend"]): r for r in data["rows"]}
    assert {k: r["status"] for k, r in rows.items()} == {("square", "torch"): "ok", ("ends", "torch"): "ok", ("ends", "ends"): "failed"}
    assert rows["ends", "ends"]["reason"] == "SystemExit: 0" and data["complete"]
    out, err = capsys.readouterr()
    assert "FAILED: ends 8x8 fp32 on ends: SystemExit: 0" in out and "metric 'none' raised SystemExit: 0" in err


def test_what_asks_the_process_to_end_after_it_was_timed_has_failed():
    row = runner._still_right(lambda: sys.exit(0), 1.0)
    assert (row["status"], row["reason"]) == ("failed", "SystemExit: 0")


def test_what_ends_the_process_while_it_is_timed_ends_the_run():
    """With the names of those that took turns: the clock does not know which it was."""
    calls = []

    def ends(x):
        calls.append(1)
        return sys.exit(0) if len(calls) == 5 else x * 2

    with pytest.raises(Error, match=r"ends 8x8 fp32: a call that was timed, of torch or later, asked the process to end \(SystemExit: 0\)"):
        rows_of(Op("ends", eager=lambda x: x * 2, variants={"later": ends}, cases=("8x8",)))


def test_a_file_whose_import_ends_the_process(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("import sys\nsys.exit(0)\n")
    assert main(["bench", "--op", f"{tmp_path}/mine.py:op"]) == 2
    assert "failed: SystemExit: 0" in capsys.readouterr().err


def test_what_is_named_twice_is_run_once(tmp_path):
    """No two rows of a file have one identity, however ops, types, cases and backends are named."""
    (tmp_path / "mine.py").write_text("from triport.ops import Op\nop = Op('mine', eager=lambda x: x * 2, cases=('8x8',))\n")
    path, mine = tmp_path / "r.json", f"{tmp_path}/mine.py:op"
    words = ["--op", "square", "--op", mine, "--op", "square", "--op", f"{tmp_path}/../{tmp_path.name}/mine.py:op", "--case", "8x8", "--case", "8x8", "--dtype", "fp32", "--dtype", "fp32"]
    assert main(["bench", *words, "--backend", "torch", "--backend", "torch", "--no-cold", "--reps", "1", "--json", str(path)]) == 0
    assert [(r["op"], r["case"], r["dtype"], r["backend"]) for r in json.loads(path.read_text())["rows"]] == [(op, "8x8", "fp32", "torch") for op in ("square", "mine")]


def test_two_ops_of_one_name_are_refused(tmp_path, capsys):
    """The sentence names both; nothing is run."""
    for folder, by in (("A", 2), ("B", 3)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "o.py").write_text(f"from triport.ops import Op\nx = Op('dup', eager=lambda x: x * {by}, cases=('8x8',))\n")
    path = tmp_path / "r.json"
    assert main(["bench", "--op", f"{tmp_path}/A/o.py:x", "--op", f"{tmp_path}/B/o.py:x", "--json", str(path)]) == 2
    assert f"two ops are called 'dup': {tmp_path.resolve()}/A/o.py:x and {tmp_path.resolve()}/B/o.py:x;" in capsys.readouterr().err and not path.exists()


def test_rows_that_an_op_does_not_have_are_named(tmp_path, capsys):
    """Of a dtype that another op takes, and of a column that was asked for by name; what is only among the defaults is not missed."""
    (tmp_path / "mine.py").write_text("from triport.ops import Op\nop = Op('mine', eager=lambda x: x * 2, variants={'own': lambda x: x + x}, cases=('8x8',))\n")
    line = ["bench", "--op", f"{tmp_path}/mine.py:op", "--op", "square", "--case", "8x8", "--no-cold", "--reps", "1"]
    assert main([*line, "--dtype", "fp32", "--dtype", "int32", "--backend", "torch", "--backend", "triton-cpu", "--backend", "own"]) == 0
    err = capsys.readouterr().err
    for said in ("no rows of int32 for mine: not among the dtypes taken there", "no rows of triton-cpu for mine: triton-cpu does not run it", "no rows of own for square: own does not run it"):
        assert said in err, said
    assert "no rows of torch" not in err
    assert plan.Plan([registry.get("square")], ["torch"], ["fp32"]).items()[1] == []
    assert plan.Plan([registry.get("softmax")], ["torch"], ["fp32", "int32"]).items()[1] == ["no rows of int32: none of the ops takes it"]


def test_a_board_that_nothing_would_run_on_is_refused(capsys):
    assert main(["bench", "--on", "local", "--backend", "torch", "--op", "softmax"]) == 2
    assert "--on is the board of backend spine, and --backend torch runs here" in capsys.readouterr().err


def test_a_compiled_variant_meets_no_recompile_limit():
    """Each case starts without what was compiled for those before it."""
    seen = []

    def fn(x):
        if not torch.compiler.is_compiling():
            seen.append(tuple(x.shape))
        return x * 2

    op = Op("twice", eager=lambda x: x * 2, variants={"compiled": torch.compile(fn, backend="eager", dynamic=False)}, cases=("9x7",), dims="MxN")
    results = Results()
    runner.run(plan.Plan([op], [], ["fp32"], sweeps=["N=1..10:+1"], rounds=1, seconds=0.0, cold=False), results)
    assert len(results.rows) == 10 and all(r["status"] == "ok" for r in results.rows) and not seen, "nothing ran without being compiled"


def test_single_calls_of_an_in_place_op_see_fresh_arguments():
    seen = []
    op = Op("increase", eager=lambda x: x.add_(1), variants={"mine": lambda x: (seen.append(x.sum().item()), x.add_(1))[1]}, mutates=("x",), cases=("9x7",))
    rows_of(op, (), singles=6)
    assert len(seen) > 6 and len(set(seen)) == 1


def test_gradients_may_be_a_little_further_off():
    op = Op("squares", eager=lambda x: x * x, cases=("9",))
    assert runner.allowed(op, "fp32", "bwd") == runner.allowed(op, "fp32", "fwd+bwd") == 4 * runner.allowed(op, "fp32", "fwd") == 8e-6


def test_a_result_too_few_is_wrong():
    op = Op("two", eager=lambda x: (x, x * 2), variants={"one": lambda x: x, "none": lambda x: None, "text": lambda x: "x"}, cases=("9x7",))
    rows = rows_of(op)
    assert rows["one"]["status"] == "wrong" and "returned str" in rows["text"]["reason"] and "returned NoneType" in rows["none"]["reason"]


def loss(x, labels, mask):
    return torch.nn.functional.cross_entropy(x, labels, reduction="none") * mask


@pytest.mark.parametrize("dtype", ["fp32", "fp64", "bf16"])
def test_arguments_of_mixed_dtypes(dtype):
    op = Op("loss", eager=loss, variants={"off": lambda x, t, m: loss(x, t.roll(1), m), "mine": lambda x, t, m: loss(x, t, m)},
            cases=("64x10,64:int64<10,64:bool",), dtypes=("fp32", "fp64", "bf16"))
    rows = rows_of(op, dtypes=[dtype])
    assert rows["torch"]["status"] == rows["mine"]["status"] == "ok" and rows["off"]["status"] == "wrong"


@pytest.mark.parametrize("size", ["30x40", "0x4"])
def test_arguments_changed_in_place_are_renewed(size):
    seen = []

    def mine(x, y):
        seen.append(x.sum().item())
        x.add_(y)

    op = Op("increase", eager=lambda x, y: x.add_(y), variants={"mine": mine, "lazy": lambda x, y: None, "twice": lambda x, y: x.add_(y).add_(y)},
            mutates=("x",), cases=(f"{size},{size}",))
    rows = rows_of(op)
    right = {"torch": "ok", "mine": "ok", "lazy": "wrong", "twice": "wrong"}
    assert {n: r["status"] for n, r in rows.items()} == (right if size != "0x4" else dict.fromkeys(right, "ok"))
    assert len(set(seen)) == 1, "each call saw the same x"


def test_in_place_in_a_turn_of_many_calls():
    """The clock's calls see fresh arguments, too: more calls than copies are never asked for."""
    op = Op("increase", eager=lambda x: x.add_(1), mutates=("x",), cases=("300x200",))
    inputs = columns.Inputs(op, op.cases[0], op.cases[0].make(torch.float32))
    first, seen = inputs.args[0].clone(), []
    turn = inputs.turn(lambda x: (seen.append(bool(torch.equal(x, first))), x.add_(1)), lambda: None, None)
    assert turn.limit == columns.COPIES // first.nbytes
    for n in (1, turn.limit):
        turn.before(n)
        for _ in range(n):
            turn.call()
    assert len(seen) == 1 + turn.limit and all(seen)


def test_a_changed_argument_that_nobody_named():
    op = Op("relus", eager=lambda x: x.relu(), variants={"in place": lambda x: x.relu_(), "wiped": lambda x: (x.relu(), x.zero_())[0]}, cases=("9x7",))
    rows = rows_of(op)
    assert rows["torch"]["status"] == "ok"
    for name in ("in place", "wiped"):
        assert "relus changed its argument 'x'; say so, mutates=(\"x\",)" in rows[name]["reason"]


def test_in_place_op_that_names_no_argument():
    op = Op("increase", eager=lambda x: x.add_(1), mutates=("y",), cases=("3",))
    assert "mutates names 'y', which is none of its tensors (x)" in rows_of(op)["torch"]["reason"]


@pytest.mark.parametrize("mode", ["bwd", "fwd+bwd"])
@pytest.mark.parametrize("name", registry.NAMES)
def test_backward_of_every_op(mode, name):
    op = registry.get(name)
    text = {"square": "33x65", "gelu": "33x65", "softmax": "33x65", "lora_linear": "M=33,K=65,N=29,R=3", "matmul": "33x65,N=29",
            "matmul_softmax": "33x65,N=29"}.get(name, "33x65")
    rows = rows_of(op, ("torch", "triton-cpu"), cases=[text], mode=mode)
    for r in rows.values():
        assert r["status"] == "ok" and r["mode"] == mode and r["error"] <= r["allowed"] and r["wall_s"]["p50"] > 0, r


class Halved(torch.autograd.Function):
    """x * x with half its gradient."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0]


@pytest.mark.parametrize("mode,status", [("fwd", "ok"), ("bwd", "wrong"), ("fwd+bwd", "wrong")])
def test_a_wrong_gradient_is_wrong(mode, status):
    op = Op("squares", eager=lambda x: x * x, variants={"halved": Halved.apply}, cases=("9x7",))
    assert rows_of(op, mode=mode)["halved"]["status"] == status


def test_modes_that_cannot_be():
    detached = Op("cut", eager=lambda x: x * x, variants={"cut": lambda x: (x * x).detach()}, cases=("9x7",))
    assert "the result has no gradient" in rows_of(detached, mode="bwd")["cut"]["reason"]
    assert "forward only" in rows_of(Op("inc", eager=lambda x: x.add_(1), mutates=("x",), cases=("9",)), mode="bwd")["torch"]["reason"]
    assert "no gradient in int32" in rows_of(registry.get("square"), mode="bwd", dtypes=["int32"], cases=["9x7"])["torch"]["reason"]


def test_own_figures(capsys):
    def broken(seconds, x):
        raise ValueError("no")

    op = Op("squares", eager=lambda x: x * x, metrics={"rows/s": lambda seconds, x: x.shape[0] / seconds, "broken": broken, "inf": lambda s, x: 1e400},
            cases=("9x7",))
    said = []
    results = Results()
    runner.run(plan.Plan([op], ["torch"], ["fp32"], rounds=1, seconds=0.0, cold=False), results, remark=said.append)
    row = results.rows[0]
    assert row["metrics"] == {"rows/s": pytest.approx(9 / row["wall_s"]["p50"])}
    assert any("metric 'broken' raised ValueError: no" in s for s in said)


def test_single_calls_start_with_the_compiling_one():
    from triport.backends.cpu import compiler
    made, real = [], compiler.lower
    results = Results()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "lower", lambda *a: made.append(1) or real(*a))
        runner.run(plan.Plan([registry.get("square")], ["torch", "triton-cpu"], ["fp32"], cases=["70x30"], rounds=1, seconds=0.0, cold=False, singles=5), results)
    for row in results.rows:
        assert len(row["calls_s"]["wall"]) == len(row["calls_s"]["cpu"]) == 5 and min(row["calls_s"]["wall"]) > 0
    assert made, "the first one compiled"


def test_kernels_that_nothing_runs_are_named_with_the_reason(monkeypatch, capsys, tmp_path):
    """Of an op for CUDA alone only torch's columns are right without a GPU."""
    from triport.backends import get
    monkeypatch.setattr(type(get("cuda")), "unavailable", lambda self: "no GPU here")
    mine = Op("mine", call=lambda x: x * 2, eager=lambda x: x * 2, cases=("9x7",), backends=("cuda",))
    results, both = Results(), Results()
    runner.run(plan.Plan([mine], ["torch"], ["fp32"], rounds=1, seconds=0.0, cold=False), results)
    assert results.meta["left_out"] == {"mine on cuda": "no GPU here"}
    assert "mine on cuda is left out: no GPU here" in words.remarks(results.data())
    runner.run(plan.Plan([registry.get("square")], ["torch"], ["fp32"], cases=["9x7"], rounds=1, seconds=0.0, cold=False), both)
    assert "left_out" not in both.meta, "nobody asked for its kernels"


def test_a_case_larger_than_memory_fails_and_nothing_dies():
    for name, text in (("square", "99999999x99999"), ("matmul", "999999x1,1x999999")):
        assert "GB are free" in rows_of(registry.get(name), cases=[text])["torch"]["reason"]


def test_columns_by_name(capsys):
    ops = [Op("squares", eager=lambda x: x * x, variants={"mine": lambda x: x * x}, cases=("9x7",))]
    assert plan.split(["torch", "mine"], ops) == (["torch"], ["mine"])
    with pytest.raises(Error, match="unknown backend 'mnie'; did you mean 'mine'"):
        plan.split(["mnie"], ops)


def test_the_files_of_the_docs_run(tmp_path):
    """docs/my_op.py, as its page calls it: variants, metrics and a case of one's own."""
    out = tmp_path / "r.json"
    assert main(["bench", "--op", f"{ROOT}/docs/my_op.py:my_softmax", "--case", "64x100", "--reps", "1", "--no-cold", "--backend", "torch", "--backend", "manual",
                 "--backend", "fused", "--json", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert {r["backend"] for r in rows} == {"torch", "manual", "fused"} and all(r["status"] == "ok" and r["metrics"] for r in rows)


def test_first_call_of_a_case_of_ones_own_in_a_new_process(tmp_path):
    out = tmp_path / "r.json"
    done = subprocess.run([sys.executable, "-m", "triport.tools", "bench", "--op", "square", "--backend", "triton-cpu", "--case", "70x30", "--reps", "1", "--json",
                           str(out)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(out.read_text())["rows"][0]["first_call_s"].keys() == {"cold", "reload", "process", "here"}


def test_cases_of_two_names_are_two_rows():
    op = Op("scaled", eager=lambda x, m=1.0: x * m, cases=(Case(((9, 7),), {"m": 2.0}), Case(((9, 7),))))
    results = Results()
    runner.run(plan.Plan([op], ["torch"], ["fp32"], rounds=1, seconds=0.0, cold=False), results)
    assert [r["case"] for r in results.rows] == ["9x7,m=2.0", "9x7"]
