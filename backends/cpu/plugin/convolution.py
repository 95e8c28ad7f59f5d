"""Convolutions with a bias, where `max_autotune` times Inductor's templates of them on the CPU.

These know no bias. For a GPU Inductor adds it behind them; for a CPU, whose library adds it itself, it does not, and offered the templates nonetheless: a call of one failed of an argument too many,
and chosen without a call it would have left the bias out. Here it is added behind them on a CPU as well, in the kernel that follows or the template's own.
"""

from __future__ import annotations

import functools
import sys

from . import products
from ... import of_torch

#: parameters of what torch lowers a convolution by
_KNOWN = ("x", "weight", "bias", "stride", "padding", "dilation", "transposed", "output_padding", "groups")


def mend(module):
    """Mend torch._inductor.kernel.conv, which has run; a torch that was not tried, or has it written in another way, is left alone."""
    own = getattr(module, "convolution", None)
    if not of_torch.checked() or not of_torch.takes(own, *_KNOWN):
        return
    import torch
    lowerings = sys.modules["torch._inductor.lowering"].lowerings
    op, apart = torch.ops.aten.convolution, bias_apart(own, lowerings)
    for overload in (op, op.default):
        if overload in lowerings:
            lowerings[overload] = apart
    module.convolution = apart


def bias_apart(lowering, lowerings: dict):
    """torch's lowering of aten.convolution, to which a bias is not handed where a template would get it."""
    @functools.wraps(lowering)
    def lowered(x, weight, bias, *how, **named):
        if bias is None or not timed(x):
            return lowering(x, weight, bias, *how, **named)
        from torch._inductor import config
        spatial = weight.get_size()[2:]
        if all(products.number(s) == 1 for s in spatial):  # most become a matrix product, which has its bias; no other is worth a template
            with config.patch(max_autotune_conv_backends="ATEN"):
                return lowering(x, weight, bias, *how, **named)
        import torch
        aten = torch.ops.aten
        return lowerings[aten.add](lowering(x, weight, None, *how, **named), lowerings[aten.view](bias, [*bias.get_size(), *[1] * len(spatial)]))

    return lowered


def timed(x) -> bool:
    """Does Inductor time templates of Triton's for a convolution of this input?"""
    return products.serves(x) and products.timed() and products.listed("TRITON", "max_autotune_conv_backends")
