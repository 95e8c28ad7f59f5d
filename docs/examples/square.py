"""The first kernel of every lecture, as it is written for a GPU: nothing of triport is imported, and on CPU tensors it runs.

    python docs/examples/square.py
    triport asm docs/examples/square.py:square_kernel --target sm_80 --stage ptx \\
        --arg "x_ptr=fp32[16]" --arg "out_ptr=fp32[16]" --arg n=1024 --const BLOCK=1024
"""

import torch
import triton
import triton.language as tl


@triton.jit
def square_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, x * x, mask=mask)


def square(x):
    out = torch.empty_like(x)
    square_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
    return out


if __name__ == "__main__":
    x = torch.randn(1823, 781)
    torch.testing.assert_close(square(x), x * x)
    print("right on", x.device)
