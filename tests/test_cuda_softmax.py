"""softmax in CUDA C++: how blocks share a tensor, on any machine; its results, on a GPU."""

import math
import re

import pytest
import torch
from conftest import unavailable
from hypothesis import example, given
from hypothesis import strategies as st
from triport import backends, ops
from triport.backends import cuda
from triport.bench import check
from triport.ops import softmax_cuda

gpu = pytest.mark.skipif(bool(unavailable("cuda")), reason=str(unavailable("cuda")))
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
SIZES = {"float": 4, "half": 2, "bf16": 2, "double": 8}
sizes = st.one_of(st.integers(1, 300), st.integers(1, 20_000), st.integers(1, 600_000), st.sampled_from([65536, 131072, 1 << 20]))


def launches(x, dim: int, capability: tuple, monkeypatch) -> list:
    """(kernel, its template's arguments, grid, threads, arguments, cluster, shared) of what is launched for x."""
    seen = []

    def launch(path, kernel, grid, block, *args, cluster=1, shared=0, together=False):
        assert together == kernel.startswith("softmax_tall_columns")
        name, _, params = kernel.partition("<")
        seen.append((name, re.findall(r"Vec<\w+>|One<\w+>|\w+", params), grid, block, args, cluster, shared))

    with monkeypatch.context() as m:
        m.setattr(cuda, "launch", launch)
        m.setattr(cuda, "limits", lambda index: (132, 227 << 10 if capability >= (9, 0) else 64 << 10, capability))
        softmax_cuda.softmax(x, torch.empty_like(x), dim)
    return seen


@pytest.fixture(scope="module")
def patch():
    with pytest.MonkeyPatch.context() as m:
        yield m


@example(outer=1, n=513, inner=2, dtype=torch.float32, capability=(7, 5))  # 65 KiB, of 64
@given(outer=st.integers(1, 3), n=sizes, inner=st.one_of(st.just(1), st.integers(1, 3000)), dtype=st.sampled_from(DTYPES),
       capability=st.sampled_from([(7, 5), (8, 0), (9, 0)]))
