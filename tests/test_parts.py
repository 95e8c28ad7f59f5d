"""Kernels of very much code, which are written as functions of their own."""

import re

import pytest
import torch
import triton
import triton.language as tl

from triport.backends.base import Error
from triport.backends.cpu.emit import parts
from triport.tools.inspector.report import inspect


@triton.jit
def steps_kernel(x_ptr, out_ptr, n, TIMES: tl.constexpr, N: tl.constexpr, LEAST: tl.constexpr):
    """Numbers and places on the stack go from part to part: n, the sums, what the loop carries, and x in memory. One alone asks for the grid's depth."""
    i = tl.arange(0, N)
    x = tl.load(x_ptr + tl.program_id(0) * N + i, mask=i < n, other=0.0)
    first = tl.sum(x)
    turned = tl.flip(tl.cumsum(x), 0)
    carried = tl.num_programs(2) - 1.0
    for k in tl.static_range(TIMES):
        total = tl.sum(turned * (k + 1))
        tl.device_assert(total > LEAST, "small")
        for j in range(n):
            carried += total * j
        tl.store(out_ptr + (tl.program_id(0) * TIMES + k) * N + i, turned * total + first * k + carried, mask=i < n)


def expected(x, n, times):
    kept = torch.where(torch.arange(x.shape[1]) < n, x.double(), 0)
    turned, first, carried, rows = kept.cumsum(1).flip(1), kept.sum(1), 0, []
    for k in range(times):
        total = turned.sum(1) * (k + 1)
        carried = carried + total * (n * (n - 1) // 2)
        rows.append(turned * total[:, None] + (first * k + carried)[:, None])
    return torch.stack(rows, 1)[:, :, :n]


def launch(x, n, least, debug=False):
    out = torch.zeros(len(x), 6, x.shape[1])
    compiled = steps_kernel[len(x),](x, out, n, 6, x.shape[1], least, debug=debug)
    return out[:, :, :n], compiled.asm["llir"]


@triton.jit
def products_kernel(a_ptr, b_ptr, out_ptr, sums_ptr, times, N: tl.constexpr, LEAST: tl.constexpr):
    """Two products a trip, one of them in a branch; what the trips sum up, and numbers that the code behind them takes."""
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    out = tl.zeros((N, N), tl.float32)
    scale = 0.0
    for k in range(times):
        a, b = tl.load(a_ptr + k * N * N + at), tl.load(b_ptr + k * N * N + at)
        product = tl.dot(a, b)
        tl.device_assert(product > LEAST, "small product")
        if k % 2 == 1:
            product = tl.dot(product, a)
        scale += tl.sum(tl.max(product, 1))
        out += product * scale
    tl.store(sums_ptr + i, tl.sum(out, 1) + scale)
    tl.store(out_ptr + at, out)


def products(a, b):
    out, scale = torch.zeros_like(a[0]), 0.0
    for k, (x, y) in enumerate(zip(a, b)):
        product = x @ y @ x if k % 2 else x @ y
        scale = scale + product.max(1)[0].sum()
        out = out + product * scale
    return out, out.sum(1) + scale


@pytest.fixture
def apart(monkeypatch):
    """Each step is a function."""
    monkeypatch.setattr(parts, "MOST", 0)
    monkeypatch.setattr(parts, "ENOUGH", 1)


def functions(name, llir):
    """The parts that LLVM left in the kernel `name`, each called once."""
    defined = re.findall(rf"^define internal .*?@({name}\.part\d+)\(.* !dbg", llir, re.M)
    assert len(re.findall(rf" call .*?@{name}\.part", llir)) == len(defined)
    return defined


def test_a_kernel_in_parts_computes_what_it_would_in_one(seed, apart):
    x = torch.rand(3, 32)
    out, llir = launch(x, 29, -1)
    torch.testing.assert_close(out, expected(x, 29, 6).float(), rtol=1e-5, atol=1e-5)
    assert len(functions("steps_kernel", llir)) >= 4


def test_assertions_in_a_part_end_the_kernel(seed, apart):
    x = torch.rand(3, 32)
    out, llir = launch(x, 31, -2, debug=True)
    torch.testing.assert_close(out, expected(x, 31, 6).float(), rtol=1e-5, atol=1e-5)
    assert len(functions("steps_kernel", llir)) >= 4
    x[1] *= -1
    with pytest.raises(Error, match=r"\(1, 0, 0\): small"):
        launch(x, 31, -2, debug=True)


@pytest.mark.parametrize("debug", [False, True], ids=["plain", "asserting"])
@pytest.mark.parametrize("n", [16, 32])
def test_products_in_loops_and_branches(seed, apart, n, debug):
    a, b = torch.rand(5, n, n), torch.rand(5, n, n)
    out, sums = torch.empty(n, n), torch.empty(n)
    compiled = products_kernel[1,](a, b, out, sums, 5, n, -1, debug=debug)
    for got, want in zip((out, sums), products(a.double(), b.double())):
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=0)
    defined = functions("products_kernel", compiled.asm["llir"])
    assert len(defined) >= 4
    before = out.clone()
    if debug:
        a[3] *= -1
        with pytest.raises(Error, match="small product"):
            products_kernel[1,](a, b, out, sums, 5, n, -1, debug=debug)
        assert torch.equal(out, before)


