"""Products that end in their store while accumulators are in registers: what is stored so, what is not, and that both are right."""

import platform
import re

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings, strategies as st
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from test_decisions import compiled
from triport.backends.cpu.emit.product import ending
from triport.backends.cpu.llvm import targets

BY_THE_CPU = True  # plain kernels, beside a GPU, too
ENDS = "out of registers"
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float64: 1e-13}


@triton.jit
def product_kernel(a_ptr, b_ptr, c_ptr, bias_ptr, m, n, k, wider, pitch, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, HOW: tl.constexpr):
    """c = a @ b by tiles, of rows `pitch` apart. HOW: what is done with it: "" nothing; "bias": relu(c + bias of a column); "rows": times a number of its row; "add": added to what is
    there; "all": stored without a mask, with a bias, or a half where there is none; "or": stored in a row or a column that is there; "wide": in `wider` more rows than a has; "corner": where row + column < m; "exp": its exponential; "twice": stored twice;
    "sum": its rows' sums are stored, too; "turned": c is stored the other way round."""
    rows = tl.program_id(0) * M + tl.arange(0, M)
    cols = tl.program_id(1) * N + tl.arange(0, N)
    acc = tl.zeros((M, N), tl.float64 if a_ptr.dtype.element_ty == tl.float64 else tl.float32)
    for start in range(0, k, K):
        at = start + tl.arange(0, K)
        a = tl.load(a_ptr + rows[:, None] * k + at[None, :], mask=(rows[:, None] < m) & (at[None, :] < k), other=0.0)
        b = tl.load(b_ptr + at[:, None] * n + cols[None, :], mask=(at[:, None] < k) & (cols[None, :] < n), other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee", out_dtype=acc.dtype)
    mask = (rows[:, None] < m) & (cols[None, :] < n)
    where = c_ptr + rows[:, None] * pitch + cols[None, :]
    if HOW == "bias":
        acc = tl.maximum(acc + tl.load(bias_ptr + cols, mask=cols < n, other=0.0)[None, :], 0.0)
    if HOW == "rows":
        acc = acc * tl.load(bias_ptr + rows, mask=rows < m, other=0.0)[:, None]
    if HOW == "add":
        acc += tl.load(where, mask=mask, other=0.0)
    if HOW == "all":
        acc += tl.load(bias_ptr + cols, mask=cols < n, other=0.5)[None, :]
    if HOW == "or":
        mask = ((rows[:, None] < m) | (cols[None, :] < 5)) & (cols[None, :] < n)
    if HOW == "wide":
        mask = (rows[:, None] < m + wider) & (cols[None, :] < n)
    if HOW == "corner":
        mask = mask & (rows[:, None] + cols[None, :] < m)
    if HOW == "exp":
        acc = tl.exp(acc)
    if HOW == "sum":
        tl.store(bias_ptr + rows, tl.sum(acc, 1), mask=rows < m)
    if HOW == "turned":
        where = c_ptr + cols[None, :] * pitch + rows[:, None]
    if HOW == "all":
        tl.store(where, acc.to(c_ptr.dtype.element_ty))
    else:
        tl.store(where, acc.to(c_ptr.dtype.element_ty), mask=mask)
    if HOW == "twice":
        tl.store(where, acc.to(c_ptr.dtype.element_ty) + 1, mask=mask)


@triton.jit
def alone_kernel(a_ptr, b_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows, cols, at = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    acc = tl.dot(tl.load(a_ptr + rows[:, None] * K + at[None, :]), tl.load(b_ptr + at[:, None] * N + cols[None, :]), input_precision="ieee")
    tl.store(c_ptr + rows[:, None] * (2 * N) + cols[None, :], acc.to(c_ptr.dtype.element_ty))


def rows_here() -> list[str]:
    """Rows of targets that this machine runs, with other vectors and conversions."""
    others = ("x86-64-v2", "x86-64-v3", "x86-64-v4") if platform.machine() == "x86_64" else ()
    wide = targets.native().vector_bits
    return ["native", *(name for name in others if targets.get(name).vector_bits <= wide)]


@pytest.fixture(params=rows_here())
def target(request, monkeypatch):
    row = targets.native() if request.param == "native" else targets.get(request.param)
    monkeypatch.setattr(targets, "native", lambda: row)
    kernels = product_kernel, alone_kernel, within_kernel
    for kernel in kernels:  # what was compiled for another row
        kernel.device_caches.clear()
    yield row
    for kernel in kernels:
        kernel.device_caches.clear()


def run(m: int, n: int, k: int, dtype, how: str = "", *, seed: int, tile=(64, 64, 32), out=None, wider: int = 0, scale: float = 1.0):
    """(what the kernel stored, what it was to store in float64, the compiled kernel); raises where something else was written."""
    make = torch.Generator().manual_seed(seed)
    a, b = (scale * torch.randn(s, generator=make, dtype=torch.float64) for s in ((m, k), (k, n)))
    a, b = a.to(dtype), b.to(dtype)
    out, height, width = out or dtype, m + wider, n + 9
    if how == "turned":
        height, width = n, m + 9
    c = torch.full((height + 2, width), 7.0).to(out)
    bias = torch.randn(max(m, n), generator=make).to(dtype)
    before = c.clone()
    grid = (triton.cdiv(height if how == "wide" else max(m, 1), tile[0]), triton.cdiv(max(n, 1), tile[1]))
    kernel = product_kernel[grid](a, b, c, bias, m, n, k, wider, width, M=tile[0], N=tile[1], K=tile[2], HOW=how)
    want = torch.zeros(m + wider, n, dtype=torch.float64)
    want[:m] = a.double() @ b.double()
    written = torch.zeros(c.shape, dtype=torch.bool)
    if how == "bias":
        want = (want + bias[:n].double()).clamp(min=0)
    elif how == "rows":
        want *= bias[:m, None].double()
    elif how == "add":
        want += 7
    elif how == "exp":
        want = want.exp()
    elif how == "twice":
        want = want + 1
    if how == "turned":
        want = want.T
        written[:n, :m] = True
    else:
        written[:m + wider, :n] = True
    if how == "corner":
        written[:m, :n] &= torch.arange(m)[:, None] + torch.arange(n) < m
    assert torch.equal(c[~written], before[~written])
    return c[:height, :want.shape[1]][written[:height, :want.shape[1]]].double(), want[written[:height, :want.shape[1]]], kernel


def assert_right(got: torch.Tensor, want: torch.Tensor, dtype, k: int):
    assert got.isfinite().all()
    error = (got - want).abs().max().item() / max(want.abs().max().item(), 0.1) if want.numel() else 0.0  # a bias may leave next to nothing of what was added up
    assert error <= TOLERANCE[dtype] * max(1.0, k**0.5 / 8), error


@pytest.mark.parametrize("name", ["x86-64-v2", "x86-64-v3", "sapphirerapids", "aarch64", "neoverse-v2", "rv64gcv", "spacemit-x60"])
@pytest.mark.parametrize("how,ends", [("", True), ("bias", True), ("rows", True), ("add", True), ("wide", True), ("corner", True), ("exp", False), ("twice", False), ("sum", False),
                                      ("turned", False)])
def test_who_ends_so(name, how, ends):
    kernel = compiled(product_kernel, name, M=64, N=64, K=32, HOW=how)
    ends = ends and targets.get(name).masks
    assert (ENDS in kernel.asm["plan"]) == ends
    assert (", unless the product has" in kernel.asm["plan"]) == ends


@pytest.mark.parametrize("how,ends", [("", True), ("bias", True), ("add", True), ("exp", False), ("twice", False)])
@pytest.mark.parametrize("depth", [16, 32, 64])
def test_tiles_do_so_too(depth, how, ends):
    """AMX's accumulators go by a block's small piece of memory, and are stored from there."""
    names, given_ = product_kernel.arg_names, {"M": 64, "N": 64, "K": depth, "HOW": how}
    signature = {n: "constexpr" if n in given_ else "*bf16" if n.endswith("_ptr") else "i32" for n in names}
    source = ASTSource(fn=product_kernel, signature=signature, constexprs={(names.index(n),): v for n, v in given_.items()})
    kernel = triton.compile(source, target=GPUTarget("cpu", "sapphirerapids", 0))
    assert "AMX" in kernel.asm["plan"] and (ENDS in kernel.asm["plan"]) == ends
    converted = [block for block in re.split(r"\n\.LBB", kernel.asm["asm"]) if "vfpclassps" in block and "tilestored" not in block]
    assert bool(converted) or not ends


def masked_stores(asm: str) -> int:
    return len(re.findall(r"vmovup[sd]\s+%zmm\d+, .*\{%k\d\}", asm))


@pytest.mark.parametrize("name", ["x86-64-v4", "sapphirerapids"])
def test_blocks_that_masks_cut(name, monkeypatch, tmp_cache):
    """Of few terms: each vector of accumulators is stored from its register, and none by way of memory. Of many there would be no gain."""
    few, many = (compiled(product_kernel, name, M=64, N=64, K=k, HOW="").asm["asm"] for k in (32, 128))
    assert masked_stores(few) >= 24 + 18 + 12 and masked_stores(many) < 24  # of blocks four vectors wide, three and two
    monkeypatch.setattr(ending.InRegisters, "_under_masks", lambda self, at, block, done: None)
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_cache / "other"))
    assert masked_stores(compiled(product_kernel, name, M=64, N=64, K=32, HOW="").asm["asm"]) < 24


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("how", ["", "bias", "rows", "add", "exp", "twice", "sum", "turned", "corner"])
@pytest.mark.parametrize("m,n,k", [(128, 64, 64), (130, 70, 40), (63, 65, 1), (7, 200, 33), (64, 64, 0)])
def test_right(m, n, k, how, dtype, target, seed):
    got, want, kernel = run(m, n, k, dtype, how, seed=seed, scale=0.25 if how == "exp" else 1.0)
    assert_right(got, want, dtype, k)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("m,n,k,tile", [(64, 64, 16, (64, 64, 16)), (61, 50, 13, (64, 64, 16)), (64, 128, 48, (64, 64, 16)), (100, 300, 2048, (64, 256, 64)), (96, 256, 4096, (32, 256, 128)),
                                        (64, 256, 1025, (64, 256, 64)), (48, 256, 64, (16, 256, 64)), (33, 17, 16, (32, 16, 16))])
