"""A kernel launched again, in native code: with other tensors, and what is no tensor as before."""

from __future__ import annotations

import struct
import sys
from typing import Callable

from . import launch, native
from .direct_ir import Argument, direct_ir

#: room for the addresses of a launch's arguments, and for its words; what needs more is launched as before
ARGUMENTS, WORDS = 96, 128
_CODE = native.Code("direct", direct_ir, (ARGUMENTS, WORDS),
                    (("tp_direct", b"run", native.FASTCALL | native.KEYWORDS, b"Launch a kernel again."),))
_KEYWORD, _IS_CPU, _DATA_PTR, _STORAGE, _NBYTES = (sys.intern(name) for name in ("stream", "is_cpu", "data_ptr", "untyped_storage", "nbytes"))


def function(run, kernel, grid: tuple[int, int, int], values: tuple, args: tuple, places: dict[int, int], facts: list, otherwise: Callable, hold: tuple = ()):
    """A function of (*args, stream=...) that launches `kernel` by the launch function `run` as `run(*grid, ..., *values)` does, or None where that cannot be said.

    args: what it is called with; places: position among `values` -> among `args` of each that is passed on. Calls whose tensors are others are launched so, as
    long as they share no memory where `run` asks for that; with other numbers, or where one of the facts does not hold, it is `otherwise(*args, stream=...)`.
    hold: what has to live as long."""
    import torch

    tensors = (torch.Tensor, torch.nn.Parameter)
    if not (native.GIL and native.PASSES_KEYWORDS) or len(args) > ARGUMENTS or run.pairs is None or run.beyond(*grid, *values):
        return None
    threads = torch.get_num_threads()
    it = native.launch_of(run, kernel, grid, values, threads, lambda n, _: places.get(n))
    if it is None or len(it.words) > WORDS or any(type(values[n]) not in tensors for n, ty in run.slots if ty.startswith("*")):
        return None
    words = []
    for a in args:
        words += _argument(a, tensors)
    pairs = [w for i, j, same in run.pairs for w in (places[i], places[j], same)]
    name, scratch, asserts, (gx, gy, _) = kernel.name, run.scratch, run.asserts, grid

    def fail(status):
        launch.failed(name, status, scratch, asserts, gx, gy)

    table = native.table_of([
        id(otherwise), len(args), id(_KEYWORD), id(torch.Tensor), id(torch.nn.Parameter), id(int), id(float), id(_IS_CPU), id(_DATA_PTR), id(_STORAGE), id(_NBYTES),
        id(True), id(None), id(torch.get_num_threads), id(threads), id(fail), len(facts), len(run.pairs), *words, *native.fact_words(facts), *pairs, *it.row()])
    held = (otherwise, fail, threads, facts, kernel, [a for a in args if type(a) not in tensors], hold)
    return native.function(native.methods(_CODE)[0], table, held)


def _argument(a, tensors: tuple) -> tuple[int, int]:
    """An argument's words."""
    if type(a) in tensors:
        return Argument.TENSOR, 0
    if type(a) is int and -1 << 63 <= a < 1 << 63:
        return Argument.INT, a & (1 << 64) - 1
    if type(a) is float:
        return Argument.FLOAT, int.from_bytes(struct.pack("<d", a), "little")
    return Argument.SAME, id(a)
