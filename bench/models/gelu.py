"""GELU, tanh form, five ways: written out in torch's operations, torch's own, torch.compile of what was written out, Triton, CUDA C++."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ... import ops
from . import common
from .variants import Variants

SIZES = {"small": ((33, 65),), "main": ((512, 512), (1823, 781), (4096, 2048))}


def manual(x: torch.Tensor) -> torch.Tensor:
    """The formula, one operation of torch's after the other."""
    return 0.5 * x * (1 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def variants(v: Variants):
    v.add("manual", manual)
    v.add("torch", lambda x: F.gelu(x, approximate="tanh"))
    v.compiled(manual)
    v.ours(ops.gelu)


steps, add, run = common.of_sizes("gelu", SIZES, variants)
