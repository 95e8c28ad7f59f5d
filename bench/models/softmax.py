"""softmax of rows four ways: written out in torch's operations, torch's own, torch.compile of what was written out, our kernels."""

from __future__ import annotations

import torch

from ... import ops
from . import common
from .variants import Variants, of_size

SIZES = {"small": ((33, 65),), "main": ((512, 512), (1823, 781), (4096, 2048))}


def manual(x: torch.Tensor) -> torch.Tensor:
    """The formula, one operation of torch's after the other; less the maximum, so that no exponential overflows."""
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def studies(size: str, device: str, seed: int):
    for shape in of_size(SIZES, size):
        v = Variants(device)
        v.add("manual", manual)
        v.add("torch", lambda x: torch.softmax(x, -1))
        v.compiled(manual)
        v.ours(lambda x: ops.softmax(x, -1))
        yield common.of_op("softmax", (shape,), device, seed, v, dim=-1)


def steps(size: str, device: str, seed: int) -> dict:
    return next(studies(size, device, seed)).steps()


def add(parser):
    pass


def run(args) -> int:
    return common.measure(studies(args.size, args.device, args.seed), args)[0]
