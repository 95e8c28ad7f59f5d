"""Graphs that Inductor keeps on disk. What becomes of one depends on what this package makes of it, which Inductor's key says nothing about: without this an upgrade would go on with graphs as
the version before left them, and a disk that machines share with those of another CPU."""

from __future__ import annotations

import functools
import sys

from ... import of_torch


def mend(module):
    """Mend torch._inductor.codecache, which has run; a torch that was not tried, or has it written in another way, is left alone."""
    details = getattr(module, "FxGraphHashDetails", None)
    made = getattr(details, "__init__", None)
    if of_torch.checked() and of_torch.takes(made, "self", "gm", "example_inputs", "fx_kwargs", "inputs_to_check"):
        details.__init__ = keyed(made)


def keyed(made):
    """`FxGraphHashDetails.__init__`, all of whose attributes are part of a graph's key; AOTAutograd's keys are made by it, too."""
    @functools.wraps(made)
    def init(self, *args, **kwargs):
        made(self, *args, **kwargs)
        if sys.modules["torch._inductor.config"].cpu_backend == "triton":
            from ..llvm import identity
            self.triport = identity.of("native")

    return init
