"""`triport models`: every model small is right in every variant; wrong variants, losses that do not fall and bad input are told."""

import argparse

import pytest
import torch
from conftest import ROOT, unavailable
from torch.utils.flop_counter import FlopCounterMode
from triport import backends
from triport.bench import models, results, study
from triport.bench.models import block, clicks, common, dlrm, gelu, mlp, variants
from triport.tools.__main__ import main

OURS = "triton-cpu"
INDUCTOR = ["torch-compile", "torch-compile-triton"]
#: model -> the variants of its table on a CPU
NAMES = {"square": ["torch", "x * x", "x ** 2", OURS], "gelu": ["manual", "torch", *INDUCTOR, OURS], "softmax": ["manual", "torch", *INDUCTOR, OURS],
         "matmul": ["torch", INDUCTOR[0], OURS], "block": ["torch", block.FIXED, block.FITTED], "mlp": ["torch", OURS],
         "lora": ["torch", INDUCTOR[0], OURS], "dlrm": ["torch", *INDUCTOR, OURS], "inductor": ["torch", *INDUCTOR]}
#: options of models that would compile for minutes; test_models_inductor.py has what they leave out
FEWER = {"inductor": ["--model", "mlp", "--dtype", "fp32"]}


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    """A machine's limits are not what is tested here, and small models on one thread do not wait for others; compiled graphs go with their test."""
    monkeypatch.setattr(study.roofline, "measure", lambda *a: {"bytes_per_s": 1e10, "flop_per_s": 1e11, "flop_per_s_fp32": 1e11})
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    torch._dynamo.reset()


@pytest.fixture
def uncompiled(monkeypatch):
    """Models without Inductor's variants, where these are beside the point."""
    monkeypatch.setattr(variants.Variants, "compiled", lambda *a, **k: None)


def here(names):
    return [n for n in names if n != "torch-compile" or unavailable("torch-compile") is None]


@pytest.mark.parametrize("name", models.MODELS)
def test_every_model_runs_small(name, tmp_path, capsys, seed):
    path, picture = tmp_path / "r.json", tmp_path / "r.png"
    argv = ["models", name, "--size", "small", "--device", "cpu", "--reps", "2", "--seed", str(seed), "--json", str(path), "--plot", str(picture)]
    assert main(argv + FEWER.get(name, [])) == 0
    said = capsys.readouterr()
    data = results.load(path)
    assert data["complete"] and {r["status"] for r in data["rows"]} == {"ok"}
    for case in {(r["op"], r["case"]) for r in data["rows"]}:
        assert [r["backend"] for r in data["rows"] if (r["op"], r["case"]) == case] == here(NAMES[name])
    assert all(r["error"] <= r["allowed"] and r["wall_s"]["n"] == 2 and r["speedup"] > 0 for r in data["rows"])
    assert "vs torch" in said.out and picture.read_bytes()[:4] == b"\x89PNG"
    if name in ("gelu", "softmax", "square", "matmul", "dlrm"):
        assert "cuda is left out: " in said.err and data["machine"]["left_out"]["cuda"]
    assert main(["bench", "--compare", str(path), str(path)]) == 0


@pytest.mark.parametrize("name", ["gelu", "mlp"])
def test_compiled_variants_are_inductors(name, capsys):
    if (reason := unavailable("torch-compile")):
        pytest.skip(reason)
    assert main(["models", name, "--size", "small", "--device", "cpu", "--show-inductor"]) == 0
    out = capsys.readouterr().out
    cpp, _, triton = out.partition("# torch-compile-triton: ")
    assert cpp.startswith("# torch-compile: ")
    assert "at::vec" in cpp and "@triton.jit" not in cpp
    assert "@triton.jit" in triton and "at::vec" not in triton


