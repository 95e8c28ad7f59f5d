"""Maxima and minima along a dimension whose indices nobody asks for, `x.max(-1)[0]`, by Inductor on a CPU.

Since torch 2.13 such a kernel finds the index as well, and drops it: 1000 rows of 1000 in bf16 take 425 us so and 167 without, on one thread of a busy Zen 4; `amax`, which it was before, has the same rule for NaN.
"""

from __future__ import annotations

import functools

from ... import of_torch

#: Inductor's reduction to a value by its index -> the one without
_WITHOUT = {"reduce_argmax_value": "reduce_amax", "reduce_argmin_value": "reduce_amin"}


def mend(module):
    """Mend torch._inductor.lowering, which has run; a torch that was not tried, or has it written in another way, is left alone."""
    for name, other in _WITHOUT.items():
        given, without = getattr(module, name, None), getattr(module, other, None)
        if of_torch.checked() and of_torch.takes(given, "x", "axis", "keepdims", "dtype") and of_torch.takes(without, "x", "axis", "keepdims", "dtype"):
            setattr(module, name, value_alone(given, without))


def value_alone(given, without):
    """`reduce_argmax_value` or `reduce_argmin_value`, which of a tensor on a CPU looks for no index."""
    @functools.wraps(given)
    def reduced(x, axis=None, keepdims=False, *, dtype=None):
        return (without if x.get_device().type == "cpu" else given)(x, axis=axis, keepdims=keepdims, dtype=dtype)

    return reduced
