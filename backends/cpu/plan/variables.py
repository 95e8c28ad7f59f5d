"""Python's variables, for a debugger: a tensor that gets a name is put into memory there, whole, for nobody but who looks."""

from __future__ import annotations

from ..ttir.names import name_of
from ..ttir.types import Op
from . import keeping
from .records import Named
from .schedule import Schedule


def named(s: Schedule, op: Op):
    """From here on a variable has the value that `op` names. Its elements are computed for it alone: nothing else of the plan knows of them."""
    name = name_of(op)
    v, buffer = (op.operands or [None])[0], None
    if v is not None and v.type.is_tensor:
        key = (*name.key, v.type)
        if key not in s.variables:
            s.variables[key] = s.alloc(v.type.shape, v.type.elem)
        buffer = s.variables[key]
        if v.op is not None and s.lazy(v.op) and v not in s.buffers and keeping.keepable(s, v):
            s.materialise(v, why="it would be computed again")  # for each variable behind it
        s.fill(buffer, v, why=f"{name.name} for debuggers")
    s.add(Named(op, name, v, buffer))
