"""Tile tables, `triport tune`, and `triton.autotune` on the CPU."""

import dataclasses
import importlib
import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import triton
import triton.language as tl
from triport import ops
from triport.backends.dispatch import drivers, replay
from triport.backends.base import Error
from triport.backends.cpu.plugin import benchmarker
from triport.backends.cpu import compiler
from triport.backends.cpu.llvm import targets
from triport.bench import check, search
from triport.ops import Case, registry, tuning
from triport.tools.__main__ import main


def test_table_is_what_the_ops_take():
    """Every entry of the table names an op with tiles, has their shape, and gives right results at odd sizes."""
    table = tuning.load(tuning.FILE)  # whatever TRIPORT_TUNED names
    found = search.searches()
    run = {"searched", "machine", "threads", "date", "command", "versions"}
    assert table and all(run == r.keys() for entry in table.values() for r in entry["runs"])
    for kind, entry in table.items():
        assert sorted(n for r in entry["runs"] for n in r["searched"]) == sorted(search.names("cuda" if kind[:3] == "sm_" else "cpu"))
        assert entry["tiles"].keys() <= found.keys()
    kinds = {tuning.kind(row) for row in targets.TARGETS.values()} | {tuning.kind(targets.native())}
    for kind, entry in table.items():
        if kind[:3] == "sm_":
            continue  # tests/test_ops.py runs on a GPU with them
        assert kind.partition("/")[0] in {k.partition("/")[0] for k in kinds}
        for name, tiles in entry["tiles"].items():
            op = registry.get(next(n for n in sorted(registry.NAMES, key=len, reverse=True) if name.startswith(n)))
            assert name in found and type(tiles) in (dict, list)
            case = next(c for c in op.cases if "781" in c.name or "333" in c.name)
            args = case.make(torch.float32)
            with tuning.trying(name, tiles, op.name, {}):
                right, e = check.verdict(op, op.call(*args, **case.kwargs), args, case.kwargs)
            assert right, (kind, name, tiles, e)


def test_what_was_never_measured_has_the_default(monkeypatch):
    tiles = tuning.Tiles("no such op", cpu=1, cuda=2, candidates=(3,))
    assert tiles.get("cpu") == tiles.get("meta") == 1 and tiles.get("cuda") == 2
    with tuning.trying("no such op", 3, "square", {}):
        assert tiles.get("cpu") == 3 and tiles.get("cuda") == 3
        with ThreadPoolExecutor(1) as other:  # searches for itself
            assert other.submit(tiles.get, "cpu").result() == 1
    assert tiles.get("cpu") == 1
    monkeypatch.setattr(tuning, "load", lambda: {"AVX-512/amx": {"tiles": {"no such op": 4}}, "NEON": {"tiles": {}}})
    for row, want in (("sapphirerapids", 4), ("x86-64-v4", 4), ("x86-64-v3", 1)):  # the vector ISA alone is near enough
        monkeypatch.setattr(targets, "native", lambda row=row: targets.TARGETS[row])
        tuning.tuned.cache_clear()
        assert tiles.get("cpu") == want
    monkeypatch.undo()
    tuning.tuned.cache_clear()


def test_another_table(monkeypatch, tmp_path):
    """TRIPORT_TUNED names the file that the ops read and `triport tune` writes."""
    x, path = torch.randn(1000), tmp_path / "t.json"
    for n in (64, 512):
        path.write_text(json.dumps({tuning.kind(targets.native()): {"tiles": {"gelu": {"BLOCK": n}}, "runs": []}}))
        monkeypatch.setenv("TRIPORT_TUNED", str(path))
        tuning.tuned.cache_clear()
        replay.forget()
        assert tuning.path() == path and search.searches()["gelu"].get("cpu") == {"BLOCK": n}
        assert check.error(ops.gelu(x), torch.nn.functional.gelu(x.double(), approximate="tanh")) < 1e-6
    monkeypatch.setenv("TRIPORT_TUNED", str(tmp_path / "none.json"))
    tuning.tuned.cache_clear()
    assert tuning.tuned() == {} and tuning.load(tuning.FILE)
    replay.forget()
    monkeypatch.undo()
    tuning.tuned.cache_clear()


