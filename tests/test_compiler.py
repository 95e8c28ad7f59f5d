"""The compiler: text in and numbers out for every rule, refusals, targets, and kernels that strangers write."""

import math
import re
import sys

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triport.backends.base import CompileError
from triport.backends.cpu.emit import rules
from triport.backends.cpu.emit.kernel import Kernel
from triport.backends.cpu.emit.module import lower_module
from triport.backends.cpu.llvm import compile as llvm, targets
from triport.backends.cpu.ttir import reader
from triport.bench import check

TORCH = {"i1": torch.bool, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64,
         "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}


def compile_text(text, tmp_path):
    path = tmp_path / "k.ttir"
    path.write_text(text)
    return triton.compile(str(path), target=GPUTarget("cpu", "native", 0))


def values(t, n, seed):
    g = torch.Generator().manual_seed(seed)
    if t == "i1":
        return torch.randint(0, 2, (n,), generator=g).bool()
    if t[0] == "i":
        info = torch.iinfo(TORCH[t])
        x = torch.randint(info.min, info.max, (n,), generator=g, dtype=torch.int64).to(TORCH[t])
        x[:4] = torch.tensor([0, 1, -1, info.min]).to(TORCH[t])
        return x
    x = (torch.randn(n, generator=g, dtype=torch.float64) * 3).to(TORCH[t])
    x[:3] = torch.tensor([0.0, -0.0, 1.0])
    return x


def elementwise(body, ins, out, n=64):
    """A kernel that loads `ins`, runs `body` (which defines %r from %v0, %v1, ...) and stores %r of type `out`."""
    args = ", ".join(f"%p{k}: !tt.ptr<{t}>" for k, t in enumerate(ins))
    loads = "\n".join(
        f"    %s{k} = tt.splat %p{k} : !tt.ptr<{t}> -> tensor<{n}x!tt.ptr<{t}>>\n"
        f"    %a{k} = tt.addptr %s{k}, %i : tensor<{n}x!tt.ptr<{t}>>, tensor<{n}xi32>\n"
        f"    %v{k} = tt.load %a{k} : tensor<{n}x!tt.ptr<{t}>>" for k, t in enumerate(ins))
    return f"""module {{
  tt.func public @k({args}, %o: !tt.ptr<{out}>) {{
    %i = tt.make_range {{end = {n} : i32, start = 0 : i32}} : tensor<{n}xi32>
{loads}
    {body}
    %so = tt.splat %o : !tt.ptr<{out}> -> tensor<{n}x!tt.ptr<{out}>>
    %ao = tt.addptr %so, %i : tensor<{n}x!tt.ptr<{out}>>, tensor<{n}xi32>
    tt.store %ao, %r : tensor<{n}x!tt.ptr<{out}>>
    tt.return
  }}
}}
"""


def run_elementwise(body, ins, out, tmp_path, seed=1, n=64, prepare=None):
    k = compile_text(elementwise(body, ins, out, n), tmp_path)
    args = [values(t, n, seed + j) for j, t in enumerate(ins)]
    if prepare:
        args = prepare(*args)
    result = torch.zeros(n, dtype=TORCH[out])
    k[(1, 1, 1)](*args, result)
    return args, result


def T(t):
    return f"tensor<64x{t}>"


def same(t):
    return f": {T(t)}"


def cast(a, b):
    return f": {T(a)} to {T(b)}"


I, F = ("i8", "i16", "i32", "i64"), ("f16", "bf16", "f32", "f64")
nz = lambda x, y: [x, torch.where(y == 0, torch.ones_like(y), y)]  # noqa: E731
low = lambda x, y: [x, (y & 7)]  # noqa: E731
pos = lambda *v: [x.abs() + 0.1 for x in v]  # noqa: E731


def wrap(fn, t):
    """An integer operation by Python's integers, wrapped to the type."""
    bits = torch.iinfo(TORCH[t]).bits

    def go(*xs):
        out = []
        for vals in zip(*[x.tolist() for x in xs]):
            v = fn(*vals) & ((1 << bits) - 1)
            out.append(v - ((v >> (bits - 1)) << bits))
        return torch.tensor(out, dtype=torch.int64).to(TORCH[t])

    return go


def unsigned(v, t):
    return v & ((1 << torch.iinfo(TORCH[t]).bits) - 1)


def trunc_div(a, b):
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


# rule -> [(body, input types, output type, reference, prepare)]

def rounded_once(x, to: str):
    """x in another type. torch goes from fp64 to fp16 by way of fp32, and rounds twice."""
    if x.dtype is torch.float64 and to == "f16":
        return torch.from_numpy(x.numpy().astype("float16"))
    return x.to(TORCH[to])


RULES = {
    **{f"arith.{n}": [(f"%r = arith.{n} %v0, %v1 {same(t)}", [t, t], t, wrap(fn, t), None) for t in I] for n, fn in (
        ("addi", lambda a, b: a + b), ("subi", lambda a, b: a - b), ("muli", lambda a, b: a * b),
        ("andi", lambda a, b: a & b), ("ori", lambda a, b: a | b), ("xori", lambda a, b: a ^ b),
        ("maxsi", max), ("minsi", min))},
    **{f"arith.{n}": [(f"%r = arith.{n} %v0, %v1 {same(t)}", [t, t], t, wrap(fn, t), nz) for t in I] for n, fn in (
        ("divsi", trunc_div), ("remsi", lambda a, b: a - b * trunc_div(a, b)))},
    **{f"arith.{n}": [(f"%r = arith.{n} %v0, %v1 {same(t)}", [t, t], t,
                       wrap(lambda a, b, f=fn, t=t: f(unsigned(a, t), unsigned(b, t)), t), nz) for t in I] for n, fn in (
        ("divui", lambda a, b: a // b), ("remui", lambda a, b: a % b), ("maxui", max), ("minui", min))},
    **{f"arith.{n}": [(f"%r = arith.{n} %v0, %v1 {same(t)}", [t, t], t, wrap(lambda a, b, f=fn, t=t: f(a, b, t), t), low)
                      for t in I] for n, fn in (
        ("shli", lambda a, b, t: a << b), ("shrsi", lambda a, b, t: a >> b), ("shrui", lambda a, b, t: unsigned(a, t) >> b))},
    **{f"arith.{n}": [(f"%r = arith.{n} %v0, %v1 {same(t)}", [t, t], t, fn, None) for t in F] for n, fn in (
        ("addf", torch.add), ("subf", torch.sub), ("mulf", torch.mul), ("maxnumf", torch.fmax), ("minnumf", torch.fmin),
        ("maximumf", torch.maximum), ("minimumf", torch.minimum))},
    "arith.divf": [(f"%r = arith.divf %v0, %v1 {same(t)}", [t, t], t, torch.div, nz) for t in F],
    "tt.precise_divf": [(f"%r = tt.precise_divf %v0, %v1 {same('f32')}", ["f32"] * 2, "f32", torch.div, nz)],
    "arith.remf": [(f"%r = arith.remf %v0, %v1 {same('f32')}", ["f32"] * 2, "f32", torch.fmod, nz)],
    "arith.negf": [(f"%r = arith.negf %v0 {same(t)}", [t], t, torch.neg, None) for t in F],
    "arith.cmpi": [(f"%r = arith.cmpi {p}, %v0, %v1 {same('i32')}", ["i32"] * 2, "i1", fn, None) for p, fn in (
        ("eq", torch.eq), ("ne", torch.ne), ("slt", torch.lt), ("sle", torch.le), ("sgt", torch.gt), ("sge", torch.ge),
        ("ult", lambda a, b: (a.long() & 0xFFFFFFFF) < (b.long() & 0xFFFFFFFF)))],
    "arith.cmpf": [(f"%r = arith.cmpf {p}, %v0, %v1 {same('f32')}", ["f32"] * 2, "i1", fn, None) for p, fn in (
        ("oeq", torch.eq), ("une", torch.ne), ("olt", torch.lt), ("ole", torch.le), ("ogt", torch.gt), ("oge", torch.ge))],
    "arith.select": [(f"%r = arith.select %v0, %v1, %v2 : {T('i1')}, {T(t)}", ["i1", t, t], t, torch.where, None)
                     for t in ("f32", "i64", "bf16")],
    "arith.constant": [(f"%r = arith.constant dense<{text}> : {T(t)}", ["i32"], t,
                        lambda x, v=v, t=t: torch.full((64,), v, dtype=TORCH[t]), None) for t, text, v in (
        ("f32", "0xFF800000", -math.inf), ("f32", "1.500000e+00", 1.5), ("f16", "0x7C00", math.inf), ("i64", "-7", -7),
        ("bf16", "2.500000e-01", 0.25), ("f64", "1.000000e-300", 1e-300), ("i8", "-128", -128))],
    "tt.mulhiui": [(f"%r = tt.mulhiui %v0, %v1 {same(t)}", [t, t], t,
                    wrap(lambda a, b, t=t: (unsigned(a, t) * unsigned(b, t)) >> torch.iinfo(TORCH[t]).bits, t), None)
                   for t in ("i32", "i64")],
    "tt.clampf": [(f"%r = tt.clampf %v0, %v1, %v2, propagateNan = none {same('f32')}", ["f32"] * 3, "f32",
                   lambda x, lo, hi: torch.fmin(torch.fmax(x, lo), hi), None)],
    "arith.extsi": [(f"%r = arith.extsi %v0 {cast(a, b)}", [a], b, lambda x, b=b: x.to(TORCH[b]), None)
                    for a, b in (("i8", "i32"), ("i32", "i64"))],
    "arith.extui": [(f"%r = arith.extui %v0 {cast('i8', 'i32')}", ["i8"], "i32", lambda x: x.int() & 255, None),
                    (f"%r = arith.extui %v0 {cast('i1', 'i32')}", ["i1"], "i32", lambda x: x.int(), None)],
    "arith.trunci": [(f"%r = arith.trunci %v0 {cast('i64', 'i16')}", ["i64"], "i16", lambda x: x.to(torch.int16), None)],
    "arith.extf": [(f"%r = arith.extf %v0 {cast(a, b)}", [a], b, lambda x, b=b: x.to(TORCH[b]), None)
                   for a, b in (("f16", "f32"), ("bf16", "f32"), ("f32", "f64"), ("f16", "f64"), ("bf16", "f64"))],
    "arith.truncf": [(f"%r = arith.truncf %v0 {cast(a, b)}", [a], b, lambda x, b=b: rounded_once(x, b), None)
                     for a, b in (("f32", "f16"), ("f32", "bf16"), ("f64", "f32"), ("f64", "f16"))],
    "tt.fp_to_fp": [(f"%r = tt.fp_to_fp %v0 {cast('bf16', 'f16').replace(' to ', ' -> ')}", ["bf16"], "f16",
                     lambda x: x.half(), None)],
    "arith.sitofp": [(f"%r = arith.sitofp %v0 {cast(a, b)}", [a], b, lambda x, b=b: x.to(TORCH[b]), None)
                     for a, b in (("i32", "f32"), ("i64", "f64"), ("i8", "f16"), ("i16", "bf16"))],
    "arith.uitofp": [(f"%r = arith.uitofp %v0 {cast('i8', 'f32')}", ["i8"], "f32", lambda x: (x.int() & 255).float(), None)],
    "arith.fptosi": [(f"%r = arith.fptosi %v0 {cast(a, b)}", [a], b, lambda x, b=b: x.to(TORCH[b]), None)
                     for a, b in (("f32", "i32"), ("f64", "i64"), ("bf16", "i32"))],
    "arith.fptoui": [(f"%r = arith.fptoui %v0 {cast('f32', 'i32')}", ["f32"], "i32", lambda x: x.int(),
                      lambda x: [x.abs()])],
    "tt.bitcast": [(f"%r = tt.bitcast %v0 {cast(a, b).replace(' to ', ' -> ')}", [a], b, lambda x, b=b: x.view(TORCH[b]),
                    None) for a, b in (("f32", "i32"), ("i16", "bf16"), ("f16", "i16"), ("i64", "f64"))],
    "arith.bitcast": [(f"%r = arith.bitcast %v0 {cast('i32', 'f32')}", ["i32"], "f32", lambda x: x.view(torch.float32), None)],
    **{f"math.{n}": [(f"%r = math.{n} %v0 {same(t)}", [t], t, lambda x, fn=fn, t=t: fn(x.double()).to(TORCH[t]), p)
                     for t in F] for n, fn, p in (
        ("exp", torch.exp, None), ("exp2", torch.exp2, None), ("log", torch.log, pos), ("log2", torch.log2, pos),
        ("sin", torch.sin, None), ("cos", torch.cos, None), ("tanh", torch.tanh, None), ("erf", torch.erf, None),
        ("sqrt", torch.sqrt, pos), ("rsqrt", torch.rsqrt, pos), ("absf", torch.abs, None), ("floor", torch.floor, None),
        ("ceil", torch.ceil, None))},
    "tt.precise_sqrt": [(f"%r = tt.precise_sqrt %v0 {same('f32')}", ["f32"], "f32", torch.sqrt, pos)],
    "math.fma": [(f"%r = math.fma %v0, %v1, %v2 {same('f32')}", ["f32"] * 3, "f32",
                  lambda a, b, c: (a.double() * b.double() + c.double()).float(), None)],
    "math.absi": [(f"%r = math.absi %v0 {same('i32')}", ["i32"], "i32", torch.abs, None)],
}
RULES |= {f"math.{n}": [(f"%r = math.{n} %v0 {same(t)}", [t], t, lambda x, fn=fn, t=t: fn(x.double()).to(TORCH[t]), p)
                        for t in F] for n, fn, p in (
    ("acos", torch.acos, lambda x: [x.clamp(-1, 1)]), ("acosh", torch.acosh, lambda x: [x.abs() + 1]),
    ("asin", torch.asin, lambda x: [x.clamp(-1, 1)]), ("asinh", torch.asinh, None), ("atan", torch.atan, None),
    ("atanh", torch.atanh, lambda x: [x.clamp(-0.5, 0.5)]), ("cosh", torch.cosh, None), ("erfc", torch.erfc, None),
    ("expm1", torch.expm1, None), ("log10", torch.log10, pos), ("log1p", torch.log1p, pos), ("sinh", torch.sinh, None),
    ("tan", torch.tan, None), ("trunc", torch.trunc, None), ("roundeven", torch.round, None),
    ("round", lambda x: x.sign() * (x.abs() + 0.5).floor(), None),
    ("cbrt", lambda x: x.sign() * x.abs().pow(1 / 3), lambda x: [x + (x == 0)]))}
RULES |= {f"math.{n}": [(f"%r = math.{n} %v0, %v1 {same(t)}", [t, t], t, lambda x, y, fn=fn, t=t: fn(
    x.double(), y.double()).to(TORCH[t]), p) for t in F] for n, fn, p in (
    ("atan2", torch.atan2, None), ("copysign", torch.copysign, None), ("powf", torch.pow, pos))}
RULES |= {
    "math.fpowi": [(f"%r = math.fpowi %v0, %v1 : {T('f32')}, {T('i32')}", ["f32", "i32"], "f32",
                    lambda x, n: (x.double()**n).float(), low)],
    **{f"math.{n}": [(f"%r = math.{n} %v0 {same('f32')}", ["f32"], "i1", fn, None)] for n, fn in (
        ("isnan", torch.isnan), ("isinf", torch.isinf), ("isfinite", torch.isfinite))},
    **{f"math.{n}": [(f"%r = math.{n} %v0 {same(t)}", [t], t, wrap(lambda a, f=fn, t=t: f(unsigned(a, t), torch.iinfo(
        TORCH[t]).bits), t), None) for t in I] for n, fn in (
        ("ctpop", lambda a, n: bin(a).count("1")), ("ctlz", lambda a, n: n - a.bit_length()),
        ("cttz", lambda a, n: (a & -a).bit_length() - 1 if a else n))},
    "arith.floordivsi": [(f"%r = arith.floordivsi %v0, %v1 {same(t)}", [t, t], t, wrap(lambda a, b: a // b, t), nz) for t in I],
    "arith.ceildivui": [(f"%r = arith.ceildivui %v0, %v1 {same(t)}", [t, t], t, wrap(
        lambda a, b, t=t: -(-unsigned(a, t) // unsigned(b, t)), t), nz) for t in I],
    "arith.ceildivsi": [(f"%r = arith.ceildivsi %v0, %v1 {same(t)}", [t, t], t, wrap(lambda a, b: -(-a // b), t), nz)
                        for t in I],
    **{f"arith.{n}": [(f"%x = arith.{n} %v0 {cast(a, 'index')}\n%r = arith.{n} %x {cast('index', b)}", [a], b, fn, None)
                      for a, b in (("i32", "i64"), ("i64", "i32"))] for n, fn in (
        ("index_cast", lambda x: x.to(torch.int32) if x.dtype == torch.int64 else x.long()),
        ("index_castui", lambda x: x.to(torch.int32) if x.dtype == torch.int64 else x.long() & 0xFFFFFFFF))},
    "tt.approx_divf": [(f"%r = tt.approx_divf %v0, %v1 {same('f32')}", ["f32"] * 2, "f32", torch.div, nz)],
    "ub.poison": [(f"%c = arith.constant dense<true> : {T('i1')}\n%p = ub.poison : {T('f32')}\n"
                   f"%r = arith.select %c, %v0, %p : {T('i1')}, {T('f32')}", ["f32"], "f32", lambda x: x, None)],
}
#: rules whose results are checked by kernels below, or in language/
ELSEWHERE = {"tt.addptr", "tt.ptr_to_int", "tt.int_to_ptr", "tt.extern_elementwise", "tt.elementwise_inline_asm", "triport.max", "triport.min"}


def test_every_elementwise_rule_has_a_case():
    assert set(rules.ELEMENTWISE) == set(RULES) | ELSEWHERE


OLDER = triton.__version__ < "3.7"
_ADDED = ("tt.approx_divf",)  # operations that Triton 3.6 does not read


@pytest.mark.parametrize("rule", [pytest.param(r, marks=pytest.mark.skipif(OLDER and r in _ADDED, reason="Triton 3.6 does not have the operation"))
                                  for r in RULES])
def test_rule(rule, tmp_path, seed):
    for body, ins, out, reference, prepare in RULES[rule]:
        args, got = run_elementwise(body, ins, out, tmp_path, seed, prepare=prepare)
        want = reference(*args)
        if want.dtype.is_floating_point:
            exact = rule.startswith("arith.") and rule != "arith.divf" or rule == "tt.bitcast"
            torch.testing.assert_close(got, want, equal_nan=True, **({"rtol": 0, "atol": 0} if exact else {}))
        else:
            assert torch.equal(got, want), f"{body}: {got.tolist()} != {want.tolist()}"


@pytest.mark.parametrize("op", ["divsi", "remsi", "divui", "remui", "ceildivui"])
def test_division_by_zero_does_not_trap(op, tmp_path):
    run_elementwise(f"%r = arith.{op} %v0, %v1 {same('i32')}", ["i32", "i32"], "i32", tmp_path,
                    prepare=lambda x, y: [x, torch.zeros_like(y)])


def test_bf16_rounding_is_exact(tmp_path):
    """Every kind of f32 to bf16: ties to even, subnormals, infinities, NaN stays NaN."""
    bits = np.random.default_rng(7).integers(0, 1 << 32, 4096, dtype=np.uint32)
    bits[:6] = [0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x7FC00000, 0x7F800001, 0x00008000]
    x = torch.from_numpy(bits.view(np.float32).copy())
    k = compile_text(elementwise("%r = arith.truncf %v0 : tensor<4096xf32> to tensor<4096xbf16>", ["f32"], "bf16", 4096),
                     tmp_path)
    out = torch.zeros(4096, dtype=torch.bfloat16)
    k[(1, 1, 1)](x, out)
    torch.testing.assert_close(out, x.bfloat16(), rtol=0, atol=0, equal_nan=True)


# --- kernels ---------------------------------------------------------------------------------------------------------


@triton.jit
def vector_add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=mask) + tl.load(y_ptr + offs, mask=mask), mask=mask)


@pytest.mark.parametrize("n", [1, 15, 16, 17, 1000, 1024, 98432])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.float64])
def test_vector_add(n, dtype):
    x, y = (torch.randint(-99, 99, (n,)).to(dtype) for _ in range(2))
    view, whole = check.guarded((n,), dtype)
    vector_add[(triton.cdiv(n, 256),)](x, y, view, n, BLOCK=256)
    assert torch.equal(view, x + y) and check.guards_hold(whole)


@triton.jit
def fused_softmax(out, inp, in_stride, out_stride, n_rows, n_cols, BLOCK: tl.constexpr, num_stages: tl.constexpr):
    for row in tl.range(tl.program_id(0), n_rows, tl.num_programs(0), num_stages=num_stages):
        cols = tl.arange(0, BLOCK)
        x = tl.load(inp + row * in_stride + cols, mask=cols < n_cols, other=-float("inf"))
        e = tl.exp(x - tl.max(x, axis=0))
        tl.store(out + row * out_stride + cols, e / tl.sum(e, axis=0), mask=cols < n_cols)


@pytest.mark.parametrize("m,n", [(1823, 781), (3, 1), (5, 17), (2, 4000)])
def test_tutorial_fused_softmax(m, n):
    x = torch.randn(m, n + 3)[:, :n]
    out = torch.empty(m, n)
    fused_softmax[(min(m, 8),)](out, x, x.stride(0), out.stride(0), m, n, BLOCK=triton.next_power_of_2(n), num_stages=4)
    assert check.error(out, torch.softmax(x.double(), 1)) < 1e-6


@triton.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.jit
def tutorial_matmul(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
                    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, ACT: tl.constexpr):
    pid = tl.program_id(0)
    num_m, num_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    group = pid // (GROUP * num_n)
    size = min(num_m - group * GROUP, GROUP)
    pid_m = group * GROUP + (pid % (GROUP * num_n)) % size
    pid_n = (pid % (GROUP * num_n)) // size
    offs_am = (pid_m * BM + tl.arange(0, BM)) % M
    offs_bn = (pid_n * BN + tl.arange(0, BN)) % N
    offs_k = tl.arange(0, BK)
    a_ptrs = a_ptr + (offs_am[:, None] * stride_am + offs_k[None, :] * stride_ak)
    b_ptrs = b_ptr + (offs_k[:, None] * stride_bk + offs_bn[None, :] * stride_bn)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BK, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BK, other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += BK * stride_ak
        b_ptrs += BK * stride_bk
    if ACT == "leaky_relu":
        acc = leaky_relu(acc)
    offs_cm = pid_m * BM + tl.arange(0, BM)
    offs_cn = pid_n * BN + tl.arange(0, BN)
    c_ptrs = c_ptr + stride_cm * offs_cm[:, None] + stride_cn * offs_cn[None, :]
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=(offs_cm[:, None] < M) & (offs_cn[None, :] < N))


@pytest.mark.parametrize("dtype,bound", [(torch.float32, 2e-6), (torch.float16, 1e-3), (torch.bfloat16, 8e-3)])
@pytest.mark.parametrize("m,n,k", [(128, 128, 128), (100, 70, 33), (1, 1, 1), (257, 129, 65)])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("act", ["", "leaky_relu"])
def test_tutorial_matmul(m, n, k, dtype, bound, transposed, act):
    a = torch.randn(m, k).to(dtype)
    b = (torch.randn(n, k).T if transposed else torch.randn(k, n)).to(dtype)
    view, whole = check.guarded((m, n), dtype)
    tutorial_matmul[(triton.cdiv(m, 32) * triton.cdiv(n, 64),)](
        a, b, view, m, n, k, *a.stride(), *b.stride(), *view.stride(), BM=32, BN=64, BK=16, GROUP=8, ACT=act)
    want = a.double() @ b.double()
    want = torch.nn.functional.leaky_relu(want, 0.01) if act else want
    assert check.error(view, want) < bound and check.guards_hold(whole)


@triton.jit
def seeded_dropout(x_ptr, out_ptr, n, p, seed, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    keep = tl.rand(seed, offs) > p
    tl.store(out_ptr + offs, tl.where(keep, x / (1 - p), 0.0), mask=offs < n)


def test_tutorial_dropout():
    x = torch.randn(100003)
    outs = [torch.empty_like(x) for _ in range(3)]
    for out, s in zip(outs, (123, 123, 512)):
        seeded_dropout[(triton.cdiv(len(x), 1024),)](x, out, len(x), 0.3, s, BLOCK=1024)
    assert torch.equal(outs[0], outs[1]) and not torch.equal(outs[0], outs[2])
    kept = outs[0] != 0
    assert abs(kept.float().mean() - 0.7) < 0.01
    torch.testing.assert_close(outs[0][kept], (x / (1 - 0.3))[kept])


@triton.jit
def layer_norm(X, Y, W, B, Mean, Rstd, stride, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    Y += row * stride
    X += row * stride
    _mean = tl.zeros([BLOCK], dtype=tl.float32)
    for off in range(0, N, BLOCK):
        cols = off + tl.arange(0, BLOCK)
        _mean += tl.load(X + cols, mask=cols < N, other=0.).to(tl.float32)
    mean = tl.sum(_mean, axis=0) / N
    _var = tl.zeros([BLOCK], dtype=tl.float32)
    for off in range(0, N, BLOCK):
        cols = off + tl.arange(0, BLOCK)
        x = tl.load(X + cols, mask=cols < N, other=0.).to(tl.float32)
        x = tl.where(cols < N, x - mean, 0.)
        _var += x * x
    rstd = 1 / tl.sqrt(tl.sum(_var, axis=0) / N + eps)
    tl.store(Mean + row, mean)
    tl.store(Rstd + row, rstd)
    for off in range(0, N, BLOCK):
        cols = off + tl.arange(0, BLOCK)
        w = tl.load(W + cols, mask=cols < N)
        b = tl.load(B + cols, mask=cols < N)
        x = tl.load(X + cols, mask=cols < N, other=0.).to(tl.float32)
        tl.store(Y + cols, (x - mean) * rstd * w + b, mask=cols < N)


@pytest.mark.parametrize("dtype,bound", [(torch.float32, 2e-6), (torch.float16, 1e-3), (torch.bfloat16, 8e-3)])
def test_tutorial_layer_norm(dtype, bound):
    m, n = 51, 3000
    x, w, b = (torch.randn(s).to(dtype) for s in ((m, n), (n,), (n,)))
    y, mean, rstd = torch.empty_like(x), torch.empty(m), torch.empty(m)
    layer_norm[(m,)](x, y, w, b, mean, rstd, n, n, 1e-5, BLOCK=1024)
    assert check.error(y, torch.nn.functional.layer_norm(x.double(), (n,), w.double(), b.double(), 1e-5)) < bound
    assert check.error(mean, x.double().mean(1)) < 1e-3


@triton.jit
def max_with_index(x_ptr, v_ptr, i_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * n + offs, mask=offs < n, other=-float("inf"))
    v, i = tl.max(x, axis=0, return_indices=True)
    tl.store(v_ptr + tl.program_id(0), v)
    tl.store(i_ptr + tl.program_id(0), i)


def test_reduction_of_two_operands():
    x = torch.randint(0, 50, (40, 300)).float()
    v, i = torch.empty(40), torch.empty(40, dtype=torch.int32)
    max_with_index[(40,)](x, v, i, 300, BLOCK=512)
    assert torch.equal(v, x.max(1).values)
    assert torch.equal(i.long(), (x == v[:, None]).float().argmax(1)), "ties go to the left"


@triton.jit
def reduce_2d(x_ptr, out_ptr, M, N, AXIS: tl.constexpr, KIND: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    r, c = tl.arange(0, BM), tl.arange(0, BN)
    x = tl.load(x_ptr + r[:, None] * N + c[None, :], mask=(r[:, None] < M) & (c[None, :] < N), other=0)
    if KIND == "sum":
        y = tl.sum(x, axis=AXIS)
    elif KIND == "max":
        y = tl.max(x, axis=AXIS)
    elif KIND == "min":
        y = tl.min(x, axis=AXIS)
    else:
        y = tl.xor_sum(x, axis=AXIS)
    o = c if AXIS == 0 else r
    tl.store(out_ptr + o, y, mask=o < (N if AXIS == 0 else M))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", ["sum", "max", "min", "xor_sum"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
@pytest.mark.parametrize("m,n", [(1, 1), (7, 100), (64, 3), (33, 129)])
def test_reduce_2d(axis, kind, dtype, m, n):
    if kind == "xor_sum" and dtype.is_floating_point:
        kind = "sum"
    x = torch.randint(-50, 50, (m, n)).to(dtype)
    bm, bn = triton.next_power_of_2(m), triton.next_power_of_2(n)
    padded = torch.zeros(bm, bn, dtype=dtype)
    padded[:m, :n] = x
    out = torch.empty(n if axis == 0 else m, dtype=dtype)
    reduce_2d[(1,)](x, out, m, n, AXIS=axis, KIND=kind, BM=bm, BN=bn)
    if kind == "xor_sum":
        want = torch.from_numpy(np.bitwise_xor.reduce(padded.numpy(), axis=axis))
    else:
        want = {"sum": padded.sum, "max": padded.amax, "min": padded.amin}[kind](axis)
    assert torch.equal(out, want[:len(out)].to(dtype))


@triton.jit
def transpose_twice(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    r, c = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + r[:, None] * N + c[None, :])
    tl.store(out_ptr + c[:, None] * M + r[None, :], tl.trans(x) * 2)


def test_transpose_in_place():
    """Every element is read before any is written, though both go through one pointer."""
    x = torch.randn(32, 64)
    want = x.T * 2
    transpose_twice[(1,)](x, x, M=32, N=64)
    assert torch.equal(x.view(64, 32), want)


@triton.jit
def shift_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


@pytest.mark.parametrize("shift", [-100, -16, -3, -1, 0, 1, 5, 17, 200])
def test_overlapping_arguments(shift):
    """Two arguments into one buffer: a program's loads happen before its stores, as on a GPU."""
    buffer = torch.arange(2000, dtype=torch.float32)
    x, out = buffer[500:1500], buffer[500 + shift:1500 + shift]
    want = buffer.clone()
    want[500 + shift:1500 + shift] = buffer[500:1500].clone()
    shift_kernel[(1,)](x, out, 1000, BLOCK=1024)
    assert torch.equal(buffer, want)


@triton.jit
def swap_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    y = tl.load(y_ptr + offs)
    for _ in range(n):
        x, y = y, x + 1
    tl.store(x_ptr + offs, x)
    tl.store(y_ptr + offs, y)


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_loop_carried_swap(n):
    x, y = torch.arange(64.0), -torch.arange(64.0)
    a, b = x.clone(), y.clone()
    for _ in range(n):
        a, b = b, a + 1
    swap_kernel[(1,)](x, y, n, BLOCK=64)
    assert torch.equal(x, a) and torch.equal(y, b)


@triton.jit
def control_kernel(x_ptr, out_ptr, n, limit, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    if pid * BLOCK >= n:
        return
    offs = pid * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0)
    k = 0
    while k < limit:
        if k % 2 == 0:
            x = x + k
        else:
            x = x * 2
        k += 1
    tl.store(out_ptr + offs, x, mask=offs < n)


@pytest.mark.parametrize("limit", [0, 1, 4, 7])
def test_while_if_and_early_return(limit):
    x = torch.randint(-9, 9, (100,), dtype=torch.int32)
    view, whole = check.guarded((100,), torch.int32)
    control_kernel[(8,)](x, view, 100, limit, BLOCK=32)
    want = x.clone()
    for k in range(limit):
        want = want + k if k % 2 == 0 else want * 2
    assert torch.equal(view, want) and check.guards_hold(whole)


@triton.jit
def gather_kernel(x_ptr, idx_ptr, out_ptr, n, stride, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    idx = tl.load(idx_ptr + offs * stride, mask=mask, other=0)
    tl.store(out_ptr + (n - 1 - offs), tl.load(x_ptr + idx, mask=mask), mask=mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.int8])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_gather_strided_and_reversed(dtype, stride):
    n = 777
    x = torch.randint(-99, 99, (500,)).to(dtype)
    idx = torch.randint(0, 500, (n * stride,))
    view, whole = check.guarded((n,), dtype)
    gather_kernel[(triton.cdiv(n, 64),)](x, idx, view, n, stride, BLOCK=64)
    assert torch.equal(view, x[idx[::stride]].flip(0)) and check.guards_hold(whole)


@triton.jit
def grid_kernel(out_ptr):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = (z * tl.num_programs(1) + y) * tl.num_programs(0) + x
    tl.store(out_ptr + at, x * 10000 + y * 100 + z)


def test_three_dimensional_grid():
    out = torch.zeros(5 * 4 * 3, dtype=torch.int32)
    grid_kernel[(5, 4, 3)](out)
    want = [x * 10000 + y * 100 + z for z in range(3) for y in range(4) for x in range(5)]
    assert out.tolist() == want


@triton.jit
def attention_kernel(q_ptr, k_ptr, v_ptr, out_ptr, n, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    """Flash attention: several carried tensors that read each other, two products, row statistics."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + rows[:, None] * D + d[None, :], mask=rows[:, None] < n, other=0.0)
    m = tl.full([BM], -float("inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for start in range(0, n, BN):
        cols = start + tl.arange(0, BN)
        k = tl.load(k_ptr + cols[None, :] * D + d[:, None], mask=cols[None, :] < n, other=0.0)
        s = tl.where(cols[None, :] <= rows[:, None], tl.dot(q, k) * scale, -float("inf"))
        new = tl.maximum(m, tl.max(s, 1))
        alpha = tl.exp(m - new)
        p = tl.exp(s - new[:, None])
        v = tl.load(v_ptr + cols[:, None] * D + d[None, :], mask=cols[:, None] < n, other=0.0)
        acc = tl.dot(p, v, acc * alpha[:, None])
        total = total * alpha + tl.sum(p, 1)
        m = new
    tl.store(out_ptr + rows[:, None] * D + d[None, :], acc / total[:, None], mask=rows[:, None] < n)


@pytest.mark.parametrize("n", [1, 64, 100, 333])
def test_causal_attention(n):
    q, k, v = (torch.randn(n, 32) for _ in range(3))
    out = torch.empty(n, 32)
    attention_kernel[(triton.cdiv(n, 32),)](q, k, v, out, n, 0.17, BM=32, BN=16, D=32)
    want = torch.nn.functional.scaled_dot_product_attention(q.double()[None], k.double()[None], v.double()[None],
                                                            is_causal=True, scale=0.17)[0]
    assert check.error(out, want) < 2e-6


# --- refusals --------------------------------------------------------------------------------------------------------


def test_what_a_users_signal_handler_raises_is_no_bug_of_ours(monkeypatch, tmp_path):
    """One that limits the time that something takes may run while a kernel is compiled."""
    defined = {}
    exec(compile("def handler(*_):\n    raise OSError('time is up')", tmp_path / "user.py", "exec"), defined)  # noqa: S102  (code of no file of ours)
    exec(compile("def wrong(*_):\n    return [][0]", sys.modules[Kernel.__module__].__file__, "exec"), defined)  # noqa: S102  (and of one)
    module = reader.parse(elementwise("%r = math.exp %v0 : tensor<64xf32>", ["f32"], "f32"))
    monkeypatch.setattr(Kernel, "write", defined["handler"])
    with pytest.raises(OSError, match="time is up"):
        lower_module(module, targets.native())
    monkeypatch.setattr(Kernel, "write", defined["wrong"])
    with pytest.raises(CompileError, match="this is a bug in triport .IndexError"):
        lower_module(module, targets.native())


def test_what_is_not_covered_is_named(tmp_path):
    text = elementwise("%r = math.frobnicate %v0 : tensor<64xf32>", ["f32"], "f32").replace(
        "math.frobnicate %v0 : tensor<64xf32>", 'math.frobnicate %v0 : tensor<64xf32> loc("kernel.py":7:1)')
    with pytest.raises(CompileError) as e:
        lower_module(reader.parse(text), targets.native())
    message = str(e.value)
    assert "math.frobnicate" in message and "kernel.py:7" in message and "target native" in message and "kernel k" in message


def test_a_kernel_argument_elsewhere_is_refused():
    with pytest.raises(Exception, match="'x_ptr' is a tensor on meta; it takes tensors in CPU memory"):
        vector_add[(1,)](torch.ones(4, device="meta"), torch.ones(4), torch.ones(4), 4, BLOCK=16)


def test_a_gluon_kernel_is_refused_by_its_name():
    gluon = pytest.importorskip("triton.experimental.gluon")
    kernel = gluon.jit(vector_add.fn)  # nothing of it is looked at
    x = torch.ones(16)
    with pytest.raises(CompileError, match="a Gluon kernel .* on a CPU run kernels in Triton's own language"):
        kernel[(1,)](x, x, x, 16, BLOCK=16)


@pytest.mark.parametrize("text", ["", "module {}", "module { tt.func public @k() { %x = arith.addi %y, %y : i32 tt.return } }",
                                  "module { tt.func public @k(%a: i32) {", "module { tt.func public @k() { %a:2 = ub.poison : i32 } }",
                                  "\x00\xff", "module { tt.func public @k(%a: tensor<4x) { tt.return } }"])
def test_reader_refuses_broken_text(text):
    with pytest.raises(CompileError):
        reader.parse(text)


def test_reader_survives_mutation(seed):
    """Damaged text is read or refused, never a crash of another kind."""
    rng = np.random.default_rng(seed)
    good = elementwise(f"%r = arith.addf %v0, %v1 {same('f32')}", ["f32", "f32"], "f32")
    for _ in range(300):
        chars = list(good)
        for _ in range(rng.integers(1, 4)):
            at = rng.integers(0, len(chars))
            kind = rng.integers(0, 3)
            if kind == 0:
                del chars[at]
            elif kind == 1:
                chars.insert(at, rng.choice(list("{}()<>%:=,#\" x1")))
            else:
                chars[at] = rng.choice(list("{}()<>%:=,#\" x1"))
        try:
            lower_module(reader.parse("".join(chars)), targets.get("x86-64-v3"))
        except CompileError:
            pass


def test_unknown_target():
    with pytest.raises(CompileError, match="unknown target 'spacemit-x61'; did you mean 'spacemit-x60'"):
        targets.get("spacemit-x61")


# --- targets ---------------------------------------------------------------------------------------------------------

def test_expressions_beyond_any_stack():
    """Of more operations, each of the one before, than the compiler follows."""
    n = 30_000
    body = "\n".join(f"%x{k + 1} = arith.addf %{f'x{k}' if k else 'v0'}, %v0 : tensor<64xf32>" for k in range(n))
    text = elementwise(f"{body}\n%r = arith.negf %x{n} : tensor<64xf32>", ["f32"], "f32")
    with pytest.raises(CompileError, match=r"kernel k \(target x86-64-v3\): its expressions are nested over 10,000 operations deep; unroll less"):
        lower_module(reader.parse(text), targets.get("x86-64-v3"))


#: ISA -> a product of whole vectors, added to others or not
VECTOR = {"SSE4.2": r"\tmulps\s+.*%xmm", "AVX2": r"v(mul|fn?m(add|sub)\d+)ps\s+.*%ymm", "AVX-512": r"v(mul|fn?m(add|sub)\d+)ps\s+.*%zmm",
          "NEON": r"fm(ul|la|ls)\s+v\d+\.4s", "RVV": r"vf(mul|n?m(acc|add|sac|sub))\.v[vf]", "scalar": r"f(mul|madd)\.s"}


@pytest.mark.parametrize("name", targets.TARGETS)
def test_every_target_makes_vector_code(name):
    row = targets.get(name)
    text = elementwise("%r = arith.mulf %v0, %v1 : tensor<1024xf32>", ["f32", "f32"], "f32", 1024)
    lowered = lower_module(reader.parse(text), row)
    _, asm, obj = llvm.compile_ir(lowered.text, row)
    assert re.search(VECTOR[row.isa], asm), asm
    assert obj[:4] == b"\x7fELF"


@pytest.mark.parametrize("name", targets.TARGETS)
def test_every_target_compiles_every_kernel(name):
    """Softmax, dropout and attention for each row: code of its own vectors, without calls of libm."""
    from triton.compiler import ASTSource
    for kernel, sig, const in (
        (fused_softmax, {"out": "*fp32", "inp": "*bf16", "in_stride": "i32", "out_stride": "i32", "n_rows": "i32",
                         "n_cols": "i32", "BLOCK": "constexpr", "num_stages": "constexpr"}, {(6,): 1024, (7,): 2}),
        (seeded_dropout, {"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32", "p": "fp32", "seed": "i32",
                          "BLOCK": "constexpr"}, {(5,): 256}),
        (attention_kernel, {"q_ptr": "*fp32", "k_ptr": "*fp32", "v_ptr": "*fp32", "out_ptr": "*fp16", "n": "i32",
                            "scale": "fp32", "BM": "constexpr", "BN": "constexpr", "D": "constexpr"},
         {(6,): 64, (7,): 64, (8,): 64})):
        k = triton.compile(ASTSource(kernel, sig, const), target=GPUTarget("cpu", name, 0))
        assert not re.search(r"\b(expf|exp2f|__truncsfbf2|__extendbfsf2)\b", k.asm["asm"]), (name, kernel)
        assert re.search(VECTOR[targets.TARGETS[name].isa], k.asm["asm"]), (name, kernel)


def test_compile_effort_does_not_grow_with_the_block():
    """The same code for 64 and 4096 elements, up to constants: instructions, not seconds, so that noise has no say."""
    sizes = {}
    for block in (64, 1024, 4096):
        k = vector_add.warmup(torch.empty(8), torch.empty(8), torch.empty(8), 8, BLOCK=block, grid=(1,))
        sizes[block] = len([line for line in k.asm["asm"].split("\n") if line.startswith("\t") and line[1] != "."])
    assert sizes[4096] <= 1.2 * sizes[1024] <= 1.5 * 1.2 * sizes[64], sizes


def test_gpu_options_change_nothing():
    x = torch.ones(64)
    a = vector_add[(1,)](x, x, torch.empty(64), 64, BLOCK=64)
    b = vector_add[(1,)](x, x, torch.empty(64), 64, BLOCK=64, num_warps=8, num_stages=3)
    assert a.hash == b.hash


@triton.jit
def rows_kernel(x_ptr, w_ptr, out_ptr, stats_ptr, M, N, KIND: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    r, c = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BN)
    mask = (r[:, None] < M) & (c[None, :] < N)
    ptrs = r[:, None] * N + c[None, :]
    x = tl.load(x_ptr + ptrs, mask=mask, other=-float("inf") if KIND == "softmax" else 0.0).to(tl.float32)
    if KIND == "softmax":
        top = tl.max(x, 1)
        e = tl.exp(x - top[:, None])
        total = tl.sum(e, 1)
        y = e / total[:, None]
    elif KIND == "norm":
        top = tl.sum(x, 1) / N
        d = tl.where(mask, x - top[:, None], 0.0)
        total = tl.sum(d * d, 1) / N
        y = d * (1 / tl.sqrt(total + 1e-5))[:, None] * tl.load(w_ptr + c, mask=c < N, other=0.0)[None, :]
    else:  # results that meet each other's rows: what must not be fused, or not that way
        top = tl.sum(x, 1)
        total = tl.sum(x * tl.sum(top), 1)
        y = x + tl.max(total, 0) - tl.sum(tl.where(r == 0, top, 0.0), 0)
    tl.store(out_ptr + ptrs, y.to(out_ptr.dtype.element_ty), mask=mask)
    tl.store(stats_ptr + r, top, mask=r < M)
    tl.store(stats_ptr + M + r, total, mask=r < M)


@pytest.mark.parametrize("kind", ["softmax", "norm", "crossed"])
@pytest.mark.parametrize("m,n", [(1, 1), (16, 64), (37, 100), (64, 3), (5, 257)])
@pytest.mark.parametrize("dtype,bound", [(torch.float32, 3e-6), (torch.bfloat16, 8e-3)])
@pytest.mark.parametrize("in_place", [False, True])
def test_row_passes(kind, m, n, dtype, bound, in_place):
    x, w = (torch.randn(m, n) + 0.5).to(dtype), torch.randn(n)
    view, whole = check.guarded((m, n), dtype)
    view.copy_(x)
    stats = torch.empty(2 * m)
    bm = triton.next_power_of_2(m) if kind == "crossed" else 16
    rows_kernel[(triton.cdiv(m, bm),)](view if in_place else x, w, view, stats, m, n, KIND=kind, BM=bm,
                                       BN=triton.next_power_of_2(n))
    d = x.double()
    if kind == "softmax":
        want, top, total = torch.softmax(d, 1), d.amax(1), torch.exp(d - d.amax(1, keepdim=True)).sum(1)
    elif kind == "norm":
        top, total = d.mean(1), d.var(1, unbiased=False)
        want = (d - top[:, None]) / torch.sqrt(total + 1e-5)[:, None] * w.double()
    else:
        top = d.sum(1)
        total = (d * top.sum()).sum(1)
        padded = torch.cat([total, torch.zeros(bm - m, dtype=torch.float64)])
        want = d + padded.max() - top[0]
    scale = 1 + (total.abs().max() if kind == "crossed" else 0)
    assert (view.double() - want).norm() <= bound * (want.norm() + scale) + 1e-6
    assert (stats[:m].double() - top).norm() <= 1e-5 * (top.norm() + scale + n)
    assert (stats[m:].double() - total).norm() <= 1e-5 * (total.norm() + scale + n)
    assert check.guards_hold(whole)


def test_row_maximum_of_nan():
    x = torch.randn(20, 40)
    x[3], x[5, 7], x[8, :39] = float("nan"), float("nan"), float("nan")
    x[9] = -float("inf")
    out, stats = torch.empty_like(x), torch.empty(40)
    rows_kernel[(2,)](x, x, out, stats, 20, 40, KIND="softmax", BM=16, BN=64)
    torch.testing.assert_close(out, torch.softmax(x, 1), equal_nan=True)
    known = torch.isfinite(x).any(1)
    want = torch.where(torch.isnan(x), -float("inf"), x).amax(1)
    assert torch.equal(stats[:20][known], want[known])


@triton.jit
def between_kernel(x_ptr, y_ptr, out_ptr, late_ptr, N, KIND: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """A load that stands between a row reduction and the store that is carried out row by row with it."""
    offs = tl.arange(0, BM)[:, None] * N + tl.arange(0, BN)[None, :]
    x = tl.load(x_ptr + offs)
    top = tl.max(x, 1)
    total = tl.sum(tl.exp(x - top[:, None]), 1)
    y = tl.load(y_ptr + offs)
    tl.store(out_ptr + offs, (y if KIND == "now" else x) + (top + total)[:, None])
    if KIND == "late":
        tl.store(late_ptr + offs, y)


@pytest.mark.parametrize("kind", ["now", "late"])
@pytest.mark.parametrize("shift", [-3, -1, 0, 1, 3])
@pytest.mark.parametrize("same", [False, True])
def test_load_between_fused_rows(kind, shift, same):
    """y is read from where the store writes, some rows off: every element before any is written."""
    m, n = 16, 32
    buffer = torch.randn(m + 8, n)
    x = torch.randn(m, n)
    y, out = buffer[4 + shift:4 + shift + m], buffer[4:4 + m]
    late, before = torch.empty(m, n), y.clone()
    d = x.double()
    first = d if kind == "late" else before.double()
    want = first + (d.amax(1) + torch.exp(d - d.amax(1, keepdim=True)).sum(1))[:, None]
    if same:  # through one pointer, at a distance that the compiler sees
        one_pointer_kernel[(1,)](x, buffer, late, n, KIND=kind, SHIFT=shift, BM=m, BN=n)
    else:
        between_kernel[(1,)](x, y, out, late, n, KIND=kind, BM=m, BN=n)
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)
    if kind == "late":
        assert torch.equal(late, before)


@triton.jit
def one_pointer_kernel(x_ptr, buf_ptr, late_ptr, N, KIND: tl.constexpr, SHIFT: tl.constexpr, BM: tl.constexpr,
                       BN: tl.constexpr):
    offs = tl.arange(0, BM)[:, None] * N + tl.arange(0, BN)[None, :]
    x = tl.load(x_ptr + offs)
    top = tl.max(x, 1)
    total = tl.sum(tl.exp(x - top[:, None]), 1)
    y = tl.load(buf_ptr + (4 + SHIFT) * N + offs)
    tl.store(buf_ptr + 4 * N + offs, (y if KIND == "now" else x) + (top + total)[:, None])
    if KIND == "late":
        tl.store(late_ptr + offs, y)


@triton.jit
def regrouped_after_mask_kernel(x_ptr, y_ptr, z_ptr, cols, M: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    mask = (tl.arange(0, N)[None, :] < cols) & (at >= 0)
    e = tl.exp(tl.load(x_ptr + at))
    tl.store(y_ptr + at, e, mask=mask)
    tl.store(z_ptr + at, tl.trans(tl.reshape(e, (N, M))), mask=mask)


@pytest.mark.parametrize("cols", [0, 1, 3, 4, 7, 8])
def test_values_that_a_masked_store_keeps_are_whole_for_who_reads_them_elsewhere(cols, seed):
    """The second store has the same mask, and reads other elements behind it."""
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(seed))
    y, z = torch.zeros(32, 8), torch.zeros(32, 8)
    regrouped_after_mask_kernel[(1,)](x, y, z, cols, 32, 8)
    e, inside = x.exp(), torch.arange(8) < cols
    assert torch.allclose(y, torch.where(inside, e, 0)) and torch.allclose(z, torch.where(inside, e.reshape(8, 32).T, 0))


@triton.jit
def rows_and_columns_kernel(x_ptr, rows_ptr, columns_ptr, out_ptr, cols, N: tl.constexpr):
    j = tl.arange(0, N)
    at = j[:, None] * N + j[None, :]
    e = tl.exp(tl.minimum(tl.load(x_ptr + at), 1.5))
    along, across = tl.sum(e, axis=1), tl.sum(tl.trans(e), axis=1)
    total = along
    for _ in range(3):
        total += along
    tl.store(out_ptr + at, e, mask=(j[None, :] < cols) & (at >= 0))
    tl.store(rows_ptr + j, total)
    tl.store(columns_ptr + j, across)


@pytest.mark.parametrize("cols", [0, 5, 16])
def test_rows_fused_with_a_reduction_that_reads_other_rows(cols, seed):
    """What the first keeps row by row is not there yet for the second."""
    x = torch.randn(16, 16, generator=torch.Generator().manual_seed(seed))
    rows, columns, out = torch.zeros(16), torch.zeros(16), torch.zeros(16, 16)
    rows_and_columns_kernel[(1,)](x, rows, columns, out, cols, 16)
    e = x.clamp(max=1.5).exp()
    assert torch.allclose(rows, 4 * e.sum(1)) and torch.allclose(columns, e.sum(0))
    assert torch.allclose(out, torch.where(torch.arange(16) < cols, e, 0))
