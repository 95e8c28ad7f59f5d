"""`triport tune --choose`: both backends of a GPU measured on many shapes. On the CPU: bodies stand in for CUDA C++, and times are made up."""

import functools
import json

import pytest
import torch
from triport import ops
from triport.backends import get
from triport.backends.base import Error
from triport.backends.dispatch import choice, replay
from triport.bench import choosing, clock
from triport.ops import choices, register, registry, tuning
from triport.tools.__main__ import main

#: seconds by backend
SECONDS = {"triton-gpu": 4e-6, "cuda": 2e-6}


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """A GPU of compute capability 9.0, whose clock tells `SECONDS`; the file that a measurement writes."""
    def standing_in(name):
        return lambda *args: register.BODIES[name](*args)

    def on_gpu(runs, rounds):
        for run in runs.values():
            assert isinstance(run(), torch.Tensor)
        return {name: [SECONDS[name] * (1 + 0.01 * k) for k in range(rounds)] for name in runs}

    for name in ("triton-gpu", "cuda"):
        kind = type(get(name))
        for what, value in (("device", "cpu"), ("unavailable", lambda self: None), ("synchronize", lambda self: None), ("versions", lambda self: {"v": "1"})):
            monkeypatch.setattr(kind, what, value)
    monkeypatch.setitem(register.IMPLEMENTATIONS, "cuda", {name: standing_in(name) for name in register.IMPLEMENTATIONS["cuda"]})
    monkeypatch.setattr(choice, "_lasting", {})
    monkeypatch.setattr(clock, "on_gpu", on_gpu)
    monkeypatch.setattr(tuning, "gpu_kind", lambda: "sm_90")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    replay.forget()
    yield tmp_path / "tuned.json"
    replay.forget()


def tune(path, *words):
    return main(["tune", "--choose", "--reps", "6", "-o", str(path), *words])


def choices_of(path):
    return json.loads(path.read_text())["sm_90"]["choices"]


def test_what_is_measured_is_what_is_chosen_by(gpu, monkeypatch, capsys):
    assert tune(gpu, "--op", "softmax", "--dtype", "fp32", "--case", "24x40", "--case", "24x42,dim=0") == 0
    assert choices_of(gpu)["times"] == {"softmax": {"fp32": {"rows": [[24, 40, 1, 4.1, 2.05, 0.0]], "columns, unaligned": [[1, 24, 42, 4.1, 2.05, 0.0]]}}}
    (run,) = choices_of(gpu)["runs"]
    assert run.pop("date") and run.pop("command") and run == {"machine": "a GPU", "measured": ["softmax fp32"], "versions": {"v": "1"}}
    out, err = capsys.readouterr()
    assert out == "softmax fp32: cuda on 2 of 2 shapes\n"
    assert "[1/2] softmax 24x40 fp32: triton-gpu 4.1 us, cuda 2.05 us, +-0.0%: cuda" in err and f"{gpu}: the choices of sm_90 written" in err
    read = choices.read(tuning.load(gpu)["sm_90"], "here")
    assert read == {("softmax", "fp32", "rows"): (((24, 40, 1), True),), ("softmax", "fp32", "columns, unaligned"): (((1, 24, 42), True),)}
    monkeypatch.setitem(SECONDS, "cuda", 5e-6)
    assert tune(gpu, "--op", "softmax", "--dtype", "fp32", "--case", "24x40", "--case", "64x40") == 0
    assert choices_of(gpu)["times"]["softmax"]["fp32"] == {"rows": [[24, 40, 1, 4.1, 5.125, 0.0], [64, 40, 1, 4.1, 5.125, 0.0]],
                                                           "columns, unaligned": [[1, 24, 42, 4.1, 2.05, 0.0]]}


