"""Products of batches: right whatever broadcasts and however it lies, between guard words, by the kernels that are meant, without copies of what can be walked; and all that follows an op."""

import functools
import importlib
import itertools
import random
from types import SimpleNamespace

import pytest
import torch
from conftest import everywhere, served_by
from hypothesis import given, settings, strategies as st
from torch.func import jvp, vmap
from triport import ops
from triport.backends.base import ArgumentError
from triport.backends.dispatch import replay
from triport.bench import check
from triport.ops import Case, batches, cases
from triport.ops.accuracy import error
from triport.ops.makespan import makespan
from triport.ops.matmul import OP
from triport.ops.tiles import chosen_tile, tile_for, whole
from triport.testing import launches
from triport.tools.__main__ import main

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}


def laid(shape, how: str, dtype=torch.float32) -> torch.Tensor:
    """Random matrices that lie one after the other, or transposed, with gaps, as every other column, side by side as heads do, or last in memory."""
    *lead, m, n = shape
    new = lambda *s: torch.randn(s, dtype=torch.float64).to(dtype)  # noqa: E731
    if how == "transposed":
        return new(*lead, n, m).mT
    if how == "gaps":
        return new(*lead, m + 1, n + 3)[..., 1:, 1:n + 1]
    if how == "every other":
        return new(*lead, m, 2 * n)[..., ::2]
    if how == "heads" and lead:
        return new(*lead[:-1], m, lead[-1], n).transpose(-3, -2)
    if how == "last" and lead:
        return new(m, n, *lead).permute(*range(2, 2 + len(lead)), 0, 1)
    return new(*shape)


LAYOUTS = "straight", "transposed", "gaps", "every other", "heads", "last"


def compare(a: torch.Tensor, b: torch.Tensor, got: torch.Tensor | None = None):
    """Beside float64: a sum's error is relative to its terms."""
    got = ops.matmul(a, b) if got is None else got
    want, terms = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    assert got.shape == want.shape and got.dtype is a.dtype and got.is_contiguous()
    assert not got.isnan().any() and (got.double() - want).norm() <= OP.allowed(a.dtype) * max(want.norm(), 0.1 * terms.norm())


#: batches of a and of b, and (M, K, N): matrices alone, ones, absent dimensions; tiles, lines of each end, eight lines, no terms, nothing
SHAPES = (((3,), (3,)), ((2, 3), (2, 3)), ((2, 1), (1, 4)), ((), (5,)), ((5,), ()), ((2, 3), ()), ((3, 2), (2,)), ((1,), (1,)), ((1, 1), ()), ((4, 1, 2), (3, 1)), ((0,), (0,)), ((2, 0), (1, 0)))
SIZES = ((33, 65, 17), (64, 128, 64), (1, 64, 50), (1, 300, 9), (4, 40, 33), (9, 70, 1), (3, 9, 3), (6, 300, 21), (40, 257, 8), (70, 33, 130), (16, 1, 16), (2, 0, 3), (0, 4, 3), (5, 700, 5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES, ids=lambda s: "x".join(map(str, s)))
def test_any_batch(sizes, dtype, seed):
    """Twice: what was launched is launched again."""
    torch.manual_seed(seed)
    (m, k, n), rng = sizes, random.Random(seed)
    for one, other in rng.sample(SHAPES, 4 if dtype == "fp32" else 2):
        a, b = laid((*one, m, k), rng.choice(LAYOUTS), DTYPES[dtype]), laid((*other, k, n), rng.choice(LAYOUTS), DTYPES[dtype])
        for _ in range(2):
            compare(a, b)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from(("both", "a", "b", "neither"))), max_size=4), st.integers(0, 2), st.integers(1, 80), st.integers(1, 300), st.integers(1, 80),
       st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS), st.integers(0, 2**31))
def test_any_size(lead, absent, m, k, n, a, b, seed):
    torch.manual_seed(seed)
    one, other = ([size if who in (mine, "both") else 1 for size, who in lead] for mine in "ab")
    compare(laid((*one[absent:], m, k), a), laid((*other, k, n), b))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("m,k,n,turned", [(33, 65, 17, False), (1, 64, 50, False), (1, 300, 9, True), (6, 300, 21, True), (50, 300, 7, True), (4, 40, 33, True), (9, 70, 1, False)])
