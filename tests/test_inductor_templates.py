"""Templates of Inductor's that are C++, in graphs whose kernels are Triton's: `cpu_backend = "triton"`, against eager."""

import shutil

import pytest
import torch
import torch.nn.functional as F

inductor = pytest.importorskip("torch._inductor.config")
flex = pytest.importorskip("torch.nn.attention.flex_attention")
pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="no g++, which Inductor compiles its C++ with")


@pytest.fixture(autouse=True)
def through_triton():
    from triport.backends.dispatch import drivers
    torch._dynamo.reset()
    with inductor.patch(cpu_backend="triton", compile_threads=1, fx_graph_cache=False), drivers.serving("cpu"), torch.no_grad():
        yield
    torch._dynamo.reset()


def compiled(fn, *args):
    """The result of `fn` compiled, and the code that Inductor wrote."""
    from torch._inductor.utils import run_and_get_code
    out, code = run_and_get_code(torch.compile(fn), *args)
    return out, "\n".join(code)


def test_flex_attention():
    """Its scores changed, its blocks masked; what is around it is a kernel of Triton's."""
    q, k, v = torch.randn(2, 3, 77, 24), torch.randn(2, 3, 45, 24), torch.randn(2, 3, 45, 24)
    mask = flex.create_block_mask(lambda b, h, i, j: i >= j, None, None, 77, 45, device="cpu")

    def attention(q, k, v):
        return flex.flex_attention(q * 2, k, v, score_mod=lambda s, b, h, i, j: s + (i - j) * 0.1, block_mask=mask).relu() + 1

    out, code = compiled(attention, q, k, v)
    torch.testing.assert_close(out, attention(q, k, v), rtol=1e-5, atol=1e-5)
    assert "cpp_pybinding" in code and "async_compile.triton(" in code


def test_batches_that_are_timed():
    """With `max_autotune`, C++ alone to choose from: what follows a product stays apart from it."""
    a, b = torch.randn(8, 3, 64), torch.randn(8, 64, 64)
    with inductor.patch(max_autotune=True, max_autotune_gemm_backends="CPP"):
        out, code = compiled(lambda a, b: F.gelu(a @ b) + 1, a, b)
    torch.testing.assert_close(out, F.gelu(a @ b) + 1, rtol=1e-5, atol=1e-5)
    assert "cpp_pybinding" in code and "async_compile.triton(" in code


def test_frozen_weights():
    """In bf16 with what follows: the template's own, of which the C++ back end has to work the types out."""
    linear, x = torch.nn.Linear(64, 64).bfloat16().eval(), torch.randn(16, 64).bfloat16()
    with inductor.patch(max_autotune=True, freezing=True, max_autotune_gemm_backends="CPP"):
        out, code = compiled(lambda x: F.relu(linear(x)), x)
    torch.testing.assert_close(out, F.relu(linear(x)), rtol=2e-2, atol=2e-2)
    assert "cpp_pybinding" in code
