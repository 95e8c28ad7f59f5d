"""x * x in torch three ways (torch.square, a product, a power), compiled, and by our kernels."""

from __future__ import annotations

import torch

from ... import ops
from . import common
from .variants import Variants

SIZES = {"small": ((33, 65),), "main": ((512, 512), (1823, 781), (4096, 2048))}


def variants(v: Variants):
    v.add("torch", torch.square)
    v.add("x * x", lambda x: x * x)
    v.add("x ** 2", lambda x: x**2)
    v.ours(ops.square)


steps, add, run = common.of_sizes("square", SIZES, variants)
