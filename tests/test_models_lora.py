"""The LoRA model of `triport.bench.models`: its variants agree with float64, a wrong one is not timed, and its command says what it does not take."""

import pytest
import torch
from triport.bench.models import MODELS, lora

SIZE = (9, 17, 13, 3)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_steps_agree_with_float64(dtype, backward, seed, monkeypatch):
    monkeypatch.setattr(lora, "get", lambda name: type("", (), {"unavailable": staticmethod(lambda: "not here")}))
    made = lora.steps(SIZE, "cpu", seed, dtype, backward)
    assert list(made) == ["eager", "triport"] and "lora" in MODELS
    assert [t.shape for t in made["triport"]()] == [(9, 13), *[(9, 17), (17, 3), (3, 13)] * backward]
    assert not lora.wrong(made, SIZE, "cpu", seed, dtype, backward)
    made["eager"] = lambda: [t * 1.1 for t in made["triport"]()]
    assert list(lora.wrong(made, SIZE, "cpu", seed, dtype, backward)) == ["eager"]


def test_table_has_a_row_for_each_pass_and_leaves_out_what_is_wrong(capsys, monkeypatch):
    def steps(size, device, seed, dtype="fp32", backward=True):
        x, w, a, b, _ = lora.tensors(size, device, seed, torch.float32)
        right = lambda: [x @ w + lora.SCALE * (x @ a) @ b, *(torch.zeros(s) for s in (x.shape, a.shape, b.shape) if backward)]  # noqa: E731
        return {"eager": right, "triport": right}

    monkeypatch.setattr(lora, "steps", steps)
    threads = torch.get_num_threads()
    code = lora.main("--rows 4 --width 6 --rank 2 --dtype fp32 --rounds 1 --threads 1".split())
    out = capsys.readouterr()
    assert code == 1 and torch.get_num_threads() == threads
    forward, both = [line for line in out.out.splitlines() if "4x6" in line]
    assert "ms" in forward and "x (" in forward and "ms" not in both
    assert out.err.count("is wrong") == 2 and "forward+backward: triport is wrong" in out.err


@pytest.mark.parametrize("words,text", [("--rank 0", "--rank 0: it takes 1 or more"), ("--threads -1", "--threads -1"), ("--rounds 0", "--rounds 0")])
def test_what_it_does_not_take(words, text, capsys):
    assert lora.main(words.split()) == 2
    assert text in capsys.readouterr().err