@pytest.mark.parametrize("text", ['{"AVX2": ', "[1, 2]", ""])
def test_a_file_that_is_no_table(text, tmp_path):
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(Error, match=f"^{path}: it is no table of tiles"):
        tuning.load(path)


def test_a_table_is_written_whole(tmp_path, monkeypatch):
    """What ends a program while it writes leaves the table as it was, and nothing beside it."""
    path, link = tmp_path / "t.json", tmp_path / "link.json"
    tuning.save({"AVX2": {"tiles": {"gelu": [1, 2]}, "runs": []}}, path)
    link.symlink_to(path)
    with tuning.updating(link) as table:
        table["NEON"] = {"tiles": {}, "runs": []}
    assert tuning.load(path).keys() == {"AVX2", "NEON"} and link.is_symlink()

    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning.os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        tuning.save({}, path)
    assert tuning.load(path).keys() == {"AVX2", "NEON"} and {p.name for p in tmp_path.iterdir()} == {"t.json", "link.json"}


def test_a_search_takes_the_faster_and_refuses_the_wrong(monkeypatch, tmp_path, capsys):
    """By seconds that the test makes up: of the default and the candidates behind it."""
    seconds = {0: 2.0, 1: 1.0}
    small = dataclasses.replace(registry.get("square"), cases=(Case(((64, 48),)), Case(((33, 65),))))
    monkeypatch.setattr(search.registry, "get", lambda name: small)

    def timed(runs, rounds, device):
        for n in runs:
            assert torch.is_tensor(runs[n]())
        return {n: [seconds[n]] * rounds for n in runs}

    monkeypatch.setattr(search, "seconds_of", timed)
    module_tiles = search.searches()["square"]
    slow = tuning.Tiles("square", cpu={"BLOCK": 1024}, cuda={}, candidates=({"BLOCK": 4096},))
    monkeypatch.setattr(search, "searches", lambda: {"square": slow})
    assert search.search("square", ["fp32"], 3, 0.02, lambda text: None) == {"BLOCK": 4096}
    seconds[1] = 1.97
    assert search.search("square", ["fp32"], 3, 0.02, lambda text: None) is None, "by less than the gain that is asked for"
    assert search.search("square", ["fp32"], 3, 0.01, lambda text: None) == {"BLOCK": 4096}
    seconds[1] = 3.0
    assert search.search("square", ["fp32"], 3, 0.02, lambda text: None) is None
    seconds[1] = 1.0
    path = tmp_path / "t.json"
    monkeypatch.setattr(search, "searches", lambda: {"square": slow})
    assert main(["tune", "--op", "square", "--dtype", "fp32", "--reps", "2", "-o", str(path)]) == 0
    kind, entry = json.loads(path.read_text()).popitem()
    assert [r["searched"] for r in entry["runs"]] == [["square"]]
    entry["runs"].append({**entry["runs"][0], "searched": ["gelu", "square"], "machine": "another"})
    path.write_text(json.dumps({kind: entry}))
    assert main(["tune", "--op", "square", "--dtype", "fp32", "--reps", "2", "-o", str(path)]) == 0
    runs = json.loads(path.read_text())[kind]["runs"]
    assert [(r["searched"], r["machine"] == "another") for r in runs] == [(["gelu"], True), (["square"], False)]
    assert entry["tiles"] == {"square": {"BLOCK": 4096}} and "0.500 of the default's time" in capsys.readouterr().err
    monkeypatch.setattr(check, "error", lambda *a: float("nan"))
    with pytest.raises(Error, match="the result is wrong"):
        search.search("square", ["fp32"], 2, 0.02, lambda text: None)
    assert not tuning.tries("square") and module_tiles.get("cpu") == tuning.tuned().get("square", module_tiles.cpu), "nothing is left of a search"


@pytest.mark.parametrize("argv", [["--op", "sqare"], ["--dtype", "fp31"], ["--reps", "0"], ["--threads", "0"]])
def test_usage(argv, capsys):
    assert main(["tune", "--dry-run", *argv]) == 2
    assert argv[-1] in capsys.readouterr().err


