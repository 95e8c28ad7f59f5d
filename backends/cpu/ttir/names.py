"""Python's variables in a kernel's TTIR: operations that say which value a name has from there on (`plugin/names.py` writes them)."""

from __future__ import annotations

import json
from dataclasses import dataclass

from .types import Func, Loc, Op

#: what the prefix of such a `tt.print` begins with
MARK = "triport.debugger "


@dataclass(frozen=True)
class Name:
    """A Python variable gets a value; no name: a statement begins. type: Triton's name of its elements' type; value: a constant of the language,
    where it is one; function: whose variable it is; callers: where that was inlined, the innermost call first."""

    name: str
    function: str
    type: str
    value: bool | int | float | str | None
    callers: tuple[Loc, ...]

    @property
    def key(self) -> tuple:
        """What a variable's assignments have in common."""
        return self.name, self.callers


def name_of(op: Op) -> Name | None:
    """What `op` names, if it does."""
    prefix = op.attrs.get("prefix", "") if op.name == "tt.print" else ""
    if not prefix.startswith(MARK):
        return None
    about = json.loads(prefix[len(MARK):])
    return Name(about["name"], about["function"], about.get("type", ""), about.get("value"), op.loc.callers)


def settle(func: Func):
    """Make a kernel ready for its variables to be shown: what a function that Triton did not inline holds says who calls it."""
    _settle(func.body, None)


def _settle(region, caller: Op | None):
    for op in (op for block in region.blocks for op in block.ops):
        if caller is not None:
            op.loc = op.loc._replace(callers=(*op.loc.callers, caller.loc._replace(callers=()), *caller.loc.callers))
        for r in op.regions:
            _settle(r, op if op.name == "tt.call" else caller)
