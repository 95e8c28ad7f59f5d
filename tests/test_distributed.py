"""The ops on DTensors, by gloo on the CPU: 4 ranks and 2, each group started once, whatever runs the tests; and by NCCL where two GPUs are."""

import fcntl
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import distributed_ranks
import pytest
import torch
from conftest import HANGS, ROOT
from torch._dynamo.backends.common import aot_autograd
from triport import ops
from triport.backends.base import Error, Unavailable
from triport.bench import distributed as bench
from triport.bench import ranks
from triport.ops import Op, distributed
from triport.tools import __main__ as cli


def said_by(folder: Path, device: str = "cpu", count: int | None = None) -> dict[tuple[int, str], dict[int, str]]:
    """(ranks, check) -> rank -> what went wrong there."""
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of pytest's workers one starts the ranks and the others read
        if not (folder / "ended").exists():
            command = [sys.executable, distributed_ranks.__file__, folder, *([] if count is None else [str(count)])]
            ran = subprocess.run(command, capture_output=True, text=True, timeout=HANGS, env={**os.environ, "DEVICE": device})
            (folder / "ended").write_text(ran.stdout + ran.stderr)
    silent = "it ended before:\n" + (folder / "ended").read_text()[-3000:]
    out = {}
    for world, checks in ({count: list(distributed_ranks.CHECKS)} if count else distributed_ranks.GROUPS).items():
        told = {rank: json.loads(path.read_text()) if (path := folder / f"{world}-{rank}.json").exists() else {} for rank in range(world)}
        out |= {(world, check): {rank: text for rank in told if (text := told[rank].get(check, silent))} for check in checks}
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "ranks"


@pytest.fixture(scope="module")
def said(folder):
    return said_by(folder)


@pytest.fixture
def scene(said, folder):
    """name -> (exit code, what it printed) of each rank."""
    def found(name):
        texts = [(folder / f"{name}-{rank}.txt").read_text().rstrip().rpartition("\n") for rank in range(distributed_ranks.SCENES[name][1])]
        return [(int(code), text.strip()) for text, _, code in texts]

    return found


@pytest.mark.parametrize("world, check", [pytest.param(n, check, id=f"{check}-{n}") for n, checks in distributed_ranks.GROUPS.items() for check in checks])
def test_ranks(world, check, said):
    wrong = said[world, check]
    assert not wrong, "\n".join(f"rank {rank}: {text}" for rank, text in wrong.items())


def written(x, y, bias):
    out = x.clone()
    ops.add_mul_act_(out, y, bias)
    return out


def row_gradient(*given):
    return torch.ops.triport.add_mul_act_gradients(*given, 0.5, "relu", 1, 1, 1)[2]


@pytest.mark.parametrize("call,shapes", [
    (written, ((0, 4), (0, 4), (4,))), (row_gradient, ((0, 4), (0, 4), (0, 4), (4,))),
    (ops.matmul, ((7, 0), (0, 5))), (ops.matmul, ((0, 3), (3, 5))), (ops.matmul_softmax, ((7, 0), (0, 5))), (ops.add_relu, ((0, 4), (4,))),
    (ops.add_mul_act, ((0, 4), (0, 4), (4,))), (ops.lora_linear, ((0, 4), (4, 3), (4, 2), (2, 3)))], ids=lambda x: getattr(x, "__name__", ""))
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_an_empty_shard_gives_comes_of_all_arguments(call, shapes, dynamic):
    """In a graph: what brings an argument that nothing reads, a collective, would be left out on that rank alone."""
    given = [torch.randn(s) for s in shapes]
    graphs = []
    run = torch.compile(lambda *given: call(*given), backend=aot_autograd(fw_compiler=lambda graph, _: graphs.append(graph) or graph), fullgraph=True, dynamic=dynamic)
    torch._dynamo.reset()
    assert torch.equal(run(*given), call(*given))
    graph, = graphs
    assert all(node.users for node in graph.graph.nodes if node.op == "placeholder" and isinstance(node.meta["val"], torch.Tensor)), graph.code


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason=f"NCCL takes 2 GPUs; torch sees {torch.cuda.device_count()}")
def test_ranks_by_nccl(tmp_path):
    wrong = {check: told for (_, check), told in said_by(tmp_path / "ranks", "cuda", 2).items() if told}
    assert not wrong, "\n".join(f"{check}, rank {rank}: {text}" for check, told in wrong.items() for rank, text in told.items())


def test_bench_scales_ops_over_ranks(scene, folder):
    (code, printed), (other, silent) = scene("benched")
    assert (code, other, silent) == (0, 0, ""), printed + silent
    data = json.loads((folder / "bench.json").read_text())
    rows = {(r["op"], *(r["distributed"][k] for k in ("sharded", "scaling", "ranks"))): r for r in data["rows"]}
    assert data["complete"] and data["machine"]["ranks"] == 2 and len(rows) == 20 and {r["status"] for r in rows.values()} == {"ok"}
    assert rows["softmax", "rows", "weak", 2]["case"] == "66x18, rows over 2, weak" and "communication" in printed and "all right" in printed
    for (op, way, _, count), row in rows.items():
        spent = {k: row["distributed"][f"{k}_s"]["p50"] for k in ("kernels", "communication")}
        assert row["wall_s"]["p50"] > 0 and spent["kernels"] > 0 and (count > 1 or row["metrics"]["efficiency"] == 1)
        assert (spent["communication"] > 0) == (count == 2 and (op, way) in (("matmul", "K"), ("softmax", "columns"))), row


