"""Operators and casts over every pair of element types, against Python's integers and float64."""

import dataclasses
import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triport.backends.cpu.llvm import targets
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from values import FLOATS, FP8, INTS, SIGNED, random, rounded, tl_type, torch_type, wide, wrapped

N = 64


def promoted(a: str, b: str, division: bool = False) -> str:
    """The type that Triton computes `a op b` in (its documentation, Type Promotion)."""
    for name in ("float64", "float32"):
        if name in (a, b):
            return name
    if "float16" in (a, b):
        return "float32" if division else "float16"
    if "bfloat16" in (a, b):
        return "bfloat16" if a == b and not division else "float32"
    wa, wb = int(a.strip("uint")), int(b.strip("uint"))
    if (a[0] == "u") == (b[0] == "u"):
        return a if wa >= wb else b
    unsigned, signed, wu, ws = (a, b, wa, wb) if a[0] == "u" else (b, a, wb, wa)
    return unsigned if wu >= ws else signed


@triton.jit
def add_sub_mul(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(x_ptr + i), tl.load(y_ptr + i)
    tl.store(out_ptr + i, x + y)
    tl.store(out_ptr + N + i, x - y)
    tl.store(out_ptr + 2 * N + i, x * y)
    tl.store(out_ptr + 3 * N + i, tl.minimum(x, y))
    tl.store(out_ptr + 4 * N + i, tl.maximum(x, y))
    tl.store(out_ptr + 5 * N + i, tl.where(x > y, x, y))


@triton.jit
def compare(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(x_ptr + i), tl.load(y_ptr + i)
    tl.store(out_ptr + i, x == y)
    tl.store(out_ptr + N + i, x != y)
    tl.store(out_ptr + 2 * N + i, x < y)
    tl.store(out_ptr + 3 * N + i, x <= y)
    tl.store(out_ptr + 4 * N + i, x > y)
    tl.store(out_ptr + 5 * N + i, x >= y)


@triton.jit
def bitwise(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(x_ptr + i), tl.load(y_ptr + i)
    tl.store(out_ptr + i, x & y)
    tl.store(out_ptr + N + i, x | y)
    tl.store(out_ptr + 2 * N + i, x ^ y)


@triton.jit
def divide(x_ptr, y_ptr, q_ptr, out_ptr, INTEGERS: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(x_ptr + i), tl.load(y_ptr + i)
    tl.store(q_ptr + i, x / y)
    tl.store(out_ptr + i, x % y)
    if INTEGERS:
        tl.store(out_ptr + N + i, x // y)


@triton.jit
def shift(x_ptr, s_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x, s = tl.load(x_ptr + i), tl.load(s_ptr + i)
    tl.store(out_ptr + i, x << s)
    tl.store(out_ptr + N + i, x >> s)
    tl.store(out_ptr + 2 * N + i, -x)
    tl.store(out_ptr + 3 * N + i, ~x)
    tl.store(out_ptr + 4 * N + i, tl.abs(x))


def as_type(t: torch.Tensor, name: str):
    """Values of `t` in the type `name`, as exact numbers: what an implicit cast makes of them."""
    if name in FLOATS:
        return t.to(torch.float64).to(torch_type(name)).to(torch.float64).numpy() if t.dtype.is_floating_point else np.array(
            [float(torch.tensor(int(v), dtype=torch.float64).to(torch_type(name))) for v in t.tolist()])
    return np.array(wrapped(wide(t), name).tolist(), dtype=object)


def check(got, want, name, what, ulps=0):
    """`got` is a tensor of type `name`; `want` exact numbers."""
    if name in FLOATS:
        w = torch.from_numpy(np.asarray(want, dtype=np.float64)).to(torch_type(name))
        if ulps == 0:
            torch.testing.assert_close(got, w, rtol=0, atol=0, equal_nan=True, msg=lambda m: f"{what}: {m}")
        else:
            eps = torch.finfo(w.dtype).eps * ulps
            torch.testing.assert_close(got, w, rtol=eps, atol=torch.finfo(w.dtype).tiny, equal_nan=True,
                                       msg=lambda m: f"{what}: {m}")
    else:
        assert got.tolist() == wrapped(want, name).tolist(), what


PAIRS = [(a, b) for k, a in enumerate(INTS + FLOATS) for b in (INTS + FLOATS)[k:]]


@pytest.mark.parametrize("a,b", PAIRS, ids=lambda v: v)
def test_arithmetic(a, b, seed):
    x, y = random(a, N, seed), random(b, N, seed + 1)
    y[20:30] = x[20:30].to(y.dtype)
    t = promoted(a, b)
    out = torch.zeros(6, N, dtype=torch_type(t))
    add_sub_mul[(1,)](x, y, out, N)
    p, q = as_type(x, t), as_type(y, t)
    with np.errstate(all="ignore"):
        for row, (name, fn) in enumerate([("+", lambda u, v: u + v), ("-", lambda u, v: u - v), ("*", lambda u, v: u * v)]):
            check(out[row], fn(p, q), t, f"{a} {name} {b}")
        if t in FLOATS:
            check(out[3], np.fmin(p, q), t, f"min({a}, {b})")
            check(out[4], np.fmax(p, q), t, f"max({a}, {b})")
        else:
            check(out[3], np.minimum(p, q), t, f"min({a}, {b})")
            check(out[4], np.maximum(p, q), t, f"max({a}, {b})")
        check(out[5], np.where(p > q, p, q), t, f"where({a}, {b})")
    truth = torch.zeros(6, N, dtype=torch.bool)
    compare[(1,)](x, y, truth, N)
    for row, fn in enumerate((np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)):
        assert truth[row].tolist() == [bool(v) for v in fn(p, q)], f"{fn.__name__}({a}, {b})"
    if t not in FLOATS:
        out = torch.zeros(3, N, dtype=torch_type(t))
        bitwise[(1,)](x, y, out, N)
        for row, fn in enumerate((lambda u, v: u & v, lambda u, v: u | v, lambda u, v: u ^ v)):
            check(out[row], [fn(int(u), int(v)) for u, v in zip(p, q)], t, f"bits {row} of {a}, {b}")


@pytest.mark.parametrize("a,b", PAIRS, ids=lambda v: v)
def test_division(a, b, seed):
    """/ to 2 ulp, // and % of integers as C's, % of floats as fmod."""
    integers = a in INTS and b in INTS
    if integers and (a in SIGNED) != (b in SIGNED):
        pytest.skip("Triton refuses // and % of integers of different signedness")
    x, y = random(a, N, seed, small=True), random(b, N, seed + 1, small=True)
    y = torch.from_numpy(np.where(y.numpy() == 0, 3, y.numpy()).astype(b)) if b in INTS else torch.where(y == 0, 3.0, y)
    t = promoted(a, b, division=True)
    result = "float32" if integers else t
    quotient = torch.zeros(N, dtype=torch_type(result))
    out = torch.zeros(2, N, dtype=torch_type(t))
    divide[(1,)](x, y, quotient, out, integers, N)
    p, q = as_type(x, t), as_type(y, t)
    check(quotient, as_type(x, result) / as_type(y, result), result, f"{a} / {b}", ulps=2)
    if integers:
        trunc = [abs(int(u)) // abs(int(v)) * (1 if (u < 0) == (v < 0) else -1) for u, v in zip(p, q)]
        check(out[0], [int(u) - int(v) * w for u, v, w in zip(p, q, trunc)], t, f"{a} % {b}")
        check(out[1], trunc, t, f"{a} // {b}")
    else:
        check(out[0], np.array([math.fmod(u, v) for u, v in zip(p, q)]), t, f"{a} % {b}")


@pytest.mark.parametrize("a", INTS)
def test_shifts_and_unary(a, seed):
    """Shifts by 0 to width - 1; arithmetic to the right for signed types."""
    bits = int(a.strip("uint"))
    x = random(a, N, seed)
    s = torch.from_numpy(np.random.default_rng(seed).integers(0, bits, N).astype(a))
    out = torch.zeros(5, N, dtype=torch_type(a))
    shift[(1,)](x, s, out, N)
    p, q = wide(x), wide(s)
    for row, fn in enumerate((lambda u, v: u << v, lambda u, v: u >> v, lambda u, v: -u, lambda u, v: ~u,
                              lambda u, v: abs(u))):
        check(out[row], [fn(int(u), int(v)) for u, v in zip(p, q)], a, f"{a}: row {row}")


def test_shift_beyond_the_width():
    """As on a GPU: zero, or the sign."""
    x = torch.tensor([-5, 7, 1 << 30, -1], dtype=torch.int32)
    s = torch.tensor([32, 33, 100, 2**31 - 1], dtype=torch.int32)
    out = torch.zeros(5, 4, dtype=torch.int32)
    shift[(1,)](x, s, out, 4)
    assert out[0].tolist() == [0] * 4 and out[1].tolist() == [-1, 0, 0, -1]


def test_integer_division_by_zero_and_overflow_do_not_trap():
    x = torch.tensor([5, -(2**31), 7, 0], dtype=torch.int32)
    y = torch.tensor([0, -1, 2, 0], dtype=torch.int32)
    quotient, out = torch.zeros(4), torch.zeros(2, 4, dtype=torch.int32)
    divide[(1,)](x, y, quotient, out, True, 4)
    assert out[1, 1] == -(2**31) and out[1, 2] == 3 and out[0, 2] == 1


@triton.jit
def nan_kernel(x_ptr, low_ptr, high_ptr, out_ptr, N: tl.constexpr, PROPAGATE: tl.constexpr):
    i = tl.arange(0, N)
    x, low, high = tl.load(x_ptr + i), tl.load(low_ptr + i), tl.load(high_ptr + i)
    tl.store(out_ptr + i, tl.clamp(x, low, high, propagate_nan=PROPAGATE))
    tl.store(out_ptr + N + i, tl.minimum(x, low, propagate_nan=PROPAGATE))
    tl.store(out_ptr + 2 * N + i, tl.maximum(x, low, propagate_nan=PROPAGATE))


@pytest.mark.parametrize("name", ["float16", "float32", "bfloat16"])
def test_nan_in_minimum_maximum_and_clamp(name, seed):
    """PropagateNan.NONE takes the other operand, ALL the NaN."""
    x, low = random(name, N, seed, small=True), random(name, N, seed + 1, small=True)
    high = low + 1
    x[3] = low[5] = float("nan")
    out = torch.empty(3, N, dtype=x.dtype)
    nan_kernel[(1,)](x, low, high, out, N, tl.PropagateNan.ALL)
    assert out[0, 3].isnan() and out[1, 3].isnan() and out[1, 5].isnan() and out[2, 5].isnan()
    nan_kernel[(1,)](x, low, high, out, N, tl.PropagateNan.NONE)
    assert out[1, 3] == low[3] and out[2, 3] == low[3] and out[1, 5] == x[5] and not out[0, 3].isnan()
    clean = ~(x.isnan() | low.isnan())
    assert torch.equal(out[0, clean], torch.minimum(torch.maximum(x, low), high)[clean])


# --- casts -----------------------------------------------------------------------------------------------------------


@triton.jit
def cast(x_ptr, out_ptr, TYPE: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i).to(TYPE))


TYPES = ("bool",) + INTS + FLOATS


@pytest.mark.parametrize("a", TYPES)
@pytest.mark.parametrize("b", TYPES)
def test_cast(a, b, seed):
    x = random(a, N, seed, small=a in FLOATS and b in INTS)
    if b[:4] == "uint" and a in FLOATS:
        x = x.abs()
    out = torch.zeros(N, dtype=torch_type(b))
    cast[(1,)](x, out, tl.int1 if b == "bool" else tl_type(b), N)
    if b == "bool":
        want = [bool(v) for v in wide(x)]
    elif b in INTS:
        want = wrapped([int(v) for v in wide(x)], b).tolist()
    else:
        v = np.array([float(u) for u in wide(x)])
        torch.testing.assert_close(out, rounded(v, torch_type(b)), rtol=0, atol=0, equal_nan=True)
        return
    assert out.tolist() == want


@pytest.mark.parametrize("a", FLOATS)
@pytest.mark.parametrize("b", ("int8", "uint8", "int32", "int64", "uint32"))
def test_float_to_int_saturates(a, b):
    info = np.iinfo(b)
    values = [float("inf"), float("-inf"), float("nan"), 3e4 if a == "float16" else 3e38, -3e4 if a == "float16" else -3e38]
    x = torch.tensor(values, dtype=torch.float64).to(torch_type(a)).repeat(4)[:16].contiguous()
    out = torch.zeros(16, dtype=torch_type(b))
    cast[(1,)](x, out, tl_type(b), 16)
    assert out[:5].tolist() == [nearest(v, info) for v in x[:5].double().tolist()]


def nearest(v, info) -> int:
    """The nearest integer towards 0 that there is; of 8 bits what is left of the nearest of 32."""
    if v != v:
        return 0
    ends = np.iinfo("int32") if info.bits == 8 else info
    found = ends.max if v >= ends.max else ends.min if v <= ends.min else int(v)
    return (found - info.min) % 256 + info.min if info.bits == 8 else found


@pytest.mark.parametrize("b", ["int8", "uint8"])
def test_what_is_left_of_floats_in_8_bits(b):
    """As torch has it."""
    x = torch.tensor([-2.0, -1.5, -127.0, -128.0, -129.0, -300.0, 127.0, 128.0, 255.9, 256.0, 300.0, 65535.0, -65537.0, 1e6, -1e6, 0.5])
    out = torch.zeros(16, dtype=torch_type(b))
    cast[(1,)](x, out, tl_type(b), 16)
    assert torch.equal(out, x.to(torch.int32).to(torch_type(b)))


#: x86's vectors, each row's among the next one's
ISA = ["SSE4.2", "AVX2", "AVX-512"]


@pytest.mark.parametrize("row", ["native", "x86-64-v2", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("a", FLOATS)
@pytest.mark.parametrize("b", INTS)
def test_float_to_int_in_vectors(a, b, row, monkeypatch, seed):
    """Round each end of each type, fractions, what is far away and no number: the nearest integer that there is."""
    if row != "native":
        made = dataclasses.replace(targets.get(row), name="native")
        if targets.native().isa not in ISA[ISA.index(made.isa):]:
            pytest.skip(f"this is no x86 CPU with {made.isa}")
        monkeypatch.setattr(targets, "native", lambda: made)
    ends = [sign * (2.0**bits + d) for bits in (7, 8, 15, 16, 31, 32, 63, 64) for d in (-256, -1, -0.5, 0, 0.5, 1, 256, 2048) for sign in (1, -1)]
    g = np.random.default_rng(seed)
    values = [*ends, 0.0, -0.0, 0.9, -0.9, math.inf, -math.inf, math.nan, *(g.standard_normal(512) * 10.0**g.integers(-3, 22, 512))][:512]
    x = torch.tensor(values, dtype=torch.float64).to(torch_type(a))
    out, info = torch.zeros(len(values), dtype=torch_type(b)), np.iinfo(b)
    triton.JITFunction(cast.fn)[(1,)](x, out, tl_type(b), 512)
    assert out.tolist() == [nearest(v, info) for v in x.double().tolist()]


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_floats_become_integers_by_vectors(target):
    """No conversion, and no comparison, of a single lane."""
    source = ASTSource(cast, {"x_ptr": "*fp32", "out_ptr": "*i32", "TYPE": "constexpr", "N": "constexpr"}, {"TYPE": tl.int32, "N": 256})
    asm = triton.compile(source, target=GPUTarget("cpu", target, 0)).asm["asm"]
    assert "vcvttps2dq" in asm and "vcvttss2si" not in asm and "vucomiss" not in asm


@triton.jit
def to_fp8(x_ptr, bits_ptr, back_ptr, TYPE: tl.constexpr, ROUNDING: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    y = tl.load(x_ptr + i).to(TYPE, fp_downcast_rounding=ROUNDING)
    tl.store(bits_ptr + i, y.to(tl.uint8, bitcast=True))
    tl.store(back_ptr + i, y.to(tl.float32))


@triton.jit
def from_fp8(bits_ptr, out_ptr, TYPE: tl.constexpr, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(bits_ptr + i).to(TYPE, bitcast=True))


def fp8_value(code: int, name: str) -> float:
    """What a byte stands for: the formats' definitions, written out once more."""
    mantissa = 2 if "e5" in name else 3
    bias = {"float8e5": 15, "float8e4nv": 7, "float8e4b8": 8, "float8e5b16": 16, "float8e4b15": 15}[name]
    sign, e, m = -1.0 if code & 0x80 else 1.0, (code & 0x7F) >> mantissa, code & ((1 << mantissa) - 1)
    if name == "float8e5" and e == 31:
        return sign * math.inf if m == 0 else math.nan
    if (name == "float8e4nv" and code & 0x7F == 0x7F) or (name in ("float8e4b8", "float8e5b16") and code == 0x80):
        return math.nan
    fraction = m / (1 << mantissa)
    return sign * (2.0**(e - bias) * (1 + fraction) if e else 2.0**(1 - bias) * fraction)


@pytest.mark.parametrize("name", FP8)
@pytest.mark.parametrize("to", FLOATS)
def test_every_fp8_number(name, to):
    bits = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    out = torch.zeros(256, dtype=torch_type(to))
    from_fp8[(2,)](bits, out, tl_type(name), 128)
    want = torch.tensor([fp8_value(k, name) for k in range(256)], dtype=torch.float64).to(torch_type(to))
    torch.testing.assert_close(out, want, rtol=0, atol=0, equal_nan=True)


@triton.jit
def fp4_products(a_ptr, b_ptr, scale_ptr, out_ptr):
    row, half = tl.arange(0, 16)[:, None], tl.arange(0, 16)[None, :]
    scale = tl.load(scale_ptr + row)
    a, b = tl.load(a_ptr + row * 16 + half), tl.load(b_ptr + row * 16 + half)
    tl.store(out_ptr + row * 16 + half, tl.dot_scaled(a, scale, "e2m1", b, scale, "e2m1"))


def test_numbers_of_few_bits_where_subnormals_are_flushed():
    """No number of fp8 or fp4 is a subnormal one of f32, nor becomes one on the way."""
    bits, outs = torch.arange(256, dtype=torch.int32).to(torch.uint8), {name: torch.zeros(256) for name in FP8}
    halves, scale, products = torch.full((16, 16), 0x11, dtype=torch.uint8), torch.full((16, 1), 127, dtype=torch.uint8), torch.zeros(16, 16)
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU does not flush subnormals")
    try:
        for name, out in outs.items():
            from_fp8[(1,)](bits, out, tl_type(name), 256)
        fp4_products[(1,)](halves, halves, scale, products)
    finally:
        torch.set_flush_denormal(False)
    for name, out in outs.items():
        torch.testing.assert_close(out, torch.tensor([fp8_value(k, name) for k in range(256)]), rtol=0, atol=0, equal_nan=True)
    assert products.eq(8).all(), "32 times a half of a half"


@triton.jit
def whole_to_bf16(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i).to(tl.bfloat16))


@pytest.mark.parametrize("name", ["int64", "uint64"])
def test_whole_numbers_of_64_bits_are_rounded_to_bf16_once(name, seed):
    """To the nearest, the even one of two, from one bit beside a tie as well."""
    rng, top = np.random.default_rng(seed), 63 if name == "int64" else 64
    numbers = [0, 1, 5, 4095, 4097, (1 << 52) + 1, (1 << 53) - 1, (1 << 62) + (1 << 54) + 1, (1 << top) - 1]
    while len(numbers) < 512:
        shift = int(rng.integers(0, top - 8))
        numbers.append((int(rng.integers(128, 256)) << shift) + ((1 << shift) >> 1) + int(rng.integers(-2, 3)))
    numbers = [max(0, min(n, (1 << top) - 1)) for n in numbers]
    if name == "int64":
        numbers = [n * int(rng.choice((-1, 1))) for n in numbers]
    x, out = torch.from_numpy(np.array(numbers, dtype=name)), torch.zeros(512, dtype=torch.bfloat16)
    whole_to_bf16[(1,)](x, out, 512)
    for n, got in zip(numbers, out.tolist()):
        size = abs(n)
        drop = max(size.bit_length() - 8, 0)
        kept, rest = size >> drop, size & ((1 << drop) - 1)
        kept += rest > (1 << drop) >> 1 or drop > 0 and rest == (1 << drop) >> 1 and kept & 1
        assert int(got) == (kept << drop) * (-1 if n < 0 else 1), n


@triton.jit
def fp8_abs(bits_ptr, out_ptr, TYPE: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.abs(tl.load(bits_ptr + i).to(TYPE, bitcast=True)).to(tl.uint8, bitcast=True))


@pytest.mark.parametrize("name", FP8)
def test_fp8_absolute_values(name):
    """Bit for bit, infinities too; the FNUZ types' only NaN has the sign bit."""
    bits, out = torch.arange(256, dtype=torch.int32).to(torch.uint8), torch.zeros(256, dtype=torch.uint8)
    fp8_abs[(1,)](bits, out, tl_type(name), 256)
    want = [k if k == 0x80 and name in ("float8e4b8", "float8e5b16") else k & 0x7F for k in range(256)]
    assert out.tolist() == want


@pytest.mark.parametrize("name", FP8)
@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("rounding", ["rtne", "rtz"])
def test_rounding_to_fp8(name, source, rounding, seed):
    """The nearest number of the type (ties to even codes), or the nearest towards zero; beyond the largest, the largest."""
    x = random(source, 512, seed)
    table = sorted((fp8_value(k, name), k) for k in range(128) if math.isfinite(fp8_value(k, name)))
    values = np.array([v for v, _ in table])
    middle = torch.from_numpy((values[1:] + values[:-1]) / 2)[:100]  # ties
    x[100:100 + len(middle)] = middle.to(x.dtype)
    x[300:300 + 100] = torch.from_numpy(values[:100]).to(x.dtype) * 1.001
    bits, back = torch.zeros(512, dtype=torch.uint8), torch.zeros(512)
    to_fp8[(1,)](x, bits, back, tl_type(name), rounding, 512)
    for v, code, again in zip(x.double().tolist(), bits.tolist(), back.tolist()):
        if v != v:
            assert name == "float8e4b15" or again != again
            continue
        size = min(abs(v), values[-1])
        at = int(np.searchsorted(values, size, side="right")) - 1
        if rounding == "rtne" and at + 1 < len(values):
            low, high = values[at], values[at + 1]
            if size - low > high - size or (size - low == high - size and at % 2):
                at += 1
        want = math.copysign(values[at], v)
        assert again == want and (want or name in ("float8e4b8", "float8e5b16") or (code >> 7) == (math.copysign(1, v) < 0)), (
            v, hex(code), again, want)


@triton.jit
def downcast(x_ptr, out_ptr, TYPE: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i).to(TYPE, fp_downcast_rounding="rtz"))


@pytest.mark.parametrize("a,b", [("float32", "float16"), ("float32", "bfloat16"), ("float64", "float32"), ("float64", "float16"),
                                 ("float64", "bfloat16")])
def test_rounding_towards_zero(a, b, seed):
    x = random(a, N, seed)
    out = torch.zeros(N, dtype=torch_type(b))
    downcast[(1,)](x, out, tl_type(b), N)
    for v, got in zip(x.double(), out):
        if torch.isnan(v):
            assert torch.isnan(got)
            continue
        near = v.to(torch_type(b))
        if near.double().abs() > v.abs():
            near = torch.nextafter(near.float(), torch.tensor(0.0)) if b == "float32" else near.view(torch.int16).sub(1).view(
                torch_type(b))
        assert got.double() == near.double(), (v, got, near)


@triton.jit
def reinterpret(x_ptr, out_ptr, TYPE: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i).to(TYPE, bitcast=True))


@pytest.mark.parametrize("a,b", [("float32", "int32"), ("int32", "float32"), ("float16", "int16"), ("bfloat16", "uint16"),
                                 ("uint16", "bfloat16"), ("float64", "int64"), ("uint64", "float64"), ("int8", "uint8")])
def test_bitcast(a, b, seed):
    x = random(a, N, seed)
    out = torch.zeros(N, dtype=torch_type(b))
    reinterpret[(1,)](x, out, tl_type(b), N)
    assert out.view(torch.uint8).tolist() == x.view(torch.uint8).tolist()


@triton.jit
def to_bf16_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n).to(tl.bfloat16), mask=offs < n)


def test_rounding_to_bf16_bit_by_bit(seed):
    """Subnormals too, alone and among others: the instruction for it takes them for zero."""
    g = torch.Generator().manual_seed(seed)
    bits = torch.randint(-2**31, 2**31, (100_003,), generator=g, dtype=torch.int64).to(torch.int32)
    tiny = torch.randint(0, 1 << 23, (1000,), generator=g, dtype=torch.int64).to(torch.int32) * torch.tensor([1, -1])[
        torch.randint(0, 2, (1000,), generator=g)].to(torch.int32)
    bits[torch.randint(0, len(bits), (1000,), generator=g)] = tiny & ~0x7F800000
    bits[500:532] = tiny[:32] & ~0x7F800000
    bits[:9] = torch.tensor([0, -2**31, 0x7F800000, 0x7F7FFFFF, 0x7F800001, 0x7FFFFFFF, 1, 0x007FFFFF, 0x00800000], dtype=torch.int64).to(
        torch.int32)
    x = bits.view(torch.float32)
    out = torch.empty(len(x), dtype=torch.bfloat16)
    to_bf16_kernel[(triton.cdiv(len(x), 1024),)](x, out, len(x), BLOCK=1024)
    want = x.to(torch.bfloat16)
    nan = x.isnan()
    assert torch.equal(out.isnan(), nan)
    assert torch.equal(out.view(torch.int16)[~nan], want.view(torch.int16)[~nan])
