"""LLVM IR as text: typed values, blocks with insertion points, and folding of constants while building.

llvmlite parses and compiles what this module prints. Its own builder (`llvmlite.ir`) has no bfloat, no vector `splat`
constants and one insertion point at a time; here a loop nest keeps an open *section* at every depth, so that a value is
emitted where its operands first exist (loop-invariant code is born outside the loop).

    values.py   types and constants          folding.py  operations on constants
    module.py   modules, functions, blocks   builder.py  instructions          flow.py  branches, loops, variables
"""

from __future__ import annotations

from .flow import Builder, Variable, define
from .module import Block, Function, Module, Phi, c_string
from .values import FALSE, FLOATS, NULL, TRUE, Struct, Val, bits_of, bits_text, const, float_text, i32, i64, mangle, vec

__all__ = ["FALSE", "FLOATS", "NULL", "TRUE", "Block", "Builder", "Function", "Module", "Phi", "Struct", "Val", "Variable", "bits_of", "bits_text",
           "c_string", "const", "define", "float_text", "i32", "i64", "mangle", "vec"]
