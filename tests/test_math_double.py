"""Elementary functions in f64 over the whole range against the 80 or 128 bits of a long double: errors in units in the last place, and what becomes of special values."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triport.backends.cpu.llvm import targets
from triton.language.extra import libdevice

COUNT = 1 << 17


@triton.jit
def double_kernel(x_ptr, out_ptr, n, FN: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    if FN == "exp":
        y = tl.exp(x)
    elif FN == "exp2":
        y = tl.exp2(x)
    elif FN == "expm1":
        y = libdevice.expm1(x)
    elif FN == "log":
        y = tl.log(x)
    elif FN == "log2":
        y = tl.log2(x)
    elif FN == "log10":
        y = libdevice.log10(x)
    elif FN == "log1p":
        y = libdevice.log1p(x)
    elif FN == "sin":
        y = tl.sin(x)
    elif FN == "cos":
        y = tl.cos(x)
    else:
        y = libdevice.tanh(x)
    tl.store(out_ptr + offs, y, mask=offs < n)


#: name -> (numpy's function, allowed error, the range where it is neither 0 nor infinite nor straight)
FUNCTIONS = {"exp": (np.exp, 1, (-746, 710)), "exp2": (np.exp2, 1, (-1076, 1025)), "expm1": (np.expm1, 1.9, (-3, 3)), "log": (np.log, 1, (0.5, 2)), "log2": (np.log2, 1, (0.5, 2)),
             "log10": (np.log10, 1, (0.5, 2)), "log1p": (np.log1p, 1, (-1, 1)), "sin": (np.sin, 1, (-4e5, 4e5)), "cos": (np.cos, 1, (-4e5, 4e5)), "tanh": (np.tanh, 1.5, (-2, 2))}
#: where multiplications and additions round apart
UNFUSED = {"exp": 1.25, "exp2": 1.25, "expm1": 2.1}
SPECIAL = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 5e-324, -5e-324, 2.0**-1022, -(2.0**-1022), 1.7976931348623157e308, -1.7976931348623157e308, 709.782712893384, 709.7827128933841,
           -745.1332191019411, -745.1332191019412, -708.4, 1023.9999999999999, 1024.0, -1074.0, -1075.0, -1074.9999999999998, 6.283185307179586, 1e22, 0.9999999999999999, 1.0000000000000002)


def kinds(rng, low: float, high: float):
    yield "all numbers", rng.integers(0, 1 << 64, COUNT, dtype=np.uint64).view(np.float64)
    yield f"from {low} to {high}", rng.uniform(low, high, COUNT)
    yield "small", rng.uniform(-1, 1, COUNT) * 10.0**rng.uniform(-20, 1, COUNT)
    yield "near multiples of pi/4", rng.integers(-1 << 20, 1 << 20, COUNT) * (np.pi / 4)
    yield "special", np.resize(np.array(SPECIAL), 4099)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="on this system a long double is no wider than a double")
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_ulps(fn, cpu_row, seed):
    exact, bound, inner = FUNCTIONS[fn]
    if not targets.native().fma:
        bound = UNFUSED.get(fn, bound)
    for name, x in kinds(np.random.default_rng(seed), *inner):
        out = torch.empty(len(x), dtype=torch.float64)
        double_kernel[(triton.cdiv(len(x), 4096),)](torch.from_numpy(x), out, len(x), FN=fn, BLOCK=4096)
        got = out.numpy()
        with np.errstate(all="ignore"):
            want = exact(x.astype(np.longdouble))
            rounded = want.astype(np.float64)
            errors = np.abs(got.astype(np.longdouble) - want) / np.maximum(np.spacing(np.abs(rounded)), 5e-324)
        finite = np.isfinite(rounded)
        assert np.array_equal(got[~finite], rounded[~finite], equal_nan=True), name
        assert errors[finite].max() <= bound, f"{name}: {fn}({x[finite][errors[finite].argmax()]!r})"
        zero = rounded == 0
        assert np.array_equal(np.signbit(got[zero]), np.signbit(rounded[zero])), name