@pytest.mark.parametrize("m,n,k", [(1, 1, 1), (333, 511, 257), (100, 1000, 10), (513, 65, 4097)])
@pytest.mark.parametrize("threads", [1, 2, 16])
def test_tiles_of_matmul_cover_and_stay_small(m, n, k, threads):
    import importlib
    matmul = importlib.import_module("triport.ops.tiles")
    for key, choice in matmul.TILES.get("cpu").items():
        t = matmul.chosen_tile(True, threads, m, n, k, tuple(map(tuple, choice)))
        for size, edge in ((m, "BM"), (n, "BN"), (k, "BK")):
            assert t[edge] & (t[edge] - 1) == 0 and t[edge] <= max(8, 2 * size) and t[edge] >= 8


def test_few_threads_of_many_have_tiles_of_their_own(monkeypatch):
    import importlib
    matmul = importlib.import_module("triport.ops.tiles")
    small, large = (32, 64, 64, 1.0), (64, 32, 128, 1.0)
    monkeypatch.setattr(tuning.call, "tiles", {"matmul": {"fp32": [large], "fp32 few": [small], "bf16": [large]}})
    before = torch.get_num_threads()
    try:
        for threads, dtype, want in ((1, torch.float32, small), (2, torch.float32, small), (3, torch.float32, large), (1, torch.bfloat16, large)):
            torch.set_num_threads(threads)
            tile = matmul.tile_for(torch.empty(64, 128, dtype=dtype), torch.empty(128, 64, dtype=dtype))
            assert (tile["BM"], tile["BN"], tile["BK"]) == want[:3]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("threads,cores,where", [(1, 16, "bf16 few"), (2, 16, "bf16 few"), (16, 16, "bf16"), (2, 2, "bf16"), (1, 4, "bf16")])
def test_a_search_of_one_dtype_leaves_the_others(threads, cores, where, monkeypatch, tmp_path):
    """The speeds of other dtypes, and those of all threads where few are measured, stay in the table."""
    import importlib
    import json
    matmul = importlib.import_module("triport.ops.tiles")
    kind = tuning.kind(targets.native())
    old = {"fp32": [[512, 64, 256, 1.0]], "bf16": [[256, 128, 512, 1.0]], "fp64": [[64, 64, 32, 1.0]]}
    file = tmp_path / "tuned.json"
    file.write_text(json.dumps({kind: {"tiles": {"matmul": old}, "runs": []}}))
    monkeypatch.setattr(matmul, "SHAPES", ((16, 32, 256), (32, 64, 512)))
    monkeypatch.setattr(search, "_with", lambda tiles, candidate, op, args, *rest: lambda: args[0] @ args[1])
    monkeypatch.setattr(search, "seconds_of", lambda runs, rounds, device: {n: [1.0 + sum(n)] for n in runs})
    monkeypatch.setattr(search.os, "cpu_count", lambda: cores)
    before = torch.get_num_threads()
    try:
        assert main(["tune", "--op", "matmul", "--dtype", "bf16", "--threads", str(threads), "-o", str(file)]) == 0
    finally:
        torch.set_num_threads(before)
    found = json.loads(file.read_text())[kind]["tiles"]["matmul"]
    assert [t[:3] for t in found.pop(where)] == [[16, 32, 256], [32, 64, 512]]
    assert found == {k: v for k, v in old.items() if k != where}


def make_kernel(options):
    @triton.autotune(configs=[triton.Config({"BLOCK": b}, **o) for b in (16, 2048) for o in options], key=["n"])
    @triton.jit
    def autotuned_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
        offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) + 1, mask=offs < n)

    return autotuned_kernel


def test_autotune_compiles_what_differs_on_a_cpu_once(monkeypatch, tmp_path):
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))  # an empty one, whatever was set before
    made = []
    monkeypatch.setattr(compiler, "lower", lambda *a, real=compiler.lower: made.append(1) or real(*a))
    kernel = make_kernel([dict(num_warps=w, num_stages=s) for w in (1, 4, 8) for s in (2, 3)])
    x = torch.randn(100_000)
    out = torch.empty_like(x)
    programs, timed = [], []

    def grid(meta):
        programs.append(triton.cdiv(x.numel(), meta["BLOCK"]))
        return programs[-1:]

    def benchmark(fn, quantiles):
        """As long as it has programs."""
        fn()
        timed.append(programs[-1])
        return [float(programs[-1])] * 3

    monkeypatch.setattr(benchmarker, "benchmark", benchmark)
    with drivers.serving("cpu"):  # beside a GPU
        kernel[grid](x, out, x.numel())
    assert torch.equal(out, x + 1) and kernel.best_config.kwargs["BLOCK"] == 2048 and sorted(timed) == [49] * 6 + [6250] * 6
    assert len(made) == 2, "12 configurations, 2 of which differ in more than a GPU's options"


