"""Numbers that an exported function gives its kernels: the types that a launch gives them, and what is refused."""

import ctypes
import math
import random

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import example, given, settings, strategies as st
from triport.backends.base import Error, Unsupported
from triport.backends.cpu.llvm import compile as llvm, generator, ir, targets
from triport.backends.cpu.run import launch
from triport.backends.spine import bundle, runner, scalars
from triport.backends.spine.example import of_values
from triport.backends.spine.trace import Call

LOCAL = targets.native().name


@triton.jit
def numbers_kernel(o, i, h: tl.float16, g: tl.bfloat16, a: tl.int8, u: tl.uint8, s: tl.int16, w: tl.uint16, v: tl.uint32, f: tl.float32, d: tl.float64, q: tl.int32,
                   t: tl.int1, big, low):
    tl.store(o, h.to(tl.float64))
    tl.store(o + 1, g.to(tl.float64))
    tl.store(o + 2, (f * f).to(tl.float64))
    tl.store(o + 3, d)
    tl.store(i, (a * 2).to(tl.int64))
    tl.store(i + 1, (u + u).to(tl.int64))
    tl.store(i + 2, s.to(tl.int64))
    tl.store(i + 3, w.to(tl.int64))
    tl.store(i + 4, ((v - 5) // 3).to(tl.int64))
    tl.store(i + 5, (~q).to(tl.int64))
    tl.store(i + 6, t.to(tl.int64))
    tl.store(i + 7, (big >> 1).to(tl.int64))
    tl.store(i + 8, (low - 1).to(tl.int64))


def numbers(x, h, g, a, u, s, w, v, f, d, q, t):
    o, i = torch.zeros(4, dtype=torch.float64), torch.zeros(9, dtype=torch.int64)
    numbers_kernel[(1,)](o, i, h, g, a, u, s, w, v, f, d, q, t, (1 << 63) + 8, -(1 << 31))
    return o, i


def fixed(x):
    o, i = torch.zeros(4, dtype=torch.float64), torch.zeros(9, dtype=torch.int64)
    numbers_kernel[(1,)](o, i, 0.1, 3.14159265, -128, 200, -300, 60000, 3, 100000, 1, True, 5, 12345678901, 7)
    return o, i


#: values of each of `numbers`' numbers
VALUES = {"h": (0.1, -65519.0, 6e-8, 1.0, 3e-8), "g": (3.14159265, -1e38, 1.0, 0.0), "a": (-128, 127, 1), "u": (200, 0, 255), "s": (-32768, 32767), "w": (60000, 65535),
          "v": (3, 2**32 - 1, 2**31), "f": (100000, 3, -1), "d": (0.1, 1e300), "q": (-2**31, 2**31 - 1, 1), "t": (True, False)}
#: what no launch takes
BEYOND = {"h": 65520.0, "g": 1e39, "a": 128, "u": -1, "s": 1 << 15, "w": 70000, "v": -1, "q": 1 << 31}


def made(function, args):
    of = of_values(function, dict(args), function.__name__)
    return bundle.make([Call(function.__name__, function, of, "fp32", __file__)], targets.get(LOCAL), cases=False, explore=False)


def called(b, args):
    f = b.manifest["functions"][0]
    out, _ = runner.get("local").call(b, f["name"], [args["x"], *(args[n["name"]] for n in f["numbers"] if n["name"] in args)])
    return out


def test_a_bundle_gives_a_kernel_what_a_launch_gives_it():
    rng = random.Random(seed := random.randrange(1 << 30))
    print("seed", seed)
    x = torch.zeros(4)
    b = made(numbers, {"x": x, **{k: v[0] for k, v in VALUES.items()}})
    for turn in range(5):
        args = {"x": x, **{k: v[0] if turn == 0 else rng.choice(v) for k, v in VALUES.items()}}
        o, i = numbers(**args)
        got = called(b, args)
        assert torch.equal(got[0], o) and torch.equal(got[1], i), args
    for name, value in BEYOND.items():
        with pytest.raises(Error, match=f"BAD_SIZE.*kernel numbers_kernel takes {name} as .*, and {name} is none of these"):
            called(b, {**args, name: value})
    o, i = fixed(x)
    got = called(made(fixed, {"x": x}), {"x": x})
    assert torch.equal(got[0], o) and torch.equal(got[1], i)


@triton.jit
def halved_kernel(i, n):
    tl.store(i, n // 2)


def halved(x, n):
    i = torch.zeros(1, dtype=torch.int64)
    halved_kernel[(1,)](i, n)
    return i


def test_an_open_number_has_the_type_of_its_example():
    x = torch.zeros(4)
    assert called(made(halved, {"x": x, "n": 99999999999}), {"x": x, "n": 88888888888})[0].item() == 44444444444
    small = made(halved, {"x": x, "n": 100})
    assert called(small, {"x": x, "n": -7})[0].item() == halved(x, -7).item()
    with pytest.raises(Error, match="kernel halved_kernel takes n as i32, -2147483648 to 2147483647, and n is none of these"):
        called(small, {"x": x, "n": 1 << 31})


@triton.jit
def times_kernel(x, o, n: tl.int64):
    tl.store(o, (tl.load(x) * n * 4).to(tl.int64))


def times_one(x):
    o = torch.zeros(1, dtype=torch.int64)
    times_kernel[(1,)](x, o, 1)
    return o


def test_a_one_has_its_type_too():
    x = torch.tensor([2**30], dtype=torch.int32)
    assert called(made(times_one, {"x": x}), {"x": x})[0].item() == times_one(x).item() == 1 << 32


@triton.jit
def mixed_kernel(o, f: tl.float64, i, g: tl.float64):
    tl.store(o, f)
    tl.store(o + 1, g)
    tl.store(o + 2, i.to(tl.float64))


def mixed(x, h, n):
    o = torch.zeros(3, dtype=torch.float64)
    mixed_kernel[(1,)](o, h // 1, round(h / 8), h / n)
    return o


def test_what_becomes_too_large_or_has_no_divisor_is_refused():
    x = torch.zeros(4)
    b = made(mixed, {"x": x, "h": 100.5, "n": 3})
    for h, n in ((100.5, 3), (-7.9, -2), (0.0, 5), (1e9, 7)):
        assert torch.equal(called(b, {"x": x, "h": h, "n": n})[0], mixed(x, h, n)), (h, n)
    for h, n in ((1e300, 3), (math.inf, 3), (math.nan, 3), (4.0, 0)):
        with pytest.raises(Error, match="too large together, or one that divides is 0"):
            called(b, {"x": x, "h": h, "n": n})


def too_large(x):
    i = torch.zeros(1, dtype=torch.int64)
    typed_kernel[(1,)](i, 300)
    return i


def of_no_type(x):
    i = torch.zeros(1, dtype=torch.int64)
    typed_kernel[(1,)](i, 2.5)
    return i


def in_eight_bits(x):
    i = torch.zeros(1, dtype=torch.int64)
    eight_kernel[(1,)](i, 2.5)
    return i


@triton.jit
def typed_kernel(i, n: tl.int8):
    tl.store(i, n.to(tl.int64))


@triton.jit
def eight_kernel(i, n: tl.float8e5):
    tl.store(i, n.to(tl.float32).to(tl.int64))


@pytest.mark.parametrize("function,said", [(too_large, "takes 'n' as i8, -128 to 127, and it is 300"), (of_no_type, "takes 'n' as i8, and it is a float"),
                                           (in_eight_bits, "takes 'n' as fp8e5, which no launch can give it")])
def test_what_no_launch_takes_is_refused_when_it_is_exported(function, said):
    with pytest.raises(Unsupported, match=said):
        made(function, {"x": torch.zeros(4)})


@pytest.fixture(scope="module")
def half():
    """What makes fp16 of numbers, compiled: a double to the bits of the half."""
    row, m = targets.native(), ir.Module("half", targets.native().triple)
    b = ir.define(m, "f", "i64", x="double")
    b.ret(scalars.FLOATS["fp16"](b, b.fn.args[0]))
    address = launch.load_object(llvm.emit_object(generator.in_registers(m.render()), row), ["f"])["f"]
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_double)(address)


@settings(max_examples=500, deadline=None)
@given(st.one_of(st.floats(width=64), st.floats(-7e4, 7e4), st.floats(-1e-4, 1e-4), st.floats(width=16).map(lambda x: x * (1 + 2**-11))))
@example(65519.999)
@example(65520.0)
@example(2.0**-25)
@example(math.nextafter(2.0**-25, 1))
@example(-0.0)
@example(2.0**-14 - 2.0**-26)
@example(math.inf)
@example(5e-324)
def test_half_is_the_nearest(half, x):
    with np.errstate(over="ignore"):
        want = np.float64(x).astype(np.float16)
    got = np.array(half(x), dtype=np.uint16).view(np.float16)
    assert (np.isnan(got) and np.isnan(want)) or got.tobytes() == want.tobytes(), (x, got, want)
