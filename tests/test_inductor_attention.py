"""Inductor's attention on the CPU (`backends/cpu/plugin/attention.py`): results and gradients against float64, and whose it is."""

import random
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

inductor = pytest.importorskip("torch._inductor.config")
from triport.backends.cpu.plugin import attention, products  # noqa: E402
from triport.backends.spine import aoti  # noqa: E402
from triport.bench.check import error  # noqa: E402

R = torch.randn
ALLOWED = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
INFINITE = float("-inf")


@pytest.fixture(autouse=True)
def through_triton(monkeypatch):
    """The CPU by Triton; attention is ours whatever this machine is."""
    from triport.backends.dispatch import drivers
    torch._dynamo.reset()
    monkeypatch.setattr(attention, "ours", lambda *how: True)
    with inductor.patch(cpu_backend="triton", compile_threads=1, fx_graph_cache=False), drivers.serving("cpu"):
        yield
    torch._dynamo.reset()


def compiled(fn, *args, **options):
    """(result, gradients of `args` for a random one of the result, that, and the code that Inductor wrote)."""
    from torch._inductor.utils import run_and_get_code

    def both(*args):
        out = torch.compile(fn, **options)(*args)
        out.backward(grad)
        return out

    args = [a.detach().requires_grad_() for a in args]
    grad = torch.randn_like(fn(*args))
    out, code = run_and_get_code(both, *args)
    return out.detach(), [a.grad for a in args], grad, "\n".join(code)


def right(fn, *args, bias=None, times: float = 1.0, **options) -> str:
    """The code, once `fn(*args)` and its gradients were held against float64. bias: what `fn` reads besides, of no gradient."""
    out, grads, grad, code = compiled(fn if bias is None else lambda *a: fn(*a, bias), *args, **options)
    wide = [a.detach().double().requires_grad_() for a in args]
    want = fn(*wide) if bias is None else fn(*wide, bias.double())
    allowed = times * ALLOWED[args[0].dtype]
    assert out.dtype == args[0].dtype and out.shape == want.shape and error(out, want.detach()) <= allowed
    for mine, theirs in zip(grads, torch.autograd.grad(want, wide, grad.double())):
        assert error(mine, theirs) <= 2 * allowed
    return code


def ours(code: str, backward: bool = True) -> bool:
    return code.count("def triton_tem") == (3 if backward else 1) and not calls_torchs(code)


def calls_torchs(code: str) -> bool:
    return any("= torch.ops.aten._scaled_dot_product" in line and "#" not in line for line in code.split("\n"))


def attend(q, k, v, bias=None, **how):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, **how)


def heads(b, h, m, n, d, dtype):
    """Queries, keys and values as linear layers leave them."""
    return [R(b, s, h, d).to(dtype).transpose(1, 2) for s in (m, n, n)]


@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("d", [64, 16, 40])
def test_results_and_gradients(dtype, causal, d, seed):
    """Of random sizes, more and less than a tile, as many keys as queries and not."""
    torch.manual_seed(seed)
    sizes = random.Random(seed)
    for m, n in ((sizes.randint(4, 60), None), (sizes.randint(65, 260), None), (sizes.randint(4, 200), sizes.randint(4, 200))):
        assert ours(code_of := right(lambda q, k, v: attend(q, k, v, is_causal=causal), *heads(2, 3, m, n or m, d, dtype))), code_of


BIASES = {
    "rows and columns": lambda b, h, m, n: R(m, n),
    "columns": lambda b, h, m, n: R(b, 1, 1, n),
    "all": lambda b, h, m, n: R(b, h, m, n),
    "heads": lambda b, h, m, n: R(1, h, m, 1),
    "turned": lambda b, h, m, n: R(1, 1, n, m).transpose(2, 3),
    "some left out": lambda b, h, m, n: torch.where(torch.rand(b, 1, m, n) < 0.3, INFINITE, 0.0),
}


