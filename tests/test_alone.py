"""Kernels that run alone: what they add atomically they just add; and which of Inductor's do."""

import types

import pytest
import torch
import triton
import triton.language as tl
from triport.backends import of_torch
from triport.backends.cpu.plugin import scatter
from triport.backends.cpu.run.metadata import ALONE


@triton.jit
def rows_kernel(i_ptr, x_ptr, out_ptr, n, C: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    row = tl.load(i_ptr + at // C, mask, 0)
    tl.atomic_add(out_ptr + at % C + C * row, tl.load(x_ptr + at, mask, 0), mask, sem="relaxed")


@triton.jit
def old_kernel(x_ptr, old_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(old_ptr + at, tl.atomic_add(x_ptr + at % 4, 1, at < n), at < n)


@pytest.mark.parametrize("C, skew", [(64, 0), (64, 1), (100, 0), (7, 3), (1, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64])
def test_sums_of_rows(dtype, C, skew, seed):
    """Rows that are met several times, in one vector too (C = 1), tails under a mask, memory that is not aligned."""
    n, rows = 60 * C, 11
    i = torch.randint(rows, (60,))
    x = torch.randint(-9, 9, (n + skew,)).to(dtype)[skew:]
    around = torch.full((rows * C + 64 + skew,), 3, dtype=dtype)
    out = around[32 + skew:32 + skew + rows * C]
    want = out.double().view(rows, C).index_add(0, i, x.double().view(60, C))
    for alone in (True, False):
        out.fill_(3)
        compiled = rows_kernel[(triton.cdiv(n, 256),)](i, x, out, n, C, 256, alone=alone)
        assert torch.equal(out.double().view(rows, C), want)  # small integers: every dtype holds them
        assert (around[:32 + skew] == 3).all() and (around[32 + skew + rows * C:] == 3).all()
        code, words = compiled.asm["llir"], ("atomicrmw", "cmpxchg")
        assert any(w in code for w in words) is not alone and (compiled.metadata.work == ALONE) is alone


def test_the_value_of_before():
    for alone in (True, False):
        x, old = torch.zeros(4, dtype=torch.int32), torch.full((128,), -1, dtype=torch.int32)
        old_kernel[(2,)](x, old, 100, 64, alone=alone)
        assert x.tolist() == [25] * 4 and (old[100:] == -1).all()
        for k in range(4):
            assert sorted(old[:100][k::4].tolist()) == list(range(25))


def test_who_is_alone(monkeypatch):
    assert scatter.pays(100, 64) and scatter.pays(1 << 30, 2) and not scatter.pays(1 << 20, 16)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert scatter._threads() <= 3
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert scatter._threads() >= 1

    def asked(device="cpu", heuristic="POINTWISE", custom=False, src="tl.atomic_add(x, y)", hints={"x": 64}):
        of = types.SimpleNamespace(device_props=types.SimpleNamespace(type=device), heuristic_type=types.SimpleNamespace(name=heuristic), custom_kernel=custom,
                                   fn=types.SimpleNamespace(src=src), size_hints=hints)
        return scatter.choosing(lambda self, cfg, compile_meta: {"num_warps": 1})(of, None, None).get("alone", False)

    monkeypatch.setattr(scatter, "_threads", lambda: 16)
    assert asked() and asked(hints={"y": 8, "x": 1024})
    assert not any((asked("cuda"), asked(heuristic="REDUCTION"), asked(custom=True), asked(src="tl.store(x, y)"), asked(hints={"x": 1 << 20}), asked(hints=None)))


def test_an_embeddings_gradient_by_inductor(monkeypatch, seed):
    if not of_torch.checked():
        pytest.skip("a torch that was not tried")
    asked = []
    monkeypatch.setattr(scatter, "pays", lambda elements, threads: asked.append(elements) or True)
    table, i = torch.randn(50, 24, requires_grad=True), torch.randint(50, (7, 9))
    weights = torch.randn(7, 9, 24)

    def step(i, table):
        return (torch.nn.functional.embedding(i, table) * weights).sum()

    torch._dynamo.reset()
    with torch._inductor.config.patch(cpu_backend="triton", compile_threads=1, fx_graph_cache=False):
        got, = torch.autograd.grad(torch.compile(step)(i, table), table)
    want = torch.zeros(50, 24, dtype=torch.float64).index_add(0, i.flatten(), weights.double().flatten(0, 1))
    assert torch.allclose(got.double(), want, atol=1e-5)
    assert asked, "no kernel that adds atomically was made, or nobody asked"
