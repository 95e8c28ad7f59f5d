"""The grid of a launch: at most three whole numbers. The compiled code counts programs along an axis in 32 bits, all of them in 64."""

from __future__ import annotations

import operator

from ...base import ArgumentError

AXIS, PROGRAMS = 2**31 - 1, 2**63 - 1


def sizes(kernel: str, grid) -> tuple[int, int, int]:
    """Programs along x, y, z of a grid (ints, or what stands for one: NumPy's, a tensor of one). Raises `ArgumentError` where a
    grid is none."""
    out = []
    for size in grid:
        try:
            out.append(operator.index(size))
        except TypeError:
            raise _error(kernel, grid, f"{_short(size)} ({type(size).__name__}) is not a whole number") from None
    if len(out) > 3:
        raise _error(kernel, grid, f"has {len(out)} dimensions")
    wrong = [n for n in out if not 0 <= n <= AXIS]
    if wrong:
        raise _error(kernel, grid, f"{wrong[0]} is out of range")
    x, y, z = (*out, 1, 1, 1)[:3]
    if x * y * z > PROGRAMS:
        raise _error(kernel, grid, f"{x} x {y} x {z} programs are too many")
    return x, y, z


def none(kernel: str, grid) -> ArgumentError:
    """The error for what no grid's first size can be read of: an int, None, a tuple of nothing."""
    what = "has no sizes" if isinstance(grid, (tuple, list)) else f"({type(grid).__name__}) is no tuple"
    said = f"triton-cpu: kernel {kernel}: grid {_short(grid)} {what}; a grid is a tuple of one to three whole numbers, or a function of the meta-parameters that returns one"
    try:
        size = operator.index(grid)
    except TypeError:
        return ArgumentError(said)
    return ArgumentError(f"{said}: write {kernel}[({size},)], in a function ({size},)")


def _short(value) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _error(kernel: str, grid, what: str) -> ArgumentError:
    shown = f"({', '.join(map(_short, grid))}{',' if len(grid) == 1 else ''})"
    return ArgumentError(f"triton-cpu: kernel {kernel}: grid {shown}: {what}; a grid is up to three whole numbers from 0 to {AXIS}, "
                         f"with a product of at most {PROGRAMS}")
