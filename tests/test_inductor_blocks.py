"""Blocks of Inductor's reductions for the CPU: `cpu_backend = "triton"`, sums over and along rows against float64."""

import types

import pytest
import torch

inductor = pytest.importorskip("torch._inductor.config")
pytestmark = pytest.mark.usefixtures("through_triton")
R = torch.randn
FUNCTIONS = {
    "sum": lambda x, dim: x.sum(dim),
    "bias": lambda x, dim: (x * (x > 0)).sum(dim),
    "largest": lambda x, dim: x.amax(dim),
    "place": lambda x, dim: x.argmax(dim),
    "variance": lambda x, dim: x.var(dim),
    "softmax": lambda x, dim: x.softmax(dim),
    "mean of half": lambda x, dim: x[:, ::2].mean(dim),
}


@pytest.fixture
def chosen(monkeypatch, tmp_path):
    """A list of what is chosen for each kernel: (hints of sizes, [(columns, rows) of a block])."""
    from torch._inductor.runtime import triton_heuristics as heuristics
    listed, ours = [], heuristics._reduction_configs

    def configs(**given):
        made = ours(**given)
        listed.append((dict(given["size_hints"]), [(c.kwargs["XBLOCK"], c.kwargs["R0_BLOCK"]) for c in made]))
        return made

    monkeypatch.setattr(heuristics, "_reduction_configs", configs)
    monkeypatch.setattr(inductor, "compile_threads", 1)  # in this process
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    return listed


def right(fn, *args):
    got, want = torch.compile(fn)(*args), fn(*(a.double() for a in args))
    assert got.isfinite().all() and (got.double() - want.double()).norm() <= 2e-6 * want.double().norm() + 1e-12


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_reductions(name, dim, seed):
    torch.manual_seed(seed)
    for shape in ((1000, 1000), (1, 3001), (2049, 30), (37, 4097), (5000, 1), (1300, 1025)):
        if name == "variance" and shape[dim] == 1:
            continue  # of one number it is none
        right(lambda x: FUNCTIONS[name](x, dim), R(*shape) + 0.5)
        torch._dynamo.reset()


def test_sums_over_rows_have_wide_blocks(chosen, seed):
    torch.manual_seed(seed)
    right(lambda x: x.sum(0), R(2000, 1500) + 0.5)
    (_, blocks), = chosen
    assert blocks[0] == (1024, 1) and all(columns >= 64 for columns, _ in blocks), "Inductor's have 8 or 2 columns"


def test_long_rows_are_tried_by_short_blocks(chosen, seed):
    torch.manual_seed(seed)
    right(lambda x: x.var(1), R(30, 5000))
    (_, blocks), = chosen
    assert (1, 64) in blocks and len(blocks) > 1
    chosen.clear()
    torch._dynamo.reset()
    right(lambda x: x.var(1), R(30, 1500))
    (hints, blocks), = chosen
    assert (1, 64) not in blocks and max(r for _, r in blocks) >= hints["r0_"], "one block has all of a row"


def test_who_asks_for_more_gets_all(chosen, seed):
    torch.manual_seed(seed)
    with inductor.patch(max_autotune_pointwise=True):
        right(lambda x: x.sum(0), R(2000, 1500) + 0.5)
    (_, blocks), = chosen
    assert (1024, 1) in blocks and any(rows >= 512 for _, rows in blocks), "Inductor's are tried, too"


def test_other_devices_keep_theirs():
    from triport.backends.cpu.plugin import blocks

    def theirs(*, size_hints, inductor_meta, triton_meta, num_dynamic=0):
        return ["theirs"]

    ours = blocks.chosen(theirs, lambda hints, columns, rows, **_: (columns, rows))
    of = {"size_hints": {"x": 4096, "r0_": 4096}, "inductor_meta": {"tiling_scores": {"x": 9, "r0_": 1}}, "num_dynamic": 0}
    for kind in ("cuda", "xpu"):
        assert ours(**of, triton_meta={"device": types.SimpleNamespace(type=kind)}) == ["theirs"]
    on_cpu = {"device": types.SimpleNamespace(type="cpu")}
    assert ours(**of, triton_meta=on_cpu) == list(blocks.OVER_ROWS)
    assert ours(**of | {"size_hints": {"x": 64, "y": 64, "r0_": 4096}}, triton_meta=on_cpu) == ["theirs"], "blocks of three dimensions"


def test_another_torch_is_left_alone():
    from triport.backends.cpu.plugin import blocks

    def configs(size_hints, inductor_meta):
        return []

    module = types.SimpleNamespace(_reduction_configs=configs, triton_config_reduction=len)
    blocks.mend(module)
    assert module._reduction_configs is configs
    blocks.mend(types.SimpleNamespace())  # has neither
