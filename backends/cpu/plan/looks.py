"""Steps of kernels that check what they do (`checks.py`, `finite.py`)."""

from __future__ import annotations

from dataclasses import dataclass

from ..ttir.types import Op
from .checks import Site
from .finite import Maker, Out
from .records import NestPlan


@dataclass(frozen=True)
class Check:
    """A checked kernel looks at what `site` (checks.Site) is about to do; nest: over its lanes, None where it is one."""

    site: Site
    nest: NestPlan | None

    @property
    def op(self) -> Op:
        return self.site.op


@dataclass(frozen=True)
class Made:
    """A checked kernel notes what `makers` (finite.Maker) made that is not finite; nest: over their elements, None where it is one number."""

    makers: tuple[Maker, ...]
    nest: NestPlan | None


@dataclass(frozen=True)
class FiniteStore:
    """A checked kernel looks at what `out` (finite.Out) is about to store."""

    out: Out
    nest: NestPlan | None
