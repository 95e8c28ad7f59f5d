"""x * x in torch three ways (torch.square, a product, a power), compiled, and by our kernels."""

from __future__ import annotations

import torch

from ... import ops
from . import common
from .variants import Variants, of_size

SIZES = {"small": ((33, 65),), "main": ((512, 512), (1823, 781), (4096, 2048))}


def studies(size: str, device: str, seed: int):
    for shape in of_size(SIZES, size):
        v = Variants(device)
        v.add("torch", torch.square)
        v.add("x * x", lambda x: x * x)
        v.add("x ** 2", lambda x: x**2)
        v.ours(ops.square)
        yield common.of_op("square", (shape,), device, seed, v)


def steps(size: str, device: str, seed: int) -> dict:
    return next(studies(size, device, seed)).steps()


def add(parser):
    pass


def run(args) -> int:
    return common.measure(studies(args.size, args.device, args.seed), args)[0]
