"""Tensors of one element without dimensions, in Inductor's kernels for the CPU.

Inductor passes such an input by value, for a GPU would have to fetch it. On a CPU it lies where the kernel reads anyway; and what changes one in place needs its address: a backward pass that puts its
result where the gradient was that it began with, and a kernel that a user wrote, which loads it.
"""

from __future__ import annotations

import functools
import sys

from ... import of_torch


def mend(module):
    """Mend torch._inductor.graph, which has run; a torch that was not tried, or has it written in another way, is left alone."""
    of = getattr(module, "GraphLowering", None)
    if of_torch.checked() and of_torch.takes(asks := getattr(of, "is_unspec_arg", None), "self", "name"):
        of.is_unspec_arg = by_address(asks)


def by_address(asks):
    """`GraphLowering.is_unspec_arg`, what is passed by value: on the CPU nothing."""
    @functools.wraps(asks)
    def asked(self, name):
        return asks(self, name) and not (sys.modules["torch._inductor.config"].cpu_backend == "triton" and self.get_current_device_or_throw().type == "cpu")

    return asked
