"""What lies outside of what there is, in Inductor's kernels.

- Assertions on indices. A program whose block goes beyond a tensor's end computes indices there, too, from whatever its masked loads gave, and stores nothing. Inductor leaves such elements out of
  its assertions, but for indices that are computed from others that were read (`max_unpool2d` of `max_pool2d`): these failed on the CPU, whose kernels assert.
- Padding. Where all that is padded is one load, torch leaves it to the load's mask to put the padding in. What the same kernel has computed is not loaded: of a reduction's only column
  (`F.pad(x.sum(-1, keepdim=True), (-1, 1))`) the padding was the sum itself.
"""

from __future__ import annotations

import functools

from ... import of_torch


def mend(module):
    """Mend torch._inductor.codegen.triton, which has run; a torch that was not tried, or lacks what is used here, is left alone."""
    if not of_torch.checked():
        return
    of = getattr(module, "TritonKernel", None)
    if all(hasattr(of, name) for name in ("indirect_assert", "active_range_trees", "filter_masks")):
        of.indirect_assert = within(of.indirect_assert)
    of = getattr(module, "TritonKernelOverrides", None)
    if of_torch.takes(masked := getattr(of, "masked", None), "mask", "body", "other"):
        of.masked = staticmethod(padded(masked))


def padded(masked):
    """`masked`, which is `other` outside of its mask whether its body loads what it gives or has it already."""
    @functools.wraps(masked)
    def found(mask, body, other):
        made = masked(mask, body, other)
        from torch._inductor.virtualized import V, _ops as ops
        if mask is None or V.graph.get_current_device_or_throw().type != "cpu":
            return made
        given = [arg for node in body.graph.find_nodes(op="output") for arg in node.args]
        if any(arg.target == "load" and arg.args[1] in V.kernel.cse.store_cache for arg in given):
            other = bool(other) if made.bounds.is_bool else other
            made = ops.where(mask, made, ops.constant(other, made.dtype))
            made.mask_vars.discard(mask)
        return made

    return found


def within(indirect_assert):
    """`indirect_assert`, which is given no mask where it is not known from where an index comes: then all of the block's, on a CPU."""
    @functools.wraps(indirect_assert)
    def found(self, var, lower, upper, mask=None):
        from torch._inductor.virtualized import V
        if not mask and V.graph.get_current_device_or_throw().type == "cpu":
            from torch.utils._ordered_set import OrderedSet
            masks = OrderedSet(tree.mask_name() if hasattr(tree, "mask_name") else f"{tree.prefix}mask" for tree in self.active_range_trees())  # torch 2.11 has no name for it
            self.filter_masks(masks)
            mask = " & ".join(masks) or None
        return indirect_assert(self, var, lower, upper, mask)

    return found