def test_nests_in_a_row_are_one_function(seed, apart, monkeypatch):
    """And none of those before, in and behind a loop: what would hold a part of a loop stays in the kernel."""
    monkeypatch.setattr(parts, "ENOUGH", 1 << 30)
    monkeypatch.setattr(parts, "LEAST", 1)
    n = 32
    a, b, out, sums = torch.rand(5, n, n), torch.rand(5, n, n), torch.empty(n, n), torch.empty(n)
    compiled = products_kernel[1,](a, b, out, sums, 5, n, -4)
    for got, want in zip((out, sums), products(a.double(), b.double())):
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=0)
    assert len(functions("products_kernel", compiled.asm["llir"])) > 3  # before the loop, in it before the branch, in that, behind it, behind the loop


def test_an_instruction_in_a_part_is_still_of_its_line(seed, apart):
    """LLVM refuses a place in another function's scopes, and drops it with a warning."""
    n = 16
    compiled = products_kernel[1,](torch.rand(5, n, n), torch.rand(5, n, n), torch.empty(n, n), torch.empty(n), 5, n, -2)
    llir = compiled.asm["llir"]
    lines = {}
    for body, scope in ((m[0], m[1]) for m in re.finditer(r"^define internal .*?@products_kernel\.part\d+\(.*?!dbg (!\d+) \{.*?^\}", llir, re.M | re.S)):
        places = {re.search(rf"^{ref} = !DILocation\(line: (\d+), .*scope: {scope}\b", llir, re.M) for ref in re.findall(r"!dbg (!\d+)$", body, re.M)}
        assert None not in places and places
        lines[scope] = {int(m[1]) for m in places}
    text = [line.strip() for line in open(__file__).read().split("\n")]
    assert {n for n, line in enumerate(text, 1) if line.startswith("product = tl.dot(")} <= set().union(*lines.values())


def test_shorter_kernels_have_no_parts(seed):
    assert "define internal" not in launch(torch.rand(1, 32), 30, -3)[1]


def test_a_verdict_is_of_the_parts_too(seed, apart):
    n = 32
    compiled = products_kernel[1,](torch.rand(5, n, n), torch.rand(5, n, n), torch.empty(n, n), torch.empty(n), 5, n, -3)
    hot = [r for r in inspect(compiled).regions if r.hot]
    assert hot and all(".part" in r.function.name for r in hot)
    products = {k for k, line in enumerate(open(__file__), 1) if line.strip().startswith("product = tl.dot(")}
    assert products <= {line for r in hot for _, line in r.lines}
