"""Who multiplies two matrices on a GPU of compute capability 9.0: the kernels of product_tma.py, product_split.py and product_few.py, or those by pointers."""

from __future__ import annotations

import torch

from . import product_few, product_split, product_tma

KERNELS = (*product_tma.KERNELS, *product_split.KERNELS, *product_few.KERNELS)


def special(a: torch.Tensor, b: torch.Tensor) -> tuple | None:
    """(the module whose kernels multiply a and b, its operands); None where that is left to kernels by pointers, as where there is no memory for what the
    module makes of a and b first."""
    for way in (product_split, product_few) if a.dtype == torch.float32 else (product_few, product_tma):
        if way.takes(a, b):
            given = way.prepared(a, b)
            return None if given is None else (way, given)
    return None


def apart(way, given: tuple) -> bool:
    """Does a softmax of this product wait until the whole of it is in memory? K goes in shares then, or a program has accumulators of few rows."""
    return way is product_few or way is product_tma and product_tma.apart(*given)
