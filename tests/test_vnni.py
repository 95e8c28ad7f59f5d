"""Products of int8 by VNNI, four neighbours along K at once: by the instruction where this CPU has it, else by LLVM IR that does what Intel's manual says of VPDPBUSD."""

import dataclasses
import re

import pytest
import torch
import triton
import triton.language as tl
from test_amx import GUARD, SIZES, by_columns, compiled_here, computed_kernel, operands, product, product_kernel, pytestmark, right, right_of_computed  # noqa: F401  (the mark)
from triport.backends.cpu.emit import module
from triport.backends.cpu.llvm import targets
from triport.backends.cpu.llvm.host import features

NAMES = {256: "avxvnni", 512: "avx512vnni"}


def in_its_place(bits: int) -> str:
    """A function of LLVM IR that adds up four products of a byte without and one with a sign in each of the lanes of a vector."""
    n = bits // 32
    ints, words, given = f"<{n} x i32>", f"<{4 * n} x i32>", f"<{4 * n} x i8>"
    lines = [f"%u = bitcast {ints} %a to {given}", f"%s = bitcast {ints} %b to {given}", f"%x = zext {given} %u to {words}", f"%y = sext {given} %s to {words}", f"%p0 = mul {words} %x, %y"]
    for k in range(4):
        lanes = ", ".join(f"i32 {4 * i + k}" for i in range(n))
        lines += [f"%q{k} = shufflevector {words} %p0, {words} poison, <{n} x i32> <{lanes}>", f"%s{k} = add {ints} {f'%s{k - 1}' if k else '%acc'}, %q{k}"]
    return f"define internal {ints} @vnni_{bits}({ints} %acc, {ints} %a, {ints} %b) alwaysinline {{\n" + "\n".join(lines) + f"\nret {ints} %s3\n}}\n"


@pytest.fixture(params=["instruction", "in its place"])
def vnni(request, monkeypatch, tmp_path):
    """Kernels are compiled for a row with it. Its answer: how many instructions of its kind the kernels had."""
    row = targets.native()
    bits = 512 if row.vector_bits == 512 else 256
    if request.param == "instruction" and not features().get(NAMES[bits]):
        pytest.skip("this CPU has no VNNI: another machine has it")
    given = targets._AVX512_VNNI if bits == 512 else targets._VNNI
    # whatever is cached where was not compiled for this row
    made = dataclasses.replace(row, isa=f"VNNI of {tmp_path}, {request.param}", vector_bits=bits, products=(given, *(p for p in row.products if p.takes != "i8")))
    lower, counts = module.lower_module, []

    def lowered(*args, **kwargs):
        found = lower(*args, **kwargs)
        name = given.intrinsic
        counts.append(len(re.findall(rf"call [^@]*@{re.escape(name)}\(", found.text)))
        if request.param == "instruction":
            return found
        text = re.sub(rf"declare [^\n]*@{re.escape(name)}\([^\n]*\n", "", found.text).replace(f"@{name}(", f"@vnni_{bits}(")
        return dataclasses.replace(found, text=text + in_its_place(bits))

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(targets, "native", lambda: made)
    monkeypatch.setattr(module, "lower_module", lowered)
    with compiled_here(product_kernel, computed_kernel):
        yield counts


@pytest.mark.parametrize("layout", ["rows", "a by columns", "b by columns"])
@pytest.mark.parametrize("blocks", [(32, 32, 64), (64, 64, 16), (128, 128, 64)])
@pytest.mark.parametrize("m,n,k", [*SIZES, (130, 140, 250), (7, 300, 515)])
def test_products(m, n, k, blocks, layout, vnni, seed):
    a, b = operands(torch.int8, m, n, k, seed)
    a, b = by_columns(a) if layout == "a by columns" else a, by_columns(b) if layout == "b by columns" else b
    assert right(a, b, blocks) and sum(vnni) > 0


def test_operands_that_are_computed(vnni, seed):
    assert right_of_computed(seed) and sum(vnni) > 0


