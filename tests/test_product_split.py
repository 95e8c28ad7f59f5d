"""Products of fp32 matrices as products of three parts of bf16: the kernels on the CPU, their code for a GPU, and both together on one."""

import math
from types import SimpleNamespace

import pytest
import torch
import triton
from conftest import unavailable
from test_product_tma import SIZES, TILE, TURNED, errors, exp_and_statistics, matrix, without_memory
from torch._library.triton import set_wrap_triton_enabled
from triport import ops
from triport.backends import active
from triport.backends.context import RECORD, calling
from triport.bench import check
from triport.ops import product_split, product_way, registry
from triton.backends.compiler import GPUTarget

gpu = pytest.mark.skipif(bool(unavailable("triton-gpu")), reason=str(unavailable("triton-gpu")))
#: numbers that parts do not hold, and two that they just do
BEYOND = {"nan": math.nan, "infinity": -math.inf, "large": 3e38, "sums of its products may overflow": 2.0**48, "small": 2.0**-101, "subnormal": -1e-40}
HELD = {"large": 2.0**48 * (1 - 2.0**-24), "small": -(2.0**-100), "minus 0": -0.0}


def planes_of(x, k):
    p = product_split.Planes(x.shape, x.stride(), k)
    made = torch.full(p.made, -7.0, dtype=torch.bfloat16)
    return p, made


def split(a, b):
    """(planes of a, planes of b, flags)."""
    (pa, x), (pb, y) = planes_of(a, 1), planes_of(b, 0)
    flags = torch.full((pa.programs + pb.programs,), -7, dtype=torch.int32)
    product_split.launch(product_split.split_kernel, (len(flags),), a, b, x, y, flags, pa.programs, pb.programs, *pa.numbers(), *pb.numbers(),
                         BL=product_split.BLOCK[0], BC=product_split.BLOCK[1])
    return [x.chunk(3, 1 if pa.along_k else 0), y.chunk(3, 1 if pb.along_k else 0)], flags


@pytest.mark.parametrize("turned", [False, True])
def test_three_parts_hold_all_bits(turned, seed):
    """Their sum is the number, whatever its exponent; what planes have more than the matrix is 0."""
    gen = torch.Generator().manual_seed(seed)
    sizes = torch.randint(-100, 47, (70, 45), generator=gen).double()
    a = (torch.randn(70, 45, generator=gen, dtype=torch.float64).sign() * (1 + torch.rand(70, 45, generator=gen, dtype=torch.float64)) * 2**sizes).float()
    a, b = (a.T.contiguous().T if turned else a), matrix(45, 130, torch.float32, turned, seed)
    planes, flags = split(a, b)
    assert not flags.any()
    for x, parts in zip((a, b), planes):
        lines = x if x.stride(1) == 1 else x.T
        whole = sum(p.double() for p in parts)
        assert torch.equal(whole[:lines.shape[0], :lines.shape[1]], lines.double())
        assert all(p.count_nonzero() == p[:lines.shape[0], :lines.shape[1]].count_nonzero() for p in parts)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("value,flagged", [*((v, True) for v in BEYOND.values()), *((v, False) for v in HELD.values())])
def test_what_parts_do_not_hold_sets_a_flag(which, value, flagged, seed):
    given = [matrix(40, 300, torch.float32, False, seed), matrix(300, 70, torch.float32, True, seed + 1)]
    given[which][-1, -1] = value
    assert bool(split(*given)[1].any()) == flagged


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("turned", TURNED)
@pytest.mark.parametrize("m,n,k", SIZES)
def test_the_kernels(m, n, k, turned, axis, seed):
    whole, tops, sums = errors(product_split, torch.float32, m, n, k, turned, axis, seed)
    assert tops < 1e-6 and sums < 3e-6
    assert whole < (2e-7 if axis is None else 3e-6)


