"""Inductor's matrix products on the CPU (`backends/cpu/plugin/products.py`): the results, what becomes one kernel, and who multiplies."""

import os
import random
import subprocess
import sys
import textwrap

import pytest
import torch
import torch.nn.functional as F
from conftest import HANGS
from torch import nn

inductor = pytest.importorskip("torch._inductor.config")
from triport.backends.cpu.llvm import targets  # noqa: E402
from triport.backends.cpu.plugin import products  # noqa: E402
from triport.bench.check import error  # noqa: E402

R = torch.randn
ALLOWED = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@pytest.fixture(autouse=True)
def through_triton(monkeypatch):
    """The CPU by Triton; products are ours whatever this machine is."""
    from triport.backends.dispatch import drivers
    torch._dynamo.reset()
    monkeypatch.setattr(products, "ours", lambda name, dtype, multiplications: True)
    monkeypatch.setattr(products, "multiplies", lambda dtype: False)
    with inductor.patch(cpu_backend="triton", compile_threads=1, fx_graph_cache=False), drivers.serving("cpu"):
        yield
    torch._dynamo.reset()


def compiled(fn, *args, **options):
    """The result of `fn` compiled, without gradients, and the code that Inductor wrote."""
    from torch._inductor.utils import run_and_get_code
    with torch.no_grad():
        out, code = run_and_get_code(torch.compile(fn, **options), *args)
    return out, "\n".join(code)


def right(fn, *args, times: float = 1.0):
    """`fn`'s code, once its result was held against float64."""
    got, code = compiled(fn, *args)
    want = fn(*(a.double() for a in args))
    assert got.dtype == args[0].dtype and got.shape == want.shape and got.stride() == want.stride()
    assert error(got, want) <= times * ALLOWED[got.dtype]
    return code


def one_kernel(code: str) -> bool:
    """Is all that `code` does one kernel, made from the template?"""
    return code.count("@triton.jit") == 1 and "def triton_tem" in code and "extern_kernels." not in code


#: what is compiled, of operands of these sizes: m, k, n, and a batch q
FUNCTIONS = {
    "mm": (lambda a, b: a @ b, lambda q, m, k, n: (R(m, k), R(k, n))),
    "mm, b transposed": (lambda a, b: a @ b.t(), lambda q, m, k, n: (R(m, k), R(n, k))),
    "mm, a transposed": (lambda a, b: a.t() @ b, lambda q, m, k, n: (R(k, m), R(k, n))),
    "mm, strided": (lambda a, b: a[::2, 1:] @ b[::2, 1:], lambda q, m, k, n: (R(2 * m, k + 1), R(2 * k, n + 1))),
    "mm, columns alike": (lambda a, b: a @ b.expand(a.shape[1], 40), lambda q, m, k, n: (R(m, k), R(k, 1))),
    "mm and gelu": (lambda a, b: F.gelu(a @ b), lambda q, m, k, n: (R(m, k), R(k, n))),
    "linear": (F.linear, lambda q, m, k, n: (R(m, k), R(n, k), R(n))),
    "linear and gelu": (lambda *x: F.gelu(F.linear(*x)), lambda q, m, k, n: (R(m, k), R(n, k), R(n))),
    "linear of three dimensions": (lambda *x: F.relu(F.linear(*x)), lambda q, m, k, n: (R(q, m, k), R(n, k), R(n))),
    "addmm, numbers": (lambda i, a, b: torch.addmm(i, a, b, beta=2.0, alpha=-0.5), lambda q, m, k, n: (R(n), R(m, k), R(k, n))),
    "addmm, a column": (torch.addmm, lambda q, m, k, n: (R(m, 1), R(m, k), R(k, n))),
    "addmm, a matrix": (torch.addmm, lambda q, m, k, n: (R(m, n), R(m, k), R(k, n))),
    "mm, one tensor twice": (lambda a: (a @ a.t()).relu(), lambda q, m, k, n: (R(m, k),)),
    "mm, a square": (lambda a: a @ a, lambda q, m, k, n: (R(m, m),)),
    "addmm, one tensor thrice": (lambda a: torch.addmm(a, a, a), lambda q, m, k, n: (R(m, m),)),
    "bmm, one tensor twice": (lambda a: a @ a.transpose(1, 2), lambda q, m, k, n: (R(q, m, k),)),
    "bmm": (torch.bmm, lambda q, m, k, n: (R(q, m, k), R(q, k, n))),
    "bmm, transposed": (lambda a, b: (a @ b.transpose(1, 2)).sigmoid(), lambda q, m, k, n: (R(q, m, k), R(q, n, k))),
    "bmm, one matrix": (lambda a, b: a @ b.expand(a.shape[0], *b.shape), lambda q, m, k, n: (R(q, m, k), R(k, n))),
}