@pytest.mark.parametrize("x,y", [(-128, -128), (127, 127), (-128, 127), (127, -128), (0, -128), (-128, 0)])
def test_the_widest_numbers(x, y, vnni):
    """A byte without a sign times one with: 255 x -128 a term."""
    a, b = torch.full((64, 512), x, dtype=torch.int8), torch.full((512, 64), y, dtype=torch.int8)
    out, _ = product(a, b, (64, 64, 64), torch.int32)
    assert (out == 512 * x * y).all() and sum(vnni) > 0


@pytest.mark.parametrize("host, row, wanted", [
    ({"avx512vnni": True}, "x86-64-v4", ["vpdpbusd.512", "pmaddw.d.512"]), ({}, "x86-64-v4", ["pmaddw.d.512"]), ({"avxvnni": True}, "x86-64-v3", ["vpdpbusd.256", "pmadd.wd"]),
    ({"avx512vnni": True, "avx512bf16": True}, "x86-64-v4", ["dpbf16ps.512", "vpdpbusd.512", "pmaddw.d.512"]), ({}, "x86-64-v3", ["pmadd.wd"])])
def test_who_has_it(host, row, wanted, monkeypatch):
    from triport.backends.cpu.llvm import host as of_host
    monkeypatch.setattr(of_host, "features", lambda: host)
    monkeypatch.setattr(targets, "widest", lambda machine, has: targets.TARGETS[row])
    found = targets.native.__wrapped__()
    assert len(found.products) == len(wanted) and all(p.intrinsic.endswith(w) for p, w in zip(found.products, wanted))


@triton.jit
def chain_kernel(a_ptr, b_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PIECES: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a, b = tl.load(a_ptr + m[:, None] * K + k[None, :]), tl.load(b_ptr + k[:, None] * N + n[None, :])
    acc = tl.zeros((M, N), tl.int32)
    for p in tl.static_range(PIECES):
        acc = tl.dot((a ^ p).to(tl.int8), b, acc, out_dtype=tl.int32)
    tl.store(out_ptr + m[:, None] * N + n[None, :], acc)


@pytest.mark.parametrize("pieces", [1, 2, 3, 4])
@pytest.mark.parametrize("k", [1, 2, 4, 8, 16])
def test_pieces_that_are_fewer_than_an_instruction_takes(k, pieces, seed):
    """Several products that are carried out at once: it is the terms of each that fill a lane."""
    a, b = operands(torch.int8, 16, 32, k, seed)
    out = torch.full((16 * 32 + 64,), GUARD, dtype=torch.int32)
    chain_kernel[(1,)](a, b, out, M=16, N=32, K=k, PIECES=pieces)
    want = sum((a ^ p).double() @ b.double() for p in range(pieces))
    assert torch.equal(out[:512].view(16, 32).double(), want) and (out[512:] == GUARD).all()


@triton.jit
def batch_kernel(a_ptr, b_ptr, out_ptr, B: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i, m, n, k = tl.arange(0, B)[:, None, None], tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + i * M * K + m[None, :, None] * K + k[None, None, :])
    b = tl.load(b_ptr + i * K * N + k[None, :, None] * N + n[None, None, :])
    tl.store(out_ptr + i * M * N + m[None, :, None] * N + n[None, None, :], tl.dot(a, b, out_dtype=tl.int32))


@pytest.mark.parametrize("n", [4, 8, 16, 32])
@pytest.mark.parametrize("batch", [1, 2])
def test_batches(batch, n, seed):
    """Of one matrix, too, whose accumulators would be stored from registers if it had no batch."""
    make = torch.Generator().manual_seed(seed)
    a, b = (torch.randint(-128, 128, s, generator=make, dtype=torch.int8) for s in ((batch, 64, 32), (batch, 32, n)))
    out = torch.full((batch * 64 * n + 64,), GUARD, dtype=torch.int32)
    batch_kernel[(1,)](a, b, out, B=batch, M=64, N=n, K=32)
    assert torch.equal(out[:-64].view(batch, 64, n).double(), a.double() @ b.double()) and (out[-64:] == GUARD).all()
