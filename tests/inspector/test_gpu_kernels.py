"""Triton kernels of known quality on GPU targets, and each part of the judgement beside a second source."""

import random
import re

import pytest
from triport.backends.base import Error
from triport.ops import registry
from triport.tools.inspector import code, flow, isa, launches, report, targets, text, verdict
from triport.tools.inspector.gpu import arch, kernels, lanes, layout
from triport.tools.inspector.stats import line_of

SOURCE = '''import triton, triton.language as tl

@triton.jit
def side_by_side(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + o, tl.load(x_ptr + o) * 2)

@triton.jit
def bounded(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + o, tl.load(x_ptr + o, mask=o < n) * 2, mask=o < n)

@triton.jit
def columns(x_ptr, y_ptr, s, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + o * s, tl.load(x_ptr + o * s) * 2)

@triton.jit
def rows_of_four(x_ptr, y_ptr, s, BLOCK: tl.constexpr):
    p = tl.arange(0, BLOCK)[:, None] * s + tl.arange(0, 4)[None, :]
    tl.store(y_ptr + p, tl.load(x_ptr + p) * 2)

@triton.jit
def gather(x_ptr, i_ptr, y_ptr, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = tl.load(i_ptr + o)
    tl.store(y_ptr + o, tl.load(x_ptr + at))

@triton.jit
def one_by_one(x_ptr, y_ptr, n):
    s = 0.0
    for i in range(n):
        s += tl.load(x_ptr + i)
        tl.store(y_ptr + i, s)

@triton.jit
def small(x_ptr, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), 1.0)

@triton.jit
def divided(x_ptr, y_ptr, m, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + o, tl.load(x_ptr + o // m))

@triton.jit
def product(a_ptr, b_ptr, c_ptr, N: tl.constexpr):
    r = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(c_ptr + r, tl.dot(tl.load(a_ptr + r), tl.load(b_ptr + r)))

@triton.jit
def late(x_ptr, y_ptr, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(y_ptr + o, tl.load(x_ptr + 1 + o) * 2)

@triton.jit
def rows(x_ptr, y_ptr, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    p = tl.arange(0, ROWS)[:, None] * n + tl.arange(0, BLOCK)[None, :]
    tl.store(y_ptr + p, tl.load(x_ptr + p) * 2)
'''
TARGETS = ("sm_80", "sm_90", "gfx90a", "gfx942")
XY = {"x_ptr": "fp32[16]", "y_ptr": "fp32[16]"}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    p = tmp_path_factory.mktemp("gpu") / "kernels_for_gpus.py"
    p.write_text(SOURCE)
    return p


