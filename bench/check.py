"""Is a result right? By the error measure of `ops.accuracy`, and by guard words around it."""

from __future__ import annotations

import math
from typing import Callable

import torch

from ..backends.base import Error
from ..ops.accuracy import FAR, error

#: written around outputs; a stray store shows
GUARD = 1234.5


def tensors(name: str, out, nothing: bool = False) -> list[torch.Tensor]:
    """The tensors of a result: one, a tuple or list of them, or, where `nothing` may be returned, none of None. Raises `Error` for anything else."""
    made = [] if nothing and out is None else [out] if isinstance(out, torch.Tensor) else list(out) if isinstance(out, (tuple, list)) else [out]
    for t in made:
        if not isinstance(t, torch.Tensor):
            raise Error(f"{name} returned {type(t).__name__}; it takes a tensor, or a tuple or list of them")
    return made


def largest(got: list[torch.Tensor], want: list[torch.Tensor]) -> float:
    """The largest of several results' errors; infinite where one has more results than the other, or there are none."""
    return max((error(g, w) for g, w in zip(got, want)), default=float("inf")) if len(got) == len(want) else float("inf")


def of_step(got: list[torch.Tensor], want: list[torch.Tensor], single: bool = True) -> float:
    """The error of a training step: of what it returns, the first, and of the gradients behind it, each against its own size or, if that is more, the mean size of all, since some are 0 but
    for rounding (that of the bias of BERT's keys). single: is each element looked at, too? In 16 bits a relu's argument near 0 falls on either side, so that single elements of a gradient are off
    by several times their mean, in eager torch as well."""
    if len(got) != len(want):
        return float("inf")
    grads = [w.detach().double() for w in want[1:]]
    count = sum(w.numel() for w in grads)
    least = (sum(w.square().sum().item() for w in grads) / count) ** 0.5 if count else 0.0
    return max([largest(got[:1], want[:1]), *(error(g, w, FAR if single else float("inf"), least) for g, w in zip(got[1:], want[1:]))])


def judged(got: list[torch.Tensor], want: list[torch.Tensor], allowed: float, measure: Callable = largest) -> dict:
    """What a row says of results: right or wrong, the error by `measure`, and where they differ if that has no number."""
    e = measure(got, want)
    out = {"status": "ok" if e <= allowed else "wrong", "error": e, "allowed": allowed}
    return out | ({"reason": why} if math.isinf(e) and (why := differs(got, want)) else {})


def differs(got: list[torch.Tensor], want: list[torch.Tensor]) -> str:
    """Where results differ so that no number says by how much: their count, a shape, NaN or an infinity. "" where they do not."""
    if len(got) != len(want):
        return f"{len(got)} results, {len(want)} expected"
    for k, (g, w) in enumerate(zip(got, want)):
        name = f"result {k}: " if len(want) > 1 else ""
        if g.shape != w.shape:
            return f"{name}shape {tuple(g.shape)}, {tuple(w.shape)} expected"
        if g.is_complex() != w.is_complex():
            return f"{name}{'complex' if g.is_complex() else 'real'} numbers, {'complex' if w.is_complex() else 'real'} ones expected"
        x, y = (t.detach().cpu().to(torch.complex128 if t.is_complex() else torch.float64) for t in (g, w))
        off = (torch.isfinite(x) != torch.isfinite(y)) | (torch.isnan(x) != torch.isnan(y)) | torch.isinf(y) & (x != y)
        if off.any():
            at = tuple(torch.nonzero(off)[0].tolist())
            return f"{name}{x[at].item():.4g} at {list(at)}, {y[at].item():.4g} expected" + (f", the first of {int(off.sum()):,} such elements" if off.sum() > 1 else "")
    return ""


def put_back(given: list, kept: list) -> list[int]:
    """Which of `given` are tensors that differ from what they were (`kept`); these get their values back."""
    changed = [k for k, (x, y) in enumerate(zip(given, kept)) if isinstance(x, torch.Tensor) and error(x, y) != 0]
    with torch.no_grad():
        for k in changed:
            given[k].copy_(kept[k])
    return changed


def verdict(op, got, args, kwargs) -> tuple[bool, float]:
    """(right?, error) of an op's result, one tensor or several, for its arguments, against its float64 reference."""
    e = largest(tensors(op.name, got), tensors("the reference", op.expected(*args, **kwargs)))
    tensor = next(a for a in args if isinstance(a, torch.Tensor))
    return e <= op.allowed(tensor.dtype), e


def guarded(shape, dtype, device="cpu", pad: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """(view of `shape`, the flat tensor around it): `pad` guard words lie before and after the view."""
    n = 1
    for s in shape:
        n *= s
    whole = torch.full((n + 2 * pad,), GUARD, dtype=torch.float64).to(dtype).to(device)
    return whole[pad:pad + n].view(shape), whole


def guards_hold(whole: torch.Tensor, pad: int = 64) -> bool:
    """Are the guard words of `guarded` as they were?"""
    want = torch.full((pad,), GUARD, dtype=torch.float64).to(whole.dtype)
    ends = whole.cpu()
    return torch.equal(ends[:pad], want) and torch.equal(ends[-pad:], want)
