"""// and % of vectors of integers by vectors, by one number and by constants, against Python's integers; and that no element is divided for itself where the CPU divides no vectors."""

import re

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from spine_boards import on
from triport.backends.cpu.llvm import targets
from triport.backends.spine import bundle, runner
from triport.ops import Case, Op
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

KINDS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
COUNT = 3001


@triton.jit
def quotient_kernel(x_ptr, y_ptr, quotient_ptr, remainder_ptr, n, ONE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    x = tl.load(x_ptr + i, mask=inside)
    if ONE:
        y = tl.full((BLOCK,), tl.load(y_ptr), x.dtype)
    else:
        y = tl.load(y_ptr + i, mask=inside)
    tl.store(quotient_ptr + i, x // y, mask=inside)
    tl.store(remainder_ptr + i, x % y, mask=inside)


@triton.jit
def by_constant_kernel(x_ptr, quotient_ptr, remainder_ptr, n, Y: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    y = tl.full((BLOCK,), Y, x.dtype)
    tl.store(quotient_ptr + i, x // y, mask=i < n)
    tl.store(remainder_ptr + i, x % y, mask=i < n)


def numbers(rng, kind):
    """Of all sizes, and those next to where something ends or a floating-point number has no room for it; not 0."""
    info = np.iinfo(kind)
    edges = {e + k for e in (info.min, info.max, *(s << b for s in (1, -1) for b in range(info.bits))) for k in (-2, -1, 0, 1, 2)}
    drawn = rng.integers(info.min, info.max, COUNT, dtype=kind, endpoint=True) >> rng.integers(0, info.bits - 1, COUNT).astype(kind)
    kept = rng.choice(np.array([e for e in edges if info.min <= e <= info.max], dtype=kind), COUNT)
    x = np.where(rng.random(COUNT) < 0.4, kept, drawn)
    return np.where(x == 0, np.array(3, kind), x)


def same(x, y, quotient, remainder):
    """Truncated, and what leaves the type wraps round: INT_MIN // -1 does."""
    info = np.iinfo(x.dtype)
    for a, b, q, r in zip(x.tolist(), y.tolist(), quotient.tolist(), remainder.tolist()):
        whole = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        assert (q, r) == ((whole - info.min) % (1 << info.bits) + info.min, a - b * whole), f"{x.dtype}: {a} by {b}"


def dividends(kind, seed):
    x = numbers(np.random.default_rng(seed), kind)
    multiples = np.random.default_rng(seed + 1).random(COUNT) < 0.3  # of divisors, and one less: next to where the quotient changes
    y = numbers(np.random.default_rng(seed + 2), kind)
    with np.errstate(over="ignore", divide="ignore"):
        return np.where(multiples, (x // y) * y - (np.arange(COUNT) % 2).astype(kind), x), y


@pytest.mark.parametrize("kind", KINDS)
def test_by_vectors(kind, cpu_row, seed):
    x, y = dividends(kind, seed)
    out = [torch.zeros(COUNT, dtype=getattr(torch, kind)) for _ in range(2)]
    quotient_kernel[(triton.cdiv(COUNT, 512),)](torch.from_numpy(x), torch.from_numpy(y), *out, COUNT, ONE=False, BLOCK=512)
    same(x, y, *out)


@pytest.mark.parametrize("kind", KINDS)
def test_by_one_number(kind, cpu_row, seed):
    x, y = dividends(kind, seed)
    info = np.iinfo(kind)
    for divisor in {1, 2, 3, 7, 41, 49, 100, 107, info.max, info.max - 1, info.min or 5, *([-1, -2, -3, info.min + 1] if info.min else []), *y[:4].tolist()}:
        one = np.full(1, divisor, dtype=kind)
        with np.errstate(over="ignore"):  # multiples, of which some times 1 / 49, which is rounded, fall short
            x = np.where(np.arange(COUNT) % 3 == 0, x // one * one, x)
        out = [torch.zeros(COUNT, dtype=getattr(torch, kind)) for _ in range(2)]
        quotient_kernel[(triton.cdiv(COUNT, 512),)](torch.from_numpy(x), torch.from_numpy(one), *out, COUNT, ONE=True, BLOCK=512)
        same(x, np.broadcast_to(one, x.shape), *out)


@pytest.mark.parametrize("kind,divisor", [("int64", 3), ("int64", -48000), ("int64", 1 << 40), ("int64", (1 << 62) + 1), ("int64", -(1 << 63)), ("uint64", 10), ("int32", 7), ("int32", -100),
                                          ("uint32", 641), ("int16", 10), ("int8", -7), ("int64", -1)])
def test_by_a_constant(kind, divisor, cpu_row, seed):
    x, _ = dividends(kind, seed)
    out = [torch.zeros(COUNT, dtype=getattr(torch, kind)) for _ in range(2)]
    by_constant_kernel[(triton.cdiv(COUNT, 512),)](torch.from_numpy(x), *out, COUNT, Y=divisor, BLOCK=512)
    same(x, np.full(COUNT, divisor, dtype=kind), *out)


@pytest.mark.parametrize("kind", ("int32", "int64"))
def test_by_zero_nothing_traps(kind, cpu_row):
    x, y = (torch.full((COUNT,), v, dtype=getattr(torch, kind)) for v in (5, 0))
    out = [torch.zeros_like(x) for _ in range(2)]
    quotient_kernel[(triton.cdiv(COUNT, 512),)](x, y, *out, COUNT, ONE=False, BLOCK=512)


@pytest.mark.parametrize("one", (False, True), ids=("vectors", "one number"))
@pytest.mark.parametrize("target,kinds", [("x86-64-v2", ("i8", "u16", "i32", "u32")), ("x86-64-v3", ("i8", "u16", "i32", "u32")), ("x86-64-v4", ("i8", "u16", "i32", "u32", "i64", "u64")),
                                          ("aarch64", ("i8", "u16", "i32", "u32")), ("spacemit-x60", ("i8", "u16", "i32", "u32", "i64"))])
def test_no_element_is_divided_for_itself(target, kinds, one):
    def divisions(kernel, kind, constants):
        pointers = {name: f"*{kind}" for name in kernel.arg_names if name.endswith("_ptr")}
        made = triton.compile(ASTSource(kernel, pointers | {"n": "i32"}, constants | {"BLOCK": 512}), target=GPUTarget("cpu", target, 0))
        return len(re.findall(r"^\s+(?:i?div[bwlq]?|[su]div|divu?w?|remu?w?)\s", made.asm["asm"], re.MULTILINE))

    for kind in kinds:
        assert divisions(quotient_kernel, kind, {"ONE": one}) == divisions(by_constant_kernel, kind, {"Y": 8}), kind  # of the grid's, once a program


@triton.jit
def bits_kernel(x_ptr, y_ptr, quotient_ptr, remainder_ptr, n, UNSIGNED: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, y = tl.load(x_ptr + i, mask=i < n), tl.load(y_ptr + i, mask=i < n)
    x, y = x.to(tl.int32, bitcast=True), y.to(tl.int32, bitcast=True)
    if UNSIGNED:
        x, y = x.to(tl.uint32, bitcast=True), y.to(tl.uint32, bitcast=True)
    tl.store(quotient_ptr + i, (x // y).to(tl.float32, bitcast=True), mask=i < n)
    tl.store(remainder_ptr + i, (x % y).to(tl.float32, bitcast=True), mask=i < n)


@pytest.mark.parametrize("board,unsigned", [on("qemu:aarch64", False), on("qemu:aarch64", True), on("qemu:riscv64?vlen=256", False)])
def test_on_other_cpus(board, unsigned, seed):
    """Integers as the bits of f32, which is what ops for boards take."""
    x, y = dividends("uint32" if unsigned else "int32", seed)

    def divide(x, y):
        out = torch.empty_like(x), torch.empty_like(x)
        bits_kernel[(triton.cdiv(x.numel(), 512),)](x, y, *out, x.numel(), UNSIGNED=unsigned, BLOCK=512)
        return out

    op = Op("divide", divide, lambda x, y: (x, y), (Case(((COUNT,), (COUNT,))),))
    made = bundle.make([(op, op.cases[0], "fp32")], targets.get("aarch64" if "aarch64" in board else "spacemit-x60"), cases=False)
    out, _ = runner.get(board).call(made, "triport_divide_fp32", [torch.from_numpy(v.view(np.float32)) for v in (x, y)])
    same(x, y, *(o.numpy().view(x.dtype) for o in out))
