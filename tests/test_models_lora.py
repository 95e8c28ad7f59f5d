"""The LoRA model: its variants agree with float64, forward and backward, in every dtype; and what its command does not take."""

import json

import pytest
import torch
from triport.bench import check
from triport.bench.models import lora
from triport.tools.__main__ import main


@pytest.mark.parametrize("run, count", [(lora.forward, 1), (lora.forward_backward, 4)])
@pytest.mark.parametrize("dtype", sorted(lora.ALLOWED))
def test_steps_agree_with_float64(dtype, run, count, seed):
    from triport.ops import registry
    op = registry.get("lora_linear")
    given = lora.tensors(9, 17, 13, 3, "cpu", seed, dtype)
    wanted = run(op.eager, *(t.detach().double().requires_grad_(t.requires_grad) for t in given))
    for fn in (op.eager, op.call):
        got = run(fn, *given)
        assert [t.shape for t in got] == [(9, 13), (9, 17), (17, 3), (3, 13)][:count]
        assert max(map(check.error, got, wanted)) <= lora.ALLOWED[dtype]
    assert check.error(torch.zeros_like(got[0]), wanted[0]) > lora.ALLOWED[dtype]


def test_the_command_has_a_row_for_each_pass(tmp_path, monkeypatch):
    monkeypatch.setattr(lora.Variants, "compiled", lambda self, fn, triton=True: None)  # Inductor has tests of its own
    path = tmp_path / "r.json"
    assert main(["models", "lora", "--size", "small", "--reps", "1", "--rank", "3", "--rank", "8", "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [r["case"].partition(" rank ")[2] for r in rows] == [f"{r} {p}" for r in (3, 8) for p in ("forward", "forward+backward") for _ in range(2)]
    assert {r["status"] for r in rows} == {"ok"} and all(r["flops"] > 2 * 33 * 48 * 40 for r in rows)


@pytest.mark.parametrize("words, text", [(["--rank", "0"], "--rank 0"), (["--dtype", "fp8"], "unknown dtype"), (["--size", "huge"], "unknown size")])
def test_what_it_does_not_take(words, text, capsys):
    assert main(["models", "lora", *words]) == 2
    assert text in capsys.readouterr().err
