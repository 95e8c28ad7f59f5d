"""Tiles and grids of code for a board: by the board's cores and caches, whatever machine makes it."""

import dataclasses

import pytest
import torch
from triport.backends.cpu.llvm import targets
from triport.backends.spine import library
from triport.backends.spine.trace import trace
from triport.ops import Case, registry
from triport.tools.__main__ import main

X60 = targets.get("spacemit-x60")


def launches(name: str, *shapes, dtype="fp32", row=X60, **kwargs):
    return trace(registry.get(name), Case(shapes, kwargs), dtype, row).launches


def programs(launch) -> int:
    """Of the sizes at hand, which are the expressions' only symbols: all have one size here."""
    count = 1
    for axis in launch.grid:
        count *= int(axis.subs({s: 128 for s in axis.free_symbols}))
    return count


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_laptop_has_no_say(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        (product,), (gelu,) = launches("matmul", (128, 128), (128, 128)), launches("gelu", (128, 128))
    finally:
        torch.set_num_threads(before)
    assert programs(product) == 8 and programs(gelu) == 8
    (few,) = launches("matmul", (128, 128), (128, 128), row=dataclasses.replace(X60, cores=2))
    assert programs(few) < 8


@pytest.mark.parametrize("name,kwargs", [("matmul", {}), ("matmul_softmax", {"dim": 0}), ("matmul_softmax", {"dim": -1})])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_a_product_fits_in_its_cores_share_of_the_cache(name, kwargs, dtype):
    for n in (128, 512, 1024):
        for launch in launches(name, (n, n), (n, n), dtype=dtype, **kwargs):
            scratch = library.compile_kernel(launch, X60, "k").metadata.scratch_bytes
            assert scratch <= X60.scratch == 64 << 10, (n, launch.consts, scratch)


def test_export_says_for_how_many_threads(tmp_path, capsys):
    argv = ["export", "matmul", "--target", "spacemit-x60", "--case", "128x128,128x128", "--reps", "0"]
    assert main([*argv, "-o", str(tmp_path / "a")]) == 0 == main([*argv, "--threads", "1", "-o", str(tmp_path / "b")])
    ours, one = ((tmp_path / x / "libmatmul.so").read_bytes() for x in "ab")
    assert ours != one
    assert main([*argv, "--threads", "-3", "-o", str(tmp_path / "c")]) == 2 and "from 1 to 1024" in capsys.readouterr().err


def test_bench_and_its_bundles_take_a_number_of_threads(tmp_path, monkeypatch, capsys):
    """`--threads` with `--on`: tiles are chosen for so many, and calls there take so many; without it for the board's cores, with `--target`, too."""
    from triport.backends.spine import bundle, request, runner
    here = runner.get("local").board.row().name
    rows, asked = [], []
    plain, execute = bundle.for_call, runner.Runner.execute
    monkeypatch.setattr(bundle, "for_call", lambda op, case, dtype, row: rows.append(row.cores) or plain(op, case, dtype, row))
    monkeypatch.setattr(runner.Runner, "execute", lambda self, b, arguments, data=b"", limit=None: asked.append(data) or execute(self, b, arguments, data, limit))
    argv = ["bench", "--on", "local", "--op", "square", "--case", "64x64", "--reps", "1", "--no-cold"]
    for more, cores, threads in ((["--threads", "3"], 3, 3), ([], runner.get("local").board.cores, 0), (["--target", here], runner.get("local").board.cores, 0)):
        rows.clear(), asked.clear()
        assert main([*argv, *more]) == 0
        assert rows[-1] == cores and request.struct.unpack_from("<q", asked[-1], 8 * request.THREADS) == (threads,)
    assert main(["export", "square", "--on", "local", "--case", "64x64", "--threads", "2", "-o", str(tmp_path / "b")]) == 0
    for more, threads in (([], 0), (["--threads", "5"], 5)):
        assert main(["bench", "--on", "local", "--bundle", str(tmp_path / "b"), *more]) == 0
        assert request.struct.unpack_from("<q", asked[-1], 8 * request.THREADS) == (threads,)
    assert bundle.load(tmp_path / "b").manifest["target"]["cores"] == 2
