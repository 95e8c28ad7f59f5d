"""Assertions on indices in Inductor's kernels, for the elements that there are.

A program whose block goes beyond a tensor's end computes indices there, too, from whatever its masked loads gave, and stores nothing. Inductor leaves such elements out of its assertions,
but for indices that are computed from others that were read (`max_unpool2d` of `max_pool2d`): these failed on the CPU, whose kernels assert.
"""

from __future__ import annotations

import functools

from ... import of_torch


def mend(module):
    """Mend torch._inductor.codegen.triton, which has run; a torch that was not tried, or lacks what is used here, is left alone."""
    of = getattr(module, "TritonKernel", None)
    if of_torch.checked() and all(hasattr(of, name) for name in ("indirect_assert", "active_range_trees", "filter_masks")):
        of.indirect_assert = within(of.indirect_assert)


def within(indirect_assert):
    """`indirect_assert`, which is given no mask where it is not known from where an index comes: then all of the block's, on a CPU."""
    @functools.wraps(indirect_assert)
    def found(self, var, lower, upper, mask=None):
        from torch._inductor.virtualized import V
        if not mask and V.graph.get_current_device_or_throw().type == "cpu":
            from torch.utils._ordered_set import OrderedSet
            masks = OrderedSet(tree.mask_name() for tree in self.active_range_trees())
            self.filter_masks(masks)
            mask = " & ".join(masks) or None
        return indirect_assert(self, var, lower, upper, mask)

    return found