def test_noisy_rows_of_ranks_are_marked(capsys, monkeypatch):
    """Few rounds, rounds that spread, and parts that took longer than the whole they are of; sound ones are not."""
    from triport.bench import distributed
    from triport.tools import distributed as command
    monkeypatch.setenv("COLUMNS", "100")  # of 80 the last column's words are cut, and the sentence below the table says it alone
    assert distributed.noisy([1e-3] * 10, [9e-4] * 10, [0.0] * 10) is None
    assert distributed.noisy([1e-3] * 3, [9e-4] * 3, [0.0] * 3) == "3 rounds are too few to tell noise"
    assert "after 10 rounds" in distributed.noisy([1e-3, 5e-3] * 5, [9e-4] * 10, [0.0] * 10)
    why = distributed.noisy([1.7e-3] * 10, [9e-4] * 10, [3.8e-3] * 10)
    assert why == "communication, in other rounds, took longer than the whole"
    summary = {"p20": 1e-3, "p50": 1e-3, "p80": 1e-3}
    row = {"op": "softmax", "case": "8x8", "dtype": "fp32", "backend": "triton-cpu", "status": "ok", "wall_s": summary, "metrics": {"efficiency": 0.02},
           "distributed": {"of": "8x8", "sharded": "rows", "scaling": "weak", "ranks": 2, "placed": "S(0)", "kernels_s": dict(summary), "communication_s": dict(summary)}}
    command._show([row, {**row, "case": "9x9", "noisy": why}], 2, "cpu")
    out = capsys.readouterr().out
    assert out.count("communication") >= 1 and out.count("2.0% noisy") == 1 and "1 of 2 rows is noisy, not to be relied on: softmax 9x9 fp32 on triton-cpu" in " ".join(out.split())


def test_bench_finds_a_result_that_lacks_a_ranks_part(scene):
    assert [code for code, _ in scene("benched_wrong")] == [0, 0], scene("benched_wrong")


@pytest.mark.parametrize("name, codes, words", [
    ("one_dies", (2, -9, 2), "rank 1 on .* has died or hangs: nothing was heard of it for .* ends"),
    ("one_fails", (2, 2), "rank 1 on .* failed: ArgumentError: no such thing; rank 0 on .* ends"),
    ("one_hangs", (2, 0), r"rank 1 on .* has died or hangs: nothing was heard of it for .* \(--timeout 2s\); rank 0 on .* ends")])
def test_the_rest_name_a_rank_that_is_gone(name, codes, words, scene):
    told = scene(name)
    assert tuple(code for code, _ in told) == codes, told
    assert all(re.fullmatch(f"triport bench: {words}", text) for rank, (_, text) in enumerate(told) if rank != 1), told


def test_bench_distributed_says_what_it_takes(monkeypatch, capsys):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)

    def refused(*more):
        assert cli.main(["bench", "--distributed", "--device", "cpu", *more]) == 2
        return capsys.readouterr().err

    assert "runs under torchrun" in refused() and "torchrun --nproc-per-node 2 -m triport.tools bench --distributed" in refused()
    assert "--backend does not go with --distributed, which takes --timeout" in refused("--backend", "torch")
    assert "softmax 256 has too few dimensions to be sharded by rows and by columns" in refused("--op", "softmax", "--case", "256")
    assert "--timeout soon: it takes a time" in refused("--timeout", "soon")
    assert cli.main(["bench", "--timeout", "3s"]) == 2 and "--timeout goes with --distributed" in capsys.readouterr().err
    with pytest.raises(Error, match="scale has no ways to be sharded; it takes square"):
        bench.pieces([(Op("scale", eager=torch.neg), "fp32", None)], 2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(Error, match="--device cuda: 2 ranks on .* and 1 GPUs"):
        ranks.device_here("cuda")
    assert ranks.device_here(None) == "cpu"


def test_a_torch_without_the_functions_is_one_sentence(monkeypatch):
    monkeypatch.setattr(distributed, "_registered", False)
    monkeypatch.setitem(sys.modules, "torch.distributed.tensor.experimental", None)
    with pytest.raises(Unavailable, match=r"triport's ops on DTensors: torch .* has no torch.distributed.tensor.experimental.register_sharding"):
        distributed.register()


def of_page(n: int) -> str:
    """The n-th program of docs/distributed.md."""
    return (ROOT / "docs" / "distributed.md").read_text().split("```python\n")[n].split("```")[0]


def test_the_program_of_the_page_is_the_file():
    assert of_page(1) == (ROOT / "docs" / "distributed.py").read_text()


def test_the_model_of_the_page_runs_as_pasted(tmp_path):
    """In a world of one rank, without torchrun; `test_ranks` has such models on several."""
    (tmp_path / "model.py").write_text(of_page(2))
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    done = subprocess.run([sys.executable, "model.py"], cwd=tmp_path, env={**os.environ, **alone}, capture_output=True, text=True, timeout=HANGS)
    assert done.returncode == 0 and done.stdout == "(Shard(dim=1),)\n", done.stderr
