"""Values that are put into memory at one place: what they have in common is computed once, by one nest."""

import pytest
import torch
import triton
import triton.language as tl

EVERY_TRIP, CARRIED = "because a loop needs it in every trip", "because carried on"


@triton.jit
def sums_kernel(x_ptr, y_ptr, p_ptr, q_ptr, r_ptr, n, times, N: tl.constexpr):
    """The loop needs three numbers of each element, of which exp(x) is a part; what it carries on shares an exponential, too. y has nothing in common with them."""
    i = tl.program_id(0) * N + tl.arange(0, N)
    mask = i < n
    x = tl.load(x_ptr + i, mask=mask, other=0.0)
    e = tl.exp(x * 0.5 - 1.0)
    a, b, far = e / (1.0 + e), tl.sqrt(e + 2.0) - e, e * e > 0.2
    c = tl.log(tl.load(y_ptr + i, mask=mask, other=1.0) + 3.0)
    p, q, r = tl.zeros((N,), tl.float32), tl.zeros((N,), tl.float32) + 1.0, tl.zeros((N,), tl.int32)
    for k in range(times):
        w = tl.exp(a * k * 0.125)
        p += w * b
        q += w * c
        r += (far & (w > 1.5)).to(tl.int32)
    tl.store(p_ptr + i, p, mask=mask)
    tl.store(q_ptr + i, q, mask=mask)
    tl.store(r_ptr + i, r, mask=mask)


def sums(x, y, times):
    e = torch.exp(x.double() * 0.5 - 1)
    a, b, c = e / (1 + e), (e + 2).sqrt() - e, (y.double() + 3).log()
    w = torch.exp(a * torch.arange(times)[:, None] * 0.125)
    return (w * b).sum(0), 1 + (w * c).sum(0), ((e * e > 0.2) & (w > 1.5)).sum(0)


def steps(plan: str, why: str) -> list[tuple[str, int]]:
    """Of each step that puts values into memory for that reason: its line, and how many more values it puts there."""
    lines = plan.splitlines()
    found = []
    for n, line in enumerate(lines):
        if line.lstrip().startswith("put ") and line.endswith(why):
            more = 0
            while lines[n + 1 + more].lstrip().startswith("and "):
                more += 1
            found.append((line, more))
    return found


@pytest.mark.parametrize("n, times", [(1, 3), (63, 2), (200, 7), (512, 0), (1000, 9)])
def test_one_nest_computes_what_a_loop_needs(n, times):
    x, y = torch.randn(n), torch.rand(n)
    out = [torch.full((n + 8,), -7.0), torch.full((n + 8,), -7.0), torch.full((n + 8,), -7, dtype=torch.int32)]
    compiled = sums_kernel[triton.cdiv(n, 64),](x, y, *out, n, times, 64)
    for got, right in zip(out, sums(x, y, times)):
        torch.testing.assert_close(got[:n].double(), right.double(), rtol=1e-5, atol=1e-5)
        assert (got[n:] == -7).all(), "written behind the end"
    needed, carried = steps(compiled.asm["plan"], EVERY_TRIP), steps(compiled.asm["plan"], CARRIED)
    assert [more for _, more in needed] == [2, 0], "exp(x) is computed once, and what has nothing in common with it apart"
    assert [more for _, more in carried] == [2], "so is what the loop carries on"


@triton.jit
def lies_kernel(x_ptr, y_ptr, out_ptr, times, M: tl.constexpr, N: tl.constexpr):
    """Two values of one shape that share an exponential; the other one is read along the other dimension, mostly."""
    rows, cols = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    e = tl.exp(tl.load(x_ptr + rows * N + cols))
    a, b = e + 1.0, e * tl.load(y_ptr + cols * M + rows) - tl.load(y_ptr + N * M + cols * M + rows)
    out = tl.zeros((M, N), tl.float32)
    for k in range(times):
        out += tl.where(out > k * 2.0, a, b)
    tl.store(out_ptr + rows * N + cols, out)


def test_what_lies_along_another_dimension_is_computed_apart():
    x, y, out = torch.randn(32, 64), torch.randn(2, 64, 32), torch.zeros(32, 64)
    compiled = lies_kernel[1,](x, y, out, 5, 32, 64)
    e, right = x.double().exp(), torch.zeros(32, 64, dtype=torch.float64)
    a, b = e + 1, e * y[0].T.double() - y[1].T.double()
    for k in range(5):
        right += torch.where(right > k * 2, a, b)
    near = (right - out).abs() < 1e-4 * (1 + right.abs())
    assert near.double().mean() > 0.99, "but for what the rounding of a comparison decides"
    assert [more for _, more in steps(compiled.asm["plan"], EVERY_TRIP)] == [0, 0]


@triton.jit
def many_kernel(x_ptr, out_ptr, times, COUNT: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    e = tl.exp(tl.load(x_ptr + i)) + 1.0
    values = ()
    for n in tl.static_range(COUNT):
        values = values + (e * (n + 1.0),)
    total = tl.zeros((N,), tl.float32)
    for _ in range(times):
        for n in tl.static_range(COUNT):
            total = total * 0.5 + values[n]
    tl.store(out_ptr + i, total)


def test_a_nest_has_so_many_values():
    """It is one piece of code, of whatever size: `emit/parts.py` makes functions of whole nests."""
    x, out = torch.randn(64), torch.zeros(64)
    compiled = many_kernel[1,](x, out, 2, 40, 64)
    e, total = x.double().exp() + 1, torch.zeros(64, dtype=torch.float64)
    for _ in range(2):
        for n in range(40):
            total = total * 0.5 + e * (n + 1)
    torch.testing.assert_close(out.double(), total, rtol=1e-5, atol=1e-5)
    assert [more for _, more in steps(compiled.asm["plan"], EVERY_TRIP)] == [31, 7]


@triton.jit
def turns_kernel(x_ptr, out_ptr, times, N: tl.constexpr):
    """What one trip makes of a value the next one gives to another: they must not be written before all are read."""
    i = tl.arange(0, N)
    a = tl.load(x_ptr + i)
    b, c = tl.exp(a * 0.25), a * 0.5
    for _ in range(times):
        w = tl.exp(a * 0.125)
        a, b, c = w - b, w + c, w * 0.25 + c
    for n in tl.static_range(3):
        tl.store(out_ptr + n * N + i, a if n == 0 else b if n == 1 else c)


@pytest.mark.parametrize("times", [0, 1, 2, 5])
def test_values_that_change_places(times):
    x, out = torch.randn(64), torch.zeros(3, 64)
    turns_kernel[1,](x, out, times, 64)
    a = x.double()
    b, c = (a * 0.25).exp(), a * 0.5
    for _ in range(times):
        w = (a * 0.125).exp()
        a, b, c = w - b, w + c, w * 0.25 + c
    torch.testing.assert_close(out.double(), torch.stack([a, b, c]), rtol=1e-4, atol=1e-4)
