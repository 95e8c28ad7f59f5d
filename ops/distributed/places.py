"""Where a DTensor is, for ops that reshape one or write over it; no call without one imports torch.distributed.tensor."""

from __future__ import annotations

import sys

import torch

from ...backends.base import ArgumentError


def dtensor() -> type | None:
    """DTensor, where anybody has imported it."""
    return getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)


def is_one(t) -> bool:
    """Is it a DTensor?"""
    kind = dtensor()
    return kind is not None and isinstance(t, kind)


def reshaped(t: torch.Tensor, *shape: int) -> torch.Tensor:
    """`t.reshape(shape)`, which keeps the last dimension. torch refuses a DTensor with shards of unequal sizes along what is joined or split: that is
    gathered first. The same on every rank: torch judges by sizes and placements."""
    if not is_one(t):
        return t.reshape(shape)
    try:
        return t.reshape(shape)
    except RuntimeError:
        from torch.distributed.tensor import Replicate
        return t.redistribute(placements=[p if p.is_shard(t.ndim - 1) or p.is_partial() else Replicate() for p in t.placements]).reshape(shape)


def check_in_place(name: str, x: torch.Tensor):
    """Raise `ArgumentError` where x is a DTensor that cannot be written over."""
    if is_one(x) and not all(p.is_shard() or p.is_replicate() for p in x.placements):
        raise ArgumentError(f"triport.{name}: argument 'x' is a DTensor placed {x.placements}; what is written in place is in plain shards or on "
                            f"every rank: redistribute it, or use {name.rstrip('_')}")


def placed_as(result: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """`result` where x is, to be copied there: torch copies between DTensors of one placement alone."""
    return result.redistribute(placements=x.placements) if is_one(x) else result