@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_products(name, dtype, seed):
    """Of random sizes, of which none fills its tiles."""
    torch.manual_seed(seed)
    sizes = random.Random(seed)
    fn, make = FUNCTIONS[name]
    args = [x.to(dtype) for x in make(sizes.randint(2, 5), *(sizes.randint(4, 150) for _ in range(3)))]
    assert one_kernel(right(fn, *args, times=4 if "gelu" in name or "sigmoid" in name else 2))


@pytest.mark.parametrize("m,k,n", [(4, 2, 4), (5, 3000, 7), (600, 5, 600), (33, 513, 1030)])
def test_sizes_of_several_tiles_and_of_less_than_one(m, k, n, seed):
    torch.manual_seed(seed)
    assert one_kernel(right(lambda a, b: (a @ b).relu(), R(m, k), R(k, n), times=4))


@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize("m,k,n", [(1, 700, 300), (2, 256, 65), (3, 4099, 5), (5, 1030, 47), (8, 513, 130)])
def test_few_rows_go_by_lines_of_the_weights(m, k, n, dtype, seed):
    """One kernel that reads them where they lie, with what is computed from the result."""
    torch.manual_seed(seed)
    args = [x.to(dtype) for x in (R(m, k), R(n, k), R(n), R(m, n))]
    code = right(lambda x, w, b, y: F.gelu(F.linear(x, w, b)) + y, *args, times=4)
    assert "terms0" in code and ("each_sum" in code) == (m > 1) and "tl.dot" not in code and code.count("def triton_tem") == 1 and "extern_kernels." not in code
    x, w, *_ = args
    w[n - 1, k - 1], w[1, 3] = float("inf"), float("nan")
    got, _ = compiled(F.linear, x.abs() + 1, w)
    assert got[:, n - 1].isinf().all() and got[:, 1].isnan().all() and got[:, [0, *range(2, n - 1)]].isfinite().all()


@pytest.mark.parametrize("m,k,n,laid", [(9, 700, 300, True), (4, 200, 300, True), (4, 700, 300, False)])
def test_other_rows_go_by_tiles(m, k, n, laid, seed):
    """More rows, few terms, weights that lie the other way."""
    torch.manual_seed(seed)
    w = R(n, k).t() if laid else R(k, n)
    code = right(torch.mm, R(m, k), w)
    assert one_kernel(code) and "tl.dot" in code and "terms0" not in code


@pytest.mark.parametrize("maker,m,expected", [("GenuineIntel", 5, True), ("GenuineIntel", 3, False), ("", 5, False)])
def test_few_rows_where_products_are_torchs(maker, m, expected, monkeypatch, seed):
    """An Intel with one thread: its own library is no faster from four rows on."""
    monkeypatch.setattr(products, "ours", lambda name, dtype, multiplications: False)
    monkeypatch.setattr(products, "maker", lambda: maker)
    torch.manual_seed(seed)
    code = right(F.linear, R(m, 400), R(70, 400))
    assert ("terms0" in code) == expected == ("extern_kernels." not in code)


@pytest.mark.parametrize("m", [1, 2, 5])
def test_few_rows_of_what_is_computed_first(m, seed):
    """Factors that are not in memory when the product is asked for."""
    torch.manual_seed(seed)
    right(lambda a, b, c: (a * c).t() @ b, R(400, m), R(400, 70), R(400, 1), times=4)
    right(lambda a, b, c: a @ (b + c).t(), R(m, 400), R(70, 400), R(1, 400), times=4)
    right(lambda a, b, c: torch.cat([a, c], 1) @ b.expand(70, 400).t(), R(m, 300), R(1, 400), R(m, 100), times=4)