def test_nothing_beyond_the_result_is_written(m, k, n, turned, dtype, seed):
    torch.manual_seed(seed)
    a, b = torch.randn(2, 3, m, k).to(dtype), (torch.randn(2, 3, n, k).mT if turned else torch.randn(2, 3, k, n)).to(dtype)
    out, whole = check.guarded((2, 3, m, n), dtype)
    batches.product(a, b, out, functools.partial(tile_for, alone=True))
    compare(a, b, out)
    assert check.guards_hold(whole)


def kernels(a: torch.Tensor, b: torch.Tensor) -> dict[str, int]:
    with launches.watched() as report:
        ops.matmul(a, b)
    return dict(report.kernels)


def test_which_kernel(monkeypatch):
    """Few lines are read where they lie; several matrices times one are one; a batch of one is none."""
    monkeypatch.setattr(batches, "by_pairs", lambda: False)
    r = torch.randn
    lines, tiles = {"batched_lines_kernel": 1}, {"batched_matmul_kernel": 1}
    for a, b, want in ((r(3, 1, 64), r(3, 64, 4), lines), (r(3, 1, 64), r(3, 50, 64).mT, lines), (r(3, 4, 64), r(3, 50, 64).mT, lines), (r(3, 50, 64), r(3, 64, 1), lines),
                       (r(3, 4, 64), r(3, 64, 4), tiles), (r(3, 5, 64), r(3, 64, 50), tiles), (r(3, 5, 300), r(3, 50, 300).mT, lines), (r(3, 50, 300), r(3, 6, 300).mT, lines),
                       (r(3, 9, 300), r(3, 50, 300).mT, tiles), (r(3, 5, 200), r(3, 50, 200).mT, tiles), (r(3, 40, 30), r(30, 20), {"matmul_kernel": 1}), (r(1, 1, 40, 30), r(1, 30, 20), {"matmul_kernel": 1}),
                       (r(3, 40, 30), r(1, 1, 30, 20), {"matmul_kernel": 1}), (r(40, 30), r(3, 30, 20), tiles), (r(3, 40, 30).mT, r(40, 20), tiles)):
        assert kernels(a, b) == want, (a.shape, b.shape)


@pytest.mark.parametrize("few_rows,rows", [(32, 1), (0, 4)])
def test_lines_that_lie_along_columns(few_rows, rows, monkeypatch):
    """Of fp32 more than one row goes by tiles where those read a factor where it lies; what is widened does not, nor what has fewer columns than a vector."""
    monkeypatch.setattr(batches.targets, "native", lambda: SimpleNamespace(few_rows=few_rows))
    monkeypatch.setattr(batches, "by_pairs", lambda: False)
    asked = [(m, dtype) for dtype in (torch.float32, torch.float16) for m in range(1, 6) if batches._lines(torch.zeros(m, 9, dtype=dtype), torch.zeros(9, 50, dtype=dtype)) == m]
    assert asked == [(m, torch.float32) for m in range(1, rows + 1)] + [(m, torch.float16) for m in range(1, 5)]
    assert batches._lines(torch.zeros(1, 9), torch.zeros(9, 2)) == 1 and batches._lines(torch.zeros(4, 9), torch.zeros(9, 8)) == 0


def test_lines_on_a_gpu():
    """Those along K in any dtype, others where a tile's rows would be padded for nothing that multiplies them; two programs a multiprocessor if there are columns for them."""
    for dtype, straight in ((torch.float16, (1, 0, 0)), (torch.float32, (1, 4, 0))):
        assert tuple(batches._lines_on_gpu(torch.zeros(m, 64, dtype=dtype), torch.zeros(64, 50, dtype=dtype)) for m in (1, 4, 5)) == straight
        assert [batches._lines_on_gpu(torch.zeros(m, 64, dtype=dtype), torch.zeros(50, 64, dtype=dtype).T) for m in (1, 4, 5)] == [1, 4, 0]
    assert batches._lines_on_gpu(torch.zeros(1, 64), torch.zeros(64, 100)[:, ::2]) == 0
    for sizes, tile in (((1, 1024, 64, True, 128), (True, 128, 32, 4)), ((4, 1024, 64, True, 128), (True, 128, 16, 2)), ((1, 64, 1024, False, 128), (False, 32, 256, 4)), ((1, 64, 4096, False, 16), (False, 16, 256, 4)),
                        ((1, 64, 64, False, 1000), (False, 64, 64, 4)), ((2, 3, 5, False, 1), (False, 16, 16, 2))):
        assert batches._tile_of_lines_on_gpu(*sizes) == tile