def test_few_terms_and_many(m, n, k, tile, dtype, target, seed):
    """Tiles of half of the usual depth, and rows that share places in a cache, or begin within a line of it."""
    got, want, _ = run(m, n, k, dtype, seed=seed, tile=tile)
    assert_right(got, want, dtype, k)


@pytest.mark.parametrize("m", [3, 64, 70])
def test_rows_that_no_product_made_are_zeros(m, target, seed):
    """A store that takes more rows than A has, or those of some columns: what is not computed goes by memory."""
    got, want, _ = run(m, 70, 40, torch.float32, "wide", wider=9, seed=seed)
    assert_right(got, want, torch.float32, 40)


def test_a_mask_that_is_no_conjunction(target, seed):
    """Rows that are not there are stored in five columns: zeros."""
    make = torch.Generator().manual_seed(seed)
    a, b, c = torch.randn(20, 40, generator=make), torch.randn(40, 64, generator=make), torch.full((64, 64), 7.0)
    product_kernel[(1, 1)](a, b, c, a, 20, 64, 40, 0, 64, M=64, N=64, K=32, HOW="or")
    assert_right(c[:20].double(), a.double() @ b.double(), torch.float32, 40)
    assert (c[20:, :5] == 0).all() and (c[20:, 5:] == 7).all()


