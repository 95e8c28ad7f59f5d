"""Every function of libdevice by name, against mpmath, Python's integers, or exact rational arithmetic for directed rounding."""

import math
import re
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch
import triton
from test_math_double import UNFUSED
from triport.backends.base import CompileError
from triport.backends.cpu.emit.element import libdevice
from triport.backends.cpu.llvm import targets
from triton.backends.compiler import GPUTarget

NAMES = {torch.float32: "f32", torch.float64: "f64", torch.int32: "i32", torch.int64: "i64"}
N = 256


def call(symbol, args, out_dtype, tmp_path):
    """`symbol` over tensors of N elements, through a kernel of its own."""
    tensor = lambda d: f"tensor<{N}x{NAMES[d]}>"  # noqa: E731
    lines = []
    for k, a in enumerate(args):
        t = NAMES[a.dtype]
        lines += [f"%s{k} = tt.splat %p{k} : !tt.ptr<{t}> -> tensor<{N}x!tt.ptr<{t}>>",
                  f"%a{k} = tt.addptr %s{k}, %i : tensor<{N}x!tt.ptr<{t}>>, tensor<{N}xi32>",
                  f"%v{k} = tt.load %a{k} : tensor<{N}x!tt.ptr<{t}>>"]
    t = NAMES[out_dtype]
    params = ", ".join(f"%p{k}: !tt.ptr<{NAMES[a.dtype]}>" for k, a in enumerate(args))
    values = ", ".join(f"%v{k}" for k in range(len(args)))
    text = f"""module {{
  tt.func public @k({params}, %o: !tt.ptr<{t}>) {{
    %i = tt.make_range {{end = {N} : i32, start = 0 : i32}} : tensor<{N}xi32>
    {chr(10).join(lines)}
    %r = tt.extern_elementwise {values} {{libname = "", libpath = "", pure = true, symbol = "{symbol}"}} : ({", ".join(
        tensor(a.dtype) for a in args)}) -> {tensor(out_dtype)}
    %so = tt.splat %o : !tt.ptr<{t}> -> tensor<{N}x!tt.ptr<{t}>>
    %ao = tt.addptr %so, %i : tensor<{N}x!tt.ptr<{t}>>, tensor<{N}xi32>
    tt.store %ao, %r : tensor<{N}x!tt.ptr<{t}>>
    tt.return
  }}
}}
"""
    path = tmp_path / f"{symbol}.ttir"
    path.write_text(text)
    out = torch.zeros(N, dtype=out_dtype)
    triton.compile(str(path), target=GPUTarget("cpu", "native", 0))[(1, 1, 1)](*args, out)
    return out


def triton_symbols():
    """Every name that Triton's own libdevice module can emit."""
    from triton.language.extra.cuda import libdevice as cuda
    from triton.language.extra.hip import libdevice as hip
    found = set()
    for module in (cuda, hip):
        found |= set(re.findall(r'"(__[a-z]+_[A-Za-z0-9_]+)"', Path(module.__file__).read_text()))
    return found


def test_every_symbol_of_triton_is_known():
    assert not triton_symbols() - libdevice.FUNCTIONS.keys()


def ulps(got, want, dtype):
    """The error of `got` in units in the last place of `want` (an mpmath number)."""
    info = np.finfo(np.float32 if dtype == torch.float32 else np.float64)
    if mpmath.isnan(want):
        return 0 if got != got else math.inf
    if mpmath.isinf(want) or abs(want) > info.max:
        return 0 if abs(got) >= info.max and (got > 0) == (want > 0) else math.inf
    if got != got:
        return math.inf
    exponent = int(mpmath.floor(mpmath.log(abs(want), 2))) if want else -5000
    unit = mpmath.mpf(2)**max(exponent - info.nmant, info.minexp - info.nmant)
    return float(abs(mpmath.mpf(got) - want) / unit)


