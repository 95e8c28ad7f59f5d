"""Launches of Inductor's own kernels, whose memory Inductor keeps apart.

A launch holds the addresses of pointers against each other where the kernel was compiled as if they pointed to memory of their own. What Inductor's kernels fill
anew, its `out_ptr`, is memory that it has just taken, or a part of that which no other of the kernel's arguments shares; so it need not be asked, which takes
0.2 us for each pair: 26 embeddings that are put side by side have 1,000 pairs. What a kernel changes in place may be a user's, and is compared at every launch.
"""

from __future__ import annotations

import functools
import re

from ... import of_torch

_FILLED = re.compile(r"out_ptr\d+")
#: where their names stand in what Inductor's runtime knows of a kernel, which it takes with it into other processes
_KEY = "triport_filled"
#: of kernels that are written otherwise, templates and users' own, Inductor does not say what they change in place
_GENERATED = ("POINTWISE", "REDUCTION", "PERSISTENT_REDUCTION", "SPLIT_SCAN")


def mend(module):
    """Mend torch._inductor.runtime.triton_heuristics, which has run; a torch that was not tried, or has it written in another way, is left alone."""
    tuner, result = getattr(module, "CachingAutotuner", None), getattr(module, "TritonCompileResult", None)
    make = getattr(result, "make_launcher", None)
    if of_torch.checked() and tuner is not None and of_torch.takes(make, "self"):
        tuner.__init__ = noting(tuner.__init__)
        result.make_launcher = launching(make)


def noting(init):
    """`CachingAutotuner.__init__`, which notes what a kernel fills anew."""
    @functools.wraps(init)
    def made(self, *args, **kwargs):
        init(self, *args, **kwargs)
        mutated = getattr(self, "mutated_arg_names", None)
        if mutated is not None and getattr(getattr(self, "heuristic_type", None), "name", None) in _GENERATED and not getattr(self, "custom_kernel", True):
            self.inductor_meta[_KEY] = [n for n in self.triton_meta["signature"] if _FILLED.fullmatch(n) and n not in mutated]

    return made


def launching(make):
    """`TritonCompileResult.make_launcher`, whose launcher does not compare what was noted."""
    @functools.wraps(make)
    def made(self):
        launcher = make(self)
        filled, scope = self.inductor_meta.get(_KEY), getattr(launcher, "__globals__", {})
        apart = getattr(scope.get("runner"), "apart", None)
        if filled and apart is not None:
            scope["runner"] = apart(frozenset(filled).__contains__)
        return launcher

    return made