def test_few_rows_that_torch_multiplies(monkeypatch):
    """In 16 bits, where there are instructions."""
    monkeypatch.setattr(products, "multiplies", lambda dtype: True)
    for m in (1, 3, 8):
        for dtype, lines in ((torch.float32, True), (torch.bfloat16, False)):
            code = right(F.linear, R(m, 700).to(dtype), R(300, 700).to(dtype))
            assert ("terms0" in code) == lines and ("extern_kernels." in code) == (not lines and m < products.NARROW)


def test_a_sum_over_infinity_is_not_hidden_by_masks(seed):
    torch.manual_seed(seed)
    a, b = R(33, 65), R(65, 47)
    a[3, 7], b[9, 11] = float("inf"), float("nan")
    got, code = compiled(torch.mm, a, b)
    assert one_kernel(code)
    torch.testing.assert_close(got, a @ b, equal_nan=True)


def test_a_bias_is_added_before_rounding():
    """As torch's addmm does: of 257, the product, bf16 has 256, and of 257 + 1 all."""
    a, b, bias = torch.ones(8, 8), torch.full((8, 8), 32.0), torch.ones(8)
    b[3] = 33
    got, code = compiled(torch.addmm, bias.bfloat16(), a.bfloat16(), b.bfloat16())
    assert one_kernel(code)
    assert got.eq(258).all(), got


def test_gradients(seed):
    torch.manual_seed(seed)
    m = nn.Sequential(nn.Linear(33, 65), nn.GELU(), nn.Linear(65, 17))
    x = R(21, 33, requires_grad=True)
    wanted = nn.Sequential(nn.Linear(33, 65), nn.GELU(), nn.Linear(65, 17)).double()
    wanted.load_state_dict(m.state_dict())
    y = x.detach().double().requires_grad_()
    got = torch.autograd.grad(torch.compile(m)(x).square().sum(), [x, *m.parameters()])
    for mine, theirs in zip(got, torch.autograd.grad(wanted(y).square().sum(), [y, *wanted.parameters()])):
        assert error(mine, theirs) <= 1e-5


# --- who multiplies ----------------------------------------------------------------------------------------------------------

NOT_OURS = {
    "another backend": ({"cpu_backend": "cpp"}, {}, lambda: (R(32, 32), R(32, 32))),
    "the user says so": ({"max_autotune_gemm_backends": "ATEN"}, {}, lambda: (R(32, 32), R(32, 32))),
    "sizes that are not known": ({}, {"dynamic": True}, lambda: (R(32, 32), R(32, 32))),
    "one row": ({}, {}, lambda: (R(1, 64), R(64, 64))),
    "three columns": ({}, {}, lambda: (R(64, 64), R(64, 3))),
    "fp64": ({}, {}, lambda: (R(32, 32).double(), R(32, 32).double())),
    "nothing to sum": ({}, {}, lambda: (R(32, 0), R(0, 32))),
}


@pytest.mark.parametrize("why", NOT_OURS)
def test_what_stays_torchs(why, monkeypatch, seed):
    monkeypatch.setattr(products, "multiplies", lambda dtype: True)
    settings, options, make = NOT_OURS[why]
    args = make()
    with inductor.patch(**settings):
        got, code = compiled(torch.mm, *args, **options)
    assert "triton_tem" not in code
    torch.testing.assert_close(got, args[0] @ args[1])


class Node:
    """What a lowering is asked about, as far as `asked` looks."""

    def __init__(self, size):
        self._size = size

    def get_size(self):
        return self._size

    def get_dtype(self):
        return torch.float32

    def get_device(self):
        return torch.device("cpu")


def test_results_that_32_bits_do_not_count_stay_torchs():
    for columns, expected in ((1 << 10, True), (1 << 11, False)):
        assert products.asked("mm", Node((1 << 20, 8)), Node((8, columns))) is expected
        assert products.asked("bmm", Node((1 << 10, 1 << 10, 8)), Node((1 << 10, 8, columns))) is expected