def made(path, name, target, args, consts):
    launch = launches.of_kernel(registry.load(path, name), args, {k: str(v) for k, v in consts.items()}, {})
    return code.of_launch(launch, targets.get(target))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name,args,consts,want,cause,says", [
    ("side_by_side", {**XY, "n": "i32"}, {"BLOCK": 256}, "VECTOR", None, ""), ("side_by_side", {**XY, "n": "i32"}, {"BLOCK": 1024}, "VECTOR", None, ""),
    ("bounded", {**XY, "n": "i32"}, {"BLOCK": 1024}, "PARTLY", "alignment unknown", ": n not known"),
    ("columns", {**XY, "s": "i32", "n": "i32"}, {"BLOCK": 1024}, "SCALAR", "stride", "lie s elements apart"),
    ("rows_of_four", {**XY, "s": "i32"}, {"BLOCK": 256}, None, "stride", "rows of 16 bytes lie s elements apart"),
    ("gather", {**XY, "i_ptr": "i32[16]"}, {"BLOCK": 1024}, "PARTLY", "gather", "from memory"),
    ("one_by_one", {**XY, "n": "i32"}, {}, "SCALAR", "one element at a time", "the same 4 bytes"),
    ("small", {"x_ptr": "fp32[16]"}, {"BLOCK": 16}, "PARTLY", "tile too small", "16 elements"),
    ("late", XY, {"BLOCK": 1024}, "PARTLY", "rows off sectors", "do not start"),
    ("divided", {**XY, "m": "i32"}, {"BLOCK": 1024}, "VECTOR", "index by division", "//"),
])
def test_verdicts_and_causes(path, target, name, args, consts, want, cause, says):
    r = report.of(made(path, name, target, args, consts))
    (hot,) = r.hot
    causes = verdict.causes(hot, True)
    assert r.verdict == want or want is None and r.verdict in ("PARTLY", "SCALAR"), hot.memory.as_dict()
    assert ([c.name for c in causes] or [None])[0] == cause and says in (causes[0].text if causes else "")
    if causes:
        lines = SOURCE.split("\n")
        assert "tl.load" in lines[int(causes[0].line.rpartition(":")[2]) - 1] or "tl.store" in lines[int(causes[0].line.rpartition(":")[2]) - 1]
    unmet = r.failures(verdict.requirements("vector>=0.95, coalesced>=0.95"))
    assert bool(unmet) == (r.verdict != "VECTOR")
    first = SOURCE.split("\n").index(f"def {name}(" + SOURCE.split(f"def {name}(")[1].split("\n")[0]) + 1
    last = first + SOURCE.split(f"def {name}(")[1].split("\n\n")[0].count("\n")
    assert all(first <= n <= last for _, n in hot.lines), "lines of inline assembly do not count on"
    assert r.occupancy.share > 0 and hot.figures["occupancy"] == r.occupancy.share


def test_an_argument_whose_value_is_told(path):
    """Rows of 100 floats start off the sectors, rows of 128 do not."""
    figures = [report.of(made(path, "rows", "sm_90", {**XY, "n": n}, {"ROWS": 8, "BLOCK": 64})).hot[0].figures["coalesced"] for n in ("100", "99", "128")]
    assert figures[2] == 1 and figures[1] < figures[0] <= 1


@pytest.mark.parametrize("target,dtype,cores", [("sm_90", "fp16", 1.0), ("gfx942", "fp16", 1.0), ("sm_80", "fp32", 1.0)])
def test_tensor_cores(path, target, dtype, cores):
    r = report.of(made(path, "product", target, {p: f"{dtype}[16]" for p in ("a_ptr", "b_ptr", "c_ptr")}, {"N": 32}))
    assert r.hot[0].figures["tensor_cores"] == cores and r.hot[0].figures["matrix"] > 0
    assert "no tensor cores" not in [c.name for c in verdict.causes(r.hot[0], True)]


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942", "gfx1100"])
@pytest.mark.parametrize("name,consts", [("side_by_side", {"BLOCK": 1024}), ("columns", {"BLOCK": 512}), ("rows_of_four", {"BLOCK": 256}), ("product", {"N": 64})])
def test_machine_code_and_ttgir_agree(path, target, name, consts):
    """A warp's requests computed from the registers are among those computed from the layouts."""
    args = {"columns": {**XY, "s": "i32", "n": "i32"}, "rows_of_four": {**XY, "s": "i32"}, "side_by_side": {**XY, "n": "i32"},
            "product": {p: "fp16[16]" for p in ("a_ptr", "b_ptr", "c_ptr")}}[name]
    c = made(path, name, target, args, consts)
    machine, row = arch.of(target), isa.ISAS[c.isa]
    kernel = kernels.Kernel(c.stages["ttgir"], {}, (), machine.warp, machine.sector)
    (f,) = text.functions(c.text, row)
    isa.classify(f, row, isa.Machine())
    flow.analyse(f)
    walked, seen = lanes.walk(f, c.isa, machine, {}), 0
    for i in f.instructions:
        if i.what.is_memory and i.what.space in ("global", "flat") and line_of(i):
            q, bits = walked[id(i)], i.what.loads or i.what.stores
            numbers = kernel.numbers(line_of(i), "store" if i.what.stores else "load", bits, False, not machine.amd, q)
            assert q.known and any(kernels._alike(q, other) for other in kernel.requests(numbers, bits)), i.text
            seen += 1
    assert seen >= 2


