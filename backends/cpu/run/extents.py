"""Which memory a launch's arguments may touch."""

from __future__ import annotations

import gc
from typing import NamedTuple

#: an address that nobody knows more of: everything is inside
_ANYWHERE = (0, (1 << 63) - 1)


class Extent(NamedTuple):
    """`bytes` from `start` on, as the storage of `argument` (None: of something that is no argument)."""

    start: int
    bytes: int
    argument: object = None


def of(argument) -> Extent:
    """What a pointer argument may touch: the whole storage that a tensor lives in, whichever view of it it is."""
    if argument is None or isinstance(argument, int) and not argument:
        return Extent(0, 0, None)
    storage = getattr(argument, "untyped_storage", None)
    if storage is not None:
        s = storage()
        return Extent(s.data_ptr(), s.nbytes(), argument)
    if hasattr(argument, "base") and hasattr(argument.base, "untyped_storage"):  # triton.TensorWrapper and the like
        return of(argument.base)
    if isinstance(argument, int):
        return next((e for e in living() if e.start <= argument < e.start + e.bytes), Extent(*_ANYWHERE, argument))
    size = getattr(argument, "nbytes", None)
    if isinstance(size, int) and hasattr(argument, "data_ptr"):
        return Extent(argument.data_ptr(), size, argument)
    return Extent(*_ANYWHERE, argument)


def living() -> list[Extent]:
    """The storages of all tensors in CPU memory that Python knows: what an address in memory may point to."""
    import torch

    found = {}
    for t in [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor)]:  # the others are held no longer than it takes
        try:
            if not t.is_cpu or t.layout is not torch.strided or t.untyped_storage().device.type != "cpu":  # a fake tensor's is "meta"
                continue
            e = of(t)
        except (RuntimeError, NotImplementedError):  # a tensor without storage, as those of tracers are
            continue
        if e.bytes:
            found.setdefault(e.start, e)
    return list(found.values())
