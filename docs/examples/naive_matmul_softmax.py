"""softmax(a @ b, dim=0) in one naive kernel: one tl.dot of a whole 128 x 128 block, no loop over K. On a SpacemiT K1 a kernel like this ran without a
single vector instruction under another compiler; `triport asm` says what this one makes of it:

    triport asm docs/examples/naive_matmul_softmax.py:matmul_softmax_kernel --target spacemit-x60 \\
        --arg a_ptr=fp32[16] --arg b_ptr=fp32[16] --arg out_ptr=fp32[16] --const M=128 --const N=128 --const K=128
"""

import torch
import triton
import triton.language as tl


@triton.jit
def matmul_softmax_kernel(a_ptr, b_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows, cols, ks = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + rows[:, None] * K + ks[None, :])
    b = tl.load(b_ptr + ks[:, None] * N + cols[None, :])
    x = tl.dot(a, b)
    e = tl.exp(x - tl.max(x, axis=0)[None, :])
    tl.store(out_ptr + rows[:, None] * N + cols[None, :], e / tl.sum(e, axis=0)[None, :])


if __name__ == "__main__":
    a, b = torch.randn(128, 128), torch.randn(128, 128)
    out = torch.empty(128, 128)
    matmul_softmax_kernel[(1,)](a, b, out, 128, 128, 128)
    print("largest difference from torch:", (out - torch.softmax(a @ b, 0)).abs().max().item())
