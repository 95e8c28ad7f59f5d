"""Functions of libdevice in f32 that are polynomials, in f32 or in f64, over the whole range against float64: errors in units in the last place, and what becomes of special values."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from test_math import floats, ulps
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.language.extra import libdevice


@triton.jit
def one_kernel(x_ptr, out_ptr, n, FN: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    if FN == "log1p":
        y = libdevice.log1p(x)
    elif FN == "expm1":
        y = libdevice.expm1(x)
    elif FN == "log10":
        y = libdevice.log10(x)
    elif FN == "exp10":
        y = libdevice.exp10(x)
    elif FN == "cbrt":
        y = libdevice.cbrt(x)
    elif FN == "sinh":
        y = libdevice.sinh(x)
    elif FN == "cosh":
        y = libdevice.cosh(x)
    elif FN == "asinh":
        y = libdevice.asinh(x)
    elif FN == "acosh":
        y = libdevice.acosh(x)
    elif FN == "atanh":
        y = libdevice.atanh(x)
    elif FN == "asin":
        y = libdevice.asin(x)
    elif FN == "acos":
        y = libdevice.acos(x)
    elif FN == "atan":
        y = libdevice.atan(x)
    elif FN == "erfc":
        y = libdevice.erfc(x)
    elif FN == "erfinv":
        y = libdevice.erfinv(x)
    else:
        y = libdevice.tan(x)
    tl.store(out_ptr + offs, y, mask=offs < n)


@triton.jit
def two(x, y, FN: tl.constexpr):
    if FN == "pow":
        z = libdevice.pow(x, y)
    elif FN == "atan2":
        z = libdevice.atan2(x, y)
    elif FN == "fmod":
        z = libdevice.fmod(x, y)
    elif FN == "%":
        z = x % y
    elif FN == "/":
        z = x / y
    elif FN == "maximum":
        z = tl.maximum(x, y)
    else:
        z = libdevice.hypot(x, y)
    return z


@triton.jit
def two_kernel(x_ptr, y_ptr, out_ptr, n, FN: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, y = tl.load(x_ptr + offs, mask=offs < n), tl.load(y_ptr + offs, mask=offs < n)
    tl.store(out_ptr + offs, two(x, y, FN), mask=offs < n)


@triton.jit
def numbers_kernel(x_ptr, y_ptr, out_ptr, number, n, FN: tl.constexpr, BLOCK: tl.constexpr):
    """Tensors, one element, an argument and a constant, on either side, in one kernel."""
    i = tl.arange(0, BLOCK)
    x, y, one = tl.load(x_ptr + i, mask=i < n, other=1), tl.load(y_ptr + i, mask=i < n, other=1), tl.load(y_ptr)
    given = tl.full((), number, tl.float32).to(one.dtype)
    tl.store(out_ptr + i, two(x, one, FN), mask=i < n)
    tl.store(out_ptr + n + i, two(x, y, FN), mask=i < n)
    tl.store(out_ptr + 2 * n + i, two(one, x, FN), mask=i < n)
    tl.store(out_ptr + 3 * n + i, two(given, y, FN), mask=i < n)
    tl.store(out_ptr + 4 * n + i, two(y, given, FN), mask=i < n)
    tl.store(out_ptr + 5 * n + i[None, :], two(x[None, :], tl.expand_dims(y, 0), FN), mask=(i < n)[None, :])
    tl.store(out_ptr + 6 * n, two(given, one, FN))


#: name -> (numpy's function of float64, allowed error, ranges beside all floats)
ONE = {"log1p": (np.log1p, 1.5, (-1, 4)), "expm1": (np.expm1, 2, (-20, 89)), "log10": (np.log10, 2, (0, 4)), "exp10": (lambda x: np.power(10.0, x), 0.51, (-46, 39)),
       "cbrt": (np.cbrt, 0.51, (-9, 9)), "sinh": (np.sinh, 0.51, (-3, 3)), "cosh": (np.cosh, 0.51, (-90, 90)), "asinh": (np.arcsinh, 0.51, (-3, 3)),
       "acosh": (np.arccosh, 0.51, (1, 2)), "atanh": (np.arctanh, 0.51, (-1, 1)), "asin": (np.arcsin, 0.51, (-1, 1)), "acos": (np.arccos, 0.51, (-1, 1)),
       "atan": (np.arctan, 0.51, (-4, 4)), "tan": (np.tan, 0.51, (-100, 100)), "erfc": (lambda x: torch.special.erfc(torch.as_tensor(x, dtype=torch.float64)).numpy(), 0.51, (-4, 11)),
       "erfinv": (lambda x: torch.erfinv(torch.as_tensor(x, dtype=torch.float64)).numpy(), 0.52, (-1, 1))}
TWO = {"pow": (np.power, 0.51), "atan2": (np.arctan2, 0.51), "hypot": (np.hypot, 0.51), "fmod": (np.fmod, 0), "%": (np.fmod, 0)}


def run(kernel, fn, *xs):
    given, n = [torch.from_numpy(x) for x in xs], len(xs[0])
    out = torch.empty(n)
    kernel[(triton.cdiv(n, 4096),)](*given, out, n, FN=fn, BLOCK=4096)
    return out.numpy()


@pytest.mark.parametrize("fn", ONE)
def test_one_number(fn, cpu_row, seed):
    exact, bound, inner = ONE[fn]
    for among in ((None, None), inner):
        x = floats(np.random.default_rng(seed), *among)
        with np.errstate(all="ignore"):
            errors = ulps(run(one_kernel, fn, x), exact(x.astype(np.float64)))
        assert errors.max() <= (1.5 if fn == "tan" and among[0] is None else bound), among  # tan of large angles is libm's


@pytest.mark.parametrize("fn", [f for f in ONE if ONE[f][0](0.0) == 0])
def test_zeros_keep_their_sign(fn, cpu_row):
    assert np.array_equal(np.signbit(run(one_kernel, fn, np.array([-0.0, 0.0] * 40, np.float32))), [True, False] * 40)


SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 1e-45, -1e-45, 1e-38, 3.4e38, -3.4e38, 16777215.0, -16777215.0, 16777216.0, 1e30, -1e30, 0.99999994, 1.0000001,
                    -0.99999994, np.inf, -np.inf, np.nan], np.float32)


@pytest.mark.parametrize("fn", TWO)
def test_two_numbers(fn, cpu_row, seed):
    """All special values with each other, floats of all kinds, and those of like size."""
    exact, bound = TWO[fn]
    rng = np.random.default_rng(seed)
    near = rng.uniform(0, 8, 1 << 18).astype(np.float32), rng.uniform(-20, 20, 1 << 18).astype(np.float32)
    whole = rng.uniform(-8, 8, 1 << 16).astype(np.float32), rng.integers(-20, 20, 1 << 16).astype(np.float32)
    for x, y in (tuple(v.ravel() for v in np.meshgrid(SPECIAL, SPECIAL)), (floats(rng)[:1 << 18], floats(rng)[:1 << 18]), near, whole):
        with np.errstate(all="ignore"):
            got, want = run(two_kernel, fn, x, y), exact(x.astype(np.float64), y.astype(np.float64))
            errors = ulps(got, want)
        assert errors.max() <= bound
        zero = want.astype(np.float32) == 0
        assert np.array_equal(np.signbit(got[zero]), np.signbit(want[zero])), (x[zero], y[zero])


@pytest.mark.parametrize("fn,dtype", [(fn, dtype) for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16) for fn in (*TWO, "/", "maximum")
                                      if dtype.itemsize > 2 or fn in ("%", "/", "maximum")], ids=str)  # libdevice has no half of the others
def test_numbers_and_tensors_together(fn, dtype, cpu_row, seed):
    """A helper is shared by those who call it alike, and by nobody else."""
    exact = {"/": np.divide, "maximum": np.maximum, **{name: f for name, (f, _) in TWO.items()}}[fn]
    n, rng = 77, np.random.default_rng(seed)
    x, y = (torch.from_numpy(rng.uniform(0.1, 8, n)).to(dtype) for _ in range(2))
    number = torch.tensor(1.75, dtype=dtype)
    out = torch.empty(6 * n + 1, dtype=dtype)
    numbers_kernel[1,](x, y, out, number.item(), n, FN=fn, BLOCK=128)
    x, y, number = (v.double().numpy() for v in (x, y, number))
    want = np.concatenate([exact(x, y[0]), exact(x, y), exact(y[0], x), exact(number, y), exact(y, number), exact(x, y), [exact(number, y[0])]])
    torch.testing.assert_close(out.double(), torch.from_numpy(want).to(dtype).double(), rtol={8: 1e-13, 4: 1e-6, 2: 2**-7}[dtype.itemsize], atol=0)


@pytest.mark.parametrize("target", ["x86-64-v4", "x86-64-v3", "x86-64-v2", "neoverse-v2", "rv64gcv", "spacemit-x60"])
def test_no_lane_is_a_call(target):
    """Of libm, but where an angle or a quotient is beyond what is reduced."""
    for kernel, args in ((one_kernel, ("x_ptr",)), (two_kernel, ("x_ptr", "y_ptr"))):
        for fn in ONE if kernel is one_kernel else TWO:
            signature = {**dict.fromkeys((*args, "out_ptr"), "*fp32"), "n": "i32", "FN": "constexpr", "BLOCK": "constexpr"}
            llir = triton.compile(ASTSource(kernel, signature, {"FN": fn, "BLOCK": 256}), target=GPUTarget("cpu", target, 1)).asm["llir"]
            called = [name for name in (fn, f"{fn}f") if f"@{name}(" in llir]
            assert called == {"tan": ["tanf"], "fmod": ["fmodf"]}.get(fn, []), fn