M = mpmath
#: name -> (exact, range, allowed ulp of f32, of f64)
UNARY = {
    "acos": (M.acos, (-1, 1), 1, 1), "acosh": (M.acosh, (1, 100), 3, 3), "asin": (M.asin, (-1, 1), 1, 1),
    "asinh": (M.asinh, (-50, 50), 3, 3), "atan": (M.atan, (-20, 20), 1, 1), "atanh": (M.atanh, (-1, 1), 3, 3),
    # glibc's manual has 4 ulp for cbrt in fp64 ("Known Maximum Errors in Math Functions")
    "cbrt": (lambda x: M.sign(x) * M.cbrt(abs(x)), (-50, 50), 1, 4), "cosh": (M.cosh, (-20, 20), 2, 2),
    "erfc": (M.erfc, (-3, 9), 4, 6), "exp10": (lambda x: M.mpf(10)**x, (-30, 30), 1, 2), "expm1": (M.expm1, (-5, 20), 2, 2),
    "j0": (lambda x: M.besselj(0, x), (0, 2), 16, 16), "j1": (lambda x: M.besselj(1, x), (0, 3), 16, 16),
    "y0": (lambda x: M.bessely(0, x), (1.5, 3.5), 16, 16), "y1": (lambda x: M.bessely(1, x), (0.1, 1.8), 16, 16),
    "lgamma": (lambda x: M.log(abs(M.gamma(x))), (2.5, 50), 3, 3), "tgamma": (M.gamma, (-9.5, 30), 16, 16),
    "log10": (M.log10, (0, 50), 2, 2), "log1p": (M.log1p, (-0.9, 50), 2, 2), "sinh": (M.sinh, (-20, 20), 3, 3),
    "tan": (M.tan, (-1.5, 1.5), 1, 1), "exp": (M.exp, (-80, 80), 1.5, 1), "exp2": (lambda x: M.mpf(2)**x, (-120, 120), 2, 1),
    "log": (M.log, (0, 50), 2, 1), "log2": (lambda x: M.log(x, 2), (0, 50), 3, 1), "sin": (M.sin, (-1e5, 1e5), 2, 1),
    "cos": (M.cos, (-1e5, 1e5), 2, 1), "tanh": (M.tanh, (-10, 10), 1.5, 2.5), "erf": (M.erf, (-5, 5), 1.5, 1),
    "sqrt": (M.sqrt, (0, 1e9), 0.5, 0.5), "rsqrt": (lambda x: 1 / M.sqrt(x), (1e-9, 1e9), 1.5, 1.5),
    "rcbrt": (lambda x: 1 / (M.sign(x) * M.cbrt(abs(x))), (0.01, 50), 2, 5), "sinpi": (M.sinpi, (-9, 9), 2, 2),
    "cospi": (M.cospi, (-9, 9), 2, 2), "erfcx": (lambda x: M.exp(x * x) * M.erfc(x), (-8, 40), 1, 4),
    "erfinv": (M.erfinv, (-1, 1), 1, 3), "normcdf": (lambda x: M.erfc(-x / M.sqrt(2)) / 2, (-12, 8), 1, 5),
    "cyl_bessel_i0": (lambda x: M.besseli(0, x), (-80, 80), 1, 24),
    "cyl_bessel_i1": (lambda x: M.besseli(1, x), (-80, 80), 1, 24),
    "floor": (M.floor, (-9, 9), 0, 0), "ceil": (M.ceil, (-9, 9), 0, 0), "trunc": (lambda x: M.sign(x) * M.floor(abs(x)), (-9, 9), 0, 0),
    "round": (lambda x: M.sign(x) * M.floor(abs(x) + 0.5), (-9, 9), 0, 0), "rint": (M.nint, (-9, 9), 0, 0),
    "nearbyint": (M.nint, (-9, 9), 0, 0), "fabs": (abs, (-9, 9), 0, 0),
    "logb": (lambda x: M.floor(M.log(abs(x), 2)), (0.01, 50), 0, 0),
    "erfcinv": (lambda x: M.erfinv(1 - x), (0, 2), 1, 3),
    "normcdfinv": (lambda p: -M.sqrt(2) * M.erfinv(1 - 2 * p), (0, 1), 1, 4),
}


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
def test_functions_of_one_number(name, dtype, tmp_path, seed):
    exact, (low, high), *bounds = UNARY[name]
    bound = bounds[dtype == torch.float64]
    if dtype == torch.float64 and not targets.native().fma:
        bound = UNFUSED.get(name, bound)
    x = np.random.default_rng(seed).uniform(low, high, N)
    if name in ("erfcinv", "normcdfinv"):
        x[:40] = np.logspace(-30, -1, 40)
    if low < 0 < high and name != "tgamma":
        x[40:60] *= 1e-3
    x = torch.from_numpy(x).to(dtype)
    got = call(f"__nv_{name}" + ("f" if dtype == torch.float32 else ""), [x], dtype, tmp_path)
    hip = f"__ocml_{name}_{NAMES[dtype]}"
    if hip in triton_symbols():
        assert torch.equal(call(hip, [x], dtype, tmp_path), got)
    with M.workprec(400):
        errors = [ulps(g, exact(M.mpf(v)), dtype) for g, v in zip(got.tolist(), x.tolist())]
    worst = int(np.argmax(errors))
    assert errors[worst] <= bound, f"{name}({x[worst].item()!r}) = {got[worst].item()!r}: {errors[worst]:.2f} ulp"


