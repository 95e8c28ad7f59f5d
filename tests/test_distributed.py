"""The ops on DTensors, by gloo on the CPU: 4 ranks and 2, each group started once, whatever runs the tests; and by NCCL where two GPUs are."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import distributed_ranks
import pytest
import torch
from conftest import HANGS, ROOT
from triport.backends.base import Unavailable
from triport.ops import distributed


def said_by(folder: Path, device: str = "cpu", ranks: int | None = None) -> dict[tuple[int, str], dict[int, str]]:
    """(ranks, check) -> rank -> what went wrong there."""
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of pytest's workers one starts the ranks and the others read
        if not (folder / "ended").exists():
            ran = subprocess.run([sys.executable, distributed_ranks.__file__, folder, *([] if ranks is None else [str(ranks)])], capture_output=True, text=True, timeout=HANGS,
                                 env={**os.environ, "DEVICE": device})
            (folder / "ended").write_text(ran.stdout + ran.stderr)
    silent = "it ended before:\n" + (folder / "ended").read_text()[-3000:]
    out = {}
    for world, checks in ({ranks: list(distributed_ranks.CHECKS)} if ranks else distributed_ranks.GROUPS).items():
        told = {rank: json.loads(path.read_text()) if (path := folder / f"{world}-{rank}.json").exists() else {} for rank in range(world)}
        out |= {(world, check): {rank: text for rank in told if (text := told[rank].get(check, silent))} for check in checks}
    return out


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    base = tmp_path_factory.getbasetemp()
    return said_by((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "ranks")


@pytest.mark.parametrize("world, check", [pytest.param(n, check, id=f"{check}-{n}") for n, checks in distributed_ranks.GROUPS.items() for check in checks])
def test_ranks(world, check, said):
    wrong = said[world, check]
    assert not wrong, "\n".join(f"rank {rank}: {text}" for rank, text in wrong.items())


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason=f"NCCL takes 2 GPUs; torch sees {torch.cuda.device_count()}")
def test_ranks_by_nccl(tmp_path):
    wrong = {check: told for check, told in said_by(tmp_path / "ranks", "cuda", 2).items() if told}
    assert not wrong, wrong


def test_a_torch_without_the_functions_is_one_sentence(monkeypatch):
    monkeypatch.setattr(distributed, "_registered", False)
    monkeypatch.setitem(sys.modules, "torch.distributed.tensor.experimental", None)
    with pytest.raises(Unavailable, match=r"triport's ops on DTensors: torch .* has no torch.distributed.tensor.experimental.register_sharding"):
        distributed.register()


def test_the_program_of_the_page_is_the_file():
    assert (ROOT / "docs" / "distributed.md").read_text().split("```python\n")[1].split("```")[0] == (ROOT / "docs" / "distributed.py").read_text()
