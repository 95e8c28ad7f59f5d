"""Products of few rows or columns: the kernels on the CPU, their code for a GPU, and both together on one."""

import ctypes
import math
import mmap
import re
import sys

import pytest
import torch
import triton
from conftest import unavailable
from test_product_pace import a_gpu, like  # noqa: F401
from test_product_split import BEYOND, HELD
from test_product_tma import TURNED, without_memory
from torch._library.triton import set_wrap_triton_enabled
from triport import ops
from triport.backends import active
from triport.backends.context import RECORD, calling
from triport.backends.dispatch import replay
from triport.bench import check
from triport.ops import batches, layout, product_few, product_pace, product_tma, product_way, registry
from triton.backends.compiler import GPUTarget

gpu = pytest.mark.skipif(bool(unavailable("triton-gpu")), reason=str(unavailable("triton-gpu")))
#: (M, N, K): by multiply-adds of one to four rows and columns, by tensor cores of all tiles, lines that 16 bytes divide and not
SIZES = [(1, 200, 300), (2, 130, 1000), (3, 100, 513), (4, 97, 700), (130, 2, 260), (3, 1, 5000), (17, 64, 300), (70, 97, 700), (130, 140, 256), (200, 3, 90), (9, 5, 2001), (20, 36, 1000),
         (1, 1, 1)]


def turned(rows: int, columns: int):
    """A matrix that lies by columns on a GPU that is not here."""
    return like(rows, columns, turned=True)


def matrix(m: int, n: int, turned: bool, seed: int, device="cpu") -> torch.Tensor:
    made = torch.randn((n, m) if turned else (m, n), generator=torch.Generator().manual_seed(seed)).to(device)
    return made.T if turned else made


def error(got, a, b) -> float:
    """The largest beside the sum of the terms' sizes, NaN and infinities included."""
    return check.error((got.double() - a.double() @ b.double()) / (a.double().abs() @ b.double().abs()) + 1, torch.ones_like(got, dtype=torch.float64))


def product(a, b, programs: int = 4):
    """a @ b by the kernels; nothing else is written."""
    c, whole = check.guarded((a.shape[0], b.shape[1]), torch.float32)
    product_few.product(product_few.prepared(a, b), c, programs=programs)
    assert check.guards_hold(whole)
    return c


@pytest.mark.parametrize("programs", [1, 40])
@pytest.mark.parametrize("turned", TURNED)
@pytest.mark.parametrize("m,n,k", SIZES)
def test_the_kernels(m, n, k, turned, programs, seed):
    a, b = matrix(m, k, turned[0], seed), matrix(k, n, turned[1], seed + 1)
    assert error(product(a, b, programs), a, b) < 1.5e-7


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("turned", TURNED)
@pytest.mark.parametrize("m,n,k", [(1, 201, 301), (2, 130, 1000), (4, 97, 700), (130, 3, 260), (17, 64, 300), (70, 97, 700), (9, 5, 2001), (1, 1, 1)])
def test_16_bits(m, n, k, turned, dtype, seed):
    """Sums are in fp32, what comes of them is rounded once."""
    a, b = matrix(m, k, turned[0], seed).to(dtype), matrix(k, n, turned[1], seed + 1).to(dtype)
    assert error(product(a, b), a, b) < 5e-7
    rounded, whole = check.guarded((m, n), dtype)
    product_few.product(product_few.prepared(a, b), rounded, programs=4)
    assert check.guards_hold(whole) and error(rounded, a, b) < torch.finfo(dtype).eps


@pytest.mark.parametrize("rows", [1, 3, 20])
def test_views(rows, seed):
    """Lines with memory between them, of which nothing is read; a row from among many."""
    gen = torch.Generator().manual_seed(seed)
    a, b = torch.full((rows, 2, 320), math.nan), torch.full((320, 160), math.nan)
    a[:, 0, :301], b[:301, :99] = torch.randn(rows, 301, generator=gen), torch.randn(301, 99, generator=gen)
    a, b = a[:, 0, :301], b[:301, :99]
    assert error(product(a, b), a, b) < 1.5e-7


