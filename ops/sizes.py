"""Sizes of tiles and grids, from sizes of tensors that may be symbols while torch traces."""

from __future__ import annotations

from ..backends.context import EXPORT, call


def next_power_of_2(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def known(*sizes) -> bool:
    """Are sizes plain numbers? While torch traces with dynamic shapes they are symbols, on which no tile should depend."""
    return all(type(s) is int for s in sizes)


def planned(*sizes) -> tuple | None:
    """The numbers by which tiles are chosen: `sizes` themselves, and where an export leaves them open those of its case. None where there are
    none."""
    if known(*sizes):
        return sizes
    if call.mode == EXPORT:
        return tuple(s if type(s) is int else int(s.node.hint) for s in sizes)
    return None