def test_no_part_is_left_out(seed):
    """Each of the six products is in the result: of matrices whose numbers have but one part that is not 0, and of one product only."""
    gen = torch.Generator().manual_seed(seed)
    digits = [torch.randint(129, 256, (32, 64), generator=gen).float() * 2.0**-shift for shift in (0, 9, 18)]  # 8 bits each, far enough apart
    a, b = sum(digits), sum(digits).T.contiguous()
    c = torch.empty(32, 32)
    product_split.product(product_split.prepared(a, b), c, tile=TILE, programs=1)
    assert check.error(c, a.double() @ b.double()) < 1.5e-7


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("extreme", BEYOND)
def test_what_parts_do_not_hold_is_multiplied_as_it_is(extreme, which, axis, seed):
    given = [matrix(40, 33, torch.float32, False, seed), matrix(33, 70, torch.float32, True, seed + 1)]
    given[which][3, 5] = BEYOND[extreme]
    c = torch.empty(40, 70)
    stats = torch.empty(2, 1 << 12)
    product_split.product(product_split.prepared(*given), c, stats, axis, tile=TILE, programs=2)
    want = given[0].double() @ given[1].double()
    if axis is None:
        lines = want.float().isfinite().all(1 - which)
        kept = (c[lines], want[lines]) if which == 0 else (c[:, lines], want[:, lines])
        assert check.error(*kept) < 2e-7
        assert torch.equal(torch.isnan(c), torch.isnan(want)) and torch.equal(c == math.inf, want.float() == math.inf)
    elif extreme not in ("nan", "infinity"):
        assert check.error(c, exp_and_statistics(want.float(), axis, TILE[axis])[0]) < 1e-5


def test_sums_of_parts_do_not_overflow():
    """Where the numbers' own do not: their first parts may be larger than they are."""
    for v in (2.0**63 * (1 - 2.0**-9), 2.0**48 * (1 - 2.0**-9)):
        a, b, c = torch.full((32, 1024), v), torch.cat((torch.full((512, 64), v), torch.full((512, 64), -v))), torch.empty(32, 64)
        product_split.product(product_split.prepared(a[:, 508:516], b[508:516]), c, tile=TILE, programs=1)
        assert not c.any()
    product_split.product(product_split.prepared(a, b.abs()), c, tile=TILE, programs=1)
    assert check.error(c, a.double() @ b.abs().double()) < 1e-6


def test_without_memory_for_parts(seed, monkeypatch):
    """There is another way."""
    a, b = matrix(40, 33, torch.float32, True, seed), matrix(33, 70, torch.float32, False, seed + 1)
    monkeypatch.setattr(product_split, "takes", lambda a, b: True)
    assert product_way.special(a, b)[0] is product_split
    without_memory(monkeypatch, product_split)
    assert product_way.special(a, b) is None
    assert check.error(ops.matmul(a, b), a.double() @ b.double()) < 2e-7


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("large", [True, False])
def test_code_for_a_gpu(large, axis):
    """Parts come by TMA, tensor cores multiply, results leave 16 bytes at a time, nothing is spilled."""
    from triport.tools.inspector import tools

    bm, bn, bk, warps, stages = product_split.tile_for(4096 if large else 1024, 4096 if large else 1024, axis, 132)
    kernel = product_split.product_split_kernel
    pointers, numbers = ("c_ptr", "stats_ptr", "a_ptr", "b_ptr"), ("m", "n", "k", "planes", "stride_am", "stride_bk")
    signature = {**dict.fromkeys(pointers, "*fp32"), "flags_ptr": "*i32", "a": f"tensordesc<bf16[{bm}, {bk}]>", "b": f"tensordesc<bf16[{bk}, {bn}]>",
                 **dict.fromkeys((*numbers, "flags"), "i32")}
    consts = {"stride_ak": 1, "stride_bn": 1, "A_TURNED": False, "B_TURNED": False, "AXIS": axis, "FLAGS": 1024, "BM": bm, "BN": bn, "BK": bk,
              "GROUP": 8}
    names = list(kernel.arg_names)
    source = triton.compiler.ASTSource(fn=kernel, signature={n: signature.get(n, "constexpr") for n in names}, constexprs=consts,
                                       attrs={(names.index(n),): [["tt.divisibility", 16]] for n in (*pointers, *numbers, "flags_ptr")})
    target = GPUTarget("cuda", 90, 32)
    with active.compiling_for(target):
        made = triton.compile(source, target=target, options={"num_warps": warps, "num_stages": stages})
    text, usage = tools.sass(made.asm["cubin"]), tools.cubin_usage(made.asm["cubin"], made.metadata.name)
    assert text.count("UTMALDG") >= 6 and text.count("HGMMA") >= 6 and "STG.E.128" in text
    assert usage["local memory, bytes"] == 0
    assert made.metadata.shared <= 232448


def like(*shape, stride=None, dtype=torch.float32, device="cuda", at=0) -> SimpleNamespace:
    """A matrix as far as `takes` looks: a GPU's, or not."""
    strides = stride or torch.empty(shape, device="meta").stride()
    made = SimpleNamespace(shape=tuple(shape), stride=lambda d=None: strides if d is None else strides[d], dtype=dtype, data_ptr=lambda: at,
                           device=SimpleNamespace(type=device, index=0), element_size=lambda: dtype.itemsize, numel=lambda: math.prod(shape))
    made.T = SimpleNamespace(**{**vars(made), "shape": made.shape[::-1], "stride": lambda d=None: strides[::-1] if d is None else strides[1 - d], "T": made})
    return made