@pytest.mark.parametrize("name", BIASES)
@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
def test_biases(name, dtype, seed):
    torch.manual_seed(seed)
    bias = BIASES[name](2, 3, 70, 90)
    if name == "some left out":
        bias[..., 0] = 0  # no row without a column
    assert ours(right(attend, *heads(2, 3, 70, 90, 32, dtype), bias=bias.to(dtype)))


def test_a_bias_of_fp32_beside_16_bits(seed):
    torch.manual_seed(seed)
    assert ours(right(attend, *heads(2, 3, 40, 50, 32, torch.bfloat16), bias=R(40, 50)))


def test_rows_that_see_nothing(seed):
    """Are zeros, as torch's are, and so are their gradients."""
    torch.manual_seed(seed)
    bias = torch.zeros(2, 1, 70, 90)
    bias[0, :, 3:40], bias[1, :, :, 50:] = INFINITE, INFINITE
    args = heads(2, 3, 70, 90, 32, torch.float32)
    torch._dynamo.reset()
    out, (of_q, of_k, of_v), grad, code = compiled(lambda q, k, v: attend(q, k, v, bias), *args)
    assert ours(code)
    assert (out[0, :, 3:40] == 0).all() and (of_q[0, :, 3:40] == 0).all() and (of_k[1, :, 50:] == 0).all() and (of_v[1, :, 50:] == 0).all()
    wide = [a.detach().double().requires_grad_() for a in args]
    want = attend(*wide, bias.double())
    assert error(out, want.detach()) <= 2e-6
    for mine, theirs in zip((of_q, of_k, of_v), torch.autograd.grad(want, wide, grad.double())):
        assert error(mine, theirs) <= 4e-6


@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
def test_rows_behind_the_least_number(dtype, seed):
    """What models write for padding: the mean of v, as torch gives (fp16's least number is small enough for a score to tell)."""
    torch.manual_seed(seed)
    bias = torch.zeros(2, 1, 70, 90, dtype=dtype)
    bias[0, :, 3:40] = torch.finfo(dtype).min
    bias[1, :, :, 50:] = torch.finfo(dtype).min
    args = heads(2, 3, 70, 90, 32, dtype)
    out, grads, grad, code = compiled(lambda q, k, v: attend(q, k, v, bias), *args)
    assert ours(code) and (dtype is torch.float16 or error(out[0, :, 3:40], args[2][0].double().mean(1, keepdim=True).expand(-1, 37, -1)) <= ALLOWED[dtype])
    own = [a.detach().requires_grad_() for a in args]
    want = attend(*own, bias)
    assert error(out, want.detach().double()) <= 2 * ALLOWED[dtype]
    for mine, theirs in zip(grads, torch.autograd.grad(want, own, grad)):
        assert error(mine, theirs.double()) <= 4 * ALLOWED[dtype]


def test_scores_that_are_all_infinite(seed):
    """Zeros, as by torch."""
    torch.manual_seed(seed)
    q, k, v = (t.abs() for t in heads(1, 2, 33, 33, 16, torch.float32))
    q[0, 1, 5] = INFINITE
    with torch.no_grad():
        got = torch.compile(attend)(q, k, v)
    assert (got[0, 1, 5] == 0).all()
    torch.testing.assert_close(got, attend(q, k, v), rtol=1e-4, atol=1e-5)


def test_no_number_spoils_its_row_only(seed):
    torch.manual_seed(seed)
    q, k, v = heads(1, 2, 33, 33, 16, torch.float32)
    q[0, 1, 5, 3] = float("nan")
    with torch.no_grad():
        got = torch.compile(attend)(q, k, v)
    assert got[0, 1, 5].isnan().all() and got.isnan().sum() == 16
    torch.testing.assert_close(got, attend(q, k, v), equal_nan=True, rtol=1e-4, atol=1e-5)


