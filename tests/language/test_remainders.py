"""Indices that kernels take apart step by step, `r = i % (H * W); y = r // W; x = r % W`: right whatever H and W, and addressed as `(i // W) % H` and `i % W` are."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from conftest import HANGS
from hypothesis import given, settings, strategies as st
from test_decisions import compiled
from test_masks import fenced
from test_quotients import gathers
from triport.backends.cpu.plan import quotients
from triport.backends.cpu.ttir import remainders
from triport.backends.cpu.ttir.types import Type, Value


@triton.jit
def apart_kernel(x_ptr, row_ptr, column_ptr, out_ptr, number_ptr, n, h, w, H: tl.constexpr, W: tl.constexpr, HOW: tl.constexpr, INT: tl.constexpr, BLOCK: tl.constexpr):
    """Planes of rows (H, W or, where they are 0, h, w): a number of each row and of each column, and where elements are."""
    i = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(INT)
    inside = i < n
    height, width = H if H else h, W if W else w
    if HOW == "remainders":
        r = i % (height * width)
        y, x = r // width, r % width
    elif HOW == "differences":
        r = i - i // (height * width) * (height * width)
        y = r // width
        x = r - width * y
    else:  # of a whole of which a plane is a part
        r = i % (3 * (height * width))
        y, x = r % (height * width) // width, r % width
    a = tl.load(x_ptr + i, mask=inside, other=0.0) * tl.load(row_ptr + y, mask=inside, other=0.0) + tl.load(column_ptr + x, mask=inside, other=0.0)
    tl.store(out_ptr + i, a, mask=inside)
    if number_ptr is not None:
        tl.store(number_ptr + i, (x + 100000 * y).to(tl.int64), mask=inside)


def run(h, w, n, block, how, kind, known, numbers, seed):
    torch.manual_seed(seed)
    x, row, column = (torch.randint(-9, 10, (k,)).float() for k in (n, h, w))  # whole numbers: no order rounds otherwise
    out, number = fenced(torch.zeros(n), True), fenced(torch.zeros(n, dtype=torch.int64), True) if numbers else None
    inputs = [fenced(v, True, writable=False) for v in (x, row, column)]
    apart_kernel[(triton.cdiv(n, block),)](*inputs, out, number, n, h, w, h if known else 0, w if known or known is None else 0, how, kind, block)
    i = torch.arange(n)
    assert torch.equal(out, x * row[i // w % h] + column[i % w])
    assert number is None or torch.equal(number, i % w + 100000 * (i // w % h))


@pytest.mark.parametrize("kind", [tl.int32, tl.int64])
@pytest.mark.parametrize("how", ["remainders", "differences", "part"])
@pytest.mark.parametrize("known", [True, False, None], ids=["constants", "arguments", "a constant width"])
def test_rows_and_columns(known, how, kind, seed):
    compiled_anew = ((3, 50), (1, 1), (16, 64), (31, 3))
    for h, w in compiled_anew if known is not False else (*compiled_anew, (56, 56), (7, 7), (5, 1), (1, 300), (2, 1000)):
        for n, block in ((999, 128), (h * w, 1024), (4100, 256)):
            run(h, w, n, block, how, kind, known, n == 999, seed)


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 40), st.integers(1, 200), st.integers(1, 3000), st.sampled_from((16, 128, 512)), st.sampled_from(("remainders", "differences", "part")), st.sampled_from((tl.int32, tl.int64)),
       st.booleans(), st.booleans(), st.integers(0, 2**31))
def test_any(h, w, n, block, how, kind, known, numbers, seed):
    run(h, w, n, block, how, kind, known, numbers, seed)


@triton.jit
def numbers_kernel(y_ptr, x_ptr, n, h, w, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    r = i % (h * w)
    tl.store(y_ptr + i, r // w, mask=i < n)
    tl.store(x_ptr + i, r % w, mask=i < n)


@pytest.mark.parametrize("h,w", [(1 << 16, (1 << 16) + 3), (1 << 16, (1 << 16) + 40), (1 << 15, (1 << 16) + 2), (-3, 50), (3, -50), (-3, -50), ((1 << 31) - 1, 3), (99999, 86399), (1, -(1 << 31))])
def test_products_that_wrap_and_numbers_below_zero(h, w):
    """In 32 bits, as the kernel computes: no factor of what wrapped divides it."""
    n, block = 400_000, 1024
    y, x = torch.zeros(2, n, dtype=torch.int32)
    numbers_kernel[(triton.cdiv(n, block),)](y, x, n, h, w, block)
    whole = int(np.array(h * w % (1 << 32), dtype=np.uint32).astype(np.int32))
    i = torch.arange(n)
    r = i - torch.div(i, whole, rounding_mode="trunc") * whole
    q = torch.div(r, w, rounding_mode="trunc")
    assert torch.equal(y.long(), q) and torch.equal(x.long(), r - q * w)


@triton.jit
def below_zero_kernel(out_ptr, first, w, H: tl.constexpr, W: tl.constexpr, BLOCK: tl.constexpr):
    i = first + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    r = i % (H * W)
    tl.store(out_ptr + at, r // W)
    tl.store(out_ptr + 1024 + at, r % W)
    tl.store(out_ptr + 2048 + at, i - i // W * W)
    tl.store(out_ptr + 3072 + at, i - w * (i // w))


@pytest.mark.parametrize("first", [-512, -(1 << 31), 0, (1 << 31) - 1024])
def test_indices_below_zero(first):
    out = torch.zeros(4096, dtype=torch.int32)
    below_zero_kernel[(4,)](out, first, 50, 3, 50, 256)
    i = torch.arange(1024) + first
    remainder = lambda v, by: v - torch.div(v, by, rounding_mode="trunc") * by  # noqa: E731
    r = remainder(i, 150)
    want = torch.cat((torch.div(r, 50, rounding_mode="trunc"), remainder(r, 50), remainder(i, 50), remainder(i, 50)))
    assert torch.equal(out.long(), want)


@pytest.mark.parametrize("how", ["remainders", "differences", "part"])
@pytest.mark.parametrize("known", [True, False], ids=["constants", "arguments"])
@pytest.mark.parametrize("target", ["x86-64-v4", "x86-64-v3"])
def test_pieces_have_one_row(target, known, how, monkeypatch, tmp_cache):
    """Arguments: but in a second loop, for a width that is too short or a product that wraps, where each lane is by itself."""
    given = dict(number_ptr=None, H=30 if known else 0, W=50 if known else 0, HOW=how, INT=tl.int32, BLOCK=256)
    found = gathers(compiled(apart_kernel, target, **given))
    (tmp_cache / "other").mkdir()
    if known:
        monkeypatch.setattr(remainders, "settle", lambda func: None)
    else:
        monkeypatch.setattr(quotients, "_of_a_remainder", lambda *given: None)
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_cache / "other"))
    before = gathers(compiled(apart_kernel, target, **given))
    assert 0 == found < before if known else 0 < found <= before // 2


@triton.jit
def loaded_kernel(x_ptr, quotient_ptr, remainder_ptr, n, H: tl.constexpr, W: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n).to(tl.int32, bitcast=True)
    if H:
        r = x % (H * W)
        quotient, remainder = r // W, r
    else:
        quotient = x // W
        remainder = x - quotient * W
    tl.store(quotient_ptr + i, quotient.to(tl.float32, bitcast=True), mask=i < n)
    tl.store(remainder_ptr + i, remainder.to(tl.float32, bitcast=True), mask=i < n)


@pytest.mark.parametrize("h", [0, 100])
@pytest.mark.parametrize("target", ["x86-64-v4", "spacemit-x60"])
def test_what_is_no_index_stays(target, h, monkeypatch, tmp_cache):
    """A quotient that is there makes the remainder without another division."""
    given = dict(H=h, W=480, BLOCK=256)
    found = compiled(loaded_kernel, target, **given).asm["asm"]
    (tmp_cache / "other").mkdir()
    monkeypatch.setattr(remainders, "settle", lambda func: None)
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_cache / "other"))
    assert found == compiled(loaded_kernel, target, **given).asm["asm"]


@triton.jit
def no_factors_kernel(out_ptr, first, H: tl.constexpr, W: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    r = (first + at) % H
    tl.store(out_ptr + at, r // W)
    tl.store(out_ptr + 1024 + at, r % W)


@pytest.mark.parametrize("h,w", [(150, 49), (150, 7), (49, 150), (151, 150), (2, 3), (64, 48)])
@pytest.mark.parametrize("first", [-500, 0, 1 << 20])
def test_what_divides_nothing_stays(first, h, w):
    """`i % h // w` where w is no factor of h."""
    out = torch.zeros(2048, dtype=torch.int32)
    no_factors_kernel[(4,)](out, first, h, w, 256)
    remainder = lambda v, by: v - torch.div(v, by, rounding_mode="trunc") * by  # noqa: E731
    r = remainder(torch.arange(1024) + first, h)
    assert torch.equal(out.long(), torch.cat((torch.div(r, w, rounding_mode="trunc"), remainder(r, w))))


def test_a_multiple_changes_where_its_factor_does():
    """Where `i % (h * w) // w` is seen to be of multiples of w, `i // (h * w)` is of no pieces of its own."""
    i, row, plane = (Value(Type("i32", (64,))) for _ in range(3))
    w, whole = ("w",), ("h", "w")
    inner = quotients.Quotient(w, 0, 64, i, within=whole)
    assert quotients.finest({(row, (0,)): inner, (plane, (0,)): quotients.Quotient(whole, 0, 64, i)}) == [(row, (0,))]
    assert len(quotients.finest({(row, (0,)): quotients.Quotient(w, 0, 64, i), (plane, (0,)): quotients.Quotient(whole, 0, 64, i)})) == 2
    assert len(quotients.finest({(row, (0,)): inner, (plane, (1,)): quotients.Quotient(whole, 0, 64, i)})) == 2  # of another axis


DIGITS = """
import torch, triton, triton.language as tl

@triton.jit
def digits_kernel(x_ptr, out_ptr, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    for _ in tl.static_range(STEPS):
        x = x - x // 7 * 5
    tl.store(out_ptr + tl.arange(0, BLOCK), x)

x = torch.arange(1 << 30, (1 << 30) + 64, dtype=torch.int32)
out = torch.empty_like(x)
digits_kernel[(1,)](x, out, STEPS=48, BLOCK=64)
for _ in range(48):
    x = x - x // 7 * 5
assert torch.equal(out, x)
"""


def test_a_long_chain_of_differences(tmp_path):
    """Each has the one before twice: there are 2^48 ways to the load, and it ends."""
    (tmp_path / "digits.py").write_text(DIGITS)
    p = subprocess.run([sys.executable, "digits.py"], capture_output=True, text=True, timeout=HANGS, cwd=tmp_path, env=os.environ | {"TRITON_CACHE_DIR": str(tmp_path / "c")})
    assert p.returncode == 0, p.stderr
