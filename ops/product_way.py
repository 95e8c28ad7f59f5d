"""Who multiplies two matrices on a GPU of compute capability 9.0: the kernels of product_tma.py and product_split.py, or those by pointers."""

from __future__ import annotations

import torch

from . import product_split, product_tma

KERNELS = (*product_tma.KERNELS, *product_split.KERNELS)


def special(a: torch.Tensor, b: torch.Tensor) -> tuple | None:
    """(the module whose kernels multiply a and b, its operands); None where that is left to kernels by pointers, as where there is no memory for what the
    module makes of a and b first."""
    for way in (product_tma, product_split):
        if way.takes(a, b):
            given = way.prepared(a, b)
            return None if given is None else (way, given)
    return None
