"""softmax of rows four ways: written out in torch's operations, torch's own, torch.compile of what was written out, our kernels."""

from __future__ import annotations

import torch

from ... import ops
from . import common
from .variants import Variants

SIZES = {"small": ((33, 65),), "main": ((512, 512), (1823, 781), (4096, 2048))}


def manual(x: torch.Tensor) -> torch.Tensor:
    """The formula, one operation of torch's after the other; less the maximum, so that no exponential overflows."""
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def variants(v: Variants):
    v.add("manual", manual)
    v.add("torch", lambda x: torch.softmax(x, -1))
    v.compiled(manual)
    v.ours(lambda x: ops.softmax(x, -1))


steps, add, run = common.of_sizes("softmax", SIZES, variants, dim=-1)
