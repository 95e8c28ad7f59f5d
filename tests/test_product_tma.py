"""Products by TMA: the kernel on the CPU, its code for a GPU, and both together on one."""

import math
from types import SimpleNamespace

import pytest
import torch
import triton
from conftest import unavailable
from hypothesis import given, strategies as st
from torch._library.triton import set_wrap_triton_enabled
from triport import ops
from triport.backends import active
from triport.backends.context import RECORD, calling
from triport.bench import check
from triport.ops import layout, product_tma, product_way, registry
from triton.backends.compiler import GPUTarget

gpu = pytest.mark.skipif(bool(unavailable("triton-gpu")), reason=str(unavailable("triton-gpu")))
TILE = (32, 64, 16, 4, 2)
TURNED = [(False, False), (True, False), (False, True), (True, True)]
SIZES = [(100, 72, 40), (64, 64, 64), (33, 130, 7), (1, 1, 1)]


def matrix(m: int, n: int, dtype, turned: bool, seed: int, device="cpu") -> torch.Tensor:
    """m x n, its lines (columns where turned) 16 bytes aligned and with room between them."""
    shape = (n, m) if turned else (m, n)
    made = torch.randn(shape[0], -(-shape[1] // 8) * 8 + 8, generator=torch.Generator().manual_seed(seed)).to(dtype).to(device)[:, :shape[1]]
    return made.T if turned else made


def exp_and_statistics(x, axis: int, step: int):
    """(exp(x - top), tops, sums), by parts of `step` along axis."""
    pieces = x.split(step, axis)
    tops = [p.amax(axis, keepdim=True) for p in pieces]
    powers = [(p - t).exp() for p, t in zip(pieces, tops)]
    return torch.cat(powers, axis), torch.stack([t.squeeze(axis) for t in tops]), torch.stack([p.sum(axis) for p in powers])


def without_memory(monkeypatch, module):
    """Nothing that `module` makes has room."""
    def none(*shape, **kwargs):
        raise torch.OutOfMemoryError("said by the test")

    monkeypatch.setattr(module, "torch", SimpleNamespace(**{**vars(torch), "empty": none}))


def errors(way, dtype, m, n, k, turned, axis, seed) -> tuple[float, float, float]:
    """Of a product by `way`, of its parts' maxima and sums, 0 without an axis. Nothing else was written."""
    a, b = matrix(m, k, dtype, turned[0], seed), matrix(k, n, dtype, turned[1], seed + 1)
    c, whole = check.guarded((m, n), dtype)
    step = TILE[axis or 0]
    parts, lanes = (triton.cdiv(m, step), n) if axis == 0 else (triton.cdiv(n, step), m)
    stats, whole_stats = check.guarded((2, parts, lanes), torch.float32)
    way.product(way.prepared(a, b), c, stats, axis, tile=TILE, programs=3)
    assert check.guards_hold(whole) and check.guards_hold(whole_stats)
    want = a.double() @ b.double()
    if axis is None:
        return check.error(c, want), 0.0, 0.0
    want, tops, sums = exp_and_statistics(want, axis, step)
    return check.error(c, want), check.error(stats[0], tops), check.error(stats[1], sums)


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("turned", TURNED)
@pytest.mark.parametrize("m,n,k", SIZES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_kernel(dtype, m, n, k, turned, axis, seed):
    whole, tops, sums = errors(product_tma, dtype, m, n, k, turned, axis, seed)
    assert tops < 1e-5 and sums < 1e-5
    assert whole < (1e-3 if dtype is torch.float16 else 8e-3)


@pytest.mark.parametrize("shares", [1, 3, 20])
@pytest.mark.parametrize("tile", [(16, 64, 32, 4, 2), (64, 16, 32, 4, 2), (32, 64, 16, 4, 2), (64, 64, 16, 4, 2)])
@pytest.mark.parametrize("turned", TURNED)
@pytest.mark.parametrize("m,n,k", [(40, 72, 264), (1, 130, 1000), (90, 1, 70), (1, 9, 33)])
def test_shares_and_narrow_tiles(m, n, k, turned, tile, shares, seed):
    """Tiles of few rows, which are computed transposed, and of few columns; K in shares, the last of which may be shorter."""
    a, b = matrix(m, k, torch.float16, turned[0], seed), matrix(k, n, torch.float16, turned[1], seed + 1)
    for dtype, allowed in ((torch.float16, 1e-3), (torch.float32, 2e-6)):
        c, whole = check.guarded((m, n), dtype)
        product_tma.product(product_tma.prepared(a, b), c, tile=tile, programs=3, shares=shares)
        assert check.guards_hold(whole) and check.error(c, a.double() @ b.double()) < allowed


def test_without_memory_for_shares(seed, monkeypatch):
    """One program does all of K."""
    a, b = matrix(20, 300, torch.float16, False, seed), matrix(300, 70, torch.float16, True, seed + 1)
    c = torch.empty(20, 70, dtype=torch.float16)
    without_memory(monkeypatch, layout)
    product_tma.product((a, b), c, tile=(16, 64, 32, 4, 2), programs=3, shares=3)
    assert check.error(c, a.double() @ b.double()) < 1e-3


def test_sums_of_shares_are_not_rounded_before_they_are_whole(seed):
    """A sum whose parts cancel: 16 bits would lose it."""
    a = torch.cat((torch.full((8, 64), 100.0), torch.full((8, 64), -100.0), torch.full((8, 64), 0.01)), 1).half()
    c = torch.empty(8, 24, dtype=torch.float16)
    product_tma.product((a, torch.ones(192, 24, dtype=torch.float16)), c, tile=TILE, programs=3, shares=3)
    assert check.error(c, a.double() @ torch.ones(192, 24).double()) < 1e-3


@pytest.mark.parametrize("m,n,k,axis,tile,shares", [
    (4096, 4096, 4096, None, (128, 256, 64, 8, 3), 1), (1536, 1536, 1536, None, (64, 128, 128, 4, 4), 1), (1280, 1280, 1280, None, (128, 128, 64, 4, 4), 1), (1024, 1024, 1024, None, (64, 128, 128, 4, 4), 1),
    (512, 512, 512, None, (64, 64, 128, 4, 4), 1), (1, 4096, 4096, None, (16, 128, 128, 4, 4), 4), (64, 256, 16384, None, (32, 64, 128, 4, 5), 16),
    (4096, 16, 4096, None, (64, 16, 128, 4, 5), 2), (32, 11008, 4096, None, (32, 128, 128, 4, 4), 1), (16, 11008, 4096, None, (16, 128, 128, 4, 4), 1), (1024, 1024, 1024, 0, (128, 64, 128, 4, 4), 1),
    (64, 256, 16384, 1, (64, 64, 128, 4, 4), 1), (1, 1, 1 << 16, None, (64, 16, 128, 4, 5), 128)])
def test_tiles(m, n, k, axis, tile, shares):
    """As measured on an H100 (docs/performance/gpu-products.md); a softmax's product is in one share."""
    assert product_tma.tile_for(m, n, k, axis, 132) == (tile, shares)


@given(m=st.integers(1, 5000), n=st.integers(1, 5000), k=st.integers(1, 100_000), axis=st.sampled_from([None, 0, 1]))
def test_any_size_has_a_tile(m, n, k, axis):
    """No longer than twice a side; every share has two pieces of K at least; a softmax's product is in one."""
    (bm, bn, bk, *_), shares = product_tma.tile_for(m, n, k, axis, 132)
    assert shares == 1 or axis is None and 2 * shares * bk <= k
    assert axis is not None or product_tma._are_large(m, n, 132) or bm < 2 * max(m, 16) and bn < 2 * max(n, 16) or max(m, n) <= 32


@pytest.mark.parametrize("turned", TURNED)
def test_two_bands(turned, seed, monkeypatch):
    """Each with its tile; launched with whole tensors, by whose addresses a call is known again."""
    parts = (64, (32, 64, 16, 4, 2), 1), (37, (64, 32, 32, 4, 2), 1)
    monkeypatch.setattr(product_tma, "bands", lambda m, n, k, count: parts)
    met, real = [], product_tma.launch
    monkeypatch.setattr(product_tma, "launch", lambda kernel, grid, *args, **consts: (met.append((consts["BM"], *args[:1], *args[2:4])), real(kernel, grid, *args, **consts)))
    a, b = matrix(101, 264, torch.float16, turned[0], seed), matrix(264, 72, torch.float16, turned[1], seed + 1)
    c, whole = check.guarded((101, 72), torch.float16)
    product_tma.product(product_tma.prepared(a, b), c, programs=3)
    assert check.guards_hold(whole) and check.error(c, a.double() @ b.double()) < 1e-3
    assert [bm for bm, *_ in met] == [32, 64]
    assert all(to.data_ptr() == c.data_ptr() and x.base.data_ptr() == a.data_ptr() and y.base.data_ptr() == b.data_ptr() for _, to, x, y in met)


@pytest.mark.parametrize("size,rows", [((3072, 3072, 3072), [2816, 256]), ((2304, 2304, 2304), [896, 1408]), ((5120, 5120, 5120), [4992, 128]), ((3072, 3072, 768), [2816, 256]),
                                       ((4096, 4096, 4096), [4096]), ((2048, 2048, 2048), [2048]), ((768, 768, 768), [768])])
def test_who_has_bands(size, rows):
    """As measured on an H100 (docs/performance/gpu-products.md)."""
    assert [part[0] for part in product_tma.bands(*size, 132)] == rows


@given(m=st.integers(1, 5000), n=st.integers(1, 5000), k=st.integers(1, 5000))
def test_bands_are_all_rows(m, n, k):
    """And the upper one's tiles, but for fewer than a row of them, are for whole turns of all multiprocessors."""
    parts = product_tma.bands(m, n, k, 132)
    assert sum(rows for rows, *_ in parts) == m and (len(parts) == 1 or all(shares == 1 for *_, shares in parts))
    for rows, (bm, bn, *_), _ in parts[:-1]:
        assert rows % bm == 0 and -(rows // bm * -(-n // bn)) % 132 < -(-n // bn)


@pytest.mark.parametrize("m,n,k,alone", [(64, 4096, 4096, True), (65, 256, 16384, True), (1024, 1024, 1024, False), (4096, 64, 4096, False), (64, 40000, 4096, False)])
def test_whose_softmax_is_a_kernel_of_its_own(m, n, k, alone, monkeypatch):
    monkeypatch.setattr(product_tma.cuda, "limits", lambda device: (132, 227 << 10, (9, 0)))
    assert product_way.apart(product_tma, (stub(m, k), stub(k, n))) == alone


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("m,k,n", [(33, 21, 70), (33, 24, 70), (33, 21, 72), (33, 24, 72)])
def test_lines_that_begin_anywhere_are_copied_by_one_launch(m, k, n, turned, seed, monkeypatch):
    """Whether of one operand or of both; what stands behind a line's end has no part in the product."""
    launched, real = [], product_tma.launch
    monkeypatch.setattr(product_tma, "launch", lambda kernel, *args, **consts: (launched.append(kernel.__name__), real(kernel, *args, **consts)))
    gen = torch.Generator().manual_seed(seed)
    a, b = torch.randn(m, k, generator=gen).half(), torch.randn(k, n, generator=gen).half()
    b = b.T.contiguous().T if turned else b
    got = product_tma.prepared(a, b)
    assert all(torch.equal(x, y) and product_tma._turned(x) is not None for x, y in zip(got, (a, b))) and product_tma._turned(got[1]) == turned
    c = torch.empty(m, n, dtype=torch.float16)
    product_tma.product(got, c, tile=TILE, programs=3)
    assert check.error(c, a.double() @ b.double()) < 1e-3
    copies = (k % 8 != 0) + ((k if turned else n) % 8 != 0)
    assert launched == [[], ["copy_lines_kernel"], ["copy_both_kernel"]][copies] + ["product_tma_kernel"]


def test_a_single_line_can_be_described(seed):
    """However long it is, and wherever a next one would begin."""
    row, column = torch.randn(1, 333).half(), torch.randn(333, 1).half()
    for x, turned in ((row, False), (row[:, :7], False), (column, True), (torch.randn(9, 333).half()[4:5], False)):
        assert product_tma._turned(x) is turned or x.data_ptr() % 16
    b = matrix(333, 40, torch.float16, False, seed)
    given = product_tma.prepared(row, b)
    assert given[0].data_ptr() == row.data_ptr()
    c = torch.empty(1, 40, dtype=torch.float16)
    product_tma.product(given, c, tile=(16, 64, 32, 4, 2), programs=3, shares=2)
    assert check.error(c, row.double() @ b.double()) < 1e-3


@pytest.mark.parametrize("length", [1, 7, 8, 127, 128, 129, 301])
@pytest.mark.parametrize("lines", [1, 9, 20])
def test_a_copy_fills_its_lines(lines, length, seed):
    """With zeros behind what was copied, and nothing behind the last line."""
    gen = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(count, length + 3, generator=gen).bfloat16()[:, 1:length + 1] for count in (lines, lines + 5))
    step = -(-length // product_tma.ROOM) * product_tma.ROOM
    rooms = [check.guarded((part.shape[0], step), torch.bfloat16) for part in (x, y)]
    programs = [-(-part.shape[0] // product_tma.COPIED[0]) * -(-length // product_tma.COPIED[1]) for part in (x, y)]
    (to_x, all_x), (to_y, all_y) = rooms
    consts = {"BL": product_tma.COPIED[0], "BC": product_tma.COPIED[1], "ROOM": product_tma.ROOM}
    product_tma.copy_both_kernel[(sum(programs),)](x, to_x, lines, length, *x.stride(), step, programs[0], y, to_y, lines + 5, length, *y.stride(), step, **consts)
    for part, to, whole in ((x, to_x, all_x), (y, to_y, all_y)):
        assert torch.equal(to[:, :length], part) and not to[:, length:].any() and check.guards_hold(whole)
    to_x.fill_(math.nan)
    product_tma.copy_lines_kernel[(programs[0],)](x, to_x, lines, length, *x.stride(), step, **consts)
    assert torch.equal(to_x[:, :length], x) and not to_x[:, length:].any() and check.guards_hold(all_x)


@pytest.mark.parametrize("kernel", [product_tma.copy_lines_kernel, product_tma.copy_both_kernel], ids=lambda kernel: kernel.__name__)
def test_a_copy_is_stored_16_bytes_at_a_time(kernel):
    """On a GPU, whatever lines are read from, for its lines have room."""
    names = list(kernel.arg_names)
    for room in (product_tma.ROOM, 1):
        consts = {"BL": product_tma.COPIED[0], "BC": product_tma.COPIED[1], "ROOM": room, **({"AT": 0} if "AT" in names else {})}
        signature = {n: "constexpr" if n in consts else "*fp16" if n.endswith("_ptr") else "i32" for n in names}
        attrs = {(names.index(n),): [["tt.divisibility", 16]] for n in names if n.endswith("_ptr")}
        target = GPUTarget("cuda", 90, 32)
        with active.compiling_for(target):
            text = triton.compile(triton.compiler.ASTSource(fn=kernel, signature=signature, constexprs=consts, attrs=attrs), target=target, options={"num_warps": 4}).asm["ptx"]
        assert ("st.global.v4.b32" in text) is (room > 1)


def compiled(element: str, result: str, axis: int | None, tile: tuple, turned: bool = False):
    """The kernel for an H100."""
    bm, bn, bk, warps, stages = tile
    kernel = product_tma.product_tma_kernel
    blocks = ((bk, bm), (bn, bk)) if turned else ((bm, bk), (bk, bn))
    signature = {"c_ptr": f"*{result}", "stats_ptr": "*fp32", "a": f"tensordesc<{element}{list(blocks[0])}>", "b": f"tensordesc<{element}{list(blocks[1])}>",
                 "m": "i32", "n": "i32", "k": "i32", "shares": "i32", "top": "i32"}
    consts = {"A_TURNED": turned, "B_TURNED": turned, "AXIS": axis, "BM": bm, "BN": bn, "BK": bk, "GROUP": 8, "ALIGN": 1}
    names = list(kernel.arg_names)
    source = triton.compiler.ASTSource(fn=kernel, signature={**signature, **dict.fromkeys(consts, "constexpr")}, constexprs=consts,
                                       attrs={(names.index(n),): [["tt.divisibility", 16]] for n in ("c_ptr", "stats_ptr", "m", "n", "k")})
    target = GPUTarget("cuda", 90, 32)
    with active.compiling_for(target):
        return triton.compile(source, target=target, options={"num_warps": warps, "num_stages": stages})


@pytest.mark.parametrize("axis,tile", [*product_tma.TILES.items(), *((None, tile) for tile, *_ in product_tma.SMALL)])
@pytest.mark.parametrize("element", ["fp16", "bf16"])
def test_code_for_a_gpu(element, axis, tile):
    """Operands come by TMA, tensor cores multiply, results leave 16 bytes at a time, nothing is spilled."""
    from triport.tools.inspector import tools

    made = compiled(element, element, axis, tile)
    text, usage = tools.sass(made.asm["cubin"]), tools.cubin_usage(made.asm["cubin"], made.metadata.name)
    assert "UTMALDG" in text and "HGMMA" in text and ("STG.E.128" in text or tile[1] < 64)
    assert usage["local memory, bytes"] == 0


@pytest.mark.parametrize("tile", [tile for tile, *_ in product_tma.SMALL])
def test_the_sums_of_shares_have_room(tile):
    """In shared memory, on their way out, beside what is fetched for the next tile: in fp32 they are twice as large."""
    assert compiled("bf16", "fp32", None, tile, True).metadata.shared <= 227 << 10


@pytest.mark.parametrize("count", [78, 132])
def test_large_tiles_have_all_of_k(count):
    """266 x 3360 x 8863 asked for 272 KiB of shared memory in three shares."""
    sizes = [(m, n, k) for m in (100, 266, 400, 700) for n in (300, 1000, 3360, 8000) for k in (1000, 8863, 40000)]
    found = [product_tma.tile_for(*size, None, count) for size in sizes]
    assert any(shares > 1 for _, shares in found) and any(tile == product_tma.TILES[None] for tile, _ in found)
    assert all(shares == 1 for tile, shares in found if tile == product_tma.TILES[None])


#: what cannot be described -> it, of a matrix that has two rows and two columns more
ODD = {"rows of an odd length": lambda x: x[:-2, :-1], "columns of an odd length": lambda x: x.T.contiguous()[:-1, :-2].T, "memory between": lambda x: x[1:-1, 1:-1],
       "no contiguous lines": lambda x: x.repeat(1, 2)[:-2, :-4:2], "one row again and again": lambda x: x[:1, :-2].expand(len(x) - 2, -1),
       "overlapping rows": lambda x: x.reshape(-1).as_strided((len(x) - 2, x.shape[1] - 2), (3, 1))}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_what_cannot_be_described_is_copied(axis, odd, seed):
    a, b = (ODD[odd](torch.randn(shape, generator=torch.Generator().manual_seed(seed + k)).half()) for k, shape in enumerate(((102, 42), (45, 77))))
    a, b = a[:, :39], b[:39]
    given = product_tma.prepared(a, b)
    for x, copy in zip((a, b), given):
        assert torch.equal(copy, x) and product_tma._turned(copy) is not None and copy is not x
    c, whole = check.guarded((a.shape[0], b.shape[1]), torch.float16)
    stats = torch.empty(2, 1 << 12)
    product_tma.product(given, c, stats, axis, tile=TILE, programs=3)
    want = a.double() @ b.double()
    assert check.guards_hold(whole) and check.error(c, want if axis is None else exp_and_statistics(want, axis, TILE[axis])[0]) < 1e-3


def test_without_memory_for_a_copy(seed, monkeypatch):
    """There is another way."""
    a, b = matrix(40, 33, torch.float16, False, seed), torch.randn(33, 71, generator=torch.Generator().manual_seed(seed)).half()
    monkeypatch.setattr(product_tma, "takes", lambda a, b: True)
    assert product_way.special(a, b)[0] is product_tma
    without_memory(monkeypatch, product_tma)
    assert product_way.special(a, b) is None
    assert check.error(ops.matmul(a, b), a.double() @ b.double()) < 1e-3


def test_what_is_not_taken():
    a = torch.zeros(4096, 4096, dtype=torch.float16)
    assert not product_tma.takes(a, a)  # on the CPU
    # `takes` says no to everything where there is no GPU: what it asks of strides is asked here
    assert product_tma._turned(a) is False and product_tma._turned(a.T) is True
    for x in (a[:, ::2], a[:, 1:], torch.zeros(16, 9, dtype=torch.float16), a[:1].expand(16, 4096), torch.zeros(16, dtype=torch.float16).expand(16, 16)):
        assert product_tma._turned(x) is None, x.stride()


def stub(*shape) -> SimpleNamespace:
    """A GPU's contiguous fp16 matrix, as far as `takes` looks."""
    return SimpleNamespace(shape=shape, stride=lambda: (shape[1], 1), numel=lambda: shape[0] * shape[1], dtype=torch.float16, data_ptr=lambda: 0, element_size=lambda: 2,
                           device=SimpleNamespace(type="cuda", index=0))


@pytest.mark.parametrize("m,n,k,taken", [(512, 512, 512, True), (256, 256, 256, True), (256, 256, 248, False), (1, 4096, 4096, True), (1, 512, 1024, True), (1, 1024, 1023, True), (1, 1024, 255, False), (512, 512, 511, True),
                                         (16, 1001, 1001, True), (16, 4095, 4096, False), (128, 4095, 4096, True), (16, 4096, 4095, True), (500, 500, 255, False), (333, 511, 257, True), (1, 8, 1 << 30, False), (1, 8, (1 << 30) - 8, True),
                                         (2048, 2048, 64, True), (1, 8, 248, False)])
def test_which_small_products_are_taken(m, n, k, taken, monkeypatch):
    """Those of some size as they are, of many terms with a copy of what is small or serves many; large ones in any case."""
    monkeypatch.setattr(product_tma, "_has_tma", lambda device: True)
    monkeypatch.setattr(product_tma.cuda, "limits", lambda device: (132, 227 << 10, (9, 0)))
    with set_wrap_triton_enabled(False):
        assert product_tma.takes(stub(m, k), stub(k, n)) == taken


@pytest.mark.parametrize("rows,taken", [(127, False), (128, True)])
def test_what_few_products_use_is_not_copied(rows, taken, monkeypatch):
    monkeypatch.setattr(product_tma, "_has_tma", lambda device: True)
    monkeypatch.setattr(product_tma.cuda, "limits", lambda device: (132, 227 << 10, (9, 0)))
    with set_wrap_triton_enabled(False):
        assert product_tma.takes(stub(rows, 4096), stub(4096, 40001)) == taken
        assert product_tma.takes(stub(40000, 4095), stub(4095, rows // 2)) is False
        assert product_tma.takes(stub(rows, 4096), stub(4096, 40000))


@pytest.mark.parametrize("kilobytes,capability,has", [(227, (9, 0), True), (227, (10, 0), True), (163, (8, 0), False), (99, (12, 0), False)])
def test_gpus_that_have_what_tiles_take(kilobytes, capability, has, monkeypatch):
    monkeypatch.setattr(product_tma.cuda, "limits", lambda device: (132, kilobytes << 10, capability))
    monkeypatch.setattr(product_tma, "TensorDescriptor", object())
    assert product_tma._has_tma.__wrapped__(0) is has
    for bm, bn, bk, _, stages in (*product_tma.TILES.values(), *(tile for tile, *_ in product_tma.SMALL)):
        assert 2 * (bm + bn) * bk * stages < product_tma.SHARED


def test_calls_that_nothing_follows_are_taken(monkeypatch):
    """They go round the dispatcher, whose absence is no tracing."""
    monkeypatch.setattr(product_tma, "_has_tma", lambda device: True)
    monkeypatch.setattr(product_tma.cuda, "limits", lambda device: (132, 227 << 10, (9, 0)))
    like = stub(2048, 2048)
    with set_wrap_triton_enabled(True):
        assert not product_tma.takes(like, like)
        with calling(RECORD):
            assert product_tma.takes(like, like)


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("m,n,k", [(2048, 2048, 512), (1999, 2301, 130), (5000, 1000, 64), (266, 3360, 8863)])
@pytest.mark.parametrize("turned", [(False, False), (True, True)])
def test_on_a_gpu(turned, m, n, k, dtype, seed):
    element = torch.float16 if dtype == "fp16" else torch.bfloat16
    a, b = matrix(m, k, element, turned[0], seed, "cuda"), matrix(k, n, element, turned[1], seed + 1, "cuda").mul_(0.05)
    with set_wrap_triton_enabled(False):  # as the dispatcher does
        assert product_tma.takes(a, b) == (torch.cuda.get_device_capability() >= (9, 0))
    for name, kwargs in (("matmul", {}), ("matmul_softmax", {"dim": 0}), ("matmul_softmax", {"dim": -1})):
        op = registry.get(name)
        right, error = check.verdict(op, op.call(a, b, **kwargs), [a, b], kwargs)
        assert right, (name, kwargs, error)
    # a view that cannot be described
    odd = torch.randn(m, k + 1, device="cuda").to(element)[:, 1:]
    assert check.verdict(registry.get("matmul"), ops.matmul(odd, b), [odd, b], {})[0]