def test_each_op_is_measured_and_found_again(gpu, monkeypatch):
    """A call like what was measured is for the one that was faster."""
    monkeypatch.setattr(choosing, "grid", lambda op, texts, sweeps: [op.cases[0]])
    monkeypatch.setattr(choices, "_gpu", lambda x: "sm_90")
    monkeypatch.setattr(choices, "usable", functools.lru_cache(lambda: True))
    monkeypatch.setenv("TRIPORT_TUNED", str(gpu))
    assert tune(gpu, "--dtype", "fp32") == 0
    choices.forget()
    for name in choosing.names():
        op = registry.get(name)
        served = [get("auto").chosen(op, *op.cases[0].make(dtype), **op.cases[0].kwargs) for dtype in (torch.float32, torch.float16)]
        assert served == ["cuda", "triton-gpu"]
    monkeypatch.undo()
    choices.forget()


def test_tiles_and_other_machines_stay(gpu):
    before = {"AVX2": {"tiles": {"gelu": {"BLOCK": 64}}, "runs": []}, "sm_90": {"tiles": {"softmax": {"row": 8}}, "runs": [{"searched": ["softmax"]}]}}
    gpu.write_text(json.dumps(before))
    assert tune(gpu, "--op", "square", "--dtype", "fp32", "--case", "24x40") == 0
    after = json.loads(gpu.read_text())
    assert after["sm_90"].pop("choices")["times"].keys() == {"square"} and after == before


def test_a_whole_measurement_replaces_an_older_one(gpu, monkeypatch):
    monkeypatch.setattr(choosing, "grid", lambda op, texts, sweeps: [registry.get(op.name).cases[0]])
    entry = {"choices": {"runs": [{"machine": "old", "measured": ["gelu fp32", "square fp32"]}, {"machine": "older", "measured": ["square fp16"]}],
                         "times": {"square": {"fp32": {"elements": [[64, 1.0, 2.0, 0.0]]}, "fp16": {"elements": [[64, 1.0, 2.0, 0.0]]}}}}}
    gpu.write_text(json.dumps({"sm_90": {"tiles": {}, "runs": [], **entry}}))
    assert tune(gpu, "--op", "square", "--dtype", "fp32", "--dtype", "fp16") == 0
    found = choices_of(gpu)
    assert [(r["machine"], r["measured"]) for r in found["runs"]] == [("old", ["gelu fp32"]), ("a GPU", ["square fp16", "square fp32"])]
    assert {d: [line[0] for line in of["elements"]] for d, of in found["times"]["square"].items()} == {"fp32": [128 * 128], "fp16": [128 * 128]}


def test_what_fails_leaves_the_others(gpu, monkeypatch, capsys):
    """A backend that raises, or is wrong, on a shape is not chosen there; Triton's failing leaves the shape out; an op that fails leaves the others."""
    def narrow(x, dim):
        if x.shape[-1] == 40:
            raise RuntimeError("no kernel\nfor this")
        return torch.zeros_like(x) if x.shape[-1] == 48 else torch.softmax(x, dim)

    monkeypatch.setitem(register.IMPLEMENTATIONS["cuda"], "softmax", narrow)
    expected = ops.Op.expected

    def unexpected(op, *args, **kwargs):
        if op.name == "square" or args[0].shape[0] == 7:
            raise MemoryError("too large")
        return expected(op, *args, **kwargs)

    monkeypatch.setattr(ops.Op, "expected", unexpected)
    words = [w for text in ("24x40", "24x48", "24x64", "7x64") for w in ("--case", text)]
    assert tune(gpu, "--op", "square", "--op", "softmax", "--op", "gelu", "--dtype", "fp32", *words) == 1
    times, (out, err) = choices_of(gpu)["times"], capsys.readouterr()
    assert times["softmax"]["fp32"]["rows"] == [[24, 40, 1, 4.1, None, 0.0], [24, 48, 1, 4.1, None, 0.0], [24, 64, 1, 4.1, 2.05, 0.0]]
    assert "square" not in times and len(times["gelu"]["fp32"]["elements"]) == 3
    assert "square fp32: cuda on 0 of 0 shapes\n" in out and "softmax fp32: cuda on 1 of 3 shapes\n" in out
    assert "failed: softmax 24x40 fp32: RuntimeError: no kernel\n" in err and "failed: softmax 7x64 fp32: MemoryError: too large\n" in err
    assert "failed: softmax 24x48 fp32: Error: cuda: the result is wrong (error 1.00e+00)" in err
    assert choices.read(tuning.load(gpu)["sm_90"], "here")["softmax", "fp32", "rows"] == (((24, 40, 1), False), ((24, 48, 1), False), ((24, 64, 1), True))