def test_what_is_taken(monkeypatch):
    monkeypatch.setattr(product_split, "suits", lambda device: True)
    takes = product_split.takes
    with set_wrap_triton_enabled(False):  # as the dispatcher does
        square = like(1024, 1024)
        assert takes(square, square) and takes(square, like(1024, 1024, stride=(1, 1024)))
        assert not takes(like(1024, 1024, device="cpu"), square) and not takes(like(1024, 1024, dtype=torch.float64), square)
        assert not takes(like(1024, 1024, stride=(4096, 2)), square)
        assert not takes(like(320, 1024), square) and takes(like(512, 1024), square) and not takes(like(256, 256), like(256, 256))
        assert not takes(like(512, 8192), like(8192, 512))
        monkeypatch.setattr(product_split, "suits", lambda device: False)
        assert not takes(square, square)
    monkeypatch.setattr(product_split, "suits", lambda device: True)
    with set_wrap_triton_enabled(True):
        assert not takes(square, square)  # traced
        with calling(RECORD):  # as a call that nothing follows
            assert takes(square, square)


@pytest.mark.parametrize("m,n,axis,tile", [(4096, 4096, None, product_split.LARGE), (1024, 1024, None, product_split.SMALL), (1024, 1024, 0, (128, 64, 32, 4, 3)),
                                           (1024, 1024, 1, product_split.SMALL), (2048, 2048, 0, product_split.LARGE)])
def test_tiles(m, n, axis, tile):
    assert product_split.tile_for(m, n, axis, 132) == tile


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("m,n,k", [(2048, 2048, 512), (1999, 2301, 130), (5000, 1000, 65), (515, 1100, 4097)])
@pytest.mark.parametrize("turned", [(False, False), (True, True), (False, True), (True, False)])
def test_on_a_gpu(turned, m, n, k, seed):
    a, b = matrix(m, k, torch.float32, turned[0], seed, "cuda"), matrix(k, n, torch.float32, turned[1], seed + 1, "cuda").mul_(0.05)
    with set_wrap_triton_enabled(False):
        assert product_split.takes(a, b) == (torch.cuda.get_device_capability() == (9, 0))
    for name, kwargs in (("matmul", {}), ("matmul_softmax", {"dim": 0}), ("matmul_softmax", {"dim": -1})):
        op = registry.get(name)
        for _ in range(3):  # the third by native code
            right, error = check.verdict(op, op.call(a, b, **kwargs), [a, b], kwargs)
            assert right, (name, kwargs, error)
    odd = torch.randn(m, k + 1, device="cuda")[:, 1:]  # lines that are not aligned
    assert check.verdict(registry.get("matmul"), ops.matmul(odd, b), [odd, b], {})[0]


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e13, 1e-18])
def test_errors_on_a_gpu(scale, seed):
    """No larger than torch's, or some units of the last place of the sum of the terms' sizes: of numbers of one sign, where what is cut off adds up, and of any sign; small ones whose products are near the smallest normal number, too."""
    gen = torch.Generator().manual_seed(seed)
    for m, n, k in ((1024, 640, 8192), (1024, 1024, 1024)):
        for sign in (False, True):
            a, b = (torch.randn(shape, generator=gen).cuda() * scale for shape in ((m, k), (k, n)))
            a, b = (a.abs(), b.abs()) if sign else (a, b)
            want = a.double() @ b.double()
            sizes = a.double().abs() @ b.double().abs()
            ours, torchs = (((c.double() - want).abs() / sizes).max().item() for c in (ops.matmul(a, b), a @ b))
            assert ours <= max(torchs, 2e-6 if sign else 2e-7), (m, n, k, sign, ours, torchs)


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("extreme", BEYOND)
def test_extremes_on_a_gpu(extreme, seed):
    gen = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(700, 700, generator=gen).cuda() for _ in range(2))
    for _ in range(3):
        before = ops.matmul(a, b)
        a[3, 5] = BEYOND[extreme]
        got, want = ops.matmul(a, b), a.double() @ b.double()
        assert torch.equal(torch.isnan(got), torch.isnan(want)) and torch.equal(got.isinf(), want.float().isinf())
        assert check.error(torch.cat((got[:3], got[4:])), torch.cat((want[:3], want[4:]))) < 2e-6
        a[3, 5] = 1.0
        assert torch.isfinite(before).all()