@pytest.mark.parametrize("place", [(0, 0), (5, 63), (127, 64), (129, 69)])
def test_bf16_that_no_instruction_rounds(place, target, seed):
    """One subnormal number among others: its bits are those of rounding to nearest even, and its neighbours' too."""
    make = torch.Generator().manual_seed(seed)
    a, b, c = torch.zeros(130, 32), torch.randn(32, 70, generator=make), torch.full((132, 70), 7.0, dtype=torch.bfloat16)
    a[:, 0] = torch.randn(130, generator=make)
    tiny = 2.0**-130 * 1.37
    a[place[0]] = 0
    a[place[0], 1] = tiny
    b[1] = 0.0
    b[1, place[1]] = 1.0
    product_kernel[(3, 2)](a, b, c, a, 130, 70, 32, 0, 70, M=64, N=64, K=32, HOW="")
    want = (a.double() @ b.double()).float().to(torch.bfloat16)
    assert want[place] != 0 and (want[place[0]] != 0).sum() == 1
    assert torch.equal(c[:130].view(torch.int16), want.view(torch.int16)) or _bits_apart(c[:130], want) <= 1 and c[place] == want[place]
    assert (c[130:] == 7).all()


def _bits_apart(x: torch.Tensor, y: torch.Tensor) -> int:
    return (x.view(torch.int16).int() - y.view(torch.int16).int()).abs().max().item()


