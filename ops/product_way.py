"""Who multiplies two matrices on a GPU of compute capability 9.0: the kernels of product_tma.py, product_split.py and product_few.py, or those by pointers."""

from __future__ import annotations

import torch

from ..backends import cuda
from . import product_few, product_split, product_tma

KERNELS = (*product_tma.KERNELS, *product_split.KERNELS, *product_few.KERNELS)


def special(a: torch.Tensor, b: torch.Tensor, alone: bool = False) -> tuple | None:
    """(the module whose kernels multiply a and b, its operands); None where that is left to kernels by pointers, as where there is no memory for what the
    module makes of a and b first. alone: nothing follows, so that whichever is fastest may do it."""
    if alone and product_few.may(a, b) and min(a.shape[0], b.shape[1]) > product_few.LINES:
        way = _fastest(a, b)
    else:
        ways = (product_split, product_few) if a.dtype == torch.float32 else (product_few, product_tma)
        way = next((way for way in ways if way.takes(a, b)), None)
    given = way and way.prepared(a, b)
    return None if given is None else (way, given)


def _fastest(a: torch.Tensor, b: torch.Tensor):
    """The module that multiplies matrices of more rows and columns than a few in the least time; None: kernels by pointers."""
    (m, k), n, size, count = a.shape, b.shape[1], a.element_size(), cuda.limits(a.device.index)[0]
    pointers, few, _ = product_few.compared(a, b)
    us = {None: pointers, product_few: few}
    if size == 2 and product_tma.described_here(a, m, n, k):
        us[product_tma] = product_tma.us(m, n, k, count, sum(x.numel() for x in (a, b) if not product_tma.is_described(x)))
    elif size == 4 and product_split.takes(a, b):
        us[product_split] = product_split.us(m, n, k, count)
    return min(us, key=us.get)


def apart(way, given: tuple) -> bool:
    """Does a softmax of this product wait until the whole of it is in memory? K goes in shares then, or a program has accumulators of few rows."""
    return way is product_few or way is product_tma and product_tma.apart(*given)
