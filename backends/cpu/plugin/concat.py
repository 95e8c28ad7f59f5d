"""What is put side by side in one tensor, computed by one kernel.

Inductor has each part of a `cat` or `stack` on a CPU written by a kernel of its own, unless parts read the same elements: of a recommendation model's 26 embeddings 26
kernels of 3 us, for which its C++ has one loop. Here such parts count as if they shared what they read, as little as Inductor fuses for; all else that keeps kernels
apart (sizes, dependencies, memory at the peak, `max_fusion_size`) is as before.
"""

from __future__ import annotations

import functools
import inspect
import sys

from ... import of_torch


def mend(module):
    """Mend torch._inductor.scheduler, which has run; a torch that was not tried, or has it written in another way, is left alone."""
    of = getattr(module, "Scheduler", None)
    score, pairs = getattr(of, "score_fusion_memory", None), getattr(of, "get_possible_fusions", None)
    if of_torch.checked() and _begins(score, "self", "node1", "node2") and _begins(pairs, "self", "nodes"):
        of.score_fusion_memory, of.get_possible_fusions = scored(score), listed(pairs)


def _begins(function, *names: str) -> bool:
    """Are these a function's first parameters?"""
    return function is not None and tuple(inspect.signature(function).parameters)[:len(names)] == names


def listed(pairs):
    """`get_possible_fusions`, which looks at nodes that name the same tensor; a part of one has a name of its own. What is added comes last, as what is shared least does."""
    @functools.wraps(pairs)
    def found(self, nodes, *args, **kwargs):
        own = pairs(self, nodes, *args, **kwargs)
        known, parts = set(own), {}
        for node in nodes:
            for name in _parts(node):
                parts.setdefault(name, []).append(node)
        for group in parts.values():
            for n, one in enumerate(group):
                for other in group[n + 1:n + 1 + _config().max_fusion_size]:
                    if not known & {(one, other), (other, one)} and self.can_fuse(one, other, *args, **kwargs):
                        known.add((one, other))
                        own.append((one, other))
        return own

    return found


def scored(score):
    """`score_fusion_memory`, what two nodes share, for parts of one tensor as well. In torch 2.13 it may be asked for three numbers, of which two add up to it."""
    @functools.wraps(score)
    def found(self, node1, node2, *args, **kwargs):
        own = score(self, node1, node2, *args, **kwargs)
        shared, *more = own if isinstance(own, tuple) else (own,)
        least = getattr(_config(), "score_fusion_memory_threshold", 1)
        if shared + sum(more[:1]) >= least or any(more[1:]) or not side_by_side(node1, node2):
            return own
        return (least, *more) if more else least

    return found


def _config():
    return sys.modules["torch._inductor.config"]


def side_by_side(one, other) -> bool:
    """Do two nodes of the scheduler only write parts of tensors, of one and the same among them?"""
    return bool(_parts(one) & _parts(other))


def _parts(node) -> set:
    """Names of the tensors that a node writes parts of; none if it writes one of its own, or is no element-wise kernel of Triton for the CPU."""
    if getattr(_config(), "cpu_backend", "") != "triton":
        return set()
    from torch._inductor import ir
    device = node.get_device()
    if device is None or device.type != "cpu" or node.is_reduction() or node.is_template():
        return set()
    layouts = [getattr(buffer.node, "layout", None) for buffer in node.get_outputs()]
    return {layout.view.get_name() for layout in layouts} if layouts and all(isinstance(layout, ir.NonOwningLayout) for layout in layouts) else set()