@pytest.mark.gpu
@pytest.mark.parametrize("name", models.MODELS)
def test_every_model_runs_on_a_gpu(name, tmp_path):
    if (reason := unavailable("triton-gpu")):
        pytest.skip(reason)
    path = tmp_path / "r.json"
    assert main(["models", name, "--size", "small", "--device", "cuda", "--reps", "2", "--json", str(path), *FEWER.get(name, [])]) == 0
    rows = results.load(path)["rows"]
    assert all(r["status"] == "ok" and r["device_s"]["p50"] > 0 for r in rows) and {r["device"] for r in rows} == {"cuda"}
    if name in ("square", "gelu", "softmax", "matmul", "dlrm") and unavailable("cuda") is None:
        assert "cuda" in {r["backend"] for r in rows}


@pytest.mark.parametrize("name", models.MODELS)
def test_steps_are_for_a_profiler(name, uncompiled):
    module = models.get(name)
    steps = module.steps("small", "cpu", 3)
    assert {"torch"} < set(steps) or name == "inductor" and set(steps) == {"torch"}  # whose other variants are all compiled
    assert all(step() is not None for step in steps.values())
    module.add(argparse.ArgumentParser())
    for bad, words in ((("huge", "cpu", 0), "unknown size 'huge'. Known: main, small"), (("small", "tpu", 0), "unknown device 'tpu'")):
        with pytest.raises(backends.base.Error, match=words):
            module.steps(*bad)