def test_where_ours_would_be_slower_it_stays_torchs(monkeypatch):
    monkeypatch.setattr(products, "ours", lambda name, dtype, multiplications: False)
    _, code = compiled(lambda a, b: (a @ b).relu(), R(32, 32), R(32, 32))
    assert "extern_kernels.mm" in code and "triton_tem" not in code


def test_a_torch_that_takes_no_such_product_says_so_once(monkeypatch, seed):
    """Another torch may want other arguments: a warning, and its own product."""
    from torch._inductor.select_algorithm import TritonTemplate

    def other(self, choices, *, input_nodes, layout, tiling, **more):
        raise AssertionError("called")

    monkeypatch.setattr(TritonTemplate, "maybe_append_choice", other)
    products.refused.cache_clear()
    a, b = R(32, 33), R(33, 34)
    with pytest.warns(RuntimeWarning, match=r"does not take matrix products of triport \(TypeError: .*tiling.*torch's own does it") as said:
        got, code = compiled(lambda a, b: (a @ b) @ b.t(), a, b)
    assert code.count("extern_kernels.mm") == 2 and "triton_tem" not in code
    assert len([w for w in said if "matrix products" in str(w.message)]) == 1
    torch.testing.assert_close(got, (a @ b) @ b.t(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("maker,dtype,torchs", [("AuthenticAMD", torch.float32, False), ("AuthenticAMD", torch.bfloat16, True), ("GenuineIntel", torch.float32, True)])
def test_whose_a_product_with_a_transposed_left_factor_is(maker, dtype, torchs, monkeypatch):
    """torch's where it has instructions and copying does not pay, but for fp32 on AMD's CPUs."""
    monkeypatch.setattr(products, "multiplies", lambda dtype: True)
    monkeypatch.setattr(products, "maker", lambda: maker)
    for fn, expected in ((lambda a, b: a.t() @ b, torchs), (lambda a, b: a @ b, False), (lambda a, b: a @ b.t(), False)):
        got, code = compiled(fn, a := R(32, 32).to(dtype), b := R(32, 32).to(dtype))
        assert ("extern_kernels.mm" in code) == expected
        torch.testing.assert_close(got, fn(a, b), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("maker, pays", [("AuthenticAMD", True), ("AuthenticAMD", False), ("GenuineIntel", True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_of_weights_by_a_copy(dtype, maker, pays, monkeypatch, seed):
    """By the kernel that sums the bias's gradient of the same numbers, where copying pays; an Intel's stay torch's."""
    monkeypatch.setattr(products, "multiplies", lambda dtype: True)
    monkeypatch.setattr(products, "maker", lambda: maker)
    asked, lies = [], products._straight().pays
    monkeypatch.setattr(products._straight(), "pays", lambda *shape: asked.append(shape) or pays)

    def gradients(y, x):
        return y.t() @ x, y.sum(0)

    torch.manual_seed(seed)
    y, x = R(100, 130).to(dtype), R(100, 70).to(dtype)
    got, code = compiled(gradients, y, x)
    for mine, theirs in zip(got, gradients(y.double(), x.double())):
        assert error(mine, theirs) <= 2 * ALLOWED[dtype]
    amd = maker == "AuthenticAMD"
    assert asked == [(dtype, 130, 100, 70)] * amd
    if amd and pays:
        assert "stride_ak = 1\n" in code and "extern_kernels" not in code.split("def call")[1] and code.count("@triton.jit") == 2, "a sum and a copy, and a product"
    else:
        assert ("extern_kernels.mm(" in code) == (not amd or dtype != torch.float32)
    assert not lies(dtype, 130, 100, 70) and lies(dtype, 1 << 14, 1 << 14, 1 << 13)


@pytest.mark.parametrize("maker,threads,native,expected", [
    ("AuthenticAMD", 1, True, True), ("GenuineIntel", 1, True, False), ("GenuineIntel", 2, True, True),
    ("", 64, True, False), ("", 64, False, False), ("GenuineIntel", 1, False, True)])
def test_whose_product_is_faster(monkeypatch, maker, threads, native, expected):
    monkeypatch.undo()
    monkeypatch.setattr(products, "maker", lambda: maker)
    monkeypatch.setattr(products, "multiplies", lambda dtype: native)
    monkeypatch.setattr(products._tiles(), "workers", lambda: threads)
    assert products.ours("mm", torch.bfloat16, 1 << 20) is products.ours("addmm", torch.bfloat16, 1 << 20) is expected
    assert products.ours("bmm", torch.bfloat16, 1 << 20) is (expected and not native or maker == "GenuineIntel")
    assert products.ours("bmm", torch.float16, 1 << 20) is (expected and not native)
    assert products.ours("bmm", torch.float32, 1 << 20) is (maker in ("AuthenticAMD", "GenuineIntel"))
    assert products.ours("bmm", torch.float32, 1 << 17) is (expected and not native)


@pytest.mark.parametrize("m,n,rows,columns", [(128, 192, False, False), (100, 192, True, False), (128, 200, False, True), (100, 200, True, True), (64, 64, False, False), (40, 64, True, False)])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_tiles_that_fill_a_matrix_are_not_masked(batch, m, n, rows, columns, monkeypatch, seed):
    torch.manual_seed(seed)
    monkeypatch.setattr(products, "tiles", lambda *sizes: [(64, 64, 32, 4)])
    a, b, r = R(*batch, m, 70), R(*batch, 70, n), R(*batch, m, n)
    got, code = compiled(lambda a, b, r: (a @ b).relu() + r, a, b, r)
    assert error(got, (a.double() @ b.double()).relu() + r.double()) <= ALLOWED[torch.float32]
    assert ("rows[:, None] < M" in code, "cols[None, :] < N" in code) == (rows, columns) and "extern_kernels" not in code.split("def call")[1]


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize("m,k,n", [(1024, 1024, 1024), (256, 768, 3072), (100, 50, 70), (2048, 13, 512), (33, 3000, 65), (7, 600, 300)])
def test_tiles_are_those_of_the_op(m, k, n, threads, monkeypatch):
    """Those with all of K, too, but for a left factor that is read across its lines."""
    matmul = products._tiles()
    monkeypatch.setattr(matmul, "workers", lambda: threads)
    for count in (1, 24):
        tile = matmul.tile_for(torch.empty(m, k), torch.empty(k, n), alone=True, count=count)
        assert products.tiles(torch.float32, count, m, n, k, True) == [tuple(tile[name] for name in ("BM", "BN", "BK", "GROUP"))]
    assert k <= matmul.FEW_TERMS or products.tiles(torch.float32, 1, m, n, k, False)[0][2] <= max(t[2] for t in matmul.measured(torch.float32, threads))
    monkeypatch.setattr(products, "timed", lambda: True)
    several = products.tiles(torch.float32, 1, m, n, k, True)
    assert 1 <= len(several) <= products.TIMED and len({t[:3] for t in several}) == len(several)


@pytest.mark.parametrize("row,expected", [("x86-64-v3", False), ("x86-64-v4", False), ("sapphirerapids", True)])
def test_bf16_is_multiplied_where_there_are_instructions(monkeypatch, row, expected):
    """oneDNN says that it takes bf16 on any AVX-512, and widens it where nothing multiplies it."""
    monkeypatch.undo()
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    monkeypatch.setattr(products, "maker", lambda: "GenuineIntel")
    monkeypatch.setattr(targets, "native", lambda: targets.TARGETS[row])
    monkeypatch.setattr(products._straight(), "by_pairs", products._straight().by_pairs.__wrapped__)
    assert products.multiplies.__wrapped__(torch.bfloat16) is expected
    assert products.multiplies.__wrapped__(torch.float32)


@pytest.mark.parametrize("fn,args", [(lambda a, b: F.gelu(a @ b), lambda: (R(70, 90), R(90, 110))), (F.linear, lambda: (R(70, 90), R(110, 90), R(110))),
                                     (torch.bmm, lambda: (R(3, 40, 50), R(3, 50, 60)))], ids=["mm", "addmm", "bmm"])
@pytest.mark.parametrize("backends", ["TRITON", "ATEN,TRITON"])
def test_max_autotune_times_tiles_beside_torchs_product(fn, args, backends, monkeypatch, seed):
    """Whoever wins is right; what is timed are tiles of the table, no two alike."""
    from torch._inductor import select_algorithm
    torch.manual_seed(seed)
    asked, keep = [], select_algorithm.autotune_select_algorithm
    monkeypatch.setattr(select_algorithm, "autotune_select_algorithm", lambda name, choices, *rest, **more: asked.append(choices) or keep(name, choices, *rest, **more))
    monkeypatch.setattr(products, "ours", lambda name, dtype, multiplications: False)  # which is not asked here
    with inductor.patch(max_autotune=True, max_autotune_gemm_backends=backends):
        right(fn, *args(), times=4)
    [choices] = asked
    mine = [c for c in choices if isinstance(c, select_algorithm.TritonTemplateCaller)]
    assert len(choices) - len(mine) == ("ATEN" in backends)
    assert 1 < len({c.description for c in mine}) == len(mine) <= products.TIMED


@pytest.mark.parametrize("first", ["torch._inductor.kernel.mm", "triton"])
def test_whichever_is_imported_first(first, tmp_path):
    path = tmp_path / "first.py"
    path.write_text(textwrap.dedent(f"""
        import importlib, torch
        importlib.import_module("{first}")
        import torch._inductor.lowering as lowering, torch._inductor.kernel.mm, triton
        for name, times in {{"mm": 1, "addmm": 2, "bmm": 1, "baddbmm": 1}}.items():
            f, found = lowering.lowerings[getattr(torch.ops.aten, name).default], 0
            while f is not None:
                found, f = found + f.__code__.co_filename.endswith("products.py"), getattr(f, "__wrapped__", None)
            assert found == times, (name, found)
    """))
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env=dict(os.environ, CUDA_VISIBLE_DEVICES=""), timeout=HANGS)
    assert done.returncode == 0, done.stderr[-2000:]


NOTHING = {
    "addmm": (torch.addmm, lambda: (R(65), R(33, 40), R(40, 65))),
    "addmm of a matrix": (torch.addmm, lambda: (R(33, 65), R(33, 40), R(40, 65))),
    "addmm of a row": (torch.addmm, lambda: (R(7), R(1, 9), R(9, 7))),
    "addmm of one element": (torch.addmm, lambda: (R(1), R(1, 9).abs(), R(9, 1).abs())),  # whose terms do not cancel
    "addmm of a column": (torch.addmm, lambda: (R(33, 1), R(33, 40), R(40, 1))),
    "baddbmm": (torch.baddbmm, lambda: (R(3, 33, 65), R(3, 33, 40), R(3, 40, 65))),
}


@pytest.mark.parametrize("backends", [None, "ATEN,TRITON", "TRITON"], ids=["ours", "timed", "timed, without torch's"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NOTHING)
def test_a_factor_of_0_leaves_out_what_it_is_for(name, dtype, backends, seed):
    """beta=0 of a bias that nobody wrote, or alpha=0 of a product that is infinite."""
    torch.manual_seed(seed)
    fn, make = NOTHING[name]
    bias, x, y = (t.to(dtype) for t in make())
    with inductor.patch(max_autotune=backends is not None, max_autotune_gemm_backends=backends or "ATEN,TRITON"):
        for nothing, beta in ((float("nan"), 0), (float("inf"), 0.0)):
            got, _ = compiled(lambda b, x, y: fn(b, x, y, beta=beta), torch.full_like(bias, nothing), x, y)
            assert error(got, x.double() @ y.double()) <= ALLOWED[dtype]
            given = torch.ones_like(bias), torch.full_like(x, nothing), y
            got, _ = compiled(lambda b, x, y: fn(b, x, y, alpha=beta), *given)
            assert torch.equal(got.isnan(), fn(*given, alpha=beta).isnan())  # oneDNN's bf16 has NaN, too
