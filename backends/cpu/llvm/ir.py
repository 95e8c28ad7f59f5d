from __future__ import annotations

from .flow import Builder, Variable, define
from .module import Block, Function, Module, Phi, c_string
from .values import FALSE, FLOATS, NULL, TRUE, Struct, Val, bits_of, bits_text, const, float_text, i32, i64, mangle, vec

__all__ = ["FALSE", "FLOATS", "NULL", "TRUE", "Block", "Builder", "Function", "Module", "Phi", "Struct", "Val", "Variable", "bits_of", "bits_text",
           "c_string", "const", "define", "float_text", "i32", "i64", "mangle", "vec"]