def test_inductors_cpp_is_left_out_with_the_reason_where_no_compiler_is(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(backends.get("torch-compile"), "unavailable", lambda: "no C++ compiler: install g++", raising=False)
    path = tmp_path / "r.json"
    assert main(["models", "matmul", "--size", "small", "--device", "cpu", "--reps", "1", "--json", str(path)]) == 0
    assert capsys.readouterr().err.count("torch-compile is left out: no C++ compiler: install g++") == 1
    assert {r["backend"] for r in results.load(path)["rows"]} == {"torch", OURS}
    assert main(["models", "matmul", "--size", "small", "--device", "cpu", "--show-inductor"]) == 2
    assert "no compiled variant can run here: torch-compile: no C++ compiler" in capsys.readouterr().err


def test_a_wrong_variant_is_exit_1(monkeypatch, uncompiled, capsys):
    monkeypatch.setattr(gelu, "manual", lambda x: x)
    assert main(["models", "gelu", "--size", "small", "--device", "cpu", "--reps", "1"]) == 1
    assert "WRONG" in capsys.readouterr().out


def test_a_wrong_gradient_is_exit_1(monkeypatch, uncompiled, capsys):
    monkeypatch.setattr(dlrm, "our_layer", lambda h, w, b: dlrm.torch_layer(h, w, b.detach() + 0 * b))
    assert main(["models", "dlrm", "--size", "small", "--device", "cpu", "--reps", "1", "--steps", "1"]) == 1
    assert "WRONG" in capsys.readouterr().out


def test_a_loss_that_does_not_fall_is_exit_1(uncompiled, capsys):
    assert main(["models", "dlrm", "--size", "small", "--device", "cpu", "--reps", "1", "--steps", "3", "--rate", "1e-9"]) == 1
    said = capsys.readouterr().out
    assert "WRONG" not in said and said.count("DOES NOT FALL CLEARLY") == 2


BAD = [
    (["nope"], "unknown model 'nope'. Known: block, dlrm"),
    (["gleu"], "unknown model 'gleu'; did you mean 'gelu'?"),
    (["gelu", "--size", "smal"], "unknown size 'smal'; did you mean 'small'?"),
    (["mlp", "--size", "big"], "unknown size 'big'"),
    (["gelu", "--device", "tpu"], "unknown device 'tpu'"),
    (["gelu", "--threads", "0"], "--threads 0: it takes a number from 1 up"),
    (["gelu", "--reps", "0"], "--reps 0"),
    (["gelu", "--json", "/nowhere/at/all.json"], "there is no folder"),
    (["gelu", "--clock", "sun"], "unknown clock 'sun'. Known: cpu, wall"),
    (["gelu", "--plot", "gelu.txt"], "ends in .png"),
    (["block", "--show-inductor"], "no compiled variant can run here"),
    (["mlp", "--variant", "torhc"], "unknown variant 'torhc'; did you mean 'torch'?"),
    (["dlrm", "--steps", "0"], "--steps 0"),
    (["dlrm", "--rate", "-1"], "--rate -1.0: it takes a number above 0"),
]


@pytest.mark.parametrize("argv,text", BAD, ids=[" ".join(b[0]) for b in BAD])
def test_usage_is_exit_2(argv, text, capsys):
    device = [] if "--device" in argv else ["--device", "cpu"]
    assert main(["models", *argv, *device]) == 2
    err = capsys.readouterr().err
    assert text in err and err.startswith("triport models: ") and "Traceback" not in err


def test_a_device_without_gpu_is_exit_2(capsys):
    if unavailable("triton-gpu") is None:
        pytest.skip("there is a GPU here")
    assert main(["models", "gelu", "--device", "cuda"]) == 2
    assert "--device cuda: " in capsys.readouterr().err


def test_models_are_listed_and_in_the_docs(capsys):
    assert main(["models"]) == 0
    out = capsys.readouterr().out
    page = (ROOT / "docs/models.md").read_text()
    assert all(name in out and f"triport models {name}" in page for name in models.MODELS)
    with pytest.raises(SystemExit) as e:
        main(["models", "mlp", "--help"])
    assert e.value.code == 0 and "--variant" in capsys.readouterr().out


def test_ranges_stand_in_traces(uncompiled):
    step = mlp.steps("small", "cpu", 0)[OURS]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as prof:
        step()
    assert {"step 0", "forward", "backward", "layer 0", "layer 1"} <= {e.key for e in prof.key_averages()}


def row(op, case, name, rounds):
    return {"op": op, "case": case, "backend": name, "status": "ok", "rounds_s": rounds, "wall_s": {"p50": sorted(rounds)[len(rounds) // 2]}}


def test_mlps_exponents_are_those_of_its_rows():
    """Rows of a machine on which time is a product of powers."""
    every = {s.case: s for along in mlp.shapes("main").values() for s in along}
    rows = [row("mlp", c, "torch", [1e-9 * s.steps**1.0 * s.layers**0.9 * s.batch**0.5 * s.dim**2.25]) for c, s in every.items()]
    found = {axis: law.exponent for (_, axis), (law, _, _) in mlp.laws("main", rows).items()}
    assert found == pytest.approx({"steps": 1.0, "layers": 0.9, "batch": 0.5, "dim": 2.25})
    rows[0]["status"] = "wrong"
    assert mlp.laws("main", rows[:1]) == {}
    by_cpu = mlp.laws("main", [r | {"cpu_s": {"p50": 1e-3}} for r in rows[1:]], "cpu")
    assert all(law.exponent == pytest.approx(0, abs=1e-12) for law, _, _ in by_cpu.values()) and len(by_cpu) == 4


def test_mlps_flops_are_counted():
    shape = mlp.Shape(1, 3, 8, 16)
    with FlopCounterMode(display=False) as counter:
        mlp.study(shape, "cpu", 0, ["torch"]).call("torch")()
    assert counter.get_total_flops() == shape.flops


def test_dlrms_flops_are_counted(uncompiled):
    config = dlrm.SIZES["small"]
    step = dlrm.study("small", dlrm.losses(config, "cpu"), 0, 0.1).call("torch")
    with FlopCounterMode(display=False) as counter:
        step()
    assert counter.get_total_flops() == config.flops


@pytest.mark.parametrize("slow,winner", [(block.FIXED, block.FITTED), (block.FITTED, block.FIXED)])
def test_what_block_says_is_what_its_rows_are(slow, winner):
    def both(n, factor, spread=0.01):
        rounds = [1e-3 * (1 + spread * k) for k in (-1, 0, 1)]
        return [row("square", f"10x{n}", name, [t * (factor if name == slow else 1) for t in (rounds if name == slow else rounds[::-1])])
                for name in (block.FIXED, block.FITTED)]

    said, = block.verdict([*both(96, 3), *both(1500, 1.5), *both(3000, 1.01), *both(4000, 1.3, spread=0.4), *both(1000, 5)])
    assert said.startswith(f"square: {winner} is faster at n = 96, 1500, most at 96, by 3.00x (where 91% of the lanes of blocks of 1024")
    assert "25% of next_power_of_2(n)'s" in said
    assert said.endswith("at n = 3000, 4000 they are alike within the noise; at n = 1000 they are one kernel.")
    assert block.verdict([r | {"status": "wrong"} for r in both(96, 3)]) == []
    by_cpu = [r | {"cpu_rounds_s": [1e-3] * 3} for r in both(96, 3)]
    assert "alike" in block.verdict(by_cpu, "cpu")[0] and "alike" not in block.verdict(by_cpu)[0]


def test_clicks_are_the_seeds_and_follow_a_power_law(seed):
    made = [clicks.Clicks(500, s) for s in (seed, seed, seed + 1)]
    (dense, index, label), again, other = (c.batch(4000) for c in made)
    assert all(torch.equal(a, b) for a, b in zip((dense, index, label), again)) and not torch.equal(dense, other[0])
    assert dense.shape == (4000, 13) and index.shape == (4000, 26) and label.shape == (4000,)
    assert dense.dtype == torch.float32 and dense.min() >= 0 and torch.isfinite(dense).all()
    assert index.min() >= 0 and index.max() < 500 and set(label.tolist()) == {0.0, 1.0} and 0.05 < label.mean() < 0.95
    ranks = made[0]._ranks(10_000, 100_000)
    count = torch.bincount(ranks, minlength=10_000)
    for rank in (1, 3, 9):
        assert count[0] / count[rank] == pytest.approx((rank + 1)**clicks.SKEW, rel=0.25)
    assert ranks.max() > 5000


def test_samples_on_a_relus_kink_are_passed_over(monkeypatch):
    """Of a sample of zeros the first layer makes zeros: the slope there is rounding's to say."""
    config = dlrm.SIZES["small"]
    real = clicks.Clicks.batch

    def every_third(self, n):
        dense, index, label = real(self, n)
        dense[::3] = 0
        return dense, index, label

    monkeypatch.setattr(clicks.Clicks, "batch", every_third)
    params = dlrm.parameters(config, "cpu", 0)
    label, dense, index = dlrm.smooth(config, clicks.Clicks(config.rows, 0), params, "cpu")
    assert dense.shape == (config.batch, 13) and index.shape == (config.batch, 26) and label.shape == (config.batch,)
    assert dense.abs().sum(1).min() > 0


def test_a_training_step_is_the_gradients(uncompiled):
    """What is timed goes down the gradient that was checked."""
    s = dlrm.study("small", dlrm.losses(dlrm.SIZES["small"], "cpu"), 5, 0.3)
    for name, step in s.turns.items():
        before = [p.detach().clone() for p in step.params]
        grads = s.call(name)()[1:]
        step()
        for p, old, g in zip(step.params, before, grads):
            torch.testing.assert_close(p.detach(), old - step.rate * g, rtol=1e-5, atol=1e-7)
    assert all(torch.equal(p, q) for p, q in zip(s.inputs[3:], dlrm.parameters(dlrm.SIZES["small"], "cpu", 5))), "the shared ones stay"


def test_plots_are_drawn_of_results_with_wrong_rows(tmp_path):
    good = {"op": "a", "case": "1", "backend": "torch", "wall_s": {"p20": 1e-3, "p50": 2e-3, "p80": 3e-3}}
    wrong = {"op": "a", "case": "1", "backend": "x", "status": "wrong"}
    for suffix in ("png", "svg"):
        common.plot(tmp_path / f"r.{suffix}", [good, wrong, good | {"op": "b"}, good | {"op": "b", "case": "2"}], common.times)
        assert (tmp_path / f"r.{suffix}").stat().st_size > 1000
