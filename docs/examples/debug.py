"""Stopping inside a kernel: under TRITON_INTERPRET=1 it is Python, and pdb stops in it. Print a block's values, its shape, the program's number.

    printf 'p pid\\np offs\\np x\\nc\\n' | TRITON_INTERPRET=1 python docs/examples/debug.py

Compiled, gdb stops on the same line and shows the same variables (docs/debugging.md):

    TRITON_CPU_DEBUG=1 gdb -ex 'set breakpoint pending on' -ex 'break debug.py:24' -ex run -ex 'info locals' --args python docs/examples/debug.py
"""

import os

import torch
import triton
import triton.language as tl


@triton.jit
def square_kernel(x_ptr, out_ptr, n, STOP: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    offs = pid * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    if STOP:
        breakpoint()
    tl.store(out_ptr + offs, x * x, mask=offs < n)


if __name__ == "__main__":
    x = torch.arange(5.0)
    out = torch.empty_like(x)
    square_kernel[(1,)](x, out, 5, STOP=os.environ.get("TRITON_INTERPRET") == "1", BLOCK=8)
    print(out)