def test_what_was_measured_is_written_before_the_end(gpu, monkeypatch):
    def stop(*args):
        raise KeyboardInterrupt

    real = choosing._shape
    monkeypatch.setattr(choosing, "_shape", lambda op, *rest: stop() if op.name == "gelu" else real(op, *rest))
    assert tune(gpu, "--op", "square", "--op", "gelu", "--dtype", "fp32", "--case", "24x40") == 130
    assert list(choices_of(gpu)["times"]) == ["square"]


def test_nothing_is_written_dry(gpu, capsys):
    assert tune(gpu, "--op", "square", "--case", "24x40", "--dry-run") == 0
    assert not gpu.exists() and capsys.readouterr().out.splitlines() == [f"square {d}: cuda on 1 of 1 shapes" for d in ("fp32", "fp16", "bf16")]


@pytest.mark.parametrize("words, said", [
    (["--on", "local"], "--on does not go with --choose"), (["--gain", "0.5"], "--gain does not go with"), (["--most", "3"], "--most does not go with"),
    (["--op", "lora_linear"], "unknown op to choose for 'lora_linear'"), (["--dtype", "fp33"], "did you mean 'fp32'"), (["--case", "what"], "square: unknown case 'what'"),
    (["--reps", "5"], "of fewer than 6 rounds nobody knows how sure a ratio is")])
def test_what_does_not_go_with_it(words, said, gpu, capsys):
    assert tune(gpu, *words) == 2
    assert said in capsys.readouterr().err and not gpu.exists()


def test_a_damaged_table_is_told_before_anything_is_measured(gpu, monkeypatch, capsys):
    monkeypatch.setattr(choosing, "measure", lambda *args: pytest.fail("it was measured"))
    gpu.write_text('{"sm_90": {"choices": {"times": 4}}}')
    assert tune(gpu, "--op", "square") == 2 and f"{gpu}: sm_90: choices' times is '4'" in capsys.readouterr().err


def test_without_a_gpu_it_says_why(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(type(get("cuda")), "unavailable", lambda self: "torch sees no GPU")
    assert tune(tmp_path / "t.json") == 2 and "--choose: torch sees no GPU" in capsys.readouterr().err


def test_exponentials_of_long_sums_can_be_checked():
    """The products of a softmax have a standard deviation of 3 at most, however many terms they are of."""
    shapes = choosing.grid(registry.get("matmul_softmax"), [], [])
    assert max(c.shapes[1][0] for c in shapes) >= 8192 and all(c.scale**2 * c.shapes[1][0]**0.5 < 3 for c in shapes)


@pytest.mark.parametrize("name", choosing.names())
def test_the_grid(name):
    """All that the ops' own cases on a GPU are like, and each kind of shape in several sizes, for every dtype."""
    op = registry.get(name)
    shapes = choosing.grid(op, [], [])
    for dtype in (torch.float32, torch.float16):
        likes = [choosing.like(op, case, dtype) for case in shapes]
        assert len(set(likes)) == len(likes) and None not in likes
        assert {choosing.like(op, case, dtype) for case in op.cases_on("cuda")} <= set(likes)
        kinds = {kind for kind, _ in likes}
        wanted = {"softmax": {"rows", "columns", "rows, unaligned", "columns, unaligned"}, "matmul": {"nn", "nt", "nn, unaligned"},
                  "matmul_softmax": {f"{d} nn{u}" for d in ("rows", "columns") for u in ("", ", unaligned")},
                  "add_relu": {"rows", "rows, unaligned"}, "add_mul_act": {"rows", "rows, unaligned"}}.get(name, {"elements"})
        assert kinds == wanted and all(sum(k == kind for k, _ in likes) >= 2 for kind in kinds)
    with pytest.raises(Error, match="what"):
        choosing.grid(op, ["what"], [])
