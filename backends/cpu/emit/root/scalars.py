"""Scalars: what their operations are, where they stand, and the stack slots that LLVM turns into registers."""

from __future__ import annotations

from ...llvm.elements import REGISTER
from ...llvm.ir import Val
from ...ttir.types import Value


def register_type(v: Value) -> str:
    """The LLVM type of a scalar value."""
    return REGISTER[v.type.elem]


def slot(k, v: Value, hint: str = "slot") -> Val:
    """A stack slot for a scalar."""
    return k.b.alloca(register_type(v), hint)


def read(k, v: Value, place: Val):
    """From here on `v` is what a stack slot holds."""
    k.env[v] = k.b.load(register_type(v), place, 8)


def program_id(k, op):
    k.env[op.result] = k.pid[op.attrs["axis"]]


def num_programs(k, op):
    k.env[op.result] = k.grid[op.attrs["axis"]]


SCALARS = {"tt.get_program_id": program_id, "tt.get_num_programs": num_programs}
