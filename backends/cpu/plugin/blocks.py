"""Blocks of Inductor's reductions on a CPU.

Inductor's own are a GPU's. Over rows they are up to 64 columns wide and 8 rows high: a CPU then reads 256 bytes of a row, which is a page of its own or several, so that nothing is fetched
ahead. Along rows they are 2,048 elements long, whose accumulators go through the first cache at every step, and are joined by 128 vectors one after the other. One thread of a Zen 4, fp32: sums of
4096 rows of 1024 by blocks of 64 columns and 4 rows 1.27 ms, of 256 and 4 0.89, of 1024 and 1 0.36, of 1024 and 2 0.40; variances of 1000 rows of 3136 by 2,048 elements 2.31 ms, 512 1.39, 128 1.16,
64 0.98, 32 1.06, of rows of 1000 by 1,024 0.25 and by 64 0.36: what is no longer than a block or two has no accumulators, so both are tried.
"""

from __future__ import annotations

import functools

from ... import of_torch

#: (columns, rows) of a block of a reduction over rows: where there are programs for all threads the first is the fastest
OVER_ROWS = (1024, 1), (256, 1), (64, 8)
#: (rows, elements of each) of a block of a reduction along rows, which is tried beside Inductor's
ALONG_ROWS = 1, 64


def mend(module):
    """Mend torch._inductor.runtime.triton_heuristics, which has run; a torch that was not tried, or has it written in another way, is left alone."""
    configs, make = getattr(module, "_reduction_configs", None), getattr(module, "triton_config_reduction", None)
    if of_torch.checked() and make is not None and of_torch.takes(configs, "size_hints", "inductor_meta", "triton_meta", "num_dynamic"):
        module._reduction_configs = chosen(configs, make)


def chosen(configs, make):
    """`_reduction_configs`, which has others for a CPU."""
    @functools.wraps(configs)
    def of_kernel(*, size_hints, inductor_meta, triton_meta, num_dynamic=0):
        theirs = configs(size_hints=size_hints, inductor_meta=inductor_meta, triton_meta=triton_meta, num_dynamic=num_dynamic)
        if getattr(triton_meta.get("device"), "type", None) != "cpu" or triton_meta.get("native_matmul") or set(size_hints) != {"x", "r0_"}:
            return theirs

        def block(columns, rows):
            return make(size_hints, columns, rows, register_intensive=True, reduction_hint=inductor_meta.get("reduction_hint"))

        if over_rows(inductor_meta):
            ours = [block(*shape) for shape in OVER_ROWS]
            return ours + theirs if searched(inductor_meta) else ours
        if all(c.kwargs.get("R0_BLOCK", 0) < size_hints["r0_"] for c in theirs):
            return [*theirs, block(*ALONG_ROWS)]
        return theirs

    return of_kernel


def searched(inductor_meta: dict) -> bool:
    """Was Inductor asked to try more?"""
    return bool(inductor_meta.get("max_autotune") or inductor_meta.get("max_autotune_pointwise"))


def over_rows(inductor_meta: dict) -> bool:
    """Does what a kernel loads and stores lie side by side along what is left, and not along what is reduced? By Inductor's count of elements in each direction."""
    scores = inductor_meta.get("tiling_scores") or {}
    return scores.get("x", 0) > scores.get("r0_", 0)
