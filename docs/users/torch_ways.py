"""torch's own ways of using an op, with triport's: export, vmap and derivatives.

`python docs/users/torch_ways.py [PART OF A NAME ...]` runs them and holds each result against float64."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
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


WAYS = {
    "torch.export, a size left open": exported,
    "torch.export, decomposed": export_decomposed,
    "vmap: both, one, nested": mapped,
    "torch.func.grad, and for each sample": gradients,
    "torch.func.jvp, Hessian times vector": tangents,
}

if __name__ == "__main__":
    sys.exit(checked.main(WAYS))
