"""Inductor's kernels that add to what indices choose, as gradients of embeddings do: where they are small, or threads few, by one thread, which just adds.

An atomic addition takes a CPU 20 cycles and lets nothing overtake it, a plain one of a vector of neighbours less than 1. The memory is Inductor's own, or a tensor that
torch's operators would change no more atomically. 256 rows of an embedding 768 wide, two threads of a Zen 5: 294 and 27 us; 8192 rows 5.4 and 2.3 ms.
"""

from __future__ import annotations

import functools
import math
import os
import sys

from ... import of_torch

#: elements that one thread adds faster than any number of threads adds them atomically, and threads up to which it is the faster one however many there are: a
#: thread adds 2.8 elements a nanosecond, and 1.2 of large tables, where one adds 0.5 atomically
ELEMENTS, THREADS = 1 << 17, 4


def mend(module):
    """Mend torch._inductor.runtime.triton_heuristics, or torch._inductor.lowering, which has run; a torch that was not tried, or has it written in another way, is left alone."""
    limits = getattr(module, LIMITS, None)
    if of_torch.checked() and of_torch.takes(limits, "dtype"):
        setattr(module, LIMITS, limited(limits))
    fallback = getattr(module, FALLBACK, None)
    if of_torch.checked() and of_torch.takes(fallback, "op_overload", "reduction_type", "self_dtype", "src_dtype", "src_device_type", "src_is_tensor"):
        setattr(module, FALLBACK, left(fallback))
    tuner = getattr(module, "CachingAutotuner", None)
    options = getattr(tuner, "_create_compile_options", None)
    if of_torch.checked() and of_torch.takes(options, "self", "cfg", "compile_meta"):
        tuner._create_compile_options = choosing(options)


#: what Inductor asks before it lets a kernel add to what indices choose: to rows, and to single elements
LIMITS, FALLBACK = "needs_fallback_due_to_atomic_add_limitations", "use_scatter_fallback"
#: numbers that Triton does not add atomically, and Inductor thinks it does
_SMALL = {"torch.int8", "torch.uint8", "torch.int16"}


def limited(limits):
    """`needs_fallback_due_to_atomic_add_limitations`, which leaves small integers to torch where Triton's kernels would add them."""
    @functools.wraps(limits)
    def needs_fallback(dtype):
        return _small(dtype) or limits(dtype)

    return needs_fallback


def left(fallback):
    """`use_scatter_fallback`, which leaves sums of small integers to torch as well: of a CPU it does not ask for `needs_fallback_due_to_atomic_add_limitations`."""
    @functools.wraps(fallback)
    def use_fallback(op_overload, reduction_type, self_dtype, *rest):
        return reduction_type is not None and _small(self_dtype) or fallback(op_overload, reduction_type, self_dtype, *rest)

    return use_fallback


def _small(dtype) -> bool:
    return str(dtype) in _SMALL and sys.modules["torch._inductor.config"].cpu_backend == "triton"


def choosing(options):
    """`CachingAutotuner._create_compile_options`, which chooses for a pointwise kernel of Inductor's own that adds atomically."""
    @functools.wraps(options)
    def chosen(self, cfg, compile_meta):
        made = options(self, cfg, compile_meta)
        if self.device_props.type == "cpu" and getattr(self.heuristic_type, "name", None) == "POINTWISE" and not self.custom_kernel:
            if "tl.atomic_add(" in self.fn.src and pays(math.prod((self.size_hints or {"": ELEMENTS + 1}).values()), _threads()):
                made["alone"] = True
        return made

    return chosen


def pays(elements: int, threads: int) -> bool:
    """Is one thread that just adds faster than `threads` that add atomically?"""
    return elements <= ELEMENTS or threads <= THREADS


def _threads() -> int:
    """Threads that the kernel will have, most likely: Inductor compiles in processes of its own, which know of no torch.set_num_threads."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, int(said)) if said.isdigit() and int(said) else cores