@example(outer=2, n=20_000, inner=200, dtype=torch.float16, capability=(9, 0))
@example(outer=3, n=66_528, inner=64, dtype=torch.bfloat16, capability=(9, 0))
def test_blocks_cover_a_tensor_and_fit(patch, outer, n, inner, dtype, capability):
    x = torch.empty(outer, n, inner, dtype=dtype, device="meta")
    size = x.element_size()
    for name, params, grid, threads, args, cluster, shared in launches(x, 1, capability, patch):
        if name.startswith("softmax_tall"):
            _holds_slices(name, params, grid, threads, args, shared, x)
            continue
        assert SIZES[params[0]] == size and 32 <= threads <= 1024 and threads & (threads - 1) == 0
        assert 1 <= cluster <= (8 if capability >= (9, 0) else 1) and grid[0] % cluster == 0
        assert grid[0] < 1 << 31 and all(g < 65536 for g in grid[1:]) and shared + cuda.BESIDE <= (227 << 10 if capability >= (9, 0) else 64 << 10)
        blocks = math.prod(grid)
        if name == "softmax_rows":
            lanes = 32 if params[3] == "true" else threads
            assert blocks * (threads // lanes) >= outer and int(params[1]) * lanes * (16 // size) >= n
        elif name == "softmax_kept_rows":
            turns = args[3]
            assert grid == (outer * cluster,) and int(params[1]) == threads and turns * threads * 16 == shared
            assert cluster * turns * threads * (16 // size) >= n and (params[2] == "true") == (n * size % 16 == 0)
            pieces = -(-n * size // 16) + 1  # a row that is not aligned sticks out at both ends
            assert (turns - 1) * threads < -(-pieces // cluster)  # none of it is for nothing
        elif name == "softmax_long_rows":
            assert grid == (outer,)
        else:
            whole = params[1].startswith("Vec")
            assert whole == (inner * size % 16 == 0)
            lanes, per = (8, 16 // size) if whole else (32, 1)
            assert int(params[-1 if name != "column_stats" else -2]) == lanes and int(params[3 if name == "softmax_held_columns" else 2]) == threads
            across = -(-inner // (lanes * per))
            if name in ("softmax_columns", "softmax_held_columns"):
                turns = args[5] if name == "softmax_columns" else int(params[2])
                assert args[2:5] == (n, inner, across) and grid == (across * outer * cluster,)
                assert cluster * turns * (threads // lanes) >= n
                assert name == "softmax_held_columns" or turns * threads * (16 if whole else size) == shared
            else:
                step, parts = args[-1], grid[2]
                assert grid[:2] == (across, outer) and parts <= softmax_cuda.PARTS and step * parts >= n > step * (parts - 1)


def _holds_slices(name: str, params: list, grid: tuple, threads: int, args: tuple, shared: int, x):
    """Is a launch of softmax_tall.cuh's right for x?"""
    if name == "softmax_tall_begin":
        assert args[1] * 2 == args[0].numel() and 1 <= grid[0] <= 264 and threads == 256
        return
    (outer, n, inner), size = x.shape, x.element_size()
    computing, turns, lanes = map(int, params[1:])
    side = lanes * 16 // size
    told, (across, slices, group, step) = args[2], args[5:]
    assert outer * n * inner * size >= softmax_cuda.TALL_BYTES
    assert SIZES[params[0]] == size <= 4 and threads == computing + side and side % 32 == 0 and inner * size % 16 == 0 and inner >= side
    assert args[3:5] == (n, inner) and across * side >= inner > (across - 1) * side and slices == across * outer
    assert grid[0] % group == 0 and grid[0] <= 132 and group <= 288, "blocks wait for each other: all are on the GPU at once, one a multiprocessor"
    assert group * step >= n and step <= turns * (computing // lanes) and shared == 3 * turns * computing * 16 <= (227 << 10) - cuda.BESIDE
    assert told.numel() == slices * (group + 1) * side * 2


@pytest.mark.parametrize("shape,dim,dtype,kernel", [
    ((64, 1000), 1, torch.float16, "softmax_rows"), ((4, 8192), 1, torch.float16, "softmax_rows"), ((4, 131072), 1, torch.float16, "softmax_kept_rows"),
    ((4, 131072), 1, torch.float32, "softmax_kept_rows"), ((4, 50257), 1, torch.float16, "softmax_kept_rows"), ((1, 1 << 21), 1, torch.float32, "softmax_long_rows"),
    ((4096, 8192), 0, torch.float16, "softmax_columns"), ((1823, 781), 0, torch.float16, "softmax_held_columns"), ((3000, 781), 0, torch.float32, "softmax_columns"),
    ((65536, 256), 0, torch.float16, "softmax_tall_begin"), ((32768, 1000), 0, torch.float32, "softmax_tall_begin"), ((70000, 256), 0, torch.float16, "column_stats"),
    ((65536, 256), 0, torch.float64, "column_stats"), ((65536, 24), 0, torch.float16, "column_stats")])
def test_what_is_read_once(shape, dim, dtype, kernel, monkeypatch):
    """On a GPU with clusters: everything but what neither eight blocks nor all of them hold."""
    assert launches(torch.empty(shape, dtype=dtype, device="meta"), dim, (9, 0), monkeypatch)[0][0] == kernel
    without = launches(torch.empty(shape, dtype=dtype, device="meta"), dim, (8, 0), monkeypatch)
    assert "kept" not in without[0][0] and all(cluster == 1 for *_, cluster, _ in without)


@pytest.mark.parametrize("rows,columns,expected", [(2048, 16384, 4), (2048, 1024, 8), (1024, 16384, 4), (4096, 8192, 8)])
def test_clusters_are_small_where_there_are_many(rows, columns, expected, monkeypatch):
    """Blocks have twice as much then."""
    (name, _, grid, _, _, cluster, shared), = launches(torch.empty(rows, columns, dtype=torch.float16, device="meta"), 0, (9, 0), monkeypatch)
    assert name == "softmax_columns" and cluster == expected and shared * cluster >= rows * 128 and grid[0] == columns // 64 * cluster


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape,dim,offset", [
    ((3, 9000), 1, 0), ((3, 16384), 1, 0), ((5, 50257), 1, 0), ((2, 70001), 1, 3), ((2, 131072), 1, 0), ((1, 400_000), 1, 1), ((1, 3_000_000), 1, 0),
    ((70, 33), 0, 0), ((250, 5, 3), 0, 1), ((1823, 781), 0, 0), ((3000, 512), 0, 0), ((1536, 8192), 0, 0), ((2049, 65), 0, 0), ((64, 64), 0, 0), ((4096, 128), 0, 0), ((3, 1000, 24), 1, 0),
    ((12000, 40), 0, 0), ((30_000, 8), 0, 1), ((65536, 256), 0, 0), ((70_000, 3, 2), 1, 0),
    ((13_500, 256), 0, 0), ((20_001, 200), 0, 0), ((2, 15_000, 120), 1, 0), ((40_000, 1000), 0, 0), ((66_528, 128), 0, 0)])
def test_every_way_is_right(shape, dim, offset, dtype, seed):
    """Also where parts of a line, or all of it, are -infinity."""
    gen = torch.Generator(device="cuda").manual_seed(seed)
    n = offset + math.prod(shape)
    x = (6 * torch.randn(n, generator=gen, device="cuda", dtype=torch.float64)).to(dtype)[offset:].view(shape)
    lines = x.movedim(dim, 0)
    lines[: lines.shape[0] // 2, ..., 0] = -torch.inf
    lines[..., -1] -= 400  # beside -infinity, whose sums must not be scaled by exp(400)
    lines[::3, ..., -1] = -torch.inf
    with backends.use("cuda"):
        out = ops.softmax(x, dim)
    want = torch.softmax(x.double(), dim)
    assert check.error(out, want) < {torch.float64: 2e-13, torch.float32: 1e-6}.get(dtype, 8e-3)
    x.movedim(dim, 0)[..., 0] = -torch.inf
    with backends.use("cuda"):
        out = ops.softmax(x, dim)
    torch.testing.assert_close(out.isnan(), torch.softmax(x.double(), dim).isnan())


@gpu
@pytest.mark.gpu
def test_blocks_that_wait_for_each_other_on_two_streams_and_in_a_graph(seed):
    """Two launches whose blocks fill the GPU, at once; and what is captured finds nothing that a replay before it has told."""
    gen = torch.Generator(device="cuda").manual_seed(seed)
    xs = [torch.randn(30_000, 200, generator=gen, device="cuda") for _ in range(2)]
    want = [torch.softmax(x.double(), 0) for x in xs]
    streams, got = [torch.cuda.Stream() for _ in xs], [[], []]
    torch.cuda.synchronize()
    with backends.use("cuda"):
        for _ in range(20):
            for stream, x, into in zip(streams, xs, got):
                with torch.cuda.stream(stream):
                    into.append(ops.softmax(x, 0))
    torch.cuda.synchronize()
    assert max(check.error(y, w) for ys, w in zip(got, want) for y in ys) < 1e-6
    x, graph = xs[0].clone(), torch.cuda.CUDAGraph()
    with backends.use("cuda"), torch.cuda.graph(graph):
        y = ops.softmax(x, 0)
    for other, w in zip([*xs, xs[0] - 3], [*want, want[0]]):
        x.copy_(other)
        graph.replay()
        assert check.error(y, w) < 1e-6


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton-gpu", "cuda"])
@pytest.mark.parametrize("shape,dim", [((65537, 8), 1), ((65537, 4, 3), 1), ((66_000, 300, 2), 1)])
def test_more_lines_than_a_grids_second_dimension_has(shape, dim, backend):
    x = torch.randn(shape, device="cuda", requires_grad=True)
    with backends.use(backend):
        y = ops.softmax(x, dim)
        g = torch.randn_like(y)
        dx, = torch.autograd.grad(y, x, g)
    want = torch.softmax(x.detach().double(), dim)
    assert check.error(y.detach(), want) < 1e-6
    assert check.error(dx, want * (g.double() - (g.double() * want).sum(dim, keepdim=True))) < 2e-6