class Clock:
    """A clock that goes on only where something takes time."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


def test_benchmarker(monkeypatch):
    clock, calls, takes = Clock(), [], [2**-9]  # seconds, of which sums are exact

    def fn():
        calls.append(1)
        clock.now += takes[len(calls) % len(takes)]

    def counted(**options):
        calls.clear()
        return benchmarker.benchmark(fn, **options), len(calls)

    monkeypatch.setattr(benchmarker, "time", clock)
    (a, b, c), n = counted(quantiles=(0.5, 0.2, 0.8))
    assert [a, b, c] == [1000 / 512] * 3 and n == 2 + 8, "one to compile, one to see how long it takes, and 15 milliseconds of it"
    takes[:] = [1.0]
    assert counted() == (pytest.approx(1000), 2 + benchmarker.FEWEST)
    takes[:] = [1e-6]
    assert counted() == (pytest.approx(1e-3), 2 + 100 * benchmarker.MOST), "a hundred to a sample that the clock can time"
    takes[:] = [2**-9]
    assert counted(rep=50, return_mode="all") == ([1000 / 512] * 26, 2 + 26)
    assert counted(warmup=10)[1] == 2 + 6 + 8
    takes[:] = [2**-9, 2**-8]
    for mode, want in (("min", 1), ("max", 2), ("mean", 1.5), ("median", 1.5)):
        assert counted(return_mode=mode, rep=24)[0] == want * 1000 / 512, mode
    with pytest.raises(ValueError, match="return_mode"):
        benchmarker.benchmark(fn, return_mode="mode")
    monkeypatch.undo()
    assert isinstance(benchmarker.benchmark(lambda: ops.square(torch.ones(8))), float)


def test_tiles_for_a_board(tmp_path, monkeypatch, capsys):
    """Each candidate is exported, checked and timed there; the table gets the board's kind."""
    from triport.backends.spine import runner

    small = dataclasses.replace(registry.get("square"), cases=(Case(((64, 48),)),))
    tiles = dataclasses.replace(search.searches()["square"], candidates=search.searches()["square"].candidates[:2])
    monkeypatch.setattr(search.registry, "get", lambda name: small)
    monkeypatch.setattr(search, "searches", lambda: {"square": tiles})
    monkeypatch.setattr(search, "seconds_of", lambda runs, rounds, device: {n: [9.0 - n] for n in runs})
    path = tmp_path / "tuned.json"
    assert main(["tune", "--on", "local", "--op", "square", "--dtype", "fp32", "--reps", "3", "-o", str(path)]) == 0
    board = runner.get("local").board
    (entry,) = tuning.load(path).values()
    assert list(tuning.load(path)) == [tuning.kind(board.row())] and entry["runs"][0]["machine"] == board.cpu and entry["tiles"]["square"]
    assert "of the default's time" in capsys.readouterr().err
    assert main(["tune", "--on", "local", "--device", "cuda", "--op", "square"]) == 2
    assert "does not go with --device cuda" in capsys.readouterr().err


def test_a_search_on_a_board_says_how_far_it_is():
    """A line for each candidate as soon as it was measured, before the summary; none for a search on this machine, whose candidates are timed in turns."""
    from triport.backends.spine import backend as spine
    said = []
    with spine.on("local"):
        search.search("square", ["fp32"], 2, 0.02, said.append, "board", ["64x64"])
    count = sum(line.endswith("of the default's time") for line in said)
    assert count > 1 and [line.split()[0] for line in said[:count]] == [f"[{n + 1}/{count}]" for n in range(count)]
    assert all(re.fullmatch(r"\[.*\] square 64x64 fp32 with square \{.*\}: [0-9.]+ us", line) for line in said[:count]) and len(said) == 2 * count