def test_no_part_is_left_out(seed):
    """Each of the six products is in the result: of matrices whose numbers have but one part that is not 0, and of one product only."""
    gen = torch.Generator().manual_seed(seed)
    digits = [torch.randint(129, 256, (32, 64), generator=gen).float() * 2.0**-shift for shift in (0, 9, 18)]
    a, b = sum(digits), sum(digits).T.contiguous()
    assert check.error(product(a, b), a.double() @ b.double()) < 1.5e-7


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("value", [*BEYOND.values(), *HELD.values()])
def test_what_parts_do_not_hold_is_multiplied_as_it_is(value, which, seed):
    given = [matrix(40, 300, False, seed), matrix(300, 70, True, seed + 1)]
    given[which][3, 5] = value
    c, want = product(*given), given[0].double() @ given[1].double()
    lines = want.float().isfinite().all(1 - which)
    kept = (c[lines], want[lines]) if which == 0 else (c[:, lines], want[:, lines])
    assert check.error(*kept) < 2e-7
    assert torch.equal(torch.isnan(c), torch.isnan(want)) and torch.equal(c == math.inf, want.float() == math.inf)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("value", [2.0**-101, -1e-40])
def test_small_numbers_keep_their_bits(value, turned, seed):
    """Of numbers below 2^-100 the last part would be a subnormal one: their products are right to the last place, whichever matrix they are in."""
    a, b = torch.full((20, 64), value), torch.full((64, 32), 2.0**60)
    a *= 1 + torch.rand(20, 64, generator=torch.Generator().manual_seed(seed))
    a, b = (b.T, a.T) if turned else (a, b)
    assert error(product(a, b), a, b) < 2e-7
    assert product_few.how(20, 32, 64, turned, 4, (4, 4)).by_tensor_cores


def test_few_columns_go_as_few_rows(monkeypatch, seed):
    """By multiply-adds, of the transposed matrices."""
    went = []
    monkeypatch.setattr(product_few, "launch", lambda kernel, *args, **consts: went.append(kernel))
    product_few.product((torch.empty(900, 700), torch.empty(700, 3)), torch.empty(900, 3), programs=4)
    assert went == [product_few.few_lines_kernel]


@pytest.mark.parametrize("turned", [False, True])
def test_nothing_is_read_behind_a_matrix(turned, tmp_path, seed):
    """Three rows in the place of four: what would be the fourth lies behind the end of memory that can be read."""
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 3 * page)
    lines, k = 3, page * 2 // 4 // 3 // 4 * 4
    libc = ctypes.CDLL(None, use_errno=True)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert libc.mprotect(ctypes.c_void_p(begin + 2 * page), page, 0) == 0
    try:
        x = torch.frombuffer(memory, dtype=torch.float32, count=lines * k, offset=2 * page - lines * k * 4).view(lines, k)
        x.copy_(torch.randn(lines, k, generator=torch.Generator().manual_seed(seed)))
        w = matrix(k, 70, turned, seed)
        assert error(product(x, w), x, w) < 1.5e-7
    finally:
        assert libc.mprotect(ctypes.c_void_p(begin + 2 * page), page, mmap.PROT_READ | mmap.PROT_WRITE) == 0


@pytest.mark.parametrize("m,n,k,along_k,bm,shares", [
    (1, 4096, 4096, False, 1, 4), (3, 4096, 4096, False, 4, 16), (3, 4096, 4096, True, 4, 1), (4, 1 << 20, 64, False, 4, 1), (1, 1, 1 << 20, True, 1, 128),
    (5, 4096, 4096, False, 16, 8), (64, 4096, 4096, True, 64, 4), (128, 4096, 4096, False, 128, 4), (512, 512, 512, False, 64, 4), (512, 512, 8192, False, 128, 8),
    (31, 560, 64, True, 16, 1), (48, 64, 740, False, 16, 24), (8, 5000, 20, False, 16, 1), (300, 400, 16, False, 32, 1)])
