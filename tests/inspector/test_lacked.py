"""What a target has no vector instructions for: each element goes by itself, is counted so, and the reason is named."""

import json

import pytest
from triport.tools import __main__ as command

KERNELS = '''
import triton
import triton.language as tl

@triton.jit
def high_halves(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x_ptr + i, mask=i < n)
    tl.store(out_ptr + i, tl.umulhi(v, v), mask=i < n)

@triton.jit
def squares(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x_ptr + i, mask=i < n)
    tl.store(out_ptr + i, v * v + 7, mask=i < n)

@triton.jit
def whole(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n).to(tl.int64), mask=i < n)
'''
PRODUCTS = "the high half of a product of 64-bit integers"


def loops(capsys, tmp_path, name, target, kind):
    path = tmp_path / "kernels_of_lacks.py"
    path.write_text(KERNELS)
    assert command.main(["asm", f"{path}:{name}", "--target", target, "--arg", f"x_ptr={kind}[16]", "--arg", "out_ptr=i64[16]", "--arg", "n=i32", "--const", "BLOCK=1024", "--json"]) == 0
    report, = json.loads(capsys.readouterr().out)
    return report, [r for r in report["loops"] if r["hot"]]


@pytest.mark.parametrize("name,target,kind,what", [
    ("high_halves", "x86-64-v4", "i64", PRODUCTS), ("high_halves", "x86-64-v3", "i64", PRODUCTS), ("high_halves", "aarch64", "i64", PRODUCTS),
    ("squares", "aarch64", "i64", "a product of 64-bit integers"), ("whole", "x86-64-v3", "fp32", "64-bit integers of floats")])
def test_lacks_are_named_and_counted(capsys, tmp_path, name, target, kind, what):
    report, hot = loops(capsys, tmp_path, name, target, kind)
    assert report["verdict"] == "PARTLY" and hot
    for r in hot:
        assert r["verdict"] in ("PARTLY", "SCALAR"), r["label"]
        first = r["causes"][0]
        assert first["name"] == "no vector instruction" and what in first["text"] and target in first["text"]


@pytest.mark.parametrize("name,target,kind", [("high_halves", "rv64gcv", "i64"), ("squares", "x86-64-v4", "i64"), ("squares", "x86-64-v3", "i64"), ("whole", "x86-64-v4", "fp32"), ("whole", "aarch64", "fp32")])
def test_what_vectors_have_is_no_lack(capsys, tmp_path, name, target, kind):
    report, hot = loops(capsys, tmp_path, name, target, kind)
    assert report["verdict"] == "VECTOR" and not any(c["name"] == "no vector instruction" for r in hot for c in r["causes"])