def test_layouts_as_triton_has_them(seed):
    """Blocked layouts and slices of them, read here, beside Triton's own conversion."""
    rng, types = random.Random(seed), []
    power = lambda most: 1 << rng.randint(0, most)  # noqa: E731
    for _ in range(40):
        lanes_, warps = 1 << rng.randint(0, 5), 1 << rng.randint(0, 2)
        order = rng.choice(("[0, 1]", "[1, 0]"))
        blocked = (f"#ttg.blocked<{{sizePerThread = [{power(2)}, {power(3)}], threadsPerWarp = [{lanes_}, {32 // lanes_}], warpsPerCTA = [{warps}, {4 // warps}], "
                   f"order = {order}}}>")
        shape = (power(7), power(7))
        types.append(f"tensor<{shape[0]}x{shape[1]}xf32, {blocked}>")
        dim = rng.randint(0, 1)
        types.append(f"tensor<{shape[1 - dim]}xi32, #ttg.slice<{{dim = {dim}, parent = {blocked}}}>>")
    head = 'module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {\n'
    mine, theirs = layout.places(head, types), layout._by_triton(head, list(dict.fromkeys(types)))
    assert len(theirs) == len(set(types))
    for t, bases in theirs.items():
        other = layout._spread(bases, layout.shape_of(t))
        for w in range(4):
            for lane in range(32):
                assert {tuple(x) for x in mine[t][w, lane]} == {tuple(x) for x in other[w, lane]}, t


@pytest.mark.parametrize("target,facts,warps,limit", [
    ("sm_90", {"registers": 32, "warps": 4}, 64, "warps"), ("sm_90", {"registers": 255, "warps": 4}, 8, "registers"),
    ("sm_90", {"registers": 255, "warps": 8}, 8, "registers"), ("sm_80", {"registers": 32, "warps": 4, "shared memory, bytes": 49152}, 12, "shared memory"),
    ("sm_86", {"registers": 40, "warps": 4}, 48, "warps"), ("sm_75", {"registers": 64, "warps": 4}, 32, "warps"),
    ("sm_90", {"registers": 32, "warps": 1}, 32, "blocks"), ("gfx942", {"vector registers": 128, "warps": 4}, 16, "registers"),
    ("gfx908", {"vector registers": 64, "warps": 4}, 16, "registers"), ("gfx942", {"vector registers": 32, "warps": 4, "shared memory, bytes": 32768}, 8, "shared memory"),
    ("gfx1100", {"vector registers": 96, "warps": 4}, 64, "warps"), ("gfx1100", {"vector registers": 192, "warps": 4}, 32, "registers"),
])
def test_occupancy(target, facts, warps, limit):
    got = arch.occupancy(arch.ARCHS[target], facts)
    assert (got.warps, got.limit) == (warps, limit) and got.share == round(warps / got.most, 4)


@pytest.mark.parametrize("target", ["gfx908", "gfx90a", "gfx942", "gfx1100", "gfx1200"])
def test_occupancy_as_llvm_has_it(path, target):
    """LLVM writes waves of a SIMD behind AMDGCN."""
    c = made(path, "product", target, {p: "fp16[16]" for p in ("a_ptr", "b_ptr", "c_ptr")}, {"N": 64})
    waves = int(re.search(r"; Occupancy: (\d+)", c.text)[1])
    mine = arch.occupancy(arch.ARCHS[target], {k: v for k, v in c.facts.items() if "registers" in k})
    assert mine.warps == 4 * waves or waves < mine.warps // 4 and c.facts["shared memory, bytes"] > 16384


def test_every_gpu_target_has_its_row():
    assert {f"sm_{n}" for n in targets.SM} | set(targets.GFX) == set(arch.ARCHS)
    assert all(arch.ARCHS[name].warp == warp for name, (warp, _) in targets.GFX.items())


def test_a_figure_that_no_cpu_has():
    with pytest.raises(Error, match="did you mean 'coalesced'"):
        verdict.requirements("coalesed>=0.9")
