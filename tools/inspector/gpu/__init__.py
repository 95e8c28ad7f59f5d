"""GPU code judged: what a region of PTX, SASS or AMDGCN consists of, its verdict and the causes.

    regions.py   loops and bodies with their figures
    verdict.py   VECTOR, PARTLY or SCALAR, and why
"""

from .regions import regions
from .verdict import causes, of

__all__ = ["causes", "of", "regions"]