# --- what a table and a command line may not say ---------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [{"tiles": [], "runs": []}, {"tiles": {}, "runs": [{}]}, {"tiles": {}, "runs": [{"searched": "gelu"}]}, 3,
                                   {"tiles": {"gelu": {"BLOCK": 0}}, "runs": []}, {"tiles": {"gelu": {}}, "runs": []}, {"tiles": {"gelu": {"BLOCK": "a"}}, "runs": []},
                                   {"tiles": {"matmul": {"fp32": [[1, 2, float("nan"), 1]]}}, "runs": []}, {"tiles": {"gelu": {"BLOCK": True}}, "runs": []}])
def test_a_table_whose_entries_are_none(entry, tmp_path):
    file = tmp_path / "t.json"
    file.write_text(json.dumps({"AVX9": entry}))
    with pytest.raises(Error, match=rf"{file}: it is no table of tiles: AVX9 has "):
        tuning.load(file)
    with pytest.raises(Error, match=rf"{tmp_path}: it is no table of tiles \(Is a directory\)"):
        tuning.load(tmp_path)


@pytest.mark.parametrize("op,tiles,said", [("gelu", {"BLOK": 64}, "not an object with BLOCK"), ("gelu", [64], "not an object with BLOCK"), ("add_relu", [3], "not a list of 2"),
                                           ("softmax", {"row": 64}, "not an object with row, piece, columns"), ("matmul_softmax", {"a": 1}, "not a list of 2")])
def test_tiles_of_another_shape_than_the_ops(op, tiles, said, monkeypatch, tmp_path):
    monkeypatch.setenv("TRIPORT_TUNED", str(tmp_path / "t.json"))
    monkeypatch.setattr(tuning, "tuned", lambda: tuning.tuned_for(targets.native()))
    (tmp_path / "t.json").write_text(json.dumps({tuning.kind(targets.native()): {"tiles": {op: tiles}, "runs": []}}))
    with pytest.raises(Error, match=rf"t\.json: its tiles of {op} are .*{said}; `triport tune --op {op}`"):
        importlib.import_module(f"triport.ops.{op}").TILES.get("cpu")


@pytest.mark.parametrize("argv,said", [
    ("--op square --gain nan", "--gain nan: it takes a part"), ("--op square --gain -5", "--gain -5.0: it takes a part"), ("--op square --gain 1", "--gain 1.0: it takes a part"),
    ("--op matmul --dtype fp16", "matmul: its tiles are measured in fp32, bf16, fp64, not fp16"), ("--op square --case 0x5", "square 0x5: there is nothing to time"),
    ("--op square -o /nonexistent/x.json", "/nonexistent/x.json: there is no folder /nonexistent for the table"), ("--op square -o .", "it is a folder; name a file for the table")])
def test_what_is_wrong_is_said_before_anything_is_measured(argv, said, monkeypatch, capsys):
    monkeypatch.setattr(search, "search", lambda *args, **kwargs: pytest.fail("it measures"))
    assert main(["tune", *argv.split()]) == 2
    assert said in capsys.readouterr().err


def test_two_searches_at_once_keep_what_both_found(monkeypatch, tmp_path, capsys):
    """The other one writes while this one searches."""
    path, kind = tmp_path / "t.json", tuning.kind(targets.native())
    other = {"searched": ["gelu"], "machine": "another"}

    def meanwhile(name, *args, **kwargs):
        with tuning.updating(path) as table:
            entry = table.setdefault(kind, {"tiles": {}, "runs": []})
            if not entry["tiles"]:
                entry["tiles"]["gelu"] = {"BLOCK": 4096}
                entry["runs"].append(other)
        return {"BLOCK": 2048}

    monkeypatch.setattr(search, "search", meanwhile)
    assert main(["tune", "--op", "square", "--op", "add_relu", "-o", str(path)]) == 0
    entry = tuning.load(path)[kind]
    assert entry["tiles"] == {"gelu": {"BLOCK": 4096}, "square": {"BLOCK": 2048}, "add_relu": {"BLOCK": 2048}}
    assert entry["runs"][0] == other and [r["searched"] for r in entry["runs"][1:]] == [["add_relu", "square"]]
