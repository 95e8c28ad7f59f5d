"""Rounds of a kernel's own loops, which machine code leaves open, from its TTIR and the arguments that are told."""

import json

import pytest
from triport.tools import __main__ as command

KERNELS = '''
import triton
import triton.language as tl

@triton.jit
def mixed(y_ptr, i_ptr, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(y_ptr + o, tl.load(y_ptr + o) * 2.0)
    s = 0
    for i in range(n):
        s = (s * 31 + tl.load(i_ptr + i)) & 0xffff
        tl.store(i_ptr + i, s)

@triton.jit
def sums(x_ptr, out_ptr, m, n, BLOCK: tl.constexpr):
    for r in range(m):
        acc = tl.zeros([BLOCK], tl.float32)
        for o in range(0, n, BLOCK):
            acc += tl.load(x_ptr + r * n + o + tl.arange(0, BLOCK))
        tl.store(out_ptr + r * BLOCK + tl.arange(0, BLOCK), acc)
'''


HALVES = '''
import triton
import triton.language as tl

@triton.jit
def both(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    for k in range(0, n, BLOCK):
        i = k + tl.arange(0, BLOCK)
        tl.store(out_ptr + i, tl.load(x_ptr + i) * 2)
    s = 0.0
    for i in range(n):
        s = s * 0.5 + tl.load(out_ptr + i)
    tl.store(out_ptr, s)

@triton.jit
def half(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    for k in range(0, n // 2, BLOCK):
        i = k + tl.arange(0, BLOCK)
        tl.store(out_ptr + i, tl.load(x_ptr + i) * 2)
    for i in range(n // 2, n):
        tl.store(out_ptr + i, tl.load(x_ptr + i) * 3)

if __name__ == "__main__":
    import sys
    import torch
    n = int(sys.argv[1])
    x = torch.zeros(n + 1024)
    for times in range(3):
        both[(1,)](x, torch.zeros(n + 1024), n, 1024)
    both[(1,)](x, torch.zeros(n + 1024), 0, 1024)
'''


def report(capsys, tmp_path, name, target, *args):
    path = tmp_path / "kernels_with_loops.py"
    path.write_text(KERNELS)
    assert command.main(["asm", f"{path}:{name}", "--target", target, *args, "--json"]) == 0
    return json.loads(capsys.readouterr().out)[0]


MIXED = ["--arg", "y_ptr=fp32[16]", "--arg", "i_ptr=i32[16]", "--const", "BLOCK=262144"]


@pytest.mark.parametrize("target", ["x86-64-v3", "neoverse-v2", "spacemit-x60"])
def test_an_argument_decides_what_weighs(capsys, tmp_path, target):
    few, many = (report(capsys, tmp_path, "mixed", target, *MIXED, "--arg", f"n={n}") for n in (4, 1000003))
    assert few["share"] > 0.9
    assert many["share"] < 0.5 and many["verdict"] != "VECTOR"
    assert 1000003 in [loop["trips"] for loop in many["loops"]] and 4 in [loop["trips"] for loop in few["loops"]]


def test_loops_in_loops(capsys, tmp_path):
    told = report(capsys, tmp_path, "sums", "x86-64-v3", "--arg", "x_ptr=fp32[16]", "--arg", "out_ptr=fp32[16]", "--arg", "m=9", "--arg", "n=640",
                  "--const", "BLOCK=64")
    trips = {(loop["depth"], loop["trips"]) for loop in told["loops"]}
    assert {d for d, n in trips if n == 9.0} & {2, 3}, trips  # within the loop over programs; LLVM may enter one at two places, for rows that are empty
    open_ = report(capsys, tmp_path, "sums", "x86-64-v3", "--arg", "x_ptr=fp32[16]", "--arg", "out_ptr=fp32[16]", "--arg", "m=i32", "--arg", "n=i32", "--const", "BLOCK=64")
    assert 9.0 not in {loop["trips"] for loop in open_["loops"]}


@pytest.mark.parametrize("kernel", ["both", "half"])
@pytest.mark.parametrize("target", ["x86-64-v3", "neoverse-v2", "spacemit-x60"])
def test_loops_to_one_bound_are_taken_together(capsys, tmp_path, target, kernel):
    """An argument that nobody told is one number for all loops that end at it: one by one is more rounds than a thousand at a time."""
    path = tmp_path / "halves.py"
    path.write_text(HALVES)
    given = ["asm", f"{path}:{kernel}", "--target", target, "--arg", "x_ptr=fp32[16]", "--arg", "out_ptr=fp32[16]", "--arg", "n=i32", "--const", "BLOCK=1024"]
    assert command.main([*given, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)[0]
    assert told["share"] < 0.5 and told["verdict"] != "VECTOR"
    assert command.main([*given, "--require", "vector>=0.95"]) == 1
    assert "requires" not in capsys.readouterr().err


def test_a_launch_says_how_often_loops_run(capfd, tmp_path):
    """The most frequent one."""
    path = tmp_path / "halves.py"
    path.write_text(HALVES)
    seen = {}
    for n in (4096, 262144):
        assert command.main(["asm", "--json", "--run", str(path), str(n)]) == 0
        kernel, = json.loads(capfd.readouterr().out)
        assert n in {loop["trips"] for loop in kernel["loops"]}, kernel["loops"]
        seen[n] = kernel["share"]
    assert seen[262144] <= seen[4096]