SPECIAL = {
    "sin": {math.inf: math.nan}, "tanh": {math.inf: 1.0, -math.inf: -1.0}, "erf": {math.inf: 1.0, -math.inf: -1.0},
    "erfinv": {1.0: math.inf, -1.0: -math.inf, 1.5: math.nan, 0.0: 0.0}, "erfcinv": {0.0: math.inf, 2.0: -math.inf, -1.0: math.nan},
    "normcdf": {math.inf: 1.0, -math.inf: 0.0}, "normcdfinv": {0.0: -math.inf, 1.0: math.inf, 0.5: 0.0},
    "erfcx": {math.inf: 0.0, -math.inf: math.inf, 0.0: 1.0}, "cyl_bessel_i0": {0.0: 1.0, math.inf: math.inf},
    "cyl_bessel_i1": {0.0: 0.0, -math.inf: -math.inf}, "rsqrt": {0.0: math.inf, math.inf: 0.0}, "cospi": {0.5: 0.0, 1.0: -1.0},
    "sinpi": {1.0: 0.0, 0.5: 1.0, 1e30: 0.0}, "exp": {-math.inf: 0.0, math.inf: math.inf}, "cos": {3e38: math.nan},
}


@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
def test_special_values(name, dtype, tmp_path):
    points = {k: v for k, v in SPECIAL[name].items() if k != 3e38} | {math.nan: math.nan}
    x = torch.tensor(list(points) + [0.25] * (N - len(points)), dtype=torch.float64).to(dtype)
    got = call(f"__nv_{name}" + ("f" if dtype == torch.float32 else ""), [x], dtype, tmp_path)[:len(points)]
    torch.testing.assert_close(got.double(), torch.tensor(list(points.values()), dtype=torch.float64), rtol=0, atol=0,
                               equal_nan=True)