LAYOUTS = {
    "heads first": lambda b, h, m, d: (R(b, h, m, d), R(b, h, m, d), R(b, h, m, d)),
    "one tensor": lambda b, h, m, d: (R(b, m, 3 * h * d),),
    "one tensor thrice": lambda b, h, m, d: (R(b, h, m, d),),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name, seed):
    torch.manual_seed(seed)
    b, h, m, d = 2, 3, 70, 32

    def fn(*x):
        if name == "one tensor":
            q, k, v = (t.view(b, m, h, d).transpose(1, 2) for t in x[0].split(h * d, dim=2))
        else:
            q, k, v = x * 3 if len(x) == 1 else x
        return attend(q, k, v, scale=0.3, is_causal=True)

    assert ours(right(fn, *LAYOUTS[name](b, h, m, d), times=2))


def test_what_follows_and_comes_before(seed):
    """A block: what is computed from the result, and the result from what is computed."""
    torch.manual_seed(seed)
    right(lambda q, k, v: attend(q * 2, k + 1, v.tanh(), is_causal=True).transpose(1, 2).flatten(2).relu() * 3, *heads(2, 3, 70, 70, 32, torch.float32), times=4)


def test_inference_is_one_kernel_with_what_follows(seed):
    """No sums are left for a backward that does not come."""
    from torch._inductor.utils import run_and_get_code
    q, k, v = (R(2, 3, 40, 16) for _ in range(3))
    with torch.no_grad():
        out, code = run_and_get_code(torch.compile(lambda q, k, v: attend(q, k, v).relu()), q, k, v)
    assert ours("\n".join(code), backward=False) and "\n".join(code).count("@triton.jit") == 1
    assert error(out, attend(q.double(), k.double(), v.double()).relu()) <= 2e-6


@pytest.mark.first(0)
@pytest.mark.skipif(not (Path(torch.__file__).parent / aoti._HEADER).exists(), reason="this torch's AOTInductor has no launches of Triton's kernels for the CPU")
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++, which torch compiles a package's C++ with")
def test_in_a_package(tmp_path, monkeypatch, seed):
    """AOTInductor's, with a bias and without."""
    torch.manual_seed(seed)

    class Model(torch.nn.Module):
        def forward(self, q, k, v, bias):
            return attend(q, k, v), attend(q, k, v, bias)

    args = *heads(2, 3, 70, 90, 32, torch.float32), R(70, 90)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    with inductor.patch({"aot_inductor.compile_wrapper_opt_level": "O0", "aot_inductor.precompile_headers": False}), torch.no_grad():
        package = torch._inductor.aoti_compile_and_package(torch.export.export(Model(), args), package_path=str(tmp_path / "model.pt2"))
    run = torch._inductor.aoti_load_package(package)
    q, k, v, bias = (a.double() for a in args)
    for got, want in zip(run(*args), (attend(q, k, v), attend(q, k, v, bias)), strict=True):
        assert error(got, want) <= 2e-6
    with zipfile.ZipFile(package) as z:
        code = z.read(next(n for n in z.namelist() if n.endswith(".wrapper.cpp"))).decode()
    assert "triton_tem_fused" in code and "aoti_torch_cpu__scaled_dot_product" not in code


# --- whose it is ----------------------------------------------------------------------------------------------------------------

NOT_OURS = {
    "another backend": ({"cpu_backend": "cpp"}, {}, {}, (8, 8, 16), torch.float32),
    "the user says so": ({"max_autotune_gemm_backends": "ATEN"}, {}, {}, (8, 8, 16), torch.float32),
    "sizes that are not known": ({}, {"dynamic": True}, {}, (8, 8, 16), torch.float32),
    "three rows": ({}, {}, {}, (3, 8, 16), torch.float32),
    "three columns": ({}, {}, {}, (8, 3, 16), torch.float32),
    "fp64": ({}, {}, {}, (8, 8, 16), torch.float64),
    "an infinite scale": ({}, {}, {"scale": float("inf")}, (8, 8, 16), torch.float32),
    "heads of 264": ({}, {}, {}, (8, 8, 264), torch.float32),
}


