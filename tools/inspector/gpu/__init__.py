"""GPU code judged: what a region of PTX, SASS or AMDGCN asks of memory, its verdict and the causes.

    figures.py    loops and bodies with their figures         verdict.py   VECTOR, PARTLY or SCALAR, and why
    memory.py     requests, sectors, banks                    arch.py      GPUs, and occupancy by registers, shared memory and warps
    kernels.py    requests of a Triton kernel: ttgir.py has the addresses, layout.py (triton_layouts.py) says which thread holds what
    lanes.py      requests of machine code: ptx.py, sass.py and amdgcn.py compute the addresses of a warp's threads (warp.py)
    units.py      multiply-adds, for the share of tensor cores
"""

from . import arch
from .arch import Occupancy, occupancy
from .verdict import causes, of

__all__ = ["Occupancy", "arch", "causes", "occupancy", "of", "regions"]


def regions(function, code) -> list:
    """A function's loops, inner ones first in text order, and its body (`stats.Region`)."""
    from . import figures  # with numpy, which a report about a CPU's code does without
    return figures.regions(function, code)
