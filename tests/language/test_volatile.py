"""Volatile loads, with which a program waits for what another one stores."""

import re
import subprocess
import sys

import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget


@triton.jit
def waiting_kernel(x_ptr, flag_ptr, out_ptr, n, BLOCK: tl.constexpr, VECTOR: tl.constexpr, MASKED: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    if tl.program_id(0) == 0:
        acc = tl.zeros((BLOCK,), tl.float32)
        for k in range(n):
            acc += tl.load(x_ptr + offs) * k
        tl.store(out_ptr, tl.sum(acc))
        tl.atomic_xchg(flag_ptr, 1)
    else:
        if VECTOR:
            mask = offs < 3 if MASKED else None
            while tl.max(tl.load(flag_ptr + offs, mask, volatile=True)) == 0:
                pass
        else:
            while tl.load(flag_ptr, volatile=True) == 0:
                pass
        tl.store(out_ptr + 1, tl.load(out_ptr))


def wait(vector: bool, masked: bool):
    x, flag, out = torch.ones(256), torch.zeros(256, dtype=torch.int32), torch.zeros(2)
    waiting_kernel[(2,)](x, flag, out, 100000, BLOCK=256, VECTOR=vector, MASKED=masked)
    assert out[0] > 0 and out[1] == out[0], "what was stored before the flag is seen behind it"


@pytest.mark.parametrize("vector, masked", [(False, False), (True, False), (True, True)])
def test_a_program_sees_what_another_one_stores(vector, masked):
    """In a process of its own, with two threads: where the load is carried out once it waits forever."""
    text = f"import torch; torch.set_num_threads(2); import test_volatile; [test_volatile.wait({vector}, {masked}) for _ in range(5)]"
    done = subprocess.run([sys.executable, "-c", text], cwd=__file__.rpartition("/")[0], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("target", ["x86-64-v3", "aarch64", "rv64gcv"])
def test_on_any_target_nothing_goes_ahead_of_it(target):
    source = triton.compiler.ASTSource(waiting_kernel, {"x_ptr": "*fp32", "flag_ptr": "*i32", "out_ptr": "*fp32", "n": "i32"}, {"BLOCK": 256, "VECTOR": False, "MASKED": False})
    made = triton.compile(source, target=GPUTarget("cpu", target, 0))
    assert re.search(r"load volatile i32.*\n\s+fence acquire", made.asm["llir"])