#: functions f(-x) = -f(x), by C's names
ODD = "sin tan asin atan sinh tanh asinh atanh cbrt erf erfinv expm1 log1p sqrt sinpi floor ceil trunc round rint nearbyint cyl_bessel_i1 j1".split()


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
def test_zeros_keep_their_sign(name, dtype, tmp_path):
    x = torch.tensor([-0.0, 0.0] * (N // 2), dtype=dtype)
    got = call(f"__nv_{name}" + ("f" if dtype == torch.float32 else ""), [x], dtype, tmp_path)
    assert not got.any() and torch.equal(torch.signbit(got), torch.signbit(x)), f"{name}(-0.0) = {got[0].item()}"


BINARY = {
    "atan2": (M.atan2, (-5, 5), 1), "pow": (lambda x, y: x**y, (0.1, 9), 2), "hypot": (M.hypot, (-9, 9), 1),
    "fmod": (lambda x, y: x - y * M.sign(x) * M.sign(y) * M.floor(abs(x) / abs(y)), (-9, 9), 0),
    "fdim": (lambda x, y: max(x - y, M.mpf(0)), (-9, 9), 0.5), "copysign": (lambda x, y: abs(x) * M.sign(y), (-9, 9), 0),
    "remainder": (lambda x, y: x - y * M.nint(x / y), (-9, 9), 0),
    "rhypot": (lambda x, y: 1 / M.hypot(x, y), (0.1, 9), 2),
}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
def test_functions_of_two_numbers(name, dtype, tmp_path, seed):
    exact, (low, high), bound = BINARY[name]
    rng = np.random.default_rng(seed)
    x, y = (torch.from_numpy(rng.uniform(low, high, N)).to(dtype) for _ in "xy")
    got = call(f"__nv_{name}" + ("f" if dtype == torch.float32 else ""), [x, y], dtype, tmp_path)
    with M.workprec(400):
        errors = [ulps(g, exact(M.mpf(u), M.mpf(v)), dtype) for g, u, v in zip(got.tolist(), x.tolist(), y.tolist())]
    assert max(errors) <= bound, f"{name}: {max(errors):.2f} ulp"


def test_norms_and_whole_powers(tmp_path, seed):
    rng = np.random.default_rng(seed)
    for dtype, suffix in ((torch.float32, "f"), (torch.float64, "")):
        v = [torch.from_numpy(rng.uniform(-9, 9, N)).to(dtype) for _ in range(4)]
        for count in (3, 4):
            want = [M.sqrt(sum(M.mpf(c)**2 for c in row)) for row in zip(*[u.tolist() for u in v[:count]])]
            got = call(f"__nv_norm{count}d{suffix}", v[:count], dtype, tmp_path)
            assert max(ulps(g, w, dtype) for g, w in zip(got.tolist(), want)) <= 3
            got = call(f"__nv_rnorm{count}d{suffix}", v[:count], dtype, tmp_path)
            assert max(ulps(g, 1 / w, dtype) for g, w in zip(got.tolist(), want)) <= 4
        n = torch.from_numpy(rng.integers(-5, 6, N).astype(np.int32))
        got = call(f"__nv_powi{suffix}", [v[0], n], dtype, tmp_path)
        assert max(ulps(g, M.mpf(x)**int(k), dtype) for g, x, k in zip(got.tolist(), v[0].tolist(), n.tolist())) <= 2
        got = call(f"__nv_ldexp{suffix}", [v[0], n], dtype, tmp_path)
        assert got.tolist() == [math.ldexp(x, k) for x, k in zip(v[0].tolist(), n.tolist())]


def rounded(exact: Fraction, dtype, mode: str) -> float:
    """`exact` in a float type, rounded in a direction, by rational arithmetic."""
    np_type = np.float32 if dtype == torch.float32 else np.float64
    near = np_type(float(exact))  # within an ulp; the loop below puts it right
    for _ in range(4):
        if not np.isfinite(near):
            break
        down, up = np.nextafter(near, np_type(-np.inf)), np.nextafter(near, np_type(np.inf))
        value = Fraction(float(near))
        if value <= exact and np.isfinite(up) and Fraction(float(up)) <= exact:
            near = up
        elif value > exact:
            near = down
        else:
            break
    low = near  # the largest number not above
    if Fraction(float(low)) == exact:
        return float(low)
    high = np.nextafter(low, np_type(np.inf))
    if mode == "rd" or (mode == "rz" and exact > 0):
        return float(low)
    if mode == "ru" or mode == "rz":
        return float(high)
    below, above = exact - Fraction(float(low)), Fraction(float(high)) - exact
    even = int(np.array(low).view(np.int32 if np_type is np.float32 else np.int64)) % 2 == 0
    return float(low if below < above or (below == above and even) else high)


@pytest.mark.parametrize("mode", ["rn", "rd", "ru", "rz"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
def test_directed_rounding(mode, dtype, tmp_path, seed):
    rng = np.random.default_rng(seed)
    x, y, z = (torch.from_numpy(rng.standard_normal(N) * 10.0**rng.integers(-8, 8, N)).to(dtype) for _ in "xyz")
    p = "f" if dtype == torch.float32 else "d"
    u, v, w = ([Fraction(k) for k in t.tolist()] for t in (x, y, z))
    cases = {f"__nv_{p}add_{mode}": ([x, y], [a + b for a, b in zip(u, v)]),
             f"__nv_{p}sub_{mode}": ([x, y], [a - b for a, b in zip(u, v)]),
             f"__nv_{p}mul_{mode}": ([x, y], [a * b for a, b in zip(u, v)]),
             f"__nv_{p}div_{mode}": ([x, y], [a / b for a, b in zip(u, v)]),
             f"__nv_{p}rcp_{mode}": ([x], [1 / a for a in u]),
             f"__nv_fma{'f' if p == 'f' else ''}_{mode}": ([x, y, z], [a * b + c for a, b, c in zip(u, v, w)])}
    for symbol, (args, exact) in cases.items():
        got = call(symbol, args, dtype, tmp_path)
        want = [rounded(e, dtype, mode) for e in exact]
        assert got.tolist() == want, symbol
    got = call(f"__nv_{p}sqrt_{mode}", [x.abs()], dtype, tmp_path)
    for g, a in zip(got.tolist(), u):
        a, f = abs(a), Fraction(g)
        step = Fraction(float(np.spacing(np.float32(g) if p == "f" else np.float64(g))))
        assert {"rd": f * f <= a < (f + step)**2, "rz": f * f <= a < (f + step)**2, "ru": (f - step)**2 < a <= f * f,
                "rn": (f - step / 2)**2 <= a <= (f + step / 2)**2}[mode]


@pytest.mark.parametrize("mode", ["rn", "rd", "ru", "rz"])
def test_directed_conversions(mode, tmp_path, seed):
    rng = np.random.default_rng(seed)
    d = torch.from_numpy(rng.standard_normal(N) * 10.0**rng.integers(-8, 8, N))
    got = call(f"__nv_double2float_{mode}", [d], torch.float32, tmp_path)
    assert got.tolist() == [rounded(Fraction(v), torch.float32, mode) for v in d.tolist()]
    for source, bits, signed in (("int", 32, True), ("uint", 32, False), ("ll", 64, True), ("ull", 64, False)):
        dtype = torch.int32 if bits == 32 else torch.int64
        x = torch.from_numpy(rng.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1, N, dtype=np.int64)).to(dtype)
        x[:4] = torch.tensor([0, 1, -1, (1 << (bits - 1)) - 1])
        exact = [Fraction(v if signed else v % (1 << bits)) for v in x.tolist()]
        for to, out in (("float", torch.float32), ("double", torch.float64)):
            symbol = f"__nv_{source}2{to}_{mode}"
            if symbol not in triton_symbols():
                continue
            assert call(symbol, [x], out, tmp_path).tolist() == [rounded(e, out, mode) for e in exact], symbol
    step = {"rn": round, "rd": math.floor, "ru": math.ceil, "rz": math.trunc}[mode]
    for source, dtype in (("float", torch.float32), ("double", torch.float64)):
        x = torch.from_numpy(rng.uniform(-1e6, 1e6, N)).to(dtype)
        x[:4] = torch.tensor([0.5, 1.5, -2.5, 3e30])
        for to, out, low, high in (("int", torch.int32, -2**31, 2**31 - 1), ("ll", torch.int64, -2**63, 2**63 - 1),
                                   ("uint", torch.int32, 0, 2**32 - 1), ("ull", torch.int64, 0, 2**64 - 1)):
            got = call(f"__nv_{source}2{to}_{mode}", [x], out, tmp_path).tolist()
            want = [min(max(step(v), low), high) for v in x.tolist()]
            bits = 32 if out == torch.int32 else 64
            assert [g % (1 << bits) for g in got] == [w % (1 << bits) for w in want], (source, to)


def signed(v, bits):
    v &= (1 << bits) - 1
    return v - (1 << bits) if v >> (bits - 1) else v


def test_integers(tmp_path, seed):
    rng = np.random.default_rng(seed)
    i32 = lambda: torch.from_numpy(rng.integers(-2**31, 2**31, N).astype(np.int32))  # noqa: E731
    i64 = lambda: torch.from_numpy(rng.integers(-2**63, 2**63 - 1, N))  # noqa: E731
    a, b, c, p, q = i32(), i32(), i32(), i64(), i64()
    a[0] = p[0] = 0
    u = lambda v, bits=32: v % (1 << bits)  # noqa: E731
    low24 = lambda v: signed(v, 24)  # noqa: E731
    table = {
        "__nv_abs": ([a], abs, 32), "__nv_llabs": ([p], abs, 64),
        "__nv_brev": ([a], lambda x: int(f"{u(x):032b}"[::-1], 2), 32),
        "__nv_brevll": ([p], lambda x: int(f"{u(x, 64):064b}"[::-1], 2), 64),
        "__nv_clz": ([a], lambda x: 32 - u(x).bit_length(), 32), "__nv_clzll": ([p], lambda x: 64 - u(x, 64).bit_length(), 32),
        "__nv_popc": ([a], lambda x: bin(u(x)).count("1"), 32), "__nv_popcll": ([p], lambda x: bin(u(x, 64)).count("1"), 32),
        "__nv_ffs": ([a], lambda x: (x & -x).bit_length(), 32), "__nv_ffsll": ([p], lambda x: (x & -x).bit_length(), 32),
        "__nv_mulhi": ([a, b], lambda x, y: (x * y) >> 32, 32), "__nv_umulhi": ([a, b], lambda x, y: (u(x) * u(y)) >> 32, 32),
        "__nv_mul64hi": ([p, q], lambda x, y: (x * y) >> 64, 64),
        "__nv_umul64hi": ([p, q], lambda x, y: (u(x, 64) * u(y, 64)) >> 64, 64),
        "__nv_mul24": ([a, b], lambda x, y: low24(x) * low24(y), 32),
        "__nv_umul24": ([a, b], lambda x, y: (x & 0xFFFFFF) * (y & 0xFFFFFF), 32),
        "__nv_hadd": ([a, b], lambda x, y: (x + y) >> 1, 32), "__nv_rhadd": ([a, b], lambda x, y: (x + y + 1) >> 1, 32),
        "__nv_uhadd": ([a, b], lambda x, y: (u(x) + u(y)) >> 1, 32),
        "__nv_urhadd": ([a, b], lambda x, y: (u(x) + u(y) + 1) >> 1, 32),
        "__nv_sad": ([a, b, c], lambda x, y, z: abs(x - y) + z, 32),
        "__nv_usad": ([a, b, c], lambda x, y, z: abs(u(x) - u(y)) + z, 32),
        "__nv_byte_perm": ([a, b, c], lambda x, y, s: sum(
            ((u(y) << 32 | u(x)) >> (8 * ((s >> (4 * k)) & 7)) & 255) << (8 * k) for k in range(4)), 32),
    }
    for symbol, (args, fn, bits) in table.items():
        got = call(symbol, args, torch.int32 if bits == 32 else torch.int64, tmp_path).tolist()
        want = [signed(fn(*row), bits) for row in zip(*[t.tolist() for t in args])]
        assert got == want, symbol


def test_bits_and_classes(tmp_path):
    values = [0.0, -0.0, 1.5, -2.0, math.inf, -math.inf, math.nan, 1e-310]
    for dtype, suffix, isnan in ((torch.float32, "f", "__nv_isnanf"), (torch.float64, "d", "__nv_isnand")):
        x = torch.tensor(values * (N // 8), dtype=dtype)
        assert call(isnan, [x], torch.int32, tmp_path)[:8].tolist() == [0, 0, 0, 0, 0, 0, 1, 0]
        assert call(f"__nv_isinf{suffix}", [x], torch.int32, tmp_path)[:8].tolist() == [0, 0, 0, 0, 1, 1, 0, 0]
        assert call(f"__nv_signbit{suffix}", [x], torch.int32, tmp_path)[:6].bool().tolist() == [
            False, True, False, True, False, True]
        name = "__nv_finitef" if suffix == "f" else "__nv_isfinited"
        assert call(name, [x], torch.int32, tmp_path)[:8].tolist() == [1, 1, 1, 1, 0, 0, 0, 1]
    x = torch.randn(N)
    assert torch.equal(call("__nv_float_as_int", [x], torch.int32, tmp_path), x.view(torch.int32))
    assert call("__nv_saturatef", [torch.tensor(values * (N // 8))], torch.float32, tmp_path)[:7].tolist() == [0, 0, 1, 0, 1, 0, 0]
    d = torch.randn(N, dtype=torch.float64)
    hi, lo = (call(f"__nv_double2{h}int", [d], torch.int32, tmp_path) for h in ("hi", "lo"))
    assert torch.equal(call("__nv_hiloint2double", [hi, lo], torch.float64, tmp_path), d)
    got = call("__nv_nextafterf", [x, torch.full((N,), math.inf)], torch.float32, tmp_path)
    assert torch.equal(got, torch.nextafter(x, torch.tensor(math.inf)))
    assert call("__nv_llrintf", [x * 9], torch.int64, tmp_path).tolist() == [round(v) for v in (x * 9).tolist()]
    assert call("__nv_ilogbf", [x.abs() + 0.01], torch.int32, tmp_path).tolist() == [
        math.frexp(v)[1] - 1 for v in (x.abs() + 0.01).tolist()]


def test_edges_that_c_libraries_and_doubling_get_wrong(tmp_path):
    """ilogb of what has no exponent, sines of numbers whose double is none, an infinity beside NaN."""
    for suffix, dtype, huge in (("f", torch.float32, 3.0e38), ("", torch.float64, 1.5e308)):
        x = torch.tensor([0.0, -0.0, math.nan, math.inf] * (N // 4), dtype=dtype)
        assert call(f"__nv_ilogb{suffix}", [x], torch.int32, tmp_path)[:4].tolist() == [-(1 << 31)] * 3 + [(1 << 31) - 1]
        x = torch.tensor([huge, -huge, math.inf, 2.0**23 + 1] * (N // 4), dtype=dtype)
        sine, cosine = (call(f"__nv_{name}pi{suffix}", [x], dtype, tmp_path)[:4].tolist() for name in ("sin", "cos"))
        assert sine[:2] == [0.0, 0.0] and math.copysign(1, sine[1]) == -1 and math.isnan(sine[2]) and sine[3] == 0
        assert cosine[:2] == [1.0, 1.0] and math.isnan(cosine[2]) and cosine[3] == -1
        x, y = torch.tensor([math.inf, math.nan, -math.inf, 3.0] * (N // 4), dtype=dtype), torch.tensor([math.nan, math.inf, 1.0, 4.0] * (N // 4), dtype=dtype)
        assert call(f"__nv_hypot{suffix}", [x, y], dtype, tmp_path)[:4].tolist() == [math.inf, math.inf, math.inf, 5.0]
        assert call(f"__nv_rhypot{suffix}", [x, y], dtype, tmp_path)[:3].tolist() == [0.0, 0.0, 0.0]


def test_an_unknown_function_is_named(tmp_path):
    with pytest.raises(CompileError, match="'__nv_frobnicate' is not known"):
        call("__nv_frobnicate", [torch.zeros(N)], torch.float32, tmp_path)