def test_how(m, n, k, along_k, bm, shares):
    """As many shares as an H100 has room for, where they take less time than adding them up, and all of K."""
    how = product_few.how(m, n, k, along_k, 132, (4, 4))
    assert (how.bm, how.shares, how.by_tensor_cores) == (bm, shares, m > product_few.LINES)
    assert how.shares * how.terms >= k > (how.shares - 1) * how.terms and how.terms % how.bk == 0


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("along_k", [False, True])
@pytest.mark.parametrize("m", [1, 4])
def test_numbers_that_are_read_one_by_one_are_not_fetched_ahead(m, along_k, size):
    """Of few lines."""
    for at_a_time in (1, 2, 16 // size // 2):
        assert product_few.how(m, 5000, 3001, along_k, 132, (16 // size, at_a_time), size).stages == 1
    assert product_few.how(m, 5000, 3000, along_k, 132, (1, 16 // size), size).stages >= 3


@pytest.mark.parametrize("read", [(1, 1), (2, 2), (4, 4)])
@pytest.mark.parametrize("m,n,k", [(137 * 64, 64, 3147), (66, 66, 8), (5, 8191, 9), (128, 128, 40000), (2000, 2000, 64), (16, 16, 1 << 22)])
def test_shares_are_of_whole_pieces(m, n, k, read):
    """No more shares than pieces, and none that is empty."""
    how = product_few.how(min(m, n), max(m, n), k, False, 132, read)
    assert how.terms % 16 == 0 and 1 <= how.shares <= -(-k // how.bk) and how.shares * how.terms >= k > (how.shares - 1) * how.terms


def test_shares_even_turns_out():
    """137 tiles leave half of what there is room for without work; more shares cost less than what that does, until each is of few terms."""
    assert product_few.how(11, 8758, 3147, False, 132, (1, 1)).shares > 1
    assert product_few.how(11, 8758, 64, False, 132, (1, 1)).shares == 1


def test_how_lines_lie_is_asked(monkeypatch):
    """Of both matrices, the one with fewer lines first: what divides them and where they begin."""
    asked, real = [], product_few.how
    monkeypatch.setattr(product_few, "how", lambda *given: (asked.append(given[5:]), real(*given))[1])
    monkeypatch.setattr(product_few, "launch", lambda *_, **__: None)
    monkeypatch.setattr(product_few, "add_up", lambda *_: None)
    for rows, few, large, read in ((3, 1004, 2000, (4, 4)), (9, 1001, 2000, (1, 4)), (9, 1000, 2001, (4, 1)), (2001, 1002, 10, (2, 2))):
        for size, dtype in ((4, torch.float32), (2, torch.float16)):
            product_few.product((torch.empty(rows, few, dtype=dtype), torch.empty(few, large, dtype=dtype)), torch.empty(rows, large), programs=4)
            found, said = asked.pop()
            assert said == size and all(min(one, 4) == each for one, each in zip(found, read)), (rows, few, large, dtype, found)
    product_few.product((torch.empty(9, 1000), torch.empty(1000 * 2000 + 1)[1:].view(1000, 2000)), torch.empty(9, 2000), programs=4)
    assert asked == [((4, 1), 4)]


def test_what_is_taken(a_gpu, monkeypatch):
    """What can be, if few rows are many terms, or more take less time than by pointers; in 16 bits what is not for TMA, where it lies or by a copy that it pays for."""
    takes, half = product_few.takes, {"dtype": torch.float16}
    few, large = like(8, 1024), like(1024, 1024)
    assert takes(few, large) and takes(few, turned(1024, 1024)) and takes(large, turned(1024, 8))
    assert not takes(like(8, 1024, device="cpu"), large) and not takes(like(8, 1024, dtype=torch.float64), large)
    assert not takes(few, like(1024, 1024, stride=(2048, 2))) and not takes(like(8, 1024, stride=(2048, 2)), large) and takes(like(4, 1024, stride=(2048, 2)), large)
    assert takes(few, like(1024, 1024, offset=1)) and takes(few, like(1024, 1023)) and takes(like(8, 1024, stride=(1025, 1)), large)  # wherever lines begin
    assert takes(like(8, 1024, **half), like(1024, 1023, **half)) and not takes(like(8, 1024, **half), like(1024, 1024, **half))
    assert takes(like(128, 1023, **half), like(1023, 999, **half)) and not takes(like(129, 1023, **half), like(1023, 999, **half))
    assert takes(like(1, 256), like(256, 64)) and not takes(like(1, 240), like(240, 64)) and takes(like(1, 240), like(240, 640)) and takes(like(1, 32), turned(32, 5)) and not takes(like(1, 30), turned(30, 5))
    assert takes(like(3, 1001), like(1001, 5001)) and takes(like(105, 7383), turned(7383, 1)) and takes(like(1, 600), like(600, 2))  # wherever lines begin; few products of many terms
    assert not takes(like(1, 1000), like(1000, 700, stride=(1400, 2)))
    assert takes(like(1, 1 << 29), like(1 << 29, 4)) and not takes(like(1, 1 << 30), like(1 << 30, 4))  # counted in 32 bits
    assert takes(like(200, 700), like(700, 90)) and not takes(like(200, 20), like(20, 90))
    for us in (1e9, 0.0):
        monkeypatch.setattr(product_pace, "by_pointers", lambda *given: (us, None))
        assert takes(like(200, 700), like(700, 90)) is (us > 0) and takes(like(4, 1024), large)
    with set_wrap_triton_enabled(True):
        assert not takes(like(4, 1024), large)  # traced
        with calling(RECORD):  # as a call that nothing follows
            assert takes(like(4, 1024), large)
    monkeypatch.setattr(product_few.product_split, "suits", lambda device: False)
    assert not takes(like(4, 1024), large)


def test_few_rows_in_16_bits_are_not_copied_for_tma(a_gpu):
    """Which takes them, too: 16 x 1001 by 1001 x 1001 with a copy of the large matrix."""
    few, large = like(16, 1001, dtype=torch.float16), like(1001, 1001, dtype=torch.float16)
    assert product_tma.takes(few, large) and product_way.special(few, large)[0] is product_few


@pytest.mark.parametrize("rows", [2, 20])
def test_without_memory_for_shares(rows, monkeypatch, seed):
    """One does it all."""
    a, b = matrix(rows, 1000, False, seed), matrix(1000, 90, False, seed + 1)
    assert product_few.how(rows, 90, 1000, False, 40, (1, 2)).shares > 1
    without_memory(monkeypatch, layout)
    assert error(product(a, b, 40), a, b) < 3e-7


def batched(a, b, tile=(16, 64, 32, 4, 1)):
    """a @ b of batches by their kernel, whatever would take less time; nothing else is written."""
    c, whole = check.guarded((*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), a.dtype)
    batch = batches.walked(a, b, tuple(c.shape[:-2]))
    product_few.product_of_batches(batch.a, batch.b, c, product_pace.Tile(*tile, 0.0, 0.0), batch.first(), (batch.count // batch.inner, batch.inner), batch.steps)
    assert check.guards_hold(whole)
    return c


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("turned", TURNED)
@pytest.mark.parametrize("m,n,k", [(20, 36, 24), (70, 33, 17), (5, 130, 64), (64, 64, 8), (16, 16, 1)])
def test_batches(m, n, k, turned, dtype, seed):
    """Few rows or few columns; matrices one behind the other, and heads, whose rows lie between others'."""
    gen = torch.Generator().manual_seed(seed)
    def made(rows, columns, turned, *lead):
        x = torch.randn(*lead, *((columns, rows) if turned else (rows, columns)), generator=gen).to(dtype)
        return x.mT if turned else x
    a, b = made(m, k, turned[0], 6), made(k, n, turned[1], 6)
    bound = 3e-7 if dtype == torch.float32 else 1e-3
    assert check.error(batched(a, b), a.double() @ b.double()) < bound
    heads_a, heads_b = made(m, 3 * k, False, 2).view(2, m, 3, k).transpose(1, 2), made(n, 3 * k, False, 2).view(2, n, 3, k).permute(0, 2, 3, 1)
    for tile in ((16, 64, 32, 4, 1), (64, 64, 32, 4, 3)):
        assert check.error(batched(heads_a, heads_b, tile), heads_a.double() @ heads_b.double()) < bound
    assert check.error(batched(heads_a, b[0]), heads_a.double() @ b[0].double()) < bound


def test_what_parts_do_not_hold_in_one_of_many(seed):
    a, b = torch.stack([matrix(20, 40, False, seed + i) for i in range(3)]), torch.stack([matrix(40, 70, True, seed + 9 + i) for i in range(3)])
    a[1, 3, 5] = math.inf
    c, want = batched(a, b), a.double() @ b.double()
    assert torch.equal(c.isfinite(), want.isfinite()) and check.error(c[want.isfinite()], want[want.isfinite()]) < 3e-7


def test_who_multiplies_batches(a_gpu):
    """Scores of attention in fp32, whose right factor lies along K, go by tensor cores."""
    assert product_few.of_batches(like(128, 64), turned(64, 128), 24) is not None
    assert product_few.of_batches(like(16, 16), like(16, 16), 256) is None and product_few.of_batches(like(4, 64), turned(64, 128), 24) is None
    assert product_few.of_batches(like(128, 64, device="cpu"), turned(64, 128), 24) is None


@pytest.fixture
def nothing_remembered():
    """No call of an op is known from before, nor kept."""
    replay.forget()
    yield
    replay.forget()


def test_a_softmax_without_memory_for_products(nothing_remembered, monkeypatch, seed):
    """It goes by pointers."""
    a, b = matrix(20, 200, False, seed), matrix(200, 90, True, seed + 1) * 0.2
    monkeypatch.setattr(product_few, "takes", lambda a, b: True)
    monkeypatch.setattr(product_few, "product", lambda *given: pytest.fail("it was taken"))
    monkeypatch.setattr(sys.modules["triport.ops.matmul_softmax"], "held", lambda *given: None)
    assert check.error(ops.matmul_softmax(a, b, 0), (a.double() @ b.double()).softmax(0)) < 1e-5
    without_memory(monkeypatch, layout)
    assert layout.held(a.shape, a.device) is None


@pytest.mark.parametrize("axis", [0, -1])
def test_a_softmax_of_it_is_a_kernel_of_its_own(axis, nothing_remembered, monkeypatch, seed):
    """`matmul_softmax` holds the products in fp32 then."""
    a, b = matrix(20, 200, False, seed), matrix(200, 90, True, seed + 1) * 0.2
    monkeypatch.setattr(product_few, "takes", lambda a, b: True)
    went, real = [], product_few.product
    monkeypatch.setattr(product_few, "product", lambda given, c: (went.append(c.dtype), real(given, c, programs=4)))
    got = ops.matmul_softmax(a, b, axis)
    assert went == [torch.float32] and check.error(got, (a.double() @ b.double()).softmax(axis)) < 1e-5
    assert error(ops.matmul(a, b), a, b) < 1.5e-7 and len(went) == 2


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("m,n,k", [(150, 50000, 300), (50000, 150, 300), (64, 8192, 1000), (128, 10000, 500), (16, 4096, 340), (4, 4096, 300), (1, 900, 20)])
def test_a_share_has_a_multiple_of_16_terms(m, n, k, memory, monkeypatch):
    """Also where one has all of K: Triton sees by that where a share begins, and reads 16 bytes at a time (`compiled` below says so of `terms`)."""
    met = []
    monkeypatch.setattr(product_few, "launch", lambda kernel, grid, *args, **consts: met.append(args[kernel.arg_names.index("terms")]))
    monkeypatch.setattr(product_few, "add_up", lambda *_: None)
    if not memory:
        monkeypatch.setattr(product_few, "in_shares", lambda c, shares: c)
    for programs in (1, 132):
        product_few.product((torch.empty(m, k), torch.empty(k, n)), torch.empty(m, n), programs=programs)
    assert len(met) == 2 and all(terms % 16 == 0 and (memory or terms >= k) for terms in met), met


@pytest.mark.parametrize("along_k", [False, True])
@pytest.mark.parametrize("rows", [16, 64, 128])
def test_code_for_a_gpu(rows, along_k):
    """Numbers are fetched 16 bytes at a time while others are multiplied, by tensor cores; nothing is spilled."""
    made = compiled(product_few.few_rows_kernel, rows, along_k, BM=rows)
    text, usage = made
    assert text.count("HGMMA") >= 12  # six products of two pieces
    assert "LDGSTS.E.BYPASS.128" in text and not re.search(r"LDGSTS\.E\s|LDGSTS\.E\.64", text)
    assert usage["local memory, bytes"] == 0


@pytest.mark.parametrize("along_k", [False, True])
@pytest.mark.parametrize("rows", [1, 4])
def test_code_of_few_lines_for_a_gpu(rows, along_k):
    text, usage = compiled(product_few.few_lines_kernel, rows, along_k, R=rows, W_ALONG_K=along_k, STAGES=product_few.PIECE[along_k][rows > 1][2])
    assert "FFMA" in text and "LDGSTS.E.BYPASS.128" in text
    assert usage["local memory, bytes"] == 0


def compiled(kernel, rows: int, along_k: bool, **consts) -> tuple[str, dict]:
    """(machine code, resources) of a kernel for an H100, on matrices whose lines are multiples of 4 numbers, not of 16."""
    from triport.tools.inspector import tools

    how = product_few.how(rows, 4096, 4096, along_k, 132, (4, 4))
    consts = {**consts, "BN": how.bn, "BK": how.bk, "EVEN": 0b00_00_10_10_10_10 | (0b10_00_00_00_00_00_00 if along_k else 0b10_00_00_00_00_00), "stride_xk": 1, "stride_cn": 1,
              "stride_wk" if along_k else "stride_wn": 1, **({"m": 1} if rows == 1 else {})}
    pointers, names = ("x_ptr", "w_ptr", "c_ptr"), list(kernel.arg_names)
    signature = {n: "constexpr" if n in consts else "*fp32" if n in pointers else "i32" for n in names}
    attrs = {(names.index(n),): [["tt.divisibility", 16]] for n in (*pointers, "terms")}
    target = GPUTarget("cuda", 90, 32)
    with active.compiling_for(target):
        made = triton.compile(triton.compiler.ASTSource(fn=kernel, signature=signature, constexprs=consts, attrs=attrs), target=target,
                              options={"num_warps": how.warps, "num_stages": how.stages})
    return tools.sass(made.asm["cubin"]), tools.cubin_usage(made.asm["cubin"], made.metadata.name)


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("m,n,k", [(1, 4096, 1000), (3, 1000, 4096), (36, 1000, 1000), (128, 2048, 4096), (512, 512, 1024), (1000, 2, 3000), (2000, 52, 2000),
                                   (1, 1839, 7175), (3, 2003, 3001), (8, 513, 4097), (333, 64, 4097), (116, 3253, 1703), (7, 9, 7595)])
@pytest.mark.parametrize("turned", TURNED)
def test_on_a_gpu(turned, m, n, k, dtype, seed):
    a, b = matrix(m, k, turned[0], seed, "cuda").to(dtype), matrix(k, n, turned[1], seed + 1, "cuda").mul_(0.05).to(dtype)
    with set_wrap_triton_enabled(False):
        found = product_way.special(a, b)
    if torch.cuda.get_device_capability() == (9, 0) and (dtype == torch.float32 or min(m, n) <= 128 and m % 8 and n % 8 and k % 8):
        assert found and found[0] is product_few
    for name, kwargs in (("matmul", {}), ("matmul_softmax", {"dim": 0}), ("matmul_softmax", {"dim": -1})):
        op = registry.get(name)
        for _ in range(3):  # the third by native code
            right, error = check.verdict(op, op.call(a, b, **kwargs), [a, b], kwargs)
            assert right, (name, kwargs, error)
    a[m // 2, k // 2] = math.inf
    got, want = ops.matmul(a, b), a.double() @ b.double()
    assert torch.equal(got.isfinite(), want.isfinite()) and check.error(got[want.isfinite().all(1)], want[want.isfinite().all(1)]) < max(1e-6, torch.finfo(dtype).eps)