@pytest.mark.parametrize("m,k,n,turned", [(1, 64, 300, True), (4, 65, 50, True), (3, 300, 40, False), (1, 1000, 64, False)])
def test_lines_as_a_gpu_has_them(m, k, n, turned, monkeypatch, seed):
    """The same kernel, in its tiles."""
    torch.manual_seed(seed)
    x, w = torch.randn(2, 3, m, k), torch.randn(2, 3, n, k).mT if turned else torch.randn(2, 3, k, n)
    r = batches._lines_on_gpu(x[0, 0], w[0, 0])
    along, bn, bk, warps = batches._tile_of_lines_on_gpu(r, n, k, turned, 6)
    c, whole = check.guarded((2, 3, m, n), torch.float32)
    batches.batched_lines_kernel[(6 * -(-n // bn),)](x, w, c, m, n, k, m * n, 6, 0, m * k, k, 1, 0, k * n, *w.stride()[-2:], n, 1, R=r, BN=bn, BK=bk, ALONG=along)
    compare(x, w, c)
    assert check.guards_hold(whole)


def test_which_way_vectors_go():
    """Along K where columns would fill no vector, if both lie so."""
    x, w = torch.zeros(1, 64), torch.zeros(64, 50)
    assert batches._along(x, torch.zeros(50, 64).T) and batches._along(x, torch.zeros(64, 1)) and not batches._along(x, w)
    assert not batches._along(torch.zeros(64, 2).T[:1], torch.zeros(64, 1)) and not batches._along(x, torch.zeros(64, 2))


def test_heads_are_not_copied(monkeypatch):
    """Two dimensions of a batch are walked as they lie, and a call like one before is launched again; three that do not lie behind one another are copied."""
    q, k = torch.randn(2, 9, 4, 16).transpose(1, 2), torch.randn(2, 7, 4, 16).transpose(1, 2)
    batch = batches.walked(q, k.mT, (2, 4))
    assert (batch.count, batch.inner, batch.steps) == (8, 4, ((576, 16), (448, 16))) and batch.a.data_ptr() == q.data_ptr() and batch.b.data_ptr() == k.data_ptr()
    shared = batches.walked(torch.randn(2, 3, 4, 5, 6), torch.randn(6, 7), (2, 3, 4))
    assert (shared.count, shared.inner, shared.steps) == (24, 24, ((0, 30), (0, 0)))
    several = batches.walked(torch.randn(2, 1, 3, 5, 6), torch.randn(4, 1, 6, 7), (2, 4, 3))
    assert several.count == 24 and several.inner == 24
    before = len(replay._plans)
    ops.matmul(q, k.mT)
    assert len(replay._plans) == before + 1


def test_tiles_of_many_matrices(monkeypatch):
    """More of them fill all threads, so that each may go in larger tiles; how long tiles take is how many there are."""
    few, many = (makespan(16, 256, 256, 256, 256, 1.0, 4, True, count) for count in (1, 16))
    assert many == pytest.approx(few, rel=0.5) and makespan(16, 256, 256, 64, 64, 1.0, 4, True, 32) == pytest.approx(2 * makespan(16, 256, 256, 64, 64, 1.0, 4, True, 16), rel=0.2)
    choice = ((256, 256, 64, 1.0), (64, 64, 64, 0.7))
    monkeypatch.setattr(importlib.import_module("triport.ops.tiles"), "second_cache", lambda: 1 << 20)
    assert not whole(torch.float32, 256, 256, 1024, 16, 1.0) and whole(torch.float32, 256, 256, 1024, 16, 1.0, 64), "programs in a row share what is packed of B"
    assert chosen_tile(True, 16, 256, 256, 256, choice)["BM"] == 64 and chosen_tile(True, 16, 256, 256, 256, choice, 64)["BM"] == 256


@pytest.mark.parametrize("one,other", [((3,), (3,)), ((2, 1), (1, 3)), ((), (3,)), ((2, 3), ()), ((3,), (2, 1)), ((1,), (1,))])
def test_derivatives(one, other, seed):
    torch.manual_seed(seed)
    a, b = torch.randn(*one, 3, 4, dtype=torch.float64, requires_grad=True), torch.randn(*other, 4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(ops.matmul, (a, b), check_forward_ad=True) and torch.autograd.gradgradcheck(ops.matmul, (a, b))
    only, = torch.autograd.grad(ops.matmul(a, b.detach()).sum(), a)
    assert only.shape == a.shape
    out, tangent = jvp(ops.matmul, (a.detach(), b.detach()), (a.detach(), b.detach()))
    torch.testing.assert_close(tangent, 2 * out)


@pytest.mark.parametrize("one,other", [((3,), (3,)), ((2, 1), (3,)), ((), (3,)), ((2, 3), ())])
def test_vmap(one, other, seed):
    """The batch of a transform is one dimension more, wherever it is."""
    torch.manual_seed(seed)
    a, b = torch.randn(*one, 3, 4, dtype=torch.float64), torch.randn(*other, 4, 5, dtype=torch.float64)
    more = lambda t, d: torch.stack([t, 2 * t, -t], d)  # noqa: E731
    for da, db in itertools.product((None, 0, -1, 1), (None, 0, -2)):
        if da is db is None:
            continue
        got = vmap(ops.matmul, in_dims=(da, db))(a if da is None else more(a, da), b if db is None else more(b, db))
        factor = [(1 if da is None else f) * (1 if db is None else f) for f in (1, 2, -1)]
        torch.testing.assert_close(got, torch.stack([f * (a @ b) for f in factor]))


def test_results_may_be_written_to(seed):
    """The first and the next, whose calls are replayed: a result is no view of something else."""
    torch.manual_seed(seed)
    for one, other in (((2, 3), ()), ((1,), (1,)), ((2,), (1,)), ((3,), (3,))):
        a, b = torch.randn(*one, 33, 40, requires_grad=True), torch.randn(*other, 40, 17)
        for _ in range(3):
            y = ops.matmul(a, b)
            y += 1
            compare(a.detach(), b, y.detach() - 1)
            y.sum().backward()


@pytest.mark.parametrize("m,k,n", [(3, 4, 0), (3, 0, 5), (0, 4, 5)])
@pytest.mark.parametrize("one,other", [((2,), ()), ((2,), (2,)), ((), (2,)), ((2,), (1,)), ((0,), ())])
def test_derivatives_of_nothing(one, other, m, k, n):
    a, b = torch.randn(*one, m, k, requires_grad=True), torch.randn(*other, k, n, requires_grad=True)
    got = torch.autograd.grad(ops.matmul(a, b).sum(), (a, b))
    for g, w in zip(got, torch.autograd.grad((a @ b).sum(), (a, b))):
        torch.testing.assert_close(g, w)


@pytest.mark.parametrize("how", ["transposed", "every other", "expanded"])
def test_compiled_of_any_layout(how, seed):
    """What cannot be viewed as one matrix, and what torch traces is told so in another way."""
    torch.manual_seed(seed)
    a = torch.randn(1, 9, 17).expand(3, 9, 17) if how == "expanded" else laid((3, 9, 17), how)
    w = torch.randn(17, 11)
    torch._dynamo.reset()
    got = torch.compile(lambda a, w: ops.matmul(a, w), fullgraph=True, backend="aot_eager")(a, w)
    compare(a, w, got)
    torch.library.opcheck(torch.ops.triport.matmul, (a, w))


@pytest.mark.parametrize("k", [17, 1024])
def test_an_open_batch_stays_open(k, seed):
    """Exported with any number of matrices: none is asked for how tiles are chosen, nor are heads copied."""

    class Heads(torch.nn.Module):
        def forward(self, a, b):
            return ops.matmul(a.transpose(1, 2), b.transpose(1, 2))

    torch.manual_seed(seed)
    given = [(torch.randn(n, 40, 2, k), torch.randn(n, k, 2, 40)) for n in (2, 3, 40)]
    size = torch.export.Dim("batch", min=2, max=1000)
    program = torch.export.export(Heads(), given[0], dynamic_shapes=({0: size}, {0: size}))
    assert not any("clone" in str(n.target) for n in program.graph.nodes)
    for a, b in given:
        compare(a.transpose(1, 2), b.transpose(1, 2), program.module()(a, b))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic, seed):
    torch.manual_seed(seed)
    fn = torch.compile(lambda a, b: ops.matmul(a * 2, b).relu(), fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for one, other in (((2, 3), (2, 3)), ((4, 3), (4, 3)), ((2, 1), (1, 3)), ((5, 3), ())):
        a, b = torch.randn(*one, 9, 17, requires_grad=True), torch.randn(*other, 17, 11)
        out = fn(a, b)
        torch.testing.assert_close(out, (2 * a @ b).relu(), rtol=1e-4, atol=1e-4)
        got, = torch.autograd.grad(out.sum(), a)
        want, = torch.autograd.grad((2 * a @ b).relu().sum(), a)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_opcheck():
    for a, b in ((torch.randn(2, 3, 4, requires_grad=True), torch.randn(2, 4, 5)), (torch.randn(3, 4), torch.randn(2, 4, 5, requires_grad=True)), (torch.randn(2, 2, 3, 4), torch.randn(4, 5))):
        torch.library.opcheck(torch.ops.triport.matmul, (a, b))


def test_autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ops.matmul(torch.randn(2, 3, 4), torch.randn(2, 4, 5)).dtype is torch.bfloat16


@pytest.mark.parametrize("shapes,message", [
    (((4,), (2, 4, 5)), "argument 'a' has shape 4; it takes a matrix, or a batch of them (2 or more dimensions)"),
    (((2, 3, 4), (4,)), "argument 'b' has shape 4; it takes a matrix, or a batch of them (2 or more dimensions)"),
    (((2, 3, 4), (2, 5, 6)), "argument 'a' is 2x3x4 and 'b' is 2x5x6; it takes ... x M x K and ... x K x N with the same K (4 is not 5)"),
    (((2, 3, 4), (3, 4, 5)), "argument 'a' is 2x3x4 and 'b' is 3x4x5; it takes batches of one size, or of 1 (2 is not 3)"),
    (((2, 3, 4), (4, 5, 6)), "with the same K (4 is not 5)"), (((7, 2, 3, 4), (3, 4, 5)), "(2 is not 3)"), (((0, 3, 4), (2, 4, 5)), "(0 is not 2)")])
def test_what_does_not_fit(shapes, message):
    a, b = map(torch.randn, shapes)
    for call in (ops.matmul, vmap(ops.matmul)):
        more = call is not ops.matmul
        with pytest.raises(ArgumentError) as e:
            call(*(t.expand(2, *t.shape) if more else t for t in (a, b)))
        assert message in str(e.value) and str(e.value).startswith("triport.matmul: ")


@pytest.mark.parametrize("other", [torch.bfloat16, torch.int32])
def test_other_dtypes(other):
    with pytest.raises(ArgumentError, match="argument 'b' has dtype"):
        ops.matmul(torch.randn(2, 3, 4), torch.zeros(2, 4, 5, dtype=other))


def test_bytes_and_flops():
    a, b = torch.randn(2, 1, 3, 4), torch.randn(5, 4, 6)
    assert OP.flops(a, b) == 2 * 10 * 3 * 6 * 4 and OP.nbytes(a, b) == 4 * (24 + 120 + 180)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("hows", [("heads", "heads"), ("straight", "transposed"), ("transposed", "straight"), ("every other", "last")])
@pytest.mark.parametrize("m,k,n", [(100, 64, 72), (197, 64, 197), (256, 130, 136), (1, 64, 300), (70, 65, 3), (4, 300, 40), (33, 32, 1000)])
@pytest.mark.parametrize("where", ["triton-gpu", "cuda"])
def test_on_a_gpu(m, k, n, hows, dtype, where, seed):
    """By every kernel: many matrices, so that what is for large products takes them."""
    torch.manual_seed(seed)
    with served_by(where):
        for one, other in (((5, 6), (5, 6)), ((32,), ()), ((4, 1), (1, 6))):
            a, b = laid((*one, m, k), hows[0], dtype), laid((*other, k, n), hows[1], dtype)
            for _ in range(2):
                compare(a, b)


@everywhere
def test_by_every_backend(seed):
    torch.manual_seed(seed)
    for one, other in SHAPES:
        a, b = laid((*one, 33, 40), "heads"), laid((*other, 40, 17), "transposed")
        got = ops.matmul(a, b)
        assert got.device == a.device and (not got.numel() or error(got.cpu(), a.cpu().double() @ b.cpu().double()) < 1e-5)


def test_a_case_of_a_transposed_batch(tmp_path, capsys):
    """As attention's second product has it: of a case's text, its tensors, and a bundle's refusal."""
    case = cases.parse(OP, "6x40x16,6x16x24t")
    a, b = case.make(torch.float32, seed=3)
    assert case.name == "6x40x16,6x16x24t" and b.shape == (6, 16, 24) and b.stride() == (384, 1, 16) and case.blank(torch.float32)[1].stride() == b.stride()
    assert main(["bench", "--op", "matmul", "--case", case.name, "--backend", "torch", "--backend", "triton-cpu", "--reps", "1", "--no-cold"]) == 0
    assert "6x40x16,6x16x24t" in capsys.readouterr().out
    assert main(["export", "matmul", "--case", case.name, "--target", "native", "-o", str(tmp_path / "bundle")]) == 2
    assert "transposed" in capsys.readouterr().err
    with pytest.raises(ArgumentError, match="1 dimensions, not 2 or more"):
        Case(((3,),), transposed=(0,))
