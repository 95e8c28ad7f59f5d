"""Is a result right? The error measure is scale-free, and NaN, infinities and zeros cannot hide in it."""

from __future__ import annotations

import torch

from ..backends.base import Error

#: written around outputs; a stray store shows
GUARD = 1234.5


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    """||got - want|| / ||want|| in float64 over the elements where `want` is finite. Infinite when shapes differ, when NaN
    or an infinity stands in one but not (alike) in the other. A `want` below the normal numbers of got's dtype counts as
    its smallest normal number: subnormal results are spaced evenly, so a relative bound means nothing there."""
    tiny = torch.finfo(got.dtype).tiny if got.dtype.is_floating_point else 0.0
    if got.device != want.device:
        got, want = got.cpu(), want.cpu()
    got, want = got.detach(), want.detach()
    if got.shape != want.shape or got.is_complex() != want.is_complex():
        return float("inf")
    if got.is_complex():
        got, want = torch.view_as_real(got.resolve_conj()), torch.view_as_real(want.resolve_conj())
    if not got.is_floating_point() and not want.is_floating_point() and torch.equal(got.long(), want.long()):
        return 0.0
    exact = not got.is_floating_point() and not want.is_floating_point()  # integers beyond 2^53 have no double of their own
    got, want = got.double(), want.double()
    if got.numel() == 0:
        return 0.0
    if not torch.equal(torch.isnan(got), torch.isnan(want)):
        return float("inf")
    infinite = torch.isinf(want)
    if not torch.equal(got[infinite], want[infinite]):
        return float("inf")
    finite = torch.isfinite(want)
    if not torch.isfinite(got[finite]).all():
        return float("inf")
    diff = (got[finite] - want[finite]).norm().item() or float(exact)
    size = max(want[finite].norm().item(), tiny * want[finite].numel() ** 0.5)
    return diff / size if size else (0.0 if diff == 0.0 else float("inf"))


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