@pytest.mark.parametrize("place", [(1, 3), (5, 63), (100, 64)])
def test_what_is_read_and_stored_is_so_once(place, target, seed):
    """A block with a subnormal number is stored by memory, and all of it: rows of it must not have been added before."""
    make = torch.Generator().manual_seed(seed)
    a, b, c = torch.zeros(130, 32), torch.zeros(32, 70), torch.full((130, 70), 7.0, dtype=torch.bfloat16)
    a[:, 0], b[0], c[place] = torch.randint(1, 9, (130,), generator=make).float(), torch.randint(1, 9, (70,), generator=make).float(), 0
    a[place[0]], b[:, place[1]] = 0, 0
    a[place[0], 1], b[1, place[1]] = 2.0**-130, 1.0
    want = c.double() + a.double() @ b.double()
    product_kernel[(3, 2)](a, b, c, a, 130, 70, 32, 0, 70, M=64, N=64, K=32, HOW="add")
    assert torch.equal(c.double(), want) and want[place] == 2.0**-130


@pytest.mark.parametrize("place", [(1, 3), (5, 63), (100, 64)])
@pytest.mark.parametrize("how", ["add", "rows"])
def test_one_number_that_no_instruction_rounds(place, how, target, seed):
    """Of products of bf16, as tiles multiply: it is what was there, or a factor that makes it small."""
    make = torch.Generator().manual_seed(seed)
    a, b, c, factor = torch.zeros(130, 32), torch.zeros(32, 70), torch.full((130, 70), 7.0, dtype=torch.bfloat16), torch.ones(130)
    a[:, 0], b[0] = torch.randint(1, 9, (130,), generator=make).float(), torch.randint(1, 9, (70,), generator=make).float()
    if how == "add":
        a[place[0]], b[:, place[1]], c[place] = 0, 0, 2.0**-130
    else:
        factor[place[0]] = 2.0**-130
    product = a.double() @ b.double()
    want = c.double() + product if how == "add" else factor[:, None].double() * product
    product_kernel[(3, 2)](a.bfloat16(), b.bfloat16(), c, factor.bfloat16(), 130, 70, 32, 0, 70, M=64, N=64, K=32, HOW=how)
    assert torch.equal(c.double(), want) and (want[place[0]] != 0).all()


@pytest.mark.parametrize("n", [64, 100, 128])
def test_a_store_without_a_mask(n, target, seed):
    """Masks of what is added are known, or computed, where there is none of the store."""
    make = torch.Generator().manual_seed(seed)
    a, b, bias, c = torch.randn(64, 40, generator=make), torch.randn(40, n, generator=make), torch.randn(n, generator=make), torch.full((65, 128), 7.0)
    kernel = product_kernel[(1, triton.cdiv(n, 64))](a, b, c, bias, 64, n, 40, 0, 128, M=64, N=64, K=32, HOW="all")
    assert (ENDS in kernel.asm["plan"]) == target.masks
    want = torch.full((64, triton.cdiv(n, 64) * 64), 0.5, dtype=torch.float64)
    want[:, :n] = a.double() @ b.double() + bias.double()
    assert_right(c[:64, :want.shape[1]].double(), want, torch.float32, 40)
    assert (c[64] == 7).all() and (c[:, want.shape[1]:] == 7).all()


