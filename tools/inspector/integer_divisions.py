"""Where a Triton kernel divides integers, by its TTIR: on x86 and NEON triton-cpu does so by way of floats, and instructions that convert, and those of fp64, are no fault of the kernel's."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from .code import Code, functions

_DIVIDES = re.compile(r"arith\.(div|rem|ceildiv|floordiv)[su]i")
_CONVERTS = re.compile(r"arith\.([su]itofp|fpto[su]i|extf|truncf)$|tt\.fp_to_fp$")


class Lines(NamedTuple):
    """(file, line) at which vectors of integers are divided: those where no fp64 is asked for, those where no conversion is, and those where nothing floats."""

    no_f64: frozenset[tuple[str, int]] = frozenset()
    no_conversion: frozenset[tuple[str, int]] = frozenset()
    no_floats: frozenset[tuple[str, int]] = frozenset()


def lines(code: Code) -> Lines:
    """Those of a kernel of triton-cpu's."""
    text = code.stages.get("ttir")
    return _lines(text, code.target) if code.backend == "triton-cpu" and isinstance(text, str) else Lines()


@functools.lru_cache(maxsize=8)
def _lines(text: str, target: str) -> Lines:
    if not _DIVIDES.search(text):
        return Lines()
    from ...backends.base import Error
    from ...backends.cpu.llvm import targets
    from ...backends.cpu.ttir.types import walk
    try:
        if not targets.get(target).divided:
            return Lines()
    except Error:
        return Lines()
    every = [op for function in functions(text) for op in walk(function.body)]
    at = lambda fits: {(op.loc.file, op.loc.line) for op in every if op.loc.line and fits(op)}  # noqa: E731
    of = lambda kind: at(lambda op: any(re.match(kind, v.type.elem) for v in (*op.operands, *op.results)))  # noqa: E731
    divide = at(lambda op: _DIVIDES.match(op.name) and op.result.type.shape)
    return Lines(frozenset(divide - of("f64")), frozenset(divide - at(lambda op: _CONVERTS.match(op.name))), frozenset(divide - of(r"b?f\d")))
