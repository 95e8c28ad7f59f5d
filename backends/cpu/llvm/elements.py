"""TTIR's element types as LLVM's: in registers and in memory."""

from __future__ import annotations

from . import ir

#: LLVM types that hold TTIR element types in registers; bf16 and fp8 are bit patterns, converted explicitly. "u8" is an i8 and 128, without a sign: only operands of products are that
REGISTER = {"i1": "i1", "i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64", "f16": "half", "bf16": "i16",
            "f32": "float", "f64": "double", "u8": "i8", "ptr": "ptr", "index": "i64", "fp8e5": "i8", "fp8e4nv": "i8",
            "fp8e4b8": "i8", "fp8e5b16": "i8", "fp8e4b15": "i8"}


def memory_type(elem: str) -> str:
    """The LLVM type of a TTIR element in memory: i1 takes a byte."""
    return "i8" if elem == "i1" else REGISTER[elem]


def bytes_of(elem: str) -> int:
    """The bytes of a TTIR element in memory."""
    return ir.bits_of(memory_type(elem)) // 8
