"""torch's own ways of using an op, with triport's: export, vmap, derivatives, and products of int8 and fp8 by a user's kernel.

`python docs/users/torch_ways.py [PART OF A NAME ...]` runs them and holds each result against float64."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import triton
import triton.language as tl
from torch import nn
from torch.func import grad, jvp, vmap
from triport import ops

sys.path.insert(0, str(Path(__file__).parent))
import checked  # noqa: E402


class Block(nn.Module):
    """A layer, an activation and a softmax, by triport's ops."""

    def __init__(self, features: int):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(features, features) / features**.5), nn.Parameter(torch.randn(features))

    def forward(self, x):
        return ops.softmax(ops.gelu(ops.add_relu(ops.matmul(x, self.weight), self.bias)), -1)


def wanted(block: Block, x: torch.Tensor) -> torch.Tensor:
    """Block by torch in float64."""
    x = (x.double() @ block.weight.double() + block.bias.double()).relu()
    return nn.functional.gelu(x, approximate="tanh").softmax(-1)


def exported():
    """torch.export with a size that stays open; the ops are nodes of its graph."""
    block, rows = Block(33).eval(), torch.export.Dim("rows", min=2, max=999)
    program = torch.export.export(block, (torch.randn(5, 33),), dynamic_shapes=({0: rows},))
    called = {str(n.target) for n in program.graph.nodes if n.op == "call_function"}
    assert {f"triport.{op}.default" for op in ("matmul", "add_relu", "gelu", "softmax")} <= called, called
    pairs = []
    for n in (2, 77):
        x = torch.randn(n, 33)
        pairs.append((program.module()(x), wanted(block, x)))
    return pairs


def export_decomposed():
    """The same with decompositions to torch's core operators, which leave the ops whole."""
    block = Block(17).eval()
    x = torch.randn(9, 17)
    return [(torch.export.export(block, (x,)).run_decompositions().module()(x), wanted(block, x))]


def mapped():
    """vmap of a product over both arguments, over one, and within another vmap."""
    a, b, c = torch.randn(5, 7, 33), torch.randn(5, 33, 9), torch.randn(33, 9)
    deep = torch.randn(2, 5, 7, 33)
    return [(vmap(ops.matmul)(a, b), a.double() @ b.double()),
            (vmap(ops.matmul, in_dims=(0, None))(a, c), a.double() @ c.double()),
            (vmap(vmap(ops.matmul), in_dims=(0, None))(deep, b), deep.double() @ b.double())]


def gradients():
    """torch.func.grad, and vmap of it: a gradient for each sample."""
    w, x = torch.randn(33, 9), torch.randn(5, 7, 33)

    def loss(w, x, softmax=ops.softmax, matmul=ops.matmul):
        return softmax(matmul(x, w), -1).pow(2).sum()

    def by_torch(w, x):
        return loss(w, x, torch.softmax, torch.matmul)

    each = torch.stack([grad(by_torch)(w.double(), sample.double()) for sample in x])
    return [(grad(loss)(w, x[0]), each[0]), (vmap(grad(loss), in_dims=(None, 0))(w, x), each)]


def tangents():
    """torch.func.jvp, and forward over backward: a Hessian times a vector."""
    x, v = torch.randn(13, 33), torch.randn(13, 33)

    def by_torch(x):
        return nn.functional.gelu(x, approximate="tanh").softmax(-1)

    def by_ops(x):
        return ops.softmax(ops.gelu(x), -1)

    product = jvp(grad(lambda x: by_ops(x).pow(3).sum()), (x,), (v,))[1]
    return [*zip(jvp(by_ops, (x,), (v,)), jvp(by_torch, (x.double(),), (v.double(),))),
            (product, jvp(grad(lambda x: by_torch(x).pow(3).sum()), (x.double(),), (v.double(),))[1])]


@triton.jit
def scaled_matmul_kernel(a_ptr, b_ptr, a_scale_ptr, b_scale_ptr, c_ptr, M, N, K, ACC: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """c = (a @ b) * a_scale[:, None] * b_scale[None, :] of 8-bit a (M, K) and b (K, N), summed as ACC."""
    i, j = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), ACC)
    for begin in range(0, K, BK):
        k = begin + tl.arange(0, BK)
        a = tl.load(a_ptr + i[:, None] * K + k, mask=(i[:, None] < M) & (k < K), other=0.0)
        b = tl.load(b_ptr + k[:, None] * N + j, mask=(k[:, None] < K) & (j < N), other=0.0)
        acc = tl.dot(a, b, acc, out_dtype=ACC)
    scale = tl.load(a_scale_ptr + i, mask=i < M)[:, None] * tl.load(b_scale_ptr + j, mask=j < N)
    tl.store(c_ptr + i[:, None] * N + j, acc.to(tl.float32) * scale, mask=(i[:, None] < M) & (j < N))


def scaled_matmul(a, b, a_scale, b_scale):
    """float32 (M, N) of 8-bit a (M, K) and b (K, N), contiguous, with a scale for each row of a and each column of b."""
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty(M, N)
    acc = tl.int32 if a.dtype == torch.int8 else tl.float32
    scaled_matmul_kernel[(triton.cdiv(M, 32), triton.cdiv(N, 32))](a, b, a_scale, b_scale, c, M, N, K, ACC=acc, BM=32, BN=32, BK=64)
    return c


def quantised(dtype, most: float):
    """A quantised linear layer: rows and columns scaled into the 8-bit type's range; what the 8-bit numbers themselves give is the reference."""
    x, w = torch.randn(77, 133), torch.randn(133, 65)
    x_scale, w_scale = x.abs().amax(1) / most, w.abs().amax(0) / most
    a, b = x / x_scale[:, None], w / w_scale
    a, b = (t.round().to(dtype) if dtype == torch.int8 else t.to(dtype) for t in (a, b))
    return [(scaled_matmul(a, b, x_scale, w_scale), a.double() @ b.double() * x_scale.double()[:, None] * w_scale.double())]


WAYS = {
    "torch.export, a size left open": exported,
    "torch.export, decomposed": export_decomposed,
    "vmap: both, one, nested": mapped,
    "torch.func.grad, and for each sample": gradients,
    "torch.func.jvp, Hessian times vector": tangents,
    "int8 product, int32 sums": lambda: quantised(torch.int8, 127),
    "fp8 e4m3 product": lambda: quantised(torch.float8_e4m3fn, 448),
    "fp8 e5m2 product": lambda: quantised(torch.float8_e5m2, 57344),
}

if __name__ == "__main__":
    sys.exit(checked.main(WAYS))