@pytest.mark.parametrize("name", NOT_OURS)
def test_torchs(name, seed):
    torch.manual_seed(seed)
    config, options, how, (m, n, d), dtype = NOT_OURS[name]
    with inductor.patch(**config):
        out, _, _, code = compiled(lambda q, k, v: attend(q, k, v, **how), *(args := heads(2, 2, m, n, d, dtype)), **options)
    assert "triton_tem" not in code and calls_torchs(code)
    torch.testing.assert_close(out, attend(*args, **how), rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("maker,native,expected", [("AuthenticAMD", True, [True, True]), ("AuthenticAMD", False, [True, True]), ("GenuineIntel", True, [False, True]),
                                                   ("GenuineIntel", False, [True, True]), ("", False, [False, False])])
def test_whose_is_faster(maker, native, expected, monkeypatch):
    """In 16 bits: forward, backward."""
    monkeypatch.undo()
    monkeypatch.setattr(products, "maker", lambda: maker)
    monkeypatch.setattr(products, "multiplies", lambda dtype: native)
    monkeypatch.setattr(products, "by_tiles", lambda dtype: native)
    for bits in (256, 512):
        monkeypatch.setattr(products, "vector_bits", lambda bits=bits: bits)
        assert [attention.ours(torch.bfloat16, *how) for how in ((False, False, 2.0), (True, True, 1.0))] == expected
        assert attention.ours(torch.float16, False, True, 1.0) == (maker == "AuthenticAMD" or maker == "GenuineIntel" and not native)


def test_whose_fp32_is_faster_by_avx2(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(products, "maker", lambda: "AuthenticAMD")
    for bits, expected in ((512, [True] * 4), (256, [True, False, True, False])):
        monkeypatch.setattr(products, "vector_bits", lambda bits=bits: bits)
        assert [attention.ours(torch.float32, *how) for how in ((False, False, 1.0), (False, True, 1.0), (True, True, 1.0), (True, False, 1.5))] == expected


def test_whose_fp32_is_faster_on_intels(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(products, "maker", lambda: "GenuineIntel")
    for bits in (256, 512):
        monkeypatch.setattr(products, "vector_bits", lambda bits=bits: bits)
        expected = [bits == 512, bits == 512, False]
        assert [attention.ours(torch.float32, causal, backward, work) for causal, backward, work in ((False, False, 1.0), (True, True, 1.2), (False, False, 1.5))] == expected


def test_backward_in_bf16_is_ours_on_intels_by_tiles_alone(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(products, "maker", lambda: "GenuineIntel")
    monkeypatch.setattr(products, "multiplies", lambda dtype: True)
    for tiles in (True, False):
        monkeypatch.setattr(products, "by_tiles", lambda dtype, tiles=tiles: tiles)
        assert attention.ours(torch.bfloat16, False, True, 1.0) == tiles and not attention.ours(torch.bfloat16, False, False, 1.0)


def test_a_torch_that_takes_no_such_template_says_so_once(monkeypatch, seed):
    from torch._inductor.select_algorithm import TritonTemplate

    def other(self, choices, *, input_nodes, layout, tiling, **more):
        raise AssertionError("called")

    monkeypatch.setattr(TritonTemplate, "maybe_append_choice", other)
    products.refused.cache_clear()
    torch.manual_seed(seed)
    args = heads(2, 2, 40, 40, 16, torch.float32)
    with pytest.warns(RuntimeWarning, match="does not take attention of triport .*tiling") as said:
        out, *_, code = compiled(attend, *args)
    assert "triton_tem" not in code and len([w for w in said if "attention" in str(w.message)]) == 1
    torch.testing.assert_close(out, attend(*args), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size,most,tile", [(128, 64, 64), (197, 64, 32), (70, 64, 32), (65, 64, 32), (120, 64, 64), (33, 64, 64), (5, 64, 8), (4, 64, 4), (1024, 128, 128), (197, 128, 128)])
def test_tiles(size, most, tile):
    assert attention.block(size, most) == tile
