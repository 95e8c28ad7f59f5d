"""Huge pages under large tensors that Inductor's graphs allocate for Triton's kernels on a CPU.

What glibc maps anew at each call (from 32 MiB on, and smaller tensors where it has given memory at its heap's end back) meets untouched memory: `x * 2 + 1` of 3000 x 3000 in fp32
takes 9 ms on two threads of a Zen 4, and took 29 to 33 by pages of 4 KiB.
"""

from __future__ import annotations

import functools
import math
import sys

from ... import huge, of_torch

#: what allocates in a graph, by the name that graphs have for it
_PLAIN, _ROOMY = "empty_strided_cpu", "roomy_strided_cpu"


def mend(module):
    """Mend torch._inductor.codegen.wrapper, which has run; a torch that was not tried, or has it written in another way, is left alone."""
    of = vars(module).get("PythonWrapperCodegen")
    header, make = getattr(of, "write_header", None), getattr(of, "make_allocation", None)
    if of_torch.checked() and of_torch.takes(header, "self") and of_torch.takes(make, "self", "name", "device", "dtype", "shape", "stride", "allocation_shape", "is_pinned"):
        of.write_header, of.make_allocation = with_import(header), roomy(make)


def _ours() -> bool:
    """Is what is compiled now a graph in Python whose kernels on a CPU are Triton's?"""
    from torch._inductor.virtualized import V
    return sys.modules["torch._inductor.config"].cpu_backend == "triton" and not V.graph.cpp_wrapper


def with_import(header):
    """`write_header`, which names what allocates on huge pages as well."""
    @functools.wraps(header)
    def written(self):
        header(self)
        if _ours():
            self.imports.writeline(f"from {huge.__name__} import {huge.empty_strided.__name__} as {_ROOMY}")

    return written


def roomy(make):
    """`make_allocation`, by which large tensors, and those whose size shows as the graph runs, ask for huge pages."""
    @functools.wraps(make)
    def made(self, name, device, dtype, shape, stride, allocation_shape=None, is_pinned=False):
        text = make(self, name, device, dtype, shape, stride, allocation_shape, is_pinned)
        start = f"{name} = {_PLAIN}("
        if not text.startswith(start) or not _ours() or _bytes(allocation_shape or shape, dtype) < huge.LEAST:
            return text
        return f"{name} = {_ROOMY}({text[len(start):]}"

    return made


def _bytes(shape, dtype) -> float:
    """Of a tensor that follows in memory; infinity where a size is not known yet."""
    sizes = [getattr(n, "is_Integer", isinstance(n, int)) for n in shape]
    return math.prod(map(int, shape)) * dtype.itemsize if all(sizes) else math.inf
