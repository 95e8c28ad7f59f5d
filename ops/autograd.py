"""Derivatives of registered ops: backward, forward mode, derivatives of either, and all of torch.func's transforms.

`register_autograd` of torch.library knows backward only: forward-mode tangents are dropped in silence, and torch.func's
transforms raise. So each op has a kernel of ours for the dispatcher's key Autograd. It is a `torch.autograd.Function` of one level: where
transforms are nested the dispatcher calls it once for each of them, with that level's tensors, and what it calls in turn goes to the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

import torch

from ..backends import of_torch
from ..backends.of_torch import forward_ad
from . import distributed


@dataclass(frozen=True)
class Derivatives:
    """An op's derivatives, in terms of ops that have derivatives themselves.

    Of an op with several results `out`, `grad` and the result's tangent are tuples, in which gradients may be None.

    keep(inputs, out): the tensors among them that `backward` takes. backward(kept, params, grad, needed): a gradient for each tensor
    argument, None where it is not needed[k]; params: the arguments behind the tensors. jvp(inputs, out, tangents): the result's tangent; inputs:
    all arguments, tangents: of each tensor argument, None where it has none (one at least has). Behind an op's own arguments there may be
    the backend's name."""

    keep: Callable
    backward: Callable
    jvp: Callable


def value_and_tangent(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(value, tangent) at the dispatcher's present level of forward mode. (That of `forward_ad` is not set where a graph of Dynamo's runs.)"""
    return of_torch.unpack_dual(t, level=0)


def followed(*args) -> bool:
    """Does autograd, of either mode, follow a call with these arguments?"""
    return ((torch.is_grad_enabled() and of_torch.any_requires_grad(*args))
            or any(value_and_tangent(t)[1] is not None for t in args if isinstance(t, torch.Tensor)))


def below(op, keyset, args):
    """`op` for the dispatcher's keys under Autograd."""
    distributed.meet(op._opname, args)
    with of_torch.BelowAutograd():
        return op.redispatch(keyset & of_torch.after_autograd_keyset, *args)


def _outer(op, keyset, args):
    """As `below`, from within a Function's forward, which has switched both modes off: the transforms further out follow the op, too."""
    if not of_torch.transforms_active():
        return below(op, keyset, args)
    with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
        return below(op, keyset, args)


def kernel(op, count: int, rule: Derivatives) -> Callable:
    """What the dispatcher is to call for `op` (an OpOverload, whose first `count` arguments are tensors) at its key Autograd."""
    several = len(op._schema.returns) > 1

    def forward(ctx, keyset, *args):
        out = _kept(ctx, count, rule, args, _outer(op, keyset, args))
        ctx.save_for_forward(*args[:count], *(out if several else (out,)))
        return out

    def backward(ctx, *grads):
        return None, *_gradients(ctx, count, rule, grads, ctx.needs_input_grad[1:])  # the keyset has none

    def jvp(ctx, _, *tangents):
        # Values without this level's tangents, with forward mode on: it is the levels further out that follow what is computed here.
        saved = [value_and_tangent(t)[0] for t in ctx.saved_tensors]
        with forward_ad._set_fwd_grad_enabled(True):
            return rule.jvp((*saved[:count], *ctx.params), tuple(saved[count:]) if several else saved[count], tangents[:count])

    Followed = _function(op._opname, forward, backward, jvp)

    def autograd(keyset, *args):  # without a look whether anything follows: for tangents that takes as long
        if not of_torch.transforms_active():
            return Followed.apply(keyset, *args)
        with of_torch.single_level():
            return Followed.apply(keyset, *args)

    return autograd


def straight(name: str, count: int, rule: Derivatives, run: Callable) -> Callable:
    """The op of that name for calls that nothing follows but backward mode: `run`, on its arguments, with the rule's backward, without the dispatcher."""

    def forward(ctx, *args):
        return _kept(ctx, count, rule, args, run(*args))

    def backward(ctx, *grads):
        return _gradients(ctx, count, rule, grads, ctx.needs_input_grad)

    return _function(name, forward, backward).apply


def _kept(ctx, count: int, rule: Derivatives, args: tuple, out):
    """`out`, with what `_gradients` needs kept."""
    ctx.params = args[count:]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*rule.keep(args, out))
    return out


def _gradients(ctx, count: int, rule: Derivatives, grads: tuple, needed: tuple) -> tuple:
    """Of all arguments of an op, from those of its results."""
    none = (None,) * len(ctx.params)
    if all(g is None for g in grads):
        return (None,) * count + none
    return *rule.backward(ctx.saved_tensors, ctx.params, grads if len(grads) > 1 else grads[0], needed[:count]), *none


def _function(name: str, forward: Callable, backward: Callable, jvp: Callable | None = None):
    """In autograd's graph its nodes are called triport_<name>_Backward."""
    parts = {"forward": forward, "backward": backward} | ({"jvp": jvp} if jvp is not None else {})
    return type(f"triport_{name}_", (of_torch.SingleLevelFunction,), {k: staticmethod(f) for k, f in parts.items()})


def register_backward(name: str, count: int, rule: Derivatives):
    """The public way, backward alone, for a torch that lacks what `kernel` is made of. name: the op's full one."""
    def setup(ctx, inputs, output):
        ctx.params = inputs[count:]
        ctx.save_for_backward(*rule.keep(inputs, output))

    def backward(ctx, *grads):
        return (*rule.backward(ctx.saved_tensors, ctx.params, grads[0] if len(grads) == 1 else grads, ctx.needs_input_grad[:count]), *(None,) * len(ctx.params))

    torch.library.register_autograd(name, backward, setup_context=setup)


def added(*terms):
    """The sum of those that are not None."""
    total = None
    for t in terms:
        if t is not None:
            total = t if total is None else total + t
    return total


def wide(t: torch.Tensor) -> torch.Tensor:
    """`t` in the type that kernels compute in: at least fp32."""
    return t if t.dtype in (torch.float32, torch.float64) else t.float()
