"""The ops on DTensors: over several GPUs and machines by torch.distributed, with no communication of our own.

`strategies.py` says how each op may be sharded, and torch.distributed.tensor redistributes arguments to suit; `exchange.py` has those ops that
communicate themselves, as a softmax does along a dimension that is sharded. Both import torch.distributed.tensor, which takes half a second,
so neither is imported before a call has met a DTensor. A new op needs a row in `strategies.py`.
"""

from __future__ import annotations

import contextlib

import torch

from ...backends.base import ArgumentError, Error, Unavailable
from .places import check_in_place, dtensor, placed_as, reshaped  # noqa: F401  (what ops ask of)

_registered = False


def register():
    """Make DTensors known to the ops. The first call with one does so by itself. Raises `Unavailable` where this torch has no
    torch.distributed, or one without the functions that ops are registered with."""
    global _registered
    if _registered:
        return
    try:
        from torch.distributed.tensor.experimental import register_sharding  # noqa: F401
    except ImportError as e:
        raise Unavailable(f"triport's ops on DTensors: torch {torch.__version__} has no torch.distributed.tensor.experimental.register_sharding ({e}); "
                          "install a torch of 2.11 to 2.13 that is built with torch.distributed") from e
    from . import exchange, strategies
    strategies.register()
    exchange.register()
    _registered = True


def meet(name: str, args) -> bool:
    """Called with each call's arguments on its way through the dispatcher: is a DTensor among them? Then it registers what they need, and checks that they
    are on one mesh. Raises `ArgumentError`."""
    kind = dtensor()
    if kind is not None and any(isinstance(a, kind) for a in args):
        register()
        _check_meshes(kind, name, args)
        return True
    return False


@contextlib.contextmanager
def errors_of_ours():
    """Within it an error that an op raises of its arguments stays what it is: torch.distributed.tensor makes a RuntimeError of each."""
    try:
        yield
    except RuntimeError as e:
        if isinstance(e.__cause__, Error):
            raise e.__cause__ from None
        raise


def _check_meshes(kind, name: str, args):
    tensors = [(argument.name, a) for argument, a in zip(getattr(torch.ops.triport, name).default._schema.arguments, args) if isinstance(a, torch.Tensor)]
    first, of_first = next((n, t) for n, t in tensors if isinstance(t, kind))
    mesh = of_first.device_mesh
    for n, t in tensors:
        if not isinstance(t, kind):
            if not kind._op_dispatcher._allow_implicit_replication:  # torch.distributed.tensor.experimental.implicit_replication sets it
                raise ArgumentError(f"triport.{name}: argument {n!r} is a plain tensor but {first!r} is a DTensor on {mesh}; distribute it, too: "
                                    f"distribute_tensor({n}, mesh, [Replicate()] * {mesh.ndim})")
        elif t.device_mesh != mesh:
            raise ArgumentError(f"triport.{name}: argument {n!r} is on {t.device_mesh} but {first!r} is on {mesh}; put both on one mesh")
