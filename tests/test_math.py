"""Elementary functions over the whole f32 range against float64: errors in units in the last place."""

import ctypes
import dataclasses
import platform

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triport.backends.cpu.llvm import targets

COUNT = 1 << 20


@triton.jit
def math_kernel(x_ptr, out_ptr, n, FN: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    if FN == "exp":
        y = tl.exp(x)
    elif FN == "exp2":
        y = tl.exp2(x)
    elif FN == "log":
        y = tl.log(x)
    elif FN == "log2":
        y = tl.log2(x)
    elif FN == "sqrt":
        y = tl.sqrt(x)
    elif FN == "rsqrt":
        y = tl.rsqrt(x)
    elif FN == "sin":
        y = tl.sin(x)
    elif FN == "cos":
        y = tl.cos(x)
    elif FN == "erf":
        y = tl.erf(x)
    elif FN == "floor":
        y = tl.floor(x)
    elif FN == "ceil":
        y = tl.ceil(x)
    else:
        y = tl.abs(x)
    tl.store(out_ptr + offs, y, mask=offs < n)


def floats(rng, low=None, high=None):
    """Random f32 bit patterns: every exponent, subnormals, infinities, NaN; or a range, with the special values."""
    if low is None:
        x = rng.integers(0, 1 << 32, COUNT, dtype=np.uint32).view(np.float32)
    else:
        x = rng.uniform(low, high, COUNT).astype(np.float32)
    special = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.1754944e-38, 3.4028235e38,
                        -3.4028235e38, 88.72284, 88.72283, -87.33655, -103.97208, -104.0, 127.99999, -149.0, 128.0],
                       dtype=np.float32)
    return np.concatenate([special, x])


def ulps(got, want64):
    """Errors in ulp of the exact result; specials must match in kind."""
    want32 = want64.astype(np.float32)
    assert np.array_equal(np.isnan(got), np.isnan(want32))
    infinite = np.isinf(want32)
    assert np.array_equal(got[infinite], want32[infinite])
    ok = np.isfinite(want32)
    assert np.isfinite(got[ok]).all()
    spacing = np.maximum(np.spacing(np.abs(want32[ok])).astype(np.float64), 2.0**-149)
    return np.abs(got[ok].astype(np.float64) - want64[ok]) / spacing


def run(fn, x):
    t = torch.from_numpy(x)
    out = torch.empty_like(t)
    math_kernel[(triton.cdiv(len(x), 4096),)](t, out, len(x), FN=fn, BLOCK=4096)
    return out.numpy()


#: sin's is what all 235,641,344 numbers from 2^-12 to 71476 come to: 2.0027, of 102.03094; three are above 2
BOUNDS = [("exp", np.exp, 1.5, [(None, None), (-104, 89)]), ("exp2", np.exp2, 2.0, [(None, None), (-150, 128)]),
          ("log", np.log, 2.0, [(None, None), (0, 4)]), ("log2", np.log2, 3.0, [(None, None), (0, 4)]),
          ("sqrt", np.sqrt, 0.5, [(None, None)]), ("rsqrt", lambda x: 1 / np.sqrt(x), 1.5, [(None, None)]),
          ("sin", np.sin, 2.003, [(None, None), (-1000, 1000)]), ("cos", np.cos, 2.0, [(None, None), (-1000, 1000)]),
          ("floor", np.floor, 0, [(None, None)]), ("ceil", np.ceil, 0, [(None, None)]), ("abs", np.abs, 0, [(None, None)])]


@pytest.fixture(params=["plain", "assists", "assists, AVX2"])
def assists(request, monkeypatch):
    """Whether this machine's CPU takes long for results that are too small; there, by 512 bits where it has them, and by less."""
    row = targets.native()
    if request.param.endswith("AVX2"):
        if row.isa not in ("AVX2", "AVX-512"):
            pytest.skip("this machine's CPU has no AVX2")
        row = dataclasses.replace(targets.get("x86-64-v3"), name="native")
    row = dataclasses.replace(row, assists=request.param != "plain")
    monkeypatch.setattr(targets, "native", lambda: row)
    monkeypatch.setitem(globals(), "math_kernel", triton.JITFunction(math_kernel.fn))  # nothing that is compiled already
    return row.assists


@pytest.mark.parametrize("fn,exact,bound,ranges", BOUNDS[:2], ids=["exp", "exp2"])
def test_exponentials_either_way(fn, exact, bound, ranges, assists, seed):
    test_ulps(fn, exact, bound, ranges, seed)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86 has the exception flags that are looked at")
@pytest.mark.parametrize("fn", ["exp", "exp2"])
def test_an_exponential_of_what_is_masked_is_too_small_for_no_instruction(fn, assists):
    """-inf, and what a mask of -1e9 leaves, are 0 without an instruction that finds its result too small: x86 takes hundreds of cycles for each vector."""
    libm, underflow = ctypes.CDLL("libm.so.6"), 0x10
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for values, small in (((-np.inf, -1e9, -200.0, 0.5, 0.0, np.inf), not assists), ((-95.0 if fn == "exp" else -140.3,), True)):
            x = np.resize(np.array(values, np.float32), 4096)
            run(fn, x)
            libm.feclearexcept(underflow)
            run(fn, x)
            assert bool(libm.fetestexcept(underflow)) == small, values
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("fn,exact,bound,ranges", BOUNDS, ids=[b[0] for b in BOUNDS])
def test_ulps(fn, exact, bound, ranges, seed):
    rng = np.random.default_rng(seed)
    for low, high in ranges:
        x = floats(rng, low, high)
        with np.errstate(all="ignore"):
            want = exact(x.astype(np.float64))
        worst = ulps(run(fn, x), want)
        assert worst.max() <= bound, f"{fn}: {worst.max():.2f} ulp at {x[np.isfinite(want)][worst.argmax()]!r}"


def test_erf_against_torch(seed):
    x = floats(np.random.default_rng(seed), -6, 6)
    want = torch.erf(torch.from_numpy(x).double()).numpy()
    assert ulps(run("erf", x), want).max() <= 2