def test_infinities_and_nan(target):
    a, b, c = torch.ones(70, 32), torch.ones(32, 70), torch.empty(70, 70, dtype=torch.bfloat16)
    a[3, 4], a[66, 0] = float("inf"), float("nan")
    product_kernel[(2, 2)](a, b, c, a, 70, 70, 32, 0, 70, M=64, N=64, K=32, HOW="")
    assert (c[3] == float("inf")).all() and c[66].isnan().all() and (c[[*range(3), *range(4, 66), *range(67, 70)]] == 32).all()


@pytest.mark.parametrize("into", ["a", "b"])
def test_a_result_that_lies_over_an_operand(into, target, seed):
    """One program: its loads come before its store, whatever the micro-kernels do. The result's first columns lie where the last trip reads the operand."""
    make = torch.Generator().manual_seed(seed)
    memory = torch.randn(3 * 160 * 160, generator=make)
    a, b = memory[:64 * 160].view(64, 160), memory[160 * 160:][:160 * 128].view(160, 128)  # 128 terms go at once, what is left ends
    want = a.double() @ b.double()
    result = {"a": memory[128:], "b": memory[160 * 160 + 128 * 128:]}[into][:64 * 160].view(64, 160)
    kernel = product_kernel[(1, 1)](a, b, result, memory, 64, 128, 160, 0, 160, M=64, N=128, K=32, HOW="")
    assert_right(result[:, :128].double(), want, torch.float32, 160)
    assert (ENDS in kernel.asm["plan"]) == target.masks  # where they do not


def test_one_argument_for_both(target, seed):
    """What is read and written by one pointer is not known to lie apart."""
    make = torch.Generator().manual_seed(seed)
    memory = torch.randn(3, 64, 64, generator=make)
    a, b = memory[0].clone(), memory[1].clone()

    kernel = within_kernel[(1,)](memory, S=64)
    assert_right(memory[0].double(), a.double() @ b.double(), torch.float32, 64)
    assert ENDS not in kernel.asm["plan"]


@triton.jit
def within_kernel(ptr, S: tl.constexpr):
    square = tl.arange(0, S)[:, None] * S + tl.arange(0, S)[None, :]
    tl.store(ptr + square, tl.dot(tl.load(ptr + square), tl.load(ptr + S * S + square), input_precision="ieee"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_alone(dtype, target, seed):
    make = torch.Generator().manual_seed(seed)
    a, b, c = torch.randn(32, 64, generator=make).to(dtype), torch.randn(64, 32, generator=make).to(dtype), torch.full((33, 64), 7.0).to(dtype)
    kernel = alone_kernel[(1,)](a, b, c, M=32, N=32, K=64)
    assert (ENDS in kernel.asm["plan"]) == target.masks
    assert_right(c[:32, :32].double(), a.double() @ b.double(), dtype, 64)
    assert (c[:, 32:] == 7).all() and (c[32:] == 7).all()


@given(m=st.integers(1, 150), n=st.integers(1, 150), k=st.integers(0, 100), dtype=st.sampled_from([torch.float32, torch.bfloat16]), how=st.sampled_from(["", "bias", "rows", "add", "corner"]),
       tile=st.sampled_from([(64, 64, 32), (32, 128, 64), (16, 16, 16), (128, 32, 16)]), seed=st.integers(0, 1 << 30))
@settings(deadline=None, max_examples=60)
def test_any_size(m, n, k, dtype, how, tile, seed):
    got, want, _ = run(m, n, k, dtype, how, tile=tile, seed=seed)
    assert_right(got, want, dtype, k)
